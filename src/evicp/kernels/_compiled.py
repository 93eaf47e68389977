"""The compiled kernels of the CPU backend: the built-in scores, close to the cost of reading the logits.

Every built-in score falls as the logit rises, so a row needs a few reductions, a label needs a count of the labels
above it, and a set is a top-m set of which only the candidates are ever ordered. One scalar function, `_value`, turns
these into a label's score in float64; all entry points use it and the same row statistics, so that membership in a
set and `score <= threshold` agree bit for bit.

Reductions of floats run in 32 explicit lanes: their order is written here, not chosen by the compiler, so results
depend neither on the processor's vector width nor on where a function is inlined. A lane vector is a small Numba type
of our own; operations on it are emitted as LLVM vector instructions. Kernels are serial, release the GIL and allocate
nothing; `_numba` shares out blocks of rows to threads. Everything that is compiled stays in this one file, because
Numba's cache on disk notices changes of the kernel's own file only.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from importlib import import_module
from math import factorial, inf, log
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from evicp import checks

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])

# Imported by name, because the stubs of these packages come and go with their versions.
if import_module("numba").config.DISABLE_JIT:
    raise ImportError("Numba's compiler is switched off (NUMBA_DISABLE_JIT)")
njit: Any = import_module("numba").njit
types: Any = import_module("numba.core.types")
cgutils: Any = import_module("numba.core.cgutils")
extending: Any = import_module("numba.extending")
ir: Any = import_module("llvmlite.ir")

# ---------------------------------------------------------------------------------------------------------------
# Lanes: 32 numbers that are added, compared and exponentiated side by side

LANES = 32

#: Lanes of float32 are added up in float64 after this many logits, so that long rows keep their accuracy.
_CHUNK = 128 * LANES


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


def _constant(like: Any, value: float) -> Any:
    """A number, or a lane vector of equal numbers, of the LLVM type `like`."""
    return ir.Constant(like, [value] * like.count if isinstance(like, ir.VectorType) else value)


def _spread(builder: Any, value: Any) -> Any:
    """A scalar in every lane."""
    kind = _vector(value.type)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    everywhere = ir.Constant(_vector(ir.IntType(32)), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), everywhere)


def _emit_larger(builder: Any, x: Any, y: Any) -> Any:
    """X if x > y else y: of two equal numbers, or with a NaN, the second."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _emit_smaller(builder: Any, x: Any, y: Any) -> Any:
    """X if x < y else y: of two equal numbers, or with a NaN, the second."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


def _emit_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """X y + z, rounded once on every machine; left to the compiler it would be fused here and not there."""
    bits = "f64" if isinstance(_element(x.type), ir.DoubleType) else "f32"
    name = f"llvm.fma.v{LANES}{bits}" if isinstance(x.type, ir.VectorType) else f"llvm.fma.{bits}"
    fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(x.type, [x.type] * 3), name)
    return builder.call(fma, [x, y, z])


#: What ln 2 loses when rounded to float64.
_LN2_ROUNDED_OFF = float(Decimal(2).ln() - Decimal(log(2)))
_EXP_TAYLOR = [1 / factorial(k) for k in range(13, -1, -1)]
#: Fitted to e^r for float32: within 1e-7 on |r| <= ln(2)/2, and every coefficient is a float32.
_EXP_FITTED = [0.008289731107652187, 0.04189785569906235, 0.16667647659778595, 0.4999915063381195, 0.9999997019767761]
_EXP_FITTED += [1.0]


def _emit_polynomial(builder: Any, x: Any, coefficients: list[float]) -> Any:
    """Horner's rule, the highest power first."""
    result = _constant(x.type, coefficients[0])
    for coefficient in coefficients[1:]:
        result = _emit_fma(builder, result, x, _constant(x.type, coefficient))
    return result


def _emit_exp(builder: Any, x: Any) -> Any:
    """E^x for x up to about 88, as accurate as its type; what would underflow is about the smallest normal number.

    X = n ln 2 + r with |r| <= ln(2)/2; e^r is a polynomial, exactly 1 at 0; n is added to the exponent's bits.
    Adding 1.5 * 2^(mantissa bits) rounds to an integer and leaves that integer in the lowest bits.
    """
    double = isinstance(_element(x.type), ir.DoubleType)
    mantissa, lowest = (52, -707.0) if double else (23, -86.0)
    rounder = _constant(x.type, 1.5 * 2.0**mantissa)
    x = _emit_larger(builder, x, _constant(x.type, lowest))
    shifted = _emit_fma(builder, x, _constant(x.type, 1 / log(2)), rounder)
    n = builder.fsub(shifted, rounder)
    r = _emit_fma(builder, n, _constant(x.type, -log(2)), x)
    if double:
        r = _emit_fma(builder, n, _constant(x.type, -_LN2_ROUNDED_OFF), r)
    y = _emit_polynomial(builder, r, _EXP_TAYLOR if double else _EXP_FITTED)
    integer = ir.IntType(64 if double else 32)
    whole = _vector(integer) if isinstance(x.type, ir.VectorType) else integer
    exponent = builder.shl(builder.bitcast(shifted, whole), _constant(whole, mantissa))
    return builder.bitcast(builder.add(builder.bitcast(y, whole), exponent), x.type)


