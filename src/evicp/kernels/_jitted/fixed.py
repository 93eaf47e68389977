"""Sets of fixed shape, for callers that cannot wait: a mask, or the most plausible labels of each row.

Nothing is asked of the host, so rows that have no room in their slots are finished here, each by one program: their
scores fall as the logit rises, and the lowest logit within the threshold is found by halving.
"""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.arithmetic import _PER_ONE, _evidence_64, _exponential, _fixed
from evicp.kernels._jitted.layout import _APS, _CUT, _ECP, _ORDER_FROM_ZERO, _RAPS, _RATE, _REST, _TOP
from evicp.kernels._jitted.scores import _finish, _score
from evicp.kernels._jitted.sets import _placed, _single
from evicp.kernels._jitted.summary import _in_order

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off

#: 1.5 * 2^52: adding it to a double below 2^51 rounds that to a whole number.
_BIAS_64 = tl.constexpr(6755399441055744.0)


@triton.jit(do_not_specialize=["n", "K", "width", "threshold_bits"])
def _write_fixed(
    slots, counts, scores, ends, sizes, stats, out, out_sizes, n, K, width, threshold_bits: tl.int64,
    MASK: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr
):
    """Sizes, -1 of rows that cannot be scored, and the members of sets whose candidates are in their slots."""
    threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
    first_row = tl.program_id(0) * ROWS
    every_row = first_row + tl.arange(0, ROWS)
    top = tl.load(stats + _TOP * n + every_row, mask=every_row < n, other=0.0)
    size = tl.load(sizes + every_row + 1, mask=every_row < n, other=0)
    good = (top > float("-inf")) & (top < float("inf"))
    tl.store(out_sizes + every_row, tl.where(good, size, -1), mask=every_row < n)
    single = _single(counts, every_row, n) & (size > 0)
    only = (tl.load(slots + every_row.to(tl.int64) * SLOTS, mask=single, other=0) >> 32).to(tl.int32)
    if MASK:
        tl.store(out + every_row.to(tl.int64) * K + only, tl.full([ROWS], 1, tl.int8), mask=single)
    else:
        tl.store(out + every_row.to(tl.int64) * width, only, mask=single)
    last_row = tl.minimum(first_row + ROWS, n) - 1
    total, first = tl.load(ends + last_row), 0
    while first < total:
        number = first + tl.arange(0, CHUNK)
        here = number < total
        row, label, score, before = _placed(number, here, slots, scores, ends, first_row, n, SLOTS, ROWS, CHUNK)
        member = here & (score <= threshold)
        if MASK:
            tl.store(out + row.to(tl.int64) * K + label, tl.full([CHUNK], 1, tl.int8), mask=member)
        else:
            tl.store(out + row.to(tl.int64) * width + before, label, mask=member & (before < width))
        first += CHUNK


@triton.jit
def _logit_at(place):
    """The float at a place in the order of floats, see `_in_order`."""
    bits = (place - _ORDER_FROM_ZERO).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _next_logits(base, start, K, BLOCK: tl.constexpr):
    column = start + tl.arange(0, BLOCK)
    return column, tl.load(base + column, mask=column < K, other=float("-inf")).to(tl.float32)


@triton.jit
def _mend(base, stats, row, top, n, K, EVIDENCE: tl.constexpr, BLOCK: tl.constexpr):
    """The evidence beside the top label's, of a row whose evidence is too large for the sums of `_read_rows`.

    The largest of the others sets the unit: they are added as integers again, of 40 bits.
    """
    where, start = K, 0
    while start < K:
        column, z = _next_logits(base, start, K, BLOCK)
        where = tl.minimum(where, tl.min(tl.where(z == top, column, K), 0))
        start += BLOCK
    largest, start = tl.max(tl.zeros([BLOCK], tl.float64), 0) + 1.0, 0
    while start < K:
        column, z = _next_logits(base, start, K, BLOCK)
        evidence = _evidence_64(z.to(tl.float64), EVIDENCE)
        largest = tl.maximum(largest, tl.max(tl.where((column == where) | (column >= K), 0.0, evidence), 0))
        start += BLOCK
    unit = tl.exp2(tl.ceil(tl.log2(largest)) - 40.0)
    whole, start = tl.sum(tl.zeros([BLOCK], tl.int64), 0), 0
    while start < K:
        column, z = _next_logits(base, start, K, BLOCK)
        parts = (_evidence_64(z.to(tl.float64), EVIDENCE) / unit + _BIAS_64) - _BIAS_64
        whole += tl.sum(tl.where((column == where) | (column >= K), 0.0, parts).to(tl.int64), 0)
        start += BLOCK
    tl.store(stats + _REST * n + row, whole.to(tl.float64) * unit + row * 0.0)


