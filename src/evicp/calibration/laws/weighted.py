"""Known shift: weighted calibration (Tibshirani et al., 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from evicp.calibration.laws.law import Kind, Law, Thresholds
from evicp.calibration.promises import Promise, Target, verdict
from evicp.calibration.ranks import rows_needed
from evicp.calibration.reliability import Reliability
from evicp.calibration.suspicious import caution_of_masked, warn_of
from evicp.calibration.ties import found_weighted_ties
from evicp.errors import (
    ArtifactError,
    EvicpWarning,
    InputError,
    InputTypeError,
    SmallCalibrationWarning,
    SuspiciousInputWarning,
)
from evicp.input import convert
from evicp.input.warn import warn
from evicp.method.scores import Score
from evicp.types import F64, I64


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
    """(sum w)^2 / sum w^2: how many equally weighted rows carry the same information.

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


class _Weighted(Kind):
    guarantee = "weighted"
    caveat = (
        "Holds on average over calibration sets if the weights are the true ratios of new to calibration "
        "densities and were not chosen with the calibration rows. The Beta law is an approximation here: a verdict "
        "at 95 % rejects 1 to 4 % of guarantees that hold, and up to 5 % if a few rows have most of the weight."
    )


@dataclass(frozen=True)
class RowWeights(_Weighted):
    """Calibration rows with their own weights."""

    needs = frozenset({"weights"})

    def keys(self, score: Score, logits: Any, labels: I64, groups: Any, weights: Any) -> F64:
        """The weights of the rows."""
        if weights is None:
            raise InputError("this calibration is weighted; pass the weights of the new rows: weights=.")
        return as_weights(weights, len(labels))

    def law_of(
        self,
        scores: F64,
        keys: Sequence[F64],
        n_classes: int,
        class_names: tuple[str, ...] | None,
    ) -> tuple[F64, Weights]:
        """The scores, ascending, each with its weight."""
        warn_of_scales_between(keys)
        return _in_order(scores, np.concatenate(keys), None)


@dataclass(frozen=True, eq=False)
class ClassWeights(_Weighted):
    """Calibration rows with the weights of their classes, (K,)."""

    classes: F64

    def keys(self, score: Score, logits: Any, labels: I64, groups: Any, weights: Any) -> F64:
        """The weights of the rows' classes."""
        return as_weights(self.classes, logits.shape[1], "class_weights")[labels]

    def law_of(
        self,
        scores: F64,
        keys: Sequence[F64],
        n_classes: int,
        class_names: tuple[str, ...] | None,
    ) -> tuple[F64, Weights]:
        """The scores, ascending, each with its weight."""
        return _in_order(scores, np.concatenate(keys), self.classes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassWeights) and np.array_equal(self.classes, other.classes)

    __hash__ = None  # type: ignore[assignment]


def _in_order(scores: F64, weights: F64, classes: F64 | None) -> tuple[F64, Weights]:
    """The scores, ascending, each with its weight."""
    order = np.argsort(scores, kind="stable")
    return scores[order], Weights(weights[order], classes)


