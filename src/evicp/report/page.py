"""From a report's data to one page of HTML."""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def assemble(title: str, lead: str, data: dict[str, Any]) -> str:
    """The page, with everything it needs inside it. Text is escaped, data can neither end nor open an element."""
    foot = f"Made by evicp {data['version']} on {data['date']}. One file, no network: everything shown is in it."
    content = {
        "title": escape(title),
        "lead": escape(lead),
        "foot": escape(foot),
        "style": _source("page.css"),
        "charts": _source("charts.js"),
        "script": _source("page.js"),
        "data": _json(data),
    }
    return _PLACEHOLDER.sub(lambda match: content[match.group(1)], _source("page.html"))


@cache
def _source(name: str) -> str:
    return (files("evicp.report") / name).read_text(encoding="utf-8")


def _json(data: dict[str, Any]) -> str:
    """JSON that means the same to a browser's HTML parser as to its JSON parser."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
