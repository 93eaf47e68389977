"""What answers to rows whose labels are known are worth."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from evicp.evaluation.metrics import clopper_pearson
from evicp.input import validate

__all__ = ["SelectiveEvaluation"]


@dataclass(frozen=True, repr=False)
class SelectiveEvaluation:
    """What answers to rows whose labels are known are worth.

    Attributes
    ----------
    n : rows
    answered, wrong : how many got an answer, and how many of these answers are wrong
    error : asked for
    confidence : of the intervals, and of the verdict
    observed : the share of answers that are wrong; None without answers
    interval : of the error of answers (Clopper-Pearson)
    share, share_interval : of the rows answered
    kept : whether the observed error agrees with the one asked for: its interval is not above it
    """

    n: int
    answered: int
    wrong: int
    error: float
    confidence: float
    observed: float | None
    interval: tuple[float, float]
    share: float
    share_interval: tuple[float, float]
    kept: bool

    @classmethod
    def of(cls, n: int, answered: int, wrong: int, error: Fraction, confidence: float) -> SelectiveEvaluation:
        """From counts."""
        sure = validate.as_probability(confidence, "confidence")
        n = validate.as_count(n, "the number of labelled rows")
        interval = clopper_pearson(wrong, answered, sure) if answered else (0.0, 1.0)
        observed = wrong / answered if answered else None
        shares = answered / n, clopper_pearson(answered, n, sure)
        return cls(n, answered, wrong, float(error), sure, observed, interval, *shares, interval[0] <= error)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**self.__dict__, "interval": list(self.interval), "share_interval": list(self.share_interval)}

    def __str__(self) -> str:
        low, high = self.interval
        verdict = "agrees with" if self.kept else "is MORE than"
        shown = "no answer" if self.observed is None else f"{self.wrong:,} of {self.answered:,} answers wrong"
        return (
            f"{shown} [{low:.4f}, {high:.4f}], which {verdict} {self.error:g}; "
            f"answered {self.share:.4f} of {self.n:,} rows"
        )

    __repr__ = __str__
