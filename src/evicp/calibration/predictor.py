"""Prediction sets of fixed shape on an accelerator, for loops, CUDA graphs and compiled models."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from numpy.typing import ArrayLike

from evicp import kernels
from evicp.calibration.levels import level_of, levels_of, warn_of_request
from evicp.calibration.new_rows import comparable
from evicp.calibration.suspicious import warn_of
from evicp.errors import InputError, InputTypeError, LogitsError, unusable
from evicp.input import convert, validate
from evicp.types import Coverage

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise unusable("torch", "torch", "torch", "scoring on an accelerator", error) from error

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration

__all__ = ["FixedSets", "Predictor"]


class FixedSets(NamedTuple):
    """Prediction sets in a fixed shape, as tensors on the device of the logits.

    Attributes
    ----------
    sets : (n, K) membership, bool; or (n, m) int32, the m most plausible labels of each set, -1 after its last
    sizes : (n,) int32, the number of labels in each set, also those beyond m; -1 for a row that cannot be scored
    """

    sets: Tensor
    sizes: Tensor


class Predictor:
    """The sets of `Calibration.predict` for logits of one shape, without waiting for the device and without errors.

    A call queues its work on the current stream and returns. It can be recorded in a CUDA graph and compiled by
    `torch.compile` without a graph break. Values are not checked, so a row that cannot be scored (NaN, +inf, all -inf)
    has an empty set and the size -1, and there is no warning of probabilities passed as logits. Rows with very many
    candidates take longer; for them a label whose score differs from the threshold only by rounding may be in this set
    and not in that of `predict`, or the other way round.

    Parameters
    ----------
    calibration : with one threshold for all labels and rows
    coverage, confidence : as for `Calibration.predict`
    logits_like : (n, K) tensor on an accelerator, of the shape, type and device of those to come
    labels : m, for the m most plausible labels of each set; None for membership
    """

    def __init__(
        self,
        calibration: Calibration,
        coverage: Coverage,
        logits_like: ArrayLike,
        *,
        labels: int | None = None,
        confidence: float | None = None,
    ) -> None:
        if not convert.is_on_device(logits_like):
            raise InputTypeError(
                "a predictor needs tensors on an accelerator; pass logits_like on one, or use predict or "
                "evicp.torch.SetPredictor on the CPU."
            )
        if kernels.on_device(calibration.score, logits_like) is None:
            raise InputError(f"{calibration.score.describe()} is not available on accelerators; use predict.")
        calibration.law.require("one threshold")
        levels = levels_of(calibration, coverage, confidence)
        if len(levels) > 1:
            raise InputError("a predictor is for one coverage; make one for each.")
        (level,) = levels
        warn_of_request(levels, can_smooth=False)
        warn_of(*level.cautions)
        like = validate.as_device_logits(logits_like, calibration.n_classes)
        self.labels = None if labels is None else min(validate.as_count(labels, "labels"), calibration.n_classes)
        own, rounded = comparable(calibration, logits_like, like)
        values = level.values if own is calibration else level_of(own, level.coverage, level.confidence).values
        self.score, self.threshold = calibration.score, float(values.item())
        self.shape, self.dtype, self.device = tuple(like.shape), like.dtype, like.device
        self._scored_as = rounded.dtype
        self._handle = next(_handles)
        _predictors[self._handle] = self

    def __call__(self, logits: Tensor) -> FixedSets:
        """The sets of logits of the shape, type and device that the predictor is made for."""
        if tuple(logits.shape) != self.shape or logits.dtype != self.dtype or logits.device != self.device:
            raise LogitsError(
                f"this predictor is for logits of shape {self.shape}, {self.dtype}, on {self.device}; got "
                f"{tuple(logits.shape)}, {logits.dtype}, on {logits.device}. Make one for these."
            )
        logits = logits.detach()
        if torch.compiler.is_compiling():
            return FixedSets(*torch.ops.evicp.fixed_sets(logits, self._handle, self.labels or 0))
        return self._sets(logits)

    def _sets(self, logits: Tensor) -> FixedSets:
        return FixedSets(*kernels.fixed_sets(self.score, logits.to(self._scored_as), self.threshold, self.labels))

    def __repr__(self) -> str:
        what = "membership" if self.labels is None else f"{self.labels} labels"
        return f"Predictor({self.score.describe()}, {what} of {self.shape} on {self.device})"


#: The predictors that compiled code calls, by number.
_predictors: WeakValueDictionary[int, Predictor] = WeakValueDictionary()
_handles = count()


@torch.library.custom_op("evicp::fixed_sets", mutates_args=(), schema="(Tensor z, int who, int m) -> (Tensor, Tensor)")
def _compiled(z: Tensor, who: int, m: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001 - m is for the shape
    """What compiled code calls: it does not look inside."""
    return tuple(_predictors[who]._sets(z))  # type: ignore[return-value]


@_compiled.register_fake
def _shapes(z: Tensor, who: int, m: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    kind = (m, torch.int32) if m else (z.shape[1], torch.bool)
    return z.new_empty(z.shape[0], kind[0], dtype=kind[1]), z.new_empty(z.shape[0], dtype=torch.int32)
