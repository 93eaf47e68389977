"""What a rule promises, and what it was computed from, as text, JSON and HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from textwrap import fill
from typing import Any

from evicp.io.json_text import json_text
from evicp.tables import html_table

__all__ = ["RuleCertificate"]


@dataclass(frozen=True, repr=False)
class RuleCertificate:
    """What a rule of `evicp.risk` promises. Prints as a table.

    Attributes
    ----------
    title : what it certifies
    facts : what there is to say, by name, as text
    caveat : on what it rests, and what it does not say
    figures : the same as plain values, ready for JSON
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    caveat: str
    figures: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"certificate": self.title, **self.figures, "caveat": self.caveat}

    def to_json(self) -> str:
        """The certificate as JSON."""
        return json_text(self.to_dict())

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.facts)
        indent = " " * (width + 4)
        lines = [
            fill(f"  {name:<{width}}  {value}", 100, subsequent_indent=indent, break_long_words=False)
            for name, value in self.facts
        ]
        return "\n".join([self.title, *lines, fill(f"  {self.caveat}", 100, subsequent_indent="  ")])

    __repr__ = __str__

    def to_html(self) -> str:
        """The certificate as an HTML fragment."""
        table = html_table(["", ""], [list(fact) for fact in self.facts], caption=self.title, left=(1,))
        return f"{table}<p>{escape(self.caveat)}</p>"

    _repr_html_ = to_html
