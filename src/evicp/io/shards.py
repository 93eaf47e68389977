"""Folders of logits: which files belong to one, in which order, and that no rows are there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError
from evicp.io.paths import format_of, natural_key
from evicp.io.stored import companions

__all__ = ["files_of_logits", "refuse_copies"]

#: So many rows of a file tell it from nearly any other, and so many numbers are compared at a time where they do not.
_HEAD, _AT_ONCE = 4, 1 << 20


class Shard(Protocol):
    """Rows of a file: logits, and labels or None."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its logits."""
        ...

    def pieces(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Logits and labels, `step` rows at a time."""
        ...


def files_of_logits(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files of logits in a folder, in the order of the numbers in their names.

    Parameters
    ----------
    folder : where they are
    suffixes : those of files of logits
    """
    found = [f for f in folder.iterdir() if format_of(f) in suffixes and not f.name.startswith(".")]
    beside = {file for f in found for file in companions(f).values()}
    found = [f for f in found if f not in beside and not _holds_labels(f)]
    if not found:
        raise FileError(f"{folder} holds no file of logits; known are {', '.join(suffixes)}.")
    for one, other in pairwise(sorted(found, key=lambda f: f.stem)):
        if one.stem == other.stem:
            raise FileError(
                f"{folder} holds {one.name} and {other.name}: rows in two formats would count twice. Keep one of them; "
                "if their rows differ, give them different names."
            )
    return sorted(found, key=lambda f: (natural_key(f.name), f.name))


def _holds_labels(file: Path) -> bool:
    """Whether a file is one of labels by its name, also where their logits are not there."""
    return format_of(file) == ".npy" and "labels" in file.name and "logits" not in file.name


def refuse_copies(found: Sequence[Path], shards: Sequence[Shard]) -> None:
    """Refuse files that hold the same rows: a copy, a link, or the same in another format, under another name.

    Files of one shape are told apart by their first rows; those that have these in common are compared as a whole.
    """
    seen: dict[Any, list[int]] = {}
    shapes = Counter(shard.shape for shard in shards)
    for number, shard in enumerate(shards):
        if len(shard.shape) != 2 or not shard.shape[0] or shapes[shard.shape] == 1:
            continue
        alike = seen.setdefault((shard.shape, _head(shard)), [])
        for other in alike:
            if _same_rows(shard, shards[other]):
                raise FileError(
                    f"{found[other].name} and {found[number].name} in {found[number].parent} hold the same rows, which "
                    "would count twice. Remove one of them, or put rows that are equal by chance into one file."
                )
        alike.append(number)


def _head(shard: Shard) -> bytes | None:
    """The first logits of a file, to compare; None where they cannot be read, which is said when they are used."""
    with suppress(Exception):
        return b"".join(_numbers(logits).tobytes() for logits, _ in shard.pieces(_HEAD, 0, min(_HEAD, shard.shape[0])))
    return None


def _same_rows(one: Shard, other: Shard) -> bool:
    """Whether two files of one shape have equal logits, and equal labels where both have any."""
    step = max(1, _AT_ONCE // max(1, one.shape[1]))
    with suppress(Exception):  # what cannot be read is said when it is used
        for (logits, labels), (others, other_labels) in zip_longest(one.pieces(step), other.pieces(step)):
            if not np.array_equal(_numbers(logits), _numbers(others)):
                return False
            if labels is not None and other_labels is not None and not np.array_equal(labels, other_labels):
                return False
        return True
    return False


def _numbers(logits: NDArray[Any]) -> NDArray[Any]:
    """Logits in the widest type, so that files of different types can hold the same."""
    return np.ascontiguousarray(logits, np.float64) if logits.dtype.kind in "fiu" else logits
