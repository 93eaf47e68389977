"""`export`: a classifier's graph with its prediction sets."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from evicp.calibration.calibration import Calibration
from evicp.errors import FileError, InputError, InputTypeError, need
from evicp.io import artifact
from evicp.io.atomic import write_whole
from evicp.io.paths import as_path, readable
from evicp.onnx.fit import check_meaning, check_reach
from evicp.onnx.head import build_head
from evicp.onnx.outputs import LOGITS, PROBABILITIES, meaning, precision
from evicp.types import Coverage

if TYPE_CHECKING:
    import onnx

    from evicp.sklearn.classifier import ConformalClassifier

#: What an exported model returns in addition to its own outputs.
OUTPUTS = ("set_mask", "set_size", "uncertainty")

#: Where ScatterElements can add.
OLDEST_OPSET = 16

#: What protobuf writes as one message, with room for the head.
LARGEST_MODEL = 2**31 - 2**24


def export(
    model: str | PathLike[str] | onnx.ModelProto,
    calibration: Calibration | str | PathLike[str] | ConformalClassifier,
    coverage: Coverage,
    path: str | PathLike[str],
    *,
    confidence: float | None = None,
    logits: str | None = None,
    output_is: Literal["logits", "probabilities"] | None = None,
    examples: Any = None,
) -> None:
    """Write a copy of an ONNX classifier that also returns its prediction sets.

    Parameters
    ----------
    model : an ONNX file, or an onnx.ModelProto, with logits of shape (batch, K) among its outputs
    calibration : a calibration or its file, or the fitted `ConformalClassifier` whose `estimator_` was converted;
        randomised scores are refused, because no standard operator computes their hash
    coverage, confidence : as for `Calibration.predict`; fixed in the exported graph
    path : where to write; outputs are the model's own and `set_mask` (batch, K) bool, `set_size` (batch,) int64,
        `uncertainty` (batch,) double: the evidential u = K / (K + sum of evidence)
    logits : the name of the logits output, if the model has several
    output_is, examples : the kind of that output, or inputs to determine it; see `evicp.onnx`
    """
    onnx = need("onnx", "onnx", "onnx", "exporting to ONNX")
    known, output_is = _known(calibration, output_is)
    graph, k = _load(onnx, model), known.n_classes
    name, kind = _logits_output(onnx, graph, logits, k)
    opset = _opset(onnx, graph)
    rounded_to, of_probabilities = precision(onnx, graph, name), output_is == PROBABILITIES
    thresholds = known.label_thresholds(coverage, confidence, precision=rounded_to)
    head = build_head(
        onnx, known.score, thresholds, n_classes=k, kind=kind, opset=opset, of_probabilities=of_probabilities
    )
    merged = _merged(onnx, graph, head, name)
    check_meaning(known, name, meaning(onnx, graph, name, examples), output_is)
    if of_probabilities:
        check_reach(known, thresholds, rounded_to)
    write_whole(path, merged.SerializeToString())


def _known(given: Any, output_is: Any) -> tuple[Calibration, Any]:
    """The calibration, and what the graph must hold to fit it, where a classifier knows."""
    if output_is not in (None, LOGITS, PROBABILITIES):
        raise InputError(f'output_is must be "logits", "probabilities" or None; got {output_is!r}.')
    made_by = getattr(given, "reads", None)
    if not isinstance(made_by, str):
        return given if isinstance(given, Calibration) else artifact.load(given), output_is
    if not isinstance(given.calibration_, Calibration):
        raise InputError("an ensemble cannot be exported: it has one model per fold. Fit it with ensemble=False.")
    if made_by == LOGITS and output_is == PROBABILITIES:
        raise InputError(
            "this classifier was calibrated on decision values, which cannot be computed from probabilities. Convert "
            "it with decision values: skl2onnx.to_onnx(..., "
            "options={id(model.estimator_): {'zipmap': False, 'raw_scores': True}})."
        )
    return given.calibration_, made_by


def _opset(onnx: Any, graph: Any) -> int:
    """The version of the standard operators that a model uses."""
    opset = next((o.version for o in graph.opset_import if o.domain in ("", "ai.onnx")), 0)
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise FileError(
            f"the model uses opset {opset}; sets need {OLDEST_OPSET} or newer, and the installed onnx knows up to "
            f"{newest}. Convert the model again: torch.onnx.export(..., opset_version=18), "
            "skl2onnx.to_onnx(..., target_opset=18)."
        )
    return int(opset)


def _merged(onnx: Any, graph: Any, head: Any, logits: str) -> Any:
    """A model and the head on its logits, as one model that ONNX's own checks let pass."""
    outputs = [o.name for o in graph.graph.output] + list(OUTPUTS)
    head.ir_version = graph.ir_version
    try:
        merged = onnx.compose.merge_models(graph, head, io_map=[(logits, "evicp/logits")], outputs=outputs)
        del merged.opset_import[:]  # merging names every set of operators twice
        merged.opset_import.extend(graph.opset_import)
        for about in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
            setattr(merged, about, getattr(graph, about))
        onnx.checker.check_model(merged, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise FileError(f"the model does not pass ONNX's own checks: {str(error).strip()}") from error
    return merged


def _load(onnx: Any, model: Any) -> Any:
    graph = model if isinstance(model, onnx.ModelProto) else _read(onnx, model)
    try:
        size = graph.ByteSize()
    except Exception:  # of protobuf, where it cannot count so far
        size = LARGEST_MODEL + 1
    if size > LARGEST_MODEL:
        raise FileError("the model has more than 2 GiB, too much for one ONNX file with sets.")
    return graph


def _read(onnx: Any, model: Any) -> Any:
    if not isinstance(model, str | PathLike):
        raise InputTypeError(f"model must be an ONNX file or an onnx.ModelProto; got a {type(model).__name__}.")
    path = readable(as_path(model))
    try:
        return onnx.load(path)  # by name: other files of the model lie next to it
    except OSError as error:
        raise FileError(f"cannot read {model}: {error.strerror or error}.") from error
    except Exception as error:  # the protobuf parser raises its own types
        raise FileError(f"cannot read {model}: it is not an ONNX model ({error}).") from error


def _logits_output(onnx: Any, model: Any, wanted: str | None, n_classes: int) -> tuple[str, int]:
    """The name and element type of the logits among a model's outputs."""
    outputs = {o.name: o.type for o in model.graph.output}
    if wanted is None and len(outputs) != 1:
        raise InputError(
            f"the model has outputs {', '.join(outputs)}; name the one that contains the logits with logits (--logits "
            "NAME)."
        )
    name = next(iter(outputs)) if wanted is None else wanted
    if name not in outputs:
        raise InputError(f"the model has no output {name!r}; it has {', '.join(outputs)}.")
    _check_names(model.graph)
    if not outputs[name].HasField("tensor_type"):
        kind = str(outputs[name].WhichOneof("value")).removesuffix("_type")
        raise InputError(
            f"logits must be a tensor; output {name!r} is a {kind}. Convert the model "
            'without it: skl2onnx.to_onnx(..., options={"zipmap": False}).'
        )
    tensor = outputs[name].tensor_type
    _check_shape(name, tensor, n_classes)
    allowed = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
    if tensor.elem_type not in allowed:
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise InputError(
            f"logits must be FLOAT, FLOAT16, BFLOAT16 or DOUBLE; output {name!r} is {kind}. For a quantized model use "
            "the output after its DequantizeLinear."
        )
    return name, tensor.elem_type


def _check_shape(name: str, tensor: Any, n_classes: int) -> None:
    if not tensor.HasField("shape"):
        raise InputError(f"logits must have shape (batch, {n_classes}); output {name!r} declares no shape. Declare it.")
    dims = tensor.shape.dim
    if len(dims) == 2 and (not dims[1].HasField("dim_value") or dims[1].dim_value == n_classes):
        return
    shape = [dim.dim_value or dim.dim_param for dim in dims]
    one_column = n_classes == 2 and (len(dims) < 2 or (len(dims) == 2 and dims[1].dim_value == 1))
    hint = " Let the model return two columns: 0 and s for a decision value s, 1 - p and p for a probability p."
    raise InputError(
        f"logits must have shape (batch, {n_classes}); output {name!r} has {shape}.{hint if one_column else ''}"
    )


def _check_names(graph: Any) -> None:
    """The head's names must be free, also inside the model."""
    taken = {tensor.name for tensor in (*graph.input, *graph.initializer)}
    taken.update(name for node in graph.node for name in node.output)
    clash = [name for name in OUTPUTS if name in taken] or [name for name in taken if name.startswith("evicp/")]
    if clash:
        raise InputError(f"the model already has a tensor named {min(clash)!r}, a name that the sets need. Rename it.")
