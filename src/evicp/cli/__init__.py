"""The command line, `evicp`: one module per command, each a plain function with typed options."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer
from rich.console import Console

import evicp
from evicp.cli.bench import bench
from evicp.cli.calibrate import calibrate
from evicp.cli.compare import compare
from evicp.cli.demo import demo
from evicp.cli.evaluate import evaluate
from evicp.cli.explain import explain
from evicp.cli.export import export
from evicp.cli.extract import extract
from evicp.cli.monitor import monitor
from evicp.cli.plan import plan
from evicp.cli.predict import predict
from evicp.cli.report import report
from evicp.cli.reproduce import reproduce
from evicp.cli.tune import tune
from evicp.errors import MissingExtraError

__all__ = ["app", "main"]

#: Exit codes: 0 done, 1 failed, 2 bad input.
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

#: What the parser of the command line raises; its module differs between versions of Typer.
UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="evicp",
    help="Prediction sets with a coverage guarantee from any classifier's logits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    *(demo, extract, calibrate, predict, evaluate, compare, tune, report, explain, plan, monitor),
    *(export, reproduce, bench),
):
    app.command(epilog=getattr(command, "epilog", None))(command)


def main() -> None:
    """Run the command line; bad input ends with one line and exit code 2, never with a traceback."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        sys.exit(app(standalone_mode=False, prog_name="evicp") or 0)
    except MissingExtraError as error:
        _fail(error, FAILED)
    except evicp.EvicpError as error:
        _fail(error, BAD_INPUT)
    except UsageError as error:
        _fail_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


def _fail_usage(error: Any) -> None:
    """One line for a mistyped command; without any command, the help."""
    message, context = error.format_message(), error.ctx
    if not message or "\n" in message:
        error.show()
        sys.exit(BAD_INPUT)
    stop = "" if message.endswith((".", "?")) else "."
    _fail(f"{message}{stop} Try '{context.command_path if context else 'evicp'} --help'.", BAD_INPUT)


def _fail(message: object, code: int) -> None:
    line = " ".join(str(message).split())
    Console(stderr=True).print(f"error: {line}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _show_warning(message: Warning | str, *_: Any) -> None:
    Console(stderr=True).print(f"warning: {message}", markup=False, highlight=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        Console().print(evicp.__version__, highlight=False)
        raise typer.Exit
