"""Tensors on an accelerator. Without one, CPU tensors are declared to lie on one: the code that runs is the same.

tests/gpu repeats this on a real one.
"""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

import evicp
from evicp.input import convert

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

from evicp.calibration.device import DeviceSets  # noqa: E402
from evicp.evaluation.metrics import Evaluator  # noqa: E402
from evicp.kernels import _torch  # noqa: E402


@pytest.fixture
def problem(monkeypatch):
    monkeypatch.setattr(convert, "is_on_device", lambda value: isinstance(value, torch.Tensor))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 12, 500)
    logits = rng.normal(size=(500, 12)) + 2.5 * np.eye(12)[labels]
    return logits, labels


SCORES = ["ecp", evicp.ECP(stabilizer=0), "lac", "aps", evicp.RAPS(lam=0.02), "saps", "topk", "margin"]


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_everything_equals_the_cpu(problem, score):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    expected = evicp.calibrate(logits[:300], labels[:300], score)
    calibration = evicp.calibrate(z[:300], y[:300], score)
    np.testing.assert_allclose(calibration.scores, expected.scores, rtol=1e-12, atol=1e-12)
    sets = calibration.predict(z[300:], 0.8)
    assert isinstance(sets, DeviceSets)
    calibration = dataclasses.replace(calibration, origin=None)  # compared as it is, also with the CPU's scores
    reference = calibration.predict(logits[300:], 0.8)
    assert sets.cpu() == reference
    np.testing.assert_array_equal(sets.sizes.numpy(), reference.sizes)
    np.testing.assert_array_equal(sets.contains(y[300:]).numpy(), reference.contains(labels[300:]))
    np.testing.assert_array_equal(sets.mask().numpy(), reference.mask())
    assert [row.tolist() for row in sets] == reference.to_lists()
    np.testing.assert_array_equal(calibration.p_values(z[300:]).numpy(), calibration.p_values(logits[300:]))
    of_labels = calibration.p_values(z[300:], y[300:]).numpy()
    np.testing.assert_array_equal(of_labels, calibration.p_values(logits[300:], labels[300:]))


def test_evaluation_of_sets_that_stayed(problem, monkeypatch):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    calibration = evicp.calibrate(z[:300], y[:300], evicp.ECP(stabilizer=1e-8))
    here, there = calibration.predict(logits[300:], 0.9), calibration.predict(z[300:], 0.9)
    assert (there.sizes == 0).any()
    usual = [evicp.evaluate(here, labels[300:]).to_dict(), evicp.evaluate(here, labels[300:], logits[300:]).to_dict()]
    monkeypatch.setattr(DeviceSets, "cpu", None)  # sets, labels and logits stay there
    for kind in (torch.int64, torch.uint8):
        for given, expected in zip(((), (z[300:],)), usual, strict=True):
            assert evicp.evaluate(there, y[300:].to(kind), *given).to_dict() == expected
    halves = Evaluator().update(there[:90], y[300:390], z[300:390]).update(there[90:], y[390:], z[390:]).finish()
    assert halves.to_dict() == usual[1]


def test_evaluation_goes_to_the_cpu_where_it_must(problem):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    calibration = evicp.calibrate(z[:300], y[:300])
    here, there = calibration.predict(logits[300:], 0.9), calibration.predict(z[300:], 0.9)
    for given in ({"groups": GROUPS[300:]}, {"difficulty": np.ones(200, int)}, {"logits": logits[300:]}):
        expected = evicp.evaluate(here, labels[300:], **given).to_dict()
        assert evicp.evaluate(there, labels[300:], **given).to_dict() == expected
    wrongs = ((y[300:] + 1, r"in \[0, 12\)"), (y[:9], "one entry per row"), (y[300:].double(), "integers"))
    for wrong, message in wrongs:
        with pytest.raises(evicp.EvicpError, match=message):
            evicp.evaluate(there, wrong)
    with pytest.raises(evicp.EvicpError, match="one row per set"):
        evicp.evaluate(there, y[300:], z[:9])


