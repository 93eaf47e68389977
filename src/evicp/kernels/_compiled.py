"""The compiled kernels of the CPU backend: the built-in scores, close to the cost of reading the logits.

Every built-in score falls as the logit rises, so a row needs a few reductions, a label needs a count of the labels
above it, and a set is a top-m set of which only the candidates are ever ordered. One scalar function, `_value`, turns
these into a label's score in float64 (`_plain_value` is the usual ECP's part of it); all entry points use it and the
same row statistics, so that membership in a set and `score <= threshold` agree bit for bit.

Reductions of floats run in 16 explicit lanes: their order is written here, not chosen by the compiler, so results
depend neither on the processor's vector width nor on where a function is inlined. Lanes hold logits of one row, or, of
narrow rows and the usual scores, one logit of each of 16 rows. A lane vector is a small Numba type of our own;
operations on it are emitted as LLVM vector instructions. Kernels are serial, release the GIL and allocate
nothing; `_numba` shares out blocks of rows to threads. Everything that is compiled stays in this one file, because
Numba's cache on disk notices changes of the kernel's own file only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from importlib import import_module
from math import factorial, inf, log
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from evicp import checks
from evicp.arrays import F64, I32, I64
from evicp.kernels._loading import Cache, uncollected

Function = TypeVar("Function", bound=Callable[..., Any])

# Imported by name, because the stubs of these packages come and go with their versions.
if import_module("numba").config.DISABLE_JIT:
    raise ImportError("Numba's compiler is switched off (NUMBA_DISABLE_JIT)")
njit: Any = import_module("numba").njit
types: Any = import_module("numba.core.types")
cgutils: Any = import_module("numba.core.cgutils")
codegen: Any = import_module("numba.core.codegen")
compiler: Any = import_module("numba.core.compiler")
extending: Any = import_module("numba.extending")
numpy_support: Any = import_module("numba.np.numpy_support")
templates: Any = import_module("numba.core.typing.templates")
ir: Any = import_module("llvmlite.ir")

# ---------------------------------------------------------------------------------------------------------------
# Lanes: 16 numbers that are added, compared and exponentiated side by side

LANES = 16

#: Lanes of float32 are added up in float64 after this many logits, so that long rows keep their accuracy.
_CHUNK = 256 * LANES
#: How many logits ahead of the first pass over a row they are fetched: processors do so as well, but not far enough.
_AHEAD = 1024


class Lanes(types.Type):  # type: ignore[misc]
    """The Numba type of a lane vector."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


class _LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, _vector(manager.lookup(lanes.dtype).get_value_type()))


extending.register_model(Lanes)(_LanesModel)


def _intrinsic(define: Callable[..., Any]) -> Callable[..., Any]:
    """A function of compiled code: `define` gets types, and gives a signature and what emits the code."""
    return cast("Callable[..., Any]", extending.intrinsic(define))


def _vector(element: Any, width: int = LANES) -> Any:
    return ir.VectorType(element, width)


def _element(kind: Any) -> Any:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def _like(kind: Any, element: Any) -> Any:
    """The LLVM type of one element, or of as many as `kind` has."""
    return _vector(element, kind.count) if isinstance(kind, ir.VectorType) else element


def _constant(like: Any, value: float) -> Any:
    """A number, or a lane vector of equal numbers, of the LLVM type `like`."""
    return ir.Constant(like, [value] * like.count if isinstance(like, ir.VectorType) else value)


def _spread(builder: Any, value: Any) -> Any:
    """A scalar in every lane."""
    kind = _vector(value.type)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    everywhere = ir.Constant(_vector(ir.IntType(32)), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), everywhere)


def _emit_add(builder: Any, x: Any, y: Any) -> Any:
    return builder.fadd(x, y)


def _emit_larger(builder: Any, x: Any, y: Any) -> Any:
    """x if x > y else y: of two equal numbers, or with a NaN, the second."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _emit_smaller(builder: Any, x: Any, y: Any) -> Any:
    """x if x < y else y: of two equal numbers, or with a NaN, the second."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


def _emit_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once on every machine; left to the compiler it would be fused here and not there."""
    bits = "f64" if isinstance(_element(x.type), ir.DoubleType) else "f32"
    name = f"llvm.fma.v{LANES}{bits}" if isinstance(x.type, ir.VectorType) else f"llvm.fma.{bits}"
    fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(x.type, [x.type] * 3), name)
    return builder.call(fma, [x, y, z])


#: What ln 2 loses when rounded to float64.
_LN2_ROUNDED_OFF = float(Decimal(2).ln() - Decimal(log(2)))
_EXP_TAYLOR = [1 / factorial(k) for k in range(13, -1, -1)]
#: Fitted to 2^f for float32: within 1.1e-7 on |f| <= 1/2, and every coefficient is a float32.
_EXP2_FITTED = [0.001326471334323287, 0.009671523235738277, 0.05550732836127281, 0.24022243916988373]
_EXP2_FITTED += [0.6931470036506653, 1.0]


def _emit_polynomial(builder: Any, x: Any, coefficients: list[float], number: Callable[..., Any] = _constant) -> Any:
    """Horner's rule, the highest power first."""
    result = number(x.type, coefficients[0])
    for coefficient in coefficients[1:]:
        result = _emit_fma(builder, result, x, number(x.type, coefficient))
    return result


def _exp_numbers(is_double: bool) -> list[float]:
    """The numbers in an exponential: the lowest argument, a rounder, 1 / ln 2, -ln 2 in two parts, coefficients."""
    lowest, rounder = (-707.0, 1.5 * 2.0**52) if is_double else (-124.0, 1.5 * 2.0**23)
    return [lowest, rounder, 1 / log(2), -log(2), -_LN2_ROUNDED_OFF, *(_EXP_TAYLOR if is_double else _EXP2_FITTED)]


def _layout(x: Any) -> tuple[int, int, Any]:
    """Of x's type: the bits of the mantissa, the exponent's bias, and whole numbers of the same size."""
    double = isinstance(_element(x.type), ir.DoubleType)
    mantissa, bias, integer = (52, 1023, ir.IntType(64)) if double else (23, 127, ir.IntType(32))
    return mantissa, bias, _like(x.type, integer)


def _emit_exp(builder: Any, x: Any, number: Callable[..., Any] = _constant, rate: Any = None) -> Any:
    """e^(x rate), up to about e^88, as accurate as its type; what would underflow is about the smallest normal number.

    It is 2^(n + f) with |f| <= 1/2. The power 2^f is a polynomial, exactly 1 at 0; n is added to the exponent's bits.
    Adding 1.5 * 2^(mantissa bits) rounds to an integer and leaves that integer in the lowest bits. In double precision
    f ln 2 is what a subtraction in two parts leaves of x rate; in single precision a product with 1 / ln 2 tells n + f.
    """
    double = isinstance(_element(x.type), ir.DoubleType)
    lowest, rounder, inverse_ln2, minus_ln2, rounded_off, *coefficients = _exp_numbers(double)
    scale = number(x.type, inverse_ln2)
    if double:
        x = _emit_larger(builder, x if rate is None else builder.fmul(x, rate), number(x.type, lowest))
        shifted = _emit_fma(builder, x, scale, number(x.type, rounder))
        n = builder.fsub(shifted, number(x.type, rounder))
        f = _emit_fma(builder, n, number(x.type, rounded_off), _emit_fma(builder, n, number(x.type, minus_ln2), x))
    else:
        x = builder.fmul(x, scale if rate is None else builder.fmul(rate, scale))  # once for all, if the rate is
        x = _emit_larger(builder, x, number(x.type, lowest))
        shifted = builder.fadd(x, number(x.type, rounder))
        f = builder.fsub(x, builder.fsub(shifted, number(x.type, rounder)))
    y = _emit_polynomial(builder, f, coefficients, number)
    mantissa, _, whole = _layout(x)
    exponent = builder.shl(builder.bitcast(shifted, whole), _constant(whole, mantissa))
    return builder.bitcast(builder.add(builder.bitcast(y, whole), exponent), x.type)


def _emit_rough_exp(builder: Any, x: Any, rate: Any) -> Any:
    """No less than e^(x rate) <= 1 and at most 6.2 % more: 2^(n + f) <= 2^n (1 + f), which is n + f read as bits."""
    mantissa, bias, whole = _layout(x)
    rate = builder.fmul(rate, _constant(x.type, 2.0**mantissa / log(2)))  # once for all, if the rate is
    bits = _emit_fma(builder, x, rate, _constant(x.type, bias * 2.0**mantissa))
    return builder.bitcast(builder.fptosi(_emit_larger(builder, bits, _constant(x.type, 0.0)), whole), x.type)


def _emit_rough_log(builder: Any, x: Any) -> Any:
    """No more than ln x, and at most 0.06 less; far less than any logarithm where x is negative."""
    mantissa, bias, whole = _layout(x)
    bits = builder.sitofp(builder.bitcast(x, whole), x.type)
    return _emit_fma(builder, bits, _constant(x.type, log(2) / 2.0**mantissa), _constant(x.type, -bias * log(2)))


def _emit_log(builder: Any, x: Any, less: int) -> Any:
    """ln(x / 2^less) of a positive normal number: x = 2^n m, m in [0.7, 1.4), and ln m = 2 artanh((m - 1) / (m + 1)).

    Our own, because a library's vectorised logarithm may differ from its scalar one in the last bit.
    """
    mantissa, _, whole = _layout(x)
    middle, terms = (0x3FE6A09E667F3BCD, 10) if mantissa == 52 else (0x3F3504F3, 4)  # sqrt(1/2)
    bits = builder.bitcast(x, whole)
    n = builder.ashr(builder.sub(bits, _constant(whole, middle)), _constant(whole, mantissa))
    m = builder.bitcast(builder.sub(bits, builder.shl(n, _constant(whole, mantissa))), x.type)
    f = builder.fdiv(builder.fsub(m, _constant(x.type, 1.0)), builder.fadd(m, _constant(x.type, 1.0)))
    f_squared, twice_f = builder.fmul(f, f), builder.fadd(f, f)
    series = _emit_polynomial(builder, f_squared, [1 / (2 * k + 1) for k in range(terms, 0, -1)])
    log_m = _emit_fma(builder, builder.fmul(twice_f, f_squared), series, twice_f)
    power = builder.fsub(builder.sitofp(n, x.type), _constant(x.type, less))
    return _emit_fma(builder, power, _constant(x.type, log(2)), log_m)


def _emit_softplus(builder: Any, x: Any) -> Any:
    """ln(1 + e^x) = max(x, 0) + ln(1 + y), y = e^-|x|, and ln(1 + y) = 2 artanh(y / (2 + y))."""
    zero, one, two = (_constant(x.type, value) for value in (0.0, 1.0, 2.0))
    y = _emit_exp(builder, _emit_smaller(builder, x, builder.fsub(zero, x)))
    f = builder.fdiv(y, builder.fadd(two, y))
    terms = 17 if isinstance(_element(x.type), ir.DoubleType) else 8
    series = _emit_polynomial(builder, builder.fmul(f, f), [1 / (2 * k + 1) for k in range(terms, 0, -1)] + [1.0])
    logarithm = builder.fmul(builder.fmul(two, f), series)
    return _emit_fma(builder, one, logarithm, _emit_larger(builder, x, zero))


def _emit_clipped_exp(builder: Any, x: Any) -> Any:
    """e^clip(x, -10, 10), and nothing where x is -inf."""
    low, high = _constant(x.type, -10.0), _constant(x.type, 10.0)
    e = _emit_exp(builder, _emit_smaller(builder, _emit_larger(builder, x, low), high))
    possible = builder.fcmp_ordered(">", x, _constant(x.type, -inf))
    return builder.select(possible, e, _constant(x.type, 0.0))


def _emit_mix32(builder: Any, x: Any) -> Any:
    """The 32-bit finaliser of MurmurHash3."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = builder.xor(x, builder.lshr(x, _constant(x.type, shift)))
        x = builder.mul(x, _constant(x.type, factor))
    return builder.xor(x, builder.lshr(x, _constant(x.type, 16)))


def _emit_hashes(builder: Any, x: Any) -> Any:
    """The hash of each lane as float32, 0 where it is -inf."""
    single, whole = _vector(ir.FloatType()), _vector(ir.IntType(32))
    rounded = builder.fptrunc(x, single) if isinstance(_element(x.type), ir.DoubleType) else x
    hashed = _emit_mix32(builder, builder.bitcast(builder.fadd(rounded, _constant(single, 0.0)), whole))
    return builder.select(builder.fcmp_ordered(">", x, _constant(x.type, -inf)), hashed, _constant(whole, 0))


def _emit_ordered_bits(builder: Any, x: Any) -> Any:
    """Bits that compare, as a whole number, as the float64 does."""
    bits = builder.bitcast(x, ir.IntType(64))
    negative = builder.ashr(bits, ir.Constant(bits.type, 63))
    return builder.xor(bits, builder.or_(negative, ir.Constant(bits.type, 1 << 63)))


def _emit_finite(builder: Any, x: Any) -> Any:
    """x, and +inf where x is -inf: for a minimum over possible labels."""
    return builder.select(builder.fcmp_ordered(">", x, _constant(x.type, -inf)), x, _constant(x.type, inf))


def _emit_far_away(builder: Any, x: Any) -> Any:
    """0, and +inf where x is -inf."""
    possible = builder.fcmp_ordered(">", x, _constant(x.type, -inf))
    return builder.select(possible, _constant(x.type, 0.0), _constant(x.type, inf))


def _emit_below(builder: Any, x: Any, y: Any) -> Any:
    """x where x < y, -inf elsewhere: for the largest of the numbers below y."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, _constant(x.type, -inf))


def _emit_unless_at_least(builder: Any, x: Any, y: Any, result: Any) -> Any:
    """0 where x >= y, `result` elsewhere."""
    return builder.select(builder.fcmp_ordered(">=", x, y), _constant(result.type, 0.0), result)


