"""PyTorch: calibrate from a model and a loader, sets as a module, losses that train evidential networks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from evicp.calibration import Calibration, Calibrator
from evicp.checks import LARGEST_LOGIT
from evicp.errors import InputError, InputTypeError, ScoreError, missing_extra
from evicp.limits import raised
from evicp.scores import ECP, Score

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    from evicp.kernels import _torch as kernel
except ImportError as error:
    raise missing_extra("torch", "torch", "the PyTorch adapter") from error

__all__ = ["SetOutput", "SetPredictor", "calibrate", "evidential_loss", "logits_of", "pipeline_logits"]


def logits_of(output: Any) -> Tensor:
    """The logits in whatever a model returns: a tensor, an object with `.logits`, or a dict or tuple that holds them.

    >>> logits_of({"logits": torch.zeros(2, 3)}).shape
    torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        if "logits" in output:
            return logits_of(output["logits"])
    elif hasattr(output, "logits"):
        return logits_of(output.logits)
    elif isinstance(output, tuple | list) and output:
        return logits_of(output[0])
    raise InputTypeError(f"a model must return logits, or an object with .logits; got {type(output).__name__}.")


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    score: str | Score | Callable[..., Any] = "ecp",
    *,
    device: Any = None,
    class_names: Sequence[str] | None = None,
) -> Calibration:
    """Calibrate a model on the batches of a loader; only one batch of logits exists at a time.

    Parameters
    ----------
    model : put into evaluation mode meanwhile, and back afterwards
    loader : yields (inputs, labels), or dicts with "labels" (Hugging Face), whose other entries the model takes by name
    device : where to run; the model's own by default
    """
    device = _device_of(model) if device is None else torch.device(device)
    calibrator = Calibrator(score, class_names=class_names)
    with _evaluating(model):
        for batch in loader:
            inputs, labels = _unpack(batch)
            output = model(**_to(inputs, device)) if isinstance(inputs, dict) else model(_to(inputs, device))
            calibrator.update(logits_of(output), labels.to(device))
    return calibrator.finish()


