"""`evicp tune`: the best parameters of a score, or the best score, on separate rows."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from evicp.cli import inputs, options
from evicp.cli.printing import print_json, print_table, print_text
from evicp.errors import InputError
from evicp.progress import progress

Tunable = Annotated[
    str, typer.Option("--score", "-s", metavar="SCORE", help="A score to tune, or auto for the best of all families.")
]
Metric = Annotated[str, typer.Option(metavar="METRIC", help="The criterion: size, sscv or sat.")]
Grid = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=A,B,...", help="Candidates for a parameter. Repeat the option for several."),
]


@options.examples(
    "evicp tune tuning.npz",
    "evicp tune tuning.npz --score raps --by sscv --grid lam=0.001,0.01,0.1 --grid k_reg=1,5",
)
def tune(
    logits: options.LogitsFiles,
    score: Tunable = "auto",
    by: Metric = "sat",
    coverage: options.Coverage = 0.9,
    grid: Grid = None,
    labels: options.Labels = None,
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Tune a score on separate rows. Do not calibrate or test on them afterwards."""
    from evicp.evaluation import tuning

    rows = inputs.read_rows(logits, labels, (logits_column, labels_column), labelled=True)
    chosen: Any = score if score.lower() == "auto" else options.parse_score(score)
    truth, candidates = inputs.labels_of(rows), _parse_grid(grid)
    with progress("tuning"):
        result = tuning.tune(rows.logits, truth, chosen, by, coverage, candidates, seed=seed)  # type: ignore[arg-type]
    if as_json:
        print_json(result.to_dict())
        return
    best = result.best.describe()
    print_table(*result.table(), bold=f"* {best}")
    print_text(f"\n{result.caption}\n\n{result.why}")
    print_text(f"Next: evicp calibrate OTHER_ROWS --score '{best}' -o cal.safetensors")


def _parse_grid(texts: list[str] | None) -> dict[str, list[Any]] | None:
    """{"lam": [0.1, 1.0]} from "lam=0.1,1.0"; None where nothing was given."""
    if not texts:
        return None
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        if not separator or not values.strip():
            raise InputError(f"cannot read the grid {text!r}; write it as lam=0.01,0.1.")
        if name.strip() in grid:
            raise InputError(f"the grid of {name.strip()} is given twice; put all values into one: lam=0.01,0.1.")
        grid[name.strip()] = [_parse_value(value.strip()) for value in values.split(",")]
    return grid


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
