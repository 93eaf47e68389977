"""Getting compiled code into a process whatever happens meanwhile: signals, and caches that are damaged or full."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from evicp import checks
from evicp.errors import EvicpWarning

__all__ = ["Cache", "uncollected", "undisturbed"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for garbage until the block has ended.

    Numba makes millions of objects, most of which stay: looking through them takes an eighth of a first call.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let handlers of signals wait until the block has ended, and garbage as well.

    What handlers raise (Ctrl-C, a time limit) would leave Numba half imported or half loaded, for good.
    """
    handlers = _handlers() if threading.current_thread() is threading.main_thread() else {}  # they run there only
    waiting: list[tuple[int, Any]] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: waiting.append((number, frame)))
    try:
        with uncollected():
            yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in waiting:
            handlers[number](number, frame)


def _handlers() -> dict[int, Callable[..., Any]]:
    """The signals that run a function of Python's."""
    known = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in known.items() if callable(handler)}


class _Context:
    """Numba's target as far as a kernel that is compiled already needs it.

    Before it loads one, Numba imports all it can compile, and SciPy's linear algebra: two thirds of a first call.
    """

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def refresh(self) -> None:
        """Only what compiled code calls when it is given arrays. Who compiles asks for the rest."""
        import_module("numba.core.runtime").rtsys.initialize(self._own)


def _ready_cache(function: Any) -> Any:
    """The cache of a kernel in the folder where Numba would keep it if it could write there."""
    caching = import_module("numba.core.caching")
    exists = {"ensure_cache_path": lambda own: Path(own.get_cache_path()).stat()}
    locators = [type(each.__name__, (each,), exists) for each in caching.CompileResultCacheImpl._locator_classes]
    kind = type("Ready", (caching.CompileResultCacheImpl,), {"_locator_classes": locators})
    return type("ReadyCache", (caching.FunctionCache,), {"_impl_class": kind})(function)


class Cache:
    """What is kept of a kernel: Numba's cache, and what lies ready where nothing can be written, as in a container.

    A file that cannot be read or written is as good as none.
    """

    def __init__(self, own: Any, function: Any) -> None:
        self._own, self._function = own, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """A compiled kernel; None if there is none that can be read."""
        with undisturbed():  # around all of it: what a handler raises is not the file's fault
            try:
                found = self._own.load_overload(signature, _Context(context))
            except Exception:  # whatever a damaged file raises when it is unpickled
                found = None
                with suppress(Exception):
                    self._own.flush()
            if found is None:
                with suppress(Exception):  # the same, or no folder
                    found = _ready_cache(self._function).load_overload(signature, _Context(context))
            return found

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
