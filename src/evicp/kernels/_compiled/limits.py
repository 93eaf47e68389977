"""A row's set where labels have limits of their own."""

from __future__ import annotations

from math import inf, log
from typing import Any, NamedTuple

import numpy as np

from evicp.arrays import F64, I64
from evicp.kernels._compiled.batches import _SIDE, _WORD, _label, _note_label, _row_at, _score_candidates
from evicp.kernels._compiled.lanes import LANES, _add, _fma, _larger, _log, _mul, _native, _rough_exp, _rough_log, _sub
from evicp.kernels._compiled.memory import _load
from evicp.kernels._compiled.parameters import _ECP, _LAC, _MARGIN, _MASS, _RELU, _Parameters
from evicp.kernels._compiled.parts import _inlined, _join
from evicp.kernels._compiled.reductions import _least, _no_counts, _not_negative, _one_more, _sum_whole
from evicp.kernels._compiled.rows import _activate, _needs_rank
from evicp.kernels._compiled.sets import (
    _gather,
    _Level,
    _next_cut,
    _note_bits,
    _score_side,
    _Scratch,
    _sort,
    _with_slack,
)


@_inlined
def _walk_limits(
    b: Any,
    j: int,
    row: Any,
    p: _Parameters,
    limits: F64,
    tight: float,
    room: _Scratch,
    count: int,
    kept: int,
    level: _Level,
    other: Any,
) -> Any:
    """As `_walk`, with a limit for each label; what ends it is a score beyond `tight`, and its logit is returned."""
    beyond = _with_slack(b, j, p, tight)
    for start in range(0, count, _SIDE):
        stop = _least(start + _SIDE, count)
        level = _score_side(b, j, row, p, room, start, stop, level, other)
        for i in range(start, stop):
            value, label = b.score[i - start], room.sorted_labels[i]
            if value > beyond:
                return kept, level, 0.0 - room.sorted_keys[i]
            if value <= limits[label]:
                room.scores[kept], room.members[kept] = value, label
                kept += 1
    return kept, _Level(level.first + count, level.key, level.rank, level.above, level.own), -inf


@_inlined
def _walk_down(b: Any, j: int, row: Any, p: _Parameters, limits: F64, tight: float, room: _Scratch, other: Any) -> Any:
    """Labels of row j from the top until their scores are beyond `tight`; those within their limits join the set.

    Returns its size and the largest logit of the labels left.
    """
    low, upper = _native(row, b.low[j]), _native(row, inf)
    cut = _native(row, -inf if tight == inf else b.some[j])
    kept: Any = np.int64(0)
    level = _Level(0, np.nan, 0, 0, 0)
    while True:
        count = _gather(row, p.n_classes, cut, upper, room)
        _sort(row, room, count)
        kept, level, left = _walk_limits(b, j, row, p, limits, tight, room, count, kept, level, other)
        if left > -inf or cut <= low:
            break
        upper, cut = cut, _next_cut(b, j, row, cut, level.first)
    return kept, left


#: More labels than this are walked through in order rather than looked at one by one; each takes a pass over the row,
#: and one with exponentials where masses are needed.
_SINGLES, _SINGLE_MASSES = 256, 8
#: What a label reaches is raised, and what its limit asks for lowered, by far more than rounding in float32 takes.
_ROUGHLY = 1e-4
#: Smaller stabilizers and larger sums of evidence would take the test for possible labels out of float32's range.
_SMALLEST_STABILIZER = 1e-20
_LARGEST_ALPHA_0 = 1e30
#: -ln(1 + e) lies above -e and above this - e/4: the tangents at alpha = 1 and at alpha = 4.
_TANGENT_AT_4 = 0.75 - log(4)


def demands(values: F64, limits: F64) -> F64 | None:
    """What limits ask of labels, for `_possible`; None if that has no test for the score with these `values`."""
    kind, stabilizer = int(values[0]), values[3]
    if kind == _MARGIN:
        return _ROUGHLY + np.maximum(limits, 0.0)  # the top label, whose score is negative, always passes
    if kind == _ECP and stabilizer < _SMALLEST_STABILIZER:
        return np.maximum((1.0 - _ROUGHLY) * limits, (1.0 + _ROUGHLY) * limits) + _ROUGHLY
    if kind in (_LAC, _ECP):
        demand = (1.0 - _ROUGHLY) * np.exp(-np.maximum(limits, -69.0))
        return np.where(demand < 1e-37, 0.0, -demand)
    return None


class _Test(NamedTuple):
    """What the test for possible labels needs to know of their row, in its own precision."""

    base: Any
    rate: Any
    scale: Any
    constant: Any
    surprisal: Any  # ln alpha_0
    least: Any  # the logarithm of the stabilizer, where that is tiny


@_inlined
def _cost(b: Any, j: int, p: _Parameters) -> float:
    """The largest cost of row j, which is that of its lowest label."""
    return b.low_surprisal[j] / (b.low_gain[j] * p.stabilizer)


