"""What the rules of `evicp.risk` ask, observe and answer on real logits.

    python benchmarks/risk_on_real_logits.py *.npz --splits 50 --what answers

Each file holds `logits` and `labels`. Rows are split in halves many times: one calibrates, the other tests. The
hierarchy is that of neighbouring labels, tens and hundreds; every tenth class costs ten times as much as the others.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import evicp
from evicp.io.logits import read_logits
from evicp.tables import markdown_table


def losses(n_classes: int) -> dict[str, dict]:
    """Each kind of loss, with the risk that is asked."""
    costs = np.where(np.arange(n_classes) % 10 == 0, 1.0, 0.1)
    tree = evicp.hierarchy_costs([[f"h{i // 100}", f"t{i // 10}"] for i in range(n_classes)])
    found = {
        "miss": {"risk": 0.05},
        "miss, confidence 0.9": {"risk": 0.05, "confidence": 0.9},
        "costs 1 and 0.1": {"risk": 0.01, "class_costs": costs},
        "costs 1 and 0.1, confidence 0.9": {"risk": 0.01, "class_costs": costs, "confidence": 0.9},
    }
    if n_classes >= 100:
        found["distance in a hierarchy"] = {"risk": 0.05, "loss": tree}
        found["distance in a hierarchy, confidence 0.9"] = {"risk": 0.05, "loss": tree, "confidence": 0.9}
    return found


def risk_lines(logits: np.ndarray, labels: np.ndarray, splits: int) -> list[list[str]]:
    """Risk control: what was asked, the mean loss of test rows over splits, and the mean size."""
    half, lines = len(labels) // 2, []
    for name, how in losses(logits.shape[1]).items():
        found = []
        for split in range(splits):
            order = np.random.default_rng(split).permutation(len(labels))
            used, new = order[:half], order[half:]
            control = evicp.control_risk(logits[used], labels[used], score="lac", **how)
            result = control.evaluate(logits[new], labels[new])
            found.append((result.mean_loss, result.mean_size))
        loss, size = np.mean(found, 0)
        exceeded = np.mean([one[0] > how["risk"] for one in found])
        lines.append([name, f"{how['risk']:g}", f"{loss:.4f}", f"{exceeded:.2f}", f"{size:.2f}"])
    return lines


def answers(logits: np.ndarray, labels: np.ndarray, splits: int) -> list[list[str]]:
    """Answer or abstain: the error asked, that of answers to test rows, the share answered, and how often refused."""
    half, lines = len(labels) // 2, []
    for error, most, doubt in ((0.02, 1, "softmax"), (0.05, 1, "softmax"), (0.05, 1, "margin"), (0.05, 3, "softmax")):
        found, refused = [], 0
        for split in range(splits):
            order = np.random.default_rng(split).permutation(len(labels))
            used, new = order[:half], order[half:]
            try:
                rule = evicp.selective(logits[used], labels[used], error=error, most=most, doubt=doubt)
            except evicp.EvicpError:
                refused += 1
                continue
            result = rule.evaluate(logits[new], labels[new])
            found.append((result.observed, result.share))
        seen = [f"{x:.4f}" for x in np.mean(found, 0)] if found else ["-", "-"]
        exceeded = f"{np.mean([one[0] > error for one in found]):.2f}" if found else "-"
        lines.append([doubt, str(most), f"{error:g}", seen[0], exceeded, seen[1], f"{refused / splits:.2f}"])
    return lines


def several(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds of classes and of groups of neighbouring ones, and the labels of each row as a matrix."""
    n_classes = logits.shape[1]
    parts = {1000: (10, 100), 100: (10,)}.get(n_classes, (2,))
    z = logits.astype(float)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p = np.hstack([p, *(p[:, :n_classes].reshape(len(p), -1, part).sum(2) for part in parts)]).clip(1e-12, 1 - 1e-12)
    columns, start = [labels.astype(int)], n_classes
    for part in parts:
        columns.append(start + labels.astype(int) // part)
        start += n_classes // part
    truth = np.zeros(p.shape, bool)
    np.put_along_axis(truth, np.column_stack(columns), True, 1)
    return np.log(p / (1 - p)), truth


def label_lines(logits: np.ndarray, labels: np.ndarray, splits: int) -> list[list[str]]:
    """Several labels: the share asked and missed, precision, size; and of sure labels, where they were asked for."""
    z, truth = several(logits, labels)
    half, lines = len(z) // 2, []
    asked = (
        {"missed": 0.1},
        {"missed": 0.1, "confidence": 0.9},
        {"missed": 0.1, "confidence": 0.9, "precision": 0.8},
    )
    for how in asked:
        found = []
        for split in range(splits):
            order = np.random.default_rng(split).permutation(len(z))
            rule = evicp.multilabel(z[order[:half]], truth[order[:half]], **how)
            one = rule.evaluate(z[order[half:]], truth[order[half:]])
            sure = (np.nan, np.nan) if one.sure_precision is None else (one.sure_precision, one.sure_recall)
            found.append((one.missed.mean_loss, one.missed.mean_loss > 0.1, one.precision, one.mean_size, *sure))
        digits = zip(np.mean(found, 0), (4, 2, 3, 2, 3, 3), strict=True)
        means = ["-" if np.isnan(x) else f"{x:.{places}f}" for x, places in digits]
        confidence = f"{how['confidence']:g}" if "confidence" in how else "-"
        lines.append(["0.1", confidence, f"{how['precision']:g}" if "precision" in how else "-", *means])
    return lines


HEADS = {
    "labels": [
        *("logits", "missed, asked", "confidence", "precision, asked", "missed", "test halves above it", "precision"),
        *("size", "precision of sure labels", "their recall"),
    ],
    "risk": ["logits", "loss", "risk asked", "mean loss", "test halves above it", "size"],
    "answers": ["logits", "doubt", "labels", "error asked", "error", "test halves above it", "answered", "refused"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument("--what", choices=HEADS, default="risk")
    options = parser.parse_args()
    lines = {"risk": risk_lines, "answers": answers, "labels": label_lines}[options.what]
    table = []
    for path in options.files:
        rows = read_logits(path)
        logits, labels = rows.logits, rows.labels
        table += [[Path(path).stem, *line] for line in lines(logits, labels, options.splits)]
    print(markdown_table(HEADS[options.what], table))


if __name__ == "__main__":
    main()
