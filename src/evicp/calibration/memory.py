"""What is computed once and kept for later calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from evicp.input import convert
from evicp.types import F64

#: A level that moves asks for another coverage each time.
_MOST = 64


class Memory(dict[Hashable, Any]):
    """Results by what they were made of; it stays out of pickles, copies and comparisons of what has it."""

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()

    def made(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """A result, made now if it is not known."""
        found = self.get(key)
        if found is None:
            found = make()
            if len(self) >= _MOST:
                self.clear()
            self[key] = found
        return found


class Remembers:
    """What keeps memories. They are no part of its state, which pickle and skops, MLflow's format, save."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not isinstance(value, Memory)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        convert.restore_frozen(self, state)
        memories: Any = fields(self)  # type: ignore[arg-type]
        self.__dict__.update({memory.name: Memory() for memory in memories if memory.default_factory is Memory})


class WithScores(Remembers):
    """Scores as an array that other code cannot change; of rows on an accelerator they come on first use."""

    scores: F64

    def __post_init__(self) -> None:
        if isinstance(self.scores, np.ndarray):
            object.__setattr__(self, "scores", convert.owned(self.scores))
        else:  # a `DeviceArray`
            self.__dict__["_on_device"] = self.__dict__.pop("scores")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            there = self.__dict__.get("_on_device") if name == "scores" else None
            if there is not None:
                self.__dict__["scores"] = convert.frozen(np.asarray(there))
                self.__dict__.pop("_on_device", None)
            if name == "scores" and name in self.__dict__:  # now, or meanwhile, by another thread
                return self.__dict__[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {"scores": self.scores} | {name: x for name, x in super().__getstate__().items() if name != "_on_device"}

    @property
    def n(self) -> int:
        """Calibration rows."""
        there = self.__dict__.get("_on_device")
        return len(self.scores if there is None else there)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        names = (part.name for part in fields(self) if part.compare and part.name != "scores")  # type: ignore[arg-type]
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and np.array_equal(self.scores, other.scores)

    __hash__ = None  # type: ignore[assignment]
