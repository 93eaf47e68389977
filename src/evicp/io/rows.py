"""Rows of logits wherever they are, with their labels: one file of them, and several one after the other in blocks."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.source import RowSource
from evicp.errors import FileError, InputError, InputTypeError, LabelsError, LogitsError
from evicp.input.messages import some_of
from evicp.io.paths import reading, typed
from evicp.io.stored import MemoryArray, StoredArray

#: The memory blocks may take where nothing else is said.
DEFAULT_MEMORY = "256MiB"

#: A block takes an eighth of it: two are in memory, one being read, and full sets take six times their logits.
_SHARE = 8

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def as_bytes(memory: int | str) -> int:
    """A memory budget in bytes.

    >>> as_bytes("256MiB"), as_bytes("1.5 GB"), as_bytes(4096)
    (268435456, 1500000000, 4096)
    """
    match = re.fullmatch(r"\s*(\d{1,99}(?:\.\d+)?)\s*([kmg]i?)?b?\s*", str(memory).lower())
    if isinstance(memory, bool) or match is None:
        raise InputError(f"memory must be a size such as 256MiB or 2GB; got {str(memory)[:99]!r}.")
    size = min(int(float(match[1]) * _UNITS[match[2] or ""]), sys.maxsize)
    if size < 1:
        raise InputError(f"memory must be greater than 0; got {memory!r}.")
    return size


#: What follows the last piece of an array.
_END: Any = object()


@dataclass(frozen=True, eq=False)
class LogitsFile:
    """Logits read from a file, with labels where the file has them. npy files stay on disk (memory-mapped)."""

    logits: NDArray[Any]
    labels: NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class FileRows:
    """The rows of one file, or of arrays in memory.

    Parameters
    ----------
    class_names : what the columns of a wide table say
    names : of all arrays or columns in the file, for messages
    ids : what the rows are called, text or whole numbers, where the file says so
    """

    logits: StoredArray
    labels: StoredArray | None
    class_names: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()
    ids: StoredArray | None = None

    @property
    def path(self) -> Path | None:
        """Where the logits are; None of arrays in memory."""
        return self.logits.path

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the logits."""
        return self.logits.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the logits."""
        return self.logits.dtype

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Logits and labels (or None), at most `step` rows at a time."""
        return ((logits, labels) for logits, labels, _ in self.named_pieces(step, start, stop, identified=False))

    def named_pieces(
        self, step: int, start: int = 0, stop: int | None = None, *, identified: bool
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Logits, labels and ids (or None), at most `step` rows at a time; ids only where they are asked for."""
        parts = (self.logits, self.labels, self.ids if identified else None)
        if self.labels is not None:
            n, given = self.shape[0], self.labels.shape
            if not given:
                raise LabelsError("labels must be one-dimensional; got a single number. Pass one class number per row.")
            if len(given) == 1 and given[0] != n:
                raise LabelsError(f"labels must have one entry per row of logits; got {given[0]} labels for {n} rows.")
        return _aligned(*(repeat(None) if part is None else part.pieces(step, start, stop) for part in parts))

    def whole(self) -> LogitsFile:
        """All logits and labels."""
        return LogitsFile(self.logits.whole(), None if self.labels is None else self.labels.whole())


def as_ids(array: StoredArray | None, logits: StoredArray) -> StoredArray | None:
    """An array that has the name of one of ids, if it is one of these logits: text or a whole number for each row."""
    is_one = array is not None and array.shape == logits.shape[:1] and array.dtype.kind in "iuU"
    return array if is_one else None


def _aligned(*arrays: Iterator[NDArray[Any] | None]) -> Iterator[tuple[Any, Any, Any]]:
    """Pieces of arrays, cut at the same rows: columns of one parquet file may come in different pieces.

    An array that is not there gives None again and again.
    """
    logits, labels, ids = arrays
    pieces: list[Any] = [next(each, _END) for each in (logits, labels, ids)]
    while not any(piece is _END for piece in pieces):
        n = min(len(piece) for piece in pieces if piece is not None)
        yield tuple(None if piece is None else piece[:n] for piece in pieces)  # type: ignore[misc]
        for i, each in enumerate(arrays):
            if pieces[i] is not None:
                pieces[i] = pieces[i][n:] if n < len(pieces[i]) else next(each, _END)


class _Rows(NamedTuple):
    start: int
    logits: NDArray[Any]
    labels: NDArray[Any] | None


class Block(_Rows):
    """Some rows: the number of the first, logits and labels. The arrays are valid until the next block is read.

    What the rows are called, `ids`, is beside the three, where it was asked for and is known.
    """

    ids: NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of logits in one or more files, with labels where all files have them; iterates over blocks of them.

    Parameters
    ----------
    files : in order
    source : what to call them in messages
    memory : bytes that blocks may take
    class_names : names that travel with the logits
    made_by : where the logits say that they come from, as `evicp extract` writes it
    identified : whether blocks have the ids of their rows, where all files know them
    """

    files: tuple[FileRows, ...]
    source: str
    memory: int = as_bytes(DEFAULT_MEMORY)
    class_names: tuple[str, ...] | None = None
    made_by: RowSource | None = None
    identified: bool = False

    def __post_init__(self) -> None:
        for file in self.files:
            if not file.shape:
                raise LogitsError(f"{self._name(file)} must contain rows; it contains a single number.")

    def __len__(self) -> int:
        return sum(file.shape[0] for file in self.files)

    @property
    def has_labels(self) -> bool:
        """Whether every file has labels."""
        return all(file.labels is not None for file in self.files)

    @property
    def has_ids(self) -> bool:
        """Whether every file says what its rows are called."""
        return all(file.ids is not None for file in self.files)

    @property
    def ids(self) -> NDArray[Any] | None:
        """What all rows are called; None where a file does not say so."""
        known = [file.ids.whole() for file in self.files if file.ids is not None]
        return np.concatenate(known) if known and len(known) == len(self.files) else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all logits, in which they are scored: the widest that any file with rows has."""
        return np.result_type(*{file.dtype for file in self.files if file.shape[0]} or {self.files[0].dtype})

    @property
    def step(self) -> int:
        """Rows per block, from the memory budget."""
        values = prod(self.files[0].shape[1:])
        rows = self.memory // (_SHARE * max(1, values) * max(4, self.files[0].dtype.itemsize))
        wanted = [file.labels for file in self.files] + [file.ids for file in self.files if self.identified]
        names = max((array.dtype.itemsize for array in wanted if array is not None), default=0)
        return max(1, min(rows, 2 * self.memory // (_SHARE * max(1, names))))

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def blocks(self, step: int | None = None, dtype: np.dtype[Any] | None = None) -> Iterator[Block]:
        """Blocks of rows, in order: `step` at a time, by default as many as the memory budget allows.

        A block's arrays are valid until the next one is read.
        """
        first, dtype = 0, self.dtype if dtype is None else dtype
        for file in self.files:
            done = 0
            pieces = file.named_pieces(step or self.step, identified=self.identified)
            for logits, labels, ids in typed(self._name(file), pieces):
                block = Block(first + done, in_one_type(logits, dtype), labels)
                block.ids = ids
                yield block
                done += len(logits)
            first += file.shape[0]

    @property
    def logits(self) -> NDArray[Any]:
        """All logits in one array; a single npy file stays on disk."""
        wholes = []
        for file in self.files:
            with reading(self._name(file)):
                wholes.append(file.logits.whole())
        return wholes[0] if len(wholes) == 1 else np.concatenate(wholes, dtype=self.dtype)

    @property
    def labels(self) -> NDArray[Any]:
        """All labels in one array."""
        wholes = []
        for file in self.files:
            if file.labels is None:
                raise no_labels(self)
            with reading(self._name(file)):
                wholes.append(file.labels.whole())
        return np.concatenate(wholes)

    def _name(self, file: FileRows) -> str:
        """What to call a file where it cannot be read."""
        return str(file.path or self.source)

    def with_ids(self) -> Rows:
        """The same rows, in blocks that say what they are called, where all files know that."""
        return dataclasses.replace(self, identified=self.has_ids)

    def with_labels(self, labels: StoredArray | None) -> Rows:
        """The same rows with labels from elsewhere, cut as the files are; or without any."""
        cut = [labels] * len(self.files)
        if labels is not None and len(self.files) > 1:
            if len(labels.shape) != 1:
                raise LabelsError(f"labels must have one dimension; got shape {labels.shape} for {self.source}.")
            if labels.shape[0] != len(self):
                raise FileError(f"{self.source} has {len(self):,} rows but {labels.shape[0]:,} labels were given.")
            ends = np.cumsum([file.shape[0] for file in self.files]).tolist()
            cut = [labels.span(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
        files = (dataclasses.replace(file, labels=own) for file, own in zip(self.files, cut, strict=True))
        return dataclasses.replace(self, files=tuple(files))


def hold(content: LogitsFile, source: str, memory: int | str = DEFAULT_MEMORY) -> Rows:
    """Rows that are in memory anyway, as rows on disk."""
    return Rows((in_memory(content),), source, as_bytes(memory))


def in_memory(content: LogitsFile) -> FileRows:
    """Arrays as the rows of a file."""
    labels = None if content.labels is None else MemoryArray.of(np.asarray(content.labels))
    return FileRows(MemoryArray.of(np.asarray(content.logits)), labels)


def no_labels(rows: Rows) -> FileError:
    """What a user sees when rows that must have labels have none."""
    names = sorted(set(rows.files[0].names)) if rows.files else []
    holds, name_it = (
        (f"; it has {some_of(names)}", "name them with labels_column (--labels-column NAME), or ")
        if (len(names) > 1)
        else ("", "")
    )
    given = f"{name_it}give them in a separate file (--labels labels.npy)."
    return FileError(f"{rows.source} has no labels{holds}. {given[0].upper()}{given[1:]}")


@contextmanager
def located(source: str, first_row: int) -> Iterator[None]:
    """Say where a block lies when one of its rows is refused: messages count rows from the block's first."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        if first_row == 0:
            raise
        raise type(error)(f"in the rows of {source} from {first_row:,} on: {error}") from error


def in_one_type(logits: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Logits in the type that those of all files have together; never in one that has not all of their values."""
    if logits.dtype == dtype or logits.dtype.kind not in "fiu":
        return logits
    if len(logits) and not np.can_cast(logits.dtype, dtype):
        raise FileError(f"logits of {logits.dtype} do not match {dtype}, the type of the files' logits when opened.")
    return logits.astype(dtype)
