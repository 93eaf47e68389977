"""What made a calibration's scores, and how far they are raised where other code scores new rows.

Scores may pile up at one value: forests vote, networks are sure, quantized logits tie. Rounding must not move such a
pile to the other side of a threshold. Rows in a finer precision than the calibration rows are therefore rounded to
theirs (`kernels.comparable`). Where rows are coarser, or another backend computes their scores, calibration scores are
raised by what rounding can do, so that coverage can only rise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import log
from operator import or_
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input.warn import warn
from evicp.kernels.arithmetic import MIXED, ROUNDOFF, Arithmetic
from evicp.method.scores import ECP, Score, TopK
from evicp.types import F64, Bools

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
        times = OF_SUMS if score.adds_up or n_classes > MANY_CLASSES else 1.0
        slack = times * SLACK["float64" if is_double else "float32"] * np.maximum(1.0, size)
        coarser = max(ROUNDOFF[new.logits], ROUNDOFF[made_by.logits])
        if coarser == ROUNDOFF[new.finest] == ROUNDOFF[made_by.finest]:
            return ascending + slack
        temperature = min(1.0, getattr(score, "temperature", 1.0))
        rounding = SENSITIVITY * coarser / temperature * (1.0 + log(n_classes) + abs(self.largest) + size)
        if coarser > ROUNDOFF["float32"]:
            # Labels that coarser rows make equal share the larger rank of ECP.
            of_ranks = self._most_moved(score, new) if isinstance(score, ECP) and self._is_finer_than(new) else 0.0
            rounding = np.where(_is_piled_up(ascending, slack), rounding, of_ranks)
        return ascending + np.maximum(slack, rounding)

    def warn_of_coarse_rows(self, score: Score, new: Arithmetic) -> None:
        """Warn of rows whose precision is too coarse for logits as large as these, and coarser than the calibration's.

        Sums and ranks of logits that are rounded so much are others, not those of the same logits with some noise.
        """
        if self._is_finer_than(new) and COARSE < self._most_moved(score, new) < np.inf:
            own, largest = self.arithmetic.logits, abs(self.largest)
            warn(
                f"new logits are {new.logits}, the calibration's were {own}: logits as large as {largest:.3g} are "
                f"rounded by up to {ROUNDOFF[new.logits] * largest:.2g}, and sets may cover less than asked. Calibrate "
                f"on {new.logits} logits, or pass new ones in {own}.",
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


def _is_piled_up(ascending: F64, slack: F64) -> Bools:
    """Which scores equal others, but for rounding in single precision: one in a thousand, and two at least.

    Half precision moves scores by much more, as often up as down. Where they do not tie, that cancels out, and no room
    is needed.
    """
    with np.errstate(invalid="ignore"):  # infinity less infinity, which is found nowhere
        low, high = ascending - slack, ascending + slack
    count = np.searchsorted(ascending, high, "right") - np.searchsorted(ascending, low)
    return count > max(1, len(ascending) // 1000)
