"""Groups with a separate threshold: what all ways to group share, and the law of their scores.

Each way to group is a frozen dataclass of parameters. What is not given (clusters, band edges, group names) is learned
by `fit`, which returns the same dataclass with everything given: that one is kept, saved and used on new rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.laws.law import DEPENDS_ON_THE_ROW, Kind, Law, Thresholds, canonical, named_parameters
from evicp.calibration.memory import Memory, Remembers
from evicp.calibration.promises import GroupPromise, Promise, Target, kind_of_law, weakest
from evicp.calibration.ranks import ranks_of, rows_needed
from evicp.calibration.reliability import Reliability
from evicp.calibration.smoothing import smoothed_limit
from evicp.calibration.suspicious import caution_of_masked
from evicp.calibration.ties import found_ties, is_tied
from evicp.errors import ArtifactError, EvicpWarning, InputError, InputTypeError, SmallCalibrationWarning
from evicp.input import convert
from evicp.input.messages import some_of
from evicp.method.scores import Score
from evicp.types import F64, I64


class Fitted(NamedTuple):
    """A grouping with nothing left to learn, the calibration rows it left untouched, and their groups."""

    groups: ByGroups
    rows: I64
    of_row: I64


class ByGroups(Kind):
    """A way to group rows or labels, each group with a separate threshold."""

    #: Whether groups are made of the logits: then each model has its own, and folds of several models have none.
    of_logits: ClassVar[bool] = True
    #: Whether each row, not each label, is in a group.
    of_rows_alone: ClassVar[bool] = True
    #: What comes of a threshold of +inf.
    outcome: ClassVar[str] = "their sets are full"
    #: Those of evicp, by name: a file can name them.
    known: ClassVar[dict[str, type[ByGroups]]] = {}

    def __init_subclass__(cls) -> None:
        cls.guarantee = cls.kind
        super().__init_subclass__()
        cls.caveat = (
            f"Holds{cls.where} if its calibration rows and new rows are exchangeable and the calibration rows were not "
            "used to select the model, score, temperature, coverage or groups. It says nothing about other groups, or "
            "about shifted data."
        )
        if cls.__module__.startswith("evicp.calibration.laws."):
            ByGroups.known[cls.kind] = cls

    @abstractmethod
    def fit(self, scores: F64, keys: NDArray[Any], n_classes: int) -> Fitted:
        """Learn what is not given, on rows that are then left out, and group the other rows."""

    @property
    @abstractmethod
    def fitted(self) -> bool:
        """Whether nothing is left to learn."""

    @abstractmethod
    def count(self, n_classes: int) -> int:
        """How many groups there are, once nothing is left to learn."""

    @abstractmethod
    def names(self, n_classes: int, class_names: tuple[str, ...] | None) -> list[str]:
        """A name for each group."""

    @abstractmethod
    def numbers(self, score: Score, logits: Any, given: Any) -> I64:
        """The group of each label of each new row, broadcastable to (m, K)."""

    def of_labels(self, n_classes: int) -> I64:
        """The group of each label, (K,), where rows do not matter."""
        raise InputError(DEPENDS_ON_THE_ROW)

    def law_of(
        self, scores: Any, keys: Sequence[NDArray[Any]], n_classes: int, class_names: tuple[str, ...] | None
    ) -> tuple[Any, Partition]:
        """The scores group after group, each ascending."""
        some = [batch for batch in keys if len(batch)]
        if len({batch.dtype.kind for batch in some}) > 1:
            raise InputTypeError("groups must be whole numbers in every batch, or strings in every one; got both.")
        return divide(self, scores, np.concatenate(some), n_classes, class_names)


def set_aside(n: int, share: float, seed: int) -> I64:
    """A share of n rows to learn from.

    The choice is made by position, never by score: rows chosen by the order of their scores would leave the others
    no longer exchangeable with new ones.
    """
    chosen = np.zeros(n, np.bool_)
    chosen[np.random.default_rng(seed).permutation(n)[: round(share * n)]] = True
    return np.flatnonzero(chosen)


# ---------------------------------------------------------------------------------------------------------------
# Calibration scores, divided


@dataclass(frozen=True, eq=False)
class Partition(Remembers, Law):
    """How calibration scores are divided into groups: they lie group after group, each ascending.

    Parameters
    ----------
    by : a fitted way to group
    names : (G,) a name for each group
    counts : (G,) calibration rows in each group
    """

    by: ByGroups
    names: tuple[str, ...]
    counts: I64
    _memory: Memory = field(init=False, default_factory=Memory, repr=False)

    stored_as = "groups"

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", convert.frozen(self.counts))

    @property
    def guarantee(self) -> str:
        """What the groups are: "class", "group" or "uncertainty"."""
        return self.by.kind

    @property
    def kind(self) -> ByGroups:
        """The way to group."""
        return self.by

    @property
    def groups(self) -> Partition:
        """Itself."""
        return self

    @property
    def refusals(self) -> Mapping[str, str | None]:
        """What it does not have, and why."""
        kind = self.by.kind
        by_label = (
            "smoothed sets by class would need a threshold for each label of each row; "
            "use p_values(..., smoothed=True), or calibrate without by."
        )
        return {
            "one threshold": f"this calibration has a threshold per {kind}, not one threshold; use thresholds() or "
            "predict().",
            "confidence": None,
            "smoothed p-values": None,
            "smoothed sets": None if self.by.of_rows_alone else by_label,
            "online p-values": f"online p-values are those of one exchangeable sequence; this calibration is not "
            f"marginal but {kind}. Use p_values and extended.",
            "one law": f"this calibration is not marginal but {kind}: certificate() has its laws.",
            "rows": None,
        }

    def part(self, scores: F64, group: int) -> F64:
        """The ascending scores of one group."""
        start = int(self.counts[:group].sum())
        return scores[start : start + int(self.counts[group])]

    # -----------------------------------------------------------------------------------------------------------
    # Thresholds

    def of_rows(self, score: Score, logits: Any, groups: Any, weights: Any) -> I64:
        """The group of each label of each row."""
        return self.by.numbers(score, logits, groups)

    def of_labels(self, n_classes: int) -> I64:
        """The group of each label, where rows do not matter."""
        return self.by.of_labels(n_classes)[None, :]

    @property
    def has_row_groups(self) -> bool:
        """Whether each row is in a group."""
        return self.by.of_rows_alone

    def group_names(self, of_rows: I64) -> NDArray[np.str_]:
        """The name of each row's group, (n,); refused where labels, not rows, are in groups."""
        if not self.by.of_rows_alone:
            return super().group_names(of_rows)
        used, of_row = np.unique(of_rows[:, 0], return_inverse=True)
        return np.array([self.names[number] for number in used], dtype=str)[of_row]

    def at(self, scores: F64, coverage: Fraction, confidence: float | None) -> Thresholds:
        """The threshold of each group, (G,); +inf where a group has too few rows."""
        ranks = ranks_of(self.counts, coverage, confidence)
        values = group_thresholds(scores, self.counts, ranks)
        ties = found_ties(scores, self.counts, ranks)
        return Thresholds(values, ties, cautions=self._cautions(scores, values, coverage, confidence))

    def _cautions(
        self, scores: F64, values: F64, coverage: Fraction, confidence: float | None
    ) -> tuple[EvicpWarning, ...]:
        """Groups with too few rows for a threshold, and those whose threshold is infinite all the same."""
        short = np.flatnonzero(self.counts < rows_needed(coverage, confidence))
        full = np.setdiff1d(np.flatnonzero(np.isposinf(values)), short)
        found: list[EvicpWarning | None] = []
        if short.size:
            named = some_of(short.tolist(), lambda group: f"{self.names[group]} ({self.counts[group]})")
            sure = "" if confidence is None else f" with confidence {confidence:g}"
            found.append(
                SmallCalibrationWarning(
                    f"{len(short)} of {len(self.counts)} groups have fewer than the "
                    f"{rows_needed(coverage, confidence)} calibration rows that coverage {float(coverage):g}{sure} "
                    f"needs: {named}; {self.by.outcome}."
                )
            )
        if full.size:
            named = some_of(full.tolist(), self.names.__getitem__)
            parts = np.concatenate([self.part(scores, group) for group in full.tolist()])
            outcome = f"the threshold of {named} is infinite: {self.by.outcome}"
            found.append(caution_of_masked(parts, coverage, outcome))
        return tuple(caution for caution in found if caution is not None)

    def limit(self, scores: F64, coverage: Fraction, values: F64, of_rows: I64) -> F64:
        """The threshold of the group of each label of each row."""
        return values[of_rows]

    def smoothed_limit(self, scores: F64, coverage: Fraction, of_rows: I64, steps: I64) -> F64:
        """The threshold of each row, (n, 1), among the scores of its group."""
        numbers, result = of_rows[:, 0], np.empty(len(of_rows))
        for group in np.unique(numbers).tolist():
            rows = numbers == group
            result[rows] = smoothed_limit(self.part(scores, group), coverage, steps[rows])
        return result[:, None]

    # -----------------------------------------------------------------------------------------------------------
    # P-values

    def sizes(self, scores: F64, of_rows: I64) -> I64:
        """The rows of each group."""
        return self.counts[of_rows]

    def below(self, scores: F64, new: F64, of_rows: I64, side: Literal["left", "right"]) -> I64:
        """How many scores of its group are below each new score ("left"), or not above it ("right").

        Scores are replaced by their ranks among all, so that one search in (group, rank) serves every group.
        """
        width, ranked = len(scores) + 1, self._memory.get("ranked")
        if ranked is None or ranked[0] is not scores:
            everyone, of_each = np.sort(scores), np.repeat(np.arange(len(self.counts)), self.counts)
            ranked = scores, everyone, of_each * width + np.searchsorted(everyone, scores)
            self._memory["ranked"] = ranked
        _, everyone, known = ranked
        below = np.searchsorted(known, of_rows * width + np.searchsorted(everyone, new, side))
        return below - (np.cumsum(self.counts) - self.counts)[of_rows]

    # -----------------------------------------------------------------------------------------------------------
    # Guarantees

    def promise(self, scores: F64, target: Target) -> Promise:
        """The guarantee of each group; the figures of the whole are those of the weakest."""
        promises = self._promises(scores, target)
        headline = weakest(promises)
        law = Reliability(max(1, headline.n), target.coverage, target.pac)
        tied = is_tied(self.part(scores, promises.index(headline)), law.k)
        return Promise(law, headline.threshold, tied, _observed(promises, target), promises)

    def _promises(self, scores: F64, target: Target) -> tuple[GroupPromise, ...]:
        hits, counts = (None, None) if target.evaluation is None else self._hits(target)
        checked = 1 if counts is None else max(1, int((counts > 0).sum()))
        result = []
        for number, (name, n) in enumerate(zip(self.names, self.counts.tolist(), strict=True)):
            own = Reliability(max(1, n), target.coverage, target.pac)
            observed = None
            if target.evaluation is not None and hits is not None and counts is not None and counts[number]:
                # Of many groups some stray by chance: all of them are compatible together with the confidence stated.
                observed = own.compatible(
                    hits[number] / counts[number],
                    counts[number],
                    1 - (1 - target.confidence) / checked,
                    **kind_of_law(target.evaluation, n == 0 or is_tied(self.part(scores, number), own.k)),
                ).to_dict()
            promise = GroupPromise(
                name=name,
                n=n,
                rank=own.k if n else 1,
                threshold=float(target.values[number]),
                expected_coverage=own.expected_coverage if n else 1.0,
                coverage_interval=own.interval(target.confidence) if n else (1.0, 1.0),
                observed=observed,
            )
            result.append(promise)
        return tuple(result)

    def _hits(self, target: Target) -> tuple[I64, I64]:
        """How many rows of each group were covered, and how many there were, in the order of the groups."""
        evaluation: Any = target.evaluation
        if self.by.of_rows_alone:
            found = evaluation.group_coverage
            if found is None:
                raise InputError("the evaluation has no groups; evaluate with groups=calibration.groups_of(logits).")
            position = {name: number for number, name in enumerate(self.names)}
            unknown = [name for name in found.names if name not in position]
            if unknown:
                raise InputError(f"the evaluation has a group {unknown[0]!r} that is not of this calibration.")
            of_row = np.array([position[name] for name in found.names])
        else:
            found, of_row = evaluation.class_coverage, self.of_labels(target.n_classes)[0]
        hits = np.bincount(of_row, np.nan_to_num(found.coverage) * found.counts, len(self.names))
        return np.rint(hits).astype(np.int64), np.bincount(of_row, found.counts, len(hits)).astype(np.int64)

    def group_counts(self, n: int) -> I64:
        """The rows of each group."""
        return self.counts

    def rows_behind(self, n: int, group: str | None) -> int:
        """The calibration rows of a group."""
        if self.names.count(str(group)) > 1:
            raise InputError(
                f"{self.names.count(str(group))} groups are called {group!r}; monitor the rows of one: Monitor(n, ...)."
            )
        if group not in self.names:
            raise InputError(f"group must be one of the calibration's groups ({some_of(self.names)}); got {group!r}.")
        return int(self.counts[self.names.index(group)])

    # -----------------------------------------------------------------------------------------------------------
    # Other scores

    def extended(self, scores: F64, new: F64, keys: NDArray[Any], n_classes: int) -> tuple[F64, Partition]:
        """The scores with those of more rows, each in its group.

        The way to group is fitted: it learns nothing from the new rows, and keeps all of them.
        """
        of_new = self.by.fit(new, keys, n_classes).of_row
        everyone = np.concatenate([scores, new])
        of_row = np.concatenate([np.repeat(np.arange(len(self.counts)), self.counts), of_new])
        counts = self.counts + np.bincount(of_new, minlength=len(self.counts))
        return everyone[np.lexsort((everyone, of_row))], replace(self, counts=counts)

    def raised(self, scores: F64, higher: Callable[[F64], F64]) -> tuple[F64, Partition]:
        """Higher scores, ascending in each group."""
        parts = np.split(scores, np.cumsum(self.counts)[:-1])
        return np.concatenate([np.sort(higher(part)) for part in parts]), replace(self)

    # -----------------------------------------------------------------------------------------------------------
    # Files and text

    def description(self) -> dict[str, Any]:
        """The way to group, by its name and parameters."""
        return {"groups": {"by": self.by.kind, "parameters": asdict(self.by)}}  # type: ignore[call-overload]

    def tensors(self, scores: F64) -> dict[str, F64]:
        """The scores of each group: "scores.0", "scores.1", ..."""
        parts = np.split(scores, np.cumsum(self.counts)[:-1])
        return {f"scores.{number}": part for number, part in enumerate(parts)}

    @classmethod
    def names_of(cls, names: set[str]) -> list[str]:
        """Those names, as many as there are."""
        found = [name for number in range(len(names)) if (name := f"scores.{number}") in names]
        return found if len(found) == len(names) else []

    @classmethod
    def restored(
        cls, stored: Any, tensors: Mapping[str, F64], n_classes: int, class_names: tuple[str, ...] | None
    ) -> Self:
        """The groups a file names, if they are those of its tensors."""
        by_name, parameters = named_parameters(stored, "by", "groups are")
        kind = ByGroups.known.get(by_name)
        if kind is None or set(parameters) != {parameter.name for parameter in fields(kind)}:  # type: ignore[arg-type]
            raise ArtifactError(f"its kind of groups, {by_name!r}, is not known to this version of evicp.")
        by = kind(**parameters)
        count = by.count(n_classes) if by.fitted else 0
        restored = cls(by, (), np.array([len(part) for part in tensors.values()]))
        if count != len(tensors) or canonical(restored.description()["groups"]) != canonical(stored):
            raise ArtifactError(f"it states {count:,} groups but contains the scores of {len(tensors):,}.")
        return replace(restored, names=tuple(by.names(n_classes, class_names)))

    def facts(self) -> list[tuple[str, str]]:
        """What the groups are, and how many."""
        return [("guarantee", f"by {self.by.kind}"), ("groups", f"{len(self.counts):,}")]

    def summary(self) -> str:
        """What the groups are, and how many."""
        return f", by {self.by.kind} ({len(self.counts):,} groups)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        return (self.by, self.names) == (other.by, other.names) and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]


