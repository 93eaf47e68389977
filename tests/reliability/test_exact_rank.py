"""The threshold's rank, k = ceil((n + 1) coverage), against integers: coverages on the 0.001 grid, n <= 2000."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from evicp import Calibration, conformal_rank, pac_rank
from evicp.input import validate
from evicp.input.validate import as_coverage
from evicp.method.scores import LAC
from oracles import reference_rank

pytestmark = pytest.mark.reliability

GRID = range(1, 1000)
LARGEST = 2000


def exact_ranks() -> np.ndarray:
    """k for n = 1..2000 (rows) and coverage = i/1000, i = 1..999 (columns), in integers."""
    n, i = np.arange(1, LARGEST + 1)[:, None], np.array(GRID)[None, :]
    return -((-(n + 1) * i) // 1000)


def float_ranks(coverages: list[float]) -> np.ndarray:
    """The control: the formula in doubles."""
    n = np.arange(1, LARGEST + 1)[:, None]
    return np.ceil((n + 1) * np.array(coverages)[None, :]).astype(np.int64)


def ways_to_say(i: int) -> list:
    """The coverage i/1000 as users write it."""
    return [
        i / 1000,
        1 - (1000 - i) / 1000,  # 1 - delta
        np.float64(i / 1000),
        np.float32(i / 1000),
        Fraction(i, 1000),
        Decimal(i) / 1000,
    ]


def test_every_way_to_say_a_coverage_means_the_same_fraction():
    for i in GRID:
        for coverage in ways_to_say(i):
            assert as_coverage(coverage) == Fraction(i, 1000), coverage


def test_ranks_are_exact_on_the_whole_grid(long_run, figure):
    """With the test above this is the whole claim; the long run asks with doubles, one by one, all the same."""
    wanted = exact_ranks()
    mismatches = 0
    for column, i in enumerate(GRID):
        ways = ways_to_say(i)[:2] if long_run else [Fraction(i, 1000)]
        for coverage in ways:
            got = [conformal_rank(n, coverage) for n in range(1, LARGEST + 1)]
            mismatches += int(np.sum(np.array(got) != wanted[:, column]))
    figure("mismatches", mismatches)
    assert mismatches == 0


@pytest.mark.parametrize(("way", "at_least"), [(0, 400), (1, 2000)], ids=["coverage", "1 - delta"])
def test_ranks_are_exact_wherever_doubles_are_wrong(way, at_least, figure):
    """Also the negative control: the formula in doubles must be found wrong, as 1 - delta in more than 2,000 pairs."""
    wanted = exact_ranks()
    pairs = np.argwhere(float_ranks([ways_to_say(i)[way] for i in GRID]) != wanted).tolist()
    assert len(pairs) > at_least
    for row, column in pairs:
        assert conformal_rank(row + 1, ways_to_say(GRID[column])[way]) == wanted[row, column]
    if way == 1:
        figure("mismatches of the control", len(pairs))


@pytest.mark.parametrize("coverage", [0.9, 1 / 3, 0.123456789, 1e-9, 1 - 1e-9, Fraction(1, 7), Decimal("0.99999")])
def test_ranks_agree_with_counting(coverage):
    exact = as_coverage(coverage)
    for n in (1, 2, 3, 9, 10, 99, 1000, 12345, 10**6, 10**12):
        assert conformal_rank(n, coverage) == reference_rank(n, exact)


def test_a_third_is_a_third():
    """A double near 1/3 means 1/3: (n + 1) / 3 is whole for n = 2, and its ceiling must not be one more."""
    assert conformal_rank(2, 1 / 3) == 1
    assert conformal_rank(2, 2 / 3) == 2


def test_the_threshold_is_the_kth_smallest_score():
    for n in (1, 2, 9, 10, 19, 100, 999):
        calibration = Calibration(LAC(), np.arange(1.0, n + 1), 2)
        for i in GRID:
            k = reference_rank(n, Fraction(i, 1000))
            if k <= n:
                assert calibration.threshold(i / 1000) == k


def test_the_usual_quantile_is_off_by_one():
    """np.quantile(scores, k/n, method="higher") is rank k + 1 at every n with k < n: the control of the law's test."""
    for n in range(2, 300):
        k = conformal_rank(n, 0.9)
        if k < n:
            assert np.quantile(np.arange(1.0, n + 1), k / n, method="higher") == k + 1


@pytest.mark.parametrize("first", [0.9, Fraction(0.9)], ids=["float", "fraction"])
def test_what_a_number_means_does_not_depend_on_what_was_asked_before(first):
    """The double 0.9 stands for 9/10; the fraction that equals the double is another number, and is above it."""
    validate._remembered_coverage.cache_clear()
    conformal_rank(9, first)
    assert [conformal_rank(9, 0.9), conformal_rank(9, Fraction(0.9)), conformal_rank(99, 0.9)] == [9, 10, 90]
    half = Fraction(1, 2) - Fraction(1, 10**30)
    assert pac_rank(1, half, 0.5) == pac_rank(1, float(half), Fraction(1, 2)) == 1
