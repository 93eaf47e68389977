"""Everything the report shows, for every coverage on its slider, from one pass over the test rows."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration import new_rows
from evicp.calibration.calibration import Calibration
from evicp.calibration.laws.groups import group_thresholds
from evicp.calibration.laws.overlapping import OverlappingGroups
from evicp.calibration.ranks import ranks_of
from evicp.errors import InputError
from evicp.evaluation.strata import SIZE_ENDS, SSCV_ENDS, Ranges, Violation, trade_off, violation
from evicp.input import validate
from evicp.method.scores import Base, Score
from evicp.types import F64, I64, Coverage

Method = Calibration | Base

#: The coverages of the slider.
GRID = tuple(Fraction(i, 1000) for i in range(500, 1000))

#: Upper ends of the histogram's bins. The ends of the size strata are among them, so strata are sums of bins.
_BIN_ENDS = (*range(11), *(step * 10**power for power in range(1, 7) for step in (2, 5, 10)))

#: Rows treated at once: the sizes of so many rows at every coverage fit into a cache.
_BLOCK_ROWS = 512


def histogram_bins(n_classes: int) -> Ranges:
    """The bins of the histogram of set sizes: single sizes up to ten, then 11-20, 21-50, 51-100, ..."""
    return Ranges.ending(_BIN_ENDS, n_classes)


def position(coverage: Coverage) -> int:
    """Where on the slider a coverage lies."""
    exact = validate.as_coverage(coverage)
    if not GRID[0] <= exact <= GRID[-1]:
        raise InputError(f"a report starts at a coverage from 0.5 to 0.999; got {float(exact):g}.")
    return min(range(len(GRID)), key=lambda i: abs(GRID[i] - exact))


@dataclass(frozen=True, eq=False)
class Curves:
    """One score on m test rows at each of the slider's P coverages.

    Parameters
    ----------
    name : the score with its parameters
    method : as it was given
    limits : the thresholds, raised where another backend calibrated
    first : (m,) the first position on the grid whose set contains the true label; P if none does
    bin_counts, bin_hits : (P, bins) rows by set size, and how many of them are covered
    total_size : (P,) the sum of all set sizes
    difficulty_hits, difficulty_sizes : (P, strata) covered rows and summed sizes by the true label's rank
    """

    name: str
    method: Method
    bins: Ranges
    n_classes: int
    limits: Limits
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
        ranges = Ranges.ending(SIZE_ENDS, self.n_classes)
        return ranges.sums(self.bin_counts, self.bins), ranges.sums(self.bin_hits, self.bins)

    @property
    def sscv(self) -> Violation:
        """SSCV and the row counts next to it, (P,) each."""
        ranges, target = Ranges.ending(SSCV_ENDS, self.n_classes), np.array([float(c) for c in GRID])
        return violation(ranges.sums(self.bin_counts, self.bins), ranges.sums(self.bin_hits, self.bins), target)

    @property
    def sat(self) -> F64:
        """SAT, (P,); NaN where every set is empty."""
        non_empty = self.bin_counts.sum(1) - self.bin_counts[:, 0]
        mean = np.divide(self.total_size, non_empty, out=np.full(len(non_empty), np.nan), where=non_empty > 0)
        result: F64 = trade_off(self.sscv.sscv, mean)
        return result


@dataclass(frozen=True, eq=False)
class Limits:
    """The thresholds of a method at P coverages, one for all labels and rows or one for each of G groups.

    Parameters
    ----------
    thresholds : (P, G), ascending in P
    numbers : the group of each label of each row, broadcastable to (m, K)
    """

    score: Score
    thresholds: F64
    numbers: I64

    def entries(self, scores: F64, groups: I64 | int) -> I64:
        """The first position whose threshold lets a score in; P where none does."""
        if self.thresholds.shape[1] == 1:
            return np.searchsorted(self.thresholds[:, 0], scores, side="left")
        of_score = np.broadcast_to(groups, scores.shape).ravel()
        order = np.argsort(of_score, kind="stable")  # group after group, so that each is one slice
        present, starts = np.unique(of_score[order], return_index=True)
        sorted_scores, result = scores.ravel()[order], np.empty(scores.size, np.int64)
        for group, start, stop in zip(present, starts, [*starts[1:], scores.size], strict=True):
            positions = np.searchsorted(self.thresholds[:, group], sorted_scores[start:stop], side="left")
            result[order[start:stop]] = positions
        return result.reshape(scores.shape)

    def of_labels(self, scores: F64, rows: Any, labels: I64) -> I64:
        """The entry positions of given labels, (n,) or (n, L), of given rows."""
        own = self.numbers[rows] if len(self.numbers) > 1 else self.numbers
        wide = labels if labels.ndim == 2 else labels[:, None]
        groups = np.broadcast_to(own, (len(wide), max(own.shape[1], 1)))
        picked = np.take_along_axis(groups, wide if groups.shape[1] > 1 else np.zeros_like(wide), 1)
        return self.entries(scores, picked.reshape(labels.shape))

    def sizes(self, logits: NDArray[Any], rows: Any) -> I64:
        """The size of each row's set at each coverage, (n, P); `rows` are the numbers of these logits' rows."""
        n, positions = len(logits), len(self.thresholds)
        finite = self.thresholds[self.thresholds < np.inf]
        one = self.thresholds.shape[1] == 1
        largest = np.inf if not one and finite.size < self.thresholds.size else finite.max(initial=-np.inf)
        offsets, labels, scores = kernels.ragged_sets(self.score, logits, float(largest))
        row = np.repeat(np.arange(n), np.diff(offsets))
        own = self.numbers[rows] if len(self.numbers) > 1 else self.numbers
        groups = own[row if len(own) > 1 else 0, labels if own.shape[1] > 1 else 0]
        keys = row * (positions + 1) + self.entries(scores, groups)
        entries = np.bincount(keys, minlength=n * (positions + 1)).reshape(n, positions + 1)
        sizes: I64 = entries[:, :positions].cumsum(1)
        if one:
            sizes[:, self.thresholds[:, 0] == np.inf] = logits.shape[1]
        return sizes


def comparable(method: Method, logits: NDArray[Any]) -> tuple[Method, NDArray[Any]]:
    """A method, and logits, such that scores and thresholds can be compared: see `calibration.new_rows`."""
    return (method, logits) if isinstance(method, Base) else new_rows.comparable(method, logits, logits)


def limits_of(method: Method, logits: NDArray[Any], groups: Any) -> Limits:
    """The thresholds of a method at each coverage of the slider; Base takes the coverage itself."""
    everyone = np.zeros((1, 1), np.int64)
    if isinstance(method, Base):
        return Limits(method, np.array([[float(c)] for c in GRID]), everyone)
    if method.weights is not None:
        raise InputError("a report cannot show a weighted calibration: its thresholds depend on the new rows' weights.")
    if method.guarantee == OverlappingGroups.guarantee:
        raise InputError(
            "a report with a slider cannot show overlapping groups, whose thresholds are fitted for each coverage. "
            "Evaluate at one: evicp evaluate CALIBRATION ... --groups FILE -o page.html, or evaluate(...).to_html()."
        )
    law, counts = method.law, method.law.group_counts(method.n)
    given = groups if "groups" in law.needs else None  # the other calibrations of a report do without
    numbers = law.of_rows(method.score, logits, given, None)
    thresholds = np.array([group_thresholds(method.scores, counts, ranks_of(counts, coverage)) for coverage in GRID])
    return Limits(method.score, thresholds, numbers)


def curves_of(
    name: str, method: Method, logits: NDArray[Any], labels: I64, difficulty: I64, groups: Any = None
) -> Curves:
    """One score on the test rows, block by block: nothing larger than a block is kept."""
    scoring, logits = comparable(method, logits)
    n_classes, positions = logits.shape[1], len(GRID)
    limits = limits_of(scoring, logits, groups)
    bins, strata = histogram_bins(n_classes), Ranges.ending(SIZE_ENDS, n_classes, 1)
    first = limits.of_labels(kernels.label_scores(limits.score, logits, labels), slice(None), labels)
    bin_of = bins.find(np.arange(n_classes + 1))
    stratum_of = strata.find(difficulty)
    here = np.arange(positions)
    joint = np.zeros(positions * len(bins.highs) * 2, np.int64)
    hard_sizes = np.zeros((len(strata.highs), positions), np.int64)
    for start in range(0, len(labels), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        sizes = limits.sizes(logits[rows], rows)
        covered = first[rows, None] <= here
        keys = ((here * len(bins.highs) + bin_of[sizes]) * 2 + covered).ravel()
        joint += np.bincount(keys, minlength=joint.size)
        np.add.at(hard_sizes, stratum_of[rows], sizes)
    counts = joint.reshape(positions, -1, 2)
    hard_hits = np.bincount(stratum_of * (positions + 1) + first, minlength=len(strata.highs) * (positions + 1))
    return Curves(
        name=name,
        method=method,
        bins=bins,
        n_classes=n_classes,
        limits=limits,
        first=first,
        bin_counts=counts.sum(2),
        bin_hits=counts[:, :, 1],
        total_size=hard_sizes.sum(0),
        difficulty_hits=hard_hits.reshape(len(strata.highs), -1).cumsum(1)[:, :positions].T,
        difficulty_sizes=hard_sizes.T,
    )