def _observed(promises: tuple[GroupPromise, ...], target: Target) -> dict[str, Any] | None:
    """What was observed over all rows, and in which groups it is not compatible with their guarantee."""
    evaluation = target.evaluation
    if evaluation is None:
        return None
    seen = [promise for promise in promises if promise.observed is not None]
    incompatible = [promise.name for promise in seen if promise.observed and not promise.observed["compatible"]]
    return {
        "coverage": evaluation.coverage,
        "m": evaluation.n,
        "groups": len(seen),
        "incompatible": incompatible,
        "compatible": not incompatible,
        "kept": all(promise.observed["kept"] for promise in seen if promise.observed),
    }


def divide(by: ByGroups, scores: Any, keys: NDArray[Any], n_classes: int, names: Any) -> tuple[Any, Partition]:
    """Fit a way to group to calibration rows; the scores group after group, each ascending, and where they lie."""
    fitted = by.fit(scores, keys, n_classes)
    of_row, group_names = fitted.of_row, tuple(fitted.groups.names(n_classes, names))
    law = Partition(fitted.groups, group_names, np.bincount(of_row, minlength=len(group_names)))
    if not isinstance(scores, np.ndarray):
        return scores.by_group(fitted.rows, of_row), law
    order = np.argsort(scores[fitted.rows])
    short = of_row.astype(np.uint16) if len(group_names) < 2**16 else of_row  # sorted in linear time
    return scores[fitted.rows][order[np.argsort(short[order], kind="stable")]], law


def group_thresholds(scores: F64, counts: I64, ranks: I64) -> F64:
    """The k-th smallest score of each group, k its rank among the rows of the group; +inf where there is none."""
    position = np.cumsum(counts) - counts + ranks - 1
    thresholds: F64 = np.where(ranks <= counts, np.append(scores, np.inf)[np.minimum(position, len(scores))], np.inf)
    return convert.frozen(thresholds)
