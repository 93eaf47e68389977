"""Plots of results with Matplotlib, used by their `plot()` methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from evicp.calibration.ranks import rows_needed
from evicp.calibration.reliability import Reliability
from evicp.errors import need
from evicp.types import F64

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from evicp.calibration.calibration import Calibration
    from evicp.calibration.planning import Plan
    from evicp.evaluation.compare import Comparison
    from evicp.evaluation.result import Evaluation

#: With more groups than this, curves cannot be distinguished.
_MOST_GROUPS = 10


def _axes(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure."""
    plt = need("matplotlib.pyplot", "matplotlib", "plot", "a plot")
    return ax if ax is not None else plt.subplots()[1]


def plot_evaluation(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Coverage by set size, with exact intervals and the number of rows, next to the target."""
    axes = _axes(ax)
    strata = [stratum for stratum in evaluation.size_strata if stratum.count]
    coverage = np.array([stratum.coverage for stratum in strata], float)
    ends = np.array([stratum.coverage_interval for stratum in strata], float)
    axes.errorbar(range(len(strata)), coverage, np.abs(ends.T - coverage), fmt="o", capsize=4, label="observed")
    axes.axhline(float(evaluation.target), color="0.4", linestyle="--", label=f"target {float(evaluation.target):g}")
    axes.set_xticks(range(len(strata)), [f"{stratum.label}\n{stratum.count:,} rows" for stratum in strata])
    axes.set(xlabel="set size", ylabel="coverage", title=f"{evaluation.score}: coverage {evaluation.coverage:.3f}")
    axes.legend()
    return axes


def plot_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Mean set size and coverage of each score, a point per trial."""
    axes = _axes(ax)
    for name in comparison.evaluations:
        axes.scatter(comparison.values(name, "mean_size"), comparison.values(name, "coverage"), label=name)
    axes.axhline(float(comparison.coverage), color="0.4", linestyle="--")
    axes.set(xlabel="mean set size", ylabel="coverage", title=f"{comparison.trials} random splits")
    axes.legend()
    return axes


def plot_calibration(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Which threshold gives which coverage: the share of calibration scores below it, for each group."""
    axes = _axes(ax)
    for number, (name, scores) in enumerate(_parts(calibration)):
        if number == _MOST_GROUPS:
            break
        finite = scores[np.isfinite(scores)]
        axes.step(finite, np.arange(1, len(finite) + 1) / (len(scores) + 1), where="post", label=name)
    what = "coverage" if calibration.weights is None else "share of calibration scores"
    axes.set(xlabel=f"threshold of {calibration.score.name}", ylabel=what, title=repr(calibration), ylim=(0, 1))
    if calibration.groups is not None:
        axes.legend()
    return axes


def _parts(calibration: Calibration) -> Iterator[tuple[str, F64]]:
    """The scores of each group, ascending, by its name."""
    groups = calibration.groups
    if groups is None:
        yield "all rows", np.sort(calibration.scores)
        return
    ends = np.cumsum(groups.counts)[:-1]
    yield from zip(map(str, groups.names), np.split(calibration.scores, ends), strict=True)


def plot_plan(plan: Plan, ax: Axes | None = None) -> Axes:
    """Where coverage lies for calibration sets of more and more rows, beside what the plan tolerates."""
    axes = _axes(ax)
    coverage, first = float(plan.coverage), rows_needed(plan.coverage)
    counts = np.unique(np.geomspace(first, 3 * max(int(plan), first), 60).astype(int))
    ends = np.array([Reliability(int(n), plan.coverage).interval(plan.confidence) for n in counts])
    axes.fill_between(
        counts, ends[:, 0], ends[:, 1], alpha=0.3, label=f"{100 * plan.confidence:g} % of calibration sets"
    )
    for end in (coverage - plan.tolerance, coverage + plan.tolerance):
        axes.axhline(end, color="0.4", linestyle="--")
    axes.axvline(int(plan), color="0.4", label=f"{int(plan):,} rows")
    axes.set(
        xscale="log", xlabel="calibration rows", ylabel="coverage", title=f"coverage {coverage:g} ± {plan.tolerance:g}"
    )
    axes.legend()
    return axes
