"""Which rows a monitor has been shown: a digest for every few hundred, so that no label counts twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.origin import bits_of, digest_of, mix64
from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input.warn import warn
from evicp.types import Bools

#: Rows for one digest; fewer than the second number may be equal to others by chance, where a model has few outputs.
_ROWS, _FEWEST = 256, 8
_COLUMNS = 8


def content_hashes(logits: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.uint64]:
    """A hash of each row's label and of some of its logits, (n,), spread over the classes."""
    hashes: NDArray[np.uint64] = mix64(labels.astype(np.int64).astype(np.uint64) + np.uint64(1))
    for column in np.unique(np.linspace(0, logits.shape[1] - 1, _COLUMNS).astype(int)):
        hashes = mix64(hashes + bits_of(logits[:, column]))
    return hashes


class SeenRows:
    """The rows that were shown, as digests of up to 256 consecutive rows, counted from the first of each batch.

    A batch that was shown before is recognised, and so are its rows where it has grown since, as a log file does.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def among(self, hashes: NDArray[np.uint64]) -> Bools:
        """Which rows of a batch, given by their hashes, were shown before, (n,)."""
        seen = np.zeros(len(hashes), bool)
        some = sorted({rows for rows in self._rows.values() if rows < _ROWS}, reverse=True)
        for start in range(0, len(hashes), _ROWS):
            for rows in (_ROWS, *some):
                part = hashes[start : start + rows]
                if len(part) == rows and self._rows.get(digest_of(part)) == rows:
                    seen[start : start + rows] = True
                    break
        return seen

    def new(self, hashes: NDArray[np.uint64]) -> Bools:
        """Which rows of a batch were not shown before, (n,), with a warning of the others; all are remembered."""
        seen = self.among(hashes)
        self.add(hashes)
        if seen.any():
            warn(
                f"{seen.sum():,} of {len(seen):,} rows were given to this monitor before. They are skipped, because "
                "counting labels twice would raise false alarms.",
                SuspiciousInputWarning,
            )
        return ~seen

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Remember the rows of a batch."""
        for part in _parts(hashes):
            self._rows[digest_of(part)] = len(part)

    def to_list(self) -> list[str]:
        """Plain values, ready for JSON: "number of rows:digest"."""
        return [f"{rows}:{digest:016x}" for digest, rows in self._rows.items()]

    @classmethod
    def from_list(cls, texts: Any) -> SeenRows:
        """What `to_list` gave, checked."""
        made = cls()
        for text in texts:
            if not isinstance(text, str) or not re.fullmatch("[0-9]{1,3}:[0-9a-f]{16}", text):
                raise InputError(f"its rows must be digests; got {text!r}.")
            rows, digest = text.split(":")
            if not _FEWEST <= int(rows) <= _ROWS:
                raise InputError(f"its digests are of {_FEWEST} to {_ROWS} rows; got {rows}.")
            made._rows[int(digest, 16)] = int(rows)
        return made


def _parts(hashes: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    starts = range(0, len(hashes), _ROWS)
    return (part for start in starts if len(part := hashes[start : start + _ROWS]) >= _FEWEST)