def _emit_log(builder: Any, x: Any) -> Any:
    """Ln x of a positive normal float64: x = 2^n m with m in [0.7, 1.4), and ln m = 2 artanh((m - 1) / (m + 1)).

    Our own, because a library's vectorised logarithm may differ from its scalar one in the last bit.
    """
    integer = ir.IntType(64)
    bits, middle = builder.bitcast(x, integer), ir.Constant(integer, 0x3FE6A09E667F3BCD)  # sqrt(1/2)
    n = builder.ashr(builder.sub(bits, middle), ir.Constant(integer, 52))
    m = builder.bitcast(builder.sub(bits, builder.shl(n, ir.Constant(integer, 52))), x.type)
    f = builder.fdiv(builder.fsub(m, _constant(x.type, 1.0)), builder.fadd(m, _constant(x.type, 1.0)))
    f_squared, twice_f = builder.fmul(f, f), builder.fadd(f, f)
    series = _emit_polynomial(builder, f_squared, [1 / k for k in range(21, 1, -2)])
    log_m = _emit_fma(builder, builder.fmul(twice_f, f_squared), series, twice_f)
    return _emit_fma(builder, builder.sitofp(n, x.type), _constant(x.type, log(2)), log_m)


def _emit_softplus(builder: Any, x: Any) -> Any:
    """Ln(1 + e^x) = max(x, 0) + ln(1 + y), y = e^-|x|, and ln(1 + y) = 2 artanh(y / (2 + y))."""
    zero, one, two = (_constant(x.type, value) for value in (0.0, 1.0, 2.0))
    y = _emit_exp(builder, _emit_smaller(builder, x, builder.fsub(zero, x)))
    f = builder.fdiv(y, builder.fadd(two, y))
    terms = 17 if isinstance(_element(x.type), ir.DoubleType) else 8
    series = _emit_polynomial(builder, builder.fmul(f, f), [1 / (2 * k + 1) for k in range(terms, 0, -1)] + [1.0])
    logarithm = builder.fmul(builder.fmul(two, f), series)
    return _emit_fma(builder, one, logarithm, _emit_larger(builder, x, zero))


def _emit_clipped_exp(builder: Any, x: Any) -> Any:
    """E^clip(x, -10, 10), and nothing where x is -inf."""
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


def _emit_finite(builder: Any, x: Any) -> Any:
    """X, and +inf where x is -inf: for a minimum over possible labels."""
    return builder.select(builder.fcmp_ordered(">", x, _constant(x.type, -inf)), x, _constant(x.type, inf))


def _emit_below(builder: Any, x: Any, y: Any) -> Any:
    """X where x < y, -inf elsewhere: for the largest of the numbers below y."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, _constant(x.type, -inf))


def _elementwise(emit: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    """Signature and code of an operation on scalars, lane vectors, or both; scalars then act on every lane."""
    vectors = [kind for kind in arguments if isinstance(kind, Lanes)]

    def generate(_context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if vectors:
            pairs = zip(signature.args, values, strict=True)
            values = [value if isinstance(kind, Lanes) else _spread(builder, value) for kind, value in pairs]
        return emit(builder, *values)

    return (vectors or arguments)[0](*arguments), generate


def _unary(emit: Callable[..., Any], result: Any = None) -> Callable[..., Any]:
    """An intrinsic of one argument; its result has the argument's type unless said otherwise."""

    def define(_typing: Any, x: Any) -> Any:
        signature, generate = _elementwise(emit, (x,))
        return (result(x) if result else signature), generate

    return _intrinsic(define)


def _binary(emit: Callable[..., Any]) -> Callable[..., Any]:
    return _intrinsic(lambda _typing, x, y: _elementwise(emit, (x, y)))


_add = _binary(lambda builder, x, y: builder.fadd(x, y))
_sub = _binary(lambda builder, x, y: builder.fsub(x, y))
_mul = _binary(lambda builder, x, y: builder.fmul(x, y))
_larger = _binary(_emit_larger)
_smaller = _binary(_emit_smaller)
_exp = _unary(_emit_exp)
_log = _unary(_emit_log)
_relu = _unary(lambda builder, x: _emit_larger(builder, _constant(x.type, 0.0), x))  # keeps a NaN
_softplus = _unary(_emit_softplus)
_clipped_exp = _unary(_emit_clipped_exp)
_finite = _unary(_emit_finite)
_hashes = _unary(_emit_hashes, Lanes(types.uint32))
_mix32 = _unary(_emit_mix32)
_add_whole = _binary(lambda builder, x, y: builder.add(x, y))
_below = _binary(_emit_below)


def _emit_cast(builder: Any, value: Any, element: Any) -> Any:
    return builder.fptrunc(value, element) if isinstance(element, ir.FloatType) else value


@_intrinsic
def _native(_typing: Any, row: Any, _x: Any) -> Any:
    """A float64 in the row's own precision."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _emit_cast(builder, values[1], context.get_value_type(signature.return_type))

    return row.dtype(row, types.float64), generate


@_intrinsic
def _lanes(_typing: Any, row: Any, _x: Any) -> Any:
    """A float64 in every lane, in the row's own precision."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        element = context.get_value_type(signature.return_type).element
        return _spread(builder, _emit_cast(builder, values[1], element))

    return Lanes(row.dtype)(row, types.float64), generate


