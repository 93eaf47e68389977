"""New rows of a calibration: checked, made comparable with the calibration rows; their sets and p-values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.laws.law import at_labels
from evicp.calibration.levels import Level, level_of, levels_of, warn_of_request
from evicp.calibration.limits import within
from evicp.calibration.origin import Origin
from evicp.calibration.smoothing import is_smoothed, steps_of, warn_of_lost_ties
from evicp.calibration.suspicious import warn_of, warn_of_new_rows
from evicp.calibration.ties import warn_of_near_ties
from evicp.errors import InputError
from evicp.input import convert, frames, validate
from evicp.input.classes import ClassAxis
from evicp.kernels.arithmetic import Arithmetic, precision_of_new
from evicp.sets import AboutSets, PredictionSets, filled_with, sets_of, with_ids
from evicp.types import F64, I64

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration


class Request(NamedTuple):
    """New rows as a user gives them, and the sets that are wanted of them: see `Calibration.predict`."""

    logits: Any
    groups: Any = None
    weights: Any = None
    allow_empty: bool = True
    smoothed: Any = False


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
    logits = logits if on_cpu else convert.adopted(logits)
    if not (on_cpu and groups is weights is None and not others):
        frames.same_rows(logits=logits, groups=groups, weights=weights, **others)
    if on_cpu or here or kernels.on_device(score, logits) is None:
        array: Any = validate.as_logits(logits, n_classes, row_allowed=True, keep_bfloat16=True)
        if not on_cpu:
            ClassAxis.known_to(calibration).check(logits)
    else:
        array = validate.as_device_logits(logits, n_classes, row_allowed=True)
    if groups is not None or weights is not None:
        calibration.law.kind.refuse_others(groups, weights)
    own, array = comparable(calibration, logits, array)
    return own, array, own.law.of_rows(score, array, groups, weights)


def comparable(calibration: Calibration, logits: Any, array: Any) -> tuple[Calibration, Any]:
    """The calibration, and new logits, as they were given and checked, such that their scores can be compared."""
    origin, score = calibration.origin, calibration.score
    if origin is None:
        return calibration, array
    made_by = origin.arithmetic
    array, new = kernels.comparable(made_by, score, array, precision_of_new(made_by, logits, array))
    if new is made_by or new == made_by:
        return calibration, array
    origin.warn_of_coarse_rows(score, new)
    return calibration._others.made(new, lambda: raised(calibration, origin, new)), array


def raised(calibration: Calibration, origin: Origin, new: Arithmetic) -> Calibration:
    """The calibration with scores raised past the rounding of another arithmetic, which are compared as they are."""
    score, n_classes = calibration.score, calibration.n_classes
    higher, law = calibration.law.raised(calibration.scores, lambda part: origin.raised(part, score, n_classes, new))
    return replace(calibration, scores=convert.frozen(higher), law=law, origin=None)


# ---------------------------------------------------------------------------------------------------------------
# Sets


def predict(calibration: Calibration, coverage: Any, confidence: Any, request: Request) -> Any:
    """The sets of new rows at one coverage, or a list of them at several."""
    results = sets_at(calibration, levels_of(calibration, coverage, confidence), request)
    if type(request.logits) is not np.ndarray and (ids := frames.ids_of(request.logits)) is not None:
        results = [with_ids(sets, ids) for sets in results]
    return results[0] if type(coverage) is float or not validate.is_many(coverage) else results


def sets_at(calibration: Calibration, levels: list[Level], request: Request) -> list[PredictionSets]:
    """The sets of new rows at each level."""
    if request.smoothed is not False and is_smoothed(calibration.law, request.smoothed):
        return _smoothed_sets(calibration, levels, request)
    if levels[0].is_suspicious or len(levels) > 1:
        warn_of_request(levels, can_smooth=calibration.law.refusal("smoothed sets") is None)
    own, array, of_rows = new_rows(calibration, request.logits, request.groups, request.weights)
    abouts, limits = [], []
    for level in levels:
        abouts.append(level.about)
        same = own is calibration
        limits.append(_limit(own, level if same else level_of(own, level.coverage, level.confidence), of_rows))
        if level.about.tied and same and isinstance(array, np.ndarray):
            warn_of_near_ties(own.score, own.scores, level.values.item(), array)
    return _within(calibration, array, limits, abouts, request.allow_empty)


def _limit(own: Calibration, level: Level, of_rows: NDArray[Any]) -> float | F64:
    """The threshold of each label of each row, with warnings of what is wrong with it."""
    if level.cautions:
        warn_of(*level.cautions)
    return own.law.limit(own.scores, level.coverage, level.values, of_rows)


def _smoothed_sets(calibration: Calibration, levels: list[Level], request: Request) -> list[PredictionSets]:
    _check_smoothed(calibration, levels)
    warn_of_request(levels, ties=False)
    own, array, of_rows, steps = _smoothed_rows(calibration, request)
    warn_of_lost_ties(calibration, own)
    for level in levels:
        if own is calibration and own.law.refusal("one threshold") is None:
            warn_of_near_ties(own.score, own.scores, level.values.item(), array)
    limits = [own.law.smoothed_limit(own.scores, level.coverage, of_rows, steps) for level in levels]
    abouts = [replace(level.about, smoothed=True, tied=False) for level in levels]
    return _within(calibration, array, limits, abouts, request.allow_empty)


def _check_smoothed(calibration: Calibration, levels: list[Level]) -> None:
    if levels[0].confidence is not None:
        raise InputError("confidence needs the Beta law, which smoothed sets do not follow; leave one of them out.")
    calibration.law.require("smoothed sets")


def _smoothed_rows(calibration: Calibration, request: Request) -> tuple[Calibration, Any, NDArray[Any], I64]:
    """What `new_rows` returns, of rows on the CPU, and the random step of each row."""
    logits, groups, weights, _, smoothed = request
    rows = new_rows(calibration, logits, groups, weights, here=True, smoothed=smoothed)
    return *rows, steps_of(calibration, smoothed, rows[1])


def limits_of_row(
    calibration: Calibration, coverage: Any, confidence: float | None, request: Request
) -> tuple[NDArray[Any], float | F64]:
    """One row, checked, and the threshold of each of its labels, as `sets_at` has them."""
    level = calibration.at(coverage, confidence).level
    if request.smoothed is False or not is_smoothed(calibration.law, request.smoothed):
        own, row, of_rows = new_rows(calibration, request.logits, request.groups, request.weights, here=True)
        return row, _limit(own, level_of(own, level.coverage, level.confidence), of_rows)
    _check_smoothed(calibration, [level])
    own, row, of_rows, steps = _smoothed_rows(calibration, request)
    return row, own.law.smoothed_limit(own.scores, level.coverage, of_rows, steps)


def sets_at_level(
    calibration: Calibration, level: Fraction, about: AboutSets, confidence: float | None, request: Request
) -> PredictionSets:
    """Sets at a level that an adaptive method has moved away from the coverage they remember.

    A level of 1 or more gives full sets, one of 0 or less empty ones.
    """
    own, array, of_rows = new_rows(calibration, request.logits, request.groups, request.weights)
    limit: float | F64 = np.inf if level > 0 else -np.inf
    if 0 < level < 1:
        limit = _limit(own, own.at(level, confidence).level, of_rows)
    return _within(calibration, array, [limit], [about], request.allow_empty)[0]


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
    score, here = calibration.score, isinstance(array, np.ndarray)
    if not here:
        found = kernels.ragged_within(score, array, limits)
    elif len(limits) == 1:
        found = [kernels.ragged_labels(score, array, limits[0])]
    else:
        loosest = kernels.ragged_sets(score, array, reduce(np.maximum, limits))
        found = [within(loosest, np.asarray(limit))[:2] for limit in limits]
    made = sets_of if here else device_sets
    results: list[Any] = [made(about, *ragged) for about, ragged in zip(abouts, found, strict=True)]
    if not allow_empty:
        top = kernels.top_labels(score, array)
        results = [filled_with(sets, top) if here else sets.filled_with(top) for sets in results]
    return results


def device_sets(about: AboutSets, offsets: Any, labels: Any) -> Any:
    """Sets on an accelerator."""
    from evicp.calibration.device import DeviceSets

    return DeviceSets(offsets, labels, about)


# ---------------------------------------------------------------------------------------------------------------
# P-values


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
