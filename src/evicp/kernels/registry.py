"""Which scores kernels know by their formulas: the built-in ones, not a subclass whose formula may be another."""

from __future__ import annotations

from typing import TypeVar

_Class = TypeVar("_Class", bound=type)
#: The classes of scores that kernels know.
BUILT_IN: set[type] = set()


def built_in(score_class: _Class) -> _Class:
    """Register a class of scores, as a decorator."""
    BUILT_IN.add(score_class)
    return score_class
