"""Thresholds by class, by given groups and by bands of uncertainty: against loops over rows and labels."""

from __future__ import annotations

import json
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import evicp
from evicp import APS, ECP, LAC, ByClass, ByGroup, ByUncertainty, Calibrator, calibrate
from evicp.calibration.laws import by_uncertainty, clusters
from evicp.calibration.ranks import rows_needed
from evicp.errors import (
    ArtifactError,
    InputError,
    InputTypeError,
    LogitsError,
    SmallCalibrationWarning,
    SuspiciousInputWarning,
)
from evicp.io import artifact
from evicp.kernels import uncertainties
from oracles import reference_rank

K = 7
SCORES = [ECP(), LAC(), APS(), ECP(base_rates=tuple((np.arange(K) + 1.0) / 28)), evicp.TopK()]
ids = {"ids": lambda s: s.describe()}


def make(n: int, seed: int = 0, masked: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a classifier that is better at high labels, and labels; some impossible classes if asked."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    logits = rng.normal(size=(n, K)) + (0.5 + 0.4 * labels[:, None]) * np.eye(K)[labels]
    if masked:
        mask = rng.random(logits.shape) < 0.15
        mask[np.arange(n), logits.argmax(1)] = mask[np.arange(n), labels] = False
        logits[mask] = -np.inf
    return logits, labels


def loop_threshold(scores: list[float], coverage: Fraction) -> float:
    """The k-th smallest of a list, +inf where it has too few."""
    k = reference_rank(len(scores), coverage)
    return sorted(scores)[k - 1] if k <= len(scores) else float("inf")


def loop_sets(dense: np.ndarray, logits: np.ndarray, limit) -> list[list[int]]:
    """Each row's labels within limit(row, label), ordered as the specification says."""
    rows = []
    for i, row in enumerate(dense):
        members = [k for k in range(len(row)) if row[k] <= limit(i, k)]
        rows.append(sorted(members, key=lambda k: (row[k], -logits[i, k], k)))
    return rows


def ignoring_small(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallCalibrationWarning)
        return function(*args, **kwargs)


# ---------------------------------------------------------------------------------------------------------------
# By class


@pytest.mark.parametrize("masked", [False, True], ids=["finite", "masked"])
@pytest.mark.parametrize("score", SCORES, **ids)
def test_each_class_has_its_own_threshold(cpu_backend, score, masked):
    z, y = make(400, 1, masked)
    new, _ = make(60, 2, masked)
    calibration = calibrate(z, y, score, by="class")
    own = score.scores(z)[np.arange(len(y)), y]
    for coverage in (Fraction(1, 2), Fraction(9, 10)):
        limits = [loop_threshold(own[y == k].tolist(), coverage) for k in range(K)]
        assert ignoring_small(calibration.thresholds, coverage).tolist() == limits
        sets = ignoring_small(calibration.predict, new, coverage)
        assert sets.to_lists() == loop_sets(score.scores(new), new, lambda i, k: limits[k])  # noqa: B023
        assert sets.guarantee == "class"


@pytest.mark.parametrize("score", SCORES, **ids)
def test_the_label_of_a_class_with_too_few_rows_is_in_every_set_in_its_place(cpu_backend, score):
    z, y = make(300, 3)
    keep = (y != 2) & ((y != 5) | (np.cumsum(y == 5) <= 4))  # none of class 2, four of class 5
    z, y = z[keep], y[keep]
    new, _ = make(50, 4, masked=True)
    own = score.scores(z)[np.arange(len(y)), y]
    limits = [loop_threshold(own[y == k].tolist(), Fraction(9, 10)) for k in range(K)]
    assert [k for k in range(K) if limits[k] == np.inf] == [2, 5]
    sets = ignoring_small(calibrate(z, y, score, by="class").predict, new, 0.9)
    assert sets.to_lists() == loop_sets(score.scores(new), new, lambda i, k: limits[k])
    assert all({2, 5} <= set(row) for row in sets.to_lists())


def test_classes_with_too_few_rows_are_named_with_their_rows_and_what_is_needed():
    z, y = make(300, 3)
    keep = (y != 2) & ((y != 5) | (np.cumsum(y == 5) <= 4))
    named = calibrate(z[keep], y[keep], "lac", by="class", class_names=list("abcdefg"))
    message = (
        r"^2 of 7 groups have fewer than the 9 calibration rows that coverage 0.9 needs: c \(0\), f \(4\); "
        r"their labels are in every set\.$"
    )
    with pytest.warns(SmallCalibrationWarning, match=message):
        named.predict(z[:3], 0.9)
    with pytest.warns(SmallCalibrationWarning, match=r"class 2 \(0\), class 5 \(4\)"):
        calibrate(z[keep], y[keep], "lac", by="class").thresholds(0.9)
    rng = np.random.default_rng(0)
    many = calibrate(rng.normal(size=(40, 20)), np.arange(40) % 20, "lac", by="class")
    with pytest.warns(SmallCalibrationWarning, match=r"class 7 \(2\) and 12 more; their"):
        many.thresholds(0.9)


def test_a_class_with_just_enough_rows_is_not_warned_of():
    z, y = make(4000, 5)
    keep = (y != 3) | (np.cumsum(y == 3) <= 9)
    assert np.isfinite(calibrate(z[keep], y[keep], "lac", by="class").thresholds(0.9)).all()


def test_all_classes_short_gives_full_sets():
    z, y = make(20)
    sets = ignoring_small(calibrate(z, y, "lac", by="class").predict, z[:4], 0.99)
    assert sets.sizes.tolist() == [K] * 4
    assert sets.to_lists() == np.argsort(-z[:4], axis=1, kind="stable").tolist()


def test_a_way_to_group_may_be_named_or_given():
    z, y = make(300)
    assert calibrate(z, y, by="class") == calibrate(z, y, by=ByClass) == calibrate(z, y, by=ByClass())
    assert calibrate(z, y, by="class") != calibrate(z, y)


def test_one_threshold_is_not_what_a_grouped_calibration_has():
    calibration = calibrate(*make(100), by="class")
    with pytest.raises(InputError, match=r"^this calibration has a threshold per class, not one threshold; use "):
        calibration.threshold(0.9)


# ---------------------------------------------------------------------------------------------------------------
# By group


def groups_of(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(["day", "dusk", "night"], n, p=[0.6, 0.3, 0.1])


@pytest.mark.parametrize("score", SCORES, **ids)
def test_each_group_of_rows_has_its_own_threshold(cpu_backend, score):
    z, y = make(300, 1)
    new, _ = make(80, 2, masked=True)
    given, wanted = groups_of(300, 3), groups_of(80, 4)
    calibration = calibrate(z, y, score, by=given)
    own = score.scores(z)[np.arange(300), y]
    for coverage in (Fraction(3, 10), Fraction(9, 10), Fraction(98, 100)):  # at 0.98 the night is too short
        limits = {g: loop_threshold(own[given == g].tolist(), coverage) for g in np.unique(given)}
        sets = ignoring_small(calibration.predict, new, coverage, groups=wanted)
        assert sets.to_lists() == loop_sets(score.scores(new), new, lambda i, k: limits[wanted[i]])  # noqa: B023
    assert limits["night"] == np.inf > limits["day"]


def test_full_sets_of_a_short_group_are_named():
    z, y = make(300, 1)
    calibration = calibrate(z, y, by=np.where(np.arange(300) < 5, "few", "many"))
    with pytest.warns(
        SmallCalibrationWarning, match=r"^1 of 2 groups have .* needs: few \(5\); their sets are full\.$"
    ):
        sets = calibration.predict(z[:2], 0.9, groups=["few", "many"])
    assert sets.sizes[0] == K > sets.sizes[1]


@pytest.mark.parametrize(
    "container",
    [
        lambda g: g,
        list,
        pd.Series,
        lambda g: pd.Series(g, dtype="category"),
        lambda g: np.array(g, dtype=object),
    ],
    ids=["array", "list", "series", "category", "object"],
)
def test_groups_may_come_in_any_container(container):
    z, y = make(90)
    g = groups_of(90, 0)
    expected = ignoring_small(calibrate(z, y, by=g).predict, z, 0.5, groups=g)
    assert ignoring_small(calibrate(z, y, by=container(g)).predict, z, 0.5, groups=container(g)) == expected


def test_whole_numbers_and_truth_values_are_groups_too():
    z, y = make(100)
    numbers = np.arange(100) % 3 * 10
    calibration = calibrate(z, y, by=numbers)
    assert calibration.groups.by.groups == (0, 10, 20)
    assert calibration.groups.names == ("0", "10", "20")
    assert calibration.groups_of(z[:4], [20, 0, 10, 10]).tolist() == ["20", "0", "10", "10"]
    assert calibration.groups_of(z[0], [20]).tolist() == ["20"]
    assert calibrate(z, y, by=numbers > 0).groups.by.groups == (0, 1)


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        (["day", "noon"], InputError, r"among those of the calibration \(day, dusk, night\); got noon at row 1\. Cal"),
        (["zzz", "day"], InputError, r"got zzz at row 0"),
        ([0, 1], InputTypeError, r"^groups must be strings, as in the calibration; got whole numbers\.$"),
        ([0.5, 1.5], InputTypeError, r"^groups must be whole numbers or strings; got dtype float64\.$"),
        (["day"], InputError, r"^groups must have one entry per row; got 1 for 2 rows\.$"),
        (np.ma.array(["day", "night"], mask=[0, 1]), InputTypeError, r"^groups must not be masked: "),
        ([["day"], ["day", "night"]], InputError, r"^groups must be rectangular; "),
        ([["day", "day"]], InputError, r"^groups must be one-dimensional; got shape \(1, 2\)\.$"),
        (None, InputError, r'^by="group" needs the group of each row: pass groups=\.$'),
        (["day", "d\0y"], InputError, r"must be printable"),
    ],
)
def test_groups_that_cannot_be_used(groups, error, message):
    z, y = make(90)
    calibration = calibrate(z, y, by=groups_of(90, 0))
    for act in (calibration.predict, calibration.p_values):
        args = (z[:2], 0.5) if act == calibration.predict else (z[:2],)
        with pytest.raises(error, match=message):
            act(*args, groups=groups)


