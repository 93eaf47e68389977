"""How doubtful a row is, and the answer it would get: the labels of its largest logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.errors import InputError, ScoreError
from evicp.input import validate
from evicp.method.scores import ECP, LAC, Margin
from evicp.types import F64, I32

DoubtOf = Callable[[NDArray[Any]], Any]

_NAMES = ("softmax", "margin", "uncertainty")


def as_doubt(doubt: Any) -> str | DoubtOf:
    """A name of a measure of doubt, or a function of logits."""
    if callable(doubt) or (isinstance(doubt, str) and doubt in _NAMES):
        return doubt
    raise InputError(f"doubt must be {', '.join(_NAMES)} or a function of (n, K) logits; got {doubt!r}.")


def doubts_of(doubt: str | DoubtOf, logits: NDArray[Any]) -> F64:
    """The doubt of each row, (n,): the larger, the less sure.

    Parameters
    ----------
    doubt : "softmax", 1 - the largest probability; "margin", the second largest probability - the largest;
        "uncertainty", the evidential u; or a function
    logits : (n, K), checked
    """
    if callable(doubt):
        given = validate.real(doubt(logits), "doubt")
        if given.shape != (len(logits),) or np.isnan(given).any():
            raise ScoreError(
                f"doubt must return one number for each of {len(logits)} rows; got shape {given.shape}"
                f"{', with NaN' if np.isnan(given).any() else ''}."
            )
        return given
    if doubt == "uncertainty":
        return kernels.uncertainties(ECP(), logits)
    if doubt == "margin":  # the score of the top label
        return kernels.label_scores(Margin(), logits, kernels.top_labels(LAC(), logits).astype(np.int64))
    return 1.0 - kernels.top_confidences(logits, np.zeros(len(logits), np.int64), 1.0)[0]


def best_labels(logits: NDArray[Any], most: int) -> I32:
    """The labels of the `most` largest logits, (n, most), largest first; -1 in place of impossible ones."""
    if most == 1:
        labels: I32 = kernels.top_labels(LAC(), logits)[:, None].astype(np.int32)
        return labels
    result = np.empty((len(logits), most), np.int32)
    for rows, block in validate.blocks(logits):
        some = np.argpartition(-block, most - 1, axis=1)[:, :most] if most < block.shape[1] else _all(block)
        values = np.take_along_axis(block, some, 1)
        order = np.lexsort((some, -values), axis=1)
        some, values = np.take_along_axis(some, order, 1), np.take_along_axis(values, order, 1)
        result[rows] = np.where(values > -np.inf, some, -1)
    return result


def _all(block: F64) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(block.shape[1]), block.shape)
