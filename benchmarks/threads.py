"""Claim: with more threads the kernels soon take no longer than the memory takes to be read by as many threads."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import common
import numpy as np

from evicp import APS, ECP, LAC, kernels
from evicp.bench import Timings, imagenet_like, machine
from evicp.tables import text_table

_SCORES = (ECP(), LAC(), APS())
#: Rows summed at a time: few enough that no thread waits long for the last.
_ROWS = 1000


def with_threads(threads: int, call: Callable[[], object]) -> None:
    """A call whose kernels are worked on by so many threads."""
    os.environ["EVICP_THREADS"] = str(threads)
    call()


def read(logits: np.ndarray, pool: ThreadPoolExecutor) -> None:
    """All logits, summed by the threads of a pool."""
    blocks = [logits[start : start + _ROWS] for start in range(0, len(logits), _ROWS)]
    list(pool.map(np.sum, blocks))


def measure(options: argparse.Namespace) -> Timings:
    """Label scores of n x K float32 logits with 1, 2, 4, ... threads, and a read of the logits by as many."""
    logits, labels = imagenet_like(options.n, options.k)
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= (options.most or machine()["cores"])]
    workloads: dict[str, Callable[[], object]] = {}
    for count in counts:
        workloads[f"one read, {count} threads"] = partial(read, logits, ThreadPoolExecutor(count))
        for score in _SCORES:
            scored = partial(kernels.label_scores, score, logits, labels)
            workloads[f"{score.name}, {count} threads"] = partial(with_threads, count, scored)
    what = f"label scores, {options.n:,} x {options.k:,} float32"
    timings = common.interleaved(what, workloads, options)
    names = ["one read", *(score.name for score in _SCORES)]
    least = {name: [min(timings[f"{name}, {count} threads"].seconds) for count in counts] for name in names}
    rows = []
    for i, count in enumerate(counts):
        cells = [f"{values[i] * 1e3:,.1f} ({values[0] / values[i]:.2f})" for values in least.values()]
        shares = [f"{least[score.name][i] / least['one read'][i]:.2f}" for score in _SCORES]
        rows.append([str(count), *cells, *shares])
    head = ["threads", *(f"{name}, ms" for name in names), *(f"{score.name} / read" for score in _SCORES)]
    print(f"{what}, on {machine()['cpu']}: shortest of all rounds (speedup over one thread)")
    print(text_table(head, rows), end="\n\n")
    return timings


if __name__ == "__main__":
    common.run("threads", measure, quiet=True, n=500_000, k=1000, most=0)