def test_no_groups_are_none_to_be_grouped_by():
    with pytest.raises(InputError, match="groups must be one or more; got none"):
        ByGroup([])


def test_groups_for_calibrations_that_take_none():
    z, y = make(90)
    with pytest.raises(InputError, match=r'^groups need a calibration with by="group"\.$'):
        calibrate(z, y).predict(z, 0.5, groups=groups_of(90, 0))
    for by in ("class", "uncertainty"):
        calibration = calibrate(z, y, by=by)
        with pytest.raises(InputError, match=rf'^groups need .* this one is by="{by}"\.$'):
            calibration.predict(z, 0.5, groups=groups_of(90, 0))
    with pytest.raises(InputError, match=r"^only a calibration by group"):
        calibrate(z, y, by="class").groups_of(z)
    with pytest.raises(InputError, match=r'^groups need a calibration with by="group"\.$'):
        Calibrator().update(z, y, groups=groups_of(90, 0))


@pytest.mark.parametrize(
    ("by", "error", "message"),
    [
        (
            "clas",
            InputError,
            r"^by must be one of class, group, uncertainty, overlapping, or one group per row; got 'clas'\.$",
        ),
        (dict, InputTypeError, r"^by must be a name, ByClass\(\.\.\.\), .*; got <class 'dict'>\.$"),
        (3.5, InputError, r"one-dimensional"),
        ("group", InputError, r"needs the group of each row"),
    ],
)
def test_ways_to_group_that_do_not_exist(by, error, message):
    with pytest.raises(error, match=message):
        calibrate(*make(50), by=by)


# ---------------------------------------------------------------------------------------------------------------
# By uncertainty


