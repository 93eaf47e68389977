"""Known shift: weighted calibration (Tibshirani et al., 2019) and the weights of a label shift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from evicp import kernels
from evicp.calibration import limits
from evicp.errors import InputError, InputTypeError, SmallCalibrationWarning, SuspiciousInputWarning
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis, in_class_order, labelled
from evicp.input.warn import warn
from evicp.method.scores import LAC
from evicp.types import F64

__all__ = ["effective_sample_size", "estimate_class_frequencies", "label_shift_weights"]


def as_weights(weights: Any, n: int | None = None, what: str = "weights") -> F64:
    """Weights as (n,) float64, all finite and >= 0; of any length where n is not said."""
    array = convert.as_array(weights, what)
    if array.dtype.kind not in "fiu" and array.size:
        raise InputTypeError(f"{what} must be real numbers; got dtype {array.dtype}.")
    if array.ndim != 1 or n not in (None, len(array)):
        raise InputError(f"{what} must be {'one-dimensional' if n is None else f'of shape ({n},)'}; got {array.shape}.")
    array = array.astype(np.float64)
    bad = np.flatnonzero(~((array >= 0) & (array < np.inf)))
    if bad.size:
        raise InputError(f"{what} must be finite and >= 0; got {array[bad[0]]} at position {bad[0]}.")
    return array


def effective_sample_size(weights: Any) -> float:
    """(sum w)^2 / sum w^2: how many equally weighted rows say as much.

    >>> effective_sample_size([1.0, 1.0, 1.0, 1.0]), effective_sample_size([1.0, 0.0, 0.0, 0.0])
    (4.0, 1.0)
    """
    array = as_weights(weights)
    if not array.any():
        raise InputError("weights must not all be 0.")
    relative = array / array.max()
    return float(relative.sum() ** 2 / (relative**2).sum())


def equal_rows(scores: F64, weights: F64, threshold: float, coverage: float) -> float:
    """How many equally weighted rows would leave the coverage of a threshold as uncertain: c (1 - c) / v.

    v = sum w_i^2 (1{s_i <= t} - c)^2 / (sum w)^2 is the variance of the weighted share below the threshold. Unlike the
    effective sample size it sees whether the heavy rows are those that are missed.
    """
    relative = weights / weights.max()
    distances = relative * ((scores <= threshold) - coverage)
    return float(coverage * (1 - coverage) * relative.sum() ** 2 / (distances**2).sum())


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of calibration rows, and how new points get theirs.

    Parameters
    ----------
    rows : (n,) the weight of each calibration score, in the order of the scores
    classes : (K,) the weight of a new point by its label; None where each new row's weight is given
    """

    rows: F64
    classes: F64 | None = None

    def __post_init__(self) -> None:
        if not self.rows.any():
            raise InputError("weights must not all be 0.")
        object.__setattr__(self, "rows", convert.owned(self.rows))
        if self.classes is not None:
            object.__setattr__(self, "classes", convert.owned(self.classes))

    __setstate__ = convert.restore_frozen

    def of_new(self, n: int, given: Any) -> F64:
        """The weights of new points: of each label, (1, K), or of each row, (n, 1)."""
        if self.classes is not None:
            if given is not None:
                raise InputError("this calibration has class weights; it takes no weights of rows.")
            return self.classes[None, :]
        if given is None:
            raise InputError("this calibration is weighted; pass the weights of the new rows: weights=.")
        new = as_weights(np.atleast_1d(convert.as_array(given, "weights")), n)
        warn_of_scales(self.rows, new)
        return new[:, None]

    def limit(self, scores: F64, coverage: Fraction, confidence: float | None, new: F64) -> F64:
        """The threshold for each new weight, of the shape of `new`."""
        if confidence is not None:
            raise InputError("confidence needs the Beta law, which weighted calibrations do not follow; leave it out.")
        warn_small_effective_size(self.rows, coverage)
        thresholds = weighted_thresholds(scores, self.rows, new, coverage)
        if np.isinf(thresholds).any():
            limits.warn_of_masked(scores, coverage)
        return thresholds

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weights):
            return NotImplemented
        same_classes = np.array_equal(self.classes, other.classes)  # type: ignore[arg-type]
        return same_classes and np.array_equal(self.rows, other.rows)

    __hash__ = None  # type: ignore[assignment]


def weighted_thresholds(scores: F64, weights: F64, new_weights: F64, coverage: Fraction) -> F64:
    """The threshold for each new weight, of the shape of `new_weights`.

    The smallest score s with sum{w_i : s_i <= s} >= coverage (sum w + w_new): the new point's own weight sits at +inf.
    Equal weights give the unweighted threshold exactly.

    Parameters
    ----------
    scores, weights : (n,) calibration scores in ascending order, and the weight of each
    new_weights : weights of new points, on the same scale
    """
    known, new = _scaled(weights, new_weights)
    running = np.cumsum(known)
    position = np.searchsorted(running, _needed(running[-1] + new, known, coverage), side="left")
    thresholds: F64 = np.append(scores, np.inf)[position]
    return thresholds


