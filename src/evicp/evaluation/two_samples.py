"""Two samples of numbers: how far their distributions are apart, and how often chance alone takes them that far.

The distance is that of Kolmogorov and Smirnov, and its p-value that of all orders of the two samples together, each
equally likely: it is exact where the samples are exchangeable and no numbers tie, and too large where some do.
"""

from __future__ import annotations

from math import exp

import numpy as np

from evicp.types import F64, I64

#: Of more numbers than this, the limit of many takes the place of the exact p-value; it is a little larger.
EXACT_UP_TO = 20_000


def steps_between(first: F64, second: F64, tolerance: float, *, larger: bool = False) -> int:
    """n m times the distance: the largest |n_i m - m_i n|, n_i and m_i of n and m numbers being at most x.

    Parameters
    ----------
    first, second : (n,) and (m,) numbers, infinities among them
    tolerance : numbers that differ by at most this share of their size (or of 1) count as equal
    larger : count only how far the second are above the first
    """
    a, b = np.sort(first), np.sort(second)
    up = _steps(a, b, tolerance)
    return up if larger else max(up, _steps(b, a, tolerance))


def _steps(a: F64, b: F64, tolerance: float) -> int:
    """The largest n_i m - m_i n, at the numbers of the first sample; those of the second count early."""
    with np.errstate(invalid="ignore", over="ignore"):
        early = np.where(np.isfinite(a), a + tolerance * np.maximum(1.0, np.abs(a)), a)
    of_a: I64 = np.searchsorted(a, a, side="right")
    of_b: I64 = np.searchsorted(b, early, side="right")
    return max(0, int((of_a * len(b) - of_b * len(a)).max()))


def p_value_of(steps: int, n: int, m: int, *, one_sided: bool = False) -> float:
    """P(the distance of n and m exchangeable numbers is at least steps / (n m)).

    Parameters
    ----------
    steps, one_sided : as `steps_between` counts them, with `larger` for one side
    n, m : how many numbers there are

    >>> round(6 * p_value_of(4, 2, 2), 9), round(6 * p_value_of(4, 2, 2, one_sided=True), 9)  # of six orders of aabb
    (2.0, 1.0)
    """
    if steps <= 0:
        return 1.0
    if n + m <= EXACT_UP_TO:
        return _exact(steps, n, m, one_sided)
    if one_sided:
        return exp(-2.0 * steps / n * steps / m / (n + m))
    from scipy.special import kolmogorov

    return float(kolmogorov(steps / np.sqrt(n * m * (n + m), dtype=np.float64)))


def _exact(steps: int, n: int, m: int, one_sided: bool) -> float:
    """How likely a random path from (0, 0) to (n, m) is ever to have |i m - j n| >= steps; i m - j n on one side.

    All paths are followed at once: after t steps, i of them along the first axis, with the probability of having stayed
    inside. What leaves is added up, so that small p-values are exact, too.
    """
    total, left = n + m, 0.0
    inside, first = np.ones(1), 0  # the probabilities of i = first, first + 1, ...
    for t in range(total):
        i = first + np.arange(len(inside))
        along = inside * ((n - i) / (total - t))
        moved = np.append(inside - along, 0.0)
        moved[1:] += along
        # i m - (t + 1 - i) n lies strictly between -steps and steps.
        low = 0 if one_sided else (n * (t + 1) - steps) // total + 1
        high = (n * (t + 1) + steps - 1) // total
        low, high = max(low, first, 0), min(high, first + len(moved) - 1)
        left += float(moved[: low - first].sum() + moved[high - first + 1 :].sum())
        inside, first = moved[low - first : high - first + 1], low
        if not inside.size:
            break
    return min(1.0, left)
