"""The only gate for user input: logits, labels, groups and numbers. Everything past it trusts its arguments.

A message says what was wrong, what was got, and what to do.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from evicp.errors import CoverageError, InputError, InputTypeError, LabelsError, LogitsError, ScoreError
from evicp.input.convert import as_array, frozen, is_bfloat16, is_missing, is_torch
from evicp.types import F64, I64, TargetCoverage

#: A block of rows holds about this many logits: small enough for the cache, large enough to hide NumPy's overhead.
BLOCK_LOGITS = 1 << 17


#: Beyond this a Dirichlet's sum of evidence could overflow a double.
LARGEST_LOGIT = 1e300


#: Where logits are logarithms of probabilities, one of exactly 0 stays possible: it counts as this tiny number.
SMALLEST_PROBABILITY = 1e-300


# ---------------------------------------------------------------------------------------------------------------
# Arrays


def as_logits(
    logits: Any, n_classes: int | None = None, *, row_allowed: bool = False, keep_bfloat16: bool = False
) -> NDArray[Any]:
    """Logits as an (n, K) array of float16, float32 or float64, without a copy where possible.

    Values are not read here but block by block on the way through (`blocks`): a memory map stays on disk.
    `keep_bfloat16` is for callers that only pass them on to the kernels; others get float32.
    """
    if type(logits) is not np.ndarray or not _is_native(logits.dtype):
        logits = _as_native_floats(as_array(logits, "logits", keep_bfloat16=keep_bfloat16))
    return _as_rows(logits, n_classes, row_allowed)


def as_device_logits(logits: Any, n_classes: int | None = None, *, row_allowed: bool = False) -> Any:
    """A tensor on an accelerator as (n, K) floats, where it is."""
    if not logits.is_floating_point() or logits.layout != sys.modules["torch"].strided:
        raise InputTypeError(f"logits must be a dense tensor of floats; got {logits.dtype}, {logits.layout}.")
    return _as_rows(logits.detach(), n_classes, row_allowed)


def _as_rows(array: Any, n_classes: int | None, row_allowed: bool) -> Any:
    """An array or tensor of shape (n, K)."""
    if array.ndim == 1 and row_allowed:
        array = array[None, :]
    if array.ndim != 2:
        one_row, binary = "logits[None, :]", "np.column_stack([np.zeros_like(s), s])"
        hint = f" For one row pass {one_row}; for decisions s between two classes {binary}." if array.ndim == 1 else ""
        raise LogitsError(
            f"logits must have shape (rows, classes); got {array.ndim} dimension(s), shape {tuple(array.shape)}.{hint}"
        )
    if array.shape[1] < 2:
        raise LogitsError(
            f"logits must have at least 2 classes; got shape {tuple(array.shape)}. "
            "For a binary score s pass columns (0, s)."
        )
    if n_classes is not None and array.shape[1] != n_classes:
        raise LogitsError(f"logits must have {n_classes} classes, as in the calibration; got {array.shape[1]}.")
    return array


def _is_native(dtype: np.dtype[Any]) -> bool:
    return dtype.char in "fed" and dtype.isnative


def _as_native_floats(array: NDArray[Any]) -> NDArray[Any]:
    """float16, float32 or float64 in the machine's byte order; whole numbers become float64."""
    if _is_native(array.dtype) or is_bfloat16(array.dtype):  # which is here only where it is kept
        return array
    if array.dtype.kind not in "fiu":
        raise InputTypeError(
            f"logits must be real numbers; got dtype {array.dtype}. Pass the classifier's raw outputs as floats."
        )
    if array.dtype.kind == "f" and array.dtype.char not in "efdg":  # of other packages, such as eight bits
        return array.astype(np.float32)
    if array.dtype.kind in "iu" or array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # an extended double beyond the range becomes inf, which is refused by name
            return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="))


def as_labels(labels: Any, n: int, n_classes: int) -> I64:
    """Class numbers as an (n,) int64 array, all in [0, K); `ClassAxis.numbers` takes names, too.

    Parameters
    ----------
    labels : (n,) class numbers
    n, n_classes : rows, and classes
    """
    array = as_array(labels, "labels")
    if array.ndim != 1:
        raise LabelsError(f"labels must be one-dimensional; got shape {array.shape}. Pass one class number per row.")
    if array.dtype.kind not in "iu":
        if array.size:
            raise InputTypeError(f"labels must be integers; got dtype {array.dtype}. {_labels_hint(array)}")
        array = np.empty(0, np.int64)
    if len(array) != n:
        raise LabelsError(f"labels must have one entry per row of logits; got {len(array)} labels for {n} rows.")
    bad = np.flatnonzero((array < 0) | (array >= n_classes))
    if bad.size:
        row = int(bad[0])
        one_based = array.min() >= 1 and array.max() == n_classes
        hint = " Did you pass one-based labels?" if one_based else ""
        raise LabelsError(f"labels must be in [0, {n_classes}); got {array[row]} at row {row}.{hint}")
    return array.astype(np.int64, copy=False)


