"""The Triton kernels on the CPU, in Triton's interpreter (tests/gpu/interpreted.py runs them in their own process)."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from places import GPU

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("triton") is None, reason="needs torch and triton"
)


@pytest.fixture(scope="module")
def interpreted(long_run: bool) -> dict[str, Any]:
    command = [
        sys.executable,
        str(GPU / "interpreted.py"),
        *([] if long_run else ["--usual"]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_every_case_passes(interpreted: dict[str, Any], long_run: bool) -> None:
    failed = {name: result for name, result in interpreted["results"].items() if result != "passed"}
    assert not failed, "\n".join(f"{name}\n{result}" for name, result in failed.items())
    assert len(interpreted["results"]) > (30 if long_run else 15)


def test_every_line_of_every_kernel_was_run(interpreted: dict[str, Any]) -> None:
    assert interpreted["missed"] == []


def test_every_number_of_classes_has_a_tile() -> None:
    from evicp.kernels._triton_launch import tiling_for

    for rule in ("ecp", "lac", "margin", "topk", "aps", "raps", "saps", "base"):
        for n_classes in (2, 10, 100, 128, 129, 1000, 1024, 1025, 2048, 2049, 300_000):
            tile = tiling_for(n_classes, rule)
            assert min(tile.rows, tile.warps, tile.slots) >= 1, (rule, n_classes, tile)
            assert tile.long or n_classes <= tile.block, (rule, n_classes, tile)


def test_what_it_does_not_know() -> None:
    import numpy as np

    import evicp
    from evicp.kernels import _triton

    assert _triton.knows(evicp.ECP())
    assert not _triton.knows(evicp.ECP(base_rates=(0.3, 0.7)))
    assert not _triton.knows(evicp.ECP(evidence=np.abs))
    assert not _triton.knows(evicp.LAC(temperature=1e-40))
    assert not _triton.knows(evicp.method.scores.Custom(np.negative))
