"""ONNX: the calibrated set predictor appended to a classifier's own graph.

The head is built from standard operators in double precision, for a dynamic batch, so that any ONNX server can run it:
Abs Add And Cast Clip Concat CumSum Div Equal Exp GatherElements Greater LessOrEqual Log Max Mul Neg Not ReduceSum
Relu ScatterElements Slice Sub TopK Where. It needs opset 16 or newer.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evicp import artifact
from evicp.arrays import F64, Coverage
from evicp.calibration import Calibration
from evicp.checks import LARGEST_LOGIT
from evicp.errors import FileError, InputError, InputTypeError, ScoreError, need
from evicp.paths import write_whole
from evicp.scores import APS, ECP, LAC, RAPS, SAPS, Margin, Score, TopK

if TYPE_CHECKING:
    import onnx

__all__ = ["OUTPUTS", "export"]

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
) -> None:
    """Write a copy of an ONNX classifier that also returns its prediction sets.

    A graph cannot raise: a row that no score can be computed from (NaN, +inf, logits beyond 1e300, nothing but -inf)
    gets the full set, which is always valid, and uncertainty 1.

    Parameters
    ----------
    model : an ONNX file, or an onnx.ModelProto, with logits of shape (batch, K) among its outputs
    calibration : a calibration or its file; a randomised score is refused, since its hash has no standard operator
    coverage : fixed in the exported graph
    confidence : of training-conditional sets, as for `Calibration.predict`
    path : where to write; outputs are the model's own and `set_mask` (batch, K) bool, `set_size` (batch,) int64,
        `uncertainty` (batch,) double: the evidential u = K / (K + sum of evidence)
    logits : the name of the logits output, where the model has several
    """
    onnx = need("onnx", "onnx", "onnx", "exporting to ONNX")
    if not isinstance(calibration, Calibration):
        calibration = artifact.load(calibration)
    graph = _load(onnx, model)
    opset = next((o.version for o in graph.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < OLDEST_OPSET:
        raise FileError(f"the model uses opset {opset}; sets need {OLDEST_OPSET} or newer. Export the model again.")
    name, kind = _logits_output(onnx, graph, logits, calibration.n_classes)
    head = _Head(onnx, calibration.n_classes, opset, graph.ir_version).build(
        calibration.score, calibration.label_thresholds(coverage, confidence, precision="float32"), kind
    )
    write_whole(path, _merged(onnx, graph, head, name).SerializeToString())


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


class _Head:
    """A graph under construction: each method adds operators and returns the name of their result."""

    def __init__(self, onnx: Any, n_classes: int, opset: int, ir_version: int) -> None:
        self.onnx, self.n_classes, self.opset, self.ir_version = onnx, n_classes, opset, ir_version
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def add(self, operator: str, *inputs: str, outputs: int = 1, name: str | None = None, **attributes: Any) -> Any:
        names = [name] if name else [f"evicp/{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        array: NDArray[Any] = np.asarray(value, dtype)
        name = f"evicp/c{len(self.constants)}"
        self.constants[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def build(self, score: Score, thresholds: F64, kind: int) -> Any:
        """The whole head as a model of its own: logits in, mask, size and uncertainty out."""
        helper, proto = self.onnx.helper, self.onnx.TensorProto
        logits = self.add("Cast", "evicp/logits", to=proto.DOUBLE)
        usable = self.usable(logits)
        z = self.add("Where", usable, logits, self.constant(0.0))
        scores = self.add("Where", usable, self.scores(score, z), self.constant(-np.inf))
        limits = self.constant(thresholds)
        mask = self.add("LessOrEqual", scores, limits, name="set_mask")
        counts = self.add("Cast", mask, to=proto.INT64)
        self.add("ReduceSum", counts, self.constant([1], np.int64), keepdims=0, name="set_size")
        evidence = self.evidence(score.evidence if isinstance(score, ECP) else "relu", z)
        evidence = self.add("Where", usable, evidence, self.constant(0.0))
        strength = self.add("Add", self.sum(evidence, keepdims=0), self.constant(float(self.n_classes)))
        self.add("Div", self.constant(float(self.n_classes)), strength, name="uncertainty")
        inputs = [helper.make_tensor_value_info("evicp/logits", kind, ["batch", self.n_classes])]
        outputs = [
            helper.make_tensor_value_info("set_mask", proto.BOOL, ["batch", self.n_classes]),
            helper.make_tensor_value_info("set_size", proto.INT64, ["batch"]),
            helper.make_tensor_value_info("uncertainty", proto.DOUBLE, ["batch"]),
        ]
        graph = helper.make_graph(self.nodes, "evicp_sets", inputs, outputs, list(self.constants.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=self.ir_version)

    # Scores, as in scores.py -----------------------------------------------------------------------------------

    def scores(self, score: Score, z: str) -> str:
        """Every label's score; a masked label's is +inf."""
        if getattr(score, "randomized", False):
            raise ScoreError(
                f"{score.describe()} is randomised, which no standard ONNX operator can do reproducibly. "
                f"Calibrate with {type(score).__name__}(randomized=False), or with ECP or LAC."
            )
        builders: dict[type, Callable[[Any, str], str]] = {
            APS: self.aps,
            ECP: self.ecp,
            LAC: self.lac,
            Margin: self.margin,
            RAPS: self.raps,
            SAPS: self.saps,
            TopK: self.topk,
        }
        if type(score) not in builders:
            raise ScoreError(f"{score.describe()} cannot be exported: only built-in scores have ONNX operators.")
        value = builders[type(score)](score, z)
        return self.add("Where", self.masked(z), self.constant(np.inf), value)

    def ecp(self, score: ECP, z: str) -> str:
        """Eq. 11 on the log scale."""
        if callable(score.evidence) or score.utility is not None:
            raise ScoreError("ECP with functions of your own cannot be exported: a graph holds no Python.")
        k = self.n_classes
        rates = score.rates(k)
        evidence, prior = self.evidence(score.evidence, z), self.constant(np.ones(k) if rates is None else k * rates)
        alpha = self.add("Add", evidence, prior)
        surprisal = self.surprisal(alpha)
        keys = (z,) if rates is None else (alpha, self.lost(alpha, evidence, prior), z)
        ranks = self.ranks(*keys)
        left = self.add(
            "Log", self.add("Div", self.add("Sub", self.constant(float(k)), ranks), self.constant(float(k)))
        )
        log_phi = self.log_softmax(z, score.temperature)
        inner = self.add("Sub", log_phi, self.add("Mul", self.constant(2.0), surprisal))
        denominator = self.add("Add", inner, left)
        epsilon = score.epsilon(k)
        if epsilon > 0:
            denominator = self.log_add_exp(denominator, float(np.log(epsilon)))
        log_pi = self.constant(np.zeros(k) if rates is None else np.log(rates))
        cost = self.add("Sub", self.add("Add", self.add("Log", surprisal), log_pi), denominator)
        possible_cost = self.add("Where", self.masked(z), self.constant(-np.inf), cost)
        return self.add("Sub", cost, self.max(possible_cost))

    def lac(self, score: LAC, z: str) -> str:
        return self.add("Neg", self.log_softmax(z, score.temperature))

    def aps(self, score: APS | RAPS, z: str) -> str:
        """The mass of labels strictly above, plus the label's own probability."""
        p = self.softmax(z, score.temperature)
        values, order = self.sort(z)
        ordered = self.add("GatherElements", p, order, axis=1)
        before = self.add("CumSum", ordered, self.constant(1, np.int64), exclusive=1)
        above = self.unsort(self.first_of_group(before, values), order, self.zeros(z))
        return self.add("Add", above, p)

    def raps(self, score: RAPS, z: str) -> str:
        excess = self.add("Sub", self.ranks(z), self.constant(score.k_reg - 1.0))
        charged = self.add("Max", excess, self.constant(0.0))
        return self.add("Add", self.aps(score, z), self.add("Mul", self.constant(score.lam), charged))

    def saps(self, score: SAPS, z: str) -> str:
        largest = self.max(self.softmax(z, score.temperature))
        return self.add("Add", largest, self.add("Mul", self.constant(score.lam), self.ranks(z)))

    def topk(self, score: TopK, z: str) -> str:  # noqa: ARG002 - ranks have no parameters
        return self.add("Add", self.ranks(z), self.constant(1.0))

    def margin(self, score: Margin, z: str) -> str:
        p = self.softmax(z, score.temperature)
        values, _ = self.sort(p)
        best, second = self.columns(values, 0, 1), self.columns(values, 1, 2)
        other = self.add("Where", self.add("Equal", p, best), second, best)
        return self.add("Sub", other, p)

    # Parts -----------------------------------------------------------------------------------------------------

    def usable(self, z: str) -> str:
        """Which rows can be scored, (batch, 1): as `checks.blocks`, by counting, since TopK may put NaN anywhere."""
        in_range = self.sum(self.to_double(self.add("LessOrEqual", z, self.constant(LARGEST_LOGIT))))
        possible = self.sum(self.to_double(self.add("Greater", z, self.constant(-np.inf))))
        all_in_range = self.add("Equal", in_range, self.constant(float(self.n_classes)))
        return str(self.add("And", all_in_range, self.add("Greater", possible, self.constant(0.0))))

    def masked(self, z: str) -> str:
        return self.add("Equal", z, self.constant(-np.inf))

    def evidence(self, kind: Any, z: str) -> str:
        """Definition 1; masked labels have none."""
        if kind == "exp":
            clipped = self.add("Clip", z, self.constant(-10.0), self.constant(10.0))
            value = self.add("Exp", clipped)
        elif kind == "softplus":
            value = self.log_add_exp(z, 0.0)
        else:
            value = self.add("Relu", z)
        return self.add("Where", self.masked(z), self.constant(0.0), value)

    def surprisal(self, alpha: str) -> str:
        """-ln p; the largest label's from the sum of the others, where p is near 1."""
        largest = self.max(alpha)
        is_largest = self.add("Equal", alpha, largest)
        rest = self.sum(self.add("Where", is_largest, self.constant(0.0), alpha))
        total = self.sum(alpha)
        plain = self.add("Neg", self.add("Log", self.add("Div", alpha, total)))
        exact = self.log1p(self.add("Div", rest, largest))
        dominates = self.add("And", is_largest, self.add("Greater", largest, rest))
        alone = self.add("Equal", self.sum(self.to_double(is_largest)), self.constant(1.0))
        return self.add("Where", self.add("And", dominates, alone), exact, plain)

    def softmax(self, z: str, temperature: float) -> str:
        return self.add("Exp", self.log_softmax(z, temperature))

    def log_softmax(self, z: str, temperature: float) -> str:
        shifted = self.add("Div", self.add("Sub", z, self.max(z)), self.constant(temperature))
        return self.add("Sub", shifted, self.add("Log", self.sum(self.add("Exp", shifted))))

    def log1p(self, x: str) -> str:
        """ln(1 + x) without the loss of small x: x ln(y) / (y - 1), y = 1 + x, and x itself where y is 1."""
        one = self.constant(1.0)
        y = self.add("Add", one, x)
        gap = self.add("Sub", y, one)
        lost = self.add("Equal", gap, self.constant(0.0))
        ratio = self.add("Div", self.add("Mul", x, self.add("Log", y)), self.add("Where", lost, one, gap))
        return self.add("Where", lost, x, ratio)

    def log_add_exp(self, a: str, b: float) -> str:
        """ln(e^a + e^b), also for a = -inf."""
        constant = self.constant(b)
        distance = self.add("Abs", self.add("Sub", a, constant))
        return self.add("Add", self.add("Max", a, constant), self.log1p(self.add("Exp", self.add("Neg", distance))))

    def sort(self, z: str) -> tuple[str, str]:
        """Values in descending order and where they came from."""
        values, order = self.add("TopK", z, self.constant([self.n_classes], np.int64), axis=1, outputs=2)
        return values, order

    def ranks(self, z: str, *others: str) -> str:
        """r: how many labels lie strictly above, in z, then in the keys after it; equal labels share a rank."""
        values, order = self.sort(z)
        positions = self.add("Add", self.constant(np.arange(self.n_classes)[None]), self.zeros(z))
        result = self.unsort(self.first_of_group(positions, values), order, positions)
        if not others:
            return result
        places = self.add("Mul", result, self.constant(float(self.n_classes)))
        ordered = self.add("Add", places, self.ranks(others[0]))
        return self.ranks(self.add("Neg", ordered), *others[1:])

    def lost(self, alpha: str, evidence: str, prior: str) -> str:
        """What rounding took from alpha = evidence + prior: the second key of the order, as in `evidence.py`."""
        virtual = self.add("Sub", alpha, evidence)
        of_evidence = self.add("Sub", evidence, self.add("Sub", alpha, virtual))
        return str(self.add("Add", of_evidence, self.add("Sub", prior, virtual)))

    def first_of_group(self, running: str, values: str) -> str:
        """For each sorted position, `running` at the first position of equal values.

        Group numbers are running counts of changes; adding `running` at each group's first position into the slot of
        its group number, then reading the slots back, needs no running maximum (ONNX has none).
        """
        head = self.columns(values, 0, self.n_classes - 1)
        same = self.to_double(self.add("Equal", self.columns(values, 1, self.n_classes), head))
        changes = self.add("Sub", self.constant(1.0), same)
        first = self.add("Mul", self.columns(running, 0, 1), self.constant(0.0))
        opens = self.add("Concat", self.add("Add", first, self.constant(1.0)), changes, axis=1)
        group = self.add("CumSum", opens, self.constant(1, np.int64))
        index = self.add("Cast", self.add("Sub", group, self.constant(1.0)), to=self.onnx.TensorProto.INT64)
        opening = self.add("Mul", running, opens)
        empty = self.add("Mul", running, self.constant(0.0))
        slots = self.add("ScatterElements", empty, index, opening, axis=1, reduction="add")
        return self.add("GatherElements", slots, index, axis=1)

    def unsort(self, values: str, order: str, like: str) -> str:
        return self.add("ScatterElements", like, order, values, axis=1)

    def zeros(self, z: str) -> str:
        """Zeros of the batch's shape, also where z is -inf."""
        return self.to_double(self.add("Not", self.add("Equal", z, z)))

    def columns(self, x: str, start: int, stop: int) -> str:
        bounds = (self.constant([value], np.int64) for value in (start, stop, 1))  # starts, ends, axes
        return str(self.add("Slice", x, *bounds))

    def max(self, x: str) -> str:
        """The row maximum: TopK, since ReduceMax changed its signature between opsets."""
        value, _ = self.add("TopK", x, self.constant([1], np.int64), axis=1, outputs=2)
        return str(value)

    def sum(self, x: str, keepdims: int = 1) -> str:
        return str(self.add("ReduceSum", x, self.constant([1], np.int64), keepdims=keepdims))

    def to_double(self, x: str) -> str:
        return str(self.add("Cast", x, to=self.onnx.TensorProto.DOUBLE))
