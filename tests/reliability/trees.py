"""Copies of the package with one thing changed, and the tests run on them; the working tree is never touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src"


#: An editable installation finds the package before the path does, in every process; a copy must be found instead.
WITHOUT_EDITABLE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
"""


def copied(folder: Path) -> Path:
    """A copy of the sources, without what was compiled from them."""
    shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "src" / "sitecustomize.py").write_text(WITHOUT_EDITABLE, encoding="utf-8")
    return folder / "src"


def run_tests(source: Path, tests: list[str], folder: Path, timeout: float) -> tuple[int, str]:
    """Pytest's exit code on a copy (1: tests failed; 124: they did not end) and the end of what it printed.

    They run on the reference backend, which is Python; the tests of the compiled one are left out.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "EVICP_BACKEND": "numpy",
        "EVICP_RELIABILITY": "",
        "TMPDIR": str(folder),
    }
    paths = [str(REPOSITORY / test) for test in tests]
    process = subprocess.Popen(
        [*command, "-k", "not native", f"--basetemp={folder / 'basetemp'}", *paths],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return 124, "the tests did not end"
    return process.returncode, output[-3000:]