@_intrinsic
def _load(_typing: Any, row: Any, _start: Any) -> Any:
    """The 32 logits from number `start` on, in a row of at least 32.

    Where the row ends sooner, its *last* logits in the upper lanes and -inf in the others: the logit in a lane is
    number min(start, len(row) - 32) + lane.
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


def _widen(builder: Any, vector: Any) -> Any:
    if isinstance(vector.type.element, ir.DoubleType):
        return vector
    return builder.fpext(vector, _vector(ir.DoubleType(), vector.type.count))


def _emit_sum(builder: Any, vector: Any) -> Any:
    return _fold(builder, _widen(builder, vector), lambda b, x, y: b.fadd(x, y))


def _emit_sum_but_largest(builder: Any, vector: Any) -> Any:
    """The sum of all lanes but one that holds the largest number, as if it had never been added."""
    rest = _constant(_vector(ir.DoubleType()), 0.0)
    while vector.type.count > 1:
        lower, upper = _halves(builder, vector)
        rest = builder.fadd(
            builder.fadd(*_halves(builder, rest)), _widen(builder, _emit_smaller(builder, lower, upper))
        )
        vector = _emit_larger(builder, lower, upper)
    return builder.extract_element(rest, ir.Constant(ir.IntType(32), 0))


def _emit_level(builder: Any, vector: Any, groups: int) -> Any:
    return _fold(builder, _fold(builder, vector, _emit_larger, groups), _emit_smaller)


def _reduction(emit: Callable[..., Any], result: Any = None) -> Callable[..., Any]:
    """An intrinsic from a lane vector to one number, of the lanes' own type unless said otherwise."""

    def define(_typing: Any, lanes: Any) -> Any:
        return (result or lanes.dtype)(lanes), lambda _context, builder, _signature, values: emit(builder, values[0])

    return _intrinsic(define)


_sum = _reduction(_emit_sum, types.float64)
_sum_whole = _reduction(lambda builder, vector: _fold(builder, vector, lambda b, x, y: b.add(x, y)))
_sum_but_largest = _reduction(_emit_sum_but_largest, types.float64)
_largest = _reduction(lambda builder, vector: _fold(builder, vector, _emit_larger))
_smallest = _reduction(lambda builder, vector: _fold(builder, vector, _emit_smaller))
#: From the largest logit of each lane: a logit that at least 8 (or 16) labels reach, and not many more.
_level_of_8 = _reduction(lambda builder, vector: _emit_level(builder, vector, 8))
_level_of_16 = _reduction(lambda builder, vector: _emit_level(builder, vector, 16))


def _comparison(operator: str) -> Callable[..., Any]:
    """An intrinsic that compares lanes with a number and gives one bit for each."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(
            builder.fcmp_ordered(operator, values[0], _spread(builder, values[1])), ir.IntType(LANES)
        )

    return _intrinsic(lambda _typing, lanes, _x: (types.uint32(lanes, lanes.dtype), generate))


_above = _comparison(">")
_at_least = _comparison(">=")
_under = _comparison("<")
_at_most = _comparison("<=")


@_intrinsic
def _count_bits(_typing: Any, _bits: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.zext(builder.ctpop(values[0]), ir.IntType(64))

    return types.int64(types.uint32), generate


@_intrinsic
def _lowest_bit(_typing: Any, _bits: Any) -> Any:
    """The number of the lowest bit that is set, 0 if none is."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        zeros = builder.cttz(values[0], ir.Constant(ir.IntType(1), 0))
        return builder.zext(builder.and_(zeros, ir.Constant(ir.IntType(32), LANES - 1)), ir.IntType(64))

    return types.int64(types.uint32), generate


#: Parts of kernels need no entry from Python, which would double their compilation time.
_PART = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def _called(function: Function) -> Function:
    """A part that the compiler may leave as a function of its own."""
    return cast("Function", njit(**_PART)(function))


def _inlined(function: Function) -> Function:
    """A part that is merged into its callers: a call with a row's statistics as arguments costs more than its work."""
    return cast("Function", njit(forceinline=True, **_PART)(function))


def _composed(function: Function) -> Function:
    """A part merged before compilation: it only calls others, which would each be compiled once more for it."""
    return cast("Function", njit(inline="always", **_PART)(function))


def _kernel(function: Function) -> Function:
    """A compiled entry point, cached on disk; where no folder can be written to, compiled once a process."""
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    try:
        return cast("Function", njit(cache=True, **options)(function))
    except RuntimeError:
        return cast("Function", njit(**options)(function))


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

#: Within these bounds the stabilizer can be added to the cost's denominator itself, without a detour by logarithms.
_PLAIN_STABILIZER = (1e-200, 1.0)


class _Parameters(NamedTuple):
    """A score's parameters as a kernel sees them."""

    kind: int
    evidence: int
    temperature: float
    stabilizer: float
    log_stabilizer: float
    lam: float
    k_reg: float
    seed: Any  # uint32
    randomized: bool
    randomize_penalty: bool
    n_classes: int


class _Survey(NamedTuple):
    """What a first look at a row tells; logits are in the row's own precision."""

    usable: bool  # whether scores can be computed: no NaN, no +inf, something finite, nothing too large
    top: Any  # the largest logit
    low: Any  # the smallest finite one
    few: Any  # one that 8 labels reach, and about 20 on average
    many: Any  # one that 16 labels reach, and about 50 on average
    evidence: float  # the sum of relu evidence without the largest


