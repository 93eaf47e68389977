"""One threshold for all rows: coverage holds on average over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.laws.law import Kind, Law, Thresholds
from evicp.calibration.promises import Promise, Target, verdict
from evicp.calibration.ranks import rank_of, rows_needed
from evicp.calibration.reliability import Reliability
from evicp.calibration.smoothing import smoothed_limit
from evicp.calibration.suspicious import caution_of_masked
from evicp.calibration.ties import found_ties, is_tied
from evicp.errors import EvicpWarning, SmallCalibrationWarning
from evicp.input import convert
from evicp.method.scores import Score
from evicp.types import F64, I64

#: The group of every label of every row.
_ONE_GROUP = convert.frozen(np.zeros((1, 1), np.int64))


@dataclass(frozen=True)
class AllRows(Kind):
    """All calibration rows together, of which nothing is needed but their scores."""

    guarantee = "marginal"
    uses_labels = False
    sorts_on_device = True

    def keys(self, score: Score, logits: Any, labels: I64, groups: Any, weights: Any) -> NDArray[Any]:
        """Nothing."""
        return np.empty(0)

    def law_of(
        self,
        scores: Any,
        keys: Sequence[NDArray[Any]],
        n_classes: int,
        class_names: tuple[str, ...] | None,
    ) -> tuple[Any, Marginal]:
        """The scores, ascending."""
        return np.sort(scores) if isinstance(scores, np.ndarray) else scores.ascending(), Marginal()


ALL_ROWS = AllRows()


@dataclass(frozen=True)
class Marginal(Law):
    """The k-th smallest score is the threshold of every label of every row."""

    guarantee = "marginal"
    kind = ALL_ROWS
    refusals = MappingProxyType(
        dict.fromkeys(
            ("one threshold", "confidence", "smoothed p-values", "smoothed sets", "online p-values", "one law", "rows")
        )
    )

    def of_rows(self, score: Score, logits: Any, groups: Any, weights: Any) -> I64:
        """One group, (1, 1)."""
        return _ONE_GROUP

    def of_labels(self, n_classes: int) -> I64:
        """The same."""
        return _ONE_GROUP

    def at(self, scores: F64, coverage: Fraction, confidence: float | None) -> Thresholds:
        """The k-th smallest score; +inf where there are too few."""
        n = len(scores)
        k = rank_of(n, coverage, confidence)
        value = float(scores[k - 1]) if k <= n else np.inf
        ties = found_ties(scores, np.array([n]), np.array([k]))
        caution = None
        if k > n:
            caution = _too_few(n, coverage, confidence)
        elif value == np.inf:
            caution = caution_of_masked(scores, coverage)
        values = convert.frozen(np.array([value]))
        return Thresholds(values, ties, is_tied(scores, k), () if caution is None else (caution,))

    def limit(self, scores: F64, coverage: Fraction, values: F64, of_rows: I64) -> float:
        """One number."""
        return values.item()

    def smoothed_limit(self, scores: F64, coverage: Fraction, of_rows: I64, steps: I64) -> F64:
        """The threshold of each row of smoothed sets, (n, 1)."""
        return smoothed_limit(scores, coverage, steps)[:, None]

    def below(self, scores: F64, new: F64, of_rows: I64, side: Literal["left", "right"]) -> I64:
        """How many scores are below each new one ("left"), or not above it ("right")."""
        return np.searchsorted(scores, new, side=side)

    def sizes(self, scores: F64, of_rows: I64) -> I64:
        """All."""
        return np.full((1,) * of_rows.ndim, len(scores))

    def online_p_values(self, scores: F64, new: F64, joining: F64) -> F64:
        """The p-value of each new score among the scores and the new ones before it, which join them as `joining`."""
        return online_p_values(scores, new, joining)

    def p_values_of(self, score: Score, scores: F64, logits: Any, labels: I64 | None, of_rows: I64) -> Any:
        """P-values; of tensors on an accelerator they stay there."""
        if isinstance(logits, np.ndarray):
            return super().p_values_of(score, scores, logits, labels, of_rows)
        return kernels.p_values(score, logits, scores, labels)

    def promise(self, scores: F64, target: Target) -> Promise:
        """The Beta law, and whether what was observed is compatible with it."""
        law = Reliability(len(scores), target.coverage, target.pac)
        tied = is_tied(scores, law.k)
        observed = verdict(law, target.evaluation, target.confidence, covers_more=tied)
        return Promise(law, float(target.values[0]), tied, observed)

    def description(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def extended(
        self,
        scores: F64,
        new: F64,
        keys: NDArray[Any],
        n_classes: int,
    ) -> tuple[F64, Marginal]:
        """All scores, ascending."""
        return np.sort(np.concatenate([scores, new])), self

    def raised(self, scores: F64, higher: Callable[[F64], F64]) -> tuple[F64, Marginal]:
        """Higher scores, ascending."""
        return np.sort(higher(scores)), self


MARGINAL = Marginal()


def _too_few(n: int, coverage: Fraction, confidence: float | None) -> EvicpWarning:
    sure = "" if confidence is None else f" with confidence {confidence:g}"
    return SmallCalibrationWarning(
        f"{n} calibration row(s) cannot guarantee coverage {float(coverage):g}{sure}: every set is full. "
        f"Calibrate on at least {rows_needed(coverage, confidence)} rows."
    )


def online_p_values(ascending: F64, scores: F64, joining: F64) -> F64:
    """p_t = (1 + #{calibration and earlier rows with score >= s_t}) / (n + t), t = 1, 2, ...

    Parameters
    ----------
    ascending : (n,) calibration scores
    scores : (m,) scores of new rows, in the order in which they are tested and join
    joining : (m,) the scores with which they join: the same, or raised past rounding
    """
    n, t = len(ascending), np.arange(1, len(scores) + 1)
    known = n - np.searchsorted(ascending, scores, side="left")
    p: F64 = (1.0 + (known + _earlier_at_least(scores, joining))) / (n + t)
    return p


def _earlier_at_least(scores: F64, joining: F64) -> I64:
    """How many earlier entries of `joining` are at least as large as each score.

    Blocks of 1, 2, 4, ... entries are taken in pairs: all pairs are sorted at once, and each entry of a second block
    meets those of the first that are not smaller.
    """
    m, half = len(scores), 1
    place, counts = np.arange(m), np.zeros(m, np.int64)
    while half < m:
        pair, second = np.divmod(place // half, 2)
        order = np.lexsort((second, -np.where(second == 1, scores, joining), pair))
        met = np.cumsum(second[order] == 0) - pair[order] * half  # the first blocks of earlier pairs are full
        late = second[order] == 1
        counts[order[late]] += met[late]
        half *= 2
    return counts
