"""The state of a monitor in a file, whose parts must fit together: a file may say anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isclose, isfinite, lgamma, log
from typing import Any

import numpy as np

from evicp.errors import InputError
from evicp.input import validate
from evicp.types import F64, I64

#: More labels than any monitor sees; up to here all counts are exact as doubles.
_MOST = 2**53


@dataclass(frozen=True, eq=False)
class MonitorState:
    """What a monitor has learnt from labels.

    Parameters
    ----------
    seen, covered, alarm_at : as the attributes of a monitor
    log_e, largest_log_e : ln of the capital, now and at its largest
    log_active : (alternatives,) ln of what each alternative holds; None before the first label
    gaps : (n + 1,) how many labels fell into each gap between calibration scores, where p-values are watched
    """

    seen: int
    covered: int
    alarm_at: int | None
    log_e: float
    largest_log_e: float
    log_active: F64 | None
    gaps: I64 | None


def as_coverage_text(text: Any) -> Fraction:
    """A coverage as `Monitor.to_dict` writes it: "9/10"."""
    numerator, denominator = text.split("/")
    return Fraction(int(numerator), int(denominator))


def as_state(content: Mapping[str, Any]) -> MonitorState:
    """The state in what a file holds, each part by itself."""
    alarm_at, gaps, log_active = content["alarm_at"], content["gaps"], content["log_active"]
    return MonitorState(
        seen=validate.as_count(content["seen"], "seen", at_least=0),
        covered=validate.as_count(content["covered"], "covered", at_least=0),
        alarm_at=None if alarm_at is None else validate.as_count(alarm_at, "alarm_at"),
        log_e=_as_finite(content["log_e"], "log_e"),
        largest_log_e=_as_finite(content["largest_log_e"], "largest_log_e"),
        log_active=None if log_active is None else np.array([_as_finite(x, "log_active") for x in log_active]),
        gaps=None if gaps is None else np.array([validate.as_count(x, "gaps", at_least=0) for x in gaps], np.int64),
    )


def _as_finite(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InputError(f"{what} must be a finite number; got {value!r}.")
    return float(value)


def refuse_impossible(
    state: MonitorState, *, n: int, k: int, false_alarm_rate: float, alternatives: int, reserve: float
) -> None:
    """Raise where the parts of a state contradict each other: no labels can have led to it.

    Parameters
    ----------
    n, k, false_alarm_rate : of the monitor
    alternatives : how many it bets on
    reserve : ln of the capital that is not bet after the labels seen
    """
    _refuse_counts(state, n)
    if state.gaps is not None:
        _refuse_gaps(state.gaps, state, n, k)
    if state.log_active is None:
        if state.log_e or state.largest_log_e:
            raise InputError("it has evidence without labels.")
        return
    if state.log_active.shape != (alternatives,):
        raise InputError(f"it holds {len(state.log_active)} bets, not {alternatives}.")
    capital = float(np.logaddexp(np.logaddexp.reduce(state.log_active), reserve))
    if not isclose(state.log_e, capital, rel_tol=1e-9, abs_tol=1e-9):
        raise InputError(f"its e-value is not that of its bets: ln {state.log_e:g} and {capital:g}.")
    if state.largest_log_e < max(state.log_e, 0.0):
        raise InputError("its largest e-value is below another one.")
    if state.largest_log_e > _most_gained(state, n, k) + 1e-3:
        raise InputError(f"{state.covered:,} of {state.seen:,} labels covered cannot give its largest e-value.")
    if (state.alarm_at is not None) != (state.largest_log_e >= -log(false_alarm_rate)):
        raise InputError("its largest e-value and its alarm contradict each other.")


def _refuse_counts(state: MonitorState, n: int) -> None:
    if max(state.seen, n) > _MOST:
        raise InputError(f"it counts more than {_MOST:,} rows.")
    if state.covered > state.seen:
        raise InputError(f"it states that {state.covered:,} of {state.seen:,} labels were covered.")
    if (state.alarm_at or 0) > state.seen:
        raise InputError(f"it states that label {state.alarm_at:,} of {state.seen:,} raised an alarm.")
    if (state.log_active is None) != (state.seen == 0):
        raise InputError("it holds bets without labels, or labels without bets.")


def _refuse_gaps(gaps: I64, state: MonitorState, n: int, k: int) -> None:
    if gaps.shape != (n + 1,) or sum(gaps.tolist()) != state.seen:
        raise InputError(f"its p-values are not those of {state.seen:,} labels after {n:,} calibration rows.")
    covered = int(gaps[n + 1 - k :].sum())  # as `Monitor.update_p_values` counts them
    if covered != state.covered:
        raise InputError(f"its p-values cover {covered:,} labels, not {state.covered:,}.")


def _most_gained(state: MonitorState, n: int, k: int) -> float:
    """A bound on ln of the capital after these labels, whatever their order.

    Bets on misses gain from misses alone, and at each at most 1 / its probability under the null; bets on p-values
    gain at most p^-0.6, and no p-value is smaller than 2^-33 / (n + 1 + labels).
    """
    if state.gaps is not None:
        return state.seen * (log(n + 1 + state.seen) + 33 * log(2))
    misses = state.seen - state.covered
    return misses * log(n + 1 + state.seen) - (lgamma(n + 1 - k + misses) - lgamma(n + 1 - k)) + log(2)
