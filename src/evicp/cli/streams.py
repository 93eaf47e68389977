"""Standard streams that are closed (`2>&-`), and Ctrl-C before a command has begun and after it has ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: The exit code after Ctrl-C.
INTERRUPTED = 130

_INTERRUPTED = b"error: interrupted\n"

_closed: set[int] = set()


def open_streams() -> None:
    """Put the null device where a standard stream is closed.

    Otherwise the next file opened would take its number, and what libraries print would end up in that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            _closed.add(number)
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as we run
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def output_is_closed() -> bool:
    """Whether nobody can read what is printed, because the caller closed standard output."""
    return 1 in _closed


@contextmanager
def uninterrupted() -> Iterator[None]:
    """While modules are imported, let Ctrl-C end the program itself: an exception may be lost in an import."""
    with suppress(ValueError):  # outside the main thread, where no signals are handled
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _quit)
    yield
    with suppress(ValueError):
        if signal.getsignal(signal.SIGINT) is _quit:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _quit(_number: int, _frame: Any) -> None:
    with suppress(OSError):
        os.write(2, _INTERRUPTED)
    os._exit(INTERRUPTED)  # nothing has been done yet that would have to be undone


def end_at_once() -> None:
    """Let Ctrl-C end the program without a word: what is left to do is the interpreter's own end."""
    with suppress(ValueError):
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_interrupted() -> None:
    """End with one line and exit code 130; a second Ctrl-C ends the program at once, and as quietly."""
    end_at_once()
    with suppress(OSError):
        sys.stderr.write(_INTERRUPTED.decode())
        sys.stderr.flush()
    sys.exit(INTERRUPTED)
