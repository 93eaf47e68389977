"""`evicp report`: labelled logits to one interactive HTML file."""

from __future__ import annotations

from typing import Annotated

import typer

from evicp.blocks import Rows, names_for, same_names
from evicp.cli.common import (
    ClassNames,
    Coverage,
    Force,
    Json,
    Labels,
    LogitsFiles,
    Scores,
    Seed,
    check_output,
    examples,
    note_start,
    parse_score,
    print_json,
    print_text,
    progress,
    visible,
)
from evicp.cli.compare import CalibrationRows, Temperature, parse_row_count, parse_temperature
from evicp.cli.inputs import (
    Groups,
    load_calibration,
    read_class_names,
    read_groups,
    read_rows,
    require_groups,
)
from evicp.errors import InputError
from evicp.method.scores import USUAL
from evicp.report import Report, build, split
from evicp.report.page import require_plotly

__all__ = ["report"]

_DEFAULT = list(USUAL)


@examples(
    "evicp report val.npz -o report.html",
    "evicp report val.npz -o report.html -s ecp -s lac --temperature split --title 'Ward 7, March'",
    "evicp report test.npz --load cal.safetensors -o audit.html --coverage 0.95",
)
def report(
    context: typer.Context,
    logits: LogitsFiles,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write.")] = "report.html",
    labels: Labels = None,
    load: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="A calibration to report on; all rows are then tested. May be repeated."),
    ] = [],  # noqa: B006 - Typer wants the default as it is, and never changes it
    groups: Groups = None,
    score: Scores = _DEFAULT,
    coverage: Coverage = 0.9,
    calibration: CalibrationRows = "0.5",
    temperature: Temperature = "1.0",
    seed: Seed = 0,
    class_names: ClassNames = None,
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "Prediction sets",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """One self-contained HTML file: a slider of coverages, figures, certificate, classes, single rows.

    The rows are split at random into calibration and test rows, unless `--load` gives a calibration made elsewhere.
    """
    _refuse_ignored(context, load)
    inputs = (logits, labels, groups, class_names, *load)
    target = check_output(output, force=force, suffixes=(".html", ".htm"), inputs=inputs)
    require_plotly()
    scores = [parse_score(text, conformal=False) for text in score]
    warm, used = parse_temperature(temperature), parse_row_count(calibration)
    if warm == "holdout":
        raise InputError("a report keeps the guarantee: use --temperature split, or a number.")
    calibrations = [load_calibration(path) for path in load]
    for path, loaded in zip(load, calibrations, strict=True):
        require_groups(path, loaded, groups)
    if groups is not None and not any(loaded.guarantee == "group" for loaded in calibrations):
        raise InputError("--groups is for calibrations by group, and none of those given with --load is.")
    rows = read_rows(logits, labels, labelled=True)
    for path, loaded in zip(load, calibrations, strict=True):
        same_names(loaded, rows, path)
    names = names_for(rows, read_class_names(class_names))
    with progress("writing the report"):
        if calibrations:
            page = build(
                rows.logits,
                rows.labels,
                calibrations,
                coverage=coverage,
                class_names=names,
                title=title,
                groups=read_groups(groups, len(rows)),
            )
        else:
            page = split(
                rows.logits,
                rows.labels,
                scores,
                calibration=used,
                temperature=warm,
                seed=seed,
                class_names=names,
                coverage=coverage,
                title=title,
            )
        page.write(target)
    note_start(page, coverage)
    if as_json:
        print_json(_facts(page, rows, str(target)))
    else:
        print_text(f"report: {visible(target)}")


def _refuse_ignored(context: typer.Context, load: list[str]) -> None:
    """Raise where an option was given that the report would not look at."""
    ignored = ("score", "calibration", "temperature", "seed") if load else ("groups",)
    given = [name for name in ignored if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if given and load:
        raise InputError(f"--{given[0]} is for rows that are split; with --load nothing is calibrated. Leave it out.")
    if given:
        raise InputError("--groups is for calibrations by group: give one with --load.")


def _facts(page: Report, rows: Rows, target: str) -> dict[str, object]:
    return {
        "output": target,
        "title": page.title,
        "coverage": page.data["grid"][page.data["start"]],
        "rows": len(rows),
        "test_rows": page.data["m"],
        "n_classes": page.data["n_classes"],
        "scores": [method["name"] for method in page.data["methods"]],
    }
