"""Rows on disk in blocks give what arrays in memory give, exactly; damaged files say so."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import blocks
from evicp.errors import EvicpError, FileError, InputError, InputTypeError, LabelsError, LogitsError
from evicp.evaluation.metrics import Evaluator, judged_by
from evicp.input import columns
from evicp.io import files
from evicp.io.arrays import companion
from evicp.io.rows import as_bytes
from evicp.io.stored import PackedArray, RawArray

N, K = 1100, 13
STEPS = (1, 7, 1024, N)
SMALL = 150  # rows, where blocks have one row each


def parquet_rows(path: Path, logits: np.ndarray, labels: np.ndarray, group: int = 400) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), logits.shape[1])
    pq.write_table(pa.table({"logits": lists, "labels": labels}), path, row_group_size=group)


def safetensors_rows(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    from safetensors.numpy import save_file

    save_file({"logits": np.ascontiguousarray(logits), "labels": labels}, path)


def folder_rows(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    """Twelve shards of three kinds; as text, 10 would come before 2."""
    path.mkdir()
    writers: list[Callable[..., Any]] = [
        lambda p, z, y: np.savez(p.with_suffix(".npz"), logits=z, labels=y),
        lambda p, z, y: safetensors_rows(p.with_suffix(".safetensors"), z, y),
        lambda p, z, y: parquet_rows(p.with_suffix(".parquet"), z, y),
    ]
    for number, rows in enumerate(np.array_split(np.arange(len(logits)), 12)):
        writers[number % 3](path / f"shard-{number}", logits[rows], labels[rows])


def npy_pair(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    np.save(path, logits)
    np.save(path.with_name(path.name.replace("logits", "labels")), labels)


WRITERS: dict[str, tuple[str, Callable[[Path, np.ndarray, np.ndarray], None]]] = {
    "npy": ("logits.npy", npy_pair),
    "npy by columns": ("logits.npy", lambda p, z, y: npy_pair(p, np.asfortranarray(z), y)),
    "npz": ("rows.npz", lambda p, z, y: np.savez(p, logits=z, labels=y)),
    "npz packed": ("rows.npz", lambda p, z, y: np.savez_compressed(p, logits=z, labels=y)),
    "safetensors": ("rows.safetensors", safetensors_rows),
    "parquet": ("rows.parquet", parquet_rows),
    "folder": ("shards", folder_rows),
}


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, K, N)
    logits = (rng.normal(size=(N, K)) + 2.5 * np.eye(K)[labels]).astype(np.float32)
    masked = rng.random((N, K)) < 0.05
    masked[np.arange(N), labels] = masked[3] = False  # true labels are possible, in rows that are copied, too
    logits[masked] = -np.inf
    logits[:, 0] = 0.25  # ties
    logits[rng.integers(0, N, 40)] = logits[3]  # equal rows share their randomisation wherever they lie
    return logits, labels


@pytest.fixture(scope="module")
def stored(data: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    result = {}
    for kind, (name, write) in WRITERS.items():
        path = tmp_path_factory.mktemp("rows") / name
        write(path, *data)
        result[kind] = path
    return result


def rows_of(path: Path, step: int) -> blocks.Rows:
    """Rows whose blocks have exactly `step` rows."""
    rows = blocks.open_rows(path, memory=step * 8 * 4 * K)
    assert rows.step == step
    return rows


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("step", STEPS)
def test_blocks_tile_the_rows_in_order(stored: dict, data: tuple, kind: str, step: int) -> None:
    rows = rows_of(stored[kind], step)
    seen = [(b.start, b.logits.copy(), b.labels.copy()) for b in rows]  # type: ignore[union-attr]
    starts = [start for start, _, _ in seen]
    assert starts == np.cumsum([0] + [len(z) for _, z, _ in seen[:-1]]).tolist()
    assert max(len(z) for _, z, _ in seen) <= step
    np.testing.assert_array_equal(np.concatenate([z for _, z, _ in seen]), data[0])
    np.testing.assert_array_equal(np.concatenate([y for _, _, y in seen]), data[1])
    np.testing.assert_array_equal(rows.logits, data[0])
    np.testing.assert_array_equal(rows.labels, data[1])


@pytest.mark.parametrize(
    ("score", "step"),
    [
        *((score, step) for step in STEPS for score in ("ecp", evicp.APS(seed=3))),
        *((score, 1024) for score in ("lac", evicp.RAPS(randomize_penalty=True), "saps")),
    ],
)
def test_results_are_those_in_memory_to_the_bit(
    cpu_backend: str, stored: dict, data: tuple, score: Any, step: int, tmp_path: Path
) -> None:
    n = SMALL if step == 1 else N
    logits, labels = (values[:n] for values in data)
    npy_pair(tmp_path / "logits.npy", logits, labels)
    expected = evicp.calibrate(logits, labels, score)
    sets = expected.predict(logits, 0.9)
    few = ("npy",) if step < 100 else ("npz", "parquet")
    for kind in WRITERS if step == 1024 and cpu_backend == "native" else few:
        rows = rows_of(tmp_path / "logits.npy" if kind == "npy" else stored[kind], step)
        calibration = blocks.calibrate(rows, score)
        assert calibration == expected
        summary = blocks.predict(calibration, rows, 0.9, tmp_path / "sets.npz")
        assert files.read_sets(tmp_path / "sets.npz") == sets
        assert f"PredictionSets({summary})" == repr(sets)
        blocks.predict(calibration, rows, 0.9, tmp_path / "smoothed.npz", smoothed=True)
        assert files.read_sets(tmp_path / "smoothed.npz") == expected.predict(logits, 0.9, smoothed=True)
        evaluation = blocks.evaluate(tmp_path / "sets.npz", rows)
        assert evaluation.to_dict() == evicp.evaluate(sets, labels, logits).to_dict()
        assert blocks.evaluate(calibration, rows, 0.9).to_dict() == evaluation.to_dict()
        on_the_way = Evaluator()
        blocks.predict(calibration, rows, 0.9, tmp_path / "sets.npz", evaluator=on_the_way)
        assert on_the_way.finish().to_dict() == evaluation.to_dict()


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".jsonl"])
def test_sets_written_in_blocks_read_as_if_written_at_once(
    stored: dict, data: tuple, tmp_path: Path, suffix: str
) -> None:
    names = [f"<{number}>" for number in range(K)]
    calibration = evicp.calibrate(*data, class_names=names)
    sets = calibration.predict(data[0], 0.8, allow_empty=False)
    parts, once = tmp_path / f"parts{suffix}", tmp_path / f"once{suffix}"
    blocks.predict(calibration, rows_of(stored["npz"], 7), 0.8, parts, allow_empty=False)
    files.write_sets(sets, once)
    if suffix == ".jsonl":
        assert parts.read_text() == once.read_text()
        assert json.loads(parts.read_text().splitlines()[-1])["row"] == N - 1
        return
    assert files.read_sets(parts) == files.read_sets(once) == sets
    for step in (1, 100, 10 * N):
        pieces = list(files.scan_sets(parts, step))
        assert evicp.sets.join_sets(pieces) == sets
        assert suffix == ".parquet" or len(pieces) == -(-N // step)
    if suffix == ".parquet":
        pq = pytest.importorskip("pyarrow.parquet")
        assert pq.read_table(parts).to_pylist() == pq.read_table(once).to_pylist()


@pytest.mark.parametrize("by", ["class", "uncertainty", "group"])
def test_groups_are_cut_with_their_rows(stored: dict, data: tuple, by: str, tmp_path: Path) -> None:
    logits, labels = data
    groups = np.arange(N) % 3 if by == "group" else None
    expected = evicp.calibrate(logits, labels, by=by if groups is None else groups)
    rows = rows_of(stored["safetensors"], 64)
    calibration = blocks.calibrate(rows, by=by, groups=groups)
    assert calibration == expected
    sets = expected.predict(logits, 0.8, groups=groups)
    blocks.predict(calibration, rows, 0.8, tmp_path / "sets.parquet", groups=groups)
    assert files.read_sets(tmp_path / "sets.parquet") == sets
    whole = expected.evaluate(logits, labels, 0.8, groups=groups)
    assert blocks.evaluate(calibration, rows, 0.8, groups=groups).to_dict() == whole.to_dict()
    if groups is not None:
        with pytest.raises(InputError, match="one entry per row"):
            blocks.calibrate(rows, by=by, groups=groups[:-1])


@pytest.mark.parametrize("by", [None, "class", "group"])
def test_a_calibrator_keeps_nothing_of_arrays_that_are_filled_again(data: tuple, by: str | None) -> None:
    logits, labels = data
    groups = labels % 3
    expected = evicp.Calibrator("lac", by=by)
    reused = evicp.Calibrator("lac", by=by)
    z, y, g, w = np.empty((100, K), np.float32), np.empty(100, np.int64), np.empty(100, np.int64), np.empty(100)
    for start in range(0, N, 100):
        rows = slice(start, start + 100)
        z[:], y[:], g[:], w[:] = logits[rows], labels[rows], groups[rows], 1 + groups[rows]
        given = {"groups": g} if by == "group" else {"weights": w} if by is None else {}
        reused.update(z, y, **given)
        expected.update(z.copy(), y.copy(), **{name: value.copy() for name, value in given.items()})
    assert reused.finish() == expected.finish()


def test_weights_are_cut_with_their_rows(stored: dict, data: tuple, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).uniform(0.5, 2, N)
    expected = evicp.calibrate(*data, "lac", weights=weights)
    rows = rows_of(stored["npy"], 100)
    assert blocks.calibrate(rows, "lac", weights=weights) == expected
    blocks.predict(expected, rows, 0.9, tmp_path / "sets.npz", weights=weights)
    assert files.read_sets(tmp_path / "sets.npz") == expected.predict(data[0], 0.9, weights=weights)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int16, ">f4"])
def test_every_type_reads_as_itself(tmp_path: Path, dtype: Any) -> None:
    logits = (np.random.default_rng(1).normal(size=(50, 4)) * 8).astype(dtype)
    np.savez(tmp_path / "rows.npz", logits=logits, labels=np.zeros(50, np.int8))
    rows = blocks.open_rows(tmp_path / "rows.npz", memory=1024)
    np.testing.assert_array_equal(np.concatenate([b.logits.copy() for b in rows]), logits)
    assert blocks.calibrate(rows, "lac") == evicp.calibrate(logits, np.zeros(50, int), "lac")


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wide = np.random.default_rng(1).normal(size=(50, 4)).astype(ml_dtypes.bfloat16)
    header = json.dumps({"logits": {"dtype": "BF16", "shape": [50, 4], "data_offsets": [0, 400]}}).encode()
    (tmp_path / "rows.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + wide.tobytes())
    rows = blocks.open_rows(tmp_path / "rows.safetensors", memory=1024)
    assert rows.files[0].dtype == np.float32
    np.testing.assert_array_equal(np.concatenate([b.logits.copy() for b in rows]), wide.astype(np.float32))


def test_plain_members_are_read_where_they_lie_and_packed_ones_unpacked(stored: dict) -> None:
    assert isinstance(blocks.open_rows(stored["npz"]).files[0].logits, RawArray)  # type: ignore[attr-defined]
    assert isinstance(blocks.open_rows(stored["npz packed"]).files[0].logits, PackedArray)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["npy", "npz", "npz packed", "safetensors", "parquet"])
@pytest.mark.parametrize("span", [(0, 5), (3, 700), (1099, 1100), (700, 700)])
def test_a_span_of_rows_is_that_span(stored: dict, data: tuple, kind: str, span: tuple[int, int]) -> None:
    part = blocks.open_rows(stored[kind]).files[0]
    found = [(z.copy(), y.copy()) for z, y in part.pieces(64, *span)]
    assert sum(len(z) for z, _ in found) == span[1] - span[0]
    np.testing.assert_array_equal(np.concatenate([z for z, _ in found] or [data[0][:0]]), data[0][slice(*span)])
    np.testing.assert_array_equal(np.concatenate([y for _, y in found] or [data[1][:0]]), data[1][slice(*span)])


def test_labels_from_a_file_of_their_own_are_cut_as_the_shards_are(stored: dict, data: tuple, tmp_path: Path) -> None:
    np.save(tmp_path / "truth.npy", data[1][::-1])
    for kind in ("folder", "parquet", "safetensors"):
        rows = blocks.open_rows(stored[kind], tmp_path / "truth.npy", memory=4096)
        np.testing.assert_array_equal(np.concatenate([b.labels.copy() for b in rows]), data[1][::-1])  # type: ignore[union-attr]
    np.save(tmp_path / "short.npy", data[1][1:])
    for kind in ("folder", "parquet", "safetensors"):
        with pytest.raises(InputError, match=r"1,?099 labels"):
            list(blocks.open_rows(stored[kind], tmp_path / "short.npy"))


@pytest.mark.parametrize("name", ["val-{}.npy", "logits-{}.npy"])
def test_npy_files_find_what_lies_beside_them(data: tuple, tmp_path: Path, name: str) -> None:
    names = np.array([f"class {k}" for k in range(K)])
    for number, rows in enumerate(np.array_split(np.arange(N), 3)):
        beside = {"labels": data[1][rows], "inputs": rows.astype(str), "class_names": names}
        path = tmp_path / name.format(number)
        np.save(path, data[0][rows])
        for what, array in beside.items():
            np.save(companion(path, what), array)
        one = blocks.open_rows(path)
        np.testing.assert_array_equal(one.labels, data[1][rows])
        assert one.class_names == tuple(names)
    whole = blocks.open_rows(tmp_path)
    np.testing.assert_array_equal(whole.logits, data[0])
    np.testing.assert_array_equal(whole.labels, data[1])
    assert whole.class_names == tuple(names)


def test_a_shard_in_capitals_is_not_left_out(data: tuple, tmp_path: Path) -> None:
    names = [f"class {k}" for k in range(K)]
    np.savez(tmp_path / "0.npz", logits=data[0][:7], labels=data[1][:7], class_names=names)
    np.savez(tmp_path / "1.npz", logits=data[0][7:], labels=data[1][7:], class_names=names[::-1])
    (tmp_path / "1.npz").rename(tmp_path / "1.NPZ")
    with pytest.raises(FileError, match=r"same class names; 0\.npz and 1\.NPZ differ"):
        blocks.open_rows(tmp_path)
    (tmp_path / "1.NPZ").unlink()
    np.save(tmp_path / "1.npy", data[0][7:])
    (tmp_path / "1.npy").rename(tmp_path / "1.NPY")
    np.save(tmp_path / "1.labels.npy", data[1][7:])
    np.testing.assert_array_equal(blocks.open_rows(tmp_path).logits, data[0])
    np.testing.assert_array_equal(blocks.open_rows(tmp_path).labels, data[1])


def test_a_shard_of_logits_may_speak_of_labels(data: tuple, tmp_path: Path) -> None:
    for name in ("clean", "noisy-labels"):
        np.save(tmp_path / f"logits-{name}.npy", data[0])
        np.save(tmp_path / f"labels-{name}.npy", data[1] if name == "clean" else data[1][::-1])
    np.save(tmp_path / "labels-of-others.npy", data[1])
    rows = blocks.open_rows(tmp_path)
    assert len(rows) == len(rows.labels) == 2 * len(data[0])


def test_the_class_names_of_shards_must_agree(data: tuple, tmp_path: Path) -> None:
    names = [f"class {k}" for k in range(K)]
    given = {0: {"class_names": names}, 1: {"class_names": names}, 2: {}, 3: {"class_names": names[::-1]}}
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", logits=data[0] + number, labels=data[1], **given[number])
    assert blocks.open_rows(tmp_path).class_names == tuple(names)
    np.savez(tmp_path / "3.npz", logits=data[0] + 3, labels=data[1], **given[3])
    with pytest.raises(FileError, match=r"same class names; 0\.npz and 3\.npz differ"):
        blocks.open_rows(tmp_path)


def test_class_names_that_are_objects_are_one_typed_error(data: tuple, tmp_path: Path) -> None:
    names = np.array([f"class {k}" for k in range(K)], object)
    np.savez(tmp_path / "rows.npz", logits=data[0], class_names=names)
    with pytest.raises(FileError, match="must be an array of strings; it cannot be read"):
        blocks.open_rows(tmp_path / "rows.npz")


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "folder"])
def test_rows_without_labels_have_none(stored: dict, kind: str) -> None:
    rows = blocks.open_rows(stored[kind]).with_labels(None)
    assert not rows.has_labels
    assert all(part.whole().labels is None for part in rows.files)
    assert all(block.labels is None for block in rows)
    with pytest.raises(FileError, match="has no labels"):
        _ = rows.labels


def test_a_span_of_a_parquet_file_is_not_read_past_its_end(stored: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    decode = columns.matrix
    monkeypatch.setattr(columns, "matrix", lambda column, *rest: decoded.append(len(column)) or decode(column, *rest))
    (part,) = blocks.open_rows(stored["parquet"]).files
    decoded.clear()
    assert sum(len(logits) for logits, _ in part.pieces(100, 50, 200)) == 150
    assert sum(decoded) == 200


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_is_one_typed_error_that_names_its_file(data: tuple, tmp_path: Path, save: Callable[..., None]) -> None:
    for number in range(2):
        save(tmp_path / f"{number}.npz", logits=data[0], labels=data[1])
    path = tmp_path / "1.npz"
    content = bytearray(path.read_bytes())
    content[content.index(data[0][500].tobytes()) if save is np.savez else len(content) // 2] ^= 1
    path.write_bytes(content)
    rows = blocks.open_rows(tmp_path)
    for read in (lambda: list(rows), lambda: rows.logits, lambda: files.read_logits(path)):
        with pytest.raises(FileError) as caught:
            read()
        assert str(caught.value).startswith(f"cannot read {path}: it is ")
        assert str(caught.value).count("cannot read") == 1


def test_a_calibration_is_evaluated_as_it_predicts(stored: dict, data: tuple) -> None:
    calibration, rows = evicp.calibrate(*data), blocks.open_rows(stored["npz"], memory=1 << 16)
    for how, sets in (
        ({"target_confidence": 0.9}, calibration.predict(data[0], 0.8, confidence=0.9)),
        ({"allow_empty": False}, calibration.predict(data[0], 0.8, allow_empty=False)),
    ):
        expected = evicp.evaluate(sets, data[1], data[0]).to_dict()
        assert blocks.evaluate(calibration, rows, 0.8, **how).to_dict() == expected
        with pytest.raises(InputError, match="are for a calibration"):
            blocks.evaluate(sets, rows, **how)


def test_a_block_cannot_be_written_to(stored: dict) -> None:
    block = next(iter(blocks.open_rows(stored["npy"])))
    with pytest.raises(ValueError, match="read-only"):
        block.logits[0, 0] = 1


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_in_an_archive_is_noticed_and_no_sets_are_left(
    data: tuple, tmp_path: Path, save: Callable[..., None]
) -> None:
    path = tmp_path / "rows.npz"
    save(path, logits=data[0], labels=data[1])
    content = bytearray(path.read_bytes())
    content[content.index(data[0][500].tobytes()) if save is np.savez else len(content) // 2] ^= 1  # the last bit
    path.write_bytes(content)
    with pytest.raises(EvicpError, match="damaged" if save is np.savez else None):
        blocks.predict(evicp.calibrate(*data), blocks.open_rows(path, memory=4096), 0.9, tmp_path / "sets.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["rows.npz"]


@pytest.mark.parametrize("kind", ["npy", "npz", "npz packed", "safetensors", "parquet"])
def test_a_file_cut_short_is_one_typed_error(stored: dict, tmp_path: Path, kind: str) -> None:
    content = stored[kind].read_bytes()
    path = tmp_path / stored[kind].name
    for keep in (0, 5, 100, 1000, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:keep])
        with pytest.raises(FileError, match="cannot read"):
            list(blocks.open_rows(path))


def test_a_header_that_promises_too_much_takes_no_memory(tmp_path: Path) -> None:
    with (tmp_path / "rows.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**20)})
    with pytest.raises(FileError, match="shorter than its header states"):
        blocks.open_rows(tmp_path / "rows.npy")


def test_a_bad_row_is_named_with_its_block(data: tuple, tmp_path: Path) -> None:
    logits = data[0].copy()
    logits[1000, 2] = np.nan
    np.savez(tmp_path / "rows.npz", logits=logits, labels=data[1])
    with pytest.raises(LogitsError, match=r"from 990 on: .*NaN at row 10, class 2"):
        blocks.calibrate(blocks.open_rows(tmp_path / "rows.npz", memory=99 * 8 * 4 * K))


def test_a_row_without_a_label_or_weight_is_named_with_its_block(data: tuple, tmp_path: Path) -> None:
    logits, labels = data
    given = {"memory": 99 * 8 * 4 * K}
    np.savez(tmp_path / "rows.npz", logits=logits, labels=labels)
    weights, missing = np.ones(len(logits)), labels.astype(float)
    weights[1000] = missing[1000] = np.nan
    with pytest.raises(InputError, match=r"from 990 on: weights must be finite and >= 0; got nan at position 10"):
        blocks.calibrate(blocks.open_rows(tmp_path / "rows.npz", **given), weights=weights)
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    table = pa.table({"logits": list(logits), "labels": pa.array(missing, pa.int64(), from_pandas=True)})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(FileError, match=r"rows\.parquet: labels must not be null; got null at row 1,000\."):
        blocks.calibrate(blocks.open_rows(tmp_path / "rows.parquet", **given))


@pytest.mark.parametrize("bad", ["", "a lot", "-1GB", "0", True, "1TB"])
def test_a_memory_budget_is_a_size(bad: Any) -> None:
    with pytest.raises(InputError, match="memory must be"):
        as_bytes(bad)


def test_sets_are_not_written_over_their_rows(data: tuple, tmp_path: Path) -> None:
    calibration = evicp.calibrate(*data)
    np.savez(tmp_path / "rows.npz", logits=data[0], labels=data[1])
    for rows in (tmp_path / "rows.npz", tmp_path):
        with pytest.raises(FileError, match=r"cannot write .*rows\.npz: it is an input, or part of one"):
            blocks.predict(calibration, rows, 0.9, tmp_path / "rows.npz")
    assert np.load(tmp_path / "rows.npz").files == ["logits", "labels"]


def test_no_rows_give_no_sets_and_no_calibration(tmp_path: Path, data: tuple) -> None:
    for kind in ("npy", "npz", "safetensors", "parquet"):
        name, write = WRITERS[kind]
        write(tmp_path / name, data[0][:0], data[1][:0])
        rows = blocks.open_rows(tmp_path / name)
        assert blocks.predict(evicp.calibrate(*data), rows, 0.9, tmp_path / "sets.npz").rows == 0
        assert len(files.read_sets(tmp_path / "sets.npz")) == 0
        with pytest.raises(LogitsError, match="at least one row"):
            blocks.calibrate(rows)


def test_one_number_is_not_one_for_each_row(data: tuple, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", logits=data[0], labels=data[1])
    for one in (0.5, np.array(0.5), iter([0.5])):
        with pytest.raises(InputTypeError, match="weights must be an array with one entry per row; got"):
            blocks.calibrate(tmp_path / "rows.npz", weights=one)
        with pytest.raises(InputTypeError, match="smoothed must be an array with one entry per row; got"):
            blocks.predict(evicp.calibrate(*data), tmp_path / "rows.npz", 0.9, tmp_path / "sets.npz", smoothed=one)


def test_nothing_is_written_where_there_are_no_labels_to_evaluate_with(data: tuple, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", logits=data[0])
    with pytest.raises(FileError, match="no labels"):
        blocks.predict(evicp.calibrate(*data), tmp_path / "rows.npz", 0.9, tmp_path / "sets.npz", evaluator=Evaluator())
    assert not (tmp_path / "sets.npz").exists()


def test_sets_and_rows_must_be_as_many(stored: dict, data: tuple, tmp_path: Path) -> None:
    sets = evicp.calibrate(*data).predict(data[0], 0.9)
    rows = rows_of(stored["npy"], 100)
    for wrong in (sets[:-1], evicp.sets.join_sets([sets, sets[:1]])):
        files.write_sets(wrong, tmp_path / "sets.npz")
        with pytest.raises(LabelsError, match="one set per row"):
            blocks.evaluate(tmp_path / "sets.npz", rows)
    np.save(tmp_path / "truth.npy", data[1])
    assert blocks.evaluate(sets, tmp_path / "truth.npy").to_dict() == evicp.evaluate(sets, data[1]).to_dict()


@pytest.mark.parametrize("change", ["offsets", "labels", "cut"])
def test_sets_that_do_not_fit_together_are_refused(data: tuple, tmp_path: Path, change: str) -> None:
    sets = evicp.calibrate(*data).predict(data[0], 0.9)
    files.write_sets(sets, tmp_path / "sets.npz")
    with np.load(tmp_path / "sets.npz") as arrays:
        content = {name: arrays[name].copy() for name in arrays.files}
    if change == "offsets":
        content["offsets"][700] = 2**40
    elif change == "labels":
        content["labels"][700] = K
    else:
        content["labels"] = content["labels"][:-1]
    np.savez(tmp_path / "sets.npz", **content)
    with pytest.raises(EvicpError, match="cannot read"):
        list(files.scan_sets(tmp_path / "sets.npz", 100))


def test_an_evaluation_in_batches_is_the_evaluation(data: tuple) -> None:
    logits, labels = data
    sets, groups = evicp.calibrate(*data).predict(logits, 0.8), np.arange(N) % 7 // 2
    evaluators = [Evaluator(min_count=3) for _ in range(2)]
    for start in range(0, N, 111):
        rows = slice(start, start + 111)
        evaluators[start % 2].update(sets[rows], labels[rows], logits[rows], groups=groups[rows])
    found = Evaluator(min_count=3).merge(evaluators[0]).merge(evaluators[1]).merge(Evaluator()).finish()
    assert found.to_dict() == evicp.evaluate(sets, labels, logits, groups=groups, min_count=3).to_dict()
    with pytest.raises(InputError, match="every batch or with none"):
        evaluators[0].update(sets, labels)
    with pytest.raises(InputError, match="one calibration and one coverage"):
        evaluators[0].update(evicp.calibrate(*data).predict(logits, 0.7), labels, logits, groups=groups)
    with pytest.raises(InputError, match="at least one row"):
        Evaluator().finish()


def test_the_zip_local_header_is_believed_over_the_central_one(data: tuple, tmp_path: Path) -> None:
    """Extra fields differ between the two: data start where the local header ends."""
    np.save(tmp_path / "logits.npy", data[0])
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.write(tmp_path / "logits.npy", "logits.npy")
        with archive.open("labels.npy", "w", force_zip64=True) as entry:
            np.lib.format.write_array(entry, data[1])
    rows = blocks.open_rows(tmp_path / "rows.npz", memory=4096)
    np.testing.assert_array_equal(np.concatenate([b.labels.copy() for b in rows]), data[1])  # type: ignore[union-attr]


def test_class_names_travel_in_safetensors(data: tuple, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    names = [f"class {k}" for k in range(K)]
    save_file({"logits": data[0], "labels": data[1]}, tmp_path / "rows.safetensors", {"class_names": json.dumps(names)})
    assert blocks.open_rows(tmp_path / "rows.safetensors").class_names == tuple(names)
    save_file({"logits": data[0]}, tmp_path / "bad.safetensors", {"class_names": "[1, "})
    with pytest.raises(FileError, match="must be a JSON list of strings"):
        blocks.open_rows(tmp_path / "bad.safetensors")


# ---------------------------------------------------------------------------------------------------------------
# What must not depend on where the rows lie


def labelled(path: Path, data: tuple, names: list[str] | None = None) -> Path:
    np.savez(path, logits=data[0], labels=data[1], **({} if names is None else {"class_names": np.array(names)}))
    return path


def test_classes_in_another_order_are_refused(data: tuple, tmp_path: Path) -> None:
    names = [f"class {k}" for k in range(K)]
    calibration = evicp.calibrate(*data, "lac", class_names=names)
    same = labelled(tmp_path / "same.npz", data, names)
    other = labelled(tmp_path / "other.npz", (data[0][:, ::-1], K - 1 - data[1]), names[::-1])
    blocks.predict(calibration, same, 0.9, tmp_path / "sets.npz")
    for path, fits in ((same, True), (labelled(tmp_path / "nameless.npz", data), True), (other, False)):
        for call in (
            lambda rows: blocks.predict(calibration, rows, 0.9, tmp_path / "again.npz"),
            lambda rows: blocks.evaluate(calibration, rows, 0.9),
            lambda rows: blocks.evaluate(tmp_path / "sets.npz", rows),
        ):
            if fits:
                call(path)
                continue
            with pytest.raises(InputError, match="must have the same class names; class 0 is 'class 0' and 'class 12'"):
                call(path)


def test_random_numbers_of_rows_are_shared_out_with_them(data: tuple, tmp_path: Path) -> None:
    calibration = evicp.calibrate(*data, "topk")
    u = np.random.default_rng(0).random(N)
    rows = blocks.open_rows(labelled(tmp_path / "rows.npz", data), memory=100 * 8 * 4 * K)
    assert rows.step == 100
    blocks.predict(calibration, rows, 0.9, tmp_path / "sets.npz", smoothed=u)
    assert files.read_sets(tmp_path / "sets.npz") == calibration.predict(data[0], 0.9, smoothed=u)
    with pytest.raises(InputError, match=r"smoothed must have one entry per row; got 100 for 1,100 rows"):
        blocks.predict(calibration, rows, 0.9, tmp_path / "sets.npz", smoothed=u[:100])


@pytest.mark.parametrize("first", [np.float32, np.float64])
@pytest.mark.parametrize("empty", [None, np.float64])
def test_shards_of_two_precisions_are_one_array(data: tuple, tmp_path: Path, first: Any, empty: Any) -> None:
    other = np.float64 if first == np.float32 else np.float32
    parts = [(data[0][:400].astype(first), data[1][:400]), (data[0][400:].astype(other), data[1][400:])]
    if empty is not None:  # files without rows have no say
        parts = [(data[0][:0].astype(empty), data[1][:0])] + [(z.astype(np.float32), y) for z, y in parts]
    for number, (z, y) in enumerate(parts):
        np.savez(tmp_path / f"{number}.npz", logits=z, labels=y)
    rows = blocks.open_rows(tmp_path)
    expected = evicp.calibrate(rows.logits, data[1], "lac")
    assert rows.logits.dtype == (np.float64 if empty is None else np.float32)
    assert blocks.calibrate(rows, "lac") == expected
    blocks.predict(expected, rows, 0.9, tmp_path / "sets.parquet")
    assert files.read_sets(tmp_path / "sets.parquet") == expected.predict(rows.logits, 0.9)


def test_an_evaluator_on_the_way_sees_the_groups(data: tuple, tmp_path: Path) -> None:
    rows = labelled(tmp_path / "rows.npz", data)
    for by, given in ((evicp.ByUncertainty(bands=2), None), (np.arange(N) % 3, np.arange(N) % 3)):
        calibration, evaluator = evicp.calibrate(*data, "lac", by=by), Evaluator()
        blocks.predict(calibration, rows, 0.9, tmp_path / "sets.npz", groups=given, evaluator=evaluator)
        evaluation = evaluator.finish()
        judged = judged_by(calibration, evaluation)
        assert judged.to_dict() == blocks.evaluate(calibration, rows, 0.9, groups=given).to_dict()
        assert evaluation.group_coverage is not None
        calibration.certificate(0.9, evaluation)


def test_weighted_calibrations_are_evaluated_too(data: tuple, tmp_path: Path) -> None:
    weights = 1.0 + np.arange(N) % 4
    calibration = evicp.calibrate(*data, "lac", weights=weights)
    rows = blocks.open_rows(labelled(tmp_path / "rows.npz", data), memory=100 * 8 * 4 * K)
    expected = calibration.evaluate(*data, weights=weights)
    assert blocks.evaluate(calibration, rows, 0.9, weights=weights).to_dict() == expected.to_dict()


def test_labels_alone_may_be_names(data: tuple, tmp_path: Path) -> None:
    names = np.array([f"class {k}" for k in range(K)])
    sets = evicp.calibrate(*data, "lac", class_names=names).predict(data[0], 0.9)
    np.save(tmp_path / "truth.npy", names[data[1]])
    assert blocks.evaluate(sets, tmp_path / "truth.npy").to_dict() == evicp.evaluate(sets, data[1]).to_dict()


def test_what_belongs_to_a_calibration_is_refused_for_sets(data: tuple, tmp_path: Path) -> None:
    rows = labelled(tmp_path / "rows.npz", data)
    calibration = evicp.calibrate(*data, "lac")
    sets = calibration.predict(data[0], 0.9)
    for option in ({"coverage": 0.5}, {"weights": np.ones(N)}, {"target_confidence": 0.9}, {"allow_empty": False}):
        with pytest.raises(InputError, match="are for a calibration; sets were predicted with their own"):
            blocks.evaluate(sets, rows, **option)
    with pytest.raises(EvicpError, match="coverage must be a number between 0 and 1"):
        blocks.predict(calibration, rows, [0.8, 0.9], tmp_path / "sets.npz")  # type: ignore[arg-type]
