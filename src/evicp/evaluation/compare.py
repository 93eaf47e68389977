"""Which score? Several scores, several random splits, one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration import limits
from evicp.calibration.ranks import conformal_rank, rows_needed
from evicp.calibration.suspicious import warn_suspicious
from evicp.calibration.ties import is_tied
from evicp.errors import InputError, InputTypeError, LogitsError, SmallCalibrationWarning
from evicp.evaluation.metrics import Evaluation, evaluate_counts
from evicp.evaluation.tuning import Auto, Tuned, rows_to_choose, with_temperature
from evicp.input import validate
from evicp.input.classes import labelled
from evicp.input.warn import warn
from evicp.method.scores import USUAL, Base, Score, ScoreLike, as_score
from evicp.method.temperature import fit_temperature
from evicp.tables import html_table, markdown_table, text_table
from evicp.types import F64, I64, Coverage

__all__ = ["Comparison", "as_row_count", "compare"]

Method = Score | Tuned | Auto

#: The columns of a comparison: title, attribute of Evaluation, digits.
COLUMNS = (("coverage", "coverage", 4), ("size", "mean_size", 3), ("SSCV", "sscv", 3), ("SAT", "sat", 3))

#: Attributes of Evaluation that are one number per trial.
_METRICS = (
    *("coverage", "mean_size", "mean_size_non_empty", "median_size", "empty_share", "singleton_share"),
    *("sscv", "sscv_smallest_count", "sat", "accuracy"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Several scores on the same random splits. Prints as a table of medians, standard deviations in brackets.

    Attributes
    ----------
    evaluations : for each score, by the name of its row, one `Evaluation` per trial
    coverage : asked of all of them, exactly
    trials : how many random splits
    n_calibration : rows calibrated on in each trial
    n_test : rows tested
    n_tuning : rows set aside to tune, to choose, or to fit a temperature
    temperatures : the temperature of each trial
    note : what the caption says of the temperature
    chosen : for each score, by name, what it was in each trial: tuned, at its temperature
    """

    evaluations: dict[str, list[Evaluation]]
    coverage: Fraction
    trials: int
    n_calibration: int
    n_test: int
    n_tuning: int
    temperatures: tuple[float, ...]
    note: str
    chosen: dict[str, list[Score]]

    def values(self, score: str, metric: str) -> F64:
        """One number per trial, (trials,); NaN where a metric is undefined (SAT, if every set is empty).

        Parameters
        ----------
        score : the name of its row
        metric : an attribute of `Evaluation` that is one number: "coverage", "mean_size", "sscv", "sat", ...
        """
        if score not in self.evaluations:
            raise InputError(f"{score!r} was not compared; there are {', '.join(self.evaluations)}.")
        if metric not in _METRICS:
            raise InputError(f"unknown metric {metric!r}; known are {', '.join(_METRICS)}.")
        values = [getattr(e, metric) for e in self.evaluations[score]]
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64)

    def median(self, score: str, metric: str) -> float:
        """The median over trials: `comparison.median("ecp", "mean_size")`; NaN where it is undefined in all."""
        return self._over_trials(np.median, score, metric)

    def mean(self, score: str, metric: str) -> float:
        """The mean over trials."""
        return self._over_trials(np.mean, score, metric)

    def std(self, score: str, metric: str) -> float:
        """The standard deviation over trials; NaN of one trial."""
        return self._over_trials(lambda values: np.std(values) if values.size > 1 else np.nan, score, metric)

    def _over_trials(self, summary: Callable[[F64], Any], score: str, metric: str) -> float:
        values = self.values(score, metric)
        defined = values[~np.isnan(values)]
        return float(summary(defined)) if defined.size else np.nan

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The head and the rows of the printed table."""
        head = ["score", *(title for title, _, _ in COLUMNS)]
        return head, [[name, *(self._cell(name, m, digits) for _, m, digits in COLUMNS)] for name in self.evaluations]

    def _cell(self, score: str, metric: str, digits: int) -> str:
        median, std = self.median(score, metric), self.std(score, metric)
        spread = "" if np.isnan(std) else f" ({std:.{digits}f})"
        return "-" if np.isnan(median) else f"{median:.{digits}f}{spread}"

    @property
    def caption(self) -> str:
        """What the table shows."""
        over = "one split" if self.trials == 1 else f"median (standard deviation) over {self.trials} splits"
        return (
            f"coverage {float(self.coverage):g}; {over}: "
            f"{self.n_calibration:,} rows calibrated, {self.n_test:,} tested. {self.note}"
        )

    def __repr__(self) -> str:
        return f"{text_table(*self.table())}\n{self.caption}"

    def to_markdown(self) -> str:
        """The comparison as a Markdown table."""
        return f"{markdown_table(*self.table())}\n\n{self.caption}"

    def _repr_html_(self) -> str:
        return f"{html_table(*self.table())}<p>{escape(self.caption)}</p>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; None where a metric is undefined in every trial, or a deviation of one."""
        summaries = {"median": self.median, "mean": self.mean, "std": self.std}
        scores = {
            name: {
                metric: {title: _plain(summary(name, metric)) for title, summary in summaries.items()}
                for _, metric, _ in COLUMNS
            }
            for name in self.evaluations
        }
        return {
            "coverage": float(self.coverage),
            "trials": self.trials,
            "n_calibration": self.n_calibration,
            "n_test": self.n_test,
            "n_tuning": self.n_tuning,
            "temperatures": list(self.temperatures),
            "note": self.note,
            "scores": scores,
            "chosen": {name: [score.describe() for score in chosen] for name, chosen in self.chosen.items()},
        }


