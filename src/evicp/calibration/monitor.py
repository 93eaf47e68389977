"""Monitoring of coverage: a test that can be checked after every label, and a level that adapts.

Given one calibration set, coverage is a random number with the distribution Beta(k, n + 1 - k). So new labels are not
covered independently with the nominal probability, and a test of that hypothesis would raise false alarms. They follow
Polya's urn: after c of t labels were covered, the next one is covered with probability (k + c) / (n + 1 + t). The
monitor tests this hypothesis by betting against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import exp, log
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evicp.calibration.calibration import Calibration
from evicp.calibration.levels import require_law
from evicp.calibration.monitor_state import MonitorState, as_coverage_text, as_state, refuse_impossible
from evicp.calibration.new_rows import Request, sets_at_level
from evicp.calibration.ranks import rows_needed
from evicp.calibration.reliability import Reliability
from evicp.calibration.seen_rows import SeenRows, content_hashes
from evicp.errors import InputError, InputTypeError
from evicp.input import convert, validate
from evicp.input.classes import labelled
from evicp.kernels._numpy import mix32
from evicp.sets import PredictionSets
from evicp.types import F64, I64, Bools, Coverage

__all__ = ["AdaptiveLevel", "Monitor"]


_SALT = 0x9E3779B9

#: What may have happened to the odds of a miss: each is an alternative the monitor bets on.
_MISS_ODDS = (1.25, 1.5, 2.0, 3.0, 5.0)

#: What may have happened to p-values: densities a u^(a - 1), more mass on small ones the smaller a is.
_POWERS = (0.4, 0.6, 0.8)

#: The change may come at any label; by this one, half of the capital has been put on its having come.
_HALF_BET = 5000.0

#: Labels are taken in parts of this many, so that a long history does not need memory for all alternatives at once.
_AT_ONCE = 1 << 16


# ---------------------------------------------------------------------------------------------------------------
# The test, as functions of arrays whose last axis is time (leading axes are independent streams)


def polya_odds(covered: Bools, n: int, k: int, seen: int = 0, covered_before: int = 0) -> F64:
    """The null: P(covered | c of t) = (k + c) / (n + 1 + t), for each label before it is seen."""
    before = covered_before + np.cumsum(covered, axis=-1) - covered
    probability: F64 = (k + before) / (n + 1.0 + seen + np.arange(covered.shape[-1]))
    return probability


def log_bets_on_misses(covered: Bools, probability: F64, k: int, n: int) -> F64:
    """ln of how each alternative's capital grows with each label, (..., T, alternatives).

    An alternative is a coverage below the nominal one; it bets only while the null expects more than that, so that it
    can gain from misses alone.
    """
    odds = (n + 1 - k) / k * np.array(_MISS_ODDS)
    p = probability[..., None]
    q = np.minimum(1.0 / (1.0 + odds), p)
    return np.where(covered[..., None], np.log(q / p), np.log((1.0 - q) / (1.0 - p)))


def log_e_process(log_bets: F64, seen: int = 0, log_active: F64 | None = None) -> tuple[F64, F64]:
    """ln of the capital after each label, (..., T), and what the alternatives hold at the end.

    The bank starts at 1 and moves a share of itself to the alternatives at each label, as a change may come at any of
    them. Under the null the capital is a non-negative martingale: it ever reaches 1 / r with probability at most r.
    """
    count = log_bets.shape[-1]
    t = seen + np.arange(log_bets.shape[-2])
    joining = log(_HALF_BET / count) - np.log(t + _HALF_BET) - np.log(t + _HALF_BET + 1.0)
    growth = np.cumsum(log_bets, axis=-2)
    log_capital = np.logaddexp.accumulate(joining[:, None] - (growth - log_bets), axis=-2)
    if log_active is not None:
        log_capital = np.logaddexp(log_active[..., None, :], log_capital)
    active = growth + log_capital
    total: F64 = np.logaddexp(np.logaddexp.reduce(active, axis=-1), log_reserve(t + 1.0))
    return total, active[..., -1, :]


def log_reserve(seen: Any) -> Any:
    """ln of what the bank still holds after so many labels."""
    return log(_HALF_BET) - np.log(seen + _HALF_BET)


def sequential_p_values(gaps: I64, counts: I64, seed: int, seen: int) -> F64:
    """P-values with labelled points joining the calibration: independent and uniform while nothing has changed.

    A p-value of the fixed calibration says in which of the n + 1 gaps between its scores a new score fell. Of t
    labelled points, N_j fell in gap j; the next one falls there with probability (1 + N_j) / (n + 1 + t). The place
    within a gap is drawn as a pure function of the seed and the label's number. Adds the gaps to `counts`.
    """
    # The mixer maps 0 to 0: salted, no seed has its extreme place among the first labels. Places are the middles of
    # 2^32 cells: no p-value is 0, and a bet that is convex in p gains no more than on the whole cell.
    numbers = (seen + np.arange(len(gaps))).astype(np.uint32)
    salt = mix32(np.array([seed ^ _SALT], np.uint32))
    within = (mix32(numbers ^ salt) + 0.5) / 2.0**32
    result = np.empty(len(gaps))
    for i, gap in enumerate(gaps):
        below, inside = gap + counts[:gap].sum(), 1 + counts[gap]
        result[i] = (below + within[i] * inside) / (len(counts) + seen + i)
        counts[gap] += 1
    return result


def log_bets_on_small(p: F64, coverage: float) -> F64:
    """ln of how each alternative's capital grows with each sequential p-value, (..., T, alternatives).

    Some bet on small p-values in general, some on those up to 1 - coverage, which are the misses.
    """
    risk = 1.0 - coverage
    powers = [log(a) + (a - 1.0) * np.log(np.maximum(p, 2.0**-60)) for a in _POWERS]
    more = [min(factor * risk, (1.0 + risk) / 2.0) for factor in _MISS_ODDS]
    steps = [np.where(p <= risk, log(m / risk), log((1.0 - m) / coverage)) for m in more]
    return np.stack([*powers, *steps], axis=-1)


# ---------------------------------------------------------------------------------------------------------------
# The monitor


class Monitor:
    """Monitor coverage as labels arrive; the rate of false alarms is bounded although it is checked after every label.

    Pass whether each set contained its label, in order of arrival (`update`), or the p-values of the true labels
    (`update_p_values`), which detect any shift towards less plausible labels. While labels remain exchangeable with the
    calibration rows, the probability of ever raising an alarm is at most `false_alarm_rate`, over calibration sets and
    all future labels. Exact for continuous scores; ties and filled sets make alarms rarer. Smoothed sets cover up to 1
    / (n + 1) less than `update` expects: pass p-values instead.

    Parameters
    ----------
    calibration : the calibration, or its number of rows
    coverage : the target coverage of the sets
    confidence : of the sets, where they were predicted with one
    group : the name or number of the group to monitor, if the calibration has groups (one monitor each)
    false_alarm_rate : the probability of ever raising a false alarm
    seed : of the random positions of p-values within their gaps

    Attributes
    ----------
    n : calibration rows behind the threshold
    k : its rank among their scores
    seen : the number of labels so far
    covered : the number of covered labels
    alarm_at : the number of the label that raised the alarm, from 1; None without an alarm
    rows : digests of the rows seen so far, see `new_rows`

    >>> monitor = Monitor(2000, coverage=0.9, false_alarm_rate=0.01)
    >>> rng = np.random.default_rng(0)
    >>> monitor.update(rng.random(3000) < 0.9).alarm
    False
    >>> monitor.update(rng.random(3000) < 0.8).alarm
    True
    """

    def __init__(
        self,
        calibration: Calibration | int,
        coverage: Coverage,
        *,
        confidence: float | None = None,
        group: str | int | None = None,
        false_alarm_rate: float = 0.01,
        seed: int = 0,
    ) -> None:
        law = Reliability(_rows_of(calibration, group), coverage, confidence)
        if not law.l:
            raise InputError(
                f"{law.n} calibration row(s) give full sets at coverage {float(law.coverage):g}: they cannot miss, so "
                "there is nothing to monitor."
            )
        self.n, self.k, self.coverage, self.confidence = law.n, law.k, law.coverage, law.confidence
        self.false_alarm_rate = validate.as_probability(false_alarm_rate, "false_alarm_rate")
        self.seed = validate.as_seed(seed)
        self.seen = 0
        self.covered = 0
        self.alarm_at: int | None = None
        self._log_e = self._largest_log_e = 0.0
        self._log_active: F64 | None = None
        self._gaps: I64 | None = None
        self.rows = SeenRows()
        self._lock = Lock()  # each bet depends on all before it

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # not in the middle of another thread's update, which counts gaps in place
            state = {name: value for name, value in self.__dict__.items() if name != "_lock"}
            return state | {"_gaps": None if self._gaps is None else self._gaps.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = Lock()

    def update(self, covered: ArrayLike) -> Monitor:
        """Add labels that have arrived.

        Parameters
        ----------
        covered : whether each one's set held it, one bool or (m,) of them: `sets.contains(labels)`
        """
        array = _as_covered(covered)
        with self._lock:
            if self._gaps is not None:
                raise InputError("this monitor takes p-values; use another one for covered labels.")
            for start in range(0, len(array), _AT_ONCE):
                part = array[start : start + _AT_ONCE]
                null = polya_odds(part, self.n, self.k, self.seen, self.covered)
                self._bet(log_bets_on_misses(part, null, self.k, self.n), int(part.sum()))
        return self

    def new_rows(self, logits: ArrayLike, labels: ArrayLike) -> Bools:
        """Which rows are new, (m,), so that you update with these only; all of them are stored as seen.

        Parameters
        ----------
        logits, labels : (m, K) and (m,), in order of arrival. Fewer than 8 rows always count as new
        """
        return self.rows.new(content_hashes(*labelled(logits, labels)))

    def update_p_values(self, p_values: ArrayLike) -> Monitor:
        """Add labels that have arrived.

        Parameters
        ----------
        p_values : (m,), of the true labels: `calibration.p_values(logits, labels)`
        """
        p = np.atleast_1d(convert.as_array(p_values, "p_values"))
        if p.dtype.kind != "f" and p.size:
            raise InputTypeError(f"p_values must be real numbers; got dtype {p.dtype}.")
        scaled = p * (self.n + 1.0)
        gaps = np.rint(scaled)
        if p.ndim != 1 or not np.all((np.abs(scaled - gaps) < 1e-3) & (gaps >= 1) & (gaps <= self.n + 1)):
            raise InputError(
                f"p_values must be multiples of 1 / (n + 1) in (0, 1], n = {self.n}, and not smoothed; take them from "
                "calibration.p_values(logits, labels)."
            )
        with self._lock:
            if self._gaps is None and self.seen:
                raise InputError("this monitor takes covered labels; use another one for p-values.")
            if not len(gaps):
                return self
            counts = np.zeros(self.n + 1, np.int64) if self._gaps is None else self._gaps
            self._gaps = counts
            for start in range(0, len(gaps), _AT_ONCE):
                part = gaps[start : start + _AT_ONCE]
                sequential = sequential_p_values(part.astype(np.int64) - 1, counts, self.seed, self.seen)
                # A label is covered exactly if its p-value, gap / (n + 1), is more than 1 - k / (n + 1).
                covered = int(np.sum(part > self.n + 1 - self.k))
                self._bet(log_bets_on_small(sequential, self.k / (self.n + 1)), covered)
        return self

    def _bet(self, log_bets: F64, covered: int) -> None:
        log_e, self._log_active = log_e_process(log_bets, self.seen, self._log_active)
        crossed = np.flatnonzero(log_e >= -log(self.false_alarm_rate))
        if self.alarm_at is None and crossed.size:
            self.alarm_at = self.seen + int(crossed[0]) + 1
        self._log_e, self._largest_log_e = float(log_e[-1]), max(self._largest_log_e, float(log_e.max()))
        self.seen += len(log_e)
        self.covered += covered

    @property
    def alarm(self) -> bool:
        """Whether an alarm was raised; once raised, it stays. `alarm_at` is the label that raised it."""
        return self.alarm_at is not None

    @property
    def e_value(self) -> float:
        """The evidence against the guarantee so far: the capital of a bet that started with 1."""
        return exp(min(self._log_e, 700.0))

    @property
    def p_value(self) -> float:
        """A p-value that is valid at any time: 1 / the largest e-value so far, at most 1."""
        return exp(-max(self._largest_log_e, 0.0))

    @property
    def observed(self) -> float | None:
        """The share of labels covered so far."""
        return self.covered / self.seen if self.seen else None

    def to_dict(self) -> dict[str, Any]:
        """The state of the monitor, ready for JSON: `Monitor.from_dict` continues from it."""
        now = self.__getstate__()
        return {
            "n": self.n,
            "coverage": str(self.coverage),
            "confidence": self.confidence,
            "false_alarm_rate": self.false_alarm_rate,
            "seed": self.seed,
            "seen": now["seen"],
            "covered": now["covered"],
            "alarm_at": now["alarm_at"],
            "log_e": now["_log_e"],
            "largest_log_e": now["_largest_log_e"],
            "log_active": None if now["_log_active"] is None else now["_log_active"].tolist(),
            "gaps": None if now["_gaps"] is None else now["_gaps"].tolist(),
            "rows": self.rows.to_list(),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Monitor:
        """The monitor from the result of `to_dict`; an impossible state is refused."""
        try:
            monitor = cls(
                state["n"],
                as_coverage_text(state["coverage"]),
                confidence=state["confidence"],
                false_alarm_rate=state["false_alarm_rate"],
                seed=state["seed"],
            )
            monitor._restore(as_state(state))
            monitor.rows = SeenRows.from_list(state.get("rows", ()))  # not in the states of earlier versions
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"this is not the state of a monitor: {str(error).rstrip('.')}.") from error
        return monitor

    def _restore(self, state: MonitorState) -> None:
        refuse_impossible(
            state,
            n=self.n,
            k=self.k,
            false_alarm_rate=self.false_alarm_rate,
            alternatives=len(_MISS_ODDS) if state.gaps is None else len(_POWERS) + len(_MISS_ODDS),
            reserve=log_reserve(state.seen),
        )
        self.seen, self.covered, self.alarm_at = state.seen, state.covered, state.alarm_at
        self._log_e, self._largest_log_e = state.log_e, state.largest_log_e
        self._log_active, self._gaps = state.log_active, state.gaps

    def __repr__(self) -> str:
        head = f"Monitor(coverage {float(self.coverage):g}, n = {self.n:,}, false alarms {self.false_alarm_rate:g}: "
        if not self.seen:
            return f"{head}no labels yet)"
        verdict = f"ALARM at label {self.alarm_at:,}" if self.alarm_at is not None else "no alarm"
        seen = "1 label" if self.seen == 1 else f"{self.seen:,} labels"
        return f"{head}{seen}, {self.observed:.4f} covered, e-value {self.e_value:.3g}; {verdict})"


def _as_covered(covered: Any) -> Bools:
    """Whether labels were covered, (m,)."""
    array = np.atleast_1d(convert.as_array(covered, "covered"))
    if array.dtype.kind != "b" and array.size:
        raise InputTypeError(f"covered must be True or False; got dtype {array.dtype}. Pass sets.contains(labels).")
    if array.ndim != 1:
        raise InputError(f"covered must be one-dimensional; got shape {array.shape}.")
    return array


def _rows_of(calibration: Calibration | int, group: str | int | None) -> int:
    """The calibration rows behind the threshold that is watched."""
    group = str(int(group)) if isinstance(group, int | np.integer) else group  # as groups of whole numbers are called
    if not isinstance(calibration, Calibration):
        if group is not None:
            raise InputError("group is a group of a calibration; pass the calibration, not its number of rows.")
        return validate.as_count(calibration, "n")
    calibration.law.require("rows")
    require_law(calibration, "a monitor")
    return calibration.law.rows_behind(calibration.n, group)


# ---------------------------------------------------------------------------------------------------------------
# Correcting online


class AdaptiveLevel:
    """Adaptive conformal inference: a level that rises after each miss and falls after each hit.

    For any sequence of labels, even an adversarial one, the share of covered labels approaches the target coverage:
    over T labels, passed one by one, they differ by at most (1 + step) / (step T); with m labels at a time, by at most
    (1 + m step) / (step T). If empty sets are filled, more labels may be covered, never fewer. There is no guarantee
    for a single label. A small step adapts slowly; a large one makes set sizes vary.

    Parameters
    ----------
    coverage : the target over many labels
    step : by how much a miss raises the level (a hit lowers it by (1 - coverage) / coverage of that)

    Attributes
    ----------
    level : the coverage at which sets are made now

    >>> level = AdaptiveLevel(0.9, step=0.01)
    >>> round(level.update(False).level, 4), round(level.update([True] * 9).level, 4)
    (0.909, 0.9)
    """

    def __init__(self, coverage: Coverage, *, step: float = 0.005) -> None:
        self.coverage = validate.as_coverage(coverage)
        self.step = validate.as_probability(step, "step")
        self.level = float(self.coverage)

    def predict(
        self,
        calibration: Calibration,
        logits: ArrayLike,
        *,
        confidence: float | None = None,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        allow_empty: bool = True,
    ) -> PredictionSets:
        """Sets at the current level, as `Calibration.predict` makes them; the level may leave (0, 1).

        They are full at a level of 1 or more and empty at 0 or less. They store the target coverage but no number of
        calibration rows, because the usual guarantee does not hold for sets whose level changes.

        Parameters
        ----------
        calibration : the calibration whose thresholds are used
        logits, confidence, groups, weights, allow_empty : as for `Calibration.predict`
        """
        if not isinstance(calibration, Calibration):
            raise InputTypeError(f"calibration must be a Calibration; got a {type(calibration).__name__}.")
        level = Fraction(self.level).limit_denominator(10**9)
        one = calibration.law.refusal("one threshold") is None
        if one and 0 < level < 1 and rows_needed(level, confidence) > calibration.n:
            level = Fraction(1)  # past the last calibration score sets are full, which here is no cause to warn
        about = replace(calibration.at(self.coverage, confidence).level.about, n_calibration=None)
        request = Request(logits, groups, weights, allow_empty)
        return sets_at_level(calibration, level, about, confidence, request)

    def update(self, covered: ArrayLike) -> AdaptiveLevel:
        """Update the level by whether sets contained their labels, one bool or (m,)."""
        array = _as_covered(covered)
        misses = array.size - int(array.sum())
        rise = self.step * (misses - array.size * float(1 - self.coverage))
        # At 0 and below sets are empty, or filled ones, whose hits say nothing: the level would fall without end.
        self.level += rise if self.level > 0 else max(rise, 0.0)
        return self

    def __repr__(self) -> str:
        return f"AdaptiveLevel({float(self.coverage):g}, step={self.step:g}; now {self.level:.4f})"
