"""The scores: frozen dataclasses of parameters, each with one formula.

A score maps logits to one number per label; lower is more conforming. A masked label (logit -inf) scores +inf.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from evicp import kernels
from evicp.errors import InputTypeError, ScoreError
from evicp.input import validate
from evicp.input.messages import did_you_mean
from evicp.kernels import _numpy as kernel
from evicp.kernels.registry import built_in
from evicp.method import evidence
from evicp.method.class_lac import ClassLAC
from evicp.method.ecp import ECP
from evicp.method.score import CUSTOM, Ingredients, Score, masked
from evicp.sets import PredictionSets
from evicp.types import F64, Coverage

__all__ = ["APS", "ECP", "LAC", "RAPS", "SAPS", "SCORES", "Base", "Custom", "Margin", "Score", "TopK"]


@built_in
@dataclass(frozen=True)
class LAC(Score):
    """Least ambiguous sets (also LAS, THR): -ln p_k, which orders labels as 1 - p_k does.

    Parameters
    ----------
    temperature : T of the probabilities softmax(z / T)

    >>> LAC(temperature=2.0).scores([[2.0, 0.0]]).round(4)
    array([[0.3133, 1.3133]])
    """

    temperature: float = 1.0
    name: ClassVar[str] = "lac"
    equation: ClassVar[str] = "-ln(probability)"

    def formula(self, z: F64) -> F64:
        return -evidence.log_utility(z, self.temperature)

    def ingredients(self, z: F64) -> Ingredients:
        return {"probability": _probabilities(z, self.temperature)}


def _probabilities(z: F64, temperature: float) -> F64:
    return np.exp(evidence.log_utility(z, temperature))


def _accumulated(z: F64, temperature: float, v: F64) -> F64:
    """P + v p: the probability of all labels above, and v times the label's own."""
    up_to_own, own = kernel.accumulated_masses(np.exp(evidence.log_utility_ratio(z, temperature)), z)
    return up_to_own - (1.0 - v) * own


def _of_accumulated(z: F64, temperature: float, v: F64) -> Ingredients:
    """What P + v p is made of."""
    up_to_own, own = kernel.accumulated_masses(np.exp(evidence.log_utility_ratio(z, temperature)), z)
    return {"probability": own, "mass_above": up_to_own - own, "v": v}


def _v(z: F64, randomized: bool, seed: int) -> F64:
    """The randomisation of each row, a pure function of seed and row; 1 if there is none."""
    return kernel.row_uniforms(z, seed) if randomized else np.ones((1, 1))


@built_in
@dataclass(frozen=True)
class APS(Score):
    """Adaptive prediction sets: the probability of all labels above, plus v times the label's own.

    Parameters
    ----------
    randomized : whether a label's own probability counts v times, v uniform for each row; if False, v is 1
    temperature : T of the probabilities softmax(z / T)
    seed : of v, which is a function of it and the row's logits

    >>> APS(randomized=False).scores([[1.0, 1.0, 0.0]]).round(3)  # equal labels share a score
    array([[0.422, 0.422, 1.   ]])
    """

    randomized: bool = True
    temperature: float = 1.0
    seed: int = 0
    name: ClassVar[str] = "aps"
    equation: ClassVar[str] = "mass above + v * probability"
    adds_up: ClassVar[bool] = True

    def formula(self, z: F64) -> F64:
        return masked(_accumulated(z, self.temperature, _v(z, self.randomized, self.seed)), z)

    def ingredients(self, z: F64) -> Ingredients:
        return _of_accumulated(z, self.temperature, _v(z, self.randomized, self.seed))


@built_in
@dataclass(frozen=True)
class RAPS(Score):
    """Regularised APS: every rank above k_reg adds a penalty lam.

    Parameters
    ----------
    lam : the penalty of each rank above k_reg
    k_reg : the number of ranks without penalty
    randomized : whether a label's own probability counts v times, v uniform for each row; if False, v is 1
    randomize_penalty : whether the penalty of the label's own rank counts v times, as in the released code of the ECP
        paper
    temperature : T of the probabilities softmax(z / T)
    seed : of v, which is a function of it and the row's logits

    >>> RAPS(lam=0.5, k_reg=1, randomized=False).scores([[1.0, 0.0, -1.0]]).round(3)
    array([[0.665, 1.41 , 2.   ]])
    """

    lam: float = 0.1
    k_reg: int = 5
    randomized: bool = True
    randomize_penalty: bool = False
    temperature: float = 1.0
    seed: int = 0
    name: ClassVar[str] = "raps"
    equation: ClassVar[str] = "mass above + v * probability + penalty"
    adds_up: ClassVar[bool] = True

    def formula(self, z: F64) -> F64:
        v = _v(z, self.randomized, self.seed)
        return masked(_accumulated(z, self.temperature, v) + self._penalty(z, v), z)

    def _penalty(self, z: F64, v: F64) -> F64:
        excess = np.maximum(kernel.ordinal(z) - float(self.k_reg), 0.0)
        if self.randomize_penalty:
            excess = np.where(excess > 0, excess - 1.0 + v, 0.0)
        return self.lam * excess

    def ingredients(self, z: F64) -> Ingredients:
        v = _v(z, self.randomized, self.seed)
        made_of = _of_accumulated(z, self.temperature, v)
        return {**made_of, "rank": kernel.ordinal(z), "penalty": self._penalty(z, v)}