def compare(
    logits: Any,
    labels: Any,
    scores: ScoreLike | Tuned | Auto | Sequence[ScoreLike | Tuned | Auto] = (*USUAL, "base"),
    coverage: Coverage = 0.9,
    *,
    trials: int = 10,
    seed: int = 0,
    calibration: float | int = 0.3,
    temperature: float | Literal["split", "holdout"] = 1.0,
    tuning: float | int | None = None,
    min_count: int = 1,
) -> Comparison:
    """Several scores on the same random splits of labelled rows.

    Parameters
    ----------
    logits, labels : the rows to split
    scores : names, scores, callables, `Tuned` ones, or "auto", which chooses among all families; Base is not calibrated
    coverage : asked of all of them
    trials, seed : how many splits, and which
    calibration : rows to calibrate on in each trial, a share or a count; the rest is tested
    temperature : a number; "split" fits it on the tuning rows of each trial, which keeps the guarantee; "holdout" on
        the calibration rows, as the paper does, outside the exact guarantee. A score with a T other than 1 keeps it.
    tuning : a share or count of rows set aside where `temperature="split"` or a score is `Tuned` or "auto"; by default
        a tenth; for "auto" a fifth, a third of few rows
    min_count : strata with fewer rows are left out of SSCV

    Returns
    -------
    Comparison
        Prints as a table; `median`, `mean`, `std` and `values` have its figures.

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 5, 600)
    >>> logits = rng.normal(size=(600, 5)) + 2 * np.eye(5)[labels]
    >>> comparison = compare(logits, labels, ["ecp", "lac"], coverage=0.8, trials=3)
    >>> abs(comparison.median("ecp", "coverage") - 0.8) < 0.06
    True
    """
    array, truth = labelled(logits, labels)
    if not len(array):
        raise LogitsError("compare needs labelled rows to split; got none.")
    exact = validate.as_coverage(coverage)
    trials, seed = validate.as_count(trials, "trials"), validate.as_count(seed, "seed", at_least=0)
    min_count = validate.as_count(min_count, "min_count")
    methods = _unique_names(scores)
    # "auto" sees for itself which scores do well on these logits.
    warn_suspicious((m.score if isinstance(m, Tuned) else m for m in methods.values()), array)
    n_tuning = _tuning_rows(tuning, len(array), methods.values(), temperature)
    _warn_of_few_to_tune(n_tuning, exact, methods.values())
    n_calibration = as_row_count(calibration, len(array), "calibration")
    if n_tuning + n_calibration >= len(array):
        raise InputError(
            f"calibration and tuning take {n_calibration + n_tuning:,} of {len(array):,} rows; none are left to test."
        )
    orders = [np.random.default_rng([seed, trial]).permutation(len(array)) for trial in range(trials)]
    parts = [np.split(order, [n_tuning, n_tuning + n_calibration]) for order in orders]
    temperatures = _temperatures(temperature, array, truth, parts)
    difficulty = kernels.label_ranks(array, truth)
    chosen = {name: _choose(method, array, truth, parts, temperatures, exact, seed) for name, method in methods.items()}
    evaluations = {
        name: _evaluate_trials(scores, array, truth, difficulty, parts, exact, min_count)
        for name, scores in chosen.items()
    }
    return Comparison(
        evaluations=evaluations,
        coverage=exact,
        trials=trials,
        n_calibration=n_calibration,
        n_test=len(array) - n_tuning - n_calibration,
        n_tuning=n_tuning,
        temperatures=tuple(t if t is not None else 1.0 for t in temperatures),
        note=_note(temperature, n_tuning),
        chosen=chosen,
    )


def _unique_names(scores: Any) -> dict[str, Method]:
    """The methods to compare, each under the name its row of the table gets."""
    many = isinstance(scores, Iterable) and not isinstance(scores, str)
    named: dict[str, Method] = {}
    for item in scores if many else [scores]:
        method = _as_method(item)
        name = method.describe()
        if name in named:
            raise InputError(f"scores must differ; got {name} twice. Functions need names of their own.")
        named[name] = method
    if not named:
        raise InputError("scores must name at least one score; got none.")
    return named


def _as_method(item: Any) -> Method:
    if isinstance(item, str) and item.lower() == "auto":
        return Auto()
    return item if isinstance(item, Tuned | Auto) else as_score(item, conformal=False)


