"""The page of a rule that bounds a loss or an error: one HTML file that needs neither network nor script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from evicp import __version__
from evicp.report.page import Page, filled
from evicp.report.provenance import Provenance

__all__ = ["RulePage", "Section"]


class Section(NamedTuple):
    """A part of the page.

    Parameters
    ----------
    title, text : its heading, and what there is to read below it
    picture : SVG; "" for none
    table : the heads of columns, and rows of text; None for none
    """

    title: str
    text: str
    picture: str = ""
    table: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class RulePage(Page):
    """The guarantee of a rule and its evaluation on other rows, as one HTML page. Displays itself in a notebook.

    Attributes
    ----------
    facts : the lines of the certificate
    caveat : on what it rests
    verdict, kept : the result in a sentence, and whether it agrees with the guarantee
    sections : pictures and tables
    origin : where the rows come from
    """

    facts: tuple[tuple[str, str], ...]
    caveat: str
    verdict: str
    kept: bool
    sections: tuple[Section, ...]
    origin: Provenance

    def to_html(self) -> str:
        """The whole page as text."""
        origin = self.origin.to_dict()
        parts = {
            "provenance": _origin(origin),
            "state": "" if self.kept else "off",
            "verdict": escape(self.verdict),
            "certificate": _facts(self.facts),
            "caveat": escape(self.caveat),
            "sections": "\n".join(map(_section, self.sections)),
        }
        return filled("rule.html", self.title, self.lead, __version__, origin["date"], parts)

    def __repr__(self) -> str:
        return f"RulePage({self.title!r}: {self.verdict})"


def _origin(origin: dict[str, Any]) -> str:
    """Model, data, author, date and versions; and the files that were read."""
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    given = [(name.replace("_", " "), origin[name]) for name in ("model", "data_set", "author", "note", "date")]
    about = _facts([*((name, text) for name, text in given if text), ("versions", versions)])
    files = [[file["name"], f"{file['bytes']:,} bytes", file["sha256"]] for file in origin["files"]]
    read = _table(["file", "size", "SHA-256"], files, 'id="table-files" class="stack"') if files else ""
    return f'<div class="scroll">{about}{read}</div>'


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in facts)
    return f'<table class="facts"><tbody>{"".join(rows)}</tbody></table>'


def _section(section: Section) -> str:
    table = "" if section.table is None else f'<div class="scroll">{_table(*section.table, "class=numbers")}</div>'
    head = f"<h2>{escape(section.title)}</h2><p class=aside>{escape(section.text)}</p>"
    return f"<section>{head}{section.picture}{table}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], attributes: str) -> str:
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = (
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f"<table {attributes}><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
