"""Columns of tables on disk as arrays that are decoded in pieces; each is compared with what the file said at first."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError, InputError
from evicp.input import columns
from evicp.io.roles import Roles
from evicp.io.rows import FileRows
from evicp.io.stored import MemoryArray, Stamp, StoredArray, bytes_of, opened

#: Reads columns of a file: at most so many rows at a time.
Batches = Callable[[Path, tuple[str, ...], int], Generator[Any]]


@dataclass(frozen=True)
class TableColumn(StoredArray):
    """A column of lists of one length, (n, K), several columns of numbers, (n, K), or one of single values, (n,)."""

    path: Path
    names: tuple[str, ...]
    batches: Batches

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """Rows start to stop, at most `step` at a time, decoded as they are needed."""
        first, last = 0, self.shape[0] if stop is None else stop
        with opened(self.path, self.stamp):
            for batch in self.batches(self.path, self.names, step):
                if first >= last:
                    return
                own = slice(max(0, start - first), max(0, last - first))
                piece = self._decoded(batch, first) if own.start < len(batch) else None
                first += len(batch)
                if piece is not None and len(piece[own]):
                    yield piece[own]
        if first < last:
            raise FileError(f"it ends after {first:,} of its {last:,} rows.")

    def _decoded(self, batch: Any, first_row: int) -> NDArray[Any]:
        """Some rows, of the length and the type that the first row of logits has."""
        values = _array(batch, self.names, len(self.shape) > 1, first_row)
        if values.shape[1:] != self.shape[1:]:
            raise columns.uneven_lists(self.names[0], first_row, values.shape[1], self.shape[1])
        if len(self.shape) > 1 and values.dtype != self.dtype:
            raise FileError(f"its {self.names[0]} were {self.dtype} when it was opened, and now are {values.dtype}.")
        return values


def _array(table: Any, names: tuple[str, ...], is_matrix: bool, first_row: int = 0) -> NDArray[Any]:
    """Columns of a table or of a batch of its rows."""
    if len(names) > 1:
        parts = [columns.values(table.column(name), name, first_row) for name in names]
        other = next((i for i, part in enumerate(parts) if part.dtype.kind not in "fiu"), None)
        if other is not None:
            raise InputError(f"{names[other]} must be a column of numbers; got {table.column(names[other]).type}.")
        return np.stack(parts, axis=1)
    return (columns.matrix if is_matrix else columns.values)(table.column(names[0]), names[0], first_row)


@dataclass(frozen=True)
class IdColumn(TableColumn):
    """A column of ids, (n,) text or whole numbers. A null is the empty text: ids decide nothing, and refuse nothing."""

    def _decoded(self, batch: Any, first_row: int) -> NDArray[Any]:  # noqa: ARG002
        return _ids(batch.column(self.names[0]), self.dtype)


def _ids(column: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A column of ids as an array; numbers with nulls are text."""
    import pyarrow as pa

    text = column.cast(pa.string()).fill_null("")
    return np.array(text.to_pylist(), str) if dtype.kind == "U" else column.to_numpy(zero_copy_only=False).astype(dtype)


def _type_of_ids(schema: Any, name: str, nulls: int | None) -> np.dtype[Any] | None:
    """What ids of a column are as an array: text, whole numbers, or nothing that could be ids."""
    from pyarrow import types

    kind = schema.field(name).type
    if types.is_string(kind) or types.is_large_string(kind) or (types.is_integer(kind) and nulls != 0):
        return np.dtype(str)
    return np.dtype(np.int64) if types.is_integer(kind) else None


def held(table: Any, roles: Roles) -> FileRows:
    """The rows of a table that is in memory."""
    logits = MemoryArray.of(_array(table, roles.logits, True))
    labels = None if roles.labels is None else MemoryArray.of(_array(table, (roles.labels,), False))
    ids = None
    if roles.ids is not None and roles.ids in table.column_names:
        column = table.column(roles.ids)
        dtype = _type_of_ids(table.schema, roles.ids, column.null_count)
        ids = None if dtype is None else MemoryArray.of(_ids(column, dtype))
    return FileRows(logits, labels, roles.class_names, roles.names, ids)


def opened_columns(path: Path, roles: Roles, n: int, stamp: Stamp, batches: Batches, schema: Any) -> FileRows:
    """The rows of a table on disk: classes and type from its first row."""
    with closing(batches(path, roles.logits, 1)) as some:
        first = _array(next(some), roles.logits, True)
    bytes_of((n, first.shape[1]), first.itemsize)
    logits = TableColumn(path, (n, first.shape[1]), first.dtype, roles.logits, batches, stamp=stamp)
    labels = None
    if roles.labels is not None:  # whose type is only known once they are read
        labels = TableColumn(path, (n,), np.dtype(object), (roles.labels,), batches, stamp=stamp)
    dtype = None if roles.ids is None else _type_of_ids(schema, roles.ids, None)
    ids = None if dtype is None else IdColumn(path, (n,), dtype, (roles.ids or "",), batches, stamp=stamp)
    return FileRows(logits, labels, roles.class_names, roles.names, ids)