def _labels_hint(array: NDArray[Any]) -> str:
    """How labels of another kind become class numbers."""
    if isinstance(array.flat[0], str | bytes):
        return "Pass class numbers, or names together with class_names= in the order of the logits."
    if array.dtype.kind == "O" and (gap := _gap_in(array)):
        return f"{gap[1:]} Drop such rows."
    if array.dtype.kind == "f" and not np.all(array == np.rint(array)):
        row = int(np.flatnonzero(array != np.rint(array))[0])
        return f"Row {row} has {array[row]}, which is not a class number; drop such rows."
    return "Use labels.astype(int) if they are class numbers."


def as_groups(groups: Any, n: int | None = None) -> NDArray[Any]:
    """Groups as an (n,) array of int64 or of strings."""
    array = as_array(groups, "groups")
    if array.ndim != 1:
        raise InputError(f"groups must be one-dimensional; got shape {array.shape}.")
    if n is not None and len(array) != n:
        raise InputError(f"groups must have one entry per row; got {len(array)} for {n} rows.")
    if array.dtype.kind == "U" and isinstance(groups, list | tuple) and not all(isinstance(one, str) for one in groups):
        raise InputTypeError("groups must be whole numbers or strings, not both.")  # NumPy makes strings of all
    if array.dtype.kind in "OT" and all(isinstance(one, str) for one in array):
        array = np.array(array.tolist(), dtype=str)
    if array.dtype.kind not in "iubU" and array.size:
        raise InputTypeError(f"groups must be whole numbers or strings; got dtype {array.dtype}.{_gap_in(array)}")
    if array.dtype.kind == "U":
        as_printable(np.unique(array).tolist(), "groups")
        return array
    if array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max:
        raise InputError(f"groups must be below 2^63; got {array.max()}.")
    return array.astype(np.int64)


def _gap_in(values: NDArray[Any]) -> str:
    """Where a label or group is missing, if one is: a null among whole numbers arrives as NaN, others as objects."""
    entries = values.tolist() if values.dtype.kind in "fO" else []
    row = next((i for i, x in enumerate(entries) if is_missing(x)), None)
    return "" if row is None else f" Are some missing? Row {row} has {entries[row]}."


def same_device(logits: Any, labels: Any) -> None:
    """Two tensors must be on one device."""
    devices = [str(x.device) for x in (logits, labels) if is_torch(x)]
    if len(set(devices)) > 1:
        raise InputTypeError(
            f"logits and labels must be on one device; got {devices[0]} and {devices[1]}. Use labels.to(logits.device)."
        )


def blocks(logits: NDArray[Any]) -> Iterator[tuple[slice, F64]]:
    """Row blocks of logits as C-contiguous float64, each checked for values no score can be computed from.

    They are read-only, as they may be views of the caller's own logits.
    """
    for rows in row_blocks(logits):
        block = np.ascontiguousarray(logits[rows], dtype=np.float64)
        refuse_unusable(block, rows.start)
        yield rows, frozen(block)


