"""Every baseline score against a label-by-label rendering, and the randomisation against Python integers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import evicp
from evicp import APS, ECP, LAC, RAPS, SAPS, SCORES, Base, ClassLAC, Custom, Margin, Score, TopK
from evicp.errors import InputTypeError, ScoreError
from evicp.input import validate
from evicp.kernels import _numpy
from evicp.method.scores import as_score
from oracles import (
    FAMILIES,
    adversarial_row,
    murmur3_finaliser,
    reference_murmur_uniform,
    reference_naive_scores,
    reference_numpy_scores,
)

BASELINES = [
    LAC(),
    LAC(temperature=0.4),
    APS(),
    APS(randomized=False),
    APS(temperature=2.5, seed=7),
    RAPS(),
    RAPS(randomized=False),
    RAPS(lam=0.7, k_reg=0),
    RAPS(lam=0.03, k_reg=2, randomize_penalty=True),
    RAPS(lam=1.0, k_reg=3, randomize_penalty=True, temperature=0.6, seed=2**32 - 1),
    RAPS(k_reg=1000),
    SAPS(),
    SAPS(randomized=False),
    SAPS(lam=1.3, temperature=3.0),
    TopK(),
    TopK(randomized=True),
    ClassLAC(),
    ClassLAC(temperature=0.7),
    Margin(),
    Margin(temperature=0.5),
    Base(),
    Base(randomized=False, temperature=1.4),
]


def observed_uniforms(z, seed=0) -> np.ndarray:
    """v of each row as the public interface shows it: TopK's score of the top label is 0 + v."""
    return TopK(randomized=True, seed=seed).scores(z).min(1)


def worst_error(got: np.ndarray, score: Score, z: np.ndarray) -> float:
    """The largest abs(error) / max(1, abs(reference)) of a row; infinities must be where they belong."""
    wanted = np.array([float(x) for x in reference_naive_scores(score.name, z, **score.parameters())])
    possible = np.isfinite(wanted)
    assert np.array_equal(np.isposinf(got), ~possible)
    return float((np.abs(got[possible] - wanted[possible]) / np.maximum(1, np.abs(wanted[possible]))).max())


# ---------------------------------------------------------------------------------------------------------------
# The table of scores


@pytest.mark.parametrize("n_classes", [2, 3, 10, 40])
@pytest.mark.parametrize("score", BASELINES, ids=repr)
def test_scores_follow_the_table_label_by_label(cpu_backend, score, n_classes):
    rng = np.random.default_rng(n_classes)
    rows = np.stack([adversarial_row(family, n_classes, rng) for family in FAMILIES])
    got = score.scores(rows)
    for row, z in enumerate(rows):
        assert worst_error(got[row], score, z) <= 1e-12, FAMILIES[row]


@pytest.mark.parametrize("score", [s for s in BASELINES if getattr(s, "temperature", 1.0) == 1], ids=repr)
def test_float32_scores_are_within_1e_5(cpu_backend, score):
    rng = np.random.default_rng(8)
    rows = np.stack([adversarial_row(f, 10, rng) for f in FAMILIES]).astype(np.float32)
    got = score.scores(rows)
    for row, z in enumerate(rows):
        assert worst_error(got[row], score, z) <= 1e-5, FAMILIES[row]


@pytest.mark.parametrize("score", [ECP(), ECP(stabilizer=0), *BASELINES], ids=repr)
def test_equal_labels_share_their_score(cpu_backend, score):
    rng = np.random.default_rng(9)
    rows = rng.integers(-3, 4, (50, 12)).astype(np.float64)
    rows[rng.random(rows.shape) < 0.2] = -0.0  # equal to 0.0, which occurs too
    dense = score.scores(rows)
    for z, s in zip(rows, dense, strict=True):
        for value in np.unique(z):
            assert len(set(s[z == value].tolist())) == 1


@pytest.mark.parametrize("score", [ECP(), ECP(stabilizer=0), *BASELINES], ids=repr)
def test_masked_labels_score_plus_infinity_and_nothing_else_does(cpu_backend, score):
    rng = np.random.default_rng(10)
    rows = rng.normal(size=(40, 9)) * 5
    rows[:, 1:][rng.random((40, 8)) < 0.5] = -np.inf
    dense = score.scores(rows)
    assert np.array_equal(np.isposinf(dense), rows == -np.inf)
    assert not np.isnan(dense).any()


