"""Files of sets, read without trusting a byte, and written whole or not at all; `read_logits` reads those of logits."""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import EvicpError, FileError, InputError
from evicp.input import columns, validate
from evicp.input.classes import ClassAxis
from evicp.input.lists import repeated_label
from evicp.io.arrays import Stacked, open_npz, write_npz
from evicp.io.artifact import stored_count, strict_json
from evicp.io.atomic import atomic_path
from evicp.io.logits import read_logits
from evicp.io.parquet import parquet_file
from evicp.io.paths import as_path, parsed, typed
from evicp.io.rows import LogitsFile
from evicp.io.set_tables import as_arrow
from evicp.io.stored import Checksum, RawArray
from evicp.sets import PredictionSets, SetsSummary, about_of, join_sets, with_ids
from evicp.types import I64

__all__ = ["LogitsFile", "open_sets", "read_logits", "read_sets", "scan_sets", "write_sets"]


def write_sets(sets: PredictionSets, path: str | PathLike[str]) -> None:
    """Write sets to parquet, npz or JSON lines, as the suffix says, atomically."""
    with open_sets(path) as file:
        file.append(sets)


class SetsFile(ABC):
    """A file of sets that grows block by block.

    Parameters
    ----------
    path : where it is written
    file : what is written until the end, at the path or for the time being
    """

    def __init__(self, path: Path, file: IO[Any]) -> None:
        self._path, self._file = path, file

    @abstractmethod
    def append(self, sets: PredictionSets, first_row: int) -> None:
        """Write the sets of the next rows."""

    def finish(self) -> None:
        """Write what comes last."""
        self._file.flush()

    def close(self) -> None:
        """Let go of everything; called in any case, once."""
        with suppress(OSError):  # said already, where it matters
            self._file.close()


#: What makes one, at a path.
SetsFormat = Callable[[Path], SetsFile]


class SetsWriter:
    """Sets on their way to a file: rows so far, and what the sets are like."""

    def __init__(self, file: SetsFile) -> None:
        self._file, self._identified = file, False
        self.summary: SetsSummary | None = None

    def append(self, sets: PredictionSets) -> None:
        """Write the sets of the next rows."""
        if self.summary is not None and self.summary.about != about_of(sets):
            raise InputError("sets of one file must come from one calibration and one coverage; these do not.")
        if self.summary is not None and self._identified != (sets.ids is not None):
            raise InputError("sets of one file must all have ids, or none of them; these differ.")
        self._identified = sets.ids is not None
        self._file.append(sets, 0 if self.summary is None else self.summary.rows)
        self.summary = SetsSummary.of(sets, self.summary)


@contextmanager
def open_sets(path: str | PathLike[str], more: Mapping[str, SetsFormat] | None = None) -> Iterator[SetsWriter]:
    """A file of sets to be written block by block, that appears when the block of code ends well, and not before.

    Parameters
    ----------
    path : ends in .parquet, .npz or .jsonl
    more : further formats by suffix
    """
    target = as_path(path)
    kinds = {**SETS, **(more or {})}
    if target.suffix not in kinds:
        raise FileError(f"cannot write {target}: unknown suffix {target.suffix!r}; known are {', '.join(kinds)}.")
    with atomic_path(target) as temporary:
        file = kinds[target.suffix](temporary)
        try:
            writer = SetsWriter(file)
            yield writer
            if writer.summary is None:
                raise InputError("no sets were given to write.")
            file.finish()
        finally:
            file.close()


def _about(sets: PredictionSets) -> dict[str, Any]:
    """What sets remember in addition to labels, ready for JSON."""
    about = {**asdict(about_of(sets)), "coverage": str(sets.coverage)}
    return {name: value for name, value in about.items() if name not in ("columns", "numbered") or value}


