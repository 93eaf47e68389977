"""A row's set: candidates from the top, ordered, until one is beyond the threshold."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np

from evicp.arrays import F64, I64
from evicp.kernels._compiled.batches import _SIDE, _note_label, _row_at, _score_candidates
from evicp.kernels._compiled.columns import _column_of
from evicp.kernels._compiled.lanes import LANES, _larger, _native, _ordered_bits
from evicp.kernels._compiled.memory import _load, _load_any, _load_whole, _store
from evicp.kernels._compiled.parameters import _MASS, _Parameters
from evicp.kernels._compiled.parts import _called, _inlined, _join
from evicp.kernels._compiled.reductions import _at_least, _count_bits, _least, _lowest_bit, _no_counts, _one_more
from evicp.kernels._compiled.rows import _LARGEST_LOG, _count_above, _dirichlet, _fixed, _Label

#: Up to this many candidates are sorted by comparing all with all, more by their bits.
_FEW = 128
#: In rows up to this long more are found in several passes, few at a time; in longer ones in fewer passes.
_SHORT = 2048
_BUCKETS = 2 * (_FEW + LANES)

#: A label this far beyond the threshold, relative to the numbers its score was made of, ends the walk: far more than
#: rounding can do to the order of two scores, so that no label behind it can be within the threshold.
_SLACK = 1e-9


class _Scratch(NamedTuple):
    """Room for a row's candidates and its set."""

    keys: F64  # candidates as they are found: negative logits, and label numbers
    labels: I64
    sorted_keys: F64
    sorted_labels: I64
    scores: F64  # the set
    members: I64
    buckets: I64
    within: I64  # bits of candidates
    unsure: I64


def make_scratch(n_classes: int) -> tuple[F64, I64]:
    """Room for one thread's rows, allocated before because kernels allocate nothing."""
    width = max(n_classes + LANES, _BUCKETS)
    return np.empty((3, width)), np.empty((6, width), np.int64)


@_inlined
def _unpack_scratch(floats: F64, wholes: I64) -> _Scratch:
    found, ordered = (_column_of(floats, 0), _column_of(wholes, 0)), (_column_of(floats, 1), _column_of(wholes, 1))
    flags = _column_of(wholes, 4), _column_of(wholes, 5)
    return _Scratch(*found, *ordered, _column_of(floats, 2), _column_of(wholes, 2), _column_of(wholes, 3), *flags)


@_inlined
def _find_places(row: Any, keys: Any, places: I64, count: int) -> None:
    """Where each key belongs in ascending order, equals in their own: for `_place`.

    The smaller ones are counted, in the row's precision: no branch to mispredict.
    """
    for start in range(0, count, 2 * LANES):
        own, counts = _native(row, _load_whole(keys, start)), _no_counts(row)
        if count - start <= LANES:
            for i in range(count):
                counts = _one_more(counts, own, _native(row, keys[i]))
        else:
            next_own, next_counts = _native(row, _load_whole(keys, start + LANES)), _no_counts(row)
            for i in range(count):
                key = _native(row, keys[i])
                counts, next_counts = _one_more(counts, own, key), _one_more(next_counts, next_own, key)
            _store(places, start + LANES, next_counts)
        _store(places, start, counts)
    for i in range(count):
        places[_FEW + LANES + i] = i


@_inlined
def _place(places: I64, i: int) -> Any:
    """Where key number i belongs; to be asked for all in turn, so that equals come one after the other."""
    first = _FEW + LANES + places[i]
    to = places[first]
    places[first] = to + 1
    return to


@_inlined
def _sort_few(row: Any, room: _Scratch, count: int) -> None:
    """Sort `keys` with their labels into `sorted_keys`."""
    if count == 1:
        room.sorted_keys[0], room.sorted_labels[0] = room.keys[0], room.labels[0]
        return
    _find_places(row, room.keys, room.buckets, count)
    for i in range(count):
        to = _place(room.buckets, i)
        room.sorted_keys[to], room.sorted_labels[to] = room.keys[i], room.labels[i]


