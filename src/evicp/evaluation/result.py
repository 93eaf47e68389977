"""What an evaluation found: coverage, size and adaptivity, over all rows and by size, difficulty, class and group."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from evicp.errors import need
from evicp.evaluation.strata import SIZE_ENDS, SSCV_ENDS, Ranges, intervals, range_text
from evicp.evaluation.verdicts import verdict_of, verdict_text
from evicp.outer import outer
from evicp.tables import html_table, markdown_table, rows_text, text_table
from evicp.types import F64, I64

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["ClassCoverage", "Evaluation", "GroupCoverage", "Stratum"]


@dataclass(frozen=True)
class Stratum:
    """Rows whose set size (or difficulty) lies in [low, high]: how many, how often covered, how large.

    Attributes
    ----------
    low : where the range begins
    high : where it ends, inclusive
    count : rows in it
    hits : covered rows, whose set contains the true label
    labels : in the sets of all of them
    confidence : of the interval
    """

    low: int
    high: int
    count: int
    hits: int
    labels: int
    confidence: float

    @property
    def label(self) -> str:
        """The range as text, "2-3"."""
        return range_text(self.low, self.high)

    @property
    def coverage(self) -> float | None:
        """The share of the rows whose set contains the true label; None without rows."""
        return self.hits / self.count if self.count else None

    @cached_property
    def coverage_interval(self) -> tuple[float, float] | None:
        """Its exact (Clopper-Pearson) interval; None without rows."""
        # Computed on first use: the intervals of all strata take longer than their counts.
        low, high = intervals(self.hits, self.count, self.confidence)
        return (float(low), float(high)) if self.count else None

    @property
    def mean_size(self) -> float | None:
        """Labels per set; None without rows."""
        return self.labels / self.count if self.count else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        figures = ("low", "high", "count", "coverage", "coverage_interval", "mean_size")
        return {"range": self.label} | {name: getattr(self, name) for name in figures}


@dataclass(frozen=True, eq=False)
class _Shares:
    """Coverage, rows and mean size of each class or group; NaN where there are no rows."""

    coverage: F64
    counts: I64
    mean_size: F64
    target: Fraction

    @property
    def hits(self) -> I64:
        """Covered rows of each."""
        return np.rint(np.nan_to_num(self.coverage) * self.counts).astype(np.int64)

    @property
    def mean_gap(self) -> float:
        """The mean distance from the target over those with rows."""
        return float(np.nanmean(np.abs(self.coverage - float(self.target))))

    @property
    def worst(self) -> float:
        """The lowest coverage."""
        return float(self.coverage[self._least])

    @property
    def _least(self) -> int:
        return int(np.nanargmin(self.coverage))

    def _to_dict(self, **names: Any) -> dict[str, Any]:
        def plain(values: F64) -> list[float | None]:
            return [None if np.isnan(value) else value for value in values.tolist()]

        figures = {"coverage": plain(self.coverage), "counts": self.counts.tolist(), "mean_size": plain(self.mean_size)}
        return {"mean_gap": self.mean_gap, "worst": self.worst, **names, **figures}


@dataclass(frozen=True, eq=False)
class ClassCoverage(_Shares):
    """Coverage of each class, and the mean size of its rows' sets; NaN for a class without rows.

    Attributes
    ----------
    coverage : (K,) the share of each class's rows whose set holds it
    counts : (K,) rows of each class
    mean_size : (K,) labels per set of these rows
    target : the target coverage, exactly
    names : of the classes, if known
    """

    names: tuple[str, ...] | None = None

    @property
    def worst_class(self) -> int:
        """The class with the lowest coverage."""
        return self._least

    def label(self, number: int) -> str:
        """A class as text, with its name if known: "class 32", "32 tailed frog"."""
        return f"class {number}" if self.names is None else f"{number} {self.names[number]}"


@dataclass(frozen=True, eq=False)
class GroupCoverage(_Shares):
    """Coverage and size in each group of rows.

    Attributes
    ----------
    coverage : (G,) the share of each group's rows whose set contains the true label
    counts : (G,) rows of each group
    mean_size : (G,) labels per set of these rows
    target : the target coverage, exactly
    names : of the G groups, sorted
    """

    names: tuple[str, ...]

    @property
    def worst_group(self) -> str:
        """The group with the lowest coverage."""
        return self.names[self._least]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The evaluation of prediction sets with known labels. Prints as a table.

    Attributes
    ----------
    n : the number of rows
    n_classes : K
    target : the target coverage, exactly
    score : the name of the score
    n_calibration : calibration rows; None without a guarantee
    coverage : the share of rows whose set contains the true label
    coverage_interval : its exact (Clopper-Pearson) interval
    mean_size : labels per set
    mean_size_non_empty : labels per non-empty set; None where all are empty
    median_size : of all sets
    size_quantiles : the sizes that 5, 25, 75 and 95 % of the sets do not exceed: {"5%": 1.0, ...}
    empty_share : the share of empty sets
    singleton_share : the share of sets of one label
    singleton_coverage : the share of one-label sets whose label is the true one; None where there are none
    size_strata : rows and coverage by ranges of set size (the paper's Table 3)
    sscv : size-stratified coverage violation: the largest distance of coverage from the target over ranges of set
        size; None where none of them has `min_count` rows
    sscv_count : rows in the range that decides SSCV; with few rows SSCV is mostly chance
    sscv_smallest_count : rows in the smallest of these ranges
    sat : size-adaptivity trade-off, (1 - SSCV) / mean size of non-empty sets; None where either is
    class_coverage : coverage, rows and mean size of each class
    accuracy : top-1 accuracy of the logits; None where neither logits nor difficulty were given
    difficulty_strata : rows, coverage and size by the rank of the true label (the paper's Table 4); None likewise
    confidence : of the intervals
    target_confidence : with which the target coverage holds (training-conditional sets); None on average
    guarantee : the kind of guarantee, as in `PredictionSets`
    group_coverage : coverage, rows and mean size of each group; None where no groups were given
    filled : empty sets were given their top label
    smoothed : ties were broken at random
    tied : other calibration scores equal the threshold, so coverage can be higher
    judged : the verdict of the calibration that made the sets, if available; see `verdict`
    """

    n: int
    n_classes: int
    target: Fraction
    score: str
    n_calibration: int | None
    coverage: float
    coverage_interval: tuple[float, float]
    mean_size: float
    mean_size_non_empty: float | None
    median_size: float
    size_quantiles: dict[str, float]
    empty_share: float
    singleton_share: float
    singleton_coverage: float | None
    size_strata: tuple[Stratum, ...]
    sscv: float | None
    sscv_count: int | None
    sscv_smallest_count: int | None
    sat: float | None
    class_coverage: ClassCoverage
    accuracy: float | None = None
    difficulty_strata: tuple[Stratum, ...] | None = None
    confidence: float = 0.95
    target_confidence: float | None = None
    guarantee: str = "marginal"
    group_coverage: GroupCoverage | None = None
    filled: bool = False
    smoothed: bool = False
    tied: bool = False
    judged: dict[str, Any] | None = None

    @property
    def observed_coverage(self) -> float:
        """The share of rows whose set contains the true label, the same as `coverage`."""
        return self.coverage

    @property
    def target_coverage(self) -> Fraction:
        """The target coverage, exactly: `target`."""
        return self.target

    @property
    def law_is_bound(self) -> bool:
        """Whether the Beta law is a lower bound: for filled sets, and with tied scores."""
        return self.filled or self.tied

    @property
    def verdict(self) -> dict[str, Any] | None:
        """Whether the observed coverage agrees with the guarantee: `kept`, `compatible`, and the interval.

        None without a guarantee (Base), and for sets with groups or weights, which do not contain their guarantee: use
        `calibration.evaluate` for those.
        """
        return self.judged if self.judged is not None else verdict_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the verdict as "promise"."""
        result = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "judged"}
        result["target"] = float(self.target)
        result["coverage_interval"] = list(self.coverage_interval)
        for name in ("size_strata", "difficulty_strata"):
            strata = getattr(self, name)
            result[name] = strata and [stratum.to_dict() for stratum in strata]
        classes, groups = self.class_coverage, self.group_coverage
        result["class_coverage"] = classes._to_dict(worst_class=classes.worst_class)
        result["group_coverage"] = groups and groups._to_dict(worst_group=groups.worst_group, names=list(groups.names))
        result["promise"] = self.verdict
        return result

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with one row and a column for each single figure.

        `pandas.concat` combines several evaluations; the tables by size and class are in `to_dict`.
        """
        pd = need("pandas", "pandas", "pandas", "a data frame")
        tables = {"size_strata", "difficulty_strata", "size_quantiles", "coverage_interval", "promise"}
        tables |= {"class_coverage", "group_coverage"}
        return pd.DataFrame([{name: value for name, value in self.to_dict().items() if name not in tables}])

    def _summary(self) -> list[list[str]]:
        low, high = self.coverage_interval
        classes = self.class_coverage
        worst = f"{classes.label(classes.worst_class)}, {rows_text(int(classes.counts[classes.worst_class]))}"
        right = "" if self.singleton_coverage is None else f" ({self.singleton_coverage:.2%} of these right)"
        rows = [
            ["rows", f"{self.n:,}"],
            ["coverage", f"{self.coverage:.4f}, {self._asked}"],
            [
                f"{100 * self.confidence:g} % interval",
                f"[{low:.4f}, {high:.4f}], a confidence interval from these rows",
            ],
            ["mean size", f"{self.mean_size:.3f}"],
            [
                "median size",
                f"{self.median_size:g} (" + ", ".join(f"{q}: {v:g}" for q, v in self.size_quantiles.items()) + ")",
            ],
            ["empty, one label", f"{self.empty_share:.2%}, {self.singleton_share:.2%}{right}"],
            ["SSCV", self._sscv_text()],
            ["SAT", _figure(self.sat)],
            ["worst class", f"{classes.worst:.3f} ({worst})"],
            ["class gap", f"{classes.mean_gap:.3f}, the mean distance of classes from {float(self.target):g}"],
        ]
        return rows if self.accuracy is None else [*rows, ["top-1 accuracy", f"{self.accuracy:.4f}"]]

    @property
    def _asked(self) -> str:
        """The target coverage, in words; of sets that bound a loss there is none."""
        return "no target: the sets bound a loss" if self.guarantee == "risk" else f"target {float(self.target):g}"

    def _sscv_text(self) -> str:
        """SSCV with what it is taken from: coarser ranges of size than those of the table, of those with rows."""
        if self.sscv is None or self.sscv_smallest_count is None:
            return "-"
        fine, pooled = (Ranges.ending(ends, self.n_classes) for ends in (SIZE_ENDS, SSCV_ENDS))
        rows = pooled.sums(np.array([s.count for s in self.size_strata]), fine)
        hits = pooled.sums(np.array([s.hits for s in self.size_strata]), fine)
        used = np.flatnonzero(rows >= self.sscv_smallest_count)  # smaller ones were left out
        worst = used[np.abs(hits[used] / rows[used] - float(self.target)).argmax()]
        about = f"over {', '.join(pooled.labels[i] for i in used)}; smallest {rows_text(self.sscv_smallest_count)}"
        return f"{self.sscv:.3f} at sizes {pooled.labels[worst]}, {rows_text(int(rows[worst]))} ({about})"

    def _tables(self) -> dict[str, tuple[list[str], list[list[str]]]]:
        """The head and the rows of each table, by its caption."""
        tables = {"All rows": (["metric", "value"], self._summary())}
        strata = {"By the number of labels in the set": ("size", self.size_strata)}
        if self.difficulty_strata is not None:
            strata["By difficulty, the rank of the true label among the logits"] = "difficulty", self.difficulty_strata
        for caption, (by, ranges) in strata.items():
            rows = [[s.label, f"{s.count:,}", _figure(s.coverage), _figure(s.mean_size, 2)] for s in ranges]
            tables[caption] = [by, *_STRATUM], rows
        if self.group_coverage is not None:
            tables["By group, lowest coverage first"] = (
                ["group", *_STRATUM],
                self._group_rows(self.group_coverage),
            )
        return tables

    def _group_rows(self, groups: GroupCoverage, shown: int = 20) -> list[list[str]]:
        """The groups covered least, worst first."""
        rows = [
            [groups.names[i], f"{groups.counts[i]:,}", f"{groups.coverage[i]:.3f}", f"{groups.mean_size[i]:.2f}"]
            for i in np.argsort(groups.coverage, kind="stable")[:shown]
        ]
        rest = len(groups.names) - len(rows)
        return [*rows, [f"and {rest:,} more", "", "", ""]] if rest else rows

    def __repr__(self) -> str:
        tables = (text_table(head, rows) for head, rows in self._tables().values())
        return "\n\n".join([*tables, *(fill(verdict, 100) for verdict in self._verdict())])

    def to_markdown(self) -> str:
        """The evaluation as Markdown tables."""
        tables = (markdown_table(head, rows) for head, rows in self._tables().values())
        return "\n\n".join([*tables, *self._verdict()])

    def _verdict(self) -> list[str]:
        """The verdict in a sentence, if there is one."""
        verdict = self.verdict
        return [] if verdict is None else [verdict_text(verdict)]

    def to_html(self, **about: Any) -> str:
        """The evaluation as a separate page, with figures.

        Parameters
        ----------
        about : title, class_names, model, data_set, author, note, files, date: as for `evicp.report.of_evaluation`
        """
        page: str = outer("report")(self, **about).to_html()
        return page

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw coverage by set size, with exact intervals and the target.

        Parameters
        ----------
        ax : Matplotlib axes to draw on; those of a new figure by default (needs the `plot` extra)
        """
        axes: Axes = outer("plot_evaluation")(self, ax)
        return axes

    def _repr_html_(self) -> str:
        tables = (html_table(head, rows, caption=caption) for caption, (head, rows) in self._tables().items())
        return "".join([*tables, *(f"<p><b>{escape(verdict)}</b></p>" for verdict in self._verdict())])


_STRATUM = ("rows", "coverage", "mean size")


def _figure(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
