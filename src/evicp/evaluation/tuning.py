"""Which parameters, which score? Chosen on rows of their own.

Rows that chose a score must not be used again, neither to calibrate nor to test it: the score fits them better than it
fits any other row, and the guarantee needs untouched ones.

A candidate is calibrated and measured on the tuning rows at several coverages around the one asked for, and the figures
are averaged: SSCV jumps when a single row changes its stratum, the average does not. For the same reason a stratum of
few rows counts less than a full one. Only a threshold is fitted to the rows, so all candidates profit alike from being
measured where they were calibrated. All this is done on all rows and then without each tenth of them: the average of
the eleven is steadier than the one figure, and how they scatter says how sure a lead is (the jackknife).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.ranks import rows_needed
from evicp.errors import InputError, LogitsError
from evicp.evaluation.splits import Split, Tested, run_splits
from evicp.evaluation.strata import SSCV_ENDS, Ranges, trade_off, violation
from evicp.input import validate
from evicp.input.classes import labelled
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Margin, Score, ScoreLike, TopK, as_score
from evicp.tables import html_table, markdown_table, text_table
from evicp.types import F64, I64, Coverage

__all__ = ["AUTO", "GRIDS", "Auto", "Candidate", "Tuned", "Tuning", "auto", "rows_to_choose", "split_off", "tune"]

Metric = Literal["size", "sscv", "sat"]

#: What `tune` tries where no grid is given.
GRIDS: Mapping[str, Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "ecp": {"temperature": (0.5, 0.7, 1.0, 1.5, 2.0), "stabilizer": (1e-12, 1e-8, "scaled")},
        "lac": {"temperature": (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0)},
        "aps": {"temperature": (0.5, 0.7, 1.0, 1.5, 2.0)},
        "raps": {"lam": (0.001, 0.01, 0.03, 0.1, 0.3, 1.0), "k_reg": (0, 1, 2, 5)},
        "saps": {"lam": (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)},
        "margin": {"temperature": (0.5, 0.7, 1.0, 1.5, 2.0)},
    }
)

#: What `auto` tries: every family at its defaults, and a few well-spaced alternatives. More would only find more noise.
_DEFAULTS: tuple[Score, ...] = (ECP(), LAC(), RAPS(), SAPS(), APS(), TopK(), Margin())
AUTO: tuple[Score, ...] = (
    *_DEFAULTS,
    *(LAC(temperature=t) for t in (0.5, 0.7, 1.5, 2.0)),
    *(ECP(temperature=t) for t in (0.7, 1.5)),
    *(ECP(stabilizer=e) for e in ("scaled", 1e-12)),
    *(RAPS(lam=lam, k_reg=k) for lam, k in ((1.0, 0), (0.3, 1), (0.3, 2))),
    *(SAPS(lam=lam) for lam in (0.05, 0.2, 0.5)),
)

#: The coverages a candidate is measured at, as shares of the way from the coverage asked for to 0 or 1, the nearer.
_AROUND = tuple(Fraction(w, 10) for w in (-2, -1, 0, 1, 2))
_FOLDS = 10

#: A stratum of this many rows counts half.
_STEADY = 5

#: A tuned candidate must lead the best default by this many standard errors: "auto" is to be trusted, not clever.
_CLEAR = 1.0

#: LAC has the smallest sets wherever probabilities are right: another default must lead it by this many.
_DOUBT = 0.25


@dataclass(frozen=True)
class Candidate:
    """A score with its figures on the tuning rows, and by how much it leads the score to beat.

    Attributes
    ----------
    score : the candidate
    size : the mean size of its sets at the coverage asked for
    sscv : their SSCV
    sat : their SAT
    lead : by how much it is ahead of the score to beat in the metric that decides, averaged over coverages around the
        one asked for
    standard_error : of the lead
    """

    score: Score
    size: float
    sscv: float
    sat: float
    lead: float
    standard_error: float


@dataclass(frozen=True, repr=False)
class Tuning:
    """The best score, why it was chosen, and every candidate, best first. Prints as a table.

    Attributes
    ----------
    best : the score chosen, ready to calibrate
    why : a sentence or two
    candidates : each with its figures, best first
    by : the metric, "size", "sscv" or "sat"
    coverage : the coverage to be asked for later, exactly
    n : tuning rows, which have been used up
    """

    best: Score
    why: str
    candidates: tuple[Candidate, ...]
    by: Metric
    coverage: Fraction
    n: int

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The head and the rows of the printed table."""
        head = ["score", "size", "SSCV", "SAT", f"lead in {_NAMES[self.by]}", "standard error"]
        rows = [
            [
                ("* " if c.score == self.best else "") + c.score.describe(),
                f"{c.size:.3f}",
                f"{c.sscv:.3f}",
                f"{c.sat:.3f}",
                f"{c.lead:+z.4f}",
                f"{c.standard_error:.4f}",
            ]
            for c in self.candidates
        ]
        return head, rows

    @property
    def caption(self) -> str:
        """What the columns are of, and why the order of the rows is not that of the figure they are chosen by."""
        return (
            f"At coverage {float(self.coverage):g}, ordered by lead in {_NAMES[self.by]}: an average over several "
            f"coverages and over samples that leave a tenth of the rows out. size, SSCV and SAT are those on all rows."
        )

    def __repr__(self) -> str:
        return f"{text_table(*self.table())}\n{self.caption}\n{self.why}"

    def to_markdown(self) -> str:
        """The candidates as a Markdown table, and why the best was chosen."""
        return f"{markdown_table(*self.table())}\n\n{self.caption}\n\n{self.why}"

    def _repr_html_(self) -> str:
        return f"{html_table(*self.table(), caption=self.caption)}<p>{escape(self.why)}</p>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        fields = ("size", "sscv", "sat", "lead", "standard_error")
        return {
            "best": self.best.describe(),
            "why": self.why,
            "by": self.by,
            "coverage": float(self.coverage),
            "n": self.n,
            "candidates": [
                {"score": c.score.describe(), **{name: getattr(c, name) for name in fields}} for c in self.candidates
            ],
        }


