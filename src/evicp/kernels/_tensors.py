"""Tensors on an accelerator: the functions of every backend, where one of `_triton` and `_torch` computes.

With built-in scores the logits stay where they are. Sets stay there, too; what is needed of calibration rows, and
scores that are looked up, are NumPy arrays, as of every backend. CUDA tensors go through the fused Triton kernels where
Triton is installed, other devices through plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import unusable
from evicp.types import F64, I64

try:
    import torch
    from torch import Tensor

    from evicp.kernels import _torch_fixed
    from evicp.kernels._torch import offsets_of, sets_within, working_type
except ImportError as error:
    raise unusable("torch", "torch", "torch", "scoring on an accelerator", error) from error


class Tensors:
    """A backend of tensors as one like the others.

    Parameters
    ----------
    backend : the module that computes: its functions take tensors, and return tensors on the same device
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def dense_scores(self, score: Any, logits: Tensor) -> F64:
        """Every label's score, (n, K)."""
        parts = [part.cpu().numpy() for _, part in self.backend.dense_blocks(score, logits)]
        return np.concatenate([np.empty((0, logits.shape[1])), *parts], dtype=np.float64)

    def label_scores(self, score: Any, logits: Tensor, labels: I64) -> F64:
        """The score of each row's given label, (n,)."""
        truth = torch.tensor(labels, device=logits.device)
        scores = self.backend.label_scores(score, logits, truth, settled=False).cpu().numpy()
        if np.isnan(scores).any():  # a row that cannot be scored, or one that takes longer
            scores = self.backend.label_scores(score, logits, truth).cpu().numpy()
        return scores.astype(np.float64)

    def labelled(self, score: Any, logits: Tensor, labels: Tensor, *, ordered: bool) -> Any:
        """The scores of labelled rows, which stay there, and what a calibration needs to know of them."""
        return self.backend.labelled(score, logits, labels, ordered=ordered)

    def fixed_sets(self, score: Any, logits: Tensor, threshold: float, width: int | None) -> tuple[Tensor, Tensor]:
        """Membership, or the first labels of each set, and sizes, without waiting for the device."""
        backend = self.backend if hasattr(self.backend, "fixed_sets") else _torch_fixed
        sets: tuple[Tensor, Tensor] = backend.fixed_sets(score, logits, threshold, width)
        return sets

    def ragged_labels(self, score: Any, logits: Tensor, threshold: float | F64) -> tuple[Tensor, Tensor]:
        """Offsets and labels within thresholds: those within the loosest, of which the others are left out."""
        ((offsets, labels),) = self.ragged_within(score, logits, [threshold])
        return offsets, labels

    def ragged_within(self, score: Any, logits: Tensor, limits: Sequence[float | F64]) -> list[tuple[Tensor, Tensor]]:
        """The same within each of several limits, as `ragged_labels` takes them; logits are read once.

        Where a limit is infinite, which makes sets full, it is read for by itself.
        """
        arrays = [np.asarray(limit) for limit in limits]
        usual = [not np.isposinf(limit).any() for limit in arrays]
        together = [limit for limit, one in zip(arrays, usual, strict=True) if one]
        most = max((float(limit.max(initial=-np.inf)) for limit in together), default=-np.inf)
        loosest = self.backend.ragged_sets(score, logits, most) if together else None
        results = []
        for limit, one in zip(arrays, usual, strict=True):
            if one and loosest is not None:
                results.append(_part(loosest, limit, most))
            elif limit.size <= 1:
                results.append(self.backend.ragged_sets(score, logits, float(limit.max(initial=-np.inf)))[:2])
            else:  # what is always in, of few labels or rows, would make all sets full at first
                own = torch.tensor(limit, dtype=working_type(logits.device), device=logits.device)
                results.append(sets_within(logits, own, self.backend.dense_blocks(score, logits))[:2])
        return results

    def top_labels(self, score: Any, logits: Tensor) -> Tensor:
        """Each row's most plausible label."""
        top: Tensor = self.backend.top_labels(score, logits)
        return top

    def p_values(self, score: Any, logits: Tensor, ascending: F64, labels: I64 | None) -> Tensor:
        """P-values among ascending scores, (n, K) or, of given labels, (n,)."""
        known = torch.tensor(ascending, dtype=working_type(logits.device), device=logits.device)
        truth = None if labels is None else torch.tensor(labels, device=logits.device)
        result: Tensor = self.backend.p_values(score, logits, known, truth)
        return result

    def uncertainties(self, score: Any, logits: Tensor) -> F64:
        """The evidential uncertainty of each row, (n,)."""
        return self.backend.uncertainties(score, logits).cpu().numpy().astype(np.float64)

    def label_ranks(self, logits: Tensor, labels: I64) -> I64:
        """The rank of each row's given label, from 1."""
        return self.backend.label_ranks(logits, torch.tensor(labels, device=logits.device)).cpu().numpy()


def _part(ragged: tuple[Tensor, Tensor, Tensor], limit: NDArray[Any], most: float) -> tuple[Tensor, Tensor]:
    """The offsets and labels of sets within `most` that are within a tighter limit."""
    offsets, labels, scores = ragged
    if limit.size <= 1 and float(limit.max(initial=-np.inf)) == most:
        return offsets, labels
    own = torch.tensor(limit, dtype=scores.dtype, device=scores.device).reshape(limit.shape or (1, 1))
    by_label = own[0, labels.long()] if own.shape[1] > 1 else None
    of_each = own[:, 0].repeat_interleave(offsets.diff()) if by_label is None and len(own) > 1 else by_label
    kept = scores <= (own[0, 0] if of_each is None else of_each)
    return offsets_of(kept.long())[offsets], labels[kept]


def logits_at(logits: Tensor, labels: I64) -> F64:
    """The logit of each row's given label, (n,)."""
    own = logits.gather(1, torch.tensor(labels, device=logits.device)[:, None])
    return own[:, 0].cpu().double().numpy()


def largest_logits(logits: Tensor) -> F64:
    """The largest logit of each row, (n,)."""
    return logits.amax(1).cpu().double().numpy()
