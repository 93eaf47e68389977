"""What a fitted classifier of scikit-learn's kind says of rows, as logits, one for each class; and which rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import column_or_1d

from evicp.errors import InputError, InputTypeError, LabelsError, LogitsError, SuspiciousInputWarning
from evicp.input import convert, validate
from evicp.input.convert import refuse_masked
from evicp.input.frames import column_labels, index_of
from evicp.input.messages import some_of
from evicp.input.warn import PROBABILITY_ERROR, are_probabilities, warn
from evicp.types import F64, I64


@dataclass(frozen=True)
class Reading:
    """How the logits of an estimator are made: found where it is calibrated, and the same for every new row.

    One row does not tell decision values that happen to sum to 1 from probabilities; many do. Logits have the precision
    of the values they are made of, and finer values are rounded to that of the values first seen: equal votes stay
    equal.

    Parameters
    ----------
    method : of the estimator
    probabilities : whether its values are probabilities, whose logarithms are the logits
    precision : of its values
    """

    method: str
    probabilities: bool
    precision: str = "float64"

    def __call__(self, estimator: Any, X: Any) -> NDArray[Any]:
        """The (n, K) logits of rows, in the order of the estimator's own classes."""
        return self.logits(_values(estimator, self.method, X))

    def logits(self, values: NDArray[Any]) -> NDArray[Any]:
        """Logits from what the estimator's method gave, (n, K), or (n,) for two classes."""
        if values.itemsize > np.dtype(self.precision).itemsize:
            with np.errstate(over="ignore"):  # what becomes infinite is refused by name
                values = values.astype(self.precision)
        return self._logits(values.astype(np.float64)).astype(values.dtype, copy=False)

    def _logits(self, values: F64) -> F64:
        if self.method == "predict_log_proba":
            return np.maximum(values, np.log(validate.SMALLEST_PROBABILITY))
        if not self.probabilities:
            return np.stack([-values / 2, values / 2], axis=1) if values.ndim == 1 else values
        if values.ndim == 1:  # of the second class
            values = np.stack([1 - values, values], axis=1)
        self._check(values)
        return np.log(np.maximum(values, validate.SMALLEST_PROBABILITY))

    def _check(self, values: F64) -> None:
        """Refuse what is no probability: its logarithm would say nothing of the row. NaN is refused further on."""
        bad = np.argwhere((values < -PROBABILITY_ERROR) | (values > 1 + PROBABILITY_ERROR))
        if not len(bad):
            return
        row, column = bad[0]
        before = "; in calibration, all rows were probabilities" if self.method == "decision_function" else ""
        raise LogitsError(
            f"{self.method} must give probabilities; got {values[row, column]:g} at row {row}, class {column}{before}. "
            "If these are logits, wrap the estimator so that decision_function returns them."
        )


#: By probabilities alone, also where there are decision values.
BY_PROBABILITIES = Reading("predict_proba", True)


def read(estimator: Any, X: Any) -> tuple[NDArray[Any], Reading]:
    """The (n, K) logits of rows by a fitted estimator, and how they were read.

    Decision values where there is one for each class; then probabilities; then their logarithms.
    """
    for method in ("decision_function", "predict_proba", "predict_log_proba"):
        decides = method == "decision_function"
        if not hasattr(estimator, method) or (decides and _compares_pairs(estimator)):
            continue
        values = _values(estimator, method, X)
        if _are_of_classes(values, estimator):
            reading = Reading(method, not decides or _decides_by_probabilities(estimator, X, values), values.dtype.name)
            return reading.logits(values), reading
    raise InputError(
        f"{type(estimator).__name__} must have predict_proba, or decision_function with one value per class. "
        'Wrap it in CalibratedClassifierCV; for an SVC pass decision_function_shape="ovr".'
    )


def _values(estimator: Any, method: str, X: Any) -> NDArray[Any]:
    """What a method of the estimator gives, (n, K), as floats; (n,) where two classes have one value."""
    values = convert.as_array(getattr(estimator, method)(X), method)
    if values.dtype.kind not in "fiub":
        raise InputTypeError(f"{method} must give numbers; got dtype {values.dtype}.")
    n_classes = len(classes_of(estimator))
    if values.shape[1:] == (1,) and n_classes == 2:
        values = values[:, 0]
    if method != "decision_function" and not _are_of_classes(values, estimator):
        raise LogitsError(f"{method} must give one value per class, here {n_classes}; got shape {values.shape}.")
    known = values.dtype.char in "fd"  # half precision is widened: its logarithms would be too coarse
    return values.astype(values.dtype.newbyteorder("=") if known else "f4" if values.dtype.char == "e" else "f8")


