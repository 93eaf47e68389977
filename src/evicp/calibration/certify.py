"""What a calibration may promise at one coverage, as a certificate."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from evicp.calibration.certificate import Certificate, GroupPromise, weakest
from evicp.calibration.laws.groups import ByClass
from evicp.calibration.laws.weighted import equal_rows
from evicp.calibration.ranks import rows_needed
from evicp.calibration.reliability import Reliability
from evicp.calibration.ties import is_tied
from evicp.errors import InputError, InputTypeError
from evicp.outer import outer
from evicp.types import F64, I64, Coverage

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration
    from evicp.evaluation.result import ClassCoverage, Evaluation, GroupCoverage


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
    from evicp import __version__

    law = Reliability(calibration.n, coverage, pac)
    if pac is not None or evaluation is not None:
        calibration.require_law("a promise with confidence, or a verdict on what was observed,")
    _check_same(calibration, law, evaluation)
    promises = _promises(calibration, law, confidence, evaluation)
    threshold = _threshold(calibration, law, promises)
    weighted = calibration.weights is not None
    if promises:
        law = Reliability(max(1, weakest(promises).n), coverage, law.confidence)
    elif calibration.weights is not None:
        law = _weighted_law(calibration.scores, calibration.weights.rows, threshold, law.coverage)
    tied = is_tied(_headline(calibration, promises), law.k)
    return Certificate(
        coverage=float(law.coverage),
        n=calibration.n,
        rank=law.k,
        threshold=threshold,
        gamma=law.gamma,
        uncertainty=law.uncertainty,
        expected_coverage=law.expected_coverage,
        coverage_interval=law.interval(confidence),
        confidence=confidence,
        score=calibration.score.name,
        parameters=calibration.score.plain_parameters(),
        n_classes=calibration.n_classes,
        checksum=outer("checksum")(calibration),
        version=__version__,
        date=date or datetime.now(UTC).strftime("%Y-%m-%d"),
        observed=_observed(law, promises, evaluation, confidence, covers_more=tied or weighted),
        by=None if calibration.groups is None else calibration.groups.by.kind,
        groups=promises,
        effective_n=calibration.effective_n if weighted else None,
        pac=law.confidence,
        chosen_on=calibration.chosen_on,
        folds=calibration.folds,
        tied=tied,
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


def _threshold(calibration: Calibration, law: Reliability, promises: tuple[GroupPromise, ...]) -> float:
    """The threshold of the headline: the only one, the smallest group's, or the one of a new row of mean weight."""
    if calibration.weights is not None:
        mean = calibration.weights.rows.mean(keepdims=True)
        return float(calibration.weights.limit(calibration.scores, law.coverage, law.confidence, mean)[0])
    return weakest(promises).threshold if promises else calibration.threshold(law.coverage, law.confidence)


def _weighted_law(scores: F64, weights: F64, threshold: float, coverage: Fraction) -> Reliability:
    """The law of as many equally weighted rows: an approximation, never of fewer rows than have a threshold.

    Where a new row of average weight has none, lighter ones may have, so that not all sets are full.
    """
    rows = 0 if threshold == np.inf else round(equal_rows(scores, weights, threshold, float(coverage)))
    return Reliability(max(rows, rows_needed(coverage)), coverage)


