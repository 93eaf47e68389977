"""scikit-learn: any classifier, with prediction sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from evicp import checks
from evicp.arrays import F64, I64, Coverage, Coverages
from evicp.calibration import Calibration, Calibrator, calibrate
from evicp.cross import CrossCalibration
from evicp.errors import InputError, InputTypeError, LabelsError, SuspiciousInputWarning, unusable
from evicp.groups import ByGroup, ByUncertainty, as_groups
from evicp.metrics import Evaluation, Evaluator
from evicp.scores import ScoreLike, as_score
from evicp.sets import PredictionSets

try:
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.utils import _safe_indexing, check_random_state, indexable
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_method_params, check_is_fitted, column_or_1d
except ImportError as error:
    raise unusable("sklearn", "scikit-learn", "sklearn", "the scikit-learn adapter", error) from error

__all__ = ["ConformalClassifier", "logits_of"]


def logits_of(estimator: Any, X: Any) -> F64:
    """The (n, K) logits of a fitted classifier.

    `decision_function` where it has one value per class, not per pair of classes; a binary one, s, becomes
    (-s/2, s/2), whose softmax is the sigmoid of s. Otherwise ln(predict_proba): the softmax of it is exact, but every
    log-probability is negative, so relu evidence is zero throughout. For such estimators choose another score ("lac",
    "raps") or ECP(evidence="softplus").
    """
    decisions = _decisions(estimator, X)
    if decisions is not None:
        return decisions
    if hasattr(estimator, "predict_proba"):
        return _log_probabilities(estimator, X)
    raise InputError(
        f"{type(estimator).__name__} must have predict_proba, or decision_function with one value per class. "
        'Wrap it in CalibratedClassifierCV; an SVC takes decision_function_shape="ovr".'
    )


def _log_probabilities(estimator: Any, X: Any) -> F64:
    """The (n, K) logits of a fitted classifier by its probabilities alone, also where it has decision values."""
    return _log(estimator.predict_proba(X))


def _log(probabilities: Any) -> F64:
    """Probabilities as logits; one of exactly 0 stays possible: the logarithm of a tiny number, not -inf."""
    return np.log(np.maximum(np.asarray(probabilities, dtype=np.float64), checks.SMALLEST_PROBABILITY))


def _decisions(estimator: Any, X: Any) -> F64 | None:
    """One decision value per class, (n, K); None where the estimator has none."""
    n_classes = len(estimator.classes_)
    if hasattr(estimator, "decision_function"):
        values = np.asarray(estimator.decision_function(X), dtype=np.float64)
        if values.ndim == 1 and n_classes == 2:
            return np.stack([-values / 2, values / 2], axis=1)
        if values.ndim == 2 and values.shape[1] == n_classes and not _compares_pairs(estimator):
            return values
    return None


def _listed(values: Iterable[Any]) -> str:
    """Some values as text, the first eight of them."""
    return checks.some_of(list(values), repr)


def _compares_pairs(estimator: Any) -> bool:
    """Whether the decisions of an SVC are those between pairs of classes: three classes have three pairs."""
    for inner in ("best_estimator_", "final_estimator_", "estimator_"):  # of searches, of stacks, of bags and others
        if hasattr(estimator, inner):
            return _compares_pairs(getattr(estimator, inner))
    if getattr(estimator, "steps", None):
        return _compares_pairs(estimator.steps[-1][1])
    return getattr(estimator, "decision_function_shape", None) == "ovo"


@dataclass(frozen=True, eq=False, repr=False)
class _PositionSets(PredictionSets):
    """Sets of positions in classes that are other whole numbers; labels that look like the classes are warned of."""

    classes: tuple[int, ...] = ()

    def numbers(self, labels: Any) -> I64:
        """As for any sets: one position in `classes` per row, (n,)."""
        hint = "These sets hold positions in classes_; ConformalClassifier.evaluate(X, y) takes the classes themselves."
        try:
            numbers = super().numbers(labels)
        except (LabelsError, InputTypeError) as error:
            raise type(error)(f"{error} {hint}") from None
        if checks.as_array(labels, "labels").dtype.kind not in "iu":  # names, which say which class is meant
            return numbers
        classes, given = np.array(self.classes), np.unique(numbers)
        if np.isin(given, classes).all() and np.any(classes[given] != given):
            what = "labels may be classes where positions are meant: each of them is a class, too."
            checks.warn(f"{what} {hint}", SuspiciousInputWarning)
        return numbers


def _of_positions(sets: Any, classes: NDArray[Any]) -> Any:
    """Sets that know the classes, where positions and classes are different whole numbers."""
    if isinstance(sets, list):  # of several coverages
        return [_of_positions(one, classes) for one in sets]
    whole = classes.dtype.kind in "iu" or (classes.dtype.kind == "f" and np.array_equal(classes, np.rint(classes)))
    if not whole or np.array_equal(classes, np.arange(len(classes))):
        return sets
    known = {field.name: getattr(sets, field.name) for field in fields(sets)}
    return _PositionSets(**known, classes=tuple(map(int, classes)))


class _Part(NamedTuple):
    """Rows that calibrate: their places in X, logits of an estimator that has not seen them, positions of classes."""

    rows: I64
    logits: F64
    labels: I64
    estimator: Any


def _positions(y: NDArray[Any], estimator: Any) -> I64:
    """Labels as positions in the estimator's classes."""
    known = {label: position for position, label in enumerate(np.asarray(estimator.classes_).tolist())}
    given = y.tolist()
    unknown = list(dict.fromkeys(label for label in given if label not in known))
    if unknown:
        raise LabelsError(
            f"y must hold classes the estimator was fitted on ({_listed(known)}); got {_listed(unknown)}. "
            "Drop such rows, or fit with rows of these classes."
        )
    return np.array([known[label] for label in given], dtype=np.int64)


