"""With a column for labels that a model lacks, known and unseen rows are covered alike: 2,000 draws in the long run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evicp import calibrate, conformal_rank, fit_unseen
from evicp.calibration.laws import groups
from evicp.calibration.ranks import ranks_of

pytestmark = pytest.mark.reliability

K = 3
#: Rows of known and of unseen labels, in the calibration set and among new rows.
LABELS = np.concatenate([np.arange(60) % K, np.full(40, -1)])


def draw(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(len(LABELS), K)) + 2 * np.eye(K + 1)[LABELS][:, :K]


def distances(repeats: int, score: str = "lac", *, alone: bool = False, less: float = 0.0) -> np.ndarray:
    """How far the coverage of known and of unseen rows is from what it must be at 0.8, in standard errors."""
    rng, found = np.random.default_rng(repeats), []
    column = fit_unseen(draw(rng), LABELS)
    column = replace(column, intercept=column.intercept - less)
    truth = column.labels(LABELS)
    is_unseen = truth == K
    for _ in range(repeats):
        rows = slice(0, 60) if alone else slice(None)
        by = None if alone else column.by
        calibration = calibrate(column.logits(draw(rng)[rows]), truth[rows], score, by=by)
        covered = calibration.predict(column.logits(draw(rng)), 0.8).contains(truth)
        found.append([covered[~is_unseen].mean(), covered[is_unseen].mean()])
    expected = np.array([conformal_rank(60, 0.8) / 61, conformal_rank(40, 0.8) / 41])
    return (np.mean(found, axis=0) - expected) / (np.std(found, axis=0) / np.sqrt(repeats))


@pytest.mark.parametrize(("score", "less"), [("lac", 0.0), ("aps", 0.0), ("lac", 3.0)])
def test_known_and_unseen_rows_are_covered_as_asked(score, less, long_run, figure):
    """However well the column tells unseen rows apart."""
    z = distances(2000 if long_run else 250, score, less=less)
    figure("largest abs(z) of known and unseen rows", float(np.abs(z).max()))
    assert (np.abs(z) <= 4).all()


def test_control_a_threshold_from_known_rows_alone_leaves_unseen_ones_out():
    assert distances(150, alone=True, less=3.0)[1] < -4


@pytest.mark.parametrize("shift", [-1, 1])
def test_control_a_rank_off_by_one_is_noticed(shift, monkeypatch):
    monkeypatch.setattr(groups, "ranks_of", lambda counts, coverage, _: ranks_of(counts, coverage) + shift)
    assert (distances(250) * shift > 3).all()
