"""Files of logits: what is written comes back, whatever the container or the byte order."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import FileError, InputError
from evicp.io import files
from evicp.io.atomic import atomic_path
from evicp.sets import about_of

K = 4


def write_npz(folder: Path, logits: np.ndarray, labels: np.ndarray | None) -> tuple[Path, None]:
    arrays = {"logits": logits} | ({} if labels is None else {"labels": labels})
    np.savez(folder / "rows.npz", **arrays)
    return folder / "rows.npz", None


def write_compressed(folder: Path, logits: np.ndarray, labels: np.ndarray | None) -> tuple[Path, None]:
    arrays = {"logits": logits} | ({} if labels is None else {"labels": labels})
    np.savez_compressed(folder / "rows.npz", **arrays)
    return folder / "rows.npz", None


def write_npy(folder: Path, logits: np.ndarray, labels: np.ndarray | None) -> tuple[Path, Path | None]:
    np.save(folder / "logits.npy", logits)
    if labels is None:
        return folder / "logits.npy", None
    np.save(folder / "labels.npy", labels)
    return folder / "logits.npy", folder / "labels.npy"


def write_safetensors(folder: Path, logits: np.ndarray, labels: np.ndarray | None) -> tuple[Path, None]:
    from safetensors.numpy import save_file

    arrays = {"logits": np.ascontiguousarray(logits)} | ({} if labels is None else {"labels": labels})
    save_file(arrays, folder / "rows.safetensors")
    return folder / "rows.safetensors", None


def write_parquet(
    folder: Path, logits: np.ndarray, labels: np.ndarray | None, *, fixed: bool = True
) -> tuple[Path, None]:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    flat = pa.array(np.ascontiguousarray(logits).ravel())
    if fixed:
        column = pa.FixedSizeListArray.from_arrays(flat, logits.shape[1])
    else:
        column = pa.ListArray.from_arrays(pa.array(np.arange(len(logits) + 1, dtype=np.int32) * logits.shape[1]), flat)
    columns = {"logits": column, "image": pa.array([f"{i}.png" for i in range(len(logits))])}
    if labels is not None:
        columns["labels"] = pa.array(labels)
    try:
        pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=max(1, len(logits) // 3))
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"this pyarrow cannot write the column: {error}")
    return folder / "rows.parquet", None


WRITERS = {
    "npz": write_npz,
    "compressed npz": write_compressed,
    "npy": write_npy,
    "safetensors": write_safetensors,
    "parquet": write_parquet,
    "parquet of lists": lambda *a: write_parquet(*a, fixed=False),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_logits_come_back(kind: str, dtype: Any, rows: Any, tmp_path: Path) -> None:
    logits, labels = rows[0].astype(dtype), rows[1]
    logits[3, (labels[3] + 1) % K] = -np.inf
    path, labels_path = WRITERS[kind](tmp_path, logits, labels)
    data = files.read_logits(path, labels_path)
    assert data.logits.dtype == dtype
    np.testing.assert_array_equal(data.logits, logits)
    np.testing.assert_array_equal(data.labels, labels)
    assert evicp.calibrate(data.logits, data.labels) == evicp.calibrate(logits, labels)
    path, _ = WRITERS[kind](tmp_path, logits, None)
    assert files.read_logits(path).labels is None


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "parquet of lists"])
def test_a_file_of_no_rows(kind: str, tmp_path: Path) -> None:
    path, _ = WRITERS[kind](tmp_path, np.empty((0, K), np.float32), None)
    assert files.read_logits(path).logits.shape == (0, K)


def test_npy_stays_on_disk(rows: Any, tmp_path: Path) -> None:
    path, labels_path = write_npy(tmp_path, *rows)
    data = files.read_logits(path, labels_path)
    assert isinstance(data.logits, np.memmap)
    assert not data.logits.flags.writeable


def test_big_endian_and_fortran_order(rows: Any, tmp_path: Path) -> None:
    for array in (rows[0].astype(">f4"), np.asfortranarray(rows[0])):
        path, _ = write_npy(tmp_path, array, None)
        np.testing.assert_array_equal(files.read_logits(path).logits, array)
        assert evicp.calibrate(files.read_logits(path).logits, rows[1], "lac").n == 80


def test_bfloat16_safetensors(rows: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensor = torch.from_numpy(rows[0]).bfloat16()
    tensors = {"labels": torch.from_numpy(rows[1]), "logits": tensor, "other": torch.ones(3)}
    save_file(tensors, tmp_path / "rows.safetensors")
    data = files.read_logits(tmp_path / "rows.safetensors")
    assert data.logits.dtype == np.float32
    np.testing.assert_array_equal(data.logits, tensor.float().numpy())
    np.testing.assert_array_equal(data.labels, rows[1])


def test_lists_of_different_lengths_are_never_reshaped(tmp_path: Path) -> None:
    """[1, 2] and [3, 4, 5, 6] are six numbers in two rows; they are not two rows of three."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    uneven = r"logits must be lists of one length; got {} numbers at row 1, {} before\. Pad or drop the short rows\.$"
    null = r"logits must not be null; got null at row 1\. Drop such rows, or fill them\.$"
    for column, message in (
        (pa.array([[1.0, 2.0], [3.0, 4.0, 5.0, 6.0]]), uneven.format(4, 2)),
        (pa.array([[1.0, 2.0], None, [3.0, 4.0]]), null),
        (pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float64(), 2)), rf"{null}|null in some rows\."),
        (pa.array([[], [1.0, 2.0]]), uneven.format(2, 0)),
    ):
        try:
            pq.write_table(pa.table({"logits": column}), tmp_path / "rows.parquet")
        except pa.ArrowNotImplementedError:
            continue  # an old pyarrow does not write such a column in the first place
        with pytest.raises(FileError, match=message):
            files.read_logits(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"logits": pa.array([1.0, 2.0])}), tmp_path / "rows.parquet")
    with pytest.raises(FileError, match=r"logits must be a column of lists of numbers; got double\.$"):
        files.read_logits(tmp_path / "rows.parquet")


