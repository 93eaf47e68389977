"""Logits in a parquet file, decoded in pieces of rows, each held against what the file said when it was opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError, LabelsError
from evicp.input import columns
from evicp.io.files import LogitsFile, parquet_file, read_parquet
from evicp.io.paths import open_file
from evicp.io.stored import Stamp, Stored, bytes_of, opened, stamp_of

__all__ = ["ParquetPart", "open_parquet"]


@dataclass(frozen=True, eq=False)
class ParquetPart:
    """Logits in a list column, labels in one of integers (or elsewhere)."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    own_labels: bool
    labels: NDArray[Any] | None = None
    stamp: Stamp | None = None

    @property
    def has_labels(self) -> bool:
        """Whether its rows have labels."""
        return self.own_labels or self.labels is not None

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Logits and labels (or None), at most `step` rows at a time, decoded as they are needed."""
        first, last = 0, self.shape[0] if stop is None else stop
        wanted = ["logits", "labels"] if self.own_labels else ["logits"]
        if self.labels is not None and len(self.labels) != self.shape[0]:
            raise LabelsError(
                f"labels must have one entry per row of logits; got {len(self.labels)} labels for {self.shape[0]} rows."
            )
        with opened(self.path, self.stamp), parquet_file(self.path, streamed=True) as file:
            for batch in file.iter_batches(step, columns=wanted, use_threads=False):
                if first >= last:
                    return
                logits = self._logits(batch.column("logits"), first)
                labels: NDArray[Any] | None
                if self.own_labels:
                    labels = columns.values(batch.column("labels"), "labels", first)
                else:
                    labels = None if self.labels is None else self.labels[first : first + len(logits)]
                own = slice(max(0, start - first), max(0, last - first))
                first += len(logits)
                if len(logits[own]):
                    yield logits[own], None if labels is None else labels[own]
        if first < last:
            raise FileError(f"it ends after {first:,} of its {last:,} rows.")

    def _logits(self, column: Any, first_row: int) -> NDArray[Any]:
        """Some rows of logits, of the classes and the type that the first row has."""
        logits = columns.matrix(column, "logits", first_row)
        if logits.shape[1:] != self.shape[1:]:
            raise columns.uneven_lists("logits", first_row, logits.shape[1], self.shape[1])
        if logits.dtype != self.dtype:
            raise FileError(f"its logits were {self.dtype} when it was opened, and are {logits.dtype}.")
        return logits

    def whole(self) -> LogitsFile:
        """All logits and labels."""
        with opened(self.path, self.stamp):
            whole = read_parquet(self.path)
        return whole if self.own_labels else dataclasses.replace(whole, labels=self.labels)

    def whole_labels(self) -> NDArray[Any] | None:
        """All labels, without the logits; None where there are none."""
        if not self.own_labels:
            return self.labels
        with opened(self.path, self.stamp), parquet_file(self.path) as file:
            return columns.values(file.read(["labels"])["labels"], "labels")

    def with_labels(self, labels: Stored | None) -> ParquetPart:
        """The same logits with other labels, or none."""
        return dataclasses.replace(self, own_labels=False, labels=None if labels is None else labels.whole())


def open_parquet(path: Path) -> ParquetPart | LogitsFile:
    """A parquet file: rows from its footer, classes and type from its first row; one without rows as it is."""
    with open_file(path) as raw:
        stamp = stamp_of(raw)
    with parquet_file(path, streamed=True) as file:
        names, n = file.schema_arrow.names, file.metadata.num_rows
        if "logits" not in names or not n:
            return read_parquet(path)
        first = columns.matrix(next(file.iter_batches(1, columns=["logits"])).column("logits"), "logits")
        bytes_of((n, *first.shape[1:]), first.itemsize)
        _refuse_longer(file.metadata, first.shape[1])
    return ParquetPart(path, (n, *first.shape[1:]), first.dtype, "labels" in names, stamp=stamp)


def _refuse_longer(footer: Any, width: int) -> None:
    """Refuse lists longer than the first as a file's footer counts them: one may take more memory than all others."""
    own = [j for j in range(footer.num_columns) if footer.schema.column(j).path.split(".")[0] == "logits"]
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        most = max((group.column(j).num_values for j in own), default=0)
        if most > width * group.num_rows:
            raise FileError(
                f"logits must be lists of one length; row group {number} has {most:,} numbers in {group.num_rows:,} "
                f"rows, the first row {width:,}. Pad or drop the short rows."
            )
