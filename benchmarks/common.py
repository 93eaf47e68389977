"""What the scripts share: arguments, the JSON file, the yardstick."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evicp.bench import Timings, interleave

RESULTS = Path(__file__).parent / "results"

#: On a machine with other work CPU time, that of all threads together, says more than the clock on the wall.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def interleaved(
    what: str,
    workloads: Mapping[str, Callable[[], Any]],
    options: argparse.Namespace,
    missing: Mapping[str, str] | None = None,
) -> Timings:
    """The workloads timed in turn, as the options say; `missing` says why a library is not among them."""
    what = f"{what}, {options.clock} time"
    return interleave(what, workloads, rounds=options.rounds, unavailable=missing or {}, clock=CLOCKS[options.clock])


def run(
    name: str,
    measure: Callable[[argparse.Namespace], Timings | list[Timings]],
    *,
    quiet: bool = False,
    clock: str | None = "wall",
    **defaults: Any,
) -> None:
    """Measure, print (unless quiet: `measure` prints itself), and write benchmarks/results/<name>.json."""
    parser = argparse.ArgumentParser(description=measure.__doc__)
    for option, default in {"rounds": 7, **defaults}.items():
        parser.add_argument(f"--{option}", type=type(default), default=default)
    if clock:  # other scripts measure by themselves
        parser.add_argument("--clock", choices=CLOCKS, default=clock)
    measured = measure(parser.parse_args())
    tables = measured if isinstance(measured, list) else [measured]
    for table in () if quiet else tables:
        print(table, end="\n\n")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps([table.to_dict() for table in tables], indent=1) + "\n")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
