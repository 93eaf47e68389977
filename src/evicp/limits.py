"""Sets whose threshold depends on the label or on the row.

A limit is an array of thresholds that broadcasts to (m, K): (1, 1) for all, (1, K) for each label, (m, 1) for each row.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import checks, kernels
from evicp.errors import SmallCalibrationWarning
from evicp.reliability import rows_needed, threshold_rank
from evicp.scores import Score
from evicp.sets import PredictionSets

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Ragged = tuple[I64, NDArray[np.int32], F64]


#: How far a threshold is raised for graphs that compute scores outside these kernels (ONNX, a torch module): their
#: rounding differs, and a label exactly on the threshold must stay in. Coverage can only rise.
SLACK = 1e-6


def raised(threshold: F64) -> F64:
    """A threshold with room for other rounding, relative to its size and at least absolutely."""
    return threshold + SLACK * np.maximum(1.0, np.abs(threshold))


def within(ragged: Ragged, limit: F64) -> Ragged:
    """The part of ragged sets within a tighter limit."""
    offsets, labels, scores = ragged
    kept = scores <= _limit_of_each(offsets, labels, limit)
    if kept.all():
        return ragged
    running = np.concatenate([[0], np.cumsum(kept)])
    return running[offsets], labels[kept], scores[kept]


def _limit_of_each(offsets: I64, labels: NDArray[np.int32], limit: F64) -> F64 | float:
    if limit.size == 1:
        return float(limit.item())
    return limit[0, labels] if limit.shape[0] == 1 and limit.shape[1] > 1 else np.repeat(limit[:, 0], np.diff(offsets))


def set_sizes(score: Score, logits: NDArray[Any], thresholds: F64) -> I64:
    """The size of every row's set at every threshold, (*thresholds.shape, n), from one pass over the logits.

    The largest threshold's sets hold every other one's, so that only counts are left.
    """
    n, n_classes = logits.shape
    is_finite = np.isfinite(thresholds)
    known, where = np.unique(thresholds[is_finite], return_inverse=True)
    sizes = np.full((thresholds.size, n), n_classes, np.int64)
    if known.size:
        offsets, _, scores = kernels.ragged_sets(score, logits, float(known[-1]))
        cell = np.repeat(np.arange(n) * known.size, np.diff(offsets)) + np.searchsorted(known, scores)
        counts = np.bincount(cell, minlength=n * known.size).reshape(n, known.size).cumsum(1)
        sizes[is_finite.ravel()] = counts.T[where.ravel()]
    return sizes.reshape(*thresholds.shape, n)


def at_labels(values: NDArray[Any], labels: I64 | None) -> NDArray[Any]:
    """What is known of each label, (1, K), or of each row, (n, 1), at one label of each row, (n,)."""
    if labels is None:
        return values
    return values[0, labels] if values.shape[1] > 1 else values[:, 0]


def fill_empty(sets: PredictionSets, top: NDArray[np.int32]) -> PredictionSets:
    """Give every empty set its top label."""
    empty = sets.sizes == 0
    sizes = np.where(empty, 1, sets.sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    labels = np.insert(sets.labels, sets.offsets[:-1][empty], top[empty])
    return replace(sets, offsets=offsets, labels=labels, filled=True)


def threshold(ascending: F64, coverage: Fraction, confidence: float | None = None) -> float:
    """The k-th smallest of sorted calibration scores; +inf, with a warning, where they are too few."""
    n = len(ascending)
    k = threshold_rank(n, coverage, confidence)
    if k <= n:
        return float(ascending[k - 1])
    sure = "" if confidence is None else f" with confidence {confidence:g}"
    checks.warn(
        f"{n} calibration row(s) cannot promise coverage {float(coverage):g}{sure}: every set is full. "
        f"Calibrate on at least {rows_needed(coverage, confidence)} rows.",
        SmallCalibrationWarning,
    )
    return np.inf
