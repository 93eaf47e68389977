"""Ties that rounding broke: forests' votes, rows in another precision, and the mass of all labels."""

from __future__ import annotations

import numpy as np
import pytest

from evicp import APS, LAC, RAPS, calibrate, kernels
from evicp.errors import EvicpWarning


def votes(n: int, seed: int, trees: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Votes of a forest on six classes, and true labels."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(6, 0.4), n)
    labels = (shares.cumsum(1) > rng.random((n, 1))).argmax(1)
    return rng.multinomial(trees, shares), labels


def logarithms(counts: np.ndarray, trees: int = 10) -> np.ndarray:
    return np.log(np.maximum(counts / trees, 1e-300))


@pytest.mark.parametrize("trees", [10, 15, 30])
def test_sets_of_a_forest_are_those_of_exact_vote_counting(cpu_backend, trees):
    (known, y), (counts, _) = votes(1000, 0, trees), votes(1000, 1, trees)
    k = int(np.ceil(1001 * 0.9))
    least = np.sort(-known[np.arange(1000), y])[k - 1]
    for made, used in [(np.float64, np.float64), (np.float64, np.float32), (np.float32, np.float64)]:
        calibration = calibrate(logarithms(known, trees).astype(made), y, LAC())
        sets = calibration.predict(logarithms(counts, trees).astype(used), 0.9)
        np.testing.assert_array_equal(sets.mask(), -counts <= least)


@pytest.mark.parametrize("score", [LAC(), APS(randomized=False), RAPS(randomized=False)], ids=lambda score: score.name)
@pytest.mark.parametrize("precision", [np.float32, np.float16])
def test_rows_sent_in_a_coarser_precision_are_covered(cpu_backend, score, precision):
    """ln p calibrated in float64, rows from a JSON service in float32: LAC covered 0.76 for 0.9."""
    (known, y), (counts, truth) = votes(3000, 0), votes(3000, 1)
    calibration = calibrate(logarithms(known), y, score)
    usual, sent = (calibration.predict(logarithms(counts).astype(dtype), 0.9) for dtype in (np.float64, precision))
    assert sent.contains(truth).mean() >= usual.contains(truth).mean() > 0.88


def test_equal_probabilities_have_equal_scores_in_every_row(cpu_backend):
    counts, _ = votes(2000, 0, 30)
    for dtype in (np.float64, np.float32):
        scores = LAC().scores(logarithms(counts, 30).astype(dtype))
        assert len(np.unique(scores)) == len(np.unique(counts))


@pytest.mark.parametrize("n_classes", [3, 5, 10, 100])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("score", [APS(randomized=False), RAPS(randomized=False)], ids=lambda score: score.name)
def test_the_least_plausible_label_has_a_mass_of_exactly_one(cpu_backend, n_classes, dtype, score):
    rng = np.random.default_rng(n_classes)
    z = (rng.normal(size=(500, n_classes)) * 4).astype(dtype)
    last = score.scores(z).max(1)
    if dtype is not np.float16:  # in which the last two labels may tie
        assert len(np.unique(last)) == 1
    if score.name == "aps":
        assert last.max() == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("score", [APS(randomized=False), RAPS(randomized=False)], ids=lambda score: score.name)
@pytest.mark.filterwarnings(f"ignore::{EvicpWarning.__module__}.{EvicpWarning.__name__}")
def test_sets_near_coverage_one_do_not_depend_on_the_order_of_classes_or_the_backend(score, dtype):
    """With ten classes and coverage 0.99, 61 % of the rows differed between backends."""
    rng, k = np.random.default_rng(10), 10
    y = rng.integers(0, k, 4000)
    z = (rng.normal(size=(4000, k)) * 2 + 2 * np.eye(k)[y]).astype(dtype)
    order = np.roll(np.arange(k), 1)
    for coverage in (0.9, 0.97, 0.99):
        masks = []
        for backend in ("auto", "numpy"):
            with kernels.backend(backend):
                masks.append(calibrate(z[:2000], y[:2000], score).predict(z[2000:], coverage).mask())
                other = calibrate(z[:2000, order], np.argsort(order)[y[:2000]], score)
                masks.append(other.predict(z[2000:, order], coverage).mask()[:, np.argsort(order)])
        for mask in masks[1:]:
            np.testing.assert_array_equal(mask, masks[0])
