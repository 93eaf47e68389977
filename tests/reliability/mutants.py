"""Small plausible mistakes, made everywhere in a module, and a fast way to run tests on each.

Each mutant changes one thing: a comparison, an operator, a constant, a condition, a direction, or leaves a statement
out. Annotations, decorators, documentation and the text of messages are left alone.

    python tests/reliability/mutants.py method/evidence 40 [seed]     # what survives of a sample of 40
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import operator
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import trees

#: What must catch the mutants of a module, the quickest first.
TESTS = {
    "method/evidence": ("method/test_scores", "method/test_evidence", "evaluation/test_explain"),
    "method/ecp": ("method/test_evidence", "method/test_scores", "reliability/test_bad_input"),
    "method/scores": (
        "method/test_scores",
        "method/test_evidence",
        "calibration/test_calibration",
        "reliability/test_bad_input",
    ),
    "calibration/calibrator": (
        "calibration/test_calibration",
        "calibration/laws/test_groups",
        "calibration/laws/test_shift",
    ),
    "calibration/calibration": (
        "calibration/test_calibration",
        "calibration/laws/test_groups",
        "calibration/test_smoothed",
        "calibration/laws/test_shift",
        "calibration/test_pac",
        "calibration/test_device",
        "evaluation/test_tuning",
    ),
    "calibration/ranks": ("calibration/test_pac", "calibration/test_reliability", "reliability/test_exact_rank"),
    "calibration/laws/marginal": ("calibration/test_calibration", "calibration/test_smoothed", "calibration/test_pac"),
    "calibration/laws/groups": ("calibration/laws/test_groups",),
    "calibration/laws/weighted": ("calibration/laws/test_shift",),
    "calibration/certificate": (
        "calibration/test_reliability",
        "calibration/test_calibration",
        "calibration/laws/test_groups",
        "calibration/laws/test_shift",
    ),
    "calibration/planning": ("calibration/test_reliability",),
    "calibration/reliability": (
        "calibration/test_reliability",
        "calibration/laws/test_groups",
        "calibration/laws/test_shift",
        "calibration/test_pac",
        "reliability/test_exact_rank",
    ),
    "io/artifact": (
        "io/test_artifact",
        "reliability/test_hostile_artifact",
        "calibration/laws/test_groups",
        "calibration/laws/test_shift",
    ),
    "io/files": ("io/test_files", "test_sets", "test_blocks", "reliability/test_bad_input"),
    "io/paths": (
        "io/test_artifact",
        "io/test_files",
        "reliability/test_bad_input",
        "extraction/test_extraction",
        "reliability/test_atomic_save",
    ),
}

#: Tests that say nothing about these modules, or that a mutant cannot be seen in because they start other processes.
LEFT_OUT = "not native and not killed and not mutations and not truncated and not bit_flip and not plain_write"
LEFT_OUT += " and not full_disk and not cut_off and not two_writers"
#: Ranks of two million pairs, where those that doubles get wrong are enough.
LEFT_OUT += " and not whole_grid"


@dataclass(frozen=True)
class Mutant:
    """One change: its number in the module, where, what it was and what it is."""

    number: int
    where: str
    before: str
    after: str

    @property
    def key(self) -> str:
        """What it is known by; line numbers would change with every edit above it."""
        return f"{self.where}: {self.before} -> {self.after}"


# ---------------------------------------------------------------------------------------------------------------
# Making them


_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_OPPOSITES = {"min": "max", "minimum": "maximum", "argmin": "argmax", "ceil": "floor", "all": "any", "left": "right"}
_OPPOSITES |= {b: a for a, b in _OPPOSITES.items()}


def mutations(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901, PLR0912 - one case for each kind of node
    """Every changed version of one node."""
    match node:
        case ast.Compare():
            for place, comparison in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[place] = _COMPARISONS[type(comparison)]()
                yield changed
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(node.op)]())
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp():
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            yield ast.Constant(node.value * 2 if node.value else 1.0)
        case ast.Constant(value=str()) if node.value in _OPPOSITES:
            yield ast.Constant(_OPPOSITES[node.value])
        case ast.Name() if node.id in _OPPOSITES:
            yield _with(node, id=_OPPOSITES[node.id])
        case ast.Attribute() if node.attr in _OPPOSITES:
            yield _with(node, attr=_OPPOSITES[node.attr])
        case ast.If() | ast.IfExp() | ast.While():
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield ast.Pass()
        case ast.Assign() if isinstance(node.targets[0], ast.Subscript | ast.Attribute):
            yield ast.Pass()


def _with(node: ast.AST, **changes: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _left_alone(node: ast.AST, field: str, parent: ast.AST) -> bool:
    unions = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and isinstance(parent, ast.Call)
    text = isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom)
    types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return unions or text or types or field in ("annotation", "returns", "decorator_list", "slice_annotation")


def _places(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST, str, int | None, ast.AST]]:
    """Every node that may change: the function it is in, its parent, and where it hangs."""
    for field, value in ast.iter_fields(node):
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _left_alone(child, field, node):
                continue
            inside = where
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inside = f"{where}.{child.name}".lstrip(".")
            else:
                yield where, node, field, place, child
            yield from _places(child, inside)


def all_mutants(source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text."""
    found = []
    for number, (put, where, parent, node, changed) in enumerate(_changes(ast.parse(source))):
        # A constant or a name alone would not say which one.
        shown = parent if isinstance(node, ast.Constant | ast.Name | ast.Attribute) else node
        before = _short(shown)
        put(changed)
        after = _short(parent) if shown is parent else _short(changed)
        put(node)
        found.append(Mutant(number, where, before, after))
    return found