def _are_of_classes(values: NDArray[Any], estimator: Any) -> bool:
    """Whether there is one value per class and row, or one per row of two classes."""
    n_classes = len(classes_of(estimator))
    return values.shape[1:] == (n_classes,) or (values.ndim == 1 and n_classes == 2)


def _decides_by_probabilities(estimator: Any, X: Any, values: F64) -> bool:
    """Whether decision values are probabilities; of one for two classes, predictions change at 1/2 then, not at 0."""
    if values.ndim == 2:
        return are_probabilities(values)
    if not len(values) or not np.all((values >= 0) & (values <= 1)):
        return False
    predicted = np.asarray(estimator.predict(X)).ravel() == classes_of(estimator)[1]
    return not np.array_equal(predicted, values > 0) and np.array_equal(predicted, values > 0.5)


def _compares_pairs(estimator: Any) -> bool:
    """Whether the decisions of an SVC are those between pairs of classes: three classes have three pairs."""
    for inner in ("best_estimator_", "final_estimator_", "estimator_"):  # of searches, of stacks, of bags and others
        if hasattr(estimator, inner):
            return _compares_pairs(getattr(estimator, inner))
    if getattr(estimator, "steps", None):
        return _compares_pairs(estimator.steps[-1][1])
    return getattr(estimator, "decision_function_shape", None) == "ovo"


def classes_of(estimator: Any) -> NDArray[Any]:
    """The classes of a fitted estimator, in its own order, (K,)."""
    if not hasattr(estimator, "classes_"):
        raise InputError(f"{type(estimator).__name__} must have classes_ after fit; it has none.")
    classes = estimator.classes_
    if isinstance(classes, list) and any(isinstance(one, np.ndarray) for one in classes):
        raise InputError(f"{type(estimator).__name__} predicts {len(classes)} outputs at once; wrap one of them.")
    return np.asarray(classes)


def feature_labels(X: Any) -> list[Any] | None:
    """The labels of a frame's columns, whatever they are; None of what has none."""
    return column_labels(X) if getattr(X, "ndim", 2) == 2 else None


def same_columns(X: Any, known: list[Any] | None) -> None:
    """Refuse a frame with the columns of the rows that calibrated in another order; scikit-learn knows only names."""
    own = feature_labels(X)
    if own is None or known is None or own == known or len(own) != len(known) or set(own) != set(known):
        return
    place = next(i for i, (mine, other) in enumerate(zip(own, known, strict=True)) if mine != other)
    raise InputError(
        f"X must have its columns in the order of fit; column {place} is {own[place]!r} and was {known[place]!r}. "
        f"Pass X[[{known[0]!r}, {known[1]!r}{', ...' if len(known) > 2 else ''}]]."
    )


def same_order(X: Any, **row_wise: Any) -> None:
    """Warn of rows whose pandas indexes have the same entries in another order: they are paired by their place."""
    index = index_of(X)
    for what, values in row_wise.items():
        other = index_of(values)
        if index is None or other is None or index.equals(other):
            continue
        try:
            reordered = index.sort_values().equals(other.sort_values())
        except TypeError:  # entries of several types
            continue
        if reordered:
            warn(
                f"the rows of X and {what} have the same index in another order, and are paired by position. Pass "
                f"{what}.loc[X.index] to pair them by index.",
                SuspiciousInputWarning,
            )


def as_column(y: Any) -> NDArray[Any]:
    """Labels as scikit-learn takes them, which forgets a mask."""
    refuse_masked(y, "y")
    column: NDArray[Any] = column_or_1d(y, warn=True)
    return column


def positions(y: NDArray[Any], classes: NDArray[Any]) -> I64:
    """Labels as their positions in the classes of an estimator, (n,)."""
    known = {label: position for position, label in enumerate(classes.tolist())}
    given = y.tolist()
    unknown = list(dict.fromkeys(label for label in given if label not in known))
    if unknown:
        raise LabelsError(
            f"y must contain classes the estimator was fitted on ({some_of(known, repr)}); got "
            f"{some_of(unknown, repr)}. Drop such rows, or fit with rows of these classes."
        )
    return np.array([known[label] for label in given], dtype=np.int64)


def aligned(logits: NDArray[Any], known: NDArray[Any], classes: NDArray[Any], missing: float = -np.inf) -> NDArray[Any]:
    """Values of an estimator's own classes as those of `classes`, in their order; -inf for one it does not know."""
    if np.array_equal(known, classes):
        return logits
    result = np.full((len(logits), len(classes)), missing, logits.dtype)
    result[:, positions(known, classes)] = logits
    return result
