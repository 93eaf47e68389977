"""Explanations: the parts of each label's score, and the threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evicp import kernels
from evicp.calibration.calibration import Calibration
from evicp.calibration.new_rows import Request, limits_of_row
from evicp.errors import InputError, LogitsError
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis, ClassNames, in_class_order
from evicp.method.scores import ECP, Score, ScoreLike, as_score
from evicp.tables import html_table, text_table
from evicp.types import F64, I64, Bools, Coverage, Smoothed

__all__ = ["Explanation", "explain", "explain_set"]

#: The columns of tables of the evidential score; those of others are their ingredients.
_EVIDENTIAL = ("evidence", "belief", "probability", "utility")
#: What ingredients are called in tables, where that is not their name.
_TITLES: Mapping[str, str] = MappingProxyType({"uncertainty": "uncertainty u"})


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The parts of each label's score in one row, as (K,) arrays in label order. Prints the best labels first.

    The parts are attributes, too. For ECP: `evidence`, e = A(z) (Definition 1); `belief`, b = e / alpha_0 (Eq. 3);
    `probability`, p = alpha / alpha_0 (Eq. 2); `focal_uncertainty`, U = u pi (Eq. 5); `surprisal`, I = -ln p (Eq. 6);
    `focal_surprisal`, U I / p (Eq. 7); `utility`, phi, softmax(z / T) unless the score has another;
    `expected_utility`, phi p (Eq. 8); `rank`, r, how many labels lie strictly above; `uncertainty`, u of the row, one
    number (Eq. 3). Of other scores, as their formula needs them: `probability`, softmax(z / T); `mass_above`, the
    probability of all labels above; `rank`, from 1; `penalty`; `top_share`, what the largest probability counts;
    `best_other`, the largest probability of other labels; `v`, the random number of the row, 1 if there is none.

    Attributes
    ----------
    of : the score
    logit : z
    score : of each label; lower is more plausible. Of ECP it is ln S (Eq. 11)
    ingredients : the parts of the score, by name: (K,) arrays
    of_row : the parts that all labels share, by name: numbers
    threshold : the largest score in the set, one number or one per label; None if unknown
    class_names : K names, or None
    """

    of: Score
    logit: F64
    score: F64
    ingredients: Mapping[str, NDArray[Any]] = field(default_factory=lambda: MappingProxyType({}))
    of_row: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    threshold: float | F64 | None = None
    class_names: tuple[str, ...] | None = None

    def __getattr__(self, name: str) -> Any:
        for values in (vars(self).get("ingredients", {}), vars(self).get("of_row", {})):
            if name in values:
                return values[name]
        known = ", ".join((*vars(self).get("ingredients", ()), *vars(self).get("of_row", ())))
        raise AttributeError(f"this explanation has no {name!r}; its ingredients are {known or 'not known'}.")

    @property
    def in_set(self) -> Bools | None:
        """Which labels are in the set, (K,); None where no threshold is known."""
        return None if self.threshold is None else self.score <= self.threshold

    @property
    def _title(self) -> str:
        return "ln score" if isinstance(self.of, ECP) else "score"

    @property
    def headline(self) -> str:
        """The score, the numbers of the row, and which labels are in the set."""
        numbers = [f"{_TITLES.get(name, name)} = {value:.4f}" for name, value in self.of_row.items()]
        facts = [", ".join(numbers if isinstance(self.of, ECP) else [self.of.describe(), *numbers])]
        if self.threshold is not None:
            bound = f"{self.threshold:.4f}" if isinstance(self.threshold, float) else "threshold"
            facts.append(f"in the set if {self._title} <= {bound}")
        return "; ".join(facts)

    @property
    def order(self) -> I64:
        """Labels from the most to the least plausible."""
        return np.lexsort((-self.logit, self.score))

    def table(self, top: int = 10) -> str:
        """The best `top` labels as text, and which of them are in the set, if the threshold is known."""
        return text_table(*self._table(top))

    @property
    def note(self) -> str:
        """The kind of probabilities in the table, and the formula of the score."""
        if isinstance(self.of, ECP):
            own = "" if self.of.utility else "softmax: the network's probability, at the score's temperature.\n"
            return f"{own}Dirichlet p: spread over all {len(self.score):,} labels, so it is small for many labels."
        known = "probability: softmax, at the score's temperature.\n" if "probability" in self.ingredients else ""
        equation = self.of.equation
        return f"{known}score = {equation}." if equation else f"{known}The score is a user-defined function."

    def _columns(self) -> dict[str, NDArray[Any]]:
        """The ingredients that tables show, by title."""
        if not isinstance(self.of, ECP):
            return {_TITLES.get(name, name.replace("_", " ")): values for name, values in self.ingredients.items()}
        utility = "softmax" if self.of.utility is None else "utility"
        titles = ("evidence", "belief", "Dirichlet p", utility)
        return {title: self.ingredients[name] for title, name in zip(titles, _EVIDENTIAL, strict=True)}

    def _table(self, top: int = 10) -> tuple[list[str], list[list[str]]]:
        head = ["label", "logit", *self._columns(), self._title]
        if isinstance(self.threshold, np.ndarray):
            head.append("threshold")
        if self.threshold is not None:
            head.append("in set")
        return head, [self._row(int(label)) for label in self.order[:top]]

    def _row(self, label: int) -> list[str]:
        name = f"{label} {self.class_names[label]}" if self.class_names else str(label)
        row = [name, _fixed(self.logit[label], 3)]
        row += [_fixed(values[label], _decimals(title, values)) for title, values in self._columns().items()]
        row.append(f"{self.score[label]:.4f}")
        if isinstance(self.threshold, np.ndarray):
            row.append(f"{self.threshold[label]:.4f}")
        if self.in_set is not None:
            row.append("yes" if self.in_set[label] else "no")
        return row

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """The row's numbers and threshold, and the parts of the best `top` labels, or of all, ready for JSON.

        >>> explain([2.0, 1.0, -1.0], ECP(), threshold=-5.0).to_dict(1)["labels"][0]["in_set"]
        True
        """
        arrays = {"logit": self.logit, **self.ingredients, "score": self.score}
        columns = {name: values.tolist() for name, values in arrays.items()}
        if self.in_set is not None:
            columns["threshold"] = np.broadcast_to(np.asarray(self.threshold), self.score.shape).tolist()
            columns["in_set"] = self.in_set.tolist()
        if self.class_names is not None:
            columns["name"] = list(self.class_names)
        order = self.order[:top].tolist()
        labels = [{"label": label, **{name: values[label] for name, values in columns.items()}} for label in order]
        of_all = self.threshold if isinstance(self.threshold, float) else None
        return {"score": self.of.describe(), "threshold": of_all, **self.of_row, "labels": labels}

    def __repr__(self) -> str:
        return f"{self.headline}\n{self.table()}\n{self.note}"

    def _repr_html_(self) -> str:
        return f"{html_table(*self._table(), caption=self.headline)}<p>{escape(self.note)}</p>"


