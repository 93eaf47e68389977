"""Groups with a threshold of their own: classes, groups given for each row, bands of evidential uncertainty.

Each way to group is a frozen dataclass of parameters. What is not given (clusters, band edges, group names) is learned
by `fit`, which returns the same dataclass with everything given: that one is kept, saved and used on new rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration import limits
from evicp.calibration.laws.clusters import cluster_classes
from evicp.calibration.ranks import rows_needed, threshold_rank
from evicp.errors import InputError, InputTypeError, SmallCalibrationWarning, SuspiciousInputWarning
from evicp.input import convert, validate
from evicp.input.classes import in_class_order
from evicp.input.messages import some_of
from evicp.input.warn import warn
from evicp.method.scores import Score
from evicp.types import F64, I64

__all__ = ["ByClass", "ByGroup", "ByUncertainty"]


#: Without a number of clusters, one for about this many rows (coverage in a cluster then spreads by about 0.02), and
#: not more than the square root of the number of rare classes.
_ROWS_PER_CLUSTER = 200

#: Values of u that differ by more than this share of themselves are no rounding of one value.
_APART = 1e-5

#: Thresholds of this many coverages are kept at hand.
_REMEMBERED = 64


class Fitted(NamedTuple):
    """A grouping with nothing left to learn, the calibration rows it left untouched, and their groups."""

    groups: Groups
    rows: I64
    of_row: I64


@dataclass(frozen=True)
class ByClass:
    """A threshold per class (Mondrian): the coverage asked for holds in every class.

    Parameters
    ----------
    rare : "full" or "cluster"
        What becomes of classes with few calibration rows. "full": where a class has too few for the coverage asked
        for, its label is in every set. "cluster": classes with fewer than about `rare_below` rows are pooled with
        others of similar scores and share a threshold; the coverage then holds in each cluster.
    clusters : a number, or K cluster numbers
        How many clusters to look for (by default one for about 200 rows, at most the square root of the number of
        rare classes); or the cluster of each class, given.
    rare_below : the rows below which a class is rare, judged by its share of the rows set aside
    share : of the rows, set aside to tell which classes are rare and to find their clusters; those of rare classes are
        used for nothing else
    seed : which rows are set aside, and where the clustering starts
    """

    rare: Literal["full", "cluster"] = "full"
    clusters: int | Sequence[int] | None = None
    rare_below: int = 20
    share: float = 0.3
    seed: int = 0

    kind: ClassVar[str] = "class"

    def __post_init__(self) -> None:
        if self.rare not in ("full", "cluster"):
            raise InputError(f'rare must be "full" or "cluster"; got {self.rare!r}.')
        object.__setattr__(self, "rare_below", validate.as_count(self.rare_below, "rare_below"))
        object.__setattr__(self, "seed", validate.as_count(self.seed, "seed", at_least=0))
        object.__setattr__(self, "share", validate.as_probability(self.share, "share"))
        if self.clusters is None or isinstance(self.clusters, int | np.integer):
            if self.clusters is not None:
                object.__setattr__(self, "clusters", validate.as_count(self.clusters, "clusters"))
                if self.rare != "cluster":
                    raise InputError('a number of clusters is only looked for with rare="cluster".')
            return
        numbers = np.asarray(in_class_order(self.clusters, "clusters"))
        if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iu" or numbers.min() < 0:
            raise InputError("clusters must be a number, or one cluster number >= 0 per class.")
        # Numbers without gaps: an unused one would be a group no label belongs to.
        object.__setattr__(self, "clusters", tuple(np.unique(numbers, return_inverse=True)[1].tolist()))

    def keys(self, score: Score, logits: NDArray[Any], labels: I64, given: Any) -> NDArray[Any]:  # noqa: ARG002
        """What `fit` needs of each calibration row, (n,): its label."""
        _none_expected(given, self.kind)
        return labels

    def fit(self, scores: F64, keys: NDArray[Any], n_classes: int) -> Fitted:
        """Find clusters where they are wanted, on rows that are then left out, and group the other rows."""
        rows, fitted = np.arange(len(scores)), self
        if not self.fitted:
            # Rows that are calibrated must not tell which classes are rare: a class would be pooled just when few of
            # its rows were drawn, and its cluster calibrated without them. Within a class this does not matter.
            aside = _set_aside(len(scores), self.share, self.seed)
            rare = np.bincount(keys[aside], minlength=n_classes) < self.share * self.rare_below
            aside = aside[rare[keys[aside]]]
            rows = np.delete(rows, aside)
            if not len(rows):
                raise InputError(
                    f"clusters are found on rows set aside, here all {len(scores)}. Calibrate on more rows, or set a "
                    f"smaller share of them aside than {self.share:g}."
                )
            most = min(int(rare[keys[rows]].sum()) // _ROWS_PER_CLUSTER, isqrt(int(rare.sum())))
            wanted = self.clusters if isinstance(self.clusters, int) else max(1, most)
            clusters = cluster_classes(scores[aside], keys[aside], rare, wanted, self.seed)
            fitted = replace(self, clusters=tuple(clusters.tolist()))
        return Fitted(fitted, rows, fitted.of_labels(n_classes)[keys[rows]])

    @property
    def fitted(self) -> bool:
        """Whether nothing is left to learn."""
        return self.rare == "full" or isinstance(self.clusters, tuple)

    def of_labels(self, n_classes: int) -> I64:
        """The group of each label, (K,)."""
        if not isinstance(self.clusters, tuple):
            return np.arange(n_classes)
        if len(self.clusters) != n_classes:
            raise InputError(f"clusters must have one number per class; got {len(self.clusters)} for {n_classes}.")
        return np.array(self.clusters)

    def count(self, n_classes: int) -> int:
        """How many groups there are, once nothing is left to learn."""
        return int(self.of_labels(n_classes).max()) + 1 if isinstance(self.clusters, tuple) else n_classes

    def names(self, n_classes: int, class_names: tuple[str, ...] | None) -> list[str]:
        """A name for each group: its class, or how many classes it pools."""
        of_labels = self.of_labels(n_classes).tolist()
        sizes = np.bincount(of_labels).tolist()
        names = [f"cluster {number} ({size} classes)" for number, size in enumerate(sizes)]
        for label, group in enumerate(of_labels):
            if sizes[group] == 1:
                names[group] = class_names[label] if class_names else f"class {label}"
        return names

    def numbers(self, score: Score, logits: NDArray[Any], given: Any) -> I64:  # noqa: ARG002
        """The group of each label of each new row, broadcastable to (m, K)."""
        _none_expected(given, self.kind)
        return self.of_labels(logits.shape[1])[None, :]


@dataclass(frozen=True)
class ByGroup:
    """A threshold per group, where each row's group is given, at calibration and at prediction.

    Parameters
    ----------
    groups : the groups, whole numbers or strings; those seen in calibration if not given
    """

    groups: tuple[int, ...] | tuple[str, ...] | None = None

    kind: ClassVar[str] = "group"

    def __post_init__(self) -> None:
        if self.groups is not None:
            object.__setattr__(self, "groups", _distinct(self.groups))
            if not self.groups:
                raise InputError("groups must be one or more; got none. Leave them out: those seen are taken.")

    def keys(self, score: Score, logits: NDArray[Any], labels: I64, given: Any) -> NDArray[Any]:  # noqa: ARG002
        """What `fit` needs of each calibration row, (n,): the group given for it."""
        if given is None:
            raise InputError('by="group" needs the group of each row: pass groups=.')
        return validate.as_groups(given, len(logits))

    def fit(self, scores: F64, keys: NDArray[Any], n_classes: int) -> Fitted:  # noqa: ARG002
        """The groups are those seen."""
        fitted = self if self.fitted else ByGroup(tuple(np.unique(keys).tolist()))
        return Fitted(fitted, np.arange(len(scores)), fitted._find(keys))

    @property
    def fitted(self) -> bool:
        """Whether nothing is left to learn."""
        return self.groups is not None

    def _find(self, wanted: NDArray[Any]) -> I64:
        """The number of each row's group; a group that was not calibrated has no threshold, and is an error."""
        groups: Sequence[Any] = self.groups or ()
        if not wanted.size:
            return np.empty(0, np.int64)
        if isinstance(groups[0], str) != (wanted.dtype.kind == "U"):
            raise InputTypeError(f"groups must be {_word(groups[0])}, as in the calibration; got {_word(wanted[0])}.")
        # In an array every name is as wide as the longest: those longer than any that is looked for are left out.
        width = wanted.dtype.itemsize // 4 if wanted.dtype.kind == "U" else 0
        places = [place for place, group in enumerate(groups) if not width or len(group) <= width]
        known = np.array([groups[place] for place in places], wanted.dtype)
        found = np.searchsorted(known, wanted)
        unseen = np.flatnonzero(np.append(known, known[:1])[found] != wanted) if len(known) else np.arange(len(wanted))
        if unseen.size:
            row = int(unseen[0])
            raise InputError(
                f"groups must be among those of the calibration ({some_of(groups)}); got "
                f"{wanted[row]!s} at row {row}. Calibrate with rows of this group."
            )
        return np.array(places, np.int64)[found]

    def count(self, n_classes: int) -> int:  # noqa: ARG002
        """How many groups there are, once nothing is left to learn."""
        return len(self.groups or ())

    def names(self, n_classes: int, class_names: tuple[str, ...] | None) -> list[str]:  # noqa: ARG002
        """A name for each group."""
        return [str(name) for name in self.groups or ()]

    def numbers(self, score: Score, logits: NDArray[Any], given: Any) -> I64:
        """The group of each new row, (m, 1)."""
        return self._find(self.keys(score, logits, np.empty(0, np.int64), given))[:, None]