class _Row(NamedTuple):
    """What every label's score needs to know of its row."""

    top: Any
    low: float
    rate: Any  # 1 / temperature, in the row's own precision
    largest: float  # the largest probability, 1 / sum of exp((z - top) / T)
    log_total: float  # of that sum
    shift: Any  # log_total, in the row's own precision
    alpha: float  # the largest Dirichlet parameter
    rest: float  # the sum of all others
    inverse_alpha_0: float
    v: float  # the row's randomisation
    second: float  # the second largest probability


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
    return np.array([*shape, seed, randomized, randomize_penalty, n_classes], np.float64)


@_inlined
def _unpack(values: F64) -> _Parameters:
    return _Parameters(
        int(values[0]),
        int(values[1]),
        values[2],
        values[3],
        values[4],
        values[5],
        values[6],
        np.uint32(values[7]),
        values[8] != 0.0,
        values[9] != 0.0,
        int(values[10]),
    )


@_inlined
def _log1p(x: float) -> float:
    """Ln(1 + x) for x >= 0, to full relative accuracy: what rounding took from the sum is put back."""
    u = 1.0 + x
    return _log(u) + (x - (u - 1.0)) / u


@_inlined
def _log_add_exp(x: float, y: float) -> float:
    low, high = min(x, y), max(x, y)
    return high if low == -inf else high + _log1p(_exp(low - high))


@_inlined
def _activate(evidence: int, x: Any) -> Any:
    """Definition 1, e = A(z), of a number or of lanes."""
    if evidence == _RELU:
        return _relu(x)
    if evidence == _SOFTPLUS:
        return _softplus(x)
    return _clipped_exp(x)


@_inlined
def _survey(row: Any) -> _Survey:
    """The first pass over a row.

    In each lane the largest evidence so far is kept aside and only what is not the largest is added, so that a sum
    dominated by one label keeps the others' digits. A NaN anywhere makes the sum NaN.
    """
    top, low, rest = _lanes(row, -inf), _lanes(row, inf), 0.0
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, min(start + _CHUNK, len(row)), LANES):
            z = _load(row, i)
            part = _add(part, _relu(_smaller(top, z)))
            top = _larger(z, top)
            low = _smaller(_finite(z), low)
        rest += _sum(part)
    largest = _largest(top)
    usable = -inf < largest <= _LARGEST_LOGIT and not np.isnan(rest)
    few, many = _level_of_8(top), _level_of_16(top)
    return _Survey(usable, largest, _smallest(low), few, many, rest + _sum_but_largest(_relu(top)))


@_inlined
def _evidence_but_largest(row: Any, evidence: int) -> float:
    """The sum of a row's evidence without the largest."""
    top, rest = _lanes(row, -inf), 0.0
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, min(start + _CHUNK, len(row)), LANES):
            z = _load(row, i)
            part = _add(part, _activate(evidence, _smaller(z, top)))
            top = _larger(z, top)
        rest += _sum(part)
    return rest + _sum_but_largest(_activate(evidence, top))


@_inlined
def _huge_evidence_but_largest(row: Any) -> float:
    """The same where single precision would overflow; there relu and softplus are one."""
    top, rest = 0.0, 0.0
    for z in row:
        rest += max(min(np.float64(z), top), 0.0)
        top = max(np.float64(z), top)
    return rest


@_inlined
def _exponentials_but_largest(row: Any, top: Any, rate: Any) -> float:
    """The sum of exp((z - top) * rate) without the largest, which is 1."""
    largest, rest = _lanes(row, 0.0), 0.0
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, min(start + _CHUNK, len(row)), LANES):
            e = _exp(_mul(_sub(_load(row, i), top), rate))
            part = _add(part, _smaller(e, largest))
            largest = _larger(e, largest)
        rest += _sum(part)
    return rest + _sum_but_largest(largest)


@_inlined
def _count_above(row: Any, z: Any) -> int:
    """How many logits are strictly larger."""
    count = 0
    for i in range(0, len(row), LANES):
        count += _count_bits(_above(_load(row, i), z))
    return count


@_inlined
def _uniform(row: Any, seed: Any) -> float:
    """V in [0, 1), bit for bit the reference's `row_uniforms`."""
    total = _hashes(_lanes(row, -inf))
    for i in range(0, len(row), LANES):
        total = _add_whole(total, _hashes(_load(row, i)))
    return np.float64(_mix32(np.uint32(_sum_whole(total) ^ _mix32(seed))) >> np.uint32(8)) * 2.0**-24


@_inlined
def _second_largest(row: Any, top: Any) -> Any:
    """The second largest logit, equal to the largest where that is shared."""
    second, shared = _lanes(row, -inf), 0
    for i in range(0, len(row), LANES):
        z = _load(row, i)
        shared += _count_bits(_at_least(z, top))
        second = _larger(_below(z, top), second)
    return top if shared > 1 else _largest(second)


@_inlined
def _shifted(p: _Parameters, s: _Row, z: float) -> float:
    """(z - top) / T in float64; a quotient past the largest double is clipped, as in the reference."""
    return max((z - np.float64(s.top)) / p.temperature, -1e308)


@_inlined
def _probability(p: _Parameters, s: _Row, z: float) -> float:
    return _exp(_shifted(p, s, z)) * s.largest


@_inlined
def _fixed(s: _Row, z: Any) -> int:
    """A label's probability as an integer multiple of 2^-61, in the arithmetic of the row's own precision."""
    e = _exp(_sub(_mul(_sub(z, s.top), s.rate), s.shift))
    return int(np.float64(e) * _UNITS + 0.5)


