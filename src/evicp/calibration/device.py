"""Logits on an accelerator: scored where they lie, in sets that stay there.

With built-in scores the logits never go to the CPU, whatever the guarantee; other scores bring them there once. Of
p-values under groups or weights the scores go there, to be looked up. CUDA tensors go through the fused Triton kernels
where Triton is installed, other devices through plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from evicp import kernels
from evicp.errors import InputTypeError, RowError, unusable
from evicp.method.scores import Score
from evicp.sets import PredictionSets
from evicp.types import F64, I64

try:
    import torch
    from torch import Tensor

    from evicp.kernels._torch import offsets_of, sets_within, working_type
except ImportError as error:
    raise unusable("torch", "torch", "torch", "scoring on an accelerator", error) from error

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration

__all__ = ["DeviceSets"]


@dataclass(frozen=True, eq=False, repr=False)
class DeviceSets:
    """`PredictionSets` whose offsets and labels are tensors on the logits' own device.

    Row i holds `labels[offsets[i]:offsets[i + 1]]`, most plausible first. `cpu()` gives ordinary `PredictionSets`.

    Parameters
    ----------
    offsets : (n + 1,) int64 tensor
    labels : (total size,) int32 tensor
    about : ordinary sets without rows, which hold all that is remembered
    """

    offsets: Tensor
    labels: Tensor
    about: PredictionSets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> DeviceSets: ...
    def __getitem__(self, index: Any) -> Tensor | DeviceSets:
        """The labels of one row, or the sets of a slice of rows."""
        if isinstance(index, slice):
            rows = np.arange(*index.indices(len(self)), dtype=np.int64)
            return self._take(torch.from_numpy(rows).to(self.offsets.device))
        try:
            row = range(len(self))[index]
        except IndexError as error:
            raise RowError(f"row {index} does not exist; there are {len(self):,} sets.") from error
        except TypeError as error:
            raise InputTypeError(
                f"sets on a device are indexed by a row number or a slice; got a {type(index).__name__}. "
                "Use sets.cpu() for row numbers or a mask."
            ) from error
        return self.labels[self.offsets[row] : self.offsets[row + 1]]

    def _take(self, rows: Tensor) -> DeviceSets:
        sizes = self.sizes[rows]
        offsets = offsets_of(sizes)
        moved_by = (self.offsets[rows] - offsets[:-1]).repeat_interleave(sizes)
        labels = self.labels[moved_by + torch.arange(len(moved_by), device=rows.device)]
        return replace(self, offsets=offsets, labels=labels)

    @property
    def coverage(self) -> Fraction:
        """The coverage asked for."""
        return self.about.coverage

    @property
    def sizes(self) -> Tensor:
        """How many labels each set holds, (n,)."""
        return self.offsets.diff()

    def contains(self, labels: Tensor) -> Tensor:
        """Whether each row's set holds the given label, (n,) bool, on the device."""
        truth = self.about.classes.numbers(labels, len(self))
        wanted = torch.tensor(truth, device=self.labels.device).repeat_interleave(self.sizes)
        running = offsets_of((self.labels == wanted).long())
        return running[self.offsets[1:]] > running[self.offsets[:-1]]

    def mask(self) -> Tensor:
        """Membership as a dense (n, K) matrix, on the device."""
        device = self.labels.device
        result = torch.zeros(len(self), self.about.n_classes, dtype=torch.bool, device=device)
        result[torch.arange(len(self), device=device).repeat_interleave(self.sizes), self.labels.long()] = True
        return result

    def cpu(self) -> PredictionSets:
        """The same sets as NumPy arrays."""
        return self.about.replaced(self.offsets.cpu().numpy(), self.labels.cpu().numpy())

    def __repr__(self) -> str:
        return f"DeviceSets({len(self):,} rows on {self.labels.device}, coverage {float(self.coverage):g})"


