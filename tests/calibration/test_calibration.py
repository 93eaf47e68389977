"""From the scores of true labels to thresholds, sets, p-values and certificates."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from itertools import permutations, product

import numpy as np
import pytest
import scipy.stats

import evicp
from evicp import APS, ECP, LAC, RAPS, Calibration, Calibrator, Margin, TopK, calibrate
from evicp.calibration.new_rows import Request, sets_at_level
from evicp.errors import (
    CoverageError,
    EvicpError,
    InputError,
    InputTypeError,
    LabelsError,
    LogitsError,
    ScoreError,
    SmallCalibrationWarning,
    SuspiciousInputWarning,
)
from evicp.io import artifact
from oracles import reference_rank

K = 6
ALL = [ECP(), LAC(), APS(), RAPS(), evicp.SAPS(), TopK(), Margin()]


def make(n: int, seed: int = 0, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a classifier that is right most of the time, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return (rng.normal(size=(n, K)) + 2.5 * np.eye(K)[labels]).astype(dtype), labels


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(*make(200))


# ---------------------------------------------------------------------------------------------------------------
# Thresholds


@pytest.mark.parametrize("score", ALL, ids=lambda s: s.name)
def test_the_threshold_is_the_kth_smallest_score_of_the_true_labels(cpu_backend, score):
    z, y = make(157)
    calibration = calibrate(z, y, score)
    own = np.sort(score.scores(z)[np.arange(157), y])
    assert calibration.scores.tobytes() == own.tobytes()
    for i in range(1, 100):
        k = reference_rank(157, Fraction(i, 100))
        assert calibration.threshold(i / 100) == own[k - 1]


@pytest.mark.parametrize("coverage", [0.9, np.float32(0.9), np.float64(0.9), Fraction(9, 10), Decimal("0.9"), 1 - 0.1])
def test_every_kind_of_number_is_a_coverage(calibration, coverage):
    sets = calibration.predict(make(5)[0], coverage)
    assert sets.coverage == Fraction(9, 10)
    assert calibration.threshold(coverage) == calibration.threshold(0.9)


@pytest.mark.parametrize(
    ("coverage", "error", "message"),
    [
        (0, CoverageError, "strictly between 0 and 1; got 0"),
        (1, CoverageError, "strictly between 0 and 1; got 1"),
        (-0.1, CoverageError, "got -0.1"),
        (90, CoverageError, "Did you mean 0.9"),
        (float("nan"), CoverageError, "got nan"),
        ("0.9", InputTypeError, "got '0.9'"),
        (True, InputTypeError, "got True"),
        (None, InputTypeError, "got None"),
        ([], InputError, "got an empty one"),
        ([0.9, 2], CoverageError, "got 2"),
    ],
)
def test_what_is_no_coverage(calibration, coverage, error, message):
    with pytest.raises(error, match=message):
        calibration.predict(make(3)[0], coverage)


@pytest.mark.parametrize(
    "coverage", [0.501, 0.8, 0.9, 0.95, 0.99, 0.999, 2 / 3, Fraction(6, 7), 0.723, 1 - 1e-6, 0.55, 0.9999]
)
def test_too_few_rows_name_the_smallest_n_that_would_do(coverage):
    """The n in the warning works, and n - 1 does not."""
    with pytest.warns(SmallCalibrationWarning) as caught:
        assert Calibration(LAC(), np.zeros(1), 2).threshold(coverage) == np.inf
    assert len(caught) == 1
    needed = int(re.fullmatch(r"1 calibration row.* at least (\d+) rows\.", str(caught[0].message))[1])
    exact = evicp.input.validate.as_coverage(coverage)
    assert reference_rank(needed, exact) <= needed
    assert reference_rank(needed - 1, exact) > needed - 1


def test_just_enough_rows_do_not_warn():
    for n, coverage in ((9, 0.9), (19, 0.95), (99, 0.99), (1, 0.5)):
        calibration = Calibration(LAC(), np.arange(float(n)), 2)
        assert calibration.threshold(coverage) == n - 1


def test_a_question_that_is_remembered_is_no_other_question():
    """Each question as it is asked of a calibration that has not been asked before, in every order of two."""
    logits, labels = make(300)
    coverages = (0.9, Fraction(9, 10), 0.5, Fraction(1, 2), 0.899999999, [0.9])
    asked = [{"coverage": c, "confidence": p} for c in coverages for p in (None, 0.9, 0.99)]
    asked += [{"coverage": c, "allow_empty": False} for c in (0.9, 0.5)]
    asked += [{"coverage": c, "smoothed": True} for c in (0.9, 0.5)]
    want = [calibrate(logits, labels).predict(logits, **question) for question in asked]
    assert len({str(sets) for sets in want}) >= 8
    calibration = calibrate(logits, labels)
    for first, second in product(range(len(asked)), repeat=2):
        for number in (first, second):
            assert calibration.predict(logits, **asked[number]) == want[number]


def test_what_was_right_once_is_checked_again(calibration):
    row = np.arange(K, dtype=np.float32)
    calibration.predict(row, 0.9, allow_empty=True)
    with pytest.raises(InputTypeError, match="allow_empty must be True or False; got 1"):
        calibration.predict(row, 0.9, allow_empty=1)
    calibration.predict(row, 0.9, confidence=0.5)
    with pytest.raises(InputError, match="confidence must be strictly between 0 and 1; got 1"):
        calibration.predict(row, 0.9, confidence=1)
    for _ in range(3):
        with pytest.warns(SuspiciousInputWarning, match="Did you mean 0.9"):
            calibration.predict(row, 0.1)


def test_moved_levels_are_not_taken_for_the_one_before():
    logits, labels = make(300)
    calibration, level = calibrate(logits, labels), Fraction(9, 10)
    about = calibration.at(0.9).level.about
    few, full, none, again = (
        sets_at_level(calibration, at, about, None, Request(logits)).labels
        for at in (level, Fraction(1), Fraction(0), level)
    )
    assert (len(full), len(none)) == (300 * K, 0)
    np.testing.assert_array_equal(again, few)


def test_one_row_too_few_gives_full_sets_and_one_warning_per_coverage(cpu_backend):
    z, y = make(8)
    calibration = calibrate(z, y)
    with pytest.warns(SmallCalibrationWarning, match="8 calibration row.* coverage 0.9: .* at least 9 rows") as caught:
        sets = calibration.predict(np.where(np.arange(K) == 2, -np.inf, z), 0.9)
    assert len(caught) == 1
    assert np.all(sets.sizes == K)  # an infinite threshold takes masked labels too
    with pytest.warns(SmallCalibrationWarning) as caught:
        low, high = calibration.predict(z, [0.5, 0.95])
    assert len(caught) == 1
    assert low.sizes.max() < K
    assert np.all(high.sizes == K)


def test_masked_true_labels_push_the_threshold_to_infinity():
    """Every second true label is impossible: the guarantee of 0.9 can only be kept with full sets."""
    z, y = make(100)
    z[np.arange(0, 100, 2), y[::2]] = -np.inf
    with pytest.warns(SuspiciousInputWarning, match=r"masked .* in 50 of 100 calibration rows: 0, 2, 4, .* 42 more"):
        calibration = calibrate(z, y)
    assert np.isposinf(calibration.scores[50:]).all()
    assert np.isfinite(calibration.threshold(0.4))
    with pytest.warns(SuspiciousInputWarning, match="masked .* in 50 of 100 .*: at coverage 0.9 every set is full"):
        assert calibration.threshold(0.9) == np.inf
    with pytest.warns(SuspiciousInputWarning, match="at coverage 0.9 every set is full"):
        assert np.all(calibration.predict(z, 0.9).sizes == K)


# ---------------------------------------------------------------------------------------------------------------
# Sets


@pytest.mark.parametrize("score", ALL, ids=lambda s: s.name)
def test_several_coverages_in_one_call_equal_single_calls(cpu_backend, score):
    calibration = calibrate(*make(120), score)
    z = make(80, seed=1)[0]
    coverages = [0.9, 0.5, Fraction(19, 20), 0.05]
    for allow_empty in (True, False):
        together = calibration.predict(z, coverages, allow_empty=allow_empty)
        assert together == [calibration.predict(z, c, allow_empty=allow_empty) for c in coverages]
    assert calibration.predict(z, tuple(coverages)) == calibration.predict(z, np.array([0.9, 0.5, 0.95, 0.05]))


@pytest.mark.parametrize("score", ALL, ids=lambda s: s.name)
def test_filled_sets_hold_the_top_label_and_say_so(cpu_backend, score):
    calibration = calibrate(*make(120), score)
    z = make(300, seed=2)[0] * 0.2
    empty = calibration.predict(z, 0.05)
    filled = calibration.predict(z, 0.05, allow_empty=False)
    assert filled.filled
    assert not empty.filled
    assert filled.sizes.min() == 1
    assert score.name == "topk" or np.any(empty.sizes == 0)
    for row in np.flatnonzero(empty.sizes == 0):
        assert filled[int(row)].tolist() == [int(z[row].argmax())]
    for row in np.flatnonzero(empty.sizes):
        assert filled[int(row)].tolist() == empty[int(row)].tolist()


def test_the_top_label_of_equal_scores_is_the_highest_logit_then_the_lowest_index():
    strict = Calibration(evicp.Custom(np.zeros_like), np.full(10, -1.0), 4)
    rows = [[1.0, 3.0, 3.0, 2.0], [0.0, -1.0, -1.0, 5.0]]
    assert strict.predict(rows, 0.5).to_lists() == [[], []]
    assert strict.predict(rows, 0.5, allow_empty=False).to_lists() == [[1], [3]]


def test_sets_remember_what_was_promised(calibration):
    sets = calibration.predict(make(4)[0], 0.9)
    assert (sets.coverage, sets.n_classes, sets.score, sets.n_calibration) == (Fraction(9, 10), K, "ecp", 200)
    assert sets.offsets.dtype == np.int64
    assert sets.labels.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        sets.labels[0] = 1


def test_labels_ascend_by_score_then_descend_by_logit_then_ascend_by_index(cpu_backend):
    flat = Calibration(evicp.Custom(np.zeros_like), np.zeros(10), 4)
    assert flat.predict([[1.0, 3.0, 3.0, 2.0]], 0.5).to_lists() == [[1, 2, 3, 0]]
    halves = Calibration(evicp.Custom(lambda z: np.round(-z / 2)), np.zeros(10), 4)
    assert halves.predict([[1.2, 3.0, 2.9, 1.3]], 0.5).to_lists() == [[1, 2, 3, 0]]


def test_one_row_and_no_rows(cpu_backend, calibration):
    z = make(3, seed=4)[0]
    assert calibration.predict(z[1], 0.9) == calibration.predict(z[1:2], 0.9)
    assert calibration.predict(z[1].tolist(), 0.9).to_lists() == calibration.predict(z, 0.9).to_lists()[1:2]
    for allow_empty in (True, False):
        none = calibration.predict(np.empty((0, K)), 0.9, allow_empty=allow_empty)
        assert len(none) == 0
        assert none.to_lists() == []
    assert calibration.p_values(z[1]).shape == (1, K)
    assert calibration.p_values(np.empty((0, K))).shape == (0, K)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_allow_empty_is_true_or_false(calibration, value):
    with pytest.raises(InputTypeError, match="allow_empty must be True or False"):
        calibration.predict(make(2)[0], 0.9, allow_empty=value)


def test_another_k_is_refused(calibration):
    for call in (calibration.p_values, lambda z: calibration.predict(z, 0.9)):
        with pytest.raises(LogitsError, match="must have 6 classes, as in the calibration; got 5"):
            call(np.zeros((2, 5)))


def test_log_probabilities_are_suspicious_as_evidence_and_as_nothing_else():
    logits, labels = make(50)
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    with pytest.warns(evicp.errors.SuspiciousInputWarning, match="no positive logit"):
        calibrate(log_probabilities, labels)
    calibrate(log_probabilities, labels, "lac")  # a warning would be an error here


def test_a_share_of_misses_for_a_coverage_is_warned_of(calibration):
    z = make(5)[0]
    for coverage, meant in ((0.1, "0.9"), (0.2, "0.8"), (Fraction(1, 100), "0.99"), ([0.05, 0.1], "0.9")):
        message = rf"^coverage is the share of true labels in their sets; .* most sets empty\. Did you mean {meant}\?$"
        with pytest.warns(SuspiciousInputWarning, match=message) as caught:
            calibration.predict(z, coverage)
        assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for coverage in (0.21, [0.1, 0.5]):  # several are a curve
            calibration.predict(z, coverage)


def test_no_sets_are_of_no_rows_and_no_labels(calibration):
    sets = calibration.predict(np.empty((0, calibration.n_classes)), 0.9)
    assert not sets.filled
    assert (len(sets), sets.labels.size, sets.coverage) == (0, 0, Fraction(9, 10))


def test_class_names_from_an_iterator_outlive_the_first_batch():
    logits, labels = make(50)
    calibrator = evicp.Calibrator(class_names=(f"class {k}" for k in range(logits.shape[1])))
    calibrator.update(logits[:20], labels[:20]).update(logits[20:], labels[20:])
    assert calibrator.finish().class_names == tuple(f"class {k}" for k in range(logits.shape[1]))


@pytest.mark.parametrize("by", [None, "class", "uncertainty"])
def test_labels_by_name_are_labels_by_number(by):
    z, y = make(200)
    names = [f"class {i}" for i in range(K)]
    named = [names[i] for i in y]
    calibration = calibrate(z, y, by=by, class_names=names)
    assert calibrate(z, named, by=by, class_names=names) == calibration
    assert calibrate(z, named, by=by, class_names=iter(names)) == calibration
    batches = Calibrator(by=by, class_names=dict(enumerate(names)))
    assert batches.update(z[:70], named[:70]).update(z[70:], y[70:]).finish() == calibration
    assert calibration.p_values(z, named).tobytes() == calibration.p_values(z, y).tobytes()
    sets = calibration.predict(z, 0.5)
    assert sets.contains(named).tolist() == sets.contains(y).tolist()
    assert repr(evicp.evaluate(sets, named, z)) == repr(evicp.evaluate(sets, y, z))
    found, expected = (evicp.evaluation.metrics.class_coverage(sets, truth) for truth in (named, y))
    assert found.coverage.tobytes() == expected.coverage.tobytes()


def test_labels_by_name_choose_the_score_as_numbers_do():
    z, y = make(200)
    names = [f"class {i}" for i in range(K)]
    named = [names[i] for i in y]
    assert calibrate(z, named, "auto", class_names=iter(names)) == calibrate(z, y, "auto", class_names=names)


def test_names_without_class_names_are_refused(calibration):
    z = make(3)[0]
    for door in (calibration.predict(z, 0.9).contains, lambda names: calibration.p_values(z, names)):
        with pytest.raises(InputTypeError, match="labels must be integers"):
            door(["a", "b", "c"])


def test_class_names_travel_along():
    names = [f"class {i}" for i in range(K)]
    calibration = calibrate(*make(50), class_names=names)
    assert calibration.class_names == tuple(names)
    sets = calibration.predict(make(3)[0], 0.9)
    assert sets.names(0) == [f"class {i}" for i in sets[0]]
    for bad in (names[:-1], "abcdef", ["a\0b", *names[1:]]):
        with pytest.raises(EvicpError, match="class_names must"):
            calibrate(*make(50), class_names=bad)


# ---------------------------------------------------------------------------------------------------------------
# p-values


def test_p_values_count_the_scores_at_least_as_large(cpu_backend, calibration):
    z = make(20, seed=5)[0]
    p = calibration.p_values(z)
    scores = ECP().scores(z)
    for row in range(20):
        for label in range(K):
            at_least = int(np.sum(calibration.scores >= scores[row, label]))
            assert p[row, label] == (1 + at_least) / 201
    labels = np.arange(20) % K
    assert np.array_equal(calibration.p_values(z, labels), p[np.arange(20), labels])


def test_p_values_of_masked_labels_are_the_smallest_possible(calibration):
    p = calibration.p_values([[1.0, 2.0, -np.inf, 0.0, 0.0, 0.0]])
    assert p[0, 2] == 1 / 201


def test_p_values_of_exchangeable_rows_are_super_uniform(cpu_backend):
    """Pooled over calibrations, P(p <= t) <= t: what a p-value means."""
    p = []
    for seed in range(150):
        z, y = make(60, seed=seed)
        p += calibrate(z[:39], y[:39], "aps").p_values(z[39:], y[39:]).tolist()
    for t in (0.05, 0.1, 0.25, 0.5):
        share = np.mean(np.array(p) <= t + 1e-12)
        assert share == pytest.approx(t, abs=0.03)


# ---------------------------------------------------------------------------------------------------------------
# Batches and shards


@pytest.mark.parametrize("score", ALL, ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_batches_and_shards_equal_one_call_to_the_bit(cpu_backend, score, dtype):
    z, y = make(103, dtype=dtype)
    whole = calibrate(z, y, score)
    batches = Calibrator(score)
    for start in range(0, 103, 10):
        assert batches.update(z[start : start + 10], y[start : start + 10]) is batches
    assert batches.n == 103
    shards = [Calibrator(score).update(z[i::6], y[i::6]).update(z[i + 3 :: 6], y[i + 3 :: 6]) for i in range(3)]
    merged = Calibrator(score).merge(*shards)
    assert shards[0].merge(shards[2], shards[1]).finish() == whole
    assert batches.finish() == merged.finish() == whole
    assert batches.finish().scores.tobytes() == whole.scores.tobytes()


def test_a_calibrator_goes_on_after_finish():
    z, y = make(60)
    calibrator = Calibrator("lac").update(z[:30], y[:30])
    first = calibrator.finish()
    kept = first.scores.copy()
    assert calibrator.update(z[30:], y[30:]).finish() == calibrate(z, y, "lac")
    assert np.array_equal(first.scores, kept)


def test_an_empty_calibrator_is_made_alike_and_shares_no_rows():
    z, y = make(60)
    full = Calibrator("lac", by="class", class_names=[*"abcdef"]).update(z[:30], y[:30])
    worker = full.empty().update(z[30:], y[30:])
    assert (full.n, worker.n) == (30, 30)
    assert full.restore(worker.content(), 6).finish() == calibrate(z, y, "lac", by="class", class_names=[*"abcdef"])


def test_merge_refuses_what_does_not_belong_together_and_changes_nothing():
    z, y = make(20)
    mine = Calibrator("lac").update(z, y)
    before = mine.finish()
    good = Calibrator("lac").update(z, y)
    with pytest.raises(InputError, match="only calibrators of one score can be merged"):
        mine.merge(good, Calibrator("ecp").update(z, y))
    with pytest.raises(InputError, match="only calibrators of one score"):
        mine.merge(Calibrator(LAC(temperature=2.0)).update(z, y))
    with pytest.raises(InputError, match="only calibrators of one K can be merged; got 6 and 5"):
        mine.merge(good, Calibrator("lac").update(z[:, :5], y % 5))
    with pytest.raises(InputTypeError, match=r"only a Calibrator can be merged; got a Calibration\. Merge the"):
        mine.merge(good, good.finish())
    with pytest.raises(InputError, match="a calibrator cannot be merged twice"):
        mine.merge(good, good)
    with pytest.raises(InputError, match="a calibrator cannot be merged twice"):
        mine.merge(mine)
    assert mine.finish() == before


def test_what_merges_into_an_empty_calibrator_must_fit_together():
    z, y = make(20)

    def one(**more):
        return Calibrator("lac").update(z, y, **more)

    with pytest.raises(InputError, match="only calibrators of one K can be merged; got 6 and 5"):
        Calibrator("lac").merge(one(), Calibrator("lac").update(z[:, :5], y % 5))
    for pair in ((one(), one(weights=np.ones(20))), (one(weights=np.ones(20)), one())):
        with pytest.raises(InputError, match="the same kind of weights"):
            Calibrator("lac").merge(*pair)
    empty = Calibrator("lac")
    with pytest.raises(InputError, match="the same kind of weights"):
        empty.merge(one(), one(weights=np.ones(20)))
    assert empty.n == 0
    assert empty.merge(one(), one()).finish().n == 40


def test_names_are_merged_if_they_are_the_same():
    z, y = make(20)
    names, others = list("abcdef"), list("bacdef")
    named = Calibrator("lac", class_names=names).update(z, y)
    with pytest.raises(InputError, match="the same class names in the same order"):
        named.merge(Calibrator("lac", class_names=others).update(z, y))
    assert Calibrator("lac").update(z, y).merge(named).finish().class_names == tuple(names)


def test_an_empty_first_batch_does_not_silence_warnings():
    z, y = make(50)
    calibrator = Calibrator().update(z[:0], y[:0])
    with pytest.warns(SuspiciousInputWarning, match="most rows have no positive logit"):
        calibrator.update(z - 50, y)


def test_log_probabilities_at_prediction_are_noticed():
    z, y = make(200)
    calibration = calibrate(z, y)
    with pytest.warns(SuspiciousInputWarning, match="most rows have no positive logit"):
        calibration.predict(z - 50, 0.9)
    calibration.predict(z[:1] - 50, 0.9)  # one row may be like that
    calibrate(z, y, "lac").predict(z - 50, 0.9)


def test_ecp_of_two_classes_says_where_it_says_nothing():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    z = rng.normal(size=(400, 2)) + 1.2 * np.eye(2)[y] + 2
    right = np.mean(z[np.arange(400), y] > z[np.arange(400), 1 - y])
    with pytest.warns(SuspiciousInputWarning, match=rf"above a coverage of about {right:.2f} every set is full"):
        calibration = calibrate(z, y)
    assert calibration.predict(z, 0.9).sizes.min() == 2
    certificate = calibration.certificate(0.9, evicp.evaluate(calibration.predict(z, 0.9), y))
    assert certificate.tied
    assert certificate.observed["compatible"]  # all rows are covered: more is no contradiction
    assert "scores tie at the threshold" in " ".join(str(certificate).split())
    assert not calibrate(z, y, "lac").certificate(0.9).tied


@pytest.mark.parametrize(
    ("logits", "labels", "error"),
    [
        (np.full((2, K), np.nan), [0, 1], LogitsError),
        (np.array([[0.0] * K, [np.inf] * K]), [0, 1], LogitsError),
        (np.full((2, K), -np.inf), [0, 1], LogitsError),
        (np.zeros((2, K - 1)), [0, 1], LogitsError),
        (np.zeros((2, K)), [0, K], LabelsError),
        (np.zeros((2, K)), [0, -1], LabelsError),
        (np.zeros((2, K)), [0], LabelsError),
        (np.zeros((2, K)), [0.0, 1.0], InputTypeError),
        (np.zeros(K), [0], LogitsError),
        (np.zeros((2, K), complex), [0, 1], InputTypeError),
    ],
)
def test_an_update_that_fails_leaves_the_calibrator_unchanged(cpu_backend, logits, labels, error):
    z, y = make(30)
    calibrator = Calibrator("lac").update(z, y)
    with pytest.raises(error):
        calibrator.update(logits, labels)
    assert (calibrator.n, calibrator.n_classes) == (30, K)
    assert calibrator.finish() == calibrate(z, y, "lac")


def test_a_first_update_that_fails_fixes_no_number_of_classes():
    calibrator = Calibrator("lac")
    with pytest.raises(LogitsError):
        calibrator.update(np.full((2, 3), np.nan), [0, 1])
    assert calibrator.n_classes is None
    calibrator.update(*make(5))
    assert calibrator.finish().n_classes == K


def test_no_rows_are_fine_in_update_and_an_error_at_the_end(cpu_backend):
    calibrator = Calibrator("lac").update(np.empty((0, K)), np.empty(0, int))
    assert calibrator.n == 0
    with pytest.raises(LogitsError, match="calibration needs at least one row; got none"):
        calibrator.finish()
    with pytest.raises(LogitsError, match="at least one row"):
        Calibrator("lac").finish()
    with pytest.raises(LogitsError, match="at least one row"):
        calibrate(np.empty((0, K)), [])
    calibrator.update(*make(10)).update(np.empty((0, K)), [])
    assert calibrator.finish() == calibrate(*make(10), "lac")


def test_labels_of_every_integer_kind():
    z, y = make(40)
    wanted = calibrate(z, y, "lac")
    for kind in (np.int8, np.uint8, np.int32, np.uint64):
        assert calibrate(z, y.astype(kind), "lac") == wanted
    assert calibrate(z.tolist(), y.tolist(), "lac") == wanted


def test_probabilities_for_logits_are_warned_of():
    z, y = make(40)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    with pytest.warns(SuspiciousInputWarning, match="look like probabilities"):
        calibration = calibrate(p, y, "lac")
    with pytest.warns(SuspiciousInputWarning, match="look like probabilities"):
        calibration.predict(p, 0.9)


# ---------------------------------------------------------------------------------------------------------------
# A user's own score


def test_a_callable_is_a_score():
    def squared_distance(z):
        return (z.max(1, keepdims=True) - z) ** 2

    z, y = make(99)
    calibration = calibrate(z, y, squared_distance)
    own = np.sort(squared_distance(z)[np.arange(99), y])
    assert np.array_equal(calibration.scores, own)
    new = make(50, seed=3)[0]
    assert np.array_equal(calibration.predict(new, 0.9).mask(), squared_distance(new) <= own[89])
    assert repr(calibration) == "Calibration(squared_distance, 99 rows, 6 classes)"


def test_a_callable_that_fails_leaves_its_own_error():
    def broken(z):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        calibrate(*make(9), broken)


def test_a_callable_that_returns_nonsense():
    with pytest.raises(ScoreError, match="shape"):
        calibrate(*make(9), lambda z: z.sum(1))


# ---------------------------------------------------------------------------------------------------------------
# The certificate


def test_a_certificate_states_what_may_be_promised(calibration):
    certificate = calibration.certificate(0.9, date="2024-09-09")
    k, n = 181, 200
    assert certificate.rank == k == reference_rank(n, Fraction(9, 10))
    assert (certificate.n, certificate.n_classes, certificate.coverage) == (n, K, 0.9)
    assert certificate.threshold == calibration.scores[k - 1]
    assert certificate.gamma == pytest.approx((n - 20) / (n + 1))
    assert certificate.uncertainty == pytest.approx(2 / (n + 1))
    assert certificate.expected_coverage == pytest.approx(k / (n + 1))
    beta = scipy.stats.beta(k, n + 1 - k)
    assert certificate.coverage_interval == pytest.approx((beta.ppf(0.025), beta.ppf(0.975)), abs=1e-12)
    assert (certificate.score, certificate.parameters["stabilizer"]) == ("ecp", "scaled")
    assert (certificate.version, certificate.date) == (evicp.__version__, "2024-09-09")
    assert certificate.observed is None
    assert certificate.checksum == artifact.checksum(calibration)


def test_a_certificate_judges_an_evaluation(calibration):
    z, y = make(500, seed=9)
    sets = calibration.predict(z, 0.9)
    evaluation = evicp.evaluate(sets, y)
    observed = calibration.certificate(0.9, evaluation).observed
    law = scipy.stats.betabinom(500, 181, 20)
    assert observed["coverage"] == evaluation.coverage
    assert (observed["low"], observed["high"]) == (law.ppf(0.025) / 500, law.ppf(0.975) / 500)
    assert observed["compatible"] == (observed["low"] <= evaluation.coverage <= observed["high"])
    wrong = evicp.evaluate(sets, (y + 1) % K)
    assert not calibration.certificate(0.9, wrong).observed["compatible"]


def test_a_certificate_refuses_an_evaluation_of_something_else(calibration):
    z, y = make(50, seed=9)
    evaluation = evicp.evaluate(calibration.predict(z, 0.9), y)
    with pytest.raises(InputTypeError, match=r"what evicp\.evaluate returns; got a PredictionSets"):
        calibration.certificate(0.9, calibration.predict(z, 0.9))
    with pytest.raises(InputError, match=r"of sets of this calibration at coverage 0\.95; got coverage 0\.9"):
        calibration.certificate(0.95, evaluation)
    with pytest.raises(InputError, match="n = 200"):
        calibrate(*make(100)).certificate(0.9, evaluation)
    with pytest.raises(InputError, match=r"of this calibration \(lac, marginal\); got sets of ecp, marginal\."):
        calibrate(*make(200), "lac").certificate(0.9, evaluation)
    with pytest.raises(InputError, match=r"of this calibration \(ecp, class\); got sets of ecp, marginal\."):
        calibrate(*make(200), by="class").certificate(0.5, evicp.evaluate(calibration.predict(z, 0.5), y))
    with pytest.raises(InputError, match="n = None"):
        calibration.certificate(0.9, evicp.evaluate(evicp.Base().predict(z, 0.9), y))


def test_filled_sets_may_cover_more():
    z, y = make(400)
    calibration = calibrate(z, y, "lac")
    new, truth = make(400, seed=1)
    filled = evicp.evaluate(calibration.predict(new, 0.3, allow_empty=False), truth)
    observed = calibration.certificate(0.3, filled).observed
    assert filled.coverage > calibration.reliability(0.3).observed_interval(400)[1]
    assert (observed["compatible"], observed["high"]) == (True, 1.0)
    as_if = dataclasses.replace(filled, filled=False)
    assert "MORE than" in str(calibration.certificate(0.3, as_if))


def test_a_certificate_prints_and_travels(calibration):
    z, y = make(50, seed=9)
    certificate = calibration.certificate(0.9, evicp.evaluate(calibration.predict(z, 0.9), y), date="2024-09-09")
    content = json.loads(certificate.to_json())
    assert content["threshold"] == certificate.threshold
    assert content["coverage_interval"] == list(certificate.coverage_interval)
    assert set(content) == {field.name for field in dataclasses.fields(certificate)}
    text = str(certificate)
    assert "not a statistical confidence" in text
    assert "exchangeable" in text
    assert certificate.checksum in text
    assert certificate.to_html().count("<tr>") == len(certificate._lines())


def test_a_certificate_without_a_finite_threshold_is_still_json():
    with pytest.warns(SmallCalibrationWarning):
        certificate = calibrate(*make(5)).certificate(0.9)
    assert "none: 5 rows are too few, and every set is full" in str(certificate)
    assert json.loads(certificate.to_json())["threshold"] == "inf"
    assert certificate.coverage_interval == (1.0, 1.0)
    assert certificate.expected_coverage == 1


def test_the_checksum_of_the_saved_file_is_the_certificates(calibration, tmp_path):
    path = tmp_path / "calibration.safetensors"
    calibration.save(path)
    assert sha256(path.read_bytes()).hexdigest() == calibration.certificate(0.9).checksum
    again = evicp.load(path)
    assert again == calibration
    assert again.certificate(0.9).checksum == calibration.certificate(0.9).checksum


def test_the_checksum_sees_every_part(calibration):
    changed = [
        dataclasses.replace(calibration, scores=np.nextafter(calibration.scores, 1)),
        dataclasses.replace(calibration, score=ECP(temperature=1.0000001)),
        dataclasses.replace(calibration, class_names=tuple("abcdef")),
        dataclasses.replace(calibration, n_classes=K + 1),
        dataclasses.replace(calibration, scores=calibration.scores[:-1]),
    ]
    sums = {artifact.checksum(c) for c in [calibration, *changed]}
    assert len(sums) == len(changed) + 1


# ---------------------------------------------------------------------------------------------------------------
# The object


def test_equality_is_by_value(calibration):
    assert calibration == calibrate(*make(200))
    assert calibration != calibrate(*make(200), "lac")
    assert calibration != calibrate(*make(201))
    assert calibration != "a calibration"
    with pytest.raises(TypeError, match="unhashable"):
        hash(calibration)


def test_a_calibration_cannot_be_changed(calibration):
    with pytest.raises(dataclasses.FrozenInstanceError):
        calibration.n_classes = 3
    with pytest.raises(ValueError, match="read-only"):
        calibration.scores[0] = 0


def test_reliability_is_that_of_n_rows(calibration):
    assert calibration.reliability(0.9) == evicp.Reliability(200, Fraction(9, 10))


def test_rows_never_count_twice_whatever_way_they_were_merged():
    z, y = make(50)
    a, b = (Calibrator("lac").update(z, y) for _ in range(2))
    twice = r"^a calibrator cannot be merged twice"
    a.merge(b)
    with pytest.raises(InputError, match=twice):
        a.merge(b)
    with pytest.raises(InputError, match=twice):
        b.merge(a)
    with pytest.raises(InputError, match=twice):
        Calibrator("lac").merge(a, b)
    with pytest.raises(InputError, match=twice):
        a.merge(a)
    assert a.finish().n == 100


def test_the_law_of_groups_and_weights_is_in_their_certificates():
    z, y = make(200)
    for options in ({"by": "class"}, {"weights": np.ones(200)}):
        with pytest.raises(InputError, match=r"not marginal but (class|weighted): certificate\(\) has its laws"):
            calibrate(z, y, "lac", **options).reliability(0.9)


def test_levels_of_full_sets_beside_others_by_class():
    z, y = make(400)
    calibration = calibrate(z, y, "lac", by="class")
    full, some = (
        sets_at_level(calibration, level, calibration.at(coverage).level.about, None, Request(z))
        for level, coverage in ((Fraction(1), 0.9), (Fraction(1, 2), 0.5))
    )
    assert np.all(full.sizes == z.shape[1])
    assert some == calibration.predict(z, 0.5)


def test_the_memory_of_whoever_makes_a_calibration_is_not_its_own():
    scores = np.linspace(0, 1, 50)
    calibration = Calibration(LAC(), scores, 3)
    before = calibration.threshold(0.5)
    scores[:] = 7.0
    assert calibration.threshold(0.5) == before
    with pytest.raises(ValueError, match="read-only"):
        calibration.scores[0] = 0.0


def test_frames_whose_rows_have_another_order_are_refused():
    pd = pytest.importorskip("pandas")
    z, y = make(60)
    frame, labels = pd.DataFrame(z), pd.Series(y)
    for fine in (labels, labels.set_axis(range(100, 160)), labels.sample(frac=1, random_state=0).to_numpy()):
        calibrate(frame, fine, "lac")
    with pytest.raises(LabelsError, match="the same rows in the same order; by index, row 0 is 0 in logits"):
        calibrate(frame, labels.sample(frac=1, random_state=0), "lac")


# ---------------------------------------------------------------------------------------------------------------
# More rows for a calibration that exists


@pytest.mark.parametrize("score", ALL, ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extended_by_parts_is_all_rows_at_once_to_the_bit(cpu_backend, score, dtype, tmp_path):
    z, y = make(300, dtype=dtype)
    whole = calibrate(z, y, score)
    some = calibrate(z[:100], y[:100], score)
    some.save(tmp_path / "some.safetensors")
    loaded = evicp.load(tmp_path / "some.safetensors")
    for start in (some, loaded):
        grown = start.extended(z[100:101], y[100:101]).extended(z[101:], y[101:])
        assert grown == whole
        assert grown.scores.tobytes() == whole.scores.tobytes()
    assert some == loaded
    assert some.extended(z[:0], y[:0]) is some


def test_extended_keeps_what_a_calibration_knows():
    z, y = make(200)
    names = [f"class {i}" for i in range(K)]
    chosen = calibrate(z, y, "auto", class_names=names)
    grown = chosen.extended(z[:3], [names[i] for i in y[:3]])
    assert (grown.n, grown.chosen_on, grown.class_names) == (chosen.n + 3, chosen.chosen_on, chosen.class_names)
    assert chosen.n + chosen.chosen_on == 200
    assert not grown.scores.flags.writeable


def test_what_cannot_extend_a_calibration(calibration):
    z, y = make(5)
    with pytest.raises(InputError, match="groups need a calibration with by="):
        calibration.extended(z, y, groups=[0] * 5)
    with pytest.raises(InputError, match="weights need a weighted calibration"):
        calibration.extended(z, y, weights=np.ones(5))
    with pytest.raises(LogitsError, match="logits must have 6 classes"):
        calibration.extended(z[:, :5], y % 5)
    with pytest.raises(LabelsError, match="got 4 labels for 5 rows"):
        calibration.extended(z, y[:4])
    with pytest.warns(SuspiciousInputWarning, match="look like probabilities"):
        calibration.extended(np.full((2, K), 1 / K), [0, 1])
    calibration.extended(-np.abs(z[:1]), y[:1])  # one row without evidence is no sign of anything


def test_coverage_of_an_extended_calibration_is_exact_on_average():
    """Of n + 1 exchangeable rows without ties, the last one is covered in exactly the share k / (n + 1) of orders."""
    z, y = make(12)
    covered = 0
    for last in range(12):
        first, others = (last + 1) % 12, [i for i in range(12) if i not in (last, (last + 1) % 12)]
        calibration = calibrate(z[[first]], y[[first]], "lac").extended(z[others], y[others])
        covered += int(calibration.predict(z[last], 0.75).contains(y[[last]])[0])
    assert covered == reference_rank(11, Fraction(3, 4)) == 9


# ---------------------------------------------------------------------------------------------------------------
# Rows that are tested and then join


@pytest.mark.parametrize("score", ALL, ids=lambda s: s.name)
def test_online_p_values_are_those_of_the_calibration_extended_row_by_row(cpu_backend, score):
    z, y = make(100)
    z = np.round(z)  # ties
    calibration = calibrate(z[:40], y[:40], score)
    p = calibration.p_values_online(z[40:], y[40:])
    for row in range(60):
        assert p[row] == calibration.p_values(z[40 + row], y[[40 + row]])[0]
        calibration = calibration.extended(z[[40 + row]], y[[40 + row]])


def test_online_p_values_by_counting():
    z, y = make(57, 3)
    z = np.round(z)
    scores = LAC().scores(z)[np.arange(57), y]
    p = calibrate(z[:20], y[:20], "lac").p_values_online(z[20:], y[20:])
    for t in range(1, 38):
        s = scores[19 + t]
        expected = Fraction(1 + int(np.sum(scores[: 19 + t] >= s)), 20 + t)
        assert p[t - 1] == float(expected)


def test_online_p_values_do_not_depend_on_how_many_come_at_once(cpu_backend):
    z, y = make(400)
    z = np.round(2 * z)
    calibration = calibrate(z[:100], y[:100])
    whole = calibration.p_values_online(z[100:], y[100:])
    parts = []
    for start, stop in ((100, 101), (101, 103), (103, 250), (250, 400)):
        parts.append(calibration.p_values_online(z[start:stop], y[start:stop]))
        calibration = calibration.extended(z[start:stop], y[start:stop])
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert calibration.p_values_online(z[:0], y[:0]).shape == (0,)
    assert calibration.p_values_online(z[0], y[:1]) == calibration.p_values_online(z[:1], y[:1])


def test_online_p_values_of_exchangeable_rows_have_uniform_ranks():
    """The rank of a row among those before it is uniform, and independent of the ranks before: all orders alike."""
    z, y = make(5)
    seen = set()
    for order in map(list, permutations(range(5))):
        p = calibrate(z[order[:1]], y[order[:1]], "lac").p_values_online(z[order[1:]], y[order[1:]])
        seen.add(tuple(p))
    assert seen == set(product(*([(i + 1) / t for i in range(t)] for t in range(2, 6))))


def test_online_p_values_are_of_marginal_calibrations_only():
    z, y = make(200)
    for options in ({"by": "class"}, {"weights": np.ones(200)}):
        with pytest.raises(InputError, match="one exchangeable sequence; this calibration is not marginal"):
            calibrate(z, y, **options).p_values_online(z, y)


def test_p_values_of_one_row():
    z, y = make(100)
    calibration = calibrate(z, y, "lac")
    np.testing.assert_array_equal(calibration.p_values(z[0]), calibration.p_values(z[:1]))
    np.testing.assert_array_equal(calibration.p_values(z[0], [y[0]]), calibration.p_values(z[:1], y[:1]))


def test_thresholds_of_labels_exist_where_they_do_not_depend_on_the_row():
    z, y = make(300)
    plain = calibrate(z, y, "lac")
    assert plain.label_thresholds(0.8).tolist() == [plain.threshold(0.8)]
    by_class = calibrate(z, y, "lac", by="class")
    np.testing.assert_array_equal(by_class.label_thresholds(0.8), by_class.thresholds(0.8))
    for options in ({"by": "uncertainty"}, {"by": y % 2}, {"weights": np.ones(300)}):
        with pytest.raises(InputError, match=r"^only marginal calibrations and those by class can be built in"):
            calibrate(z, y, "lac", **options).label_thresholds(0.8)


def test_a_batch_without_rows_has_no_say_in_the_precision():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 50)
    logits = (rng.normal(size=(50, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
    batches = Calibrator("lac").update(np.empty((0, 4)), []).update(logits, labels)
    assert batches.finish() == calibrate(logits, labels, "lac")


def test_a_share_of_misses_is_noticed_where_it_is_built_in():
    calibration = calibrate(3 * np.eye(3).repeat(20, 0), np.arange(3).repeat(20), "lac")
    with pytest.warns(SuspiciousInputWarning, match=r"Did you mean 0\.9"):
        calibration.label_thresholds(0.1)


def test_a_notebook_shows_what_a_calibration_is():
    def hostile(z):
        return z

    hostile.__name__ = "<script>alert(1)</script>"
    z, y = make(60)
    calibration = calibrate(z, y, hostile)
    plain = calibration._repr_html_()
    assert "<script>" not in plain
    assert re.findall(r">([^<]*)</td>", plain) == [
        *("score", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        *("rows", "60"),
        *("classes", f"{z.shape[1]}"),
        *("guarantee", "marginal"),
        *("first look", str(calibration.first_look)),
    ]
    grouped = evicp.calibrate(z, y, by=np.arange(60) % 3)
    others = dataclasses.replace(grouped, chosen_on=1234, folds=5)._repr_html_()
    for fact in ("by group", "3", "1,234 other rows", "5"):
        assert f">{fact}</td>" in others
    assert ">effective rows</td>" in evicp.calibrate(z, y, weights=np.ones(60))._repr_html_()
