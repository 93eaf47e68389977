"""What results say of themselves is true: verdicts, intervals, plans and figures, not only the sets.

Scores are uniform on [0, 1] here: a threshold t covers exactly the share t of new rows, so that what is true is known.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

import evicp
from evicp import Calibration, Custom, Reliability, calibrate, conformal_rank, plan
from evicp.io import files

pytestmark = pytest.mark.reliability

N, M, COVERAGE = 199, 500, 0.9
IDENTITY = Custom(lambda z: z)


def rows(rng: np.random.Generator, n: int, harder: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose true label, 0, scores uniformly; the other never conforms. `harder`: a share that never does."""
    scores = np.where(rng.random(n) < harder, 8.0, rng.random(n))
    return np.stack([scores, np.full(n, 9.0)], axis=1), np.zeros(n, np.int64)


def experiment(rng: np.random.Generator, harder: float = 0.0) -> tuple[Calibration, evicp.Evaluation]:
    z, y = rows(rng, N)
    new, truth = rows(rng, M, harder)
    calibration = calibrate(z, y, IDENTITY)
    return calibration, evicp.evaluate(calibration.predict(new, COVERAGE), truth)


@pytest.fixture(scope="module")
def exchangeable(long_run: bool) -> list[tuple[Calibration, evicp.Evaluation]]:
    rng = np.random.default_rng(0)
    return [experiment(rng) for _ in range(2000 if long_run else 300)]


def at_most(share: float, count: int) -> float:
    """A bound that chance alone exceeds once in 30,000 times."""
    return share + 4 * (share * (1 - share) / count) ** 0.5


def test_a_certificate_calls_good_coverage_incompatible_no_more_often_than_it_says(exchangeable, figure):
    wrong = [not c.certificate(COVERAGE, e).observed["compatible"] for c, e in exchangeable]
    figure("good coverage called incompatible (at most 0.05)", round(float(np.mean(wrong)), 4))
    assert np.mean(wrong) <= at_most(0.05, len(wrong))
    assert np.mean(wrong) >= 0.02  # nor is it blind


def test_control_a_verdict_that_forgets_the_calibration_is_caught(exchangeable, figure):
    """A binomial test against the target coverage takes the spread between calibrations for a broken promise."""
    low, high = scipy.stats.binom(M, COVERAGE).interval(0.95)
    wrong = [not low <= e.coverage * M <= high for _, e in exchangeable]
    figure("the control's", round(float(np.mean(wrong)), 4))
    assert np.mean(wrong) > at_most(0.05, len(wrong)) + 0.1


def test_a_certificate_notices_a_broken_promise(long_run, figure):
    rng = np.random.default_rng(1)
    found = [experiment(rng, harder=0.2) for _ in range(500 if long_run else 100)]
    noticed = np.mean([not c.certificate(COVERAGE, e).observed["compatible"] for c, e in found])
    figure("a drop of 0.18 noticed", round(float(noticed), 3))
    assert noticed > 0.97


def test_the_interval_of_an_evaluation_holds_the_true_coverage(exchangeable, figure):
    held = [
        e.coverage_interval[0] <= min(c.threshold(COVERAGE), 1.0) <= e.coverage_interval[1] for c, e in exchangeable
    ]
    figure("true coverage within its 95 % interval", round(float(np.mean(held)), 4))
    assert np.mean(held) >= 0.95 - 4 * (0.05 * 0.95 / len(held)) ** 0.5


def test_the_interval_of_a_certificate_holds_the_true_coverage(exchangeable):
    for confidence in (0.5, 0.95):
        low, high = exchangeable[0][0].certificate(COVERAGE, confidence=confidence).coverage_interval
        held = np.mean([low <= c.threshold(COVERAGE) <= high for c, _ in exchangeable])
        assert abs(held - confidence) <= 4 * (confidence * (1 - confidence) / len(exchangeable)) ** 0.5


