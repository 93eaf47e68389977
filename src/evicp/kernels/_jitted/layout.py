"""What the numbers mean that host and kernels pass to each other."""

from __future__ import annotations

import triton.language as tl

#: How each score is computed: Base as APS.
RULES = {"ecp": 0, "lac": 1, "aps": 2, "base": 2, "raps": 3, "saps": 4, "topk": 5, "margin": 6}
_ECP, _LAC, _APS, _RAPS, _SAPS, _TOPK, _MARGIN = (tl.constexpr(number) for number in range(7))
EVIDENCE = {"relu": 0, "softplus": 1, "exp": 2}
_RELU, _SOFTPLUS = (tl.constexpr(number) for number in range(2))

# Rows of `stats`: what is known of each row of logits, float64.
STATISTICS = 13
_TOP, _LEAST, _ABOVE_LEAST, _TOTAL, _REST, _HASH = (tl.constexpr(number) for number in range(6))
_SECOND, _RANK, _MASS, _LOG_TOTAL, _LARGEST, _V, _CUT = (tl.constexpr(number) for number in range(6, 13))

# Entries of `parameters` and of `status`.
_RATE, _TEMPERATURE, _LOG_EPSILON, _LAM, _K_REG, _PENALTY, _SEED = (tl.constexpr(number) for number in range(7))
REPORTED = 12
_BAD, _WIDE, _CROWDED, _MEMBERS, _OUTSIDE, _MASKED = (tl.constexpr(number) for number in range(6))
_SECONDS, _DIGEST, _LARGEST_OWN, _LOWEST_TOP, _ODD, _UNORDERED = (tl.constexpr(number) for number in range(6, 12))
#: Floats as whole numbers in their order, from 0 for -inf: what is added to their bits.
ORDER_FROM_ZERO = 0x7F800001
_ORDER_FROM_ZERO = tl.constexpr(ORDER_FROM_ZERO)
