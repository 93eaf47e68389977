"""What a row is reduced to.

Both forms return (top, least, labels above the least, total of exponentials, evidence beside the top's, hash, second
logit, rank and mass above of the label whose logit is `own`); what a rule does not need is left 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.arithmetic import (
    _BIAS_BITS,
    _EVIDENCE_UNIT,
    _FOURS_FROM,
    _PER_EVIDENCE,
    _PER_ONE,
    _UNIT,
    _add_parts,
    _add_tile,
    _count,
    _evidence_32,
    _exponential,
    _fixed,
    _halves,
    _hashes,
    _larger,
    _least_of,
    _parts,
    _row_max,
    _row_sum,
)
from evicp.kernels._jitted.layout import _APS, _ECP, _LAC, _MARGIN, _RAPS, _SAPS, _TOPK

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off

#: So many roundings, and one for each tile, are on the way to a float sum at most.
_ROUNDINGS = tl.constexpr(128)


@triton.jit
def _reduce_tile(
    z, own, rate, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, LABELS: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):
    FOURS: tl.constexpr = K >= _FOURS_FROM
    top = tl.reduce(tl.reduce(z, 1, _larger), 1, _larger)
    peak = top[:, None, None]
    least, above_least, second, rank = top, top * 0, top, top * 0
    rest, total, mass = top.to(tl.float64) * 0, top.to(tl.float64) * 0, top.to(tl.float64) * 0
    hash_sum = top.to(tl.float64) * 0
    if LABELS:
        rank = _count(z > own[:, None, None])
    if RULE == _APS or RULE == _RAPS:
        coarse, fine = _parts(_exponential(z, peak, rate), _PER_ONE)
        total = _add_parts(coarse, fine, BLOCK).to(tl.float64)
        if LABELS:
            above = z > own[:, None, None]
            mass = _add_parts(tl.where(above, coarse, _BIAS_BITS), tl.where(above, fine, _BIAS_BITS), BLOCK)
            mass = mass.to(tl.float64)
    elif RULE != _TOPK:
        total = _add_tile(_exponential(z, peak, rate), _PER_ONE, ROWS, BLOCK, WIDTH, FOURS).to(tl.float64)
    if RULE == _ECP:
        evidence = _add_tile(_evidence_32(z, EVIDENCE), _PER_EVIDENCE, ROWS, BLOCK, WIDTH, FOURS)
        others = evidence - _fixed(_evidence_32(top, EVIDENCE), _PER_EVIDENCE)
        rest = others.to(tl.float64) * _EVIDENCE_UNIT
    if RULE != _LAC and RULE != _MARGIN:
        least = _least_of(z, K, BLOCK, WIDTH)
    if RULE == _ECP:
        above_least = _count(z > least[:, None, None])
    if RULE == _MARGIN:
        below = _row_max(tl.where(z == peak, float("-inf"), z))
        second = tl.where(_count(z == peak) > 1, top, below)
    if RANDOM:
        hash_sum = _row_sum(_hashes(z)).to(tl.float64)
    return top, least, above_least, total, rest, hash_sum, second, rank, mass


@triton.jit
def _long_tile(base, start, K: tl.constexpr, REPEATS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr):
    """The next logits of one long row, (WORDS, REPEATS, VECTOR): sums over the last two axes take one thread."""
    word = tl.arange(0, WORDS)[:, None, None] * VECTOR + tl.arange(0, VECTOR)[None, None, :]
    column = start + tl.arange(0, REPEATS)[None, :, None] * (WORDS * VECTOR) + word
    return tl.load(base[:, None, None] + column, mask=column < K, other=float("-inf")).to(tl.float32)


@triton.jit
def _by_word(x):
    return tl.sum(tl.sum(x, 2), 1)


@triton.jit
def _fixed_by_word(coarse, fine, COUNT: tl.constexpr):
    """Sums over each word's COUNT numbers of a tile in fine units, int64; see `_add_parts`."""
    BIASES: tl.constexpr = (COUNT * 0x4B400000 + 2**31) % 2**32 - 2**31
    return ((_by_word(coarse) - BIASES).to(tl.int64) << 20) + (_by_word(fine) - BIASES)


