"""Claim: a second Ray worker counts as a second process does, in full where scoring takes the time.

What a billion rows cost follows. EVICP_BACKEND=numpy makes scoring take the time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import common
from out_of_core import write_rows

import evicp
from evicp import blocks
from evicp.bench import Timing, Timings

#: Scoring-bound work: softplus takes an exponential and a logarithm more for each logit.
SCORE = evicp.ECP(evidence="softplus")


def work(folder: Path, workers: int) -> dict[str, float]:
    """Seconds of calibration and prediction over a file on this many workers, after a first, unmeasured time."""
    from evicp import ray

    rows = blocks.open_rows(folder / "logits.npy")
    with ray.connected(workers=workers):
        calibration = ray.calibrate_files(rows, SCORE)  # workers start and load their kernels
        acts = {
            "calibrate": lambda: ray.calibrate_files(rows, SCORE),
            "predict": lambda: ray.predict_files(calibration, rows, 0.9, folder / "sets.npz"),
        }
        found = {name: _seconds(act) for name, act in acts.items()}
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        spans = [(folder, len(rows) * i // workers, len(rows) * (i + 1) // workers) for i in range(workers)]
        found["plain processes"] = _seconds(lambda: list(pool.map(score, spans)))
    return found


def _seconds(act: Callable[[], Any]) -> float:
    act()
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def score(span: tuple[Path, int, int]) -> None:
    """The control: a share of the rows scored by a process that has nothing to do with Ray."""
    os.environ["EVICP_THREADS"] = "1"
    part, calibrator = blocks.open_rows(span[0] / "logits.npy").files[0], evicp.Calibrator(SCORE)
    for logits, labels in part.pieces(8000, *span[1:]):
        calibrator.update(logits, labels)


def measure(options: argparse.Namespace) -> list[Timings]:
    """Scoring-bound work over a file, one worker against two, and the cost of a billion rows.

    Two plain processes against one show what this machine has to give at the time.
    """
    runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        write_rows(Path(folder), options.n, options.k)
        for _ in range(options.rounds):
            for workers, found in runs.items():
                command = [sys.executable, __file__, "--alone", folder, str(workers)]
                found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    tables = []
    for act in runs[1][0]:
        timings = tuple(
            Timing(f"{workers} worker{'s' * (workers > 1)}", tuple(run[act] for run in found))
            for workers, found in runs.items()
        )
        tables.append(Timings(f"{act}, {options.n:,} x {options.k:,} float32", timings, {}))
        gain = 1 / tables[-1].ratio("2 workers", "1 worker")
        rate = options.n / timings[0].median
        print(
            f"{act}: two workers do {gain:.2f} times the rows of one; one worker {rate:,.0f} rows a second, "
            f"a billion rows of {options.k:,} classes {1e9 / rate / 3600:.1f} processor hours"
        )
    print()
    return tables


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        print(json.dumps(work(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        common.run("ray_workers", measure, clock=None, rounds=3, n=400_000, k=1000, folder=tempfile.gettempdir())
