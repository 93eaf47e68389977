"""Networks trained here with cross-entropy and with each evidential loss: what trained evidence adds to ECP.

Handwritten digits of scikit-learn, 8 x 8 pixels with noise. Seven digits are known; the other three, shuffled
pixels and noise are unknown input. A multilayer perceptron and a convolutional network, several seeds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

import evicp
from evicp.method.scores import APS, ECP, LAC, RAPS
from evicp.torch import evidential_loss
from evicp.types import F64, I64
from study import Finding, Logits, auroc, log_probabilities_accepted
from unknown_input import SIGNS

KNOWN = 7
LOSSES = ("softmax", "likelihood", "cross_entropy", "squared_error")
Kind = Literal["likelihood", "cross_entropy", "squared_error"]


@dataclass(frozen=True)
class Digits:
    """Rows to train with and other rows, of known digits; and unknown input."""

    train: tuple[F64, I64]
    other: tuple[F64, I64]
    unknown: dict[str, F64]


def digits(seed: int, noise: float = 0.35, n_train: int = 400) -> Digits:
    """The digits 0 to 6 in a random split, and what else a network may be shown."""
    rng = np.random.default_rng(seed)
    clean, labels = load_digits(return_X_y=True)
    x: F64 = clean / 16 + rng.normal(0, noise, clean.shape)
    known = rng.permutation(np.flatnonzero(labels < KNOWN))
    train, other = known[:n_train], known[n_train:]
    unknown = {
        "other digits": x[labels >= KNOWN],
        "shuffled pixels": rng.permuted(x[other], axis=1),
        "uniform noise": rng.uniform(-noise, 1 + noise, x[other].shape),
    }
    return Digits((x[train], labels[train]), (x[other], labels[other]), unknown)


def perceptron() -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, KNOWN))


def convolutional() -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten()),
        nn.Linear(32 * 16, KNOWN),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"perceptron": perceptron, "convolutional": convolutional}


def trained(network: str, loss: str, seed: int, data: Digits, epochs: int = 60) -> Callable[[F64], F64]:
    """A function from pixels to logits; annealing of the evidential losses as in the literature."""
    torch.manual_seed(seed)
    module = NETWORKS[network]()
    optimiser = torch.optim.Adam(module.parameters(), 1e-3, weight_decay=1e-4)
    x, y = torch.tensor(data.train[0], dtype=torch.float32), torch.tensor(data.train[1])
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            _loss(loss, module(x[rows]), y[rows], min(1.0, epoch / 10)).backward()
            optimiser.step()

    def logits(pixels: NDArray[Any]) -> F64:
        with torch.no_grad():
            return module(torch.tensor(pixels, dtype=torch.float32)).double().numpy()

    return logits


def _loss(kind: str, logits: Tensor, labels: Tensor, annealing: float) -> Tensor:
    if kind == "softmax":
        return nn.functional.cross_entropy(logits, labels)
    # Relu evidence gives no gradient to a network that starts without evidence: softplus, as is usual.
    return evidential_loss(logits, labels, cast("Kind", kind), evidence="softplus", annealing=annealing)


def _evidence_of(loss: str) -> str:
    return "relu" if loss == "softmax" else "softplus"


def trained_evidence(networks: Sequence[Logits], seeds: int = 10) -> Finding:  # noqa: ARG001
    """Accuracy, sets and what u shows, of networks trained with each loss; means over seeds."""
    rows = []
    for network in NETWORKS:
        for loss in LOSSES:
            figures = np.array(list(_figures(network, loss, seeds)))
            mean, error = figures.mean(0), figures.std(0, ddof=1) / seeds**0.5
            rows.append((network, loss, *(f"{m:.3f} ({e:.3f})" for m, e in zip(mean, error, strict=True))))
    head: tuple[str, ...] = ("network", "trained with", "accuracy", "ECP size", "LAC size", "APS size", "RAPS size")
    head += (
        "ECP SSCV",
        "LAC SSCV",
        "AUROC of u: errors",
        *(f"u: {name}" for name in digits(0).unknown),
        "logit: noise",
    )
    title = f"Trained evidence: coverage 0.95, means over {seeds} seeds (standard error)"
    return Finding("trained", title, head, tuple(rows))


def _figures(network: str, loss: str, seeds: int) -> Iterator[tuple[float, ...]]:
    """One row of figures for each seed."""
    for seed in range(seeds):
        data = digits(seed)
        logits_of = trained(network, loss, seed, data)
        z, y = logits_of(data.other[0]), data.other[1]
        half, evidence = len(y) // 2, _evidence_of(loss)
        sizes, sscv = [], []
        for score in (ECP(evidence=evidence), LAC(), APS(), RAPS(k_reg=2)):
            with log_probabilities_accepted():
                sets = evicp.calibrate(z[:half], y[:half], score).predict(z[half:], 0.95)
            found = evicp.evaluate(sets, y[half:])
            sizes.append(found.mean_size)
            sscv.append(float("nan") if found.sscv is None else found.sscv)
        u = evicp.opinion(z, evidence=evidence).uncertainty
        wrong = z.argmax(1) != y
        shown = [logits_of(pixels) for pixels in data.unknown.values()]
        of_unknown = [_auroc(evicp.opinion(s, evidence=evidence).uncertainty, u) for s in shown]
        largest = SIGNS["largest logit, negated"]
        yield (
            float(np.mean(~wrong)),
            *sizes,
            *sscv[:2],
            auroc(u, wrong),
            *of_unknown,
            _auroc(largest(shown[-1]), largest(z)),
        )


def _auroc(unknown: F64, known: F64) -> float:
    return auroc(np.concatenate([unknown, known]), np.arange(len(unknown) + len(known)) < len(unknown))
