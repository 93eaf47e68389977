"""Claim: rules of risk and abstention take at most three times as long as marginal calibration and sets."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import common
import numpy as np
from guarantee_costs import labelled

from evicp import calibrate, control_risk, hierarchy_costs, selective
from evicp.bench import Timings


def measure(options: argparse.Namespace) -> list[Timings]:
    """A rule from n x K float32 logits, and what it gives for as many rows, against marginal sets at 0.9."""
    logits, labels = labelled(options.n, options.k)
    costs = np.where(np.arange(options.k) % 10 == 0, 1.0, 0.1)
    tree = hierarchy_costs([[f"h{i // 100}", f"t{i // 10}"] for i in range(options.k)])
    ways: dict[str, Callable] = {
        "marginal": partial(calibrate, logits, labels),
        "a miss, risk 0.1": partial(control_risk, logits, labels, risk=0.1),
        "costs by class": partial(control_risk, logits, labels, risk=0.02, class_costs=costs),
        "distance in a hierarchy": partial(control_risk, logits, labels, risk=0.08, loss=tree),
        "answer or abstain, softmax": partial(selective, logits, labels, error=0.1),
        "answer or abstain, margin": partial(selective, logits, labels, error=0.1, doubt="margin"),
    }
    both = {name: partial(_both, make, logits) for name, make in ways.items()}
    return [common.interleaved(f"a rule and what it gives, {options.n:,} x {options.k:,} float32", both, options)]


def _both(make: Callable, logits: np.ndarray) -> None:
    make().predict(logits)


if __name__ == "__main__":
    common.run("risk_costs", measure, n=50_000, k=1000)
