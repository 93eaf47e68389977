"""A null is never a number: every reader refuses it by its column and its row, counted in the whole file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from commands import evicp_process
from evicp import blocks
from evicp.errors import EvicpError, FileError, InputError, InputTypeError
from evicp.io import files
from evicp.io.rows import in_one_type

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N, K, ROW = 500, 3, 317

#: Kinds of lists, as far as this Arrow has them and its parquet writer takes them.
LISTS = {
    "list": pa.list_,
    "large list": pa.large_list,
    "list of a fixed size": lambda kind: pa.list_(kind, K),
    **({"list view": pa.list_view, "large list view": pa.large_list_view} if hasattr(pa, "list_view") else {}),
}
NUMBERS = ["int8", "int64", "uint16", "uint64", "float16", "float64"]


def rows_of_numbers() -> tuple[list[list[Any]], list[int]]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, N)
    logits = rng.integers(0, 20, (N, K)) + 30 * np.eye(K, dtype=int)[labels]
    return logits.tolist(), labels.tolist()


def write(path: Path, logits: Any, labels: Any) -> Path:
    try:
        pq.write_table(pa.table({"logits": logits, "labels": labels}), path, row_group_size=200)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        pytest.skip(f"this Arrow cannot write the column: {error}")
    return path


def in_blocks(path: Path) -> Any:
    """Read in blocks of a few rows, so that the null is in none of the first."""
    return sum(len(block.logits) for block in blocks.open_rows(path, memory=8 * 8 * K * 50))


READERS = {"at once": files.read_logits, "in blocks": in_blocks}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("inside", [True, False], ids=["a null in a list", "a null for a list"])
def test_logits(tmp_path: Path, numbers: str, kind: str, reader: str, inside: bool) -> None:
    logits, labels = rows_of_numbers()
    kind_of_list = LISTS[kind](getattr(pa, numbers)())
    if numbers.startswith("float"):
        logits = [[np.dtype(numbers).type(value) for value in row] for row in logits]
    whole = write(tmp_path / "whole.parquet", pa.array(logits, kind_of_list), labels)
    assert in_blocks(whole) == len(files.read_logits(whole).logits) == N
    if inside:
        logits[ROW][labels[ROW]] = None
    else:
        logits[ROW] = None
    path = write(tmp_path / "gap.parquet", pa.array(logits, kind_of_list), labels)
    where = rf"row {ROW}{f', entry {labels[ROW]}' if inside else ''}\."
    with pytest.raises(
        FileError, match=rf"gap\.parquet: (logits must not be null; got null at {where}|.* null in some)"
    ):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["int64", "uint8", "string", "dictionary"])
def test_labels(tmp_path: Path, kind: str, reader: str) -> None:
    logits, labels = rows_of_numbers()
    labels[ROW] = None
    column = pa.array(labels) if kind in ("string", "dictionary") else pa.array(labels, getattr(pa, kind)())
    if kind in ("string", "dictionary"):
        column = column.cast(pa.string())
    path = write(
        tmp_path / "gap.parquet", pa.array(logits), column.dictionary_encode() if kind == "dictionary" else column
    )
    with pytest.raises(FileError, match=rf"gap\.parquet: labels must not be null; got null at row {ROW}\."):
        READERS[reader](path)
    rows = blocks.open_rows(path)
    with pytest.raises(FileError, match=rf"labels must not be null; got null at row {ROW}\."):
        _ = rows.labels


def test_a_null_behind_a_valid_code() -> None:
    """A dictionary's code may be valid and stand for null; Arrow counts no null then."""
    from evicp.input import columns

    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array([5, None]))
    assert coded.null_count == 0
    with pytest.raises(InputError, match=r"labels must not be null; got null at row 8\."):
        columns.values(coded, "labels", 7)
    with pytest.raises(InputError, match=r"logits must not be null; got null at row 0, entry 1\."):
        columns.matrix(pa.ListArray.from_arrays([0, 3], coded), "logits")
    runs = pa.RunEndEncodedArray.from_arrays([2, 4], pa.array([1, None]))
    with pytest.raises(InputError, match=r"labels must not be null; got null at row 2\."):
        columns.values(runs, "labels")


