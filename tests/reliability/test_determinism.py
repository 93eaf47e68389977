"""The same question has the same answer: whatever the threads, the blocks, the process it is asked in, and the day."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lengths import usually

pytestmark = pytest.mark.reliability

#: Threads, logits in a block (0: as released), and where it is computed.
WAYS = [
    (1, 0, "here"),
    (2, 0, "here"),
    (2, 0, "fork"),
    (1, 0, "here"),  # once more
    (2, 700, "here"),
    (1, 100, "here"),
    (2, 0, "spawn"),
]


def digest(backend: str, threads: int, block: int, way: str) -> str:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("digests.py")), backend, str(block), way],
        env=os.environ | {"EVICP_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize("backend", usually(["numpy", "native", "torch"], lambda backend: backend == "native"))
def test_one_hash(backend: str, long_run: bool, native_available: bool, figure) -> None:
    """The usual run has the backend with threads of its own."""
    if backend == "torch":
        pytest.importorskip("torch")
    elif backend == "native" and not native_available:
        pytest.skip("the compiled backend cannot be imported here")
    # Threads of OpenMP, which torch uses, do not survive a fork.
    ways = [way for way in WAYS if backend != "torch" or way[2] != "fork"]
    ways = ways if long_run else ways[:2]
    hashes = [digest(backend, *way) for way in ways]
    figure("largest number of hashes of a backend", len(set(hashes)))
    figure("ways to compute them", len(ways))
    assert len(set(hashes)) == 1, list(zip(ways, hashes, strict=True))