def test_several_coverages_read_the_logits_once(problem, monkeypatch):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    calibration, reads = evicp.calibrate(z[:300], y[:300]), []
    singles = [calibration.predict(z[300:], coverage).cpu() for coverage in (0.5, 0.95, 0.9)]
    ragged = _torch.ragged_sets
    monkeypatch.setattr(_torch, "ragged_sets", lambda *given: reads.append(given) or ragged(*given))
    assert [sets.cpu() for sets in calibration.predict(z[300:], [0.5, 0.95, 0.9])] == singles
    assert len(reads) == 1
    with pytest.warns(evicp.EvicpWarning, match="every set is full"):
        narrow, full = calibration.predict(z[300:], [0.5, 0.9999])
    assert narrow.cpu() == singles[0]
    assert (full.sizes == 12).all()


@pytest.mark.parametrize("reached", [-0.1, 0.7, 1.1])
@pytest.mark.parametrize("allow_empty", [True, False])
def test_adaptive_levels(problem, reached, allow_empty):
    logits, labels = problem
    calibration, level = evicp.calibrate(logits[:300], labels[:300]), evicp.AdaptiveLevel(0.9)
    level.level = reached
    there = level.predict(calibration, torch.from_numpy(logits[300:]), allow_empty=allow_empty)
    assert isinstance(there, DeviceSets)
    assert there.cpu() == level.predict(calibration, logits[300:], allow_empty=allow_empty)


def test_several_coverages_one_row_and_no_empty_sets(problem):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    calibration = evicp.calibrate(z[:300], y[:300], "lac", class_names=[f"c{i}" for i in range(12)])
    wide, narrow = calibration.predict(z, [0.9, 0.3])
    assert (wide.sizes >= narrow.sizes).all()
    assert (narrow.sizes == 0).any()
    filled = calibration.predict(z, 0.3, allow_empty=False)
    assert filled.cpu() == calibration.predict(logits, 0.3, allow_empty=False)
    assert filled.cpu().filled
    assert len(calibration.predict(z[0], 0.9)) == 1
    assert calibration.predict(z[:0], 0.9).cpu() == calibration.predict(logits[:0], 0.9)
    assert calibration.predict(z[:2], 0.9).cpu().class_names is not None


@pytest.mark.parametrize(
    "rows", [slice(1, 3), slice(None), slice(7, 2), slice(-5, 900), slice(3, 190, 4), slice(9, None, -2)]
)
def test_slices_are_sets_of_these_rows(problem, rows):
    logits, labels = problem
    sets = evicp.calibrate(logits[:300], labels[:300], "lac").predict(torch.from_numpy(logits[300:]), 0.6)
    assert (sets.sizes == 0).any()
    assert isinstance(sets[rows], DeviceSets)
    assert sets[rows].cpu() == sets.cpu()[rows]


def test_one_row_of_sets_that_stayed(problem):
    logits, labels = problem
    sets = evicp.calibrate(logits[:300], labels[:300]).predict(torch.from_numpy(logits[300:]), 0.9)
    assert sets[-1].tolist() == sets[torch.tensor(199)].tolist() == sets.cpu()[199].tolist()
    with pytest.raises(evicp.errors.RowError, match="row 200 does not exist; there are 200 sets"):
        sets[200]
    with pytest.raises(evicp.errors.InputTypeError, match=r"a row number or a slice; got a Tensor\. Use sets\.cpu\(\)"):
        sets[sets.sizes > 1]


def test_what_the_device_does_not_know_goes_to_the_cpu(problem):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    custom = evicp.calibrate(z, y, lambda logits: -logits)
    assert isinstance(custom.predict(z, 0.9), evicp.PredictionSets)
    by_class = evicp.calibrate(z, y, by="class")
    np.testing.assert_array_equal(by_class.p_values(z, y), by_class.p_values(logits, labels))


