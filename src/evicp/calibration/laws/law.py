"""What a guarantee answers: a `Kind` says what it needs of calibration rows, a `Law` what follows from their scores.

A law knows how the scores of a calibration lie: ascending, or group after group. They are passed to it, because the
calibration has them. A new guarantee is a new module here with both, named in the tables of `laws/__init__.py`; what a
law does not answer is refused in its name.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.promises import Promise, Target
from evicp.calibration.smoothing import smoothed_p_values
from evicp.calibration.ties import Ties
from evicp.errors import ArtifactError, EvicpWarning, InputError
from evicp.method.scores import Score
from evicp.types import F64, I64

if TYPE_CHECKING:
    from evicp.calibration.laws.groups import Partition
    from evicp.calibration.laws.weighted import Weights


class Kind(ABC):
    """What a guarantee needs of calibration rows; users name it, or pass an instance, as `by=`."""

    #: What is guaranteed, by name, as `Law.guarantee` has it; certificates find the two texts below by it.
    guarantee: ClassVar[str] = ""
    #: What users call it where they pass `by=`; "" where they do not.
    kind: ClassVar[str] = ""
    #: Which of "groups" and "weights" rows must come with; what else is given with them is refused.
    needs: ClassVar[frozenset[str]] = frozenset()
    #: All kinds by that name.
    named: ClassVar[dict[str, type[Kind]]] = {}
    #: Whether `keys` looks at the labels; and whether `law_of` sorts scores on an accelerator, see `DeviceArray`.
    uses_labels: ClassVar[bool] = True
    sorts_on_device: ClassVar[bool] = False
    #: For certificates: where coverage holds, as the end of a sentence; and on what that rests, what it does not say.
    where: ClassVar[str] = ""
    caveat: ClassVar[str] = (
        "Holds if calibration rows and new rows are exchangeable and the calibration rows were not used to select the "
        "model, score, temperature or coverage. It says nothing about single classes or groups, or about shifted data."
    )

    def __init_subclass__(cls) -> None:
        if cls.guarantee:
            Kind.named.setdefault(cls.guarantee, cls)

    def refuse_others(self, groups: Any, weights: Any) -> None:
        """Refuse what is given with rows and not needed."""
        if weights is not None and "weights" not in self.needs:
            raise InputError("weights need a weighted calibration.")
        if groups is not None and "groups" not in self.needs:
            own = f'; this one is by="{self.kind}"' if self.kind else ""
            raise InputError(f'groups need a calibration with by="group"{own}.')

    @abstractmethod
    def keys(self, score: Score, logits: Any, labels: I64, groups: Any, weights: Any) -> NDArray[Any]:
        """What is kept of each labelled row in addition to its score, (n,); empty for nothing.

        Parameters
        ----------
        score, labels : of the calibration, and of the rows, checked
        logits : checked: a NumPy array, or a tensor on an accelerator; what is returned is NumPy in any case
        groups, weights : of the rows, as they were given; None where they are not needed
        """

    @abstractmethod
    def law_of(
        self, scores: F64, keys: Sequence[NDArray[Any]], n_classes: int, class_names: tuple[str, ...] | None
    ) -> tuple[F64, Law]:
        """The scores of all rows as the law has them in order, and the law.

        Parameters
        ----------
        scores : (n,) in the order of the rows; of a kind that `sorts_on_device` a `DeviceArray`, as may be returned
        keys : of each batch of them
        n_classes, class_names : K, and the names of the classes
        """


#: Of thresholds that a graph, which knows labels only, cannot have.
DEPENDS_ON_THE_ROW = "only marginal calibrations and those by class can be built in: others depend on the row."


class Thresholds(NamedTuple):
    """What follows from calibration scores at one coverage."""

    #: Of each group, (G,); (1,) of all rows; none where the weights of new rows decide.
    values: F64
    #: Scores that tie there, so that sets are fuller than asked.
    ties: Ties
    #: Other scores equal the only threshold there is.
    tied: bool = False
    #: What there is to warn of whenever they are used.
    cautions: tuple[EvicpWarning, ...] = ()


class Law(ABC):
    """What follows from the scores of calibration rows: thresholds, p-values, promises."""

    #: Where its description is in a file; "" where there is none.
    stored_as: ClassVar[str] = ""

    @property
    def groups(self) -> Partition | None:
        """The law itself, where it has groups."""
        return None

    @property
    def weights(self) -> Weights | None:
        """The law itself, where scores have weights."""
        return None

    @property
    @abstractmethod
    def guarantee(self) -> str:
        """Where coverage holds: "marginal", "class", ..."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """What more calibration rows are asked for."""

    @property
    def needs(self) -> frozenset[str]:
        """Which of "groups" and "weights" new rows must come with."""
        return self.kind.needs

    @property
    def refusals(self) -> Mapping[str, str | None]:
        """Why it does not have what others have, by what that is; None for what it has."""
        return _NOTHING

    # -----------------------------------------------------------------------------------------------------------
    # Thresholds

    @abstractmethod
    def of_rows(self, score: Score, logits: Any, groups: Any, weights: Any) -> NDArray[Any]:
        """What decides the threshold of each label of each new row, broadcastable to (n, K): a group, or a weight."""

    @abstractmethod
    def at(self, scores: F64, coverage: Fraction, confidence: float | None) -> Thresholds:
        """What follows from the scores at one coverage, whatever the rows."""

    @abstractmethod
    def limit(self, scores: F64, coverage: Fraction, values: F64, of_rows: NDArray[Any]) -> float | F64:
        """The threshold of each label of each new row: one for all, or broadcastable to (n, K).

        Parameters
        ----------
        scores, coverage, values : of the calibration, what is asked, and what `at` says of it
        of_rows : as the method of this name has it
        """

    def listed(self, scores: F64, coverage: Fraction, values: F64) -> F64:
        """The thresholds as a user asks for them: of each group, or of each label."""
        return values

    def of_labels(self, n_classes: int) -> I64:
        """`of_rows` where that is the same for all rows, (1, K) or (1, 1); refused where rows differ."""
        raise InputError(DEPENDS_ON_THE_ROW)

    @property
    def has_row_groups(self) -> bool:
        """Whether each row is in a group, which has a name."""
        return False

    def group_names(self, of_rows: I64) -> NDArray[np.str_]:
        """The name of each row's group, (n,), where each row is in one."""
        raise InputError("only a calibration by group or by uncertainty has groups of rows.")

    def smoothed_limit(self, scores: F64, coverage: Fraction, of_rows: I64, steps: I64) -> F64:
        """The threshold of each row of smoothed sets, (n, 1); its random numbers are `steps` of 2^-24."""
        raise InputError(self.refusal("smoothed sets"))

    # -----------------------------------------------------------------------------------------------------------
    # P-values

    def below(self, scores: F64, new: F64, of_rows: I64, side: Literal["left", "right"]) -> I64:
        """How many scores that each new one is compared with are below it ("left"), or not above it ("right")."""
        raise InputError(self.refusal("counts"))

    def sizes(self, scores: F64, of_rows: I64) -> I64:
        """How many scores each new one is compared with, broadcastable to their shape."""
        raise InputError(self.refusal("counts"))

    def at_least(self, scores: F64, new: F64, of_rows: I64) -> tuple[I64, I64]:
        """How many scores are at least each new one, and how many it is compared with."""
        n = self.sizes(scores, of_rows)
        return n - self.below(scores, new, of_rows, "left"), n

    def p_values(self, scores: F64, new: F64, of_rows: NDArray[Any]) -> F64:
        """The p-value of each new score among those it is compared with."""
        at_least, n = self.at_least(scores, new, of_rows)
        p: F64 = (1.0 + at_least) / (1.0 + n)
        return p

    def smoothed_p_values(self, scores: F64, new: F64, of_rows: I64, steps: I64) -> F64:
        """(#{s_i > s} + u (1 + #{s_i = s})) / (n + 1), u = `steps` / 2^24."""
        n, below, up_to = self.sizes(scores, of_rows), *(self.below(scores, new, of_rows, x) for x in _SIDES)
        return smoothed_p_values(n - up_to, up_to - below, n, steps)

    def online_p_values(self, scores: F64, new: F64, joining: F64) -> F64:
        """The p-value of each new score among the scores and the new ones before it, which join them as `joining`."""
        raise InputError(self.refusal("online p-values"))

    def p_values_of(self, score: Score, scores: F64, logits: Any, labels: I64 | None, of_rows: NDArray[Any]) -> Any:
        """The p-values of the labels of new rows, (n,), or of all labels, (n, K); of tensors they may stay there."""
        if labels is None:
            return self.p_values(scores, kernels.dense_scores(score, logits), of_rows)
        return self.p_values(scores, kernels.label_scores(score, logits, labels), at_labels(of_rows, labels))

    # -----------------------------------------------------------------------------------------------------------
    # Guarantees

    @abstractmethod
    def promise(self, scores: F64, target: Target) -> Promise:
        """What is guaranteed at one coverage, and how that compares with what was observed."""

    def refusal(self, what: str) -> str | None:
        """Why it does not have something; None where it does."""
        return self.refusals.get(what, f"this calibration is {self.guarantee}: it has no {what}.")

    def require(self, what: str) -> None:
        """Refuse what it does not have."""
        reason = self.refusal(what)
        if reason is not None:
            raise InputError(reason)

    def group_counts(self, n: int) -> I64:
        """The rows of each group, (G,): all n where there are no groups."""
        return np.array([n])

    def rows_behind(self, n: int, group: str | None) -> int:
        """How many calibration rows are behind a threshold that is monitored: all n, or those of a group."""
        if group is not None:
            raise InputError(f"this calibration has no groups; got group={group!r}.")
        return n

    # -----------------------------------------------------------------------------------------------------------
    # Other scores

    @abstractmethod
    def extended(self, scores: F64, new: F64, keys: NDArray[Any], n_classes: int) -> tuple[F64, Self]:
        """The scores with those of more rows, and their law; `keys` are those of the new rows."""

    @abstractmethod
    def raised(self, scores: F64, higher: Callable[[F64], F64]) -> tuple[F64, Self]:
        """Higher scores in their order, and their law; the function takes ascending scores."""

    # -----------------------------------------------------------------------------------------------------------
    # Files and text

    def description(self) -> dict[str, Any]:
        """What a file says of it, by name; of a law that is in no table, so that it is not taken for another."""
        return {"law": self.guarantee}

    def tensors(self, scores: F64) -> dict[str, F64]:
        """Its arrays and the scores, in the order in which a file holds them."""
        return {"scores": scores}

    @classmethod
    def names_of(cls, names: set[str]) -> list[str]:
        """The tensors that a file of this law holds, in order, where these may be all of them; [] where not."""
        return ["scores"] if names == {"scores"} else []

    @classmethod
    def restored(
        cls, stored: Any, tensors: Mapping[str, F64], n_classes: int, class_names: tuple[str, ...] | None
    ) -> Self:
        """The law of a file's description and arrays, which are checked."""
        return cls()

    def facts(self) -> list[tuple[str, str]]:
        """What there is to say of it, by name."""
        return [("guarantee", self.guarantee)]

    def summary(self) -> str:
        """The same in few words, for `repr`."""
        return ""

    def effective_n(self, n: int) -> float:
        """How many equally weighted rows carry the same information as the n there are."""
        return float(n)


