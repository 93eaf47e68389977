"""Claim: one row through the public call takes about ten microseconds, so it can sit in a request handler."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import common

from evicp import APS, ECP, LAC, RAPS, calibrate, kernels
from evicp.bench import Timings, imagenet_like

_REPEATS = 1000


def _often(call: Callable[[], Any]) -> Callable[[], None]:
    """1,000 calls, one after the other, none of whose results are kept: as in a request handler."""

    def calls() -> None:
        for _ in range(_REPEATS):
            call()

    return calls


def measure(options: argparse.Namespace) -> Timings:
    """calibration.predict(row) for K classes, 1,000 calls a round; milliseconds of a round are microseconds a call."""
    logits, labels = imagenet_like(5000, options.k)
    row = logits[0].copy()
    workloads = {"row.sum()": _often(row.sum)}
    for score in (ECP(), LAC(), APS(), RAPS()):
        calibration = calibrate(logits, labels, score)
        threshold = calibration.threshold(0.9)
        workloads[f"evicp {score.name}"] = _often(lambda c=calibration: c.predict(row, 0.9))
        workloads[f"bare kernel {score.name}"] = _often(
            lambda s=score, q=threshold: kernels.ragged_sets(s, row[None], q)
        )
    return common.interleaved(f"single row, K = {options.k:,} (ms per 1,000 calls = us per call)", workloads, options)


if __name__ == "__main__":
    common.run("single_row", measure, clock="cpu", k=1000)
