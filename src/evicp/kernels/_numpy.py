"""The reference: plain float64 NumPy, in row blocks, for any score.

Everything here trusts its input (`validate.blocks` has seen it) and every label's score comes from the score's one
formula, so `label in set` and `score <= threshold` agree exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evicp.input import validate
from evicp.method.evidence import activate, dirichlet, log_utility, ranks, uncertainty
from evicp.types import F64, I32, I64, Bools


class Formula(Protocol):
    """What the reference needs of a score: (n, K) float64 logits in, (n, K) float64 scores out."""

    @property
    def formula(self) -> Callable[[F64], F64]: ...


def precision(logits: NDArray[np.generic]) -> str:  # noqa: ARG001 - as the other backends
    """The precision in which logits are scored."""
    return "float64"


def dense_scores(score: Formula, logits: NDArray[np.generic]) -> F64:
    """Every label's score, (n, K)."""
    result = np.empty(logits.shape)
    for rows, block in validate.blocks(logits):
        result[rows] = _scores(score, block)
    return result


def _scores(score: Formula, block: F64) -> F64:
    """The scores of a block; one of -inf becomes the lowest number: -inf is the threshold that no label is within."""
    return np.maximum(score.formula(block), -np.finfo(np.float64).max)


def label_scores(score: Formula, logits: NDArray[np.generic], labels: I64) -> F64:
    """The score of each row's given label, (n,)."""
    result = np.empty(len(logits))
    for rows, block in validate.blocks(logits):
        result[rows] = np.take_along_axis(_scores(score, block), labels[rows, None], 1)[:, 0]
    return result


