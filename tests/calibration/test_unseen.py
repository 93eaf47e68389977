"""A column for labels that the model lacks: its logits by hand, its fit against scikit-learn's, and bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit, log_softmax, logsumexp, softmax

import evicp
from evicp import UnseenColumn, calibrate, fit_unseen
from evicp.errors import EvicpError, InputError, InputTypeError, LabelsError, LogitsError

K = 4


def draw(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of four classes, and labels, -1 for rows of a class that has none."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, K, n)
    return rng.normal(size=(n, K)) + 3 * np.eye(K + 1)[labels][:, :K], labels


LOGITS, LABELS = draw(0, 500)
COLUMN = fit_unseen(LOGITS, LABELS)


def test_the_column_has_the_probability_of_the_regression():
    column = UnseenColumn(K, -1, 0.3, -1.2, -0.4)
    wide = column.logits(LOGITS)
    np.testing.assert_array_equal(wide[:, :K], LOGITS)
    odds = 0.3 - 1.2 * log_softmax(LOGITS, axis=1).max(1) - 0.4 * LOGITS.max(1)
    np.testing.assert_allclose(softmax(wide, axis=1)[:, K], expit(odds), rtol=1e-9)
    np.testing.assert_allclose(wide[:, K], logsumexp(LOGITS, axis=1) + odds, rtol=1e-9)
    masked = np.where(np.arange(K) == 0, -np.inf, LOGITS)
    assert np.isfinite(column.logits(masked)[:, 1:]).all()
    assert column.logits(LOGITS[0]).shape == (1, K + 1)


def test_the_fit_is_that_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    features = np.column_stack([log_softmax(LOGITS, axis=1).max(1), LOGITS.max(1)])
    standard = (features - features.mean(0)) / features.std(0)
    other = linear_model.LogisticRegression(C=1 / (1e-3 * len(LABELS)), tol=1e-10).fit(standard, LABELS == -1)
    slopes = other.coef_[0] / features.std(0)
    np.testing.assert_allclose([COLUMN.of_probability, COLUMN.of_logit], slopes, rtol=1e-3)
    assert COLUMN.intercept == pytest.approx(float(other.intercept_[0] - slopes @ features.mean(0)), rel=1e-3)


def test_log_probabilities_and_rows_told_apart_without_an_error_have_finite_columns():
    for logits, labels in (
        (log_softmax(LOGITS, axis=1), LABELS),
        (np.where(LABELS[:, None] == -1, 0.0, 50 * LOGITS), LABELS),
        (np.zeros((10, K)), np.repeat([-1, 0], 5)),
    ):
        column = fit_unseen(logits, labels)
        assert np.isfinite(column.logits(logits)).all()


@pytest.mark.parametrize("score", ["lac", "ecp", "aps"])
def test_sets_say_something_else_with_any_score(score, tmp_path):
    rows, new = draw(1, 800), draw(2, 800)
    names = COLUMN.names(["a", "b", "c", "d"])
    calibration = calibrate(COLUMN.logits(rows[0]), COLUMN.labels(rows[1]), score, by=COLUMN.by, class_names=names)
    assert calibration.law.names == ("cluster 0 (4 classes)", "something else")
    calibration.save(tmp_path / "cal.safetensors")
    sets = evicp.load(tmp_path / "cal.safetensors").predict(COLUMN.logits(new[0]), 0.9)
    covered, truth = sets.contains(COLUMN.labels(new[1])), COLUMN.labels(new[1])
    assert covered[truth == K].mean() == pytest.approx(0.9, abs=0.08)
    assert covered[truth < K].mean() == pytest.approx(0.9, abs=0.05)
    assert "something else" in sets.names(int(np.flatnonzero(sets.mask()[:, K])[0]))
    assert UnseenColumn(**json.loads(json.dumps(COLUMN.to_dict()))) == COLUMN


def test_bad_input_is_refused():
    for call, kind, message in (
        (lambda: calibrate(LOGITS, LABELS), LabelsError, r"labels must be in \[0, 4\)"),  # as without the column
        (lambda: fit_unseen(LOGITS, LABELS, unseen=2), InputError, r"not be a label of the model, in \[0, 4\); got 2"),
        (lambda: fit_unseen(LOGITS, LABELS, unseen=True), InputTypeError, "unseen must be a whole number; got True"),
        (lambda: fit_unseen(LOGITS, LABELS, unseen=9), LabelsError, r"in \[0, 4\), or 9 for unseen; got -1 at row"),
        (lambda: fit_unseen(LOGITS, np.abs(LABELS)), InputError, "none is unseen. unseen=-1 names them"),
        (lambda: fit_unseen(LOGITS, np.full(500, -1)), InputError, "none is known"),
        (lambda: fit_unseen(LOGITS, LABELS[:9]), LabelsError, "one label per row; got 9 labels for 500 rows"),
        (lambda: fit_unseen(LOGITS, LABELS / 2), LabelsError, "whole numbers"),
        (lambda: COLUMN.logits(LOGITS[:, :3]), LogitsError, "must have 4 classes"),
        (lambda: COLUMN.labels([5]), LabelsError, "got 5 at row 0"),
    ):
        with pytest.raises(EvicpError, match=message) as caught:
            call()
        assert isinstance(caught.value, kind)
