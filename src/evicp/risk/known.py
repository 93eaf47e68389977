"""What a rule knows of the logits it was made of, and how it takes those of new rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray

from evicp.errors import InputError
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis
from evicp.kernels.arithmetic import (
    ROUNDOFF,
    Arithmetic,
    are_single,
    fraction_bits,
    in_precision,
    precision_of,
    precision_of_new,
)
from evicp.sets import AboutSets
from evicp.types import TargetCoverage


@dataclass(frozen=True)
class KnownLogits:
    """The classes of calibration rows, and the precision of their logits, to which finer ones are rounded.

    Tied logits would otherwise lie on the other side of a threshold in another precision.
    """

    classes: ClassAxis
    precision: str

    @classmethod
    def of(cls, logits: Any, class_names: Any) -> tuple[Self, NDArray[Any]]:
        """Of calibration rows on the CPU; and these rows, checked."""
        array = validate.as_logits(logits)
        precision = precision_of(logits, array)
        if precision == "float64" and are_single(fraction_bits(array)):
            precision = "float32"
        return cls(ClassAxis.of(class_names, array.shape[1]).learned(logits), precision), array

    def new(self, logits: Any) -> tuple[NDArray[Any], str]:
        """New rows, checked, in the precision of the calibration rows or a coarser one; and which that is."""
        logits = convert.on_cpu(logits)
        self.classes.check(logits)
        array = validate.as_logits(logits, self.classes.n_classes, row_allowed=True)
        precision = precision_of_new(Arithmetic.of("numpy", "float64", self.precision), logits, array)
        if ROUNDOFF[precision] < ROUNDOFF[self.precision]:
            return in_precision(array, self.precision), self.precision
        return array, precision

    def about(self, level: TargetCoverage, score: str, guarantee: str, confidence: float | None) -> AboutSets:
        """What sets of new rows remember."""
        classes = self.classes
        return AboutSets(
            n_classes=classes.n_classes,
            coverage=level,
            score=score,
            class_names=classes.names,
            confidence=confidence,
            guarantee=guarantee,
            columns=classes.other_columns,
            numbered=classes.numbered,
        )

    def description(self) -> dict[str, Any]:
        """Plain values, for files."""
        own = self.classes
        known = {"n_classes": own.n_classes, "class_names": own.names, "numbered": own.numbered}
        columns = {} if own.other_columns is None else {"columns": own.other_columns}
        return {**known, **columns, "precision": self.precision}

    @classmethod
    def stored(cls, content: Mapping[str, Any]) -> Self:
        """From the values of a file, checked."""
        precision = content["precision"]
        if precision not in ROUNDOFF:
            raise InputError(f"its logits were {precision!r}, which this version of evicp does not know.")
        return cls(ClassAxis.stored(content), precision)
