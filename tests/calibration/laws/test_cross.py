"""Cross-calibration: sets and p-values by their definition, and what is proven of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import ByClass, ByGroup, ByUncertainty, CrossCalibration, calibrate
from evicp.errors import InputError, InputTypeError, LogitsError, SmallCalibrationWarning, SuspiciousInputWarning

K = 4
#: (n + 1) * coverage is whole for some of the sizes below, and not for others.
COVERAGES = [0.5, 0.75, 0.9, Fraction(2, 3)]


def problem(
    n: int = 120, folds: int = 3, seed: int = 0, decimals: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of every row by each fold's model, rounded so that there are ties; labels; the fold of each row."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    logits = (rng.normal(size=(folds, n, K)) + 2 * np.eye(K)[labels]).round(decimals)
    return logits, labels, np.arange(n) % folds


def crossed(
    logits: np.ndarray, labels: np.ndarray, fold: np.ndarray, score: Any = "lac", by: Any = None, groups: Any = None
):
    parts = []
    for number, own in enumerate(logits):
        rows = fold == number
        calibrator = evicp.Calibrator(score, by=by)
        calibrator.update(own[rows], labels[rows], groups=None if groups is None else groups[rows])
        parts.append(calibrator.finish())
    return CrossCalibration(parts)


def by_definition(score, logits, labels, fold, new, together) -> tuple[np.ndarray, np.ndarray]:
    """How many rows are at least as odd as each label of each new row, of how many it is compared with; one by one."""
    scores = [evicp.method.scores.as_score(score).scores(own) for own in logits]
    new_scores = [evicp.method.scores.as_score(score).scores(own) for own in new]
    at_least, n = np.zeros(new.shape[1:], int), np.zeros(new.shape[1:], int)
    for x in range(new.shape[1]):
        for y in range(K):
            for i, label in enumerate(labels):
                if together(i, x, y):
                    n[x, y] += 1
                    at_least[x, y] += scores[fold[i]][i, label] >= new_scores[fold[i]][x, y]
    return at_least, n


GROUPS = np.arange(120) % 5  # given to folds by row number modulo 3, so that all meet
NEW_GROUPS = np.arange(30) % 5


@pytest.mark.parametrize("score", ["ecp", "lac", "aps"])
@pytest.mark.parametrize("kind", [None, "class", "group"])
def test_sets_and_p_values_are_those_of_the_definition(score, kind) -> None:
    logits, labels, fold = problem(150)
    logits, new, labels, fold = logits[:, :120], logits[:, 120:], labels[:120], fold[:120]
    together = {
        None: lambda i, x, y: True,
        "class": lambda i, x, y: labels[i] == y,
        "group": lambda i, x, y: GROUPS[i] == NEW_GROUPS[x],
    }[kind]
    by, groups, new_groups = (ByGroup(range(5)), GROUPS, NEW_GROUPS) if kind == "group" else (kind, None, None)
    cross = crossed(logits, labels, fold, score, by, groups)
    at_least, n = by_definition(score, logits, labels, fold, new, together)
    np.testing.assert_array_equal(cross.p_values(new, groups=new_groups), (1 + at_least) / (1 + n))
    several = cross.predict(new, COVERAGES, groups=new_groups)
    for coverage, sets in zip(COVERAGES, several, strict=True):
        exact = Fraction(str(coverage))
        p = [Fraction(1 + a, 1 + m) for a, m in zip(at_least.ravel().tolist(), n.ravel().tolist(), strict=True)]
        inside = np.reshape([one > 1 - exact for one in p], n.shape)
        np.testing.assert_array_equal(sets.mask(), inside)
        assert sets == cross.predict(list(new), coverage, groups=new_groups)
        assert (sets.guarantee, sets.n_calibration, sets.score) == (kind or "marginal", None, score)
        for row, members in enumerate(sets):
            keys = [(-(1 + at_least[row, y]) / (1 + n[row, y]), -new[:, row, y].mean(), y) for y in members]
            assert keys == sorted(keys)


def test_folds_of_one_model_are_one_calibration() -> None:
    logits, labels, fold = problem(199)
    one = np.stack([logits[0]] * 3)
    cross = crossed(one[:, :139], labels[:139], fold[:139])
    whole = calibrate(one[0, :139], labels[:139], "lac")
    assert cross.n == whole.n == 139
    np.testing.assert_array_equal(cross.p_values(one[:, 139:]), whole.p_values(one[0, 139:]))
    for coverage in (0.1, 0.3, 0.5, 0.9, 0.95, Fraction(139, 140)):  # (n + 1) * coverage is whole: 14, 42, 70, ...
        np.testing.assert_array_equal(
            cross.predict(one[:, 139:], coverage).mask(), whole.predict(one[0, 139:], coverage).mask()
        )


@pytest.mark.parametrize("by", [None, "class"])
def test_empty_sets_get_their_best_label(by) -> None:
    logits, labels, fold = problem(300, decimals=9)
    labels = np.where(np.arange(300) % 2, 0, labels)  # classes of different size
    cross = crossed(logits[:, :200], labels[:200], fold[:200], by=by)
    plain, filled = (cross.predict(logits[:, 200:], 0.5, allow_empty=allow) for allow in (True, False))
    assert (plain.sizes == 0).any()
    assert filled.filled
    np.testing.assert_array_equal(filled.sizes, np.maximum(plain.sizes, 1))
    best = cross.p_values(logits[:, 200:]).argmax(1)[plain.sizes == 0]
    np.testing.assert_array_equal([filled[i][0] for i in np.flatnonzero(plain.sizes == 0)], best)
    none = cross.predict(logits[:, :0], 0.9)
    assert len(none) == 0


class Means:
    """The simplest model that overfits: distances to the means of few training rows."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.means = np.stack([x[y == k].mean(0) if np.any(y == k) else np.zeros(x.shape[1]) for k in range(K)])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return -((x[:, None] - self.means) ** 2).sum(-1)


