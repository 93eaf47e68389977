"""Claim: a fresh process calibrates and predicts within milliseconds of its imports; nothing is compiled then.

`--python` is that of the environment to measure: an ordinary installation (`pip install .`), as an editable one takes
longer to import. `--other` may be one with another version. Nothing is cached but Python's own compiled code.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np

from evicp.bench import Timing, Timings
from evicp.datasets import load_imagenet_sample

_CODE = """
import time, numpy as np
z = np.random.default_rng(0).normal(size=(1500, 1000)).astype(np.float32) + 1; y = np.zeros(1500, int)
start = time.perf_counter()
{body}
print(time.perf_counter() - start)
"""
_IMPORT = "import evicp"
_FIRST = """
import evicp
evicp.calibrate(z, y).predict(z[0], 0.9)
"""
_HELP, _PLAN = [["--help"]], [["plan", "--coverage", "0.9"]]
_WORK = [
    ["calibrate", "sample.npz", "--output", "cal.safetensors"],
    ["predict", "cal.safetensors", "sample.npz", "--output", "sets.npz"],
    ["evaluate", "sets.npz", "sample.npz"],
]


def _run(command: list[str], home: str) -> str:
    environment = {**os.environ, "HOME": home, "NUMBA_CACHE_DIR": home}  # the latter is for versions that used Numba
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Python's own code is kept, as it is when installed
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=True).stdout


def wall_seconds(python: str, body: str, home: str) -> float:
    """The wall time of some code in a fresh process, beyond `import numpy`."""
    return float(_run([python, "-c", _CODE.format(body=body)], home))


def cpu_seconds(python: str, commands: list[list[str]], home: str) -> float:
    """The CPU time of some commands of `evicp`, one after the other, each in a separate process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for arguments in commands:
        _run([str(Path(python).with_name("evicp")), *arguments], home)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(options: argparse.Namespace) -> Timings:
    """First calls in Python (wall time) and on the command line (CPU time), in new processes with an empty home."""
    cases: dict[str, tuple[Callable[..., float], object]] = {
        "import evicp": (wall_seconds, _IMPORT),
        "import, calibrate, predict one row": (wall_seconds, _FIRST),
        "evicp --help, CPU": (cpu_seconds, _HELP),
        "evicp plan, CPU": (cpu_seconds, _PLAN),
        "evicp calibrate + predict + evaluate, CPU": (cpu_seconds, _WORK),
    }
    pythons = {"": options.python} | ({"other version: ": options.other} if options.other else {})
    seconds = {prefix + what: [] for what in cases for prefix in pythons}
    sample = load_imagenet_sample()
    for _ in range(options.rounds):
        for what, (clock, work) in cases.items():
            for prefix, python in pythons.items():
                with tempfile.TemporaryDirectory() as home:
                    np.savez(Path(home) / "sample.npz", logits=sample.logits, labels=sample.labels)
                    seconds[prefix + what].append(clock(python, work, home))
    return Timings(
        "first calls in new processes", tuple(Timing(name, tuple(values)) for name, values in seconds.items()), {}
    )


if __name__ == "__main__":
    common.run("first_call", measure, clock=None, rounds=5, python=sys.executable, other="")
