"""Copies of the package whose kernels are compiled by another compiler, with other flags, or from a changed source."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import trees

COMPILER = os.environ.get("CXX", "g++")

#: As in CMakeLists.txt, as far as they change results.
FLAGS = ["-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-w"]
LEVELS = {"v2": ["-msse4.2", "-mpopcnt"]}
LEVELS["v3"] = ["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mlzcnt", "-mf16c", "-mpopcnt"]
LEVELS["v4"] = [*LEVELS["v3"], *(f"-mavx512{part}" for part in ("f", "bw", "cd", "dq", "vl"))]


def copy_source(folder: Path) -> Path:
    """A copy of the source, without its compiled kernels."""
    source = trees.copied(folder)
    for module in source.rglob("*.so"):
        module.unlink()
    return source


def replace_line(source: Path, name: str, right: str, wrong: str) -> None:
    """Change one place of one file of the kernels."""
    file = source / "evicp" / "kernels" / "native" / name
    text = file.read_text(encoding="utf-8")
    assert text.count(right) == 1, f"{name}: {right!r} is not there once"
    file.write_text(text.replace(right, wrong), encoding="utf-8")


def compile_kernels(source: Path, flags: Sequence[str], compiler: str = COMPILER) -> Path:
    """Compile the kernels of a copy of the source; gives the copy. The flags come after those of a release."""
    native = source / "evicp" / "kernels" / "native"
    is_x86 = os.uname().machine == "x86_64"
    include = f"-I{sysconfig.get_paths()['include']}"
    parts = {"module": ["module.cpp", include, *(["-DEVICP_X86"] if is_x86 else [])], "threads": ["threads.cpp"]}
    for level, own in (LEVELS if is_x86 else {"portable": []}).items():
        parts[level] = ["level.cpp", f"-DEVICP_LEVEL={level}", *own]
    compiling = [
        subprocess.Popen([compiler, *FLAGS, *flags, "-c", *arguments, "-o", f"{source}/{name}.o"], cwd=native)
        for name, arguments in parts.items()
    ]
    codes = [process.wait() for process in compiling]
    assert not any(codes), "the kernels do not compile"
    linked = [flag for flag in flags if flag.startswith("-fsanitize")]
    module = source / "evicp" / "kernels" / "_core.abi3.so"
    objects = [f"{source}/{name}.o" for name in parts]
    subprocess.run([compiler, "-shared", *linked, *objects, "-o", str(module), "-pthread"], check=True)
    return source
