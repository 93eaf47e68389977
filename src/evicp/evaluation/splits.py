"""One score on many splits of the same rows: the logits are scored once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration import limits
from evicp.calibration.laws.marginal import MARGINAL
from evicp.calibration.suspicious import warn_of
from evicp.errors import InputError
from evicp.evaluation.counts import Tally
from evicp.evaluation.result import Evaluation
from evicp.method.scores import Score
from evicp.types import F64, I64, Bools


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers: what is calibrated on, what is tested, at which coverages.

    `calibrated=False` takes the coverage itself as threshold, as the paper's baseline does.
    """

    calibration: I64
    test: I64
    coverages: tuple[Fraction, ...]
    calibrated: bool = True


@dataclass(frozen=True, eq=False)
class Tested:
    """The sets of a split's test rows at one coverage: their sizes and whether they hold the true label, (m,) each."""

    split: Split
    coverage: Fraction
    tied: bool
    sizes: I64
    covered: Bools

    def evaluation(self, labels: I64, difficulty: I64, n_classes: int, score: str, min_count: int = 1) -> Evaluation:
        """As `evaluate` has it.

        Parameters
        ----------
        labels, difficulty : (n,) of all rows
        n_classes : K
        score : its name
        min_count : strata with fewer rows are left out of SSCV
        """
        test = self.split.test
        if not len(test):
            raise InputError("evaluation needs at least one row; got none.")
        tally = Tally.of(self.sizes, self.covered, labels[test], difficulty[test], None, n_classes)
        n = len(self.split.calibration) if self.split.calibrated else None
        return Evaluation(tally, self.coverage, score, n, min_count, tied=self.tied)


def run_splits(
    score: Score, logits: NDArray[Any], labels: I64, splits: Sequence[Split], *, warn: bool = True
) -> list[tuple[Tested, ...]]:
    """For each split what comes of each of its coverages; `warn` of calibration rows that are too few for a threshold.

    Parameters
    ----------
    logits, labels : (n, K), (n,) the rows that the splits number
    """
    true_scores = kernels.label_scores(score, logits, labels)
    found = [_thresholds(split, true_scores, warn=warn) for split in splits]
    thresholds = np.array([threshold for of_split in found for threshold, _ in of_split])
    sizes = iter(limits.set_sizes(score, logits, thresholds))
    return [
        tuple(
            Tested(split, coverage, tied, next(sizes)[split.test], true_scores[split.test] <= threshold)
            for coverage, (threshold, tied) in zip(split.coverages, of_split, strict=True)
        )
        for split, of_split in zip(splits, found, strict=True)
    ]


def _thresholds(split: Split, true_scores: F64, *, warn: bool) -> list[tuple[float, bool]]:
    """The threshold of each coverage, and whether other calibration scores equal it."""
    if not split.calibrated:
        return [(float(coverage), False) for coverage in split.coverages]
    ascending = np.sort(true_scores[split.calibration])
    found = [MARGINAL.at(ascending, coverage, None) for coverage in split.coverages]
    if warn:
        warn_of(*(caution for own in found for caution in own.cautions))
    return [(own.values.item(), own.tied) for own in found]