@dataclass(frozen=True, eq=False)
class Weights(Law):
    """The weights of calibration rows, and how new points get theirs.

    Parameters
    ----------
    rows : (n,) the weight of each calibration score, in the order of the scores
    classes : (K,) the weight of a new point by its label; None where each new row's weight is given
    """

    rows: F64
    classes: F64 | None = None

    guarantee = "weighted"
    stored_as = "weights"
    refusals = MappingProxyType(
        {
            "one threshold": "this calibration has weights, not one threshold; use thresholds() or predict().",
            "confidence": "confidence needs the Beta law, which weighted calibrations do not follow; leave it out.",
            **dict.fromkeys(
                ("smoothed p-values", "smoothed sets"),
                "smoothed p-values need rows of equal weight; this calibration is weighted.",
            ),
            "online p-values": "online p-values are those of one exchangeable sequence; this calibration is not "
            "marginal but weighted. Use p_values and extended.",
            "one law": "this calibration is not marginal but weighted: certificate() has its laws.",
            "rows": "the law of coverage is not known for weighted calibrations; they cannot be monitored.",
        }
    )

    def __post_init__(self) -> None:
        if not self.rows.any():
            raise InputError("weights must not all be 0.")
        object.__setattr__(self, "rows", convert.owned(self.rows))
        if self.classes is not None:
            object.__setattr__(self, "classes", convert.owned(self.classes))

    __setstate__ = convert.restore_frozen

    @property
    def kind(self) -> RowWeights | ClassWeights:
        """Where the weights of calibration rows come from."""
        return RowWeights() if self.classes is None else ClassWeights(self.classes)

    @property
    def weights(self) -> Weights:
        """Itself."""
        return self

    def of_rows(self, score: Score, logits: Any, groups: Any, weights: Any) -> F64:
        """The weight of each label, (1, K), or of each row, (n, 1)."""
        return self._of_new(len(logits), weights)

    def _of_new(self, n: int, given: Any) -> F64:
        if self.classes is not None:
            return self.classes[None, :]
        if given is None:
            raise InputError("this calibration is weighted; pass the weights of the new rows: weights=.")
        new = as_weights(np.atleast_1d(convert.as_array(given, "weights")), n)
        warn_of_scales(self.rows, new)
        return new[:, None]

    # -----------------------------------------------------------------------------------------------------------
    # Thresholds

    def at(self, scores: F64, coverage: Fraction, confidence: float | None) -> Thresholds:
        """No thresholds, which new weights decide; the ties at that of a new row of average weight."""
        ties = found_weighted_ties(scores, self.rows, self._average(scores, coverage), coverage)
        caution = caution_of_small_size(self.rows, coverage)
        return Thresholds(np.empty(0), ties, cautions=() if caution is None else (caution,))

    def _average(self, scores: F64, coverage: Fraction) -> float:
        """The threshold of a new row of average weight."""
        return float(weighted_thresholds(scores, self.rows, self.rows.mean(keepdims=True), coverage)[0])

    def limit(self, scores: F64, coverage: Fraction, values: F64, of_rows: F64) -> F64:
        """The threshold for each new weight."""
        thresholds = weighted_thresholds(scores, self.rows, of_rows, coverage)
        if np.isinf(thresholds).any():
            warn_of(caution_of_masked(scores, coverage))
        return thresholds

    def listed(self, scores: F64, coverage: Fraction, values: F64) -> F64:
        """The threshold of each label, where there are class weights."""
        found: F64 = self.limit(scores, coverage, values, self._of_new(0, None))[0]
        return found

    def p_values(self, scores: F64, new: F64, of_rows: F64) -> F64:
        """The weighted p-value of each new score."""
        return weighted_p_values(scores, self.rows, new, of_rows)

    # -----------------------------------------------------------------------------------------------------------
    # Guarantees

    def effective_n(self, n: int) -> float:
        """(sum w)^2 / sum w^2."""
        return effective_sample_size(self.rows)

    def promise(self, scores: F64, target: Target) -> Promise:
        """The law of as many equally weighted rows: an approximation, never of fewer rows than have a threshold.

        Where a new row of average weight has none, lighter ones may have, so that not all sets are full.
        """
        coverage, threshold = target.coverage, self._average(scores, target.coverage)
        if np.isinf(threshold):
            warn_of(caution_of_masked(scores, coverage))
        rows = 0 if threshold == np.inf else round(equal_rows(scores, self.rows, threshold, float(coverage)))
        law = Reliability(max(rows, rows_needed(coverage)), coverage)
        observed = verdict(law, target.evaluation, weighted_confidence(target.confidence), covers_more=True)
        return Promise(law, threshold, False, observed, effective_n=self.effective_n(len(scores)))

    # -----------------------------------------------------------------------------------------------------------
    # Other scores

    def extended(self, scores: F64, new: F64, keys: F64, n_classes: int) -> tuple[F64, Weights]:
        """The scores with those of more rows, ascending, each with its weight."""
        if self.classes is None:
            warn_of_scales_between([self.rows, keys])
        return _in_order(np.concatenate([scores, new]), np.concatenate([self.rows, keys]), self.classes)

    def raised(self, scores: F64, higher: Callable[[F64], F64]) -> tuple[F64, Weights]:
        """Higher scores, ascending, each with its weight."""
        return _in_order(higher(scores), self.rows, self.classes)

    # -----------------------------------------------------------------------------------------------------------
    # Files and text

    def description(self) -> dict[str, Any]:
        """Whose weights they are."""
        return {"weights": "rows" if self.classes is None else "classes"}

    def tensors(self, scores: F64) -> dict[str, F64]:
        """The scores, their weights, and those of the classes."""
        classes = {} if self.classes is None else {"class_weights": self.classes}
        return {"scores": scores, "weights": self.rows, **classes}

    @classmethod
    def names_of(cls, names: set[str]) -> list[str]:
        """Those three, or the first two."""
        found = ["scores", "weights", "class_weights"][: len(names)]
        return found if len(names) > 1 and set(found) == names else []

    @classmethod
    def restored(
        cls,
        stored: Any,
        tensors: Mapping[str, F64],
        n_classes: int,
        class_names: tuple[str, ...] | None,
    ) -> Self:
        """The weights of a file's scores."""
        if stored != ("classes" if "class_weights" in tensors else "rows"):
            raise ArtifactError(f"it states weights of {stored!r}, which are not those it contains.")
        classes = tensors.get("class_weights")
        return cls(
            _stored_weights(tensors["weights"], len(tensors["scores"]), "weights"),
            None if classes is None else _stored_weights(classes, n_classes, "class_weights"),
        )

    def facts(self) -> list[tuple[str, str]]:
        """How many equally weighted rows carry the same information."""
        return [*super().facts(), ("effective rows", f"{self.effective_n(0):.1f}")]

    def summary(self) -> str:
        """The same."""
        return f", weighted ({self.effective_n(0):.1f} effective rows)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weights):
            return NotImplemented
        same_classes = np.array_equal(self.classes, other.classes)  # type: ignore[arg-type]
        return same_classes and np.array_equal(self.rows, other.rows)

    __hash__ = None  # type: ignore[assignment]


