"""Files and folders of logits, opened as rows: which files belong to a folder, in which order, none of them twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise, zip_longest
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.source import RowSource, joined
from evicp.errors import EvicpError, FileError, InputTypeError, LogitsError
from evicp.io.arrays import companion, companions, open_npy, open_npz, open_safetensors, safetensors_metadata
from evicp.io.arrow import open_arrow, read_csv, saved_class_names, saved_files
from evicp.io.parquet import open_columns, read_columns
from evicp.io.paths import as_path, format_of, natural_key, parsed
from evicp.io.roles import Choice, Wanted, roles_of
from evicp.io.rows import DEFAULT_MEMORY, FileRows, LogitsFile, Rows, as_bytes, as_ids, in_memory
from evicp.io.stored import MemoryArray, StoredArray

#: So many rows of a file tell it from nearly any other, and so many numbers are compared at a time where they do not.
_HEAD, _AT_ONCE = 4, 1 << 20


def _rows_in(opener: Callable[..., Any], path: Path, wanted: Wanted) -> FileRows:
    """Logits and labels, if any, among the arrays of a file."""
    choice = Choice(wanted)
    found, names = opener(path, choice)
    roles = choice.roles
    logits, labels = found[roles.logits[0]], None if roles.labels is None else found[roles.labels]
    ids = None if roles.ids is None else _ids(lambda: opener(path, (roles.ids,))[0][roles.ids], logits)
    return FileRows(logits, labels, names=tuple(names), ids=ids)


def _ids(opened: Callable[[], StoredArray], logits: StoredArray) -> StoredArray | None:
    """What rows are called, where an array of such a name holds that; anything else in it is of no concern."""
    with suppress(Exception):
        return as_ids(opened(), logits)
    return None


def _rows_of_npy(path: Path, wanted: Wanted) -> FileRows:
    if wanted.logits is not None:
        raise FileError("it contains one array without a name. Leave out logits_column (--logits-column).")
    return FileRows(open_npy(path), None)


#: What opens a file of logits as rows, by suffix. Whatever has one of these is also read as a shard of a folder.
_SHARDS: Mapping[str, Callable[[Path, Wanted], FileRows]] = MappingProxyType(
    {
        ".npz": partial(_rows_in, open_npz),
        ".npy": _rows_of_npy,
        ".safetensors": partial(_rows_in, open_safetensors),
        ".parquet": open_columns,
        **dict.fromkeys((".arrow", ".feather", ".ipc"), open_arrow),
    }
)

_FORMATS = MappingProxyType({**_SHARDS, ".csv": read_csv, ".tsv": read_csv})

#: All files of logits, and those that are read as shards of a folder.
LOGITS_SUFFIXES, SHARD_SUFFIXES = tuple(_FORMATS), tuple(_SHARDS)


def read_logits(
    path: str | PathLike[str],
    labels: str | PathLike[str] | None = None,
    *,
    logits_column: str | None = None,
    labels_column: str | None = None,
) -> LogitsFile:
    """Read logits (and labels) from npz, npy (labels in a second file), safetensors, parquet, Arrow, csv or tsv.

    npz and safetensors hold arrays `logits` and `labels`; tables hold a column `logits` of lists of one length, or a
    column for each class (`logit_0`, `logit_1`, ...), and a column `labels`, without nulls. Other usual names (`label`,
    `targets`, `preds`, `arr_0`, ...) are recognised; `logits_column` and `labels_column` set any other name, or, with a
    `*`, the columns of a wide table. A damaged npz file is refused, and so is a parquet file if its pages have
    checksums (pyarrow writes them with `write_page_checksum=True`); other formats have none.
    """
    wanted = Wanted(logits_column, labels_column)

    def read(file: Path) -> LogitsFile:
        return {**_FORMATS, ".parquet": read_columns}[format_of(file)](file, wanted).whole()

    result: LogitsFile = parsed(path, dict.fromkeys(LOGITS_SUFFIXES, read), "logits")
    return result if labels is None else LogitsFile(result.logits, open_labels(labels).whole())


def open_labels(path: str | PathLike[str], what: str = "labels") -> StoredArray:
    """The labels in an npy file, to be read in pieces."""
    array: StoredArray = parsed(path, {".npy": open_npy}, what)
    return array


def open_rows(
    path: str | PathLike[str],
    labels: str | PathLike[str] | None = None,
    *,
    logits_column: str | None = None,
    labels_column: str | None = None,
    memory: int | str = DEFAULT_MEMORY,
    more: Mapping[str, Callable[[Path, Wanted], LogitsFile]] | None = None,
) -> Rows:
    """Rows of logits in a file, a folder of files or a Hugging Face data set saved to disk, to be read in blocks.

    Files are npy, npz, safetensors, parquet, Arrow (.arrow, .feather, .ipc), and, alone, csv and tsv.

    Parameters
    ----------
    path : an npy file finds its labels and class names next to it: logits-07.npy and labels-07.npy, or val.npy and
        val.labels.npy. The names of a folder are those of its files, which must agree; files of a folder that hold the
        same rows are refused. Parquet files are compared with the checksums of their pages, which pyarrow writes with
        `write_page_checksum=True` only
    labels : an npy file of labels, if the logits file has none
    logits_column, labels_column : the arrays or columns to read, if not those with usual names (`logits`, `preds`,
        `labels`, `label`, `targets`, ...); in tables, a name with a `*` stands for a column for each class
    memory : the memory for blocks and their results, as bytes or text
    more : readers of additional formats by suffix, which return whole arrays
    """
    source, budget, wanted = as_path(path), as_bytes(memory), Wanted(logits_column, labels_column)
    readers = more or {}
    saved = saved_files(source) if source.is_dir() else None
    found = saved or (_files_of_logits(source, (*SHARD_SUFFIXES, *readers)) if source.is_dir() else [source])
    files = tuple(_open_all(found, readers, wanted))
    if len(files) > 1:
        _refuse_copies(found, files)
    names = _common_names(found, files)
    if saved and names is None:
        names = saved_class_names(source, roles_of(files[0].names, wanted, table=True).labels, files[0].shape[-1])
    sources = [_source_of(file, own) for file, own in zip(found, files, strict=True)]
    rows = Rows(files, str(path), budget, names, joined(sources) if any(sources) else None)
    return rows if labels is None else rows.with_labels(open_labels(labels))


def _open_one(path: Path, more: Mapping[str, Callable[[Path, Wanted], LogitsFile]], wanted: Wanted) -> FileRows:
    """One file of logits."""
    suffix = format_of(path)
    if suffix in more:
        return in_memory(more[suffix](path, wanted))

    def read(file: Path) -> FileRows:
        return _FORMATS[suffix](file, wanted)

    rows: FileRows = parsed(path, dict.fromkeys((*_FORMATS, *more), read), "logits")
    if suffix == ".npy" and (beside := companion(path, "labels")).is_file():
        rows = replace(rows, labels=open_labels(beside))
    if suffix == ".npy" and (beside := companion(path, "inputs")).is_file():
        rows = replace(rows, ids=_ids(lambda: open_labels(beside, "inputs"), rows.logits))
    if suffix == ".safetensors":
        rows = replace(rows, ids=_ids_in_metadata(path, rows) or rows.ids)
    return rows


def _ids_in_metadata(path: Path, rows: FileRows) -> StoredArray | None:
    """What rows are called in a safetensors file, as extraction writes it: a JSON list of strings."""
    text = safetensors_metadata(path).get("inputs")
    with suppress(ValueError, RecursionError):  # some other metadata of that name
        names = [] if text is None else json.loads(text)
        if names and isinstance(names, list) and all(isinstance(name, str) for name in names):
            return as_ids(MemoryArray.of(np.array(names)), rows.logits)
    return None


def _open_all(
    found: Sequence[Path], more: Mapping[str, Callable[[Path, Wanted], LogitsFile]], wanted: Wanted
) -> Iterator[FileRows]:
    """Files of logits, all of the same classes."""
    first: tuple[Path, tuple[int, ...]] | None = None
    for file in found:
        rows = _open_one(file, more, wanted)
        shape = rows.shape[1:]
        if first is not None and shape != first[1]:
            raise LogitsError(
                f"the files of a folder must have the same classes; {first[0].name} has {first[1]}, "
                f"{file.name} has {shape}."
            )
        first = first or (file, shape)
        yield rows


# ---------------------------------------------------------------------------------------------------------------
# Folders


def _files_of_logits(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files with these suffixes in a folder, in the order of the numbers in their names."""
    found = [f for f in folder.iterdir() if format_of(f) in suffixes and not f.name.startswith(".")]
    beside = {file for f in found for file in companions(f).values()}
    found = [f for f in found if f not in beside and not _holds_labels(f)]
    if not found:
        raise FileError(f"{folder} contains no file of logits; known formats are {', '.join(suffixes)}.")
    for one, other in pairwise(sorted(found, key=lambda f: f.stem)):
        if one.stem == other.stem:
            raise FileError(
                f"{folder} contains {one.name} and {other.name}: rows in two formats would count twice. Keep one of "
                "them; if their rows differ, give them different names."
            )
    return sorted(found, key=lambda f: (natural_key(f.name), f.name))


