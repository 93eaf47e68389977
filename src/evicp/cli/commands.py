"""The commands as one application, and how it ends: exit codes, errors in one line, signals."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import evicp
from evicp.cli import streams
from evicp.cli.printing import mute, say, visible
from evicp.errors import MissingExtraError
from evicp.io.atomic import remove_unfinished

#: Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted (Ctrl-C), 141 output closed, 143 terminated.
FAILED, BAD_INPUT, READER_GONE, TERMINATED = 1, 2, 141, 143

#: What the parser of the command line raises; its module differs between versions of Typer.
UsageError: Any = typer.BadParameter.__mro__[1]

#: The commands, each in a module of its name, and the first line of its help.
COMMANDS = MappingProxyType(
    {
        "demo": (
            "Compare the scores on embedded ImageNet logits; show a certificate, some sets and a report. Works offline."
        ),
        "extract": "Compute logits of a network for images, texts or questions and write them with their labels.",
        "calibrate": "Calibrate on labelled rows and print a certificate. The file works for any coverage.",
        "predict": ("Predict the sets of new rows: parquet, npz, jsonl, json or csv by suffix, JSON lines for -."),
        "control": "Bound the expected loss of sets: write a rule for evicp apply and print its certificate.",
        "selective": ("Answer or abstain: write a rule with a bounded error of answers and print its certificate."),
        "multilabel": (
            "Several labels per row: write a rule that misses at most a share of them and print its certificate."
        ),
        "apply": "Apply a rule to new rows; with labels, evaluate it.",
        "evaluate": ("Evaluate prediction sets: coverage, size, SSCV, SAT, classes, and whether the guarantee holds."),
        "compare": "Compare scores by coverage, size, SSCV and SAT on the same random splits of labelled rows.",
        "leaderboard": (
            "Rank scores on several networks, at several coverages, with the temperature at 1, fitted and tuned."
        ),
        "tune": "Tune a score on separate rows. Do not calibrate or test on them afterwards.",
        "report": "Write an interactive HTML report: coverage slider, charts, certificate, classes, single rows.",
        "explain": "Explain one row: the parts of each label's score, and which labels are in the set.",
        "plan": "Compute how many calibration rows keep coverage within a tolerance.",
        "show": "Show the content of a calibration file and its certificate, or the content of a rule.",
        "verify": ("Verify that a certificate belongs to a calibration or a rule: checksums and recomputed figures."),
        "check": "Test whether new rows resemble the calibration rows, with or without labels.",
        "monitor": ("Monitor coverage on labelled rows in order of arrival; raise an alarm when it no longer holds."),
        "export": ("Add prediction sets to an ONNX classifier: standard operators, dynamic batch size."),
        "reproduce": (
            "Reproduce the paper's Tables 1 to 8 and Figures 2 and 3 under its released protocol and a clean one."
        ),
        "bench": ("Measure the time of calibration, sets and a temperature fit, relative to one read of the logits."),
    }
)


class _ReaderGoneError(Exception):
    """The reader closed our output. Not an OSError, for which Typer would exit with code 1."""


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error


def application(loaded: Collection[str] = COMMANDS) -> typer.Typer:
    """The command line, with the modules of some commands loaded; of the others it only knows the names and help."""
    made = typer.Typer(
        name="evicp",
        cls=_Group,
        help="Prediction sets with a coverage guarantee from any classifier's logits.",
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_without_command)
    for name, line in COMMANDS.items():
        if name in loaded:
            command = getattr(import_module(f"evicp.cli.{name}"), name)
            made.command(epilog=getattr(command, "epilog", None))(command)
        else:
            made.command(name, help=line)(lambda: None)
    return made


def commands_in(arguments: Sequence[str]) -> Collection[str]:
    """The commands that have to be loaded: loading all takes longer than most of them take."""
    if "_EVICP_COMPLETE" in os.environ:  # the shell asks for options
        return COMMANDS
    return {word for word in arguments if not word.startswith("-")} & COMMANDS.keys()


def run(app: typer.Typer) -> None:
    """Run the command line; bad input ends with one line and exit code 2, never with a traceback."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    _say_everything()
    _tidy_up_when_terminated()
    try:
        code = app(standalone_mode=False, prog_name="evicp") or 0
        if code == streams.INTERRUPTED:  # so some versions of Typer end
            streams.end_interrupted()
        sys.stdout.flush()
        sys.exit(code)
    except MissingExtraError as error:
        _fail(error, FAILED)
    except evicp.EvicpError as error:
        _fail(error, BAD_INPUT)
    except UsageError as error:
        _fail_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        streams.end_interrupted()
    except (_ReaderGoneError, BrokenPipeError):  # the usual code of shells; 1 means a broken guarantee
        mute(sys.stdout)
        sys.exit(READER_GONE)
    except OSError as error:  # a full disk behind standard output, a folder that may not be read
        mute(sys.stdout)
        _fail(f"{error.filename or 'cannot read or write'}: {error.strerror or error}.", BAD_INPUT)
    except (MemoryError, RecursionError, UnicodeError) as error:
        _fail(f"this input is too large, too deep or no text: {error or type(error).__name__}.", BAD_INPUT)


def _say_everything() -> None:
    """Let standard output take any name: UTF-8 for files and programs, escapes on terminals that lack a letter."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(encoding=out.encoding if out.isatty() else "utf-8", errors="backslashreplace")


def _tidy_up_when_terminated() -> None:
    """Let SIGTERM remove unfinished files and end the program at once.

    Not by an exception: while kernels are loaded, code in C may be waiting for us that knows none.
    """

    def terminate(_number: int, _frame: Any) -> None:
        remove_unfinished()
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\x1b[?25h")  # a progress bar has hidden the cursor
        os._exit(TERMINATED)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)


def _fail_usage(error: Any) -> None:
    """One line for a mistyped command."""
    message, context = error.format_message(), error.ctx
    if getattr(error, "option_name", "") == "--alpha":  # with what follows it, if that is a number
        following = sys.argv[sys.argv.index("--alpha") + 1 :][:1] if "--alpha" in sys.argv else []
        message = f"No such option: --alpha. Did you mean --{_coverage_of(following)}?"
    stop = "" if message.endswith((".", "?")) else "."
    _fail(f"{message}{stop} Try '{context.command_path if context else 'evicp'} --help'.", BAD_INPUT)


def _coverage_of(following: list[str]) -> str:
    """What an alpha is as a coverage, as text."""
    from evicp.input.messages import as_coverage_argument

    try:
        value: Any = float(following[0])
    except (IndexError, ValueError):
        value = None
    return as_coverage_argument("alpha", value).replace("=", " ")


def _fail(message: object, code: int) -> None:
    line = visible(" ".join(str(message).split()))
    say(f"error: {line}")
    sys.exit(code)


def _show_warning(message: Warning | str, *_: Any) -> None:
    line = visible(" ".join(str(message).split()))
    say(f"warning: {line}")


def _without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from evicp import kernels

        Console().print(f"{evicp.__version__} (kernels: {kernels.level()})", highlight=False)
        raise typer.Exit
    if context.invoked_subcommand is None:
        Console(stderr=True).print(context.get_help(), markup=False, highlight=False, end="")
        raise typer.Exit(BAD_INPUT)
