"""What data frames say beside their numbers: what their columns are called, and which rows belong together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError, InputTypeError, LabelsError, LogitsError, SuspiciousInputWarning
from evicp.input import convert
from evicp.input.messages import some_of
from evicp.input.warn import warn
from evicp.types import F64, I64

#: Text that is a whole number, also as pandas writes one that was in a column of floats.
_WHOLE = re.compile(r"-?[0-9]{1,18}(\.0*)?")

#: A name that holds a number: what comes before, its last number, what comes after.
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)", re.DOTALL)


# ---------------------------------------------------------------------------------------------------------------
# Columns


def columns_of(frame: Any) -> tuple[str, ...] | None:
    """The names of a frame's columns, or of a row of one, as text; None where they say nothing.

    That is of an array; where all have one name; and where they are numbered from 0 in their order, as pandas and
    polars number them ("0", "column_0") and as a loop does ("logit_0"): then they are the class numbers.
    """
    labels = column_labels(frame)
    if labels is None:
        return None
    columns = tuple(map(as_text, labels))
    if len(set(columns)) <= 1 or numbers_of(columns) == tuple(range(len(columns))):
        return None
    return columns


def column_labels(frame: Any) -> list[Any] | None:
    """The labels of columns as the frame has them: of pandas, polars, Arrow and xarray, or of its rows one by one."""
    if isinstance(frame, list | tuple):
        return _labels_of_all(frame)
    if isinstance(frame, np.ndarray):
        return None
    # Arrow's tables have the columns themselves under the name of `columns`.
    labels = getattr(frame, "column_names", getattr(frame, "columns", None))
    if labels is None and getattr(frame, "ndim", 0) == 1 and hasattr(frame, "iloc"):
        labels = frame.index
    if labels is None:
        labels = _coordinates(frame, -1)
    if labels is None:
        return None
    if getattr(labels, "nlevels", 1) > 1:  # of several levels the one that differs, if it is one
        levels = [labels.get_level_values(level) for level in range(labels.nlevels)]
        differing = [level for level in levels if len(set(level)) > 1]
        labels = differing[0] if len(differing) == 1 else labels
    return labels.tolist() if hasattr(labels, "tolist") else list(labels)


def _labels_of_all(rows: Sequence[Any]) -> list[Any] | None:
    """The labels of rows of a frame in a list, which must be the same in all."""
    if not rows or not hasattr(rows[0], "iloc"):
        return None
    first = column_labels(rows[0])
    for number, row in enumerate(rows):
        if column_labels(row) != first:
            raise LogitsError(f"rows must have the same columns in the same order; those of row {number} differ.")
    return first


def _coordinates(array: Any, axis: int) -> Any:
    """The index along an axis of an xarray; None of what has none."""
    dims, indexes = getattr(array, "dims", None), getattr(array, "indexes", None)
    if not isinstance(dims, tuple) or not dims or indexes is None:
        return None
    return indexes.get(dims[axis])


def as_text(label: Any) -> str:
    """What a column or a class is called; a whole number as its digits, whatever its type."""
    if isinstance(label, str):
        return str(label)
    whole = isinstance(label, int | np.integer) and not isinstance(label, bool)
    if whole or (isinstance(label, float | np.floating) and float(label).is_integer()):
        return str(int(label))
    return str(label)


def as_number(text: str) -> int | None:
    """The whole number that a text is; None of any other.

    >>> as_number("7"), as_number("7.0"), as_number("class 7")
    (7, 7, None)
    """
    return int(text.partition(".")[0]) if _WHOLE.fullmatch(text) else None


@lru_cache(maxsize=64)
def numbers_of(names: tuple[str, ...]) -> tuple[int, ...] | None:
    """The numbers of names that differ in one number alone; None of others.

    >>> numbers_of(("logit_0", "logit_10")), numbers_of(("cat", "dog"))
    ((0, 10), None)
    """
    bare = tuple(number for number in map(as_number, names) if number is not None)
    if len(bare) == len(names):
        return bare
    found = [_NUMBERED.fullmatch(name) for name in names]
    around = {match.group(1, 3) if match else None for match in found}
    if len(around) != 1 or None in around:
        return None
    return tuple(int(match[2]) for match in found if match)


def is_matrix(values: Any) -> bool:
    """Whether values have rows and columns, as an array, a frame or lists of lists."""
    shape = getattr(values, "shape", None)
    if shape is not None:
        return len(shape) == 2
    try:
        return np.ndim(values) == 2
    except ValueError:  # lists of several lengths, which are refused as a matrix
        return True


def as_features(
    features: Any,
    what: str = "features",
    *,
    n: int | None = None,
    n_features: int | None = None,
    columns: tuple[str, ...] | None = None,
) -> F64:
    """Features of rows as (n, d) float64, all finite; of one feature alone, (n,) will do.

    Where `columns` are known, a frame must have these, in this order; numbered ones must be in their order.
    """
    own = columns_of(features) if getattr(features, "ndim", 2) == 2 else None
    if columns is not None and own is not None and own != columns:
        raise InputError(
            f"{what} must have the columns {some_of(columns)}, in this order; got {some_of(own)}. Reorder them."
        )
    if columns is None and own is not None and sorted(numbers_of(own) or ()) == list(range(len(own))):
        raise InputError(
            f"{what} must have numbered columns in their order; got {some_of(own)}. Reorder them, or pass "
            f"{what}.to_numpy() if the order is right."
        )
    array = convert.as_array(features, what)
    if array.dtype.kind not in "bfiu" and array.size:
        raise InputTypeError(f"{what} must be real numbers; got dtype {array.dtype}.")
    shape, array = array.shape, array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or not array.shape[1] or n not in (None, len(array)) or n_features not in (None, array.shape[1]):
        rows, width = "rows" if n is None else n, "features" if n_features is None else n_features
        raise InputError(f"{what} must have shape ({rows}, {width}); got {shape}.")
    array = array.astype(np.float64, order="C")  # sums of a row have other bits where columns lie together
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, column = bad[0]
        raise InputError(f"{what} must be finite; got {array[row, column]} at row {row}, column {column}.")
    return array


# ---------------------------------------------------------------------------------------------------------------
# Rows


def index_of(values: Any) -> Any:
    """The index of a frame's or a series' rows, or an xarray's; None of what has none."""
    if isinstance(values, np.ndarray | list | tuple):
        return None
    index = getattr(values, "index", None)
    return index if hasattr(index, "equals") else _coordinates(values, 0)


