"""Small sets.

Where a threshold can be turned into a logit, all candidates of a row are known before any is scored; if they are few,
those of many rows are scored side by side.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from evicp.arrays import F64, I32
from evicp.kernels._compiled.batches import (
    _BATCH,
    _FLAGS,
    _MOST,
    _SIDE,
    _SLOTS,
    _WORD,
    _at,
    _label_at,
    _note_candidate,
    _row_at,
    _score_plain,
)
from evicp.kernels._compiled.lanes import (
    LANES,
    _add,
    _add_whole,
    _exp,
    _fma,
    _if_above,
    _larger,
    _mul,
    _native,
    _relu,
    _rough_log,
    _smaller,
    _sub,
)
from evicp.kernels._compiled.limits import _LARGEST_ALPHA_0, _ROUGHLY, _cost
from evicp.kernels._compiled.memory import _load_whole, _store
from evicp.kernels._compiled.parameters import _LAC, _Parameters
from evicp.kernels._compiled.parts import _inlined
from evicp.kernels._compiled.reductions import _count_bits, _least, _no_counts, _one_more_at_least, _whole
from evicp.kernels._compiled.rows import _lac_value, _Row
from evicp.kernels._compiled.sets import _SLACK, _find_at_least, _note_bits, _note_keys, _Scratch, _sort_few

#: How much less than a logarithm `_rough_log` may be, with what rounding in float32 takes.
_LOG_ERROR = 0.061
#: What float32 holds without losing digits, with room for sums.
_SMALLEST, _LARGEST_DEMAND = 1e-30, 1e30
#: Of rows whose candidates are flagged, those with at most so many are not looked at more closely.
_FEW_FLAGS = 20
#: How often the interval in which a cut lies is halved.
_HALVINGS = 5


@_inlined
def _demand(threshold: float) -> float:
    """What a threshold asks of labels, e^-t, or less."""
    return _exp(_smaller(_larger(-threshold, -700.0), 700.0)) * (1.0 - _ROUGHLY)


@_inlined
def _halve_cuts(b: Any, j: int, row: Any, p: _Parameters) -> None:
    """Cuts of the 16 rows from number j of a batch on, for ECP: between the lowest logit and the top, halved in lanes.

    With a label's surprisal I and a threshold t, it is beyond if (utility + stabilizer) max_v C_v < e^-t I at rank 0,
    and so are all below it. Logarithms are rough, and err towards a lower cut, as does all rounding.
    """
    cut, top = _native(row, _load_whole(b.low, j)), _native(row, _load_whole(b.top, j))
    step, demand = _sub(top, cut), _native(row, _load_whole(b.demand, j))
    share, total = _native(row, _load_whole(b.inverse_alpha_0, j)), _native(row, _load_whole(b.exponentials, j))
    rate, one, two = _native(row, (1.0 - _ROUGHLY) * p.rate), _native(row, 1.0), _native(row, -2.0)
    total = _add(total, one)  # relative to the top's probability
    for _ in range(_HALVINGS):
        step = _mul(step, _native(row, 0.5))
        z = _add(cut, step)
        logarithm = _rough_log(_mul(_add(_relu(z), one), share))
        surprisal = _sub(_mul(logarithm, _native(row, -1.0)), _native(row, _LOG_ERROR))
        least = _sub(_mul(surprisal, demand), _native(row, p.stabilizer))
        most = _fma(surprisal, two, _mul(_sub(z, top), rate))
        is_beyond = _if_above(_if_above(step, _rough_log(_mul(least, total)), most), least, _native(row, _SMALLEST))
        cut = _add(cut, is_beyond)
    _store(b.cut, j, cut)


@_inlined
def _find_cuts(b: Any, row: Any, p: _Parameters, thresholds: F64, start: int, stop: int) -> None:
    """For each row of a batch its threshold, and a logit below which no label is within it; -inf where that is +inf.

    LAC's score is the logit but for constants.
    """
    for j in range(stop - start):
        b.threshold[j] = thresholds[_least(start + j, len(thresholds) - 1)]
    if p.kind == _LAC:
        for j in range(stop - start):
            t, total = p.temperature * b.threshold[j], p.temperature * b.log_total[j]
            slack = _SLACK * (abs(b.top[j]) + total + abs(t))
            b.cut[j] = b.top[j] + total - t - slack  # NaN, which no label reaches, where t is -inf
    elif p.has_cuts:
        same = _demand(thresholds[0])
        if len(thresholds) > 1:
            for j in range(stop - start):
                b.demand[j] = _demand(b.threshold[j])
        for j in range(stop - start):
            demand = (b.demand[j] if len(thresholds) > 1 else same) / _cost(b, j, p)
            is_huge = b.inverse_alpha_0[j] * _LARGEST_ALPHA_0 < 1.0  # too much for single precision: all are candidates
            b.demand[j] = 0.0 if is_huge else _smaller(_LARGEST_DEMAND, demand)
        for j in range(0, stop - start, LANES):
            _halve_cuts(b, j, row, p)
    for j in range(stop - start):
        b.cut[j] = -inf if b.threshold[j] == inf else b.cut[j]


@_inlined
def _flag_candidates(b: Any, row: Any, p: _Parameters, count: int) -> None:
    """For each row of a batch of turned ones, flag the labels that reach its cut."""
    for j in range(0, count, LANES):
        cut = _native(row, _load_whole(b.cut, j))
        for first in range(0, p.n_classes, _WORD):
            _store(b.flags, (first // _FLAGS + 1) * _BATCH + j, _no_counts(row))
        for first in range(0, p.n_classes, _FLAGS):
            flags = _no_counts(row)
            for k in range(_least(first + _FLAGS, p.n_classes) - 1, first - 1, -1):
                flags = _one_more_at_least(_add_whole(flags, flags), _load_whole(b.turned, _at(j, k, p.n_classes)), cut)
            _store(b.flags, first // _FLAGS * _BATCH + j, flags)
    for j in range(count):
        b.few[j], b.some[j], b.many[j] = b.cut[j], b.low[j], b.low[j]


@_inlined
def _flags_at(b: Any, j: int, first: int) -> Any:
    """The flags of row j for the labels from number `first` on, in a word."""
    place = first // _FLAGS * _BATCH + j
    low = np.uint64(b.flags[place]) & np.uint64((1 << _FLAGS) - 1)
    return low | (np.uint64(b.flags[place + _BATCH]) << np.uint64(_FLAGS))


@_inlined
def _count_flags(b: Any, j: int, p: _Parameters) -> int:
    count = 0
    for first in range(0, p.n_classes, _WORD):
        count += _count_bits(_flags_at(b, j, first))
    return count


@_inlined
def _gather_flagged(b: Any, j: int, p: _Parameters, room: _Scratch) -> int:
    """As `_find_at_least`, of the labels flagged in row j."""
    count: Any = np.int64(0)
    for first in range(0, p.n_classes, _WORD):
        count = _note_bits(room.labels, count, first, _flags_at(b, j, first), 2)
    return count


@_inlined
def _note_few(c: Any, first: int, s: _Row, room: _Scratch, count: int) -> None:
    """Note the sorted candidates of a row from number `first` on; no label above them is missing."""
    keys, rank = room.sorted_keys, 0
    for k in range(count):
        rank = rank if k > 0 and keys[k] == keys[k - 1] else k
        _note_candidate(c, first + k, s, room.sorted_labels[k], 0.0 - keys[k], rank)


@_inlined
def _score_few(c: Any, p: _Parameters, count: int) -> None:
    """The scores of the candidates noted."""
    count = (count + _SIDE - 1) // _SIDE * _SIDE  # also some that are not there: a whole number of vectors
    if p.is_plain:
        _score_plain(c, p, count)
    else:
        for m in range(count):
            c.score[m] = _lac_value(p, _row_at(c, m), _label_at(c, m))


@_inlined
def _score_tops(b: Any, p: _Parameters, count: int) -> None:
    """The scores of the top labels of a batch: of many narrow rows they are the only candidates."""
    for j in range(count):
        b.z[j], b.label_alpha[j], b.rank[j] = b.top[j], b.alpha[j], 0.0
    _score_few(b, p, count)
    for j in range(count):  # of which the first are soon others'
        b.top_score[j] = b.score[j]


@_inlined
def _take_candidates(
    b: Any, logits: Any, start: int, first: int, stop: int, p: _Parameters, wide: Any, narrow: Any, room: _Scratch
) -> int:
    """Score the candidates of the rows from `first` on, in a batch that begins at `start`; returns the row after.

    That is the first row with too many candidates, or the one where there was no room left.
    """
    c, i = b.candidates, first
    filled: Any = np.int64(0)
    while i < stop and filled <= _SLOTS - _MOST:
        row, j, count = logits[i], i - start, _MOST + 1
        if narrow is not None:
            count = _gather_flagged(b, j, p, room)
        if wide is not None:  # noqa: SIM102 - what leaves a way out is a condition of its own
            if not b.cut[j] < b.many[j]:
                count = _find_at_least(row, p.n_classes, _native(row, b.cut[j]), _native(row, inf), room)
        if count > _MOST:
            break
        if narrow is not None and count == 1:  # the top, which is scored already
            b.begin[j], b.end[j] = -1.0, room.labels[0]
            i += 1
            continue
        if count == 1:
            _note_candidate(c, filled, _row_at(b, j), room.labels[0], np.float64(row[room.labels[0]]), 0)
        else:
            _note_keys(row, room, count)
            _sort_few(row, room, count)
            _note_few(c, filled, _row_at(b, j), room, count)
        b.begin[j], b.end[j] = filled, filled + count
        filled, i = filled + count, i + 1
    _score_few(c, p, filled)
    return i


@_inlined
def _hand_over_small(b: Any, j: int, used: int, labels: I32, scores: F64) -> int:
    """Put the set of row j of a batch, whose candidates have been scored, after what is used already.

    Returns its size, or -1 if rounding has put scores out of order, or there may be no room.
    """
    c, begin, end = b.candidates, _whole(b.begin[j]), _whole(b.end[j])
    if begin < 0:  # `end` is the only candidate, the top
        if used == len(labels):
            return -1
        labels[used] = end
        if len(scores) > 0:
            scores[used] = b.top_score[j]
        return 1 if b.top_score[j] <= b.threshold[j] else 0
    if used + end - begin > len(labels):
        return -1
    kept: Any = np.int64(0)
    before, is_sorted = -inf, True
    for m in range(begin, end):
        value = c.score[m]
        labels[np.uint64(used + kept)] = c.label[m]
        if len(scores) > 0:
            scores[np.uint64(used + kept)] = value
        kept += 1 if value <= b.threshold[j] else 0
        is_sorted = is_sorted and before <= value
        before = value
    return kept if is_sorted else -1
