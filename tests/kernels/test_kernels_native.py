"""The compiled CPU backend against the NumPy reference, and against itself."""

from __future__ import annotations

import os
import tracemalloc
from functools import partial

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import evicp
from evicp import kernels
from evicp.bench import imagenet_like
from evicp.errors import InputError, LogitsError
from evicp.kernels import _numpy as reference

native = pytest.importorskip("evicp.kernels._native")

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


def assert_agrees_with_reference(score: evicp.method.scores.Score, logits: np.ndarray) -> None:
    got, want = native.dense_scores(score, logits), reference.dense_scores(score, logits)
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


def assert_sets_are_the_scores(score: evicp.method.scores.Score, logits: np.ndarray, threshold: float) -> None:
    """Membership, order and scores of sets are exactly those of the backend's own dense scores."""
    dense = native.dense_scores(score, logits)
    offsets, labels, scores = native.ragged_sets(score, logits, threshold)
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
def test_dense_scores_agree_with_the_reference(score, dtype):
    for n_classes in (2, 3, 15, 16, 17, 31, 32, 33, 48, 49, 100, 1000):
        assert_agrees_with_reference(score, nasty_rows(n_classes, dtype))


@every_dtype
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_the_randomisation_is_the_references_bit_for_bit(dtype, seed):
    """TopK's score is a whole number plus v, so equal scores mean equal v and equal ranks."""
    for n_classes in (2, 31, 33, 1000):
        logits = nasty_rows(n_classes, dtype)
        score = evicp.TopK(randomized=True, seed=seed)
        np.testing.assert_array_equal(native.dense_scores(score, logits), reference.dense_scores(score, logits))


@every_dtype
@every_score
def test_top_labels_agree_with_the_reference(score, dtype):
    logits = nasty_rows(100, dtype)[:14]
    np.testing.assert_array_equal(native.top_labels(score, logits), logits.astype(np.float64).argmax(1))
    np.testing.assert_array_equal(native.top_labels(score, logits), reference.top_labels(score, logits))


