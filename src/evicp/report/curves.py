"""Everything the report shows, for every coverage on its slider, from one pass over the test rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration import Calibration
from evicp.metrics import SIZE_ENDS, SSCV_ENDS
from evicp.reliability import conformal_rank
from evicp.scores import Base

__all__ = ["GRID", "Bins", "Curves", "curves", "entry_positions", "intervals", "set_sizes"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Method = Calibration | Base

#: The coverages of the slider.
GRID = tuple(Fraction(i, 1000) for i in range(500, 1000))

#: Upper ends of the histogram's bins. The ends of the size strata are among them, so strata are sums of bins.
_BIN_ENDS = (*range(11), *(step * 10**power for power in range(1, 7) for step in (2, 5, 10)))

#: Rows treated at once: the sizes of so many rows at every coverage fit into a cache.
_BLOCK_ROWS = 512


@dataclass(frozen=True)
class Bins:
    """Ranges of set sizes, [low, high] each, that end at K."""

    highs: tuple[int, ...]
    first: int = 0

    @classmethod
    def ending(cls, ends: Sequence[int], n_classes: int, first: int = 0) -> Bins:
        """The ranges with these ends, cut at K.

        >>> Bins.ending((1, 3, 10), 8).labels
        ['0-1', '2-3', '4-8']
        """
        return cls((*(end for end in ends if end < n_classes), n_classes), first)

    @property
    def lows(self) -> tuple[int, ...]:
        """The smallest size of each range."""
        return (self.first, *(high + 1 for high in self.highs[:-1]))

    @property
    def labels(self) -> list[str]:
        """The ranges as text."""
        pairs = zip(self.lows, self.highs, strict=True)
        return [f"{low}" if low == high else f"{low}-{high}" for low, high in pairs]

    def group(self, finer: Bins, values: I64) -> I64:
        """Sums of (..., finer) columns over these coarser ranges."""
        starts = np.searchsorted(finer.highs, self.lows)
        return np.add.reduceat(values, starts, axis=-1)


def histogram_bins(n_classes: int) -> Bins:
    """The bins of the histogram of set sizes: single sizes up to ten, then 11-20, 21-50, 51-100, ..."""
    return Bins.ending(_BIN_ENDS, n_classes)


@dataclass(frozen=True, eq=False)
class Curves:
    """One score on m test rows at each of P coverages.

    Parameters
    ----------
    name : the score with its parameters
    thresholds : (P,)
    first : (m,) the first position on the grid whose set holds the true label; P if none does
    bin_counts, bin_hits : (P, bins) rows by set size, and how many of them are covered
    total_size : (P,) the sum of all set sizes
    difficulty_hits, difficulty_sizes : (P, strata) covered rows and summed sizes by the true label's rank
    """

    name: str
    method: Method
    grid: tuple[Fraction, ...]
    bins: Bins
    n_classes: int
    thresholds: F64
    first: I64
    bin_counts: I64
    bin_hits: I64
    total_size: I64
    difficulty_hits: I64
    difficulty_sizes: I64

    @property
    def hits(self) -> I64:
        """How many true labels are covered, (P,)."""
        return self.bin_hits.sum(1)

    @property
    def strata(self) -> tuple[I64, I64]:
        """Rows and covered rows by size range (the paper's Table 3), (P, ranges) each."""
        ranges = Bins.ending(SIZE_ENDS, self.n_classes)
        return ranges.group(self.bins, self.bin_counts), ranges.group(self.bins, self.bin_hits)

    @property
    def sscv(self) -> tuple[F64, I64]:
        """SSCV and the row count of the smallest range it looked at, (P,) each."""
        ranges = Bins.ending(SSCV_ENDS, self.n_classes)
        counts, hits = ranges.group(self.bins, self.bin_counts), ranges.group(self.bins, self.bin_hits)
        target = np.array([float(c) for c in self.grid])[:, None]
        gaps = np.abs(np.divide(hits, counts, out=np.full(counts.shape, np.nan), where=counts > 0) - target)
        return np.nanmax(gaps, axis=1), np.where(counts > 0, counts, counts.sum()).min(1)

    @property
    def sat(self) -> F64:
        """SAT, (P,); NaN where every set is empty."""
        non_empty = self.bin_counts.sum(1) - self.bin_counts[:, 0]
        mean = np.divide(self.total_size, non_empty, out=np.full(len(non_empty), np.nan), where=non_empty > 0)
        result: F64 = (1 - self.sscv[0]) / mean
        return result


def thresholds_of(method: Method, grid: Sequence[Fraction]) -> F64:
    """The threshold for each coverage; Base takes the coverage itself."""
    if isinstance(method, Base):
        return np.array([float(c) for c in grid])
    ranks = np.array([conformal_rank(method.n, c) for c in grid])
    return np.append(method.scores, np.inf)[ranks - 1]


def entry_positions(thresholds: F64, scores: F64) -> I64:
    """The first position whose threshold lets a score in; thresholds ascend. P where none does."""
    return np.searchsorted(thresholds, scores, side="left")


def set_sizes(score: Any, logits: NDArray[Any], thresholds: F64) -> I64:
    """The size of each row's set at each threshold, (n, P)."""
    n, positions = len(logits), len(thresholds)
    finite = thresholds[thresholds < np.inf]
    largest = float(finite[-1]) if finite.size else -np.inf
    offsets, _, scores = kernels.ragged_sets(score, logits, largest)
    rows = np.repeat(np.arange(n), np.diff(offsets))
    entries = np.bincount(rows * positions + entry_positions(thresholds, scores), minlength=n * positions)
    sizes: I64 = entries.reshape(n, positions).cumsum(1)
    sizes[:, thresholds == np.inf] = logits.shape[1]
    return sizes


def curves(
    name: str,
    method: Method,
    logits: NDArray[Any],
    labels: I64,
    difficulty: I64,
    grid: tuple[Fraction, ...] = GRID,
) -> Curves:
    """One score on the test rows, block by block: nothing larger than a block is kept."""
    n_classes, positions = logits.shape[1], len(grid)
    score = method.score if isinstance(method, Calibration) else method
    thresholds = thresholds_of(method, grid)
    bins, strata = histogram_bins(n_classes), Bins.ending(SIZE_ENDS, n_classes, 1)
    first = entry_positions(thresholds, kernels.label_scores(score, logits, labels))
    bin_of = np.searchsorted(bins.highs, np.arange(n_classes + 1))
    stratum_of = np.searchsorted(strata.highs, difficulty)
    here = np.arange(positions)
    joint = np.zeros(positions * len(bins.highs) * 2, np.int64)
    hard_sizes = np.zeros((len(strata.highs), positions), np.int64)
    for start in range(0, len(labels), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        sizes = set_sizes(score, logits[rows], thresholds)
        covered = first[rows, None] <= here
        keys = ((here * len(bins.highs) + bin_of[sizes]) * 2 + covered).ravel()
        joint += np.bincount(keys, minlength=joint.size)
        np.add.at(hard_sizes, stratum_of[rows], sizes)
    counts = joint.reshape(positions, -1, 2)
    hard_hits = np.bincount(stratum_of * (positions + 1) + first, minlength=len(strata.highs) * (positions + 1))
    return Curves(
        name=name,
        method=method,
        grid=grid,
        bins=bins,
        n_classes=n_classes,
        thresholds=thresholds,
        first=first,
        bin_counts=counts.sum(2),
        bin_hits=counts[:, :, 1],
        total_size=hard_sizes.sum(0),
        difficulty_hits=hard_hits.reshape(len(strata.highs), -1).cumsum(1)[:, :positions].T,
        difficulty_sizes=hard_sizes.T,
    )


def intervals(hits: I64, counts: I64, confidence: float = 0.95) -> tuple[F64, F64]:
    """Clopper-Pearson intervals of many shares at once; NaN where nothing was counted.

    >>> low, high = intervals(np.array([9, 0]), np.array([10, 0]))
    >>> round(float(low[0]), 4), round(float(high[0]), 4), bool(np.isnan(low[1]))
    (0.555, 0.9975, True)
    """
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    some = counts > 0
    inside_low, inside_high = some & (hits > 0), some & (hits < counts)
    low, high = np.where(some, 0.0, np.nan), np.where(some, 1.0, np.nan)
    low[inside_low] = betaincinv(hits[inside_low], (counts - hits + 1)[inside_low], tail)
    high[inside_high] = betaincinv((hits + 1)[inside_high], (counts - hits)[inside_high], 1 - tail)
    return low, high
