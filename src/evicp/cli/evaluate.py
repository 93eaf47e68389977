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
from evicp.cli.inputs import Groups, Rows, read_groups, read_rows
from evicp.cli.outputs import csv_text, json_text, metric_rows, write_text
from evicp.errors import FileError
from evicp.files import read_sets
from evicp.metrics import Evaluation

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
    groups: Groups = None,
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
    of_rows = read_groups(groups, len(rows))
    with progress("evaluating"):
        if Path(sets).suffix == ".safetensors":
            evaluation, verdict = _of_calibration(sets, truth, known, coverage, of_rows)
        else:
            evaluation = evicp.evaluate(read_sets(sets), truth, known, groups=of_rows)
            verdict = _of_sets(evaluation)
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
    if check and (verdict is None or not verdict["compatible"]):
        raise typer.Exit(1)


def _labels_and_logits(rows: Rows) -> tuple[Any, Any]:
    """True labels, and the logits unless the file holds labels alone."""
    if rows.has_labels:
        return rows.labels, rows.logits
    alone = rows.logits
    if alone.ndim == 1 and alone.dtype.kind in "iu":
        return alone, None
    raise FileError(f"{rows.source} has no labels. Give them with --labels labels.npy.")


def _of_calibration(
    path: str, labels: Any, logits: Any, coverage: float, groups: Any
) -> tuple[Evaluation, dict[str, Any] | None]:
    """The sets a calibration gives, evaluated, and held against what it promises, in each group where there are any."""
    if logits is None:
        raise FileError("a calibration needs logits to predict with; labels alone can only be held against sets.")
    calibration = evicp.load(path)
    array = np.asarray(logits)
    sets = calibration.predict(array, coverage, groups=groups)
    if sets.guarantee in ("group", "uncertainty"):
        groups = calibration.groups_of(array, groups)
    evaluation = evicp.evaluate(sets, labels, array, groups=groups)
    return evaluation, calibration.certificate(coverage, evaluation).observed


def _of_sets(evaluation: Evaluation) -> dict[str, Any] | None:
    """Whether the coverage observed is what n calibration rows let one expect; None where that cannot be told."""
    if evaluation.n_calibration is None or evaluation.guarantee != "marginal":
        return None
    law = evicp.Reliability(evaluation.n_calibration, evaluation.target, evaluation.target_confidence)
    check = law.compatible(evaluation.coverage, evaluation.n)
    names = ("m", "low", "high", "compatible")
    return {"coverage": check.observed, **{name: getattr(check, name) for name in names}}


def _sentence(promise: dict[str, Any]) -> str:
    verdict = "compatible" if promise["compatible"] else "NOT compatible"
    if "low" in promise:
        expected = f"[{promise['low']:.4f}, {promise['high']:.4f}], where 95 % of runs lie"
        return f"observed {promise['coverage']:.4f} on {promise['m']:,} rows: {verdict} with {expected}"
    strays = ", ".join(promise["incompatible"][:8])
    return f"{promise['groups']:,} groups: {verdict} with what each was promised" + (f" ({strays})" if strays else "")


def _as_dict(evaluation: Evaluation, promise: dict[str, Any] | None) -> dict[str, Any]:
    return {**evaluation.to_dict(), "promise": promise}


def _write(evaluation: Evaluation, promise: dict[str, Any] | None, target: Path) -> None:
    if target.suffix == ".html":
        from evicp import report

        report.of_evaluation(evaluation).write(target)
    elif target.suffix == ".md":
        write_text(target, evaluation.to_markdown() + (f"\n\n{_sentence(promise)}\n" if promise is not None else "\n"))
    elif target.suffix == ".csv":
        write_text(target, csv_text(["metric", "value"], metric_rows(_as_dict(evaluation, promise))))
    else:
        write_text(target, json_text(_as_dict(evaluation, promise)))
