"""Sets of rows that have more candidates than slots: each row's candidates are sorted by one program."""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.arithmetic import _PER_ONE, _exponential, _fixed, _tile
from evicp.kernels._jitted.fixed import _logit_at
from evicp.kernels._jitted.layout import _APS, _CUT, _RAPS, _RATE, _TOP, _UNORDERED
from evicp.kernels._jitted.scores import _score
from evicp.kernels._jitted.slots import _fill, _fill_from_long
from evicp.kernels._jitted.summary import _in_order

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off

#: A label in a key takes this many bits, below those of the logit, and is turned round: all ones for the first.
_LABEL_BITS, _FIRST_LABEL = tl.constexpr(31), tl.constexpr(2**31 - 1)


@triton.jit
def _later(a, b):
    return tl.maximum(a, b)


@triton.jit
def _key(logits, packed, here):
    """A candidate as a number: they descend by logit, then ascend by label; -1 where there is none."""
    label = packed >> 32
    z = tl.load(logits + label, mask=here, other=0.0).to(tl.float32) + 0.0
    return tl.where(here, (_in_order(z) << _LABEL_BITS) + (label ^ _FIRST_LABEL), -1)


@triton.jit(do_not_specialize=["n", "threshold_bits"])
def _sort_candidates(
    logits, rows, begins, counts, stats, parameters, room, labels, scores, sizes, status, n,
    threshold_bits: tl.int64, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, K: tl.constexpr,
    STRIDE: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, WORDS: tl.constexpr, LONG: tl.constexpr,
    MOST: tl.constexpr, FEWEST: tl.constexpr
):
    """Put a row's candidates in order, score them and count the members, if they are more than FEWEST, at most MOST.

    Members come first then, as scores ascend; where rounding alone prevents that, it is reported.
    """
    number = tl.program_id(0)
    row = tl.load(rows + number)
    count, begin = tl.load(counts + row), tl.load(begins + number)
    if (count > FEWEST) & (count <= MOST):
        one = row + tl.zeros([1], tl.int64)
        base, own_room = logits + one * STRIDE, room + begin + tl.zeros([1], tl.int64)
        cut = tl.load(stats + _CUT * n + one).to(tl.float32)
        if LONG:
            _fill_from_long(base, own_room, cut, K, MOST, BLOCK, WORDS, VECTOR)
        else:
            REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
            higher = _tile(base, K, BLOCK, WORDS * VECTOR) > cut[:, None, None]
            flags = tl.reshape(higher, [1, REPEATS, WORDS, VECTOR])
            _fill(own_room, flags, 0, tl.zeros([1], tl.int32), MOST, REPEATS, WORDS, VECTOR)
        tl.debug_barrier()  # other threads of this program read it next
        place = tl.arange(0, MOST)
        here = place < count
        packed = tl.load(room + begin + place, mask=here, other=0)
        key = tl.sort(_key(logits + row * STRIDE, packed, here), descending=True)
        tl.debug_barrier()
        tl.store(room + begin + place, key, mask=here)
        tl.debug_barrier()
        before = tl.load(room + begin + place - 1, mask=here & (place > 0), other=-1)
        opens = (before >> _LABEL_BITS) != (key >> _LABEL_BITS)
        z = _logit_at(key >> _LABEL_BITS)
        rank = tl.associative_scan(tl.where(opens, place, 0), 0, _later)
        mass = tl.zeros([MOST], tl.int64)
        every = row + place * 0
        if RULE == _APS or RULE == _RAPS:
            top = tl.load(stats + _TOP * n + row).to(tl.float32)
            rate = tl.load(parameters + _RATE).to(tl.float32)
            own = tl.where(here, _fixed(_exponential(z, top, rate), _PER_ONE), 0)
            above = tl.cumsum(own, 0) - own
            mass = tl.associative_scan(tl.where(opens, above, 0), 0, _later)
        score = _score(
            z, rank.to(tl.float64), mass.to(tl.float64), every, here, stats, parameters, n, K, RULE, EVIDENCE, RANDOM
        )
        tl.store(scores + begin + place, score, mask=here)
        tl.debug_barrier()
        lower = tl.load(scores + begin + place - 1, mask=here & (place > 0), other=float("-inf"))
        threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
        size = tl.sum((here & (score <= threshold)).to(tl.int32), 0)
        tl.store(labels + begin + place, ((key & _FIRST_LABEL) ^ _FIRST_LABEL).to(tl.int32), mask=here)
        tl.store(sizes + row + 1, size)
        unordered = one * 0 + tl.max((here & (score < lower)).to(tl.int32), 0)
        tl.atomic_add(status + _UNORDERED + one * 0, unordered, mask=unordered > 0, sem="relaxed")


@triton.jit
def _place_sorted(rows, begins, labels, scores, offsets, out_labels, out_scores, CHUNK: tl.constexpr):
    """Copy the sets of rows whose candidates were sorted to where they belong."""
    number = tl.program_id(0)
    row, begin = tl.load(rows + number), tl.load(begins + number)
    target = tl.load(offsets + row)
    size, start = (tl.load(offsets + row + 1) - target).to(tl.int32), 0
    while start < size:
        place = start + tl.arange(0, CHUNK)
        here = place < size
        tl.store(out_labels + target + place, tl.load(labels + begin + place, mask=here), mask=here)
        tl.store(out_scores + target + place, tl.load(scores + begin + place, mask=here), mask=here)
        start += CHUNK
