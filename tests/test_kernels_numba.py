"""The compiled CPU backend against the NumPy reference, and against itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import evicp
from evicp import checks, kernels
from evicp.bench import imagenet_like
from evicp.errors import InputError, LogitsError
from evicp.kernels import _loading as loading
from evicp.kernels import _numpy as reference

pytest.importorskip("numba")
fused = pytest.importorskip("evicp.kernels._numba")

SCORES = [
    evicp.ECP(),
    evicp.ECP(stabilizer=0),
    evicp.ECP(stabilizer="scaled", temperature=0.3),
    evicp.ECP(stabilizer=1e-250, temperature=2.0),
    evicp.ECP(stabilizer=7.0),
    evicp.ECP(evidence="softplus"),
    evicp.ECP(evidence="softplus", stabilizer=0, temperature=3.0),
    evicp.ECP(evidence="exp"),
    evicp.LAC(),
    evicp.LAC(temperature=0.05),
    evicp.APS(),
    evicp.APS(randomized=False, temperature=1.7),
    evicp.RAPS(),
    evicp.RAPS(lam=0.5, k_reg=0, seed=7, randomize_penalty=True),
    evicp.RAPS(randomized=False, randomize_penalty=True),
    evicp.SAPS(),
    evicp.SAPS(lam=0.0, randomized=False),
    evicp.TopK(),
    evicp.TopK(randomized=True, seed=2**32 - 1),
    evicp.Margin(),
    evicp.Margin(temperature=4.0),
    evicp.Base(),
]
DTYPES = [np.float16, np.float32, np.float64]
TOLERANCE = {np.float16: 1e-5, np.float32: 1e-5, np.float64: 1e-12}
every_score = pytest.mark.parametrize("score", SCORES, ids=lambda score: score.describe())
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)


def nasty_rows(n_classes: int, dtype: type, seed: int = 0) -> np.ndarray:
    """Rows of every kind that has broken a softmax: ties, masks, spikes, constants, huge, tiny and signed zeros."""
    rng = np.random.default_rng([seed, n_classes])
    gauss = rng.normal(size=(14, n_classes)) * 3
    gauss[1] = np.round(gauss[1])  # ties
    gauss[2] = 1.25  # all equal
    gauss[3] = -0.5
    gauss[4] = 0.0
    gauss[4, ::2] = -0.0
    gauss[5, rng.integers(n_classes)] = 60.0  # a spike
    gauss[6] = np.where(rng.random(n_classes) < 0.5, -np.inf, gauss[6])  # masks
    gauss[7] = -np.inf  # one label left
    gauss[8] *= 1e3  # beyond what any exponential holds
    gauss[9] *= 1e-6
    gauss[10, : n_classes // 2] = 5.0  # a shared top
    gauss[11] = -np.abs(gauss[11])  # no evidence
    gauss[12] = np.where(gauss[12] > 0, gauss[12].max(), -7.0)
    gauss[6:8, rng.integers(n_classes)] = 2.0
    rows = gauss.astype(dtype)
    if dtype is np.float16:
        return rows
    extreme = np.repeat(rows[:5], 2, 0)
    extreme[:2] *= dtype(1e30)
    extreme[2] = dtype(1e30)
    extreme[3, 0] = dtype(-1e30)
    extreme[4] *= dtype(1e-40)  # subnormal in float32
    extreme[5, -1] = dtype(1e30)
    extreme[6] = np.where(rows[0] > 0, dtype(3e38), dtype(-3e38))  # their sum overflows float32
    extreme[7] = -np.inf
    extreme[7, :2] = dtype(3e38)
    if dtype is np.float64:
        extreme[8] = 1e300
        extreme[9] = rows[0] * 5e298
    return np.concatenate([rows, extreme])


def assert_agrees_with_reference(score: evicp.scores.Score, logits: np.ndarray) -> None:
    got, want = fused.dense_scores(score, logits), reference.dense_scores(score, logits)
    assert not np.isnan(got).any()
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    allowed = TOLERANCE[logits.dtype.type] * np.maximum(1.0, np.abs(want))
    if score.name == "ecp" and score.stabilizer == 0:
        # The reference subtracts log costs as large as the range of the logits, and loses their last digits.
        wide = np.where(logits > -np.inf, logits, np.nan).astype(np.float64)
        allowed += 1e-15 * ((np.nanmax(wide, 1) - np.nanmin(wide, 1)) / score.temperature)[:, None]
    finite = np.isfinite(want)
    assert (np.abs(got[finite] - want[finite]) <= allowed[finite]).all()


def as_mask(offsets: np.ndarray, labels: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[np.repeat(np.arange(shape[0]), np.diff(offsets)), labels] = True
    assert mask.sum() == len(labels)  # no label twice
    return mask


def assert_sets_are_the_scores(score: evicp.scores.Score, logits: np.ndarray, threshold: float) -> None:
    """Membership, order and scores of sets are exactly those of the backend's own dense scores."""
    dense = fused.dense_scores(score, logits)
    offsets, labels, scores = fused.ragged_sets(score, logits, threshold)
    assert (offsets.dtype, labels.dtype, scores.dtype) == (np.int64, np.int32, np.float64)
    row, column = np.nonzero(dense <= threshold)
    order = np.lexsort((column, -logits[row, column].astype(np.float64), dense[row, column], row))
    np.testing.assert_array_equal(labels, column[order])
    np.testing.assert_array_equal(scores, dense[row, column][order])
    np.testing.assert_array_equal(np.diff(offsets), np.bincount(row, minlength=len(logits)))


# ---------------------------------------------------------------------------------------------------------------
# Agreement with the reference


