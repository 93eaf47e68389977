"""A file is read as it was when it was opened, or refused: no calibration is of rows from two states of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import blocks
from evicp.errors import FileError

N, K = 3000, 4


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, N)
    return rng.normal(size=(N, K)) + 2 * np.eye(K)[labels], labels


def npy(folder: Path, logits: np.ndarray, labels: np.ndarray) -> Path:
    np.save(folder / "logits-a.npy", logits)
    np.save(folder / "labels-a.npy", labels)
    return folder / "logits-a.npy"


def npz(folder: Path, logits: np.ndarray, labels: np.ndarray, save: Any = np.savez) -> Path:
    save(folder / "a.npz", logits=logits, labels=labels)
    return folder / "a.npz"


def safetensors(folder: Path, logits: np.ndarray, labels: np.ndarray) -> Path:
    from safetensors.numpy import save_file

    save_file({"logits": logits, "labels": labels}, folder / "a.safetensors")
    return folder / "a.safetensors"


def parquet(folder: Path, logits: np.ndarray, labels: np.ndarray) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), logits.shape[1])
    pq.write_table(pa.table({"logits": lists, "labels": labels}), folder / "a.parquet", row_group_size=500)
    return folder / "a.parquet"


WRITERS: dict[str, Callable[..., Path]] = {
    "npy": npy,
    "npz": npz,
    "compressed npz": lambda *given: npz(*given, save=np.savez_compressed),
    "safetensors": safetensors,
    "parquet": parquet,
}


def later(path: Path) -> None:
    """The file was written a minute later: two writes within a tick of the clock look like one."""
    times = path.stat()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 60 * 10**9))


def renamed(write: Callable[..., Path], path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    """Another file takes the place of this one, with the time of this one."""
    before, other = path.stat(), path.parent / "other"
    other.mkdir()
    write(other, logits, labels)
    for file in other.iterdir():
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        file.replace(path.parent / file.name)


def rewritten(write: Callable[..., Path], path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    """The same file has other content."""
    later(write(path.parent, logits, labels))


@pytest.mark.parametrize("shape", [(N, K), (N // 2, 2 * K)], ids=["same shape", "other shape"])
@pytest.mark.parametrize("change", [renamed, rewritten])
@pytest.mark.parametrize("kind", WRITERS)
def test_between_opening_and_reading(tmp_path: Path, kind: str, change: Any, shape: tuple[int, int]) -> None:
    write = WRITERS[kind]
    path = write(tmp_path, *data(0))
    rows = blocks.open_rows(path, memory="16KiB")
    logits, labels = data(1)
    change(write, path, np.ascontiguousarray(logits.reshape(shape)), labels[: shape[0]])
    with pytest.raises(FileError, match=rf"cannot read .*{path.name}: it was changed while it was read\."):
        blocks.calibrate(rows, "lac")


@pytest.mark.parametrize("what", ["rewritten", "cut short"])
@pytest.mark.parametrize("kind", WRITERS)
def test_on_the_way_through(tmp_path: Path, kind: str, what: str) -> None:
    """Where a writer puts another file in its place, the one that was opened is read to its end."""
    write = WRITERS[kind]
    path = write(tmp_path, *data(0))
    calibrator = evicp.Calibrator("lac")
    try:
        for number, block in enumerate(blocks.open_rows(path, memory="16KiB")):
            calibrator.update(block.logits, block.labels)
            if number == 1 and what == "rewritten":
                rewritten(write, path, *data(1))
            elif number == 1:
                os.truncate(path, path.stat().st_size // 2)
    except FileError:  # it was changed, is damaged, or ends too early
        return
    assert calibrator.finish() == evicp.calibrate(*data(0), "lac")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_is_gone(tmp_path: Path, kind: str) -> None:
    path = WRITERS[kind](tmp_path, *data(0))
    rows = blocks.open_rows(path)
    path.unlink()
    with pytest.raises(FileError, match=rf"cannot read .*{path.name}: no such file\.$"):
        blocks.calibrate(rows, "lac")


def test_a_file_that_nobody_touched_can_be_read_again_and_again(tmp_path: Path) -> None:
    for write in WRITERS.values():
        path = write(tmp_path, *data(0))
        rows = blocks.open_rows(path, memory="16KiB")
        assert blocks.calibrate(rows, "lac") == blocks.calibrate(rows, "lac") == evicp.calibrate(*data(0), "lac")
        shutil.copystat(path, path)  # looked at, not written


def test_sets_that_change(tmp_path: Path) -> None:
    from evicp.io import files

    for suffix in ("npz",):
        path = tmp_path / f"sets.{suffix}"
        files.write_sets(evicp.calibrate(*data(0), "lac").predict(data(0)[0], 0.9), path)
        pieces = files.scan_sets(path, 100)
        next(pieces)
        files.write_sets(evicp.calibrate(*data(1), "lac").predict(data(1)[0], 0.9), path)
        later(path)
        with pytest.raises(FileError, match=r"it was changed while it was read"):
            list(pieces)


def test_a_parquet_footer_that_contradicts_itself(tmp_path: Path) -> None:
    """Of a file whose footer has fewer rows than its row groups, the rest would be left out."""
    path = parquet(tmp_path, *data(0))
    whole = path.read_bytes()
    coded = lambda number: bytes([2 * number & 127 | 128, 2 * number >> 7])  # noqa: E731 - as Thrift writes it
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    seen = 0
    for place in range(start, len(whole) - 8):
        if whole.startswith(coded(N), place):
            path.write_bytes(whole[:place] + coded(N - 500) + whole[place + 2 :])
            with pytest.raises(FileError, match=r"it states 2,500 rows, but 3,000 in its row groups"):
                blocks.open_rows(path)
            seen += 1
    assert seen == 1


def test_long_names_among_labels_count_as_memory(tmp_path: Path) -> None:
    """A block's labels take what memory allows too: here each is an eighth of it."""
    np.save(tmp_path / "logits-a.npy", data(0)[0][:40])
    np.save(tmp_path / "labels-a.npy", np.array(["x" * 2048] * 40))
    assert blocks.open_rows(tmp_path / "logits-a.npy", memory=2**16).step <= 2
    np.save(tmp_path / "labels-a.npy", data(0)[1][:40])
    assert blocks.open_rows(tmp_path / "logits-a.npy", memory=2**16).step == 2**16 // (8 * K * 8)


def test_a_truth_that_says_two_things_of_an_image(tmp_path: Path) -> None:
    from evicp.errors import LabelsError
    from evicp.extraction.ground_truth import read_ground_truth

    (tmp_path / "val.txt").write_text("a.png 3\nb.png 4\na.png 3\n")
    assert read_ground_truth(tmp_path / "val.txt", ["a.png", "b.png"]) == ["3", "4"]
    (tmp_path / "val.txt").write_text("a.png 3\nb.png 4\na.png 5\n")
    with pytest.raises(LabelsError, match=r"val\.txt has more than one label for a\.png\. Keep the right one"):
        read_ground_truth(tmp_path / "val.txt", ["a.png", "b.png"])
