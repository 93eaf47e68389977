"""Claim: a file of logits larger than memory costs little more than reading it and the kernels."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import common
import numpy as np

import evicp
from evicp import blocks, kernels
from evicp.bench import Timing, Timings, imagenet_like, peak_memory
from evicp.evaluation.metrics import Evaluator

#: The yardstick is one read of the file through the block reader, plus what the kernels take of the work.
FLOOR = "one read of the file + kernels"
WORK = "calibrate + predict + evaluate"
TWO_PASSES = "the same, evaluated while predicting"


def write_rows(folder: Path, n: int, k: int, step: int = 10_000) -> None:
    """logits.npy, (n, k) float32, and labels.npy, written in pieces."""
    labels = np.empty(n, np.int64)
    with (folder / "logits.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (n, k)})
        for start in range(0, n, step):
            logits, labels[start : start + step] = imagenet_like(min(step, n - start), k, seed=start)
            file.write(logits.data)
    np.save(folder / "labels.npy", labels)


@contextmanager
def timed_kernels() -> Iterator[list[float]]:
    """Seconds spent inside the loops over logits."""
    spent, names = [0.0], ("label_scores", "ragged_sets", "label_ranks")
    plain = {name: getattr(kernels, name) for name in names}

    def timed(function):
        def call(*args):
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                spent[0] += time.perf_counter() - start

        return call

    for name in names:
        setattr(kernels, name, timed(plain[name]))
    try:
        yield spent
    finally:
        for name in names:
            setattr(kernels, name, plain[name])


def forget(path: Path) -> None:
    """Ask the system to drop what it remembers of a file, so that the next read comes from the disk."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_blocks(folder: Path, memory: str, cold: bool) -> dict[str, float]:
    """Calibrate, predict to a file and evaluate that file, all from disk; then read the file once."""
    path = folder / "logits.npy"
    rows = blocks.open_rows(path, memory=memory)
    drop = (lambda: forget(path)) if cold else (lambda: None)
    evicp.calibrate(*imagenet_like(2000, 32)).predict(imagenet_like(2000, 32)[0], 0.9)  # compiled before it is timed
    drop()
    start = time.perf_counter()
    with timed_kernels() as spent:
        calibration = blocks.calibrate(rows)
        drop()
        blocks.predict(calibration, rows, 0.9, folder / "sets.npz")
        drop()
        evaluation = blocks.evaluate(folder / "sets.npz", rows)
    work = time.perf_counter() - start
    drop()
    start = time.perf_counter()
    calibration = blocks.calibrate(rows)
    drop()
    blocks.predict(calibration, rows, 0.9, folder / "sets.npz", evaluator=(evaluator := Evaluator()))
    two, peak = time.perf_counter() - start, peak_memory()
    assert evaluator.finish().coverage == evaluation.coverage
    drop()
    start = time.perf_counter()
    for _ in rows:
        pass
    times = {"work": work, "two": two, "kernels": spent[0], "read": time.perf_counter() - start}
    return {**times, "peak": peak, "coverage": evaluation.coverage}


def at_once(folder: Path, memory: str, cold: bool) -> dict[str, float]:
    """The control: the same from arrays in memory."""
    logits, labels = np.load(folder / "logits.npy"), np.load(folder / "labels.npy")
    sets = evicp.calibrate(logits, labels).predict(logits, 0.9)
    return {"coverage": evicp.evaluate(sets, labels, logits).coverage, "peak": peak_memory()}


def measure(options: argparse.Namespace) -> Timings:
    """Logits on disk through calibrate, predict and evaluate: time against one read plus kernels, and memory."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        write_rows(Path(folder), options.n, options.k)
        runs = [_alone("in_blocks", folder, options) for _ in range(options.rounds)]
        control = _alone("at_once", folder, options)
    assert control["coverage"] == runs[0]["coverage"], "blocks changed the result"
    blocks_peak = max(run["peak"] for run in runs)
    print(f"peak resident memory: {blocks_peak / 2**20:,.0f} MiB in blocks of a budget of {options.memory}, ", end="")
    print(f"{control['peak'] / 2**20:,.0f} MiB at once\n")
    parts = {
        FLOOR: [run["read"] + run["kernels"] for run in runs],
        "one read of the file": [run["read"] for run in runs],
        "kernels": [run["kernels"] for run in runs],
        WORK: [run["work"] for run in runs],
        TWO_PASSES: [run["two"] for run in runs],
    }
    source = "the disk" if options.cold else "the system's cache"
    what = f"{options.n:,} x {options.k:,} float32 from {source}, peak {blocks_peak / 2**20:,.0f} MiB"
    return Timings(what, tuple(Timing(name, tuple(seconds)) for name, seconds in parts.items()), {})


def _alone(which: str, folder: str, options: argparse.Namespace) -> dict[str, float]:
    """Run in a separate process, whose peak memory is its own."""
    command = [sys.executable, __file__, "--alone", which, folder, options.memory, str(options.cold)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        which, folder, memory, cold = sys.argv[2:]
        print(json.dumps({"in_blocks": in_blocks, "at_once": at_once}[which](Path(folder), memory, cold == "1")))
    else:
        defaults = {"n": 1_000_000, "k": 1000, "memory": "256MiB", "cold": 0, "folder": tempfile.gettempdir()}
        common.run("out_of_core", measure, clock=None, rounds=3, **defaults)
