"""The error of answers against the share of rows answered, as numbers and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from evicp.evaluation.strata import intervals
from evicp.types import F64, Bools

__all__ = ["RiskCoverage"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 560, 300, 64, 48, 24, 24


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error of answers against the share answered, from the surest row on.

    Attributes
    ----------
    share : (m,) of the rows that are answered
    error : (m,) of these answers that are wrong
    upper : (m,) the upper end of its confidence interval, at each share by itself
    target : the error asked for
    chosen : the share and the error where the rule answers
    """

    share: F64
    error: F64
    upper: F64
    target: float
    chosen: tuple[float, float]

    def to_svg(self) -> str:
        """A picture of the curve."""
        top = max(2 * self.target, float(self.error.max(initial=0.0)), 1e-6) * 1.05

        def at(x: float, y: float) -> str:
            across = _LEFT + x * (_WIDTH - _LEFT - _RIGHT)
            return f"{across:.1f},{_HEIGHT - _BOTTOM - min(y / top, 1.0) * (_HEIGHT - _TOP - _BOTTOM):.1f}"

        def line(xs: F64, ys: F64, style: str) -> str:
            points = " ".join(at(x, y) for x, y in zip(xs.tolist(), ys.tolist(), strict=True))
            return f'<polyline points="{points}" fill="none" {style}/>'

        def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
            return f'<text x="{x}" y="{y}" font-size="12" fill="#7a8490" text-anchor="{anchor}">{words}</text>'

        ends = np.array([0.0, 1.0])
        marks = [text(float(at(x, 0).split(",")[0]), _HEIGHT - _BOTTOM + 18, f"{x:g}") for x in (0, 0.25, 0.5, 0.75, 1)]
        parts = [
            line(ends, np.full(2, self.target), 'stroke="#c27c1a" stroke-dasharray="6 4"'),
            line(ends, np.zeros(2), 'stroke="#a9b1ba"'),
            line(self.share, self.upper, 'stroke="#3d85c6" stroke-width="1" stroke-opacity=".5"'),
            line(self.share, self.error, 'stroke="#3d85c6" stroke-width="2"'),
            '<circle cx="{}" cy="{}" r="5" fill="#c27c1a"/>'.format(*at(*self.chosen).split(",")),
            *marks,
            text(_WIDTH / 2, _HEIGHT - 8, "share of rows answered"),
            text(8, 14, f"error of answers; asked at most {self.target:g}", "start"),
            text(_LEFT - 6, 256, "0", "end"),
            text(_LEFT - 6, float(at(0, self.target).split(",")[1]) + 4, f"{self.target:g}", "end"),
        ]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">'
        return "\n".join([head, "<title>Error of answers against the share answered</title>", *parts, "</svg>"])


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
