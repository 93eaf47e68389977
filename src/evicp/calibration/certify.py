"""What a calibration may promise at one coverage, as a certificate."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from evicp.calibration.certificate import Certificate
from evicp.calibration.levels import level_of, require_law
from evicp.calibration.promises import Promise, Target
from evicp.calibration.reliability import Reliability
from evicp.calibration.suspicious import warn_of
from evicp.errors import InputError, InputTypeError
from evicp.outer import outer
from evicp.types import Coverage

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration
    from evicp.evaluation.result import Evaluation


def certify(
    calibration: Calibration,
    coverage: Coverage,
    evaluation: Evaluation | None,
    *,
    confidence: float,
    pac: float | None,
    date: str | None,
) -> Certificate:
    """The certificate of a calibration; see `Calibration.certificate`."""
    whole = Reliability(calibration.n, coverage, pac)
    if pac is not None or evaluation is not None:
        require_law(calibration, "a promise with confidence, or a verdict on what was observed,")
    _check_same(calibration, whole, evaluation)
    level = level_of(calibration, whole.coverage, whole.confidence)
    warn_of(*level.cautions)
    target = Target(whole.coverage, whole.confidence, confidence, evaluation, level.values, calibration.n_classes)
    promise = calibration.law.promise(calibration.scores, target)
    return _of(calibration, promise, target, date)


def _of(calibration: Calibration, promise: Promise, target: Target, date: str | None) -> Certificate:
    from evicp import __version__

    law = promise.law
    return Certificate(
        coverage=float(law.coverage),
        n=calibration.n,
        rank=law.k,
        threshold=promise.threshold,
        gamma=law.gamma,
        uncertainty=law.uncertainty,
        expected_coverage=law.expected_coverage,
        coverage_interval=law.interval(target.confidence),
        confidence=target.confidence,
        score=calibration.score.name,
        parameters=calibration.score.plain_parameters(),
        n_classes=calibration.n_classes,
        checksum=outer("checksum")(calibration),
        version=__version__,
        date=date or datetime.now(UTC).strftime("%Y-%m-%d"),
        observed=promise.observed,
        by=None if calibration.guarantee in ("marginal", "weighted") else calibration.guarantee,
        groups=promise.groups,
        effective_n=promise.effective_n,
        pac=law.confidence,
        chosen_on=calibration.chosen_on,
        folds=calibration.folds,
        tied=promise.tied,
    )


def _check_same(calibration: Calibration, law: Reliability, evaluation: Evaluation | None) -> None:
    """An evaluation says something about the promise only if it is of sets made by it."""
    if evaluation is None:
        return
    if not isinstance(evaluation, outer("Evaluation")):
        raise InputTypeError(f"evaluation must be what evicp.evaluate returns; got a {type(evaluation).__name__}.")
    if evaluation.target != law.coverage or evaluation.n_calibration != calibration.n:
        raise InputError(
            f"the evaluation must be of sets of this calibration at coverage {float(law.coverage):g}; "
            f"got coverage {float(evaluation.target):g}, n = {evaluation.n_calibration}."
        )
    if (evaluation.score, evaluation.guarantee) != (calibration.score.name, calibration.guarantee):
        raise InputError(
            f"the evaluation must be of sets of this calibration ({calibration.score.name}, {calibration.guarantee}); "
            f"got sets of {evaluation.score}, {evaluation.guarantee}."
        )
    if evaluation.target_confidence != law.confidence:
        raise InputError(
            f"the evaluation must be of sets predicted with confidence={law.confidence}; "
            f"got confidence={evaluation.target_confidence}."
        )
