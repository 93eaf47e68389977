"""Files of arrays (npy, npz, safetensors): opened where their arrays lie, written with the same bytes each time."""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError
from evicp.io.atomic import atomic_path
from evicp.io.paths import format_of, open_file, readable
from evicp.io.stored import MemoryArray, PackedArray, RawArray, Stamp, StoredArray, bytes_of, npy_header, stamp_of

#: The names of arrays, or how they are chosen among those of a file.
Names = Collection[str] | Callable[[Sequence[str]], Collection[str]]

#: The arrays that may lie next to logits in an npy file, each in a separate file.
_COMPANIONS = ("labels", "inputs", "class_names", "source")

#: The formats that arrays are written in.
ARRAY_SUFFIXES = (".npz", ".npy", ".safetensors")

#: The types of safetensors that NumPy knows, and bfloat16, which is widened.
_SAFE_TYPES: Mapping[str, str] = MappingProxyType(
    {
        f"{kind}{8 * size}": f"<{kind.lower()}{size}"
        for kind in "FIU"
        for size in (1, 2, 4, 8)
        if (kind, size) != ("F", 1)
    }
    | {"BF16": "<f4"}
)

#: A local header of a zip archive without its names, and where it says how long they are.
_ZIP_HEADER, _ZIP_LENGTHS = 30, 26

#: What deflate can make of one byte.
_MOST_INFLATED = 1032


def companion(path: Path, name: str) -> Path:
    """The npy file of an array that belongs to logits in an npy file.

    >>> companion(Path("logits-val.npy"), "labels").name, companion(Path("val.npy"), "labels").name
    ('labels-val.npy', 'val.labels.npy')
    """
    if "logits" in path.name:
        return path.with_name(path.name.replace("logits", name))
    return path.with_name(f"{path.stem}.{name}.npy")


def companions(path: Path) -> dict[str, Path]:
    """All files that would be read with logits in an npy file, by what they hold; none for other files."""
    return {name: companion(path, name) for name in _COMPANIONS} if format_of(path) == ".npy" else {}


def open_npy(path: Path) -> StoredArray:
    """The array of an npy file."""
    with open_file(path) as file:
        if file.read(2) == b"PK":
            raise FileError("it is an npz file, not npy. Rename it.")
        file.seek(0)
        header = npy_header(file)
        if header is not None and not (header[2] and len(header[1]) != 2):
            dtype, shape, by_column = header
            return RawArray(path, shape, dtype, file.tell(), by_column, stamp=stamp_of(file))
        file.seek(0)
        return _read_at_once(file)


def _read_at_once(file: Any) -> MemoryArray:
    """An array in npy format that is read at once, as it is small, or no plain matrix."""
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    file.read(1)  # an archive's checksum is checked when its end is
    bytes_of(array.shape, array.dtype.itemsize)
    return MemoryArray.of(array)


def open_npz(path: Path, wanted: Names) -> tuple[dict[str, StoredArray], list[str]]:
    """The wanted arrays of an npz file, where they lie, and the names of all."""
    with open_file(path) as file:
        if file.read(6) == b"\x93NUMPY":
            raise FileError("it is an npy file, not npz. Rename it.")
        with zipfile.ZipFile(file) as archive:
            names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            infos = dict(zip(names, archive.infolist(), strict=True))
            chosen = wanted(names) if callable(wanted) else wanted
            for name in chosen:
                if names.count(name) > 1:
                    raise FileError(f"it has more than one array {name!r}. Save it again.")
            found = {name: _open_member(path, file, archive, infos[name]) for name in chosen if name in infos}
            return found, names


def _open_member(path: Path, file: Any, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredArray:
    """One array of an npz file: its bytes where they are plain, a stream where they are packed."""
    most = {zipfile.ZIP_STORED: info.compress_size, zipfile.ZIP_DEFLATED: _MOST_INFLATED * info.compress_size}
    if info.file_size > most.get(info.compress_type, info.file_size):
        raise FileError(f"its array {info.filename} cannot have the {info.file_size:,} bytes that the archive states.")
    with archive.open(info) as entry:
        header = npy_header(entry)
        length = entry.tell()
    if header is None or header[2]:
        with archive.open(info) as entry:
            return _read_at_once(entry)
    dtype, shape, _ = header
    if length + bytes_of(shape, dtype.itemsize) != info.file_size:
        shorter = length + bytes_of(shape, dtype.itemsize) > info.file_size
        raise FileError(f"its array {info.filename} is {'shorter' if shorter else 'longer'} than its header says.")
    if info.compress_type != zipfile.ZIP_STORED:
        return PackedArray(path, shape, dtype, info.filename, stamp=stamp_of(file))
    file.seek(info.header_offset)
    names = file.read(_ZIP_HEADER)[_ZIP_LENGTHS:]
    start = info.header_offset + _ZIP_HEADER + sum(int.from_bytes(names[i : i + 2], "little") for i in (0, 2))
    file.seek(start)
    before = zlib.crc32(file.read(length))
    return RawArray(path, shape, dtype, start + length, crc=(info.CRC, before), stamp=stamp_of(file))


def open_safetensors(path: Path, wanted: Names) -> tuple[dict[str, StoredArray], list[str]]:
    """The wanted tensors of a safetensors file, where they lie, and the names of all."""
    from safetensors import safe_open

    with safe_open(readable(path), framework="np") as file:  # refuses what is malformed
        names = list(file.keys())
        with open_file(path) as raw:
            stamp = stamp_of(raw)
            length = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(length))
        at, chosen = 8 + length, wanted(names) if callable(wanted) else wanted
        found = {name: _open_tensor(path, file, name, header[name], at, stamp) for name in names if name in chosen}
        return found, names


def _open_tensor(path: Path, file: Any, name: str, entry: dict[str, Any], start: int, stamp: Stamp) -> StoredArray:
    kind, shape = entry["dtype"], tuple(entry["shape"])
    if kind not in _SAFE_TYPES or not shape:
        bytes_of(shape, 1)
        return MemoryArray.of(file.get_tensor(name))
    dtype = np.dtype(_SAFE_TYPES[kind])
    return RawArray(path, shape, dtype, start + entry["data_offsets"][0], bfloat16=kind == "BF16", stamp=stamp)


def safetensors_metadata(path: Path) -> dict[str, str]:
    """The texts that a safetensors file has beside its tensors."""
    from safetensors import safe_open

    with safe_open(readable(path), framework="np") as file:
        return file.metadata() or {}


# ---------------------------------------------------------------------------------------------------------------
# Writing


@dataclass(frozen=True, eq=False)
class Stacked:
    """An array on disk in pieces, to be written as one without holding it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Callable[[], Iterator[NDArray[Any]]]


Array = NDArray[Any] | Stacked


def write_arrays(output: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to npz or safetensors, or each to a separate npy file, as the suffix says."""
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
