"""Figures 2 and 3 of the paper and the histogram of set sizes, drawn from measured trials."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evicp.errors import need
from evicp.evaluation.strata import Ranges
from evicp.paper.published import DATASETS, lookup
from evicp.paper.tables import Measured
from evicp.paper.trials import PROTOCOLS, Method, Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Methods in the paper's order, each with a colour that stays apart for colour-blind readers (Okabe and Ito).
_STYLES: tuple[tuple[Method, str, str], ...] = (
    (Method("Base"), "#999999", "s"),
    (Method("APS"), "#E69F00", "^"),
    (Method("RAPS", 0.1), "#0072B2", "D"),
    (Method("ECP"), "#D55E00", "o"),
)
_HISTOGRAM: tuple[tuple[Method, str], ...] = (
    (Method("APS"), "#E69F00"),
    (Method("RAPS", 0.1), "#0072B2"),
    (Method("LAS"), "#009E73"),
    (Method("ECP"), "#D55E00"),
)
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "evicp",  # the same drawing gives the same bytes
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


@dataclass(frozen=True)
class Drawing:
    """A figure as bytes, with a sentence for those who cannot see it."""

    name: str
    title: str
    description: str
    svg: bytes
    png: bytes


def require_matplotlib() -> None:
    """Say at once, not after minutes of trials, that figures cannot be drawn."""
    need("matplotlib", "matplotlib", "paper", "a figure")


def draw_all(measured: Sequence[Measured], reference: Mapping[str, str]) -> tuple[Drawing, ...]:
    """Figure 2 (Val), Figure 3 (Val, and V2 where given) and the size histogram, of the reference networks."""
    require_matplotlib()
    chosen = {m.network.dataset: m for m in measured if reference.get(m.network.dataset) == m.network.title}
    drawings = []
    if "val" in chosen:
        drawings.append(_figure2(chosen["val"]))
    drawings.append(_figure3(chosen))
    drawings += [_histogram(m) for m in chosen.values()]
    return tuple(drawings)


def _new(columns: int, rows: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def _log_scale(axis: Axes) -> None:
    """A logarithmic axis of sizes with plain numbers on it."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _finish(figure: Figure, name: str, title: str, description: str) -> Drawing:
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Title": title})
    figure.savefig(png, format="png", dpi=160, metadata={"Title": title})
    return Drawing(name, title, description, svg.getvalue(), png.getvalue())


def _figure2(measured: Measured) -> Drawing:
    """Size and coverage over delta, one row of panels per protocol; hollow marks are the paper's."""
    from matplotlib import rc_context

    coverages = (0.9, 0.95, 0.99)
    with rc_context(_SETTINGS):
        figure, axes = _new(2, len(PROTOCOLS))
        for row, protocol in enumerate(PROTOCOLS):
            for axis, metric, attribute in zip(
                axes[2 * row : 2 * row + 2], ("size", "coverage"), ("mean_size", "coverage"), strict=True
            ):
                for x, (method, colour, marker) in enumerate(_STYLES):
                    y = [_median(measured, protocol, method, c, attribute) for c in coverages]
                    at = np.arange(3) + 0.08 * (x - 1.5)
                    axis.plot(at, y, marker=marker, color=colour, label=str(method), linewidth=1.2, markersize=4.5)
                    printed = [_published(measured, table, method, metric) for table in (1, 6)]
                    axis.plot(at[:2], printed, marker, color=colour, fillstyle="none", markersize=8)
                axis.set_xticks(range(3), ["0.1", "0.05", "0.01"])
                axis.set_xlabel("delta")
                axis.set_ylabel("mean set size" if metric == "size" else "coverage")
                axis.set_title(protocol, fontsize=9)
            _log_scale(axes[2 * row])
            for x, coverage in enumerate(coverages):
                axes[2 * row + 1].hlines(coverage, x - 0.3, x + 0.3, color="black", linewidth=0.6)
        axes[0].legend(frameon=False)
        name = measured.network.title
        title = f"Figure 2. Set size and coverage for three coverage levels, {name}"
        hollow = _hollow("Tables 1 and 6", _published(measured, 1, Method("ECP"), "size"))
        return _finish(figure, "figure2", title, f"Lines: medians over trials.{hollow}")


