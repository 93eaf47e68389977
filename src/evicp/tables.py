"""Small tables of text, for results that print themselves."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import Any

__all__ = ["csv_table", "html_table", "markdown_table", "rows_text", "text_table"]


def rows_text(count: int) -> str:
    """A number of rows in words.

    >>> rows_text(1), rows_text(1200)
    ('1 row', '1,200 rows')
    """
    return "1 row" if count == 1 else f"{count:,} rows"


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
    right = _to_right(columns)
    lines = [list(head), ["-" * width for width in widths], *rows]
    return "\n".join(_line(cells, widths, right) for cells in lines)


def _to_right(columns: Sequence[Sequence[str]]) -> list[bool]:
    """Whether each column is aligned to the right: not the first, and none with sentences; "1.2 (0.1)" is a number."""
    return [i > 0 and not any(map(_is_sentence, column[1:])) for i, column in enumerate(columns)]


def _is_sentence(cell: str) -> bool:
    return " " in cell and any(map(str.isalpha, cell))


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
    return " ".join(cell.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").split())


def csv_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Comma-separated values with a header line."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", *, left: Sequence[int] = ()
) -> str:
    """An HTML table with its caption, all text escaped; aligned like `text_table`, the columns in `left` to the left.

    >>> html_table(["score"], [["a < b"]])
    '<table><tr><th style="text-align:left;padding:0 .5em">score</th></tr>\
<tr><td style="text-align:left;padding:0 .5em">a &lt; b</td></tr></table>'
    """
    right = [to_right and i not in left for i, to_right in enumerate(_to_right(list(zip(head, *rows, strict=True))))]
    title = f'<caption style="text-align:left;padding:.8em .5em .2em">{escape(caption)}</caption>' if caption else ""
    lines = [_html_row("th", head, right), *(_html_row("td", row, right) for row in rows)]
    return f"<table>{title}{''.join(lines)}</table>"


def _html_row(tag: str, cells: Sequence[str], right: Sequence[bool]) -> str:
    def side(to_right: bool) -> str:
        return f'style="text-align:{"right" if to_right else "left"};padding:0 .5em"'

    return f"<tr>{''.join(f'<{tag} {side(r)}>{escape(c)}</{tag}>' for c, r in zip(cells, right, strict=True))}</tr>"