def predict(score: Score, tensor: Tensor, limits: Sequence[F64], about: Sequence[PredictionSets]) -> list[DeviceSets]:
    """Sets within each limit, on the logits' device; `about` has for each, without rows, what its sets remember.

    A limit is an array of thresholds that broadcasts to (n, K), as for `evicp.calibration.limits`. The tensor
    has been checked.
    """
    backend = kernels.on_device(score, tensor)
    results = []
    for limit, like in zip(limits, about, strict=True):
        offsets, labels = _sets(backend, score, tensor, limit)
        if like.filled:
            offsets, labels = _filled(offsets, labels, backend.top_labels(score, tensor))
        results.append(DeviceSets(offsets, labels, like))
    return results


def _sets(backend: Any, score: Score, tensor: Tensor, limit: F64) -> tuple[Tensor, Tensor]:
    """Offsets and labels within a limit: those within the loosest threshold, of which the others are left out."""
    if limit.size <= 1:
        offsets, labels, _ = backend.ragged_sets(score, tensor, float(limit.max(initial=-np.inf)))
        return offsets, labels
    own = torch.tensor(limit, dtype=working_type(tensor.device), device=tensor.device)
    if np.isinf(limit).any():  # what is always in, of few labels or rows, would make all sets full at first
        return sets_within(tensor, own, backend.dense_blocks(score, tensor))[:2]
    offsets, labels, scores = backend.ragged_sets(score, tensor, float(limit.max()))
    of_each = own[0, labels.long()] if limit.shape[1] > 1 else own[:, 0].repeat_interleave(offsets.diff())
    kept = scores <= of_each
    return offsets_of(kept.long())[offsets], labels[kept]


def _filled(offsets: Tensor, labels: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Give every empty set its top label."""
    sizes = offsets.diff()
    grown = offsets_of(sizes.clamp_min(1))
    result = labels.new_empty(int(grown[-1]))
    result[grown[:-1][sizes == 0]] = top[sizes == 0]
    moved_by = (grown - offsets)[:-1].repeat_interleave(sizes)
    result[moved_by + torch.arange(len(labels), device=labels.device)] = labels
    return grown, result


def p_values(calibration: Calibration, tensor: Tensor, labels: I64 | None) -> Tensor:
    """P-values of a marginal calibration, (n, K) or, for given labels, (n,), on the logits' device."""
    backend = kernels.on_device(calibration.score, tensor)
    ascending = torch.tensor(calibration.scores, dtype=working_type(tensor.device), device=tensor.device)
    truth = None if labels is None else torch.tensor(labels, device=tensor.device)
    result: Tensor = backend.p_values(calibration.score, tensor, ascending, truth)
    return result


def label_scores(score: Score, tensor: Tensor, labels: I64) -> F64:
    """The score of each row's given label: computed on the device, and the n numbers brought to the CPU.

    Both have been checked.
    """
    truth, backend = torch.tensor(labels, device=tensor.device), kernels.on_device(score, tensor)
    scores = backend.label_scores(score, tensor, truth, settled=False).cpu().numpy()
    if np.isnan(scores).any():  # a row that cannot be scored, or one that takes longer
        scores = backend.label_scores(score, tensor, truth).cpu().numpy()
    return scores.astype(np.float64)


def logits_at(tensor: Tensor, labels: I64) -> F64:
    """The logit of each row's given label, (n,), brought to the CPU. Both have been checked."""
    own = tensor.gather(1, torch.tensor(labels, device=tensor.device)[:, None])
    return own[:, 0].cpu().double().numpy()


def largest_logits(tensor: Tensor) -> F64:
    """The largest logit of each row, (n,), brought to the CPU."""
    return tensor.amax(1).cpu().double().numpy()


def dense_scores(score: Score, tensor: Tensor) -> F64:
    """Every label's score, (n, K): computed on the device, and brought to the CPU. The tensor has been checked."""
    backend = kernels.on_device(score, tensor)
    parts = [part.cpu().numpy() for _, part in backend.dense_blocks(score, tensor)]
    return np.concatenate([np.empty((0, tensor.shape[1])), *parts], dtype=np.float64)


def label_ranks(tensor: Tensor, labels: I64) -> I64:
    """The rank of each row's given label, from 1: counted on the device. Both have been checked."""
    truth = torch.tensor(labels, device=tensor.device)
    return kernels.on_device(None, tensor).label_ranks(tensor, truth).cpu().numpy()