def _needed(totals: F64, known: F64, coverage: Fraction) -> F64:
    """The weight that scores up to the threshold must have: a share of each total, rounded up where all are whole."""
    if np.any(totals >= 2.0**53) or np.any(totals != np.rint(totals)) or np.any(known != np.rint(known)):
        return totals * float(coverage)
    numerator, denominator = coverage.as_integer_ratio()
    fits = int(totals.max(initial=0.0)) * denominator < 2**62
    whole = totals.astype(np.int64).astype(np.int64 if fits else object)
    return (-(-whole * numerator // denominator)).astype(np.float64)


def weighted_p_values(scores: F64, weights: F64, new_scores: F64, new_weights: F64) -> F64:
    """(w_new + sum{w_i : s_i >= s}) / (sum w + w_new), of the broadcast shape of the new points."""
    known, new = _scaled(weights, new_weights)
    below = np.concatenate([[0.0], np.cumsum(known)])
    at_least = below[-1] - below[np.searchsorted(scores, new_scores, side="left")]
    p: F64 = (new + at_least) / (below[-1] + new)
    return p


def _scaled(weights: F64, new_weights: F64) -> tuple[F64, F64]:
    """Weights in a unit in which sums of equal ones, and of whole numbers, are exact.

    Then ties with the coverage are decided as without weights. The unit is the smallest weight if all are multiples of
    it, otherwise a power of two.
    """
    unit = weights[weights > 0].min()
    with np.errstate(over="ignore"):
        multiples = weights / unit
        if multiples.max() > 2.0**53 or np.any(multiples != np.rint(multiples)):
            unit = 2.0 ** (np.frexp(weights.max())[1] - 1)  # not above the weight itself: 2^1024 would be inf
        return weights / unit, np.minimum(new_weights / unit, 1e300)


#: Weights of new rows and of calibration rows that differ by this factor are hardly on one scale.
_SCALES_APART = 10.0


def warn_of_scales(known: F64, new: F64) -> None:
    """Warn where the weights of new rows are not on the scale of the calibration rows' weights.

    If they are, a new row has a weight below a share of the calibration rows' mean with at most this probability, as
    its weight is how much more frequent such rows are among the new ones. So it is hardly chance if half of twenty rows
    or more are below a tenth of it, or all of a few; one or two must be further below. Weights above all calibration
    weights are remarked upon where they are far above, or where one alone is a tenth of the others' sum.

    Parameters
    ----------
    known : (n,) weights of calibration rows
    new : (m,) weights of new rows
    """
    if not new.size:
        return
    typical, largest, mean = float(np.median(new)), float(known.max()), float(known.mean())
    is_large = typical > largest and typical > min(_SCALES_APART * largest, len(known) * mean / _SCALES_APART)
    high = typical if new.size >= 20 else float(new.max())
    if is_large or high * max(_SCALES_APART, 1000 ** (1 / new.size)) < mean:
        warn(
            f"weights of new rows must be on the scale of the calibration rows' weights; the median of {new.size:,} "
            f"new ones is {typical:.3g}, the mean of {len(known):,} calibrated ones {mean:.3g}. "
            f"{'Sets are too large, or full' if is_large else 'Sets may cover less than asked'}. Normalise neither, or "
            "divide both by one number.",
            SuspiciousInputWarning,
        )


def warn_of_scales_between(batches: Sequence[F64]) -> None:
    """Warn where batches of calibration weights, of 30 rows or more, have means that are far apart."""
    means = [float(batch.mean()) for batch in batches if len(batch) >= 30]
    if means and max(means) > _SCALES_APART * min(means):
        warn(
            f"the weights of calibration rows must be on one scale in all batches; their means range from "
            f"{min(means):.3g} to {max(means):.3g}. Normalise none of them, or divide all by one number.",
            SuspiciousInputWarning,
        )


def warn_small_effective_size(weights: F64, coverage: Fraction) -> None:
    """Few effective rows: coverage given the calibration rows spreads by more than a third of 1 - coverage."""
    needed = 10 / (1 - coverage)
    size = effective_sample_size(weights)
    if size < needed:
        warn(
            f"the weights leave {size:.1f} effective rows of {len(weights)}: coverage {float(coverage):g} holds on "
            f"average over calibration sets, but varies much between them. {float(needed):.0f} would be enough; "
            "calibrate on more rows like the new ones.",
            SmallCalibrationWarning,
        )


def label_shift_weights(labels: Any, frequencies: Any) -> F64:
    """The weight of each class, (K,), where class frequencies have changed and nothing else.

    w_k = (new frequency of k) / (frequency of k among the calibration labels).

    Parameters
    ----------
    labels : (n,) calibration labels
    frequencies : (K,) class frequencies among new rows, known or from `estimate_class_frequencies`; of a mapping or a
        Series, such as `value_counts` gives, by class number

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
            f"class {missing[0]} has new frequency {wanted[missing[0]]:g} but no calibration rows: no weight can make "
            "up for them. Calibrate with rows of this class."
        )
    share = wanted / wanted.max()  # the sum of numbers near the largest would be infinite
    return np.divide(share / share.sum(), seen, out=np.zeros(len(wanted)), where=seen > 0)


def estimate_class_frequencies(logits: Any, labels: Any, new_logits: Any) -> F64:
    """The class frequencies of unlabelled rows, (K,), from how often each class is predicted.

    Under label shift the classifier errs within each class as before: P(predicted i) = sum_k P(predicted i | k) q_k
    (Lipton et al., 2018). Solved for q by least squares, then made non-negative with sum 1. Use other labelled rows
    than those to be calibrated on: the guarantee holds for weights chosen without them.

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
            f"predictions cannot tell all {n_classes} classes apart{named}: among those that look alike, frequencies "
            "are a guess. Pass more labelled rows, or known frequencies.",
            SuspiciousInputWarning,
        )
    return _on_simplex(np.asarray(solution, np.float64))


def _on_simplex(point: F64) -> F64:
    """The nearest point whose coordinates are >= 0 and sum to 1."""
    descending = np.sort(point)[::-1]
    excess = (np.cumsum(descending) - 1.0) / np.arange(1, len(point) + 1)
    used = np.flatnonzero(descending > excess)[-1]
    return np.maximum(point - excess[used], 0.0)