def _promises(
    calibration: Calibration, law: Reliability, confidence: float, evaluation: Evaluation | None
) -> tuple[GroupPromise, ...]:
    """What may be promised in each group, and what was observed there."""
    groups = calibration.groups
    if groups is None:
        return ()
    hits, counts = (None, None) if evaluation is None else _hits(calibration, evaluation)
    checked = 1 if counts is None else max(1, int((counts > 0).sum()))
    result = []
    thresholds = groups.thresholds(calibration.scores, law.coverage, law.confidence)
    for number, (name, n) in enumerate(zip(groups.names, groups.counts.tolist(), strict=True)):
        own = Reliability(max(1, n), law.coverage, law.confidence)
        observed = None
        if evaluation is not None and hits is not None and counts is not None and counts[number]:
            # Of many groups some stray by chance: all of them are compatible together with the confidence stated.
            observed = own.compatible(
                hits[number] / counts[number],
                counts[number],
                1 - (1 - confidence) / checked,
                **_kind(evaluation, covers_more=n == 0 or is_tied(groups.part(calibration.scores, number), own.k)),
            ).to_dict()
        result.append(
            GroupPromise(
                name=name,
                n=n,
                rank=own.k if n else 1,
                threshold=float(thresholds[number]),
                expected_coverage=own.expected_coverage if n else 1.0,
                coverage_interval=own.interval(confidence) if n else (1.0, 1.0),
                observed=observed,
            )
        )
    return tuple(result)


def _kind(evaluation: Evaluation, covers_more: bool) -> dict[str, bool]:
    """How the law of coverage is one of the sets evaluated; `covers_more` says that it is a bound for plain sets."""
    bound = evaluation.filled or (covers_more and not evaluation.smoothed)
    return {"at_least": bound, "smoothed": evaluation.smoothed}


def _headline(calibration: Calibration, promises: tuple[GroupPromise, ...]) -> F64:
    """The scores behind the threshold of the headline; none where there are weights."""
    if calibration.weights is not None:
        return calibration.scores[:0]
    if calibration.groups is None:
        return calibration.scores
    return calibration.groups.part(calibration.scores, promises.index(weakest(promises)))


def _hits(calibration: Calibration, evaluation: Evaluation) -> tuple[I64, I64]:
    """How many rows of each group were covered, and how many there were, in the order of the groups."""
    assert calibration.groups is not None
    found: ClassCoverage | GroupCoverage = evaluation.class_coverage
    if isinstance(calibration.groups.by, ByClass):
        of_row = calibration.groups.by.of_labels(calibration.n_classes)
    else:
        if evaluation.group_coverage is None:
            raise InputError("the evaluation has no groups; evaluate with groups=calibration.groups_of(logits).")
        found, names = evaluation.group_coverage, evaluation.group_coverage.names
        position = {name: number for number, name in enumerate(calibration.groups.names)}
        unknown = [name for name in names if name not in position]
        if unknown:
            raise InputError(f"the evaluation has a group {unknown[0]!r} that is not of this calibration.")
        of_row = np.array([position[name] for name in names])
    hits = np.bincount(of_row, np.nan_to_num(found.coverage) * found.counts, len(calibration.groups.names))
    return np.rint(hits).astype(np.int64), np.bincount(of_row, found.counts, len(hits)).astype(np.int64)


def weighted_confidence(confidence: float) -> float:
    """The confidence whose interval keeps the stated one for weighted sets, from below: half of the tails.

    Their law is that of equally weighted rows. A calibration set that lacks the heavy rows it should have covers less,
    and looks surer: the lower tail of this law is crossed up to twice as often as it says.
    """
    return 1 - (1 - confidence) / 2


def _observed(
    law: Reliability,
    promises: tuple[GroupPromise, ...],
    evaluation: Evaluation | None,
    confidence: float,
    *,
    covers_more: bool,
) -> dict[str, Any] | None:
    """What was observed over all rows; with groups, in which of them it is not compatible with their promise."""
    if evaluation is None:
        return None
    if not promises:
        kind = _kind(evaluation, covers_more)
        if evaluation.guarantee == "weighted":
            confidence = weighted_confidence(confidence)
        return law.compatible(evaluation.coverage, evaluation.n, confidence, **kind).to_dict()
    seen = [promise for promise in promises if promise.observed is not None]
    incompatible = [promise.name for promise in seen if promise.observed and not promise.observed["compatible"]]
    kept = all(promise.observed["kept"] for promise in seen if promise.observed)
    return {
        "coverage": evaluation.coverage,
        "m": evaluation.n,
        "groups": len(seen),
        "incompatible": incompatible,
        "compatible": not incompatible,
        "kept": kept,
    }
