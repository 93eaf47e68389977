"""A frame whose columns are not the classes as they are known, in their order, is refused wherever logits come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import blocks, report
from evicp.errors import EvicpError, InputError, LogitsError
from evicp.evaluation import metrics
from evicp.evaluation.explain import explain_set
from evicp.evaluation.slices import worst_slice

pytestmark = pytest.mark.reliability

pd = pytest.importorskip("pandas")

K, N = 5, 300
NAMES = ["ant", "bee", "cat", "dog", "eel"]
ORDER = [4, 3, 2, 1, 0]


def rows(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) + 2.5 * np.eye(K)[labels], labels


LOGITS, LABELS = rows()
NEW, TRUTH = rows(100, 1)


#: How columns are called, and whether a permutation of them is refused even where nothing else is known.
COLUMNS = {
    "pandas' own": (list(range(K)), True),
    "digits": ([str(k) for k in range(K)], True),
    "floats": ([float(k) for k in range(K)], True),
    "numbered names": ([f"logit_{k}" for k in range(K)], True),
    "names": (NAMES, False),
    "numbers from elsewhere": ([f"V{k + 1}" for k in range(K)], False),
    "two levels": (pd.MultiIndex.from_product([["logit"], range(K)]), True),
    "two levels of names": (pd.MultiIndex.from_product([["logit"], NAMES]), False),
    "categories": (pd.CategoricalIndex(NAMES), False),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_in_another_order_are_refused(kind: str) -> None:
    columns, is_number = COLUMNS[kind]
    frame, new = pd.DataFrame(LOGITS, columns=columns), pd.DataFrame(NEW, columns=columns)
    calibration = evicp.calibrate(frame, LABELS, "lac")
    plain = evicp.calibrate(LOGITS, LABELS, "lac")
    assert calibration.predict(new, 0.9) == calibration.predict(NEW, 0.9) == plain.predict(new, 0.9)
    calls = [lambda: calibration.predict(new.iloc[:, ORDER], 0.9), lambda: calibration.predict(new.iloc[0, ORDER], 0.9)]
    if is_number:  # the class numbers are known to everyone
        calls.append(lambda: plain.predict(new.iloc[:, ORDER], 0.9))
        calls.append(lambda: evicp.calibrate(frame.iloc[:, ORDER], LABELS, "lac"))
    for call in calls:
        with pytest.raises(LogitsError, match="logits have the columns of the classes in another order"):
            call()


def test_numbered_columns_sorted_as_text_are_refused_at_calibration() -> None:
    """logit_0, logit_1, logit_10, logit_11, logit_2, ...: what sorting does to the columns of a table."""
    rng = np.random.default_rng(0)
    for first in (0, 1):
        columns = sorted(f"logit_{k}" for k in range(first, first + 12))
        frame = pd.DataFrame(rng.normal(size=(40, 12)), columns=columns)
        with pytest.raises(LogitsError, match=r"another order than that of their numbers: .*Pass them in that order"):
            evicp.calibrate(frame, rng.integers(0, 12, 40), "lac")


FRAME = pd.DataFrame(LOGITS, columns=NAMES)
TURNED = pd.DataFrame(NEW, columns=NAMES)[NAMES[::-1]]


@pytest.fixture(scope="module")
def calibration() -> evicp.Calibration:
    return evicp.calibrate(FRAME, LABELS)


CALLS: dict[str, Callable[[evicp.Calibration], Any]] = {
    "predict": lambda c: c.predict(TURNED, 0.9),
    "predict several": lambda c: c.predict(TURNED, [0.8, 0.9]),
    "predict a row": lambda c: c.predict(TURNED.iloc[0], 0.9),
    "predict rows in a list": lambda c: c.predict([TURNED.iloc[i] for i in range(3)], 0.9),
    "p_values": lambda c: c.p_values(TURNED),
    "p_values of labels": lambda c: c.p_values(TURNED, TRUTH),
    "p_values_online": lambda c: c.p_values_online(TURNED, TRUTH),
    "extended": lambda c: c.extended(TURNED, TRUTH),
    "explain_set": lambda c: explain_set(c, TURNED.iloc[0], 0.9),
    "evaluate": lambda c: evicp.evaluate(c.predict(NEW, 0.9), TRUTH, TURNED),
    "adaptive level": lambda c: evicp.AdaptiveLevel(0.9).predict(c, TURNED),
    "report": lambda c: report.build(TURNED, TRUTH, c),
    "update": lambda c: evicp.Calibrator().update(FRAME, LABELS).update(TURNED, TRUTH),
    "merge": lambda c: evicp.Calibrator().update(FRAME, LABELS).merge(evicp.Calibrator().update(TURNED, TRUTH)),
    "names and columns": lambda c: evicp.calibrate(TURNED, TRUTH, class_names=NAMES),
    "merge names and columns": lambda c: (
        evicp.Calibrator(class_names=NAMES).update(LOGITS, LABELS).merge(evicp.Calibrator().update(TURNED, TRUTH))
    ),
    "folds": lambda c: evicp.CrossCalibration([c, evicp.calibrate(TURNED, TRUTH)]),
    "logits of folds": lambda c: evicp.CrossCalibration([c, replace(c)]).predict([NEW, TURNED], 0.9),
    "class frequencies": lambda c: evicp.estimate_class_frequencies(FRAME, LABELS, TURNED),
    "a mask": lambda c: evicp.PredictionSets.from_mask(TURNED > 0, coverage=0.9, class_names=NAMES),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_way_in_refuses_other_orders(call: str, calibration: evicp.Calibration) -> None:
    with pytest.raises(InputError, match=r"another order|same columns in the same order"):
        CALLS[call](calibration)


NUMBERED = pd.DataFrame(LOGITS)[ORDER]


@pytest.mark.parametrize(
    "call",
    [
        lambda: evicp.compare(NUMBERED, LABELS, ["lac"], 0.8, trials=2),
        lambda: evicp.tune(NUMBERED, LABELS, "raps"),
        lambda: evicp.fit_temperature(NUMBERED, LABELS),
        lambda: metrics.difficulty(NUMBERED, LABELS),
        lambda: metrics.accuracy(NUMBERED, LABELS),
        lambda: report.split(NUMBERED, LABELS, ["lac"]),
        lambda: evicp.calibrate(NUMBERED, LABELS, "auto"),
        lambda: evicp.explain(NUMBERED.iloc[0]),
    ],
    ids=["compare", "tune", "fit_temperature", "difficulty", "accuracy", "report.split", "auto", "explain"],
)
def test_class_numbers_in_another_order_are_refused_where_nothing_was_calibrated(call: Any) -> None:
    with pytest.raises(LogitsError, match=r"column 0 is '4', class 0 is '0'\. Pass logits\[\[0, 1, "):
        call()


def test_a_calibration_that_chose_its_score_remembers_its_columns() -> None:
    calibration = evicp.calibrate(FRAME, LABELS, "auto")
    assert calibration.columns == tuple(NAMES)
    with pytest.raises(LogitsError, match="in another order"):
        calibration.predict(TURNED, 0.9)


def test_sets_remember_the_columns_they_came_from(tmp_path: Path, calibration: evicp.Calibration) -> None:
    """`evaluate(sets, labels, frame)` takes no frame that `predict` refuses; saved sets neither."""
    sets = calibration.predict(pd.DataFrame(NEW, columns=NAMES), 0.9)
    assert sets.columns == tuple(NAMES)
    expected = evicp.evaluate(sets, TRUTH, NEW).accuracy
    for suffix in (".npz", ".parquet"):
        path = tmp_path / f"sets{suffix}"
        with blocks.open_sets(path) as file:
            file.append(sets)
        (read,) = blocks.scan_sets(path)
        assert read.columns == tuple(NAMES)
        for one in (sets, sets[:50], read):
            truth, frame = TRUTH[: len(one)], TURNED.iloc[: len(one)]
            with pytest.raises(LogitsError, match="in another order"):
                evicp.evaluate(one, truth, frame)
        assert evicp.evaluate(read, TRUTH, TURNED[NAMES]).accuracy == expected
    other = evicp.calibrate(pd.DataFrame(LOGITS, columns=NAMES[::-1]), LABELS).predict(NEW, 0.9)
    with pytest.raises(InputError, match="another order"):
        metrics.Evaluator().update(sets, TRUTH).update(other, TRUTH)


def test_other_names_are_refused_where_names_or_columns_are_known(calibration: evicp.Calibration) -> None:
    """They may be in any order. An array has no names, and is what to pass if the order is right."""
    german = pd.DataFrame(NEW, columns=["Ameise", "Biene", "Katze", "Hund", "Aal"])
    partly = pd.DataFrame(NEW, columns=[*NAMES[:4], "emu"])
    named = evicp.calibrate(LOGITS, LABELS, class_names=NAMES)
    for known in (calibration, named):
        for frame in (german, partly):
            with pytest.raises(LogitsError, match=r"with other names: column \d is .* or logits\.to_numpy\(\) if they"):
                known.predict(frame, 0.9)
        assert known.predict(german.to_numpy(), 0.9) == known.predict(NEW, 0.9)
        assert known.predict(pd.DataFrame(NEW), 0.9) == known.predict(NEW, 0.9)  # numbered, which says nothing
    assert evicp.calibrate(LOGITS, LABELS).predict(german, 0.9) == calibration.predict(NEW, 0.9)  # nothing is known


def test_names_given_to_calibrate_rename_columns_of_their_own(tmp_path: Path) -> None:
    """Columns that are called otherwise may be named; they are then known by both."""
    columns = [f"out {name}" for name in NAMES]
    calibration = evicp.calibrate(pd.DataFrame(LOGITS, columns=columns), LABELS, class_names=NAMES)
    calibration.save(tmp_path / "c.safetensors")
    for one in (calibration, evicp.load(tmp_path / "c.safetensors")):
        assert (one.class_names, one.columns) == (tuple(NAMES), tuple(columns))
        expected = one.predict(NEW, 0.9)
        for known in (columns, NAMES):
            assert one.predict(pd.DataFrame(NEW, columns=known), 0.9) == expected
            with pytest.raises(LogitsError, match="in another order"):
                one.predict(pd.DataFrame(NEW, columns=known).iloc[:, ORDER], 0.9)
    with pytest.raises(LogitsError, match="with other names: column 0 is 'bee', class 0 is 'ant'"):
        evicp.calibrate(pd.DataFrame(LOGITS, columns=["bee", *"vwxy"]), LABELS, class_names=NAMES)


def test_columns_numbered_from_one_are_not_taken_for_class_numbers() -> None:
    frame = pd.DataFrame(LOGITS, columns=range(1, K + 1))
    for labels in (LABELS, np.minimum(LABELS + 1, K - 1)):
        with pytest.raises(
            LogitsError, match=r"numbers other than 0 to 4: '1', '2', '3', '4', '5'\. Pass them as class_names"
        ):
            evicp.calibrate(frame, labels, "lac")
    calibration = evicp.calibrate(frame, LABELS + 1, "lac", class_names=frame.columns)
    assert calibration == evicp.calibrate(LOGITS, LABELS + 1, "lac", class_names=list(frame.columns))
    with pytest.raises(LogitsError, match="in another order: column 0 is '5', class 0 is '1'"):
        calibration.predict(frame.iloc[:, ORDER], 0.9)


def test_files_and_frames_follow_one_rule(tmp_path: Path) -> None:
    """Columns of a frame that was calibrated on are class names to a file, and the other way round."""
    for name, names in (("same", NAMES), ("other", NAMES[::-1]), ("numbers", [str(k) for k in ORDER])):
        np.savez(tmp_path / f"{name}.npz", logits=NEW, labels=TRUTH, class_names=np.array(names))
    calibration = evicp.calibrate(FRAME, LABELS)  # without class names
    blocks.predict(calibration, tmp_path / "same.npz", 0.9, tmp_path / "sets.npz")
    for file in ("other", "numbers"):
        for call in (
            lambda rows: blocks.predict(calibration, rows, 0.9, tmp_path / "again.npz"),
            lambda rows: blocks.evaluate(calibration, rows, 0.9),
            lambda rows: blocks.evaluate(tmp_path / "sets.npz", rows),
        ):
            with pytest.raises(InputError, match=r"must have the same class names; class 0 is '(ant|0)' and '(eel|4)'"):
                call(tmp_path / f"{file}.npz")
    with pytest.raises(InputError, match="class 0 is '0' and '4'"):
        blocks.predict(evicp.calibrate(LOGITS, LABELS), tmp_path / "numbers.npz", 0.9, tmp_path / "again.npz")
    of_file = blocks.calibrate(tmp_path / "same.npz")
    with pytest.raises(LogitsError, match="in another order"):
        of_file.predict(TURNED, 0.9)
    renamed = blocks.calibrate(tmp_path / "same.npz", class_names=list("ABCDE"))
    for known in (NAMES, list("ABCDE")):  # by its own names and by those given
        assert renamed.predict(pd.DataFrame(NEW, columns=known), 0.9) == renamed.predict(NEW, 0.9)
    blocks.predict(renamed, tmp_path / "same.npz", 0.9, tmp_path / "again.npz")


@pytest.mark.parametrize("make", ["polars", "pyarrow", "xarray"])
def test_other_frames_than_those_of_pandas(make: str) -> None:
    module = pytest.importorskip(make)

    def frame(values: np.ndarray, names: list[str]) -> Any:
        if make == "polars":
            return module.DataFrame(values, schema=names)
        if make == "pyarrow":
            return module.table({name: values[:, k] for k, name in enumerate(names)})
        return module.DataArray(values, dims=("row", "class"), coords={"class": names})

    for names in (NAMES, [f"column_{k}" for k in range(K)]):
        calibration = evicp.calibrate(frame(LOGITS, names), LABELS, "lac")
        assert calibration.predict(frame(NEW, names), 0.9) == calibration.predict(NEW, 0.9)
        with pytest.raises(LogitsError, match="logits have the columns of the classes in another order"):
            calibration.predict(frame(NEW[:, ORDER], names[::-1]), 0.9)


def test_columns_of_one_name_say_nothing_and_partly_equal_ones_are_held_against_each_other() -> None:
    one = pd.DataFrame(LOGITS, columns=["logit"] * K)
    assert evicp.calibrate(one, LABELS, "lac").predict(NEW, 0.9).sizes.mean() > 0
    twice = evicp.calibrate(pd.DataFrame(LOGITS, columns=list("aabcd")), LABELS, "lac")
    with pytest.raises(LogitsError, match=r"in another order: column 0 is 'd', class 0 is 'a'\. Pass logits\.to_numpy"):
        twice.predict(pd.DataFrame(NEW, columns=list("dcbaa")), 0.9)


def test_rows_of_several_orders_in_a_list_are_refused() -> None:
    one = pd.DataFrame(NEW, columns=NAMES).iloc[0]
    with pytest.raises(LogitsError, match=r"rows must have the same columns in the same order; those of row 1"):
        evicp.calibrate(LOGITS, LABELS, "lac").predict([one, one[NAMES[::-1]]], 0.9)


def test_features_numbered_in_another_order_are_refused() -> None:
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(100, 3)))
    for old in (x, x.to_numpy()):
        with pytest.raises(InputError, match="new_features must have numbered columns in their order; got 2, 0, 1"):
            evicp.estimate_density_ratio(old, x[[2, 0, 1]])
    sets = evicp.calibrate(LOGITS, LABELS, "lac").predict(NEW, 0.9)
    found = worst_slice(sets, TRUTH, x, share=0.3, directions=5)
    with pytest.raises(InputError, match="features must have numbered columns in their order"):
        found.contains(x[[2, 0, 1]])
    assert evicp.estimate_density_ratio(x, x.rename(columns=str)).columns is None


def test_one_row_of_a_frame_has_no_index_of_rows() -> None:
    """A row of a frame has the classes for an index, which is none of rows."""
    calibration = evicp.calibrate(FRAME, LABELS, by=np.arange(N) % 2)
    row = pd.DataFrame(NEW, columns=NAMES).iloc[0]
    one = calibration.predict(row, 0.8, groups=pd.Series([1], index=[17]))
    assert one == calibration.predict(NEW[0], 0.8, groups=[1])
    with pytest.raises(EvicpError, match="in another order"):
        calibration.groups_of(row[NAMES[::-1]], [1])


def test_the_logits_of_folds_know_one_order_of_classes_together() -> None:
    """Folds calibrated on arrays, or some of them, took the frames of new rows in any order."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    logits = rng.normal(size=(90, 3)) + 2 * np.eye(3)[labels]
    frame = pd.DataFrame(logits, columns=list("abc"))
    of_array, of_frame = (evicp.calibrate(one, labels, "lac") for one in (logits, frame))
    other = frame[list("cba")]
    of_other = evicp.calibrate(other, 2 - labels, "lac")
    for folds, new in [([of_frame, of_array], [logits, other]), ([of_array, replace(of_array)], [frame, other])]:
        cross = evicp.CrossCalibration(folds)
        for call in (cross.p_values, lambda given, cross=cross: cross.predict(given, 0.8)):
            with pytest.raises(LogitsError, match="in another order: column 0 is 'c', class 0 is 'a'"):
                call(new)
        assert cross.predict([frame, logits], 0.8) == cross.predict([logits, logits], 0.8)
    with pytest.raises(InputError, match="all folds must have the same columns in the same order"):
        evicp.CrossCalibration([of_array, of_frame, of_other])
    for given in (None, (one for one in (logits, logits))):
        with pytest.raises(InputError, match="logits must be those of each fold's model, here 2"):
            evicp.CrossCalibration([of_array, replace(of_array)]).predict(given, 0.8)
