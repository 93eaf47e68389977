"""The guarantee itself: over many calibrations, the number of covered rows follows BetaBinomial(m, k, n + 1 - k)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import scipy.stats

import evicp
from evicp import APS, ECP, LAC, RAPS, SAPS, Margin, TopK, conformal_rank
from lengths import usually

pytestmark = pytest.mark.reliability

N = 99
COVERAGES = (0.8, 0.9, 0.95, 0.99)
K = 10


def own_score(z):
    """A user's score: no law says it must be a sensible one."""
    return np.sin(z) - z


def name_of(score) -> str:
    return score if isinstance(score, str) else score.__name__ if callable(score) else score.describe()


CONTINUOUS = [
    ECP(),
    ECP(stabilizer=0),
    ECP(stabilizer="scaled", temperature=1.6),
    ECP(evidence="softplus"),
    ECP(evidence="exp", base_rates=tuple((np.arange(K) + 1.0) / 55)),
    LAC(),
    LAC(temperature=0.5),
    APS(),
    APS(randomized=False),
    RAPS(),
    RAPS(lam=0.02, k_reg=1, randomized=False),
    RAPS(k_reg=2, randomize_penalty=True),
    SAPS(),
    SAPS(lam=0.5, randomized=False),
    TopK(randomized=True),
    Margin(),
]

BACKENDS = ("numpy", "native")
#: The scores of the usual run: one of each formula and of each way to be random; the rank is the same code for all.
USUAL = {
    "numpy": (ECP(), APS(), TopK(randomized=True), own_score),
    "native": (ECP(), CONTINUOUS[4], LAC(), APS(), RAPS(k_reg=2, randomize_penalty=True), SAPS(), Margin(), own_score),
    "torch": (ECP(), APS(), RAPS(k_reg=2, randomize_penalty=True), TopK(randomized=True), Margin()),
}
USUAL_WITH_TIES = {
    "numpy": (ECP(), APS(), TopK()),
    "native": (ECP(), LAC(), APS(), RAPS(k_reg=2, randomize_penalty=True), SAPS(), TopK(), Margin()),
}


@cache
def repeats(long_run: bool) -> tuple[int, int]:
    """Repeats R and test rows m: in the short run enough for an off-by-one of 1 in 100 to be 4 deviations away."""
    return (1000, 1000) if long_run else (300, 500)


