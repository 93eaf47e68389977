"""Each equation's function against its rendering in high precision, and the golden values."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import evicp
from evicp import ECP
from evicp.errors import InputError, LogitsError, ScoreError
from evicp.method import evidence
from oracles import FAMILIES, adversarial_row, reference_mpmath_ecp

K = 7


def close(got, wanted, tolerance=1e-12) -> bool:
    reference = np.array([float(x) for x in wanted])
    return bool(np.all(np.abs(np.asarray(got) - reference) <= tolerance * np.maximum(1, np.abs(reference))))


def relatively_close(got, wanted, tolerance=1e-13) -> bool:
    reference = np.array([float(x) for x in wanted])
    return bool(np.all(np.abs(np.asarray(got) - reference) <= tolerance * np.abs(reference)))


# ---------------------------------------------------------------------------------------------------------------
# Golden values


def test_golden_vectors(shared_data, cpu_backend, figure):
    cases = json.loads((shared_data / "ecp_vectors.json").read_text())
    assert len(cases) == 66
    worst = 0.0
    for case in cases:
        score = ECP(case["evidence"], case["base_rates"], case["temperature"], case["stabilizer"])
        wanted = np.array(case["log_score"])
        error = np.abs(score.scores([case["logits"]])[0] - wanted) / np.maximum(1, np.abs(wanted))
        assert error.max() <= 1e-12, case["name"]
        worst = max(worst, float(error.max()))
        assert evicp.explain(case["logits"], score).rank.tolist() == case["rank"], case["name"]
        opinion = evicp.opinion([case["logits"]], case["evidence"], case["base_rates"])
        assert close(opinion.probability[0], case["probability"])
        assert close(opinion.belief[0], case["belief"])
        assert close(opinion.uncertainty, [case["uncertainty"]])
    figure("worst_error", worst)


def test_the_mpmath_reference_agrees_with_the_golden_vectors(shared_data):
    """The oracle of the other tests is itself tested: its values round to the golden ones."""
    for case in json.loads((shared_data / "ecp_vectors.json").read_text()):
        wanted = reference_mpmath_ecp(
            case["logits"],
            evidence=case["evidence"],
            base_rates=case["base_rates"],
            temperature=case["temperature"],
            stabilizer=case["stabilizer"],
        )
        for field in ("log_score", "probability", "belief"):
            assert close(case[field], wanted[field], 1e-15), (case["name"], field)
        assert case["rank"] == wanted["rank"]


# ---------------------------------------------------------------------------------------------------------------
# One equation, one function


@pytest.fixture(params=[*product(FAMILIES, ("relu", "softplus", "exp"), (False, True))], ids=str)
def equations(request):
    """A row, its parameters, what the equations' functions make of it, and the reference."""
    family, activation, uneven = request.param
    rng = np.random.default_rng(FAMILIES.index(family))
    z = adversarial_row(family, K, rng)
    rates = rng.dirichlet(np.full(K, 2.0)) if uneven else None
    wanted = reference_mpmath_ecp(z, evidence=activation, base_rates=rates, temperature=1.7, stabilizer=1e-8)
    return z, rates, activation, wanted


def test_definition_1_and_equations_1_to_3(equations):
    z, rates, activation, wanted = equations
    e = evidence.activate(activation, z)
    alpha = evidence.dirichlet(e, rates)
    assert relatively_close(e, wanted["evidence"])
    assert relatively_close(alpha, wanted["alpha"])
    assert relatively_close(evidence.probability(alpha), wanted["probability"])
    assert relatively_close(evidence.belief(e, alpha), wanted["belief"])
    assert relatively_close(evidence.uncertainty(alpha), wanted["uncertainty"])
    total = evidence.uncertainty(alpha)[0] + evidence.belief(e, alpha).sum()
    assert abs(total - 1) < 1e-14


def test_equations_5_to_9(equations):
    z, rates, activation, wanted = equations
    e = evidence.activate(activation, z)
    alpha = evidence.dirichlet(e, rates)
    p = evidence.probability(alpha)
    focal = evidence.focal_uncertainty(evidence.uncertainty(alpha), rates, K)
    surprisal = evidence.surprisal(alpha)
    phi = np.exp(evidence.log_utility(z, 1.7))
    rank = evidence.evidential_ranks(e, z, rates)
    assert relatively_close(
        focal, wanted["focal_uncertainty"] if rates is not None else wanted["focal_uncertainty"][:1]
    )
    assert relatively_close(surprisal, wanted["surprisal"])  # relative: also where p is next to 1
    assert relatively_close(evidence.focal_surprisal(focal, surprisal, p), wanted["focal_surprisal"])
    assert close(phi, wanted["utility"])
    assert close(evidence.expected_utility(phi, p), wanted["expected_utility"])
    assert rank.tolist() == wanted["rank"]
    assert relatively_close(evidence.rank_scaling(rank), wanted["rank_scaling"])


