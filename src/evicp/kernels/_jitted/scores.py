"""From statistics to scores."""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.arithmetic import (
    _FINE,
    _PER_ONE,
    _UNIT,
    _evidence_64,
    _exponential,
    _fixed,
    _is_certain,
    _log1p,
    _mix32,
)
from evicp.kernels._jitted.layout import (
    _ABOVE_LEAST,
    _APS,
    _ECP,
    _HASH,
    _K_REG,
    _LAC,
    _LAM,
    _LARGEST,
    _LEAST,
    _LOG_EPSILON,
    _LOG_TOTAL,
    _MARGIN,
    _MASS,
    _PENALTY,
    _RANK,
    _RAPS,
    _RATE,
    _REST,
    _SAPS,
    _SECOND,
    _SEED,
    _TEMPERATURE,
    _TOP,
    _TOPK,
    _TOTAL,
    _V,
)
from evicp.kernels._jitted.summary import _look_at_first_row, _summarize

#: What a label scores that is certain, being the only possible one: of -inf no threshold could be made.
_LOWEST = tl.constexpr(-1.7976931348623157e308)
#: Rows whose probabilities exp(z) sum to 1 up to rounding hold log-probabilities: ln of the sum is at most this.
_NORMALIZED = tl.constexpr(2.0**-20)

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off


@triton.jit
def _log_phi(z, top, log_total, temperature):
    """ln softmax(z / T), float64."""
    return tl.maximum((z - top) / temperature, -1e308) - log_total


@triton.jit
def _log_cost(
    z, rank, top, rest, log_total, temperature, log_epsilon, K, EVIDENCE: tl.constexpr
):
    """Eq. 10: ln C up to a constant of the row. What the others hold decides where the label holds nearly all."""
    evidence = _evidence_64(z, EVIDENCE)
    others = tl.where(z == top, rest, (rest - evidence) + _evidence_64(top, EVIDENCE)) + (K - 1.0)
    surprisal = _log1p(others / (evidence + 1.0))
    gain = _log_phi(z, top, log_total, temperature) - 2.0 * surprisal + tl.log((K - rank) / K)
    larger = tl.maximum(gain, log_epsilon)
    return tl.log(surprisal) - (larger + _log1p(tl.exp(-tl.abs(gain - log_epsilon))))


@triton.jit
def _score(
    z_32, rank, mass, row, here, stats, parameters, n, K, RULE: tl.constexpr, EVIDENCE: tl.constexpr,
    RANDOM: tl.constexpr
):
    """A label's score from its logit, the number of labels above it and (APS, RAPS) their total in fine units."""
    z, place = z_32.to(tl.float64), stats + row
    top = tl.load(place + _TOP * n, mask=here, other=0.0)
    temperature = tl.load(parameters + _TEMPERATURE)
    v = tl.load(place + _V * n, mask=here, other=0.0)
    result = rank
    if RULE == _ECP:
        rest = tl.load(place + _REST * n, mask=here, other=1.0)
        log_total = tl.load(place + _LOG_TOTAL * n, mask=here, other=0.0)
        largest = tl.load(place + _LARGEST * n, mask=here, other=0.0)
        log_epsilon = tl.load(parameters + _LOG_EPSILON)
        possible = tl.where(z == float("-inf"), top, z)
        result = _log_cost(possible, rank, top, rest, log_total, temperature, log_epsilon, K, EVIDENCE) - largest
        result = tl.maximum(result, _LOWEST)
    elif RULE == _LAC:
        log_total = tl.load(place + _LOG_TOTAL * n, mask=here, other=0.0)
        result = -_log_phi(z, top, log_total, temperature)
        is_unscaled = (top * 0.0 + temperature == 1.0) & (top < 0)
        is_logarithm = (tl.abs(top + log_total) <= _NORMALIZED) & is_unscaled  # of a probability
        result = tl.where(is_logarithm, -z, result)
    elif RULE == _APS or RULE == _RAPS:
        total = tl.load(place + _TOTAL * n, mask=here, other=1.0)
        rate = tl.load(parameters + _RATE).to(tl.float32)
        own = _fixed(_exponential(z_32, top.to(tl.float32), rate), _PER_ONE).to(tl.float64)
        result = (mass + own) / total - (1.0 - v) * (own / total)  # 1 for the least plausible label, if v is
        if RULE == _RAPS:
            excess = tl.maximum(rank + 1.0 - tl.load(parameters + _K_REG), 0.0)
            own_penalty = tl.load(parameters + _PENALTY) * (1.0 - v)
            result += tl.load(parameters + _LAM) * tl.where(excess > 0, excess - own_penalty, 0.0)
    elif RULE == _SAPS:
        largest = (_PER_ONE * _FINE) / tl.load(place + _TOTAL * n, mask=here, other=1.0)
        result = tl.where(rank == 0, v * largest, largest + (rank - 1.0 + v) * tl.load(parameters + _LAM))
    elif RULE == _TOPK:
        result = rank + v
    else:
        log_total = tl.load(place + _LOG_TOTAL * n, mask=here, other=0.0)
        second = tl.load(place + _SECOND * n, mask=here, other=0.0)
        best = tl.exp(-log_total)
        next_best = tl.exp(_log_phi(second, top, log_total, temperature))
        result = tl.where(z == top, next_best - best, best - tl.exp(_log_phi(z, top, log_total, temperature)))
    return tl.where(z == float("-inf"), float("inf"), result)