def tune(
    logits: Any,
    labels: Any,
    score: ScoreLike = "raps",
    by: Metric = "sat",
    coverage: Coverage = 0.9,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seed: int = 0,
) -> Tuning:
    """The best parameters of a score, on rows that must not be used again.

    Parameters
    ----------
    logits, labels : the tuning rows; calibrate and test on others
    score : a name, a score whose other parameters are kept, or "auto" for a choice among all families
    by : "size" (smallest), "sscv" (most adaptive) or "sat" (both)
    coverage : the coverage to be asked for later
    grid : candidates for each parameter, `{"lam": [0.01, 0.1]}`; `GRIDS` if None
    seed : which tenths of the rows are left out in turn

    Returns
    -------
    Tuning
        Its `best` is the score to calibrate, on other rows.

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 20, 400)
    >>> logits = rng.normal(size=(400, 20)) + 3 * np.eye(20)[labels]
    >>> tuning = tune(logits, labels, "raps", by="size", grid={"lam": [0.001, 0.1, 1.0], "k_reg": [2]})
    >>> tuning.best.describe()
    'raps(lam=1, k_reg=2)'
    """
    if isinstance(score, str) and score.lower() == "auto":
        if grid is not None:
            raise InputError('"auto" has candidates of its own; pass grid with one score.')
        return auto(logits, labels, by, coverage, seed=seed)
    given = as_score(score)
    if grid is None and given.name not in GRIDS:
        raise InputError(f"{given.name} has no grid of its own; pass grid with candidates for its parameters.")
    tuned = Tuned(given, by=by, **(GRIDS[given.name] if grid is None else _as_grid(grid)))
    array, truth, exact = _checked(logits, labels, coverage, seed)
    candidates = tuned.candidates()
    judged: list[_Judged] = []
    for candidate in (given, *candidates):
        if all(candidate != known.score for known in judged):  # by ==: a user's function may have no hash
            judged.append(_judge(candidate, array, truth, exact, by, seed))
    best = max((known for known in judged if known.score in candidates), key=_overall)
    why = f"{best.score.describe()} has the best {_NAMES[by]} of {len(candidates)} candidates on {len(array):,} rows"
    lead = "" if best.score == given else f"; {_beside(best, judged[0])}"
    return _report(best, judged[0], judged, f"{why}{lead}", by, exact, len(array))


