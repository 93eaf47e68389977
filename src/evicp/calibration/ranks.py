"""The rank of the threshold among n calibration scores, in exact arithmetic: on average, or with a confidence."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import comb

import numpy as np

from evicp.input import validate
from evicp.types import I64, Coverage

__all__ = ["conformal_rank", "pac_rank", "rows_needed"]


def conformal_rank(n: int, coverage: Coverage) -> int:
    """k = ceil((n + 1) coverage), in integers: the k-th smallest calibration score is the threshold.

    k = n + 1 means that no finite threshold exists.

    Parameters
    ----------
    n : calibration rows
    coverage : strictly between 0 and 1; 0.9 means 9/10, not the double nearest to it

    >>> conformal_rank(99, 0.9), conformal_rank(9, 0.95)
    (90, 10)
    """
    return rank_of(validate.as_count(n, "n", at_least=0), validate.as_coverage(coverage))


def pac_rank(n: int, coverage: Coverage, confidence: float) -> int:
    """The smallest k with P(Beta(k, n + 1 - k) >= coverage) >= confidence: the training-conditional rank.

    With at least this confidence over calibration sets, the k-th smallest score covers at least `coverage`. k = n + 1
    means that no finite threshold exists.

    Parameters
    ----------
    n : calibration rows
    coverage, confidence : both strictly between 0 and 1

    >>> conformal_rank(1000, 0.9), pac_rank(1000, 0.9, 0.95)
    (901, 916)
    """
    risk = 1 - validate.as_coverage(confidence, "confidence")
    return _exact_pac_rank(validate.as_count(n, "n", at_least=0), validate.as_coverage(coverage), risk)


@lru_cache(maxsize=4096)
def _exact_pac_rank(n: int, coverage: Fraction, risk: Fraction) -> int:
    return _smallest_enough(0, n + 1, lambda k: _risk_exceeds(n, k, coverage, risk))


def _smallest_enough(too_low: int, enough: int, misses: Callable[[int], bool]) -> int:
    """The smallest whole number that does not miss, by halving: above one that does, up to one that does not."""
    while enough - too_low > 1:
        middle = (too_low + enough) // 2
        too_low, enough = (middle, enough) if misses(middle) else (too_low, middle)
    return enough


def rank_of(n: int, coverage: Fraction, confidence: float | None = None) -> int:
    """The rank of the threshold, of what has been checked: `conformal_rank`, or `pac_rank` with a confidence."""
    if confidence is not None:
        return _exact_pac_rank(n, coverage, 1 - validate.as_coverage(confidence, "confidence"))
    p, whole = coverage.as_integer_ratio()
    return -(-(n + 1) * p // whole)


def ranks_of(counts: I64, coverage: Fraction, confidence: float | None = None) -> I64:
    """The rank of the threshold of each of several groups, of so many rows each."""
    sizes, which = np.unique(counts, return_inverse=True)
    ranks = np.array([rank_of(n, coverage, confidence) for n in sizes.tolist()], np.int64)[which]
    return ranks.reshape(counts.shape)


def _risk_exceeds(n: int, k: int, coverage: Fraction, risk: Fraction) -> bool:
    """Whether P(Beta(k, n + 1 - k) < coverage) = P(Binomial(n, coverage) >= k) > risk."""
    from scipy.special import betaincc

    tail = float(betaincc(n + 1 - k, k, float(1 - coverage)))  # from the misses: a coverage next to 1 rounds to 1
    if n > 2000 or abs(tail - risk) > 1e-9 * risk:
        return tail > risk
    # Too close to call in floating point, as when both sides are one half: the tail in integers.
    p, whole = coverage.as_integer_ratio()
    exact_tail = sum(comb(n, j) * p**j * (whole - p) ** (n - j) for j in range(k, n + 1))
    return exact_tail * risk.denominator > risk.numerator * whole**n


def rows_needed(coverage: Coverage, confidence: float | None = None) -> int:
    """The fewest calibration rows with a finite threshold at this coverage (and confidence).

    >>> rows_needed(0.9), rows_needed(0.9, confidence=0.95)
    (9, 29)
    """
    exact = validate.as_coverage(coverage)
    if confidence is None:
        return int(-(-1 // (1 - exact))) - 1
    return _exact_pac_rows(exact, 1 - validate.as_coverage(confidence, "confidence"))


@lru_cache(maxsize=4096)
def _exact_pac_rows(coverage: Fraction, risk: Fraction) -> int:
    def misses(n: int) -> bool:
        return _risk_exceeds(n, n, coverage, risk)  # with the largest score as threshold

    n = 1
    while misses(n):
        n *= 2
    return _smallest_enough(n // 2, n, misses)
