"""The scikit-learn adapter: the estimator contract, and coverage on real classifiers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import evicp
from evicp.sklearn import ConformalClassifier, logits_of

#: Checks this estimator does not pass, and why. Reviewed, not collected.
KNOWN_FAILURES: dict[str, str] = {}


@parametrize_with_checks(
    [ConformalClassifier(LogisticRegression(), cv=0.3), ConformalClassifier(LogisticRegression(), score="lac", cv=3)],
    expected_failed_checks=lambda estimator: KNOWN_FAILURES,
)
@pytest.mark.filterwarnings("ignore")
def test_estimator_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X / 16, y, test_size=0.5, random_state=0, stratify=y)


@pytest.mark.parametrize("cv", [0.4, 5])
@pytest.mark.parametrize("score", ["ecp", "lac", evicp.RAPS(lam=0.05)])
def test_digits_reach_their_coverage(digits, cv, score):
    X, X_new, y, y_new = digits
    model = ConformalClassifier(LogisticRegression(max_iter=500), score=score, coverage=0.9, cv=cv).fit(X, y)
    evaluation = evicp.evaluate(model.predict_set(X_new), model._encode(y_new))
    law = model.calibration_.reliability(0.9)
    # The folds lie outside the exact guarantee, but must not be far from it.
    assert law.compatible(evaluation.coverage, evaluation.n, 0.9999).compatible


def test_prefit_calibrates_on_all_rows_and_leaves_the_estimator_alone(digits):
    X, X_new, y, y_new = digits
    fitted = LogisticRegression(max_iter=500).fit(X, y)
    before = fitted.coef_.copy()
    model = ConformalClassifier(fitted, cv="prefit").fit(X_new, y_new)
    assert model.calibration_.n == len(y_new)
    assert model.estimator_ is fitted
    np.testing.assert_array_equal(fitted.coef_, before)
    expected = evicp.calibrate(fitted.decision_function(X_new), y_new).scores
    np.testing.assert_array_equal(model.calibration_.scores, expected)


def test_a_share_keeps_calibration_rows_out_of_training(digits):
    X, _, y, _ = digits
    model = ConformalClassifier(RandomForestClassifier(30, random_state=0), score="lac", cv=0.5).fit(X, y)
    # A forest is nearly perfect on rows it was trained on: calibrated on them, the threshold would be far too low.
    seen = evicp.calibrate(logits_of(model.estimator_, X), y, "lac")
    assert model.calibration_.threshold(0.9) > seen.threshold(0.9)


def test_an_ensemble_keeps_its_probabilities(digits):
    X, X_new, y, _ = digits
    model = ConformalClassifier(RandomForestClassifier(10, random_state=0), score="lac", cv=0.5)
    assert hasattr(model, "predict_proba")  # an unfitted forest has no length, and so no truth value
    model.fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X_new), model.estimator_.predict_proba(X_new))


def test_string_labels_and_names():
    iris = load_iris()
    y = iris.target_names[iris.target]
    model = ConformalClassifier(cv=0.5).fit(iris.data, y)
    sets = model.predict_set(iris.data[:3], coverage=0.8)
    assert sets.class_names == tuple(sorted(set(y.tolist())))
    assert set(model.predict(iris.data)) <= set(y)
    assert model.score(iris.data, y) > 0.9
    with pytest.raises(evicp.EvicpError, match="classes the estimator was fitted on"):
        model._encode(np.array(["tulip"]))


def test_data_frames_keep_their_column_names():
    pd = pytest.importorskip("pandas")
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = ConformalClassifier(make_pipeline(StandardScaler(), LogisticRegression()), cv=0.3).fit(X, y)
    assert list(model.feature_names_in_) == list(X.columns)
    assert isinstance(X, pd.DataFrame)
    assert len(model.predict_set(X)) == len(X)


def test_grid_search_clone_and_pipeline():
    X, y = load_iris(return_X_y=True)
    model = ConformalClassifier(LogisticRegression(), score="lac")
    copy = clone(model.set_params(score="aps", coverage=0.8))
    assert copy.get_params()["score"] == "aps"
    assert copy.coverage == 0.8
    grid = {"conformal__estimator__C": [0.1, 1.0], "conformal__score": ["lac", "ecp"]}
    pipeline = make_pipeline(StandardScaler(), model)
    pipeline.steps[1] = ("conformal", model)
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.8
    assert search.best_estimator_.named_steps["conformal"].predict_p(X[:2]).shape == (2, 3)


def test_binary_decision_function_becomes_two_symmetric_logits():
    X, y = load_breast_cancer(return_X_y=True)
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    logits = logits_of(fitted, X)
    p = np.exp(-evicp.LAC().scores(logits))
    np.testing.assert_allclose(p, fitted.predict_proba(X), atol=1e-12)


def test_estimators_with_only_one_of_the_two_outputs():
    X, y = load_iris(return_X_y=True)
    ridge = RidgeClassifier().fit(X, y)
    np.testing.assert_array_equal(logits_of(ridge, X), ridge.decision_function(X))
    forest = RandomForestClassifier(10, random_state=0).fit(X, y)
    np.testing.assert_allclose(np.exp(logits_of(forest, X)), forest.predict_proba(X), atol=1e-12)
    assert np.isfinite(logits_of(forest, X)).all()
    assert not hasattr(ConformalClassifier(Perceptron()).fit(X, y), "predict_proba")
    pairs = SVC(decision_function_shape="ovo").fit(*load_digits(return_X_y=True))
    with pytest.raises(evicp.EvicpError, match="must have predict_proba"):
        logits_of(pairs, load_digits().data)


@pytest.mark.filterwarnings("ignore")  # SVC(probability=True) is on its way out
def test_three_decisions_between_pairs_are_no_logits():
    X, y = load_iris(return_X_y=True)
    pairs = SVC(decision_function_shape="ovo", probability=True, random_state=0)
    for estimator in (pairs, make_pipeline(StandardScaler(), pairs), GridSearchCV(pairs, {"C": [1.0]}, cv=2)):
        fitted = estimator.fit(X, y)
        assert fitted.decision_function(X).shape == (150, 3)
        np.testing.assert_allclose(np.exp(logits_of(fitted, X)), fitted.predict_proba(X), atol=1e-12)
    with pytest.raises(evicp.EvicpError, match='decision_function_shape="ovr"'):
        logits_of(SVC(decision_function_shape="ovo").fit(X, y), X)
    rest = SVC().fit(X, y)
    np.testing.assert_array_equal(logits_of(rest, X), rest.decision_function(X))


def test_log_probabilities_with_relu_evidence_warn():
    X, y = load_iris(return_X_y=True)
    with pytest.warns(evicp.EvicpWarning, match="no positive logit"):
        ConformalClassifier(RandomForestClassifier(10, random_state=0)).fit(X, y)


@pytest.mark.parametrize("cv", [0, 1, 1.5, "folds", True])
def test_bad_cv(cv):
    X, y = load_iris(return_X_y=True)
    with pytest.raises(evicp.EvicpError, match="cv must be"):
        ConformalClassifier(cv=cv).fit(X, y)
