"""The evidential score of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputTypeError, ScoreError
from evicp.input import validate
from evicp.input.classes import in_class_order
from evicp.kernels.registry import built_in
from evicp.method import evidence
from evicp.method.score import Ingredients, Score
from evicp.types import F64


@built_in
@dataclass(frozen=True)
class ECP(Score):
    """The evidential score ln S (Eq. 11): evidence, surprisal, utility and rank of each label.

    Parameters
    ----------
    evidence : "relu", "softplus", "exp" or a callable
        The activation A of Definition 1. A callable takes (n, K) logits and returns as many values >= 0.
    base_rates : K numbers, optional
        Prior probabilities pi of the labels (Definition 2), positive, summing to 1. Uniform by default.
    temperature : float
        T of the utility softmax(z / T).
    stabilizer : "scaled" or a number
        Added to the cost's denominator. "scaled" is 0.01 / K^2: at K = 1,000 the 1e-8 of the paper's released code, and
        with fewer classes larger, as the denominator is. 0 is the equation as printed.
    utility : callable, optional
        Takes (n, K) logits and returns as many utilities >= 0, in place of the softmax.

    >>> ECP().scores([[2.0, 1.0, -1.0]]).round(6)
    array([[-5.766379, -3.139337,  0.      ]])
    """

    evidence: str | Callable[[F64], Any] = "relu"
    base_rates: tuple[float, ...] | None = None
    temperature: float = 1.0
    stabilizer: float | Literal["scaled"] = "scaled"
    utility: Callable[[F64], Any] | None = None

    name: ClassVar[str] = "ecp"

    def __post_init__(self) -> None:
        super().__post_init__()
        evidence.check_activation(self.evidence)
        if self.utility is not None and not callable(self.utility):
            raise InputTypeError(f"utility must be a callable of logits; got {self.utility!r}.")
        if self.base_rates is not None:
            object.__setattr__(
                self, "base_rates", validate.as_base_rates(in_class_order(self.base_rates, "base_rates"))
            )

    @property
    def monotone(self) -> bool:
        """Whether scores fall as logits rise, so that every set is a top-m set (built-in parts, uniform base rates)."""
        return self.base_rates is None and self.utility is None and isinstance(self.evidence, str)

    def epsilon(self, n_classes: int) -> float:
        """The stabilizer as a number."""
        return 0.01 / n_classes**2 if isinstance(self.stabilizer, str) else self.stabilizer

    def rates(self, n_classes: int) -> F64 | None:
        """The base rates as an array, None if uniform."""
        return None if self.base_rates is None else validate.rates_for(self.base_rates, n_classes)

    def evidence_of(self, z: F64) -> F64:
        """e = A(z), Definition 1; masked labels have none."""
        return evidence.activate(self.evidence, z)

    def log_utility_of(self, z: F64) -> F64:
        """ln phi, the utility of Eq. 8."""
        if self.utility is None:
            return evidence.log_utility(z, self.temperature)
        with np.errstate(divide="ignore"):
            return np.log(self.utility_of(z))

    def utility_of(self, z: NDArray[Any]) -> F64:
        """phi, the utility of Eq. 8."""
        if self.utility is None:
            return np.exp(evidence.log_utility(z, self.temperature))
        phi = validate.numbers_from_user(self.utility, z, "utility")
        if self.stabilizer == 0 and np.any((phi == 0) & (z > -np.inf)):
            raise ScoreError("utility must be positive if stabilizer is 0; got 0. Use stabilizer=1e-8.")
        return phi

    def formula(self, z: F64) -> F64:
        n_classes = z.shape[1]
        rates = self.rates(n_classes)
        e = self.evidence_of(z)
        unscaled = self.stabilizer == 0 and self.utility is None
        log_cost = evidence.log_cost(
            surprisal=evidence.surprisal(evidence.dirichlet(e, rates)),
            log_phi=evidence.relative_log_utility(z, self.temperature) if unscaled else self.log_utility_of(z),
            ranks=evidence.evidential_ranks(e, z, rates),
            stabilizer=self.epsilon(n_classes),
            base_rates=rates,
        )
        return evidence.log_score(log_cost, possible=z > -np.inf)

    def ingredients(self, z: F64) -> Ingredients:
        rates = self.rates(z.shape[1])
        e = self.evidence_of(z)
        alpha = evidence.dirichlet(e, rates)
        p, u = evidence.probability(alpha), evidence.uncertainty(alpha)
        focal = evidence.focal_uncertainty(u, rates, z.shape[1]) * np.ones_like(p)
        surprisal = evidence.surprisal(alpha)
        phi = np.where(z == -np.inf, 0.0, np.exp(self.log_utility_of(z)))
        return {
            "evidence": e,
            "belief": evidence.belief(e, alpha),
            "probability": p,
            "focal_uncertainty": focal,
            "surprisal": surprisal,
            "focal_surprisal": evidence.focal_surprisal(focal, surprisal, p),
            "utility": phi,
            "expected_utility": evidence.expected_utility(phi, p),
            "rank": evidence.evidential_ranks(e, z, rates),
            "uncertainty": u,
        }
