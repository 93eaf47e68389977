"""Thresholds for each label or row inside the kernels: against the same backend's own dense scores, exactly."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from evicp import APS, ECP, LAC, RAPS, SAPS, Margin, TopK, kernels
from evicp.calibration import limits
from evicp.method.scores import as_score
from lengths import usually

SCORES = [
    ECP(),
    ECP(stabilizer=0),
    ECP(evidence="softplus"),
    LAC(),
    APS(),
    RAPS(k_reg=2),
    SAPS(),
    TopK(),
    TopK(randomized=True),
    Margin(),
]
SCALES = [1e-30, 1e-3, 1, 30, 1e4, 1e12, 1e29, 1e36]
ids = {"ids": lambda score: score.describe()}


def rows_of(n: int, k: int, dtype: type, seed: int = 0) -> np.ndarray:
    """Rows of many kinds: sharp and flat ones, ties, masks, constants."""
    rng = np.random.default_rng([seed, n, k])
    z = rng.normal(size=(n, k)) * rng.choice([0.3, 2.0, 8.0], (n, 1))
    z[::5] = np.round(z[::5])  # ties
    masked = rng.random(z.shape) < 0.2
    masked[np.arange(n), z.argmax(1)] = False
    masked[np.arange(n) % 3 > 0] = False
    z[masked] = -np.inf
    z[1] = 0.25  # all labels alike
    return z.astype(dtype)


def patterns(score, dense: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Limits of labels: alike, spread over all scores, exactly on scores, with few and many infinite ones."""
    rng = np.random.default_rng(seed)
    k = dense.shape[1]
    finite = np.sort(dense[np.isfinite(dense)])
    spread = rng.choice(finite, k)
    low, high = finite[len(finite) // 50], finite[-1]
    few = np.where(np.arange(k) % 17 == 3, np.inf, rng.choice(finite[: len(finite) // 20], k))
    many = np.where(np.arange(k) % 3 == 0, np.inf, spread)
    mostly_tight = np.where(np.arange(k) % 9 == 0, spread, low)
    return {
        "alike": np.full(k, low),
        "spread": spread,
        "mostly tight": mostly_tight,
        "few infinite": few,
        "many infinite": many,
        "all infinite": np.full(k, np.inf),
        "all but one": np.where(np.arange(k) == 5, low, np.inf),
        "nothing": np.full(k, -np.inf),
        "everything finite": np.full(k, high),
        "the largest number": np.full(k, np.finfo(np.float64).max),
    }


def expected_sets(dense: np.ndarray, logits: np.ndarray, limit: np.ndarray) -> list[list[int]]:
    mask = dense <= limit
    rows = []
    for i in range(len(dense)):
        members = np.flatnonzero(mask[i])
        order = np.lexsort((members, -logits[i, members].astype(np.float64), dense[i, members]))
        rows.append(members[order].tolist())
    return rows


def check(score, logits: np.ndarray, limit: np.ndarray) -> None:
    dense = kernels.dense_scores(score, logits)
    offsets, labels, scores = kernels.ragged_sets(score, logits, limit)
    found = [labels[a:b].tolist() for a, b in pairwise(offsets)]
    assert found == expected_sets(dense, logits, limit)
    rows = np.repeat(np.arange(len(logits)), np.diff(offsets))
    assert scores.tobytes() == dense[rows, labels].tobytes()
    alone = kernels.ragged_labels(score, logits, limit)
    np.testing.assert_array_equal(alone[0], offsets)
    np.testing.assert_array_equal(alone[1], labels)


@pytest.mark.parametrize(
    ("k", "dtype"),
    usually(
        product([7, 16, 17, 33, 48, 64, 300], [np.float32, np.float64]),
        lambda k, dtype: k in (16, 17, 64, 300) if dtype == np.float32 else k in (7, 33, 48),
    ),
)
@pytest.mark.parametrize("score", SCORES, **ids)
def test_a_limit_for_each_label(cpu_backend, score, dtype, k):
    logits = rows_of(60, k, dtype)
    for limit in patterns(score, kernels.dense_scores(score, logits)).values():
        check(score, logits, limit[None, :])


@pytest.mark.parametrize("score", SCORES, **ids)
def test_a_limit_for_each_row(cpu_backend, score):
    logits = rows_of(120, 60, np.float32)
    dense = kernels.dense_scores(score, logits)
    rng = np.random.default_rng(1)
    limit = np.array([rng.choice(row[np.isfinite(row)]) for row in dense])[:, None]
    check(score, logits, limit)
    limit[::7], limit[3::7] = np.inf, -np.inf
    check(score, logits, limit)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "score",
    [
        *(ECP(stabilizer=epsilon) for epsilon in (1.0, 1e-3, 1e-19, 1e-21, 1e-150)),
        *(ECP(temperature=t, stabilizer=epsilon) for t in (1e-25, 1e-3, 0.05, 20.0, 1e25) for epsilon in (1e-8, 0)),
        ECP(evidence="exp"),
        *(cls(temperature=t) for cls in (LAC, Margin) for t in (1e-25, 0.05, 20.0, 1e25)),
    ],
    **ids,
)
def test_no_label_is_lost_where_numbers_are_extreme(cpu_backend, score, dtype):
    """Labels are ruled out by a rough test in the logits' precision: it must hold at any scale of logits.

    So must the cut that a threshold of the row is turned into, for thresholds on a score and next to one.
    """
    logits = np.concatenate([rows_of(40, 45, np.float64, seed) * scale for seed, scale in enumerate(SCALES)])
    logits = logits.astype(dtype)
    dense = kernels.dense_scores(score, logits)
    for limit in patterns(score, dense).values():
        check(score, logits, limit[None, :])
    chosen = np.random.default_rng(2).permuted(np.where(np.isfinite(dense), dense, dense.min(1, keepdims=True)), axis=1)
    for towards in (-np.inf, 0.0, np.inf):
        limit = chosen[:, :1] if towards == 0.0 else np.nextafter(chosen[:, :1], towards)
        check(score, logits, limit)


@pytest.mark.parametrize("score", [ECP(), ECP(stabilizer=1e-150)], **ids)
def test_limits_whose_exponential_overflows(cpu_backend, score):
    """The surprisal of a label with nearly all the evidence is about 1e-299, its score below -700."""
    logits = rows_of(30, 40, np.float64)
    logits[np.arange(30), np.arange(30)] = 1e299
    dense = kernels.dense_scores(score, logits)
    assert dense.min() < -700
    on_scores = np.where(np.arange(40) < 30, dense[np.arange(40) % 30, np.arange(40)], -701.0)
    for limit in (on_scores, np.nextafter(on_scores, -np.inf), on_scores + 1, on_scores - 1):
        check(score, logits, limit[None, :])


def test_half_precision_strides_and_threads(cpu_backend):
    logits = rows_of(300, 64, np.float32)
    limit = patterns(LAC(), kernels.dense_scores(LAC(), logits))["spread"][None, :]
    check(LAC(), logits.astype(np.float16), limit)
    check(LAC(), np.asfortranarray(logits), limit)
    check(LAC(), logits[::-2], limit)
    tall = np.tile(logits, (40, 1))  # enough rows for several threads and blocks
    offsets, labels, _ = kernels.ragged_sets(LAC(), tall, limit)
    once = kernels.ragged_sets(LAC(), logits, limit)
    np.testing.assert_array_equal(np.diff(offsets), np.tile(np.diff(once[0]), 40))
    np.testing.assert_array_equal(labels, np.tile(once[1], 40))
    by_row = np.tile(np.linspace(0.1, 9, 300), 40)[:, None]
    offsets, _, scores = kernels.ragged_sets(LAC(), tall, by_row)
    assert (scores <= np.repeat(by_row[:, 0], np.diff(offsets))).all()
    assert np.diff(offsets).sum() == (kernels.dense_scores(LAC(), tall) <= by_row).sum()


def test_no_rows(cpu_backend):
    for limit in (np.zeros((1, 40)), np.zeros((0, 1)), np.zeros((1, 1)), 0.0):
        offsets, labels, scores = kernels.ragged_sets(ECP(), np.empty((0, 40), np.float32), limit)
        assert (offsets.tolist(), labels.size, scores.size) == ([0], 0, 0)


def test_a_tighter_limit_keeps_part_of_a_set(cpu_backend):
    logits = rows_of(50, 40, np.float64)
    dense = kernels.dense_scores(ECP(), logits)
    ways = patterns(ECP(), dense)
    low = ways["alike"][0]
    loose = np.maximum(ways["spread"], low)[None, :]
    found = kernels.ragged_sets(ECP(), logits, loose)
    for tight in (ways["alike"][None, :], ways["spread"][None, :], np.full((50, 1), low), np.array([[low - 1]]), loose):
        direct = kernels.ragged_sets(ECP(), logits, tight)
        for mine, theirs in zip(limits.within(found, tight), direct, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_threshold_of_minus_infinity_is_no_full_set():
    def sure(z):
        return np.where(z > 50, -np.inf, -z)

    z = np.where(np.eye(4), 60.0, 0.0)
    sizes = limits.set_sizes(as_score(sure), z, np.array([-np.inf, np.inf, -1.0, 0.0]))
    np.testing.assert_array_equal(sizes, [[0] * 4, [4] * 4, [1] * 4, [4] * 4])  # -inf is the threshold of empty sets