@dataclass(frozen=True)
class ByUncertainty:
    """A threshold per band of the evidential uncertainty u = K / alpha_0 (Eq. 3).

    The factor u of the paper's cost is common to all labels and cancels in its score. Here it decides the threshold:
    the coverage asked for holds among rows the network knows little about as well as among the others.

    Parameters
    ----------
    bands : how many (five by default), or their inner edges, ascending in (0, 1]
        Edges that are not given lie near quantiles of u over the rows set aside, so that bands are about equally
        full, and between values of u that rounding cannot mistake for one another.
    share : of the calibration rows, set aside to find the edges and used for nothing else
    seed : which rows are set aside
    """

    bands: int | Sequence[float] = 5
    share: float = 0.1
    seed: int = 0

    kind: ClassVar[str] = "uncertainty"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", validate.as_count(self.seed, "seed", at_least=0))
        object.__setattr__(self, "share", validate.as_probability(self.share, "share"))
        if isinstance(self.bands, int | np.integer):
            object.__setattr__(self, "bands", validate.as_count(self.bands, "bands"))
            return
        edges = np.asarray(self.bands, dtype=np.float64)
        if edges.ndim != 1 or not np.all((edges > 0) & (edges <= 1)) or np.any(np.diff(edges) <= 0):
            raise InputError(f"bands must be a number, or ascending edges in (0, 1]; got {self.bands!r}.")
        object.__setattr__(self, "bands", tuple(edges.tolist()))

    def keys(self, score: Score, logits: NDArray[Any], labels: I64, given: Any) -> NDArray[Any]:  # noqa: ARG002
        """What `fit` needs of each calibration row, (n,): its uncertainty."""
        _none_expected(given, self.kind)
        return kernels.uncertainties(score, logits)

    def fit(self, scores: F64, keys: NDArray[Any], n_classes: int) -> Fitted:  # noqa: ARG002
        """Find the edges of the bands, on rows that are then left out, and group the other rows."""
        rows, fitted = np.arange(len(scores)), self
        if isinstance(self.bands, int):
            aside = _set_aside(len(scores), self.share, self.seed)
            rows = np.delete(rows, aside)
            if len(aside) < self.bands or not len(rows):
                raise InputError(
                    f"{self.bands} bands of uncertainty need at least as many rows set aside; {self.share:g} of "
                    f"{len(scores)} rows are {len(aside)}. Calibrate on more rows, or give the edges."
                )
            fitted = replace(self, bands=tuple(_edges(keys[aside], self.bands).tolist()))
            _warn_of_few_bands(len(fitted.edges) + 1, self.bands, keys[aside])
        return Fitted(fitted, rows, fitted._find(keys[rows]))

    @property
    def fitted(self) -> bool:
        """Whether nothing is left to learn."""
        return isinstance(self.bands, tuple)

    @property
    def edges(self) -> F64:
        """The inner edges of the bands, once found or given."""
        return np.array(self.bands, dtype=np.float64)

    def _find(self, u: F64) -> I64:
        return np.searchsorted(self.edges, u, side="left")

    def count(self, n_classes: int) -> int:  # noqa: ARG002
        """How many groups there are, once nothing is left to learn."""
        return len(self.edges) + 1

    def names(self, n_classes: int, class_names: tuple[str, ...] | None) -> list[str]:  # noqa: ARG002
        """A name for each band: its range of u."""
        edges = _told_apart(self.edges)
        if not edges:
            return ["any u"]
        middle = [f"{low} < u <= {high}" for low, high in pairwise(edges)]
        return [f"u <= {edges[0]}", *middle, f"u > {edges[-1]}"]

    def numbers(self, score: Score, logits: NDArray[Any], given: Any) -> I64:
        """The band of each new row, (m, 1)."""
        _none_expected(given, self.kind)
        return self._find(kernels.uncertainties(score, logits))[:, None]


