"""What was observed against what can be asked, as numbers and as pictures."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from evicp.errors import EvicpWarning
from evicp.evaluation.strata import intervals
from evicp.risk.picture import ASKED, BOUND, FOUND, Line, Picture
from evicp.types import F64, Bools

__all__ = ["RiskCoverage", "RiskCurve"]


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error of answers against the share answered, from the most certain row on.

    Attributes
    ----------
    share : (m,) the share of answered rows
    error : (m,) the share of wrong answers
    upper : (m,) the upper end of its confidence interval, at each share separately
    target : the allowed error
    chosen : share and error of the rule
    """

    share: F64
    error: F64
    upper: F64
    target: float
    chosen: tuple[float, float]

    def to_svg(self) -> str:
        """A picture of the curve."""
        top = max(2 * self.target, float(self.error.max(initial=0.0)), 1e-6) * 1.05
        return Picture(
            "Error of answers against the share answered",
            ("share of rows answered", f"error of answers; target at most {self.target:g}"),
            (1.0, top),
            ((0, 0.25, 0.5, 0.75, 1), (self.target,)),
            [
                Line(np.array([0.0, 1.0]), np.full(2, self.target), ASKED),
                Line(self.share, self.upper, BOUND),
                Line(self.share, self.error, FOUND),
            ],
            self.chosen,
        ).to_svg()


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """The loss of labelled rows against the target risk.

    Attributes
    ----------
    asked : (m,) risks
    loss, low, high : (m,) the mean loss of the rows at each, and its interval
    size : (m,) labels per set
    target : the risk of the rule
    """

    asked: F64
    loss: F64
    low: F64
    high: F64
    size: F64
    target: float

    def to_svg(self) -> str:
        """A picture of the curve."""
        ends = np.array([0.0, float(self.asked.max())])
        at = int(np.argmin(np.abs(self.asked - self.target)))
        return Picture(
            "Mean loss against the target risk",
            ("target risk", "mean loss of these rows; dashed: the target"),
            (float(ends[1]), max(float(self.high.max()), float(ends[1])) * 1.05),
            ([0.0, *self.asked.tolist()], (self.target,)),
            [
                Line(ends, ends, ASKED),
                Line(self.asked, self.low, BOUND),
                Line(self.asked, self.high, BOUND),
                Line(self.asked, self.loss, FOUND),
            ],
            (float(self.asked[at]), float(self.loss[at])),
        ).to_svg()

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads of columns, and a row of text for each risk."""
        rows = zip(self.asked, self.loss, self.low, self.high, self.size, strict=True)
        head = ["target risk", "mean loss", "from", "to", "mean size"]
        return head, [[f"{row[0]:g}", *(f"{x:.4g}" for x in row[1:4]), f"{row[4]:.2f}"] for row in rows]


def risk_curve(evaluated: Callable[[Fraction], Any], target: Fraction, largest: float) -> RiskCurve:
    """The curve of labelled rows.

    Parameters
    ----------
    evaluated : what is observed at another risk
    target, largest : the risk of the rule, and the largest loss
    """
    asked = [risk for share in (1, 2, 3, 4, 6, 8, 12) if (risk := target * share / 4) <= 0.9 * largest or share == 4]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvicpWarning)  # of other risks
        found = [evaluated(risk) for risk in asked]
    figures = np.array([[one.mean_loss, *one.interval, one.mean_size] for one in found])
    loss, low, high, size = figures.T
    return RiskCurve(np.array(asked, np.float64), loss, low, high, size, float(target))


def curve_of(
    doubts: F64, wrong: Bools, target: Fraction, confidence: float, chosen: tuple[float, float], most: int = 200
) -> RiskCoverage:
    """The curve of some rows.

    Parameters
    ----------
    doubts, wrong : of the rows
    target, confidence, chosen : see `RiskCoverage`
    most : how many points it has at most
    """
    order = np.argsort(doubts, kind="stable")
    n = len(order)
    places = np.unique(np.linspace(1, n, min(n, most)).round().astype(np.int64))
    mistakes = np.cumsum(wrong[order])[places - 1]
    upper = intervals(mistakes, places, 2 * confidence - 1 if confidence > 0.5 else confidence)[1]
    return RiskCoverage(places / n, mistakes / places, upper, float(target), chosen)
