"""Kernels: one for each question.

`logits` is a C-contiguous block of float32 or float64 rows, padded with -inf to at least 16 columns; `values` is a
score's parameters, `wide`, `narrow` and `other` are those of `ways`. Each gives the first row it could not use, or -1.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from evicp.arrays import F64, I32, I64
from evicp.kernels._compiled.batches import (
    _columns_of,
    _is_certain,
    _label,
    _note_label,
    _row_at,
    _score_all,
    _score_labels,
    _take_batch,
)
from evicp.kernels._compiled.lanes import _CHUNK, LANES, _add, _exp, _lanes, _larger, _mul, _native, _sub
from evicp.kernels._compiled.limits import _SMALLEST_STABILIZER, _prepare_tests, _row_set_limits
from evicp.kernels._compiled.memory import _load
from evicp.kernels._compiled.parameters import _ECP, _LAC, _unpack, _unpack_one
from evicp.kernels._compiled.parts import _inlined, _kernel
from evicp.kernels._compiled.reductions import _at_least, _least, _lowest_bit, _most, _sum
from evicp.kernels._compiled.rows import _dirichlet, _log1p, _needs_rank, _other_evidence, _sums, _survey
from evicp.kernels._compiled.sets import _row_set, _sort_set, _unpack_scratch
from evicp.kernels._compiled.small import _find_cuts, _flag_candidates, _hand_over_small, _score_tops, _take_candidates
from evicp.kernels._compiled.within import _row_within, _unpack_notes


@_kernel
def label_kernel(logits: Any, labels: Any, wide: Any, narrow: Any, other: Any, batch: Any, scores: F64) -> int:
    p, b = _unpack_one(wide, narrow, other), _columns_of(logits, batch)
    start: Any = np.int64(0)
    while start < len(logits):
        stop, bad = _take_batch(b, logits, start, p, wide, narrow, other, labels)
        if bad >= 0:
            return bad
        if wide is not None:
            for i in range(start, stop):
                row, j = logits[i], i - start
                _note_label(b, j, _label(row, p, _row_at(b, j), row[labels[i]], b.rank[j], other))
        _score_labels(b, p, stop - start, other)
        for i in range(start, stop):
            scores[i] = b.score[i - start]
        start = stop
    return -1


@_inlined
def _hand_over(members: I64, own: F64, size: int, used: int, labels: I32, scores: F64) -> None:
    """Put a set after what is used already, with its scores unless there is no room for any."""
    for k in range(size):
        labels[used + k] = members[k]
    if len(scores) > 0:
        for k in range(size):
            scores[used + k] = own[k]


@_kernel
def set_kernel(
    logits: Any,
    first: int,
    wide: Any,
    narrow: Any,
    other: Any,
    thresholds: F64,
    batch: Any,
    floats: F64,
    wholes: I64,
    ends: I64,
    labels: I32,
    scores: F64,
) -> tuple[int, int, int]:
    """The sets of the rows from `first` on, as many as there is room for. `thresholds` is one for all or for each row.

    `ends` gets where each row's set ends in `labels`. `scores` is as long as those, or empty if nobody asks for them.
    Returns the first row not done, how much room was used, and the first row that could not be used.
    """
    p, b, room, start = (
        _unpack_one(wide, narrow, other),
        _columns_of(logits, batch),
        _unpack_scratch(floats, wholes),
        first,
    )
    used: Any = np.int64(0)
    while start < len(logits):
        stop, bad = _take_batch(b, logits, start, p, wide, narrow, other, None)
        if bad >= 0:
            return bad, used, bad
        _find_cuts(b, logits[start], p, thresholds, start, stop)
        if narrow is not None:
            _flag_candidates(b, logits[start], p, stop - start)
            _score_tops(b, p, stop - start)
        ready = start  # the first row whose candidates have not been scored
        for i in range(start, stop):
            if i == ready and p.has_cuts:
                ready = _take_candidates(b, logits, start, i, stop, p, wide, narrow, room)
            size = _hand_over_small(b, i - start, used, labels, scores) if i < ready else -1
            if size >= 0:
                used += size
                ends[i] = used
                continue
            size, ready = _row_set(b, i - start, logits[i], p, b.threshold[i - start], room, other), _most(ready, i + 1)
            if used + size > len(labels):
                return i, used, -1
            _sort_set(room, size)
            _hand_over(room.members, room.scores, size, used, labels, scores)
            used += size
            ends[i] = used
        start = stop
    return len(logits), used, -1


@_kernel
def limit_kernel(
    logits: Any,
    first: int,
    wide: Any,
    narrow: Any,
    other: Any,
    limits: F64,
    needs: Any,
    loosest: F64,
    tight: float,
    demands: Any,
    batch: Any,
    floats: F64,
    wholes: I64,
    notes: Any,
    ends: I64,
    labels: I32,
    scores: F64,
) -> tuple[int, int, int]:
    """As `set_kernel`, with a limit for each label, of which `loosest` holds the largest.

    `needs` are those of `_bound_ranks`, `tight` and `demands` those of `_row_set_limits`.
    """
    p, b, room, start = (
        _unpack_one(wide, narrow, other),
        _columns_of(logits, batch),
        _unpack_scratch(floats, wholes),
        first,
    )
    c = _unpack_notes(notes)
    can_do_without = p.has_cuts and (p.kind == _LAC or p.stabilizer >= _SMALLEST_STABILIZER)
    used: Any = np.int64(0)
    while start < len(logits):
        stop, bad = _take_batch(b, logits, start, p, wide, narrow, other, None)
        if bad >= 0:
            return bad, used, bad
        _prepare_tests(b, p, stop - start)
        _find_cuts(b, logits[start], p, loosest, start, stop)
        if narrow is not None:
            _flag_candidates(b, logits[start], p, stop - start)
        for i in range(start, stop):
            row, j, size, members = logits[i], i - start, -1, room.sorted_labels
            is_certain = p.kind == _ECP and _is_certain(b, j)  # tests of costs do not know such rows
            if can_do_without and len(scores) == 0 and not is_certain:
                size = _row_within(b, j, row, p, narrow, limits, needs, demands, room, c)
            if size < 0:
                members = room.members
                size = _row_set_limits(b, j, row, p, limits, inf if is_certain else tight, demands, room, other)
                _sort_set(room, size)
            if used + size > len(labels):
                return i, used, -1
            _hand_over(members, room.scores, size, used, labels, scores)
            used += size
            ends[i] = used
        start = stop
    return len(logits), used, -1


@_kernel
def uncertainty_kernel(logits: Any, values: F64, result: F64) -> int:
    """Eq. 3: u = K / alpha_0 of each row."""
    p = _unpack(values)
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row, None, i, 0.0)
        if not survey.usable:
            return i
        rest = _other_evidence(row, p.evidence, survey.top) + (p.n_classes - 1.0)
        result[i] = p.n_classes / (_dirichlet(p.evidence, np.float64(survey.top), values) + rest)
    return -1


@_kernel
def dense_kernel(
    logits: Any, wide: Any, narrow: Any, other: Any, batch: Any, floats: F64, wholes: I64, scores: F64
) -> int:
    p, b, room, start = _unpack_one(wide, narrow, other), _columns_of(logits, batch), _unpack_scratch(floats, wholes), 0
    while start < len(logits):
        stop, bad = _take_batch(b, logits, start, p, wide, narrow, other, None)
        if bad >= 0:
            return bad
        for i in range(start, stop):
            if _needs_rank(p.kind):
                for k in range(_row_set(b, i - start, logits[i], p, inf, room, other)):
                    scores[i, room.members[k]] = room.scores[k]
            else:
                _score_all(b, i - start, logits[i], p, scores[i], other)
        start = stop
    return -1


@_kernel
def top_kernel(logits: Any, labels: I32) -> int:
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row, None, i, 0.0)
        if not survey.usable:
            return i
        for start in range(0, len(row), LANES):
            bits = _at_least(_load(row, start), survey.top)
            if bits != 0:
                labels[i] = _least(start, len(row) - LANES) + _lowest_bit(bits)
                break
    return -1


@_inlined
def _moments(row: Any, top: Any, rate: Any, total: float) -> tuple[float, float]:
    """Mean and variance of z - top under softmax(rate z)."""
    floor, mean, variance = _native(row, -80.0 / np.float64(rate)), 0.0, 0.0
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, _least(start + _CHUNK, len(row)), LANES):
            z = _larger(_sub(_load(row, i), top), floor)
            part = _add(part, _mul(_exp(_mul(z, rate)), z))
        mean += _sum(part) / total
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, _least(start + _CHUNK, len(row)), LANES):
            z = _larger(_sub(_load(row, i), top), floor)
            deviation = _sub(z, _native(row, mean))
            part = _add(part, _mul(_exp(_mul(z, rate)), _mul(deviation, deviation)))
        variance += _sum(part) / total
    return mean, variance


@_kernel
def likelihood_kernel(logits: Any, labels: Any, inverse_temperature: float, batch: Any, result: F64) -> int:
    """Columns: -ln p of the label, its first and second derivative, the largest probability, whether the label's."""
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row, None, i, 0.0)
        if not survey.usable:
            return i
        rate = _native(row, inverse_temperature)
        exponentials = _sums(row, survey.top, rate, None, _columns_of(logits, batch)).exponentials
        mean, variance = _moments(row, survey.top, rate, 1.0 + exponentials)
        z = np.float64(row[labels[i]]) - survey.top
        result[i, 0] = _log1p(exponentials) - inverse_temperature * z
        result[i, 1] = mean - z
        result[i, 2] = variance
        result[i, 3] = 1.0 / (1.0 + exponentials)
        result[i, 4] = z == 0.0
    return -1


@_kernel
def widen_kernel(half: Any, single: Any) -> None:
    """Float16, given as its bits, to float32, exactly."""
    for i in range(len(half)):
        bits = np.uint32(half[i])
        magnitude = np.uint32(bits & np.uint32(0x7FFF)) << np.uint32(13)
        # Read as float32 the value is 2^112 too small, subnormals included; infinities and NaNs keep their mantissa.
        scaled = np.float32(np.uint32(magnitude).view(np.float32) * np.float32(2.0**112)).view(np.uint32)
        special = np.uint32(magnitude | np.uint32(0x7F800000))
        finite = magnitude < np.uint32(0x0F800000)
        sign = np.uint32(bits & np.uint32(0x8000)) << np.uint32(16)
        single[i] = np.uint32(np.uint32(scaled if finite else special) | np.uint32(sign)).view(np.float32)
