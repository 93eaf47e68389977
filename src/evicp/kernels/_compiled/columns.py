"""Columns: numbers that lie one after the other, in rooms whose size and layout kernels know.

An index is neither checked nor counted from the end if negative, as one of an array is: of the time of a first call,
much went there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from evicp.kernels._compiled.lanes import _intrinsic
from evicp.kernels._compiled.toolchain import cgutils, extending, ir, numpy_support, templates, types


class Column(types.Type):  # type: ignore[misc]
    """The Numba type of where numbers lie."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Column({dtype})")


class _ColumnModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, column: Column) -> None:
        super().__init__(manager, column, manager.lookup(column.dtype).get_value_type().as_pointer())


class Columns(types.Type):  # type: ignore[misc]
    """The Numba type of where several columns lie, as in the NumPy record `layout`; they are its attributes."""

    def __init__(self, name: str, layout: np.dtype[Any]) -> None:
        self.layout = layout
        super().__init__(name=f"Columns({name})")


class _ColumnsModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, columns: Columns) -> None:
        super().__init__(manager, columns, ir.IntType(8).as_pointer())


extending.register_model(Column)(_ColumnModel)
extending.register_model(Columns)(_ColumnsModel)


def _kind_of(name: str, part: np.dtype[Any]) -> Any:
    """The Numba type of a part of a record."""
    return Columns(name, part) if part.fields else Column(numpy_support.from_dtype(part.base))


@templates.infer_getattr
class _ColumnsAttributes(templates.AttributeTemplate):  # type: ignore[misc]
    key = Columns

    def generic_resolve(self, columns: Columns, name: str) -> Any:
        """The type of a column, by its name."""
        assert columns.layout.fields is not None
        return _kind_of(name, columns.layout.fields[name][0])


class _ColumnTemplate(templates.AbstractTemplate):  # type: ignore[misc]
    metadata = {"target": "cpu"}  # noqa: RUF012 - Numba's name: asked before what is for all targets


@templates.infer_global(operator.getitem)
class _GetItem(_ColumnTemplate):
    def generic(self, args: Any, _keywords: Any) -> Any:
        """The type of a number in a column."""
        column, _ = args
        return column.dtype(column, types.int64) if isinstance(column, Column) else None


@templates.infer_global(operator.setitem)
class _SetItem(_ColumnTemplate):
    def generic(self, args: Any, _keywords: Any) -> Any:
        """A number in a column takes those that can be made one of its own type."""
        column, _, value = args
        return types.void(column, types.int64, value) if isinstance(column, Column) else None


def _lower_columns(context: Any, builder: Any, columns: Columns, value: Any, name: str) -> Any:
    assert columns.layout.fields is not None
    part, offset = columns.layout.fields[name][:2]
    place = builder.gep(value, [ir.Constant(ir.IntType(64), offset)])
    return builder.bitcast(place, context.get_value_type(_kind_of(name, part)))


def _lower_getitem(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
    return builder.load(builder.gep(values[0], [values[1]]))


def _lower_setitem(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    column, _, kind = signature.args
    builder.store(context.cast(builder, values[2], kind, column.dtype), builder.gep(values[0], [values[1]]))


extending.lower_getattr_generic(Columns)(_lower_columns)
extending.lower_builtin(operator.getitem, Column, types.Integer)(_lower_getitem)
extending.lower_builtin(operator.setitem, Column, types.Integer, types.Any)(_lower_setitem)


@_intrinsic
def _column_of(_typing: Any, array: Any, _number: Any) -> Any:
    """A row of a matrix as a column."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        matrix = context.make_array(signature.args[0])(context, builder, values[0])
        width = cgutils.unpack_tuple(builder, matrix.shape, 2)[1]
        return builder.gep(matrix.data, [builder.mul(values[1], width)])

    return Column(array.dtype)(array, types.int64), generate


def _place_in(context: Any, builder: Any, columns: Columns, value: Any, name: str, number: Any) -> Any:
    """Where a number of one of several columns lies."""
    return builder.gep(_lower_columns(context, builder, columns, value, name), [number])


def _reader(record: Any, names: list[str]) -> Callable[..., Any]:
    """An intrinsic that gives what columns with these names hold at a place, as a named tuple of float64."""
    result = types.BaseTuple.from_types([types.float64] * len(names), record)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        places = [_place_in(context, builder, signature.args[0], values[0], name, values[1]) for name in names]
        return context.make_tuple(builder, result, [builder.load(place) for place in places])

    return _intrinsic(lambda _typing, columns, _number: (result(columns, types.int64), generate))


def _writer(names: list[str]) -> Callable[..., Any]:
    """An intrinsic that puts a tuple of float64 into columns with these names, leaving out those without a name."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        for number, name in enumerate(names):
            if name:
                place = _place_in(context, builder, signature.args[0], values[0], name, values[1])
                builder.store(builder.extract_value(values[2], number), place)
        return context.get_dummy_value()

    return _intrinsic(lambda _typing, columns, _place, record: (types.void(columns, types.int64, record), generate))