def loop_uncertainty(row: np.ndarray, evidence: str) -> float:
    z = [x for x in row if x > -np.inf]
    e = [max(x, 0.0) if evidence == "relu" else float(np.logaddexp(x, 0.0)) for x in z]
    return len(row) / (len(row) + sum(e))


@pytest.mark.parametrize(
    ("score", "evidence"), [(ECP(), "relu"), (ECP(evidence="softplus"), "softplus"), (APS(), "relu")]
)
def test_uncertainty_is_that_of_the_scores_evidence(cpu_backend, score, evidence):
    z, _ = make(50, 0, masked=True)
    expected = [loop_uncertainty(row, evidence) for row in z]
    np.testing.assert_allclose(uncertainties(score, z), expected, rtol=1e-14)
    np.testing.assert_allclose(uncertainties(score, z.astype(np.float32)), expected, rtol=1e-6)
    np.testing.assert_allclose(uncertainties(score, z), evicp.opinion(z, evidence).uncertainty, rtol=1e-14)


def test_uncertainty_of_a_users_own_evidence(cpu_backend):
    z, _ = make(50, 0)
    score = ECP(evidence=lambda x: np.maximum(x, 0.0) ** 2)
    np.testing.assert_allclose(uncertainties(score, z), K / (K + (np.maximum(z, 0) ** 2).sum(1)), rtol=1e-14)
    with pytest.raises(LogitsError, match="NaN at row 3"):
        uncertainties(LAC(), np.where(np.arange(50)[:, None] == 3, np.nan, z))


@pytest.mark.parametrize("score", [ECP(), LAC()], **ids)
def test_each_band_of_uncertainty_has_its_own_threshold(cpu_backend, score):
    z, y = make(300, 1)
    new, _ = make(60, 2)
    edges = (0.55, 0.65)
    calibration = calibrate(z, y, score, by=ByUncertainty(bands=edges))
    band = np.array([sum(loop_uncertainty(row, "relu") > edge for edge in edges) for row in z])
    wanted = np.array([sum(loop_uncertainty(row, "relu") > edge for edge in edges) for row in new])
    own = score.scores(z)[np.arange(300), y]
    limits = [loop_threshold(own[band == b].tolist(), Fraction(8, 10)) for b in range(3)]
    sets = calibration.predict(new, 0.8)
    assert sets.to_lists() == loop_sets(score.scores(new), new, lambda i, k: limits[wanted[i]])
    assert calibration.groups.names == ("u <= 0.55", "0.55 < u <= 0.65", "u > 0.65")
    assert calibration.groups.counts.tolist() == np.bincount(band).tolist()
    assert calibration.groups_of(new).tolist() == [calibration.groups.names[b] for b in wanted]


def test_edges_come_from_rows_that_are_then_left_out():
    z, y = make(500, 1)
    by = ByUncertainty(bands=4, share=0.2, seed=3)
    calibration = calibrate(z, y, "lac", by=by)
    aside = np.random.default_rng(3).permutation(500)[:100]
    left = np.setdiff1d(np.arange(500), aside)
    u = uncertainties(LAC(), z)
    ascending = np.sort(u[aside])
    middles = [(ascending[i - 1] + ascending[i]) / 2 for i in (25, 50, 75)]
    np.testing.assert_allclose(calibration.groups.by.edges, middles, rtol=1e-15)
    own = LAC().scores(z)[np.arange(500), y]
    assert calibration.n == 400
    np.testing.assert_array_equal(np.sort(calibration.scores), np.sort(own[left]))


def test_which_rows_are_set_aside_does_not_depend_on_their_scores():
    z, y = make(500, 1)
    u = uncertainties(LAC(), z)
    other = (y + 1) % K  # other labels, hence other scores, of the same rows
    assert calibrate(z, y, "lac", by="uncertainty").groups.by == calibrate(z, other, "lac", by="uncertainty").groups.by
    assert u.min() < calibrate(z, y, by="uncertainty").groups.by.edges[0]


def test_rows_without_evidence_share_one_band():
    z, y = make(400, 1)
    z[:300] -= 20.0  # most rows have no evidence at all: u = 1
    with pytest.warns(SuspiciousInputWarning, match=r"[123] band\(s\) of uncertainty instead of 5: .*68% have u = 1"):
        calibration = calibrate(np.roll(z, 7, axis=0), np.roll(y, 7), "lac", by="uncertainty")
    edges = calibration.groups.by.edges
    assert len(edges) < 4
    assert np.all(edges < 1)
    assert (calibration.groups.counts > 0).all()
    with pytest.warns(SuspiciousInputWarning, match=r"1 band\(s\) .* 100% have u = 1, no evidence at all"):
        flat = calibrate(z - 50.0, y, "lac", by="uncertainty")
    assert flat.groups.names == ("any u",)
    assert flat.predict(z - 50.0, 0.8).sizes.sum() > 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bands": 0}, InputError, r"bands must be at least 1"),
        ({"bands": (0.5, 0.4)}, InputError, r"ascending edges in \(0, 1\]"),
        ({"bands": (0.0, 0.4)}, InputError, r"ascending edges in \(0, 1\]"),
        ({"bands": (0.5, np.nan)}, InputError, r"ascending edges in \(0, 1\]"),
        ({"share": 1.0}, InputError, r"share must be strictly between 0 and 1"),
        ({"seed": -1}, InputError, r"seed must be at least 0"),
    ],
)
def test_bands_that_cannot_be_used(options, error, message):
    with pytest.raises(error, match=message):
        ByUncertainty(**options)


def test_too_few_rows_for_the_bands():
    with pytest.raises(InputError, match=r"^5 bands of uncertainty need .*; 0.1 of 30 rows are 3\. Calibrate on more"):
        calibrate(*make(30), by="uncertainty")


# ---------------------------------------------------------------------------------------------------------------
# Clusters


