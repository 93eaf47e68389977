"""Getting compiled code into a process whatever happens meanwhile: signals, and caches that are damaged or full."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from evicp import checks
from evicp.errors import EvicpWarning

__all__ = ["Cache", "undisturbed"]


def undisturbed(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call something that must not end half-way, where no signal's handler can make it.

    Handlers run in the main thread, and what they raise (Ctrl-C, a time limit) would leave Numba half imported or half
    compiled, for good. So another thread does the work; this one may stop waiting for it.
    """
    if threading.current_thread() is not threading.main_thread():
        return work(*arguments, **options)
    results: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(work(*arguments, **options))
        except BaseException as error:  # raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=call, name="evicp-loading")
    try:
        thread.start()
    except RuntimeError:  # no more threads to be had
        return work(*arguments, **options)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class Cache:
    """Numba's cache of a kernel, in which a file that cannot be read or written is as good as none."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def load_overload(self, *arguments: Any) -> Any:
        """A compiled kernel; None if there is none that can be read."""
        try:
            return self._own.load_overload(*arguments)
        except Exception:  # whatever a damaged file raises when it is unpickled
            with suppress(Exception):
                self._own.flush()
            return None

    def save_overload(self, *arguments: Any) -> None:
        """Keep a compiled kernel, if possible."""
        try:
            self._own.save_overload(*arguments)
        except Exception as error:  # it is compiled all the same
            checks.warn(
                f"compiled kernels cannot be kept ({error}): every process compiles them again. Set NUMBA_CACHE_DIR to "
                "a folder with space that can be written to.",
                EvicpWarning,
            )