@pytest.mark.parametrize("score", BASELINES, ids=repr)
def test_masked_labels_leave_no_trace_in_the_others(cpu_backend, score):
    """A masked class is as good as absent: no probability, no rank, no hash. (Sums may round differently.)"""
    rng = np.random.default_rng(11)
    rows = rng.normal(size=(30, 6))
    wide = np.full((30, 11), -np.inf)
    columns = np.sort(rng.permutation(11)[:6])
    wide[:, columns] = rows
    assert np.allclose(score.scores(wide)[:, columns], score.scores(rows), rtol=0, atol=1e-13)


@pytest.mark.parametrize("score", [ECP(), *BASELINES], ids=repr)
def test_a_batch_is_its_rows(cpu_backend, score):
    rows = np.random.default_rng(12).normal(size=(17, 33))
    dense = score.scores(rows)
    for i, row in enumerate(rows):
        assert score.scores(row[None]).tobytes() == dense[i].tobytes()


def test_scores_of_no_rows(cpu_backend):
    for score in (ECP(), *BASELINES):
        assert score.scores(np.empty((0, 5))).shape == (0, 5)


def test_topk_ignores_the_temperature():
    z = np.random.default_rng(13).normal(size=(5, 6))
    assert np.array_equal(TopK(temperature=9.0).scores(z), TopK().scores(z))


def test_the_released_penalty_is_at_most_the_published_one():
    """The label's own penalty times v < 1: RAPS with randomize_penalty lies below RAPS, by less than lam."""
    z = np.random.default_rng(14).normal(size=(200, 20))
    gap = RAPS(lam=0.2, k_reg=3).scores(z) - RAPS(lam=0.2, k_reg=3, randomize_penalty=True).scores(z)
    above = _numpy.ordinal(z) > 3
    assert np.all(gap[~above] == 0)
    assert np.all((gap[above] > -1e-15) & (gap[above] <= 0.2 + 1e-15))
    v = np.broadcast_to(observed_uniforms(z)[:, None], z.shape)
    assert np.allclose(gap[above], 0.2 * (1 - v[above]), rtol=0, atol=1e-14)


def test_the_plain_numpy_reference_agrees_with_the_naive_one():
    """The fast oracle of the real-data tests, tested against the slow one."""
    z = np.round(np.random.default_rng(15).normal(size=(20, 12)) * 3, 1)
    v = np.array([[reference_murmur_uniform(row, 0)] for row in z])
    for score in (LAC(), APS(), RAPS(k_reg=2), SAPS(), TopK(randomized=True), Margin()):
        options = {k: x for k, x in score.parameters().items() if k in ("lam", "k_reg")}
        got = reference_numpy_scores(score.name, z, v, **options)
        for row in range(len(z)):
            wanted = [float(x) for x in reference_naive_scores(score.name, z[row], **score.parameters())]
            assert np.allclose(got[row], wanted, rtol=0, atol=1e-13), score


# ---------------------------------------------------------------------------------------------------------------
# The randomisation: a pure function of seed and row


def test_the_finaliser_is_murmur3s():
    """fmix32 fixes 0, is a bijection of 32-bit words, and takes 1 to 0x514e28b7 (its published test value)."""
    assert murmur3_finaliser(0) == 0
    assert murmur3_finaliser(1) == 0x514E28B7
    words = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, *range(3, 5000, 7)]
    assert _numpy.mix32(np.array(words, np.uint32)).tolist() == [murmur3_finaliser(x) for x in words]


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**32 - 1])
def test_v_is_the_hash_of_the_row(cpu_backend, seed):
    rng = np.random.default_rng(16)
    for n_classes in (2, 3, 10, 1000):
        rows = np.stack([adversarial_row(family, n_classes, rng) for family in FAMILIES])
        wanted = [reference_murmur_uniform(row, seed) for row in rows]
        assert _numpy.row_uniforms(rows, seed)[:, 0].tolist() == wanted
        assert observed_uniforms(rows, seed).tolist() == wanted
        assert all(0 <= v < 1 for v in wanted)


def test_v_of_logits_beyond_float32(cpu_backend):
    row = np.array([[1e300, -1e300, 3.0]])
    assert observed_uniforms(row)[0] == reference_murmur_uniform(row[0], 0)


def test_v_is_unchanged_by_class_order_batch_blocks_and_dtype(cpu_backend, monkeypatch):
    rng = np.random.default_rng(17)
    z = rng.normal(size=(64, 37)).astype(np.float32)
    z[rng.random(z.shape) < 0.2] = -np.inf
    z[:, 0] = 0.0
    v = observed_uniforms(z)
    assert len(set(v.tolist())) == 64
    order, rows = rng.permutation(37), rng.permutation(64)
    assert np.array_equal(observed_uniforms(z[:, order]), v)
    assert np.array_equal(observed_uniforms(z[rows]), v[rows])
    assert [observed_uniforms(z[i : i + 1])[0] for i in range(64)] == v.tolist()
    assert np.array_equal(observed_uniforms(z.astype(np.float64)), v)
    assert np.array_equal(observed_uniforms(np.where(z == 0, -0.0, z)), v)
    assert np.array_equal(observed_uniforms(np.hstack([z, np.full((64, 5), -np.inf)])), v)
    assert np.array_equal(observed_uniforms(np.asfortranarray(z)), v)
    monkeypatch.setattr(validate, "BLOCK_LOGITS", 37 * 5)
    assert np.array_equal(observed_uniforms(z), v)


