"""ECP scored the only possible label of a row as if it were the least plausible of all."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import evicp
from evicp import ECP, calibrate
from evicp.errors import SuspiciousInputWarning

K = 5
UNEVEN = (0.1, 0.1, 0.2, 0.2, 0.4)
SCORES = [ECP(), ECP(stabilizer=0), ECP(evidence="softplus"), ECP(base_rates=UNEVEN), "lac", "margin"]


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, 800)
    return rng.normal(size=(800, K)) + 2.5 * np.eye(K)[labels], labels


def only(label: int, logit: float = 6.0) -> np.ndarray:
    row = np.full((1, K), -np.inf)
    row[0, label] = logit
    return row


@pytest.mark.parametrize("score", SCORES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_only_possible_label_is_in_every_set(cpu_backend, problem, score, dtype):
    """Its p-value was 0.0025, its set empty."""
    calibration = calibrate(problem[0].astype(dtype), problem[1], score)
    for logit in (6.0, 0.0, -30.0):
        row = only(2, logit).astype(dtype)
        assert calibration.p_values(row)[0, 2] == 1.0
        for coverage in (0.05, 0.5, 0.9):
            with pytest.warns(SuspiciousInputWarning) if coverage < 0.2 else nullcontext():
                assert calibration.predict(row, coverage).to_lists() == [[2]]
                batch = np.concatenate([problem[0][:3].astype(dtype), row])
                assert calibration.predict(batch, coverage)[3].tolist() == [2]


@pytest.mark.parametrize("by", ["class", None])
def test_also_under_a_threshold_for_each_label(cpu_backend, problem, by):
    calibration = calibrate(*problem, by=by)
    assert calibration.predict(only(1), 0.5).to_lists() == [[1]]
    assert calibration.predict(only(1), [0.5, 0.9])[0].to_lists() == [[1]]


def test_calibration_rows_of_one_possible_label_are_the_most_conforming(cpu_backend, problem):
    z, y = problem[0].copy(), problem[1]
    alone = np.arange(0, 800, 4)
    own = z[alone, y[alone]]
    z[alone] = -np.inf
    z[alone, y[alone]] = own
    calibration = calibrate(z, y)
    assert np.all(calibration.scores[:200] == -np.finfo(np.float64).max)
    sets = calibration.predict(z, 0.9)
    assert abs(sets.contains(y).mean() - 0.9) < 0.01
    assert sets.contains(y)[alone].all()


def test_rows_of_two_possible_labels_are_told_of(problem):
    """What ECP cannot do, it says: the second of two possible labels has the largest score, whatever its logit."""
    z, y = problem[0].copy(), problem[1]
    other = (y + 1) % K
    z[np.arange(800)[:, None] * 0 + np.arange(K) != y[:, None]] = -np.inf
    z[np.arange(800), other] = 3.0 * np.random.default_rng(1).normal(size=800)
    with pytest.warns(SuspiciousInputWarning, match=r"the true label is the least plausible of those possible.*lac"):
        evicp.calibrate(z, y)
    evicp.calibrate(z, y, "lac")  # a warning would be an error here
