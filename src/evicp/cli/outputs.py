"""What commands write: sets and results, in the format the file's suffix says."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from evicp.cli.common import STREAM, plain
from evicp.files import atomic_path, write_sets
from evicp.sets import PredictionSets

__all__ = ["SET_SUFFIXES", "csv_text", "join_sets", "json_text", "save_sets", "set_lines", "write_text"]

#: The formats of prediction sets.
SET_SUFFIXES = (".parquet", ".npz", ".jsonl", ".json", ".csv")


def json_text(value: Any) -> str:
    """A JSON document, as `--json` prints it."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def csv_text(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A CSV document with a header line."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def join_sets(parts: Sequence[PredictionSets]) -> PredictionSets:
    """The sets of consecutive blocks of rows as one."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.concatenate([part.sizes for part in parts])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return replace(parts[0], offsets=offsets, labels=np.concatenate([part.labels for part in parts]))


def set_lines(sets: PredictionSets, first_row: int = 0) -> Iterator[dict[str, Any]]:
    """Each set as a JSON object."""
    for row, labels in enumerate(sets):
        line: dict[str, Any] = {"row": first_row + row, "labels": labels.tolist(), "size": len(labels)}
        if sets.class_names is not None:
            line["names"] = sets.names(row)
        yield line


def print_set_lines(sets: PredictionSets, first_row: int, file: TextIO | None = None) -> None:
    """JSON lines to standard output, block by block."""
    out = file or sys.stdout
    for line in set_lines(sets, first_row):
        out.write(json.dumps(line, ensure_ascii=False) + "\n")


def save_sets(sets: PredictionSets, path: Path) -> None:
    """Write sets as the suffix says."""
    if path.suffix == ".csv":
        write_text(path, _sets_csv(sets))
    elif path.suffix == ".json":
        write_text(path, json_text({**about_sets(sets), "sets": list(set_lines(sets))}))
    else:
        write_sets(sets, path)


def _sets_csv(sets: PredictionSets) -> str:
    """One line per row; labels separated by spaces, names by semicolons."""
    lines = list(set_lines(sets))
    head = ["row", "size", "labels", *(["names"] if sets.class_names is not None else [])]
    cells = [[x["row"], x["size"], " ".join(map(str, x["labels"]))] for x in lines]
    if sets.class_names is not None:
        cells = [[*cell, "; ".join(x["names"])] for cell, x in zip(cells, lines, strict=True)]
    return csv_text(head, cells)


def about_sets(sets: PredictionSets) -> dict[str, Any]:
    """A summary of sets, ready for JSON."""
    sizes = sets.sizes
    some = len(sets) > 0
    return {
        "rows": len(sets),
        "n_classes": sets.n_classes,
        "coverage": float(sets.coverage),
        "score": sets.score,
        "n_calibration": sets.n_calibration,
        "filled": sets.filled,
        "guarantee": sets.guarantee,
        "confidence": sets.confidence,
        "mean_size": float(sizes.mean()) if some else None,
        "empty_share": float(np.mean(sizes == 0)) if some else None,
        "singleton_share": float(np.mean(sizes == 1)) if some else None,
        "largest": int(sizes.max()) if some else None,
    }


def metric_rows(values: Mapping[str, Any]) -> list[list[Any]]:
    """The single numbers of a result as (name, value) lines."""
    return [[name, value] for name, value in values.items() if isinstance(value, int | float | str)]


def is_stream(path: Path | None) -> bool:
    """Whether "-" was given."""
    return path is not None and str(path) == STREAM
