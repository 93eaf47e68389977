"""Claim: ragged prediction sets cost a few reads of the logits, where others sort every row and fill a dense matrix."""

from __future__ import annotations

import argparse

import common
import peers

from evicp import APS, ECP, LAC, RAPS, calibrate
from evicp.bench import FLOOR, Timings, imagenet_like, interleave


def measure(options: argparse.Namespace) -> Timings:
    """Sets of n x K float32 logits at coverage 0.9: ours, TorchCP's, MAPIE's, one read."""
    logits, labels = imagenet_like(options.n, options.k)
    workloads = {FLOOR: logits.sum}
    for score in (ECP(), LAC(), APS(), RAPS()):
        calibration = calibrate(logits[:5000], labels[:5000], score)
        workloads[f"evicp {score.name}"] = lambda calibration=calibration: calibration.predict(logits, 0.9)
    unavailable: dict[str, str] = {}
    _add_torchcp(workloads, unavailable, logits, labels)
    what = f"prediction sets, {options.n:,} x {options.k:,} float32, coverage 0.9"
    return interleave(what, workloads, rounds=options.rounds, unavailable=unavailable)


def _add_torchcp(workloads, unavailable, logits, labels) -> None:
    scores, reason = peers.load("torchcp.classification.score")
    if scores is None:
        unavailable["TorchCP"] = reason
        return
    import torch

    predictor, _ = peers.load("torchcp.classification.predictor")
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    for name, score in {"LAC": scores.LAC(), "APS": scores.APS(), "RAPS": scores.RAPS(penalty=0.1, kreg=5)}.items():
        split = predictor.SplitPredictor(score, alpha=0.1)
        split.calculate_threshold(z[:5000], y[:5000])
        workloads[f"TorchCP {name}"] = lambda split=split: split.predict_with_logits(z)


if __name__ == "__main__":
    common.run("prediction_sets", measure, n=50_000, k=1000)
