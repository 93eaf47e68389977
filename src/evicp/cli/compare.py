"""`evicp compare`: several scores on the same random splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import evicp
from evicp.blocks import Rows, names_for
from evicp.cli import inputs, options
from evicp.cli.outputs import RESULT_SUFFIXES, about_files, check_output, note_start, write_result
from evicp.cli.printing import note, print_json, print_table, print_text
from evicp.errors import InputError
from evicp.evaluation.compare import Comparison
from evicp.method.scores import USUAL
from evicp.progress import progress

_DEFAULT = [*USUAL, "base"]

Trials = Annotated[int, typer.Option(help="The number of random splits.", min=1)]


@options.examples(
    "evicp compare val.npz",
    "evicp compare val.npz -s ecp -s lac -s 'raps(lam=0.5)' --coverage 0.95 --temperature split",
    "evicp compare val.npz -s auto -s ecp -s lac",
    "evicp compare val.npz -o comparison.html",
)
def compare(
    logits: options.LogitsFiles,
    labels: options.Labels = None,
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    score: options.Scores = _DEFAULT,
    coverage: options.Coverage = 0.9,
    trials: Trials = 10,
    seed: options.Seed = 0,
    calibration: options.CalibrationRows = "0.3",
    temperature: options.Temperature = "1.0",
    class_names: options.ClassNames = None,
    output: options.Output = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Compare scores by coverage, size, SSCV and SAT on the same random splits of labelled rows.

    `--output` writes json, csv or md, or the interactive report of one split as html.
    """
    target = check_output(output, force=force, suffixes=RESULT_SUFFIXES, inputs=(logits, labels, class_names))
    scores = ["auto" if text.lower() == "auto" else options.parse_score(text, conformal=False) for text in score]
    how = options.parse_split(temperature, calibration, seed)
    if target is not None and target.suffix == ".html":
        _require_report(how["temperature"], scores, coverage)
    given = inputs.read_class_names(class_names)
    rows = inputs.read_rows(logits, labels, (logits_column, labels_column), labelled=True)
    rows = replace(rows, class_names=names_for(rows, given))
    truth = inputs.labels_of(rows)
    with progress("comparing the scores"):
        result = evicp.compare(rows.logits, truth, scores, coverage, trials=trials, **how)
    if target is not None:
        _write(result, target, rows, scores, how, about_files((logits, labels, class_names), rows.made_by))
    if as_json:
        print_json(result.to_dict())
        return
    print_table(*result.table())
    print_text(result.caption)
    if target is not None:
        note(f"wrote {target}")


def _require_report(temperature: float | str, scores: list[Any], coverage: float) -> None:
    """Raise, before the work, where its results cannot be shown as a report."""
    from evicp.cli.report import require_guarantee
    from evicp.report.curves import position

    require_guarantee(temperature)
    if "auto" in scores:
        raise InputError("a report needs scores by name; find the best with evicp tune, and pass that one.")
    position(coverage)


def _write(
    result: Comparison, target: Path, rows: Rows, scores: list[Any], how: dict[str, Any], about: dict[str, Any]
) -> None:
    def page() -> str:
        from evicp import report

        look = {**how, "coverage": result.coverage, "class_names": rows.class_names, "title": "Scores compared"}
        made = report.split(rows.logits, rows.labels, scores, ids=rows.ids, **look, **about)
        note_start(made, result.coverage)
        return made.to_html()

    columns = ["median", "mean", "std"]
    lines = [
        [name, metric, *(values[column] for column in columns)]
        for name, metrics in result.to_dict()["scores"].items()
        for metric, values in metrics.items()
    ]
    table = [["score", "metric", *columns], *lines]
    write_result(target, result.to_dict(), result.to_markdown(), table, page)
