"""Claim: one trial of the paper (calibrate 30 %, predict and evaluate 70 %) is two orders of magnitude faster."""

from __future__ import annotations

import argparse
import subprocess
import sys

import common
import paper_procedure

from evicp import calibrate, evaluate
from evicp.bench import FLOOR, Timings, imagenet_like

_MEMORY = """
import sys
from evicp import bench, calibrate, evaluate
logits, labels = bench.imagenet_like({n}, {k})
calibration = calibrate(logits[:100], labels[:100]); calibration.predict(logits[:100], 0.9)
before, cut = bench.peak_memory(), int(0.3 * {n})
sets = calibrate(logits[:cut], labels[:cut]).predict(logits[cut:], 0.9)
evaluate(sets, labels[cut:], logits[cut:])
print((logits.nbytes + bench.peak_memory() - before) / logits.nbytes)
"""


def ours(logits, labels, cut):
    """One trial through the public calls."""
    sets = calibrate(logits[:cut], labels[:cut]).predict(logits[cut:], 0.9)
    return evaluate(sets, labels[cut:], logits[cut:])


def measure(options: argparse.Namespace) -> Timings:
    """One ECP trial: ours, the plain procedure, one read."""
    logits, labels = imagenet_like(options.n, options.k)
    cut = int(0.3 * options.n)
    theirs, own = paper_procedure.trial(logits, labels, cut), ours(logits, labels, cut)
    same = all(abs(theirs[name] - getattr(own, name)) < 1e-3 for name in ("coverage", "mean_size", "sscv", "sat"))
    print("same coverage, size, SSCV and SAT:", "yes" if same else "NO")
    workloads = {
        FLOOR: logits.sum,
        "evicp trial": lambda: ours(logits, labels, cut),
        "plain procedure": lambda: paper_procedure.trial(logits, labels, cut),
    }
    timings = common.interleaved(f"one paper trial, {options.n:,} x {options.k:,} float32", workloads, options)
    print(f"plain procedure / ours: {timings.ratio('plain procedure', 'evicp trial'):.0f} x")
    code = _MEMORY.format(n=options.n, k=options.k)
    memory = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    print(f"memory during our trial, logits included: {float(memory):.3f} x the logits")
    return timings


if __name__ == "__main__":
    common.run("paper_trial", measure, n=50_000, k=1000, rounds=3)