def test_gaps_in_parquet_are_not_numbers(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"logits": pa.array([[1.0, None], [0.5, 2.0]]), "labels": pa.array([0, None])})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(FileError, match=r"logits must not be null; got null at row 0, entry 1\."):
        files.read_logits(tmp_path / "rows.parquet")
    pq.write_table(table.set_column(0, "logits", pa.array([[1.0, 0.0], [0.5, 2.0]])), tmp_path / "rows.parquet")
    with pytest.raises(FileError, match=r"labels must not be null; got null at row 1\."):
        files.read_logits(tmp_path / "rows.parquet")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", logits=np.array([[object()]], dtype=object))
    np.save(tmp_path / "rows.npy", np.array([[1, "a"]], dtype=object))
    for name in ("rows.npz", "rows.npy"):
        with pytest.raises(FileError, match=r"it is not a \.np[yz] file of logits \("):
            files.read_logits(tmp_path / name)


def test_a_labels_file_that_is_none(rows: Any, tmp_path: Path) -> None:
    path, _ = write_npy(tmp_path, rows[0], None)
    (tmp_path / "labels.npy").write_text("0 1 2")
    with pytest.raises(FileError, match=r"labels\.npy: it is not a \.npy file of labels \("):
        files.read_logits(path, tmp_path / "labels.npy")
    np.savez(tmp_path / "labels.npz", labels=rows[1])
    (tmp_path / "labels.npz").rename(tmp_path / "labels.npy")
    with pytest.raises(FileError, match=r"labels\.npy: it is an npz file, not npy\. Rename it\.$"):
        files.read_logits(path, tmp_path / "labels.npy")


def test_a_folder_name_is_not_read_as_a_column(rows: Any, tmp_path: Path) -> None:
    """A folder called labels=3 is a partition to some readers; here it is a folder."""
    folder = tmp_path / "labels=3"
    folder.mkdir()
    path, _ = write_parquet(folder, rows[0], None)
    assert files.read_logits(path).labels is None


def test_a_callers_broken_pipe_is_not_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(BrokenPipeError), atomic_path(tmp_path / "a.txt"):
        raise BrokenPipeError("the terminal is gone")
    with pytest.raises(FileError, match="cannot write"), atomic_path(tmp_path / "a.txt"):
        raise OSError("the disk is full")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [write_npz, write_parquet])
def test_logits_are_not_taken_for_sets(tmp_path: Path, rows: tuple[np.ndarray, np.ndarray], write: Any) -> None:
    path, _ = write(tmp_path, *rows)
    with pytest.raises(FileError, match="it contains logits, not sets"):
        files.read_sets(path)


@pytest.mark.parametrize("suffix", sorted(files.SETS))
@pytest.mark.parametrize("blocks", [0, 2])
def test_an_error_while_sets_are_written_is_the_only_one(tmp_path: Path, suffix: str, blocks: int) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    sets = evicp.PredictionSets.from_lists([[0], [1, 2]], n_classes=K, coverage=0.9)

    def write() -> None:
        with files.open_sets(tmp_path / f"sets{suffix}") as writer:
            for _ in range(blocks):
                writer.append(sets)
            raise RuntimeError("from outside")

    with pytest.raises(RuntimeError, match="from outside"):
        write()
    gc.collect()  # what was left open would complain now
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="no sets were given"), files.open_sets(tmp_path / f"sets{suffix}"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_sets_of_another_coverage_or_of_other_classes_are_not_put_into_one_file(tmp_path: Path, suffix: str) -> None:
    one = evicp.PredictionSets.from_lists([[0, 1], [2]], n_classes=3, coverage=0.9)
    for about in ({"n_classes": 3, "coverage": 0.5}, {"n_classes": 5, "coverage": 0.9}):
        other = evicp.PredictionSets.from_lists([[2, 0]], **about)
        with files.open_sets(tmp_path / f"sets.{suffix}") as file:
            file.append(one)
            with pytest.raises(InputError, match="from one calibration and one coverage"):
                file.append(other)
        assert files.read_sets(tmp_path / f"sets.{suffix}") == one


def test_damaged_sets_in_parquet_are_not_read_as_others(tmp_path: Path) -> None:
    """Whatever bit of the labels was lost."""
    sets = evicp.PredictionSets.from_lists([[0, 1], [2], [], [1]] * 5, n_classes=3, coverage=0.9)
    files.write_sets(sets, tmp_path / "sets.parquet")
    whole = (tmp_path / "sets.parquet").read_bytes()
    for place in range(4, whole.index(b"ARROW:schema")):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (tmp_path / "damaged.parquet").write_bytes(damaged)
        try:
            read = files.read_sets(tmp_path / "damaged.parquet")
        except FileError:
            continue
        assert about_of(read) != about_of(sets) or read == sets


def test_sets_with_more_labels_than_classes_are_refused(tmp_path: Path) -> None:
    files.write_sets(evicp.PredictionSets.from_lists([[0]], n_classes=3, coverage=0.9), tmp_path / "sets.npz")
    with np.load(tmp_path / "sets.npz") as arrays:
        parts = {**arrays, "offsets": np.array([0, 4]), "labels": np.zeros(4, np.int32)}
    np.savez(tmp_path / "sets.npz", **parts)
    with pytest.raises(FileError, match="a set has more labels than there are classes, 3"):
        files.read_sets(tmp_path / "sets.npz")
