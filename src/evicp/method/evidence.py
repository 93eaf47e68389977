"""From logits to the evidential score, one function per equation of the paper.

Symbols follow the paper (Karimi and Samavi, COPA 2024): z logits, e evidence, alpha the Dirichlet's parameters,
p probability, b belief, u uncertainty, pi base rates, I surprisal, phi utility, r rank, C cost, S score.
All functions take and return float64 arrays with labels on the last axis. Costs are kept as logarithms: C
overflows and S underflows long before the order of labels is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evicp.errors import ScoreError
from evicp.input import validate
from evicp.input.classes import in_class_order
from evicp.types import F64, I64, Bools

__all__ = [
    "EVIDENCE",
    "Opinion",
    "activate",
    "belief",
    "dirichlet",
    "dirichlet_log_density",
    "expected_utility",
    "focal_surprisal",
    "focal_uncertainty",
    "label_cost",
    "log_cost",
    "log_score",
    "log_utility",
    "opinion",
    "probability",
    "rank_scaling",
    "ranks",
    "surprisal",
    "uncertainty",
]


def _relu(z: F64) -> F64:
    return np.maximum(z, 0.0)


def _softplus(z: F64) -> F64:
    return np.logaddexp(z, 0.0)


def _exp(z: F64) -> F64:
    return np.where(z == -np.inf, 0.0, np.exp(np.clip(z, -10.0, 10.0)))


#: The non-negative activations A of Definition 1. A masked label (logit -inf) has no evidence under any of them.
EVIDENCE: Mapping[str, Callable[[F64], F64]] = MappingProxyType({"relu": _relu, "softplus": _softplus, "exp": _exp})


def check_activation(activation: str | Callable[[F64], Any]) -> None:
    """An activation is a known name or a callable."""
    if not callable(activation) and not (isinstance(activation, str) and activation in EVIDENCE):
        raise ScoreError(f"evidence must be one of {', '.join(EVIDENCE)} or a callable; got {activation!r}.")


def activate(activation: str | Callable[[F64], Any], z: F64) -> F64:
    """Definition 1: e_k = A(z_k) >= 0; an impossible label (logit -inf) has no evidence.

    >>> activate("relu", np.array([2.0, 1.0, -1.0]))
    array([2., 1., 0.])
    """
    if callable(activation):
        return validate.from_user(activation, z, "evidence")
    return EVIDENCE[activation](z)


def dirichlet(evidence: F64, base_rates: F64 | None = None) -> F64:
    """Eq. 1: alpha_k = e_k + K pi_k; with uniform base rates alpha_k = e_k + 1.

    >>> dirichlet(np.array([2.0, 1.0, 0.0]))
    array([3., 2., 1.])
    """
    return evidence + (1.0 if base_rates is None else evidence.shape[-1] * base_rates)


def dirichlet_log_density(categorical: F64, alpha: F64) -> F64:
    """ln Dir(c | alpha), the density of Section 3.1; -inf off the simplex.

    >>> dirichlet_log_density(np.array([0.2, 0.3, 0.5]), np.ones(3))  # flat: ln Gamma(3)
    np.float64(0.6931471805599453)
    """
    from scipy.special import gammaln, xlogy

    log_beta = gammaln(alpha).sum(-1) - gammaln(alpha.sum(-1))
    # xlogy: a zero coordinate with alpha = 1 contributes nothing, not 0 * -inf.
    kernel = xlogy(alpha - 1.0, np.clip(categorical, 0.0, None)).sum(-1)
    on_simplex = (categorical >= 0).all(-1) & np.isclose(categorical.sum(-1), 1.0, rtol=0, atol=1e-9)
    density: F64 = np.where(on_simplex, kernel - log_beta, -np.inf)[()]
    return density


def probability(alpha: F64) -> F64:
    """Eq. 2: p_k = alpha_k / alpha_0, the Dirichlet's mean.

    >>> probability(np.array([3.0, 2.0, 1.0]))
    array([0.5       , 0.33333333, 0.16666667])
    """
    return alpha / alpha.sum(-1, keepdims=True)


def belief(evidence: F64, alpha: F64) -> F64:
    """Eq. 3: b_k = e_k / alpha_0.

    >>> belief(np.array([2.0, 1.0, 0.0]), np.array([3.0, 2.0, 1.0])).round(3)
    array([0.333, 0.167, 0.   ])
    """
    return evidence / alpha.sum(-1, keepdims=True)


def uncertainty(alpha: F64) -> F64:
    """Eq. 3: u = K / alpha_0, what the beliefs leave over: u + sum b = 1. Shape (..., 1).

    >>> uncertainty(np.array([3.0, 2.0, 1.0]))
    array([0.5])
    """
    total: F64 = alpha.shape[-1] / alpha.sum(-1, keepdims=True)
    return total


def focal_uncertainty(u: F64, base_rates: F64 | None, n_classes: int) -> F64:
    """Eq. 5: U_k = u pi_k, each label's share of the uncertainty.

    >>> focal_uncertainty(np.array([0.5]), None, 3).round(3)
    array([0.167])
    """
    return u * (1.0 / n_classes if base_rates is None else base_rates)


def surprisal(alpha: F64) -> F64:
    """Eq. 6: I(k) = -ln p_k, to full relative accuracy.

    Where p_k is near 1, -ln p_k is what *the others* hold, and alpha_0 - alpha_k would cancel: the one label
    that can hold more than half is computed from the sum of the rest.

    >>> surprisal(np.array([3.0, 2.0, 1.0])).round(3)
    array([0.693, 1.099, 1.792])
    """
    top = alpha.argmax(-1, keepdims=True)
    others = alpha.copy()
    np.put_along_axis(others, top, 0.0, -1)
    largest = np.take_along_axis(alpha, top, -1)
    rest = others.sum(-1, keepdims=True)
    result = -np.log(alpha / (largest + rest))
    exact = np.where(rest < largest, np.log1p(rest / largest), np.take_along_axis(result, top, -1))
    np.put_along_axis(result, top, exact, -1)
    return result


def focal_surprisal(focal_uncertainty: F64, surprisal: F64, p: F64) -> F64:
    """Eq. 7: I_U(k) = U_k I(k) / p_k.

    >>> focal_surprisal(np.array([0.25]), np.array([2.0]), np.array([0.5]))
    array([1.])
    """
    return focal_uncertainty * surprisal / p


def log_utility_ratio(z: F64, temperature: float = 1.0) -> F64:
    """ln(phi_k / max_v phi_v) = (z_k - max_v z_v) / T of the softmax utility; -inf for impossible labels only.

    >>> log_utility_ratio(np.array([1.0, 3.0]), temperature=2.0)
    array([-1.,  0.])
    """
    with np.errstate(over="ignore"):  # a quotient past the largest double is clipped
        shifted = (z - z.max(-1, keepdims=True)) / temperature
    return np.where(z == -np.inf, -np.inf, np.maximum(shifted, -1e308))


#: Rows whose probabilities exp(z) sum to 1 up to rounding hold log-probabilities: ln of the sum is at most this, or
#: where all logits fit into single precision, at most that.
NORMALIZED, NORMALIZED_SINGLE = 2.0**-42, 2.0**-20


def log_utility(z: F64, temperature: float = 1.0) -> F64:
    """ln phi, where phi = softmax(z / T), the paper's utility. Also the log-probabilities of every baseline.

    >>> np.exp(log_utility(np.array([0.0, 0.0])))
    array([0.5, 0.5])
    """
    shifted = log_utility_ratio(z, temperature)
    # The largest term is exactly 1: ln(1 + the others) keeps what ln of the sum would round away where p is near 1.
    others = np.exp(shifted)
    np.put_along_axis(others, shifted.argmax(-1, keepdims=True), 0.0, -1)
    log_total = np.log1p(others.sum(-1, keepdims=True))
    if temperature != 1.0:
        return shifted - log_total
    return np.where(_is_normalized(z, log_total), z, shifted - log_total)


def _is_normalized(z: F64, log_total: F64) -> Bools:
    """Whether rows hold log-probabilities, (..., 1); log_total is ln of the sum of exp(z - max z).

    These are kept as they are, so that equal probabilities of different rows stay exactly equal.
    """
    top = z.max(-1, keepdims=True)
    with np.errstate(over="ignore"):  # what does not fit is not equal
        is_single = np.all(z == z.astype(np.float32), -1, keepdims=True)
    tolerance = np.where(is_single, NORMALIZED_SINGLE, NORMALIZED)
    return (top < 0) & (np.abs(top + log_total) <= tolerance)  # where the top is 0, all that is left is the others


def relative_log_utility(z: F64, temperature: float = 1.0) -> F64:
    """ln phi_k - min_v ln phi_v of the softmax utility: the softmax's normaliser cancels in the score (Eq. 11).

    Without a stabilizer the costliest labels are those of small utility, and ln phi, taken from the largest logit,
    would round away how far they are apart.

    >>> relative_log_utility(np.array([1e4, -1e4 + 0.5, -1e4]))
    array([2.e+04, 5.e-01, 0.e+00])
    """
    smallest = np.where(z == -np.inf, np.inf, z).min(-1, keepdims=True)
    with np.errstate(over="ignore"):
        shifted = (z - smallest) / temperature
    return np.minimum(shifted, 1e308)


def expected_utility(phi: F64, p: F64) -> F64:
    """Eq. 8: Phi(k) = phi_k p_k.

    >>> expected_utility(np.array([0.5]), np.array([0.25]))
    array([0.125])
    """
    return phi * p


def ranks(*keys: F64) -> I64:
    """r_k: how many labels lie strictly above label k. Equal labels share a rank.

    Several keys compare lexicographically, the first one deciding.

    >>> ranks(np.array([[4.0, 1.0, 4.0, -2.0]]))
    array([[0, 2, 0, 3]])
    """
    order = np.lexsort([-key for key in reversed(keys)], axis=-1)
    position = np.broadcast_to(np.arange(order.shape[-1]), order.shape)
    opens_group = np.zeros(order.shape, bool)
    opens_group[..., 0] = True
    for key in keys:
        descending = np.take_along_axis(key, order, -1)
        opens_group[..., 1:] |= descending[..., 1:] != descending[..., :-1]
    shared = np.maximum.accumulate(np.where(opens_group, position, 0), axis=-1)
    result = np.empty(order.shape, np.int64)
    np.put_along_axis(result, order, shared, -1)
    return result


def evidential_ranks(evidence: F64, z: F64, base_rates: F64 | None = None) -> I64:
    """r_k of the paper: ranks by (p, z). p orders labels as alpha does, and alpha is compared exactly.

    The error of the rounded sum e_k + K pi_k is its own second key (Knuth's two-sum), so that huge evidence
    does not swallow a difference in base rates.
    """
    if base_rates is None:
        return ranks(dirichlet(evidence), z)
    prior = np.broadcast_to(evidence.shape[-1] * base_rates, evidence.shape)
    alpha = evidence + prior
    virtual = alpha - evidence
    lost = (evidence - (alpha - virtual)) + (prior - virtual)
    return ranks(alpha, lost, z)


def rank_scaling(ranks: I64) -> F64:
    """Eq. 9: rho(k) = K / (K - r_k).

    >>> rank_scaling(np.array([0, 1, 2]))
    array([1. , 1.5, 3. ])
    """
    n_classes = ranks.shape[-1]
    return n_classes / (n_classes - ranks)


def label_cost(p: F64, phi: F64, ranks: I64, base_rates: F64 | None = None) -> F64:
    """The inner cost of Eq. 10: -pi_k ln p_k / (phi_k p_k^2 (K - r_k)); C_k = K u times this.

    >>> p = np.array([0.5, 0.3, 0.2])
    >>> label_cost(p, p, np.array([0, 1, 2])).round(2)
    array([ 0.62,  7.43, 67.06])
    """
    n_classes = p.shape[-1]
    pi = 1.0 / n_classes if base_rates is None else base_rates
    return -pi * np.log(p) / (phi * p**2 * (n_classes - ranks))


def log_cost(
    surprisal: F64,
    log_phi: F64,
    ranks: I64,
    stabilizer: float,
    u: F64 | float = 1.0,
    base_rates: F64 | None = None,
) -> F64:
    """Eq. 10: ln C_k, where C_k = u pi_k I(k) / (phi_k p_k^2 (1 - r_k/K) + stabilizer).

    The paper prints stabilizer 0, its released code adds 1e-8. The factor u is common to all labels and cancels
    in the score.

    >>> log_cost(np.array([0.7, 1.1]), np.log([0.6, 0.4]), np.array([0, 1]), stabilizer=0.0).round(2)
    array([0.86, 3.21])
    """
    n_classes = surprisal.shape[-1]
    log_pi = -np.log(n_classes) if base_rates is None else np.log(base_rates)
    with np.errstate(divide="ignore"):  # ln 0 = -inf is meant: no stabilizer, no surprise
        log_epsilon = np.log(stabilizer)
        log_surprisal = np.log(surprisal)
    log_denominator = log_phi - 2.0 * surprisal + np.log((n_classes - ranks) / n_classes)
    return np.log(u) + log_pi + log_surprisal - np.logaddexp(log_denominator, log_epsilon)


def log_score(log_cost: F64, possible: Bools) -> F64:
    """Eq. 11: ln S(k) = ln C_k - max_v ln C_v over possible labels; impossible ones score +inf.

    The only possible label of a row is certain: it scores -inf, although its own cost is the largest.

    >>> log_score(np.array([0.5, 2.0, 7.0]), np.array([True, True, False]))
    array([-1.5,  0. ,  inf])
    """
    largest = np.where(possible, log_cost, -np.inf).max(-1, keepdims=True)
    is_certain = possible.sum(-1, keepdims=True) == 1
    return np.where(possible, np.where(is_certain, -np.inf, log_cost - largest), np.inf)


@dataclass(frozen=True, eq=False)
class Opinion:
    """What the evidence in a batch of logits says: (n, K) arrays, and the uncertainty, (n,).

    `uncertainty + belief.sum(1)` is 1: the uncertainty is the part that is not assigned to any label.

    Attributes
    ----------
    evidence : e = A(z) (Definition 1)
    alpha : the Dirichlet's parameters, e + K pi (Eq. 1)
    probability : p = alpha / alpha_0, the Dirichlet's mean (Eq. 2)
    belief : b = e / alpha_0 (Eq. 3)
    uncertainty : u = K / alpha_0 of each row, (n,) (Eq. 3)
    """

    evidence: F64
    alpha: F64
    probability: F64
    belief: F64
    uncertainty: F64

    def log_density(self, categorical: ArrayLike) -> F64:
        """ln Dir(c | alpha) of a categorical distribution, one value per row.

        Parameters
        ----------
        categorical : c, (K,) or (n, K) probabilities that sum to 1
        """
        return dirichlet_log_density(np.asarray(categorical, dtype=np.float64), self.alpha)


def opinion(
    logits: ArrayLike,
    evidence: str | Callable[[F64], Any] = "relu",
    base_rates: ArrayLike | Mapping[Any, float] | None = None,
) -> Opinion:
    """The evidence, Dirichlet, probability, belief and uncertainty of each row of logits.

    Parameters
    ----------
    logits : (n, K), or one (K,) row
    evidence : "relu", "softplus", "exp" or a callable, as for `ECP`
    base_rates : K prior probabilities of the labels, positive, summing to 1; uniform if None

    >>> o = opinion([[2.0, 1.0, -1.0]])
    >>> o.belief, o.uncertainty
    (array([[0.33333333, 0.16666667, 0.        ]]), array([0.5]))
    """
    check_activation(evidence)
    array = validate.as_logits(logits, row_allowed=True)
    given = None if base_rates is None else validate.as_base_rates(in_class_order(base_rates, "base_rates"))
    rates = None if given is None else validate.rates_for(given, array.shape[1])
    e = np.empty(array.shape)
    for rows, block in validate.blocks(array):
        e[rows] = activate(evidence, block)
    alpha = dirichlet(e, rates)
    return Opinion(e, alpha, probability(alpha), belief(e, alpha), uncertainty(alpha)[:, 0])