def _holds_labels(file: Path) -> bool:
    """Whether a file is one of labels by its name, also where their logits are not there."""
    return format_of(file) == ".npy" and "labels" in file.name and "logits" not in file.name


def _refuse_copies(found: Sequence[Path], shards: Sequence[FileRows]) -> None:
    """Refuse files that hold the same rows: a copy, a link, or the same in another format, under another name.

    Files of one shape are told apart by their first rows; those that have these in common are compared as a whole.
    """
    seen: dict[Any, list[int]] = {}
    shapes = Counter(shard.shape for shard in shards)
    for number, shard in enumerate(shards):
        if len(shard.shape) != 2 or not shard.shape[0] or shapes[shard.shape] == 1:
            continue
        same_start = seen.setdefault((shard.shape, _head(shard)), [])
        for other in same_start:
            if _same_rows(shard, shards[other]):
                raise FileError(
                    f"{found[other].name} and {found[number].name} in {found[number].parent} contain the same rows, "
                    "which would count twice. Remove one of them, or put rows that are equal by chance into one file."
                )
        same_start.append(number)


def _head(shard: FileRows) -> bytes | None:
    """The first logits of a file, to compare; None where they cannot be read, which is said when they are used."""
    with suppress(Exception):
        return b"".join(_numbers(logits).tobytes() for logits, _ in shard.pieces(_HEAD, 0, min(_HEAD, shard.shape[0])))
    return None


