"""Metrics of prediction sets: functions of (sets, labels), and `evaluate`, which computes all of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from evicp import kernels
from evicp.errors import InputError, InputTypeError, LogitsError
from evicp.evaluation import counts
from evicp.evaluation.counts import QUANTILES, ClassCoverage, Counts, GroupCoverage, Tally
from evicp.evaluation.result import Evaluation
from evicp.evaluation.strata import SIZE_ENDS, Stratum, intervals
from evicp.evaluation.verdicts import verdict_of
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis, labelled
from evicp.input.frames import as_features, columns_of, is_matrix, same_labels, same_rows
from evicp.sets import PredictionSets, holds, label_numbers, sets_of
from evicp.types import I64, Bools, Coverage

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration

__all__ = [
    "Evaluator",
    "accuracy",
    "class_coverage",
    "clopper_pearson",
    "coverage",
    "difficulty",
    "difficulty_strata",
    "evaluate",
    "group_coverage",
    "mean_size",
    "sat",
    "size_strata",
    "sscv",
]

_Rows = TypeVar("_Rows", PredictionSets, I64)


def coverage(sets: PredictionSets, labels: ArrayLike) -> float:
    """The share of rows whose set contains the true label.

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> coverage(sets, [0, 2, 1])
    0.6666666666666666
    """
    return float(_hits(sets, labels).mean())


def clopper_pearson(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact binomial interval of a share of hits among n rows.

    >>> [round(x, 4) for x in clopper_pearson(9, 10)]
    [0.555, 0.9975]
    """
    if validate.as_count(hits, "hits", at_least=0) > validate.as_count(n, "n"):
        raise InputError(f"hits must be at most n; got {hits} of {n}.")
    low, high = intervals(hits, n, validate.as_probability(confidence, "confidence"))
    return float(low), float(high)


def mean_size(sets: PredictionSets, *, non_empty: bool = False) -> float | None:
    """The mean number of labels per set; optionally of non-empty sets only (None if there are none).

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> mean_size(sets), mean_size(sets, non_empty=True)
    (1.0, 1.5)
    """
    sizes = sets.sizes[sets.sizes > 0] if non_empty else sets.sizes
    return float(sizes.mean()) if sizes.size else None


def size_quantiles(sets: PredictionSets, shares: Sequence[float] = QUANTILES) -> dict[str, float]:
    """Sizes that these shares of the sets do not exceed: {"5%": 1.0, ...}.

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> size_quantiles(sets, [0.5])
    {'50%': 1.0}
    """
    return counts.quantiles(np.bincount(_some(sets).sizes), shares)


def size_share(sets: PredictionSets, size: int) -> float:
    """The share of sets of one size: 0 for empty sets, 1 for single labels.

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> size_share(sets, 0) == 1 / 3
    True
    """
    return float(np.mean(_some(sets).sizes == size))


def size_strata(
    sets: PredictionSets, labels: ArrayLike, ends: Sequence[int] = SIZE_ENDS, *, confidence: float = 0.95
) -> tuple[Stratum, ...]:
    """Counts and coverage by set size (the paper's Table 3); `ends` are the largest sizes of ranges but the last.

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> [(stratum.label, stratum.count, stratum.coverage) for stratum in size_strata(sets, [0, 2, 1])][:2]
    [('0-1', 2, 0.5), ('2-3', 1, 1.0)]
    """
    hits = _hits(sets, labels)
    whole = [validate.as_count(end, "ends", at_least=0) for end in ends]
    if any(end >= after for end, after in pairwise(whole)):
        raise InputError(f"ends must ascend; got {', '.join(map(str, whole))}.")
    return _by_size(sets, hits).strata(0, whole, validate.as_probability(confidence, "confidence"))


def difficulty(logits: ArrayLike, labels: ArrayLike) -> I64:
    """The rank of each row's true label among its logits, from 1; equal logits share a rank.

    >>> difficulty([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]], [0, 2])
    array([1, 3])
    """
    return kernels.label_ranks(*labelled(logits, labels))