def mutated(source: str, number: int) -> str:
    """The module with one change made in it."""
    tree = ast.parse(source)
    put, _, _, _, changed = next(islice(_changes(tree), number, None))
    put(changed)
    return ast.unparse(ast.fix_missing_locations(tree))


def _changes(tree: ast.AST) -> Iterator[tuple[Callable[[ast.AST], None], str, ast.AST, ast.AST, ast.AST]]:
    """Every change: how to make it, in which function, in what, of what, into what."""
    for where, parent, field, place, node in _places(tree, ""):
        holder, name = (parent, field) if place is None else (getattr(parent, field), place)
        put = partial(setattr if place is None else operator.setitem, holder, name)
        for changed in mutations(node):
            yield put, where, parent, node, changed


def _short(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def source_of(module: str) -> str:
    """The text of a module."""
    return (trees.SOURCE / "evicp" / f"{module}.py").read_text(encoding="utf-8")


def sample(module: str, count: int, seed: int) -> list[Mutant]:
    """Mutants of a module drawn at random."""
    found = all_mutants(source_of(module))
    return random.Random(seed).sample(found, min(count, len(found)))


# ---------------------------------------------------------------------------------------------------------------
# Trying them: what all tests need is loaded once, then a child is forked for each mutant


def survivors(module: str, count: int, seed: int) -> dict[str, list[str]]:
    """The mutants of a sample that no test notices (in a separate process, which has not loaded the package)."""
    command = [sys.executable, __file__, module, str(count), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stderr[-2000:]
    outcome: dict[str, list[str]] = json.loads(done.stdout)
    return outcome


def _run_in_child(source: Path, tests: list[str], folder: Path) -> int:
    os.setpgid(0, 0)
    said = os.open(folder / "said.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for descriptor in (0, 1, 2):
        os.dup2(said, descriptor)
    sys.path.insert(0, str(source))
    os.chdir(trees.REPOSITORY)
    pytest = importlib.import_module("pytest")
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", LEFT_OUT, f"--basetemp={folder}/t"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what was loaded before the fork
    try:
        return int(pytest.main([*options, *tests]))
    except BaseException:
        traceback.print_exc()
        return 98


def _outcome(source: Path, tests: list[str], folder: Path, seconds: float) -> str:
    """What the tests say of the package in `source`, in a forked child: "passed", "failed" or "too long"."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(_run_in_child(source, tests, folder))
        finally:  # whatever went wrong, the parent's code is not the child's to run
            os._exit(99)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "too long"


def main(module: str, count: int, seed: int) -> dict[str, list[str]]:
    """Try a sample of mutants."""
    for name in (
        "pytest",
        "numpy",
        "scipy.special",
        "scipy.stats",
        "hypothesis.extra.numpy",
        "mpmath",
        "pyarrow.parquet",
    ):
        importlib.import_module(name)
    assert not any(name.partition(".")[0] == "evicp" for name in sys.modules)
    tests = [str(trees.REPOSITORY / "tests" / f"{test}.py") for test in TESTS[module]]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        folder = Path(name)
        source = trees.copied(folder)
        os.environ |= {"PYTHONPATH": str(source), "EVICP_BACKEND": "numpy", "EVICP_RELIABILITY": "", "TMPDIR": name}
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        start = time.monotonic()
        assert _outcome(source, tests, folder, 600) == "passed", (folder / "said.txt").read_text()[-3000:]
        seconds = 20 + 3 * (time.monotonic() - start)
        path = source / "evicp" / f"{module}.py"
        chosen, survived = sample(module, count, seed), []
        for mutant in chosen:
            path.write_text(mutated(source_of(module), mutant.number), encoding="utf-8")
            if _outcome(source, tests, folder, seconds) == "passed":
                survived.append(mutant.key)
                print(mutant.key, file=sys.stderr, flush=True)  # noqa: T201
    return {"tried": [mutant.key for mutant in chosen], "survived": survived}


if __name__ == "__main__":
    outcome = main(sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or ["0"])[0]))
    print(json.dumps(outcome))  # noqa: T201
