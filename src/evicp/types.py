"""Names for the types of arrays and of coverages."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]

#: A target coverage: a number between 0 and 1; and several of them.
Coverage = float | Fraction | Decimal | np.floating[Any]
Coverages = Sequence[Coverage] | NDArray[np.floating[Any]]


#: How ties are broken: not at all, by numbers computed from rows, by a generator, or by given numbers.
Smoothed: TypeAlias = "bool | np.random.Generator | ArrayLike"


class TargetCoverage(Fraction):
    """An exact target coverage: 0.9 is 9/10. It equals 9/10 and also the float 0.9.

    >>> coverage = TargetCoverage(9, 10)
    >>> coverage, coverage == 0.9, coverage < 0.9, 1 - coverage
    (0.9, True, False, Fraction(1, 10))
    """

    __slots__ = ()
    __hash__ = Fraction.__hash__

    def __eq__(self, other: object) -> bool:
        return super().__eq__(_as_written(other))

    def __lt__(self, other: Any) -> bool:
        return super().__lt__(_as_written(other))

    def __le__(self, other: Any) -> bool:
        return super().__le__(_as_written(other))

    def __gt__(self, other: Any) -> bool:
        return super().__gt__(_as_written(other))

    def __ge__(self, other: Any) -> bool:
        return super().__ge__(_as_written(other))

    def __repr__(self) -> str:
        return repr(float(self))


def _as_written(other: Any) -> Any:
    """A float as the fraction that it is written as, to nine decimals; anything else as it is."""
    return Fraction(other).limit_denominator(10**9) if isinstance(other, float) and isfinite(other) else other
