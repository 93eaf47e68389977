"""Calibration: from the scores of true labels to a threshold, for any coverage, afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from evicp import checks, kernels
from evicp.errors import InputError, InputTypeError, LogitsError
from evicp.reliability import Certificate, Reliability, conformal_rank
from evicp.scores import ECP, Score, as_score
from evicp.sets import PredictionSets

if TYPE_CHECKING:
    from evicp.metrics import Evaluation

__all__ = ["Calibration", "Calibrator", "calibrate"]

F64 = NDArray[np.float64]
Coverage = float | Fraction


def calibrate(
    logits: Any,
    labels: Any,
    score: str | Score | Callable[[F64], Any] = "ecp",
    *,
    class_names: Sequence[str] | None = None,
) -> Calibration:
    """Score the true labels of calibration rows; any coverage can be asked for afterwards.

    Parameters
    ----------
    logits : (n, K) array of any kind
        Raw classifier outputs. -inf marks a class as impossible.
    labels : (n,) integers in [0, K)
    score : a name, a score, or a callable of (n, K) logits to (n, K) scores
        "ecp" (default), "lac", "aps", "raps", "saps", "topk", "margin".
    class_names : K names, optional
        Travel with the calibration and its sets.

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 4, 500)
    >>> logits = rng.normal(size=(500, 4)) + 3 * np.eye(4)[labels]
    >>> calibration = calibrate(logits, labels)
    >>> calibration
    Calibration(ecp, 500 rows, 4 classes)
    >>> calibration.predict([[4.0, 0.5, 0.1, -1.0], [1.0, 1.1, 0.9, -2.0]], coverage=0.95).to_lists()
    [[0], [1, 0, 2]]
    """
    return Calibrator(score, class_names=class_names).update(logits, labels).finish()


class Calibrator:
    """Calibration in batches or shards: only the scores are kept.

    >>> first, second = Calibrator("lac"), Calibrator("lac")
    >>> _ = first.update([[2.0, 0.0], [0.5, 1.0]], [0, 1])
    >>> _ = second.update([[0.0, 3.0]], [1])
    >>> first.merge(second).finish().n
    3
    """

    def __init__(
        self,
        score: str | Score | Callable[[F64], Any] = "ecp",
        *,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.score = as_score(score)
        self.n_classes: int | None = None
        self._class_names = class_names
        self._batches: list[F64] = []

    @property
    def n(self) -> int:
        """Rows seen so far."""
        return sum(map(len, self._batches))

    def update(self, logits: Any, labels: Any) -> Calibrator:
        """Add a batch of labelled rows; a batch that raises leaves the calibrator as it was."""
        checks.same_device(logits, labels)
        array = checks.as_logits(logits, self.n_classes)
        truth = checks.as_labels(labels, *array.shape)
        checks.as_class_names(self._class_names, array.shape[1])
        if not self._batches:
            warn_suspicious(self.score, array)
        scores = kernels.label_scores(self.score, array, truth)
        self.n_classes = array.shape[1]
        self._batches.append(scores)
        return self

    def merge(self, *others: Calibrator) -> Calibrator:
        """Add the scores of other calibrators (other shards, other machines)."""
        for other in others:
            if other.score != self.score:
                raise InputError(f"only calibrators of one score can be merged; got {self.score} and {other.score}.")
            if None not in (self.n_classes, other.n_classes) and self.n_classes != other.n_classes:
                raise InputError(
                    f"only calibrators of one K can be merged; got {self.n_classes} and {other.n_classes} classes."
                )
        for other in others:
            self.n_classes = self.n_classes or other.n_classes
            self._batches.extend(other._batches)
        return self

    def finish(self) -> Calibration:
        """Sort the scores."""
        if self.n_classes is None or self.n == 0:
            raise LogitsError("calibration needs at least one row; got none. Pass labelled logits.")
        names = checks.as_class_names(self._class_names, self.n_classes)
        return Calibration(self.score, np.sort(np.concatenate(self._batches)), self.n_classes, names)


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """The sorted scores of n calibration rows: thresholds, sets, p-values and certificates for any coverage.

    Parameters
    ----------
    score : the score that made the scores
    scores : (n,) float64, ascending
    n_classes : K
    class_names : K names, optional
    """

    score: Score
    scores: F64
    n_classes: int
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.scores.flags.writeable = False

    @property
    def n(self) -> int:
        """Calibration rows."""
        return len(self.scores)

    def threshold(self, coverage: Coverage) -> float:
        """The k-th smallest calibration score, k = ceil((n + 1) coverage); +inf (with a warning) if k > n."""
        return conformal_threshold(self.scores, checks.as_coverage(coverage))

    @overload
    def predict(self, logits: Any, coverage: Coverage, *, allow_empty: bool = ...) -> PredictionSets: ...
    @overload
    def predict(
        self, logits: Any, coverage: Sequence[Coverage], *, allow_empty: bool = ...
    ) -> list[PredictionSets]: ...
    def predict(
        self, logits: Any, coverage: Coverage | Sequence[Coverage], *, allow_empty: bool = True
    ) -> PredictionSets | list[PredictionSets]:
        """The prediction sets of new rows: all labels whose score is at most the threshold.

        Parameters
        ----------
        logits : (n, K), or one (K,) row
        coverage : strictly between 0 and 1; a sequence gives a list of sets from one pass over the logits
        allow_empty : if False, an empty set gets its top label, which can only raise coverage
        """
        array = checks.as_logits(logits, self.n_classes, row_allowed=True)
        if not isinstance(allow_empty, bool | np.bool_):
            raise InputTypeError(f"allow_empty must be True or False; got {allow_empty!r}.")
        wanted = [checks.as_coverage(c) for c in (coverage if checks.is_many(coverage) else [coverage])]  # type: ignore[union-attr]
        if not wanted:
            raise InputError("coverage must be a number or a non-empty sequence of numbers; got an empty one.")
        thresholds = [self.threshold(c) for c in wanted]
        checks.warn_if_probabilities(array)
        offsets, labels, scores = kernels.ragged_sets(self.score, array, max(thresholds))
        top = None if allow_empty else kernels.top_labels(self.score, array)
        results = []
        for exact, threshold in zip(wanted, thresholds, strict=True):
            sets = PredictionSets(
                *keep_up_to(offsets, labels, scores, threshold),
                n_classes=self.n_classes,
                coverage=exact,
                score=self.score.name,
                n_calibration=self.n,
                class_names=self.class_names,
            )
            results.append(sets if top is None else _fill_empty(sets, top))
        return results if checks.is_many(coverage) else results[0]

    def p_values(self, logits: Any, labels: Any = None) -> F64:
        """P = (1 + #{s_i >= s}) / (n + 1) of every label, (n, K), or of the given labels only, (n,).

        A label is outside the set exactly when p <= 1 - coverage (compared as fractions).
        """
        array = checks.as_logits(logits, self.n_classes, row_allowed=True)
        if labels is None:
            scores = kernels.dense_scores(self.score, array)
        else:
            scores = kernels.label_scores(self.score, array, checks.as_labels(labels, *array.shape))
        at_least = self.n - np.searchsorted(self.scores, scores, side="left")
        p: F64 = (1.0 + at_least.astype(np.float64)) / (self.n + 1.0)
        return p

    def reliability(self, coverage: Coverage) -> Reliability:
        """The law of coverage given n calibration rows (Theorem 2 and the Beta law)."""
        return Reliability(self.n, coverage)

    def certificate(
        self,
        coverage: Coverage,
        evaluation: Evaluation | None = None,
        *,
        confidence: float = 0.95,
        date: str | None = None,
    ) -> Certificate:
        """What may be promised at this coverage; with an evaluation, whether what was observed is compatible."""
        from evicp import __version__, files

        law = self.reliability(coverage)
        observed = None
        if evaluation is not None:
            if evaluation.target != law.coverage or evaluation.n_calibration not in (None, self.n):
                raise InputError(
                    f"the evaluation must be of sets of this calibration at coverage {float(law.coverage):g}; "
                    f"got coverage {float(evaluation.target):g}, n = {evaluation.n_calibration}."
                )
            check = law.compatible(evaluation.coverage, evaluation.n, confidence)
            observed = {
                "coverage": check.observed,
                "m": check.m,
                "low": check.low,
                "high": check.high,
                "compatible": check.compatible,
            }
        return Certificate(
            coverage=float(law.coverage),
            n=self.n,
            rank=law.k,
            threshold=self.threshold(coverage),
            gamma=law.gamma,
            uncertainty=law.uncertainty,
            expected_coverage=law.expected_coverage,
            coverage_interval=law.interval(confidence),
            confidence=confidence,
            score=self.score.name,
            parameters=files.plain_parameters(self.score),
            n_classes=self.n_classes,
            checksum=files.checksum(self),
            version=__version__,
            date=date or datetime.now(UTC).strftime("%Y-%m-%d"),
            observed=observed,
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the calibration to a safetensors file, atomically. Read it again with `evicp.load`."""
        from evicp import files

        files.save_calibration(self, path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Calibration):
            return NotImplemented
        mine = (self.score, self.n_classes, self.class_names)
        return mine == (other.score, other.n_classes, other.class_names) and np.array_equal(self.scores, other.scores)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Calibration({self.score.describe()}, {self.n:,} rows, {self.n_classes:,} classes)"


def conformal_threshold(ascending: F64, coverage: Fraction) -> float:
    """The threshold for a coverage from sorted calibration scores."""
    k = conformal_rank(len(ascending), coverage)
    if k > len(ascending):
        checks.warn_small_calibration(len(ascending), coverage)
        return np.inf
    return float(ascending[k - 1])


def keep_up_to(
    offsets: NDArray[np.int64], labels: NDArray[np.int32], scores: F64, threshold: float
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The part of ragged sets whose scores are at most the threshold; rows are ascending, so a prefix of each."""
    kept = scores <= threshold
    if kept.all():
        return offsets, labels
    running = np.concatenate([[0], np.cumsum(kept)])
    return running[offsets], labels[kept]


def _fill_empty(sets: PredictionSets, top: NDArray[np.int32]) -> PredictionSets:
    """Give every empty set its top label."""
    empty = sets.sizes == 0
    sizes = np.where(empty, 1, sets.sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    labels = np.insert(sets.labels, sets.offsets[:-1][empty], top[empty])
    return replace(sets, offsets=offsets, labels=labels, filled=True)


def warn_suspicious(score: Score, logits: NDArray[Any]) -> None:
    """Warn of input that is legal but very likely not what was meant."""
    checks.warn_if_probabilities(logits)
    if isinstance(score, ECP) and score.evidence == "relu":
        checks.warn_if_no_evidence(logits)
