"""The loops over logits: the same functions, by the same names, in each backend.

`_numpy` is the reference and knows every score; `_native` is compiled and parallel and knows the built-in ones (its
C++ is in `native/`). Each function here picks the fastest backend that knows the score it is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import EvicpWarning, InputError
from evicp.input import convert
from evicp.input.warn import warn
from evicp.kernels import _numpy
from evicp.kernels.arithmetic import MIXED, ROUNDOFF, Arithmetic, in_precision
from evicp.types import F64, I32, I64, Bools

_BACKENDS = ("auto", "native", "numpy")
_chosen = os.environ.get("EVICP_BACKEND", "auto").lower()


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Force a backend for CPU arrays inside a block: "numpy", "native" or "auto" (also: EVICP_BACKEND)."""
    global _chosen  # noqa: PLW0603 - a switch for tests and for debugging, read on every call
    if name not in _BACKENDS:
        raise InputError(f"backend must be one of {', '.join(_BACKENDS)}; got {name!r}.")
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


@cache
def compiled() -> ModuleType | None:
    """The compiled backend; None, with a warning, where evicp was installed without it."""
    try:
        return import_module("evicp.kernels._native")
    except ImportError as error:
        warn(
            f"evicp is installed without compiled kernels ({error}); scores are computed by NumPy, which is slower. "
            "Install it with a C++ compiler, or from a wheel.",
            EvicpWarning,
        )
        return None


def level() -> str:
    """The instruction set that the compiled kernels use; "none" where there are none."""
    fast = compiled()
    return fast.level() if fast else "none"


#: The last score, by itself and not by its value, with the choice and what it led to: a server has one score.
_last: tuple[Any, str, Any] = (None, "", None)


def _backend_for(score: Any, logits: Any) -> Any:
    """The backend for a score and an array, or a tensor on an accelerator, that takes and gives NumPy arrays."""
    global _last  # noqa: PLW0603 - replaced as a whole, so that threads see one or the other
    if not isinstance(logits, np.ndarray):
        return import_module("evicp.kernels._tensors").Tensors(on_device(score, logits))
    last, chosen, found = _last
    if score is None or score is not last or _chosen is not chosen:
        found = _find_backend(score)
        _last = score, _chosen, found
    return found


def _find_backend(score: Any) -> Any:
    if _chosen == "numpy":
        return _numpy
    if _chosen not in _BACKENDS:
        raise InputError(f"EVICP_BACKEND must be one of {', '.join(_BACKENDS)}; got {_chosen!r}.")
    fast = compiled()
    if fast is None and _chosen == "native":
        raise InputError('backend "native" is not installed: it needs a wheel, or a C++ compiler at installation.')
    return fast if fast is not None and (score is None or fast.knows(score)) else _numpy


def on_device(score: Any, logits: Any) -> Any:
    """The backend for a tensor on an accelerator, Triton's for CUDA or plain torch; None where neither knows the score.

    Its functions take tensors and return tensors on the same device.
    """
    if not convert.is_on_device(logits):
        return None
    names = ("_triton", "_torch") if logits.device.type == "cuda" else ("_torch",)
    backends = (backend for name in names if (backend := _tensor_backend(name)) is not None)
    return next((backend for backend in backends if score is None or backend.knows(score)), None)


@cache
def _tensor_backend(name: str) -> ModuleType | None:
    try:
        return import_module(f"evicp.kernels.{name}")
    except ImportError:  # Triton does not exist everywhere torch does
        return None


def _arithmetic(score: Any, logits: Any, precision: str) -> Arithmetic:
    """What scores these logits, which were given in a precision."""
    on_cpu = isinstance(logits, np.ndarray)
    backend = _backend_for(score, logits) if on_cpu else on_device(score, logits)
    return Arithmetic.of(backend.__name__.rpartition("_")[2], backend.precision(logits), precision)


def comparable(made_by: Arithmetic | None, score: Any, logits: Any, precision: str) -> tuple[Any, Arithmetic]:
    """Logits as they have to be scored to be compared with scores that `made_by` made, and what will score them.

    None made scores before the first rows, which stay as they are. Others in a finer precision are rounded to that of
    the scores' own logits, and a backend that computes in more than one precision computes in theirs.
    """
    own = _arithmetic(score, logits, precision)
    if made_by is None or own is made_by or made_by.backend == MIXED:
        return logits, own
    if ROUNDOFF[precision] < ROUNDOFF[made_by.logits]:
        logits, precision = in_precision(logits, made_by.logits), made_by.logits
    own = _arithmetic(score, logits, precision)
    if own.backend == "native" and own.working != made_by.working:
        logits = in_precision(logits, made_by.working)
        own = _arithmetic(score, logits, precision)
    return logits, own


