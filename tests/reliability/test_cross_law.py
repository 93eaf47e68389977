"""Cross-calibration: proven sets cover the target, whatever the models of the folds have in common.

Each fold's model is fitted to the rows of the other folds. 2,000 draws in the long run.
"""

from __future__ import annotations

import numpy as np
import pytest

from evicp import CrossCalibration, calibrate

pytestmark = [pytest.mark.reliability, pytest.mark.filterwarnings("ignore::evicp.errors.EvicpWarning")]

K, FOLDS, N, M = 4, 4, 76, 60
CENTRES = 1.2 * np.eye(K)


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) + CENTRES[labels], labels


def logits_of(train: tuple[np.ndarray, np.ndarray], x: np.ndarray) -> np.ndarray:
    """A model of few rows: distances from the mean of each class, of which it has about fourteen rows."""
    means = np.stack([train[0][train[1] == k].mean(0) if np.any(train[1] == k) else np.zeros(K) for k in range(K)])
    return -0.5 * ((x[:, None] - means) ** 2).sum(2)


def distance(repeats: int, **how) -> tuple[float, float]:
    """Mean coverage at 0.8, and its distance from that in standard errors."""
    rng, found = np.random.default_rng(repeats), []
    fold = np.arange(N) % FOLDS
    for _ in range(repeats):
        (x, y), (new, truth) = draw(rng, N), draw(rng, M)
        parts, logits = [], []
        for number in range(FOLDS):
            train = x[fold != number], y[fold != number]
            parts.append(calibrate(logits_of(train, x[fold == number]), y[fold == number], "lac"))
            logits.append(logits_of(train, new))
        given = {name: value(rng) if callable(value) else value for name, value in how.items()}
        found.append(CrossCalibration(parts).predict(logits, 0.8, **given).contains(truth).mean())
    mean, error = float(np.mean(found)), float(np.std(found) / np.sqrt(repeats))
    return mean, (mean - 0.8) / error


@pytest.mark.parametrize("smoothed", [True, lambda rng: rng])
def test_proven_sets_cover_exactly_what_is_asked(smoothed, long_run, figure):
    """19 rows in each fold: the coverage of a fold's own sets is 16 / 20, without rounding."""
    _, z = distance(2000 if long_run else 150, proven=True, smoothed=smoothed)
    figure("largest abs(z) of proven sets of folds", abs(z))
    assert abs(z) <= 4


def test_without_a_random_number_they_cover_more(long_run):
    mean, z = distance(2000 if long_run else 100, proven=True, smoothed=False)
    assert z >= -4
    assert mean > 0.82


def test_control_sets_without_all_labels_that_any_fold_lacks_cover_less():
    _, z = distance(150, proven=True, smoothed=lambda rng: np.full(M, 1e-6))
    assert z < -4


@pytest.mark.parametrize("shift", [-1, 1])
def test_control_a_rank_off_by_one_is_noticed(shift, monkeypatch):
    proper = CrossCalibration._ranks
    monkeypatch.setattr(CrossCalibration, "_ranks", lambda self, n, coverage: proper(self, n, coverage) + shift)
    _, z = distance(150, proven=True)
    assert z * shift > 4
