"""Class names in every form, and labels that are names or numbers: looked up where that is clear, else refused."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import blocks, report
from evicp.cli import main
from evicp.errors import EvicpError, InputError, InputTypeError, LabelsError
from evicp.sets import PredictionSets

pytestmark = pytest.mark.reliability

pd = pytest.importorskip("pandas")

K, N = 5, 400
NAMES = ("ant", "bee", "cat", "dog", "eel")


def rows(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) + 2.5 * np.eye(K)[labels], labels


LOGITS, LABELS = rows()
NEW, TRUTH = rows(200, 1)
PLAIN = evicp.calibrate(LOGITS, LABELS, "lac")
SETS = PLAIN.predict(NEW, 0.9)
TURNED = [4, 3, 2, 1, 0]


# ---------------------------------------------------------------------------------------------------------------
# The order of names


@pytest.mark.parametrize(
    "names",
    [
        {4: "eel", 3: "dog", 2: "cat", 1: "bee", 0: "ant"},
        pd.Series(NAMES[::-1], index=TURNED),
        pd.Series(NAMES[::-1], index=[str(k) for k in TURNED]),
        pd.Series(NAMES),
        pd.Series(NAMES, index=["n01", "n02", "x", "y", "z"]),  # an index of another kind: in the order given
        pd.Index(NAMES),
        pd.CategoricalIndex(NAMES),
        np.array(NAMES, object),
    ],
    ids=["mapping", "series by number", "series by digits", "series", "series by text", "index", "categories", "array"],
)
def test_names_by_number_are_read_by_number(names: Any) -> None:
    assert evicp.calibrate(LOGITS, LABELS, "lac", class_names=names).class_names == NAMES
    named = evicp.calibrate(LOGITS, [NAMES[label] for label in LABELS], "lac", class_names=names)
    np.testing.assert_array_equal(named.scores, PLAIN.scores)


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (pd.Series(NAMES, index=range(1, 6)), InputError, "must map every number from 0 to 4 .* and nothing for 0"),
        (pd.Series(NAMES, index=[0, 1, 2, 3, 3]), InputError, "must map every number from 0 to 4 .* nothing for 4"),
        (pd.Series(NAMES, index=[10, 20, 30, 40, 50]), InputError, "must map every number from 0 to 4"),
        (pd.DataFrame({"name": NAMES}), InputTypeError, "must be a sequence of 5 strings; got a DataFrame"),
        (np.array([NAMES]), InputTypeError, "must be a sequence of 5 strings; got a ndarray"),
    ],
)
def test_an_index_that_leaves_the_order_open_is_refused(names: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"class_names {message}"):
        evicp.calibrate(LOGITS, LABELS, "lac", class_names=names)


def test_values_of_classes_are_read_by_number_or_name() -> None:
    """`value_counts` orders classes by how frequent they are."""
    skewed = np.repeat(np.arange(K), [10, 40, 20, 50, 30])
    counts = pd.Series(skewed).value_counts(normalize=True)
    assert counts.index.tolist() != list(range(K))
    expected = evicp.label_shift_weights(LABELS, np.bincount(skewed) / len(skewed))
    for frequencies in (counts, counts.to_dict()):
        np.testing.assert_array_equal(evicp.label_shift_weights(LABELS, frequencies), expected)
    weights = pd.Series(np.arange(1.0, 6.0))
    for given in (weights, weights[::-1], weights[::-1].to_dict(), weights[::-1].set_axis(NAMES[::-1])):
        calibration = evicp.calibrate(LOGITS, LABELS, "lac", class_weights=given, class_names=NAMES)
        assert calibration.weights is not None
        assert calibration.weights.classes.tolist() == [1, 2, 3, 4, 5]
    rates = pd.Series([0.1, 0.1, 0.1, 0.3, 0.4])
    assert evicp.ECP(base_rates=rates[::-1]) == evicp.ECP(base_rates=rates.tolist())
    assert (
        evicp.opinion(NEW, base_rates=rates[::-1]).belief.tolist()
        == evicp.opinion(NEW, base_rates=rates).belief.tolist()
    )
    clusters = pd.Series([0, 0, 1, 1, 2])
    assert evicp.ByClass(rare="cluster", clusters=clusters[::-1]).clusters == (0, 0, 1, 1, 2)
    thresholds = pd.Series([-1.0, -2.0, -3.0, -4.0, -5.0])
    assert evicp.explain(NEW[0], evicp.ECP(), threshold=thresholds[::-1]).threshold.tolist() == thresholds.tolist()
    for what, act in (
        ("class_weights", lambda x: evicp.calibrate(LOGITS, LABELS, "lac", class_weights=x)),
        ("frequencies", lambda x: evicp.label_shift_weights(LABELS, x)),
    ):
        with pytest.raises(InputError, match=f"{what} must have one entry per class, by class number from 0 to 4"):
            act(weights.set_axis(range(1, 6)))


# ---------------------------------------------------------------------------------------------------------------
# Names that are whole numbers


NUMBERS = [1, 2, 3, 4, 5]


def coverage(sets: Any, labels: Any) -> float:
    return float(sets.contains(labels).mean())


@pytest.mark.parametrize(
    "names",
    [NUMBERS, np.array(NUMBERS, np.uint8), pd.Series(NUMBERS), np.array(NUMBERS, float), pd.Index(NUMBERS)],
    ids=["list", "array", "series", "floats", "index"],
)
def test_labels_are_looked_up_among_names_that_are_numbers(names: Any, tmp_path: Path) -> None:
    """As scikit-learn's `classes_`: without rows of the last class labels would be places, all of them one too high."""
    some = LABELS < K - 1
    calibration = evicp.calibrate(LOGITS[some], LABELS[some] + 1, "lac", class_names=names)
    np.testing.assert_array_equal(calibration.scores, evicp.calibrate(LOGITS[some], LABELS[some], "lac").scores)
    calibration.save(tmp_path / "c.safetensors")
    expected = evicp.calibrate(LOGITS[some], LABELS[some], "lac").predict(NEW, 0.9)
    for one in (
        calibration,
        evicp.load(tmp_path / "c.safetensors"),
        pickle.loads(pickle.dumps(calibration)),
        copy.deepcopy(calibration),
    ):
        assert one == calibration
        sets = one.predict(NEW, 0.9)
        for labels in (TRUTH + 1, (TRUTH + 1).astype(np.uint8), (TRUTH + 1).tolist(), pd.Series(TRUTH + 1)):
            assert coverage(sets, labels) == coverage(expected, TRUTH)
        assert evicp.evaluate(sets, TRUTH + 1, NEW).accuracy == evicp.evaluate(expected, TRUTH, NEW).accuracy
        np.testing.assert_array_equal(one.p_values(NEW, TRUTH + 1), one.p_values(NEW)[np.arange(len(NEW)), TRUTH])
        assert one.p_values_online(NEW, TRUTH + 1).shape == (200,)
        assert one.extended(NEW, TRUTH + 1).numbered
        for act in (
            lambda: sets.contains(TRUTH),  # noqa: B023
            lambda: evicp.evaluate(sets, TRUTH),  # noqa: B023
            lambda: one.p_values(NEW, TRUTH),  # noqa: B023
            lambda: one.extended(NEW, TRUTH),  # noqa: B023
        ):
            with pytest.raises(
                LabelsError, match=r"among the class_names; got 0 at row \d+\. They are numbers \(1, 2,"
            ):
                act()


