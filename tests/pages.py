"""The code blocks of the documentation, run by docs/blocks.py: what they print is what the page says."""

from __future__ import annotations

import doctest
import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from evicp.errors import MissingExtraError
from places import DOCS

#: Packages a page may need that not every environment has.
OPTIONAL = {
    "PIL",
    "torch",
    "sklearn",
    "onnx",
    "onnxruntime",
    "pyarrow",
    "pandas",
    "ray",
    "dask",
    "mlflow",
    "pyspark",
    "matplotlib",
    "skimage",
}


def load(path: Path) -> ModuleType:
    """A module from a file that is not in a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


blocks = load(DOCS / "blocks.py")


def runs_and_prints_what_it_says(page: Path, folder: Path) -> None:
    """Fail where a block fails or prints something else; skip where a package is missing."""
    printed = {}
    try:
        for block, text in blocks.run(page, folder):
            printed[block.line] = text
    except (ModuleNotFoundError, MissingExtraError) as error:
        missing = getattr(error, "name", None) or "an extra"
        if isinstance(error, ModuleNotFoundError) and missing.split(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"{page.name} needs {missing}")
    found = blocks.blocks(page.read_text(encoding="utf-8"))
    checker = doctest.OutputChecker()
    for before, block in pairwise(found):
        if block.prints:
            got = "\n".join(line.rstrip() for line in printed[before.line].strip("\n").splitlines()) + "\n"
            assert checker.check_output(block.text, got, doctest.ELLIPSIS), f"line {block.line} prints:\n{got}"