#: Chances below this that a class is held out as a whole are not provided for.
_UNLIKELY = 1e-3


@dataclass(frozen=True)
class _AtRandom:
    """A splitter: a share of the rows is held out once, or every row once in so many folds.

    Which rows calibrate must not depend on their labels. Parts with as many rows of each class as the whole (stratified
    ones) leave out the classes that have few, because half a row is rounded off, and the promise is then kept for the
    others alone. Only where a class would have no row to train on, rows lie in the order of their classes: rows that
    are held out then lie apart, and each is still as likely as any other to be one of them. Of a share, the numbers of
    rows say beforehand where that may happen: taken only after such a draw, this order would leave the draws in which
    small classes are held out less than others.
    """

    parts: float
    random_state: Any

    def split(self, _X: Any, y: NDArray[Any]) -> list[tuple[I64, I64]]:
        """Which rows train and which are held out, in each split."""
        classes, numbers, counts = np.unique(y, return_inverse=True, return_counts=True)
        random = check_random_state(self.random_state)
        order, start = random.permutation(len(y)), random.random_sample()
        splits = self._cut(order, start)
        at_risk = self.parts < 1 and np.sum(self.parts**counts) > _UNLIKELY
        if at_risk or any(len(np.unique(numbers[train])) < len(classes) for train, _ in splits):
            place = random.permutation(len(classes))[numbers]
            splits = self._cut(order[np.argsort(place[order], kind="stable")], start)
        return splits

    def _cut(self, order: I64, start: float) -> list[tuple[I64, I64]]:
        if self.parts < 1:
            steps = np.floor(start + self.parts * np.arange(len(order) + 1))
            numbers, parts = np.where(np.diff(steps) > 0, 0, 1), 1
        else:
            parts = int(self.parts)
            numbers = (int(start * parts) + np.arange(len(order))) % parts
        splits = [(np.sort(order[numbers != part]), np.sort(order[numbers == part])) for part in range(parts)]
        if not all(len(train) and len(held_out) for train, held_out in splits):
            raise ValueError(f"n_samples={len(order)} leaves a part of them empty.")
        return splits


