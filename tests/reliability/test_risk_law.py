"""Risk control over many calibration sets: the expected loss is at most what was asked, and hardly less."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from evicp import conformal_rank, control_risk
from evicp.risk.steps import Steps
from lengths import usually

pytestmark = pytest.mark.reliability

K, N, M = 5, 20, 60
COSTS = np.array([6.0, 2.0, 3.0, 4.0, 0.0])
MATRIX = np.abs(np.arange(K)[:, None] - np.arange(K)) / (K - 1)
MISS = {"risk": 0.1}
WEIGHTED = {"risk": 0.8, "class_costs": COSTS}
DISTANCE = {"risk": 0.08, "loss": MATRIX}


def distance(labels, true) -> float:
    return float(MATRIX[true, labels].min()) if len(labels) else float(MATRIX[true].max())


FUNCTION = {"risk": 0.08, "loss": distance}
WAYS = {"miss": MISS, "class costs": WEIGHTED, "distance": DISTANCE, "function": FUNCTION}


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) + 1.5 * np.eye(K)[labels], labels


def repeats(long_run: bool) -> int:
    return 2000 if long_run else 500


def mean_losses(how: dict, count: int) -> np.ndarray:
    """The mean loss of M new rows after each of many calibrations, by the public path."""
    rng = np.random.default_rng(11)
    found = np.empty(count)
    for i in range(count):
        z, y = rows(rng, N + M)
        control = control_risk(z[:N], y[:N], score="lac", **how)
        found[i] = control.losses(control.predict(z[N:]), y[N:]).mean()
    return found


@cache
def measured(name: str, count: int) -> np.ndarray:
    return mean_losses(WAYS[name], count)


def z_of(losses: np.ndarray, risk: float) -> float:
    return float((losses.mean() - risk) / (losses.std(ddof=1) / len(losses) ** 0.5))


@pytest.mark.parametrize("name", WAYS)
def test_the_expected_loss_is_at_most_what_was_asked(name, long_run, figure):
    """At most, within four standard errors; and at least what the theorem says: risk - 2 largest / (n + 1)."""
    how, losses = WAYS[name], measured(name, repeats(long_run) // (4 if name == "function" else 1))
    largest = 6.0 if name == "class costs" else 1.0
    figure("largest z of the mean loss over the risk", z_of(losses, how["risk"]))
    assert z_of(losses, how["risk"]) <= 4
    assert z_of(losses, how["risk"] - 2 * largest / (N + 1)) >= -4


def test_of_misses_it_is_exactly_the_share_above_the_rank(long_run):
    expected = 1 - conformal_rank(N, 0.9) / (N + 1)
    assert abs(z_of(measured("miss", repeats(long_run)), expected)) <= 4


@pytest.mark.parametrize("name", ["class costs", "distance", "miss"])
def test_control_a_threshold_that_forgets_the_new_row_is_caught(name, long_run, monkeypatch, figure):
    """R <= risk in place of (n R + largest) / (n + 1) <= risk."""
    monkeypatch.setattr(
        Steps, "_rule", lambda steps, risk, confidence, scale: lambda total: total <= risk * steps.n * scale
    )
    how = WAYS[name]
    wrong = z_of(mean_losses(how, repeats(long_run)), how["risk"])
    figure("smallest z without the new row", wrong)
    assert wrong > 4


@pytest.mark.long
def test_control_a_threshold_chosen_on_the_test_rows_is_caught(long_run):
    """The smallest threshold at which the test rows themselves have the risk."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(repeats(long_run)):
        z, y = rows(rng, 2 * N)
        steps = control_risk(z[:N], y[:N], score="lac", **WEIGHTED).steps
        limit = min((t for t in [-np.inf, *steps.scores] if steps.loss_at(t) <= 0.8), default=np.inf)
        other = control_risk(z[N:], y[N:], score="lac", **WEIGHTED).steps
        found.append(float(other.loss_at(limit)))
    assert z_of(np.array(found), 0.8) > 4


# ---------------------------------------------------------------------------------------------------------------
# With a confidence


@cache
def truth(name: str) -> Steps:
    """The losses of very many rows: the expected loss at any threshold."""
    z, y = rows(np.random.default_rng(99), 100_000)
    return control_risk(z, y, score="lac", **WAYS[name]).steps


def failures(name: str, confidence: float, count: int) -> float:
    """How often the expected loss of new rows is above the risk."""
    rng, risk, known = np.random.default_rng(7), WAYS[name]["risk"], truth(name)
    above = 0
    for _ in range(count):
        control = control_risk(*rows(rng, 200), score="lac", confidence=confidence, **WAYS[name])
        above += float(known.loss_at(control.threshold)) > risk
    return above / count


@pytest.mark.parametrize("name", usually(("miss", "class costs", "distance"), lambda name: name == "miss"))
def test_with_a_confidence_so_few_calibrations_exceed_the_risk(name, long_run, figure):
    count = repeats(long_run)
    share = failures(name, 0.9, count)
    figure(f"largest share of calibrations above the risk ({name})", share)
    assert share <= 0.1 + 4 * (0.1 * 0.9 / count) ** 0.5
    if name == "miss":  # exact, so that nearly as many do
        assert share >= 0.06 - 4 * (0.1 * 0.9 / count) ** 0.5


def test_control_the_mean_rule_exceeds_the_risk_too_often(long_run, monkeypatch):
    own = Steps.threshold
    monkeypatch.setattr(Steps, "threshold", lambda steps, risk, confidence=None: own(steps, risk))
    assert failures("miss", 0.9, repeats(long_run)) > 0.3
