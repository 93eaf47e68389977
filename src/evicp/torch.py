"""PyTorch: calibrate from a model and a loader, sets as a module, losses that train evidential networks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from evicp.calibration.calibration import Calibration
from evicp.calibration.calibrator import Calibrator
from evicp.calibration.laws.by_group import ByGroup
from evicp.calibration.source import RowSource
from evicp.errors import InputError, InputTypeError, ScoreError, unusable
from evicp.evaluation.metrics import Evaluator, judged_by
from evicp.evaluation.result import Evaluation
from evicp.input.classes import ClassNames, as_class_names
from evicp.input.validate import LARGEST_LOGIT, as_coverage, as_device_logits
from evicp.input.warn import warn_if_probabilities
from evicp.method.scores import ECP, Score, ScoreLike
from evicp.types import Coverage

try:
    import torch
    from torch import Tensor, nn
    from torch.utils._pytree import register_pytree_node  # where torch.export documents it

    from evicp.kernels import _torch as kernel
    from evicp.losses import evidential_loss
except ImportError as error:
    raise unusable("torch", "torch", "torch", "the PyTorch adapter", error) from error

__all__ = ["SetOutput", "SetPredictor", "calibrate", "evaluate", "evidential_loss", "logits_of", "pipeline_logits"]

#: What gives logits, or what holds them, for a batch of inputs.
Model = nn.Module | Callable[..., Any]


def logits_of(output: Any) -> Tensor:
    """The logits in the output of a model: a tensor, an object with `.logits`, a mapping or a tuple.

    >>> logits_of({"logits": torch.zeros(2, 3)}).shape
    torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        if "logits" in output:
            return logits_of(output["logits"])
    elif hasattr(output, "logits"):
        return logits_of(output.logits)
    elif isinstance(output, tuple | list) and output:
        return logits_of(output[0])
    raise InputTypeError(f"a model must return logits, or an object with .logits; got {type(output).__name__}.")


def calibrate(
    model: Model,
    loader: Iterable[Any],
    score: ScoreLike = "ecp",
    *,
    by: Any = None,
    class_weights: ArrayLike | Mapping[Any, float] | None = None,
    device: Any = None,
    class_names: ClassNames | None = None,
    source: RowSource | str | None = None,
) -> Calibration:
    """Calibrate a model on the batches of a loader; only one batch of logits is in memory at a time.

    Parameters
    ----------
    model : nn.Module or function
        A module runs in evaluation mode; its mode is restored afterwards. A function gets the inputs unchanged.
    loader : iterable of (inputs, labels), or of dicts with "labels" (Hugging Face)
        If inputs are a dict, the model gets its entries without the labels as keyword arguments. Labels are class
        numbers, or names if class_names are given.
    score, class_weights, class_names, source
        As for `evicp.Calibrator`.
    by : "class", "group", "uncertainty", or an instance with parameters, as for `evicp.Calibrator`
        For "group" batches are (inputs, labels, groups), or dicts with "groups" as well: one whole number or string
        per row.
    device : device or str, optional
        The device of the inputs; by default that of the module.

    >>> rows, labels = 3 * torch.eye(4).repeat(30, 1), torch.arange(4).repeat(30)
    >>> calibrate(nn.Identity(), [(rows, labels)], "lac", by="class")
    Calibration(lac, 120 rows, 4 classes, by class (4 groups))
    """
    _check_model_and_loader(model, loader)
    calibrator = Calibrator(score, by=by, class_weights=class_weights, class_names=class_names, source=source)
    with _evaluating(model):
        for logits, labels, groups in _batches(model, loader, device, grouped=isinstance(calibrator.by, ByGroup)):
            calibrator.update(logits, labels, groups=groups)
    return calibrator.finish()


