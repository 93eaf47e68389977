"""Arrays on disk, read by rows into buffers that are used again: memory does not grow with the file.

Pieces are never memory-mapped: pages of a map count as resident memory until the system takes them back.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError
from evicp.input import convert
from evicp.io.paths import format_of, open_file, readable

__all__ = [
    "COMPANIONS",
    "Checksum",
    "HeldArray",
    "PackedArray",
    "RawArray",
    "Stamp",
    "Stored",
    "bytes_of",
    "companion",
    "companions",
    "open_npy",
    "open_npz",
    "open_safetensors",
    "opened",
    "stamp_of",
]

#: The arrays that may lie beside logits in an npy file, each in a file of its own.
COMPANIONS = ("labels", "inputs", "class_names")

#: The types of safetensors that NumPy knows, and bfloat16, which is widened.
_SAFE_TYPES: Mapping[str, str] = MappingProxyType(
    {
        f"{kind}{8 * size}": f"<{kind.lower()}{size}"
        for kind in "FIU"
        for size in (1, 2, 4, 8)
        if (kind, size) != ("F", 1)
    }
    | {"BF16": "<u2"}
)

#: A local header of a zip archive without its names, and where it says how long they are.
_ZIP_HEADER, _ZIP_LENGTHS = 30, 26

#: What deflate can make of one byte.
_MOST_INFLATED = 1032

#: By what a file is known to be the same one as before, unchanged: its size, when it was written last, its number.
Stamp = tuple[int, int, int]


def stamp_of(file: Any) -> Stamp:
    """The stamp of an open file."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns, status.st_ino


@contextmanager
def opened(path: Path, stamp: Stamp | None) -> Iterator[Any]:
    """A file to be read as it was when its header was: it must have this stamp (None: any), and keep it."""
    with open_file(path, 0) as file:
        expected = stamp_of(file) if stamp is None else stamp
        _require(file, expected)
        yield file
        _require(file, expected)


def _require(file: Any, stamp: Stamp) -> None:
    if stamp_of(file) != stamp:
        raise FileError("it was changed while it was read. Read it again once it is complete.")


def bytes_of(shape: tuple[int, ...], itemsize: int) -> int:
    """How many bytes an array has; rows without any are refused, as nothing in a file proves how many there are."""
    size = itemsize
    for length in shape:
        size *= length
    if min(shape, default=0) < 0 or (shape and shape[0] and not size):
        raise FileError(f"its header claims rows that hold nothing: shape {shape}, {itemsize} bytes a value.")
    return size


