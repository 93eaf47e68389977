"""Prediction sets of tensors on an accelerator, which stay there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, overload

import numpy as np

from evicp.errors import InputTypeError, RowError, unusable
from evicp.input.classes import ClassAxis
from evicp.sets import AboutSets, PredictionSets, sets_of

try:
    import torch
    from torch import Tensor

    from evicp.kernels._torch import offsets_of
except ImportError as error:
    raise unusable("torch", "torch", "torch", "scoring on an accelerator", error) from error

__all__ = ["DeviceSets"]


@dataclass(frozen=True, eq=False, repr=False)
class DeviceSets:
    """`PredictionSets` whose offsets and labels are tensors on the logits' own device.

    Row i holds `labels[offsets[i]:offsets[i + 1]]`, most plausible first. `cpu()` gives ordinary `PredictionSets`.

    Parameters
    ----------
    offsets : (n + 1,) int64 tensor
    labels : (total size,) int32 tensor
    about : what the sets remember
    """

    offsets: Tensor
    labels: Tensor
    about: AboutSets

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
        truth = ClassAxis.known_to(self.about).numbers(labels, len(self))
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
        return sets_of(self.about, self.offsets.cpu().numpy(), self.labels.cpu().numpy())

    def filled_with(self, top: Tensor) -> DeviceSets:
        """The sets with the top label of each row, (n,), in those that are empty."""
        sizes, about = self.sizes, replace(self.about, filled=True)
        offsets = offsets_of(sizes.clamp_min(1))
        labels = self.labels.new_empty(int(offsets[-1]))
        labels[offsets[:-1][sizes == 0]] = top[sizes == 0]
        moved_by = (offsets - self.offsets)[:-1].repeat_interleave(sizes)
        labels[moved_by + torch.arange(len(self.labels), device=labels.device)] = self.labels
        return DeviceSets(offsets, labels, about)

    def __repr__(self) -> str:
        return f"DeviceSets({len(self):,} rows on {self.labels.device}, coverage {float(self.coverage):g})"
