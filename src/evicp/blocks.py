"""Out of core: calibrate, predict, evaluate and monitor logits on disk in blocks of rows under a memory budget.

Rows are read into reused buffers. Only scores (calibration) or counts (evaluation) are kept, and sets are written block
by block. Results are identical to those of arrays in memory, because a row's score depends only on that row.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import Calibrator
from evicp.calibration.laws.by_class import ByClass
from evicp.calibration.monitor import Monitor
from evicp.calibration.seen_rows import content_hashes
from evicp.calibration.source import RowSource, warn_of_source
from evicp.errors import FileError, InputError, LabelsError
from evicp.evaluation.metrics import Evaluator, judged_by
from evicp.evaluation.result import Evaluation
from evicp.input import validate
from evicp.input.classes import ClassAxis, ClassNames
from evicp.io.executor import Executor, for_all_rows, row_wise, whole
from evicp.io.files import SetsFormat, open_sets, scan_sets
from evicp.io.logits import open_rows
from evicp.io.paths import as_path
from evicp.io.rows import Block, Rows, located, no_labels
from evicp.method.scores import ScoreLike
from evicp.sets import PredictionSets, SetsSummary
from evicp.types import Bools, Coverage, Smoothed

__all__ = ["Block", "Rows", "calibrate", "evaluate", "monitor", "open_rows", "predict"]

Progress = Callable[[int], Any]
Names = TypeVar("Names", bound=ClassNames)

_HERE = Executor()


def calibrate(
    rows: Rows | str | PathLike[str],
    score: ScoreLike = "ecp",
    *,
    by: Any = None,
    groups: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    class_weights: ArrayLike | Mapping[Any, float] | None = None,
    class_names: ClassNames | None = None,
    source: RowSource | str | None = None,
    progress: Progress | None = None,
    executor: Executor = _HERE,
) -> Calibration:
    """Calibrate on labelled rows on disk; only the scores stay in memory.

    Parameters
    ----------
    rows : from `open_rows`, or a path
    score, by, weights, class_weights, class_names : as for `evicp.calibrate` and `Calibrator`
    groups : (n,) groups of the rows, for by="group"
    source : which network made the logits, of what data, in place of what the rows say
    progress : called with the number of rows done after each block
    executor : runs the scoring; `evicp.ray.calibrate_files` passes its own
    """
    opened = _as_rows(rows)
    values = row_wise(opened, groups=groups, weights=weights)
    made_by = opened.made_by if source is None else source
    calibrator = _calibrator_for(opened, class_names, score=score, by=by, class_weights=class_weights, source=made_by)
    with closing(executor.calibrate(opened, values, calibrator)) as added:
        for n in added:
            if progress is not None:
                progress(n)
    return calibrator.finish()


def _calibrator_for(rows: Rows, class_names: ClassNames | None, **how: Any) -> Calibrator:
    """An empty calibrator for labelled rows, with their own class names unless others are given."""
    if not rows.has_labels:
        raise no_labels(rows)
    return Calibrator(class_names=names_for(rows, class_names), **how).called(rows.class_names)


def predict_blocks(
    calibration: Calibration,
    rows: Rows,
    coverage: Coverage,
    *,
    groups: Any = None,
    weights: Any = None,
    smoothed: Any = False,
    **how: Any,
) -> Generator[tuple[Block, PredictionSets]]:
    """Each block of rows with its sets; `how` is `confidence` and `allow_empty` of `Calibration.predict`."""
    values = _predictable(calibration, rows, coverage, groups=groups, weights=weights, smoothed=smoothed)
    yield from whole(rows.with_ids(), values).predict(partial(calibration.predict, coverage=coverage, **how))


def _predictable(calibration: Calibration, rows: Rows, coverage: Coverage, **values: Any) -> dict[str, Any]:
    """The row-wise values of rows whose sets can be predicted; what is wrong is refused before the first block."""
    validate.as_coverage(coverage)
    belong_together(calibration, rows, "the calibration")
    return row_wise(rows, **values)


def predict(
    calibration: Calibration,
    rows: Rows | str | PathLike[str],
    coverage: Coverage,
    output: str | PathLike[str],
    *,
    confidence: float | None = None,
    groups: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    allow_empty: bool = True,
    smoothed: Smoothed = False,
    evaluator: Evaluator | None = None,
    progress: Progress | None = None,
    more: Mapping[str, SetsFormat] | None = None,
    executor: Executor = _HERE,
) -> SetsSummary:
    """Write the sets of rows on disk to a file, block by block; the file appears when it is complete.

    Parameters
    ----------
    rows : from `open_rows`, or a path
    output : a path that ends in .parquet, .npz or .jsonl
    confidence, groups, weights, allow_empty, smoothed : as for `Calibration.predict`
    evaluator : updated during prediction, if the rows have labels: one pass over the file for both
    progress : called with the number of rows done after each block
    more : additional formats of sets by suffix
    executor : runs the prediction; `evicp.ray.predict_files` passes its own
    """
    source = _as_rows(rows) if evaluator is not None else _as_rows(rows).with_labels(None)
    _refuse_input(source, output)
    values = _predictable(calibration, source, coverage, groups=groups, weights=weights, smoothed=smoothed)
    how = {"confidence": confidence, "allow_empty": allow_empty}
    if evaluator is None:
        made = executor.predict(source.with_ids(), values, partial(calibration.predict, coverage=coverage, **how))
    else:
        pairs = predict_blocks(calibration, source, coverage, **values, **how)
        made = _evaluated(evaluator, calibration, source, pairs, groups)
    return _write_sets(made, output, progress, more)


def _write_sets(
    made: Generator[PredictionSets],
    output: str | PathLike[str],
    progress: Progress | None,
    more: Mapping[str, SetsFormat] | None,
) -> SetsSummary:
    """Write sets to a file as they come, and sum them up."""
    with closing(made), open_sets(output, more) as file:
        for sets in made:
            file.append(sets)
            if progress is not None:
                progress(len(sets))
    if file.summary is None:  # for the type checker: a file without sets is refused above
        raise InputError("there were no rows.")
    return file.summary


def _refuse_input(rows: Rows, output: str | PathLike[str]) -> None:
    """Refuse to write over rows that are about to be read."""
    target = as_path(output)
    read = [path for file in rows.files if (path := file.path) is not None and path.exists()]
    if target.exists() and any(path.samefile(target) for path in read):
        raise FileError(f"cannot write {output}: it is an input, or part of one ({rows.source}). Give another name.")


def evaluate(
    sets: Calibration | PredictionSets | str | PathLike[str],
    rows: Rows | str | PathLike[str],
    coverage: Coverage | None = None,
    *,
    groups: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    min_count: int = 1,
    confidence: float = 0.95,
    target_confidence: float | None = None,
    allow_empty: bool = True,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate sets, or the sets of a calibration, on labelled rows on disk; only counts stay in memory.

    Parameters
    ----------
    sets : sets, a file of sets (parquet, npz), or a calibration to predict them with
    rows : from `open_rows`, or a path; for sets, labels alone (one-dimensional) are enough
    coverage : for a calibration
    groups : (n,) groups of the rows
    min_count, confidence : as for `evicp.evaluate`
    weights, target_confidence, allow_empty : for a calibration, as `weights`, `confidence` and `allow_empty` of
        `Calibration.predict`
    progress : called with the number of rows done after each block
    """
    source = _as_rows(rows)
    row_wise(source, groups=groups)
    evaluator = Evaluator(min_count=min_count, confidence=confidence)
    how = {"weights": weights, "confidence": target_confidence, "allow_empty": allow_empty}
    pairs = _pairs(sets, source, coverage, groups, how)
    for part in _evaluated(evaluator, sets, source, pairs, groups):
        if progress is not None:
            progress(len(part))
    evaluation = evaluator.finish()
    return judged_by(sets, evaluation) if isinstance(sets, Calibration) else evaluation


