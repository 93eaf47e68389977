"""Why is this label in the set? Every ingredient of its cost, label by label."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.calibration import Calibration
from evicp.calibration.comparing import comparable
from evicp.errors import InputError, InputTypeError, LogitsError
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis, ClassNames, in_class_order
from evicp.kernels.arithmetic import precision_of
from evicp.method import evidence
from evicp.method.scores import ECP
from evicp.tables import html_table, text_table
from evicp.types import F64, I64, Bools, Coverage

__all__ = ["Explanation", "explain", "explain_set"]


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The ingredients of each label's cost in one row, (K,) arrays in label order. Prints the best labels first.

    Attributes
    ----------
    logit : z
    evidence : e = A(z) (Definition 1)
    belief : b = e / alpha_0 (Eq. 3)
    probability : p = alpha / alpha_0 (Eq. 2)
    focal_uncertainty : U = u pi, the label's share of the uncertainty (Eq. 5)
    surprisal : I = -ln p (Eq. 6)
    focal_surprisal : U I / p (Eq. 7)
    utility : phi, which is softmax(z / T) unless the score has another
    expected_utility : phi p (Eq. 8)
    rank : r, how many labels lie strictly above
    score : ln S (Eq. 11); lower is more plausible
    uncertainty : u of the row, one number (Eq. 3)
    threshold : the largest score in the set, one number or one per label; None where it is not known
    class_names : K names, or None
    utility_name : what the utility is called in tables
    """

    logit: F64
    evidence: F64
    belief: F64
    probability: F64
    focal_uncertainty: F64
    surprisal: F64
    focal_surprisal: F64
    utility: F64
    expected_utility: F64
    rank: I64
    score: F64
    uncertainty: float
    threshold: float | F64 | None = None
    class_names: tuple[str, ...] | None = None
    utility_name: str = "softmax"

    @property
    def in_set(self) -> Bools | None:
        """Which labels are in the set, (K,); None where no threshold is known."""
        return None if self.threshold is None else self.score <= self.threshold

    @property
    def headline(self) -> str:
        """The row's uncertainty, and what decides who is in the set."""
        bound = ""
        if self.threshold is not None:
            of_all = isinstance(self.threshold, float)
            bound = f"; in the set if ln score <= {f'{self.threshold:.4f}' if of_all else 'threshold'}"
        return f"uncertainty u = {self.uncertainty:.4f}{bound}"

    @property
    def order(self) -> I64:
        """Labels from the most to the least plausible."""
        return np.lexsort((-self.logit, self.score))

    def table(self, top: int = 10) -> str:
        """The best `top` labels as text, and which of them are in the set where a threshold is known."""
        return text_table(*self._table(top))

    @property
    def note(self) -> str:
        """What the two probabilities of the table are."""
        own = (
            "softmax: the network's probability, at the score's temperature.\n"
            if self.utility_name == "softmax"
            else ""
        )
        return f"{own}Dirichlet p: spread over all {len(self.score):,} labels, so it is small where these are many."

    def _table(self, top: int = 10) -> tuple[list[str], list[list[str]]]:
        head = ["label", "logit", "evidence", "belief", "Dirichlet p", self.utility_name, "ln score"]
        if isinstance(self.threshold, np.ndarray):
            head.append("threshold")
        if self.threshold is not None:
            head.append("in set")
        return head, [self._row(int(label)) for label in self.order[:top]]

    def _row(self, label: int) -> list[str]:
        name = f"{label} {self.class_names[label]}" if self.class_names else str(label)
        sizes = [_fixed(value[label], 3) for value in (self.logit, self.evidence)]
        shares = [_fixed(value[label], 5) for value in (self.belief, self.probability, self.utility)]
        row = [name, *sizes, *shares, f"{self.score[label]:.4f}"]
        if isinstance(self.threshold, np.ndarray):
            row.append(f"{self.threshold[label]:.4f}")
        if self.in_set is not None:
            row.append("yes" if self.in_set[label] else "no")
        return row

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """The row's uncertainty and threshold, and the ingredients of the best `top` labels, or of all, ready for JSON.

        >>> explain([2.0, 1.0, -1.0], ECP(), threshold=-5.0).to_dict(1)["labels"][0]["in_set"]
        True
        """
        columns = {name: values.tolist() for name, values in vars(self).items() if isinstance(values, np.ndarray)}
        if self.in_set is not None:
            columns["threshold"] = np.broadcast_to(np.asarray(self.threshold), self.score.shape).tolist()
            columns["in_set"] = self.in_set.tolist()
        if self.class_names is not None:
            columns["name"] = list(self.class_names)
        order = self.order[:top].tolist()
        labels = [{"label": label, **{name: values[label] for name, values in columns.items()}} for label in order]
        of_all = self.threshold if isinstance(self.threshold, float) else None
        return {"threshold": of_all, "uncertainty": self.uncertainty, "labels": labels}

    def __repr__(self) -> str:
        return f"{self.headline}\n{self.table()}\n{self.note}"

    def _repr_html_(self) -> str:
        return f"{html_table(*self._table(), caption=self.headline)}<p>{escape(self.note)}</p>"


