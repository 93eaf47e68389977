"""What n calibration rows can guarantee: the Beta law, Theorem 2, the beta-binomial check, the planner."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
import scipy.stats

from evicp import ECP, RAPS, SAPS, Reliability, TopK, plan
from evicp.calibration import certificate as certificates
from evicp.calibration import planning, reliability
from evicp.calibration.planning import share_within
from evicp.calibration.reliability import beta_binomial_cdf
from evicp.errors import CoverageError, InputError, InputTypeError
from oracles import reference_rank

COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99, Fraction(2, 3))
SIZES = (1, 2, 9, 10, 19, 50, 99, 100, 1000, 12345)


def cases():
    return [(n, coverage) for n in SIZES for coverage in COVERAGES]


@pytest.mark.parametrize(("n", "coverage"), cases())
def test_theorem_2(n, coverage):
    """l = floor((n + 1) delta), gamma = (n - l) / (n + 1), U_C = 2 / (n + 1), and the theorem's inequality."""
    law = Reliability(n, coverage)
    delta = 1 - law.coverage
    l = floor((n + 1) * delta)  # noqa: E741 - the paper's letter
    assert law.l == l
    assert law.k == n + 1 - l == reference_rank(n, law.coverage)
    gamma = Fraction(n - l, n + 1)
    assert law.gamma == float(gamma)
    assert Fraction(n, n + 1) - delta <= gamma < 1 - delta
    assert law.uncertainty == 2 / (n + 1)
    assert law.gamma == pytest.approx(law.expected_coverage - 1 / (n + 1), abs=1e-15)


def test_the_plain_quantile_of_theorem_1_misses_its_guarantee():
    """Where n (1 - delta) is whole its rank covers less than asked on average; the conformal rank never does."""
    for n in (20, 100, 1000):
        for coverage in (Fraction(9, 10), Fraction(19, 20)):
            plain = ceil(n * coverage)
            assert Fraction(plain, n + 1) < coverage <= Fraction(Reliability(n, coverage).k, n + 1)
    assert round(ceil(100 * Fraction(9, 10)) / 101, 3) == 0.891


@pytest.mark.parametrize(("n", "coverage"), cases())
def test_theorem_2_is_said_not_to_apply_where_its_belief_in_a_miss_is_negative(n, coverage):
    law = Reliability(n, coverage)
    belief_in_a_miss = 1 - law.gamma - law.uncertainty
    assert belief_in_a_miss == pytest.approx((law.l - 1) / (n + 1), abs=1e-15)
    assert (belief_in_a_miss < -1e-16) == (law.l == 0) == ("Theorem 2 (gamma, U_C) needs l >= 1" in str(law))


@pytest.mark.parametrize(("n", "coverage"), cases())
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_the_interval_is_that_of_the_beta_law(n, coverage, confidence):
    law = Reliability(n, coverage)
    low, high = law.interval(confidence)
    if law.l == 0:
        assert (low, high) == (1, 1)
        return
    beta = scipy.stats.beta(law.k, law.l)
    assert low == pytest.approx(beta.ppf((1 - confidence) / 2), abs=1e-12)
    assert high == pytest.approx(beta.ppf((1 + confidence) / 2), abs=1e-12)
    assert law.expected_coverage == pytest.approx(beta.mean(), rel=1e-14)
    x = np.array([0.0, 0.3, 0.9, 0.95, 0.999, 1.0])
    assert law.density(x) == pytest.approx(beta.pdf(x), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("n", "coverage"), [(8, 0.9), (1, 0.6), (98, 0.99)])
def test_too_few_rows_are_a_point_mass_at_one(n, coverage):
    law = Reliability(n, coverage)
    assert (law.l, law.k) == (0, n + 1)
    assert law.expected_coverage == 1
    assert law.interval() == (1.0, 1.0)
    assert law.quantile(0.001) == 1
    assert law.observed_interval(50) == (1.0, 1.0)
    assert law.compatible(1.0, 50).compatible
    assert not law.compatible(0.0, 50).compatible
    assert not law.compatible(0.98, 50).compatible
    assert np.isnan(law.density(np.array([0.5]))).all()
    assert law.gamma == n / (n + 1)
    assert "1.0000, 1.0000" in str(law)
    assert f"n = {n:,}: too few rows for a threshold; Theorem 2" in str(law)


