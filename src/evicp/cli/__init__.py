"""The command line, `evicp`: one module per command, each a plain function with typed options."""

TYPE_CHECKING = False  # see evicp/__init__.py
if TYPE_CHECKING:
    from typing import Any

    from evicp.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; what it needs is imported here, where an interruption is no traceback either."""
    try:
        from evicp.cli import streams

        streams.open_streams()
        with streams.uninterrupted():
            from evicp.cli.commands import run
        try:
            run()
        finally:
            streams.end_at_once()
    except KeyboardInterrupt:
        from evicp.cli import streams

        streams.end_interrupted()


def __getattr__(name: str) -> "Any":
    if name == "app":
        from evicp.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
