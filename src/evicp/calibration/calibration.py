"""A calibration: thresholds, prediction sets, p-values and certificates, for any coverage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property, reduce
from hashlib import blake2b
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration import limits
from evicp.calibration.batches import Batch, origin_of, score_batch, warn_of_masked_labels
from evicp.calibration.certificate import Certificate
from evicp.calibration.certify import certify
from evicp.calibration.laws import weighted as shift
from evicp.calibration.laws.groups import ByClass, Partition
from evicp.calibration.laws.weighted import Weights
from evicp.calibration.origin import UNKNOWN, Origin
from evicp.calibration.reliability import Reliability
from evicp.calibration.suspicious import warn_of_low_confidence, warn_of_low_coverage, warn_suspicious
from evicp.calibration.ties import is_tied, ties_of, warn_of_near_ties, warn_of_ties
from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input import convert, frames, validate
from evicp.input.classes import ClassAxis
from evicp.input.warn import warn, warn_if_probabilities
from evicp.kernels.arithmetic import Arithmetic, precision_of, precision_of_new
from evicp.method.scores import Score
from evicp.outer import outer
from evicp.sets import PredictionSets
from evicp.tables import html_table
from evicp.types import F64, I64, Coverage, Coverages

if TYPE_CHECKING:
    from evicp.evaluation.result import Evaluation

__all__ = ["Calibration"]


#: The group of every label of every row, where there are none.
_ONE_GROUP = convert.frozen(np.zeros((1, 1), np.int64))

#: What ties do at this many coverages is kept at hand.
_REMEMBERED = 64

#: Of fewer new rows than this no evidence in most is no sign that they are not logits.
_ENOUGH_TO_JUDGE = 32


class _Asked(NamedTuple):
    """What is asked of prediction sets, checked, whatever the rows."""

    levels: Sequence[Fraction]
    #: For each level sets of no rows, with all that the sets at this level remember.
    like: list[PredictionSets]
    allow_empty: bool
    many: bool


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
    origin : what made the scores, and of which rows; None if that is not known
    folds : in how many folds the rows were scored, by other models than the one that predicts, fitted on all of them;
        None where that is one and the same, as the guarantee needs it
    columns : the names of the columns, where the logits were a frame with others than the class names: new frames must
        have these, or the class names
    numbered : class names were given as whole numbers: labels that are such are looked up among them
    """

    score: Score
    scores: F64
    n_classes: int
    class_names: tuple[str, ...] | None = None
    groups: Partition | None = None
    weights: Weights | None = None
    chosen_on: int | None = None
    origin: Origin | None = None
    folds: int | None = None
    columns: tuple[str, ...] | None = field(default=None, compare=False)
    numbered: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", convert.owned(self.scores))

    __setstate__ = convert.restore_frozen

    @cached_property
    def classes(self) -> ClassAxis:
        """What is known of the classes: their names, and the columns they came in."""
        return ClassAxis(self.n_classes, self.class_names, self.columns, self.numbered)

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

        Parameters
        ----------
        coverage : strictly between 0 and 1
        confidence : of training-conditional sets: k is then `pac_rank`
        """
        if self.groups is not None or self.weights is not None:
            what = "weights" if self.groups is None else f"a threshold per {self.groups.by.kind}"
            raise InputError(f"this calibration has {what}, not one threshold; use thresholds() or predict().")
        return float(self.thresholds(coverage, confidence)[0])

    def thresholds(self, coverage: Coverage, confidence: float | None = None) -> F64:
        """The threshold of each group, (G,), or of each label where there are class weights; (1,) otherwise.

        Parameters
        ----------
        coverage, confidence : as for `threshold`
        """
        exact, confidence = validate.as_coverage(coverage), self._as_confidence(confidence)
        if self.weights is not None:
            return self.weights.limit(self.scores, exact, confidence, self.weights.of_new(0, None))[0]
        if self.groups is not None:
            return self.groups.thresholds(self.scores, exact, confidence)
        return np.array([limits.threshold(self.scores, exact, confidence)])

    def label_thresholds(
        self, coverage: Coverage, confidence: float | None = None, *, precision: str | None = None
    ) -> F64:
        """The threshold of each label, (K,), or of all, (1,): for graphs that cannot know a row's group or weight.

        Parameters
        ----------
        coverage, confidence : as for `threshold`
        precision : of the logits that such a graph scores ("float64", "float32", "float16", "bfloat16"): thresholds are
            raised past what rounding can do there, so that coverage can only rise
        """
        if precision is not None:
            # A graph cannot look whether doubles hold single precision, as `predict` does.
            graph = Arithmetic.of("graph", "float64", "float32" if precision == "float64" else precision)
            return self._raised(self.origin or UNKNOWN, graph).label_thresholds(coverage, confidence)
        by = None if self.groups is None else self.groups.by
        if self.weights is not None or not isinstance(by, ByClass | None):
            raise InputError("only marginal calibrations and those by class can be built in: others depend on the row.")
        warn_of_low_coverage(validate.as_coverage(coverage))
        warn_of_low_confidence(confidence)
        thresholds = self.thresholds(coverage, confidence)
        self._warn_of_ties(validate.as_coverage(coverage), confidence, can_smooth=False)
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
        smoothed: Any = ...,
    ) -> PredictionSets: ...
    @overload
    def predict(
        self,
        logits: Any,
        coverage: Coverages,
        *,
        confidence: float | None = ...,
        groups: Any = ...,
        weights: Any = ...,
        allow_empty: bool = ...,
        smoothed: Any = ...,
    ) -> list[PredictionSets]: ...
    def predict(
        self,
        logits: Any,
        coverage: Coverage | Coverages,
        *,
        confidence: float | None = None,
        groups: Any = None,
        weights: Any = None,
        allow_empty: bool = True,
        smoothed: Any = False,
    ) -> PredictionSets | list[PredictionSets]:
        """The prediction sets of new rows: all labels whose score is at most the threshold.

        Parameters
        ----------
        logits : (n, K), or one (K,) row. Of a tensor on an accelerator the sets stay there, as `DeviceSets`
        coverage : strictly between 0 and 1; a sequence gives a list of sets from one pass over the logits
        confidence : training-conditional (PAC) sets: with this confidence over the draw of the calibration rows,
            coverage is at least what was asked. Without it, coverage is so on average over calibrations
        groups : (n,) groups of the rows, for a calibration by="group"
        weights : (n,) weights of the rows, for a weighted calibration
        allow_empty : if False, an empty set gets its top label, which can only raise coverage
        smoothed : True for sets of the labels whose smoothed p-value (see `p_values`) is above 1 - coverage: coverage
            is then what was asked on average, also where scores are tied and plain sets cover more. A random
            generator, or (n,) random numbers in [0, 1], in place of the numbers made from each row's logits and the
            calibration rows, which rows of equal logits share. Smoothed sets are made on the CPU

        Returns
        -------
        PredictionSets
            One set per row; a list of them, one per coverage, where several were asked for.

        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 4, 500)
        >>> logits = rng.normal(size=(500, 4)) + 3 * np.eye(4)[labels]
        >>> calibration = calibrate(logits[:400], labels[:400])
        >>> sets = calibration.predict(logits[400:], coverage=0.9)
        >>> sets
        PredictionSets(100 rows of 4 classes, coverage 0.9; mean size 1.07, 9 empty, 75 of one label, largest 2)
        >>> [sets.to_lists()[:3] for sets in calibration.predict(logits[400:], coverage=[0.9, 0.99])]
        [[[3], [1], [3]], [[3, 2], [1], [3, 2]]]
        """
        asked = self._asked(coverage, confidence, allow_empty, smoothed)
        results = self._predict(asked, logits, groups, weights, smoothed)
        return results if asked.many else results[0]

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
        asked = self._checked(coverages, confidence, allow_empty)._replace(levels=levels)
        return self._predict(asked, logits, groups, weights)

    def _asked(self, coverage: Any, confidence: Any, allow_empty: Any, smoothed: Any) -> _Asked:
        """What `predict` is asked for, checked; the last is remembered: a server asks for the same all day."""
        plain = type(coverage) is float and smoothed is False
        last = self.__dict__.get("_last_asked") if plain else None
        if last is not None and last[0] == coverage and last[1] is confidence and last[2] is allow_empty:
            return last[3]
        wanted = validate.as_coverages(coverage)
        asked = self._checked(wanted, confidence, allow_empty, smoothed, many=validate.is_many(coverage))
        warned = [warn_of_low_coverage(max(wanted)), warn_of_low_confidence(asked.like[0].confidence)]
        warned += [self._warn_of_ties(sets.coverage, sets.confidence) for sets in asked.like if not sets.smoothed]
        if plain and not any(warned):
            self.__dict__["_last_asked"] = coverage, confidence, allow_empty, asked
        return asked

    def _checked(
        self,
        coverages: Sequence[Fraction],
        confidence: Any,
        allow_empty: Any,
        smoothed: Any = False,
        *,
        many: bool = True,
    ) -> _Asked:
        validate.as_flag(allow_empty, "allow_empty")
        confidence = self._as_confidence(confidence)
        is_smoothed = self._is_smoothed(smoothed)
        if is_smoothed:
            self._check_smoothed(confidence)
        like = [self.no_sets(exact, confidence, smoothed=is_smoothed) for exact in coverages]
        return _Asked(coverages, like, allow_empty, many)

    def _predict(
        self, asked: _Asked, logits: Any, groups: Any, weights: Any, smoothed: Any = False
    ) -> list[PredictionSets]:
        levels, like, allow_empty, _ = asked
        confidence, is_smoothed = like[0].confidence, like[0].smoothed
        if not isinstance(logits, np.ndarray) or groups is not None or weights is not None or is_smoothed:
            frames.same_rows(logits=logits, groups=groups, weights=weights, smoothed=smoothed)
        if not (isinstance(logits, np.ndarray) or is_smoothed) and kernels.on_device(self.score, logits) is not None:
            return self._predict_there(asked, logits, groups, weights)
        own, array = self._scored_with(logits)
        steps = None
        if is_smoothed:
            own._warn_of_lost_ties(self)
            steps = self._steps(smoothed, array)
        asked_for = own._limits(array, levels, confidence, groups, weights, steps)
        self._warn_suspicious(array)
        for sets in like if own is self else ():
            if sets.tied or (is_smoothed and self.guarantee == "marginal"):
                warn_of_near_ties(self, sets.coverage, confidence, array)
        if len(asked_for) == 1:
            limit = asked_for[0]
            within = limit.item() if limit.size == 1 else limit
            results = [like[0].replaced(*kernels.ragged_labels(self.score, array, within))]
        else:
            loosest = kernels.ragged_sets(self.score, array, reduce(np.maximum, asked_for))
            found = [limits.within(loosest, limit)[:2] for limit in asked_for]
            results = [about.replaced(*ragged) for about, ragged in zip(like, found, strict=True)]
        if not allow_empty:
            top = kernels.top_labels(self.score, array)
            results = [limits.fill_empty(sets, top) for sets in results]
        return results

    def _predict_there(self, asked: _Asked, logits: Any, groups: Any, weights: Any) -> Any:
        """Sets of tensors on an accelerator, where they stay."""
        from evicp.calibration import device

        tensor = validate.as_device_logits(logits, self.n_classes, row_allowed=True)
        warn_if_probabilities(convert.as_array(tensor[:16], "logits"))
        own, tensor = self.comparable(tensor, precision_of(tensor))
        within = own._limits(tensor, asked.levels, asked.like[0].confidence, groups, weights)
        like = [replace(sets, filled=not asked.allow_empty) for sets in asked.like]
        return device.predict(self.score, tensor, within, like)

    def _warn_suspicious(self, logits: NDArray[Any]) -> None:
        """Warn of new rows that are very likely not what was meant."""
        if len(logits) < _ENOUGH_TO_JUDGE:
            warn_if_probabilities(logits)
        else:
            warn_suspicious([self.score], logits)

    def _as_logits(self, logits: Any) -> NDArray[Any]:
        """New rows, in the order of the calibration's classes."""
        array = validate.as_logits(logits, self.n_classes, row_allowed=True, keep_bfloat16=True)
        if not isinstance(logits, np.ndarray):
            self.classes.check(logits)
        return array

    def _scored_with(self, logits: Any) -> tuple[Calibration, NDArray[Any]]:
        """The calibration, and checked logits of new rows, such that their scores can be compared."""
        array = self._as_logits(logits)
        return self.comparable(array, precision_of(logits, array))

    def comparable(self, array: Any, precision: str) -> tuple[Calibration, Any]:
        """The calibration, and new logits, such that their scores can be compared: see `evicp.kernels.arithmetic`.

        Parameters
        ----------
        array : checked logits, an array or a tensor
        precision : of the logits as they were given
        """
        if self.origin is None:
            return self, array
        made_by = self.origin.arithmetic
        precision = precision_of_new(made_by, precision, array)
        array, new = kernels.comparable(made_by, self.score, array, precision)
        return self.compared_with(new), array

    def compared_with(self, new: Arithmetic) -> Calibration:
        """The calibration with scores raised past the rounding of another arithmetic that scores new rows."""
        if self.origin is None or new is self.origin.arithmetic or new == self.origin.arithmetic:
            return self
        self.origin.warn_of_coarse_rows(self.score, new)
        known = self.__dict__.setdefault("_raised_for", {})
        if new not in known:
            known[new] = self._raised(self.origin, new)
        return known[new]

    def _raised(self, origin: Origin, new: Arithmetic) -> Calibration:
        """The calibration with raised scores, which are compared as they are."""
        scores, groups, weights = self.scores, self.groups, self.weights
        how = self.score, self.n_classes, new
        if groups is not None:
            groups = replace(groups)  # whose thresholds are others
            parts = np.split(scores, np.cumsum(groups.counts)[:-1])
            scores = np.concatenate([np.sort(origin.raised(part, *how)) for part in parts])
        else:
            higher = origin.raised(scores, *how)
            order = np.argsort(higher, kind="stable")
            scores = higher[order]
            weights = None if weights is None else replace(weights, rows=weights.rows[order])
        return replace(self, scores=convert.frozen(scores), groups=groups, weights=weights, origin=None)

    def _steps(self, smoothed: Any, logits: NDArray[Any]) -> I64:
        """u of each new row, in steps."""
        known = None if self.origin is None else self.origin.digest
        digest = int.from_bytes(blake2b(self.scores.tobytes(), digest_size=8).digest()) if known is None else known
        return limits.as_steps(smoothed, getattr(self.score, "seed", 0), digest, logits)

    def no_sets(
        self, coverage: Fraction, confidence: float | None, *, filled: bool = False, smoothed: bool = False
    ) -> PredictionSets:
        """Sets of no rows, with all that this calibration's sets remember."""
        return PredictionSets(
            np.zeros(1, np.int64),
            np.empty(0, np.int32),
            n_classes=self.n_classes,
            coverage=coverage,
            score=self.score.name,
            n_calibration=self.n if self.folds is None else None,
            filled=filled,
            class_names=self.class_names,
            confidence=confidence,
            guarantee=self.guarantee,
            smoothed=smoothed,
            tied=not smoothed and self._is_tied(coverage, confidence),
            columns=self.columns,
            numbered=self.numbered,
        )

    def _is_tied(self, coverage: Fraction, confidence: float | None) -> bool:
        """Whether other scores equal the threshold, where there is one for all rows."""
        alone = self.groups is None and self.weights is None
        return alone and is_tied(self.scores, Reliability(self.n, coverage, confidence).k)

    def _warn_of_ties(self, coverage: Fraction, confidence: float | None, *, can_smooth: bool = True) -> bool:
        """Warn where scores that tie at the threshold make sets (nearly) full; whether they do."""
        known = self.__dict__.setdefault("_ties", {})
        if (coverage, confidence) not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[coverage, confidence] = ties_of(self, coverage, confidence)
        by_class = self.groups is not None and isinstance(self.groups.by, ByClass)
        can_smooth = can_smooth and self.weights is None and not by_class and confidence is None
        return warn_of_ties(known[coverage, confidence], coverage, can_smooth=can_smooth)

    def _as_confidence(self, confidence: Any) -> float | None:
        """The confidence of training-conditional sets, if they are asked for."""
        if confidence is None:
            return None
        self.require_law("confidence")
        return validate.as_probability(confidence, "confidence")

    def require_law(self, what: str) -> None:
        """Refuse what rests on the law of coverage given the calibration rows, where these do not have it."""
        if self.folds is not None:
            raise InputError(
                f"{what} needs the law of coverage given the calibration rows, which is not known here: they were "
                f"scored in {self.folds:,} folds, by other models than the one that predicts. Hold out a share of them."
            )

    def _is_smoothed(self, smoothed: Any) -> bool:
        """Whether smoothed p-values are asked for, which weights cannot have."""
        if smoothed is False or (isinstance(smoothed, np.bool_) and not smoothed):
            return False
        if self.weights is not None:
            raise InputError("smoothed p-values need rows that count alike; this calibration is weighted.")
        return True

    def _warn_of_lost_ties(self, before: Calibration) -> None:
        """A score raised past rounding is equal to no other."""
        tied = np.any(before.scores[1:] == before.scores[:-1])
        if tied and not np.array_equal(self.scores, before.scores):
            warn(
                "these rows are scored by another backend than the calibration rows, or those by several: which scores "
                "are equal is unknown, ties are not smoothed, and sets may cover more than asked. Calibrate where you "
                "predict.",
                SuspiciousInputWarning,
            )

    def _check_smoothed(self, confidence: float | None) -> None:
        """Refuse what smoothed sets cannot be."""
        if confidence is not None:
            raise InputError("confidence needs the Beta law, which smoothed sets do not follow; leave one of them out.")
        if self.groups is not None and isinstance(self.groups.by, ByClass):
            raise InputError(
                "smoothed sets by class would need a threshold for each label of each row; "
                "use p_values(..., smoothed=True), or calibrate without by."
            )

    def _limits(
        self,
        array: Any,
        levels: Sequence[Fraction],
        confidence: float | None,
        groups: Any,
        weights: Any,
        steps: I64 | None = None,
    ) -> list[F64]:
        """The thresholds at each level, each broadcastable to (n, K); smoothed, where the rows' u is given in steps."""
        if self.weights is not None:
            new = self.weights.of_new(len(array), weights)
        else:
            numbers = self._group_numbers(array, groups, weights)
        if self.weights is None and self.groups is None and steps is None:
            return [self._limit(level, confidence) for level in levels]  # at once

        def limit(level: Fraction) -> F64:
            if not 0 < level < 1:
                return _endless(level)
            if self.weights is not None:
                return self.weights.limit(self.scores, level, confidence, new)
            if self.groups is None:
                return limits.smoothed_limit(self.scores, level, cast("I64", steps))[:, None]
            if steps is None:
                return self.groups.thresholds(self.scores, level, confidence)[numbers]
            return self.groups.smoothed_limit(self.scores, level, numbers[:, 0], steps)[:, None]

        return [limit(level) for level in levels]

    def _limit(self, level: Fraction, confidence: float | None) -> F64:
        """The threshold of all rows and labels, as (1, 1); the last one is remembered: a server asks for no other."""
        last = self.__dict__.get("_last_limit")
        if last is not None and last[0] is level and last[1] == confidence:
            return last[2]
        if not 0 < level < 1:
            return _endless(level)
        limit = convert.frozen(np.array([[limits.threshold(self.scores, level, confidence)]]))
        if limit < np.inf:  # of the other there is a warning every time
            self.__dict__["_last_limit"] = level, confidence, limit
        return limit

    def _group_numbers(self, array: NDArray[Any], groups: Any, weights: Any) -> I64:
        """The group of each label of each row, broadcastable to (n, K)."""
        if weights is not None:
            raise InputError("weights are only taken by a calibration with weights of its own rows.")
        if self.groups is not None:
            return self.groups.by.numbers(self.score, array, groups)
        if groups is not None:
            raise InputError('groups are only taken by a calibration by="group".')
        return _ONE_GROUP

    def p_values(
        self, logits: Any, labels: Any = None, *, groups: Any = None, weights: Any = None, smoothed: Any = False
    ) -> F64:
        """p = (1 + #{s_i >= s}) / (n + 1) of every label, (n, K), or of the given labels only, (n,).

        Among the calibration rows of the label's or row's group, where there are groups; weighted, where there are
        weights. A label is outside the set exactly when p <= 1 - coverage (compared as fractions; up to rounding where
        weights are not whole numbers).

        Parameters
        ----------
        logits : (n, K), or one (K,) row
        labels : (n,), optional
        groups, weights : of the rows, as for `predict`
        smoothed : True for p = (#{s_i > s} + u (1 + #{s_i = s})) / (n + 1), which is uniform also where scores are
            tied; u in (0, 1] is a function of the row's logits, the score's seed and the calibration rows. Or a random
            generator, or (n,) random numbers in [0, 1]. Of tensors on an accelerator, too, these p-values are made on
            the CPU

        >>> calibration = calibrate([[2.0, 1.0, 0.0]] * 3, [0, 0, 1], "topk")
        >>> new = [2.0, 1.0, 0.0]
        >>> calibration.p_values(new).round(3).tolist(), calibration.p_values(new, smoothed=[0.5]).round(3).tolist()
        ([[1.0, 0.5, 0.25]], [[0.625, 0.25, 0.125]])
        """
        is_smoothed = self._is_smoothed(smoothed)
        frames.same_rows(logits=logits, labels=labels, groups=groups, weights=weights, smoothed=smoothed)
        if not is_smoothed and kernels.on_device(self.score, logits) is not None:
            return self._device_p_values(logits, labels, groups, weights)
        own, array = self._scored_with(logits)
        if is_smoothed and own is not self:
            own._warn_of_lost_ties(self)
        if labels is None:
            truth, scores = None, kernels.dense_scores(self.score, array)
        else:
            truth = self.classes.row_labels(labels, logits, array)
            scores = kernels.label_scores(self.score, array, truth)
        if not is_smoothed:
            return own._p_values_of(scores, truth, array, groups, weights)
        numbers = limits.at_labels(own._group_numbers(array, groups, weights), truth)
        steps = self._steps(smoothed, array)
        return own._smoothed_p_values(scores, numbers, steps if truth is not None else steps[:, None])

    def _device_p_values(self, logits: Any, labels: Any, groups: Any, weights: Any) -> Any:
        """P-values of tensors on an accelerator, where they stay; under groups and weights they are looked up here.

        Their scores are made on the device all the same: those of another backend could not be compared.
        """
        from evicp.calibration import device

        tensor = validate.as_device_logits(logits, self.n_classes, row_allowed=True)
        truth = None if labels is None else self.classes.numbers(labels, len(tensor))
        own, tensor = self.comparable(tensor, precision_of(tensor))
        if all(part is None for part in (self.groups, self.weights, groups, weights)):
            return device.p_values(own, tensor, truth)
        scores = (
            device.dense_scores(self.score, tensor) if truth is None else device.label_scores(self.score, tensor, truth)
        )
        return own._p_values_of(scores, truth, tensor, groups, weights)

    def _p_values_of(self, scores: F64, truth: I64 | None, array: Any, groups: Any, weights: Any) -> F64:
        """The p-values of scores: of every label, (n, K), or of the true ones, (n,)."""
        if self.weights is not None:
            new = limits.at_labels(self.weights.of_new(len(array), weights), truth)
            return shift.weighted_p_values(self.scores, self.weights.rows, scores, new)
        at_least, n = self._at_least(scores, limits.at_labels(self._group_numbers(array, groups, weights), truth))
        p: F64 = (1.0 + at_least) / (1.0 + n)
        return p

    def _at_least(self, scores: F64, numbers: I64) -> tuple[I64, I64]:
        """How many calibration scores are at least each one given, and how many there are, in its group."""
        if self.groups is not None:
            return self.groups.at_least(self.scores, scores, numbers)
        return self.n - np.searchsorted(self.scores, scores, side="left"), np.full((1,) * scores.ndim, self.n)

    def at_least(self, logits: Any, groups: Any = None) -> tuple[I64, I64]:
        """How many calibration scores are at least each label's, (n, K), and how many there are, in its group.

        The second is broadcastable to (n, K); what `p_values` are made of, to be added up (see `CrossCalibration`).

        Parameters
        ----------
        logits : (n, K), or one (K,) row
        groups : (n,) groups of the rows, for a calibration by="group"
        """
        frames.same_rows(logits=logits, groups=groups)
        own, array = self._scored_with(logits)
        numbers = own._group_numbers(array, groups, None)
        return own._at_least(kernels.dense_scores(self.score, array), numbers)

    def _smoothed_p_values(self, scores: F64, numbers: I64, steps: I64) -> F64:
        if self.groups is not None:
            return self.groups.smoothed_p_values(self.scores, scores, numbers, steps)
        below, up_to = (np.searchsorted(self.scores, scores, side) for side in ("left", "right"))
        return limits.smoothed_p_values(self.n - up_to, up_to - below, self.n, steps)

    def p_values_online(self, logits: Any, labels: Any) -> F64:
        """The p-value of each labelled row, (m,), where a row joins the calibration after it was tested.

        p_t = (1 + #{calibration and earlier rows with score >= s_t}) / (n + t), t from 1: what `extended` would give,
        row by row. Of exchangeable rows without ties these p-values are independent, as a test martingale needs them;
        those of `p_values` share one calibration, and are not.

        Parameters
        ----------
        logits, labels : (m, K) and (m,), in order of arrival

        >>> calibration = calibrate([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0]], [0, 1], "lac")
        >>> calibration.p_values_online([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], [1, 0])
        array([0.66666667, 0.25      ])
        """
        if self.guarantee != "marginal":
            raise InputError(
                f"online p-values are those of one exchangeable sequence; this calibration is not marginal but "
                f"{self.guarantee}. Use p_values and extended."
            )
        frames.same_rows(logits=logits, labels=labels)
        array = self._as_logits(logits)
        truth = self.classes.row_labels(labels, logits, array)
        if self.origin is None:
            scores = kernels.label_scores(self.score, array, truth)
            return limits.online_p_values(self.scores, scores, scores)
        before = self.origin.arithmetic
        precision = precision_of_new(before, precision_of(logits, array), array)
        array, new = kernels.comparable(before, self.score, array, precision)
        scores = kernels.label_scores(self.score, array, truth)
        if new == before:
            return limits.online_p_values(self.scores, scores, scores)
        both = replace(self.origin, arithmetic=before | new)  # as `extended` makes it
        own, joining = self._raised(both, new), both.raised(scores, self.score, self.n_classes, new)
        return limits.online_p_values(own.scores, scores, joining)

    def extended(self, logits: Any, labels: Any, *, groups: Any = None, weights: Any = None) -> Calibration:
        """A calibration with more labelled rows; this one stays as it is.

        It is the calibration of all rows at once, to the bit; but what was learned from rows set aside (bands of
        uncertainty, clusters of classes) is kept as it is, and no new row is set aside. New rows must be exchangeable
        with the others: neither chosen by their sets, nor among the rows that chose the score.

        Scores are made as by `predict`: in the precision of the calibration rows. Where another backend makes them,
        the calibration is "mixed", and its thresholds are raised past rounding.

        Parameters
        ----------
        logits, labels : (m, K) and (m,)
        groups : (m,) groups of the rows, for a calibration by="group"; each among those it has
        weights : (m,) weights of the rows, for a calibration with weights of its rows

        >>> calibration = calibrate([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0]], [0, 1], "lac")
        >>> calibration.extended([[0.0, 0.0, 3.0]], [2]).n, calibration.n
        (3, 2)
        """
        own = self.weights
        if (own is None or own.classes is not None) and weights is not None:
            raise InputError("weights are only taken by a calibration with weights of its own rows.")
        if own is not None and own.classes is None and weights is None:
            raise InputError("this calibration is weighted; pass the weights of the new rows: weights=.")
        frames.same_rows(logits=logits, labels=labels, groups=groups, weights=weights)
        validate.same_device(logits, labels)
        self.classes.check(logits)
        stays = kernels.on_device(self.score, logits) is not None
        if stays:
            array: Any = validate.as_device_logits(logits, self.n_classes)
        else:
            array = validate.as_logits(logits, self.n_classes, keep_bfloat16=True)
        classes = self.classes.learned(logits)
        truth = classes.row_labels(labels, logits, array)
        if own is not None:
            new_weights = shift.as_weights(weights, len(truth)) if own.classes is None else own.classes[truth]
        if self.groups is None and groups is not None:
            raise InputError('groups are only taken by a calibration by="group".')
        origin = self.origin or UNKNOWN
        made_by = origin.arithmetic
        precision = precision_of_new(made_by, precision_of(logits, None if stays else array), array)
        batch, array = score_batch(self.score, logits, array, truth, made_by, precision)
        keys = batch.keys if self.groups is None else self.groups.by.keys(self.score, array, truth, groups)
        if not len(truth):
            return self
        known = replace(self, columns=classes.other_columns)
        warn_of_masked_labels([batch])
        if own is not None and own.classes is None:
            shift.warn_of_scales_between([own.rows, new_weights])
        if not convert.is_on_device(logits):
            self._warn_suspicious(validate.as_logits(logits))
        origin = origin_of([Batch(self.scores, keys[:0], None, origin), batch])
        if self.groups is not None:
            scores, by_group = self.groups.extended(self.scores, batch.scores, keys, self.n_classes)
            return replace(known, scores=convert.frozen(scores), groups=by_group, origin=origin)
        scores = np.concatenate([self.scores, batch.scores])
        order = np.argsort(scores, kind="stable")
        new = None if own is None else Weights(np.concatenate([own.rows, new_weights])[order], own.classes)
        return replace(known, scores=convert.frozen(scores[order]), weights=new, origin=origin)

    def groups_of(self, logits: Any, groups: Any = None) -> NDArray[np.str_]:
        """The name of each row's group, (n,), as `evaluate(groups=...)` takes it.

        Parameters
        ----------
        logits : (n, K), or one (K,) row
        groups : (n,) groups of the rows, for a calibration by="group"
        """
        frames.same_rows(logits=logits, groups=groups)
        _, array = self._scored_with(logits)
        if self.groups is None or not self.has_row_groups:
            raise InputError("groups of rows exist only where the calibration is by group or by uncertainty.")
        used, of_row = np.unique(self._group_numbers(array, groups, None)[:, 0], return_inverse=True)
        return np.array([self.groups.names[number] for number in used], dtype=str)[of_row]

    @property
    def has_row_groups(self) -> bool:
        """Whether each row is in a group, by which it is calibrated and can be evaluated; see `groups_of`."""
        return self.guarantee in ("group", "uncertainty")

    def reliability(self, coverage: Coverage, confidence: float | None = None) -> Reliability:
        """The law of coverage given n calibration rows (Theorem 2 and the Beta law).

        Parameters
        ----------
        coverage : asked of the sets
        confidence : of training-conditional (PAC) sets
        """
        if self.guarantee != "marginal":
            raise InputError(f"this calibration is not marginal but {self.guarantee}: certificate() has its laws.")
        self.require_law("reliability")
        return Reliability(self.n, coverage, confidence)

    def certificate(
        self,
        coverage: Coverage,
        evaluation: Evaluation | None = None,
        *,
        confidence: float = 0.95,
        pac: float | None = None,
        date: str | None = None,
    ) -> Certificate:
        """What may be promised at this coverage; with an evaluation, whether what was observed is compatible.

        Parameters
        ----------
        coverage : asked of the sets
        evaluation : of sets of this calibration at this coverage, on other rows
        confidence : of the intervals, and of the verdict on what was observed
        pac : the confidence of training-conditional sets, as `predict(confidence=...)` had it
        date : of the certificate, today's by default

        Returns
        -------
        Certificate
            Prints as a text; `to_dict`, `to_json` and `to_html` have it in other forms.

        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 4, 500)
        >>> logits = rng.normal(size=(500, 4)) + 3 * np.eye(4)[labels]
        >>> certificate = calibrate(logits, labels).certificate(0.9)
        >>> certificate.rank, round(certificate.expected_coverage, 4)
        (451, 0.9002)
        >>> [round(end, 4) for end in certificate.coverage_interval]
        [0.8725, 0.9249]
        """
        return certify(self, coverage, evaluation, confidence=confidence, pac=pac, date=date)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the calibration to a safetensors file, atomically. Read it again with `evicp.load`."""
        outer("save")(self, path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Calibration):
            return NotImplemented
        names = (part.name for part in fields(Calibration) if part.compare and part.name != "scores")
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and np.array_equal(self.scores, other.scores)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = "" if self.groups is None else f", by {self.groups.by.kind} ({len(self.groups.counts):,} groups)"
        kind = kind if self.weights is None else f", weighted ({self.effective_n:.1f} effective rows)"
        kind += "" if self.chosen_on is None else f"; {self.chosen_on:,} other rows chose the score"
        kind += "" if self.folds is None else f"; scored in {self.folds:,} folds"
        return f"Calibration({self.score.describe()}, {self.n:,} rows, {self.n_classes:,} classes{kind})"

    def _repr_html_(self) -> str:
        facts = [["score", self.score.describe()], ["rows", f"{self.n:,}"], ["classes", f"{self.n_classes:,}"]]
        facts.append(["guarantee", self.guarantee if self.groups is None else f"by {self.guarantee}"])
        if self.groups is not None:
            facts.append(["groups", f"{len(self.groups.counts):,}"])
        if self.weights is not None:
            facts.append(["effective rows", f"{self.effective_n:.1f}"])
        if self.chosen_on is not None:
            facts.append(["score chosen on", f"{self.chosen_on:,} other rows"])
        if self.folds is not None:
            facts.append(["folds", f"{self.folds}"])
        return html_table(["Calibration", ""], facts, left=(1,))


def _endless(level: Fraction) -> F64:
    """The threshold, as (1, 1), at a level that an adaptive method has moved to 1 or more, or to 0 or less."""
    return np.full((1, 1), np.inf if level >= 1 else -np.inf)
