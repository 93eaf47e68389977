"""How an estimator is trained, and which rows that it has not seen calibrate it, as `cv` says."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from evicp.calibration.laws.by_class import ByClass
from evicp.calibration.ranks import conformal_rank
from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input.messages import some_of
from evicp.input.warn import warn
from evicp.sklearn.estimators import BY_PROBABILITIES, Reading, classes_of, positions, read
from evicp.sklearn.splits import splits
from evicp.types import F64, I64, Coverage


class HeldOut(NamedTuple):
    """Rows that calibrate: their places in X, and an estimator that has not seen them with its logits of them."""

    rows: I64
    logits: F64
    estimator: Any


class Trained(NamedTuple):
    """A fitted estimator, how it is read, and the calibration rows; how many folds they were scored in, if any."""

    estimator: Any
    reading: Reading
    held_out: list[HeldOut]
    folds: int | None = None


def train(
    estimator: Any, X: Any, y: NDArray[Any], params: dict[str, Any], *, cv: Any, random_state: Any, exact: bool
) -> Trained:
    """A fitted clone of an estimator and the calibration rows it; a prefit one as it is.

    Parameters
    ----------
    X, y : rows and their classes
    params : of the estimator's `fit`
    cv, random_state : as for `ConformalClassifier`
    exact : whether folds keep a guarantee, too; see `splits`
    """
    if isinstance(cv, str) and cv == "oob":
        return _out_of_bag(clone(estimator), X, y, params)
    if not isinstance(cv, str) or cv != "prefit":
        return _by_splits(estimator, X, y, params, splits(cv, random_state, X, y, exact=exact))
    if params:
        raise InputError(
            f"a prefit estimator is not fitted again; got {some_of(params, repr)}. Pass them when you fit it."
        )
    check_is_fitted(estimator)
    logits, reading = read(estimator, X)
    return Trained(estimator, reading, [HeldOut(np.arange(len(y)), logits, estimator)])


def rows_of(values: Any, rows: I64) -> Any:
    """Some rows of anything scikit-learn takes: an array, a sparse matrix, a frame, a list."""
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    if type(values).__module__.partition(".")[0] == "pyarrow":
        return values.take(rows)
    return values[rows] if hasattr(values, "shape") else [values[row] for row in rows.tolist()]


def _params_of(params: dict[str, Any], rows: I64, n: int) -> dict[str, Any]:
    """What `fit` is given for some of n rows: the entries of these rows where there is one for each of all rows."""

    def has_one_for_each(value: Any) -> bool:
        shape = getattr(value, "shape", None)
        return (
            bool(shape) and shape[0] == n if shape is not None else isinstance(value, list | tuple) and len(value) == n
        )

    return {name: rows_of(value, rows) if has_one_for_each(value) else value for name, value in params.items()}


def _by_splits(
    estimator: Any, X: Any, y: NDArray[Any], params: dict[str, Any], found: list[tuple[I64, I64]]
) -> Trained:
    """Fitted on a part, where the rest calibrates; on all rows, where every fold's rest does."""
    held_out: list[HeldOut] = []
    reading: Reading | None = None
    for training, rest in found:
        fitted, rows = _fitted(estimator, X, y, params, training), rows_of(X, rest)
        if reading is None:
            logits, reading = read(fitted, rows)
        else:
            logits = reading(fitted, rows)
        held_out.append(HeldOut(rest, logits, fitted))
    assert reading is not None  # of no split there is an error
    if len(held_out) > 1:
        return Trained(_fitted(estimator, X, y, params), reading, held_out, len(held_out))
    return Trained(fitted, reading, held_out)


def _fitted(estimator: Any, X: Any, y: NDArray[Any], params: dict[str, Any], rows: I64 | None = None) -> Any:
    """A clone fitted on some rows, or on all."""
    part, labels, own = (
        (X, y, params) if rows is None else (rows_of(X, rows), y[rows], _params_of(params, rows, len(y)))
    )
    try:
        return clone(estimator).fit(part, labels, **own)
    except ValueError as error:
        if len(np.unique(labels)) > 1 or len(np.unique(y)) == 1:
            raise
        raise InputError(
            f"{type(estimator).__name__} cannot be fitted on rows of one class, and the {len(labels)} training rows "
            f"are all of class {labels.tolist()[0]!r}: {error} Give more rows of the other classes."
        ) from error


def _out_of_bag(estimator: Any, X: Any, y: NDArray[Any], params: dict[str, Any]) -> Trained:
    """Fitted on all rows: those of its parts that were not trained on a row score it."""
    options = estimator.get_params(deep=False)
    if "oob_score" not in options:
        raise InputError(
            f'cv="oob" needs an estimator with bootstrap samples and oob_score, such as '
            f"RandomForestClassifier; got {type(estimator).__name__}. Use folds: cv=5."
        )
    if options.get("bootstrap") is False:
        raise InputError(
            'cv="oob" needs an estimator with bootstrap samples: pass bootstrap=True to it, or use folds: cv=5.'
        )
    estimator.set_params(oob_score=True).fit(X, y, **params)
    probabilities = np.asarray(estimator.oob_decision_function_, np.float64)
    rows = np.flatnonzero(np.nan_to_num(probabilities).sum(1) > 0)  # the others are in every bag
    if not rows.size:
        raise InputError("every row is in every bootstrap sample; use more of them (n_estimators), or use folds: cv=5.")
    logits = BY_PROBABILITIES.logits(probabilities[rows])  # as new rows are to be read
    return Trained(estimator, BY_PROBABILITIES, [HeldOut(rows, logits, estimator)], len(rows))


def warn_of_unseen_classes(
    held_out: list[HeldOut], labels: list[I64], classes: NDArray[Any], by: Any, coverage: Coverage
) -> None:
    """Name the classes that a training part had no row of, with the calibration rows that this costs.

    Such a row scores +inf: it counts as not covered, as new rows of its class are, and coverage over all rows holds.
    """
    rows = np.zeros(len(classes), np.int64)
    lacks = np.zeros(len(classes), np.bool_)
    for part, truth in zip(held_out, labels, strict=True):
        unknown = ~np.isin(np.arange(len(classes)), positions(classes_of(part.estimator), classes))
        lacks |= unknown
        rows += unknown * np.bincount(truth, minlength=len(classes))
    if not lacks.any():
        return
    n, missed = sum(map(len, labels)), int(rows.sum())
    where = "have no training row" if len(held_out) == 1 else "have no training row in some fold"
    if isinstance(by, ByClass):
        outcome = "their labels are in every set"
    elif n - missed < conformal_rank(n, coverage):
        outcome = f"at coverage {float(coverage):g} every set is full"
    else:
        outcome = "only full sets hold these classes"
    warn(
        f"{lacks.sum():,} of {len(classes):,} classes {where} ({some_of(classes[lacks], repr)}): no estimator can "
        f"predict a class without training rows. Their {missed:,} of {n:,} calibration rows count as not covered, "
        f"which keeps the coverage over all rows; {outcome}. Add rows of these classes.",
        SuspiciousInputWarning,
    )
