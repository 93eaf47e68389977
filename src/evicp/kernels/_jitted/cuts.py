"""Which labels could be in the set: those above a cut.

Every cut is a bound: no label at or below it can have a score within the threshold, whatever its rank. The labels above
it need not be members; `_score_candidates` decides.
"""

from __future__ import annotations

import triton
import triton.language as tl

from evicp.kernels._jitted.arithmetic import (
    _FEW,
    _FINE,
    _LN_2,
    _LOG2_E,
    _PER_ONE,
    _UNIT,
    _evidence_32,
    _is_certain,
    _rough_log2,
    _row_max,
    _row_min,
)
from evicp.kernels._jitted.layout import _APS, _K_REG, _LAM, _PENALTY, _RAPS, _SAPS
from evicp.kernels._jitted.reductions import _survey

# Kernels take many arguments; one on each line would hide what they do.
# fmt: off

#: Where the cut is searched for with no more probes than this, they are set twice.
_FEW_PROBES = tl.constexpr(32)


@triton.jit
def _level_cut(level, top, rate):
    """The logit whose exponential has the given base-2 logarithm, less what single precision may be off."""
    slack = 1e-5 * (tl.abs(top) + tl.abs(level) / rate) + 1e-4 / rate
    return tl.where(level == float("-inf"), float("-inf"), top + level / rate - slack)


@triton.jit
def _lac_cut(top, total, threshold, rate):
    """-ln p <= threshold."""
    level = tl.log2((total * _UNIT).to(tl.float32)) - threshold.to(tl.float32) * _LOG2_E
    return _level_cut(level, top, rate)


@triton.jit
def _margin_cut(top, total, threshold, rate):
    """p_max - p <= threshold; the top label itself is compared with the second, so it always stays."""
    share = (1.0 - threshold * (total * _UNIT)).to(tl.float32)
    cut = _level_cut(tl.log2(tl.maximum(share, 0.0)), top, rate)
    return tl.minimum(cut, top - 1e-4 * tl.abs(top) - 1e-4 / rate)


@triton.jit
def _log2_cost(z, room, top, log2_total, log2_alpha_0, log2_epsilon, rate, EVIDENCE: tl.constexpr):
    """Eq. 10, roughly and rather too low; `room` is log2(1 - r/K), 0 at best.

    The 1e-4 is for the top label, whose surprisal may be smaller than the error of log2.
    """
    log2_p = _rough_log2(_evidence_32(z, EVIDENCE) + 1.0) - log2_alpha_0
    gain = (z - top) * rate - log2_total + 2.0 * log2_p + room
    added = _rough_log2(1.0 + tl.exp2(-tl.abs(gain - log2_epsilon)))
    return _rough_log2(tl.maximum((-log2_p - 1e-4) * _LN_2, 0.0)) - (tl.maximum(gain, log2_epsilon) + added)


@triton.jit
def _ecp_cut(
    top, least, above_least, total, rest, threshold, log_epsilon, rate, EVIDENCE: tl.constexpr, K: tl.constexpr,
    PROBES: tl.constexpr
):
    """The cut below which even rank 0 would cost too much.

    Costs fall along the row, so it is searched for with some probes between the smallest logit and the top, dense
    near the top; and where these are few, with others between those where the costs cross the limit.
    """
    log2_total, log2_alpha_0, log2_epsilon, limit = _limit(
        top, least, above_least, total, rest, threshold, log_epsilon, rate, EVIDENCE, K
    )
    # Shaped as a tile is, so that the numbers of a row are where its logits are.
    part = ((tl.arange(0, PROBES) + 1).to(tl.float32) * (1.0 / PROBES))[None, None, :]
    high, depth = top[:, None, None], (top - least)[:, None, None]
    log2_total, log2_alpha_0, limit = log2_total[:, None, None], log2_alpha_0[:, None, None], limit[:, None, None]
    cost = _log2_cost(
        high - depth * (part * part * part), 0.0, high, log2_total, log2_alpha_0, log2_epsilon, rate, EVIDENCE
    )
    first = _row_min(tl.where(cost > limit, part, 2.0))
    before, depth = first - 1.0 / PROBES, top - least
    inner, outer = depth * (before * before * before), depth * (first * first * first)
    cut = top - outer
    if PROBES <= _FEW_PROBES:
        probe = high - (inner[:, None, None] + (outer - inner)[:, None, None] * part)
        cost = _log2_cost(probe, 0.0, high, log2_total, log2_alpha_0, log2_epsilon, rate, EVIDENCE)
        cut = tl.maximum(cut, _row_max(tl.where(cost > limit, probe, float("-inf"))))
    return tl.where(first > 1.0, float("-inf"), cut)


