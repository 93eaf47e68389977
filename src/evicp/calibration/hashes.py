"""Hashes of calibration rows: 64 bits that tell one calibration set from another, and break ties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def mix64(x: Any) -> Any:
    """The finaliser of SplitMix64 of unsigned numbers: every bit changes every other with probability near 1/2."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def bits_of(numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """Numbers as the bits of float64, of which 0 and -0 have the same."""
    return (np.asarray(numbers, np.float64) + 0.0).view(np.uint64)


def row_hashes(logits: NDArray[Any], labels: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A hash of each calibration row, (n,), from its true label and the logit of that."""
    hashes = np.empty(len(labels), np.uint64)
    for rows in _pieces(len(labels)):
        hashes[rows] = mix64(bits_of(logits[rows]) + mix64(labels[rows].astype(np.uint64) + np.uint64(1)))
    return hashes


def digest_of(hashes: NDArray[np.uint64], start: int = 0) -> int:
    """64 bits of rows in their order, the first of which is number `start`; those of parts add up, modulo 2^64.

    The order tells calibration sets apart that hold the same few different rows: it is as random as the rows are
    exchangeable.
    """
    total = 0
    for rows in _pieces(len(hashes)):
        places = mix64(np.arange(start + 1 + rows.start, start + 1 + rows.stop, dtype=np.uint64))
        total += int(mix64(hashes[rows] ^ places).sum(dtype=np.uint64))
    return total % 2**64


def _pieces(n: int, size: int = 8192) -> Iterator[slice]:
    """n rows in pieces whose intermediate results stay in the processor's cache."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
