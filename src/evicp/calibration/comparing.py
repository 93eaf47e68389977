"""Scores of several backends and precisions: calibrations whose thresholds are raised past rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evicp import kernels
from evicp.calibration.origin import Origin
from evicp.input import convert
from evicp.kernels.arithmetic import Arithmetic, precision_of_new

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration


def comparable(calibration: Calibration, array: Any, precision: str) -> tuple[Calibration, Any]:
    """The calibration, and checked logits given in a precision, such that their scores can be compared."""
    origin, score = calibration.origin, calibration.score
    if origin is None:
        return calibration, array
    made_by = origin.arithmetic
    array, new = kernels.comparable(made_by, score, array, precision_of_new(made_by, precision, array))
    if new is made_by or new == made_by:
        return calibration, array
    origin.warn_of_coarse_rows(score, new)
    return calibration._others.made(new, lambda: raised(calibration, origin, new)), array


def raised(calibration: Calibration, origin: Origin, new: Arithmetic) -> Calibration:
    """The calibration with scores raised past the rounding of another arithmetic, which are compared as they are."""
    score, n_classes = calibration.score, calibration.n_classes
    higher, law = calibration.law.raised(calibration.scores, lambda part: origin.raised(part, score, n_classes, new))
    return replace(calibration, scores=convert.frozen(higher), law=law, origin=None)
