"""The kernel that reads the logits, and how it puts candidates into slots."""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.arithmetic import _FOURS_FROM, _WIDEST, _tile
from evicp.kernels._jitted.cuts import _ecp_cut, _halved_cut, _lac_cut, _margin_cut, _mass_cut
from evicp.kernels._jitted.layout import (
    _ABOVE_LEAST,
    _APS,
    _BAD,
    _CROWDED,
    _CUT,
    _ECP,
    _HASH,
    _LAC,
    _LEAST,
    _LOG_EPSILON,
    _MARGIN,
    _MASS,
    _OUTSIDE,
    _RANK,
    _RAPS,
    _RATE,
    _REST,
    _SECOND,
    _TOP,
    _TOPK,
    _TOTAL,
    _WIDE,
)
from evicp.kernels._jitted.reductions import _long_tile, _reduce_long, _reduce_tile

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off


@triton.jit
def _bit_count(x):
    """The number of ones in each word, uint32."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _fill(
    slots, flags, start, filled, SLOTS: tl.constexpr, REPEATS: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr
):
    """Write the flagged labels of each row to its slots and return how many there are now.

    `flags` is (ROWS, REPEATS, WORDS, VECTOR). Each thread gathers its own flags into the bits of words, so that no flag
    has to change threads; only the words are counted across the row.
    """
    PARTS: tl.constexpr = (REPEATS * VECTOR + 31) // 32
    ones = _bit_count(_word(flags, 0, REPEATS, VECTOR))
    for part in tl.static_range(1, PARTS):
        ones += _bit_count(_word(flags, part, REPEATS, VECTOR))
    count = filled + tl.sum(ones, 1)
    slot = filled[:, None] + tl.cumsum(ones, 1) - ones
    fits, first = (count <= SLOTS)[:, None], start + tl.arange(0, WORDS)[None, :] * VECTOR
    for part in tl.static_range(PARTS):
        word = tl.where(fits, _word(flags, part, REPEATS, VECTOR), 0).to(tl.uint32)
        some = word != 0
        while tl.max(tl.max(some.to(tl.int32), 1), 0) > 0:
            bit = _bit_count((word - 1) & (word ^ 0xFFFFFFFF))
            label = first + (bit // VECTOR) * (WORDS * VECTOR) + bit % VECTOR
            tl.store(slots[:, None] + slot, label.to(tl.int64) << 32, mask=some)
            slot += some.to(tl.int32)
            word = word & (word - 1)
            some = word != 0
        first += 32 * WORDS
    return count


@triton.jit
def _word(flags, part: tl.constexpr, REPEATS: tl.constexpr, VECTOR: tl.constexpr):
    """Each thread's flags as bits, 32 at a time, uint32."""
    place = tl.arange(0, REPEATS)[None, :, None, None] * VECTOR + tl.arange(0, VECTOR)[None, None, None, :] - 32 * part
    weight = tl.full(place.shape, 1, tl.uint32) << (place & 31).to(tl.uint32)
    asked = flags & (place >= 0) & (place < 32)
    return tl.sum(tl.sum(tl.where(asked, weight, 0).to(tl.uint32), 3), 1).to(tl.uint32)


@triton.jit
def _fill_from_long(
    base, slots, cut, K: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr
):
    """The same for a long row; most of its tiles hold no candidate."""
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    filled = tl.zeros([1], tl.int32)
    lowest = tl.min(cut, 0)
    for start in range(0, K, BLOCK):
        z = _long_tile(base, start, K, REPEATS, WORDS, VECTOR)
        if tl.max(tl.max(tl.max(z, 2), 1), 0) > lowest:
            flags = tl.permute(tl.reshape(z > lowest, [1, WORDS, REPEATS, VECTOR]), (0, 2, 1, 3))
            filled = _fill(slots, flags, start, filled, SLOTS, REPEATS, WORDS, VECTOR)
    return filled


@triton.jit
def _own_logits(base, labels, status, row_read, row, inside, n, K: tl.constexpr):
    """The logits of the given labels; what is no class is reported."""
    label = tl.load(labels + row_read)
    is_class = (label >= 0) & (label < K)
    tl.atomic_max(status + _OUTSIDE + row * 0, (n - row).to(tl.int64), mask=inside & (is_class == 0))
    return tl.load(base + tl.where(is_class, label, 0)).to(tl.float32)