@_inlined
def _mass_above(row: Any, s: _Row, z: Any) -> int:
    """The probability of all labels with a strictly larger logit, as an integer multiple of 2^-61."""
    mass = 0
    for other in row:
        mass += _fixed(s, other) if other > z else 0
    return mass


@_inlined
def _surprisal(s: _Row, alpha: float) -> float:
    """Eq. 6, -ln(alpha / alpha_0); for a label that holds more than half, from what the others hold."""
    if alpha == s.alpha and s.rest < s.alpha:
        return _log1p(s.rest / s.alpha)
    return -_log(alpha * s.inverse_alpha_0)


@_inlined
def _log_cost(p: _Parameters, s: _Row, z: float, rank: int) -> float:
    """Eq. 10 up to a row constant: ln I(k) - ln(phi_k p_k^2 (1 - r_k/K) + stabilizer)."""
    alpha = _activate(p.evidence, z) + 1.0
    surprisal = _surprisal(s, alpha)
    scaling = (p.n_classes - rank) * (1.0 / p.n_classes)
    if _PLAIN_STABILIZER[0] <= p.stabilizer <= _PLAIN_STABILIZER[1]:
        share = alpha * s.inverse_alpha_0
        return _log(surprisal / (_probability(p, s, z) * (share * share * scaling) + p.stabilizer))
    if p.stabilizer == 0.0:
        # The utility relative to the lowest label's, whose cost is subtracted next: a spike must not swallow the rest.
        gain = min((z - s.low) / p.temperature, 1e308)
        return _log(surprisal) + 2.0 * surprisal - _log(scaling) - gain
    log_denominator = _shifted(p, s, z) - s.log_total - 2.0 * surprisal + _log(scaling)
    return _log(surprisal) - _log_add_exp(log_denominator, p.log_stabilizer)


@_inlined
def _value(  # noqa: PLR0911 - one return for each score
    p: _Parameters, s: _Row, worst: float, z: float, rank: int, above: int, own: int
) -> float:
    """The score of a label from its logit, the number of labels above it, and their and its own mass.

    `worst` is the row's largest log cost. This is the only place where a score is computed.
    """
    if p.kind == _RANK:
        return rank + 1.0
    if z == -inf:
        return inf
    if p.kind == _ECP:
        return min(_log_cost(p, s, z, rank) - worst, 0.0)
    if p.kind == _LAC:
        return s.log_total - _shifted(p, s, z)
    if p.kind == _MASS:
        excess = max(rank + 1.0 - p.k_reg, 0.0)
        if p.randomize_penalty and excess > 0.0:
            excess = excess - 1.0 + s.v
        return np.float64(above) * _UNIT + s.v * (np.float64(own) * _UNIT) + p.lam * excess
    if p.kind == _SAPS:
        return s.v * s.largest if rank == 0 else s.largest + (rank - 1.0 + s.v) * p.lam
    if p.kind == _TOPK:
        return rank + s.v
    return (s.second if z == s.top else s.largest) - _probability(p, s, z)


@_composed
def _other_evidence(row: Any, p: _Parameters, survey: _Survey) -> float:
    """The sum of a row's evidence without the largest."""
    rest = survey.evidence if p.evidence == _RELU else _evidence_but_largest(row, p.evidence)
    return _huge_evidence_but_largest(row) if rest == inf else rest


@_composed
def _statistics(row: Any, p: _Parameters, survey: _Survey) -> tuple[_Row, float]:
    """A usable row's statistics, and its largest log cost, which is that of its lowest possible label."""
    top, rate = survey.top, _native(row, 1.0 / p.temperature)
    exponentials, rest, v, second, worst = 0.0, 0.0, 1.0, 0.0, 0.0
    if p.kind not in (_TOPK, _RANK):
        exponentials = _exponentials_but_largest(row, top, rate)
    if p.kind == _ECP:
        rest = _other_evidence(row, p, survey) + (p.n_classes - 1.0)
    if p.kind == _MARGIN:
        second = _exp((np.float64(_second_largest(row, top)) - top) / p.temperature) / (1.0 + exponentials)
    if p.randomized:
        v = _uniform(row, p.seed)
    largest, log_total, low = 1.0 / (1.0 + exponentials), _log1p(exponentials), np.float64(survey.low)
    alpha = _activate(p.evidence, np.float64(top)) + 1.0
    shift, inverse = _native(row, log_total), 1.0 / (alpha + rest)
    s = _Row(top, low, rate, largest, log_total, shift, alpha, rest, inverse, v, second)
    if p.kind == _ECP:
        worst = _log_cost(p, s, low, _count_above(row, survey.low))
    return s, worst


@_inlined
def _needs_rank(p: _Parameters) -> bool:
    return p.kind not in (_LAC, _MARGIN)


@_composed
def _value_at(row: Any, p: _Parameters, s: _Row, worst: float, z: Any) -> float:
    """The score of a label with this logit, from a pass over the row."""
    rank, above, own = 0, 0, 0
    if _needs_rank(p):
        rank = _count_above(row, z)
    if p.kind == _MASS:
        above, own = _mass_above(row, s, z), _fixed(s, z)
    return _value(p, s, worst, np.float64(z), rank, above, own)


@_composed
def _label_value(row: Any, p: _Parameters, survey: _Survey, label: int) -> float:
    s, worst = _statistics(row, p, survey)
    return _value_at(row, p, s, worst, row[label])


