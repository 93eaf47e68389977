"""What kernels are made of: sums in fixed point, exponentials, evidence, hashes, tiles."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from evicp.kernels._jitted.layout import _RELU, _SOFTPLUS

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off

#: 1.5 * 2^23: adding it to a float below 2^22 rounds that to a whole number, which the sum's bits then hold.
_BIAS = tl.constexpr(12582912.0)
_BIAS_BITS = tl.constexpr(0x4B400000)
#: Units of the coarse level per one: probabilities are at most 1, evidence below 2^15, so 2048 of either fit.
_PER_ONE, _PER_EVIDENCE = tl.constexpr(2.0**19), tl.constexpr(2.0**4)
_FINE = tl.constexpr(2.0**20)
_UNIT, _EVIDENCE_UNIT = tl.constexpr(2.0**-39), tl.constexpr(2.0**-24)
_WIDEST = tl.constexpr(2.0**15)
#: Long rows add neighbours in fours as floats before they add integers: fewer instructions, and an error of 2^-24 of
#: the largest evidence, which 16 times the others' base counts of 1 must outweigh.
_FOURS_FROM = tl.constexpr(65)
#: Candidates are narrowed down until there are no more than this, or until it does not help.
_FEW = tl.constexpr(16)
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _larger(a, b):
    """The larger of two; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


#: Whether kernels are compiled for an NVIDIA device: neither interpreted nor on ROCm.
_NVIDIA = tl.constexpr(isinstance(_larger, triton.JITFunction) and torch.version.hip is None)


@triton.jit
def _is_certain(top, least, total):
    """Whether only one label is possible: all that are share the largest logit, and their total is that of one."""
    return (top == least) & (total * _UNIT == 1.0)


@triton.jit
def _exponential(z, top, rate):
    """softmax's numerator, in (0, 1]: the same operations wherever it is needed, so the same bits."""
    return tl.exp2((z - top) * rate)


@triton.jit
def _parts(x, PER_ONE: tl.constexpr):
    """x >= 0 in fixed point: whole coarse units, and the remainder in 2^-20 of them, as the bits of biased floats."""
    coarse = tl.fma(x, PER_ONE, _BIAS)
    left = tl.fma(x, PER_ONE, _BIAS - coarse)
    fine = tl.fma(left, _FINE, _BIAS)
    return coarse.to(tl.int32, bitcast=True), fine.to(tl.int32, bitcast=True)


@triton.jit
def _fixed(x, PER_ONE: tl.constexpr):
    """x in fine units, int64."""
    coarse, fine = _parts(x, PER_ONE)
    return ((coarse - _BIAS_BITS).to(tl.int64) << 20) + (fine - _BIAS_BITS)


@triton.jit
def _row_sum(x):
    """The sum of each row of a tile: that of the numbers a thread holds, then across threads."""
    return tl.sum(tl.sum(x, 1), 1)


@triton.jit
def _row_max(x):
    return tl.max(tl.max(x, 1), 1)


@triton.jit
def _row_min(x):
    return tl.min(tl.min(x, 1), 1)


@triton.jit
def _add_parts(coarse, fine, COUNT: tl.constexpr):
    """The sum of COUNT numbers in each row in fine units, int64. The biases add up too, modulo 2^32, and come off."""
    BIASES: tl.constexpr = (COUNT * 0x4B400000 + 2**31) % 2**32 - 2**31
    coarse_sum = _row_sum(coarse) - BIASES
    fine_sum = _row_sum(fine) - BIASES
    return (coarse_sum.to(tl.int64) << 20) + fine_sum


@triton.jit
def _halves(x):
    a, b = tl.split(x)
    return a + b