def ids_of(logits: Any) -> NDArray[Any] | None:
    """What the rows of a frame are called by its index, (n,) text or whole numbers; None where that is 0, 1, 2, ..."""
    index = _row_index("logits", logits)
    if index is None:
        return None
    entries = np.asarray(index)
    if entries.dtype.kind in "iu":
        return None if np.array_equal(entries, np.arange(len(entries))) else entries.astype(np.int64)
    return np.array([", ".join(map(as_text, e)) if isinstance(e, tuple) else as_text(e) for e in entries.tolist()])


def same_rows(**given: Any) -> None:
    """Refuse what belongs to the same rows (logits, labels, groups, weights, ...) where indexes say otherwise.

    Rows are paired by their place. An index that is 0, 1, 2, ... says nothing: it is what a frame gets that is made
    from a model's output. For any two that have an index and as many rows:

    - equal indexes, or one without an index: fine;
    - neither is 0, 1, 2, ..., and they differ: an error;
    - one is 0, 1, 2, ..., and the other has the same entries in another order: an error;
    - one is 0, 1, 2, ..., and the other is the same moved by fewer than all rows (1, 2, 3, ...): a warning;
    - one is 0, 1, 2, ..., and the other has other entries: fine, as of the labels of a random part of a data set.
      Labels are then compared with the largest logits besides: see `same_labels`.
    """
    indexed = [(what, index) for what, values in given.items() if (index := _row_index(what, values)) is not None]
    for (one, index), (other, theirs) in combinations(indexed, 2):
        if len(index) == len(theirs) and not index.equals(theirs):
            _compare(one, index, other, theirs)


