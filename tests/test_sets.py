"""Ragged sets against their dense and their list-of-lists renderings."""

from __future__ import annotations

import copy
import json
import pickle
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evicp
from evicp import PredictionSets
from evicp.errors import FileError, InputError, InputTypeError, LabelsError, RowError
from evicp.io import files

NAMES = ("cat", "dog", "<b>", 'naïve, "quoted"', "日本")


def sets_of(rows: list[list[int]], n_classes: int = 5, **about: Any) -> PredictionSets:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    labels = np.array([label for row in rows for label in row], np.int32)
    return PredictionSets(offsets, labels, n_classes=n_classes, coverage=Fraction(9, 10), **about)


ROWS = [[4, 1], [], [0], [3, 2, 1, 0, 4], [], [2]]
SETS = sets_of(ROWS, class_names=NAMES, score="ecp", n_calibration=99)

#: Rows of distinct labels in any order, empty ones among them.
ragged = st.integers(2, 8).flatmap(
    lambda k: st.tuples(st.just(k), st.lists(st.lists(st.integers(0, k - 1), unique=True, max_size=k), max_size=12))
)


@given(ragged, st.data())
def test_contains_mask_and_lists_agree(case: tuple[int, list[list[int]]], data: st.DataObject) -> None:
    n_classes, rows = case
    sets = sets_of(rows, n_classes)
    labels = data.draw(st.lists(st.integers(0, n_classes - 1), min_size=len(rows), max_size=len(rows)))
    assert sets.to_lists() == rows
    assert [row.tolist() for row in sets] == rows
    assert sets.sizes.tolist() == [len(row) for row in rows]
    assert sets.contains(labels).tolist() == [label in row for label, row in zip(labels, rows, strict=True)]
    mask = sets.mask()
    assert mask.shape == (len(rows), n_classes)
    assert mask.dtype == bool
    assert [set(np.flatnonzero(m)) for m in mask] == [set(row) for row in rows]


@given(ragged)
def test_sets_made_elsewhere_are_the_same_sets(case: tuple[int, list[list[int]]]) -> None:
    n_classes, rows = case
    sets = sets_of(rows, n_classes)
    assert PredictionSets.from_lists(rows, n_classes=n_classes, coverage=0.9) == sets
    arrays = [np.array(row, np.int64) for row in rows]
    assert PredictionSets.from_lists(arrays, n_classes=n_classes, coverage=0.9) == sets
    ascending = sets_of([sorted(row) for row in rows], n_classes)
    assert PredictionSets.from_mask(sets.mask(), coverage=Fraction(9, 10)) == ascending
    assert PredictionSets.from_lists(map(set, rows), n_classes=n_classes, coverage=0.9) == ascending


def test_sets_made_elsewhere_are_evaluated() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 300)
    logits = rng.normal(size=(300, 5)) + 2 * np.eye(5)[labels]
    own = evicp.calibrate(logits[:150], labels[:150], "lac").predict(logits[150:], 0.8)
    about = {"coverage": 0.8, "score": "lac", "n_calibration": 150}
    mask = PredictionSets.from_mask(own.mask(), **about)
    lists = PredictionSets.from_lists(own.to_lists(), n_classes=5, **about)
    assert lists == own
    for sets in (mask, lists):
        assert repr(evicp.evaluate(sets, labels[150:])) == repr(evicp.evaluate(own, labels[150:]))


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_mask_may_be_a_frame(package: str) -> None:
    frames = pytest.importorskip(package)
    frame = frames.DataFrame({name: SETS.mask()[:, number] for number, name in enumerate(NAMES)})
    assert PredictionSets.from_mask(frame, coverage=0.9) == PredictionSets.from_mask(SETS.mask(), coverage=0.9)


def test_sets_come_back_from_arrow() -> None:
    pytest.importorskip("pyarrow")
    table = SETS.to_arrow()
    about = {"score": "ecp", "n_calibration": 99, "class_names": NAMES, "coverage": 0.9}
    for column in ("labels", "names"):
        assert PredictionSets.from_lists(table[column], n_classes=5, **about) == SETS


