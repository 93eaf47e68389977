"""`evicp compare`: several scores on the same random splits."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import evicp
from evicp.blocks import Rows, names_for
from evicp.cli.common import (
    ClassNames,
    Coverage,
    Force,
    Json,
    Labels,
    LogitsFiles,
    Output,
    Scores,
    Seed,
    check_output,
    examples,
    json_text,
    note,
    note_start,
    parse_score,
    print_json,
    print_table,
    print_text,
    progress,
)
from evicp.cli.inputs import labels_of, read_class_names, read_rows
from evicp.errors import InputError
from evicp.evaluation.compare import Comparison
from evicp.input import validate
from evicp.io.paths import write_whole
from evicp.method.scores import USUAL
from evicp.tables import csv_table

__all__ = ["CalibrationRows", "Temperature", "compare", "parse_row_count", "parse_temperature"]

_SUFFIXES = (".json", ".csv", ".md", ".html")
_DEFAULT = [*USUAL, "base"]

Temperature = Annotated[
    str,
    typer.Option(
        metavar="NUMBER|split|holdout",
        help="A number; split: fitted on rows of their own; holdout: on the calibration rows, as in the paper.",
    ),
]

CalibrationRows = Annotated[
    str,
    typer.Option(
        "--calibration",
        metavar="SHARE|ROWS",
        help="What to calibrate on: a share of the rows (0.3), or how many of them (300). The others are tested.",
    ),
]


@examples(
    "evicp compare val.npz",
    "evicp compare val.npz -s ecp -s lac -s 'raps(lam=0.5)' --coverage 0.95 --temperature split",
    "evicp compare val.npz -s auto -s ecp -s lac",
    "evicp compare val.npz -o comparison.html",
)
def compare(
    logits: LogitsFiles,
    labels: Labels = None,
    score: Scores = _DEFAULT,
    coverage: Coverage = 0.9,
    trials: Annotated[int, typer.Option(help="How many random splits.", min=1)] = 10,
    seed: Seed = 0,
    calibration: CalibrationRows = "0.3",
    temperature: Temperature = "1.0",
    class_names: ClassNames = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Coverage, size, SSCV and SAT of several scores on the same random splits of labelled rows.

    `--output` writes json, csv or md, or the interactive report of one split as html.
    """
    inputs = (logits, labels, class_names)
    target = None if output is None else check_output(output, force=force, suffixes=_SUFFIXES, inputs=inputs)
    scores = ["auto" if text.lower() == "auto" else parse_score(text, conformal=False) for text in score]
    warm, used = parse_temperature(temperature), parse_row_count(calibration)
    if target is not None and target.suffix == ".html":
        _require_report(warm, scores, coverage)
    given = read_class_names(class_names)
    rows = read_rows(logits, labels, labelled=True)
    rows = replace(rows, class_names=names_for(rows, given))
    truth = labels_of(rows)
    with progress("comparing the scores"):
        result = evicp.compare(
            rows.logits,
            truth,
            scores,
            coverage,
            trials=trials,
            seed=seed,
            calibration=used,
            temperature=warm,
        )
    if target is not None:
        _write(result, target, rows, scores, {"calibration": used, "temperature": warm, "seed": seed})
    if as_json:
        print_json(result.to_dict())
        return
    print_table(*result.table())
    print_text(result.caption)
    if target is not None:
        note(f"wrote {target}")


def _require_report(temperature: float | str, scores: list[Any], coverage: float) -> None:
    """Raise, before the work, where its results cannot be shown as a report."""
    from evicp.report.curves import position
    from evicp.report.page import require_plotly

    if temperature == "holdout":
        raise InputError("a report keeps the guarantee: use --temperature split, or a number.")
    if "auto" in scores:
        raise InputError("a report shows scores by name; find the best with evicp tune, and give that one.")
    position(coverage)
    require_plotly()


def parse_temperature(text: str) -> float | Literal["split", "holdout"]:
    """A temperature from the command line."""
    value: float | str = text
    with suppress(ValueError):
        value = float(text)
    result: float | Literal["split", "holdout"] = validate.as_temperature(value, "split", "holdout")
    return result


def parse_row_count(text: str) -> float | int:
    """A share of the rows, or a whole number of them, from the command line."""
    try:
        return int(text) if text.strip().isdigit() else float(text)
    except ValueError:
        raise InputError(f"--calibration must be a share in (0, 1) or a number of rows; got {text!r}.") from None


def _write(result: Comparison, target: Path, rows: Rows, scores: list[Any], how: dict[str, Any]) -> None:
    if target.suffix == ".html":
        from evicp import report

        page = report.split(
            rows.logits,
            rows.labels,
            scores,
            coverage=result.coverage,
            class_names=rows.class_names,
            title="Scores compared",
            **how,
        )
        page.write(target)
        note_start(page, result.coverage)
    elif target.suffix == ".md":
        write_whole(target, result.to_markdown() + "\n")
    elif target.suffix == ".csv":
        metrics = result.to_dict()["scores"]
        lines = [
            [name, metric, v["median"], v["mean"], v["std"]] for name, m in metrics.items() for metric, v in m.items()
        ]
        write_whole(target, csv_table(["score", "metric", "median", "mean", "std"], lines))
    else:
        write_whole(target, json_text(result.to_dict()))
