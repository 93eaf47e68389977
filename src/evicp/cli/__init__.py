"""The command line, `evicp`: one module per command, each a plain function with typed options."""

TYPE_CHECKING = False  # see evicp/__init__.py
if TYPE_CHECKING:
    from typing import Any

    from typer import Typer

    app: Typer

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; what it needs is imported here, where an interruption is no traceback either."""
    try:
        import atexit
        import gc
        import sys

        from evicp.cli import streams

        # Imports make many objects and hardly any cycles. Looking for these as often as usual, and among all objects at
        # the end, would take a quarter of a short command's time.
        gc.set_threshold(100_000)
        atexit.register(gc.freeze)
        streams.open_streams()
        with streams.uninterrupted():
            from evicp.cli.commands import application, commands_in, run

            app = application(commands_in(sys.argv[1:]))
        try:
            run(app)
        finally:
            streams.end_at_once()
    except KeyboardInterrupt:
        from evicp.cli import streams

        streams.end_interrupted()


def __getattr__(name: str) -> "Any":
    if name == "app":
        from evicp.cli.commands import application

        globals()[name] = application()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
