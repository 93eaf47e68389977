"""Weighted calibration against its definition in exact fractions; label shift against what made the data."""

from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import evicp
from evicp import LAC, Calibrator, calibrate, estimate_class_frequencies, label_shift_weights
from evicp.calibration.laws import label_shift
from evicp.calibration.laws import weighted as shift
from evicp.errors import ArtifactError, InputError, InputTypeError, LabelsError, SmallCalibrationWarning

K = 4
pytestmark = pytest.mark.filterwarnings("ignore:the weights leave")


def make(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) + 2 * np.eye(K)[labels], labels


def reference_weighted_threshold(scores, weights, new_weight, coverage: Fraction) -> float:
    """The smallest s such that the weight of scores up to s is the share `coverage` of all, the new point at +inf."""
    total = sum(map(Fraction, weights)) + Fraction(new_weight)
    for s in sorted(set(scores)):
        if sum(Fraction(w) for x, w in zip(scores, weights, strict=True) if x <= s) >= coverage * total:
            return s
    return float("inf")


small = st.integers(0, 7).map(float)  # sums of these are exact, so that ties with the coverage occur and are decided


@given(
    rows=st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 2.0, np.inf]), small), min_size=1, max_size=12),
    new=st.lists(small, min_size=1, max_size=4),
    coverage=st.fractions(Fraction(1, 20), Fraction(19, 20), max_denominator=20),
)
def test_thresholds_and_p_values_are_those_of_the_definition(rows, new, coverage):
    scores, weights = (np.array(x) for x in zip(*sorted(rows, key=lambda row: row[0]), strict=True))
    if not weights.any():
        return
    found = shift.weighted_thresholds(scores, weights, np.array(new), coverage)
    expected = [reference_weighted_threshold(scores, weights, w, coverage) for w in new]
    assert found.tolist() == expected
    for threshold, w in zip(found, new, strict=True):
        for s in (-2.0, -1.0, 0.0, 0.2, 0.5, 1.0, 2.0, 3.0, np.inf):
            p = shift.weighted_p_values(scores, weights, np.array([s]), np.array([w]))[0]
            above = sum(Fraction(x) for y, x in zip(scores, weights, strict=True) if y >= s) + Fraction(w)
            exact = above / (sum(map(Fraction, weights)) + Fraction(w))
            assert p == pytest.approx(float(exact), abs=1e-15)
            assert (s <= threshold) == (exact > 1 - coverage)


@pytest.mark.parametrize("weight", [1.0, 0.37, 1e-300, 3e200, 7])
def test_equal_weights_give_the_unweighted_sets_exactly(weight):
    z, y = make(199)
    new, truth = make(50, 1)
    plain, weighted = calibrate(z, y), calibrate(z, y, weights=np.full(199, weight))
    for i in range(1, 100):
        limit = weighted.predict(new, i / 100, weights=np.full(50, weight))
        assert limit.to_lists() == plain.predict(new, i / 100).to_lists()
    np.testing.assert_array_equal(weighted.p_values(new, weights=np.full(50, weight)), plain.p_values(new))
    np.testing.assert_array_equal(
        weighted.p_values(new, truth, weights=np.full(50, weight)), plain.p_values(new, truth)
    )


@pytest.mark.parametrize("largest", [1e308, 2.0**1023, 1.7e308])
def test_weights_near_the_largest_double(largest):
    weights = np.array([0.31, 0.77, 1.0, 0.5]) * largest
    scores, new = np.arange(4.0), np.array([0.0, 0.3, 1.0]) * largest
    for coverage in (Fraction(1, 5), Fraction(1, 2), Fraction(4, 5)):
        found = shift.weighted_thresholds(scores, weights, new, coverage)
        assert found.tolist() == [reference_weighted_threshold(scores, weights, w, coverage) for w in new]
    p = shift.weighted_p_values(scores, weights, np.full(3, 1.5), new)
    assert p == pytest.approx([1.5 / 2.58, 1.8 / 2.88, 2.5 / 3.58])


