"""Whether two lines of a page are the same."""

from __future__ import annotations

import re

import numpy as np


def is_rounding_apart(line: str, other: str, tolerance: float) -> bool:
    """Whether two lines are the same but for the last digits of their numbers, which another machine may change."""
    if line == other:
        return True
    number = re.compile(r"[-+]?[0-9][0-9.]*(?:e-?[0-9]+)?")
    if number.sub("#", line) != number.sub("#", other):
        return False
    ours, theirs = (np.array(number.findall(text), float) for text in (line, other))
    return bool(np.allclose(ours, theirs, rtol=tolerance, atol=tolerance))
