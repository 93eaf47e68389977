"""Run the code blocks of a Markdown page, and keep what they print up to date.

A page's blocks share a folder and, if they are Python, their variables. Shell blocks run in bash; `make` is a dry run
and `pip install` a look into pyproject.toml; `evicp extract` and `evicp reproduce`, which need data that nobody can
ship, are parsed but not run; `python studies/...` finds its script from any folder. A block that says ```text
title="prints"``` holds what the block before it printed; "..." stands for anything. `python docs/blocks.py docs/*.md`
rewrites those.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from typer.main import get_command

from evicp.cli import app

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = """
set -eu
make() { command make --dry-run --no-print-directory -C "$ROOT" "$@" > /dev/null; }
pip() { "$PYTHON" "$ROOT/docs/blocks.py" --pip "$@"; }
python() {
  case "$1" in
    studies/*) "$PYTHON" "$ROOT/$@" ;;
    *) command python "$@" ;;
  esac
}
evicp() {
  case "$1" in
    extract | reproduce) "$PYTHON" "$ROOT/docs/blocks.py" --parse "$@" ;;
    *) command evicp "$@" ;;
  esac
}
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, whether it holds what the block before it printed, and its line."""

    language: str
    text: str
    prints: bool
    line: int
    span: tuple[int, int]


def blocks(markdown: str) -> list[Block]:
    """The fenced blocks of a page that start at the beginning of a line."""
    result = []
    for match in _FENCE.finditer(markdown):
        info = match["info"].strip()
        line = markdown.count("\n", 0, match.start()) + 1
        language = info.split()[0] if info else ""
        result.append(Block(language, match["text"], 'title="prints"' in info, line, match.span("text")))
    return result


def run(page: Path, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run a page's Python and shell blocks in a folder, in order; each with what it printed."""
    variables: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            yield block, run_python(block, page, variables, folder)
        elif block.language in ("sh", "bash", "console"):
            yield block, run_shell(block, folder)


def run_python(block: Block, page: Path, variables: dict[str, object], folder: Path) -> str:
    """What a Python block prints."""
    # The lines before the block are left empty, so that a traceback names the line of the page.
    code = compile("\n" * block.line + block.text, str(page), "exec")
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(code, variables)
    return printed.getvalue()


def run_shell(block: Block, folder: Path) -> str:
    """What a shell block prints; it fails if any of its commands does."""
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ,
        "ROOT": str(ROOT),
        "PYTHON": sys.executable,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    done = subprocess.run(
        ["bash", "-c", _SHELL + block.text], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"line {block.line}: exit {done.returncode}\n{block.text}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def check_pip(arguments: list[str]) -> None:
    """Whether the extras that a `pip install` names exist."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for argument in arguments:
        for extra in re.findall(r"\[([^\]]*)\]", argument):
            for name in extra.split(","):
                if name not in known:
                    raise SystemExit(f"pyproject.toml has no extra {name!r}")


def check_command(arguments: list[str]) -> None:
    """Whether a call of evicp has the arguments and options that the command takes."""
    get_command(app).commands[arguments[0]].make_context(arguments[0], arguments[1:])


def refresh(page: Path) -> None:
    """Rewrite what a page's blocks print."""
    with tempfile.TemporaryDirectory() as folder:
        rewrite(page, {block.line: text for block, text in run(page, Path(folder))})


def rewrite(page: Path, printed: Mapping[int, str]) -> None:
    """Put what the blocks at these lines printed into the blocks after them."""
    markdown = page.read_text(encoding="utf-8")
    found = blocks(markdown)
    for before, block in reversed(list(pairwise(found))):
        if block.prints and "..." not in block.text and before.line in printed:
            text = "\n".join(line.rstrip() for line in printed[before.line].strip("\n").splitlines())
            markdown = f"{markdown[: block.span[0]]}{text}\n{markdown[block.span[1] :]}"
    page.write_text(markdown, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pip"]:
        check_pip(sys.argv[2:])
    elif sys.argv[1:2] == ["--parse"]:
        check_command(sys.argv[2:])
    else:
        for name in sys.argv[1:]:
            refresh(Path(name))
