"""Cross-calibration (CV+): every row is used for training and for calibration.

In each fold a model is trained on the other rows and calibrated on its own. A new row is scored by all these models,
and a label's score by a model is compared with the scores of the rows that this model was not trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import floor
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike

from evicp.calibration.calibration import Calibration
from evicp.calibration.ranks import ranks_of, rows_needed
from evicp.calibration.smoothing import STEPS, steps_of
from evicp.calibration.suspicious import caution_of_low_coverage, warn_of
from evicp.calibration.ties import caution_of_ties, found_ties
from evicp.errors import InputError, InputTypeError, SmallCalibrationWarning
from evicp.input import frames, validate
from evicp.input.classes import ClassAxis
from evicp.input.messages import refuse_unknown, some_of
from evicp.input.warn import warn
from evicp.outer import outer
from evicp.sets import PredictionSets, filled_with
from evicp.types import F64, I64, Bools, Coverage, Coverages, Smoothed

if TYPE_CHECKING:
    from evicp.evaluation.result import Evaluation
    from evicp.risk.certificate import RuleCertificate

__all__ = ["CrossCalibration"]


@dataclass(frozen=True)
class CrossCalibration:
    """The calibrations of several models, each on rows that its model was not trained on.

    With N rows in F folds, a label is in the set unless at most floor((N + 1)(1 - coverage)) - 1 of all rows have a
    score at least as large as the label's by their own fold's model. Coverage is then close to the target; the proven
    coverage is lower: see `proven_coverage`. With `proven=True` the full target coverage is proven.

    Parameters
    ----------
    folds : two calibrations or more, of one score and the same classes; marginal, by class, or by the same groups (with
        `ByGroup(groups)` a fold may lack rows of a group)

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 300)
    >>> first, second = rng.normal(size=(2, 300, 3)) + 2 * np.eye(3)[labels]  # of a model trained on rows 100 to 199,
    >>> from evicp import calibrate                                           # and of one trained on rows 0 to 99
    >>> cross = CrossCalibration([calibrate(first[:100], labels[:100]), calibrate(second[100:200], labels[100:200])])
    >>> cross
    CrossCalibration(ecp, 200 rows in 2 folds, 3 classes)
    >>> cross.predict([first[200:], second[200:]], coverage=0.9)
    PredictionSets(100 rows of 3 classes, coverage 0.9; mean size 1.39, 0 empty, 63 of one label, largest 3)
    >>> round(cross.proven_coverage(0.9), 3)
    0.792
    """

    folds: Sequence[Calibration]

    def __post_init__(self) -> None:
        if not isinstance(self.folds, Iterable) or isinstance(self.folds, str):
            raise InputTypeError(f"folds must be calibrations, one for each model; got a {type(self.folds).__name__}.")
        object.__setattr__(self, "folds", tuple(self.folds))
        for one in self.folds:
            if not isinstance(one, Calibration):
                raise InputTypeError(f"folds must be calibrations, one for each model; got a {type(one).__name__}.")
        if len(self.folds) < 2:
            raise InputError(f"folds must be two or more; got {len(self.folds)}. Use the calibration itself.")
        known = ClassAxis.known_to(self.folds[0])
        for one in self.folds:
            self._check(one, known)
            known = replace(known, columns=known.columns or one.columns)
        if len({id(one) for one in self.folds}) < len(self.folds):
            raise InputError("folds must contain each calibration once: its rows would count twice.")

    def _check(self, one: Calibration, known: ClassAxis) -> None:
        """Refuse a fold whose scores do not mean what those before it mean, which know this of the classes."""
        first = self.folds[0]
        for what in ("score", "n_classes", "class_names", "numbered"):
            mine, other = getattr(first, what), getattr(one, what)
            if mine != other:
                raise InputError(f"all folds must have the same {what}; got {mine} and {other}.")
        if one.columns is not None and known.misplaced(one.columns, renamed=known.columns is None) is not None:
            mine = known.columns or known.names or range(self.n_classes)
            raise InputError(
                f"all folds must have the same columns in the same order; got {some_of(mine, repr)} and "
                f"{some_of(one.columns, repr)}."
            )
        if one.weights is not None:
            raise InputError("folds cannot be weighted: all rows must have equal weight.")
        by = [None if fold.groups is None else fold.groups.by for fold in (first, one)]
        if by[1] is not None and by[1].of_logits:
            raise InputError(f"folds cannot be by {by[1].kind}: each model has its own. Calibrate by class or group.")
        if by[0] != by[1]:
            raise InputError(
                f"all folds must have the same groups; got {by[0]} and {by[1]}. Give them: ByGroup(groups), or "
                "ByClass(clusters=one number per class)."
            )

    @property
    def _classes(self) -> ClassAxis:
        """What the folds know of the classes together."""
        known = next((one.columns for one in self.folds if one.columns is not None), None)
        return replace(ClassAxis.known_to(self.folds[0]), columns=known)

    @property
    def n(self) -> int:
        """Calibration rows, in all folds."""
        return sum(one.n for one in self.folds)

    @property
    def n_classes(self) -> int:
        """K, of the labels."""
        return self.folds[0].n_classes

    def p_values(self, logits: Sequence[Any], *, groups: ArrayLike | None = None) -> F64:
        """p = (1 + #{rows whose score is at least the label's, by their fold's model}) / (N + 1), (n, K).

        Among the rows of the label's or row's group, where there are groups. A label is outside the set exactly when
        p <= 1 - coverage.

        Parameters
        ----------
        logits : of the new rows by each fold's model, in the order of the folds, each (n, K)
        groups : (n,) groups of the rows, for calibrations by="group"
        """
        at_least, n = self._counts(logits, groups)
        p: F64 = (1.0 + at_least) / (1.0 + n)
        return p

    @overload
    def predict(
        self,
        logits: Sequence[Any],
        coverage: Coverage = ...,
        *,
        groups: ArrayLike | None = ...,
        allow_empty: bool = ...,
        proven: bool = ...,
        smoothed: Smoothed = ...,
    ) -> PredictionSets: ...
    @overload
    def predict(
        self,
        logits: Sequence[Any],
        coverage: Coverages,
        *,
        groups: ArrayLike | None = ...,
        allow_empty: bool = ...,
        proven: bool = ...,
        smoothed: Smoothed = ...,
    ) -> list[PredictionSets]: ...
    def predict(
        self,
        logits: Sequence[Any],
        coverage: Coverage | Coverages = 0.9,
        *,
        groups: ArrayLike | None = None,
        allow_empty: bool = True,
        proven: bool = False,
        smoothed: Smoothed = True,
        **unknown: Any,
    ) -> PredictionSets | list[PredictionSets]:
        """The prediction sets of new rows; within a row by p-value, then by the mean of the models' logits.

        They store no number of rows, because the distribution of coverage is not known.

        With `proven`, coverage is at least the target, on average: each fold gives a label the e-value 1 / (1 -
        coverage) if the fold's own set lacks it, else 0, and the set lacks labels whose mean e-value is at least u /
        (1 - coverage). The random number u of each row, in (0, 1], makes sets smaller.

        Parameters
        ----------
        logits : of the new rows by each fold's model, in the order of the folds, each (n, K)
        coverage : strictly between 0 and 1; a sequence gives a list of sets
        groups : (n,) groups of the rows, for calibrations by="group"
        allow_empty : if False, an empty set gets its top label
        proven : whether the full target coverage must be proven, not only `proven_coverage`
        smoothed : for proven sets: True for u computed from the row's logits and the calibration rows; a random
            generator;
            (n,) numbers in [0, 1]; or False for u = 1, which keeps all labels of all folds' sets
        """
        refuse_unknown("predict", unknown)
        wanted = validate.as_coverages(coverage)
        validate.as_flag(allow_empty, "allow_empty")
        steps = self._steps(logits, smoothed) if validate.as_flag(proven, "proven") else None
        results = self._predicted(wanted, logits, groups, allow_empty, steps)
        return results if validate.is_many(coverage) else results[0]

    def _predicted(
        self, wanted: Sequence[Fraction], logits: Sequence[Any], groups: Any, allow_empty: bool, steps: I64 | None
    ) -> list[PredictionSets]:
        """The sets at each coverage; proven ones, where there are random numbers of the rows, in steps."""
        warn_of(caution_of_low_coverage(max(wanted)))
        of_folds = self._of_folds(logits, groups)
        at_least, n = (np.sum(part, axis=0) for part in zip(*of_folds, strict=True))
        self._warn_of_ties(wanted)
        below = n - at_least
        mean = np.mean([validate.as_logits(own, self.n_classes, row_allowed=True) for own in logits], axis=0)
        # Along rows: the last key is the first to decide, and equals stay in the order of their numbers.
        order = np.lexsort((-mean, -(1.0 + at_least) / (1.0 + n)), axis=-1)
        if steps is None:
            results = [self._sets(below < self._ranks(n, exact), order, exact) for exact in wanted]
        else:
            results = [self._sets(self._kept(of_folds, steps, exact), order, exact) for exact in wanted]
        return results if allow_empty else [filled_with(sets, order[:, 0].astype(np.int32)) for sets in results]

    def _warn_of_ties(self, wanted: Sequence[Fraction]) -> None:
        for exact in wanted:
            scores, counts = self._pooled
            ties = found_ties(scores, counts, ranks_of(counts, exact))
            warn_of(caution_of_ties(ties, exact, can_smooth=False))

    def _kept(self, counts: Sequence[tuple[I64, I64]], steps: I64, coverage: Fraction) -> Bools:
        """Whether each label is in the proven set: the share of folds whose own set lacks it is below u."""
        lacking = np.sum([n - at_least >= self._ranks(n, coverage) for at_least, n in counts], axis=0)
        kept: Bools = lacking * STEPS < steps[:, None] * len(counts)
        return kept

    def _steps(self, logits: Sequence[Any], smoothed: Any) -> I64:
        """u of each new row, in steps."""
        self._refuse_others(logits)
        first = validate.as_logits(logits[0], self.n_classes, row_allowed=True)
        if smoothed is False:
            return np.full(len(first), STEPS)
        return steps_of(self.folds[0], smoothed, first)

    def _sets(self, member: Bools, order: I64, coverage: Fraction) -> PredictionSets:
        """The labels that are members, in this order."""
        first = self.folds[0]
        return PredictionSets(
            np.concatenate([[0], np.cumsum(member.sum(1))]),
            order[np.take_along_axis(member, order, axis=1)].astype(np.int32),
            n_classes=self.n_classes,
            coverage=coverage,
            score=first.score.name,
            class_names=first.class_names,
            guarantee=first.guarantee,
            columns=self._classes.columns,
            numbered=first.numbered,
        )

    def proven_coverage(self, coverage: Coverage) -> float:
        """The proven lower bound of coverage for sets at this target, in each class or group if there are any.

        Each fold's p-value is exact, and twice the mean of several is a valid one (Vovk and Wang, 2020). So a set
        misses with probability at most 2 (F - 1 + l) / (N + F), l = floor((N + 1)(1 - coverage)).
        """
        exact = validate.as_coverage(coverage)
        counts = np.sum([one.law.group_counts(one.n) for one in self.folds], axis=0)
        return min(self._proven(n, exact) for n in set(counts.tolist()))

    def _proven(self, n: int, coverage: Fraction) -> float:
        """`proven_coverage` of labels that are compared with n scores; where these are too few, nothing is left out."""
        if n < rows_needed(coverage):
            return 1.0
        missed = Fraction(2 * (len(self.folds) - 1 + floor((n + 1) * (1 - coverage))), n + len(self.folds))
        return float(max(Fraction(0), 1 - missed))

    def certificate(
        self, coverage: Coverage = 0.9, evaluation: Evaluation | None = None, *, proven: bool = False
    ) -> RuleCertificate:
        """What is proven of sets at this coverage, and what it was computed from.

        Parameters
        ----------
        coverage : of the sets
        evaluation : of such sets, on other rows
        proven : whether the sets are those of `predict(proven=True)`
        """
        made: RuleCertificate = outer("certificate_of_folds")(self, coverage, evaluation, proven=proven)
        return made

    def _counts(self, logits: Sequence[Any], groups: Any) -> tuple[I64, I64]:
        """How many scores are at least each label's, (n, K), and how many there are, in all folds; broadcastable."""
        at_least, n = (np.sum(part, axis=0) for part in zip(*self._of_folds(logits, groups), strict=True))
        return at_least, n

    def _refuse_others(self, logits: Sequence[Any]) -> None:
        """Refuse what are not the logits of as many models as there are folds."""
        is_matrix = getattr(logits, "ndim", 3) == 2
        if not hasattr(logits, "__len__") or is_matrix or len(logits) != len(self.folds):
            got = "one matrix" if is_matrix else len(logits) if hasattr(logits, "__len__") else type(logits).__name__
            raise InputError(
                f"logits must be those of each fold's model, here {len(self.folds)}, in the order of the "
                f"folds; got {got}."
            )

    def _of_folds(self, logits: Sequence[Any], groups: Any) -> list[tuple[I64, I64]]:
        """The same in each fold."""
        self._refuse_others(logits)
        classes = self._classes
        for own in logits:
            classes.check(own)
            classes = classes.learned(own)
        frames.same_rows(**{f"logits[{fold}]": own for fold, own in enumerate(logits) if getattr(own, "ndim", 2) == 2})
        counts = [one.at_least(own, groups) for one, own in zip(self.folds, logits, strict=True)]
        rows = [len(at_least) for at_least, _ in counts]
        if len(set(rows)) > 1:
            raise InputError(f"every model must give logits of the same rows; got {some_of(rows)} rows.")
        return counts

    def __getstate__(self) -> dict[str, Any]:
        return {"folds": self.folds}

    @cached_property
    def _pooled(self) -> tuple[F64, I64]:
        """The scores of all folds, ascending in each group, group after group, and the rows of each group."""
        counts = np.array([one.law.group_counts(one.n) for one in self.folds])
        group = np.concatenate([np.repeat(np.arange(len(own)), own) for own in counts])
        scores = np.concatenate([one.scores for one in self.folds])
        return scores[np.lexsort((scores, group))], counts.sum(0)

    def _ranks(self, n: I64, coverage: Fraction) -> I64:
        """The rank of the threshold among so many scores; a warning where they are too few for one."""
        fewest = int(n.min(initial=self.n))
        if fewest < rows_needed(coverage):
            warn(
                f"{fewest} calibration row(s) cannot guarantee coverage {float(coverage):g}: labels compared with so "
                f"few rows are in every set. Calibrate on at least {rows_needed(coverage)} rows.",
                SmallCalibrationWarning,
            )
        return ranks_of(n, coverage)

    def __repr__(self) -> str:
        first = self.folds[0]
        kind = "" if first.groups is None else f", by {first.guarantee}"
        rows = f"{self.n:,} rows in {len(self.folds)} folds"
        return f"CrossCalibration({first.score.describe()}, {rows}, {self.n_classes:,} classes{kind})"
