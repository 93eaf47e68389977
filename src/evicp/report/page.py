"""From a report's data to one page of HTML."""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from evicp.errors import need

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def assemble(title: str, lead: str, data: dict[str, Any]) -> str:
    """The page, with everything it needs inside it. Text is escaped, data can neither end nor open an element."""
    foot = (
        f"Made by evicp {data['version']} on {data['date']}. One file, no network: everything shown is in it. "
        "Figures drawn with Plotly.js (MIT licence)."
    )
    content = {
        "title": escape(title),
        "lead": escape(lead),
        "foot": escape(foot),
        "style": _source("page.css"),
        "script": _source("page.js"),
        "plotly": _plotly(),
        "data": _json(data),
    }
    return _PLACEHOLDER.sub(lambda match: content[match.group(1)], _source("page.html"))


@cache
def _source(name: str) -> str:
    return (files("evicp.report") / name).read_text(encoding="utf-8")


def require_plotly() -> Any:
    """Plotly, or how to install it; called before the work, not after."""
    return need("plotly.offline", "plotly", "report", "an interactive report")


def _plotly() -> str:
    return str(require_plotly().get_plotlyjs()).replace("</script", "<\\/script")


def _json(data: dict[str, Any]) -> str:
    """JSON that means the same to a browser's HTML parser as to its JSON parser."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
