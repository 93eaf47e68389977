"""What the commands share: option types, scores by name, what they may overwrite, JSON, progress.

A command is a plain function with typed options; it reads with `evicp.cli.inputs`, raises errors of `evicp.errors`
(one line, exit code 2) and prints either a table or, with `--json`, one JSON document.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from evicp.cli.messages import mute, note, say, visible
from evicp.cli.streams import output_is_closed
from evicp.errors import FileError, ScoreError
from evicp.io.paths import as_path, format_of, refuse_target

if TYPE_CHECKING:
    from evicp.method.scores import Score
    from evicp.report import Report

__all__ = [
    "CalibrationCoverage",
    "ClassNames",
    "Coverage",
    "Force",
    "Json",
    "Labels",
    "LogitsFiles",
    "NoEmpty",
    "Output",
    "ScoreText",
    "Scores",
    "Seed",
    "SetsConfidence",
    "check_output",
    "examples",
    "input_suffixes",
    "json_text",
    "mute",
    "note",
    "parse_score",
    "print_json",
    "print_table",
    "print_text",
    "progress",
    "refuse_inputs",
    "say",
    "stdout_console",
    "visible",
]

STREAM = "-"

TORCH_SUFFIXES = (".pt", ".pth")


def input_suffixes() -> tuple[str, ...]:
    """The suffixes of files of logits: what is read from a folder of shards."""
    from evicp.io.files import LOGITS_SUFFIXES  # late: it loads most of the package, which not every command needs

    return (*LOGITS_SUFFIXES, *TORCH_SUFFIXES)


# ---------------------------------------------------------------------------------------------------------------
# Options


def _complete_score(incomplete: str) -> list[str]:
    from evicp.method.scores import SCORES

    return [name for name in SCORES if name.startswith(incomplete)]


def _parse_coverage(text: str) -> float:
    """A number; whether it lies between 0 and 1 is for the library to say."""
    try:
        return float(text)
    except ValueError:
        per_cent = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
        hint = f" Did you mean {float(per_cent[1]) / 100:g}?" if per_cent else " Write it as 0.9."
        raise typer.BadParameter(f"coverage must be a number between 0 and 1; got {text!r}.{hint}") from None


LogitsFiles = Annotated[
    str,
    typer.Argument(
        metavar="LOGITS",
        help="npz, npy, safetensors, parquet, pt or pth file, a folder of such files, or - for standard input. Damage "
        "is found in npz, pt and pth files, and in parquet files that were written with checksums of their pages.",
        show_default=False,
    ),
]
Labels = Annotated[
    str | None,
    typer.Option("--labels", "-l", metavar="FILE", help="True labels (npy) where the logits file has none."),
]
ClassNames = Annotated[
    str | None,
    typer.Option(
        "--class-names", metavar="FILE", help="Class names: text with one per line, or JSON: a list, or label to name."
    ),
]
Coverage = Annotated[
    float,
    typer.Option(
        "--coverage", "-c", metavar="NUMBER", help="The coverage to ask for, between 0 and 1.", parser=_parse_coverage
    ),
]
CalibrationCoverage = Annotated[
    float | None,
    typer.Option(
        "--coverage",
        "-c",
        metavar="NUMBER",
        help="The coverage to ask of a calibration, between 0 and 1. [default: 0.9]",
        parser=_parse_coverage,
    ),
]
SetsConfidence = Annotated[
    float | None,
    typer.Option(
        "--confidence", help="With this confidence over calibrations, cover at least what is asked (PAC sets)."
    ),
]
NoEmpty = Annotated[bool, typer.Option("--no-empty", help="Give every empty set its most plausible label.")]
ScoreText = Annotated[
    str,
    typer.Option(
        "--score",
        "-s",
        metavar="SCORE",
        help="A score by name, with parameters if wanted: ecp, lac, 'raps(lam=0.5,k_reg=3)'.",
        autocompletion=_complete_score,
    ),
]
Scores = Annotated[
    list[str],
    typer.Option(
        "--score",
        "-s",
        metavar="SCORE",
        help="A score, as in 'ecp' or 'raps(lam=0.5)'. Repeat the option for several.",
        autocompletion=_complete_score,
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Which random split.", min=0)]
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite a file that exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


Command = TypeVar("Command", bound=Callable[..., None])


def examples(*lines: str) -> Callable[[Command], Command]:
    """Decorate a command with the calls that its `--help` shows."""

    def decorate(command: Command) -> Command:
        setattr(command, "epilog", "\n\n".join(("Examples:", *lines)))  # noqa: B010 - functions declare no attributes
        return command

    return decorate


def parse_score(text: str, *, conformal: bool = True) -> Score:
    """A score from text, where "auto" is none."""
    from evicp.method.scores import as_score

    if text.lower() == "auto":
        raise ScoreError(
            "auto is a choice, not a score: run evicp tune on other rows, and give the score that it names."
        )
    return as_score(text, conformal=conformal)


# ---------------------------------------------------------------------------------------------------------------
# Output


def check_output(
    path: str | Path,
    *,
    force: bool,
    suffixes: Sequence[str],
    stream: bool = False,
    inputs: Sequence[str | None] = (),
) -> Path:
    """The path to write to, refused before any work is done if it cannot or must not be written.

    Parameters
    ----------
    force : whether an existing file may be replaced
    suffixes : those that are understood
    stream : whether "-" stands for standard output
    inputs : files and folders that are read; none of them is replaced, not even by force
    """
    if stream and str(path) == STREAM:
        if output_is_closed():
            raise FileError("cannot write to standard output: it is closed. Give a file.")
        return Path(STREAM)
    target = Path(path)
    refuse_target(target, suffixes)
    refuse_inputs(target, inputs)
    for name in inputs:
        if name is not None and format_of(target) in input_suffixes() and _is_in(as_path(name), target):
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
            shards = (file for file in source.iterdir() if format_of(file) in input_suffixes())
            return any(file.exists() and file.samefile(target) for file in shards)
        return source.exists() and source.samefile(target)
    except OSError:
        return False  # what cannot be looked at is refused when it is read


def _is_in(folder: Path, target: Path) -> bool:
    """Whether a file would lie in this folder, or a link that stands for it."""
    around = (os.path.realpath(target.parent), os.path.dirname(os.path.realpath(target)))  # noqa: PTH120
    return folder.is_dir() and os.path.realpath(folder) in around


def stdout_console() -> Console:
    """The console for results: as wide as the terminal, or 110 columns where there is none."""
    return Console() if sys.stdout.isatty() else Console(width=110)


def print_text(text: object) -> None:
    """Print a result as it is: no markup, no wrapping, so that a class name cannot style or break anything."""
    stdout_console().print(visible(text, lines=True), markup=False, highlight=False, soft_wrap=True)


def note_start(page: Report, coverage: float | Fraction) -> None:
    """Say where a report's slider starts, if that is not the coverage asked for."""
    start = page.data["grid"][page.data["start"]]
    if start != float(coverage):
        note(f"the report starts at coverage {start:g}: its slider does not have {float(coverage):g}.")


