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
from evicp.evaluation.counts import (
    QUANTILES,
    ClassCoverage,
    GroupCoverage,
    Tally,
    group_coverage,
    median,
    quantiles,
    sat_of,
)
from evicp.evaluation.strata import SIZE_ENDS, SSCV_ENDS, Ranges, Stratum, intervals
from evicp.evaluation.verdicts import verdict_of, verdict_text
from evicp.outer import outer
from evicp.tables import html_table, markdown_table, rows_text, text_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["ClassCoverage", "Evaluation", "GroupCoverage", "Stratum"]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The evaluation of prediction sets with known labels. Prints as a table.

    Each figure is computed from the counts when it is first read.

    Attributes
    ----------
    tally : the counts: rows, covered rows and labels in sets by size, class, difficulty and group
    target : the target coverage, exactly
    score : the name of the score
    n_calibration : calibration rows; None without a guarantee
    min_count : size ranges with fewer rows are left out of SSCV
    confidence : of the intervals
    class_names : the names of the classes, if known
    target_confidence : with which the target coverage holds (training-conditional sets); None on average
    guarantee : the kind of guarantee, as in `PredictionSets`
    filled : empty sets were given their top label
    smoothed : ties were broken at random
    tied : other calibration scores equal the threshold, so coverage can be higher
    judged : the verdict of the calibration that made the sets, if available; see `verdict`
    """

    tally: Tally
    target: Fraction
    score: str
    n_calibration: int | None
    min_count: int = 1
    confidence: float = 0.95
    class_names: tuple[str, ...] | None = None
    target_confidence: float | None = None
    guarantee: str = "marginal"
    filled: bool = False
    smoothed: bool = False
    tied: bool = False
    judged: dict[str, Any] | None = None

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.tally.n

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.tally.by_class.rows)

    @cached_property
    def _totals(self) -> tuple[int, int, int, int]:
        """Covered rows, labels in sets, empty sets and sets of one label."""
        sizes = self.tally.by_size
        return int(sizes.hits.sum()), int(sizes.labels.sum()), int(sizes.rows[0]), int(sizes.rows[1])

    @property
    def coverage(self) -> float:
        """The share of rows whose set contains the true label."""
        return self._totals[0] / self.n

    @cached_property
    def coverage_interval(self) -> tuple[float, float]:
        """The exact (Clopper-Pearson) interval of the coverage."""
        low, high = intervals(self._totals[0], self.n, self.confidence)
        return float(low), float(high)

    @property
    def mean_size(self) -> float:
        """Labels per set."""
        return self._totals[1] / self.n

    @property
    def mean_size_non_empty(self) -> float | None:
        """Labels per non-empty set; None where all are empty."""
        _, labels, empty, _ = self._totals
        return labels / (self.n - empty) if self.n > empty else None

    @cached_property
    def median_size(self) -> float:
        """The median size of all sets."""
        return median(self.tally.by_size.rows)

    @cached_property
    def size_quantiles(self) -> dict[str, float]:
        """The sizes that 5, 25, 75 and 95 % of the sets do not exceed: {"5%": 1.0, ...}."""
        return quantiles(self.tally.by_size.rows, QUANTILES)

    @property
    def empty_share(self) -> float:
        """The share of empty sets."""
        return self._totals[2] / self.n

    @property
    def singleton_share(self) -> float:
        """The share of sets of one label."""
        return self._totals[3] / self.n

    @property
    def singleton_coverage(self) -> float | None:
        """The share of one-label sets whose label is the true one; None where there are none."""
        single = self._totals[3]
        return int(self.tally.by_size.hits[1]) / single if single else None

    @cached_property
    def size_strata(self) -> tuple[Stratum, ...]:
        """Rows and coverage by ranges of set size (the paper's Table 3)."""
        return self.tally.by_size.strata(0, SIZE_ENDS, self.confidence)

    @cached_property
    def _violation(self) -> tuple[float | None, int | None, int | None]:
        return self.tally.by_size.sscv(self.target, self.min_count)

    @property
    def sscv(self) -> float | None:
        """Size-stratified coverage violation: the largest distance of coverage from the target over ranges of set size.

        None where none of them has `min_count` rows.
        """
        return self._violation[0]

    @property
    def sscv_count(self) -> int | None:
        """Rows in the range that decides SSCV; with few rows SSCV is mostly chance."""
        return self._violation[1]

    @property
    def sscv_smallest_count(self) -> int | None:
        """Rows in the smallest of these ranges."""
        return self._violation[2]

    @property
    def sat(self) -> float | None:
        """Size-adaptivity trade-off, (1 - SSCV) / mean size of non-empty sets; None where either is."""
        return sat_of(self.sscv, self.mean_size_non_empty)

    @cached_property
    def class_coverage(self) -> ClassCoverage:
        """Coverage, rows and mean size of each class."""
        return self.tally.by_class.class_coverage(self.target, self.class_names)

    @property
    def accuracy(self) -> float | None:
        """Top-1 accuracy of the logits; None where neither logits nor difficulty were given."""
        ranks = self.tally.by_difficulty
        return None if ranks is None else int(ranks.rows[1]) / self.n

    @cached_property
    def difficulty_strata(self) -> tuple[Stratum, ...] | None:
        """Rows, coverage and size by the rank of the true label (the paper's Table 4); None likewise."""
        ranks = self.tally.by_difficulty
        return None if ranks is None else ranks.strata(1, SIZE_ENDS, self.confidence)

    @cached_property
    def group_coverage(self) -> GroupCoverage | None:
        """Coverage, rows and mean size of each group; None where no groups were given."""
        groups = self.tally.by_group
        return None if groups is None else group_coverage(groups, self.target)

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
        result = {name: getattr(self, name) for name in _FIGURES}
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
#: What a dictionary of an evaluation holds, beside the verdict.
_FIGURES = (
    *("n", "n_classes", "target", "score", "n_calibration", "coverage", "coverage_interval"),
    *("mean_size", "mean_size_non_empty", "median_size", "size_quantiles"),
    *("empty_share", "singleton_share", "singleton_coverage", "size_strata"),
    *("sscv", "sscv_count", "sscv_smallest_count", "sat", "class_coverage", "accuracy", "difficulty_strata"),
    *("confidence", "target_confidence", "guarantee", "group_coverage", "filled", "smoothed", "tied"),
)


def _figure(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
