"""The monitor's guarantee: false alarms at most as often as said, and a real drop found soon."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from evicp import Monitor, conformal_rank
from evicp.calibration import monitor

pytestmark = pytest.mark.reliability

N, COVERAGE, LENGTH = 2000, 0.9, 10_000
K_RANK = conformal_rank(N, COVERAGE)
AT_ONCE = 50


def streams(rng: np.random.Generator, count: int, length: int, drop_after: int | None = None) -> np.ndarray:
    """Whether labels are covered, (count, length), each stream with a calibration of its own.

    Scores are uniform: a threshold t covers with probability t, and after the drop with 0.05 less.
    """
    thresholds = np.partition(rng.random((count, N)), K_RANK - 1, axis=1)[:, [K_RANK - 1]]
    level = np.broadcast_to(thresholds, (count, length)).copy()
    if drop_after is not None:
        level[:, drop_after:] -= 0.05
    return rng.random((count, length)) <= level


def log_e(covered: np.ndarray, null: np.ndarray) -> np.ndarray:
    return monitor.log_e_process(monitor.log_bets_on_misses(covered, null, K_RANK, N))[0]


def first_alarm(log_e_values: np.ndarray, rate: float) -> np.ndarray:
    """The label that raises the alarm, counted from 1; infinity if none does."""
    crossed = log_e_values >= -np.log(rate)
    return np.where(crossed.any(1), crossed.argmax(1) + 1.0, np.inf)


@pytest.fixture(scope="module")
def exchangeable(long_run) -> dict[str, np.ndarray]:
    """The e-values of exchangeable streams against the urn and against independent labels."""
    rng, largest = np.random.default_rng(20), {"urn": [], "independent": []}
    for _ in range((1000 if long_run else 300) // AT_ONCE):
        covered = streams(rng, AT_ONCE, LENGTH)
        largest["urn"].append(log_e(covered, monitor.polya_odds(covered, N, K_RANK)).max(1))
        largest["independent"].append(log_e(covered, np.full(covered.shape, K_RANK / (N + 1))).max(1))
    return {name: np.concatenate(parts) for name, parts in largest.items()}


@pytest.mark.parametrize("rate", [0.1, 0.05, 0.01])
def test_false_alarms_are_at_most_as_frequent_as_said(exchangeable, rate, figure):
    figure(f"false alarms at {rate:g}", float(np.mean(exchangeable["urn"] >= -np.log(rate))))
    assert np.mean(exchangeable["urn"] >= -np.log(rate)) <= rate


@pytest.mark.parametrize("rate", [0.05, 0.01])
def test_control_betting_against_independent_labels_raises_too_many(exchangeable, rate, figure):
    alarms = int(np.sum(exchangeable["independent"] >= -np.log(rate)))
    streams_seen = len(exchangeable["independent"])
    figure(f"the control's at {rate:g}", alarms / streams_seen)
    assert alarms / streams_seen > 1.5 * rate
    assert scipy.stats.binom.sf(alarms - 1, streams_seen, rate) < 1e-3  # nor is it chance


@pytest.mark.parametrize("rate", [0.05, 0.01])
def test_a_drop_from_090_to_085_is_found(rate, long_run, figure):
    rng, found = np.random.default_rng(21), []
    for _ in range((1000 if long_run else 200) // AT_ONCE):
        covered = streams(rng, AT_ONCE, 6000, drop_after=1000)
        found.append(first_alarm(log_e(covered, monitor.polya_odds(covered, N, K_RANK)), rate))
    found = np.concatenate(found)
    figure(f"median delay at {rate:g}", float(np.median(found)) - 1000)
    assert np.median(found) - 1000 < 2000
    assert np.mean(found <= 1000) <= rate
    assert np.mean(np.isfinite(found)) > 0.95


def test_ties_make_alarms_rarer(long_run):
    """With ties coverage is more than the urn says; a tied score covers a little or a lot more."""
    rng = np.random.default_rng(22)
    for extra in (0.002, 0.02):
        alarms = []
        for _ in range((600 if long_run else 150) // AT_ONCE):
            level = np.partition(rng.random((AT_ONCE, N)), K_RANK - 1, axis=1)[:, [K_RANK - 1]] + extra
            covered = rng.random((AT_ONCE, 5000)) <= level
            alarms.append(first_alarm(log_e(covered, monitor.polya_odds(covered, N, K_RANK)), 0.05))
        assert np.mean(np.isfinite(np.concatenate(alarms))) <= 0.05


def test_the_class_and_the_function_say_the_same():
    covered = streams(np.random.default_rng(23), 20, 4000, drop_after=1000)
    times = first_alarm(log_e(covered, monitor.polya_odds(covered, N, K_RANK)), 0.05)
    for row, time in zip(covered, times, strict=True):
        watch = Monitor(N, COVERAGE, false_alarm_rate=0.05).update(row[:1700]).update(row[1700:])
        assert (watch.alarm_at or np.inf) == time


def p_value_alarms(rng: np.random.Generator, count: int, length: int, shift: float, rate: float) -> np.ndarray:
    """Alarms of monitors fed with p-values of normal scores that move up by `shift` after 1,000 labels."""
    found = []
    for _ in range(count):
        calibration, new = np.sort(rng.normal(size=N)), rng.normal(size=length)
        new[1000:] += shift
        p = (1 + N - np.searchsorted(calibration, new)) / (N + 1)
        found.append(Monitor(N, COVERAGE, false_alarm_rate=rate).update_p_values(p).alarm_at or np.inf)
    return np.array(found)


def test_monitors_of_p_values(long_run):
    rng = np.random.default_rng(24)
    count = 300 if long_run else 60
    assert np.mean(np.isfinite(p_value_alarms(rng, count, 3000, 0.0, 0.05))) <= 0.05
    found = p_value_alarms(rng, count, 3000, 0.2448, 0.05)  # P(score <= threshold) falls from 0.90 to 0.85
    assert np.median(found) - 1000 < 1000