def test_one_row_more_is_a_beta_again():
    law = Reliability(9, 0.9)
    assert (law.k, law.l) == (9, 1)
    assert law.interval(0.9) == pytest.approx(tuple(scipy.stats.beta(9, 1).ppf([0.05, 0.95])))


@pytest.mark.parametrize(("a", "b"), [(1, 1), (9, 1), (90, 10), (1, 99), (901, 100), (10**5, 10**4)])
@pytest.mark.parametrize("m", [1, 7, 100, 2000])
def test_the_beta_binomial_is_scipys(m, a, b):
    counts = np.unique(np.linspace(0, m, 150).astype(int))
    got = np.array([beta_binomial_cdf(x, m, a, b) for x in counts.tolist()])
    assert np.allclose(got, scipy.stats.betabinom(m, a, b).cdf(counts), rtol=0, atol=1e-9)
    assert np.all(np.diff(got) >= -1e-9)
    assert got.max() <= 1


@pytest.mark.parametrize(("n", "coverage"), [(9, 0.9), (1000, 0.9), (10**6, 0.99)])
def test_an_interval_of_a_billion_rows_is_that_of_the_coverage_itself(n, coverage):
    law = Reliability(n, coverage)
    assert law.observed_interval(10**9) == pytest.approx(law.interval(), abs=2e-6)


@pytest.mark.parametrize("m", [1, 10, 100, 3500])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("n", "coverage"), [(9, 0.9), (99, 0.9), (1500, 0.95), (50, 0.5)])
def test_the_observed_interval_is_that_of_the_beta_binomial(n, coverage, m, confidence):
    law = Reliability(n, coverage)
    exact = scipy.stats.betabinom(m, law.k, law.l)
    low, high = law.observed_interval(m, confidence)
    tail = (1 - confidence) / 2
    assert high == exact.ppf(1 - tail) / m
    # Every count in the interval is one the tails do not claim: P(X <= low) > tail, P(X < low) <= tail.
    count = round(low * m)
    assert exact.cdf(count) > tail - 1e-12
    assert count == 0 or exact.cdf(count - 1) <= tail + 1e-12
    inside = exact.cdf(round(high * m)) - (exact.cdf(count - 1) if count else 0)
    assert inside >= confidence - 1e-9


def test_compatibility_says_yes_inside_and_no_outside():
    law = Reliability(1000, 0.9)
    low, high = law.observed_interval(500)
    step = 1 / 500
    for observed, verdict in ((low, True), (high, True), (low - step, False), (high + step, False), (0.9, True)):
        check = law.compatible(observed, 500)
        assert check.compatible is verdict
        assert check.kept is (observed >= low)  # more than was guaranteed breaks no guarantee
        assert ("NOT compatible with" in str(check)) is not check.kept
        assert ("MORE than" in str(check)) is (check.kept and not verdict)
    assert (check.low, check.high, check.m) == (low, high, 500)


def test_a_law_that_is_a_bound_lets_more_pass_but_not_less():
    law = Reliability(1000, 0.9)
    low, high = law.observed_interval(500)
    assert law.compatible(1.0, 500, at_least=True).compatible
    assert (law.compatible(0.9, 500, at_least=True).low, law.compatible(0.9, 500, at_least=True).high) == (low, 1.0)
    assert not law.compatible(low - 1 / 500, 500, at_least=True).compatible
    assert high < 1


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_smoothed_sets_may_cover_as_little_as_those_of_the_score_below(confidence):
    """From 99 rows at 0.9: the lower end is that of rank 89, the upper one that of rank 90."""
    law = Reliability(99, 0.9)
    check = law.compatible(0.9, 500, confidence, smoothed=True)
    assert check.low == Reliability(99, 0.89).observed_interval(500, confidence)[0] < check.high
    assert check.high == law.observed_interval(500, confidence)[1]
    assert law.compatible(check.low, 500, confidence, smoothed=True).compatible
    assert not law.compatible(check.low - 1 / 500, 500, confidence, smoothed=True).kept


