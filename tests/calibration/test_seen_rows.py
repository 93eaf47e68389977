"""A monitor counts no label twice: batches that it was shown before are recognised, also where they have grown."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import evicp
from evicp import blocks
from evicp.calibration.seen_rows import SeenRows
from evicp.errors import InputError, SuspiciousInputWarning
from evicp.io.rows import LogitsFile, hold

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 2_000)
LOGITS = RNG.normal(size=(2_000, 4)) + 2 * np.eye(4)[LABELS]
CALIBRATION = evicp.calibrate(LOGITS[:500], LABELS[:500], "lac")


def rows(start: int, stop: int) -> blocks.Rows:
    """Some of the rows, in small blocks."""
    return hold(LogitsFile(LOGITS[start:stop], LABELS[start:stop]), "rows", 100 * 8 * 8 * 4)


@pytest.mark.parametrize("p_values", [False, True])
def test_the_same_rows_count_once(p_values: bool) -> None:
    watch, once = evicp.Monitor(CALIBRATION, 0.9), evicp.Monitor(CALIBRATION, 0.9)
    for monitor in (watch, once):
        blocks.monitor(monitor, CALIBRATION, rows(500, 1_400), p_values=p_values)
    with pytest.warns(SuspiciousInputWarning, match=r"^900 of 900 rows were given to this monitor before"):
        blocks.monitor(watch, CALIBRATION, rows(500, 1_400), p_values=p_values)
    assert watch.to_dict() == once.to_dict()
    blocks.monitor(watch, CALIBRATION, rows(1_400, 1_500), p_values=p_values)
    assert watch.seen == 1_000


@pytest.mark.parametrize("first", [8, 100, 256, 700])
def test_a_file_that_has_grown_counts_its_new_rows(first: int) -> None:
    watch = evicp.Monitor(CALIBRATION, 0.9)
    blocks.monitor(watch, CALIBRATION, rows(500, 500 + first))
    with pytest.warns(SuspiciousInputWarning, match=rf"^{first} of 1,500 rows were given"):
        blocks.monitor(watch, CALIBRATION, rows(500, 2_000))
    assert watch.seen == 1_500
    expected = CALIBRATION.predict(LOGITS[500:]).contains(LABELS[500:])
    assert watch.covered == expected.sum()
    with pytest.warns(SuspiciousInputWarning, match=r"^1,500 of 1,500 rows were given"):
        blocks.monitor(watch, CALIBRATION, rows(500, 2_000))
    assert watch.seen == 1_500


def test_other_rows_and_few_rows_are_new() -> None:
    """Rows in another order are another batch: a model with few outputs gives equal rows, but not in one order."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch = evicp.Monitor(CALIBRATION, 0.9)
        assert watch.new_rows(LOGITS[:600], LABELS[:600]).all()
        assert watch.new_rows(LOGITS[600:0:-1], LABELS[600:0:-1]).all()
        assert watch.new_rows(LOGITS[:600], (LABELS[:600] + 1) % 4).all()
        for _ in range(2):
            assert watch.new_rows(LOGITS[700:707], LABELS[700:707]).all()
    with pytest.warns(SuspiciousInputWarning, match="^600 of 600"):
        assert not watch.new_rows(LOGITS[:600], LABELS[:600]).any()


def test_digests_travel_with_the_state() -> None:
    watch = evicp.Monitor(CALIBRATION, 0.9)
    blocks.monitor(watch, CALIBRATION, rows(500, 1_000))
    state = json.loads(json.dumps(watch.to_dict()))
    with pytest.warns(SuspiciousInputWarning, match="^500 of 500"):
        blocks.monitor(evicp.Monitor.from_dict(state), CALIBRATION, rows(500, 1_000))
    del state["rows"]  # as earlier versions wrote it
    assert evicp.Monitor.from_dict(state).seen == 500
    for bad in (["256:xyz"], ["7:0000000000000000"], ["257:0000000000000000"], [3], 5):
        with pytest.raises(InputError, match="this is not the state of a monitor"):
            evicp.Monitor.from_dict({**state, "rows": bad})
    assert SeenRows.from_list(watch.rows.to_list()).to_list() == watch.rows.to_list()
