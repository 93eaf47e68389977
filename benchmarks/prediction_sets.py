"""Claim: ragged prediction sets cost a few reads of the logits, where others sort every row and fill a dense matrix."""

from __future__ import annotations

import argparse

import common
import peers

from evicp import APS, ECP, LAC, RAPS, calibrate
from evicp.bench import FLOOR, Timings, imagenet_like


def measure(options: argparse.Namespace) -> Timings:
    """Sets of n x K float32 logits at coverage 0.9: ours, TorchCP's, MAPIE's, one read."""
    logits, labels = imagenet_like(options.n, options.k)
    workloads = {FLOOR: logits.sum}
    for score in (ECP(), LAC(), APS(), RAPS()):
        calibration = calibrate(logits[:5000], labels[:5000], score)
        workloads[f"evicp {score.name}"] = lambda calibration=calibration: calibration.predict(logits, 0.9)
    _, theirs, missing = peers.torchcp(*map(peers.tensor, (logits, labels)))
    what = f"prediction sets, {options.n:,} x {options.k:,} float32, coverage 0.9"
    return common.interleaved(what, workloads | theirs, options, missing)


if __name__ == "__main__":
    common.run("prediction_sets", measure, n=50_000, k=1000)