@pytest.mark.parametrize(
    ("coverage", "tolerance", "confidence"), [(0.9, 0.02, 0.95), (0.8, 0.05, 0.9), (0.95, 0.01, 0.5)]
)
def test_a_plan_is_enough_and_one_row_less_is_not_always(coverage, tolerance, confidence):
    n = plan(coverage, tolerance, confidence)
    rng = np.random.default_rng(n)
    for size in (n, n + 7, 2 * n):
        k = conformal_rank(size, coverage)
        inside = np.abs(rng.beta(k, size + 1 - k, 40_000) - coverage) <= tolerance
        assert inside.mean() >= confidence - 4 * (confidence * (1 - confidence) / 40_000) ** 0.5
    law = Reliability(n - 1, coverage)
    exact = scipy.stats.beta(law.k, law.l)
    assert exact.cdf(coverage + tolerance) - exact.cdf(coverage - tolerance) < confidence


def test_every_figure_of_an_evaluation_can_be_counted_by_hand():
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 30, 600)
    z = rng.normal(size=(600, 30)) + 2 * np.eye(30)[labels]
    sets = calibrate(z[:300], labels[:300], "aps").predict(z[300:], 0.8)
    found = evicp.evaluate(sets, labels[300:], z[300:])
    held = [bool(label in row.tolist()) for row, label in zip(sets, labels[300:], strict=True)]
    sizes = [len(row) for row in sets]
    assert found.coverage == sum(held) / 300
    assert found.mean_size == pytest.approx(sum(sizes) / 300, rel=1e-15)
    gaps = []
    for low, high in ((0, 1), (2, 3), (4, 10), (11, 30)):
        part = [h for h, size in zip(held, sizes, strict=True) if low <= size <= high]
        gaps += [abs(sum(part) / len(part) - 0.8)] if part else []
    assert found.sscv == pytest.approx(max(gaps), rel=1e-12)
    filled = [size for size in sizes if size]
    assert found.sat == pytest.approx((1 - max(gaps)) / (sum(filled) / len(filled)), rel=1e-12)
    assert found.accuracy == np.mean(z[300:].argmax(1) == labels[300:])


def test_a_checksum_speaks_for_everything_a_calibration_is():
    """Two certificates with one checksum are of one calibration: any difference shows."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 100)
    z = rng.normal(size=(100, 4))
    base = calibrate(z, labels, "raps", class_names=list("abcd"))
    scores = base.scores.copy()
    scores[-1] = np.nextafter(scores[-1], np.inf)
    others = [
        replace(base, scores=scores),
        replace(base, score=evicp.RAPS(lam=0.2)),
        replace(base, score=evicp.RAPS(seed=1)),
        replace(base, class_names=tuple("abdc")),
        replace(base, class_names=None),
        calibrate(z[:99], labels[:99], "raps", class_names=list("abcd")),
        calibrate(z, labels, "raps", by="class", class_names=list("abcd")),
        calibrate(z, labels, "raps", class_weights=np.ones(4), class_names=list("abcd")),
    ]
    checksums = {calibration.certificate(0.5).checksum for calibration in (base, *others)}
    assert len(checksums) == len(others) + 1


def test_a_certificate_is_the_same_as_values_and_as_json():
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, 60)
    z = rng.normal(size=(60, 3))
    for calibration in (calibrate(z, labels), calibrate(z, labels, by="class")):
        certificate = calibration.certificate(0.8, evicp.evaluate(calibration.predict(z, 0.8), labels))
        assert json.loads(certificate.to_json()) == certificate.to_dict()


def test_results_say_what_they_are_after_a_round_trip(tmp_path):
    """Coverage, n, score, guarantee and the fact that empty sets were filled are not lost in a file."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 5, 200)
    z = rng.normal(size=(200, 5)) + 2 * np.eye(5)[labels]
    calibration = calibrate(z, labels, "aps", by="class", class_names=list("abcde"))
    calibration.save(tmp_path / "c.safetensors")
    again = evicp.load(tmp_path / "c.safetensors")
    assert again.certificate(0.8, date="d").to_json() == calibration.certificate(0.8, date="d").to_json()
    sets = again.predict(z, 0.8, confidence=0.9, allow_empty=False)
    for name in ("s.npz", "s.parquet"):
        files.write_sets(sets, tmp_path / name)
        assert files.read_sets(tmp_path / name) == sets
    assert (sets.filled, sets.guarantee, sets.confidence, sets.n_calibration) == (True, "class", 0.9, 200)
