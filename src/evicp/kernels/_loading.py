"""Getting compiled code into a process whatever happens meanwhile: signals, and caches that are damaged or full."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

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


@cache
def _digest(package: str) -> bytes:
    """Of a package's sources, in a folder or an archive."""
    digest = import_module("hashlib").sha256()
    for module in import_module("pkgutil").iter_modules(sys.modules[package].__path__):
        spec = module.module_finder.find_spec(module.name)
        digest.update(spec.loader.get_data(spec.origin))
    return cast("bytes", digest.digest())


def _numbas_cache(function: Any, **changes: Any) -> Any:
    """Numba's own cache of a kernel, for as long as no source of the kernel's package changes.

    Numba looks at the kernel's file only.

    Parameters
    ----------
    function : the kernel as it is written
    changes : methods of Numba's locators of folders, by name, to be put in place of their own
    """
    caching = import_module("numba.core.caching")
    folders = caching.CompileResultCacheImpl
    locators = [type(each.__name__, (each,), changes) for each in folders._locator_classes]
    digest = _digest(function.__module__.rpartition(".")[0])  # now: sources may be edited before anything is compiled

    def key(own: Any, *arguments: Any) -> tuple[Any, ...]:
        return (*caching.FunctionCache._index_key(own, *arguments), digest)

    methods = {"_impl_class": type("Folders", (folders,), {"_locator_classes": locators}), "_index_key": key}
    return type("Kept", (caching.FunctionCache,), methods)(function)


class Cache:
    """What is kept of a kernel: where Numba does so, and what lies ready where nothing can be written (a container).

    A file that cannot be read or written is as good as none.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        try:
            self._own = _numbas_cache(function)
        except Exception:  # no folder can be written to, or the sources cannot be read
            self._own = import_module("numba.core.caching").NullCache()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def _ready(self) -> Any:
        """The cache in the folder where Numba would keep the kernel if it could write there."""
        return _numbas_cache(self._function, ensure_cache_path=lambda locator: Path(locator.get_cache_path()).stat())

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
                    found = self._ready().load_overload(signature, _Context(context))
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
