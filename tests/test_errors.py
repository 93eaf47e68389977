"""The exception tree is a guarantee: its drawing, its base classes, its names."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

import evicp
from evicp import errors

CLASSES = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Name -> (parent, built-in base) as drawn in the module's docstring."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines()[2:]:
        match = re.match(r"([|` -]*)(\w+)(?: \((\w+)\))?(?:  .*)?$", line)
        if match:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            tree[match[2]] = (path[depth - 1] if depth else None, match[3])
    return tree


def test_the_drawing_is_the_tree() -> None:
    tree = drawn_tree()
    assert set(tree) == set(CLASSES)
    for name, (parent, builtin) in tree.items():
        bases = {base.__name__ for base in CLASSES[name].__bases__}
        assert bases == {parent, builtin} - {None} or (parent is None and bases <= {"Exception", builtin})


@pytest.mark.parametrize("name", [name for name in CLASSES if not name.endswith("Warning")])
def test_every_error_is_ours_and_a_builtin_kind(name: str) -> None:
    kind = CLASSES[name]
    assert issubclass(kind, evicp.EvicpError)
    assert name == "EvicpError" or issubclass(kind, ValueError | TypeError | ImportError)
    assert kind.__doc__


def test_every_name_is_exported_and_documented() -> None:
    assert errors.__all__ == sorted(CLASSES)
    assert issubclass(evicp.EvicpWarning, UserWarning)


@pytest.mark.parametrize("name", CLASSES)
def test_errors_cross_process_borders(name: str) -> None:
    """A worker's error must arrive as what it was."""
    error = CLASSES[name]("what, got, fix")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == "what, got, fix"


def test_a_missing_extra_is_one_sentence_with_its_command() -> None:
    error = errors.missing_extra("pyarrow", "parquet", "a parquet file")
    assert str(error) == "a parquet file needs pyarrow: pip install 'evicp[parquet]'"
    assert isinstance(error, ImportError)


def test_a_package_that_does_not_load_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brokenpackage.py").write_text("raise ImportError('libgone.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.MissingExtraError) as caught:
        errors.need("brokenpackage", "brokenpackage", "torch", "a torch file")
    message = "a torch file needs brokenpackage, which is installed but does not load (libgone.so: no such file)."
    assert str(caught.value).startswith(message)
    with pytest.raises(errors.MissingExtraError, match="a torch file needs absent: pip install"):
        errors.need("absentpackage", "absent", "torch", "a torch file")