@every_dtype
@pytest.mark.parametrize("n_classes", [2, 10, 16, 33, 49, 1000])
def test_ranks_agree_with_the_reference(dtype, n_classes):
    logits = nasty_rows(n_classes, dtype)
    for label in (0, n_classes // 2, n_classes - 1):  # masked labels among them
        labels = np.full(len(logits), label)
        got = native.label_ranks(logits, labels)
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
    got, want = native.nll_derivatives(logits, labels, beta), reference.nll_derivatives(logits, labels, beta)
    np.testing.assert_allclose(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    confidence, correct = native.top_confidences(logits, labels, beta)
    expected, truth = reference.top_confidences(logits, labels, beta)
    np.testing.assert_allclose(confidence, expected, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(correct, truth)


def test_a_masked_true_label_has_infinite_likelihood():
    logits = np.array([[0.0, -np.inf, 1.0]], np.float32)
    value, slope, curvature = native.nll_derivatives(logits, np.array([1]), 1.0)
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
            native.dense_scores(evicp.ECP(stabilizer=0), logits)[0], want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


def test_sharp_rows_keep_their_digits_in_single_precision():
    """1 - p of a sure label, far below float32's resolution at 1, still orders rows as the reference does."""
    gaps = np.linspace(20, 60, 50, dtype=np.float32)
    logits = np.zeros((50, 40), np.float32)
    logits[:, 7] = gaps
    labels = np.full(50, 7)
    exact = np.log1p(39 * np.exp(-gaps.astype(np.float64)))
    np.testing.assert_allclose(native.label_scores(evicp.LAC(), logits, labels), exact, rtol=1e-5)
    for score in (evicp.ECP(), evicp.ECP(stabilizer=0)):
        wide = np.float32(1e4) * logits  # a Dirichlet with almost all its mass on one label
        got = native.label_scores(score, wide, labels)
        np.testing.assert_allclose(got, reference.label_scores(score, wide, labels), rtol=1e-6)
        assert (np.diff(got) < 0).all()


# ---------------------------------------------------------------------------------------------------------------
# Membership and scores agree exactly


@every_dtype
@every_score
def test_sets_hold_exactly_the_labels_within_the_threshold(score, dtype):
    for n_classes in (2, 10, 16, 17, 33, 48, 256, 300):
        logits = nasty_rows(n_classes, dtype)
        dense = native.dense_scores(score, logits)
        thresholds = np.quantile(dense[np.isfinite(dense)], [0.001, 0.02, 0.1, 0.5, 0.9, 1.0], method="lower")
        for threshold in [*thresholds, np.nextafter(thresholds[2], -np.inf), np.inf, -np.inf, np.nan]:
            assert_sets_are_the_scores(score, logits, threshold)


@every_dtype
@every_score
def test_label_scores_are_the_dense_ones(score, dtype):
    for n_classes in (2, 31, 100, 1000):
        logits = nasty_rows(n_classes, dtype)
        dense = native.dense_scores(score, logits)
        for label in range(0, n_classes, max(1, n_classes // 7)):
            labels = np.full(len(logits), label)
            np.testing.assert_array_equal(native.label_scores(score, logits, labels), dense[:, label])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [1000, 5000])
def test_sets_of_every_size(dtype, n_classes):
    """Each way of finding candidates: the first cut, the second, bisection, everything; few and many to sort."""
    logits = np.random.default_rng(3).normal(size=(5, n_classes)).astype(dtype)
    for score in (evicp.TopK(), evicp.ECP(), evicp.APS()):
        ascending = np.sort(native.dense_scores(score, logits)[0])
        for m in (1, 2, 8, 9, 20, 32, 33, 100, 128, 129, 200, 450, 999, n_classes):
            threshold = ascending[m - 1]
            assert_sets_are_the_scores(score, logits, threshold)
            assert native.ragged_sets(score, logits[:1], threshold)[0][1] == m


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
    dense = native.dense_scores(score, logits)
    finite = np.sort(dense[np.isfinite(dense)])
    threshold = finite[int(choice * (len(finite) - 1))]
    if nudge:
        threshold = np.nextafter(threshold, nudge * np.inf)
    assert_sets_are_the_scores(score, logits, threshold)
    for label in range(0, logits.shape[1], 11):
        labels = np.full(len(logits), label)
        np.testing.assert_array_equal(native.label_scores(score, logits, labels), dense[:, label])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logits=some_logits(), which=st.integers(0, len(SCORES) - 1))
def test_any_row_agrees_with_the_reference(logits, which):
    assert_agrees_with_reference(SCORES[which], logits)


# ---------------------------------------------------------------------------------------------------------------
# Blocks, threads, layouts


def all_results(logits: np.ndarray, labels: np.ndarray) -> bytes:
    """Everything the backend computes of these rows, as bytes."""
    parts = [
        *(native.label_scores(score, logits, labels) for score in SCORES),
        *native.ragged_sets(evicp.ECP(), logits, -3.0),
        *native.ragged_sets(evicp.APS(), logits, 0.8),
        *native.ragged_sets(evicp.LAC(), logits, np.inf),
        native.dense_scores(evicp.RAPS(), logits),
        native.top_labels(evicp.ECP(), logits),
        native.label_ranks(logits, labels),
        np.array(native.nll_derivatives(logits, labels, 0.7)),
        *native.top_confidences(logits, labels, 0.7),
    ]
    return b"".join(part.tobytes() for part in parts)


@pytest.fixture(params=[70, 300], ids=["narrow", "wide"])
def batch(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    logits = (rng.normal(size=(101, request.param)) * 3).astype(np.float32)
    logits[::7, ::3] = -np.inf
    return logits, rng.integers(0, request.param, 101)


def test_batches_change_nothing(batch):
    logits, labels = batch
    score = evicp.RAPS()
    whole = native.label_scores(score, logits, labels)
    single = [native.label_scores(score, logits[i : i + 1], labels[i : i + 1])[0] for i in range(len(logits))]
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


@pytest.mark.parametrize("score", [evicp.ECP(), evicp.ECP(temperature=0.3), evicp.LAC()], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 10, 33, 100, 256, 257])
def test_a_row_has_the_results_that_it_has_alone(score, dtype, n_classes):
    """Also next to rows whose evidence overflows or whose labels are impossible: narrow rows share 16 lanes."""
    logits = np.repeat(nasty_rows(n_classes, dtype), 2, 0)
    labels = np.arange(len(logits)) % n_classes
    threshold = np.quantile(native.label_scores(score, logits, labels), 0.5)
    together = native.label_scores(score, logits, labels), native.dense_scores(score, logits)
    offsets, members, scores = native.ragged_sets(score, logits, threshold)
    for i in range(len(logits)):
        alone = logits[i : i + 1]
        assert native.label_scores(score, alone, labels[i : i + 1])[0] == together[0][i] == together[1][i, labels[i]]
        np.testing.assert_array_equal(native.dense_scores(score, alone)[0], together[1][i])
        _, own, own_scores = native.ragged_sets(score, alone, threshold)
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
            lambda z: native.label_scores(evicp.ECP(), z, np.zeros(40, int)),
            lambda z: native.ragged_sets(evicp.ECP(), z, -1.0),
        ):
            with pytest.raises(LogitsError, match=rf"\brow {first}\b"):
                call(logits)


def test_no_rows(batch):
    logits, labels = batch[0][:0], batch[1][:0]
    score = evicp.ECP()
    assert native.label_scores(score, logits, labels).shape == (0,)
    assert native.dense_scores(score, logits).shape == logits.shape
    assert native.top_labels(score, logits).shape == (0,)
    offsets, members, scores = native.ragged_sets(score, logits, 0.0)
    assert (offsets.tolist(), len(members), len(scores)) == ([0], 0, 0)
    assert (members.dtype, scores.dtype) == (np.int32, np.float64)


def test_full_sets_of_many_rows():
    """More labels than the first buffer holds, several times over."""
    logits = np.random.default_rng(0).normal(size=(300, 50)).astype(np.float32)
    offsets, labels, scores = native.ragged_sets(evicp.LAC(), logits, np.inf)
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
        native.threads()


def test_the_number_of_threads(monkeypatch):
    monkeypatch.delenv("EVICP_THREADS", raising=False)
    assert 1 <= native.threads() <= (os.cpu_count() or 1)
    monkeypatch.setenv("EVICP_THREADS", "7")
    assert native.threads() == 7


@pytest.mark.parametrize("n_classes", [3, 15, 16, 100, 300, 5000])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.filterwarnings("ignore:the true label")
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


@pytest.mark.parametrize("n_classes", [3, 40, 100])
@every_dtype
@pytest.mark.parametrize("kind", BAD)
def test_bad_rows_raise_what_the_reference_raises(kind, dtype, n_classes):
    if kind == "too large":
        dtype = np.float64  # the only type that holds such a number
    logits = np.random.default_rng(0).normal(size=(50, n_classes)).astype(dtype)
    labels = np.zeros(50, np.int64)
    for row, column in ((0, 0), (23, n_classes - 1), (49, n_classes // 2)):
        bad = logits.copy()
        bad[row, slice(None) if kind == "impossible" else column] = BAD[kind]
        bad[-1, 0] = np.nan  # a later bad row is not the one to name
        for name, call in calls(labels).items():
            assert message(call, native, bad) == message(call, reference, bad), name


def test_a_nan_is_named_before_an_infinity_in_the_same_row():
    logits = np.zeros((4, 40), np.float32)
    logits[2, 5], logits[2, 30] = np.inf, np.nan
    for name, call in calls(np.zeros(4, np.int64)).items():
        assert "NaN at row 2, class 30" in message(call, native, logits), name


# ---------------------------------------------------------------------------------------------------------------
# Which scores


class Shifted(evicp.ECP):
    """A user's subclass, with a formula of its own."""

    def formula(self, z):
        return super().formula(z) + 100.0


def test_what_the_backend_knows():
    known = [evicp.ECP(base_rates=(0.25, 0.75)), evicp.ECP(utility=np.exp)]
    assert all(native.knows(score) for score in [*SCORES, *known])
    unknown = [
        Shifted(),
        evicp.ECP(evidence=np.abs),
        evicp.LAC(temperature=1e-31),
        evicp.LAC(temperature=1e31),
        evicp.method.scores.as_score(lambda z: -z),
    ]
    assert not any(native.knows(score) for score in unknown)


def test_other_scores_take_the_reference():
    logits = np.array([[1.0, 2.0], [3.0, -1.0]])
    for score in (Shifted(), evicp.ECP(evidence=np.abs), evicp.LAC(temperature=1e-31)):
        np.testing.assert_array_equal(kernels.dense_scores(score, logits), reference.dense_scores(score, logits))


def test_a_backend_can_be_chosen():
    logits = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32)
    with kernels.backend("numpy"):
        plain = kernels.dense_scores(evicp.ECP(), logits)
    with kernels.backend("native"):
        compiled = kernels.dense_scores(evicp.ECP(), logits)
    np.testing.assert_array_equal(plain, reference.dense_scores(evicp.ECP(), logits))
    np.testing.assert_array_equal(compiled, native.dense_scores(evicp.ECP(), logits))
    assert not np.array_equal(plain, compiled)  # float32 arithmetic: close, not equal
    np.testing.assert_allclose(plain, compiled, rtol=1e-5)


def test_without_compiled_kernels_the_reference_is_used_and_says_so(monkeypatch):
    def fail(name):
        raise ImportError("no compiler was at hand")

    monkeypatch.setattr(kernels, "import_module", fail)
    with pytest.warns(evicp.EvicpWarning, match=r"without compiled kernels \(no compiler was at hand\)"):
        assert kernels.compiled.__wrapped__() is None
    monkeypatch.setattr(kernels, "compiled", lambda: None)
    np.testing.assert_array_equal(kernels.dense_scores(evicp.TopK(), np.zeros((1, 3))), np.ones((1, 3)))
    assert kernels.level() == "none"
    with kernels.backend("native"), pytest.raises(InputError, match='"native" is not installed'):
        kernels.dense_scores(evicp.TopK(), np.zeros((1, 3)))


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
            native.dense_scores(make(), logits), reference.dense_scores(make(), logits), rtol=1e-12, atol=1e-12
        )


# ---------------------------------------------------------------------------------------------------------------
# Precisions, and long rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_score
@pytest.mark.parametrize("n_classes", [4097, 20_000])
def test_long_rows_keep_their_accuracy(score, dtype, n_classes):
    rng = np.random.default_rng(n_classes)
    logits = np.stack([rng.normal(size=n_classes) * 2, np.full(n_classes, 0.1), np.round(rng.normal(size=n_classes))])
    assert_agrees_with_reference(score, logits.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 16, 33, 1000, 4095, 4097, 20_000])
def test_masses_are_added_exactly(dtype, n_classes):
    """All weights together are the mass, to the last unit, however they are spread; so the last label has exactly 1."""
    rng, score = np.random.default_rng(n_classes), evicp.APS(randomized=False)
    logits = (
        rng.permuted(rng.normal(size=(7, n_classes)), axis=1) * [[0.1], [1e-3], [0.3], [3], [10], [30], [300]]
    ).astype(dtype)
    last = logits.argmin(1)
    assert (native.label_scores(score, logits, last) == 1.0).all()
    assert (native.dense_scores(score, logits)[np.arange(7), last] == 1.0).all()
    order, labels = rng.permutation(n_classes), rng.integers(n_classes, size=7)
    own, moved = native.label_scores(score, logits, order[labels]), native.label_scores(score, logits[:, order], labels)
    np.testing.assert_array_equal(own, moved)
    np.testing.assert_array_equal(own, native.dense_scores(score, logits)[np.arange(7), order[labels]])


@every_score
def test_half_precision_is_the_upcast_input_bit_for_bit(score):
    logits = np.concatenate([nasty_rows(100, np.float16), np.float16(6.0e-8) * nasty_rows(100, np.float16)[:6]])
    single = logits.astype(np.float32)
    np.testing.assert_array_equal(native.dense_scores(score, logits), native.dense_scores(score, single))
    threshold = float(np.median(native.dense_scores(score, single)[0]))
    for half, full in zip(
        native.ragged_sets(score, logits, threshold), native.ragged_sets(score, single, threshold), strict=True
    ):
        np.testing.assert_array_equal(half, full)


def dense_lac(rows: np.ndarray) -> np.ndarray:
    """LAC's scores straight from the module, of rows of bits."""
    scores = np.empty(rows.shape)
    assert native._core.dense_scores(native._pack(evicp.LAC(), rows.shape[1]), rows, 1, None, None, scores) == -1
    return scores


def test_every_float16_and_every_bfloat16_is_widened_exactly():
    bits = np.arange(2**16, dtype=np.uint16)
    for single, as_given in (
        (bits.view(np.float16).astype(np.float32), bits.view(np.float16)),
        ((bits.astype(np.uint32) << 16).view(np.float32), bits),
    ):
        usable = np.isfinite(single)
        column = np.resize(as_given[usable], (usable.sum() // 128, 128))
        want = np.resize(single[usable], column.shape)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(dense_lac(column), dense_lac(want))


@pytest.mark.parametrize("kind", ["array", "tensor", "strided tensor"])
@pytest.mark.parametrize("score", ["ecp", "aps"])
def test_bfloat16_is_read_as_it_is(kind, score):
    """The same scores and sets as of float32, and no float32 copy."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    logits, labels = imagenet_like(8000, 300)
    rounded = logits.astype(ml_dtypes.bfloat16)
    wide: np.ndarray = rounded.astype(np.float32)
    given: object = rounded
    if kind != "array":
        torch = pytest.importorskip("torch")
        every_second = torch.tensor(np.repeat(wide, 2, axis=0)).bfloat16()[::2]
        given = every_second if kind == "strided tensor" else every_second.contiguous()
    want = evicp.calibrate(wide, labels, score)
    evicp.calibrate(given, labels, score).predict(given, 0.9)  # what is imported and remembered is there
    tracemalloc.start()
    calibration = evicp.calibrate(given, labels, score)
    sets = calibration.predict(given, 0.9)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < wide.nbytes / 2
    np.testing.assert_array_equal(calibration.scores, want.scores)
    np.testing.assert_array_equal(sets.labels, want.predict(wide, 0.9).labels)


# ---------------------------------------------------------------------------------------------------------------
# Limits of labels, base rates, utilities


def per_class(z: np.ndarray) -> np.ndarray:
    """A utility that does not follow the logits."""
    return 1 / (1 + np.exp(2 * np.sin(np.arange(z.shape[1])) - np.clip(z, -50, 50)))


def uneven(n_classes: int) -> list[evicp.method.scores.Score]:
    """ECP where scores need not fall as logits rise."""
    rng = np.random.default_rng(n_classes)
    rates = rng.dirichlet(np.full(n_classes, 3.0)) + 1e-6
    two = np.where(np.arange(n_classes) % 2, 2.7, 1.0)  # at 3, softplus(1) + 1 / 2 would tie with softplus(-1) + 3 / 2
    own, tied = (tuple((r / r.sum()).tolist()) for r in (rates, two))
    return [
        evicp.ECP(base_rates=own),
        evicp.ECP(base_rates=tied, stabilizer="scaled", temperature=0.5),
        evicp.ECP(base_rates=own, stabilizer=0),
        evicp.ECP(base_rates=tied, evidence="softplus", stabilizer=7.0),
        evicp.ECP(utility=per_class),
        evicp.ECP(utility=per_class, base_rates=tied, evidence="exp"),
        evicp.ECP(utility=per_class, stabilizer=0),
    ]


def assert_sets_within_limits(score: evicp.method.scores.Score, logits: np.ndarray, limits: np.ndarray) -> None:
    dense = native.dense_scores(score, logits)
    row, column = np.nonzero(dense <= limits)
    order = np.lexsort((column, -logits[row, column].astype(np.float64), dense[row, column], row))
    offsets, labels, scores = native.ragged_sets(score, logits, limits)
    np.testing.assert_array_equal(labels, column[order])
    np.testing.assert_array_equal(scores, dense[row, column][order])
    np.testing.assert_array_equal(np.diff(offsets), np.bincount(row, minlength=len(logits)))
    for ours, same in zip(native.ragged_labels(score, logits, limits), (offsets, labels), strict=True):
        np.testing.assert_array_equal(ours, same)


def some_limits(score: evicp.method.scores.Score, logits: np.ndarray) -> list[np.ndarray]:
    """Limits of labels: close together, far apart, with none and with -inf; and one for each row."""
    rng = np.random.default_rng(logits.shape[1])
    dense = native.dense_scores(score, logits)
    middle = np.quantile(dense[np.isfinite(dense)], [0.02, 0.3])
    limits = [m + s * rng.normal(size=(1, logits.shape[1])) for m in middle for s in (0.01, 1.0, 10.0)]
    limits[1][0, ::5], limits[1][0, 1::5] = np.inf, -np.inf
    return [*limits, middle[0] + 0.01 * np.arange(len(logits))[:, None]]


@every_dtype
@pytest.mark.parametrize("n_classes", [2, 17, 100, 300])
@every_score
def test_sets_within_limits_of_labels(score, n_classes, dtype):
    logits = nasty_rows(n_classes, dtype)
    for limits in some_limits(score, logits):
        assert_sets_within_limits(score, logits, limits)


@every_dtype
@pytest.mark.parametrize("n_classes", [2, 3, 16, 33, 300])
@pytest.mark.parametrize("which", range(7))
def test_scores_that_need_not_fall_with_the_logit(which, n_classes, dtype):
    score, rng = uneven(n_classes)[which], np.random.default_rng(which)
    for logits in (nasty_rows(n_classes, dtype), (rng.normal(size=(30, n_classes)) * 2.5).astype(dtype)):
        dense, want = native.dense_scores(score, logits), reference.dense_scores(score, logits)
        np.testing.assert_array_equal(np.isinf(dense), np.isinf(want))
        wide = np.where(logits > -np.inf, logits, np.nan).astype(np.float64)
        lost = 1e-15 * ((np.nanmax(wide, 1) - np.nanmin(wide, 1)) / score.temperature)[:, None]
        finite = np.isfinite(want)
        away = np.abs(dense[finite] - want[finite])
        assert (away <= (TOLERANCE[dtype] * np.maximum(1.0, np.abs(want)) + lost)[finite]).all()
        for label in {0, n_classes // 2, n_classes - 1}:
            labels = np.full(len(logits), label)
            np.testing.assert_array_equal(native.label_scores(score, logits, labels), dense[:, label])
        best = np.where(dense == dense.min(1, keepdims=True), logits, -np.inf).argmax(1)
        np.testing.assert_array_equal(native.top_labels(score, logits), best)
        for limits in [*some_limits(score, logits), np.array(np.inf), np.array(-np.inf)]:
            assert_sets_within_limits(score, logits, limits)


def test_utilities_are_those_of_their_own_rows():
    """Of more rows than one block, in sets of every row's own threshold."""
    logits = np.random.default_rng(0).normal(size=(3000, 100)).astype(np.float32)
    score = evicp.ECP(utility=lambda z: np.exp(z - z.max(1, keepdims=True)))
    limits = np.linspace(-6, -2, 3000)[:, None]
    together = native.ragged_sets(score, logits, limits)
    first, last = (native.ragged_sets(score, logits[half], limits[half]) for half in (slice(1000), slice(1000, None)))
    np.testing.assert_array_equal(together[0][1001:] - together[0][1000], last[0][1:])
    for whole, *parts in zip(together[1:], first[1:], last[1:], strict=True):
        np.testing.assert_array_equal(whole, np.concatenate(parts))
