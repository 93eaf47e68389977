"""A calibration prepared for one coverage: what does not depend on new rows is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from evicp.calibration.levels import Level
from evicp.calibration.new_rows import Request, sets_at
from evicp.sets import PredictionSets
from evicp.types import F64, Smoothed

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration

__all__ = ["Prepared"]


@dataclass(frozen=True, eq=False, repr=False)
class Prepared:
    """A calibration prepared for one coverage, as returned by `Calibration.at`: for servers that use no other.

    Parameters
    ----------
    calibration : the calibration
    level : what follows from it at this coverage

    >>> from evicp import calibrate
    >>> prepared = calibrate([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0]], [0, 1], "lac").at(0.6)
    >>> prepared
    Prepared(lac, 2 rows, 3 classes; coverage 0.6)
    >>> prepared.predict([0.2, 0.9, 0.1]).to_lists()
    [[1]]
    """

    calibration: Calibration
    level: Level

    @property
    def coverage(self) -> Fraction:
        """The coverage, exactly."""
        return self.level.coverage

    @property
    def confidence(self) -> float | None:
        """The confidence of the sets; None for coverage on average."""
        return self.level.confidence

    @property
    def thresholds(self) -> F64:
        """The thresholds, as `Calibration.thresholds` has them."""
        own = self.calibration
        return own.law.listed(own.scores, self.level.coverage, self.level.values)

    def predict(
        self,
        logits: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        allow_empty: bool = True,
        smoothed: Smoothed = False,
    ) -> PredictionSets:
        """The prediction sets of new rows, as `Calibration.predict` makes them."""
        return sets_at(self.calibration, [self.level], Request(logits, groups, weights, allow_empty, smoothed))[0]

    def __repr__(self) -> str:
        own = self.calibration
        rows = f"{own.score.describe()}, {own.n:,} rows, {own.n_classes:,} classes{own.law.summary()}"
        return f"Prepared({rows}; coverage {float(self.coverage):g})"
