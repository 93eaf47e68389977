"""Functions of a user's that mix rows up, and the share of failures asked for as a confidence."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import SuspiciousInputWarning

pytestmark = pytest.mark.reliability

K = 5


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, 600)
    return rng.normal(size=(600, K)) + 2.5 * np.eye(K)[labels], labels


def softmax(z: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(z - z.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


NOISE = np.random.default_rng(1)
MIXED: list[Any] = [
    lambda z: 1 - softmax(z, 0),
    lambda z: -(z - z.mean(0)),
    lambda z: -z + NOISE.normal(size=z.shape),
    evicp.ECP(evidence=lambda z: softmax(z, 0)),
    evicp.ECP(utility=lambda z: softmax(z, 0)),
]
OF_ROWS: list[Any] = [
    lambda z: 1 - softmax(z, 1),
    lambda z: z.max(1, keepdims=True) - z,
    evicp.ECP(evidence=lambda z: softmax(z, 1)),
    evicp.ECP(utility=lambda z: softmax(z, 1)),
]


@pytest.mark.parametrize("score", MIXED)
def test_scores_that_depend_on_the_rows_beside_are_named(problem: Any, score: Any) -> None:
    logits, labels = problem
    with pytest.warns(SuspiciousInputWarning, match="of a row depends on the other rows of the batch"):
        evicp.calibrate(logits, labels, score)


@pytest.mark.parametrize("score", OF_ROWS)
def test_scores_of_rows_alone_are_not(problem: Any, score: Any) -> None:
    logits, labels = problem
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evicp.calibrate(logits, labels, score)
        evicp.calibrate(np.where(logits < -2, -np.inf, logits).astype(np.float32), labels, score, by=labels % 2)
        evicp.calibrate(logits[:1], labels[:1], score)


def test_a_confidence_below_one_half_is_named(problem: Any) -> None:
    """Sets covered less than 0.9 with 95 % of calibration sets."""
    logits, labels = problem
    calibration = evicp.calibrate(logits, labels, "lac")
    for _ in range(2):
        with pytest.warns(SuspiciousInputWarning, match=r"most do not\. Did you mean 0\.95\?"):
            calibration.predict(logits, 0.9, confidence=0.05)
    with pytest.warns(SuspiciousInputWarning, match=r"Did you mean 0\.95\?"):
        calibration.label_thresholds(0.9, 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibration.predict(logits, 0.9, confidence=0.5)
