"""Smoothed p-values: ties with the calibration count by a random share u, a whole number of steps of 2^-24."""

from __future__ import annotations

from fractions import Fraction
from hashlib import blake2b
from math import floor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.origin import bits_of, mix64
from evicp.calibration.ranks import rows_needed
from evicp.calibration.suspicious import caution_of_masked, warn_of
from evicp.errors import InputError, SmallCalibrationWarning, SuspiciousInputWarning
from evicp.input import convert, validate
from evicp.input.warn import warn
from evicp.types import F64, I64

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration
    from evicp.calibration.laws.law import Law

#: Random numbers are whole numbers of this many parts.
STEPS = 1 << 24

#: Apart from the numbers that randomised scores draw: u must be independent of a row's scores.
_SALT = 0x5EED0F75


def is_smoothed(law: Law, smoothed: Any) -> bool:
    """Whether smoothed p-values are asked for; refused where a law has none."""
    if smoothed is False or (isinstance(smoothed, np.bool_) and not smoothed):
        return False
    law.require("smoothed p-values")
    return True


def steps_of(calibration: Calibration, smoothed: Any, logits: NDArray[Any]) -> I64:
    """u of each new row, in steps."""
    known = None if calibration.origin is None else calibration.origin.digest
    if known is None:
        known = int.from_bytes(blake2b(calibration.scores.tobytes(), digest_size=8).digest())
    return as_steps(smoothed, getattr(calibration.score, "seed", 0), known, logits)


def warn_of_lost_ties(before: Calibration, raised: Calibration) -> None:
    """A score raised past rounding is equal to no other."""
    if raised is before or not np.any(before.scores[1:] == before.scores[:-1]):
        return
    if not np.array_equal(raised.scores, before.scores):
        warn(
            "these rows are scored by another backend than the calibration rows, or those by several. Ties cannot be "
            "recognised and are not smoothed, so sets may cover more than the target. Calibrate on the machine that "
            "predicts.",
            SuspiciousInputWarning,
        )


def as_steps(smoothed: Any, seed: int, digest: int, logits: NDArray[Any]) -> I64:
    """u of each row in steps of 2^-24, from 1 to 2^24, (n,): rounded upward, so that coverage can only rise by it.

    Parameters
    ----------
    smoothed : True, for a function of the row's logits, in their order, of the seed and of the calibration rows; a
        random generator, for numbers from it; or (n,) numbers in [0, 1]
    seed : the score's
    digest : of the calibration rows. Equal rows share their number, but only within one calibration: over the draw of
        the calibration rows, on which coverage is an average, it is equivalent to a random one
    """
    if isinstance(smoothed, np.random.Generator):
        u = smoothed.random(len(logits))
    elif isinstance(smoothed, bool | np.bool_):
        salt = mix64(np.array([digest], np.uint64) ^ mix64(np.array([seed ^ _SALT], np.uint64)))
        u = np.concatenate([np.empty(0), *(_row_numbers(z, salt) for _, z in validate.blocks(logits))])
        _warn_of_equal_rows(u)
    else:
        u = convert.as_array(smoothed, "smoothed")
        if u.shape != (len(logits),) or u.dtype.kind != "f" or not np.all((u >= 0) & (u <= 1)):
            raise InputError(
                f"smoothed must be True, False, or {len(logits)} numbers in [0, 1], one per row; got dtype {u.dtype}, "
                f"shape {u.shape}. Draw them with numpy.random.default_rng(...).random({len(logits)})."
            )
    return np.minimum(np.floor(u.astype(np.float64) * STEPS).astype(np.int64) + 1, STEPS)


def _row_numbers(z: F64, salt: NDArray[np.uint64]) -> F64:
    """A number in [0, 1) for each row, (n,), from its logits and their places."""
    places = np.arange(1, z.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    rows = mix64(bits_of(z) + places).sum(1, dtype=np.uint64)
    return (mix64(rows ^ salt) >> np.uint64(40)).astype(np.float64) / STEPS


def _warn_of_equal_rows(u: F64) -> None:
    """Rows of equal logits have one u, and one set: of few different rows, coverage in this batch varies more."""
    if len(u) >= 32 and 2 * len(np.unique(u)) < len(u):
        warn(
            "most rows have the same logits as another row and share its random number: smoothed sets have the target "
            "coverage on average over calibrations, but the coverage of these rows may be higher or lower. For "
            "independent random numbers pass a generator: smoothed=numpy.random.default_rng(...).",
            SuspiciousInputWarning,
        )


def smoothed_p_values(above: I64, equal: I64, n: int | I64, steps: I64) -> F64:
    """(#{s_i > s} + u (1 + #{s_i = s})) / (n + 1)."""
    p: F64 = (above * STEPS + steps * (1 + equal)) / (STEPS * (n + 1.0))
    return p


def smoothed_limit(ascending: F64, coverage: Fraction, steps: I64) -> F64:
    """The threshold of each row, (m,): scores up to it are those whose smoothed p-value is above 1 - coverage.

    That is #{s_i > s} + u (1 + #{s_i = s}) > a, a = (n + 1)(1 - coverage), which falls in s. Between two neighbouring
    calibration scores it holds where at least m0 scores are above, m0 the smallest integer > a - u. On the m0-th
    largest score itself it may hold or not: the threshold is that score or the number just below.

    Parameters
    ----------
    ascending : (n,) calibration scores
    coverage : exactly
    steps : (m,) u of each row, in steps of 2^-24
    """
    n = len(ascending)
    most = floor((n + 1) * (1 - coverage) * STEPS)  # whole numbers are above a if they are above this
    rank = (most - steps) // STEPS + 1
    at = np.append(ascending, np.inf)[np.clip(n - rank, 0, n)]
    first, after = (np.searchsorted(ascending, at, side) for side in ("left", "right"))
    holds = (n - after) * STEPS + steps * (1 + after - first) > most
    with np.errstate(over="ignore"):  # below the lowest number is nothing
        limit = np.where(holds, at, np.nextafter(at, -np.inf))
    if most < STEPS:
        _warn_of_full_sets(n, coverage, most / STEPS)
    result: F64 = np.where(rank <= 0, np.inf, np.where(rank > n, -np.inf, limit))
    if np.isposinf(result[rank > 0]).any():
        warn_of(caution_of_masked(ascending, coverage))
    return result


def _warn_of_full_sets(n: int, coverage: Fraction, kept: float) -> None:
    warn(
        f"{n} calibration row(s) are few for coverage {float(coverage):g}: about {1 - kept:.0%} of the smoothed sets "
        f"are full at random. Calibrate on at least {rows_needed(coverage)} rows.",
        SmallCalibrationWarning,
    )
