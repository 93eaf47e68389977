"""The losses of calibration rows as steps of the threshold, and the smallest threshold with a risk: whole numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, lcm, log, log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.ranks import rank_of
from evicp.method.scores import Score
from evicp.risk.loss import COST_MATRIX, FUNCTION, Loss, exact
from evicp.types import F64, I64

#: So many rows are processed together where losses depend on all labels of a row up to the true one.
_ROWS = 2048


@dataclass(frozen=True, eq=False)
class Steps:
    """Where the losses of n rows drop as the threshold grows; without a threshold every set is empty.

    Parameters
    ----------
    scores : (E,) ascending: a threshold of at least this much lowers the loss of one row
    before, after : (E,) from this loss to that one
    n : rows
    largest : the most that a loss can be
    """

    scores: F64
    before: F64
    after: F64
    n: int
    largest: float

    def raised(self, higher: Callable[[F64], F64]) -> Steps:
        """The steps at higher scores; the function takes ascending ones."""
        scores = higher(self.scores)
        order = np.argsort(scores, kind="stable")
        return replace(self, scores=scores[order], before=self.before[order], after=self.after[order])

    @cached_property
    def _exact(self) -> tuple[int, NDArray[Any]]:
        """A scale, and the sum of all losses times it after each of the first steps, (E + 1,) whole numbers."""
        values, which = np.unique(np.concatenate([self.before, self.after]), return_inverse=True)
        fractions = [exact(value) for value in values.tolist()]
        scale = lcm(exact(self.largest).denominator, *(value.denominator for value in fractions))
        whole = [int(value * scale) for value in fractions]
        fits = max(whole, default=0) * (len(self.scores) + 1) < 2**62
        numbers = np.array(whole, np.int64 if fits else object)
        before, after = np.split(which, 2)
        drops = numbers[before] - numbers[after] if whole else np.zeros(0, np.int64)
        remaining = np.concatenate([np.cumsum(drops[::-1])[::-1], np.zeros(1, drops.dtype)])
        return scale, remaining

    @property
    def is_valid(self) -> bool:
        """Whether these can be the losses of growing sets, as files must be asked."""
        scores, before, after = self.scores, self.before, self.after
        if not len(scores) == len(before) == len(after) or np.isnan(scores).any():
            return False
        ordered = np.all(scores[1:] >= scores[:-1])
        return bool(ordered and np.all((after >= 0) & (after < before) & (before <= self.largest)))

    @property
    def is_binary(self) -> bool:
        """Whether a loss is either 0 or the largest one."""
        return bool(np.all(self.before == self.largest) and not self.after.any())

    def loss_at(self, threshold: float) -> Fraction:
        """The mean loss of the rows at a threshold."""
        scale, remaining = self._exact
        return Fraction(int(remaining[int(np.searchsorted(self.scores, threshold, "right"))]), scale * self.n)

    def threshold(self, risk: Fraction, confidence: float | None = None) -> float:
        """The smallest threshold whose risk is controlled; +inf for none, -inf where empty sets will do.

        Parameters
        ----------
        risk : the allowed expected loss
        confidence : None for the expectation over calibration sets: (sum of losses + largest) / (n + 1) <= risk
        """
        scale, remaining = self._exact
        within = self._rule(risk, confidence, scale)
        first = bisect_left(range(len(remaining)), True, key=lambda step: within(int(remaining[step])))
        if first == len(remaining):
            return float("inf")
        return float(self.scores[first - 1]) if first else -float("inf")

    def _rule(self, risk: Fraction, confidence: float | None, scale: int) -> Callable[[int], bool]:
        """Whether a sum of losses, times the scale, is small enough."""
        n, largest = self.n, int(exact(self.largest) * scale)
        if confidence is None:
            most = risk * (n + 1) * scale - largest
            return lambda total: total <= most
        share = risk / exact(self.largest)
        if self.is_binary:
            rank = rank_of(n, 1 - share, confidence)
            return lambda total: n - total // largest >= rank
        log_error = log1p(-confidence)
        return lambda total: log_p_value(Fraction(total, n * largest), share, n) <= log_error


def log_p_value(mean: Fraction, risk: Fraction, n: int) -> float:
    """The logarithm of Hoeffding and Bentkus's p-value of "the expected loss is above the risk", losses in [0, 1].

    Parameters
    ----------
    mean, risk, n : of n losses, what is asked of their expectation, and how many they are

    >>> round(log_p_value(Fraction(3, 100), Fraction(1, 10), 100), 4)
    -3.849
    """
    from scipy.special import bdtr, xlogy

    if mean >= risk:
        return 0.0
    r, a = float(mean), float(risk)
    hoeffding = -n * float(xlogy(r, r / a) + xlogy(1 - r, (1 - r) / (1 - a)))
    tail = float(bdtr(ceil(n * mean), n, a))
    return min(hoeffding, 1 + log(tail) if tail > 0 else hoeffding, 0.0)


def steps_of(score: Score, logits: Any, labels: I64, own: F64, loss: Loss) -> Steps:
    """The steps of labelled rows.

    Parameters
    ----------
    score, loss : of the rule
    logits, labels : checked
    own : the scores of the labels
    """
    if loss.kind in (COST_MATRIX, FUNCTION):
        parts = []
        for start in range(0, len(labels), _ROWS):
            rows = slice(start, start + _ROWS)
            if loss.kind == COST_MATRIX:
                parts.append(_matrix_steps(score, logits[rows], labels[rows], own[rows], loss))
            else:
                parts.append(_function_steps(score, logits[rows], labels[rows], loss, start))
    else:
        costs = loss.of_miss(labels)
        kept = costs > 0
        parts = [(own[kept], costs[kept], np.zeros(int(kept.sum())))]
    scores, before, after = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(scores, kind="stable")
    return Steps(scores[order], before[order], after[order], len(labels), loss.largest)


Part = tuple[F64, F64, F64]


def _matrix_steps(score: Score, logits: Any, labels: I64, own: F64, loss: Loss) -> Part:
    """Labels are taken up to the true one, which costs nothing; the least cost so far counts."""
    offsets, found, scores = kernels.ragged_sets(score, logits, own[:, None])
    rows = np.repeat(np.arange(len(labels)), np.diff(offsets))
    empty, all_costs = loss.of_miss(labels), loss.costs[labels[rows], found]
    lower = np.flatnonzero(all_costs < empty[rows])  # the others, usually most, are of no use
    rows, scores = rows[lower], scores[lower]
    values, codes = np.unique(all_costs[lower], return_inverse=True)
    # Numbers of a later row are lower than all of an earlier one: the running minimum begins anew with each row.
    costs = values[np.minimum.accumulate(codes - rows * len(values)) + rows * len(values)]
    first = np.diff(rows, prepend=-1) > 0
    before = np.where(first, empty[rows], np.concatenate([[0.0], costs])[: len(costs)])
    drops = costs < before
    return scores[drops], before[drops], costs[drops]


def _function_steps(score: Score, logits: Any, labels: I64, loss: Loss, start: int) -> Part:
    """A function is asked for every set that a threshold can give."""
    offsets, found, scores = kernels.ragged_sets(score, logits, np.inf)
    steps: list[tuple[float, float, float]] = []
    for i, true in enumerate(labels.tolist()):
        row = scores[offsets[i] : offsets[i + 1]]
        ends = np.flatnonzero(np.append(row[1:] != row[:-1], True)) + 1
        drops = loss.path(found[offsets[i] : offsets[i + 1]], ends, true, start + i)
        steps += [(float(row[ends[step] - 1]), before, after) for step, before, after in drops]
    at, before, after = np.array(steps).reshape(-1, 3).T
    return at, before, after
