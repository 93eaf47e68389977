"""What classifiers give as decisions and probabilities is read as what it is, whatever the method is called."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier

import evicp
from evicp.errors import EvicpError, InputError, LogitsError
from evicp.sklearn import ConformalClassifier, logits_of

pytestmark = pytest.mark.reliability


class Wrapped(ClassifierMixin, BaseEstimator):
    """Nearest means of classes, with one output: a function of the logits, (n, K)."""

    def __init__(self, outputs=None, method="decision_function", sharpness=1.0):
        self.outputs = outputs
        self.method = method
        self.sharpness = sharpness

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.means_ = np.stack([X[y == label].mean(0) for label in self.classes_])
        return self

    def logits(self, X):
        return self.sharpness * (X @ self.means_.T - (self.means_**2).sum(1) / 2)

    def predict(self, X):
        return self.classes_[self.logits(X).argmax(1)]

    def __getattr__(self, name):
        if name == self.__dict__.get("method") and "means_" in self.__dict__:
            return lambda X: self.outputs(self.logits(X))
        raise AttributeError(name)


def softmax(z: Any, dtype: Any = np.float64) -> Any:
    exponentials = np.exp((z - z.max(1, keepdims=True)).astype(dtype))
    return exponentials / exponentials.sum(1, keepdims=True)


def softmax32(z: Any) -> Any:
    return softmax(z, np.float32)


def softmax16(z: Any) -> Any:
    return softmax(z, np.float32).astype(np.float16)


def second(z: Any) -> Any:
    return softmax32(z)[:, 1]


def second_as_column(z: Any) -> Any:
    return softmax32(z)[:, 1:]


def log_softmax(z: Any) -> Any:
    return np.log(softmax(z))


@pytest.fixture(scope="module")
def digits() -> tuple[Any, ...]:
    X, y = load_digits(return_X_y=True)
    X = X / 16 + np.random.default_rng(0).normal(0, 0.3, X.shape)
    order = np.random.default_rng(1).permutation(len(y))
    return X[order[:1000]], y[order[:1000]], X[order[1000:]], y[order[1000:]]


@pytest.fixture(scope="module")
def tumours() -> tuple[Any, ...]:
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, [1, 4]] / [4, 0.014]
    order = np.random.default_rng(0).permutation(len(y))
    return X[order[:300]], y[order[:300]], X[order[300:]], y[order[300:]]


@pytest.mark.parametrize("cv", [0.5, 4, "prefit"])
@pytest.mark.parametrize("outputs", [softmax, softmax32, softmax16])
def test_decisions_that_are_probabilities_are_read_as_such(digits, outputs, cv):
    """Taken as logits, they made sets of 8 labels of 10."""
    X, y, new, truth = digits
    model, plain = Wrapped(outputs), Wrapped(softmax, "predict_proba")
    if cv == "prefit":
        model, plain = model.fit(X[:500], y[:500]), plain.fit(X[:500], y[:500])
        X, y = X[500:], y[500:]
    found, expected = (ConformalClassifier(one, cv=cv).fit(X, y) for one in (model, plain))
    assert found.calibration_.score == evicp.LAC()
    evaluation = found.evaluate(new, truth)
    assert evaluation.mean_size < 1.6
    assert evaluation.mean_size == pytest.approx(expected.evaluate(new, truth).mean_size, abs=0.01)
    row = found.predict_set(new[:1])
    assert row == found.predict_set(new)[:1]


@pytest.mark.parametrize(
    ("outputs", "method"),
    [
        (softmax32, "decision_function"),
        (second, "decision_function"),
        (second_as_column, "decision_function"),
        (softmax32, "predict_proba"),
        (second, "predict_proba"),
        (second_as_column, "predict_proba"),
        (log_softmax, "predict_log_proba"),
    ],
)
def test_two_classes(tumours, outputs, method):
    X, y, new, truth = tumours
    found = ConformalClassifier(Wrapped(outputs, method), cv=0.5).fit(X, y)
    expected = ConformalClassifier(Wrapped(softmax, "predict_proba"), cv=0.5).fit(X, y)
    assert found.calibration_.score == evicp.LAC()
    np.testing.assert_allclose(found.calibration_.scores, expected.calibration_.scores, rtol=1e-3)
    assert found.evaluate(new, truth).mean_size == pytest.approx(expected.evaluate(new, truth).mean_size, abs=0.02)
    probabilities = softmax(found.estimator_.logits(new))
    np.testing.assert_allclose(softmax(logits_of(found.estimator_, new)), probabilities, atol=1e-6)


def test_decisions_between_0_and_1_that_change_at_0_are_decisions(tumours):
    """All rows are predicted as the second class: a probability below one half would not be."""
    X, y, _, _ = tumours
    fitted = Wrapped(lambda z: (z[:, 1] - z[:, 0]) / 50 + 0.5).fit(X, y)
    fitted.predict = lambda X: np.full(len(X), 1)
    values = fitted.decision_function(X)
    assert values.min() > 0
    assert values.max() < 1
    np.testing.assert_array_equal(logits_of(fitted, X)[:, 1], values / 2)


@pytest.mark.filterwarnings("ignore:logits look like probabilities")
def test_one_row_does_not_decide_what_decisions_are(digits):
    """Least squares of indicators: every row sums to 1, and some rows lie in [0, 1]; the others do not."""
    X, y, new, _ = digits
    linear = Wrapped(lambda z: z - z.mean(1, keepdims=True) + 0.1, sharpness=0.05)
    model = ConformalClassifier(linear, "lac", cv=0.5).fit(X, y)
    values = model.estimator_.decision_function(new)
    np.testing.assert_allclose(values.sum(1), 1)
    inside = np.flatnonzero((values.min(1) >= 0) & (values.max(1) <= 1))
    assert 0 < len(inside) < len(new)
    sets = model.predict_set(new)
    for row in inside[:5]:
        assert model.predict_set(new[[row]]) == sets[int(row) : int(row) + 1]


def test_log_probabilities_alone_are_logits(digits):
    X, y, new, _ = digits
    found = ConformalClassifier(Wrapped(log_softmax, "predict_log_proba"), cv=0.5).fit(X, y)
    expected = ConformalClassifier(Wrapped(softmax, "predict_proba"), cv=0.5).fit(X, y)
    assert found.calibration_.score == evicp.LAC()
    np.testing.assert_allclose(found.calibration_.scores, expected.calibration_.scores, rtol=1e-9)
    with np.errstate(divide="ignore"):  # a label of probability 0 stays possible
        fitted = Wrapped(lambda z: np.log(softmax(1000 * z)), "predict_log_proba").fit(X, y)
        assert np.isfinite(logits_of(fitted, new)).all()


@pytest.mark.parametrize(
    ("outputs", "method", "message"),
    [
        (lambda z: z, "predict_proba", r"predict_proba must give probabilities; got -?\d.* at row \d+, class \d"),
        (lambda z: softmax(z) * np.nan, "predict_proba", "logits must not be NaN; got NaN at row 0, class 0"),
        (lambda z: softmax(z)[:, :9], "predict_proba", r"one value per class, here 10; got shape \(500, 9\)"),
        (lambda z: softmax(z).astype(str), "predict_proba", "must give numbers; got dtype <U"),
        (
            lambda z: [softmax(z), softmax(z)],
            "predict_proba",
            r"one value per class, here 10; got shape \(2, 500, 10\)",
        ),
        (lambda z: z * np.nan, "decision_function", "logits must not be NaN"),
        (lambda z: z + np.inf, "decision_function", r"logits must not be \+inf"),
        (lambda z: z[:, :9], "decision_function", "must have predict_proba, or decision_function with one value"),
    ],
)
def test_outputs_that_are_neither(digits, outputs, method, message):
    X, y, _, _ = digits
    with pytest.raises(EvicpError, match=message):
        ConformalClassifier(Wrapped(outputs, method), "lac", cv=0.5).fit(X, y)


def test_probabilities_that_are_none_for_new_rows_are_refused(digits):
    X, y, new, _ = digits
    model = ConformalClassifier(Wrapped(softmax32), cv=0.5).fit(X, y)
    assert pickle.loads(pickle.dumps(model.calibration_)) == model.calibration_
    model.estimator_.outputs = lambda z: z
    with pytest.raises(LogitsError, match=r"decision_function must give probabilities; got .*in calibration, all rows"):
        model.predict_set(new)


def test_estimators_of_several_outputs_or_without_classes_are_refused_by_name():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.integers(0, 3, (60, 2))
    forest = RandomForestClassifier(5, random_state=0).fit(X, y)
    with pytest.raises(InputError, match=r"RandomForestClassifier predicts 2 outputs at once; wrap one"):
        ConformalClassifier(forest, "lac", cv="prefit").fit(X, y[:, 0])

    class Nameless(Wrapped):
        def fit(self, X, y):
            super().fit(X, y)
            del self.classes_
            return self

    with pytest.raises(InputError, match="Nameless must have classes_ after fit"):
        ConformalClassifier(Nameless(softmax), "lac", cv=0.5).fit(X, y[:, 0])
