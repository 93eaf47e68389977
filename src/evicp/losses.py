"""Losses that train evidential networks (Sensoy, Kaplan and Kandemir, 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from evicp.errors import InputError, ScoreError, unusable

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
except ImportError as error:
    raise unusable("torch", "torch", "torch", "training with evidential losses", error) from error

__all__ = ["evidential_loss"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "softplus": functional.softplus,
    "exp": lambda z: z.clamp(-10, 10).exp(),
}


def evidential_loss(
    logits: Tensor,
    labels: Tensor,
    kind: Literal["likelihood", "cross_entropy", "squared_error"] = "squared_error",
    *,
    evidence: str = "relu",
    annealing: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """The loss of a Dirichlet with alpha = evidence + 1, plus a KL term that removes misleading evidence.

    Parameters
    ----------
    logits : (n, K) tensor
    labels : (n,) integers
    kind : "likelihood", "cross_entropy" or "squared_error"
        Type II maximum likelihood, ln alpha_0 - ln alpha_y; its Bayes risk, the same with digammas; the Bayes risk of
        the Brier score.
    evidence : "relu", "softplus" or "exp"
    annealing : float
        Weight of the KL term; the literature raises it from 0 to 1 over the first ten epochs.
    reduction : "mean", "sum" or "none"

    >>> z = torch.tensor([[4.0, 0.0, 0.0]])
    >>> right, wrong = (evidential_loss(z, torch.tensor([y])) for y in (0, 1))
    >>> bool(right < wrong)
    True
    """
    if evidence not in _ACTIVATIONS:
        raise ScoreError(f"evidence must be one of {', '.join(_ACTIVATIONS)}; got {evidence!r}.")
    if kind not in _LOSSES:
        raise InputError(f"kind must be one of {', '.join(_LOSSES)}; got {kind!r}.")
    if reduction not in _REDUCTIONS:
        raise InputError(f"reduction must be one of {', '.join(_REDUCTIONS)}; got {reduction!r}.")
    alpha = _ACTIVATIONS[evidence](logits) + 1
    truth = functional.one_hot(labels, logits.shape[-1]).to(alpha.dtype)
    loss = _LOSSES[kind](alpha, truth) + annealing * _misleading(alpha, truth)
    return _REDUCTIONS[reduction](loss)


def _likelihood(alpha: Tensor, truth: Tensor) -> Tensor:
    return (truth * (alpha.sum(-1, keepdim=True).log() - alpha.log())).sum(-1)


def _cross_entropy(alpha: Tensor, truth: Tensor) -> Tensor:
    return (truth * (alpha.sum(-1, keepdim=True).digamma() - alpha.digamma())).sum(-1)


def _squared_error(alpha: Tensor, truth: Tensor) -> Tensor:
    strength = alpha.sum(-1, keepdim=True)
    p = alpha / strength
    return ((truth - p) ** 2 + p * (1 - p) / (strength + 1)).sum(-1)


_LOSSES = {"likelihood": _likelihood, "cross_entropy": _cross_entropy, "squared_error": _squared_error}
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"mean": torch.mean, "sum": torch.sum, "none": lambda loss: loss}


def _misleading(alpha: Tensor, truth: Tensor) -> Tensor:
    """KL(Dir(alpha~) || Dir(1)), where alpha~ keeps only the evidence for wrong labels."""
    wrong = truth + (1 - truth) * alpha
    strength = wrong.sum(-1)
    n_classes = torch.tensor(float(alpha.shape[-1]), dtype=alpha.dtype, device=alpha.device)
    spread = ((wrong - 1) * (wrong.digamma() - strength.digamma().unsqueeze(-1))).sum(-1)
    return strength.lgamma() - n_classes.lgamma() - wrong.lgamma().sum(-1) + spread
