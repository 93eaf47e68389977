"""New rows in a coarser precision than the calibration rows, where logits are large, or far below 0."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import SuspiciousInputWarning
from evicp.kernels.arithmetic import in_precision

K = 6


def _rows(rng: np.random.Generator, n: int, depth: float) -> tuple[Any, Any]:
    """Votes of ten trees as log densities: few different rows, each moved down by another number up to `depth`."""
    shares = rng.dirichlet(np.full(K, 0.5), 8)
    votes = np.stack([rng.multinomial(10, share) for share in shares]) / 10
    kind = rng.integers(0, 8, n)
    labels = (rng.random((n, 1)) > shares[kind].cumsum(1)).sum(1).clip(0, K - 1)
    return (np.log(np.maximum(votes, 1e-3)) - rng.uniform(0, depth, (8, 1)))[kind], labels


@pytest.mark.filterwarnings("ignore:most rows have no positive logit")
@pytest.mark.parametrize("score", ["lac", "ecp", "margin"])
def test_tied_log_densities_keep_their_coverage_in_single_precision(score: str) -> None:
    """One true label has a logit near 0; all rows have largest logits far below it."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits, labels = _rows(rng, 299, 3e5)
        logits[0], labels[0] = np.arange(0.0, -K, -1), 0
        calibration = evicp.calibrate(logits[:99], labels[:99], score)
        exact, coarse = (calibration.predict(logits[99:].astype(kind), 0.8).mask() for kind in ("f8", "f4"))
        assert np.all(coarse | ~exact)


def test_how_large_logits_are_is_a_matter_of_rows_not_of_hopeless_labels() -> None:
    logits = np.log(np.array([[0.9, 0.1, 1e-300], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1]]))
    size = evicp.calibrate(logits, [2, 1, 0], "lac").origin.largest
    assert size == pytest.approx(np.log(2), abs=1e-12)
    assert evicp.calibrate(logits - 1000, [2, 1, 0], "lac").origin.largest == pytest.approx(1000 + np.log(2))
    assert evicp.calibrate(logits + 1000, [0, 1, 0], "lac").origin.largest == pytest.approx(1000 + np.log(0.9))
    parts = [evicp.Calibrator("lac").update(logits[i : i + 1] - 9 * i, [1]) for i in range(3)]
    whole = evicp.calibrate(logits - 9 * np.arange(3)[:, None], [1, 1, 1], "lac")
    assert parts[0].merge(*parts[1:]).finish() == whole


@pytest.mark.filterwarnings("ignore:most rows have no positive logit", "ignore:new logits are bfloat16")
@pytest.mark.parametrize("size", [20.0, 50.0, -50.0])
def test_labels_that_rounding_makes_equal_do_not_cost_ecp_coverage(size: float) -> None:
    """They share the larger rank, which made sets smaller: 0.89 for 0.9 at logits of 50 in bfloat16."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, 60000)
    logits = rng.normal(size=(60000, 10)) * 1.5 + 2.5 * np.eye(10)[labels] + size * rng.uniform(1, 1.2, (60000, 1))
    calibration = evicp.calibrate(logits[:30000], labels[:30000])
    exact = calibration.predict(logits[30000:], 0.9).contains(labels[30000:]).mean()
    import torch

    coarse = torch.tensor(logits[30000:]).bfloat16()
    assert calibration.predict(coarse, 0.9).contains(labels[30000:]).mean() > exact - 0.001


def test_rows_too_coarse_for_their_logits_are_warned_of() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 4, 200)
    logits = rng.normal(size=(200, 4)) - 900
    calibration = evicp.calibrate(logits, labels, "lac")
    for _ in range(2):
        with pytest.warns(SuspiciousInputWarning, match="new logits are float16, the calibration's were float64"):
            calibration.predict(logits.astype(np.float16), 0.8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "top-1 accuracy is 0")  # the labels are drawn at random
        calibration.predict(logits.astype(np.float32), 0.8)
        near = evicp.calibrate(logits + 900, labels, "lac")
        near.predict((logits + 900).astype(np.float16), 0.8)
        same = evicp.calibrate(in_precision(logits, "float16"), labels, "lac")
        same.predict(logits.astype(np.float16), 0.8)
        same.predict(logits, 0.8)
