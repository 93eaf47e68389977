"""A real Ray of two workers gives what one machine gives, exactly; a worker that is killed changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from commands import evicp_process
from evicp import blocks
from evicp.cli import app
from evicp.errors import (
    EvicpError,
    EvicpWarning,
    InputError,
    InputTypeError,
    LabelsError,
    LogitsError,
    SmallCalibrationWarning,
)
from evicp.io import files
from evicp.io.rows import hold
from evicp.io.workers import in_batch
from pages import runs_and_prints_what_it_says
from places import DOCS

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [
    pytest.mark.reliability,
    # Ray's own: deprecations it sets off itself, and sockets it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

N, K = 3000, 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers on this machine."""
    os.environ["RAY_DEDUP_LOGS"] = "0"
    import ray

    from evicp import ray as adapter

    with adapter.connected(workers=2):
        assert ray.cluster_resources()["CPU"] == 2
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield adapter


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    labels = rng.integers(0, K, N)
    logits = (rng.normal(size=(N, K)) + 2 * np.eye(K)[labels]).astype(np.float32)
    masked = rng.random((N, K)) < 0.03
    masked[np.arange(N), labels] = masked[3] = False  # true labels are possible, in rows that are copied, too
    logits[masked] = -np.inf
    logits[rng.integers(0, N, 50)] = logits[3]
    return logits, labels


@pytest.fixture(scope="module")
def dataset(cluster: Any, data: tuple) -> Any:
    """Eight blocks of rows with numbers, the logits in lists as parquet files have them."""
    import pyarrow as pa
    import ray

    tables = []
    for rows in np.array_split(np.arange(N), 8):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(data[0][rows].ravel()), K)
        tables.append(pa.table({"logits": lists, "labels": data[1][rows], "group": data[1][rows] % 3, "id": rows}))
    return ray.data.from_arrow(tables)


def digest(calibration: evicp.Calibration, sets: list[list[int]]) -> str:
    """One number for thresholds and sets."""
    return hashlib.sha256(calibration.scores.tobytes() + json.dumps(sets).encode()).hexdigest()


def collected(predicted: Any) -> tuple[list[int], list[list[int]]]:
    """Row numbers and sets of a predicted dataset, in its order."""
    rows = [row for table in predicted.iter_batches(batch_format="pyarrow") for row in table.to_pylist()]
    assert all(row["size"] == len(row["set"]) for row in rows)
    return [row["id"] for row in rows], [row["set"] for row in rows]


@pytest.mark.parametrize("score", ["ecp", evicp.APS(seed=5)])
def test_a_dataset_gives_what_one_machine_gives(cluster: Any, dataset: Any, data: tuple, score: Any) -> None:
    expected = evicp.calibrate(*data, score)
    calibration = cluster.calibrate(dataset, score, batch_rows=100)
    assert calibration == expected
    numbers, sets = collected(cluster.predict(dataset, calibration, 0.9, batch_rows=77))
    assert numbers == list(range(N))
    assert sets == expected.predict(data[0], 0.9).to_lists()


def test_thresholds_of_groups_and_names_travel_too(cluster: Any, dataset: Any, data: tuple) -> None:
    names = [f"class {number}" for number in range(K)]
    expected = evicp.calibrate(*data, "lac", by=data[1] % 3, class_names=names)
    calibration = cluster.calibrate(dataset, "lac", by="group", groups="group", class_names=names)
    assert calibration == expected
    table = cluster.predict(dataset, calibration, 0.8, groups="group", allow_empty=False).take(50)
    sets = expected.predict(data[0][:50], 0.8, groups=data[1][:50] % 3, allow_empty=False)
    assert [row["names"] for row in table] == sets.to_lists(names=True)
    by_class = evicp.ByClass(rare="cluster", rare_below=300)  # sets rows aside by their position
    assert cluster.calibrate(dataset, "lac", by=by_class) == evicp.calibrate(*data, "lac", by=by_class)


