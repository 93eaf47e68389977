"""Small tables of text, for results that print themselves."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["markdown_table", "text_table"]


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right unless they hold sentences.

    >>> print(text_table(["score", "size"], [["ecp", "2.1"], ["lac", "12.0"]]))
    score  size
    -----  ----
    ecp     2.1
    lac    12.0
    """
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [i > 0 and not any(" " in cell for cell in column[1:]) for i, column in enumerate(columns)]
    lines = [list(head), ["-" * width for width in widths], *rows]
    return "\n".join(_line(cells, widths, right) for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (f"{c:>{w}}" if r else f"{c:<{w}}" for c, w, r in zip(cells, widths, right, strict=True))
    return "  ".join(padded).rstrip()


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