def _emit_if_above(builder: Any, result: Any, x: Any, y: Any) -> Any:
    """`result` where x > y, 0 elsewhere."""
    return builder.select(builder.fcmp_ordered(">", x, y), result, _constant(result.type, 0))


def _widen(builder: Any, x: Any) -> Any:
    """x in float64."""
    return x if isinstance(_element(x.type), ir.DoubleType) else builder.fpext(x, _like(x.type, ir.DoubleType()))


def _emit_units(builder: Any, x: Any) -> Any:
    """Probabilities as integer multiples of 2^-61."""
    wide = _widen(builder, x)
    scaled = builder.fmul(wide, _constant(wide.type, _UNITS))
    return builder.fptosi(builder.fadd(scaled, _constant(wide.type, 0.5)), _like(x.type, ir.IntType(64)))


def _elementwise(emit: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    """Signature and code of an operation on scalars, lane vectors, or both; scalars then act on every lane."""
    vectors = [kind for kind in arguments if isinstance(kind, Lanes)]

    def generate(_context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if vectors:
            pairs = zip(signature.args, values, strict=True)
            values = [value if isinstance(kind, Lanes) else _spread(builder, value) for kind, value in pairs]
        return emit(builder, *values)

    return (vectors or arguments)[0](*arguments), generate


def _whole_of(kind: Any) -> Any:
    """The Numba type of whole numbers, as many as there are floats."""
    return Lanes(types.int64) if isinstance(kind, Lanes) else types.int64


def _unary(emit: Callable[..., Any], result: Any = None) -> Callable[..., Any]:
    """An intrinsic of one argument; its result has the argument's type unless said otherwise."""

    def define(_typing: Any, x: Any) -> Any:
        signature, generate = _elementwise(emit, (x,))
        return (result(x) if result else signature), generate

    return _intrinsic(define)


def _binary(emit: Callable[..., Any]) -> Callable[..., Any]:
    return _intrinsic(lambda _typing, x, y: _elementwise(emit, (x, y)))


_add = _binary(_emit_add)
_sub = _binary(lambda builder, x, y: builder.fsub(x, y))
_mul = _binary(lambda builder, x, y: builder.fmul(x, y))
_larger = _binary(_emit_larger)
_smaller = _binary(_emit_smaller)
_exp = _unary(_emit_exp)
_rough_exp = _binary(_emit_rough_exp)
_rough_log = _unary(_emit_rough_log)
_log = _unary(lambda builder, x: _emit_log(builder, x, 0))
_log_less = _unary(lambda builder, x: _emit_log(builder, x, _LESS))
_relu = _unary(lambda builder, x: _emit_larger(builder, _constant(x.type, 0.0), x))  # keeps a NaN
_softplus = _unary(_emit_softplus)
_clipped_exp = _unary(_emit_clipped_exp)
_finite = _unary(_emit_finite)
_far_away = _unary(_emit_far_away)
_hashes = _unary(_emit_hashes, Lanes(types.uint32))
_mix32 = _unary(_emit_mix32)
_ordered_bits = _unary(_emit_ordered_bits, types.uint64)
_add_whole = _binary(lambda builder, x, y: builder.add(x, y))
_below = _binary(_emit_below)
_fma = _intrinsic(lambda _typing, x, y, z: _elementwise(_emit_fma, (x, y, z)))
_if_above = _intrinsic(lambda _typing, result, x, y: _elementwise(_emit_if_above, (result, x, y)))
_units = _intrinsic(lambda _typing, x: (_whole_of(x)(x), _elementwise(_emit_units, (x,))[1]))
_unless_at_least = _intrinsic(lambda _typing, x, y, result: _elementwise(_emit_unless_at_least, (x, y, result)))


@_intrinsic
def _exp_by(_typing: Any, x: Any, rate: Any, single: Any, double: Any) -> Any:
    """`_exp` of lanes times a rate, its numbers from a table: constants would be loaded anew for every 16 logits."""
    place, is_double = (3, True) if x.dtype == types.float64 else (2, False)

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        def number(_kind: Any, value: float) -> Any:
            at = ir.Constant(ir.IntType(64), _exp_numbers(is_double).index(value))
            return _spread(builder, builder.load(builder.gep(values[place], [at])))

        return _emit_exp(builder, values[0], number, _spread(builder, values[1]))

    return x(x, rate, single, double), generate


def _emit_cast(builder: Any, value: Any, kind: Any) -> Any:
    return builder.fptrunc(value, kind) if isinstance(_element(kind), ir.FloatType) else value


@_intrinsic
def _native(_typing: Any, row: Any, x: Any) -> Any:
    """A float64, or lanes of float64, in the row's own precision."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _emit_cast(builder, values[1], context.get_value_type(signature.return_type))

    return (Lanes(row.dtype)(row, x) if isinstance(x, Lanes) else row.dtype(row, types.float64)), generate


@_intrinsic
def _lanes(_typing: Any, row: Any, _x: Any) -> Any:
    """A float64 in every lane, in the row's own precision."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        element = context.get_value_type(signature.return_type).element
        return _spread(builder, _emit_cast(builder, values[1], element))

    return Lanes(row.dtype)(row, types.float64), generate


# ---------------------------------------------------------------------------------------------------------------
# Columns: numbers that lie one after the other, in rooms whose size and layout kernels know. An index is neither
# checked nor counted from the end if negative, as one of an array is: of the time of a first call, much went there.


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
def _columns_of(_typing: Any, logits: Any, room: Any) -> Any:
    """The columns of a batch of rows, which lie in the bytes of `room`."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.make_array(signature.args[1])(context, builder, values[1]).data

    return Columns(f"{logits.dtype}", _columns(numpy_support.as_dtype(logits.dtype)))(logits, room), generate


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


# ---------------------------------------------------------------------------------------------------------------
# Kernels and the parts they are made of


class _PartLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """The code of a part as it was written.

    Only kernels optimise what they merge and turn it into machine code. Numba would also do so for each part by itself:
    a fifth of the time of a first call.
    """

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, _name: str, _environment: Any) -> None:
        """There is nothing to tell a part about its environment: it raises no exceptions."""

    def get_pointer_to_function(self, _name: str) -> int:
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


#: Passes for what is not there: closures, array expressions, exceptions, functions merged before compilation.
_NEEDLESS = {"InlineClosureLikes", "InlineInlinables", "InlineOverloads", "NopythonRewrites", "RewriteDynamicRaises"}
_NEEDLESS |= {"MakeFunctionToJitFunction", "WithLifting", "LiteralUnroll", "LiteralPropagationSubPipelinePass"}


class _KernelCompiler(compiler.Compiler):  # type: ignore[misc]
    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [step for step in pipeline.passes if step[0].__name__ not in _NEEDLESS]
        return pipelines

    def compile_extra(self, function: Any) -> Any:
        with uncollected():
            return super().compile_extra(function)


class _PartCompiler(_KernelCompiler):
    def compile_extra(self, function: Any) -> Any:
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)


#: Nothing is allocated, so references are not counted: that takes atomic operations, and rows would wait for them.
_OPTIONS = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False, "pipeline_class": _KernelCompiler}
_PART: dict[str, Any] = {"no_cpython_wrapper": True, **_OPTIONS}
#: What is taken over from Numba's own library; a version without these compiles parts its own way.
_STEPS = ("_ensure_finalized", "_finalize_dynamic_globals", "_optimize_final_module", "_finalize_final_module")
if all(hasattr(codegen.JITCodeLibrary, step) for step in _STEPS):
    _PART["pipeline_class"] = _PartCompiler


def _called(function: Function) -> Function:
    """A part that the compiler may leave as a function of its own."""
    return cast("Function", njit(**_PART)(function))


def _inlined(function: Function) -> Function:
    """A part that is merged into its callers: a call with a row's statistics as arguments costs more than its work."""
    return cast("Function", njit(forceinline=True, **_PART)(function))


@_inlined
def _join(low: Any, high: Any) -> Any:
    """The bits of two lane vectors as those of one twice as wide."""
    return np.uint32(low | (high << np.uint32(LANES)))


def _kernel(function: Function) -> Function:
    """A compiled entry point, kept on disk; where no folder can be written to, compiled once a process."""
    kernel = njit(nogil=True, **_OPTIONS)(function)
    with suppress(RuntimeError):
        kernel.enable_caching()
    kernel._cache = Cache(kernel._cache, function)
    return cast("Function", kernel)


# ---------------------------------------------------------------------------------------------------------------
# A row's statistics and a label's score

_ECP, _LAC, _MASS, _SAPS, _TOPK, _MARGIN, _RANK = range(7)
#: APS and Base are RAPS without a penalty.
KINDS = {"ecp": _ECP, "lac": _LAC, "aps": _MASS, "base": _MASS, "raps": _MASS, "saps": _SAPS, "topk": _TOPK}
KINDS |= {"margin": _MARGIN, "rank": _RANK}
_RELU, _SOFTPLUS, _EXP = range(3)
_EVIDENCE = {"relu": _RELU, "softplus": _SOFTPLUS, "exp": _EXP}

#: Probabilities are added as integers of 2^-61, as in the reference: such sums do not depend on their order.
_UNITS = 2.0**61
_UNIT = 2.0**-61

_LARGEST_LOGIT = checks.LARGEST_LOGIT

#: Within these bounds costs are divided by each other, without a detour by logarithms.
_PLAIN_STABILIZER = (1e-20, 1.0)
#: Such quotients are multiplied by a power of 2: that of a label with a logit of 1e300 would underflow.
_LESS = 256
_MORE = 2.0**_LESS
#: No logarithm of a cost is further from 0, with such a stabilizer.
_LARGEST_LOG = 60.0


class _Parameters(NamedTuple):
    """A score's parameters as a kernel sees them."""

    kind: int
    evidence: int
    temperature: float
    rate: float  # 1 / temperature
    zero: float  # which the compiler does not know
    stabilizer: float
    log_stabilizer: float
    lam: float
    k_reg: float
    seed: Any  # uint32
    randomized: bool
    randomize_penalty: bool
    n_classes: int
    is_plain: bool  # whether this is ECP with a stabilizer such that costs can be divided by each other
    has_cuts: bool  # whether a threshold can be turned into a logit


class _Survey(NamedTuple):
    """What a first look at a row tells; logits are in the row's own precision."""

    usable: bool  # whether scores can be computed: no NaN, no +inf, something finite, nothing too large
    top: Any  # the largest logit
    low: Any  # the smallest finite one
    rest: float  # the sum of relu evidence, one of the largest left out
    rank: int  # how many labels are above `mark`, if given
    few: Any  # one that 4 labels reach, and about 8 on average
    some: Any  # one that 8 labels reach, and about 20 on average
    many: Any  # one that 16 labels reach, and about 50 on average


class _Label(NamedTuple):
    """What a score needs to know of its label."""

    z: float
    alpha: float  # its Dirichlet parameter
    rank: float  # how many labels have a strictly larger logit
    above: float  # their probability, in units of 2^-61
    own: float  # its own


class _Row(NamedTuple):
    """What every label's score needs to know of its row."""

    top: float
    low: float
    largest: float  # the largest probability, 1 / sum of exp((z - top) / T)
    log_total: float  # of that sum
    alpha: float  # the largest Dirichlet parameter
    rest: float  # the sum of all others
    inverse_alpha_0: float
    v: float  # the row's randomisation
    second: float  # the second largest probability
    worst: float  # the largest log cost, which is that of the lowest possible label; unless costs are plain
    low_surprisal: float  # of that label
    low_gain: float  # its utility, in units of the stabilizer, and 1


def parameters(
    name: str,
    n_classes: int,
    *,
    temperature: float = 1.0,
    evidence: str = "relu",
    stabilizer: float = 0.0,
    lam: float = 0.0,
    k_reg: int = 0,
    seed: int = 0,
    randomized: bool = False,
    randomize_penalty: bool = False,
) -> F64:
    """A score's parameters as one array, in the order of `_Parameters`."""
    log_stabilizer = log(stabilizer) if stabilizer else -inf
    shape = (KINDS[name], _EVIDENCE[evidence], temperature, stabilizer, log_stabilizer, lam, k_reg)
    is_plain = name == "ecp" and _PLAIN_STABILIZER[0] <= stabilizer <= _PLAIN_STABILIZER[1]
    has_cuts = name == "lac" or (is_plain and evidence == "relu")
    return np.array([*shape, seed, randomized, randomize_penalty, n_classes, is_plain, has_cuts], np.float64)


#: A score's parameters as arguments of a kernel, which has three ways; those that are None are not compiled.
Ways = tuple[F64 | None, F64 | None, F64 | None]


def ways(values: F64) -> Ways:
    """A score's parameters as `wide`, `narrow` and `other`, where kernels look for them.

    Narrow are rows so short, of scores such, that 16 are turned; all else is wide. Other scores are those that are
    neither narrow nor the usual ECP. What stands under a condition that is not None is compiled only where it is not;
    of what is None Numba knows that before it looks at types, of what is not None it does not.
    """
    kind, n_classes, has_cuts = values[0], values[10], values[12]
    if has_cuts and n_classes <= _NARROW:
        return None, values, None
    return (values, None, None) if has_cuts and kind == _ECP else (values, None, values)


@_inlined
def _unpack(values: F64) -> _Parameters:
    return _Parameters(
        _whole(values[0]),
        _whole(values[1]),
        values[2],
        1.0 / values[2],
        0.0 * values[2],
        values[3],
        values[4],
        values[5],
        values[6],
        np.uint32(values[7]),
        values[8] != 0.0,
        values[9] != 0.0,
        _whole(values[10]),
        values[11] != 0.0,
        values[12] != 0.0,
    )


@_inlined
def _unpack_usual(values: F64, kind: int) -> _Parameters:
    """As `_unpack`, with what is known of the usual ECP and of LAC."""
    p, no = _unpack(values), 0.0
    known = (kind, _RELU, p.temperature, p.rate, p.zero, p.stabilizer, p.log_stabilizer)
    return _Parameters(*known, no, no, p.seed, False, False, p.n_classes, kind == _ECP, True)


@_inlined
def _unpack_one(wide: Any, narrow: Any, other: Any) -> _Parameters:
    """The parameters, with what is known of them on each way."""
    if narrow is not None:
        p = _unpack_usual(narrow, _LAC if narrow[0] == _LAC else _ECP)
    if wide is not None:
        p = _unpack_usual(wide, _ECP)
    if other is not None:
        p = _unpack(other)
    return p


@_inlined
def _log1p(x: float) -> float:
    """ln(1 + x) for x >= 0, to full relative accuracy: what rounding took from the sum is put back."""
    u = 1.0 + x
    return _log(u) + (x - (u - 1.0)) / u


@_inlined
def _log_add_exp(x: float, y: float) -> float:
    low, high = _smaller(x, y), _larger(x, y)
    return high if low == -inf else high + _log1p(_exp(low - high))


@_inlined
def _activate(evidence: int, x: Any) -> Any:
    """Definition 1, e = A(z), of a number or of lanes."""
    if evidence == _RELU:
        return _relu(x)
    if evidence == _SOFTPLUS:
        return _softplus(x)
    return _clipped_exp(x)


@_called
def _evidence_of(evidence: int, z: float) -> float:
    """Definition 1 of a single logit."""
    return np.float64(_activate(evidence, z))


@_inlined
def _dirichlet(evidence: int, z: float, other: Any) -> float:
    """Definition 2: alpha = e + 1."""
    if other is None:
        return _relu(z) + 1.0
    return (_relu(z) if evidence == _RELU else _evidence_of(evidence, z)) + 1.0


@_inlined
def _needs_rank(kind: int) -> bool:
    return kind != _LAC and kind != _MARGIN  # noqa: PLR1714 - tuples are compiled, too


@_inlined
def _is_rank(kind: int) -> bool:
    """Whether a score knows nothing of a row but its order."""
    return kind == _TOPK or kind == _RANK  # noqa: PLR1714 - tuples are compiled, too


@_inlined
def _smallest_finite(row: Any) -> Any:
    low = _lanes(row, inf)
    for i in range(0, len(row), LANES):
        low = _smaller(_finite(_load_any(row, i)), low)
    return _smallest(low)


@_inlined
def _look(z: Any, rest: Any, top: Any, zero: Any, rank: Any, mark: Any, labels: Any) -> Any:
    """Add lanes of logits to a first look: to what is left of evidence beside the largest so far, that, and a rank.

    A NaN becomes one of `rest`, and is no largest. If the compiler knew `zero`, it would take two steps for one.
    """
    rest = _add(rest, _larger(zero, _smaller(top, z)))
    if labels is not None:
        rank = _one_more(rank, z, mark)
    return rest, _larger(z, top), rank


@_inlined
def _survey(row: Any, labels: Any, number: int, zero: float) -> _Survey:
    """The first pass over a row, and over what is above its label if `labels` is not None."""
    mark, zero = _mark(row, labels, number), _native(row, zero)
    top, low, rank, rest = _lanes(row, -inf), _load_any(row, len(row)), _no_counts(row), 0.0
    whole = len(row) // LANES * LANES
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, _least(start + _CHUNK, whole), LANES):
            z = _load_whole(row, i)
            _fetch(row, i + _AHEAD)
            part, top, rank = _look(z, part, top, zero, rank, mark, labels)
            low = _smaller(z, low)
        if whole < _least(start + _CHUNK, len(row)):
            part, top, rank = _look(_load(row, whole), part, top, zero, rank, mark, labels)
        rest += _sum(part)
    largest, smallest = _largest(top), _smallest(low)
    if smallest == -inf:
        smallest = _smallest_finite(row)
    rest += _but_largest(top)
    usable = -inf < largest <= _LARGEST_LOGIT and not np.isnan(rest)
    few, some, many = _level_of_4(top), _level_of_8(top), _level_of_16(top)
    cuts = _larger(few, smallest), _larger(some, smallest), _larger(many, smallest)
    return _Survey(usable, largest, smallest, rest, _whole(_sum_whole(rank)), *cuts)


@_inlined
def _count_above(row: Any, z: Any) -> int:
    """How many logits are strictly larger."""
    count = 0
    for i in range(0, len(row), 2 * LANES):
        count += _count_bits(_join(_above(_load(row, i), z), _above(_load(row, i + LANES), z)))
    return count


class _Sums(NamedTuple):
    """What the second pass over a row gives."""

    shared: int  # how many labels have the largest logit
    exponentials: float  # the sum of exp((z - top) * rate), one of the largest left out
    low_rank: int  # how many labels are above `low`, if given


@_inlined
def _sums(row: Any, top: Any, rate: Any, low: Any, b: Any) -> _Sums:
    """The second pass over a row; compiled without what is None.

    One label with the largest logit is left out of sums, so that the others keep their digits beside it.
    """
    shared, low_rank, exponentials = _no_counts(row), _no_counts(row), 0.0
    ahead = len(row) if len(row) <= _CHUNK else 0
    for start in range(0, len(row), _CHUNK):
        e = _lanes(row, 0.0)
        for i in range(start, _least(start + _CHUNK, len(row)), LANES):
            z = _load(row, i)
            _fetch(row, i + ahead)
            shared = _one_more_at_least(shared, z, top)
            e = _add(e, _unless_at_least(z, top, _exp_by(_sub(z, top), rate, b.single, b.double)))
            if low is not None:
                low_rank = _one_more(low_rank, z, low)
        exponentials += _sum(e)
    tops = _whole(_sum_whole(shared))
    return _Sums(tops, exponentials + (tops - 1.0), _whole(_sum_whole(low_rank)))


@_inlined
def _evidence_but_largest(row: Any, evidence: int, top: Any) -> float:
    """The sum of a row's evidence, one of the largest left out."""
    shared, rest = 0, 0.0
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, _least(start + _CHUNK, len(row)), LANES):
            z = _load(row, i)
            shared += _count_bits(_at_least(z, top))
            part = _add(part, _unless_at_least(z, top, _activate(evidence, z)))
        rest += _sum(part)
    return rest + (shared - 1.0) * _evidence_of(evidence, np.float64(top))


