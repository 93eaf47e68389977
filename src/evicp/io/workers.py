"""Work in other processes: what workers refuse or warn of is said where the work was asked for."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from evicp import errors
from evicp.calibration.calibration import Calibration
from evicp.errors import EvicpWarning, InputError, InputTypeError
from evicp.input.warn import warn
from evicp.types import Coverage


def recording(work: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, list[tuple[str, str]]]:
    """What some work in a worker gives, and what it warned of, for nobody hears it there.

    A task has one processor, however many the machine has.
    """
    os.environ.setdefault("EVICP_THREADS", "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work(*arguments, **options)
    own = [one for one in caught if issubclass(one.category, EvicpWarning)]
    return result, [(one.category.__name__, str(one.message)) for one in own]


class Driver:
    """Says what workers warned of, each thing once; warnings that differ in their numbers only are one."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, warned: Iterable[tuple[str, str]]) -> None:
        """Warn of what is new."""
        for category, message in warned:
            thing = re.sub(r"[\d.,]+", "", message)
            if thing not in self._said:
                self._said.add(thing)
                warn(message, getattr(errors, category))


@contextmanager
def in_batch() -> Iterator[None]:
    """A batch does not know where it lies: its rows are counted from its own first, and messages say so."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        raise type(error)(re.sub(r"\b([Rr]ow \d+)", r"\1 of its batch", str(error))) from error


def refuse_early(calibration: Calibration, coverage: Coverage, how: dict[str, Any]) -> None:
    """Refuse and warn of, before any worker starts, what does not depend on the rows."""
    none, by_group = np.empty((0, calibration.n_classes)), "groups" in calibration.law.needs
    calibration.predict(none, coverage, groups=np.empty(0, np.int64) if by_group else None, **how)


def columns_of_sets(calibration: Calibration) -> list[str]:
    """What the columns of sets are called beside those that the rows have already."""
    return ["set", "size", *([] if calibration.class_names is None else ["names"])]


def refuse_taken(own: Iterable[str], made: Sequence[str], rename: str) -> None:
    """Refuse rows with a column that is called as one of the result's; `rename` says how, {} is the column."""
    clash = next((name for name in own if name in made), None)
    if clash is not None:
        raise InputError(
            f"the dataset has a column {clash!r}, which is also a column of the result ({', '.join(made)}). Rename it "
            f"first: {rename.format(clash)}."
        )
