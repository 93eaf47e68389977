"""All that an evaluation needs to know of its rows, in counts that add up over batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError
from evicp.evaluation.strata import SSCV_ENDS, Ranges, Stratum, trade_off, violation
from evicp.input import validate
from evicp.types import F64, I64, Bools

#: The quantiles of set size that an evaluation reports beside the median.
QUANTILES = (0.05, 0.25, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class _Shares:
    """Coverage, rows and mean size of each class or group; NaN where there are no rows."""

    coverage: F64
    counts: I64
    mean_size: F64
    target: Fraction

    @property
    def hits(self) -> I64:
        """Covered rows of each."""
        return np.rint(np.nan_to_num(self.coverage) * self.counts).astype(np.int64)

    @property
    def mean_gap(self) -> float:
        """The mean distance from the target over those with rows."""
        return float(np.nanmean(np.abs(self.coverage - float(self.target))))

    @property
    def worst(self) -> float:
        """The lowest coverage."""
        return float(self.coverage[self._least])

    @property
    def _least(self) -> int:
        return int(np.nanargmin(self.coverage))

    def _to_dict(self, **names: Any) -> dict[str, Any]:
        def plain(values: F64) -> list[float | None]:
            return [None if np.isnan(value) else value for value in values.tolist()]

        figures = {"coverage": plain(self.coverage), "counts": self.counts.tolist(), "mean_size": plain(self.mean_size)}
        return {"mean_gap": self.mean_gap, "worst": self.worst, **names, **figures}


@dataclass(frozen=True, eq=False)
class ClassCoverage(_Shares):
    """Coverage of each class, and the mean size of its rows' sets; NaN for a class without rows.

    Attributes
    ----------
    coverage : (K,) the share of each class's rows whose set holds it
    counts : (K,) rows of each class
    mean_size : (K,) labels per set of these rows
    target : the target coverage, exactly
    names : of the classes, if known
    """

    names: tuple[str, ...] | None = None

    @property
    def worst_class(self) -> int:
        """The class with the lowest coverage."""
        return self._least

    def label(self, number: int) -> str:
        """A class as text, with its name if known: "class 32", "32 tailed frog"."""
        return f"class {number}" if self.names is None else f"{number} {self.names[number]}"


@dataclass(frozen=True, eq=False)
class GroupCoverage(_Shares):
    """Coverage and size in each group of rows.

    Attributes
    ----------
    coverage : (G,) the share of each group's rows whose set contains the true label
    counts : (G,) rows of each group
    mean_size : (G,) labels per set of these rows
    target : the target coverage, exactly
    names : of the G groups, sorted
    """

    names: tuple[str, ...]

    @property
    def worst_group(self) -> str:
        """The group with the lowest coverage."""
        return self.names[self._least]


@dataclass(frozen=True, eq=False)
class Counts:
    """Rows with each value 0, 1, ...: how many, how many covered, how many labels in their sets."""

    rows: I64
    hits: I64
    labels: I64

    @classmethod
    def of(cls, values: I64, covered: Bools, sizes: I64, n_values: int) -> Counts:
        """Count rows by a value of each."""
        # Doubles add whole numbers exactly up to 2^53.
        totals = (np.bincount(values, weights, minlength=n_values) for weights in (None, covered, sizes))
        return cls(*(total.astype(np.int64) for total in totals))

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.rows + other.rows, self.hits + other.hits, self.labels + other.labels)

    def strata(self, low: int, ends: Sequence[int], confidence: float) -> tuple[Stratum, ...]:
        """The values 0..K put together into [low, end], (end, next end], ..., (last end, K]."""
        ranges = Ranges.ending(ends, len(self.rows) - 1, low)
        rows, hits, labels = (ranges.sums(total).tolist() for total in (self.rows, self.hits, self.labels))
        counts = zip(ranges.lows, ranges.highs, rows, hits, labels, strict=True)
        return tuple(Stratum(*of_range, confidence) for of_range in counts)

    def sscv(self, target: Fraction, min_count: int) -> tuple[float | None, int | None, int | None]:
        """SSCV of counts by size, the rows of the stratum that decides it and of the smallest; None where of none."""
        ranges, least = Ranges.ending(SSCV_ENDS, len(self.rows) - 1), validate.as_count(min_count, "min_count")
        found = violation(ranges.sums(self.rows), ranges.sums(self.hits), float(target), min_count=least)
        return (float(found.sscv), int(found.rows), int(found.smallest)) if found.smallest else (None, None, None)

    def class_coverage(self, target: Fraction, names: tuple[str, ...] | None) -> ClassCoverage:
        """Coverage of each class, of counts by class."""
        share, size = (
            np.divide(total, self.rows, out=np.full(len(self.rows), np.nan), where=self.rows > 0)
            for total in (self.hits, self.labels)
        )
        return ClassCoverage(share, self.rows, size, target, names)


class Members(NamedTuple):
    """Rows, (m,), and the name of a group that each is in; a row may be in several groups, or none."""

    rows: I64
    names: NDArray[Any]


def count_groups(members: Members, covered: Bools, sizes: I64) -> dict[str, I64]:
    """Rows, covered rows and labels in sets, (3,), of each group."""
    known, of_row = np.unique(members.names, return_inverse=True)
    counts = Counts.of(of_row, covered[members.rows], sizes[members.rows], len(known))
    return dict(zip(known.tolist(), np.stack([counts.rows, counts.hits, counts.labels], axis=1), strict=True))


def group_coverage(groups: dict[str, I64], target: Fraction) -> GroupCoverage:
    """Coverage and size in each group, of `count_groups`."""
    names = sorted(groups)
    counts, hits, labels = np.stack([groups[name] for name in names], axis=1)
    return GroupCoverage(hits / counts, counts, labels / counts, target, tuple(names))


@dataclass(frozen=True, eq=False)
class Tally:
    """Evaluated rows by set size, by class, by difficulty (where that is known) and by group (where there are any)."""

    by_size: Counts
    by_class: Counts
    by_difficulty: Counts | None
    by_group: dict[str, I64] | None

    @cached_property
    def n(self) -> int:
        """How many rows were counted."""
        return int(self.by_size.rows.sum())

    @classmethod
    def of(
        cls, sizes: I64, covered: Bools, labels: I64, ranks: I64 | None, groups: Members | None, n_classes: int
    ) -> Tally:
        """Count rows with these set sizes, true labels, ranks of the true labels and groups."""
        return cls(
            Counts.of(sizes, covered, sizes, n_classes + 1),
            Counts.of(labels, covered, sizes, n_classes),
            None if ranks is None else Counts.of(ranks, covered, sizes, n_classes + 1),
            None if groups is None else count_groups(groups, covered, sizes),
        )

    def __add__(self, other: Tally) -> Tally:
        given = [(tally.by_difficulty is None, tally.by_group is None) for tally in (self, other)]
        if given[0] != given[1]:
            raise InputError("logits (or difficulty) and groups must be given with every batch or with none.")
        by_difficulty, by_group = self.by_difficulty, self.by_group
        if by_difficulty is not None and other.by_difficulty is not None:
            by_difficulty = by_difficulty + other.by_difficulty
        if by_group is not None and other.by_group is not None:
            by_group = dict(by_group)
            for name, counts in other.by_group.items():
                by_group[name] = by_group[name] + counts if name in by_group else counts
        return Tally(self.by_size + other.by_size, self.by_class + other.by_class, by_difficulty, by_group)


def median(counts: I64) -> float:
    """The middle size, or the mean of the two in the middle."""
    n = int(counts.sum())
    low, high = np.searchsorted(np.cumsum(counts), [(n + 1) // 2, n // 2 + 1])
    return float((low + high) / 2)


def quantiles(counts: I64, shares: Sequence[float]) -> dict[str, float]:
    """The smallest sizes that at least these shares of the rows do not exceed, by exact ranks."""
    at_most = np.cumsum(counts)
    ranks = [ceil(validate.as_coverage(share) * int(at_most[-1])) for share in shares]
    return {
        f"{100 * share:g}%": float(size) for share, size in zip(shares, np.searchsorted(at_most, ranks), strict=True)
    }


def sat_of(sscv: float | None, mean_non_empty: float | None) -> float | None:
    """SAT; None where SSCV is, or every set is empty."""
    return None if sscv is None or mean_non_empty is None else float(trade_off(sscv, mean_non_empty))
