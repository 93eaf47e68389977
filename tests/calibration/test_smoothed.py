"""Smoothed p-values and sets: exact coverage where scores are tied, and nothing that depends on how rows come."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

import evicp
from evicp import APS, LAC, ByClass, ByUncertainty, Margin, TopK, calibrate, kernels
from evicp.calibration import smoothing
from evicp.errors import EvicpError, InputError, InputTypeError, SmallCalibrationWarning, SuspiciousInputWarning
from evicp.io import files

K, STEPS = 6, 1 << 24
ALL = [evicp.ECP(), LAC(), APS(), evicp.RAPS(), evicp.SAPS(), TopK(), Margin()]


def make(n: int, seed: int = 0, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Rows of an unsure classifier: the ranks of true labels are spread, and heavily tied."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return (rng.normal(size=(n, K)) + np.eye(K)[labels]).astype(dtype), labels


def exact_p(scores: Any, s: float, u: Fraction) -> Fraction:
    """The definition."""
    above, equal = sum(x > s for x in scores), sum(x == s for x in scores)
    return (above + u * (1 + equal)) / (len(scores) + 1)


# ---------------------------------------------------------------------------------------------------------------
# The definition, in fractions

values = st.sampled_from([-np.inf, -1.5, 0.0, 5e-324, 1.0, 1.0 + 2**-52, 7.0, np.inf])


@given(
    scores=st.lists(values, max_size=9),
    coverage=st.fractions(Fraction(1, 20), Fraction(19, 20), max_denominator=20),
    steps=st.lists(st.one_of(st.integers(1, STEPS), st.sampled_from([1, STEPS // 2, STEPS])), min_size=1, max_size=4),
)
@example(scores=[0.0, 1.0, 7.0], coverage=Fraction(1, 2), steps=[STEPS // 2])  # 1 + 2 / 2 = 4 (1 - 1 / 2): not above
@example(scores=[0.0, 1.0, 1.0, 1.0, 7.0], coverage=Fraction(1, 2), steps=[STEPS // 2, STEPS // 2 + 1])
@pytest.mark.filterwarnings("ignore::evicp.errors.SmallCalibrationWarning")
@pytest.mark.filterwarnings("ignore:the true label scores")
def test_a_label_is_inside_exactly_where_its_p_value_is_above(scores, coverage, steps):
    ascending = np.sort(np.array(scores, np.float64))
    found = smoothing.smoothed_limit(ascending, coverage, np.array(steps))
    for limit, k in zip(found.tolist(), steps, strict=True):
        for s in (-1e300, -1.5, -1.0, 0.0, 5e-324, 0.5, 1.0, 1.0 + 2**-52, 3.0, 7.0, 8.0, np.inf):
            p = exact_p(scores, s, Fraction(k, STEPS))
            assert (s <= limit) == (p > 1 - coverage), (s, k)
            first, after = (np.searchsorted(ascending, s, side) for side in ("left", "right"))
            n = len(scores)
            assert smoothing.smoothed_p_values(n - after, after - first, n, np.array(k)) == float(p)


@pytest.mark.parametrize("scores", [[0, 0, 0, 0, 1, 1, 2, 5], [0] * 8, list(range(8)), [0, 0, 0, 1, 1, 1, 1, 1]])
@pytest.mark.parametrize("coverage", [Fraction(1, 2), Fraction(3, 4), Fraction(4, 5), Fraction(9, 10)])
@pytest.mark.filterwarnings("ignore::evicp.errors.SmallCalibrationWarning")
def test_coverage_is_what_was_asked_over_all_orders_and_all_u(scores, coverage):
    """Each of eight rows is the new one, at each of 840 * 5 values of u: every threshold in u falls between two."""
    parts = 840 * 5
    steps = np.floor((np.arange(parts) + 0.5) / parts * STEPS).astype(np.int64) + 1
    hits = sum(
        int(
            np.sum(
                scores[i] <= smoothing.smoothed_limit(np.sort(np.delete(np.array(scores, float), i)), coverage, steps)
            )
        )
        for i in range(8)
    )
    assert Fraction(hits, 8 * parts) == coverage


def test_u_of_one_is_the_plain_p_value_and_the_plain_set():
    z, y = make(300)
    calibration = calibrate(z[:200], y[:200], "topk")
    ones = np.ones(100)
    np.testing.assert_array_equal(calibration.p_values(z[200:], smoothed=ones), calibration.p_values(z[200:]))
    for coverage in (0.3, 0.5, 0.8, 0.9):
        plain = calibration.predict(z[200:], coverage)
        smoothed = calibration.predict(z[200:], coverage, smoothed=ones)
        assert plain.tied
        assert smoothed == dataclasses.replace(plain, smoothed=True, tied=False)


# ---------------------------------------------------------------------------------------------------------------
# Sets and p-values of real calibrations


def ways(n: int) -> dict[str, tuple[Any, Any]]:
    """How to calibrate n rows, and the groups of rows if they are given."""
    given_groups = np.array(["a", "b", "c"])[np.arange(n) % 3]
    return {
        "marginal": (None, None),
        "group": (given_groups, given_groups),
        "uncertainty": (ByUncertainty(bands=3), None),
    }


@pytest.mark.parametrize("score", ALL, ids=lambda s: s.name)
@pytest.mark.parametrize("way", ways(0))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sets_are_the_labels_whose_smoothed_p_value_is_above(cpu_backend, score, way, dtype):
    z, y = make(400, dtype=dtype)
    z = np.round(2 * z) / 2  # ties of every score
    by, groups = ways(400)[way]
    calibration = calibrate(z, y, score, by=by)
    new = z[:150]
    own = None if groups is None else groups[:150]
    p = calibration.p_values(new, groups=own, smoothed=True)
    np.testing.assert_array_equal(
        calibration.p_values(new, y[:150], groups=own, smoothed=True), np.take_along_axis(p, y[:150, None], 1)[:, 0]
    )
    coverages = [Fraction(1, 2), Fraction(3, 4), Fraction(9, 10)]
    several = calibration.predict(new, coverages, groups=own, smoothed=True)
    for coverage, sets in zip(coverages, several, strict=True):
        assert calibration.predict(new, coverage, groups=own, smoothed=True) == sets
        np.testing.assert_array_equal(sets.mask(), p > float(1 - coverage))
        plain = calibration.predict(new, coverage, groups=own)
        assert not np.any(sets.mask() & ~plain.mask())
    assert not np.any(several[0].mask() & ~several[1].mask())


@pytest.mark.parametrize("way", ["marginal", "group", "class", "clusters"])
def test_p_values_against_the_definition(way):
    z, y = make(90)
    groups = {"marginal": np.zeros(90, int), "group": np.arange(90) % 3, "class": y, "clusters": y // 2}[way]
    by = {"marginal": None, "group": groups, "class": "class", "clusters": ByClass(clusters=[0, 0, 1, 1, 2, 2])}[way]
    calibration = calibrate(z, y, "topk", by=by)
    new, _ = make(20, 1)
    u = np.random.default_rng(0).random(20)
    own = np.arange(20) % 3
    p = calibration.p_values(new, groups=own if way == "group" else None, smoothed=u)
    known, scores = TopK().scores(z)[np.arange(90), y], TopK().scores(new)
    for row, label in np.ndindex(20, K):
        group = {"marginal": 0, "group": own[row], "class": label, "clusters": label // 2}[way]
        steps = Fraction(int(np.floor(u[row] * STEPS)) + 1, STEPS)
        exact = exact_p(known[groups == group].tolist(), scores[row, label], steps)
        assert p[row, label] == pytest.approx(float(exact), rel=1e-15)


@pytest.mark.parametrize("way", ways(0))
def test_single_rows_and_batches_get_the_same(cpu_backend, way):
    z, y = make(300)
    by, groups = ways(300)[way]
    calibration = calibrate(z, y, APS(), by=by)
    whole_sets = calibration.predict(z, 0.8, groups=groups, smoothed=True)
    whole = calibration.p_values(z, y, groups=groups, smoothed=True)
    for start, stop in pairwise([0, 1, 2, 50, 300]):
        own = None if groups is None else groups[start:stop]
        sets = calibration.predict(z[start:stop], 0.8, groups=own, smoothed=True)
        assert sets == whole_sets[start:stop]
        part = calibration.p_values(z[start:stop], y[start:stop], groups=own, smoothed=True)
        assert part.tobytes() == whole[start:stop].tobytes()
    none = None if groups is None else groups[:0]
    assert len(calibration.predict(z[:0], 0.8, groups=none, smoothed=True)) == 0


def test_other_precisions_of_one_row_have_one_u():
    z, y = make(200, dtype=np.float16)
    first = smoothing.as_steps(True, 0, 7, z)
    for dtype in (np.float32, np.float64):
        np.testing.assert_array_equal(smoothing.as_steps(True, 0, 7, z.astype(dtype)), first)
    calibration = calibrate(z.astype(np.float32), y, "topk")
    sets = [calibration.predict(z.astype(dtype), 0.8, smoothed=True) for dtype in (np.float16, np.float32, np.float64)]
    assert sets[0] == sets[1] == sets[2]


def test_u_has_nothing_to_do_with_what_a_randomised_score_draws():
    z, _ = make(2000)
    for seed, digest in ((0, 0), (7, 2**64 - 1), (smoothing._SALT, 1)):
        u = (smoothing.as_steps(True, seed, digest, z) - 1) / STEPS
        v = kernels._numpy.row_uniforms(z, seed)[:, 0]
        assert abs(np.corrcoef(u, v)[0, 1]) < 0.1
        assert np.unique(u).size > 1990
        assert abs(np.mean(u) - 0.5) < 0.03
        assert abs(np.mean(u < 0.1) - 0.1) < 0.03


def test_other_rounding_can_only_add_labels():
    pytest.importorskip("evicp.kernels._native")
    z, y = make(400)
    with kernels.backend("native"):
        calibration = calibrate(z[:200], y[:200], "lac")
        here = calibration.predict(z[200:], 0.8, smoothed=True)
    with kernels.backend("numpy"):
        there = calibration.predict(z[200:], 0.8, smoothed=True)
    assert not np.any(here.mask() & ~there.mask())


# ---------------------------------------------------------------------------------------------------------------
# Coverage


def coarse(z):
    """A score of few values: the distance from the largest logit, rounded."""
    return np.round(z.max(1, keepdims=True) - z)


@pytest.mark.parametrize("score", [TopK(), coarse], ids=["topk", "coarse"])
@pytest.mark.parametrize("coverage", [0.5, 0.8])
def test_coverage_is_exact_on_average_where_scores_are_tied(score, coverage, figure, long_run):
    """The control: plain sets, whose p-values count every tie in full, cover far more of a tied score."""
    trials, n, m = 20_000 if long_run else 1_500, 40, 20
    covered = {True: 0, False: 0}
    for trial in range(trials):
        z, y = make(n + m, 100_000 + trial)
        calibration = calibrate(z[:n], y[:n], score)
        for smoothed in covered:
            covered[smoothed] += int(calibration.predict(z[n:], coverage, smoothed=smoothed).contains(y[n:]).sum())
    smooth, plain = (covered[kind] / (trials * m) for kind in (True, False))
    figure("smoothed coverage", smooth)
    figure("plain coverage", plain)
    # A trial's share spreads by no more than c (1 - c) (1 / n + 1 / m): four standard errors of the mean.
    assert abs(smooth - coverage) < 4 * np.sqrt(coverage * (1 - coverage) * (1 / n + 1 / m) / trials)
    assert plain > coverage + 0.02


def test_coverage_is_exact_in_every_group(figure):
    trials, n, m = 1000, 60, 40
    hits, counts = np.zeros(2), np.zeros(2)
    for trial in range(trials):
        z, y = make(n + m, 10_000 + trial)
        groups = (np.random.default_rng(trial).random(n + m) < 0.3).astype(int)
        if min(np.bincount(groups[:n], minlength=2)) < 9:
            continue
        sets = calibrate(z[:n], y[:n], "topk", by=groups[:n]).predict(z[n:], 0.8, groups=groups[n:], smoothed=True)
        hits += np.bincount(groups[n:], sets.contains(y[n:]), 2)
        counts += np.bincount(groups[n:], minlength=2)
    shares = hits / counts
    figure("smoothed coverage of each group at 0.8", shares.tolist())
    assert np.all(np.abs(shares - 0.8) < 0.012)


def test_p_values_are_uniform_where_scores_are_tied():
    p = []
    for trial in range(3000):
        z, y = make(21, 50_000 + trial)
        p.append(calibrate(z[:20], y[:20], "topk").p_values(z[20:], y[20:], smoothed=True)[0])
    for a in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9):
        assert abs(np.mean(np.array(p) <= a) - a) < 5 * np.sqrt(a * (1 - a) / 3000)


def test_rows_that_are_all_alike_need_numbers_of_their_own():
    """A constant network: with one u for all, sets are full or empty together; with random ones coverage is exact."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, K, 3000)
    z = np.tile(np.arange(K, dtype=float), (3000, 1))
    calibration = calibrate(z[:1000], y[:1000], "topk")
    with pytest.warns(SuspiciousInputWarning, match="most rows have the same logits as another row"):
        calibration.predict(z[1000:], 0.9, smoothed=True)
    generator = np.random.default_rng(1)
    sets = calibration.predict(z[1000:], 0.9, smoothed=generator)
    assert sets == calibration.predict(z[1000:], 0.9, smoothed=np.random.default_rng(1).random(2000))
    assert sets != calibration.predict(z[1000:], 0.9, smoothed=generator)  # its next numbers
    assert abs(sets.contains(y[1000:]).mean() - 0.9) < 0.04
    assert calibration.predict(z[1000:], 0.9).contains(y[1000:]).mean() > 0.98


