"""The paper's Experiments 2 and 3 for all scores: coverage and size by set size and by difficulty."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from evicp.evaluation.compare import Comparison
from evicp.evaluation.result import Evaluation, Stratum
from evicp.method.scores import APS, LAC, RAPS, SAPS
from study import Finding, Logits, compared, published

Strata = Callable[[Evaluation], tuple[Stratum, ...]]


def by_size(networks: Sequence[Logits]) -> Finding:
    """Experiment 2 (Table 3): are rows with larger sets covered as often as others?"""
    head = ("network", "score", "0-1", "2-3", "4-6", "7-10", "11-100", "101-1000")
    rows = [
        (
            data.name,
            name,
            *(_cell(*pooled, size=False) for pooled in _pooled(comparison, name, lambda e: e.size_strata)),
        )
        for data, comparison in _compared(networks)
        for name in comparison.evaluations
    ]
    title = (
        "By set size: coverage (mean count of rows) of 50 splits, coverage 0.9, temperature fitted on rows of its own"
    )
    return Finding("by_size", title, head, tuple(_padded(row, len(head)) for row in rows))


def by_difficulty(networks: Sequence[Logits]) -> Finding:
    """Experiment 3 (Table 4, Figure 3): do sets grow with difficulty, the rank of the true label?"""
    head = ("network", "score", "1", "2-3", "4-6", "7-10", "11-100", "101-1000")
    rows: list[tuple[str, ...]] = []
    for data, comparison in _compared(networks):
        for name in comparison.evaluations:
            pooled = list(_pooled(comparison, name, lambda e: e.difficulty_strata or ()))
            if not rows or rows[-1][0] != data.name:
                rows.append((data.name, "(mean count)", *(f"{count:,.1f}" for count, _, _ in pooled)))
            rows.append((data.name, name, *(_cell(*stratum, size=True) for stratum in pooled)))
    title = "By difficulty: coverage / mean size of 50 splits, coverage 0.9, temperature fitted on rows of its own"
    return Finding("by_difficulty", title, head, tuple(_padded(row, len(head)) for row in rows))


def _compared(networks: Sequence[Logits]) -> list[tuple[Logits, Comparison]]:
    scores = [published(), LAC(), SAPS(), RAPS(), APS()]
    return [(data, compared(data, scores, trials=50, temperature="split")) for data in networks]


def _pooled(comparison: Comparison, name: str, strata_of: Strata) -> list[tuple[float, float, float]]:
    """Of each stratum the mean count of a split, and coverage and mean size over the rows of all splits."""
    pooled = []
    for strata in zip(*map(strata_of, comparison.evaluations[name]), strict=True):
        count = np.array([stratum.count for stratum in strata])
        covered = sum(stratum.count * (stratum.coverage or 0.0) for stratum in strata)
        labels = sum(stratum.count * (stratum.mean_size or 0.0) for stratum in strata)
        rows = max(1, count.sum())
        pooled.append((float(count.mean()), covered / rows, labels / rows))
    return pooled


def _cell(count: float, coverage: float, mean_size: float, *, size: bool) -> str:
    if not count:
        return "-"
    return f"{coverage:.3f} / {mean_size:.2f}" if size else f"{coverage:.3f} ({count:,.1f})"


def _padded(row: tuple[str, ...], width: int) -> tuple[str, ...]:
    """Fewer classes have fewer ranges."""
    return row + ("-",) * (width - len(row))
