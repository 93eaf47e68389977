"""Evaluated rows counted by set size, by true class and by the rank of the true label."""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.layout import _OUTSIDE

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off

#: Most rows share one of a few small values: these are added up by a program before they are added to the counts.
_OFTEN = tl.constexpr(16)


@triton.jit
def _add_by(value, rows_and_hits, size, here, counts, WIDTH):
    """Add rows to the counts of their values: rows, and hits 32 bits above; after WIDTH of these the labels in sets."""
    often = tl.arange(0, _OFTEN)
    match = (value[:, None] == often[None, :]) & here[:, None]
    both = tl.sum(tl.where(match, rows_and_hits[:, None], 0), 0)
    labels = tl.sum(tl.where(match, size[:, None], 0), 0)
    tl.atomic_add(counts + often, both, mask=both > 0, sem="relaxed")
    tl.atomic_add(counts + WIDTH + often, labels, mask=labels > 0, sem="relaxed")
    rare = here & (value >= _OFTEN)
    tl.atomic_add(counts + value, rows_and_hits, mask=rare, sem="relaxed")
    tl.atomic_add(counts + WIDTH + value, size, mask=rare, sem="relaxed")


@triton.jit(do_not_specialize=["n", "K"])
def _count_rows(
    offsets, members, truth, ranks, counts, status, n, K, RANKED: tl.constexpr, ROWS: tl.constexpr
):
    """Count each row under the size of its set, under its class and, with `ranks` from 0, under its label's rank."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    begin = tl.load(offsets + row, mask=inside, other=0)
    size = tl.load(offsets + row + 1, mask=inside, other=0) - begin
    label = tl.load(truth + row, mask=inside, other=0)
    here = inside & (label >= 0) & (label < K)
    tl.atomic_max(status + _OUTSIDE + row * 0, (n - row).to(tl.int64), mask=inside & (here == 0))
    hit, start, most = tl.zeros([ROWS], tl.int32), 0, tl.max(size, 0)
    while start < most:
        other = start + tl.arange(0, 8)[None, :]
        there = inside[:, None] & (other < size[:, None])
        member = tl.load(members + begin[:, None] + other, mask=there, other=-1)
        hit = tl.maximum(hit, tl.max((member == label[:, None]).to(tl.int32), 1))
        start += 8
    rows_and_hits = (hit.to(tl.int64) << 32) + 1
    width = K + 1
    _add_by(size, rows_and_hits, size, here, counts, width)
    _add_by(label, rows_and_hits, size, here, counts + 2 * width, width)
    if RANKED:
        rank = tl.load(ranks + row, mask=inside, other=0.0).to(tl.int64) + 1
        _add_by(rank, rows_and_hits, size, here, counts + 4 * width, width)
