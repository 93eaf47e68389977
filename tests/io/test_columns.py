"""Logits and labels under other names, in wide tables, Arrow and csv files and in data sets of Hugging Face."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

import evicp
from commands import evicp_process
from evicp.errors import FileError, InputError, LogitsError
from evicp.io.files import read_logits
from evicp.io.logits import open_rows

N, K = 90, 5
NAMES = ("ant", "bee", "cat", "dog", "eel")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, N)
    logits = rng.normal(size=(N, K)).astype(np.float32)
    logits[np.arange(N), labels] += 2
    return logits, labels


def lists(logits):
    return pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), logits.shape[1])


def wide(logits, names):
    return {name: pa.array(np.ascontiguousarray(column)) for name, column in zip(names, logits.T, strict=True)}


def write_stream(table, path, batch=37):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)


WRITERS = {
    "rows.parquet": lambda table, path: pa.parquet.write_table(table, path, row_group_size=31),
    "rows.arrow": write_stream,
    "rows.feather": lambda table, path: pa.feather.write_feather(table, str(path), chunksize=29),
    "ROWS.IPC": lambda table, path: pa.feather.write_feather(table, str(path), "uncompressed"),
}


def holds(path, rows, **how):
    """Whether a path gives these rows, at once and in blocks of any size, here and in another process."""
    found = open_rows(path, **how)
    np.testing.assert_array_equal(found.logits, rows[0])
    np.testing.assert_array_equal(found.labels, rows[1])
    assert len(found) == N
    for step in (7, 1000):
        blocks = [(block.logits.copy(), np.array(block.labels)) for block in found.blocks(step)]
        assert max(len(part[0]) for part in blocks) <= step
        for whole, parts in zip(rows, zip(*blocks, strict=True), strict=True):
            np.testing.assert_array_equal(np.concatenate(parts), whole)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.files[0].logits.span(3, 9).whole(), found.files[0].logits.whole()[3:9])
    return found


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("label", ["labels", "label", "targets", "y"])
def test_usual_names_of_columns(rows, tmp_path, name, label):
    table = pa.table({"id": pa.array(range(N)), "logits": lists(rows[0]), label: pa.array(rows[1])})
    WRITERS[name](table, tmp_path / name)
    holds(tmp_path / name, rows)
    data = read_logits(tmp_path / name)
    np.testing.assert_array_equal(data.logits, rows[0])
    np.testing.assert_array_equal(data.labels, rows[1])


@pytest.mark.parametrize("name", [*WRITERS, "rows.csv", "rows.tsv"])
def test_a_column_for_each_class(rows, tmp_path, name):
    logits, labels = rows[0].astype(np.float64), rows[1]
    columns = {**wide(logits[:, ::-1], [f"logit_{k}" for k in reversed(range(K))]), "label": pa.array(labels)}
    write = {**WRITERS, "rows.csv": pa.csv.write_csv, "rows.tsv": write_tsv}[name]
    write(pa.table(columns), str(tmp_path / name))
    found = holds(tmp_path / name, (logits, labels))
    assert found.class_names is None  # in the order of their numbers, whatever that of the columns is


def write_tsv(table, path):
    pa.csv.write_csv(table, path, pa.csv.WriteOptions(delimiter="\t"))


def test_columns_called_by_the_classes(rows, tmp_path):
    columns = {"row": pa.array(range(N)), **wide(rows[0], [f"p({name})" for name in NAMES])}
    named = np.array(NAMES)[rows[1]]
    pa.csv.write_csv(pa.table({**columns, "truth": pa.array(named)}), tmp_path / "rows.csv")
    found = open_rows(tmp_path / "rows.csv", logits_column="p(*)", labels_column="truth")
    assert found.class_names == NAMES
    calibration = evicp.blocks.calibrate(found, "lac")
    assert calibration == evicp.calibrate(found.logits, rows[1], "lac", class_names=NAMES)
    with pytest.raises(
        FileError, match=r"^cannot read .*: it has no column 'logits'; it has p\(ant\), .*--logits-column"
    ):
        open_rows(tmp_path / "rows.csv")
    with pytest.raises(FileError, match=r"no columns that match 'q\(\*\)'; it has p\(ant\)"):
        open_rows(tmp_path / "rows.csv", logits_column="q(*)")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_names_of_arrays(rows, tmp_path, suffix):
    from safetensors.numpy import save_file

    save = {".npz": lambda arrays, path: np.savez(path, **arrays), ".safetensors": save_file}[suffix]
    for number, (logits, labels) in enumerate([("arr_0", "arr_1"), ("preds", "target"), ("logits", "label")]):
        path = tmp_path / f"usual{number}{suffix}"
        save({logits: rows[0], labels: rows[1]}, path)
        holds(path, rows)
    path = tmp_path / f"other{suffix}"
    save({"scores_a": rows[0], "scores_b": -rows[0], "truth": rows[1]}, path)
    holds(path, rows, logits_column="scores_a", labels_column="truth")
    for how, message in {
        (): "no array 'logits'; it has scores_a, scores_b, truth. Name it with logits_column",
        ("z",): "no array 'z'; it has scores_a, scores_b, truth. Give one of them as logits_column",
        ("scores_a", "y"): "no array 'y'; it has scores_a, scores_b, truth. Give one of them as labels_column",
    }.items():
        with pytest.raises(FileError, match=message):
            open_rows(path, **dict(zip(("logits_column", "labels_column"), how, strict=False)))


def test_what_two_usual_names_hold_is_not_guessed(rows, tmp_path):
    path = tmp_path / "two.npz"
    np.savez(path, logits=rows[0], label=rows[1], target=1 - rows[1])
    found = open_rows(path)
    with pytest.raises(
        FileError, match=r"two\.npz has no labels; it has label, logits, target\. Name them with labels_c"
    ):
        evicp.blocks.calibrate(found)
    assert evicp.blocks.calibrate(open_rows(path, labels_column="label"), "lac").n == N
    np.savez(path, preds=rows[0], outputs=rows[0])
    with pytest.raises(FileError, match="no array 'logits'; it has outputs, preds"):
        open_rows(path)
    np.savez(path, logits=rows[0], arr_1=rows[1])  # labels only where the logits are arr_0
    assert not open_rows(path).has_labels


def test_a_message_never_lists_a_thousand_names(tmp_path):
    columns = {f"feature {k}": pa.array([0.0]) for k in range(1000)}
    pa.parquet.write_table(pa.table(columns), tmp_path / "wide.parquet")
    with pytest.raises(FileError, match="feature 104 and 992 more") as caught:
        open_rows(tmp_path / "wide.parquet")
    assert len(str(caught.value)) < 500


def test_columns_that_are_no_logits(rows, tmp_path):
    path = tmp_path / "rows.parquet"
    for columns, error, message in [
        (
            {"logit_0": pa.array([1.0, None]), "logit_1": pa.array([1.0, 2.0])},
            InputError,
            "logit_0 must not be null.*row 1",
        ),
        (
            {"logit_0": pa.array(["a"]), "logit_1": pa.array([1.0])},
            InputError,
            "logit_0 must be a column of numbers; got st",
        ),
        (
            {"logit_0": pa.array([1.0]), "logit_2": pa.array([1.0])},
            FileError,
            "no column 'logits'; it has logit_0, logit_2",
        ),
        ({"preds": pa.array([1.0])}, InputError, "preds must be a column of lists of numbers; got double"),
    ]:
        pa.parquet.write_table(pa.table(columns), path)
        with pytest.raises((error, FileError), match=message):
            _ = open_rows(path).logits
    write_stream(pa.Table.from_arrays([lists(rows[0])] * 2, names=["logits", "logits"]), tmp_path / "twice.arrow")
    with pytest.raises(FileError, match="it has the column 'logits' twice"):
        open_rows(tmp_path / "twice.arrow")


@pytest.mark.parametrize("name", ["rows.arrow", "rows.feather"])
def test_damaged_arrow_files_are_refused(rows, tmp_path, name):
    table = pa.table({"logits": lists(rows[0]), "label": pa.array(rows[1])})
    WRITERS[name](table, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    rng = np.random.default_rng(0)
    for size in (0, 4, 20, len(content) // 2, len(content) - 30):
        (tmp_path / name).write_bytes(content[:size])
        with pytest.raises(evicp.EvicpError):
            np.asarray(open_rows(tmp_path / name).logits)
    for _ in range(60):  # nothing but a typed error, or the rows
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 5):
            damaged[place] ^= int(rng.integers(1, 256))
        (tmp_path / name).write_bytes(damaged)
        with suppress(evicp.EvicpError):
            assert open_rows(tmp_path / name).logits.ndim == 2


def test_rows_without_any(tmp_path):
    table = pa.table({"logits": lists(np.zeros((1, K), np.float32)), "label": pa.array([0])})[:0]
    for name, write in WRITERS.items():
        write(table, tmp_path / name)
        assert len(open_rows(tmp_path / name)) == 0


@pytest.fixture
def saved(rows, tmp_path):
    """A data set of Hugging Face, saved in three files."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "logits": datasets.Sequence(datasets.Value("float32"), length=K),
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=list(NAMES)),
        }
    )
    columns = {"logits": rows[0].tolist(), "text": [f"row {i}" for i in range(N)], "label": rows[1].tolist()}
    table = datasets.Dataset.from_dict(columns, features=features)
    table.save_to_disk(tmp_path / "set", num_shards=3)
    return table, tmp_path / "set"


