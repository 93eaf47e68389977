"""What a calibration set of n rows can guarantee (Section 3.5 and Theorem 2 of the paper).

Coverage given the calibration set is itself random: it follows Beta(k, n + 1 - k), where k is the rank of the
threshold among the calibration scores.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, sqrt
from typing import Any

import numpy as np

from evicp.calibration.ranks import rank_of
from evicp.errors import InputError
from evicp.input import validate
from evicp.input.messages import some_of
from evicp.types import F64, Coverage

__all__ = ["Compatibility", "Reliability"]

#: Of more rows than this the Beta law's quantiles are NaN in double precision.
_MOST_ROWS = 10**15


@dataclass(frozen=True)
class Compatibility:
    """Whether an observed coverage is what the Beta law predicts on m rows."""

    observed: float
    m: int
    low: float
    high: float
    confidence: float

    @property
    def compatible(self) -> bool:
        """Whether the observed coverage lies inside the interval."""
        return self.low <= self.observed <= self.high

    @property
    def kept(self) -> bool:
        """Whether the observed coverage is not below the interval: the guarantee is a lower bound."""
        return self.observed >= self.low

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        names = ("m", "low", "high", "compatible", "kept")
        return {"coverage": self.observed, **{name: getattr(self, name) for name in names}}

    def __str__(self) -> str:
        return f"observed {verdict_line(self.to_dict())} ({self.confidence:.4g} of runs)"


def verdict_line(observed: dict[str, Any]) -> str:
    """What was observed, against what was guaranteed, in words: of all rows, or of groups."""
    verdict = "compatible" if observed["compatible"] else "NOT compatible"
    seen = f"{observed['coverage']:.4f} on {observed['m']:,} rows"
    if "low" in observed:
        verdict = "MORE than" if observed["kept"] and not observed["compatible"] else f"{verdict} with"
        return f"{seen}: {verdict} [{observed['low']:.4f}, {observed['high']:.4f}]"
    some = observed["incompatible"]
    if not some:
        return f"{seen}: {observed['groups']:,} groups {verdict}"
    return f"{seen}: {len(some):,} of {observed['groups']:,} groups {verdict}: {some_of(some)}"


@dataclass(frozen=True)
class Reliability:
    """The distribution of coverage given n calibration rows.

    The rank k is ceil((n + 1)(1 - delta)). The text of Theorem 1 uses the plain (1 - delta)-quantile of the n scores,
    rank ceil(n (1 - delta)), whose average coverage may be below 1 - delta. With too few rows, l = 0: every set is
    full, and Theorem 2 does not apply, because its belief in a miss, (l - 1) / (n + 1), is negative.

    Parameters
    ----------
    n : calibration rows
    coverage : the target coverage of the sets; kept exactly
    confidence : of training-conditional sets; None for coverage on average

    >>> r = Reliability(n=999, coverage=0.9)
    >>> r.k, r.l, round(r.gamma, 3), r.uncertainty
    (900, 100, 0.899, 0.002)
    """

    n: int
    coverage: Fraction
    confidence: float | None = None

    def __init__(self, n: int, coverage: Coverage, confidence: float | None = None) -> None:
        object.__setattr__(self, "n", validate.as_count(n, "n", at_least=1))
        if self.n > _MOST_ROWS:
            raise InputError(f"n must be at most 10^15, the limit of numerical precision; got {n}.")
        object.__setattr__(self, "coverage", validate.as_coverage(coverage))
        if confidence is not None:
            object.__setattr__(self, "confidence", validate.as_probability(confidence, "confidence"))

    @property
    def k(self) -> int:
        """The rank of the threshold: the conformal one, or with a confidence the training-conditional one."""
        return rank_of(self.n, self.coverage, self.confidence)

    @property
    def l(self) -> int:  # noqa: E743 - the paper's letter
        """floor((n + 1) delta)."""
        return self.n + 1 - self.k

    @property
    def gamma(self) -> float:
        """Theorem 2: the belief mass of coverage, (n - l) / (n + 1). Not a statistical confidence."""
        return (self.n - self.l) / (self.n + 1)

    @property
    def uncertainty(self) -> float:
        """Theorem 2: U_C = 2 / (n + 1)."""
        return 2 / (self.n + 1)

    @property
    def expected_coverage(self) -> float:
        """The mean k / (n + 1) of the Beta law."""
        return self.k / (self.n + 1)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The central interval of coverage over calibration sets."""
        tail = (1 - validate.as_probability(confidence, "confidence")) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def quantile(self, probability: float) -> float:
        """The quantile of coverage; 1 where the threshold is infinite."""
        from scipy.special import betaincinv

        return float(betaincinv(self.k, self.l, probability)) if self.l else 1.0

    def density(self, coverage: F64) -> F64:
        """The Beta density at given coverages; undefined (NaN) where the law is a point mass at 1."""
        from scipy.special import betaln, xlog1py, xlogy

        if not self.l:
            return np.full_like(coverage, np.nan)
        log_density = xlogy(self.k - 1, coverage) + xlog1py(self.l - 1, -coverage) - betaln(self.k, self.l)
        return np.exp(log_density)

    def observed_interval(self, m: int, confidence: float = 0.95) -> tuple[float, float]:
        """The interval of the coverage observed on m new rows (beta-binomial, equal tails).

        Parameters
        ----------
        m : new rows
        confidence : the probability
        """
        tail = (1 - validate.as_probability(confidence, "confidence")) / 2
        m = validate.as_count(m, "m")
        if not self.l:
            return 1.0, 1.0
        high = bisect_left(range(m), 1 - tail, key=lambda x: beta_binomial_cdf(x, m, self.k, self.l))
        return _lowest_share(m, self.k, self.l, tail), high / m

    def compatible(
        self,
        observed: float,
        m: int,
        confidence: float = 0.95,
        *,
        at_least: bool = False,
        smoothed: bool = False,
    ) -> Compatibility:
        """Is a coverage observed on m exchangeable rows compatible with the guarantee?

        Parameters
        ----------
        observed, m, confidence : the share of m rows that was covered, and the confidence of the verdict
        at_least : the distribution is only a lower bound, for example with ties at the threshold or filled sets: any
            larger coverage is then compatible
        smoothed : for smoothed sets, which include labels up to the k-th score or up to the one below, at random: both
            are compatible. Ties do not raise the coverage of these sets

        >>> Reliability(n=1000, coverage=0.9).compatible(observed=0.85, m=1000).compatible
        False
        """
        if not isinstance(observed, int | float | np.integer | np.floating) or not 0 <= observed <= 1:
            raise InputError(f"observed coverage must be between 0 and 1; got {observed}.")
        low, high = self.observed_interval(m, confidence)
        if smoothed:
            below = self.k - 1  # the rank of the score below; there may be none
            low = _lowest_share(m, below, self.l + 1, (1 - confidence) / 2) if below else 0.0
        return Compatibility(float(observed), int(m), low, 1.0 if at_least else high, confidence)

    def __str__(self) -> str:
        low, high = self.interval()
        place = f"threshold is score {self.k:,} of {self.n:,}" if self.l else "too few rows for a threshold"
        belief = (
            f"gamma {self.gamma:.4f}, U_C {self.uncertainty:.2g}" if self.l else "Theorem 2 (gamma, U_C) needs l >= 1"
        )
        return (
            f"coverage {float(self.coverage):g} from n = {self.n:,}: {place}; {belief}; "
            f"95 % of calibrations cover in [{low:.4f}, {high:.4f}]"
        )


def _lowest_share(m: int, a: int, b: int, tail: float) -> float:
    """The smallest share of m rows of which less than `tail` lies below, from the law of their number."""
    return bisect_right(range(m), tail, key=lambda x: beta_binomial_cdf(x, m, a, b)) / m


def beta_binomial_cdf(x: int, m: int, a: int, b: int) -> float:
    """P(X <= x), X ~ BetaBinomial(m, a, b): the number covered among m rows.

    The terms are few however large m is: X <= x where at least a of the n = a + b - 1 calibration scores are among the
    first a + x of all n + m, and only numbers near the one to be expected there are likely at all.
    """
    from scipy.special import gammaln

    def log_choose(n: int, k: Any) -> Any:
        return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)

    n, first = a + b - 1, a + x
    expected = first * n / (n + m)
    likely = 40 * (1 + sqrt(expected * m / (n + m)))  # standard deviations, and more
    inside = np.arange(max(a, ceil(expected - likely)), min(n, first, expected + likely) + 1.0)
    log_share = log_choose(n, inside) + log_choose(m, first - inside) - log_choose(n + m, first)
    return min(1.0, float(np.exp(log_share).sum()))
