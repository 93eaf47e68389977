"""The report's data as JSON: small values as they are, arrays compressed."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import __version__
from evicp.calibration.calibration import Calibration
from evicp.calibration.certificate import caveat, score_line
from evicp.calibration.ranks import conformal_rank
from evicp.calibration.reliability import Reliability, verdict_line
from evicp.calibration.ties import is_tied
from evicp.evaluation.result import Evaluation, GroupCoverage
from evicp.evaluation.strata import SIZE_ENDS, Ranges, intervals
from evicp.io import artifact
from evicp.report.curves import GRID, Curves, Method
from evicp.report.explorer import Explored
from evicp.types import F64, I64

Json = dict[str, Any]

#: How the page names the types of arrays.
_TYPES = {"float64": "f64", "float32": "f32", "uint8": "u8", "uint16": "u16", "uint32": "u32"}


def pack(array: NDArray[Any]) -> Json:
    """An array for the page: type, shape and base64 of its compressed little-endian bytes.

    >>> pack(np.array([1, 2, 300]))["type"], pack(np.array([0.5]))["shape"]
    ('u16', [1])
    """
    if array.dtype.kind in "iub":
        largest = int(array.max(initial=0))
        array = array.astype(np.uint8 if largest < 2**8 else np.uint16 if largest < 2**16 else np.uint32)
    data = zlib.compress(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes(), 9)
    return {"type": _TYPES[array.dtype.name], "shape": list(array.shape), "data": base64.b64encode(data).decode()}


def _packed(arrays: Mapping[str, Any]) -> Json:
    """Arrays for the page, by their names."""
    return {name: _packed(value) if isinstance(value, Mapping) else pack(value) for name, value in arrays.items()}


@cache
def planned_rows() -> I64:
    """`plan(coverage, 0.01)` for the slider's coverages, computed in advance: all of it takes a second."""
    return np.array(json.loads((files("evicp.report") / "rows_needed.json").read_text())["rows"])


@dataclass(frozen=True)
class Promise:
    """What a law is asked about at each coverage: n calibration rows, of a group where thresholds differ by group."""

    n: tuple[int, ...]
    group: tuple[str, ...] | None = None
    pac: float | None = None
    at_least: tuple[bool, ...] | None = None  # where scores tie at the threshold, or sets were filled: a bound

    @classmethod
    def of(cls, curve: Curves) -> Promise | None:
        """The guarantee of a method; of its weakest groups, where it has groups; None where nothing is guaranteed."""
        if not isinstance(curve.method, Calibration) or curve.method.folds is not None:
            return None
        groups = curve.method.groups
        if groups is None:
            ranks = (conformal_rank(curve.method.n, coverage) for coverage in GRID)
            tied = tuple(is_tied(curve.method.scores, k) for k in ranks)
            return cls((curve.method.n,) * len(GRID), at_least=tied)
        weakest = weakest_groups(curve.limits.thresholds, groups.counts)
        return cls(
            tuple(np.maximum(1, groups.counts[weakest]).tolist()), tuple(groups.names[group] for group in weakest)
        )

    def law(self, m: int, grid: Sequence[Fraction], confidence: float) -> Json:
        """Rank and Beta interval at each coverage, and where the coverage observed on all m rows should lie."""
        laws = [Reliability(n, coverage, self.pac) for n, coverage in zip(self.n, grid, strict=True)]
        interval = np.array([r.interval(confidence) for r in laws])
        result = {
            "n": pack(np.array(self.n)),
            "group": None if self.group is None else list(self.group),
            "rank": pack(np.array([r.k for r in laws])),
            "low": pack(interval[:, 0]),
            "high": pack(interval[:, 1]),
            "observed_low": None,
            "observed_high": None,
        }
        if self.group is None:
            observed = np.array([r.observed_interval(m, confidence) for r in laws])
            observed[:, 1][np.array(self.at_least or False)] = 1.0
            result.update(observed_low=pack(observed[:, 0]), observed_high=pack(observed[:, 1]))
        return result


def weakest_groups(thresholds: F64, counts: I64) -> I64:
    """`reliability.weakest` at each of P coverages: of the groups with a threshold the one with the fewest rows.

    Parameters
    ----------
    thresholds : (P, G)
    counts : (G,) calibration rows

    >>> weakest_groups(np.array([[1.0, 2.0], [np.inf, 3.0]]), np.array([5, 50]))
    array([0, 1])
    """
    last = counts.max() + 1
    return np.where(thresholds == np.inf, counts + last, counts).argmin(1)


