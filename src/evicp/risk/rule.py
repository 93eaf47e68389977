"""What all rules share: a certificate, a page, and sets and files that say whose they are."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

from numpy.typing import ArrayLike

from evicp.errors import InputError
from evicp.report.provenance import Provenance
from evicp.report.rule import RulePage, Section
from evicp.risk.certificate import RuleCertificate
from evicp.risk.files import Stored, save_rule
from evicp.sets import PredictionSets
from evicp.types import F64

__all__ = ["Rule"]


class Rule:
    """A rule made from calibration rows, with a certificate and a report on labelled rows."""

    #: The certificate, with or without an evaluation on other rows.
    certificate: Callable[..., RuleCertificate]
    #: What was observed on labelled rows: of logits and labels, and of groups where the rule is by group.
    evaluate: Callable[..., Any]
    #: The loss of each set, (n,): of sets and labels.
    losses: Callable[..., F64]
    #: What its file holds.
    stored: Callable[[], Stored]

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write it to a safetensors file that holds no code, atomically. `load` reads it again.

        Parameters
        ----------
        path : of the file
        overwrite : whether a file that exists is replaced; it is refused otherwise
        """
        save_rule(path, self.stored(), overwrite=overwrite)

    def observed(self, sets: PredictionSets, truth: ArrayLike, groups: ArrayLike | None = None) -> F64:  # noqa: ARG002
        """What each set of a labelled row is worth; of all rows together `evaluation_of` makes an evaluation."""
        return self.losses(sets, truth)

    def report(
        self, logits: ArrayLike, truth: ArrayLike, *, groups: ArrayLike | None = None, title: str = "", **about: Any
    ) -> RulePage:
        """One HTML page: the certificate, and what was observed on rows that took no part in the rule.

        Parameters
        ----------
        logits, truth : new rows, and their true labels
        groups : of the rows, where the rule is by group
        title : the heading; that of the certificate if not given
        about : model, data_set, author, note, files, date: see `evicp.report.Provenance`
        """
        origin = Provenance(**about)
        if groups is not None and getattr(self, "by", None) != "group":
            raise InputError("groups are only taken by a rule by group.")
        evaluation = self.evaluate(logits, truth, **({} if groups is None else {"groups": groups}))
        certificate = self.certificate()
        verdict = str(evaluation).partition("\n")[0]
        return RulePage(
            title=str(title) or certificate.title,
            lead=repr(self),
            facts=certificate.facts,
            caveat=certificate.caveat,
            verdict=verdict[0].upper() + verdict[1:] + ".",
            kept=evaluation.kept,
            sections=(*self._sections(logits, truth), *evaluation.sections),
            origin=origin,
        )

    def _sections(self, logits: Any, truth: Any) -> tuple[Section, ...]:
        """Curves of labelled rows."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.certificate().to_html()