def _tuning_rows(tuning: Any, n: int, methods: Iterable[Method], temperature: Any) -> int:
    """How many rows are set aside in each trial for temperatures, parameters and choices."""
    kinds = {type(method) for method in methods}
    if temperature != "split" and not kinds & {Tuned, Auto}:
        return 0
    if tuning is None:
        tuning = rows_to_choose(n) if Auto in kinds else 0.1
    return as_row_count(tuning, n, "tuning")


def _warn_of_few_to_tune(n_tuning: int, coverage: Fraction, methods: Iterable[Method]) -> None:
    """Full sets are all alike: where `tune` would refuse to choose, the first candidate is taken."""
    if n_tuning < rows_needed(coverage) and any(isinstance(method, Tuned | Auto) for method in methods):
        warn(
            f"the {n_tuning} tuning rows of a trial cannot tell candidates apart: coverage {float(coverage):g} needs "
            f"{rows_needed(coverage)}, with fewer all sets are full. Pass tuning={rows_needed(coverage)} or more.",
            SmallCalibrationWarning,
        )


def as_row_count(share: Any, n: int, what: str) -> int:
    """A number of rows from a share or a count."""
    if isinstance(share, bool | np.bool_) or not isinstance(share, int | float | np.integer | np.floating):
        raise InputTypeError(f"{what} must be a share in (0, 1) or a number of rows; got {share!r}.")
    rows = int(share) if isinstance(share, int | np.integer) else round(share * n) if 0 < share < 1 else 0
    if not 0 < rows < n:
        raise InputError(f"{what} must be a share in (0, 1) or a number of rows below {n:,}; got {share}.")
    return rows


def _temperatures(
    temperature: float | str, logits: NDArray[Any], labels: I64, parts: list[list[I64]]
) -> list[float | None]:
    """The temperature of each trial; None where nothing was asked."""
    wanted = validate.as_temperature(temperature, "split", "holdout")
    if isinstance(wanted, str):
        which = 0 if wanted == "split" else 1
        return [fit_temperature(logits[part[which]], labels[part[which]]).temperature for part in parts]
    return [None if wanted == 1.0 else wanted] * len(parts)


def _choose(
    method: Method,
    logits: NDArray[Any],
    labels: I64,
    parts: list[list[I64]],
    temperatures: list[float | None],
    coverage: Fraction,
    seed: int,
) -> list[Score]:
    """The score of each trial, from its tuning rows and its temperature."""
    if isinstance(method, Tuned | Auto):
        return [
            method.choose(logits[tuning], labels[tuning], coverage, seed, temperature)
            for (tuning, _, _), temperature in zip(parts, temperatures, strict=True)
        ]
    return [with_temperature(method, temperature) for temperature in temperatures]


def _evaluate_trials(
    scores: list[Score],
    logits: NDArray[Any],
    labels: I64,
    difficulty: I64,
    parts: list[list[I64]],
    coverage: Fraction,
    min_count: int,
) -> list[Evaluation]:
    """One method on all trials; trials with equal scores share one pass over the logits."""
    results: dict[int, Evaluation] = {}
    for trial, score in enumerate(scores):
        if trial not in results:
            alike = [other for other in range(trial, len(scores)) if scores[other] == score]
            splits = [(parts[other][1], parts[other][2]) for other in alike]
            evaluations = _evaluate_splits(score, logits, labels, splits, coverage, difficulty, min_count)
            results.update(zip(alike, evaluations, strict=True))
    return [results[trial] for trial in range(len(scores))]


def _evaluate_splits(
    score: Score,
    logits: NDArray[Any],
    labels: I64,
    splits: Sequence[tuple[I64, I64]],
    coverage: Fraction,
    difficulty: I64,
    min_count: int,
) -> list[Evaluation]:
    """Calibrate and evaluate on each (calibration rows, test rows), scoring the logits once for all of them."""
    true_scores = kernels.label_scores(score, logits, labels)
    thresholds, ties = [float(coverage)] * len(splits), [False] * len(splits)
    if not isinstance(score, Base):
        ascending = [np.sort(true_scores[rows]) for rows, _ in splits]
        thresholds = [limits.threshold(scores, coverage) for scores in ascending]
        ties = [is_tied(scores, conformal_rank(len(scores), coverage)) for scores in ascending]
    all_sizes = limits.set_sizes(score, logits, np.array(thresholds))
    return [
        evaluate_counts(
            sizes[test],
            true_scores[test] <= threshold,
            labels[test],
            difficulty[test],
            n_classes=logits.shape[1],
            target=coverage,
            score=score.name,
            n_calibration=None if isinstance(score, Base) else len(rows),
            min_count=min_count,
            tied=tied,
        )
        for (rows, test), threshold, tied, sizes in zip(splits, thresholds, ties, all_sizes, strict=True)
    ]


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value


def _note(temperature: float | str, n_tuning: int) -> str:
    if temperature == "split":
        return f"Temperature fitted on {n_tuning:,} rows of their own."
    if temperature == "holdout":
        return "Temperature fitted on the calibration rows, as in the paper: outside the exact guarantee."
    return f"Temperature {temperature:g}."
