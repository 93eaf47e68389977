"""The oldest dependencies that pyproject.toml allows are enough, in an environment that holds nothing newer."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = pytest.mark.reliability

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = (
    "calibration",
    "scores",
    "artifact",
    "files",
    "sets",
    "reliability",
    "shift",
    "groups",
    "cli",
    "kernels_native",
)

#: What the tests themselves need; the last as old as the NumPy it is built for.
TOOLS = ("pytest>=8", "hypothesis>=6.100", "mpmath>=1.3", "ml-dtypes==0.4.0", "jsonschema>=4.20")


def requirements(*extras: str) -> list[str]:
    """What the package needs, or its extras do."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [name for extra in extras for name in project["optional-dependencies"][extra]] or project["dependencies"]


def oldest(requirement: str) -> str:
    """The lower bound of a requirement as a pin: "numpy>=1.26" is "numpy==1.26.0"."""
    name, bound = requirement.split(">=")
    parts = bound.split(".")
    return f"{name}=={'.'.join(parts + ['0'] * (3 - len(parts)))}"


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=REPOSITORY,
        env=os.environ | {"EVICP_RELIABILITY": ""} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_every_dependency_has_a_lower_bound_that_is_met_here(figure) -> None:
    for requirement in requirements():
        name, bound = requirement.split(">=")
        figure("newest", f"{name} {version(name)}")
        assert [int(part) for part in version(name).split(".")[:2]] >= [int(part) for part in bound.split(".")[:2]]


@pytest.mark.long
def test_the_oldest_dependencies_are_enough(tmp_path: Path, figure) -> None:
    pins = [oldest(requirement) for requirement in (*requirements(), *requirements("parquet", "pandas"))]
    run(sys.executable, "-m", "venv", tmp_path / "old")
    python = tmp_path / "old" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins, *TOOLS)
    tests = [next((REPOSITORY / "tests").rglob(f"test_{name}.py")) for name in TESTS]
    # Warnings of old packages on a newer Python are theirs.
    said = run(
        *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *tests),
        PYTHONPATH=str(REPOSITORY / "src"),
        PYTHONDONTWRITEBYTECODE="1",
    )
    figure("oldest", ", ".join(pins))
    figure("tests passed with the oldest", said.strip().splitlines()[-1].split(" passed")[0].split()[-1])
