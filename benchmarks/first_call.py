"""Claim: a fresh process calibrates and predicts within milliseconds of its imports; nothing is compiled then."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

import common

from evicp.bench import Timing, Timings

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


def seconds(body: str, home: str) -> float:
    """The wall time of some code in a fresh process with an empty home, beyond `import numpy`."""
    environment = {**os.environ, "HOME": home}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Python's own code is kept, as it is when installed
    run = [sys.executable, "-c", _CODE.format(body=body)]
    return float(subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout)


def measure(options: argparse.Namespace) -> Timings:
    """`import evicp`, and with it the first calibrate and predict, in a new process."""
    imported, first = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as home:
            imported.append(seconds(_IMPORT, home))
            first.append(seconds(_FIRST, home))
    timings = Timing("import evicp", tuple(imported)), Timing("import, calibrate, predict one row", tuple(first))
    return Timings("first calibrate + predict in a new process", timings, {})


if __name__ == "__main__":
    common.run("first_call", measure, rounds=5)