# ---------------------------------------------------------------------------------------------------------------
# What cannot be smoothed


def test_what_cannot_be_smoothed_says_why():
    z, y = make(200)
    weighted = calibrate(z, y, weights=np.ones(200))
    for door in (
        lambda: weighted.predict(z, 0.8, weights=np.ones(200), smoothed=True),
        lambda: weighted.p_values(z, weights=np.ones(200), smoothed=True),
    ):
        with pytest.raises(
            InputError, match="smoothed p-values need rows of equal weight; this calibration is weighted"
        ):
            door()
    with pytest.raises(InputError, match="smoothed sets by class would need a threshold for each label of each row"):
        calibrate(z, y, by="class").predict(z, 0.5, smoothed=True)
    with pytest.raises(InputError, match="confidence needs the Beta law, which smoothed sets do not follow"):
        calibrate(z, y).predict(z, 0.8, confidence=0.9, smoothed=True)
    calibrate(z, y, by="class").predict(z, 0.5, smoothed=np.False_)


@pytest.mark.parametrize(
    "smoothed", [None, "yes", 1, 0.5, [0.5], np.full(10, 1.5), np.full(10, np.nan), np.ones(10, int)]
)
def test_what_is_no_smoothing(smoothed):
    z, y = make(100)
    calibration = calibrate(z, y)
    for door in (calibration.predict, lambda logits, _, **options: calibration.p_values(logits, **options)):
        with pytest.raises(EvicpError, match="smoothed must be") as caught:
            door(z[:10], 0.8, smoothed=smoothed)
        assert isinstance(caught.value, InputError | InputTypeError)