# ---------------------------------------------------------------------------------------------------------------
# A row's set: candidates from the top, ordered, until one is beyond the threshold

#: Up to this many candidates are sorted by comparing all with all, more by their bits.
_FEW = 128

#: A label this far beyond the threshold, relative to the numbers its score was made of, ends the walk: far more than
#: rounding can do to the order of two scores, so that no label behind it can be within the threshold.
_SLACK = 1e-9


class _Scratch(NamedTuple):
    """Room for a row's candidates: sort keys, later scores; label numbers; and as much again for sorting."""

    keys: F64
    labels: I64
    spare_keys: F64
    spare_labels: I64
    buckets: I64


def make_scratch(n_classes: int) -> tuple[F64, I64]:
    """Room for one thread's rows, allocated before because kernels allocate nothing."""
    return np.empty((2, n_classes + LANES)), np.empty((2, n_classes + LANES + 257), np.int64)


@_inlined
def _unpack_scratch(floats: F64, wholes: I64) -> _Scratch:
    return _Scratch(floats[0], wholes[0], floats[1], wholes[1], wholes[1, floats.shape[1] :])


@_inlined
def _sort_few(room: _Scratch, count: int) -> None:
    """Sort by counting for each candidate the smaller ones, and the equal ones before it: no branch to mispredict."""
    keys = room.keys
    for i in range(count, count + LANES):
        keys[i] = np.nan  # is neither smaller nor equal
    for i in range(count):
        key, place = keys[i], 0
        for j in range(0, count, LANES):
            others = _load(keys, j)
            if j > i:
                bits = _under(others, key)
            elif j + LANES <= i:
                bits = _at_most(others, key)
            else:
                before = np.uint32((1 << (i - j)) - 1)
                bits = np.uint32(_under(others, key) | (_at_most(others, key) & before))
            place += _count_bits(bits)
        room.spare_keys[place], room.spare_labels[place] = key, room.labels[i]
    for i in range(count):
        keys[i], room.labels[i] = room.spare_keys[i], room.spare_labels[i]


@_inlined
def _ordered_bits(x: float) -> Any:
    """Bits that compare, as a whole number, as the float does."""
    bits = np.float64(x).view(np.uint64)
    negative = np.uint64(0) - (bits >> np.uint64(63))
    return bits ^ (negative | np.uint64(1 << 63))


@_called
def _sort_many(room: _Scratch, count: int) -> None:
    """Sort byte by byte, the lowest first, leaving out the bytes that all keys share."""
    keys, labels, other_keys, other_labels, buckets = room
    first, differing = _ordered_bits(keys[0]), np.uint64(0)
    for i in range(count):
        differing |= _ordered_bits(keys[i]) ^ first
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
        keys, other_keys, labels, other_labels = other_keys, keys, other_labels, labels
    for i in range(count):
        room.keys[i], room.labels[i] = keys[i], labels[i]


@_inlined
def _sort(room: _Scratch, count: int) -> None:
    """Sort the candidates by their keys, ascending and stably."""
    if count <= _FEW:
        _sort_few(room, count)
        return
    for i in range(1, count):
        if room.keys[i - 1] > room.keys[i]:
            _sort_many(room, count)
            return


@_inlined
def _gather(row: Any, n_classes: int, cut: Any, room: _Scratch) -> int:
    """Note all labels with a logit of at least `cut`, in their own order, with keys; returns how many."""
    labels, count = room.labels, 0
    if cut == -inf:
        for k in range(n_classes):
            labels[k] = k
        count = n_classes
    else:
        for i in range(0, len(row), LANES):
            bits = _at_least(_load(row, i), cut)
            first = min(i, len(row) - LANES)
            # Two are noted whether they are there or not, and kept if they are: a branch would be mispredicted.
            for _ in range(2):
                labels[count] = first + _lowest_bit(bits)
                count += 1 if bits != 0 else 0
                bits = np.uint32(bits & (bits - np.uint32(1)))
            while bits != 0:
                labels[count] = first + _lowest_bit(bits)
                count += 1
                bits = np.uint32(bits & (bits - np.uint32(1)))
    for i in range(count):
        room.keys[i] = 0.0 - np.float64(row[labels[i]])
    return count


@_inlined
def _walk(row: Any, p: _Parameters, s: _Row, worst: float, threshold: float, room: _Scratch, count: int) -> Any:
    """Score the sorted candidates from the top and keep those within the threshold, in place.

    Returns how many were kept, and whether one beyond the threshold was seen, which ends the set. Equal logits are
    scored once and enter together.
    """
    keys, labels = room.keys, room.labels
    limit = threshold + _SLACK * (1.0 + abs(threshold) + abs(worst))
    kept, start, above, own = 0, 0, 0, 0
    while start < count:
        stop = start + 1
        while stop < count and keys[stop] == keys[start]:
            stop += 1
        z = row[labels[start]]
        if p.kind == _MASS:
            own = _fixed(s, z)
        value = _value(p, s, worst, np.float64(z), start, above, own)
        if value > limit:
            return kept, True
        if value <= threshold:
            for i in range(start, stop):
                keys[kept], labels[kept] = value, labels[i]
                kept += 1
        above += own * (stop - start)
        start = stop
    return kept, False


@_inlined
def _count_at_least(row: Any, z: Any) -> int:
    count = 0
    for i in range(0, len(row), LANES):
        count += _count_bits(_at_least(_load(row, i), z))
    return count


