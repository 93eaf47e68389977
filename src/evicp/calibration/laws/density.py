"""Weights for an unknown shift: the density ratio of new rows to old ones, estimated by a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input import validate
from evicp.input.frames import as_features, columns_of
from evicp.input.warn import warn
from evicp.types import F64, I64

__all__ = ["DensityRatio", "estimate_density_ratio"]

#: From the strongest to the weakest, so that each fit starts near its solution.
_PENALTIES = (10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4)
_FOLDS = 5
_FEWEST = 2 * _FOLDS
#: Rows that are told apart this well have hardly anything in common.
_APART = 0.99
#: A row far from all others may have a larger ln w, of which exp would be infinite.
_LARGEST = 700.0


@dataclass(frozen=True, eq=False, repr=False)
class DensityRatio:
    """The density ratio w(x) of new rows to old ones; ln w(x) is linear in the features.

    Call it with features to get the weights of rows. Outside the range of the fitted rows, w is constant.

    Parameters
    ----------
    centre, scale : (d,) what is subtracted from features, and what they are then divided by
    slopes : (d,) of the features so scaled; all are 0 where rows that were not fitted on could not be told apart
    intercept : ln w where the scaled features are 0
    range : the smallest and the largest ln w of the rows it was fitted on, 700 at most
    penalty : on the squared slopes, chosen on rows held out in five folds; None where the slopes are 0
    auc : how often a held-out new row has a larger w than a held-out old one: 0.5 by chance, 1 where they have nothing
        in common
    columns : the names of the features, where they came in a frame; one that is weighted must have the same
    """

    centre: F64
    scale: F64
    slopes: F64
    intercept: float
    range: tuple[float, float]
    penalty: float | None
    auc: float
    columns: tuple[str, ...] | None = None

    def __call__(self, features: ArrayLike) -> F64:
        """The weights of rows, (n,), for `calibrate(..., weights=)` and `predict(..., weights=)`.

        Parameters
        ----------
        features : (n, d) of calibration rows or of new ones, in the columns that were fitted
        """
        array = as_features(features, n_features=len(self.slopes), columns=self.columns)
        log_ratio = along((array - self.centre) / self.scale, self.slopes) + self.intercept
        return np.exp(np.clip(log_ratio, *self.range))

    def __repr__(self) -> str:
        kind = "no shift was found" if self.penalty is None else f"penalty {self.penalty:g}"
        return f"DensityRatio({len(self.slopes):,} features; {kind}; AUC {self.auc:.3f} on rows held out)"


def estimate_density_ratio(features: ArrayLike, new_features: ArrayLike, *, seed: int = 0) -> DensityRatio:
    """The density of new rows over that of old ones, from unlabelled rows of both, by logistic regression.

    Old and new rows have equal total weight, so the regression's log-odds are ln w. Its penalty is selected by the
    likelihood of held-out rows. Use features that show the shift: inputs, an embedding, or the logits. Use rows that
    you neither calibrate on nor predict: the guarantee holds for weights estimated without them, up to half the mean
    error of w (Lei and Candes, 2021).

    Parameters
    ----------
    features : (n, d) of rows from before the shift, at least 10
    new_features : (m, d) of rows from after it, at least 10
    seed : of the folds

    >>> rng = np.random.default_rng(0)
    >>> old, new = rng.normal(size=(4000, 2)), rng.normal(size=(4000, 2)) + [1.0, 0.0]
    >>> ratio = estimate_density_ratio(old, new)
    >>> ratio(np.array([[0.5, 0.0], [1.5, 0.0]])).round(1)  # exp(x - 1/2) in theory: 1 and 2.7
    array([1. , 2.7])
    """
    old = as_features(features)
    columns = columns_of(features)
    new = as_features(new_features, "new_features", n_features=old.shape[1], columns=columns)
    if min(len(old), len(new)) < _FEWEST:
        raise InputError(f"a density ratio needs {_FEWEST} old and {_FEWEST} new rows; got {len(old)} and {len(new)}.")
    return _fitted(old, new, columns, np.random.default_rng(validate.as_seed(seed)))


def _fitted(old: F64, new: F64, columns: tuple[str, ...] | None, rng: np.random.Generator) -> DensityRatio:
    """The density ratio that a regression with the best penalty finds; `rng` draws the folds."""
    x, is_new = np.concatenate([old, new]), np.arange(len(old) + len(new)) >= len(old)
    centre, scale = _standard(x)
    x = (x - centre) / scale
    folds = np.concatenate([rng.permutation(len(part)) % _FOLDS for part in (old, new)])
    log_ratios = _held_out(x, is_new, folds)
    losses = [_loss(f, is_new) for f in log_ratios]
    best = int(np.argmin(losses))
    auc = _auc(log_ratios[best], is_new)
    if losses[best] >= np.log(2):  # that of w = 1
        return DensityRatio(centre, scale, np.zeros(x.shape[1]), 0.0, (0.0, 0.0), None, auc, columns)
    if auc > _APART:
        warn(
            f"old and new rows can be distinguished in {auc:.1%} of pairs: hardly any old rows resemble the new ones, "
            "and weights cannot correct this. Calibrate on labelled rows from after the shift.",
            SuspiciousInputWarning,
        )
    slopes, intercept = _path(x, is_new)[best]
    fitted = along(x, slopes) + intercept
    ends = float(fitted.min()), min(float(fitted.max()), _LARGEST)
    return DensityRatio(centre, scale, slopes, intercept, ends, _PENALTIES[best], auc, columns)


def _standard(x: F64) -> tuple[F64, F64]:
    """What makes each feature's mean 0 and its deviation 1; a constant one is only centred."""
    largest = np.maximum(np.abs(x).max(0), 1e-300)  # squares of large numbers would overflow
    deviations = (x / largest).std(0) * largest
    return (x / largest).mean(0) * largest, np.where(deviations > 1e-12 * largest, deviations, largest)


