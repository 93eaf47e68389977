"""Does the ranking of the methods survive an honest protocol?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evicp.paper.tables import Line, PaperTable


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

    @property
    def survives(self) -> bool:
        """Whether the clean protocol orders the methods as the released one does."""
        return self.released == self.clean

    def __str__(self) -> str:
        verdict = "survives" if self.survives else "does not survive"
        better = "smaller" if self.metric == "size" else "higher"
        error = "" if self.standard_error is None else f" (standard error {self.standard_error:.4f})"
        return (
            f"Table {self.table}, {self.network}, {self.metric}, best first: as released {', '.join(self.released)}; "
            f"clean {', '.join(self.clean)}. The ranking {verdict}. Clean, ECP less {self.rival}: "
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
    by_method = {line.method: np.array(line.measured["clean"].values) for line in lines}
    rival = next(method for method in clean if method != "ECP")
    difference = by_method["ECP"] - by_method[rival]
    difference = difference[np.isfinite(difference)]
    return Ranking(
        table.settings.number,
        network,
        metric,
        order(lambda line: line.published or 0.0) if None not in published else None,
        order(lambda line: line.measured["as released"].median),
        clean,
        rival,
        float(difference.mean()),
        float(difference.std(ddof=1) / len(difference) ** 0.5) if len(difference) > 1 else None,
        int(np.sum(sign * difference < 0)),
        len(difference),
    )
