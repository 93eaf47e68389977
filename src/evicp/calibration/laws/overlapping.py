"""Groups that overlap: coverage in each of them, by conditional calibration (Gibbs, Cherian and Candes, 2023)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.laws.law import Kind, Law, Thresholds
from evicp.calibration.laws.quantile_fit import QuantileFit
from evicp.calibration.laws.weighted import weighted_confidence
from evicp.calibration.memory import Memory, Remembers
from evicp.calibration.promises import GroupPromise, Promise, Target, verdict, weakest
from evicp.calibration.ranks import rank_of, rows_needed
from evicp.calibration.reliability import Reliability
from evicp.calibration.ties import found_ties
from evicp.errors import ArtifactError, EvicpWarning, InputError, InputTypeError, SmallCalibrationWarning
from evicp.input import convert, validate
from evicp.input.frames import as_features
from evicp.input.messages import some_of
from evicp.method.scores import Score
from evicp.types import F64

__all__ = ["OverlappingGroups"]

#: So many thresholds are kept for rows to come.
_KEPT = 1 << 14


@dataclass(frozen=True)
class OverlappingGroups(Kind):
    """Coverage in each of several groups that may overlap: a row may be in any number of them.

    Pass `groups=`, an (n, G) matrix of group membership, at calibration and at prediction. Rows of the same groups
    share one threshold, computed by one linear program. Columns may contain numbers other than 0 and 1: then coverage
    holds under every reweighting of rows by a non-negative combination of them.

    Parameters
    ----------
    names : G names; "group 0", "group 1", ... if not given
    """

    names: tuple[str, ...] | None = None

    guarantee: ClassVar[str] = "overlapping"
    needs: ClassVar[frozenset[str]] = frozenset({"groups"})
    uses_labels: ClassVar[bool] = False
    where: ClassVar[str] = " in every group, also where groups overlap"
    caveat: ClassVar[str] = (
        "Holds on average over calibration sets, over all rows and in every group, if calibration rows and new rows "
        "are exchangeable and the calibration rows were not used to select the model, score, temperature, coverage or "
        "groups. Intervals and verdicts are approximations here. It says nothing about other groups, or about shifted "
        "data."
    )

    def __post_init__(self) -> None:
        if self.names is not None:
            if isinstance(self.names, str) or not isinstance(self.names, Iterable):
                raise InputTypeError(f"names must be a list of G names; got {self.names!r}.")
            names = tuple(map(str, self.names))
            validate.as_printable(names, "names")
            if not names or len(set(names)) < len(names):
                raise InputError(f"names must be one or more, all different; got {some_of(names, repr)}.")
            object.__setattr__(self, "names", names)

    def members(self, groups: Any, n: int, width: int | None = None) -> F64:
        """In which groups each row is, (n, G)."""
        if groups is None:
            raise InputError('by="overlapping" needs the groups of each row: pass groups=, an (n, G) matrix.')
        width = width if self.names is None else len(self.names)
        return as_features(groups, "groups", n=n, n_features=width, columns=self.names)

    def keys(self, score: Score, logits: Any, labels: Any, groups: Any, weights: Any) -> F64:
        """In which groups each row is, (n, G)."""
        return self.members(groups, len(logits))

    def law_of(
        self, scores: F64, keys: Sequence[NDArray[Any]], n_classes: int, class_names: tuple[str, ...] | None
    ) -> tuple[F64, Overlapping]:
        """The scores, ascending, and the groups of their rows."""
        some = [batch for batch in keys if len(batch)]
        widths = {batch.shape[1] for batch in some}
        if len(widths) > 1:
            raise InputError(f"groups must have as many columns in every batch; got {some_of(sorted(widths))}.")
        return _in_order(self, scores, np.concatenate(some))


def _in_order(by: OverlappingGroups, scores: F64, members: F64) -> tuple[F64, Overlapping]:
    order = np.argsort(scores, kind="stable")
    return scores[order], Overlapping(by, members[order])


@dataclass(frozen=True, eq=False)
class Overlapping(Remembers, Law):
    """The threshold of a row follows from a fit of the scores on the groups of their rows, and on its own.

    Parameters
    ----------
    by : the groups
    rows : (n, G) in which of them each calibration row is, in the order of the scores
    """

    by: OverlappingGroups
    rows: F64
    _memory: Memory = field(init=False, default_factory=Memory, repr=False)

    guarantee = "overlapping"
    stored_as = "overlapping"
    refusals = MappingProxyType(
        {
            "one threshold": "this calibration has overlapping groups, not one threshold; use thresholds().",
            "confidence": "confidence needs the Beta law, which overlapping groups do not follow; leave it out.",
            "counts": (
                "p-values with overlapping groups would need a fit for each label; predict sets at several coverages "
                "instead."
            ),
            "one law": "this calibration is not marginal but overlapping: certificate() has its laws.",
            "rows": "the law of coverage is not known for overlapping groups; they cannot be monitored.",
        }
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", convert.owned(self.rows))

    @property
    def kind(self) -> OverlappingGroups:
        """The groups."""
        return self.by

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each group."""
        return self.by.names or tuple(f"group {number}" for number in range(self.rows.shape[1]))

    @property
    def counts(self) -> NDArray[np.int64]:
        """The calibration rows of each group, (G,); of columns that are no groups, those that are not 0."""
        return np.count_nonzero(self.rows, axis=0)

    @property
    def _are_groups(self) -> bool:
        return bool(np.isin(self.rows, (0.0, 1.0)).all())

    # -----------------------------------------------------------------------------------------------------------
    # Thresholds

    def of_rows(self, score: Score, logits: Any, groups: Any, weights: Any) -> F64:
        """The groups of each row, (n, G)."""
        return self.by.members(groups, len(logits), self.rows.shape[1])

    def at(self, scores: F64, coverage: Fraction, confidence: float | None) -> Thresholds:
        """No thresholds, which the groups of new rows decide; what there is to warn of."""
        n = len(scores)
        ties = found_ties(scores, np.array([n]), np.array([rank_of(n, coverage)]))
        return Thresholds(np.empty(0), ties, cautions=self._cautions(coverage))

    def _cautions(self, coverage: Fraction) -> tuple[EvicpWarning, ...]:
        """Groups with too few rows for a threshold."""
        needed, counts = rows_needed(coverage), self.counts
        short = np.flatnonzero(counts < needed)
        if not short.size:
            return ()
        named = some_of(short.tolist(), lambda group: f"{self.names[group]} ({counts[group]})")
        return (
            SmallCalibrationWarning(
                f"{len(short)} of {len(counts)} groups have fewer than the {needed} calibration rows that coverage "
                f"{float(coverage):g} needs: {named}; the sets of their rows are full, or nearly."
            ),
        )

    def limit(self, scores: F64, coverage: Fraction, values: F64, of_rows: F64) -> F64:
        """The threshold of each row, (n, 1); rows of the same groups share one."""
        if not len(of_rows):
            return np.empty((0, 1))
        different, which = np.unique(of_rows, axis=0, return_inverse=True)
        return self._thresholds(scores, coverage, different)[which.reshape(-1)][:, None]

    def _thresholds(self, scores: F64, coverage: Fraction, rows: F64) -> F64:
        """The thresholds of rows with these groups, as far as they are not known."""
        if self._memory.get(coverage, (scores,))[0] is not scores:
            self._memory.pop(coverage, None)
        _, fit, found = self._memory.made(coverage, lambda: (scores, self._fit(scores, coverage), {}))
        if len(found) > _KEPT:
            found.clear()
        result = np.empty(len(rows))
        for number, row in enumerate(rows + 0.0):  # 0 and -0 are one
            key = row.tobytes()
            if key not in found:
                found[key] = fit.threshold(np.concatenate([[1.0], row]))
            result[number] = found[key]
        return result

    def _fit(self, scores: F64, coverage: Fraction) -> QuantileFit:
        return QuantileFit(np.column_stack([np.ones(len(scores)), self.rows]), scores, coverage)

    def listed(self, scores: F64, coverage: Fraction, values: F64) -> F64:
        """The threshold of a row that is in one group alone, for each group."""
        return self._thresholds(scores, coverage, np.eye(self.rows.shape[1]))

    # -----------------------------------------------------------------------------------------------------------
    # Guarantees

    def promise(self, scores: F64, target: Target) -> Promise:
        """What may be guaranteed in each group; the figures of the whole are those of the weakest.

        Coverage in a group follows about the law of as many rows calibrated by themselves, and is at least that on
        average. So a verdict on all rows is one-sided.
        """
        listed = self.listed(scores, target.coverage, target.values).tolist()
        groups: tuple[GroupPromise, ...] = ()
        if self._are_groups:
            seen = _observed(self.names, target)
            each = zip(self.names, self.counts.tolist(), listed, strict=True)
            groups = tuple(_promise(name, n, value, target, seen.get(name), len(seen)) for name, n, value in each)
        headline = weakest(groups) if groups else None
        law = Reliability(max(1, headline.n if headline else len(scores)), target.coverage)
        whole = Reliability(len(scores), target.coverage)
        observed = verdict(whole, target.evaluation, weighted_confidence(target.confidence), covers_more=True)
        threshold = headline.threshold if headline else float(self._thresholds(scores, target.coverage, self._none)[0])
        return Promise(law, threshold, False, observed, groups)

    @property
    def _none(self) -> F64:
        """A row in no group."""
        return np.zeros((1, self.rows.shape[1]))

    # -----------------------------------------------------------------------------------------------------------
    # Other scores

    def extended(self, scores: F64, new: F64, keys: F64, n_classes: int) -> tuple[F64, Overlapping]:
        """The scores with those of more rows, ascending, and the groups of all."""
        if keys.shape[1] != self.rows.shape[1]:
            raise InputError(
                f"groups must have {self.rows.shape[1]} columns, as in the calibration; got {keys.shape[1]}."
            )
        return _in_order(self.by, np.concatenate([scores, new]), np.concatenate([self.rows, keys]))

    def raised(self, scores: F64, higher: Callable[[F64], F64]) -> tuple[F64, Overlapping]:
        """Higher scores, ascending, and the groups of their rows."""
        return _in_order(self.by, higher(scores), self.rows)

    # -----------------------------------------------------------------------------------------------------------
    # Files and text

    def description(self) -> dict[str, Any]:
        """The names of the groups."""
        return {"overlapping": {"names": None if self.by.names is None else list(self.by.names)}}

    def tensors(self, scores: F64) -> dict[str, F64]:
        """The scores, and which of their rows are in each group: "member.0", "member.1", ..."""
        return {"scores": scores, **{f"member.{number}": column for number, column in enumerate(self.rows.T)}}

    @classmethod
    def names_of(cls, names: set[str]) -> list[str]:
        """Those names, as many as there are."""
        found = ["scores", *(f"member.{number}" for number in range(len(names) - 1))]
        return found if len(found) > 1 and set(found) == names else []

    @classmethod
    def restored(
        cls, stored: Any, tensors: Mapping[str, F64], n_classes: int, class_names: tuple[str, ...] | None
    ) -> Self:
        """The groups of a file's rows."""
        columns = [tensor for name, tensor in tensors.items() if name != "scores"]
        n = len(tensors["scores"])
        names = stored.get("names") if isinstance(stored, dict) and set(stored) == {"names"} else ()
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ArtifactError("its overlapping groups are malformed.")
        if {len(column) for column in columns} != {n} or len(columns) != len(columns if names is None else names):
            raise ArtifactError("its overlapping groups must have a number for each row, and each group a name.")
        if not all(np.isfinite(column).all() for column in columns):
            raise ArtifactError("its overlapping groups are not all finite numbers.")
        return cls(OverlappingGroups(None if names is None else tuple(names)), np.column_stack(columns))

    def facts(self) -> list[tuple[str, str]]:
        """How many groups there are."""
        return [("guarantee", "in overlapping groups"), ("groups", f"{self.rows.shape[1]:,}")]

    def summary(self) -> str:
        """The same."""
        return f", in {self.rows.shape[1]:,} overlapping groups"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Overlapping):
            return NotImplemented
        return self.by == other.by and np.array_equal(self.rows, other.rows)

    __hash__ = None  # type: ignore[assignment]


