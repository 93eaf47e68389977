"""Results as JSON documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from math import isfinite, isnan
from pathlib import Path
from typing import Any


def json_text(value: Any) -> str:
    """A JSON document: NaN as null, infinities as "inf" and "-inf", fractions as numbers."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """A result as JSON knows it.

    >>> import numpy as np
    >>> plain({"size": np.float64(2.5), "sat": float("nan"), "threshold": float("inf"), "range": (1, 3)})
    {'size': 2.5, 'sat': None, 'threshold': 'inf', 'range': [1, 3]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else "inf" if value > 0 else "-inf"
    return float(value) if isinstance(value, Fraction) else str(value) if isinstance(value, Path) else value
