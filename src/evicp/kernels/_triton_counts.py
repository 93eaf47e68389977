"""Evaluated rows counted on the device by Triton kernels: one reads the logits, one counts, and there is one wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from evicp.kernels._jitted.counts import _count_rows
from evicp.kernels._jitted.layout import _OUTSIDE, _RANK, REPORTED
from evicp.kernels._triton_batch import Batch
from evicp.kernels._triton_launch import Kernel

_ROWS = 128
_kernels = {ranked: Kernel(_count_rows, 4, RANKED=ranked, ROWS=_ROWS) for ranked in (False, True)}


@dataclass(frozen=True)
class RankOnly:
    """What `Batch` needs of a score, for a count of the labels above and nothing else."""

    name: str = "topk"
    temperature: float = 1.0
    randomized: bool = False
    seed: int = 0
    adds_up: bool = False


def tallied(
    offsets: Tensor, members: Tensor, truth: Tensor, logits: Tensor | None, n_classes: int, first_row: int = 0
) -> NDArray[np.int64] | None:
    """As `_torch_counts.tallied`, of one row or more."""
    n, width, kinds = len(truth), n_classes + 1, 2 if logits is None else 3
    room = torch.zeros(REPORTED + 2 * kinds * width, dtype=torch.int64, device=truth.device)
    status, counts = room[:REPORTED], room[REPORTED:]
    ranks, batch = counts, None
    if logits is not None:
        batch = Batch(RankOnly(), logits, first_row, status=status)
        batch.read_labels(truth)
        ranks = batch.stats[_RANK.value]
    arguments = (offsets.contiguous(), members.contiguous(), truth, ranks, counts, status, n, n_classes)
    _kernels[logits is not None](triton.cdiv(n, _ROWS), *arguments)
    found = room.cpu().numpy()
    report = found[:REPORTED].tolist()
    if report[_OUTSIDE.value]:
        return None
    if batch is not None:
        batch.refuse(report)
    rows_and_hits, labels = found[REPORTED:].reshape(kinds, 2, width).swapaxes(0, 1)
    return np.stack([rows_and_hits & 0xFFFFFFFF, rows_and_hits >> 32, labels], axis=1)