def auto(logits: Any, labels: Any, by: Metric = "sat", coverage: Coverage = 0.9, *, seed: int = 0) -> Tuning:
    """Which score? The best of all families on rows that must not be used again.

    The best of the families' defaults wins (LAC, unless another leads it by a quarter of a standard error), unless a
    tuned candidate leads it by one.

    Parameters
    ----------
    logits, labels : the tuning rows; calibrate and test on others
    by, coverage, seed : as for `tune`
    """
    array, truth, exact = _checked(logits, labels, coverage, seed)
    return _auto(AUTO, array, truth, exact, _as_metric(by), seed)


def _auto(
    candidates: Sequence[Score], logits: NDArray[Any], labels: I64, coverage: Fraction, by: Metric, seed: int
) -> Tuning:
    """The choice among candidates that begin with the families' defaults."""
    judged = [_judge(score, logits, labels, coverage, by, seed) for score in candidates]
    default, why = _best_default(judged[: len(_DEFAULTS)], _NAMES[by])
    best = max(judged, key=_overall)
    why = f"{why} on {len(labels):,} rows"
    if _overall(best) <= _overall(default):
        return _report(default, default, judged, f"{why}, and no tuned candidate leads it", by, coverage, len(labels))
    rival = f"{best.score.describe()} leads it by {_lead(best, default)}"
    if _is_clear(best, default, _CLEAR):
        return _report(best, default, judged, f"{why}, but {rival}", by, coverage, len(labels))
    return _report(default, default, judged, f"{why}; {rival}, which is not clear", by, coverage, len(labels))


def _best_default(judged: Sequence[_Judged], metric: str) -> tuple[_Judged, str]:
    """The best of the families' defaults, LAC in case of doubt, and in what sense it is the best."""
    best = max(judged, key=_overall)
    lac = next((j for j in judged if isinstance(j.score, LAC)), best)
    if best is lac or _is_clear(best, lac, _DOUBT):
        return best, f"{best.score.describe()} has the best {metric} of all defaults"
    return lac, f"{lac.score.describe()} has the best {metric} of all defaults, as far as can be told,"


