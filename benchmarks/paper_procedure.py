"""What a plain research implementation of the paper does, for comparison: dense matrices, a full sort of every row,
Python loops over rows for the sets and their evaluation. Written for this benchmark; float64 NumPy throughout."""

from __future__ import annotations

import math

import numpy as np


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


def trial(logits: np.ndarray, labels: np.ndarray, n_calibration: int, coverage: float = 0.9) -> tuple[float, float]:
    """One trial: calibrate, predict, evaluate. Returns coverage and mean size."""
    scores, orders = ecp_matrix(logits[:n_calibration])
    true_scores = [scores[i][np.where(orders[i] == labels[i])[0][0]] for i in range(n_calibration)]
    level = math.ceil((n_calibration + 1) * coverage) / n_calibration
    threshold = np.quantile(true_scores, level, method="inverted_cdf")
    scores, orders = ecp_matrix(logits[n_calibration:])
    sets = [orders[i][scores[i] <= threshold] for i in range(len(scores))]
    hits = [labels[n_calibration + i] in sets[i] for i in range(len(sets))]
    return float(np.mean(hits)), float(np.mean([len(labels_in) for labels_in in sets]))
