"""Prediction sets, ragged: offsets and labels, never an n x K matrix unless asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from evicp import checks
from evicp.errors import InputError, InputTypeError, RowError, need

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["PredictionSets", "SetsSummary", "join_sets"]

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class PredictionSets:
    """One set of labels per row, most plausible first.

    Row i holds `labels[offsets[i]:offsets[i + 1]]`, ascending by score, then descending by logit, then ascending by
    index. The sets remember what was promised for them.

    Parameters
    ----------
    offsets : (n + 1,) int64
    labels : (total size,) int32
    n_classes : K
    coverage : the coverage asked for, exactly
    score : the name of the score
    n_calibration : rows calibrated on; None where nothing is promised (Base)
    filled : empty sets were given their top label (`allow_empty=False`)
    class_names : K names, optional
    confidence : with which the coverage was asked for (training-conditional sets); None where on average
    guarantee : where the coverage holds: "marginal" (over all rows), in every "class", "group" or band of
        "uncertainty", or "weighted"

    >>> sets = PredictionSets(np.array([0, 2, 2]), np.array([4, 1], np.int32), n_classes=5, coverage=Fraction(9, 10))
    >>> sets
    PredictionSets(2 rows of 5 classes, coverage 0.9; mean size 1.00, 1 empty, 0 of one label, largest 2)
    >>> sets[0]
    array([4, 1], dtype=int32)
    """

    offsets: I64
    labels: I32
    n_classes: int
    coverage: Fraction
    score: str = "custom"
    n_calibration: int | None = None
    filled: bool = False
    class_names: tuple[str, ...] | None = None
    confidence: float | None = None
    guarantee: str = "marginal"

    def __post_init__(self) -> None:
        for name in ("offsets", "labels"):
            object.__setattr__(self, name, checks.frozen(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> I64:
        """How many labels each set holds, (n,)."""
        return np.diff(self.offsets)

    @overload
    def __getitem__(self, index: int) -> I32: ...
    @overload
    def __getitem__(self, index: slice | NDArray[Any] | list[int] | list[bool]) -> PredictionSets: ...
    def __getitem__(self, index: Any) -> I32 | PredictionSets:
        """The labels of one row, or the sets of several (a slice, row numbers, a mask)."""
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            if not -len(self) <= index < len(self):
                raise RowError(f"row {index} does not exist; there are {len(self):,} sets.")
            row = int(index) % len(self)
            return self.labels[self.offsets[row] : self.offsets[row + 1]]
        if isinstance(index, slice) and index.step in (None, 1):
            start, stop, _ = index.indices(len(self))
            stop = max(start, stop)
            first, last = self.offsets[start], self.offsets[stop]
            return replace(self, offsets=self.offsets[start : stop + 1] - first, labels=self.labels[first:last])
        return self._take(self._row_numbers(index))

    def _row_numbers(self, index: Any) -> I64:
        if isinstance(index, slice):
            return np.arange(len(self))[index]
        try:
            rows = np.asarray(index)
        except ValueError:  # ragged lists
            rows = np.asarray(None)
        if rows.ndim != 1 or (rows.dtype.kind not in "iub" and rows.size):
            raise InputTypeError(f"sets are indexed by row numbers, a slice or a mask; got {index!r}.")
        try:
            return np.arange(len(self))[rows if rows.size else rows.astype(np.int64)]
        except IndexError as error:
            raise RowError(f"the index does not fit {len(self):,} sets: {error}.") from error

    def _take(self, rows: I64) -> PredictionSets:
        sizes = self.sizes[rows]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        return replace(self, offsets=offsets, labels=self.labels[np.repeat(self.offsets[:-1][rows], sizes) + within])

    def __iter__(self) -> Iterator[I32]:
        return (self.labels[a:b] for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True))

    def contains(self, labels: Any) -> NDArray[np.bool_]:
        """Whether each row's set holds the given label, (n,)."""
        wanted = checks.as_labels(labels, len(self), self.n_classes).astype(np.int32)
        result = np.zeros(len(self), bool)
        filled = np.flatnonzero(self.sizes)  # between the starts of non-empty rows lie exactly their own labels
        if filled.size:
            hits = self.labels == np.repeat(wanted, self.sizes)
            result[filled] = np.logical_or.reduceat(hits, self.offsets[filled])
        return result

    def mask(self) -> NDArray[np.bool_]:
        """Membership as a dense (n, K) matrix."""
        result = np.zeros((len(self), self.n_classes), bool)
        result[self._rows_of_labels(), self.labels] = True
        return result

    def _rows_of_labels(self) -> I64:
        return np.repeat(np.arange(len(self)), self.sizes)

    def names(self, row: int) -> list[str]:
        """The class names in one row's set."""
        if self.class_names is None:
            raise InputError("these sets have no class names; give class_names to calibrate.")
        return [self.class_names[label] for label in self[row]]

    def to_lists(self, *, names: bool = False) -> list[list[int]] | list[list[str]]:
        """One Python list per row, of labels or of names."""
        if names:
            return [self.names(row) for row in range(len(self))]
        return [row.tolist() for row in self]

    def to_arrow(self, first_row: int = 0) -> pa.Table:
        """An Arrow table: row int64, labels list<int32>, size int32, and names list<string> where there are any.

        Rows are numbered from `first_row`.
        """
        pa = need("pyarrow", "pyarrow", "parquet", "an Arrow table")
        small = len(self.labels) < 2**31  # the plain list type, which every reader knows, counts in 32 bits
        lists = pa.ListArray if small else pa.LargeListArray
        offsets, labels = pa.array(self.offsets, pa.int32() if small else pa.int64()), pa.array(self.labels)
        columns: dict[str, Any] = {
            "row": pa.array(np.arange(first_row, first_row + len(self))),
            "labels": lists.from_arrays(offsets, labels),
            "size": pa.array(self.sizes.astype(np.int32)),
        }
        if self.class_names is not None:
            columns["names"] = lists.from_arrays(offsets, pa.array(self.class_names, pa.string()).take(labels))
        return pa.table(columns)

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with one row per set."""
        pd = need("pandas", "pandas", "pandas", "a data frame")
        columns: dict[str, Any] = {"labels": list(self), "size": self.sizes.astype(np.int32)}
        if self.class_names is not None:
            columns["names"] = self.to_lists(names=True)
        return pd.DataFrame(columns, index=pd.RangeIndex(len(self), name="row"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PredictionSets):
            return NotImplemented
        names = ("n_classes", "coverage", "score", "n_calibration", "filled", "class_names", "confidence", "guarantee")
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and np.array_equal(self.offsets, other.offsets) and np.array_equal(self.labels, other.labels)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PredictionSets({SetsSummary.of(self)})"


def join_sets(parts: Sequence[PredictionSets]) -> PredictionSets:
    """The sets of consecutive blocks of rows as one."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.concatenate([part.sizes for part in parts])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return replace(parts[0], offsets=offsets, labels=np.concatenate([part.labels for part in parts]))