def test_sets_made_elsewhere_by_name() -> None:
    rows = [[NAMES[label] for label in row] for row in ROWS]
    about = {"score": "ecp", "n_calibration": 99, "class_names": NAMES, "coverage": 0.9}
    assert PredictionSets.from_lists(rows, n_classes=5, **about) == SETS
    assert PredictionSets.from_lists(ROWS, n_classes=5, **about) == SETS


@pytest.mark.parametrize(
    ("lists", "error", "message"),
    [
        ([[0], [1, 5]], LabelsError, r"in row 1, labels must be in \[0, 5\); got 5 at position 1\."),
        ([[0], [-1]], LabelsError, r"labels must be in \[0, 5\); got -1"),
        ([[0], [2, 1, 2]], LabelsError, "lists must contain a label only once per row; got 2 twice in row 1"),
        ([[0, 0.5]], InputTypeError, "labels must be integers"),
        ([[True, False]], InputTypeError, "got True or False in row 0. Use from_mask"),
        ([0, 1], InputTypeError, "lists must contain one list of labels per row; got 0 at row 0"),
        (["cat"], InputTypeError, "lists must contain one list of labels per row; got 'cat' at row 0"),
        ("cat", InputTypeError, "lists must be a list of labels per row; got a str"),
        (None, InputTypeError, "lists must be a list of labels per row; got a NoneType"),
        ([["cat"]], InputTypeError, "labels must be integers"),
    ],
)
def test_lists_that_are_no_sets(lists: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        PredictionSets.from_lists(lists, n_classes=5, coverage=0.9)


@pytest.mark.parametrize(
    ("mask", "about", "error", "message"),
    [
        (
            np.ones((2, 5)),
            {},
            InputTypeError,
            r"mask must be True or False; got dtype float64\. Pass mask\.astype\(bool\)",
        ),
        (np.ones(5, bool), {}, InputError, "mask must have shape"),
        (np.ones((5, 1), bool), {}, InputError, "of 2 classes or more; got"),
        (np.ones((2, 5), bool), {"coverage": 90}, InputError, "Did you mean 0.9"),
        (np.ones((2, 5), bool), {"class_names": NAMES[:4]}, InputError, "got 4 names for 5 classes"),
        (np.ones((2, 5), bool), {"n_calibration": 0}, InputError, "n_calibration must be at least 1"),
        (np.ones((2, 5), bool), {"score": evicp.LAC()}, InputTypeError, "score must be the name of a score"),
    ],
)
def test_masks_that_are_no_sets(mask: Any, about: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        PredictionSets.from_mask(mask, **{"coverage": 0.9, **about})


@given(ragged, st.data())
def test_every_index_is_what_a_list_would_give(case: tuple[int, list[list[int]]], data: st.DataObject) -> None:
    n_classes, rows = case
    sets = sets_of(rows, n_classes)
    cut = data.draw(st.slices(len(rows)))
    assert sets[cut].to_lists() == rows[cut]
    assert len(sets[cut]) == len(rows[cut])
    keep = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    kept = [row for row, wanted in zip(rows, keep, strict=True) if wanted]
    assert sets[np.array(keep, bool)].to_lists() == kept
    assert sets[keep].to_lists() == kept
    if rows:
        index = st.integers(-len(rows), len(rows) - 1)
        one = data.draw(index)
        assert sets[one].tolist() == rows[one]
        assert sets[np.int8(one)].tolist() == rows[one]
        some = data.draw(st.lists(index, max_size=6))
        assert sets[some].to_lists() == [rows[i] for i in some]
        assert sets[np.array(some, int)].to_lists() == [rows[i] for i in some]


def test_a_part_remembers_what_the_whole_was() -> None:
    for part in (SETS[1:4], SETS[::-2], SETS[[5, 0]], SETS[np.arange(6) % 2 == 0], SETS[:0]):
        assert isinstance(part, PredictionSets)
        about = (part.n_classes, part.coverage, part.score, part.n_calibration, part.filled, part.class_names)
        assert about == (5, Fraction(9, 10), "ecp", 99, False, NAMES)
        assert part.offsets[0] == 0
        assert part.offsets.dtype == np.int64
        assert part.labels.dtype == np.int32
    assert SETS[2:].to_lists(names=True) == [["cat"], ['naïve, "quoted"', "<b>", "dog", "cat", "日本"], [], ["<b>"]]
    assert SETS[4:1].to_lists() == []
    assert len(SETS[4:1]) == 0
    assert SETS[[]].to_lists() == []


def test_parts_of_parts() -> None:
    assert SETS[1:][2:][:1].to_lists() == [[3, 2, 1, 0, 4]]
    assert SETS[1:].contains([0, 0, 4, 1, 2]).tolist() == [False, True, True, False, True]
    assert SETS[::2][1:].mask().sum() == 1


def test_iteration_ends_and_may_be_repeated() -> None:
    assert list(map(list, SETS)) == ROWS
    assert len(list(SETS)) == len(SETS) == 6
    assert sets_of([]).to_lists() == []


def test_sets_cannot_be_changed_and_leave_the_callers_arrays_alone() -> None:
    offsets, labels = np.array([0, 1]), np.array([2], np.int32)
    sets = PredictionSets(offsets, labels, n_classes=3, coverage=Fraction(1, 2))
    for array in (sets.offsets, sets.labels, sets[0], sets[:1].labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        sets.coverage = Fraction(1, 3)  # type: ignore[misc]
    assert offsets.flags.writeable
    assert labels.flags.writeable


def test_equality_is_of_content() -> None:
    assert sets_of(ROWS) == sets_of(ROWS)
    assert sets_of(ROWS) != sets_of(ROWS[:-1])
    assert sets_of([[0, 1]]) != sets_of([[1, 0]])  # the order says which label is more plausible
    assert sets_of(ROWS) != sets_of(ROWS, filled=True)
    assert sets_of(ROWS) != sets_of(ROWS, class_names=NAMES)
    assert sets_of(ROWS) != sets_of(ROWS, 6)
    assert sets_of(ROWS) != ROWS
    with pytest.raises(TypeError):
        hash(SETS)


def test_the_same_labels_cut_differently_are_other_sets() -> None:
    assert sets_of([[0, 1], [2]]) != sets_of([[0], [1, 2]])


def test_repr() -> None:
    assert repr(SETS) == (
        "PredictionSets(6 rows of 5 classes, coverage 0.9; mean size 1.50, 2 empty, 2 of one label, largest 5)"
    )
    assert repr(sets_of([])) == "PredictionSets(0 rows of 5 classes, coverage 0.9)"
    assert repr(sets_of([[3]])).startswith("PredictionSets(1 row of 5 classes")


def test_names() -> None:
    assert SETS.names(0) == ["日本", "dog"]
    assert SETS.names(-1) == ["<b>"]
    assert SETS.names(1) == []
    with pytest.raises(RowError):
        SETS.names(6)


# ---------------------------------------------------------------------------------------------------------------
# Other forms


@given(ragged, st.booleans())
def test_arrow_holds_the_same_rows(case: tuple[int, list[list[int]]], named: bool) -> None:
    pa = pytest.importorskip("pyarrow")
    n_classes, rows = case
    names = tuple(f"class {k}" for k in range(n_classes)) if named else None
    table = sets_of(rows, n_classes, class_names=names).to_arrow()
    fields = {"row": pa.int64(), "labels": pa.list_(pa.int32()), "size": pa.int32()}
    if named:
        fields["names"] = pa.list_(pa.string())
        assert table["names"].to_pylist() == [[f"class {k}" for k in row] for row in rows]
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == fields
    assert table["row"].to_pylist() == list(range(len(rows)))
    assert table["labels"].to_pylist() == rows
    assert table["size"].to_pylist() == [len(row) for row in rows]
    table.validate(full=True)


def test_pandas_holds_the_same_rows() -> None:
    pd = pytest.importorskip("pandas")
    frame = SETS.to_pandas()
    assert [list(row) for row in frame["labels"]] == ROWS
    assert frame["size"].tolist() == [2, 0, 1, 5, 0, 1]
    assert frame["names"].tolist() == SETS.to_lists(names=True)
    assert frame.index.equals(pd.RangeIndex(6, name="row"))
    assert list(sets_of(ROWS).to_pandas().columns) == ["labels", "size"]


ABOUT = [
    {},
    {"class_names": NAMES, "score": "ecp", "n_calibration": 99},
    {"filled": True, "smoothed": True, "score": "raps", "n_calibration": 10**12},
]


@pytest.mark.parametrize("rows", [ROWS, [], [[]], [[], [1]], [[0, 1, 2, 3, 4]] * 3], ids=len)
@pytest.mark.parametrize("about", ABOUT, ids=["plain", "named", "filled"])
@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_round_trip(rows: list[list[int]], about: dict[str, Any], suffix: str, tmp_path: Path) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    sets = sets_of(rows, **about)
    files.write_sets(sets, tmp_path / f"sets{suffix}")
    again = files.read_sets(tmp_path / f"sets{suffix}")
    assert again == sets
    assert (again.offsets.dtype, again.labels.dtype) == (np.int64, np.int32)
    assert again.coverage == Fraction(9, 10)


def test_a_coverage_survives_exactly(tmp_path: Path) -> None:
    for coverage in (Fraction(1, 3), Fraction(10**30 - 1, 10**30), Fraction(1, 2**80)):
        sets = PredictionSets(np.array([0, 1]), np.array([0], np.int32), n_classes=2, coverage=coverage)
        files.write_sets(sets, tmp_path / "sets.npz")
        assert files.read_sets(tmp_path / "sets.npz").coverage == coverage


def test_parquet_is_as_specified_for_any_reader(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    files.write_sets(SETS, tmp_path / "sets.parquet")
    table = pq.read_table(tmp_path / "sets.parquet")
    assert table.schema.field("row").type == pa.int64()
    assert table.schema.field("labels").type.value_type == pa.int32()
    assert table.schema.field("size").type == pa.int32()
    assert table["labels"].to_pylist() == ROWS
    assert table["names"].to_pylist() == SETS.to_lists(names=True)


def test_many_row_groups(tmp_path: Path) -> None:
    """More rows than a row group holds come back as one column."""
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    sets = sets_of([[i % 5] * (i % 2) for i in range(1000)])
    files.write_sets(sets, tmp_path / "one.parquet")
    pq.write_table(pq.read_table(tmp_path / "one.parquet"), tmp_path / "many.parquet", row_group_size=64)
    assert files.read_sets(tmp_path / "many.parquet") == sets


def test_json_lines(tmp_path: Path) -> None:
    files.write_sets(SETS, tmp_path / "sets.jsonl")
    lines = (tmp_path / "sets.jsonl").read_text(encoding="utf-8").splitlines()
    assert '"日本"' in lines[3]  # as it is, not as escapes
    assert [json.loads(line) for line in lines] == [
        {"row": i, "labels": row, "size": len(row), "names": [NAMES[k] for k in row]} for i, row in enumerate(ROWS)
    ]
    files.write_sets(sets_of(ROWS), tmp_path / "sets.jsonl")
    assert json.loads((tmp_path / "sets.jsonl").read_text().splitlines()[0]) == {"row": 0, "labels": [4, 1], "size": 2}


ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()


def spoil(path: Path, **changes: Any) -> None:
    """Rewrite an npz file of sets with some of its arrays, or fields of its description, changed."""
    with np.load(path) as arrays:
        content = dict(arrays)
    about = json.loads(str(content["about"]))
    for name, value in changes.items():
        if name in content and name != "about":
            content[name] = value
        elif value is ABSENT:
            del about[name]
        else:
            about[name] = value
    content["about"] = np.array(changes.get("about", json.dumps(about)))
    np.savez(path, **content)


@pytest.mark.parametrize(
    "changes",
    [
        {"offsets": np.array([0, 2, 1, 3, 3, 9, 9])},
        {"offsets": np.array([1, 2, 2, 3, 8, 8, 9])},
        {"offsets": np.array([0, 2, 2, 3, 8, 8, 10])},
        {"offsets": np.array([0, 2, 2, 3, 8, 8, 8])},
        {"offsets": np.array([0.0, 9.0])},
        {"offsets": np.array([[0, 9]])},
        {"offsets": np.array([], int)},
        {"labels": np.array([4, 1, 0, 3, 2, 1, 0, 5, 2], np.int32)},
        {"labels": np.array([4, 1, 0, 3, 2, 1, 0, -1, 2], np.int32)},
        {"labels": np.array([4.0] * 9)},
        {"n_classes": 2.5},
        {"n_classes": 0},
        {"n_classes": "5"},
        {"n_classes": ABSENT},
        {"coverage": "1/0"},
        {"coverage": "1e999999999"},
        {"coverage": "3/2"},
        {"coverage": 0.9},
        {"coverage": "nan/1"},
        {"score": ["ecp"]},
        {"filled": "yes"},
        {"smoothed": 1},
        {"n_calibration": -1},
        {"n_calibration": 1.5},
        {"class_names": ["a"]},
        {"class_names": "abcde"},
        {"about": "[]"},
        {"about": "{"},
        {"about": '{"n_classes": NaN}'},
        {"about": '{"n_classes": 5, "n_classes": 5}'},
        {"about": "[" * 100_000},
    ],
    ids=str,
)
def test_a_spoilt_file_of_sets_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "sets.npz"
    files.write_sets(SETS, path)
    assert files.read_sets(path) == SETS
    spoil(path, **changes)
    with pytest.raises(
        FileError, match=r"^cannot read .*sets\.npz: it does not contain sets written by evicp \("
    ) as caught:
        files.read_sets(path)
    assert type(caught.value) is FileError


def test_files_from_before_sets_could_be_smoothed_are_of_plain_sets(tmp_path: Path) -> None:
    files.write_sets(SETS, tmp_path / "sets.npz")
    spoil(tmp_path / "sets.npz", smoothed=ABSENT)
    assert files.read_sets(tmp_path / "sets.npz") == SETS


def test_sets_of_a_real_prediction_hold_the_most_plausible_first() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 6, 200)
    logits = np.round(rng.normal(size=(200, 6)) * 2) / 2 + np.eye(6)[labels]  # with many ties
    calibration = evicp.calibrate(logits, labels, "lac")
    sets = calibration.predict(logits, 0.95)
    scores = evicp.LAC().scores(logits)
    for row, members in enumerate(sets):
        assert sorted(members, key=lambda k: (scores[row, k], -logits[row, k], k)) == list(members)


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_what_has_travelled_is_as_read_only_as_before(travel, rows):
    groups = np.arange(80) % 2
    grouped, weighted = evicp.calibrate(*rows, by=groups), evicp.calibrate(*rows, weights=1.0 + groups)
    sets = grouped.predict(rows[0], 0.9, groups=groups)
    for one in (grouped, weighted, sets):
        assert travel(one) == one
    arrays = [travel(grouped).scores, travel(grouped).groups.counts, travel(weighted).weights.rows]
    for array in (*arrays, travel(sets).labels, travel(sets).offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_a_notebook_shows_the_first_sets_as_text() -> None:
    page = SETS._repr_html_()
    cells = re.findall(r">([^<]*)</t[dh]>", page)
    assert cells[:3] == ["row", "size", "set"]
    assert cells[3:9] == ["0", "2", "日本, dog", "1", "0", "(empty)"]
    assert "naïve, &quot;quoted&quot;, &lt;b&gt;, dog, cat, 日本</td>" in page
    assert "<b>" not in page
    assert "more" not in page
    assert "6 rows of 5 classes, coverage 0.9; mean size 1.50" in page


def test_a_notebook_shows_no_more_than_ten_sets_of_eight_labels() -> None:
    cells = re.findall(r">([^<]*)</td>", sets_of([list(range(12)), *([[3]] * 1499)], 12)._repr_html_())
    assert cells[:3] == ["0", "12", "0, 1, 2, 3, 4, 5, 6, 7 and 4 more"]
    assert cells[-6:] == ["9", "1", "3", "and 1,490 more", "", ""]
    assert len(cells) == 3 * 11
    assert "0 rows of 5 classes" in sets_of([])._repr_html_()