def test_a_saved_data_set_of_hugging_face(rows, saved):
    _, folder = saved
    assert holds(folder, rows).class_names == NAMES
    calibration = evicp.blocks.calibrate(folder)
    assert calibration == evicp.calibrate(rows[0], rows[1], class_names=NAMES)


def test_a_selection_and_splits_of_data_sets(rows, saved, tmp_path):
    datasets = pytest.importorskip("datasets")
    table, _ = saved
    table.select(range(10, 60)).save_to_disk(tmp_path / "part")
    np.testing.assert_array_equal(open_rows(tmp_path / "part").logits, rows[0][10:60])
    datasets.DatasetDict(train=table, test=table).save_to_disk(tmp_path / "both")
    with pytest.raises(
        FileError, match=r"both contains splits of a data set\. Give one of them: .*both.test, .*both.train\."
    ):
        open_rows(tmp_path / "both")
    assert len(open_rows(tmp_path / "both" / "train")) == N


def test_a_data_set_cannot_name_files_elsewhere(saved, tmp_path):
    _, folder = saved
    for state in ({"_data_files": [{"filename": "../other.arrow"}]}, {"_data_files": []}, [], {"_data_files": [3]}):
        (folder / "state.json").write_text(json.dumps(state))
        with pytest.raises(FileError, match=r"state\.json"):
            open_rows(folder)


