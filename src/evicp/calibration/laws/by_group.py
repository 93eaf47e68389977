"""By group: a threshold for each group of rows that is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.laws.groups import ByGroups, Fitted
from evicp.errors import InputError, InputTypeError
from evicp.input import validate
from evicp.input.messages import some_of
from evicp.method.scores import Score
from evicp.types import F64, I64

__all__ = ["ByGroup"]


@dataclass(frozen=True)
class ByGroup(ByGroups):
    """A threshold per group; each row's group is given at calibration and at prediction.

    Parameters
    ----------
    groups : the groups, whole numbers or strings; by default those of the calibration rows
    """

    groups: tuple[int, ...] | tuple[str, ...] | None = None

    kind: ClassVar[str] = "group"
    sorts_on_device: ClassVar[bool] = True
    uses_labels: ClassVar[bool] = False
    of_logits: ClassVar[bool] = False
    where: ClassVar[str] = " in every group"
    needs: ClassVar[frozenset[str]] = frozenset({"groups"})

    def __post_init__(self) -> None:
        if self.groups is not None:
            object.__setattr__(self, "groups", _distinct(self.groups))
            if not self.groups:
                raise InputError(
                    "groups must be one or more; got none. Leave them out to use the groups of the calibration rows."
                )

    def keys(self, score: Score, logits: Any, labels: I64, groups: Any, weights: Any) -> NDArray[Any]:
        """What `fit` needs of each calibration row, (n,): the group given for it."""
        return _as_groups(groups, len(logits))

    def fit(self, scores: F64, keys: NDArray[Any], n_classes: int) -> Fitted:
        """The groups are those seen."""
        fitted = self if self.fitted else ByGroup(tuple(np.unique(keys).tolist()))
        return Fitted(fitted, np.arange(len(scores)), fitted._find(keys))

    @property
    def fitted(self) -> bool:
        """Whether nothing is left to learn."""
        return self.groups is not None

    def _find(self, wanted: NDArray[Any]) -> I64:
        """The number of each row's group; a group that was not calibrated has no threshold, and is an error."""
        groups: Sequence[Any] = self.groups or ()
        if not wanted.size:
            return np.empty(0, np.int64)
        if isinstance(groups[0], str) != (wanted.dtype.kind == "U"):
            raise InputTypeError(f"groups must be {_word(groups[0])}, as in the calibration; got {_word(wanted[0])}.")
        # In an array every name is as wide as the longest: those longer than any that is looked for are left out.
        width = wanted.dtype.itemsize // 4 if wanted.dtype.kind == "U" else 0
        places = [place for place, group in enumerate(groups) if not width or len(group) <= width]
        known = np.array([groups[place] for place in places], wanted.dtype)
        found = np.searchsorted(known, wanted)
        unseen = np.flatnonzero(np.append(known, known[:1])[found] != wanted) if len(known) else np.arange(len(wanted))
        if unseen.size:
            row = int(unseen[0])
            raise InputError(
                f"groups must be among those of the calibration ({some_of(groups)}); got "
                f"{wanted[row]!s} at row {row}. Calibrate with rows of this group."
            )
        return np.array(places, np.int64)[found]

    def count(self, n_classes: int) -> int:
        """How many groups there are, once nothing is left to learn."""
        return len(self.groups or ())

    def names(self, n_classes: int, class_names: tuple[str, ...] | None) -> list[str]:
        """A name for each group."""
        return [str(name) for name in self.groups or ()]

    def numbers(self, score: Score, logits: NDArray[Any], given: Any) -> I64:
        """The group of each new row, (m, 1)."""
        return self._find(_as_groups(given, len(logits)))[:, None]


def _as_groups(given: Any, n: int) -> NDArray[Any]:
    if given is None:
        raise InputError('by="group" needs the group of each row: pass groups=.')
    return validate.as_groups(given, n)


def _word(name: Any) -> str:
    return "strings" if isinstance(name, str) else "whole numbers"


def _distinct(groups: Any) -> tuple[Any, ...]:
    """Groups as given, each once, in their order; names stay out of arrays, where one long name makes all as long."""
    if isinstance(groups, list | tuple) and groups and all(isinstance(name, str) for name in groups):
        validate.as_printable(groups, "groups")
        return tuple(sorted({str(name) for name in groups}))
    return tuple(np.unique(validate.as_groups(groups)).tolist())