def evaluate(
    model: Model,
    loader: Iterable[Any],
    calibration: Calibration,
    coverage: Coverage,
    *,
    confidence: float | None = None,
    allow_empty: bool = True,
    min_count: int = 1,
    device: Any = None,
) -> Evaluation:
    """Evaluate the sets of a model's rows on the batches of a loader, in one pass; only counts are kept.

    Parameters
    ----------
    model, loader, device
        As for `calibrate`; batches need groups if the calibration is by group.
    calibration : Calibration
        A calibration of this model, on other rows.
    coverage, confidence, allow_empty
        As for `Calibration.predict`.
    min_count : int
        Strata with fewer rows are left out of SSCV.

    >>> rows, labels = 3 * torch.eye(4).repeat(30, 1), torch.arange(4).repeat(30)
    >>> batches = [(rows[:60], labels[:60]), (rows[60:], labels[60:])]
    >>> calibration = calibrate(nn.Identity(), batches, "lac")
    >>> result = evaluate(nn.Identity(), batches, calibration, coverage=0.9)
    >>> result.n, result.coverage, result.mean_size, result.accuracy
    (120, 1.0, 1.0, 1.0)
    """
    _check_model_and_loader(model, loader)
    _check_calibration(calibration, of_batches=True)
    exact, evaluator = as_coverage(coverage), Evaluator(min_count=min_count)
    with _evaluating(model):
        for logits, labels, given in _batches(model, loader, device, grouped="groups" in calibration.law.needs):
            sets = calibration.predict(logits, exact, confidence=confidence, groups=given, allow_empty=allow_empty)
            groups = calibration.groups_of(logits, given) if calibration.has_row_groups else None
            evaluator.update(sets, labels, logits, groups=groups)
    return judged_by(calibration, evaluator.finish())


def _check_model(model: Any) -> None:
    """Arguments are easily swapped: say which one is not what it must be."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module; got a {type(model).__name__}. The model comes first.")


def _check_model_and_loader(model: Any, loader: Any) -> None:
    if not callable(model):
        raise InputTypeError(
            f"model must be a torch.nn.Module or a function; got a {type(model).__name__}. The model comes first."
        )
    iterates = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    if isinstance(loader, nn.Module) or not iterates:
        raise InputTypeError(
            f"loader must yield batches of inputs and labels; got a {type(loader).__name__}. Pass a DataLoader."
        )


def _check_calibration(calibration: Any, *, of_batches: bool = False) -> None:
    if not isinstance(calibration, Calibration):
        raise InputTypeError(
            f"calibration must be a Calibration; got a {type(calibration).__name__}. evicp.load reads one from a file."
        )

    if of_batches and "weights" in calibration.law.needs:
        raise InputError(
            "this calibration needs weights of new rows, which batches do not have. Call predict(logits, coverage, "
            "weights=) for each batch and update an evicp.evaluation.metrics.Evaluator with the sets."
        )


def _batches(model: Model, loader: Iterable[Any], device: Any, *, grouped: bool) -> Iterator[tuple[Tensor, Any, Any]]:
    """The model's logits batch by batch, with the labels on their device and, if requested, the rows' groups."""
    device = _device_of(model) if device is None else torch.device(device)
    for batch in loader:
        inputs, labels, groups = _unpack(batch, grouped)
        inputs = inputs if device is None else _to(inputs, device)
        logits = logits_of(model(**inputs) if isinstance(inputs, Mapping) else model(inputs))
        yield logits, labels.to(logits.device) if isinstance(labels, Tensor) else labels, groups


def _device_of(model: Model) -> Any:
    """Where a module is; None of a function."""
    if not isinstance(model, nn.Module):
        return None
    tensors = (*model.parameters(), *model.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


@contextmanager
def _evaluating(model: Model) -> Any:
    """Evaluation mode without gradients; every submodule's own mode is restored."""
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        _switch(dict.fromkeys(modes, False))
        with torch.no_grad():
            yield
    finally:
        _switch(modes)
        for module, training in modes.items():  # what a parent's train() may have set otherwise
            module.training = training


def _switch(modes: dict[nn.Module, bool]) -> None:
    """Change modes by the modules' own methods, which may do more than set a flag (LoRA layers merge their weights).

    Modules without such a method, as torch.export makes them, stay as they are.
    """
    for module, training in modes.items():
        if module.training != training:
            with suppress(NotImplementedError):
                module.train() if training else module.eval()