def accuracy(logits: ArrayLike, labels: ArrayLike) -> float:
    """Top-1 accuracy: the share of rows where no logit is above the true label's.

    >>> accuracy([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]], [0, 2])
    0.5
    """
    return float(np.mean(_some(difficulty(logits, labels)) == 1))


def difficulty_strata(
    sets: PredictionSets, labels: ArrayLike, difficulty: ArrayLike, *, confidence: float = 0.95
) -> tuple[Stratum, ...]:
    """Counts, coverage and size by the rank of the true label (the paper's Table 4).

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> [(one.label, one.count, one.coverage) for one in difficulty_strata(sets, [0, 2, 1], [1, 2, 2])][:2]
    [('1', 1, 1.0), ('2-3', 2, 0.5)]
    """
    same_rows(labels=labels, difficulty=difficulty)
    hits = _hits(sets, labels)
    ranks = _as_ranks(difficulty, len(sets), sets.n_classes)
    by_rank = Counts.of(ranks, hits, sets.sizes, sets.n_classes + 1)
    return by_rank.strata(1, SIZE_ENDS, validate.as_probability(confidence, "confidence"))


def sscv(sets: PredictionSets, labels: ArrayLike, *, min_count: int = 1) -> float | None:
    """Size-stratified coverage violation: the largest distance from the target over size ranges.

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> round(sscv(sets, [0, 2, 1]), 2)  # coverage 0.5 at sizes 0-1
    0.4
    """
    return _by_size(sets, _hits(sets, labels)).sscv(sets.coverage, min_count)[0]


def sat(sets: PredictionSets, labels: ArrayLike, *, min_count: int = 1) -> float | None:
    """Size-adaptivity trade-off: (1 - SSCV) / mean size of non-empty sets; None if all are empty.

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> round(sat(sets, [0, 2, 1]), 2)
    0.4
    """
    return counts.sat_of(sscv(sets, labels, min_count=min_count), mean_size(sets, non_empty=True))


def class_coverage(sets: PredictionSets, labels: ArrayLike) -> ClassCoverage:
    """Coverage of each class, and the mean size of its rows' sets.

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> class_coverage(sets, [0, 2, 1]).coverage
    array([1., 0., 1.])
    """
    truth = label_numbers(_some(as_sets(sets)), labels)
    by_class = Counts.of(truth, holds(sets, truth), sets.sizes, sets.n_classes)
    return by_class.class_coverage(sets.coverage, sets.class_names)


def group_coverage(sets: PredictionSets, labels: ArrayLike, groups: ArrayLike) -> GroupCoverage:
    """Coverage and size in each group of rows, given one name or number per row.

    >>> sets = PredictionSets.from_lists([[0], [1, 2], []], n_classes=3, coverage=0.9)
    >>> group_coverage(sets, [0, 2, 1], ["a", "a", "b"]).coverage
    array([1., 0.])
    """
    same_rows(labels=labels, groups=groups)
    members = _members(groups, len(sets))
    return counts.group_coverage(counts.count_groups(members, _hits(sets, labels), sets.sizes), sets.coverage)


def _members(groups: Any, n: int) -> counts.Members:
    """The rows of all groups, group after group, and the names of their groups; a matrix has groups that overlap."""
    if not is_matrix(groups):
        return counts.Members(np.arange(n), validate.as_groups(groups, n).astype(str))
    matrix = as_features(groups, "groups", n=n)
    if not np.isin(matrix, (0.0, 1.0)).all():
        raise InputError("a matrix of groups must hold 1 where a row is in a group and 0 elsewhere, to evaluate them.")
    group, row = np.nonzero(matrix.T)
    names = columns_of(groups) or [f"group {number}" for number in range(matrix.shape[1])]
    return counts.Members(row, np.array(names, dtype=str)[group])


def _some(rows: _Rows) -> _Rows:
    """Refuse zero rows: a mean of nothing is no number."""
    if not len(rows):
        raise InputError("evaluation needs at least one row; got none.")
    return rows


def _hits(sets: PredictionSets, labels: Any) -> Bools:
    """Whether each set contains its true label, of at least one set."""
    return _some(as_sets(sets)).contains(labels)


def _by_size(sets: PredictionSets, hits: Bools) -> Counts:
    return Counts.of(sets.sizes, hits, sets.sizes, sets.n_classes + 1)


