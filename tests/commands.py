"""Calls of the command line, each in a separate process, with its exit code and streams.

Importing takes a second, most calls a few milliseconds. So one process imports, and forks for every call. What must be
seen from the first instruction on (closed streams, signals while importing) is tested with a new interpreter instead.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any


@dataclass(frozen=True)
class Run:
    """What became of one call."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


#: For a new interpreter: `[sys.executable, "-c", RUN, *arguments]`.
RUN = "from evicp.cli import main; main()"

ENVIRONMENT = {**os.environ, "PYTHONWARNINGS": "", "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}

#: Forks a process for every call that it is told of on standard input.
_FORKING = """
import gc, json, os, sys, traceback
from contextlib import suppress
import rich.progress, rich.table, safetensors.numpy, scipy.special, scipy.stats, typer.main, typer.rich_utils
from evicp.cli import app, main
import evicp, numpy
with suppress(ImportError):
    import pyarrow.parquet
typer.main.get_command(app)
logits, labels = numpy.eye(3, dtype=numpy.float32).repeat(20, 0), numpy.arange(3).repeat(20)
evicp.compare(logits, labels, coverage=0.8, trials=1)  # loads the compiled kernels, for all to inherit
calls, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
gc.freeze()
for line in calls:
    call = json.loads(line)
    child = os.fork()
    if child == 0:
        os.closerange(calls.fileno(), answers.fileno() + 1)
        for descriptor, name in enumerate(("in", "out", "err")):
            flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT
            opened = os.open(f"{call['streams']}.{name}", flags)
            os.dup2(opened, descriptor)
            os.close(opened)
        os.chdir(call["folder"])
        evicp.kernels._chosen = call["backend"]
        sys.argv = ["evicp", *call["arguments"]]
        code = 99
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)  # the interpreter's own end would take longer than most calls
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
"""


class _Server:
    """The process that forks, and a folder for the streams of its children."""

    def __init__(self) -> None:
        self.streams = tempfile.TemporaryDirectory(prefix="evicp-", ignore_cleanup_errors=True)
        self.numbers = itertools.count()
        self.lock = Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _FORKING],
            cwd=self.streams.name,  # where no file is taken for a module
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def run(self, arguments: Sequence[str], folder: Path, stdin: bytes, backend: str) -> Run:
        base = Path(self.streams.name) / str(next(self.numbers))
        files = [base.with_suffix(f".{name}") for name in ("in", "out", "err")]
        files[0].write_bytes(stdin)
        call = {"arguments": list(arguments), "folder": str(folder), "streams": str(base), "backend": backend}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.lock:
            self.process.stdin.write(json.dumps(call) + "\n")
            self.process.stdin.flush()
            code = int(self.process.stdout.readline())
        out, err = (file.read_bytes().decode() for file in files[1:])
        for file in files:
            file.unlink()
        return Run(code, out, err)

    def close(self) -> None:
        self.process.communicate()
        self.streams.cleanup()


_server = cache(_Server)


def evicp_process(
    arguments: Sequence[str], folder: Path, stdin: bytes | None = None, backend: str | None = None
) -> Run:
    """Run `evicp` with these arguments in a folder."""
    if hasattr(os, "fork"):
        return _server().run(arguments, folder, stdin or b"", backend or os.environ.get("EVICP_BACKEND", "auto"))
    environment = ENVIRONMENT | ({"EVICP_BACKEND": backend} if backend else {})
    command = [sys.executable, "-c", RUN, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, input=stdin or b"", capture_output=True, check=False)
    return Run(done.returncode, done.stdout.decode(), done.stderr.decode())
