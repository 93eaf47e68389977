"""From candidates to sets.

Most rows have one candidate, the top label, and a thread to themselves. The candidates of the others, of ROWS rows, are
numbered through and dealt to threads, so that long and short lists even out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.arithmetic import _PER_ONE, _exponential, _fixed
from evicp.kernels._jitted.layout import _APS, _LAC, _MARGIN, _MEMBERS, _RAPS, _RATE, _TOP
from evicp.kernels._jitted.scores import _finish, _score
from evicp.kernels._jitted.summary import _look_at_first_row

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off


@triton.jit
def _numbered(counts, ends, row, n, SLOTS: tl.constexpr):
    """Put down where each row's candidates end in the numbering of this program, and return how many there are.

    Rows of a single candidate, or without room in their slots, have none.
    """
    count = tl.load(counts + row, mask=row < n, other=0)
    count = tl.where((count > 1) & (count <= SLOTS), count, 0)
    tl.store(ends + row, tl.cumsum(count, 0), mask=row < n)
    tl.debug_barrier()  # other threads of this program read it next
    return tl.sum(count, 0)


@triton.jit
def _dealt(number, ends, first_row, n, here, SLOTS: tl.constexpr, ROWS: tl.constexpr):
    """Row, number of candidates there, where its slots begin and which slot, of each numbered candidate."""
    local, half = number * 0, ROWS // 2
    while half > 0:
        row = first_row + local + half - 1
        local += tl.where(tl.load(ends + row, mask=here & (row < n), other=2**30) <= number, half, 0)
        half = half // 2
    row = first_row + local
    begin = tl.load(ends + row - 1, mask=here & (local > 0), other=0)
    count = tl.load(ends + row, mask=here, other=0) - begin
    return row, count, row.to(tl.int64) * SLOTS, number - begin


@triton.jit
def _logit(packed):
    return packed.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _single(counts, row, n):
    """Whether a row has one candidate: its top label, in its first slot."""
    return tl.load(counts + row, mask=row < n, other=0) == 1


@triton.jit
def _score_single(
    scores, counts, sizes, stats, parameters, threshold, row, n, K, RULE: tl.constexpr, EVIDENCE: tl.constexpr,
    RANDOM: tl.constexpr, SLOTS: tl.constexpr
):
    """Score the candidates of rows that have one, and return how many are members."""
    here = _single(counts, row, n)
    top = tl.load(stats + _TOP * n + row, mask=here, other=0.0).to(tl.float32)
    none = tl.zeros(row.shape, tl.float64)
    score = _score(top, none, none, row, here, stats, parameters, n, K, RULE, EVIDENCE, RANDOM)
    tl.store(scores + row.to(tl.int64) * SLOTS, score, mask=here)
    member = (here & (score <= threshold)).to(tl.int32)
    tl.store(sizes + row + 1, member, mask=here)
    return tl.sum(member, 0)


@triton.jit
def _fetch(
    logits, slots, fixed, ends, stats, total, first_row, rate, n, stride, RULE: tl.constexpr, SLOTS: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr
):
    """Beside each candidate's label, the upper half of its slot, put the bits of its logit; and its exponential."""
    first = 0
    while first < total:
        number = first + tl.arange(0, CHUNK)
        here = number < total
        row, _, places, own = _dealt(number, ends, first_row, n, here, SLOTS, ROWS)
        packed = tl.load(slots + places + own, mask=here, other=0)
        z = tl.load(logits + row.to(tl.int64) * stride + (packed >> 32), mask=here, other=0.0).to(tl.float32)
        bits = z.to(tl.uint32, bitcast=True).to(tl.int64)
        tl.store(slots + places + own, packed | bits, mask=here)
        if RULE == _APS or RULE == _RAPS:
            top = tl.load(stats + _TOP * n + row, mask=here, other=0.0).to(tl.float32)
            tl.store(fixed + places + own, _fixed(_exponential(z, top, rate), _PER_ONE), mask=here)
        first += CHUNK
    tl.debug_barrier()  # other threads of this program read it next


