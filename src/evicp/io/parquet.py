"""Parquet files: a column is an array that is decoded in pieces, each compared with what the file said when opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError, need
from evicp.input import columns
from evicp.io.paths import open_file, readable
from evicp.io.stored import MemoryArray, StoredArray, bytes_of, opened, stamp_of

_COLUMNS = ("logits", "labels")


@contextmanager
def parquet_file(path: Path, *, streamed: bool = False) -> Iterator[Any]:
    """A parquet file; streamed, pages are read as they are needed, not whole columns of a row group."""
    pq = need("pyarrow.parquet", "pyarrow", "parquet", "a parquet file")
    how = {"buffer_size": 1 << 20, "pre_buffer": False} if streamed else {}
    try:
        with pq.ParquetFile(readable(path), page_checksum_verification=True, **how) as file:
            _require_one_of_each(file)
            yield file
    except ValueError as error:  # pyarrow 25 does not read missing lists of a fixed size
        if "Expected all lists to be of size" not in str(error):
            raise
        raise FileError("its lists of a fixed size are null in some rows. Drop such rows, or fill them.") from error


def _require_one_of_each(file: Any) -> None:
    """Refuse a parquet file with two columns of a name that is read, or two numbers of rows."""
    for name in _COLUMNS:
        if file.schema_arrow.names.count(name) > 1:
            raise FileError(f"it has the column {name!r} twice. Rename one of them.")
    footer = file.metadata
    rows = sum(footer.row_group(number).num_rows for number in range(footer.num_row_groups))
    if rows != footer.num_rows:
        raise FileError(f"it claims {footer.num_rows:,} rows, and {rows:,} in its row groups.")


@dataclass(frozen=True)
class _ParquetColumn(StoredArray):
    """A column of a parquet file: of lists of one length, (n, K), or of single values, (n,)."""

    path: Path
    name: str

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """Rows start to stop, at most `step` at a time, decoded as they are needed."""
        first, last = 0, self.shape[0] if stop is None else stop
        with opened(self.path, self.stamp), parquet_file(self.path, streamed=True) as file:
            for batch in file.iter_batches(step, columns=[self.name], use_threads=False):
                if first >= last:
                    return
                piece = self._decoded(batch.column(self.name), first)
                own = slice(max(0, start - first), max(0, last - first))
                first += len(piece)
                if len(piece[own]):
                    yield piece[own]
        if first < last:
            raise FileError(f"it ends after {first:,} of its {last:,} rows.")

    def whole(self) -> NDArray[Any]:
        """All rows."""
        with opened(self.path, self.stamp), parquet_file(self.path) as file:
            return _array(file.read([self.name])[self.name], self.name)

    def _decoded(self, column: Any, first_row: int) -> NDArray[Any]:
        """Some rows, of the length and the type that the first row of a column of lists has."""
        values = _array(column, self.name, first_row)
        if values.shape[1:] != self.shape[1:]:
            raise columns.uneven_lists(self.name, first_row, values.shape[1], self.shape[1])
        if len(self.shape) > 1 and values.dtype != self.dtype:
            raise FileError(f"its {self.name} were {self.dtype} when it was opened, and are {values.dtype}.")
        return values


def _array(column: Any, name: str, first_row: int = 0) -> NDArray[Any]:
    return (columns.matrix if name == "logits" else columns.values)(column, name, first_row)


def read_columns(path: Path) -> tuple[dict[str, StoredArray], list[str]]:
    """The columns of logits and labels, read at once, and the names of all."""
    with parquet_file(path) as file:
        names = file.schema_arrow.names
        table = file.read([name for name in _COLUMNS if name in names])
    return {name: MemoryArray.of(_array(table[name], name)) for name in table.column_names}, names


def open_columns(path: Path) -> tuple[dict[str, StoredArray], list[str]]:
    """The columns of logits and labels: rows from the footer, classes and type from the first row; names of all."""
    with open_file(path) as raw:
        stamp = stamp_of(raw)
    with parquet_file(path, streamed=True) as file:
        names, n = file.schema_arrow.names, file.metadata.num_rows
        if "logits" not in names or not n:
            return read_columns(path)
        first = columns.matrix(next(file.iter_batches(1, columns=["logits"])).column("logits"), "logits")
        bytes_of((n, first.shape[1]), first.itemsize)
        _refuse_longer(file.metadata, first.shape[1])
    shape = n, first.shape[1]
    found: dict[str, StoredArray] = {"logits": _ParquetColumn(path, shape, first.dtype, "logits", stamp=stamp)}
    if "labels" in names:  # whose type is only known once they are read
        found["labels"] = _ParquetColumn(path, (n,), np.dtype(object), "labels", stamp=stamp)
    return found, names


def _refuse_longer(footer: Any, width: int) -> None:
    """Refuse lists longer than the first as a file's footer counts them: one may take more memory than all others."""
    own = [j for j in range(footer.num_columns) if footer.schema.column(j).path.split(".")[0] == "logits"]
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        most = max((group.column(j).num_values for j in own), default=0)
        if most > width * group.num_rows:
            raise FileError(
                f"logits must be lists of one length; row group {number} has {most:,} numbers in {group.num_rows:,} "
                f"rows, the first row {width:,}. Pad or drop the short rows."
            )
