"""Tests whether new rows resemble the calibration rows, with and without labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp import kernels
from evicp.calibration.calibration import Calibration
from evicp.calibration.levels import require_law
from evicp.calibration.monitor import Monitor
from evicp.calibration.new_rows import comparable
from evicp.errors import InputError, InputTypeError, LogitsError
from evicp.evaluation.two_samples import p_value_of, steps_between
from evicp.input import convert, frames, validate
from evicp.input.classes import ClassAxis
from evicp.kernels.arithmetic import ROUNDOFF, in_precision, precision_of
from evicp.method.evidence import log_utility
from evicp.method.scores import Score
from evicp.outer import outer
from evicp.tables import html_table, text_table
from evicp.types import F64, Coverage

__all__ = ["ExchangeabilityCheck", "Statistic", "check_exchangeable"]

#: Statistics that differ by this share of their size, or of 1, count as equal: rounding alone may do that.
_ROUNDED = 1e-5


@dataclass(frozen=True)
class Statistic:
    """One statistic of calibration rows and of new rows.

    Attributes
    ----------
    name : what it is
    before, now : its median among the calibration rows (or the reference), and among the new rows
    larger : the probability that a new row's value is larger than a calibration row's, ties counting one half; 0.5
        without a shift
    distance : between the two distributions (Kolmogorov and Smirnov), from 0 to 1
    p_value : of no change, multiplied by the number of statistics tested
    """

    name: str
    before: float
    now: float
    larger: float
    distance: float
    p_value: float


@dataclass(frozen=True, repr=False)
class ExchangeabilityCheck:
    """The result of `check_exchangeable`: whether new rows resemble the calibration rows.

    Attributes
    ----------
    statistics : the compared statistics
    error : the largest probability of reporting a shift that does not exist
    n : the calibration or reference rows of the comparison
    n_new : new rows
    alarm_at : the number of the label, from 1, at which the labels alone showed the shift; None if they did not
    checksum : of the calibration, as in its certificate
    """

    statistics: tuple[Statistic, ...]
    error: float
    n: int
    n_new: int
    alarm_at: int | None
    checksum: str

    @property
    def p_value(self) -> float:
        """The p-value of no shift: the smallest p-value of the statistics."""
        return min(statistic.p_value for statistic in self.statistics)

    @property
    def shifted(self) -> bool:
        """Whether a shift was found. There may be shifts that these tests do not detect."""
        return self.p_value <= self.error

    @property
    def moved(self) -> tuple[str, ...]:
        """The names of the statistics that changed, smallest p-value first."""
        sure = sorted(self.statistics, key=lambda statistic: statistic.p_value)
        return tuple(statistic.name for statistic in sure if statistic.p_value <= self.error)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        found = f"a shift: {', '.join(self.moved)}" if self.shifted else "no shift found"
        return f"{found} ({self.n_new:,} new rows, p = {self.p_value:.2g}, error rate {self.error:g})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        own = {"summary": self.summary, "shifted": self.shifted, "moved": list(self.moved), "p_value": self.p_value}
        return {**own, **asdict(self), "statistics": [asdict(one) for one in self.statistics]}

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = ["statistic", "median before", "median now", "larger now", "distance", "p-value"]
        rows = [
            [s.name, f"{s.before:.4g}", f"{s.now:.4g}", f"{s.larger:.1%}", f"{s.distance:.3f}", f"{s.p_value:.2g}"]
            for s in self.statistics
        ]
        return head, rows

    def __repr__(self) -> str:
        said = self.summary[0].upper() + self.summary[1:]
        late = "" if self.alarm_at is None else f" The labels show it from number {self.alarm_at:,} on."
        return f"{said}.{late}\n\n{text_table(*self._table())}"

    def _repr_html_(self) -> str:
        return html_table(*self._table(), caption=self.summary)


def check_exchangeable(
    calibration: Calibration,
    new_logits: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    reference: ArrayLike | None = None,
    coverage: Coverage = 0.9,
    error: float = 0.01,
) -> ExchangeabilityCheck:
    """Test whether new rows resemble the calibration rows, as the guarantee requires.

    Without labels, the new rows' scores of their best label are compared with the scores of the calibration rows' true
    labels, which can only be exceeded if rows have become harder. With a reference, the rows' largest logit, evidential
    uncertainty u and entropy are compared, which also finds rows that have become easier. With labels, a monitor tests
    the p-values of the true labels in their order. If all rows are exchangeable, a shift is reported with probability
    at most `error`. The rows of all groups are tested together.

    Parameters
    ----------
    calibration : without weights
    new_logits : (m, K) logits of new rows that are not calibration rows
    labels : (m,) their labels, in order of arrival, if known
    reference : (r, K) logits of the calibration rows, or of others from the same source
    coverage : of the sets to be predicted, whose misses the monitor tests
    error : the largest probability of reporting a shift that does not exist

    >>> from evicp import calibrate
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 4, 1000)
    >>> logits = rng.normal(size=(1000, 4)) + 3 * np.eye(4)[labels]
    >>> calibration = calibrate(logits[:500], labels[:500])
    >>> check_exchangeable(calibration, logits[500:], reference=logits[:500]).shifted
    False
    >>> check_exchangeable(calibration, 0.6 * logits[500:], reference=logits[:500]).moved
    ('largest logit', 'uncertainty u', 'entropy')
    """
    return _checked(calibration, new_logits, labels, reference, coverage, validate.as_probability(error, "error"))


def _checked(
    calibration: Calibration, new_logits: Any, labels: Any, reference: Any, coverage: Coverage, error: float
) -> ExchangeabilityCheck:
    """See `check_exchangeable`."""
    if not isinstance(calibration, Calibration):
        raise InputTypeError(f"calibration must be a Calibration; got a {type(calibration).__name__}.")
    if calibration.weights is not None:
        raise InputError("a weighted calibration expects new rows to be shifted; there is nothing to test.")
    new = _rows(calibration, new_logits, "new_logits")
    frames.same_rows(new_logits=new_logits, labels=labels)
    old = None if reference is None else _rows(calibration, reference, "reference")
    found = [] if old is None else _moves(calibration.score, *_alike(reference, old, new_logits, new))
    if old is None and labels is None:
        found = [_best_labels(calibration, new, new_logits)]
    parts, alarm_at = len(found) + (labels is not None), None
    if labels is not None:
        found_by_labels, alarm_at = _true_labels(calibration, new_logits, labels, coverage, error / parts)
        found.append(found_by_labels)
    return ExchangeabilityCheck(
        tuple(replace(one, p_value=min(1.0, parts * one.p_value)) for one in found),
        error,
        calibration.n if old is None else len(old),
        len(new),
        alarm_at,
        outer("checksum")(calibration),
    )


def _rows(calibration: Calibration, logits: Any, what: str) -> NDArray[Any]:
    """Rows of logits, checked, on the CPU."""
    array = validate.as_logits(logits, calibration.n_classes, row_allowed=True)
    ClassAxis.known_to(calibration).check(logits)
    if not len(array):
        raise LogitsError(f"{what} must have at least one row; got none.")
    return array


# ---------------------------------------------------------------------------------------------------------------
# Without labels


def _entropy(logits: F64) -> F64:
    """The entropy of the softmax, (n,)."""
    log_p = log_utility(logits)
    p = np.exp(log_p)
    entropy: F64 = -np.where(p > 0, p * np.maximum(log_p, -1e300), 0.0).sum(1)
    return entropy


def _alike(old_given: Any, old: NDArray[Any], new_given: Any, new: NDArray[Any]) -> list[NDArray[Any]]:
    """Old and new rows in the coarser of their precisions, so that equal values stay equal."""
    coarser = max((precision_of(old_given, old), precision_of(new_given, new)), key=lambda name: ROUNDOFF[name])
    return [in_precision(array, coarser) for array in (old, new)]


def _moves(score: Score, old: NDArray[Any], new: NDArray[Any]) -> list[Statistic]:
    """What each row's logits say by themselves, before and now."""
    statistics: dict[str, Callable[[F64], F64]] = {
        "largest logit": lambda block: block.max(1),
        "uncertainty u": lambda block: kernels.uncertainties(score, block),
        "entropy": _entropy,
    }
    before, now = (_of_blocks(array, statistics) for array in (old, new))
    return [_compared(name, before[name], now[name], _ROUNDED) for name in statistics]


