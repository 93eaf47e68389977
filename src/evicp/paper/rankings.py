"""Rankings of the methods under the released and the clean protocol.

Two methods are within the noise of the trials if the mean difference of their figures is at most one standard error
over the trials, under either protocol. If they swap, the ranking still counts as unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from evicp.paper.tables import Line, PaperTable
from evicp.paper.trials import PROTOCOLS
from evicp.types import F64


@dataclass(frozen=True)
class Ranking:
    """The methods of one table on one network, best first, as published and as measured; ECP against its best rival."""

    table: int
    network: str
    metric: str
    published: tuple[str, ...] | None
    released: tuple[str, ...]
    clean: tuple[str, ...]
    rival: str
    lead: float
    standard_error: float | None
    wins: int
    trials: int
    within_noise: frozenset[frozenset[str]] = frozenset()

    @property
    def swaps(self) -> tuple[tuple[str, str], ...]:
        """Pairs of methods, the better one as released first, that change places under the clean protocol."""
        return tuple((a, b) for a, b in combinations(self.released, 2) if self.clean.index(a) > self.clean.index(b))

    @property
    def survives(self) -> bool:
        """Whether the clean protocol orders the methods as the released one does, but for swaps within the noise."""
        return all(frozenset(pair) in self.within_noise for pair in self.swaps)

    def __str__(self) -> str:
        verdict = "survives" if self.survives else "does not survive"
        if self.survives and self.swaps:
            swaps = ", ".join(f"{a} and {b}" for a, b in self.swaps)
            verdict += f": {swaps} swap, but differ by one standard error or less"
        published = f"published {', '.join(self.published)}; " if self.published else ""
        order = f"{published}as released {', '.join(self.released)}; clean {', '.join(self.clean)}"
        better = "smaller" if self.metric == "size" else "higher"
        error = "" if self.standard_error is None else f" (standard error {self.standard_error:.4f})"
        return (
            f"Table {self.table}, {self.network}, {self.metric}, best first: {order}. "
            f"The ranking {verdict}. Clean, ECP less {self.rival}: "
            f"{self.lead:+.4f}{error}, {better} in {self.wins} of {self.trials} trials."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "table": self.table,
            "network": self.network,
            "metric": self.metric,
            "published": self.published and list(self.published),
            "as released": list(self.released),
            "clean": list(self.clean),
            "swaps": [
                {"methods": list(pair), "within_noise": frozenset(pair) in self.within_noise} for pair in self.swaps
            ],
            "survives": self.survives,
            "rival": self.rival,
            "ecp_less_rival": self.lead,
            "standard_error": self.standard_error,
            "wins": self.wins,
            "trials": self.trials,
        }


def rankings(tables: Sequence[PaperTable]) -> tuple[Ranking, ...]:
    """One ranking for each table with a network that was measured: by size, or by SAT where the table has it."""
    result = []
    for table in tables:
        if table.settings.by == "network":
            metric = table.settings.metrics[-1]
            measured = dict.fromkeys(line.network for line in table.lines if line.measured)
            result += [_ranking(table, network, metric) for network in measured]
    return tuple(result)


def _ranking(table: PaperTable, network: str, metric: str) -> Ranking:
    lines = [line for line in table.lines if line.network == network and line.metric == metric]
    sign = 1.0 if metric == "size" else -1.0  # smaller is better

    def order(key: Callable[[Line], float]) -> tuple[str, ...]:
        return tuple(line.method for line in sorted(lines, key=lambda line: sign * key(line)))

    published = [line.published for line in lines]
    clean = order(lambda line: line.measured["clean"].median)
    values = {p: {line.method: np.array(line.measured[p].values) for line in lines} for p in PROTOCOLS}
    rival = next(method for method in clean if method != "ECP")
    difference = _difference(values["clean"], "ECP", rival)
    pairs = combinations(clean, 2)
    within_noise = frozenset(frozenset(pair) for pair in pairs if any(_is_noise(values[p], pair) for p in PROTOCOLS))
    return Ranking(
        table.settings.number,
        network,
        metric,
        order(lambda line: line.published or 0.0) if None not in published else None,
        order(lambda line: line.measured["as released"].median),
        clean,
        rival,
        float(difference.mean()),
        _standard_error(difference) if len(difference) > 1 else None,
        int(np.sum(sign * difference < 0)),
        len(difference),
        within_noise,
    )


def _difference(values: Mapping[str, F64], first: str, second: str) -> F64:
    """The first's figure less the second's, of every trial that has both."""
    difference = values[first] - values[second]
    return difference[np.isfinite(difference)]


def _standard_error(values: F64) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def _is_noise(values: Mapping[str, F64], pair: tuple[str, str]) -> bool:
    """Whether two methods differ by at most one standard error; one trial cannot tell."""
    difference = _difference(values, *pair)
    return len(difference) > 1 and bool(abs(difference.mean()) <= _standard_error(difference))
