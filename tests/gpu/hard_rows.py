"""Scores with every parameter that kernels branch on, and rows of every kind that has broken one."""

from __future__ import annotations

from typing import Any

import numpy as np

import evicp

SCORES = (
    evicp.ECP(),
    evicp.ECP(evidence="softplus", temperature=2.0),
    evicp.ECP(evidence="exp", stabilizer=0.0),
    evicp.ECP(stabilizer="scaled", temperature=0.5),
    evicp.LAC(),
    evicp.LAC(temperature=3.0),
    evicp.APS(),
    evicp.APS(randomized=False, temperature=0.7),
    evicp.RAPS(),
    evicp.RAPS(lam=0.01, k_reg=2, randomize_penalty=True, seed=7),
    evicp.SAPS(),
    evicp.SAPS(lam=0.02, randomized=False),
    evicp.TopK(),
    evicp.TopK(randomized=True, seed=2**32 - 1),
    evicp.Margin(),
    evicp.Base(),
)


def hard_rows(n: int, n_classes: int, seed: int = 0) -> np.ndarray:
    """Gaussian rows, and one of each kind that has broken a kernel somewhere."""
    rng = np.random.default_rng(seed)
    z = (rng.normal(size=(n, n_classes)) * 3).astype(np.float32)
    half, middle = n_classes // 2, n_classes // 3
    kinds: list[Any] = [
        np.round,  # ties everywhere
        lambda row: np.full_like(row, row[0]),  # nothing but ties
        lambda row: np.where(np.arange(n_classes) < half, -np.inf, row),  # masks
        lambda row: np.where(np.arange(n_classes) == middle, row, -np.inf),  # all but one masked
        lambda row: row * 1e4,
        lambda row: row * 1e30,
        lambda row: np.where(np.arange(n_classes) == middle, 1e3, row),  # one spike
        lambda row: np.where(np.arange(n_classes) == middle, 7e4, row * 1e-3),  # evidence too wide for fixed point
        lambda row: row * 1e-42,  # denormals
        lambda row: -np.abs(row) - 5,  # no evidence
        lambda row: np.where(row > 0, 0.0, -0.0),
        lambda row: np.where(np.arange(n_classes) == 0, row.min() - 100, row),  # the least far below the others
    ]
    for index, kind in enumerate(kinds[: max(0, n - 2)]):
        z[index] = kind(z[index])
    return z


def relative_error(own: np.ndarray, reference: np.ndarray) -> float:
    """The largest |error| / max(1, |reference|); infinite scores must be infinite in both."""
    finite = np.isfinite(reference)
    assert np.array_equal(own[~finite], reference[~finite])
    return float(np.max(np.abs(own[finite] - reference[finite]) / np.maximum(1, np.abs(reference[finite])), initial=0))