@triton.jit
def _limit(
    top, least, above_least, total, rest, threshold, log_epsilon, rate, EVIDENCE: tl.constexpr, K: tl.constexpr
):
    """What `_log2_cost` needs to know of a row, and the cost above which a label cannot be a member."""
    log2_total = _rough_log2((total * _UNIT).to(tl.float32))
    log2_alpha_0 = _rough_log2((K + rest).to(tl.float32) + _evidence_32(top, EVIDENCE))
    log2_epsilon = log_epsilon.to(tl.float32) * _LOG2_E
    room = _rough_log2((K - above_least) * (1.0 / K))
    largest = _log2_cost(least, room, top, log2_total, log2_alpha_0, log2_epsilon, rate, EVIDENCE)
    level = threshold.to(tl.float32) * _LOG2_E
    limit = largest + level + 1e-3 + 1e-5 * (tl.abs(largest) + tl.abs(level))
    return log2_total, log2_alpha_0, log2_epsilon, tl.where(_is_certain(top, least, total), float("inf"), limit)


@triton.jit
def _mass_cut(
    base, z, top, total, threshold, rate, RULE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    WORDS: tl.constexpr, VECTOR: tl.constexpr, LONG: tl.constexpr
):
    """APS: a member has at least 1 - threshold of the probability at or below it.

    If `count` labels share what is missing, the largest of them has at least their mean: that is a cut, and what
    lies below it a better bound for the next.
    """
    needed = total * (1.0 - threshold) - total * 1e-12
    cut = top * 0 + float("-inf")
    count, below = top * 0 + K, total * 0
    for _ in tl.static_range(2):
        level = tl.log2(tl.maximum((needed - below) / count, 0.0).to(tl.float32)) - 39.0
        proposed = _level_cut(level, top, rate)
        new_count, above = _survey(base, z, proposed, top, rate, RULE, K, BLOCK, WORDS, VECTOR, LONG)
        better = (total - above < needed) & (proposed > cut)
        cut = tl.where(better, proposed, cut)
        count, below = tl.where(better, new_count, count), tl.where(better, total - above, below)
    return cut


@triton.jit
def _least_score(count, above, total, lam, k_reg, penalty, RULE: tl.constexpr, RANDOM: tl.constexpr):
    """What a label's score is at least, if `count` labels with `above` of the total lie above it."""
    v = 0.0 if RANDOM else 1.0
    ranked = count.to(tl.float64)
    if RULE == _RAPS:
        excess = tl.maximum(ranked + 1.0 - k_reg, 0.0)
        excess = tl.where(excess > 0, excess - penalty, 0.0)
        return above / total + lam * excess
    elif RULE == _APS:
        return above / total
    elif RULE == _SAPS:
        return tl.where(count > 0, (_PER_ONE * _FINE) / total + (ranked - 1.0 + v) * lam, 0.0)
    else:
        return ranked + v


@triton.jit
def _halved_cut(
    base, z, cut, top, least, total, threshold, parameters, rate, RULE: tl.constexpr, RANDOM: tl.constexpr,
    K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr, LONG: tl.constexpr
):
    """Halve the distance to the top while that can exclude many labels.

    `count` labels lie above the cut, `sure` above the lowest probe that excluded nothing.
    """
    lam, k_reg = tl.load(parameters + _LAM), tl.load(parameters + _K_REG)
    penalty = tl.load(parameters + _PENALTY)
    limit = threshold + 1e-9 * (1.0 + tl.abs(threshold))
    high, sure = top, tl.zeros_like(top)
    count, _ = _survey(base, z, cut, top, rate, RULE, K, BLOCK, WORDS, VECTOR, LONG)
    going, steps = tl.max((count > _FEW).to(tl.int32), 0), 0
    while going > 0:
        probe = 0.5 * tl.maximum(cut, least) + 0.5 * high
        new_count, above = _survey(base, z, probe, top, rate, RULE, K, BLOCK, WORDS, VECTOR, LONG)
        excluded = _least_score(new_count, above, total, lam, k_reg, penalty, RULE, RANDOM) > limit
        cut, high = tl.where(excluded, probe, cut), tl.where(excluded, high, probe)
        count, sure = tl.where(excluded, new_count, count), tl.where(excluded, sure, new_count)
        steps += 1
        wanted = (count > _FEW) & (count - sure > 0.25 * count)
        going = tl.where(steps < 16, tl.max(wanted.to(tl.int32), 0), 0)
    return cut
