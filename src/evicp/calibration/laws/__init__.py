"""Kinds of guarantee: what decides the threshold of a label in a row. These tables name them all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from evicp.calibration.laws.by_class import ByClass
from evicp.calibration.laws.by_group import ByGroup
from evicp.calibration.laws.by_uncertainty import ByUncertainty
from evicp.calibration.laws.groups import Partition
from evicp.calibration.laws.law import Kind, Law
from evicp.calibration.laws.marginal import ALL_ROWS, Marginal
from evicp.calibration.laws.overlapping import Overlapping, OverlappingGroups
from evicp.calibration.laws.weighted import ClassWeights, RowWeights, Weights
from evicp.errors import InputError, InputTypeError
from evicp.input.frames import columns_of, is_matrix
from evicp.types import F64

#: What `by=` may name.
KINDS: Mapping[str, type[Kind]] = MappingProxyType(
    {"class": ByClass, "group": ByGroup, "uncertainty": ByUncertainty, "overlapping": OverlappingGroups}
)

#: What files can hold.
LAWS: tuple[type[Law], ...] = (Marginal, Weights, Partition, Overlapping)


def as_by(by: Any) -> Kind | None:
    """A kind of guarantee from its name or an instance; None for one threshold for all, or weights.

    >>> as_by("uncertainty")
    ByUncertainty(bands=5, share=0.1, seed=0)
    """
    if by is None or isinstance(by, Kind):
        return by
    if isinstance(by, type) and issubclass(by, Kind):
        return by()
    if not isinstance(by, str):
        raise InputTypeError(
            f"by must be a name, ByClass(...), ByGroup(...), ByUncertainty(...) or OverlappingGroups(...); got {by!r}."
        )
    if by not in KINDS:
        raise InputError(f"by must be one of {', '.join(KINDS)}, or one group per row; got {by!r}.")
    return KINDS[by]()


def by_given(groups: Any) -> Kind:
    """The kind of guarantee of groups that are given: one of each row, or a matrix of those that each row is in."""
    return OverlappingGroups(columns_of(groups)) if is_matrix(groups) else ByGroup()


def kind_of(by: Kind | None, class_weights: F64 | None, weights: Any) -> Kind:
    """The kind of guarantee of rows with these weights, or none."""
    if class_weights is not None:
        if weights is not None:
            raise InputError("pass the rows' weights or class_weights, not both.")
        return ClassWeights(class_weights)
    if weights is None:
        return ALL_ROWS if by is None else by
    if by is not None:
        raise InputError("weights and groups cannot be combined; pass by= or weights=, not both.")
    return RowWeights()


def words_of(guarantee: str) -> type[Kind]:
    """The kind that has the words (`where`, `caveat`) for a guarantee."""
    return Kind.named.get(guarantee, Kind)