Groups = ByClass | ByGroup | ByUncertainty

#: What `by=` may name.
GROUPS: Mapping[str, type[ByClass] | type[ByGroup] | type[ByUncertainty]] = MappingProxyType(
    {"class": ByClass, "group": ByGroup, "uncertainty": ByUncertainty}
)


def as_groups(by: Any) -> Groups | None:
    """A way to group from its name or an instance; None for one threshold for all.

    >>> as_groups("uncertainty")
    ByUncertainty(bands=5, share=0.1, seed=0)
    """
    if by is None or isinstance(by, Groups):
        return by
    if isinstance(by, type) and by in GROUPS.values():
        return as_groups(by())
    if not isinstance(by, str):
        raise InputTypeError(f"by must be a name, ByClass(...), ByGroup(...) or ByUncertainty(...); got {by!r}.")
    if by not in GROUPS:
        raise InputError(f"by must be one of {', '.join(GROUPS)}, or one group per row; got {by!r}.")
    return GROUPS[by]()


def _none_expected(given: Any, kind: str) -> None:
    if given is not None:
        raise InputError(f'groups are only taken by a calibration by="group"; this one is by="{kind}".')


def _word(name: Any) -> str:
    return "strings" if isinstance(name, str) else "whole numbers"


def _distinct(groups: Any) -> tuple[Any, ...]:
    """Groups as given, each once, in their order; names stay out of arrays, where one long name makes all as long."""
    if isinstance(groups, list | tuple) and groups and all(isinstance(name, str) for name in groups):
        validate.as_printable(groups, "groups")
        return tuple(sorted({str(name) for name in groups}))
    return tuple(np.unique(validate.as_groups(groups)).tolist())