def _row_index(what: str, values: Any) -> Any:
    """The index of rows; one row of logits alone has the classes for an index."""
    return None if what == "logits" and getattr(values, "ndim", 2) != 2 else index_of(values)


def _compare(one: str, index: Any, other: str, theirs: Any) -> None:
    entries = _entries_of_other(index, theirs)
    if entries is None or np.array_equal(np.sort(entries), np.arange(len(entries))):
        row = next((row for row in range(len(index)) if index[row] != theirs[row]), 0)
        aligned = f"{other}.loc[{one}.index] to pair them by it, or " if index.isin(theirs).all() else ""
        raise (LabelsError if other == "labels" else InputError)(
            f"{one} and {other} must have the same rows in the same order; by index, row {row} is "
            f"{_shown(index[row])} in {one} and {_shown(theirs[row])} in {other}. "
            f"Pass {aligned}{other}.to_numpy() to pair them by position."
        )
    moved = entries - np.arange(len(entries))
    if np.all(moved == moved[0]) and abs(int(moved[0])) < len(entries):
        warn(
            f"by index, the rows of {one} and {other} are {abs(int(moved[0])):,} apart; they are paired by position. "
            f"Pass {other}.to_numpy() if that is right, or the same rows of both.",
            SuspiciousInputWarning,
        )


def _entries_of_other(index: Any, theirs: Any) -> I64 | None:
    """Of two indexes of which one is 0, 1, 2, ... the other, in numbers that are none of these where it has none."""
    rows = np.arange(len(index))
    one, other = np.asarray(index), np.asarray(theirs)
    one_is_plain, other_is_plain = (own.dtype.kind in "iu" and np.array_equal(own, rows) for own in (one, other))
    if not (one_is_plain or other_is_plain):
        return None
    entries = one if other_is_plain else other
    return entries.astype(np.int64) if entries.dtype.kind in "iu" else -1 - rows * (len(rows) + 1)


def _shown(label: Any) -> str:
    return repr(label) if isinstance(label, str) else as_text(label)


def same_labels(logits: Any, labels: Any, array: NDArray[Any], truth: I64) -> None:
    """Refuse labels whose index says that they belong to other rows of the logits, where the logits agree with it.

    Where one index is 0, 1, 2, ... it may be new, or that of the rows. Which of the two the labels show: they are the
    largest logits of their own rows far more often than of others.

    Parameters
    ----------
    logits, labels : as they were given
    array, truth : the same as (n, K) logits and (n,) class numbers
    """
    index, theirs = _row_index("logits", logits), index_of(labels)
    if index is None or theirs is None or len(index) != len(theirs) or index.equals(theirs):
        return
    entries = _entries_of_other(index, theirs)
    if entries is None:  # refused by `same_rows`
        return
    rows = np.flatnonzero((entries >= 0) & (entries < len(truth)) & (entries != np.arange(len(truth))))
    top, at = array.argmax(1), entries[rows]
    by_place = top[rows] == truth[rows]
    labels_tell = not np.array_equal(np.asarray(theirs), np.arange(len(truth)))
    by_index = top[at] == truth[rows] if labels_tell else top[rows] == truth[at]
    gained, lost = int(np.sum(by_index & ~by_place)), int(np.sum(by_place & ~by_index))
    if gained - lost > 3 * np.sqrt(gained + lost):
        raise LabelsError(
            f"labels must belong to the rows of the logits; of {len(rows):,} rows with a common index, "
            f"{by_index.mean():.0%} have the largest logit at their label if paired by index, {by_place.mean():.0%} if "
            "paired by position. Pass the same rows of both in the same order, or labels.to_numpy() to pair them by "
            "position."
        )
