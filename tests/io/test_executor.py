"""Rows distributed in tasks of any size are the same rows, and give the same results."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import blocks
from evicp.errors import LogitsError
from evicp.io import files
from evicp.io.executor import Executor, Task, tasks, whole
from evicp.io.rows import Rows, hold
from evicp.sets import join_sets

N, K = 300, 5


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, K, N)
    return (rng.normal(size=(N, K)) + 2 * np.eye(K)[labels]).astype(np.float32), labels


def rows_in(folder: Path, kind: str, logits: np.ndarray, labels: np.ndarray, budget: int) -> Rows:
    """The rows in files of some kind, or in memory."""
    if kind == "memory":
        return hold(files.LogitsFile(logits, labels), "memory", budget)
    if kind == "npy":
        np.save(folder / "logits.npy", np.asfortranarray(logits))
        np.save(folder / "labels.npy", labels)
        return blocks.open_rows(folder / "logits.npy", memory=budget)
    if kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"logits": list(logits), "labels": labels}), folder / "rows.parquet", row_group_size=70)
        return blocks.open_rows(folder / "rows.parquet", memory=budget)
    for number, some in enumerate(np.array_split(np.arange(N), 3)):
        save = (np.savez, np.savez_compressed, np.savez)[number]
        save(folder / f"{number}.npz", logits=logits[some], labels=labels[some])
    np.save(folder.parent / "all.npy", labels)
    return blocks.open_rows(folder, folder.parent / "all.npy", memory=budget)


@pytest.mark.parametrize("kind", ["memory", "npy", "parquet", "folder"])
@pytest.mark.parametrize("size", [1, 64, 1000])
def test_tasks_tile_the_rows(
    kind: str, size: int, data: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    rows = rows_in(Path("rows"), kind, *data, budget=7 * 8 * 4 * K)
    calibration, weights = evicp.calibrate(*data), np.arange(N)
    shared = [pickle.loads(pickle.dumps(task)) for task in tasks(rows, {"smoothed": False, "weights": weights}, size)]
    monkeypatch.chdir(folder)  # workers have folders of their own
    assert [task.first for task in shared] == np.cumsum([0, *(len(task.rows) for task in shared[:-1])]).tolist()
    seen: list[tuple[np.ndarray, ...]] = []

    def see(block: blocks.Block, **own: Any) -> evicp.PredictionSets:
        assert len(block.logits) <= rows.step
        seen.append((block.logits.copy(), np.array(block.labels), own["weights"]))
        return calibration.predict(block.logits, 0.9, smoothed=own["smoothed"])

    sets = [made for task in shared for _, made in task.each(see)]
    for found, expected in zip(map(np.concatenate, zip(*seen, strict=True)), (*data, weights), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert join_sets(sets) == calibration.predict(data[0], 0.9)


def test_a_bad_row_is_counted_among_all_rows(data: tuple) -> None:
    logits = data[0].copy()
    logits[250, 1] = np.nan
    rows = hold(files.LogitsFile(logits, data[1]), "memory", 20 * 8 * 4 * K)
    for made in (whole(rows, {}), *list(tasks(rows, {}, 100))[2:]):
        with pytest.raises(LogitsError, match=r"in the rows of memory from 240 on: .*NaN at row 10, class 1"):
            list(made.calibrate(evicp.Calibrator()))


class Shared(Executor):
    """Tasks of 50 rows, one after the other."""

    def predict(self, rows: Rows, values: Any, predict: Any) -> Any:
        for task in tasks(rows, values, 50):
            assert isinstance(task, Task)
            yield join_sets([sets for _, sets in task.predict(predict)])


def test_another_executor_writes_the_same_sets(data: tuple, tmp_path: Path) -> None:
    rows = hold(files.LogitsFile(*data), "memory", 20 * 8 * 4 * K)
    calibration, groups = evicp.calibrate(*data, by=data[1] % 2), data[1] % 2
    for name, executor in (("here", Executor()), ("there", Shared())):
        blocks.predict(calibration, rows, 0.8, tmp_path / f"{name}.npz", groups=groups, executor=executor)
    assert (tmp_path / "here.npz").read_bytes() == (tmp_path / "there.npz").read_bytes()


def test_columns_of_a_parquet_file_may_come_in_different_pieces(data: tuple, tmp_path: Path) -> None:
    """What is coded is read by row groups."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = [f"class {k}" for k in range(K)]
    words = pa.array(np.array(names)[data[1]]).dictionary_encode()
    table = pa.table({"logits": list(data[0]), "labels": words})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=70)
    rows = blocks.open_rows(tmp_path / "rows.parquet")
    assert rows.step > N
    assert [len(block.logits) for block in rows] != [N]
    assert blocks.calibrate(rows, class_names=names) == evicp.calibrate(*data, class_names=names)
    np.testing.assert_array_equal(rows.labels, np.array(names)[data[1]])
