"""Coverage in every one of several groups that overlap: 2,000 draws in the long run, and fewer otherwise.

Coverage given the calibration rows is known: scores are uniform, moved up in two of the groups.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from evicp.calibration.laws.quantile_fit import QuantileFit
from evicp.calibration.ranks import rank_of
from lengths import usually

pytestmark = pytest.mark.reliability

#: All eight memberships in three groups, their probabilities, and by how much the scores of their rows are moved.
KINDS = np.array(np.meshgrid([0, 1], [0, 1], [0, 1])).reshape(3, -1).T.astype(float)
SHARES = np.prod(np.where(KINDS == 1, [0.5, 0.3, 0.6], [0.5, 0.7, 0.4]), axis=1)
MOVED = KINDS @ [0.4, 0.3, 0.0]
FEATURES = np.column_stack([np.ones(8), KINDS])


def fitted(scores: np.ndarray, kinds: np.ndarray, coverage: Fraction) -> np.ndarray:
    fit = QuantileFit(FEATURES[kinds], scores, coverage)
    return np.array([fit.threshold(row) for row in FEATURES])


def coverage_in_groups(
    thresholds: Callable[[np.ndarray, np.ndarray, Fraction], np.ndarray],
    coverage: Fraction,
    repeats: int,
    n: int = 100,
    digits: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean coverage over all rows and in each group, (4,), with standard errors."""
    rng, found = np.random.default_rng(n), []
    for _ in range(repeats):
        kinds = rng.choice(8, n, p=SHARES)
        scores = rng.random(n) + MOVED[kinds]
        scores = scores if digits is None else np.round(scores, digits)
        order = np.argsort(scores)
        limits = thresholds(scores[order], kinds[order], coverage)
        if digits is not None:  # a score is rounded to the threshold if it is below half a step more
            limits = np.floor(limits * 10**digits + 1e-6) / 10**digits + 0.5 / 10**digits
        covered = np.clip(limits - MOVED, 0, 1)
        found.append((SHARES * covered) @ FEATURES / (SHARES @ FEATURES))
    return np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(repeats)


@pytest.mark.parametrize(
    ("coverage", "digits"),
    usually(
        [(Fraction(9, 10), None), (Fraction(4, 5), None), (Fraction(877, 1000), None), (Fraction(9, 10), 1)],
        lambda coverage, digits: coverage == Fraction(9, 10),
    ),
)
def test_every_group_is_covered(coverage, digits, long_run, figure):
    repeats = 2000 if long_run else 100
    mean, error = coverage_in_groups(fitted, coverage, repeats, digits=digits)
    figure(
        "smallest distance to the coverage in standard errors",
        round(float(((mean - float(coverage)) / error).min()), 2),
    )
    assert (mean >= float(coverage) - 4 * error).all()
    if digits is None:  # four rows at most are fitted exactly, of the rows of a group
        assert (mean <= float(coverage) + 5 / (100 * SHARES @ FEATURES) + 4 * error).all()


def test_control_one_threshold_for_all_leaves_groups_out():
    def marginal(scores: np.ndarray, kinds: np.ndarray, coverage: Fraction) -> np.ndarray:
        return np.full(8, scores[rank_of(len(scores), coverage) - 1])

    mean, error = coverage_in_groups(marginal, Fraction(9, 10), 200)
    assert mean[0] >= 0.9 - 4 * error[0]
    assert mean[2] < 0.9 - 4 * error[2]


@pytest.mark.parametrize("held", [0.0, -0.9])
def test_control_a_fit_without_the_new_row_covers_less(held, monkeypatch):
    """Plain quantile regression, and one that leans the wrong way."""

    def without(self: QuantileFit, row: np.ndarray) -> float:
        self._held = held
        return proper(self, row)

    proper = QuantileFit.threshold
    monkeypatch.setattr(QuantileFit, "threshold", without)
    mean, error = coverage_in_groups(fitted, Fraction(9, 10), 150, n=60)
    assert (mean[1:] < 0.9 - 4 * error[1:]).all()
