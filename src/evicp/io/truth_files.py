"""Several true labels per row in files: a matrix of 0 and 1, or a list of labels for each row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from evicp.errors import FileError
from evicp.input.messages import some_of
from evicp.io.arrays import open_npy, open_npz
from evicp.io.arrow import arrow_column
from evicp.io.parquet import parquet_file
from evicp.io.paths import parsed, read_text
from evicp.io.roles import LABELS

#: What true labels are called; the first of these that a file has is read.
_NAMES = ("truth", *LABELS)


def read_truth(path: str | PathLike[str]) -> Any:
    """The true labels of rows: a matrix (npy, npz), or lists of numbers or names (parquet, Arrow, json, jsonl).

    Parameters
    ----------
    path : arrays and columns are named truth, labels, label, targets, ...; jsonl has a list in each line, or an object
        with such a name
    """
    arrow = dict.fromkeys((".arrow", ".feather", ".ipc"), _arrow)
    readers = {".npy": lambda file: open_npy(file).whole(), ".npz": _npz, ".parquet": _parquet, **arrow}
    return parsed(path, {**readers, ".json": _json, ".jsonl": _json_lines}, "truth")


def _chosen(names: Sequence[str]) -> str:
    for name in _NAMES:
        if name in names:
            return name
    raise FileError(f"it has no truth; it holds {some_of(list(names))}. Name the column truth.")


def _npz(path: Path) -> Any:
    found, _ = open_npz(path, lambda names: (_chosen(names),))
    (truth,) = found.values()
    return truth.whole()


def _parquet(path: Path) -> Any:
    with parquet_file(path) as file:
        return file.read([_chosen(file.schema_arrow.names)]).column(0)


def _arrow(path: Path) -> Any:
    return arrow_column(path, _chosen)


def _json(path: Path) -> Any:
    content = json.loads(read_text(path))
    return content[_chosen(list(content))] if isinstance(content, dict) else content


def _json_lines(path: Path) -> Any:
    rows = [json.loads(line) for line in read_text(path).splitlines() if line.strip()]
    return [row[_chosen(list(row))] if isinstance(row, dict) else row for row in rows]
