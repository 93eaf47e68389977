"""Evaluation of sets on an accelerator: rows are counted on it, and only counts come to the CPU."""

from __future__ import annotations

from typing import Any

import torch

from evicp import kernels
from evicp.calibration.device import DeviceSets
from evicp.evaluation.counts import Counts, Tally
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis

#: Types of labels that are class numbers as they are.
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def tally_on_device(sets: DeviceSets, labels: Any, logits: Any) -> Tally | None:
    """The counts of sets with labels, and logits or None, on their device; None where the CPU has to look at these."""
    n_classes, device = sets.about.n_classes, sets.labels.device
    given = [labels] if logits is None else [labels, logits]
    beside = all(convert.is_torch(one) and one.device == device and one.layout == torch.strided for one in given)
    if not beside or labels.dtype not in _WHOLE or labels.shape != (len(sets),) or not len(sets):
        return None
    if not ClassAxis.known_to(sets.about).takes_numbers:
        return None
    array = None
    if logits is not None:
        array = validate.as_device_logits(logits, n_classes, row_allowed=True)
        if len(array) != len(sets):
            return None
    found = kernels.tallied(sets.offsets, sets.labels, labels.detach().to(torch.int64), array, n_classes)
    if found is None:
        return None
    by_size, by_class, *by_rank = (Counts(*part) for part in found)
    by_class = Counts(*(total[:n_classes] for total in vars(by_class).values()))
    return Tally(by_size, by_class, by_rank[0] if by_rank else None, None)
