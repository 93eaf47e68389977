"""Logits that say nothing; masks and imaginary parts that NumPy forgets; a flag that is no flag."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import InputTypeError, ScoreError, SuspiciousInputWarning

pytestmark = pytest.mark.reliability

LABELS = np.arange(100) % 4


@pytest.mark.parametrize("score", ["lac", "aps", "topk", "margin", "ecp", lambda z: -z])
@pytest.mark.parametrize(
    "logits", [np.zeros((100, 4)), np.full((100, 4), 7.0), np.arange(100.0)[:, None] + np.zeros(4)]
)
@pytest.mark.filterwarnings("ignore:most rows have no positive logit")
def test_logits_that_are_all_equal(score: Any, logits: np.ndarray) -> None:
    """All scores tie, at their best: by these alone, it could be a sure and accurate model."""
    with pytest.warns(SuspiciousInputWarning, match="all logits of a row are equal"):
        calibration = evicp.calibrate(logits, LABELS, score)
    with pytest.warns(SuspiciousInputWarning, match="sets are empty or full"):
        sets = calibration.predict(logits[:40], 0.9)
    assert set(sets.sizes.tolist()) <= {0, 4}


def test_a_few_such_rows_are_fine() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(100, 4)) + 2 * np.eye(4)[LABELS]
    logits[:20] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibration = evicp.calibrate(logits, LABELS, "lac")
        calibration.predict(logits, 0.8)
        calibration.predict(np.zeros((3, 4)), 0.8)


def test_an_estimator_that_says_nothing() -> None:
    pytest.importorskip("sklearn")
    from sklearn.dummy import DummyClassifier

    from evicp.sklearn import ConformalClassifier

    with pytest.warns(SuspiciousInputWarning, match="all logits of a row are equal"):
        ConformalClassifier(DummyClassifier(strategy="uniform"), cv=0.5).fit(np.zeros((100, 1)), LABELS)


@pytest.mark.parametrize("cv", [0.5, 4, "prefit"])
def test_labels_under_a_mask_reach_no_estimator(cv: Any) -> None:
    pytest.importorskip("sklearn")
    from sklearn.naive_bayes import GaussianNB

    from evicp.sklearn import ConformalClassifier

    X = np.random.default_rng(0).normal(size=(100, 3)) + 2 * np.eye(4)[LABELS, :3]
    masked = np.ma.masked_array(LABELS, mask=LABELS == 3)
    estimator = GaussianNB().fit(X, LABELS)
    with pytest.raises(InputTypeError, match="y must not be masked"):
        ConformalClassifier(estimator, cv=cv).fit(X, masked)
    fitted = ConformalClassifier(estimator, cv=cv).fit(X, np.ma.masked_array(LABELS, mask=False))
    with pytest.raises(InputTypeError, match="y must not be masked"):
        fitted.evaluate(X, masked)


@pytest.mark.parametrize(
    ("kind", "change"), [("masked", lambda z: np.ma.masked_array(z, mask=z > 2)), ("complex", lambda z: z + 1j)]
)
def test_a_function_of_a_user_s_gives_real_numbers(kind: str, change: Any) -> None:
    logits = np.random.default_rng(0).normal(size=(100, 4)) + 2 * np.eye(4)[LABELS]
    message = f"must return real numbers; got {kind} ones"
    for score in (lambda z: change(-z), evicp.ECP(evidence=lambda z: change(np.exp(z)))):
        with pytest.raises(ScoreError, match=message):
            evicp.calibrate(logits, LABELS, score)


@pytest.mark.parametrize("ensemble", ["no", 1, None])
def test_an_ensemble_is_asked_for_by_true_or_false(ensemble: Any) -> None:
    pytest.importorskip("sklearn")
    from evicp.sklearn import ConformalClassifier

    X = np.random.default_rng(0).normal(size=(100, 3)) + 2 * np.eye(4)[LABELS, :3]
    with pytest.raises(InputTypeError, match="ensemble must be True or False"):
        ConformalClassifier(cv=5, ensemble=ensemble).fit(X, LABELS)
