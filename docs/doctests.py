"""For the reference: the doctest at the end of a docstring becomes its Examples section."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIRST = re.compile(r"(?:\A|\n\n)(?=>>> )")


class Doctests(griffe.Extension):
    """Put a heading where NumPy's style wants one and these docstrings have none."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None and "Examples\n----" not in obj.docstring.value:
            obj.docstring.value = _FIRST.sub("\n\nExamples\n--------\n", obj.docstring.value, count=1)