@triton.jit
def _add_long(
    x, PER_ONE: tl.constexpr, REPEATS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr, FOURS: tl.constexpr
):
    """The sum over each word's part of a tile in fine units, int64."""
    if FOURS:
        x = _halves(_halves(tl.reshape(x, [WORDS, REPEATS, VECTOR // 4, 2, 2])))
        coarse, fine = _parts(x, PER_ONE)
        return _fixed_by_word(coarse, fine, REPEATS * VECTOR // 4)
    else:
        coarse, fine = _parts(x, PER_ONE)
        return _fixed_by_word(coarse, fine, REPEATS * VECTOR)


@triton.jit
def _words_long(
    base, own, first, rate, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, LABELS: tl.constexpr,
    K: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr
):
    """SPAN columns, from `first` on, of a row longer than a tile, in one pass, by words.

    Each word keeps its own sums, relative to its own largest logit so far: no thread waits for another before the end.
    """
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    FOURS: tl.constexpr = K >= _FOURS_FROM
    top_w, second_w = tl.full([WORDS], float("-inf"), tl.float32), tl.full([WORDS], float("-inf"), tl.float32)
    least_w, ties = tl.full([WORDS], float("inf"), tl.float32), tl.zeros([WORDS], tl.float32)
    finite, higher = tl.zeros([WORDS], tl.float32), tl.zeros([WORDS], tl.float32)
    sums, evidence = tl.zeros([WORDS], tl.float64), tl.zeros([WORDS], tl.int64)
    hashes = tl.zeros([WORDS], tl.uint32)
    for start in range(0, SPAN, BLOCK):
        z = _long_tile(base, first + start, K, REPEATS, WORDS, VECTOR)
        peak = tl.reduce(tl.reduce(z, 2, _larger), 1, _larger)
        if RULE == _MARGIN:
            below = tl.max(tl.max(tl.where(z == peak[:, None, None], float("-inf"), z), 2), 1)
            below = tl.where(_by_word(tl.where(z == peak[:, None, None], 1.0, 0.0)) > 1, peak, below)
            second_w = tl.maximum(tl.minimum(top_w, peak), tl.maximum(second_w, below))
        peak = _larger(top_w, peak)
        if RULE == _ECP or (RULE == _LAC or (RULE == _SAPS or RULE == _MARGIN)):
            reference = tl.where(peak == float("-inf"), 0.0, peak)
            x = _exponential(z, reference[:, None, None], rate)
            sums = sums * tl.exp2((top_w - reference) * rate).to(tl.float64)
            sums += _add_long(x, _PER_ONE, REPEATS, WORDS, VECTOR, FOURS).to(tl.float64)
        top_w = peak
        if LABELS:
            higher += _by_word(tl.where(z > own[:, None, None], 1.0, 0.0))
        if RULE == _ECP:
            evidence += _add_long(_evidence_32(z, EVIDENCE), _PER_EVIDENCE, REPEATS, WORDS, VECTOR, FOURS)
        if RULE != _LAC and RULE != _MARGIN:
            possible = tl.where(z == float("-inf"), float("inf"), z)
            low = tl.minimum(least_w, tl.min(tl.min(possible, 2), 1))
            if RULE == _ECP:
                finite += _by_word(tl.where(z > float("-inf"), 1.0, 0.0))
                at_low = _by_word(tl.where(possible == low[:, None, None], 1.0, 0.0))
                ties = tl.where(low < least_w, 0.0, ties) + at_low
            least_w = low
        if RANDOM:
            hashes += _by_word(_hashes(z)).to(tl.uint32)
    return top_w, second_w, least_w, ties, finite, higher, sums, evidence, hashes


@triton.jit
def _joined(top_w, second_w, least_w, ties, finite, higher, sums, evidence, hashes, rate):
    """The same of all words, or parts, together: numbers; the sum of exponentials in fine units, a whole number."""
    top, least = tl.reduce(top_w, 0, _larger), tl.min(least_w, 0)
    shares = tl.where(top_w == float("-inf"), 0.0, tl.exp2((top_w - top) * rate))
    total = tl.sum((sums * shares.to(tl.float64)).to(tl.int64), 0).to(tl.float64)
    at_least = tl.sum(tl.where(least_w == least, ties, 0.0), 0)
    runner_up = tl.max(tl.where(top_w == top, second_w, top_w), 0)
    shared = tl.sum(tl.where(top_w == top, 1, 0), 0) > 1
    return (
        top, tl.where(shared, top, runner_up), least, at_least, tl.sum(finite, 0), tl.sum(higher, 0), total,
        tl.sum(evidence, 0), tl.sum(hashes, 0),
    )


@triton.jit
def _of_row(top, second, least, at_least, finite, higher, total, evidence, hash_sum, EVIDENCE: tl.constexpr):
    """What `_joined` says of a row, as `_reduce_tile` says it."""
    zero = tl.zeros([1], tl.float32)
    rest = evidence - _fixed(_evidence_32(zero + top, EVIDENCE), _PER_EVIDENCE)
    return (
        zero + top, zero + least, zero + (finite - at_least), zero + total, rest.to(tl.float64) * _EVIDENCE_UNIT,
        zero + hash_sum.to(tl.float64), zero + second, zero + higher,
    )


@triton.jit
def _reduce_long(
    base, own, rate, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, LABELS: tl.constexpr,
    K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr
):
    """The same for one row longer than a tile, in one pass.

    Where exponentials must be whole numbers of the whole row's unit (`_APS`, `_RAPS`) a second pass adds them up.
    """
    top_w, second_w, least_w, ties, finite, higher, sums, evidence, hashes = _words_long(
        base, own, 0, rate, RULE, EVIDENCE, RANDOM, LABELS, K, K, BLOCK, WORDS, VECTOR
    )
    top, second, least, at_least, finite, higher, total, evidence, hashes = _joined(
        top_w, second_w, least_w, ties, finite, higher, sums, evidence, hashes, rate
    )
    top, least, above_least, total, rest, hash_sum, second, rank = _of_row(
        top, second, least, at_least, finite, higher, total, evidence, hashes, EVIDENCE
    )
    mass = total * 0
    if RULE == _APS or RULE == _RAPS:
        total, mass = _masses_long(base, own, top, rate, K, BLOCK, WORDS, VECTOR)
    return top, least, above_least, total, rest, hash_sum, second, rank, mass


@triton.jit
def _masses_long(
    base, own, top, rate, K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr
):
    """Total of exponentials, and the part of it above a logit, in fine units."""
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    total, above = tl.zeros([WORDS], tl.int64), tl.zeros([WORDS], tl.int64)
    for start in range(0, K, BLOCK):
        z = _long_tile(base, start, K, REPEATS, WORDS, VECTOR)
        higher = z > own[:, None, None]
        coarse, fine = _parts(_exponential(z, top[:, None, None], rate), _PER_ONE)
        total += _fixed_by_word(coarse, fine, BLOCK // WORDS)
        coarse, fine = tl.where(higher, coarse, _BIAS_BITS), tl.where(higher, fine, _BIAS_BITS)
        above += _fixed_by_word(coarse, fine, BLOCK // WORDS)
    zero = tl.zeros([1], tl.float64)
    return zero + tl.sum(total, 0), zero + tl.sum(above, 0)


@triton.jit
def _rough_long(
    base, cut, top, rate, RULE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr
):
    """How many labels lie above a cut, and their exponentials as a float."""
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    count, above = tl.zeros([WORDS], tl.float32), tl.zeros([WORDS], tl.float32)
    for start in range(0, K, BLOCK):
        z = _long_tile(base, start, K, REPEATS, WORDS, VECTOR)
        higher = z > cut[:, None, None]
        count += _by_word(tl.where(higher, 1.0, 0.0))
        if RULE == _APS or RULE == _RAPS:
            above += _by_word(tl.where(higher, _exponential(z, top[:, None, None], rate), 0.0))
    zero = tl.zeros([1], tl.float32)
    return zero + tl.sum(count, 0), zero + tl.sum(above, 0)


@triton.jit
def _survey(
    base, z, cut, top, rate, RULE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr, LONG: tl.constexpr
):
    """How many labels lie above a cut, and at least what part of the total they have (0 where the rule does not ask).

    The exponentials are added as floats, from which more is taken than rounding can add.
    """
    if LONG:
        count, above = _rough_long(base, cut, top, rate, RULE, K, BLOCK, WORDS, VECTOR)
    else:
        higher = z > cut[:, None, None]
        count, above = _count(higher), top * 0
        if RULE == _APS or RULE == _RAPS:
            above = _row_sum(tl.where(higher, _exponential(z, top[:, None, None], rate), 0.0))
    SURE: tl.constexpr = 1.0 - (K // BLOCK + _ROUNDINGS) * 2.0**-24
    return count, above.to(tl.float64) * (SURE / _UNIT)
