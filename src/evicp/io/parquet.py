"""Rows of logits in parquet files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evicp.errors import FileError, need
from evicp.io.paths import open_file, readable
from evicp.io.roles import Wanted, roles_of
from evicp.io.rows import FileRows
from evicp.io.stored import stamp_of
from evicp.io.table_columns import held, opened_columns

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
        raise FileError(f"it states {footer.num_rows:,} rows, but {rows:,} in its row groups.")


def _batches(path: Path, names: tuple[str, ...], step: int) -> Generator[Any]:
    """Columns, decoded as they are needed."""
    with parquet_file(path, streamed=True) as file:
        yield from file.iter_batches(step, columns=list(names), use_threads=False)


def read_columns(path: Path, wanted: Wanted) -> FileRows:
    """The rows of a parquet file, read at once."""
    with parquet_file(path) as file:
        roles = roles_of(file.schema_arrow.names, wanted, table=True)
        return held(file.read([*roles.all, *([] if roles.ids is None else [roles.ids])]), roles)


def open_columns(path: Path, wanted: Wanted) -> FileRows:
    """The rows of a parquet file, to be read in pieces; how many there are, its footer says."""
    with open_file(path) as raw:
        stamp = stamp_of(raw)
    with parquet_file(path, streamed=True) as file:
        schema, n, footer = file.schema_arrow, file.metadata.num_rows, file.metadata
    roles = roles_of(schema.names, wanted, table=True)
    if not n:
        return read_columns(path, wanted)
    rows = opened_columns(path, roles, n, stamp, _batches, schema)
    if not roles.wide:
        _refuse_longer(footer, roles.logits[0], rows.shape[1])
    return rows


def _refuse_longer(footer: Any, name: str, width: int) -> None:
    """Refuse lists longer than the first as a file's footer counts them: one may take more memory than all others."""
    own = [j for j in range(footer.num_columns) if footer.schema.column(j).path.partition(".")[0] == name]
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        most = max((group.column(j).num_values for j in own), default=0)
        if most > width * group.num_rows:
            raise FileError(
                f"{name} must be lists of one length; row group {number} has {most:,} numbers in {group.num_rows:,} "
                f"rows, the first row {width:,}. Pad or drop the short rows."
            )