def row_blocks(logits: NDArray[Any]) -> Iterator[slice]:
    """The rows of logits, as many at a time as should stay in a cache."""
    step = max(1, BLOCK_LOGITS // logits.shape[1])
    return (slice(start, min(start + step, len(logits))) for start in range(0, len(logits), step))


def refuse_unusable(block: NDArray[Any], start: int) -> None:
    """Refuse rows from which no score can be computed; `start` is the number of the first row."""
    largest = block.max(1).astype(np.float64)
    usable = (largest > -np.inf) & (largest <= LARGEST_LOGIT)  # NaN fails both
    if not usable.all():
        bad = int(usable.argmin())
        raise_bad_row(block[bad], start + bad)


def raise_bad_row(logits: NDArray[Any], row: int) -> NoReturn:
    """Say what is wrong with the (K,) logits of a row from which no score can be computed."""
    logits = np.array(logits)  # which another thread may be writing to
    largest = float(logits.max())
    if np.isnan(largest):
        column = int(np.flatnonzero(np.isnan(logits))[0])
        raise LogitsError(
            f"logits must not be NaN; got NaN at row {row}, class {column}. Check the model's output for overflow."
        )
    if largest == -np.inf:
        raise LogitsError(
            f"logits must have a finite value in every row; row {row} is all -inf. Leave one class unmasked."
        )
    column = int(logits.argmax())
    if largest == np.inf:
        raise LogitsError(
            f"logits must not be +inf; got +inf at row {row}, class {column}. "
            "Use -inf for impossible classes, finite values otherwise."
        )
    if largest <= LARGEST_LOGIT:
        raise LogitsError(f"logits must not change while they are read; row {row} did. Pass a copy.")
    raise LogitsError(
        f"logits must be at most {LARGEST_LOGIT:g}; got {largest:g} at row {row}, class {column}: "
        "the Dirichlet's sum would overflow. Rescale the logits."
    )


def real(values: Any, what: str) -> F64:
    """What a user's function gives, as doubles: neither a mask nor an imaginary part is forgotten."""
    if np.ma.is_masked(values) or np.iscomplexobj(values):
        kind = "masked" if np.ma.is_masked(values) else "complex"
        raise ScoreError(f"{what} must return real numbers; got {kind} ones.")
    return np.asarray(values, dtype=np.float64)


def from_user(function: Callable[[F64], Any], z: F64, what: str) -> F64:
    """What a user's evidence or utility function gives for z; impossible labels get 0."""
    return np.where(z == -np.inf, 0.0, numbers_from_user(function, z, what))


def numbers_from_user(function: Callable[[F64], Any], z: NDArray[Any], what: str) -> F64:
    """The same where it does not matter what impossible labels get; perhaps read-only. z may be of any float type."""
    result = real(function(z.astype(np.float64, order="C")), what)
    if result.shape != z.shape:
        raise ScoreError(f"{what} must return an array of shape {z.shape}; got {result.shape}.")
    if _all_usable(result):
        return result
    result = np.where(z == -np.inf, 0.0, result)
    if _all_usable(result):
        return result
    unusable = ~((result >= 0) & (result <= LARGEST_LOGIT))  # NaN, too
    raise ScoreError(f"{what} must return finite values >= 0; got {result[unusable][0]}.")


def _all_usable(values: F64) -> bool:
    different = values if values.strides[0] else values[:1]  # one row may stand for all
    return bool(different.min(initial=0.0) >= 0 and different.max(initial=0.0) <= LARGEST_LOGIT)


# ---------------------------------------------------------------------------------------------------------------
# Numbers and names


def as_coverage(coverage: Any, what: str = "coverage") -> TargetCoverage:
    """A coverage (or a confidence) as an exact fraction: 0.9 means 9/10, not the double nearest to it."""
    # A server asks for the same few coverages all day: fractions are slow to make, and to compare.
    if type(coverage) is TargetCoverage and 0 < coverage.numerator < coverage.denominator:
        return coverage
    return _remembered_coverage(coverage, what) if type(coverage) is float else _exact_coverage(coverage, what)


_NUMBER = int | float | Fraction | Decimal | np.integer | np.floating


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBER) and not isinstance(value, bool)


def _exact_coverage(coverage: Any, what: str) -> TargetCoverage:
    if not _is_number(coverage):
        raise InputTypeError(f"{what} must be a number between 0 and 1; got {coverage!r} ({type(coverage).__name__}).")
    value = _as_fraction(coverage)
    if value is None or not 0 < value < 1:
        raise CoverageError(
            f"{what} must be strictly between 0 and 1; got {coverage}.{_coverage_hint(coverage, value)}"
        )
    return TargetCoverage(value)


_remembered_coverage = lru_cache(maxsize=1024)(_exact_coverage)


def _coverage_hint(coverage: Any, value: Fraction | None) -> str:
    if value is not None and 1 < value < 100:
        return f" Did you mean {float(value) / 100:g}?"
    if value is not None and 0 < coverage < 1:
        return " Floats are read to nine decimals; pass a fractions.Fraction for more."
    return ""


def _as_fraction(number: Any) -> Fraction | None:
    """The exact value meant by a number; None for NaN and infinities."""
    if isinstance(number, int | Fraction | np.integer):
        return Fraction(int(number)) if not isinstance(number, Fraction) else number
    if isinstance(number, Decimal):
        return Fraction(number) if number.is_finite() else None
    if not np.isfinite(number):
        return None
    # A single-precision 0.9 is meant as 0.9 too: its shortest decimal says so, its binary value does not.
    exact = Fraction(float(number)) if isinstance(number, float) else Fraction(str(number))
    return exact.limit_denominator(10**9)


