"""The same sets from TorchCP, MAPIE, crepes and puncc, and from evicp: what to call here for what was called there.

Needs scikit-learn; the other libraries are compared where they are installed, in the versions below or newer ones:
`pip install '.[sklearn]' torchcp==1.2.1 mapie==1.6.0 crepes==0.9.1 puncc==0.9.3`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

import evicp
from evicp.sklearn import ConformalClassifier
from evicp.tables import text_table

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import peers  # TorchCP asks for more packages than its sets need

COVERAGE = 0.9


class Problem:
    """Handwritten digits, a fitted classifier, and its logits for calibration and for new rows."""

    def __init__(self) -> None:
        X, y = load_digits(return_X_y=True)
        X = X / 16 + np.random.default_rng(0).normal(0, 0.4, X.shape)  # with noise, or all would be sure
        self.model = LogisticRegression(max_iter=2000).fit(X[:600], y[:600])
        self.X_cal, self.y_cal, self.X_new, self.y_new = X[600:1200], y[600:1200], X[1200:], y[1200:]
        self.z_cal, self.z_new = (np.log(self.model.predict_proba(rows)) for rows in (self.X_cal, self.X_new))

    def ours(self, score: Any, **how: Any) -> np.ndarray:
        """Our sets, as a matrix."""
        return evicp.calibrate(self.z_cal, self.y_cal, score, **how).predict(self.z_new, COVERAGE).mask()


def sparsemax(logits: np.ndarray) -> np.ndarray:
    """How far all better labels lie above a label, added up: TorchCP's Entmax score of gamma 2, as one of your own."""
    order = np.argsort(-logits, axis=1)
    best_first = np.take_along_axis(logits, order, axis=1)
    above = np.cumsum(best_first, axis=1) - np.arange(1, logits.shape[1] + 1) * best_first
    scores = np.empty_like(above)
    np.put_along_axis(scores, order, above, axis=1)
    return scores


def torchcp(problem: Problem) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Logits in, a matrix of 0 and 1 out."""
    predictors, scores = (peers.load_or_raise(f"torchcp.classification.{part}") for part in ("predictor", "score"))
    cases: list[tuple[str, Any, Any, str | None]] = [
        ("SplitPredictor(LAC())", scores.LAC(), "lac", None),
        ("SplitPredictor(APS(randomized=False))", scores.APS(randomized=False), evicp.APS(randomized=False), None),
        (
            "SplitPredictor(RAPS(penalty=0.1, kreg=2, randomized=False))",
            scores.RAPS(penalty=0.1, kreg=2, randomized=False),
            evicp.RAPS(lam=0.1, k_reg=2, randomized=False),
            None,
        ),
        ("SplitPredictor(EntmaxScore(gamma=2))", scores.EntmaxScore(gamma=2.0), sparsemax, None),
        ("ClassConditionalPredictor(LAC())", scores.LAC(), "lac", "class"),
    ]
    for name, theirs, score, by in cases:
        predictor = (predictors.ClassConditionalPredictor if by else predictors.SplitPredictor)(theirs)
        predictor.calculate_threshold(peers.tensor(problem.z_cal), peers.tensor(problem.y_cal), 1 - COVERAGE)
        sets = predictor.predict_with_logits(peers.tensor(problem.z_new)).numpy() == 1
        yield name, sets, problem.ours(score, by=by)


def mapie(problem: Problem) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """A fitted classifier in, a matrix for each level out."""
    from mapie.classification import CrossConformalClassifier, SplitConformalClassifier

    for name, score in (("lac", "lac"), ("top_k", evicp.TopK(randomized=False))):
        wrapped = SplitConformalClassifier(problem.model, confidence_level=COVERAGE, conformity_score=name, prefit=True)
        sets = wrapped.conformalize(problem.X_cal, problem.y_cal).predict_set(problem.X_new)[1][:, :, 0]
        yield f'SplitConformalClassifier(conformity_score="{name}")', sets, problem.ours(score)
    folds = KFold(5, shuffle=True, random_state=0)
    crossed = CrossConformalClassifier(problem.model, confidence_level=COVERAGE, conformity_score="lac", cv=folds)
    crossed.fit_conformalize(problem.X_cal, problem.y_cal)
    own = ConformalClassifier(problem.model, "lac", cv=folds, ensemble=True).fit(problem.X_cal, problem.y_cal)
    yield (
        'CrossConformalClassifier(cv=folds).predict_set(agg_scores="crossval")',
        crossed.predict_set(problem.X_new, agg_scores="crossval")[1][:, :, 0],
        own.predict_set(problem.X_new, COVERAGE).mask(),
    )


def crepes(problem: Problem) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """A fitted classifier in, lists or p-values out; smoothed unless told otherwise."""
    from crepes import WrapClassifier
    from crepes.extras import margin

    plain: list[tuple[str, dict[str, Any], Any, str | None]] = [
        ("calibrate()", {}, "lac", None),
        ("calibrate(class_cond=True)", {"class_cond": True}, "lac", "class"),
        ("calibrate(nc=margin)", {"nc": margin}, "margin", None),
    ]
    for name, how, score, by in plain:
        wrapped = WrapClassifier(problem.model)
        wrapped.calibrate(problem.X_cal, problem.y_cal, **how)
        sets = wrapped.predict_set(problem.X_new, confidence=COVERAGE, smoothing=False, labels=False)
        yield f"{name}.predict_set(smoothing=False)", np.asarray(sets) == 1, problem.ours(score, by=by)


def puncc(problem: Problem) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """A wrapped classifier in, lists out."""
    from deel.puncc.api.prediction import BasePredictor
    from deel.puncc.classification import LAC

    class Probabilities(BasePredictor):  # type: ignore[misc]
        def predict(self, X: Any, **options: Any) -> Any:
            return self.model.predict_proba(X, **options)

    wrapped = LAC(Probabilities(problem.model, is_trained=True), train=False)
    wrapped.fit(X_calib=problem.X_cal, y_calib=problem.y_cal)
    lists = wrapped.predict(problem.X_new, alpha=1 - COVERAGE)[1]
    yield (
        "LAC(predictor)",
        evicp.PredictionSets.from_lists(lists, n_classes=10, coverage=COVERAGE).mask(),
        problem.ours("lac"),
    )


def main() -> None:
    """Compare what is installed."""
    problem, rows = Problem(), []
    libraries: dict[str, Callable[[Problem], Iterator[tuple[str, np.ndarray, np.ndarray]]]]
    libraries = {"TorchCP": torchcp, "MAPIE": mapie, "crepes": crepes, "puncc": puncc}
    for library, sets_of in libraries.items():
        try:
            for name, theirs, ours in sets_of(problem):
                covered = [mask[np.arange(len(mask)), problem.y_new].mean() for mask in (theirs, ours)]
                equal = f"{np.mean((theirs == ours).all(1)):.1%}"
                rows.append([library, name, equal, *(f"{share:.3f}" for share in covered)])
        except ImportError as error:
            rows.append([library, f"not installed ({error})", "-", "-", "-"])
    print(text_table(["library", "call", "equal sets", "its coverage", "evicp's coverage"], rows))


if __name__ == "__main__":
    main()
