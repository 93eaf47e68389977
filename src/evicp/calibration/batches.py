"""Batches of calibration rows: what is kept of labelled rows once their true labels are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.hashes import digest_of, row_hashes
from evicp.calibration.origin import UNKNOWN, Origin, size_of_logits
from evicp.calibration.suspicious import warn_of_masked_rows, warn_of_rows_beside, warn_suspicious
from evicp.input import convert, validate
from evicp.kernels.arithmetic import MIXED, Arithmetic, are_single, fraction_bits, precision_of
from evicp.method.scores import Score
from evicp.types import F64, I64


class Batch(NamedTuple):
    """What is kept of a batch of calibration rows: their scores, and what else is needed of them."""

    scores: F64
    #: What the grouping needs of each row.
    keys: NDArray[Any]
    weights: F64 | None
    #: What made the scores.
    origin: Origin
    #: Of each row, of which the digest is made; None of rows whose origin has their digest.
    hashes: NDArray[np.uint64] | None = None
    #: The rows whose true label is impossible by its logit.
    masked: I64 = np.empty(0, np.int64)
    #: How many rows have two possible labels, of which the less plausible is true.
    second_of_two: int = 0
    #: What tells whether logits that came as doubles are in single precision, see `fraction_bits`; None of others.
    bits: int | None = None


def score_batch(
    score: Score, logits: Any, array: Any, truth: I64, before: Arithmetic | None, precision: str | None = None
) -> tuple[Batch, Any]:
    """The batch of some rows, without keys and weights, and their logits as they were scored.

    Parameters
    ----------
    score : of the true labels
    logits : as they were given
    array, truth : the logits and labels, checked; a tensor stays on its accelerator
    before : what scored the rows before these; None of the first ones
    precision : of the logits, if that is not what their type says
    """
    stays = not isinstance(array, np.ndarray)
    precision = precision or precision_of(logits, None if stays else array)
    bits = fraction_bits(array) if precision == "float64" and not stays else None
    if before is None:
        arithmetic = kernels.arithmetic(score, array, precision)
        warn_suspicious([score], validate.as_logits(array[:32]) if stays else array)
    else:
        array, arithmetic = kernels.comparable(before, score, array, precision)
    if stays:
        from evicp.calibration import device

        scores, own = device.label_scores(score, array, truth), device.logits_at(array, truth)
        largest = size_of_logits(own, lambda rows: device.largest_logits(array)[rows])
    else:
        scores = kernels.label_scores(score, array, truth)
        own = array[np.arange(len(truth)), truth]
        largest = size_of_logits(own, lambda rows: array[rows].max(1), max(1, validate.BLOCK_LOGITS // array.shape[1]))
    if before is None:
        warn_of_rows_beside(score, array)
    masked, second = np.flatnonzero(own == -np.inf), _second_of_two(array, scores)
    origin, hashes = Origin(arithmetic, largest, None), row_hashes(own, truth)
    return Batch(scores, scores[:0], None, origin, hashes, masked, second, bits), array


def _second_of_two(logits: Any, scores: F64) -> int:
    """How many rows have two possible labels and score 0 in ECP, as the less plausible of them does in any case."""
    rows = np.flatnonzero(scores == 0.0)
    if not rows.size or logits.shape[1] == 2:
        return len(rows)
    return int(((convert.as_array(logits[rows], "logits") > -np.inf).sum(1) == 2).sum())


def joined(batches: Sequence[Batch]) -> Batch:
    """Several batches as one."""
    if not batches:
        return Batch(np.empty(0), np.empty(0), None, UNKNOWN)
    scores, keys, weights = zip(*(batch[:3] for batch in batches), strict=True)
    some = [part for part in keys if len(part)]
    kept = None if weights[0] is None else np.concatenate(weights)
    every_key = np.concatenate(some) if some else keys[0]
    second = sum(batch.second_of_two for batch in batches)
    hashes = [batch.hashes for batch in batches if batch.hashes is not None]
    whole = np.concatenate(hashes) if len(hashes) == len(batches) else None
    bits = _bits_of(batches)
    return Batch(np.concatenate(scores), every_key, kept, origin_of(batches), whole, second_of_two=second, bits=bits)


def _bits_of(batches: Sequence[Batch]) -> int | None:
    some = [batch.bits for batch in batches if len(batch.scores)]
    return reduce(or_, (bits for bits in some if bits is not None), 0) if None not in some else None


def final_origin(batches: Sequence[Batch]) -> Origin:
    """What made the scores of all rows there are: only these tell whether doubles are in single precision."""
    origin, bits = origin_of(batches), _bits_of(batches)
    made_by = origin.arithmetic
    if bits is None or not are_single(bits) or made_by.backend == MIXED:
        return origin
    return replace(origin, arithmetic=Arithmetic.of(made_by.backend, made_by.working, "float32"))


def origin_of(batches: Sequence[Batch]) -> Origin:
    """What made the scores of all batches, one without rows aside, and the digest of all rows in their order."""
    some = [batch for batch in batches if len(batch.scores)]
    if not some:
        return UNKNOWN
    digest, row = 0, 0
    for batch in some:
        own = batch.origin.digest if batch.hashes is None else digest_of(batch.hashes, row)
        if own is None:
            return Origin.joined([one.origin for one in some], None)
        digest, row = (digest + own) % 2**64, row + len(batch.scores)
    return Origin.joined([one.origin for one in some], digest)


def warn_of_masked_labels(batches: Sequence[Batch]) -> None:
    """Warn of true labels that are impossible by their logits."""
    starts = np.cumsum([0, *(len(batch.scores) for batch in batches)])
    rows = np.concatenate([start + batch.masked for start, batch in zip(starts, batches, strict=False)])
    if rows.size:
        warn_of_masked_rows(rows, int(starts[-1]))
