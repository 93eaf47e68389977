"""Paths, and reading: nothing but a regular file is opened, and whatever a parser raises becomes one typed error."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

from evicp.errors import EvicpError, FileError, InputTypeError, LabelsError, MissingExtraError


def as_path(path: Any) -> Path:
    """A path as a `Path`, if it can be one."""
    if not isinstance(path, str | PathLike):
        raise InputTypeError(f"a path must be a string or a pathlib.Path; got {path!r} ({type(path).__name__}).")
    if not (text := os.fsdecode(path)):
        raise FileError("a path must not be empty.")
    if "\0" in text:
        raise FileError(f"a path must not contain a NUL character; got {text!r}.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise FileError(f"a path must be text that this system allows in file names; got {text!r}.") from error
    return Path(text)


def format_of(path: Path) -> str:
    """What a file holds, by its suffix; one in capitals is the same.

    >>> format_of(Path("VAL.NPZ"))
    '.npz'
    """
    return path.suffix.lower()


def natural_key(name: str) -> list[str | int]:
    """Sort numbers inside names by value: "2" before "10".

    >>> sorted(["10", "9", "2/b", "2/a"], key=natural_key)
    ['2/a', '2/b', '9', '10']
    """
    pieces = re.split("([0-9]+)", name)
    return [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)]


@overload
def open_file(path: Path) -> io.BufferedReader: ...
@overload
def open_file(path: Path, buffering: Literal[0]) -> io.FileIO: ...
def open_file(path: Path, buffering: int = -1) -> Any:
    """Open a file that a user has named, to be read; what is no regular file is refused, and never waited for."""
    try:
        refuse_special(path, "read")  # before it is opened: some devices act on that
        return open(os.fspath(path), "rb", buffering, opener=_open_regular)
    except FileNotFoundError as error:
        raise FileError(f"cannot read {path}: no such file.") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error


def _open_regular(path: str, flags: int) -> int:
    """A descriptor of a regular file; what has taken its place since one looked is not waited for either."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _special(path, mode, "read")
    return descriptor


def unreadable(path: Any, error: Exception) -> FileError:
    """What was found in a file, as an error that names the file, once."""
    start = f"cannot read {path}: "
    return FileError(start + str(error).removeprefix(start))


def readable(path: Path) -> Path:
    """A path to a file that can be opened, for libraries that open files themselves."""
    with open_file(path):
        return path


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file; UnicodeDecodeError where it is none."""
    with io.TextIOWrapper(open_file(path), encoding) as file:
        return file.read()


def refuse_special(path: Path, act: str) -> None:
    """A directory, a pipe or a device is no file: reading one may never end, replacing one may break a machine."""
    if path.exists() and not path.is_file():
        raise _special(path, path.stat().st_mode, act)


def _special(path: str | Path, mode: int, act: str) -> FileError:
    if stat.S_ISDIR(mode):
        return FileError(f"cannot {act} {path}: it is a directory. Give a file name.")
    return FileError(f"cannot {act} {path}: it is not a regular file.")


# ---------------------------------------------------------------------------------------------------------------
# Parsers


def parsed(path: str | PathLike[str], readers: Mapping[str, Callable[[Path], Any]], what: str) -> Any:
    """What the reader for this suffix makes of a file; whatever a parser raises becomes one typed error.

    A suffix in capitals is the same suffix.
    """
    file = as_path(path)
    suffix = format_of(file)
    if suffix not in readers:
        raise FileError(
            f"cannot read {what} from {file}: unknown suffix {file.suffix!r}; known are {', '.join(readers)}."
        )
    with reading(file, f"it is not a {suffix} file of {what}"):
        return readers[suffix](file)


@contextmanager
def reading(source: object, problem: str = "it is damaged") -> Iterator[None]:
    """Whatever a parser raises on the way through a file becomes one typed error."""
    try:
        yield
    except (MissingExtraError, LabelsError):  # a package is missing, or labels do not belong to the logits
        raise
    except EvicpError as error:
        raise unreadable(source, error) from error
    except MemoryError as error:
        raise FileError(f"cannot read {source}: it is larger than the available memory ({error}).") from error
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise FileError(f"cannot read {source}: {error.strerror}.") from error
        reason = str(error) or "it ends too early"
        raise FileError(f"cannot read {source}: {problem} ({reason}).") from error


def typed(source: str, pieces: Iterator[Any]) -> Iterator[Any]:
    """Pieces of a file, `reading` it; what users raise between them stays theirs."""
    while True:
        with reading(source):
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece
