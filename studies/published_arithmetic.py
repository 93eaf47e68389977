"""The paper's tables against each other: what some of their figures imply about the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from evicp.method.scores import APS, RAPS
from evicp.paper.published import TABLES, Lam, figures, lookup
from study import Finding, Logits, compared, published


def arithmetic(networks: Sequence[Logits]) -> Finding:
    """What the published tables imply about each other."""
    rows = [*_implied_totals(), *_implied_sat(), *_empty_sets(networks)]
    for f in figures():
        far = f.metric == "coverage" and f.method not in ("Base", "") and not f.stratum
        if far and f.value is not None and abs(f.value - f.coverage) > 0.01:
            rows.append((f"Table {f.table}, {f.network}, {f.method}", "coverage", f"{f.value:g}", f"{f.coverage:g}"))
    head = ("where", "what", "printed", "implied")
    return Finding("arithmetic", "The paper's tables against each other", head, tuple(rows))


def _implied_totals() -> Iterator[tuple[str, ...]]:
    """Table 4's strata, added up, against Table 1."""
    strata = list(dict.fromkeys(f.stratum for f in figures() if f.table == 4))
    for method, lam in TABLES[4].methods:
        if lam in (0.01, 1.0):
            continue
        counter = method if method == "ECP" else "APS/RAPS"
        counts = np.array([_printed(4, counter, "count", None, s) for s in strata])
        for metric in ("coverage", "size"):
            values = np.array([_printed(4, method, metric, lam, s) for s in strata])
            printed = lookup(1, "ResNet152", method, metric, lam=lam)
            if printed is not None and printed.value is not None:
                implied = (values * counts).sum() / counts.sum()
                name = f"Table 4, {method}, total {metric}, against Table 1"
                yield name, metric, f"{printed.value:g}", f"{implied:.3f}"


def _printed(table: int, method: str, metric: str, lam: Lam, stratum: str) -> float:
    found = lookup(table, "ResNet152", method, metric, lam=lam, stratum=stratum)
    return found.value if found is not None and found.value is not None else float("nan")


#: Scores that are randomised, and leave some sets empty; the sets of the others hold a label in all but a few rows.
_RANDOMISED = ("APS", "RAPS")
_MOST_EMPTY = 0.07


def _implied_sat() -> Iterator[tuple[str, ...]]:
    """SAT from the printed SSCV and size, where it is off by more than 3 %, and no share of empty sets explains that.

    SAT divides by the mean size of the sets that are not empty, while the printed size counts them all.
    """
    shares = defaultdict[tuple[int, str], list[float]](list)
    for f in figures():
        if f.metric != "SAT" or f.value is None:
            continue
        sscv = lookup(f.table, f.network, f.method, "SSCV", lam=f.lam)
        size = lookup(f.table, f.network, f.method, "size", lam=f.lam)
        if sscv is None or size is None or sscv.value is None or size.value is None:
            continue
        implied = (1 - sscv.value) / size.value
        empty = 1 - f.value / implied
        if f.method in _RANDOMISED and 0 <= empty <= _MOST_EMPTY:
            shares[f.table, f.method].append(empty)
        elif abs(empty) > 0.03:
            yield f"Table {f.table}, {f.network}, {f.method}", "SAT", f"{f.value:g}", f"{implied:.3f}"
    for (table, method), found in shares.items():
        where = f"Table {table}, {method}, {len(found)} networks"
        yield where, "empty sets that SAT implies", "", f"{min(found):.1%} to {max(found):.1%}"


def _empty_sets(networks: Sequence[Logits]) -> Iterator[tuple[str, ...]]:
    """The share of sets that are empty, on the networks at hand."""
    scores = {"APS": APS(), "RAPS": RAPS(lam=0.001), "ECP": published()}
    for data in networks:
        if data.raw:
            comparison = compared(data, list(scores.values()), trials=10, temperature="holdout")
            for title, name in zip(scores, comparison.evaluations, strict=True):
                yield f"{data.name}, {title}", "empty sets, measured", "", f"{comparison.mean(name, 'empty_share'):.1%}"
