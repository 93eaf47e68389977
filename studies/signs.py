"""What the findings say in general, as one figure each: a network of your own shows whether the sign is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evicp import kernels
from evicp.evaluation.compare import Comparison
from evicp.method.scores import APS, ECP, LAC, RAPS
from evicp.paper.trials import EVIDENTIAL, LEAST, Network, run_trials
from evidence_parts import without
from study import Finding, Logits, auroc, compared, log_probabilities_accepted, paired, published
from unknown_input import SIGNS, half_unknown

HEAD = (
    "network",
    "classes",
    "size: ECP against LAC",
    "size: ECP against RAPS",
    "size: ECP against APS",
    "size: stabilizer 0 against 1e-8",
    "SSCV: without evidence less with it",
    "SAT: ECP less LAC, T = 1",
    "SAT: ECP less LAC, T fitted",
    "SAT: scaled ECP less LAC, T = 1",
    "SAT: ECP less RAPS",
    "SAT: ECP less APS",
    "empty sets on unknown classes: ECP less LAC",
    "u: errors",
    "u: unknown classes",
    "largest logit: unknown classes",
)


def signs(networks: Sequence[Logits]) -> Finding:
    """Differences of ECP from other scores, and what u tells; a network in each row."""
    rows = tuple((data.name, str(data.logits.shape[1]), *_of(data)) for data in networks)
    title = "General sentences, network by network: means over 50 splits, 100 for T fitted (standard error); AUROC"
    return Finding("signs", title, HEAD, rows)


def _of(data: Logits) -> Iterator[str]:
    scores = {
        "ecp": published(),
        "lac": LAC(),
        "zero": ECP(stabilizer=0),
        "without": without("evidence"),
        "scaled": ECP(stabilizer="scaled"),
        "raps": RAPS(),
        "aps": APS(),
    }
    comparison = compared(data, list(scores.values()), trials=50)
    name = dict(zip(scores, comparison.evaluations, strict=True))
    for other in ("lac", "raps", "aps"):
        yield _change(comparison, name["ecp"], name[other], "mean_size")
    yield _change(comparison, name["zero"], name["ecp"], "mean_size")
    yield _less(comparison, name["without"], name["ecp"], "sscv")
    yield _less(comparison, name["ecp"], name["lac"], "sat")
    yield _fitted(data)
    yield _less(comparison, name["scaled"], name["lac"], "sat")
    for other in ("raps", "aps"):
        yield _less(comparison, name["ecp"], name[other], "sat")
    half = half_unknown(data)
    empty = [float(np.mean(half.sizes(score)[1] == 0)) for score in (published(), LAC())]
    yield f"{empty[0] - empty[1]:+.3f}"
    z = np.asarray(data.logits, np.float64)
    wrong = kernels.label_ranks(z, data.labels) > 1
    yield f"{auroc(SIGNS['u'](z), wrong):.3f}" if data.raw else "-"
    for sign in ("u", "largest logit, negated"):
        value = auroc(SIGNS[sign](half.z)[half.shown], half.strange)
        yield f"{value:.3f}" if data.raw or sign != "u" else "-"


def _change(comparison: Comparison, first: str, second: str, metric: str) -> str:
    """By how much a mean is larger, in per cent."""
    return f"{comparison.mean(first, metric) / comparison.mean(second, metric) - 1:+.1%}"


def _less(comparison: Comparison, first: str, second: str, metric: str) -> str:
    mean, error, _ = paired(comparison, first, second, metric)
    return f"{mean:+.3f} ({error:.3f})"


def _fitted(data: Logits) -> str:
    """SAT of ECP less that of LAS in the paper's clean protocol."""
    with log_probabilities_accepted():
        found = run_trials(Network(data.name, "val", data.logits, data.labels), "clean", trials=100)
    sat = [np.array([outcome.evaluation.sat for outcome in found[m, 0.9]], float) for m in (EVIDENTIAL, LEAST)]
    difference = sat[0] - sat[1]
    return f"{difference.mean():+.3f} ({difference.std(ddof=1) / len(difference) ** 0.5:.3f})"