@_inlined
def _prepare_tests(b: Any, p: _Parameters, count: int) -> None:
    """What tests of labels with limits of their own need to know of the rows of a batch."""
    if p.kind == _ECP:
        for j in range(count):
            b.surprisal[j] = 0.0 - _log(b.inverse_alpha_0[j])  # of a label without evidence
            b.cost[j] = _cost(b, j, p) if p.is_plain else 0.0


@_inlined
def _test_of(b: Any, j: int, row: Any, p: _Parameters) -> _Test:
    base, rate, scale, constant, least = b.top[j], p.rate, 0.0, 0.0, -inf
    if not _needs_rank(p.kind):
        scale, constant = b.largest[j] * (1.0 + _ROUGHLY), 0.0 - b.largest[j] if p.kind == _MARGIN else 0.0
    elif p.kind == _ECP and p.stabilizer >= _SMALLEST_STABILIZER:
        share, worst = b.inverse_alpha_0[j], b.cost[j] * (1.0 + _ROUGHLY)
        is_huge = share * _LARGEST_ALPHA_0 < 1.0
        scale, constant = (0.0, 1e38) if is_huge else ((b.largest[j] * worst) ** 0.5 * share, p.stabilizer * worst)
    elif p.kind == _ECP and p.stabilizer == 0.0:
        base, rate, constant = b.low[j], rate * (1.0 + _ROUGHLY), b.worst[j]
    elif p.kind == _ECP:
        rate, constant, least = rate * (1.0 - _ROUGHLY), b.worst[j] + log(2.0), p.log_stabilizer
    numbers = _native(row, base), _native(row, rate), _native(row, scale), _native(row, constant)
    return _Test(*numbers, _native(row, b.surprisal[j]), _native(row, least))


@_inlined
def _reach(row: Any, kind: int, evidence: int, by_logarithms: bool, t: _Test, z: Any, demand: Any) -> Any:
    """Lanes that are not negative where a label may be within its limit.

    With a label's probability q, its surprisal I, and a limit t, it is within

    - LAC: q - e^-t >= 0;
    - Margin: q - max q + t >= 0, of labels below the top;
    - ECP: (utility + stabilizer) max_v C_v - e^-t I >= 0, and by logarithms where the stabilizer is tiny or 0:
      z / T - 2 I - ln I + t + constant >= 0, or with ln(stabilizer) for the first two; at rank 0.

    `demand` holds -e^-t, or t. All labels are tested, and fast: exponential and logarithm are rough, and the surprisal
    ln alpha_0 - ln alpha is made of two tangents above the logarithm. Of other scores what is asked decides: 0 passes.
    """
    x = _sub(z, t.base)
    if kind != _ECP:
        return _add(demand, _fma(_rough_exp(x, t.rate), t.scale, t.constant))
    e = _activate(evidence, z)
    tangent = _fma(e, _native(row, -0.25), _native(row, np.float64(t.surprisal) + _TANGENT_AT_4))
    surprisal = _larger(_sub(t.surprisal, e), tangent)
    if not by_logarithms:
        root = _fma(e, t.scale, t.scale)
        return _fma(demand, surprisal, _fma(_mul(_rough_exp(x, t.rate), root), root, t.constant))
    utility = _larger(_sub(_mul(x, t.rate), _add(surprisal, surprisal)), t.least)
    return _add(demand, _add(_sub(utility, _rough_log(surprisal)), t.constant))


@_inlined
def _can_reach(row: Any, kind: int, evidence: int, by_logarithms: bool, t: _Test, demands: Any, i: int) -> Any:
    """One bit for each of the 16 labels from number i on, as `_load` takes them: whether it may be within its limit."""
    return _not_negative(_reach(row, kind, evidence, by_logarithms, t, _load(row, i), _load(demands, i)))