def test_verdicts_on_smoothed_sets_at_the_ends():
    """At rank 1 the one below covers nothing; past the last rank plain sets are full, and smoothed ones are not."""
    first = Reliability(1, 0.4)
    assert first.k == 1
    assert first.compatible(0.0, 20, smoothed=True).low == 0.0
    full = Reliability(9, 0.95)
    assert full.k == 10
    assert full.compatible(0.9, 20).low == 1.0
    assert full.compatible(0.9, 20, smoothed=True).low == Reliability(9, 0.9).observed_interval(20)[0]


def test_compatible_coverages_are_as_frequent_as_promised():
    """Draw coverages from the law and counts given them: 95 % are called compatible, or a little more."""
    rng = np.random.default_rng(0)
    law = Reliability(99, 0.9)
    hits = rng.binomial(200, rng.beta(law.k, law.l, 4000))
    low, high = law.observed_interval(200)
    share = np.mean((hits >= round(low * 200)) & (hits <= round(high * 200)))
    assert 0.945 < share < 0.975


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Reliability(0, 0.9), InputError),
        (lambda: Reliability(True, 0.9), InputTypeError),
        (lambda: Reliability(10.0, 0.9), InputTypeError),
        (lambda: Reliability(10, 1.0), CoverageError),
        (lambda: Reliability(10, 0.9).interval(1.0), InputError),
        (lambda: Reliability(10, 0.9).interval("0.9"), InputTypeError),
        (lambda: Reliability(10, 0.9).observed_interval(10, 0), InputError),
        (lambda: Reliability(10, 0.9).compatible(1.1, 10), InputError),
        (lambda: Reliability(10, 0.9).compatible(float("nan"), 10), InputError),
        (lambda: Reliability(10, 0.9).compatible(0.9, 0), InputError),
        (lambda: Reliability(10, 0.9).compatible(0.9, 2.5), InputTypeError),
        (lambda: plan(0.9, 0.0), InputError),
        (lambda: plan(0.9, 0.01, 1.0), InputError),
        (lambda: plan(90, 0.01), CoverageError),
    ],
)
def test_bad_questions_are_refused(call, error):
    with pytest.raises(error):
        call()


def test_a_law_is_a_value():
    assert Reliability(99, 0.9) == Reliability(99, Fraction(9, 10))
    assert hash(Reliability(99, 0.9)) == hash(Reliability(99, 0.9))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Reliability(99, 0.9).n = 100
    assert "gamma" in str(Reliability(99, 0.9))


# ---------------------------------------------------------------------------------------------------------------
# The planner


def concentrations(sizes: Sequence[int], coverage: Fraction, tolerance: float) -> np.ndarray:
    """P(|C - coverage| <= tolerance) for each n, from scipy's Beta distribution."""
    n, k = np.array(sizes), np.array([reference_rank(size, coverage) for size in sizes])
    low, high = (scipy.stats.beta.cdf(float(coverage) + away, k, n + 1 - k) for away in (-tolerance, tolerance))
    return high - low


def concentration(n: int, coverage: Fraction, tolerance: float) -> float:
    return float(concentrations([n], coverage, tolerance)[0])


def brute_force_plan(coverage: Fraction, tolerance: float, confidence: float, bound: int) -> int:
    """One more than the last n up to the bound that misses the confidence, of those with a finite threshold."""
    finite = [n for n in range(1, bound + 1) if reference_rank(n, coverage) <= n]
    missing = np.nonzero(concentrations(finite, coverage, tolerance) < confidence)[0]
    return finite[missing[-1]] + 1 if len(missing) else finite[0]