def as_sets(sets: Any) -> PredictionSets:
    """Sets that are sets; the only kind of input that `input` cannot know."""
    if not isinstance(sets, PredictionSets):
        hint = " For several coverages evaluate them one by one." if isinstance(sets, list) else ""
        raise InputTypeError(f"sets must be PredictionSets; got a {type(sets).__name__}.{hint}")
    return sets


def evaluate(
    sets: PredictionSets,
    labels: ArrayLike,
    logits: ArrayLike | None = None,
    *,
    difficulty: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    min_count: int = 1,
    confidence: float = 0.95,
) -> Evaluation:
    """Coverage, size and adaptivity of prediction sets.

    Parameters
    ----------
    sets : the sets
    labels : (n,) true labels, as numbers; or as names, where the sets have class names
    logits : (n, K), optional
        Adds top-1 accuracy and strata by difficulty, the rank of the true label.
    difficulty : (n,) ranks from 1, optional
        Instead of logits, if the ranks are already known.
    groups : (n,) names or numbers, or (n, G) groups that overlap, optional
        Adds coverage and size in each group of rows.
    min_count : strata with fewer rows are left out of SSCV
    confidence : of the Clopper-Pearson intervals of coverage

    Returns
    -------
    Evaluation
        Prints as tables; each figure is an attribute.

    >>> from fractions import Fraction
    >>> sets = PredictionSets(np.array([0, 1, 3]), np.array([0, 1, 2], np.int32), n_classes=3, coverage=Fraction(1, 2))
    >>> result = evaluate(sets, [0, 0])
    >>> result.coverage, result.mean_size, result.sscv, round(result.sat, 4)
    (0.5, 1.5, 0.5, 0.3333)
    """
    evaluator = Evaluator(min_count=min_count, confidence=confidence)
    return evaluator.update(sets, labels, logits, difficulty=difficulty, groups=groups).finish()


def judged_by(calibration: Calibration, evaluation: Evaluation) -> Evaluation:
    """An evaluation of sets that a calibration made, with its verdict: it knows what was guaranteed in each group."""
    return replace(evaluation, judged=verdict_of(evaluation, calibration))


def evaluate_calibration(
    calibration: Calibration, logits: Any, labels: Any, coverage: Coverage, *, groups: Any, weights: Any, **how: Any
) -> Evaluation:
    """The sets that a calibration predicts, evaluated; `how` is what else `Calibration.predict` takes."""
    if validate.is_many(coverage):
        raise InputTypeError(f"evaluate takes one coverage; got {coverage!r}. Evaluate them one by one.")
    own = groups if "groups" in calibration.law.needs else None
    sets = calibration.predict(logits, coverage, groups=own, weights=weights, **how)
    of_rows = calibration.groups_of(logits, groups) if calibration.has_row_groups else groups
    return judged_by(calibration, evaluate(sets, labels, logits, groups=of_rows))


