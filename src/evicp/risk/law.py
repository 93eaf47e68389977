"""The law of a calibration whose threshold bounds a loss: its coverage stands for 1 - risk / largest loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from evicp.calibration.laws.law import Thresholds
from evicp.calibration.laws.marginal import AllRows, Marginal
from evicp.calibration.promises import Promise, Target
from evicp.calibration.ranks import rows_needed
from evicp.calibration.ties import Ties
from evicp.errors import EvicpWarning, InputError, SmallCalibrationWarning
from evicp.input import convert
from evicp.risk.loss import exact
from evicp.risk.steps import Steps
from evicp.types import F64


@dataclass(frozen=True)
class RiskKind(AllRows):
    """All rows together, with their losses."""

    guarantee = "risk"
    where = " (1 - risk / largest loss: the sets bound an expected loss, not the coverage)"
    caveat = (
        "Holds if calibration and new rows are exchangeable and the calibration rows were not used to select the "
        "model, the score, the temperature or the loss. It is an average over rows, and says nothing about single "
        "classes or shifted data."
    )


@dataclass(frozen=True, eq=False)
class RiskLaw(Marginal):
    """One threshold for all rows, the smallest whose expected loss is bounded."""

    steps: Steps

    guarantee = "risk"
    kind = RiskKind()

    def at(self, scores: F64, coverage: Fraction, confidence: float | None) -> Thresholds:
        """The threshold of the risk (1 - coverage) times the largest loss."""
        risk = (1 - coverage) * exact(self.steps.largest)
        value = self.steps.threshold(risk, confidence)
        level = float(coverage)
        values = convert.frozen(np.array([value]))
        return Thresholds(values, Ties(0, self.steps.n, level, level), cautions=self._cautions(value, risk, confidence))

    def _cautions(self, value: float, risk: Fraction, confidence: float | None) -> tuple[EvicpWarning, ...]:
        n, sure = self.steps.n, "" if confidence is None else f" with confidence {confidence:g}"
        if value == -np.inf:
            mean = float(self.steps.loss_at(value))
            return (EvicpWarning(f"a risk of {float(risk):g} allows empty sets, whose mean loss is {mean:g}."),)
        if value < np.inf:
            return ()
        needed = rows_needed(1 - risk / exact(self.steps.largest), confidence)
        why = f"Calibrate on at least {needed:,} rows." if n < needed else "Calibrate on more rows."
        text = f"{n:,} calibration row(s) cannot guarantee a risk of {float(risk):g}{sure}: every set is full. {why}"
        return (SmallCalibrationWarning(text),)

    def promise(self, scores: F64, target: Target) -> Promise:
        """Refused: it guarantees no coverage."""
        raise InputError("these sets bound a loss, not the coverage: use RiskControl.certificate().")

    def raised(self, scores: F64, higher: Callable[[F64], F64]) -> tuple[F64, RiskLaw]:
        """Higher scores, ascending, and steps at higher scores."""
        return np.sort(higher(scores)), RiskLaw(self.steps.raised(higher))
