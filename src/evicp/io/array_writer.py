"""Writing arrays to npz, npy and safetensors files whose bytes depend on the arrays alone."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from evicp.io.arrays import companion
from evicp.io.atomic import atomic_path

__all__ = ["ARRAY_SUFFIXES", "Stacked", "write_arrays", "write_npz"]

ARRAY_SUFFIXES = (".npz", ".npy", ".safetensors")


@dataclass(frozen=True, eq=False)
class Stacked:
    """An array on disk in pieces, to be written as one without holding it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Callable[[], Iterator[NDArray[Any]]]


Array = NDArray[Any] | Stacked


def write_arrays(output: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to npz or safetensors, or each to an npy file of its own, as the suffix says."""
    if output.suffix == ".npy":
        for name, array in reversed(list(arrays.items())):  # the logits last: once they are there, all is
            path = output if name == "logits" else companion(output, name)
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                _write_npy(file, array)
        return
    with atomic_path(output) as temporary:
        (write_npz if output.suffix == ".npz" else _write_safetensors)(temporary, arrays)


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """An npz file. Not by np.savez, which leaves its archive open when the disk is full."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(member, "w", force_zip64=True) as file:
                _write_npy(file, array)


def _write_npy(file: IO[bytes], array: Array) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    _write_values(file, array)


def _write_values(file: IO[bytes], array: Array) -> None:
    for piece in array.pieces() if isinstance(array, Stacked) else (array,):
        file.write(np.ascontiguousarray(piece, array.dtype).tobytes())


def _write_safetensors(path: Path, arrays: Mapping[str, Array]) -> None:
    """Numbers as tensors; names as JSON lists in the metadata.

    Not by the library's own writer, which holds all in memory and leaves files of other names where it is killed.
    """
    texts = {n: json.dumps(a.tolist()) for n, a in arrays.items() if isinstance(a, np.ndarray) and a.dtype.kind == "U"}
    tensors = [(name, array) for name, array in arrays.items() if name not in texts]
    tensors.sort(key=lambda item: -item[1].dtype.itemsize)  # so that each begins at a multiple of its item's size
    header: dict[str, Any] = {"__metadata__": texts} if texts else {}
    end = 0
    for name, array in tensors:
        start, end = end, end + array.dtype.itemsize * math.prod(array.shape)
        kind = f"{array.dtype.kind.upper()}{8 * array.dtype.itemsize}"
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    description = json.dumps(header, separators=(",", ":")).encode()
    description += b" " * (-len(description) % 8)
    with path.open("wb") as file:
        file.write(len(description).to_bytes(8, "little") + description)
        for _, array in tensors:
            _write_values(file, array)