def _edges(u: F64, bands: int) -> F64:
    """Edges of about equally full bands, midway between values of u that lie clearly apart.

    Many rows can share one u (rows of no evidence all have u = 1, logits may be rounded): an edge on it would let
    rounding say on which side they are.
    """
    ascending = np.sort(u)
    low, high = ascending[:-1], ascending[1:]
    at_most = 1 + np.flatnonzero(high - low > _APART * high)  # how many values lie below each edge that may be taken
    if not at_most.size:
        return np.empty(0)
    wanted = np.arange(1, bands) * len(u) / bands
    after = np.minimum(np.searchsorted(at_most, wanted), len(at_most) - 1)
    above, below = at_most[after], at_most[np.maximum(after - 1, 0)]
    taken = np.unique(np.where(np.abs(below - wanted) < np.abs(above - wanted), below, above))
    middles: F64 = (ascending[taken - 1] + ascending[taken]) / 2
    return middles


def _warn_of_few_bands(found: int, wanted: int, u: F64) -> None:
    """Fewer bands than were asked for: many rows share one uncertainty."""
    if found == wanted:
        return
    without = float(np.mean(u >= 1 - _APART))
    reason = f"; {without:.0%} have u = 1, no evidence at all (log-probabilities?)" if without > 0.5 else ""
    warn(
        f"{found} band(s) of uncertainty instead of {wanted}: among the {len(u):,} rows set aside there are not more "
        f"values of u that lie apart{reason}. Pass raw logits; if there are none, take ECP(evidence='softplus'), or "
        "groups of another kind.",
        SuspiciousInputWarning,
    )


