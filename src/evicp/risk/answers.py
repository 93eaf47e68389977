"""The evaluation of answers on rows with known labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from evicp.evaluation.metrics import clopper_pearson
from evicp.input import validate
from evicp.input.messages import some_of
from evicp.report.rule import Section

__all__ = ["SelectiveEvaluation"]


class GroupAnswers(NamedTuple):
    """The answers in a group, how many of them are wrong, and the interval of that share."""

    name: str
    answered: int
    wrong: int
    interval: tuple[float, float]


def _interval(wrong: int, answered: int, confidence: float) -> tuple[float, float]:
    return clopper_pearson(wrong, answered, confidence) if answered else (0.0, 1.0)


@dataclass(frozen=True, repr=False)
class SelectiveEvaluation:
    """The evaluation of answers on rows with known labels.

    Attributes
    ----------
    n : rows
    answered, wrong : the number of answered rows, and of wrong answers
    error : the allowed error
    confidence : of the intervals, and of the verdict
    observed : the share of answers that are wrong; None without answers
    interval : of the error of answers (Clopper-Pearson)
    share, share_interval : the share of answered rows and its interval
    kept : whether the observed error agrees with the allowed error: its interval is not above it, nor that of any group
    groups : for a rule by class or by group: answers, wrong answers and the interval of their share in each, wider so
        that all hold together
    """

    n: int
    answered: int
    wrong: int
    error: float
    confidence: float
    observed: float | None
    interval: tuple[float, float]
    share: float
    share_interval: tuple[float, float]
    kept: bool
    groups: tuple[GroupAnswers, ...] = ()

    @classmethod
    def of(
        cls,
        n: int,
        answered: int,
        wrong: int,
        error: Fraction,
        confidence: float,
        by_name: Mapping[str, tuple[int, int]] | None = None,
    ) -> SelectiveEvaluation:
        """From counts; `by_name` has the answers and the wrong ones of each group."""
        sure = validate.as_probability(confidence, "confidence")
        n = validate.as_count(n, "the number of labelled rows")
        interval = _interval(wrong, answered, sure)
        observed = wrong / answered if answered else None
        shares = answered / n, clopper_pearson(answered, n, sure)
        counts = {} if by_name is None else by_name
        wider = 1 - (1 - sure) / max(1, len(counts))
        groups = tuple(
            GroupAnswers(name, some, bad, _interval(bad, some, wider)) for name, (some, bad) in counts.items()
        )
        kept = all(low <= error for low, _ in (interval, *(group.interval for group in groups)))
        return cls(n, answered, wrong, float(error), sure, observed, interval, *shares, kept, groups)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        groups = [{**group._asdict(), "interval": list(group.interval)} for group in self.groups]
        intervals = {"interval": list(self.interval), "share_interval": list(self.share_interval)}
        return {**self.__dict__, **intervals, "groups": groups}

    @property
    def sections(self) -> tuple[Section, ...]:
        """What a page shows of the groups."""
        if not self.groups:
            return ()
        worst = sorted(self.groups, key=lambda group: -group.interval[0])[:100]
        rows = [[g.name, f"{g.answered:,}", f"{g.wrong:,}", *(f"{end:.4f}" for end in g.interval)] for g in worst]
        head = ["group", "answers", "wrong", "error from", "to"]
        return (Section("In each group", "The groups with the largest errors come first.", table=(head, rows)),)

    def __str__(self) -> str:
        low, high = self.interval
        verdict = "agrees with" if self.kept else "is MORE than"
        over = [group.name for group in self.groups if group.interval[0] > self.error]
        verdict = f"is MORE, in {some_of(over)}, than" if over else verdict
        shown = "no answer" if self.observed is None else f"{self.wrong:,} of {self.answered:,} answers wrong"
        return (
            f"{shown} [{low:.4f}, {high:.4f}], which {verdict} {self.error:g}; "
            f"answered {self.share:.4f} of {self.n:,} rows"
        )

    __repr__ = __str__
