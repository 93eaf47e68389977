"""Sets with a bounded expected loss: conformal risk control, on average or with a confidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from os import PathLike
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp.calibration.batches import Rows, labelled_rows
from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import Calibrator
from evicp.errors import InputError, InputTypeError
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis, ClassNames
from evicp.input.messages import refuse_unknown
from evicp.method.scores import ScoreLike
from evicp.report.rule import Section
from evicp.risk.certificate import RuleCertificate
from evicp.risk.curve import RiskCurve, risk_curve
from evicp.risk.files import Stored, checksum, load_rule, stored_fraction
from evicp.risk.law import RiskLaw
from evicp.risk.loss import CLASS_COSTS, COST_MATRIX, FUNCTION, MISS, Loss, as_loss, exact
from evicp.risk.rule import Rule
from evicp.risk.steps import Steps, steps_of
from evicp.sets import PredictionSets
from evicp.types import F64, TargetCoverage

__all__ = ["RiskControl", "RiskEvaluation", "control_risk"]


def control_risk(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    risk: float | Fraction,
    loss: Literal["miss"] | NDArray[Any] | Callable[..., float] = "miss",
    class_costs: ArrayLike | Mapping[Any, float] | None = None,
    largest: float = 1.0,
    confidence: float | None = None,
    score: ScoreLike = "ecp",
    class_names: ClassNames | None = None,
    **unknown: Any,
) -> RiskControl:
    """The smallest sets whose expected loss is at most `risk` (Angelopoulos et al., 2024).

    Parameters
    ----------
    logits, labels, score, class_names : of the calibration rows, as for `calibrate`
    risk : the allowed expected loss, in the units of the loss; 0.05 means 1/20
    loss : "miss", 1 where the true label is not in the set, as coverage 1 - risk; or a (K, K) matrix of costs, true
        label by label in the set, of which the lowest counts; or a function of a set (its labels, best first) and the
        true label, from 0 (the full set) to `largest`. It must never rise as the set grows, and is refused if it does
    class_costs : (K,) numbers >= 0, in place of a loss: what it costs to miss the true label, by its class
    largest : the largest value that a function returns
    confidence : bounds the expected loss for that share of calibration sets; None bounds its mean over them

    >>> control = control_risk([[2.0, 1, 0]] * 60, [0] * 50 + [1] * 10, risk=0.5, class_costs=[1, 3, 1], score="topk")
    >>> control
    RiskControl(risk 0.5: cost by the class of a missed label, at most 3; topk, 60 rows, 3 classes)
    >>> control.predict([1.0, 2.0, 0.0]).to_lists()
    [[1, 0]]
    """
    refuse_unknown("control_risk", unknown, "Pass a risk, the expected loss: risk=0.1.")
    calibrator, rows, classes = scored_rows(logits, labels, score, class_names)
    own = as_loss(loss, class_costs, largest, classes.n_classes, classes.names)
    asked, sure = as_risk(risk, own.largest), as_sure(confidence)
    steps = steps_of(calibrator.score, rows.array, rows.labels, calibrator.content().scores, own)
    return RiskControl(calibrator.finish(), own, steps, asked, sure)


def scored_rows(logits: Any, labels: Any, score: ScoreLike, names: Any) -> tuple[Calibrator, Rows, ClassAxis]:
    """A calibrator with the scores of labelled rows, and these rows and their classes, checked; all on the CPU."""
    logits, labels = convert.on_cpu(logits), convert.on_cpu(labels)
    calibrator = Calibrator(score, class_names=names).update(logits, labels)
    known = calibrator.learned(logits, calibrator.n_classes or 0)
    return calibrator, *labelled_rows(calibrator.score, logits, labels, None, None, None, known)


def as_sure(confidence: Any) -> float | None:
    """A confidence, or none."""
    return None if confidence is None else validate.as_probability(confidence, "confidence")


def as_risk(risk: Any, largest: float) -> Fraction:
    """An expected loss, exactly: above 0 and below the largest loss."""
    number = isinstance(risk, int | float | Fraction | np.integer | np.floating) and not isinstance(
        risk, bool | np.bool_
    )
    if not number:
        raise InputTypeError(f"risk must be a number, the allowed expected loss; got {risk!r}.")
    if not 0 < risk < largest:
        raise InputError(f"risk must be above 0 and below the largest loss, {largest:g}; got {risk}.")
    exactly = risk if isinstance(risk, Fraction) else Fraction(repr(float(risk))).limit_denominator(10**9)
    if not exactly:
        raise InputError(
            f"risk must be above 0; got {risk}, which is read to nine decimals. Pass a fractions.Fraction."
        )
    return exactly


@dataclass(frozen=True, eq=False, repr=False)
class RiskControl(Rule):
    """Sets whose expected loss is at most `risk`; made by `control_risk`.

    Parameters
    ----------
    calibration : the score and the scores of the calibration rows, for coverages; its thresholds are not those here
    loss : of a set
    steps : where the losses of the calibration rows drop
    risk : the allowed risk
    confidence : with which, over calibration sets; None on average over them
    """

    calibration: Calibration
    loss: Loss
    steps: Steps
    risk: Fraction
    confidence: float | None = None

    @property
    def n(self) -> int:
        """Calibration rows."""
        return self.steps.n

    @property
    def n_classes(self) -> int:
        """K."""
        return self.calibration.n_classes

    @cached_property
    def threshold(self) -> float:
        """The largest score in a set; +inf for full sets, -inf for empty ones."""
        return self.steps.threshold(self.risk, self.confidence)

    @cached_property
    def mean_loss(self) -> Fraction:
        """The mean loss of the calibration rows at the threshold, exactly."""
        return self.steps.loss_at(self.threshold)

    @property
    def level(self) -> TargetCoverage:
        """1 - risk / largest loss, which stands for the coverage of `levelled`, and in the sets predicted."""
        return TargetCoverage(1 - self.risk / exact(self.loss.largest))

    @cached_property
    def levelled(self) -> Calibration:
        """The calibration with the thresholds that bound the loss, for blocks of rows on disk: predict at `level`."""
        return replace(self.calibration, law=RiskLaw(self.steps))

    def at(self, risk: float | Fraction, confidence: float | None = None) -> RiskControl:
        """The same rows and loss for another risk.

        Parameters
        ----------
        risk, confidence : as for `control_risk`
        """
        return replace(self, risk=as_risk(risk, self.loss.largest), confidence=as_sure(confidence))

    def predict(self, logits: ArrayLike, *, allow_empty: bool = True, **unknown: Any) -> PredictionSets:
        """The sets of new rows; their `guarantee` is "risk", and their `coverage` is 1 - risk / largest loss.

        Parameters
        ----------
        logits : (n, K), or one (K,) row
        allow_empty : if False, an empty set gets its top label, which can only lower the loss
        """
        refuse_unknown("predict", unknown, "The risk is set by control_risk, or by control.at(risk=0.1).")
        return self.levelled.predict(logits, self.level, confidence=self.confidence, allow_empty=allow_empty)

    def losses(self, sets: PredictionSets, labels: ArrayLike) -> F64:
        """The loss of each set, (n,).

        Parameters
        ----------
        sets, labels : of new rows
        """
        return self.loss.of_sets(sets, ClassAxis.known_to(self.calibration).numbers(labels, len(sets)))

    def evaluate(self, logits: ArrayLike, labels: ArrayLike, *, confidence: float = 0.95) -> RiskEvaluation:
        """The observed loss on labelled rows, and whether it agrees with the risk.

        Parameters
        ----------
        logits, labels : new rows
        confidence : of the interval, and of the verdict
        """
        sets = self.predict(logits)
        return self.evaluation_of(self.losses(sets, labels), sets.sizes.sum(), confidence)

    def curve(self, logits: ArrayLike, labels: ArrayLike) -> RiskCurve:
        """The mean loss of labelled rows at several risks, with its interval.

        Parameters
        ----------
        logits, labels : new rows
        """
        found = lambda risk: replace(self, risk=risk).evaluate(logits, labels)  # noqa: E731
        return risk_curve(found, self.risk, self.loss.largest)

    def _sections(self, logits: Any, truth: Any) -> tuple[Section, ...]:
        curve = self.curve(logits, truth)
        text = "The same calibration rows at other target risks, on the test rows."
        return (Section("Loss and size", text, curve.to_svg(), curve.table),)

    def evaluation_of(self, losses: F64, labels: int, confidence: float = 0.95) -> RiskEvaluation:
        """The same from the losses of sets and their total number of labels."""
        return RiskEvaluation.of(losses, labels, self, self.loss.largest, confidence)

    def certificate(self, evaluation: RiskEvaluation | None = None) -> RuleCertificate:
        """The guarantee, and the figures it was computed from.

        Parameters
        ----------
        evaluation : an evaluation on other rows
        """
        bound = (self.n * self.mean_loss + exact(self.loss.largest)) / (self.n + 1)
        over = "on average over calibration sets"
        sure = over if self.confidence is None else f"with confidence {self.confidence:g} over calibration sets"
        place = {np.inf: "none: every set is full", -np.inf: "none: every set is empty"}
        facts = [
            ("expected loss", f"at most {float(self.risk):g}, {sure}"),
            ("loss", self.loss.text),
            ("calibration rows n", f"{self.n:,}"),
            ("threshold", place.get(self.threshold, f"{self.threshold:.6g}")),
            ("their mean loss R", f"{float(self.mean_loss):.6g}; (n R + largest) / (n + 1) = {float(bound):.6g}"),
            ("score", self.calibration.score.describe()),
            ("classes", f"{self.calibration.n_classes:,}"),
        ]
        if evaluation is not None:
            facts.append(("observed", str(evaluation)))
        figures = {
            "risk": float(self.risk),
            "confidence": self.confidence,
            "loss": self.loss.kind,
            "largest_loss": self.loss.largest,
            "n": self.n,
            "threshold": self.threshold,
            "mean_loss": float(self.mean_loss),
            "bound": float(bound),
            "score": self.calibration.score.name,
            "parameters": self.calibration.score.plain_parameters(),
            "n_classes": self.calibration.n_classes,
            "checksum": checksum(self.stored()),
            "observed": None if evaluation is None else evaluation.to_dict(),
        }
        return RuleCertificate("Risk certificate", tuple(facts), RiskLaw.kind.caveat, figures)

    def stored(self) -> Stored:
        """What its file holds."""
        content = {
            "risk": str(self.risk),
            "confidence": self.confidence,
            "loss": {"kind": self.loss.kind, "largest": self.loss.largest},
        }
        steps = {"scores": self.steps.scores, "before": self.steps.before, "after": self.steps.after}
        costs = {"costs": self.loss.costs.reshape(-1)} if self.loss.costs.size else {}
        return Stored("risk", content, self.calibration, steps | costs)

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, loss: Callable[..., float] | None = None, score: Any = None
    ) -> RiskControl:
        """Read a saved rule; no code in the file is executed.

        Parameters
        ----------
        path : of the file
        loss : your function, if the loss was one: `losses` and `evaluate` need it, `predict` does not
        score : your score, if it was one
        """
        found = load_rule(path, {"risk": cls.rebuilt}, score)
        if loss is None:
            return found
        if found.loss.kind != FUNCTION:
            raise InputError(f"its loss is {found.loss.kind}, not a function: leave loss= out.")
        return replace(found, loss=replace(found.loss, function=loss))

    @classmethod
    def rebuilt(cls, content: dict[str, Any], calibration: Calibration, tensors: dict[str, F64]) -> RiskControl:
        """From the parts of a file, each of which is checked."""
        stored, k = content["loss"], calibration.n_classes
        loss = _stored_loss(stored["kind"], stored["largest"], tensors.pop("costs", np.empty(0)), k)
        scores, before, after = (convert.frozen(tensors.pop(name)) for name in ("scores", "before", "after"))
        steps = Steps(scores, before, after, calibration.n, loss.largest)
        if tensors or stored["largest"] != loss.largest or not steps.is_valid:
            raise InputError("its losses rise as sets grow.")
        risk = as_risk(stored_fraction(content["risk"]), loss.largest)
        return cls(calibration, loss, steps, risk, as_sure(content["confidence"]))

    def __repr__(self) -> str:
        sure = "" if self.confidence is None else f" with confidence {self.confidence:g}"
        own = self.calibration
        rest = f"{own.score.describe()}, {self.n:,} rows, {own.n_classes:,} classes"
        return f"RiskControl(risk {float(self.risk):g}{sure}: {self.loss.text}; {rest})"


def _stored_loss(kind: Any, largest: Any, costs: F64, n_classes: int) -> Loss:
    """The loss that a file describes, checked."""
    if kind == COST_MATRIX:
        return as_loss(costs.reshape(n_classes, n_classes), None, 1.0, n_classes, None)
    if kind == CLASS_COSTS:
        return as_loss(MISS, costs, 1.0, n_classes, None)
    if costs.size or kind not in (MISS, FUNCTION) or not isinstance(largest, float) or not 0 < largest < np.inf:
        raise InputError(f"its loss is malformed: {kind!r}, at most {largest!r}.")
    return Loss(kind, largest)


@dataclass(frozen=True, repr=False)
class RiskEvaluation:
    """The observed loss of sets on rows with known labels, compared with the allowed risk.

    Attributes
    ----------
    n : rows evaluated
    risk : the allowed risk
    mean_loss : observed
    interval : of the expected loss, from these rows (a normal approximation)
    confidence : of the interval, and of the verdict
    mean_size : labels per set
    kept : whether the observed loss agrees with the risk, given the variation of calibration and test rows; approximate
    """

    n: int
    risk: float
    mean_loss: float
    interval: tuple[float, float]
    confidence: float
    mean_size: float
    kept: bool
    sections: ClassVar[tuple[Section, ...]] = ()

    @classmethod
    def of(cls, losses: F64, labels: int, rule: Any, largest: float, confidence: float) -> RiskEvaluation:
        """From the losses of sets.

        Parameters
        ----------
        losses : (n,) of the sets
        labels : how many labels these hold together
        rule : what bounds the loss, with a `risk`, a `confidence` and the number `n` of its calibration rows
        largest : the most that a loss can be
        confidence : of the interval, and of the verdict
        """
        from scipy.special import ndtri

        m, risk = validate.as_count(len(losses), "the number of labelled rows", at_least=2), float(rule.risk)
        times = float(ndtri((1 + validate.as_probability(confidence, "confidence")) / 2))
        mean, error = float(losses.mean()), float(losses.std(ddof=1)) / m**0.5
        # Of losses with this mean those that are 0 or the largest vary most.
        varied = largest * (risk / largest * (1 - risk / largest) / rule.n) ** 0.5 if rule.confidence is None else 0.0
        kept = mean - times * (error**2 + varied**2) ** 0.5 <= risk
        interval = (max(0.0, mean - times * error), min(largest, mean + times * error))
        return cls(m, risk, mean, interval, confidence, float(labels) / m, kept)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**self.__dict__, "interval": list(self.interval)}

    def __str__(self) -> str:
        low, high = self.interval
        verdict = "agrees with" if self.kept else "is MORE than"
        return (
            f"mean loss {self.mean_loss:.4g} on {self.n:,} rows [{low:.4g}, {high:.4g}] {verdict} the risk "
            f"{self.risk:g}; mean size {self.mean_size:.2f}"
        )

    __repr__ = __str__
