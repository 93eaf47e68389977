"""The guarantees beyond the marginal one, each over many calibrations and each with a control that must fail.

Given a group's n calibration rows, the covered among its m new rows follow BetaBinomial(m, k, n + 1 - k). Each
(repeat, group) gives one number that is uniform on (0, 1) exactly if that law holds: the law's distribution function at
what was observed, drawn uniformly across its step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.stats

import evicp
from evicp import ByClass, ByUncertainty, Calibration, Custom, calibrate, conformal_rank, label_shift_weights, pac_rank
from evicp.calibration.laws.groups import divide
from evicp.calibration.ranks import ranks_of
from evicp.errors import SmallCalibrationWarning
from lengths import usually

pytestmark = [pytest.mark.reliability, pytest.mark.filterwarnings("ignore::evicp.errors.SmallCalibrationWarning")]

K = 6
N, M = 480, 480


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels and groups: classes differ in difficulty, groups in noise, rows in their evidence."""
    labels = rng.integers(0, K, n)
    groups = rng.integers(0, 3, n)
    noise = 0.5 + 0.8 * groups[:, None]
    logits = noise * rng.normal(size=(n, K)) + (1.0 + 0.6 * labels[:, None]) * np.eye(K)[labels]
    return logits * rng.uniform(0.5, 2.0, (n, 1)), labels, groups


def uniforms(rng: np.random.Generator, covered: np.ndarray, of_row: np.ndarray, counts: np.ndarray, coverage: float):
    """One number per group that is uniform if the law holds there; groups without new rows are left out."""
    found = []
    for group, n in enumerate(counts.tolist()):
        hits = covered[of_row == group]
        k = conformal_rank(n, coverage)
        if not len(hits) or k > n:
            continue
        law = scipy.stats.betabinom(len(hits), k, n + 1 - k)
        found.append(law.cdf(hits.sum() - 1) + rng.random() * law.pmf(hits.sum()))
    return found


def verdict(values: list[float]) -> tuple[float, float]:
    """How many standard errors the mean of supposed uniforms is above one half, and their Kolmogorov-Smirnov p."""
    values = np.asarray(values)
    return float((values.mean() - 0.5) * np.sqrt(12 * len(values))), float(scipy.stats.kstest(values, "uniform").pvalue)


WAYS: dict[str, Callable] = {
    "class": lambda g: ByClass(),
    "given clusters": lambda g: ByClass(clusters=[0, 0, 1, 1, 2, 2]),
    "found clusters": lambda g: ByClass(rare="cluster", clusters=3, rare_below=10_000),
    "group": lambda g: g,
    "uncertainty": lambda g: ByUncertainty(bands=3, share=0.2),
    "given bands": lambda g: ByUncertainty(bands=(0.35, 0.5)),
}


def experiment(way: str, score, coverage: float, repeats: int, predict: Callable | None = None) -> tuple[float, float]:
    """The verdict on the law in every group over many calibrations; `predict` replaces the sets by others."""
    rng = np.random.default_rng([len(way), round(1000 * coverage)])
    values = []
    for _ in range(repeats):
        z, y, g = draw(rng, N)
        new, truth, wanted = draw(rng, M)
        calibration = calibrate(z, y, score, by=WAYS[way](g))
        groups = wanted if way == "group" else None
        sets = calibration.predict(new, coverage, groups=groups) if predict is None else predict(z, y, new, coverage)
        numbers = calibration.groups.by.numbers(calibration.score, new, groups)
        of_row = numbers[0, truth] if numbers.shape[1] > 1 else numbers[:, 0]
        values += uniforms(rng, sets.contains(truth), of_row, calibration.groups.counts, coverage)
    return verdict(values)


@pytest.mark.parametrize(
    ("way", "score", "coverage"),
    usually(
        product(WAYS, ("ecp", "aps"), (0.8, 0.9)),
        lambda way, score, coverage: (
            (score, coverage) == ("ecp", 0.9) or (way in ("class", "uncertainty") and (score, coverage) == ("aps", 0.8))
        ),
    ),
)
def test_the_law_holds_in_every_group(way, score, coverage, long_run, figure):
    z, p = experiment(way, score, coverage, 1000 if long_run else 120)
    figure("largest abs(z) in groups", abs(z))
    assert abs(z) <= 4
    assert p >= 1e-4


