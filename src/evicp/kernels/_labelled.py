"""What a calibration needs to know of labelled rows on an accelerator."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor


class Labelled(NamedTuple):
    """Labelled rows on a device: their scores, and what a calibration needs to know of them, on the host."""

    scores: Tensor
    #: The scores in ascending order and the rows they are of, if requested; queued before the one wait.
    in_order: tuple[Tensor, Tensor] | None = None
    #: What tells each row from others, `origin.row_hashes` of the calibration; None where the host has to make it.
    hashes: Tensor | None = None
    #: Whether a label is no class number; nothing else is known then.
    outside: bool = False
    #: How many true labels have a logit of -inf, and at most how many are the less plausible of two (see `batches`).
    masked: int = 0
    seconds: int = 0
    #: How large logits are, `origin.size_of_logits` of the calibration.
    largest: float = -inf
    #: Of the hashes, in the order of the rows; None where the host has to make it.
    digest: int | None = None
    #: Whether the first rows must be checked: they may be suspicious.
    odd: bool = True


def joined(parts: list[Labelled]) -> Labelled:
    """Several groups of rows as one."""
    first, hashes = parts[0], [part.hashes for part in parts if part.hashes is not None]
    return Labelled(
        torch.cat([part.scores for part in parts]),
        None,
        torch.cat(hashes) if len(hashes) == len(parts) else None,
        any(part.outside for part in parts),
        sum(part.masked for part in parts),
        sum(part.seconds for part in parts),
        max(part.largest for part in parts),
        sum(part.digest or 0 for part in parts) % 2**64,
        first.odd,
    )
