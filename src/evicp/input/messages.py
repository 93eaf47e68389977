"""Names in error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from evicp.errors import InputTypeError

#: What other packages call a coverage, and whether it is the share that may be missed.
OTHER_NAMES: Mapping[str, bool] = MappingProxyType(
    {
        **dict.fromkeys(("alpha", "delta", "epsilon", "error_rate", "significance"), True),
        **dict.fromkeys(("confidence_level", "target_coverage"), False),
    }
)


def refuse_unknown(function: str, unknown: Mapping[str, Any], hint: str = "") -> None:
    """Refuse arguments that a function does not have, if there are any; for a coverage it says the name it has here.

    Parameters
    ----------
    function, unknown : its name, and the arguments by name
    hint : what to do about `coverage`, where the function has none
    """
    for name, value in unknown.items():
        is_coverage = name == "coverage" or name in OTHER_NAMES
        question = (hint or f"Did you mean {as_coverage_argument(name, value)}?") if is_coverage else ""
        raise InputTypeError(f"{function}() got an unexpected argument {name!r}. {question}".rstrip())


def as_coverage_argument(name: str, value: Any) -> str:
    """What other packages call alpha, or another thing, as the argument `coverage`.

    >>> as_coverage_argument("alpha", 0.1), as_coverage_argument("confidence_level", 0.9)
    ('coverage=0.9', 'coverage=0.9')
    """
    if not isinstance(value, float | np.floating) or not 0 < value < 1:
        return "coverage=0.9"
    return f"coverage={1 - value if OTHER_NAMES.get(name) else value:.10g}"


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
