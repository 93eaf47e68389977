"""Sets made elsewhere, as lists of labels: checked, and as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputTypeError, LabelsError
from evicp.input.classes import ClassAxis
from evicp.types import I64

#: Marks in a table at a time, which fits the cache; and labels are sorted if fewer than one mark in so many is set.
_MARKS, _SPARSE = 1 << 22, 256


def rows_of(lists: Any) -> list[list[Any]]:
    """One list of labels per row, of anything that holds one collection of labels per row."""
    if isinstance(lists, str | bytes | Mapping) or not isinstance(lists, Iterable):
        raise InputTypeError(f"lists must be a list of labels per row; got a {type(lists).__name__}.")
    rows = []
    for number, row in enumerate(lists.to_pylist() if hasattr(lists, "to_pylist") else lists):  # of Arrow
        if isinstance(row, str | bytes | Mapping) or not isinstance(row, Iterable):
            raise InputTypeError(f"lists must contain one list of labels per row; got {row!r} at row {number}.")
        rows.append(row.tolist() if hasattr(row, "tolist") else sorted(row) if isinstance(row, Set) else list(row))
        if any(isinstance(label, bool | np.bool_) for label in rows[-1]):
            raise InputTypeError(f"lists must contain labels; got True or False in row {number}. Use from_mask.")
    return rows


def labels_of(rows: list[list[Any]], classes: ClassAxis) -> I64:
    """The labels of all rows, one after the other; what is no label is named with its row."""
    try:
        flat = [label for row in rows for label in row]
        return classes.numbers(flat, len(flat))
    except (LabelsError, InputTypeError):
        for number, row in enumerate(rows):
            try:
                classes.numbers(row, len(row))
            except (LabelsError, InputTypeError) as error:
                where = str(error).replace(" at row ", " at position ")
                raise type(error)(f"lists must contain labels; in row {number}, {where}") from None
        raise


def repeated_label(offsets: I64, labels: NDArray[Any], n_classes: int) -> tuple[int, int] | None:
    """The first row with a label twice, and that label; None where every label is there once, as in any set.

    Some rows at a time are marked in a table of (rows, K), or sorted where such a table would be nearly empty.
    """
    sizes = np.diff(offsets)
    dense = _SPARSE * len(labels) >= len(sizes) * n_classes and n_classes <= _MARKS
    step = _MARKS // n_classes if dense else _MARKS // _SPARSE
    table = np.empty(step * n_classes if dense else 0, bool)
    for start in range(0, len(sizes), step):
        own = sizes[start : start + step]
        places = np.repeat(np.arange(len(own)) * n_classes, own)
        places += labels[offsets[start] : offsets[start + len(own)]]
        if dense:
            table[:] = False
            table[places] = True
        if not dense or np.count_nonzero(table) < len(places):
            places.sort()
            twice = np.flatnonzero(places[1:] == places[:-1])
            if twice.size:
                row, label = divmod(int(places[twice[0]]), n_classes)
                return start + row, label
    return None
