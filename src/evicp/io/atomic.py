"""Files are written whole or not at all; processes that share one take turns."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from os import PathLike
from pathlib import Path

from evicp.errors import FileError
from evicp.io.paths import as_path, refuse_special

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextmanager
def atomic_path(path: str | PathLike[str]) -> Iterator[Path]:
    """A temporary file next to the target that takes its place when the block ends well, and vanishes when not.

    Whoever looks at the target, whenever, and whatever dies on the way, finds the old file or the new one. A symbolic
    link stays one: what it points to is replaced. The new file has the owner, group and mode of the old one and is at
    no time open to more readers; where there was none, it has those of any new file. What a killed process has left is
    removed when the same target is written again.
    """
    name = as_path(path)
    target = _resolved(name)
    temporary, descriptor = None, None
    try:
        refuse_special(name, "write")
        before = _status(target)
        _remove_abandoned(target)
        temporary, descriptor = _create_temporary(target, 0o666 if before is None else 0o600)
        yield temporary
        os.fsync(descriptor)
        if (replaced := _status(target) or before) is not None:
            _take_access(descriptor, replaced)
        if os.name == "nt":  # where no open file can be renamed
            os.close(descriptor)
            descriptor = None
        temporary.replace(target)
        _sync_directory(target.parent)
    except ConnectionError:  # a caller's pipe or socket: a file on disk has none
        raise
    except OSError as error:
        raise FileError(f"cannot write {name}: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            _unfinished.discard(temporary)
            with suppress(OSError):
                temporary.unlink()
        if descriptor is not None:
            os.close(descriptor)


def write_whole(path: str | PathLike[str], content: str | bytes) -> None:
    """Write a file that fits into memory, atomically; text in UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def locked(path: str | PathLike[str], on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep a file to oneself until the block ends, so that what is written back follows from what was read.

    Other processes that do the same wait; those that do not are not kept out.

    Parameters
    ----------
    path : the file, which need not exist
    on_wait : called once if that takes longer than a second
    """
    name = as_path(path)
    target = _resolved(name)
    lock = target.with_name(_own_name(target, "lock"))
    with ExitStack() as stack:
        try:
            stack.enter_context(_hold(lock, on_wait))
        except OSError as error:
            raise FileError(
                f"cannot lock {name}: {error.strerror or error}. Keep it in a folder that can be written to, on a file "
                "system that has "
            ) from error
        _unfinished.add(lock)
        try:
            yield
        finally:
            _unfinished.discard(lock)


#: The temporary files and locks of this process.
_unfinished: set[Path] = set()


def remove_unfinished() -> None:
    """Remove the temporary files and locks of a process that is about to end without a word to anyone."""
    for temporary in tuple(_unfinished):
        with suppress(OSError):
            temporary.unlink()


def _own_name(target: Path, ending: str) -> str:
    """A name for a file of ours that belongs to a target, of a length that every file system takes."""
    return f".evicp-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]}-{ending}"


def _create_temporary(target: Path, mode: int) -> tuple[Path, int]:
    """A new file next to the target, and a descriptor that keeps it locked: the sign that its writer is alive."""
    while True:
        temporary = target.with_name(_own_name(target, f"{secrets.token_hex(8)}.tmp"))
        _unfinished.add(temporary)
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        except OSError:
            _unfinished.discard(temporary)
            raise
        if os.name == "nt":  # where a lock would keep the writer itself out
            return temporary, descriptor
        ours = True
        with suppress(OSError):  # without locks nobody takes it for abandoned
            ours = _try_lock(descriptor) and _still_at(temporary, descriptor)
        if ours:
            return temporary, descriptor
        _unfinished.discard(temporary)  # another writer has removed it before it was locked
        os.close(descriptor)


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files of writers of this target that were killed: those that nobody keeps locked."""
    if os.name == "nt":
        return
    for temporary in target.parent.glob(_own_name(target, "*.tmp")):
        with suppress(OSError):  # it is another user's, or has gone
            descriptor = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _try_lock(descriptor):
                    temporary.unlink()
            finally:
                os.close(descriptor)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _take_access(descriptor: int, replaced: os.stat_result) -> None:
    """Give a file the owner, group and mode of the one it will replace, as far as that is allowed."""
    if os.name == "nt":
        return
    for owner, group in ((-1, replaced.st_gid), (replaced.st_uid, -1)):
        with suppress(OSError):
            os.fchown(descriptor, owner, group)
    mode = stat.S_IMODE(replaced.st_mode) & 0o777
    if os.fstat(descriptor).st_gid != replaced.st_gid:
        mode &= ~0o070  # its group is another one, to which the old file was not open
    with suppress(OSError):
        os.fchmod(descriptor, mode)


def _resolved(name: Path) -> Path:
    """The file that a path stands for: at the end of a symbolic link, whether it exists or not."""
    return Path(os.path.realpath(name)) if os.path.islink(name) else name  # noqa: PTH114 - which may raise


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable; not every platform can open a directory."""
    if os.name == "posix":
        try:
            descriptor = os.open(directory, os.O_RDONLY)
        except PermissionError:  # one may write into it without being allowed to list it
            return
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refuse_target(path: Path, suffixes: Sequence[str]) -> None:
    """Raise, before any work is done, where a file cannot be written, or has none of the suffixes that are known."""
    if path.suffix not in suffixes:
        raise FileError(f"cannot write {path}: unknown suffix {path.suffix!r}; known are {', '.join(suffixes)}.")
    refuse_special(path, "write")
    folder = _resolved(path).parent
    if not folder.is_dir():
        raise FileError(f"cannot write {path}: there is no directory {folder}. Create it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileError(f"cannot write {path}: the directory {folder} cannot be written to.")


def refuse_existing(path: str | PathLike[str], *, overwrite: bool) -> None:
    """Raise if a file would be replaced without permission."""
    if not overwrite and os.path.isfile(as_path(path)):  # noqa: PTH113 - no error where it cannot be looked at
        raise FileError(f"{path} exists. Pass overwrite=True to replace it, or give another name.")


# ---------------------------------------------------------------------------------------------------------------
# Locks: they are advisory, and end with the process that has them, however it ends


#: Seconds between two attempts to get a lock, and after which a wait is worth a word.
_PAUSE, _PATIENCE = 0.02, 1.0


def _try_lock(descriptor: int) -> bool:
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
def _hold(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
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
    ours = False
    try:
        ours = _try_lock(descriptor) and _still_at(path, descriptor)
    finally:
        if not ours:
            os.close(descriptor)
    return descriptor if ours else None


def _still_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