def _pairs(
    sets: Any, rows: Rows, coverage: Coverage | None, groups: Any, how: dict[str, Any]
) -> Iterator[tuple[Block, PredictionSets]]:
    """Blocks of rows with their sets: predicted, or those there are."""
    if isinstance(sets, Calibration):
        if coverage is None:
            raise InputError("coverage must be given to evaluate a calibration.")
        return predict_blocks(sets, rows, coverage, groups=groups if "groups" in sets.law.needs else None, **how)
    if coverage is not None or how["weights"] is not None or how["confidence"] is not None or not how["allow_empty"]:
        raise InputError(
            "coverage, weights, target_confidence and allow_empty are for a calibration; sets were predicted with "
            "their own."
        )
    return _aligned(rows.with_ids(), iter([sets]) if isinstance(sets, PredictionSets) else scan_sets(sets, rows.step))


def _evaluated(
    evaluator: Evaluator, known: Any, rows: Rows, pairs: Iterable[tuple[Block, PredictionSets]], groups: Any
) -> Generator[PredictionSets]:
    """Sets as they come, once each is compared with its labels; a calibration with groups of rows has its own."""
    for block, sets in pairs:
        with located(rows.source, block.start):
            labels, logits = _truth(rows, block)
            given = groups if for_all_rows(groups) else groups[block.start : block.start + len(block.logits)]
            if isinstance(known, Calibration) and known.has_row_groups:
                given = known.groups_of(block.logits, given)
            evaluator.update(sets, labels, logits, groups=given)
        yield sets