@triton.jit
def _put_down(
    stats, status, row, inside, n, top, least, above_least, total, rest, hash_sum, second, rank, mass,
    RULE: tl.constexpr, RANDOM: tl.constexpr, LABELS: tl.constexpr, K: tl.constexpr
):
    """Put down what is known of rows, and return whether they can be scored and whether their evidence is too large."""
    good = (top > float("-inf")) & (top < float("inf"))
    tl.atomic_max(status + _BAD + row * 0, (n - row).to(tl.int64), mask=inside & (good == 0))
    place = stats + row
    tl.store(place + _TOP * n, top.to(tl.float64), mask=inside)
    if RULE != _TOPK:
        tl.store(place + _TOTAL * n, total, mask=inside)
    wide = inside & (top >= float("inf"))
    if RULE == _ECP:
        wide = inside & good & ((top >= _WIDEST) | ((K >= _FOURS_FROM) & (top > 16.0 * K)))
        tl.atomic_add(status + _WIDE + row * 0, wide.to(tl.int64), mask=wide)
        tl.store(place + _LEAST * n, least.to(tl.float64), mask=inside)
        tl.store(place + _ABOVE_LEAST * n, above_least.to(tl.float64), mask=inside)
        tl.store(place + _REST * n, tl.where(wide, -1.0, rest), mask=inside)
    if RANDOM:
        tl.store(place + _HASH * n, hash_sum, mask=inside)
    if RULE == _MARGIN:
        tl.store(place + _SECOND * n, second.to(tl.float64), mask=inside)
    if LABELS:
        tl.store(place + _RANK * n, rank.to(tl.float64), mask=inside)
        tl.store(place + _MASS * n, mass, mask=inside)
    return good, wide


@triton.jit(do_not_specialize=["n", "threshold_bits"])
def _read_rows(
    logits, labels, stats, slots, counts, sizes, status, parameters, n, threshold_bits: tl.int64,
    RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr,
    LABELS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, WORDS: tl.constexpr,
    SLOTS: tl.constexpr, LONG: tl.constexpr
):
    """The one kernel that reads the logits: statistics of every row, and the given labels' ranks or the candidates."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    row_read = tl.minimum(row, n - 1).to(tl.int64)  # no mask on the loads: surplus rows read the last one again
    base = logits + row_read * STRIDE
    rate = tl.load(parameters + _RATE).to(tl.float32)
    own = tl.zeros([ROWS], tl.float32)
    if LABELS:
        own = _own_logits(base, labels, status, row_read, row, inside, n, K)
    if LONG:
        z = tl.zeros([1, 1, 1], tl.float32)
        top, least, above_least, total, rest, hash_sum, second, rank, mass = _reduce_long(
            base, own, rate, RULE, EVIDENCE, RANDOM, LABELS, K, BLOCK, WORDS, VECTOR
        )
    else:
        z = _tile(base, K, BLOCK, WORDS * VECTOR)
        top, least, above_least, total, rest, hash_sum, second, rank, mass = _reduce_tile(
            z, own, rate, RULE, EVIDENCE, RANDOM, LABELS, K, ROWS, BLOCK, WORDS * VECTOR
        )
    good, wide = _put_down(
        stats, status, row, inside, n, top, least, above_least, total, rest, hash_sum, second, rank, mass, RULE, RANDOM,
        LABELS, K
    )
    if SLOTS > 0:
        threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
        cut = top
        if RULE == _LAC:
            cut = _lac_cut(top, total, threshold, rate)
        elif RULE == _MARGIN:
            cut = _margin_cut(top, total, threshold, rate)
        elif RULE == _ECP:
            log_epsilon = tl.load(parameters + _LOG_EPSILON)
            PROBES: tl.constexpr = 32 if LONG else WORDS * VECTOR
            cut = _ecp_cut(top, least, above_least, total, rest, threshold, log_epsilon, rate, EVIDENCE, K, PROBES)
        else:
            cut = top * 0 + float("-inf")
            if RULE == _APS or RULE == _RAPS:
                cut = _mass_cut(base, z, top, total, threshold, rate, RULE, K, BLOCK, WORDS, VECTOR, LONG)
            cut = _halved_cut(
                base, z, cut, top, least, total, threshold, parameters, rate, RULE, RANDOM, K, BLOCK, WORDS, VECTOR,
                LONG
            )
        cut = tl.where(good & inside & (wide == 0), cut, float("inf"))
        own_slots = slots + row_read * SLOTS
        if LONG:
            count = _fill_from_long(base, own_slots, cut, K, SLOTS, BLOCK, WORDS, VECTOR)
        else:
            REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
            flags = tl.reshape(z > cut[:, None, None], [ROWS, REPEATS, WORDS, VECTOR])
            none = tl.zeros([ROWS], tl.int32)
            count = _fill(own_slots, flags, 0, none, SLOTS, REPEATS, WORDS, VECTOR)
        count = tl.where(wide, SLOTS + 1, count)
        tl.store(stats + row + _CUT * n, tl.where(wide, float("-inf"), cut).to(tl.float64), mask=inside)
        tl.atomic_add(status + _CROWDED + row * 0, (count > SLOTS).to(tl.int64), mask=inside & (count > SLOTS))
        tl.store(counts + row, count, mask=inside)
        tl.store(sizes + row + 1, count * 0, mask=inside)
        tl.store(sizes + row, count * 0, mask=row == 0)