@triton.jit(do_not_specialize=["n", "K", "stride", "threshold_bits"])
def _score_candidates(
    logits, slots, counts, scores, sizes, ends, fixed, status, stats, parameters, n, K, stride,
    threshold_bits: tl.int64,
    RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr
):
    """Score every candidate and count each row's members. All labels above a candidate are candidates, too."""
    threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
    rate = tl.load(parameters + _RATE).to(tl.float32)
    first_row = tl.program_id(0) * ROWS
    every_row = first_row + tl.arange(0, ROWS)
    _finish(stats, parameters, n, K, every_row, every_row < n, RULE, EVIDENCE, RANDOM)
    total = _numbered(counts, ends, every_row, n, SLOTS)
    _fetch(logits, slots, fixed, ends, stats, total, first_row, rate, n, stride, RULE, SLOTS, ROWS, CHUNK)
    members, first = _score_single(
        scores, counts, sizes, stats, parameters, threshold, every_row, n, K, RULE, EVIDENCE, RANDOM, SLOTS
    ), 0
    while first < total:
        number = first + tl.arange(0, CHUNK)
        here = number < total
        row, count, places, own = _dealt(number, ends, first_row, n, here, SLOTS, ROWS)
        z = _logit(tl.load(slots + places + own, mask=here, other=0))
        ranks, masses = tl.zeros([CHUNK, 8], tl.float32), tl.zeros([CHUNK, 8], tl.int64)
        start, most = 0, tl.max(count, 0)
        if RULE == _LAC or RULE == _MARGIN:  # no score of theirs asks for a rank
            most = most * 0
        while start < most:
            other = start + tl.arange(0, 8)[None, :]
            there = here[:, None] & (other < count[:, None])
            higher_z = _logit(tl.load(slots + places[:, None] + other, mask=there, other=0))
            higher = there & (higher_z > z[:, None])
            if RULE != _APS:
                ranks += tl.where(higher, 1.0, 0.0)
            if RULE == _APS or RULE == _RAPS:
                masses += tl.load(fixed + places[:, None] + other, mask=higher, other=0)
            start += 8
        rank, mass = tl.sum(ranks, 1).to(tl.float64), tl.sum(masses, 1).to(tl.float64)
        score = _score(z, rank, mass, row, here, stats, parameters, n, K, RULE, EVIDENCE, RANDOM)
        tl.store(scores + places + own, score, mask=here)
        member = here & (score <= threshold)
        tl.atomic_add(sizes + row + 1, member.to(tl.int32), mask=member, sem="relaxed")
        members += tl.sum(member.to(tl.int32), 0)
        first += CHUNK
    tl.atomic_add(status + _MEMBERS, members.to(tl.int64), sem="relaxed")
    _look_at_first_row(logits, status, K)


@triton.jit
def _placed(
    number, here, slots, scores, ends, first_row, n, SLOTS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr
):
    """Row, label and score of each numbered candidate, and how many candidates of its row come before it.

    That is those with a lower score, then a higher logit, then a lower index.
    """
    row, count, places, own = _dealt(number, ends, first_row, n, here, SLOTS, ROWS)
    packed = tl.load(slots + places + own, mask=here, other=0)
    score = tl.load(scores + places + own, mask=here, other=float("inf"))
    z, label = _logit(packed)[:, None], (packed >> 32)[:, None]
    before = tl.zeros([CHUNK, 8], tl.int32)
    start, most = 0, tl.max(count, 0)
    while start < most:
        other = start + tl.arange(0, 8)[None, :]
        there = here[:, None] & (other < count[:, None])
        other_packed = tl.load(slots + places[:, None] + other, mask=there, other=0)
        other_score = tl.load(scores + places[:, None] + other, mask=there, other=float("inf"))
        other_z = _logit(other_packed)
        earlier = (other_z > z) | ((other_z == z) & ((other_packed >> 32) < label))
        lower = (other_score < score[:, None]) | ((other_score == score[:, None]) & earlier)
        before += (there & lower).to(tl.int32)
        start += 8
    return row, (packed >> 32).to(tl.int32), score, tl.sum(before, 1)


@triton.jit
def _write_single(
    slots, counts, scores, offsets, out_labels, out_scores, row, n, most, threshold, SLOTS: tl.constexpr
):
    """The sets of rows that have one candidate."""
    single, places = _single(counts, row, n), row.to(tl.int64) * SLOTS
    label = (tl.load(slots + places, mask=single, other=0) >> 32).to(tl.int32)
    score = tl.load(scores + places, mask=single, other=0.0)
    target = tl.load(offsets + row, mask=single, other=0)
    member = single & (score <= threshold) & (target < most)
    tl.store(out_labels + target, label, mask=member)
    tl.store(out_scores + target, score, mask=member)


@triton.jit(do_not_specialize=["n", "most", "threshold_bits"])
def _write_sets(
    slots, counts, scores, ends, offsets, out_labels, out_scores, n, most: tl.int64, threshold_bits: tl.int64,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr
):
    """Put each member where it belongs in its ragged set; there is room for `most`, and others are left out."""
    threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
    first_row = tl.program_id(0) * ROWS
    every_row = first_row + tl.arange(0, ROWS)
    _write_single(slots, counts, scores, offsets, out_labels, out_scores, every_row, n, most, threshold, SLOTS)
    last_row = tl.minimum(first_row + ROWS, n) - 1
    total, first = tl.load(ends + last_row), 0
    while first < total:
        number = first + tl.arange(0, CHUNK)
        here = number < total
        row, label, score, before = _placed(number, here, slots, scores, ends, first_row, n, SLOTS, ROWS, CHUNK)
        target = tl.load(offsets + row, mask=here, other=0) + before
        member = here & (score <= threshold) & (target < most)
        tl.store(out_labels + target, label, mask=member)
        tl.store(out_scores + target, score, mask=member)
        first += CHUNK
