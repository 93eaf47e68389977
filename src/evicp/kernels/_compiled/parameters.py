"""A score's parameters, as kernels take them and as they see them."""

from __future__ import annotations

from math import inf, log
from typing import Any, NamedTuple

import numpy as np

from evicp.arrays import F64
from evicp.kernels._compiled.parts import _inlined
from evicp.kernels._compiled.reductions import _whole

_ECP, _LAC, _MASS, _SAPS, _TOPK, _MARGIN, _RANK = range(7)
#: APS and Base are RAPS without a penalty.
KINDS = {"ecp": _ECP, "lac": _LAC, "aps": _MASS, "base": _MASS, "raps": _MASS, "saps": _SAPS, "topk": _TOPK}
KINDS |= {"margin": _MARGIN, "rank": _RANK}
_RELU, _SOFTPLUS, _EXP = range(3)
_EVIDENCE = {"relu": _RELU, "softplus": _SOFTPLUS, "exp": _EXP}

#: Within these bounds costs are divided by each other, without a detour by logarithms.
_PLAIN_STABILIZER = (1e-20, 1.0)
#: Rows of at most so many classes are reduced 16 at a time, each in a lane of its own.
_NARROW = 256


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
    scale: float  # exponentials are added as integers, of so many units per one


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
    scale = 2.0 ** (62 - n_classes.bit_length())
    return np.array([*shape, seed, randomized, randomize_penalty, n_classes, is_plain, has_cuts, scale], np.float64)


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
        values[13],
    )


@_inlined
def _unpack_usual(values: F64, kind: int) -> _Parameters:
    """As `_unpack`, with what is known of the usual ECP and of LAC."""
    p, no = _unpack(values), 0.0
    known = (kind, _RELU, p.temperature, p.rate, p.zero, p.stabilizer, p.log_stabilizer)
    return _Parameters(*known, no, no, p.seed, False, False, p.n_classes, kind == _ECP, True, p.scale)


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