def _figure3(chosen: Mapping[str, Measured]) -> Drawing:
    """Size by difficulty, a panel for each data set and protocol."""
    from matplotlib import rc_context

    with rc_context(_SETTINGS):
        figure, axes = _new(len(PROTOCOLS), len(chosen))
        panels = [(m, protocol) for m in chosen.values() for protocol in PROTOCOLS]
        for axis, (measured, protocol) in zip(axes, panels, strict=True):
            for method, colour, marker in _STYLES:
                labels, y = _by_difficulty(measured, protocol, method)
                at = np.arange(len(labels))
                axis.plot(at, y, marker=marker, color=colour, label=str(method), linewidth=1.2, markersize=4.5)
                printed = [_published(measured, 4, method, "size", label) for label in labels]
                axis.plot(at, printed, marker, color=colour, fillstyle="none", markersize=8)
            axis.set_xticks(at, labels)
            _log_scale(axis)
            axis.set_xlabel("difficulty (rank of the true label)")
            axis.set_ylabel("mean set size")
            axis.set_title(f"{DATASETS[measured.network.dataset]}, {measured.network.title},\n{protocol}", fontsize=9)
        axes[0].legend(frameon=False)
        title = "Figure 3. Set size by difficulty, coverage 0.9"
        hollow = _hollow("Table 4", *(_published(m, 4, Method("ECP"), "size", "1") for m in chosen.values()))
        return _finish(figure, "figure3", title, f"Medians over trials.{hollow}")


def _hollow(where: str, *printed: float) -> str:
    """What hollow marks are, where the paper has figures to mark."""
    return f" Hollow marks: the paper's {where}." if np.isfinite(printed).any() else ""


#: Upper ends of the histogram's classes of sizes; the last class ends at K.
_SIZE_CLASSES = (0, 1, 2, 3, 4, 5, 6, 10, 20, 50, 100, 200, 500)


def _histogram(measured: Measured) -> Drawing:
    """The share of sets in each class of sizes, over all trials."""
    from matplotlib import rc_context

    n_classes = measured.network.logits.shape[1]
    bins = Ranges.ending(_SIZE_CLASSES, n_classes)
    places = np.arange(len(bins.highs))
    with rc_context(_SETTINGS):
        figure, axes = _new(1, len(PROTOCOLS))
        for axis, protocol in zip(axes, PROTOCOLS, strict=True):
            for position, (method, colour) in enumerate(_HISTOGRAM):
                counts = np.sum([o.histogram for o in measured.outcomes(protocol, method, 0.9)], axis=0)
                share = bins.sums(counts) / counts.sum()
                axis.bar(places + 0.2 * (position - 1.5), share, 0.2, color=colour, label=str(method))
            axis.set_xticks(places, bins.labels, rotation=45)
            axis.set_xlabel("set size")
            axis.set_ylabel("share of sets")
            axis.set_title(protocol, fontsize=9)
        axes[0].legend(frameon=False)
        figure.set_size_inches(8, 6)
        dataset = measured.network.dataset
        title = f"Set sizes, {measured.network.title}, {DATASETS[dataset]}, coverage 0.9"
        return _finish(figure, f"histogram_{dataset}", title, "The share of sets of each size over all trials.")


def _median(measured: Measured, protocol: Protocol, method: Method, coverage: float, attribute: str) -> float:
    outcomes = measured.outcomes(protocol, method, coverage)
    return float(np.median([getattr(o.evaluation, attribute) for o in outcomes])) if outcomes else float("nan")


def _by_difficulty(measured: Measured, protocol: Protocol, method: Method) -> tuple[list[str], list[float]]:
    trials = [o.evaluation.difficulty_strata or () for o in measured.outcomes(protocol, method, 0.9)]
    sizes = np.array([[np.nan if s.mean_size is None else s.mean_size for s in strata] for strata in trials])
    defined = np.isfinite(sizes).any(0)
    medians = np.full(sizes.shape[1], np.nan)
    medians[defined] = np.nanmedian(sizes[:, defined], axis=0)
    return [s.label for s in trials[0]], medians.tolist()


def _published(measured: Measured, table: int, method: Method, metric: str, stratum: str = "") -> float:
    """A number of the paper; NaN, which is not drawn, where it has none."""
    found = lookup(table, measured.network.title, method.name, metric, lam=method.lam, stratum=stratum)
    if found is None or found.value is None or found.dataset != measured.network.dataset:
        return float("nan")
    return found.value
