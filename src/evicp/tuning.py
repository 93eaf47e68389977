"""Tuning a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evicp import checks
from evicp.scores import Score
from evicp.selection import Tuned


@dataclass(frozen=True)
class Tuning:
    best: Score


def tune(logits: Any, labels: Any, score: Any = "raps", *, by: Any = "sat", coverage: float = 0.9, grid: Any = None, seed: int = 0) -> Tuning:
    return Tuning(Tuned(score, by=by, **grid).choose(logits, labels, checks.as_coverage(coverage), seed, None))
