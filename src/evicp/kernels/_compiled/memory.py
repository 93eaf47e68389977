"""Lanes from and to memory: loads, stores, rows turned on their side, numbers fetched ahead."""

from __future__ import annotations

from math import inf
from typing import Any

from evicp.kernels._compiled.columns import Column
from evicp.kernels._compiled.lanes import LANES, Lanes, _constant, _intrinsic, _spread, _vector
from evicp.kernels._compiled.toolchain import cgutils, ir, types


def _begin(context: Any, builder: Any, kind: Any, numbers: Any) -> Any:
    """Where the first number of an array or a column lies."""
    return numbers if isinstance(kind, Column) else context.make_array(kind)(context, builder, numbers).data


def _pointer(context: Any, builder: Any, kind: Any, numbers: Any, start: Any) -> Any:
    """Where lanes begin in an array or a column of the Numba type `kind`."""
    begin = _begin(context, builder, kind, numbers)
    return builder.bitcast(builder.gep(begin, [start]), _vector(context.get_value_type(kind.dtype)).as_pointer())


@_intrinsic
def _load(_typing: Any, row: Any, _start: Any) -> Any:
    """The 16 logits from number `start` on, in a row of at least 16.

    Where the row ends sooner, its *last* logits in the upper lanes and -inf in the others: the logit in a lane is
    number min(start, len(row) - 16) + lane. There are none where `start` is beyond the row.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        kind = context.get_value_type(signature.return_type)
        beyond = builder.add(values[1], ir.Constant(values[1].type, LANES))
        length = cgutils.unpack_tuple(builder, array.shape, 1)[0]
        missing = builder.sub(beyond, length)

        def read(start: Any) -> Any:
            pointer = builder.bitcast(builder.gep(array.data, [start]), kind.as_pointer())
            return builder.load(pointer, align=context.get_abi_sizeof(kind.element))

        with builder.if_else(builder.icmp_signed("<=", beyond, length), likely=True) as (then, otherwise):
            with then:
                whole, whole_block = read(values[1]), builder.block
            with otherwise:
                number = ir.Constant(_vector(ir.IntType(32)), list(range(LANES)))
                absent = _spread(builder, builder.trunc(missing, ir.IntType(32)))
                present = builder.icmp_signed(">=", number, absent)
                tail = builder.select(present, read(builder.sub(values[1], missing)), _constant(kind, -inf))
                tail_block = builder.block
        result = builder.phi(kind)
        result.add_incoming(whole, whole_block)
        result.add_incoming(tail, tail_block)
        return result

    return Lanes(row.dtype)(row, types.int64), generate


@_intrinsic
def _load_any(_typing: Any, row: Any, _start: Any) -> Any:
    """The 16 logits from number `start` on; where the row ends sooner, its last 16: some come twice."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        last = builder.sub(cgutils.unpack_tuple(builder, array.shape, 1)[0], ir.Constant(values[1].type, LANES))
        start = builder.select(builder.icmp_signed("<", values[1], last), values[1], last)
        pointer = _pointer(context, builder, signature.args[0], values[0], start)
        return builder.load(pointer, align=context.get_abi_sizeof(pointer.type.pointee.element))

    return Lanes(row.dtype)(row, types.int64), generate


@_intrinsic
def _load_whole(_typing: Any, array: Any, _start: Any) -> Any:
    """The 16 numbers of an array from number `start` on, all of which exist."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *values)
        return builder.load(pointer, align=context.get_abi_sizeof(pointer.type.pointee.element))

    return Lanes(array.dtype)(array, types.int64), generate


#: Columns that are turned at a time.
_SIDES = 4


@_intrinsic
def _turn(_typing: Any, logits: Any, _first: Any, _column: Any, turned: Any, _to: Any) -> Any:
    """Put four columns of the 16 rows from `first` on into `turned`, from number `to` on, and give them as lanes."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        width = cgutils.unpack_tuple(builder, array.shape, 2)[1]
        element = context.get_value_type(logits.dtype)
        size, side = context.get_abi_sizeof(element), _vector(element, _SIDES).as_pointer()
        corner = builder.gep(array.data, [builder.add(builder.mul(values[1], width), values[2])])

        def read(row: int) -> Any:
            place = builder.gep(corner, [builder.mul(width, ir.Constant(width.type, row))])
            return builder.load(builder.bitcast(place, side), align=size)

        def join(low: Any, high: Any) -> Any:
            index = _vector(ir.IntType(32), 2 * low.type.count)
            return builder.shuffle_vector(low, high, ir.Constant(index, list(range(index.count))))

        def mix(x: Any, y: Any, *pattern: int) -> Any:  # in each four lanes the same: numbers of x, and from 4 on of y
            places = [4 * four + k % 4 + LANES * (k // 4) for four in range(LANES // 4) for k in pattern]
            return builder.shuffle_vector(x, y, ir.Constant(_vector(ir.IntType(32)), places))

        a, b, c, d = (join(join(read(r), read(r + 4)), join(read(r + 8), read(r + 12))) for r in range(4))
        low_ab, high_ab = mix(a, b, 0, 4, 1, 5), mix(a, b, 2, 6, 3, 7)
        low_cd, high_cd = mix(c, d, 0, 4, 1, 5), mix(c, d, 2, 6, 3, 7)
        columns = [
            mix(x, y, *k) for x, y in ((low_ab, low_cd), (high_ab, high_cd)) for k in ((0, 1, 4, 5), (2, 3, 6, 7))
        ]
        for k, column in enumerate(columns):
            at = builder.add(values[4], ir.Constant(width.type, k * LANES))
            builder.store(column, _pointer(context, builder, signature.args[3], values[3], at), align=size)
        return context.make_tuple(builder, signature.return_type, columns)

    result = types.UniTuple(Lanes(logits.dtype), _SIDES)
    return result(logits, types.int64, types.int64, turned, types.int64), generate


@_intrinsic
def _fetch(_typing: Any, logits: Any, _place: Any) -> Any:
    """Have the 16 numbers from number `place` of all on brought near, if there are any."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _pointer(context, builder, signature.args[0], *values)
        pointer, number = builder.bitcast(place, ir.IntType(8).as_pointer()), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(fetch, [pointer, *(ir.Constant(number, flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(logits, types.int64), generate


@_intrinsic
def _store(_typing: Any, array: Any, start: Any, lanes: Any) -> Any:
    """Put lanes into an array of their own type or a wider one, from number `start` on."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *values[:2])
        kind = pointer.type.pointee
        if isinstance(array.dtype, types.Integer):
            value = builder.sext(values[2], kind) if lanes.dtype != array.dtype else values[2]
        elif isinstance(lanes.dtype, types.Integer):
            value = builder.sitofp(values[2], kind)
        else:
            value = builder.fpext(values[2], kind) if lanes.dtype != array.dtype else values[2]
        builder.store(value, pointer, align=context.get_abi_sizeof(kind.element))
        return context.get_dummy_value()

    return types.void(array, start, lanes), generate