def test_equations_10_and_11(equations):
    z, rates, activation, wanted = equations
    e = evidence.activate(activation, z)
    alpha = evidence.dirichlet(e, rates)
    log_cost = evidence.log_cost(
        surprisal=evidence.surprisal(alpha),
        log_phi=evidence.log_utility(z, 1.7),
        ranks=evidence.evidential_ranks(e, z, rates),
        stabilizer=1e-8,
        u=evidence.uncertainty(alpha),
        base_rates=rates,
    )
    for k, cost in enumerate(wanted["cost"]):
        if cost is not None:
            reference = float(mpmath.log(cost))
            assert abs(log_cost[k] - reference) <= 1e-12 * max(1, abs(reference))
    assert close(
        np.nan_to_num(evidence.log_score(log_cost, z > -np.inf)), np.nan_to_num([*map(float, wanted["log_score"])])
    )


def test_the_label_cost_times_k_and_u_is_the_cost():
    """C_k = K u C^_k, Eq. 10 as printed: no stabilizer."""
    z = np.array([2.0, 1.0, -1.0, 0.3])
    rates = np.array([0.1, 0.2, 0.3, 0.4])
    e = evidence.activate("softplus", z)
    alpha = evidence.dirichlet(e, rates)
    rank = evidence.evidential_ranks(e, z, rates)
    u = evidence.uncertainty(alpha)
    phi = np.exp(evidence.log_utility(z))
    inner = evidence.label_cost(evidence.probability(alpha), phi, rank, rates)
    log_cost = evidence.log_cost(evidence.surprisal(alpha), np.log(phi), rank, 0.0, u, rates)
    assert np.allclose(np.log(4 * u * inner), log_cost, rtol=0, atol=1e-14)
    without_u = evidence.log_cost(evidence.surprisal(alpha), np.log(phi), rank, 0.0, base_rates=rates)
    assert np.allclose(without_u, log_cost - np.log(u), rtol=0, atol=1e-14)


def test_surprisal_keeps_its_relative_accuracy_next_to_probability_one():
    """-ln(1 - 1e-20) is 1e-20; a subtraction from one, or a plain logarithm, gives 0 and a cost of 0."""
    alpha = np.array([1e20, 1.0, 1.0])
    assert evidence.surprisal(alpha)[0] == pytest.approx(2e-20, rel=1e-15)
    assert -np.log(evidence.probability(alpha))[0] == 0  # the control


def test_relative_log_utility_keeps_close_labels_apart():
    """At a spread of 2e4 the plain log-softmax rounds the distance between the smallest labels to 4e-12."""
    z = np.array([1e4, np.nextafter(-1e4, 0), -1e4])
    exact = z[1] - z[2]
    assert exact > 0
    assert evidence.relative_log_utility(z)[1] == exact
    plain = evidence.log_utility(z)
    assert plain[1] - plain[2] != exact  # the control


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 4), st.integers(2, 9)), elements=st.sampled_from([-2.0, -0.0, 0.0, 1, 3])
    ),
    st.data(),
)
def test_ranks_count_the_labels_strictly_above(first, data):
    second = data.draw(hnp.arrays(np.float64, first.shape, elements=st.sampled_from([0.0, 1.0, 2.0])))
    got = evidence.ranks(first, second)
    for row, (a, b) in enumerate(zip(first, second, strict=True)):
        keys = list(zip(a.tolist(), b.tolist(), strict=True))
        assert got[row].tolist() == [sum(other > key for other in keys) for key in keys]


def test_huge_evidence_does_not_swallow_the_base_rates():
    """Alpha rounds to the same double for both labels, p does not tie: the larger base rate ranks first."""
    z = np.array([1e30, 1e30, 0.0])
    rates = np.array([0.2, 0.3, 0.5])
    assert evidence.evidential_ranks(evidence.activate("relu", z), z, rates).tolist() == [1, 0, 2]
    alpha = evidence.dirichlet(evidence.activate("relu", z), rates)
    assert alpha[0] == alpha[1]