def ragged_sets(score: Formula, logits: NDArray[np.generic], threshold: float | F64) -> tuple[I64, I32, F64]:
    """All labels with score <= threshold, as (offsets, labels, their scores).

    The threshold is one for all, or broadcasts to (n, K): (1, K) for each label, (n, 1) for each row.

    Within a row labels ascend by score, then descend by logit, then ascend by index.
    """
    sizes = np.empty(len(logits), np.int64)
    labels, scores = [np.empty(0, np.int32)], [np.empty(0)]
    limit = np.asarray(threshold, dtype=np.float64).reshape(-1, 1) if np.size(threshold) <= 1 else np.asarray(threshold)
    for rows, block in validate.blocks(logits):
        dense = _scores(score, block)
        row, column = np.nonzero(dense <= (limit[rows] if len(limit) > 1 else limit))
        members = dense[row, column]
        order = np.lexsort((column, -block[row, column], members, row))
        sizes[rows] = np.bincount(row, minlength=len(block))
        labels.append(column[order].astype(np.int32))
        scores.append(members[order])
    offsets = np.zeros(len(logits) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets, np.concatenate(labels), np.concatenate(scores)


def ragged_labels(score: Formula, logits: NDArray[np.generic], threshold: float | F64) -> tuple[I64, I32]:
    """The same labels without their scores."""
    return ragged_sets(score, logits, threshold)[:2]


def uncertainties(score: object, logits: NDArray[np.generic]) -> F64:
    """Eq. 3: u = K / alpha_0 of each row, with the evidence of the score (relu where it has none)."""
    result = np.empty(len(logits))
    for rows, block in validate.blocks(logits):
        result[rows] = uncertainty(dirichlet(activate(getattr(score, "evidence", "relu"), block)))[:, 0]
    return result


def top_labels(score: Formula, logits: NDArray[np.generic]) -> I32:
    """Each row's most plausible label: lowest score, then highest logit, then lowest index."""
    result = np.empty(len(logits), np.int32)
    for rows, block in validate.blocks(logits):
        dense = _scores(score, block)
        tied = dense == dense.min(1, keepdims=True)
        result[rows] = np.where(tied, block, -np.inf).argmax(1)
    return result


def label_ranks(logits: NDArray[np.generic], labels: I64) -> I64:
    """o: one plus the number of labels with a strictly larger logit than the given one, (n,)."""
    result = np.empty(len(logits), np.int64)
    for rows, block in validate.blocks(logits):
        result[rows] = 1 + (block > np.take_along_axis(block, labels[rows, None], 1)).sum(1)
    return result


def nll_derivatives(logits: NDArray[np.generic], labels: I64, inverse_temperature: float) -> tuple[float, float, float]:
    """Mean negative log-likelihood of softmax(beta z), its derivative and its curvature in beta."""
    value = slope = curvature = 0.0
    for rows, block in validate.blocks(logits):
        log_p = log_utility(block, 1.0 / inverse_temperature)
        p = np.exp(log_p)
        z = np.where(p > 0, block - block.max(1, keepdims=True), 0.0)
        mean = (p * z).sum(1)
        target = labels[rows, None]
        value -= float(np.take_along_axis(log_p, target, 1).sum())
        slope += float((mean - np.take_along_axis(block - block.max(1, keepdims=True), target, 1)[:, 0]).sum())
        curvature += float((p * (z - mean[:, None]) ** 2).sum())
    n = len(logits)
    return value / n, slope / n, curvature / n


def top_confidences(logits: NDArray[np.generic], labels: I64, inverse_temperature: float) -> tuple[F64, Bools]:
    """The largest probability of each row and whether its label has it, for the calibration error."""
    confidence = np.empty(len(logits))
    for rows, block in validate.blocks(logits):
        confidence[rows] = np.exp(log_utility(block, 1.0 / inverse_temperature).max(1))
    return confidence, label_ranks(logits, labels) == 1


# ---------------------------------------------------------------------------------------------------------------
# What the formulas of several scores share. z is always (n, K) float64.


def accumulated_masses(w: F64, z: F64) -> tuple[F64, F64]:
    """P + p and p of each label, (n, K): P is the probability of the labels with a strictly larger logit, p its own.

    Probabilities are w_k = exp((z_k - max z) / T) over their sum. They are added as whole numbers, multiples of 2^-m:
    sums are exact and do not depend on the order of classes, and P + p of the least plausible label is exactly 1.
    """
    whole = np.rint(np.ldexp(w, 62 - z.shape[1].bit_length())).astype(np.int64)
    order = np.argsort(-z, axis=1, kind="stable")
    own = np.take_along_axis(whole, order, 1)
    before = np.cumsum(own, axis=1) - own
    descending = np.take_along_axis(z, order, 1)
    opens_group = np.ones(z.shape, bool)
    opens_group[:, 1:] = descending[:, 1:] != descending[:, :-1]
    # before never falls along a row, so the running maximum over group openings is the group's own value.
    above = np.empty(z.shape, np.int64)
    np.put_along_axis(above, order, np.maximum.accumulate(np.where(opens_group, before, 0), axis=1), 1)
    total = whole.sum(1, keepdims=True)
    return (above + whole) / total, whole / total


def ordinal(z: F64) -> I64:
    """o: one plus the number of labels strictly above, (n, K)."""
    return ranks(z) + 1


def mix32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The 32-bit finaliser of MurmurHash3: every input bit changes every output bit with probability near 1/2."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x85EBCA6B)
    x = x ^ (x >> np.uint32(13))
    x = x * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def row_uniforms(z: F64, seed: int) -> F64:
    """v in [0, 1) for each row, (n, 1): a pure function of the seed and of the multiset of the row's logits."""
    with np.errstate(over="ignore"):  # float64 logits beyond float32 hash as inf
        bits = (z.astype(np.float32) + np.float32(0.0)).view(np.uint32)
    hashed = np.where(z == -np.inf, np.uint32(0), mix32(bits))
    total = hashed.sum(1, dtype=np.uint32, keepdims=True)
    salted = mix32(total ^ mix32(np.array([seed & 0xFFFFFFFF], np.uint32)))
    return (salted >> np.uint32(8)).astype(np.float64) / 2.0**24