@triton.jit
def _finish(
    stats, parameters, n, K, row, here, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr
):
    """Put down what a row's scores share: ln of the total, the largest cost, the row's uniform number."""
    place = stats + row
    v = tl.full(row.shape, 1.0, tl.float64)
    if RANDOM:
        hash_sum = tl.load(place + _HASH * n, mask=here, other=0.0).to(tl.int64).to(tl.uint32)
        seed = tl.load(parameters + _SEED + row * 0).to(tl.int64).to(tl.uint32)
        v = (_mix32(hash_sum ^ _mix32(seed)) >> 8).to(tl.float64) / 16777216.0
    tl.store(place + _V * n, v, mask=here)
    if RULE == _ECP or (RULE == _LAC or RULE == _MARGIN):
        log_total = tl.log(tl.load(place + _TOTAL * n, mask=here, other=1.0) * _UNIT)
        tl.store(place + _LOG_TOTAL * n, log_total, mask=here)
        if RULE == _ECP:
            top = tl.load(place + _TOP * n, mask=here, other=0.0)
            least = tl.load(place + _LEAST * n, mask=here, other=0.0)
            rank = tl.load(place + _ABOVE_LEAST * n, mask=here, other=0.0)
            rest = tl.maximum(tl.load(place + _REST * n, mask=here, other=1.0), 0.0)
            temperature, log_epsilon = tl.load(parameters + _TEMPERATURE), tl.load(parameters + _LOG_EPSILON)
            largest = _log_cost(least, rank, top, rest, log_total, temperature, log_epsilon, K, EVIDENCE)
            is_certain = _is_certain(top, least, tl.load(place + _TOTAL * n, mask=here, other=1.0))
            largest = tl.where(is_certain, float("inf"), largest)
            tl.store(place + _LARGEST * n, largest, mask=here)
    tl.debug_barrier()  # other threads of this program read it next


@triton.jit(do_not_specialize=["n", "K"])
def _finish_rows(
    stats, parameters, n, K, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    _finish(stats, parameters, n, K, row, row < n, RULE, EVIDENCE, RANDOM)


@triton.jit(do_not_specialize=["first_row", "n", "K", "stride"])
def _score_labels(
    logits, labels, stats, parameters, result, hashes, status, first_row, n, K, stride, RULE: tl.constexpr,
    EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, ROWS: tl.constexpr, SUMMARY: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n
    _finish(stats, parameters, n, K, row, here, RULE, EVIDENCE, RANDOM)
    label = tl.load(labels + row, mask=here, other=0)
    label = tl.where((label >= 0) & (label < K), label, 0)  # others are reported by `_read_rows`
    z = tl.load(logits + row.to(tl.int64) * stride + label, mask=here, other=0.0).to(tl.float32)
    rank = tl.load(stats + _RANK * n + row, mask=here, other=0.0)
    mass = tl.load(stats + _MASS * n + row, mask=here, other=0.0)
    score = _score(z, rank, mass, row, here, stats, parameters, n, K, RULE, EVIDENCE, RANDOM)
    top = tl.load(stats + _TOP * n + row, mask=here, other=0.0)
    scored = (top > float("-inf")) & (top < float("inf"))
    if RULE == _ECP:
        scored = scored & (tl.load(stats + _REST * n + row, mask=here, other=0.0) >= 0.0)
    tl.store(result + row, tl.where(scored, score, float("nan")), mask=here)
    if SUMMARY:
        above_least = tl.load(stats + _ABOVE_LEAST * n + row, mask=here, other=0.0)
        _summarize(z, label, score, top, above_least, row, here, first_row, hashes, status, n, RULE)
        _look_at_first_row(logits, status, K)


@triton.jit(do_not_specialize=["size", "width", "n", "K"])
def _fix_elements(
    z_values, rows, stats, parameters, result, size: tl.int64, width, n, K, RULE: tl.constexpr, EVIDENCE: tl.constexpr,
    RANDOM: tl.constexpr, BLOCK: tl.constexpr
):
    """Exponentials of labels in fine units, int64; `width` labels of each row, one after the other."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    row = tl.load(rows + place // width, mask=here, other=0)
    z = tl.load(z_values + place, mask=here, other=0.0).to(tl.float32)
    top = tl.load(stats + _TOP * n + row, mask=here, other=0.0).to(tl.float32)
    rate = tl.load(parameters + _RATE).to(tl.float32)
    tl.store(result + place, _fixed(_exponential(z, top, rate), _PER_ONE), mask=here)


@triton.jit(do_not_specialize=["size", "width", "n", "K"])
def _score_elements(
    z_values, rows, ranks, masses, stats, parameters, result, size: tl.int64, width, n, K, RULE: tl.constexpr,
    EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, BLOCK: tl.constexpr
):
    """The scores of labels, from their ranks and masses; `width` of each row, one after the other."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    row = tl.load(rows + place // width, mask=here, other=0)
    z = tl.load(z_values + place, mask=here, other=0.0).to(tl.float32)
    rank = tl.load(ranks + place, mask=here, other=0).to(tl.float64)
    mass = tl.load(masses + place, mask=here, other=0).to(tl.float64)
    score = _score(z, rank, mass, row, here, stats, parameters, n, K, RULE, EVIDENCE, RANDOM)
    tl.store(result + place, score, mask=here)