def test_each_row_has_the_threshold_of_its_weight(cpu_backend):
    z, y = make(120)
    new, truth = make(40, 1)
    rng = np.random.default_rng(2)
    weights, new_weights = rng.exponential(size=120), 10 * rng.exponential(size=40)
    new_weights[7] = 1e6  # more than the calibration can make up for: a full set
    calibration = calibrate(z, y, "lac", weights=weights)
    scores = LAC().scores(z)[np.arange(120), y]
    sets = calibration.predict(new, 0.8, weights=new_weights)
    dense = LAC().scores(new)
    for i in range(40):
        limit = reference_weighted_threshold(scores, weights, new_weights[i], Fraction(4, 5))
        assert sorted(sets[i].tolist()) == np.flatnonzero(dense[i] <= limit).tolist()
    assert len(sets[7]) == K
    assert sets.guarantee == "weighted"
    p = calibration.p_values(new, weights=new_weights)
    np.testing.assert_array_equal(sets.mask(), p > 1 - 0.8 + 1e-12)
    np.testing.assert_array_equal(calibration.p_values(new, truth, weights=new_weights), p[np.arange(40), truth])


def test_the_weights_of_a_caller_stay_writeable():
    given = np.array([1.0, 2.0])
    weights = shift.Weights(given)
    given[0] = 3.0
    with pytest.raises(ValueError, match="read-only"):
        weights.rows[0] = 1.0


def test_weights_stay_with_their_scores():
    z, y = make(300)
    weights = np.random.default_rng(1).exponential(size=300)
    calibration = calibrate(z, y, "lac", weights=weights)
    scores = LAC().scores(z)[np.arange(300), y]
    pairs = sorted(zip(scores.tolist(), weights.tolist(), strict=True))
    assert list(zip(calibration.scores.tolist(), calibration.weights.rows.tolist(), strict=True)) == pairs
    apart = shift.weighted_thresholds(calibration.scores, np.sort(weights), np.array([1.0]), Fraction(9, 10))
    together = shift.weighted_thresholds(calibration.scores, calibration.weights.rows, np.array([1.0]), Fraction(9, 10))
    assert apart != together  # sorting weights apart from scores would be seen here


def test_rows_of_no_weight_say_nothing():
    z, y = make(200)
    weights = np.random.default_rng(0).exponential(size=200) * (np.arange(200) % 2)
    kept = calibrate(z[1::2], y[1::2], weights=weights[1::2])
    everything = calibrate(z, y, weights=weights)
    assert (
        everything.predict(z, 0.9, weights=np.ones(200)).to_lists()
        == kept.predict(z, 0.9, weights=np.ones(200)).to_lists()
    )


def test_batches_and_shards():
    z, y = make(200)
    weights = np.random.default_rng(0).exponential(size=200)
    first = (
        Calibrator().update(z[:50], y[:50], weights=weights[:50]).update(z[50:120], y[50:120], weights=weights[50:120])
    )
    second = Calibrator().update(z[120:], y[120:], weights=weights[120:])
    assert first.merge(second).finish() == calibrate(z, y, weights=weights)
    classes = [0.5, 1.0, 2.0, 0.1]
    shards = [Calibrator(class_weights=classes).update(z[a:b], y[a:b]) for a, b in ((0, 90), (90, 200))]
    assert shards[0].merge(shards[1]).finish() == calibrate(z, y, class_weights=classes)


@pytest.mark.parametrize("classes", [None, [0.5, 1.0, 2.0, 4.0]])
def test_weighted_calibrations_take_more_rows(classes, tmp_path):
    z, y = make(200)
    z, w = np.round(z), np.arange(200.0) % 7  # ties: each weight must stay with its row

    def options(rows):
        return {"weights": w[rows]} if classes is None else {"class_weights": classes}

    some = calibrate(z[:120], y[:120], "lac", **options(slice(120)))
    some.save(tmp_path / "some.safetensors")
    later = {"weights": w[120:]} if classes is None else {}
    grown = evicp.load(tmp_path / "some.safetensors").extended(z[120:], y[120:], **later)
    whole = calibrate(z, y, "lac", **options(slice(200)))
    assert grown == whole
    assert grown.weights.rows.tobytes() == whole.weights.rows.tobytes()
    with pytest.raises(InputError, match="weights"):
        some.extended(z, y, **({} if classes is None else {"weights": w}))


