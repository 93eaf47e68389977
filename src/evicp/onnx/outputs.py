"""What an output of an ONNX graph holds: logits, probabilities or their logarithms, and in which precision.

Its operators may tell; where they do not, its values do, on a few rows made up for the purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError, installed, need

LOGITS, PROBABILITIES, LOG_PROBABILITIES = "logits", "probabilities", "log-probabilities"
#: By steps after which rows may sum to 1 or not: parts and sums of probabilities, sigmoids.
UNCLEAR = "numbers computed from probabilities"
FRACTIONS = "numbers from 0 to 1 whose rows do not sum to 1"
#: Votes, percentages.
SHARES = "shares of a sum that is the same in every row but not 1"


class Meaning(NamedTuple):
    """What an output holds, and what says so."""

    holds: str
    shown_by: str


def meaning(onnx: Any, model: Any, output: str, examples: Any = None) -> Meaning | None:
    """What an output holds; None where neither operators nor values can tell.

    Parameters
    ----------
    output : its name
    examples : inputs to try, an array or a dict of arrays by name, in place of made-up ones
    """
    told = _Graph(onnx, model).meaning(output)
    if told is not None and told.holds != UNCLEAR:
        return told
    values = _made_up_values(onnx, model, output) if examples is None else _values(model, output, [examples])
    return (None if values is None else of_values(values)) or told


# ---------------------------------------------------------------------------------------------------------------
# By its operators

#: Operators whose result holds what their first input holds.
_KEEP = {
    *("Cast", "CastLike", "Clip", "DequantizeLinear", "Dropout", "Expand", "Flatten", "Identity", "QuantizeLinear"),
    *("Reshape", "Squeeze", "Transpose", "Unsqueeze"),
}
#: Operators that make something of probabilities which may be probabilities again, or not.
_MIX = {
    *("Add", "ArrayFeatureExtractor", "Concat", "Div", "Gather", "Max", "Mean", "Min", "Mul", "ReduceMean"),
    *("ReduceSum", "Slice", "Split", "Sub", "Sum", "Where"),
}
_ALWAYS = {
    "Softmax": PROBABILITIES,
    "LogSoftmax": LOG_PROBABILITIES,
    "Sigmoid": UNCLEAR,
    "HardSigmoid": UNCLEAR,
}
#: What the classifiers of ai.onnx.ml do to their sums, by `post_transform`.
_TRANSFORMS = {
    b"SOFTMAX": PROBABILITIES,
    b"SOFTMAX_ZERO": PROBABILITIES,
    b"LOGISTIC": UNCLEAR,
    b"PROBIT": UNCLEAR,
}
#: Longer chains of operators are not followed.
_FURTHEST = 200


class _Graph:
    """Which node makes each tensor."""

    def __init__(self, onnx: Any, model: Any) -> None:
        self.value_of = onnx.helper.get_attribute_value
        if model.functions:
            model = import_module("onnx.inliner").inline_local_functions(model)
        self.makers = {name: node for node in model.graph.node for name in node.output if name}
        self.known: dict[str, Meaning | None] = {}

    def origin(self, tensor: str) -> str:
        """The tensor that this one is a copy of, up to form and type."""
        for _ in range(_FURTHEST):
            node = self.makers.get(tensor)
            if node is None or node.op_type not in _KEEP:
                break
            tensor = node.input[0]
        return tensor

    def made_by(self, tensor: str, *operators: str) -> Any:
        """The node that makes a tensor, if it is one of these operators."""
        node = self.makers.get(self.origin(tensor))
        return node if node is not None and node.op_type in operators else None

    def meaning(self, tensor: str, further: int = 20) -> Meaning | None:
        """What a tensor holds; None if that is unknown."""
        origin = self.origin(tensor)
        if origin not in self.known:
            self.known[origin] = self._of_node(self.makers.get(origin), further)
        return self.known[origin]

    def _of_node(self, node: Any, further: int) -> Meaning | None:
        if node is None or not further:
            return None
        holds = _ALWAYS.get(node.op_type) or self._of_classifier(node) or self._of_normaliser(node)
        if holds is None and node.op_type in {"Exp", "Log"} | _MIX:
            parts = [self.meaning(part, further - 1) for part in node.input if part]
            known = {part.holds for part in parts if part is not None}
            if node.op_type == "Exp":
                holds = PROBABILITIES if LOG_PROBABILITIES in known else None
            elif node.op_type == "Log":
                holds = LOG_PROBABILITIES if PROBABILITIES in known else None
            elif known & {PROBABILITIES, UNCLEAR}:
                holds = UNCLEAR
        return None if holds is None else Meaning(holds, f"by the operator {node.op_type}")

    def _of_classifier(self, node: Any) -> str | None:
        """Of the classifiers of ai.onnx.ml."""
        attributes = {attribute.name: self.value_of(attribute) for attribute in node.attribute}
        transform = _TRANSFORMS.get(attributes.get("post_transform", b"NONE"))
        if node.op_type == "LinearClassifier":
            return transform or LOGITS
        if node.op_type == "TreeEnsembleClassifier":
            weights = (*attributes.get("class_weights", ()), *attributes.get("base_values", ()))
            return transform or (LOGITS if min(weights, default=-1) < 0 else UNCLEAR)
        if node.op_type == "SVMClassifier":
            return PROBABILITIES if attributes.get("prob_a") else transform or LOGITS
        return None

    def _of_normaliser(self, node: Any) -> str | None:
        """Of division by the row sum, which makes probabilities of what is not negative; and of its logarithm."""
        attributes = {attribute.name: self.value_of(attribute) for attribute in node.attribute}
        if node.op_type == "Normalizer":
            return UNCLEAR if attributes.get("norm", b"MAX") == b"L1" else None
        if node.op_type == "LpNormalization":
            return UNCLEAR if attributes.get("p", 2) == 1 else None
        if node.op_type == "Div":
            total = self.made_by(node.input[1], "ReduceSum", "ReduceL1")
            return UNCLEAR if total is not None and self._same(total.input[0], node.input[0]) else None
        if node.op_type == "Sub":
            total = self.made_by(node.input[1], "ReduceLogSumExp")
            return LOG_PROBABILITIES if total is not None and self._same(total.input[0], node.input[0]) else None
        return None

    def _same(self, one: str, other: str) -> bool:
        return self.origin(one) == self.origin(other)


# ---------------------------------------------------------------------------------------------------------------
# By its values

_ROWS = 4
#: Of axes other than the first that may have any length.
_LENGTH = 32
#: How far sums of probabilities may be from 1: those of half precision are.
OFF_ONE = 0.01


def of_values(values: NDArray[Any]) -> Meaning | None:
    """What rows of outputs, (n, K), can only be; None if some are not finite, or there are none."""
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or not rows.size or np.isnan(rows).any() or (rows == np.inf).any():
        return None
    with np.errstate(over="ignore"):
        sums, sums_of_exp = rows.sum(1), np.exp(rows).sum(1)
    if (rows < 0).any() or not rows.any():
        holds = LOG_PROBABILITIES if (np.abs(sums_of_exp - 1) <= OFF_ONE).all() else LOGITS
    elif (np.abs(sums - 1) <= OFF_ONE).all():
        holds = PROBABILITIES
    elif np.ptp(sums) <= 1e-5 * sums.max():
        holds = SHARES
    else:
        holds = FRACTIONS if rows.max() <= 1 else LOGITS
    return Meaning(holds, f"by its values in {len(rows)} rows")


def _made_up_values(onnx: Any, model: Any, output: str) -> NDArray[Any] | None:
    """The output of a few random rows; None where onnxruntime is not there or cannot run the model."""
    if not installed("onnxruntime"):
        return None
    try:
        return _values(model, output, _made_up(onnx, model))
    except Exception:  # of many kinds: a graph need not take such inputs
        return None


def _values(model: Any, output: str, batches: Iterable[Any]) -> NDArray[Any]:
    """What a model makes of batches of inputs."""
    runtime = need("onnxruntime", "onnxruntime", "onnx", "running the model")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, too
    try:
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        fed = [batch if isinstance(batch, Mapping) else {name: np.asarray(batch)} for batch in batches]
        return np.concatenate([session.run([output], inputs)[0] for inputs in fed])
    except Exception as error:  # its own class for each failure
        raise InputError(f"the model cannot be run on the examples: {str(error).splitlines()[0]}") from error


def _made_up(onnx: Any, model: Any) -> Iterator[dict[str, NDArray[Any]]]:
    """Batches of inputs, in the shapes and types that the graph declares, until there are rows enough."""
    random, given = np.random.default_rng(0), {tensor.name for tensor in model.graph.initializer}
    inputs = {tensor.name: tensor.type.tensor_type for tensor in model.graph.input if tensor.name not in given}
    shapes = {name: [dim.dim_value for dim in tensor.shape.dim] for name, tensor in inputs.items()}
    batch = next((shape[0] for shape in shapes.values() if shape and shape[0]), _ROWS)
    for _ in range(0, _ROWS, batch):
        made = {}
        for name, tensor in inputs.items():
            shape = [size or (batch if axis == 0 else _LENGTH) for axis, size in enumerate(shapes[name])]
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            numbers = random.normal(size=shape) if kind.kind in "fV" else random.integers(0, 2, shape)
            made[name] = numbers.astype(kind)
        yield made


# ---------------------------------------------------------------------------------------------------------------
# Its precision

#: Operators through which the rounding of their first input is the rounding of their result.
_PASS_ON = _KEEP | _MIX | {"Exp", "Log", "LogSoftmax", "LpNormalization", "Normalizer", "Sigmoid", "Softmax"}


def precision(onnx: Any, model: Any, output: str) -> str:
    """The coarsest floating-point type that an output's values went through last: "float16" where it was cast up."""
    proto = onnx.TensorProto
    names = {proto.DOUBLE: "float64", proto.FLOAT: "float32", proto.FLOAT16: "float16", proto.BFLOAT16: "bfloat16"}
    known = _typed(onnx, model)
    types = {info.name: info.type.tensor_type.elem_type for info in (*known.input, *known.value_info, *known.output)}
    makers = {name: node for node in known.node for name in node.output if name}
    found, tensor = [], output
    for _ in range(_FURTHEST):
        found.append(names.get(types.get(tensor)))
        node = makers.get(tensor)
        if node is None or node.op_type not in _PASS_ON or not node.input:
            break
        tensor = next((name for name in node.input if name in makers), node.input[0])
    order = list(names.values())
    return max((name for name in found if name), key=order.index)


def _typed(onnx: Any, model: Any) -> Any:
    """The graph with the types of all tensors, as far as they can be known."""
    try:
        return onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # of protobuf where the model has more than 2 GiB; later checks say what is wrong
        return model.graph