def clustered(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Even classes are easy, odd ones hard."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    strength = np.where(labels % 2 == 0, 7.0, 1.0)
    return rng.normal(size=(n, n_classes)) + strength[:, None] * np.eye(n_classes)[labels], labels


def test_rare_classes_with_similar_scores_share_a_cluster():
    z, y = clustered(2400, 200)
    calibration = calibrate(z, y, "lac", by=ByClass(rare="cluster", clusters=2, share=0.5, rare_below=100))
    found = np.array(calibration.groups.by.clusters)
    assert len(found) == 200
    easy, hard = np.bincount(found[::2], minlength=2), np.bincount(found[1::2], minlength=2)
    assert easy.max() >= 95
    assert hard.max() >= 90
    assert easy.argmax() != hard.argmax()
    assert calibration.n == 1200
    assert calibration.groups.names == tuple(f"cluster {i} ({c} classes)" for i, c in enumerate(np.bincount(found)))
    limits = calibration.thresholds(0.9)
    assert limits[hard.argmax()] > limits[easy.argmax()] + 1


def test_clusters_are_the_same_every_time_and_come_from_their_own_rows():
    z, y = clustered(2400, 200)
    by = ByClass(rare="cluster", clusters=3, share=0.4, seed=5, rare_below=100)
    first = calibrate(z, y, "lac", by=by)
    assert calibrate(z, y, "lac", by=by) == first
    aside = np.random.default_rng(5).permutation(2400)[:960]
    left = np.setdiff1d(np.arange(2400), aside)
    changed = z.copy()
    changed[left] = np.roll(changed[left], 1, axis=1)  # other scores, but only in rows the clusters must not see
    assert calibrate(changed, y, "lac", by=by).groups.by == first.groups.by


def test_common_classes_stay_alone_and_keep_all_their_rows():
    z, y = clustered(2000, 100)
    y[:600] = np.arange(600) % 3  # three classes of 200 rows and more
    calibration = calibrate(z, y, "lac", by=ByClass(rare="cluster", clusters=2, rare_below=100))
    numbers = np.array(calibration.groups.by.clusters)
    assert numbers[:3].tolist() == [0, 1, 2]
    assert set(numbers[3:]) == {3, 4}
    counts = np.bincount(y)
    assert calibration.groups.counts[:3].tolist() == counts[:3].tolist()
    assert calibration.groups.names[:3] == ("class 0", "class 1", "class 2")
    own = LAC().scores(z)[np.arange(len(y)), y]
    limits = calibration.thresholds(0.9)
    assert limits[:3].tolist() == [loop_threshold(own[y == k].tolist(), Fraction(9, 10)) for k in range(3)]


def test_classes_without_rows_get_a_cluster_too():
    z, y = clustered(1000, 60)
    keep = y < 40
    calibration = calibrate(z[keep], y[keep], "lac", by=ByClass(rare="cluster", clusters=2, rare_below=100))
    assert len(calibration.groups.by.clusters) == 60
    assert np.isfinite(calibration.predict(z[:5], 0.9).sizes).all()


def test_clusters_may_be_given():
    z, y = make(300, 1)
    given = [9, 9, 4, 4, 4, 0, 0]
    calibration = calibrate(z, y, "lac", by=ByClass(clusters=given))
    assert calibration.groups.by.clusters == (2, 2, 1, 1, 1, 0, 0)
    own = LAC().scores(z)[np.arange(300), y]
    limits = {
        c: loop_threshold(own[np.isin(y, np.flatnonzero(np.array(given) == c))].tolist(), Fraction(9, 10))
        for c in given
    }
    expected = loop_sets(LAC().scores(z[:40]), z[:40], lambda i, k: limits[given[k]])
    assert calibration.predict(z[:40], 0.9).to_lists() == expected
    assert calibration.n == 300


def test_one_cluster_is_one_threshold():
    z, y = make(300, 1)
    pooled = calibrate(z, y, by=ByClass(clusters=[0] * K))
    assert pooled.predict(z, 0.9).to_lists() == calibrate(z, y).predict(z, 0.9).to_lists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rare": "drop"}, r'^rare must be "full" or "cluster"; got \'drop\'\.$'),
        ({"clusters": 3}, r'^a number of clusters is only used with rare="cluster"\.$'),
        ({"rare": "cluster", "clusters": 0}, r"clusters must be at least 1"),
        ({"clusters": [[0, 1]]}, r"^clusters must be a number, or one cluster number >= 0 per class\.$"),
        ({"clusters": [0, -1]}, r"^clusters must be a number, or one"),
        ({"rare_below": 0}, r"rare_below must be at least 1"),
    ],
)
def test_classes_that_cannot_be_grouped_so(options, message):
    with pytest.raises(InputError, match=message):
        ByClass(**options)


def test_clusters_of_another_number_of_classes():
    with pytest.raises(InputError, match=r"^clusters must have one number per class; got 3 for 7\.$"):
        calibrate(*make(50), by=ByClass(clusters=[0, 1, 1]))


def test_k_means_finds_what_is_apart_and_survives_what_is_not():
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    truth = rng.integers(0, 3, 200)
    found = clusters.k_means(centres[truth] + 0.3 * rng.normal(size=(200, 2)), np.ones(200), 3, seed=1)
    pairs = set(zip(truth.tolist(), found.tolist(), strict=True))
    assert len(pairs) == 3
    assert clusters.k_means(np.ones((5, 2)), np.ones(5), 3, seed=0).tolist() == [0] * 5
    assert len(clusters.k_means(rng.normal(size=(4, 2)), np.zeros(4), 9, seed=0)) == 4


def test_features_of_classes_are_bounded_by_infinite_scores_and_few_rows():
    scores = np.array([0.0, 1.0, np.inf, np.inf, 2.0])
    features, counts = clusters.class_features(scores, np.array([0, 0, 1, 1, 2]), 4)
    assert np.isfinite(features).all()
    assert counts.tolist() == [2, 2, 1, 0]
    assert (features[1] > features[0]).all()
    np.testing.assert_array_equal(features[3], clusters.class_features(scores[:0], np.empty(0, int), 1)[0][0])


# ---------------------------------------------------------------------------------------------------------------
# What holds for every way to group


