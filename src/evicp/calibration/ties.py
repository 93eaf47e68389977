"""Scores that tie at the threshold: sets take in all labels of that score, and cover more than the target."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from evicp import kernels
from evicp.errors import SuspiciousInputWarning
from evicp.input.warn import warn
from evicp.method.scores import Score
from evicp.types import F64, I64

#: Sets are (nearly) full where the calibration rows that are missed are fewer than this share of those that may be ...
_FEW = 0.1

#: ... and that is worth a warning where ties let in more than this share of them, over all groups.
_MOST = 0.5


def is_tied(ascending: F64, k: int) -> bool:
    """Whether the k-th calibration score is not the only one of its value: the Beta law then is a bound."""
    if not 1 <= k <= len(ascending):
        return False
    first, after = (np.searchsorted(ascending, ascending[k - 1], side) for side in ("left", "right"))
    return bool(after - first > 1)


#: A score is next to another within this share of it, or of 1: more than text of six digits is off by, and less than
#: the probabilities of a forest of a thousand trees lie apart. Judged by so many rows of a call, and where so many
#: calibration scores tie, or one in a hundred.
_NEAR, _ROWS, _PILE = 1e-4, 256, 5


class Ties(NamedTuple):
    """Calibration scores, `tied` of `n`, that tie at the threshold of sets that miss hardly any calibration row.

    `wanted` is the coverage to be expected if ties were broken, `covered` that of sets with all tied labels.
    """

    tied: int
    n: int
    wanted: float
    covered: float

    @property
    def matter(self) -> bool:
        """Whether sets cover so much more than the target that it is worth a warning."""
        return self.covered - self.wanted > _MOST * (1 - self.wanted)


def found_ties(scores: F64, counts: I64, ranks: I64) -> Ties:
    """The ties that make sets (nearly) full, in groups; in a single one, where all scores have the same threshold.

    A threshold of +inf is none: its rows are impossible, not alike. Nor is one that is the best score of several: the
    sets of a sure and accurate model could only be smaller by being empty.

    Parameters
    ----------
    scores : (n,) group after group, each ascending
    counts, ranks : (G,) the rows of each group, and the rank of its threshold among them
    """
    starts = np.cumsum(counts) - counts
    last = np.minimum(starts + ranks, len(scores)) - 1  # the place of the threshold
    after = scores[np.minimum(last + 1, len(scores) - 1)]
    at_risk = (ranks < counts) & (after == scores[last]) & (after < np.inf)
    tied = beyond = 0
    for start, n, k in zip(*(part[at_risk].tolist() for part in (starts, counts, ranks)), strict=True):
        own = scores[start : start + n]
        first, end = (int(np.searchsorted(own, own[k - 1], side)) for side in ("left", "right"))
        if first > 0 and n - end < _FEW * (n + 1 - k):
            tied, beyond = tied + end - first, beyond + end - k
    rows = len(scores) + len(counts)
    wanted = float(np.minimum(ranks, counts + 1).sum()) / rows
    return Ties(tied, len(scores), wanted, wanted + beyond / rows)


def found_weighted_ties(scores: F64, weights: F64, threshold: float, coverage: Fraction) -> Ties:
    """The same at the threshold of a new row of average weight; what that, or a single heavy row, adds is no tie."""
    wanted, relative = float(coverage), weights / weights.max()
    tied, total = scores == threshold, relative.sum() + relative.mean()
    above = float(relative[scores > threshold].sum() / total)
    if not scores[0] < threshold < np.inf or above >= _FEW * (1 - wanted):
        return Ties(0, len(scores), wanted, wanted)
    covered = float((relative[scores <= threshold].sum() - relative[tied].max()) / total)
    return Ties(int(tied.sum()), len(scores), wanted, max(wanted, covered))


def caution_of_ties(ties: Ties, coverage: Fraction, *, can_smooth: bool) -> SuspiciousInputWarning | None:
    """Says that sets are (nearly) full because scores tie at the threshold, and what to do; None if they are not."""
    if not ties.matter:
        return None
    smooth = (
        "Pass smoothed=True, which breaks ties at random and reaches the target on average, or use"
        if can_smooth
        else "Use"
    )
    return SuspiciousInputWarning(
        f"{ties.tied:,} of {ties.n:,} calibration scores tie at the threshold, which includes all labels with that "
        f"score: sets are (nearly) full, and cover about {ties.covered:.3f} instead of {float(coverage):g}. {smooth} a "
        "model with more distinct scores (a forest instead of one tree), or LAC instead of ECP."
    )


def warn_of_near_ties(score: Score, scores: F64, threshold: float, logits: Any) -> None:
    """Warn of labels of new rows that score next to calibration scores that tie at the threshold, but do not tie.

    Where scores are those of a few different rows, such labels are among them, but were rounded differently.

    Parameters
    ----------
    score : of the new rows
    scores, threshold : of the calibration, ascending, and the k-th of them; +inf where there is none
    logits : of the new rows
    """
    if not np.isfinite(threshold) or score.adds_up or score.name == "margin":
        return  # equal sums and differences of probabilities can differ by rounding
    beyond = threshold + _NEAR * max(1.0, abs(threshold))
    first, after = (int(np.searchsorted(scores, threshold, side)) for side in ("left", "right"))
    if after - first < max(_PILE, len(scores) // 100) or np.searchsorted(scores, beyond, "right") > after:
        return
    if np.count_nonzero(scores[1:] != scores[:-1]) > len(scores) // 4:  # of many different rows some lie close
        return
    inside, near = (kernels.ragged_labels(score, logits[:_ROWS], x)[1].size for x in (threshold, beyond))
    if near > inside:
        warn(
            f"{after - first:,} of {len(scores):,} calibration scores tie at the threshold, and labels of new rows "
            "have almost the same score: these rows were rounded differently (probabilities in single precision, "
            "numbers as text), and sets may cover less than the target. Round calibration rows and new rows in the "
            "same way.",
            SuspiciousInputWarning,
        )