def test_sets_that_are_saved_know_that_their_names_are_numbers(tmp_path: Path) -> None:
    sets = evicp.calibrate(LOGITS, LABELS + 1, "lac", class_names=NUMBERS).predict(NEW, 0.9)
    for suffix in (".npz", ".parquet"):
        with blocks.open_sets(tmp_path / f"sets{suffix}") as file:
            file.append(sets)
        (read,) = blocks.scan_sets(tmp_path / f"sets{suffix}")
        assert read == sets
        assert coverage(read, TRUTH + 1) == coverage(SETS, TRUTH)
    np.savez(tmp_path / "new.npz", logits=NEW, labels=TRUTH + 1)
    assert blocks.evaluate(tmp_path / "sets.npz", tmp_path / "new.npz").coverage == coverage(SETS, TRUTH)


def test_the_command_line_reads_labels_as_python_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["evicp", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    saved = tmp_path / "c.safetensors"
    evicp.calibrate(LOGITS, LABELS + 1, "lac", class_names=NUMBERS).save(saved)
    np.savez(tmp_path / "classes.npz", logits=NEW, labels=TRUTH + 1)
    np.savez(tmp_path / "places.npz", logits=NEW, labels=TRUTH)
    for command in (("evaluate",), ("monitor",)):
        code, out, _ = run(*command, saved, tmp_path / "classes.npz", "--json")
        assert code == 0
        observed = json.loads(out)["coverage" if command == ("evaluate",) else "observed"]
        assert observed == coverage(SETS, TRUTH)
        code, _, err = run(*command, saved, tmp_path / "places.npz", "--json")
        assert code == 2
        assert "labels must be among the class_names; got 0" in err
    (tmp_path / "names.txt").write_text("1\n2\n3\n4\n5\n")
    code, _, err = run(
        *("calibrate", tmp_path / "classes.npz", "--class-names", tmp_path / "names.txt"),
        *("-o", tmp_path / "d.safetensors"),
    )
    assert code == 2
    assert "labels that are whole numbers are ambiguous here" in err


def test_whole_numbers_beside_names_that_are_digits_are_refused() -> None:
    """Folders called 1 to 5: label 1 is the second class, or the first. Text tells."""
    digits = [str(number) for number in NUMBERS]
    message = r"ambiguous here: '1' is the name of class 0, and the number of another class\. Pass names: labels"
    named = evicp.calibrate(LOGITS, (LABELS + 1).astype(str), "lac", class_names=digits)
    np.testing.assert_array_equal(named.scores, PLAIN.scores)
    sets = named.predict(NEW, 0.9)
    assert coverage(sets, np.array(digits)[TRUTH]) == coverage(SETS, TRUTH)
    calls = [
        lambda: evicp.calibrate(LOGITS, LABELS, "lac", class_names=digits),
        lambda: evicp.calibrate(LOGITS, LABELS, "auto", class_names=digits),
        lambda: sets.contains(TRUTH),
        lambda: evicp.evaluate(sets, TRUTH),
        lambda: named.p_values(NEW, TRUTH),
        lambda: named.p_values_online(NEW, TRUTH),
        lambda: named.extended(NEW, TRUTH),
        lambda: report.build(NEW, TRUTH, named),
        lambda: report.split(NEW, TRUTH, ["lac"], class_names=digits),
        lambda: PredictionSets.from_lists([[1]], n_classes=K, coverage=0.9, class_names=digits),
        lambda: evicp.calibrate(LOGITS, LABELS, "lac", class_names=["0", "1", "10", "11", "2"]),
        lambda: evicp.calibrate(LOGITS, LABELS, "lac", class_names=[*digits[:3], "four", "five"]),
        lambda: evicp.calibrate(LOGITS, LABELS, "lac", class_names=["01", "02", "03", "04", "05"][::-1]),
    ]
    for call in calls[:-1]:
        with pytest.raises(LabelsError, match="labels that are whole numbers are ambiguous here"):
            call()
    with pytest.raises(LabelsError, match=message):
        sets.contains(TRUTH)
    for fine in (
        [str(k) for k in range(K)],
        range(K),
        ["10", "20", "30", "40", "50"],
        ["2019", "2020", "2021", "a", "b"],
    ):
        np.testing.assert_array_equal(evicp.calibrate(LOGITS, LABELS, "lac", class_names=fine).scores, PLAIN.scores)


def test_every_other_way_through_reads_numbers_as_names(tmp_path: Path) -> None:
    """Where labels are read once and given on, they are not read a second time as something else."""
    expected = evicp.calibrate(LOGITS, LABELS, "auto")
    assert evicp.calibrate(LOGITS, LABELS + 1, "auto", class_names=NUMBERS).scores.tolist() == expected.scores.tolist()
    named = evicp.calibrate(LOGITS, LABELS + 1, "lac", class_names=NUMBERS)
    pages = [report.build(NEW, TRUTH + 1, named, explored=0), report.build(NEW, TRUTH, PLAIN, explored=0)]
    assert pages[0].data["accuracy"] == pages[1].data["accuracy"]
    pages = [
        report.split(NEW, TRUTH + 1, ["lac"], class_names=NUMBERS, explored=0),
        report.split(NEW, TRUTH, ["lac"], explored=0),
    ]
    assert pages[0].data["accuracy"] == pages[1].data["accuracy"]
    lists = PredictionSets.from_lists([[1, 5], [2]], n_classes=K, coverage=0.9, class_names=NUMBERS)
    assert lists.to_lists() == [[0, 4], [1]]
    assert lists.contains([5, 2]).tolist() == [True, True]
    parts = [
        evicp.Calibrator("lac", class_names=NUMBERS).update(LOGITS[part], LABELS[part] + 1)
        for part in (slice(0, 100), slice(100, N))
    ]
    assert parts[0].merge(parts[1]).finish() == named
    with pytest.raises(InputError, match="the same class names in the same order"):
        parts[0].merge(
            evicp.Calibrator("lac", class_names=[str(n) for n in NUMBERS]).update(LOGITS, (LABELS + 1).astype(str))
        )


def test_labels_that_are_true_or_false_are_looked_up_among_such_names() -> None:
    logits, labels = LOGITS[:, :2], LABELS > 2
    plain = evicp.calibrate(logits, labels.astype(int), "lac")
    for names, z in (([False, True], logits), ([True, False], logits[:, ::-1])):
        found = evicp.calibrate(z, labels, "lac", class_names=names)
        np.testing.assert_array_equal(found.scores, plain.scores)
    with pytest.raises(InputTypeError, match="labels must be integers; got dtype bool"):
        evicp.calibrate(logits, labels, "lac", class_names=["no", "yes"])


def test_categories_are_read_by_what_they_are_called() -> None:
    """Not by their codes, which count categories in an order of their own."""
    labels = [NAMES[label] for label in LABELS]
    for given in (
        pd.Categorical(labels, categories=NAMES[::-1]),
        pd.Series(labels, dtype=pd.CategoricalDtype(NAMES[::-1], ordered=True)),
    ):
        np.testing.assert_array_equal(evicp.calibrate(LOGITS, given, "lac", class_names=NAMES).scores, PLAIN.scores)
    numbers = pd.Series(pd.Categorical(LABELS, categories=TURNED))
    np.testing.assert_array_equal(evicp.calibrate(LOGITS, numbers, "lac").scores, PLAIN.scores)


def test_files_that_say_wrong_things_of_names_are_refused(tmp_path: Path) -> None:
    calibration = evicp.calibrate(LOGITS, LABELS, "lac", class_names=NAMES)
    object.__setattr__(calibration, "numbered", True)
    calibration.save(tmp_path / "c.safetensors")
    with pytest.raises(EvicpError, match="states that its class names are numbers, but they are not"):
        evicp.load(tmp_path / "c.safetensors")
