"""Overlapping groups: thresholds against a linear program with the new row in it, and all that a law has to answer."""

from __future__ import annotations

import json
from fractions import Fraction
from time import process_time

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog

import evicp
from evicp import Calibrator, OverlappingGroups, calibrate, conformal_rank
from evicp.calibration.laws.quantile_fit import QuantileFit
from evicp.errors import ArtifactError, EvicpError, InputError, InputTypeError, SmallCalibrationWarning

K, G = 4, 3


def draw(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels and groups: rows in the first two groups are harder."""
    rng = np.random.default_rng(seed)
    labels, groups = rng.integers(0, K, n), rng.random((n, G)) < [0.5, 0.3, 0.6]
    noise = 0.6 + groups @ [0.8, 0.6, 0.0]
    return noise[:, None] * rng.normal(size=(n, K)) + 3 * np.eye(K)[labels], labels, groups


LOGITS, LABELS, GROUPS = draw(0, 300)
NEW, TRUTH, OF_NEW = draw(1, 200)
CALIBRATION = calibrate(LOGITS, LABELS, "lac", by=GROUPS)


# ---------------------------------------------------------------------------------------------------------------
# Thresholds


def dual_of_new(features: np.ndarray, scores: np.ndarray, row: np.ndarray, score: float, c: float) -> float:
    """The smallest dual variable of the new row among all best fits of n + 1 scores, by two linear programs."""
    everyone, s = np.vstack([features, row]), np.append(scores, score)
    equal = {"A_eq": everyone.T, "b_eq": np.zeros(len(row)), "bounds": (c - 1, c), "method": "highs"}
    best = linprog(-s, **equal)
    last = np.eye(len(s))[-1]
    return float(linprog(last, A_ub=-s[None], b_ub=[best.fun + 1e-9], **equal).x[-1])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("coverage", [Fraction(4, 5), Fraction(9, 10)])
def test_labels_are_in_up_to_the_threshold_and_not_beyond(seed, coverage):
    """With the label's score in the fit, its dual variable is below the coverage exactly up to the threshold."""
    rng = np.random.default_rng(seed)
    features = np.column_stack([np.ones(60), rng.random((60, G)) < 0.5]).astype(float)
    scores = np.sort(rng.normal(size=60))
    fit, c = QuantileFit(features, scores, coverage), float(coverage)
    for row in np.unique(features, axis=0):
        threshold = fit.threshold(row)
        if threshold < np.inf:
            assert dual_of_new(features, scores, row, threshold - 1e-3, c) < c - 1e-4
            assert dual_of_new(features, scores, row, threshold + 1e-3, c) > c - 1e-5
        else:
            assert dual_of_new(features, scores, row, 1e3, c) < c - 1e-4


@pytest.mark.parametrize("n", [5, 9, 10, 19, 99, 100, 250])
@pytest.mark.parametrize("coverage", [Fraction(1, 2), Fraction(9, 10), Fraction(19, 20), Fraction(877, 1000)])
def test_groups_apart_have_the_thresholds_of_groups_to_the_bit(n, coverage):
    rng = np.random.default_rng(n)
    scores, group = np.sort(rng.normal(size=n)), rng.integers(0, 3, n)
    fit = QuantileFit(np.column_stack([np.ones(n), np.eye(3)[group]]), scores, coverage)
    alone = QuantileFit(np.ones((n, 1)), scores, coverage)
    parts = [(alone, np.ones(1), scores)]
    parts += [(fit, np.append(1.0, np.eye(3)[number]), scores[group == number]) for number in range(3)]
    for own, row, part in parts:
        k = conformal_rank(len(part), coverage)
        assert own.threshold(row) == (part[k - 1] if k <= len(part) else np.inf)


def test_many_scores_are_fitted_from_a_part_of_them():
    rng = np.random.default_rng(0)
    features = np.column_stack([np.ones(5000), rng.random((5000, 4)) < 0.3]).astype(float)
    scores = np.sort(rng.normal(size=5000) + features @ rng.normal(size=5))
    quick = QuantileFit(features, scores, Fraction(9, 10))
    for row in features[:5]:
        tilt = quick._held * row / quick._units
        direct = quick._solved(quick._features, quick._scores, tilt)
        assert quick.threshold(row) == pytest.approx(quick._low + quick._width * row / quick._units @ direct, abs=1e-6)


def test_infinite_scores_and_ties():
    """A masked true label scores +inf, a certain one -inf: sets of too few finite scores are full."""
    scores = np.array([-np.inf, -np.inf, 0.1, 0.2, 0.2, 0.2, 0.9, 1.0, np.inf, np.inf])
    everyone = np.ones((10, 1))
    for coverage in (Fraction(1, 10), Fraction(1, 2), Fraction(7, 10), Fraction(8, 10), Fraction(9, 10)):
        expected = scores[conformal_rank(10, coverage) - 1]
        found = QuantileFit(everyone, scores, coverage).threshold(np.ones(1))
        assert found == expected or (expected == -np.inf and found < 0.1)
    assert QuantileFit(everyone, np.full(10, np.inf), Fraction(1, 2)).threshold(np.ones(1)) == np.inf


def test_a_thousand_rows_of_twenty_groups_take_seconds(figure):
    rng = np.random.default_rng(0)
    groups = rng.random((3000, 20)) < rng.uniform(0.05, 0.5, 20)
    labels = rng.integers(0, 10, 3000)
    logits = rng.normal(size=(3000, 10)) + 3 * np.eye(10)[labels]
    calibration = calibrate(logits[:2000], labels[:2000], by=groups[:2000])
    begun = process_time()
    sets = calibration.predict(logits[2000:], 0.9, groups=groups[2000:])
    seconds = process_time() - begun
    figure("largest seconds for 1,000 rows of 20 groups", round(seconds, 1))
    assert len(sets) == 1000
    assert seconds < 10


# ---------------------------------------------------------------------------------------------------------------
# Sets


def test_groups_apart_give_the_sets_of_groups():
    apart = np.eye(3, dtype=bool)[np.arange(300) % 3]
    single = calibrate(LOGITS, LABELS, by=np.arange(300) % 3)
    several = calibrate(LOGITS, LABELS, by=apart)
    for coverage in (0.5, 0.9, 0.95):
        expected = single.predict(NEW, coverage, groups=np.arange(200) % 3)
        found = several.predict(NEW, coverage, groups=np.eye(3, dtype=bool)[np.arange(200) % 3])
        assert found.to_lists() == expected.to_lists()
        np.testing.assert_array_equal(several.thresholds(coverage), single.thresholds(coverage))


def test_rows_of_the_same_groups_share_a_threshold_alone_and_in_a_batch():
    sets = CALIBRATION.predict(NEW, [0.8, 0.9], groups=OF_NEW)
    assert [one.guarantee for one in sets] == ["overlapping"] * 2
    for row in range(5):
        alone = calibrate(LOGITS, LABELS, "lac", by=GROUPS).predict(NEW[row], 0.9, groups=OF_NEW[row : row + 1])
        assert alone.to_lists() == sets[1][row : row + 1].to_lists()
    assert (sets[0].sizes <= sets[1].sizes).all()
    assert CALIBRATION.predict(NEW, 0.5, groups=OF_NEW, allow_empty=False).sizes.min() == 1
    assert CALIBRATION.predict(NEW[:0], 0.9, groups=OF_NEW[:0]).sizes.size == 0
    explained = CALIBRATION.explain(NEW[0], 0.9, groups=OF_NEW[:1])
    assert np.flatnonzero(explained.in_set).tolist() == sorted(sets[1].to_lists()[0])


def test_numbers_other_than_0_and_1_are_features():
    age = np.linspace(0, 1, 300)
    calibration = calibrate(LOGITS, LABELS, by=age[:, None])
    low, high = (calibration.predict(NEW, 0.9, groups=np.full((200, 1), value)) for value in (0.0, 1.0))
    assert low.sizes.mean() != high.sizes.mean()
    scaled = calibrate(LOGITS, LABELS, by=1e6 * age[:, None]).predict(NEW, 0.9, groups=np.full((200, 1), 1e6))
    assert scaled.to_lists() == high.to_lists()
    assert calibration.certificate(0.9).groups == ()


# ---------------------------------------------------------------------------------------------------------------
# Batches, files, certificates


def test_batches_shards_and_more_rows_give_the_calibration_of_all_at_once():
    parts = [Calibrator("lac", by="overlapping") for _ in range(2)]
    for part, rows in zip(parts, (slice(0, 200), slice(200, 300)), strict=True):
        part.update(LOGITS[rows], LABELS[rows], groups=GROUPS[rows])
    assert parts[0].merge(parts[1]).finish() == CALIBRATION
    first = calibrate(LOGITS[:100], LABELS[:100], "lac", by=GROUPS[:100])
    assert first.extended(LOGITS[100:], LABELS[100:], groups=GROUPS[100:]) == CALIBRATION
    assert first != CALIBRATION
    assert "300 rows, 4 classes, in 3 overlapping groups" in repr(CALIBRATION)


def test_a_file_gives_the_calibration_back(tmp_path):
    named = calibrate(LOGITS, LABELS, "lac", by=pd.DataFrame(GROUPS, columns=["old", "female", "rural"]))
    for calibration in (named, CALIBRATION):
        calibration.save(tmp_path / f"{id(calibration)}.safetensors")
        loaded = evicp.load(tmp_path / f"{id(calibration)}.safetensors")
        assert loaded == calibration
        assert loaded.law.names == calibration.law.names
        assert loaded.predict(NEW, 0.9, groups=OF_NEW) == calibration.predict(NEW, 0.9, groups=OF_NEW)
    assert named.law.names == ("old", "female", "rural")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overlapping": {"names": ["a"]}}, "each group a name"),
        ({"overlapping": {"names": [1, 2, 3]}}, "malformed"),
        ({"overlapping": {"names": ["a", "a", "b"]}}, "all different"),
        ({"overlapping": None}, "malformed"),
    ],
)
def test_files_that_contradict_themselves_are_refused(tmp_path, monkeypatch, change, message):
    from evicp.calibration.laws.overlapping import Overlapping

    monkeypatch.setattr(Overlapping, "description", lambda self: change)
    CALIBRATION.save(tmp_path / "cal.safetensors")
    with pytest.raises(ArtifactError, match=message):
        evicp.load(tmp_path / "cal.safetensors")


def test_certificates_have_every_group_and_what_was_seen_there():
    sets = CALIBRATION.predict(NEW, 0.8, groups=OF_NEW)
    evaluation = evicp.evaluate(sets, TRUTH, groups=OF_NEW)
    certificate = CALIBRATION.certificate(0.8, evaluation)
    assert [group.name for group in certificate.groups] == ["group 0", "group 1", "group 2"]
    assert [group.n for group in certificate.groups] == GROUPS.sum(0).tolist()
    covered = sets.contains(TRUTH)
    for number, group in enumerate(certificate.groups):
        assert group.observed["coverage"] == pytest.approx(covered[OF_NEW[:, number]].mean())
        assert group.observed["compatible"]
    assert certificate.observed["compatible"]
    assert "a row's threshold depends on all its groups" in str(certificate)
    assert "0.8 in every group, also where groups overlap" in " ".join(str(certificate).split())
    assert json.loads(certificate.to_json())["by"] == "overlapping"


def test_overlapping_groups_are_evaluated_one_by_one():
    sets = CALIBRATION.predict(NEW, 0.8, groups=OF_NEW)
    frame = pd.DataFrame(OF_NEW, columns=["old", "female", "rural"])
    found = evicp.evaluate(sets, TRUTH, groups=frame).group_coverage
    for name, coverage, count in zip(found.names, found.coverage, found.counts, strict=True):
        rows = frame[name].to_numpy()
        assert (coverage, count) == (sets.contains(TRUTH)[rows].mean(), rows.sum())
    with pytest.raises(InputError, match="1 where a row is in a group and 0 elsewhere"):
        evicp.evaluate(sets, TRUTH, groups=2.0 * OF_NEW)


