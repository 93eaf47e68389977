"""What the released code does beyond the leaks of the protocol "as released"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evicp.method import evidence
from evicp.method.scores import Custom, Score
from evicp.paper.trials import (
    BENCHMARK_RAPS,
    EVIDENTIAL,
    LEAKS_ONLY,
    LEAST,
    PLAIN_APS,
    TO_THE_LETTER,
    Network,
    Released,
    released_temperature,
    run_trials,
)
from evicp.types import F64, I64
from study import METRIC_HEAD, Finding, Logits, metric_rows, published

_TRIALS = 10

_VARIANTS = {
    "rank k, T most likely": LEAKS_ONLY,
    "rank k + 1": Released(rank_offset=1),
    "T by gradient descent": Released(sgd=True),
    "both, as in the code": TO_THE_LETTER,
}


def released_protocol(networks: Sequence[Logits]) -> Finding:
    """The rank k + 1 and the temperature by gradient descent: the same splits for all, by the protocol's own seed."""
    rows = []
    for data in networks:
        network = Network(data.name, "val", data.logits, data.labels)
        for title, released in _VARIANTS.items() if data.raw else ():
            trials = run_trials(network, "as released", trials=_TRIALS, released=released)
            temperature = np.mean([released_temperature(network, trial, 0, released) for trial in range(_TRIALS)])
            cells = []
            for method in (EVIDENTIAL, LEAST, PLAIN_APS, BENCHMARK_RAPS):
                found = [outcome.evaluation for outcome in trials[method, 0.9]]
                coverage, size, sat = (
                    np.mean([getattr(e, m) for e in found]) for m in ("coverage", "mean_size", "sat")
                )
                cells.append(f"{coverage:.4f} / {size:.3f} / {sat:.3f}")
            rows.append((data.name, title, f"{temperature:.3f}", *cells))
    return Finding(
        "released",
        f"As released, coverage / size / SAT: coverage 0.9 asked, means over {_TRIALS} trials",
        ("network", "variant", "mean T", "ECP", "LAS", "APS", "RAPS (0.1)"),
        tuple(rows),
    )


def _ranks_by_sort(p: F64) -> I64:
    """Ranks as the released code has them: equal labels in the order of a sort."""
    return np.argsort(np.argsort(p, axis=1)[:, ::-1], axis=1)


def _ecp_with_ranks_by_sort(z: F64) -> F64:
    alpha = evidence.dirichlet(evidence.activate("relu", z))
    ranks = _ranks_by_sort(evidence.probability(alpha))
    cost = evidence.log_cost(evidence.surprisal(alpha), evidence.log_utility(z), ranks, 1e-8)
    return evidence.log_score(cost, z > -np.inf)


def _flat_exponential(z: F64) -> F64:
    return np.exp(np.clip(z / 10, -10, 10))


def released_score(networks: Sequence[Logits]) -> Finding:
    """The released code's exponential evidence and its ties, at T = 1."""
    scores: dict[str, Score] = {
        "ECP": published(),
        "ECP, ties in the order of a sort": Custom(_ecp_with_ranks_by_sort),
        "ECP, exp(clip(z, -10, 10))": published(evidence="exp"),
        "ECP, exp(clip(z / 10, -10, 10))": published(evidence=_flat_exponential),
    }
    rows = [row for data in networks if data.raw for row in metric_rows(data, scores, trials=20)]
    return Finding(
        "released_score",
        "The released code's ties and exponential evidence: coverage 0.9, means over 20 splits",
        ("network", "score", *METRIC_HEAD),
        tuple(rows),
    )