def ways() -> dict[str, dict]:
    given = groups_of(600, 9)
    return {
        "class": {"by": "class"},
        "cluster": {"by": ByClass(rare="cluster", clusters=2, rare_below=10_000)},
        "given clusters": {"by": ByClass(clusters=[0, 0, 1, 1, 2, 2, 2])},
        "group": {"by": given},
        "numbers": {"by": np.arange(600) % 4},
        "uncertainty": {"by": "uncertainty"},
        "edges": {"by": ByUncertainty(bands=(0.6,))},
    }


def new_groups(calibration, n: int):
    """Groups for n new rows, where the calibration wants them."""
    by = calibration.groups.by
    return np.array(by.groups)[np.arange(n) % len(by.groups)] if isinstance(by, ByGroup) else None


@pytest.fixture(params=ways())
def calibration(request) -> evicp.Calibration:
    return calibrate(*make(600, 11), **ways()[request.param])


def test_batches_and_merged_shards_give_the_same_calibration():
    z, y = make(600, 11)
    for name, options in ways().items():
        whole = calibrate(z, y, **options)
        by, given = options["by"], None
        if isinstance(by, np.ndarray):
            by, given = "group", by
        parts = [Calibrator(by=by), Calibrator(by=by)]
        for start, stop in ((0, 1), (1, 100), (100, 100), (100, 350), (350, 600)):
            calibrator = parts[0] if stop <= 350 else parts[1]
            calibrator.update(z[start:stop], y[start:stop], groups=None if given is None else given[start:stop])
        assert parts[0].merge(parts[1]).finish() == whole, name


@pytest.mark.parametrize("name", ways())
def test_more_rows_join_the_groups_that_were_found(name, tmp_path):
    z, y = make(600, 11)
    options = ways()[name]
    given = options["by"] if isinstance(options["by"], np.ndarray) else None
    some = calibrate(z[:400], y[:400], by=options["by"] if given is None else given[:400])
    some.save(tmp_path / "some.safetensors")
    new = None if given is None else given[400:]
    grown = evicp.load(tmp_path / "some.safetensors").extended(z[400:], y[400:], groups=new)
    assert grown.groups.by == some.groups.by
    assert grown.groups.names == some.groups.names
    assert grown.n == some.n + 200
    later = Calibrator(by=some.groups.by).update(z[400:], y[400:], groups=new).finish()
    for group in range(len(some.groups.names)):
        parts = [one.groups.part(one.scores, group) for one in (some, later)]
        assert grown.groups.part(grown.scores, group).tobytes() == np.sort(np.concatenate(parts)).tobytes()
    if some.n == 400:  # nothing was set aside
        assert grown == calibrate(z, y, **options)


def test_rows_of_groups_that_were_not_calibrated_cannot_join():
    z, y = make(40)
    calibration = calibrate(z, y, by=["a", "b"] * 20)
    with pytest.raises(InputError, match=r"groups must be among those of the calibration \(a, b\); got c at row 1"):
        calibration.extended(z[:2], y[:2], groups=["a", "c"])
    with pytest.raises(InputError, match='by="group" needs the group of each row: pass groups='):
        calibration.extended(z[:2], y[:2])
    with pytest.raises(InputError, match='groups need a calibration with by="group"'):
        calibrate(z, y, by="class").extended(z[:2], y[:2], groups=["a", "b"])
    with pytest.raises(InputError, match="weights need a"):
        calibration.extended(z[:2], y[:2], groups=["a", "b"], weights=[1.0, 1.0])


def test_a_batch_that_raises_leaves_the_calibrator_as_it_was():
    z, y = make(40)
    calibrator = Calibrator(by="group").update(z, y, groups=["a"] * 40)
    for bad in (None, ["a"] * 39, [0.5] * 40):
        with pytest.raises((InputError, InputTypeError)):
            calibrator.update(z, y, groups=bad)
    assert calibrator.n == 40
    assert calibrator.finish() == calibrate(z, y, by=["a"] * 40)


def test_batches_must_agree_on_what_a_group_is():
    z, y = make(40)
    calibrator = Calibrator(by="group").update(z, y, groups=["a"] * 40).update(z, y, groups=[1] * 40)
    with pytest.raises(InputTypeError, match=r"^groups must be whole numbers in every batch, or strings in every"):
        calibrator.finish()


def test_only_calibrators_with_the_same_groups_merge():
    with pytest.raises(InputError, match=r"^only calibrators with the same groups can be merged; got ByClass\("):
        Calibrator(by="class").merge(Calibrator())
    with pytest.raises(InputError, match=r"^only calibrators with the same groups can be merged"):
        Calibrator(by=ByUncertainty(bands=3)).merge(Calibrator(by="uncertainty"))


def test_several_coverages_in_one_call_are_the_calls_one_by_one(cpu_backend, calibration):
    new, _ = make(70, 12, masked=True)
    groups = new_groups(calibration, 70)
    wanted = [0.5, 0.99, 0.8]
    together = ignoring_small(calibration.predict, new, wanted, groups=groups)
    assert together == [ignoring_small(calibration.predict, new, c, groups=groups) for c in wanted]
    smaller, larger = together[2].mask(), together[1].mask()
    assert not np.any(smaller & ~larger)


def test_chunks_of_rows_and_single_rows_get_the_same_sets(cpu_backend, calibration):
    new, _ = make(30, 12)
    groups = new_groups(calibration, 30)
    whole = ignoring_small(calibration.predict, new, 0.9, groups=groups)
    for i in range(30):
        part = None if groups is None else groups[i : i + 1]
        assert ignoring_small(calibration.predict, new[i], 0.9, groups=part).to_lists() == [whole[i].tolist()]
    none = ignoring_small(calibration.predict, new[:0], 0.9, groups=None if groups is None else groups[:0])
    assert len(none) == 0
    assert none.labels.size == 0