@_called
def _sort_many(room: _Scratch, count: int) -> None:
    """Sort byte by byte, the lowest first, leaving out the bytes that all keys share."""
    keys, labels, other_keys, other_labels = room.keys, room.labels, room.sorted_keys, room.sorted_labels
    buckets = room.buckets
    first, differing = _ordered_bits(keys[0]), np.uint64(0)
    for i in range(count):
        differing |= _ordered_bits(keys[i]) ^ first
    moved = False
    for shift in range(0, 64, 8):
        if (differing >> np.uint64(shift)) & np.uint64(255) == 0:
            continue
        for digit in range(257):
            buckets[digit] = 0
        for i in range(count):
            buckets[1 + ((_ordered_bits(keys[i]) >> np.uint64(shift)) & np.uint64(255))] += 1
        for digit in range(256):
            buckets[digit + 1] += buckets[digit]
        for i in range(count):
            digit = (_ordered_bits(keys[i]) >> np.uint64(shift)) & np.uint64(255)
            place = buckets[digit]
            buckets[digit] = place + 1
            other_keys[place], other_labels[place] = keys[i], labels[i]
        keys, other_keys, labels, other_labels, moved = other_keys, keys, other_labels, labels, not moved
    if not moved:
        for i in range(count):
            room.sorted_keys[i], room.sorted_labels[i] = room.keys[i], room.labels[i]


@_inlined
def _sort(row: Any, room: _Scratch, count: int) -> None:
    """Sort `keys` with their labels, ascending and stably, into `sorted_keys`."""
    if count <= _FEW:
        _sort_few(row, room, count)
    else:
        _sort_many(room, count)


@_inlined
def _sort_set(room: _Scratch, count: int) -> None:
    """Sort the set by its scores, stably: it nearly always is."""
    for i in range(1, count):
        if room.scores[i - 1] > room.scores[i]:
            for k in range(count):
                room.keys[k], room.labels[k] = room.scores[k], room.members[k]
            _sort_many(room, count)
            for k in range(count):
                room.scores[k], room.members[k] = room.sorted_keys[k], room.sorted_labels[k]
            return


@_inlined
def _without_lowest(bits: Any) -> Any:
    return np.uint64(bits & (bits - np.uint64(1)))


@_inlined
def _note_bits(labels: I64, count: int, first: int, bits: Any, often: int) -> int:
    """Add the numbers of the bits that are set, counted from `first`, to `count` labels; returns how many there are.

    The first few, as many as there `often` are, are noted whether they are set or not: branches would be mispredicted.
    """
    word = np.uint64(bits)
    total = count + _count_bits(word)
    for k in range(often):
        labels[count + k] = first + _lowest_bit(word)
        word = _without_lowest(word)
    for k in range(count + often, total):
        labels[k] = first + _lowest_bit(word)
        word = _without_lowest(word)
    return total


@_inlined
def _note_keys(row: Any, room: _Scratch, count: int) -> None:
    """What the labels found are sorted by."""
    for i in range(count):
        room.keys[i] = 0.0 - np.float64(row[room.labels[i]])


@_inlined
def _find_at_least(row: Any, n_classes: int, cut: Any, upper: Any, room: _Scratch) -> int:
    """Note all labels with a logit of at least `cut` and below `upper`, in their own order; returns how many.

    A cut of -inf stands for all labels, impossible ones included.
    """
    labels = room.labels
    count: Any = np.int64(0)
    if cut == -inf:
        for k in range(n_classes):
            labels[k] = k
        count = n_classes
    else:
        whole, hits, places = len(row) // (2 * LANES) * (2 * LANES), 0, room.buckets
        for i in range(0, whole, 2 * LANES):  # where candidates are, without a branch: it would be mispredicted
            places[hits] = i
            hits += 1 if _at_least(_larger(_load_any(row, i), _load_any(row, i + LANES)), cut) != 0 else 0
        for k in range(hits):
            i = places[k]
            z, y = _load_any(row, i), _load_any(row, i + LANES)
            bits = _join(_at_least(z, cut), _at_least(y, cut)) & ~_join(_at_least(z, upper), _at_least(y, upper))
            count = _note_bits(labels, count, i, bits, 2)
        for i in range(whole, len(row), LANES):
            z = _load(row, i)
            bits = _at_least(z, cut) & ~_at_least(z, upper)
            count = _note_bits(labels, count, _least(i, len(row) - LANES), bits, 2)
    return count


@_inlined
def _gather(row: Any, n_classes: int, cut: Any, upper: Any, room: _Scratch) -> int:
    """`_find_at_least`, with keys."""
    count = _find_at_least(row, n_classes, cut, upper, room)
    _note_keys(row, room, count)
    return count


class _Level(NamedTuple):
    """Where a walk down the candidates has come to: the labels with one logit."""

    first: int  # how many labels are above the candidates at hand
    key: float
    rank: int  # of the labels with this key
    above: int  # the mass of those above them, in units
    own: int  # that of one of them