@_inlined
def _lower(row: Any, bottom: Any, cut: Any, wanted: int) -> Any:
    """A cut that at least `wanted` labels reach, and if bisection finds one, at most twice as many."""
    if wanted >= len(row) // 2:
        return bottom
    low, high = bottom, cut
    for _ in range(20):
        middle = _native(row, 0.5 * np.float64(low) + 0.5 * np.float64(high))
        count = _count_at_least(row, middle)
        if count < wanted:
            high = middle
        else:
            low = middle
            if count <= 2 * wanted:
                break
    return low


@_composed
def _row_set(row: Any, p: _Parameters, survey: _Survey, threshold: float, room: _Scratch) -> int:
    """The set of a usable row, labels in `room.labels` and scores in `room.keys`; returns its size.

    The first candidates are a few from the top. If all of them are within the threshold, the cut is lowered to let
    in several times as many, so that the work grows with the size of the set.
    """
    s, worst = _statistics(row, p, survey)
    cut = _native(row, -inf) if threshold == inf else survey.few
    while True:
        count = _gather(row, p.n_classes, cut, room)
        _sort(room, count)
        kept, ended = _walk(row, p, s, worst, threshold, room, count)
        if ended or cut <= survey.low:
            break
        cut = survey.many if cut > survey.many else _lower(row, survey.low, cut, 4 * count)
    _sort(room, kept)
    return kept


@_inlined
def _walk_limits(
    row: Any, p: _Parameters, s: _Row, worst: float, limits: F64, tight: float, room: _Scratch, count: int
) -> Any:
    """Score the sorted candidates from the top and keep those within the limits of their labels, in place.

    Scores rise along the way, so that a label whose limit has been passed need not be scored. Returns how many were
    kept, the logit and the score at which the walk came to its end, and whether that was a score beyond `tight`; the
    labels with that logit are then not looked at.
    """
    keys, labels, z = room.keys, room.labels, row[0]
    beyond = tight + _SLACK * (1.0 + abs(tight) + abs(worst))
    kept, start, above, own, passed = 0, 0, 0, 0, -inf
    while start < count:
        stop, largest = start + 1, limits[labels[start]]
        while stop < count and keys[stop] == keys[start]:
            largest = max(largest, limits[labels[stop]])
            stop += 1
        z = row[labels[start]]
        if p.kind == _MASS:
            own = _fixed(s, z)
        if stop == count or largest + _SLACK * (1.0 + abs(largest) + abs(worst)) >= passed:
            value = _value(p, s, worst, np.float64(z), start, above, own)
            if value > beyond:
                return kept, z, value, True
            for i in range(start, stop):
                label = labels[i]
                if value <= limits[label]:
                    keys[kept], labels[kept] = value, label
                    kept += 1
            passed = max(passed, value)
        above += own * (stop - start)
        start = stop
    return kept, z, passed, False


@_inlined
def _insert(row: Any, room: _Scratch, kept: int, value: float, label: int) -> None:
    """Put a label in its place among those kept: by score, then by falling logit, then by number."""
    keys, labels, i = room.keys, room.labels, kept
    while i > 0 and keys[i - 1] >= value:
        other = labels[i - 1]
        if keys[i - 1] == value and (row[other] > row[label] or (row[other] == row[label] and other < label)):
            break
        keys[i], labels[i] = keys[i - 1], other
        i -= 1
    keys[i], labels[i] = value, label


@_composed
def _row_set_limits(
    row: Any, p: _Parameters, survey: _Survey, limits: F64, tight: float, singles: I64, room: _Scratch
) -> int:
    """The set of a usable row whose labels have limits of their own, where `_row_set` leaves its.

    Candidates are walked through from the top until their scores are beyond `tight`; if that is -inf, only the first
    few are. Below, the labels `singles` are scored one by one, each by a pass over the row. They come with the largest
    limit first: the first limit below the scores reached ends the search, and whatever was scored beyond a limit rules
    out, for all limits to come, every label at or below it.
    """
    s, worst = _statistics(row, p, survey)
    cut = _native(row, -inf) if tight == inf else survey.few
    while True:
        count = _gather(row, p.n_classes, cut, room)
        _sort(room, count)
        kept, reached, passed, ended = _walk_limits(row, p, s, worst, limits, tight, room, count)
        if ended or cut <= survey.low or tight == -inf:
            break
        cut = survey.many if cut > survey.many else _lower(row, survey.low, cut, 4 * count)
    _sort(room, kept)
    floor = _native(row, -inf)
    for j in range(len(singles)):
        label = singles[j]
        z, limit = row[label], limits[label]
        beyond = limit + _SLACK * (1.0 + abs(limit) + abs(worst))
        if beyond < passed:
            break
        if z > reached or (z == reached and not ended) or (z <= floor and limit != inf):
            continue
        i = kept - 1
        while i >= 0 and room.keys[i] > beyond:
            floor = max(floor, row[room.labels[i]])
            i -= 1
        if z <= floor and limit != inf:
            continue
        value = _value_at(row, p, s, worst, z)
        if value <= limit:
            _insert(row, room, kept, value, label)
            kept += 1
        elif value > beyond:
            floor = max(floor, z)
    return kept


# ---------------------------------------------------------------------------------------------------------------
# Kernels: one for each question. `logits` is a C-contiguous block of float32 or float64 rows, padded with -inf to at
# least 32 columns; `values` is a score's parameters. Each returns the first row it could not use, or -1.


