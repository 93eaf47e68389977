"""`evicp evaluate`: how good are sets whose true labels are known?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from evicp import blocks
from evicp.blocks import Rows
from evicp.calibration.calibration import Calibration
from evicp.cli import inputs, options
from evicp.cli.outputs import RESULT_SUFFIXES, about_files, check_output, write_result
from evicp.cli.printing import print_result
from evicp.errors import FileError, InputError, SuspiciousInputWarning
from evicp.evaluation.result import Evaluation
from evicp.evaluation.verdicts import excess_of
from evicp.input.warn import warn
from evicp.io.paths import format_of
from evicp.io.rows import DEFAULT_MEMORY, no_labels
from evicp.progress import progress

Sets = Annotated[
    str,
    typer.Argument(
        metavar="SETS",
        help="Sets (parquet, npz), or a calibration (safetensors) to predict them with.",
        show_default=False,
    ),
]
LabelledFiles = Annotated[
    str,
    typer.Argument(
        metavar="LOGITS",
        help="Logits with labels, as for the other commands; or only labels (npy).",
        show_default=False,
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Exit with 1 if the observed coverage contradicts the guarantee.")]


@options.examples(
    "evicp evaluate cal.safetensors test.npz --coverage 0.9",
    "evicp evaluate sets.parquet test.npz -o evaluation.json",
    "evicp evaluate sets.parquet labels.npy --check",
    "evicp evaluate cal.safetensors test.npz -o audit.html --author 'J. Doe' --note 'yearly audit'",
)
def evaluate(
    context: typer.Context,
    sets: Sets,
    logits: LabelledFiles,
    labels: options.Labels = None,
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    coverage: options.CalibrationCoverage = None,
    confidence: options.SetsConfidence = None,
    fill: options.NoEmpty = False,
    groups: options.Groups = None,
    source: options.Source = None,
    output: options.Output = None,
    title: options.Title = "Prediction sets",
    model: options.Model = "",
    data_set: options.DataSet = "",
    author: options.Author = "",
    note: options.Note = "",
    check: Check = False,
    memory: options.Memory = DEFAULT_MEMORY,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Evaluate prediction sets: coverage, size, SSCV, SAT, classes, and whether the guarantee holds.

    `--coverage`, `--confidence`, `--no-empty` and `--source` are for a calibration; sets contain their own. `--output`
    writes json, csv, md or html; `--title`, `--model`, `--data-set`, `--author` and `--note` are for html.
    """
    target = check_output(output, force=force, suffixes=RESULT_SUFFIXES, inputs=(sets, logits, labels, groups))
    _refuse_ignored(context, sets, target)
    rows = _labelled(inputs.read_rows(logits, labels, (logits_column, labels_column), memory=memory))
    how: dict[str, Any] = {"groups": inputs.read_groups(groups, len(rows)), "allow_empty": not fill}
    if (calibration := _predictor(sets, rows, groups, source) if _is_calibration(sets) else None) is not None:
        how |= {"coverage": 0.9 if coverage is None else coverage, "target_confidence": confidence}
    with progress("evaluating", len(rows)) as advance:
        evaluation = blocks.evaluate(calibration or sets, rows, progress=advance, **how)
    _require_verdict(check, evaluation, sets)
    files = partial(about_files, (sets, logits, labels, groups), rows.made_by, model, data_set)
    _show(evaluation, target, as_json, lambda: evaluation.to_html(title=title, author=author, note=note, **files()))
    _judge(check, evaluation)


def _require_verdict(check: bool, evaluation: Evaluation, sets: str) -> None:
    if check and evaluation.verdict is None:
        raise InputError(_why_none(evaluation, sets))


def _judge(check: bool, evaluation: Evaluation) -> None:
    """Where asked, exit with 1 if coverage contradicts the guarantee; warn where far more is covered."""
    if not check:
        return
    verdict = evaluation.verdict or {}
    excess = excess_of(verdict)
    if excess is not None:
        warn(excess, SuspiciousInputWarning)
    if not verdict["kept"]:
        raise typer.Exit(1)


def _is_calibration(path: str) -> bool:
    return format_of(Path(path)) == ".safetensors"


def _refuse_ignored(context: typer.Context, sets: str, target: Path | None) -> None:
    """Raise where an option was given that sets, or a result that is no page, would not look at."""
    if not _is_calibration(sets) and options.given(context, "coverage", "confidence", "fill", "source"):
        raise InputError(
            "--coverage, --confidence, --no-empty and --source are for a calibration: sets were predicted with their "
            "own."
        )
    if (names := options.given(context, *options.ABOUT)) and (target is None or target.suffix != ".html"):
        option = names[0].replace("_", "-")
        raise InputError(f"--{option} is for an HTML page. Write one with -o evaluation.html.")


def _labelled(rows: Rows) -> Rows:
    """Rows with labels, or labels alone."""
    part = rows.files[0]
    if rows.has_labels or (len(part.shape) == 1 and part.dtype.kind in "iuU"):
        return rows
    raise no_labels(rows)


def _predictor(path: str, rows: Rows, groups: str | None, source: str | None) -> Calibration:
    """The calibration whose sets are evaluated, if there is something to predict them from."""
    if not rows.has_labels:
        raise FileError("a calibration needs logits to predict with; labels alone can only be compared with sets.")
    return inputs.load_predictor(path, groups, source)


def _why_none(evaluation: Evaluation, sets: str) -> str:
    """Why there is nothing to hold the observed coverage against."""
    if evaluation.n_calibration is None:
        uncalibrated = evaluation.score == "base"
        why = "it takes no calibration" if uncalibrated else "its rows were scored in folds, or its level was adapted"
        return f"--check needs a guarantee, and there is none for {evaluation.score}: {why}."
    weighted = evaluation.guarantee == "weighted"
    kind = "weighted" if weighted else f"by {evaluation.guarantee}"
    return (
        f"{sets} cannot be checked: its guarantee is {kind}, and a file of sets does not contain the guarantee of each "
        "group. Pass the calibration instead of its "
        f"sets{', or check in Python if rows have weights' if weighted else ''}."
    )


def _show(evaluation: Evaluation, target: Path | None, as_json: bool, page: Callable[[], str]) -> None:
    """Write an evaluation with the verdict on its coverage, and print it."""
    content = evaluation.to_dict()
    if target is not None:
        single = [[name, value] for name, value in content.items() if isinstance(value, int | float | str)]
        write_result(target, content, evaluation.to_markdown(), [["metric", "value"], *single], page=page)
    print_result(as_json, content, evaluation, written=target)
