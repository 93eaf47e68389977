"""For the reference: one page for each public object.

The pages in `docs/reference` name objects and modules as `::: name`; a module stands for what its `__all__` names. Each
object gets its own page, `reference/NAME.html`. Where it is named, the site shows a link and the first sentence of its
docstring.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

_NAMED = re.compile(r"^::: (evicp[\w.]*)$", re.MULTILINE)
_HEADING_OR_NAME = re.compile(r"^## (.+)$|^::: (evicp\.\w+)$", re.MULTILINE)
_PAGE = "[Reference](index.md){where}\n\n::: {name}\n    options:\n      heading_level: 1\n{example}"
#: Pages with an example for what has none in its docstring and is not returned by a function that has one.
_GUIDES = {
    "evicp.blocks": "scale.md",
    "evicp.calibration.device": "gpu.md",
    "evicp.calibration.laws": "guarantees.md",
    "evicp.calibration.predictor": "gpu.md",
    "evicp.calibration": "guarantee.md",
    "evicp.datasets": "quickstart.md",
    "evicp.errors": "reference/evicp.EvicpError.md",
    "evicp.evaluation": "choose-a-score.md",
    "evicp.extraction": "extraction.md",
    "evicp.hub": "platforms.md",
    "evicp.io": "scale.md",
    "evicp.method": "choose-a-score.md",
    "evicp.mlflow": "platforms.md",
    "evicp.onnx": "deployment.md",
    "evicp.ray": "scale.md",
    "evicp.report": "report.md",
    "evicp.risk": "risk.md",
    "evicp.sets": "scale.md",
    "evicp.sklearn": "deployment.md",
    "evicp.spark": "platforms.md",
    "evicp.torch": "deployment.md",
}


def on_config(config: Any) -> Any:
    """Put what `import evicp` exports into the navigation, by the headings of the first page."""
    text = (Path(config.docs_dir) / "reference" / "index.md").read_text(encoding="utf-8")
    groups: dict[str, list[dict[str, str]]] = {}
    for heading, name in _HEADING_OR_NAME.findall(text):
        if heading:
            groups[heading] = []
        else:
            groups[next(reversed(groups))].append({name.removeprefix("evicp."): f"reference/{name}.md"})
    for entry in config.nav:
        if "Reference" in entry:
            first, *modules = entry["Reference"]
            entry["Reference"] = [
                first,
                *({heading: pages} for heading, pages in groups.items() if pages),
                {"Modules": modules},
            ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of all objects."""
    for page in [page for page in files.documentation_pages() if page.src_uri.startswith("reference/")]:
        file = page.src_uri.removeprefix("reference/")
        where = "" if file == "index.md" else f" / [{page.content_string.splitlines()[0].removeprefix('# ')}]({file})"
        for _, shown in _shown_on(page.content_string):
            path = f"reference/{shown.path}.md"
            if files.get_file_from_path(path) is None:
                text = _PAGE.format(name=shown.path, where=where, example=_example(shown))
                files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the names of objects by links to their pages."""
    if not page.file.src_uri.startswith("reference/") or page.file.generated_by is not None:
        return markdown
    return _NAMED.sub(lambda match: _listed(match[1]), markdown)


@cache
def _package() -> griffe.Module:
    """Evicp as its source says it; nothing is imported."""
    source = Path(__file__).parents[1] / "src"
    return griffe.load("evicp", search_paths=[source], resolve_aliases=True)  # type: ignore[return-value]


def _find(name: str) -> Any:
    return _package() if name == "evicp" else _package()[name.removeprefix("evicp.")]


def _shown_on(markdown: str) -> Iterator[tuple[str, Any]]:
    """What a page names, and each object that this stands for under the shortest name that evicp exports it by."""
    for name in _NAMED.findall(markdown):
        found = _find(name)
        for shown in [found.members[own] for own in found.exports or ()] if found.is_module else [found]:
            yield name, _exported().get(shown.canonical_path, shown)


@cache
def _exported() -> dict[str, Any]:
    """What `import evicp` exports, by the names where it is defined."""
    package = _package()
    return {package.members[name].canonical_path: package.members[name] for name in map(str, package.exports or ())}


def _listed(name: str) -> str:
    """A link to each object that a name stands for; of a module also what it is for."""
    links = [f"- [`{shown.path}`]({shown.path}.md): {_sentence(shown)}" for _, shown in _shown_on(f"::: {name}")]
    found = _find(name)
    if not found.is_module:
        return "\n".join(links)
    return "\n".join([f"## {name}", "", _sentence(found), "", *links])


def _sentence(thing: Any) -> str:
    """The first sentence of a docstring."""
    return " ".join(thing.docstring.value.split("\n\n")[0].split()) if thing.docstring else ""


def _example(thing: Any) -> str:
    """Where an example is, for what has none itself: the function that returns it, or a page of the guides."""
    own = [thing, *(thing.members.values() if thing.is_class else ())]
    if any(">>> " in one.docstring.value for one in own if not one.is_alias or one is thing if one.docstring):
        return ""
    for maker in _exported().values():
        if maker.is_function and str(maker.returns) == thing.name and ">>> " in maker.docstring.value:
            return f"\nExample: [`{maker.path}`]({maker.path}.md)\n"
    guide = next((page for prefix, page in _GUIDES.items() if thing.canonical_path.startswith(prefix)), None)
    return f"\nExample: [guide](../{guide})\n" if guide else ""
