"""Training-conditional (PAC) sets: the rank against binomial sums in integers, and what sets make of it."""

from __future__ import annotations

import json
from fractions import Fraction
from math import comb

import numpy as np
import pytest
import scipy.stats

import evicp
from evicp import ByClass, Reliability, calibrate, pac_rank
from evicp.calibration.ranks import rows_needed
from evicp.errors import InputError, InputTypeError, SmallCalibrationWarning
from evicp.io import files

COVERAGES = [Fraction(1, 2), Fraction(2, 3), Fraction(4, 5), Fraction(9, 10), Fraction(95, 100), Fraction(99, 100)]
CONFIDENCES = [Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(9, 10), Fraction(95, 100), Fraction(999, 1000)]


def reference_pac_rank(n: int, coverage: Fraction, confidence: Fraction) -> int:
    """The smallest k with P(Binomial(n, coverage) <= k - 1) >= confidence; n + 1 if there is none."""
    below = Fraction(0)
    for k in range(1, n + 1):
        below += comb(n, k - 1) * coverage ** (k - 1) * (1 - coverage) ** (n - k + 1)
        if below >= confidence:
            return k
    return n + 1


def make(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, n)
    return rng.normal(size=(n, 5)) + 2 * np.eye(5)[labels], labels


@pytest.mark.parametrize("coverage", COVERAGES, ids=str)
def test_the_rank_is_that_of_binomial_sums_in_integers(coverage):
    for confidence in CONFIDENCES:
        for n in (*range(1, 41), 63, 64, 100, 127, 250):
            assert pac_rank(n, coverage, confidence) == reference_pac_rank(n, coverage, confidence), (n, confidence)


def test_ties_are_decided_in_integers():
    # P(Binomial(n, 1/2) <= (n - 1) / 2) is one half exactly for every odd n.
    for n in (*range(1, 1000, 2), 2001, 3999):  # the last two in doubles, which can tell here
        assert pac_rank(n, 0.5, 0.5) == (n + 1) // 2
    assert pac_rank(2, 0.5, 0.75) == 2
    assert pac_rank(2, 0.5, Fraction(3, 4) + Fraction(1, 10**9)) == 3


@pytest.mark.parametrize("n", [3, 5, 21])
def test_confidences_that_doubles_cannot_tell_apart(n):
    """One part in 10^12 around a tie: the rank changes exactly at the tie."""
    half, little = Fraction(1, 2), Fraction(1, 10**12)
    k = (n + 1) // 2  # P(Binomial(n, 1/2) >= k) is one half
    assert [pac_rank(n, half, half + step) for step in (-little, 0, little)] == [k, k, k + 1]


def test_two_thousand_rows_are_still_decided_in_integers():
    """Less than a double's rounding beside the exact tail, on either side."""
    n, k, coverage, little = 2000, 1340, Fraction(2, 3), Fraction(1, 10**25)
    tail = sum(comb(n, j) * 2**j for j in range(k, n + 1)) / Fraction(3**n)
    assert [pac_rank(n, coverage, 1 - tail + step) for step in (-little, 0, little)] == [k, k, k + 1]


@pytest.mark.parametrize("n", [1_000, 50_000, 10**6])
def test_large_calibration_sets(n):
    for coverage in (0.5, 0.9, 0.99):
        k = pac_rank(n, coverage, 0.95)
        beta = scipy.stats.beta
        assert beta(k, n + 1 - k).sf(coverage) >= 0.95 > beta(k - 1, n + 2 - k).sf(coverage)
        assert k >= evicp.conformal_rank(n, coverage) - 1


def test_the_rank_rises_with_what_is_asked():
    for n in (30, 200):
        ranks = [pac_rank(n, 0.8, c) for c in (0.1, 0.5, 0.8, 0.95, 0.999)]
        assert ranks == sorted(set(ranks))
        assert pac_rank(n, 0.7, 0.9) < pac_rank(n, 0.8, 0.9)


def test_the_fewest_rows_with_a_threshold():
    for coverage in (0.5, 0.9, 0.95, 0.99):
        for confidence in (0.3, 0.5, 0.9, 0.95, 0.999):
            n = rows_needed(coverage, confidence)
            assert coverage**n <= 1 - confidence + 1e-12
            assert n == 1 or coverage ** (n - 1) > 1 - confidence - 1e-12
            assert pac_rank(n, coverage, confidence) == n


def test_the_fewest_rows_are_found_for_any_coverage():
    """Next to 1 they are more than can be tried one by one: ln 20 of them for every one that is missed."""
    for nines in (20, 40):
        n = rows_needed(1 - Fraction(1, 10**nines), 0.95)
        assert n == pytest.approx(np.log(20) * 10.0**nines, rel=1e-12)
    assert rows_needed(0.5, Fraction(1, 2) + Fraction(1, 10**12)) == 2


def test_sets_use_that_rank(cpu_backend):
    z, y = make(300)
    calibration = calibrate(z, y)
    for confidence in (0.5, 0.9, 0.99):
        k = reference_pac_rank(300, Fraction(9, 10), Fraction(confidence).limit_denominator(1000))
        threshold = calibration.threshold(0.9, confidence)
        assert threshold == calibration.scores[k - 1]
        sets = calibration.predict(z, 0.9, confidence=confidence)
        np.testing.assert_array_equal(sets.mask(), calibration.score.scores(z) <= threshold)
        assert (sets.confidence, sets.coverage) == (confidence, Fraction(9, 10))
    assert calibration.predict(z, 0.9).confidence is None


def test_several_coverages_with_one_confidence():
    z, y = make(300)
    calibration = calibrate(z, y)
    together = calibration.predict(z, [0.7, 0.9], confidence=0.95)
    assert together == [calibration.predict(z, c, confidence=0.95) for c in (0.7, 0.9)]