def test_what_cannot_be_combined():
    z, y = make(100)
    weighted = Calibrator().update(z, y, weights=np.ones(100))
    with pytest.raises(InputError, match=r"^weights must be given with every batch or with none\.$"):
        weighted.update(z, y)
    with pytest.raises(InputError, match=r"^weights must be given with every batch or with none\.$"):
        Calibrator().update(z, y).update(z, y, weights=np.ones(100))
    for other in (Calibrator().update(z, y), Calibrator(class_weights=np.ones(K)).update(z, y)):
        with pytest.raises(InputError, match=r"^only calibrators with the same kind of weights can be merged\.$"):
            weighted.merge(other)
    with pytest.raises(InputError, match=r"^weights and groups cannot be combined"):
        calibrate(z, y, by="class", weights=np.ones(100))
    with pytest.raises(InputError, match=r"^weights and groups cannot be combined"):
        calibrate(z, y, by="class", class_weights=np.ones(K))
    with pytest.raises(InputError, match=r"^pass the rows' weights or class_weights, not both\.$"):
        calibrate(z, y, weights=np.ones(100), class_weights=np.ones(K))
    calibration = weighted.finish()
    with pytest.raises(InputError, match=r"^confidence needs the Beta law, which weighted calibrations do not follow"):
        calibration.predict(z, 0.9, weights=np.ones(100), confidence=0.9)
    with pytest.raises(InputError, match=r"^this calibration has weights, not one threshold"):
        calibration.threshold(0.9)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (np.ones(99), InputError, r"^weights must be of shape \(100,\); got \(99,\)\.$"),
        (np.ones((100, 1)), InputError, r"^weights must be of shape \(100,\); got \(100, 1\)\.$"),
        (-np.ones(100), InputError, r"^weights must be finite and >= 0; got -1.0 at position 0\.$"),
        (np.r_[np.ones(99), np.nan], InputError, r"got nan at position 99\.$"),
        (np.r_[np.inf, np.ones(99)], InputError, r"got inf at position 0\.$"),
        (np.zeros(100), InputError, r"^weights must not all be 0\.$"),
        (np.array(["a"] * 100), InputTypeError, r"^weights must be real numbers; got dtype <U1\.$"),
    ],
)
def test_weights_that_cannot_be_used(weights, error, message):
    z, y = make(100)
    with pytest.raises(error, match=message):
        calibrate(z, y, weights=weights)
    if weights.dtype.kind != "U" and weights.any():
        with pytest.raises(error, match=message):
            calibrate(z, y, weights=np.ones(100)).predict(z, 0.9, weights=weights)


def test_weights_where_they_are_missing_or_not_wanted():
    z, y = make(100)
    with pytest.raises(
        InputError, match=r"^this calibration is weighted; pass the weights of the new rows: weights=\.$"
    ):
        calibrate(z, y, weights=np.ones(100)).predict(z, 0.9)
    by_class_weights = calibrate(z, y, class_weights=np.ones(K))
    for calibration in (calibrate(z, y), by_class_weights):
        with pytest.raises(InputError, match=r"^weights need a weighted calibration"):
            calibration.predict(z, 0.9, weights=np.ones(100))
    for calibration, weights in ((by_class_weights, None), (calibrate(z, y, weights=np.ones(100)), np.ones(100))):
        with pytest.raises(InputError, match=r'^groups need a calibration with by="group"\.$'):
            calibration.predict(z, 0.9, groups=y, weights=weights)
    one = calibrate(z, y, weights=np.ones(100)).predict(z[0], 0.9, weights=1.0)
    assert one == calibrate(z, y, weights=np.ones(100)).predict(z[:1], 0.9, weights=[1.0])


# ---------------------------------------------------------------------------------------------------------------
# Effective sample size


