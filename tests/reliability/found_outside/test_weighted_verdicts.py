"""How often verdicts on kept guarantees are wrong, on each side: at the stated rate, with weights nearly so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import evicp
from evicp import Custom, Reliability, calibrate

pytestmark = [pytest.mark.reliability, pytest.mark.filterwarnings("ignore:the weights leave")]

SCORE = Custom(lambda z: -z)
TAIL = 0.025

#: What makes scores and weights of n rows, before the shift or after it.
Rows = Callable[[np.random.Generator, int, bool], tuple[np.ndarray, np.ndarray]]


def tilted(rng: np.random.Generator, n: int, moved: bool, tilt: float, slope: float) -> tuple[np.ndarray, np.ndarray]:
    """x is normal and moves by `tilt`, and its weight is the density ratio; scores rise by `slope` with it."""
    x = rng.normal(size=n) + tilt * moved
    return slope * x + rng.normal(size=n), np.exp(tilt * x - tilt**2 / 2)


def two_kinds(rng: np.random.Generator, n: int, moved: bool) -> tuple[np.ndarray, np.ndarray]:
    """A tenth of the rows becomes half of them, and is harder."""
    hard = rng.random(n) < (0.5 if moved else 0.1)
    return hard + rng.normal(size=n), np.where(hard, 5.0, 5 / 9)


SETTINGS: dict[str, tuple[Rows, int, float]] = {
    "heavy rows are missed": (partial(tilted, tilt=1.0, slope=1.0), 500, 0.9),
    "heavy rows are missed, few rows": (partial(tilted, tilt=1.0, slope=1.0), 100, 0.8),
    "heavy rows are missed, near 1": (partial(tilted, tilt=1.0, slope=1.0), 1000, 0.95),
    "light rows are missed": (partial(tilted, tilt=1.0, slope=-1.0), 500, 0.9),
    "any rows are missed": (partial(tilted, tilt=1.0, slope=0.0), 500, 0.9),
    "a mild shift": (partial(tilted, tilt=0.5, slope=1.0), 500, 0.9),
    "two kinds": (two_kinds, 200, 0.9),
    "a few rows have most of the weight": (partial(tilted, tilt=1.5, slope=2.0), 2000, 0.9),
}

#: What is said of weighted verdicts, and of the last setting.
SAID, SAID_OF_FEW = 0.04, 0.05


def verdicts(name: str, runs: int, m: int = 1000) -> tuple[list[bool], list[bool], list[bool]]:
    """Whether kept guarantees are called broken or more than kept, with one-sided and with two-sided verdicts."""
    make, n, coverage = SETTINGS[name]
    rng, broken, more, control = np.random.default_rng(0), [], [], []
    truth = np.zeros(m, np.int64)
    for _ in range(runs):
        (scores, weights), (new, own) = make(rng, n, False), make(rng, m, True)
        z, other = (np.stack([-one, np.zeros(len(one))], axis=1) for one in (scores, new))
        calibration = calibrate(z, np.zeros(n, np.int64), SCORE, weights=weights)
        evaluation = evicp.evaluate(calibration.predict(other, coverage, weights=own), truth)
        certificate = calibration.certificate(coverage, evaluation, date="d")
        assert certificate.observed is not None
        broken.append(not certificate.observed["kept"])
        more.append(certificate.observed["kept"] and not certificate.observed["compatible"])
        rows = round(2 / certificate.uncertainty - 1)
        control.append(evaluation.coverage < Reliability(rows, coverage).observed_interval(m)[0])
    return broken, more, control


def at_most(share: float, runs: int, errors: float = 3) -> float:
    return share + errors * (share * (1 - share) / runs) ** 0.5


def test_kept_promises_under_weights_are_called_broken_as_rarely_as_said(long_run, figure):
    """The control, half of the tail on one side as without weights, calls up to 5 % of them broken."""
    runs = 1500 if long_run else 80
    found = {name: verdicts(name, runs) for name in SETTINGS}
    for name, (broken, more, _) in found.items():
        figure(f"largest share called broken: {name}", round(float(np.mean(broken)), 4))
        assert np.mean(broken) <= at_most(SAID_OF_FEW if "a few" in name else SAID, runs)
        assert not any(more)  # weighted sets are guaranteed to cover at least so much
    broken = np.concatenate([one for one, _, _ in found.values()])
    assert np.mean(broken) <= at_most(TAIL, len(broken))
    if long_run:
        assert np.mean(broken) >= TAIL / 4  # nor is it blind
        assert np.mean([one for _, _, one in found.values()]) > at_most(TAIL, len(broken))


def test_the_verdict_of_weighted_sets_takes_half_of_the_tail():
    make, n, coverage = SETTINGS["heavy rows are missed"]
    rng = np.random.default_rng(1)
    (scores, weights), (new, own) = make(rng, n, False), make(rng, 1000, True)
    z, other = (np.stack([-one, np.zeros(len(one))], axis=1) for one in (scores, new))
    calibration = calibrate(z, np.zeros(n, np.int64), SCORE, weights=weights)
    evaluation = evicp.evaluate(calibration.predict(other, coverage, weights=own), np.zeros(1000, np.int64))
    for confidence in (0.5, 0.95, 0.99):
        certificate = calibration.certificate(coverage, evaluation, confidence=confidence, date="d")
        law = Reliability(round(2 / certificate.uncertainty - 1), coverage)
        assert certificate.observed["low"] == law.observed_interval(1000, 1 - (1 - confidence) / 2)[0]
        assert certificate.observed["high"] == 1.0
        assert certificate.coverage_interval == law.interval(confidence)
    assert "rejects 1 to 4 % of guarantees that hold" in certificate.caveat


@pytest.mark.parametrize(("n", "m", "coverage"), [(199, 500, 0.9), (999, 2000, 0.8), (50, 1000, 0.95)])
def test_without_weights_each_side_errs_as_often_as_said(n, m, coverage, figure):
    """The law is exact there: at most 2.5 % on either side, less only by what whole numbers force."""
    law, rng = Reliability(n, coverage), np.random.default_rng(n)
    covered = rng.binomial(m, rng.beta(law.k, law.l, 100_000)) / m
    low, high = law.observed_interval(m)
    for side in (np.mean(covered < low), np.mean(covered > high)):
        figure("largest share called wrong on one side", round(float(side), 4))
        assert 0.6 * TAIL <= side <= at_most(TAIL, 100_000, 4)
    verdict = law.compatible(low - 1 / m, m)
    assert not verdict.kept
    assert not law.compatible(high + 1 / m, m).compatible
    assert law.compatible(low, m).compatible
