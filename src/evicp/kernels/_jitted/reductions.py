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
)
from evicp.kernels._jitted.layout import _APS, _ECP, _LAC, _MARGIN, _RAPS, _SAPS, _TOPK

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off


@triton.jit
def _reduce_tile(
    z, own, rate, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, LABELS: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    FOURS: tl.constexpr = K >= _FOURS_FROM
    top = tl.reduce(z, 1, _larger)
    least, above_least, second, rank = top, top * 0, top, top * 0
    rest, total, mass = top.to(tl.float64) * 0, top.to(tl.float64) * 0, top.to(tl.float64) * 0
    hash_sum = top.to(tl.float64) * 0
    if LABELS:
        rank = _count(z > own[:, None])
    if RULE == _APS or RULE == _RAPS:
        coarse, fine = _parts(_exponential(z, top[:, None], rate), _PER_ONE)
        total = _add_parts(coarse, fine, BLOCK).to(tl.float64)
        if LABELS:
            above = z > own[:, None]
            mass = _add_parts(tl.where(above, coarse, _BIAS_BITS), tl.where(above, fine, _BIAS_BITS), BLOCK)
            mass = mass.to(tl.float64)
    elif RULE != _TOPK:
        total = _add_tile(_exponential(z, top[:, None], rate), _PER_ONE, ROWS, BLOCK, FOURS).to(tl.float64)
    if RULE == _ECP:
        evidence = _add_tile(_evidence_32(z, EVIDENCE), _PER_EVIDENCE, ROWS, BLOCK, FOURS)
        others = evidence - _fixed(_evidence_32(top, EVIDENCE), _PER_EVIDENCE)
        rest = others.to(tl.float64) * _EVIDENCE_UNIT
    if RULE != _LAC and RULE != _MARGIN:
        least = _least_of(z, K, BLOCK)
    if RULE == _ECP:
        above_least = _count(z > least[:, None])
    if RULE == _MARGIN:
        below = tl.max(tl.where(z == top[:, None], float("-inf"), z), 1)
        second = tl.where(_count(z == top[:, None]) > 1, top, below)
    if RANDOM:
        hash_sum = tl.sum(_hashes(z), 1).to(tl.float64)
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
def _reduce_long(
    base, own, rate, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, LABELS: tl.constexpr,
    K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr
):
    """The same for one row longer than a tile, in one pass.

    Each word keeps its own sums, relative to its own largest logit so far: no thread waits for another before the end.
    Where exponentials must be whole numbers of the whole row's unit (`_APS`, `_RAPS`) a second pass adds them up.
    """
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    FOURS: tl.constexpr = K >= _FOURS_FROM
    top_w, second_w = tl.full([WORDS], float("-inf"), tl.float32), tl.full([WORDS], float("-inf"), tl.float32)
    least_w, ties = tl.full([WORDS], float("inf"), tl.float32), tl.zeros([WORDS], tl.float32)
    finite, higher = tl.zeros([WORDS], tl.float32), tl.zeros([WORDS], tl.float32)
    sums, evidence = tl.zeros([WORDS], tl.float64), tl.zeros([WORDS], tl.int64)
    hashes = tl.zeros([WORDS], tl.uint32)
    for start in range(0, K, BLOCK):
        z = _long_tile(base, start, K, REPEATS, WORDS, VECTOR)
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
    zero, top, least = tl.zeros([1], tl.float32), tl.reduce(top_w, 0, _larger), tl.min(least_w, 0)
    shares = tl.where(top_w == float("-inf"), 0.0, tl.exp2((top_w - top) * rate))
    total = tl.sum((sums * shares.to(tl.float64)).to(tl.int64), 0).to(tl.float64)
    mass = total * 0
    if RULE == _APS or RULE == _RAPS:
        total, mass, _ = _survey_long(base, own, zero + top, rate, RULE, K, BLOCK, WORDS, VECTOR)
    rest = tl.sum(evidence, 0) - _fixed(_evidence_32(zero + top, EVIDENCE), _PER_EVIDENCE)
    at_least = tl.sum(tl.where(least_w == least, ties, 0.0), 0)
    runner_up = tl.max(tl.where(top_w == top, second_w, top_w), 0)
    shared = tl.sum(tl.where(top_w == top, 1, 0), 0) > 1
    return (
        zero + top, zero + least, zero + (tl.sum(finite, 0) - at_least), zero + total,
        rest.to(tl.float64) * _EVIDENCE_UNIT, zero + tl.sum(hashes, 0).to(tl.float64),
        zero + tl.where(shared, top, runner_up), zero + tl.sum(higher, 0), zero + mass,
    )


@triton.jit
def _survey_long(
    base, cut, top, rate, RULE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr
):
    """Total of exponentials, the part of it above a cut (fine units), and how many labels are above."""
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    total, above = tl.zeros([WORDS], tl.int64), tl.zeros([WORDS], tl.int64)
    count = tl.zeros([WORDS], tl.float32)
    for start in range(0, K, BLOCK):
        z = _long_tile(base, start, K, REPEATS, WORDS, VECTOR)
        higher = z > cut[:, None, None]
        count += _by_word(tl.where(higher, 1.0, 0.0))
        if RULE == _APS or RULE == _RAPS:
            coarse, fine = _parts(_exponential(z, top[:, None, None], rate), _PER_ONE)
            total += _fixed_by_word(coarse, fine, BLOCK // WORDS)
            coarse, fine = tl.where(higher, coarse, _BIAS_BITS), tl.where(higher, fine, _BIAS_BITS)
            above += _fixed_by_word(coarse, fine, BLOCK // WORDS)
    zero = tl.zeros([1], tl.float64)
    return zero + tl.sum(total, 0), zero + tl.sum(above, 0), tl.zeros([1], tl.float32) + tl.sum(count, 0)


@triton.jit
def _survey(
    base, z, cut, top, rate, RULE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr, LONG: tl.constexpr
):
    """How many labels lie above a cut, and what is their part of the total (0 where the rule does not ask)."""
    if LONG:
        _, above, count = _survey_long(base, cut, top, rate, RULE, K, BLOCK, WORDS, VECTOR)
        return count, above
    else:
        higher = z > cut[:, None]
        above = top.to(tl.float64) * 0
        if RULE == _APS or RULE == _RAPS:
            coarse, fine = _parts(_exponential(z, top[:, None], rate), _PER_ONE)
            inside = _add_parts(tl.where(higher, coarse, _BIAS_BITS), tl.where(higher, fine, _BIAS_BITS), BLOCK)
            above = inside.to(tl.float64)
        return _count(higher), above
