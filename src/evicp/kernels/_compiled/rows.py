"""A row's statistics and a label's score.

One scalar function, `_value`, turns the former into the latter in float64 (`_plain_value` is the usual ECP's part of
it); all entry points use it and the same row statistics, so that membership in a set and `score <= threshold` agree bit
for bit.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np

from evicp import checks
from evicp.kernels._compiled.lanes import (
    _AHEAD,
    _CHUNK,
    _MORE,
    LANES,
    _add,
    _add_whole,
    _below,
    _clipped_exp,
    _exp,
    _exp_by,
    _finite,
    _hashes,
    _if_above,
    _lanes,
    _larger,
    _log,
    _log_less,
    _mix32,
    _mul,
    _native,
    _relu,
    _smaller,
    _softplus,
    _sub,
    _units,
    _unless_at_least,
)
from evicp.kernels._compiled.memory import _fetch, _load, _load_any, _load_whole
from evicp.kernels._compiled.parameters import (
    _ECP,
    _LAC,
    _MARGIN,
    _MASS,
    _RANK,
    _RELU,
    _SAPS,
    _SOFTPLUS,
    _TOPK,
    _Parameters,
)
from evicp.kernels._compiled.parts import _called, _inlined, _join
from evicp.kernels._compiled.reductions import (
    _above,
    _at_least,
    _but_largest,
    _count_bits,
    _largest,
    _least,
    _level_of_4,
    _level_of_8,
    _level_of_16,
    _no_counts,
    _one_more,
    _one_more_at_least,
    _smallest,
    _sum,
    _sum_whole,
    _whole,
)

_LARGEST_LOGIT = checks.LARGEST_LOGIT
#: What a label scores that is certain, being the only possible one: of -inf no threshold could be made.
_LOWEST = -np.finfo(np.float64).max
#: No logarithm of a cost is further from 0, with a plain stabilizer.
_LARGEST_LOG = 60.0


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
    up_to: float  # their probability and its own
    own: float  # its own probability


class _Row(NamedTuple):
    """What every label's score needs to know of its row."""

    top: float
    low: float
    largest: float  # the largest probability, 1 / sum of exp((z - top) / T)
    total: float  # of that sum, in the units in which masses are added
    log_total: float  # of that sum
    alpha: float  # the largest Dirichlet parameter
    rest: float  # the sum of all others
    inverse_alpha_0: float
    v: float  # the row's randomisation
    second: float  # the second largest probability
    worst: float  # the largest log cost, that of the lowest possible label, inf if it is the only one; of plain costs 0
    low_surprisal: float  # of that label
    low_gain: float  # its utility, in units of the stabilizer, and 1; 0 where no other label is possible


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
def _mark(row: Any, labels: Any, i: int) -> Any:
    """The logit of row i's label; of any if there are no labels."""
    if labels is not None:
        return row[labels[i]]
    return row[0]


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
def _fixed(row: Any, p: _Parameters, top: float, z: Any) -> Any:
    """exp((z - top) / T) as a whole number of units, in the arithmetic of the row's own precision; or lanes."""
    e = _exp(_mul(_sub(z, _native(row, top)), _native(row, p.rate)))
    return _units(_mul(e, _native(row, p.scale)))


@_inlined
def _mass_above(row: Any, p: _Parameters, top: float, z: Any) -> int:
    """The sum of exp((z - top) / T) over all labels with a strictly larger logit, as a whole number of units."""
    mass = _units(_lanes(row, 0.0))
    for i in range(0, len(row), LANES):
        others = _load(row, i)
        mass = _add_whole(mass, _if_above(_fixed(row, p, top, others), others, z))
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
    return _larger(value if value < 0.0 else 0.0, _LOWEST)


@_inlined
def _quotient_value(s: _Row, z: float, surprisal: float, gain: float) -> float:
    """The score of a label with this surprisal and gain: its cost relative to the lowest label's."""
    value = _log_less(surprisal * _MORE * s.low_gain / (gain * s.low_surprisal))
    value = value if value < 0.0 else 0.0
    value = value if s.low_gain > 0.0 else _LOWEST
    return inf if z == -inf else value


@_inlined
def _plain_value(p: _Parameters, s: _Row, label: _Label) -> float:
    """`_value` of ECP with a plain stabilizer, without a branch."""
    gain = _gain(p, s, label.z, label.alpha, label.rank)
    return _quotient_value(s, label.z, _surprisal(s, label.alpha), gain)


@_inlined
def _lac_value(p: _Parameters, s: _Row, label: _Label) -> float:
    """`_value` of LAC, without a branch: -ln of the label's probability."""
    is_logarithm = s.top + s.log_total == 0.0 and p.temperature == 1.0  # of a probability; see `_keep_logarithms`
    value = 0.0 - label.z if is_logarithm else s.log_total - _shifted(p, s, label.z)
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
        return label.up_to - (1.0 - s.v) * label.own + p.lam * excess
    if p.kind == _SAPS:
        return s.v * s.largest if label.rank == 0.0 else s.largest + (label.rank - 1.0 + s.v) * p.lam
    if p.kind == _TOPK:
        return label.rank + s.v
    return (s.second if label.z == s.top else s.largest) - _probability(p, s, label.z)
