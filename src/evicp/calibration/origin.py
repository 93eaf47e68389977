"""What made a calibration's scores, and of which rows; how far they are raised where other code scores new rows.

Scores may pile up at one value: forests vote, networks are sure, quantized logits tie. Rounding must not move such a
pile to the other side of a threshold. Rows in a finer precision than the calibration rows are therefore rounded to
theirs (`kernels.comparable`). Where rows are coarser, or another backend computes their scores, calibration scores are
raised by what rounding can do, so that coverage can only rise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import log
from operator import or_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input.warn import warn
from evicp.kernels.arithmetic import MIXED, ROUNDOFF, Arithmetic, are_single
from evicp.method.scores import ECP, Score, TopK
from evicp.types import F64, Bools

if TYPE_CHECKING:
    from evicp.calibration.batches import Batch

#: How far a score is raised where other code computes the scores of new rows (another backend, ONNX, a torch module),
#: as a share of its size, or of 1 if it is smaller. Its rounding differs, and a label on the threshold must stay in.
SLACK: Mapping[str, float] = MappingProxyType({"float32": 1e-6, "float64": 1e-12})
#: This many times as much for scores that add probabilities up, and for those that add up many of anything (evidence,
#: the softmax's terms): a sum of 256 single-precision numbers is off by up to 256 * 2^-25 of itself.
OF_SUMS = 10.0
MANY_CLASSES = 1000
#: Rounding all logits of a row by a share u of each moves its scores by at most about this many u times their size.
SENSITIVITY = 4.0
#: Rounding that moves logits, in units of the temperature, by more than this changes which labels are likely.
COARSE = 0.25


def size_of_logits(
    own: NDArray[Any], largest_of: Callable[[NDArray[np.int64]], NDArray[Any]], at_once: int = 0
) -> float:
    """How large the logits are by which rounding of a row must be judged; -inf without rows.

    That is the largest logit of a true label; or the largest of a row, without its sign, where that is negative, as log
    densities and distances are. Rows whose true label has a positive logit are not checked again.

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

    def raised(self, ascending: F64, score: Score, n_classes: int, new: Arithmetic) -> F64:
        """Calibration scores with a margin for rounding where another arithmetic scores new rows; no longer ascending.

        Coverage can only rise by it. Ranks are whole numbers, and the same wherever they are counted.

        Parameters
        ----------
        ascending : (n,) calibration scores
        score, n_classes : what they are scores of
        new : what makes the scores of new rows
        """
        if isinstance(score, TopK) and not score.randomized:
            return ascending
        made_by, size = self.arithmetic, np.abs(ascending)
        is_double = made_by.working == new.working == "float64"
        times = (OF_SUMS if score.adds_up or n_classes > MANY_CLASSES else 1.0) * np.maximum(1.0, size)
        slack = times * SLACK["float64" if is_double else "float32"]
        coarser = max(ROUNDOFF[new.logits], ROUNDOFF[made_by.logits])
        if coarser == ROUNDOFF[new.finest] == ROUNDOFF[made_by.finest]:
            return ascending + slack
        temperature = min(1.0, getattr(score, "temperature", 1.0))
        rounding = SENSITIVITY * coarser / temperature * (1.0 + log(n_classes) + abs(self.largest) + size)
        if coarser > ROUNDOFF["float32"]:
            # Labels that coarser rows make equal share the larger rank of ECP.
            of_ranks = self._most_moved(score, new) if isinstance(score, ECP) and self._is_finer_than(new) else 0.0
            # Doubles may hold single precision: scores that would tie then differ by its rounding.
            of_ties = slack if made_by.finest == made_by.logits == "float64" else times * SLACK["float32"]
            rounding = np.where(_is_piled_up(ascending, of_ties), rounding, of_ranks)
        return ascending + np.maximum(slack, rounding)

    def warn_of_coarse_rows(self, score: Score, new: Arithmetic) -> None:
        """Warn of rows whose precision is too coarse for logits as large as these, and coarser than the calibration's.

        Sums and ranks of logits that are rounded so much are others, not those of the same logits with some noise.
        """
        if self._is_finer_than(new) and COARSE < self._most_moved(score, new) < np.inf:
            own, largest = self.arithmetic.logits, abs(self.largest)
            warn(
                f"new logits are {new.logits}, the calibration's were {own}: logits up to {largest:.3g} are "
                f"rounded by up to {ROUNDOFF[new.logits] * largest:.2g}, and sets may cover less than the target. "
                f"Calibrate on {new.logits} logits, or pass new ones in {own}.",
                SuspiciousInputWarning,
            )

    def _is_finer_than(self, new: Arithmetic) -> bool:
        return ROUNDOFF[self.arithmetic.logits] < ROUNDOFF[new.logits]

    def _most_moved(self, score: Score, new: Arithmetic) -> float:
        """By how much rounding to the precision of new logits moves these, in units of the temperature."""
        return ROUNDOFF[new.logits] * abs(self.largest) / min(1.0, getattr(score, "temperature", 1.0))

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
            raise InputError(f"its scores were computed by {text!r}, which this version of evicp does not know.")
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


def _is_piled_up(ascending: F64, slack: F64) -> Bools:
    """Which scores equal others, but for rounding in single precision: one in a thousand, and two at least.

    Half precision moves scores by much more, as often up as down. Where they do not tie, that cancels out, and no room
    is needed.
    """
    with np.errstate(invalid="ignore"):  # infinity less infinity, which is found nowhere
        low, high = ascending - slack, ascending + slack
    count = np.searchsorted(ascending, high, "right") - np.searchsorted(ascending, low)
    return count > max(1, len(ascending) // 1000)


def fraction_bits_of(batches: Sequence[Batch]) -> int | None:
    """The `fraction_bits` of the logits of all batches; None where some were not doubles."""
    some = [batch.bits for batch in batches if len(batch.scores)]
    return reduce(or_, (bits for bits in some if bits is not None), 0) if None not in some else None


def final_origin(batches: Sequence[Batch]) -> Origin:
    """What made the scores of all rows there are: only these tell whether doubles are in single precision."""
    origin, bits = origin_of(batches), fraction_bits_of(batches)
    made_by = origin.arithmetic
    if bits is None or not are_single(bits) or made_by.backend == MIXED:
        return origin
    return replace(origin, arithmetic=Arithmetic.of(made_by.backend, made_by.working, "float32"))


def origin_of(batches: Sequence[Batch]) -> Origin:
    """What made the scores of all batches, one without rows aside, and the digest of all rows in their order."""
    some = [batch for batch in batches if len(batch.scores)]
    if not some:
        return UNKNOWN
    digest, row = 0, 0
    for batch in some:
        own = batch.origin.digest  # of rows from number 0
        if batch.hashes is not None and (own is None or row):
            own = digest_of(np.asarray(batch.hashes), row)
        if own is None:
            return Origin.joined([one.origin for one in some], None)
        digest, row = (digest + own) % 2**64, row + len(batch.scores)
    return Origin.joined([one.origin for one in some], digest)


# ---------------------------------------------------------------------------------------------------------------
# Hashes: 64 bits that tell one calibration set from another, and break ties


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