class Evaluator:
    """Evaluation in batches or shards: only counts are kept, for any number of rows.

    Parameters
    ----------
    min_count, confidence : as for `evaluate`

    >>> from fractions import Fraction
    >>> sets = PredictionSets(np.array([0, 1, 3]), np.array([0, 1, 2], np.int32), n_classes=3, coverage=Fraction(1, 2))
    >>> first, second = Evaluator().update(sets[:1], [0]), Evaluator().update(sets[1:], [0])
    >>> first.merge(second).finish().coverage
    0.5
    """

    def __init__(self, *, min_count: int = 1, confidence: float = 0.95) -> None:
        self.min_count = validate.as_count(min_count, "min_count")
        self.confidence = validate.as_probability(confidence, "confidence")
        self._like: PredictionSets | None = None
        self._tally: Tally | None = None
        self._members = [self]  # whose rows are counted here

    def update(
        self,
        sets: PredictionSets,
        labels: ArrayLike,
        logits: ArrayLike | None = None,
        *,
        difficulty: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Evaluator:
        """Add a batch of sets with their true labels; parameters as for `evaluate`, the same ones in every batch."""
        if hasattr(sets, "cpu"):  # sets that stayed on a device
            found = _tally_on_device(sets, labels, logits) if difficulty is None and groups is None else None
            if found is not None:
                return self._add(*found)
            sets = sets.cpu()
        same_rows(logits=logits, labels=labels, difficulty=difficulty, groups=groups)
        truth = label_numbers(as_sets(sets), labels)
        ClassAxis.known_to(sets).check(logits)
        ranks = _ranks_from(logits, difficulty, labels, truth, sets.n_classes)
        members = None if groups is None else _members(groups, len(sets))
        return self._add(Tally.of(sets.sizes, holds(sets, truth), truth, ranks, members, sets.n_classes), sets[:0])

    def merge(self, *others: Evaluator) -> Evaluator:
        """Add the counts of other evaluators."""
        for other in others:
            if not isinstance(other, Evaluator):
                raise InputTypeError(f"only an Evaluator can be merged; got a {type(other).__name__}.")
        members = [member for one in (self, *others) for member in one._members]
        if len(set(members)) < len(members):
            raise InputError("an evaluator cannot be merged twice: its rows would count twice.")
        whole = copy(self)  # so that one that does not fit changes nothing
        for other in others:
            if other._tally is not None and other._like is not None:
                whole._add(other._tally, other._like)
        self._tally, self._like, self._members = whole._tally, whole._like, members
        return self

    def _add(self, tally: Tally, like: PredictionSets) -> Evaluator:
        if self._like is not None and self._like != like:
            raise InputError("batches must come from one calibration and one coverage; these sets do not.")
        known = None if self._like is None else self._like.columns
        if known is not None and like.columns is not None and ClassAxis.known_to(like).misplaced(known):
            raise InputError("batches must come from one calibration; these sets are of columns in another order.")
        self._tally = tally if self._tally is None else self._tally + tally
        self._like = like if like.columns is not None or self._like is None else self._like
        return self

    def finish(self) -> Evaluation:
        """The evaluation of all batches."""
        if self._tally is None or self._like is None or not self._tally.n:
            raise InputError("evaluation needs at least one row; got none.")
        like = self._like
        return Evaluation(
            self._tally,
            like.coverage,
            like.score,
            like.n_calibration,
            min_count=self.min_count,
            confidence=self.confidence,
            class_names=like.class_names,
            target_confidence=like.confidence,
            guarantee=like.guarantee,
            filled=like.filled,
            smoothed=like.smoothed,
            tied=like.tied,
        )


def _tally_on_device(sets: Any, labels: Any, logits: Any) -> tuple[Tally, PredictionSets] | None:
    """The counts of sets on an accelerator, if labels and logits are there, too; and no such sets."""
    from evicp.evaluation.on_device import tally_on_device

    tally = tally_on_device(sets, labels, logits)
    none = sets_of(sets.about, np.zeros(1, np.int64), np.empty(0, np.int32))
    return None if tally is None else (tally, none)


def _ranks_from(logits: Any, difficulty: Any, labels: Any, truth: I64, n_classes: int) -> I64 | None:
    """The ranks of the true labels, from the logits or as given; None without either."""
    if logits is None:
        return None if difficulty is None else _as_ranks(difficulty, len(truth), n_classes)
    if difficulty is not None:
        raise InputError("give logits or difficulty, not both: the difficulty is the true label's rank in the logits.")
    validate.same_device(logits, labels)
    there = convert.is_on_device(logits)
    array: Any = (validate.as_device_logits if there else validate.as_logits)(logits, n_classes, row_allowed=True)
    if len(array) != len(truth):
        raise LogitsError(f"logits must have one row per set; got {len(array)} rows for {len(truth)} sets.")
    if not there:
        same_labels(logits, labels, array, truth)
    return kernels.label_ranks(array, truth)


def _as_ranks(difficulty: Any, n: int, n_classes: int) -> I64:
    ranks = convert.as_array(difficulty, "difficulty")
    if ranks.shape != (n,) or ranks.dtype.kind not in "iu" or np.any((ranks < 1) | (ranks > n_classes)):
        raise InputError(
            f"difficulty must hold one whole number in [1, {n_classes}] per set: the rank of the true label."
        )
    return ranks.astype(np.int64, copy=False)