@built_in
@dataclass(frozen=True)
class SAPS(Score):
    """Sorted APS: only the largest probability is used; every further rank adds lam.

    Parameters
    ----------
    lam : the penalty of each rank after the first
    randomized : whether the label's own part, of the largest probability or of lam, counts v times, v uniform for each
        row; if False, v is 1
    temperature : T of the probabilities softmax(z / T)
    seed : of v, which is a function of it and the row's logits

    >>> SAPS(lam=0.5, randomized=False).scores([[1.0, 0.0, -1.0]]).round(3)
    array([[0.665, 1.165, 1.665]])
    """

    lam: float = 0.1
    randomized: bool = True
    temperature: float = 1.0
    seed: int = 0
    name: ClassVar[str] = "saps"
    equation: ClassVar[str] = "top share + penalty"

    def formula(self, z: F64) -> F64:
        top, penalty = self._terms(z, _v(z, self.randomized, self.seed))
        return masked(top + penalty, z)

    def _terms(self, z: F64, v: F64) -> tuple[F64, F64]:
        """What the largest probability counts, and what the ranks after the first cost."""
        o = kernel.ordinal(z)
        largest = _probabilities(z, self.temperature).max(1, keepdims=True)
        return np.where(o == 1, v * largest, largest), np.where(o == 1, 0.0, (o - 2 + v) * self.lam)

    def ingredients(self, z: F64) -> Ingredients:
        v = _v(z, self.randomized, self.seed)
        top, penalty = self._terms(z, v)
        probability = _probabilities(z, self.temperature)
        return {"probability": probability, "rank": kernel.ordinal(z), "top_share": top, "penalty": penalty, "v": v}


@built_in
@dataclass(frozen=True)
class TopK(Score):
    """The rank o of a label; randomised, o - 1 + v. (Ranks do not depend on the temperature.)

    Parameters
    ----------
    randomized : whether ranks are spread by v, uniform for each row; if False, v is 1
    temperature : accepted as by other scores, without effect
    seed : of v, which is a function of it and the row's logits

    >>> TopK().scores([[1.0, 0.0, -1.0]])
    array([[1., 2., 3.]])
    """

    randomized: bool = False
    temperature: float = 1.0
    seed: int = 0
    name: ClassVar[str] = "topk"
    equation: ClassVar[str] = "rank - 1 + v"

    def formula(self, z: F64) -> F64:
        return masked(kernel.ordinal(z) - 1.0 + _v(z, self.randomized, self.seed), z)

    def ingredients(self, z: F64) -> Ingredients:
        return {"rank": kernel.ordinal(z), "v": _v(z, self.randomized, self.seed)}


@built_in
@dataclass(frozen=True)
class Margin(Score):
    """The lead of the best other label: max_{j != k} p_j - p_k.

    Parameters
    ----------
    temperature : T of the probabilities softmax(z / T)

    >>> Margin().scores([[1.0, 0.0, -1.0]]).round(3)
    array([[-0.421,  0.421,  0.575]])
    """

    temperature: float = 1.0
    name: ClassVar[str] = "margin"
    equation: ClassVar[str] = "best other - probability"

    def formula(self, z: F64) -> F64:
        made_of = self.ingredients(z)
        return masked(made_of["best_other"] - made_of["probability"], z)

    def ingredients(self, z: F64) -> Ingredients:
        p = _probabilities(z, self.temperature)
        best = p.max(1, keepdims=True)
        second = np.partition(p, -2, axis=1)[:, -2, None]  # equals the best where the top is shared
        return {"probability": p, "best_other": np.where(p == best, second, best)}