def _stored_weights(weights: F64, n: int, what: str, step: int = 1 << 20) -> F64:
    """Weights as they lie in memory, if they are what `as_weights` takes; in steps, so that none is copied."""
    if len(weights) != n:
        raise ArtifactError(f"{what} must be of shape ({n},); got {weights.shape}.")
    for start in range(0, n, step):
        as_weights(weights[start : start + step], what=what)
    return convert.frozen(weights)


def weighted_confidence(confidence: float) -> float:
    """The confidence whose interval keeps the stated one for weighted sets, from below: half of the tails.

    Their law is that of equally weighted rows. A calibration set that lacks the heavy rows it should have covers less,
    and looks surer: the lower tail of this law is crossed up to twice as often as it says.
    """
    return 1 - (1 - confidence) / 2


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
            f"{'Sets are too large, or full' if is_large else 'Sets may cover less than the target'}. Normalise "
            "neither, or divide both by one number.",
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


def caution_of_small_size(weights: F64, coverage: Fraction) -> EvicpWarning | None:
    """Few effective rows: coverage given the calibration rows spreads by more than a third of 1 - coverage."""
    needed = 10 / (1 - coverage)
    size = effective_sample_size(weights)
    if size >= needed:
        return None
    return SmallCalibrationWarning(
        f"the weights leave {size:.1f} effective rows of {len(weights)}: coverage {float(coverage):g} holds on "
        f"average over calibration sets, but varies much between them. {float(needed):.0f} would be enough; "
        "calibrate on more rows like the new ones."
    )