@pytest.mark.parametrize(("n", "folds"), [(40, 2), (40, 5), (19, 19)])
def test_coverage_is_close_to_what_was_asked_and_above_what_is_proven(n: int, folds: int) -> None:
    covered, in_sample = [], []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, K, n + 25)
        x = rng.normal(size=(n + 25, 12)) + 1.2 * np.eye(12)[y]
        fold = rng.permutation(np.arange(n) % folds)
        models = [Means(x[:n][fold != f], y[:n][fold != f]) for f in range(folds)]
        parts = [calibrate(model(x[:n][fold == f]), y[:n][fold == f], "lac") for f, model in enumerate(models)]
        cross = CrossCalibration(parts)
        covered.append(cross.predict([model(x[n:]) for model in models], 0.8).contains(y[n:]).mean())
        model = Means(x[:n], y[:n])  # the control: rows that trained it calibrate it
        in_sample.append(calibrate(model(x[:n]), y[:n], "lac").predict(model(x[n:]), 0.8).contains(y[n:]).mean())
    assert cross.proven_coverage(0.8) < np.mean(covered)
    assert 0.79 < np.mean(covered) < 0.9
    assert np.mean(in_sample) < 0.7


def test_what_is_proven() -> None:
    logits, labels, fold = problem(99, folds=5)
    cross = crossed(logits, labels, fold)
    assert cross.proven_coverage(0.9) == pytest.approx(1 - 2 * (4 + 10) / 104)  # floor(100 * 0.1) = 10
    assert cross.proven_coverage(0.901) == pytest.approx(1 - 2 * (4 + 9) / 104)
    assert cross.proven_coverage(0.4) == 0.0
    assert cross.proven_coverage(0.999) == 1.0  # full sets
    by_class = crossed(logits, labels, fold, by="class")
    counts = np.bincount(labels)
    expected = min(1 - 2 * (4 + (n + 1) // 5) / (n + 5) for n in counts.tolist())
    assert by_class.proven_coverage(0.8) == pytest.approx(expected)


def test_averages_of_p_values_are_within_the_bound() -> None:
    """The bound's own step, in its worst case: P(mean of exact p-values <= e) <= 2 e, and nearly so for two."""
    e, u = 0.1, np.random.default_rng(0).uniform(size=400_000)
    other = np.where(u < 2 * e, 2 * e - u, u)  # uniform, too; and the mean of both is e wherever u < 2 e
    assert abs(np.mean((u + other) / 2 <= e + 1e-12) - 2 * e) < 0.004


def test_too_few_rows_are_said() -> None:
    logits, labels, fold = problem(15)
    with pytest.warns(
        SmallCalibrationWarning, match=r"15 calibration row\(s\) cannot guarantee coverage 0\.95.*at least 19"
    ):
        assert np.all(crossed(logits, labels, fold).predict(logits, 0.95).sizes == K)
    cross = crossed(logits, np.minimum(labels, 2), fold, by="class")  # no row has class 3
    with pytest.warns(SmallCalibrationWarning, match="0 calibration"):
        assert cross.predict(logits, 0.5).mask()[:, 3].all()


def test_impossible_labels_stay_outside() -> None:
    logits, labels, fold = problem(120)
    cross, new = crossed(logits, labels, fold), logits[:, :20].copy()
    new[:, ::2, 1] = -np.inf
    assert not cross.predict(new, 0.9).mask()[::2, 1].any()


class ByDoubt(ByUncertainty):
    """Another way to group rows by the logits of a model."""

    kind = "doubt"


def test_folds_that_do_not_belong_together() -> None:
    logits, labels, _ = problem(60)
    z, one = logits[0], calibrate(logits[0], labels, "lac")
    for folds, message in [
        ([one], "two or more"),
        ([one, calibrate(z, labels, "aps")], "same score"),
        ([one, calibrate(z, labels, evicp.LAC(temperature=2.0))], "same score"),
        ([one, calibrate(z[:, :3], np.minimum(labels, 2), "lac")], "same n_classes"),
        ([one, calibrate(z, labels, "lac", class_names=list("abcd"))], "same class_names"),
        ([one, calibrate(z, labels, "lac", by="class")], "same groups"),
        ([calibrate(z, labels, "lac", by=np.arange(60) % m) for m in (2, 3)], r"same groups.*ByGroup\(groups\)"),
        ([calibrate(z, labels, "lac", by=ByUncertainty([0.4]))] * 2, "cannot be by uncertainty"),
        ([calibrate(z, labels, "lac", by=ByDoubt([0.4])) for _ in range(2)], "cannot be by doubt"),
        ([calibrate(z, labels, "lac", weights=np.ones(60))] * 2, "cannot be weighted"),
    ]:
        with pytest.raises(InputError, match=message):
            CrossCalibration(folds)
    clusters = ByClass(clusters=[0, 0, 1, 1])
    assert "by class" in repr(CrossCalibration([calibrate(z, labels, "lac", by=clusters) for _ in "ab"]))
    for folds in (one, [one, z], "folds"):
        with pytest.raises(InputTypeError, match="folds must be calibrations"):
            CrossCalibration(folds)


def test_logits_that_do_not_belong_together() -> None:
    logits, labels, fold = problem(60)
    cross = crossed(logits, labels, fold)
    with pytest.raises(InputError, match="here 3, in the order of the folds; got 2"):
        cross.predict(logits[:2], 0.9)
    with pytest.raises(InputError, match="here 3, in the order of the folds; got one matrix"):
        cross.predict(logits[0, :3], 0.9)
    assert cross.predict(list(logits[:, 0]), 0.9) == cross.predict(logits[:, :1], 0.9)  # one row of each
    with pytest.raises(InputError, match="logits of the same rows; got 60, 60, 59 rows"):
        cross.p_values([logits[0], logits[1], logits[2, 1:]])
    with pytest.raises(LogitsError, match="classes"):
        cross.p_values(logits[:, :, :3])
    with pytest.raises(InputError, match="groups need a"):
        cross.predict(logits, 0.9, groups=np.zeros(60, int))
    with pytest.raises(InputError, match="empty one"):
        cross.predict(logits, [])
    with pytest.raises(InputTypeError, match="allow_empty must be True or False; got 'no'"):
        cross.predict(logits, 0.9, allow_empty="no")
    with pytest.warns(SuspiciousInputWarning, match=r"Did you mean 0\.9\?"):
        cross.predict(logits, 0.1)


# ---------------------------------------------------------------------------------------------------------------
# Proven sets


@pytest.mark.parametrize("kind", [None, "class"])
@pytest.mark.parametrize("coverage", [0.5, 0.9, Fraction(2, 3)])
def test_proven_sets_leave_out_what_a_share_of_u_of_the_folds_leave_out(kind, coverage) -> None:
    logits, labels, fold = problem(350)
    logits, new, labels, fold = logits[:, :300], logits[:, 300:], labels[:300], fold[:300]
    cross = crossed(logits, labels, fold, by=kind)
    u = np.random.default_rng(0).random(50)
    u[:5] = 1 / 3 - 1e-9, 1 / 3, 2 / 3, 1.0, 1e-9
    own = np.stack([one.predict(z, coverage).mask() for one, z in zip(cross.folds, new, strict=True)])
    lacking = 3 - own.sum(0)
    steps = np.minimum(np.floor(u * 2**24) + 1, 2**24)[:, None]
    sets = cross.predict(new, coverage, proven=True, smoothed=u)
    np.testing.assert_array_equal(sets.mask(), lacking / 3 < steps / 2**24)
    e_values = np.where(own, 0, 1 / (1 - float(coverage))).mean(0)  # and so by e-values
    np.testing.assert_array_equal(sets.mask(), e_values * (1 - float(coverage)) < steps / 2**24 - 1e-12)
    together = cross.predict(new, coverage, proven=True, smoothed=False)
    np.testing.assert_array_equal(together.mask(), own.any(0))
    assert sets.guarantee == cross.folds[0].law.guarantee


def test_proven_sets_are_the_same_alone_and_in_a_batch() -> None:
    logits, labels, fold = problem(350, decimals=6)
    cross = crossed(logits[:, :300], labels[:300], fold[:300])
    new = logits[:, 300:]
    sets = cross.predict(new, 0.8, proven=True)
    for row in range(8):
        assert cross.predict(new[:, row : row + 1], 0.8, proven=True).to_lists() == sets[row : row + 1].to_lists()
    several = cross.predict(new, [0.6, 0.8], proven=True)
    assert several[1] == sets
    assert (several[0].sizes <= several[1].sizes).all()
    filled = cross.predict(new, 0.3, proven=True, allow_empty=False)
    assert filled.sizes.min() == 1
    generated = cross.predict(new, 0.8, proven=True, smoothed=np.random.default_rng(0))
    assert generated == cross.predict(new, 0.8, proven=True, smoothed=np.random.default_rng(0).random(50))
    with pytest.raises(InputTypeError, match="proven must be True or False; got 1"):
        cross.predict(new, 0.8, proven=1)
    with pytest.raises(InputError, match="50 numbers in"):
        cross.predict(new, 0.8, proven=True, smoothed=np.ones(3))
    with pytest.raises(InputError, match="those of each fold's model, here 3"):
        cross.predict(new[0], 0.8, proven=True)
    with pytest.warns(SmallCalibrationWarning, match="100 calibration row"):
        cross.predict(new, 0.995, proven=True)


def test_a_certificate_says_what_is_proven_and_observed(tmp_path) -> None:
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, 600)
    logits = rng.normal(size=(2, 600, 3)) + 2 * np.eye(3)[labels]
    parts = [
        evicp.calibrate(logits[i, 150 * i : 150 * (i + 1)], labels[150 * i : 150 * (i + 1)], "lac") for i in (0, 1)
    ]
    cross, new, truth = CrossCalibration(parts), [logits[0, 300:], logits[1, 300:]], labels[300:]
    for proven, bound in ((False, cross.proven_coverage(0.9)), (True, 0.9)):
        sets = cross.predict(new, 0.9, proven=proven)
        certificate = cross.certificate(0.9, evicp.evaluate(sets, truth), proven=proven)
        figures = certificate.to_dict()
        assert figures["proven_coverage"] == bound
        assert figures["observed"]["kept"]
        assert figures["observed"]["coverage"] == sets.contains(truth).mean()
        assert [fold["checksum"] for fold in figures["folds"]] == [part.certificate(0.9).checksum for part in parts]
        assert f"at least {bound:.6g}" in str(certificate)
    wrong = cross.predict([-new[0], -new[1]], 0.9, proven=True)
    assert "is LESS than 0.9" in " ".join(
        str(cross.certificate(0.9, evicp.evaluate(wrong, truth), proven=True)).split()
    )
    with pytest.raises(InputError, match="not of folds"):
        cross.certificate(0.9, evicp.evaluate(parts[0].predict(new[0], 0.9), truth))
    with pytest.raises(InputError, match="its score or its classes"):
        cross.certificate(0.9, evicp.evaluate(evicp.calibrate(*(logits[0], labels)).predict(new[0], 0.9), truth))
    with pytest.raises(InputTypeError, match="must be that of sets, an Evaluation; got a float"):
        cross.certificate(0.9, 0.93)
    for number, part in enumerate(parts):
        part.save(tmp_path / f"fold-{number}.safetensors")
    again = CrossCalibration([evicp.load(tmp_path / f"fold-{number}.safetensors") for number in (0, 1)])
    assert again.predict(new, 0.9, proven=True) == cross.predict(new, 0.9, proven=True)
    assert again.certificate(0.9).to_json() == cross.certificate(0.9).to_json()