def p_values(score: Any, logits: Any, ascending: F64, labels: I64 | None) -> Any:
    """P-values of a tensor among ascending scores, on its device: (n, K), or (n,) of given labels."""
    return _backend_for(score, logits).p_values(score, logits, ascending, labels)


def logits_at(logits: Any, labels: I64) -> NDArray[Any]:
    """The logit of each row's given label, (n,)."""
    if isinstance(logits, np.ndarray):
        own: NDArray[Any] = logits[np.arange(len(labels)), labels]
        return own
    found: F64 = import_module("evicp.kernels._tensors").logits_at(logits, labels)
    return found


def largest_logits(logits: Any, rows: I64) -> NDArray[Any]:
    """The largest logit of each of some rows."""
    if isinstance(logits, np.ndarray):
        largest: NDArray[Any] = logits[rows].max(1)
        return largest
    found: F64 = import_module("evicp.kernels._tensors").largest_logits(logits)[rows]
    return found


def dense_scores(score: Any, logits: Any) -> F64:
    """Every label's score, (n, K)."""
    return _backend_for(score, logits).dense_scores(score, logits)


def label_scores(score: Any, logits: Any, labels: I64) -> F64:
    """The score of each row's given label, (n,)."""
    return _backend_for(score, logits).label_scores(score, logits, labels)


def labelled(score: Any, logits: Any, labels: Any, *, ordered: bool) -> Any:
    """The scores of labelled rows of a tensor on an accelerator, which stay there, and a summary (`Labelled`).

    The labels, a tensor next to the logits, are whole numbers; that they are class numbers is determined there, too.
    With `ordered` the scores may come sorted as well, where that costs nothing.
    """
    return _backend_for(score, logits).labelled(score, logits, labels, ordered=ordered)


def fixed_sets(score: Any, logits: Any, threshold: float, width: int | None) -> Any:
    """Sets of a tensor on an accelerator in a fixed shape, without waiting for the device, see `_torch_fixed`."""
    return _backend_for(score, logits).fixed_sets(score, logits, threshold, width)


def ragged_sets(score: Any, logits: NDArray[Any], threshold: float | F64) -> tuple[I64, I32, F64]:
    """All labels with score <= threshold, as (offsets, labels, their scores), best first in each row.

    The threshold is one for all, or broadcasts to (n, K): (1, K) for each label, (n, 1) for each row.
    """
    return _backend_for(score, logits).ragged_sets(score, logits, threshold)


def ragged_labels(score: Any, logits: Any, threshold: float | F64) -> tuple[Any, Any]:
    """The labels of `ragged_sets` without scores, as (offsets, labels): less work. Of a tensor they stay there."""
    return _backend_for(score, logits).ragged_labels(score, logits, threshold)


def ragged_within(score: Any, logits: Any, limits: Sequence[float | F64]) -> list[tuple[Any, Any]]:
    """`ragged_labels` of a tensor on an accelerator within each of several limits, from one pass over the logits."""
    found: list[tuple[Any, Any]] = _backend_for(score, logits).ragged_within(score, logits, limits)
    return found


def uncertainties(score: Any, logits: Any) -> F64:
    """The evidential uncertainty of each row, (n,), with the evidence of the score (relu where it has none)."""
    on_cpu = isinstance(logits, np.ndarray)
    if on_cpu and not isinstance(getattr(score, "evidence", "relu"), str):
        return _numpy.uncertainties(score, logits)
    return _backend_for(None if on_cpu else score, logits).uncertainties(score, logits)


def top_labels(score: Any, logits: Any) -> Any:
    """Each row's most plausible label."""
    return _backend_for(score, logits).top_labels(score, logits)


def label_ranks(logits: Any, labels: I64) -> I64:
    """One plus the number of labels with a strictly larger logit than the given one, (n,)."""
    return _backend_for(None, logits).label_ranks(logits, labels)


def tallied(offsets: Any, members: Any, truth: Any, logits: Any, n_classes: int) -> NDArray[np.int64] | None:
    """Evaluated rows of an accelerator, counted there, see `_torch_counts`; None where a label is no class."""
    by_triton = getattr(on_device(None, members), "tallied", None)
    tallied = by_triton or import_module("evicp.kernels._torch_counts").tallied
    found: NDArray[np.int64] | None = tallied(offsets, members, truth, logits, n_classes)
    return found


def nll_derivatives(logits: NDArray[Any], labels: I64, inverse_temperature: float) -> tuple[float, float, float]:
    """Mean negative log-likelihood of softmax(beta z), its derivative and its curvature in beta."""
    return _backend_for(None, logits).nll_derivatives(logits, labels, inverse_temperature)


def top_confidences(logits: NDArray[Any], labels: I64, inverse_temperature: float) -> tuple[F64, Bools]:
    """The largest probability of each row and whether its label has it."""
    return _backend_for(None, logits).top_confidences(logits, labels, inverse_temperature)