def _told_apart(edges: F64) -> list[str]:
    """Edges as text, of as many digits as it takes to tell them from each other and from 1; four at least."""
    for digits in range(4, 18):
        texts = [f"{edge:.{digits}g}" for edge in edges]
        if len({*texts, "1"}) == len({*edges.tolist(), 1.0}):
            break
    return texts


def _set_aside(n: int, share: float, seed: int) -> I64:
    """A share of n rows to learn from.

    The choice is made by position, never by score: rows chosen by the order of their scores would leave the others
    no longer exchangeable with new ones.
    """
    chosen = np.zeros(n, np.bool_)
    chosen[np.random.default_rng(seed).permutation(n)[: round(share * n)]] = True
    return np.flatnonzero(chosen)


# ---------------------------------------------------------------------------------------------------------------
# Calibration scores, divided


@dataclass(frozen=True, eq=False)
class Partition:
    """How calibration scores are divided into groups: they lie group after group, each ascending.

    Parameters
    ----------
    by : a fitted way to group
    names : (G,) a name for each group
    counts : (G,) calibration rows in each group
    """

    by: Groups
    names: tuple[str, ...]
    counts: I64
    _thresholds: dict[tuple[Fraction, float | None], F64] = field(init=False, default_factory=dict, repr=False)
    _ranked: list[tuple[F64, I64]] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", convert.frozen(self.counts))

    __setstate__ = convert.restore_frozen

    def part(self, scores: F64, group: int) -> F64:
        """The ascending scores of one group."""
        start = int(self.counts[:group].sum())
        return scores[start : start + int(self.counts[group])]

    def extended(self, ascending: F64, scores: F64, keys: NDArray[Any], n_classes: int) -> tuple[F64, Partition]:
        """The calibration scores with those of more rows, each in its group, and where they lie.

        The way to group is fitted: it learns nothing from the new rows, and keeps all of them.
        """
        new = self.by.fit(scores, keys, n_classes).of_row
        everyone = np.concatenate([ascending, scores])
        of_row = np.concatenate([np.repeat(np.arange(len(self.counts)), self.counts), new])
        counts = self.counts + np.bincount(new, minlength=len(self.counts))
        return everyone[np.lexsort((everyone, of_row))], replace(self, counts=counts)

    def thresholds(self, scores: F64, coverage: Fraction, confidence: float | None) -> F64:
        """The threshold of each group, (G,); +inf, with a warning, where a group has too few rows."""
        key = coverage, confidence
        found = self._thresholds.get(key)
        if found is None:
            if len(self._thresholds) >= _REMEMBERED:  # a level that moves asks for another one each time
                self._thresholds.clear()
            found = self._thresholds[key] = group_thresholds(scores, self.counts, coverage, confidence)
        short = np.flatnonzero(self.counts < rows_needed(coverage, confidence))
        if short.size:
            self._warn_short(short, coverage, confidence)
        full = np.setdiff1d(np.flatnonzero(np.isposinf(found)), short)
        if full.size:
            named = some_of(full.tolist(), self.names.__getitem__)
            parts = np.concatenate([self.part(scores, group) for group in full.tolist()])
            limits.warn_of_masked(parts, coverage, f"the threshold of {named} is infinite: {self._outcome}")
        return found

    @property
    def _outcome(self) -> str:
        """What comes of a threshold of +inf."""
        return "their labels are in every set" if self.by.kind == "class" else "their sets are full"

    def _warn_short(self, short: I64, coverage: Fraction, confidence: float | None) -> None:
        named = some_of(short.tolist(), lambda group: f"{self.names[group]} ({self.counts[group]})")
        sure = "" if confidence is None else f" with confidence {confidence:g}"
        warn(
            f"{len(short)} of {len(self.counts)} groups have fewer than the {rows_needed(coverage, confidence)} "
            f"calibration rows that coverage {float(coverage):g}{sure} needs: {named}; {self._outcome}.",
            SmallCalibrationWarning,
        )

    def at_least(self, ascending: F64, scores: F64, numbers: I64) -> tuple[I64, I64]:
        """#{s_i >= s} of new scores, and n_g, among the scores of their groups `numbers`."""
        counts = self.counts[numbers]
        return counts - self._below(ascending, scores, numbers, "left"), counts

    def smoothed_p_values(self, ascending: F64, scores: F64, numbers: I64, steps: I64) -> F64:
        """(#{s_i > s} + u (1 + #{s_i = s})) / (n_g + 1), likewise."""
        counts = self.counts[numbers]
        below, up_to = (self._below(ascending, scores, numbers, side) for side in ("left", "right"))
        return limits.smoothed_p_values(counts - up_to, up_to - below, counts, steps)

    def _below(self, ascending: F64, scores: F64, numbers: I64, side: Literal["left", "right"]) -> I64:
        """How many scores of its group are below each new score ("left"), or not above it ("right").

        Scores are replaced by their ranks among all, so that one search in (group, rank) serves every group.
        """
        width = len(ascending) + 1
        if not self._ranked:
            everyone = np.sort(ascending)
            of_each = np.repeat(np.arange(len(self.counts)), self.counts)
            self._ranked.append((everyone, of_each * width + np.searchsorted(everyone, ascending)))
        everyone, known = self._ranked[0]
        below = np.searchsorted(known, numbers * width + np.searchsorted(everyone, scores, side))
        return below - (np.cumsum(self.counts) - self.counts)[numbers]

    def smoothed_limit(self, ascending: F64, coverage: Fraction, numbers: I64, steps: I64) -> F64:
        """The threshold of each row, (m,), among the scores of its group."""
        result = np.empty(len(numbers))
        for group in np.unique(numbers).tolist():
            rows = numbers == group
            result[rows] = limits.smoothed_limit(self.part(ascending, group), coverage, steps[rows])
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        return (self.by, self.names) == (other.by, other.names) and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]


