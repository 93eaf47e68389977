"""Logits that say nothing, and labels under a mask."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import InputTypeError, SuspiciousInputWarning

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
