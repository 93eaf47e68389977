"""Names in error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def did_you_mean(name: str, known: Iterable[str], most: int = 1, show: Callable[[str], str] = str) -> str:
    """The question that an unknown name raises, with the known ones next to it; empty where none is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), most)
    return f"Did you mean {', '.join(map(show, close))}?" if close else ""


def some_of(names: Iterable[Any], as_text: Callable[[Any], str] = str) -> str:
    """Eight names at most, and how many more there are.

    >>> some_of("abcdefghij")
    'a, b, c, d, e, f, g, h and 2 more'
    """
    listed = names.tolist() if isinstance(names, np.ndarray) else list(names)
    more = f" and {len(listed) - 8:,} more" if len(listed) > 8 else ""
    return ", ".join(map(as_text, listed[:8])) + more
