"""Columns of Arrow tables as arrays. A null is an error that names the column and the row, whatever the type.

NumPy has no null: of whole numbers it makes NaN, which is another whole number once the rows are cast back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError
from evicp.types import I64


def values(column: Any, name: str, first_row: int = 0) -> NDArray[Any]:
    """A column as an array.

    Parameters
    ----------
    column : an Arrow array or chunked array, of any type
    name : the column's, for messages
    first_row : the number of its first row, for messages
    """
    return _to_numpy(_checked(column, name, first_row)[0])


def matrix(column: Any, name: str, first_row: int = 0) -> NDArray[Any]:
    """A column of lists, all of one length K, as an (n, K) array; parameters as for `values`."""
    lengths, entries, width = _entries(column, name, first_row)
    uneven = np.flatnonzero(lengths != width)
    if uneven.size:
        row = int(uneven[0])
        raise uneven_lists(name, first_row + row, int(lengths[row]), width)
    return entries.reshape(len(lengths), width)


def lists(column: Any, name: str, first_row: int = 0) -> tuple[I64, NDArray[Any]]:
    """A column of lists of any length, as (n + 1) offsets from 0 and the entries; parameters as for `values`."""
    lengths, entries, _ = _entries(column, name, first_row)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), entries


def refuse_nulls(column: Any, name: str, first_row: int = 0) -> None:
    """Raise for the first null in a column, or in lists in it, however deep; parameters as for `values`."""
    _checked(column, name, first_row)


def uneven_lists(name: str, row: int, got: int, wanted: int) -> InputError:
    """What is said of lists of different lengths."""
    return InputError(
        f"{name} must be lists of one length; got {got:,} numbers at row {row:,}, {wanted:,} before. "
        "Pad or drop the short rows."
    )


def _entries(column: Any, name: str, first_row: int) -> tuple[I64, NDArray[Any], int]:
    """Of a column of lists the length of each, the entries of all, and the length that all should have."""
    levels = _checked(column, name, first_row)
    if len(levels) == 1 or len(getattr(column.type, "shape", (1,))) != 1:  # also of tensors of more dimensions
        raise InputError(f"{name} must be a column of lists of numbers; got {column.type}.")
    lengths = _lengths(levels[0])
    width = int(lengths[0]) if len(lengths) else max(getattr(levels[0].type, "list_size", 0), 0)
    return lengths, _to_numpy(levels[1]), width


def _checked(column: Any, name: str, first_row: int) -> list[Any]:
    """A column as one plain array without nulls, then the entries of its lists, if it is of lists, and of theirs."""
    levels = [_plain(column)]
    while True:
        if levels[-1].null_count:
            raise _null(levels, name, first_row)
        if not _is_list(levels[-1].type):
            return levels
        levels.append(_plain(levels[-1].flatten()))


def _null(levels: list[Any], name: str, first_row: int) -> InputError:
    """The first null of the last level: in which row it is, and where in its list."""
    place = int(np.flatnonzero(_to_numpy(levels[-1].is_null()))[0])
    inside = ""
    for parent in reversed(levels[:-1]):
        ends = np.cumsum(_lengths(parent))
        row = int(np.searchsorted(ends, place, side="right"))
        inside = inside or f", entry {place - int(ends[row - 1] if row else 0)}"
        place = row
    return InputError(
        f"{name} must not be null; got null at row {first_row + place:,}{inside}. Drop such rows, or fill them."
    )


def _to_numpy(array: Any) -> NDArray[Any]:
    result: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return result


def _lengths(array: Any) -> I64:
    """The length of each list of an array without nulls, (n,)."""
    import pyarrow.compute as pc

    return _to_numpy(pc.list_value_length(array)).astype(np.int64, copy=False)


def _is_list(kind: Any) -> bool:
    """Whether a type is one of lists, of the five kinds that Arrow has had since version 16."""
    from pyarrow import types

    known = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return any(getattr(types, test)(kind) for test in known if hasattr(types, test))


def _plain(column: Any) -> Any:
    """One array of plain values: chunks are put together, and what is coded (dictionaries, runs) is decoded.

    Codes hide nulls: a valid code may stand for one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # of more bytes than one array can count
        raise InputError("a column must fit into one Arrow array. Read the file in blocks: evicp.blocks.open_rows.")
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            return array
