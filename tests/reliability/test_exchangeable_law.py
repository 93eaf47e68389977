"""Checks of new rows find a shift where there is none no more often than they say, with ties and without.

2,000 draws of calibration and new rows in the long run, and a few hundred otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

import evicp
from evicp.evaluation import exchangeability
from lengths import usually

pytestmark = pytest.mark.reliability

ERROR = 0.05


def draw(
    rng: np.random.Generator, n: int, digits: int | None = None, sure: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, 3, n)
    logits = rng.uniform(0.5, 2, (n, 1)) * (rng.normal(size=(n, 3)) + sure * np.eye(3)[labels])
    return (logits if digits is None else np.round(logits, digits)), labels


def found(rng: np.random.Generator, what: str, digits: int | None = None) -> bool:
    """Whether a shift is found among rows that have none."""
    (old, truth), (new, labels) = draw(rng, 60, digits), draw(rng, 80, digits)
    given = {"labels": labels if "labels" in what else None, "reference": old if "reference" in what else None}
    return evicp.check_exchangeable(evicp.calibrate(old, truth, "lac"), new, error=ERROR, **given).shifted


def rate(of_one: Callable[[np.random.Generator], bool], repeats: int) -> float:
    rng = np.random.default_rng(repeats)
    return float(np.mean([of_one(rng) for _ in range(repeats)]))


def bound(repeats: int) -> float:
    return ERROR + 4 * np.sqrt(ERROR * (1 - ERROR) / repeats)


@pytest.mark.filterwarnings("ignore::evicp.errors.SuspiciousInputWarning")
@pytest.mark.parametrize("digits", usually([None, 0], lambda digits: digits is None))
@pytest.mark.parametrize("what", ["logits", "reference", "labels", "labels and reference"])
def test_no_shift_is_found_more_often_than_said(what, digits, long_run, figure):
    repeats = 2000 if long_run else 150
    alarms = rate(lambda rng: found(rng, what, digits), repeats)
    figure("largest rate of false alarms at 0.05", alarms)
    assert alarms <= bound(repeats)


def test_control_a_reference_taken_for_the_truth(long_run):
    """The new rows against the distribution of the reference rows, as if that were known exactly."""

    def wrong(rng: np.random.Generator) -> bool:
        old, new = draw(rng, 60)[0].max(1), draw(rng, 80)[0].max(1)
        known = lambda x: np.searchsorted(np.sort(old), x, "right") / len(old)  # noqa: E731
        return scipy.stats.kstest(new, known).pvalue <= ERROR

    repeats = 2000 if long_run else 150
    assert rate(wrong, repeats) > bound(repeats)


def test_control_the_wrong_tail_of_the_best_labels_scores(monkeypatch):
    """They are smaller than those of true labels, so that a test of both sides finds a shift where there is none."""
    both = exchangeability._compared
    monkeypatch.setattr(exchangeability, "_compared", lambda *values, **_: both(*values))

    def wrong(rng: np.random.Generator) -> bool:
        new = draw(rng, 80, sure=0.5)[0]
        return evicp.check_exchangeable(evicp.calibrate(*draw(rng, 60, sure=0.5), "lac"), new, error=ERROR).shifted

    assert rate(wrong, 150) > bound(150)


@pytest.mark.long
def test_control_three_statistics_without_paying_for_three():
    def wrong(rng: np.random.Generator) -> bool:
        old, new = draw(rng, 60)[0], draw(rng, 80)[0]
        return min(one.p_value for one in exchangeability._moves(evicp.LAC(), old, new)) <= ERROR

    assert rate(wrong, 2000) > bound(2000)
