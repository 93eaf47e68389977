"""Clusters of classes with similar scores (after Ding et al., 2023), for classes with few calibration rows."""

from __future__ import annotations

import numpy as np

from evicp.types import F64, I64, Bools

#: A class's scores are described by these quantiles of their ranks among all scores ...
_LEVELS = np.array([0.25, 0.5, 0.6, 0.7, 0.8, 0.9])

#: ... drawn towards those of all classes together as strongly as this many rows would.
_PRIOR_ROWS = 3.0


def cluster_classes(scores: F64, labels: I64, rare: Bools, wanted: int, seed: int) -> I64:
    """A group for each class, (K,): common classes alone, rare ones in clusters."""
    groups = np.zeros(len(rare), np.int64)
    groups[~rare] = np.arange(np.sum(~rare))
    if rare.any():
        features, counts = class_features(scores, labels, len(rare))
        clusters = k_means(features[rare], np.sqrt(counts[rare]), wanted, seed)
        groups[rare] = np.sum(~rare) + np.unique(clusters, return_inverse=True)[1]
    return groups


def class_features(scores: F64, labels: I64, n_classes: int) -> tuple[F64, F64]:
    """Quantiles of each class's scores, as ranks in (0, 1) among all scores, and how many scores there were.

    Ranks are bounded where scores may be infinite. Classes of few rows are drawn towards all rows' quantiles, where a
    class without rows stays.
    """
    counts = np.bincount(labels, minlength=n_classes)
    if not len(scores):
        return np.tile(_LEVELS, (n_classes, 1)), counts.astype(np.float64)
    order = np.argsort(scores)
    by_class = np.argsort(labels[order].astype(np.min_scalar_type(n_classes)), kind="stable")
    own = _segment_quantiles(_middle_ranks(scores[order])[by_class], counts)
    weight = (counts / (counts + _PRIOR_ROWS))[:, None]
    return weight * own + (1 - weight) * _LEVELS, counts.astype(np.float64)


def _middle_ranks(ascending: F64) -> F64:
    """The rank of each number in (0, 1), equal ones in the middle of theirs."""
    first = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))
    edges = np.append(first, len(ascending))
    middle: F64 = (edges[:-1] + edges[1:]) / 2 / len(ascending)
    return np.repeat(middle, np.diff(edges))


def _segment_quantiles(ascending: F64, counts: I64) -> F64:
    """The quantiles of each of several segments, each ascending, one after the other; 0 for an empty one."""
    position = _LEVELS * np.maximum(counts - 1, 0)[:, None]
    low = np.floor(position).astype(np.int64)
    starts = (np.cumsum(counts) - counts)[:, None]
    last = len(ascending) - 1
    below, above = (ascending[np.minimum(starts + np.minimum(low + i, counts[:, None] - 1), last)] for i in (0, 1))
    quantiles: F64 = np.where(counts[:, None] > 0, below + (position - low) * (above - below), 0.0)
    return quantiles


def k_means(points: F64, weights: F64, count: int, seed: int, restarts: int = 3) -> I64:
    """The cluster of each point, (R,): Lloyd's algorithm from spread-out starts, the best of several.

    >>> k_means(np.array([[0.0], [0.1], [5.0], [5.1]]), np.ones(4), 2, seed=0).tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """
    rng = np.random.default_rng([seed, 1])
    best, lowest = np.zeros(len(points), np.int64), np.inf
    weighted, extended = (weights[:, None] * points).ravel(), np.column_stack([2 * points, -np.ones(len(points))])
    for _ in range(restarts):
        centres = _spread_out(points, weights, count, rng)
        assigned, places = _nearest(extended, centres), np.arange(centres.size).reshape(centres.shape)
        for _ in range(30):
            total = np.bincount(assigned, weights, len(centres))[:, None]
            moved = np.bincount(places[assigned].ravel(), weighted, centres.size).reshape(centres.shape)
            np.divide(moved, total, out=centres, where=total > 0)
            before, assigned = assigned, _nearest(extended, centres)
            if np.array_equal(before, assigned):
                break
        spread = float(weights @ ((points - centres[assigned]) ** 2).sum(1))
        if spread < lowest:
            best, lowest = assigned, spread
    return best


def _spread_out(points: F64, weights: F64, count: int, rng: np.random.Generator) -> F64:
    """Starting centres, each drawn with probability proportional to its squared distance from those before."""
    chosen, distance, axes = [int(rng.integers(len(points)))], np.full(len(points), np.inf), points.T.copy()
    while len(chosen) < count:
        gap = axes - axes[:, chosen[-1:]]
        distance = np.minimum(distance, np.multiply(gap, gap, out=gap).sum(0))
        mass = np.cumsum(weights * distance)
        if mass[-1] == 0.0:
            break
        chosen.append(int(np.searchsorted(mass / mass[-1], rng.random(), "right")))
    return points[chosen].copy()


def _nearest(extended: F64, centres: F64) -> I64:
    """The nearest centre c of each point x, given as (2x, -1): |x - c|^2 is |c|^2 - 2xc, up to what all share."""
    return (extended @ np.column_stack([centres, (centres**2).sum(1)]).T).argmax(1)
