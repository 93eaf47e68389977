"""A calibration: thresholds, prediction sets, p-values and certificates, for any coverage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp import kernels
from evicp.calibration.batches import labelled_rows, score_batch, warn_of_masked_labels
from evicp.calibration.certificate import Certificate, certify
from evicp.calibration.first_look import FirstLook
from evicp.calibration.laws.groups import Partition
from evicp.calibration.laws.law import Law
from evicp.calibration.laws.marginal import MARGINAL
from evicp.calibration.laws.weighted import Weights
from evicp.calibration.levels import as_confidence, level_of, require_law, warn_of_request
from evicp.calibration.memory import Memory
from evicp.calibration.new_rows import Request, new_rows, online_p_values, p_values, predict, raised
from evicp.calibration.origin import UNKNOWN, Origin, origin_of
from evicp.calibration.plans import planned_sets
from evicp.calibration.prepared import Prepared
from evicp.calibration.reliability import Reliability
from evicp.calibration.shown import Shown
from evicp.calibration.source import RowSource, require_source
from evicp.calibration.suspicious import warn_of, warn_of_new_rows
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis
from evicp.input.messages import refuse_unknown
from evicp.kernels.arithmetic import Arithmetic, precision_of_new
from evicp.method.scores import Score
from evicp.outer import outer
from evicp.sets import PredictionSets
from evicp.types import F64, I64, Coverage, Coverages, Smoothed

if TYPE_CHECKING:
    from evicp.calibration.predictor import Predictor
    from evicp.evaluation.exchangeability import ExchangeabilityCheck
    from evicp.evaluation.explain import Explanation
    from evicp.evaluation.result import Evaluation

__all__ = ["Calibration"]


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Shown):
    """The scores of n calibration rows: thresholds, sets, p-values and certificates for any coverage.

    Parameters
    ----------
    score : the score function
    scores : (n,) float64, ascending; where there are groups, group after group, each ascending
    n_classes : K
    class_names : K names, optional
    law : the law of thresholds: one for all rows, by group, or weighted
    chosen_on : the number of other rows that "auto" selected the score on; do not reuse them
    origin : backend and precision of the scores, and a digest of the rows; None if unknown
    folds : the number of folds, if other models than the one that predicts scored the rows; else None
    columns : the column names of the logits, if they are not the class names: new frames must have either
    numbered : class names were given as whole numbers: whole-number labels are looked up among them
    source : which network made the logits, of what data; None if unknown
    first_look : top-1 accuracy and mean set size of a sample of the rows, and warnings; None if loaded from a file

    >>> from evicp import calibrate
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 4, 500)
    >>> logits = rng.normal(size=(500, 4)) + 3 * np.eye(4)[labels]
    >>> calibration = calibrate(logits[:400], labels[:400])
    >>> sets = calibration.predict(logits[400:], coverage=0.9)
    >>> sets
    PredictionSets(100 rows of 4 classes, coverage 0.9; mean size 0.91, 9 empty, 91 of one label, largest 1)
    >>> [sets.to_lists()[:3] for sets in calibration.predict(logits[400:], coverage=[0.9, 0.99])]
    [[[3], [1], [3]], [[3], [1], [3, 2]]]
    >>> certificate = calibrate(logits, labels).certificate(0.9)
    >>> certificate.rank, [round(end, 4) for end in certificate.coverage_interval]
    (451, [0.8725, 0.9249])
    """

    score: Score
    scores: F64
    n_classes: int
    class_names: tuple[str, ...] | None = None
    law: Law = MARGINAL
    chosen_on: int | None = None
    origin: Origin | None = None
    folds: int | None = None
    columns: tuple[str, ...] | None = field(default=None, compare=False)
    numbered: bool = False
    source: RowSource | None = field(default=None, compare=False)
    first_look: FirstLook | None = field(default=None, compare=False)
    _levels: Memory = field(init=False, compare=False, default_factory=Memory)
    _others: Memory = field(init=False, compare=False, default_factory=Memory)
    _plans: Memory = field(init=False, compare=False, default_factory=Memory)

    @property
    def guarantee(self) -> str:
        """The kind of guarantee: "marginal" (over all rows), by "class", "group" or "uncertainty", or "weighted"."""
        return self.law.guarantee

    @property
    def groups(self) -> Partition | None:
        """The groups of scores, each with its own threshold; None without groups."""
        return self.law.groups

    @property
    def weights(self) -> Weights | None:
        """The weight of each score; None if all are equal."""
        return self.law.weights

    @property
    def effective_n(self) -> float:
        """The effective number of rows, (sum w)^2 / sum w^2; n without weights."""
        return self.law.effective_n(self.n)

    # -----------------------------------------------------------------------------------------------------------
    # Thresholds

    def at(self, coverage: Coverage, confidence: float | None = None) -> Prepared:
        """Prepare the calibration for one coverage, for repeated predictions.

        Parameters
        ----------
        coverage, confidence : as for `threshold`
        """
        return Prepared(self, level_of(self, validate.as_coverage(coverage), as_confidence(self, confidence)))

    def threshold(self, coverage: Coverage = 0.9, confidence: float | None = None, **unknown: Any) -> float:
        """The k-th smallest calibration score, k = ceil((n + 1) coverage); +inf (with a warning) if k > n.

        Parameters
        ----------
        coverage : strictly between 0 and 1
        confidence : of training-conditional sets: k is then `pac_rank`
        """
        refuse_unknown("threshold", unknown)
        self.law.require("one threshold")
        return float(self.thresholds(coverage, confidence)[0])

    def thresholds(self, coverage: Coverage, confidence: float | None = None) -> F64:
        """The threshold of each group, (G,), or of each label where there are class weights; (1,) otherwise.

        Parameters
        ----------
        coverage, confidence : as for `threshold`
        """
        prepared = self.at(coverage, confidence)
        warn_of(*prepared.level.cautions)
        return prepared.thresholds

    def label_thresholds(
        self, coverage: Coverage, confidence: float | None = None, *, precision: str | None = None
    ) -> F64:
        """The threshold of each label, (K,), or of all, (1,): for graphs that cannot know a row's group or weight.

        Parameters
        ----------
        coverage, confidence : as for `threshold`
        precision : of the logits that the graph scores ("float64", "float32", "float16", "bfloat16"): thresholds are
            raised by its rounding error, so that coverage can only rise
        """
        if precision is not None:
            # A graph cannot look whether doubles hold single precision, as `predict` does.
            graph = Arithmetic.of("graph", "float64", "float32" if precision == "float64" else precision)
            return raised(self, self.origin or UNKNOWN, graph).label_thresholds(coverage, confidence)
        of_labels, level = self.law.of_labels(self.n_classes), self.at(coverage, confidence).level
        warn_of_request([level], can_smooth=False)
        warn_of(*level.cautions)
        return np.asarray(self.law.limit(self.scores, level.coverage, level.values, of_labels)).reshape(-1)

    # -----------------------------------------------------------------------------------------------------------
    # Sets

    @overload
    def predict(
        self,
        logits: ArrayLike,
        coverage: Coverage = ...,
        *,
        confidence: float | None = ...,
        groups: ArrayLike | None = ...,
        weights: ArrayLike | None = ...,
        allow_empty: bool = ...,
        smoothed: Smoothed = ...,
        source: RowSource | str | None = ...,
    ) -> PredictionSets: ...
    @overload
    def predict(
        self,
        logits: ArrayLike,
        coverage: Coverages,
        *,
        confidence: float | None = ...,
        groups: ArrayLike | None = ...,
        weights: ArrayLike | None = ...,
        allow_empty: bool = ...,
        smoothed: Smoothed = ...,
        source: RowSource | str | None = ...,
    ) -> list[PredictionSets]: ...
    def predict(
        self,
        logits: ArrayLike,
        coverage: Coverage | Coverages = 0.9,
        *,
        confidence: float | None = None,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        allow_empty: bool = True,
        smoothed: Smoothed = False,
        source: RowSource | str | None = None,
        **unknown: Any,
    ) -> PredictionSets | list[PredictionSets]:
        """The prediction sets of new rows: all labels whose score is at most the threshold.

        One set per row; with several coverages a list of `PredictionSets`, one for each.

        Parameters
        ----------
        logits : (n, K), or one (K,) row. For a tensor on an accelerator the sets stay there, as `DeviceSets`
        coverage : strictly between 0 and 1; a sequence gives a list of sets from one pass over the logits
        confidence : training-conditional (PAC) sets: with this confidence over calibration sets, coverage is at least
            the target. Without it, coverage is at least the target on average over calibration sets
        groups : (n,) groups of the rows, for a calibration by="group"; (n, G) where groups overlap
        weights : (n,) weights of the rows, for a weighted calibration
        allow_empty : if False, an empty set gets its top label, which can only raise coverage
        smoothed : True for sets of the labels whose smoothed p-value (see `p_values`) is above 1 - coverage: average
            coverage then equals the target even with tied scores, where plain sets cover more. The random numbers are
            computed from each row's logits and the calibration rows, so rows with equal logits share one; pass a
            random generator, or (n,) numbers in [0, 1], to replace them. Smoothed sets are computed on the CPU
        source : which network made the logits: refused if it is not that of the calibration rows
        """
        if unknown or source is not None:
            refuse_unknown("predict", unknown)
            require_source(self.source, source)
        request = Request(logits, groups, weights, allow_empty, smoothed)
        sets: Any = None if type(logits) is np.ndarray else planned_sets(self, coverage, confidence, request)
        return predict(self, coverage, confidence, request) if sets is None else sets

    def evaluate(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        coverage: Coverage = 0.9,
        *,
        confidence: float | None = None,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        allow_empty: bool = True,
        smoothed: Smoothed = False,
        source: RowSource | str | None = None,
        **unknown: Any,
    ) -> Evaluation:
        """Predict and evaluate the sets of labelled rows, (n, K) and (n,), that were not used for calibration.

        Parameters
        ----------
        coverage, confidence, groups, weights, allow_empty, smoothed, source : of the sets, as for `predict`
        """
        refuse_unknown("evaluate", unknown)
        require_source(self.source, source)
        how: Any = {"groups": groups, "weights": weights, "confidence": confidence, "allow_empty": allow_empty}
        return outer("evaluate")(self, logits, labels, coverage, smoothed=smoothed, **how)

    def predictor(
        self, coverage: Coverage, logits_like: ArrayLike, *, labels: int | None = None, confidence: float | None = None
    ) -> Predictor:
        """Sets of logits of one shape on an accelerator, for loops, CUDA graphs and compiled models: see `Predictor`.

        Parameters
        ----------
        coverage, confidence : as for `predict`
        logits_like : (n, K) tensor of the shape, type and device of those to come
        labels : m, for the m most plausible labels of each set; None for membership, (n, K)
        """
        from evicp.calibration.predictor import Predictor

        return Predictor(self, coverage, logits_like, labels=labels, confidence=confidence)

    def explain(
        self,
        logits_row: ArrayLike,
        coverage: Coverage = 0.9,
        *,
        confidence: float | None = None,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        smoothed: Smoothed = False,
    ) -> Explanation:
        """Explain why each label of one row, (K,), is in the set or not: the parts of its score, and the threshold.

        Parameters
        ----------
        coverage, confidence, groups, weights, smoothed : of the set, as for `predict`
        """
        how: dict[str, Any] = {"confidence": confidence, "groups": groups, "weights": weights, "smoothed": smoothed}
        return outer("explain")(self, logits_row, coverage, **how)

    # -----------------------------------------------------------------------------------------------------------
    # P-values

    def p_values(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        smoothed: Smoothed = False,
    ) -> F64:
        """p = (1 + #{s_i >= s}) / (n + 1) of every label, (n, K), or of the given labels only, (n,).

        With groups, only calibration rows of the label's or row's group count; with weights, rows are weighted. A label
        is outside the set exactly when p <= 1 - coverage (compared as fractions; up to rounding where weights are not
        whole numbers).

        Parameters
        ----------
        logits : (n, K), or one (K,) row
        labels : (n,), optional
        groups, weights : of the rows, as for `predict`
        smoothed : True for p = (#{s_i > s} + u (1 + #{s_i = s})) / (n + 1), which is uniform also where scores are
            tied; u in (0, 1] is a function of the row's logits, the score's seed and the calibration rows. Or a random
            generator, or (n,) random numbers in [0, 1]. These p-values are computed on the CPU

        >>> from evicp import calibrate
        >>> calibration = calibrate([[2.0, 1.0, 0.0]] * 3, [0, 0, 1], "topk")
        >>> new = [2.0, 1.0, 0.0]
        >>> calibration.p_values(new).round(3).tolist(), calibration.p_values(new, smoothed=[0.5]).round(3).tolist()
        ([[1.0, 0.5, 0.25]], [[0.625, 0.25, 0.125]])
        """
        return p_values(self, logits, labels, groups, weights, smoothed)

    def at_least(self, logits: ArrayLike, groups: ArrayLike | None = None) -> tuple[I64, I64]:
        """How many calibration scores are at least each label's, (n, K), and how many there are; see `p_values`."""
        own, array, of_rows = new_rows(self, logits, groups, here=True)
        return own.law.at_least(own.scores, kernels.dense_scores(self.score, array), of_rows)

    def p_values_online(self, logits: ArrayLike, labels: ArrayLike) -> F64:
        """The p-value of each labelled row, (m,); each row is added to the calibration after it was tested.

        p_t = (1 + #{calibration and earlier rows with score >= s_t}) / (n + t), t from 1: what `extended` would give,
        row by row. For exchangeable rows without ties these p-values are independent; those of `p_values` are not.

        Parameters
        ----------
        logits, labels : (m, K) and (m,), in order of arrival
        """
        self.law.require("online p-values")
        return online_p_values(self, logits, labels)

    # -----------------------------------------------------------------------------------------------------------
    # More rows

    def extended(
        self, logits: ArrayLike, labels: ArrayLike, *, groups: ArrayLike | None = None, weights: ArrayLike | None = None
    ) -> Calibration:
        """A new calibration that includes more labelled rows; this one does not change.

        It equals the calibration of all rows at once, except that bands of uncertainty and clusters of classes do not
        change and no new row is set aside. New rows must be exchangeable with the others: not selected by their sets,
        and not among the rows that the score was selected on.

        Parameters
        ----------
        logits, labels : (m, K) and (m,)
        groups, weights : (m,) of the rows, if the calibration has them; no new groups
        """
        known = ClassAxis.known_to(self)
        known.check(logits)
        rows, classes = labelled_rows(self.score, logits, labels, groups, weights, self.n_classes, known)
        origin = self.origin or UNKNOWN
        precision = precision_of_new(origin.arithmetic, logits, rows.array)
        new = score_batch(self.score, self.law.kind, rows, origin.arithmetic, precision)
        if not len(new.scores):
            return self
        warn_of_masked_labels([new])
        warn_of_new_rows(self.score, rows.array)
        scores, law = self.law.extended(self.scores, np.asarray(new.scores), new.keys, self.n_classes)
        origin = origin_of([new._replace(scores=self.scores, origin=origin, hashes=None), new])
        return replace(self, scores=convert.frozen(scores), law=law, origin=origin, columns=classes.other_columns)

    # -----------------------------------------------------------------------------------------------------------
    # What is guaranteed

    def groups_of(self, logits: ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.str_]:
        """The name of each row's group, (n,), as `evaluate(groups=...)` takes it.

        Parameters
        ----------
        logits, groups : as for `predict`
        """
        own, _, of_rows = new_rows(self, logits, groups, here=True)
        return own.law.group_names(of_rows)

    @property
    def has_row_groups(self) -> bool:
        """Whether each row belongs to a group; see `groups_of`."""
        return self.law.has_row_groups

    def reliability(self, coverage: Coverage, confidence: float | None = None) -> Reliability:
        """The law of coverage given n calibration rows (Theorem 2 and the Beta law).

        Parameters
        ----------
        coverage, confidence : as for `threshold`
        """
        self.law.require("one law")
        require_law(self, "reliability")
        return Reliability(self.n, coverage, confidence)

    def certificate(
        self,
        coverage: Coverage = 0.9,
        evaluation: Evaluation | None = None,
        *,
        confidence: float = 0.95,
        pac: float | None = None,
        date: str | None = None,
        check: ExchangeabilityCheck | None = None,
        **unknown: Any,
    ) -> Certificate:
        """The guarantee at this coverage; with an evaluation, also whether the observed coverage is compatible with it.

        Parameters
        ----------
        coverage : the target coverage of the sets
        evaluation : of sets of this calibration at this coverage, on other rows
        confidence : of the intervals, and of the verdict on the observed coverage
        pac : the confidence of training-conditional sets, as passed to `predict(confidence=...)`
        date : of the certificate, today's by default
        check : a result of `check_exchangeable`, to be included
        """
        refuse_unknown("certificate", unknown)
        return certify(self, coverage, evaluation, confidence=confidence, pac=pac, date=date, check=check)

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the calibration to a safetensors file, atomically. Read it again with `evicp.load`.

        Parameters
        ----------
        overwrite : whether to replace an existing file; otherwise it raises an error
        """
        outer("save")(self, path, overwrite=overwrite)

    def push_to_hub(self, repo_id: str, coverage: Coverage = 0.9, **options: Any) -> str:
        """Write the calibration next to a model on the Hugging Face Hub, with its certificate: see `evicp.hub.push`."""
        address: str = outer("push_to_hub")(self, repo_id, coverage, **options)
        return address
