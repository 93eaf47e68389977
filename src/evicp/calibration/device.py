"""What stays on an accelerator: prediction sets of its tensors, and calibration scores until they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

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


class DeviceArray:
    """Numbers on an accelerator, one of each row; where NumPy wants an array, they come to the CPU.

    Parameters
    ----------
    values : (n,) tensor, of work that is queued on the current stream
    dtype : of the array
    in_order : the values sorted, and their places before, if that is known
    """

    def __init__(
        self, values: Tensor, dtype: type[np.generic] = np.float64, in_order: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.values, self.dtype, self._in_order = values, dtype, in_order
        self._stream = torch.cuda.current_stream(values.device) if values.is_cuda else None

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The numbers as an array."""
        if self._stream is not None:  # the numbers may still be computed there
            torch.cuda.current_stream(self.values.device).wait_stream(self._stream)
        array = self.values.cpu().numpy()
        # Torch has unsigned numbers of 64 bits not on every device: their bits come as signed ones.
        array = array.view(np.uint64) if self.dtype is np.uint64 else array.astype(self.dtype, copy=False)
        return array.astype(dtype or self.dtype, copy=False)

    def ascending(self) -> DeviceArray:
        """The same numbers, sorted where they are; queued, not waited for."""
        return DeviceArray(self._sorted()[0])

    def _sorted(self) -> tuple[Tensor, Tensor]:
        return self._in_order or torch.sort(self.values)

    def by_group(self, rows: NDArray[np.int64], of_row: NDArray[np.int64]) -> DeviceArray:
        """Those of some rows, sorted where they are: group after group, each ascending; `of_row` are their groups."""
        device, part = self.values.device, self
        if len(rows) < len(self):
            part = DeviceArray(self.values[torch.from_numpy(rows).to(device)])
        kind = np.int16 if of_row.max(initial=0) < 2**15 else np.int64  # short numbers are sorted faster
        values, order = part._sorted()
        groups = torch.from_numpy(of_row.astype(kind)).to(device)[order]
        return DeviceArray(values[torch.sort(groups, stable=True).indices])

    def joined(self, others: Sequence[DeviceArray]) -> DeviceArray:
        """These numbers and those of others on the same device, one after the other."""
        return DeviceArray(torch.cat([self.values, *(other.values for other in others)])) if others else self


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
        """The target coverage."""
        return self.about.coverage

    @property
    def sizes(self) -> Tensor:
        """The number of labels in each set, (n,)."""
        return self.offsets.diff()

    def contains(self, labels: Tensor) -> Tensor:
        """Whether each row's set contains the given label, (n,) bool, on the device."""
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
