"""Probabilities of an estimator in another precision than where it was calibrated: 0.79 was covered for 0.90."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

from evicp.sklearn import ConformalClassifier, logits_of

pytestmark = pytest.mark.reliability

SPLITS, LEVELS = 6, [0.6, 0.7, 0.8, 0.9]


class Forest(RandomForestClassifier):
    """A forest that gives its probabilities in a precision of choice, as estimators do that compute in that of X."""

    precision = "float64"

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(X).astype(self.precision)


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    x, labels = load_digits(return_X_y=True)
    return x / 16 + np.random.default_rng(0).normal(0, 0.35, x.shape), labels


@pytest.mark.parametrize("before", ["float64", "float32"])
@pytest.mark.parametrize("after", ["float64", "float32"])
def test_equal_votes_stay_equal_in_another_precision(problem: Any, before: str, after: str) -> None:
    x, labels = problem
    covered = []
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(len(labels))
        train, calibrate, new = np.split(order, [500, 900])
        forest = Forest(10, random_state=0).fit(x[train], labels[train])
        forest.precision = before
        model = ConformalClassifier(forest, "lac", cv="prefit").fit(x[calibrate], labels[calibrate])
        same = model.predict_set(x[new], LEVELS)
        forest.precision = after
        sets = model.predict_set(x[new], LEVELS)
        for exact, other in zip(same, sets, strict=True):
            assert np.all(other.mask() | ~exact.mask())
        covered.append(sets[-1].contains(labels[new]).mean())
    assert np.mean(covered) > 0.9 - 3 * np.std(covered) / SPLITS**0.5


def test_logits_have_the_precision_of_probabilities(problem: Any) -> None:
    x, labels = problem
    forest = Forest(5, random_state=0).fit(x[:300], labels[:300])
    for precision, expected in [("float64", "f8"), ("float32", "f4"), (">f4", "f4"), ("float16", "f4"), ("g", "f8")]:
        forest.precision = precision
        logits = logits_of(forest, x[300:320])
        assert logits.dtype == expected
        assert logits.min() == pytest.approx(np.log(1e-300))
