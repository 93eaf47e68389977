"""Answer or abstain: thresholds by hand, groups, refusals, files, and agreement with MAPIE."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binom

import evicp
from evicp import Selective, selective
from evicp.datasets import load_imagenet_sample
from evicp.errors import ArtifactError, InputError, InputTypeError, ScoreError
from evicp.risk.doubt import best_labels, doubts_of
from evicp.risk.sequence import in_sequence, sequence_of
from evicp.risk.steps import log_p_value

K = 4


def draw(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) * 1.5 + 3 * np.eye(K)[labels], labels


@pytest.fixture(scope="module")
def many():
    return draw(1500)


# ---------------------------------------------------------------------------------------------------------------
# The test


@pytest.mark.parametrize("error", [0.01, 0.05, 0.1, 0.3])
def test_each_threshold_is_tested_by_the_exact_binomial_tail(error):
    """One mistake more, or one answer less, and it is not certified."""
    exact = Fraction(str(error))
    for n in (10, 58, 59, 90, 298, 299, 500):
        for wrong in range(6):
            flags = np.arange(n) < wrong
            (test,) = in_sequence(np.zeros(n), flags, np.array([0.0]), exact, 0.95)
            assert test.certified == (binom.cdf(wrong, n, error) <= 0.05), (n, wrong)
            assert (test.answered, test.wrong) == (n, wrong)


def test_the_sequence_ends_at_the_first_threshold_that_fails():
    doubts = np.arange(300.0)
    wrong = (doubts >= 100) & (doubts < 140)
    tests = in_sequence(doubts, wrong, np.array([99.0, 139.0, 299.0]), Fraction(1, 5), 0.95)
    assert [test.certified for test in tests] == [True, False]  # though the last one would pass again
    assert in_sequence(doubts, wrong, np.array([299.0]), Fraction(1, 5), 0.95)[0].certified


def test_candidates_that_are_given_are_tested_in_their_order_by_all_rows(many):
    logits, labels = many
    doubts, wrong = doubts_of("softmax", logits), best_labels(logits, 1)[:, 0] != labels
    candidates = [0.05, 0.1, 0.2, 0.3, 0.5, 1.0]
    rule = selective(logits, labels, error=0.1, candidates=candidates)
    passed = []
    for t in candidates:
        if binom.cdf(wrong[doubts <= t].sum(), (doubts <= t).sum(), 0.1) > 0.05:
            break
        passed.append(t)
    assert rule.thresholds.tolist() == [passed[-1]]
    assert rule.share == np.mean(doubts <= passed[-1])


def test_rows_set_aside_choose_candidates_and_nothing_else(many):
    logits, labels = many
    rule = selective(logits, labels, error=0.1, share=0.3, seed=5)
    aside = rule.rows.aside
    assert aside.sum() == 450
    doubts, wrong = rule.rows.doubts, rule.rows.wrong
    sequence = sequence_of(doubts[aside], wrong[aside], 1050, Fraction(1, 10), 0.95)
    tests = in_sequence(doubts[~aside], wrong[~aside], sequence, Fraction(1, 10), 0.95)
    assert rule.thresholds[0] == max(test.threshold for test in tests if test.certified)
    assert sequence[-1] == np.inf
    assert np.all(np.diff(sequence) > 0)


@pytest.mark.parametrize("doubt", ["softmax", "margin", "uncertainty"])
def test_doubts_are_what_they_say(many, cpu_backend, doubt):
    logits = many[0][:50]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    two = np.sort(p, 1)[:, -2:]
    expected = {
        "softmax": 1 - two[:, 1],
        "margin": two[:, 0] - two[:, 1],
        "uncertainty": K / (K + np.maximum(logits, 0).sum(1)),
    }
    assert np.allclose(doubts_of(doubt, logits), expected[doubt])


def test_answers_are_the_largest_logits_without_impossible_labels():
    logits = np.array([[0.0, 3.0, 1.0, 2.0], [-np.inf, 1.0, -np.inf, -np.inf], [2.0, 2.0, 2.0, 1.0]])
    assert best_labels(logits, 3).tolist() == [[1, 3, 2], [1, -1, -1], [0, 1, 2]]
    assert best_labels(logits, 1).ravel().tolist() == [1, 1, 0]


@pytest.mark.parametrize("doubt", ["softmax", "margin", "uncertainty"])
@pytest.mark.parametrize("calibrated", [np.float64, np.float32])
def test_tied_rows_are_answered_in_every_precision(doubt, calibrated):
    """Tenths and so many of them: a pile of tied rows is answered as a whole or not at all."""
    rng = np.random.default_rng(0)
    sure = rng.integers(1, 7, 3000) / 10
    labels = np.where(rng.random(3000) < np.sqrt(sure), 1, 0)
    logits = np.column_stack([np.full(3000, 0.1), 0.1 + 5 * sure, np.full(3000, 0.1)])
    rule = selective(logits.astype(calibrated), labels, error=0.3, doubt=doubt)
    expected = rule.predict(logits.astype(calibrated)).sizes
    assert 0.1 < expected.mean() < 0.99
    for given in (logits, logits.astype(np.float32), logits.astype(np.float16), logits.astype(np.float32).tolist()):
        assert np.array_equal(rule.predict(given).sizes, expected)


# ---------------------------------------------------------------------------------------------------------------
# Answers


@pytest.mark.parametrize("most", [1, 2])
def test_a_row_is_answered_exactly_if_its_doubt_is_within_the_threshold(many, most):
    logits, labels = many
    rule = selective(logits, labels, error=0.08, most=most)
    new, truth = draw(400, 1)
    sets = rule.predict(new)
    answered = doubts_of("softmax", new) <= rule.thresholds[0]
    assert np.array_equal(sets.sizes > 0, answered)
    best = np.argsort(-new, 1)[:, :most]
    assert sets[answered].to_lists() == best[answered].tolist()
    found = rule.evaluate(new, truth)
    wrong = ~(best == truth[:, None]).any(1) & answered
    assert (found.answered, found.wrong) == (answered.sum(), wrong.sum())
    assert rule.predict(new[7]).to_lists() == sets[7:8].to_lists()


def test_more_labels_answer_more_rows(many):
    shares = [selective(*many, error=0.05, most=most).share for most in (1, 2, 3)]
    assert shares[0] < shares[1] <= shares[2]


def test_by_class_each_class_of_answers_has_its_own_bound():
    logits, labels = draw(6000, 2)
    logits[:, 0] += 1.5  # answered too often, and more often wrong
    rule = selective(logits, labels, error=0.08, by="class")
    assert rule.thresholds[0] < rule.thresholds[1:].min()
    new, truth = draw(6000, 3)
    new[:, 0] += 1.5
    sets = rule.predict(new)
    for label in range(K):
        mine = (sets.sizes > 0) & (new.argmax(1) == label)
        assert np.mean(truth[mine] != label) < 0.08 + 4 * (0.08 / mine.sum()) ** 0.5


def test_by_group_groups_without_a_certified_threshold_are_never_answered():
    logits, labels = draw(1000, 4)
    groups = np.where(np.arange(1000) < 960, "many", "few")
    rule = selective(logits, labels, error=0.1, by=groups)
    assert rule.names == ("few", "many")
    assert rule.thresholds[0] == -np.inf
    sets = rule.predict(logits, groups=groups)
    assert not sets[groups == "few"].sizes.any()
    assert sets[groups == "many"].sizes.any()
    assert "never answered" in str(rule.certificate())
    with pytest.raises(InputError, match="groups must be among those of the calibration rows; got new"):
        rule.predict(logits[:1], groups=["new"])
    with pytest.raises(InputError, match="by group: pass groups="):
        rule.predict(logits)


def test_a_function_of_ones_own_decides(many):
    logits, labels = many
    rule = selective(logits, labels, error=0.1, doubt=lambda z: -np.sort(z, 1)[:, -1])
    assert 0 < rule.share < 1
    with pytest.raises(ScoreError, match="one number for each of 1500 rows"):
        selective(logits, labels, error=0.1, doubt=lambda z: z)


def test_what_cannot_be_certified_is_refused_and_says_what_would_help(many):
    logits, labels = many
    with pytest.raises(InputError, match=r"0\.001 cannot be certified with confidence 0\.95"):
        selective(logits, labels, error=0.001)
    with pytest.raises(InputError, match=r"About [\d,]+ rows would be enough") as refused:
        selective(logits[:150], labels[:150], error=0.08)
    assert 150 < int(str(refused.value).split("About ")[1].split()[0].replace(",", "")) < 5000
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"are wrong too often: .* with fewer than 59 answered rows"):
        selective(rng.normal(size=(500, K)), rng.integers(0, K, 500), error=0.05)


# ---------------------------------------------------------------------------------------------------------------
# What it says


def test_a_rule_prints_itself_its_certificate_and_its_curve(many):
    rule = selective(*many, error=0.1)
    low, high = rule.share_interval
    assert low < rule.share < high
    found = rule.evaluate(*draw(500, 6))
    text = str(rule.certificate(found))
    assert "at most 0.1 with confidence 0.95" in text
    assert "agrees with 0.1" in text
    assert rule.certificate(found).to_dict()["observed"]["kept"]
    curve = rule.curve()
    tests = ~rule.rows.aside
    assert curve.share[-1] == 1
    assert curve.error[-1] == pytest.approx(rule.rows.wrong[tests].mean())
    assert np.all(curve.upper >= curve.error)
    assert curve.to_svg().startswith("<svg")
    assert "<svg" in rule._repr_html_()
    assert "empty sets are not answers" in repr(rule.predict(many[0]))
    assert not rule.evaluate(-many[0], many[1]).kept


@pytest.mark.parametrize("how", [{}, {"most": 2, "doubt": "margin"}, {"by": "class"}, {"candidates": [0.1, 0.2]}])
def test_files_give_back_what_was_saved(tmp_path, how):
    logits, labels = draw(3000, 8)
    rule = selective(logits, labels, error=0.15, class_names=list("abcd"), **how)
    rule.save(tmp_path / "rule.safetensors")
    found = Selective.load(tmp_path / "rule.safetensors")
    assert np.array_equal(found.thresholds, rule.thresholds)
    assert found.predict(logits) == rule.predict(logits)
    assert found.certificate().to_json() == rule.certificate().to_json()
    assert found.at(0.2).share == rule.at(0.2).share
    with pytest.raises(InputError, match="doubt= is only for a rule"):
        Selective.load(tmp_path / "rule.safetensors", doubt=len)
    with pytest.raises(ArtifactError):
        evicp.RiskControl.load(tmp_path / "rule.safetensors")
    whole = (tmp_path / "rule.safetensors").read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 40):
        (tmp_path / "damaged.safetensors").write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ArtifactError):
            Selective.load(tmp_path / "damaged.safetensors")


def test_groups_and_functions_are_saved_too(tmp_path, many):
    logits, labels = many
    groups = np.arange(1500) % 2
    rule = selective(logits, labels, error=0.2, by=groups, doubt=lambda z: -z.max(1))
    rule.save(tmp_path / "rule.safetensors")
    with pytest.raises(InputError, match="doubt= is only for a rule"):
        Selective.load(tmp_path / "rule.safetensors")
    found = Selective.load(tmp_path / "rule.safetensors", doubt=lambda z: -z.max(1))
    assert found.predict(logits, groups=groups) == rule.predict(logits, groups=groups)


# ---------------------------------------------------------------------------------------------------------------
# MAPIE 1.6


def test_the_p_values_and_the_sequence_are_mapies():
    """Its Hoeffding-Bentkus p-values are ours; for errors evicp takes the exact tail, which certifies no less."""
    methods = pytest.importorskip("mapie.risk_control.methods")
    fwer = pytest.importorskip("mapie.risk_control.fwer_control")
    ns = np.array([50, 100, 400, 1000])
    for error in (0.02, 0.05, 0.1):
        for wrong in (0, 1, 3, 8):
            theirs = methods.compute_hoeffding_bentkus_p_value(wrong / ns, ns, np.array([error]))
            ours = [np.exp(log_p_value(Fraction(wrong, int(n)), Fraction(str(error)), int(n))) for n in ns]
            assert np.allclose(np.ravel(theirs), ours, rtol=1e-9)
            assert np.all(binom.cdf(wrong, ns, error) <= np.array(ours) + 1e-12)
    logits, labels = draw(1200, 9)
    doubts, wrong = doubts_of("softmax", logits), best_labels(logits, 1)[:, 0] != labels
    thresholds = np.linspace(0.05, 1, 40)
    for error in (0.03, 0.06, 0.1):
        exact = Fraction(str(error))
        p = [binom.cdf(wrong[doubts <= t].sum(), (doubts <= t).sum(), error) for t in thresholds]
        theirs = fwer.control_fwer(np.array(p), 0.05, "fixed_sequence")
        ours = [test.certified for test in in_sequence(doubts, wrong, thresholds, exact, 0.95)]
        assert len(theirs) == sum(ours) > 0


@pytest.mark.filterwarnings("ignore:Fixed sequence testing requires:UserWarning")
@pytest.mark.parametrize("error", [0.08, 0.1, 0.15])
def test_mapies_controller_abstains_from_the_same_rows(error):
    """On real logits: its p-values of errors are the exact binomial tail, too."""
    control = pytest.importorskip("mapie.risk_control")
    sample = load_imagenet_sample()
    logits, labels = np.asarray(sample.logits, np.float64), sample.labels.astype(int)
    wrong = control.BinaryRisk(lambda true, given: given != true, lambda _, given: given == given, False)  # noqa: PLR0124
    grid = np.linspace(0.1, 0.9, 17)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(labels))
        used, new = order[:1500], order[1500:]
        theirs = control.MultiClassificationLTTController(
            lambda z: softmax(z, axis=1),
            [wrong],
            [error],
            0.95,
            best_predict_param_choice=control.abstention_rate,
            list_predict_params=grid,
            classes=np.arange(1000),
            fwer_method="fixed_sequence",
        ).calibrate(logits[used], labels[used])
        ours = selective(logits[used], labels[used], error=error, candidates=1 - grid[::-1])
        assert 1 - ours.thresholds[0] == pytest.approx(theirs.best_predict_param, abs=1e-12)
        sets, given = ours.predict(logits[new]), theirs.predict(logits[new])
        assert np.array_equal(sets.sizes == 0, np.isnan(given))
        assert np.array_equal(sets.labels, given[~np.isnan(given)].astype(int))


# ---------------------------------------------------------------------------------------------------------------
# Bad input

BAD = [
    ({"error": 0}, InputError, "error must be strictly between 0 and 1; got 0"),
    ({"error": "low"}, InputTypeError, "error must be a number"),
    ({"confidence": 1.0}, InputError, "confidence must be strictly"),
    ({"most": 0}, InputError, "most must be at least 1"),
    ({"most": K}, InputError, "most must be below the number of classes, 4; got 4"),
    ({"doubt": "fear"}, InputError, "doubt must be softmax, margin, uncertainty"),
    ({"by": "shape"}, InputError, 'by must be "class", or one group per row'),
    ({"by": [1, 2]}, InputError, "one entry per row"),
    ({"share": 1}, InputError, "share must be strictly between"),
    ({"candidates": []}, InputError, "candidates must be a list of thresholds"),
    ({"candidates": [np.nan]}, InputError, "candidates must be a list"),
    ({"coverage": 0.9}, InputTypeError, "Pass the error of answers"),
]


@pytest.mark.parametrize(("how", "error", "message"), BAD)
def test_bad_input_is_refused_by_name(many, how, error, message):
    with pytest.raises(error, match=message):
        selective(*many, **{"error": 0.1, **how})


def test_new_rows_are_checked(many):
    rule = selective(*many, error=0.1)
    with pytest.raises(evicp.errors.LogitsError, match="must have 4 classes"):
        rule.predict(np.zeros((2, 3)))
    with pytest.raises(evicp.errors.LogitsError, match="NaN"):
        rule.predict(np.full((2, K), np.nan))
    with pytest.raises(InputError, match="groups need a rule by group"):
        rule.predict(many[0], groups=np.zeros(1500, int))
    assert len(rule.predict(np.empty((0, K)))) == 0