@pytest.mark.parametrize("kind", ["group", "class", "weights", "class_weights"])
@pytest.mark.parametrize("score", ["lac", "ecp", "margin"])
def test_p_values_say_the_same_as_sets_that_stayed(problem, score, kind):
    """Of a sure network, whose scores lie closer together than rounding between backends is allowed to move them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 260)
    z, y = torch.from_numpy((0.1 * rng.normal(size=(260, 5)) + 20 * np.eye(5)[labels]).astype(np.float32)), labels
    rows = np.arange(260) % 2
    given = {"group": {"by": rows[:200]}, "class": {"by": "class"}}
    given |= {"weights": {"weights": 1.0 + rows[:200]}, "class_weights": {"class_weights": np.arange(1.0, 6.0)}}
    new = {"group": {"groups": rows[200:]}, "weights": {"weights": 1.0 + rows[200:]}}.get(kind, {})
    calibration = evicp.calibrate(z[:200], torch.from_numpy(y[:200]), score, **given[kind])
    sets = calibration.predict(z[200:], 0.5, **new)
    p = calibration.p_values(z[200:], **new)
    np.testing.assert_array_equal(p > 0.5 + 1e-12, sets.mask().numpy())
    np.testing.assert_array_equal(calibration.p_values(z[200:], y[200:], **new), p[np.arange(60), y[200:]])


GROUPS = np.arange(500) % 3
MEMBERS = np.random.default_rng(2).random((len(GROUPS), 3)) < 0.5
WEIGHTS = np.random.default_rng(1).exponential(size=500)
GUARANTEES = {
    "class": ({"by": "class"}, {}),
    "clusters": ({"by": evicp.ByClass(clusters=(0, 1, 2) * 4)}, {}),
    "group": ({"by": GROUPS[:300]}, {"groups": GROUPS[300:]}),
    "overlapping": ({"by": MEMBERS[:300]}, {"groups": MEMBERS[300:]}),
    "uncertainty": ({"by": evicp.ByUncertainty(bands=3)}, {}),
    "softplus": ({"by": "uncertainty", "score": evicp.ECP(evidence="softplus")}, {}),
    "weights": ({"weights": WEIGHTS[:300]}, {"weights": WEIGHTS[300:]}),
    "class weights": ({"class_weights": np.linspace(0.5, 1.5, 12)}, {}),
}


@pytest.mark.filterwarnings("ignore:the weights leave", "ignore:.* groups have fewer")
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.97])  # at the last one groups are too small, and their sets full
@pytest.mark.parametrize("kind", GUARANTEES)
def test_every_guarantee_stays_on_the_device(problem, kind, coverage):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    made, used = GUARANTEES[kind]
    expected = evicp.calibrate(logits[:300], labels[:300], **made)
    calibration = evicp.calibrate(z[:300], y[:300], **made)
    np.testing.assert_allclose(calibration.scores, expected.scores, rtol=1e-12, atol=1e-12)
    assert calibration.guarantee == expected.guarantee
    sets = calibration.predict(z[300:], coverage, **used)
    assert isinstance(sets, DeviceSets)
    plain = dataclasses.replace(calibration, origin=None)
    assert sets.cpu() == plain.predict(logits[300:], coverage, **used)
    several = calibration.predict(z[300:], [0.6, coverage], allow_empty=False, **used)
    assert [one.cpu() for one in several] == plain.predict(logits[300:], [0.6, coverage], allow_empty=False, **used)
    if kind == "class":
        assert calibration.predict(z[300], coverage).cpu() == plain.predict(logits[300], coverage)


def test_bad_tensors(problem):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    calibration = evicp.calibrate(z, y)
    bad = z.clone()
    bad[7, 3] = torch.nan
    with pytest.raises(evicp.EvicpError, match="got NaN at row 7, class 3"):
        calibration.predict(bad, 0.9)
    with pytest.raises(evicp.EvicpError, match="dense tensor of floats"):
        calibration.predict(z.long(), 0.9)
    with pytest.raises(evicp.EvicpError, match="must have 12 classes"):
        calibration.predict(z[:, :5], 0.9)
    with pytest.raises(evicp.EvicpError, match=r"labels must be in \[0, 12\)"):
        calibration.p_values(z, y + 12)
    with pytest.warns(evicp.EvicpWarning, match="look like probabilities"):
        calibration.predict(torch.softmax(z, 1), 0.9)


@pytest.mark.filterwarnings("ignore:.* groups have fewer")
def test_rows_are_counted_from_the_first_block(problem, monkeypatch):
    """Also where labels have limits of their own and some are always in: all scores are computed, in blocks."""
    logits, labels = problem
    z = torch.from_numpy(logits).clone()
    calibration = evicp.calibrate(z[:300], torch.from_numpy(labels)[:300], by="class")
    monkeypatch.setattr("evicp.kernels._torch.BLOCK_LOGITS", 12 * 50)
    assert calibration.predict(z[300:], 0.97).cpu() == calibration.predict(logits[300:], 0.97)
    z[477, 3] = torch.nan
    with pytest.raises(evicp.EvicpError, match="got NaN at row 177, class 3"):
        calibration.predict(z[300:], 0.97)


def test_labels_that_cannot_be_written_to(problem):
    """torch warns of such arrays where it would share their memory; warnings are errors here."""
    logits, labels = problem
    z, y = torch.from_numpy(logits), labels.copy()
    y.flags.writeable = False
    calibration = evicp.calibrate(z[:300], y[:300])
    sets = calibration.predict(z[300:], 0.9)
    np.testing.assert_array_equal(sets.contains(y[300:]).numpy(), sets.cpu().contains(y[300:]))
    assert len(calibration.p_values(z[300:], y[300:])) == 200


# ---------------------------------------------------------------------------------------------------------------
# Calibration stays on the device


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8])
def test_scores_come_to_the_cpu_when_they_are_asked_for(problem, kind):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels).to(kind)
    expected = evicp.calibrate(logits, labels)
    calibration = evicp.calibrate(z, y)
    assert calibration.n == 500
    assert "scores" not in vars(calibration)
    copied = pickle.loads(pickle.dumps(calibration))
    assert "500 rows" in repr(calibration)
    np.testing.assert_allclose(calibration.scores, expected.scores, rtol=1e-12)
    assert not calibration.scores.flags.writeable
    assert (calibration.origin.digest, calibration.origin.largest) == (expected.origin.digest, expected.origin.largest)
    assert copied == calibration
    assert calibration.threshold(0.9) == calibration.scores[450]
    with pytest.raises(AttributeError, match="no attribute 'score_s'"):
        calibration.score_s  # noqa: B018


def test_batches_and_shards_are_the_whole(problem):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    whole = evicp.calibrate(z, y, "lac")
    first = evicp.Calibrator("lac").update(z[:100], y[:100]).update(z[100:220], y[100:220])
    second = evicp.Calibrator("lac").update(z[220:], labels[220:])
    merged = first.merge(second)
    restored = evicp.Calibrator("lac").restore(merged.content(), 12).finish()
    assert merged.finish() == whole == restored
    assert merged.finish().origin.digest == whole.origin.digest == restored.origin.digest
    assert evicp.calibrate(z[:200], y[:200], "lac").extended(z[200:], y[200:]) == whole
    mixed = evicp.Calibrator("lac").update(z[:100], y[:100]).update(z[100:].numpy(), labels[100:]).finish()
    np.testing.assert_allclose(mixed.scores, whole.scores, rtol=1e-12)


@pytest.mark.parametrize("rare", ["full", "cluster"])
def test_scores_are_sorted_by_group_where_they_are(problem, rare):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    for by in (evicp.ByClass(rare=rare), GROUPS, evicp.ByUncertainty(bands=3)):
        here, there = evicp.calibrate(logits, labels, by=by), evicp.calibrate(z, y, by=by)
        assert "scores" not in vars(there)
        np.testing.assert_allclose(there.scores, here.scores, rtol=1e-12, atol=1e-12)
        assert there.law == here.law


def test_bad_labels_are_found_on_the_device(problem):
    logits, labels = problem
    z = torch.from_numpy(logits)
    for row, wrong in ((7, -1), (499, 12)):
        bad = labels.copy()
        bad[row] = wrong
        with pytest.raises(evicp.EvicpError, match=rf"in \[0, 12\); got {wrong} at row {row}"):
            evicp.calibrate(z, torch.from_numpy(bad))
    with pytest.raises(evicp.EvicpError, match="one-based"):
        evicp.calibrate(z, torch.from_numpy(labels + 1))
    with pytest.raises(evicp.EvicpError, match="must be integers; got dtype float64"):
        evicp.calibrate(z, torch.from_numpy(labels.astype(float)))
    with pytest.raises(evicp.EvicpError, match="one entry per row of logits; got 499 labels"):
        evicp.calibrate(z, torch.from_numpy(labels[1:]))
    with pytest.raises(evicp.EvicpError, match="number of another"):
        evicp.calibrate(z, torch.from_numpy(labels), class_names=[str(i) for i in range(12)][::-1])
    named = evicp.calibrate(z, torch.from_numpy(labels + 20), class_names=range(20, 32))
    np.testing.assert_array_equal(named.scores, evicp.calibrate(z, torch.from_numpy(labels)).scores)
    bad = z.clone()
    bad[9, 1] = torch.nan
    with pytest.raises(evicp.EvicpError, match="got NaN at row 9, class 1"):
        evicp.calibrate(bad, torch.from_numpy(labels))


def test_odd_rows_are_warned_of(problem):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    with pytest.warns(evicp.EvicpWarning, match="look like probabilities"):
        evicp.calibrate(torch.softmax(z, 1), y, "lac")
    with pytest.warns(evicp.EvicpWarning, match="no positive logit"):
        evicp.calibrate(z - 50, y)
    with pytest.warns(evicp.EvicpWarning, match="masked"):
        evicp.calibrate(z.masked_fill(torch.nn.functional.one_hot(y, 12).bool() & (z > 4), -torch.inf), y)
    with pytest.warns(evicp.EvicpWarning, match="two labels are possible"):
        evicp.calibrate(z[:, :2], y % 2)


# ---------------------------------------------------------------------------------------------------------------
# Predictors: sets of fixed shape


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_predictors_have_the_sets_of_predict(problem, score):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    calibration = evicp.calibrate(z[:300], y[:300], score)
    new = z[300:360].clone().requires_grad_()
    sets = calibration.predict(new, 0.8)
    mask, sizes = calibration.predictor(0.8, new)(new)
    assert torch.equal(mask, sets.mask())
    assert torch.equal(sizes, sets.sizes.to(torch.int32))
    for m in (1, 3, 12, 40):
        own, sizes = calibration.predictor(0.8, new, labels=m)(new)
        assert own.shape == (60, min(m, 12))
        assert torch.equal(sizes, sets.sizes.to(torch.int32))
        for row, labels_of_row in enumerate(sets):
            kept = labels_of_row[:m].tolist()
            assert own[row].tolist() == kept + [-1] * (own.shape[1] - len(kept))


def test_predictors_mark_rows_that_cannot_be_scored(problem, monkeypatch):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    calibration, new = evicp.calibrate(z[:300], y[:300]), z[300:340].clone()
    usual = calibration.predictor(0.8, new)(new)
    new[3, 2], new[4, 0], new[5] = torch.nan, torch.inf, -torch.inf
    monkeypatch.setattr("evicp.kernels._torch_fixed.BLOCK_LOGITS", 12 * 7)
    for m in (None, 2):
        own, sizes = calibration.predictor(0.8, new, labels=m)(new)
        assert torch.nonzero(sizes < 0)[:, 0].tolist() == [3, 4, 5]
        assert (own[3:6] == (0 if m is None else -1)).all()
        assert torch.equal(sizes[6:], usual.sizes[6:])


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::DeprecationWarning")
def test_predictors_compile_without_a_graph_break(problem):
    logits, labels = problem
    z, y = torch.from_numpy(logits).float(), torch.from_numpy(labels)
    calibration = evicp.calibrate(z[:300], y[:300])
    for m in (None, 3):
        predictor = calibration.predictor(0.8, z[:20], labels=m)
        compiled = torch.compile(lambda x, p=predictor: p(x + 0.5), fullgraph=True, backend="eager")
        expected = predictor(z[300:320] + 0.5)
        for own, other in zip(compiled(z[300:320]), expected, strict=True):
            assert torch.equal(own, other)


def test_bad_predictors(problem):
    logits, labels = problem
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    calibration = evicp.calibrate(z, y)
    predictor = calibration.predictor(0.8, z[:10])
    assert repr(predictor) == "Predictor(ecp, membership of (10, 12) on cpu)"
    for wrong in (z[:9], z[:10].float(), z[:10, :5]):
        with pytest.raises(evicp.EvicpError, match=r"for logits of shape \(10, 12\)"):
            predictor(wrong)
    with pytest.raises(evicp.EvicpError, match="on an accelerator"):
        calibration.predictor(0.8, logits)
    with pytest.raises(evicp.EvicpError, match="threshold per class, not one threshold"):
        evicp.calibrate(z, y, by="class").predictor(0.8, z)
    with pytest.raises(evicp.EvicpError, match="one coverage"):
        calibration.predictor([0.8, 0.9], z)
    with pytest.raises(evicp.EvicpError, match="12 classes"):
        calibration.predictor(0.8, z[:, :5])
    with pytest.raises(evicp.EvicpError, match="not available on accelerators"):
        evicp.calibrate(z, y, lambda x: -x).predictor(0.8, z)
    with pytest.raises(evicp.EvicpError, match="labels must be at least 1"):
        calibration.predictor(0.8, z, labels=0)
    with pytest.warns(evicp.EvicpWarning, match="every set is full"):
        sizes = evicp.calibrate(z[:3], y[:3]).predictor(0.9, z).__call__(z).sizes
    assert (sizes == 12).all()
