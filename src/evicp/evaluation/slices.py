"""The slice of the inputs with the lowest coverage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from evicp.calibration.laws.density import along
from evicp.errors import InputError
from evicp.evaluation.metrics import as_sets, clopper_pearson
from evicp.input import validate
from evicp.input.frames import as_features, columns_of, same_rows
from evicp.sets import PredictionSets
from evicp.types import F64, I64, Bools

__all__ = ["WorstSlice", "worst_slice"]

#: Fewer rows than this say little about coverage.
_FEWEST = 10


@dataclass(frozen=True, eq=False, repr=False)
class WorstSlice:
    """The rows with low <= features @ direction <= high, and how often their sets contain the true label.

    Parameters
    ----------
    coverage : among rows not used in the search; None if the slice contains none of them
    interval : of that coverage, with 95 % confidence
    count : the number of those rows in the slice
    found_coverage : among the rows of the search; biased downwards
    found_count : the number of rows of the search in the slice
    target : the target coverage
    direction : (d,) a weight for each feature
    low, high : the ends
    columns : the names of the features, if given as a frame
    """

    coverage: float | None
    interval: tuple[float, float]
    count: int
    found_coverage: float
    found_count: int
    target: float
    direction: F64
    low: float
    high: float
    columns: tuple[str, ...] | None = None

    def contains(self, features: ArrayLike) -> Bools:
        """Whether each row lies in the slice, (n,)."""
        array = as_features(features, n_features=len(self.direction), columns=self.columns)
        places = along(array, self.direction)
        return (self.low <= places) & (places <= self.high)

    def __repr__(self) -> str:
        held_out = "no other row" if self.coverage is None else f"{self.coverage:.4f} in {self.count:,} other rows"
        return (
            f"WorstSlice(coverage {held_out}, 95% interval [{self.interval[0]:.4f}, {self.interval[1]:.4f}]; "
            f"{self.found_coverage:.4f} in the {self.found_count:,} it was found with; target {self.target:g})"
        )


def worst_slice(
    sets: PredictionSets,
    labels: ArrayLike,
    features: ArrayLike,
    *,
    share: float = 0.1,
    directions: int = 1000,
    seed: int = 0,
) -> WorstSlice:
    """Find the slice of the inputs with the lowest coverage, among slices with at least a share of the rows.

    A slice is an interval along a direction (Cauchois et al., 2021). Its coverage is that of rows outside the search.

    Parameters
    ----------
    sets, labels : as for `evaluate`
    features : (n, d) inputs, embeddings or logits of the rows. Units do not matter.
    share : the smallest share of rows in a slice
    directions, seed : the number of random directions to search, and the seed of the directions and the halves

    >>> import evicp
    >>> rng = np.random.default_rng(0)
    >>> x, labels = rng.normal(size=(8000, 2)), rng.integers(0, 3, 8000)
    >>> logits = 4 * np.eye(3)[labels] + rng.normal(size=(8000, 3)) * np.where(x[:, :1] > 1, 4, 1)  # x_0 > 1: hard
    >>> sets = evicp.calibrate(logits[:4000], labels[:4000], "lac").predict(logits[4000:], coverage=0.95)
    >>> round(worst_slice(sets, labels[4000:], x[4000:]).coverage, 2)  # 0.95 of all rows
    0.72
    """
    same_rows(labels=labels, features=features)
    covered, x = as_sets(sets).contains(labels), as_features(features, n=len(sets))
    rng = np.random.default_rng(validate.as_seed(seed))
    searched, held_out = np.array_split(rng.permutation(len(x)), 2)
    fewest = _fewest(share, len(searched))
    spread = x.max(0) / 2 - x.min(0) / 2  # half the range: all of it may be beyond the largest double
    scale = np.where(spread > 1e-300, spread, 1.0)
    tried = (rng.normal(size=x.shape[1]) / scale for _ in range(validate.as_count(directions, "directions")))
    found = _search(x[searched], covered[searched].astype(np.int64), tried, fewest)
    places = along(x[held_out], found.direction)
    hits = covered[held_out[(found.low <= places) & (places <= found.high)]]
    return _described(found, hits, float(sets.coverage), columns_of(features))


def _fewest(share: Any, n: int) -> int:
    """How many of the n rows that are searched a slice must hold."""
    share = validate.as_probability(share, "share")
    fewest = ceil(share * n)
    if fewest < _FEWEST:
        raise InputError(
            f"a slice must contain at least {_FEWEST} of the rows used for the search, which are half of all; "
            f"a share of {share:g} of {n} is {fewest}. Give more rows, or a larger share."
        )
    return fewest


class _Slice(NamedTuple):
    """Rows between two ends along a direction: how many they are, and how often covered."""

    direction: F64
    low: float
    high: float
    rows: int
    coverage: Fraction


def _described(found: _Slice, hits: Bools, target: float, columns: tuple[str, ...] | None) -> WorstSlice:
    """A slice with its coverage among the other rows, given which of those in it are covered."""
    return WorstSlice(
        coverage=float(hits.mean()) if hits.size else None,
        interval=clopper_pearson(int(hits.sum()), hits.size) if hits.size else (0.0, 1.0),
        count=hits.size,
        found_coverage=float(found.coverage),
        found_count=found.rows,
        target=target,
        direction=found.direction,
        low=found.low,
        high=found.high,
        columns=columns,
    )


def _search(x: F64, hits: I64, directions: Iterable[F64], fewest: int) -> _Slice:
    """The slice with the least coverage along any of the directions."""
    worst = _Slice(np.zeros(x.shape[1]), 0.0, 0.0, 0, Fraction(2))
    for direction in directions:
        places = along(x, direction)
        order = np.argsort(places)
        window = _least_covered(hits[order], _cuts(places[order]), fewest, worst.coverage)
        if window is not None:
            first, last, coverage = window
            low, high = float(places[order[first]]), float(places[order[last]])
            worst = _Slice(direction, low, high, last - first + 1, coverage)
    return worst


def _cuts(places: F64) -> I64:
    """Where neighbours in ascending places may begin and end: not between equal ones, which a slice holds together."""
    return np.concatenate([[0], np.flatnonzero(np.diff(places)) + 1, [len(places)]])


def _least_covered(hits: I64, cuts: I64, fewest: int, worst: Fraction) -> tuple[int, int, Fraction] | None:
    """The first, the last and the coverage of the neighbours, `fewest` or more, that are covered less than `worst`.

    Of all such neighbours between two cuts those that are covered least; None if there are none. Neighbours with less
    coverage than p / q are those whose sum of q hit - p is negative. Those with the lowest sum set the coverage to be
    beaten next, until none does (Dinkelbach, 1967); in whole numbers that is exact.
    """
    best = None
    ends = cuts[cuts >= fewest]
    latest = np.searchsorted(cuts, ends - fewest, side="right") - 1  # the last cut that neighbours can start from
    while True:
        sums = np.concatenate([[0], np.cumsum(hits * worst.denominator - worst.numerator)])[cuts]
        gains = sums[-len(ends) :] - np.maximum.accumulate(sums)[latest]
        end = int(np.argmin(gains))
        if gains[end] >= 0:
            return best
        first, last = int(cuts[np.argmax(sums[: latest[end] + 1])]), int(ends[end]) - 1
        worst = Fraction(int(hits[first : last + 1].sum()), last + 1 - first)
        best = first, last, worst
