"""The lock file has every package that the tests need, in a version that pyproject.toml allows, with hashes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.reliability

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements" / "test.txt"


def wanted(extra: str | None, project: dict) -> Iterator[Requirement]:
    """What an extra asks for, those that it names included."""
    for text in project["dependencies"] if extra is None else project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == "evicp":
            for other in requirement.extras:
                yield from wanted(other, project)
        else:
            yield requirement


def locked() -> dict[str, list[tuple[str, int]]]:
    """Versions by package, and how many hashes each has."""
    found: dict[str, list[tuple[str, int]]] = {}
    for entry in re.split(r"\n(?=[\w])", LOCK.read_text(encoding="utf-8")):
        pin = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==([\w.+!]+)", entry)
        if pin:
            hashes = len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry))
            found.setdefault(canonicalize_name(pin[1]), []).append((pin[2], hashes))
    return found


def test_every_requirement_is_locked_in_a_version_that_fits() -> None:
    """If this fails after a change of pyproject.toml: make lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = locked()
    left_out = {Requirement(line).name for line in elsewhere()}
    assert left_out == {"torch", "triton"}
    for requirement in (*wanted(None, project), *wanted("test", project)):
        name = canonicalize_name(requirement.name)
        if name in left_out:
            assert name not in lock
            continue
        assert name in lock, f"{name} is not locked: make lock"
        for version, _ in lock[name]:
            assert version in requirement.specifier, f"{name} is locked at {version}, not {requirement}: make lock"


def test_every_pin_has_hashes() -> None:
    lock = locked()
    assert len(lock) > 100
    assert [name for name, pins in lock.items() if not all(hashes for _, hashes in pins)] == []


def test_the_lock_file_names_no_place() -> None:
    """Where packages come from is a matter of each machine."""
    text = LOCK.read_text(encoding="utf-8")
    assert not re.search(r"https?:|file:|--(extra-)?index|--find-links|--trusted-host| @ ", text)


def elsewhere() -> list[str]:
    lines = (ROOT / "requirements" / "elsewhere.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]