def test_files_of_a_folder_must_have_the_same_classes(rows, tmp_path):
    for name, columns in {"1.parquet": K, "2.parquet": K - 1}.items():
        pa.parquet.write_table(pa.table(wide(rows[0][:, :columns], map(str, range(columns)))), tmp_path / name)
    with pytest.raises(LogitsError, match="must have the same classes"):
        open_rows(tmp_path)


def test_the_command_line_takes_names(rows, tmp_path):
    np.savez(tmp_path / "val.npz", z=rows[0], truth=rows[1])
    np.savez(tmp_path / "plain.npz", logits=rows[0], labels=rows[1])
    named = ["--logits-column", "z", "--labels-column", "truth"]
    for source, more, output in (("val.npz", named, "a.safetensors"), ("plain.npz", [], "b.safetensors")):
        assert evicp_process(["calibrate", source, *more, "-o", output, "--score", "lac"], tmp_path).code == 0
    assert evicp.load(tmp_path / "a.safetensors") == evicp.load(tmp_path / "b.safetensors")
    assert evicp_process(["predict", "a.safetensors", "val.npz", *named[:2], "-o", "sets.npz"], tmp_path).code == 0
    assert evicp.io.files.read_sets(tmp_path / "sets.npz") == evicp.load(tmp_path / "a.safetensors").predict(rows[0])
    for command in (["evaluate", "a.safetensors"], ["compare"], ["tune"], ["monitor", "a.safetensors"]):
        assert evicp_process([*command, "val.npz", *named], tmp_path).code == 0, command
    np.save(tmp_path / "truth.npy", np.eye(K, dtype=int)[rows[1]])
    for rule, how in (("control", ["--risk", "0.5"]), ("selective", ["--error", "0.9", "--confidence", "0.5"])):
        made = evicp_process([rule, "val.npz", *named, *how, "-o", f"{rule}.safetensors"], tmp_path)
        assert made.code == 0, made.err
        assert evicp_process(["apply", f"{rule}.safetensors", "val.npz", *named], tmp_path).code == 0
    several = ["multilabel", "val.npz", *named[:2], "--truth", "truth.npy", "-o", "several.safetensors"]
    assert evicp_process(several, tmp_path).code == 0
    failed = evicp_process(["calibrate", "val.npz", "-o", "c.safetensors"], tmp_path)
    assert failed.code == 2
    assert "it has truth, z. Name it with logits_column (--logits-column NAME)" in failed.err
