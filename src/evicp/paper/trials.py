"""Trials: the paper's methods on one network's logits, under two protocols.

*As released* copies what the paper's code does, leaks included (`LEAKS`). *Clean* tunes temperature and lambda on rows
of their own and gives every method the same splits. Rows, shares and randomisation are pure functions of the seed.
`Released` brings the released protocol closer to the paper's code, where `DIFFERENCES` names what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.ranks import conformal_rank
from evicp.calibration.reliability import Reliability
from evicp.errors import InputError
from evicp.evaluation.result import Evaluation
from evicp.evaluation.splits import Split, run_splits
from evicp.evaluation.tuning import tune
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Score
from evicp.method.temperature import fit_temperature
from evicp.paper.published import Lam, paper_name
from evicp.types import I64

Protocol = Literal["as released", "clean"]

PROTOCOLS: tuple[Protocol, ...] = ("as released", "clean")

#: The candidates for RAPS's lambda in the paper's Experiment 4.
RAPS_GRID = (1e-5, 1e-4, 8e-4, 1e-3, 15e-4, 2e-3, 1e-2, 0.1, 1.0)

#: The paper calibrates on 15,000 of 50,000 and on 3,000 of 10,000 rows; the clean protocol tunes on a tenth next to it.
HOLDOUT = Fraction(3, 10)
TUNING = Fraction(1, 10)

#: What the released protocol does that an honest one does not.
LEAKS = (
    "The temperature is fitted on a random holdout that differs from the calibration set and overlaps the test rows.",
    "The fitted temperature also enters ECP's utility, which the paper describes as plain softmax.",
    "1e-8 is added to the denominator of ECP's cost; the printed equation has no such term.",
    "RAPS's penalty of the label itself is randomised too, unlike in the RAPS paper.",
    "Every method, and every lambda, is measured on a different random split: differences between methods include the "
    "noise of the splits.",
    "Table 5's lambda is the one with the lowest SSCV on the test rows themselves.",
)

#: What else the released code does; the first two are followed on request (`Released`), the others are not.
DIFFERENCES = (
    "The threshold is the calibration score of rank k + 1, one more than required: coverage is higher by "
    "1 / (n + 1) on average.",
    "The temperature is not the maximum-likelihood one: gradient descent takes at most ten passes from 1.3, in "
    "batches of 128 rows at rate 0.01, and stops after a pass that changes it by less than 0.01.",
    "Its exponential evidence is exp(clip(z / 10, -10, 10)), which no table uses; in evicp it is exp(clip(z, -10, "
    "10)).",
    "Labels of equal probability p get different ranks, in the order of a sort; in evicp they share the best one. Relu "
    "evidence makes all labels of negative logits equal.",
)


@dataclass(frozen=True)
class Released:
    """What the released protocol takes over from the paper's code beyond `LEAKS`.

    Parameters
    ----------
    rank_offset : added to the threshold's rank; 1 in the paper's code
    sgd : fit the temperature as the paper's code does (`sgd_temperature`)
    """

    rank_offset: int = 0
    sgd: bool = False

    def coverage(self, n: int, target: Fraction) -> Fraction:
        """The coverage that n calibration rows guarantee at the rank taken: that of the target without an offset."""
        rank = conformal_rank(n, target)
        return Fraction(min(rank + self.rank_offset, n), n + 1) if self.rank_offset and rank <= n else target


#: Nothing beyond the leaks, and everything that can be taken over.
LEAKS_ONLY, TO_THE_LETTER = Released(), Released(rank_offset=1, sgd=True)


def sgd_temperature(logits: NDArray[Any], labels: I64, *, batch: int = 128) -> float:
    """The temperature that the paper's code fits: stochastic gradient descent on the mean negative log-likelihood.

    Parameters
    ----------
    logits, labels : (n, K), (n,) in random order: batches are taken in that order
    batch : rows of a step
    """
    temperature = 1.3
    for _ in range(10):
        before = temperature
        for start in range(0, len(labels), batch):
            rows = slice(start, start + batch)
            _, slope, _ = kernels.nll_derivatives(logits[rows], labels[rows], 1 / temperature)  # by 1 / T
            temperature += 0.01 * slope / temperature**2
        if abs(temperature - before) < 0.01:
            break
    return temperature


@dataclass(frozen=True)
class Method:
    """A column of the paper's tables, or SAPS: its name and, for RAPS, lambda ("best": the one of least SSCV).

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
                raise InputError(f"{self} has no score before its lambda is selected.")
            return RAPS(self.lam, 5, randomize_penalty=randomize_penalty, temperature=temperature, seed=seed)
        if self.name in ("APS", "Base"):
            return APS(temperature=temperature, seed=seed)
        if self.name == "SAPS":
            return SAPS(temperature=temperature, seed=seed)
        if self.name == "LAS":
            return LAC(temperature=temperature)
        return ECP(temperature=temperature, stabilizer=1e-8)  # with any number of classes, as in the released code


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
    """One method on one split: its evaluation, how many sets had each size, (K + 1,), and the coverage guaranteed."""

    evaluation: Evaluation
    histogram: I64
    n_calibration: int
    guaranteed: Fraction
    lam: float | None = None
    conformal: bool = True

    @property
    def compatible(self) -> bool:
        """Whether the observed coverage lies in its 99.9 % beta-binomial interval."""
        low, high = _expected(self.n_calibration, self.guaranteed, self.evaluation.n)
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
    extra: Sequence[Method] = (),
    released: Released = LEAKS_ONLY,
    advance: Callable[[], None] = lambda: None,
) -> Trials:
    """Every method and coverage the tables need, `trials` times.

    Parameters
    ----------
    network : the logits
    protocol : "as released" or "clean"
    trials, seed : how many random splits, and which
    reference : also what only the paper's base classifier is used for (Tables 3 and 4, Figure 2)
    extra : methods that are measured at every coverage, too
    released : what the protocol "as released" takes over from the paper's code beyond its leaks
    advance : called after every trial
    """
    one_trial = partial(_released_trial, released) if protocol == "as released" else _clean_trial
    difficulty = kernels.label_ranks(network.logits, network.labels)
    results: dict[tuple[Method, float], list[Outcome]] = {}
    for trial in range(trials):
        for key, outcome in one_trial(network, difficulty, trial, seed, reference, extra).items():
            results.setdefault(key, []).append(outcome)
        advance()
    return {key: tuple(outcomes) for key, outcomes in results.items()}


