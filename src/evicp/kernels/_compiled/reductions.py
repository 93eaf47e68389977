"""What lanes say together: sums, extremes, bits and counts; and the whole numbers that kernels count in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evicp.kernels._compiled.lanes import (
    LANES,
    Lanes,
    _constant,
    _elementwise,
    _emit_add,
    _emit_larger,
    _emit_smaller,
    _intrinsic,
    _spread,
    _vector,
    _widen,
)
from evicp.kernels._compiled.toolchain import ir, types


def _halves(builder: Any, vector: Any) -> tuple[Any, Any]:
    half = vector.type.count // 2
    index = _vector(ir.IntType(32), half)
    lower = builder.shuffle_vector(vector, vector, ir.Constant(index, list(range(half))))
    upper = builder.shuffle_vector(vector, vector, ir.Constant(index, list(range(half, 2 * half))))
    return lower, upper


def _fold(builder: Any, vector: Any, emit: Callable[..., Any], width: int = 1) -> Any:
    """Combine the halves of a lane vector until `width` lanes are left; one lane is given as a scalar."""
    while vector.type.count > width:
        vector = emit(builder, *_halves(builder, vector))
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0)) if width == 1 else vector


def _emit_sum(builder: Any, vector: Any) -> Any:
    """Lanes added up in float64."""
    halved = _fold(builder, vector, _emit_add, LANES // 2)
    return _fold(builder, _widen(builder, halved), _emit_add)


def _emit_but_largest(builder: Any, tops: Any) -> Any:
    """The sum in float64 of what is positive in lanes, but for the largest."""
    total = None
    while tops.type.count > 1:
        lower, upper = _halves(builder, tops)
        smaller = _emit_larger(builder, _emit_smaller(builder, lower, upper), _constant(lower.type, 0.0))
        rest, total = total, _widen(builder, smaller)
        total = builder.fadd(total, builder.fadd(*_halves(builder, rest))) if rest else total
        tops = _emit_larger(builder, lower, upper)
    return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))


def _emit_level(builder: Any, vector: Any, groups: int) -> Any:
    return _fold(builder, _fold(builder, vector, _emit_larger, groups), _emit_smaller)


def _reduction(emit: Callable[..., Any], result: Any = None) -> Callable[..., Any]:
    """An intrinsic from a lane vector to one number, of the lanes' own type unless said otherwise."""

    def define(_typing: Any, lanes: Any) -> Any:
        return (result or lanes.dtype)(lanes), lambda _context, builder, _signature, values: emit(builder, values[0])

    return _intrinsic(define)


_sum = _reduction(_emit_sum, types.float64)
_but_largest = _reduction(_emit_but_largest, types.float64)
_sum_whole = _reduction(lambda builder, vector: _fold(builder, vector, lambda b, x, y: b.add(x, y)))
_largest = _reduction(lambda builder, vector: _fold(builder, vector, _emit_larger))
_smallest = _reduction(lambda builder, vector: _fold(builder, vector, _emit_smaller))
#: From the largest logit of each lane: a logit that at least 4 (or 8, or 16) labels reach, and not many more.
_level_of_4 = _reduction(lambda builder, vector: _emit_level(builder, vector, 4))
_level_of_8 = _reduction(lambda builder, vector: _emit_level(builder, vector, 8))
_level_of_16 = _reduction(lambda builder, vector: _emit_level(builder, vector, 16))


def _emit_bits(builder: Any, lanes: Any) -> Any:
    """One bit for each lane that is true, the others 0."""
    return builder.zext(builder.bitcast(lanes, ir.IntType(LANES)), ir.IntType(32))


def _comparison(operator: str) -> Callable[..., Any]:
    """An intrinsic that compares lanes with a number and gives one bit for each."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _emit_bits(builder, builder.fcmp_ordered(operator, values[0], _spread(builder, values[1])))

    return _intrinsic(lambda _typing, lanes, _x: (types.uint32(lanes, lanes.dtype), generate))


_above = _comparison(">")
_at_least = _comparison(">=")


@_intrinsic
def _not_negative(_typing: Any, lanes: Any) -> Any:
    """One bit for each lane: whether it is at least 0, or NaN."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        zeros = _constant(values[0].type, 0.0)
        return _emit_bits(builder, builder.fcmp_unordered(">=", values[0], zeros))

    return types.uint32(lanes), generate


@_intrinsic
def _nans(_typing: Any, lanes: Any) -> Any:
    """One bit for each lane: whether it is NaN."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _emit_bits(builder, builder.fcmp_unordered("uno", values[0], values[0]))

    return types.uint32(lanes), generate


def _counting(operator: str) -> Callable[..., Any]:
    """An intrinsic that adds 1 to the whole numbers `counts` where a comparison of lanes holds."""

    def emit(builder: Any, counts: Any, x: Any, y: Any) -> Any:
        return builder.sub(counts, builder.sext(builder.fcmp_ordered(operator, x, y), counts.type))

    return _intrinsic(lambda _typing, counts, x, y: _elementwise(emit, (counts, x, y)))


_one_more = _counting(">")
_one_more_at_least = _counting(">=")


@_intrinsic
def _no_counts(_typing: Any, row: Any) -> Any:
    """Zeros to count in lanes with, as wide as the row's numbers."""
    whole = types.int64 if row.dtype == types.float64 else types.int32
    return Lanes(whole)(row), lambda context, _builder, signature, _values: _constant(
        context.get_value_type(signature.return_type), 0
    )


def _choice(operator: str) -> Callable[..., Any]:
    """An intrinsic that gives the first of two whole numbers where a comparison holds, else the second."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.select(builder.icmp_signed(operator, *values), *values)

    return _intrinsic(lambda _typing, _x, _y: (types.int64(types.int64, types.int64), generate))


#: As `min`, `max` and `int`, which Numba compiles by themselves, for every type once more.
_least = _choice("<")
_most = _choice(">")


@_intrinsic
def _whole(_typing: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.cast(builder, values[0], *signature.args, types.int64)

    return types.int64(x), generate


@_intrinsic
def _count_bits(_typing: Any, bits: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.zext(builder.ctpop(values[0]), ir.IntType(64))

    return types.int64(bits), generate


@_intrinsic
def _lowest_bit(_typing: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set, 0 if none is."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        zeros = builder.cttz(values[0], ir.Constant(ir.IntType(1), 0))
        return builder.zext(builder.and_(zeros, ir.Constant(zeros.type, zeros.type.width - 1)), ir.IntType(64))

    return types.int64(bits), generate
