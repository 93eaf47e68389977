"""What a function computes, as far as that can be told from outside: how a transform is recognised in a later run."""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["code_digest", "plain_repr"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes, bytearray)
_METHODS = (types.FunctionType, staticmethod, classmethod, property)


def plain_repr(value: object) -> str:
    """A repr without memory addresses, which differ from run to run."""
    return _ADDRESS.sub("", repr(value))


def code_digest(function: object) -> str | None:
    """SHA-256 of a callable: its code, defaults, closure and state, and what it uses of its module; None if unknown.

    Equal in every process of one version of Python. Installed classes and modules are known by name.

    >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 1) != code_digest(lambda x: x + 2)
    True
    """
    try:
        return _Digests().of(function).hex()
    except (_UnknownError, RecursionError):
        return None


class _UnknownError(Exception):
    """Something whose content cannot be told."""


class _Digests:
    """Digests of objects, each made once; one that refers to itself is followed once around."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[object, bytes]] = {}  # the object too: its id is used again once it is gone

    def of(self, value: Any) -> bytes:
        """The digest of any object."""
        if type(value) in _PLAIN:
            return _hashed([type(value).__name__.encode(), repr(value).encode("utf-8", "surrogatepass")])
        if id(value) not in self._made:
            self._made[id(value)] = value, b"itself"
            kind = f"{type(value).__module__}.{type(value).__qualname__}".encode()
            self._made[id(value)] = value, _hashed([kind, *self._parts(value)])
        return self._made[id(value)][1]

    def _parts(self, value: Any) -> Iterable[bytes]:
        """What tells a value from others of its type."""
        if isinstance(value, set | frozenset):
            return sorted(map(self.of, value))
        content = next((get for kind, get in _CONTENTS.items() if isinstance(value, kind)), _rebuilt)
        return _numbers(value) or map(self.of, content(value))


def _hashed(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _numbers(value: Any) -> list[bytes] | None:
    """Type, shape and content of an array or a tensor; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        content = value
    else:
        return None
    return [str((value.dtype, tuple(value.shape))).encode(), content.tobytes()]


# ---------------------------------------------------------------------------------------------------------------
# What objects are made of


def _function(function: types.FunctionType) -> list[Any]:
    try:
        closure = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError as error:  # a cell that is still empty
        raise _UnknownError from error
    used = set() if _installed(function.__module__) else _global_names(function.__code__)
    shared = {name: function.__globals__[name] for name in sorted(used & function.__globals__.keys())}
    return [function.__code__, function.__defaults__, function.__kwdefaults__, closure, shared]


def _global_names(code: types.CodeType) -> set[str]:
    """The global names that some code reads, also in functions within it."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return names.union(*map(_global_names, inner))


def _class(kind: type) -> list[Any]:
    """Of a class that is not installed: its methods and constants, but not what Python keeps beside them."""
    if _installed(kind.__module__):
        return [kind.__module__, kind.__qualname__]
    own = {k: v for k, v in vars(kind).items() if isinstance(v, _METHODS) or not k.startswith(("__", "_abc_"))}
    return [kind.__module__, kind.__qualname__, kind.__bases__, own]


def _module(module: types.ModuleType) -> list[Any]:
    """Of a module that is not installed: its source."""
    if _installed(module.__name__):
        return [module.__name__]
    try:
        return [module.__name__, Path(str(module.__file__)).read_bytes()]
    except (AttributeError, OSError) as error:
        raise _UnknownError from error


def _installed(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package."""
    if module is None or module.partition(".")[0] in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _rebuilt(value: Any) -> list[Any]:
    """How pickle would make an object again: its class and state, or its name."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        made = value.__reduce_ex__(2) if reduce is None else reduce(value)
    except Exception as error:  # files, locks and the like refuse, each in its own way
        raise _UnknownError from error
    parts = [made] if isinstance(made, str) else [list(part) if isinstance(part, Iterator) else part for part in made]
    return [type(value), getattr(value, "__module__", None), getattr(value, "__wrapped__", None), *parts]


_CONTENTS: dict[Any, Callable[[Any], Iterable[Any]]] = {
    list | tuple: iter,
    Mapping: lambda mapping: (item for pair in mapping.items() for item in pair),
    types.CodeType: lambda code: (code.co_code, code.co_consts, code.co_names),
    types.FunctionType: _function,
    types.MethodType: lambda method: (method.__self__, method.__func__),
    functools.partial: lambda made: (made.func, made.args, made.keywords),
    property: lambda made: (made.fget, made.fset),
    functools.cached_property: lambda made: (made.func,),
    staticmethod | classmethod: lambda made: (made.__func__,),
    types.ModuleType: _module,
    type: _class,
}