def as_probability(value: Any, what: str) -> float:
    """A plain float strictly between 0 and 1 (a confidence, a tolerance)."""
    if not _is_number(value):
        raise InputTypeError(f"{what} must be a number between 0 and 1; got {value!r}.")
    try:
        result = float(value)
    except (OverflowError, ValueError):  # beyond all doubles, or no number at all
        result = np.nan
    if not 0 < result < 1:
        raise InputError(f"{what} must be strictly between 0 and 1; got {value}.")
    return result


def as_flag(value: Any, what: str) -> bool:
    """True or False, not another value that counts as one of them."""
    if value is not True and value is not False and not isinstance(value, np.bool_):
        raise InputTypeError(f"{what} must be True or False; got {value!r}.")
    return bool(value)


def as_count(value: Any, what: str, *, at_least: int = 1) -> int:
    """A whole number, not a bool, not below a bound."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{what} must be a whole number; got {value!r} ({type(value).__name__}).")
    if value < at_least:
        raise InputError(f"{what} must be at least {at_least}; got {value}.")
    return int(value)


def as_n_classes(value: Any) -> int:
    """K: two or more, and no more than labels of 32 bits can number."""
    if as_count(value, "n_classes", at_least=2) >= 2**31:
        raise InputError(f"n_classes must be below 2^31, as labels have 32 bits; got {value:,}.")
    return int(value)


def as_seed(value: Any) -> int:
    """A whole number of 32 bits."""
    if as_count(value, "seed", at_least=0) >= 2**32:
        raise InputError(f"seed must be below 2^32; got {value}.")
    return int(value)


def as_temperature(value: Any, *words: str) -> Any:
    """A positive number, or one of the words that say which rows a temperature is fitted on."""
    if isinstance(value, str) and value in words:
        return value
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not 0 < value < np.inf:
        kind = InputError if number or isinstance(value, str) else InputTypeError
        *some, last = ("a positive number", *(f'"{word}"' for word in words))
        raise kind(f"temperature must be {', '.join(some)} or {last}; got {value!r}.")
    return float(value)


def as_base_rates(rates: Any) -> tuple[float, ...]:
    """Base rates as a tuple of positive numbers that sum to 1."""
    array = as_array(rates, "base_rates")
    if array.dtype.kind not in "fiu":
        raise InputTypeError(f"base_rates must be numbers; got dtype {array.dtype}.")
    array = array.astype(np.float64)
    if array.ndim != 1 or array.size < 2 or not np.all((array > 0) & (array < 1)):
        raise ScoreError(
            "base_rates must be one number in (0, 1) per class; zero, negative or NaN entries are not allowed."
        )
    if abs(array.sum() - 1) > 1e-6:
        raise ScoreError(f"base_rates must sum to 1; got {array.sum():g}. Divide them by their sum.")
    total = array.sum()
    return tuple((array if abs(total - 1) < 1e-12 else array / total).tolist())


def rates_for(rates: tuple[float, ...], n_classes: int) -> F64:
    """Base rates as an array, if there is one per class."""
    if len(rates) != n_classes:
        raise ScoreError(f"base_rates must have one entry per class; got {len(rates)} for {n_classes} classes.")
    return np.array(rates)


def as_printable(names: Sequence[str], what: str) -> None:
    """Names are shown in tables, pages and files: none may hold a control character."""
    for index, name in enumerate(names):
        if not name.isprintable() and any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
            raise InputError(f"{what} must be printable; name {index}, {name!r}, contains a control character.")


def as_ids(ids: Any, n: int) -> NDArray[Any]:
    """What n rows are called, (n,) text or whole numbers."""
    array = np.asarray(ids) if len(ids) else np.empty(0, str)
    if array.shape != (n,) or array.dtype.kind not in "iuU":
        raise InputError(f"ids must be one text or whole number per row, ({n},); got {array.dtype}, {array.shape}.")
    return array


def is_many(coverage: Any) -> bool:
    """Whether several coverages were given."""
    if isinstance(coverage, np.ndarray):
        return coverage.ndim > 0
    return not isinstance(coverage, float) and isinstance(coverage, Sequence) and not isinstance(coverage, str | bytes)


def as_coverages(coverage: Any) -> list[TargetCoverage]:
    """One coverage or several, as exact fractions."""
    wanted = [as_coverage(c) for c in (coverage if is_many(coverage) else [coverage])]
    if not wanted:
        raise InputError("coverage must be a number or a non-empty sequence of numbers; got an empty one.")
    return wanted
