"""Every backend gives the same sets on real ImageNet logits; for Triton's kernels see tests/kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from evicp import APS, ECP, LAC, RAPS, SAPS, Margin, Score, TopK, conformal_rank, kernels
from evicp.datasets import load_imagenet_sample
from evicp.kernels import _numpy
from lengths import usually

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
#: Of each formula one score; other parameters are for the long run and for the agreement tests of each backend.
USUAL = (SCORES[0], SCORES[2], LAC(), APS(), SCORES[7], SAPS(), TopK(randomized=True), Margin())
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


@pytest.fixture
def usable(backend: str, request: pytest.FixtureRequest) -> None:
    """Skip where this backend cannot run."""
    if backend == "torch":
        request.getfixturevalue("one_thread")
    elif not request.getfixturevalue("native_available"):
        pytest.skip("the compiled backend cannot be imported here")


@cache
def reference_of(score: Score, long_run: bool) -> tuple[np.ndarray, dict[float, np.ndarray], np.ndarray]:
    """Ascending calibration scores, sets by coverage and scores of new rows, of the reference."""
    own, sets = on_cpu("numpy")(score, long_run)
    new = problem(long_run)[2]
    ranks = {coverage: conformal_rank(len(own), coverage) for coverage in (*UP_TO, *ABOVE)}
    masks = {c: mask(sets(float(own[k - 1])), new.shape) for c, k in ranks.items() if k <= len(own)}  # others are full
    return own, masks, _numpy.dense_scores(score, new)


@pytest.mark.parametrize(
    ("backend", "score"),
    usually(product(BACKENDS, SCORES), lambda _, score: score in USUAL),
    ids=lambda value: value if isinstance(value, str) else value.describe(),
)
@pytest.mark.usefixtures("usable")
def test_the_sets_are_the_references(backend: str, score: Score, long_run: bool, figure) -> None:
    """Each backend calibrates and predicts by itself, from the same single-precision logits."""
    own, sets = BACKENDS[backend](score, long_run)
    reference, masks, dense = reference_of(score, long_run)
    differing = compared = 0
    for coverage, wanted in masks.items():
        k = conformal_rank(len(own), coverage)
        unlike = mask(sets(float(own[k - 1])), dense.shape) != wanted
        near = np.abs(dense - reference[k - 1]) <= 1e-5 * np.maximum(1.0, np.abs(reference[k - 1]))
        assert not np.any(unlike & ~near), f"{coverage}: {int(np.sum(unlike & ~near))} far from the threshold"
        if coverage in UP_TO:
            differing += int(unlike.sum())
            compared += unlike.size
    figure("memberships compared", compared)
    figure("differing", differing)
    assert differing <= max(1, compared / 1_000_000)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("usable")
def test_ranks_are_identical(backend: str, long_run: bool, figure) -> None:
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
