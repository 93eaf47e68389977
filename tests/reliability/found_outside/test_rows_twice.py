"""Nothing counts twice: rows of a folder, labels of a set, names that are not names."""

from __future__ import annotations

import functools
import json
import operator
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from commands import evicp_process
from evicp import blocks
from evicp.errors import FileError, InputError, InputTypeError, LabelsError, LogitsError
from evicp.input import validate
from evicp.input.classes import as_class_names
from evicp.io import files

K = 4


def data(seed: int, n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return (rng.normal(size=(n, K)) + 2 * np.eye(K)[labels]).astype(np.float32), labels


def as_parquet(path: Path, logits: np.ndarray, labels: np.ndarray | None) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"logits": pa.array([row.tolist() for row in logits], pa.list_(pa.float64()))}
    pq.write_table(pa.table(columns if labels is None else {**columns, "labels": labels}), path)


# ---------------------------------------------------------------------------------------------------------------
# Folders


def linked(folder: Path) -> None:
    os.link(folder / "0.npz", folder / "backup.npz")


COPIES: dict[str, Callable[[Path], Any]] = {
    "a copy": lambda folder: shutil.copy(folder / "0.npz", folder / "backup.npz"),
    "a link": linked,
    "a symbolic link": lambda folder: (folder / "latest.npz").symlink_to(folder / "0.npz"),
    "compressed": lambda folder: np.savez_compressed(folder / "z.npz", logits=data(0)[0], labels=data(0)[1]),
    "another format": lambda folder: as_parquet(folder / "rows.parquet", *data(0)),
    "another type": lambda folder: np.savez(folder / "z.npz", logits=data(0)[0].astype(float), labels=data(0)[1]),
    "without labels": lambda folder: as_parquet(folder / "rows.parquet", data(0)[0], None),
    "by column": lambda folder: np.save(folder / "z.npy", np.asfortranarray(data(0)[0])),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards of as many rows."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        np.savez(folder / f"{number}.npz", logits=data(number)[0], labels=data(number)[1])
    return folder


@pytest.mark.parametrize("kind", COPIES)
def test_rows_that_are_in_a_folder_twice(folder: Path, kind: str) -> None:
    assert len(blocks.open_rows(folder)) == 90
    try:
        COPIES[kind](folder)
    except OSError as error:
        pytest.skip(f"no such link here: {error}")
    added = next(path.name for path in folder.iterdir() if path.name not in ("0.npz", "1.npz", "2.npz"))
    with pytest.raises(FileError, match=r"in .*shards contain the same rows, which would count twice\.") as caught:
        blocks.open_rows(folder)
    assert "0.npz" in str(caught.value)
    assert added in str(caught.value)


def test_one_name_in_two_formats(folder: Path) -> None:
    """Rounded to another type, their rows may even differ."""
    as_parquet(folder / "1.parquet", data(1)[0] + 1e-3, data(1)[1])
    with pytest.raises(FileError, match=r"shards contains 1\.\w+ and 1\.\w+: rows in two formats would count twice"):
        blocks.open_rows(folder)


def test_the_command_line_refuses_a_copy(folder: Path) -> None:
    shutil.copy(folder / "0.npz", folder / "0 (copy).npz")
    done = evicp_process(["calibrate", "shards", "-o", "cal.safetensors"], folder.parent)
    assert (done.code, "contain the same rows, which would count twice" in done.err) == (2, True)
    assert not (folder.parent / "cal.safetensors").exists()


def test_files_that_only_begin_alike_are_all_read(folder: Path) -> None:
    logits, labels = data(0)
    logits[-1] += 1  # all rows but the last
    np.savez(folder / "3.npz", logits=logits, labels=labels)
    np.savez(folder / "4.npz", logits=data(0)[0], labels=(data(0)[1] + 1) % K)  # other labels of the same logits
    np.savez(folder / "5.npz", logits=data(0)[0][:-1], labels=data(0)[1][:-1])  # fewer rows
    assert len(blocks.open_rows(folder)) == 5 * 30 + 29
    for number in range(6, 9):  # no rows at all
        np.savez(folder / f"{number}.npz", logits=data(0)[0][:0], labels=data(0)[1][:0])
    assert len(blocks.open_rows(folder)) == 5 * 30 + 29


def test_a_damaged_shard_is_said_to_be_damaged(folder: Path) -> None:
    for number in (3, 4):
        np.savez(folder / f"{number}.npz", logits=data(3, 2000)[0], labels=data(3, 2000)[1])
    whole = bytearray((folder / "3.npz").read_bytes())
    whole[whole.index(data(3, 2000)[0][1500].tobytes())] ^= 1
    (folder / "3.npz").write_bytes(whole)
    rows = blocks.open_rows(folder)
    with pytest.raises(FileError, match=r"3\.npz: it is damaged"):
        list(rows)


# ---------------------------------------------------------------------------------------------------------------
# Sets


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_label_that_is_in_a_set_twice(tmp_path: Path, suffix: str, compressed: bool) -> None:
    lists = [[0, 2], [1, 0, 3], [], [2]] * 25
    files.write_sets(
        evicp.PredictionSets.from_lists(lists, n_classes=K, coverage=0.9), path := tmp_path / f"sets.{suffix}"
    )
    lists[77] = [3, 1, 3]
    if suffix == "npz":
        with np.load(path) as arrays:
            parts = {**arrays, "labels": np.concatenate([np.array(row, np.int32) for row in lists])}
        (np.savez_compressed if compressed else np.savez)(path, **parts)
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pq.read_table(path)
        changed = table.set_column(1, "labels", pa.array(lists, pa.list_(pa.int32())))
        pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    for read in (lambda: files.read_sets(path), lambda: list(files.scan_sets(path, 10))):
        with pytest.raises(FileError, match=r"label 3 is twice in the set of row 77"):
            read()


@pytest.mark.parametrize("n_classes", [5, 1000, 10**6, 2**31 - 1])
def test_a_repeated_label_is_found_by_marks_and_by_sorting(n_classes: int) -> None:
    """Against a plain search, over sets of all sizes."""
    from evicp.input.lists import repeated_label

    rng = np.random.default_rng(0)
    for trial in range(200):
        some = min(n_classes, 6)
        lists = [rng.permutation(some)[: rng.integers(0, some + 1)].tolist() for _ in range(rng.integers(0, 30))]
        if trial % 2 and any(lists):
            row = int(rng.choice([row for row, labels in enumerate(lists) if labels]))
            lists[row] = [*lists[row], lists[row][0]]
        expected = next((row for row, labels in enumerate(lists) if len(set(labels)) < len(labels)), None)
        offsets = np.cumsum([0, *map(len, lists)])
        found = repeated_label(offsets, np.array(functools.reduce(operator.iadd, lists, []), np.int32), n_classes)
        assert (None if found is None else found[0]) == expected
        assert found is None or lists[found[0]].count(found[1]) == 2


def test_sets_from_lists_are_held_to_the_same_rule() -> None:
    with pytest.raises(LabelsError, match=r"lists must contain a label only once per row; got 1 twice in row 2\."):
        evicp.PredictionSets.from_lists([[0], [], [1, 2, 1]], n_classes=3, coverage=0.9)


# ---------------------------------------------------------------------------------------------------------------
# Names


def test_a_calibration_among_folds_twice() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    logits = rng.normal(size=(90, 3)) + 2 * np.eye(3)[labels]
    one, other = (evicp.calibrate(logits[part], labels[part], "lac") for part in (slice(45), slice(45, 90)))
    assert evicp.CrossCalibration((one, other)).n == 90
    with pytest.raises(InputError, match="each calibration once: its rows would count twice"):
        evicp.CrossCalibration((one, other, one))


class Colour:
    """Something that has a text, but is none."""


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"b", r"got b'b' \(bytes\) for class 1\. Decode it: name\.decode\(\)"),
        (np.bytes_(b"b"), r".*for class 1\. Decode it"),
        (None, r"got None \(NoneType\) for class 1\. Give every class a name, or leave out class_names"),
        (float("nan"), r"got nan \(float\) for class 1\. Give every class a name"),
        (np.float32("nan"), r".*for class 1\. Give every class a name"),
        (1.0, r"got 1\.0 \(float\) for class 1\. Pass its text"),
        (True, r"got True \(bool\) for class 1"),
        (Colour(), r".*\(Colour\) for class 1"),
    ],
)
def test_a_class_name_that_is_no_text(bad: Any, said: str) -> None:
    for names in (["a", bad, "c"], ("a", bad, "c"), np.array(["a", bad, "c"], object), {0: "a", 1: bad, 2: "c"}):
        with pytest.raises(InputTypeError, match=rf"^class_names must be strings; {said}"):
            evicp.calibrate(3 * np.eye(3), [0, 1, 2], "lac", class_names=names)


