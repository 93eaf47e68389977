"""Prediction sets of new rows: scored by a backend, within the thresholds of a law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.comparing import comparable
from evicp.calibration.levels import Level, level_of, warn_of_request
from evicp.calibration.limits import ragged_within
from evicp.calibration.smoothing import is_smoothed, steps_of, warn_of_lost_ties
from evicp.calibration.suspicious import warn_of, warn_of_new_rows
from evicp.calibration.ties import warn_of_near_ties
from evicp.errors import InputError
from evicp.input import frames, validate
from evicp.input.classes import ClassAxis
from evicp.kernels.arithmetic import precision_of
from evicp.sets import AboutSets, PredictionSets, filled_with, sets_of
from evicp.types import F64

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration


def new_rows(
    calibration: Calibration,
    logits: Any,
    groups: Any = None,
    weights: Any = None,
    *,
    here: bool = False,
    **others: Any,
) -> tuple[Calibration, Any, NDArray[Any]]:
    """The calibration and new rows, checked, such that scores can be compared; and what decides their thresholds.

    The rows are an array, or a tensor that stays on its accelerator; the last is what the law has `of_rows`.

    Parameters
    ----------
    calibration : the calibration
    logits, groups, weights : as they were given
    here : whether tensors on an accelerator are brought to the CPU
    others : what else belongs to the rows
    """
    score, n_classes, on_cpu = calibration.score, calibration.n_classes, isinstance(logits, np.ndarray)
    if not (on_cpu and groups is weights is None and not others):
        frames.same_rows(logits=logits, groups=groups, weights=weights, **others)
    if on_cpu or here or kernels.on_device(score, logits) is None:
        array: Any = validate.as_logits(logits, n_classes, row_allowed=True, keep_bfloat16=True)
        precision = precision_of(logits, array)
        if not on_cpu:
            ClassAxis.known_to(calibration).check(logits)
    else:
        array = validate.as_device_logits(logits, n_classes, row_allowed=True)
        precision = precision_of(array)
    own, array = comparable(calibration, array, precision)
    return own, array, own.law.of_rows(score, array, groups, weights)


def sets_at(
    calibration: Calibration,
    levels: list[Level],
    logits: Any,
    groups: Any,
    weights: Any,
    allow_empty: bool,
    smoothed: Any,
) -> list[PredictionSets]:
    """The sets of new rows at each level; the other arguments are those of `Calibration.predict`."""
    if smoothed is not False and is_smoothed(calibration.law, smoothed):
        return _smoothed_sets(calibration, levels, logits, groups, weights, allow_empty, smoothed)
    if levels[0].is_suspicious or len(levels) > 1:
        warn_of_request(levels, can_smooth=calibration.law.refusal("smoothed sets") is None)
    own, array, of_rows = new_rows(calibration, logits, groups, weights)
    abouts, limits = [], []
    for level in levels:
        abouts.append(level.about)
        same = own is calibration
        limits.append(_limit(own, level if same else level_of(own, level.coverage, level.confidence), of_rows))
        if level.about.tied and same and isinstance(array, np.ndarray):
            warn_of_near_ties(own.score, own.scores, level.values.item(), array)
    return _within(calibration, array, limits, abouts, allow_empty)


def _limit(own: Calibration, level: Level, of_rows: NDArray[Any]) -> float | F64:
    """The threshold of each label of each row, with warnings of what is wrong with it."""
    if level.cautions:
        warn_of(*level.cautions)
    return own.law.limit(own.scores, level.coverage, level.values, of_rows)


def _smoothed_sets(
    calibration: Calibration,
    levels: list[Level],
    logits: Any,
    groups: Any,
    weights: Any,
    allow_empty: bool,
    smoothed: Any,
) -> list[PredictionSets]:
    _check_smoothed(calibration, levels)
    warn_of_request(levels, ties=False)
    own, array, of_rows = new_rows(calibration, logits, groups, weights, here=True, smoothed=smoothed)
    warn_of_lost_ties(calibration, own)
    for level in levels:
        if own is calibration and own.law.refusal("one threshold") is None:
            warn_of_near_ties(own.score, own.scores, level.values.item(), array)
    steps = steps_of(calibration, smoothed, array)
    limits = [own.law.smoothed_limit(own.scores, level.coverage, of_rows, steps) for level in levels]
    abouts = [replace(level.about, smoothed=True, tied=False) for level in levels]
    return _within(calibration, array, limits, abouts, allow_empty)


def _check_smoothed(calibration: Calibration, levels: list[Level]) -> None:
    if levels[0].confidence is not None:
        raise InputError("confidence needs the Beta law, which smoothed sets do not follow; leave one of them out.")
    calibration.law.require("smoothed sets")


def limits_of_row(
    calibration: Calibration,
    logits_row: Any,
    coverage: Any,
    confidence: float | None,
    groups: Any,
    weights: Any,
    smoothed: Any,
) -> tuple[NDArray[Any], float | F64]:
    """One row, checked, and the threshold of each of its labels, as `sets_at` has them.

    Parameters
    ----------
    calibration : the calibration
    logits_row, coverage, confidence, groups, weights, smoothed : as for `Calibration.predict`
    """
    level = calibration.at(coverage, confidence).level
    if smoothed is False or not is_smoothed(calibration.law, smoothed):
        own, row, of_rows = new_rows(calibration, logits_row, groups, weights, here=True)
        return row, _limit(own, level_of(own, level.coverage, level.confidence), of_rows)
    _check_smoothed(calibration, [level])
    own, row, of_rows = new_rows(calibration, logits_row, groups, weights, here=True, smoothed=smoothed)
    steps = steps_of(calibration, smoothed, row)
    return row, own.law.smoothed_limit(own.scores, level.coverage, of_rows, steps)


def sets_at_levels(
    calibration: Calibration,
    logits: Any,
    levels: Sequence[Fraction],
    abouts: Sequence[AboutSets],
    *,
    confidence: float | None = None,
    groups: Any = None,
    weights: Any = None,
    allow_empty: bool = True,
) -> list[PredictionSets]:
    """Sets at levels that an adaptive method has moved away from the coverages they remember.

    A level of 1 or more gives full sets, one of 0 or less empty ones.
    """
    own, array, of_rows = new_rows(calibration, logits, groups, weights)
    limits: list[float | F64] = []
    for level in levels:
        inside = 0 < level < 1
        limits.append(
            _limit(own, own.at(level, confidence).level, of_rows) if inside else np.inf if level > 0 else -np.inf
        )
    return _within(calibration, array, limits, abouts, allow_empty)


def _within(
    calibration: Calibration,
    array: Any,
    limits: Sequence[float | F64],
    abouts: Sequence[AboutSets],
    allow_empty: bool,
) -> list[PredictionSets]:
    """The sets of checked rows within each limit; those of a tensor stay on its device."""
    if allow_empty is not True:
        validate.as_flag(allow_empty, "allow_empty")
    warn_of_new_rows(calibration.score, array)
    results: list[Any] = []
    for about, ragged in zip(abouts, ragged_within(calibration.score, array, limits), strict=True):
        results.append(sets_of(about, *ragged) if isinstance(array, np.ndarray) else _there(about, *ragged))
    if not allow_empty:
        top = kernels.top_labels(calibration.score, array)
        here = isinstance(array, np.ndarray)
        results = [filled_with(sets, top) if here else sets.filled_with(top) for sets in results]
    return results


def _there(about: AboutSets, offsets: Any, labels: Any) -> Any:
    """Sets on an accelerator."""
    from evicp.calibration.device import DeviceSets

    return DeviceSets(offsets, labels, about)
