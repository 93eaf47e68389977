"""Scores for long tails keep the law on other rows than those they were learned from: 2,000 draws in the long run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import evicp
from evicp import ClassLAC, calibrate, conformal_rank, fit_class_offsets, fit_rank_limits
from evicp.calibration.laws import groups, marginal
from evicp.calibration.ranks import rank_of, ranks_of

pytestmark = [pytest.mark.reliability, pytest.mark.filterwarnings("ignore::evicp.errors.EvicpWarning")]

K, SHARES = 4, np.array([0.4, 0.3, 0.2, 0.1])


def draw(rng: np.random.Generator, n: int, labels: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.choice(K, n, p=SHARES) if labels is None else labels
    return rng.normal(size=(len(labels), K)) + np.log(SHARES) + 1.5 * np.eye(K)[labels], labels


def distance(fit: Callable[[tuple], evicp.Score], repeats: int) -> float:
    """How many standard errors the mean coverage of 99 calibrated rows is above what it must be, at 0.8."""
    rng, found = np.random.default_rng(repeats), []
    for _ in range(repeats):
        rows, new = draw(rng, 99), draw(rng, 200)
        found.append(calibrate(*rows, fit(draw(rng, 99))).predict(new[0], 0.8).contains(new[1]).mean())
    expected = conformal_rank(99, 0.8) / 100
    return float((np.mean(found) - expected) / (np.std(found) / np.sqrt(repeats)))


SCORES: dict[str, Callable[[tuple], evicp.Score]] = {
    "frequencies": lambda rows: ClassLAC.of_frequencies(SHARES),
    "offsets 0.5": lambda rows: fit_class_offsets(*rows, coverage=0.8),
    "offsets 1": lambda rows: fit_class_offsets(*rows, coverage=0.8, weight=1),
}


@pytest.mark.parametrize("name", SCORES)
def test_coverage_over_all_rows_is_exact(name, long_run, figure):
    z = distance(SCORES[name], 2000 if long_run else 250)
    figure("largest abs(z) of scores for long tails", abs(z))
    assert abs(z) <= 4


def class_distance(repeats: int) -> np.ndarray:
    """The same in every class, of 24 calibrated rows each, by class with rank limits."""
    rng, found = np.random.default_rng(repeats), []
    labels, new_labels = np.repeat(np.arange(K), 24), np.repeat(np.arange(K), 50)
    for _ in range(repeats):
        rows, new = draw(rng, 0, labels), draw(rng, 0, new_labels)
        score = fit_rank_limits(*draw(rng, 0, labels), coverage=0.8)
        covered = calibrate(*rows, score, by="class").predict(new[0], 0.8).contains(new[1])
        found.append(covered.reshape(K, 50).mean(1))
    expected = conformal_rank(24, 0.8) / 25
    return (np.mean(found, axis=0) - expected) / (np.std(found, axis=0) / np.sqrt(repeats))


def test_rank_limits_keep_the_coverage_of_every_class(long_run, figure):
    z = class_distance(2000 if long_run else 200)
    figure("largest abs(z) of scores for long tails", float(np.abs(z).max()))
    assert (np.abs(z) <= 4).all()


@pytest.mark.parametrize("shift", [-1, 1])
def test_control_a_rank_off_by_one_is_noticed(shift, monkeypatch):
    monkeypatch.setattr(marginal, "rank_of", lambda n, coverage, confidence=None: rank_of(n, coverage) + shift)
    monkeypatch.setattr(groups, "ranks_of", lambda counts, coverage, _: ranks_of(counts, coverage) + shift)
    assert distance(SCORES["offsets 0.5"], 500) * shift > 3
    assert class_distance(100).mean() * shift > 4
