"""`evicp plan`: how many calibration rows does a guarantee need?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evicp.calibration.planning import plan as plan_rows
from evicp.calibration.planning import share_within
from evicp.calibration.ranks import rows_needed
from evicp.calibration.reliability import Reliability
from evicp.cli import options
from evicp.cli.printing import print_json, print_table, print_text
from evicp.progress import progress

Tolerance = Annotated[float, typer.Option("--tolerance", "-t", help="The largest allowed distance from the coverage.")]
Confidence = Annotated[float, typer.Option(help="The share of calibration sets that must stay within the tolerance.")]


@options.examples(
    "evicp plan --coverage 0.9 --tolerance 0.01",
    "evicp plan --coverage 0.95 --tolerance 0.005 --confidence 0.99",
)
def plan(
    coverage: options.Coverage = 0.9,
    tolerance: Tolerance = 0.01,
    confidence: Confidence = 0.95,
    as_json: options.Json = False,
) -> None:
    """Compute how many calibration rows keep coverage within a tolerance.

    Coverage differs between calibration sets; with n rows it follows a Beta distribution. The table shows other n.
    """
    with progress("planning"):
        rows = plan_rows(coverage, tolerance, confidence)
    smallest = rows_needed(coverage)
    counts = sorted({smallest, 100, 300, 1000, 3000, 10_000, 30_000, rows} - {0})
    table = [_law(n, coverage, tolerance, confidence) for n in counts]
    if as_json:
        wanted = {"coverage": coverage, "tolerance": tolerance, "confidence": confidence}
        print_json({**wanted, "rows": rows, "smallest_finite": smallest, "table": table})
        return
    central = f"{100 * confidence:g} %"
    lines = [
        [
            f"{law['rows']:,}",
            *(f"{x:.4f}" if law["rows"] >= smallest else "-" for x in (law["within"], *law["interval"])),
        ]
        for law in table
    ]
    print_text(
        f"With {rows:,} or more calibration rows, coverage is within {tolerance:g} of {coverage:g} for at least "
        f"{central} of calibration sets.\n"
    )
    print_table(["rows", f"within {tolerance:g}", f"{central} from", f"{central} to"], lines, bold=f"{rows:,}")
    print_text(
        f"\nwithin {tolerance:g}: the share of calibration sets with coverage within {tolerance:g} of {coverage:g}.\n"
        f"from, to: an equal-tailed interval of the coverage; it may extend beyond the tolerance.\n"
        f"With fewer than {smallest:,} rows no finite threshold guarantees {coverage:g}: every set is full."
    )


def _law(n: int, coverage: float, tolerance: float, confidence: float) -> dict[str, Any]:
    """What the coverage of n calibration rows is like: near to the target how often, and where mostly."""
    interval = list(Reliability(n, coverage).interval(confidence))
    return {"rows": n, "within": share_within(n, coverage, tolerance), "interval": interval}
