"""The rows a reader can look into: each label's ingredients, and when it enters the set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.evaluation.explain import explain
from evicp.method.scores import ECP
from evicp.report.curves import Curves, comparable
from evicp.types import F64, I64

F32 = NDArray[np.float32]

#: The fields of an Explanation that the report shows as bars.
INGREDIENTS = ("logit", "evidence", "belief", "probability", "utility")

#: Labels listed for each row: enough for the sets people read.
LISTED = 40


@dataclass(frozen=True, eq=False)
class Explored:
    """R rows with their L most plausible labels under the first score; the true label is always among them.

    Parameters
    ----------
    rows : (R,) row numbers in the test data
    truth : (R,) their true labels
    labels : (R, L)
    places : (R, L) each label's place in the order of plausibility, from 0
    ingredients : name -> (R, L)
    uncertainty : (R,)
    scores : (methods, R, L)
    entries : (methods, R, L) the grid position at which the label enters
    sizes : (methods, R, P)
    """

    rows: I64
    truth: I64
    labels: I64
    places: I64
    ingredients: dict[str, F32]
    uncertainty: F32
    scores: F32
    entries: I64
    sizes: I64


def drawn(n: int, wanted: int, seed: int = 0) -> I64:
    """The numbers of up to `wanted` of n rows, drawn at random, in their order."""
    return np.sort(np.random.default_rng(seed).permutation(n)[:wanted])


def explore(logits: NDArray[Any], labels: I64, methods: Sequence[Curves], rows: I64) -> Explored:
    """Some test rows."""
    some, truth = logits[rows], labels[rows]
    own = [comparable(curve.method, some)[1] for curve in methods]
    dense = [kernels.dense_scores(curve.limits.score, z) for curve, z in zip(methods, own, strict=True)]
    order, places = _listed(dense[0], np.asarray(some, np.float64), truth)
    explanations = [explain(row, _evidential(methods)) for row in some]
    picked = {
        name: np.array([getattr(e, name)[o] for e, o in zip(explanations, order, strict=True)], np.float32)
        for name in INGREDIENTS
    }
    scores = [np.take_along_axis(d, order, 1) for d in dense]
    return Explored(
        rows=rows,
        truth=truth,
        labels=order,
        places=places,
        ingredients=picked,
        uncertainty=np.array([e.uncertainty for e in explanations], np.float32),
        scores=np.array(scores, np.float32),
        entries=np.array([c.limits.of_labels(s, rows, order) for c, s in zip(methods, scores, strict=True)]),
        sizes=np.array([curve.limits.sizes(z, rows) for curve, z in zip(methods, own, strict=True)]),
    )


def _evidential(methods: Sequence[Curves]) -> ECP:
    """The first evidential score in the report; the default one if there is none."""
    return next((c.limits.score for c in methods if isinstance(c.limits.score, ECP)), ECP())


def _listed(scores: F64, logits: F64, truth: I64) -> tuple[I64, I64]:
    """The labels to list, best first, and their places; the true label takes the last line if it is further down."""
    order = np.lexsort((-logits, scores), axis=1)
    place_of_truth = (order == truth[:, None]).argmax(1)
    shown = order[:, :LISTED].copy()
    places = np.broadcast_to(np.arange(shown.shape[1]), shown.shape).copy()
    missing = place_of_truth >= shown.shape[1]
    shown[missing, -1], places[missing, -1] = truth[missing], place_of_truth[missing]
    return shown, places
