"""Claim: a user's first calibrate and predict compile once; afterwards a new process starts at once."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import common

from evicp.bench import Timing, Timings

_CODE = """
import time, numpy as np
z = np.random.default_rng(0).normal(size=(200, 1000)).astype(np.float32) + 1; y = np.zeros(200, int)
start = time.perf_counter()
{body}
print(time.perf_counter() - start)
"""
_NUMBA = "import numba"
_FIRST = """
import evicp
evicp.calibrate(z, y).predict(z, 0.9)
"""
#: The least that anything compiled by Numba takes: its registries, and what it asks of SciPy.
_LINE = """
import numba

@numba.njit(cache=True)
def first(x):
    return x[0]
"""


def seconds(body: str, cache: str) -> float:
    """The wall time of some code in a fresh process whose compiled kernels are cached in `cache`."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Python's own code is kept as well, as it is when installed
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [cache, os.environ.get("PYTHONPATH")]))
    run = [sys.executable, "-c", _CODE.format(body=body)]
    return float(subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout)


def measure(options: argparse.Namespace) -> Timings:
    """First calibrate + predict in a new process: cold, cached, a plain `import numba`, one line of Numba's, cached."""
    cold, cached, numba, line = [], [], [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            (Path(cache) / "one_line.py").write_text(_LINE)
            call = "from one_line import first; first(z[0])"
            cold.append(seconds(_FIRST, cache))
            cached.append(seconds(_FIRST, cache))
            numba.append(seconds(_NUMBA, cache))
            seconds(call, cache)
            line.append(seconds(call, cache))
    timings = (
        Timing("import numba", tuple(numba)),
        Timing("one line by Numba, cached", tuple(line)),
        Timing("first call, cold", tuple(cold)),
        Timing("first call, cached", tuple(cached)),
    )
    return Timings("first calibrate + predict in a new process", timings, {})


if __name__ == "__main__":
    common.run("first_call", measure, rounds=3)
