"""Pages that draw: the tutorial, its notebook, and the gallery; what they show is what their own code writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pages import blocks, load, runs_and_prints_what_it_says
from places import DOCS, ROOT

GALLERY = sorted((DOCS / "gallery").glob("[!i]*.md"))
PICTURES = DOCS / "pictures"
QUICK = {"explain", "sizes"}  # the others take seconds, or a network


def shown(page: Path) -> list[str]:
    """The pictures that a page shows."""
    return re.findall(r"\]\((?:\.\./)?(?:docs/)?pictures/([\w.-]+)\)", page.read_text(encoding="utf-8"))


def test_the_notebook_is_the_tutorial() -> None:
    """Its code is that of the page, which the tests of the documentation run."""
    pytest.importorskip("matplotlib")
    pages = load(PICTURES / "pages.py")
    text = (DOCS / "tutorial.ipynb").read_text(encoding="utf-8")
    assert text == pages.notebook(DOCS / "tutorial.md"), "run python docs/pictures/pages.py docs/tutorial.md"
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    page = blocks.blocks((DOCS / "tutorial.md").read_text(encoding="utf-8"))
    assert len(code) == sum(block.language in ("python", "sh") for block in page) > 10


def test_the_gallery_is_of_small_pages_and_pictures() -> None:
    assert len(GALLERY) >= 12
    index = (DOCS / "gallery" / "index.md").read_text(encoding="utf-8")
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in GALLERY:
        text = page.read_text(encoding="utf-8")
        (code,) = [block for block in blocks.blocks(text) if block.language == "python"]
        assert len(code.text.split("\n\n")) < 3
        assert len([line for line in code.text.splitlines() if line]) <= 24, page.name
        (picture,) = shown(page)
        assert picture.startswith(f"gallery-{page.stem}.")
        assert f"({page.name})" in index
        assert f"gallery/{page.name}" in nav
        assert text.splitlines()[0].endswith("?")


def test_every_picture_is_shown_and_small() -> None:
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("gallery/*.md")]
    used = {name for page in pages for name in shown(page)}
    kept = {path.name: path.stat().st_size for path in PICTURES.iterdir() if path.suffix not in (".py", ".pyc", "")}
    assert used == kept.keys()
    assert [name for name, size in kept.items() if name.startswith(("gallery", "tutorial")) and size > 60_000] == []


def test_badges_say_what_the_project_says() -> None:
    drawn = load(PICTURES / "badges.py").badges()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, text in drawn.items():
        assert (PICTURES / name).read_text(encoding="utf-8") == text, "run python docs/pictures/badges.py"
        assert f"docs/pictures/{name}" in readme


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page.stem in QUICK else [pytest.mark.long]) for page in GALLERY],
    ids=lambda page: page.stem,
)
def test_every_page_of_the_gallery_draws_its_picture(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("agg")
    runs_and_prints_what_it_says(page, tmp_path)
    (picture,) = shown(page)
    assert (tmp_path / picture).stat().st_size > 5_000