@pytest.mark.parametrize("package", ["pyarrow", "pandas", "polars"])
def test_missing_names_in_columns(package: str) -> None:
    module = pytest.importorskip(package)
    make = module.array if package == "pyarrow" else module.Series
    with pytest.raises(
        InputTypeError, match=r"^class_names must be strings; got .* for class 1\. Give every class a name"
    ):
        as_class_names(make(["a", None, "c"]), 3)
    assert as_class_names(make(["a", "b", "c"]), 3) == ("a", "b", "c")
    assert as_class_names(make([0.0, 1.0, 2.0]), 3) == ("0.0", "1.0", "2.0")  # as scikit-learn has classes
    with pytest.raises(InputTypeError, match=r"^class_names must be strings"):
        as_class_names(make([0.5, 1.0, 2.0]), 3)


def test_names_in_files(tmp_path: Path) -> None:
    logits, labels = data(0)
    np.savez(tmp_path / "rows.npz", logits=logits, labels=labels, class_names=np.array([b"a", b"b", b"c", b"d"]))
    with pytest.raises(InputTypeError, match=r"class_names in .*rows\.npz must be a one-dimensional array of strings"):
        blocks.open_rows(tmp_path / "rows.npz")
    from safetensors.numpy import save_file

    for names in (["a", None, "c", "d"], ["a", 1.5, "c", "d"], {"0": "a"}):
        save_file({"logits": logits}, tmp_path / "rows.safetensors", {"class_names": json.dumps(names)})
        with pytest.raises(FileError, match=r"class_names in .* must be a JSON list of strings"):
            blocks.open_rows(tmp_path / "rows.safetensors")
    (tmp_path / "names.json").write_text('["a", null, "c", "d"]')
    from evicp.cli import inputs

    with pytest.raises(FileError, match=r"class_names must be strings; got None .* for class 1"):
        inputs.read_class_names(str(tmp_path / "names.json"))


