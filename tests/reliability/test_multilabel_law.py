"""Several labels at once, over many calibration sets: the share of missed labels, and the precision of sure ones."""

from __future__ import annotations

import numpy as np
import pytest

from evicp import conformal_rank, multilabel
from evicp.risk import precision
from evicp.risk.steps import Steps

pytestmark = pytest.mark.reliability

K, N, M = 4, 30, 80


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    truth = rng.random((n, K)) < rng.random((n, 1))
    return rng.normal(size=(n, K)) * 1.2 + 2 * truth - 1, truth


def repeats(long_run: bool) -> int:
    return 2000 if long_run else 500


def z_of(losses: list[float], risk: float) -> float:
    found = np.array(losses)
    return float((found.mean() - risk) / (found.std(ddof=1) / len(found) ** 0.5))


def missed_shares(risk: float, count: int) -> list[float]:
    rng, found = np.random.default_rng(1), []
    for _ in range(count):
        z, truth = rows(rng, N + M)
        rule = multilabel(z[:N], truth[:N], missed=risk)
        found.append(float(rule.losses(rule.predict(z[N:]), truth[N:]).mean()))
    return found


@pytest.mark.parametrize("risk", [0.1, 0.25])
def test_the_expected_share_of_missed_labels_is_at_most_what_was_asked(risk, long_run, figure):
    z = z_of(missed_shares(risk, repeats(long_run)), risk)
    figure("largest z of the share missed over what was asked", z)
    assert z <= 4
    assert z_of(missed_shares(risk, repeats(long_run)), risk - 2 / (N + 1)) >= -4


def test_by_label_each_labels_share_is_exactly_that_of_its_rank(long_run, figure):
    """With the number of its rows fixed: 1 - k / (n + 1) of label 0, on average."""
    rng, found, risk = np.random.default_rng(2), [], 0.2
    for _ in range(repeats(long_run)):
        z, truth = rows(rng, N + M)
        truth[:, 0] = np.arange(N + M) < 24
        truth[N:, 0] = True
        z[:, 0] = rng.normal(size=N + M) + 2 * truth[:, 0]
        rule = multilabel(z[:N], truth[:N], missed=risk, by_label=True)
        found.append(float(np.mean(z[N:, 0] < rule.thresholds[0])))
    z = z_of(found, 1 - conformal_rank(24, 1 - risk) / 25)
    figure("largest abs(z) by label", abs(z))
    assert abs(z) <= 4


def test_control_a_threshold_that_forgets_the_new_row_is_caught(long_run, monkeypatch):
    monkeypatch.setattr(
        Steps, "_rule", lambda steps, risk, confidence, scale: lambda total: total <= risk * steps.n * scale
    )
    assert z_of(missed_shares(0.1, repeats(long_run)), 0.1) > 4


# ---------------------------------------------------------------------------------------------------------------
# With a confidence


def failures(count: int) -> tuple[float, float]:
    """How often the share missed or the precision of sure labels breaks its bound; and the recall of the latter."""
    rng, recalls, broken = np.random.default_rng(3), [], 0
    z, truth = rows(np.random.default_rng(99), 20_000)
    for _ in range(count):
        rule = multilabel(*rows(rng, 300), missed=0.25, confidence=0.9, precision=0.7)
        sure, possible = z >= rule.surest, z >= rule.thresholds[0]
        lost = ((truth & ~possible).sum(1) / np.maximum(truth.sum(1), 1)).mean()
        wrong = ((sure & ~truth).sum(1) / np.maximum(sure.sum(1), 1)).mean()
        broken += bool(lost > 0.25 or wrong > 0.3)
        recalls.append((sure & truth).sum() / truth.sum())
    return broken / count, float(np.mean(recalls))


def test_precision_and_recall_hold_together_as_often_as_said(long_run, figure):
    count = 2000 if long_run else 60
    share, recall = failures(count)
    figure("largest share of rules that break a bound", share)
    figure("smallest recall of sure labels", recall)
    assert share <= 0.1 + 4 * (0.09 / count) ** 0.5
    assert recall > 0.3


def test_control_a_precision_that_suits_the_rows_themselves_is_caught(long_run, monkeypatch):
    """The lowest logit at which the calibration rows have the precision, without a test."""

    def fitted(logits, true, wrong, confidence):
        means = precision._wrong_shares(logits, true).mean(0)
        return float(precision._LOGITS[np.flatnonzero(means <= wrong)[-1]])

    monkeypatch.setattr("evicp.risk.multilabel.surest_threshold", fitted)
    assert failures(400 if long_run else 60)[0] > 0.3
