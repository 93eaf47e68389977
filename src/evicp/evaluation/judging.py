"""How well candidates do on the tuning rows, and by how much one leads another.

A candidate is calibrated and measured on the tuning rows at several coverages around the target, and the figures are
averaged: SSCV jumps when a single row changes its stratum, the average does not. For the same reason a stratum with few
rows has less weight. Only a threshold is fitted to the rows, so measuring on the calibration rows favours all
candidates equally. This is repeated without each tenth of the rows: the average of the eleven results is more stable
than one, and their variation gives the standard error of a lead (the jackknife).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.ranks import rows_needed
from evicp.errors import InputError, LogitsError
from evicp.evaluation.splits import Split, Tested, run_splits
from evicp.evaluation.strata import SSCV_ENDS, Ranges, trade_off, violation
from evicp.input import validate
from evicp.input.classes import labelled
from evicp.method.scores import Score
from evicp.types import F64, I64

Metric = Literal["size", "sscv", "sat"]

#: The coverages a candidate is measured at, as shares of the way from the target coverage to 0 or 1, the nearer.
_AROUND = tuple(Fraction(w, 10) for w in (-2, -1, 0, 1, 2))
_FOLDS = 10

#: A stratum of this many rows counts half.
_STEADY = 5


@dataclass(frozen=True, eq=False)
class Judged:
    """A score's size, SSCV and SAT on the tuning rows, and its merits: on all rows, then without each tenth of them."""

    score: Score
    figures: tuple[float, float, float]
    merits: F64

    @property
    def overall(self) -> float:
        """The average of the merits on all rows and without each tenth; higher is better."""
        return float(self.merits.mean())

    def lead(self, other: Judged) -> tuple[float, float]:
        """By how much a score leads another, and the jackknife's standard error of that."""
        lead = self.merits - other.merits
        # Estimates that leave a tenth out share nine tenths of their rows: the factor undoes how little they scatter.
        error = np.sqrt((_FOLDS - 1) / _FOLDS * np.sum((lead[1:] - lead[1:].mean()) ** 2))
        return float(lead.mean()), float(error)

    def leads_clearly(self, other: Judged, errors: float) -> bool:
        """Whether a score leads another by more than so many standard errors."""
        lead, error = self.lead(other)
        return lead > errors * error

    def lead_text(self, other: Judged) -> str:
        """The lead in words."""
        lead, error = self.lead(other)
        return f"{lead:z.4f} (standard error {error:.4f})"


@dataclass(frozen=True, eq=False)
class TuningRows:
    """Rows to judge scores on, at one coverage and by one metric; `seed` says which tenths are left out in turn."""

    logits: NDArray[Any]
    labels: I64
    coverage: Fraction
    by: Metric
    seed: int

    @classmethod
    def checked(cls, logits: Any, labels: Any, coverage: Any, by: Any, seed: Any) -> TuningRows:
        """Of a user's input."""
        array, truth = labelled(logits, labels)
        exact = validate.as_coverage(coverage)
        validate.as_seed(seed)
        if len(array) < rows_needed(exact):
            raise LogitsError(
                f"tuning at coverage {float(exact):g} needs at least {rows_needed(exact)} rows; got {len(array)}."
            )
        return cls(array, truth, exact, as_metric(by), seed)

    def judge(self, score: Score) -> Judged:
        """Calibrate and measure a score at every coverage, on all rows and without each tenth, scoring them once."""
        n, n_classes = self.logits.shape
        fold = np.random.default_rng([self.seed, n]).permutation(n) % _FOLDS
        # A lone row always stays.
        kept = [np.arange(n), *(np.flatnonzero((fold != j) | (n == 1)) for j in range(_FOLDS))]
        levels = tuple(self.coverage + min(self.coverage, 1 - self.coverage) * step for step in _AROUND)
        splits = [Split(rows, rows, levels) for rows in kept]
        measured = run_splits(score, self.logits, self.labels, splits, warn=False)
        merits = [np.mean([self._merit(tested, n_classes) for tested in of_split]) for of_split in measured]
        return Judged(score, _figures(measured[0][_AROUND.index(0)], n_classes), np.array(merits))

    def _merit(self, tested: Tested, n_classes: int) -> float:
        """One figure of a score, higher is better, steadied."""
        size, sscv, sat = _figures(tested, n_classes, _STEADY)
        return {"size": -size, "sscv": -sscv, "sat": sat}[self.by]


def _figures(tested: Tested, n_classes: int, steady: int = 0) -> tuple[float, float, float]:
    """Mean size, SSCV and SAT, as `evaluate` has them if `steady` is 0; SAT is 0 where every set is empty."""
    of_row = Ranges.ending(SSCV_ENDS, n_classes).find(tested.sizes)
    rows, hits = np.bincount(of_row), np.bincount(of_row, weights=tested.covered)
    sscv = float(violation(rows, hits, float(tested.coverage), steady=steady).sscv)
    non_empty = tested.sizes[tested.sizes > 0]
    sat = trade_off(sscv, float(non_empty.mean())) if non_empty.size else 0.0
    return float(tested.sizes.mean()), sscv, sat


def as_metric(by: Any) -> Metric:
    """The name of a metric to tune by."""
    if by not in ("size", "sscv", "sat"):
        raise InputError(f'by must be "size", "sscv" or "sat"; got {by!r}.')
    return by
