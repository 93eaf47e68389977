"""Out of core: logits on disk to calibrations, sets and evaluations, in blocks of rows under a memory budget.

Rows are read into buffers that are used again; of n rows only their scores (calibration) or counts (evaluation) are
kept, and sets go to their file block by block. Results are those of arrays in memory, bit for bit: a row's score is a
function of that row.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import Calibrator
from evicp.errors import FileError, InputError, InputTypeError, LabelsError, LogitsError
from evicp.evaluation.metrics import Evaluator
from evicp.evaluation.result import Evaluation
from evicp.input import validate
from evicp.input.classes import ClassAxis, ClassNames
from evicp.io.files import (
    LOGITS_SUFFIXES,
    LogitsFile,
    SetsFile,
    StoredLogits,
    open_labels,
    open_logits,
    open_sets,
    parsed,
    reading,
    scan_sets,
    typed,
)
from evicp.io.parquet_rows import ParquetPart, open_parquet
from evicp.io.paths import as_path, format_of, readable
from evicp.io.shards import files_of_logits, refuse_copies
from evicp.io.stored import (
    HeldArray,
    RawArray,
    Stored,
    companion,
    open_npy,
    open_npz,
)
from evicp.method.scores import ScoreLike
from evicp.sets import PredictionSets, SetsSummary
from evicp.types import Coverage

__all__ = ["Block", "Rows", "calibrate", "evaluate", "hold", "open_rows", "predict"]

#: The memory blocks may take where nothing else is said.
DEFAULT_MEMORY = "256MiB"

#: A block takes an eighth of it: two are in memory, one being read, and full sets take six times their logits.
_SHARE = 8

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}

Progress = Callable[[int], Any]
Names = TypeVar("Names", bound=ClassNames)


def as_bytes(memory: int | str) -> int:
    """A memory budget in bytes.

    >>> as_bytes("256MiB"), as_bytes("1.5 GB"), as_bytes(4096)
    (268435456, 1500000000, 4096)
    """
    match = re.fullmatch(r"\s*(\d{1,99}(?:\.\d+)?)\s*([kmg]i?)?b?\s*", str(memory).lower())
    if isinstance(memory, bool) or match is None:
        raise InputError(f"memory must be a size such as 256MiB or 2GB; got {str(memory)[:99]!r}.")
    size = min(int(float(match[1]) * _UNITS[match[2] or ""]), sys.maxsize)
    if size < 1:
        raise InputError(f"memory must be more than nothing; got {memory!r}.")
    return size


# ---------------------------------------------------------------------------------------------------------------
# Rows on disk


class Block(NamedTuple):
    """Some rows: the number of the first, logits and labels. The arrays are valid until the next block is read."""

    start: int
    logits: NDArray[Any]
    labels: NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class ArrayPart:
    """Logits and labels in arrays of their own."""

    logits: Stored
    labels: Stored | None

    @property
    def path(self) -> Path | None:
        """Where the logits are; None of arrays in memory."""
        return getattr(self.logits, "path", None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its logits."""
        return self.logits.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its logits."""
        return self.logits.dtype

    @property
    def has_labels(self) -> bool:
        """Whether its rows have labels."""
        return self.labels is not None

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Logits and labels (or None), `step` rows at a time."""
        if self.labels is None:
            yield from ((logits, None) for logits in self.logits.pieces(step, start, stop))
            return
        n, given = self.shape[0], self.labels.shape
        if not given:
            raise LabelsError("labels must be one-dimensional; got one number alone. Pass one class number per row.")
        if len(given) == 1 and given[0] != n:
            raise LabelsError(f"labels must have one entry per row of logits; got {given[0]} labels for {n} rows.")
        yield from zip(
            self.logits.pieces(step, start, stop), self.labels.pieces(step, start, stop), strict=len(given) == 1
        )

    def whole(self) -> LogitsFile:
        """All logits and labels."""
        return LogitsFile(self.logits.whole(), None if self.labels is None else self.labels.whole())

    def whole_labels(self) -> NDArray[Any] | None:
        """All labels, without the logits; None where there are none."""
        return None if self.labels is None else self.labels.whole()

    def with_labels(self, labels: Stored | None) -> ArrayPart:
        """The same logits with other labels, or none."""
        return dataclasses.replace(self, labels=labels)