@dataclass(frozen=True, repr=False)
class SetsSummary:
    """What sets are like, where they are too many to keep: how many rows, labels, empty sets, sets of one label.

    `like` holds no rows, but all that the sets remember.
    """

    like: PredictionSets
    rows: int
    labels: int
    empty: int
    single: int
    largest: int

    @classmethod
    def of(cls, sets: PredictionSets) -> SetsSummary:
        """The summary of sets at hand."""
        sizes = sets.sizes
        empty, single = (int(np.sum(sizes == size)) for size in (0, 1))
        return cls(sets[:0], len(sets), len(sets.labels), empty, single, int(sizes.max(initial=0)))

    def __add__(self, other: SetsSummary) -> SetsSummary:
        added = {name: getattr(self, name) + getattr(other, name) for name in ("rows", "labels", "empty", "single")}
        return replace(self, largest=max(self.largest, other.largest), **added)

    @property
    def mean_size(self) -> float | None:
        """The mean number of labels per set; None without any."""
        return self.labels / self.rows if self.rows else None

    def __repr__(self) -> str:
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        head = f"{rows} of {self.like.n_classes:,} classes, coverage {float(self.like.coverage):g}"
        if self.mean_size is None:
            return head
        return (
            f"{head}; mean size {self.mean_size:.2f}, {self.empty:,} empty, {self.single:,} of one label, "
            f"largest {self.largest:,}"
        )