class _ParquetSets(SetsFile):
    """Parquet: one row group per block."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, path.open("wb"))  # not by name: Arrow's own errors are of another kind
        self._writer: Any = None

    def append(self, sets: PredictionSets, first_row: int) -> None:
        table = as_arrow(sets, first_row)
        import pyarrow.parquet as pq

        if self._writer is None:
            about = {"evicp": json.dumps(_about(sets))}
            schema = table.schema.with_metadata(about)
            self._writer = pq.ParquetWriter(self._file, schema, write_page_checksum=True)
        self._writer.write_table(table.cast(self._writer.schema))

    def finish(self) -> None:
        self._writer.close()

    def close(self) -> None:
        with suppress(OSError):
            if self._writer is not None and self._writer.is_open:
                self._writer.close()
        super().close()


class _NpzSets(SetsFile):
    """npz: its arrays, labels and sizes, wait in nameless files next to it until their lengths are known."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, tempfile.TemporaryFile(dir=path.parent))  # noqa: SIM115 - closed by close()
        self._sizes = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115 - closed by close()
        self._ids = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115 - closed by close()
        self._id_types: list[tuple[int, np.dtype[Any]]] = []
        self._about: dict[str, Any] = {}

    def append(self, sets: PredictionSets, first_row: int) -> None:  # noqa: ARG002
        self._about = _about(sets)
        if sets.ids is not None:
            self._id_types.append((len(sets), sets.ids.dtype))
            self._ids.write(sets.ids.tobytes())
        self._sizes.write(sets.sizes.data)
        self._file.write(np.ascontiguousarray(sets.labels).data)

    def finish(self) -> None:
        n_sizes, n_labels = self._sizes.tell() // 8, self._file.tell() // 4
        labels = Stacked((n_labels,), np.dtype(np.int32), lambda: _spooled(self._file, np.int32))
        offsets = Stacked((n_sizes + 1,), np.dtype(np.int64), self._offsets)
        arrays: dict[str, Any] = {"offsets": offsets, "labels": labels, "about": np.array(json.dumps(self._about))}
        if self._id_types:
            widest = np.result_type(*(dtype for _, dtype in self._id_types))
            arrays["ids"] = Stacked((n_sizes,), widest, self._read_ids)
        write_npz(self._path, arrays)

    def _read_ids(self) -> Iterator[NDArray[Any]]:
        """Ids, block by block, each of its own width."""
        self._ids.seek(0)
        for n, dtype in self._id_types:
            yield np.frombuffer(self._ids.read(n * dtype.itemsize), dtype)

    def _offsets(self) -> Iterator[I64]:
        """Sizes added up, block by block."""
        end = np.zeros(1, np.int64)
        yield end
        for sizes in _spooled(self._sizes, np.int64):
            ends = end[-1:] + np.cumsum(sizes)
            yield ends
            end = ends

    def close(self) -> None:
        super().close()
        for file in (self._sizes, self._ids):
            with suppress(OSError):
                file.close()


def _spooled(file: Any, dtype: Any, values: int = 1 << 18) -> Iterator[NDArray[Any]]:
    """What was written to a temporary file, in pieces."""
    file.seek(0)
    while data := file.read(values * np.dtype(dtype).itemsize):
        yield np.frombuffer(data, dtype)


