"""The command line, `evicp`: one module per command, each a plain function with typed options."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

import evicp
from evicp.cli.demo import demo

__all__ = ["app", "main"]

app = typer.Typer(
    name="evicp",
    help="Prediction sets with a coverage guarantee from any classifier's logits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (demo,):
    app.command()(command)


def main() -> None:
    """Run the command line; bad input ends with one line and exit code 2, never with a traceback."""
    try:
        app()
    except evicp.EvicpError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        Console().print(evicp.__version__, highlight=False)
        raise typer.Exit
