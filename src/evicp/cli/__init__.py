"""The command line, `evicp`: one module per command, each a plain function with typed options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evicp.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; what it needs is imported here, where an interruption is no traceback either."""
    try:
        from evicp.cli.commands import run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)


def __getattr__(name: str) -> Any:
    if name == "app":
        from evicp.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