@dataclass(frozen=True, eq=False)
class HeldArray:
    """An array that is in memory anyway."""

    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the whole array."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """As pieces have it."""
        return self.values.dtype

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """Views of the rows."""
        for first, last in _spans(step, start, len(self.values) if stop is None else stop):
            yield self.values[first:last]

    def whole(self) -> NDArray[Any]:
        """The array itself."""
        return self.values


@dataclass(frozen=True)
class RawArray:
    """An array whose bytes lie in a file one after the other.

    Parameters
    ----------
    path, offset : where its first byte is
    stored, shape : type and shape; bfloat16 is stored as 16 bits
    by_column : whether columns lie together (Fortran's order), not rows
    bfloat16 : whether the 16 bits are the upper half of a float32
    crc : the checksum of the bytes and what it is before the first of them, where the file has one
    stamp : of the file when its header was read; None where that was on another machine
    """

    path: Path
    offset: int
    stored: np.dtype[Any]
    shape: tuple[int, ...]
    by_column: bool = False
    bfloat16: bool = False
    crc: tuple[int, int] | None = field(default=None, compare=False)
    stamp: Stamp | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        end = self.offset + bytes_of(self.shape, self.stored.itemsize)
        if self.offset < 0 or end > (self.stamp or (self.path.stat().st_size,))[0]:
            raise FileError("it is shorter than its header says.")

    @property
    def dtype(self) -> np.dtype[Any]:
        """As pieces have it."""
        return np.dtype(np.float32) if self.bfloat16 else self.stored

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """Rows start to stop, `step` at a time; the next piece is read while the last one is being used."""
        last = self.shape[0] if stop is None else stop
        checked = self.crc is not None and not self.by_column and (start, last) == (0, self.shape[0])
        rows = max(0, last - start)
        buffers = self._buffer(min(step, rows)), self._buffer(min(step, max(0, rows - step)))
        checksum = Checksum(self)
        spans = _spans(step, start, last)
        span = next(spans)
        with opened(self.path, self.stamp) as file, ThreadPoolExecutor(1, "evicp-read") as reader:
            waiting = reader.submit(self._read, file, buffers[0], *span)
            for number, following in enumerate(chain(spans, [None])):
                piece = waiting.result()
                if following is not None:
                    waiting = reader.submit(self._read, file, buffers[(number + 1) % 2], *following)
                if checked:
                    checksum.add(piece)
                yield self._shown(piece, span[1] - span[0])
                span = following or span
        if checked:
            checksum.compare()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop, in an array of their own."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise FileError(f"it has {self.shape[0]:,} rows; asked for {start:,} to {stop:,}.")
        with opened(self.path, self.stamp) as file:
            return self._shown(self._read(file, self._buffer(stop - start), start, stop), stop - start).copy()

    def part(self, start: int, stop: int) -> RawArray:
        """Rows start to stop as an array of their own; columns must not lie together."""
        offset = self.offset + start * self._row_bytes
        return replace(self, offset=offset, shape=(stop - start, *self.shape[1:]), crc=None)

    def whole(self) -> NDArray[Any]:
        """All of it: an npy file stays where it is, mapped into memory."""
        if format_of(self.path) == ".npy" and all(self.shape):
            order: Any = "F" if self.by_column else "C"
            with opened(self.path, self.stamp):
                return np.memmap(self.path, self.stored, "r", self.offset, self.shape, order)
        (piece,) = self.pieces(max(1, self.shape[0]))
        return piece

    @property
    def _row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.stored.itemsize

    def _buffer(self, rows: int) -> NDArray[Any]:
        shape = (*self.shape[1:], rows) if self.by_column else (rows, *self.shape[1:])
        return np.empty(shape, self.stored)

    def _read(self, file: io.RawIOBase, buffer: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """Fill a buffer with rows; of columns that lie together, the part of each."""
        rows, size = stop - start, self.stored.itemsize
        if not self.by_column:
            _fill(file, self.offset + start * self._row_bytes, buffer[:rows])
            return buffer[:rows]
        for number, column in enumerate(buffer):
            _fill(file, self.offset + (number * self.shape[0] + start) * size, column[:rows])
        return buffer

    def _shown(self, piece: NDArray[Any], rows: int) -> NDArray[Any]:
        """A piece as users see it: by rows, read-only, in a type that NumPy knows."""
        shown = piece[:, :rows].T if self.by_column else piece
        return convert.frozen((shown.astype(np.uint32) << 16).view(np.float32) if self.bfloat16 else shown)


class Checksum:
    """The checksum of an array as it is read from its first row to its last, where the file has one to compare with."""

    def __init__(self, array: RawArray) -> None:
        self._expected: int | None = None if array.crc is None else array.crc[0]
        self._running = 0 if array.crc is None else array.crc[1]

    def add(self, piece: NDArray[Any]) -> None:
        """Count in the next rows."""
        if self._expected is not None:
            self._running = zlib.crc32(_bytes(piece), self._running)

    def compare(self) -> None:
        """Raise, after the last row, where these are not the bytes that were written."""
        if self._expected not in (None, self._running):
            raise FileError("it is damaged: its checksum does not match its content.")


@dataclass(frozen=True)
class PackedArray:
    """A compressed array of an npz file: it can only be read from its beginning."""

    path: Path
    member: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stamp: Stamp | None = field(default=None, compare=False)

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """Rows start to stop, `step` at a time; the rows before them are unpacked and passed over."""
        last = self.shape[0] if stop is None else stop
        buffer = np.empty((min(step, last), *self.shape[1:]), self.dtype)
        with (
            opened(self.path, self.stamp) as whole,
            zipfile.ZipFile(whole) as archive,
            archive.open(self.member) as file,
        ):
            _npy_header(file)
            for first, end in chain(_spans(step, 0, start) if start else (), _spans(step, start, last)):
                piece = buffer[: end - first]
                _fill(file, None, piece)
                if first >= start:
                    yield convert.frozen(piece)
            if last == self.shape[0]:
                file.read(1)  # the archive's checksum is looked at when its end is

    def whole(self) -> NDArray[Any]:
        """All of it, unpacked."""
        (piece,) = self.pieces(max(1, self.shape[0]))
        return piece


#: An array that is read in pieces of rows; a piece is valid until the next one is asked for.
Stored = HeldArray | RawArray | PackedArray


def _spans(step: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(first, last) of pieces of rows; one empty piece where there are no rows."""
    return ((first, min(first + step, stop)) for first in range(start, max(stop, start + 1), step))


def _bytes(array: NDArray[Any]) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat) if array.size else memoryview(b"")


def _fill(file: Any, position: int | None, array: NDArray[Any]) -> None:
    """Read a contiguous array's bytes from a position of a file, or from where it stands."""
    view, done = _bytes(array), 0
    if position is not None:
        file.seek(position)
    while done < len(view):
        got = file.readinto(view[done:])
        if not got:
            raise FileError("it ends before its last row.")
        done += got