@triton.jit
def _is_member(
    base, probe, top, threshold, row, stats, parameters, n, K, RULE: tl.constexpr, EVIDENCE: tl.constexpr,
    RANDOM: tl.constexpr, BLOCK: tl.constexpr
):
    """Whether the largest logit up to this one is within the threshold, and so all higher ones are."""
    rate = tl.load(parameters + _RATE).to(tl.float32)
    higher, mass, start = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int64), 0
    nearest = tl.full([BLOCK], float("-inf"), tl.float32)
    while start < K:
        _, z = _next_logits(base, start, K, BLOCK)
        nearest = tl.maximum(nearest, tl.where(z > probe, float("-inf"), z))
        higher += (z > probe).to(tl.int32)
        if RULE == _APS or RULE == _RAPS:
            mass += tl.where(z > probe, _fixed(_exponential(z, top, rate), _PER_ONE), 0)
        start += BLOCK
    rank, above = tl.sum(higher, 0) + row * 0, tl.sum(mass, 0) + row.to(tl.int64) * 0
    z = tl.max(nearest, 0) + row * 0.0
    score = _score(
        z, rank.to(tl.float64), above.to(tl.float64), row, row < n, stats, parameters, n, K, RULE, EVIDENCE, RANDOM
    )
    return tl.max((score <= threshold).to(tl.int32), 0) > 0


@triton.jit
def _lowest_member(
    base, top, threshold, row, stats, parameters, n, K, RULE: tl.constexpr, EVIDENCE: tl.constexpr,
    RANDOM: tl.constexpr, BLOCK: tl.constexpr
):
    """The lowest logit within the threshold; +inf if there is none. What `_read_rows` has cut off is not within."""
    low = tl.max(_in_order(tl.load(stats + _CUT * n + row).to(tl.float32)), 0)
    high = _in_order(top)
    some = _is_member(base, top, top, threshold, row, stats, parameters, n, K, RULE, EVIDENCE, RANDOM, BLOCK)
    while high - low > 1:
        middle = (low + high) // 2
        inside = _is_member(
            base, _logit_at(middle), top, threshold, row, stats, parameters, n, K, RULE, EVIDENCE, RANDOM, BLOCK
        )
        high, low = tl.where(inside, middle, high), tl.where(inside, low, middle)
    return tl.where(some, _logit_at(high), float("inf"))


@triton.jit
def _write_labels(base, out, lowest, size, width, K, BLOCK: tl.constexpr):
    """The most plausible labels from a logit upwards, one pass for each: by logit, then by index."""
    last, last_column, place = lowest * 0.0 + float("inf"), K * 0 - 1, 0
    while place < tl.minimum(size, width):
        best, best_column = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.int32)
        start = 0
        while start < K:
            column, z = _next_logits(base, start, K, BLOCK)
            is_left = (z < last) | ((z == last) & (column > last_column))
            better = is_left & (z > best)
            best, best_column = tl.where(better, z, best), tl.where(better, column, best_column)
            start += BLOCK
        last = tl.max(best, 0)
        last_column = tl.min(tl.where(best == last, best_column, K), 0)
        tl.store(out + place, last_column)
        place += 1


@triton.jit(do_not_specialize=["n", "K", "stride", "width", "threshold_bits"])
def _write_crowded(
    logits, counts, stats, parameters, out, out_sizes, n, K, stride, width, threshold_bits: tl.int64,
    RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, MASK: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr
):
    """The set of a row that has more candidates than slots, or evidence beyond the sums; others are done."""
    number = tl.program_id(0)
    row = number + tl.arange(0, 1)
    top = tl.max(tl.load(stats + _TOP * n + row).to(tl.float32), 0)
    if (tl.load(counts + number) > SLOTS) & (top > float("-inf")) & (top < float("inf")):
        threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
        base = logits + number.to(tl.int64) * stride
        if RULE == _ECP:  # noqa: SIM102 - one condition is known when the kernel is compiled, the other is not
            if tl.load(stats + _REST * n + number) < 0.0:
                _mend(base, stats, row, top, n, K, EVIDENCE, BLOCK)
                tl.debug_barrier()  # other threads of this program read it next
                _finish(stats, parameters, n, K, row, row < n, RULE, EVIDENCE, RANDOM)
        lowest = _lowest_member(
            base, top, threshold, row, stats, parameters, n, K, RULE, EVIDENCE, RANDOM, BLOCK
        )
        size, start = tl.sum(tl.zeros([BLOCK], tl.int32), 0), 0
        while start < K:
            column, z = _next_logits(base, start, K, BLOCK)
            inside = (z >= lowest) & (column < K)
            size += tl.sum(inside.to(tl.int32), 0)
            if MASK:
                tl.store(out + number.to(tl.int64) * K + column, inside.to(tl.int8), mask=column < K)
            start += BLOCK
        tl.store(out_sizes + number, size)
        if not MASK:
            _write_labels(base, out + number.to(tl.int64) * width, lowest, size, width, K, BLOCK)
