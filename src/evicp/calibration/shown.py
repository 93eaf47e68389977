"""How a calibration shows itself: in a line, in print, in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evicp.calibration.first_look import FirstLook
from evicp.calibration.laws.law import Law
from evicp.calibration.memory import WithScores
from evicp.method.scores import Score
from evicp.outer import outer
from evicp.tables import html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Shown(WithScores):
    """What a calibration prints; a line for `repr`, and what its rows are like for `print` and notebooks."""

    score: Score
    law: Law
    n_classes: int
    chosen_on: int | None
    folds: int | None
    first_look: FirstLook | None

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw which threshold gives which coverage; in groups, a curve for each.

        Parameters
        ----------
        ax : Matplotlib axes to draw on; those of a new figure by default (needs the `plot` extra)
        """
        axes: Axes = outer("plot_calibration")(self, ax)
        return axes

    def __repr__(self) -> str:
        kind = self.law.summary()
        kind += "" if self.chosen_on is None else f"; score selected on {self.chosen_on:,} other rows"
        kind += "" if self.folds is None else f"; scored in {self.folds:,} folds"
        return f"Calibration({self.score.describe()}, {self.n:,} rows, {self.n_classes:,} classes{kind})"

    def __str__(self) -> str:
        return repr(self) if self.first_look is None else f"{self!r}\n{self.first_look}"

    def _repr_html_(self) -> str:
        facts = [["score", self.score.describe()], ["rows", f"{self.n:,}"], ["classes", f"{self.n_classes:,}"]]
        facts += [list(fact) for fact in self.law.facts()]
        facts += [] if self.chosen_on is None else [["score chosen on", f"{self.chosen_on:,} other rows"]]
        facts += [] if self.folds is None else [["folds", f"{self.folds}"]]
        facts += [] if self.first_look is None else [["first look", str(self.first_look)]]
        return html_table(["Calibration", ""], facts, left=(1,))
