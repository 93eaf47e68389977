"""What the compiled kernels offer to `_native`: see `native/module.cpp`."""

from typing import Any

from numpy.typing import NDArray

from evicp.types import F64, I32, I64

Logits = NDArray[Any]

def label_scores(
    score: bytes, logits: Logits, threads: int, rates: F64 | None, utility: F64 | None, labels: I64, result: F64
) -> int: ...
def dense_scores(
    score: bytes, logits: Logits, threads: int, rates: F64 | None, utility: F64 | None, result: F64
) -> int: ...
def sets(
    score: bytes,
    logits: Logits,
    threads: int,
    rates: F64 | None,
    utility: F64 | None,
    thresholds: float | F64,
    by_label: bool,
    scored: bool,
    offsets: I64,
) -> tuple[int, Any, Any]: ...
def uncertainties(
    score: bytes, logits: Logits, threads: int, rates: F64 | None, utility: F64 | None, result: F64
) -> int: ...
def top_labels(
    score: bytes, logits: Logits, threads: int, rates: F64 | None, utility: F64 | None, result: I32
) -> int: ...
def likelihoods(
    score: bytes,
    logits: Logits,
    threads: int,
    rates: F64 | None,
    utility: F64 | None,
    labels: I64,
    inverse_temperature: float,
    result: F64,
) -> int: ...
def level() -> str: ...
def levels() -> list[str]: ...
