"""The lowest logit above which labels are true often enough, tested in a fixed sequence."""

from __future__ import annotations

from fractions import Fraction
from math import log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.input import validate
from evicp.risk.steps import log_p_value
from evicp.types import F64, Bools

#: The logits that are tested, from high to low: fixed in advance, so that no rows are needed to choose them. They lie
#: 0.025 apart around 0, and 2.5 % of their size where they are large.
_LOGITS: F64 = np.sinh(np.linspace(np.arcsinh(1000.0), -np.arcsinh(1000.0), 601))


def surest_threshold(logits: NDArray[Any], true: Bools, wrong: Fraction, confidence: float) -> float:
    """The lowest logit tested at which at most the share `wrong` of a row's labels is expected to be wrong.

    +inf where none is certified. A row without such labels has none that is wrong.

    Parameters
    ----------
    logits, true : (n, K), checked
    wrong, confidence : the bound, and its confidence
    """
    means = _wrong_shares(logits, true).mean(0)
    n, lowest = len(true), np.inf
    for logit, mean in zip(_LOGITS.tolist(), means.tolist(), strict=True):
        if log_p_value(Fraction(mean), wrong, n) > log1p(-confidence):
            break
        lowest = logit
    return float(lowest)


def _wrong_shares(logits: NDArray[Any], true: Bools) -> F64:
    """The share of wrong labels among those of each row that reach each of the logits, (n, 601)."""
    result = np.empty((len(true), len(_LOGITS)))
    for rows, block in validate.blocks(logits):
        first = np.searchsorted(-_LOGITS, -block)  # the first logit that a label reaches
        own, places = np.arange(len(block))[:, None] * (len(_LOGITS) + 1), len(block) * (len(_LOGITS) + 1)
        counts = [
            np.bincount((own + first)[chosen], minlength=places).reshape(len(block), -1)[:, :-1].cumsum(1)
            for chosen in (np.ones(block.shape, bool), ~true[rows])
        ]
        result[rows] = counts[1] / np.maximum(counts[0], 1)
    return result
