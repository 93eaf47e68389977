"""By class: a threshold for every class, or for clusters of rare ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.laws.clusters import cluster_classes
from evicp.calibration.laws.groups import ByGroups, Fitted, set_aside
from evicp.errors import InputError
from evicp.input import validate
from evicp.input.classes import in_class_order
from evicp.method.scores import Score
from evicp.types import F64, I64

__all__ = ["ByClass"]

#: Without a number of clusters, one for about this many rows (coverage in a cluster then spreads by about 0.02), and
#: not more than the square root of the number of rare classes.
_ROWS_PER_CLUSTER = 200


@dataclass(frozen=True)
class ByClass(ByGroups):
    """A threshold per class (Mondrian): the target coverage holds in every class.

    Parameters
    ----------
    rare : "full" or "cluster"
        How to treat classes with few calibration rows. "full": if a class has too few for the target coverage, its
        label is in every set. "cluster": classes with fewer than about `rare_below` rows are pooled with
        others of similar scores and share a threshold; the coverage then holds in each cluster.
    clusters : a number, or K cluster numbers
        The number of clusters (by default one per 200 rows, at most the square root of the number of rare classes); or
        the cluster of each class.
    rare_below : a class with fewer rows is rare, estimated from its share of the rows set aside
    share : the share of rows set aside to find rare classes and their clusters; those of rare classes are not used for
        anything else
    seed : of the rows set aside and the clustering
    """

    rare: Literal["full", "cluster"] = "full"
    clusters: int | Sequence[int] | None = None
    rare_below: int = 20
    share: float = 0.3
    seed: int = 0

    kind: ClassVar[str] = "class"
    sorts_on_device: ClassVar[bool] = True
    of_logits: ClassVar[bool] = False
    where: ClassVar[str] = " in every class or cluster"
    outcome: ClassVar[str] = "their labels are in every set"
    of_rows_alone: ClassVar[bool] = False

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
                    raise InputError('a number of clusters is only used with rare="cluster".')
            return
        numbers = np.asarray(in_class_order(self.clusters, "clusters"))
        if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iu" or numbers.min() < 0:
            raise InputError("clusters must be a number, or one cluster number >= 0 per class.")
        # Numbers without gaps: an unused one would be a group no label belongs to.
        object.__setattr__(self, "clusters", tuple(np.unique(numbers, return_inverse=True)[1].tolist()))

    def keys(self, score: Score, logits: Any, labels: I64, groups: Any, weights: Any) -> NDArray[Any]:
        """What `fit` needs of each calibration row, (n,): its label."""
        return labels

    def fit(self, scores: F64, keys: NDArray[Any], n_classes: int) -> Fitted:
        """Find clusters where they are wanted, on rows that are then left out, and group the other rows."""
        rows, fitted = np.arange(len(scores)), self
        if not self.fitted:
            # Rows that are calibrated must not tell which classes are rare: a class would be pooled just when few of
            # its rows were drawn, and its cluster calibrated without them. Within a class this does not matter.
            aside = set_aside(len(scores), self.share, self.seed)
            rare = np.bincount(keys[aside], minlength=n_classes) < self.share * self.rare_below
            aside = aside[rare[keys[aside]]]
            rows = np.delete(rows, aside)
            if not len(rows):
                raise InputError(
                    f"clusters are estimated on rows set aside, here all {len(scores)}. Calibrate on more rows, or set "
                    f"a smaller share of them aside than {self.share:g}."
                )
            most = min(int(rare[keys[rows]].sum()) // _ROWS_PER_CLUSTER, isqrt(int(rare.sum())))
            wanted = self.clusters if isinstance(self.clusters, int) else max(1, most)
            clusters = cluster_classes(np.asarray(scores)[aside], keys[aside], rare, wanted, self.seed)
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

    def numbers(self, score: Score, logits: NDArray[Any], given: Any) -> I64:
        """The group of each label of each new row, broadcastable to (m, K)."""
        return self.of_labels(logits.shape[1])[None, :]
