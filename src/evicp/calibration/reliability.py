"""What a calibration set of n rows can promise (Section 3.5 and Theorem 2 of the paper), in exact arithmetic.

Coverage given the calibration set is itself random: it follows Beta(k, n + 1 - k), where k is the rank of the
threshold among the calibration scores.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from html import escape
from math import ceil, comb, log, sqrt
from textwrap import fill
from typing import Any

import numpy as np

from evicp.errors import InputError
from evicp.input import validate
from evicp.input.messages import some_of
from evicp.types import F64, I64, Coverage

__all__ = [
    "Certificate",
    "Compatibility",
    "GroupPromise",
    "Reliability",
    "conformal_rank",
    "pac_rank",
    "plan",
    "rows_needed",
    "share_within",
    "threshold_rank",
]


#: Plans end where coverage's standard deviation from this many rows is the tolerance.
MOST_PLANNED = 10**9
#: Of more rows than this the Beta law's quantiles are NaN in double precision.
_MOST_ROWS = 10**15


def conformal_rank(n: int, coverage: Coverage) -> int:
    """k = ceil((n + 1) coverage), in integers: the k-th smallest calibration score is the threshold.

    k = n + 1 means that no finite threshold will do.

    Parameters
    ----------
    n : calibration rows
    coverage : strictly between 0 and 1; 0.9 means 9/10, not the double nearest to it

    >>> conformal_rank(99, 0.9), conformal_rank(9, 0.95)
    (90, 10)
    """
    n, (p, whole) = validate.as_count(n, "n", at_least=0), validate.as_coverage(coverage).as_integer_ratio()
    return -(-(n + 1) * p // whole)


def pac_rank(n: int, coverage: Coverage, confidence: float) -> int:
    """The smallest k with P(Beta(k, n + 1 - k) >= coverage) >= confidence: the training-conditional rank.

    Over the draw of the calibration set, the k-th smallest score covers at least `coverage` with at least this
    confidence. k = n + 1 means that no finite threshold will do.

    Parameters
    ----------
    n : calibration rows
    coverage, confidence : both strictly between 0 and 1

    >>> conformal_rank(1000, 0.9), pac_rank(1000, 0.9, 0.95)
    (901, 916)
    """
    risk = 1 - validate.as_coverage(confidence, "confidence")
    return _exact_pac_rank(validate.as_count(n, "n", at_least=0), validate.as_coverage(coverage), risk)


@lru_cache(maxsize=4096)
def _exact_pac_rank(n: int, coverage: Fraction, risk: Fraction) -> int:
    return _smallest_enough(0, n + 1, lambda k: _risk_exceeds(n, k, coverage, risk))


def _smallest_enough(too_low: int, enough: int, misses: Callable[[int], bool]) -> int:
    """The smallest whole number that does not miss, by halving: above one that does, up to one that does not."""
    while enough - too_low > 1:
        middle = (too_low + enough) // 2
        too_low, enough = (middle, enough) if misses(middle) else (too_low, middle)
    return enough


def threshold_rank(n: int, coverage: Coverage, confidence: float | None = None) -> int:
    """The rank of the threshold: the conformal one, or with a confidence the training-conditional one."""
    return conformal_rank(n, coverage) if confidence is None else pac_rank(n, coverage, confidence)


def _risk_exceeds(n: int, k: int, coverage: Fraction, risk: Fraction) -> bool:
    """Whether P(Beta(k, n + 1 - k) < coverage) = P(Binomial(n, coverage) >= k) > risk."""
    from scipy.special import betaincc

    tail = float(betaincc(n + 1 - k, k, float(1 - coverage)))  # from the misses: a coverage next to 1 rounds to 1
    if n > 2000 or abs(tail - risk) > 1e-9 * risk:
        return tail > risk
    # Too close to call in floating point, as when both sides are one half: the tail in integers.
    p, whole = coverage.as_integer_ratio()
    exact_tail = sum(comb(n, j) * p**j * (whole - p) ** (n - j) for j in range(k, n + 1))
    return exact_tail * risk.denominator > risk.numerator * whole**n


def rows_needed(coverage: Coverage, confidence: float | None = None) -> int:
    """The fewest calibration rows with a finite threshold at this coverage (and confidence).

    >>> rows_needed(0.9), rows_needed(0.9, confidence=0.95)
    (9, 29)
    """
    exact = validate.as_coverage(coverage)
    if confidence is None:
        return int(-(-1 // (1 - exact))) - 1
    return _exact_pac_rows(exact, 1 - validate.as_coverage(confidence, "confidence"))


@lru_cache(maxsize=4096)
def _exact_pac_rows(coverage: Fraction, risk: Fraction) -> int:
    def misses(n: int) -> bool:
        return _risk_exceeds(n, n, coverage, risk)  # with the largest score as threshold

    n = 1
    while misses(n):
        n *= 2
    return _smallest_enough(n // 2, n, misses)


@dataclass(frozen=True)
class Compatibility:
    """Whether an observed coverage is what the Beta law lets one expect on m rows."""

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
        """Whether the promise, which is one of at least so much, was kept."""
        return self.observed >= self.low

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        names = ("m", "low", "high", "compatible", "kept")
        return {"coverage": self.observed, **{name: getattr(self, name) for name in names}}

    def __str__(self) -> str:
        return f"observed {verdict_line(self.to_dict())} ({self.confidence:.4g} of runs)"


def verdict_line(observed: dict[str, Any]) -> str:
    """What was observed, against what was promised, in words: of all rows, or of groups."""
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
    """The law of coverage given n calibration rows.

    Parameters
    ----------
    n : calibration rows
    coverage : asked of the sets; kept exactly
    confidence : of training-conditional sets; None where coverage is asked for on average

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
            raise InputError(f"n must be at most 10^15, beyond which the law's figures are lost; got {n}.")
        object.__setattr__(self, "coverage", validate.as_coverage(coverage))
        if confidence is not None:
            object.__setattr__(self, "confidence", validate.as_probability(confidence, "confidence"))

    @property
    def k(self) -> int:
        """The rank of the threshold: the conformal one, or with a confidence the training-conditional one."""
        return threshold_rank(self.n, self.coverage, self.confidence)

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
        """Where the coverage observed on m new rows lies with this probability (beta-binomial, equal tails).

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
        """Is a coverage observed on m exchangeable rows compatible with the promise?

        Parameters
        ----------
        observed, m, confidence : the share of m rows that was covered, and the confidence of the verdict
        at_least : the law is only a bound from below, as where scores tie at the threshold or empty sets were filled:
            then any larger coverage is compatible, too
        smoothed : of smoothed sets, which hold labels up to the k-th score or up to the one below, at random: what
            either lets one expect is compatible. Ties do not make these sets cover more

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
        return (
            f"coverage {float(self.coverage):g} from n = {self.n:,}: {place}; "
            f"gamma {self.gamma:.4f}, U_C {self.uncertainty:.2g}; 95 % of calibrations cover in [{low:.4f}, {high:.4f}]"
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


def plan(coverage: Coverage, tolerance: float, confidence: float = 0.95) -> int:
    """The smallest n from which on P(|C - coverage| <= tolerance) >= confidence for every calibration size.

    Never fewer rows than a finite threshold needs: full sets keep no promise worth planning for.

    Parameters
    ----------
    coverage : to be asked for
    tolerance : how far the coverage C that a calibration has in the end may be from it
    confidence : the share of calibrations for which that must hold

    Returns
    -------
    int
        How many rows to calibrate on.

    >>> plan(0.9, tolerance=0.02, confidence=0.95)
    854
    """
    exact = validate.as_coverage(coverage)
    tolerance = validate.as_probability(tolerance, "tolerance")
    confidence = validate.as_probability(confidence, "confidence")
    least = max(1e-8, float(exact * (1 - exact) / MOST_PLANNED) ** 0.5)
    if tolerance < least:
        raise InputError(
            f"tolerance must be at least {least:.2g} at coverage {float(exact):g}; got {tolerance:g}, which "
            f"{MOST_PLANNED:,} calibration rows cannot keep to. Ask for a wider one."
        )
    smallest = rows_needed(exact)
    # From `safe` on, Hoeffding's bound for the Beta law promises it for every n: half of the tolerance is for the mean,
    # which is within 1 / (n + 1) of coverage, half for straying from it.
    safe = int(2 * log(6 / (1 - confidence)) / tolerance**2)
    return smallest if smallest > safe else _last_missing(smallest, safe, exact, tolerance, confidence) + 1


def share_within(n: int, coverage: Coverage, tolerance: float) -> float:
    """The share of calibration sets of n rows whose coverage lies within the tolerance of what was asked.

    >>> share_within(853, 0.9, tolerance=0.02) < 0.95 <= share_within(854, 0.9, tolerance=0.02)
    True
    """
    law = Reliability(n, coverage)
    tolerance = validate.as_probability(tolerance, "tolerance")
    if not law.l:  # every set is full
        return float(1 - law.coverage <= tolerance)
    rows = np.array([law.n])
    return float(_concentration(rows, rows, law.coverage, tolerance)[0])


def _last_missing(smallest: int, safe: int, coverage: Fraction, tolerance: float, confidence: float) -> int:
    """The largest n from `smallest` to `safe` that misses the confidence; `smallest` - 1 if none does.

    P rises and falls from one n to the next, so ranges of n are halved until a bound says that all of a range keep the
    confidence, or one n above the whole range misses it.
    """
    missing = smallest - 1
    first, width = np.array([smallest]), 1 << (safe - smallest).bit_length()
    while first.size:
        last = first + (width - 1)
        doubtful = _concentration(first, last, coverage, tolerance) < confidence
        first, last = first[doubtful], last[doubtful]
        misses = _concentration(last, last, coverage, tolerance) < confidence
        missing = max(missing, int(last[misses].max(initial=0)))
        first, width = first[last > missing], width // 2
        first = np.concatenate([first, first + width])
    return missing


def _concentration(first: I64, last: I64, coverage: Fraction, tolerance: float) -> F64:
    """What P(|C - coverage| <= tolerance) is at least for every n from `first` to `last`; exact where these are equal.

    Beta(k, l) grows with k and shrinks with l, and both grow with n: no C of the range lies lower than with the lowest
    k and the highest l, none higher than with the highest k and the lowest l.
    """
    from scipy.special import betainc

    lowest_k, highest_k = _ranks(first, coverage), _ranks(last, coverage)
    lowest_l, highest_l = first + 1 - lowest_k, last + 1 - highest_k
    high = min(1.0, float(coverage) + tolerance)
    low = max(0.0, float(coverage) - tolerance)
    result: F64 = betainc(highest_k, lowest_l, high) - betainc(lowest_k, highest_l, low)
    return result


def _ranks(n: I64, coverage: Fraction) -> I64:
    """`conformal_rank` of many n."""
    numerator, denominator = coverage.as_integer_ratio()
    wide = (n + 1).astype(object if int(n.max(initial=1)) * denominator >= 2**61 else np.int64)
    return (-((-wide * numerator) // denominator)).astype(np.int64)


@dataclass(frozen=True)
class GroupPromise:
    """What may be promised in one group: a class, a cluster, a group of rows or a band of uncertainty.

    Attributes
    ----------
    name : of the group
    n : its calibration rows
    rank : k, of its threshold among them
    threshold : its k-th smallest score; +inf where it has too few rows
    expected_coverage : k / (n + 1), over calibration sets
    coverage_interval : where its coverage lies over calibration sets
    observed : what an evaluation found there: coverage, m, low, high, compatible, kept; None without one
    """

    name: str
    n: int
    rank: int
    threshold: float
    expected_coverage: float
    coverage_interval: tuple[float, float]
    observed: dict[str, Any] | None = None


def weakest(groups: tuple[GroupPromise, ...]) -> GroupPromise:
    """The group with the fewest rows among those with a threshold (among all, if none has one)."""
    return min(groups, key=lambda group: (group.threshold == np.inf, group.n))


_GAMMA = "Theorem 2: belief mass of coverage, not a statistical confidence"


@dataclass(frozen=True, repr=False)
class Certificate:
    """What may be promised for one calibration and one coverage, and what it was computed from.

    `gamma` is the paper's belief mass of coverage (Theorem 2); it equals the expected coverage less 1 / (n + 1) and
    is not a statistical confidence: that is what `coverage_interval` states.

    Where there are groups, each has its promise in `groups`, and the figures here (rank, threshold, gamma, expected
    coverage, interval) are those of the group with the fewest rows that has a threshold. Where there are weights, the
    threshold is that of a new row of average weight, and the other figures are those of so many equally weighted rows
    that leave coverage as uncertain, an approximation. With `pac`, the rank is the one at which coverage is at least
    what was asked with this confidence. Where calibration scores are `tied` at the threshold, expected coverage and
    interval are bounds from below.

    Attributes
    ----------
    coverage : asked for
    n : calibration rows
    rank : k, of the threshold among the calibration scores
    threshold : the k-th smallest calibration score; +inf where the rows are too few
    gamma : (n - l) / (n + 1), l = n + 1 - k (Theorem 2)
    uncertainty : U_C = 2 / (n + 1) (Theorem 2)
    expected_coverage : k / (n + 1), over calibration sets
    coverage_interval : where coverage lies, at `confidence`, over calibration sets (the Beta law)
    confidence : of the interval, and of the verdict on what was observed, which of weighted sets is an approximation
    score : the name of the score
    parameters : those of the score, as JSON values
    n_classes : K
    checksum : SHA-256 of the calibration, as its file carries it
    version : of evicp
    date : of the certificate
    observed : what an evaluation found, and whether that is compatible with the promise; None without one
    by : "class", "group" or "uncertainty" where there are groups, else None
    groups : the promise of each group
    effective_n : the number of equally weighted rows that say as much, where there are weights
    pac : the confidence of training-conditional sets
    chosen_on : how many other rows chose the score, where it was "auto"
    tied : whether other calibration scores equal the threshold
    folds : in how many folds the rows were scored, where it was not by the model that predicts
    """

    coverage: float
    n: int
    rank: int
    threshold: float
    gamma: float
    uncertainty: float
    expected_coverage: float
    coverage_interval: tuple[float, float]
    confidence: float
    score: str
    parameters: dict[str, Any]
    n_classes: int
    checksum: str
    version: str
    date: str
    observed: dict[str, Any] | None = None
    by: str | None = None
    groups: tuple[GroupPromise, ...] = ()
    effective_n: float | None = None
    pac: float | None = None
    chosen_on: int | None = None
    tied: bool = False
    folds: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON (an infinite threshold as the string "inf")."""
        result = asdict(self)
        result["groups"] = list(result["groups"])
        for part in (result, *result["groups"]):
            part["coverage_interval"] = list(part["coverage_interval"])
            if not np.isfinite(part["threshold"]):
                part["threshold"] = "inf" if part["threshold"] > 0 else "-inf"
        return result

    def to_json(self) -> str:
        """The certificate as JSON."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, allow_nan=False)

    def _lines(self) -> list[tuple[str, str]]:
        low, high = self.coverage_interval
        n = weakest(self.groups).n if self.groups else self.n
        sure = "" if self.pac is None else f", with confidence {self.pac:g} over calibration sets"
        law = "Beta law of coverage given the calibration set"
        if self.tied:
            law += "; scores tie at the threshold, so that coverage is at least this"
        full = self.threshold == np.inf and self.effective_n is None  # where there are weights, lighter rows are not
        place = f"{self.threshold:.6g} (score {self.rank:,} of {n:,} in ascending order)"
        if full:
            place = f"none: {n:,} rows are too few, and every set is full"
        if self.effective_n is not None:
            found = f"{self.threshold:.6g}" if self.threshold < np.inf else "none: its set is full"
            place = f"{found} (for a new row of average weight)"
        lines = [
            ("coverage asked for", f"{self.coverage:g}{_where(self.by)}{sure}"),
            ("calibration rows n", f"{self.n:,}"),
            *self._group_lines(),
            ("threshold (ln score)" if self.score == "ecp" else "threshold", place),
            ("expected coverage", f"{self.expected_coverage:.6f} over calibration sets"),
            (f"{100 * self.confidence:g} % interval", "-" if full else f"[{low:.4f}, {high:.4f}] ({law})"),
            ("gamma", "-" if full else f"{self.gamma:.6f} ({_GAMMA})"),
            ("U_C", f"{self.uncertainty:.2g} (Theorem 2: 2 / (n + 1))"),
            ("score", score_line(self.score, self.parameters)),
            ("classes", f"{self.n_classes:,}"),
        ]
        if self.chosen_on is not None:
            lines.append(("score chosen on", f"{self.chosen_on:,} other rows, which were not calibrated"))
        if self.observed is not None:
            lines.append(("observed coverage", verdict_line(self.observed)))
        return [*lines, ("checksum", self.checksum), ("made by", f"evicp {self.version}, {self.date}")]

    def _group_lines(self) -> list[tuple[str, str]]:
        """What stands between n and the threshold, where there are groups or weights."""
        if self.effective_n is not None:
            equal = round(2 / self.uncertainty - 1)
            return [
                ("effective rows", f"{self.effective_n:.1f}"),
                ("as uncertain as", f"{equal:,} equally weighted rows, whose figures are below"),
            ]
        if not self.groups:
            return []
        smallest = weakest(self.groups)
        full = [group.name for group in self.groups if group.threshold == np.inf]
        lines = [("groups", f"{len(self.groups):,}, each with a threshold of its own")]
        if full:
            lines.append(("without threshold", f"{len(full):,}, too few rows: {some_of(full)}"))
        return [*lines, ("smallest group", f"{smallest.name}, {smallest.n:,} rows: the figures below are its own")]

    @property
    def caveat(self) -> str:
        """On what the certificate rests, and what it does not say."""
        return caveat(self.by, weighted=self.effective_n is not None, folds=self.folds)

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self._lines())
        body = [_wrapped(f"  {name:<{width}}  {value}", width + 4) for name, value in self._lines()]
        return "\n".join(["Coverage certificate", *body, _wrapped(f"  {self.caveat}", 2)])

    __repr__ = __str__

    def to_html(self) -> str:
        """The certificate as an HTML fragment."""
        rows = "".join(
            f"<tr><th scope='row' style='text-align:left'>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in self._lines()
        )
        table = f"<table class='evicp-certificate'><caption>Coverage certificate</caption>{rows}</table>"
        return f"{table}<p>{escape(self.caveat)}</p>"

    _repr_html_ = to_html


def _wrapped(line: str, indent: int, width: int = 100) -> str:
    """A line as several of at most so many columns, the further ones indented; a word that is longer stays whole."""
    return fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def score_line(name: str, parameters: Mapping[str, Any]) -> str:
    """A score with all of its parameters that have a value, in words.

    >>> score_line("ecp", {"evidence": "relu", "base_rates": (0.25,) * 4, "temperature": 1.0, "utility": None})
    'ecp: evidence relu, base_rates (4 numbers), temperature 1'
    """
    listed = ", ".join(f"{key} {_plain(value)}" for key, value in parameters.items() if value is not None)
    return f"{name}: {listed}" if listed else name


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({len(value):,} numbers)"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def caveat(by: str | None, *, weighted: bool, folds: int | None = None) -> str:
    """On what a promise rests, and what it does not say: of one threshold for all, by groups, or weighted.

    >>> caveat("class", weighted=False)[:55]
    'Holds in every class or cluster if calibration and new '
    """
    if folds is not None:
        own = (
            f"The rows were scored in {folds:,} folds, by other models than the one that predicts: "
            "nothing is exact here."
        )
        return f"{own} {caveat(by, weighted=weighted)}"
    if weighted:
        return (
            "Holds on average over calibration sets if the weights are the true ratios of new to calibration "
            "densities and were not chosen with the calibration rows. The Beta law is an approximation here: a verdict "
            "at 95 % calls 1 to 4 % of kept promises broken, and up to 5 % where a few rows have most of the weight."
        )
    if by is not None:
        return (
            f"Holds{_where(by)} if calibration and new rows of it are exchangeable and the calibration rows "
            "chose neither the model, nor the score, nor the temperature, nor the coverage, nor the groups. It "
            "says nothing about other groups, nor about shifted data."
        )
    return (
        "Holds if calibration and new rows are exchangeable and the calibration rows chose neither the model, nor the "
        "score, nor the temperature, nor the coverage. It says nothing about single classes or groups, nor "
        "about shifted data."
    )


def _where(by: str | None) -> str:
    """Where coverage holds, as the end of a sentence."""
    return {None: "", "class": " in every class or cluster", "group": " in every group"}.get(
        by, " in every band of uncertainty"
    )
