"""Arrays that are read in pieces of rows, into buffers that are used again: memory does not grow with the file.

Each kind of array is a small class with the methods of `StoredArray`; one more is in `parquet`. Pieces are never
memory-mapped: pages of a map count as resident memory until the system takes them back.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError
from evicp.input import convert
from evicp.io.paths import format_of, open_file

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
        raise FileError(f"its header states rows without content: shape {shape}, {itemsize} bytes a value.")
    return size


@dataclass(frozen=True)
class StoredArray(ABC):
    """An array that is read in pieces of rows.

    Parameters
    ----------
    path : the file it is in; None of an array in memory
    shape, dtype : as of the whole array
    stamp : of the file when its header was read; None where that was on another machine
    """

    path: Path | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stamp: Stamp | None = field(default=None, compare=False, kw_only=True)

    @abstractmethod
    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """Rows start to stop, at most `step` at a time; a piece is valid until the next one is read."""

    def whole(self) -> NDArray[Any]:
        """All rows."""
        pieces = list(self.pieces(max(1, self.shape[0])))  # more than one only where each is an array of its own
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(self.shape, self.dtype)

    def span(self, start: int, stop: int) -> StoredArray:
        """Rows start to stop, as a separate array."""
        return _Span(self.path, (stop - start, *self.shape[1:]), self.dtype, self, start)

    def portable(self) -> StoredArray:
        """The array for another process, whose working directory, and maybe clock, is another one."""
        return self if self.path is None else replace(self, path=self.path.absolute(), stamp=None)


@dataclass(frozen=True, eq=False)
class MemoryArray(StoredArray):
    """An array that is in memory anyway; pieces are views."""

    values: NDArray[Any]

    @classmethod
    def of(cls, values: NDArray[Any]) -> MemoryArray:
        """These values."""
        return cls(None, values.shape, values.dtype, values)

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        for first, last in _spans(step, start, len(self.values) if stop is None else stop):
            yield self.values[first:last]

    def whole(self) -> NDArray[Any]:
        return self.values

    def span(self, start: int, stop: int) -> StoredArray:
        return MemoryArray.of(self.values[start:stop])


@dataclass(frozen=True)
class _Span(StoredArray):
    """Rows of an array in a file, from a first one on."""

    array: StoredArray
    first: int

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        return self.array.pieces(step, self.first + start, self.first + (self.shape[0] if stop is None else stop))

    def portable(self) -> StoredArray:
        array = self.array.portable()
        return replace(self, path=array.path, array=array)


@dataclass(frozen=True)
class RawArray(StoredArray):
    """An array whose bytes lie in a file one after the other.

    Parameters
    ----------
    offset : where its first byte is
    by_column : whether columns lie together (Fortran's order), not rows
    bfloat16 : whether it is float32 of which only the upper 16 bits are stored
    crc : the checksum of the bytes and what it is before the first of them, where the file has one
    """

    path: Path
    offset: int
    by_column: bool = False
    bfloat16: bool = False
    crc: tuple[int, int] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        end = self.offset + bytes_of(self.shape, self._stored.itemsize)
        if self.offset < 0 or end > (self.stamp or (self.path.stat().st_size,))[0]:
            raise FileError("it is shorter than its header states.")

    @property
    def _stored(self) -> np.dtype[Any]:
        return np.dtype("<u2") if self.bfloat16 else self.dtype

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """The next piece is read while the last one is being used."""
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
        """Rows start to stop, in a separate array."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise FileError(f"it has {self.shape[0]:,} rows, not {start:,} to {stop:,}.")
        with opened(self.path, self.stamp) as file:
            return self._shown(self._read(file, self._buffer(stop - start), start, stop), stop - start).copy()

    def whole(self) -> NDArray[Any]:
        """An npy file stays where it is, mapped into memory."""
        if format_of(self.path) == ".npy" and all(self.shape):
            order: Any = "F" if self.by_column else "C"
            with opened(self.path, self.stamp):
                return np.memmap(self.path, self._stored, "r", self.offset, self.shape, order)
        (piece,) = self.pieces(max(1, self.shape[0]))
        return piece

    @property
    def _row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self._stored.itemsize

    def _buffer(self, rows: int) -> NDArray[Any]:
        shape = (*self.shape[1:], rows) if self.by_column else (rows, *self.shape[1:])
        return np.empty(shape, self._stored)

    def _read(self, file: io.RawIOBase, buffer: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """Fill a buffer with rows; of columns that lie together, the part of each."""
        rows, size = stop - start, self._stored.itemsize
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
class PackedArray(StoredArray):
    """A compressed array of an npz file: it can only be read from its beginning."""

    path: Path
    member: str

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """Rows before the first are unpacked and passed over."""
        last = self.shape[0] if stop is None else stop
        buffer = np.empty((min(step, last), *self.shape[1:]), self.dtype)
        with (
            opened(self.path, self.stamp) as whole,
            zipfile.ZipFile(whole) as archive,
            archive.open(self.member) as file,
        ):
            npy_header(file)
            for first, end in chain(_spans(step, 0, start) if start else (), _spans(step, start, last)):
                piece = buffer[: end - first]
                _fill(file, None, piece)
                if first >= start:
                    yield convert.frozen(piece)
            if last == self.shape[0]:
                file.read(1)  # the archive's checksum is checked when its end is


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


def npy_header(file: Any) -> tuple[np.dtype[Any], tuple[int, ...], bool] | None:
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
