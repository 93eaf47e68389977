"""Claim: no score takes longer than in another version of evicp, at any number of classes.

`--other` is the Python of an environment where that version is installed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
import numpy as np

from evicp.bench import Timing, Timings
from evicp.tables import text_table

_SCORES = "ecp,lac,aps,raps,saps,topk,margin"
_CALLS = "label scores,calibrate,sets"
_CLASSES = "10,100,1000,10000,100000"
_CLOCKS = ("wall", "CPU")


@contextmanager
def version(python: str) -> Iterator[Any]:
    """A function of a case that gives its wall and CPU seconds with this Python, in a process that stays."""
    command = [python, str(Path(__file__).with_name("timed_calls.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def seconds(**case: Any) -> tuple[float, float]:
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            return tuple(json.loads(process.stdout.readline()))

        yield seconds
        process.stdin.close()


def measure(options: argparse.Namespace) -> list[Timings]:
    """Label scores, calibrations and sets of all scores, at 10 to 100,000 classes, with both versions in turn."""
    tables, least = [], {}
    scores, classes = options.scores.split(","), [int(k) for k in options.classes.split(",")]
    calls = options.calls.split(",")
    with version(sys.executable) as here, version(options.other) as there:
        for k in classes:
            n, timings = options.logits // k, []
            for score, what in ((score, what) for score in scores for what in calls):
                runs = np.array(
                    [
                        [run(n=n, k=k, score=score, what=what) for run in (here, there)]
                        for _ in range(options.rounds + 1)
                    ]
                )[1:]
                for i, clock in enumerate(_CLOCKS):
                    timings += [
                        Timing(f"{score} {what}, {name}, {clock}", tuple(runs[:, j, i]))
                        for j, name in enumerate(("this version", "other version"))
                    ]
                    least[score, what, k, clock] = np.divide(*runs[:, :, i].min(0))
            tables.append(Timings(f"{n:,} x {k:,} float32", tuple(timings), {}))
    for clock in _CLOCKS:
        ratios = {case[:3]: ratio for case, ratio in least.items() if case[3] == clock}
        _print_ratios(clock, calls, scores, classes, ratios)
    return tables


def _print_ratios(
    clock: str, calls: list[str], scores: list[str], classes: list[int], ratios: dict[tuple[str, str, int], float]
) -> None:
    print(f"this version's {clock} time / the other's, shortest of all rounds\n")
    for what in calls:
        table = np.array([[ratios[score, what, k] for k in classes] for score in scores])
        rows = [[score, *(f"{ratio:.2f}" for ratio in row)] for score, row in zip(scores, table, strict=True)]
        print(text_table([what, *(f"K = {k:,}" for k in classes)], rows))
        print(f"geometric mean {np.exp(np.log(table).mean()):.2f}, largest {table.max():.2f}\n")


if __name__ == "__main__":
    settings = {"other": sys.executable, "logits": 10_000_000, "scores": _SCORES, "classes": _CLASSES, "calls": _CALLS}
    common.run("against_version", measure, clock=None, quiet=True, **settings)
