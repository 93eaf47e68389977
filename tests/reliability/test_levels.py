"""The compiled kernels give one answer: at every instruction set the machine has, and by every compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("evicp.kernels._core")

import native_builds
import trees

from evicp.kernels import _core

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(os.name == "nt" or shutil.which(native_builds.COMPILER) is None, reason="needs a C++ compiler"),
]

#: What is asked of every level in the long run, beside the hash: the high-precision reference, the metamorphic
#: relations and the tests of the kernels.
TESTS = ("reliability/test_high_precision.py", "reliability/test_metamorphic.py", "kernels/test_kernels_native.py")


def run(arguments: list[str], level: str, source: Path | None = None) -> str:
    environment = os.environ | {"EVICP_LEVEL": level, "EVICP_RELIABILITY": ""}
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout.strip()


def digest(level: str, source: Path | None = None) -> str:
    """A hash of scores, sets, p-values, metrics and files."""
    return run([str(Path(__file__).with_name("digests.py")), "native", "0", "here"], level, source)


@pytest.fixture(scope="module")
def release() -> str:
    """The hash of the kernels as they are installed, at the best level."""
    return digest(_core.levels()[0])


def test_every_level_gives_one_hash(release: str, figure) -> None:
    hashes = {level: digest(level) for level in _core.levels()}
    figure("levels", ", ".join(hashes))
    assert set(hashes.values()) == {release}, hashes


@pytest.mark.parametrize("level", _core.levels())
@pytest.mark.parametrize("tests", TESTS)
def test_the_kernels_pass_their_tests_at_every_level(level: str, tests: str, long_run: bool, figure) -> None:
    if not long_run:
        pytest.skip("the long run repeats these tests at each level")
    path = trees.REPOSITORY / "tests" / tests
    said = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "native or not numpy", str(path)], level)
    figure("tests passed at a level", int(said.splitlines()[-1].split(" passed")[0].split()[-1]))


def compiled(folder: Path, flags: list[str], compiler: str) -> Path:
    return native_builds.compile_kernels(native_builds.copy_source(folder), ["-O2", *flags], compiler)


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_every_compiler_gives_one_hash(compiler: str, release: str, tmp_path: Path, long_run: bool, figure) -> None:
    if not long_run:
        pytest.skip("the long run compiles the kernels anew")
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source = compiled(tmp_path, [], compiler)
    for level in _core.levels():
        assert digest(level, source) == release, level
    figure("compilers", compiler)


def test_control_fused_products_and_sums_are_caught(release: str, tmp_path: Path, long_run: bool, figure) -> None:
    """A compiler that may join a product and a sum gives other bits where there is an instruction for it."""
    if not long_run:
        pytest.skip("the long run compiles the kernels anew")
    if _core.levels()[0] not in ("v3", "v4"):
        pytest.skip("this processor has no fused multiply-add to misuse")
    source = compiled(tmp_path, ["-ffp-contract=fast"], native_builds.COMPILER)
    different = sum(digest(level, source) != release for level in _core.levels())
    figure("levels at which the control differs", different)
    assert different