def released_temperature(network: Network, trial: int, seed: int, released: Released = LEAKS_ONLY) -> float:
    """The temperature of one trial "as released", from a separate holdout."""
    n = len(network.labels)
    rows = np.random.default_rng([seed, trial, 0]).permutation(n)[: round(HOLDOUT * n)]
    logits, labels = network.logits[rows], network.labels[rows]
    return sgd_temperature(logits, labels) if released.sgd else fit_temperature(logits, labels).temperature


def _released_trial(
    released: Released,
    network: Network,
    difficulty: I64,
    trial: int,
    seed: int,
    reference: bool,
    extra: Sequence[Method],
) -> dict[tuple[Method, float], Outcome]:
    n = len(network.labels)
    n_holdout = round(HOLDOUT * n)
    temperature = released_temperature(network, trial, seed, released)
    wanted, splits = _wanted(RAPS_GRID, reference, extra), {}
    for number, (method, targets) in enumerate(wanted.items(), start=1):
        order = np.random.default_rng([seed, trial, number]).permutation(n)
        coverages = targets if method == BASE else tuple(released.coverage(n_holdout, target) for target in targets)
        splits[method] = Split(order[:n_holdout], order[n_holdout:], coverages, method != BASE)
    outcomes = _outcomes(network, difficulty, wanted, splits, temperature, trial, randomize_penalty=True)
    candidates = [outcomes[Method("RAPS", lam), 0.9] for lam in RAPS_GRID]
    outcomes[BEST_RAPS, 0.9] = min(candidates, key=lambda outcome: outcome.evaluation.sscv or 0.0)
    return outcomes


def _clean_trial(
    network: Network, difficulty: I64, trial: int, seed: int, reference: bool, extra: Sequence[Method]
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
    wanted = _wanted(sorted(lams), reference, extra)
    splits = {m: Split(calibration, test, targets, m != BASE) for m, targets in wanted.items()}
    outcomes = _outcomes(network, difficulty, wanted, splits, temperature, trial, randomize_penalty=False)
    outcomes[BEST_RAPS, 0.9] = outcomes[Method("RAPS", lam), 0.9]
    if not reference:
        # A lambda that was best in some trials only is no column of its own.
        outcomes = {k: v for k, v in outcomes.items() if k[0].lam in (None, "best", BENCHMARK_RAPS.lam)}
    return outcomes


def _wanted(lams: Iterable[float], reference: bool, extra: Sequence[Method]) -> dict[Method, tuple[Fraction, ...]]:
    """The coverages of each method, RAPS at the given lambdas; what is extra comes last and moves no other split."""
    coverages = tuple(Fraction(share, 100) for share in ((90, 95, 99) if reference else (90, 95)))
    wanted = dict.fromkeys((BASE, PLAIN_APS, BENCHMARK_RAPS, EVIDENTIAL), coverages)
    for method in (LEAST, *(Method("RAPS", lam) for lam in lams)):
        wanted.setdefault(method, coverages[:1])
    return wanted | dict.fromkeys(extra, coverages)


def _outcomes(
    network: Network,
    difficulty: I64,
    wanted: Mapping[Method, tuple[Fraction, ...]],
    splits: Mapping[Method, Split],
    temperature: float,
    trial: int,
    *,
    randomize_penalty: bool,
) -> dict[tuple[Method, float], Outcome]:
    """Every method on its split at each wanted coverage, scoring the logits once for all that share a score."""
    n_classes = network.logits.shape[1]
    by_score: dict[Score, list[Method]] = {}
    for method in splits:
        score = method.score(temperature, trial, randomize_penalty=randomize_penalty)
        by_score.setdefault(score, []).append(method)
    results = {}
    for score, methods in by_score.items():
        found = run_splits(score, network.logits, network.labels, [splits[method] for method in methods])
        for method, of_method in zip(methods, found, strict=True):
            for target, tested in zip(wanted[method], of_method, strict=True):
                results[method, float(target)] = Outcome(
                    evaluation=replace(tested, coverage=target).evaluation(
                        network.labels, difficulty, n_classes, str(method)
                    ),
                    histogram=np.bincount(tested.sizes, minlength=n_classes + 1),
                    n_calibration=len(tested.split.calibration),
                    guaranteed=tested.coverage,
                    lam=score.lam if isinstance(score, RAPS) else None,
                    conformal=tested.split.calibrated,
                )
    return results
