"""`export`: a classifier's graph with its prediction sets."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evicp import artifact
from evicp.arrays import F64, Coverage
from evicp.calibration import Calibration
from evicp.checks import SMALLEST_PROBABILITY, warn
from evicp.errors import FileError, InputError, InputTypeError, SuspiciousInputWarning, need
from evicp.onnx.head import Head
from evicp.onnx.outputs import LOG_PROBABILITIES, LOGITS, PROBABILITIES, SHARES, UNCLEAR, Meaning, meaning, precision
from evicp.paths import write_whole
from evicp.scores import ECP, LAC, Score

if TYPE_CHECKING:
    import onnx

__all__ = ["OLDEST_OPSET", "OUTPUTS", "export"]

#: What an exported model returns beside its own outputs.
OUTPUTS = ("set_mask", "set_size", "uncertainty")

#: Where ScatterElements can add.
OLDEST_OPSET = 16


def export(
    model: str | PathLike[str] | onnx.ModelProto,
    calibration: Calibration | str | PathLike[str],
    coverage: Coverage,
    path: str | PathLike[str],
    *,
    confidence: float | None = None,
    logits: str | None = None,
    output_is: Literal["logits", "probabilities"] | None = None,
) -> None:
    """Write a copy of an ONNX classifier that also returns its prediction sets.

    A graph cannot raise: a row that no score can be computed from (NaN, +inf, logits beyond 1e300, nothing but -inf;
    probabilities that do not sum to 1) gets the full set, which is always valid, and uncertainty 1.

    Parameters
    ----------
    model : an ONNX file, or an onnx.ModelProto, with logits of shape (batch, K) among its outputs
    calibration : a calibration or its file; a randomised score is refused, since its hash has no standard operator
    coverage : fixed in the exported graph
    confidence : of training-conditional sets, as for `Calibration.predict`
    path : where to write; outputs are the model's own and `set_mask` (batch, K) bool, `set_size` (batch,) int64,
        `uncertainty` (batch,) double: the evidential u = K / (K + sum of evidence)
    logits : the name of the logits output, where the model has several
    output_is : what that output holds
        By default the graph says: its operators, or its values on a few made-up rows, where onnxruntime is installed.
        Probabilities are refused, unless "probabilities" is given: the new graph then takes their logarithms, 0
        counting as 1e-300, as `evicp.sklearn` does. That fits a calibration of np.log(probabilities) and, for every
        score but ECP, one of the logits behind a softmax. "logits" says that the calibration was made of just the
        numbers that this output holds.
    """
    onnx = need("onnx", "onnx", "onnx", "exporting to ONNX")
    if output_is not in (None, LOGITS, PROBABILITIES):
        raise InputError(f'output_is must be "logits", "probabilities" or None; got {output_is!r}.')
    if not isinstance(calibration, Calibration):
        calibration = artifact.load(calibration)
    graph = _load(onnx, model)
    opset = next((o.version for o in graph.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < OLDEST_OPSET:
        raise FileError(f"the model uses opset {opset}; sets need {OLDEST_OPSET} or newer. Export the model again.")
    name, kind = _logits_output(onnx, graph, logits, calibration.n_classes)
    found, of_probabilities = meaning(onnx, graph, name), output_is == PROBABILITIES
    score, n_classes, rounded_to = calibration.score, calibration.n_classes, precision(onnx, graph, name)
    if found is not None:
        _check_meaning(found, name, output_is, score)
    thresholds = calibration.label_thresholds(coverage, confidence, precision=rounded_to)
    if of_probabilities:
        _check_smallest(score, thresholds, n_classes, rounded_to)
    if of_probabilities or (found is not None and found.holds == LOG_PROBABILITIES):
        _check_evidence(score, calibration.scores, n_classes)
    head = Head(onnx, n_classes, opset, graph.ir_version)
    sets = head.build(score, thresholds, kind, of_probabilities=of_probabilities)
    write_whole(path, _merged(onnx, graph, sets, name).SerializeToString())


def _check_meaning(found: Meaning, name: str, output_is: str | None, score: Score) -> None:
    """Refuse what the calibration cannot have been made of."""
    seen = f"output {name!r} holds {found.holds} ({found.shown_by})"
    if output_is == PROBABILITIES:
        if found.holds in (LOGITS, LOG_PROBABILITIES, SHARES):
            raise InputError(f"{seen}, not probabilities. Leave out output_is (--output-is).")
    elif found.holds == PROBABILITIES:
        raise InputError(f"{seen}, not logits. Export the model without that step, or {_TAKE_LOGARITHMS}.")
    elif output_is is None and found.holds in (UNCLEAR, SHARES):
        raise InputError(
            f'{seen}. If the calibration was made of just these numbers, pass output_is="logits" (--output-is '
            f"logits); if they are probabilities that sum to 1, {_TAKE_LOGARITHMS}."
        )
    elif output_is is None and found.holds == LOG_PROBABILITIES and isinstance(score, ECP):
        raise InputError(
            f"{seen}: their evidence is not that of logits. Export the model without that step; or, if the calibration "
            'was made of these log-probabilities, pass output_is="logits" (--output-is logits).'
        )


_TAKE_LOGARITHMS = (
    'pass output_is="probabilities" (--output-is probabilities) to take their logarithms: that fits a calibration of '
    "np.log(probabilities), or of logits with a score other than ECP"
)


def _check_evidence(score: Score, scores: F64, n_classes: int) -> None:
    """Refuse an ECP that was not calibrated on log-probabilities, where its scores show it; other scores do not mind.

    No logarithm of a probability is positive: evidence is at most that of 0, a Dirichlet's p at most `highest` and at
    least `lowest`, and so the score, cost over largest cost, has a lower bound.
    """
    if not isinstance(score, ECP):
        return
    if score.evidence == "relu":
        warn(
            "relu evidence of log-probabilities is zero for every label. Calibrate with another score than ECP, or "
            "with ECP(evidence='softplus').",
            SuspiciousInputWarning,
        )
    epsilon, most = score.epsilon(n_classes), float(score.evidence_of(np.zeros((1, 2)))[0, 0])
    if not score.monotone or not epsilon:
        return
    highest, lowest = (1 + most) / (n_classes + most), 1 / (1 + (n_classes - 1) * (1 + most))
    least_cost = np.log(-np.log(highest)) - np.log(highest**2 + epsilon)
    if scores.min() < least_cost - np.log(-np.log(lowest)) + np.log(epsilon) - 1e-3:
        raise InputError(
            "this calibration has scores that no log-probabilities give: it was made of logits, whose evidence "
            "probabilities have lost. Export the model with its logits, or calibrate with a score other than ECP."
        )


#: Below these probabilities lose digits, and then vanish.
_SMALLEST = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}


def _check_smallest(score: Score, thresholds: F64, n_classes: int, kind: str) -> None:
    """Refuse a threshold on LAC's -ln p that only probabilities too small for their type reach."""
    if not isinstance(score, LAC) or kind not in _SMALLEST:
        return
    least = -np.log(_SMALLEST[kind]) / score.temperature + min(0.0, (1 - 1 / score.temperature) * np.log(n_classes))
    zero = -np.log(SMALLEST_PROBABILITY) / score.temperature  # a label of probability 0 is out, or all labels are in
    beyond = thresholds[(thresholds > least) & (thresholds < zero)]
    if beyond.size:
        raise InputError(
            f"the threshold {beyond[0]:g} asks for smaller probabilities than {kind} holds. Export the model with its "
            "logits, or with probabilities of a finer type."
        )


