"""`evicp evaluate`: how good are sets whose true labels are known?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import evicp
from evicp.cli.common import (
    Coverage,
    Force,
    Json,
    Labels,
    Output,
    check_output,
    examples,
    note,
    print_json,
    print_text,
    progress,
)
from evicp.cli.inputs import Rows, read_rows
from evicp.cli.outputs import csv_text, json_text, metric_rows, write_text
from evicp.errors import FileError
from evicp.files import read_sets
from evicp.metrics import Evaluation
from evicp.reliability import Compatibility
from evicp.sets import PredictionSets

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
    coverage: Coverage = 0.9,
    output: Output = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if the observed coverage contradicts the promise.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Coverage, size, SSCV, SAT, strata and classes of prediction sets, and whether the promise was kept.

    `--coverage` is used with a calibration only: sets know theirs. `--output` writes json, csv, md or html.
    """
    target = None if output is None else check_output(output, force=force, suffixes=_SUFFIXES)
    rows = read_rows(logits, labels)
    truth, known = _labels_and_logits(rows)
    with progress("evaluating"):
        made = _sets(sets, known, coverage)
        evaluation = evicp.evaluate(made, truth, known)
    verdict = _verdict(evaluation)
    if target is not None:
        _write(evaluation, verdict, target)
    if as_json:
        print_json(_as_dict(evaluation, verdict))
    else:
        print_text(evaluation)
        if verdict is not None:
            print_text(f"\n{verdict}")
        if target is not None:
            note(f"wrote {target}")
    if check and (verdict is None or not verdict.compatible):
        raise typer.Exit(1)


def _labels_and_logits(rows: Rows) -> tuple[Any, Any]:
    """True labels, and the logits unless the file holds labels alone."""
    if rows.has_labels:
        return rows.labels, rows.logits
    alone = rows.logits
    if alone.ndim == 1 and alone.dtype.kind in "iu":
        return alone, None
    raise FileError(f"{rows.source} has no labels. Give them with --labels labels.npy.")


def _sets(path: str, logits: Any, coverage: float) -> PredictionSets:
    """Sets from their file, or predicted by a calibration."""
    if Path(path).suffix != ".safetensors":
        return read_sets(path)
    if logits is None:
        raise FileError("a calibration needs logits to predict with; labels alone can only be held against sets.")
    return evicp.load(path).predict(np.asarray(logits), coverage)


def _verdict(evaluation: Evaluation) -> Compatibility | None:
    """Whether the coverage observed is what n calibration rows let one expect; None where nothing was promised."""
    if evaluation.n_calibration is None:
        return None
    law = evicp.Reliability(evaluation.n_calibration, evaluation.target)
    return law.compatible(evaluation.coverage, evaluation.n)


def _as_dict(evaluation: Evaluation, verdict: Compatibility | None) -> dict[str, Any]:
    promise = None
    if verdict is not None:
        names = ("observed", "m", "low", "high", "confidence", "compatible")
        promise = {name: getattr(verdict, name) for name in names}
    return {**evaluation.to_dict(), "promise": promise}


def _write(evaluation: Evaluation, verdict: Compatibility | None, target: Path) -> None:
    if target.suffix == ".html":
        from evicp import report

        report.of_evaluation(evaluation).write(target)
    elif target.suffix == ".md":
        write_text(target, evaluation.to_markdown() + (f"\n\n{verdict}\n" if verdict is not None else "\n"))
    elif target.suffix == ".csv":
        write_text(target, csv_text(["metric", "value"], metric_rows(_as_dict(evaluation, verdict))))
    else:
        write_text(target, json_text(_as_dict(evaluation, verdict)))
