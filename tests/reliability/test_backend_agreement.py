"""Every backend gives the same sets on real ImageNet logits; Triton's kernels are in tests/test_kernels_triton.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from evicp import APS, ECP, LAC, RAPS, SAPS, Margin, Score, TopK, conformal_rank, kernels
from evicp.datasets import load_imagenet_sample
from evicp.kernels import _numpy

pytestmark = pytest.mark.reliability

SCORES = [
    ECP(),
    ECP(stabilizer=0),
    ECP(evidence="softplus", temperature=1.3),
    LAC(),
    APS(),
    APS(randomized=False),
    RAPS(),
    RAPS(lam=0.01, k_reg=2, randomize_penalty=True),
    SAPS(),
    TopK(),
    TopK(randomized=True),
    Margin(),
]
UP_TO, ABOVE = (0.8, 0.9, 0.95, 0.99), (0.995, 0.999)
Sets = tuple[np.ndarray, np.ndarray]


@cache
def problem(long_run: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Calibration logits and labels and new logits, all single precision, as networks give them."""
    sample = load_imagenet_sample()
    logits = np.asarray(sample.logits, np.float32)
    n, rows = (1000, len(logits)) if long_run else (300, 400)
    return logits[:n], sample.labels[:n].astype(np.int64), logits[n:rows]


def on_cpu(name: str) -> Callable[[Score, bool], tuple[np.ndarray, Callable[[float], Sets]]]:
    def run(score: Score, long_run: bool) -> tuple[np.ndarray, Callable[[float], Sets]]:
        fitted, labels, new = problem(long_run)

        def sets(threshold: float) -> Sets:
            with kernels.backend(name):
                return kernels.ragged_sets(score, new, threshold)[:2]

        with kernels.backend(name):
            return np.sort(kernels.label_scores(score, fitted, labels)), sets

    return run


def on_torch(score: Score, long_run: bool) -> tuple[np.ndarray, Callable[[float], Sets]]:
    import torch

    from evicp.kernels import _torch

    fitted, labels, new = (torch.from_numpy(part) for part in problem(long_run))

    def sets(threshold: float) -> Sets:
        offsets, members, _ = _torch.ragged_sets(score, new, threshold)
        return offsets.numpy(), members.numpy()

    return np.sort(_torch.label_scores(score, fitted, labels).numpy()), sets


BACKENDS: dict[str, Any] = {"native": on_cpu("native"), "torch": on_torch}


def mask(sets: Sets, shape: tuple[int, int]) -> np.ndarray:
    offsets, labels = sets
    result = np.zeros(shape, bool)
    result[np.repeat(np.arange(shape[0]), np.diff(offsets)), labels] = True
    return result


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.describe())
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_sets_are_the_references(backend: str, score: Score, long_run: bool, figure, require_backend) -> None:
    """Each backend calibrates and predicts by itself, from the same single-precision logits."""
    require_backend(backend)
    own, sets = BACKENDS[backend](score, long_run)
    reference, reference_sets = on_cpu("numpy")(score, long_run)
    new = problem(long_run)[2]
    dense = _numpy.dense_scores(score, new)
    differing = compared = 0
    for coverage in (*UP_TO, *ABOVE):
        k = conformal_rank(len(own), coverage)
        if k > len(own):
            continue  # full sets
        wanted = mask(reference_sets(float(reference[k - 1])), new.shape)
        unlike = mask(sets(float(own[k - 1])), new.shape) != wanted
        near = np.abs(dense - reference[k - 1]) <= 1e-5 * np.maximum(1.0, np.abs(reference[k - 1]))
        assert not np.any(unlike & ~near), f"{coverage}: {int(np.sum(unlike & ~near))} far from the threshold"
        if coverage in UP_TO:
            differing += int(unlike.sum())
            compared += unlike.size
    figure("memberships compared", compared)
    figure("differing", differing)
    assert differing <= max(1, compared / 1_000_000)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_are_identical(backend: str, long_run: bool, figure, require_backend) -> None:
    require_backend(backend)
    fitted, labels, _ = problem(long_run)
    if backend == "torch":
        import torch

        from evicp.kernels import _torch

        own = np.asarray(_torch.label_ranks(torch.from_numpy(fitted), torch.from_numpy(labels)))
    else:
        with kernels.backend(backend):
            own = kernels.label_ranks(fitted, labels)
    figure("ranks that differ", int(np.sum(own != _numpy.label_ranks(fitted, labels))))
    assert np.array_equal(own, _numpy.label_ranks(fitted, labels))
