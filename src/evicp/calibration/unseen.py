"""Rows of labels that the model lacks: an additional column "something else"."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp.calibration.laws.by_class import ByClass
from evicp.errors import InputError, InputTypeError, LabelsError
from evicp.input import convert, validate
from evicp.input.frames import same_rows
from evicp.types import F64, I64, Bools

__all__ = ["UnseenColumn", "fit_unseen"]

#: Against coefficients without end, where unseen rows are told apart without an error.
_PENALTY = 1e-3


@dataclass(frozen=True)
class UnseenColumn:
    """An additional column of logits, "something else", made by `fit_unseen`; its label is K.

    Its probability is that of a logistic regression on each row's largest probability and largest logit.

    Parameters
    ----------
    n_classes : K, the model's own columns
    unseen : the label of rows that the model has no column for
    intercept, of_probability, of_logit : the coefficients: of 1, of ln p and of z of the top label

    >>> column = UnseenColumn(2, unseen=-1, intercept=0.0, of_probability=-2.0, of_logit=0.0)
    >>> column.logits([[4.0, 0.0], [0.1, 0.0]]).round(2)
    array([[4.  , 0.  , 4.05],
           [0.1 , 0.  , 2.03]])
    >>> column.labels([0, 1, -1])
    array([0, 1, 2])
    """

    n_classes: int
    unseen: int
    intercept: float
    of_probability: float
    of_logit: float

    @property
    def by(self) -> ByClass:
        """For `calibrate(by=)`: one threshold for the model's own labels, one for "something else"."""
        return ByClass(clusters=(0,) * self.n_classes + (1,))

    def logits(self, logits: ArrayLike) -> F64:
        """The logits with the new column, (n, K + 1)."""
        array = validate.as_logits(logits, self.n_classes, row_allowed=True)
        total, top_p, top_z = _features(array)
        odds = self.intercept + self.of_probability * top_p + self.of_logit * top_z
        return np.column_stack([np.asarray(array, np.float64), total + odds])

    def labels(self, labels: ArrayLike) -> I64:
        """The labels, (n,), with K for those that are unseen."""
        return _with_unseen(labels, self.unseen, self.n_classes)[0]

    def names(self, class_names: Any) -> tuple[str, ...]:
        """K names, and "something else"."""
        return (*map(str, class_names), "something else")

    def to_dict(self) -> dict[str, Any]:
        """Its parameters, ready for JSON: `UnseenColumn(**parameters)` makes it again."""
        return asdict(self)


def fit_unseen(logits: ArrayLike, labels: ArrayLike, *, unseen: int = -1) -> UnseenColumn:
    """Fit an additional column "something else" on labelled rows, some of them with labels that the model lacks.

    Calibrate other rows with the column, `calibrate(column.logits(logits), column.labels(labels), by=column.by)`: then
    sets have the target coverage for rows of the model's labels, and contain "something else" equally often for rows of
    unseen labels. How many sets of known labels also contain it depends on how well the two kinds of rows can be
    separated.

    Parameters
    ----------
    logits : (n, K), rows that are not calibrated
    labels : (n,), in [0, K) or `unseen`; at least one row of each kind
    unseen : the label of rows whose class the model lacks; not a class number

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(-1, 3, 900)
    >>> logits = rng.normal(size=(900, 3)) + 4 * np.eye(4)[labels][:, :3]  # label -1 is the last of four, and cut off
    >>> column = fit_unseen(logits[:300], labels[:300])
    >>> from evicp import calibrate
    >>> z, y = column.logits(logits), column.labels(labels)
    >>> sets = calibrate(z[300:600], y[300:600], "lac", by=column.by).predict(z[600:], 0.9)
    >>> [round(float(sets.contains(y[600:])[rows].mean()), 2) for rows in (y[600:] < 3, y[600:] == 3)]
    [0.9, 0.93]
    """
    same_rows(logits=logits, labels=labels)
    array = validate.as_logits(logits)
    _, is_unseen = _with_unseen(labels, unseen, array.shape[1])
    if len(is_unseen) != len(array):
        raise LabelsError(f"there must be one label per row; got {len(is_unseen)} labels for {len(array)} rows.")
    if not 0 < is_unseen.sum() < len(is_unseen):
        kind = "unseen" if not is_unseen.any() else "known"
        raise InputError(f"rows of known and of unseen labels are needed; none is {kind}. unseen={unseen} names them.")
    _, top_p, top_z = _features(array)
    return UnseenColumn(array.shape[1], int(unseen), *_logistic(np.column_stack([top_p, top_z]), is_unseen))


def _with_unseen(labels: Any, unseen: Any, n_classes: int) -> tuple[I64, Bools]:
    """Labels with K for unseen ones, and which these are."""
    if isinstance(unseen, bool) or not isinstance(unseen, int | np.integer):
        raise InputTypeError(f"unseen must be a whole number; got {unseen!r}.")
    if 0 <= unseen < n_classes:
        raise InputError(f"unseen must not be a label of the model, in [0, {n_classes}); got {unseen}.")
    given = np.atleast_1d(convert.as_array(labels, "labels"))
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise LabelsError(f"labels must be whole numbers, (n,); got dtype {given.dtype}, shape {given.shape}.")
    is_unseen = given == unseen
    known = given[~is_unseen]
    if known.size and (known.min() < 0 or known.max() >= n_classes):
        bad = int(np.flatnonzero(~is_unseen & ((given < 0) | (given >= n_classes)))[0])
        raise LabelsError(f"labels must be in [0, {n_classes}), or {unseen} for unseen; got {given[bad]} at row {bad}.")
    return np.where(is_unseen, n_classes, given).astype(np.int64), is_unseen


def _features(logits: NDArray[Any]) -> tuple[F64, F64, F64]:
    """ln of the sum of exp(z), ln of the largest probability, and the largest logit, each (n,)."""
    totals, tops = [np.empty(0)], [np.empty(0)]
    for _, z in validate.blocks(logits):
        top = z.max(1)
        totals.append(np.log(np.exp(z - top[:, None]).sum(1)))
        tops.append(top)
    above, top_z = np.concatenate(totals), np.concatenate(tops)
    return top_z + above, -above, top_z


def _logistic(features: F64, truth: Bools) -> tuple[float, float, float]:
    """The intercept and coefficients of a logistic regression with a small penalty, by Newton's steps."""
    centre, spread = features.mean(0), features.std(0)
    spread = np.where(spread > 1e-12, spread, 1.0)
    x = np.column_stack([np.ones(len(truth)), (features - centre) / spread])
    b, penalty = np.zeros(3), np.array([0.0, _PENALTY, _PENALTY]) * len(truth)
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(x @ b, -500, 500)))
        slope = x.T @ (p - truth) + penalty * b
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty + 1e-9)
        step = np.linalg.solve(curvature, slope)
        b -= step * min(1.0, 5.0 / max(np.abs(step).max(), 1e-300))
        if np.abs(step).max() < 1e-10:
            break
    slopes = b[1:] / spread
    return float(b[0] - slopes @ centre), float(slopes[0]), float(slopes[1])
