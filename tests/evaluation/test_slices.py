"""The worst slice against a search of all windows, and by whether rows that did not find it agree."""

from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from evicp import PredictionSets, worst_slice
from evicp.errors import InputError, InputTypeError
from evicp.evaluation import metrics, slices


def sets_that_cover(covered: np.ndarray, coverage: float = 0.9) -> tuple[PredictionSets, np.ndarray]:
    """Sets of two labels, of which label 0 is true and in the sets where said."""
    mask = np.column_stack([covered, np.ones(len(covered), bool)])
    return PredictionSets.from_mask(mask, coverage=coverage), np.zeros(len(covered), int)


def reference_least_covered(hits: list[int], cuts: list[int], fewest: int) -> Fraction:
    windows = ((i, j) for i in cuts for j in cuts if j - i >= fewest)
    return min(Fraction(sum(hits[i:j]), j - i) for i, j in windows)


@given(hits=st.lists(st.integers(0, 1), min_size=1, max_size=25), data=st.data())
def test_no_window_is_covered_less(hits, data):
    fewest = data.draw(st.integers(1, len(hits)))
    places = data.draw(st.lists(st.integers(0, 9), min_size=len(hits), max_size=len(hits)).map(sorted))
    cuts = [i for i in range(len(hits) + 1) if i in (0, len(hits)) or places[i - 1] != places[i]]
    assert slices._cuts(np.array(places, float)).tolist() == cuts
    expected = reference_least_covered(hits, cuts, fewest)
    first, last, coverage = slices._least_covered(np.array(hits), np.array(cuts), fewest, Fraction(2))
    assert coverage == expected == Fraction(sum(hits[first : last + 1]), last + 1 - first)
    assert last + 1 - first >= fewest
    assert {first, last + 1} <= set(cuts)
    # Only what is less is of interest.
    assert slices._least_covered(np.array(hits), np.array(cuts), fewest, expected) is None


def test_the_bad_corner_is_found():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20000, 3)) * [1.0, 1e6, 1e-6]  # units do not matter
    bad = x[:, 2] > 1e-6
    sets, labels = sets_that_cover(rng.random(20000) < np.where(bad, 0.5, 0.95))
    found = worst_slice(sets, labels, x, share=0.1)
    assert found.coverage == pytest.approx(0.5, abs=0.07)
    assert found.interval[0] < found.coverage < found.interval[1] < 0.9
    assert found.found_coverage < found.coverage  # the lowest of many is too low
    assert np.mean(bad[found.contains(x)]) > 0.8
    assert found.found_count >= 1000
    assert found.count + found.found_count == found.contains(x).sum()
    assert repr(found).startswith(f"WorstSlice(coverage {found.coverage:.4f} in {found.count:,} other rows, 95%")


@pytest.mark.parametrize("unit", [1e308, 1e-310])
def test_features_at_the_ends_of_the_doubles(unit):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(2000, 2)) * unit
    bad = x[:, 0] > 0.5 * unit
    found = worst_slice(*sets_that_cover(~bad), x, directions=50)
    assert found.coverage < 0.2
    assert found.count + found.found_count == found.contains(x).sum()


def test_rows_with_equal_features_are_in_or_out_together():
    """A part of them is no slice: the part that is covered least would be found wherever they are many."""
    rng = np.random.default_rng(0)
    kind = rng.choice(3, p=[0.6, 0.2, 0.2], size=4000)
    sets, labels = sets_that_cover(rng.random(4000) < np.array([0.8, 0.95, 0.75])[kind])
    found = worst_slice(sets, labels, np.eye(3)[kind], share=0.1)
    assert set(kind[found.contains(np.eye(3)[kind])]) == {2}
    assert found.count + found.found_count == np.sum(kind == 2)
    assert found.found_coverage == pytest.approx(0.75, abs=0.04)


def test_a_slice_holds_the_same_rows_of_frames():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3000, 30))
    found = worst_slice(*sets_that_cover(rng.random(3000) < 0.9), x, directions=20)
    assert found.contains(np.asfortranarray(x)).tolist() == found.contains(x).tolist()


def test_where_coverage_is_even_other_rows_say_so():
    """The control of the halves: what was found with one half alone would look broken every time."""
    rng = np.random.default_rng(1)
    within = 0
    for seed in range(40):
        sets, labels = sets_that_cover(rng.random(1000) < 0.9)
        found = worst_slice(sets, labels, rng.normal(size=(1000, 4)), directions=50, seed=seed)
        assert metrics.clopper_pearson(round(found.found_coverage * found.found_count), found.found_count)[1] < 0.9
        within += found.interval[0] <= 0.9 <= found.interval[1]
    assert within >= 35  # of 40, where 38 are expected


def test_a_slice_that_holds_no_other_row():
    x, covered = np.zeros(40), np.ones(40, bool)
    half = np.random.default_rng(0).permutation(40)[:20]
    x[half], covered[half] = 1.0, False
    found = worst_slice(*sets_that_cover(covered), x, share=0.6)
    assert (found.coverage, found.interval, found.count, found.found_coverage) == (None, (0.0, 1.0), 0, 0.0)
    assert repr(found).startswith("WorstSlice(coverage no other row, ")


def test_the_same_seed_finds_the_same_slice():
    rng = np.random.default_rng(0)
    sets, labels = sets_that_cover(rng.random(500) < 0.9)
    x = rng.normal(size=(500, 3))
    first, again, other = (worst_slice(sets, labels, x, directions=20, seed=seed) for seed in (5, 5, 6))
    assert (first.low, first.high, first.coverage) == (again.low, again.high, again.coverage) != other.coverage
    assert first.low != other.low


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"share": 0.0}, InputError, "share must be strictly between 0 and 1"),
        ({"share": 0.1}, InputError, "a share of 0.1 of 20 is 2. Give more rows, or a larger share"),
        ({"share": Fraction(1, 10)}, InputError, "a share of 0.1 of 20 is 2"),
        ({"directions": 0}, InputError, "directions must be"),
        ({"features": np.zeros((39, 2))}, InputError, r"features must have shape \(40, features\); got \(39, 2\)"),
        ({"features": np.full((40, 2), np.inf)}, InputError, "features must be finite"),
        ({"sets": [[0]] * 40}, InputTypeError, "sets must be PredictionSets"),
        ({"seed": -1}, InputError, "seed"),
    ],
)
def test_what_cannot_be_searched(change, error, message):
    sets, labels = sets_that_cover(np.ones(40, bool))
    given_ = {"sets": sets, "labels": labels, "features": np.arange(80.0).reshape(40, 2), "share": 0.6} | change
    with pytest.raises(error, match=message):
        worst_slice(**given_)


def test_a_slice_of_a_frame_knows_its_columns():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(400, 2)), columns=["x", "y"])
    sets = PredictionSets.from_mask(np.column_stack([x["x"] < 1, np.ones(400, bool)]), coverage=0.9)
    found = worst_slice(sets, np.zeros(400, int), x, directions=20)
    np.testing.assert_array_equal(found.contains(x), found.contains(x.to_numpy()))
    with pytest.raises(InputError, match="must have the columns x, y, in this order; got y, x"):
        found.contains(x[["y", "x"]])