def rows_to_choose(n: int) -> int:
    """How many of n rows the choice of a score gets: a fifth, at most 5,000, or of few rows a third, at most 600.

    >>> rows_to_choose(300), rows_to_choose(2000), rows_to_choose(5000), rows_to_choose(50_000)
    (100, 600, 1000, 5000)
    """
    return max(min(n // 5, 5000), min(n // 3, 600))


def split_off(n: int, seed: int = 0) -> tuple[I64, I64]:
    """Row numbers for the choice of a score and for its calibration (the rest), from the seed alone.

    The rows' content has no say in which is which: given the chosen score, the rest are exchangeable with new rows.

    >>> choice, rest = split_off(5000)
    >>> len(choice), len(rest), np.intersect1d(choice, rest).size
    (1000, 4000, 0)
    """
    order = np.random.default_rng([seed, n]).permutation(n)
    used = rows_to_choose(n)
    return np.sort(order[:used]), np.sort(order[used:])


def choose_score(logits: NDArray[Any], labels: I64) -> tuple[Score, I64]:
    """The score that `auto` chooses on a part of the rows, and the numbers of the rows that are left."""
    choice, rest = split_off(len(labels))
    return auto(logits[choice], labels[choice]).best, rest


# ---------------------------------------------------------------------------------------------------------------
# For comparisons: chosen anew in every trial


@dataclass(frozen=True)
class Tuned:
    """A score whose parameters are chosen on the tuning share of each trial, never on its test rows.

    Parameters
    ----------
    score : a name, or a score whose other parameters are kept
    by : "size" (smallest), "sscv" (most adaptive) or "sat" (both)
    grid : candidates for each parameter, by name: `lam=[0.01, 0.1]`

    >>> Tuned("raps", lam=[0.01, 0.1, 1.0], by="sscv").candidates()[0]
    RAPS(lam=0.01, k_reg=5, randomized=True, randomize_penalty=False, temperature=1.0, seed=0)
    """

    score: Score
    by: Metric
    grid: Mapping[str, Sequence[Any]]

    def __init__(self, score: ScoreLike, *, by: Metric = "sat", **grid: Sequence[Any]) -> None:
        _as_metric(by)
        if not grid:
            raise InputError("tuning needs at least one parameter with its candidates: Tuned('raps', lam=[0.01, 0.1]).")
        object.__setattr__(self, "score", as_score(score))
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "grid", {name: _listed(name, values) for name, values in grid.items()})
        self.candidates()

    def candidates(self) -> list[Score]:
        """Every combination of the grid."""
        base = self.score
        fields = {field.name for field in dataclasses.fields(base)}  # type: ignore[arg-type]
        for name in self.grid:
            if name not in fields:
                raise InputError(f"{base.name} has no parameter {name}; it has {', '.join(sorted(fields))}.")
        return [
            dataclasses.replace(base, **dict(zip(self.grid, values, strict=True)))  # type: ignore[type-var]
            for values in product(*self.grid.values())
        ]

    def choose(
        self, logits: NDArray[Any], labels: I64, coverage: Fraction, seed: int, temperature: float | None
    ) -> Score:
        """The best candidate on the rows given, as `tune` finds it."""
        shared = None if "temperature" in self.grid else temperature
        candidates = [with_temperature(c, shared) for c in self.candidates()]
        judged = [_judge(c, logits, labels, coverage, self.by, seed) for c in candidates]
        return max(judged, key=_overall).score

    def describe(self) -> str:
        """The score's name with what is tuned."""
        return f"{self.score.name} (tuned {', '.join(self.grid)} by {self.by})"


@dataclass(frozen=True)
class Auto:
    """`auto` on the tuning share of each trial of a comparison."""

    by: Metric = "sat"

    def choose(
        self, logits: NDArray[Any], labels: I64, coverage: Fraction, seed: int, temperature: float | None
    ) -> Score:
        """The score `auto` chooses on the rows given; a temperature takes the place of the default one."""
        candidates = [with_temperature(c, temperature) for c in AUTO]
        return _auto(candidates, logits, labels, coverage, self.by, seed).best

    def describe(self) -> str:
        """The name of its row in a table."""
        return "auto" if self.by == "sat" else f"auto (by {self.by})"


def with_temperature(score: Score, temperature: float | None) -> Score:
    """The score at this temperature, unless it has none or was given one of its own."""
    if temperature is None or getattr(score, "temperature", None) != 1.0:
        return score
    return dataclasses.replace(score, temperature=temperature)  # type: ignore[type-var]


# ---------------------------------------------------------------------------------------------------------------
# Judging


@dataclass(frozen=True, eq=False)
class _Judged:
    """A score's size, SSCV and SAT on the tuning rows, and its merits: on all rows, then without each tenth of them."""

    score: Score
    figures: tuple[float, float, float]
    merits: F64


def _judge(score: Score, logits: NDArray[Any], labels: I64, coverage: Fraction, by: Metric, seed: int) -> _Judged:
    """Calibrate and measure a score at every coverage, on all rows and without each tenth, in one pass over them."""
    n, n_classes = logits.shape
    fold = np.random.default_rng([seed, n]).permutation(n) % _FOLDS
    parts = [np.arange(n), *(np.flatnonzero((fold != j) | (n == 1)) for j in range(_FOLDS))]  # a lone row always stays
    levels = tuple(coverage + min(coverage, 1 - coverage) * step for step in _AROUND)
    of_parts = run_splits(score, logits, labels, [Split(part, part, levels) for part in parts], warn=False)
    merits = [np.mean([_merit(tested, n_classes, by) for tested in of_part]) for of_part in of_parts]
    return _Judged(score, _figures(of_parts[0][_AROUND.index(0)], n_classes), np.array(merits))


def _overall(judged: _Judged) -> float:
    """The average of the merits on all rows and without each tenth; higher is better."""
    return float(judged.merits.mean())


def _paired(judged: _Judged, other: _Judged) -> tuple[float, float]:
    """By how much a score leads another, and the jackknife's standard error of that."""
    lead = judged.merits - other.merits
    # Estimates that leave a tenth out share nine tenths of their rows: the factor undoes how little they scatter.
    error = np.sqrt((_FOLDS - 1) / _FOLDS * np.sum((lead[1:] - lead[1:].mean()) ** 2))
    return float(lead.mean()), float(error)


def _is_clear(judged: _Judged, other: _Judged, errors: float) -> bool:
    """Whether a score leads another by more than so many standard errors."""
    lead, error = _paired(judged, other)
    return lead > errors * error


def _figures(tested: Tested, n_classes: int, steady: int = 0) -> tuple[float, float, float]:
    """Mean size, SSCV and SAT, as `evaluate` has them if `steady` is 0; SAT is 0 where every set is empty."""
    of_row = Ranges.ending(SSCV_ENDS, n_classes).find(tested.sizes)
    rows, hits = np.bincount(of_row), np.bincount(of_row, weights=tested.covered)
    sscv = float(violation(rows, hits, float(tested.coverage), steady=steady)[0])
    non_empty = tested.sizes[tested.sizes > 0]
    sat = trade_off(sscv, float(non_empty.mean())) if non_empty.size else 0.0
    return float(tested.sizes.mean()), sscv, sat


def _merit(tested: Tested, n_classes: int, by: Metric) -> float:
    """One figure of a score, higher is better, steadied."""
    size, sscv, sat = _figures(tested, n_classes, _STEADY)
    return {"size": -size, "sscv": -sscv, "sat": sat}[by]


def _report(
    best: _Judged, rival: _Judged, judged: Iterable[_Judged], why: str, by: Metric, coverage: Fraction, n: int
) -> Tuning:
    ordered = sorted(judged, key=_overall, reverse=True)
    candidates = tuple(Candidate(j.score, *j.figures, *_paired(j, rival)) for j in ordered)
    return Tuning(best.score, f"{why}. {_USED_UP}", candidates, by, coverage, n)


_USED_UP = "These rows are used up: calibrate and test on others."
_NAMES: Mapping[Metric, str] = MappingProxyType({"size": "size", "sscv": "SSCV", "sat": "SAT"})


def _lead(judged: _Judged, other: _Judged) -> str:
    lead, error = _paired(judged, other)
    return f"{lead:z.4f} (standard error {error:.4f})"


def _beside(best: _Judged, given: _Judged) -> str:
    """How the best candidate compares with the score that was given, which may be no candidate and better than all."""
    ahead = _overall(best) - _overall(given)
    if not ahead:
        return f"{given.score.describe()} is as good"
    if ahead < 0:
        return f"but {given.score.describe()}, which is none of them, leads it by {_lead(given, best)}"
    return f"it leads {given.score.describe()} by {_lead(best, given)}"


# ---------------------------------------------------------------------------------------------------------------
# Input


def _checked(logits: Any, labels: Any, coverage: Any, seed: Any) -> tuple[NDArray[Any], I64, Fraction]:
    array, truth = labelled(logits, labels)
    exact = validate.as_coverage(coverage)
    validate.as_seed(seed)
    if len(array) < rows_needed(exact):
        raise LogitsError(
            f"tuning at coverage {float(exact):g} needs at least {rows_needed(exact)} rows; got {len(array)}."
        )
    return array, truth, exact


def _as_metric(by: Any) -> Metric:
    if by not in ("size", "sscv", "sat"):
        raise InputError(f'by must be "size", "sscv" or "sat"; got {by!r}.')
    return by


def _as_grid(grid: Any) -> Mapping[str, Sequence[Any]]:
    """Candidates by the names of parameters, none of which is called as those of `Tuned` itself are."""
    if not isinstance(grid, Mapping) or not all(isinstance(name, str) for name in grid) or {"score", "by"} & set(grid):
        raise InputError(f'grid must map names of parameters to candidates, {{"lam": [0.01, 0.1]}}; got {grid!r}.')
    return grid


def _listed(name: str, values: Any) -> tuple[Any, ...]:
    """The candidates of one parameter; there must be some."""
    listed = () if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
    if not listed:
        raise InputError(f"{name} must be a list of candidates; got {values!r}. Try {name}=[first, second].")
    return listed
