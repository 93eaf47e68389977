"""Sets whose threshold depends on the label or on the row.

A limit is an array of thresholds that broadcasts to (m, K): (1, 1) for all, (1, K) for each label, (m, 1) for each row.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.hashes import bits_of, mix64
from evicp.calibration.ranks import rows_needed, threshold_rank
from evicp.errors import InputError, SmallCalibrationWarning, SuspiciousInputWarning
from evicp.input import convert, validate
from evicp.input.warn import warn
from evicp.method.scores import Score
from evicp.sets import PredictionSets
from evicp.types import F64, I32, I64

Ragged = tuple[I64, I32, F64]


def within(ragged: Ragged, limit: F64) -> Ragged:
    """The part of ragged sets within a tighter limit."""
    offsets, labels, scores = ragged
    kept = scores <= _limit_of_each(offsets, labels, limit)
    if kept.all():
        return ragged
    running = np.concatenate([[0], np.cumsum(kept)])
    return running[offsets], labels[kept], scores[kept]


def _limit_of_each(offsets: I64, labels: I32, limit: F64) -> F64 | float:
    if limit.size == 1:
        return float(limit.item())
    return limit[0, labels] if limit.shape[0] == 1 and limit.shape[1] > 1 else np.repeat(limit[:, 0], np.diff(offsets))


def set_sizes(score: Score, logits: NDArray[Any], thresholds: F64) -> I64:
    """The size of every row's set at every threshold, (*thresholds.shape, n), from one pass over the logits.

    The largest threshold's sets hold every other one's, so that only counts are left.
    """
    n, n_classes = logits.shape
    is_limit = thresholds < np.inf
    known, where = np.unique(thresholds[is_limit], return_inverse=True)
    sizes = np.full((thresholds.size, n), n_classes, np.int64)
    if known.size:
        offsets, _, scores = kernels.ragged_sets(score, logits, float(known[-1]))
        cell = np.repeat(np.arange(n) * known.size, np.diff(offsets)) + np.searchsorted(known, scores)
        counts = np.bincount(cell, minlength=n * known.size).reshape(n, known.size).cumsum(1)
        sizes[is_limit.ravel()] = counts.T[where.ravel()]
    return sizes.reshape(*thresholds.shape, n)


def at_labels(values: NDArray[Any], labels: I64 | None) -> NDArray[Any]:
    """What is known of each label, (1, K), or of each row, (n, 1), at one label of each row, (n,)."""
    if labels is None:
        return values
    return values[0, labels] if values.shape[1] > 1 else values[:, 0]


def fill_empty(sets: PredictionSets, top: I32) -> PredictionSets:
    """Give every empty set its top label."""
    empty = sets.sizes == 0
    sizes = np.where(empty, 1, sets.sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    labels = np.insert(sets.labels, sets.offsets[:-1][empty], top[empty])
    return replace(sets, offsets=offsets, labels=labels, filled=True)


def threshold(ascending: F64, coverage: Fraction, confidence: float | None = None) -> float:
    """The k-th smallest of sorted calibration scores; +inf, with a warning, where they are too few."""
    n = len(ascending)
    k = threshold_rank(n, coverage, confidence)
    if k <= n:
        if ascending[k - 1] == np.inf:
            warn_of_masked(ascending, coverage)
        return float(ascending[k - 1])
    sure = "" if confidence is None else f" with confidence {confidence:g}"
    warn(
        f"{n} calibration row(s) cannot promise coverage {float(coverage):g}{sure}: every set is full. "
        f"Calibrate on at least {rows_needed(coverage, confidence)} rows.",
        SmallCalibrationWarning,
    )
    return np.inf


def warn_of_masked(scores: F64, coverage: Fraction, outcome: str = "every set is full") -> None:
    """Full sets not because calibration rows are few, but because too many true labels score +inf.

    Parameters
    ----------
    scores : of the calibration rows that the thresholds are of
    coverage : that was asked for
    outcome : what comes of it
    """
    masked = int(np.sum(np.isposinf(scores)))
    if masked:
        warn(
            f"the true label scores +inf, as a masked one does (its logit is -inf), in {masked:,} of {len(scores):,} "
            f"calibration rows: at coverage {float(coverage):g} {outcome}. Check masks and labels, or ask for less.",
            SuspiciousInputWarning,
        )


# ---------------------------------------------------------------------------------------------------------------
# Smoothed p-values: ties with the calibration count by a random share u, a whole number of steps of 2^-24

_STEPS = 1 << 24

#: Apart from the numbers that randomised scores draw: u must be independent of a row's scores.
_SALT = 0x5EED0F75


def as_steps(smoothed: Any, seed: int, digest: int, logits: NDArray[Any]) -> I64:
    """u of each row in steps of 2^-24, from 1 to 2^24, (n,): rounded upward, so that coverage can only rise by it.

    Parameters
    ----------
    smoothed : True, for a function of the row's logits, in their order, of the seed and of the calibration rows; a
        random generator, for numbers from it; or (n,) numbers in [0, 1]
    seed : the score's
    digest : of the calibration rows. Equal rows share their number, but only within one calibration: over the draw of
        the calibration rows, on which coverage is an average, it is as good as a random one
    """
    if isinstance(smoothed, np.random.Generator):
        u = smoothed.random(len(logits))
    elif isinstance(smoothed, bool | np.bool_):
        salt = mix64(np.array([digest], np.uint64) ^ mix64(np.array([seed ^ _SALT], np.uint64)))
        u = np.concatenate([np.empty(0), *(_row_numbers(z, salt) for _, z in validate.blocks(logits))])
        _warn_of_equal_rows(u)
    else:
        u = convert.as_array(smoothed, "smoothed")
        if u.shape != (len(logits),) or u.dtype.kind != "f" or not np.all((u >= 0) & (u <= 1)):
            raise InputError(
                f"smoothed must be True, False, or {len(logits)} numbers in [0, 1], one per row; got dtype {u.dtype}, "
                f"shape {u.shape}. Draw them with numpy.random.default_rng(...).random({len(logits)})."
            )
    return np.minimum(np.floor(u.astype(np.float64) * _STEPS).astype(np.int64) + 1, _STEPS)


def _row_numbers(z: F64, salt: NDArray[np.uint64]) -> F64:
    """A number in [0, 1) for each row, (n,), from its logits and their places."""
    places = np.arange(1, z.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    rows = mix64(bits_of(z) + places).sum(1, dtype=np.uint64)
    return (mix64(rows ^ salt) >> np.uint64(40)).astype(np.float64) / _STEPS


def _warn_of_equal_rows(u: F64) -> None:
    """Rows of equal logits have one u, and one set: of few different rows, coverage in this batch varies more."""
    if len(u) >= 32 and 2 * len(np.unique(u)) < len(u):
        warn(
            "most rows have the same logits as another row, and share its random number: smoothed sets cover what was "
            "asked on average over calibrations, but these rows together may be covered more or less. For numbers of "
            "their own pass a generator: smoothed=numpy.random.default_rng(...).",
            SuspiciousInputWarning,
        )


def smoothed_p_values(above: I64, equal: I64, n: int | I64, steps: I64) -> F64:
    """(#{s_i > s} + u (1 + #{s_i = s})) / (n + 1)."""
    p: F64 = (above * _STEPS + steps * (1 + equal)) / (_STEPS * (n + 1.0))
    return p


def smoothed_limit(ascending: F64, coverage: Fraction, steps: I64) -> F64:
    """The threshold of each row, (m,): scores up to it are those whose smoothed p-value is above 1 - coverage.

    That is #{s_i > s} + u (1 + #{s_i = s}) > a, a = (n + 1)(1 - coverage), which falls in s. Between two neighbouring
    calibration scores it holds where at least m0 scores are above, m0 the smallest integer > a - u. On the m0-th
    largest score itself it may hold or not: the threshold is that score or the number just below.

    Parameters
    ----------
    ascending : (n,) calibration scores
    coverage : exactly
    steps : (m,) u of each row, in steps of 2^-24
    """
    n = len(ascending)
    most = floor((n + 1) * (1 - coverage) * _STEPS)  # whole numbers are above a if they are above this
    rank = (most - steps) // _STEPS + 1
    at = np.append(ascending, np.inf)[np.clip(n - rank, 0, n)]
    first, after = (np.searchsorted(ascending, at, side) for side in ("left", "right"))
    holds = (n - after) * _STEPS + steps * (1 + after - first) > most
    with np.errstate(over="ignore"):  # below the lowest number is nothing
        limit = np.where(holds, at, np.nextafter(at, -np.inf))
    if most < _STEPS:
        _warn_of_full_sets(n, coverage, most / _STEPS)
    result: F64 = np.where(rank <= 0, np.inf, np.where(rank > n, -np.inf, limit))
    if np.isposinf(result[rank > 0]).any():
        warn_of_masked(ascending, coverage)
    return result


def _warn_of_full_sets(n: int, coverage: Fraction, kept: float) -> None:
    warn(
        f"{n} calibration row(s) are few for coverage {float(coverage):g}: about {1 - kept:.0%} of the smoothed sets "
        f"are full, whatever the row. Calibrate on at least {rows_needed(coverage)} rows.",
        SmallCalibrationWarning,
    )


def online_p_values(ascending: F64, scores: F64, joining: F64) -> F64:
    """p_t = (1 + #{calibration and earlier rows with score >= s_t}) / (n + t), t = 1, 2, ...

    Parameters
    ----------
    ascending : (n,) calibration scores
    scores : (m,) scores of new rows, in the order in which they are tested and join
    joining : (m,) the scores with which they join: the same, or raised past rounding
    """
    n, t = len(ascending), np.arange(1, len(scores) + 1)
    known = n - np.searchsorted(ascending, scores, side="left")
    p: F64 = (1.0 + (known + _earlier_at_least(scores, joining))) / (n + t)
    return p


def _earlier_at_least(scores: F64, joining: F64) -> I64:
    """How many earlier entries of `joining` are at least as large as each score.

    Blocks of 1, 2, 4, ... entries are taken in pairs: all pairs are sorted at once, and each entry of a second block
    meets those of the first that are not smaller.
    """
    m, half = len(scores), 1
    place, counts = np.arange(m), np.zeros(m, np.int64)
    while half < m:
        pair, second = np.divmod(place // half, 2)
        order = np.lexsort((second, -np.where(second == 1, scores, joining), pair))
        met = np.cumsum(second[order] == 0) - pair[order] * half  # the first blocks of earlier pairs are full
        late = second[order] == 1
        counts[order[late]] += met[late]
        half *= 2
    return counts
