"""Work on rows in blocks under a memory budget, in this process or in others, with results in the order of the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from evicp.calibration.calibrator import Calibrator
from evicp.errors import InputError, InputTypeError
from evicp.io.rows import Block, FileRows, Rows, located
from evicp.io.stored import MemoryArray, RawArray
from evicp.sets import PredictionSets, with_ids

Result = TypeVar("Result")


@dataclass(frozen=True)
class Task:
    """Consecutive rows, and what is given for them: everything a worker needs.

    Parameters
    ----------
    rows : the rows
    values : by name, an array with an entry for each row, or what is said of all of them
    first : the number of the first row among those of all tasks
    step, dtype : rows per block and type of logits, the same in all tasks
    """

    rows: Rows
    values: Mapping[str, Any]
    first: int
    step: int
    dtype: np.dtype[Any]

    def each(self, work: Callable[..., Result]) -> Iterator[tuple[Block, Result]]:
        """Each block with what some work makes of it and of its rows' values."""
        for block in self.rows.blocks(self.step, self.dtype):
            own = {name: _of_rows(v, block.start, block.start + len(block.logits)) for name, v in self.values.items()}
            with located(self.rows.source, self.first + block.start):
                result = work(block, **own)
            yield block, result

    def calibrate(self, calibrator: Calibrator) -> Iterator[int]:
        """Add the rows to a calibrator; yields the number of rows of each block."""
        for block, _ in self.each(lambda block, **own: calibrator.update(block.logits, block.labels, **own)):
            yield len(block.logits)

    def predict(self, predict: Callable[..., PredictionSets]) -> Iterator[tuple[Block, PredictionSets]]:
        """Each block with its sets; `predict` takes logits and the values."""

        def sets_of(block: Block, **own: Any) -> PredictionSets:
            sets = predict(block.logits, **own)
            # The ids of a block are valid until the next one is read.
            return sets if block.ids is None else with_ids(sets, block.ids.copy())

        return self.each(sets_of)


def for_all_rows(value: Any) -> bool:
    """Whether a value is said of all rows at once, and is no array with an entry for each."""
    return value is None or isinstance(value, bool | np.bool_)


def row_wise(rows: Rows, **values: Any) -> dict[str, Any]:
    """Values by name; those with another length than the rows are refused, of which blocks would see only a part."""
    for name, value in values.items():
        if for_all_rows(value):
            continue
        try:
            given = len(value)
        except TypeError as error:  # of a number, or of what can only be read once
            raise InputTypeError(f"{name} must be an array with one entry per row; got {value!r}.") from error
        if given != len(rows):
            raise InputError(f"{name} must have one entry per row; got {given:,} for {len(rows):,} rows.")
    return values


def _of_rows(value: Any, start: int, stop: int) -> Any:
    return value if for_all_rows(value) else value[start:stop]


def whole(rows: Rows, values: Mapping[str, Any]) -> Task:
    """All rows as one task."""
    return Task(rows, values, 0, rows.step, rows.dtype)


def tasks(rows: Rows, values: Mapping[str, Any], size: int) -> Iterator[Task]:
    """Rows in tasks of `size` rows at most, for other processes; files that have to be unpacked are not divided."""
    first = 0
    for file in rows.files:
        n = file.shape[0]
        step = size if isinstance(file.logits, RawArray | MemoryArray) else max(1, n)
        for start in range(0, max(1, n), step):
            span = start, min(start + step, n)
            labels = None if file.labels is None else file.labels.span(*span).portable()
            own = {name: _of_rows(value, first + span[0], first + span[1]) for name, value in values.items()}
            ids = file.ids.span(*span).portable() if rows.identified and file.ids is not None else None
            some = dataclasses.replace(rows, files=(FileRows(file.logits.span(*span).portable(), labels, ids=ids),))
            yield Task(some, own, first + start, rows.step, rows.dtype)
        first += n


class Executor:
    """Where rows are worked on: in this process, unless a subclass distributes them."""

    def calibrate(self, rows: Rows, values: Mapping[str, Any], calibrator: Calibrator) -> Generator[int]:
        """Add rows to a calibrator; yields how many rows were added, now and then."""
        yield from whole(rows, values).calibrate(calibrator)

    def predict(
        self, rows: Rows, values: Mapping[str, Any], predict: Callable[..., PredictionSets]
    ) -> Generator[PredictionSets]:
        """The sets of rows, some at a time, in order; `predict` takes logits and the values."""
        for _, sets in whole(rows, values).predict(predict):
            yield sets
