"""Warnings of input that is legal but very likely not what was meant."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.errors import EvicpWarning, SuspiciousInputWarning
from evicp.input import convert
from evicp.input.messages import some_of
from evicp.input.warn import warn, warn_if_probabilities, warn_of_rows
from evicp.method.scores import ECP, SCORES, Score
from evicp.types import F64, I64

#: Nobody asks for so little coverage alone: it is more likely the share of misses.
_LOW_COVERAGE = Fraction(1, 5)


#: Of fewer new rows than this no evidence in most is no sign that they are not logits.
_ENOUGH_TO_JUDGE = 32

#: Nobody asks for coverage that most calibration sets do not reach: it is more likely the share of failures.
_LOW_CONFIDENCE = 0.5


def warn_of(*cautions: EvicpWarning | None) -> None:
    """Warn of what was found, if anything."""
    for caution in cautions:
        if caution is not None:
            warn(str(caution), type(caution))


def caution_of_low_coverage(coverage: Fraction) -> EvicpWarning | None:
    """A warning of a coverage that is probably an alpha; None if it is not."""
    if coverage > _LOW_COVERAGE:
        return None
    return SuspiciousInputWarning(
        f"coverage is the share of true labels in their sets; {float(coverage):g} leaves most sets empty. "
        f"Did you mean {float(1 - coverage):g}?"
    )


def cautions_of_request(coverage: Fraction, confidence: float | None) -> list[EvicpWarning]:
    """Warnings of values that are probably mistakes: a low coverage, or a low confidence."""
    low = caution_of_low_coverage(coverage)
    cautions = [] if low is None else [low]
    if confidence is not None and confidence < _LOW_CONFIDENCE:
        text = (
            f"confidence is the share of calibration sets that reach the target coverage; with {confidence:g} most do "
            f"not. Did you mean {1 - confidence:g}?"
        )
        cautions.append(SuspiciousInputWarning(text))
    return cautions


def caution_of_masked(scores: F64, coverage: Fraction, outcome: str = "every set is full") -> EvicpWarning | None:
    """Full sets not because calibration rows are few, but because too many true labels score +inf.

    Parameters
    ----------
    scores : of the calibration rows that the thresholds are of
    coverage : the target
    outcome : what comes of it
    """
    masked = int(np.sum(np.isposinf(scores)))
    if not masked:
        return None
    return SuspiciousInputWarning(
        f"the true label scores +inf, as a masked one does (its logit is -inf), in {masked:,} of {len(scores):,} "
        f"calibration rows: at coverage {float(coverage):g} {outcome}. Check masks and labels, or use a lower coverage."
    )


def warn_of_new_rows(score: Score, logits: Any) -> None:
    """Warn of new rows that are very likely not what was meant; of tensors on an accelerator, by a few of them."""
    if not isinstance(logits, np.ndarray):
        warn_if_probabilities(convert.as_array(logits[:16], "logits"))
    elif len(logits) < _ENOUGH_TO_JUDGE:
        warn_if_probabilities(logits)
    else:
        warn_suspicious([score], logits)


def warn_suspicious(scores: Iterable[Any], logits: NDArray[Any]) -> None:
    """Warn, once for all scores, of input that is legal but very likely not what was meant."""
    warn_of_rows(logits, evidence=any(isinstance(score, ECP) and score.evidence == "relu" for score in scores))


def warn_of_rows_beside(score: Score, logits: Any) -> None:
    """Warn of a user's score that depends on the other rows of the batch."""
    own = (score, getattr(score, "evidence", None), getattr(score, "utility", None))
    if (SCORES.get(score.name) is type(score) and not any(map(callable, own[1:]))) or len(logits) < 2:
        return
    alone, beside = (kernels.dense_scores(score, logits[:rows])[0] for rows in (1, 2))
    if not np.allclose(alone, beside, rtol=1e-4, atol=1e-6):
        warn(
            f"the score {score.describe()} of a row depends on the other rows of the batch: sets then depend on which "
            "rows are predicted together, and the guarantee is lost. Sum or rank along axis 1, and draw no random "
            "numbers.",
            SuspiciousInputWarning,
        )


def warn_of_seconds_of_two(score: Score, share: float) -> None:
    """Warn where ECP can say nothing: the less plausible of two labels scores 0, whatever its logit is."""
    if isinstance(score, ECP) and share > 0.05:
        warn(
            f"in {share:.0%} of the calibration rows two labels are possible and the less plausible one is true. ECP "
            f"cannot say how unlikely that one is: above a coverage of about {1 - share:.2f} every set is full. Use "
            'score="lac".',
            SuspiciousInputWarning,
        )


def warn_of_masked_rows(rows: I64, n: int) -> None:
    """Warn of calibration rows, by their numbers among n, whose true label is impossible by its logit."""
    warn(
        f"the true label is masked (its logit is -inf) in {rows.size:,} of {n:,} calibration rows: "
        f"{some_of(rows.tolist())}. They count as never covered, so sets are full above a coverage of about "
        f"{(n - rows.size) / (n + 1):.3f}. Check the mask and the labels; remove such rows if new rows have none.",
        SuspiciousInputWarning,
    )
