"""Ranges of sizes, SSCV and intervals from counts, one at a time and many at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from evicp.evaluation.strata import Ranges, intervals, violation


def test_intervals_are_clopper_pearson() -> None:
    rows = np.array([0, 1, 1, 10, 10, 10, 997])
    hits = np.array([0, 0, 1, 0, 7, 10, 900])
    for confidence in (0.95, 0.5):
        low, high = intervals(hits, rows, confidence)
        assert np.isnan([low[0], high[0]]).all()
        for i in range(1, len(rows)):
            exact = binomtest(int(hits[i]), int(rows[i])).proportion_ci(confidence, method="exact")
            assert (low[i], high[i]) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_ranges_are_sums_of_finer_ones_and_of_single_numbers() -> None:
    for n_classes in (2, 3, 5, 8, 10, 11, 100, 101, 1000, 4321):
        fine, coarse = (
            Ranges.ending((*range(11), 20, 50, 100, 200), n_classes),
            Ranges.ending((1, 3, 6, 10, 100), n_classes),
        )
        assert set(coarse.highs) <= set(fine.highs)
        expected = [high - low + 1 for low, high in zip(coarse.lows, coarse.highs, strict=True)]
        assert sum(expected) == n_classes + 1
        single = np.ones(n_classes + 1, np.int64)
        assert coarse.sums(single).tolist() == expected
        assert coarse.sums(fine.sums(single), fine).tolist() == expected
        assert np.bincount(coarse.find(np.arange(n_classes + 1))).tolist() == expected


def test_violation_is_the_largest_distance_of_a_range_that_counts() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 12, (40, 5))
    hits = rng.integers(0, rows + 1)
    targets = rng.random(40)
    for min_count, steady in ((1, 0), (4, 0), (1, 5), (13, 0)):
        gaps, deciding, smallest = violation(rows, hits, targets, min_count=min_count, steady=steady)
        for i in range(len(rows)):
            used = [j for j in range(5) if rows[i, j] >= min_count]
            weighed = [abs(hits[i, j] / rows[i, j] - targets[i]) * rows[i, j] / (rows[i, j] + steady) for j in used]
            assert gaps[i] == pytest.approx(max(weighed), rel=1e-14) if used else np.isnan(gaps[i])
            assert smallest[i] == min((rows[i, j] for j in used), default=0)
            far = [
                rows[i, j] for j, w in zip(used, weighed, strict=True) if w == pytest.approx(max(weighed), rel=1e-14)
            ]
            assert deciding[i] in far if used else deciding[i] == 0
            alone = violation(rows[i], hits[i], targets[i], min_count=min_count, steady=steady)
            np.testing.assert_array_equal(alone, (gaps[i], deciding[i], smallest[i]))
