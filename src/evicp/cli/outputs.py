"""What commands write: where they may, and results in the format of the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from evicp.calibration.source import RowSource
from evicp.cli.printing import note
from evicp.errors import FileError
from evicp.io.atomic import refuse_target, write_whole
from evicp.io.content import TORCH_SUFFIXES
from evicp.io.json_text import json_text
from evicp.io.logits import LOGITS_SUFFIXES, SHARD_SUFFIXES
from evicp.io.paths import format_of, natural_key
from evicp.tables import csv_table

if TYPE_CHECKING:
    from evicp.report import Report

#: What stands for standard input or output.
STREAM = "-"
#: The suffixes of files of logits, and of those that are read from a folder of shards.
INPUT_SUFFIXES = (*LOGITS_SUFFIXES, *TORCH_SUFFIXES)
_FOLDER_SUFFIXES = (*SHARD_SUFFIXES, *TORCH_SUFFIXES)
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
    folders = [name for name in inputs if name and _is_in(Path(name), target)]
    if folders and format_of(target) in _FOLDER_SUFFIXES:
        raise FileError(f"cannot write {target}: it would be read as logits of {folders[0]}. Give another folder.")
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
            shards = (file for file in source.iterdir() if format_of(file) in _FOLDER_SUFFIXES)
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


def about_files(
    paths: Sequence[str | None], made_by: RowSource | None, model: str = "", data_set: str = ""
) -> dict[str, Any]:
    """What a page says of the files that were read: which they are, and whose logits of what, where these say so.

    Parameters
    ----------
    paths : files and folders of shards; None and standard input are left out
    made_by : where the rows say that they come from
    model, data_set : as they were given, which is taken first
    """
    given = [Path(path) for path in paths if path not in (None, STREAM)]
    files = [file for path in given for file in (_shards(path) if path.is_dir() else [path])]
    known = {} if made_by is None else made_by.to_dict()
    return {"files": files, "model": model or known.get("name", ""), "data_set": data_set or known.get("data_set", "")}


def _shards(folder: Path) -> list[Path]:
    files = (file for file in folder.iterdir() if format_of(file) in _FOLDER_SUFFIXES)
    return sorted(files, key=lambda file: natural_key(file.name))


def note_start(page: Report, coverage: float | Fraction) -> None:
    """Say where a report's slider starts, if that is not the target coverage."""
    start = page.data["grid"][page.data["start"]]
    if start != float(coverage):
        note(f"the report starts at coverage {start:g}: its slider has no step at {float(coverage):g}.")