def test_labels_may_be_names(cluster: Any, data: tuple, tmp_path: Path) -> None:
    import pyarrow as pa
    import ray

    names = [f"class {number}" for number in range(K)]
    expected = evicp.calibrate(*data, class_names=names)
    words = np.array(names)[data[1]]
    rows = ray.data.from_arrow(pa.table({"logits": list(data[0]), "labels": words}))
    assert cluster.calibrate(rows, class_names=names) == expected
    assert cluster.calibrate(rows, class_names=iter(names)) == expected
    np.savez(tmp_path / "rows.npz", logits=data[0], labels=words)
    assert cluster.calibrate_files(tmp_path / "rows.npz", class_names=names) == expected
    assert cluster.calibrate_files(tmp_path / "rows.npz", class_names=iter(names)) == expected
    np.savez(tmp_path / "named.npz", logits=data[0], labels=words, class_names=names)
    assert cluster.calibrate_files(tmp_path / "named.npz") == expected


@pytest.mark.parametrize("model", [None, lambda: lambda x: x])
def test_the_columns_of_the_dataset_stay_as_they_are(cluster: Any, data: tuple, model: Any) -> None:
    """Whole numbers beyond 2^53 beside nulls, in some batches only, and times with their zone."""
    import pyarrow as pa
    import ray

    numbers = [None if i == 5 else 2**60 + i for i in range(60)]
    used, other = ("logits", "inputs") if model is None else ("inputs", "logits")
    own = {
        "customer": pa.array(numbers, pa.int64()),
        "time": pa.array(range(60), pa.timestamp("us", "Europe/Berlin")),
        "day": pa.array(range(60), pa.date32()),
        "kind": pa.array(["a", None, "b"] * 20).dictionary_encode(),
        "nested": pa.array([[1], [2, 3], None] * 20),
        other: pa.array(["a file"] * 60),
    }
    rows = ray.data.from_arrow(pa.table({used: list(data[0][:60].clip(-9)), **own}))
    calibration = evicp.calibrate(data[0].clip(-9), data[1])
    predicted = cluster.predict(rows, calibration, 0.9, model=model, batch_rows=10, workers=1)
    table = pa.concat_tables(predicted.iter_batches(batch_size=None, batch_format="pyarrow"))
    assert table.column_names == ["set", "size", *own]
    assert table.select(list(own)).equals(pa.table(own))
    assert table["set"].to_pylist() == calibration.predict(data[0][:60].clip(-9), 0.9).to_lists()


@pytest.mark.parametrize("name", ["set", "size", "names"])
def test_a_column_with_a_name_of_the_result_is_refused(cluster: Any, dataset: Any, data: tuple, name: str) -> None:
    calibration = evicp.calibrate(*data, class_names=[f"class {number}" for number in range(K)])
    message = rf"^the dataset has a column '{name}', which is also a column of the result \(set, size, names\)\. Rename"
    with pytest.raises(InputError, match=message):
        cluster.predict(dataset.rename_columns({"id": name}).materialize(), calibration, 0.9)
    unknown = dataset.map_batches(lambda batch: {**batch, name: batch["id"]}).select_columns(["logits", name])
    with pytest.raises(Exception, match=f"has a column '{name}'"):  # Ray's, made of ours
        cluster.predict(unknown, calibration, 0.9).take(1)
    plain = evicp.calibrate(*data)
    renamed = type(dataset).copy(dataset, _deep_copy=True).rename_columns({"id": "names"})
    renamed.context.execution_options.preserve_order = True  # or Ray keeps blocks in the order in which they are done
    kept = cluster.predict(renamed.materialize(), plain, 0.9).take(2)
    assert [row["names"] for row in kept] == [0, 1]


def test_the_settings_of_the_dataset_are_left_alone(cluster: Any, dataset: Any, data: tuple) -> None:
    import ray

    def settings(context: Any) -> tuple[bool, bool]:
        return context.execution_options.preserve_order, context.raise_original_map_exception

    before, here = settings(dataset.context), settings(ray.data.DataContext.get_current())
    calibration = cluster.calibrate(dataset)
    predicted = cluster.predict(dataset, calibration, 0.9)
    assert settings(dataset.context) == before == (False, False)
    assert settings(ray.data.DataContext.get_current()) == here
    assert settings(predicted.context) == (True, True)


