"""Claim: other evidence, base rates, a utility of your own and half precision cost a few reads of the logits, too."""

from __future__ import annotations

import argparse
from functools import partial

import common
import ml_dtypes
import numpy as np

from evicp import ECP, calibrate, kernels
from evicp.bench import FLOOR, Timings, imagenet_like

_FLOAT32 = "float32"


def measure(options: argparse.Namespace) -> list[Timings]:
    """ECP with each of its parts, in reads; and of logits in half precision against float32."""
    return [_parts(options), *_precisions(options)]


def _parts(options: argparse.Namespace) -> Timings:
    logits, labels = imagenet_like(options.n, options.k)
    rng = np.random.default_rng(0)
    rates, utilities = rng.dirichlet(np.full(options.k, 50.0)), rng.uniform(0.1, 1, options.k)
    scores = {
        "relu": ECP(),
        "softplus": ECP(evidence="softplus"),
        "exp": ECP(evidence="exp"),
        "base rates": ECP(base_rates=tuple(rates)),
        "a utility of each class": ECP(utility=lambda z: np.broadcast_to(utilities, z.shape)),
    }
    workloads = {FLOOR: logits.sum}
    for name, score in scores.items():
        workloads[f"{name}, label scores"] = partial(kernels.label_scores, score, logits, labels)
        workloads[f"{name}, sets"] = partial(calibrate(logits, labels, score).predict, logits, 0.9)
    return common.interleaved(f"ECP, {options.n:,} x {options.k:,} float32", workloads, options)


def _precisions(options: argparse.Namespace) -> list[Timings]:
    logits, labels = imagenet_like(options.rows, options.k)
    types = {_FLOAT32: np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    work: dict[str, dict[str, partial]] = {"calibrate": {}, "sets": {}}
    for name, dtype in types.items():
        rounded = logits.astype(dtype)
        calibration = calibrate(rounded, labels)
        work["calibrate"][name] = partial(calibrate, rounded, labels)
        work["sets"][name] = partial(calibration.predict, rounded, 0.9)
    return [
        common.interleaved(f"{what}, ECP, {options.rows:,} x {options.k:,}", calls, options)
        for what, calls in work.items()
    ]


if __name__ == "__main__":
    common.run("evidence_kinds", measure, clock="cpu", n=10_000, rows=50_000, k=1000)