def test_bad_input_is_refused():
    for call, message in (
        (lambda: calibrate(LOGITS, LABELS, by=GROUPS[:10]), r"groups must have shape \(300, features\); got \(10, 3\)"),
        (lambda: calibrate(LOGITS, LABELS, by=np.full((300, 2), "a")), "groups must be real numbers"),
        (lambda: calibrate(LOGITS, LABELS, by=np.full((300, 2), np.nan)), "groups must be finite; got nan at row 0"),
        (lambda: calibrate(LOGITS, LABELS, by="overlapping"), "pass groups=, an"),
        (lambda: calibrate(LOGITS, LABELS, by=GROUPS, weights=np.ones(300)), "weights"),
        (lambda: CALIBRATION.predict(NEW, 0.9), "pass groups=, an"),
        (lambda: CALIBRATION.predict(NEW, 0.9, groups=OF_NEW[:, :2]), r"\(200, 3\); got \(200, 2\)"),
        (lambda: CALIBRATION.predict(NEW, 0.9, groups=OF_NEW, confidence=0.9), "confidence needs the Beta law"),
        (lambda: CALIBRATION.predict(NEW, 0.9, groups=OF_NEW, smoothed=True), "it has no smoothed"),
        (lambda: CALIBRATION.p_values(NEW, groups=OF_NEW), "p-values with overlapping groups"),
        (lambda: CALIBRATION.threshold(0.9), "not one threshold; use thresholds"),
        (lambda: CALIBRATION.label_thresholds(0.9), "others depend on the row"),
        (lambda: evicp.Monitor(CALIBRATION, 0.9), "cannot be monitored"),
        (lambda: CALIBRATION.extended(LOGITS, LABELS, groups=GROUPS[:, :2]), "must have 3 columns"),
        (lambda: OverlappingGroups(names=["a", "a"]), "all different"),
        (lambda: OverlappingGroups(names=[]), "one or more"),
    ):
        with pytest.raises(EvicpError, match=message):
            call()
    first = Calibrator(by=OverlappingGroups(["old", "rural"])).update(LOGITS, LABELS, groups=GROUPS[:, :2])
    with pytest.raises(InputError, match=r"\(300, 2\); got \(300, 3\)"):
        first.update(LOGITS, LABELS, groups=GROUPS)
    frame = pd.DataFrame(OF_NEW[:, :2], columns=["rural", "old"])
    with pytest.raises(InputError, match="must have the columns old, rural, in this order"):
        first.finish().predict(NEW, 0.9, groups=frame)


