"""Which cases the usual run tries, and which are left to the long run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def usually(cases: Iterable[Any], usual: Callable[..., bool]) -> list[Any]:
    """Cases for `pytest.mark.parametrize`, tuples for several names; those that are not usual are marked `long`."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*value, marks=() if usual(*value) else pytest.mark.long) for value in values]
