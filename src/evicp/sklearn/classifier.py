"""scikit-learn: any classifier, with prediction sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils import indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import Calibrator, calibrate
from evicp.calibration.laws import as_by
from evicp.calibration.laws.by_group import ByGroup
from evicp.calibration.laws.cross import CrossCalibration
from evicp.calibration.laws.groups import ByGroups
from evicp.errors import InputError, LabelsError
from evicp.evaluation.metrics import Evaluator, judged_by
from evicp.evaluation.result import Evaluation
from evicp.input import validate
from evicp.input.classes import ClassAxis
from evicp.input.frames import ids_of
from evicp.input.messages import OTHER_NAMES, refuse_unknown
from evicp.method.scores import ScoreLike, as_score
from evicp.sets import PredictionSets, with_ids
from evicp.sklearn.estimators import (
    aligned,
    as_column,
    classes_of,
    feature_labels,
    positions,
    read,
    same_columns,
    same_order,
)
from evicp.sklearn.training import Trained, rows_of, train, warn_of_unseen_classes
from evicp.types import F64, I64, Coverage, Coverages


def logits_of(estimator: Any, X: Any) -> NDArray[Any]:
    """The (n, K) logits of a fitted classifier.

    Uses `decision_function` if it has one value per class; a binary value s becomes (-s/2, s/2), whose softmax is the
    sigmoid of s. Otherwise uses ln(predict_proba): its softmax is exact, but log-probabilities are negative, so relu
    evidence is always zero. For such estimators use another score ("lac", "raps") or ECP(evidence="softplus"). Decision
    values that are probabilities (each row sums to 1) are treated as probabilities.
    """
    return read(estimator, X)[0]


def _group_function(by: Any) -> Callable[[Any], Any] | None:
    """The function of X that gives groups; None where `by` is another way to group, or none."""
    if by is None or isinstance(by, str | type) or not callable(by):
        if isinstance(as_by(by), ByGroup):
            raise InputError('by="group" needs the group of each row: pass a function of X that gives one per row.')
        return None
    return by


def _groups_of(group: Callable[[Any], Any], X: Any, n: int) -> NDArray[Any]:
    """The groups that a function gives for n rows, (n,)."""
    given = group(X)
    same_order(X, groups=given)
    return validate.as_groups(given, n)


class _KnowsOtherNames:
    """Says what alpha is called here; not in `__init__`, where scikit-learn takes every argument for a parameter."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        other = {name: value for name, value in given.items() if name in OTHER_NAMES}
        if other:
            refuse_unknown(cls.__name__, other)
        return super().__new__(cls)


class _Score:
    """The accuracy of the most plausible label, as for any classifier: `score(X, y, sample_weight=None)`.

    The constructor's `score` names the conformal score, while scikit-learn calls a method `score` for accuracy. Both
    are honoured: the parameter lives in the instance and in get_params, the attribute is the method.
    """

    def __get__(self, model: Any, kind: type) -> Callable[..., float]:
        """The method; of the class the function, which metadata routing reads the parameters of."""
        function: Any = ClassifierMixin.score
        return function if model is None else function.__get__(model, kind)

    def __set__(self, model: Any, value: Any) -> None:
        """The conformal score, as the constructor was given it."""
        model.__dict__["score"] = value


class ConformalClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator, _KnowsOtherNames):
    """A classifier that also predicts sets with a coverage guarantee.

    Parameters
    ----------
    estimator : classifier, default LogisticRegression()
    score : a name, "auto", a score or a callable of logits, as for `evicp.calibrate`; default "lac"
        If probabilities are right, no score has smaller sets on average than LAC. "auto" selects a score on a part of
        the calibration rows; `calibration_.score` is the score in use.
    coverage : number in (0, 1)
        The default target of `predict_set`.
    cv : "prefit", a share in (0, 1), a number of folds, "oob", or a splitter of scikit-learn
        "prefit": the estimator is already fitted and `fit` calibrates on all rows, which must not be training rows. A
        share: this part of the rows, drawn at random without stratification, is used for calibration, the rest for
        training. Folds: every row is scored by an estimator that was not trained on it, then the estimator is fitted on
        all rows; this uses the data best but has no exact guarantee. "oob": the same for a forest, with the trees that
        were not trained on the row; it is fitted once, and `calibration_.folds` is the number of rows. A splitter with
        one split is treated as a share, others as folds; no row may be held out twice. If a class has no training row,
        its calibration rows count as not covered, which keeps the coverage, and a warning names it.
    random_state : int, RandomState or None
        The seed of the split or the folds.
    by : None, "class", "uncertainty", `ByClass(...)`, `ByUncertainty(...)`, or a function of X
        Where the coverage must hold: over all rows, in every class, in every band of evidential uncertainty, or in
        every group of rows. A function of X returns one group per row, a whole number or a string:
        `by=lambda X: X["country"]`.
    ensemble : bool, or "proven"
        Whether to keep the estimators of the folds and use all of them for new rows (CV+). Every row is then used for
        training and calibration, and coverage has a proven bound, `calibration_.proven_coverage(0.9)`. With "proven"
        the full target coverage is proven, by average e-values. Each new row needs one prediction per fold.

    Attributes
    ----------
    estimator_ : classifier
        Fitted.
    estimators_ : list of classifiers, or None
        The estimators of the folds, if they are kept.
    calibration_ : `evicp.Calibration`, or `evicp.CrossCalibration` of an ensemble
    classes_ : (K,) labels in the order of the logits
        The classes of the estimator and those without training rows.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ConformalClassifier(score="lac", coverage=0.9, cv=0.4).fit(X, y)
    >>> model.predict_set(X[:2]).to_lists()
    [[0], [0]]
    >>> wide = ConformalClassifier(score="lac", cv=0.5, by=lambda X: np.where(X[:, 1] > 3, "wide", "narrow"))
    >>> wide.fit(X, y).calibration_
    Calibration(lac, 75 rows, 3 classes, by group (2 groups))
    >>> ConformalClassifier(LogisticRegression(max_iter=500), "lac", cv=5, ensemble=True).fit(X, y).calibration_
    CrossCalibration(lac, 150 rows in 5 folds, 3 classes)
    """

    def __init__(
        self,
        estimator: Any = None,
        score: ScoreLike = "lac",
        coverage: Coverage = 0.9,
        cv: Any = 0.2,
        random_state: int | None = 0,
        by: Any = None,
        ensemble: bool | Literal["proven"] = False,
    ) -> None:
        self.estimator = estimator
        self.score = score
        self.coverage = coverage
        self.cv = cv
        self.random_state = random_state
        self.by = by
        self.ensemble = ensemble

    score = _Score()

    @property
    def reads(self) -> str:
        """The kind of output that is calibrated and that an ONNX graph must have: "logits" or "probabilities"."""
        check_is_fitted(self)
        decides = self._reading.method == "decision_function" and not self._reading.probabilities
        return "logits" if decides else "probabilities"

    @property
    def _wanted_score(self) -> ScoreLike:
        wanted: ScoreLike = self.__dict__["score"]
        return wanted

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's parameters."""
        return {**super().get_params(deep), "score": self._wanted_score}

    def _base(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def fit(self, X: Any, y: Any, **fit_params: Any) -> ConformalClassifier:
        """Fit the estimator (unless it is prefit) and calibrate.

        Parameters
        ----------
        X, y
            Rows and their classes.
        fit_params
            Passed to the estimator's `fit`, for example `sample_weight`. Values with one entry per row are restricted
            to training rows; the calibration ignores them. With scikit-learn's metadata routing, the estimator must
            request them.
        """
        validate.as_coverage(self.coverage)  # a bad one is said before the work, not by the first prediction
        check_classification_targets(y)
        same_order(X, y=y, **fit_params)
        X, y = indexable(X, as_column(y))
        group = _group_function(self.by)
        if str(self._wanted_score).lower() != "auto":
            as_score(self._wanted_score)  # one that is refused is refused before anything is trained
        params = self._routed(fit_params)
        if self.ensemble == "proven" or validate.as_flag(self.ensemble, "ensemble"):
            self._check_ensemble(group)
        if len(np.unique(y)) == 1 and not isinstance(self.cv, str):
            raise LabelsError(f"y must contain at least 2 classes; got 1 class, {y.tolist()[0]!r}.")
        trained = train(
            self._base(), X, y, params, cv=self.cv, random_state=self.random_state, exact=bool(self.ensemble)
        )
        classes = self._classes(trained, y)
        calibration = self._calibrated(trained, X, y, classes, group)
        # All at once, at the end: a fit that fails must not leave a new estimator beside an old calibration.
        self.estimator_, self.classes_, self._group, self.calibration_ = trained.estimator, classes, group, calibration
        self._reading, self._columns = trained.reading, feature_labels(X)
        self.estimators_ = [part.estimator for part in trained.held_out] if self.ensemble else None
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)  # the last fit's
            if hasattr(trained.estimator, name):
                setattr(self, name, getattr(trained.estimator, name))
        return self

    def _classes(self, trained: Trained, y: NDArray[Any]) -> NDArray[Any]:
        """The estimator's classes; sorted, with those that it lacks, where its training part had no row of them."""
        known = classes_of(trained.estimator)
        lacks_some = not isinstance(self.cv, str) and len(np.setdiff1d(y, known)) > 0
        return np.union1d(known, y) if lacks_some else known

    def _calibrated(
        self, trained: Trained, X: Any, y: NDArray[Any], classes: NDArray[Any], group: Any
    ) -> Calibration | CrossCalibration:
        """The calibration of the rows held out; of each fold's estimator, where these are kept."""
        score, held_out = self._wanted_score, trained.held_out
        logits = [aligned(part.logits, classes_of(part.estimator), classes) for part in held_out]
        labels = [positions(y[part.rows], classes) for part in held_out]
        warn_of_unseen_classes(held_out, labels, classes, None if group else as_by(self.by), self.coverage)
        names = classes.tolist() if classes.dtype.kind in "iuf" else [str(c) for c in classes]
        labels = [ClassAxis.of(names, len(names)).labels(part) for part in labels]
        groups: list[NDArray[Any]] = []
        if group is not None:
            groups = [_groups_of(group, rows_of(X, part.rows), len(part.rows)) for part in held_out]
        if self.ensemble:
            return self._cross_calibrated(logits, labels, groups, score, names)
        by = np.concatenate(groups) if groups else self.by
        calibration = calibrate(np.concatenate(logits), np.concatenate(labels), score, by=by, class_names=names)
        return replace(calibration, folds=trained.folds)

    def _check_ensemble(self, group: Any) -> None:
        """Refuse what the estimators of folds cannot be asked for, before they are trained."""
        if isinstance(self.cv, str | float):
            raise InputError(
                f"ensemble keeps the estimators of folds; got cv={self.cv!r}. Pass a number of folds: cv=5."
            )
        if str(self._wanted_score).lower() == "auto":
            raise InputError(
                'ensemble needs one score for all folds; got "auto". Name a score, or find one with evicp.tune.'
            )
        by = None if group is not None else as_by(self.by)
        if isinstance(by, ByGroups) and by.of_logits:
            raise InputError(
                f'an ensemble cannot be by="{by.kind}": each estimator would have its own groups. Pass a function of X.'
            )

    def _cross_calibrated(
        self, logits: list[F64], labels: list[I64], groups: list[NDArray[Any]], score: Any, names: list[Any]
    ) -> CrossCalibration:
        """The calibration of each fold's estimator; of all groups, also those that a fold has no rows of."""
        by = ByGroup(tuple(np.unique(np.concatenate(groups)).tolist())) if groups else self.by
        return CrossCalibration(
            tuple(
                Calibrator(score, by=by, class_names=names).update(*part, groups=own).finish()
                for *part, own in zip(logits, labels, groups or repeat(None, len(logits)), strict=True)
            )
        )

    def _routed(self, fit_params: dict[str, Any]) -> dict[str, Any]:
        """What of the parameters of `fit` the estimator's own is given."""
        routing = fit_params and get_config()["enable_metadata_routing"]
        return process_routing(self, "fit", **fit_params)["estimator"]["fit"] if routing else fit_params

    def get_metadata_routing(self) -> Any:
        """For scikit-learn's metadata routing: what `fit` takes goes to the estimator's `fit`, weights to `score`."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=type(self).__name__).add_self_request(self)
        return router.add(estimator=self._base(), method_mapping=mapping)

    def predict(self, X: Any) -> NDArray[Any]:
        """The prediction of the estimator, one label per row."""
        check_is_fitted(self)
        same_columns(X, self._columns)
        return self.estimator_.predict(X)

    @available_if(lambda self: hasattr(getattr(self, "estimator_", self._base()), "predict_proba"))
    def predict_proba(self, X: Any) -> F64:
        """The probabilities of the estimator, if it has any; 0 for a class without training rows."""
        check_is_fitted(self)
        same_columns(X, self._columns)
        own = self.estimator_.predict_proba(X)
        known = classes_of(self.estimator_)
        return own if np.array_equal(known, self.classes_) else aligned(own, known, self.classes_, missing=0.0)

    @overload
    def predict_set(
        self,
        X: Any,
        coverage: Coverage | None = ...,
        *,
        confidence: float | None = ...,
        allow_empty: bool = ...,
        smoothed: Any = ...,
    ) -> PredictionSets: ...
    @overload
    def predict_set(
        self,
        X: Any,
        coverage: Coverages,
        *,
        confidence: float | None = ...,
        allow_empty: bool = ...,
        smoothed: Any = ...,
    ) -> list[PredictionSets]: ...
    def predict_set(
        self,
        X: Any,
        coverage: Coverage | Coverages | None = None,
        *,
        confidence: float | None = None,
        allow_empty: bool = True,
        smoothed: Any = False,
        **unknown: Any,
    ) -> PredictionSets | list[PredictionSets]:
        """Prediction sets of positions in `classes_`: `classes_[sets[i]]` are a row's classes, `names(i)` their text.

        `evaluate(X, y)`, `evicp.evaluate` and `sets.contains` take the classes themselves, or positions if the classes
        are not whole numbers. An ensemble has no `confidence` and no `smoothed`.

        Parameters
        ----------
        X
            Rows.
        coverage : number in (0, 1), or several, optional
            The target coverage, by default that of the constructor; several give a list of sets.
        confidence : float, optional
            Of training-conditional sets, as in `Calibration.predict`.
        allow_empty : bool
            If False, an empty set gets its top label.
        smoothed : bool, or random numbers, or a generator
            Break ties at random, as in `Calibration.predict`: average coverage equals the target.
        """
        refuse_unknown("predict_set", unknown)
        logits, groups = self._outputs(X)
        how = {"confidence": confidence, "allow_empty": allow_empty, "smoothed": smoothed}
        found, ids = self._sets(logits, groups, coverage, **how), ids_of(X)
        return [with_ids(sets, ids) for sets in found] if isinstance(found, list) else with_ids(found, ids)

    def _outputs(self, X: Any) -> tuple[Any, NDArray[Any] | None]:
        """The logits of new rows, or of each estimator of an ensemble, and their groups where a function gives them."""
        check_is_fitted(self)
        same_columns(X, self._columns)
        every = [self._logits(one, X) for one in self.estimators_ or [self.estimator_]]
        groups = None if self._group is None else _groups_of(self._group, X, len(every[0]))
        return every if self.estimators_ else every[0], groups

    def _logits(self, estimator: Any, X: Any) -> F64:
        """The logits of rows by one of the fitted estimators, in the order of `classes_`."""
        return aligned(self._reading(estimator, X), classes_of(estimator), self.classes_)

    def _sets(self, logits: Any, groups: Any, coverage: Any, **how: Any) -> Any:
        wanted = self.coverage if coverage is None else coverage
        if isinstance(self.calibration_, Calibration):
            return self.calibration_.predict(logits, wanted, groups=groups, **how)
        if how.pop("confidence") is not None or how.pop("smoothed") is not False:
            raise InputError("confidence and smoothed are not available for an ensemble; leave them out.")
        return self.calibration_.predict(logits, wanted, groups=groups, proven=self.ensemble == "proven", **how)

    def evaluate(
        self,
        X: Any,
        y: Any,
        coverage: Coverage | None = None,
        *,
        confidence: float | None = None,
        allow_empty: bool = True,
        smoothed: Any = False,
        min_count: int = 1,
    ) -> Evaluation:
        """Evaluate the sets of rows with known classes: coverage, size and adaptivity, also by group.

        Parameters
        ----------
        X, y
            Test rows, not used for training or calibration, and their classes.
        coverage, confidence, allow_empty, smoothed
            As for `predict_set`.
        min_count : int
            Strata with fewer rows are left out of SSCV.

        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> flowers = np.array([10, 20, 50])[y]
        >>> model = ConformalClassifier(score="lac", cv=0.5).fit(X[::2], flowers[::2])
        >>> result = model.evaluate(X[1::2], flowers[1::2])
        >>> round(result.coverage, 3), round(result.mean_size, 3)
        (0.893, 0.893)
        """
        same_order(X, y=y)
        logits, groups = self._outputs(X)
        sets = self._sets(logits, groups, coverage, confidence=confidence, allow_empty=allow_empty, smoothed=smoothed)
        truth = ClassAxis.known_to(sets).labels(positions(as_column(y), self.classes_))
        if isinstance(self.calibration_, CrossCalibration):
            logits = self._logits(self.estimator_, X)
        elif self.calibration_.has_row_groups:
            groups = self.calibration_.groups_of(logits, groups)
        found = Evaluator(min_count=min_count).update(sets, truth, logits, groups=groups).finish()
        return judged_by(self.calibration_, found) if isinstance(self.calibration_, Calibration) else found

    def predict_p(self, X: Any, *, smoothed: Any = False) -> F64:
        """Conformal p-values of every class, (n, K); with `by`, within the class or the row's group.

        With `smoothed`, ties are broken at random, as in `Calibration.p_values`.
        """
        logits, groups = self._outputs(X)
        if isinstance(self.calibration_, Calibration):
            return self.calibration_.p_values(logits, groups=groups, smoothed=smoothed)
        if smoothed is not False:
            raise InputError("the p-values of an ensemble cannot be smoothed; leave out smoothed.")
        return self.calibration_.p_values(logits, groups=groups)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = self._base()
        if hasattr(inner, "__sklearn_tags__"):
            tags.input_tags = inner.__sklearn_tags__().input_tags
        return tags
