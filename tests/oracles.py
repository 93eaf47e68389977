"""Independent renderings of the method, written for clarity alone: what the package is tested against.

None of them shares a line, a sort or a trick with the package. Labels are visited one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction

import mpmath
import numpy as np

#: Enough for 1 + 1e-30 against 1e30, with forty digits to spare.
DIGITS = 100


def reference_mpmath_ecp(
    logits: Sequence[float],
    *,
    evidence: str = "relu",
    base_rates: Sequence[float] | None = None,
    temperature: float = 1.0,
    stabilizer: float = 1e-8,
    digits: int = DIGITS,
) -> dict[str, list]:
    """Equations 1 to 11 of the paper for one row, each quantity as a list of mpmath numbers.

    `log_score` is +inf for an impossible label (logit -inf); the other quantities of such a label are the limits
    of the equations: no evidence, no utility.
    """
    with mpmath.workdps(digits):
        n_classes = len(logits)
        possible = [z > float("-inf") for z in logits]
        z = [mpmath.mpf(float(x)) if ok else None for x, ok in zip(logits, possible, strict=True)]
        pi = [mpmath.mpf(1) / n_classes] * n_classes
        if base_rates is not None:
            pi = [mpmath.mpf(float(x)) for x in base_rates]
        e = [_activation(evidence, x) if x is not None else mpmath.mpf(0) for x in z]  # Definition 1
        alpha = [e_k + n_classes * pi_k for e_k, pi_k in zip(e, pi, strict=True)]  # Eq. 1
        alpha_0 = mpmath.fsum(alpha)
        p = [a / alpha_0 for a in alpha]  # Eq. 2
        u = mpmath.mpf(n_classes) / alpha_0  # Eq. 3
        surprisal = [-mpmath.log(x) for x in p]  # Eq. 6
        phi = _softmax(z, mpmath.mpf(temperature))  # the utility of Eq. 8
        rank = _shared_ranks(list(zip(p, [_order(x) for x in z], strict=True)))
        cost = [
            u * pi[k] * surprisal[k] / (phi[k] * p[k] ** 2 * (1 - mpmath.mpf(rank[k]) / n_classes) + stabilizer)
            if possible[k]
            else None
            for k in range(n_classes)
        ]  # Eq. 10, with the stabilizer of the released code
        largest = max(c for c in cost if c is not None)
        log_score = [mpmath.inf if c is None else mpmath.log(c / largest) for c in cost]  # Eq. 11
        if sum(possible) == 1:  # its own cost is the largest, but the only possible label is certain
            log_score[possible.index(True)] = -mpmath.inf
        return {
            "evidence": e,
            "alpha": alpha,
            "probability": p,
            "belief": [x / alpha_0 for x in e],  # Eq. 3
            "uncertainty": [u],
            "focal_uncertainty": [u * x for x in pi],  # Eq. 5
            "surprisal": surprisal,
            "focal_surprisal": [u * pi[k] * surprisal[k] / p[k] for k in range(n_classes)],  # Eq. 7
            "utility": phi,
            "expected_utility": [phi[k] * p[k] for k in range(n_classes)],  # Eq. 8
            "rank": rank,
            "rank_scaling": [mpmath.mpf(n_classes) / (n_classes - r) for r in rank],  # Eq. 9
            "cost": cost,
            "log_score": log_score,
        }


def _activation(name: str, z: mpmath.mpf) -> mpmath.mpf:
    if name == "relu":
        return max(z, mpmath.mpf(0))
    if name == "softplus":
        return mpmath.log1p(mpmath.exp(z)) if z < 0 else z + mpmath.log1p(mpmath.exp(-z))
    return mpmath.exp(min(max(z, mpmath.mpf(-10)), mpmath.mpf(10)))


def _softmax(z: list[mpmath.mpf | None], temperature: mpmath.mpf) -> list[mpmath.mpf]:
    # mpmath's exponent has no bound, so that exp(-1e30) is a number; an impossible label has no utility.
    power = [mpmath.mpf(0) if x is None else mpmath.exp(x / temperature) for x in z]
    total = mpmath.fsum(power)
    return [x / total for x in power]


def _order(z: mpmath.mpf | None) -> mpmath.mpf:
    return -mpmath.inf if z is None else z


def _shared_ranks(keys: list) -> list[int]:
    """How many keys are strictly greater than each one."""
    first_at: dict = {}
    for position, key in enumerate(sorted(keys, reverse=True)):
        first_at.setdefault(key, position)
    return [first_at[key] for key in keys]


def reference_murmur_uniform(row: Sequence[float], seed: int) -> float:
    """The row's v in [0, 1), in Python integers: one finalised hash per finite logit, their sum, and the seed."""
    total = 0
    for z in row:
        if z == float("-inf"):
            continue
        with np.errstate(over="ignore"):
            single = float(np.float32(z)) + 0.0  # -0.0 and 0.0 are one number
        (bits,) = struct.unpack("<I", struct.pack("<f", single))
        total = (total + murmur3_finaliser(bits)) % 2**32
    return (murmur3_finaliser(total ^ murmur3_finaliser(seed)) >> 8) / 2**24


def murmur3_finaliser(h: int) -> int:
    """fmix32 of MurmurHash3."""
    h ^= h >> 16
    h = h * 0x85EBCA6B % 2**32
    h ^= h >> 13
    h = h * 0xC2B2AE35 % 2**32
    return h ^ (h >> 16)