def divide(by: Groups, scores: F64, keys: NDArray[Any], n_classes: int, names: Any) -> tuple[F64, Partition]:
    """Fit a way to group to calibration rows; the scores group after group, each ascending, and where they lie."""
    fitted = by.fit(scores, keys, n_classes)
    group_names = tuple(fitted.groups.names(n_classes, names))
    order = np.argsort(scores[fitted.rows])
    # By group, within it by score: small whole numbers are sorted in linear time, large ones are not.
    kind = np.uint16 if len(group_names) < 2**16 else np.int64
    order = order[np.argsort(fitted.of_row[order].astype(kind), kind="stable")]
    counts = np.bincount(fitted.of_row, minlength=len(group_names))
    return scores[fitted.rows][order], Partition(fitted.groups, group_names, counts)


def group_thresholds(scores: F64, counts: I64, coverage: Fraction, confidence: float | None) -> F64:
    """The k-th smallest score of each group, k from its own row count; +inf where there is none."""
    sizes, which = np.unique(counts, return_inverse=True)
    k = np.array([threshold_rank(n, coverage, confidence) for n in sizes.tolist()])[which]
    position = np.cumsum(counts) - counts + k - 1
    thresholds: F64 = np.where(k <= counts, np.append(scores, np.inf)[np.minimum(position, len(scores))], np.inf)
    return convert.frozen(thresholds)