def _observed(names: Sequence[str], target: Target) -> dict[str, tuple[float, int]]:
    """The coverage that an evaluation found in each group, and in how many rows; {} without groups."""
    found = None if target.evaluation is None else target.evaluation.group_coverage
    if found is None:
        return {}
    unknown = [name for name in found.names if name not in names]
    if unknown:
        raise InputError(f"the evaluation has a group {unknown[0]!r} that is not of this calibration.")
    return dict(zip(found.names, zip(found.coverage.tolist(), found.counts.tolist(), strict=True), strict=True))


def _promise(
    name: str, n: int, threshold: float, target: Target, seen: tuple[float, int] | None, checked: int
) -> GroupPromise:
    """About what may be guaranteed in a group: what its rows by themselves would guarantee."""
    law, found = Reliability(max(1, n), target.coverage), None
    if seen is not None:
        # Of many groups some stray by chance: all of them are compatible together with the confidence stated.
        sure = 1 - (1 - weighted_confidence(target.confidence)) / checked
        found = law.compatible(*seen, sure, at_least=True).to_dict()
    return GroupPromise(
        name=name,
        n=n,
        rank=law.k if n else 1,
        threshold=threshold,
        expected_coverage=law.expected_coverage if n else 1.0,
        coverage_interval=law.interval(target.confidence) if n else (1.0, 1.0),
        observed=found,
    )
