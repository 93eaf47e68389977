"""Sets of fixed shape by plain tensor operations, without waiting for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evicp.input.validate import LARGEST_LOGIT
from evicp.kernels._torch import BLOCK_LOGITS, every_label, stable_order, working_type


def fixed_sets(score: Any, logits: Tensor, threshold: float, width: int | None) -> tuple[Tensor, Tensor]:
    """Membership (n, K), or the first labels of each set (n, width), -1 after its last; and sizes, (n,).

    A row that cannot be scored has the size -1 and no labels.
    """
    rows = max(1, BLOCK_LOGITS // logits.shape[1])
    parts = [_of_block(score, block, threshold, width) for block in torch.split(logits.detach(), rows)]
    if len(parts) == 1:
        return parts[0]
    sets, sizes = zip(*parts, strict=True)
    return torch.cat(sets), torch.cat(sizes)


def _of_block(score: Any, logits: Tensor, threshold: float, width: int | None) -> tuple[Tensor, Tensor]:
    z = logits.to(working_type(logits.device)).contiguous()
    largest = z.amax(1, keepdim=True)
    usable = (largest > -torch.inf) & (largest <= LARGEST_LOGIT) & (largest < torch.inf)  # NaN fails all
    z = torch.where(usable, z, 0.0)
    scores = every_label(score, z)
    member = (scores <= threshold) & usable
    sizes = torch.where(usable[:, 0], member.sum(1), -1).to(torch.int32)
    if width is None:
        return member, sizes
    order = stable_order(-z, scores, ~member)[:, :width]
    inside = torch.arange(width, device=z.device) < sizes[:, None]
    return torch.where(inside, order, -1).to(torch.int32), sizes
