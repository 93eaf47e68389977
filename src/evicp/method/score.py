"""The base class of scores: checked parameters and one formula."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.errors import InputTypeError, ScoreError
from evicp.input import validate
from evicp.types import F64

#: What a formula computes on the way, by name.
Ingredients = dict[str, NDArray[Any]]

#: What a file says in place of a user's function.
CUSTOM = "custom"


class Score:
    """The base class of scores. A subclass sets `name` and defines `formula`, (n, K) logits to (n, K) scores."""

    name: ClassVar[str]
    #: Whether it needs the total probability of the labels above.
    adds_up: ClassVar[bool] = False
    #: The formula in words, of the names in `ingredients`; "" where there are none.
    equation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.name in _RULES:
                object.__setattr__(self, field.name, _RULES[field.name](getattr(self, field.name), field.name))

    def formula(self, z: F64) -> F64:  # noqa: ARG002
        """The score of every label; z is (n, K) float64, checked."""
        raise TypeError(f"{type(self).__name__} defines no formula")

    def ingredients(self, z: F64) -> Ingredients:  # noqa: ARG002
        """Intermediate results of the formula by name: for each label, (n, K), or for each row, (n, 1).

        `explain` shows them. Your own score may omit them.
        """
        return {}

    def scores(self, logits: Any) -> F64:
        """The dense (n, K) scores of logits; lower is more conforming.

        >>> from evicp import LAC
        >>> LAC().scores([[2.0, 1.0, -1.0]]).round(3)
        array([[0.349, 1.349, 3.349]])
        """
        return kernels.dense_scores(self, validate.as_logits(logits))

    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in fields}

    def plain_parameters(self) -> dict[str, Any]:
        """The parameters as JSON values, for files and tables; a user's function appears as "custom"."""
        return {name: CUSTOM if callable(value) else value for name, value in self.parameters().items()}

    def describe(self) -> str:
        """The score with the parameters that differ from their defaults: "raps(lam=0.5)"."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        changed = [f"{f.name}={_short(getattr(self, f.name))}" for f in fields if getattr(self, f.name) != f.default]
        return f"{self.name}({', '.join(changed)})" if changed else self.name


def _short(value: Any) -> str:
    if isinstance(value, tuple) or callable(value):
        return "..."
    return f"{value:g}" if isinstance(value, float) else str(value)


def masked(scores: F64, z: F64) -> F64:
    """Scores with +inf for impossible labels."""
    return np.where(z == -np.inf, np.inf, scores)


def _positive(value: Any, what: str) -> float:
    return _number(value, what, lambda x: 0 < x < np.inf, "a positive number")


def _non_negative(value: Any, what: str) -> float:
    return _number(value, what, lambda x: 0 <= x < np.inf, "a number >= 0")


def _stabilizer(value: Any, what: str) -> float | str:
    if not isinstance(value, str):
        return _non_negative(value, what)
    if value != "scaled":
        raise ScoreError(f'{what} must be a number >= 0 or "scaled"; got {value!r}.')
    return value


def _number(value: Any, what: str, valid: Callable[[float], bool], wanted: str) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputTypeError(f"{what} must be {wanted}; got {value!r} ({type(value).__name__}).")
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all doubles
        number = np.inf
    if not valid(number):
        raise ScoreError(f"{what} must be {wanted}; got {value}.")
    return number


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{what} must be a whole number; got {value!r} ({type(value).__name__}).")
    if not 0 <= value < 2**32:
        raise ScoreError(f"{what} must be in [0, 2^32); got {value}.")
    return int(value)


#: How each parameter is checked and made plain; scores share names, so they share rules.
_RULES: Mapping[str, Callable[[Any, str], Any]] = MappingProxyType(
    {
        "temperature": _positive,
        "lam": _non_negative,
        "stabilizer": _stabilizer,
        "k_reg": _whole,
        "seed": _whole,
        "randomized": validate.as_flag,
        "randomize_penalty": validate.as_flag,
    }
)