def _same_rows(one: FileRows, other: FileRows) -> bool:
    """Whether two files of one shape have equal logits, and equal labels where both have any."""
    step = max(1, _AT_ONCE // max(1, one.shape[1]))
    with suppress(Exception):  # what cannot be read is said when it is used
        for (logits, labels), (others, other_labels) in zip_longest(one.pieces(step), other.pieces(step)):
            if not np.array_equal(_numbers(logits), _numbers(others)):
                return False
            if labels is not None and other_labels is not None and not np.array_equal(labels, other_labels):
                return False
        return True
    return False


def _numbers(logits: NDArray[Any]) -> NDArray[Any]:
    """Logits in the widest type, so that files of different types can hold the same."""
    return np.ascontiguousarray(logits, np.float64) if logits.dtype.kind in "fiu" else logits


# ---------------------------------------------------------------------------------------------------------------
# Where rows come from


def _source_of(path: Path, rows: FileRows) -> RowSource | None:
    """What a file that `evicp extract` has written says of its network and data; None of others."""
    try:
        pairs = _pairs_beside(path, rows)
        if pairs is None:
            return None
        file = {"file": path.name} if path.name.isprintable() else {}
        return RowSource.from_dict({**dict(pairs), **file})
    except EvicpError as error:
        raise FileError(f"cannot read where the rows of {path} come from: {error}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise FileError(f"source in {path} must be pairs of text; it cannot be read ({error}).") from error


def _pairs_beside(path: Path, rows: FileRows) -> Any:
    """Names and values, in an array of an npz file, in an npy file beside logits, or as JSON in safetensors."""
    suffix = format_of(path)
    if suffix == ".npy" and (beside := companion(path, "source")).is_file():
        return open_npy(beside).whole().tolist()
    if suffix == ".npz" and "source" in rows.names:
        return open_npz(path, ("source",))[0]["source"].whole().tolist()
    text = safetensors_metadata(path).get("source") if suffix == ".safetensors" else None
    return None if text is None else json.loads(text)


# ---------------------------------------------------------------------------------------------------------------
# Class names


def _common_names(found: Sequence[Path], files: Sequence[FileRows]) -> tuple[str, ...] | None:
    """The class names of files; those that have any must have the same."""
    own = ((file, rows.class_names or _names_beside(file, rows)) for file, rows in zip(found, files, strict=True))
    named = [(file, names) for file, names in own if names is not None]
    for file, names in named[1:]:
        if names != named[0][1]:
            raise FileError(
                f"the files of a folder must have the same class names; {named[0][0].name} and {file.name} differ. "
                "Use the same order of classes, or put the files into separate folders."
            )
    return named[0][1] if named else None


def _names_beside(path: Path, rows: FileRows) -> tuple[str, ...] | None:
    """Class names that travel with the logits: in an npz file, next to an npy file."""
    suffix = format_of(path)
    if suffix == ".npy" and (beside := companion(path, "class_names")).is_file():
        return _as_names(open_labels(beside, "class names").whole(), str(beside))
    if suffix == ".safetensors":
        return _names_in_metadata(path)
    if suffix != ".npz" or "class_names" not in rows.names:
        return None
    with _names_of(str(path)):
        names = open_npz(path, ("class_names",))[0]["class_names"].whole()
    return _as_names(names, str(path))


def _names_in_metadata(path: Path) -> tuple[str, ...] | None:
    """Class names in a safetensors file, as extraction writes them: a JSON list of strings."""
    text = safetensors_metadata(path).get("class_names")
    try:
        names = None if text is None else json.loads(text)
        if names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            return None if names is None else tuple(names)
        raise ValueError("it is a different kind of JSON")
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
