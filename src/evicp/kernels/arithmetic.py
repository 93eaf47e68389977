"""What made scores: a backend, the precision it computes in, and the precision of the logits it was given."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    @lru_cache(maxsize=64)
    def of(cls, backend: str, working: str, logits: str) -> Arithmetic:
        """The same object for the same three words: a server asks for one all day."""
        return cls(backend, working, logits, logits)

    @classmethod
    def parse(cls, text: str) -> Arithmetic | None:
        """An arithmetic from its text, or from that of earlier versions, which said nothing of the logits."""
        if text == MIXED:
            return cls(MIXED, "float32", "float32", "float32")
        match = _ARITHMETIC.fullmatch(text)
        if match is None:
            return None
        backend, working, logits, finest = match.groups()
        logits = logits or working
        return cls(backend, working, logits, finest) if finest else cls.of(backend, working, logits)

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


#: The last bits of a double's fraction, which numbers of single or of half precision do not have.
_BEYOND_SINGLE, _BEYOND_HALF = np.uint64(2**29 - 1), np.uint64(2**42 - 1)
_SINGLE = struct.Struct("f")
_BLOCK = 1 << 17

_NAMES = {"e": "float16", "f": "float32", "d": "float64"}


def precision_of(logits: Any, array: Any = None) -> str:
    """The precision of logits as they were given, or of the array made of them, where their own type says nothing."""
    if type(logits) is np.ndarray and logits.dtype.char in _NAMES:  # usual, and quick
        return _NAMES[logits.dtype.char]
    name = str(getattr(logits, "dtype", "")).removeprefix("torch.")
    if name in ROUNDOFF or not isinstance(array, np.ndarray):
        return name if name in ROUNDOFF else "float64"
    return "bfloat16" if "float8" in name or "float4" in name else str(array.dtype.name)


def precision_of_new(made_by: Arithmetic, logits: Any, array: Any) -> str:
    """The precision of new rows: single, too, where doubles hold it, as JSON and lists make them of float32.

    Parameters
    ----------
    made_by : what made the scores that those of the new rows are compared with
    logits, array : the new rows as they were given; and as an array, or a tensor
    """
    precision = precision_of(logits, array)
    if precision != "float64" or not isinstance(array, np.ndarray):
        return precision
    if made_by.logits == "float64":
        return "float32" if any_widened(array) else precision
    could_be = made_by.logits == "float32" and made_by.working == "float64"
    return "float32" if could_be and _all_fit_single(fraction_bits(array)) else precision  # which saves rounding them


def any_widened(logits: NDArray[np.float64]) -> bool:
    """Whether some rows of doubles are rounded to single precision; rows that fit into half precision say nothing."""
    if len(logits) == 1 and not _fits_single(logits.item(0)):  # the usual row, and quick
        return False
    for block in _blocks_of_bits(logits):
        rows = block[(block[:, 0] & _BEYOND_SINGLE) == 0]  # most rows of doubles are told by their first number
        bits = np.bitwise_or.reduce(rows, axis=1)
        if np.any(((bits & _BEYOND_SINGLE) == 0) & ((bits & _BEYOND_HALF) != 0)):
            return True
    return False


def fraction_bits(logits: NDArray[np.float64]) -> int:
    """The last bits that any number among doubles has, as far as `are_single` needs them; of more rows by |."""
    bits = 0
    for block in _blocks_of_bits(logits):
        bits |= int(np.bitwise_or.reduce(block, axis=None)) & int(_BEYOND_HALF)
        if bits & int(_BEYOND_SINGLE):
            break
    return bits


def are_single(bits: int) -> bool:
    """Whether doubles with these last bits are all rounded to single precision, and not all to half."""
    return _all_fit_single(bits) and bits & int(_BEYOND_HALF) != 0


def _all_fit_single(bits: int) -> bool:
    return bits & int(_BEYOND_SINGLE) == 0


def _fits_single(number: float) -> bool:
    try:
        return bool(_SINGLE.unpack(_SINGLE.pack(number))[0] == number)
    except OverflowError:
        return False


def _blocks_of_bits(logits: NDArray[np.float64]) -> Iterator[NDArray[np.uint64]]:
    step = max(1, _BLOCK // logits.shape[1])
    return (logits[start : start + step].view(np.uint64) for start in range(0, len(logits), step))


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
