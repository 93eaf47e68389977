"""A few long rows, each read by several programs: of one program a row most of the device would be idle."""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.cuts import _ecp_cut, _lac_cut
from evicp.kernels._jitted.layout import _CROWDED, _CUT, _ECP, _LOG_EPSILON, _RATE
from evicp.kernels._jitted.reductions import _joined, _long_tile, _of_row, _words_long
from evicp.kernels._jitted.slots import _fill, _own_logits, _put_down

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off


@triton.jit(do_not_specialize=["n"])
def _read_parts(
    logits, labels, partials, sums, counts, sizes, status, parameters, n, RULE: tl.constexpr, EVIDENCE: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr, LABELS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
    WORDS: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr
):
    """What is known of SPAN columns of a row: floats, and whole numbers (sums of exponentials and of evidence)."""
    number, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    row = number + tl.arange(0, 1)
    base = logits + row.to(tl.int64) * STRIDE
    rate = tl.load(parameters + _RATE).to(tl.float32)
    own = tl.zeros([1], tl.float32)
    if LABELS:
        own = _own_logits(base, labels, status, row, row, (row < n) & (part == 0), n, K)
    else:
        tl.store(counts + row, row * 0)
        tl.store(sizes + row + 1, row * 0)
        tl.store(sizes + row, row * 0, mask=row == 0)
    top_w, second_w, least_w, ties, finite, higher, total, evidence, hashes = _words_long(
        base, own, part * SPAN, rate, RULE, EVIDENCE, False, LABELS, K, SPAN, BLOCK, WORDS, VECTOR
    )
    top, _, least, at_least, finite, higher, total, evidence, _ = _joined(
        top_w, second_w, least_w, ties, finite, higher, total, evidence, hashes, rate
    )
    place, every = tl.program_id(0), n * PARTS
    tl.store(partials + place, top)
    tl.store(partials + every + place, least)
    tl.store(partials + 2 * every + place, at_least)
    tl.store(partials + 3 * every + place, finite)
    tl.store(partials + 4 * every + place, higher)
    tl.store(sums + place, total.to(tl.int64))
    tl.store(sums + every + place, evidence)


@triton.jit(do_not_specialize=["n", "threshold_bits"])
def _join_parts(
    logits, partials, sums, stats, slots, counts, status, parameters, n, threshold_bits: tl.int64,
    RULE: tl.constexpr, EVIDENCE: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, LABELS: tl.constexpr,
    BLOCK: tl.constexpr, VECTOR: tl.constexpr, WORDS: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr,
    SLOTS: tl.constexpr
):
    """Statistics of a row from those of its parts; then each program puts the candidates of its part into slots."""
    number, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    row = number + tl.arange(0, 1)
    rate = tl.load(parameters + _RATE).to(tl.float32)
    place, every = number * PARTS + tl.arange(0, PARTS), n * PARTS
    tops = tl.load(partials + place)
    nothing = tops * 0.0
    top, second, least, at_least, finite, higher, total, evidence, hashes = _joined(
        tops, tops, tl.load(partials + every + place), tl.load(partials + 2 * every + place),
        tl.load(partials + 3 * every + place), tl.load(partials + 4 * every + place),
        tl.load(sums + place).to(tl.float64), tl.load(sums + every + place), nothing, rate
    )
    top, least, above_least, total, rest, hash_sum, second, rank = _of_row(
        top, second, least, at_least, finite, higher, total, evidence, hashes, EVIDENCE
    )
    first_part = (row < n) & (part == 0)
    good, wide = _put_down(
        stats, status, row, first_part, n, top, least, above_least, total, rest, hash_sum, second, rank, total * 0,
        RULE, False, LABELS, K
    )
    if SLOTS > 0:
        threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
        if RULE == _ECP:
            log_epsilon = tl.load(parameters + _LOG_EPSILON)
            cut = _ecp_cut(top, least, above_least, total, rest, threshold, log_epsilon, rate, EVIDENCE, K, 32)
        else:
            cut = _lac_cut(top, total, threshold, rate)
        cut = tl.where(good & (wide == 0), cut, float("inf"))
        tl.store(stats + _CUT * n + row, tl.where(wide, float("-inf"), cut).to(tl.float64), mask=first_part)
        crowded = tl.where(first_part & wide, SLOTS + 1, 0)
        tl.atomic_add(counts + row, crowded, mask=crowded > 0, sem="relaxed")
        tl.atomic_add(status + _CROWDED + row * 0, crowded.to(tl.int64), mask=crowded > 0)
        base = logits + row.to(tl.int64) * STRIDE
        own_slots = slots + row.to(tl.int64) * SLOTS
        _fill_part(
            base, own_slots, counts + row, status + row * 0, cut, part * SPAN, K, SPAN, SLOTS, BLOCK, WORDS, VECTOR
        )


@triton.jit
def _fill_part(
    base, slots, counts, status, cut, first, K: tl.constexpr, SPAN: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr
):
    """Put the candidates of some columns into slots, behind those that other programs have put there."""
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    lowest = tl.min(cut, 0)
    for start in range(0, SPAN, BLOCK):
        z = _long_tile(base, first + start, K, REPEATS, WORDS, VECTOR)
        if tl.max(tl.max(tl.max(z, 2), 1), 0) > lowest:
            more = tl.sum(tl.sum(tl.sum((z > lowest).to(tl.int32), 2), 1), 0)
            filled = tl.atomic_add(counts, tl.zeros([1], tl.int32) + more, sem="relaxed")
            flags = tl.permute(tl.reshape(z > lowest, [1, WORDS, REPEATS, VECTOR]), (0, 2, 1, 3))
            _fill(slots, flags, first + start, filled, SLOTS, REPEATS, WORDS, VECTOR)
            full = (filled <= SLOTS) & (filled + more > SLOTS)
            tl.atomic_add(status + _CROWDED, full.to(tl.int64), mask=full, sem="relaxed")
