"""scikit-learn: any classifier, with prediction sets."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.calibration import Calibration, Calibrator
from evicp.errors import InputError, missing_extra
from evicp.scores import Score
from evicp.sets import PredictionSets

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit
    from sklearn.utils import _safe_indexing, indexable
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError as error:
    raise missing_extra("scikit-learn", "sklearn", "the scikit-learn adapter") from error

__all__ = ["ConformalClassifier", "logits_of"]


def logits_of(estimator: Any, X: Any) -> NDArray[np.float64]:
    """The (n, K) logits of a fitted classifier.

    `decision_function` where it has one value per class, not per pair of classes; a binary one, s, becomes
    (-s/2, s/2), whose softmax is the sigmoid of s. Otherwise ln(predict_proba): the softmax of it is exact, but every
    log-probability is negative, so relu evidence is zero throughout. For such estimators choose another score ("lac",
    "raps") or ECP(evidence="softplus").
    """
    n_classes = len(estimator.classes_)
    if hasattr(estimator, "decision_function"):
        values = np.asarray(estimator.decision_function(X), dtype=np.float64)
        if values.ndim == 1 and n_classes == 2:
            return np.stack([-values / 2, values / 2], axis=1)
        if values.ndim == 2 and values.shape[1] == n_classes and not _compares_pairs(estimator):
            return values
    if hasattr(estimator, "predict_proba"):
        # A probability of exactly 0 stays possible: the smallest double's logarithm, not -inf.
        return np.log(np.maximum(np.asarray(estimator.predict_proba(X), dtype=np.float64), 1e-300))
    raise InputError(
        f"{type(estimator).__name__} must have predict_proba, or decision_function with one value per class. "
        'Wrap it in CalibratedClassifierCV; an SVC takes decision_function_shape="ovr".'
    )


def _compares_pairs(estimator: Any) -> bool:
    """Whether the decisions of an SVC are those between pairs of classes: three classes have three pairs."""
    while hasattr(estimator, "best_estimator_"):
        estimator = estimator.best_estimator_
    if getattr(estimator, "steps", None):
        return _compares_pairs(estimator.steps[-1][1])
    return getattr(estimator, "decision_function_shape", None) == "ovo"


def _inner_has(method: str) -> Callable[[ConformalClassifier], bool]:
    def check(self: ConformalClassifier) -> bool:
        return hasattr(self.estimator_ if hasattr(self, "estimator_") else self._base(), method)

    return check


class ConformalClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier that also predicts sets with a coverage guarantee.

    Parameters
    ----------
    estimator : classifier, default LogisticRegression()
    score : a name, a score or a callable of logits; of two classes "lac" says more than ECP
    coverage : what `predict_set` asks for by default
    cv : "prefit", a share in (0, 1), or a number of folds
        "prefit": the estimator is fitted already and `fit` calibrates on all it is given; these rows must not have
        trained it. A share: that part of the rows calibrates, the rest trains. Folds: every row is scored by an
        estimator that has not seen it, then the estimator is fitted on all rows; this uses the data best but lies
        outside the exact guarantee.
    random_state : of the split or the folds

    Attributes
    ----------
    estimator_ : the fitted classifier
    calibration_ : the `evicp.Calibration`
    classes_ : the labels, in the order of the logits

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ConformalClassifier(score="lac", coverage=0.9, cv=0.4).fit(X, y)
    >>> model.predict_set(X[:2]).to_lists()
    [[0], [0]]
    """

    def __init__(
        self,
        estimator: Any = None,
        score: str | Score | Callable[..., Any] = "ecp",
        coverage: float | Fraction = 0.9,
        cv: str | float | int = 0.2,
        random_state: int | None = 0,
    ) -> None:
        self.estimator = estimator
        self.score = score
        self.coverage = coverage
        self.cv = cv
        self.random_state = random_state

    # The constructor's `score` names the conformal score, while scikit-learn calls a method `score` for accuracy. Both
    # are honoured: the parameter lives in the instance and in get_params, the attribute is the method.

    @property
    def score(self) -> Callable[..., float]:
        """Accuracy of the most plausible label, as for any classifier: `score(X, y, sample_weight=None)`."""
        return super().score

    @score.setter
    def score(self, value: Any) -> None:
        self.__dict__["score"] = value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's parameters."""
        return {**super().get_params(deep), "score": self.__dict__["score"]}

    def _base(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def fit(self, X: Any, y: Any) -> ConformalClassifier:
        """Fit the estimator (unless it is prefit) and calibrate."""
        check_classification_targets(y)
        X, y = indexable(X, column_or_1d(y, warn=True))
        if self.cv == "prefit":
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
            calibrator = self._calibrator().update(logits_of(self.estimator_, X), self._encode(y))
        else:
            calibrator = self._fit_and_score(X, y)
        self.classes_ = self.estimator_.classes_
        self.calibration_: Calibration = calibrator.finish()
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def _fit_and_score(self, X: Any, y: NDArray[Any]) -> Calibrator:
        """Fit on a part and calibrate on the rest, once or fold by fold."""
        base, calibrator = self._base(), None
        for train, held_out in self._splits(y):
            self.estimator_ = clone(base).fit(_safe_indexing(X, train), y[train])
            if len(self.estimator_.classes_) < len(np.unique(y)):
                raise InputError("every class needs a row in the training part; got a class with too few rows for cv.")
            calibrator = calibrator or self._calibrator()
            calibrator.update(logits_of(self.estimator_, _safe_indexing(X, held_out)), self._encode(y[held_out]))
        if not isinstance(self.cv, float):
            self.estimator_ = clone(base).fit(X, y)
        assert calibrator is not None  # _splits yields at least one
        return calibrator

    def _splits(self, y: NDArray[Any]) -> Any:
        rows = np.zeros((len(y), 1))
        if isinstance(self.cv, float) and 0 < self.cv < 1:
            return StratifiedShuffleSplit(1, test_size=self.cv, random_state=self.random_state).split(rows, y)
        if isinstance(self.cv, int) and not isinstance(self.cv, bool) and self.cv >= 2:
            return StratifiedKFold(self.cv, shuffle=True, random_state=self.random_state).split(rows, y)
        raise InputError(f'cv must be "prefit", a share in (0, 1) or a number of folds >= 2; got {self.cv!r}.')

    def _calibrator(self) -> Calibrator:
        return Calibrator(self.__dict__["score"], class_names=[str(c) for c in self.estimator_.classes_])

    def _encode(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Labels as positions in the estimator's classes."""
        classes = self.estimator_.classes_
        position = np.clip(np.searchsorted(classes, y), 0, len(classes) - 1)
        unknown = classes[position] != y
        if np.any(unknown):
            raise InputError(f"y must hold classes the estimator was fitted on; got {y[unknown][0]!r}.")
        return position

    def predict(self, X: Any) -> NDArray[Any]:
        """The estimator's own prediction, one label per row."""
        check_is_fitted(self)
        return self.estimator_.predict(X)

    @available_if(_inner_has("predict_proba"))
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The estimator's own probabilities, where it has any."""
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    def predict_set(
        self, X: Any, coverage: float | Fraction | None = None, *, allow_empty: bool = True
    ) -> PredictionSets:
        """Prediction sets; labels are positions in `classes_`, `names(i)` their text."""
        check_is_fitted(self)
        wanted = self.coverage if coverage is None else coverage
        return self.calibration_.predict(logits_of(self.estimator_, X), wanted, allow_empty=allow_empty)

    def predict_p(self, X: Any) -> NDArray[np.float64]:
        """Conformal p-values of every class, (n, K)."""
        check_is_fitted(self)
        return self.calibration_.p_values(logits_of(self.estimator_, X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = self._base()
        if hasattr(inner, "__sklearn_tags__"):
            tags.input_tags = inner.__sklearn_tags__().input_tags
        return tags
