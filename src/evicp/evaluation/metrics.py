"""How good are prediction sets? Functions of (sets, labels), and `evaluate`, which is all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.errors import InputError, InputTypeError, LogitsError
from evicp.evaluation.strata import SIZE_ENDS, SSCV_ENDS, Ranges, intervals, range_text, trade_off, violation
from evicp.input import convert, validate
from evicp.input.classes import labelled
from evicp.input.frames import same_labels, same_rows
from evicp.outer import outer
from evicp.sets import PredictionSets
from evicp.tables import html_table, markdown_table, rows_text, text_table
from evicp.types import F64, I64, Bools

__all__ = [
    "ClassCoverage",
    "Evaluation",
    "Evaluator",
    "GroupCoverage",
    "Stratum",
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
    "size_quantiles",
    "size_share",
    "size_strata",
    "sscv",
]

_Rows = TypeVar("_Rows", PredictionSets, I64)

#: The quantiles of set size that an evaluation reports beside the median.
QUANTILES = (0.05, 0.25, 0.75, 0.95)


@dataclass(frozen=True)
class Stratum:
    """Rows whose set size (or difficulty) lies in [low, high]: how many, how often covered, how large.

    Attributes
    ----------
    low : where the range begins
    high : where it ends, inclusive
    count : rows in it
    coverage : the share of them whose set holds the true label; None without rows
    coverage_interval : its exact (Clopper-Pearson) interval; None without rows
    mean_size : labels per set; None without rows
    """

    low: int
    high: int
    count: int
    coverage: float | None
    coverage_interval: tuple[float, float] | None
    mean_size: float | None

    @property
    def label(self) -> str:
        """The range as text, "2-3"."""
        return range_text(self.low, self.high)


@dataclass(frozen=True, eq=False)
class ClassCoverage:
    """Coverage of each class, and the mean size of its rows' sets; NaN for a class without rows.

    Attributes
    ----------
    coverage : (K,) the share of each class's rows whose set holds it
    counts : (K,) rows of each class
    mean_size : (K,) labels per set of these rows
    target : the coverage asked for, exactly
    names : of the classes, where the sets know them
    """

    coverage: F64
    counts: I64
    mean_size: F64
    target: Fraction
    names: tuple[str, ...] | None = None

    @property
    def mean_gap(self) -> float:
        """The mean distance from the target over classes with rows."""
        return float(np.nanmean(np.abs(self.coverage - float(self.target))))

    @property
    def worst_class(self) -> int:
        """The class covered least."""
        return int(np.nanargmin(self.coverage))

    @property
    def worst(self) -> float:
        """The coverage of the worst class."""
        return float(self.coverage[self.worst_class])

    def label(self, number: int) -> str:
        """A class as text, with its name where that is known: "class 32", "32 tailed frog"."""
        return f"class {number}" if self.names is None else f"{number} {self.names[number]}"


@dataclass(frozen=True, eq=False)
class GroupCoverage:
    """Coverage and size in each group of rows.

    Attributes
    ----------
    names : of the G groups, sorted
    coverage : (G,) the share of each group's rows whose set holds the true label
    counts : (G,) rows of each group
    mean_size : (G,) labels per set of these rows
    target : the coverage asked for, exactly
    """

    names: tuple[str, ...]
    coverage: F64
    counts: I64
    mean_size: F64
    target: Fraction

    @property
    def mean_gap(self) -> float:
        """The mean distance from the target over groups."""
        return float(np.mean(np.abs(self.coverage - float(self.target))))

    @property
    def worst_group(self) -> str:
        """The group covered least."""
        return self.names[int(np.argmin(self.coverage))]

    @property
    def worst(self) -> float:
        """The coverage of the worst group."""
        return float(self.coverage.min())


def coverage(sets: PredictionSets, labels: Any) -> float:
    """The share of rows whose set holds the true label."""
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
    """The mean number of labels per set; of non-empty sets only if asked, None if there are none."""
    sizes = sets.sizes[sets.sizes > 0] if non_empty else sets.sizes
    return float(sizes.mean()) if sizes.size else None


def size_quantiles(sets: PredictionSets, shares: Sequence[float] = QUANTILES) -> dict[str, float]:
    """Sizes that these shares of the sets do not exceed: {"5%": 1.0, ...}."""
    return _quantiles(np.bincount(_some(sets).sizes), shares)


def size_share(sets: PredictionSets, size: int) -> float:
    """The share of sets of one size: 0 for empty sets, 1 for single labels."""
    return float(np.mean(_some(sets).sizes == size))


def size_strata(
    sets: PredictionSets, labels: Any, ends: Sequence[int] = SIZE_ENDS, *, confidence: float = 0.95
) -> tuple[Stratum, ...]:
    """Counts and coverage by set size (the paper's Table 3); `ends` are the largest sizes of ranges but the last."""
    hits = _hits(sets, labels)
    whole = [validate.as_count(end, "ends", at_least=0) for end in ends]
    if any(end >= after for end, after in pairwise(whole)):
        raise InputError(f"ends must ascend; got {', '.join(map(str, whole))}.")
    counts = _Counts.of(sets.sizes, hits, sets.sizes, sets.n_classes + 1)
    return _strata(counts, 0, whole, validate.as_probability(confidence, "confidence"))


def difficulty(logits: Any, labels: Any) -> I64:
    """The rank of each row's true label among its logits, from 1; equal logits share a rank.

    >>> difficulty([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]], [0, 2])
    array([1, 3])
    """
    return kernels.label_ranks(*labelled(logits, labels))


def accuracy(logits: Any, labels: Any) -> float:
    """Top-1 accuracy: the share of rows where no logit is above the true label's."""
    return float(np.mean(_some(difficulty(logits, labels)) == 1))


def difficulty_strata(
    sets: PredictionSets, labels: Any, difficulty: Any, *, confidence: float = 0.95
) -> tuple[Stratum, ...]:
    """Counts, coverage and size by the rank of the true label (the paper's Table 4)."""
    same_rows(labels=labels, difficulty=difficulty)
    hits = _hits(sets, labels)
    ranks = _as_ranks(difficulty, len(sets), sets.n_classes)
    counts = _Counts.of(ranks, hits, sets.sizes, sets.n_classes + 1)
    return _strata(counts, 1, SIZE_ENDS, validate.as_probability(confidence, "confidence"))


def sscv(sets: PredictionSets, labels: Any, *, min_count: int = 1) -> float | None:
    """Size-stratified coverage violation: the largest distance from the target over size ranges."""
    hits = _hits(sets, labels)
    counts = _Counts.of(sets.sizes, hits, sets.sizes, sets.n_classes + 1)
    return _sscv(counts, sets.coverage, min_count)[0]


def sat(sets: PredictionSets, labels: Any, *, min_count: int = 1) -> float | None:
    """Size-adaptivity trade-off: (1 - SSCV) / mean size of non-empty sets; None if all are empty."""
    return _sat(sscv(sets, labels, min_count=min_count), mean_size(sets, non_empty=True))


def class_coverage(sets: PredictionSets, labels: Any) -> ClassCoverage:
    """Coverage of each class, and the mean size of its rows' sets."""
    truth = _some(as_sets(sets)).numbers(labels)
    counts = _Counts.of(truth, sets.holds(truth), sets.sizes, sets.n_classes)
    return replace(_class_coverage(counts, sets.coverage), names=sets.class_names)


def _some(rows: _Rows) -> _Rows:
    """Refuse zero rows: a mean of nothing is no number."""
    if not len(rows):
        raise InputError("evaluation needs at least one row; got none.")
    return rows


def _hits(sets: PredictionSets, labels: Any) -> Bools:
    """Whether each set holds its true label, of at least one set."""
    return _some(as_sets(sets)).contains(labels)


def as_sets(sets: Any) -> PredictionSets:
    """Sets that are sets; the only kind of input that `input` cannot know."""
    if not isinstance(sets, PredictionSets):
        hint = " For several coverages evaluate them one by one." if isinstance(sets, list) else ""
        raise InputTypeError(f"sets must be PredictionSets; got a {type(sets).__name__}.{hint}")
    return sets


def group_coverage(sets: PredictionSets, labels: Any, groups: Any) -> GroupCoverage:
    """Coverage and size in each group of rows, given one name or number per row."""
    same_rows(labels=labels, groups=groups)
    names = validate.as_groups(groups, len(sets)).astype(str)
    return _group_coverage(_count_groups(names, _hits(sets, labels), sets.sizes), sets.coverage)


def _count_groups(names: NDArray[Any], covered: Bools, sizes: I64) -> dict[str, I64]:
    """Rows, covered rows and labels in sets, (3,), of each group."""
    known, of_row = np.unique(names, return_inverse=True)
    counts = _Counts.of(of_row, covered, sizes, len(known))
    return dict(zip(known.tolist(), np.stack([counts.rows, counts.hits, counts.labels], axis=1), strict=True))


def _group_coverage(groups: dict[str, I64], target: Fraction) -> GroupCoverage:
    names = sorted(groups)
    counts, hits, labels = np.stack([groups[name] for name in names], axis=1)
    return GroupCoverage(tuple(names), hits / counts, counts, labels / counts, target)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Everything worth knowing about sets whose labels are known. Prints as a table.

    Attributes
    ----------
    n : rows evaluated
    n_classes : K
    target : the coverage asked for, exactly
    score : the name of the score
    n_calibration : rows calibrated on; None where nothing is promised
    coverage : the share of rows whose set holds the true label
    coverage_interval : its exact (Clopper-Pearson) interval
    mean_size : labels per set
    mean_size_non_empty : labels per non-empty set; None where all are empty
    median_size : of all sets
    size_quantiles : the sizes that 5, 25, 75 and 95 % of the sets do not exceed: {"5%": 1.0, ...}
    empty_share : the share of empty sets
    singleton_share : the share of sets of one label
    singleton_coverage : the share of one-label sets whose label is the true one; None where there are none
    size_strata : rows and coverage by ranges of set size (the paper's Table 3)
    sscv : size-stratified coverage violation: the largest distance of coverage from the target over ranges of set
        size; None where none of them has `min_count` rows
    sscv_smallest_count : rows in the smallest of these ranges: where they are few, SSCV is mostly chance
    sat : size-adaptivity trade-off, (1 - SSCV) / mean size of non-empty sets; None where either is
    class_coverage : coverage, rows and mean size of each class
    accuracy : top-1 accuracy of the logits; None where neither logits nor difficulty were given
    difficulty_strata : rows, coverage and size by the rank of the true label (the paper's Table 4); None likewise
    confidence : of the intervals
    target_confidence : with which the coverage was asked for (training-conditional sets); None where on average
    guarantee : where the coverage holds, "marginal" or as `PredictionSets` has it
    group_coverage : coverage, rows and mean size of each group; None where no groups were given
    filled : empty sets were given their top label
    smoothed : ties were broken at random
    tied : other calibration scores equal the threshold, so that more may be covered
    """

    n: int
    n_classes: int
    target: Fraction
    score: str
    n_calibration: int | None
    coverage: float
    coverage_interval: tuple[float, float]
    mean_size: float
    mean_size_non_empty: float | None
    median_size: float
    size_quantiles: dict[str, float]
    empty_share: float
    singleton_share: float
    singleton_coverage: float | None
    size_strata: tuple[Stratum, ...]
    sscv: float | None
    sscv_smallest_count: int | None
    sat: float | None
    class_coverage: ClassCoverage
    accuracy: float | None = None
    difficulty_strata: tuple[Stratum, ...] | None = None
    confidence: float = 0.95
    target_confidence: float | None = None
    guarantee: str = "marginal"
    group_coverage: GroupCoverage | None = None
    filled: bool = False
    smoothed: bool = False
    tied: bool = False

    @property
    def law_is_bound(self) -> bool:
        """Whether the Beta law of coverage is one of at least so much: of filled sets, and where scores are tied."""
        return self.filled or self.tied

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        result = {name: getattr(self, name) for name in self.__dataclass_fields__}
        result["target"] = float(self.target)
        result["coverage_interval"] = list(self.coverage_interval)
        for name in ("size_strata", "difficulty_strata"):
            strata = getattr(self, name)
            result[name] = strata and [{"range": s.label, **asdict(s)} for s in strata]
        classes = self.class_coverage
        result["class_coverage"] = {
            "mean_gap": classes.mean_gap,
            "worst": classes.worst,
            "worst_class": classes.worst_class,
            "coverage": [None if np.isnan(c) else c for c in classes.coverage.tolist()],
            "counts": classes.counts.tolist(),
            "mean_size": [None if np.isnan(size) else size for size in classes.mean_size.tolist()],
        }
        groups = self.group_coverage
        result["group_coverage"] = groups and {
            "mean_gap": groups.mean_gap,
            "worst": groups.worst,
            "worst_group": groups.worst_group,
            "names": list(groups.names),
            "coverage": groups.coverage.tolist(),
            "counts": groups.counts.tolist(),
            "mean_size": groups.mean_size.tolist(),
        }
        return result

    def _summary(self) -> list[list[str]]:
        low, high = self.coverage_interval
        classes = self.class_coverage
        worst = f"{classes.label(classes.worst_class)}, {rows_text(int(classes.counts[classes.worst_class]))}"
        right = "" if self.singleton_coverage is None else f" ({self.singleton_coverage:.2%} of these right)"
        rows = [
            ["rows", f"{self.n:,}"],
            ["coverage", f"{self.coverage:.4f}, asked {float(self.target):g}"],
            [
                f"{100 * self.confidence:g} % interval",
                f"[{low:.4f}, {high:.4f}] of the coverage, from these rows alone",
            ],
            ["mean size", f"{self.mean_size:.3f}"],
            [
                "median size",
                f"{self.median_size:g} (" + ", ".join(f"{q}: {v:g}" for q, v in self.size_quantiles.items()) + ")",
            ],
            ["empty, one label", f"{self.empty_share:.2%}, {self.singleton_share:.2%}{right}"],
            ["SSCV", self._sscv_text()],
            ["SAT", _figure(self.sat)],
            ["worst class", f"{classes.worst:.3f} ({worst})"],
            ["class gap", f"{classes.mean_gap:.3f}, the mean distance of classes from {float(self.target):g}"],
        ]
        return rows if self.accuracy is None else [*rows, ["top-1 accuracy", f"{self.accuracy:.4f}"]]

    def _sscv_text(self) -> str:
        """SSCV with what it is taken from: coarser ranges of size than those of the table, of those with rows."""
        if self.sscv is None or self.sscv_smallest_count is None:
            return "-"
        fine, pooled = (Ranges.ending(ends, self.n_classes) for ends in (SIZE_ENDS, SSCV_ENDS))
        rows = pooled.sums(np.array([s.count for s in self.size_strata]), fine)
        hits = pooled.sums(np.array([round((s.coverage or 0.0) * s.count) for s in self.size_strata]), fine)
        used = np.flatnonzero(rows >= self.sscv_smallest_count)  # smaller ones were left out
        worst = used[np.abs(hits[used] / rows[used] - float(self.target)).argmax()]
        about = f"over {', '.join(pooled.labels[i] for i in used)}; smallest {rows_text(self.sscv_smallest_count)}"
        return f"{self.sscv:.3f} at sizes {pooled.labels[worst]} ({about})"

    def _stratum_rows(self, strata: tuple[Stratum, ...]) -> list[list[str]]:
        return [[s.label, f"{s.count:,}", _figure(s.coverage), _figure(s.mean_size, 2)] for s in strata]

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        tables = [(["metric", "value"], self._summary())]
        tables.append((["size", "rows", "coverage", "mean size"], self._stratum_rows(self.size_strata)))
        if self.difficulty_strata is not None:
            tables.append((["difficulty", "rows", "coverage", "mean size"], self._stratum_rows(self.difficulty_strata)))
        if self.group_coverage is not None:
            tables.append((["group", "rows", "coverage", "mean size"], self._group_rows(self.group_coverage)))
        return tables

    def _group_rows(self, groups: GroupCoverage, shown: int = 20) -> list[list[str]]:
        """The groups covered least, worst first."""
        rows = [
            [groups.names[i], f"{groups.counts[i]:,}", f"{groups.coverage[i]:.3f}", f"{groups.mean_size[i]:.2f}"]
            for i in np.argsort(groups.coverage, kind="stable")[:shown]
        ]
        rest = len(groups.names) - len(rows)
        return [*rows, [f"and {rest:,} more", "", "", ""]] if rest else rows

    def __repr__(self) -> str:
        return "\n\n".join(text_table(head, rows) for head, rows in self._tables())

    def to_markdown(self) -> str:
        """The evaluation as Markdown tables."""
        return "\n\n".join(markdown_table(head, rows) for head, rows in self._tables())

    def to_html(self) -> str:
        """The evaluation as a page of its own, with figures (needs the `report` extra)."""
        return outer("report")(self).to_html()

    def _repr_html_(self) -> str:
        return "".join(html_table(head, rows, caption=_CAPTIONS[head[0]]) for head, rows in self._tables())


#: What tells the tables of an evaluation apart where they stand on top of each other, by their first columns.
_CAPTIONS = {
    "metric": "All rows",
    "size": "By the number of labels in the set",
    "difficulty": "By difficulty, the rank of the true label among the logits",
    "group": "By group, the one covered least first",
}


def evaluate(
    sets: PredictionSets,
    labels: Any,
    logits: Any = None,
    *,
    difficulty: Any = None,
    groups: Any = None,
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
        In place of logits, where the ranks are known already.
    groups : (n,) names or numbers, optional
        Adds coverage and size in each group of rows.
    min_count : strata with fewer rows are left out of SSCV
    confidence : of the Clopper-Pearson intervals of coverage

    Returns
    -------
    Evaluation
        Prints as tables; each figure is an attribute.

    >>> sets = PredictionSets(np.array([0, 1, 3]), np.array([0, 1, 2], np.int32), n_classes=3, coverage=Fraction(1, 2))
    >>> result = evaluate(sets, [0, 0])
    >>> result.coverage, result.mean_size, result.sscv, round(result.sat, 4)
    (0.5, 1.5, 0.5, 0.3333)
    """
    evaluator = Evaluator(min_count=min_count, confidence=confidence)
    return evaluator.update(sets, labels, logits, difficulty=difficulty, groups=groups).finish()


class Evaluator:
    """Evaluation in batches or shards: only counts are kept, so n may be as large as it likes.

    Parameters
    ----------
    min_count, confidence : as for `evaluate`

    >>> sets = PredictionSets(np.array([0, 1, 3]), np.array([0, 1, 2], np.int32), n_classes=3, coverage=Fraction(1, 2))
    >>> first, second = Evaluator().update(sets[:1], [0]), Evaluator().update(sets[1:], [0])
    >>> first.merge(second).finish().coverage
    0.5
    """

    def __init__(self, *, min_count: int = 1, confidence: float = 0.95) -> None:
        self.min_count = validate.as_count(min_count, "min_count")
        self.confidence = validate.as_probability(confidence, "confidence")
        self._like: PredictionSets | None = None
        self._tally: _Tally | None = None
        self._members = [self]  # whose rows are counted here

    def update(
        self, sets: PredictionSets, labels: Any, logits: Any = None, *, difficulty: Any = None, groups: Any = None
    ) -> Evaluator:
        """Add a batch of sets with their true labels; parameters as for `evaluate`, the same ones in every batch."""
        if hasattr(sets, "cpu"):  # sets that stayed on a device
            sets = sets.cpu()
        same_rows(logits=logits, labels=labels, difficulty=difficulty, groups=groups)
        truth = as_sets(sets).numbers(labels)
        sets.classes.check(logits)
        ranks = _ranks_from(logits, difficulty, labels, truth, sets.n_classes)
        of_row = None if groups is None else validate.as_groups(groups, len(sets)).astype(str)
        return self._add(_Tally.of(sets.sizes, sets.holds(truth), truth, ranks, of_row, sets.n_classes), sets[:0])

    def merge(self, *others: Evaluator) -> Evaluator:
        """Add what other evaluators have seen."""
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

    def _add(self, tally: _Tally, like: PredictionSets) -> Evaluator:
        if self._like is not None and self._like != like:
            raise InputError("batches must come from one calibration and one coverage; these sets differ in either.")
        known = None if self._like is None else self._like.columns
        if known is not None and like.columns is not None and like.classes.misplaced(known):
            raise InputError("batches must come from one calibration; these sets are of columns in another order.")
        self._tally = tally if self._tally is None else self._tally + tally
        self._like = like if like.columns is not None or self._like is None else self._like
        return self

    def finish(self) -> Evaluation:
        """The evaluation of all batches."""
        if self._tally is None or self._like is None or not self._tally.n:
            raise InputError("evaluation needs at least one row; got none.")
        like, groups = self._like, self._tally.by_group
        result = _evaluation(
            self._tally,
            target=like.coverage,
            score=like.score,
            n_calibration=like.n_calibration,
            min_count=self.min_count,
            confidence=self.confidence,
        )
        by_group = None if groups is None else _group_coverage(groups, like.coverage)
        return replace(
            result,
            class_coverage=replace(result.class_coverage, names=like.class_names),
            group_coverage=by_group,
            target_confidence=like.confidence,
            guarantee=like.guarantee,
            filled=like.filled,
            smoothed=like.smoothed,
            tied=like.tied,
        )


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
    if there:
        from evicp.calibration import device

        return device.label_ranks(array, truth)
    same_labels(logits, labels, array, truth)
    return kernels.label_ranks(array, truth)


def _as_ranks(difficulty: Any, n: int, n_classes: int) -> I64:
    ranks = convert.as_array(difficulty, "difficulty")
    if ranks.shape != (n,) or ranks.dtype.kind not in "iu" or np.any((ranks < 1) | (ranks > n_classes)):
        raise InputError(
            f"difficulty must hold one whole number in [1, {n_classes}] per set: the rank of the true label."
        )
    return ranks.astype(np.int64, copy=False)


def evaluate_counts(
    sizes: I64,
    covered: Bools,
    labels: I64,
    difficulty: I64,
    *,
    n_classes: int,
    target: Fraction,
    score: str,
    n_calibration: int | None,
    min_count: int = 1,
    tied: bool = False,
) -> Evaluation:
    """`evaluate` from set sizes and hits, where no sets were ever made."""
    tally = _Tally.of(_some(sizes), covered, labels, difficulty, None, n_classes)
    result = _evaluation(
        tally, target=target, score=score, n_calibration=n_calibration, min_count=min_count, confidence=0.95
    )
    return replace(result, tied=tied)


@dataclass(frozen=True, eq=False)
class _Counts:
    """Rows with each value 0, 1, ...: how many, how many covered, how many labels in their sets."""

    rows: I64
    hits: I64
    labels: I64

    @classmethod
    def of(cls, values: I64, covered: Bools, sizes: I64, n_values: int) -> _Counts:
        # Doubles add whole numbers exactly up to 2^53.
        totals = (np.bincount(values, weights, minlength=n_values) for weights in (None, covered, sizes))
        return cls(*(total.astype(np.int64) for total in totals))

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(self.rows + other.rows, self.hits + other.hits, self.labels + other.labels)


@dataclass(frozen=True, eq=False)
class _Tally:
    """All that an evaluation needs to know of its rows, in counts that add up over batches."""

    by_size: _Counts
    by_class: _Counts
    by_difficulty: _Counts | None
    by_group: dict[str, I64] | None

    @property
    def n(self) -> int:
        return int(self.by_size.rows.sum())

    @classmethod
    def of(
        cls, sizes: I64, covered: Bools, labels: I64, ranks: I64 | None, groups: NDArray[Any] | None, n_classes: int
    ) -> _Tally:
        return cls(
            _Counts.of(sizes, covered, sizes, n_classes + 1),
            _Counts.of(labels, covered, sizes, n_classes),
            None if ranks is None else _Counts.of(ranks, covered, sizes, n_classes + 1),
            None if groups is None else _count_groups(groups, covered, sizes),
        )

    def __add__(self, other: _Tally) -> _Tally:
        given = [(tally.by_difficulty is None, tally.by_group is None) for tally in (self, other)]
        if given[0] != given[1]:
            raise InputError("logits (or difficulty) and groups must be given with every batch or with none.")
        by_difficulty, by_group = self.by_difficulty, self.by_group
        if by_difficulty is not None and other.by_difficulty is not None:
            by_difficulty = by_difficulty + other.by_difficulty
        if by_group is not None and other.by_group is not None:
            by_group = dict(by_group)
            for name, counts in other.by_group.items():
                by_group[name] = by_group[name] + counts if name in by_group else counts
        return _Tally(self.by_size + other.by_size, self.by_class + other.by_class, by_difficulty, by_group)


def _evaluation(
    tally: _Tally, *, target: Fraction, score: str, n_calibration: int | None, min_count: int, confidence: float
) -> Evaluation:
    """Everything that follows from the counts."""
    n, sizes, ranks, n_classes = tally.n, tally.by_size, tally.by_difficulty, len(tally.by_class.rows)
    largest_gap, smallest = _sscv(sizes, target, min_count)
    hits, labels, empty, single = (int(x) for x in (sizes.hits.sum(), sizes.labels.sum(), *sizes.rows[:2]))
    mean_non_empty = labels / (n - empty) if n > empty else None
    return Evaluation(
        n=n,
        n_classes=n_classes,
        target=target,
        score=score,
        n_calibration=n_calibration,
        coverage=hits / n,
        coverage_interval=clopper_pearson(hits, n, confidence),
        mean_size=labels / n,
        mean_size_non_empty=mean_non_empty,
        median_size=_median(sizes.rows),
        size_quantiles=_quantiles(sizes.rows, QUANTILES),
        empty_share=empty / n,
        singleton_share=single / n,
        singleton_coverage=int(sizes.hits[1]) / single if single else None,
        size_strata=_strata(sizes, 0, SIZE_ENDS, confidence),
        sscv=largest_gap,
        sscv_smallest_count=smallest,
        sat=_sat(largest_gap, mean_non_empty),
        class_coverage=_class_coverage(tally.by_class, target),
        accuracy=None if ranks is None else int(ranks.rows[1]) / n,
        difficulty_strata=None if ranks is None else _strata(ranks, 1, SIZE_ENDS, confidence),
        confidence=confidence,
    )


def _median(counts: I64) -> float:
    """The middle size, or the mean of the two in the middle."""
    n = int(counts.sum())
    low, high = np.searchsorted(np.cumsum(counts), [(n + 1) // 2, n // 2 + 1])
    return float((low + high) / 2)


def _quantiles(counts: I64, shares: Sequence[float]) -> dict[str, float]:
    """The smallest sizes that at least these shares of the rows do not exceed, by exact ranks."""
    at_most = np.cumsum(counts)
    ranks = [ceil(validate.as_coverage(share) * int(at_most[-1])) for share in shares]
    return {
        f"{100 * share:g}%": float(size) for share, size in zip(shares, np.searchsorted(at_most, ranks), strict=True)
    }


def _strata(counts: _Counts, low: int, ends: Sequence[int], confidence: float) -> tuple[Stratum, ...]:
    """Counts of the values 0..K put together into [low, end], (end, next end], ..., (last end, K]."""
    ranges = Ranges.ending(ends, len(counts.rows) - 1, low)
    rows, hits, labels = (ranges.sums(total) for total in (counts.rows, counts.hits, counts.labels))
    bounds = zip(*intervals(hits, rows, confidence), strict=True)
    return tuple(map(_stratum, ranges.lows, ranges.highs, rows.tolist(), hits.tolist(), labels.tolist(), bounds))


def _stratum(low: int, high: int, count: int, hits: int, labels: int, bounds: tuple[F64, F64]) -> Stratum:
    if not count:
        return Stratum(low, high, 0, None, None, None)
    return Stratum(low, high, count, hits / count, (float(bounds[0]), float(bounds[1])), labels / count)


def _sscv(counts: _Counts, target: Fraction, min_count: int) -> tuple[float | None, int | None]:
    """SSCV, and the row count of the smallest stratum it looked at; None where it looked at none."""
    ranges, least = Ranges.ending(SSCV_ENDS, len(counts.rows) - 1), validate.as_count(min_count, "min_count")
    gap, smallest = violation(ranges.sums(counts.rows), ranges.sums(counts.hits), float(target), min_count=least)
    return (float(gap), int(smallest)) if smallest else (None, None)


def _sat(sscv: float | None, mean_non_empty: float | None) -> float | None:
    return None if sscv is None or mean_non_empty is None else float(trade_off(sscv, mean_non_empty))


def _class_coverage(counts: _Counts, target: Fraction) -> ClassCoverage:
    share, size = (
        np.divide(total, counts.rows, out=np.full(len(counts.rows), np.nan), where=counts.rows > 0)
        for total in (counts.hits, counts.labels)
    )
    return ClassCoverage(share, counts.rows, size, target)


def _figure(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
