"""Batches of calibration rows: what is kept of labelled rows once their true labels are scored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.first_look import Look
from evicp.calibration.laws.law import Kind
from evicp.calibration.origin import Origin, fraction_bits_of, origin_of, row_hashes, size_of_logits
from evicp.calibration.suspicious import warn_of_masked_rows, warn_of_rows_beside, warn_suspicious
from evicp.input import convert, frames, validate
from evicp.input.classes import ClassAxis
from evicp.kernels.arithmetic import Arithmetic, fraction_bits, precision_of
from evicp.method.scores import Score
from evicp.types import F64, I64


class Batch(NamedTuple):
    """What is kept of a batch of calibration rows: their scores, and what else is needed of them."""

    #: An array; of rows on an accelerator a `DeviceArray` there, as the hashes are.
    scores: Any
    #: What the guarantee needs of each row.
    keys: NDArray[Any]
    #: The kind of guarantee.
    kind: Kind
    #: What made the scores.
    origin: Origin
    #: Of each row, of which the digest is made; None of rows whose origin has their digest.
    hashes: Any = None
    #: The rows whose true label is impossible by its logit.
    masked: I64 = np.empty(0, np.int64)
    #: How many rows have two possible labels, of which the less plausible is true.
    second_of_two: int = 0
    #: What tells whether logits that came as doubles are in single precision, see `fraction_bits`; None of others.
    bits: int | None = None
    #: What some of the rows are like; empty of rows that nobody looked at.
    looks: tuple[Look, ...] = ()


class Rows(NamedTuple):
    """Labelled rows, checked."""

    #: The logits as they were given; and as an array, or a tensor that stays on its accelerator.
    logits: Any
    array: Any
    #: Class numbers; those of a tensor on its accelerator are a tensor there, and not checked before it is scored.
    labels: Any
    groups: Any
    weights: Any


def labelled_rows(
    score: Score,
    logits: Any,
    labels: Any,
    groups: Any,
    weights: Any,
    n_classes: int | None,
    known: ClassAxis | None,
    class_names: Any = None,
) -> tuple[Rows, ClassAxis]:
    """Labelled rows, checked, and what is known of their classes.

    Parameters
    ----------
    score : of the calibration
    logits, labels, groups, weights : as they were given
    n_classes : K; None where the first rows tell
    known, class_names : what is known of the classes; before that, their names as they were given
    """
    plain = type(logits) is type(labels) is np.ndarray and groups is weights is None
    if not plain:  # arrays say nothing of rows and devices
        logits, labels = convert.adopted(logits), convert.adopted(labels)
        frames.same_rows(logits=logits, labels=labels, groups=groups, weights=weights)
        validate.same_device(logits, labels)
    if not plain and kernels.on_device(score, logits) is not None:
        array: Any = validate.as_device_logits(logits, n_classes)
    else:
        array = validate.as_logits(logits, n_classes, keep_bfloat16=True)
    classes = ClassAxis.learned_of(known, class_names, logits, array.shape[1])
    if isinstance(array, np.ndarray):
        return Rows(logits, array, classes.row_labels(labels, logits, array), groups, weights), classes
    return Rows(logits, array, _labels_beside(array, labels, logits, classes), groups, weights), classes


#: Tensors of labels that can be checked on their device, by the names of their types.
_WHOLE = ("torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8")


def _labels_beside(array: Any, labels: Any, logits: Any, classes: ClassAxis) -> Any:
    """Labels as a tensor next to the logits: class numbers that lie there as they are, others looked up and checked."""
    are_numbers = convert.is_torch(labels) and classes.takes_numbers and str(labels.dtype) in _WHOLE
    if are_numbers and (labels.shape, labels.device, labels.layout) == (array.shape[:1], array.device, array.layout):
        return labels
    return sys.modules["torch"].tensor(classes.row_labels(labels, logits, array), device=array.device)


def score_batch(score: Score, kind: Kind, rows: Rows, before: Arithmetic | None, precision: str | None = None) -> Batch:
    """The scores of the true labels of some rows, and what else is kept of them.

    Parameters
    ----------
    score, kind : what is calibrated, and for which guarantee
    rows : the batch
    before : what scored the rows before these; None of the first ones
    precision : of the logits, if that is not what their type says
    """
    if rows.groups is not None or rows.weights is not None:
        kind.refuse_others(rows.groups, rows.weights)
    if not isinstance(rows.array, np.ndarray):
        return _score_on_device(score, kind, rows, before, precision or precision_of(rows.logits, rows.array))
    array, truth = rows.array, rows.labels
    precision = precision or precision_of(rows.logits, array)
    bits = fraction_bits(array) if precision == "float64" else None
    if before is None:
        warn_suspicious([score], array)
    array, arithmetic = kernels.comparable(before, score, array, precision)
    scores, own = kernels.label_scores(score, array, truth), kernels.logits_at(array, truth)
    at_once = max(1, validate.BLOCK_LOGITS // array.shape[1])
    largest = size_of_logits(own, lambda some: kernels.largest_logits(array, some), at_once)
    if before is None:
        warn_of_rows_beside(score, array)
    return Batch(
        scores,
        kind.keys(score, array, truth, rows.groups, rows.weights).copy(),  # whoever reads blocks fills them again
        kind,
        Origin(arithmetic, largest, None),
        row_hashes(own, truth),
        np.flatnonzero(own == -np.inf),
        _second_of_two(array, scores),
        bits,
    )


def _score_on_device(score: Score, kind: Kind, rows: Rows, before: Arithmetic | None, precision: str) -> Batch:
    """The same of rows on an accelerator, whose scores stay there; labels are checked on the way."""
    from evicp.calibration.device import DeviceArray

    array, arithmetic = kernels.comparable(before, score, rows.array, precision)
    found = kernels.labelled(score, array, rows.labels, ordered=before is None and kind.sorts_on_device)
    needed = found.outside or found.masked or found.digest is None or kind.uses_labels
    truth = rows.labels.cpu().numpy().astype(np.int64, copy=False) if needed else np.empty(0, np.int64)
    if found.outside:
        validate.as_labels(truth, len(array), array.shape[1])  # which says what is wrong with them
    if before is None and found.odd:
        warn_suspicious([score], validate.as_logits(array[:32]))
    own = kernels.logits_at(array, truth) if found.masked or found.digest is None else np.empty(0)
    scores = DeviceArray(found.scores, in_order=found.in_order)
    return Batch(
        scores,
        kind.keys(score, array, truth if needed else rows.labels, rows.groups, rows.weights).copy(),
        kind,
        Origin(arithmetic, found.largest, found.digest),
        row_hashes(own, truth) if found.hashes is None else DeviceArray(found.hashes, np.uint64),
        np.flatnonzero(own == -np.inf),
        _second_of_two(array, np.asarray(scores)) if found.seconds else 0,
    )


def _second_of_two(logits: Any, scores: F64) -> int:
    """How many rows have two possible labels and score 0 in ECP, as the less plausible of them does in any case."""
    rows = np.flatnonzero(scores == 0.0)
    if not rows.size or logits.shape[1] == 2:
        return len(rows)
    return int(((convert.as_array(logits[rows], "logits") > -np.inf).sum(1) == 2).sum())


def joined(batches: Sequence[Batch]) -> Batch:
    """Several batches as one."""
    hashes = [batch.hashes for batch in batches if batch.hashes is not None]
    keys = [batch.keys for batch in batches if len(batch.keys)]
    return Batch(
        np.concatenate([batch.scores for batch in batches]),
        np.concatenate(keys) if keys else batches[0].keys,
        batches[0].kind,
        origin_of(batches),
        np.concatenate(hashes) if len(hashes) == len(batches) else None,
        second_of_two=sum(batch.second_of_two for batch in batches),
        bits=fraction_bits_of(batches),
        looks=tuple(look for batch in batches for look in batch.looks),
    )


def scores_of(batches: Sequence[Batch]) -> Any:
    """The scores of all batches: an array, or one on the accelerator that has them all, if the kind sorts there."""
    parts = [batch.scores for batch in batches]
    there = [part for part in parts if not isinstance(part, np.ndarray)]
    one_device = len(there) == len(parts) and len({part.values.device for part in there}) == 1
    if one_device and batches[0].kind.sorts_on_device:
        return there[0].joined(there[1:])
    return np.concatenate(parts)


def warn_of_masked_labels(batches: Sequence[Batch]) -> None:
    """Warn of true labels that are impossible by their logits."""
    starts = np.cumsum([0, *(len(batch.scores) for batch in batches)])
    rows = np.concatenate([start + batch.masked for start, batch in zip(starts, batches, strict=False)])
    if rows.size:
        warn_of_masked_rows(rows, int(starts[-1]))
