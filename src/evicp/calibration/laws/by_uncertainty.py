"""By uncertainty: a threshold for each band of evidential uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.laws.groups import ByGroups, Fitted, set_aside
from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input import validate
from evicp.input.warn import warn
from evicp.method.scores import Score
from evicp.types import F64, I64

__all__ = ["ByUncertainty"]

#: Values of u that differ by more than this share of themselves are no rounding of one value.
_APART = 1e-5


@dataclass(frozen=True)
class ByUncertainty(ByGroups):
    """A threshold per band of the evidential uncertainty u = K / alpha_0 (Eq. 3).

    The factor u of the paper's cost is common to all labels and cancels in its score. Here it selects the threshold, so
    the target coverage holds for rows with high uncertainty and for rows with low uncertainty.

    Parameters
    ----------
    bands : the number of bands (five by default), or their inner edges, ascending in (0, 1] By default edges are near
        quantiles of u over the rows set aside, so that bands have about equal numbers of rows, and between values of u
        that differ by more than rounding.
    share : the share of calibration rows set aside to find the edges and not used for anything else
    seed : which rows are set aside
    """

    bands: int | Sequence[float] = 5
    share: float = 0.1
    seed: int = 0

    kind: ClassVar[str] = "uncertainty"
    sorts_on_device: ClassVar[bool] = True
    uses_labels: ClassVar[bool] = False
    where: ClassVar[str] = " in every band of uncertainty"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", validate.as_count(self.seed, "seed", at_least=0))
        object.__setattr__(self, "share", validate.as_probability(self.share, "share"))
        if isinstance(self.bands, int | np.integer):
            object.__setattr__(self, "bands", validate.as_count(self.bands, "bands"))
            return
        edges = np.asarray(self.bands, dtype=np.float64)
        if edges.ndim != 1 or not np.all((edges > 0) & (edges <= 1)) or np.any(np.diff(edges) <= 0):
            raise InputError(f"bands must be a number, or ascending edges in (0, 1]; got {self.bands!r}.")
        object.__setattr__(self, "bands", tuple(edges.tolist()))

    def keys(self, score: Score, logits: Any, labels: I64, groups: Any, weights: Any) -> NDArray[Any]:
        """What `fit` needs of each calibration row, (n,): its uncertainty."""
        return kernels.uncertainties(score, logits)

    def fit(self, scores: F64, keys: NDArray[Any], n_classes: int) -> Fitted:
        """Find the edges of the bands, on rows that are then left out, and group the other rows."""
        rows, fitted = np.arange(len(scores)), self
        if isinstance(self.bands, int):
            aside = set_aside(len(scores), self.share, self.seed)
            rows = np.delete(rows, aside)
            if len(aside) < self.bands or not len(rows):
                raise InputError(
                    f"{self.bands} bands of uncertainty need at least as many rows set aside; {self.share:g} of "
                    f"{len(scores)} rows are {len(aside)}. Calibrate on more rows, or give the edges."
                )
            fitted = replace(self, bands=tuple(_edges(keys[aside], self.bands).tolist()))
            _warn_of_few_bands(len(fitted.edges) + 1, self.bands, keys[aside])
        return Fitted(fitted, rows, fitted._find(keys[rows]))

    @property
    def fitted(self) -> bool:
        """Whether nothing is left to learn."""
        return isinstance(self.bands, tuple)

    @property
    def edges(self) -> F64:
        """The inner edges of the bands, once found or given."""
        return np.array(self.bands, dtype=np.float64)

    def _find(self, u: F64) -> I64:
        return np.searchsorted(self.edges, u, side="left")

    def count(self, n_classes: int) -> int:
        """How many groups there are, once nothing is left to learn."""
        return len(self.edges) + 1

    def names(self, n_classes: int, class_names: tuple[str, ...] | None) -> list[str]:
        """A name for each band: its range of u."""
        edges = _told_apart(self.edges)
        if not edges:
            return ["any u"]
        middle = [f"{low} < u <= {high}" for low, high in pairwise(edges)]
        return [f"u <= {edges[0]}", *middle, f"u > {edges[-1]}"]

    def numbers(self, score: Score, logits: NDArray[Any], given: Any) -> I64:
        """The band of each new row, (m, 1)."""
        return self._find(kernels.uncertainties(score, logits))[:, None]


def _edges(u: F64, bands: int) -> F64:
    """Edges of about equally full bands, midway between values of u that lie clearly apart.

    Many rows can share one u (rows of no evidence all have u = 1, logits may be rounded): an edge on it would let
    rounding say on which side they are.
    """
    ascending = np.sort(u)
    low, high = ascending[:-1], ascending[1:]
    at_most = 1 + np.flatnonzero(high - low > _APART * high)  # how many values lie below each edge that may be taken
    if not at_most.size:
        return np.empty(0)
    wanted = np.arange(1, bands) * len(u) / bands
    after = np.minimum(np.searchsorted(at_most, wanted), len(at_most) - 1)
    above, below = at_most[after], at_most[np.maximum(after - 1, 0)]
    taken = np.unique(np.where(np.abs(below - wanted) < np.abs(above - wanted), below, above))
    middles: F64 = (ascending[taken - 1] + ascending[taken]) / 2
    return middles


def _warn_of_few_bands(found: int, wanted: int, u: F64) -> None:
    """Fewer bands than requested: many rows share one uncertainty."""
    if found == wanted:
        return
    without = float(np.mean(u >= 1 - _APART))
    reason = f"; {without:.0%} have u = 1, no evidence at all (log-probabilities?)" if without > 0.5 else ""
    warn(
        f"{found} band(s) of uncertainty instead of {wanted}: among the {len(u):,} rows set aside there are no more "
        f"distinct values of u{reason}. Pass raw logits; if there are none, use ECP(evidence='softplus') or other "
        "groups.",
        SuspiciousInputWarning,
    )


def _told_apart(edges: F64) -> list[str]:
    """Edges as text, of as many digits as it takes to tell them from each other and from 1; four at least."""
    for digits in range(4, 18):
        texts = [f"{edge:.{digits}g}" for edge in edges]
        if len({*texts, "1"}) == len({*edges.tolist(), 1.0}):
            break
    return texts
