"""The structure of the source: folders in the order of ARCHITECTURE.md, no import cycle, short files and functions."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from evicp import kernels
from places import ROOT

SOURCE = ROOT / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "evicp").rglob("*.py")
}


def imports(path: Path) -> set[str]:
    """The modules of evicp that a module imports anywhere, also inside functions, but for type checkers alone."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
        waiting += ast.iter_child_nodes(node)
    return found & set(MODULES)


GRAPH = {module: imports(path) - {module} for module, path in MODULES.items()}


def test_no_import_cycles_not_even_inside_functions() -> None:
    tuple(TopologicalSorter(GRAPH).static_order())  # raises CycleError, which names them


def layers() -> dict[str, int]:
    """The layer of each folder or module below `evicp`, from the drawing in ARCHITECTURE.md."""
    drawing = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("```")[1]
    return {name: layer for layer, line in enumerate(drawing.split("<-")) for name in re.findall(r"\w+", line)}


def test_imports_point_to_lower_layers() -> None:
    known = layers()
    for module, used in GRAPH.items():
        own, *_ = module.removeprefix("evicp").lstrip(".").split(".")
        if own in ("", "__main__"):
            continue
        assert own in known, f"ARCHITECTURE.md does not say where {own} stands"
        for other in used - {"evicp"}:  # the package itself, for its version
            folder = other.split(".")[1]
            assert known[folder] <= known[own], f"{module} imports {other}, of a higher layer"


def test_an_import_that_points_upwards_is_found(tmp_path: Path) -> None:
    """The check sees imports at the top, inside functions and in every form."""
    program = tmp_path / "program.py"
    program.write_text(
        "import evicp.sets\nfrom evicp.input import validate\ndef f():\n    from evicp.cli import main\n"
        "if TYPE_CHECKING:\n    from evicp.report import build\n"
    )
    assert imports(program) == {"evicp.sets", "evicp.input.validate", "evicp.cli"}


# ---------------------------------------------------------------------------------------------------------------
# Lengths

LONGEST_FILE, LONGEST_FUNCTION = 450, 40


def long_functions(path: Path) -> set[str]:
    """The functions of a file from their `def` to their end, docstring included, that are longer than the bar."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, functions)]
    return {node.name for node in nodes if (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION}


def test_no_file_is_longer_than_the_bar() -> None:
    """One subject a file: what grows beyond the bar holds two."""
    lengths = {module: len(path.read_text("utf-8").splitlines()) for module, path in MODULES.items()}
    assert not {module for module, length in lengths.items() if length > LONGEST_FILE}


def test_no_function_is_longer_than_the_bar() -> None:
    """Triton's kernels aside, whose language has few functions to call."""
    python = {module: path for module, path in MODULES.items() if not module.startswith("evicp.kernels._jitted")}
    assert not {f"{module}:{name}" for module, path in python.items() for name in long_functions(path)}


def test_a_function_of_one_line_too_many_is_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    for body, found in ((LONGEST_FUNCTION - 1, set()), (LONGEST_FUNCTION, {"f"})):
        program.write_text("@decorated\ndef f():\n" + "    pass\n" * body)
        assert long_functions(program) == found


# ---------------------------------------------------------------------------------------------------------------
# Changes of file


@pytest.mark.skipif(kernels.compiled() is None, reason="counted with the compiled kernels")
def test_a_call_changes_file_no_more_often_than_a_reader_can_follow() -> None:
    """Counted by `benchmarks/file_switches.py`: lower a number where you can."""
    program = [sys.executable, ROOT / "benchmarks" / "file_switches.py"]
    own = {**os.environ, "EVICP_BACKEND": "auto"}
    printed = subprocess.run(program, env=own, capture_output=True, text=True, check=True).stdout
    switches = [int(number) for number in re.findall(r"(\d+) file switches", printed)]
    most = {"calibrate": 40, "first predict": 27, "second predict": 16, "evicp predict": 126}
    over = {what: n for (what, limit), n in zip(most.items(), switches, strict=True) if n > limit}
    assert not over, printed
