"""Prediction sets of tensors that come again and again in one shape: what is checked once is remembered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from evicp import kernels
from evicp.calibration.levels import level_of, levels_of
from evicp.calibration.new_rows import Request, comparable, device_sets
from evicp.calibration.suspicious import warn_of_new_rows
from evicp.input import convert, validate
from evicp.sets import AboutSets

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration

#: So many plans are kept by a calibration: each holds memory of the device.
_MOST = 8


def planned_sets(calibration: Calibration, coverage: Any, confidence: Any, request: Request) -> Any:
    """The sets of a tensor on an accelerator by what an earlier call with one like it has prepared.

    None where nothing can be prepared: of anything else; where a law has more than one threshold; and where there is
    something to round, or to warn of each time.
    """
    logits, groups, weights, allow_empty, smoothed = request
    if not (groups is weights is None and allow_empty is True and smoothed is False):
        return None
    if not convert.is_on_device(logits) or logits.layout != sys.modules["torch"].strided:
        return None
    if type(coverage) is not float or not (confidence is None or type(confidence) is float):
        return None
    key = coverage, confidence, logits.shape, logits.stride(), logits.dtype, logits.device
    plans = calibration._plans
    found = plans.get(key)
    if found is None:
        if len(plans) >= _MOST:
            plans.clear()
        found = plans[key] = _plan(calibration, logits, coverage, confidence)
    plan, about = found
    if plan is None:
        return None
    logits = logits.detach()
    offsets, labels, odd = plan.sets(logits)
    if odd:
        warn_of_new_rows(calibration.score, logits)
    return device_sets(about, offsets, labels)


def _plan(calibration: Calibration, logits: Any, coverage: float, confidence: float | None) -> tuple[Any, AboutSets]:
    """A plan for tensors like this one, or None, and what its sets remember."""
    (level,) = levels_of(calibration, coverage, confidence)
    score, law = calibration.score, calibration.law
    backend = kernels.on_device(score, logits)
    simple = law.refusal("one threshold") is None and not level.is_suspicious and not level.cautions
    if backend is None or not simple or logits.ndim != 2:
        return None, level.about
    array = validate.as_device_logits(logits, calibration.n_classes)
    own, rounded = comparable(calibration, logits, array)
    if rounded is not array:
        return None, level.about
    values = level.values if own is calibration else level_of(own, level.coverage, level.confidence).values
    return backend.sets_plan(score, array, float(values.item())), level.about
