"""Scores ranked over several networks, coverages and temperatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError
from evicp.evaluation.compare import compare
from evicp.evaluation.tuning import Tuned
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Margin, Score, TopK
from evicp.tables import html_table, markdown_table, text_table
from evicp.types import F64, I64

SCORES: tuple[Score, ...] = (ECP(), ECP(stabilizer=1e-8), LAC(), RAPS(), SAPS(), APS(), Margin(), TopK())
COVERAGES = (0.9, 0.95, 0.99)
Mode = Literal["T = 1", "T fitted", "T by SAT"]
MODES: tuple[Mode, ...] = ("T = 1", "T fitted", "T by SAT")
#: What "T by SAT" chooses from.
TEMPERATURES = (0.5, 0.65, 0.8, 1.0, 1.25, 1.5, 2.0)
#: The metrics that are ranked, and whether less is better.
METRICS: Mapping[str, bool] = MappingProxyType({"mean_size": True, "sscv": True, "sat": False})
_TITLES = MappingProxyType({"mean_size": "size", "sscv": "SSCV", "sat": "SAT"})


def _means(values: F64) -> F64:
    """Means over the trials in which a metric is defined, NaN where it is defined in none."""
    defined = np.isfinite(values)
    total = np.where(defined, values, 0.0).sum(-1)
    return np.divide(total, defined.sum(-1), out=np.full(total.shape, np.nan), where=defined.any(-1))


def _ranks(means: F64, metric: str) -> I64:
    """Ranks from 1 along the last axis; equal means share one, an undefined one comes last."""
    order = np.where(np.isnan(means), np.inf, means if METRICS[metric] else -means)
    return 1 + (order[..., :, None] > order[..., None, :]).sum(-1)


@dataclass(frozen=True, eq=False)
class Cell:
    """All scores for one network, coverage and temperature.

    Attributes
    ----------
    network : its name
    coverage : asked of all scores
    mode : how the temperature was selected
    values : of each metric, and of "sscv_count", the figure of each score in each trial, (scores, trials)
    """

    network: str
    coverage: float
    mode: Mode
    values: Mapping[str, F64]

    def means(self, metric: str) -> F64:
        """The mean over trials of each score."""
        return _means(self.values[metric])

    def ranks(self, metric: str) -> I64:
        """The rank of each score by its mean, from 1."""
        return _ranks(self.means(metric), metric)

    def intervals(self, metric: str, resamples: int = 1000) -> NDArray[np.int64]:
        """A 95 % interval of each score's rank over bootstrap samples of the trials, (scores, 2)."""
        values = self.values[metric]
        draws = np.random.default_rng(0).integers(0, values.shape[1], (resamples, values.shape[1]))
        ranks = _ranks(_means(values[:, draws]).T, metric)
        return np.quantile(ranks, (0.025, 0.975), axis=0, method="nearest").T.astype(np.int64)

    def lead(self, scores: Sequence[Score]) -> tuple[int, int | None, float, float]:
        """The first by SAT, the best score of another family, the mean difference in SAT and its standard error."""
        order = np.argsort(self.ranks("sat"), kind="stable").tolist()
        other = next((place for place in order if scores[place].name != scores[order[0]].name), None)
        if other is None:
            return order[0], None, np.nan, np.nan
        difference = self.values["sat"][order[0]] - self.values["sat"][other]
        difference = difference[np.isfinite(difference)]
        if len(difference) < 2:
            return order[0], other, np.nan, np.nan
        return order[0], other, float(difference.mean()), float(difference.std(ddof=1) / len(difference) ** 0.5)