def test_v_is_the_same_in_every_randomised_score(cpu_backend):
    """APS's v can be read off its top label's score; it is the one TopK shows."""
    z = np.random.default_rng(18).normal(size=(50, 5)) * 2
    v = observed_uniforms(z)
    top = z.argmax(1)
    p = np.exp(z - z.max(1, keepdims=True))
    p = (p / p.sum(1, keepdims=True))[np.arange(50), top]
    for score in (APS(), RAPS(), SAPS(), Base()):
        assert np.allclose(score.scores(z)[np.arange(50), top] / p, v, rtol=1e-12)


def test_v_looks_uniform_over_rows_and_seeds():
    z = np.random.default_rng(19).normal(size=(4000, 3))
    from scipy.stats import kstest

    assert kstest(observed_uniforms(z), "uniform").pvalue > 1e-3
    one_row = [observed_uniforms(z[:1], seed)[0] for seed in range(2000)]
    assert kstest(one_row, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(observed_uniforms(z, 0), observed_uniforms(z, 1))[0, 1]) < 0.07


# ---------------------------------------------------------------------------------------------------------------
# Base


def test_base_takes_the_coverage_as_its_threshold(cpu_backend):
    z = np.random.default_rng(20).normal(size=(60, 8)) * 2
    for score in (Base(), Base(randomized=False), Base(temperature=0.5, seed=3)):
        sets = score.predict(z, 0.8)
        assert np.array_equal(sets.mask(), score.scores(z) <= 0.8)
        assert sets.n_calibration is None
        assert sets.score == "base"
    assert np.array_equal(Base().scores(z), APS().scores(z))


def test_base_takes_one_row_and_no_rows(cpu_backend):
    assert Base(randomized=False).predict([3.0, 1.0, 0.0], 0.9).to_lists() == [[0]]
    assert len(Base().predict(np.empty((0, 3)), 0.9)) == 0


@pytest.mark.parametrize("score", ["base", "BASE", Base, Base()])
def test_base_cannot_be_calibrated(score):
    with pytest.raises(ScoreError, match="not conformal"):
        evicp.calibrate([[1.0, 0.0]], [0], score)


# ---------------------------------------------------------------------------------------------------------------
# Names, parameters, a user's own score


def test_names_and_aliases():
    assert as_score("las") == as_score("thr") == as_score("LAC") == as_score(LAC) == LAC()
    assert sorted(SCORES) == ["aps", "base", "classlac", "ecp", "lac", "las", "margin", "raps", "saps", "thr", "topk"]
    for name in ("aps", "ecp", "lac", "margin", "raps", "saps", "topk"):
        assert as_score(name).name == name


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ScoreError, match="unknown score 'softmax'; known are aps, base, "):
        as_score("softmax")
    with pytest.raises(InputTypeError, match="a name, a score or a callable; got 3"):
        as_score(3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LAC(temperature=0), ScoreError, "temperature must be a positive number; got 0"),
        (lambda: LAC(temperature=-1.0), ScoreError, "temperature must be a positive number; got -1"),
        (lambda: LAC(temperature=np.nan), ScoreError, "temperature must be a positive number; got nan"),
        (lambda: LAC(temperature=np.inf), ScoreError, "temperature must be a positive number; got inf"),
        (lambda: LAC(temperature="hot"), InputTypeError, "temperature must be a positive number; got 'hot'"),
        (lambda: LAC(temperature=True), InputTypeError, "temperature must be a positive number; got True"),
        (lambda: RAPS(lam=-0.1), ScoreError, "lam must be a number >= 0; got -0.1"),
        (lambda: RAPS(k_reg=-1), ScoreError, r"k_reg must be in \[0, 2\^32\); got -1"),
        (lambda: RAPS(k_reg=2.5), InputTypeError, "k_reg must be a whole number; got 2.5"),
        (lambda: APS(seed=2**32), ScoreError, r"seed must be in \[0, 2\^32\)"),
        (lambda: APS(randomized=1), InputTypeError, "randomized must be True or False; got 1"),
        (lambda: ECP(stabilizer=-1e-8), ScoreError, "stabilizer must be a number >= 0; got -1e-08"),
        (lambda: ECP(stabilizer="large"), ScoreError, "stabilizer must be a number >= 0 or \"scaled\"; got 'large'"),
        (lambda: ECP(utility="softmax"), InputTypeError, "utility must be a callable of logits; got 'softmax'"),
    ],
)
def test_bad_parameters_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_parameters_become_plain_values():
    score = RAPS(lam=np.float32(0.5), k_reg=np.int64(3), randomized=np.bool_(False))
    assert [type(x) for x in score.parameters().values()] == [float, int, bool, bool, float, int]
    assert score == RAPS(lam=0.5, k_reg=3, randomized=False)
    assert ECP(base_rates=np.array([0.5, 0.5])).base_rates == (0.5, 0.5)