#: One file of rows.
Part = ArrayPart | ParquetPart


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of logits in one or more files, with labels where all files have them; iterates over blocks of them.

    Parameters
    ----------
    parts : the files, in order
    source : what to call them in messages
    memory : bytes that blocks may take
    class_names : names that travel with the logits
    """

    parts: tuple[Part, ...]
    source: str
    memory: int = as_bytes(DEFAULT_MEMORY)
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for part in self.parts:
            if not part.shape:
                raise LogitsError(f"{self._name(part)} must hold rows; it holds a single number.")

    def __len__(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def has_labels(self) -> bool:
        """Whether every file has labels."""
        return all(part.has_labels for part in self.parts)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all logits, so that they are scored alike: the widest that any file with rows has."""
        return np.result_type(*{part.dtype for part in self.parts if part.shape[0]} or {self.parts[0].dtype})

    @property
    def step(self) -> int:
        """Rows per block, from the memory budget."""
        values = prod(self.parts[0].shape[1:])
        rows = self.memory // (_SHARE * max(1, values) * max(4, self.parts[0].dtype.itemsize))
        names = max((part.labels.dtype.itemsize for part in self.parts if part.labels is not None), default=0)
        return max(1, min(rows, 2 * self.memory // (_SHARE * max(1, names))))

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def blocks(self, step: int | None = None) -> Iterator[Block]:
        """Blocks of rows, in order: `step` at a time, by default as many as the memory budget allows.

        A block's arrays are valid until the next one is asked for.
        """
        first, dtype = 0, self.dtype
        for part in self.parts:
            done = 0
            for logits, labels in typed(self._name(part), part.pieces(step or self.step)):
                yield Block(first + done, in_one_type(logits, dtype), labels)
                done += len(logits)
            first += part.shape[0]

    @property
    def logits(self) -> NDArray[Any]:
        """All logits in one array; a single npy file stays on disk."""
        wholes = []
        for part in self.parts:
            with reading(self._name(part)):
                wholes.append(part.whole().logits)
        return wholes[0] if len(wholes) == 1 else np.concatenate(wholes, dtype=self.dtype)

    @property
    def labels(self) -> NDArray[Any]:
        """All labels in one array."""
        wholes = []
        for part in self.parts:
            with reading(self._name(part)):
                labels = part.whole_labels()
            if labels is None:
                raise no_labels(self.source)
            wholes.append(labels)
        return np.concatenate(wholes)

    def _name(self, part: Part) -> str:
        """What to call a file where it cannot be read."""
        return str(part.path or self.source)

    def with_labels(self, labels: Stored | None) -> Rows:
        """The same rows with labels from elsewhere, cut as the files are; or without any."""
        if labels is None or len(self.parts) == 1:
            return dataclasses.replace(self, parts=tuple(part.with_labels(labels) for part in self.parts))
        if len(labels.shape) != 1:
            raise LabelsError(f"labels must have one dimension; got shape {labels.shape} for {self.source}.")
        if labels.shape[0] != len(self):
            raise FileError(f"{self.source} has {len(self):,} rows but {labels.shape[0]:,} labels were given.")
        ends = np.cumsum([part.shape[0] for part in self.parts]).tolist()
        cut = labels.part if isinstance(labels, RawArray) else _held_part(labels)
        pieces = [cut(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
        parts = (part.with_labels(piece) for part, piece in zip(self.parts, pieces, strict=True))
        return dataclasses.replace(self, parts=tuple(parts))


def no_labels(source: str) -> FileError:
    """The one sentence a user sees when rows that must have labels have none."""
    return FileError(f"{source} has no labels. Give them in a file of their own.")


def _held_part(labels: Stored) -> Callable[[int, int], Stored]:
    values = labels.whole()
    return lambda start, stop: HeldArray(values[start:stop])


def hold(content: LogitsFile, source: str, memory: int | str = DEFAULT_MEMORY) -> Rows:
    """Rows that are in memory anyway, as rows on disk."""
    return Rows((_held(content),), source, as_bytes(memory))


def _held(content: LogitsFile) -> ArrayPart:
    labels = None if content.labels is None else HeldArray(np.asarray(content.labels))
    return ArrayPart(HeldArray(np.asarray(content.logits)), labels)


def open_rows(
    path: str | PathLike[str],
    labels: str | PathLike[str] | None = None,
    *,
    memory: int | str = DEFAULT_MEMORY,
    more: Mapping[str, Callable[[Path], LogitsFile]] | None = None,
) -> Rows:
    """Rows of logits in a file (npy, npz, safetensors, parquet) or a folder of such files, to be read in blocks.

    Parameters
    ----------
    path : an npy file finds its labels and class names beside it: logits-07.npy and labels-07.npy, or val.npy and
        val.labels.npy. The names of a folder are those of its files, which must agree; files of a folder that hold the
        same rows are refused. Parquet files are held against the checksums of their pages, which pyarrow writes with
        `write_page_checksum=True` only
    labels : an npy file of labels, where the logits' own file has none
    memory : what blocks and what is made of them may take, as bytes or text
    more : readers of further formats by suffix, which return whole arrays
    """
    source, budget = as_path(path), as_bytes(memory)
    readers = more or {}
    found = files_of_logits(source, (*LOGITS_SUFFIXES, *readers)) if source.is_dir() else [source]
    parts = tuple(_open_all(found, readers))
    refuse_copies(found, parts)
    rows = Rows(parts, str(path), budget, _common_names(found))
    return rows if labels is None else rows.with_labels(open_labels(labels))


def _open_one(path: Path, more: Mapping[str, Callable[[Path], LogitsFile]]) -> Part:
    """One file of logits."""
    if format_of(path) in more:
        return _held(more[format_of(path)](path))
    found = open_logits(path, {".parquet": open_parquet})
    if isinstance(found, LogitsFile):
        return _held(found)
    part: Part = ArrayPart(*found) if isinstance(found, StoredLogits) else found
    if format_of(path) == ".npy" and (beside := companion(path, "labels")).is_file():
        part = part.with_labels(open_labels(beside))
    return part


def _open_all(found: Sequence[Path], more: Mapping[str, Callable[[Path], LogitsFile]]) -> Iterator[Part]:
    """Files of logits, all of the same classes."""
    first: tuple[Path, tuple[int, ...]] | None = None
    for file in found:
        part = _open_one(file, more)
        if first is not None and part.shape[1:] != first[1]:
            raise LogitsError(
                f"the files of a folder must have the same classes; {first[0].name} has {first[1]}, "
                f"{file.name} has {part.shape[1:]}."
            )
        first = first or (file, part.shape[1:])
        yield part


def _common_names(found: Sequence[Path]) -> tuple[str, ...] | None:
    """The class names of files; those that have any must have the same."""
    named = [(file, names) for file in found if (names := _names_beside(file)) is not None]
    for file, names in named[1:]:
        if names != named[0][1]:
            raise FileError(
                f"the files of a folder must have the same class names; {named[0][0].name} and {file.name} differ. "
                "Order the classes alike, or keep the files in folders of their own."
            )
    return named[0][1] if named else None


def _names_beside(path: Path) -> tuple[str, ...] | None:
    """Class names that travel with the logits: in an npz file, beside an npy file."""
    if format_of(path) == ".npy" and (beside := companion(path, "class_names")).is_file():
        return _as_names(parsed(beside, {".npy": open_npy}, "class names").whole(), str(beside))
    if format_of(path) == ".safetensors":
        return _names_in_metadata(path)
    if format_of(path) != ".npz":
        return None
    with _names_of(str(path)):
        found = open_npz(path, ("class_names",))[0].get("class_names")
        names = None if found is None else found.whole()
    return None if names is None else _as_names(names, str(path))


def _names_in_metadata(path: Path) -> tuple[str, ...] | None:
    """Class names in a safetensors file, as extraction writes them: a JSON list of strings."""
    from safetensors import safe_open

    with safe_open(readable(path), framework="np") as file:
        text = (file.metadata() or {}).get("class_names")
    try:
        names = None if text is None else json.loads(text)
        if names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            return None if names is None else tuple(names)
        raise ValueError("it is another kind of JSON")
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"class_names in {path} must be a JSON list of strings; they cannot be read ({error})."
        ) from error


def names_in_npz(arrays: Any, source: str) -> tuple[str, ...] | None:
    """Class names among the arrays of an opened npz file."""
    if "class_names" not in arrays.files:
        return None
    with _names_of(source):
        names = arrays["class_names"]
    return _as_names(names, source)


@contextmanager
def _names_of(source: str) -> Iterator[None]:
    """Whatever a parser raises on class names becomes one typed error."""
    try:
        yield
    except Exception as error:
        raise FileError(f"class_names in {source} must be an array of strings; it cannot be read ({error}).") from error


def _as_names(names: NDArray[Any], source: str) -> tuple[str, ...]:
    if names.ndim != 1 or names.dtype.kind != "U":
        raise InputTypeError(f"class_names in {source} must be a one-dimensional array of strings; got {names.dtype}.")
    return tuple(names.tolist())


# ---------------------------------------------------------------------------------------------------------------
# Block by block


@contextmanager
def located(source: str, first_row: int) -> Iterator[None]:
    """Say where a block lies when one of its rows is refused: messages count rows from the block's first."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        if first_row == 0:
            raise
        raise type(error)(f"in the rows of {source} from {first_row:,} on: {error}") from error


def as_rows(rows: Rows | str | PathLike[str]) -> Rows:
    """Rows, or those of a path."""
    return rows if isinstance(rows, Rows) else open_rows(rows)


def in_one_type(logits: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Logits in the type that those of all files have together; never in one that has not all of their values."""
    if logits.dtype == dtype or logits.dtype.kind not in "fiu":
        return logits
    if len(logits) and not np.can_cast(logits.dtype, dtype):
        raise FileError(f"logits of {logits.dtype} do not fit {dtype}, the type of the files' logits when opened.")
    return logits.astype(dtype)


def _of_all_rows(values: Any) -> bool:
    """Whether this is said of all rows at once, and is no array with an entry for each."""
    return values is None or isinstance(values, bool | np.bool_)


def of_rows(values: Any, start: int, stop: int) -> Any:
    """The entries of some rows in an array with one for each row; what is said of all rows stays as it is."""
    return values if _of_all_rows(values) else values[start:stop]


def _slice(values: Any, block: Block) -> Any:
    return of_rows(values, block.start, block.start + len(block.logits))


def row_wise(values: Any, rows: Rows, what: str) -> None:
    """Refuse row-wise values of the wrong length, of which blocks would see only a part."""
    if _of_all_rows(values):
        return
    try:
        given = len(values)
    except TypeError as error:  # of a number, or of what can only be read once
        raise InputTypeError(f"{what} must be an array with one entry per row; got {values!r}.") from error
    if given != len(rows):
        raise InputError(f"{what} must have one entry per row; got {given:,} for {len(rows):,} rows.")


def same_names(known: Calibration | PredictionSets, rows: Rows, what: str) -> None:
    """Refuse rows whose classes are others than were calibrated, or in another order, where both have names."""
    theirs = rows.class_names
    if theirs is None:
        return
    difference = f"they have {known.n_classes} and {len(theirs)}"
    if len(theirs) == known.n_classes:
        mine = known.classes.misplaced(theirs)
        if mine is None:
            return
        k = next(k for k in range(len(mine)) if mine[k] != theirs[k])
        difference = f"class {k} is {mine[k]!r} and {theirs[k]!r}"
    raise InputError(
        f"{what} and {rows.source} must have the same class names; {difference}. Order the logits' classes as "
        "calibrated."
    )


def calibrator_for(
    rows: Rows, score: ScoreLike, by: Any, class_weights: Any, class_names: ClassNames | None
) -> Calibrator:
    """An empty calibrator for labelled rows, with their own class names unless others are given."""
    if not rows.has_labels:
        raise no_labels(rows.source)
    names = names_for(rows, class_names)
    return Calibrator(score, by=by, class_weights=class_weights, class_names=names).called(rows.class_names)


def names_for(rows: Rows, given: Names | None) -> Names | tuple[str, ...] | None:
    """The class names given, or else the rows' own, none of which may be given to another class."""
    own = rows.class_names
    if given is None or own is None:
        return own if given is None else given
    names = ClassAxis.of(given, len(own)).misplaced(own, renamed=True)
    if names is not None:
        k = next(k for k, (name, mine) in enumerate(zip(names, own, strict=True)) if name != mine)
        raise InputError(
            f"class_names has the names of {rows.source} in another order: class {k} is {names[k]!r} and {own[k]!r}. "
            "Leave them out, or give others."
        )
    return given


def calibrate(
    rows: Rows | str | PathLike[str],
    score: ScoreLike = "ecp",
    *,
    by: Any = None,
    groups: Any = None,
    weights: Any = None,
    class_weights: Any = None,
    class_names: ClassNames | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate on labelled rows on disk; of n rows only the scores stay in memory.

    Parameters
    ----------
    rows : from `open_rows`, or a path
    score, by, weights, class_weights, class_names : as for `evicp.calibrate` and `Calibrator`
    groups : (n,) groups of the rows, for by="group"
    progress : called with the number of rows done after each block
    """
    source = as_rows(rows)
    row_wise(groups, source, "groups")
    row_wise(weights, source, "weights")
    calibrator = calibrator_for(source, score, by, class_weights, class_names)
    for block in source:
        with located(source.source, block.start):
            own = {"groups": _slice(groups, block), "weights": _slice(weights, block)}
            calibrator.update(block.logits, block.labels, **own)
        if progress is not None:
            progress(len(block.logits))
    return calibrator.finish()


def predict_blocks(
    calibration: Calibration,
    rows: Rows,
    coverage: Coverage,
    *,
    confidence: float | None = None,
    groups: Any = None,
    weights: Any = None,
    allow_empty: bool = True,
    smoothed: Any = False,
) -> Iterator[tuple[Block, PredictionSets]]:
    """Each block of rows with its sets."""
    validate.as_coverage(coverage)
    same_names(calibration, rows, "the calibration")
    for what, values in (("groups", groups), ("weights", weights), ("smoothed", smoothed)):
        row_wise(values, rows, what)
    for block in rows:
        with located(rows.source, block.start):
            sets = calibration.predict(
                block.logits,
                coverage,
                confidence=confidence,
                groups=_slice(groups, block),
                weights=_slice(weights, block),
                allow_empty=allow_empty,
                smoothed=_slice(smoothed, block),
            )
        yield block, sets


def predict(
    calibration: Calibration,
    rows: Rows | str | PathLike[str],
    coverage: Coverage,
    output: str | PathLike[str],
    *,
    confidence: float | None = None,
    groups: Any = None,
    weights: Any = None,
    allow_empty: bool = True,
    smoothed: Any = False,
    evaluator: Evaluator | None = None,
    progress: Progress | None = None,
    more: Mapping[str, type[SetsFile]] | None = None,
) -> SetsSummary:
    """Write the sets of rows on disk to a file, block by block; it appears whole, or not at all.

    Parameters
    ----------
    rows : from `open_rows`, or a path
    output : a path that ends in .parquet, .npz or .jsonl
    confidence, groups, weights, allow_empty, smoothed : as for `Calibration.predict`
    evaluator : updated on the way, where the rows have labels: one pass over the file does for both
    progress : called with the number of rows done after each block
    more : further formats of sets by suffix
    """
    source = as_rows(rows) if evaluator is not None else as_rows(rows).with_labels(None)
    no_input(source, output)
    how: dict[str, Any] = {"confidence": confidence, "groups": groups, "weights": weights}
    how |= {"allow_empty": allow_empty, "smoothed": smoothed}

    def each() -> Iterator[PredictionSets]:
        for block, sets in predict_blocks(calibration, source, coverage, **how):
            if evaluator is not None:
                _evaluate_block(evaluator, calibration, source, block, sets, groups)
            yield sets

    return write_sets(each(), output, progress, more)


def no_input(rows: Rows, output: str | PathLike[str]) -> None:
    """Refuse to write over rows that are about to be read."""
    target = as_path(output)
    read = [part.path for part in rows.parts if part.path is not None and part.path.exists()]
    if target.exists() and any(path.samefile(target) for path in read):
        raise FileError(f"cannot write {output}: it is an input, or part of one ({rows.source}). Give another name.")


def write_sets(
    parts: Iterator[PredictionSets],
    output: str | PathLike[str],
    progress: Progress | None,
    more: Mapping[str, type[SetsFile]] | None,
) -> SetsSummary:
    """Write sets to a file as they come, and sum them up."""
    with open_sets(output, more) as file:
        for sets in parts:
            file.append(sets)
            if progress is not None:
                progress(len(sets))
    if file.summary is None:  # for the type checker: a file without sets is refused above
        raise InputError("there were no rows.")
    return file.summary


def evaluate(
    sets: Calibration | PredictionSets | str | PathLike[str],
    rows: Rows | str | PathLike[str],
    coverage: Coverage | None = None,
    *,
    groups: Any = None,
    weights: Any = None,
    min_count: int = 1,
    confidence: float = 0.95,
    target_confidence: float | None = None,
    allow_empty: bool = True,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate sets against labelled rows on disk, or those a calibration gives; only counts stay in memory.

    Parameters
    ----------
    sets : sets, a file of sets (parquet, npz), or a calibration to predict them with
    rows : from `open_rows`, or a path; labels alone (one-dimensional) will do for sets
    coverage : for a calibration
    groups : (n,) groups of the rows
    min_count, confidence : as for `evicp.evaluate`
    weights, target_confidence, allow_empty : for a calibration, as `weights`, `confidence` and `allow_empty` of
        `Calibration.predict`
    progress : called with the number of rows done after each block
    """
    source = as_rows(rows)
    row_wise(groups, source, "groups")
    evaluator = Evaluator(min_count=min_count, confidence=confidence)
    if isinstance(sets, Calibration):
        if coverage is None:
            raise InputError("coverage must be given to evaluate what a calibration predicts.")
        pairs = predict_blocks(
            sets,
            source,
            coverage,
            confidence=target_confidence,
            groups=groups if sets.guarantee == "group" else None,
            weights=weights,
            allow_empty=allow_empty,
        )
    elif coverage is not None or weights is not None or target_confidence is not None or not allow_empty:
        raise InputError(
            "coverage, weights, target_confidence and allow_empty are for a calibration; sets were predicted with "
            "their own."
        )
    else:
        pairs = _aligned(source, iter([sets]) if isinstance(sets, PredictionSets) else scan_sets(sets, source.step))
    for block, part in pairs:
        if not isinstance(sets, Calibration):
            same_names(part, source, "the sets")
        _evaluate_block(evaluator, sets, source, block, part, groups)
        if progress is not None:
            progress(len(part))
    return evaluator.finish()


def _evaluate_block(
    evaluator: Evaluator, known: Any, rows: Rows, block: Block, sets: PredictionSets, groups: Any
) -> None:
    """Hold a block's sets against its labels; in the calibration's own groups, where what is known is one with any."""
    with located(rows.source, block.start):
        labels, logits = _truth(rows, block)
        given = _slice(groups, block)
        if isinstance(known, Calibration) and known.has_row_groups:
            given = known.groups_of(block.logits, given)
        evaluator.update(sets, labels, logits, groups=given)


def _truth(rows: Rows, block: Block) -> tuple[Any, Any]:
    """True labels, and the logits unless the file holds labels alone."""
    if block.labels is not None:
        return block.labels, block.logits
    if block.logits.ndim == 1 and block.logits.dtype.kind in "iuU":
        return block.logits, None
    raise no_labels(rows.source)


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
            yield Block(block.start + done, block.logits[own], labels), part[used : used + taken]
            done, used = done + taken, used + taken
        if done < len(block.logits):
            raise LabelsError(f"there must be one set per row; got {block.start + done:,} sets for {len(rows):,} rows.")
    if used < len(part) or next(sets, None) is not None:
        raise LabelsError(f"there must be one set per row; got more than {len(rows):,} sets for as many rows.")
