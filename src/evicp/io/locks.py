"""Locks between processes. They are advisory, and end with the process that holds them, however it ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["hold", "try_lock"]

#: Seconds between two attempts to get a lock, and after which a wait is worth a word.
_PAUSE, _PATIENCE = 0.02, 1.0


def try_lock(descriptor: int) -> bool:
    """Lock an open file unless it is locked already; OSError where its file system has no locks."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


@contextmanager
def hold(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file, which is made and removed; whoever else wants it waits.

    Parameters
    ----------
    on_wait : called once if that takes longer than a second
    """
    said, begin = False, time.monotonic()
    while (descriptor := _acquired(path)) is None:
        if not said and time.monotonic() - begin > _PATIENCE:
            said = True
            on_wait()
        time.sleep(_PAUSE)
    try:
        yield
    finally:
        with suppress(OSError):  # while it is locked: `_acquired` does not take a file that has lost its name
            path.unlink()
        os.close(descriptor)


def _acquired(path: Path) -> int | None:
    """The lock file, open and locked; None if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    held = False
    try:
        held = try_lock(descriptor) and still_at(path, descriptor)
    finally:
        if not held:
            os.close(descriptor)
    return descriptor if held else None


def still_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
