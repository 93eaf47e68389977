"""Offsets and rank limits of classes for long tails, found on separate rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp import kernels
from evicp.calibration.ranks import rank_of
from evicp.errors import InputError, InputTypeError
from evicp.input import validate
from evicp.input.classes import labelled
from evicp.method.class_lac import ClassLAC
from evicp.method.scores import LAC
from evicp.types import F64, Coverage

__all__ = ["fit_class_offsets", "fit_rank_limits"]


def fit_class_offsets(
    logits: ArrayLike, labels: ArrayLike, *, coverage: Coverage = 0.9, weight: float = 0.5, temperature: float = 1.0
) -> ClassLAC:
    """Between one threshold for all and a threshold of each class (Ding et al., 2025): a score with that offset.

    The offset of a class moves its threshold by a share of the way from the threshold of all rows to its own. A
    calibration of other rows with this score has exactly the target coverage over all rows; the coverage of rare
    classes depends on the share. A class with too few rows for a threshold uses its largest score instead, but at least
    the threshold of all rows. Use rows that you do not calibrate on.

    Parameters
    ----------
    logits, labels : (n, K) and (n,), rows that are not calibrated
    coverage : the coverage of the thresholds, best the target coverage of later use
    weight : the share of the way, from 0 (marginal) to 1 (by class)
    temperature : T of the probabilities softmax(z / T)

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.choice(3, 400, p=[0.8, 0.15, 0.05])
    >>> logits = rng.normal(size=(400, 3)) + 2 * np.eye(3)[labels] * [[1.0, 0.7, 0.5]]
    >>> [round(offset, 2) for offset in fit_class_offsets(logits, labels, weight=0.5).offsets]
    [0.09, -0.32, -0.36]
    """
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
        raise InputTypeError(f"weight must be a number from 0 to 1; got {weight!r}.")
    array, truth = _rows(logits, labels)
    exact = validate.as_coverage(coverage)
    scores = kernels.label_scores(LAC(temperature), array, truth)
    finite = scores[np.isfinite(scores)]
    if not finite.size:
        raise InputError("no true label has a finite logit; offsets cannot be found.")
    everyone = min(_place(np.sort(scores), exact), finite.max())
    own = [_of_class(np.sort(scores[truth == label]), exact, everyone) for label in range(array.shape[1])]
    return ClassLAC(tuple((-weight * (np.array(own) - everyone)).tolist()), temperature=temperature)


def fit_rank_limits(
    logits: ArrayLike, labels: ArrayLike, *, coverage: Coverage = 0.9, temperature: float = 1.0
) -> ClassLAC:
    """Rank limits (RC3P: Shi et al., 2024): a score that puts labels of unlikely rank last, for `by="class"`.

    Sets by class are large because rare classes have high thresholds. If the label of a class is always among the first
    three, no set needs it at rank 50: its limit is the rank beyond which half of the rows lie that sets at this
    coverage may miss. A calibration of other rows by class with this score has the target coverage in every class. Use
    rows that you do not calibrate on. Classes with few rows use the limit of all rows.

    Parameters
    ----------
    logits, labels : (n, K) and (n,), rows that are not calibrated
    coverage : the target coverage of later use
    temperature : T of the probabilities softmax(z / T)

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 5, 500)
    >>> logits = rng.normal(size=(500, 5)) + 3 * np.eye(5)[labels] * [[1.5, 1.0, 1.0, 1.0, 0.3]]
    >>> fit_rank_limits(logits, labels).limits
    (1, 2, 1, 2, 4)
    """
    array, truth = _rows(logits, labels)
    exact = (1 + validate.as_coverage(coverage)) / 2
    ranks, k = kernels.label_ranks(array, truth).astype(np.float64), array.shape[1]
    everyone = min(_place(np.sort(ranks), exact), k)
    own = [_place(np.sort(ranks[truth == label]), exact) for label in range(k)]
    return ClassLAC(None, tuple(int(limit if limit < np.inf else everyone) for limit in own), temperature)


def _of_class(ascending: F64, coverage: Any, everyone: float) -> float:
    """The threshold of a class; of too few rows their largest score, and at least the threshold of all rows."""
    own = _place(ascending, coverage)
    finite = ascending[np.isfinite(ascending)]
    return own if own < np.inf else max(everyone, float(finite[-1]) if finite.size else everyone)


def _place(ascending: F64, coverage: Any) -> float:
    """The threshold of some scores; +inf where they are too few."""
    k = rank_of(len(ascending), coverage)
    return float(ascending[k - 1]) if k <= len(ascending) else np.inf


def _rows(logits: Any, labels: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    array, truth = labelled(logits, labels)
    if not len(truth):
        raise InputError("at least one row is needed; got none.")
    return array, truth
