"""What the commands share: option types, scores by name, what they may overwrite, JSON, progress.

A command is a plain function with typed options; it reads with `evicp.cli.inputs`, raises errors of `evicp.errors`
(one line, exit code 2) and prints either a table or, with `--json`, one JSON document.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from math import isfinite, isnan
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from evicp.errors import FileError, ScoreError
from evicp.scores import SCORES, Score, as_score

__all__ = [
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
    "note",
    "parse_score",
    "print_json",
    "print_table",
    "print_text",
    "progress",
    "stdout_console",
]

STREAM = "-"


# ---------------------------------------------------------------------------------------------------------------
# Options


def _complete_score(incomplete: str) -> list[str]:
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
        help="npz, npy, safetensors, parquet, pt or pth file, a folder of such files, or - for standard input.",
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


_SCORE_TEXT = re.compile(r"\s*([A-Za-z]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*([a-z_]+)\s*=\s*([^\s,=()]+)\s*")


def parse_score(text: str, *, conformal: bool = True) -> Score:
    """A score from text, in the notation in which scores describe themselves.

    >>> parse_score("raps(lam=0.5, k_reg=3)").describe()
    'raps(lam=0.5, k_reg=3)'
    >>> parse_score("LAC").describe()
    'lac'
    """
    match = _SCORE_TEXT.fullmatch(text)
    if match is None:
        raise ScoreError(f"cannot read the score {text!r}; write it as 'ecp' or 'raps(lam=0.5,k_reg=3)'.")
    name, arguments = match.group(1), (match.group(2) or "").strip()
    if name.lower() == "auto":
        raise ScoreError(
            "auto is a choice, not a score: run evicp tune on other rows, and give the score that it names."
        )
    plain = as_score(name, conformal=conformal)
    parameters = dict(_parse_parameter(part, text) for part in arguments.split(",")) if arguments else {}
    unknown = set(parameters) - set(plain.parameters())
    if unknown:
        raise ScoreError(
            f"{name} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(plain.parameters())}."
        )
    return as_score(SCORES[name.lower()](**parameters), conformal=conformal)


def _parse_parameter(part: str, text: str) -> tuple[str, Any]:
    match = _PARAMETER.fullmatch(part)
    if match is None:
        raise ScoreError(f"cannot read {part.strip()!r} in the score {text!r}; write parameter=value.")
    name, value = match.groups()
    try:
        return name, {"true": True, "false": False}[value.lower()] if value.isalpha() else json.loads(value)
    except (KeyError, ValueError):
        return name, value.strip("'\"")


# ---------------------------------------------------------------------------------------------------------------
# Output


def check_output(path: str | Path, *, force: bool, suffixes: Sequence[str] = (), stream: bool = False) -> Path:
    """The path to write to, refused before any work is done if it cannot or must not be written.

    Parameters
    ----------
    force : whether an existing file may be replaced
    suffixes : the suffixes that are understood; any if empty
    stream : whether "-" stands for standard output
    """
    if stream and str(path) == STREAM:
        return Path(STREAM)
    target = Path(path)
    if suffixes and target.suffix not in suffixes:
        raise FileError(f"cannot write {target}: unknown suffix {target.suffix!r}; known are {', '.join(suffixes)}.")
    if target.is_dir():
        raise FileError(f"cannot write {target}: it is a directory. Give a file name.")
    if not target.parent.is_dir():
        raise FileError(f"cannot write {target}: there is no directory {target.parent}.")
    if target.exists() and not force:
        raise FileError(f"{target} exists. Use --force to overwrite it.")
    return target


def stdout_console() -> Console:
    """The console for results: as wide as the terminal, or 110 columns where there is none."""
    return Console() if sys.stdout.isatty() else Console(width=110)


def print_text(text: object) -> None:
    """Print a result as it is: no markup, no wrapping, so that a class name cannot style or break anything."""
    stdout_console().print(str(text), markup=False, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A remark for people, on standard error: it never mixes with results."""
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True, style="dim")


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    *,
    bold: str = "",
    left: Sequence[int] = (),
) -> None:
    """Print a table; the first column and those in `left` are aligned to the left, the others to the right."""
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i == 0 or i in left else "right")
    for row in rows:
        table.add_row(*map(Text, row), style="bold" if row[0] == bold else None)
    stdout_console().print(table)


def print_json(value: Any) -> None:
    """Print one JSON document: NaN as null, infinities as "inf" and "-inf", fractions as numbers."""
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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
