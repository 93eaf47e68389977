"""P-values of the labels of new rows: plain and smoothed, or each among the rows before it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evicp import kernels
from evicp.calibration.laws.law import at_labels
from evicp.calibration.levels import new_rows, raised
from evicp.calibration.smoothing import is_smoothed, steps_of, warn_of_lost_ties
from evicp.input import frames, validate
from evicp.input.classes import ClassAxis
from evicp.kernels.arithmetic import precision_of_new
from evicp.types import F64

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration


def p_values(calibration: Calibration, logits: Any, labels: Any, groups: Any, weights: Any, smoothed: Any) -> F64:
    """See `Calibration.p_values`."""
    score, smooth = calibration.score, is_smoothed(calibration.law, smoothed)
    own, array, of_rows = new_rows(calibration, logits, groups, weights, here=smooth, labels=labels, smoothed=smoothed)
    truth = None if labels is None else ClassAxis.known_to(calibration).row_labels(labels, logits, array)
    if not smooth:
        p: F64 = own.law.p_values_of(score, own.scores, array, truth, of_rows)
        return p
    warn_of_lost_ties(calibration, own)
    steps = steps_of(calibration, smoothed, array)
    if truth is None:
        new = kernels.dense_scores(score, array)
        return own.law.smoothed_p_values(own.scores, new, of_rows, steps[:, None])
    new = kernels.label_scores(score, array, truth)
    return own.law.smoothed_p_values(own.scores, new, at_labels(of_rows, truth), steps)


def online_p_values(calibration: Calibration, logits: Any, labels: Any) -> F64:
    """See `Calibration.p_values_online`."""
    score, n_classes, origin = calibration.score, calibration.n_classes, calibration.origin
    frames.same_rows(logits=logits, labels=labels)
    array = validate.as_logits(logits, n_classes, row_allowed=True, keep_bfloat16=True)
    classes = ClassAxis.known_to(calibration)
    classes.check(logits)
    truth = classes.row_labels(labels, logits, array)
    if origin is None:
        scores = kernels.label_scores(score, array, truth)
        return calibration.law.online_p_values(calibration.scores, scores, scores)
    precision = precision_of_new(origin.arithmetic, logits, array)
    array, new = kernels.comparable(origin.arithmetic, score, array, precision)
    scores = kernels.label_scores(score, array, truth)
    if new == origin.arithmetic:
        return calibration.law.online_p_values(calibration.scores, scores, scores)
    both = replace(origin, arithmetic=origin.arithmetic | new)  # as `extended` makes it
    own, joining = raised(calibration, both, new), both.raised(scores, score, n_classes, new)
    return calibration.law.online_p_values(own.scores, scores, joining)
