"""Calibrated here and used there: in another precision, by another backend. The guarantee must not depend on it.

A sure network's scores pile up within a rounding error of one value. A threshold from one arithmetic then lies on the
wrong side of nearly all scores of another.
"""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest

import evicp
from evicp import APS, LAC, RAPS, SAPS, ByUncertainty, Calibrator, calibrate, kernels
from evicp.errors import ArtifactError, LogitsError
from evicp.kernels.arithmetic import Arithmetic

WAYS = [*product(["native", "numpy"], [np.float16, np.float32, np.float64])]
SCORES = [
    "ecp",
    evicp.ECP(stabilizer=0.0),
    LAC(),
    APS(randomized=False),
    APS(),
    RAPS(randomized=False),
    SAPS(),
    "topk",
    "margin",
]


@pytest.fixture(autouse=True)
def compiled():
    """Where a test does not say otherwise, the backend that has two precisions."""
    pytest.importorskip("evicp.kernels._native")
    with kernels.backend("native"):
        yield


def sure(n: int, seed: int = 0, scale: float = 20.0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a sure network, exact in every precision, so that only what is done with them differs."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, n)
    logits = (rng.normal(size=(n, 10)) + 3 * np.eye(10)[labels]) * scale
    return logits.astype(np.float16).astype(np.float64), labels


@pytest.mark.parametrize("score", SCORES, ids=str)
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_coverage_survives_every_change_of_arithmetic(score, coverage, figure):
    (z, y), (new, truth) = sure(1000), sure(1000, 1)
    for (backend, dtype), (other_backend, other_dtype) in product(WAYS, WAYS):
        with kernels.backend(backend):
            calibration = calibrate(z.astype(dtype), y, score)
            usual = calibration.predict(new.astype(dtype), coverage)
        with kernels.backend(other_backend):
            sets = calibration.predict(new.astype(other_dtype), coverage)
            p = calibration.p_values(new.astype(other_dtype), truth)
        # The rows are those of the usual way: what it covers is covered, or the calibration's own rounding is to blame.
        loss = usual.contains(truth).mean() - sets.contains(truth).mean()
        figure("largest loss of coverage", float(loss))
        assert loss <= 1e-9, (backend, dtype, other_backend, other_dtype)
        np.testing.assert_array_equal(sets.contains(truth), p > 1 - coverage + 1e-12)


def votes(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities as a forest of ten trees has them: few values, heavily tied."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(6, 0.4), n)
    labels = (shares.cumsum(1) > rng.random((n, 1))).argmax(1)
    counts = np.array([rng.multinomial(10, share) for share in shares])
    return np.log(np.maximum(counts / 10, 1e-300)), labels


def test_control_thresholds_taken_as_they_are_lose_coverage(figure):
    (z, y), (new, truth) = votes(2000), votes(2000, 1)
    careful = calibrate(z, y, LAC())
    careless = dataclasses.replace(careful, origin=None)
    covered = [one.predict(new.astype(np.float32), 0.9).contains(truth).mean() for one in (careful, careless)]
    figure("the control's coverage at 0.9", float(covered[1]))
    assert covered[0] > 0.9
    assert covered[1] < 0.85


@pytest.mark.parametrize(
    "score", [LAC(), APS(randomized=False), RAPS(randomized=False), SAPS(randomized=False), "topk"]
)
@pytest.mark.parametrize("backend", ["native", "numpy"])
def test_ties_are_kept_whatever_the_precision_of_new_rows(score, backend):
    """Coverage in another precision is at least what it is in the calibration's own."""
    (z, y), (new, truth) = votes(1000), votes(1000, 1)
    with kernels.backend(backend):
        for made, used in product([np.float64, np.float32, np.float16], repeat=2):
            own = calibrate(z.astype(made), y, score)
            for coverage in (0.6, 0.8, 0.9):
                usual, other = (own.predict(new.astype(dtype), coverage) for dtype in (made, used))
                assert other.contains(truth).mean() >= usual.contains(truth).mean(), (made, used, coverage)


@pytest.mark.filterwarnings("ignore:sets hold")  # the score is weak at this temperature
def test_rows_in_a_finer_precision_are_rounded_to_that_of_the_calibration():
    """Half-precision logits tie, and ties share the best rank: unrounded rows would have higher ranks."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 50, 4000)
    z = rng.normal(size=(4000, 50)) + 4 * np.eye(50)[y] * (rng.random(4000) < 0.5)[:, None] + 400.0
    half = z.astype(np.float16)
    calibration = calibrate(half[:2000], y[:2000], "topk")
    assert calibration.predict(z[2000:], 0.8) == calibration.predict(half[2000:], 0.8)
    with kernels.backend("numpy"):
        again = calibrate(half[:2000], y[:2000], "topk")
        assert again.predict(z[2000:], 0.8) == again.predict(half[2000:], 0.8)


def test_bfloat16_rows_are_as_coarse_as_they_were_given():
    torch = pytest.importorskip("torch")
    (z, y), (new, truth) = votes(1000), votes(1000, 1)
    coarse = torch.tensor(new).bfloat16()
    fine = calibrate(z, y, "lac")
    assert fine.predict(coarse, 0.8).contains(truth).mean() >= fine.predict(new, 0.8).contains(truth).mean()
    half = calibrate(torch.tensor(z).bfloat16(), y, "lac")
    assert half.origin.arithmetic.logits == "bfloat16"
    assert half.predict(new, 0.8) == half.predict(coarse, 0.8)


@pytest.mark.parametrize("made_by", ["triton float32", "numpy float64", "mixed"])
def test_labels_on_the_threshold_stay_in_where_another_backend_rounds_them_up(made_by):
    z, y = sure(200, scale=1.0)
    own = calibrate(z, y, "lac")
    origin = dataclasses.replace(own.origin, arithmetic=Arithmetic.parse(made_by))
    rounding = 1e-13 if made_by == "numpy float64" else 1e-8
    lower = dataclasses.replace(own, scores=own.scores - rounding, origin=origin)
    k = evicp.conformal_rank(200, 0.8)
    assert lower.predict(z, 0.8).contains(y).sum() == own.predict(z, 0.8).contains(y).sum() == k
    np.testing.assert_array_equal(lower.p_values(z, y), own.p_values(z, y))
    careless = dataclasses.replace(lower, origin=None)
    assert careless.predict(z, 0.8).contains(y).sum() == k - 1


@pytest.mark.parametrize("by", ["class", "uncertainty"])
def test_groups_are_raised_too_and_on_their_own(by):
    (z, y), (new, truth) = sure(2000), sure(1000, 1)
    calibration = calibrate(z, y, "lac", by=by)
    usual, before = calibration.predict(new, 0.8), calibration.thresholds(0.8).copy()
    with kernels.backend("numpy"):
        assert calibration.predict(new, 0.8).contains(truth).mean() >= usual.contains(truth).mean()
    np.testing.assert_array_equal(calibration.thresholds(0.8), before)  # raised ones are not remembered as these
    assert calibration.predict(new, 0.8) == usual


def test_batches_in_a_finer_precision_are_rounded_to_that_of_the_first():
    z, y = sure(200)
    together = calibrate(z.astype(np.float32), y, "lac")
    calibrator = Calibrator("lac").update(z[:90].astype(np.float32), y[:90]).update(z[90:], y[90:])
    assert calibrator.finish() == together
    assert str(together.origin.arithmetic) == "native float32 of float32"


def test_batches_in_a_coarser_precision_are_remembered():
    z, y = sure(200)
    mixed = Calibrator("lac").update(z[:90], y[:90]).update(z[90:].astype(np.float32), y[90:]).finish()
    np.testing.assert_array_equal(mixed.scores, calibrate(z, y, "lac").scores)  # all were scored in double precision
    assert str(mixed.origin.arithmetic) == "mixed float64 of float32 to float64"


def test_what_was_made_in_several_ways_is_used_with_care():
    z, y = sure(200)
    one, other = (Calibrator("lac").update(z.astype(dtype), y) for dtype in (np.float32, np.float64))
    calibration = one.merge(other).finish()
    assert calibration.origin.arithmetic.backend == "mixed"
    assert calibration.predict(z, 0.5).contains(y).mean() > 0.5


def test_more_rows_are_scored_in_the_precision_of_the_calibration():
    (z, y), first, second = sure(200), np.float32, np.float64
    calibration = calibrate(z[:90].astype(first), y[:90], "lac")
    assert calibration.extended(z[90:].astype(second), y[90:]) == calibrate(z.astype(first), y, "lac")
    p = calibration.p_values_online(z[90:].astype(second), y[90:])
    assert p.tobytes() == calibration.p_values_online(z[90:].astype(first), y[90:]).tobytes()


@pytest.mark.parametrize("by", [None, "class"])
def test_more_rows_from_another_backend_make_a_calibration_mixed(by):
    z, y = sure(200)
    calibration = calibrate(z[:90], y[:90], "lac", by=by)
    with kernels.backend("numpy"):
        grown = calibration.extended(z[90:], y[90:])
    assert grown.origin.arithmetic.backend == "mixed"
    unknown = dataclasses.replace(calibration, origin=None)
    assert unknown.extended(z[90:], y[90:]).origin.arithmetic.backend == "mixed"
    assert grown.predict(z, 0.5).contains(y).mean() > 0.5


@pytest.mark.parametrize("score", ["lac", APS(randomized=False)], ids=str)
def test_online_p_values_are_not_smaller_by_another_backends_rounding(score):
    z, y = sure(400)
    calibration = calibrate(z[:200], y[:200], score)
    usual = calibration.p_values_online(z[200:], y[200:])
    with kernels.backend("numpy"):
        p = calibration.p_values_online(z[200:], y[200:])
        for row in range(200, 210):
            assert calibration.p_values(z[row], y[[row]])[0] == p[row - 200]
            calibration = calibration.extended(z[[row]], y[[row]])
    assert np.all(p >= usual)


def test_half_precision_is_read_as_single():
    z, y = sure(100)
    half, single = calibrate(z.astype(np.float16), y), calibrate(z.astype(np.float32), y)
    np.testing.assert_array_equal(half.scores, single.scores)
    assert half.origin.digest == single.origin.digest


def test_the_digest_is_of_all_rows_in_their_order_however_they_come():
    z, y = sure(100)
    whole = calibrate(z, y, "lac").origin.digest
    parts = [Calibrator("lac").update(z[rows], y[rows]) for rows in (slice(0, 30), slice(30, 31), slice(31, 100))]
    assert parts[0].merge(*parts[1:]).finish().origin.digest == whole
    assert calibrate(z[:40], y[:40], "lac").extended(z[40:], y[40:]).origin.digest == whole
    assert calibrate(z[::-1], y[::-1], "lac").origin.digest != whole
    z[:50] = z[0]
    y[:50] = y[0]
    swapped = np.r_[np.arange(49), 60, np.arange(50, 60), 49, np.arange(61, 100)]
    assert calibrate(z[swapped], y[swapped], "lac").origin.digest != calibrate(z, y, "lac").origin.digest


def test_the_file_knows_how_scores_were_made(tmp_path):
    z, y = sure(100)
    calibration = calibrate(z.astype(np.float32), y, "lac")
    calibration.save(tmp_path / "a.safetensors")
    assert evicp.load(tmp_path / "a.safetensors") == calibration
    abacus = dataclasses.replace(calibration.origin, arithmetic=Arithmetic("abacus", "float32", "float32", "float32"))
    dataclasses.replace(calibration, origin=abacus).save(tmp_path / "b.safetensors")
    with pytest.raises(
        ArtifactError, match="computed by 'abacus float32 of float32', which this version of evicp does not know"
    ):
        evicp.load(tmp_path / "b.safetensors")


def test_a_logit_beyond_single_precision_is_refused_where_that_is_the_precision():
    z, y = sure(100)
    calibration = calibrate(z.astype(np.float32), y, "lac")
    with pytest.raises(LogitsError, match="got \\+inf at row 0, class 3"):
        calibration.predict([[0.0, 1.0, 2.0, 1e40, *range(6)]], 0.9)


@pytest.mark.parametrize("logits", ["constant rows", "rounded"])
@pytest.mark.filterwarnings("ignore:1 band.s. of uncertainty instead of 3")
def test_bands_of_uncertainty_do_not_depend_on_rounding(logits):
    """Many rows share one u: an edge on it would let each backend say for itself on which side they are."""
    rng, k, n = np.random.default_rng(0), 10, 4000
    y = rng.integers(0, k, n)
    if logits == "constant rows":
        easy = rng.random(n) < 0.4
        hot = np.eye(k)[y]
        z = np.where(easy[:, None], 3.0 * hot - (1 - hot) * rng.random((n, k)), 0.3)
    else:
        z = np.round(rng.normal(size=(n, k)) + 2 * np.eye(k)[y], 1)
    with kernels.backend("numpy"):
        calibration = calibrate(z[:2000], y[:2000], "lac", by=ByUncertainty(bands=3))
        here, groups = calibration.predict(z[2000:], 0.9), calibration.groups_of(z[2000:])
    there = calibration.predict(z[2000:], 0.9)
    assert len(calibration.groups.names) == (
        1 if logits == "constant rows" else 3
    )  # 10 * 0.3 = 1 * 3.0, but for rounding
    np.testing.assert_array_equal(groups, calibration.groups_of(z[2000:]))
    assert there.contains(y[2000:]).mean() >= here.contains(y[2000:]).mean() - 1e-12


def test_groups_are_told_in_the_precision_of_the_calibration():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 2000)
    z = np.round(rng.normal(size=(2000, 10)) + 2 * np.eye(10)[y], 1)
    u = kernels.uncertainties(LAC(), z.astype(np.float32))
    by = ByUncertainty(bands=(float(np.sort(u)[1000]),))  # an edge of the user's, on a value that many rows share
    calibration = calibrate(z.astype(np.float32), y, "lac", by=by)
    np.testing.assert_array_equal(calibration.groups_of(z), calibration.groups_of(z.astype(np.float32)))


def test_sums_of_many_probabilities_have_more_room():
    """Labels that pile up at the end of nearly flat rows stay in where another backend adds the probabilities up."""
    rng, k = np.random.default_rng(0), 4096
    z = rng.uniform(-1e-3, 0, (60, k)).astype(np.float32)
    y = z.argmin(1)
    calibration = calibrate(z[:30], y[:30], APS(randomized=False))
    with kernels.backend("numpy"):
        assert calibration.predict(z[30:], 0.9).contains(y[30:]).mean() >= 0.9


@pytest.mark.parametrize(
    ("score", "top", "others"),
    [("lac", 6.9237165, 0.15413176), (evicp.ECP(stabilizer=1e-8), 15.499168, 5.815486)],
    ids=["lac", "ecp"],
)
def test_sums_over_many_classes_have_more_room(score, top, others):
    """The terms of a softmax and evidence are sums, too: of rows that are alike, all labels lie on the threshold."""
    z = np.full((30, 4096), others, np.float32)
    z[:, 0] = top
    calibration = calibrate(z, np.zeros(30, int), score)
    with kernels.backend("numpy"):
        own = kernels.label_scores(calibration.score, z, np.zeros(30, int))
        assert own[0] > calibration.scores[0] + 1e-6 * max(1.0, abs(calibration.scores[0]))
        assert calibration.predict(z, 0.9).contains(np.zeros(30, int)).all()
