"""Label shift: weights of classes whose frequencies have changed, and estimates of these frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evicp import kernels
from evicp.calibration.laws.weighted import as_weights
from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis, in_class_order, labelled
from evicp.input.warn import warn
from evicp.method.scores import LAC
from evicp.types import F64

__all__ = ["estimate_class_frequencies", "label_shift_weights"]


def label_shift_weights(labels: ArrayLike, frequencies: ArrayLike | Mapping[Any, float]) -> F64:
    """The weight of each class, (K,), if only class frequencies have changed.

    w_k = (new frequency of k) / (frequency of k among the calibration labels).

    Parameters
    ----------
    labels : (n,) calibration labels
    frequencies : (K,) class frequencies among new rows, known or from `estimate_class_frequencies`; a mapping or
        Series, such as from `value_counts`, has class numbers as keys

    >>> label_shift_weights([0, 0, 0, 1], [0.5, 0.5]).round(3)
    array([0.667, 2.   ])
    """
    wanted = as_weights(in_class_order(frequencies, "frequencies"), what="frequencies")
    if wanted.size < 2 or not wanted.any():
        raise InputError("frequencies must hold one number per class, not all of them 0.")
    truth = validate.as_labels(labels, convert.as_array(labels, "labels").size, len(wanted))
    seen = np.bincount(truth, minlength=len(wanted)) / max(1, len(truth))
    missing = np.flatnonzero((seen == 0) & (wanted > 0))
    if missing.size:
        raise InputError(
            f"class {missing[0]} has new frequency {wanted[missing[0]]:g} but no calibration rows, which no weight can "
            "replace. Calibrate with rows of this class."
        )
    share = wanted / wanted.max()  # the sum of numbers near the largest would be infinite
    return np.divide(share / share.sum(), seen, out=np.zeros(len(wanted)), where=seen > 0)


def estimate_class_frequencies(logits: ArrayLike, labels: ArrayLike, new_logits: ArrayLike) -> F64:
    """Estimate the class frequencies of unlabelled rows, (K,), from the frequencies of predicted classes.

    Under label shift the errors within each class do not change: P(predicted i) = sum_k P(predicted i | k) q_k (Lipton
    et al., 2018). Solved for q by least squares, then made non-negative with sum 1. Use labelled rows that you do not
    calibrate on: the guarantee holds for weights estimated without them.

    Parameters
    ----------
    logits, labels : (n, K) and (n,) labelled rows from before the shift, each class among them
    new_logits : (m, K) rows from after it
    """
    array, truth = labelled(logits, labels)
    n_classes = array.shape[1]
    new = validate.as_logits(new_logits, n_classes)
    ClassAxis(n_classes).learned(logits).check(new_logits)
    counts = np.bincount(truth, minlength=n_classes)
    if not len(new) or (counts == 0).any():
        raise InputError(
            "class frequencies need new rows, and labelled rows of every class; "
            f"got {len(new)} new rows and no rows of {np.sum(counts == 0)} class(es)."
        )
    confusion = np.zeros((n_classes, n_classes))
    np.add.at(confusion, (kernels.top_labels(LAC(), array), truth), 1.0)
    predicted = np.bincount(kernels.top_labels(LAC(), new), minlength=n_classes) / len(new)
    solution, _, rank, _ = np.linalg.lstsq(confusion / counts, predicted, rcond=None)
    if rank < n_classes:
        never = np.flatnonzero(confusion.sum(1) == 0)
        named = f" ({len(never)} of them never predicted, such as {never[0]})" if never.size else ""
        warn(
            f"predictions cannot tell all {n_classes} classes apart{named}: frequencies of similar classes are "
            "unreliable. Pass more labelled rows, or known frequencies.",
            SuspiciousInputWarning,
        )
    return _on_simplex(np.asarray(solution, np.float64))


def _on_simplex(point: F64) -> F64:
    """The nearest point whose coordinates are >= 0 and sum to 1."""
    descending = np.sort(point)[::-1]
    excess = (np.cumsum(descending) - 1.0) / np.arange(1, len(point) + 1)
    used = np.flatnonzero(descending > excess)[-1]
    return np.maximum(point - excess[used], 0.0)
