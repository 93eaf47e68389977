"""Calibration: from the scores of true labels to thresholds, for any coverage, afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from evicp import checks, kernels, limits, shift
from evicp.errors import InputError, InputTypeError, LogitsError, SuspiciousInputWarning
from evicp.groups import ByClass, ByGroup, Groups, Partition, as_groups, divide
from evicp.reliability import Certificate, Reliability
from evicp.scores import ECP, Score, as_score
from evicp.sets import PredictionSets
from evicp.shift import Weights

if TYPE_CHECKING:
    from evicp.metrics import Evaluation

__all__ = ["Calibration", "Calibrator", "calibrate"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Coverage = float | Fraction

#: Of fewer new rows than this no evidence in most is no sign that they are not logits.
_ENOUGH_TO_JUDGE = 32


def calibrate(
    logits: Any,
    labels: Any,
    score: str | Score | Callable[[F64], Any] = "ecp",
    *,
    by: Any = None,
    weights: Any = None,
    class_weights: Any = None,
    class_names: Sequence[str] | None = None,
) -> Calibration:
    """Score the true labels of calibration rows; any coverage can be asked for afterwards.

    Parameters
    ----------
    logits : (n, K) array of any kind
        Raw classifier outputs. -inf marks a class as impossible.
    labels : (n,) integers in [0, K)
    score : a name, a score, or a callable of (n, K) logits to (n, K) scores
        "ecp" (default), "lac", "aps", "raps", "saps", "topk", "margin"; or "auto": a part of the rows chooses the score
        with the best SAT at coverage 0.9 and is used up, the others are calibrated, so that the guarantee holds.
        `tune` says why a score is chosen, and chooses by other metrics and at other coverages.
    by : "class", "uncertainty", `ByClass(...)`, `ByUncertainty(...)`, or (n,) groups, optional
        Where the coverage asked for must hold: in every class, in every band of evidential uncertainty, or in every
        group of rows, given here and at prediction.
    weights : (n,) numbers >= 0, optional
        For known covariate shift: how much more frequent rows like each one are among new rows; `predict` then needs
        the new rows' weights, on the same scale.
    class_weights : (K,) numbers >= 0, optional
        For label shift: the weight of each class, from `label_shift_weights`.
    class_names : K names, optional
        Travel with the calibration and its sets.

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 4, 500)
    >>> logits = rng.normal(size=(500, 4)) + 3 * np.eye(4)[labels]
    >>> calibration = calibrate(logits, labels)
    >>> calibration
    Calibration(ecp, 500 rows, 4 classes)
    >>> calibration.predict([[4.0, 0.5, 0.1, -1.0], [1.0, 1.1, 0.9, -2.0]], coverage=0.95).to_lists()
    [[0], [1, 0, 2]]
    >>> calibrate(logits, labels, by="class").thresholds(0.9).shape
    (4,)
    """
    given = None if by is None or isinstance(by, str | type | Groups) else by
    if isinstance(score, str) and score.lower() == "auto":
        chosen, rows, part = _choose(logits, labels)
        own = {"by": by if given is None else part(given, "groups"), "weights": part(weights, "weights")}
        calibration = calibrate(*rows, chosen, **own, class_weights=class_weights, class_names=class_names)
        return replace(calibration, chosen_on=len(labels) - calibration.n)
    calibrator = Calibrator(
        score, by=by if given is None else ByGroup(), class_weights=class_weights, class_names=class_names
    )
    return calibrator.update(logits, labels, groups=given, weights=weights).finish()


def _choose(logits: Any, labels: Any) -> tuple[Score, tuple[Any, I64], Callable[[Any, str], Any]]:
    """The score that a part of the rows chooses, the other rows, and a function that picks what belongs to them."""
    from evicp import tuning

    array, truth = checks.as_labelled(logits, labels)
    if len(truth) < 30:
        raise LogitsError(f'score="auto" needs at least 30 rows, some to choose with; got {len(truth)}. Name a score.')
    choice, rest = tuning.split_off(len(truth))

    def part(values: Any, what: str) -> Any:
        given = None if values is None else checks.as_array(values, what)
        if given is not None and given.shape != truth.shape:
            raise InputError(f"{what} must have one entry per row; got shape {given.shape} for {len(truth)} rows.")
        return None if given is None else given[rest]

    return tuning.auto(array[choice], truth[choice]).best, (array[rest], truth[rest]), part


class _Batch(NamedTuple):
    """What is kept of a batch: scores, what the grouping needs of each row, weights, and what made the scores."""

    scores: F64
    keys: NDArray[Any]
    weights: F64 | None
    arithmetic: str


class Calibrator:
    """Calibration in batches or shards: only the scores are kept (with the rows' groups and weights, if any).

    Parameters
    ----------
    score, class_weights, class_names : as for `calibrate`
    by : "class", "group", "uncertainty", or an instance with parameters
        "group" takes the rows' groups at each `update`.

    >>> first, second = Calibrator("lac"), Calibrator("lac")
    >>> _ = first.update([[2.0, 0.0], [0.5, 1.0]], [0, 1])
    >>> _ = second.update([[0.0, 3.0]], [1])
    >>> first.merge(second).finish().n
    3
    """

    def __init__(
        self,
        score: str | Score | Callable[[F64], Any] = "ecp",
        *,
        by: Any = None,
        class_weights: Any = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.score = as_score(score)
        self.by = as_groups(by)
        self.n_classes: int | None = None
        self._class_weights = None if class_weights is None else shift.as_weights(class_weights, what="class_weights")
        self._class_names = tuple(class_names) if isinstance(class_names, Iterator) else class_names
        self._batches: list[_Batch] = []
        if self.by is not None and class_weights is not None:
            raise InputError("weights and groups cannot be combined; pass by= or class_weights=, not both.")

    @property
    def n(self) -> int:
        """Rows seen so far."""
        return sum(len(batch.scores) for batch in self._batches)

    def update(self, logits: Any, labels: Any, *, groups: Any = None, weights: Any = None) -> Calibrator:
        """Add a batch of labelled rows; a batch that raises leaves the calibrator as it was.

        Parameters
        ----------
        logits, labels : (n, K) and (n,)
        groups : (n,) groups of the rows, for by="group"
        weights : (n,) weights of the rows, in every batch or in none
        """
        checks.same_device(logits, labels)
        stays = self.by is None and kernels.on_device(self.score, logits) is not None
        array: Any = (checks.as_device_logits if stays else checks.as_logits)(logits, self.n_classes)
        truth = checks.as_labels(labels, *array.shape)
        checks.as_class_names(self._class_names, array.shape[1])
        if not stays and self._batches:
            array = kernels.in_precision_of(self._batches[0].arithmetic, self.score, array)
        if not any(len(batch.scores) for batch in self._batches):
            warn_suspicious([self.score], checks.as_logits(array[:32]) if stays else array)
        row_weights = self._row_weights(weights, truth, array.shape[1])
        if self.by is None and groups is not None:
            raise InputError('groups are only taken by a calibration by="group".')
        if stays:
            from evicp import device

            scores = device.label_scores(self.score, array, truth)
        else:
            scores = kernels.label_scores(self.score, array, truth)
        keys = scores[:0] if self.by is None else self.by.keys(self.score, array, truth, groups)
        self.n_classes = array.shape[1]
        # Copies: whoever reads rows in blocks fills the same buffers again.
        kept = None if row_weights is None else row_weights.copy()
        self._batches.append(_Batch(scores, keys.copy(), kept, kernels.arithmetic(self.score, array)))
        return self

    def _row_weights(self, weights: Any, labels: I64, n_classes: int) -> F64 | None:
        """The rows' weights, given or of their classes."""
        if self._class_weights is not None:
            if weights is not None:
                raise InputError("pass the rows' weights or class_weights, not both.")
            return shift.as_weights(self._class_weights, n_classes, "class_weights")[labels]
        if weights is not None and self.by is not None:
            raise InputError("weights and groups cannot be combined; pass by= or weights=, not both.")
        if self._batches and (weights is None) != (self._batches[0].weights is None):
            raise InputError("weights must be given with every batch or with none.")
        return None if weights is None else shift.as_weights(weights, len(labels))

    def content(self) -> tuple[F64, NDArray[Any], F64 | None, str]:
        """What is kept so far, to be sent elsewhere, as one batch."""
        if not self._batches:
            return _Batch(np.empty(0), np.empty(0), None, kernels.MIXED)
        scores, keys, weights, _ = zip(*self._batches, strict=True)
        some = [part for part in keys if len(part)]
        kept = None if weights[0] is None else np.concatenate(weights)
        return _Batch(np.concatenate(scores), np.concatenate(some) if some else keys[0], kept, self._arithmetic())

    def _arithmetic(self) -> str:
        """What made the scores; "mixed" where it was not one thing."""
        used = {batch.arithmetic for batch in self._batches if len(batch.scores)}
        return used.pop() if len(used) == 1 else kernels.MIXED

    def restore(
        self, scores: F64, keys: NDArray[Any], weights: F64 | None, arithmetic: str, n_classes: int
    ) -> Calibrator:
        """Add the content of a calibrator that was made as this one, elsewhere."""
        if self.n_classes not in (None, n_classes):
            raise LogitsError(f"logits must have {self.n_classes} classes in every batch; got {n_classes}.")
        self.n_classes = n_classes
        self._batches.append(_Batch(scores, keys, weights, arithmetic))
        return self

    def merge(self, *others: Calibrator) -> Calibrator:
        """Add the scores of other calibrators (other shards, other machines)."""
        everyone = (self, *others)
        if len(set(map(id, everyone))) < len(everyone):
            raise InputError("a calibrator cannot be merged twice: its rows would count twice.")
        whole = copy(self)  # so that one that does not fit changes nothing
        whole._batches = [*self._batches]
        for other in others:
            whole._check_mergeable(other)
            whole.n_classes = whole.n_classes or other.n_classes
            whole._class_names = whole._class_names if whole._class_names is not None else other._class_names
            whole._batches.extend(other._batches)
        self.n_classes, self._class_names, self._batches = whole.n_classes, whole._class_names, whole._batches
        return self

    def _check_mergeable(self, other: Calibrator) -> None:
        if other.score != self.score:
            raise InputError(f"only calibrators of one score can be merged; got {self.score} and {other.score}.")
        if None not in (self.n_classes, other.n_classes) and self.n_classes != other.n_classes:
            raise InputError(
                f"only calibrators of one K can be merged; got {self.n_classes} and {other.n_classes} classes."
            )
        n_classes = self.n_classes or other.n_classes
        if n_classes is not None:
            names = {checks.as_class_names(one._class_names, n_classes) for one in (self, other)} - {None}
            if len(names) > 1:
                raise InputError("only calibrators with the same class names in the same order can be merged.")
        if other.by != self.by:
            raise InputError(f"only calibrators with the same groups can be merged; got {self.by} and {other.by}.")
        weighted = {batch.weights is not None for batch in (*self._batches[:1], *other._batches[:1])}
        if len(weighted) > 1 or not np.array_equal(self._class_weights, other._class_weights):  # type: ignore[arg-type]
            raise InputError("only calibrators with the same kind of weights can be merged.")

    def finish(self) -> Calibration:
        """Group and sort the scores."""
        if self.n_classes is None or self.n == 0:
            raise LogitsError("calibration needs at least one row; got none. Pass labelled logits.")
        names = checks.as_class_names(self._class_names, self.n_classes)
        scores, groups, row_weights = np.concatenate([batch.scores for batch in self._batches]), None, None
        _warn_of_two_classes(self.score, scores, self.n_classes)
        if self._batches[0].weights is not None:
            weights = np.concatenate([batch.weights for batch in self._batches if batch.weights is not None])
            order = np.argsort(scores, kind="stable")
            scores, row_weights = scores[order], Weights(weights[order], self._class_weights)
        elif self.by is None:
            scores = np.sort(scores)
        else:
            keys = [batch.keys for batch in self._batches if len(batch.scores)]
            if len({part.dtype.kind for part in keys}) > 1:
                raise InputTypeError("groups must be whole numbers in every batch, or strings in every one; got both.")
            scores, groups = divide(self.by, scores, np.concatenate(keys), self.n_classes, names)
        return Calibration(
            self.score, scores, self.n_classes, names, groups, row_weights, arithmetic=self._arithmetic()
        )


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """The sorted scores of n calibration rows: thresholds, sets, p-values and certificates for any coverage.

    Parameters
    ----------
    score : the score that made the scores
    scores : (n,) float64, ascending; where there are groups, group after group, each ascending
    n_classes : K
    class_names : K names, optional
    groups : how scores are divided into groups with a threshold each, optional
    weights : the weight of each score, optional
    chosen_on : how many other rows chose the score, used up, where it was "auto"
    arithmetic : the backend and the precision that made the scores, "numba float32"; "mixed" if several did; None if
        that is not known
    """

    score: Score
    scores: F64
    n_classes: int
    class_names: tuple[str, ...] | None = None
    groups: Partition | None = None
    weights: Weights | None = None
    chosen_on: int | None = None
    arithmetic: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", checks.frozen(self.scores))

    @property
    def n(self) -> int:
        """Calibration rows."""
        return len(self.scores)

    @property
    def guarantee(self) -> str:
        """Where coverage holds: "marginal" (over all rows), by "class", "group" or "uncertainty", or "weighted"."""
        if self.weights is not None:
            return "weighted"
        return "marginal" if self.groups is None else self.groups.by.kind

    @property
    def effective_n(self) -> float:
        """(sum w)^2 / sum w^2, the number of equally weighted rows that say as much; n without weights."""
        return float(self.n) if self.weights is None else shift.effective_sample_size(self.weights.rows)

    def threshold(self, coverage: Coverage, confidence: float | None = None) -> float:
        """The k-th smallest calibration score, k = ceil((n + 1) coverage); +inf (with a warning) if k > n.

        With a confidence, k is the training-conditional rank (`pac_rank`).
        """
        if self.groups is not None or self.weights is not None:
            what = "weights" if self.groups is None else f"a threshold per {self.groups.by.kind}"
            raise InputError(f"this calibration has {what}, not one threshold; use thresholds() or predict().")
        return float(self.thresholds(coverage, confidence)[0])

    def thresholds(self, coverage: Coverage, confidence: float | None = None) -> F64:
        """The threshold of each group, (G,), or of each label where there are class weights; (1,) otherwise."""
        exact = checks.as_coverage(coverage)
        if confidence is not None:
            confidence = checks.as_probability(confidence, "confidence")
        if self.weights is not None:
            return self.weights.limit(self.scores, exact, confidence, self.weights.of_new(0, None))[0]
        if self.groups is not None:
            return self.groups.thresholds(self.scores, exact, confidence)
        return np.array([limits.threshold(self.scores, exact, confidence)])

    def label_thresholds(self, coverage: Coverage, confidence: float | None = None) -> F64:
        """The threshold of each label, (K,), or of all, (1,): for graphs that cannot know a row's group or weight."""
        by = None if self.groups is None else self.groups.by
        if self.weights is not None or not isinstance(by, ByClass | None):
            raise InputError("only marginal calibrations and those by class can be built in: others depend on the row.")
        thresholds = self.thresholds(coverage, confidence)
        return thresholds if by is None else thresholds[by.of_labels(self.n_classes)]

    @overload
    def predict(
        self,
        logits: Any,
        coverage: Coverage,
        *,
        confidence: float | None = ...,
        groups: Any = ...,
        weights: Any = ...,
        allow_empty: bool = ...,
    ) -> PredictionSets: ...
    @overload
    def predict(
        self,
        logits: Any,
        coverage: Sequence[Coverage],
        *,
        confidence: float | None = ...,
        groups: Any = ...,
        weights: Any = ...,
        allow_empty: bool = ...,
    ) -> list[PredictionSets]: ...
    def predict(
        self,
        logits: Any,
        coverage: Coverage | Sequence[Coverage],
        *,
        confidence: float | None = None,
        groups: Any = None,
        weights: Any = None,
        allow_empty: bool = True,
    ) -> PredictionSets | list[PredictionSets]:
        """The prediction sets of new rows: all labels whose score is at most the threshold.

        Parameters
        ----------
        logits : (n, K), or one (K,) row. Of a tensor on an accelerator the sets stay there: `evicp.device.DeviceSets`
        coverage : strictly between 0 and 1; a sequence gives a list of sets from one pass over the logits
        confidence : training-conditional (PAC) sets: with this confidence over the draw of the calibration rows,
            coverage is at least what was asked. Without it, coverage is so on average over calibrations
        groups : (n,) groups of the rows, for a calibration by="group"
        weights : (n,) weights of the rows, for a weighted calibration
        allow_empty : if False, an empty set gets its top label, which can only raise coverage
        """
        wanted = [checks.as_coverage(c) for c in (coverage if checks.is_many(coverage) else [coverage])]  # type: ignore[union-attr]
        if not wanted:
            raise InputError("coverage must be a number or a non-empty sequence of numbers; got an empty one.")
        results = self.predict_levels(
            logits, wanted, wanted, confidence=confidence, groups=groups, weights=weights, allow_empty=allow_empty
        )
        return results if checks.is_many(coverage) else results[0]

    def predict_levels(
        self,
        logits: Any,
        levels: Sequence[Fraction],
        coverages: Sequence[Fraction],
        *,
        confidence: float | None = None,
        groups: Any = None,
        weights: Any = None,
        allow_empty: bool = True,
    ) -> list[PredictionSets]:
        """As `predict`, at levels that an adaptive method has moved away from the coverages the sets remember.

        A level of 1 or more gives full sets, one of 0 or less empty ones.
        """
        if not isinstance(allow_empty, bool | np.bool_):
            raise InputTypeError(f"allow_empty must be True or False; got {allow_empty!r}.")
        if confidence is not None:
            confidence = checks.as_probability(confidence, "confidence")
        if self._stays_on_device(logits, groups, weights):
            from evicp import device

            own = self._compared_with(logits)
            asked = [float(limit.item()) for limit in own._limits(logits, levels, confidence, groups, weights)]
            about = [self.no_sets(exact, confidence, filled=not allow_empty) for exact in coverages]
            there: Any = device.predict(self.score, logits, asked, about)
            return there
        own, array = self.alike(checks.as_logits(logits, self.n_classes, row_allowed=True))
        asked_for = own._limits(array, levels, confidence, groups, weights)
        if len(array) < _ENOUGH_TO_JUDGE:
            checks.warn_if_probabilities(array)
        else:
            warn_suspicious([self.score], array)
        if len(asked_for) == 1:
            found = [kernels.ragged_labels(self.score, array, asked_for[0])]
        else:
            loosest = kernels.ragged_sets(self.score, array, np.maximum.reduce(asked_for))
            found = [limits.within(loosest, limit)[:2] for limit in asked_for]
        results = [self._sets(*ragged, exact, confidence) for ragged, exact in zip(found, coverages, strict=True)]
        if not allow_empty:
            top = kernels.top_labels(self.score, array)
            results = [limits.fill_empty(sets, top) for sets in results]
        return results

    def alike(self, logits: NDArray[Any]) -> tuple[Calibration, NDArray[Any]]:
        """The calibration, and new logits, such that their scores can be compared.

        Scores may pile up at one value (of a sure network, or of ties), and rounding must not move the threshold to the
        other side of it. So new rows are scored in the precision of the calibration rows. Where the backend is not the
        same either, calibration scores are raised by more than rounding can do: coverage can only rise.
        """
        if self.arithmetic in (None, kernels.arithmetic(self.score, logits)):
            return self, logits
        array = kernels.in_precision_of(self.arithmetic, self.score, logits)
        return self._compared_with(array), array

    def _compared_with(self, logits: Any) -> Calibration:
        return self if self.arithmetic in (None, kernels.arithmetic(self.score, logits)) else self._raised

    @cached_property
    def _raised(self) -> Calibration:
        groups = None if self.groups is None else replace(self.groups, _thresholds={})
        return replace(self, scores=limits.raised(self.scores), groups=groups, arithmetic=None)

    def _stays_on_device(self, logits: Any, groups: Any, weights: Any) -> bool:
        """Whether tensors on an accelerator are scored there: groups and weights are looked up on the CPU."""
        if isinstance(logits, np.ndarray):
            return False
        parts = (self.groups, self.weights, groups, weights)
        return all(part is None for part in parts) and kernels.on_device(self.score, logits) is not None

    def no_sets(self, coverage: Fraction, confidence: float | None, *, filled: bool = False) -> PredictionSets:
        """Sets of no rows, with all that this calibration's sets remember."""
        return self._sets(np.zeros(1, np.int64), np.empty(0, np.int32), coverage, confidence, filled=filled)

    def _sets(
        self,
        offsets: I64,
        labels: NDArray[np.int32],
        coverage: Fraction,
        confidence: float | None,
        *,
        filled: bool = False,
    ) -> PredictionSets:
        return PredictionSets(
            offsets,
            labels,
            n_classes=self.n_classes,
            coverage=coverage,
            score=self.score.name,
            n_calibration=self.n,
            filled=filled,
            class_names=self.class_names,
            confidence=confidence,
            guarantee=self.guarantee,
        )

    def _limits(
        self, array: Any, levels: Sequence[Fraction], confidence: float | None, groups: Any, weights: Any
    ) -> list[F64]:
        """The thresholds at each level, each broadcastable to (n, K)."""
        if self.weights is not None:
            new = self.weights.of_new(len(array), weights)
        else:
            numbers = self._group_numbers(array, groups, weights)

        def limit(level: Fraction) -> F64:
            if not 0 < level < 1:
                return np.full((1, 1), np.inf if level >= 1 else -np.inf)
            if self.weights is not None:
                return self.weights.limit(self.scores, level, confidence, new)
            return self.thresholds(level, confidence)[numbers]

        return [limit(level) for level in levels]

    def _group_numbers(self, array: NDArray[Any], groups: Any, weights: Any) -> I64:
        """The group of each label of each row, broadcastable to (n, K)."""
        if weights is not None:
            raise InputError("weights are only taken by a calibration with weights of its own rows.")
        if self.groups is not None:
            return self.groups.by.numbers(self.score, array, groups)
        if groups is not None:
            raise InputError('groups are only taken by a calibration by="group".')
        return np.zeros((1, 1), np.int64)

    def p_values(self, logits: Any, labels: Any = None, *, groups: Any = None, weights: Any = None) -> F64:
        """p = (1 + #{s_i >= s}) / (n + 1) of every label, (n, K), or of the given labels only, (n,).

        Among the calibration rows of the label's or row's group, where there are groups; weighted, where there are
        weights. A label is outside the set exactly when p <= 1 - coverage (compared as fractions).
        """
        if self._stays_on_device(logits, groups, weights):
            from evicp import device

            there: Any = device.p_values(self._compared_with(logits), logits, labels)
            return there
        own, array = self.alike(checks.as_logits(logits, self.n_classes, row_allowed=True))
        if own is not self:
            return own.p_values(array, labels, groups=groups, weights=weights)
        if labels is None:
            truth, scores = None, kernels.dense_scores(self.score, array)
        else:
            truth = checks.as_labels(labels, *array.shape)
            scores = kernels.label_scores(self.score, array, truth)
        if self.weights is not None:
            new = limits.at_labels(self.weights.of_new(len(array), weights), truth)
            return shift.weighted_p_values(self.scores, self.weights.rows, scores, new)
        numbers = limits.at_labels(self._group_numbers(array, groups, weights), truth)
        if self.groups is not None:
            return self.groups.p_values(self.scores, scores, numbers)
        at_least = self.n - np.searchsorted(self.scores, scores, side="left")
        p: F64 = (1.0 + at_least.astype(np.float64)) / (self.n + 1.0)
        return p

    def groups_of(self, logits: Any, groups: Any = None) -> NDArray[np.str_]:
        """The name of each row's group, (n,), as `evaluate(groups=...)` takes it."""
        array = checks.as_logits(logits, self.n_classes, row_allowed=True)
        numbers = self._group_numbers(array, groups, None)
        if self.groups is None or numbers.shape[1] > 1:
            raise InputError("groups of rows exist only where the calibration is by group or by uncertainty.")
        return np.array(self.groups.names)[numbers[:, 0]]

    def reliability(self, coverage: Coverage, confidence: float | None = None) -> Reliability:
        """The law of coverage given n calibration rows (Theorem 2 and the Beta law); with a confidence, of PAC sets."""
        return Reliability(self.n, coverage, confidence)

    def certificate(
        self,
        coverage: Coverage,
        evaluation: Evaluation | None = None,
        *,
        confidence: float = 0.95,
        pac: bool = False,
        date: str | None = None,
    ) -> Certificate:
        """What may be promised at this coverage; with an evaluation, whether what was observed is compatible.

        `confidence` is that of the intervals; with `pac` also that of the sets: of `predict(confidence=...)`.
        """
        from evicp.certificates import certify

        return certify(self, coverage, evaluation, confidence=confidence, pac=pac, date=date)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the calibration to a safetensors file, atomically. Read it again with `evicp.load`."""
        from evicp import files

        files.save_calibration(self, path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Calibration):
            return NotImplemented
        names = ("score", "n_classes", "class_names", "groups", "weights", "chosen_on", "arithmetic")
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and np.array_equal(self.scores, other.scores)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = "" if self.groups is None else f", by {self.groups.by.kind} ({len(self.groups.counts):,} groups)"
        kind = kind if self.weights is None else f", weighted ({self.effective_n:.1f} effective rows)"
        kind += "" if self.chosen_on is None else f"; {self.chosen_on:,} other rows chose the score"
        return f"Calibration({self.score.describe()}, {self.n:,} rows, {self.n_classes:,} classes{kind})"


def warn_suspicious(scores: Iterable[Any], logits: NDArray[Any]) -> None:
    """Warn, once for all scores, of input that is legal but very likely not what was meant."""
    checks.warn_if_probabilities(logits)
    if any(isinstance(score, ECP) and score.evidence == "relu" for score in scores):
        checks.warn_if_no_evidence(logits)


def _warn_of_two_classes(score: Score, scores: F64, n_classes: int) -> None:
    """Warn where ECP can say nothing: the less plausible of two labels has the largest score whatever its logit is."""
    right = float(np.mean(scores < 0.0))
    if n_classes == 2 and isinstance(score, ECP) and right < 0.95:
        checks.warn(
            "ECP cannot tell rows of 2 classes apart where the less plausible label is true: above a coverage of about "
            f'{right:.2f} every set is full. Use score="lac".',
            SuspiciousInputWarning,
        )