def test_effective_sample_size():
    assert shift.effective_sample_size(np.full(50, 3.0)) == pytest.approx(50)
    assert shift.effective_sample_size([1, 1, 0, 0]) == 2
    assert shift.effective_sample_size([1e-200, 1e200]) == pytest.approx(1)
    z, y = make(100)
    assert calibrate(z, y).effective_n == 100
    assert calibrate(z, y, weights=(np.arange(100) < 20) * 1.0).effective_n == 20
    with pytest.raises(InputError, match=r"^weights must not all be 0\.$"):
        shift.effective_sample_size([0.0, 0.0])


@pytest.mark.filterwarnings("error")
def test_few_effective_rows_are_warned_of():
    z, y = make(400)
    weights = np.where(np.arange(400) < 30, 1.0, 0.0)
    calibration = calibrate(z, y, weights=weights)
    message = r"^the weights leave 30.0 effective rows of 400: coverage 0.9 holds on average .* 100 would be enough"
    with pytest.warns(SmallCalibrationWarning, match=message):
        calibration.predict(z, 0.9, weights=np.ones(400))
    calibration.predict(z, 0.6, weights=np.ones(400))  # 25 are enough for 0.6
    assert "weighted (30.0 effective rows)" in repr(calibration)


# ---------------------------------------------------------------------------------------------------------------
# Label shift


def test_each_label_has_the_threshold_of_its_class_weight(cpu_backend):
    z, y = make(300)
    new, _ = make(40, 1)
    classes = np.array([0.2, 1.0, 3.0, 40.0])
    calibration = calibrate(z, y, "lac", class_weights=classes)
    scores, weights = LAC().scores(z)[np.arange(300), y], classes[y]
    limits = [reference_weighted_threshold(scores, weights, w, Fraction(95, 100)) for w in classes]
    assert calibration.thresholds(0.95).tolist() == limits
    dense = LAC().scores(new)
    np.testing.assert_array_equal(calibration.predict(new, 0.95).mask(), dense <= np.array(limits))
    p = calibration.p_values(new)
    np.testing.assert_array_equal(calibration.predict(new, 0.95).mask(), p > 0.05 + 1e-12)
    np.testing.assert_array_equal(calibration.p_values(new, np.zeros(40, int)), p[:, 0])


def test_weights_of_classes_are_ratios_of_frequencies():
    labels = [0] * 50 + [1] * 30 + [2] * 20
    np.testing.assert_allclose(label_shift_weights(labels, [0.2, 0.3, 0.5]), [0.4, 1.0, 2.5])
    np.testing.assert_allclose(label_shift_weights(labels, [2, 3, 5]), [0.4, 1.0, 2.5])  # counts do as well
    np.testing.assert_allclose(label_shift_weights(labels, [2e307, 3e307, 5e307]), [0.4, 1.0, 2.5])
    assert label_shift_weights([0, 0, 1], [0.5, 0.5, 0.0])[2] == 0  # absent before and after


@pytest.mark.parametrize(
    ("labels", "frequencies", "error", "message"),
    [
        (
            [0, 1],
            [0.5, 0.3, 0.2],
            InputError,
            r"^class 2 has new frequency 0.2 but no calibration rows, which no weight",
        ),
        ([0, 1], [0.0, 0.0], InputError, r"^frequencies must hold one number per class, not all of them 0\.$"),
        ([0, 1], [1.0], InputError, r"^frequencies must hold one number per class"),
        ([0, 1], [0.5, -0.5], InputError, r"^frequencies must be finite and >= 0; got -0.5 at position 1\.$"),
        ([0, 2], [0.5, 0.5], LabelsError, r"labels must be in \[0, 2\)"),
    ],
)
def test_frequencies_that_cannot_be_used(labels, frequencies, error, message):
    with pytest.raises(error, match=message):
        label_shift_weights(labels, frequencies)


def draw(n: int, frequencies, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(frequencies), n, p=frequencies)
    return rng.normal(size=(n, len(frequencies))) + 1.5 * np.eye(len(frequencies))[labels], labels


def test_class_frequencies_are_found_from_predictions():
    before, after = [0.4, 0.3, 0.2, 0.1], [0.05, 0.15, 0.2, 0.6]
    z, y = draw(20_000, before, 0)
    new, truth = draw(20_000, after, 1)
    found = estimate_class_frequencies(z, y, new)
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(found, np.bincount(truth) / 20_000, atol=0.02)
    counted = np.bincount(new.argmax(1)) / 20_000
    assert np.abs(counted - after).max() > 0.05  # the frequencies of predictions are not those of labels


