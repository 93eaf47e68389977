"""Comparison of several scores on the same random splits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp import kernels
from evicp.calibration.ranks import rows_needed
from evicp.calibration.suspicious import warn_suspicious
from evicp.errors import InputError, InputTypeError, LogitsError, SmallCalibrationWarning, need
from evicp.evaluation.judging import TuningRows
from evicp.evaluation.result import Evaluation
from evicp.evaluation.splits import Split, run_splits
from evicp.evaluation.tuning import Auto, Tuned, rows_to_choose, with_temperature
from evicp.input import validate
from evicp.input.classes import labelled
from evicp.input.messages import refuse_unknown
from evicp.input.warn import warn
from evicp.method.scores import USUAL, Base, Score, ScoreLike, as_score
from evicp.method.temperature import fit_temperature
from evicp.outer import outer
from evicp.tables import html_table, markdown_table, text_table
from evicp.types import F64, I64, Coverage

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Comparison", "compare"]

Method = Score | Tuned | Auto

#: The columns of a comparison: title, attribute of Evaluation, digits.
COLUMNS = (
    *(("coverage", "coverage", 4), ("size", "mean_size", 3), ("SSCV", "sscv", 3), ("SSCV rows", "sscv_count", 0)),
    ("SAT", "sat", 3),
)

#: Attributes of Evaluation that are one number per trial.
_METRICS = (
    *("coverage", "mean_size", "mean_size_non_empty", "median_size", "empty_share", "singleton_share"),
    *("sscv", "sscv_count", "sscv_smallest_count", "sat", "accuracy"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Several scores on the same random splits. Prints as a table of medians, standard deviations in brackets.

    Attributes
    ----------
    evaluations : for each score, by name, one `Evaluation` per trial
    coverage : the target coverage of all, exactly
    trials : the number of random splits
    n_calibration : calibration rows of each trial
    n_test : test rows of each trial
    n_tuning : rows set aside for tuning, selection and temperatures
    temperatures : the temperature of each trial
    note : the caption's sentence on the temperature
    chosen : for each score, by name, the tuned score of each trial with its temperature
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

    @property
    def target_coverage(self) -> Fraction:
        """The target coverage, the same as `coverage`."""
        return self.coverage

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
            f"{self.n_calibration:,} calibration rows, {self.n_test:,} test rows. {self.note}"
        )

    def __repr__(self) -> str:
        return f"{text_table(*self.table())}\n{self.caption}"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw mean set size and coverage of each score, a point per trial.

        Parameters
        ----------
        ax : Matplotlib axes to draw on; those of a new figure by default (needs the `plot` extra)
        """
        axes: Axes = outer("plot_comparison")(self, ax)
        return axes

    def to_markdown(self) -> str:
        """The comparison as a Markdown table."""
        return f"{markdown_table(*self.table())}\n\n{self.caption}"

    def _repr_html_(self) -> str:
        return f"{html_table(*self.table())}<p>{escape(self.caption)}</p>"

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with one row per score and trial, and a column per metric; NaN where one is undefined."""
        pd = need("pandas", "pandas", "pandas", "a data frame")
        index = pd.MultiIndex.from_product([list(self.evaluations), range(self.trials)], names=["score", "trial"])
        columns = {m: np.concatenate([self.values(score, m) for score in self.evaluations]) for m in _METRICS}
        return pd.DataFrame(columns, index=index)

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
    logits: ArrayLike,
    labels: ArrayLike,
    scores: ScoreLike | Tuned | Auto | Sequence[ScoreLike | Tuned | Auto] = (*USUAL, "base"),
    coverage: Coverage = 0.9,
    *,
    trials: int = 10,
    seed: int = 0,
    calibration: float | int = 0.3,
    temperature: float | Literal["split", "holdout"] = 1.0,
    tuning: float | int | None = None,
    min_count: int = 1,
    **unknown: Any,
) -> Comparison:
    """Several scores on the same random splits of labelled rows.

    Parameters
    ----------
    logits, labels : the rows to split
    scores : names, scores, callables, `Tuned` scores, or "auto", which selects among all; Base is not calibrated
    coverage, min_count : the target coverage; strata with fewer rows than `min_count` are left out of SSCV
    trials, seed : the number of splits and their seed
    calibration : calibration rows of each trial, a share or a count; the others are test rows
    temperature : a number; "split" fits it on the tuning rows of each trial, which keeps the guarantee; "holdout" on
        the calibration rows, as in the paper, without an exact guarantee. A score with T other than 1 keeps it.
    tuning : rows set aside for "split", `Tuned` and "auto", a share or a count; by default a tenth, for "auto" more

    >>> labels = np.arange(600) % 5
    >>> logits = 2 * np.eye(5)[labels] + np.random.default_rng(0).normal(size=(600, 5))
    >>> abs(compare(logits, labels, "ecp", coverage=0.8, trials=3).median("ecp", "coverage") - 0.8) < 0.06
    True
    """
    refuse_unknown("compare", unknown)
    rows = _Rows.checked(logits, labels, coverage, seed, min_count)
    methods, trials = _unique_names(scores), validate.as_count(trials, "trials")
    # "auto" sees for itself which scores do well on these logits.
    warn_suspicious((m.score if isinstance(m, Tuned) else m for m in methods.values()), rows.logits)
    n_tuning = _tuning_rows(tuning, rows, methods.values(), temperature)
    splits = rows.split(trials, n_tuning, as_row_count(calibration, len(rows.labels), "calibration"))
    return rows.compare(methods, splits, temperature)


@dataclass(frozen=True)
class _Trial:
    """A random split: the numbers of the rows for choices, calibration and test."""

    tuning: I64
    calibration: I64
    test: I64


@dataclass(frozen=True, eq=False)
class _Rows:
    """Labelled rows to split, and what is asked of every score on them."""

    logits: NDArray[Any]
    labels: I64
    coverage: Fraction
    seed: int
    min_count: int

    @classmethod
    def checked(cls, logits: Any, labels: Any, coverage: Any, seed: Any, min_count: Any) -> _Rows:
        array, truth = labelled(logits, labels)
        if not len(array):
            raise LogitsError("compare needs labelled rows to split; got none.")
        exact, seed = validate.as_coverage(coverage), validate.as_count(seed, "seed", at_least=0)
        return cls(array, truth, exact, seed, validate.as_count(min_count, "min_count"))

    def split(self, trials: int, n_tuning: int, n_calibration: int) -> list[_Trial]:
        n, used = len(self.labels), n_tuning + n_calibration
        if used >= n:
            raise InputError(f"calibration and tuning take {used:,} of {n:,} rows; none are left to test.")
        orders = (np.random.default_rng([self.seed, trial]).permutation(n) for trial in range(trials))
        return [_Trial(*np.split(order, [n_tuning, used])) for order in orders]

    def compare(self, methods: Mapping[str, Method], trials: list[_Trial], temperature: float | str) -> Comparison:
        temperatures = self._temperatures(temperature, trials)
        chosen = {name: self._choose(method, trials, temperatures) for name, method in methods.items()}
        difficulty = kernels.label_ranks(self.logits, self.labels)
        return Comparison(
            evaluations={name: self._evaluate(scores, trials, difficulty) for name, scores in chosen.items()},
            coverage=self.coverage,
            trials=len(trials),
            n_calibration=len(trials[0].calibration),
            n_test=len(trials[0].test),
            n_tuning=len(trials[0].tuning),
            temperatures=tuple(t if t is not None else 1.0 for t in temperatures),
            note=_note(temperature, len(trials[0].tuning)),
            chosen=chosen,
        )

    def _temperatures(self, temperature: float | str, trials: list[_Trial]) -> list[float | None]:
        """The temperature of each trial; None where nothing was asked."""
        wanted = validate.as_temperature(temperature, "split", "holdout")
        if not isinstance(wanted, str):
            return [None if wanted == 1.0 else wanted] * len(trials)
        rows = (trial.tuning if wanted == "split" else trial.calibration for trial in trials)
        return [fit_temperature(self.logits[own], self.labels[own]).temperature for own in rows]

    def _choose(self, method: Method, trials: list[_Trial], temperatures: list[float | None]) -> list[Score]:
        """The score of each trial, from its tuning rows and its temperature."""
        if not isinstance(method, Tuned | Auto):
            return [with_temperature(method, temperature) for temperature in temperatures]
        chosen = []
        for trial, temperature in zip(trials, temperatures, strict=True):
            logits, labels = self.logits[trial.tuning], self.labels[trial.tuning]
            rows = TuningRows(logits, labels, self.coverage, method.by, self.seed)
            chosen.append(method.choose(rows, temperature))
        return chosen

    def _evaluate(self, scores: list[Score], trials: list[_Trial], difficulty: I64) -> list[Evaluation]:
        """One method on all trials; trials with equal scores share one pass over the logits."""
        results: dict[int, Evaluation] = {}
        for number, score in enumerate(scores):
            if number in results:
                continue
            same = [other for other in range(number, len(scores)) if scores[other] == score]  # there may be no hash
            calibrated = not isinstance(score, Base)
            splits = [Split(trials[i].calibration, trials[i].test, (self.coverage,), calibrated) for i in same]
            for other, (tested,) in zip(same, run_splits(score, self.logits, self.labels, splits), strict=True):
                n_classes = self.logits.shape[1]
                results[other] = tested.evaluation(self.labels, difficulty, n_classes, score.name, self.min_count)
        return [results[number] for number in range(len(scores))]


def _unique_names(scores: Any) -> dict[str, Method]:
    """The methods to compare, each under the name its row of the table gets."""
    many = isinstance(scores, Iterable) and not isinstance(scores, str)
    named: dict[str, Method] = {}
    for item in scores if many else [scores]:
        method = _as_method(item)
        name = method.describe()
        if name in named:
            raise InputError(f"scores must differ; got {name} twice. Give functions different names.")
        named[name] = method
    if not named:
        raise InputError("scores must name at least one score; got none.")
    return named


def _as_method(item: Any) -> Method:
    if isinstance(item, str) and item.lower() == "auto":
        return Auto()
    return item if isinstance(item, Tuned | Auto) else as_score(item, conformal=False)


def _tuning_rows(tuning: Any, rows: _Rows, methods: Collection[Method], temperature: Any) -> int:
    """How many rows are set aside in each trial for temperatures, parameters and choices."""
    n, needed = len(rows.labels), rows_needed(rows.coverage)
    kinds = {type(method) for method in methods}
    chooses = bool(kinds & {Tuned, Auto})
    if temperature != "split" and not chooses:
        return 0
    if tuning is None:
        tuning = rows_to_choose(n) if Auto in kinds else 0.1
    n_tuning = as_row_count(tuning, n, "tuning")
    if n_tuning < needed and chooses:
        # Full sets cannot be compared: where `tune` would raise an error, the first candidate is used.
        warn(
            f"the {n_tuning} tuning rows of a trial cannot separate candidates: coverage {float(rows.coverage):g} "
            f"needs {needed}, with fewer rows all sets are full. Pass tuning={needed} or more.",
            SmallCalibrationWarning,
        )
    return n_tuning


def as_row_count(share: Any, n: int, what: str) -> int:
    """A number of rows from a share or a count."""
    if isinstance(share, bool | np.bool_) or not isinstance(share, int | float | np.integer | np.floating):
        raise InputTypeError(f"{what} must be a share in (0, 1) or a number of rows; got {share!r}.")
    rows = int(share) if isinstance(share, int | np.integer) else round(share * n) if 0 < share < 1 else 0
    if not 0 < rows < n:
        raise InputError(f"{what} must be a share in (0, 1) or a number of rows below {n:,}; got {share}.")
    return rows


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value


def _note(temperature: float | str, n_tuning: int) -> str:
    if temperature == "split":
        return f"Temperature fitted on {n_tuning:,} separate rows."
    if temperature == "holdout":
        return "Temperature fitted on the calibration rows, as in the paper: outside the exact guarantee."
    return f"Temperature {temperature:g}."
