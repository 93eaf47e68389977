"""Rows of logits in Arrow files (IPC: .arrow, .feather; what Hugging Face data sets are made of) and in csv files."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evicp.errors import FileError, need
from evicp.input.messages import some_of
from evicp.io.paths import format_of, open_file, read_text
from evicp.io.roles import Wanted, roles_of
from evicp.io.rows import FileRows
from evicp.io.stored import stamp_of
from evicp.io.table_columns import held, opened_columns

#: How a file of Arrow's begins that is not a stream, as those of Hugging Face are.
_MAGIC = b"ARROW1"


@contextmanager
def _reader(path: Path, names: tuple[str, ...] | None = None) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The schema of an Arrow file, and its batches of rows, with some columns only."""
    ipc = need("pyarrow.ipc", "pyarrow", "parquet", "an Arrow file")
    with open_file(path, 0) as file:
        is_file = file.read(len(_MAGIC)) == _MAGIC
        open_ipc = ipc.open_file if is_file else ipc.open_stream
        how = ipc.IpcReadOptions(use_threads=False)
        if names is not None:
            file.seek(0)
            everything = open_ipc(file).schema.names
            how.included_fields = [everything.index(name) for name in names]
        file.seek(0)
        with open_ipc(file, options=how) as reader:
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            yield reader.schema, iter(batches)


def _batches(path: Path, names: tuple[str, ...], step: int) -> Generator[Any]:
    """Columns, a batch of the file in memory at a time."""
    with _reader(path, names) as (_, batches):
        for batch in batches:
            batch.validate(full=True)
            yield from (batch.slice(start, step) for start in range(0, len(batch), step))


def arrow_column(path: Path, chosen: Callable[[list[str]], str]) -> Any:
    """One column of an Arrow file, chosen by the names of all; whole."""
    pa = need("pyarrow", "pyarrow", "parquet", "an Arrow file")
    with _reader(path) as (schema, _):
        name = chosen(schema.names)
    batches = list(_batches(path, (name,), 1 << 30))
    return pa.chunked_array([batch.column(0) for batch in batches], type=schema.field(name).type)


def open_arrow(path: Path, wanted: Wanted) -> FileRows:
    """The rows of an Arrow file, to be read in pieces. Nothing says how many there are: labels are read for that."""
    with open_file(path) as raw:
        stamp = stamp_of(raw)
    with _reader(path) as (schema, _):
        roles = roles_of(schema.names, wanted, table=True)
    n = sum(map(len, _batches(path, roles.all[-1:], 1 << 30)))
    if not n:
        with _reader(path) as (schema, _):
            return held(schema.empty_table(), roles)
    return opened_columns(path, roles, n, stamp, _batches, schema)


def read_csv(path: Path, wanted: Wanted) -> FileRows:
    """The rows of a csv or tsv file, whose first line names its columns: one for each class, and one of labels."""
    csv = need("pyarrow.csv", "pyarrow", "parquet", "a csv file")
    delimiter = "\t" if format_of(path) == ".tsv" else ","
    with open_file(path) as file:
        table = csv.read_csv(file, parse_options=csv.ParseOptions(delimiter=delimiter))
    return held(table, roles_of(table.column_names, wanted, table=True))


# ---------------------------------------------------------------------------------------------------------------
# Folders that Hugging Face data sets are saved to


def saved_files(folder: Path) -> list[Path] | None:
    """The files of a data set that `save_to_disk` has written, in their order; None of any other folder."""
    if (folder / "dataset_dict.json").is_file():
        splits = [f"{folder / name}" for name in sorted(entry.name for entry in folder.iterdir() if entry.is_dir())]
        raise FileError(
            f"{folder} contains splits of a data set. Give one of them: {some_of(splits) or 'it has none'}."
        )
    if not (folder / "state.json").is_file():
        return None
    state = _json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise FileError(
            f"{folder} contains a selection of rows. Call flatten_indices() on the data set, and save it again."
        )
    entries = state.get("_data_files") or ()
    names: list[Any] = [entry.get("filename") for entry in entries if isinstance(entry, dict)]
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise FileError(f"{folder / 'state.json'} names no files of rows. Save the data set again.")
    return [folder / name for name in names]


def saved_class_names(folder: Path, column: str | None, n_classes: int) -> tuple[str, ...] | None:
    """The names of a column of class labels, as the data set that was saved knows them; None if not of all classes."""
    if column is None or not (folder / "dataset_info.json").is_file():
        return None
    features = _json(folder / "dataset_info.json").get("features")
    feature = features.get(column) if isinstance(features, dict) else None
    names: Any = feature.get("names") if isinstance(feature, dict) else None
    named = isinstance(names, list) and len(names) == n_classes and all(isinstance(name, str) for name in names)
    return tuple(names) if named else None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise FileError(f"cannot read {path}: it is not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise FileError(f"cannot read {path}: it must contain a JSON object.")
    return content