@pytest.mark.parametrize("way", WAYS)
def test_control_one_threshold_for_all_breaks_the_law_of_groups(way, long_run):
    score = evicp.ECP(stabilizer=1e-8)
    marginal = lambda z, y, new, coverage: calibrate(z, y, score).predict(new, coverage)  # noqa: E731
    _, p = experiment(way, score, 0.9, 300 if long_run else 60, marginal)
    assert p < 1e-4


@pytest.mark.parametrize("shift", [-1, 1])
def test_control_a_rank_off_by_one_is_noticed(shift, monkeypatch):
    monkeypatch.setattr(
        "evicp.calibration.laws.groups.ranks_of",
        lambda counts, coverage, _: np.clip(ranks_of(counts, coverage) + shift, 1, counts),
    )
    z, _ = experiment("class", evicp.ECP(), 0.9, 120)
    assert z * shift > 4


def cluster_coverage(by: Callable[[np.ndarray], ByClass], repeats: int) -> tuple[float, float]:
    """Coverage in the cluster of rare classes, and its standard error: one hard class near the limit, 15 easy ones."""
    shares = np.array([0.25, *[0.05] * 15])
    rng, found = np.random.default_rng(3), []
    for _ in range(repeats):
        labels = rng.choice(16, 80, p=shares)
        scores, parts = divide(by(labels), rng.random(80) + (labels == 0), labels, 16, None)
        of_label = parts.by.of_labels(16)
        limits = parts.at(scores, Fraction(4, 5), None).values[of_label]
        covered = np.clip(limits - (np.arange(16) == 0), 0, 1)  # scores are uniform, one higher in the hard class
        together = of_label == of_label[-1]
        found.append((shares * covered)[together].sum() / shares[together].sum())
    return float(np.mean(found)), float(np.std(found) / np.sqrt(repeats))


def test_coverage_holds_in_a_cluster_of_rare_classes(long_run):
    by = ByClass(rare="cluster", clusters=1, rare_below=20)
    coverage, error = cluster_coverage(lambda _: by, 4000 if long_run else 1000)
    assert coverage >= 0.8 - 4 * error


def test_control_classes_called_rare_by_the_rows_they_are_calibrated_on():
    """A class is then pooled just when few of its rows were drawn, and the cluster's threshold is too low for it."""
    own = lambda labels: np.where(np.bincount(labels, minlength=16) < 20, 16, np.arange(16))  # noqa: E731
    coverage, error = cluster_coverage(lambda labels: ByClass(clusters=tuple(own(labels).tolist())), 1000)
    assert coverage < 0.8 - 4 * error


