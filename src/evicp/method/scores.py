"""The scores: frozen dataclasses of parameters, each with one formula.

A score maps logits to one number per label; lower is more conforming. A masked label (logit -inf) scores +inf.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np

from evicp import kernels
from evicp.errors import InputTypeError, ScoreError
from evicp.input import validate
from evicp.input.classes import in_class_order
from evicp.input.messages import did_you_mean
from evicp.kernels import _numpy as kernel
from evicp.method import evidence
from evicp.sets import PredictionSets
from evicp.types import F64, Coverage

__all__ = ["APS", "ECP", "LAC", "RAPS", "SAPS", "SCORES", "Base", "Custom", "Margin", "Score", "TopK", "as_score"]


#: What a file says in place of a user's function.
CUSTOM = "custom"


class Score:
    """What all scores share. A subclass names itself and gives `formula`, (n, K) logits to (n, K) scores."""

    name: ClassVar[str]
    #: Whether it needs the total probability of the labels above.
    adds_up: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.name in _RULES:
                object.__setattr__(self, field.name, _RULES[field.name](getattr(self, field.name), field.name))

    def formula(self, z: F64) -> F64:  # noqa: ARG002
        """The score of every label; z is (n, K) float64, checked."""
        raise TypeError(f"{type(self).__name__} defines no formula")

    def scores(self, logits: Any) -> F64:
        """The dense (n, K) scores of logits; lower is more conforming.

        >>> LAC().scores([[2.0, 1.0, -1.0]]).round(3)
        array([[0.349, 1.349, 3.349]])
        """
        return kernels.dense_scores(self, validate.as_logits(logits))

    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in fields}

    def plain_parameters(self) -> dict[str, Any]:
        """The parameters as JSON values, for files and tables; of a user's function only that it is one."""
        return {name: CUSTOM if callable(value) else value for name, value in self.parameters().items()}

    def describe(self) -> str:
        """The score with the parameters that differ from their defaults: "raps(lam=0.5)"."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        changed = [f"{f.name}={_short(getattr(self, f.name))}" for f in fields if getattr(self, f.name) != f.default]
        return f"{self.name}({', '.join(changed)})" if changed else self.name


def _short(value: Any) -> str:
    if isinstance(value, tuple) or callable(value):
        return "..."
    return f"{value:g}" if isinstance(value, float) else str(value)


def _masked(scores: F64, z: F64) -> F64:
    return np.where(z == -np.inf, np.inf, scores)


def _positive(value: Any, what: str) -> float:
    return _number(value, what, lambda x: 0 < x < np.inf, "a positive number")


def _non_negative(value: Any, what: str) -> float:
    return _number(value, what, lambda x: 0 <= x < np.inf, "a number >= 0")


def _number(value: Any, what: str, valid: Callable[[float], bool], wanted: str) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputTypeError(f"{what} must be {wanted}; got {value!r} ({type(value).__name__}).")
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all doubles
        number = np.inf
    if not valid(number):
        raise ScoreError(f"{what} must be {wanted}; got {value}.")
    return number


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{what} must be a whole number; got {value!r} ({type(value).__name__}).")
    if not 0 <= value < 2**32:
        raise ScoreError(f"{what} must be in [0, 2^32); got {value}.")
    return int(value)


#: How each parameter is checked and made plain; scores share names, so they share rules.
_RULES: Mapping[str, Callable[[Any, str], Any]] = MappingProxyType(
    {
        "temperature": _positive,
        "lam": _non_negative,
        "k_reg": _whole,
        "seed": _whole,
        "randomized": validate.as_flag,
        "randomize_penalty": validate.as_flag,
    }
)


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
    stabilizer : float or "scaled"
        Added to the cost's denominator: 1e-8 is what the paper's released code does, 0 the equation as printed,
        "scaled" is 0.01 / K^2 (equal to 1e-8 at K = 1,000).
    utility : callable, optional
        Takes (n, K) logits and returns as many utilities >= 0, in place of the softmax.

    >>> ECP().scores([[2.0, 1.0, -1.0]]).round(6)
    array([[-7.245517, -4.568562,  0.      ]])
    """

    evidence: str | Callable[[F64], Any] = "relu"
    base_rates: tuple[float, ...] | None = None
    temperature: float = 1.0
    stabilizer: float | Literal["scaled"] = 1e-8
    utility: Callable[[F64], Any] | None = None

    name: ClassVar[str] = "ecp"

    def __post_init__(self) -> None:
        super().__post_init__()
        evidence.check_activation(self.evidence)
        if self.utility is not None and not callable(self.utility):
            raise InputTypeError(f"utility must be a callable of logits; got {self.utility!r}.")
        if isinstance(self.stabilizer, str):
            if self.stabilizer != "scaled":
                raise ScoreError(f'stabilizer must be a number >= 0 or "scaled"; got {self.stabilizer!r}.')
        else:
            object.__setattr__(self, "stabilizer", _non_negative(self.stabilizer, "stabilizer"))
        if self.base_rates is not None:
            object.__setattr__(
                self, "base_rates", validate.as_base_rates(in_class_order(self.base_rates, "base_rates"))
            )

    @property
    def monotone(self) -> bool:
        """Whether every set is a top-m set: scores fall as logits rise (built-in parts, uniform base rates)."""
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

    def utility_of(self, z: F64) -> F64:
        """phi, the utility of Eq. 8."""
        if self.utility is None:
            return np.exp(evidence.log_utility(z, self.temperature))
        phi = validate.numbers_from_user(self.utility, z, "utility")
        if self.stabilizer == 0 and np.any((phi == 0) & (z > -np.inf)):
            raise ScoreError("utility must be positive where stabilizer is 0; got 0. Use stabilizer=1e-8.")
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

    def formula(self, z: F64) -> F64:
        return -evidence.log_utility(z, self.temperature)


