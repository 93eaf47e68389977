"""What is guaranteed at one coverage: of all rows, or of each group, and whether what was observed agrees."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evicp.calibration.reliability import Reliability
from evicp.types import F64

if TYPE_CHECKING:
    from evicp.evaluation.result import Evaluation


@dataclass(frozen=True)
class GroupPromise:
    """What is guaranteed in one group: a class, a cluster, a group of rows or a band of uncertainty.

    Attributes
    ----------
    name : of the group
    n : its calibration rows
    rank : k, of its threshold among them
    threshold : its k-th smallest score; +inf where it has too few rows
    expected_coverage : k / (n + 1), over calibration sets
    coverage_interval : where its coverage lies over calibration sets
    observed : what an evaluation found there: coverage, m, low, high, compatible, kept; None without one
    """

    name: str
    n: int
    rank: int
    threshold: float
    expected_coverage: float
    coverage_interval: tuple[float, float]
    observed: dict[str, Any] | None = None


def weakest(groups: tuple[GroupPromise, ...]) -> GroupPromise:
    """The group with the fewest rows among those with a threshold (among all, if none has one)."""
    return min(groups, key=lambda group: (group.threshold == np.inf, group.n))


class Target(NamedTuple):
    """What a guarantee is about."""

    coverage: Fraction
    #: The confidence of training-conditional sets; None of others.
    pac: float | None
    #: Of intervals, and of the verdict on what was observed.
    confidence: float
    #: Of sets at this coverage, on other rows.
    evaluation: Evaluation | None
    #: The thresholds, as the law lists them.
    values: F64
    n_classes: int


class Promise(NamedTuple):
    """What is guaranteed: the law of coverage of all rows, or of the group or weights that it is stated for."""

    law: Reliability
    threshold: float
    #: Other calibration scores equal the threshold.
    tied: bool
    #: What was observed, and whether that is compatible; None without an evaluation.
    observed: dict[str, Any] | None
    groups: tuple[GroupPromise, ...] = ()
    effective_n: float | None = None


def kind_of_law(evaluation: Evaluation, covers_more: bool) -> dict[str, bool]:
    """How the law of coverage is one of the sets evaluated; `covers_more` says that it is a bound for plain sets."""
    bound = evaluation.filled or (covers_more and not evaluation.smoothed)
    return {"at_least": bound, "smoothed": evaluation.smoothed}


def verdict(
    law: Reliability, evaluation: Evaluation | None, confidence: float, *, covers_more: bool
) -> dict[str, Any] | None:
    """What was observed over all rows, and whether it is compatible with a law; None without an evaluation."""
    if evaluation is None:
        return None
    kind = kind_of_law(evaluation, covers_more)
    return law.compatible(evaluation.coverage, evaluation.n, confidence, **kind).to_dict()
