"""Optional packages: imported where they are used, and missed in one sentence."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evicp.errors import missing_extra

__all__ = ["need"]


def need(module: str, package: str, extra: str, purpose: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(package, extra, purpose) from error