def _shares(hits: I64, counts: I64, confidence: float) -> Json:
    low, high = intervals(hits, counts, confidence)
    return {"hits": pack(hits), "counts": pack(counts), "low": pack(low), "high": pack(high)}


def _sorted_by_class(first: I64, labels: I64) -> I64:
    """Entry positions, class after class, ascending within each: what the page counts covered rows from."""
    return first[np.lexsort((first, labels))]


def _class_intervals(counts: I64, confidence: float) -> Json:
    """Clopper-Pearson intervals of h hits of c, for every c that occurs; the page looks them up by (c, h)."""
    sizes = np.unique(counts[counts > 0])
    hits = np.concatenate([np.arange(c + 1) for c in sizes])
    low, high = intervals(hits, np.repeat(sizes, sizes + 1), confidence)
    starts = np.concatenate([[0], np.cumsum(sizes + 1)[:-1]])
    return {
        "sizes": sizes.tolist(),
        "starts": starts.tolist(),
        "low": pack(low.astype(np.float32)),
        "high": pack(high.astype(np.float32)),
    }


def below_by_chance(counts: I64, coverage: F64, confidence: float) -> F64:
    """The expected number of classes whose interval is below the target by chance alone; (P,) as `coverage`.

    h hits of c lie below where P(Binomial(c, coverage) <= h) is less than the interval's tail. With few rows no h does.

    >>> below_by_chance(np.array([10] * 1000 + [1] * 1000), np.array([0.9]), 0.95).round(1)
    array([12.8])
    """
    from scipy.special import bdtr, bdtrik

    tail = (1 - confidence) / 2
    sizes, classes = np.unique(counts[counts > 0], return_counts=True)
    rows = sizes[:, None].astype(np.float64)
    some = (1 - coverage) ** rows < tail  # else even none of c is not below, and there is no such h
    most = np.ceil(bdtrik(tail, rows, np.where(some, coverage, 0.5))) - 1  # the largest whole h below the real solution
    chance: F64 = np.where(some, bdtr(np.maximum(most, 0), sizes[:, None], coverage), 0.0)
    return classes.astype(np.float64) @ chance


def _classes(labels_counts: I64, names: Sequence[str] | None, grid: Sequence[Fraction], confidence: float) -> Json:
    return {
        "counts": pack(labels_counts),
        "names": None if names is None else list(names),
        "intervals": _class_intervals(labels_counts, confidence),
        "below_by_chance": pack(below_by_chance(labels_counts, np.array([float(c) for c in grid]), confidence)),
    }


def _score_facts(name: str, method: Method, law: int | None) -> Json:
    """What a certificate says of a score, beside the numbers that move; `law` is the number of its guarantee."""
    if not isinstance(method, Calibration):
        return {"name": name, "n": None, "law": None, "by": None}
    by = None if method.groups is None else method.groups.by.kind
    return {
        "name": name,
        "n": method.n,
        "law": law,
        "by": by,
        "caveat": caveat(method.guarantee, method.folds),
        "score": method.score.name,
        "described": score_line(method.score.name, method.score.plain_parameters()),
        "source": None if method.source is None else str(method.source),
        "checksum": artifact.checksum(method),
    }


def _method(curve: Curves, labels: I64, law: int | None, confidence: float) -> Json:
    counts, hits = curve.strata
    violation = curve.sscv
    m = np.full(len(GRID), len(curve.first))
    return {
        **_score_facts(curve.name, curve.method, law),
        "threshold": pack(curve.limits.thresholds[:, 0]) if curve.limits.thresholds.shape[1] == 1 else None,
        "coverage": _shares(curve.hits, m, confidence),
        "total_size": pack(curve.total_size.astype(np.float64)),
        "bins": pack(curve.bin_counts),
        "strata": _shares(hits, counts, confidence),
        "sscv": pack(violation.sscv),
        "sscv_count": pack(violation.rows),
        "sat": pack(curve.sat),
        "difficulty_hits": pack(curve.difficulty_hits),
        "difficulty_sizes": pack(curve.difficulty_sizes.astype(np.float64)),
        "first": pack(_sorted_by_class(curve.first, labels)),
    }