def _decimals(title: str, values: NDArray[Any]) -> int:
    """How many decimals a column has: none of ranks, and more of probabilities than of evidence."""
    return 0 if values.dtype.kind in "iu" else 3 if title == "evidence" else 5


def _fixed(value: float, digits: int) -> str:
    """A number with so many decimals, which stand under one another; a huge one with fewer."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.4g}"


def explain(
    logits_row: ArrayLike,
    score: ScoreLike | None = None,
    *,
    threshold: float | F64 | None = None,
    class_names: ClassNames | None = None,
) -> Explanation:
    """All parts of every label's score in one row of logits.

    `Calibration.explain` also says which labels are in the set.

    Parameters
    ----------
    logits_row : (K,) or (1, K)
    score : a name, a score or a callable; ECP if None
    threshold : decides which labels are in the set: one number, or one per label, (K,)
        It belongs to one score, which must be given, too. `Calibration.explain` takes both from the calibration.
    class_names : K names, optional

    >>> explain([2.0, 1.0, -1.0])
    uncertainty u = 0.5000
    label   logit  evidence   belief  Dirichlet p  softmax  ln score
    -----  ------  --------  -------  -----------  -------  --------
    0       2.000     2.000  0.33333      0.50000  0.70538   -5.7664
    1       1.000     1.000  0.16667      0.33333  0.25950   -3.1393
    2      -1.000     0.000  0.00000      0.16667  0.03512    0.0000
    softmax: the network's probability, at the score's temperature.
    Dirichlet p: spread over all 3 labels, so it is small for many labels.
    """
    if score is None and threshold is not None:
        raise InputError(
            "a threshold belongs to the score it was calibrated with; pass that score too: explain(logits_row, "
            "calibration.score, threshold=...), or use calibration.explain(logits_row, coverage)."
        )
    array = _one_row(logits_row)
    names = ClassAxis.of(class_names, array.shape[1]).learned(logits_row).names
    chosen = ECP() if score is None else as_score(score, conformal=False)
    return _explain(array, chosen, _as_threshold(threshold, array.shape[1]), names)


def _one_row(logits_row: Any, n_classes: int | None = None) -> NDArray[Any]:
    array = validate.as_logits(logits_row, n_classes, row_allowed=True)
    if len(array) != 1:
        raise LogitsError(f"explain takes one row of logits; got {len(array)}. Pass logits[i].")
    return array


def _explain(
    array: NDArray[Any], score: Score, threshold: float | F64 | None, names: tuple[str, ...] | None
) -> Explanation:
    ((_, z),) = validate.blocks(array)
    found = {name: np.asarray(values) for name, values in score.ingredients(z).items()}
    return Explanation(
        of=score,
        logit=z[0],
        # By the code that makes a calibration's scores, so that the threshold decides the same.
        score=kernels.dense_scores(score, array)[0],
        ingredients={name: values[0] for name, values in found.items() if values.shape == z.shape},
        of_row={name: float(values.item()) for name, values in found.items() if values.size == 1},
        threshold=threshold,
        class_names=names,
    )


def explain_set(
    calibration: Calibration,
    logits_row: ArrayLike,
    coverage: Coverage = 0.9,
    *,
    confidence: float | None = None,
    groups: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    smoothed: Smoothed = False,
) -> Explanation:
    """One row's explanation under a calibration: its labels are in the set exactly when `predict` says so.

    Parameters
    ----------
    calibration : of any score and guarantee
    logits_row : (K,) or (1, K)
    coverage, confidence, groups, weights, smoothed : of the set, as for `Calibration.predict`

    >>> from evicp import calibrate
    >>> calibration = calibrate([[2.0, 1.0, 0.0], [1.0, 1.5, 0.3], [0.5, 3.0, 1.0], [1.0, 0.8, 0.5]], [0, 1, 1, 1])
    >>> explain_set(calibration, [2.0, 1.0, -1.0], coverage=0.6).in_set.tolist()
    [True, False, False]
    """
    _one_row(logits_row, calibration.n_classes)
    request = Request(logits_row, groups, weights, smoothed=smoothed)
    row, limits = limits_of_row(calibration, coverage, confidence, request)
    limit = np.asarray(limits, np.float64).reshape(-1)
    of_all = float(limit[0]) if limit.size == 1 else limit
    return _explain(row, calibration.score, of_all, calibration.class_names)


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
