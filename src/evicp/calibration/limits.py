"""Sets within limits: a limit is one threshold for all, or an array that broadcasts to (n, K).

That is (1, 1) for all, (1, K) for each label, (n, 1) for each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.method.scores import Score
from evicp.types import F64, I32, I64

Ragged = tuple[I64, I32, F64]


def within(ragged: Ragged, limit: F64) -> Ragged:
    """The part of ragged sets within a tighter limit."""
    offsets, labels, scores = ragged
    kept = scores <= _limit_of_each(offsets, labels, limit)
    if kept.all():
        return ragged
    running = np.concatenate([[0], np.cumsum(kept)])
    return running[offsets], labels[kept], scores[kept]


def _limit_of_each(offsets: I64, labels: I32, limit: F64) -> F64 | float:
    if limit.size == 1:
        return float(limit.item())
    return limit[0, labels] if limit.shape[0] == 1 and limit.shape[1] > 1 else np.repeat(limit[:, 0], np.diff(offsets))


def set_sizes(score: Score, logits: NDArray[Any], thresholds: F64) -> I64:
    """The size of every row's set at every threshold, (*thresholds.shape, n), from one pass over the logits.

    The largest threshold's sets hold every other one's, so that only counts are left.
    """
    n, n_classes = logits.shape
    is_limit = thresholds < np.inf
    known, where = np.unique(thresholds[is_limit], return_inverse=True)
    sizes = np.full((thresholds.size, n), n_classes, np.int64)
    if known.size:
        offsets, _, scores = kernels.ragged_sets(score, logits, float(known[-1]))
        cell = np.repeat(np.arange(n) * known.size, np.diff(offsets)) + np.searchsorted(known, scores)
        counts = np.bincount(cell, minlength=n * known.size).reshape(n, known.size).cumsum(1)
        sizes[is_limit.ravel()] = counts.T[where.ravel()]
    return sizes.reshape(*thresholds.shape, n)
