"""Dask needs no adapter: a calibrator and a calibration travel with the task, and blocks give what all rows give."""

from __future__ import annotations

import numpy as np
import pytest

import evicp

dask = pytest.importorskip("dask", reason="Dask is not installed: make test-adapters")
pytest.importorskip("dask.array")


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_blocks_of_rows_give_what_all_rows_give(rows: tuple, scheduler: str) -> None:
    import dask.array as da

    logits, labels = da.from_array(rows[0], chunks=(13, -1)), da.from_array(rows[1], chunks=13)
    score = evicp.APS(seed=3)
    with dask.config.set(scheduler=scheduler):
        blocks = zip(logits.to_delayed().ravel(), labels.to_delayed(), strict=True)
        made = (dask.delayed(evicp.Calibrator(score).update)(*block) for block in blocks)
        first, *others = dask.compute(*made)
        calibration = first.merge(*others).finish()
        mask = logits.map_blocks(_mask, calibration, dtype=bool, meta=np.empty((0, 0), bool)).compute()
    expected = evicp.calibrate(*rows, score)
    assert calibration == expected
    assert np.array_equal(mask, expected.predict(rows[0], 0.8).mask())
    assert calibration != evicp.calibrate(rows[0][1:], rows[1][1:], score)


def _mask(block: np.ndarray, calibration: evicp.Calibration) -> np.ndarray:
    return calibration.predict(block, 0.8).mask()