def _probabilities(z: F64, temperature: float) -> F64:
    return np.exp(evidence.log_utility(z, temperature))


def _accumulated(z: F64, temperature: float, v: F64) -> F64:
    """P + v p: the probability of all labels above, and v times the label's own."""
    up_to_own, own = kernel.accumulated_masses(np.exp(evidence.log_utility_ratio(z, temperature)), z)
    return up_to_own - (1.0 - v) * own


def _v(z: F64, randomized: bool, seed: int) -> F64:
    """The randomisation of each row, a pure function of seed and row; 1 if there is none."""
    return kernel.row_uniforms(z, seed) if randomized else np.ones((1, 1))


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
    adds_up: ClassVar[bool] = True

    def formula(self, z: F64) -> F64:
        return _masked(_accumulated(z, self.temperature, _v(z, self.randomized, self.seed)), z)


@dataclass(frozen=True)
class RAPS(Score):
    """Regularised APS: every rank past k_reg costs lam more.

    Parameters
    ----------
    lam : what each rank past k_reg costs
    k_reg : how many ranks cost nothing
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
    adds_up: ClassVar[bool] = True

    def formula(self, z: F64) -> F64:
        v = _v(z, self.randomized, self.seed)
        excess = np.maximum(kernel.ordinal(z) - float(self.k_reg), 0.0)
        if self.randomize_penalty:
            excess = np.where(excess > 0, excess - 1.0 + v, 0.0)
        return _masked(_accumulated(z, self.temperature, v) + self.lam * excess, z)


@dataclass(frozen=True)
class SAPS(Score):
    """Sorted APS: only the largest probability is kept; every further rank costs lam.

    Parameters
    ----------
    lam : what each rank after the first costs
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

    def formula(self, z: F64) -> F64:
        o, v = kernel.ordinal(z), _v(z, self.randomized, self.seed)
        largest = _probabilities(z, self.temperature).max(1, keepdims=True)
        return _masked(np.where(o == 1, v * largest, largest + (o - 2 + v) * self.lam), z)


@dataclass(frozen=True)
class TopK(Score):
    """The rank o of a label; randomised, o - 1 + v. (Ranks do not depend on the temperature.)

    Parameters
    ----------
    randomized : whether ranks are spread by v, uniform for each row; if False, v is 1
    temperature : taken as by other scores, and of no effect
    seed : of v, which is a function of it and the row's logits

    >>> TopK().scores([[1.0, 0.0, -1.0]])
    array([[1., 2., 3.]])
    """

    randomized: bool = False
    temperature: float = 1.0
    seed: int = 0
    name: ClassVar[str] = "topk"

    def formula(self, z: F64) -> F64:
        return _masked(kernel.ordinal(z) - 1.0 + _v(z, self.randomized, self.seed), z)


@dataclass(frozen=True)
class Margin(Score):
    """By how much the best other label is ahead: max_{j != k} p_j - p_k.

    Parameters
    ----------
    temperature : T of the probabilities softmax(z / T)

    >>> Margin().scores([[1.0, 0.0, -1.0]]).round(3)
    array([[-0.421,  0.421,  0.575]])
    """

    temperature: float = 1.0
    name: ClassVar[str] = "margin"

    def formula(self, z: F64) -> F64:
        p = _probabilities(z, self.temperature)
        best = p.max(1, keepdims=True)
        second = np.partition(p, -2, axis=1)[:, -2, None]  # equals the best where the top is shared
        return _masked(np.where(p == best, second, best) - p, z)


@dataclass(frozen=True)
class Base(Score):
    """The paper's baseline, *not conformal*: APS's score with the coverage itself as threshold.

    It promises nothing: softmax probabilities are rarely calibrated.

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
    adds_up: ClassVar[bool] = True

    def formula(self, z: F64) -> F64:
        return APS(self.randomized, self.temperature, self.seed).formula(z)

    def predict(self, logits: Any, coverage: Coverage) -> PredictionSets:
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
    """A user's own score. Wherever a score is taken, the callable alone will do.

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
        return _masked(result, z)

    def parameters(self) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return getattr(self.function, "__name__", self.name)


SCORES: Mapping[str, type[Score]] = MappingProxyType(
    {
        "aps": APS,
        "base": Base,
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
    """A score from its name, from the text in which it describes itself, an instance, or a user's callable.

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


def _from_text(text: str) -> Score:
    match = _SCORE_TEXT.fullmatch(text)
    if match is None:
        raise ScoreError(f"cannot read the score {text!r}; write it as 'ecp' or 'raps(lam=0.5,k_reg=3)'.")
    name, arguments = match.group(1), (match.group(2) or "").strip()
    if name.lower() == "auto":
        raise ScoreError('"auto" is a choice among scores, not one: use calibrate(score="auto"), tune or compare.')
    if name.lower() not in SCORES:
        hint = did_you_mean(name.lower(), SCORES)
        raise ScoreError(f"unknown score {name!r}; known are {', '.join(SCORES)}. {hint}".rstrip())
    kind = SCORES[name.lower()]
    pairs = [_parameter(part, text) for part in arguments.split(",")] if arguments else []
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise ScoreError(f"a parameter is given twice in the score {text!r}.")
    known = kind().parameters()
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