def reference_naive_scores(name: str, row: Sequence[float], *, temperature: float = 1.0, seed: int = 0, **options):
    """The table of baseline scores, label by label and with plain loops; +inf for impossible labels."""
    with mpmath.workdps(40):
        z = [None if x == float("-inf") else mpmath.mpf(float(x)) for x in row]
        p = _softmax(z, mpmath.mpf(temperature))
        v = mpmath.mpf(reference_murmur_uniform(row, seed)) if options.get("randomized") else mpmath.mpf(1)
        return [
            mpmath.inf if z[y] is None else _naive_score(name, y, z, p, v, options)  # masked: impossible
            for y in range(len(z))
        ]


def _naive_score(name: str, y: int, z: list, p: list, v: mpmath.mpf, options: dict) -> mpmath.mpf:  # noqa: PLR0911
    above = [j for j in range(len(z)) if _order(z[j]) > _order(z[y])]
    o = 1 + len(above)
    mass = mpmath.fsum(p[j] for j in above)
    if name == "lac":
        return -mpmath.log(p[y])
    if name == "classlac":
        offset = 0 if options["offsets"] is None else mpmath.mpf(options["offsets"][y])
        beyond = options["limits"] is not None and o > options["limits"][y]
        return -mpmath.log(p[y]) + offset + (10**6 if beyond else 0)
    if name in ("aps", "base"):
        return mass + v * p[y]
    if name == "raps":
        lam, excess = mpmath.mpf(options["lam"]), o - options["k_reg"]
        if excess <= 0:
            return mass + v * p[y]
        own = v if options["randomize_penalty"] else mpmath.mpf(1)
        return mass + v * p[y] + lam * (excess - 1 + own)
    if name == "saps":
        return v * max(p) if o == 1 else max(p) + (o - 2 + v) * mpmath.mpf(options["lam"])
    if name == "topk":
        return o - 1 + v
    if name == "margin":
        return max(p[j] for j in range(len(z)) if j != y) - p[y]
    raise ValueError(name)


def reference_rank(n: int, coverage: Fraction) -> int:
    """ceil((n + 1) coverage) by counting integers."""
    numerator, denominator = coverage.as_integer_ratio()
    whole, rest = divmod((n + 1) * numerator, denominator)
    return whole + (rest > 0)


def reference_numpy_scores(name: str, logits: np.ndarray, v: np.ndarray, **options: float) -> np.ndarray:
    """The scores as one would first write them in NumPy on float64, all (n, K) at once; no masks.

    `v` is the (n, 1) randomisation of the rows, ones where there is none.
    """
    z = logits.astype(np.float64)
    n_classes = z.shape[1]
    softmax = np.exp(z - z.max(1, keepdims=True))
    softmax /= softmax.sum(1, keepdims=True)
    descending = -np.sort(-z, axis=1)
    above = np.stack([np.searchsorted(-s, -row, side="left") for s, row in zip(descending, z, strict=True)])
    running = np.cumsum(-np.sort(-softmax, axis=1), axis=1)
    mass = np.take_along_axis(np.concatenate([np.zeros((len(z), 1)), running], axis=1), above, 1)
    top = softmax.max(1, keepdims=True)
    second = np.sort(softmax, axis=1)[:, -2:-1]
    p = np.maximum(z, 0) + 1
    p /= p.sum(1, keepdims=True)
    if name == "ecp":
        cost = -np.log(p) / (softmax * p**2 * (1 - above / n_classes) + options["stabilizer"])
        return np.log(cost) - np.log(cost.max(1, keepdims=True))
    return {
        "lac": -np.log(softmax),
        "classlac": -np.log(softmax),
        "aps": mass + v * softmax,
        "raps": mass + v * softmax + options.get("lam", 0) * np.maximum(above + 1 - options.get("k_reg", 0), 0),
        "saps": np.where(above == 0, v * top, top + (above - 1 + v) * options.get("lam", 0)),
        "topk": above + v,
        "margin": np.where(softmax == top, second, top) - softmax,
    }[name]


#: Rows that break careless arithmetic.
FAMILIES = (
    "gaussian",
    "1e4",
    "1e30",
    "constant",
    "ties",
    "spike",
    "denormal",
    "masked",
    "minus zero",
    "clustered",
    "one possible",
)


def adversarial_row(family: str, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """One row of logits of a family, (K,) float64."""
    gauss = rng.normal(size=n_classes)
    one = np.arange(n_classes) == rng.integers(n_classes)
    masked = np.where((rng.random(n_classes) < 0.4) & ~one, -np.inf, 3 * gauss)
    return {
        "gaussian": 3 * gauss,
        "1e4": rng.uniform(-1e4, 1e4, n_classes),
        "1e30": rng.uniform(-1e30, 1e30, n_classes),
        "constant": np.full(n_classes, 5 * gauss[0]),
        "ties": np.round(2 * gauss),
        "spike": np.where(one, 10 ** rng.uniform(0, 6), 0.0),
        "denormal": gauss * 1e-310,
        "masked": masked,
        "minus zero": rng.choice([-0.0, 0.0, 1.0, -1.0], n_classes),
        "clustered": np.where(one, 1e4, gauss - 1e4),  # all but one label beside the smallest logit
        "one possible": np.where(one, gauss, -np.inf),
    }[family]
