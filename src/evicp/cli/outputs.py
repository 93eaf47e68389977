"""What commands write: where they may, results as files, sets in the formats that only the command line has."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

from evicp.cli.printing import json_text, note
from evicp.errors import FileError
from evicp.io.atomic import refuse_target, write_whole
from evicp.io.files import SETS, SetsFile, set_lines, write_set_lines
from evicp.io.logits import LOGITS_SUFFIXES
from evicp.io.paths import as_path, format_of
from evicp.sets import PredictionSets, SetsSummary
from evicp.tables import csv_line, csv_table, csv_text

if TYPE_CHECKING:
    from evicp.report import Report

__all__: list[str] = []

#: What stands for standard input or output.
STREAM = "-"
TORCH_SUFFIXES = (".pt", ".pth")
#: The suffixes of files of logits: what is read from a folder of shards.
INPUT_SUFFIXES = (*LOGITS_SUFFIXES, *TORCH_SUFFIXES)
#: The formats of results that are one table.
RESULT_SUFFIXES = (".json", ".csv", ".md", ".html")


# ---------------------------------------------------------------------------------------------------------------
# Where to write


@overload
def check_output(path: None, *, force: bool, suffixes: Sequence[str], inputs: Sequence[str | None] = ()) -> None: ...
@overload
def check_output(path: str, *, force: bool, suffixes: Sequence[str], inputs: Sequence[str | None] = ()) -> Path: ...
def check_output(
    path: str | None, *, force: bool, suffixes: Sequence[str], inputs: Sequence[str | None] = ()
) -> Path | None:
    """The path to write to, refused before any work is done if it cannot or must not be written.

    Parameters
    ----------
    path : None where nothing is written
    force : whether an existing file may be replaced
    suffixes : those that are understood
    inputs : files and folders that are read; none of them is replaced, not even by force
    """
    if path is None:
        return None
    target = Path(path)
    refuse_target(target, suffixes)
    refuse_inputs(target, inputs)
    for name in inputs:
        if name is not None and format_of(target) in INPUT_SUFFIXES and _is_in(as_path(name), target):
            raise FileError(f"cannot write {target}: it would be read as logits of {name}. Give another folder.")
    if target.exists() and not force:
        raise FileError(f"{target} exists. Use --force to overwrite it.")
    return target


def refuse_inputs(target: Path, inputs: Sequence[str | None]) -> None:
    """Raise where writing would replace a file that is read, by whatever name, or a shard of a folder that is."""
    for name in inputs:
        if name is not None and name != STREAM and target.exists() and _reads(Path(name), target):
            raise FileError(f"cannot write {target}: it is an input, or part of one ({name}). Give another name.")


def _reads(source: Path, target: Path) -> bool:
    """Whether a file that exists is a source, or among the files of logits in it."""
    try:
        if source.is_dir():
            shards = (file for file in source.iterdir() if format_of(file) in INPUT_SUFFIXES)
            return any(file.exists() and file.samefile(target) for file in shards)
        return source.exists() and source.samefile(target)
    except OSError:
        return False  # what cannot be looked at is refused when it is read


def _is_in(folder: Path, target: Path) -> bool:
    """Whether a file would lie in this folder, or a link that stands for it."""
    around = (os.path.realpath(target.parent), os.path.dirname(os.path.realpath(target)))  # noqa: PTH120
    return folder.is_dir() and os.path.realpath(folder) in around


# ---------------------------------------------------------------------------------------------------------------
# Results


def write_result(
    target: Path,
    content: Mapping[str, Any],
    markdown: str,
    csv: Sequence[Sequence[Any]],
    page: Callable[[], str],
) -> None:
    """Write a result in JSON, Markdown, CSV (its first line is the head) or HTML, as the suffix says."""
    texts: dict[str, Callable[[], str]] = {
        ".html": page,
        ".md": lambda: markdown + "\n",
        ".csv": lambda: csv_table(csv[0], csv[1:]),
        ".json": lambda: json_text(content),
    }
    write_whole(target, texts[target.suffix]())


def note_start(page: Report, coverage: float | Fraction) -> None:
    """Say where a report's slider starts, if that is not the coverage asked for."""
    start = page.data["grid"][page.data["start"]]
    if start != float(coverage):
        note(f"the report starts at coverage {start:g}: its slider does not have {float(coverage):g}.")


# ---------------------------------------------------------------------------------------------------------------
# Sets


class CsvSets:
    """One line per row; labels separated by spaces, names by semicolons, none of which a spreadsheet would compute."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._has_head = False

    def append(self, sets: PredictionSets, first_row: int) -> None:
        """Write the sets of the next rows."""
        named = sets.class_names is not None
        if not self._has_head:
            self._has_head = True
            self._file.write(csv_line(["row", "size", "labels", *(["names"] if named else [])]))
        for line in set_lines(sets, first_row):
            names = ["; ".join(map(csv_text, line["names"]))] if named else []
            self._file.write(csv_line([line["row"], line["size"], " ".join(map(str, line["labels"])), *names]))

    def finish(self) -> None:
        """Write what waits in memory."""
        self._file.flush()

    def close(self) -> None:
        """Let go of the file."""
        with suppress(OSError):
            self._file.close()


class JsonSets:
    """One document: what the sets are like, then each of them. Lines wait in a nameless file until that is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = tempfile.TemporaryFile("w+", encoding="utf-8", dir=path.parent)  # noqa: SIM115 - see close
        self._summary: SetsSummary | None = None

    def append(self, sets: PredictionSets, first_row: int) -> None:
        """Keep the sets of the next rows."""
        write_set_lines(self._lines, sets, first_row)
        self._summary = SetsSummary.of(sets, self._summary)

    def finish(self) -> None:
        """Write the document."""
        if self._summary is None:
            return
        head = json_text(about_sets(self._summary)).rstrip().removesuffix("}").rstrip()
        self._lines.seek(0)
        with self._path.open("w", encoding="utf-8") as file:
            file.write(f'{head},\n  "sets": [')
            for number, line in enumerate(self._lines):
                file.write(("," if number else "") + "\n    " + line.rstrip("\n"))
            file.write("\n  ]\n}\n" if self._summary.rows else "]\n}\n")

    def close(self) -> None:
        """Let go of the lines."""
        with suppress(OSError):
            self._lines.close()


#: Formats that only the command line writes.
TEXT_SETS: Mapping[str, type[SetsFile]] = MappingProxyType({".json": JsonSets, ".csv": CsvSets})
#: The formats of prediction sets.
SET_SUFFIXES = (*SETS, *TEXT_SETS)


def about_sets(summary: SetsSummary) -> dict[str, Any]:
    """A summary of sets, ready for JSON."""
    sets, n = summary.like, summary.rows
    return {
        "rows": n,
        "n_classes": sets.n_classes,
        "coverage": float(sets.coverage),
        "score": sets.score,
        "n_calibration": sets.n_calibration,
        "filled": sets.filled,
        "smoothed": sets.smoothed,
        "tied": sets.tied,
        "guarantee": sets.guarantee,
        "confidence": sets.confidence,
        "mean_size": summary.mean_size,
        "empty_share": summary.empty / n if n else None,
        "singleton_share": summary.single / n if n else None,
        "largest": summary.largest if n else None,
    }
