"""What a prediction set costs when the true label is known: losses that never rise as the set grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from evicp.errors import InputError, InputTypeError
from evicp.input import convert
from evicp.input.classes import in_class_order
from evicp.sets import PredictionSets, holds
from evicp.types import F64, I32, I64

__all__ = ["hierarchy_costs"]

#: A user's loss: of the labels of a set, best first, and the true label.
SetLoss = Callable[[I32, int], float]
#: No loss is larger.
_LARGEST = 1e300
MISS, CLASS_COSTS, COST_MATRIX, FUNCTION = "miss", "class_costs", "cost_matrix", "function"


def exact(value: float) -> Fraction:
    """The simple fraction that a double stands for: 0.1 is 1/10, and 0.333... is 1/3; else the number as written."""
    simple = Fraction(float(value)).limit_denominator(10**6)
    return simple if float(simple) == value else Fraction(repr(float(value)))


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of a set given the true label: between 0 (the full set) and `largest`, never rising as sets grow.

    `costs` are (K,) for `class_costs`, (K, K) for `cost_matrix` (true label, label in the set), else empty.
    """

    kind: str
    largest: float = 1.0
    costs: F64 = field(default_factory=lambda: np.empty(0))
    function: SetLoss | None = None

    @property
    def text(self) -> str:
        """The loss in words."""
        if self.kind == FUNCTION:
            return f"{name_of(self.function)}(set, label), at most {self.largest:g}"
        if self.kind == MISS:
            return "1 for a set without the true label"
        what = "the class of a missed label" if self.kind == CLASS_COSTS else "the closest label in the set"
        return f"cost by {what}, at most {self.largest:g}"

    def of_miss(self, labels: I64) -> F64:
        """The loss of the empty set for each true label, (n,)."""
        if self.kind == MISS:
            return np.ones(len(labels))
        return self._of_class[labels]

    @cached_property
    def _of_class(self) -> F64:
        """The loss of the empty set by true class, (K,)."""
        highest: F64 = self.costs if self.kind == CLASS_COSTS else self.costs.max(1)
        return highest

    def of_sets(self, sets: PredictionSets, labels: I64) -> F64:
        """The loss of each set, (n,), of checked labels."""
        if self.kind == FUNCTION:
            pairs = zip(sets, labels.tolist(), strict=True)
            return np.array([self.value(row, label, i) for i, (row, label) in enumerate(pairs)])
        losses = self.of_miss(labels)
        if self.kind != COST_MATRIX:
            return np.where(holds(sets, labels), 0.0, losses)
        filled = np.flatnonzero(sets.sizes)
        if filled.size:
            costs = self.costs[np.repeat(labels, sets.sizes), sets.labels]
            losses[filled] = np.minimum.reduceat(costs, sets.offsets[filled])
        return losses

    def value(self, labels: I32, true: int, row: int) -> float:
        """What the user's function gives for one set, checked."""
        if self.function is None:
            raise InputError(
                "the loss was your own function, which files do not contain. Supply it: load(path, loss=...)."
            )
        given = self.function(labels, true)
        try:
            value = float(given)
        except (TypeError, ValueError):
            value = np.nan
        if not 0 <= value <= self.largest:
            raise InputError(
                f"the loss {name_of(self.function)} must return a number from 0 to largest={self.largest:g}; got "
                f"{given!r} for a set of {len(labels)} label(s) at row {row}. Scale it, or give its largest value."
            )
        return value

    def path(self, labels: I32, ends: I64, true: int, row: int) -> Iterator[tuple[int, float, float]]:
        """Where the loss of a growing set drops: the step, the loss before it and after it.

        Parameters
        ----------
        labels : all K labels, best first
        ends : the size of the set after each step
        true, row : the true label, and the number of the row
        """
        before, size = self.value(labels[:0], true, row), 0
        for step, end in enumerate(ends.tolist()):
            after = self.value(labels[:end], true, row)
            if after > before:
                raise InputError(
                    f"the loss {name_of(self.function)} is not monotone: at row {row}, true label {true}, it rises "
                    f"from {before:g} to {after:g} as the set grows from {size} to {end} labels. Use a loss that never "
                    "rises as labels are added."
                )
            if after < before:
                yield step, before, after
            before, size = after, end
        if before:
            raise InputError(
                f"the loss {name_of(self.function)} of the full set must be 0; got {before:g} at row {row}, true label "
                f"{true}. Subtract the loss of the full set."
            )


