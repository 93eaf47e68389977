"""Answer or abstain, over many calibration sets: the error of answers exceeds its bound as rarely as said."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

import evicp
from evicp.calibration.ranks import rank_of
from evicp.errors import InputError
from evicp.risk import sequence
from evicp.risk.doubt import best_labels, doubts_of
from evicp.risk.sequence import in_sequence

pytestmark = pytest.mark.reliability

K, N, ERROR, CONFIDENCE = 5, 400, 0.1, 0.9
#: Candidates fixed in advance: then no rows are set aside, and the test is as sharp as it can be.
CANDIDATES = np.linspace(0.3, 1.0, 36)


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Some rows are easy and some are hard, and the model knows which."""
    labels, ease = rng.integers(0, K, n), rng.random(n)
    return (rng.normal(size=(n, K)) + (4 * ease + 0.5)[:, None] * np.eye(K)[labels]) * 1.5, labels


@cache
def truth(most: int) -> tuple[np.ndarray, np.ndarray]:
    """The doubts of very many rows, ascending, and the error of the answers up to each."""
    z, y = rows(np.random.default_rng(99), 200_000)
    doubts, wrong = doubts_of("softmax", z), ~(best_labels(z, most) == y[:, None]).any(1)
    order = np.argsort(doubts)
    return doubts[order], np.cumsum(wrong[order]) / np.arange(1, len(order) + 1)


def repeats(long_run: bool) -> int:
    return 2000 if long_run else 300


def failures(count: int, most: int = 1, error: float = ERROR, **how: object) -> tuple[float, float, float]:
    """How often the error of answers is above the bound, the mean share answered, and how often it was refused."""
    rng, (doubts, errors) = np.random.default_rng(3), truth(most)
    above, shares, refused = 0, [], 0
    for _ in range(count):
        z, y = rows(rng, N)
        try:
            rule = evicp.selective(z, y, error=error, confidence=CONFIDENCE, most=most, **how)
        except InputError:
            refused += 1
            continue
        answered = int(np.searchsorted(doubts, rule.thresholds[0], "right"))
        above += bool(errors[answered - 1] > error)
        shares.append(answered / len(doubts))
    return above / count, float(np.mean(shares)), refused / count


def most_allowed(count: int) -> float:
    return 1 - CONFIDENCE + 4 * ((1 - CONFIDENCE) * CONFIDENCE / count) ** 0.5


@pytest.mark.parametrize(("most", "error"), [(1, ERROR), (2, 0.05)])
def test_the_error_of_answers_exceeds_its_bound_rarely(most, error, long_run, figure):
    count = repeats(long_run)
    share_above, answered, refused = failures(count, most, error)
    figure("largest share of rules above the error", share_above)
    figure("smallest share of rows answered", answered)
    figure("largest share refused", refused)
    assert share_above <= most_allowed(count)
    assert answered > 0.5


def test_with_candidates_in_advance_it_exceeds_about_as_often_as_said(long_run, figure):
    count = repeats(long_run)
    share_above, _, _ = failures(count, candidates=CANDIDATES)
    figure("share above with candidates in advance", share_above)
    assert 0.02 < share_above <= most_allowed(count)


def test_control_a_threshold_that_suits_the_rows_themselves_is_caught(long_run, monkeypatch):
    """The most generous candidate whose answers to the calibration rows err at most so often, without a test."""
    from evicp.risk import selective as module

    def observed(doubts, wrong, thresholds, error, confidence):
        tests = [in_sequence(doubts, wrong, np.array([t]), error, confidence)[0] for t in thresholds]
        return [test._replace(certified=test.answered > 0 and test.wrong <= error * test.answered) for test in tests]

    monkeypatch.setattr(module, "in_sequence", observed)
    assert failures(repeats(long_run))[0] > 0.3


