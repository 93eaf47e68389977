"""Sets without scores, where labels have limits of their own.

Most labels are within theirs, or beyond, whatever their rank, so that few ranks are counted.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evicp.arrays import F64, I64
from evicp.kernels._compiled.batches import _LANE_BITS, _SLOTS, _WORD, _row_at
from evicp.kernels._compiled.columns import _column_of
from evicp.kernels._compiled.lanes import (
    LANES,
    _add,
    _exp,
    _far_away,
    _fma,
    _if_above,
    _lanes,
    _larger,
    _log,
    _mul,
    _native,
    _relu,
    _smaller,
    _sub,
)
from evicp.kernels._compiled.limits import _LARGEST_ALPHA_0, _ROUGHLY, _count_above_four, _possible
from evicp.kernels._compiled.memory import _load_whole, _store
from evicp.kernels._compiled.parameters import _LAC, _Parameters
from evicp.kernels._compiled.parts import _called, _inlined
from evicp.kernels._compiled.reductions import _above, _at_least, _count_bits, _lowest_bit, _most
from evicp.kernels._compiled.rows import _count_above, _Label, _lac_value, _plain_value, _Row
from evicp.kernels._compiled.sets import _SLACK, _find_places, _gather, _place, _Scratch, _sort_few, _without_lowest
from evicp.kernels._compiled.small import _FEW_FLAGS, _count_flags, _note_few, _score_few


class _Notes(NamedTuple):
    """Room for what is known of a row's candidates, in its own precision."""

    z: Any
    need: Any
    utility: Any
    enough: Any
    little: Any


def make_notes(dtype: Any) -> NDArray[Any]:
    """Room for the notes of one thread's rows."""
    return np.empty((len(_Notes._fields), _SLOTS), dtype)


@_inlined
def _unpack_notes(notes: Any) -> _Notes:
    names = _column_of(notes, 0), _column_of(notes, 1), _column_of(notes, 2), _column_of(notes, 3), _column_of(notes, 4)
    return _Notes(*names)


