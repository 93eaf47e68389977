"""Remarks and errors on standard error, and text that a terminal only shows; loads quickly."""

from __future__ import annotations

import os
import sys
import unicodedata
from contextlib import suppress
from typing import TextIO

from rich.console import Console

__all__ = ["mute", "note", "say", "visible"]

#: Characters that turn around the text after them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


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
    harmful = unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} or character in _TURNING
    return character.encode("unicode_escape").decode() if harmful else character


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
    """A console that nobody need listen to: Rich's own ends the program, and takes standard output away."""

    def on_broken_pipe(self) -> None:
        """Go on where the reader of standard error has gone."""
        mute(sys.stderr)


def mute(stream: TextIO) -> None:
    """What is left to print there goes nowhere: Python would complain once more while flushing at exit."""
    with suppress(OSError):  # what is no file has nothing to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