@_kernel
def label_kernel(logits: Any, labels: Any, values: F64, scores: F64) -> int:
    p = _unpack(values)
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row)
        if not survey.usable:
            return i
        scores[i] = _label_value(row, p, survey, labels[i])
    return -1


@_kernel
def set_kernel(
    logits: Any,
    first: int,
    values: F64,
    thresholds: F64,
    floats: F64,
    wholes: I64,
    sizes: I64,
    labels: I32,
    scores: F64,
) -> tuple[int, int, int]:
    """The sets of the rows from `first` on, as many as there is room for. `thresholds` is one for all or for each row.

    Returns the first row not done, how much room was used, and the first row that could not be used.
    """
    p, room, used = _unpack(values), _unpack_scratch(floats, wholes), 0
    for i in range(first, len(logits)):
        row = logits[i]
        survey = _survey(row)
        if not survey.usable:
            return i, used, i
        size = _row_set(row, p, survey, thresholds[min(i, len(thresholds) - 1)], room)
        if used + size > len(labels):
            return i, used, -1
        for k in range(size):
            labels[used + k], scores[used + k] = room.labels[k], room.keys[k]
        sizes[i] = size
        used += size
    return len(logits), used, -1


@_kernel
def limit_kernel(
    logits: Any,
    first: int,
    values: F64,
    limits: F64,
    tight: float,
    singles: I64,
    floats: F64,
    wholes: I64,
    sizes: I64,
    labels: I32,
    scores: F64,
) -> tuple[int, int, int]:
    """As `set_kernel`, with a limit for each label; `tight` and `singles` are those of `_row_set_limits`."""
    p, room, used = _unpack(values), _unpack_scratch(floats, wholes), 0
    for i in range(first, len(logits)):
        row = logits[i]
        survey = _survey(row)
        if not survey.usable:
            return i, used, i
        size = _row_set_limits(row, p, survey, limits, tight, singles, room)
        if used + size > len(labels):
            return i, used, -1
        for k in range(size):
            labels[used + k], scores[used + k] = room.labels[k], room.keys[k]
        sizes[i] = size
        used += size
    return len(logits), used, -1


@_kernel
def uncertainty_kernel(logits: Any, values: F64, result: F64) -> int:
    """Eq. 3: u = K / alpha_0 of each row."""
    p = _unpack(values)
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row)
        if not survey.usable:
            return i
        rest = _other_evidence(row, p, survey) + (p.n_classes - 1.0)
        result[i] = p.n_classes / (_activate(p.evidence, np.float64(survey.top)) + 1.0 + rest)
    return -1


@_kernel
def dense_kernel(logits: Any, values: F64, floats: F64, wholes: I64, scores: F64) -> int:
    p, room = _unpack(values), _unpack_scratch(floats, wholes)
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row)
        if not survey.usable:
            return i
        for k in range(_row_set(row, p, survey, inf, room)):
            scores[i, room.labels[k]] = room.keys[k]
    return -1


@_kernel
def top_kernel(logits: Any, labels: I32) -> int:
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row)
        if not survey.usable:
            return i
        for start in range(0, len(row), LANES):
            bits = _at_least(_load(row, start), survey.top)
            if bits != 0:
                labels[i] = min(start, len(row) - LANES) + _lowest_bit(bits)
                break
    return -1


@_inlined
def _moments(row: Any, top: Any, rate: Any, total: float) -> tuple[float, float]:
    """Mean and variance of z - top under softmax(rate z)."""
    floor, mean, variance = _native(row, -80.0 / np.float64(rate)), 0.0, 0.0
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, min(start + _CHUNK, len(row)), LANES):
            z = _larger(_sub(_load(row, i), top), floor)
            part = _add(part, _mul(_exp(_mul(z, rate)), z))
        mean += _sum(part) / total
    for start in range(0, len(row), _CHUNK):
        part = _lanes(row, 0.0)
        for i in range(start, min(start + _CHUNK, len(row)), LANES):
            z = _larger(_sub(_load(row, i), top), floor)
            deviation = _sub(z, _native(row, mean))
            part = _add(part, _mul(_exp(_mul(z, rate)), _mul(deviation, deviation)))
        variance += _sum(part) / total
    return mean, variance


@_kernel
def likelihood_kernel(logits: Any, labels: Any, inverse_temperature: float, result: F64) -> int:
    """Columns: -ln p of the label, its first and second derivative, the largest probability, whether the label's."""
    for i in range(len(logits)):
        row = logits[i]
        survey = _survey(row)
        if not survey.usable:
            return i
        rate = _native(row, inverse_temperature)
        exponentials = _exponentials_but_largest(row, survey.top, rate)
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
    source, target = half.ravel(), single.ravel()
    for i in range(len(source)):
        bits = np.uint32(source[i])
        magnitude = np.uint32(bits & np.uint32(0x7FFF)) << np.uint32(13)
        # Read as float32 the value is 2^112 too small, subnormals included; infinities and NaNs keep their mantissa.
        scaled = np.float32(np.uint32(magnitude).view(np.float32) * np.float32(2.0**112)).view(np.uint32)
        special = np.uint32(magnitude | np.uint32(0x7F800000))
        finite = magnitude < np.uint32(0x0F800000)
        sign = np.uint32(bits & np.uint32(0x8000)) << np.uint32(16)
        target[i] = np.uint32(np.uint32(scaled if finite else special) | np.uint32(sign)).view(np.float32)
