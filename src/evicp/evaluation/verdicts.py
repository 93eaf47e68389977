"""Verdicts: whether the coverage that was observed is what the guarantee lets one expect."""

from __future__ import annotations

from typing import Any

from evicp.calibration.calibration import Calibration
from evicp.calibration.reliability import Reliability, verdict_line
from evicp.evaluation.result import Evaluation


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
    """A verdict in a sentence."""
    law = ", which at least 95 % of runs at the promised coverage give" if "low" in verdict else ""
    return f"observed {verdict_line(verdict)}{law}"
