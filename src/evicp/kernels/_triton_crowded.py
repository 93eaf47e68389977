"""Rows that have more candidates than slots: theirs are sorted by a kernel, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evicp.kernels import _triton_launch as launch
from evicp.kernels._jitted.layout import _UNORDERED
from evicp.kernels._torch import offsets_of

if TYPE_CHECKING:
    from evicp.kernels._triton_batch import Batch

#: At most so many candidates of a row are sorted by one program, and of all rows together, which take 20 bytes each.
MOST_OF_A_ROW, MOST_TOGETHER = 2048, 1 << 26


def sorted_sets(
    batch: Batch, candidates: tuple[Tensor, ...], rows: Tensor, threshold: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Offsets, labels and scores of all rows, of which those in `rows` have no room in their slots.

    None where there are too many candidates, or where scores do not ascend as the logits fall, by rounding alone.
    """
    _, counts, _, sizes, *_ = candidates
    own = counts[rows].to(torch.int64)
    begins = offsets_of(own)
    most, together = torch.stack([own.max(), begins[-1]]).tolist()
    if most > MOST_OF_A_ROW or together > MOST_TOGETHER:
        return None
    device, plan = sizes.device, batch.plan
    keys = torch.empty(together, dtype=torch.int64, device=device)
    labels = torch.empty(together, dtype=torch.int32, device=device)
    scores = torch.empty(together, dtype=torch.float64, device=device)
    tensors = (batch.logits, rows, begins, counts, batch.stats, batch.parameters, keys, labels, scores, sizes)
    for fewest, kernel in plan.sorts.items():
        if fewest < most:
            kernel(len(rows), *tensors, batch.status, batch.n, launch.bits_of(threshold))
    offsets = torch.cumsum(sizes, 0, dtype=torch.int64)
    total, unordered = torch.stack([offsets[-1], batch.status[_UNORDERED.value]]).tolist()
    if unordered:
        return None
    result = batch.write_sets(candidates, offsets, total, threshold)
    plan.place_sorted(len(rows), rows, begins, labels, scores, *result)
    return result
