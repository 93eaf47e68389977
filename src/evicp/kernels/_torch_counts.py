"""Evaluated rows counted on their device by plain tensor operations."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evicp.kernels._torch import label_ranks


def tallied(
    offsets: Tensor, members: Tensor, truth: Tensor, logits: Tensor | None, n_classes: int
) -> NDArray[np.int64] | None:
    """Rows, covered rows and labels in sets by set size, by true class and, with logits, by the true label's rank.

    (2 or 3, 3, K + 1), on the host; None where a label is no class. What is counted is sorted: most rows have one of
    few values, and adding to these one by one takes longer.
    """
    if bool(((truth < 0) | (truth >= n_classes)).any()):
        return None
    sizes, width = offsets.diff(), n_classes + 1
    row = torch.arange(len(truth), device=truth.device).repeat_interleave(sizes, output_size=len(members))
    hits = torch.zeros(len(truth), dtype=torch.int32, device=truth.device)
    hits.index_add_(0, row, (members == truth[row]).to(torch.int32))
    kinds = [sizes, truth] if logits is None else [sizes, truth, label_ranks(logits, truth)]
    values = torch.stack([number * width + kind for number, kind in enumerate(kinds)])
    bins = width * len(kinds)
    keys = torch.cat([(2 * values + (hits > 0)).flatten(), 2 * bins + values[:, row].flatten()])
    keys = keys.to(torch.int16 if 3 * bins < 2**15 else torch.int32 if 3 * bins < 2**31 else torch.int64)
    edges = torch.arange(3 * bins + 1, device=keys.device).to(keys.dtype)
    found = torch.searchsorted(keys.sort().values, edges).diff().cpu().numpy()
    rows, labels = found[: 2 * bins].reshape(len(kinds), width, 2), found[2 * bins :].reshape(len(kinds), width)
    return np.stack([rows.sum(2), rows[:, :, 1], labels], axis=1)