def test_the_command_line(tmp_path: Path) -> None:
    logits, labels = rows_of_numbers()
    write(tmp_path / "whole.parquet", pa.array(logits), labels)
    logits[ROW][1] = None
    write(tmp_path / "gap.parquet", pa.array(logits), labels)

    def run(*words: str) -> tuple[int, str]:
        done = evicp_process(words, tmp_path)
        return done.code, done.err

    message = f"error: cannot read gap.parquet: logits must not be null; got null at row {ROW}, entry 1."
    code, said = run("calibrate", "gap.parquet", "-o", "gap.safetensors", "--score", "lac", "--memory", "8KiB")
    assert (code, message in said) == (2, True)
    assert not (tmp_path / "gap.safetensors").exists()
    evicp.calibrate(np.array(rows_of_numbers()[0], float), labels, "lac").save(tmp_path / "cal.safetensors")
    code, said = run("predict", "cal.safetensors", "gap.parquet", "-o", "sets.csv")
    assert (code, message in said) == (2, True)
    assert not (tmp_path / "sets.csv").exists()


def test_sets(tmp_path: Path) -> None:
    sets = evicp.PredictionSets.from_lists([[0], [1, 2], []], n_classes=K, coverage=0.9)
    files.write_sets(sets, tmp_path / "sets.parquet")
    table = pq.read_table(tmp_path / "sets.parquet")
    for lists, where in ([[0], [1, None], []], "row 1, entry 1"), ([[0], [1, 2], None], "row 2"):
        changed = table.set_column(1, "labels", pa.array(lists, pa.list_(pa.int32())))
        pq.write_table(changed.replace_schema_metadata(table.schema.metadata), tmp_path / "gap.parquet")
        with pytest.raises(FileError, match=rf"gap\.parquet: labels must not be null; got null at {where}\."):
            files.read_sets(tmp_path / "gap.parquet")


def test_logits_of_one_file_never_take_the_type_of_another_that_has_not_their_values() -> None:
    with pytest.raises(FileError, match=r"^logits of float64 do not match int64"):
        in_one_type(np.array([[1.0, np.nan]]), np.dtype(np.int64))
    assert in_one_type(np.array([[1, 2]], np.int8), np.dtype(np.float16)).dtype == np.float16


IN_MEMORY = {
    "Arrow": pa.array,
    "chunked Arrow": lambda values: pa.chunked_array([pa.array(values[:2]), pa.array(values[2:])]),
    "coded Arrow": lambda values: pa.array(values).dictionary_encode(),
    "polars": lambda values: pytest.importorskip("polars").Series(values),
    "pandas": lambda values: pytest.importorskip("pandas").Series(values),
    "nullable pandas": lambda values: pytest.importorskip("pandas").Series(values).convert_dtypes(),
    "categories": lambda values: pytest.importorskip("pandas").Series(values).astype("category"),
    "a list": list,
}


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("names", [False, True], ids=["numbers", "names"])
def test_labels_groups_and_weights_in_memory(kind: str, names: bool) -> None:
    logits = 5 * np.eye(4)
    values: list[Any] = ["a", "b", "c", None] if names else [0, 1, 2, None]
    given = IN_MEMORY[kind](values)
    with pytest.raises(EvicpError, match=r"(at row 3|Row 3 has)"):
        evicp.calibrate(logits, given, "lac", class_names=list("abcd"))
    with pytest.raises(InputTypeError, match=r"groups must be whole numbers or strings; .* Row 3 has"):
        evicp.calibrate(logits, [0, 1, 2, 3], "lac", by=given)
    with pytest.raises(EvicpError, match=r"^weights must be"):
        evicp.calibrate(logits, [0, 1, 2, 3], "lac", weights=given)


def test_a_label_that_is_missing_in_a_csv_file(tmp_path: Path) -> None:
    """An empty cell is no class of its own."""
    from evicp.extraction.sources import open_source

    (tmp_path / "rows.csv").write_text("text,label\nwarm,good\ncold,\n")
    with pytest.raises(EvicpError, match=r"every row needs a label; row 1 has none"):
        open_source(tmp_path / "rows.csv")
