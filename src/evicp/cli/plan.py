"""`evicp plan`: how many calibration rows does a promise need?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

import evicp
from evicp.calibration.planning import share_within
from evicp.calibration.ranks import rows_needed
from evicp.calibration.reliability import Reliability
from evicp.cli.common import Coverage, Json, examples, print_json, print_table, print_text, progress

__all__ = ["plan"]


@examples(
    "evicp plan --coverage 0.9 --tolerance 0.01",
    "evicp plan --coverage 0.95 --tolerance 0.005 --confidence 0.99",
)
def plan(
    coverage: Coverage = 0.9,
    tolerance: Annotated[float, typer.Option("--tolerance", "-t", help="How far coverage may be off.")] = 0.01,
    confidence: Annotated[
        float, typer.Option(help="The share of calibration sets that must stay within the tolerance.")
    ] = 0.95,
    as_json: Json = False,
) -> None:
    """The smallest number of calibration rows from which on coverage stays within the tolerance.

    Coverage differs between calibration sets; with n rows it follows a Beta law. The table shows what other n give.
    """
    with progress("planning"):
        rows = evicp.plan(coverage, tolerance, confidence)
    smallest = rows_needed(coverage)
    laws = [Reliability(n, coverage) for n in sorted({smallest, 100, 300, 1000, 3000, 10_000, 30_000, rows}) if n >= 1]
    table: list[dict[str, Any]] = [
        {"rows": law.n, "within": share_within(law.n, coverage, tolerance), "interval": list(law.interval(confidence))}
        for law in laws
    ]
    if as_json:
        print_json(
            {
                "coverage": coverage,
                "tolerance": tolerance,
                "confidence": confidence,
                "rows": rows,
                "smallest_finite": smallest,
                "table": table,
            }
        )
        return
    print_text(
        f"{rows:,} calibration rows: from there on, coverage lies within {tolerance:g} of {coverage:g} for at least "
        f"{confidence:g} of calibration sets.\n"
    )
    lines = [
        [f"{law.n:,}", *(f"{x:.4f}" if law.l else "-" for x in (row["within"], *row["interval"]))]
        for law, row in zip(laws, table, strict=True)
    ]
    central = f"{100 * confidence:g} %"
    print_table(["rows", f"within {tolerance:g}", f"{central} from", f"{central} to"], lines, bold=f"{rows:,}")
    print_text(
        f"\nwithin {tolerance:g}: the share of calibration sets whose coverage is that near to {coverage:g}.\n"
        f"from, to: where the middle {central} of them lie, as many below as above; "
        "an end may lie outside the tolerance."
    )
    print_text(f"Below {smallest:,} rows no finite threshold can promise {coverage:g}: every set would be full.")
