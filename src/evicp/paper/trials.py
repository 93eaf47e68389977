"""Trials: the paper's methods on one network's logits, under two protocols.

*As released* copies what the paper's code does, leaks included (`LEAKS`). *Clean* tunes temperature and lambda on rows
of their own and gives every method the same splits. Rows, shares and randomisation are pure functions of the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.reliability import Reliability
from evicp.errors import InputError
from evicp.evaluation.result import Evaluation
from evicp.evaluation.splits import Split, run_splits
from evicp.evaluation.tuning import tune
from evicp.method.scores import APS, ECP, LAC, RAPS, Score
from evicp.method.temperature import fit_temperature
from evicp.paper.published import Lam, paper_name
from evicp.types import I64

Protocol = Literal["as released", "clean"]

PROTOCOLS: tuple[Protocol, ...] = ("as released", "clean")

#: The candidates for RAPS's lambda in the paper's Experiment 4.
RAPS_GRID = (1e-5, 1e-4, 8e-4, 1e-3, 15e-4, 2e-3, 1e-2, 0.1, 1.0)

#: The paper calibrates on 15,000 of 50,000 and on 3,000 of 10,000 rows; the clean protocol tunes on a tenth beside it.
HOLDOUT = Fraction(3, 10)
TUNING = Fraction(1, 10)

#: What the released protocol does that an honest one does not.
LEAKS = (
    "The temperature is fitted on a random holdout other than the one calibrated on: it has seen rows that are tested.",
    "The fitted temperature also enters ECP's utility, which the paper describes as plain softmax.",
    "1e-8 is added to the denominator of ECP's cost; the printed equation has no such term.",
    "RAPS's penalty of the label itself is randomised too, unlike in the paper that introduced RAPS.",
    "Every method, and every lambda, is measured on a random split of its own: differences between methods carry the "
    "noise of the splits.",
    "Table 5's lambda is the one of least SSCV on the rows that are then reported.",
)


@dataclass(frozen=True)
class Method:
    """A column of the paper's tables: its name and, for RAPS, lambda ("best": the one of least SSCV).

    >>> str(Method("RAPS", 0.1)), str(Method("ECP"))
    ('RAPS (0.1)', 'ECP')
    """

    name: str
    lam: Lam = None

    def __str__(self) -> str:
        lam = self.lam if self.lam in (None, "best") else f"{self.lam:g}"
        return self.name if lam is None else f"{self.name} ({lam})"

    def score(self, temperature: float, seed: int, *, randomize_penalty: bool) -> Score:
        """The score behind the column. Base has APS's: it differs in its threshold only."""
        if self.name == "RAPS":
            if not isinstance(self.lam, float):
                raise InputError(f"{self} has no score before its lambda is chosen.")
            return RAPS(self.lam, 5, randomize_penalty=randomize_penalty, temperature=temperature, seed=seed)
        if self.name in ("APS", "Base"):
            return APS(temperature=temperature, seed=seed)
        return {"ECP": ECP, "LAS": LAC}[self.name](temperature=temperature)


BASE, PLAIN_APS, BENCHMARK_RAPS, EVIDENTIAL, LEAST = (
    Method("Base"),
    Method("APS"),
    Method("RAPS", 0.1),
    Method("ECP"),
    Method("LAS"),
)
BEST_RAPS = Method("RAPS", "best")


@dataclass(frozen=True, eq=False)
class Network:
    """One network's logits on one data set ("val" or "v2")."""

    name: str
    dataset: str
    logits: NDArray[Any]
    labels: I64

    @property
    def paper_name(self) -> str | None:
        """The paper's name for it, where the paper has it."""
        return paper_name(self.name)

    @property
    def title(self) -> str:
        """The name tables show."""
        return self.paper_name or self.name


@dataclass(frozen=True, eq=False)
class Outcome:
    """One method on one split: its evaluation, and how many sets had each size, (K + 1,)."""

    evaluation: Evaluation
    histogram: I64
    n_calibration: int
    lam: float | None = None
    conformal: bool = True

    @property
    def compatible(self) -> bool:
        """Whether the observed coverage lies in its 99.9 % beta-binomial interval."""
        low, high = _expected(self.n_calibration, self.evaluation.target, self.evaluation.n)
        return low <= self.evaluation.coverage <= high


@cache
def _expected(n: int, coverage: Fraction, m: int) -> tuple[float, float]:
    return Reliability(n, coverage).observed_interval(m, 0.999)


Trials = Mapping[tuple[Method, float], tuple[Outcome, ...]]