def test_ranks_by_probability_are_exact_where_sums_are_rounded():
    """Evidence near 2^53 plus a base rate is rounded, up or down: ranks are those of the unrounded sums."""
    rng = np.random.default_rng(0)
    rates = np.array([0.62, 0.21, 0.06, 0.06, 0.05])
    rows = np.vstack([[1e16 - 2, 1e16, 0, 0, 0], 2.0**53 + rng.integers(-3, 4, (300, 5)) * 2.0])
    prior = 5 * rates
    for z in rows:
        sums = [Fraction(a) + Fraction(b) for a, b in zip(z.tolist(), prior.tolist(), strict=True)]
        keys = list(zip(sums, z.tolist(), strict=True))
        wanted = [sum(other > mine for other in keys) for mine in keys]
        assert evidence.evidential_ranks(z[None], z[None], rates)[0].tolist() == wanted


@pytest.mark.parametrize(
    "score", [evicp.LAC(temperature=1e-10), ECP(temperature=1e-10), ECP(temperature=1e-10, stabilizer=0)], ids=repr
)
def test_only_impossible_labels_score_infinity(score, cpu_backend):
    """A quotient z / T beyond the largest double is a very large score, not that of a masked label."""
    scores = score.scores([[1e300, 0.0, -1e300, -np.inf]])[0]
    assert np.isfinite(scores[:3]).all()
    assert np.isposinf(scores[3])


@pytest.mark.parametrize("activation", ["relu", "softplus", "exp"])
@pytest.mark.parametrize("stabilizer", [0.0, 1e-8, "scaled"])
@given(
    z=hnp.arrays(np.float64, st.integers(2, 12), elements=st.floats(-60, 60)),
    temperature=st.floats(0.1, 10),
)
def test_uniform_base_rates_make_every_set_a_top_m_set(activation, stabilizer, z, temperature):
    """The monotone case: the score never rises with the logit, and the smallest logit costs the most."""
    scores = ECP(activation, temperature=temperature, stabilizer=stabilizer).scores(z[None])[0]
    order = np.argsort(z)
    assert np.all(np.diff(scores[order]) <= 1e-12 * np.maximum(1, np.abs(scores[order][1:])))
    assert scores[z == z.min()].max() == pytest.approx(0, abs=1e-12)


# ---------------------------------------------------------------------------------------------------------------
# Activations, base rates, the opinion


def test_masked_labels_have_no_evidence_under_any_activation():
    z = np.array([1.0, -np.inf, -20.0])
    for activation in ("relu", "softplus", "exp", np.abs):
        assert evidence.activate(activation, z)[1] == 0


def test_exp_evidence_is_clipped_at_ten():
    e = evidence.activate("exp", np.array([-50.0, -10.0, 0.0, 10.0, 50.0]))
    assert np.allclose(e, np.exp([-10.0, -10.0, 0.0, 10.0, 10.0]), rtol=1e-15)


def test_evidence_may_be_a_function_of_the_user():
    z = np.array([[2.0, 1.0, -1.0]])
    assert np.allclose(ECP(evidence=lambda x: np.maximum(x, 0)).scores(z), ECP().scores(z), rtol=1e-13)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: z, "evidence must return finite values >= 0; got -1.0"),
        (lambda z: np.full(z.shape, np.nan), "evidence must return finite values >= 0; got nan"),
        (lambda z: np.full(z.shape, np.inf), "evidence must return finite values >= 0; got inf"),
        (lambda z: z[:, :1], r"evidence must return an array of shape \(1, 3\); got \(1, 1\)"),
    ],
)
def test_evidence_that_is_no_evidence_is_refused(function, message):
    with pytest.raises(ScoreError, match=message):
        ECP(evidence=function).scores([[2.0, 1.0, -1.0]])


def test_a_users_evidence_cannot_change_the_logits():
    z = np.array([[2.0, 1.0, -1.0]])
    before = z.copy()

    def destructive(x):
        x[:] = 0
        return x

    evicp.opinion(z, destructive)
    ECP(evidence=destructive, utility=destructive).scores(z)
    assert np.array_equal(z, before)


def test_unknown_evidence_names_the_known():
    with pytest.raises(ScoreError, match="one of relu, softplus, exp or a callable; got 'tanh'"):
        ECP(evidence="tanh")
    with pytest.raises(ScoreError, match="got 'tanh'"):
        evicp.opinion([[1.0, 2.0]], "tanh")


@pytest.mark.parametrize("rates", [(0.5, 0.6), (0.0, 1.0), (-0.5, 1.5), (np.nan, 1.0), (1.0,), ((0.5, 0.5),)])
def test_base_rates_that_are_no_probabilities_are_refused(rates):
    with pytest.raises(ScoreError, match="base_rates must"):
        ECP(base_rates=rates)


def test_base_rates_of_another_k_are_refused():
    with pytest.raises(ScoreError, match="one entry per class; got 2 for 3 classes"):
        ECP(base_rates=(0.5, 0.5)).scores([[1.0, 2.0, 3.0]])


