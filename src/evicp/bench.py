"""Measure speed as ratios: interleaved rounds in one run, with one plain read of the logits as reference.

Seconds on a shared machine are unreliable; the number of reads of the data that take equally long is more stable. The
scripts in `benchmarks/` make one claim each with these functions, `evicp bench` runs the claims that need no peer
library.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import __version__, calibrate, fit_temperature
from evicp.datasets import load_imagenet_sample
from evicp.method.scores import USUAL
from evicp.tables import text_table
from evicp.types import I64

#: The name of the workload all others are compared with.
FLOOR = "one read: logits.sum()"

_PACKAGES = ("numpy", "scipy", "torch", "triton", "torchcp", "mapie")


@dataclass(frozen=True)
class Timing:
    """The seconds of one workload in each round."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over rounds."""
        return float(np.median(self.seconds))


@dataclass(frozen=True)
class Timings:
    """Workloads measured side by side."""

    what: str
    timings: tuple[Timing, ...]
    unavailable: Mapping[str, str]

    def __getitem__(self, name: str) -> Timing:
        return next(t for t in self.timings if t.name == name)

    def ratio(self, name: str, to: str = FLOOR) -> float:
        """How many times the other workload's time this one takes: the median of the ratios of each round."""
        mine, others = np.array(self[name].seconds), np.array(self[to].seconds)
        return float(np.median(mine / others))

    def __str__(self) -> str:
        first = self.timings[0].name
        rows = [[t.name, f"{t.median * 1e3:,.2f}", f"{self.ratio(t.name, first):,.2f}"] for t in self.timings]
        rows += [[name, "-", reason] for name, reason in self.unavailable.items()]
        return f"{self.what}\n{text_table(['workload', 'ms', f'x {self.timings[0].name}'], rows)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the machine they were measured on."""
        return {
            "what": self.what,
            "machine": machine(),
            "seconds": {t.name: list(t.seconds) for t in self.timings},
            "median_ratio": {t.name: self.ratio(t.name, self.timings[0].name) for t in self.timings},
            "unavailable": dict(self.unavailable),
        }


def interleave(
    what: str,
    workloads: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 7,
    unavailable: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Run each workload once per round, after one unmeasured round; the first named one is the yardstick.

    Parameters
    ----------
    clock : `time.process_time` measures the CPU time of all threads instead
    """
    seconds: dict[str, list[float]] = {name: [] for name in workloads}
    for current in range(rounds + 1):
        for name, workload in workloads.items():
            start = clock()
            workload()
            elapsed = clock() - start
            if current:
                seconds[name].append(elapsed)
    timings = tuple(Timing(name, tuple(values)) for name, values in seconds.items())
    return Timings(what, timings, unavailable or {})


def imagenet_like(n: int, n_classes: int = 1000, seed: int = 0) -> tuple[NDArray[np.float32], I64]:
    """Logits similar to a real network's: rows of the embedded sample with a little noise, for any K.

    Fewer than 1,000 classes: the first K, the true one in place of one of them. More: the row's lower half over again.
    Either way the true label stays as plausible as the network made it, so sets have a realistic size at every K.
    """
    sample = load_imagenet_sample()
    rng = np.random.default_rng(seed)
    rows = np.arange(n) % len(sample.logits)
    labels = sample.labels[rows].astype(np.int64)
    logits = np.empty((n, n_classes), np.float32)
    block = max(1, (1 << 24) // max(n_classes, sample.logits.shape[1]))
    for start in range(0, n, block):
        part = sample.logits[rows[start : start + block]].astype(np.float32)
        here, true = np.arange(len(part)), labels[start : start + block]
        background = np.minimum(part, np.median(part, axis=1, keepdims=True))
        tiled = np.concatenate([part, *[background] * (-(-n_classes // 1000) - 1)], axis=1)[:, :n_classes]
        tiled[here, true % n_classes] = part[here, true]
        logits[start : start + block] = tiled + rng.normal(0, 0.1, tiled.shape).astype(np.float32)
    return logits, labels % n_classes


def measure_ours(n: int, n_classes: int, rounds: int = 7) -> Timings:
    """What `evicp bench` shows: calibration scores, sets and a temperature fit, against one read of the logits."""
    logits, labels = imagenet_like(n, n_classes)
    workloads: dict[str, Callable[[], Any]] = {FLOOR: logits.sum}
    for name in USUAL:
        calibration = calibrate(logits, labels, name)
        workloads[f"{name}: calibrate"] = partial(calibrate, logits, labels, name)
        workloads[f"{name}: sets at 0.9"] = partial(calibration.predict, logits, 0.9)
    workloads["fit a temperature"] = lambda: fit_temperature(logits, labels)
    return interleave(f"{n:,} x {n_classes:,} float32 logits", workloads, rounds=rounds)


def machine() -> dict[str, Any]:
    """The machine and the versions of a measurement."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "evicp": __version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "packages": versions,
    }


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def peak_memory() -> int:
    """The peak resident memory of this process in bytes; not on Windows."""
    import resource  # which Windows does not have

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