@dataclass(frozen=True)
class Table:
    """A titled table."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Leaderboard:
    """Scores ranked in each cell of networks x coverages x temperatures.

    Attributes
    ----------
    networks : the rows and classes of each, by its name
    scores : those compared
    cells : one for each network, coverage and temperature
    trials : random splits of each cell
    """

    networks: Mapping[str, tuple[int, int]]
    scores: tuple[Score, ...]
    cells: tuple[Cell, ...]
    trials: int

    @property
    def names(self) -> list[str]:
        """The scores as text."""
        return [score.describe() for score in self.scores]

    @property
    def about(self) -> str:
        """A description of the tables."""
        return (
            f"Figures are means over {self.trials} random splits. In each cell all scores are calibrated and tested on "
            "the same splits. A temperature that is fitted (by likelihood) or selected (by SAT) comes from a tenth of "
            "the rows, which are neither calibration nor test rows. SSCV is the largest distance of a size range's "
            "coverage from the target. The count after it is the mean number of test rows in the range that decides "
            "it; if it is small, SSCV and SAT are mostly chance. SAT is (1 - SSCV) / mean size of non-empty sets. "
            "Ranks have 95 % bootstrap intervals over the splits."
        )

    def overall(self) -> Table:
        """Times first, mean rank, and mean distance of SAT from the best, of each score over all cells."""
        sat = np.array([cell.means("sat") for cell in self.cells])
        best = np.max(np.nan_to_num(sat), axis=1, keepdims=True)
        behind = np.mean(1 - np.nan_to_num(sat) / np.where(best > 0, best, 1.0), axis=0)
        rows = []
        for place, name in enumerate(self.names):
            ranks = {metric: np.array([cell.ranks(metric)[place] for cell in self.cells]) for metric in METRICS}
            figures = (f"{np.sum(of_metric == 1)}, {of_metric.mean():.1f}" for of_metric in ranks.values())
            rows.append((name, *figures, f"{behind[place]:.1%}"))
        title = f"Times first, mean rank: {len(self.cells)} cells (networks x coverages x temperatures)"
        return Table(title, ("score", *_TITLES.values(), "SAT behind the best"), tuple(rows))

    def winners(self) -> Table:
        """The largest SAT in each cell, and its lead."""
        rows = []
        for cell in self.cells:
            first, other, lead, error = cell.lead(self.scores)
            second = "-" if other is None else self.names[other]
            by = "-" if np.isnan(lead) else f"{lead:.3f} ({error:.3f})"
            sat = f"{cell.means('sat')[first]:.3f}"
            rows.append((cell.network, f"{cell.coverage:g}", cell.mode, self.names[first], sat, second, by))
        head = ("network", "coverage", "temperature", "first", "SAT", "best other score", "lead (standard error)")
        return Table("The largest SAT and its lead", head, tuple(rows))

    def details(self, coverage: float, mode: Mode) -> Table:
        """Size, SSCV, SAT and the rank by SAT of all scores on all networks, at one coverage and temperature."""
        cells = [cell for cell in self.cells if cell.coverage == coverage and cell.mode == mode]
        columns = [list(_details_of(cell)) for cell in cells]
        rows = tuple((name, *(column[place] for column in columns)) for place, name in enumerate(self.names))
        title = f"Coverage {coverage:g}, {mode}: size / SSCV (rows) / SAT; rank by SAT [95 % interval]"
        return Table(title, ("score", *(cell.network for cell in cells)), rows)

    def tables(self) -> list[Table]:
        """All tables: overall, the winners, and the figures of each coverage and temperature."""
        keys = dict.fromkeys((cell.coverage, cell.mode) for cell in self.cells)
        return [self.overall(), self.winners(), *(self.details(coverage, mode) for coverage, mode in keys)]

    def __repr__(self) -> str:
        return "\n\n".join(f"{t.title}\n\n{text_table(t.head, t.rows)}" for t in self.tables()) + f"\n\n{self.about}"

    def to_markdown(self) -> str:
        """The page as Markdown."""
        tables = "\n\n".join(f"## {t.title}\n\n{markdown_table(t.head, t.rows)}" for t in self.tables())
        networks = "\n".join(f"- {text}" for text in self._networks())
        return f"# Leaderboard\n\nMade by `evicp leaderboard`, of\n\n{networks}\n\n{self.about}\n\n{tables}"

    def to_html(self) -> str:
        """The page as HTML that needs nothing else."""
        tables = "".join(f"<h2>{escape(t.title)}</h2><div>{html_table(t.head, t.rows)}</div>" for t in self.tables())
        return (
            "<!doctype html><html lang=en><meta charset=utf-8><title>Leaderboard</title>"
            "<meta name=viewport content='width=device-width, initial-scale=1'><style>:root{color-scheme:light dark}"
            "body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}"
            "h2{font-size:1.1rem}div{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}td,th{white-space:nowrap}</style>"
            f"<h1>Leaderboard</h1><p>{escape('; '.join(self._networks()))}.</p>"
            f"<p>{escape(self.about)}</p>{tables}</html>\n"
        )

    def _networks(self) -> list[str]:
        return [f"{name}: {n:,} rows of {n_classes:,} classes" for name, (n, n_classes) in self.networks.items()]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; None where a figure is undefined."""
        return {
            "trials": self.trials,
            "networks": {name: {"rows": n, "classes": k} for name, (n, k) in self.networks.items()},
            "scores": self.names,
            "cells": [self._cell(cell) for cell in self.cells],
        }

    def _cell(self, cell: Cell) -> dict[str, Any]:
        first, other, lead, error = cell.lead(self.scores)
        figures: dict[str, dict[str, Any]] = {name: {} for name in self.names}
        for metric in METRICS:
            columns = zip(cell.means(metric), cell.ranks(metric), cell.intervals(metric), strict=True)
            for of_score, (mean, rank, interval) in zip(figures.values(), columns, strict=True):
                of_score[metric] = {"mean": _plain(mean), "rank": int(rank), "interval": interval.tolist()}
        for of_score, count in zip(figures.values(), cell.means("sscv_count"), strict=True):
            of_score["sscv_count"] = _plain(count)
        return {
            "network": cell.network,
            "coverage": cell.coverage,
            "temperature": cell.mode,
            "first": self.names[first],
            "best_other": None if other is None else self.names[other],
            "lead": _plain(lead),
            "standard_error": _plain(error),
            "scores": figures,
        }

    def lines(self) -> list[list[Any]]:
        """One line for each score in each cell, with a head, for CSV."""
        head = ["network", "coverage", "temperature", "score", *METRICS, "sscv_count", "rank", "rank_low", "rank_high"]
        lines: list[list[Any]] = [head]
        for cell in self.cells:
            figures = zip(*(cell.means(metric) for metric in (*METRICS, "sscv_count")), strict=True)
            ranks = zip(cell.ranks("sat"), cell.intervals("sat"), strict=True)
            for name, means, (rank, interval) in zip(self.names, figures, ranks, strict=True):
                place = [cell.network, cell.coverage, cell.mode, name]
                lines.append([*place, *map(_plain, means), int(rank), *interval.tolist()])
        return lines


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _details_of(cell: Cell) -> Iterator[str]:
    """The cell of the table of details of each score."""
    figures = zip(*(cell.means(metric) for metric in ("mean_size", "sscv", "sscv_count", "sat")), strict=True)
    ranks = zip(cell.ranks("sat"), cell.intervals("sat"), strict=True)
    for (size, sscv, count, sat), (rank, (low, high)) in zip(figures, ranks, strict=True):
        yield f"{size:.2f} / {sscv:.3f} ({count:.0f}) / {sat:.3f}; {rank} [{low}, {high}]"


