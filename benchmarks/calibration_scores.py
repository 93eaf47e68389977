"""Claim: calibration scores cost a few reads of the logits, and a fraction of what sorting libraries take."""

from __future__ import annotations

import argparse

import common
import peers

from evicp import APS, ECP, LAC, RAPS, kernels
from evicp.bench import FLOOR, Timings, imagenet_like


def measure(options: argparse.Namespace) -> Timings:
    """True-label scores of n x K float32 logits: ours, TorchCP's, one read."""
    logits, labels = imagenet_like(options.n, options.k)
    workloads = {FLOOR: logits.sum}
    for score in (ECP(), LAC(), APS(), RAPS()):
        workloads[f"evicp {score.name}"] = lambda score=score: kernels.label_scores(score, logits, labels)
    theirs, _, missing = peers.torchcp(*map(peers.tensor, (logits, labels)))
    what = f"calibration scores, {options.n:,} x {options.k:,} float32"
    return common.interleaved(what, workloads | theirs, options, missing)


if __name__ == "__main__":
    common.run("calibration_scores", measure, n=50_000, k=1000)