def _group_function(by: Any) -> Callable[[Any], Any] | None:
    """The function of X that gives groups; None where `by` is another way to group, or none."""
    if by is None or isinstance(by, str | type) or not callable(by):
        if isinstance(as_groups(by), ByGroup):
            raise InputError('by="group" needs the group of each row: pass a function of X that gives one per row.')
        return None
    return by


def _inner_has(method: str) -> Callable[[ConformalClassifier], bool]:
    def check(self: ConformalClassifier) -> bool:
        return hasattr(self.estimator_ if hasattr(self, "estimator_") else self._base(), method)

    return check


class ConformalClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier that also predicts sets with a coverage guarantee.

    Parameters
    ----------
    estimator : classifier, default LogisticRegression()
    score : a name, "auto", a score or a callable of logits, as for `evicp.calibrate`
        By default ECP where decision values of more than two classes are scored, and LAC otherwise: the
        logarithms of probabilities are no evidence, and of two classes ECP can only say that both are possible.
        `calibration_.score` is the one that was taken. "auto" uses a part of the calibration rows up to choose with.
    coverage : what `predict_set` asks for by default
    cv : "prefit", a share in (0, 1), a number of folds, "oob", or a splitter of scikit-learn
        "prefit": the estimator is fitted already and `fit` calibrates on all it is given; these rows must not have
        trained it. A share: that part of the rows, drawn at random, calibrates, the rest trains. Folds: every row is
        scored by an estimator that has not seen it, then the estimator is fitted on all rows; this uses the data best
        but lies outside the exact guarantee. "oob": the same for a forest, by the probabilities of those of its trees
        that were not trained on the row; it is fitted once, and `calibration_.folds` is the number of rows. A splitter
        that splits once is a share, any other is folds; no row may be held out twice.
    random_state : of the split or the folds
    by : None, "class", "uncertainty", `ByClass(...)`, `ByUncertainty(...)`, or a function of X
        Where the coverage must hold: over all rows, in every class, in every band of evidential uncertainty, or in
        every group of rows. A function gives one group per row, a whole number or a string, of the rows that calibrate
        and of those to predict: `by=lambda X: X["country"]`.
    ensemble : whether the estimators of the folds are kept and asked about new rows (CV+)
        Then every row trains and calibrates, and coverage has a proven bound, `calibration_.proven_coverage(0.9)`,
        which folds without it lack. `calibration_` is an `evicp.CrossCalibration`. A new row takes as many predictions
        as there are folds.

    Attributes
    ----------
    estimator_ : the fitted classifier
    estimators_ : the classifiers of the folds, where they are kept
    calibration_ : the `evicp.Calibration`
    classes_ : the labels, in the order of the logits

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
        score: ScoreLike | None = None,
        coverage: Coverage = 0.9,
        cv: Any = 0.2,
        random_state: int | None = 0,
        by: Any = None,
        ensemble: bool = False,
    ) -> None:
        self.estimator = estimator
        self.score = score
        self.coverage = coverage
        self.cv = cv
        self.random_state = random_state
        self.by = by
        self.ensemble = ensemble

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

    def fit(self, X: Any, y: Any, **fit_params: Any) -> ConformalClassifier:
        """Fit the estimator (unless it is prefit) and calibrate.

        Parameters
        ----------
        X, y : rows and their classes
        fit_params : for the estimator's `fit`, as `sample_weight`
            Those with one entry per row are cut to the rows that train. They have no say in the calibration, where all
            rows count alike. Where scikit-learn's metadata routing is enabled, the estimator must request them.
        """
        checks.as_coverage(self.coverage)  # a bad one is said before the work, not by the first prediction
        check_classification_targets(y)
        X, y = indexable(X, column_or_1d(y, warn=True))
        group = _group_function(self.by)
        if self.__dict__["score"] is not None and str(self.__dict__["score"]).lower() != "auto":
            as_score(self.__dict__["score"])  # one that is refused is refused before anything is trained
        params, read = self._routed(fit_params), logits_of
        if self.ensemble:
            self._check_ensemble(group)
        if isinstance(self.cv, str) and self.cv == "prefit":
            if params:
                raise InputError(f"a prefit estimator is not fitted again; got {_listed(params)}. Fit it with them.")
            check_is_fitted(self.estimator)
            estimator = self.estimator
            used = [_Part(np.arange(len(y)), logits_of(estimator, X), _positions(y, estimator), estimator)]
            folds = None
        elif isinstance(self.cv, str) and self.cv == "oob":
            estimator, used = self._fit_out_of_bag(X, y, params)
            folds, read = len(used[0].rows), _log_probabilities  # as rows out of their bags are scored
        else:
            estimator, used = self._fit_and_score(X, y, params)
            folds = len(used) if len(used) > 1 else None
        classes, score = np.asarray(estimator.classes_), self._conformal_score(estimator, X, read)
        names = [str(c) for c in classes]
        groups = [
            None if group is None else checks.as_groups(group(_safe_indexing(X, p.rows)), len(p.rows)) for p in used
        ]
        calibration: Calibration | CrossCalibration
        if self.ensemble:
            calibration = self._cross_calibrated(used, groups, score, names)
        else:
            logits, labels = (np.concatenate([getattr(part, what) for part in used]) for what in ("logits", "labels"))
            by = self.by if group is None else np.concatenate([part for part in groups if part is not None])
            calibration = replace(calibrate(logits, labels, score, by=by, class_names=names), folds=folds)
        # All at once, at the end: a fit that fails must not leave a new estimator beside an old calibration.
        self.estimator_, self.classes_, self._group, self.calibration_ = estimator, classes, group, calibration
        self._read, self.estimators_ = read, [part.estimator for part in used] if self.ensemble else None
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)  # the last fit's
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))
        return self

    def _check_ensemble(self, group: Any) -> None:
        """Refuse what the estimators of folds cannot be asked for, before they are trained."""
        if isinstance(self.cv, str | float):
            raise InputError(
                f"ensemble keeps the estimators of folds; got cv={self.cv!r}. Pass a number of folds: cv=5."
            )
        if str(self.__dict__["score"]).lower() == "auto":
            raise InputError(
                'ensemble needs one score for all folds; got "auto". Name it, or choose it with evicp.tune.'
            )
        if group is None and isinstance(as_groups(self.by), ByUncertainty):
            raise InputError(
                'an ensemble cannot be by="uncertainty": each estimator has its own. Pass a function of X.'
            )

    def _cross_calibrated(
        self, used: list[_Part], groups: list[NDArray[Any] | None], score: Any, names: list[str]
    ) -> CrossCalibration:
        """The calibration of each fold's estimator; of all groups, also those that a fold has no rows of."""
        known = [part for part in groups if part is not None]
        by = ByGroup(tuple(np.unique(np.concatenate(known)).tolist())) if known else self.by
        return CrossCalibration(
            tuple(
                Calibrator(score, by=by, class_names=names).update(part.logits, part.labels, groups=own).finish()
                for part, own in zip(used, groups, strict=True)
            )
        )

    def _conformal_score(self, estimator: Any, X: Any, read: Any) -> Any:
        """The score asked for, or the one that suits what is read of the fitted estimator; its kind alone decides."""
        if self.__dict__["score"] is not None:
            return self.__dict__["score"]
        several = len(estimator.classes_) > 2 and read is logits_of
        return "ecp" if several and _decisions(estimator, _safe_indexing(X, [0])) is not None else "lac"

    def _routed(self, fit_params: dict[str, Any]) -> dict[str, Any]:
        """What of the parameters of `fit` the estimator's own is given."""
        routing = fit_params and get_config()["enable_metadata_routing"]
        return process_routing(self, "fit", **fit_params)["estimator"]["fit"] if routing else fit_params

    def get_metadata_routing(self) -> Any:
        """For scikit-learn's metadata routing: what `fit` takes goes to the estimator's `fit`."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=type(self).__name__).add(estimator=self._base(), method_mapping=mapping)

    def _fit_and_score(self, X: Any, y: NDArray[Any], params: dict[str, Any]) -> tuple[Any, list[_Part]]:
        """The estimator, fitted on a part, and the rest that calibrates, once or fold by fold."""
        base, used = self._base(), []
        for train, held_out in self._splits(X, y):
            some = _check_method_params(X, params, train)
            estimator = clone(base).fit(_safe_indexing(X, train), y[train], **some)
            known = set(np.asarray(estimator.classes_).tolist())
            missing = [label for label in np.unique(y).tolist() if label not in known]
            if missing:
                raise self._too_few(missing)
            logits = logits_of(estimator, _safe_indexing(X, held_out))
            used.append(_Part(held_out, logits, _positions(y[held_out], estimator), estimator))
        if len(used) > 1:
            estimator = clone(base).fit(X, y, **_check_method_params(X, params))
        return estimator, used

    def _fit_out_of_bag(self, X: Any, y: NDArray[Any], params: dict[str, Any]) -> tuple[Any, list[_Part]]:
        """The estimator, fitted on all rows, and what those of its parts say of each that were not trained on it."""
        estimator = clone(self._base())
        if "oob_score" not in estimator.get_params(deep=False):
            raise InputError(
                f'cv="oob" needs an estimator that leaves rows out of its bags and has oob_score, such as '
                f"RandomForestClassifier; got {type(estimator).__name__}. Use folds: cv=5."
            )
        if estimator.get_params(deep=False).get("bootstrap") is False:
            raise InputError(
                'cv="oob" needs an estimator that draws bags: pass bootstrap=True to it, or use folds: cv=5.'
            )
        estimator.set_params(oob_score=True).fit(X, y, **_check_method_params(X, params))
        probabilities = np.asarray(estimator.oob_decision_function_, np.float64)
        rows = np.flatnonzero(np.nan_to_num(probabilities).sum(1) > 0)  # the others are in every bag
        if not rows.size:
            raise InputError("no row was left out of any bag; give the estimator more parts, or use folds: cv=5.")
        return estimator, [_Part(rows, _log(probabilities[rows]), _positions(y[rows], estimator), estimator)]

    def _splits(self, X: Any, y: NDArray[Any]) -> list[tuple[I64, I64]]:
        """Which rows train and which are held out, in each split; one at least."""
        splitter, (classes, counts) = self._splitter(), np.unique(y, return_counts=True)
        if splitter is not self.cv and len(y) > 1 and counts.min() == 1:
            raise self._too_few(classes[counts < 2].tolist())
        try:
            splits = [(np.asarray(train), np.asarray(held_out)) for train, held_out in splitter.split(X, y)]
        except ValueError as error:
            raise InputError(f"cv={self.cv!r} cannot split {len(y)} rows of {len(classes)} classes: {error}") from error
        if not any(len(held_out) for _, held_out in splits):
            raise InputError(f"cv must hold rows out; {self.cv!r} holds out none.")
        times = np.bincount(np.concatenate([held_out for _, held_out in splits]))
        if times.max() > 1 or any(np.intersect1d(*split).size for split in splits):
            raise InputError(
                f"cv must hold out every row once at most, and not train on it; {self.cv!r} does not. "
                "Use folds, or a splitter that splits once."
            )
        return splits

    def _too_few(self, classes: Iterable[Any]) -> InputError:
        return InputError(
            f"every class needs a row in the training part and one outside it; got too few for cv={self.cv!r} of "
            f"{_listed(classes)}. Give more rows of such classes, or drop them."
        )

    def _splitter(self) -> Any:
        cv = self.cv
        if isinstance(cv, float) and 0 < cv < 1:
            return _AtRandom(cv, self.random_state)
        if isinstance(cv, int | np.integer) and not isinstance(cv, bool) and cv >= 2:
            return _AtRandom(int(cv), self.random_state)
        if hasattr(cv, "split") and not isinstance(cv, str | type):
            return cv
        raise InputError(
            f'cv must be "prefit", a share in (0, 1), a number of folds >= 2, "oob" or a splitter; got {cv!r}.'
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """The estimator's own prediction, one label per row."""
        check_is_fitted(self)
        return self.estimator_.predict(X)

    @available_if(_inner_has("predict_proba"))
    def predict_proba(self, X: Any) -> F64:
        """The estimator's own probabilities, where it has any."""
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

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
    ) -> PredictionSets | list[PredictionSets]:
        """Prediction sets of positions in `classes_`: `classes_[sets[i]]` are a row's classes, `names(i)` their text.

        Compare them with labels by `evaluate(X, y)`, which knows the classes. `evicp.evaluate` and `sets.contains`
        take positions, and warn of labels that may be classes. An ensemble knows neither confidence nor smoothed sets.

        Parameters
        ----------
        X : rows
        coverage : what to ask for, or several, for a list of sets; the constructor's by default
        confidence : of training-conditional sets, as in `Calibration.predict`
        allow_empty : if False, an empty set gets its top label
        smoothed : ties broken at random, as in `Calibration.predict`: coverage is what was asked, not more
        """
        logits, groups = self._outputs(X)
        sets = self._sets(logits, groups, coverage, confidence=confidence, allow_empty=allow_empty, smoothed=smoothed)
        return _of_positions(sets, self.classes_)

    def _outputs(self, X: Any) -> tuple[Any, NDArray[Any] | None]:
        """The logits of new rows, or of each estimator of an ensemble, and their groups where a function gives them."""
        check_is_fitted(self)
        every = [self._read(one, X) for one in self.estimators_ or [self.estimator_]]
        groups = None if self._group is None else checks.as_groups(self._group(X), len(every[0]))
        return every if self.estimators_ else every[0], groups

    def _sets(self, logits: Any, groups: Any, coverage: Any, **how: Any) -> Any:
        asked = self.coverage if coverage is None else coverage
        if isinstance(self.calibration_, Calibration):
            return self.calibration_.predict(logits, asked, groups=groups, **how)
        if how.pop("confidence") is not None or how.pop("smoothed") is not False:
            raise InputError(
                "the sets of an ensemble follow no law that confidence or smoothed could use; leave them out."
            )
        return self.calibration_.predict(logits, asked, groups=groups, **how)

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
        """Coverage, size and adaptivity of the sets of rows whose classes are known; in groups, where there are any.

        Parameters
        ----------
        X : rows that neither trained nor calibrated
        y : their classes, as in `fit`
        coverage, confidence, allow_empty, smoothed : as for `predict_set`
        min_count : strata with fewer rows are left out of SSCV

        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> flowers = np.array([10, 20, 50])[y]
        >>> model = ConformalClassifier(score="lac", cv=0.5).fit(X[::2], flowers[::2])
        >>> result = model.evaluate(X[1::2], flowers[1::2])
        >>> round(result.coverage, 3), round(result.mean_size, 3)
        (0.947, 1.0)
        """
        logits, groups = self._outputs(X)
        truth = _positions(column_or_1d(y, warn=True), self.estimator_)
        sets = self._sets(logits, groups, coverage, confidence=confidence, allow_empty=allow_empty, smoothed=smoothed)
        if isinstance(self.calibration_, CrossCalibration):
            logits = logits_of(self.estimator_, X)
        elif self.calibration_.has_row_groups:
            groups = self.calibration_.groups_of(logits, groups)
        return Evaluator(min_count=min_count).update(sets, truth, logits, groups=groups).finish()

    def predict_p(self, X: Any, *, smoothed: Any = False) -> F64:
        """Conformal p-values of every class, (n, K); among rows of the class or the row's group, where `by` says so.

        With `smoothed`, ties are broken at random, as in `Calibration.p_values`.
        """
        logits, groups = self._outputs(X)
        if isinstance(self.calibration_, Calibration):
            return self.calibration_.p_values(logits, groups=groups, smoothed=smoothed)
        if smoothed is not False:
            raise InputError("the p-values of an ensemble are not smoothed; leave smoothed out.")
        return self.calibration_.p_values(logits, groups=groups)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = self._base()
        if hasattr(inner, "__sklearn_tags__"):
            tags.input_tags = inner.__sklearn_tags__().input_tags
        return tags