@every_dtype
@every_score
@pytest.mark.parametrize("n_classes", [2, 3, 15, 16, 17, 31, 32, 33, 48, 49, 100, 1000])
def test_dense_scores_agree_with_the_reference(score, dtype, n_classes):
    assert_agrees_with_reference(score, nasty_rows(n_classes, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_score
@pytest.mark.parametrize("n_classes", [4097, 20_000])
def test_long_rows_keep_their_accuracy(score, dtype, n_classes):
    rng = np.random.default_rng(n_classes)
    logits = np.stack([rng.normal(size=n_classes) * 2, np.full(n_classes, 0.1), np.round(rng.normal(size=n_classes))])
    assert_agrees_with_reference(score, logits.astype(dtype))


@every_score
def test_half_precision_is_the_upcast_input_bit_for_bit(score):
    logits = np.concatenate([nasty_rows(100, np.float16), np.float16(6.0e-8) * nasty_rows(100, np.float16)[:6]])
    single = logits.astype(np.float32)
    np.testing.assert_array_equal(fused.dense_scores(score, logits), fused.dense_scores(score, single))
    threshold = float(np.median(fused.dense_scores(score, single)[0]))
    for half, full in zip(
        fused.ragged_sets(score, logits, threshold), fused.ragged_sets(score, single, threshold), strict=True
    ):
        np.testing.assert_array_equal(half, full)


def test_every_float16_is_widened_exactly():
    bits = np.arange(2**16, dtype=np.uint16)
    single = np.empty(bits.shape, np.float32)
    fused._compiled.widen_kernel(bits, single)
    want = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(single, want)
    np.testing.assert_array_equal(np.signbit(single), np.signbit(want))


@every_dtype
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_the_randomisation_is_the_references_bit_for_bit(dtype, seed):
    """TopK's score is a whole number plus v, so equal scores mean equal v and equal ranks."""
    for n_classes in (2, 31, 33, 1000):
        logits = nasty_rows(n_classes, dtype)
        score = evicp.TopK(randomized=True, seed=seed)
        np.testing.assert_array_equal(fused.dense_scores(score, logits), reference.dense_scores(score, logits))


@every_dtype
@every_score
def test_top_labels_agree_with_the_reference(score, dtype):
    logits = nasty_rows(100, dtype)[:14]
    np.testing.assert_array_equal(fused.top_labels(score, logits), logits.astype(np.float64).argmax(1))
    np.testing.assert_array_equal(fused.top_labels(score, logits), reference.top_labels(score, logits))


@every_dtype
@pytest.mark.parametrize("n_classes", [2, 10, 16, 33, 49, 1000])
def test_ranks_agree_with_the_reference(dtype, n_classes):
    logits = nasty_rows(n_classes, dtype)
    for label in (0, n_classes // 2, n_classes - 1):  # masked labels among them
        labels = np.full(len(logits), label)
        got = fused.label_ranks(logits, labels)
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, reference.label_ranks(logits, labels))


@every_dtype
@pytest.mark.parametrize("beta", [np.exp(-5), 0.3, 1.0, 4.0, np.exp(5)])
@pytest.mark.parametrize("n_classes", [2, 10, 33, 5000])
def test_likelihoods_agree_with_the_reference(dtype, beta, n_classes):
    rng = np.random.default_rng(n_classes)
    logits = (rng.normal(size=(40, n_classes)) * 3).astype(dtype)
    logits[::5, 1::3] = -np.inf
    labels = logits.argmax(1)
    labels[::2] = 0
    got, want = fused.nll_derivatives(logits, labels, beta), reference.nll_derivatives(logits, labels, beta)
    np.testing.assert_allclose(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    confidence, correct = fused.top_confidences(logits, labels, beta)
    expected, truth = reference.top_confidences(logits, labels, beta)
    np.testing.assert_allclose(confidence, expected, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(correct, truth)


def test_a_masked_true_label_has_infinite_likelihood():
    logits = np.array([[0.0, -np.inf, 1.0]], np.float32)
    value, slope, curvature = fused.nll_derivatives(logits, np.array([1]), 1.0)
    assert (value, slope) == (np.inf, np.inf)
    assert np.isfinite(curvature)


def mpmath_ecp_without_stabilizer(logits: list[float]) -> list[float]:
    """Eq. 10 and 11 as printed, relu evidence, T = 1, with 60 digits and more for every power of ten in the logits."""
    with mpmath.workdps(400):
        z = [mpmath.mpf(value) for value in logits]
        alpha = [max(value, 0) + 1 for value in z]
        p = [value / sum(alpha) for value in alpha]
        ranks = [sum(other > value for other in z) for value in z]
        # ln phi up to a row constant, which cancels in Eq. 11
        parts = zip(z, p, ranks, strict=True)
        log_costs = [
            mpmath.log(-mpmath.log(pk)) - zk - 2 * mpmath.log(pk) - mpmath.log(len(z) - r) for zk, pk, r in parts
        ]
        return [float(cost - max(log_costs)) for cost in log_costs]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_spike_does_not_swallow_the_other_labels(dtype):
    """Without a stabilizer a spike's cost is as far from the others' as its logit; theirs still differ by little."""
    rows = [[3.7148056e11, 1.0, 0.0], [1e30, 1.0, 0.0, -2.5], [-1e30, 3.0, 2.0], [16777216.0, 0.5, 0.25, 0.0]]
    for row in rows:
        logits = np.array([row], dtype)
        want = mpmath_ecp_without_stabilizer(logits[0].tolist())
        np.testing.assert_allclose(
            fused.dense_scores(evicp.ECP(stabilizer=0), logits)[0], want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


def test_sharp_rows_keep_their_digits_in_single_precision():
    """1 - p of a sure label, far below float32's resolution at 1, still orders rows as the reference does."""
    gaps = np.linspace(20, 60, 50, dtype=np.float32)
    logits = np.zeros((50, 40), np.float32)
    logits[:, 7] = gaps
    labels = np.full(50, 7)
    exact = np.log1p(39 * np.exp(-gaps.astype(np.float64)))
    np.testing.assert_allclose(fused.label_scores(evicp.LAC(), logits, labels), exact, rtol=1e-5)
    for score in (evicp.ECP(), evicp.ECP(stabilizer=0)):
        wide = np.float32(1e4) * logits  # a Dirichlet with almost all its mass on one label
        got = fused.label_scores(score, wide, labels)
        np.testing.assert_allclose(got, reference.label_scores(score, wide, labels), rtol=1e-6)
        assert (np.diff(got) < 0).all()


# ---------------------------------------------------------------------------------------------------------------
# Membership and scores agree bit for bit


@every_dtype
@every_score
@pytest.mark.parametrize("n_classes", [2, 10, 16, 17, 33, 48, 256, 300])
def test_sets_hold_exactly_the_labels_within_the_threshold(score, dtype, n_classes):
    logits = nasty_rows(n_classes, dtype)
    dense = fused.dense_scores(score, logits)
    thresholds = np.quantile(dense[np.isfinite(dense)], [0.001, 0.02, 0.1, 0.5, 0.9, 1.0], method="lower")
    for threshold in [*thresholds, np.nextafter(thresholds[2], -np.inf), np.inf, -np.inf, np.nan]:
        assert_sets_are_the_scores(score, logits, threshold)


@every_dtype
@every_score
def test_label_scores_are_the_dense_ones(score, dtype):
    for n_classes in (2, 31, 100, 1000):
        logits = nasty_rows(n_classes, dtype)
        dense = fused.dense_scores(score, logits)
        for label in range(0, n_classes, max(1, n_classes // 7)):
            labels = np.full(len(logits), label)
            np.testing.assert_array_equal(fused.label_scores(score, logits, labels), dense[:, label])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [1000, 5000])
def test_sets_of_every_size(dtype, n_classes):
    """Each way of finding candidates: the first cut, the second, bisection, everything; few and many to sort."""
    logits = np.random.default_rng(3).normal(size=(5, n_classes)).astype(dtype)
    for score in (evicp.TopK(), evicp.ECP(), evicp.APS()):
        ascending = np.sort(fused.dense_scores(score, logits)[0])
        for m in (1, 2, 8, 9, 20, 32, 33, 100, 128, 129, 200, 450, 999, n_classes):
            threshold = ascending[m - 1]
            assert_sets_are_the_scores(score, logits, threshold)
            assert fused.ragged_sets(score, logits[:1], threshold)[0][1] == m


special = [-np.inf, 0.0, -0.0, 1.0, 1e4, -1e4, 1e30, -1e30, 5e-324, 1e-30, 87.3, -87.4, 10.0, -10.0]
narrow = st.integers(-12, 12).map(float)  # ties


@st.composite
def some_logits(draw: st.DrawFn) -> np.ndarray:
    dtype = draw(st.sampled_from(DTYPES))
    shape = (draw(st.integers(1, 3)), draw(st.integers(2, 80)))
    largest = {np.float16: 60000.0, np.float32: 2.0**120, np.float64: 2.0**990}[dtype]
    any_float = st.floats(-largest, largest, width=8 * np.dtype(dtype).itemsize)
    elements = (
        st.one_of(any_float, narrow) if dtype is np.float16 else st.one_of(any_float, narrow, st.sampled_from(special))
    )
    with np.errstate(under="ignore"):
        logits = draw(hnp.arrays(np.float64, shape, elements=elements, fill=narrow)).astype(dtype)
    logits[:, draw(st.integers(0, shape[1] - 1))] = draw(narrow)  # something finite in every row
    return logits


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logits=some_logits(), which=st.integers(0, len(SCORES) - 1), choice=st.floats(0, 1), nudge=st.integers(-1, 1))
def test_the_bit_rule(logits, which, choice, nudge):
    score = SCORES[which]
    dense = fused.dense_scores(score, logits)
    finite = np.sort(dense[np.isfinite(dense)])
    threshold = finite[int(choice * (len(finite) - 1))]
    if nudge:
        threshold = np.nextafter(threshold, nudge * np.inf)
    assert_sets_are_the_scores(score, logits, threshold)
    for label in range(0, logits.shape[1], 11):
        labels = np.full(len(logits), label)
        np.testing.assert_array_equal(fused.label_scores(score, logits, labels), dense[:, label])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logits=some_logits(), which=st.integers(0, len(SCORES) - 1))
def test_any_row_agrees_with_the_reference(logits, which):
    assert_agrees_with_reference(SCORES[which], logits)


# ---------------------------------------------------------------------------------------------------------------
# Blocks, threads, layouts


def all_results(logits: np.ndarray, labels: np.ndarray) -> bytes:
    """Everything the backend computes of these rows, as bytes."""
    parts = [
        *(fused.label_scores(score, logits, labels) for score in SCORES),
        *fused.ragged_sets(evicp.ECP(), logits, -3.0),
        *fused.ragged_sets(evicp.APS(), logits, 0.8),
        *fused.ragged_sets(evicp.LAC(), logits, np.inf),
        fused.dense_scores(evicp.RAPS(), logits),
        fused.top_labels(evicp.ECP(), logits),
        fused.label_ranks(logits, labels),
        np.array(fused.nll_derivatives(logits, labels, 0.7)),
        *fused.top_confidences(logits, labels, 0.7),
    ]
    return b"".join(part.tobytes() for part in parts)


@pytest.fixture(params=[70, 300], ids=["narrow", "wide"])
def batch(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    logits = (rng.normal(size=(101, request.param)) * 3).astype(np.float32)
    logits[::7, ::3] = -np.inf
    return logits, rng.integers(0, request.param, 101)


def share_out(monkeypatch: pytest.MonkeyPatch, threads: int, block: int) -> None:
    """Force threads and small blocks on small inputs."""
    monkeypatch.setenv("EVICP_THREADS", str(threads))
    monkeypatch.setattr(fused, "_ALONE", 0)
    monkeypatch.setattr(fused, "_BLOCK", block)
    monkeypatch.setattr(fused, "_COPIED_BLOCK", block)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("block", [1, 70 * 7, 70 * 100, 70 * 1000])
def test_threads_and_blocks_change_nothing(monkeypatch, batch, threads, block):
    want = all_results(*batch)
    share_out(monkeypatch, threads, block)
    monkeypatch.setattr(fused, "_ALONE", 3)  # the smallest block is a quarter of it
    assert all_results(*batch) == want


def test_batches_change_nothing(batch):
    logits, labels = batch
    score = evicp.RAPS()
    whole = fused.label_scores(score, logits, labels)
    single = [fused.label_scores(score, logits[i : i + 1], labels[i : i + 1])[0] for i in range(len(logits))]
    np.testing.assert_array_equal(whole, single)


def layouts(logits: np.ndarray, folder) -> dict[str, np.ndarray]:
    n, n_classes = logits.shape
    spaced = np.zeros((2 * n, 3 * n_classes), logits.dtype)
    spaced[::2, ::3] = logits
    raw = bytearray(logits.nbytes + 1)
    unaligned = np.frombuffer(raw, logits.dtype, logits.size, offset=1).reshape(logits.shape)
    unaligned[:] = logits
    np.save(folder / "logits.npy", logits)
    return {
        "Fortran": np.asfortranarray(logits),
        "strided": spaced[::2, ::3],
        "reversed": np.ascontiguousarray(logits[::-1, ::-1])[::-1, ::-1],
        "unaligned": unaligned,
        "memory map": np.load(folder / "logits.npy", mmap_mode="r"),
    }


@every_dtype
def test_layouts_change_nothing(batch, tmp_path, dtype):
    logits, labels = batch[0].astype(dtype), batch[1]
    before = logits.copy()
    want = all_results(logits, labels)
    for name, array in layouts(logits, tmp_path).items():
        assert all_results(array, labels) == want, name
    logits.flags.writeable = False
    labels.flags.writeable = False
    assert all_results(logits, labels) == want
    assert all_results(logits, np.repeat(labels, 2)[::2]) == want
    np.testing.assert_array_equal(logits, before)


def test_layouts_and_read_only_arrays_are_not_compiled_again(batch, tmp_path):
    logits, labels = batch
    kernel_list = [vars(fused._compiled)[f"{name}_kernel"] for name in ("label", "set", "dense", "top", "likelihood")]
    for dtype in DTYPES:
        all_results(logits.astype(dtype), labels)
    before = [len(kernel.signatures) for kernel in kernel_list]
    assert max(before[:3]) <= 6  # float32 and float64, of wide rows, of narrow ones and of other scores
    assert max(before[3:]) <= 2
    for array in layouts(logits, tmp_path).values():
        all_results(array, labels)
    logits.flags.writeable = False
    all_results(logits, labels)
    assert [len(kernel.signatures) for kernel in kernel_list] == before


@pytest.mark.parametrize("score", [evicp.ECP(), evicp.ECP(temperature=0.3), evicp.LAC()], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 10, 33, 100, 256, 257])
def test_a_row_has_the_results_that_it_has_alone(score, dtype, n_classes):
    """Also next to rows whose evidence overflows or whose labels are impossible: narrow rows share 16 lanes."""
    logits = np.repeat(nasty_rows(n_classes, dtype), 2, 0)
    labels = np.arange(len(logits)) % n_classes
    threshold = np.quantile(fused.label_scores(score, logits, labels), 0.5)
    together = fused.label_scores(score, logits, labels), fused.dense_scores(score, logits)
    offsets, members, scores = fused.ragged_sets(score, logits, threshold)
    for i in range(len(logits)):
        alone = logits[i : i + 1]
        assert fused.label_scores(score, alone, labels[i : i + 1])[0] == together[0][i] == together[1][i, labels[i]]
        np.testing.assert_array_equal(fused.dense_scores(score, alone)[0], together[1][i])
        _, own, own_scores = fused.ragged_sets(score, alone, threshold)
        np.testing.assert_array_equal(own, members[offsets[i] : offsets[i + 1]])
        np.testing.assert_array_equal(own_scores, scores[offsets[i] : offsets[i + 1]])


@pytest.mark.parametrize("first", [0, 15, 16, 33, 39])
@pytest.mark.parametrize("n_classes", [5, 100, 300])
def test_the_first_row_that_cannot_be_used_is_named(first, n_classes):
    for value in (np.nan, np.inf, -np.inf):
        logits = np.random.default_rng(0).normal(size=(40, n_classes)).astype(np.float32)
        logits[first, :: 1 if value == -np.inf else n_classes] = value
        logits[first + 1 :, -1] = np.nan
        for call in (
            lambda z: fused.label_scores(evicp.ECP(), z, np.zeros(40, int)),
            lambda z: fused.ragged_sets(evicp.ECP(), z, -1.0),
        ):
            with pytest.raises(LogitsError, match=rf"\brow {first}\b"):
                call(logits)


def test_no_rows(batch):
    logits, labels = batch[0][:0], batch[1][:0]
    score = evicp.ECP()
    assert fused.label_scores(score, logits, labels).shape == (0,)
    assert fused.dense_scores(score, logits).shape == logits.shape
    assert fused.top_labels(score, logits).shape == (0,)
    offsets, members, scores = fused.ragged_sets(score, logits, 0.0)
    assert (offsets.tolist(), len(members), len(scores)) == ([0], 0, 0)
    assert (members.dtype, scores.dtype) == (np.int32, np.float64)


def test_full_sets_of_many_rows():
    """More labels than the first buffer holds, several times over."""
    logits = np.random.default_rng(0).normal(size=(300, 50)).astype(np.float32)
    offsets, labels, scores = fused.ragged_sets(evicp.LAC(), logits, np.inf)
    np.testing.assert_array_equal(offsets, 50 * np.arange(301))
    np.testing.assert_array_equal(labels.reshape(300, 50), np.argsort(-logits, axis=1, kind="stable"))
    assert (np.diff(scores.reshape(300, 50)) >= 0).all()


def test_wide_rows_of_ties_are_not_quadratic():
    """A quarter of a million equal labels: pairwise comparison would take minutes."""
    logits = np.zeros((1, 250_000), np.float32)
    logits[0, ::2] = 1.0
    for score, threshold in ((evicp.ECP(), -1e-3), (evicp.APS(), 0.99), (evicp.TopK(), np.inf)):
        assert_sets_are_the_scores(score, logits, threshold)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", ""])
def test_a_senseless_number_of_threads(monkeypatch, value):
    monkeypatch.setenv("EVICP_THREADS", value)
    with pytest.raises(InputError, match="EVICP_THREADS must be a whole number of at least 1"):
        fused.threads()


def test_sets_that_shrink_and_grow_are_joined_in_order(monkeypatch):
    """The room for all sets is guessed from the first ones: too little, too much, both are put right."""
    monkeypatch.setattr(fused, "_BLOCK", 4000)
    rng = np.random.default_rng(0)
    sharpness = np.repeat([30.0, 0.1, 30.0], 300)[:, None]
    logits = (rng.normal(size=(900, 400)) * sharpness).astype(np.float32)
    for rows in (slice(None), slice(300, None)):
        for ours, theirs in zip(
            fused.ragged_sets(evicp.APS(), logits[rows], 0.9),
            reference.ragged_sets(evicp.APS(), logits[rows], 0.9),
            strict=True,
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
            assert ours.base is None  # nothing larger is kept alive


@pytest.mark.parametrize("score", [evicp.ECP(), evicp.LAC(), evicp.APS()], ids=str)
@pytest.mark.parametrize("n_classes", [17, 260])
def test_room_may_end_anywhere(score, n_classes):
    """Before a set of one label, of a few or of all: what is left is done with more room, and nothing is lost."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, n_classes)).astype(np.float32) * rng.choice([30.0, 3.0, 0.01], (40, 1))
    labels = rng.integers(0, n_classes, 40)
    threshold = np.median(fused.label_scores(score, logits, labels))
    offsets, members, scores = fused.ragged_sets(score, logits, threshold)
    assert len(set(np.diff(offsets).tolist())) > 5
    limits, ends = (checks.frozen(np.array([threshold])),), np.empty(40, np.int64)
    for room in range(n_classes, min(len(members) + 2, 3 * n_classes)):
        bad, pieces = fused._block_sets(
            checks.frozen(logits), fused._ways(score, n_classes), limits, ends, room, scored=True
        )
        assert bad == -1
        assert sum(n for n, _, _ in pieces) == 40
        np.testing.assert_array_equal(np.concatenate([own for _, own, _ in pieces]), members)
        np.testing.assert_array_equal(np.concatenate([own for _, _, own in pieces]), scores)
        row = 0
        for n, own, _ in pieces:
            np.testing.assert_array_equal(ends[row : row + n], offsets[row + 1 : row + n + 1] - offsets[row])
            assert len(own) == ends[row + n - 1] if n else not len(own)
            row += n


def test_a_result_is_in_memory_once(monkeypatch):
    monkeypatch.setenv("EVICP_THREADS", "1")  # several may be ahead of a slow one, whose rows come first
    logits = np.random.default_rng(0).normal(size=(4000, 500)).astype(np.float32)
    fused.ragged_labels(evicp.ECP(), logits[:1], np.inf)  # kernels take memory, too
    peaks, result = [], fused._Joined.result

    def after_peak(joined):  # before too much is given back in place, which NumPy 2.5 counts as if it were a copy
        peaks.append(tracemalloc.get_traced_memory()[1])
        return result(joined)

    monkeypatch.setattr(fused._Joined, "result", after_peak)
    tracemalloc.start()
    try:
        labels = fused.ragged_labels(evicp.ECP(), logits, np.inf)[1]
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert labels.nbytes == 4 * logits.size
    assert labels.nbytes < peaks[0] < 1.6 * labels.nbytes
    if np.lib.NumpyVersion(np.__version__) < "2.5.0":
        assert peaks[1] < 1.6 * labels.nbytes


def test_the_number_of_threads(monkeypatch):
    monkeypatch.delenv("EVICP_THREADS", raising=False)
    assert 1 <= fused.threads() <= (os.cpu_count() or 1)
    monkeypatch.setenv("EVICP_THREADS", "7")
    assert fused.threads() == 7


def test_sixteen_threads_at_once(batch, monkeypatch):
    want = all_results(*batch)
    share_out(monkeypatch, 2, 70 * 7)
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: all_results(*batch), range(64))) == {want}


def run_script(script: str, folder, **variables: str) -> str:
    """Run a script in a fresh interpreter with an empty compilation cache."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "EVICP_THREADS": "2", **variables}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


PREPARE = """
import os, sys, threading
import numpy as np
from evicp.kernels import _numba as fused
logits = np.random.default_rng(0).normal(size=(3000, 100)).astype(np.float32)
want = logits.argmax(1)
"""


def test_sixteen_cold_threads(tmp_path):
    """All threads find nothing compiled; one compiles, none waits for ever, all are right."""
    script = """
start, failures = threading.Barrier(16), []
def call():
    start.wait()
    for _ in range(20):
        if not np.array_equal(fused.top_labels(None, logits), want):
            failures.append(1)
threads = [threading.Thread(target=call) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(failures))
"""
    assert run_script(PREPARE + script, tmp_path) == "0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_what_interrupts_a_row_does_not_use_its_room(monkeypatch):
    """A handler of a signal may score a row of the same kind while one is at hand in the same thread."""
    logits, labels = imagenet_like(200, 50)
    calibration = evicp.calibrate(logits, labels)
    want = [calibration.predict(row, 0.9).labels.tolist() for row in logits]
    assert len({tuple(labels) for labels in want}) > 20
    fill, interrupting = fused._fill, iter(reversed(range(200)))

    def interrupted(*arguments):
        with monkeypatch.context() as undone:
            undone.setattr(fused, "_fill", fill)
            other = next(interrupting)
            assert calibration.predict(logits[other], 0.9).labels.tolist() == want[other]
        found = fill(*arguments)
        with monkeypatch.context() as undone:
            undone.setattr(fused, "_fill", fill)
            assert calibration.predict(logits[other], 0.9).labels.tolist() == want[other]
        return found

    monkeypatch.setattr(fused, "_fill", interrupted)
    assert [calibration.predict(row, 0.9).labels.tolist() for row in logits] == want


@pytest.mark.filterwarnings("ignore:the true label")
@pytest.mark.parametrize("n_classes", [3, 15, 16, 100, 300, 5000])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_by_themselves_whatever_came_before(n_classes, dtype):
    """A row's room is kept from one call to the next: of other logits, masks, numbers of classes, or precisions."""
    logits, labels = imagenet_like(40, n_classes)
    logits[::3, 1:] = -np.inf
    logits = logits.astype(dtype)
    for score in (evicp.ECP(), evicp.LAC(), evicp.RAPS(seed=3)):
        calibration = evicp.calibrate(logits, labels, score)
        for coverage in (0.5, 0.9):
            batch = calibration.predict(logits, coverage).to_lists()
            strided = np.repeat(logits, 2, axis=1)[:, ::2]
            assert [calibration.predict(row, coverage)[0].tolist() for row in strided] == batch
            evicp.LAC().scores(np.zeros((1, 7), np.float32))
            assert [calibration.predict(row, coverage)[0].tolist() for row in logits] == batch


def test_a_forked_child_has_threads_of_its_own(tmp_path):
    script = """
assert np.array_equal(fused.top_labels(None, logits), want)
assert fused._pools, "the pool was not used"
child = os.fork()
if child == 0:
    os._exit(2 if fused._pools else 0 if np.array_equal(fused.top_labels(None, logits), want) else 1)
_, status = os.waitpid(child, 0)
assert np.array_equal(fused.top_labels(None, logits), want)
print(os.waitstatus_to_exitcode(status))
"""
    assert run_script(PREPARE + script, tmp_path) == "0"


def test_another_processor_gives_the_same_bits(tmp_path):
    """The order of every sum and every fused operation is in the source: narrower vectors change nothing."""
    script = """
import hashlib
import numpy as np
from evicp import ECP
from evicp.kernels import _numba as fused
logits, labels = (np.random.default_rng(0).normal(size=(200, 1003)) * 3).astype(np.float32), np.arange(200)
found = fused._likelihoods(logits, labels, 0.8), fused.label_scores(ECP(), logits, labels)
found += fused.label_scores(ECP(), np.ascontiguousarray(logits[:, :201]), labels),  # narrow rows are turned
print(hashlib.sha256(b"".join(part.tobytes() for part in found)).hexdigest())
"""
    here = run_script(script, tmp_path / "here")
    elsewhere = run_script(script, tmp_path / "elsewhere", NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert here == elsewhere


def test_parts_are_merged_into_kernels_and_have_no_machine_code_of_their_own(tmp_path):
    """Where this fails after an update of Numba, kernels still work, and take longer to compile."""
    script = """
assert np.array_equal(fused.top_labels(None, logits), want)
part = next(iter(fused._compiled.rows._survey.overloads.values()))
print(part.library._codegen._engine.is_symbol_defined(part.fndesc.llvm_func_name))
"""
    assert run_script(PREPARE + script, tmp_path) == "False"


def test_parts_are_made_shorter_before_they_are_merged(tmp_path):
    """Where this fails after an update of Numba, kernels still work, as above. Older ones do all they can to a part."""
    script = """
import numba
library, lengths = fused._compiled.parts._PartLibrary, []
before = library._optimize_functions
def shorten(own, module):
    long = len(str(module))
    before(own, module)
    lengths.append(len(str(module)) / long)
library._optimize_functions = shorten
assert np.array_equal(fused.top_labels(None, logits), want)
recent = tuple(map(int, numba.__version__.split(".")[:2])) >= (0, 68)
print(fused._compiled.parts._CAN_SHORTEN >= recent, len(lengths) > 3, max(lengths) <= 1, min(lengths) < 1)
"""
    assert run_script(PREPARE + script, tmp_path) == "True True True True"


def test_numba_is_asked_once_for_each_kernel_what_operators_do_to_types(tmp_path):
    script = """
import collections
from numba.core import types
from numba.core.registry import cpu_target
memory, context = fused._compiled.parts._Typing, cpu_target.typing_context
wanted, asked, open_questions = collections.Counter(), collections.Counter(), []
remember, ask = memory.resolve_function_type, context.resolve_function_type
def remembered(own, *question):
    wanted[question[:2]] += 1
    open_questions.append(question)
    try:
        return remember(own, *question)
    finally:
        open_questions.pop()
def asking(*question):
    asked[question[:2]] += open_questions[-1:] == [question] and not isinstance(question[0], types.Dispatcher)
    return ask(*question)
memory.resolve_function_type, context.resolve_function_type = remembered, asking
for dtype in (np.float32, np.float64):
    wanted.clear(), asked.clear()
    found = np.array_equal(fused.top_labels(None, logits.astype(dtype)), want)
    print(found, max(wanted.values()) > 3, sum(asked.values()) > 20, max(asked.values()), len(memory.answers), end=";")
"""
    assert run_script(PREPARE + script, tmp_path) == "True True True 1 0;" * 2


@pytest.mark.parametrize(
    ("width", "needed", "needless"),
    [
        (300, {"_survey", "_sums", "_plain_value", "_take_candidates", "_walk"}, {"_note_turned", "_flag_candidates"}),
        (100, {"_note_turned", "_plain_value", "_take_candidates", "_walk"}, {"_survey", "_note_row", "_sums"}),
    ],
    ids=["wide", "narrow"],
)
def test_a_first_call_compiles_neither_the_other_way_nor_other_scores(tmp_path, width, needed, needless):
    script = f"""
from evicp import ECP
rows = np.hstack([logits[:50]] * 3)[:, :{width}].copy()
fused.label_scores(ECP(), rows, np.zeros(len(rows), np.int64)), fused.ragged_labels(ECP(), rows, -1.0)
files = [file for file in vars(fused._compiled).values() if hasattr(file, "__file__")]
parts = {{name: part for file in files for name, part in vars(file).items() if hasattr(part, "overloads")}}
compiled = {{name for name, part in parts.items() if part.overloads}}
assert {needed} <= compiled, compiled
others = {needless} | {{"_note_other", "_log_cost", "_mass_above", "_uniform", "_second_largest", "_other_evidence"}}
assert others <= parts.keys()
print(sorted(compiled & others))
"""
    assert run_script(PREPARE + script, tmp_path) == "[]"


def test_kept_kernels_are_loaded_without_what_only_a_compiler_needs(tmp_path):
    """And whoever compiles afterwards, we or others, has all of it."""
    script = """
found = np.array_equal(fused.top_labels(None, logits), want), "scipy.linalg" in sys.modules
import numba
norm = numba.njit(lambda x: np.linalg.norm(x))
print(*found, norm(np.array([3.0, 4.0])), np.array_equal(fused.top_labels(None, logits.astype(np.float64)), want))
"""
    assert run_script(PREPARE + script, tmp_path) == "True True 5.0 True"
    assert run_script(PREPARE + script, tmp_path) == "True False 5.0 True"


def test_garbage_is_collected_again_after_a_first_call(tmp_path):
    """While kernels are compiled it is not; who had switched that off finds it off."""
    script = """
import gc
from evicp.kernels import _loading
seen, before = [], fused._compiled.toolchain.compiler.Compiler.compile_extra
fused._compiled.toolchain.compiler.Compiler.compile_extra = lambda *a: (seen.append(gc.isenabled()), before(*a))[1]
fused.top_labels(None, logits), seen.append(gc.isenabled())
gc.disable()
fused.top_labels(None, logits.astype(np.float64)), seen.append(gc.isenabled())
gc.enable()
try:
    with _loading.undisturbed():
        raise ValueError
except ValueError:
    print(set(seen[:2]), True in seen, seen[-1], gc.isenabled())
"""
    assert run_script(PREPARE + script, tmp_path) == "{False} True False True"


def test_without_a_compiler_the_reference_is_used(tmp_path):
    script = "from evicp import LAC, kernels; print(kernels._fused(), LAC().scores([[1.0, 1.0]]).round(2).tolist())"
    assert run_script(script, tmp_path, NUMBA_DISABLE_JIT="1") == "None [[0.69, 0.69]]"


#: Keep a list of what is compiled.
COUNT = """
from evicp.kernels._compiled.parts import _KernelCompiler
compiled, real = [], _KernelCompiler.compile_extra
_KernelCompiler.compile_extra = lambda *a: (compiled.append(a), real(*a))[1]
"""

#: Before any test of it, make every folder one that cannot be written to, as on a read-only file system.
READ_ONLY = """
import numba.core.caching
def refuse(*_, **__): raise OSError(30, "Read-only file system")
numba.core.caching.tempfile.TemporaryFile = numba.core.caching.os.makedirs = refuse
"""


def test_kernels_are_compiled_again_when_any_of_their_files_changes(tmp_path):
    """Numba by itself looks at the kernel's own file only: of a mended formula it would keep what was wrong."""
    source, kept = shutil.copytree(Path(evicp.__file__).parent, tmp_path / "src" / "evicp"), tmp_path / "kept"
    script = COUNT + PREPARE + "\nprint(np.array_equal(fused.top_labels(None, logits), want), len(compiled) > 0)"

    def found():
        return run_script(script, kept, PYTHONPATH=str(source.parent), PYTHONDONTWRITEBYTECODE="1")

    assert (found(), found()) == ("True True", "True False")
    changed = source / "kernels" / "_compiled" / "rows.py"
    before = changed.stat()
    changed.write_text(changed.read_text(encoding="utf-8").replace("first look", "quick look"), encoding="utf-8")
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # it is the content that counts
    assert (found(), found()) == ("True True", "True False")


def test_without_a_folder_for_the_cache_kernels_still_compile(tmp_path):
    script = "\nprint(np.array_equal(fused.top_labels(None, logits), want))"
    assert run_script(READ_ONLY + PREPARE + script, tmp_path) == "True"
    assert not list(tmp_path.iterdir())


def test_kernels_kept_in_a_folder_that_cannot_be_written_to_are_found(tmp_path):
    """As in a container whose image holds them; others are compiled, and not kept."""
    script = "\nprint(np.array_equal(fused.top_labels(None, logits.astype(DTYPE)), want)"
    compile_one = PREPARE + script.replace("DTYPE", "np.float32") + ")"
    assert run_script(compile_one, tmp_path) == "True"
    kept = sorted(file.name for file in tmp_path.rglob("*"))
    for dtype, answer in (("np.float32", "True 0"), ("np.float64", "True 1")):
        asked = READ_ONLY + COUNT + PREPARE + script.replace("DTYPE", dtype) + ", min(len(compiled), 1))"
        assert run_script(asked, tmp_path) == answer
    assert sorted(file.name for file in tmp_path.rglob("*")) == kept


def test_a_busy_pool_is_not_waited_for(monkeypatch, batch):
    """A call whose helpers never get a turn does all the work itself."""
    want = all_results(*batch)
    share_out(monkeypatch, 2, 70)
    release = threading.Event()
    blocker = fused._pool(1).submit(release.wait, 60)
    try:
        assert all_results(*batch) == want
    finally:
        release.set()
        blocker.result()


# ---------------------------------------------------------------------------------------------------------------
# Bad rows


def calls(labels: np.ndarray) -> dict[str, object]:
    return {
        "label_scores": lambda backend, z: backend.label_scores(evicp.ECP(), z, labels),
        "ragged_sets": lambda backend, z: backend.ragged_sets(evicp.LAC(), z, 1.0),
        "dense_scores": lambda backend, z: backend.dense_scores(evicp.APS(), z),
        "top_labels": lambda backend, z: backend.top_labels(evicp.TopK(), z),
        "label_ranks": lambda backend, z: backend.label_ranks(z, labels),
        "nll_derivatives": lambda backend, z: backend.nll_derivatives(z, labels, 1.0),
        "top_confidences": lambda backend, z: backend.top_confidences(z, labels, 1.0),
    }


def message(call, backend, logits: np.ndarray) -> str:
    with pytest.raises(LogitsError) as caught:
        call(backend, logits)
    return str(caught.value)


BAD = {
    "nan": np.nan,
    "infinite": np.inf,
    "too large": 1e301,
    "impossible": -np.inf,
}


@pytest.mark.parametrize("shared_out", [False, True])
@pytest.mark.parametrize("n_classes", [3, 40, 100])
@every_dtype
@pytest.mark.parametrize("kind", BAD)
def test_bad_rows_raise_what_the_reference_raises(monkeypatch, kind, dtype, n_classes, shared_out):
    if kind == "too large":
        dtype = np.float64  # the only type that holds such a number
    if shared_out:
        share_out(monkeypatch, 2, n_classes)
    logits = np.random.default_rng(0).normal(size=(50, n_classes)).astype(dtype)
    labels = np.zeros(50, np.int64)
    for row, column in ((0, 0), (23, n_classes - 1), (49, n_classes // 2)):
        bad = logits.copy()
        bad[row, slice(None) if kind == "impossible" else column] = BAD[kind]
        bad[-1, 0] = np.nan  # a later bad row is not the one to name
        for name, call in calls(labels).items():
            assert message(call, fused, bad) == message(call, reference, bad), name


def test_a_nan_is_named_before_an_infinity_in_the_same_row():
    logits = np.zeros((4, 40), np.float32)
    logits[2, 5], logits[2, 30] = np.inf, np.nan
    for name, call in calls(np.zeros(4, np.int64)).items():
        assert "NaN at row 2, class 30" in message(call, fused, logits), name


# ---------------------------------------------------------------------------------------------------------------
# Which scores


class Shifted(evicp.ECP):
    """A user's subclass, with a formula of its own."""

    def formula(self, z):
        return super().formula(z) + 100.0


def test_what_the_backend_knows():
    assert all(fused.knows(score) for score in SCORES)
    unknown = [
        Shifted(),
        evicp.ECP(base_rates=(0.25, 0.75)),
        evicp.ECP(evidence=np.abs),
        evicp.ECP(utility=np.exp),
        evicp.LAC(temperature=1e-31),
        evicp.LAC(temperature=1e31),
        evicp.scores.as_score(lambda z: -z),
    ]
    assert not any(fused.knows(score) for score in unknown)


def test_other_scores_take_the_reference():
    logits = np.array([[1.0, 2.0], [3.0, -1.0]])
    for score in (Shifted(), evicp.ECP(base_rates=(0.25, 0.75)), evicp.LAC(temperature=1e-31)):
        np.testing.assert_array_equal(kernels.dense_scores(score, logits), reference.dense_scores(score, logits))


def test_a_backend_can_be_chosen():
    logits = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32)
    with kernels.backend("numpy"):
        plain = kernels.dense_scores(evicp.ECP(), logits)
    with kernels.backend("numba"):
        compiled = kernels.dense_scores(evicp.ECP(), logits)
    np.testing.assert_array_equal(plain, reference.dense_scores(evicp.ECP(), logits))
    np.testing.assert_array_equal(compiled, fused.dense_scores(evicp.ECP(), logits))
    assert not np.array_equal(plain, compiled)  # float32 arithmetic: close, not equal
    np.testing.assert_allclose(plain, compiled, rtol=1e-5)


def test_a_forced_backend_that_is_missing_is_an_error(monkeypatch):
    logits = np.zeros((1, 3))
    monkeypatch.setattr(kernels, "_fused", lambda: None)
    np.testing.assert_array_equal(kernels.dense_scores(evicp.TopK(), logits), np.ones((1, 3)))
    with kernels.backend("numba"), pytest.raises(InputError, match="needs Numba"):
        kernels.dense_scores(evicp.TopK(), logits)


@pytest.mark.parametrize(("value", "said"), [("NumPy", "_numpy"), ("nunpy", "EVICP_BACKEND must be one of")])
def test_the_variable_names_a_backend_in_any_case_or_is_refused(tmp_path, value, said):
    script = """
from evicp import EvicpError, kernels
try:
    print(kernels._backend_for().__name__)
except EvicpError as error:
    print(error)
"""
    assert said in run_script(script, tmp_path, EVICP_BACKEND=value)


@pytest.mark.parametrize("there", [True, False])
def test_numba_that_does_not_load_is_told_apart_from_none(monkeypatch, there):
    def fail(name):
        raise ImportError("llvmlite is too old")

    monkeypatch.setattr(kernels, "import_module", fail)
    monkeypatch.setattr(kernels, "installed", lambda name: there)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert kernels._fused.__wrapped__() is None
    assert [str(warning.message)[:58] for warning in said] == (
        ["Numba is installed but cannot be used (llvmlite is too old"] if there else []
    )
    assert all(issubclass(warning.category, evicp.EvicpWarning) for warning in said)


def test_sets_through_the_public_call_agree_with_scores():
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=(400, 60)) * 2).astype(np.float32)
    labels = rng.integers(0, 60, 400)
    for name in ("ecp", "lac", "aps", "raps", "saps", "topk", "margin"):
        calibration = evicp.calibrate(logits[:200], labels[:200], name)
        for coverage in (0.5, 0.9):
            sets = calibration.predict(logits[200:], coverage)
            inside = calibration.score.scores(logits[200:]) <= calibration.threshold(coverage)
            np.testing.assert_array_equal(as_mask(sets.offsets, sets.labels, inside.shape), inside)


def test_parameters_of_equal_hash_are_told_apart():
    """LAC(1.0) and Margin(1.0) hash alike; the cached parameters must not be mixed up."""
    logits = np.random.default_rng(0).normal(size=(5, 40))
    for make in (evicp.LAC, evicp.Margin, partial(evicp.APS, randomized=False), partial(evicp.Base, randomized=False)):
        np.testing.assert_allclose(
            fused.dense_scores(make(), logits), reference.dense_scores(make(), logits), rtol=1e-12, atol=1e-12
        )


# ---------------------------------------------------------------------------------------------------------------
# What may happen meanwhile

TOP = "import numpy as np\nfrom evicp import kernels\nprint(kernels.top_labels(None, np.eye(3)).tolist())"


@pytest.mark.parametrize("damage", ["index cut", "index empty", "index garbage", "code cut", "not a folder"])
def test_a_damaged_cache_is_compiled_again(tmp_path, damage):
    assert run_script(TOP, tmp_path / "cache") == "[0, 1, 2]"
    kept = sorted((tmp_path / "cache").rglob("*.nbc" if damage == "code cut" else "*.nbi"))
    assert kept
    if damage == "not a folder":
        shutil.rmtree(kept[0].parent)
        kept[0].parent.write_text("in the way")
    for file in kept if damage != "not a folder" else ():
        content = file.read_bytes()
        file.write_bytes({"index empty": b"", "index garbage": b"\x93" * 500}.get(damage, content[: len(content) // 2]))
    assert run_script(TOP, tmp_path / "cache") == "[0, 1, 2]"
    if damage != "not a folder":
        assert all(file.read_bytes() != b"" for file in kept)  # and kept again
        assert run_script(TOP, tmp_path / "cache") == "[0, 1, 2]"


def test_a_cache_that_cannot_be_written_is_warned_of():
    class Full:
        def save_overload(self, *_):
            raise OSError(28, "No space left on device")

    cache = loading.Cache(fused._compiled.top_kernel.py_func)
    cache._own = Full()
    with pytest.warns(evicp.EvicpWarning, match=r"cannot be kept \(.*No space left.*Set NUMBA_CACHE_DIR"):
        cache.save_overload(None, None)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this platform")
@pytest.mark.parametrize("after", [0.02, 0.1, 0.2, 0.4, 0.8])
def test_a_signal_while_kernels_load_breaks_nothing(tmp_path_factory, after):
    """What a handler raises ends the call, and not the calls after it."""
    script = """
import signal, numpy as np, evicp
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
z = np.eye(4).repeat(5, 0) * 3
ended = 0
signal.setitimer(signal.ITIMER_REAL, AFTER)
for _ in range(3):
    try: evicp.calibrate(z, np.arange(4).repeat(5), "lac")
    except Late: ended += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(evicp.calibrate(z, np.arange(4).repeat(5), "lac").n)
"""
    folder = tmp_path_factory.getbasetemp() / "signals"  # shared: most of these runs find their kernels there
    assert run_script(script.replace("AFTER", str(after)), folder) == "20"


def test_rows_are_shared_out_as_far_as_there_are_threads(tmp_path):
    """Threads that serve on when the main one has ended, and what runs at exit, cannot have any more."""
    script = """
import atexit
def late():
    print(np.array_equal(fused.top_labels(None, logits), want))
def served():
    threading.main_thread().join()
    late()
assert np.array_equal(fused.top_labels(None, logits), want)
atexit.register(late)
threading.Thread(target=served).start()
"""
    assert run_script(PREPARE + script, tmp_path).split() == ["True", "True"]


def test_an_error_in_one_thread_ends_the_others(monkeypatch):
    share_out(monkeypatch, 3, 70 * 7)
    logits = np.zeros((70 * 400, 7))
    done = []

    def work(_, rows):
        if rows.start == 0:
            raise MemoryError
        done.append(rows.start)
        time.sleep(0.001)
        return -1

    with pytest.raises(MemoryError):
        fused._share_out(logits, work)
    before = len(done)
    time.sleep(0.05)
    assert len(done) <= before + 3
    assert len(done) < 200
