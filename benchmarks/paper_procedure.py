"""What a plain research implementation of the paper does, for comparison: dense matrices, a full sort of every row,
Python loops over rows for the sets and their evaluation. Written for this benchmark; float64 NumPy throughout."""

from __future__ import annotations

import math

import numpy as np

SIZES = ((0, 1), (2, 3), (4, 10), (11, 100), (101, 1000))
RANKS = ((1, 1), (2, 3), (4, 6), (7, 10), (11, 100), (101, 1000))


def ecp_matrix(logits: np.ndarray, batch: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all labels ordered by probability, and that order; both n x K."""
    scores, orders = [], []
    for start in range(0, len(logits), batch):
        z = logits[start : start + batch].astype(np.float64)
        n_classes = z.shape[1]
        evidence = np.maximum(z, 0)
        alpha = evidence + 1
        strength = alpha.sum(1, keepdims=True)
        p = alpha / strength
        softmax = np.exp(z - z.max(1, keepdims=True))
        softmax /= softmax.sum(1, keepdims=True)
        order = np.argsort(-p, axis=1)
        ranked_p = np.take_along_axis(p, order, 1)
        ranked_softmax = np.take_along_axis(softmax, order, 1)
        left = (n_classes - np.arange(n_classes)) / n_classes
        cost = (n_classes / strength) / n_classes * -np.log(ranked_p) / (ranked_softmax * ranked_p**2 * left + 1e-8)
        scores.append(cost / cost.max(1, keepdims=True))
        orders.append(order)
    return np.concatenate(scores), np.concatenate(orders)


def trial(logits: np.ndarray, labels: np.ndarray, n_calibration: int, coverage: float = 0.9) -> dict[str, float]:
    """One trial: calibrate, predict, evaluate."""
    scores, orders = ecp_matrix(logits[:n_calibration])
    true_scores = [scores[i][np.where(orders[i] == labels[i])[0][0]] for i in range(n_calibration)]
    level = math.ceil((n_calibration + 1) * coverage) / n_calibration
    threshold = np.quantile(true_scores, level, method="inverted_cdf")
    scores, orders = ecp_matrix(logits[n_calibration:])
    sets = [orders[i][scores[i] <= threshold] for i in range(len(scores))]
    return evaluation(sets, orders, labels[n_calibration:])


def evaluation(sets: list[np.ndarray], orders: np.ndarray, labels: np.ndarray, coverage: float = 0.9) -> dict:
    """Coverage, size, SSCV, SAT, and coverage and size by the rank of the true label."""
    hits = np.array([labels[i] in sets[i] for i in range(len(sets))])
    sizes = np.array([len(labels_in) for labels_in in sets])
    ranks = np.array([1 + np.where(orders[i] == labels[i])[0][0] for i in range(len(sets))])
    strata = [hits[(sizes >= low) & (sizes <= high)] for low, high in SIZES]
    violation = max(abs(stratum.mean() - coverage) for stratum in strata if len(stratum))
    result = {"coverage": hits.mean(), "mean_size": sizes.mean(), "sscv": violation}
    result["sat"] = (1 - violation) / sizes[sizes > 0].mean()
    for low, high in RANKS:
        here = (ranks >= low) & (ranks <= high)
        if here.any():
            result[f"coverage at rank {low}-{high}"] = hits[here].mean()
            result[f"size at rank {low}-{high}"] = sizes[here].mean()
    return result
