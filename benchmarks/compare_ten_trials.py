"""Claim: five methods on ten random splits share what does not depend on the split."""

from __future__ import annotations

import argparse

import common

from evicp import compare
from evicp.bench import FLOOR, Timings, imagenet_like


def measure(options: argparse.Namespace) -> Timings:
    """compare(): five methods, ten trials, with a fixed temperature and with one fitted in each trial."""
    logits, labels = imagenet_like(options.n, options.k)
    workloads = {
        FLOOR: logits.sum,
        "compare, T = 1": lambda: compare(logits, labels),
        "compare, T fitted per trial": lambda: compare(logits, labels, temperature="split"),
    }
    return common.interleaved(f"compare, {options.n:,} x {options.k:,} float32", workloads, options)


if __name__ == "__main__":
    common.run("compare_ten_trials", measure, n=50_000, k=1000, rounds=1)
