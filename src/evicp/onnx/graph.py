"""ONNX graphs written like formulas: arithmetic on a tensor adds operators to its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


class Graph:
    """Operators on tensors of shape (batch, K).

    Parameters
    ----------
    onnx : the package
    n_classes : K
    """

    def __init__(self, onnx: Any, n_classes: int) -> None:
        self.onnx, self.n_classes = onnx, n_classes
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: Tensor | ArrayLike, name: str | None = None, **attributes: Any) -> Tensor:
        """The result of an operator; inputs that are no tensors become constants in double precision."""
        return self._add(operator, inputs, [name or f"evicp/{len(self.nodes)}"], attributes)[0]

    def top(self, values: Tensor, count: int | Tensor, *, axis: int = 1, largest: int = 1) -> tuple[Tensor, Tensor]:
        """The largest values of each row in descending order, or the smallest ascending, and where they came from."""
        names = [f"evicp/{len(self.nodes)}_{what}" for what in ("values", "places")]
        wanted = count if isinstance(count, Tensor) else self.whole([count])
        found, places = self._add("TopK", (values, wanted), names, {"axis": axis, "largest": largest})
        return found, places

    def _add(self, operator: str, inputs: Any, names: list[str], attributes: dict[str, Any]) -> list[Tensor]:
        tensors = [one if isinstance(one, Tensor) else self.constant(one) for one in inputs]
        self.nodes.append(self.onnx.helper.make_node(operator, [one.name for one in tensors], names, **attributes))
        return [Tensor(self, name) for name in names]

    def whole(self, value: ArrayLike) -> Tensor:
        """A constant of whole numbers."""
        return self.constant(value, np.int64)

    def constant(self, value: ArrayLike, dtype: type[np.generic] = np.float64) -> Tensor:
        """A constant, in double precision by default."""
        name = f"evicp/c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return Tensor(self, name)


def _operator(name: str) -> Callable[..., Tensor]:
    """A method that adds an operator whose first input is the tensor itself."""
    return lambda self, *others: self.graph.add(name, self, *others)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A result in a graph; each operation on it adds an operator."""

    graph: Graph
    name: str

    __add__ = _operator("Add")
    __sub__ = _operator("Sub")
    __mul__ = _operator("Mul")
    __truediv__ = _operator("Div")
    __neg__ = _operator("Neg")
    __le__ = _operator("LessOrEqual")
    __gt__ = _operator("Greater")
    __and__ = _operator("And")
    __or__ = _operator("Or")
    equals = _operator("Equal")
    where = _operator("Where")  # truth values, what to take where they are true, and where not
    maximum = _operator("Max")  # of two, entry by entry
    minimum = _operator("Min")
    exp = _operator("Exp")
    log = _operator("Log")
    abs = _operator("Abs")

    def whole(self, name: str | None = None) -> Tensor:
        """Truth values, or numbers, as whole numbers."""
        return self.graph.add("Cast", self, name=name, to=self.graph.onnx.TensorProto.INT64)

    def double(self) -> Tensor:
        """Truth values, or numbers, as doubles."""
        return self.graph.add("Cast", self, to=self.graph.onnx.TensorProto.DOUBLE)

    def max(self) -> Tensor:
        """The row maximum: TopK, since ReduceMax changed its signature between opsets."""
        return self.graph.top(self, 1)[0]

    def sum(self, *, keepdims: int = 1) -> Tensor:
        """The row sum."""
        return self.graph.add("ReduceSum", self, self.graph.whole([1]), keepdims=keepdims)

    def count(self, *, keepdims: int = 1) -> Tensor:
        """How many entries of a row are true, as a double."""
        return self.double().sum(keepdims=keepdims)

    def sort(self) -> tuple[Tensor, Tensor]:
        """Values in descending order and where they came from."""
        return self.graph.top(self, self.graph.n_classes)

    def unsort(self, order: Tensor) -> Tensor:
        """Values of sorted positions, back where they came from."""
        return self.graph.add("ScatterElements", self, order, self, axis=1)

    def gather(self, places: Tensor) -> Tensor:
        """In each row the entries at some places."""
        return self.graph.add("GatherElements", self, places, axis=1)

    def columns(self, start: int, stop: int | Tensor) -> Tensor:
        """The columns from `start` up to `stop`."""
        end = stop if isinstance(stop, Tensor) else self.graph.whole([stop])
        return self.graph.add("Slice", self, self.graph.whole([start]), end, self.graph.whole([1]))  # and the axis

    def largest_of_batch(self) -> Tensor:
        """The largest of (batch, 1) whole numbers, 1 at least, as one whole number (1,)."""
        values = self.graph.add("Concat", self, [[1.0]], axis=0)
        return self.graph.add("Reshape", self.graph.top(values, 1, axis=0)[0].whole(), self.graph.whole([1]))
