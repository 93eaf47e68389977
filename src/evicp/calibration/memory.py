"""What is worked out once and kept for later calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

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
