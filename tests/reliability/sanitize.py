"""The tests of the compiled kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

`make sanitize` runs it. A read beyond a row and a race between threads are put into copies of the source first: both
must be caught, or the sanitizers look the other way. Needs GCC or Clang with its sanitizers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import native_builds
from native_builds import COMPILER
from trees import REPOSITORY

FLAGS = ["-O1", "-g1", "-fno-omit-frame-pointer"]

#: Interpreters and processes of their own, and limits of memory, are for builds without a sanitizer's runtime.
LEFT_OUT = "not subinterpreters and not memory and not spawned and not daemon and not forked and not every_level"
PROCESSES, KERNELS = "tests/kernels/test_native_processes.py", "tests/kernels/test_kernels_native.py"


@dataclass(frozen=True)
class Sanitizer:
    """What is looked for, the runtime that must be there first, and tests long enough to find it."""

    checks: str
    runtime: str
    options: dict[str, str]
    tests: tuple[str, ...]
    chosen: str


SANITIZERS = (
    Sanitizer(
        "address,undefined",
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"},
        (PROCESSES, KERNELS),
        LEFT_OUT,
    ),
    Sanitizer("thread", "libtsan.so", {"TSAN_OPTIONS": "halt_on_error=1"}, (PROCESSES,), f"threads and {LEFT_OUT}"),
)


@dataclass(frozen=True)
class Seed:
    """A defect that a sanitizer must find."""

    name: str
    sanitizer: Sanitizer
    file: str
    right: str
    wrong: str


SEEDS = (
    Seed("a read beyond a row", SANITIZERS[0], "rows.h", "load(z + n - kLanes)", "load(z + n - kLanes + 1)"),
    Seed(
        "blocks counted without an atomic number",
        SANITIZERS[1],
        "threads.cpp",
        "std::atomic<int64_t> next{0};",
        "int64_t next = 0;",
    ),
)


def build(folder: Path, sanitizer: Sanitizer, seed: Seed | None = None) -> Path:
    """A copy of the package whose kernels are compiled for a sanitizer."""
    source = native_builds.copy_source(folder)
    if seed is not None:
        native_builds.replace_line(source, seed.file, seed.right, seed.wrong)
    return native_builds.compile_kernels(source, [*FLAGS, f"-fsanitize={sanitizer.checks}"])


def run(source: Path, sanitizer: Sanitizer, level: str) -> tuple[bool, str]:
    """Whether the tests pass at a level, and the end of what they said."""
    runtime = subprocess.run(
        [COMPILER, f"-print-file-name={sanitizer.runtime}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = os.environ | sanitizer.options
    environment |= {"PYTHONPATH": str(source), "LD_PRELOAD": runtime, "EVICP_LEVEL": level, "PYTHONMALLOC": "malloc"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *sanitizer.tests,
    ]
    command += ["-k", sanitizer.chosen]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def levels() -> list[str]:
    """The levels that this processor has."""
    from evicp.kernels import _core

    return _core.levels()


def main() -> int:
    """Run everything; 0 where all is as it should be."""
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            passed, said = run(build(Path(folder), seed.sanitizer, seed), seed.sanitizer, levels()[0])
        caught = not passed and "Sanitizer" in said
        print(f"{seed.name}: {'caught' if caught else 'NOT CAUGHT'}", flush=True)
        if not caught:
            print(said)
            return 1
    for sanitizer in SANITIZERS:
        with tempfile.TemporaryDirectory() as folder:
            source = build(Path(folder), sanitizer)
            for level in levels():
                passed, said = run(source, sanitizer, level)
                print(f"{sanitizer.checks} at {level}: {said.splitlines()[-1] if passed else said}", flush=True)
                if not passed:
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
