"""An audit of a diagnostic classifier: does the guarantee hold for the sick as well as for the healthy? Offline.

Data: scikit-learn's breast cancer set (569 tumours, malignant or benign), which comes with the package. A marginal
calibration guarantees coverage over all patients; it may keep that guarantee by covering the benign ones more often. A
calibration by class guarantees it for each. The audit shows both on the same patients, over many random splits, prints
the certificate of one of them and writes the report an auditor would be sent.

The score is LAC: with two classes the evidential score cannot tell second labels apart (the costlier of two labels is
always the costliest, so it always scores 1).

Run it: python examples/medical_audit.py [report.html]
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import evicp
from evicp import report

COVERAGE = 0.9
SCORE = "lac"
SPLITS = 100
NAMES = ("malignant", "benign")


def split_and_fit(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Train on a quarter of the patients; logits and labels of the others, half to calibrate on and half to test."""
    patients = load_breast_cancer()
    order = np.random.default_rng(seed).permutation(len(patients.target))
    train, used, test = np.split(order, [142, 355])
    # Texture and smoothness alone: with all thirty measurements there is little left to be uncertain about.
    columns = [1, 4]
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(patients.data[train][:, columns], patients.target[train])
    margin = model.decision_function(patients.data[:, columns])
    logits = np.column_stack([-margin / 2, margin / 2])  # softmax of these is the model's probability
    return logits[used], patients.target[used], logits[test], patients.target[test]


def coverages(seed: int) -> np.ndarray:
    """Coverage of (malignant, benign) and mean size, marginal and by class, (2, 3)."""
    logits, labels, new, truth = split_and_fit(seed)
    rows = []
    for by in (None, "class"):
        result = evicp.evaluate(evicp.calibrate(logits, labels, SCORE, by=by).predict(new, COVERAGE), truth)
        rows.append([*result.class_coverage.coverage, result.mean_size])
    return np.array(rows)


def main(path: Path) -> None:
    """Compare over splits, certify one, write the report."""
    mean = np.mean([coverages(seed) for seed in range(SPLITS)], axis=0)
    print(f"mean over {SPLITS} random splits, coverage {COVERAGE} asked for\n")
    print("calibration  malignant  benign  mean size")
    for name, row in zip(("marginal", "by class"), mean, strict=True):
        print(f"{name:11s}  {row[0]:9.3f}  {row[1]:6.3f}  {row[2]:9.2f}")

    logits, labels, new, truth = split_and_fit(seed=0)
    marginal = evicp.calibrate(logits, labels, SCORE, class_names=NAMES)
    by_class = evicp.calibrate(logits, labels, SCORE, class_names=NAMES, by="class")
    evaluation = evicp.evaluate(by_class.predict(new, COVERAGE), truth, new)
    print(f"\n{by_class.certificate(COVERAGE, evaluation)}")

    rows = [evicp.Reliability(int((labels == label).sum()), COVERAGE) for label in range(2)]
    print()
    for name, law in zip(NAMES, rows, strict=True):
        low, high = law.interval()
        print(f"{name}: {law.n} calibration rows; 95 % of calibrations cover between {low:.3f} and {high:.3f} of them")
    print(f"For +-0.02 each class would need {evicp.plan(COVERAGE, 0.02):,} rows.")

    with warnings.catch_warnings():  # at 0.999 a class of 80 rows gives full sets: the page says so where it matters
        warnings.simplefilter("ignore", evicp.EvicpWarning)
        page = report.build(new, truth, [by_class, marginal], title="Audit: breast tumours from two measurements")
    path.parent.mkdir(parents=True, exist_ok=True)
    page.write(path)
    print(f"\nreport: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "evicp-demo/medical-audit.html"))