def test_the_sets_of_a_group_use_the_rank_of_the_group():
    z, y = make(600)
    for by in (ByClass(), np.arange(600) % 3):
        calibration = calibrate(z, y, by=by)
        limits = calibration.thresholds(0.8, 0.9)
        for group, n in enumerate(calibration.groups.counts.tolist()):
            k = reference_pac_rank(n, Fraction(4, 5), Fraction(9, 10))
            assert limits[group] == calibration.groups.part(calibration.scores, group)[k - 1]
        certificate = calibration.certificate(0.8, confidence=0.9, pac=0.9)
        assert [p.threshold for p in certificate.groups] == limits.tolist()


def test_too_few_rows_give_full_sets_and_say_how_many_are_needed():
    calibration = calibrate(*make(28))
    message = (
        r"^28 calibration row\(s\) cannot guarantee coverage 0.9 with confidence 0.95: every set is full\. "
        r"Calibrate on at least 29 rows\.$"
    )
    with pytest.warns(SmallCalibrationWarning, match=message):
        sets = calibration.predict(make(4)[0], 0.9, confidence=0.95)
    assert sets.sizes.tolist() == [5] * 4
    assert np.isfinite(calibrate(*make(29)).threshold(0.9, 0.95))
    grouped = calibrate(*make(60), by=np.arange(60) < 20)
    with pytest.warns(SmallCalibrationWarning, match=r"fewer than the 29 .* 0.9 with confidence 0.95 needs: 1 \(20\);"):
        grouped.thresholds(0.9, 0.95)


@pytest.mark.parametrize(
    ("confidence", "error"),
    [
        *((bad, InputError) for bad in (0, 1, -0.5, 95, float("nan"))),
        *((bad, InputTypeError) for bad in ("0.95", True)),
    ],
)
def test_confidences_that_cannot_be_used(confidence, error):
    z, y = make(50)
    with pytest.raises(error, match=r"^confidence must be "):
        calibrate(z, y).predict(z, 0.9, confidence=confidence)
    with pytest.raises(error, match=r"^confidence must be "):
        Reliability(50, 0.9, confidence)


def test_the_law_of_such_sets():
    law = Reliability(500, 0.9, 0.95)
    k = law.k
    assert k == reference_pac_rank(500, Fraction(9, 10), Fraction(95, 100))
    assert law.expected_coverage == k / 501
    assert law.quantile(0.05) >= 0.9 > Reliability(500, 0.9).quantile(0.05)
    assert law.interval() == pytest.approx(scipy.stats.beta(k, 501 - k).interval(0.95), abs=1e-12)


def test_a_certificate_of_such_sets():
    z, y = make(500)
    new, truth = make(2000, 1)
    calibration = calibrate(z, y)
    sets = calibration.predict(new, 0.9, confidence=0.95)
    evaluation = evicp.evaluate(sets, truth)
    assert evaluation.target_confidence == 0.95
    certificate = calibration.certificate(0.9, evaluation, pac=0.95)
    assert certificate.pac == 0.95
    assert certificate.rank == pac_rank(500, 0.9, 0.95)
    assert certificate.threshold == calibration.threshold(0.9, 0.95)
    assert certificate.observed["compatible"]
    assert "0.9, with confidence 0.95 over calibration sets" in str(certificate)
    assert json.loads(certificate.to_json())["pac"] == 0.95
    with pytest.raises(InputError, match=r"^the evaluation must be of sets predicted with confidence=None; got "):
        calibration.certificate(0.9, evaluation)
    with pytest.raises(InputError, match=r"predicted with confidence=0.95; got confidence=None\.$"):
        calibration.certificate(0.9, evicp.evaluate(calibration.predict(new, 0.9), truth), pac=0.95)


def test_such_sets_travel(tmp_path):
    z, y = make(200)
    sets = calibrate(z, y, by="class").predict(z, 0.8, confidence=0.9)
    for suffix in ("npz", "parquet"):
        files.write_sets(sets, tmp_path / f"sets.{suffix}")
        found = files.read_sets(tmp_path / f"sets.{suffix}")
        assert found == sets
        assert (found.confidence, found.guarantee) == (0.9, "class")


def test_the_confidence_of_sets_is_not_that_of_the_verdict():
    """Sets of a low confidence are judged as strictly as others: honest ones are compatible in all groups together."""
    refused = 0
    for seed in range(40):
        (z, y), (new, truth) = make(600, seed), make(2000, 100 + seed)
        calibration = calibrate(z, y, "lac", by="class")
        evaluation = evicp.evaluate(calibration.predict(new, 0.8, confidence=0.5), truth)
        refused += not calibration.certificate(0.8, evaluation, pac=0.5).observed["compatible"]
    assert refused <= 7  # 2 are expected at 95 %, 20 at 50 %


def test_ranks_of_what_is_no_number_of_rows():
    for rank in (lambda n: evicp.conformal_rank(n, 0.9), lambda n: pac_rank(n, 0.9, 0.95)):
        with pytest.raises(InputError, match=r"n must be at least 0; got -3"):
            rank(-3)
        with pytest.raises(evicp.errors.InputTypeError, match=r"n must be a whole number; got 2\.5"):
            rank(2.5)
    with pytest.raises(InputError, match=r"confidence must be strictly between 0 and 1; got 0\.9999999999"):
        pac_rank(100, 0.9, 0.9999999999)


def test_a_coverage_next_to_one_with_a_confidence():
    """Whose float is 1."""
    z, y = make(50)
    with pytest.warns(SmallCalibrationWarning, match="Calibrate on at least"):
        sets = calibrate(z, y, "lac").predict(z, Fraction(10**18 - 1, 10**18), confidence=0.9)
    assert sets.sizes.min() == sets.n_classes