def test_estimated_frequencies_are_frequencies():
    z, y = draw(200, [0.25] * 4, 0)
    new, _ = draw(30, [1.0, 0.0, 0.0, 0.0], 1)
    found = estimate_class_frequencies(z, y, new)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1)
    with pytest.raises(InputError, match=r"labelled rows of every class; got 30 new rows and no rows of 1 class"):
        estimate_class_frequencies(z[y > 0], y[y > 0], new)
    with pytest.raises(InputError, match=r"got 0 new rows"):
        estimate_class_frequencies(z, y, new[:0])


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
def test_the_nearest_frequencies(point):
    """The projection meets its optimality condition: what was taken from each positive coordinate is the same."""
    found = label_shift._on_simplex(np.array(point))
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    taken = np.array(point) - found
    positive = found > 1e-12
    assert np.ptp(taken[positive]) < 1e-9
    assert (taken[~positive] <= taken[positive].max() + 1e-9).all()


# ---------------------------------------------------------------------------------------------------------------
# Files and certificates


@pytest.mark.parametrize("options", [{"weights": np.arange(200.0)}, {"class_weights": [0.5, 1.0, 2.0, 4.0]}])
def test_weighted_calibrations_travel(tmp_path, options):
    z, y = make(200)
    calibration = calibrate(z, y, **options)
    calibration.save(tmp_path / "cal.safetensors")
    loaded = evicp.load(tmp_path / "cal.safetensors")
    assert loaded == calibration
    assert loaded != calibrate(z, y)
    assert loaded != calibrate(z, y, weights=np.ones(200))
    weights = {"weights": np.full(200, 100.0)} if "weights" in options else {}
    assert loaded.predict(z, 0.9, **weights) == calibration.predict(z, 0.9, **weights)


def test_a_damaged_weight_is_noticed(tmp_path):
    z, y = make(50)
    path = tmp_path / "cal.safetensors"
    calibrate(z, y, weights=np.ones(50)).save(path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="checksum"):
        evicp.load(path)


def test_a_certificate_of_weights_says_what_it_is():
    z, y = make(400)
    new, truth = make(1000, 1)
    weights = np.random.default_rng(0).exponential(size=400)
    calibration = calibrate(z, y, weights=weights)
    sets = calibration.predict(new, 0.9, weights=np.ones(1000))
    certificate = calibration.certificate(0.9, evicp.evaluate(sets, truth))
    assert certificate.effective_n == pytest.approx(shift.effective_sample_size(weights))
    assert certificate.n == 400
    rows = shift.equal_rows(calibration.scores, calibration.weights.rows, certificate.threshold, 0.9)
    assert certificate.coverage_interval == evicp.Reliability(round(rows), 0.9).interval()
    assert "an approximation" in certificate.caveat
    assert f"effective rows        {certificate.effective_n:.1f}\n" in str(certificate)
    assert f"as uncertain as       {round(rows):,} equally weighted rows" in str(certificate)
    assert "(for a new row of average weight)" in str(certificate)
    classes = calibrate(z, y, class_weights=np.ones(K)).certificate(0.9)
    assert classes.threshold == calibrate(z, y).threshold(0.9)


def test_equal_weights_are_as_uncertain_as_so_many_rows():
    scores = np.arange(1000.0)
    assert shift.equal_rows(scores, np.full(1000, 0.3), 899.0, 0.9) == pytest.approx(1000)
    missed_are_heavy = np.where(scores > 899, 9.0, 1.0)
    assert shift.equal_rows(scores, missed_are_heavy, 899.0, 0.9) < shift.effective_sample_size(missed_are_heavy) / 2


