"""What evidence, uncertainty, utility and base rates do to ECP's sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from evicp import kernels
from evicp.calibration.calibrator import calibrate
from evicp.method import evidence
from evicp.method.scores import LAC, Custom, Score
from evicp.types import F64, Bools
from study import METRIC_HEAD, Finding, Logits, auroc, compared, metric_rows, published, rank_correlation


def uncertainty(networks: Sequence[Logits]) -> Finding:
    """Does u matter? The factor cancels; what is left of it is measured by moving all logits of a row."""
    rows = []
    for data in networks:
        if not data.raw:
            continue
        z = np.asarray(data.logits, np.float64)
        with_u, without_u = _cost_scores(z[:200], keep_u=True), _cost_scores(z[:200], keep_u=False)
        rows.append((data.name, "largest change of ln S if u is dropped", f"{np.abs(with_u - without_u).max():.1e}"))
        u = evidence.opinion(z).uncertainty
        wrong = kernels.label_ranks(z, data.labels) > 1
        doubt = -np.exp(evidence.log_utility(z)).max(1)
        sizes = calibrate(z, data.labels).predict(z, 0.9).sizes
        rows += [
            (data.name, "AUROC of u for a wrong top label", f"{auroc(u, wrong):.3f}"),
            (data.name, "AUROC of 1 - largest softmax for the same", f"{auroc(doubt, wrong):.3f}"),
            (data.name, "rank correlation of u with ECP's set size", f"{rank_correlation(u, sizes):.3f}"),
            (data.name, "rank correlation of 1 - largest softmax with it", f"{rank_correlation(doubt, sizes):.3f}"),
        ]
        for shift in (-5.0, -2.0, 0.0, 2.0, 5.0, 20.0):
            moved = Logits(data.name, z + shift, data.labels)
            comparison = compared(moved, [published(), LAC()], trials=50)
            u_mean = evidence.opinion(z + shift).uncertainty.mean()
            figures_ = ", ".join(
                f"{name.upper()} {comparison.mean(name, 'mean_size'):.3f} / {comparison.mean(name, 'sat'):.3f}"
                for name in ("ecp", "lac")
            )
            rows.append((data.name, f"all logits {shift:+g} (mean u {u_mean:.3f}): size / SAT", figures_))
    return Finding("uncertainty", "How much u matters", ("network", "what", "figure"), tuple(rows))


def _cost_scores(z: F64, *, keep_u: bool) -> F64:
    """ln S with the factor u of Eq. 10 written out, or left out."""
    e = evidence.activate("relu", z)
    alpha = evidence.dirichlet(e)
    cost = evidence.log_cost(
        evidence.surprisal(alpha),
        evidence.log_utility(z),
        evidence.evidential_ranks(e, z),
        1e-8,
        u=evidence.uncertainty(alpha) if keep_u else 1.0,
    )
    return evidence.log_score(cost, z > -np.inf)


def _part_left_out(z: F64, part: str) -> F64:
    """ln S of ECP with one part of Eq. 10 and 11 left out."""
    e = np.zeros_like(z) if part == "evidence" else evidence.activate("relu", z)
    surprisal = evidence.surprisal(evidence.dirichlet(e))
    log_phi = np.zeros_like(z) if part == "utility" else evidence.log_utility(z)
    ranks = np.zeros(z.shape, np.int64) if part == "rank" else evidence.evidential_ranks(e, z)
    denominator = log_phi - 2.0 * surprisal + np.log((z.shape[1] - ranks) / z.shape[1])
    numerator = np.zeros_like(z) if part == "surprisal" else np.log(surprisal)
    cost = numerator - np.logaddexp(denominator, np.log(1e-8))
    return cost if part == "normalisation" else cost - cost.max(1, keepdims=True)


def without(part: str) -> Score:
    """ECP with one part left out."""
    function = partial(_part_left_out, part=part)
    function.__name__ = f"without_{part}"  # type: ignore[attr-defined]
    return Custom(function)


def parts(networks: Sequence[Logits]) -> Finding:
    """ECP with one of its parts left out."""
    scores: dict[str, Score] = {"ECP": published()}
    for part in ("evidence", "surprisal", "utility", "rank", "normalisation"):
        scores[f"without {part}"] = without(part)
    rows = [row for data in networks if data.raw for row in metric_rows(data, scores, trials=50)]
    return Finding(
        "parts",
        "ECP with one part left out: coverage 0.9, means over 50 splits",
        ("network", "score", *METRIC_HEAD),
        tuple(rows),
    )


def evidence_functions(networks: Sequence[Logits]) -> Finding:
    """Relu, softplus, exp."""
    scores: dict[str, Score] = {f"ECP, {name}": published(evidence=name) for name in evidence.EVIDENCE}
    rows = [row for data in networks for row in metric_rows(data, scores)]
    return Finding(
        "evidence",
        "Evidence functions: coverage 0.9, means over 100 splits",
        ("network", "score", *METRIC_HEAD),
        tuple(rows),
    )


def utilities(networks: Sequence[Logits]) -> Finding:
    """Other utilities than the softmax (the paper's insight 4)."""

    def softmax(z: F64, power: float) -> F64:
        return np.exp(power * evidence.log_utility(z))

    def dirichlet_mean(z: F64) -> F64:
        return evidence.probability(evidence.dirichlet(evidence.activate("relu", z)))

    def ones(z: F64) -> F64:
        return np.ones_like(z)

    def top_five(z: F64) -> F64:
        return np.where(evidence.ranks(z) < 5, np.exp(evidence.log_utility(z)), 1e-12)

    scores: dict[str, Score] = {
        "softmax": published(),
        "square root of softmax": published(utility=partial(softmax, power=0.5)),
        "softmax squared": published(utility=partial(softmax, power=2.0)),
        "Dirichlet mean p": published(utility=dirichlet_mean),
        "softmax of the top five, 1e-12 below": published(utility=top_five),
        "constant": published(utility=ones),
    }
    rows = []
    for data in networks:
        for title, score in scores.items() if data.raw else ():
            rows += list(metric_rows(data, {title: score}, trials=50))
    return Finding(
        "utility",
        "Utility functions: coverage 0.9, means over 50 splits",
        ("network", "utility", *METRIC_HEAD),
        tuple(rows),
    )


def base_rates(networks: Sequence[Logits]) -> Finding:
    """Can a class's base rate raise its coverage (the paper's insight 3)?"""
    rows = []
    for whole in networks:
        n_classes = whole.logits.shape[1]
        naming, measured = np.split(np.random.default_rng(0).permutation(len(whole.labels)), [len(whole.labels) // 2])
        target = _worst_classes(replace(whole, logits=whole.logits[naming], labels=whole.labels[naming]), share=0.1)
        data = replace(whole, logits=whole.logits[measured], labels=whole.labels[measured])
        for factor in (0.1, 0.25, 1.0, 4.0, 10.0):
            rates = np.ones(n_classes)
            rates[target] = factor
            score = published(base_rates=tuple((rates / rates.sum()).tolist()))
            comparison = compared(data, [score], trials=20)
            evaluations = next(iter(comparison.evaluations.values()))
            classes = [e.class_coverage for e in evaluations]
            counts = np.sum([c.counts for c in classes], axis=0)
            hits = np.sum([np.nan_to_num(c.coverage) * c.counts for c in classes], axis=0)
            rest = ~target
            rows.append(
                (
                    data.name,
                    f"{factor:g}",
                    f"{hits[target].sum() / counts[target].sum():.3f}",
                    f"{hits[rest].sum() / counts[rest].sum():.3f}",
                    f"{hits.sum() / counts.sum():.3f}",
                    f"{np.mean([e.mean_size for e in evaluations]):.3f}",
                )
            )
    head = ("network", "rate x", "coverage of these", "of the others", "of all", "size")
    title = (
        "Base rates of a tenth of the classes multiplied, those recognised least on half of the rows; ECP on the other "
        "half, coverage 0.9, 20 splits"
    )
    return Finding("base_rates", title, head, tuple(rows))


def _worst_classes(data: Logits, share: float) -> Bools:
    """The classes with the least top-1 accuracy; at least one."""
    n_classes = data.logits.shape[1]
    right = kernels.label_ranks(data.logits, data.labels) == 1
    counts = np.bincount(data.labels, minlength=n_classes)
    accuracy = np.bincount(data.labels, weights=right, minlength=n_classes) / np.maximum(counts, 1)
    accuracy[counts == 0] = np.inf
    worst = np.argsort(accuracy, kind="stable")[: max(1, round(share * n_classes))]
    return np.isin(np.arange(n_classes), worst)
