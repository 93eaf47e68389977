"""Labels, groups, weights and other values of rows whose index says that they are of other rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import report
from evicp.errors import InputError, LabelsError, SuspiciousInputWarning
from evicp.evaluation import metrics
from evicp.evaluation.slices import worst_slice

pytestmark = pytest.mark.reliability

pd = pytest.importorskip("pandas")

K, N = 5, 400


def rows(n: int = N, seed: int = 0, spread: float = 2.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) + spread * np.eye(K)[labels], labels


LOGITS, LABELS = rows()
SHUFFLED = np.random.default_rng(1).permutation(N)
OTHER_ROWS = "must have the same rows in the same order; by index, row"
CALIBRATION = evicp.calibrate(LOGITS, LABELS, "lac")


def test_indexes_that_say_the_same_or_nothing_are_fine() -> None:
    """Warnings are errors here."""
    own = np.arange(N) + 100
    text = [f"row {i}" for i in range(N)]
    for index, theirs in (
        (None, None),
        (own, own),
        (text, text),
        (own.astype(float), own),
        (None, own[::-1]),  # a frame made from a model's output, and labels of a part of the data
        (None, text),
        (text, None),
        (own[::-1], None),
        ([7] * N, [7] * N),
    ):
        calibration = evicp.calibrate(pd.DataFrame(LOGITS, index), pd.Series(LABELS, theirs), "lac")
        assert calibration == CALIBRATION
    assert evicp.calibrate(pd.DataFrame(LOGITS, own), LABELS, "lac") == CALIBRATION
    assert evicp.calibrate(LOGITS, pd.Series(LABELS, own[::-1]), "lac") == CALIBRATION


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("ordered", [False, True])
def test_labels_of_a_random_part_are_paired_by_place(share: float, ordered: bool) -> None:
    """`pd.DataFrame(model.predict_proba(X_test))` has a new index, `y_test` its own: nothing is said of it."""
    n = round(N / share)
    logits, labels = rows(n, 2)
    part = np.random.default_rng(3).permutation(n)[:N]
    part = np.sort(part) if ordered else part
    frame, truth = pd.DataFrame(logits[part]), pd.Series(labels).iloc[part]
    assert evicp.calibrate(frame, truth, "lac") == evicp.calibrate(logits[part], labels[part], "lac")
    sets = CALIBRATION.predict(frame, 0.9)
    assert evicp.evaluate(sets, truth, frame).coverage == evicp.evaluate(sets, labels[part], logits[part]).coverage
    tail = pd.Series(labels).iloc[-N:]
    if n < 2 * N:  # their indexes overlap
        return
    assert evicp.calibrate(pd.DataFrame(logits[-N:]), tail, "lac").n == N


def test_labels_of_other_rows_are_refused_where_the_logits_agree_with_the_index() -> None:
    """The first rows of a table, and shuffled labels of it: not one pair is right, and the index alone cannot tell."""
    logits, labels = rows(3 * N, 4)
    frame, truth = pd.DataFrame(logits), pd.Series(labels).sample(frac=1, random_state=1)
    first, some = frame.head(N), truth.head(N)
    calls: list[Callable[[], Any]] = [
        lambda: evicp.calibrate(first, some, "lac"),
        lambda: evicp.calibrate(first, some, "auto"),
        lambda: CALIBRATION.p_values(first, some),
        lambda: CALIBRATION.p_values_online(first, some),
        lambda: CALIBRATION.extended(first, some),
        lambda: evicp.evaluate(CALIBRATION.predict(first, 0.9), some, first),
        lambda: evicp.compare(first, some, ["lac"], trials=1),
        lambda: evicp.fit_temperature(first, some),
        lambda: evicp.tune(first, some, "raps"),
        lambda: metrics.accuracy(first, some),
        lambda: report.build(first, some, CALIBRATION),
        lambda: report.split(first, some, ["lac"]),
    ]
    for call in calls:
        with pytest.raises(
            LabelsError, match=r"labels must belong to the rows of the logits; of \d+ rows with a common index"
        ):
            call()
    following = pd.Series(labels).iloc[1 : N + 1]  # each row with the label of the next
    with (
        pytest.warns(SuspiciousInputWarning, match="are 1 apart"),
        pytest.raises(LabelsError, match="have the largest logit at their label if paired by index, "),
    ):
        evicp.calibrate(first, following)


def test_other_entries_are_refused_both_ways() -> None:
    """The logits may be those with the telling index, and the labels those with a new one."""
    logits, labels = rows(3 * N, 5)
    part = np.random.default_rng(6).permutation(3 * N)[:N]
    with pytest.raises(LabelsError, match="labels must belong to the rows of the logits"):
        evicp.calibrate(pd.DataFrame(logits).iloc[part], pd.Series(labels).head(N), "lac")
    assert evicp.calibrate(pd.DataFrame(logits).iloc[part], labels[part], "lac").n == N
    assert evicp.calibrate(pd.DataFrame(logits).iloc[part], pd.Series(labels[part]), "lac").n == N


def test_an_index_that_is_moved_is_warned_of() -> None:
    labels = pd.Series(LABELS, index=np.arange(1, N + 1))
    with pytest.warns(SuspiciousInputWarning, match=r"rows of logits and labels are 1 apart; they are paired by"):
        assert evicp.calibrate(pd.DataFrame(LOGITS), labels, "lac") == CALIBRATION
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = labels.set_axis(np.arange(N) + N)  # the second half of a data set
        assert evicp.calibrate(pd.DataFrame(LOGITS), far, "lac") == CALIBRATION


FRAME = pd.DataFrame(LOGITS)
SITE, WEIGHT = pd.Series(np.arange(N) % 2), pd.Series(1.0 + np.arange(N) % 3)
BY_SITE = evicp.calibrate(LOGITS, LABELS, "lac", by=SITE.to_numpy())
WEIGHTED = evicp.calibrate(LOGITS, LABELS, "lac", weights=WEIGHT.to_numpy())
TRUTH = pd.Series(LABELS)
SETS = CALIBRATION.predict(LOGITS, 0.9)

#: What takes values of rows besides logits, or beside others; each is called with them in order and out of order.
CALLS: dict[str, tuple[pd.Series, Callable[[Any], Any]]] = {
    "labels": (TRUTH, lambda y: evicp.calibrate(FRAME, y, "lac")),
    "labels beside groups": (TRUTH, lambda y: evicp.calibrate(LOGITS, y, "lac", by=SITE)),
    "labels, auto": (TRUTH, lambda y: evicp.calibrate(FRAME, y, "auto")),
    "groups": (SITE, lambda g: evicp.calibrate(FRAME, LABELS, "lac", by=g)),
    "groups, auto": (SITE, lambda g: evicp.calibrate(FRAME, LABELS, "auto", by=g)),
    "weights": (WEIGHT, lambda w: evicp.calibrate(FRAME, LABELS, "lac", weights=w)),
    "update": (SITE, lambda g: evicp.Calibrator("lac", by="group").update(FRAME, LABELS, groups=g)),
    "predict by group": (SITE, lambda g: BY_SITE.predict(FRAME, 0.9, groups=g)),
    "predict weighted": (WEIGHT, lambda w: WEIGHTED.predict(FRAME, 0.9, weights=w)),
    "predict smoothed": (WEIGHT / 3, lambda u: CALIBRATION.predict(FRAME, 0.9, smoothed=u)),
    "p_values": (TRUTH, lambda y: CALIBRATION.p_values(FRAME, y)),
    "p_values by group": (SITE, lambda g: BY_SITE.p_values(FRAME, groups=g)),
    "p_values smoothed": (WEIGHT / 3, lambda u: CALIBRATION.p_values(FRAME, smoothed=u)),
    "p_values of labels beside numbers": (WEIGHT / 3, lambda u: CALIBRATION.p_values(LOGITS, TRUTH, smoothed=u)),
    "p_values_online": (TRUTH, lambda y: CALIBRATION.p_values_online(FRAME, y)),
    "extended": (SITE, lambda g: BY_SITE.extended(FRAME, LABELS, groups=g)),
    "groups_of": (SITE, lambda g: BY_SITE.groups_of(FRAME, g)),
    "evaluate": (TRUTH, lambda y: evicp.evaluate(SETS, y, FRAME)),
    "evaluate groups": (SITE, lambda g: evicp.evaluate(SETS, TRUTH, groups=g)),
    "evaluate difficulty": (
        pd.Series(metrics.difficulty(LOGITS, LABELS)),
        lambda d: evicp.evaluate(SETS, TRUTH, difficulty=d),
    ),
    "group_coverage": (SITE, lambda g: metrics.group_coverage(SETS, TRUTH, g)),
    "difficulty_strata": (
        pd.Series(metrics.difficulty(LOGITS, LABELS)),
        lambda d: metrics.difficulty_strata(SETS, TRUTH, d),
    ),
    "worst_slice": (TRUTH, lambda y: worst_slice(SETS, y, FRAME, directions=5)),
    "compare": (TRUTH, lambda y: evicp.compare(FRAME, y, ["lac"], trials=1)),
    "report": (TRUTH, lambda y: report.build(FRAME, y, CALIBRATION, explored=0)),
    "report groups": (SITE, lambda g: report.build(FRAME, LABELS, BY_SITE, groups=g, explored=0)),
}


@pytest.mark.parametrize("call", CALLS)
def test_values_of_the_same_rows_in_another_order_are_refused(call: str) -> None:
    values, act = CALLS[call]
    act(values)  # in order: warnings are errors here
    act(values.to_numpy())
    with pytest.raises(InputError, match=rf"{OTHER_ROWS} \d+ is .*\.to_numpy\(\) to pair them by position"):
        act(values.iloc[SHUFFLED])


def test_two_indexes_of_their_own_must_agree() -> None:
    logits, own = FRAME.set_axis(np.arange(N) + 1000), np.arange(N) + 2000
    for act in (
        lambda: evicp.evaluate(SETS, TRUTH.set_axis(own), logits),
        lambda: evicp.calibrate(logits, TRUTH.set_axis(own), "lac"),
        lambda: evicp.calibrate(logits, TRUTH.set_axis(logits.index), "lac", by=SITE.set_axis(own)),
        lambda: evicp.calibrate(LOGITS, TRUTH.set_axis(logits.index), "lac", weights=WEIGHT.set_axis(own)),
    ):
        with pytest.raises(InputError, match=rf"{OTHER_ROWS} 0 is 1000 in (logits|labels) and 2000 in "):
            act()


def test_logits_of_folds_are_of_the_same_rows() -> None:
    cross = evicp.CrossCalibration([CALIBRATION, replace(CALIBRATION)])
    assert cross.predict([FRAME, FRAME], 0.9) == cross.predict([LOGITS, LOGITS], 0.9)
    with pytest.raises(InputError, match=r"logits\[0\] and logits\[1\] must have the same rows in the same order"):
        cross.predict([FRAME, FRAME.iloc[SHUFFLED]], 0.9)


def test_the_rule_holds_for_any_index() -> None:
    """Texts, times, several levels, numbers that come twice: what cannot be sorted is compared all the same."""
    dates = pd.date_range("2020-01-01", periods=N)
    levels = pd.MultiIndex.from_product([range(N // 2), ["a", "b"]])
    mixed = pd.Index([*range(N - 1), "total"], dtype=object)
    twice = pd.Index(np.arange(N) // 2)
    for index in (dates, levels, mixed, twice, pd.Index([f"row {i}" for i in range(N)])):
        frame = FRAME.set_axis(index)
        assert evicp.calibrate(frame, TRUTH.set_axis(index), "lac") == CALIBRATION
        for other in (index[::-1], index[SHUFFLED]):
            with pytest.raises(LabelsError, match=OTHER_ROWS):
                evicp.calibrate(frame, TRUTH.set_axis(other), "lac")
    with pytest.raises(LabelsError, match=OTHER_ROWS):
        evicp.calibrate(FRAME.set_axis(dates), TRUTH.set_axis(levels), "lac")


def test_other_containers_of_rows() -> None:
    """xarray has an index as well, polars has none."""
    xarray = pytest.importorskip("xarray")
    logits = xarray.DataArray(LOGITS, dims=("row", "class"), coords={"row": np.arange(N) + 7})
    labels = xarray.DataArray(LABELS, dims="row", coords={"row": np.arange(N) + 7})
    assert evicp.calibrate(logits, labels, "lac") == CALIBRATION
    with pytest.raises(LabelsError, match=OTHER_ROWS):
        evicp.calibrate(logits, labels[::-1], "lac")
