"""Several true labels per row, in any form: a 0/1 matrix, lists of labels, or an Arrow column of lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from evicp.errors import InputTypeError, LabelsError
from evicp.input import convert
from evicp.input.classes import ClassAxis
from evicp.input.lists import labels_of, repeated_label, rows_of
from evicp.sets import PredictionSets
from evicp.types import Bools


def as_truth(truth: Any, n: int, classes: ClassAxis) -> Bools:
    """Which labels are true in each row, (n, K).

    Parameters
    ----------
    truth : (n, K) of 0 and 1, or of True and False; or for each row a list of its labels, numbers or names, also as an
        Arrow column or as sets of labels
    n, classes : the rows, and their classes
    """
    if isinstance(truth, PredictionSets):
        truth = truth.to_lists()
    shape = getattr(truth, "shape", ())
    is_matrix = len(shape) == 2 or (isinstance(truth, list) and _rectangle(truth, classes.n_classes))
    if not is_matrix:
        return _of_lists(truth, n, classes)
    classes.learned(truth, "truth")  # a frame with the labels in another order is refused
    is_frame = hasattr(truth, "columns") and hasattr(truth, "to_numpy")  # which may have columns of booleans
    array = truth.to_numpy() if is_frame else convert.as_array(convert.on_cpu(truth), "truth")
    if array.shape != (n, classes.n_classes):
        raise LabelsError(f"truth must have shape ({n}, {classes.n_classes}), as the logits; got {array.shape}.")
    if array.dtype.kind not in "biuf" or not np.all((array == 0) | (array == 1)):
        raise InputTypeError("truth must be 0 or 1 for each label, or a list of labels for each row.")
    return array.astype(bool)


def _rectangle(rows: list[Any], n_classes: int) -> bool:
    """Whether lists are the rows of a matrix: all of K entries, of which one occurs twice in some row."""
    if not rows or not all(isinstance(row, list | tuple | np.ndarray) and len(row) == n_classes for row in rows):
        return False
    if any(len(set(row)) < len(row) for row in rows):
        return True
    if n_classes == 2 and all(set(row) == {0, 1} for row in rows):
        raise InputTypeError(
            "truth is ambiguous: a 0/1 matrix, or two labels per row. Pass a matrix as np.array(truth)."
        )
    return False


def _of_lists(truth: Any, n: int, classes: ClassAxis) -> Bools:
    rows = rows_of(truth)
    if len(rows) != n:
        raise LabelsError(f"truth must have one list of labels for each of {n} rows; got {len(rows)}.")
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    labels = labels_of(rows, classes)
    again = repeated_label(offsets, labels, classes.n_classes)
    if again is not None:
        raise LabelsError(f"truth must contain a label only once per row; got {again[1]} twice in row {again[0]}.")
    result = np.zeros((n, classes.n_classes), bool)
    result[np.repeat(np.arange(n), np.diff(offsets)), labels] = True
    return result