def name_of(function: Any) -> str:
    """What a function is called."""
    return str(getattr(function, "__name__", type(function).__name__))


def as_loss(loss: Any, class_costs: Any, largest: float, n_classes: int, class_names: Any) -> Loss:
    """The loss that was given, checked.

    Parameters
    ----------
    loss, class_costs, largest : as for `control_risk`
    n_classes, class_names : K, and names of the classes
    """
    if class_costs is not None:
        if not (isinstance(loss, str) and loss == MISS):
            raise InputError("pass class_costs= or loss=, not both.")
        costs = _numbers(in_class_order(class_costs, "class_costs", class_names), "class_costs", (n_classes,))
        return Loss(CLASS_COSTS, float(costs.max()), costs)
    if isinstance(loss, str):
        if loss != MISS:
            raise InputError(f'loss must be "miss", a (K, K) matrix of costs, or a function; got {loss!r}.')
        return Loss(MISS)
    if not callable(loss):
        costs = _numbers(loss, "the cost matrix", (n_classes, n_classes))
        if np.any(np.diag(costs) != 0):
            bad = int(np.flatnonzero(np.diag(costs))[0])
            raise InputError(
                f"the cost matrix must be 0 on its diagonal; got {costs[bad, bad]:g} for class {bad}. A set with the "
                "true label has no loss."
            )
        return Loss(COST_MATRIX, float(costs.max()), costs)
    if isinstance(largest, bool) or not isinstance(largest, int | float | np.number) or not 0 < largest <= _LARGEST:
        raise InputError(f"largest must be a positive number, the largest possible loss; got {largest!r}.")
    return Loss(FUNCTION, float(largest), function=loss)


def _numbers(values: Any, what: str, shape: tuple[int, ...]) -> F64:
    """Costs: finite numbers from 0, not all 0, of this shape."""
    array = convert.as_array(values, what)
    if array.dtype.kind not in "fiu":
        raise InputTypeError(f"{what} must be numbers; got dtype {array.dtype}.")
    if array.shape != shape:
        raise InputError(f"{what} must have shape {shape}, one entry per class; got {array.shape}.")
    array = array.astype(np.float64)
    if not np.all((array >= 0) & (array < np.inf)) or not array.any():
        raise InputError(
            f"{what} must be finite numbers, none below 0 and at least one above; got {array.min():g} as smallest."
        )
    return convert.frozen(array)


def hierarchy_costs(paths: Sequence[Sequence[Any]]) -> F64:
    """Costs from a hierarchy of classes: the height of the first common ancestor of two classes, from 0 to 1.

    Parameters
    ----------
    paths : for each class its ancestors from the root's child down to its parent, (K,) sequences; the class itself is
        the leaf below them

    Returns
    -------
    array
        (K, K): 0 on the diagonal, 1 for classes with no common ancestor but the root. With d the depth of the deepest
        leaf, classes that share their first s ancestors cost (d - s) / d.

    >>> hierarchy_costs([["animal", "dog"], ["animal", "dog"], ["animal", "cat"], ["car"]]).round(2)[0]
    array([0.  , 0.33, 0.67, 1.  ])
    """
    lists = isinstance(paths, Sequence) and not isinstance(paths, str)
    if not lists or not all(isinstance(path, Sequence) and not isinstance(path, str) for path in paths):
        raise InputTypeError("paths must be a list of ancestors for each class, such as [['animal', 'dog'], ['car']].")
    if len(paths) < 2:
        raise InputError(f"paths must name the ancestors of 2 classes or more; got {len(paths)}.")
    if any(isinstance(ancestor, Sequence | np.ndarray) and not isinstance(ancestor, str) for ancestor in chain(*paths)):
        raise InputTypeError("the ancestors of a class must be names or numbers; one of them is a list.")
    depth = max(map(len, paths)) + 1
    shared = np.zeros((len(paths), len(paths)), np.int64)
    together = np.ones_like(shared, dtype=bool)
    for level in range(depth - 1):
        known: dict[Any, int] = {}
        codes = np.array([known.setdefault(path[level], len(known)) if level < len(path) else -1 for path in paths])
        together &= (codes[:, None] == codes) & (codes >= 0)
        shared += together
    costs = (depth - shared) / depth
    np.fill_diagonal(costs, 0.0)
    return costs
