"""Claim: fitting a temperature takes a handful of fused passes, not a generic optimiser over dense softmaxes."""

from __future__ import annotations

import argparse

import common
import numpy as np
from scipy.optimize import minimize_scalar

from evicp import fit_temperature
from evicp.bench import FLOOR, Timings, imagenet_like


def dense(logits: np.ndarray, labels: np.ndarray) -> float:
    """T by scipy's bounded minimiser over dense log-softmaxes."""

    def nll(log_t: float) -> float:
        z = logits / np.float32(np.exp(log_t))
        z -= z.max(1, keepdims=True)
        return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels]))

    return float(np.exp(minimize_scalar(nll, bounds=(-5, 5), method="bounded", options={"xatol": 1e-6}).x))


def measure(options: argparse.Namespace) -> Timings:
    """fit_temperature against a dense minimisation."""
    logits, labels = imagenet_like(options.n, options.k)
    workloads = {
        FLOOR: logits.sum,
        "evicp": lambda: fit_temperature(logits, labels),
        "dense, scipy": lambda: dense(logits, labels),
    }
    return common.interleaved(f"temperature fit, {options.n:,} x {options.k:,} float32", workloads, options)


if __name__ == "__main__":
    common.run("temperature_fit", measure, n=20_000, k=1000, rounds=3)
