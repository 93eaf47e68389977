"""A first call: in a home of nothing, where nothing may be written, without a compiler, in many processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trees

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(os.name == "nt", reason="folders that cannot be written to are made the way of POSIX"),
]

CODE = """
import hashlib, sys, time
import numpy as np
start = time.perf_counter()
import evicp
rng = np.random.default_rng(0)
labels = rng.integers(0, 1000, 1501)
logits = rng.normal(size=(1501, 1000)).astype(np.float32)
logits[np.arange(1501), labels] += 6
calibration = evicp.calibrate(logits[:1500], labels[:1500])
sets = calibration.predict(logits[1500:], 0.9)
seconds = time.perf_counter() - start
print(hashlib.sha256(calibration.scores.tobytes() + sets.labels.tobytes()).hexdigest(), seconds)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in a folder in which nothing can be written; of root, who may, times are compared."""
    source = trees.copied(tmp_path_factory.mktemp("site"))
    folders = [source, *(path for path in source.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    yield source
    for folder in folders:
        folder.chmod(0o755)


def start(package: Path, home: Path) -> subprocess.Popen[str]:
    home.mkdir()
    home.chmod(0o555)
    environment = {
        "HOME": str(home),
        "TMPDIR": str(home),
        "PATH": str(home),
        "PYTHONPATH": str(package),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-W", "error", "-c", CODE]
    return subprocess.Popen(
        command, env=environment, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, float]:
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-2000:]
    assert errors == ""
    digest, seconds = said.split()
    return digest, float(seconds)


def written(home: Path) -> list[str]:
    return [path.name for path in home.iterdir()]


def test_a_first_call_needs_nothing_and_writes_nothing(package: Path, tmp_path: Path, figure) -> None:
    before = {path: path.stat().st_mtime_ns for path in package.rglob("*")}
    _, seconds = finish(start(package, tmp_path / "home"))
    figure("smallest seconds beyond importing NumPy", round(seconds, 3))
    assert written(tmp_path / "home") == []
    assert {path: path.stat().st_mtime_ns for path in package.rglob("*")} == before


def test_processes_at_once_give_one_answer(package: Path, tmp_path: Path, long_run: bool, figure) -> None:
    count, begun = 20 if long_run else 4, time.monotonic()
    processes = [start(package, tmp_path / f"home {number}") for number in range(count)]
    answers = {finish(process)[0] for process in processes}
    figure("processes at once", count)
    assert len(answers) == 1
    assert not any(written(tmp_path / f"home {number}") for number in range(count))
    assert time.monotonic() - begun < 300