def test_few_rows_give_some_full_sets_and_say_so():
    z, y = make(300)
    calibration = calibrate(z[:4], y[:4], "lac")
    with pytest.warns(SmallCalibrationWarning, match=r"4 calibration row\(s\) are few for coverage 0\.9: about 50% of"):
        sets = calibration.predict(z[4:], 0.9, smoothed=True)
    assert abs(np.mean(sets.sizes == K) - 0.5) < 0.2
    with pytest.warns(SmallCalibrationWarning):
        assert smoothing.smoothed_limit(np.empty(0), Fraction(9, 10), np.array([1, STEPS])).tolist() == [
            -np.inf,
            np.inf,
        ]


def test_filled_and_smoothed():
    z, y = make(300)
    calibration = calibrate(z, y, "topk")
    sets = calibration.predict(z, 0.25, smoothed=True)
    filled = calibration.predict(z, 0.25, smoothed=True, allow_empty=False)
    assert sets.sizes.min() == 0
    assert filled.filled
    np.testing.assert_array_equal(filled.sizes, np.maximum(sets.sizes, 1))


# ---------------------------------------------------------------------------------------------------------------
# What smoothed sets remember, and how they are judged


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".jsonl"])
def test_sets_remember_that_they_are_smoothed(tmp_path, suffix):
    z, y = make(300)
    calibration = calibrate(z[:200], y[:200], "topk")
    plain, smoothed = (calibration.predict(z[200:], 0.7, smoothed=which) for which in (False, True))
    assert (plain.smoothed, smoothed.smoothed) == (False, True)
    files.write_sets(smoothed, tmp_path / f"sets{suffix}")
    if suffix != ".jsonl":  # which holds sets alone
        assert files.read_sets(tmp_path / f"sets{suffix}") == smoothed
    assert evicp.evaluate(smoothed, y[200:]).smoothed
    assert not evicp.evaluate(plain, y[200:]).smoothed
    with pytest.raises(InputError, match="one calibration and one coverage"):
        evicp.evaluation.metrics.Evaluator().update(plain, y[200:]).update(smoothed, y[200:])


