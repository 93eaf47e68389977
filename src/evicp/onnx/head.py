"""The operators that turn logits into sets: scores, thresholds and ranks as in `scores.py`, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import ScoreError
from evicp.input.validate import LARGEST_LOGIT, SMALLEST_PROBABILITY
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Margin, Score, TopK
from evicp.onnx.outputs import OFF_ONE
from evicp.types import F64

__all__ = ["Head"]


class Head:
    """A graph under construction: each method adds operators and returns the name of their result."""

    def __init__(self, onnx: Any, n_classes: int, opset: int, ir_version: int) -> None:
        self.onnx, self.n_classes, self.opset, self.ir_version = onnx, n_classes, opset, ir_version
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def add(self, operator: str, *inputs: str, outputs: int = 1, name: str | None = None, **attributes: Any) -> Any:
        """The result of an operator, or its results."""
        names = [name] if name else [f"evicp/{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        """A constant tensor."""
        array: NDArray[Any] = np.asarray(value, dtype)
        name = f"evicp/c{len(self.constants)}"
        self.constants[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def build(self, score: Score, thresholds: F64, kind: int, *, of_probabilities: bool = False) -> Any:
        """The whole head as a model of its own: logits or probabilities in, mask, size and uncertainty out."""
        helper, proto = self.onnx.helper, self.onnx.TensorProto
        # A model that does not give K numbers a row fails here: each row of logits belongs to a row of inputs.
        rows = self.add("Reshape", "evicp/logits", self.constant([0, self.n_classes], np.int64))
        given = self.add("Cast", rows, to=proto.DOUBLE)
        usable = self.sums_to_one(given) if of_probabilities else self.usable(given)
        logits = self.log(given) if of_probabilities else given
        z = self.add("Where", usable, logits, self.constant(0.0))
        scores = self.add("Where", usable, self.scores(score, z), self.constant(-np.inf))
        mask = self.add("LessOrEqual", scores, self.constant(thresholds), name="set_mask")
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
        score_of = self.add("Sub", cost, self.max(possible_cost))
        impossible = self.sum(self.to_double(self.masked(z)))
        is_certain = self.add("Equal", impossible, self.constant(self.n_classes - 1.0))
        return self.add("Where", is_certain, self.constant(-np.inf), score_of)

    def lac(self, score: LAC, z: str) -> str:
        """-ln p."""
        return self.add("Neg", self.log_softmax(z, score.temperature))

    def aps(self, score: APS | RAPS, z: str) -> str:
        """The mass of labels strictly above, plus the label's own, in whole numbers, as `accumulated_masses`."""
        w = self.add("Exp", self.shifted(z, score.temperature))
        unit = self.constant(2.0 ** (62 - self.n_classes.bit_length()))
        whole = self.to_whole(self.add("Round", self.add("Mul", w, unit)))
        values, order = self.sort(z)
        own = self.add("GatherElements", whole, order, axis=1)
        before = self.add("CumSum", own, self.constant(1, np.int64), exclusive=1)
        above = self.unsort(self.first_of_group(before, values), order, whole)
        return self.add("Div", self.to_double(self.add("Add", above, whole)), self.to_double(self.sum(whole)))

    def raps(self, score: RAPS, z: str) -> str:
        """APS, and a charge for every rank past `k_reg`."""
        excess = self.add("Sub", self.ranks(z), self.constant(score.k_reg - 1.0))
        charged = self.add("Max", excess, self.constant(0.0))
        return self.add("Add", self.aps(score, z), self.add("Mul", self.constant(score.lam), charged))

    def saps(self, score: SAPS, z: str) -> str:
        """The largest probability, and a charge for every rank after the first."""
        largest = self.max(self.softmax(z, score.temperature))
        return self.add("Add", largest, self.add("Mul", self.constant(score.lam), self.ranks(z)))

    def topk(self, score: TopK, z: str) -> str:  # noqa: ARG002 - ranks have no parameters
        """The rank."""
        return self.add("Add", self.ranks(z), self.constant(1.0))

    def margin(self, score: Margin, z: str) -> str:
        """The largest other probability less the label's own."""
        p = self.softmax(z, score.temperature)
        values, _ = self.sort(p)
        best, second = self.columns(values, 0, 1), self.columns(values, 1, 2)
        other = self.add("Where", self.add("Equal", p, best), second, best)
        return self.add("Sub", other, p)

    # Parts -----------------------------------------------------------------------------------------------------

    def usable(self, z: str) -> str:
        """Which rows can be scored, (batch, 1): as `validate.blocks`, by counting, since TopK may put NaN anywhere."""
        in_range = self.sum(self.to_double(self.add("LessOrEqual", z, self.constant(LARGEST_LOGIT))))
        possible = self.sum(self.to_double(self.add("Greater", z, self.constant(-np.inf))))
        all_in_range = self.add("Equal", in_range, self.constant(float(self.n_classes)))
        return str(self.add("And", all_in_range, self.add("Greater", possible, self.constant(0.0))))

    def sums_to_one(self, p: str) -> str:
        """Which rows are probabilities, (batch, 1); NaN is not."""
        possible = self.sum(self.to_double(self.add("LessOrEqual", self.constant(0.0), p)))
        none_negative = self.add("Equal", possible, self.constant(float(self.n_classes)))
        distance = self.add("Abs", self.add("Sub", self.sum(p), self.constant(1.0)))
        return str(self.add("And", none_negative, self.add("LessOrEqual", distance, self.constant(OFF_ONE))))

    def log(self, p: str) -> str:
        """Probabilities as logits; one of 0 stays possible."""
        return str(self.add("Log", self.add("Max", p, self.constant(SMALLEST_PROBABILITY))))

    def masked(self, z: str) -> str:
        """Which labels are impossible."""
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
        """softmax(z / T)."""
        return self.add("Exp", self.log_softmax(z, temperature))

    def log_softmax(self, z: str, temperature: float) -> str:
        """ln softmax(z / T)."""
        shifted = self.shifted(z, temperature)
        return self.add("Sub", shifted, self.add("Log", self.sum(self.add("Exp", shifted))))

    def shifted(self, z: str, temperature: float) -> str:
        """(z - max z) / T."""
        return str(self.add("Div", self.add("Sub", z, self.max(z)), self.constant(temperature)))

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
        nothing = self.add("Sub", order, order)
        positions = self.add("Add", self.constant(np.arange(self.n_classes)[None], np.int64), nothing)
        result = self.to_double(self.unsort(self.first_of_group(positions, values), order, positions))
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
        """For each sorted position, `running`, whole numbers, at the first position of equal values.

        Group numbers are running counts of changes; adding `running` at each group's first position into the slot of
        its group number, then reading the slots back, needs no running maximum (ONNX has none).
        """
        head = self.columns(values, 0, self.n_classes - 1)
        same = self.to_whole(self.add("Equal", self.columns(values, 1, self.n_classes), head))
        one = self.constant(1, np.int64)
        nothing = self.add("Sub", running, running)
        opens = self.add(
            "Concat", self.add("Add", self.columns(nothing, 0, 1), one), self.add("Sub", one, same), axis=1
        )
        index = self.add("Sub", self.add("CumSum", opens, one), one)
        opening = self.add("Mul", running, opens)
        slots = self.add("ScatterElements", nothing, index, opening, axis=1, reduction="add")
        return self.add("GatherElements", slots, index, axis=1)

    def unsort(self, values: str, order: str, like: str) -> str:
        """Values of sorted positions, back where they came from."""
        return self.add("ScatterElements", like, order, values, axis=1)

    def columns(self, x: str, start: int, stop: int) -> str:
        """The columns from `start` up to `stop`."""
        bounds = (self.constant([value], np.int64) for value in (start, stop, 1))  # starts, ends, axes
        return str(self.add("Slice", x, *bounds))

    def max(self, x: str) -> str:
        """The row maximum: TopK, since ReduceMax changed its signature between opsets."""
        value, _ = self.add("TopK", x, self.constant([1], np.int64), axis=1, outputs=2)
        return str(value)

    def sum(self, x: str, keepdims: int = 1) -> str:
        """The row sum."""
        return str(self.add("ReduceSum", x, self.constant([1], np.int64), keepdims=keepdims))

    def to_whole(self, x: str) -> str:
        """Truth values, or numbers, as whole numbers."""
        return str(self.add("Cast", x, to=self.onnx.TensorProto.INT64))

    def to_double(self, x: str) -> str:
        """Truth values, or numbers, as doubles."""
        return str(self.add("Cast", x, to=self.onnx.TensorProto.DOUBLE))
