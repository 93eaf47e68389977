"""Multi-label sets that miss at most a share of the true labels, and sure labels with a bounded error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp.calibration.laws.groups import group_thresholds
from evicp.calibration.ranks import ranks_of
from evicp.calibration.reliability import Reliability
from evicp.errors import InputError
from evicp.input import convert, frames, validate
from evicp.input.classes import ClassNames
from evicp.input.messages import refuse_unknown, some_of
from evicp.kernels.arithmetic import in_precision
from evicp.report.rule import Section
from evicp.risk.certificate import RuleCertificate
from evicp.risk.control import RiskEvaluation, as_risk, as_sure
from evicp.risk.curve import RiskCurve, risk_curve
from evicp.risk.files import Stored, checksum, load_rule, stored_fraction
from evicp.risk.known import KnownLogits
from evicp.risk.label_metrics import LabelRecalls, MultiLabelEvaluation
from evicp.risk.precision import surest_threshold
from evicp.risk.rule import Rule
from evicp.risk.steps import Steps
from evicp.risk.truth import as_truth
from evicp.sets import PredictionSets, sets_of
from evicp.types import F64, I64, Bools, TargetCoverage

__all__ = ["MultiLabel", "multilabel"]

_CAVEAT = (
    "Holds if calibration and new rows are exchangeable and the calibration rows were not used to select the model or "
    "the thresholds. Rows without a true label miss nothing. It says nothing about shifted data."
)


def multilabel(
    logits: ArrayLike,
    truth: ArrayLike,
    *,
    missed: float | Fraction = 0.1,
    confidence: float | None = None,
    precision: float | None = None,
    by_label: bool = False,
    class_names: ClassNames | None = None,
    **unknown: Any,
) -> MultiLabel:
    """A rule for rows with several labels: its sets miss at most the share `missed` of the true labels on average.

    Parameters
    ----------
    logits : (n, K), one for each label; labels are compared by them, largest first
    truth : (n, K) of 0 and 1; or for each row a list of its labels, numbers or names; or an Arrow column of lists
    missed : the expected share of a row's true labels that are not in its set
    confidence : bounds it for that share of calibration sets; None bounds its mean over them
    precision : a second, higher threshold, above which at least this share of a row's labels is expected to be true;
        needs `confidence`, with which both bounds hold
    by_label : a threshold for each label: of the rows where it is true at most the share `missed` lacks it
    class_names : as for `calibrate`

    >>> rule = multilabel([[3.0, 1.0, -1.0], [2.0, -1.0, 4.0]] * 10, [[0, 1], [2]] * 10, missed=0.1)
    >>> rule
    MultiLabel(missed 0.1; 20 rows, 3 labels)
    >>> rule.predict([2.0, 0.0, 4.0]).to_lists()
    [[2, 0]]
    """
    refuse_unknown("multilabel", unknown, "Pass the share of true labels that may be missed: missed=0.1.")
    known, array, true = _labelled(logits, truth, class_names)
    asked, sure = as_risk(missed, 1.0), as_sure(confidence)
    made = MultiLabel(known, *_steps(array, true), asked, sure, validate.as_flag(by_label, "by_label"))
    if precision is None:
        return made
    wanted = validate.as_coverage(precision, "precision")
    if sure is None or by_label:
        raise InputError("precision= needs confidence= (both thresholds hold with it) and no by_label=.")
    return replace(made, precision=wanted, surest=surest_threshold(array, true, 1 - wanted, (1 + sure) / 2))


def _labelled(logits: Any, truth: Any, class_names: Any) -> tuple[KnownLogits, NDArray[Any], Bools]:
    """What is known of logits, the logits themselves, and the true labels of their rows, checked."""
    frames.same_rows(logits=logits, truth=truth)
    known, array = KnownLogits.of(convert.on_cpu(logits), class_names)
    true = as_truth(truth, len(array), known.classes)
    if not true.any():
        raise InputError("truth must contain at least one true label; got none.")
    return known, array, true


def _steps(logits: NDArray[Any], true: Bools) -> tuple[Steps, I64]:
    """Where the share of missed labels of each row drops, and by which label."""
    scores = np.concatenate([-block[true[rows]] for rows, block in validate.blocks(logits)])
    rows, labels = np.nonzero(true)
    order = np.lexsort((scores, rows))  # within each row from the first label that is found on
    counts = np.bincount(rows, minlength=len(true))
    starts = np.cumsum(counts) - counts
    found = np.arange(len(rows)) - starts[rows]
    total = counts[rows]
    scores, labels = scores[order], labels[order]
    by_score = np.argsort(scores, kind="stable")
    before, after = (total - found) / total, (total - found - 1) / total
    steps = Steps(scores[by_score], before[by_score], after[by_score], len(true), 1.0)
    return steps, labels[by_score]


@dataclass(frozen=True, eq=False, repr=False)
class MultiLabel(Rule):
    """Sets of several labels; made by `multilabel`.

    Parameters
    ----------
    known : what is known of the logits, and of the labels
    steps, codes : the true labels of the calibration rows, by their score (the negative logit)
    risk, confidence, by_label, precision : as for `multilabel`, `risk` being `missed`
    surest : the lowest logit of a label that is surely true
    """

    known: KnownLogits
    steps: Steps
    codes: I64
    risk: Fraction
    confidence: float | None = None
    by_label: bool = False
    precision: Fraction | None = None
    surest: float | None = None

    @property
    def n(self) -> int:
        """Calibration rows."""
        return self.steps.n

    @property
    def n_classes(self) -> int:
        """K."""
        return self.known.classes.n_classes

    @cached_property
    def thresholds(self) -> F64:
        """The lowest logit of a label in a set: (1,) for all labels, or (K,); -inf where every set holds the label."""
        sure = self.confidence if self.precision is None or self.confidence is None else (1 + self.confidence) / 2
        if not self.by_label:
            return convert.frozen(np.array([-self.steps.threshold(self.risk, sure)]))
        counts = np.bincount(self.codes, minlength=self.n_classes)
        by_label = self.steps.scores[np.argsort(self.codes, kind="stable")]  # ascending within each label
        return convert.frozen(-group_thresholds(by_label, counts, ranks_of(counts, 1 - self.risk, sure)))

    # -----------------------------------------------------------------------------------------------------------
    # New rows

    def predict(self, logits: ArrayLike, *, sure: bool = False, **unknown: Any) -> PredictionSets:
        """The labels of each new row, most likely first.

        Parameters
        ----------
        logits : (n, K), or one (K,) row
        sure : True for the labels above the second threshold, if the rule has a precision
        """
        refuse_unknown("predict", unknown, "The share of missed labels is set by evicp.multilabel.")
        if validate.as_flag(sure, "sure") and self.surest is None:
            raise InputError("sure labels need a precision: multilabel(..., precision=0.9, confidence=0.9).")
        array, precision = self.known.new(logits)
        # Rounded as coarser rows are: a logit that reaches the threshold reaches it still.
        limits = in_precision(np.array([self.surest]) if sure else self.thresholds, precision)
        sizes, labels = [np.zeros(1, np.int64)], [np.empty(0, np.int32)]
        for _, block in validate.blocks(array):
            inside = block >= limits
            rows, own = np.nonzero(inside)
            labels.append(own[np.lexsort((own, -block[rows, own], rows))].astype(np.int32))
            sizes.append(inside.sum(1))
        level = self.precision if sure and self.precision is not None else 1 - self.risk
        about = self.known.about(TargetCoverage(level), "logit", "precision" if sure else "recall", self.confidence)
        return sets_of(about, np.cumsum(np.concatenate(sizes)), np.concatenate(labels))

    def losses(self, sets: PredictionSets, truth: ArrayLike) -> F64:
        """The share of each row's true labels that are not in its set, (n,); 0 for rows without true labels."""
        true = as_truth(truth, len(sets), self.known.classes)
        lost: F64 = (true & ~sets.mask()).sum(1) / np.maximum(true.sum(1), 1)
        return lost

    def observed(self, sets: PredictionSets, truth: ArrayLike, groups: ArrayLike | None = None) -> NDArray[Any]:  # noqa: ARG002
        """The losses; by label, in how many rows each label is true and how many of these lack it, (1, 2, K)."""
        if not self.by_label:
            return self.losses(sets, truth)
        true = as_truth(truth, len(sets), self.known.classes)
        return np.stack([true.sum(0), (true & ~sets.mask()).sum(0)])[None]

    def evaluation_of(
        self, observed: NDArray[Any], labels: int, confidence: float = 0.95
    ) -> RiskEvaluation | LabelRecalls:
        """What that is worth, of sets that hold so many labels together."""
        if not self.by_label:
            return RiskEvaluation.of(observed, labels, self, 1.0, confidence)
        return self._recalls(observed, confidence)

    def _recalls(self, observed: NDArray[Any], confidence: float) -> LabelRecalls:
        rows = np.bincount(self.codes, minlength=self.n_classes)
        laws = [Reliability(n, 1 - self.risk, self.confidence) if n else None for n in rows.tolist()]
        counts, lost = observed.sum(0)
        return LabelRecalls.of(counts, lost, laws, float(self.risk), confidence, self.known.classes.names)

    def evaluate(self, logits: ArrayLike, truth: ArrayLike, *, confidence: float = 0.95) -> MultiLabelEvaluation:
        """Share of missed labels, precision, recall and F1 on rows with known labels.

        Parameters
        ----------
        logits, truth : new rows
        confidence : of the interval, and of the verdict
        """
        frames.same_rows(logits=logits, truth=truth)
        sets = self.predict(logits)
        true = as_truth(truth, len(sets), self.known.classes)
        missed = RiskEvaluation.of(self.losses(sets, true), len(sets.labels), self, 1.0, confidence)
        by_label = self._recalls(self.observed(sets, true), confidence) if self.by_label else None
        surely = None if self.surest is None else self.predict(logits, sure=True).mask()
        return MultiLabelEvaluation.of(missed, by_label, sets.mask(), true, surely, self.known.classes.names)

    def curve(self, logits: ArrayLike, truth: ArrayLike) -> RiskCurve:
        """The share of missed labels of labelled rows at other target shares, with its interval.

        Parameters
        ----------
        logits, truth : new rows
        """
        found = lambda risk: replace(self, risk=risk).evaluate(logits, truth).missed  # noqa: E731
        return risk_curve(found, self.risk, 1.0)

    def _sections(self, logits: Any, truth: Any) -> tuple[Section, ...]:
        curve = self.curve(logits, truth)
        text = "The share of a row's true labels that its set lacks, at other target shares."
        return (Section("Missed labels and size", text, curve.to_svg(), curve.table),)

    # -----------------------------------------------------------------------------------------------------------
    # What is guaranteed

    def certificate(self, evaluation: MultiLabelEvaluation | RiskEvaluation | None = None) -> RuleCertificate:
        """The guarantee, and the figures it was computed from.

        Parameters
        ----------
        evaluation : an evaluation on other rows
        """
        facts = self._facts()
        if evaluation is not None:
            facts.append(("observed", str(evaluation).partition("\n")[0]))
        figures = {
            "missed": float(self.risk),
            "confidence": self.confidence,
            "by_label": self.by_label,
            "n": self.n,
            "n_classes": self.n_classes,
            "thresholds": self.thresholds.tolist(),
            "precision": None if self.precision is None else float(self.precision),
            "surest": self.surest,
            "checksum": checksum(self.stored()),
            "observed": None if evaluation is None else evaluation.to_dict(),
        }
        return RuleCertificate("Certificate of sets of several labels", tuple(facts), _CAVEAT, figures)

    def _facts(self) -> list[tuple[str, str]]:
        sure = "on average over calibration sets" if self.confidence is None else f"with confidence {self.confidence:g}"
        where, of_each = (
            ("of each label's rows", " for each by itself") if self.by_label else ("of a row's true labels", "")
        )
        full = np.flatnonzero(self.thresholds == -np.inf).tolist()
        facts = [
            ("missed", f"at most {float(self.risk):g} {where}, {sure}{of_each}"),
            ("calibration rows n", f"{self.n:,}, with {len(self.codes):,} true labels"),
            ("labels", f"{self.n_classes:,}"),
        ]
        if not self.by_label:
            mean = float(self.steps.loss_at(-float(self.thresholds[0])))
            facts.append(("threshold", f"logits from {self.thresholds[0]:.6g} on; of the calibration rows {mean:.6g}"))
        elif full:
            facts.append(("in every set", f"{len(full):,} labels of too few rows: {some_of(full)}"))
        if self.precision is not None:
            line = f"at least {float(self.precision):g} of a row's labels true, logits from {self.surest:.6g} on"
            line = "none: no threshold is certified" if self.surest == np.inf else line
            facts.append(("sure labels", line))
        return facts

    def __repr__(self) -> str:
        sure = "" if self.confidence is None else f" with confidence {self.confidence:g}"
        kind = ", by label" if self.by_label else ""
        kind += "" if self.precision is None else f", precision {float(self.precision):g}"
        return f"MultiLabel(missed {float(self.risk):g}{sure}{kind}; {self.n:,} rows, {self.n_classes:,} labels)"

    # -----------------------------------------------------------------------------------------------------------
    # Files

    def stored(self) -> Stored:
        """What its file holds."""
        content = {
            "missed": str(self.risk),
            "confidence": self.confidence,
            "by_label": self.by_label,
            "n": self.n,
            "precision": None if self.precision is None else str(Fraction(self.precision)),
        }
        steps = self.steps
        arrays = {"scores": steps.scores, "before": steps.before, "after": steps.after, "codes": self.codes}
        if self.surest is not None:
            arrays["surest"] = np.array([self.surest])
        return Stored("multilabel", content, self.known, arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> MultiLabel:
        """Read a saved rule; no code in the file is executed."""
        found: MultiLabel = load_rule(path, {"multilabel": cls.rebuilt})
        return found

    @classmethod
    def rebuilt(cls, content: dict[str, Any], known: KnownLogits, tensors: dict[str, F64]) -> MultiLabel:
        """From the parts of a file, each of which is checked."""
        n = validate.as_count(content["n"], "n")
        precision = None if content["precision"] is None else stored_fraction(content["precision"])
        surest = None if precision is None else float(tensors.pop("surest").item())
        scores, before, after, codes = (tensors.pop(name) for name in ("scores", "before", "after", "codes"))
        steps = Steps(scores, before, after, n, 1.0)
        inside = np.all((codes >= 0) & (codes < known.classes.n_classes) & (codes == np.floor(codes)))
        if surest is not None and not surest > -np.inf:  # NaN among them
            raise InputError(f"its labels are surely true from a logit of {surest} on.")
        if tensors or len(codes) != len(scores) or not (steps.is_valid and inside) or n < np.sum(before == 1):
            raise InputError("its true labels are inconsistent.")
        by_label = validate.as_flag(content["by_label"], "by_label")
        risk, sure = as_risk(stored_fraction(content["missed"]), 1.0), as_sure(content["confidence"])
        return cls(known, steps, codes.astype(np.int64), risk, sure, by_label, precision, surest)
