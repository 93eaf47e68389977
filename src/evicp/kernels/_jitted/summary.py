"""What a calibration needs to know of labelled rows beside their scores, and what is odd about the first rows."""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.layout import (
    _DIGEST,
    _ECP,
    _LARGEST_OWN,
    _LOWEST_TOP,
    _MASKED,
    _ODD,
    _ORDER_FROM_ZERO,
    _SECONDS,
)

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off

#: The first row's logits that are sampled, and the rows of which most have no evidence.
_LOOKED_AT, _ROWS_LOOKED_AT = tl.constexpr(256), tl.constexpr(32)
#: More than a probability can be, rounding included.
_BEYOND_ONE = tl.constexpr(1.002)


@triton.jit
def _mix64(x):
    """The finaliser of SplitMix64, uint64; as `origin.mix64` of the calibration."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _in_order(z):
    """A float as a whole number, int64, that ascends with it; -inf is 0."""
    bits = z.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + _ORDER_FROM_ZERO


@triton.jit
def _look_at_first_row(logits, status, K):
    """Report a first row that could be probabilities, or has one logit for all classes: the host looks again."""
    if tl.program_id(0) == 0:
        column = tl.arange(0, _LOOKED_AT)
        z = tl.load(logits + tl.minimum(column, K - 1)).to(tl.float32)
        low, high = tl.min(z, 0), tl.max(z, 0)
        odd = ((low >= 0.0) & (high <= _BEYOND_ONE)) | (low == high)
        tl.atomic_add(status + _ODD, odd.to(tl.int64), sem="relaxed")


@triton.jit
def _summarize(
    z, label, score, top, above_least, row, here, first_row, hashes, status, n, RULE: tl.constexpr
):
    """Put down each row's hash, and add up what is asked of all rows."""
    bits = (z.to(tl.float64) + 0.0).to(tl.uint64, bitcast=True)
    hashed = _mix64(bits + _mix64(label.to(tl.uint64) + 1))
    tl.store(hashes + row, hashed.to(tl.int64, bitcast=True), mask=here)
    place = (first_row + 1 + row).to(tl.uint64)
    digest = _mix64(hashed ^ _mix64(place)).to(tl.int64, bitcast=True)
    tl.atomic_add(status + _DIGEST, tl.sum(tl.where(here, digest, 0), 0), sem="relaxed")
    masked = here & (z == float("-inf"))
    tl.atomic_add(status + _MASKED, tl.sum(masked.to(tl.int64), 0), sem="relaxed")
    tl.atomic_max(status + _LARGEST_OWN, tl.max(tl.where(here, _in_order(z), 0), 0), sem="relaxed")
    below = tl.where(here & (z < 0), _in_order(-top.to(tl.float32)), 0)
    tl.atomic_max(status + _LOWEST_TOP, tl.max(below, 0), sem="relaxed")
    if RULE == _ECP:
        second = here & (score == 0.0) & (above_least <= 1.0)
        tl.atomic_add(status + _SECONDS, tl.sum(second.to(tl.int64), 0), sem="relaxed")
        looked_at = tl.sum((here & (row < _ROWS_LOOKED_AT)).to(tl.int64), 0)
        flat = tl.sum((here & (row < _ROWS_LOOKED_AT) & (top <= 0)).to(tl.int64), 0)
        tl.atomic_add(status + _ODD, (2 * flat > looked_at).to(tl.int64), sem="relaxed")
