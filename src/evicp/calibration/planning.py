"""The number of calibration rows needed for a coverage close to the target."""

from __future__ import annotations

from fractions import Fraction
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from evicp.calibration.ranks import rows_needed
from evicp.calibration.reliability import Reliability
from evicp.errors import InputError
from evicp.input import validate
from evicp.input.messages import refuse_unknown
from evicp.outer import outer
from evicp.types import F64, I64, Coverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Plan",
    "plan",
    "share_within",
]

#: Plans end where coverage's standard deviation from this many rows is the tolerance.
MOST_PLANNED = 10**9


class Plan(int):
    """The number of calibration rows that are enough: a whole number with the settings it was computed for.

    Attributes
    ----------
    coverage : the target, exactly
    tolerance : the largest allowed distance of a calibration's coverage from the target
    confidence : the share of calibrations for which that must hold

    >>> planned = plan(0.9, tolerance=0.02)
    >>> planned, planned + 1, planned.tolerance
    (854, 855, 0.02)
    """

    coverage: Fraction
    tolerance: float
    confidence: float

    @classmethod
    def of(cls, rows: int, coverage: Fraction, tolerance: float, confidence: float) -> Plan:
        """So many rows, for this."""
        made = cls(rows)
        made.coverage, made.tolerance, made.confidence = coverage, tolerance, confidence
        return made

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the interval of coverage against the number of calibration rows, with the tolerance.

        Parameters
        ----------
        ax : Matplotlib axes to draw on; those of a new figure by default (needs the `plot` extra)
        """
        axes: Axes = outer("plot_plan")(self, ax)
        return axes


def plan(coverage: Coverage = 0.9, tolerance: float = 0.01, confidence: float = 0.95, **unknown: Any) -> Plan:
    """The smallest n from which on P(|C - coverage| <= tolerance) >= confidence for every calibration size.

    At least the number of rows that a finite threshold needs.

    Parameters
    ----------
    coverage : the target
    tolerance : the largest allowed distance of the coverage C of a calibration from the target
    confidence : the share of calibrations for which that must hold

    Returns
    -------
    Plan
        The number of calibration rows, as a whole number.

    >>> plan(0.9, tolerance=0.02, confidence=0.95)
    854
    """
    refuse_unknown("plan", unknown)
    exact = validate.as_coverage(coverage)
    tolerance = validate.as_probability(tolerance, "tolerance")
    confidence = validate.as_probability(confidence, "confidence")
    least = max(1e-8, float(exact * (1 - exact) / MOST_PLANNED) ** 0.5)
    if tolerance < least:
        raise InputError(
            f"tolerance must be at least {least:.2g} at coverage {float(exact):g}; got {tolerance:g}, which "
            f"{MOST_PLANNED:,} calibration rows cannot reach. Use a larger tolerance."
        )
    smallest = rows_needed(exact)
    # From `safe` on, Hoeffding's bound for the Beta law guarantees it for every n: half of the tolerance is for the
    # mean, which is within 1 / (n + 1) of coverage, half for straying from it.
    safe = int(2 * log(6 / (1 - confidence)) / tolerance**2)
    rows = smallest if smallest > safe else _last_missing(smallest, safe, exact, tolerance, confidence) + 1
    return Plan.of(rows, exact, tolerance, confidence)


def share_within(n: int, coverage: Coverage, tolerance: float) -> float:
    """The share of calibration sets of n rows whose coverage lies within the tolerance of the target.

    >>> share_within(853, 0.9, tolerance=0.02) < 0.95 <= share_within(854, 0.9, tolerance=0.02)
    True
    """
    law = Reliability(n, coverage)
    tolerance = validate.as_probability(tolerance, "tolerance")
    if not law.l:  # every set is full
        return float(1 - law.coverage <= tolerance)
    rows = np.array([law.n])
    return float(_concentration(rows, rows, law.coverage, tolerance)[0])


def _last_missing(smallest: int, safe: int, coverage: Fraction, tolerance: float, confidence: float) -> int:
    """The largest n from `smallest` to `safe` that misses the confidence; `smallest` - 1 if none does.

    P rises and falls from one n to the next, so ranges of n are halved until a bound says that all of a range keep the
    confidence, or one n above the whole range misses it.
    """
    missing = smallest - 1
    first, width = np.array([smallest]), 1 << (safe - smallest).bit_length()
    while first.size:
        last = first + (width - 1)
        doubtful = _concentration(first, last, coverage, tolerance) < confidence
        first, last = first[doubtful], last[doubtful]
        misses = _concentration(last, last, coverage, tolerance) < confidence
        missing = max(missing, int(last[misses].max(initial=0)))
        first, width = first[last > missing], width // 2
        first = np.concatenate([first, first + width])
    return missing


def _concentration(first: I64, last: I64, coverage: Fraction, tolerance: float) -> F64:
    """What P(|C - coverage| <= tolerance) is at least for every n from `first` to `last`; exact where these are equal.

    Beta(k, l) grows with k and shrinks with l, and both grow with n: no C of the range lies lower than with the lowest
    k and the highest l, none higher than with the highest k and the lowest l.
    """
    from scipy.special import betainc

    lowest_k, highest_k = _ranks(first, coverage), _ranks(last, coverage)
    lowest_l, highest_l = first + 1 - lowest_k, last + 1 - highest_k
    high = min(1.0, float(coverage) + tolerance)
    low = max(0.0, float(coverage) - tolerance)
    result: F64 = betainc(highest_k, lowest_l, high) - betainc(lowest_k, highest_l, low)
    return result


def _ranks(n: I64, coverage: Fraction) -> I64:
    """`conformal_rank` of many n."""
    numerator, denominator = coverage.as_integer_ratio()
    wide = (n + 1).astype(object if int(n.max(initial=1)) * denominator >= 2**61 else np.int64)
    return (-((-wide * numerator) // denominator)).astype(np.int64)
