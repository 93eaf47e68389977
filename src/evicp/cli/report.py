"""`evicp report`: labelled logits to one interactive HTML file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evicp.blocks import Rows, belong_together, names_for
from evicp.cli import inputs, options
from evicp.cli.outputs import about_files, check_output, note_start
from evicp.cli.printing import print_result, visible
from evicp.errors import InputError
from evicp.method.scores import USUAL
from evicp.progress import progress
from evicp.report import Report, build, split

_DEFAULT = list(USUAL)

Page = Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write.")]
Load = Annotated[
    list[str],
    typer.Option(
        metavar="FILE", help="A calibration to report on; all rows are then test rows. Repeat the option for several."
    ),
]


@options.examples(
    "evicp report val.npz -o report.html",
    "evicp report val.npz -o report.html -s ecp -s lac --temperature split --title 'Ward 7, March'",
    "evicp report test.npz --load cal.safetensors -o audit.html --author 'J. Doe' --note 'yearly audit'",
)
def report(
    context: typer.Context,
    logits: options.LogitsFiles,
    output: Page = "report.html",
    labels: options.Labels = None,
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    load: Load = [],  # noqa: B006 - Typer wants the default as it is, and never changes it
    groups: options.Groups = None,
    score: options.Scores = _DEFAULT,
    coverage: options.Coverage = 0.9,
    calibration: options.CalibrationRows = "0.5",
    temperature: options.Temperature = "1.0",
    seed: options.Seed = 0,
    class_names: options.ClassNames = None,
    title: options.Title = "Prediction sets",
    model: options.Model = "",
    data_set: options.DataSet = "",
    author: options.Author = "",
    note: options.Note = "",
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write an interactive HTML report: coverage slider, charts, certificate, classes, single rows.

    The rows are split at random into calibration and test rows, unless `--load` gives a calibration.
    """
    given = (logits, labels, groups, class_names, *load)
    target = check_output(output, force=force, suffixes=(".html", ".htm"), inputs=given)
    scores, how = _split(context, load, score, temperature, calibration, seed)
    rows = inputs.read_rows(logits, labels, (logits_column, labels_column), labelled=True)
    calibrations, names = _load(load, groups, rows), names_for(rows, inputs.read_class_names(class_names))
    look: Any = about_files(given, rows.made_by, model, data_set) | {"ids": rows.ids, "class_names": names}
    look |= {"coverage": coverage, "title": title, "author": author, "note": note}
    own = {"groups": inputs.read_groups(groups, len(rows))} if calibrations else how
    with progress("writing the report"):
        page = (build if calibrations else split)(rows.logits, rows.labels, calibrations or scores, **own, **look)
        page.write(target)
    note_start(page, coverage)
    print_result(as_json, _facts(page, rows, str(target)), f"report: {visible(target)}")


def _split(
    context: typer.Context, load: list[str], score: list[str], temperature: str, calibration: str, seed: int
) -> tuple[Any, dict[str, Any]]:
    """The scores, and how rows are split, if the guarantee is kept."""
    _refuse_ignored(context, load)
    how = options.parse_split(temperature, calibration, seed)
    require_guarantee(how["temperature"])
    return [options.parse_score(text, conformal=False) for text in score], how


def require_guarantee(temperature: float | str) -> None:
    """Raise where a report is wanted of rows that the temperature was fitted on."""
    if temperature == "holdout":
        raise InputError("a report needs scores with a guarantee: use --temperature split, or a number.")


def _refuse_ignored(context: typer.Context, load: list[str]) -> None:
    """Raise where an option was given that the report would not look at."""
    ignored = ("score", "calibration", "temperature", "seed") if load else ("groups",)
    given = options.given(context, *ignored)
    if given and load:
        raise InputError(f"--{given[0]} is only for reports that split the rows; leave it out with --load.")
    if given:
        raise InputError("--groups is for calibrations by group: give one with --load.")


def _load(paths: list[str], groups: str | None, rows: Rows) -> Any:
    """The calibrations of a report on these rows; those by group need the groups, and the groups one of those."""
    calibrations = [inputs.load_calibration(path) for path in paths]
    for path, loaded in zip(paths, calibrations, strict=True):
        inputs.require_groups(path, loaded, groups)
    if groups is not None and not any("groups" in loaded.law.needs for loaded in calibrations):
        raise InputError("--groups is for calibrations by group, and none of those given with --load is.")
    for path, loaded in zip(paths, calibrations, strict=True):
        belong_together(loaded, rows, path)
    return calibrations


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