def along(x: F64, direction: F64) -> F64:
    """x @ direction, row by row: a matrix product may give a row other bits in another batch."""
    products: F64 = (x * direction).sum(1)
    return products


def _loss(log_ratio: F64, is_new: Any) -> float:
    """The mean of -ln P(old | x) over old rows and of -ln P(new | x) over new ones, each with half the weight."""
    losses = np.logaddexp(0.0, np.where(is_new, -log_ratio, log_ratio))
    return float(losses[~is_new].mean() + losses[is_new].mean()) / 2


def _path(x: F64, is_new: Any) -> list[tuple[F64, float]]:
    """Slopes and intercept for each penalty: the minimum of `_loss` + penalty / 2 |slopes|^2."""
    from scipy.optimize import minimize  # late: few programs need it, and it is slow to import

    share = np.where(is_new, 0.5 / is_new.sum(), 0.5 / (~is_new).sum())

    def objective(point: F64, penalty: float) -> tuple[float, F64]:
        f = x @ point[:-1] + point[-1]
        residual = share * (np.exp(-np.logaddexp(0.0, -f)) - is_new)
        slope = np.append(residual @ x + penalty * point[:-1], residual.sum())
        return _loss(f, is_new) + penalty / 2 * float(point[:-1] @ point[:-1]), slope

    found, point = [], np.zeros(x.shape[1] + 1)
    for penalty in _PENALTIES:
        point = minimize(objective, point, args=(penalty,), jac=True, method="L-BFGS-B", options={"gtol": 1e-7}).x
        found.append((point[:-1], float(point[-1])))
    return found


def _held_out(x: F64, is_new: Any, folds: I64) -> F64:
    """ln w of each row by a fit to the other folds, for each penalty."""
    log_ratios = np.empty((len(_PENALTIES), len(x)))
    for fold in range(_FOLDS):
        out = folds == fold
        for i, (slopes, intercept) in enumerate(_path(x[~out], is_new[~out])):
            log_ratios[i, out] = along(x[out], slopes) + intercept
    return log_ratios


def _auc(values: F64, is_new: Any) -> float:
    """How often a new row's value is larger than an old row's; equal ones count half."""
    old, new = np.sort(values[~is_new]), values[is_new]
    below = np.searchsorted(old, new, side="left") + np.searchsorted(old, new, side="right")
    return float(below.mean()) / (2 * len(old))
