"""What rows are called where they come from: files of inputs, keys, a frame's index. It stays with their sets."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from commands import evicp_process
from evicp import blocks
from evicp.errors import FileError, InputError, LabelsError
from evicp.io.files import open_sets, read_sets
from evicp.io.set_texts import TEXT_SETS
from evicp.sets import join_sets

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 300)
LOGITS = RNG.normal(size=(300, 4)) + 2 * np.eye(4)[LABELS]
CALIBRATION = evicp.calibrate(LOGITS[:200], LABELS[:200])
NEW, TRUTH = LOGITS[200:], LABELS[200:]
NAMES = np.array([f"picture {'x' * (row % 7)}{row}.jpg" for row in range(100)])
SETS = CALIBRATION.predict(NEW)


def write(path: Path, ids: Any) -> Path:
    """Logits with ids, in the format of the suffix, under the names that `extract` and others give."""
    if path.suffix == ".npz":
        np.savez(path, logits=NEW, labels=TRUTH, inputs=ids)
    elif path.suffix == ".npy":
        np.save(path, NEW)
        np.save(path.with_name(f"{path.stem}.labels.npy"), TRUTH)
        np.save(path.with_name(f"{path.stem}.inputs.npy"), ids)
    elif path.suffix == ".safetensors":
        numpy = pytest.importorskip("safetensors.numpy")
        numpy.save_file({"logits": NEW, "labels": TRUTH}, path, {"inputs": json.dumps(ids.tolist())})
    else:
        pa = pytest.importorskip("pyarrow")
        columns = {f"logit_{k}": NEW[:, k] for k in range(4)} | {"label": TRUTH, "image_id": ids}
        table = pa.table(columns)
        if path.suffix == ".csv":
            pytest.importorskip("pyarrow.csv").write_csv(table, path)
        elif path.suffix == ".arrow":
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table, 30)
        else:
            pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=30)
    return path


@pytest.mark.parametrize("kind", [".npz", ".npy", ".safetensors", ".parquet", ".arrow", ".csv"])
@pytest.mark.parametrize("output", [".parquet", ".npz"])
def test_names_of_rows_go_from_logits_to_sets(kind: str, output: str, tmp_path: Path) -> None:
    if output == ".parquet":
        pytest.importorskip("pyarrow")
    rows = blocks.open_rows(write(tmp_path / f"new{kind}", NAMES), memory="20kB")
    assert rows.step < 100  # several blocks
    blocks.predict(CALIBRATION, rows, 0.9, tmp_path / f"sets{output}")
    sets = read_sets(tmp_path / f"sets{output}")
    assert sets.ids is not None
    assert sets.ids.tolist() == NAMES.tolist()
    assert sets.to_lists() == SETS.to_lists()
    assert blocks.evaluate(sets, rows).coverage == np.mean(SETS.contains(TRUTH))


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_names_of_a_folder_are_those_of_its_files(suffix: str, tmp_path: Path) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    folder = tmp_path / "shards"
    folder.mkdir()
    whole = write(tmp_path / f"new{suffix}", NAMES)
    for number, part in enumerate((slice(0, 60), slice(60, 100))):
        np.savez(folder / f"{number}.npz", logits=NEW[part], labels=TRUTH[part], inputs=NAMES[part])
    for source in (whole, folder):
        blocks.predict(CALIBRATION, source, 0.9, tmp_path / "sets.npz")
        found = read_sets(tmp_path / "sets.npz").ids
        assert found is not None
        assert found.tolist() == NAMES.tolist()
    np.savez(folder / "2.npz", logits=NEW + 1, labels=TRUTH)  # whose rows have no names
    blocks.predict(CALIBRATION, folder, 0.9, tmp_path / "sets.npz")
    assert read_sets(tmp_path / "sets.npz").ids is None


def test_numbers_stay_numbers(tmp_path: Path) -> None:
    for path in (write(tmp_path / "new.npz", np.arange(7, 107)), write(tmp_path / "other.npz", np.arange(100)[::-1])):
        blocks.predict(CALIBRATION, path, 0.9, tmp_path / "sets.npz")
        found = read_sets(tmp_path / "sets.npz").ids
        assert found is not None
        assert found.dtype == np.int64
        assert found[0] in (7, 99)


@pytest.mark.parametrize(
    "ids",
    [np.arange(100.0), np.arange(99), NEW, np.array([{}] * 100), np.array(7)],
    ids=["floats", "too few", "a matrix", "objects", "one"],
)
def test_what_only_has_the_name_of_ids_is_of_no_concern(ids: Any, tmp_path: Path) -> None:
    for suffix in (".npz", ".npy"):
        blocks.predict(CALIBRATION, write(tmp_path / f"new{suffix}", ids), 0.9, tmp_path / "sets.npz")
        assert read_sets(tmp_path / "sets.npz") == SETS
        assert read_sets(tmp_path / "sets.npz").ids is None


def test_ids_with_gaps_are_text(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        pa.table({"logits": NEW[:3].tolist(), "id": pa.array([7, None, 9])}), tmp_path / "new.parquet"
    )
    blocks.predict(CALIBRATION, tmp_path / "new.parquet", 0.9, tmp_path / "sets.parquet")
    found = read_sets(tmp_path / "sets.parquet").ids
    assert found is not None
    assert found.tolist() == ["7", "", "9"]


def test_text_formats_name_rows(tmp_path: Path) -> None:
    names = np.array(["=1+1", *NAMES[1:]])
    for suffix in (".jsonl", ".json", ".csv"):
        rows = write(tmp_path / "new.npz", names)
        blocks.predict(CALIBRATION, rows, 0.9, tmp_path / f"sets{suffix}", more=TEXT_SETS)
    lines = (tmp_path / "sets.csv").read_text().splitlines()
    assert lines[0] == "row,id,size,labels"
    assert [line.split(",")[1] for line in lines[1:3]] == ["'=1+1", NAMES[1]]
    assert json.loads((tmp_path / "sets.jsonl").read_text().splitlines()[1])["id"] == NAMES[1]
    assert [one["id"] for one in json.loads((tmp_path / "sets.json").read_text())["sets"]] == names.tolist()


def test_parts_of_sets_keep_their_names() -> None:
    named = replace(SETS, ids=NAMES)
    assert named == SETS  # what rows are called makes no other sets
    for index in (slice(3, 9), slice(None, None, 7), [5, 2], np.arange(100) % 2 == 1):
        part = named[index]
        assert part.ids is not None
        assert part.ids.tolist() == NAMES[index].tolist()
    assert join_sets([named[:30], named[30:]]).ids.tolist() == NAMES.tolist()  # type: ignore[union-attr]
    assert join_sets([named[:30], SETS[30:]]).ids is None
    assert pickle.loads(pickle.dumps(named)).ids.tolist() == NAMES.tolist()
    assert named.to_csv().splitlines()[1].startswith(f"0,{NAMES[0]},")
    assert NAMES[3] in named._repr_html_()
    with pytest.raises(InputError, match=r"ids must be one text or whole number per row, \(100,\); got"):
        replace(SETS, ids=NAMES[1:])
    with pytest.raises(ValueError, match="read-only"):
        named.ids[0] = "other"  # type: ignore[index]


def test_a_file_of_sets_has_ids_for_all_rows_or_for_none(tmp_path: Path) -> None:
    with open_sets(tmp_path / "sets.npz") as file:
        file.append(replace(SETS, ids=NAMES))
        with pytest.raises(InputError, match="must all have ids, or none"):
            file.append(SETS)


def test_ids_of_another_number_of_rows_are_not_read(tmp_path: Path) -> None:
    replace(SETS, ids=NAMES).save(tmp_path / "sets.npz")
    with np.load(tmp_path / "sets.npz") as file:
        content = {**file}
    for ids in (NAMES[:40], np.arange(100.0), np.zeros((100, 2), int)):
        np.savez(tmp_path / "spoilt.npz", **{**content, "ids": ids})
        with pytest.raises(FileError, match=r"cannot read .*spoilt.npz"):
            read_sets(tmp_path / "spoilt.npz")


def test_the_index_of_a_frame_names_its_rows() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(NEW, index=NAMES)
    for sets in (CALIBRATION.predict(frame), *CALIBRATION.predict(frame, [0.8, 0.9]), CALIBRATION.predict(frame[:1])):
        assert sets.ids is not None
        assert sets.ids.tolist() == NAMES[: len(sets)].tolist()
    assert CALIBRATION.predict(frame, allow_empty=False).ids is not None
    assert CALIBRATION.predict(frame, smoothed=True).ids is not None
    assert CALIBRATION.predict(frame).to_pandas().loc[NAMES[7], "size"] == SETS.sizes[7]
    assert CALIBRATION.predict(frame.reset_index(drop=True)).ids is None
    assert CALIBRATION.predict(frame.iloc[0]).ids is None  # one row: its index are the classes
    shuffled = pd.DataFrame(NEW).sample(frac=1, random_state=0)
    assert CALIBRATION.predict(shuffled).ids.tolist() == shuffled.index.tolist()  # type: ignore[union-attr]
    levels = pd.MultiIndex.from_arrays([np.arange(100) % 2, NAMES])
    assert CALIBRATION.predict(frame.set_index(levels)).ids[1] == f"1, {NAMES[1]}"  # type: ignore[index]


def test_the_classifier_names_rows_by_the_index_of_x() -> None:
    pd = pytest.importorskip("pandas")
    linear = pytest.importorskip("sklearn.linear_model")
    X = pd.DataFrame(LOGITS, index=[f"row {row}" for row in range(300)], columns=list("abcd"))
    model = evicp.sklearn.ConformalClassifier(linear.LogisticRegression()).fit(X[:200], LABELS[:200])
    assert model.predict_set(X[200:]).ids.tolist() == X.index[200:].tolist()
    assert model.predict_set(X[200:], [0.8, 0.9])[1].ids[0] == "row 200"


def test_sets_of_rows_in_another_order_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "new.npz", NAMES)
    blocks.predict(CALIBRATION, tmp_path / "new.npz", 0.9, tmp_path / "sets.npz")
    order = np.arange(100)[::-1]
    np.savez(tmp_path / "moved.npz", logits=NEW[order], labels=TRUTH[order], inputs=NAMES[order])
    with pytest.raises(LabelsError, match=rf"row 0 is '{NAMES[0]}' in the sets and '{NAMES[-1]}' in .*moved.npz"):
        blocks.evaluate(tmp_path / "sets.npz", tmp_path / "moved.npz")
    np.savez(tmp_path / "other.npz", logits=NEW, labels=TRUTH, inputs=np.arange(100))  # names of another kind
    assert blocks.evaluate(tmp_path / "sets.npz", tmp_path / "other.npz").n == 100


def test_commands_show_and_find_rows_by_their_names(tmp_path: Path) -> None:
    write(tmp_path / "new.npz", NAMES)
    CALIBRATION.save(tmp_path / "cal.safetensors")
    run = evicp_process(["predict", "cal.safetensors", "new.npz"], tmp_path)
    assert run.out.splitlines()[2].startswith(NAMES[1])
    by_name, by_number = (
        evicp_process(["explain", "cal.safetensors", "new.npz", "--row", row], tmp_path) for row in (NAMES[7], "7")
    )
    assert by_name.out == by_number.out
    assert by_name.out.startswith(f"row 7 ({NAMES[7]}), coverage 0.9\n")
    missing = evicp_process(["explain", "cal.safetensors", "new.npz", "--row", "no.jpg"], tmp_path)
    assert missing.code == 2
    assert "row no.jpg does not exist; new.npz has 100 rows" in missing.err
    run = evicp_process(["report", "new.npz", "--load", "cal.safetensors", "-o", "page.html"], tmp_path)
    data = json.loads((tmp_path / "page.html").read_text().split('id="data">')[1].split("</script>")[0])
    assert set(data["ids"]) <= set(NAMES.tolist())
    assert len(data["ids"]) == 100
