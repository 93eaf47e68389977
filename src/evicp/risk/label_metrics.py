"""Precision, recall, F1 and size of sets of several labels, over all rows and by label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evicp.calibration.reliability import Reliability
from evicp.input import validate
from evicp.input.messages import some_of
from evicp.report.rule import Section
from evicp.risk.control import RiskEvaluation
from evicp.tables import text_table
from evicp.types import F64, I64, Bools

__all__ = ["LabelRecalls", "MultiLabelEvaluation"]


@dataclass(frozen=True, eq=False, repr=False)
class LabelRecalls:
    """Whether each label is missed at most as often as allowed, if each has its own threshold.

    Attributes
    ----------
    asked : the share of a label's rows that may lack it
    confidence : of the verdict, on all labels together
    counts, lost : (K,) rows in which each label is true, and how many of these lack it
    over : the labels that are missed more often than chance explains, given how much calibration and test rows vary
    """

    asked: float
    confidence: float
    counts: I64
    lost: I64
    over: tuple[str, ...]

    @classmethod
    def of(
        cls,
        counts: I64,
        lost: I64,
        laws: Sequence[Reliability | None],
        asked: float,
        confidence: float,
        names: tuple[str, ...] | None,
    ) -> LabelRecalls:
        """From counts, and the law of each label's coverage; None of labels that are in every set."""
        sure = validate.as_probability(confidence, "confidence")
        wider = 1 - (1 - sure) / max(1, int(np.count_nonzero(counts)))
        over = [
            names[label] if names else str(label)
            for label, (law, m, missed) in enumerate(zip(laws, counts.tolist(), lost.tolist(), strict=True))
            if law is not None and m and not law.compatible(1 - missed / m, m, wider, at_least=True).kept
        ]
        return cls(asked, sure, counts, lost, tuple(over))

    @property
    def kept(self) -> bool:
        """Whether no label is missed too often."""
        return not self.over

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        own = {"asked": self.asked, "confidence": self.confidence, "kept": self.kept, "over": list(self.over)}
        return {**own, "counts": self.counts.tolist(), "lost": self.lost.tolist()}

    def __str__(self) -> str:
        share = self.lost.sum() / max(1, self.counts.sum())
        verdict = f"is MORE than {self.asked:g} in {some_of(self.over)}" if self.over else f"agrees with {self.asked:g}"
        return f"missed in {share:.4g} of {self.counts.sum():,} rows of labels, which {verdict} of each label"

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False)
class MultiLabelEvaluation:
    """The evaluation of multi-label sets on rows with known labels. Prints as a table.

    Attributes
    ----------
    missed : the mean share of a row's true labels that its set misses, compared with the allowed share
    by_label : whether each label is missed at most as often as allowed, if each has its own threshold; else None
    precision, recall, f1 : over all labels of all rows together; NaN where there are none
    mean_size : labels per set
    sure_precision, sure_recall : the mean share of a row's sure labels that are true, and the share of all true labels
        that are sure; None without a precision
    counts : (K,) rows in which each label is true
    label_precision, label_recall, label_f1 : (K,) of each label; NaN where there are none
    names : of the labels, where they are known
    """

    missed: RiskEvaluation
    by_label: LabelRecalls | None
    precision: float
    recall: float
    f1: float
    mean_size: float
    sure_precision: float | None
    sure_recall: float | None
    counts: I64
    label_precision: F64
    label_recall: F64
    label_f1: F64
    names: tuple[str, ...] | None

    @classmethod
    def of(
        cls,
        missed: RiskEvaluation,
        by_label: LabelRecalls | None,
        found: Bools,
        true: Bools,
        sure: Bools | None,
        names: tuple[str, ...] | None,
    ) -> MultiLabelEvaluation:
        """From membership, truth and sure labels, each (n, K)."""
        hits, sizes, counts = (part.sum(0) for part in (found & true, found, true))
        surely: tuple[float | None, float | None] = (None, None)
        if sure is not None:
            wrong = (sure & ~true).sum(1) / np.maximum(sure.sum(1), 1)
            surely = float(1 - wrong.mean()), float((sure & true).sum() / max(1, true.sum()))
        precision, recall, f1 = map(float, _shares(hits.sum(), sizes.sum(), counts.sum()))
        of_labels = _shares(hits, sizes, counts)
        return cls(missed, by_label, precision, recall, f1, missed.mean_size, *surely, counts, *of_labels, names)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        result = asdict(self)
        result["missed"] = self.missed.to_dict()
        result["by_label"] = self.by_label and self.by_label.to_dict()
        for name in ("counts", "label_precision", "label_recall", "label_f1"):
            result[name] = getattr(self, name).tolist()
        return result

    @property
    def kept(self) -> bool:
        """Whether the share of missed labels agrees with the target, for each label if each has its own threshold."""
        return (self.missed if self.by_label is None else self.by_label).kept

    def _figures(self) -> list[str]:
        lines = [f"precision {self.precision:.4f}, recall {self.recall:.4f}, F1 {self.f1:.4f}"]
        if self.sure_precision is not None:
            lines.append(f"sure labels: {self.sure_precision:.4f} true, {self.sure_recall:.4f} of all true labels")
        return lines

    def _table(self, most: int) -> tuple[list[str], list[list[str]]]:
        """The labels of least recall."""
        shown = np.argsort(self.label_recall, kind="stable")[:most]
        rows = [
            [
                self.names[i] if self.names else str(i),
                f"{self.counts[i]:,}",
                *(f"{part[i]:.3f}" for part in (self.label_precision, self.label_recall, self.label_f1)),
            ]
            for i in shown.tolist()
        ]
        return ["labels with the lowest recall", "rows", "precision", "recall", "F1"], rows

    @property
    def sections(self) -> tuple[Section, ...]:
        """What a page shows of the labels."""
        text = f"Over all labels of all rows: {'; '.join(self._figures())}."
        return (Section("Precision and recall", text, table=self._table(100)),)

    def __str__(self) -> str:
        missed = f"missed: {self.missed}" if self.by_label is None else str(self.by_label)
        return "\n".join([missed, *self._figures(), "", text_table(*self._table(10))])

    __repr__ = __str__


def _shares(hits: Any, sizes: Any, counts: Any) -> tuple[F64, F64, F64]:
    """Precision, recall and F1 from counts."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.divide(hits, sizes), np.divide(hits, counts), np.divide(2 * hits, sizes + counts)
