"""Coverage where scores tie: forests, votes, whole numbers, quantized outputs, constant networks.

Each cell repeats: draw calibration rows and new ones from a source of few different rows, calibrate, predict, count.
Smoothed sets must cover exactly what was asked; plain and randomised ones at least that, in every pair of precisions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from evicp import APS, ECP, LAC, RAPS, SAPS, Margin, TopK, calibrate
from lengths import usually

pytestmark = pytest.mark.filterwarnings("ignore::evicp.errors.EvicpWarning")

Rows = tuple[np.ndarray, np.ndarray]
Source = Callable[[np.random.Generator, int], Rows]

N, M = 99, 20


def _logarithms(shares: np.ndarray) -> np.ndarray:
    """What an adapter makes of probabilities, zeros among them."""
    return np.log(np.maximum(shares, 1e-300))


def votes(n_classes: int, trees: int) -> Source:
    """Log-probabilities of a forest: shares of so many votes."""

    def draw(rng: np.random.Generator, n: int) -> Rows:
        shares = rng.dirichlet(np.full(n_classes, 0.5), n)
        labels = (shares.cumsum(1) > rng.random((n, 1))).argmax(1)
        counts = rng.multinomial(trees, shares / shares.sum(1, keepdims=True))
        return _logarithms(counts / trees), labels

    return draw


def rounded(n_classes: int, step: float, signal: float = 1.5) -> Source:
    """Logits rounded to multiples of a step, as quantized networks give them."""

    def draw(rng: np.random.Generator, n: int) -> Rows:
        labels = rng.integers(0, n_classes, n)
        logits = rng.normal(size=(n, n_classes))
        logits[np.arange(n), labels] += rng.exponential(signal, n)
        return np.round(logits / step) * step, labels

    return draw


def constant(rng: np.random.Generator, n: int) -> Rows:
    """A network that answers the same to everything."""
    return np.tile(np.arange(5.0), (n, 1)), rng.choice(5, n, p=[0.1, 0.1, 0.2, 0.2, 0.4])


def certain(rng: np.random.Generator, n: int) -> Rows:
    """A decision tree whose leaves are pure: one label of probability 1, right in three rows of four."""
    labels = rng.integers(0, 4, n)
    told = np.where(rng.random(n) < 0.75, labels, rng.integers(0, 4, n))
    return _logarithms(np.eye(4)[told]), labels


def two_rows(rng: np.random.Generator, n: int) -> Rows:
    """Two different rows only, each as often wrong as the other."""
    which = rng.integers(0, 2, n)
    labels = np.where(rng.random(n) < 0.7, which, 2)
    return np.array([[3.0, 1.0, 0.0], [1.0, 3.0, 0.0]])[which], labels


@functools.cache
def _digits(model: str) -> Rows:
    """Logits that a model of scikit-learn gives to 1,197 noisy digits, fitted on 600 others, and their labels."""
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.neighbors import KNeighborsClassifier

    X, y = load_digits(return_X_y=True)
    X = X / 16 + np.random.default_rng(0).normal(0, 0.35, X.shape)
    kind, _, count = model.partition(" ")
    fitted = KNeighborsClassifier(int(count)) if kind == "knn" else RandomForestClassifier(int(count), random_state=0)
    return _logarithms(fitted.fit(X[:600], y[:600]).predict_proba(X[600:])), y[600:]


def digits(model: str) -> Source:
    """Rows drawn with replacement from those of a fitted model."""

    def draw(rng: np.random.Generator, n: int) -> Rows:
        logits, labels = _digits(model)
        rows = rng.integers(0, len(labels), n)
        return logits[rows], labels[rows]

    return draw


SMOOTHED = {
    "whole numbers, 3 classes": (rounded(3, 1.0), TopK()),
    "whole numbers, 2 classes": (rounded(2, 1.0), LAC()),
    "whole numbers, ECP": (rounded(4, 1.0), ECP()),
    "halves, 10 classes": (rounded(10, 0.5), APS(randomized=False)),
    "quarters, 5 classes": (rounded(5, 0.25), Margin()),
    "forest of 10": (votes(6, 10), LAC()),
    "forest of 15": (votes(4, 15), RAPS(randomized=False)),
    "forest of 3": (votes(4, 3), TopK()),
    "five neighbours": (votes(3, 5), SAPS(randomized=False)),
    "a tree": (certain, LAC()),
    "a constant network": (constant, TopK()),
    "two rows": (two_rows, LAC()),
    "digits, forest of 10": (digits("forest 10"), LAC()),
    "digits, forest of 15": (digits("forest 15"), APS(randomized=False)),
    "digits, five neighbours": (digits("knn 5"), LAC()),
}


def covered(source: Source, repeats: int, seed: int, predict: Callable[..., Any]) -> np.ndarray:
    """The share of new rows covered in each repeat."""
    rng = np.random.default_rng(seed)
    shares = np.empty(repeats)
    for i in range(repeats):
        (z, y), (new, truth) = source(rng, N), source(rng, M)
        shares[i] = predict(z, y, new, rng).contains(truth).mean()
    return shares


def z_value(shares: np.ndarray, coverage: float) -> float:
    return float((shares.mean() - coverage) / (shares.std(ddof=1) / len(shares) ** 0.5))


@pytest.fixture
def repeats(long_run: bool) -> int:
    return 2_500 if long_run else 150


@pytest.fixture
def fewer(long_run: bool) -> int:
    """For tests of several sources or precisions."""
    return 2_500 if long_run else 50


def smoothed(score: Any, coverage: float) -> Callable[..., Any]:
    return lambda z, y, new, _: calibrate(z, y, score).predict(new, coverage, smoothed=True)


@pytest.mark.parametrize(
    ("setting", "coverage"),
    usually(product(SMOOTHED, (0.8, 0.9)), lambda setting, c: (list(SMOOTHED).index(setting) % 2 == 0) == (c == 0.8)),
)
def test_smoothed_sets_cover_what_was_asked(setting, coverage, repeats, figure):
    source, score = SMOOTHED[setting]
    z = z_value(covered(source, repeats, 1, smoothed(score, coverage)), coverage)
    figure("largest abs(z) of smoothed sets", abs(z))
    assert abs(z) < 3


@pytest.mark.parametrize("seed", usually(range(10), lambda seed: seed < 3))
def test_smoothed_sets_cover_what_was_asked_whatever_the_seed(seed, repeats, figure):
    z = z_value(covered(rounded(3, 1.0), repeats, 100 + seed, smoothed(TopK(seed=seed), 0.8)), 0.8)
    figure("largest abs(z) of smoothed sets", abs(z))
    assert abs(z) < 3


def test_control_a_number_for_each_multiset_of_logits_misses_what_was_asked(repeats, figure):
    """What smoothing used to do: rows of the same logits in another order shared a number, in every calibration."""
    numbers: dict[bytes, float] = {}
    draws = np.random.default_rng(3)

    def predict(z, y, new, _):
        keys = [row.tobytes() for row in np.sort(new + 0.0, axis=1)]
        u = np.array([numbers.setdefault(key, draws.random()) for key in keys])
        return calibrate(z, y, TopK()).predict(new, 0.8, smoothed=u)

    z = z_value(covered(two_rows, repeats, 1, predict), 0.8)
    figure("smallest abs(z) of a number shared by multisets", abs(z))
    assert abs(z) > 3


@pytest.mark.parametrize("seed", usually(range(10), lambda seed: seed < 2))
@pytest.mark.parametrize("kind", [APS, RAPS, SAPS, TopK], ids=lambda kind: kind.name)
def test_randomised_scores_of_tied_rows_cover_at_least_what_was_asked(kind, seed, fewer, figure):
    score = kind(randomized=True, seed=seed)
    for source in (votes(6, 10), rounded(3, 1.0), certain, digits("forest 10")):
        shares = covered(source, fewer, 7, lambda z, y, new, _: calibrate(z, y, score).predict(new, 0.8))
        z = z_value(shares, 0.8)
        figure("smallest z of randomised scores", z)
        assert z > -3, source


#: How rows come. Single precision also as doubles, as JSON and lists bring it.
PRECISIONS = {
    "float64": lambda z: z,
    "float32": lambda z: z.astype(np.float32),
    "float32 as doubles": lambda z: z.astype(np.float32).astype(np.float64),
    "float16": lambda z: z.astype(np.float16),
}
TIED = {
    "forest of 10": votes(6, 10),
    "forest of 15": votes(4, 15),
    "five neighbours": votes(3, 5),
    "a tree": certain,
    "tenths": rounded(5, 0.1),
    "digits, forest of 10": digits("forest 10"),
    "digits, forest of 15": digits("forest 15"),
    "digits, five neighbours": digits("knn 5"),
}


SCORES = [LAC(), LAC(temperature=2.0), APS(randomized=False), RAPS(randomized=False), SAPS(randomized=False), TopK()]
SCORES += [Margin(), ECP(evidence="softplus")]


@pytest.mark.parametrize(
    ("setting", "score"),
    # Usually every setting and every score, not every pair.
    usually(product(TIED, SCORES), lambda setting, score: (list(TIED).index(setting) + SCORES.index(score)) % 4 == 0),
    ids=lambda value: value if isinstance(value, str) else value.describe(),
)
def test_tied_rows_are_covered_in_every_pair_of_precisions(setting, score, fewer, figure):
    for made, used in product(PRECISIONS, repeat=2):

        def predict(z, y, new, _, made=made, used=used):
            return calibrate(PRECISIONS[made](z), y, score).predict(PRECISIONS[used](new), 0.9)

        shares = covered(TIED[setting], fewer, 11, predict)
        z = z_value(shares, 0.9) if shares.std() else np.inf
        figure("smallest z of tied rows in other precisions", z)
        assert z > -3, (made, used)


@pytest.mark.parametrize(
    "score", [APS(randomized=False), RAPS(randomized=False), Margin()], ids=lambda score: score.name
)
def test_single_precision_in_doubles_has_the_room_of_single_precision(score):
    """Ties of calibration rows differ by the rounding of their logits, whatever their scores are computed in."""
    logits, labels = digits("forest 15")(np.random.default_rng(4), 900)
    plain, doubles = (
        calibrate(PRECISIONS[made](logits[:600]), labels[:600], score).predict(PRECISIONS["float16"](logits[600:]), 0.9)
        for made in ("float32", "float32 as doubles")
    )
    assert (plain.sizes != doubles.sizes).mean() < 0.01


def test_control_thresholds_without_room_lose_the_tied_rows(repeats, figure):
    def predict(z, y, new, _):
        careless = dataclasses.replace(calibrate(z, y, LAC()), origin=None)
        return careless.predict(new.astype(np.float32), 0.5)

    z = z_value(covered(votes(6, 10), repeats, 11, predict), 0.5)
    figure("largest z of thresholds without room", z)
    assert z < -3