def test_a_p_value_is_the_share_of_the_group_that_scores_as_high(calibration):
    new, truth = make(20, 12, masked=True)
    groups = new_groups(calibration, 20)
    scores = calibration.score.scores(new)
    by_label = isinstance(calibration.groups.by, ByClass)
    numbers = np.broadcast_to(calibration.groups.by.numbers(calibration.score, new, groups), scores.shape)
    p = calibration.p_values(new, groups=groups)
    for i in range(20):
        for k in range(K):
            part = calibration.groups.part(calibration.scores, numbers[i, k])
            assert p[i, k] == (1 + sum(part >= scores[i, k])) / (len(part) + 1)
    np.testing.assert_array_equal(calibration.p_values(new, truth, groups=groups), p[np.arange(20), truth])
    assert by_label == (len(set(numbers[0])) > 1)


def test_a_label_is_outside_the_set_exactly_if_its_p_value_is_at_most_the_rest(cpu_backend, calibration):
    new, _ = make(40, 13)
    groups = new_groups(calibration, 40)
    numbers = np.broadcast_to(calibration.groups.by.numbers(calibration.score, new, groups), new.shape)
    p = calibration.p_values(new, groups=groups)
    for coverage in (Fraction(1, 2), Fraction(9, 10), Fraction(99, 100)):
        mask = ignoring_small(calibration.predict, new, coverage, groups=groups).mask()
        for i in range(40):
            for k in range(K):
                n = int(calibration.groups.counts[numbers[i, k]])
                exact = Fraction(round(p[i, k] * (n + 1)), n + 1)
                assert mask[i, k] == (exact > 1 - coverage)


def test_empty_sets_can_be_filled(cpu_backend, calibration):
    new, _ = make(40, 14)
    groups = new_groups(calibration, 40)
    plain = calibration.predict(new, 0.2, groups=groups)
    filled = calibration.predict(new, 0.2, groups=groups, allow_empty=False)
    assert (plain.sizes == 0).any()
    assert filled.filled
    for i in range(40):
        assert filled[i].tolist() == (plain[i].tolist() or [int(new[i].argmax())])


def test_a_saved_calibration_is_the_same_calibration(calibration, tmp_path):
    path = tmp_path / "cal.safetensors"
    calibration.save(path)
    loaded = evicp.load(path)
    assert loaded == calibration
    assert repr(loaded) == repr(calibration)
    assert artifact.checksum(loaded) == artifact.checksum(calibration)
    new, _ = make(20, 15)
    groups = new_groups(calibration, 20)
    assert ignoring_small(loaded.predict, new, 0.9, groups=groups) == ignoring_small(
        calibration.predict, new, 0.9, groups=groups
    )


def test_the_checksum_knows_the_groups():
    z, y = make(600, 11)
    sums = {artifact.checksum(calibrate(z, y, **options)) for options in ({}, *ways().values())}
    assert len(sums) == 1 + len(ways())


def test_a_grouped_file_has_one_sorted_tensor_per_group(tmp_path):
    from safetensors.numpy import load_file

    z, y = make(300, 1)
    keep = y != 4
    calibration = calibrate(z[keep], y[keep], "lac", by="class")
    calibration.save(tmp_path / "cal.safetensors")
    tensors = load_file(tmp_path / "cal.safetensors")
    own = LAC().scores(z)[np.arange(300), y]
    assert set(tensors) == {f"scores.{k}" for k in range(K)}
    for k in range(K):
        np.testing.assert_array_equal(tensors[f"scores.{k}"], np.sort(own[(y == k) & keep]))


