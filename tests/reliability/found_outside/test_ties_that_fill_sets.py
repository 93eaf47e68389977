"""Scores that tie at the threshold can make every set full: that is said, with what to do about it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import CrossCalibration, calibrate
from evicp.errors import SuspiciousInputWarning

pytestmark = pytest.mark.reliability

K = 10


def leaves(rng: np.random.Generator, n: int, accuracy: float = 0.8) -> tuple[Any, Any]:
    """What a tree says that was grown to its end: one label has all of the probability, and is right or wrong."""
    labels = rng.integers(0, K, n)
    said = np.where(rng.random(n) < accuracy, labels, rng.integers(0, K, n))
    return np.log(np.maximum(np.eye(K)[said], 1e-300)), labels


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def messages(call: Any) -> list[str]:
    """What is said of ties in a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught if "tie at the threshold" in str(one.message)]


def test_a_tree_s_full_sets_are_said_with_figures_and_the_remedy():
    sklearn = pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits
    from sklearn.tree import DecisionTreeClassifier

    from evicp.sklearn import ConformalClassifier

    assert sklearn.__version__
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    model = ConformalClassifier(DecisionTreeClassifier(random_state=0), coverage=0.8, cv=0.5).fit(X[:900], y[:900])
    tied = int(np.sum(model.calibration_.scores == model.calibration_.scores[-1]))
    with pytest.warns(
        SuspiciousInputWarning, match=f"^{tied} of 450 calibration scores tie .* 0.998 instead of 0.8"
    ) as w:
        sets = model.predict_set(X[900:])
    assert (sets.sizes == K).all()
    assert w[0].filename == __file__
    assert "smoothed=True" in str(w[0].message)
    u = np.random.default_rng(1).random(len(sets))
    assert not messages(lambda: model.predict_set(X[900:], smoothed=u))
    smaller = model.predict_set(X[900:], smoothed=u)
    assert smaller.contains(y[900:]).mean() == pytest.approx(0.8, abs=0.05)
    assert smaller.sizes.mean() < 4
    ensemble = ConformalClassifier(DecisionTreeClassifier(random_state=0), cv=5, ensemble=True).fit(X[:900], y[:900])
    (said,) = messages(lambda: ensemble.predict_set(X[900:], 0.95))
    assert "smoothed" not in said  # which an ensemble's sets cannot be


@pytest.mark.parametrize("coverage", [0.9, 0.95, 0.98])
def test_every_way_to_ask(rng, coverage):
    z, y = leaves(rng, 2000)
    new, _ = leaves(rng, 50)
    plain = calibrate(z, y, "lac")
    assert (plain.predict(new, coverage).sizes == K).all()
    for again, can_smooth in [
        (lambda: calibrate(z, y, "lac").predict(new[0], coverage), True),
        (lambda: calibrate(z, y, "aps").predict(new, [coverage]), True),  # no share of a probability of 0 tells apart
        (lambda: calibrate(z, y, "lac").predict(new, coverage, confidence=0.9), False),
        (lambda: calibrate(z, y, "lac", by=y % 2).predict(new, coverage, groups=np.zeros(50, int)), True),
        (lambda: calibrate(z, y, "lac", by="class").predict(new, coverage), False),
        (lambda: calibrate(z, y, "lac", class_weights=np.ones(K)).predict(new, coverage), False),
        (lambda: calibrate(z, y, "lac", weights=np.ones(2000)).predict(new, coverage, weights=np.ones(50)), False),
        (lambda: plain.label_thresholds(coverage), False),  # of exported graphs, which smooth nothing
    ]:
        found = messages(again)
        assert len(found) == 1
        assert ("smoothed=True" in found[0]) == can_smooth
    folds = CrossCalibration([calibrate(z[part], y[part], "lac") for part in np.split(np.arange(2000), 4)])
    assert len(messages(lambda: folds.predict([new] * 4, coverage))) == 1


def test_every_call_says_it(rng):
    """As Python shows a warning once for each place, this costs a server one line."""
    z, y = leaves(rng, 2000)
    calibration = calibrate(z, y, "lac")
    assert len(messages(lambda: [calibration.predict(row, 0.9) for row in z[:20]])) == 20
    assert len(messages(lambda: calibration.predict(z[:20], [0.9, 0.95]))) == 2


def test_nothing_is_said_where_sets_are_not_full(rng):
    continuous = rng.normal(size=(2000, K))
    y = rng.integers(0, K, 2000)
    sharp = continuous + 3 * np.eye(K)[y]
    accurate, right = leaves(rng, 2000, accuracy=0.97)  # sets of one label at 0.9, though scores tie
    for z, labels, score, coverage in [
        (sharp, y, "lac", 0.9),
        (np.rint(sharp), y, "lac", 0.9),
        (sharp, y, "topk", 0.9),
        (accurate, right, "lac", 0.9),
        (np.log(np.eye(K)[y] + 1e-9), y, "lac", 0.9),  # always right
    ]:
        calibration = calibrate(z, labels, score)
        assert not messages(lambda: calibration.predict(z, coverage))  # noqa: B023
    masked = sharp.copy()
    masked[np.arange(0, 2000, 4), y[::4]] = -np.inf  # impossible true labels are no ties
    assert not messages(lambda: calibrate(masked, y, "lac").predict(sharp, 0.9))
    with pytest.warns(SuspiciousInputWarning, match="all logits of a row are equal"):  # that says it all
        dead = calibrate(np.zeros((2000, K)), y, "lac")
    assert not messages(lambda: dead.predict(np.zeros((2000, K)), 0.9))
    few = calibrate(accurate[:5], right[:5], "lac")
    assert not messages(lambda: few.predict(accurate, 0.9))


def test_a_few_of_many_groups_are_not_worth_it(rng):
    z, y = leaves(rng, 2000)
    sharp = rng.normal(size=(2000, K)) + 3 * np.eye(K)[y]
    groups = np.arange(2000) % 10
    mixed = np.where((groups == 0)[:, None], z, sharp)
    some = calibrate(mixed, y, "lac", by=groups)
    assert not messages(lambda: some.predict(mixed, 0.9, groups=groups))
    most = calibrate(np.where((groups < 8)[:, None], z, sharp), y, "lac", by=groups)
    assert messages(lambda: most.predict(mixed, 0.9, groups=groups))


def test_weights_decide_what_a_tie_weighs(rng):
    """Light rows that tie change little; a heavy row at the threshold is no tie."""
    z, y = leaves(rng, 2000)
    wrong = z[np.arange(2000), y] < -1
    light = calibrate(z, y, "lac", weights=np.where(wrong, 1e-6, 1.0))
    assert not messages(lambda: light.predict(z[:5], 0.9, weights=np.ones(5)))
    scores = -rng.random((2000, 2))
    weights = np.ones(2000)
    weights[scores[:, 0].argmin()] = 400.0
    heavy = calibrate(scores, np.zeros(2000, int), lambda z: -z, weights=weights)
    assert not messages(lambda: heavy.predict(scores[:5], 0.9, weights=np.ones(5)))
    assert evicp.evaluate(calibrate(z, y, "lac").predict(z, 0.9), y).tied