_NOTHING: Mapping[str, str | None] = MappingProxyType({})
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


def at_labels(values: NDArray[Any], labels: I64) -> NDArray[Any]:
    """What is known of each label, (1, K), or of each row, (n, 1), at one label of each row, (n,)."""
    return values[0, labels] if values.shape[1] > 1 else values[:, 0]


# ---------------------------------------------------------------------------------------------------------------
# Parts of the description of a calibration in a file: text that is always the same, and checked


def canonical(content: Any) -> str:
    """JSON text that is the same whenever the content is."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def named_parameters(stored: Any, key: str, what: str) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of a score or of groups; a parameter is one value, or a list of values of one kind.

    NumPy makes strings of numbers beside a string, each as long as the longest: a short list would fill the memory.
    """
    if isinstance(stored, dict) and set(stored) == {key, "parameters"}:
        name, parameters = stored[key], stored["parameters"]
        if isinstance(name, str) and isinstance(parameters, dict) and all(map(_is_plain, parameters.values())):
            return name, parameters
    raise ArtifactError(f"its {what} malformed.")


def _is_plain(value: Any) -> bool:
    kinds = {type(entry) for entry in value} if isinstance(value, list) else {str}
    return not isinstance(value, dict) and (kinds <= {int, float} or kinds == {str})
