"""A text classifier with scikit-learn: which library does a docstring come from? Offline.

The corpus is on every machine that has Python: the docstrings of its own standard library, labelled by the package they
document. It is real text, small (some 1,600 docstrings, depending on the Python) and unbalanced. TF-IDF and logistic
regression read it; `ConformalClassifier` turns the pipeline into one that answers with sets.

Run it: python examples/text_classifier.py
"""

from __future__ import annotations

import ast
import re
import sysconfig
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

import evicp
from evicp.sklearn import ConformalClassifier

COVERAGE = 0.9
PACKAGES = (
    "asyncio",
    "concurrent",
    "email",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "unittest",
    "urllib",
)


def docstrings() -> tuple[np.ndarray, np.ndarray]:
    """Every docstring of ten packages of the standard library, and the package it comes from."""
    texts, labels = [], []
    for package in PACKAGES:
        for path in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    text = ast.get_docstring(node) or ""
                    # The package's own name would give the answer away.
                    text = re.sub("|".join(PACKAGES), "", text, flags=re.IGNORECASE)
                    if len(text) > 40:
                        texts.append(text)
                        labels.append(package)
    return np.array(texts, dtype=object), np.array(labels)


def main() -> None:
    """Fit, calibrate on separate rows, test on others."""
    texts, packages = docstrings()
    train, rest, y_train, y_rest = train_test_split(texts, packages, test_size=0.7, random_state=0, stratify=packages)
    # Not stratified: rows that calibrate and rows to come are told apart by chance alone.
    used, test, y_used, y_test = train_test_split(rest, y_rest, test_size=4 / 7, random_state=0)
    pipeline = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=30, max_iter=2000))
    pipeline.fit(train, y_train)
    print(f"{len(texts):,} docstrings of {len(PACKAGES)} packages:")
    print(f"{len(train):,} to fit the classifier, {len(used):,} to calibrate, {len(test):,} to test\n")
    print("score  coverage  mean size  one label  worst class")
    for score in ("ecp", "lac", "aps"):
        model = ConformalClassifier(pipeline, score=score, coverage=COVERAGE, cv="prefit").fit(used, y_used)
        sets = model.predict_set(test)
        labels = np.searchsorted(model.classes_, y_test)
        result = evicp.evaluate(sets, labels)
        worst = result.class_coverage
        print(
            f"{score:5s}  {result.coverage:8.3f}  {result.mean_size:9.2f}  {result.singleton_share:9.1%}  "
            f"{worst.worst:.2f} ({model.classes_[worst.worst_class]}, {worst.counts[worst.worst_class]} rows)"
        )
    accuracy = model.estimator_.score(test, y_test)
    print(f"\naccuracy of the best label alone: {accuracy:.3f}; coverage asked of the sets: {COVERAGE}\n")
    for i in np.argsort(sets.sizes)[[0, len(sets) // 2, -1]]:
        first_line = str(test[i]).strip().splitlines()[0][:60]
        print(f"{first_line!r}\n    {', '.join(model.classes_[sets[i]]) or '(empty)'}; true: {y_test[i]}")


if __name__ == "__main__":
    main()