# ---------------------------------------------------------------------------------------------------------------
# Arrays that change


def test_an_array_that_is_written_to_never_gives_sets_that_cannot_be(cpu_backend: Any) -> None:
    """What they hold is not guaranteed; that they are sets, or one typed error, is."""
    logits, labels = data(0, 4000)
    calibration = evicp.calibrate(logits[:500], labels[:500], "lac")
    changing, ended = logits.copy(), threading.Event()

    def disturb() -> None:
        while not ended.is_set():
            changing[::7] = np.nan
            changing[:] = logits[::-1]
            changing[:] = logits

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(100):
            try:
                sets = calibration.predict(changing, 0.9)
            except LogitsError:
                continue
            assert sets.offsets[0] == 0
            assert sets.offsets[-1] == len(sets.labels)
            assert np.all((sets.sizes >= 0) & (sets.sizes <= K))
            assert np.all((sets.labels >= 0) & (sets.labels < K))
    finally:
        ended.set()
        thread.join()


def test_a_row_that_changes_while_it_is_refused() -> None:
    """A kernel found it unusable, and when it was looked at again it was not."""
    with pytest.raises(LogitsError, match=r"^logits must not change while they are read; row 7 did\. Pass a copy\.$"):
        validate.raise_bad_row(np.array([1.0, 2.0]), 7)
