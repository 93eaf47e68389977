"""Which score and stabilizer do well when none is named: scikit-learn models and real logits, 2 to 1,000 classes.

`python studies/defaults.py FILES` prints the table of docs/defaults.md; without files, of the embedded sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from sklearn import datasets
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import calibrate
from evicp.io.atomic import write_whole
from evicp.io.paths import read_text
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Margin, Score, TopK
from evicp.sklearn import ConformalClassifier, logits_of
from evicp.types import F64, I64
from stabilizer import restrict
from study import Finding, Logits, embedded, into, read

COVERAGE = 0.9
#: How far above the best a default may be.
TOLERANCE = 0.03
#: Every score at its defaults, and what else the evidential one could be by default.
SCORES: Mapping[str, Score] = MappingProxyType(
    {
        "ECP": ECP(),
        "ECP, 1e-8": ECP(stabilizer=1e-8),
        "ECP, softplus": ECP(evidence="softplus"),
        "ECP, exp": ECP(evidence="exp"),
        "LAC": LAC(),
        "APS": APS(),
        "RAPS": RAPS(),
        "SAPS": SAPS(),
        "margin": Margin(),
        "top-k": TopK(),
    }
)
Model = Callable[[int], Any]
MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "logistic regression": lambda _: make_pipeline(StandardScaler(), LogisticRegression(C=0.05)),
        "SVM": lambda _: make_pipeline(StandardScaler(), SVC(decision_function_shape="ovr")),
        "boosting": lambda seed: HistGradientBoostingClassifier(max_iter=20, random_state=seed),
        "forest": lambda seed: RandomForestClassifier(100, random_state=seed),
        "perceptron": lambda seed: make_pipeline(
            StandardScaler(), MLPClassifier((64,), max_iter=60, random_state=seed)
        ),
    }
)


class Probabilities(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier of which only the probabilities are seen."""

    def __init__(self, fitted: Any) -> None:
        self.fitted = fitted

    def fit(self, X: Any, y: Any) -> Probabilities:  # noqa: ARG002, N803 - it is fitted
        """Nothing: it is fitted."""
        return self

    @property
    def classes_(self) -> Any:
        """The classes."""
        return self.fitted.classes_

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The likeliest class."""
        return self.fitted.predict(X)

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        """The probabilities."""
        return self.fitted.predict_proba(X)

    def __sklearn_is_fitted__(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Problem:
    """Features and labels of a scikit-learn data set."""

    name: str
    features: F64
    labels: I64


def problems() -> Iterator[Problem]:
    """Real and made data of 2 to 100 classes; noise makes the easy ones harder."""
    rng = np.random.default_rng(0)
    for name, load, noise in (("cancer", datasets.load_breast_cancer, 1.5), ("digits", datasets.load_digits, 1.0)):
        x, y = load(return_X_y=True)
        yield Problem(name, x + noise * x.std(0) * rng.normal(size=x.shape), y)
    for n_classes in (3, 30, 100):
        x, y = datasets.make_classification(
            3000, 20, n_informative=10, n_classes=n_classes, n_clusters_per_class=1, class_sep=1.2, random_state=0
        )
        yield Problem(f"made, {n_classes} classes", x, y)


@dataclass(frozen=True, eq=False)
class Measured:
    """Mean sizes and coverages over the splits of one set of rows: of each score, and of what is taken by default.

    Parameters
    ----------
    sizes, coverages : (scores + 1, splits), the default last
    n : calibration rows and new rows
    """

    name: str
    n_classes: int
    taken: str
    sizes: F64
    coverages: F64
    n: tuple[int, int]

    @property
    def above(self) -> float:
        """By how much the default is above the best score."""
        means = self.sizes.mean(1)
        return float(means[-1] / means[:-1].min() - 1)

    @property
    def is_covered(self) -> bool:
        """Whether the default's coverage is no further below the target than chance takes it in one of 1,000 sets."""
        error = (COVERAGE * (1 - COVERAGE) * sum(1 / n for n in self.n) / self.coverages.shape[1]) ** 0.5
        return bool(self.coverages[-1].mean() >= COVERAGE - 3.1 * error)

    def row(self) -> tuple[str, ...]:
        """A row of the table."""
        means = self.sizes.mean(1)
        cells = (f"**{size:.3f}**" if size == means[:-1].min() else f"{size:.3f}" for size in means[:-1])
        return (
            self.name,
            str(self.n_classes),
            *cells,
            self.taken,
            f"{self.coverages[-1].mean():.4f}",
            f"{self.above:.1%}",
        )


def measure_models(splits: int = 10) -> Iterator[Measured]:
    """Every model on every problem, by what ConformalClassifier takes."""
    for problem in problems():
        for model, make in MODELS.items():
            yield from _of_model(problem, model, make, splits)


