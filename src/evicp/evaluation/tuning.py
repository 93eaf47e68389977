"""Selection of parameters and scores on separate rows.

Do not use rows that selected a score again for calibration or tests: the score fits them better than other rows, and
the guarantee needs unused rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from itertools import product
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp.errors import InputError
from evicp.evaluation.judging import Judged, Metric, TuningRows, as_metric
from evicp.input.messages import refuse_unknown
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Margin, Score, ScoreLike, TopK, as_score
from evicp.tables import html_table, markdown_table, text_table
from evicp.types import I64, Coverage

__all__ = ["Auto", "Candidate", "Tuned", "Tuning", "auto", "tune"]

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
    *(ECP(stabilizer=e) for e in (1e-8, 1e-12)),
    *(RAPS(lam=lam, k_reg=k) for lam, k in ((1.0, 0), (0.3, 1), (0.3, 2))),
    *(SAPS(lam=lam) for lam in (0.05, 0.2, 0.5)),
)

#: A tuned candidate must lead the best default by this many standard errors: "auto" is to be trusted, not clever.
_CLEAR = 1.0

#: LAC has the smallest sets wherever probabilities are right: another default must lead it by this many.
_DOUBT = 0.25


@dataclass(frozen=True)
class Candidate:
    """A score with its figures on the tuning rows and its lead over the reference score.

    Attributes
    ----------
    score : the candidate
    size : the mean size of its sets at the target coverage
    sscv : their SSCV
    sat : their SAT
    lead : its lead over the reference score in the selection metric, averaged over coverages around the target
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
    """The best score, the reason for its selection, and all candidates, best first. Prints as a table.

    Attributes
    ----------
    best : the selected score
    why : the reason, in one or two sentences
    candidates : each with its figures, best first
    by : the metric, "size", "sscv" or "sat"
    coverage : the target coverage of later use, exactly
    n : tuning rows; do not reuse them
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
        """A description of the columns and the order of the rows."""
        return (
            f"At coverage {float(self.coverage):g}, ordered by lead in {_NAMES[self.by]}: an average over several "
            f"coverages and over samples without a tenth of the rows. size, SSCV and SAT are on all rows."
        )

    def __repr__(self) -> str:
        return f"{text_table(*self.table())}\n{self.caption}\n{self.why}"

    def to_markdown(self) -> str:
        """The candidates as a Markdown table, with the reason for the selection."""
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
    logits: ArrayLike,
    labels: ArrayLike,
    score: ScoreLike = "raps",
    by: Metric = "sat",
    coverage: Coverage = 0.9,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seed: int = 0,
    **unknown: Any,
) -> Tuning:
    """Select the best parameters of a score, on rows that must not be used again.

    Parameters
    ----------
    logits, labels : the tuning rows; calibrate and test on others
    score : a name, a score whose other parameters are kept, or "auto" to select among all families
    by : "size" (smallest), "sscv" (most adaptive) or "sat" (both)
    coverage : the target coverage of later use
    grid : candidates for each parameter, `{"lam": [0.01, 0.1]}`; `GRIDS` if None
    seed : which tenths of the rows are left out in turn

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 20, 400)
    >>> logits = rng.normal(size=(400, 20)) + 3 * np.eye(20)[labels]
    >>> tuning = tune(logits, labels, "raps", by="size", grid={"lam": [0.001, 0.1, 1.0], "k_reg": [2]})
    >>> tuning.best.describe()
    'raps(lam=1, k_reg=2)'
    """
    refuse_unknown("tune", unknown)
    if isinstance(score, str) and score.lower() == "auto":
        if grid is not None:
            raise InputError('"auto" has its own candidates; pass grid with one score.')
        return auto(logits, labels, by, coverage, seed=seed)
    given = as_score(score)
    if grid is None and given.name not in GRIDS:
        raise InputError(f"{given.name} has no default grid; pass grid with candidates for its parameters.")
    tuned = Tuned(given, by=by, **(GRIDS[given.name] if grid is None else _as_grid(grid)))
    return _tune(tuned, TuningRows.checked(logits, labels, coverage, by, seed))


def _tune(tuned: Tuned, rows: TuningRows) -> Tuning:
    """The best candidate; the score that was given is judged, too, and chosen if it is one of them."""
    candidates, judged = tuned.candidates(), list[Judged]()
    for candidate in (tuned.score, *candidates):
        if all(candidate != known.score for known in judged):  # by ==: a user's function may have no hash
            judged.append(rows.judge(candidate))
    given = judged[0]
    best = max((known for known in judged if known.score in candidates), key=_overall)
    why = f"{best.score.describe()} has the best {_NAMES[rows.by]} of {len(candidates)} candidates"
    lead = "" if best is given else f"; {_beside(best, given)}"
    return _report(best, given, judged, f"{why} on {len(rows.labels):,} rows{lead}", rows)


def auto(
    logits: ArrayLike, labels: ArrayLike, by: Metric = "sat", coverage: Coverage = 0.9, *, seed: int = 0
) -> Tuning:
    """Select the best score of all families, on rows that must not be used again.

    The best default is selected (LAC, unless another is better by a quarter of a standard error), unless a tuned
    candidate is better by one standard error.

    Parameters
    ----------
    logits, labels : the tuning rows; calibrate and test on others
    by, coverage, seed : as for `tune`
    """
    return _auto(AUTO, TuningRows.checked(logits, labels, coverage, by, seed))


def _auto(candidates: Sequence[Score], rows: TuningRows) -> Tuning:
    """The choice among candidates that begin with the families' defaults."""
    judged = [rows.judge(score) for score in candidates]
    default, why = _best_default(judged[: len(_DEFAULTS)], _NAMES[rows.by])
    best = max(judged, key=_overall)
    why = f"{why} on {len(rows.labels):,} rows"
    if best.overall <= default.overall:
        return _report(default, default, judged, f"{why}, and no tuned candidate is clearly better", rows)
    rival = f"{best.score.describe()} leads it by {best.lead_text(default)}"
    if best.leads_clearly(default, _CLEAR):
        return _report(best, default, judged, f"{why}, but {rival}", rows)
    return _report(default, default, judged, f"{why}; {rival}, which is not clear", rows)