class DiesOnce:
    """A stage of the user's that kills its worker the first time it sees a certain row."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if 1500 in batch["id"]:
            die_once(self.marker)
        return batch


def die_once(marker: str) -> None:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_changes_nothing_and_every_row_is_there_once(
    cluster: Any, dataset: Any, data: tuple, tmp_path: Path, figure: Callable[[str, object], None]
) -> None:
    """Of a dataset: during calibration, and again during prediction."""
    expected = evicp.calibrate(*data)
    whole = digest(expected, expected.predict(data[0], 0.9).to_lists())
    first, second = tmp_path / "first", tmp_path / "second"
    calibration = cluster.calibrate(dataset.map_batches(DiesOnce(first).__call__, batch_size=50), batch_rows=50)
    predicted = cluster.predict(dataset.map_batches(DiesOnce(second).__call__, batch_size=50), calibration, 0.9)
    numbers, sets = collected(predicted)
    assert first.exists()
    assert second.exists()
    figure("workers killed", 2)
    assert sorted(numbers) == list(range(N))
    assert digest(calibration, sets) == whole


def lac_that_dies(marker: str) -> Any:
    """LAC as a score of the user's own; the worker that first sees row 3 is killed while it scores."""
    marked = evicp.LAC().formula

    def score(z: np.ndarray) -> np.ndarray:
        if len(z) > 1:
            die_once(marker)
        return marked(z)

    return score


