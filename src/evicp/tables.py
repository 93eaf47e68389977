"""Small tables of text, for results that print themselves."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import Any


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
    """Comma-separated values with a header line; text that a spreadsheet would compute is marked by `csv_text`."""
    return "".join(csv_line([c if _is_number(c) else csv_text(c) for c in line]) for line in (head, *rows))


def csv_line(cells: Sequence[Any]) -> str:
    """A line of comma-separated values.

    Not by the module csv, which does not quote a lone carriage return: readers would begin a new line there.
    """
    return ",".join(_quoted("" if cell is None else str(cell)) for cell in cells) + "\n"


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if re.search('[,"\r\n]', cell) else cell


#: The beginning of a formula, as spreadsheets understand it, or of text marked already.
_FORMULA = re.compile(r"[\s']*[=+\-@\uff1d\uff0b\uff0d\uff20]|'*[\t\r]")


def csv_text(text: str) -> str:
    """Text for a cell, with an apostrophe before what a spreadsheet would take for a formula.

    To have the text back, take one apostrophe from the beginning of text that has one and without it is marked again.

    >>> csv_text("=1+1"), csv_text("'=1+1"), csv_text("tabby cat"), csv_text("'tis")
    ("'=1+1", "''=1+1", 'tabby cat', "'tis")
    """
    return f"'{text}" if _FORMULA.match(text) else text


def _is_number(cell: Any) -> bool:
    """Whether a cell is a number, or one written out."""
    try:
        float(cell)
    except (TypeError, ValueError):
        return not isinstance(cell, str)
    return True


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