def _device_of(model: nn.Module) -> Any:
    tensors = (*model.parameters(), *model.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


@contextmanager
def _evaluating(model: nn.Module) -> Any:
    """Evaluation mode without gradients; every submodule's own mode is restored."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _unpack(batch: Any) -> tuple[Any, Tensor]:
    if hasattr(batch, "keys") and "labels" in batch:
        return {name: batch[name] for name in batch if name != "labels"}, torch.as_tensor(batch["labels"])
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], torch.as_tensor(batch[1])
    raise InputTypeError("a loader must yield (inputs, labels) or a dict with 'labels'.")


def _to(value: Any, device: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _to(item, device) for name, item in value.items()}
    return value


# ---------------------------------------------------------------------------------------------------------------
# Sets as a module


class SetOutput(NamedTuple):
    """What a `SetPredictor` returns: logits (n, K), membership (n, K) bool, evidential uncertainty (n,)."""

    logits: Tensor
    mask: Tensor
    uncertainty: Tensor

    @property
    def sizes(self) -> Tensor:
        """How many labels each set holds."""
        return self.mask.sum(-1)


class SetPredictor(nn.Module):
    """A model that also returns its prediction sets, as a dense mask: on any device, in `state_dict`, compilable.

    A row with NaN, +inf, logits beyond 1e300 or nothing but -inf has no usable logits; inside a compiled graph nothing
    can be raised, so such a row gets the full set, which is always valid, and uncertainty 1. Thresholds are
    raised by 1e-6 (see `evicp.limits`), since this graph rounds differently from the kernels that calibrated.

    Parameters
    ----------
    model : returns logits (n, K), or an object with `.logits`
    calibration : marginal or by class, with a built-in score
    coverage : fixed in the module
    confidence : of training-conditional sets, as in `Calibration.predict`

    >>> calibration = Calibrator("lac").update(torch.eye(4) * 3, torch.arange(4)).finish()
    >>> SetPredictor(nn.Identity(), calibration, coverage=0.5)(torch.eye(4) * 3).sizes
    tensor([1, 1, 1, 1])
    """

    threshold_bits: Tensor

    def __init__(
        self,
        model: nn.Module,
        calibration: Calibration,
        coverage: float | Fraction,
        *,
        confidence: float | None = None,
    ) -> None:
        super().__init__()
        if not kernel.knows(calibration.score):
            raise ScoreError(f"{calibration.score.describe()} has no torch form; use a built-in score.")
        self.model = model
        self.score = calibration.score
        self.n_classes = calibration.n_classes
        # One threshold, or one per label. As bits: .half() or .float() would round a floating-point buffer, and a
        # rounded threshold no longer covers.
        thresholds = torch.from_numpy(raised(calibration.label_thresholds(coverage, confidence)))
        self.register_buffer("threshold_bits", thresholds.view(torch.int64))

    def forward(self, *args: Any, **kwargs: Any) -> SetOutput:
        """Run the model and predict the sets of its logits."""
        logits = logits_of(self.model(*args, **kwargs))
        z = logits.detach().to(kernel.working_type(logits.device))
        largest = z.amax(-1, keepdim=True)
        usable = (largest > -torch.inf) & (largest <= min(LARGEST_LOGIT, torch.finfo(z.dtype).max))  # NaN fails both
        z = torch.where(usable, z, 0.0)
        thresholds = self.threshold_bits.view(torch.float64).to(z.dtype)
        mask = (kernel.every_label(self.score, z) <= thresholds) | ~usable
        evidence = kernel.evidence_of(_evidence_name(self.score), z)
        uncertainty = self.n_classes / (self.n_classes + evidence.sum(-1))
        return SetOutput(logits, mask, torch.where(usable[..., 0], uncertainty, 1.0).to(logits.dtype))

    def get_extra_state(self) -> str:
        """The score and K, so that a state can only be loaded where it fits."""
        description = {"score": self.score.name, "parameters": self.score.plain_parameters()}
        return json.dumps({**description, "n_classes": self.n_classes}, sort_keys=True)

    def set_extra_state(self, state: str) -> None:
        """Refuse the state of another score."""
        if state != self.get_extra_state():
            raise InputError(f"this state belongs to {state}; the module has {self.get_extra_state()}.")


def _evidence_name(score: Score) -> str:
    """ECP's own evidence; relu for the uncertainty beside other scores."""
    return score.evidence if isinstance(score, ECP) and isinstance(score.evidence, str) else "relu"


def pipeline_logits(pipeline: Any, inputs: Any) -> tuple[np.ndarray[Any, Any], list[str]]:
    """The logits of a Hugging Face classification pipeline, (n, K), and its class names in their order.

    Calibrated with these names, `calibration.predict(pipeline_logits(pipe, texts)[0], 0.9)` gives sets with names.
    """
    names = [pipeline.model.config.id2label[i] for i in range(len(pipeline.model.config.id2label))]
    position = {name: i for i, name in enumerate(names)}
    rows = pipeline(inputs, top_k=None, function_to_apply="none")
    rows = [rows] if rows and isinstance(rows[0], dict) else rows
    logits = np.empty((len(rows), len(names)))
    for i, row in enumerate(rows):
        for entry in row:
            logits[i, position[entry["label"]]] = entry["score"]
    return logits, names


# ---------------------------------------------------------------------------------------------------------------
# Evidential losses (Sensoy, Kaplan and Kandemir, 2018), for training networks whose evidence means something

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
    logits : (n, K)
    labels : (n,) integers
    kind : "likelihood" (type II maximum likelihood: ln alpha_0 - ln alpha_y), "cross_entropy" (its Bayes risk: the
        same with digammas), "squared_error" (Bayes risk of the Brier score)
    annealing : weight of the KL term; the literature raises it from 0 to 1 over the first ten epochs
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
    alpha = _ACTIVATIONS[evidence](logits) + 1
    truth = functional.one_hot(labels, logits.shape[-1]).to(alpha.dtype)
    loss = _LOSSES[kind](alpha, truth) + annealing * _misleading(alpha, truth)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _likelihood(alpha: Tensor, truth: Tensor) -> Tensor:
    return (truth * (alpha.sum(-1, keepdim=True).log() - alpha.log())).sum(-1)


def _cross_entropy(alpha: Tensor, truth: Tensor) -> Tensor:
    return (truth * (alpha.sum(-1, keepdim=True).digamma() - alpha.digamma())).sum(-1)


def _squared_error(alpha: Tensor, truth: Tensor) -> Tensor:
    strength = alpha.sum(-1, keepdim=True)
    p = alpha / strength
    return ((truth - p) ** 2 + p * (1 - p) / (strength + 1)).sum(-1)


_LOSSES = {"likelihood": _likelihood, "cross_entropy": _cross_entropy, "squared_error": _squared_error}


def _misleading(alpha: Tensor, truth: Tensor) -> Tensor:
    """KL(Dir(alpha~) || Dir(1)), where alpha~ keeps only the evidence for wrong labels."""
    wrong = truth + (1 - truth) * alpha
    strength = wrong.sum(-1)
    n_classes = torch.tensor(float(alpha.shape[-1]), dtype=alpha.dtype, device=alpha.device)
    spread = ((wrong - 1) * (wrong.digamma() - strength.digamma().unsqueeze(-1))).sum(-1)
    return strength.lgamma() - n_classes.lgamma() - wrong.lgamma().sum(-1) + spread