@triton.jit
def _add_tile(
    x, PER_ONE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, FOURS: tl.constexpr
):
    """The sum of each row of a tile in fine units, int64."""
    if FOURS:
        x = _halves(_halves(tl.reshape(x, [ROWS, BLOCK // WIDTH, WIDTH // 4, 2, 2])))
        coarse, fine = _parts(x, PER_ONE)
        return _add_parts(coarse, fine, BLOCK // 4)
    else:
        coarse, fine = _parts(x, PER_ONE)
        return _add_parts(coarse, fine, BLOCK)


@triton.jit
def _evidence_32(z, EVIDENCE: tl.constexpr):
    if EVIDENCE == _RELU:
        return tl.maximum(z, 0.0)
    elif EVIDENCE == _SOFTPLUS:
        return tl.maximum(z, 0.0) + tl.log2(1.0 + tl.exp2(-tl.abs(z) * _LOG2_E)) * _LN_2
    else:
        clipped = tl.minimum(tl.maximum(z, -10.0), 10.0)
        return tl.where(z == float("-inf"), 0.0, tl.exp2(clipped * _LOG2_E))


@triton.jit
def _evidence_64(z, EVIDENCE: tl.constexpr):
    if EVIDENCE == _RELU:
        return tl.maximum(z, 0.0)
    elif EVIDENCE == _SOFTPLUS:
        return tl.maximum(z, 0.0) + _log1p(tl.exp(-tl.abs(z)))
    else:
        clipped = tl.minimum(tl.maximum(z, -10.0), 10.0)
        return tl.where(z == float("-inf"), 0.0, tl.exp(clipped))


@triton.jit
def _log1p(x):
    """ln(1 + x) for x >= 0, with what rounding took from 1 + x put back."""
    one_more = 1.0 + x
    return tl.log(one_more) + (x - (one_more - 1.0)) / one_more


@triton.jit
def _rough_log2(x):
    """log2 of x >= 0 to 2e-5, at an eighth of the cost of the exact one; -127 or less at 0."""
    if _NVIDIA:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    bits = x.to(tl.int32, bitcast=True)
    m = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    p = tl.fma(tl.fma(m, 0.043004957791727826, -0.402513393548008), m, 1.5894742949724239)
    p = tl.fma(tl.fma(p, m, -3.4898785506802206), m, 5.047855413438107)
    return tl.fma(p, m, -2.7879262073031468) + ((bits >> 23) - 127).to(tl.float32)


@triton.jit
def _mix32(x):
    """MurmurHash3's 32-bit finaliser."""
    x = x ^ (x >> 16)
    x = x * 0x85EBCA6B
    x = x ^ (x >> 13)
    x = x * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _hashes(z):
    """Each finite logit's part in its row's hash, uint32; -0.0 + 0.0 is 0.0."""
    bits = (z + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(z == float("-inf"), 0, _mix32(bits)).to(tl.uint32)


@triton.jit
def _count(condition):
    """How many hold in each row, float32: exact, and a cheaper instruction than the integer one."""
    return _row_sum(tl.where(condition, 1.0, 0.0))


@triton.jit
def _columns(BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    return tl.arange(0, BLOCK // WIDTH)[None, :, None] * WIDTH + tl.arange(0, WIDTH)[None, None, :]


@triton.jit
def _tile(base, K: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """The logits of some rows, (ROWS, BLOCK / WIDTH, WIDTH): a few threads read WIDTH neighbours of a row at a time.

    What is reduced along the second axis stays in a thread; along the last one few threads take part, and those of
    all rows of a warp at once.
    """
    column = _columns(BLOCK, WIDTH)
    return tl.load(base[:, None, None] + column, mask=column < K, other=float("-inf")).to(tl.float32)


@triton.jit
def _least_of(z, K: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """The smallest finite logit of each row. Masked labels are rare: the second look is, too."""
    real = _columns(BLOCK, WIDTH) < K
    least = _row_min(tl.where(real, z, float("inf")))
    if tl.min(least, 0) == float("-inf"):
        least = _row_min(tl.where(z == float("-inf"), float("inf"), z))
    return least