@_inlined
def _note_possible(
    row: Any, kind: int, evidence: int, by_logarithms: bool, t: _Test, demands: Any, labels: I64, words: Any
) -> int:
    """Note the labels that may be within their limits, in their own order; returns how many."""
    count, whole = 0, len(row) // _WORD * _WORD
    for i in range(0, whole, _WORD):
        first = _can_reach(row, kind, evidence, by_logarithms, t, demands, i)
        second = _can_reach(row, kind, evidence, by_logarithms, t, demands, i + LANES)
        third = _can_reach(row, kind, evidence, by_logarithms, t, demands, i + 2 * LANES)
        fourth = _can_reach(row, kind, evidence, by_logarithms, t, demands, i + 3 * LANES)
        words[i // _WORD] = np.uint64(_join(first, second)) | (np.uint64(_join(third, fourth)) << np.uint64(32))
    for i in range(0, whole, _WORD):
        count = _note_bits(labels, count, i, words[i // _WORD], 4)
    for i in range(whole, len(row), LANES):
        bits = _can_reach(row, kind, evidence, by_logarithms, t, demands, i)
        count = _note_bits(labels, count, _least(i, len(row) - LANES), bits, 2)
    return count


@_inlined
def _possible(b: Any, j: int, row: Any, p: _Parameters, demands: Any, labels: I64, room: _Scratch) -> int:
    """Note the labels of row j that may be within their limits, in their own order; returns how many."""
    t, words, by_logarithms = _test_of(b, j, row, p), room.buckets, p.stabilizer < _SMALLEST_STABILIZER
    if p.kind == _ECP and p.evidence == _RELU and not by_logarithms:  # the usual case, compiled without the others
        return _note_possible(row, _ECP, _RELU, False, t, demands, labels, words)
    return _note_possible(row, p.kind, p.evidence, by_logarithms, t, demands, labels, words)


@_inlined
def _drop(row: Any, limits: F64, left: float, room: _Scratch, count: int) -> int:
    """Of the labels noted, keep those not above `left`, and of impossible ones those without a limit."""
    labels, kept = room.labels, 0
    for i in range(count):
        z = np.float64(row[labels[i]])
        labels[kept], room.keys[kept] = labels[i], 0.0 - z
        kept += 1 if z <= left and (z > -inf or limits[labels[i]] == inf) else 0
    return kept


@_inlined
def _count_above_four(row: Any, w: Any, x: Any, y: Any, z: Any) -> tuple[float, float, float, float]:
    """How many logits are strictly larger than each of four, in one pass."""
    n_w, n_x, n_y, n_z = _no_counts(row), _no_counts(row), _no_counts(row), _no_counts(row)
    for i in range(0, len(row), LANES):
        lanes = _load(row, i)
        n_w, n_x = _one_more(n_w, lanes, w), _one_more(n_x, lanes, x)
        n_y, n_z = _one_more(n_y, lanes, y), _one_more(n_z, lanes, z)
    counts = _sum_whole(n_w), _sum_whole(n_x), _sum_whole(n_y), _sum_whole(n_z)
    return np.float64(counts[0]), np.float64(counts[1]), np.float64(counts[2]), np.float64(counts[3])


@_inlined
def _next_four(row: Any, room: _Scratch, i: int, stop: int) -> Any:
    """The logits of sorted candidates from number i on, the last repeated where they end."""
    labels, last = room.sorted_labels, stop - 1
    return (
        row[labels[i]],
        row[labels[_least(i + 1, last)]],
        row[labels[_least(i + 2, last)]],
        row[labels[_least(i + 3, last)]],
    )


@_inlined
def _count_ranks(row: Any, room: _Scratch, start: int, stop: int) -> None:
    """The ranks of some of the sorted candidates, in `room.buckets`."""
    ranks = room.buckets
    for i in range(start, stop, 4):
        k = i - start
        four = _next_four(row, room, i, stop)
        ranks[k], ranks[k + 1], ranks[k + 2], ranks[k + 3] = _count_above_four(row, *four)


@_inlined
def _score_singles(b: Any, j: int, row: Any, p: _Parameters, room: _Scratch, start: int, stop: int, other: Any) -> None:
    """Score some of the sorted candidates, at most `_SIDE`, after counting the labels above each in the row."""
    s, ranks = _row_at(b, j), room.buckets
    if _needs_rank(p.kind):
        _count_ranks(row, room, start, stop)
    for i in range(start, stop):
        z = row[room.sorted_labels[i]]
        _note_label(b, i - start, _label(row, p, s, z, np.float64(ranks[i - start]), other))
    _score_candidates(b, p, s, stop - start, other)


@_inlined
def _row_set_limits(
    b: Any, j: int, row: Any, p: _Parameters, limits: F64, tight: float, demands: Any, room: _Scratch, other: Any
) -> int:
    """The set of row j of a batch whose labels have limits of their own, where `_row_set` leaves its.

    Labels are walked through from the top until their scores are beyond `tight`, if that is not -inf. Those left that
    `demands` do not rule out are looked at one by one; if they are many, all labels are walked through instead.
    """
    while True:
        kept: Any = np.int64(0)
        left, count = inf, 0
        if tight > -inf:
            kept, left = _walk_down(b, j, row, p, limits, tight, room, other)
        if tight < inf:
            count = _drop(row, limits, left, room, _possible(b, j, row, p, demands, room.labels, room))
        if count <= (_SINGLE_MASSES if p.kind == _MASS else _SINGLES):
            break
        tight = inf
    _sort(row, room, count)
    for start in range(0, count, _SIDE):
        stop = _least(start + _SIDE, count)
        _score_singles(b, j, row, p, room, start, stop, other)
        for i in range(start, stop):
            value, label = b.score[i - start], room.sorted_labels[i]
            if value <= limits[label]:
                room.scores[kept], room.members[kept] = value, label
                kept += 1
    return kept
