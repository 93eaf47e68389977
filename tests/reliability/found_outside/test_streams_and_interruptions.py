"""Closed standard streams change nothing but what is heard, and Ctrl-C is one line whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import evicp

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(os.name != "posix", reason="signals and shells of POSIX"),
]

RUN = "from evicp.cli import main; main()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    logits = rng.normal(size=(90, 3)) + 2 * np.eye(3)[labels]
    with evicp.kernels.backend("numpy"):
        evicp.calibrate(logits, labels).save(folder / "cal.safetensors")
    np.savez(folder / "new.npz", logits=logits, labels=labels)
    return folder


def shell(folder: Path, words: str, streams: str, code: str = RUN) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {words} {streams}', sys.executable, code],
        cwd=folder,
        env=os.environ | {"EVICP_BACKEND": "numpy"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("words", ["plan --json", "calibrate new.npz -o made.safetensors --coverage 0.999 --force"])
def test_a_closed_standard_error_changes_nothing(folder: Path, words: str) -> None:
    """Also where there is a warning and a remark to make."""
    done, heard = (shell(folder, words, streams) for streams in ("2>&-", ""))
    assert (done.returncode, done.stderr) == (0, b"")
    assert (heard.returncode, heard.stdout) == (0, done.stdout)


def test_no_file_takes_the_place_of_a_closed_stream(folder: Path) -> None:
    """What a library prints would be written into it."""
    code = (
        "import os; from evicp.io.files import SetsWriter as W\n"
        "act = W.append\n"
        "W.append = lambda *a: (act(*a), os.system('echo from a library; echo from another >&2'))\n"
        f"{RUN}"
    )
    heard = shell(folder, "predict cal.safetensors new.npz -o heard.jsonl --force", "", code)
    assert (heard.returncode, b"library" in heard.stdout, b"another" in heard.stderr) == (0, True, True)
    done = shell(folder, "predict cal.safetensors new.npz -o closed.jsonl --force", "<&- >&- 2>&-", code)
    assert done.returncode == 0
    assert (folder / "closed.jsonl").read_bytes() == (folder / "heard.jsonl").read_bytes()


def test_results_for_a_closed_standard_output_are_refused(folder: Path) -> None:
    done = shell(folder, "predict cal.safetensors new.npz -o -", ">&-")
    assert (done.returncode, done.stderr) == (
        2,
        b"error: cannot write to standard output: it is closed. Give a file.\n",
    )


def test_the_package_imports_nothing_that_takes_time() -> None:
    """Ctrl-C during `from evicp.cli import main` would be a traceback: nothing of ours runs yet."""
    code = (
        "import sys; before = set(sys.modules); from evicp.cli import main; print(*sorted(set(sys.modules) - before))"
    )
    # Without site, as an editable installation brings a finder of its own, which imports more than we do.
    environment = os.environ | {"PYTHONPATH": str(Path(evicp.__file__).parents[1])}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"evicp", "evicp.cli", "types"}


@pytest.mark.parametrize("module", ["numpy", "typer"])
@pytest.mark.parametrize("program", [["-c", RUN], ["-m", "evicp"]], ids=["script", "module"])
def test_an_interruption_while_importing_is_one_line(tmp_path: Path, module: str, program: list[str]) -> None:
    """A real signal, also where what an exception would interrupt swallows it."""
    (tmp_path / "sitecustomize.py").write_text(f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background are born deaf to it
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            except KeyboardInterrupt:
                if {module!r} == "typer":  # as a callback of the interpreter does
                    return None
                raise
sys.meta_path.insert(0, Interrupt())
""")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *program, "plan"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"error: interrupted\n")


def test_an_interruption_at_the_end_is_silent(tmp_path: Path) -> None:
    """The interpreter is on its way out: there is nothing to say, and no traceback."""
    code = f"""
import atexit, os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(30)))
{RUN}
"""
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, timeout=60, check=False)
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stdout.startswith(evicp.__version__.encode())
    assert done.stderr == b""