def _of_blocks(logits: NDArray[Any], statistics: dict[str, Callable[[F64], F64]]) -> dict[str, F64]:
    blocks = [{name: of(block) for name, of in statistics.items()} for _, block in validate.blocks(logits)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in statistics}


def _compared(name: str, before: F64, now: F64, tolerance: float, *, larger: bool = False) -> Statistic:
    """A statistic before and now; with `larger`, only larger values are a shift."""
    n, m = len(before), len(now)
    steps = steps_between(before, now, tolerance, larger=larger)
    p_value = p_value_of(steps, n, m, one_sided=larger)
    return Statistic(name, _median(before), _median(now), _share_larger(before, now), steps / (n * m), p_value)


def _median(numbers: F64) -> float:
    """The middle number, the lower one of two: it may be infinite."""
    return float(np.sort(numbers)[(len(numbers) - 1) // 2])


def _share_larger(before: F64, now: F64) -> float:
    """P(now > before) + P(now = before) / 2 over all pairs."""
    ascending = np.sort(before)
    counts = np.searchsorted(ascending, now, "left") + np.searchsorted(ascending, now, "right")
    return float(counts.mean() / (2 * len(before)))


def _best_labels(calibration: Calibration, new: NDArray[Any], given: Any) -> Statistic:
    """The score of each new row's best label, which is at most that of its true one, against the calibration's."""
    require_law(calibration, "a test without a reference")
    own, array = comparable(calibration, given, new)
    best = [kernels.dense_scores(own.score, array[rows]).min(1) for rows, _ in validate.blocks(new)]
    return _compared("score of the best label", own.scores, np.concatenate(best), 0.0, larger=True)


# ---------------------------------------------------------------------------------------------------------------
# With labels


def _true_labels(
    calibration: Calibration, logits: Any, labels: Any, coverage: Coverage, rate: float
) -> tuple[Statistic, int | None]:
    """The p-values of the true labels, on which a monitor bets, and the label at which it raised its alarm."""
    if calibration.groups is not None:
        raise InputError(
            f"this calibration is by {calibration.guarantee}: with labels, monitor each group, "
            "Monitor(calibration, coverage, group=...); or leave the labels out (--no-labels)."
        )
    if calibration.law.refusal("rows") is not None:
        raise InputError(
            "the distribution of coverage is not known for overlapping groups: leave the labels out (--no-labels), and "
            "pass a reference."
        )
    p_values = calibration.p_values(convert.on_cpu(logits), convert.on_cpu(labels))
    watch = Monitor(calibration, coverage, false_alarm_rate=rate).update_p_values(p_values)
    # p = (1 + #{s_i >= s}) / (n + 1), so that the place of each new score among the calibration's is known.
    n, at_least = calibration.n, np.rint(p_values * (calibration.n + 1)).astype(np.int64) - 1
    place = np.minimum(n - at_least, n - 1)
    ranked = _compared("score of the true label", np.arange(n, dtype=np.float64), place.astype(np.float64), 0.0)
    before, now = (float(calibration.scores[int(rank)]) for rank in (ranked.before, ranked.now))
    return replace(ranked, before=before, now=now, p_value=watch.p_value), watch.alarm_at
