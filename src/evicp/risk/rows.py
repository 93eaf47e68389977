"""What is kept of calibration rows that are answered or not, and the groups that they are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evicp.errors import InputError
from evicp.input import validate
from evicp.input.classes import ClassAxis
from evicp.types import F64, I32, I64, Bools

ALL_ROWS = ("all rows",)


@dataclass(frozen=True, eq=False)
class Rows:
    """What is kept of calibration rows: their doubt, whether the answer is wrong, their group, what is set aside."""

    doubts: F64
    wrong: Bools
    codes: I64
    aside: Bools

    def of(self, code: int, *, aside: bool) -> tuple[F64, Bools]:
        """The doubts of a group's rows, and which answers are wrong."""
        own = (self.codes == code) & (self.aside == aside)
        return self.doubts[own], self.wrong[own]


def names_of(by: str | None, classes: ClassAxis) -> tuple[str, ...]:
    """The names of the groups, where these are not given: of all rows, or of the classes."""
    if by is None:
        return ALL_ROWS
    return classes.names or tuple(map(str, range(classes.n_classes)))


def groups_of(by: Any, answers: I32, classes: ClassAxis) -> tuple[str | None, tuple[str, ...], I64]:
    """The kind of groups, their names, and the group of each row."""
    if by is None:
        return None, ALL_ROWS, np.zeros(len(answers), np.int64)
    if isinstance(by, str):
        if by != "class":
            raise InputError(f'by must be "class", or one group per row; got {by!r}.')
        return by, names_of(by, classes), answers[:, 0].astype(np.int64)
    names, codes = np.unique(validate.as_groups(by, len(answers)).astype(str), return_inverse=True)
    return "group", tuple(names.tolist()), codes