def test_scores_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LAC().temperature = 2.0


def test_describe_names_what_differs_from_the_defaults():
    assert ECP().describe() == "ecp"
    assert RAPS(lam=0.5, randomized=False).describe() == "raps(lam=0.5, randomized=False)"
    assert ECP(base_rates=(0.5, 0.5), evidence=np.abs).describe() == "ecp(evidence=..., base_rates=...)"


def entropy_weighted(z):
    return -z * 2


def test_a_users_own_score():
    z = np.array([[1.0, 2.0, -np.inf]])
    score = as_score(entropy_weighted)
    assert isinstance(score, Custom)
    assert score.scores(z).tolist() == [[-2.0, -4.0, np.inf]]
    assert score.describe() == "entropy_weighted"
    assert score.parameters() == {}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: z[0], r"shape \(1, 3\); got \(3,\)"),
        (lambda z: np.full(z.shape, np.nan), "must not return NaN"),
    ],
)
def test_a_users_score_that_is_no_score(function, message):
    with pytest.raises(ScoreError, match=message):
        as_score(function).scores([[1.0, 2.0, 3.0]])


def test_a_users_score_cannot_change_the_logits():
    z = np.array([[1.0, 2.0, 3.0]])

    def destructive(x):
        x[:] = 0
        return x

    as_score(destructive).scores(z)
    assert z.tolist() == [[1.0, 2.0, 3.0]]


def test_a_score_without_a_formula_says_so():
    @dataclasses.dataclass(frozen=True)
    class Unfinished(Score):
        name = "unfinished"

    with pytest.raises(TypeError, match="Unfinished defines no formula"):
        Unfinished().scores([[1.0, 2.0]])


def test_defaults_are_the_documented_ones():
    """A default that changes silently changes everybody's sets."""
    randomised = {"randomized": True, "temperature": 1.0, "seed": 0}
    assert LAC().parameters() == Margin().parameters() == {"temperature": 1.0}
    assert APS().parameters() == Base().parameters() == randomised
    assert RAPS().parameters() == {"lam": 0.1, "k_reg": 5, "randomize_penalty": False, **randomised}
    assert SAPS().parameters() == {"lam": 0.1, **randomised}
    assert TopK().parameters() == {**randomised, "randomized": False}
    nothing = {"base_rates": None, "utility": None}
    assert ECP().parameters() == {"evidence": "relu", "temperature": 1.0, "stabilizer": "scaled", **nothing}


def test_auto_is_no_score():
    with pytest.raises(ScoreError, match="selects a score"):
        as_score("AUTO")


def test_sets_of_ecp_are_the_top_labels_only_with_uniform_base_rates_and_built_in_parts():
    assert ECP().monotone
    assert ECP(evidence="exp", stabilizer=0, temperature=2.0).monotone
    others = (ECP(base_rates=(0.3, 0.7)), ECP(evidence=np.abs), ECP(utility=np.exp))
    assert not any(score.monotone for score in others)


@pytest.mark.parametrize(
    "score",
    [
        ECP(),
        ECP(evidence="softplus", stabilizer="scaled"),
        RAPS(lam=0.25, k_reg=2, randomized=False),
        LAC(temperature=1.5),
        SAPS(lam=1e-3),
    ],
)
def test_a_score_is_read_back_from_how_it_describes_itself(score: Score) -> None:
    assert as_score(score.describe()) == score


@pytest.mark.parametrize("text", ["", "ecp(", "ecp(temperature)", "ecp(temperature=)", "raps(lam=0.1 k_reg=2)", "a b"])
def test_a_score_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ScoreError):
        as_score(text)


def test_a_mistyped_score_is_guessed():
    with pytest.raises(ScoreError, match=r"unknown score 'rasp'; known are .* Did you mean raps\?$"):
        as_score("rasp")
    with pytest.raises(ScoreError, match=r"^raps has no parameter gamma; it has lam, k_reg"):
        as_score("raps(gamma=1)")
