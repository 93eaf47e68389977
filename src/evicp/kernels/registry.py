"""Which scores kernels know by their formulas: the built-in ones, not a subclass whose formula may be another."""

from __future__ import annotations

from typing import TypeVar

_Class = TypeVar("_Class", bound=type)
_BUILT_IN: set[type] = set()


def built_in(score_class: _Class) -> _Class:
    """Register a class of scores, as a decorator."""
    _BUILT_IN.add(score_class)
    return score_class


def is_built_in(score: object) -> bool:
    """Whether a score is of exactly such a class."""
    return type(score) in _BUILT_IN