@cache
def draw(long_run: bool, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    """Logits (R, n + m, K) and labels (R, n + m): the classifier is right more often than not.

    The true label practically never has the smallest logit: there the evidential score is 0 by definition, a tie.
    """
    count, m = repeats(long_run)
    rng = np.random.default_rng(20240901 + tied)
    labels = rng.integers(0, K, (count, N + m))
    signal = 1.0 if tied else 3.0
    logits = rng.normal(size=(count, N + m, K)) + signal * (np.arange(K) == labels[..., None])
    if tied:
        logits = np.round(logits)
        logits[rng.random(logits.shape) < 0.1] = -np.inf  # true labels too: such a row can hardly be covered
        logits[..., 0] = np.maximum(logits[..., 0], -3.0)
    return logits.astype(np.float32), labels


def covered_counts(
    score, long_run: bool, *, tied: bool = False, sharpness: float = 1, tamper=lambda calibration: calibration
) -> np.ndarray:
    """How many of m rows are covered, for each repeat and coverage, by the public path."""
    logits, labels = draw(long_run, tied)
    counts = np.empty((len(logits), len(COVERAGES)), int)
    for i, (z, y) in enumerate(zip(logits * np.float32(sharpness), labels, strict=True)):
        calibration = tamper(evicp.calibrate(z[:N], y[:N], score))
        sets = calibration.predict(z[N:], COVERAGES)
        counts[i] = [s.contains(y[N:]).sum() for s in sets]
    return counts


def law_statistics(counts: np.ndarray, m: int, coverage: float) -> tuple[float, float]:
    """Z of the mean, and the p-value of a Kolmogorov-Smirnov test of the counts against the law.

    The counts are whole numbers: each is spread at random over its own step of the distribution function, which
    makes the values uniform exactly if the law holds.
    """
    k = conformal_rank(N, coverage)
    law = scipy.stats.betabinom(m, k, N + 1 - k)
    z = (counts.mean() - law.mean()) / (law.std() / len(counts) ** 0.5)
    spread = np.random.default_rng(0).random(len(counts))
    uniform = law.cdf(counts - 1) + spread * law.pmf(counts)
    return float(z), float(scipy.stats.kstest(uniform, "uniform").pvalue)


def violations(counts: np.ndarray, m: int, *, one_sided: bool = False) -> dict[float, tuple[float, float]]:
    """The coverages at which the pass line is missed, with their statistics."""
    found = {}
    for column, coverage in enumerate(COVERAGES):
        z, p = law_statistics(counts[:, column], m, coverage)
        if z < -4 or (not one_sided and (z > 4 or p < 1e-4)):
            found[coverage] = (z, p)
    return found


@pytest.mark.parametrize(
    ("cpu_backend", "score"),
    usually(product(BACKENDS, [*CONTINUOUS, own_score]), lambda backend, score: score in USUAL[backend]),
    indirect=["cpu_backend"],
    ids=name_of,
)
def test_coverage_follows_the_law(cpu_backend, score, long_run, figure):
    counts = covered_counts(score, long_run)
    m = repeats(long_run)[1]
    for column, coverage in enumerate(COVERAGES):
        z, p = law_statistics(counts[:, column], m, coverage)
        figure("largest abs(z)", abs(z))
        figure("smallest KS p", p)
    assert not violations(counts, m)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("score", usually(CONTINUOUS, lambda score: score in USUAL["torch"]), ids=name_of)
def test_coverage_follows_the_law_on_tensors(score, long_run, figure):
    """The torch kernels, which also serve accelerators: a label is covered if its score is within the threshold."""
    torch = pytest.importorskip("torch")
    from evicp.kernels import _torch

    assert _torch.knows(score)
    logits, labels = draw(long_run, False)
    flat = torch.from_numpy(logits.reshape(-1, K)), torch.from_numpy(labels.reshape(-1))
    scores = _torch.label_scores(score, *flat).numpy().reshape(labels.shape)
    ascending = np.sort(scores[:, :N], axis=1)
    limits = [ascending[:, [conformal_rank(N, coverage) - 1]] for coverage in COVERAGES]
    counts = np.stack([np.sum(scores[:, N:] <= limit, axis=1) for limit in limits], axis=1)
    m = repeats(long_run)[1]
    figure("largest abs(z)", max(abs(law_statistics(counts[:, i], m, c)[0]) for i, c in enumerate(COVERAGES)))
    assert not violations(counts, m)


@pytest.mark.filterwarnings("ignore:.*calibration row:evicp.errors.SmallCalibrationWarning")
@pytest.mark.filterwarnings("ignore:the true label")
@pytest.mark.parametrize(
    ("cpu_backend", "score"),
    usually(product(BACKENDS, [TopK(), *CONTINUOUS]), lambda backend, score: score in USUAL_WITH_TIES[backend]),
    indirect=["cpu_backend"],
    ids=name_of,
)
def test_ties_and_masks_never_cost_coverage(cpu_backend, score, long_run, figure):
    """Rounded logits tie all the time and a tenth of the true labels is masked: at least the coverage, or more."""
    counts = covered_counts(score, long_run, tied=True)
    m = repeats(long_run)[1]
    figure("smallest z with ties", min(law_statistics(counts[:, i], m, c)[0] for i, c in enumerate(COVERAGES)))
    assert not violations(counts, m, one_sided=True)


@pytest.mark.parametrize("score", [ECP(), LAC(), APS()], ids=name_of)
def test_sharp_logits_keep_their_coverage(cpu_backend, score, long_run):
    """Probabilities that round to 0 and 1 tie; a tolerance on probabilities would lose coverage here."""
    counts = covered_counts(score, long_run, sharpness=40)
    assert not violations(counts, repeats(long_run)[1], one_sided=True)


# ---------------------------------------------------------------------------------------------------------------
# Negative controls: deliberately wrong variants that the test above must catch


@pytest.mark.parametrize("shift", [-1, 1], ids=["one rank too low", "one rank too high (method='higher')"])
@pytest.mark.parametrize("score", [ECP(), LAC(), APS()], ids=name_of)
def test_control_an_off_by_one_rank_is_caught(score, shift, long_run, monkeypatch, figure):
    monkeypatch.setattr(
        "evicp.calibration.laws.marginal.rank_of", lambda n, coverage, _: min(conformal_rank(n, coverage) + shift, n)
    )
    found = violations(covered_counts(score, long_run), repeats(long_run)[1])
    assert 0.95 in found
    assert 0.9 in found
    assert found[0.95][0] * shift > 4
    figure("smallest abs(z) of a rank off by one", abs(found[0.95][0]))
    if shift < 0:
        assert found[0.99][0] < -4


def test_control_randomising_only_the_calibration_is_caught(long_run):
    """APS calibrated with v and predicted with v = 1: the true label's score is larger than it was calibrated."""
    counts = covered_counts(APS(), long_run, tamper=lambda c: replace(c, score=APS(randomized=False)))
    assert len(violations(counts, repeats(long_run)[1])) == len(COVERAGES)


def test_control_predicting_at_another_temperature_is_caught(long_run):
    counts = covered_counts(LAC(), long_run, tamper=lambda c: replace(c, score=LAC(temperature=1.3)))
    assert violations(counts, repeats(long_run)[1])


@pytest.mark.filterwarnings("ignore:the true label")
def test_control_a_strict_inequality_is_caught_on_ties(long_run):
    """`score < threshold` loses the whole tied group at the threshold: the one-sided test must see it."""
    counts = covered_counts(
        TopK(),
        long_run,
        tied=True,
        tamper=lambda c: replace(c, scores=np.nextafter(c.scores, -np.inf)),
    )
    assert violations(counts, repeats(long_run)[1], one_sided=True)


# ---------------------------------------------------------------------------------------------------------------
# Too few rows


@pytest.mark.filterwarnings("ignore:.*calibration row:evicp.errors.SmallCalibrationWarning")
def test_too_few_rows_cover_everything(cpu_backend):
    logits, labels = draw(False, False)
    calibration = evicp.calibrate(logits[0, :8], labels[0, :8])
    sets = calibration.predict(logits[0], 0.9)
    assert sets.contains(labels[0]).all()
    assert np.all(sets.sizes == K)
