"""Scores ranked over networks, coverages and temperatures: `python studies/leaderboard.py val.npz test.parquet ...`.

Every score is calibrated and tested on the same random splits. Its temperature is 1, fitted by likelihood, or chosen by
SAT, the latter two on rows of their own. Ranks have 95 % bootstrap intervals over the splits. docs/leaderboard.md shows
the result for the real files at hand; `--page` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from evicp.evaluation.tuning import Tuned
from evicp.io.atomic import write_whole
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Margin, Score, TopK
from evicp.types import F64, I64
from study import Finding, Logits, compared, embedded, read

COVERAGES = (0.9, 0.95, 0.99)
TEMPERATURES = (0.5, 0.65, 0.8, 1.0, 1.25, 1.5, 2.0)
MODES = ("T = 1", "T fitted", "T by SAT")
#: What each metric is called, and whether less is better.
METRICS: Mapping[str, bool] = MappingProxyType({"mean_size": True, "sscv": True, "sat": False})
SCORES: Mapping[str, Score] = MappingProxyType(
    {
        "ECP": ECP(),
        "ECP, scaled": ECP(stabilizer="scaled"),
        "LAC": LAC(),
        "RAPS": RAPS(),
        "SAPS": SAPS(),
        "APS": APS(),
        "margin": Margin(),
        "top-k": TopK(),
    }
)


@dataclass(frozen=True, eq=False)
class Cell:
    """All scores at one network, coverage and temperature: metrics of every trial, (scores, trials) each."""

    network: str
    coverage: float
    mode: str
    values: Mapping[str, F64]

    def means(self, metric: str) -> F64:
        """The mean over trials of each score."""
        return np.nanmean(self.values[metric], axis=1)

    def ranks(self, metric: str) -> I64:
        """The rank of each score by its mean, from 1."""
        return _ranks(self.means(metric), metric)

    def intervals(self, metric: str, resamples: int = 1000) -> NDArray[np.float64]:
        """A 95 % interval of each score's rank, over bootstrap samples of the trials, (scores, 2)."""
        rng, values = np.random.default_rng(0), self.values[metric]
        draws = rng.integers(0, values.shape[1], (resamples, values.shape[1]))
        ranks = np.array([_ranks(np.nanmean(values[:, draw], axis=1), metric) for draw in draws])
        return np.quantile(ranks, (0.025, 0.975), axis=0, method="nearest").T


def _ranks(means: F64, metric: str) -> I64:
    order = means if METRICS[metric] else -means
    return 1 + (order[:, None] > order[None, :]).sum(1)


def cells(networks: Sequence[Logits], trials: int = 50) -> Iterator[Cell]:
    """Every network at every coverage and temperature."""
    for data in networks:
        for coverage in COVERAGES:
            for mode in MODES:
                tuned = [Tuned(score, by="sat", temperature=TEMPERATURES) for score in SCORES.values()]
                scores = tuned if mode == "T by SAT" else list(SCORES.values())
                temperature = "split" if mode == "T fitted" else 1.0
                comparison = compared(data, scores, coverage, trials, temperature=temperature)
                rows = list(comparison.evaluations)
                values = {m: np.array([comparison.values(row, m) for row in rows]) for m in METRICS}
                yield Cell(data.name, coverage, mode, values)


def overall(found: Sequence[Cell]) -> Finding:
    """How often each score is first, its mean rank and how far it is behind the best, over all cells."""
    rows = []
    for place, name in enumerate(SCORES):
        figures = []
        for metric in METRICS:
            ranks = np.array([cell.ranks(metric)[place] for cell in found])
            figures.append(f"{np.sum(ranks == 1)}, {ranks.mean():.1f}")
        best = [cell.means("sat").max() for cell in found]
        behind = np.mean([1 - cell.means("sat")[place] / top for cell, top in zip(found, best, strict=True)])
        rows.append((name, *figures, f"{behind:.1%}"))
    head = ("score", "size", "SSCV", "SAT", "SAT behind the best")
    title = f"Times first, mean rank: {len(found)} cells (networks x coverages x temperatures)"
    return Finding("overall", title, head, tuple(rows))


def winners(found: Sequence[Cell]) -> Finding:
    """Who has the largest SAT where, and by how much."""
    rows = []
    for cell in found:
        means, names = cell.means("sat"), list(SCORES)
        first, *others = np.argsort(-means).tolist()
        second = next(place for place in others if _family(names[place]) != _family(names[first]))
        difference = cell.values["sat"][first] - cell.values["sat"][second]
        difference = difference[np.isfinite(difference)]
        error = difference.std(ddof=1) / len(difference) ** 0.5
        lead = f"{means[first] - means[second]:.3f} ({error:.3f})"
        rows.append(
            (cell.network, f"{cell.coverage:g}", cell.mode, names[first], f"{means[first]:.3f}", names[second], lead)
        )
    head = ("network", "coverage", "temperature", "first", "SAT", "best other score", "lead (standard error)")
    return Finding("winners", "Who has the largest SAT, and by how much", head, tuple(rows))


def _family(name: str) -> str:
    """ECP's two stabilizers are one score here: with 1,000 classes they are the same."""
    return name.split(",", maxsplit=1)[0]


def details(found: Sequence[Cell], coverage: float, mode: str) -> Finding:
    """Size / SSCV / SAT and the rank by SAT of all scores, at one coverage and temperature."""
    chosen = [cell for cell in found if cell.coverage == coverage and cell.mode == mode]
    rows = []
    for place, name in enumerate(SCORES):
        row = [name]
        for cell in chosen:
            size, sscv, sat = (cell.means(metric)[place] for metric in METRICS)
            low, high = cell.intervals("sat")[place]
            rank = f"{cell.ranks('sat')[place]} [{low:g}, {high:g}]"
            row.append(f"{size:.2f} / {sscv:.3f} / {sat:.3f}; {rank}")
        rows.append(tuple(row))
    head = ("score", *(cell.network for cell in chosen))
    title = f"Coverage {coverage:g}, {mode}: size / SSCV / SAT; rank by SAT [95 % interval]"
    return Finding("details", title, head, tuple(rows))


PAGE = """# Leaderboard

Which score does best, on all real logits at hand. `python studies/leaderboard.py FILES --page docs/leaderboard.md`
writes this page; your own files join the same way. Figures are means over {trials} random splits, on which all scores
are calibrated (30 % of the rows) and tested. Temperatures that are fitted, or chosen by SAT, come from rows of their
own. *SSCV* is the largest distance of a size range's coverage from the target, *SAT* is (1 - SSCV) / mean size of
non-empty sets. The files are described in [Findings](findings.md).

{tables}"""


def main(
    logits: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Logits with labels; the embedded sample if none.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Random splits.", min=2)] = 50,
    page: Annotated[Path | None, typer.Option(help="Write this Markdown page instead of printing.")] = None,
) -> None:
    """Rank the scores over networks, coverages and temperatures."""
    networks = [read(path) for path in logits or ()] or [embedded()]
    total = len(networks) * len(COVERAGES) * len(MODES)
    found = list(track(cells(networks, trials), "comparing", total=total, console=Console(stderr=True), transient=True))
    tables = [overall(found), winners(found)]
    tables += [details(found, coverage, mode) for coverage in COVERAGES for mode in MODES]
    if page is not None:
        text = PAGE.format(trials=trials, tables="\n".join(table.to_markdown() for table in tables))
        write_whole(page, text)
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for table in tables:
        console.print(str(table))


if __name__ == "__main__":
    typer.run(main)
