"""Defects measured in released versions of other packages, one test each: none of them is here.

Each test says what it prevents. Where a defect shows as lost coverage, the figure is the coverage that evicp has where
the other package lost it, next to what was measured there.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import evicp
from evicp import APS, LAC, Calibration, calibrate
from evicp.errors import CoverageError, LabelsError, LogitsError, SmallCalibrationWarning

pytestmark = pytest.mark.reliability

NAMES = ("ecp", "lac", "aps", "raps", "saps", "topk", "margin")


def draw(
    rng: np.random.Generator, n: int, n_classes: int = 10, sharpness: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, n_classes, n)
    logits = rng.normal(size=(n, n_classes)) + 2.0 * np.eye(n_classes)[labels]
    return (sharpness * logits).astype(np.float32), labels


def mean_coverage(
    n: int, score="lac", coverage: float = 0.9, sharpness: float = 1.0, repeats: int = 400, batch: int = 200
) -> tuple[float, float, float]:
    """Mean coverage over calibrations, its standard error, and the mean size."""
    rng = np.random.default_rng(n)
    covered, sizes = [], []
    for _ in range(repeats):
        z, y = draw(rng, n + 200, sharpness=sharpness)
        calibration = calibrate(z[:n], y[:n], score)
        parts = [calibration.predict(z[i : i + batch], coverage) for i in range(n, n + 200, batch)]
        covered.append(np.concatenate([p.contains(y[n + i * batch :][: len(p)]) for i, p in enumerate(parts)]).mean())
        sizes.append(np.concatenate([p.sizes for p in parts]).mean())
    return float(np.mean(covered)), float(np.std(covered) / repeats**0.5), float(np.mean(sizes))


@pytest.mark.parametrize("score", NAMES)
def test_nan_logits_do_not_pass_silently(score):
    """Elsewhere: the threshold is NaN and every set is empty."""
    z, y = draw(np.random.default_rng(0), 50)
    calibration = calibrate(z, y, score)
    z[17, 3] = np.nan
    with pytest.raises(LogitsError, match="row 17, class 3"):
        calibrate(z, y, score)
    with pytest.raises(LogitsError, match="row 17, class 3"):
        calibration.predict(z, 0.9)
    with pytest.raises(LogitsError, match="row 17, class 3"):
        calibration.p_values(z)


def test_label_minus_one_does_not_count_from_the_end():
    """Elsewhere: an unlabelled row (-1) is calibrated as the last class."""
    z, y = draw(np.random.default_rng(0), 50)
    sets = calibrate(z, y).predict(z, 0.9)
    y[5] = -1
    for ask in (lambda: calibrate(z, y), lambda: sets.contains(y), lambda: evicp.evaluate(sets, y)):
        with pytest.raises(LabelsError, match="got -1 at row 5"):
            ask()


@pytest.mark.parametrize("coverage", [-0.1, 0.0, 1.0, 1.5, 90, float("nan")])
def test_a_coverage_outside_0_and_1_is_refused(coverage):
    """Elsewhere: full or empty sets without a word."""
    z, y = draw(np.random.default_rng(0), 50)
    calibration = calibrate(z, y)
    for ask in (calibration.threshold, calibration.certificate, lambda c: calibration.predict(z, c)):
        with pytest.raises(CoverageError):
            ask(coverage)


def test_the_quantile_has_its_n_plus_1(figure):
    """Elsewhere: coverage 0.86 at n = 20, target 0.9."""
    mean, error, _ = mean_coverage(20)
    figure("coverage at n = 20, target 0.9 (0.86 elsewhere)", f"{mean:.3f}")
    assert mean >= 0.9 - 4 * error
    assert mean <= 19 / 21 + 4 * error  # the law's own mean


def test_too_few_rows_are_not_clamped_to_the_largest_score():
    """Elsewhere: the largest score stands in; of five rows it covers 5/6, whatever was asked."""
    z, y = draw(np.random.default_rng(1), 105)
    with pytest.warns(SmallCalibrationWarning, match="at least 19 rows"):
        sets = calibrate(z[:5], y[:5]).predict(z[5:], 0.95)
    assert (sets.sizes == 10).all()


def test_randomised_calibration_meets_randomised_prediction(figure):
    """Elsewhere: APS calibrated with random numbers and predicted without covers 0.999 at target 0.9."""
    mean, error, _ = mean_coverage(99, "aps")
    figure("APS at target 0.9 (0.999 elsewhere)", f"{mean:.3f}")
    assert abs(mean - 0.9) <= 4 * error
    z, y = draw(np.random.default_rng(2), 300)
    calibration = calibrate(z, y, "aps")
    own = [calibration.predict(z[i], Fraction(9, 10)).contains(y[i : i + 1])[0] for i in range(300)]
    assert own == (calibration.p_values(z, y) > 0.1).tolist()


def test_a_seed_does_not_restart_with_every_call(figure):
    """Elsewhere: an int seed gives every single-row call the same random number, and serving loses its guarantee."""
    z, _ = draw(np.random.default_rng(3), 500)
    v = [evicp.TopK(randomized=True, seed=7).scores(row[None])[0].min() for row in z]
    figure("smallest number of different random numbers in 500 single rows", len(set(v)))
    assert len(set(v)) > 490
    assert 0.4 < np.mean(v) < 0.6
    one_by_one, _, _ = mean_coverage(99, "aps", repeats=30, batch=1)
    together, _, _ = mean_coverage(99, "aps", repeats=30, batch=200)
    assert one_by_one == together


@pytest.mark.parametrize("score", ["aps", "lac", "ecp", APS(randomized=False)], ids=["aps", "lac", "ecp", "aps plain"])
def test_sharp_logits_are_not_lost_in_an_absolute_tolerance(score, figure):
    """Elsewhere: tolerances of 1e-8 on probabilities, and APS covers 0.757 on very sharp logits."""
    mean, error, _ = mean_coverage(99, score, sharpness=60, repeats=200)
    figure("smallest coverage on very sharp logits (0.757 elsewhere)", round(mean, 3))
    assert mean >= 0.9 - 4 * error


def test_a_set_is_not_clipped_to_the_length_of_its_batch(figure):
    """Elsewhere: 0.81 in batches of two, 0.89 otherwise."""
    small, error, small_size = mean_coverage(99, "aps", 0.95, repeats=100, batch=2)
    large, _, large_size = mean_coverage(99, "aps", 0.95, repeats=100, batch=200)
    figure("coverage in batches of two, target 0.95", f"{small:.3f}")
    assert (small, small_size) == (large, large_size)
    assert small >= 0.95 - 4 * error


@pytest.mark.parametrize("score", NAMES)
def test_a_single_row_is_a_batch_of_one(score):
    """Elsewhere: a single row crashes."""
    z, y = draw(np.random.default_rng(4), 60)
    calibration = calibrate(z, y, score)
    sets = calibration.predict(z, 0.8)
    for i in range(20):
        assert calibration.predict(z[i], 0.8).to_lists() == calibration.predict(z[i : i + 1], 0.8).to_lists()
        assert calibration.predict(z[i], 0.8).to_lists() == sets[i : i + 1].to_lists()


@pytest.mark.filterwarnings("ignore:sets hold .* of 100 labels:evicp.errors.SuspiciousInputWarning")  # the margin's do
@pytest.mark.parametrize("score", [name for name in NAMES if name != "topk"])
def test_half_precision_logits_do_not_give_half_precision_scores(score, figure):
    """Elsewhere: 921 different scores in 2,000 rows; thresholds then fall on ties and cover too much."""
    rng = np.random.default_rng(5)
    z, y = draw(rng, 2000, 100)
    calibration = calibrate(z.astype(np.float16), y, score)
    assert calibration.scores.dtype == np.float64
    different = len(np.unique(calibration.scores))
    figure("smallest number of different scores of 2,000 half-precision rows (921 elsewhere)", different)
    assert different > 1900


@pytest.mark.filterwarnings("ignore:.* are duplicates:evicp.errors.SuspiciousInputWarning")  # on purpose
def test_weights_are_not_sorted_apart_from_their_scores():
    """Elsewhere: the sorted weights are put on the sorted scores, whoever they belonged to."""
    rng = np.random.default_rng(6)
    z, y = draw(rng, 200)
    weights = rng.integers(0, 5, 200)
    weighted = calibrate(z, y, "lac", weights=weights.astype(float)).predict(z[:50], 0.9, weights=np.ones(50))
    repeated = calibrate(np.repeat(z, weights, axis=0), np.repeat(y, weights), "lac").predict(z[:50], 0.9)
    assert weighted.to_lists() == repeated.to_lists()  # a weight of three is the row three times


def test_the_inequality_is_not_reversed(figure):
    """Elsewhere: the labels that do not conform are kept, 9.91 of 10 on average."""
    mean, _, size = mean_coverage(500, "lac", repeats=20)
    figure("mean size of 10 classes (9.91 elsewhere)", f"{size:.2f}")
    assert mean > 0.85
    assert size < 4
    certain = Calibration(LAC(), np.linspace(0.0, 1.0, 99), 3).predict([[9.0, 0.0, 0.0]], 0.9)
    assert certain.to_lists() == [[0]]


def test_a_score_has_one_formula_for_calibration_and_prediction():
    """Elsewhere: deterministic SAPS calibrated with one formula and predicted with another covers nothing."""
    rng = np.random.default_rng(7)
    for score in (
        *(evicp.SCORES[name]() for name in NAMES),
        evicp.SAPS(randomized=False),
        evicp.RAPS(randomized=False),
    ):
        z, y = draw(rng, 120)
        dense = score.scores(z)[np.arange(120), y]
        assert np.array_equal(np.sort(dense), calibrate(z, y, score).scores)


def test_memory_is_not_rows_times_classes_times_levels():
    """Elsewhere: dense results for every level. Here many coverages share one ragged pass, and calibration keeps n."""
    z, y = draw(np.random.default_rng(8), 400, 50)
    calibration = calibrate(z, y)
    assert calibration.scores.nbytes == 8 * 400
    levels = [Fraction(i, 100) for i in range(50, 99)]
    for sets, coverage in zip(calibration.predict(z, levels), levels, strict=True):
        assert len(sets.labels) == sets.sizes.sum()
        assert sets == calibration.predict(z, coverage)