def test_small_groups_are_warned_of_and_their_sets_are_full():
    few = GROUPS.copy()
    few[:, 0] = np.arange(300) < 4
    calibration = calibrate(LOGITS, LABELS, by=few)
    with pytest.warns(SmallCalibrationWarning, match=r"1 of 3 groups have fewer than the 9 .*: group 0 \(4\)"):
        sets = calibration.predict(NEW, 0.9, groups=np.tile([True, False, False], (200, 1)))
    assert (sets.sizes == K).all()


def test_blocks_and_files_take_a_matrix_of_groups(tmp_path):
    np.savez(tmp_path / "val.npz", logits=LOGITS, labels=LABELS)
    np.savez(tmp_path / "new.npz", logits=NEW, labels=TRUTH)
    blocks = evicp.blocks
    made = blocks.calibrate(tmp_path / "val.npz", score="lac", by="overlapping", groups=GROUPS)
    assert made == CALIBRATION
    found = blocks.evaluate(made, tmp_path / "new.npz", coverage=0.9, groups=OF_NEW)
    assert found.group_coverage.names == ("group 0", "group 1", "group 2")
    assert found.coverage == CALIBRATION.predict(NEW, 0.9, groups=OF_NEW).contains(TRUTH).mean()


@pytest.mark.parametrize("names", [3, True, "ab", np.float64(1)])
def test_names_must_be_a_list(names):
    with pytest.raises(InputTypeError, match="names must be a list of G names"):
        evicp.OverlappingGroups(names)


def test_lists_of_several_lengths_are_no_groups(rows):
    with pytest.raises(EvicpError):
        evicp.calibrate(*rows, by=[[1]] * 79 + [[1, 0]])
