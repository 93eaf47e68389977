"""Which default score and stabilizer do well: scikit-learn models and real logits, 2 to 1,000 classes.

`python studies/defaults.py` prints the table, with logits of the embedded sample, in a few minutes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Console
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import evicp
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Score
from evicp.sklearn import ConformalClassifier
from evicp.types import F64, I64
from stabilizer import restrict
from study import Finding, Logits, embedded, log_probabilities_accepted

SCORES: Mapping[str, Score] = MappingProxyType(
    {
        "ECP 1e-8": ECP(),
        "ECP scaled": ECP(stabilizer="scaled"),
        "LAC": LAC(),
        "APS": APS(),
        "RAPS": RAPS(),
        "SAPS": SAPS(),
    }
)
MODELS: Mapping[str, Any] = MappingProxyType(
    {
        "logistic regression": lambda _seed: make_pipeline(StandardScaler(), LogisticRegression(C=0.05)),
        "SVM": lambda _seed: make_pipeline(StandardScaler(), SVC(decision_function_shape="ovr")),
        "forest": lambda seed: RandomForestClassifier(100, random_state=seed),
        "boosting": lambda seed: HistGradientBoostingClassifier(max_iter=40, random_state=seed),
        "perceptron": lambda seed: make_pipeline(
            StandardScaler(), MLPClassifier((64,), max_iter=60, random_state=seed)
        ),
    }
)


@dataclass(frozen=True, eq=False)
class Problem:
    """Features and labels of a scikit-learn data set."""

    name: str
    features: F64
    labels: I64


def problems() -> Iterator[Problem]:
    """Real and made data of 2 to 30 classes; noise makes the easy ones harder."""
    rng = np.random.default_rng(0)
    for name, load, noise in (("cancer", datasets.load_breast_cancer, 1.5), ("digits", datasets.load_digits, 1.0)):
        x, y = load(return_X_y=True)
        yield Problem(name, x + noise * x.std(0) * rng.normal(size=x.shape), y)
    for n_classes in (3, 30):
        x, y = datasets.make_classification(
            3000, 20, n_informative=10, n_classes=n_classes, n_clusters_per_class=1, class_sep=1.2, random_state=0
        )
        yield Problem(f"made, {n_classes} classes", x, y)


def default_sizes(networks: Sequence[Logits], splits: int = 10) -> Finding:
    """Mean sizes at coverage 0.9, the score that ConformalClassifier takes, and how far it is from the best."""
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # models that have not converged, few rows
        for problem in problems():
            for model, make in MODELS.items():
                sizes, taken = _of_model(problem, make, splits)
                rows.append(_row(f"{problem.name}: {model}", len(np.unique(problem.labels)), sizes, taken))
    for data in networks:
        for n_classes in (10, 100, data.logits.shape[1]):
            if data.raw and n_classes <= data.logits.shape[1]:
                part = restrict(data, n_classes)
                rows.append(_row(part.name, n_classes, _of_logits(part, splits), "ECP 1e-8"))
            elif n_classes == data.logits.shape[1]:
                rows.append(_row(data.name, n_classes, _of_logits(data, splits), "ECP 1e-8"))
    head = ("rows from", "K", *SCORES, "by default", "default above the best")
    return Finding("defaults", f"Mean size at coverage 0.9, {splits} splits; the best one is marked", head, tuple(rows))


def _row(name: str, n_classes: int, sizes: dict[str, float], taken: str) -> tuple[str, ...]:
    best = min(sizes.values())
    cells = (f"**{size:.3f}**" if size == best else f"{size:.3f}" for size in sizes.values())
    return name, str(n_classes), *cells, taken, f"{sizes[taken] / best - 1:.1%}"


def _of_model(problem: Problem, make: Any, splits: int) -> tuple[dict[str, float], str]:
    sizes: dict[str, list[float]] = {name: [] for name in SCORES}
    for seed in range(splits):
        x, x_new, y, y_new = train_test_split(problem.features, problem.labels, test_size=0.3, random_state=seed)
        for name, score in SCORES.items():
            found = ConformalClassifier(make(seed), score, cv=0.4, random_state=seed).fit(x, y)
            sizes[name].append(found.evaluate(x_new, y_new, 0.9).mean_size)
    calibration = ConformalClassifier(make(0), cv=0.4, random_state=0).fit(x, y).calibration_
    assert isinstance(calibration, evicp.Calibration)
    taken = next(name for name, score in SCORES.items() if score == calibration.score)
    return {name: float(np.mean(values)) for name, values in sizes.items()}, taken


def _of_logits(data: Logits, splits: int) -> dict[str, float]:
    sizes: dict[str, list[float]] = {name: [] for name in SCORES}
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(data.labels))
        used, new = order[: len(order) // 2], order[len(order) // 2 :]
        for name, score in SCORES.items():
            with log_probabilities_accepted():
                sets = evicp.calibrate(data.logits[used], data.labels[used], score).predict(data.logits[new], 0.9)
            sizes[name].append(float(sets.sizes.mean()))
    return {name: float(np.mean(values)) for name, values in sizes.items()}


if __name__ == "__main__":
    Console(soft_wrap=True, highlight=False, markup=False).print(str(default_sizes([embedded()])))