@_inlined
def _huge_evidence_but_largest(row: Any) -> float:
    """The same where single precision would overflow; there relu and softplus are one."""
    top, rest = 0.0, 0.0
    for z in row:
        rest += _larger(_smaller(np.float64(z), top), 0.0)
        top = _larger(np.float64(z), top)
    return rest


@_called
def _other_evidence(row: Any, evidence: int, top: Any) -> float:
    """The sum of a row's evidence, one of the largest left out, also where single precision would overflow."""
    rest = _evidence_but_largest(row, evidence, top)
    return _huge_evidence_but_largest(row) if rest == inf else rest


@_inlined
def _uniform(row: Any, seed: Any) -> float:
    """v in [0, 1), bit for bit the reference's `row_uniforms`."""
    total = _hashes(_lanes(row, -inf))
    for i in range(0, len(row), LANES):
        total = _add_whole(total, _hashes(_load(row, i)))
    return np.float64(_mix32(np.uint32(_sum_whole(total) ^ _mix32(seed))) >> np.uint32(8)) * 2.0**-24


@_inlined
def _second_largest(row: Any, top: Any, shared: int) -> Any:
    """The second largest logit, equal to the largest where that is shared."""
    second = _lanes(row, -inf)
    for i in range(0, len(row), LANES):
        second = _larger(_below(_load(row, i), top), second)
    return top if shared > 1 else _largest(second)


@_inlined
def _shifted(p: _Parameters, s: _Row, z: float) -> float:
    """(z - top) / T in float64; a quotient past the largest double is clipped, as in the reference."""
    x = (z - s.top) * p.rate
    return x if x > -1e308 else -1e308


@_inlined
def _probability(p: _Parameters, s: _Row, z: float) -> float:
    return _exp(_shifted(p, s, z)) * s.largest


@_inlined
def _fixed(row: Any, p: _Parameters, s: _Row, z: Any) -> Any:
    """A label's probability as an integer multiple of 2^-61, in the arithmetic of the row's own precision; or lanes."""
    top, rate, shift = _native(row, s.top), _native(row, p.rate), _native(row, s.log_total)
    return _units(_exp(_sub(_mul(_sub(z, top), rate), shift)))


@_inlined
def _mass_above(row: Any, p: _Parameters, s: _Row, z: Any) -> int:
    """The probability of all labels with a strictly larger logit, as an integer multiple of 2^-61."""
    mass = _units(_lanes(row, 0.0))
    for i in range(0, len(row), LANES):
        others = _load(row, i)
        mass = _add_whole(mass, _if_above(_fixed(row, p, s, others), others, z))
    return _whole(_sum_whole(mass))


@_inlined
def _surprisal(s: _Row, alpha: float) -> float:
    """Eq. 6, -ln(alpha / alpha_0); for a label that holds more than half, from what the others hold."""
    most = alpha == s.alpha and s.rest < s.alpha
    ratio = s.rest / s.alpha
    u = 1.0 + ratio
    logarithm = _log(u if most else alpha * s.inverse_alpha_0)
    return logarithm + (ratio - (u - 1.0)) if most else -logarithm  # as `_log1p`, of at most 1


@_inlined
def _gain(p: _Parameters, s: _Row, z: float, alpha: float, rank: float) -> float:
    """The denominator of Eq. 10 up to a row constant, phi_k p_k^2 (1 - r_k/K) + stabilizer, in units of the latter."""
    share = alpha * s.inverse_alpha_0
    scaling = (p.n_classes - rank) * (1.0 / p.n_classes)
    return _probability(p, s, z) * (share * share * scaling) * (1.0 / p.stabilizer) + 1.0


@_called
def _log_cost(p: _Parameters, s: _Row, z: float, alpha: float, rank: float) -> float:
    """Eq. 10 up to a row constant: ln I(k) - ln(phi_k p_k^2 (1 - r_k/K) + stabilizer)."""
    surprisal = _surprisal(s, alpha)
    scaling = (p.n_classes - rank) * (1.0 / p.n_classes)
    if p.stabilizer == 0.0:
        # The utility relative to the lowest label's, whose cost is subtracted next: a spike must not swallow the rest.
        gain = _smaller((z - s.low) * p.rate, 1e308)
        return _log(surprisal) + 2.0 * surprisal - _log(scaling) - gain
    log_denominator = _shifted(p, s, z) - s.log_total - 2.0 * surprisal + _log(scaling)
    return _log(surprisal) - _log_add_exp(log_denominator, p.log_stabilizer)


@_inlined
def _relative(s: _Row, log_cost: float) -> float:
    """Definition 7: the cost relative to the row's largest, at most 1."""
    value = log_cost - s.worst
    return value if value < 0.0 else 0.0


@_inlined
def _quotient_value(s: _Row, z: float, surprisal: float, gain: float) -> float:
    """The score of a label with this surprisal and gain: its cost relative to the lowest label's."""
    value = _log_less(surprisal * _MORE * s.low_gain / (gain * s.low_surprisal))
    value = value if value < 0.0 else 0.0
    return inf if z == -inf else value


@_inlined
def _plain_value(p: _Parameters, s: _Row, label: _Label) -> float:
    """`_value` of ECP with a plain stabilizer, without a branch."""
    gain = _gain(p, s, label.z, label.alpha, label.rank)
    return _quotient_value(s, label.z, _surprisal(s, label.alpha), gain)


@_inlined
def _lac_value(p: _Parameters, s: _Row, label: _Label) -> float:
    """`_value` of LAC, without a branch: -ln of the label's probability."""
    value = s.log_total - _shifted(p, s, label.z)
    return inf if label.z == -inf else value


@_inlined
def _value(p: _Parameters, s: _Row, label: _Label, other: Any) -> float:  # noqa: PLR0911 - one return for each score
    """The score of a label; of ECP where `_plain_value` is not."""
    if other is None:
        return _lac_value(p, s, label)
    if p.kind == _RANK:
        return label.rank + 1.0
    if label.z == -inf:
        return inf
    if p.kind == _ECP:
        return _relative(s, _log_cost(p, s, label.z, label.alpha, label.rank))
    if p.kind == _LAC:
        return _lac_value(p, s, label)
    if p.kind == _MASS:
        excess = _larger(label.rank + 1.0 - p.k_reg, 0.0)
        if p.randomize_penalty and excess > 0.0:
            excess = excess - 1.0 + s.v
        return label.above * _UNIT + s.v * (label.own * _UNIT) + p.lam * excess
    if p.kind == _SAPS:
        return s.v * s.largest if label.rank == 0.0 else s.largest + (label.rank - 1.0 + s.v) * p.lam
    if p.kind == _TOPK:
        return label.rank + s.v
    return (s.second if label.z == s.top else s.largest) - _probability(p, s, label.z)


# ---------------------------------------------------------------------------------------------------------------
# Formulas side by side. A logarithm keeps the processor waiting for most of its time, and eight take hardly longer than
# one: rows are reduced one by one, what they give is noted, and the formulas then run over all of them in loops that
# the compiler turns into vector instructions, with the same bits.

#: How many rows are noted before their formulas are worked out; fewer if they would leave the cache meanwhile.
_BATCH = 32
_BATCH_LOGITS = 1 << 15
#: Rows of at most so many classes are reduced 16 at a time, each in a lane of its own.
_NARROW = 256
#: How many labels of such a row are flagged in one number.
_FLAGS = 32
#: How many candidates of a set are scored at a time.
_SIDE = 8
#: How many candidates of several rows are scored side by side, and how many of one row at most.
_SLOTS, _MOST = 128, 64
#: Candidates are flagged by the bits of words: two hold all of them.
_WORD = 64
_LANE_BITS = (1 << LANES) - 1