def _npy_header(file: Any) -> tuple[np.dtype[Any], tuple[int, ...], bool] | None:
    """Type, shape and order of an npy file, which then stands at its first value; None if it is not a plain one."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(file)
    if version not in readers:
        return None
    shape, by_column, dtype = readers[version](file)
    plain = len(shape) > 0 and not dtype.hasobject and dtype.names is None and dtype.subdtype is None
    return (dtype, shape, by_column and len(shape) > 1) if plain else None


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
    return {name: companion(path, name) for name in COMPANIONS} if format_of(path) == ".npy" else {}


def open_npy(path: Path) -> Stored:
    """The array of an npy file."""
    with open_file(path) as file:
        if file.read(2) == b"PK":
            raise FileError("it is an npz file, not npy. Rename it.")
        file.seek(0)
        header = _npy_header(file)
        if header is not None and not (header[2] and len(header[1]) != 2):
            dtype, shape, by_column = header
            return RawArray(path, file.tell(), dtype, shape, by_column, stamp=stamp_of(file))
        file.seek(0)
        return _held(file)


def _held(file: Any) -> HeldArray:
    """An array in npy format that is read at once, as it is small, or no plain matrix."""
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    file.read(1)  # an archive's checksum is looked at when its end is
    bytes_of(array.shape, array.dtype.itemsize)
    return HeldArray(array)


def open_npz(path: Path, wanted: Collection[str]) -> tuple[dict[str, Stored], list[str]]:
    """The wanted arrays of an npz file, where they lie, and the names of all."""
    with open_file(path) as file:
        if file.read(6) == b"\x93NUMPY":
            raise FileError("it is an npy file, not npz. Rename it.")
        with zipfile.ZipFile(file) as archive:
            names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
            infos = dict(zip(names, archive.infolist(), strict=True))
            for name in wanted:
                if names.count(name) > 1:
                    raise FileError(f"it has more than one array {name!r}. Save it again.")
            found = {name: _open_member(path, file, archive, infos[name]) for name in wanted if name in infos}
            return found, names


def _open_member(path: Path, file: Any, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Stored:
    """One array of an npz file: its bytes where they are plain, a stream where they are packed."""
    most = {zipfile.ZIP_STORED: info.compress_size, zipfile.ZIP_DEFLATED: _MOST_INFLATED * info.compress_size}
    if info.file_size > most.get(info.compress_type, info.file_size):
        raise FileError(f"its array {info.filename} cannot have the {info.file_size:,} bytes that the archive claims.")
    with archive.open(info) as entry:
        header = _npy_header(entry)
        length = entry.tell()
    if header is None or header[2]:
        with archive.open(info) as entry:
            return _held(entry)
    dtype, shape, _ = header
    if length + bytes_of(shape, dtype.itemsize) != info.file_size:
        shorter = length + bytes_of(shape, dtype.itemsize) > info.file_size
        raise FileError(f"its array {info.filename} is {'shorter' if shorter else 'longer'} than its header says.")
    if info.compress_type != zipfile.ZIP_STORED:
        return PackedArray(path, info.filename, dtype, shape, stamp_of(file))
    file.seek(info.header_offset)
    names = file.read(_ZIP_HEADER)[_ZIP_LENGTHS:]
    start = info.header_offset + _ZIP_HEADER + sum(int.from_bytes(names[i : i + 2], "little") for i in (0, 2))
    file.seek(start)
    before = zlib.crc32(file.read(length))
    return RawArray(path, start + length, dtype, shape, crc=(info.CRC, before), stamp=stamp_of(file))


def open_safetensors(path: Path, wanted: Collection[str]) -> tuple[dict[str, Stored], list[str]]:
    """The wanted tensors of a safetensors file, where they lie, and the names of all."""
    from safetensors import safe_open

    with safe_open(readable(path), framework="np") as file:  # refuses what is malformed
        names = list(file.keys())
        with open_file(path) as raw:
            stamp = stamp_of(raw)
            length = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(length))
        at = 8 + length
        found = {name: _open_tensor(path, file, name, header[name], at, stamp) for name in names if name in wanted}
        return found, names


def _open_tensor(path: Path, file: Any, name: str, entry: dict[str, Any], start: int, stamp: Stamp) -> Stored:
    kind, shape = entry["dtype"], tuple(entry["shape"])
    if kind not in _SAFE_TYPES or not shape:
        bytes_of(shape, 1)
        return HeldArray(file.get_tensor(name))
    dtype = np.dtype(_SAFE_TYPES[kind])
    return RawArray(path, start + entry["data_offsets"][0], dtype, shape, bfloat16=kind == "BF16", stamp=stamp)
