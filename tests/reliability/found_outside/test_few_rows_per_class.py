"""What becomes of classes that the training part of a random split has no row of.

The law of coverage of such splits is measured in `tests/reliability/test_few_rows_law.py`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.model_selection import ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

import evicp
from classifiers import Centroids, OfAppearance
from evicp.errors import InputError, SuspiciousInputWarning
from evicp.sklearn import ConformalClassifier

pytestmark = [pytest.mark.reliability, pytest.mark.filterwarnings("ignore::evicp.errors.EvicpWarning")]


@pytest.fixture
def one_of_a_kind() -> tuple[Any, Any]:
    """Rows of three classes, and one row of a fourth, which is the first that a share of 0.3 holds out."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 100)
    X = 3 * np.eye(3)[y] + rng.normal(size=(100, 3))
    names = np.array(["a", "b", "d"], dtype=object)[y]
    names[np.random.RandomState(0).permutation(100)[0]] = "c"
    return X, names


@pytest.mark.parametrize("estimator", [GaussianNB(), Centroids(), DecisionTreeClassifier(max_depth=3, random_state=0)])
def test_a_class_without_a_row_to_train_on_is_named_and_never_covered(one_of_a_kind, estimator):
    X, y = one_of_a_kind
    with pytest.warns(SuspiciousInputWarning, match=r"^1 of 4 classes .* \('c'\).* 1 of 30 calibration rows") as warned:
        model = ConformalClassifier(estimator, "lac", cv=0.3).fit(X, y)
    assert [one.filename for one in warned if "of 4 classes" in str(one.message)] == [__file__]
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    assert model.calibration_.n == 30
    assert np.isposinf(model.calibration_.scores).sum() == 1  # a row that only full sets cover
    assert "c" not in model.estimator_.classes_
    sets = model.predict_set(X, coverage=0.9)
    assert not sets.mask()[:, 2].any()
    with pytest.warns(evicp.EvicpWarning):  # more is asked than 30 rows of which one is never covered can keep
        assert model.predict_set(X, coverage=0.99).mask().all()
    assert model.evaluate(X, y).class_coverage.coverage[2] == 0
    assert (model.predict_p(X)[:, 2] == 2 / 31).all()
    if hasattr(model, "predict_proba"):
        assert model.predict_proba(X).shape == (100, 4)
        assert (model.predict_proba(X)[:, 2] == 0).all()
        np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)


def test_by_class_its_label_is_in_every_set(one_of_a_kind):
    X, y = one_of_a_kind
    with pytest.warns(SuspiciousInputWarning, match="their labels are in every set"):
        model = ConformalClassifier(GaussianNB(), "lac", cv=0.3, by="class").fit(X, y)
    assert model.predict_set(X, coverage=0.8).mask()[:, 2].all()


def test_full_sets_are_said(one_of_a_kind):
    X, y = one_of_a_kind
    y = y.copy()
    y[np.random.RandomState(0).permutation(100)[:10]] = "c"  # all of its rows calibrate: a third of those
    with pytest.warns(
        SuspiciousInputWarning, match=r"10 of 30 calibration rows .*; at coverage 0\.8 every set is full"
    ):
        model = ConformalClassifier(GaussianNB(), "lac", cv=0.3, coverage=0.8).fit(X, y)
    assert model.predict_set(X).mask().all()


@pytest.mark.parametrize("ensemble", [False, True])
@pytest.mark.parametrize("estimator", [GaussianNB(), OfAppearance()], ids=["sorted", "of appearance"])
def test_folds_that_lack_a_class_keep_their_columns(one_of_a_kind, estimator, ensemble):
    """Each fold's estimator has its own classes, in its own order."""
    X, y = one_of_a_kind
    with pytest.warns(SuspiciousInputWarning, match=r"1 of 4 classes have no training row in some fold \('c'\)"):
        model = ConformalClassifier(estimator, "lac", cv=4, ensemble=ensemble).fit(X, y)
    inside = np.array(
        [label in model.classes_[labels] for label, labels in zip(y, model.predict_set(X, 0.8), strict=True)]
    )
    assert inside[y != "c"].mean() > 0.7
    assert model.evaluate(X, y, 0.8).coverage == inside.mean()
    parts = model.calibration_.folds if ensemble else [model.calibration_]
    assert sum(np.isposinf(part.scores).sum() for part in parts) == 1


def test_folds_by_class_know_which_class_a_row_has():
    """Positions in the classes of one fold's estimator are not those of another's."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(4), [10, 20, 30, 40]))
    X = 3 * np.eye(4)[y] + rng.normal(size=(100, 4))
    found = [ConformalClassifier(base, "lac", cv=5, by="class").fit(X, y) for base in (Centroids(), OfAppearance())]
    places = found[1].calibration_.class_names
    counts = dict(zip(places, found[1].calibration_.groups.counts.tolist(), strict=True))
    assert counts == {"0": 10, "1": 20, "2": 30, "3": 40}
    np.testing.assert_allclose(np.sort(found[0].calibration_.scores), np.sort(found[1].calibration_.scores), rtol=1e-9)


def test_a_training_part_of_one_class_is_refused_by_name():
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = np.where(np.arange(40) == np.random.RandomState(0).permutation(40)[0], "yes", "no")
    with pytest.raises(
        InputError, match=r"LogisticRegression .* rows of one class.* 28 .*rows .*all of class 'no'.* Give"
    ):
        ConformalClassifier(cv=0.3).fit(X, y)
    with pytest.warns(SuspiciousInputWarning, match=r"1 of 2 classes .*'yes'"):
        model = ConformalClassifier(GaussianNB(), cv=0.3).fit(X, y)
    assert model.predict_set(X, 0.8).to_lists() == [[0]] * 40


def test_splitters_that_look_at_labels_are_named():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    X = 3 * np.eye(3)[y] + rng.normal(size=(90, 3))
    for cv, options in [
        (StratifiedShuffleSplit(1, test_size=0.3, random_state=0), {}),
        (StratifiedKFold(3), {"ensemble": True}),
    ]:
        with pytest.warns(SuspiciousInputWarning, match=f"{type(cv).__name__} selects rows by their labels"):
            ConformalClassifier(GaussianNB(), cv=cv, **options).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ConformalClassifier(GaussianNB(), cv=ShuffleSplit(1, test_size=0.3, random_state=0)).fit(X, y)
        ConformalClassifier(GaussianNB(), cv=StratifiedKFold(3)).fit(X, y)  # which guarantees nothing
