"""What made a calibration's scores, and what made those they are compared with.

Scores may pile up at one value: forests vote, networks are sure, quantized logits tie. Rounding must not move such a
pile to the other side of a threshold. Rows in a finer precision than the calibration rows are therefore rounded to
theirs. Where rows are coarser, or another backend computes their scores, calibration scores are raised by what rounding
can do (see `limits.raised`), so that coverage can only rise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import or_
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError

__all__ = [
    "MIXED",
    "ORIGIN",
    "ROUNDOFF",
    "UNKNOWN",
    "Arithmetic",
    "Origin",
    "in_precision",
    "precision_of",
    "size_of_logits",
]

#: The precisions of logits, and how far rounding to each can move a number, as a share of it.
ROUNDOFF: Mapping[str, float] = MappingProxyType(
    {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
)

_BACKENDS = ("numpy", "numba", "native", "torch", "triton", "graph")
#: The backend of scores that several backends or precisions made.
MIXED = "mixed"


@dataclass(frozen=True)
class Arithmetic:
    """A backend, the precision it computes in, and the coarsest and the finest precision of the logits it was given.

    >>> str(Arithmetic("numpy", "float64", "float32", "float32"))
    'numpy float64 of float32'
    >>> Arithmetic.parse("numba float32")
    Arithmetic(backend='numba', working='float32', logits='float32', finest='float32')
    """

    backend: str
    working: str
    logits: str
    finest: str

    def __str__(self) -> str:
        some = self.logits if self.logits == self.finest else f"{self.logits} to {self.finest}"
        return f"{self.backend} {self.working} of {some}"

    @classmethod
    def parse(cls, text: str) -> Arithmetic | None:
        """An arithmetic from its text, or from that of earlier versions, which said nothing of the logits."""
        if text == MIXED:
            return UNKNOWN.arithmetic
        match = _ARITHMETIC.fullmatch(text)
        if match is None:
            return None
        backend, working, logits, finest = match.groups()
        logits = logits or working
        return cls(backend, working, logits, finest) if finest else arithmetic_of(backend, working, logits)

    def __or__(self, other: Arithmetic) -> Arithmetic:
        """One arithmetic for scores of which either may have made some."""
        if self == other:
            return self
        coarsest = max(self.logits, other.logits, key=ROUNDOFF.__getitem__)
        finest = min(self.finest, other.finest, key=ROUNDOFF.__getitem__)
        working = "float64" if self.working == other.working == "float64" else "float32"
        return Arithmetic(MIXED, working, coarsest, finest)


_PRECISION = "(" + "|".join(ROUNDOFF) + ")"
_ARITHMETIC = re.compile(
    f"({'|'.join((*_BACKENDS, MIXED))}) (float32|float64)(?: of {_PRECISION}(?: to {_PRECISION})?)?"
)


@lru_cache(maxsize=64)
def arithmetic_of(backend: str, working: str, logits: str) -> Arithmetic:
    """The same object for the same three words: a server asks for one all day."""
    return Arithmetic(backend, working, logits, logits)


_NAMES = {"e": "float16", "f": "float32", "d": "float64"}


def precision_of(logits: Any, array: NDArray[Any] | None = None) -> str:
    """The precision of logits as they were given, or of the array made of them, where their own type says nothing."""
    if type(logits) is np.ndarray and logits.dtype.char in _NAMES:  # usual, and quick
        return _NAMES[logits.dtype.char]
    name = str(getattr(logits, "dtype", "")).removeprefix("torch.")
    if name in ROUNDOFF or array is None:
        return name if name in ROUNDOFF else "float64"
    return "bfloat16" if "float8" in name or "float4" in name else array.dtype.name


def in_precision(logits: Any, precision: str) -> Any:
    """Logits, an array or a tensor, rounded to a precision; bfloat16 arrays stay float32."""
    if not isinstance(logits, np.ndarray):
        return logits.to(getattr(sys.modules["torch"], precision))
    with np.errstate(over="ignore"):  # what becomes infinite is refused by name
        return _to_bfloat16(logits) if precision == "bfloat16" else logits.astype(precision, copy=False)


def _to_bfloat16(logits: NDArray[Any]) -> NDArray[np.float32]:
    """Float32 numbers rounded to the nearest that fits into bfloat16, to the even one of two."""
    bits = logits.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(logits), np.float32(np.nan), rounded.view(np.float32))


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


def size_of_logits(
    own: NDArray[Any], largest_of: Callable[[NDArray[np.int64]], NDArray[Any]], at_once: int = 0
) -> float:
    """How large the logits are by which rounding of a row must be judged; -inf without rows.

    That is the largest logit of a true label; or the largest of a row, without its sign, where that is negative, as log
    densities and distances are. Rows whose true label has a positive logit are not looked at again.

    Parameters
    ----------
    own : (n,) logits of true labels
    largest_of : the largest logits of some rows
    at_once : so many rows; 0 for all
    """
    rows = np.flatnonzero(own < 0)
    step = at_once or max(1, len(rows))
    lowest = min((float(largest_of(rows[i : i + step]).min()) for i in range(0, len(rows), step)), default=np.inf)
    return max(float(own.max(initial=-np.inf)), -lowest)


@dataclass(frozen=True)
class Origin:
    """What made the scores of calibration rows, and what is kept of these rows themselves.

    Parameters
    ----------
    arithmetic : what made the scores
    largest : how large logits are, see `size_of_logits`
    digest : 64 bits of all true labels and their logits, in order, which tell one calibration set from another; None
        if unknown. Nothing but the random numbers of smoothed sets depends on it
    """

    arithmetic: Arithmetic
    largest: float
    digest: int | None = field(compare=False)

    @classmethod
    def joined(cls, origins: Sequence[Origin], digest: int | None) -> Origin:
        """The origin of the rows of several batches together, which have this digest."""
        arithmetic = reduce(or_, (one.arithmetic for one in origins))
        return cls(arithmetic, max(one.largest for one in origins), digest)

    def to_dict(self) -> dict[str, Any]:
        """The origin as plain values, for files; what is unknown is left out."""
        content: dict[str, Any] = {"arithmetic": str(self.arithmetic)}
        if self.digest is not None:
            content["row_digest"] = f"{self.digest:016x}"
        if np.isfinite(self.largest):
            content["largest_logit"] = self.largest
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Origin | None:
        """The origin among the values of a file, checked; None if there is none."""
        if not set(ORIGIN) & set(content):
            return None
        text, digest, largest = (content.get(name) for name in ORIGIN)
        arithmetic = Arithmetic.parse(text) if isinstance(text, str) else None
        if arithmetic is None:
            raise InputError(f"it says its scores were made by {text!r}, which this evicp does not know.")
        if "row_digest" in content and not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{16}", digest)):
            raise InputError(f"the digest of its rows must be 16 hexadecimal digits; got {digest!r}.")
        if "largest_logit" in content and not (isinstance(largest, float) and np.isfinite(largest)):
            raise InputError(f"its largest logit must be a finite number; got {largest!r}.")
        if digest is None:  # of an earlier version
            return cls(arithmetic, UNKNOWN.largest, None)
        return cls(arithmetic, -np.inf if largest is None else largest, int(digest, 16))


#: What files call the parts of an origin.
ORIGIN = ("arithmetic", "row_digest", "largest_logit")
#: Of scores that come without one.
UNKNOWN = Origin(Arithmetic(MIXED, "float32", "float32", "float32"), 0.0, None)
