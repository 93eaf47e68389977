"""LAC for long tails: an offset, and a rank limit, of each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp.errors import ScoreError
from evicp.input.classes import in_class_order
from evicp.kernels import _numpy as kernel
from evicp.method import evidence
from evicp.method.score import Ingredients, Score, masked
from evicp.types import F64

__all__ = ["ClassLAC"]

#: What a label beyond its class's rank limit costs: more than any label before the limit scores.
_BEYOND = 1e6


@dataclass(frozen=True)
class ClassLAC(Score):
    """LAC with an offset of each class, and optionally a rank limit: -ln p_k + offset_k, for long-tailed classes.

    A class with a low offset is in more sets. Offsets and limits must come from rows outside the calibration set:
    `of_frequencies`, `fit_class_offsets` and `fit_rank_limits` compute them.

    Parameters
    ----------
    offsets : K numbers; 0 if not given
    limits : K whole numbers from 1: labels whose rank among the logits is above the limit of their class come last;
        none if not given
    temperature : T of the probabilities softmax(z / T)

    >>> ClassLAC(offsets=[0.0, -1.0, 0.0], limits=[3, 3, 2]).scores([[2.0, 1.0, 0.0]]).round(3)
    array([[4.08000000e-01, 4.08000000e-01, 1.00000241e+06]])
    """

    offsets: tuple[float, ...] | None = None
    limits: tuple[int, ...] | None = None
    temperature: float = 1.0
    name: ClassVar[str] = "classlac"
    equation: ClassVar[str] = "-ln(probability) + offset + penalty"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offsets is not None:
            offsets = _numbers(self.offsets, "offsets", "fiu").astype(np.float64)
            if not np.isfinite(offsets).all():
                raise ScoreError(f"offsets must be finite; got {offsets[~np.isfinite(offsets)][0]}.")
            object.__setattr__(self, "offsets", tuple(offsets.tolist()))
        if self.limits is not None:
            limits = _numbers(self.limits, "limits", "iu")
            if limits.min() < 1:
                raise ScoreError(f"limits must be at least 1; got {limits.min()}.")
            object.__setattr__(self, "limits", tuple(limits.tolist()))

    @classmethod
    def of_frequencies(cls, frequencies: ArrayLike | Mapping[Any, float], temperature: float = 1.0) -> ClassLAC:
        """The prevalence-adjusted softmax (Ding et al., 2025): -ln(p_k / frequency of class k).

        With true probabilities, no other sets of the same mean size have a higher mean coverage of classes.

        Parameters
        ----------
        frequencies : K positive numbers: class frequencies in the training set or among new rows
        temperature : T of the probabilities softmax(z / T)

        >>> round(ClassLAC.of_frequencies([1.0, 0.5]).offsets[1], 4)
        -0.6931
        """
        given = _numbers(in_class_order(frequencies, "frequencies"), "frequencies", "fiu").astype(np.float64)
        if not ((given > 0) & np.isfinite(given)).all():
            raise ScoreError("frequencies must be positive and finite; give classes without rows a small frequency.")
        return cls(tuple(np.log(given / given.max()).tolist()), temperature=temperature)

    def formula(self, z: F64) -> F64:
        """The score of every label."""
        made_of = self.ingredients(z)
        log_p = evidence.log_utility(z, self.temperature)
        return masked(-log_p + made_of["offset"] + made_of["penalty"], z)

    def ingredients(self, z: F64) -> Ingredients:
        """What it is made of."""
        k = z.shape[1]
        offset = np.zeros(k) if self.offsets is None else _of_classes(self.offsets, k, "offsets")
        made_of = {
            "probability": np.exp(evidence.log_utility(z, self.temperature)),
            "offset": offset + np.zeros(z.shape),
        }
        if self.limits is None:
            return {**made_of, "penalty": np.zeros(z.shape)}
        rank = kernel.ordinal(z)
        beyond = rank > _of_classes(self.limits, k, "limits")
        return {**made_of, "rank": rank, "penalty": np.where(beyond, _BEYOND, 0.0)}


def _numbers(given: Any, what: str, kinds: str) -> NDArray[Any]:
    try:
        array = np.asarray(in_class_order(given, what))
    except ValueError:  # lists of several lengths
        array = np.empty(0)
    if array.ndim != 1 or not array.size or array.dtype.kind not in kinds:
        wanted = "whole numbers" if kinds == "iu" else "numbers"
        raise ScoreError(f"{what} must be {wanted}, one for each class; got {given!r}.")
    return array


def _of_classes(values: tuple[float, ...], n_classes: int, what: str) -> F64:
    if len(values) != n_classes:
        raise ScoreError(f"{what} must have one number per class; got {len(values)} for {n_classes} classes.")
    return np.array(values, dtype=np.float64)