def _fixed(value: float, digits: int) -> str:
    """A number with so many decimals, which stand under one another; a huge one with fewer."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.4g}"


def explain(
    logits_row: Any,
    score: ECP | None = None,
    *,
    threshold: float | F64 | None = None,
    class_names: ClassNames | None = None,
) -> Explanation:
    """Every ingredient of every label's evidential cost in one row of logits.

    Parameters
    ----------
    logits_row : (K,) or (1, K)
    score : the ECP whose parameters to use; the default one if None
    threshold : says which labels are in the set: `calibration.threshold(0.9)`, or one number per label, (K,)
        It is a threshold of one score, which must then be given: `calibration.score`. `explain_set` takes the
        calibration itself.
    class_names : K names, optional

    >>> explain([2.0, 1.0, -1.0])
    uncertainty u = 0.5000
    label   logit  evidence   belief  Dirichlet p  softmax  ln score
    -----  ------  --------  -------  -----------  -------  --------
    0       2.000     2.000  0.33333      0.50000  0.70538   -7.2455
    1       1.000     1.000  0.16667      0.33333  0.25950   -4.5686
    2      -1.000     0.000  0.00000      0.16667  0.03512    0.0000
    softmax: the network's probability, at the score's temperature.
    Dirichlet p: spread over all 3 labels, so it is small where these are many.
    """
    if score is None and threshold is not None:
        raise InputError(
            "a threshold is one of the score it was calibrated with; give that score too: explain(logits_row, "
            "calibration.score, threshold=...), or use explain_set(calibration, logits_row, coverage)."
        )
    array, score = _one_row(logits_row), _evidential(score)
    names = ClassAxis.of(class_names, array.shape[1]).learned(logits_row).names
    return _explain(array, score, _as_threshold(threshold, array.shape[1]), names)


def _one_row(logits_row: Any) -> NDArray[Any]:
    array = validate.as_logits(logits_row, row_allowed=True)
    if len(array) != 1:
        raise LogitsError(f"explain takes one row of logits; got {len(array)}. Pass logits[i].")
    return array


def _evidential(score: Any) -> ECP:
    if score is not None and not isinstance(score, ECP):
        raise InputTypeError(f"only the evidential score can be explained; got {score!r}. Pass ECP(...).")
    return ECP() if score is None else score


def _explain(
    array: NDArray[Any], score: ECP, threshold: float | F64 | None, names: tuple[str, ...] | None
) -> Explanation:
    ((_, z),) = validate.blocks(array)
    rates = score.rates(z.shape[1])
    e = score.evidence_of(z)
    alpha = evidence.dirichlet(e, rates)
    p, u = evidence.probability(alpha), evidence.uncertainty(alpha)
    focal = evidence.focal_uncertainty(u, rates, z.shape[1]) * np.ones_like(p)
    surprisal = evidence.surprisal(alpha)
    phi = np.where(z == -np.inf, 0.0, np.exp(score.log_utility_of(z)))
    return Explanation(
        logit=z[0],
        evidence=e[0],
        belief=evidence.belief(e, alpha)[0],
        probability=p[0],
        focal_uncertainty=focal[0],
        surprisal=surprisal[0],
        focal_surprisal=evidence.focal_surprisal(focal, surprisal, p)[0],
        utility=phi[0],
        expected_utility=evidence.expected_utility(phi, p)[0],
        rank=evidence.evidential_ranks(e, z, rates)[0],
        score=score.scores(array)[
            0
        ],  # by the code that makes a calibration's scores, so that the threshold decides the same
        uncertainty=float(u[0, 0]),
        threshold=threshold,
        class_names=names,
        utility_name="softmax" if score.utility is None else "utility",
    )


def explain_set(
    calibration: Calibration, logits_row: Any, coverage: Coverage, *, confidence: float | None = None
) -> Explanation:
    """One row's explanation under a calibration: its labels are in the set exactly when `predict` says so.

    Parameters
    ----------
    calibration : of the evidential score, marginal or by class
    logits_row : (K,) or (1, K)
    coverage, confidence : of the set, as for `Calibration.predict`

    >>> from evicp import calibrate
    >>> calibration = calibrate([[2.0, 1.0, 0.0], [1.0, 1.5, 0.3], [0.5, 3.0, 1.0], [1.0, 0.8, 0.5]], [0, 1, 1, 1])
    >>> explain_set(calibration, [2.0, 1.0, -1.0], coverage=0.6).in_set.tolist()
    [True, True, False]
    """
    if calibration.guarantee not in ("marginal", "class"):
        kind = calibration.guarantee if calibration.guarantee == "weighted" else f"by {calibration.guarantee}"
        raise InputError(
            f"only marginal calibrations and those by class can be explained; this one is {kind}, and its threshold "
            "depends on the row."
        )
    ClassAxis.known_to(calibration).check(logits_row)
    array = validate.as_logits(logits_row, calibration.n_classes, row_allowed=True)
    own, row = comparable(calibration, array, precision_of(logits_row, array))
    limits, names = own.label_thresholds(coverage, confidence), calibration.class_names
    return explain(row, calibration.score, threshold=limits, class_names=names)  # type: ignore[arg-type]


def _as_threshold(threshold: Any, n_classes: int) -> float | F64 | None:
    """One threshold, or one per label."""
    if threshold is None:
        return None
    array = convert.as_array(in_class_order(threshold, "threshold"), "threshold")
    if array.dtype.kind not in "fiu" or np.isnan(array).any():
        raise InputError(f"threshold must be a number, or one per class, and not NaN; got {threshold!r}.")
    array = array.astype(np.float64)
    if array.size == 1:
        return float(array.item())
    if array.shape != (n_classes,):
        raise InputError(f"threshold must be one number, or one per class; got shape {array.shape} for {n_classes}.")
    return array
