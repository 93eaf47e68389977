"""Lanes: 16 numbers that are added, compared and exponentiated side by side.

A lane vector is a small Numba type of our own; operations on it are emitted as LLVM vector instructions. What is done
in them is done in the order written here, whatever the processor's vector width.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from math import factorial, inf, log
from typing import Any, cast

from evicp.kernels._compiled.toolchain import cgutils, extending, ir, types

LANES = 16

#: Lanes of float32 are added up in float64 after this many logits, so that long rows keep their accuracy.
_CHUNK = 256 * LANES
#: How many logits ahead of the first pass over a row they are fetched: processors do so as well, but not far enough.
_AHEAD = 1024
#: Quotients of costs are multiplied by a power of 2: that of a label with a logit of 1e300 would underflow.
_LESS = 256
_MORE = 2.0**_LESS


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
    """Numbers >= 0 rounded to integers: sums of these do not depend on their order."""
    wide = _widen(builder, x)
    return builder.fptosi(builder.fadd(wide, _constant(wide.type, 0.5)), _like(x.type, ir.IntType(64)))


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
