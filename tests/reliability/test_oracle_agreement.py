"""The same sets as other packages give, on real ImageNet logits and with the same random numbers.

Both subtract u p where evicp adds v p, so that u = 1 - v. Three differences are theirs: TorchCP's threshold may be the
next score up (rank k + 1), its SAPS is calibrated with another formula than it predicts with (here the latter), and
MAPIE lets in a label whose probability is within 1e-8 of the last one's.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import evicp
from evicp import APS, LAC, RAPS, SAPS, TopK, conformal_rank
from evicp.datasets import load_imagenet_sample
from evicp.kernels import _numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import peers

pytestmark = pytest.mark.reliability

COVERAGES = (0.8, 0.9, 0.95)
N = 1000


@cache
def problem(long_run: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Calibration logits and labels, and new logits, without ties (which the others break by class number)."""
    sample = load_imagenet_sample()
    logits = np.asarray(sample.logits, np.float64)
    logits = logits + np.random.default_rng(0).uniform(-1e-4, 1e-4, logits.shape)  # stored in half precision, they tie
    return logits[:N], sample.labels[:N].astype(np.int64), logits[N:] if long_run else logits[N : N + 200]


def v_of(logits: np.ndarray) -> np.ndarray:
    return _numpy.row_uniforms(logits, 0)


def compare(ours: np.ndarray, theirs: np.ndarray, figure) -> None:
    differing = int(np.sum(ours != theirs))
    figure("memberships compared", theirs.size)
    figure("differing", differing)
    assert theirs.any(1).mean() > 0.5  # nor are they all empty
    assert differing == 0


# ---------------------------------------------------------------------------------------------------------------
# TorchCP


@pytest.fixture
def torchcp(monkeypatch: pytest.MonkeyPatch):
    """TorchCP's classes by name; its random numbers are ours."""
    torch = pytest.importorskip("torch")
    if find_spec("torchcp") is None:
        pytest.skip("TorchCP is not installed")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    scores, reason = peers.load("torchcp.classification.score")
    if scores is None:
        pytest.skip(f"TorchCP cannot be imported: {reason}")
    predictor, _ = peers.load("torchcp.classification.predictor")

    def with_uniforms(logits: np.ndarray) -> None:
        u = torch.from_numpy(1.0 - v_of(logits))
        monkeypatch.setattr(torch, "rand", lambda *s, **k: u.expand(s[0]) if isinstance(s[0], tuple) else u[:, 0])

    return scores, predictor.SplitPredictor, with_uniforms


@pytest.mark.parametrize("coverage", COVERAGES)
@pytest.mark.parametrize(
    ("ours", "name", "options"),
    [
        (LAC(), "LAC", {}),
        (APS(), "APS", {}),
        (APS(randomized=False), "APS", {"randomized": False}),
        (RAPS(lam=0.1, k_reg=5), "RAPS", {"penalty": 0.1, "kreg": 5}),
        (RAPS(lam=0.02, k_reg=2, randomized=False), "RAPS", {"penalty": 0.02, "kreg": 2, "randomized": False}),
        (SAPS(lam=0.1), "SAPS", {"weight": 0.1}),
        (SAPS(lam=0.3, randomized=False), "SAPS", {"weight": 0.3, "randomized": False}),
    ],
    ids=lambda value: value.describe() if isinstance(value, evicp.Score) else None,
)
@pytest.mark.filterwarnings("ignore")
def test_torchcp(torchcp, ours, name, options, coverage, long_run, figure):
    import torch

    scores, split_predictor, with_uniforms = torchcp
    fitted, labels, new = problem(long_run)
    theirs = getattr(scores, name)(**options)
    predictor = split_predictor(theirs, alpha=1 - coverage)
    with_uniforms(fitted)
    if name == "SAPS":
        everything = theirs(torch.from_numpy(fitted))
        calibrated = everything[torch.arange(N), torch.from_numpy(labels)]
    else:
        predictor.calculate_threshold(torch.from_numpy(fitted), torch.from_numpy(labels))
        calibrated = predictor.cal_scores
    ascending, k = np.sort(calibrated.numpy()), conformal_rank(N, coverage)
    if name != "SAPS":
        figure("thresholds of rank k + 1", int(float(predictor.q_hat) != ascending[k - 1]))
        assert float(predictor.q_hat) in ascending[[k - 1, k]]
    with_uniforms(new)
    sets = predictor.predict_with_logits(torch.from_numpy(new), q_hat=float(ascending[k - 1]))
    own = evicp.calibrate(fitted, labels, ours).predict(new, coverage)
    compare(own.mask(), np.asarray(sets).astype(bool), figure)


# ---------------------------------------------------------------------------------------------------------------
# MAPIE


class OurUniforms(np.random.RandomState):
    """A random state whose numbers are 1 - v of the rows at hand."""

    rows: np.ndarray

    def uniform(self, low=0.0, high=1.0, size=None):
        return (1.0 - v_of(self.rows)).reshape(size)


@pytest.mark.parametrize("coverage", COVERAGES)
@pytest.mark.parametrize(
    ("ours", "name"),
    [(LAC(), "lac"), (APS(), "aps"), (TopK(randomized=False), "top_k")],
    ids=["lac", "aps", "top_k"],
)
@pytest.mark.filterwarnings("ignore")
def test_mapie(ours, name, coverage, long_run, figure):
    classification = pytest.importorskip("mapie.classification")
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Softmax(ClassifierMixin, BaseEstimator):
        """A fitted classifier whose features are logits."""

        def fit(self, X, y):
            self.classes_, self.fitted_ = np.arange(X.shape[1]), True
            return self

        def predict_proba(self, X):
            return np.exp(X - X.max(1, keepdims=True)) / np.exp(X - X.max(1, keepdims=True)).sum(1, keepdims=True)

        def predict(self, X):
            return X.argmax(1)

    fitted, labels, new = problem(long_run)
    numbers = OurUniforms()
    theirs = classification.SplitConformalClassifier(
        Softmax().fit(fitted, labels), coverage, conformity_score=name, prefit=True, random_state=numbers
    )
    numbers.rows = fitted
    theirs.conformalize(fitted, labels)
    numbers.rows = new
    options = {"conformity_score_params": {"include_last_label": "randomized"}} if name == "aps" else {}
    _, sets = theirs.predict_set(new, **options)
    own, sets = evicp.calibrate(fitted, labels, ours).predict(new, coverage).mask(), np.asarray(sets)[:, :, 0]
    p = Softmax().predict_proba(new)
    for row, label in np.argwhere(sets & ~own):
        # Theirs alone: only as near to its neighbour's probability as their tolerance, which lets both in.
        assert np.sort(np.abs(p[row] - p[row, label]))[1] <= 1e-8
        figure("let in by a tolerance of 1e-8", 1)
        own[row, label] = True
    compare(own, sets, figure)
