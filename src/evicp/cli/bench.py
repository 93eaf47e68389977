"""`evicp bench`: what a computation costs here, in reads of the logits."""

from __future__ import annotations

from typing import Annotated

import typer

from evicp.cli import options
from evicp.cli.printing import print_result
from evicp.progress import progress


@options.examples("evicp bench", "evicp bench --rows 5000 --classes 100 --json")
def bench(
    rows: Annotated[int, typer.Option(help="Rows of logits.", min=100, max=10**9)] = 50_000,
    classes: Annotated[int, typer.Option(help="Classes.", min=2, max=10**6)] = 1000,
    rounds: Annotated[int, typer.Option(help="Measured rounds; medians are reported.", min=1)] = 7,
    as_json: options.Json = False,
) -> None:
    """Measure the time of calibration, sets and a temperature fit, relative to one read of the logits."""
    from evicp.bench import measure_ours

    with progress("measuring"):
        timings = measure_ours(rows, classes, rounds)
    print_result(as_json, timings.to_dict(), timings)