def forged(path, change) -> None:
    """Rewrite a saved calibration with a changed description and a checksum that fits it."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    content = json.loads(header["__metadata__"]["evicp"])
    change(content, tensors)
    description = json.dumps(content, sort_keys=True, separators=(",", ":"))
    named = sorted(tensors, key=lambda name: int(name.partition(".")[2] or 0))
    digest = artifact._digest(description, {name: tensors[name] for name in named})
    save_file(tensors, path, {"evicp": description, "sha256": digest})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, t: c["groups"].update(by="moon"), r"kind of groups, 'moon', is not known"),
        (lambda c, t: c["groups"]["parameters"].pop("seed"), r"not known to this version of evicp"),
        (
            lambda c, t: c["groups"]["parameters"].update(clusters=[0] * K),
            r"it states 1 groups but contains the scores of 7",
        ),
        (lambda c, t: c["groups"]["parameters"].update(clusters=[0] * 3), r"clusters must have one number per class"),
        (lambda c, t: c["groups"]["parameters"].update(rare="cluster"), r"0 groups but contains the scores of 7"),
        (lambda c, t: c["groups"].update(by="group", parameters={"groups": list("gfedcba")}), r"states 7 groups but"),
        (
            lambda c, t: c["groups"].update(by="uncertainty", parameters={"bands": 7, "share": 0.1, "seed": 0}),
            r"0 groups",
        ),
        (lambda c, t: c.update(groups=[1]), r"its groups are malformed"),
        (lambda c, t: c.pop("groups"), r"its description has the fields"),
        (lambda c, t: c.update(weights="rows"), r"its description has the fields"),
        (lambda c, t: t.update({"scores.3": t["scores.3"][::-1].copy()}), r"its scores are not ascending"),
        (lambda c, t: c.update(n=1), r"it states n = 1 but contains"),
    ],
)
def test_a_file_with_impossible_groups_is_refused(tmp_path, change, message):
    path = tmp_path / "cal.safetensors"
    calibrate(*make(200), "lac", by="class").save(path)
    forged(path, lambda content, tensors: None)
    assert evicp.load(path) == calibrate(*make(200), "lac", by="class")
    forged(path, change)
    with pytest.raises(ArtifactError, match=message):
        evicp.load(path)


def test_the_way_a_calibration_is_grouped_shows(calibration):
    by = calibration.groups.by
    assert f", by {by.kind} ({len(calibration.groups.names)} groups))" in repr(calibration)
    assert calibration.guarantee == by.kind
    assert len(calibration.groups.counts) == len(calibration.groups.names)
    assert calibration.groups.counts.sum() == calibration.n


# ---------------------------------------------------------------------------------------------------------------
# Evaluation and certificate


def test_an_evaluation_has_coverage_and_size_of_each_group():
    z, y = make(600, 1)
    new, truth = make(500, 2)
    given, wanted = groups_of(600, 3), groups_of(500, 4)
    sets = calibrate(z, y, by=given).predict(new, 0.8, groups=wanted)
    found = evicp.evaluate(sets, truth, groups=wanted).group_coverage
    assert found.names == ("day", "dusk", "night")
    for i, name in enumerate(found.names):
        rows = np.flatnonzero(wanted == name)
        hits = [truth[r] in sets[int(r)] for r in rows]
        assert found.counts[i] == len(rows)
        assert found.coverage[i] == pytest.approx(np.mean(hits), abs=1e-15)
        assert found.mean_size[i] == pytest.approx(np.mean([len(sets[int(r)]) for r in rows]), abs=1e-13)
    assert found.worst == found.coverage.min()
    assert found.worst_group == found.names[int(found.coverage.argmin())]
    assert found.mean_gap == pytest.approx(np.abs(found.coverage - 0.8).mean())


def test_groups_of_true_and_false_have_one_name_everywhere():
    z, y = make(600)
    calibration = calibrate(z, y, by=z[:, 0] > 0)
    sets = calibration.predict(z, 0.8, groups=z[:, 0] > 0)
    evaluation = evicp.evaluate(sets, y, groups=z[:, 0] > 0)
    assert evaluation.group_coverage.names == calibration.groups.names == ("0", "1")
    assert calibration.certificate(0.8, evaluation).observed["groups"] == 2


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        ([1, "1"], InputTypeError, r"^groups must be whole numbers or strings, not both\.$"),
        (np.array([1, 2**64 - 1], np.uint64), InputError, r"^groups must be below 2\^63; got 18446744073709551615\.$"),
        (np.array(["a", None], object), InputTypeError, r"got dtype object\. Are some missing\? Row 1 has None\.$"),
    ],
)
def test_groups_that_would_be_mistaken_for_others(groups, error, message):
    z, y = make(2)
    with pytest.raises(error, match=message):
        calibrate(z, y, by=groups)
    with pytest.raises(error, match=message):
        evicp.evaluate(calibrate(z, y, "lac").predict(z, 0.5), y, groups=groups)


def test_rows_per_group_cannot_be_changed():
    calibration = calibrate(*make(50), by="class")
    with pytest.raises(ValueError, match="read-only"):
        calibration.groups.counts[0] = 7


def test_an_evaluation_of_groups_prints_and_travels():
    z, y = make(600, 1)
    numbers = np.arange(600) % 25
    sets = ignoring_small(calibrate(z, y, by=numbers).predict, z, 0.8, groups=numbers)
    evaluation = evicp.evaluate(sets, y, groups=numbers)
    content = json.loads(json.dumps(evaluation.to_dict()))["group_coverage"]
    assert len(content["coverage"]) == len(content["names"]) == 25
    assert content["worst_group"] in content["names"]
    text = repr(evaluation)
    assert "and 5 more" in text  # the twenty groups covered least
    assert evaluation.guarantee == "group"
    assert evicp.evaluate(sets, y).to_dict()["group_coverage"] is None
    with pytest.raises(InputError, match=r"^groups must have one entry per row; got 3 for 600 rows\.$"):
        evicp.evaluate(sets, y, groups=[1, 2, 3])


def test_a_certificate_promises_in_every_group(calibration):
    certificate = calibration.certificate(0.8, date="2024-09-09")
    assert certificate.by == calibration.groups.by.kind
    assert [promise.name for promise in certificate.groups] == list(calibration.groups.names)
    limits = calibration.thresholds(0.8)
    for promise, n, limit in zip(certificate.groups, calibration.groups.counts.tolist(), limits, strict=True):
        assert (promise.n, promise.rank) == (n, reference_rank(n, Fraction(8, 10)))
        assert promise.threshold == limit
        assert promise.expected_coverage == promise.rank / (n + 1)
        assert promise.coverage_interval == evicp.Reliability(n, 0.8).interval(0.95)
    smallest = min(certificate.groups, key=lambda promise: promise.n)
    assert (certificate.threshold, certificate.rank) == (smallest.threshold, smallest.rank)
    assert certificate.n == calibration.n
    content = json.loads(certificate.to_json())
    assert content["groups"][0]["name"] == certificate.groups[0].name
    assert f"smallest group        {smallest.name}, {smallest.n} rows" in str(certificate)
    assert "0.8 in every" in str(certificate)
    assert "single classes" not in certificate.caveat
    assert certificate.to_html().count("<tr>") == len(certificate._lines())


def test_a_certificate_names_eight_of_many_groups_without_a_threshold():
    given = np.arange(40) % 20
    certificate = ignoring_small(calibrate(*make(40), by=given).certificate, 0.9)
    named = ", ".join(map(str, range(8)))
    assert f"without threshold     20, too few rows: {named} and 12 more" in str(certificate)


def test_a_certificate_names_the_groups_without_a_threshold():
    z, y = make(300, 3)
    keep = (y != 2) & ((y != 5) | (np.cumsum(y == 5) <= 4))
    calibration = calibrate(z[keep], y[keep], by="class", class_names=list("abcdefg"))
    certificate = ignoring_small(calibration.certificate, 0.9)
    assert "without threshold     2, too few rows: c, f" in str(certificate)
    assert np.isfinite(certificate.threshold)
    none, few = certificate.groups[2], certificate.groups[5]
    assert (none.n, none.threshold, none.expected_coverage) == (0, np.inf, 1.0)
    assert (few.n, few.rank, few.coverage_interval) == (4, 5, (1.0, 1.0))
    assert json.loads(certificate.to_json())["groups"][2]["threshold"] == "inf"


def test_a_certificate_judges_every_group():
    z, y = make(2000, 1)
    new, truth = make(2000, 2)
    given, wanted = groups_of(2000, 3), groups_of(2000, 4)
    calibration = calibrate(z, y, by=given)
    sets = calibration.predict(new, 0.8, groups=wanted)
    evaluation = evicp.evaluate(sets, truth, groups=wanted)
    certificate = calibration.certificate(0.8, evaluation)
    assert certificate.observed["compatible"]
    assert certificate.observed["groups"] == 3
    assert certificate.groups[2].observed["m"] == np.sum(wanted == "night")
    assert "3 groups compatible" in str(certificate)
    broken = truth.copy()
    night = np.flatnonzero(wanted == "night")
    broken[night] = (broken[night] + 1) % K  # one of three groups, a tenth of the rows
    certificate = calibration.certificate(0.8, evicp.evaluate(sets, broken, groups=wanted))
    assert certificate.observed["incompatible"] == ["night"]
    assert "1 of 3 groups NOT compatible: night" in str(certificate)
    with pytest.raises(InputError, match=r"^the evaluation has no groups; evaluate with groups="):
        calibration.certificate(0.8, evicp.evaluate(sets, truth))
    with pytest.raises(InputError, match=r"^the evaluation has a group 'x' that is not of this calibration\.$"):
        calibration.certificate(0.8, evicp.evaluate(sets, truth, groups=["x"] * 2000))


def test_a_certificate_judges_every_class_and_cluster():
    z, y = make(3000, 1)
    new, truth = make(3000, 2)
    for by in (ByClass(), ByClass(clusters=[0, 0, 0, 1, 1, 1, 1])):
        calibration = calibrate(z, y, by=by)
        sets = calibration.predict(new, 0.8)
        certificate = calibration.certificate(0.8, evicp.evaluate(sets, truth))
        assert certificate.observed["compatible"]
        members = np.flatnonzero(calibration.groups.by.of_labels(K) == 0)
        rows = np.isin(truth, members)
        assert certificate.groups[0].observed["m"] == rows.sum()
        assert certificate.groups[0].observed["coverage"] == pytest.approx(sets.contains(truth)[rows].mean())
        hard = calibrate(z, y).predict(new, 0.8)  # marginal sets do not keep the guarantee of a class
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("evicp.calibration.certificate._check_same", lambda *_: None)
            assert not calibration.certificate(0.8, evicp.evaluate(hard, truth)).observed["compatible"]


def test_needed_rows_are_those_of_the_rank():
    for coverage in (0.5, 0.8, 0.9, 0.95, 0.99, Fraction(1, 3)):
        n = rows_needed(coverage)
        assert evicp.conformal_rank(n, coverage) <= n
        assert evicp.conformal_rank(n - 1, coverage) > n - 1


def test_quantiles_of_segments_are_the_quantiles_of_each():
    rng = np.random.default_rng(0)
    counts = np.array([0, 3, 1, 0, 10, 2, 0])
    parts = [np.sort(rng.normal(size=n)) for n in counts]
    found = clusters._segment_quantiles(np.concatenate(parts), counts)
    for part, row in zip(parts, found, strict=True):
        expected = np.quantile(part, clusters._LEVELS) if len(part) else np.zeros(len(clusters._LEVELS))
        np.testing.assert_allclose(row, expected, atol=1e-12)


def test_bands_that_lie_close_together_have_names_of_their_own():
    by = ByUncertainty(bands=(0.12344, 0.123441, 0.99999))
    names = by.names(10, None)
    assert len(set(names)) == 4
    assert names[-1] == "u > 0.99999"
    assert ByUncertainty(bands=(0.25, 0.5)).names(10, None) == ["u <= 0.25", "0.25 < u <= 0.5", "u > 0.5"]


def test_the_thresholds_of_many_levels_are_not_kept():
    z, y = make(400, 1)
    calibration = calibrate(z, y, "lac", by="class")
    first = calibration.thresholds(0.5).copy()
    for i in range(1000):
        calibration.thresholds(Fraction(500 + i % 400, 1000))
    assert len(calibration._levels) <= 64
    np.testing.assert_array_equal(calibration.thresholds(0.5), first)


def test_groupings_with_whole_numbers_of_numpy_can_be_saved(tmp_path):
    z, y = make(400, 1)
    for by in (ByUncertainty(seed=np.int64(0)), ByClass(rare_below=np.int64(20), seed=np.int32(1))):
        calibrate(z, y, by=by).save(tmp_path / "c.safetensors", overwrite=True)
        assert evicp.load(tmp_path / "c.safetensors").groups.by.seed == by.seed


def test_clusters_that_leave_no_rows_are_refused():
    with pytest.raises(InputError, match="clusters are estimated on rows set aside, here all 5"):
        calibrate([[1.0, 2.0, 0.0]] * 5, [1] * 5, "lac", by=ByClass(rare="cluster", share=0.95))


def test_rows_set_aside_by_a_grouping_chose_no_score():
    z, y = make(1000, 1)
    alone = calibrate(z, y, "auto").chosen_on
    for by in ("uncertainty", ByClass(rare="cluster", rare_below=400)):
        assert calibrate(z, y, "auto", by=by).chosen_on == alone


def test_edges_lie_clear_of_every_value_they_were_found_on():
    rng = np.random.default_rng(0)
    u = rng.choice([0.2, 0.3, 0.30001, 0.5, 1.0], 1000) * (1 - 1e-9 * rng.random(1000))  # rounding of five values
    edges = by_uncertainty._edges(u, 4)
    assert len(edges)
    assert np.all(np.abs(edges[:, None] - u[None, :]) > 4e-6 * u)
    assert by_uncertainty._edges(np.full(50, 0.7), 5).size == 0
    assert by_uncertainty._edges(np.ones(1), 2).size == 0


def test_thresholds_asked_for_by_many_threads(monkeypatch):
    """What is remembered is forgotten now and then, also between one thread's finding a threshold and returning it."""
    z, y = make(300)
    calibration = calibrate(z, y, "lac", by=groups_of(300, 0))
    monkeypatch.setattr("evicp.calibration.calibration.warn_of", lambda *_: calibration._levels.clear())
    assert calibration.thresholds(Fraction(999, 1000)).tolist() == [np.inf] * len(calibration.groups.names)
