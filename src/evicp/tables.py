"""Small tables of text, for results that print themselves."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import Any

__all__ = ["csv_table", "html_table", "markdown_table", "text_table"]


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right unless they hold sentences.

    >>> print(text_table(["score", "size"], [["ecp", "2.1"], ["lac", "12.0"]]))
    score  size
    -----  ----
    ecp     2.1
    lac    12.0
    """
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(_width, column)) for column in columns]
    right = [i > 0 and not any(" " in cell for cell in column[1:]) for i, column in enumerate(columns)]
    lines = [list(head), ["-" * width for width in widths], *rows]
    return "\n".join(_line(cells, widths, right) for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        space = " " * (width - _width(cell))
        padded.append(space + cell if to_right else cell + space)
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Columns on a terminal: wide letters take two, marks on the letter before them none.

    >>> _width("cat"), _width("\N{CJK UNIFIED IDEOGRAPH-732B}"), _width("e\N{COMBINING ACUTE ACCENT}")
    (3, 2, 1)
    """
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A Markdown table; a cell cannot end its column or its line.

    >>> print(markdown_table(["score", "size"], [["a|b", "2.1"]]))
    | score | size |
    | --- | --- |
    | a\|b | 2.1 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines)


def _markdown_cell(cell: str) -> str:
    return " ".join(cell.replace("|", "\\|").split())


def csv_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Comma-separated values with a header line."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table, every cell escaped."""
    lines = [_html_row("th", head), *(_html_row("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