def leaderboard(
    networks: Mapping[str, tuple[Any, Any]],
    scores: Sequence[Score] = SCORES,
    coverages: Sequence[float] = COVERAGES,
    *,
    trials: int = 50,
    seed: int = 0,
    calibration: float | int = 0.3,
    advance: Callable[[], None] = lambda: None,
) -> Leaderboard:
    """Scores ranked over networks, coverages and temperatures.

    Parameters
    ----------
    networks : logits and labels of each, by its name
    scores : those to compare
    coverages : asked of all scores
    trials, seed : the number of random splits and their seed
    calibration : calibration rows of each trial, a share or a count
    advance : called after each cell

    Raises
    ------
    InputError : fewer than two trials, from which no interval follows
    """
    if trials < 2:
        raise InputError(f"trials must be 2 or more, for intervals of ranks; got {trials}.")
    how = {"trials": trials, "seed": seed, "calibration": calibration}
    cells = []
    for (name, rows), coverage, mode in product(networks.items(), coverages, MODES):
        cells.append(_cell(name, rows, scores, coverage, mode, how))
        advance()
    sizes = {name: np.shape(logits) for name, (logits, _) in networks.items()}
    return Leaderboard(sizes, tuple(scores), tuple(cells), trials)


def _cell(
    name: str, rows: tuple[Any, Any], scores: Sequence[Score], coverage: float, mode: Mode, how: Mapping[str, Any]
) -> Cell:
    methods: list[Any] = list(scores)
    if mode == "T by SAT":
        methods = [Tuned(score, by="sat", temperature=TEMPERATURES) for score in scores]
    comparison = compare(*rows, methods, coverage, temperature="split" if mode == "T fitted" else 1.0, **how)
    values = {
        metric: np.array([comparison.values(row, metric) for row in comparison.evaluations])
        for metric in (*METRICS, "sscv_count")
    }
    return Cell(name, float(coverage), mode, values)
