"""Evaluation of sets on an accelerator: rows are counted there, and only counts come to the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evicp import kernels
from evicp.calibration.device import DeviceSets
from evicp.evaluation.counts import Counts, Tally
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis

#: Types of labels that are class numbers as they are.
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def tally_there(sets: DeviceSets, labels: Any, logits: Any) -> Tally | None:
    """The counts of sets with labels, and logits or None, on their device; None where the CPU has to look at these."""
    n_classes, device = sets.about.n_classes, sets.labels.device
    given = [labels] if logits is None else [labels, logits]
    beside = all(convert.is_torch(one) and one.device == device and one.layout == torch.strided for one in given)
    if not beside or labels.dtype not in _WHOLE or labels.shape != (len(sets),) or not len(sets):
        return None
    truth, ranks = labels.detach().to(torch.int64), None
    if not ClassAxis.known_to(sets.about).takes_numbers or bool(((truth < 0) | (truth >= n_classes)).any()):
        return None
    if logits is not None:
        array = validate.as_device_logits(logits, n_classes, row_allowed=True)
        if len(array) != len(sets):
            return None
        ranks = kernels.on_device(None, array).label_ranks(array, truth)
    sizes = sets.sizes
    row = torch.arange(len(sets), device=device).repeat_interleave(sizes, output_size=len(sets.labels))
    hits = torch.zeros(len(sets), dtype=torch.int32, device=device)
    hits.index_add_(0, row, (sets.labels == truth[row]).to(torch.int32))
    return _tally(sizes, hits > 0, row, truth, ranks, n_classes)


def _tally(sizes: Tensor, covered: Tensor, row: Tensor, truth: Tensor, ranks: Tensor | None, n_classes: int) -> Tally:
    """Rows by size, by class and by rank, and the labels in their sets, counted together.

    `row` is that of each label in a set. What is counted is sorted: most rows have one of few values, and adding to
    these one by one takes longer.
    """
    kinds = [sizes, truth] if ranks is None else [sizes, truth, ranks]
    width = n_classes + 1
    values = torch.stack([number * width + kind for number, kind in enumerate(kinds)])
    bins = width * len(kinds)
    keys = torch.cat([(2 * values + covered).flatten(), 2 * bins + values[:, row].flatten()])
    keys = keys.to(torch.int16 if 3 * bins < 2**15 else torch.int32 if 3 * bins < 2**31 else torch.int64)
    edges = torch.arange(3 * bins + 1, device=keys.device).to(keys.dtype)
    found = torch.searchsorted(keys.sort().values, edges).diff().cpu().numpy()
    by_kind = zip(found[: 2 * bins].reshape(len(kinds), width, 2), found[2 * bins :].reshape(-1, width), strict=True)
    counts = [Counts(rows.sum(1), rows[:, 1].copy(), labels) for rows, labels in by_kind]
    by_class = Counts(*(total[:n_classes] for total in vars(counts[1]).values()))
    return Tally(counts[0], by_class, None if ranks is None else counts[2], None)
