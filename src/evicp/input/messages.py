"""Names in error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def did_you_mean(name: str, known: Iterable[str], most: int = 1, show: Callable[[str], str] = str) -> str:
    """The question that an unknown name raises, with the known ones next to it; empty where none is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), most)
    return f"Did you mean {', '.join(map(show, close))}?" if close else ""


def some_of(names: Sequence[Any], as_text: Callable[[Any], str] = str) -> str:
    """Eight names at most, and how many more there are.

    >>> some_of("abcdefghij")
    'a, b, c, d, e, f, g, h and 2 more'
    """
    return ", ".join(map(as_text, names[:8])) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")
