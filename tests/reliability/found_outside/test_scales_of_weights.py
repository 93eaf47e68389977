"""Weights of new rows that are not on the scale of the calibration rows' weights are remarked upon, both ways."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import SmallCalibrationWarning, SuspiciousInputWarning

pytestmark = pytest.mark.reliability

K, N, M = 4, 1000, 500


def shifted(n: int, seed: int, is_new: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels and weights exp(x - 1/2) of a shift of x by 1."""
    rng = np.random.default_rng(seed)
    x, labels = rng.normal(size=n) + is_new, rng.integers(0, K, n)
    logits = rng.normal(size=(n, K)) * np.exp(x / 4)[:, None] + 2.5 * np.eye(K)[labels]
    return logits, labels, np.exp(x - 0.5)


LOGITS, LABELS, OLD = shifted(N, 0, is_new=False)
NEW, TRUTH, WEIGHTS = shifted(M, 1, is_new=True)


def test_weights_on_one_scale_are_fine_whatever_it_is() -> None:
    """Warnings are errors here. Of one row, of ten, of all."""
    for unit in (1.0, 1 / OLD.sum(), 1e6):
        calibration = evicp.calibrate(LOGITS, LABELS, "lac", weights=OLD * unit)
        assert 0.85 < calibration.predict(NEW, 0.9, weights=WEIGHTS * unit).contains(TRUTH).mean() < 0.96
        for part in (slice(0, 10), *(slice(i, i + 1) for i in range(100))):
            calibration.predict(NEW[part], 0.9, weights=WEIGHTS[part] * unit)
            calibration.p_values(NEW[part], weights=WEIGHTS[part] * unit)


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        (OLD / OLD.sum(), WEIGHTS, "Sets are too large, or full"),
        (OLD / OLD.sum(), np.ones(M), "Sets are too large, or full"),
        (np.full(N, 1 / N), np.ones(M), "Sets are too large, or full"),
        (OLD, WEIGHTS / WEIGHTS.sum(), "Sets may cover less than the target"),
        (np.ones(N), np.full(M, 1 / M), "Sets may cover less than the target"),
        (OLD, 100 * WEIGHTS, "Sets are too large, or full"),
        (100 * OLD, WEIGHTS, "Sets may cover less than the target"),
    ],
    ids=["normalised, not", "normalised, 1", "1 / n, 1", "not, normalised", "1, 1 / m", "hundredfold", "hundredth"],
)
def test_two_scales_are_remarked_upon(old: Any, new: Any, outcome: str) -> None:
    calibration = evicp.calibrate(LOGITS, LABELS, "lac", weights=old)
    acts = [
        lambda: calibration.predict(NEW, 0.9, weights=new),
        lambda: calibration.p_values(NEW, weights=new),
        lambda: evicp.AdaptiveLevel(0.9).predict(calibration, NEW, weights=new),
    ]
    if outcome.startswith("Sets are"):  # one row is enough
        acts.append(lambda: calibration.predict(NEW[0], 0.9, weights=new[np.argsort(new)[-1:]]))
    for act in acts:
        with pytest.warns(SuspiciousInputWarning, match=rf"must be on the scale of the .* mean of 1,000 .*{outcome}"):
            act()


def test_few_heavy_rows_are_a_matter_of_their_number() -> None:
    """Full sets because rows are few have a warning of their own, and not this one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspiciousInputWarning)
        calibration = evicp.calibrate(LOGITS[:5], LABELS[:5], "lac", weights=np.ones(5))
        with pytest.warns(SmallCalibrationWarning):
            assert np.all(calibration.predict(NEW, 0.9, weights=np.ones(M)).sizes == K)


def test_calibration_weights_on_several_scales_are_remarked_upon() -> None:
    """Batches whose weights were each divided by their sum."""
    parts = [slice(0, 50), slice(50, N)]

    def by_parts(weights: list[np.ndarray]) -> evicp.Calibrator:
        calibrator = evicp.Calibrator("lac")
        for part, own in zip(parts, weights, strict=True):
            calibrator.update(LOGITS[part], LABELS[part], weights=own)
        return calibrator

    by_parts([OLD[part] for part in parts]).finish()
    with pytest.warns(SuspiciousInputWarning, match=r"calibration rows must be on one scale in all batches"):
        by_parts([OLD[part] / OLD[part].sum() for part in parts]).finish()
    known = evicp.calibrate(LOGITS[parts[1]], LABELS[parts[1]], "lac", weights=OLD[parts[1]])
    known.extended(LOGITS[parts[0]], LABELS[parts[0]], weights=OLD[parts[0]])
    with pytest.warns(SuspiciousInputWarning, match=r"must be on one scale in all batches; their means range from"):
        known.extended(LOGITS[parts[0]], LABELS[parts[0]], weights=OLD[parts[0]] / OLD[parts[0]].sum())


def test_the_scale_matters_for_coverage() -> None:
    """What the warnings say: full sets, or the threshold of a point without any weight."""
    with pytest.warns(SuspiciousInputWarning):
        sets = evicp.calibrate(LOGITS, LABELS, "lac", weights=np.full(N, 1 / N)).predict(NEW, 0.9, weights=np.ones(M))
    assert np.all(sets.sizes == K)