def test_control_bands_chosen_by_the_scores_break_the_law():
    """Groups made from the calibration scores themselves, which `_set_aside` exists to prevent, are noticed."""
    rng = np.random.default_rng(1)
    values = []
    for _ in range(100):
        z, y, _ = draw(rng, N)
        new, truth, _ = draw(rng, M)
        hard = calibrate(z, y).p_values(z, y) < 0.5  # the worse half of the calibration rows, by their own scores
        sets = calibrate(z, y, by=hard).predict(new, 0.9, groups=rng.random(M) < 0.5)
        values += uniforms(rng, sets.contains(truth), np.zeros(M, int), np.array([N // 2]), 0.9)
    assert verdict(values)[1] < 1e-4


def test_classes_of_few_rows_are_covered_too(long_run):
    """Full sets for classes without enough rows: coverage in each class is at least what was asked."""
    rng = np.random.default_rng(5)
    hits, rows = np.zeros(K), np.zeros(K)
    for _ in range(400 if long_run else 80):
        z, y, _ = draw(rng, 60)  # ten rows of a class, more or less: some have fewer than the nine needed
        new, truth, _ = draw(rng, M)
        covered = calibrate(z, y, by="class").predict(new, 0.9).contains(truth)
        hits += np.bincount(truth[covered], minlength=K)
        rows += np.bincount(truth, minlength=K)
    assert (hits / rows >= 0.9 - 0.01).all()


# ---------------------------------------------------------------------------------------------------------------
# Training-conditional sets


#: A score that is its logit: with uniform logits of the true label, a threshold t covers exactly the share t.
IDENTITY = Custom(lambda z: z)
GRID = np.stack([(np.arange(1000) + 0.5) / 1000, np.full(1000, 9.0)], axis=1)


def failures(n: int, coverage: float, confidence: float | None, draws: int, seed: int) -> float:
    """How often, over calibration draws, the sets cover less than was asked (counted on a grid of new rows)."""
    rng = np.random.default_rng(seed)
    failed = 0
    for _ in range(draws):
        calibration = Calibration(IDENTITY, np.sort(rng.random(n)), 2)
        threshold = calibration.threshold(coverage, confidence)
        failed += threshold < coverage
    return failed / draws


@pytest.mark.parametrize(("coverage", "confidence"), [(0.9, 0.95), (0.9, 0.5), (0.8, 0.99), (0.95, 0.9)])
@pytest.mark.parametrize("n", [100, 1000])
def test_coverage_falls_short_no_more_often_than_said(n, coverage, confidence):
    draws, risk = 2000, 1 - confidence
    rate = failures(n, coverage, confidence, draws, seed=n)
    assert rate <= risk + 4 * np.sqrt(risk * (1 - risk) / draws)
    k = pac_rank(n, coverage, confidence)
    exact = scipy.stats.beta(k, n + 1 - k).cdf(coverage)
    assert abs(rate - exact) <= 4 * np.sqrt(exact * (1 - exact) / draws) + 1e-12
    if n == 1000:
        assert exact >= 0.6 * risk  # not conservative beyond what whole ranks force


def test_control_sets_without_a_confidence_fall_short_half_the_time():
    assert failures(1000, 0.9, None, 500, seed=1) > 0.4


def test_predicted_sets_keep_the_promise_end_to_end():
    """From labelled rows to sets and back: the covered share of a grid of new rows, over 2,000 calibrations."""
    rng = np.random.default_rng(0)
    failed = []
    for confidence in (0.9, None):
        count = 0
        for _ in range(2000 if confidence else 300):
            rows = np.stack([rng.random(200), np.full(200, 9.0)], axis=1)
            calibration = calibrate(rows, np.zeros(200, int), IDENTITY)
            sets = calibration.predict(GRID, 0.9, confidence=confidence)
            count += sets.sizes.mean() < 0.9
        failed.append(count / (2000 if confidence else 300))
    assert failed[0] <= 0.1 + 4 * np.sqrt(0.09 / 2000)
    assert failed[0] >= 0.04
    assert failed[1] > 0.35


def test_the_promise_with_confidence_holds_in_every_class():
    rng = np.random.default_rng(2)
    short = np.zeros(3)
    for _ in range(1000):
        y = rng.integers(0, 3, 300)
        scores = rng.random(300) ** (1.0 + y)  # class y covers t ** (1 / (1 + y)) at threshold t
        rows = np.full((300, 3), 9.0)
        rows[np.arange(300), y] = scores
        limits = calibrate(rows, y, IDENTITY, by="class").thresholds(0.9, 0.9)
        short += limits ** (1 / (1.0 + np.arange(3))) < 0.9
    assert (short / 1000 <= 0.1 + 4 * np.sqrt(0.09 / 1000)).all()
    assert (short / 1000 >= 0.04).all()


# ---------------------------------------------------------------------------------------------------------------
# Known shift


def row_difficulty(rng: np.random.Generator, n: int, tilt: float) -> np.ndarray:
    """x in [0, 1] with density proportional to exp(tilt x): how noisy a row is."""
    u = rng.random(n)
    return u if tilt == 0 else np.log1p(u * np.expm1(tilt)) / tilt


def noisy(rng: np.random.Generator, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, K, len(x))
    return (0.4 + 2.5 * x[:, None]) * rng.normal(size=(len(x), K)) + 3.0 * np.eye(K)[labels], labels


def covariate_shift(repeats: int, weigh: Callable) -> tuple[float, float]:
    """Mean coverage and its standard error at 0.9, where new rows are harder by a known density ratio."""
    rng = np.random.default_rng(7)
    shares = []
    for _ in range(repeats):
        x, x_new = row_difficulty(rng, 300, 0.0), row_difficulty(rng, 400, 3.0)
        z, y = noisy(rng, x)
        new, truth = noisy(rng, x_new)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallCalibrationWarning)
            shares.append(weigh(z, y, np.exp(3 * x), new, np.exp(3 * x_new)).contains(truth).mean())
    return float(np.mean(shares)), float(np.std(shares) / np.sqrt(repeats))


def test_weighted_sets_cover_under_a_known_shift(long_run):
    weighted = lambda z, y, w, new, v: calibrate(z, y, weights=w).predict(new, 0.9, weights=v)  # noqa: E731
    mean, error = covariate_shift(1000 if long_run else 250, weighted)
    assert mean >= 0.9 - 4 * error
    # The new point's weight at +inf costs at most its share: weights are at most e^3 of a sum of about 300 * 6.4.
    assert mean <= 0.9 + 0.02


def test_control_sets_without_weights_fall_short_under_that_shift(long_run):
    plain = lambda z, y, w, new, v: calibrate(z, y).predict(new, 0.9)  # noqa: E731
    mean, error = covariate_shift(250, plain)
    assert mean < 0.9 - 10 * error
    assert mean < 0.87


def test_control_weights_sorted_apart_from_their_scores_fall_short():
    apart = lambda z, y, w, new, v: calibrate(z, y, weights=np.random.default_rng(0).permutation(w)).predict(  # noqa: E731
        new, 0.9, weights=v
    )
    mean, error = covariate_shift(250, apart)
    assert mean < 0.9 - 10 * error


def label_shift(repeats: int, predict: Callable) -> tuple[float, float]:
    """Mean coverage and its standard error at 0.9, where the hard classes have become the frequent ones."""
    rng = np.random.default_rng(8)
    before, after = np.linspace(1, 6, K) / 21, np.linspace(6, 1, K) / 21
    shares = []
    for _ in range(repeats):
        y, truth = rng.choice(K, 400, p=before), rng.choice(K, 400, p=after)
        z, new = (rng.normal(size=(400, K)) + (0.5 + 0.8 * t[:, None]) * np.eye(K)[t] for t in (y, truth))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallCalibrationWarning)
            shares.append(predict(z, y, new, after / before, after).contains(truth).mean())
    return float(np.mean(shares)), float(np.std(shares) / np.sqrt(repeats))


def test_class_weights_cover_under_label_shift(long_run):
    exact = lambda z, y, new, w, q: calibrate(z, y, class_weights=w).predict(new, 0.9)  # noqa: E731
    mean, error = label_shift(600 if long_run else 200, exact)
    assert 0.9 - 4 * error <= mean <= 0.92
    counted = lambda z, y, new, w, q: calibrate(z, y, class_weights=label_shift_weights(y, q)).predict(new, 0.9)  # noqa: E731
    mean, error = label_shift(600 if long_run else 200, counted)
    assert 0.9 - 4 * error - 0.005 <= mean <= 0.92


def test_estimated_frequencies_restore_coverage():
    rng = np.random.default_rng(9)

    def predict(z, y, new, w, q):
        labels = rng.choice(K, 4000, p=np.linspace(1, 6, K) / 21)
        old = rng.normal(size=(4000, K)) + (0.5 + 0.8 * labels[:, None]) * np.eye(K)[labels]
        found = evicp.estimate_class_frequencies(old, labels, new)
        return calibrate(z, y, class_weights=label_shift_weights(y, found)).predict(new, 0.9)

    mean, _ = label_shift(60, predict)
    assert abs(mean - 0.9) < 0.015


def test_control_sets_without_class_weights_fall_short_under_label_shift():
    mean, error = label_shift(200, lambda z, y, new, w, q: calibrate(z, y).predict(new, 0.9))
    assert mean < 0.9 - 10 * error
    assert mean < 0.87