def test_verdicts_on_weighted_sets_are_right_as_often_as_they_say():
    """Heavy rows are those that are missed: judged by the effective sample size a fifth of honest runs would fail."""
    rng, failed, runs = np.random.default_rng(0), 0, 300
    for _ in range(runs):
        x, new = rng.normal(size=500), rng.normal(size=1000) + 1
        z, other = (np.stack([-(at + rng.normal(size=len(at))), np.zeros(len(at))], 1) for at in (x, new))
        own = calibrate(z, np.zeros(500, int), lambda logits: -logits, weights=np.exp(x - 0.5))
        sets = own.predict(other, 0.9, weights=np.exp(new - 0.5))
        certificate = own.certificate(0.9, evicp.evaluate(sets, np.zeros(1000, int)), date="d")
        failed += not certificate.observed["kept"]
    assert failed <= 0.05 * runs + 3 * np.sqrt(0.05 * 0.95 * runs)


def test_few_effective_rows_do_not_make_coverage_certain():
    z, y = make(1000)
    weights = np.full(1000, 1e-3)
    weights[:3] = 1.0
    with pytest.warns(SmallCalibrationWarning, match="effective rows"):
        certificate = calibrate(z, y, weights=weights).certificate(0.9)
    assert np.isfinite(certificate.threshold)
    assert certificate.expected_coverage < 1
    assert certificate.coverage_interval[0] < 0.9 < certificate.coverage_interval[1] < 1


def test_whole_weights_are_added_exactly_whatever_the_coverage():
    scores = np.arange(99.0)
    for coverage in (Fraction("0.9000000000000000001"), Fraction(10**400 - 1, 10**400), Fraction(9, 10)):
        k = evicp.conformal_rank(99, coverage)
        expected = np.append(scores, np.inf)[k - 1]
        for weight in (1.0, 0.3, 7.0):
            found = shift.weighted_thresholds(scores, np.full(99, weight), np.full((1, 1), weight), coverage)
            assert found.item() == expected
    with np.errstate(all="raise"):
        huge = shift.weighted_thresholds(scores, np.ones(99), np.array([[1e308], [1.5]]), Fraction(912345678, 10**9))
    assert huge.ravel().tolist() == [np.inf, 91.0]


def test_frequencies_that_predictions_cannot_tell_are_warned_of():
    z, y = draw(300, [0.4, 0.3, 0.3], 0)
    z[:, 2] = -50.0  # never predicted
    with pytest.warns(evicp.errors.SuspiciousInputWarning, match=r"cannot tell all 3 classes apart \(1 of them never"):
        found = estimate_class_frequencies(z, y, z)
    assert found.sum() == pytest.approx(1)


@pytest.mark.filterwarnings("ignore::evicp.errors.EvicpWarning")
@pytest.mark.parametrize(("n", "coverage"), [(8, 0.9), (50, 0.99)])
@pytest.mark.parametrize("kind", ["rows", "classes"])
def test_a_kept_promise_of_few_weighted_rows_is_not_called_broken(kind, n, coverage):
    """A new row of average weight has no threshold, but lighter ones have: coverage is less than 1, as it may be."""
    rng, runs, broken, missed = np.random.default_rng(3), 200, 0, 0
    shares = np.array([0.7, 0.1, 0.1, 0.1])

    def world(m, moved):
        x = rng.normal(size=m) + moved
        y = rng.choice(4, m, p=shares if moved and kind == "classes" else None)
        return rng.normal(size=(m, 4)) * 1.5 + 2 * np.eye(4)[y], y, np.exp(x - 0.5)

    for _ in range(runs):
        (z, y, own), (new, truth, others) = world(n, 0), world(300, 1)
        if kind == "rows":
            calibration = calibrate(z, y, "lac", weights=own)
            sets = calibration.predict(new, coverage, weights=others)
        else:
            calibration = calibrate(z, y, "lac", class_weights=shares / 0.25)
            sets = calibration.predict(new, coverage)
        evaluation = evicp.evaluate(sets, truth)
        certificate = calibration.certificate(coverage, evaluation)
        assert certificate.threshold == np.inf
        assert "none: its set is full (for a new row of average weight)" in str(certificate)
        missed += evaluation.coverage < 1
        broken += not certificate.observed["kept"]
    assert missed / runs > 0.3
    assert broken / runs < 0.025 + 3 * (0.025 * 0.975 / runs) ** 0.5
