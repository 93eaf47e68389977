"""Temperature scaling: the T with the largest likelihood of softmax(z / T)."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp import kernels
from evicp.errors import LabelsError, LogitsError, SuspiciousInputWarning
from evicp.input.classes import labelled
from evicp.input.warn import warn
from evicp.tables import html_table, rows_text
from evicp.types import I64

__all__ = ["TemperatureFit", "fit_temperature"]

#: ln T is sought within +-5.
_EDGE = 5.0


@dataclass(frozen=True, repr=False)
class TemperatureFit:
    """A fitted temperature with the negative log-likelihood and calibration error before and after.

    Attributes
    ----------
    temperature : T, for the `temperature` of a score
    nll_before : the mean negative log-likelihood at T = 1
    nll_after : the same at T
    ece_before : the expected calibration error of the top label at T = 1, in 15 bins
    ece_after : the same at T
    n : rows it was fitted on
    at_edge : whether the best T lies beyond the edge of the search, ln T = -5 or 5
    """

    temperature: float
    nll_before: float
    nll_after: float
    ece_before: float
    ece_after: float
    n: int
    at_edge: bool

    def __repr__(self) -> str:
        return (
            f"T = {self.temperature:.4f} from {self.n:,} rows: NLL {self.nll_before:.4f} -> {self.nll_after:.4f}, "
            f"ECE {self.ece_before:.4f} -> {self.ece_after:.4f}"
        )

    def _repr_html_(self) -> str:
        pairs = {
            "temperature": (1.0, self.temperature),
            "NLL": (self.nll_before, self.nll_after),
            "ECE": (self.ece_before, self.ece_after),
        }
        rows = [[name, f"{before:.4f}", f"{after:.4f}"] for name, (before, after) in pairs.items()]
        edge = ", at the edge of the search" if self.at_edge else ""
        return html_table(["", "before", "after"], rows, caption=f"Temperature from {rows_text(self.n)}{edge}")


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> TemperatureFit:
    """The T that minimises the mean negative log-likelihood of softmax(z / T), to 1e-6 in ln T.

    The likelihood is convex in beta = 1/T. Newton's steps are taken inside a bracket of the derivative's sign change.
    Do not use these rows again for calibration: the guarantee needs unused rows.

    Parameters
    ----------
    logits, labels : (n, K) and (n,), separate rows

    Returns
    -------
    TemperatureFit
        Pass its `temperature` to a score: `LAC(temperature=...)`.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(2000, 5))
    >>> labels = (z + rng.gumbel(size=z.shape)).argmax(1)
    >>> round(fit_temperature(3 * z, labels).temperature, 1)  # logits three times too sharp
    3.0
    """
    array, truth = labelled(logits, labels)
    if not len(array):
        raise LogitsError("a temperature needs at least one row; got none.")
    with np.errstate(over="ignore"):  # refused by name
        before = kernels.nll_derivatives(array, truth, 1.0)[0]
    if not isfinite(before):
        _raise_unlikely(array, truth)
    beta, at_edge = _minimise(array, truth)
    if at_edge:
        _warn_of_edge(1 / beta)
    return TemperatureFit(
        temperature=1 / beta,
        nll_before=before,
        nll_after=kernels.nll_derivatives(array, truth, beta)[0],
        ece_before=_calibration_error(array, truth, 1.0),
        ece_after=_calibration_error(array, truth, beta),
        n=len(array),
        at_edge=at_edge,
    )


def _warn_of_edge(temperature: float) -> None:
    warn(
        f"the best temperature lies beyond {temperature:.4g}, the edge of the search (ln T within +-{_EDGE:g}). "
        "Check that these are logits and that the labels are right.",
        SuspiciousInputWarning,
    )


def _raise_unlikely(logits: NDArray[Any], labels: I64) -> NoReturn:
    """Say which true label makes the likelihood of all rows 0."""
    true = np.asarray(logits[np.arange(len(logits)), labels], np.float64)
    row = int(true.argmin())
    if true[row] == -np.inf:
        raise LabelsError(
            f"the true label of row {row} has logit -inf, so no temperature makes it likely. Remove such rows."
        )
    raise LogitsError(
        f"logits must be small enough for a likelihood; got {true[row]:g} for the true label of row {row}, and the sum "
        "over the rows overflows. Rescale the logits."
    )


def _minimise(logits: NDArray[Any], labels: I64) -> tuple[float, bool]:
    """The minimising beta, and whether it is an edge of the search."""
    low, high = -_EDGE, _EDGE  # of ln beta
    for edge, outside in ((low, 1), (high, -1)):
        if kernels.nll_derivatives(logits, labels, exp(edge))[1] * outside >= 0:
            return exp(edge), True
    x = 0.0
    while high - low > 1e-7:
        beta = exp(x)
        _, slope, curvature = kernels.nll_derivatives(logits, labels, beta)
        low, high = (x, high) if slope < 0 else (low, x)
        # Newton's step for beta, taken on ln beta; bisection where it would leave the bracket.
        step = -slope / (curvature * beta) if curvature > 0 else np.inf
        if abs(step) < 1e-9:
            break
        x = x + step if low < x + step < high else (low + high) / 2
    return exp(x), False


def _calibration_error(logits: NDArray[Any], labels: I64, beta: float, bins: int = 15) -> float:
    """ECE: the mean distance between the top probability and its accuracy over equal bins."""
    confidence, correct = kernels.top_confidences(logits, labels, beta)
    which = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1).astype(np.int64)
    gap = np.bincount(which, weights=correct - confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))
