"""From a report's data to one page of HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from os import PathLike
from typing import Any

from evicp.io.atomic import write_whole


@dataclass(frozen=True, eq=False, repr=False)
class Page:
    """A page with a title and a line below it. Shows itself inside a notebook."""

    title: str
    lead: str

    def to_html(self) -> str:
        """The whole page as text."""
        raise NotImplementedError

    def write(self, path: str | PathLike[str]) -> None:
        """Write the page to one file, atomically."""
        write_whole(path, self.to_html())

    def _repr_html_(self) -> str:
        """The page in a separate frame, so that it and the notebook leave each other alone."""
        source = escape(self.to_html(), quote=True)
        return (
            f'<iframe srcdoc="{source}" title="{escape(self.title)}" style="width:100%;height:900px;border:0"></iframe>'
        )


_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def assemble(title: str, lead: str, data: dict[str, Any]) -> str:
    """The page, with everything it needs inside it. Text is escaped, data can neither end nor open an element."""
    scripts = {"charts": _source("charts.js"), "script": _source("page.js"), "data": _json(data)}
    return filled("page.html", title, lead, data["version"], data["date"], scripts)


def filled(template: str, title: str, lead: str, version: str, date: str, parts: Mapping[str, str]) -> str:
    """A template with its style, its title and the parts that stand in it."""
    foot = f"Made by evicp {version} on {date}. One file that works offline."
    texts = {"title": escape(title), "lead": escape(lead), "foot": escape(foot)}
    content = {**texts, "style": _source("page.css"), **parts}
    return _PLACEHOLDER.sub(lambda match: content[match.group(1)], _source(template))


@cache
def _source(name: str) -> str:
    return (files("evicp.report") / name).read_text(encoding="utf-8")


def _json(data: dict[str, Any]) -> str:
    """JSON that means the same to a browser's HTML parser as to its JSON parser."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
