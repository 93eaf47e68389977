"""A calibration prepared for one coverage: the same answers, and nothing that stays behind in the calibration."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import evicp
from evicp.errors import CoverageError, InputError

K = 5
HOW = {"marginal": {}, "by class": {"by": "class"}, "by group": {"by": np.arange(300) % 3}, "weighted": {"weights": 1}}


def make(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) + 2 * np.eye(K)[labels], labels


def made(how: str) -> tuple[evicp.Calibration, dict[str, np.ndarray]]:
    """A calibration of each kind, and what predictions for its own rows need."""
    options = dict(HOW[how])
    if "weights" in options:
        options["weights"] = 1.0 + np.arange(300) % 2
    given = {"groups": options["by"]} if how == "by group" else {}
    return evicp.calibrate(*make(), "lac", **options), given | {k: v for k, v in options.items() if k == "weights"}


@pytest.mark.parametrize("how", HOW)
def test_it_predicts_what_the_calibration_predicts(how):
    calibration, given = made(how)
    prepared = calibration.at(0.9)
    logits, _ = make()
    assert prepared.predict(logits, **given) == calibration.predict(logits, 0.9, **given)
    filled = prepared.predict(logits, allow_empty=False, **given)
    assert filled == calibration.predict(logits, 0.9, allow_empty=False, **given)
    if how != "weighted":
        np.testing.assert_array_equal(prepared.thresholds, calibration.thresholds(0.9))
        sure = calibration.at(0.8, confidence=0.9)
        assert sure.predict(logits, **given) == calibration.predict(logits, 0.8, confidence=0.9, **given)
        assert (sure.coverage, sure.confidence) == (sure.predict(logits, **given).coverage, 0.9)


@pytest.mark.parametrize("how", HOW)
def test_use_leaves_nothing_in_pickles_and_copies(how):
    """What is computed once is kept, but not as a part of the calibration."""
    calibration, given = made(how)
    logits, labels = make()
    before = pickle.dumps(calibration)
    calibration.predict(logits, 0.9, **given)
    calibration.predict(logits.astype(np.float32), [0.8, 0.9], **given)  # in another precision
    calibration.p_values(logits, labels, **given)
    calibration.certificate(0.7)
    assert pickle.dumps(calibration) == before
    for travelled in (pickle.loads(before), copy.deepcopy(calibration)):
        assert travelled == calibration
        assert travelled.predict(logits, 0.9, **given) == calibration.predict(logits, 0.9, **given)


def test_what_cannot_be_prepared():
    calibration, _ = made("weighted")
    with pytest.raises(InputError, match="Beta law"):
        calibration.at(0.9, confidence=0.9)
    with pytest.raises(CoverageError, match="Did you mean"):
        calibration.at(90)
    with pytest.raises(InputError, match="pass the weights of the new rows"):
        _ = calibration.at(0.9).thresholds
