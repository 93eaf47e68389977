"""The constant that the released code adds to the denominator of Eq. 10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evicp.method.scores import ECP, LAC, Score
from study import METRIC_HEAD, Finding, Logits, metric_rows


def stabilizer(networks: Sequence[Logits]) -> Finding:
    """The printed equation against the released code, and everything between."""
    scores: dict[str, Score] = {
        f"ECP, stabilizer {e:g}": ECP(stabilizer=e) for e in (0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
    }
    scores["LAC"] = LAC()
    rows = [row for data in networks if data.raw for row in metric_rows(data, scores, trials=200)]
    return Finding(
        "stabilizer",
        "The stabilizer: coverage 0.9, means over 200 splits, 30 % calibrated",
        ("network", "score", *METRIC_HEAD),
        tuple(rows),
    )


def restrict(data: Logits, n_classes: int, seed: int = 0) -> Logits:
    """Each row's true label beside n_classes - 1 random other ones: a smaller problem of the same network."""
    rng = np.random.default_rng(seed)
    total = data.logits.shape[1]
    if n_classes >= total:
        return data
    order = rng.random(data.logits.shape)
    order[np.arange(len(order)), data.labels] = -1.0  # the truth is always kept
    kept = np.argpartition(order, n_classes - 1, axis=1)[:, :n_classes]
    kept = rng.permuted(kept, axis=1)
    labels = np.argmax(kept == data.labels[:, None], axis=1)
    return Logits(f"{data.name}, K = {n_classes}", np.take_along_axis(data.logits, kept, 1), labels)


def stabilizer_scale(networks: Sequence[Logits]) -> Finding:
    """One stabilizer at every K, or one that follows K."""
    scores: dict[str, Score] = {
        "ECP, stabilizer 0": ECP(stabilizer=0),
        "ECP, stabilizer 1e-8": ECP(stabilizer=1e-8),
        "ECP, scaled": ECP(stabilizer="scaled"),
        "LAC": LAC(),
    }
    rows = []
    for data in networks:
        for n_classes in (10, 100, 1000) if data.raw else ():
            if n_classes <= data.logits.shape[1]:
                coverage = 0.98 if n_classes == 10 else 0.95 if n_classes == 100 else 0.9
                part = replace(restrict(data, n_classes), name=f"{data.name}, K = {n_classes}, {coverage:g}")
                rows += list(metric_rows(part, scores, coverage))
    return Finding(
        "scaled",
        "The stabilizer at other K: the true label among random others, coverage as given, 100 splits",
        ("network", "score", *METRIC_HEAD),
        tuple(rows),
    )
