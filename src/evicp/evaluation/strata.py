"""Ranges of set sizes and the coverage within each: what SSCV and SAT (Section 4.4) are made of.

All of it works on counts, of one evaluation or, along leading axes, of many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from evicp.types import F64, I64

#: Upper ends of the size ranges of the paper's Table 3 and of its difficulty ranges (Table 4), and of its SSCV. The
#: last range ends at K.
SIZE_ENDS = (1, 3, 6, 10, 100)
SSCV_ENDS = (1, 3, 10, 100)


@dataclass(frozen=True)
class Ranges:
    """Ranges of whole numbers, [low, high] each, that follow one another and end at K."""

    highs: tuple[int, ...]
    first: int = 0

    @classmethod
    def ending(cls, ends: Sequence[int], n_classes: int, first: int = 0) -> Ranges:
        """The ranges with these ends, cut at K.

        >>> Ranges.ending((1, 3, 10), 8).labels
        ['0-1', '2-3', '4-8']
        """
        return cls((*(end for end in ends if end < n_classes), n_classes), first)

    @property
    def lows(self) -> tuple[int, ...]:
        """The smallest number of each range."""
        return (self.first, *(high + 1 for high in self.highs[:-1]))

    @property
    def labels(self) -> list[str]:
        """The ranges as text."""
        return list(map(range_text, self.lows, self.highs))

    def find(self, values: Any) -> I64:
        """The number of the range that each value lies in."""
        return np.searchsorted(self.highs, values)

    def sums(self, counts: I64, of: Ranges | None = None) -> I64:
        """Counts of each of the numbers 0..K, or of finer ranges, (..., many), added up over these ranges."""
        return np.add.reduceat(counts, self.lows if of is None else of.find(self.lows), axis=-1)


def range_text(low: int, high: int) -> str:
    """A range as text, "2-3"; one number alone, "2"."""
    return f"{low}" if low == high else f"{low}-{high}"


@dataclass(frozen=True)
class Stratum:
    """Rows whose set size (or difficulty) lies in [low, high]: how many, how often covered, how large.

    Attributes
    ----------
    low : where the range begins
    high : where it ends, inclusive
    count : rows in it
    hits : covered rows, whose set contains the true label
    labels : in the sets of all of them
    confidence : of the interval
    """

    low: int
    high: int
    count: int
    hits: int
    labels: int
    confidence: float

    @property
    def label(self) -> str:
        """The range as text, "2-3"."""
        return range_text(self.low, self.high)

    @property
    def coverage(self) -> float | None:
        """The share of the rows whose set contains the true label; None without rows."""
        return self.hits / self.count if self.count else None

    @cached_property
    def coverage_interval(self) -> tuple[float, float] | None:
        """Its exact (Clopper-Pearson) interval; None without rows."""
        # Computed on first use: the intervals of all strata take longer than their counts.
        low, high = intervals(self.hits, self.count, self.confidence)
        return (float(low), float(high)) if self.count else None

    @property
    def mean_size(self) -> float | None:
        """Labels per set; None without rows."""
        return self.labels / self.count if self.count else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        figures = ("low", "high", "count", "coverage", "coverage_interval", "mean_size")
        return {"range": self.label} | {name: getattr(self, name) for name in figures}


class Violation(NamedTuple):
    """SSCV, the rows of the range that decides it, and of the smallest range looked at; NaN and 0 where there is none.

    The fewer rows decide, the more of SSCV is chance.
    """

    sscv: F64
    rows: I64
    smallest: I64


def violation(rows: Any, hits: Any, target: Any, *, min_count: int = 1, steady: int = 0) -> Violation:
    """SSCV of counts by range of sizes.

    Parameters
    ----------
    rows, hits : (..., ranges) the rows in each range of sizes, and how many of them are covered
    target : the target coverage, of the shape of the result
    min_count : ranges of fewer rows are left out
    steady : a range of so many rows counts half: its distance is weighed by rows / (rows + steady)

    >>> found = violation(np.array([90, 10, 0]), np.array([84, 7, 0]), 0.9)
    >>> round(float(found.sscv), 3), int(found.rows), int(found.smallest)
    (0.2, 10, 10)
    """
    used = rows >= max(1, min_count)
    shares = np.divide(hits, rows, out=np.zeros(np.shape(rows)), where=used)
    weights = np.divide(rows, rows + steady, out=np.zeros(np.shape(rows)), where=used)
    gaps = np.where(used, np.abs(shares - np.asarray(target)[..., None]) * weights, -1.0)
    worst, some = gaps.argmax(-1)[..., None], used.any(-1)
    return Violation(
        np.where(some, gaps.max(-1), np.nan),
        np.where(some, np.take_along_axis(rows, worst, -1)[..., 0], 0),
        np.where(some, np.where(used, rows, np.iinfo(np.int64).max).min(-1), 0),
    )


def trade_off(sscv: Any, mean_non_empty: Any) -> Any:
    """SAT: how adaptive sets are for their size, given the mean size of those that are not empty."""
    return (1 - sscv) / mean_non_empty


def intervals(hits: Any, rows: Any, confidence: float = 0.95) -> tuple[F64, F64]:
    """Clopper-Pearson intervals of shares, hits of rows; NaN where there are no rows.

    >>> low, high = intervals(np.array([9, 0]), np.array([10, 0]))
    >>> round(float(low[0]), 4), round(float(high[0]), 4), bool(np.isnan(low[1]))
    (0.555, 0.9975, True)
    """
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    some, rises, falls = rows > 0, hits > 0, hits < rows  # a Beta law needs two positive numbers
    low = np.where(rises, betaincinv(np.maximum(hits, 1), rows - hits + 1, tail), 0.0)
    high = np.where(falls, betaincinv(hits + 1, np.maximum(rows - hits, 1), 1 - tail), 1.0)
    return np.where(some, low, np.nan), np.where(some, high, np.nan)
