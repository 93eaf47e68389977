"""Certificates: the guarantee of one calibration at one coverage, as numbers and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from evicp.calibration.laws import words_of
from evicp.calibration.levels import level_of, require_law
from evicp.calibration.promises import GroupPromise, Promise, Target, weakest
from evicp.calibration.reliability import Reliability, verdict_line
from evicp.calibration.source import RowSource
from evicp.calibration.suspicious import warn_of
from evicp.errors import InputError, InputTypeError
from evicp.input.messages import some_of
from evicp.outer import outer
from evicp.tables import markdown_table
from evicp.types import Coverage

if TYPE_CHECKING:
    from evicp.calibration.calibration import Calibration
    from evicp.evaluation.exchangeability import ExchangeabilityCheck
    from evicp.evaluation.result import Evaluation

__all__ = [
    "Certificate",
    "GroupPromise",
    "caveat",
    "score_line",
    "weakest",
]


_GAMMA = "Theorem 2: belief mass of coverage, not a statistical confidence"


@dataclass(frozen=True, repr=False)
class Certificate:
    """The guarantee of one calibration at one coverage, and the figures it was computed from.

    `gamma` is the paper's belief mass of coverage (Theorem 2); it equals the expected coverage minus 1 / (n + 1) and is
    not a statistical confidence. `coverage_interval` is a confidence interval.

    With groups, each has its guarantee in `groups`, and the figures here (rank, threshold, gamma, expected coverage,
    interval) are those of the group with the fewest rows that has a threshold. With weights, the threshold is that of
    a new row of average weight, and the other figures are an approximation by an equivalent number of equally weighted
    rows. With `pac`, coverage is at least the target with this confidence. If calibration scores are `tied` at the
    threshold, expected coverage and interval are lower bounds.

    Attributes
    ----------
    coverage : the target
    n : calibration rows
    rank : k, of the threshold among the calibration scores
    threshold : the k-th smallest calibration score; +inf with too few rows
    gamma : (n - l) / (n + 1), l = n + 1 - k (Theorem 2)
    uncertainty : U_C = 2 / (n + 1) (Theorem 2)
    expected_coverage : k / (n + 1), over calibration sets
    coverage_interval : the interval of coverage over calibration sets, at `confidence` (the Beta law)
    confidence : of the interval, and of the verdict on the observed coverage (an approximation with weights)
    score : the name of the score
    parameters : those of the score, as JSON values
    n_classes : K
    checksum : SHA-256 of the saved calibration, as `sha256sum` gives it of the file
    version : of evicp
    date : of the certificate
    observed : the result of an evaluation and its verdict; None without one
    by : "class", "group" or "uncertainty" where there are groups, else None
    groups : the guarantee of each group
    effective_n : the effective number of rows, with weights
    pac : the confidence of training-conditional sets
    chosen_on : the number of other rows that "auto" selected the score on
    tied : whether other calibration scores equal the threshold
    folds : the number of folds, if other models than the one that predicts scored the rows
    source : where the calibration rows come from, as `RowSource.to_dict` has it; None if unknown
    check : the result of `check_exchangeable` on new rows as a dict; None without one
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
    source: dict[str, str] | None = None
    check: dict[str, Any] | None = None

    @property
    def target_coverage(self) -> float:
        """The target coverage, the same as `coverage`."""
        return self.coverage

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
            law += "; scores tie at the threshold, so coverage can be higher"
        full = self.threshold == np.inf and self.effective_n is None  # where there are weights, lighter rows are not
        place = f"{self.threshold:.6g} (score {self.rank:,} of {n:,} in ascending order)"
        if full:
            place = f"none: {n:,} rows are too few, and every set is full"
        if self.effective_n is not None:
            found = f"{self.threshold:.6g}" if self.threshold < np.inf else "none: its set is full"
            place = f"{found} (for a new row of average weight)"
        lines = [
            ("target coverage", f"{self.coverage:g}{words_of(self.guarantee).where}{sure}"),
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
        if self.source is not None:
            lines.append(("rows from", str(RowSource.from_dict(self.source))))
        if self.chosen_on is not None:
            lines.append(("score chosen on", f"{self.chosen_on:,} other rows, which are not calibration rows"))
        if self.observed is not None:
            lines.append(("observed coverage", verdict_line(self.observed)))
        if self.check is not None:
            lines.append(("new rows", self.check["summary"]))
        return [*lines, ("SHA-256 of file", self.checksum), ("made by", f"evicp {self.version}, {self.date}")]

    def _group_lines(self) -> list[tuple[str, str]]:
        """What stands between n and the threshold, where there are groups or weights."""
        if self.effective_n is not None:
            equal = round(2 / self.uncertainty - 1)
            return [
                ("effective rows", f"{self.effective_n:.1f}"),
                ("as uncertain as", f"{equal:,} equally weighted rows, used for the figures below"),
            ]
        if not self.groups:
            return []
        smallest = weakest(self.groups)
        own = (
            "a row's threshold depends on all its groups" if self.by == "overlapping" else "each with its own threshold"
        )
        full = [group.name for group in self.groups if group.threshold == np.inf]
        lines = [("groups", f"{len(self.groups):,}, {own}")]
        if full:
            lines.append(("without threshold", f"{len(full):,}, too few rows: {some_of(full)}"))
        return [
            *lines,
            ("smallest group", f"{smallest.name}, {smallest.n:,} rows: the figures below are for this group"),
        ]

    @property
    def caveat(self) -> str:
        """The assumptions of the certificate, and what it does not cover."""
        return caveat(self.guarantee, self.folds)

    @property
    def guarantee(self) -> str:
        """The kind of guarantee, as `Calibration.guarantee`."""
        return "weighted" if self.effective_n is not None else self.by or "marginal"

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

    def to_markdown(self) -> str:
        """The certificate as a Markdown table, for model cards and pull requests."""
        table = markdown_table(["coverage certificate", ""], [list(line) for line in self._lines()])
        return f"{table}\n\n{self.caveat}"


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


def caveat(guarantee: str, folds: int | None = None) -> str:
    """On what a guarantee rests, and what it does not say.

    >>> caveat("class")[:55]
    'Holds in every class or cluster if its calibration rows'
    """
    if folds is None:
        return words_of(guarantee).caveat
    return (
        f"The rows were scored in {folds:,} folds, by models other than the one that predicts, so nothing is exact "
        f"here. {words_of(guarantee).caveat}"
    )


# ---------------------------------------------------------------------------------------------------------------
# Of a calibration


def certify(
    calibration: Calibration,
    coverage: Coverage,
    evaluation: Evaluation | None,
    *,
    confidence: float,
    pac: float | None,
    date: str | None,
    check: ExchangeabilityCheck | None,
) -> Certificate:
    """The certificate of a calibration; see `Calibration.certificate`."""
    whole = Reliability(calibration.n, coverage, pac)
    if pac is not None or evaluation is not None:
        require_law(calibration, "a guarantee with confidence, or a verdict on the observed coverage,")
    _check_same(calibration, whole, evaluation)
    level = level_of(calibration, whole.coverage, whole.confidence)
    warn_of(*level.cautions)
    target = Target(whole.coverage, whole.confidence, confidence, evaluation, level.values, calibration.n_classes)
    promise = calibration.law.promise(calibration.scores, target)
    certificate = _certificate(calibration, promise, target, date)
    return certificate if check is None else replace(certificate, check=_quoted(check, certificate.checksum))


def _quoted(check: ExchangeabilityCheck, checksum: str) -> dict[str, Any]:
    """What a check of new rows found, if it was one of this calibration."""
    if not isinstance(check, outer("ExchangeabilityCheck")):
        raise InputTypeError(f"check must be what evicp.check_exchangeable returns; got a {type(check).__name__}.")
    if check.checksum != checksum:
        raise InputError("the check must be of this calibration; it is of another one. Check again.")
    return check.to_dict()


def _certificate(calibration: Calibration, promise: Promise, target: Target, date: str | None) -> Certificate:
    from evicp import __version__

    law = promise.law
    return Certificate(
        coverage=float(law.coverage),
        n=calibration.n,
        rank=law.k,
        threshold=promise.threshold,
        gamma=law.gamma,
        uncertainty=law.uncertainty,
        expected_coverage=law.expected_coverage,
        coverage_interval=law.interval(target.confidence),
        confidence=target.confidence,
        score=calibration.score.name,
        parameters=calibration.score.plain_parameters(),
        n_classes=calibration.n_classes,
        checksum=outer("checksum")(calibration),
        version=__version__,
        date=date or datetime.now(UTC).strftime("%Y-%m-%d"),
        observed=promise.observed,
        by=None if calibration.guarantee in ("marginal", "weighted") else calibration.guarantee,
        groups=promise.groups,
        effective_n=promise.effective_n,
        pac=law.confidence,
        chosen_on=calibration.chosen_on,
        folds=calibration.folds,
        source=None if calibration.source is None else calibration.source.to_dict(),
        tied=promise.tied,
    )


def _check_same(calibration: Calibration, law: Reliability, evaluation: Evaluation | None) -> None:
    """An evaluation says something about the guarantee only if it is of sets made by it."""
    if evaluation is None:
        return
    if not isinstance(evaluation, outer("Evaluation")):
        raise InputTypeError(f"evaluation must be what evicp.evaluate returns; got a {type(evaluation).__name__}.")
    if evaluation.target != law.coverage or evaluation.n_calibration != calibration.n:
        raise InputError(
            f"the evaluation must be of sets of this calibration at coverage {float(law.coverage):g}; "
            f"got coverage {float(evaluation.target):g}, n = {evaluation.n_calibration}."
        )
    if (evaluation.score, evaluation.guarantee) != (calibration.score.name, calibration.guarantee):
        raise InputError(
            f"the evaluation must be of sets of this calibration ({calibration.score.name}, {calibration.guarantee}); "
            f"got sets of {evaluation.score}, {evaluation.guarantee}."
        )
    if evaluation.target_confidence != law.confidence:
        raise InputError(
            f"the evaluation must be of sets predicted with confidence={law.confidence}; "
            f"got confidence={evaluation.target_confidence}."
        )
