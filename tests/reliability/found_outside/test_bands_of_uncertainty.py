"""Fewer bands of uncertainty than were asked for are remarked upon, with the reason."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import evicp
from evicp.errors import SuspiciousInputWarning

pytestmark = pytest.mark.reliability

K, N = 5, 600
rng = np.random.default_rng(0)
LABELS = rng.integers(0, K, N)
LOGITS = rng.normal(size=(N, K)) + 2.5 * np.eye(K)[LABELS]


@pytest.mark.parametrize("kind", ["shifted", "log-probabilities"])
def test_logits_without_evidence_give_one_band_and_a_warning(kind: str) -> None:
    logits = LOGITS - 50.0 if kind == "shifted" else LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
    message = (
        r"1 band\(s\) of uncertainty instead of 5: .*60 rows .*100% have u = 1, no evidence at all .*Pass raw logits"
    )
    with pytest.warns(SuspiciousInputWarning, match=message):
        calibration = evicp.calibrate(logits, LABELS, "lac", by="uncertainty")
    assert calibration.groups is not None
    assert calibration.groups.names == ("any u",)


def test_rows_of_few_values_are_told_so() -> None:
    some = np.where(np.arange(N)[:, None] % 2 == 0, [4.0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0])
    with pytest.warns(
        SuspiciousInputWarning, match=r"2 band\(s\) of uncertainty instead of 5: .*distinct values of u\."
    ):
        calibration = evicp.calibrate(some, LABELS, "lac", by="uncertainty")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # fitted, it is not said again
        calibration.extended(some, LABELS)
        evicp.calibrate(LOGITS, LABELS, "lac", by="uncertainty")
        evicp.calibrate(LOGITS - 50.0, LABELS, "lac", by=evicp.ByUncertainty(bands=1))
        evicp.calibrate(LOGITS - 50.0, LABELS, evicp.ECP(evidence="softplus"))