@built_in
@dataclass(frozen=True)
class Base(Score):
    """The paper's baseline, *not conformal*: APS's score with the coverage itself as threshold.

    It has no guarantee: softmax probabilities are rarely calibrated.

    Parameters
    ----------
    randomized : whether a label's own probability counts v times, v uniform for each row; if False, v is 1
    temperature : T of the probabilities softmax(z / T)
    seed : of v, which is a function of it and the row's logits

    >>> Base(randomized=False).predict([[3.0, 1.0, 0.0]], coverage=0.9).to_lists()
    [[0]]
    """

    randomized: bool = True
    temperature: float = 1.0
    seed: int = 0
    name: ClassVar[str] = "base"
    equation: ClassVar[str] = APS.equation
    adds_up: ClassVar[bool] = True

    def formula(self, z: F64) -> F64:
        return APS(self.randomized, self.temperature, self.seed).formula(z)

    def ingredients(self, z: F64) -> Ingredients:
        return APS(self.randomized, self.temperature, self.seed).ingredients(z)

    def predict(self, logits: ArrayLike, coverage: Coverage = 0.9) -> PredictionSets:
        """Sets of labels whose accumulated probability stays within the coverage.

        Parameters
        ----------
        logits : (n, K), or one (K,) row
        coverage : strictly between 0 and 1
        """
        array = validate.as_logits(logits, row_allowed=True)
        exact = validate.as_coverage(coverage)
        offsets, labels = kernels.ragged_labels(self, array, float(exact))
        return PredictionSets(offsets, labels, n_classes=array.shape[1], coverage=exact, score=self.name)


@dataclass(frozen=True)
class Custom(Score):
    """A user-defined score. You can pass the callable itself wherever a score is expected.

    Parameters
    ----------
    function : takes (n, K) float64 logits and returns as many numbers, lower more conforming

    >>> Custom(lambda z: z.max(1, keepdims=True) - z).scores([[2.0, 1.0, -1.0]])
    array([[0., 1., 3.]])
    """

    function: Callable[[F64], Any]
    name: ClassVar[str] = CUSTOM

    def formula(self, z: F64) -> F64:
        result = validate.real(self.function(z.copy()), "a score")
        if result.shape != z.shape:
            raise ScoreError(f"a score must return an array of shape {z.shape}; got {result.shape}.")
        if np.isnan(result[z > -np.inf]).any():
            raise ScoreError("a score must not return NaN for a finite logit.")
        return masked(result, z)

    def parameters(self) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return getattr(self.function, "__name__", self.name)


SCORES: Mapping[str, type[Score]] = MappingProxyType(
    {
        "aps": APS,
        "base": Base,
        "classlac": ClassLAC,
        "ecp": ECP,
        "lac": LAC,
        "las": LAC,
        "margin": Margin,
        "raps": RAPS,
        "saps": SAPS,
        "thr": LAC,
        "topk": TopK,
    }
)

#: The scores that are compared, reported and timed where none are named.
USUAL = ("ecp", "lac", "aps", "raps")


#: A score by name, as it is, or as a function of logits to scores.
ScoreLike = str | Score | Callable[[F64], Any]


def as_score(score: ScoreLike, *, conformal: bool = True) -> Score:
    """A score from its name, its description as text, an instance, or a user's callable.

    >>> as_score("las")
    LAC(temperature=1.0)
    >>> as_score("raps(lam=0.5, k_reg=3)").describe()
    'raps(lam=0.5, k_reg=3)'
    """
    if isinstance(score, str):
        score = _from_text(score)
    elif isinstance(score, type) and issubclass(score, Score):
        score = score()
    elif not isinstance(score, Score):
        if not callable(score):
            raise InputTypeError(f"score must be a name, a score or a callable; got {score!r}.")
        score = Custom(score)
    if conformal and isinstance(score, Base):
        raise ScoreError(
            '"base" is not conformal and cannot be calibrated; use Base().predict(logits, coverage), or "aps".'
        )
    return score


_SCORE_TEXT = re.compile(r"\s*([A-Za-z]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*([a-z_]+)\s*=\s*([^\s,=()]+)\s*")


@lru_cache(maxsize=64)
def _from_text(text: str) -> Score:
    match = _SCORE_TEXT.fullmatch(text)
    if match is None:
        raise ScoreError(f"cannot read the score {text!r}; write it as 'ecp' or 'raps(lam=0.5,k_reg=3)'.")
    name, arguments = match.group(1), (match.group(2) or "").strip()
    if name.lower() == "auto":
        raise ScoreError(
            '"auto" selects a score and is not a score itself: use calibrate(score="auto"), tune or compare.'
        )
    if name.lower() not in SCORES:
        hint = did_you_mean(name.lower(), SCORES)
        raise ScoreError(f"unknown score {name!r}; known are {', '.join(SCORES)}. {hint}".rstrip())
    kind = SCORES[name.lower()]
    pairs = [_parameter(part, text) for part in arguments.split(",")] if arguments else []
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise ScoreError(f"a parameter is given twice in the score {text!r}.")
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = set(parameters) - set(known)
    if unknown:
        raise ScoreError(f"{name} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(known)}.")
    return kind(**parameters)


def _parameter(part: str, text: str) -> tuple[str, Any]:
    match = _PARAMETER.fullmatch(part)
    if match is None:
        raise ScoreError(f"cannot read {part.strip()!r} in the score {text!r}; write parameter=value.")
    name, value = match.groups()
    try:
        return name, {"true": True, "false": False}[value.lower()] if value.isalpha() else json.loads(value)
    except (KeyError, ValueError):
        return name, value.strip("'\"")