_ROW_COLUMNS = ["top", "low", "low_alpha", "low_rank", "exponentials", "largest", "log_total", "alpha", "rest"]
_ROW_COLUMNS += ["inverse_alpha_0", "v", "second", "worst", "low_surprisal", "low_gain", "few", "some", "many"]
_ROW_COLUMNS += ["shared", "threshold", "demand", "cut", "begin", "end", "surprisal", "cost", "top_score"]
_LABEL_COLUMNS = ["z", "label_alpha", "rank", "above", "own", "label_surprisal", "gain", "score"]
#: One record for a batch: its columns lie at places known to the compiler, which need not prove that they are apart.
#: Unused ones keep what lies before and behind in memory, which may be another thread's, off its cache lines.
#: Candidates of small sets and the numbers of the exponential in either precision are at hand there, too.
_SINGLE, _DOUBLE = np.array(_exp_numbers(False), np.float32), np.array(_exp_numbers(True))
_CANDIDATES = np.dtype([(name, np.float64, (_SLOTS,)) for name in [*_Row._fields, *_LABEL_COLUMNS, "label"]])


@lru_cache
def _columns(dtype: Any) -> Any:
    """The record of a batch, where turned rows are in their own precision."""
    columns: list[Any] = [(name, np.float64, (_BATCH,)) for name in ["before", *_ROW_COLUMNS, *_LABEL_COLUMNS]]
    columns += [("flags", np.int64, (_NARROW // _FLAGS * _BATCH,)), ("candidates", _CANDIDATES)]
    columns += [("turned", dtype, (_NARROW * _BATCH,)), ("marks", dtype, (LANES,))]
    columns += [("double", np.float64, _DOUBLE.shape), ("single", np.float32, _SINGLE.shape)]
    return np.dtype([*columns, ("behind", np.float64, (_BATCH,))])


def make_batch(dtype: Any) -> NDArray[Any]:
    """Room for what a batch of rows and their labels give."""
    batch = np.empty(1, _columns(dtype))
    batch["single"], batch["double"] = _SINGLE, _DOUBLE
    return batch.view(np.uint8)


_OF_LABEL = ["z", "label_alpha", "rank", "above", "own"]
_row_at = _reader(_Row, [*_Row._fields])
_label_at = _reader(_Label, _OF_LABEL)
_note_label = _writer(_OF_LABEL)
#: What LAC's score, or ECP's with relu evidence and a plain stabilizer, needs to know of its row.
_OF_ROW = ["top", "largest", "log_total", "alpha", "rest", "inverse_alpha_0", "low_surprisal", "low_gain"]
_note_as_row = _writer([name if name in _OF_ROW else "" for name in _Row._fields])


@_inlined
def _note_candidate(c: Any, m: int, s: _Row, label: int, z: float, rank: int) -> None:
    """A candidate with what its score needs to know of its row, as if each had a row of its own."""
    _note_as_row(c, m, s)
    c.label[m], c.z[m], c.label_alpha[m], c.rank[m] = label, z, _relu(z) + 1.0, rank


@_inlined
def _note_row(b: Any, j: int, row: Any, p: _Parameters, survey: _Survey, labels: Any, other: Any) -> None:
    """What passes over a usable row give; with labels, nobody asks for candidates."""
    b.top[j], b.low[j], b.rank[j], b.worst[j] = survey.top, survey.low, survey.rank, 0.0
    if labels is None:
        b.few[j], b.some[j], b.many[j] = survey.few, survey.some, survey.many
    if other is None:
        rest = survey.rest if survey.rest < inf else _huge_evidence_but_largest(row)
        _note_evidence(b, j, row, p, survey, rest, other)
    if other is not None:
        _note_other(b, j, row, p, survey, other)


@_inlined
def _note_evidence(b: Any, j: int, row: Any, p: _Parameters, survey: _Survey, rest: float, other: Any) -> None:
    """What ECP asks of a row, given the sum of its evidence but the largest."""
    top, low = survey.top, survey.low
    sums = _sums(row, top, _native(row, p.rate), low, b)
    b.exponentials[j], b.low_rank[j], b.rest[j] = sums.exponentials, sums.low_rank, rest + (p.n_classes - 1.0)
    b.alpha[j] = _dirichlet(p.evidence, np.float64(top), other)
    b.low_alpha[j] = _dirichlet(p.evidence, np.float64(low), other)


@_inlined
def _note_other(b: Any, j: int, row: Any, p: _Parameters, survey: _Survey, other: Any) -> None:
    """What any score asks of a row."""
    b.v[j] = _uniform(row, p.seed) if p.randomized else 1.0
    if p.kind == _ECP:
        is_known = p.evidence == _RELU and survey.rest < inf
        rest = survey.rest if is_known else _other_evidence(row, p.evidence, survey.top)
        _note_evidence(b, j, row, p, survey, rest, other)
    elif not _is_rank(p.kind):
        sums = _sums(row, survey.top, _native(row, p.rate), None, b)
        b.exponentials[j] = sums.exponentials
        if p.kind == _MARGIN:
            b.second[j] = _second_largest(row, survey.top, sums.shared)


@_inlined
def _finish_costs(b: Any, p: _Parameters, count: int, other: Any) -> None:
    """Each row's largest cost."""
    for j in range(count):
        b.inverse_alpha_0[j] = 1.0 / (b.alpha[j] + b.rest[j])
    if p.is_plain:
        for j in range(count):
            b.low_surprisal[j] = _surprisal(_row_at(b, j), b.low_alpha[j])
        for j in range(count):
            b.low_gain[j] = _gain(p, _row_at(b, j), b.low[j], b.low_alpha[j], b.low_rank[j])
    elif other is not None:
        for j in range(count):
            b.worst[j] = _log_cost(p, _row_at(b, j), b.low[j], b.low_alpha[j], b.low_rank[j])


@_inlined
def _finish_rows(b: Any, p: _Parameters, count: int, other: Any) -> None:
    """The rest of what labels' scores need to know of their rows."""
    if _is_rank(p.kind):
        return
    for j in range(count):
        b.largest[j] = 1.0 / (1.0 + b.exponentials[j])
    if not p.is_plain:
        for j in range(count):
            b.log_total[j] = _log1p(b.exponentials[j])
    if p.kind == _ECP:
        _finish_costs(b, p, count, other)
    if other is not None:  # noqa: SIM102 - what is not compiled is a condition of its own
        if p.kind == _MARGIN:
            for j in range(count):
                b.second[j] = _probability(p, _row_at(b, j), b.second[j])


@_inlined
def _label(row: Any, p: _Parameters, s: _Row, z: Any, rank: float, other: Any) -> _Label:
    """A label with this logit and rank."""
    above, own = 0, 0
    if other is not None:  # noqa: SIM102 - what is not compiled is a condition of its own
        if p.kind == _MASS:
            above, own = _mass_above(row, p, s, z), _fixed(row, p, s, z)
    alpha = _dirichlet(p.evidence, np.float64(z), other)
    return _Label(np.float64(z), alpha, rank, np.float64(above), np.float64(own))


@_inlined
def _end_of_batch(logits: Any, first: int) -> int:
    return _least(first + _most(1, _least(_BATCH, _BATCH_LOGITS // logits.shape[1])), len(logits))


@_inlined
def _turn_few(b: Any, j: int, logits: Any, first: int, count: int, n_classes: int) -> None:
    """As `_turn`, of all columns, where there are fewer than 16 rows: the last one is repeated."""
    for r in range(LANES):
        row = logits[first + _least(r, count - 1)]
        for k in range(n_classes):
            b.turned[_at(j, k, n_classes) + r] = row[k]


@_inlined
def _at(j: int, k: int, n_classes: int) -> int:
    """Where column k of the rows from number j of a batch on is in `turned`."""
    return j * n_classes + k * LANES


@_inlined
def _mark(row: Any, labels: Any, i: int) -> Any:
    """The logit of row i's label; of any if there are no labels."""
    if labels is not None:
        return row[labels[i]]
    return row[0]


@_inlined
def _marks(b: Any, j: int, logits: Any, first: int, count: int, labels: Any) -> Any:
    """The logits of the labels of 16 rows; any numbers if there are no labels."""
    if labels is not None:
        for r in range(LANES):
            i = first + _least(r, count - 1)
            b.marks[r] = logits[i, labels[i]]
        _store(b.z, j, _load_whole(b.marks, 0))
    return _load_whole(b.marks, 0)


@_inlined
def _survey_turned(b: Any, j: int, logits: Any, first: int, count: int, p: _Parameters, labels: Any) -> Any:
    """As `_survey` for 16 rows, each in a lane: what is left of their evidence, tops, lows and ranks of labels."""
    turned, row, n_classes = b.turned, logits[first], p.n_classes
    rest, top, low, rank = _lanes(row, 0.0), _lanes(row, -inf), _lanes(row, inf), _no_counts(row)
    mark, zero = _marks(b, j, logits, first, count, labels), _native(row, p.zero)
    whole = n_classes // _SIDES * _SIDES if count == LANES else 0
    for k in range(0, whole, _SIDES):
        w, x, y, z = _turn(logits, first, k, turned, _at(j, k, n_classes))
        rest, top, rank = _look(w, rest, top, zero, rank, mark, labels)
        rest, top, rank = _look(x, rest, top, zero, rank, mark, labels)
        rest, top, rank = _look(y, rest, top, zero, rank, mark, labels)
        rest, top, rank = _look(z, rest, top, zero, rank, mark, labels)
        low = _smaller(_smaller(w, x), _smaller(_smaller(y, z), low))
    if count < LANES:
        _turn_few(b, j, logits, first, count, n_classes)
    elif whole < n_classes:
        last = _least(whole, logits.shape[1] - _SIDES)
        _turn(logits, first, last, turned, _at(j, last, n_classes))
    for k in range(whole, n_classes):
        z = _load_whole(turned, _at(j, k, n_classes))
        rest, top, rank = _look(z, rest, top, zero, rank, mark, labels)
        low = _smaller(z, low)
    if _above(low, _native(row, -inf)) != _LANE_BITS:  # somewhere labels are impossible
        low = _lanes(row, inf)
        for k in range(n_classes):
            low = _smaller(_finite(_load_whole(turned, _at(j, k, n_classes))), low)
    return rest, top, low, rank


@_inlined
def _sum_turned(b: Any, j: int, logits: Any, first: int, p: _Parameters, top: Any, low: Any) -> None:
    """As `_sums` for 16 rows, while the next 16 are fetched."""
    turned, row, n_classes = b.turned, logits[first], p.n_classes
    rate, e, shared, low_rank = _native(row, p.rate), _lanes(row, 0.0), _no_counts(row), _no_counts(row)
    for k in range(n_classes):
        z = _load_whole(turned, _at(j, k, n_classes))
        _fetch(logits, (first + LANES) * logits.shape[1] + k * LANES)
        shared = _one_more_at_least(shared, z, top)
        e = _add(e, _unless_at_least(z, top, _exp_by(_sub(z, top), rate, b.single, b.double)))
    if p.kind == _ECP:
        for k in range(n_classes):  # in a loop of its own: many processors have registers for no more in one
            low_rank = _one_more(low_rank, _load_whole(turned, _at(j, k, n_classes)), low)
    _store(b.exponentials, j, e)
    _store(b.shared, j, shared)
    _store(b.low_rank, j, low_rank)


@_inlined
def _note_turned(b: Any, j: int, logits: Any, first: int, count: int, p: _Parameters, labels: Any) -> int:
    """As `_note_row` for 16 rows; returns the first that cannot be used, or -1."""
    row = logits[first]
    rest, top, low, rank = _survey_turned(b, j, logits, first, count, p, labels)
    bad = _nans(_add(rest, _sub(top, top))) | _above(top, _native(row, _LARGEST_LOGIT))
    if bad != 0:
        return first + _lowest_bit(bad)
    _store(b.top, j, top)
    _store(b.low, j, low)
    _store(b.rest, j, rest)
    _store(b.rank, j, rank)
    _sum_turned(b, j, logits, first, p, top, low)
    if _at_least(rest, _native(row, inf)) != 0:
        for r in range(count):
            if b.rest[j + r] == inf:
                b.rest[j + r] = _huge_evidence_but_largest(logits[first + r])
    for m in range(j, j + LANES):
        b.exponentials[m] += b.shared[m] - 1.0
        b.rest[m] += p.n_classes - 1.0
        b.alpha[m], b.low_alpha[m] = _relu(b.top[m]) + 1.0, _relu(b.low[m]) + 1.0
        b.label_alpha[m], b.worst[m] = _relu(b.z[m]) + 1.0, 0.0
    return -1


@_inlined
def _take_batch(
    b: Any, logits: Any, first: int, p: _Parameters, wide: Any, narrow: Any, other: Any, labels: Any
) -> tuple[int, int]:
    """Note a batch of rows from `first` on, with a label each if `labels` is not None.

    Returns the row after it, and the first that could not be used, or -1.
    """
    stop = _end_of_batch(logits, first)
    if narrow is not None:
        for i in range(first, stop, LANES):
            bad = _note_turned(b, i - first, logits, i, _least(stop - i, LANES), p, labels)
            if bad >= 0:
                return stop, bad
    if wide is not None:
        for i in range(first, stop):
            row = logits[i]
            survey = _survey(row, labels, i, p.zero)
            if not survey.usable:
                return stop, i
            _note_row(b, i - first, row, p, survey, labels, other)
    _finish_rows(b, p, stop - first, other)
    return stop, -1


@_inlined
def _score_plain(b: Any, p: _Parameters, count: int) -> None:
    """`_plain_value` of labels noted beside their rows: in several loops, of each of which more runs at a time."""
    for j in range(count):
        b.label_surprisal[j] = _surprisal(_row_at(b, j), b.label_alpha[j])
    for j in range(count):
        b.gain[j] = _gain(p, _row_at(b, j), b.z[j], b.label_alpha[j], b.rank[j])
    for j in range(count):
        b.score[j] = _quotient_value(_row_at(b, j), b.z[j], b.label_surprisal[j], b.gain[j])


@_inlined
def _score_labels(b: Any, p: _Parameters, count: int, other: Any) -> None:
    """The scores of the labels noted, one of each row."""
    if p.is_plain:
        _score_plain(b, p, count)
    else:
        for j in range(count):
            b.score[j] = _value(p, _row_at(b, j), _label_at(b, j), other)


@_inlined
def _score_candidates(b: Any, p: _Parameters, s: _Row, count: int, other: Any) -> None:
    """The scores of the labels noted, at most `_SIDE`, all of one row."""
    if p.is_plain:
        for j in range(_SIDE):  # also those that are not there: a whole number of vectors
            b.score[j] = _plain_value(p, s, _label_at(b, j))
    else:
        for j in range(count):
            b.score[j] = _value(p, s, _label_at(b, j), other)


@_inlined
def _score_all(b: Any, j: int, row: Any, p: _Parameters, scores: F64, other: Any) -> None:
    """The scores of all labels of row j, where they need no rank."""
    s = _row_at(b, j)
    for k in range(p.n_classes):
        scores[k] = _value(p, s, _Label(np.float64(row[k]), 1.0, 0.0, 0.0, 0.0), other)


# ---------------------------------------------------------------------------------------------------------------
# A row's set: candidates from the top, ordered, until one is beyond the threshold

#: Up to this many candidates are sorted by comparing all with all, more by their bits.
_FEW = 128
#: In rows up to this long more are found in several passes, few at a time; in longer ones in fewer passes.
_SHORT = 2048
_BUCKETS = 2 * (_FEW + LANES)

#: A label this far beyond the threshold, relative to the numbers its score was made of, ends the walk: far more than
#: rounding can do to the order of two scores, so that no label behind it can be within the threshold.
_SLACK = 1e-9


class _Scratch(NamedTuple):
    """Room for a row's candidates and its set."""

    keys: F64  # candidates as they are found: negative logits, and label numbers
    labels: I64
    sorted_keys: F64
    sorted_labels: I64
    scores: F64  # the set
    members: I64
    buckets: I64
    within: I64  # bits of candidates
    unsure: I64


def make_scratch(n_classes: int) -> tuple[F64, I64]:
    """Room for one thread's rows, allocated before because kernels allocate nothing."""
    width = max(n_classes + LANES, _BUCKETS)
    return np.empty((3, width)), np.empty((6, width), np.int64)


@_inlined
def _unpack_scratch(floats: F64, wholes: I64) -> _Scratch:
    found, ordered = (_column_of(floats, 0), _column_of(wholes, 0)), (_column_of(floats, 1), _column_of(wholes, 1))
    flags = _column_of(wholes, 4), _column_of(wholes, 5)
    return _Scratch(*found, *ordered, _column_of(floats, 2), _column_of(wholes, 2), _column_of(wholes, 3), *flags)


@_inlined
def _find_places(row: Any, keys: Any, places: I64, count: int) -> None:
    """Where each key belongs in ascending order, equals in their own: for `_place`.

    The smaller ones are counted, in the row's precision: no branch to mispredict.
    """
    for start in range(0, count, 2 * LANES):
        own, counts = _native(row, _load_whole(keys, start)), _no_counts(row)
        if count - start <= LANES:
            for i in range(count):
                counts = _one_more(counts, own, _native(row, keys[i]))
        else:
            next_own, next_counts = _native(row, _load_whole(keys, start + LANES)), _no_counts(row)
            for i in range(count):
                key = _native(row, keys[i])
                counts, next_counts = _one_more(counts, own, key), _one_more(next_counts, next_own, key)
            _store(places, start + LANES, next_counts)
        _store(places, start, counts)
    for i in range(count):
        places[_FEW + LANES + i] = i


@_inlined
def _place(places: I64, i: int) -> Any:
    """Where key number i belongs; to be asked for all in turn, so that equals come one after the other."""
    first = _FEW + LANES + places[i]
    to = places[first]
    places[first] = to + 1
    return to


@_inlined
def _sort_few(row: Any, room: _Scratch, count: int) -> None:
    """Sort `keys` with their labels into `sorted_keys`."""
    if count == 1:
        room.sorted_keys[0], room.sorted_labels[0] = room.keys[0], room.labels[0]
        return
    _find_places(row, room.keys, room.buckets, count)
    for i in range(count):
        to = _place(room.buckets, i)
        room.sorted_keys[to], room.sorted_labels[to] = room.keys[i], room.labels[i]


@_called
def _sort_many(room: _Scratch, count: int) -> None:
    """Sort byte by byte, the lowest first, leaving out the bytes that all keys share."""
    keys, labels, other_keys, other_labels = room.keys, room.labels, room.sorted_keys, room.sorted_labels
    buckets = room.buckets
    first, differing = _ordered_bits(keys[0]), np.uint64(0)
    for i in range(count):
        differing |= _ordered_bits(keys[i]) ^ first
    moved = False
    for shift in range(0, 64, 8):
        if (differing >> np.uint64(shift)) & np.uint64(255) == 0:
            continue
        for digit in range(257):
            buckets[digit] = 0
        for i in range(count):
            buckets[1 + ((_ordered_bits(keys[i]) >> np.uint64(shift)) & np.uint64(255))] += 1
        for digit in range(256):
            buckets[digit + 1] += buckets[digit]
        for i in range(count):
            digit = (_ordered_bits(keys[i]) >> np.uint64(shift)) & np.uint64(255)
            place = buckets[digit]
            buckets[digit] = place + 1
            other_keys[place], other_labels[place] = keys[i], labels[i]
        keys, other_keys, labels, other_labels, moved = other_keys, keys, other_labels, labels, not moved
    if not moved:
        for i in range(count):
            room.sorted_keys[i], room.sorted_labels[i] = room.keys[i], room.labels[i]


@_inlined
def _sort(row: Any, room: _Scratch, count: int) -> None:
    """Sort `keys` with their labels, ascending and stably, into `sorted_keys`."""
    if count <= _FEW:
        _sort_few(row, room, count)
    else:
        _sort_many(room, count)


@_inlined
def _sort_set(room: _Scratch, count: int) -> None:
    """Sort the set by its scores, stably: it nearly always is."""
    for i in range(1, count):
        if room.scores[i - 1] > room.scores[i]:
            for k in range(count):
                room.keys[k], room.labels[k] = room.scores[k], room.members[k]
            _sort_many(room, count)
            for k in range(count):
                room.scores[k], room.members[k] = room.sorted_keys[k], room.sorted_labels[k]
            return


@_inlined
def _without_lowest(bits: Any) -> Any:
    return np.uint64(bits & (bits - np.uint64(1)))


@_inlined
def _note_bits(labels: I64, count: int, first: int, bits: Any, often: int) -> int:
    """Add the numbers of the bits that are set, counted from `first`, to `count` labels; returns how many there are.

    The first few, as many as there `often` are, are noted whether they are set or not: branches would be mispredicted.
    """
    word = np.uint64(bits)
    total = count + _count_bits(word)
    for k in range(often):
        labels[count + k] = first + _lowest_bit(word)
        word = _without_lowest(word)
    for k in range(count + often, total):
        labels[k] = first + _lowest_bit(word)
        word = _without_lowest(word)
    return total


@_inlined
def _note_keys(row: Any, room: _Scratch, count: int) -> None:
    """What the labels found are sorted by."""
    for i in range(count):
        room.keys[i] = 0.0 - np.float64(row[room.labels[i]])


@_inlined
def _find_at_least(row: Any, n_classes: int, cut: Any, upper: Any, room: _Scratch) -> int:
    """Note all labels with a logit of at least `cut` and below `upper`, in their own order; returns how many.

    A cut of -inf stands for all labels, impossible ones included.
    """
    labels = room.labels
    count: Any = np.int64(0)
    if cut == -inf:
        for k in range(n_classes):
            labels[k] = k
        count = n_classes
    else:
        whole, hits, places = len(row) // (2 * LANES) * (2 * LANES), 0, room.buckets
        for i in range(0, whole, 2 * LANES):  # where candidates are, without a branch: it would be mispredicted
            places[hits] = i
            hits += 1 if _at_least(_larger(_load_any(row, i), _load_any(row, i + LANES)), cut) != 0 else 0
        for k in range(hits):
            i = places[k]
            z, y = _load_any(row, i), _load_any(row, i + LANES)
            bits = _join(_at_least(z, cut), _at_least(y, cut)) & ~_join(_at_least(z, upper), _at_least(y, upper))
            count = _note_bits(labels, count, i, bits, 2)
        for i in range(whole, len(row), LANES):
            z = _load(row, i)
            bits = _at_least(z, cut) & ~_at_least(z, upper)
            count = _note_bits(labels, count, _least(i, len(row) - LANES), bits, 2)
    return count


@_inlined
def _gather(row: Any, n_classes: int, cut: Any, upper: Any, room: _Scratch) -> int:
    """`_find_at_least`, with keys."""
    count = _find_at_least(row, n_classes, cut, upper, room)
    _note_keys(row, room, count)
    return count


class _Level(NamedTuple):
    """Where a walk down the candidates has come to: the labels with one logit."""

    first: int  # how many labels are above the candidates at hand
    key: float
    rank: int  # of the labels with this key
    above: int  # the probability of those above them
    own: int


@_inlined
def _score_side(
    b: Any, j: int, row: Any, p: _Parameters, room: _Scratch, start: int, stop: int, level: _Level, other: Any
) -> Any:
    """Score the sorted candidates from `start` to `stop`, at most `_SIDE`, as labels of row j; returns the level."""
    s, keys, masses = _row_at(b, j), room.sorted_keys, room.buckets
    first, key, rank, above, own = level
    if other is not None:  # noqa: SIM102 - what is not compiled is a condition of its own
        if p.kind == _MASS:
            for i in range(start, stop):
                masses[i - start] = _fixed(row, p, s, _native(row, 0.0 - keys[i]))
    for i in range(start, stop):
        if keys[i] != key:
            above += own * (first + i - rank)
            key, rank = keys[i], first + i
            own = masses[i - start] if p.kind == _MASS else 0
        z = 0.0 - keys[i]
        alpha = _dirichlet(p.evidence, z, other)
        _note_label(b, i - start, _Label(z, alpha, np.float64(rank), np.float64(above), np.float64(own)))
    _score_candidates(b, p, s, stop - start, other)
    return _Level(first, key, rank, above, own)


@_inlined
def _with_slack(b: Any, j: int, p: _Parameters, threshold: float) -> float:
    """What scores must be beyond to end a walk down row j."""
    largest = _LARGEST_LOG if p.is_plain else abs(b.worst[j])
    return threshold + _SLACK * (1.0 + abs(threshold) + largest)


@_inlined
def _walk(
    b: Any,
    j: int,
    row: Any,
    p: _Parameters,
    threshold: float,
    room: _Scratch,
    count: int,
    kept: int,
    level: _Level,
    other: Any,
) -> Any:
    """Score the sorted candidates from the top; those within the threshold join the `kept` labels of the set.

    Returns how many are in the set, whether a candidate was beyond the threshold, which ends it, and the level. Equal
    logits have equal scores and enter together.
    """
    limit = _with_slack(b, j, p, threshold)
    for start in range(0, count, _SIDE):
        stop = _least(start + _SIDE, count)
        level = _score_side(b, j, row, p, room, start, stop, level, other)
        for i in range(start, stop):
            value = b.score[i - start]
            if value > limit:
                return kept, True, level
            if value <= threshold:
                room.scores[kept], room.members[kept] = value, room.sorted_labels[i]
                kept += 1
    return kept, False, _Level(level.first + count, level.key, level.rank, level.above, level.own)


@_inlined
def _lower(row: Any, bottom: Any, cut: Any, wanted: int, most: int) -> Any:
    """A cut that at least `wanted` labels reach, and if bisection finds one, at most `most`."""
    if most >= len(row):
        return bottom
    low, high = bottom, cut
    for _ in range(20):
        middle = _native(row, 0.5 * np.float64(low) + 0.5 * np.float64(high))
        count = _count_above(row, middle)
        if count < wanted:
            high = middle
        else:
            low = middle
            if count <= most:
                break
    return low


@_inlined
def _next_cut(b: Any, j: int, row: Any, cut: Any, count: int) -> Any:
    """A cut that lets in more candidates of row j than the `count` so far: several times as many, or `_FEW` more."""
    if cut > b.some[j]:
        return _native(row, b.some[j])
    if cut > b.many[j]:
        return _native(row, b.many[j])
    wanted, most = (count + _FEW // 2, count + _FEW) if len(row) <= _SHORT else (4 * count, 8 * count)
    return _lower(row, _native(row, b.low[j]), cut, wanted, most)


@_inlined
def _row_set(b: Any, j: int, row: Any, p: _Parameters, threshold: float, room: _Scratch, other: Any) -> int:
    """The set of row j of a batch, in `room.members` and `room.scores`; returns its size.

    The first candidates are a few from the top. If all of them are within the threshold, the next are those down to a
    lower cut that lets in several times as many, so that the work grows with the size of the set.
    """
    low, upper, cut = _native(row, b.low[j]), _native(row, inf), _native(row, -inf if threshold == inf else b.few[j])
    kept: Any = np.int64(0)
    level = _Level(0, np.nan, 0, 0, 0)
    while True:
        count = _gather(row, p.n_classes, cut, upper, room)
        _sort(row, room, count)
        kept, ended, level = _walk(b, j, row, p, threshold, room, count, kept, level, other)
        if ended or cut <= low:
            break
        upper, cut = cut, _next_cut(b, j, row, cut, level.first)
    return kept


# ---------------------------------------------------------------------------------------------------------------
# A row's set where labels have limits of their own


@_inlined
def _walk_limits(
    b: Any,
    j: int,
    row: Any,
    p: _Parameters,
    limits: F64,
    tight: float,
    room: _Scratch,
    count: int,
    kept: int,
    level: _Level,
    other: Any,
) -> Any:
    """As `_walk`, with a limit for each label; what ends it is a score beyond `tight`, and its logit is returned."""
    beyond = _with_slack(b, j, p, tight)
    for start in range(0, count, _SIDE):
        stop = _least(start + _SIDE, count)
        level = _score_side(b, j, row, p, room, start, stop, level, other)
        for i in range(start, stop):
            value, label = b.score[i - start], room.sorted_labels[i]
            if value > beyond:
                return kept, level, 0.0 - room.sorted_keys[i]
            if value <= limits[label]:
                room.scores[kept], room.members[kept] = value, label
                kept += 1
    return kept, _Level(level.first + count, level.key, level.rank, level.above, level.own), -inf


@_inlined
def _walk_down(b: Any, j: int, row: Any, p: _Parameters, limits: F64, tight: float, room: _Scratch, other: Any) -> Any:
    """Labels of row j from the top until their scores are beyond `tight`; those within their limits join the set.

    Returns its size and the largest logit of the labels left.
    """
    low, upper = _native(row, b.low[j]), _native(row, inf)
    cut = _native(row, -inf if tight == inf else b.some[j])
    kept: Any = np.int64(0)
    level = _Level(0, np.nan, 0, 0, 0)
    while True:
        count = _gather(row, p.n_classes, cut, upper, room)
        _sort(row, room, count)
        kept, level, left = _walk_limits(b, j, row, p, limits, tight, room, count, kept, level, other)
        if left > -inf or cut <= low:
            break
        upper, cut = cut, _next_cut(b, j, row, cut, level.first)
    return kept, left


#: More labels than this are walked through in order rather than looked at one by one; each takes a pass over the row,
#: and one with exponentials where masses are needed.
_SINGLES, _SINGLE_MASSES = 256, 8
#: What a label reaches is raised, and what its limit asks for lowered, by far more than rounding in float32 takes.
_ROUGHLY = 1e-4
#: Smaller stabilizers and larger sums of evidence would take the test for possible labels out of float32's range.
_SMALLEST_STABILIZER = 1e-20
_LARGEST_ALPHA_0 = 1e30
#: -ln(1 + e) lies above -e and above this - e/4: the tangents at alpha = 1 and at alpha = 4.
_TANGENT_AT_4 = 0.75 - log(4)


def demands(values: F64, limits: F64) -> F64 | None:
    """What limits ask of labels, for `_possible`; None if that has no test for the score with these `values`."""
    kind, stabilizer = int(values[0]), values[3]
    if kind == _MARGIN:
        return _ROUGHLY + np.maximum(limits, 0.0)  # the top label, whose score is negative, always passes
    if kind == _ECP and stabilizer < _SMALLEST_STABILIZER:
        return np.maximum((1.0 - _ROUGHLY) * limits, (1.0 + _ROUGHLY) * limits) + _ROUGHLY
    if kind in (_LAC, _ECP):
        demand = (1.0 - _ROUGHLY) * np.exp(-np.maximum(limits, -69.0))
        return np.where(demand < 1e-37, 0.0, -demand)
    return None


class _Test(NamedTuple):
    """What the test for possible labels needs to know of their row, in its own precision."""

    base: Any
    rate: Any
    scale: Any
    constant: Any
    surprisal: Any  # ln alpha_0
    least: Any  # the logarithm of the stabilizer, where that is tiny


@_inlined
def _cost(b: Any, j: int, p: _Parameters) -> float:
    """The largest cost of row j, which is that of its lowest label."""
    return b.low_surprisal[j] / (b.low_gain[j] * p.stabilizer)


@_inlined
def _prepare_tests(b: Any, p: _Parameters, count: int) -> None:
    """What tests of labels with limits of their own need to know of the rows of a batch."""
    if p.kind == _ECP:
        for j in range(count):
            b.surprisal[j] = 0.0 - _log(b.inverse_alpha_0[j])  # of a label without evidence
            b.cost[j] = _cost(b, j, p) if p.is_plain else 0.0


@_inlined
def _test_of(b: Any, j: int, row: Any, p: _Parameters) -> _Test:
    base, rate, scale, constant, least = b.top[j], p.rate, 0.0, 0.0, -inf
    if not _needs_rank(p.kind):
        scale, constant = b.largest[j] * (1.0 + _ROUGHLY), 0.0 - b.largest[j] if p.kind == _MARGIN else 0.0
    elif p.kind == _ECP and p.stabilizer >= _SMALLEST_STABILIZER:
        share, worst = b.inverse_alpha_0[j], b.cost[j] * (1.0 + _ROUGHLY)
        is_huge = share * _LARGEST_ALPHA_0 < 1.0
        scale, constant = (0.0, 1e38) if is_huge else ((b.largest[j] * worst) ** 0.5 * share, p.stabilizer * worst)
    elif p.kind == _ECP and p.stabilizer == 0.0:
        base, rate, constant = b.low[j], rate * (1.0 + _ROUGHLY), b.worst[j]
    elif p.kind == _ECP:
        rate, constant, least = rate * (1.0 - _ROUGHLY), b.worst[j] + log(2.0), p.log_stabilizer
    numbers = _native(row, base), _native(row, rate), _native(row, scale), _native(row, constant)
    return _Test(*numbers, _native(row, b.surprisal[j]), _native(row, least))


@_inlined
def _reach(row: Any, kind: int, evidence: int, by_logarithms: bool, t: _Test, z: Any, demand: Any) -> Any:
    """Lanes that are not negative where a label may be within its limit.

    With a label's probability q, its surprisal I, and a limit t, it is within

    - LAC: q - e^-t >= 0;
    - Margin: q - max q + t >= 0, of labels below the top;
    - ECP: (utility + stabilizer) max_v C_v - e^-t I >= 0, and by logarithms where the stabilizer is tiny or 0:
      z / T - 2 I - ln I + t + constant >= 0, or with ln(stabilizer) for the first two; at rank 0.

    `demand` holds -e^-t, or t. All labels are tested, and fast: exponential and logarithm are rough, and the surprisal
    ln alpha_0 - ln alpha is made of two tangents above the logarithm. Of other scores what is asked decides: 0 passes.
    """
    x = _sub(z, t.base)
    if kind != _ECP:
        return _add(demand, _fma(_rough_exp(x, t.rate), t.scale, t.constant))
    e = _activate(evidence, z)
    tangent = _fma(e, _native(row, -0.25), _native(row, np.float64(t.surprisal) + _TANGENT_AT_4))
    surprisal = _larger(_sub(t.surprisal, e), tangent)
    if not by_logarithms:
        root = _fma(e, t.scale, t.scale)
        return _fma(demand, surprisal, _fma(_mul(_rough_exp(x, t.rate), root), root, t.constant))
    utility = _larger(_sub(_mul(x, t.rate), _add(surprisal, surprisal)), t.least)
    return _add(demand, _add(_sub(utility, _rough_log(surprisal)), t.constant))


@_inlined
def _can_reach(row: Any, kind: int, evidence: int, by_logarithms: bool, t: _Test, demands: Any, i: int) -> Any:
    """One bit for each of the 16 labels from number i on, as `_load` takes them: whether it may be within its limit."""
    return _not_negative(_reach(row, kind, evidence, by_logarithms, t, _load(row, i), _load(demands, i)))


@_inlined
def _note_possible(
    row: Any, kind: int, evidence: int, by_logarithms: bool, t: _Test, demands: Any, labels: I64, words: Any
) -> int:
    """Note the labels that may be within their limits, in their own order; returns how many."""
    count, whole = 0, len(row) // _WORD * _WORD
    for i in range(0, whole, _WORD):
        first = _can_reach(row, kind, evidence, by_logarithms, t, demands, i)
        second = _can_reach(row, kind, evidence, by_logarithms, t, demands, i + LANES)
        third = _can_reach(row, kind, evidence, by_logarithms, t, demands, i + 2 * LANES)
        fourth = _can_reach(row, kind, evidence, by_logarithms, t, demands, i + 3 * LANES)
        words[i // _WORD] = np.uint64(_join(first, second)) | (np.uint64(_join(third, fourth)) << np.uint64(32))
    for i in range(0, whole, _WORD):
        count = _note_bits(labels, count, i, words[i // _WORD], 4)
    for i in range(whole, len(row), LANES):
        bits = _can_reach(row, kind, evidence, by_logarithms, t, demands, i)
        count = _note_bits(labels, count, _least(i, len(row) - LANES), bits, 2)
    return count


@_inlined
def _possible(b: Any, j: int, row: Any, p: _Parameters, demands: Any, labels: I64, room: _Scratch) -> int:
    """Note the labels of row j that may be within their limits, in their own order; returns how many."""
    t, words, by_logarithms = _test_of(b, j, row, p), room.buckets, p.stabilizer < _SMALLEST_STABILIZER
    if p.kind == _ECP and p.evidence == _RELU and not by_logarithms:  # the usual case, compiled without the others
        return _note_possible(row, _ECP, _RELU, False, t, demands, labels, words)
    return _note_possible(row, p.kind, p.evidence, by_logarithms, t, demands, labels, words)


@_inlined
def _drop(row: Any, limits: F64, left: float, room: _Scratch, count: int) -> int:
    """Of the labels noted, keep those not above `left`, and of impossible ones those without a limit."""
    labels, kept = room.labels, 0
    for i in range(count):
        z = np.float64(row[labels[i]])
        labels[kept], room.keys[kept] = labels[i], 0.0 - z
        kept += 1 if z <= left and (z > -inf or limits[labels[i]] == inf) else 0
    return kept


@_inlined
def _count_above_four(row: Any, w: Any, x: Any, y: Any, z: Any) -> tuple[float, float, float, float]:
    """How many logits are strictly larger than each of four, in one pass."""
    n_w, n_x, n_y, n_z = _no_counts(row), _no_counts(row), _no_counts(row), _no_counts(row)
    for i in range(0, len(row), LANES):
        lanes = _load(row, i)
        n_w, n_x = _one_more(n_w, lanes, w), _one_more(n_x, lanes, x)
        n_y, n_z = _one_more(n_y, lanes, y), _one_more(n_z, lanes, z)
    counts = _sum_whole(n_w), _sum_whole(n_x), _sum_whole(n_y), _sum_whole(n_z)
    return np.float64(counts[0]), np.float64(counts[1]), np.float64(counts[2]), np.float64(counts[3])


@_inlined
def _next_four(row: Any, room: _Scratch, i: int, stop: int) -> Any:
    """The logits of sorted candidates from number i on, the last repeated where they end."""
    labels, last = room.sorted_labels, stop - 1
    return (
        row[labels[i]],
        row[labels[_least(i + 1, last)]],
        row[labels[_least(i + 2, last)]],
        row[labels[_least(i + 3, last)]],
    )


@_inlined
def _count_ranks(row: Any, room: _Scratch, start: int, stop: int) -> None:
    """The ranks of some of the sorted candidates, in `room.buckets`."""
    ranks = room.buckets
    for i in range(start, stop, 4):
        k = i - start
        four = _next_four(row, room, i, stop)
        ranks[k], ranks[k + 1], ranks[k + 2], ranks[k + 3] = _count_above_four(row, *four)


@_inlined
def _score_singles(b: Any, j: int, row: Any, p: _Parameters, room: _Scratch, start: int, stop: int, other: Any) -> None:
    """Score some of the sorted candidates, at most `_SIDE`, after counting the labels above each in the row."""
    s, ranks = _row_at(b, j), room.buckets
    if _needs_rank(p.kind):
        _count_ranks(row, room, start, stop)
    for i in range(start, stop):
        z = row[room.sorted_labels[i]]
        _note_label(b, i - start, _label(row, p, s, z, np.float64(ranks[i - start]), other))
    _score_candidates(b, p, s, stop - start, other)


@_inlined
def _row_set_limits(
    b: Any, j: int, row: Any, p: _Parameters, limits: F64, tight: float, demands: Any, room: _Scratch, other: Any
) -> int:
    """The set of row j of a batch whose labels have limits of their own, where `_row_set` leaves its.

    Labels are walked through from the top until their scores are beyond `tight`, if that is not -inf. Those left that
    `demands` do not rule out are looked at one by one; if they are many, all labels are walked through instead.
    """
    while True:
        kept: Any = np.int64(0)
        left, count = inf, 0
        if tight > -inf:
            kept, left = _walk_down(b, j, row, p, limits, tight, room, other)
        if tight < inf:
            count = _drop(row, limits, left, room, _possible(b, j, row, p, demands, room.labels, room))
        if count <= (_SINGLE_MASSES if p.kind == _MASS else _SINGLES):
            break
        tight = inf
    _sort(row, room, count)
    for start in range(0, count, _SIDE):
        stop = _least(start + _SIDE, count)
        _score_singles(b, j, row, p, room, start, stop, other)
        for i in range(start, stop):
            value, label = b.score[i - start], room.sorted_labels[i]
            if value <= limits[label]:
                room.scores[kept], room.members[kept] = value, label
                kept += 1
    return kept


# ---------------------------------------------------------------------------------------------------------------
# Small sets. Where a threshold can be turned into a logit, all candidates of a row are known before any is scored; if
# they are few, those of many rows are scored side by side.

#: How much less than a logarithm `_rough_log` may be, with what rounding in float32 takes.
_LOG_ERROR = 0.061
#: What float32 holds without losing digits, with room for sums.
_SMALLEST, _LARGEST_DEMAND = 1e-30, 1e30
#: Of rows whose candidates are flagged, those with at most so many are not looked at more closely.
_FEW_FLAGS = 20
#: How often the interval in which a cut lies is halved.
_HALVINGS = 5


@_inlined
def _demand(threshold: float) -> float:
    """What a threshold asks of labels, e^-t, or less."""
    return _exp(_smaller(_larger(-threshold, -700.0), 700.0)) * (1.0 - _ROUGHLY)


@_inlined
def _halve_cuts(b: Any, j: int, row: Any, p: _Parameters) -> None:
    """Cuts of the 16 rows from number j of a batch on, for ECP: between the lowest logit and the top, halved in lanes.

    With a label's surprisal I and a threshold t, it is beyond if (utility + stabilizer) max_v C_v < e^-t I at rank 0,
    and so are all below it. Logarithms are rough, and err towards a lower cut, as does all rounding.
    """
    cut, top = _native(row, _load_whole(b.low, j)), _native(row, _load_whole(b.top, j))
    step, demand = _sub(top, cut), _native(row, _load_whole(b.demand, j))
    share, total = _native(row, _load_whole(b.inverse_alpha_0, j)), _native(row, _load_whole(b.exponentials, j))
    rate, one, two = _native(row, (1.0 - _ROUGHLY) * p.rate), _native(row, 1.0), _native(row, -2.0)
    total = _add(total, one)  # relative to the top's probability
    for _ in range(_HALVINGS):
        step = _mul(step, _native(row, 0.5))
        z = _add(cut, step)
        logarithm = _rough_log(_mul(_add(_relu(z), one), share))
        surprisal = _sub(_mul(logarithm, _native(row, -1.0)), _native(row, _LOG_ERROR))
        least = _sub(_mul(surprisal, demand), _native(row, p.stabilizer))
        most = _fma(surprisal, two, _mul(_sub(z, top), rate))
        is_beyond = _if_above(_if_above(step, _rough_log(_mul(least, total)), most), least, _native(row, _SMALLEST))
        cut = _add(cut, is_beyond)
    _store(b.cut, j, cut)


@_inlined
def _find_cuts(b: Any, row: Any, p: _Parameters, thresholds: F64, start: int, stop: int) -> None:
    """For each row of a batch its threshold, and a logit below which no label is within it; -inf where that is +inf.

    LAC's score is the logit but for constants.
    """
    for j in range(stop - start):
        b.threshold[j] = thresholds[_least(start + j, len(thresholds) - 1)]
    if p.kind == _LAC:
        for j in range(stop - start):
            t, total = p.temperature * b.threshold[j], p.temperature * b.log_total[j]
            slack = _SLACK * (abs(b.top[j]) + total + abs(t))
            b.cut[j] = b.top[j] + total - t - slack  # NaN, which no label reaches, where t is -inf
    elif p.has_cuts:
        same = _demand(thresholds[0])
        if len(thresholds) > 1:
            for j in range(stop - start):
                b.demand[j] = _demand(b.threshold[j])
        for j in range(stop - start):
            demand = (b.demand[j] if len(thresholds) > 1 else same) / _cost(b, j, p)
            is_huge = b.inverse_alpha_0[j] * _LARGEST_ALPHA_0 < 1.0  # too much for single precision: all are candidates
            b.demand[j] = 0.0 if is_huge else _smaller(_LARGEST_DEMAND, demand)
        for j in range(0, stop - start, LANES):
            _halve_cuts(b, j, row, p)
    for j in range(stop - start):
        b.cut[j] = -inf if b.threshold[j] == inf else b.cut[j]


@_inlined
def _flag_candidates(b: Any, row: Any, p: _Parameters, count: int) -> None:
    """For each row of a batch of turned ones, flag the labels that reach its cut."""
    for j in range(0, count, LANES):
        cut = _native(row, _load_whole(b.cut, j))
        for first in range(0, p.n_classes, _WORD):
            _store(b.flags, (first // _FLAGS + 1) * _BATCH + j, _no_counts(row))
        for first in range(0, p.n_classes, _FLAGS):
            flags = _no_counts(row)
            for k in range(_least(first + _FLAGS, p.n_classes) - 1, first - 1, -1):
                flags = _one_more_at_least(_add_whole(flags, flags), _load_whole(b.turned, _at(j, k, p.n_classes)), cut)
            _store(b.flags, first // _FLAGS * _BATCH + j, flags)
    for j in range(count):
        b.few[j], b.some[j], b.many[j] = b.cut[j], b.low[j], b.low[j]


@_inlined
def _flags_at(b: Any, j: int, first: int) -> Any:
    """The flags of row j for the labels from number `first` on, in a word."""
    place = first // _FLAGS * _BATCH + j
    low = np.uint64(b.flags[place]) & np.uint64((1 << _FLAGS) - 1)
    return low | (np.uint64(b.flags[place + _BATCH]) << np.uint64(_FLAGS))


@_inlined
def _count_flags(b: Any, j: int, p: _Parameters) -> int:
    count = 0
    for first in range(0, p.n_classes, _WORD):
        count += _count_bits(_flags_at(b, j, first))
    return count


@_inlined
def _gather_flagged(b: Any, j: int, p: _Parameters, room: _Scratch) -> int:
    """As `_find_at_least`, of the labels flagged in row j."""
    count: Any = np.int64(0)
    for first in range(0, p.n_classes, _WORD):
        count = _note_bits(room.labels, count, first, _flags_at(b, j, first), 2)
    return count


@_inlined
def _note_few(c: Any, first: int, s: _Row, room: _Scratch, count: int) -> None:
    """Note the sorted candidates of a row from number `first` on; no label above them is missing."""
    keys, rank = room.sorted_keys, 0
    for k in range(count):
        rank = rank if k > 0 and keys[k] == keys[k - 1] else k
        _note_candidate(c, first + k, s, room.sorted_labels[k], 0.0 - keys[k], rank)


@_inlined
def _score_few(c: Any, p: _Parameters, count: int) -> None:
    """The scores of the candidates noted."""
    count = (count + _SIDE - 1) // _SIDE * _SIDE  # also some that are not there: a whole number of vectors
    if p.is_plain:
        _score_plain(c, p, count)
    else:
        for m in range(count):
            c.score[m] = _lac_value(p, _row_at(c, m), _label_at(c, m))


@_inlined
def _score_tops(b: Any, p: _Parameters, count: int) -> None:
    """The scores of the top labels of a batch: of many narrow rows they are the only candidates."""
    for j in range(count):
        b.z[j], b.label_alpha[j], b.rank[j] = b.top[j], b.alpha[j], 0.0
    _score_few(b, p, count)
    for j in range(count):  # of which the first are soon others'
        b.top_score[j] = b.score[j]


@_inlined
def _take_candidates(
    b: Any, logits: Any, start: int, first: int, stop: int, p: _Parameters, wide: Any, narrow: Any, room: _Scratch
) -> int:
    """Score the candidates of the rows from `first` on, in a batch that begins at `start`; returns the row after.

    That is the first row with too many candidates, or the one where there was no room left.
    """
    c, i = b.candidates, first
    filled: Any = np.int64(0)
    while i < stop and filled <= _SLOTS - _MOST:
        row, j, count = logits[i], i - start, _MOST + 1
        if narrow is not None:
            count = _gather_flagged(b, j, p, room)
        if wide is not None:  # noqa: SIM102 - what leaves a way out is a condition of its own
            if not b.cut[j] < b.many[j]:
                count = _find_at_least(row, p.n_classes, _native(row, b.cut[j]), _native(row, inf), room)
        if count > _MOST:
            break
        if narrow is not None and count == 1:  # the top, which is scored already
            b.begin[j], b.end[j] = -1.0, room.labels[0]
            i += 1
            continue
        if count == 1:
            _note_candidate(c, filled, _row_at(b, j), room.labels[0], np.float64(row[room.labels[0]]), 0)
        else:
            _note_keys(row, room, count)
            _sort_few(row, room, count)
            _note_few(c, filled, _row_at(b, j), room, count)
        b.begin[j], b.end[j] = filled, filled + count
        filled, i = filled + count, i + 1
    _score_few(c, p, filled)
    return i


@_inlined
def _hand_over_small(b: Any, j: int, used: int, labels: I32, scores: F64) -> int:
    """Put the set of row j of a batch, whose candidates have been scored, after what is used already.

    Returns its size, or -1 if rounding has put scores out of order, or there may be no room.
    """
    c, begin, end = b.candidates, _whole(b.begin[j]), _whole(b.end[j])
    if begin < 0:  # `end` is the only candidate, the top
        if used == len(labels):
            return -1
        labels[used] = end
        if len(scores) > 0:
            scores[used] = b.top_score[j]
        return 1 if b.top_score[j] <= b.threshold[j] else 0
    if used + end - begin > len(labels):
        return -1
    kept: Any = np.int64(0)
    before, is_sorted = -inf, True
    for m in range(begin, end):
        value = c.score[m]
        labels[np.uint64(used + kept)] = c.label[m]
        if len(scores) > 0:
            scores[np.uint64(used + kept)] = value
        kept += 1 if value <= b.threshold[j] else 0
        is_sorted = is_sorted and before <= value
        before = value
    return kept if is_sorted else -1


# ---------------------------------------------------------------------------------------------------------------
# Sets without scores, where labels have limits of their own: most labels are within theirs, or beyond, whatever their
# rank, so that few ranks are counted.


class _Notes(NamedTuple):
    """Room for what is known of a row's candidates, in its own precision."""

    z: Any
    need: Any
    utility: Any
    enough: Any
    little: Any


def make_notes(dtype: Any) -> NDArray[Any]:
    """Room for the notes of one thread's rows."""
    return np.empty((len(_Notes._fields), _SLOTS), dtype)


@_inlined
def _unpack_notes(notes: Any) -> _Notes:
    names = _column_of(notes, 0), _column_of(notes, 1), _column_of(notes, 2), _column_of(notes, 3), _column_of(notes, 4)
    return _Notes(*names)


@_inlined
def _flip(flags: I64, k: int, bits: Any) -> None:
    """Change flags from candidate k on, at most as many as there are lanes."""
    flags[k // _WORD] ^= bits << (k % _WORD)


@_inlined
def _weigh(
    b: Any, j: int, row: Any, p: _Parameters, limits: F64, needs: Any, room: _Scratch, c: _Notes, count: int
) -> None:
    """Flag the candidates of row j, `room.members`, that are within their limits whatever their ranks, and open ones.

    With a label's surprisal I and a limit t, `need` = e^-t, it is within if, at rank r,
    utility (K - r) >= K (I e^-t / max_v C_v - stabilizer), which lies between `little` and `enough`: rounding does less
    than what lies between the two, and where one is NaN, neither says anything. No more labels are above it than may
    have more evidence, for the row has only so much. LAC's scores have no ranks.
    """
    s, labels, within, unsure = _row_at(b, j), room.members, room.within, room.unsure
    within[0], within[1], unsure[0], unsure[1] = 0, 0, 0, 0
    for k in range(count):
        label = np.uint64(labels[k])
        c.z[k], c.need[k] = row[label], needs[label]
    if p.kind == _LAC:
        for k in range(count):
            is_in = _lac_value(p, s, _Label(np.float64(c.z[k]), 1.0, 0.0, 0.0, 0.0)) <= limits[labels[k]]
            _flip(within, k, 1 if is_in else 0)
        return
    is_huge = s.inverse_alpha_0 * _LARGEST_ALPHA_0 < 1.0
    n_classes, stabilizer = _native(row, np.float64(p.n_classes)), _native(row, p.n_classes * p.stabilizer)
    top, rate = _native(row, s.top), _native(row, p.rate)
    largest = _native(row, np.nan if is_huge else s.largest)  # float32 does not tell: all are open
    share, surprisal = _native(row, s.inverse_alpha_0), _native(row, b.surprisal[j])
    scale, zero, one = _native(row, p.n_classes / b.cost[j]), _native(row, 0.0), _native(row, 1.0)
    evidence = _native(row, (1.0 + _ROUGHLY) * (s.alpha + s.rest - p.n_classes) + _SLACK * p.n_classes)
    for k in range(0, count, LANES):
        z, need = _load_whole(c.z, k), _mul(_load_whole(c.need, k), scale)
        e = _relu(z)
        root = _fma(e, share, share)
        utility = _mul(_exp(_mul(_sub(z, top), rate)), _mul(_mul(root, root), largest))
        excess = _sub(_mul(_sub(surprisal, _log(_add(e, one))), need), stabilizer)
        slack = _add(_fma(need, surprisal, stabilizer), _mul(utility, n_classes))
        far = _far_away(z)  # beyond, unless nothing is needed: NaN then, and the limit decides
        enough = _add(_fma(slack, _native(row, _ROUGHLY), excess), far)
        little = _add(_fma(slack, _native(row, -_ROUGHLY), excess), _mul(far, need))
        unit = _larger(z, _native(row, 1e-10))  # the highest rank is evidence / unit, or K - 1
        least = _mul(utility, _larger(_sub(_mul(unit, n_classes), evidence), unit))
        is_within = _at_least(_sub(least, _mul(enough, unit)), zero)
        is_beyond = _above(_sub(little, _mul(utility, n_classes)), zero)
        there = _LANE_BITS >> _most(k + LANES - count, 0)
        _flip(within, k, np.int64(is_within) & there)
        _flip(unsure, k, ~np.int64(is_within | is_beyond) & there)
        _store(c.utility, k, utility)
        _store(c.enough, k, enough)
        _store(c.little, k, little)


@_inlined
def _bound(row: Any, low: Any, high: Any, z: Any, mark: Any, rank: float, n_classes: Any) -> Any:
    """Bounds of the ranks of logits, given those so far and the rank of one logit."""
    low = _larger(low, _sub(_native(row, rank), _if_above(n_classes, z, mark)))
    return low, _smaller(high, _add(_native(row, rank), _if_above(n_classes, mark, z)))


@_called
def _settle(c: _Notes, row: Any, p: _Parameters, s: _Row, limits: F64, room: _Scratch, k: int, bits: int) -> int:
    """Which of the candidates from number k on are within their limits, of those whose ranks are counted here."""
    is_within = 0
    while bits != 0:
        i = _lowest_bit(np.uint64(bits))
        z = np.float64(c.z[k + i])
        label = _Label(z, _relu(z) + 1.0, np.float64(_count_above(row, c.z[k + i])), 0.0, 0.0)
        is_within |= 1 << i if _plain_value(p, s, label) <= limits[room.members[k + i]] else 0
        bits &= bits - 1
    return is_within


@_inlined
def _next(flags: Any, last: int) -> Any:
    """The number of the first flag, or the last one's if there is none left, and the other flags."""
    return (_lowest_bit(flags) if flags != 0 else last), _without_lowest(flags)


@_inlined
def _narrow(c: _Notes, row: Any, p: _Parameters, s: _Row, limits: F64, room: _Scratch, count: int) -> None:
    """Count the ranks of four of the open candidates, which bound all others'."""
    within, unsure = room.within, room.unsure
    first = 0 if unsure[0] != 0 else _WORD
    flags = np.uint64(unsure[first // _WORD])
    w, flags = _next(flags, 0)
    x, flags = _next(flags, w)
    y, flags = _next(flags, x)
    z, flags = _next(flags, y)
    w, x, y, z = c.z[first + w], c.z[first + x], c.z[first + y], c.z[first + z]
    n_w, n_x, n_y, n_z = _count_above_four(row, w, x, y, z)
    n_classes, zero = _lanes(row, np.float64(p.n_classes)), _native(row, 0.0)
    for k in range(0, count, LANES):
        own, utility = _load_whole(c.z, k), _load_whole(c.utility, k)
        low, high = _bound(row, _lanes(row, 0.0), n_classes, own, w, n_w, n_classes)
        low, high = _bound(row, low, high, own, x, n_x, n_classes)
        low, high = _bound(row, low, high, own, y, n_y, n_classes)
        low, high = _bound(row, low, high, own, z, n_z, n_classes)
        is_open = (unsure[k // _WORD] >> (k % _WORD)) & _LANE_BITS
        is_within = (
            np.int64(_at_least(_sub(_mul(utility, _sub(n_classes, high)), _load_whole(c.enough, k)), zero)) & is_open
        )
        is_beyond = (
            np.int64(_above(_sub(_load_whole(c.little, k), _mul(utility, _sub(n_classes, low))), zero)) & is_open
        )
        is_known = np.int64(_at_least(_sub(low, high), zero)) & is_open
        is_close = is_known & ~(is_within | is_beyond)
        if is_close != 0:
            is_within |= _settle(c, row, p, s, limits, room, k, is_close)
        _flip(within, k, is_within)
        _flip(unsure, k, is_within | is_beyond | is_known)


@_inlined
def _sort_within(c: _Notes, row: Any, room: _Scratch, count: int) -> int:
    """Sort the candidates flagged as within their limits; returns how many."""
    kept: Any = np.int64(0)
    for start in range(0, count, _WORD):
        flags = np.uint64(room.within[start // _WORD])
        for i in range(kept, kept + _count_bits(flags)):
            k = start + _lowest_bit(flags)
            room.labels[i], c.need[i] = room.members[k], -c.z[k]
            flags, kept = _without_lowest(flags), i + 1
    _find_places(row, c.need, room.buckets, kept)
    for i in range(kept):
        room.sorted_labels[_place(room.buckets, i)] = room.labels[i]
    return kept


@_called
def _top_within(b: Any, j: int, row: Any, p: _Parameters, limits: F64, room: _Scratch) -> int:
    """As `_row_within`, of the labels above the row's cut."""
    c, labels = b.candidates, room.sorted_labels
    count = _gather(row, p.n_classes, _native(row, b.cut[j]), _native(row, inf), room)
    if count > _SLOTS:
        return -1
    _sort_few(row, room, count)
    _note_few(c, 0, _row_at(b, j), room, count)
    _score_few(c, p, count)
    kept: Any = np.int64(0)
    for k in range(count):
        is_within = c.score[k] <= limits[labels[k]]
        labels[kept] = labels[k]
        kept += 1 if is_within else 0
    return kept


@_inlined
def _is_small(b: Any, j: int, p: _Parameters, narrow: Any) -> bool:
    """Whether few labels of row j reach its cut."""
    if narrow is not None:
        return _count_flags(b, j, p) <= _FEW_FLAGS
    return not b.cut[j] < b.some[j]


@_inlined
def _row_within(
    b: Any,
    j: int,
    row: Any,
    p: _Parameters,
    narrow: Any,
    limits: F64,
    needs: Any,
    demands: Any,
    room: _Scratch,
    c: _Notes,
) -> int:
    """The set of row j of a batch in `room.sorted_labels`, without scores; returns its size, -1 for many candidates.

    Candidates are the labels above the row's cut, or if those are many, the ones that `demands` do not rule out.
    """
    if _is_small(b, j, p, narrow):
        return _top_within(b, j, row, p, limits, room)
    count = _possible(b, j, row, p, demands, room.members, room)
    if count > _SLOTS:
        return -1
    s = _row_at(b, j)
    _weigh(b, j, row, p, limits, needs, room, c, count)
    while room.unsure[0] | room.unsure[1] != 0:
        _narrow(c, row, p, s, limits, room, count)
    return _sort_within(c, row, room, count)


# ---------------------------------------------------------------------------------------------------------------
# Kernels: one for each question. `logits` is a C-contiguous block of float32 or float64 rows, padded with -inf to at
# least 16 columns; `values` is a score's parameters, `wide`, `narrow` and `other` are those of `ways`. Each returns the
# first row it could not use, or -1.


@_kernel
def label_kernel(logits: Any, labels: Any, wide: Any, narrow: Any, other: Any, batch: Any, scores: F64) -> int:
    p, b = _unpack_one(wide, narrow, other), _columns_of(logits, batch)
    start: Any = np.int64(0)
    while start < len(logits):
        stop, bad = _take_batch(b, logits, start, p, wide, narrow, other, labels)
        if bad >= 0:
            return bad
        if wide is not None:
            for i in range(start, stop):
                row, j = logits[i], i - start
                _note_label(b, j, _label(row, p, _row_at(b, j), row[labels[i]], b.rank[j], other))
        _score_labels(b, p, stop - start, other)
        for i in range(start, stop):
            scores[i] = b.score[i - start]
        start = stop
    return -1


@_inlined
def _hand_over(members: I64, own: F64, size: int, used: int, labels: I32, scores: F64) -> None:
    """Put a set after what is used already, with its scores unless there is no room for any."""
    for k in range(size):
        labels[used + k] = members[k]
    if len(scores) > 0:
        for k in range(size):
            scores[used + k] = own[k]


@_kernel
def set_kernel(
    logits: Any,
    first: int,
    wide: Any,
    narrow: Any,
    other: Any,
    thresholds: F64,
    batch: Any,
    floats: F64,
    wholes: I64,
    ends: I64,
    labels: I32,
    scores: F64,
) -> tuple[int, int, int]:
    """The sets of the rows from `first` on, as many as there is room for. `thresholds` is one for all or for each row.

    `ends` gets where each row's set ends in `labels`. `scores` is as long as those, or empty if nobody asks for them.
    Returns the first row not done, how much room was used, and the first row that could not be used.
    """
    p, b, room, start = (
        _unpack_one(wide, narrow, other),
        _columns_of(logits, batch),
        _unpack_scratch(floats, wholes),
        first,
    )
    used: Any = np.int64(0)
    while start < len(logits):
        stop, bad = _take_batch(b, logits, start, p, wide, narrow, other, None)
        if bad >= 0:
            return bad, used, bad
        _find_cuts(b, logits[start], p, thresholds, start, stop)
        if narrow is not None:
            _flag_candidates(b, logits[start], p, stop - start)
            _score_tops(b, p, stop - start)
        ready = start  # the first row whose candidates have not been scored
        for i in range(start, stop):
            if i == ready and p.has_cuts:
                ready = _take_candidates(b, logits, start, i, stop, p, wide, narrow, room)
            size = _hand_over_small(b, i - start, used, labels, scores) if i < ready else -1
            if size >= 0:
                used += size
                ends[i] = used
                continue
            size, ready = _row_set(b, i - start, logits[i], p, b.threshold[i - start], room, other), _most(ready, i + 1)
            if used + size > len(labels):
                return i, used, -1
            _sort_set(room, size)
            _hand_over(room.members, room.scores, size, used, labels, scores)
            used += size
            ends[i] = used
        start = stop
    return len(logits), used, -1


@_kernel
def limit_kernel(
    logits: Any,
    first: int,
    wide: Any,
    narrow: Any,
    other: Any,
    limits: F64,
    needs: Any,
    loosest: F64,
    tight: float,
    demands: Any,
    batch: Any,
    floats: F64,
    wholes: I64,
    notes: Any,
    ends: I64,
    labels: I32,
    scores: F64,
) -> tuple[int, int, int]:
    """As `set_kernel`, with a limit for each label, of which `loosest` holds the largest.

    `needs` are those of `_bound_ranks`, `tight` and `demands` those of `_row_set_limits`.
    """
    p, b, room, start = (
        _unpack_one(wide, narrow, other),
        _columns_of(logits, batch),
        _unpack_scratch(floats, wholes),
        first,
    )
    c = _unpack_notes(notes)
    can_do_without = p.has_cuts and (p.kind == _LAC or p.stabilizer >= _SMALLEST_STABILIZER)
    used: Any = np.int64(0)
    while start < len(logits):
        stop, bad = _take_batch(b, logits, start, p, wide, narrow, other, None)
        if bad >= 0:
            return bad, used, bad
        _prepare_tests(b, p, stop - start)
        _find_cuts(b, logits[start], p, loosest, start, stop)
        if narrow is not None:
            _flag_candidates(b, logits[start], p, stop - start)
        for i in range(start, stop):
            row, j, size, members = logits[i], i - start, -1, room.sorted_labels
            if can_do_without and len(scores) == 0:
                size = _row_within(b, j, row, p, narrow, limits, needs, demands, room, c)
            if size < 0:
                members = room.members
                size = _row_set_limits(b, j, row, p, limits, tight, demands, room, other)
                _sort_set(room, size)
            if used + size > len(labels):
                return i, used, -1
            _hand_over(members, room.scores, size, used, labels, scores)
            used += size
            ends[i] = used
        start = stop
    return len(logits), used, -1


@_kernel
def uncertainty_kernel(logits: Any, values: F64, result: F64) -> int:
    """Eq. 3: u = K / alpha_0 of each row."""
    p = _unpack(values)
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row, None, i, 0.0)
        if not survey.usable:
            return i
        rest = _other_evidence(row, p.evidence, survey.top) + (p.n_classes - 1.0)
        result[i] = p.n_classes / (_dirichlet(p.evidence, np.float64(survey.top), values) + rest)
    return -1


@_kernel
def dense_kernel(
    logits: Any, wide: Any, narrow: Any, other: Any, batch: Any, floats: F64, wholes: I64, scores: F64
) -> int:
    p, b, room, start = _unpack_one(wide, narrow, other), _columns_of(logits, batch), _unpack_scratch(floats, wholes), 0
    while start < len(logits):
        stop, bad = _take_batch(b, logits, start, p, wide, narrow, other, None)
        if bad >= 0:
            return bad
        for i in range(start, stop):
            if _needs_rank(p.kind):
                for k in range(_row_set(b, i - start, logits[i], p, inf, room, other)):
                    scores[i, room.members[k]] = room.scores[k]
            else:
                _score_all(b, i - start, logits[i], p, scores[i], other)
        start = stop
    return -1


@_kernel
def top_kernel(logits: Any, labels: I32) -> int:
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row, None, i, 0.0)
        if not survey.usable:
            return i
        for start in range(0, len(row), LANES):
            bits = _at_least(_load(row, start), survey.top)
            if bits != 0:
                labels[i] = _least(start, len(row) - LANES) + _lowest_bit(bits)
                break
    return -1


@_inlined
def _moments(row: Any, top: Any, rate: Any, total: float) -> tuple[float, float]:
    """Mean and variance of z - top under softmax(rate z)."""
    floor, mean, variance = _native(row, -80.0 / np.float64(rate)), 0.0, 0.0
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, _least(start + _CHUNK, len(row)), LANES):
            z = _larger(_sub(_load(row, i), top), floor)
            part = _add(part, _mul(_exp(_mul(z, rate)), z))
        mean += _sum(part) / total
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, _least(start + _CHUNK, len(row)), LANES):
            z = _larger(_sub(_load(row, i), top), floor)
            deviation = _sub(z, _native(row, mean))
            part = _add(part, _mul(_exp(_mul(z, rate)), _mul(deviation, deviation)))
        variance += _sum(part) / total
    return mean, variance


@_kernel
def likelihood_kernel(logits: Any, labels: Any, inverse_temperature: float, batch: Any, result: F64) -> int:
    """Columns: -ln p of the label, its first and second derivative, the largest probability, whether the label's."""
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row, None, i, 0.0)
        if not survey.usable:
            return i
        rate = _native(row, inverse_temperature)
        exponentials = _sums(row, survey.top, rate, None, _columns_of(logits, batch)).exponentials
        mean, variance = _moments(row, survey.top, rate, 1.0 + exponentials)
        z = np.float64(row[labels[i]]) - survey.top
        result[i, 0] = _log1p(exponentials) - inverse_temperature * z
        result[i, 1] = mean - z
        result[i, 2] = variance
        result[i, 3] = 1.0 / (1.0 + exponentials)
        result[i, 4] = z == 0.0
    return -1


@_kernel
def widen_kernel(half: Any, single: Any) -> None:
    """Float16, given as its bits, to float32, exactly."""
    for i in range(len(half)):
        bits = np.uint32(half[i])
        magnitude = np.uint32(bits & np.uint32(0x7FFF)) << np.uint32(13)
        # Read as float32 the value is 2^112 too small, subnormals included; infinities and NaNs keep their mantissa.
        scaled = np.float32(np.uint32(magnitude).view(np.float32) * np.float32(2.0**112)).view(np.uint32)
        special = np.uint32(magnitude | np.uint32(0x7F800000))
        finite = magnitude < np.uint32(0x0F800000)
        sign = np.uint32(bits & np.uint32(0x8000)) << np.uint32(16)
        single[i] = np.uint32(np.uint32(scaled if finite else special) | np.uint32(sign)).view(np.float32)
