"""Prediction sets, ragged: offsets and labels, not an n x K matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp.errors import FileError, InputError, InputTypeError, LabelsError, RowError
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis, ClassNames
from evicp.input.lists import labels_of, repeated_label, rows_of
from evicp.input.messages import some_of
from evicp.outer import outer
from evicp.tables import html_table, rows_text
from evicp.types import I32, I64, Bools, Coverage

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["PredictionSets", "SetsSummary"]


@dataclass(frozen=True, kw_only=True)
class AboutSets:
    """What sets remember in addition to labels, in the attributes that `PredictionSets` describes."""

    n_classes: int
    coverage: Fraction
    score: str = "custom"
    n_calibration: int | None = None
    filled: bool = False
    class_names: tuple[str, ...] | None = None
    confidence: float | None = None
    guarantee: str = "marginal"
    smoothed: bool = False
    tied: bool = False
    columns: tuple[str, ...] | None = field(default=None, compare=False)  # where sets come from is not theirs
    numbered: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class PredictionSets(AboutSets):
    """One set of labels per row, most plausible first.

    Row i holds `labels[offsets[i]:offsets[i + 1]]`, ascending by score, then descending by logit, then ascending by
    index. The sets store their guarantee.

    Parameters
    ----------
    offsets : (n + 1,) int64
    labels : (total size,) int32
    n_classes : K
    coverage : the target coverage, exactly
    score : the name of the score
    n_calibration : calibration rows; None if the distribution of coverage is unknown (Base, folds)
    filled : empty sets were given their top label (`allow_empty=False`)
    class_names : K names, optional
    confidence : with which the target coverage holds (training-conditional sets); None on average
    guarantee : where the coverage holds: "marginal" (over all rows), in every "class", "group" or band of
        "uncertainty", or "weighted"; "risk" for sets of `RiskControl`, whose coverage is 1 - risk / largest loss
    smoothed : ties were broken at random (`smoothed=True`), so that coverage equals the target on average
    tied : with one threshold for all rows, other calibration scores equal it, so coverage can be higher
    columns : the column names of the calibration logits, if known and not the class names
    numbered : class names were given as whole numbers: labels that are such are looked up among them
    ids : (n,) names or numbers of the rows where they come from (files of images, a frame's index); None if unknown

    >>> sets = PredictionSets(np.array([0, 2, 2]), np.array([4, 1], np.int32), n_classes=5, coverage=Fraction(9, 10))
    >>> sets
    PredictionSets(2 rows of 5 classes, coverage 0.9; mean size 1.00, 1 empty, 0 of one label, largest 2)
    >>> sets[0]
    array([4, 1], dtype=int32)
    """

    offsets: I64
    labels: I32
    ids: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "coverage", validate.as_coverage(self.coverage))
        object.__setattr__(self, "offsets", convert.frozen(self.offsets))
        object.__setattr__(self, "labels", convert.frozen(self.labels))
        if self.ids is not None:
            object.__setattr__(self, "ids", convert.frozen(validate.as_ids(self.ids, len(self))))

    __setstate__ = convert.restore_frozen

    @property
    def target_coverage(self) -> Fraction:
        """The target coverage, the same as `coverage`."""
        return self.coverage

    @classmethod
    def from_mask(
        cls,
        mask: ArrayLike,
        *,
        coverage: Coverage,
        score: str = "custom",
        n_calibration: int | None = None,
        class_names: ClassNames | None = None,
    ) -> PredictionSets:
        """Convert a membership matrix made elsewhere, for example to `evaluate` it.

        A mask has no order of plausibility: labels are in the order of their numbers.

        Parameters
        ----------
        mask : (n, K) True or False
        coverage : the target coverage of the sets
        score, n_calibration, class_names : further properties, if known

        >>> PredictionSets.from_mask([[True, False, True], [False, False, False]], coverage=0.9).to_lists()
        [[0, 2], []]
        """
        array = convert.as_array(mask, "mask")
        if array.dtype != bool:
            raise InputTypeError(f"mask must be True or False; got dtype {array.dtype}. Pass mask.astype(bool).")
        if array.ndim != 2 or array.shape[1] < 2:
            raise InputError(f"mask must have shape (rows, classes), of 2 classes or more; got {array.shape}.")
        offsets = np.concatenate([[0], np.cumsum(array.sum(1))])
        classes = ClassAxis.of(class_names, array.shape[1]).learned(mask, "mask")
        about = _about(coverage, classes, score, n_calibration)
        return sets_of(about, offsets, np.nonzero(array)[1].astype(np.int32))

    @classmethod
    def from_lists(
        cls,
        lists: Any,
        *,
        n_classes: int,
        coverage: Coverage,
        score: str = "custom",
        n_calibration: int | None = None,
        class_names: ClassNames | None = None,
    ) -> PredictionSets:
        """Convert lists of labels made elsewhere, for example to `evaluate` them.

        Parameters
        ----------
        lists : for each row its labels, most plausible first if known; or names, if class_names are given
        n_classes : K
        coverage : the target coverage of the sets
        score, n_calibration, class_names : further properties, if known

        >>> PredictionSets.from_lists([[2, 0], []], n_classes=3, coverage=0.9).contains([0, 0])
        array([ True, False])
        """
        classes = ClassAxis.of(class_names, validate.as_n_classes(n_classes))
        about = _about(coverage, classes, score, n_calibration)
        rows = rows_of(lists)
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        labels = labels_of(rows, classes)
        again = repeated_label(offsets, labels, n_classes)
        if again is not None:
            raise LabelsError(f"lists must contain a label only once per row; got {again[1]} twice in row {again[0]}.")
        return sets_of(about, offsets, labels.astype(np.int32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> I64:
        """The number of labels in each set, (n,)."""
        return np.diff(self.offsets)

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> I32: ...
    @overload
    def __getitem__(self, index: slice | NDArray[Any] | Sequence[int]) -> PredictionSets: ...
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
            part = sets_of(self, self.offsets[start : stop + 1] - first, self.labels[first:last])
            return part if self.ids is None else with_ids(part, self.ids[start:stop])
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
            raise RowError(f"the index is wrong for {len(self):,} sets: {error}.") from error

    def _take(self, rows: I64) -> PredictionSets:
        sizes = self.sizes[rows]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        part = sets_of(self, offsets, self.labels[np.repeat(self.offsets[:-1][rows], sizes) + within])
        return part if self.ids is None else with_ids(part, self.ids[rows])

    def __iter__(self) -> Iterator[I32]:
        return (self.labels[a:b] for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True))

    def contains(self, labels: ArrayLike) -> Bools:
        """Whether each row's set contains the given label, (n,): a number, or a name if the sets have names."""
        return holds(self, label_numbers(self, labels))

    def mask(self) -> Bools:
        """Membership as a dense (n, K) matrix."""
        result = np.zeros((len(self), self.n_classes), bool)
        result[np.repeat(np.arange(len(self)), self.sizes), self.labels] = True
        return result

    def names(self, row: int | np.integer[Any]) -> list[str]:
        """The class names in one row's set."""
        return self._named(self[row])

    def _named(self, labels: I32) -> list[str]:
        if self.class_names is None:
            raise InputError("these sets have no class names; give class_names to calibrate.")
        return [self.class_names[label] for label in labels.tolist()]

    @overload
    def to_lists(self, *, names: Literal[False] = ...) -> list[list[int]]: ...
    @overload
    def to_lists(self, *, names: Literal[True]) -> list[list[str]]: ...
    @overload
    def to_lists(self, *, names: bool) -> list[list[int]] | list[list[str]]: ...
    def to_lists(self, *, names: bool = False) -> list[list[int]] | list[list[str]]:
        """One Python list per row, of labels or, with `names=True`, of their names."""
        labels: list[Any] = self._named(self.labels) if names else self.labels.tolist()
        return [labels[start:stop] for start, stop in pairwise(self.offsets.tolist())]

    def to_arrow(self, first_row: int = 0) -> pa.Table:
        """An Arrow table: row int64, labels list<int32>, size int32; names list<string> and the rows' id, if known.

        Parameters
        ----------
        first_row : the number of the first row
        """
        table: pa.Table = outer("sets_as_arrow")(self, first_row)
        return table

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with one row per set; its index is the rows' ids, where they are known."""
        frame: pd.DataFrame = outer("sets_as_pandas")(self)
        return frame

    def to_csv(self, path: str | PathLike[str] | None = None, *, overwrite: bool = False) -> str | None:
        """The sets as comma-separated text: row, size, labels separated by spaces; names and the rows' id, if known.

        Parameters
        ----------
        path : a file to write the text to, ending in .csv; without one, the text is returned
        overwrite : whether a file that exists is replaced; it is refused otherwise
        """
        if path is None:
            text: str = outer("sets_as_csv")(self)
            return text
        if not str(path).endswith(".csv"):
            raise FileError(f"to_csv writes a file that ends in .csv; got {path}. save(path) writes other formats.")
        self.save(path, overwrite=overwrite)
        return None

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the sets to a file, atomically: .parquet, .npz, .jsonl, .json or .csv.

        Parameters
        ----------
        path : parquet and npz keep everything; `evicp.io.files.read_sets` reads them
        overwrite : whether a file that exists is replaced; it is refused otherwise
        """
        outer("save_sets")(self, path, overwrite=overwrite)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PredictionSets):
            return NotImplemented
        same = np.array_equal(self.offsets, other.offsets) and np.array_equal(self.labels, other.labels)
        return same and about_of(self) == about_of(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PredictionSets({SetsSummary.of(self)})"

    def _repr_html_(self, shown: int = 10) -> str:
        rows = [[row_text(self, row), f"{len(self[row]):,}", set_text(self, row)] for row in range(len(self[:shown]))]
        rest = [[f"and {len(self) - shown:,} more", "", ""]] if len(self) > shown else []
        return html_table(["row", "size", "set"], [*rows, *rest], caption=str(SetsSummary.of(self)), left=(2,))


def sets_of(about: AboutSets, offsets: I64, labels: I32) -> PredictionSets:
    """Sets of rows that remember this; `dataclasses.replace` takes longer than to score a row."""
    made = object.__new__(PredictionSets)
    made.__dict__.update(about.__dict__, offsets=convert.frozen(offsets), labels=convert.frozen(labels), ids=None)
    return made


def with_ids(sets: PredictionSets, ids: NDArray[Any] | None) -> PredictionSets:
    """The sets with names or numbers of their rows, which are known to be one for each."""
    if ids is not None:
        sets.__dict__["ids"] = convert.frozen(ids)
    return sets


def row_text(sets: PredictionSets, row: int) -> str:
    """What a row is called: its id, or its number."""
    return str(row if sets.ids is None else sets.ids[row])


def about_of(sets: PredictionSets) -> AboutSets:
    """What sets remember in addition to labels."""
    return AboutSets(**{part.name: getattr(sets, part.name) for part in fields(AboutSets)})


def label_numbers(sets: PredictionSets, labels: Any) -> I64:
    """One label per row as its number, (n,), checked."""
    return ClassAxis.known_to(sets).numbers(labels, len(sets))


def holds(sets: PredictionSets, numbers: I64) -> Bools:
    """`PredictionSets.contains` of labels that have been checked."""
    wanted = numbers.astype(np.int32)
    result = np.zeros(len(sets), bool)
    filled = np.flatnonzero(sets.sizes)  # between the starts of non-empty rows lie exactly their own labels
    if filled.size:
        hits = sets.labels == np.repeat(wanted, sets.sizes)
        result[filled] = np.logical_or.reduceat(hits, sets.offsets[filled])
    return result


def set_text(sets: PredictionSets, row: int | np.integer[Any]) -> str:
    """One row's set for people: its first labels, by name where names are known, and how many more."""
    return some_of(sets[row].tolist() if sets.class_names is None else sets.names(row)) or "(empty)"


def filled_with(sets: PredictionSets, top: I32) -> PredictionSets:
    """The sets with the top label of each row, (n,), in those that are empty."""
    empty = sets.sizes == 0
    offsets = np.concatenate([[0], np.cumsum(np.where(empty, 1, sets.sizes))])
    labels = np.insert(sets.labels, sets.offsets[:-1][empty], top[empty])
    return replace(sets, offsets=offsets, labels=labels, filled=True)


def _about(coverage: Any, classes: ClassAxis, score: Any, n_calibration: Any) -> AboutSets:
    """What sets made elsewhere remember, checked."""
    if not isinstance(score, str):
        raise InputTypeError(f"score must be the name of a score; got {score!r}.")
    return AboutSets(
        n_classes=classes.n_classes,
        coverage=validate.as_coverage(coverage),
        score=score,
        n_calibration=None if n_calibration is None else validate.as_count(n_calibration, "n_calibration"),
        class_names=classes.names,
        columns=classes.other_columns,
        numbered=classes.numbered,
    )


def join_sets(parts: Sequence[PredictionSets]) -> PredictionSets:
    """The sets of consecutive blocks of rows as one."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.concatenate([part.sizes for part in parts])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    known = [part.ids for part in parts if part.ids is not None]
    whole = sets_of(parts[0], offsets, np.concatenate([part.labels for part in parts]))
    return with_ids(whole, np.concatenate(known) if len(known) == len(parts) else None)


@dataclass(frozen=True, repr=False)
class SetsSummary:
    """What sets are like, where they are too many to keep: how many rows, labels, empty sets, sets of one label.

    `about` is what the sets remember.
    """

    about: AboutSets
    rows: int
    labels: int
    empty: int
    single: int
    largest: int

    @classmethod
    def of(cls, sets: PredictionSets, before: SetsSummary | None = None) -> SetsSummary:
        """The summary of sets available, and of those before them."""
        sizes = sets.sizes
        empty, single = (int(np.sum(sizes == size)) for size in (0, 1))
        own = cls(about_of(sets), len(sets), len(sets.labels), empty, single, int(sizes.max(initial=0)))
        return own if before is None else before + own

    def __add__(self, other: SetsSummary) -> SetsSummary:
        added = {name: getattr(self, name) + getattr(other, name) for name in ("rows", "labels", "empty", "single")}
        return replace(self, largest=max(self.largest, other.largest), **added)

    @property
    def mean_size(self) -> float | None:
        """The mean number of labels per set; None without any."""
        return self.labels / self.rows if self.rows else None

    def to_dict(self) -> dict[str, Any]:
        """What the sets are like, and what they remember, ready for JSON."""
        sets, n = self.about, self.rows
        names = ("score", "n_calibration", "filled", "smoothed", "tied", "guarantee", "confidence")
        return {
            "rows": n,
            "n_classes": sets.n_classes,
            "coverage": float(sets.coverage),
            **{name: getattr(sets, name) for name in names},
            "mean_size": self.mean_size,
            "empty_share": self.empty / n if n else None,
            "singleton_share": self.single / n if n else None,
            "largest": self.largest if n else None,
        }

    def __repr__(self) -> str:
        about = self.about
        asked = f"coverage {float(about.coverage):g}"
        if about.guarantee == "risk":
            asked = f"expected loss at most {float(1 - about.coverage):g} of the largest"
        elif about.guarantee in ("recall", "precision"):
            asked = f"{about.guarantee} {float(about.coverage):g}"
        elif about.guarantee == "selective":
            asked = f"at most {float(1 - about.coverage):g} of answers wrong, empty sets are not answers"
        head = f"{rows_text(self.rows)} of {about.n_classes:,} classes, {asked}"
        if self.mean_size is None:
            return head
        return (
            f"{head}; mean size {self.mean_size:.2f}, {self.empty:,} empty, {self.single:,} of one label, "
            f"largest {self.largest:,}"
        )
