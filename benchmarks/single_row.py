"""Claim: one row through the public call takes tens of microseconds, so it can sit in a request handler."""

from __future__ import annotations

import argparse

import common

from evicp import APS, ECP, LAC, RAPS, calibrate, kernels
from evicp.bench import Timings, imagenet_like, interleave

_REPEATS = 1000


def measure(options: argparse.Namespace) -> Timings:
    """calibration.predict(row) for K classes, 1,000 calls a round; milliseconds of a round are microseconds a call."""
    logits, labels = imagenet_like(5000, options.k)
    row = logits[0].copy()
    workloads = {"row.sum()": lambda: [row.sum() for _ in range(_REPEATS)]}
    for score in (ECP(), LAC(), APS(), RAPS()):
        calibration = calibrate(logits, labels, score)
        threshold = calibration.threshold(0.9)
        workloads[f"evicp {score.name}"] = lambda c=calibration: [c.predict(row, 0.9) for _ in range(_REPEATS)]
        workloads[f"bare kernel {score.name}"] = lambda s=score, q=threshold: [
            kernels.ragged_sets(s, row[None], q) for _ in range(_REPEATS)
        ]
    return interleave(
        f"single row, K = {options.k:,} (ms per 1,000 calls = us per call)", workloads, rounds=options.rounds
    )


if __name__ == "__main__":
    common.run("single_row", measure, k=1000)
