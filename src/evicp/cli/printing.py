"""What commands print: results on standard output, remarks and errors on standard error. Loads quickly."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

#: Characters that reverse the direction of the text after them.
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: Texts are folded into no fewer columns than this: names in a column of one letter, or of none, tell nothing.
_LEAST_TEXT = 10


def visible(text: object, *, lines: bool = False) -> str:
    r"""Text that a terminal shows and does not obey: control characters are escaped, line ends too unless wanted.

    >>> print(visible("a\x1b[2Jb\n"))
    a\x1b[2Jb\n
    """
    plain_text = str(text)
    if plain_text.isprintable():
        return plain_text
    return "".join(c if c == "\n" and lines else _escaped(c) for c in plain_text)


def _escaped(character: str) -> str:
    harmful = unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} or character in _BIDIRECTIONAL
    return character.encode("unicode_escape").decode() if harmful else character


# ---------------------------------------------------------------------------------------------------------------
# Standard error


def note(text: str) -> None:
    """A remark for people, on standard error: it never mixes with results."""
    say(visible(text), style="dim")


def say(line: str, *, style: str | None = None) -> None:
    """Print a line on standard error; where that is closed or its disk is full, nothing is said and work goes on."""
    try:
        _Remarks(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True, style=style)
    except OSError:  # also where no more files can be opened, which Rich does as it goes
        try:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        except OSError:
            mute(sys.stderr)


class _Remarks(Console):
    """A console that ignores a closed stream: Rich's own ends the program and closes standard output."""

    def on_broken_pipe(self) -> None:
        """Go on where the reader of standard error has gone."""
        mute(sys.stderr)


def mute(stream: TextIO) -> None:
    """What is left to print there goes nowhere: Python would complain once more while flushing at exit."""
    with suppress(OSError):  # what is no file has nothing to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# ---------------------------------------------------------------------------------------------------------------
# Results


def print_result(as_json: bool, content: Mapping[str, Any], text: object, written: Path | None = None) -> None:
    """Print a result: as one JSON document if wanted, else as text and where it was written."""
    if as_json:
        print_json(content)
        return
    print_text(text)
    if written is not None:
        note(f"wrote {written}")


def print_text(text: object) -> None:
    """Print a result as it is: no markup, no wrapping, so that a class name cannot style or break anything."""
    stdout_console().print(visible(text, lines=True), markup=False, highlight=False, soft_wrap=True)


def stdout_console() -> Console:
    """The console for results: as wide as the terminal, or 110 columns where there is none."""
    return Console() if sys.stdout.isatty() else Console(width=110)


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    *,
    bold: str = "",
    left: Sequence[int] = (),
) -> None:
    """Print a table; the first column and those in `left` are aligned to the left, the others to the right.

    On a narrow terminal texts are folded, down to a few letters; numbers stay whole. The terminal breaks what is wider.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    console = stdout_console()
    cells = [[visible(cell) for cell in row] for row in rows]
    columns = list(zip(head, *cells, strict=True))
    narrow = sum(max(map(cell_len, column)) + 2 for column in columns) - 2 > console.width
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    least, edge = -2, _edge(console)
    for i, (name, *values) in enumerate(columns):
        text = i == 0 or i in left
        width = max(map(cell_len, [*name.split(), *values]))
        smallest = min(width, _LEAST_TEXT) if text else width
        least += smallest + 2
        outer = edge * ((i == 0) + (i == len(columns) - 1))
        fixed = width - outer if narrow and not text else None
        least_width = smallest - outer if narrow else None
        justify: Any = "left" if text else "right"
        table.add_column(name, justify=justify, overflow="fold", width=fixed, min_width=least_width)
    console.width = max(console.width, least)
    for row, shown in zip(rows, cells, strict=True):
        table.add_row(*map(Text, shown), style="bold" if row[0] == bold else None)
    console.print(table)


def _edge(console: Console) -> int:
    """By how much Rich makes the outermost columns wider than asked: before version 15 by the padding it leaves out."""
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(width=1)
    return (Measurement.get(console, console.options, table).minimum - 1) // 2


def print_json(value: Any) -> None:
    """Print one JSON document: NaN as null, infinities as "inf" and "-inf", fractions as numbers."""
    from evicp.io.json_text import json_text

    sys.stdout.write(json_text(value))