#: Texts are folded into no fewer columns than this: names in a column of one letter, or of none, tell nothing.
_LEAST_TEXT = 10


def _edge(console: Console) -> int:
    """By how much Rich makes the outermost columns wider than asked: before version 15 by the padding it leaves out."""
    table = Table(box=None, pad_edge=False)
    table.add_column(width=1)
    return (Measurement.get(console, console.options, table).minimum - 1) // 2


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    *,
    bold: str = "",
    left: Sequence[int] = (),
) -> None:
    """Print a table; the first column and those in `left` are aligned to the left, the others to the right.

    On a narrow terminal texts are folded, down to a few letters; numbers stay whole. The terminal breaks what is wider.
    """
    from rich.text import Text

    console = stdout_console()
    cells = [[visible(cell) for cell in row] for row in rows]
    columns = list(zip(head, *cells, strict=True))
    narrow = sum(max(map(cell_len, column)) + 2 for column in columns) - 2 > console.width
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    least, edge = -2, _edge(console)
    for i, (name, *values) in enumerate(columns):
        text = i == 0 or i in left
        width = max(map(cell_len, [*name.split(), *values]))
        smallest = min(width, _LEAST_TEXT) if text else width
        least += smallest + 2
        outer = edge * ((i == 0) + (i == len(columns) - 1))
        table.add_column(
            name,
            justify="left" if text else "right",
            overflow="fold",
            width=width - outer if narrow and not text else None,
            min_width=smallest - outer if narrow else None,
        )
    console.width = max(console.width, least)
    for row, shown in zip(rows, cells, strict=True):
        table.add_row(*map(Text, shown), style="bold" if row[0] == bold else None)
    console.print(table)


def print_json(value: Any) -> None:
    """Print one JSON document: NaN as null, infinities as "inf" and "-inf", fractions as numbers."""
    sys.stdout.write(json_text(value))


def json_text(value: Any) -> str:
    """A JSON document, as `--json` prints it."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """A result as JSON knows it.

    >>> plain({"size": np.float64(2.5), "sat": float("nan"), "threshold": float("inf"), "range": (1, 3)})
    {'size': 2.5, 'sat': None, 'threshold': 'inf', 'range': [1, 3]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else "inf" if value > 0 else "-inf"
    return float(value) if isinstance(value, Fraction) else str(value) if isinstance(value, Path) else value


# ---------------------------------------------------------------------------------------------------------------
# Progress


@contextmanager
def progress(description: str, total: int | None = None, *, after: float = 1.0) -> Iterator[Callable[[int], None]]:
    """A bar on standard error for work that takes longer than a second; nothing where that is not a terminal.

    Yields a function to be called with the number of steps done since the last call.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    bar = Progress(*columns, *([TimeRemainingColumn()] if total else []), console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=total)
    timer = threading.Timer(after, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda steps: bar.advance(task, steps)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