@_inlined
def _score_side(
    b: Any, j: int, row: Any, p: _Parameters, room: _Scratch, start: int, stop: int, level: _Level, other: Any
) -> Any:
    """Score the sorted candidates from `start` to `stop`, at most `_SIDE`, as labels of row j; returns the level."""
    s, keys, masses = _row_at(b, j), room.sorted_keys, room.buckets
    first, key, rank, above, own = level
    if other is not None:  # noqa: SIM102 - what is not compiled is a condition of its own
        if p.kind == _MASS:
            for i in range(start, stop):
                masses[i - start] = _fixed(row, p, s.top, _native(row, 0.0 - keys[i]))
    for i in range(start, stop):
        if keys[i] != key:
            above += own * (first + i - rank)
            key, rank = keys[i], first + i
            own = masses[i - start] if p.kind == _MASS else 0
        z = 0.0 - keys[i]
        alpha = _dirichlet(p.evidence, z, other)
        up_to, share = np.float64(above + own) / s.total, np.float64(own) / s.total
        _note_label(b, i - start, _Label(z, alpha, np.float64(rank), up_to, share))
    _score_candidates(b, p, s, stop - start, other)
    return _Level(first, key, rank, above, own)


@_inlined
def _with_slack(b: Any, j: int, p: _Parameters, threshold: float) -> float:
    """What scores must be beyond to end a walk down row j."""
    largest = _LARGEST_LOG if p.is_plain else abs(b.worst[j])
    return threshold + _SLACK * (1.0 + abs(threshold) + largest)


@_inlined
def _walk(
    b: Any,
    j: int,
    row: Any,
    p: _Parameters,
    threshold: float,
    room: _Scratch,
    count: int,
    kept: int,
    level: _Level,
    other: Any,
) -> Any:
    """Score the sorted candidates from the top; those within the threshold join the `kept` labels of the set.

    Returns how many are in the set, whether a candidate was beyond the threshold, which ends it, and the level. Equal
    logits have equal scores and enter together.
    """
    limit = _with_slack(b, j, p, threshold)
    for start in range(0, count, _SIDE):
        stop = _least(start + _SIDE, count)
        level = _score_side(b, j, row, p, room, start, stop, level, other)
        for i in range(start, stop):
            value = b.score[i - start]
            if value > limit:
                return kept, True, level
            if value <= threshold:
                room.scores[kept], room.members[kept] = value, room.sorted_labels[i]
                kept += 1
    return kept, False, _Level(level.first + count, level.key, level.rank, level.above, level.own)


@_inlined
def _lower(row: Any, bottom: Any, cut: Any, wanted: int, most: int) -> Any:
    """A cut that at least `wanted` labels reach, and if bisection finds one, at most `most`."""
    if most >= len(row):
        return bottom
    low, high = bottom, cut
    for _ in range(20):
        middle = _native(row, 0.5 * np.float64(low) + 0.5 * np.float64(high))
        count = _count_above(row, middle)
        if count < wanted:
            high = middle
        else:
            low = middle
            if count <= most:
                break
    return low


@_inlined
def _next_cut(b: Any, j: int, row: Any, cut: Any, count: int) -> Any:
    """A cut that lets in more candidates of row j than the `count` so far: several times as many, or `_FEW` more."""
    if cut > b.some[j]:
        return _native(row, b.some[j])
    if cut > b.many[j]:
        return _native(row, b.many[j])
    wanted, most = (count + _FEW // 2, count + _FEW) if len(row) <= _SHORT else (4 * count, 8 * count)
    return _lower(row, _native(row, b.low[j]), cut, wanted, most)


@_inlined
def _row_set(b: Any, j: int, row: Any, p: _Parameters, threshold: float, room: _Scratch, other: Any) -> int:
    """The set of row j of a batch, in `room.members` and `room.scores`; returns its size.

    The first candidates are a few from the top. If all of them are within the threshold, the next are those down to a
    lower cut that lets in several times as many, so that the work grows with the size of the set.
    """
    low, upper, cut = _native(row, b.low[j]), _native(row, inf), _native(row, -inf if threshold == inf else b.few[j])
    kept: Any = np.int64(0)
    level = _Level(0, np.nan, 0, 0, 0)
    while True:
        count = _gather(row, p.n_classes, cut, upper, room)
        _sort(row, room, count)
        kept, ended, level = _walk(b, j, row, p, threshold, room, count, kept, level, other)
        if ended or cut <= low:
            break
        upper, cut = cut, _next_cut(b, j, row, cut, level.first)
    return kept