def measure_files(networks: Sequence[Logits], splits: int = 10) -> Iterator[Measured]:
    """Files of logits by what `calibrate` takes, as they are and with fewer classes."""
    for data in networks:
        total = data.logits.shape[1]
        for n_classes in sorted({2, 10, 100, total}):
            if n_classes <= total:
                yield _of_logits(restrict(data, n_classes), n_classes, splits)


def default_sizes(measured: Sequence[Measured], name: str) -> Finding:
    """The table, with how many sets of rows keep the bar."""
    near = sum(one.above <= TOLERANCE for one in measured)
    covered = sum(one.is_covered for one in measured)
    splits = measured[0].sizes.shape[1]
    title = (
        f"Mean size at coverage {COVERAGE:g}, {splits} splits; the best one is marked. The default is within "
        f"{TOLERANCE:.0%} of it on {near} of {len(measured)} sets of rows ({near / len(measured):.0%}), and keeps the "
        f"coverage on {covered}"
    )
    head = ("rows from", "K", *SCORES, "by default", "its coverage", "above the best")
    return Finding(name, title, head, tuple(one.row() for one in measured))


def _of_model(problem: Problem, model: str, make: Model, splits: int) -> Iterator[Measured]:
    """One model read in each way it can be: by decision values, by probabilities, or by both."""
    found: dict[str, list[tuple[list[tuple[float, float]], str, tuple[int, int]]]] = {}
    for seed in range(splits):
        x, x_new, y, y_new = train_test_split(problem.features, problem.labels, test_size=0.3, random_state=seed)
        x, x_used, y, y_used = train_test_split(x, y, test_size=0.4, random_state=seed)
        fitted = make(seed).fit(x, y)
        ways = {"decision values": fitted} if hasattr(fitted, "decision_function") else {}
        if hasattr(fitted, "predict_proba"):
            ways["probabilities"] = Probabilities(fitted)
        for way, estimator in ways.items():
            pairs = _of_scores(logits_of(estimator, x_used), y_used, logits_of(estimator, x_new), y_new)
            default = ConformalClassifier(estimator, cv="prefit").fit(x_used, y_used)
            own, calibration = default.evaluate(x_new, y_new, COVERAGE), default.calibration_
            assert isinstance(calibration, Calibration)
            pairs.append((own.mean_size, own.coverage))
            found.setdefault(way, []).append((pairs, calibration.score.name, (len(y_used), len(y_new))))
    for way, parts in found.items():
        sizes, coverages = np.array([pairs for pairs, _, _ in parts]).transpose(2, 1, 0)
        n_classes, (_, taken, n) = len(np.unique(problem.labels)), parts[0]
        yield Measured(f"{problem.name}: {model}, {way}", n_classes, taken, sizes, coverages, n)


def _of_logits(data: Logits, n_classes: int, splits: int) -> Measured:
    parts = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(data.labels))
        used, new = order[: len(order) // 2], order[len(order) // 2 :]
        pairs = _of_scores(data.logits[used], data.labels[used], data.logits[new], data.labels[new])
        parts.append([*pairs, pairs[list(SCORES).index("ECP")]])
    sizes, coverages = np.array(parts).transpose(2, 1, 0)
    return Measured(data.name, n_classes, "ecp", sizes, coverages, (len(used), len(new)))


def _of_scores(used: NDArray[Any], labels: I64, new: NDArray[Any], truth: I64) -> list[tuple[float, float]]:
    """Mean size and coverage of each score."""
    sets = (calibrate(used, labels, score).predict(new, COVERAGE) for score in SCORES.values())
    return [(float(made.sizes.mean()), float(made.contains(truth).mean())) for made in sets]


def main(
    logits: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Logits with labels; the embedded sample if none.")
    ] = None,
    splits: Annotated[int, typer.Option(help="Random splits of each set of rows.")] = 10,
    models: Annotated[bool, typer.Option(help="Train scikit-learn's models, too, which takes longest.")] = True,
    page: Annotated[Path | None, typer.Option("--into", help="Bring the table of this page up to date.")] = None,
) -> None:
    """Print the table of docs/defaults.md."""
    networks: Iterable[Logits] = [read(path) for path in logits or ()] or [embedded()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # models that have not converged, few rows, log-probabilities
        findings = [default_sizes(list(measure_files(list(networks), splits)), "files")]
        if models:
            findings.append(default_sizes(list(measure_models(splits)), "models"))
    for finding in findings:
        Console(soft_wrap=True, highlight=False, markup=False).print(str(finding))
        if page is not None:
            write_whole(page, into(read_text(page), finding))


if __name__ == "__main__":
    typer.run(main)
