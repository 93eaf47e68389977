"""Warnings, shown at the user's line, and what makes input suspicious: legal, but hardly meant."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import EvicpWarning, SuspiciousInputWarning
from evicp.input.validate import LARGEST_LOGIT


def warn(message: str, category: type[EvicpWarning]) -> None:
    """Warn at the line outside evicp that called in, however deep the check sits."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "evicp":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


#: What single precision and a sum over many classes may leave of probabilities that sum to 1.
PROBABILITY_ERROR = 1e-3


def are_probabilities(values: NDArray[Any]) -> bool:
    """Whether every row holds numbers in [0, 1] that sum to 1, up to rounding."""
    inside = len(values) > 0 and np.all((values >= 0) & (values <= 1 + PROBABILITY_ERROR))
    return bool(inside and np.all(np.abs(values.sum(1, dtype=np.float64) - 1) < PROBABILITY_ERROR))


def warn_of_rows(logits: NDArray[Any], *, evidence: bool) -> None:
    """Warn of logits that are hardly meant; where they become relu evidence, also of those that give none."""
    warn_if_probabilities(logits)
    _warn_if_equal(logits)
    if evidence:
        _warn_if_no_evidence(logits)


def warn_if_probabilities(logits: NDArray[Any]) -> None:
    """Rows that sum to one are probabilities: legal, but the evidence of a probability is meaningless."""
    if not len(logits) or not 0 <= logits[0, 0] <= 1 or not logits[0].min() >= 0:  # a look is enough for most logits
        return
    if are_probabilities(np.asarray(logits[:16], dtype=np.float64)):
        warn(
            "logits look like probabilities (every row sums to 1). Pass the raw outputs before softmax; "
            "if there are none, pass np.log(probabilities) and a score other than ECP.",
            SuspiciousInputWarning,
        )


def _warn_if_no_evidence(logits: NDArray[Any]) -> None:
    """relu evidence of log-probabilities is zero everywhere: every Dirichlet is flat."""
    sample = logits[:: max(1, len(logits) // 32)]  # spread over the rows, and cheap beside scoring them at any K
    if len(sample) and np.mean(np.max(sample, axis=1) <= 0) > 0.5:
        warn(
            "most rows have no positive logit, so relu evidence is zero for every label (log-probabilities?). "
            "Pass raw logits; if there are none, use a score other than ECP, or ECP(evidence='softplus').",
            SuspiciousInputWarning,
        )


#: Fewer rows than this may all have equal logits by chance, or on purpose.
_SOME = 8


def _warn_if_equal(logits: NDArray[Any]) -> None:
    """A network that gives every class the same logit says nothing: whatever is asked, its sets are full."""
    if not len(logits) or logits[0].min() != logits[0].max():  # a look is enough for most logits
        return
    sample = np.asarray(logits[:: max(1, len(logits) // 32)], dtype=np.float64)
    usable = np.abs(sample[:, 0]) <= LARGEST_LOGIT  # others are refused
    if len(sample) >= _SOME and np.all(usable & (sample.min(1) == sample.max(1))):
        warn(
            "all logits of a row are equal, in every row of a sample: its labels have the same score, so sets are "
            "empty or full. Check that the model is trained, and that the right output is used.",
            SuspiciousInputWarning,
        )