@_inlined
def _flip(flags: I64, k: int, bits: Any) -> None:
    """Change flags from candidate k on, at most as many as there are lanes."""
    flags[k // _WORD] ^= bits << (k % _WORD)


@_inlined
def _weigh(
    b: Any, j: int, row: Any, p: _Parameters, limits: F64, needs: Any, room: _Scratch, c: _Notes, count: int
) -> None:
    """Flag the candidates of row j, `room.members`, that are within their limits whatever their ranks, and open ones.

    With a label's surprisal I and a limit t, `need` = e^-t, it is within if, at rank r,
    utility (K - r) >= K (I e^-t / max_v C_v - stabilizer), which lies between `little` and `enough`: rounding does less
    than what lies between the two, and where one is NaN, neither says anything. No more labels are above it than may
    have more evidence, for the row has only so much. LAC's scores have no ranks.
    """
    s, labels, within, unsure = _row_at(b, j), room.members, room.within, room.unsure
    within[0], within[1], unsure[0], unsure[1] = 0, 0, 0, 0
    for k in range(count):
        label = np.uint64(labels[k])
        c.z[k], c.need[k] = row[label], needs[label]
    if p.kind == _LAC:
        for k in range(count):
            is_in = _lac_value(p, s, _Label(np.float64(c.z[k]), 1.0, 0.0, 0.0, 0.0)) <= limits[labels[k]]
            _flip(within, k, 1 if is_in else 0)
        return
    is_huge = s.inverse_alpha_0 * _LARGEST_ALPHA_0 < 1.0
    n_classes, stabilizer = _native(row, np.float64(p.n_classes)), _native(row, p.n_classes * p.stabilizer)
    top, rate = _native(row, s.top), _native(row, p.rate)
    largest = _native(row, np.nan if is_huge else s.largest)  # float32 does not tell: all are open
    share, surprisal = _native(row, s.inverse_alpha_0), _native(row, b.surprisal[j])
    scale, zero, one = _native(row, p.n_classes / b.cost[j]), _native(row, 0.0), _native(row, 1.0)
    evidence = _native(row, (1.0 + _ROUGHLY) * (s.alpha + s.rest - p.n_classes) + _SLACK * p.n_classes)
    for k in range(0, count, LANES):
        z, need = _load_whole(c.z, k), _mul(_load_whole(c.need, k), scale)
        e = _relu(z)
        root = _fma(e, share, share)
        utility = _mul(_exp(_mul(_sub(z, top), rate)), _mul(_mul(root, root), largest))
        excess = _sub(_mul(_sub(surprisal, _log(_add(e, one))), need), stabilizer)
        slack = _add(_fma(need, surprisal, stabilizer), _mul(utility, n_classes))
        far = _far_away(z)  # beyond, unless nothing is needed: NaN then, and the limit decides
        enough = _add(_fma(slack, _native(row, _ROUGHLY), excess), far)
        little = _add(_fma(slack, _native(row, -_ROUGHLY), excess), _mul(far, need))
        unit = _larger(z, _native(row, 1e-10))  # the highest rank is evidence / unit, or K - 1
        least = _mul(utility, _larger(_sub(_mul(unit, n_classes), evidence), unit))
        is_within = _at_least(_sub(least, _mul(enough, unit)), zero)
        is_beyond = _above(_sub(little, _mul(utility, n_classes)), zero)
        there = _LANE_BITS >> _most(k + LANES - count, 0)
        _flip(within, k, np.int64(is_within) & there)
        _flip(unsure, k, ~np.int64(is_within | is_beyond) & there)
        _store(c.utility, k, utility)
        _store(c.enough, k, enough)
        _store(c.little, k, little)


@_inlined
def _bound(row: Any, low: Any, high: Any, z: Any, mark: Any, rank: float, n_classes: Any) -> Any:
    """Bounds of the ranks of logits, given those so far and the rank of one logit."""
    low = _larger(low, _sub(_native(row, rank), _if_above(n_classes, z, mark)))
    return low, _smaller(high, _add(_native(row, rank), _if_above(n_classes, mark, z)))


@_called
def _settle(c: _Notes, row: Any, p: _Parameters, s: _Row, limits: F64, room: _Scratch, k: int, bits: int) -> int:
    """Which of the candidates from number k on are within their limits, of those whose ranks are counted here."""
    is_within = 0
    while bits != 0:
        i = _lowest_bit(np.uint64(bits))
        z = np.float64(c.z[k + i])
        label = _Label(z, _relu(z) + 1.0, np.float64(_count_above(row, c.z[k + i])), 0.0, 0.0)
        is_within |= 1 << i if _plain_value(p, s, label) <= limits[room.members[k + i]] else 0
        bits &= bits - 1
    return is_within


@_inlined
def _next(flags: Any, last: int) -> Any:
    """The number of the first flag, or the last one's if there is none left, and the other flags."""
    return (_lowest_bit(flags) if flags != 0 else last), _without_lowest(flags)


@_inlined
def _narrow(c: _Notes, row: Any, p: _Parameters, s: _Row, limits: F64, room: _Scratch, count: int) -> None:
    """Count the ranks of four of the open candidates, which bound all others'."""
    within, unsure = room.within, room.unsure
    first = 0 if unsure[0] != 0 else _WORD
    flags = np.uint64(unsure[first // _WORD])
    w, flags = _next(flags, 0)
    x, flags = _next(flags, w)
    y, flags = _next(flags, x)
    z, flags = _next(flags, y)
    w, x, y, z = c.z[first + w], c.z[first + x], c.z[first + y], c.z[first + z]
    n_w, n_x, n_y, n_z = _count_above_four(row, w, x, y, z)
    n_classes, zero = _lanes(row, np.float64(p.n_classes)), _native(row, 0.0)
    for k in range(0, count, LANES):
        own, utility = _load_whole(c.z, k), _load_whole(c.utility, k)
        low, high = _bound(row, _lanes(row, 0.0), n_classes, own, w, n_w, n_classes)
        low, high = _bound(row, low, high, own, x, n_x, n_classes)
        low, high = _bound(row, low, high, own, y, n_y, n_classes)
        low, high = _bound(row, low, high, own, z, n_z, n_classes)
        is_open = (unsure[k // _WORD] >> (k % _WORD)) & _LANE_BITS
        is_within = (
            np.int64(_at_least(_sub(_mul(utility, _sub(n_classes, high)), _load_whole(c.enough, k)), zero)) & is_open
        )
        is_beyond = (
            np.int64(_above(_sub(_load_whole(c.little, k), _mul(utility, _sub(n_classes, low))), zero)) & is_open
        )
        is_known = np.int64(_at_least(_sub(low, high), zero)) & is_open
        is_close = is_known & ~(is_within | is_beyond)
        if is_close != 0:
            is_within |= _settle(c, row, p, s, limits, room, k, is_close)
        _flip(within, k, is_within)
        _flip(unsure, k, is_within | is_beyond | is_known)


@_inlined
def _sort_within(c: _Notes, row: Any, room: _Scratch, count: int) -> int:
    """Sort the candidates flagged as within their limits; returns how many."""
    kept: Any = np.int64(0)
    for start in range(0, count, _WORD):
        flags = np.uint64(room.within[start // _WORD])
        for i in range(kept, kept + _count_bits(flags)):
            k = start + _lowest_bit(flags)
            room.labels[i], c.need[i] = room.members[k], -c.z[k]
            flags, kept = _without_lowest(flags), i + 1
    _find_places(row, c.need, room.buckets, kept)
    for i in range(kept):
        room.sorted_labels[_place(room.buckets, i)] = room.labels[i]
    return kept


@_called
def _top_within(b: Any, j: int, row: Any, p: _Parameters, limits: F64, room: _Scratch) -> int:
    """As `_row_within`, of the labels above the row's cut."""
    c, labels = b.candidates, room.sorted_labels
    count = _gather(row, p.n_classes, _native(row, b.cut[j]), _native(row, inf), room)
    if count > _SLOTS:
        return -1
    _sort_few(row, room, count)
    _note_few(c, 0, _row_at(b, j), room, count)
    _score_few(c, p, count)
    kept: Any = np.int64(0)
    for k in range(count):
        is_within = c.score[k] <= limits[labels[k]]
        labels[kept] = labels[k]
        kept += 1 if is_within else 0
    return kept


@_inlined
def _is_small(b: Any, j: int, p: _Parameters, narrow: Any) -> bool:
    """Whether few labels of row j reach its cut."""
    if narrow is not None:
        return _count_flags(b, j, p) <= _FEW_FLAGS
    return not b.cut[j] < b.some[j]


@_inlined
def _row_within(
    b: Any,
    j: int,
    row: Any,
    p: _Parameters,
    narrow: Any,
    limits: F64,
    needs: Any,
    demands: Any,
    room: _Scratch,
    c: _Notes,
) -> int:
    """The set of row j of a batch in `room.sorted_labels`, without scores; returns its size, -1 for many candidates.

    Candidates are the labels above the row's cut, or if those are many, the ones that `demands` do not rule out.
    """
    if _is_small(b, j, p, narrow):
        return _top_within(b, j, row, p, limits, room)
    count = _possible(b, j, row, p, demands, room.members, room)
    if count > _SLOTS:
        return -1
    s = _row_at(b, j)
    _weigh(b, j, row, p, limits, needs, room, c, count)
    while room.unsure[0] | room.unsure[1] != 0:
        _narrow(c, row, p, s, limits, room, count)
    return _sort_within(c, row, room, count)