def test_control_the_wrong_tail_is_caught(long_run, monkeypatch):
    """P(Bin >= wrong) in place of P(Bin <= wrong): a confidence of 1 - 0.9."""
    from evicp.risk import selective as module

    def wrong_tail(doubts, wrong, thresholds, error, confidence):
        return in_sequence(doubts, wrong, thresholds, error, 1 - confidence)

    monkeypatch.setattr(module, "in_sequence", wrong_tail)
    assert failures(repeats(long_run))[0] > most_allowed(repeats(long_run))


def test_the_share_answered_lies_in_its_interval(long_run):
    rng, (doubts, _) = np.random.default_rng(8), truth(1)
    inside = []
    for _ in range(repeats(long_run) // 3):
        rule = evicp.selective(*rows(rng, 2 * N), error=0.2, confidence=CONFIDENCE)
        low, high = rule.share_interval
        inside.append(low <= np.mean(doubts <= rule.thresholds[0]) <= high)
    assert np.mean(inside) >= CONFIDENCE - 4 * (0.09 / len(inside)) ** 0.5


# ---------------------------------------------------------------------------------------------------------------
# One threshold, whose error is exactly the bound: how often it is certified is known, too

BOUND, THRESHOLD = 0.1, 0.2


def known_rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes; the top label is wrong with the probability that the softmax says, uniform up to 1/2."""
    doubt, top = rng.random(n) / 2, rng.integers(0, 2, n)
    logits = np.zeros((n, 2))
    logits[np.arange(n), top] = np.log1p(-doubt) - np.log(doubt)
    return logits, np.where(rng.random(n) < doubt, 1 - top, top)


def certified_in_theory(rows: int, share: float) -> float:
    """Of so many rows this share is answered; of these, w are wrong: the exact tail certifies few enough."""
    answered = np.arange(rows + 1)
    wrong = np.arange(rows + 1)[:, None]
    allowed = (binom.cdf(wrong, answered, BOUND) <= 1 - CONFIDENCE) & (wrong <= answered) & (answered > 0)
    return float(binom.pmf(answered, rows, share) @ (binom.pmf(wrong, answered, BOUND) * allowed).sum(0))


#: By what, into how many groups of how many rows; and the share of all rows that is in a group and answered.
DESIGNS = {None: (1, 400, 0.4), "class": (2, 400, 0.2), "group": (20, 200, 0.4)}


def z_of_certified(by: str | None, count: int) -> float:
    """How often the threshold of a group is certified, against the theory, in standard errors."""
    (n_groups, rows, share), rng, found = DESIGNS[by], np.random.default_rng(17), []
    n = rows * n_groups if by == "group" else rows
    how = np.arange(n) % n_groups if by == "group" else by
    for _ in range(count):
        logits, labels = known_rows(rng, n)
        try:
            rule = evicp.selective(logits, labels, error=BOUND, confidence=CONFIDENCE, by=how, candidates=[THRESHOLD])
            found.append(float(np.mean(rule.thresholds > -np.inf)))
        except InputError:  # in no group
            found.append(0.0)
    expected = certified_in_theory(rows, share)
    return (float(np.mean(found)) - expected) / (expected * (1 - expected) / (count * n_groups)) ** 0.5


@pytest.mark.parametrize("by", [None, "class", "group"])
def test_a_threshold_at_the_bound_is_certified_exactly_as_often_as_the_binomial_says(by, long_run, figure):
    z = z_of_certified(by, repeats(long_run) // (4 if by == "group" else 1))
    figure("largest abs(z) of a threshold at the bound", abs(z))
    assert abs(z) <= 4


def test_control_one_mistake_that_is_not_counted_is_caught(long_run, monkeypatch, figure):
    monkeypatch.setattr(sequence, "rank_of", lambda n, coverage, confidence: rank_of(n, coverage, confidence) - 1)
    z = z_of_certified("group", repeats(long_run) // 2)
    figure("smallest z with one mistake not counted", z)
    assert z > 4
