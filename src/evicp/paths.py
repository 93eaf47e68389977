"""Paths: files are written whole or not at all, and nothing but a file is opened."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any

from evicp.errors import FileError, InputTypeError

__all__ = [
    "as_path",
    "atomic_path",
    "format_of",
    "natural_key",
    "readable",
    "refuse_target",
    "remove_unfinished",
    "write_whole",
]


@contextmanager
def atomic_path(path: str | PathLike[str]) -> Iterator[Path]:
    """A temporary path beside the target that takes its place when the block ends well, and vanishes when not.

    Whoever looks at the target, whenever, and whatever dies on the way, finds the old file or the new one. A symbolic
    link stays one: what it points to is replaced.
    """
    name = as_path(path)
    target = Path(os.path.realpath(name)) if os.path.islink(name) else name  # noqa: PTH114 - which may raise
    temporary = target.parent / f".evicp-{secrets.token_hex(8)}.tmp"
    _unfinished.add(temporary)
    try:
        _refuse_special(name, "write")
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        with suppress(OSError):  # a private file stays private; a new one is as private as files are here
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
        _sync_directory(target.parent)
    except ConnectionError:  # a caller's pipe or socket: a file on disk has none
        raise
    except OSError as error:
        raise FileError(f"cannot write {name}: {error.strerror or error}.") from error
    finally:
        _unfinished.discard(temporary)
        with suppress(OSError):
            temporary.unlink()


def write_whole(path: str | PathLike[str], content: str | bytes) -> None:
    """Write a file that fits into memory, atomically; text in UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())


#: The temporary files of this process.
_unfinished: set[Path] = set()


def remove_unfinished() -> None:
    """Remove the temporary files of a process that is about to end without a word to anyone."""
    for temporary in tuple(_unfinished):
        with suppress(OSError):
            temporary.unlink()


def as_path(path: Any) -> Path:
    """A path as a `Path`, if it can be one."""
    if not isinstance(path, str | PathLike):
        raise InputTypeError(f"a path must be a string or a pathlib.Path; got {path!r} ({type(path).__name__}).")
    if not (text := os.fsdecode(path)):
        raise FileError("a path must not be empty.")
    if "\0" in text:
        raise FileError(f"a path must not hold a NUL character; got {text!r}.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise FileError(f"a path must be text that file names can have here; got {text!r}.") from error
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


def refuse_target(path: Path, suffixes: Sequence[str]) -> None:
    """Raise, before any work is done, where a file cannot be written, or has none of the suffixes that are known."""
    if path.suffix not in suffixes:
        raise FileError(f"cannot write {path}: unknown suffix {path.suffix!r}; known are {', '.join(suffixes)}.")
    _refuse_special(path, "write")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no directory {path.parent}. Create it first.")


def _refuse_special(path: Path, act: str) -> None:
    """A directory, a pipe or a device is no file: reading one may never end, replacing one may break a machine."""
    if path.is_dir():
        raise FileError(f"cannot {act} {path}: it is a directory. Give a file name.")
    if path.exists() and not path.is_file():
        raise FileError(f"cannot {act} {path}: it is not a regular file.")


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable; not every platform can open a directory."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def readable(path: Path) -> Path:
    """A path to a file that can be opened."""
    try:
        _refuse_special(path, "read")
        with path.open("rb"):
            return path
    except FileNotFoundError as error:
        raise FileError(f"cannot read {path}: no such file.") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error
