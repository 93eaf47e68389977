"""Verdicts: whether the coverage that was observed is what the guarantee predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evicp.calibration.reliability import Reliability, verdict_line

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration
    from evicp.evaluation.result import Evaluation

_LESS = (
    "these rows differ from the calibration rows: another network or preprocessing, labels of other rows, or a shift "
    "of the inputs. Calibrate on rows like these."
)
_MORE = (
    "The sets are larger than necessary for these rows: the model was trained on them, or they are easier than the "
    "calibration rows. Evaluate on rows like future ones."
)


def verdict_of(evaluation: Evaluation, calibration: Calibration | None = None) -> dict[str, Any] | None:
    """Whether the coverage observed contradicts the guarantee: of all rows, or in each of a calibration's groups.

    Without the calibration only sets with a marginal guarantee can be judged, from what they remember of it. None where
    there is no guarantee, or none that can be told.
    """
    if calibration is not None:
        if calibration.folds is not None:
            return None
        return calibration.certificate(evaluation.target, evaluation, pac=evaluation.target_confidence).observed
    if evaluation.n_calibration is None or evaluation.guarantee != "marginal":
        return None
    law = Reliability(evaluation.n_calibration, evaluation.target, evaluation.target_confidence)
    kind = {"at_least": evaluation.law_is_bound, "smoothed": evaluation.smoothed}
    return law.compatible(evaluation.coverage, evaluation.n, **kind).to_dict()


def verdict_text(verdict: dict[str, Any]) -> str:
    """A verdict in a sentence, and the likely cause where coverage is not as guaranteed."""
    law = ", the range of at least 95 % of runs if the guarantee holds" if "low" in verdict else ""
    cause = _cause(verdict)
    return f"observed {verdict_line(verdict)}{law}" + (f". {cause}" if cause else "")


def excess_of(verdict: dict[str, Any]) -> str | None:
    """What to say where far more is covered than guaranteed: no broken guarantee, but hardly what was meant."""
    if not _is_far(verdict) or verdict["coverage"] < verdict["high"]:
        return None
    return f"{verdict['coverage']:.4f} is covered, far more than expected from the guarantee. {_MORE}"


def _cause(verdict: dict[str, Any]) -> str | None:
    """Why coverage is not as guaranteed; None where it is, or chance may be the reason."""
    if verdict["kept"]:
        return _MORE if excess_of(verdict) else None
    return f"{_LESS[0].upper()}{_LESS[1:]}" if _is_far(verdict) else f"If this is not chance, {_LESS}"


def _is_far(verdict: dict[str, Any]) -> bool:
    """Whether what was observed lies about four standard deviations off; of groups, never."""
    if "low" not in verdict:
        return False
    low, high = verdict["low"], verdict["high"]
    return abs(verdict["coverage"] - (low + high) / 2) > high - low