class _JsonLines(SetsFile):
    """JSON lines: one object per row."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, path.open("w", encoding="utf-8"))

    def append(self, sets: PredictionSets, first_row: int) -> None:
        write_set_lines(self._file, sets, first_row)


#: Files of sets, by suffix.
SETS: Mapping[str, SetsFormat] = MappingProxyType({".parquet": _ParquetSets, ".npz": _NpzSets, ".jsonl": _JsonLines})


def set_lines(sets: PredictionSets, first_row: int = 0) -> Iterator[dict[str, Any]]:
    """Each set as a JSON object."""
    named = sets.class_names is not None
    names = sets.to_lists(names=True) if named else []
    ids = None if sets.ids is None else sets.ids.tolist()
    for row, labels in enumerate(sets.to_lists()):
        line: dict[str, Any] = {"row": first_row + row, **({} if ids is None else {"id": ids[row]})}
        line |= {"labels": labels, "size": len(labels)}
        yield {**line, "names": names[row]} if named else line


def write_set_lines(file: IO[str], sets: PredictionSets, first_row: int) -> None:
    """`set_lines` as JSON lines."""
    for line in set_lines(sets, first_row):
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read_sets(path: str | PathLike[str]) -> PredictionSets:
    """Read sets from parquet or npz (other formats do not contain the guarantee of the sets)."""
    return join_sets(list(scan_sets(path)))


def scan_sets(path: str | PathLike[str], step: int = 1 << 16) -> Iterator[PredictionSets]:
    """Sets written to parquet or npz, about `step` rows at a time."""
    readers = {".parquet": partial(_scan_parquet, step=step), ".npz": partial(_scan_npz, step=step)}
    about, pieces = parsed(path, readers, "sets")
    content: dict[str, Any] = {}
    rows, most = 0, max(_MOST_CLASSES, as_path(path).stat().st_size)
    for offsets, labels, ids in typed(str(path), pieces):
        try:
            content = content or strict_json(about)
            if validate.as_n_classes(content["n_classes"]) > most:
                raise InputError(f"it states {content['n_classes']:,} classes; a file of its size has at most {most:,}")
            sets = _rebuild_sets(content, offsets, labels, rows)
            yield sets if ids is None else with_ids(sets, validate.as_ids(ids.tolist(), len(sets)))
            rows += len(offsets) - 1
        except (EvicpError, KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise FileError(f"cannot read {path}: it does not contain sets written by evicp ({error}).") from error


#: Evaluating sets counts by class, which takes 60 bytes each: a small file must not claim more than these.
_MOST_CLASSES = 1 << 24


def _scan_parquet(path: Path, step: int) -> tuple[str, Iterator[Any]]:
    with parquet_file(path) as file:
        _refuse_logits(file.schema_arrow.names)
        about = file.schema_arrow.metadata[b"evicp"].decode()
        wanted = ["labels", *(["id"] if "id" in file.schema_arrow.names else [])]

    def pieces() -> Iterator[Any]:
        with parquet_file(path, streamed=True) as file:
            left = file.metadata.num_rows
            if not left:
                yield np.zeros(1, np.int64), np.empty(0, np.int32), None
            for batch in file.iter_batches(step, columns=wanted, use_threads=False):
                first_row, left = file.metadata.num_rows - left, left - len(batch)
                ids = columns.values(batch.column("id"), "id", first_row) if "id" in wanted else None
                yield *columns.lists(batch.column("labels"), "labels", first_row), ids
        if left:
            raise FileError("it does not contain the stated number of sets.")

    return about, pieces()


def _scan_npz(path: Path, step: int) -> tuple[str, Iterator[Any]]:
    arrays, names = open_npz(path, ("about", "offsets", "labels", "ids"))
    _refuse_logits(names)
    about, offsets, labels = (arrays[name] for name in ("about", "offsets", "labels"))
    ids = arrays.get("ids")
    if not isinstance(offsets, RawArray) or not isinstance(labels, RawArray) or not _fit(offsets, labels):
        return str(about.whole()), iter([(offsets.whole(), labels.whole(), ids and ids.whole())])

    def pieces() -> Iterator[Any]:
        n = offsets.shape[0] - 1
        sums = Checksum(offsets), Checksum(labels)
        for start in range(0, max(1, n), step):
            ends = offsets.read(start, min(start + step, n) + 1)
            own = labels.read(int(ends[0]), int(ends[-1]))
            sums[0].add(ends[min(start, 1) :])  # the first one was the last one of the piece before
            sums[1].add(own)
            called = None if ids is None else ids.span(start, min(start + step, n)).whole()
            yield (ends - ends[0]).astype(np.int64), own, called
        for each in sums:
            each.compare()

    return str(about.whole()), pieces()


def _refuse_logits(names: Sequence[str]) -> None:
    """Raise where a file of logits was given for sets."""
    if "logits" in names:
        raise FileError("it contains logits, not sets. Give sets, or the calibration to predict them with.")


def _fit(offsets: RawArray, labels: RawArray) -> bool:
    """Whether offsets begin and end where the labels do, so that pieces of either can be read."""
    if offsets.dtype.kind not in "iu" or len(offsets.shape) != 1 or not offsets.shape[0] or len(labels.shape) != 1:
        return False
    first, last = (int(offsets.read(row, row + 1)[0]) for row in (0, offsets.shape[0] - 1))
    return first == 0 and last == labels.shape[0]


def _rebuild_sets(about: dict[str, Any], offsets: NDArray[Any], labels: NDArray[Any], first_row: int) -> PredictionSets:
    """Sets from a file's parts, each of which is checked."""
    classes = ClassAxis.stored(about)
    n_classes, n_calibration, confidence = classes.n_classes, about["n_calibration"], about["confidence"]
    if offsets.ndim != 1 or labels.ndim != 1 or offsets.dtype.kind not in "iu" or labels.dtype.kind not in "iu":
        raise InputError("offsets and labels are not whole numbers")
    if not len(offsets) or offsets[0] or offsets[-1] != len(labels) or np.any(offsets[1:] < offsets[:-1]):
        raise InputError("offsets and labels do not match")
    if np.any((labels < 0) | (labels >= n_classes)):
        raise InputError(f"labels are not in [0, {n_classes})")
    offsets = offsets.astype(np.int64, copy=False)
    if np.any(np.diff(offsets) > n_classes):
        raise InputError(f"a set has more labels than there are classes, {n_classes}")
    again = repeated_label(offsets, labels, n_classes)
    if again is not None:
        raise InputError(f"label {again[1]} is twice in the set of row {first_row + again[0]:,}")
    kinds = {"score": str, "filled": bool, "coverage": str, "guarantee": str, "smoothed": bool, "tied": bool}
    about = {"smoothed": False, "tied": False, **about}  # what was written before sets remembered these
    if not all(isinstance(about[name], kind) for name, kind in kinds.items()) or len(about["coverage"]) > 100:
        raise InputError("its description is malformed")
    numerator, denominator = about["coverage"].split("/")
    return PredictionSets(
        offsets,
        labels.astype(np.int32, copy=False),
        n_classes=n_classes,
        coverage=validate.as_coverage(Fraction(int(numerator), int(denominator))),
        score=about["score"],
        n_calibration=None if n_calibration is None else stored_count(n_calibration, "n_calibration"),
        filled=about["filled"],
        class_names=classes.names,
        confidence=None if confidence is None else validate.as_probability(confidence, "confidence"),
        guarantee=about["guarantee"],
        smoothed=about["smoothed"],
        tied=about["tied"],
        columns=classes.columns,
        numbered=classes.numbered,
    )
