"""Claim: a guarantee costs about twice the marginal one at most; sets by class, as much as marginal ones as large."""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from typing import Any

import common
import numpy as np

from evicp import ByClass, calibrate
from evicp.bench import Timings, imagenet_like
from evicp.errors import SmallCalibrationWarning

MARGINAL = "marginal"


def measure(options: argparse.Namespace) -> list[Timings]:
    """Calibration and sets of n x K float32 logits under each guarantee, against the marginal ones."""
    warnings.simplefilter("ignore", SmallCalibrationWarning)
    logits, labels = labelled(options.n, options.k)
    rng = np.random.default_rng(0)
    weights, groups = rng.exponential(size=options.n), rng.integers(0, 10, options.n)
    ways = {
        MARGINAL: ({}, {}),
        "confidence 0.95": ({}, {"confidence": 0.95}),
        "by 10 groups of rows": ({"by": groups}, {"groups": groups}),
        "by 5 bands of uncertainty": ({"by": "uncertainty"}, {}),
        "weights of rows": ({"weights": weights}, {"weights": weights}),
        "weights of classes": ({"class_weights": rng.exponential(size=options.k)}, {}),
        "by given clusters of 20": ({"by": ByClass(clusters=np.arange(options.k) // 20)}, {}),
        "by found clusters": ({"by": ByClass(rare="cluster", rare_below=options.n)}, {}),
        "by class": ({"by": "class"}, {}),
    }
    calibrations = {name: calibrate(logits, labels, **how) for name, (how, _) in ways.items()}
    sizes = {name: calibrations[name].predict(logits, 0.9, **what).sizes.mean() for name, (_, what) in ways.items()}
    first = {name: partial(calibrate, logits, labels, **how) for name, (how, _) in ways.items()}
    second = {
        f"{name}, mean size {sizes[name]:.2f}": partial(calibrations[name].predict, logits, 0.9, **what)
        for name, (_, what) in ways.items()
    }
    for name in ("by found clusters", "by class"):
        larger = _coverage_of_size(calibrations[MARGINAL], logits, sizes[name])
        size = calibrations[MARGINAL].predict(logits, larger).sizes.mean()
        second[f"marginal at {larger:g}, mean size {size:.2f}"] = partial(
            calibrations[MARGINAL].predict, logits, larger
        )
    both = {name: partial(_both, logits, labels, how, what) for name, (how, what) in ways.items()}
    shape = f"{options.n:,} x {options.k:,} float32"
    return [
        common.interleaved(f"calibration, {shape}", first, options),
        common.interleaved(f"sets at 0.9, {shape}", second, options),
        common.interleaved(f"calibration and sets at 0.9, {shape}", both, options),
    ]


def _both(logits: np.ndarray, labels: np.ndarray, how: dict[str, Any], what: dict[str, Any]) -> None:
    calibrate(logits, labels, **how).predict(logits, 0.9, **what)


def labelled(n: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """As many rows of each class, labels drawn from the network's own probabilities at a temperature of 0.7.

    So the top label is right in about 77 % of rows, and every class has easy rows and hard ones.
    """
    logits, _ = imagenet_like(n, n_classes)
    rng = np.random.default_rng(0)
    drawn = np.concatenate([(z + 0.7 * rng.gumbel(size=z.shape)).argmax(1) for z in np.array_split(logits, 50)])
    order = np.argsort(drawn, kind="stable")
    starts = np.searchsorted(drawn[order], np.arange(n_classes + 1))
    labels = np.arange(n) % n_classes
    chosen = starts[labels] + (rng.random(n) * (starts[labels + 1] - starts[labels])).astype(np.int64)
    rows = order[np.minimum(chosen, n - 1)]
    return logits[rows], drawn[rows]


def _coverage_of_size(calibration, logits, size: float) -> float:
    """The coverage on a grid of 0.005 at which marginal sets are first as large as this."""
    for coverage in np.arange(0.9, 0.999, 0.005).round(3).tolist():
        if calibration.predict(logits[::20], coverage).sizes.mean() >= size:
            return coverage
    return 0.999


if __name__ == "__main__":
    common.run("guarantee_costs", measure, n=50_000, k=1000)
