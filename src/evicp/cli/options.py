"""What the options of commands share: their types, their examples, and values that are read from text.

A command is a plain function with typed options. It reads with `evicp.cli.inputs`, raises errors of `evicp.errors`
(one line, exit code 2) and prints with `evicp.cli.printing` either a table or, with `--json`, one JSON document.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from evicp.errors import InputError, ScoreError

if TYPE_CHECKING:
    from evicp.method.scores import Score

Command = TypeVar("Command", bound=Callable[..., None])


def examples(*lines: str) -> Callable[[Command], Command]:
    """Decorate a command with the calls that its `--help` shows."""

    def decorate(command: Command) -> Command:
        setattr(command, "epilog", "\n\n".join(("Examples:", *lines)))  # noqa: B010 - functions declare no attributes
        return command

    return decorate


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


def parse_score(text: str, *, conformal: bool = True) -> Score:
    """A score from text, where "auto" is none."""
    from evicp.method.scores import as_score

    if text.lower() == "auto":
        raise ScoreError("auto is not a score: run evicp tune on other rows, and pass the score that it names.")
    return as_score(text, conformal=conformal)


def parse_split(temperature: str, calibration: str, seed: int) -> dict[str, Any]:
    """How rows are split and scored: a temperature or how it is fitted, and a share of the rows or a number of them."""
    from evicp.input.validate import as_temperature

    value: float | str = temperature
    with suppress(ValueError):
        value = float(temperature)
    try:
        rows = int(calibration) if calibration.strip().isdigit() else float(calibration)
    except ValueError:
        raise InputError(f"--calibration must be a share in (0, 1) or a number of rows; got {calibration!r}.") from None
    return {"temperature": as_temperature(value, "split", "holdout"), "calibration": rows, "seed": seed}


# ---------------------------------------------------------------------------------------------------------------
# Files

CalibrationFile = Annotated[
    str,
    typer.Argument(metavar="CALIBRATION", help="A file written by evicp calibrate.", show_default=False),
]
LogitsFiles = Annotated[
    str,
    typer.Argument(
        metavar="LOGITS",
        help="npz, npy, safetensors, parquet, Arrow, pt or pth file, a folder of such files, a data set saved by "
        "Hugging Face, a csv or tsv file, or - for standard input. Damage is detected in npz, pt and pth files, and "
        "in parquet files with page checksums.",
        show_default=False,
    ),
]
Labels = Annotated[
    str | None,
    typer.Option("--labels", "-l", metavar="FILE", help="True labels (npy), if the logits file has none."),
]
LogitsColumn = Annotated[
    str | None,
    typer.Option(
        "--logits-column",
        "--logits-key",
        metavar="NAME",
        help="The array or column of logits, if its name is not a usual one (logits, preds); 'score_*' means a column "
        "for each class.",
    ),
]
LabelsColumn = Annotated[
    str | None,
    typer.Option(
        "--labels-column",
        "--labels-key",
        metavar="NAME",
        help="The array or column of labels, if its name is not a usual one (labels, label, targets).",
    ),
]
ClassNames = Annotated[
    str | None,
    typer.Option(
        "--class-names", metavar="FILE", help="Class names: text with one per line, or JSON: a list, or label to name."
    ),
]
Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        metavar="FILE",
        help="The group of each row (npy), for a calibration by group; a matrix of 0 and 1 if groups overlap.",
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="TEXT",
        help="Which network made the logits, in any words; files of evicp extract say it themselves.",
    ),
]
Title = Annotated[str, typer.Option(help="The heading of the page.")]
Author = Annotated[str, typer.Option(metavar="TEXT", help="Who made the report, shown at the top of the page.")]
Note = Annotated[str, typer.Option(metavar="TEXT", help="A note for readers, shown at the top of the page.")]
Model = Annotated[
    str,
    typer.Option(metavar="TEXT", help="The model, shown at the top of the page; files of evicp extract contain it."),
]
DataSet = Annotated[str, typer.Option("--data-set", metavar="TEXT", help="The data set, shown at the top of the page.")]
#: The options above, which only a page shows.
ABOUT = ("title", "model", "data_set", "author", "note")
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite an existing file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]

# ---------------------------------------------------------------------------------------------------------------
# Scores and sets

Coverage = Annotated[
    float,
    typer.Option(
        "--coverage", "-c", metavar="NUMBER", help="The target coverage, between 0 and 1.", parser=_parse_coverage
    ),
]
Coverages = Annotated[
    list[float],
    typer.Option(
        "--coverage",
        "-c",
        metavar="NUMBER",
        help="A target coverage, between 0 and 1. Repeat the option for several.",
        parser=_parse_coverage,
    ),
]
CalibrationCoverage = Annotated[
    float | None,
    typer.Option(
        "--coverage",
        "-c",
        metavar="NUMBER",
        help="The target coverage for a calibration, between 0 and 1. [default: 0.9]",
        parser=_parse_coverage,
    ),
]
SetsConfidence = Annotated[
    float | None,
    typer.Option(
        "--confidence", help="Reach the target coverage with this confidence over calibration sets (PAC sets)."
    ),
]
NoEmpty = Annotated[bool, typer.Option("--no-empty", help="Give every empty set its most plausible label.")]
ScoreText = Annotated[
    str,
    typer.Option(
        "--score",
        "-s",
        metavar="SCORE",
        help="A score by name, optionally with parameters: ecp, lac, 'raps(lam=0.5,k_reg=3)'.",
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

# ---------------------------------------------------------------------------------------------------------------
# Work

Temperature = Annotated[
    str,
    typer.Option(
        metavar="NUMBER|split|holdout",
        help="A number; split: fitted on separate rows; holdout: fitted on the calibration rows, as in the paper.",
    ),
]
CalibrationRows = Annotated[
    str,
    typer.Option(
        "--calibration",
        metavar="SHARE|ROWS",
        help="Calibration rows: a share of the rows (0.3) or a number (300). The others are test rows.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="The seed of the random split.", min=0)]
Memory = Annotated[
    str,
    typer.Option("--memory", metavar="SIZE", help="The memory for blocks of rows: 256MiB, 2GB. Files may be larger."),
]
Engine = Annotated[
    str,
    typer.Option("--engine", metavar="local|ray", help="Run in this process, or distribute the work by Ray."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="ADDRESS", help="A Ray cluster; without one, Ray uses this machine's processors."
    ),
]


def given(context: typer.Context, *names: str) -> list[str]:
    """Which of these parameters were given on the command line."""
    return [name for name in names if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]
