"""Classifiers of scikit-learn through skl2onnx: the exported graph gives the sets of ConformalClassifier."""

from __future__ import annotations

import numpy as np
import pytest

convert = pytest.importorskip("skl2onnx")
ort = pytest.importorskip("onnxruntime")

from sklearn.datasets import load_digits  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression  # noqa: E402

import evicp  # noqa: E402
from evicp.onnx import export  # noqa: E402
from evicp.sklearn import ConformalClassifier  # noqa: E402

ESTIMATORS = [
    RandomForestClassifier(20, random_state=0),
    ExtraTreesClassifier(20, random_state=0),
    GradientBoostingClassifier(n_estimators=5, max_depth=2, random_state=0),
    LogisticRegression(C=0.01, max_iter=1000),
]


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X.astype(np.float32), y


def converted(model, rows, **options):
    options = {id(model.estimator_): {"zipmap": False, **options}}
    return convert.to_onnx(model.estimator_, rows[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})


@pytest.mark.filterwarnings("ignore::evicp.errors.SuspiciousInputWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def test_the_graph_gives_the_sets_of_the_classifier(digits, tmp_path, estimator):
    """Never a label less; more only where rounding to float32 lets in what lies at the threshold."""
    X, y = digits
    model = ConformalClassifier(estimator, cv=0.5).fit(X[:1200], y[:1200])
    graph = converted(model, X, **({"raw_scores": True} if model.reads == "logits" else {}))
    name = graph.graph.output[1].name
    export(graph, model, 0.9, tmp_path / "sets.onnx", logits=name)
    session = ort.InferenceSession(tmp_path / "sets.onnx")
    (mask,) = session.run(["set_mask"], {session.get_inputs()[0].name: X[1200:]})
    expected = model.predict_set(X[1200:]).mask()
    assert not (expected & ~mask).sum()
    assert (mask & ~expected).sum() <= 1


def test_decision_values_are_not_made_of_probabilities(digits, tmp_path):
    X, y = digits
    model = ConformalClassifier(ESTIMATORS[2], cv=0.5).fit(X[:600], y[:600])
    for how in ({}, {"output_is": "probabilities"}):
        with pytest.raises(evicp.errors.InputError, match=r"raw_scores|contains probabilities"):
            export(converted(model, X), model, 0.9, tmp_path / "sets.onnx", logits="probabilities", **how)
    assert not (tmp_path / "sets.onnx").exists()


def test_an_ensemble_is_refused(digits, tmp_path):
    X, y = digits
    model = ConformalClassifier(LogisticRegression(C=0.01, max_iter=1000), cv=2, ensemble=True).fit(X[:400], y[:400])
    with pytest.raises(evicp.errors.InputError, match="ensemble cannot be exported"):
        export(converted(model, X), model, 0.9, tmp_path / "sets.onnx")
