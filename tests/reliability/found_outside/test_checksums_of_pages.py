"""Parquet pages have checksums if the writer wants them: then no lost bit gives other logits, else nothing can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evicp import blocks
from evicp.errors import FileError
from evicp.io import files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.normal(size=(200, 4)).astype(np.float32), RNG.integers(0, 4, 200)


def in_blocks(path: Path) -> tuple[np.ndarray, np.ndarray]:
    read = list(blocks.open_rows(path))
    return np.concatenate([block.logits for block in read]), np.concatenate([block.labels for block in read])


def at_once(path: Path) -> tuple[np.ndarray, np.ndarray]:
    read = files.read_logits(path)
    return read.logits, read.labels  # type: ignore[return-value]


def outcomes(path: Path, read: Any) -> dict[str, int]:
    """What becomes of the file with one bit of its pages flipped, at 60 places."""
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    counts = {"same": 0, "other": 0, "refused": 0}
    for place in np.linspace(4, footer - 1, 60).astype(int):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        (path.parent / "damaged.parquet").write_bytes(damaged)
        try:
            logits, labels = read(path.parent / "damaged.parquet")
        except FileError:
            counts["refused"] += 1
            continue
        same = np.array_equal(logits, LOGITS) and np.array_equal(labels, LABELS)
        counts["same" if same else "other"] += 1
    return counts


@pytest.mark.parametrize("read", [at_once, in_blocks])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_with_checksums(tmp_path: Path, read: Any, version: str) -> None:
    columns = {"logits": pa.FixedSizeListArray.from_arrays(pa.array(LOGITS.ravel()), 4), "labels": LABELS}
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path, write_page_checksum=True, data_page_version=version)
    found = outcomes(path, read)
    assert found["other"] == 0
    assert found["refused"] > 50


def test_pages_without_checksums_are_why_the_documents_say_so(tmp_path: Path) -> None:
    columns = {"logits": pa.FixedSizeListArray.from_arrays(pa.array(LOGITS.ravel()), 4), "labels": LABELS}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert outcomes(tmp_path / "rows.parquet", at_once)["other"] > 30
    said = " ".join(str(text) for text in (files.read_logits.__doc__, blocks.open_rows.__doc__))
    assert said.count("write_page_checksum=True") == 2
    page = Path(__file__).parents[3] / "docs" / "command-line.md"
    if page.exists():
        assert "write_page_checksum=True" in page.read_text("utf-8")