def _merged(onnx: Any, graph: Any, head: Any, logits: str) -> Any:
    """A model and the head on its logits, as one model that ONNX's own checks let pass."""
    outputs = [o.name for o in graph.graph.output] + list(OUTPUTS)
    try:
        merged = onnx.compose.merge_models(graph, head, io_map=[(logits, "evicp/logits")], outputs=outputs)
        del merged.opset_import[:]  # merging names every set of operators twice
        merged.opset_import.extend(graph.opset_import)
        onnx.checker.check_model(merged, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise FileError(f"the model does not pass ONNX's own checks: {str(error).strip()}") from error
    return merged


def _load(onnx: Any, model: Any) -> Any:
    if isinstance(model, onnx.ModelProto):
        return model
    if not isinstance(model, str | PathLike):
        raise InputTypeError(f"model must be an ONNX file or an onnx.ModelProto; got a {type(model).__name__}.")
    try:
        return onnx.load(Path(model))
    except OSError as error:
        raise FileError(f"cannot read {model}: {error.strerror or error}.") from error
    except Exception as error:  # the protobuf parser raises types of its own
        raise FileError(f"cannot read {model}: it is not an ONNX model ({error}).") from error


def _logits_output(onnx: Any, model: Any, wanted: str | None, n_classes: int) -> tuple[str, int]:
    """The name and element type of the logits among a model's outputs."""
    outputs = {o.name: o.type.tensor_type for o in model.graph.output}
    if wanted is None and len(outputs) != 1:
        raise InputError(
            f"the model has outputs {', '.join(outputs)}; say which holds the logits with logits (--logits NAME)."
        )
    name = next(iter(outputs)) if wanted is None else wanted
    if name not in outputs:
        raise InputError(f"the model has no output {name!r}; it has {', '.join(outputs)}.")
    _check_names(model.graph)
    dims = outputs[name].shape.dim
    if len(dims) != 2 or (dims[1].HasField("dim_value") and dims[1].dim_value != n_classes):
        shape = [d.dim_value or d.dim_param for d in dims]
        raise InputError(f"logits must have shape (batch, {n_classes}); output {name!r} has {shape}.")
    allowed = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
    if outputs[name].elem_type not in allowed:
        raise InputError(f"logits must be floating point; output {name!r} is not.")
    return name, outputs[name].elem_type


def _check_names(graph: Any) -> None:
    """The head's names must be free, also inside the model."""
    taken = {tensor.name for tensor in (*graph.input, *graph.initializer)}
    taken.update(name for node in graph.node for name in node.output)
    clash = [name for name in OUTPUTS if name in taken] or [name for name in taken if name.startswith("evicp/")]
    if clash:
        raise InputError(f"the model already has a tensor named {min(clash)!r}, a name that the sets need; rename it.")