def of_curves(
    curves: Sequence[Curves],
    labels: I64,
    difficulty: I64,
    explored: Explored | None,
    *,
    class_names: Sequence[str] | None,
    confidence: float,
) -> Json:
    """The data of a report with a slider."""
    head, n_classes = curves[0], curves[0].n_classes
    hard = Ranges.ending(SIZE_ENDS, n_classes, 1)
    own = [Promise.of(curve) for curve in curves]
    promises = list(dict.fromkeys(promise for promise in own if promise is not None))
    laws = [None if promise is None else promises.index(promise) for promise in own]
    return {
        **_frame(GRID, len(labels), n_classes, confidence),
        "accuracy": float(np.mean(difficulty == 1)),
        "bins": head.bins.labels,
        "difficulty": {
            "labels": hard.labels,
            "counts": np.bincount(hard.find(difficulty), minlength=len(hard.highs)).tolist(),
        },
        "laws": [promise.law(len(labels), GRID, confidence) for promise in promises],
        "rows_needed": pack(planned_rows()),
        "methods": [_method(curve, labels, law, confidence) for curve, law in zip(curves, laws, strict=True)],
        "classes": _classes(np.bincount(labels, minlength=n_classes), class_names, GRID, confidence),
        "groups": None,
        "explorer": None if explored is None else _packed(vars(explored)),
    }


def _frame(grid: Sequence[Fraction], m: int, n_classes: int, confidence: float) -> Json:
    return {
        "grid": [float(c) for c in grid],
        "m": m,
        "n_classes": n_classes,
        "confidence": confidence,
        "strata": Ranges.ending(SIZE_ENDS, n_classes).labels,
        "version": __version__,
    }


def of_evaluation(evaluation: Evaluation, class_names: Sequence[str] | None) -> Json:
    """The data of a report of one evaluation: one coverage, no slider, nothing about single rows."""
    e, hard, promise = evaluation, evaluation.difficulty_strata, None
    if e.n_calibration is not None and e.guarantee == "marginal" and not e.smoothed:  # the Beta law is of plain sets
        promise = Promise((e.n_calibration,), pac=e.target_confidence, at_least=(e.law_is_bound,))
    return {
        **_frame([e.target], e.n, e.n_classes, e.confidence),
        "accuracy": e.accuracy,
        "bins": None,
        "difficulty": hard and {"labels": [s.label for s in hard], "counts": [s.count for s in hard]},
        "laws": [] if promise is None else [promise.law(e.n, [e.target], e.confidence)],
        "rows_needed": None,
        "methods": [_method_of_evaluation(e, None if promise is None else 0)],
        "classes": _classes(e.class_coverage.counts, class_names, [e.target], e.confidence),
        "groups": None if e.group_coverage is None else _groups(e.group_coverage, e.confidence),
        "explorer": None,
        "ids": None,
    }


def _groups(groups: GroupCoverage, confidence: float) -> Json:
    """Coverage and size in each group, those covered least first; groups without rows come last."""
    order = np.argsort(groups.coverage, kind="stable")
    hits, counts = groups.hits[order], groups.counts[order]
    low, high = intervals(hits, counts, confidence)
    figures = {"hits": hits, "counts": counts, "low": low, "high": high, "size": groups.mean_size[order]}
    return {"names": [groups.names[i] for i in order], **_packed(figures)}


def _method_of_evaluation(e: Evaluation, law: int | None) -> Json:
    """What `_method` has of curves, at the one coverage."""
    by = None if e.guarantee in ("weighted", "marginal") else e.guarantee
    classes, strata, hard = e.class_coverage, e.size_strata, e.difficulty_strata
    of_class = zip(classes.hits, classes.counts - classes.hits, strict=True)
    verdict = e.verdict if law is None else None  # where there is a law the page holds the coverage against it itself
    hits, counts = np.array([[s.hits for s in strata]]), np.array([[s.count for s in strata]])
    return {
        "name": e.score,
        "n": e.n_calibration,
        "law": law,
        "by": by,
        "caveat": caveat(e.guarantee),
        "verdict": verdict and {"text": verdict_line(verdict), "kept": verdict["kept"]},
        "threshold": None,
        "coverage": _shares(np.array([classes.hits.sum()]), np.array([e.n]), e.confidence),
        "total_size": pack(np.array([e.mean_size * e.n])),
        "bins": None,
        "empty": e.empty_share,
        "singletons": e.singleton_share,
        "strata": _shares(hits, counts, e.confidence),
        "sscv": pack(np.array([np.nan if e.sscv is None else e.sscv])),
        "sscv_count": pack(np.array([e.sscv_count or 0])),
        "sat": pack(np.array([np.nan if e.sat is None else e.sat])),
        "difficulty_hits": hard and pack(np.array([[s.hits for s in hard]])),
        "difficulty_sizes": hard and pack(np.array([[(s.mean_size or 0.0) * s.count for s in hard]])),
        "first": pack(np.concatenate([np.repeat([0, 1], both) for both in of_class])),
    }