def _unpack(batch: Any, grouped: bool) -> tuple[Any, Any, Any]:
    """The inputs, labels and, if requested, groups of a batch."""
    names = ("labels", "groups") if grouped else ("labels",)
    if hasattr(batch, "keys") and all(name in batch for name in names):
        inputs = {name: batch[name] for name in batch if name not in names}
        return inputs, batch["labels"], batch["groups"] if grouped else None
    if isinstance(batch, tuple | list) and len(batch) == 1 + len(names):
        return batch[0], batch[1], batch[2] if grouped else None
    described = " and ".join(repr(name) for name in names)
    raise InputTypeError(f"a loader must yield (inputs, {', '.join(names)}) or a dict with {described}.")


def _to(value: Any, device: Any) -> Any:
    """Inputs on a device: tensors, what else can be moved (a BatchEncoding), and collections of them."""
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _to(item, device) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_to(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


# ---------------------------------------------------------------------------------------------------------------
# Sets as a module


#: The types of logits; what is coarser than these has too few values to be told apart.
_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class SetOutput(NamedTuple):
    """What a `SetPredictor` returns: logits (n, K), membership (n, K) bool, evidential uncertainty (n,)."""

    logits: Tensor
    mask: Tensor
    uncertainty: Tensor

    @property
    def sizes(self) -> Tensor:
        """The number of labels in each set."""
        return self.mask.sum(-1)


with suppress(ValueError):  # registered already, where this module is reloaded
    register_pytree_node(
        SetOutput,
        lambda output: (list(output), None),
        lambda values, _: SetOutput(*values),
        serialized_type_name="evicp.torch.SetOutput",
    )


def _doubles_of(bits: Tensor) -> Tensor:
    """Doubles from their bits by arithmetic: tracers and graph formats cannot reinterpret a tensor's bytes.

    Only with constants that float32 holds: torch.onnx rounds others, and TorchScript takes all beyond it for one.
    """
    magnitude = torch.where(bits < 0, bits + 2**62 + 2**62, bits)  # without the sign
    exponent = magnitude >> 52
    fraction = magnitude - exponent * 2**52
    value = torch.where(exponent > 0, fraction + 2**52, fraction).to(torch.float64)
    power = exponent.clamp_min(1) - 1075
    factor = torch.where(power < 0, 0.5, 2.0).to(torch.float64)
    power = power.abs()
    for _ in range(11):  # value * factor^power, exactly
        half = power >> 1
        value = torch.where(power > half + half, value * factor, value)
        factor, power = factor * factor, half
    return torch.where(bits < 0, -value, value)


class SetPredictor(nn.Module):
    """A model that also returns its prediction sets, as a dense mask: on any device, in `state_dict`, compilable.

    A row with NaN, +inf, logits beyond 1e300 or all -inf cannot be scored; a compiled graph cannot raise an error, so
    such a row gets the full set, which is always valid, and uncertainty 1. Thresholds are raised by the rounding error
    of the logits' type, because this graph rounds differently from the calibration kernels.

    Parameters
    ----------
    model : nn.Module
        Returns logits (n, K), or an object with `.logits`.
    calibration : Calibration
        Marginal or by class, with a built-in score.
    coverage : number in (0, 1)
        Fixed in the module.
    confidence : float, optional
        Of training-conditional sets, as in `Calibration.predict`.

    >>> calibration = Calibrator("lac").update(torch.eye(4) * 3, torch.arange(4)).finish()
    >>> SetPredictor(nn.Identity(), calibration, coverage=0.5)(torch.eye(4) * 3).sizes
    tensor([1, 1, 1, 1])
    """

    threshold_bits: Tensor

    def __init__(
        self,
        model: nn.Module,
        calibration: Calibration,
        coverage: Coverage,
        *,
        confidence: float | None = None,
    ) -> None:
        super().__init__()
        _check_model(model)
        _check_calibration(calibration)
        if not kernel.knows(calibration.score):
            raise ScoreError(f"{calibration.score.describe()} has no torch form; use a built-in score.")
        self.model = model
        self.score = calibration.score
        self.n_classes = calibration.n_classes
        # A row for each type of logits, of one threshold, or one per label. As bits: .half() or .float() would round a
        # floating-point buffer, and a rounded threshold no longer covers.
        names = [str(kind).removeprefix("torch.") for kind in _TYPES]
        thresholds = np.stack([calibration.label_thresholds(coverage, confidence, precision=name) for name in names])
        self.register_buffer("threshold_bits", torch.from_numpy(thresholds).view(torch.int64))
        self._looked_at = False

    def forward(self, *args: Any, **kwargs: Any) -> SetOutput:
        """Run the model and predict the sets of its logits."""
        if _is_traced() and getattr(self.score, "randomized", False):
            raise ScoreError(
                f"{self.score.describe()} is randomised, which TorchScript does not support. Use torch.export, or "
                f"calibrate with {type(self.score).__name__}(randomized=False)."
            )
        logits = logits_of(self.model(*args, **kwargs))
        z = as_device_logits(logits, self.n_classes).to(kernel.working_type(logits.device))
        if logits.dtype not in _TYPES:
            raise InputTypeError(f"logits must be {', '.join(map(str, _TYPES))}; got {logits.dtype}.")
        if not (self._looked_at or torch.compiler.is_compiling()):
            self._look_at(logits)
        most = kernel.constant(z, min(LARGEST_LOGIT, torch.finfo(z.dtype).max))
        usable = (z <= most).all(-1, keepdim=True) & (z > -torch.inf).any(-1, keepdim=True)  # NaN fails the first
        z = torch.where(usable, z, 0.0)
        bits = self.threshold_bits[_TYPES.index(logits.dtype)]
        thresholds = (
            _doubles_of(bits) if _is_traced() or torch.compiler.is_exporting() else bits.view(torch.float64)
        ).to(z.dtype)
        mask = (kernel.every_label(self.score, z) <= thresholds) | ~usable
        evidence = kernel.evidence_of(_evidence_name(self.score), z)
        uncertainty = self.n_classes / (self.n_classes + evidence.sum(-1))
        return SetOutput(logits, mask, torch.where(usable[..., 0], uncertainty, 1.0).to(logits.dtype))

    def _look_at(self, logits: Tensor) -> None:
        """Warn of probabilities once, as `Calibration.predict` does: compiled code never can."""
        if _is_traced() or (logits.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        try:
            sample = logits[:16].detach().double().cpu().numpy()
        except (RuntimeError, TypeError):  # what a transform of functions traces has no values
            return
        self._looked_at = len(sample) > 0
        warn_if_probabilities(sample)

    def get_extra_state(self) -> Tensor:
        """The score and K as JSON in bytes, so that a state can only be loaded where it fits; files hold tensors."""
        description = {"score": self.score.name, "parameters": self.score.plain_parameters()}
        text = json.dumps({**description, "n_classes": self.n_classes}, sort_keys=True)
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse the state of another score."""
        theirs, own = (bytes(text.tolist()).decode() for text in (state, self.get_extra_state()))
        if theirs != own:
            raise InputError(f"this state belongs to {theirs}; the module has {own}.")


def _is_traced() -> bool:
    return torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def _evidence_name(score: Score) -> str:
    """ECP's own evidence; relu for the uncertainty beside other scores."""
    return score.evidence if isinstance(score, ECP) and isinstance(score.evidence, str) else "relu"


def pipeline_logits(pipeline: Any, inputs: Any) -> tuple[np.ndarray[Any, Any], list[str]]:
    """The logits of a Hugging Face classification pipeline, (n, K), and its class names in the same order.

    Inputs are those of the pipeline: one, a list, a generator, a `KeyDataset`. After calibration with these names,
    `calibration.predict(pipeline_logits(pipe, texts)[0], 0.9)` returns sets with names.
    """
    id2label = pipeline.model.config.id2label
    names = list(as_class_names(id2label, len(id2label)) or ())
    position = {name: i for i, name in enumerate(names)}
    if len(position) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"a pipeline must have different class names; got {twice!r} for more than one. Run the model itself: "
            "logits_of(pipeline.model(...))."
        )
    if hasattr(inputs, "__next__"):  # of all iterators, pipelines know generators alone
        inputs = (entry for entry in inputs)
    rows = list(pipeline(inputs, top_k=None, function_to_apply="none"))  # generators and data sets give an iterator
    rows = [rows] if rows and isinstance(rows[0], dict) else rows
    logits = np.full((len(rows), len(names)), np.nan)
    for i, row in enumerate(rows):
        for entry in row:
            logits[i, position[entry["label"]]] = entry["score"]
    return logits, names
