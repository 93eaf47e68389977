"""Whatever stands in the text of a score, it is a score or one sentence says why not."""

from __future__ import annotations

import numpy as np
import pytest

import evicp
from evicp.errors import EvicpError, ScoreError
from evicp.method.scores import SCORES, as_score

pytestmark = pytest.mark.reliability

VALUES = (
    *("[]", "{}", "[1]", "[[1]]", "null", "nan", "NaN", "Infinity", "-Infinity", "1e999", "-1", "0", "1e308", "0.5"),
    *("10" * 20, "9" * 5000, "true", "True", "None", "'x'", '"\\ud800"', '{"a":1}', "[" * 900, "-0.0", "\u0663", '""'),
)


@pytest.mark.parametrize("evidence", ["[]", "{}", "[1]", '{"a":1}'])
def test_evidence_that_is_no_name(evidence: str) -> None:
    with pytest.raises(ScoreError, match="evidence must be one of relu, softplus, exp or a callable; got"):
        as_score(f"ecp(evidence={evidence})")
    with pytest.raises(ScoreError, match="evidence must be one of relu, softplus, exp or a callable; got"):
        evicp.ECP(evidence=[evidence])  # type: ignore[arg-type]


def test_every_parameter_with_every_value() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(6, 3)), np.arange(6) % 3
    tried = 0
    for name, kind in SCORES.items():
        for parameter in kind().parameters():
            for value in VALUES:
                tried += 1
                try:
                    score = as_score(f"{name}({parameter}={value})", conformal=False)
                    score.describe()
                    if name != "base":
                        with evicp.kernels.backend("numpy"), np.errstate(all="ignore"):
                            evicp.calibrate(logits, labels, score)
                except EvicpError:
                    continue
    assert tried > 300
