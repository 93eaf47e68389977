"""Learn then test: which threshold of doubt keeps the error of answers below a bound, tested in a fixed sequence."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from evicp.calibration.ranks import rank_of
from evicp.errors import InputError
from evicp.input import convert
from evicp.types import F64, I64, Bools

#: So many thresholds are tried at most: more would be too much alike.
_CANDIDATES = 100
#: More rows than this are not advised.
_MOST_ROWS = 10**9


class Tested(NamedTuple):
    """Rows whose doubt is at most a threshold, and how many of their answers are wrong."""

    threshold: float
    answered: int
    wrong: int
    certified: bool


def as_candidates(candidates: Any) -> tuple[float, ...] | None:
    """Thresholds to test in this order, or none."""
    if candidates is None:
        return None
    array = convert.as_array(candidates, "candidates")
    if array.ndim != 1 or not array.size or array.dtype.kind not in "fiu" or np.isnan(array.astype(np.float64)).any():
        raise InputError("candidates must be a list of thresholds, in the order of their tests.")
    return tuple(array.astype(np.float64).tolist())


def sequence_of(doubts: F64, wrong: Bools, rows: int, error: Fraction, confidence: float) -> F64:
    """The thresholds to test, in order, from rows that are used for nothing else.

    The first is the one that is most likely to be certified; the others admit more and more rows.

    Parameters
    ----------
    doubts, wrong : of the rows set aside
    rows : how many rows will test it
    error, confidence : the bound, and its confidence
    """
    from scipy.special import bdtr

    if not len(doubts):
        return np.array([np.inf])
    levels = np.unique(np.quantile(doubts, np.linspace(0, 1, _CANDIDATES + 1)[1:], method="higher"))
    answered, mistakes = counts(doubts, wrong, levels)
    expected = np.maximum((answered * (rows / len(doubts))).astype(np.int64), 1)
    for caution in (1.0, 0.5, 0.0):  # a start that is not certified ends the sequence at once
        rate = (mistakes + 0.3 + caution * np.sqrt(mistakes)) / (answered + 1)
        p = bdtr(np.floor(expected * rate), expected, float(error))
        if p.min() <= 1 - confidence:
            break
    # Halfway to the next larger doubt: rounding, of rows in another precision say, then moves no tied rows across.
    ascending = np.sort(doubts)
    above = ascending[np.searchsorted(ascending, levels[:-1], "right")]
    with np.errstate(invalid="ignore"):
        halfway = levels[:-1] / 2 + above / 2
    halfway = np.where(np.isnan(halfway), levels[:-1], halfway)  # between -inf and +inf
    return np.append(halfway[int(p.argmin()) :], np.inf)


def counts(doubts: F64, wrong: Bools, thresholds: F64) -> tuple[I64, I64]:
    """How many rows are answered at each threshold, and how many of these answers are wrong."""
    order = np.argsort(doubts, kind="stable")
    mistakes: I64 = np.concatenate([[0], np.cumsum(wrong[order])])
    answered: I64 = np.searchsorted(doubts[order], thresholds, "right")
    return answered, mistakes[answered]


def in_sequence(doubts: F64, wrong: Bools, thresholds: F64, error: Fraction, confidence: float) -> list[Tested]:
    """Each threshold up to the first that is not certified: P(Bin(answered, error) <= wrong) <= 1 - confidence.

    Parameters
    ----------
    doubts, wrong : of the rows that test them
    thresholds : in the order of the tests, chosen without these rows
    error, confidence : the bound, and with which probability no certified threshold breaks it
    """
    found = []
    for threshold, answered, mistakes in zip(thresholds, *counts(doubts, wrong, thresholds), strict=True):
        n, w = int(answered), int(mistakes)
        passed = n > 0 and n - w >= rank_of(n, 1 - error, confidence)
        found.append(Tested(float(threshold), n, w, passed))
        if not passed:
            break
    return found


def rows_that_would_do(doubts: F64, wrong: Bools, error: Fraction, confidence: float) -> int | None:
    """About how many rows would certify some threshold if answers went on as among these; None where none would."""
    from scipy.special import bdtr

    thresholds = np.unique(np.quantile(doubts, np.linspace(0, 1, _CANDIDATES + 1)[1:], method="higher"))
    answered, mistakes = counts(doubts, wrong, thresholds)
    share, rate = answered / len(doubts), (mistakes + 0.3 + np.sqrt(mistakes)) / (answered + 1)
    good = rate < float(error)
    if not good.any():
        return None

    def enough(n: int) -> bool:
        rows = np.maximum((share[good] * n).astype(np.int64), 1)
        return bool(np.any(bdtr(np.ceil(rate[good] * rows), rows, float(error)) <= 1 - confidence))

    high = 16
    while high < _MOST_ROWS and not enough(high):
        high *= 2
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high if high < _MOST_ROWS else None
