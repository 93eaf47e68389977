"""What the scripts share: arguments, the JSON file, the yardstick."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evicp.bench import Timings

RESULTS = Path(__file__).parent / "results"


def run(
    name: str, measure: Callable[[argparse.Namespace], Timings | list[Timings]], *, quiet: bool = False, **defaults: Any
) -> None:
    """Measure, print (unless quiet: `measure` prints itself), and write benchmarks/results/<name>.json."""
    parser = argparse.ArgumentParser(description=measure.__doc__)
    for option, default in {"rounds": 7, **defaults}.items():
        parser.add_argument(f"--{option}", type=type(default), default=default)
    measured = measure(parser.parse_args())
    tables = measured if isinstance(measured, list) else [measured]
    for table in () if quiet else tables:
        print(table, end="\n\n")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps([table.to_dict() for table in tables], indent=1) + "\n")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