@pytest.mark.parametrize(
    ("coverage", "tolerance", "confidence"),
    [
        (0.9, 0.05, 0.9),
        (0.9, 0.05, 0.95),
        (0.9, 0.03, 0.9),
        (0.95, 0.03, 0.9),
        (0.99, 0.01, 0.9),
        (0.99, 0.02, 0.5),
        (0.8, 0.1, 0.95),
        (0.5, 0.1, 0.95),
        (0.5, 0.4, 0.3),
        (Fraction(2, 3), 0.08, 0.8),
        (0.9, 0.09, 0.5),
        (0.995, 0.01, 0.95),  # 199: fewer rows give full sets, whose coverage of 1 is within the tolerance
        (0.995, 0.004, 0.95),
        (0.9, 0.1, 0.9),
        (0.7, 0.3, 0.99),
        (0.93, 0.07, 0.6),
        (0.1, 0.05, 0.9),
        (0.05, 0.2, 0.9),
        (0.9, 0.9, 0.5),
    ],
)
def test_the_plan_is_the_smallest_n_from_which_on_the_promise_holds(coverage, tolerance, confidence):
    exact = Reliability(1, coverage).coverage
    got = plan(coverage, tolerance, confidence)
    bound = max(300, 3 * got)
    assert got == brute_force_plan(exact, tolerance, confidence, bound)
    fewer_are_finite = reference_rank(got - 1, exact) <= got - 1
    assert not fewer_are_finite or concentration(got - 1, exact, tolerance) < confidence
    assert np.all(concentrations(range(got, bound, max(1, bound // 200)), exact, tolerance) >= confidence)


def test_the_share_within_a_tolerance_is_the_beta_laws():
    for n in (9, 100, 3449, 3450):
        assert share_within(n, 0.9, 0.01) == pytest.approx(concentration(n, Fraction(9, 10), 0.01), rel=1e-12)
    assert share_within(3449, 0.9, 0.01) < 0.95 <= share_within(3450, 0.9, 0.01)
    assert [share_within(8, 0.9, tolerance) for tolerance in (0.05, 0.2)] == [0.0, 1.0]  # full sets cover all


def test_a_plan_with_extreme_confidence_looks_far_enough():
    """The search goes down from a bound that must grow with the confidence, or it begins below the answer."""
    coverage, tolerance, confidence = Fraction(1, 2), 0.02, 1 - 1e-9
    got = plan(coverage, tolerance, confidence)
    assert got > 20_000
    assert concentration(got - 1, coverage, tolerance) < confidence <= concentration(got, coverage, tolerance)


def test_an_outcome_exactly_as_likely_as_the_tail_is_outside():
    """From three rows at 0.75 one new row is missed with probability 1/4, the whole tail of a 50 % interval."""
    assert Reliability(3, 0.75).observed_interval(1, confidence=0.5) == (1.0, 1.0)
    assert Reliability(3, 0.75).observed_interval(1, confidence=0.51) == (0.0, 1.0)
    assert Reliability(4, 0.2).observed_interval(1, confidence=0.6) == (0.0, 0.0)  # the same of one that is covered
    assert Reliability(4, 0.2).observed_interval(1, confidence=0.61) == (0.0, 1.0)


def plain_certificate(**others) -> certificates.Certificate:
    values = (0.9, 1999, 1800, 1.25, 0.89, 0.001, 0.9, (0.88, 0.92), 0.95, "ecp", {}, 1000, "abc", "1", "today")
    return dataclasses.replace(certificates.Certificate(*values), **others)


def said(certificate: certificates.Certificate) -> dict[str, str]:
    """What a certificate says, by the names of its lines: all of it is printed, in whatever lines."""
    words = str(certificate).split()
    assert words == " ".join(["Coverage certificate", *map(" ".join, certificate._lines()), certificate.caveat]).split()
    return dict(certificate._lines())


def test_a_certificate_claims_no_confidence_unless_told():
    assert "with confidence" not in str(plain_certificate())
    assert "with confidence 0.95" in str(plain_certificate(pac=0.95))


def test_what_a_certificate_says_line_by_line():
    plain = plain_certificate()
    assert said(plain) == {
        "target coverage": "0.9",
        "calibration rows n": "1,999",
        "threshold (ln score)": "1.25 (score 1,800 of 1,999 in ascending order)",
        "expected coverage": "0.900000 over calibration sets",
        "95 % interval": "[0.8800, 0.9200] (Beta law of coverage given the calibration set)",
        "gamma": "0.890000 (Theorem 2: belief mass of coverage, not a statistical confidence)",
        "U_C": "0.001 (Theorem 2: 2 / (n + 1))",
        "score": "ecp",
        "classes": "1,000",
        "SHA-256 of file": "abc",
        "made by": "evicp 1, today",
    }
    assert "\n  classes               1,000\n" in str(plain)  # in columns


def test_a_certificate_is_a_hundred_columns_wide():
    parameters = RAPS().plain_parameters()
    tied = str(plain_certificate(score="raps", parameters=parameters, tied=True, checksum="f" * 90)).splitlines()
    assert [line for line in tied if len(line) > 100] == [f"{' ' * 22}{'f' * 90}"]
    assert "  threshold           1.25 (score 1,800 of 1,999 in ascending order)" in tied  # no logarithm
    (first,) = (i for i, line in enumerate(tied) if line.startswith("  95 % interval       [0.8800, 0.9200] (Beta law"))
    assert tied[first + 1].startswith(" " * 22)
    assert tied[first + 1].endswith(" so coverage can be higher)")
    assert tied[-1] == "  or about shifted data."


@pytest.mark.parametrize(
    ("score", "line"),
    [
        (ECP(base_rates=(0.25,) * 4), "base_rates (4 numbers), temperature 1, stabilizer scaled"),
        (ECP(utility=np.abs, stabilizer=1e-8), "temperature 1, stabilizer 1e-08, utility custom"),
        (SAPS(lam=0.2), "saps: lam 0.2, randomized yes"),
        (TopK(), "topk"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_the_parameters_of_a_score_are_words(score, line):
    assert line in certificates.score_line(score.name, score.plain_parameters())


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            {"tied": True},
            {
                "95 % interval": "[0.8800, 0.9200] (Beta law of coverage given the calibration set; scores tie at the "
                "threshold, so coverage can be higher)"
            },
        ),
        (
            {"threshold": np.inf},
            {
                "threshold (ln score)": "none: 1,999 rows are too few, and every set is full",
                "95 % interval": "-",
                "gamma": "-",
            },
        ),
        (
            {"effective_n": 1234.56},
            {
                "effective rows": "1234.6",
                "as uncertain as": "1,999 equally weighted rows, used for the figures below",
                "threshold (ln score)": "1.25 (for a new row of average weight)",
            },
        ),
        ({"parameters": {"k": 3}}, {"score": "ecp: k 3"}),
        ({"chosen_on": 1234}, {"score chosen on": "1,234 other rows, which are not calibration rows"}),
        (
            {"observed": {"coverage": 0.9, "m": 1000, "low": 0.88, "high": 0.92, "compatible": True, "kept": True}},
            {"observed coverage": "0.9000 on 1,000 rows: compatible with [0.8800, 0.9200]"},
        ),
    ],
    ids=lambda case: next(iter(case)),
)
def test_what_else_a_certificate_says_where_there_is_more_to_say(change, lines):
    assert said(plain_certificate(**change)) == said(plain_certificate()) | lines


def test_a_verdict_names_eight_of_many_groups():
    seen = {"coverage": 0.5, "m": 1200, "groups": 20, "compatible": False, "kept": False}
    names = [f"g{number}" for number in range(12)]
    for count, end in ((8, ""), (9, " and 1 more"), (12, " and 4 more")):
        line = f"0.5000 on 1,200 rows: {count} of 20 groups NOT compatible: g0, g1, g2, g3, g4, g5, g6, g7{end}"
        assert reliability.verdict_line(seen | {"incompatible": names[:count]}) == line
    fine = seen | {"compatible": True, "incompatible": []}
    assert reliability.verdict_line(fine) == "0.5000 on 1,200 rows: 20 groups compatible"


def test_a_certificate_as_json():
    promise = certificates.GroupPromise("a", 3, 4, np.inf, 1.0, (1.0, 1.0))
    for threshold, stored in ((1.25, 1.25), (np.inf, "inf"), (-np.inf, "-inf"), (0.0, 0.0)):
        certificate = plain_certificate(threshold=threshold, groups=(promise,))
        text = certificate.to_json()
        content = json.loads(text)
        assert content == certificate.to_dict()
        assert (content["threshold"], content["groups"][0]["threshold"]) == (stored, "inf")
        assert list(content) == sorted(content)
        assert text.startswith('{\n  "by"')
    with pytest.raises(ValueError, match="not JSON compliant"):
        plain_certificate(gamma=np.nan).to_json()


def test_what_a_certificate_rests_on():
    plain, grouped = plain_certificate(), plain_certificate(by="group")
    assert plain.caveat.startswith("Holds if calibration rows and new rows are exchangeable")
    assert grouped.caveat.startswith("Holds in every group if its calibration rows and new rows are exchangeable")
    assert plain_certificate(effective_n=10.0).caveat.startswith(
        "Holds on average over calibration sets if the weights"
    )
    for certificate in (plain, grouped):
        assert "folds" not in certificate.caveat
        in_folds = dataclasses.replace(certificate, folds=5)
        assert in_folds.caveat.startswith("The rows were scored in 5 folds, by models other")
        assert in_folds.caveat.endswith(certificate.caveat)
        assert " ".join(str(in_folds).split()).endswith(in_folds.caveat)


def test_the_plan_grows_as_the_tolerance_shrinks():
    plans = [plan(0.9, t) for t in (0.1, 0.05, 0.02, 0.01)]
    assert plans == sorted(plans)
    assert plan(0.9, 0.02, 0.99) > plan(0.9, 0.02, 0.9)


@pytest.mark.parametrize("coverage", [Fraction(9, 10), Fraction(2, 3), Fraction(899, 997)])
def test_no_n_of_a_range_is_below_its_bound(coverage):
    """The search skips a range of n only by this bound."""
    rng = np.random.default_rng(0)
    for tolerance in (0.001, 0.03, 0.4):
        first = rng.integers(1000, 5000, 40)
        last = first + rng.integers(0, 300, 40)
        bounds = planning._concentration(first, last, coverage, tolerance)
        for low, high, bound in zip(first, last, bounds, strict=True):
            n = np.arange(low, high + 1)
            assert bound <= planning._concentration(n, n, coverage, tolerance).min()


def test_a_fine_plan_is_quick_and_still_the_last_n_that_misses():
    """A tenth of a thousandth takes tens of millions of rows, too many to be asked one by one."""
    exact, tolerance = Fraction(9, 10), 1e-4
    start = time.process_time()
    got = plan(exact, tolerance)
    assert time.process_time() - start < 10
    assert 34_000_000 < got < 35_000_000
    near = np.arange(got - 20_000, got + 20_000)
    missing = near[planning._concentration(near, near, exact, tolerance) < 0.95]
    assert missing[-1] == got - 1


def test_a_tolerance_that_no_rows_keep_to_is_refused():
    assert plan(0.999999, 1e-6) == 3_147_895
    with pytest.raises(
        InputError, match=r"^tolerance must be at least 9\.5e-06 at coverage 0\.9; got 1e-06, which 1,000"
    ):
        plan(0.9, 1e-6)
    with pytest.raises(InputError, match="tolerance must be at least 1e-08"):
        plan(Fraction(10**20 - 1, 10**20), 1e-9)


def test_a_tolerance_that_can_just_be_kept_to_is_planned_for():
    nines = Fraction(10**8 - 1, 10**8)
    assert plan(nines, 1e-8) == 314_789_678
    with pytest.raises(InputError, match="tolerance must be at least 1e-08"):
        plan(nines, np.nextafter(1e-8, 0))


def test_a_plan_of_more_rows_than_64_bits_count():
    """So many are needed for a threshold at all; from there on coverage hardly strays."""
    assert plan(Fraction(10**20 - 1, 10**20), 0.001) == 10**20 - 1


def test_the_plans_exact_ranks_survive_large_denominators():
    """A coverage with nine digits times a large n does not fit 62 bits: the arithmetic must widen, not wrap."""
    coverage = Fraction(899999993, 999999937)
    n = np.array([2 * 10**10, 2 * 10**10 + 1])
    assert int(n[0]) * coverage.numerator > 2**63
    got = planning._concentration(n, n, coverage, 1e-6)
    wanted = [concentration(int(x), coverage, 1e-6) for x in n]
    assert got == pytest.approx(wanted, rel=1e-3)  # old SciPys are no nearer at such n; a wrapped rank is far off


def test_rows_beyond_the_precision_of_the_law_are_refused() -> None:
    """From 10^17 rows on the interval was NaN, and a monitor overflowed."""
    low, high = Reliability(10**15, 0.9).interval(0.95)
    assert 0.8999 < low < 0.9 < high < 0.9001
    for n in (10**15 + 1, 10**30):
        with pytest.raises(InputError, match=r"n must be at most 10\^15"):
            Reliability(n, 0.9)