@pytest.mark.filterwarnings("ignore::evicp.errors.SmallCalibrationWarning")
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("score", ["lac", "topk"])
def test_the_verdict_on_smoothed_sets_is_wrong_no_more_often_than_it_says(score, grouped, long_run):
    """From 9 rows, plain sets at 0.81 are those of rank 9, which cover 0.9 on average; smoothed ones cover 0.81."""
    rng, runs, m = np.random.default_rng(5), 1500 if long_run else 500, 150
    wrong, control = 0, 0
    for run in range(runs):
        z, y = make(9 + m, seed=1000 + run)
        calibration = calibrate(z[:9], y[:9], score, by=np.zeros(9, int) if grouped else None)
        groups = np.zeros(m, int) if grouped else None
        sets = calibration.predict(z[9:], 0.81, smoothed=rng.random(m), groups=groups)
        result = evicp.evaluate(sets, y[9:], groups=groups)
        verdict = calibration.certificate(0.81, result).observed
        assert verdict is not None
        wrong += not verdict["compatible"]
        control += not evicp.Reliability(9, 0.81).compatible(result.coverage, m).compatible
    assert wrong / runs < 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    assert control / runs > 0.08  # judged as plain sets they would be called broken far too often


def test_too_much_is_incompatible_with_smoothed_sets_also_where_scores_tie():
    """Plain sets of tied scores may cover more than was asked; smoothed ones must not."""
    z, y = make(1200)
    calibration = calibrate(z[:400], y[:400], "topk")
    sets = calibration.predict(z[400:], 0.7, smoothed=True)
    lucky = np.where(sets.sizes > 0, [int(row[0]) if len(row) else 0 for row in sets], y[400:])
    result = evicp.evaluate(sets, lucky)
    assert result.coverage > 0.95
    certificate = calibration.certificate(0.7, result)
    assert certificate.tied
    assert certificate.observed is not None
    assert not certificate.observed["compatible"]
    as_plain = calibration.certificate(0.7, dataclasses.replace(result, smoothed=False)).observed
    assert as_plain is not None
    assert as_plain["compatible"]


