"""`evicp evaluate`: how good are sets whose true labels are known?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import evicp
from evicp import blocks
from evicp.blocks import Rows, same_names
from evicp.calibration.calibration import Calibration
from evicp.calibration.reliability import verdict_line
from evicp.cli.common import (
    CalibrationCoverage,
    Force,
    Json,
    Labels,
    NoEmpty,
    Output,
    SetsConfidence,
    check_output,
    examples,
    json_text,
    note,
    print_json,
    print_text,
    progress,
)
from evicp.cli.inputs import (
    Groups,
    Memory,
    load_calibration,
    read_groups,
    read_rows,
    require_groups,
)
from evicp.cli.outputs import metric_rows
from evicp.errors import FileError, InputError
from evicp.evaluation.result import Evaluation
from evicp.io.paths import format_of, write_whole
from evicp.report.page import require_plotly
from evicp.tables import csv_table

__all__ = ["evaluate"]

_SUFFIXES = (".json", ".csv", ".md", ".html")


@examples(
    "evicp evaluate cal.safetensors test.npz --coverage 0.9",
    "evicp evaluate sets.parquet test.npz -o evaluation.json",
    "evicp evaluate sets.parquet labels.npy --check",
)
def evaluate(
    sets: Annotated[
        str,
        typer.Argument(
            metavar="SETS",
            help="Sets (parquet, npz), or a calibration (safetensors) to predict them with.",
            show_default=False,
        ),
    ],
    logits: Annotated[
        str,
        typer.Argument(
            metavar="LOGITS",
            help="Logits with labels, as for the other commands; or labels alone (npy).",
            show_default=False,
        ),
    ],
    labels: Labels = None,
    coverage: CalibrationCoverage = None,
    confidence: SetsConfidence = None,
    fill: NoEmpty = False,
    groups: Groups = None,
    output: Output = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if the observed coverage contradicts the promise.")
    ] = False,
    memory: Memory = blocks.DEFAULT_MEMORY,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Coverage, size, SSCV, SAT, strata and classes of prediction sets, and whether the promise was kept.

    `--coverage`, `--confidence` and `--no-empty` are for a calibration: sets have their own. `--output` writes json,
    csv, md or html.
    """
    is_calibration = format_of(Path(sets)) == ".safetensors"
    if not is_calibration and (coverage is not None or confidence is not None or fill):
        raise InputError(
            "--coverage, --confidence and --no-empty are for a calibration: sets were predicted with their own."
        )
    inputs = (sets, logits, labels, groups)
    target = None if output is None else check_output(output, force=force, suffixes=_SUFFIXES, inputs=inputs)
    if target is not None and target.suffix == ".html":
        require_plotly()
    rows = _labelled(read_rows(logits, labels, memory=memory))
    of_rows = read_groups(groups, len(rows))
    with progress("evaluating", len(rows)) as advance:
        if is_calibration:
            calibration = _predictor(sets, rows)
            require_groups(sets, calibration, groups)
            same_names(calibration, rows, sets)
            how: dict[str, Any] = {"target_confidence": confidence, "allow_empty": not fill, "groups": of_rows}
            asked = 0.9 if coverage is None else coverage
            evaluation = blocks.evaluate(calibration, rows, asked, progress=advance, **how)
            verdict = _of_calibration(calibration, evaluation)
        else:
            evaluation = blocks.evaluate(sets, rows, groups=of_rows, progress=advance)
            verdict = _of_sets(evaluation)
    if check and verdict is None:
        raise InputError(_why_not(sets, evaluation))
    if target is not None:
        _write(evaluation, verdict, target)
    if as_json:
        print_json(_as_dict(evaluation, verdict))
    else:
        print_text(evaluation)
        if verdict is not None:
            print_text(f"\n{_sentence(verdict)}")
        if target is not None:
            note(f"wrote {target}")
    if check and verdict is not None and not verdict["kept"]:
        raise typer.Exit(1)


def _labelled(rows: Rows) -> Rows:
    """Rows with labels, or labels alone."""
    part = rows.parts[0]
    if rows.has_labels or (len(part.shape) == 1 and part.dtype.kind in "iuU"):
        return rows
    raise FileError(f"{rows.source} has no labels. Give them with --labels labels.npy.")


def _predictor(path: str, rows: Rows) -> Calibration:
    """The calibration whose sets are evaluated, if there is something to predict them from."""
    if not rows.has_labels:
        raise FileError("a calibration needs logits to predict with; labels alone can only be held against sets.")
    return load_calibration(path)


def _of_calibration(calibration: Calibration, evaluation: Evaluation) -> dict[str, Any] | None:
    """Whether the coverage observed is what the calibration lets one expect, over all rows or in each group.

    None where that cannot be told.
    """
    if calibration.folds is not None:
        return None
    return calibration.certificate(evaluation.target, evaluation, pac=evaluation.target_confidence).observed


def _of_sets(evaluation: Evaluation) -> dict[str, Any] | None:
    """Whether the coverage observed is what n calibration rows let one expect; None where that cannot be told."""
    if evaluation.n_calibration is None or evaluation.guarantee != "marginal":
        return None
    law = evicp.Reliability(evaluation.n_calibration, evaluation.target, evaluation.target_confidence)
    kind = {"at_least": evaluation.law_is_bound, "smoothed": evaluation.smoothed}
    return law.compatible(evaluation.coverage, evaluation.n, **kind).to_dict()


def _why_not(sets: str, evaluation: Evaluation) -> str:
    """Why there is nothing to hold the observed coverage against."""
    if evaluation.n_calibration is None:
        uncalibrated = evaluation.score == "base"
        why = "it takes no calibration" if uncalibrated else "its rows were scored in folds, or its level moved"
        return f"--check needs a promise, and there is none for {evaluation.score}: {why}."
    weighted = evaluation.guarantee == "weighted"
    kind = "weighted" if weighted else f"by {evaluation.guarantee}"
    return (
        f"{sets} cannot be checked by itself: its guarantee is {kind}, and sets do not say what was promised where. "
        f"Give the calibration instead of its sets{', or check in Python if rows have weights' if weighted else ''}."
    )


def _sentence(promise: dict[str, Any]) -> str:
    law = ", which at least 95 % of runs at the promised coverage give" if "low" in promise else ""
    return f"observed {verdict_line(promise)}{law}"


def _as_dict(evaluation: Evaluation, promise: dict[str, Any] | None) -> dict[str, Any]:
    return {**evaluation.to_dict(), "promise": promise}


def _write(evaluation: Evaluation, promise: dict[str, Any] | None, target: Path) -> None:
    if target.suffix == ".html":
        from evicp import report

        report.of_evaluation(evaluation).write(target)
    elif target.suffix == ".md":
        write_whole(target, evaluation.to_markdown() + (f"\n\n{_sentence(promise)}\n" if promise is not None else "\n"))
    elif target.suffix == ".csv":
        write_whole(target, csv_table(["metric", "value"], metric_rows(_as_dict(evaluation, promise))))
    else:
        write_whole(target, json_text(_as_dict(evaluation, promise)))