def _truth(rows: Rows, block: Block) -> tuple[Any, Any]:
    """True labels, and the logits unless the file holds labels alone."""
    if block.labels is not None:
        return block.labels, block.logits
    if block.logits.ndim == 1 and block.logits.dtype.kind in "iuU":
        return block.logits, None
    raise no_labels(rows)


def _aligned(rows: Rows, sets: Iterator[PredictionSets]) -> Iterator[tuple[Block, PredictionSets]]:
    """Blocks of rows and of sets, cut at the same rows."""
    part, used = next(sets), 0
    for block in rows:
        done = 0
        while done < len(block.logits):
            while used == len(part) and (more := next(sets, None)) is not None:
                part, used = more, 0
            taken = min(len(block.logits) - done, len(part) - used)
            if not taken:
                break
            own = slice(done, done + taken)
            labels = None if block.labels is None else block.labels[own]
            belong_together(part, rows, "the sets")
            own_sets = part[used : used + taken]
            _same_ids(own_sets, None if block.ids is None else block.ids[own], rows.source, block.start + done)
            yield Block(block.start + done, block.logits[own], labels), own_sets
            done, used = done + taken, used + taken
        if done < len(block.logits):
            raise LabelsError(f"there must be one set per row; got {block.start + done:,} sets for {len(rows):,} rows.")
    if used < len(part) or next(sets, None) is not None:
        raise LabelsError(f"there must be one set per row; got more than {len(rows):,} sets for as many rows.")


def _same_ids(sets: PredictionSets, ids: Any, source: str, first_row: int) -> None:
    """Refuse sets whose rows are called as other rows of this block are; ids of another kind say nothing."""
    if sets.ids is None or ids is None:
        return
    mine, theirs = sets.ids.astype(str), ids.astype(str)
    moved = np.flatnonzero((mine != theirs) & np.isin(mine, theirs))
    if moved.size:
        row = int(moved[0])
        raise LabelsError(
            f"sets and labels must be of the same rows in the same order; row {first_row + row:,} is "
            f"{str(mine[row])!r} in the sets and {str(theirs[row])!r} in {source}. Order them alike."
        )