def _best_default(judged: Sequence[Judged], metric: str) -> tuple[Judged, str]:
    """The best of the families' defaults, LAC in case of doubt, and in what sense it is the best."""
    best = max(judged, key=_overall)
    lac = next((j for j in judged if isinstance(j.score, LAC)), best)
    if best is lac or best.leads_clearly(lac, _DOUBT):
        return best, f"{best.score.describe()} has the best {metric} of all defaults"
    return lac, f"{lac.score.describe()} has the best {metric} of all defaults, within noise,"


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
    """A score whose parameters are selected on the tuning rows of each trial, never on its test rows.

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
        as_metric(by)
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

    def choose(self, rows: TuningRows, temperature: float | None) -> Score:
        """The best candidate on the rows given, as `tune` finds it."""
        shared = None if "temperature" in self.grid else temperature
        candidates = [with_temperature(c, shared) for c in self.candidates()]
        return max(map(rows.judge, candidates), key=_overall).score

    def describe(self) -> str:
        """The score's name with its tuned parameters."""
        return f"{self.score.describe()} (tuned {', '.join(self.grid)} by {self.by})"


@dataclass(frozen=True)
class Auto:
    """`auto` on the tuning share of each trial of a comparison."""

    by: Metric = "sat"

    def choose(self, rows: TuningRows, temperature: float | None) -> Score:
        """The score `auto` chooses on the rows given; a temperature takes the place of the default one."""
        return _auto([with_temperature(c, temperature) for c in AUTO], rows).best

    def describe(self) -> str:
        """The name of its row in a table."""
        return "auto" if self.by == "sat" else f"auto (by {self.by})"


def with_temperature(score: Score, temperature: float | None) -> Score:
    """The score at this temperature, unless it has none or was given one of its own."""
    if temperature is None or getattr(score, "temperature", None) != 1.0:
        return score
    return dataclasses.replace(score, temperature=temperature)  # type: ignore[type-var]


# ---------------------------------------------------------------------------------------------------------------
# What is said of a choice

_USED_UP = "Calibrate and test on other rows."
_NAMES: Mapping[Metric, str] = MappingProxyType({"size": "size", "sscv": "SSCV", "sat": "SAT"})
_overall = attrgetter("overall")


def _report(best: Judged, rival: Judged, judged: Iterable[Judged], why: str, rows: TuningRows) -> Tuning:
    ordered = sorted(judged, key=_overall, reverse=True)
    candidates = tuple(Candidate(j.score, *j.figures, *j.lead(rival)) for j in ordered)
    return Tuning(best.score, f"{why}. {_USED_UP}", candidates, rows.by, rows.coverage, len(rows.labels))


def _beside(best: Judged, given: Judged) -> str:
    """How the best candidate compares with the score that was given, which may be no candidate and better than all."""
    ahead = best.overall - given.overall
    if not ahead:
        return f"{given.score.describe()} is equally good"
    if ahead < 0:
        return f"but {given.score.describe()}, which is not a default, leads it by {given.lead_text(best)}"
    return f"it leads {given.score.describe()} by {best.lead_text(given)}"


# ---------------------------------------------------------------------------------------------------------------
# Input


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