def run_trials(
    network: Network,
    protocol: Protocol,
    *,
    trials: int = 10,
    seed: int = 0,
    reference: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> Trials:
    """Every method and coverage the tables need, `trials` times.

    Parameters
    ----------
    network : the logits
    protocol : "as released" or "clean"
    trials, seed : how many random splits, and which
    reference : also what only the paper's base classifier is used for (Tables 3 and 4, Figure 2)
    advance : called after every trial
    """
    one_trial = _released_trial if protocol == "as released" else _clean_trial
    difficulty = kernels.label_ranks(network.logits, network.labels)
    results: dict[tuple[Method, float], list[Outcome]] = {}
    for trial in range(trials):
        for key, outcome in one_trial(network, difficulty, trial, seed, reference).items():
            results.setdefault(key, []).append(outcome)
        advance()
    return {key: tuple(outcomes) for key, outcomes in results.items()}


def _released_trial(
    network: Network, difficulty: I64, trial: int, seed: int, reference: bool
) -> dict[tuple[Method, float], Outcome]:
    n = len(network.labels)
    n_holdout = round(HOLDOUT * n)
    rows = np.random.default_rng([seed, trial, 0]).permutation(n)[:n_holdout]
    temperature = fit_temperature(network.logits[rows], network.labels[rows]).temperature
    splits = {}
    for number, (method, coverages) in enumerate(_wanted(RAPS_GRID, reference).items(), start=1):
        order = np.random.default_rng([seed, trial, number]).permutation(n)
        splits[method] = Split(order[:n_holdout], order[n_holdout:], coverages, method != BASE)
    outcomes = _outcomes(network, difficulty, splits, temperature, trial, randomize_penalty=True)
    candidates = [outcomes[Method("RAPS", lam), 0.9] for lam in RAPS_GRID]
    outcomes[BEST_RAPS, 0.9] = min(candidates, key=lambda outcome: outcome.evaluation.sscv or 0.0)
    return outcomes


def _clean_trial(
    network: Network, difficulty: I64, trial: int, seed: int, reference: bool
) -> dict[tuple[Method, float], Outcome]:
    n = len(network.labels)
    order = np.random.default_rng([seed, trial]).permutation(n)
    own, calibration, test = np.split(order, [round(TUNING * n), round((TUNING + HOLDOUT) * n)])
    logits, labels = network.logits[own], network.labels[own]
    temperature = fit_temperature(logits, labels).temperature
    raps = RAPS(temperature=temperature, seed=trial)
    best = tune(logits, labels, raps, by="sscv", coverage=0.9, grid={"lam": RAPS_GRID}, seed=trial).best
    lam = float(best.parameters()["lam"])
    lams = {lam, 0.001, 0.01, 1.0} if reference else {lam}
    splits = {
        method: Split(calibration, test, coverages, method != BASE)
        for method, coverages in _wanted(sorted(lams), reference).items()
    }
    outcomes = _outcomes(network, difficulty, splits, temperature, trial, randomize_penalty=False)
    outcomes[BEST_RAPS, 0.9] = outcomes[Method("RAPS", lam), 0.9]
    if not reference:
        # A lambda that was best in some trials only is no column of its own.
        outcomes = {k: v for k, v in outcomes.items() if k[0].lam in (None, "best", BENCHMARK_RAPS.lam)}
    return outcomes


def _wanted(lams: Iterable[float], reference: bool) -> dict[Method, tuple[Fraction, ...]]:
    """The coverages of each method, RAPS at the given lambdas."""
    coverages = tuple(Fraction(share, 100) for share in ((90, 95, 99) if reference else (90, 95)))
    wanted = dict.fromkeys((BASE, PLAIN_APS, BENCHMARK_RAPS, EVIDENTIAL), coverages)
    for method in (LEAST, *(Method("RAPS", lam) for lam in lams)):
        wanted.setdefault(method, coverages[:1])
    return wanted


def _outcomes(
    network: Network,
    difficulty: I64,
    splits: Mapping[Method, Split],
    temperature: float,
    trial: int,
    *,
    randomize_penalty: bool,
) -> dict[tuple[Method, float], Outcome]:
    """Every method on its split, scoring the logits once for all that share a score."""
    n_classes = network.logits.shape[1]
    by_score: dict[Score, list[Method]] = {}
    for method in splits:
        score = method.score(temperature, trial, randomize_penalty=randomize_penalty)
        by_score.setdefault(score, []).append(method)
    results = {}
    for score, methods in by_score.items():
        found = run_splits(score, network.logits, network.labels, [splits[method] for method in methods])
        for method, of_method in zip(methods, found, strict=True):
            for tested in of_method:
                evaluation = tested.evaluation(network.labels, difficulty, n_classes, str(method))
                histogram = np.bincount(tested.sizes, minlength=n_classes + 1)
                n_calibration = len(tested.split.calibration)
                lam = score.lam if isinstance(score, RAPS) else None
                outcome = Outcome(evaluation, histogram, n_calibration, lam, tested.split.calibrated)
                results[method, float(tested.coverage)] = outcome
    return results
