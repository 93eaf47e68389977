"""Claim: LAC's prediction sets of many classes, by the public calls of four other libraries and of evicp."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import common
import numpy as np
import peers

from evicp import calibrate
from evicp.bench import FLOOR, Timings, imagenet_like

Call = Callable[[], Any]


class Probabilities:
    """A fitted classifier as scikit-learn has them, whose features are its probabilities: it costs nothing to ask."""

    def __init__(self, n_classes: int) -> None:
        self.classes_ = np.arange(n_classes)
        self.is_fitted_ = True

    def fit(self, rows: Any, labels: Any) -> Probabilities:
        return self

    def predict_proba(self, rows: Any) -> Any:
        return rows

    def predict(self, rows: Any) -> Any:
        return rows.argmax(1)


def torchcp(logits: Any, labels: Any, rows: int) -> Call:
    scores, predictor = (peers.load_or_raise(f"torchcp.classification.{part}") for part in ("score", "predictor"))
    split = predictor.SplitPredictor(scores.LAC(), alpha=0.1)
    split.calculate_threshold(peers.tensor(logits[:rows]), peers.tensor(labels[:rows]))
    new = peers.tensor(logits[rows:])
    return lambda: split.predict_with_logits(new)


def mapie(probabilities: Any, labels: Any, rows: int) -> Call:
    library, model = peers.load_or_raise("mapie.classification"), Probabilities(probabilities.shape[1])
    split = library.SplitConformalClassifier(model, confidence_level=0.9, conformity_score="lac", prefit=True)
    split.conformalize(probabilities[:rows], labels[:rows])
    return lambda: split.predict_set(probabilities[rows:])


def crepes(probabilities: Any, labels: Any, rows: int) -> Call:
    wrapped = peers.load_or_raise("crepes").WrapClassifier(Probabilities(probabilities.shape[1]))
    wrapped.calibrate(probabilities[:rows], labels[:rows])
    return lambda: wrapped.predict_set(probabilities[rows:], confidence=0.9, smoothing=False, labels=False)


def puncc(probabilities: Any, labels: Any, rows: int) -> Call:
    prediction = peers.load_or_raise("deel.puncc.api.prediction")
    predictor = type("Predictor", (prediction.BasePredictor,), {"predict": lambda self, X: X})
    lac = peers.load_or_raise("deel.puncc.classification").LAC(
        predictor(Probabilities(10), is_trained=True), train=False
    )
    lac.fit(X_calib=probabilities[:rows], y_calib=labels[:rows])
    return lambda: lac.predict(probabilities[rows:], alpha=0.1)


def measure(options: argparse.Namespace) -> Timings:
    """LAC's sets of n x K float32 logits at coverage 0.9; those that ask for probabilities are given them."""
    logits, labels = imagenet_like(options.n + options.rows, options.k)
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    own, new = calibrate(logits[: options.rows], labels[: options.rows], "lac"), logits[options.rows :]
    workloads: dict[str, Call] = {FLOOR: new.sum, "evicp": lambda: own.predict(new, 0.9)}
    missing = {}
    for name, prepare in {"TorchCP": torchcp, "MAPIE": mapie, "crepes": crepes, "puncc": puncc}.items():
        try:
            workloads[name] = prepare(logits if name == "TorchCP" else probabilities, labels, options.rows)
        except ImportError as error:
            missing[name] = str(error)
    what = f"LAC's prediction sets, {options.n:,} x {options.k:,} float32, coverage 0.9"
    return common.interleaved(what, workloads, options, missing)


if __name__ == "__main__":
    common.run("libraries", measure, n=5000, k=1000, rows=2000)