def test_a_utility_of_the_users_takes_the_softmaxs_place():
    z = np.array([[2.0, 1.0, -1.0, -np.inf]])
    utility = np.array([[0.1, 0.5, 0.4, 0.0]])
    got = ECP(utility=lambda _: utility, stabilizer=1e-8).scores(z)[0]
    reference = reference_mpmath_ecp(z[0])
    p, rank = reference["probability"], reference["rank"]
    cost = [-mpmath.log(p[k]) / (utility[0, k] * p[k] ** 2 * (1 - mpmath.mpf(rank[k]) / 4) + 1e-8) for k in range(3)]
    assert close(got[:3], [mpmath.log(c / max(cost)) for c in cost])
    assert got[3] == np.inf


def test_a_utility_of_zero_needs_a_stabilizer():
    def none(z):
        return np.zeros(z.shape)

    assert np.isfinite(ECP(utility=none).scores([[1.0, 0.0]])).all()
    with pytest.raises(ScoreError, match="utility must be positive if stabilizer is 0"):
        ECP(utility=none, stabilizer=0).scores([[1.0, 0.0]])
    # An impossible label has no utility anyway, and is no reason to refuse.
    scores = ECP(utility=np.exp, stabilizer=0).scores([[1.0, 0.0, -np.inf]])
    assert np.isfinite(scores[0, :2]).all()
    assert np.isposinf(scores[0, 2])


def test_the_scaled_stabilizer_is_a_hundredth_of_one_over_k_squared():
    assert ECP(stabilizer="scaled").epsilon(1000) == pytest.approx(1e-8, rel=1e-15)
    z = np.random.default_rng(0).normal(size=(3, 10))
    assert np.array_equal(ECP(stabilizer="scaled").scores(z), ECP(stabilizer=1e-4).scores(z))


@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_dirichlet_density_is_scipys(batch):
    rng = np.random.default_rng(5)
    alpha = 0.5 + rng.gamma(2.0, size=(*batch, 4))
    c = rng.dirichlet(np.ones(4))
    got = evidence.dirichlet_log_density(c, alpha)
    wanted = [scipy.stats.dirichlet.logpdf(c, a) for a in np.atleast_2d(alpha)]
    assert got.shape == batch
    assert np.allclose(np.atleast_1d(got), wanted, rtol=1e-12)


@pytest.mark.parametrize("c", [[0.5, 0.6, -0.1], [0.5, 0.2, 0.2], [0.5, 0.3, 0.3]])
def test_the_dirichlet_density_is_zero_off_the_simplex(c):
    assert evidence.dirichlet_log_density(np.array(c), np.array([2.0, 2.0, 2.0])) == -np.inf


def test_the_dirichlet_density_at_the_simplexs_edge():
    """A zero coordinate: no factor where alpha is 1, density 0 where it is larger."""
    c = np.array([0.0, 0.4, 0.6])
    assert evidence.dirichlet_log_density(c, np.ones(3)) == pytest.approx(np.log(2))
    assert evidence.dirichlet_log_density(c, np.array([2.0, 1.0, 1.0])) == -np.inf


def test_an_opinion_of_a_batch_and_of_one_row():
    z = np.array([[2.0, 1.0, -1.0], [0.0, -np.inf, 4.0]])
    batch, row = evicp.opinion(z), evicp.opinion(z[1])
    assert batch.uncertainty.shape == (2,)
    assert batch.alpha.tolist() == [[3.0, 2.0, 1.0], [1.0, 1.0, 5.0]]
    assert np.array_equal(batch.belief[1], row.belief[0])
    assert np.allclose(batch.uncertainty + batch.belief.sum(1), 1, rtol=0, atol=1e-15)
    density = batch.log_density([0.2, 0.3, 0.5])
    assert np.allclose(density, [scipy.stats.dirichlet.logpdf([0.2, 0.3, 0.5], a) for a in batch.alpha])


def test_an_opinion_with_base_rates():
    opinion = evicp.opinion([[2.0, 1.0, -1.0]], base_rates=[0.5, 0.25, 0.25])
    assert opinion.alpha.tolist() == [[3.5, 1.75, 0.75]]


@pytest.mark.parametrize(
    "logits", [[[np.nan, 1.0]], [[np.inf, 1.0]], [[-np.inf, -np.inf]], [[1e301, 0.0]], [[[1.0, 2.0]]], [[1.0]]]
)
def test_an_opinion_of_unusable_logits_is_refused(logits):
    with pytest.raises(LogitsError):
        evicp.opinion(logits)
    with pytest.raises(InputError):
        ECP().scores(logits)
