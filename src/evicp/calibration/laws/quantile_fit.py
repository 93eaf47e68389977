"""Quantile regression of scores on features, with one more row of given features and any score.

Gibbs, Cherian and Candes (2023): the n + 1 scores are fitted by b that minimises sum_i rho(s_i - b'f_i), where rho(r)
is c r above 0 and (c - 1) r below, c the coverage. The dual variables e_i of the fit lie in [c - 1, c], are c where a
score is above it, and sum_i e_i f_i = 0. So of the rows in any group, if that is a feature, at most the share 1 - c has
e_i = c. The score of the new row is within its threshold as long as e_{n+1} < c, and that is so up to f'b, where b fits
the n known scores with e_{n+1} held just below c: one linear program gives the threshold, whatever the score.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from evicp.types import F64, Bools

#: Scores are scaled to [0, 1]; residuals below this are rounding.
_ROUNDING = 1e-9
#: What HiGHS may violate.
_TOLERANCE = 1e-10
#: So many rows are fitted at once; more are fitted from the fit of so many.
_AT_ONCE = 2000


class QuantileFit:
    """The fit of n scores at one coverage, which is then tilted by new rows.

    Parameters
    ----------
    features : (n, d), the first of them 1
    scores : (n,) ascending, infinities among them
    coverage : c
    """

    def __init__(self, features: F64, scores: F64, coverage: Fraction) -> None:
        self._units = np.maximum(np.abs(features).max(0, initial=0.0), 1e-300)
        self._features = features / self._units
        finite = scores[np.isfinite(scores)]
        self._low = float(finite[0]) if finite.size else 0.0
        width = float(finite[-1]) / 2 - self._low / 2 if finite.size else 0.0  # all of it may be beyond the doubles
        self._width = 2 * width or 1.0
        # Infinite scores become finite ones beyond all others: that is a score, too, and orders labels as well.
        self._scores = np.clip((scores - self._low) / self._width, -1.0, 2.0)
        self._known, self._has_infinite = scores, bool(scores[-1] == np.inf)
        self._coverage = float(coverage)
        # Below c by less than any group of n rows can tell, and by more than HiGHS may be off.
        self._held = self._coverage - max(1e-8, min(1e-6, 0.5 / (coverage.denominator * (len(scores) + 1))))
        self._base = self._first_fit()

    def threshold(self, row: F64) -> float:
        """The threshold of a new row with these features, (d,); +inf where no score is out of its set."""
        scaled = row / self._units
        active = self._nearest(self._residuals(self._base), 5 * len(row) + 50)
        found = self._fit(self._held * scaled, self._base, active)
        if found is None:
            return np.inf
        place = float(scaled @ found)
        if self._has_infinite and place > 2.0 - 1e-6:
            return np.inf
        value = self._low + self._width * place
        # A threshold that is one of the scores is that score, exactly; others have room for rounding.
        near = self._known[np.abs(self._known - value) <= 10 * _ROUNDING * self._width]
        return float(near.max()) if near.size else value + _ROUNDING * self._width

    # -----------------------------------------------------------------------------------------------------------

    def _residuals(self, fit: F64) -> F64:
        residuals: F64 = self._scores - self._features @ fit
        return residuals

    @staticmethod
    def _nearest(residuals: F64, count: int) -> Bools:
        """Which rows lie nearest to a fit."""
        chosen = np.zeros(len(residuals), np.bool_)
        chosen[np.argsort(np.abs(residuals), kind="stable")[:count]] = True
        return chosen

    def _first_fit(self) -> F64:
        """The fit of the n scores alone; of many, begun with the fit of a part of them."""
        n, d = self._features.shape
        no_tilt = np.zeros(d)
        if n <= _AT_ONCE:
            found = self._solved(self._features, self._scores, no_tilt)
        else:
            part = np.linspace(0, n - 1, _AT_ONCE).astype(np.int64)
            begun = self._solved(self._features[part], self._scores[part], no_tilt)
            start = no_tilt if begun is None else begun
            found = self._fit(no_tilt, start, self._nearest(self._residuals(start), n // 10))
        return no_tilt if found is None else found

    def _fit(self, tilt: F64, start: F64, active: Bools) -> F64 | None:
        """The best fit with a tilt; None if there is none.

        Only the active rows, near a known fit, are fitted: the others are held on their side of it. If the fit found
        leaves them there, it is the best of all; those that changed sides become active, and it is repeated.
        """
        above = self._residuals(start) > 0
        while True:
            held = np.where(active, 0.0, np.where(above, self._coverage, self._coverage - 1))
            found = self._solved(self._features[active], self._scores[active], tilt + held @ self._features)
            if found is None:
                if active.all():
                    return None
                active = active | self._nearest(self._residuals(start), 4 * int(active.sum()))
                continue
            residuals = self._residuals(found)
            changed = ~active & np.where(above, residuals < -_ROUNDING, residuals > _ROUNDING)
            if not changed.any():
                return found
            active = active | changed

    def _solved(self, features: F64, scores: F64, tilt: F64) -> F64 | None:
        """The dual of a fit, max e's with e'f = -tilt and c - 1 <= e <= c, by HiGHS; its multipliers are b."""
        from scipy.optimize import linprog

        options = {
            "presolve": False,
            "primal_feasibility_tolerance": _TOLERANCE,
            "dual_feasibility_tolerance": _TOLERANCE,
        }
        ends = (self._coverage - 1, self._coverage)
        found = linprog(-scores, A_eq=features.T, b_eq=-tilt, bounds=ends, method="highs-ds", options=options)
        return -np.asarray(found.eqlin.marginals) if found.status == 0 else None
