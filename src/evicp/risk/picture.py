"""Lines from 0 on as SVG, for pages that need nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evicp.types import F64

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 560, 300, 64, 48, 24, 24

#: Styles: of what is asked for, of the ends of intervals, of what was found.
ASKED = 'stroke="#c27c1a" stroke-dasharray="6 4"'
BOUND = 'stroke="#3d85c6" stroke-width="1" stroke-opacity=".5"'
FOUND = 'stroke="#3d85c6" stroke-width="2"'


class Line(NamedTuple):
    """A line: where it goes, and its style."""

    xs: F64
    ys: F64
    style: str


@dataclass(frozen=True, eq=False)
class Picture:
    """Lines and a dot.

    Parameters
    ----------
    title : what it shows
    words : below the horizontal axis, and above the vertical one
    ends, ticks : of both axes
    lines, dot : what is drawn
    """

    title: str
    words: tuple[str, str]
    ends: tuple[float, float]
    ticks: tuple[Sequence[float], Sequence[float]]
    lines: Sequence[Line]
    dot: tuple[float, float]

    def to_svg(self) -> str:
        """The picture as text."""
        axis = Line(np.array([0.0, self.ends[0]]), np.zeros(2), 'stroke="#a9b1ba"')
        x, y = self.dot
        parts = [
            *map(self._line, (axis, *self.lines)),
            f'<circle cx="{self._across(x)}" cy="{self._up(y)}" r="5" fill="#c27c1a"/>',
            *(_text(self._across(x), _HEIGHT - _BOTTOM + 18, f"{x:g}") for x in self.ticks[0]),
            *(_text(_LEFT - 6, self._up(y) + 4, f"{y:g}", "end") for y in (0.0, *self.ticks[1])),
            _text(_WIDTH / 2, _HEIGHT - 8, self.words[0]),
            _text(8, 14, self.words[1], "start"),
        ]
        size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        return "\n".join([head, f"<title>{self.title}</title>", *parts, "</svg>"])

    def _across(self, x: float) -> float:
        return round(_LEFT + x / self.ends[0] * (_WIDTH - _LEFT - _RIGHT), 1)

    def _up(self, y: float) -> float:
        return round(_HEIGHT - _BOTTOM - min(y / self.ends[1], 1.0) * (_HEIGHT - _TOP - _BOTTOM), 1)

    def _line(self, line: Line) -> str:
        places = zip(line.xs.tolist(), line.ys.tolist(), strict=True)
        points = " ".join(f"{self._across(x)},{self._up(y)}" for x, y in places)
        return f'<polyline points="{points}" fill="none" {line.style}/>'


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" font-size="12" fill="#7a8490" text-anchor="{anchor}">{words}</text>'
