"""Anything array-like as a NumPy array: lists, tensors, data frames, series. Without a copy where possible."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evicp.errors import EvicpError, InputTypeError, LabelsError, LogitsError, installed

Element = TypeVar("Element", bound=np.generic)


def is_on_device(value: Any) -> bool:
    """Whether this is a torch tensor on an accelerator."""
    return is_torch(value) and value.device.type not in ("cpu", "meta")


#: DLPack's numbers of devices whose memory the CPU reads: its own, and pinned memory of CUDA and ROCm.
_OF_CPU = (1, 3, 11)


def adopted(value: Any) -> Any:
    """An array on an accelerator (of CuPy, JAX, ...) as a torch tensor of the same memory; all else as it is.

    By the DLPack protocol, and only where torch is installed.
    """
    if type(value) is np.ndarray or is_torch(value) or not (hasattr(value, "__dlpack__") and installed("torch")):
        return value
    try:
        kind, _ = value.__dlpack_device__()
        return value if kind in _OF_CPU else import_module("torch").from_dlpack(value)
    except Exception:  # whatever a foreign object raises: it is refused where NumPy cannot read it either
        return value


def on_cpu(value: Any) -> Any:
    """A tensor on an accelerator brought to the CPU; all else as it is."""
    return value.cpu() if is_on_device(value) else value


def is_missing(value: Any) -> bool:
    """Whether this stands for a missing value in NumPy, pandas or Python."""
    return not isinstance(value, str) and str(value) in ("None", "nan", "<NA>", "NaT")


def as_array(value: Any, what: str, *, keep_bfloat16: bool = False) -> NDArray[Any]:
    """Anything array-like as a NumPy array, without a copy where possible; bfloat16 as float32, if it is not kept."""
    if type(value) is np.ndarray:  # nothing to be read, and no mask
        return value if keep_bfloat16 else _widen_bfloat16(value)
    if keep_bfloat16 and (bits := _bfloat16_of_torch(value)) is not None:
        return bits
    refuse_masked(value, what)
    if isinstance(value, np.ndarray):
        return _widen_bfloat16(np.asarray(value))
    if value is None or isinstance(value, str | bytes | PathLike):
        hint = " Read a file with evicp.io.files.read_logits." if value is not None and what == "logits" else ""
        raise InputTypeError(f"{what} must be an array; got {value!r}.{hint}")
    if isinstance(value, Mapping | Iterator | set | frozenset):
        raise InputTypeError(f"{what} must be an array; got a {type(value).__name__}. Pass its values as a list.")
    if hasattr(value, "nnz") and (hasattr(value, "toarray") or hasattr(value, "todense")):
        raise InputTypeError(f"{what} must be dense; got a sparse {type(value).__name__}. Pass {what}.toarray().")
    try:
        return _converted(value, what)
    except EvicpError:
        raise
    except Exception as error:  # whatever a foreign object raises when asked for its values
        if "inhomogeneous" in str(error):
            raise (LabelsError if what == "labels" else LogitsError)(
                f"{what} must be rectangular; got rows of different lengths. Pad or drop the short rows."
            ) from error
        raise InputTypeError(
            f"{what} must be an array; got {type(value).__name__}, which NumPy cannot read ({error})."
        ) from error


def refuse_masked(value: Any, what: str) -> None:
    """Refuse a masked array, or a list of some: NumPy and scikit-learn forget the mask."""
    items = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(item, np.ma.MaskedArray) and np.ma.is_masked(item) for item in items):
        raise InputTypeError(
            f"{what} must not be masked: the values under a mask are unknown. Pass {what}.filled(...)."
        )


def _converted(value: Any, what: str) -> NDArray[Any]:
    value = adopted(value)
    if is_torch(value):
        return _from_torch(value, what)
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return _from_frame(value, what)
    if hasattr(value, "dtype") and hasattr(value, "to_numpy"):
        return _from_column(value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return _widen_bfloat16(np.asarray(value))


def is_torch(value: Any) -> bool:
    """Whether this is a torch tensor, on any device."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _from_torch(tensor: Any, what: str) -> NDArray[Any]:
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided:
        raise InputTypeError(f"{what} must be dense; got a {tensor.layout} tensor. Pass {what}.to_dense().")
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()  # bfloat16 and narrower, which NumPy does not know
    array: NDArray[Any] = tensor.resolve_conj().resolve_neg().numpy()
    return array


def _from_frame(frame: Any, what: str) -> NDArray[Any]:
    """The values of a pandas or polars frame; column by column where they do not share one numeric type.

    Those of a mask may be True or False, and so may features and groups.
    """
    wanted = "boolean" if what == "mask" else "numeric"
    kinds = "bfiu" if what == "mask" or what.endswith(("features", "groups")) else "fiu"
    array = np.asarray(frame.to_numpy())
    if array.dtype.kind in kinds:
        return _as_exact_as_least(frame, array) if what == "logits" and array.dtype == np.float64 else array
    columns = []
    for place, name in enumerate(frame.columns):  # names may be there twice
        column = _from_column(frame.iloc[:, place] if hasattr(frame, "iloc") else frame[name])
        if column.dtype.kind not in kinds:
            raise InputTypeError(
                f"{what} must have {wanted} columns only; column {name!r} has dtype {column.dtype}. "
                "Drop it, or fill its missing values."
            )
        columns.append(column)
    return np.column_stack(columns) if columns else array.astype(np.float64)


def _as_exact_as_least(frame: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Logits of a frame in single precision, if some of its columns are: NumPy widens these to the others'."""
    return array.astype(np.float32) if "float32" in {str(dtype).lower() for dtype in frame.dtypes} else array


def _from_column(column: Any) -> NDArray[Any]:
    """The values of a pandas or polars series; of pandas' nullable numbers the plain ones, with NaN for gaps."""
    array = np.asarray(column.to_numpy())
    kind = getattr(column.dtype, "kind", "O")
    if array.dtype.kind != "O" or kind not in "fiu":
        return array
    if kind == "f" or column.isna().any():
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(column.to_numpy(dtype=np.int64 if kind == "i" else np.uint64))


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether this is bfloat16, of which NumPy has none of its own: it is the ml_dtypes package's."""
    return dtype.kind == "V" and dtype.name == "bfloat16"


def _widen_bfloat16(array: NDArray[Any]) -> NDArray[Any]:
    """What is bfloat16 is widened to float32, exactly."""
    return array.astype(np.float32) if is_bfloat16(array.dtype) else array


def _bfloat16_of_torch(value: Any) -> NDArray[Any] | None:
    """A bfloat16 array of a torch tensor's memory; None of anything else, and where ml_dtypes is missing."""
    if not is_torch(value) or str(value.dtype) != "torch.bfloat16" or value.device.type != "cpu" or value.is_sparse:
        return None
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return None
    bits: NDArray[Any] = value.detach().view(sys.modules["torch"].int16).numpy()
    return bits.view(bfloat16)


def owned(array: NDArray[Element]) -> NDArray[Element]:
    """A read-only array that other code cannot change: a copy, unless it is read-only already."""
    return frozen(array.copy() if array.flags.writeable else array)


def frozen(array: NDArray[Element]) -> NDArray[Element]:
    """A read-only view: the array itself, which may be the caller's own, stays as writeable as it was."""
    view = array.view()
    view.setflags(write=False)
    return view


def restore_frozen(result: Any, state: dict[str, Any]) -> None:
    """For `__setstate__`: what is unpickled or copied is as read-only as it was."""
    result.__dict__.update({name: frozen(x) if isinstance(x, np.ndarray) else x for name, x in state.items()})
