"""Calibration rows whose true label is masked (-inf) are counted and named, and so is what they do to sets."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp import blocks
from evicp.errors import SuspiciousInputWarning

pytestmark = pytest.mark.reliability

K, N = 5, 700


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Every seventh true label is masked."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, N)
    logits = rng.normal(size=(N, K)) + 2.5 * np.eye(K)[labels]
    logits[np.arange(0, N, 7), labels[::7]] = -np.inf
    return logits, labels


COUNTED = r"true label is masked .* in 100 of 700 calibration rows: 0, 7, 14, 21, 28, 35, 42, 49 and 92 more\. .*0\.856"


@pytest.mark.parametrize("score", ["lac", "ecp", "aps", "topk", lambda z: -z])
def test_masked_true_labels_are_counted_once(rows: tuple, score: Any) -> None:
    with pytest.warns(SuspiciousInputWarning, match=COUNTED) as caught:
        calibration = evicp.calibrate(*rows, score)
    assert len(caught) == 1
    for act in (lambda: calibration.predict(rows[0], 0.9), lambda: calibration.threshold(0.9)):
        with pytest.warns(SuspiciousInputWarning, match=r"100 of 700 .*: at coverage 0\.9 every set is full") as caught:
            act()
        assert len(caught) == 1
    assert calibration.predict(rows[0], 0.8).sizes.mean() < K  # below 0.856 nothing is lost


def test_masked_true_labels_in_every_way_to_calibrate(rows: tuple, tmp_path: Path) -> None:
    logits, labels = rows
    np.savez(tmp_path / "rows.npz", logits=logits, labels=labels)

    def in_batches() -> Any:
        calibrator = evicp.Calibrator("lac")
        for part in np.array_split(np.arange(N), 6):
            calibrator.update(logits[part], labels[part])
        return calibrator.finish()

    def merged() -> Any:
        first, second = (evicp.Calibrator("lac").update(logits[p], labels[p]) for p in (slice(0, 300), slice(300, N)))
        return first.merge(second).finish()

    def on_disk() -> Any:
        return blocks.calibrate(blocks.open_rows(tmp_path / "rows.npz", memory="32KiB"), "lac")

    for act in (in_batches, merged, on_disk):
        with pytest.warns(SuspiciousInputWarning, match=COUNTED) as caught:
            act()
        assert len(caught) == 1
    known = evicp.calibrate(logits[1:7], labels[1:7], "lac")
    with pytest.warns(SuspiciousInputWarning, match=r"masked .* in 100 of 700 calibration rows: 0, 7"):
        known.extended(logits, labels)


def test_full_sets_by_group_class_and_weight_say_why(rows: tuple) -> None:
    logits, labels = rows
    groups = np.where(np.arange(N) % 7 == 0, "masked", "fine")
    groups[1:200:2] = "masked"
    message = r"at coverage 0\.9 "
    hows: list[dict[str, Any]] = [{"by": groups}, {"by": "class"}, {"weights": np.full(N, 2.0)}, {}]
    with pytest.warns(SuspiciousInputWarning, match="true label is masked"):
        by_group, by_class, weighted, plain = (evicp.calibrate(logits, labels, "lac", **how) for how in hows)
    with pytest.warns(
        SuspiciousInputWarning, match=f"{message}the threshold of masked is infinite: their sets are full"
    ):
        assert np.all(by_group.predict(logits[:9], 0.9, groups=groups[:9]).sizes[groups[:9] == "masked"] == K)
    with pytest.warns(
        SuspiciousInputWarning, match=f"{message}the threshold of class 0, .*their labels are in every set"
    ):
        by_class.predict(logits, 0.9)
    with pytest.warns(SuspiciousInputWarning, match=f"{message}every set is full"):
        weighted.predict(logits, 0.9, weights=np.full(N, 2.0))
    with pytest.warns(SuspiciousInputWarning, match=f"{message}every set is full"):
        plain.predict(logits, 0.9, smoothed=True)


def test_masks_that_spare_true_labels_are_no_cause_for_a_warning(rows: tuple) -> None:
    logits, labels = rows
    logits[np.arange(0, N, 7), labels[::7]] = 2.0
    logits[np.arange(N), (labels + 1) % K] = -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evicp.calibrate(logits, labels, "lac").predict(logits, 0.9)