def monitor(
    watch: Monitor,
    calibration: Calibration,
    rows: Rows,
    *,
    group: str | None = None,
    groups: ArrayLike | None = None,
    p_values: bool = False,
    progress: Progress | None = None,
) -> None:
    """Update a monitor with labelled rows on disk, in their order; rows that it has already seen are skipped.

    Parameters
    ----------
    group : the name of the monitored group, if the calibration has groups; other rows are skipped
    groups : (n,) groups of the rows, for a calibration by group
    p_values : whether to monitor p-values instead of sets
    progress : called with the number of rows done after each block
    """
    belong_together(calibration, rows, "the calibration")
    classes = ClassAxis.known_to(calibration)
    values = row_wise(rows, groups=groups)
    new = _new_rows(watch, rows, classes)

    def show(block: Block, groups: Any) -> None:
        array, truth = classes.labelled(block.logits, block.labels)
        wanted = _of_group(calibration, array, truth, groups, group)
        wanted &= new[block.start : block.start + len(wanted)]
        known, own = classes.labels(truth[wanted]), None if groups is None else groups[wanted]
        if p_values:
            watch.update_p_values(calibration.p_values(array[wanted], known, groups=own))
        else:
            sets = calibration.predict(array[wanted], watch.coverage, confidence=watch.confidence, groups=own)
            watch.update(sets.contains(known))

    for block, _ in whole(rows, values).each(show):
        if progress is not None:
            progress(len(block.logits))


def _new_rows(watch: Monitor, rows: Rows, classes: ClassAxis) -> Bools:
    """Which rows on disk a monitor was not shown before."""
    hashed = whole(rows, {}).each(lambda block: content_hashes(*classes.labelled(block.logits, block.labels)))
    hashes = [of_block for _, of_block in hashed]
    return watch.rows.new(np.concatenate(hashes)) if hashes else np.empty(0, bool)


def _of_group(calibration: Calibration, logits: Any, labels: Any, groups: Any, group: str | None) -> Bools:
    """Which rows are of the group that is watched; all where there are none."""
    if calibration.groups is None:
        return np.ones(len(logits), bool)
    by = calibration.groups.by
    if isinstance(by, ByClass):
        own: Bools = np.array([name == group for name in calibration.groups.names])
        return own[by.of_labels(calibration.n_classes)[labels]]
    wanted: Bools = calibration.groups_of(logits, groups) == group
    return wanted


# ---------------------------------------------------------------------------------------------------------------
# What is given with rows


def _as_rows(rows: Rows | str | PathLike[str]) -> Rows:
    """Rows, or those of a path."""
    return rows if isinstance(rows, Rows) else open_rows(rows)


def belong_together(known: Calibration | PredictionSets, rows: Rows, what: str) -> None:
    """Refuse rows whose class names differ from those of the calibration, or are in another order.

    Warn of rows that another network made, or of inputs prepared in another way.
    """
    if isinstance(known, Calibration) and rows.made_by is not None:
        warn_of_source(known.source, rows.made_by, rows.source)
    theirs = rows.class_names
    if theirs is None:
        return
    difference = f"they have {known.n_classes} and {len(theirs)}"
    if len(theirs) == known.n_classes:
        mine = ClassAxis.known_to(known).misplaced(theirs)
        if mine is None:
            return
        difference = _first_difference(mine, theirs)
    raise InputError(
        f"{what} and {rows.source} must have the same class names; {difference}. Order the logits' classes as "
        "calibrated."
    )


def names_for(rows: Rows, given: Names | None) -> Names | tuple[str, ...] | None:
    """The class names given, or else the rows' own, none of which may be given to another class."""
    own = rows.class_names
    if given is None or own is None:
        return own if given is None else given
    names = ClassAxis.of(given, len(own)).misplaced(own, renamed=True)
    if names is not None:
        raise InputError(
            f"class_names has the names of {rows.source} in another order: {_first_difference(names, own)}. "
            "Leave them out, or give others."
        )
    return given


def _first_difference(names: tuple[str, ...], others: tuple[str, ...]) -> str:
    k = next(k for k, (name, other) in enumerate(zip(names, others, strict=True)) if name != other)
    return f"class {k} is {names[k]!r} and {others[k]!r}"
