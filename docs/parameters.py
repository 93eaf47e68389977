"""For the reference: what these docstrings say of a parameter becomes its description, not its type.

They write `name : text`, or `first, second : text`, and wrap the text under itself; NumPy's style has a type there. An
entry without one gets the type and the default of the signature. So each name has an entry of its own, and the text,
put together again, is below it.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^((?:Parameters|Attributes)\n-+\n)(.+?)(?=\n\s*\n|\s*\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^(\S[^\n:]*?) : ([^\n]*)((?:\n +[^\n]*)*)", re.MULTILINE)
_COLUMNS = 120


class Parameters(griffe.Extension):
    """Put names, and what is said of them, where NumPy's style has them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            indent = 4 * obj.path.removeprefix(obj.module.path).count(".")
            obj.docstring.value = in_numpy_style(obj.docstring.value, indent)


def in_numpy_style(docstring: str, indent: int = 4) -> str:
    """A docstring whose parameters and attributes have no types; `indent` is that of its lines in the source."""

    def entry(match: re.Match[str]) -> str:
        names, head, rest = match.groups()
        lines = [line.strip() for line in rest.splitlines()[1:]]
        text = " ".join([head, *lines])
        # The line was broken before it was full: what follows is a sentence of its own.
        full = not lines or indent + len(f"{names} : {head} {lines[0].split()[0]}") > _COLUMNS
        if not full and not lines[0][0].islower() and head[-1] not in ".,:;":
            text = " ".join([f"{head}.", *lines])
        return "\n".join(f"{name}\n    {text}" for name in names.split(", "))

    return _SECTION.sub(lambda section: section[1] + _ENTRY.sub(entry, section[2]), docstring)
