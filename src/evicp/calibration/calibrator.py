"""Calibration in one call, or in batches and shards: only the scores of true labels are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp.calibration.batches import Batch, joined, labelled_rows, score_batch, scores_of, warn_of_masked_labels
from evicp.calibration.calibration import Calibration
from evicp.calibration.first_look import first_look, look_at
from evicp.calibration.laws import as_by, by_given, kind_of
from evicp.calibration.laws.law import Kind
from evicp.calibration.laws.marginal import Marginal
from evicp.calibration.laws.weighted import as_weights
from evicp.calibration.origin import UNKNOWN, final_origin
from evicp.calibration.source import RowSource
from evicp.calibration.source import joined as joined_sources
from evicp.calibration.suspicious import warn_of_seconds_of_two
from evicp.errors import InputError, InputTypeError, LogitsError
from evicp.input import convert, frames
from evicp.input.classes import ClassAxis, ClassNames, in_class_order, labelled
from evicp.input.messages import refuse_unknown
from evicp.method.scores import SCORES, ScoreLike, as_score
from evicp.outer import outer
from evicp.types import I64

__all__ = ["Calibrator", "calibrate"]


def calibrate(
    logits: ArrayLike,
    labels: ArrayLike,
    score: ScoreLike = "ecp",
    *,
    by: Any = None,
    weights: ArrayLike | None = None,
    class_weights: ArrayLike | Mapping[Any, float] | None = None,
    class_names: ClassNames | None = None,
    source: RowSource | str | None = None,
    **unknown: Any,
) -> Calibration:
    """Calibrate on labelled rows; the result works for any coverage.

    Parameters
    ----------
    logits : (n, K) raw classifier outputs; -inf marks a class as impossible
    labels : (n,) integers in [0, K); or names, where class_names are given
    score : a name, a score, or a callable of (n, K) logits to (n, K) scores
        "ecp" (default), "lac", "aps", "raps", "saps", "topk", "margin"; or "auto": selected on a part of the rows.
    by : "class", "uncertainty", `ByClass(...)`, `ByUncertainty(...)`, (n,) groups, or (n, G) groups that overlap
        Where coverage must hold: in every class, band of uncertainty, or group of rows (given at prediction, too).
    weights : (n,) numbers >= 0, how much more frequent rows like each one are among new rows (a known shift), optional
    class_weights : (K,) numbers >= 0 from `label_shift_weights`, for label shift, optional
    class_names : K names in the order of the logits, or by class number, optional
        Labels may then be names, here and wherever labels are taken; whole numbers are looked up among such names.
    source : which network made the logits, in any words, optional; `predict(source=...)` refuses rows of another

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 4, 500)
    >>> calibrate(rng.normal(size=(500, 4)) + 3 * np.eye(4)[labels], labels)
    Calibration(ecp, 500 rows, 4 classes)
    """
    refuse_unknown("calibrate", unknown, "One calibration works for every coverage: pass it to predict, coverage=0.9.")
    given = None if by is None or isinstance(by, str | type | Kind) else by
    own: Any = {"class_weights": class_weights, "class_names": class_names, "source": source}
    own["by"] = by if given is None else by_given(given)
    if isinstance(score, str) and score.lower() == "auto":
        return _calibrate_best(logits, labels, given, weights, own)
    return Calibrator(score, **own).update(logits, labels, groups=given, weights=weights).finish()


def _calibrate_best(logits: Any, labels: Any, groups: Any, weights: Any, how: dict[str, Any]) -> Calibration:
    """A part of the rows chooses the score, the others are calibrated; `how` is what else a calibrator takes."""
    frames.same_rows(logits=logits, labels=labels, groups=groups, weights=weights)
    names = how["class_names"]
    how["class_names"] = tuple(names) if isinstance(names, Iterator) else names
    array, truth = labelled(logits, labels, class_names=how["class_names"])
    if len(truth) < 30:
        raise LogitsError(
            f'score="auto" needs at least 30 rows, some of them for the selection; got {len(truth)}. Name a score.'
        )
    best, rest = outer("choose_score")(array, truth)
    calibrator = Calibrator(best, **how)
    classes = calibrator._classes = calibrator.learned(logits, array.shape[1])
    own = {what: _part(values, what, rest, len(truth)) for what, values in (("groups", groups), ("weights", weights))}
    calibrator.update(array[rest], classes.labels(truth[rest]), **own)
    return replace(calibrator.finish(), chosen_on=len(truth) - len(rest))


def _part(values: Any, what: str, rows: I64, n: int) -> NDArray[Any] | None:
    """The entries of some of n rows."""
    given = None if values is None else convert.as_array(values, what)
    if given is not None and given.shape[:1] != (n,):
        raise InputError(f"{what} must have one entry per row; got shape {given.shape} for {n} rows.")
    return None if given is None else given[rows]


class Calibrator:
    """Calibration in batches or shards. Only the scores are kept (with the rows' groups and weights, if any).

    Not thread-safe: use one per thread, and `merge` them.

    Parameters
    ----------
    score, class_weights, class_names, source : as for `calibrate`
    by : "class", "group", "uncertainty", "overlapping", or an instance with parameters
        "group" and "overlapping" take the rows' groups at each `update`.

    Attributes
    ----------
    n_classes : K; None before the first batch

    >>> first, second = Calibrator("lac"), Calibrator("lac")
    >>> _ = first.update([[2.0, 0.0], [0.5, 1.0]], [0, 1])
    >>> _ = second.update([[0.0, 3.0]], [1])
    >>> first.merge(second).finish().n
    3
    """

    def __init__(
        self,
        score: ScoreLike = "ecp",
        *,
        by: Any = None,
        class_weights: ArrayLike | Mapping[Any, float] | None = None,
        class_names: ClassNames | None = None,
        source: RowSource | str | None = None,
    ) -> None:
        self.score = as_score(score)
        self.by = as_by(by)
        self.source = None if source is None else RowSource.of(source)
        self.n_classes: int | None = None
        self._class_names = tuple(class_names) if isinstance(class_names, Iterator) else class_names
        self._class_weights = None
        if class_weights is not None:
            in_order = in_class_order(class_weights, "class_weights", self._class_names)
            self._class_weights = as_weights(in_order, what="class_weights")
        self._classes: ClassAxis | None = None
        self._batches: list[Batch] = []
        if self.by is not None and class_weights is not None:
            raise InputError("weights and groups cannot be combined; pass by= or class_weights=, not both.")

    @property
    def kind(self) -> Kind:
        """What is needed of rows without their own weights."""
        return kind_of(self.by, self._class_weights, None)

    @property
    def n(self) -> int:
        """Rows seen so far."""
        return sum(len(batch.scores) for batch in self._batches)

    def update(
        self, logits: ArrayLike, labels: ArrayLike, *, groups: ArrayLike | None = None, weights: ArrayLike | None = None
    ) -> Calibrator:
        """Add a batch of labelled rows; a batch that raises leaves the calibrator as it was.

        Parameters
        ----------
        logits, labels : (n, K) and (n,); labels are numbers, or names where class names were given
        groups : (n,) groups of the rows, for by="group"; (n, G) for by="overlapping"
        weights : (n,) weights of the rows, in every batch or in none
        """
        known, names = self._classes, self._class_names
        rows, classes = labelled_rows(self.score, logits, labels, groups, weights, self.n_classes, known, names)
        kind = kind_of(self.by, self._class_weights, weights)
        if self._batches and self._batches[0].kind != kind:
            raise InputError("weights must be given with every batch or with none.")
        before = next((batch.origin.arithmetic for batch in self._batches if len(batch.scores)), None)
        batch = score_batch(self.score, kind, rows, before)
        looked = sum(len(look.top) for batch in self._batches for look in batch.looks)
        here = isinstance(rows.array, np.ndarray)  # rows on an accelerator would have to be fetched
        looks = (look_at(rows.array, rows.labels, batch.hashes, looked),) if here else ()
        self._batches.append(batch._replace(looks=looks))
        self.n_classes, self._classes = classes.n_classes, classes
        return self

    def learned(self, logits: Any, n_classes: int) -> ClassAxis:
        """What is known of the classes with these logits, refused if that is contradictory."""
        return ClassAxis.learned_of(self._classes, self._class_names, logits, n_classes)

    def called(self, columns: tuple[str, ...] | None) -> Calibrator:
        """The same calibrator, for logits whose columns have these names where they come from."""
        if columns is not None:
            self._classes = replace(ClassAxis.of(self._class_names, len(columns)), columns=columns)
        return self

    def empty(self) -> Calibrator:
        """A calibrator made as this one, without its rows: for a worker that sends its `content` back."""
        made = copy(self)
        made._batches = []
        return made

    def content(self) -> Batch:
        """What is kept so far, to be sent elsewhere, as one batch."""
        if not self._batches:
            return Batch(np.empty(0), np.empty(0), self.kind, UNKNOWN)
        return joined(self._batches)

    def restore(self, batch: Batch, n_classes: int) -> Calibrator:
        """Add the content of a calibrator that was made as this one, elsewhere."""
        if self.n_classes not in (None, n_classes):
            raise LogitsError(f"logits must have {self.n_classes} classes in every batch; got {n_classes}.")
        self.n_classes = n_classes
        own = SCORES.get(self.score.name) is type(self.score)  # of other scores +inf may mean another thing
        masked = np.flatnonzero(np.isposinf(batch.scores)) if own else np.empty(0, np.int64)
        self._batches.append(batch._replace(masked=masked))
        return self

    def merge(self, *others: Calibrator) -> Calibrator:
        """Add the scores of other calibrators (other shards, other machines)."""
        for other in others:
            if not isinstance(other, Calibrator):
                raise InputTypeError(
                    f"only a Calibrator can be merged; got a {type(other).__name__}. "
                    "Merge the calibrators before finish()."
                )
        batches = [id(batch) for one in (self, *others) for batch in one._batches]
        if self in others or len(set(batches)) < len(batches):
            raise InputError("a calibrator cannot be merged twice: its rows would count twice.")
        whole = copy(self)  # so that one that does not fit changes nothing
        whole._batches = [*self._batches]
        for other in others:
            whole._check_mergeable(other)
            whole.source = joined_sources([whole.source, other.source])
            whole._classes = whole._agreed(other)
            whole.n_classes = whole.n_classes or other.n_classes
            whole._class_names = whole._class_names if whole._class_names is not None else other._class_names
            whole._batches.extend(other._batches)
        self.__dict__.update(whole.__dict__)
        return self

    def _check_mergeable(self, other: Calibrator) -> None:
        if other.score != self.score:
            raise InputError(f"only calibrators of one score can be merged; got {self.score} and {other.score}.")
        if None not in (self.n_classes, other.n_classes) and self.n_classes != other.n_classes:
            raise InputError(
                f"only calibrators of one K can be merged; got {self.n_classes} and {other.n_classes} classes."
            )
        if other.by != self.by:
            raise InputError(f"only calibrators with the same groups can be merged; got {self.by} and {other.by}.")
        kinds = [batch.kind for batch in (*self._batches[:1], *other._batches[:1])]
        if kinds[1:] != kinds[:-1] or not np.array_equal(self._class_weights, other._class_weights):  # type: ignore[arg-type]
            raise InputError("only calibrators with the same kind of weights can be merged.")

    def _agreed(self, other: Calibrator) -> ClassAxis | None:
        """What both know of the classes; None where neither has seen any."""
        n_classes = self.n_classes or other.n_classes
        if n_classes is None:
            return self._classes
        mine, theirs = (one._classes or ClassAxis.of(one._class_names, n_classes) for one in (self, other))
        return mine.agreed(theirs)

    def finish(self) -> Calibration:
        """Group and sort the scores."""
        if self.n_classes is None or self.n == 0:
            raise LogitsError("calibration needs at least one row; got none. Pass labelled logits.")
        classes = self._classes or self.learned(None, self.n_classes)
        scores = scores_of(self._batches)
        if seconds := sum(batch.second_of_two for batch in self._batches):
            warn_of_seconds_of_two(self.score, seconds / len(scores))
        warn_of_masked_labels(self._batches)
        keys = [batch.keys for batch in self._batches]
        scores, law = self._batches[0].kind.law_of(scores, keys, self.n_classes, classes.names)
        looks = [look for batch in self._batches for look in batch.looks]
        return Calibration(
            self.score,
            convert.frozen(scores) if isinstance(scores, np.ndarray) else scores,
            self.n_classes,
            classes.names,
            law,
            origin=final_origin(self._batches),
            columns=classes.other_columns,
            numbered=classes.numbered,
            source=self.source,
            first_look=first_look(looks, self.score, scores, self.n_classes, marginal=isinstance(law, Marginal)),
        )
