"""Draw the pictures that pages of the documentation make: `python docs/pictures/pages.py [PAGE...]`.

The tutorial and each page of the gallery draw with the code that they show. Their code blocks are run, and the pictures
that a page shows and its code has written are kept in this folder, in colours that read on light and dark backgrounds.
What the blocks print is brought up to date, and the tutorial is also written as a notebook.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

sys.path.insert(0, str(Path(__file__).parents[1]))
import blocks

DOCS = Path(__file__).parents[1]
PICTURES = Path(__file__).parent
TUTORIAL = DOCS / "tutorial.md"
PAGES = (TUTORIAL, *sorted((DOCS / "gallery").glob("[!i]*.md")))
INK = "#8590a0"
STYLE = {
    "savefig.transparent": True,
    "svg.hashsalt": "evicp",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def shown(page: Path) -> list[str]:
    """The names of the pictures that a page shows and its own code writes."""
    text = page.read_text(encoding="utf-8")
    return [name for name in re.findall(r"\]\((?:\.\./)?pictures/([\w.-]+)\)", text) if f'"{name}"' in text]


def run(page: Path, folder: Path) -> dict[int, str]:
    """Run a page's blocks in a folder with the style of the documentation; what they print, by their lines."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in the pictures
    mpl.use("agg")
    with mpl.rc_context(STYLE):
        return {block.line: text for block, text in blocks.run(page, folder)}


def draw(page: Path) -> None:
    """Keep the pictures of a page, and what its blocks print."""
    with tempfile.TemporaryDirectory() as folder:
        printed = run(page, Path(folder))
        for name in shown(page):
            shutil.copy(Path(folder) / name, PICTURES / name)
    blocks.rewrite(page, printed)


def notebook(page: Path) -> str:
    """A page as a notebook: its Python as cells of code, all else as text; shell blocks with a `!` before each line."""
    text, cells, end = page.read_text(encoding="utf-8"), [], 0
    for block in blocks.blocks(text):
        start, stop = text.rindex("```", 0, block.span[0]), text.index("```", block.span[1]) + 3
        cells.append(_cell("markdown", text[end:start]))
        if block.language == "python":
            cells.append(_cell("code", block.text))
        elif block.language == "sh":
            cells.append(_cell("code", "\n".join(f"!{line}" for line in block.text.splitlines())))
        end = stop
    cells.append(_cell("markdown", text[end:]))
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    kept = [{**cell, "id": f"cell-{i}"} for i, cell in enumerate(cell for cell in cells if cell["source"])]
    return json.dumps({"cells": kept, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _cell(kind: str, text: str) -> dict[str, object]:
    source = text.strip("\n").splitlines(keepends=True)
    empty: dict[str, object] = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source, **empty}


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        draw(path)
    TUTORIAL.with_suffix(".ipynb").write_text(notebook(TUTORIAL), encoding="utf-8")