@pytest.mark.parametrize("by", [None, "group"])
def test_ties_that_another_backend_hides_are_warned_of(by):
    """Raised past rounding, no calibration score equals a new one; ranks are whole numbers, and need no raising."""
    pytest.importorskip("evicp.kernels._native")
    z, y = make(900)
    groups, u = np.arange(900) % 2, np.random.default_rng(0).random(500)
    how = {"by": groups[:400]} if by else {}
    new = {"groups": groups[400:]} if by else {}
    shuffled = np.sort(z[:1])[0][z.argsort(1).argsort(1)]  # the same logits in every row: six scores in all
    with kernels.backend("native"):
        tied = calibrate(shuffled[:400], y[:400], "lac", **how)
        ranks = calibrate(z[:400], y[:400], "topk", **how)
        here = ranks.predict(z[400:], 0.7, smoothed=True, **new)
        p = ranks.p_values(z[400:], y[400:], smoothed=True, **new)
    with kernels.backend("numpy"):
        for ask in (tied.predict, lambda logits, _, **more: tied.p_values(logits, **more)):
            with pytest.warns(SuspiciousInputWarning, match="Ties cannot be recognised"):
                ask(shuffled[400:], 0.7, smoothed=u, **new)
        assert ranks.predict(z[400:], 0.7, smoothed=True, **new) == here
        np.testing.assert_array_equal(ranks.p_values(z[400:], y[400:], smoothed=True, **new), p)
    assert here.sizes.sum() < ranks.predict(z[400:], 0.7, **new).sizes.sum()


@pytest.mark.parametrize("smoothed", [False, True])
def test_a_score_of_minus_infinity_is_not_in_an_empty_set(smoothed):
    """A user's ln(1 - p) of a sure network; a p-value decides about it as about any other."""

    def log_of_the_rest(logits):
        p = np.exp(logits - logits.max(1, keepdims=True))
        with np.errstate(divide="ignore"):
            return np.log1p(-p / p.sum(1, keepdims=True))

    rng = np.random.default_rng(0)
    y = rng.integers(0, K, 3000)
    z = rng.normal(size=(3000, K)) * 60 + 80 * np.eye(K)[y]
    calibration = calibrate(z[:1000], y[:1000], log_of_the_rest)
    sets = calibration.predict(z[1000:], 0.3, smoothed=smoothed)
    p = calibration.p_values(z[1000:], y[1000:], smoothed=smoothed)
    np.testing.assert_array_equal(sets.contains(y[1000:]), p > 0.7)
    level = evicp.AdaptiveLevel(0.3)
    level.level = 0.0
    assert level.predict(calibration, z[1000:]).sizes.max() == 0
