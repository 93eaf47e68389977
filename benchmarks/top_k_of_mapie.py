"""The labels that MAPIE's `top_k` lets in beyond the k-th, on logits without ties: what sets them apart.

    python benchmarks/top_k_of_mapie.py *.npz

Each file holds `logits` and `labels`; half of the rows calibrate, at most 1,500 each. Needs MAPIE 1.6. Prints a table.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin

import evicp
from evicp.io.logits import read_logits
from evicp.tables import markdown_table

COVERAGES = (0.8, 0.9, 0.95)


class Softmax(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose features are logits."""

    def fit(self, X: Any, y: Any) -> Softmax:
        self.classes_, self.fitted_ = np.arange(X.shape[1]), True
        return self

    def predict_proba(self, X: Any) -> Any:
        return softmax(X, axis=1)

    def predict(self, X: Any) -> Any:
        return X.argmax(1)


def lines(path: str) -> list[list[str]]:
    """A line for each coverage."""
    from mapie.classification import SplitConformalClassifier

    rows = read_logits(path)
    logits = rows.logits.astype(float)
    logits += np.random.default_rng(0).uniform(-1e-4, 1e-4, logits.shape)  # stored in half precision, they tie
    labels, n = rows.labels, min(len(logits) // 2, 1500)
    new, found = logits[n : 2 * n], []
    for coverage in COVERAGES:
        theirs = SplitConformalClassifier(
            Softmax().fit(logits, labels), coverage, conformity_score="top_k", prefit=True
        ).conformalize(logits[:n], labels[:n])
        sets = theirs.predict_set(new)[1][:, :, 0]
        own = evicp.calibrate(logits[:n], labels[:n], evicp.TopK(randomized=False)).predict(new, coverage).mask()
        k, p = int(own.sum(1).max()), softmax(new, axis=1)
        last = -np.sort(-p, axis=1)[:, k - 1]
        row, label = np.nonzero(sets & ~own)
        gap = f"{(last[row] - p[row, label]).max():.1e}" if row.size else "-"
        tied = sum(int((new[i] == new[i, j]).sum() > 1) for i, j in zip(row, label, strict=True))
        ours = int((own & ~sets).sum())
        figures = [str(k), f"{sets.sum(1).mean():.3f}", f"{row.size:,}", gap, str(tied), str(ours)]
        found.append([Path(path).stem, f"{coverage:g}", *figures])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    head = ["logits", "coverage", "k", "size there", "labels beyond", "largest distance", "tied", "labels missing"]
    print(markdown_table(head, [line for path in parser.parse_args().files for line in lines(path)]))


if __name__ == "__main__":
    main()