def test_a_killed_worker_changes_nothing_over_files(cluster: Any, data: tuple, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", logits=data[0], labels=data[1])
    rows = blocks.open_rows(tmp_path / "rows.npz", memory=200 * 8 * 4 * K)
    score = lac_that_dies(str(tmp_path / "first"))
    calibration = cluster.calibrate_files(rows, score)
    assert (tmp_path / "first").exists()
    plain = evicp.calibrate(*data, evicp.Custom(evicp.LAC().formula))
    np.testing.assert_array_equal(calibration.scores, plain.scores)
    deadly = evicp.Calibration(evicp.Custom(lac_that_dies(str(tmp_path / "second"))), calibration.scores, K)
    cluster.predict_files(deadly, rows, 0.9, tmp_path / "sets.parquet")
    assert (tmp_path / "second").exists()
    assert files.read_sets(tmp_path / "sets.parquet") == plain.predict(data[0], 0.9)


def lac_that_always_dies(z: np.ndarray) -> np.ndarray:
    if len(z) > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return evicp.LAC().formula(z)


def test_rows_that_kill_every_worker_end_the_run(
    cluster: Any, data: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evicp.ray import files as ray_files

    assert 0 < ray_files._RETRIES < 100
    monkeypatch.setattr(ray_files, "_RETRIES", 1)
    np.savez(tmp_path / "rows.npz", logits=data[0], labels=data[1])
    with pytest.raises(EvicpError, match="smaller memory budget"):
        cluster.calibrate_files(tmp_path / "rows.npz", lac_that_always_dies)


def test_a_caller_that_stops_leaves_nothing_under_way(
    cluster: Any, data: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    np.savez(tmp_path / "rows.npz", logits=data[0], labels=data[1])
    rows = blocks.open_rows(tmp_path / "rows.npz", memory=200 * 8 * 4 * K)
    cancelled: list[Any] = []
    cancel = ray.cancel
    monkeypatch.setattr(ray, "cancel", lambda task, **how: cancelled.append(task) or cancel(task, **how))

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.calibrate_files(rows, progress=stop)
    assert cancelled
    calibration = evicp.calibrate(*data)
    cancelled.clear()
    with pytest.raises(KeyboardInterrupt) as caught:  # which keeps all frames alive
        cluster.predict_files(calibration, rows, 0.9, tmp_path / "sets.npz", progress=stop)
    assert cancelled
    assert caught.tb is not None
    assert not (tmp_path / "sets.npz").exists()


@pytest.mark.parametrize("kind", ["npy", "npz packed", "folder", "held"])
def test_files_give_what_one_machine_gives(cluster: Any, data: tuple, tmp_path: Path, kind: str) -> None:
    logits, labels = data
    path = tmp_path / "logits.npy"
    if kind == "npy":
        np.save(path, logits)
        np.save(tmp_path / "labels.npy", labels)
    elif kind == "npz packed":
        path = tmp_path / "rows.npz"
        np.savez_compressed(path, logits=logits, labels=labels)
    elif kind == "folder":
        path = tmp_path / "shards"
        path.mkdir()
        for number, rows in enumerate(np.array_split(np.arange(N), 11)):
            np.savez(path / f"{number}.npz", logits=logits[rows], labels=labels[rows])
    budget = 150 * 8 * 4 * K
    rows = hold(files.LogitsFile(logits, labels), "here", budget) if kind == "held" else None
    rows = rows or blocks.open_rows(path, memory=budget)
    groups = labels % 2
    done: list[int] = []
    calibration = cluster.calibrate_files(rows, by="group", groups=groups, progress=done.append)
    assert calibration == evicp.calibrate(logits, labels, by=groups)
    assert sum(done) == N
    summary = cluster.predict_files(calibration, rows, 0.9, tmp_path / "sets.npz", groups=groups)
    assert summary.rows == N
    assert files.read_sets(tmp_path / "sets.npz") == calibration.predict(logits, 0.9, groups=groups)
    cluster.predict_files(calibration, rows, 0.9, tmp_path / "smoothed.npz", groups=groups, smoothed=True)
    smoothed = calibration.predict(logits, 0.9, groups=groups, smoothed=True)
    assert files.read_sets(tmp_path / "smoothed.npz") == smoothed


def make_module() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Dropout(0.9), torch.nn.Linear(6, 4))


def make_function() -> Any:
    weights = np.random.default_rng(0).normal(size=(6, 4))
    return lambda images: np.clip(images.reshape(len(images), -1) @ weights, -5, 5)


@pytest.mark.parametrize("make", [make_function, make_module])
def test_inputs_in_sets_out(cluster: Any, make: Any) -> None:
    """Batch inference: a module is run in evaluation mode (the dropout is silent), once per worker."""
    import ray

    if make is make_module:
        pytest.importorskip("torch")
    inputs = np.random.default_rng(1).normal(size=(400, 6)).astype(np.float32)
    labels = np.random.default_rng(2).integers(0, 4, 400)
    rows = [{"inputs": x, "labels": int(y), "id": i} for i, (x, y) in enumerate(zip(inputs, labels, strict=True))]
    images = ray.data.from_items(rows, override_num_blocks=4)
    how = {"model": make, "batch_rows": 50}
    calibration = cluster.calibrate(images, "lac", **how, workers=1)
    workers = 1 if make is make_module else 2  # each imports torch anew
    numbers, sets = collected(cluster.predict(images, calibration, 0.9, **how, workers=workers))
    if make is make_module:
        import torch

        with torch.inference_mode():
            module = make().eval()
            logits = np.concatenate([module(torch.from_numpy(inputs[i : i + 50])) for i in range(0, 400, 50)])
    else:
        logits = np.concatenate([make()(inputs[i : i + 50]) for i in range(0, 400, 50)])
    assert calibration == evicp.calibrate(logits, labels, "lac")
    assert numbers == list(range(400))
    assert sets == calibration.predict(logits, 0.9).to_lists()


def test_what_is_wrong_is_said_as_anywhere_else(cluster: Any, dataset: Any, data: tuple, tmp_path: Path) -> None:
    bad = data[0].copy()
    bad[2500, 3] = np.nan
    np.savez(tmp_path / "rows.npz", logits=bad, labels=data[1])
    with pytest.raises(LogitsError, match=r"^in the rows of .* NaN"):
        cluster.calibrate_files(blocks.open_rows(tmp_path / "rows.npz", memory=100 * 8 * 4 * K))
    with pytest.raises(InputError, match=r"^the dataset has no column 'truth'"):
        cluster.calibrate(dataset, labels="truth")
    with pytest.raises(LabelsError, match=r"^labels must be in \[0, 12\); got \d+ at row \d+ of its batch\."):
        cluster.calibrate(dataset, labels="id")
    with pytest.raises(InputTypeError, match=r"Row 1 of its batch has nan"), in_batch():
        evicp.calibrate(data[0][:2], [0.0, np.nan])
    with pytest.raises(InputTypeError, match=r"must be a ray.data.Dataset; got a ndarray"):
        cluster.calibrate(data[0])
    calibration = evicp.calibrate(data[0][:5], data[1][:5])
    with pytest.warns(SmallCalibrationWarning, match="cannot guarantee"):
        cluster.predict(dataset, calibration, 0.9)


def evicp_command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from evicp.cli import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", code, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_line_shares_out_the_work(
    cluster: Any, data: tuple, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the cluster at an address, or on the one in use; the file is the one a single process writes."""
    import ray

    np.savez(tmp_path / "rows.npz", logits=data[0], labels=data[1])
    address = ray.get_runtime_context().gcs_address
    how = ("--engine", "ray", "--address", address)
    done = evicp_command("calibrate", "rows.npz", "-o", "cal.safetensors", *how, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert evicp.load(tmp_path / "cal.safetensors") == evicp.calibrate(*data)
    with contextlib.chdir(tmp_path):
        app(["predict", "cal.safetensors", "rows.npz", "-o", "sets.npz", "--json", *how], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["rows"] == N
    assert files.read_sets(tmp_path / "sets.npz") == evicp.calibrate(*data).predict(data[0], 0.9)


def test_the_page_runs_and_prints_what_it_says(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands and programs use this cluster, where they would start their own."""
    import ray

    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    runs_and_prints_what_it_says(DOCS / "scale.md", tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("predict", "cal.safetensors", "rows.npz", "--engine", "ray"), "--engine ray needs --output"),
        (("predict", "cal.safetensors", "rows.npz", "-o", "s.npz", "--engine", "dask"), "--engine must be"),
        (
            ("predict", "cal.safetensors", "rows.npz", "-o", "s.npz", "--address", "x:1"),
            "--address is for --engine ray",
        ),
    ],
)
def test_bad_options_are_one_line(data: tuple, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    np.savez(tmp_path / "rows.npz", logits=data[0][:50], labels=data[1][:50])
    evicp.calibrate(data[0][:50], data[1][:50]).save(tmp_path / "cal.safetensors")
    done = evicp_process(words, tmp_path)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


# ---------------------------------------------------------------------------------------------------------------
# What workers notice


def said(work: Callable[[], Any]) -> list[str]:
    """What some work warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EvicpWarning)
        work()
    return sorted({str(one.message) for one in caught if issubclass(one.category, EvicpWarning)})


def test_the_driver_says_what_workers_warn_of(cluster: Any, data: tuple, tmp_path: Path) -> None:
    import ray

    probabilities = np.exp(data[0]) / np.exp(data[0]).sum(1, keepdims=True)
    np.savez(tmp_path / "p.npz", logits=probabilities, labels=data[1])
    np.savez(tmp_path / "z.npz", logits=data[0], labels=data[1])
    here = said(lambda: blocks.calibrate(tmp_path / "p.npz", "lac"))
    assert "probabilities" in here[0]
    assert said(lambda: cluster.calibrate_files(tmp_path / "p.npz", "lac")) == here
    rows = ray.data.from_items([{"logits": p, "labels": y} for p, y in zip(probabilities, data[1], strict=True)])
    assert said(lambda: cluster.calibrate(rows, "lac")) == here
    few = evicp.calibrate(data[0][:5], data[1][:5], "lac")
    weighted = evicp.calibrate(data[0][:50], data[1][:50], "lac", class_weights=10.0 ** np.arange(K))
    output = tmp_path / "sets.npz"
    for calibration, coverage, smoothed in (
        (few, 0.9, False),
        (few, 0.9, True),
        (few, 0.1, False),
        (weighted, 0.9, False),
    ):
        how = (coverage, output)
        here = said(lambda: blocks.predict(calibration, tmp_path / "z.npz", *how, smoothed=smoothed))  # noqa: B023
        assert here
        there = said(lambda: cluster.predict_files(calibration, tmp_path / "z.npz", *how, smoothed=smoothed))  # noqa: B023
        assert there == here
        options = {"logits": "logits", "smoothed": smoothed}
        assert said(lambda: cluster.predict(rows, calibration, coverage, **options)) == here  # noqa: B023


@pytest.mark.filterwarnings(
    "ignore:these rows are scored by another backend"
)  # or in another precision: those of 1.npz
def test_files_of_two_precisions_are_scored_alike(cluster: Any, data: tuple, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    np.savez(folder / "0.npz", logits=data[0][:0].astype(np.float16), labels=data[1][:0])
    np.savez(folder / "1.npz", logits=data[0][:900], labels=data[1][:900])
    np.savez(folder / "2.npz", logits=data[0][900:].astype(np.float64) + 1e-9, labels=data[1][900:])
    here, there = blocks.calibrate(folder, "lac"), cluster.calibrate_files(folder, "lac")
    assert here == there
    assert here.origin.arithmetic.logits == "float64"
    u = np.random.default_rng(0).random(N)
    blocks.predict(here, folder, 0.9, tmp_path / "here.npz", smoothed=u)
    cluster.predict_files(here, folder, 0.9, tmp_path / "there.npz", smoothed=u)
    assert (tmp_path / "here.npz").read_bytes() == (tmp_path / "there.npz").read_bytes()


def test_single_precision_in_doubles_is_recognised(cluster: Any, data: tuple) -> None:
    import pyarrow as pa
    import ray

    table = pa.table({"logits": data[0].astype(np.float64).tolist(), "labels": data[1]})
    there = cluster.calibrate(ray.data.from_arrow([table[:700], table[700:]]), "lac")
    assert there == evicp.calibrate(data[0].astype(np.float64), data[1], "lac")
    assert there.origin.arithmetic.logits == "float32"


def test_classes_in_another_order_are_refused(cluster: Any, data: tuple, tmp_path: Path) -> None:
    names = [f"class {k}" for k in range(K)]
    np.savez(tmp_path / "z.npz", logits=data[0], class_names=np.array(names[::-1]))
    calibration = evicp.calibrate(*data, "lac", class_names=names)
    with pytest.raises(EvicpError, match="must have the same class names; class 0 is 'class 0' and 'class 11'"):
        cluster.predict_files(calibration, tmp_path / "z.npz", 0.9, tmp_path / "sets.npz")


@pytest.mark.parametrize("column", ["logits", "labels", "groups"])
def test_a_null_is_refused_wherever_rows_come_from(cluster: Any, data: tuple, tmp_path: Path, column: str) -> None:
    """Of whole numbers beside a null NumPy makes others; the row is counted in the batch, or in the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import ray

    numbers = [row.tolist() for row in np.rint(10 * data[0].clip(-9)).astype(int)]
    columns = {"logits": numbers, "labels": data[1].tolist(), "groups": (data[1] % 3).tolist()}
    columns[column][1234] = None if column != "logits" else [None, *numbers[1234][1:]]
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=500)
    inside = ", entry 0" if column == "logits" else ""
    with pytest.raises(EvicpError, match=rf"{column} must not be null; got null at row \d+ of its batch{inside}\."):
        cluster.calibrate(ray.data.from_arrow(pa.table(columns)), "lac", by="group", groups="groups", batch_rows=100)
    if column != "groups":
        message = rf"rows\.parquet: {column} must not be null; got null at row 1,234{inside}\."
        with pytest.raises(files.FileError, match=message):
            cluster.calibrate_files(tmp_path / "rows.parquet", "lac")
