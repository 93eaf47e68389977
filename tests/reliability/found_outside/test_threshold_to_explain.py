"""A threshold is one of a score: `explain` takes none without the score it belongs to."""

from __future__ import annotations

import numpy as np
import pytest

import evicp
from evicp.errors import InputError

pytestmark = pytest.mark.reliability

rng = np.random.default_rng(0)
LABELS = rng.integers(0, 5, 300)
LOGITS = rng.normal(size=(300, 5)) + 2.5 * np.eye(5)[LABELS]


@pytest.mark.parametrize("score", ["lac", "aps", "topk", "ecp"])
def test_a_threshold_alone_is_refused(score: str) -> None:
    calibration = evicp.calibrate(LOGITS, LABELS, score)
    for threshold in (calibration.threshold(0.9), np.full(5, calibration.threshold(0.9))):
        with pytest.raises(
            InputError, match=r"pass that score too: explain\(logits_row, calibration\.score, threshold"
        ):
            evicp.explain(LOGITS[0], threshold=threshold)
    found = evicp.explain(LOGITS[0], calibration.score, threshold=calibration.threshold(0.9))
    inside = sorted(calibration.predict(LOGITS[:1], 0.9)[0].tolist())
    assert np.flatnonzero(found.in_set).tolist() == inside
    assert np.flatnonzero(calibration.explain(LOGITS[0]).in_set).tolist() == inside
