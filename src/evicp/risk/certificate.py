"""Certificates of rules: the guarantee and its figures as text, JSON and HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from textwrap import fill
from typing import Any

from evicp.calibration.laws.cross import CrossCalibration
from evicp.errors import InputError, InputTypeError
from evicp.evaluation.result import Evaluation
from evicp.input import validate
from evicp.io.artifact import checksum
from evicp.io.json_text import json_text
from evicp.tables import html_table
from evicp.types import Coverage

__all__ = ["RuleCertificate"]


@dataclass(frozen=True, repr=False)
class RuleCertificate:
    """The guarantee of a rule of `evicp.risk`, or of calibrations of several folds. Prints as a table.

    Attributes
    ----------
    title : the kind of certificate
    facts : the lines of the table, by name
    caveat : its assumptions, and what it does not cover
    figures : the same as plain values, ready for JSON
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    caveat: str
    figures: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"certificate": self.title, **self.figures, "caveat": self.caveat}

    def to_json(self) -> str:
        """The certificate as JSON."""
        return json_text(self.to_dict())

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.facts)
        indent = " " * (width + 4)
        lines = [
            fill(f"  {name:<{width}}  {value}", 100, subsequent_indent=indent, break_long_words=False)
            for name, value in self.facts
        ]
        return "\n".join([self.title, *lines, fill(f"  {self.caveat}", 100, subsequent_indent="  ")])

    __repr__ = __str__

    def to_html(self) -> str:
        """The certificate as an HTML fragment."""
        table = html_table(["", ""], [list(fact) for fact in self.facts], caption=self.title, left=(1,))
        return f"{table}<p>{escape(self.caveat)}</p>"

    _repr_html_ = to_html


_OF_FOLDS = (
    "Holds on average over calibration sets if the rows of all folds and new rows are exchangeable and no row was used "
    "to select the models' settings, the score, the temperature or the coverage. It says nothing about single classes, "
    "unless the folds are by class, or about shifted data."
)


def of_folds(cross: CrossCalibration, coverage: Coverage, evaluation: Evaluation | None, *, proven: bool) -> Any:
    """The certificate of cross-calibration.

    Parameters
    ----------
    cross : the calibrations of all folds
    coverage, proven : of its sets
    evaluation : of these sets, on other rows
    """
    exact, first = validate.as_coverage(coverage), cross.folds[0]
    bound = float(exact) if validate.as_flag(proven, "proven") else cross.proven_coverage(coverage)
    by = "over all rows" if first.groups is None else f"in every {first.groups.by.kind}"
    figures: dict[str, Any] = {
        "coverage": float(exact),
        "proven_coverage": bound,
        "proven": proven,
        "n": cross.n,
        "folds": [{"n": one.n, "checksum": checksum(one)} for one in cross.folds],
        "score": first.score.name,
        "parameters": first.score.plain_parameters(),
        "n_classes": cross.n_classes,
        "observed": None,
    }
    facts = [
        ("target coverage", f"{float(exact):g} {by}"),
        (
            "proven",
            f"at least {bound:.6g}, {'by e-values of the folds' if proven else 'by twice the mean of p-values'}",
        ),
        ("calibration rows n", f"{cross.n:,} in {len(cross.folds)} folds"),
        ("score", first.score.describe()),
        ("classes", f"{cross.n_classes:,}"),
        ("SHA-256 of folds", ", ".join(one["checksum"][:12] for one in figures["folds"])),
    ]
    if evaluation is not None:
        figures["observed"], text = _seen(cross, bound, evaluation)
        facts.append(("observed coverage", text))
    return RuleCertificate("Certificate of cross-calibration", tuple(facts), _OF_FOLDS, figures)


def _seen(cross: CrossCalibration, bound: float, evaluation: Evaluation) -> tuple[dict[str, Any], str]:
    """The coverage observed, and whether it agrees with the bound, given how much calibration and test rows vary."""
    if not isinstance(evaluation, Evaluation):
        raise InputTypeError(f"evaluation must be that of sets, an Evaluation; got a {type(evaluation).__name__}.")
    if evaluation.n_classes != cross.n_classes or evaluation.score != cross.folds[0].score.name:
        raise InputError("the evaluation is of other sets: its score or its classes are not those of the folds.")
    if evaluation.n_calibration is not None:
        raise InputError("the evaluation is of sets of one calibration, not of folds.")
    spread = (bound * (1 - bound) * (1 / evaluation.n + 1 / cross.n)) ** 0.5
    kept = evaluation.coverage >= bound - 2 * spread
    low, high = evaluation.coverage_interval
    text = f"{evaluation.coverage:.4f} on {evaluation.n:,} rows [{low:.4f}, {high:.4f}], which "
    text += f"{'agrees with' if kept else 'is LESS than'} {bound:.4g}; mean size {evaluation.mean_size:.2f}"
    figures = {"coverage": evaluation.coverage, "interval": [low, high], "n": evaluation.n, "kept": kept}
    return {**figures, "mean_size": evaluation.mean_size}, text
