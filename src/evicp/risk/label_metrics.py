"""Precision, recall, F1 and size of sets of several labels, over all rows and by label."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evicp.report.rule import Section
from evicp.risk.control import RiskEvaluation
from evicp.tables import text_table
from evicp.types import F64, I64, Bools

__all__ = ["MultiLabelEvaluation"]


@dataclass(frozen=True, eq=False, repr=False)
class MultiLabelEvaluation:
    """What sets of several labels are worth, where the true labels are known. Prints as a table.

    Attributes
    ----------
    missed : the mean share of a row's true labels that its set misses, beside what was asked
    precision, recall, f1 : over all labels of all rows together; NaN where there are none
    mean_size : labels per set
    sure_precision, sure_recall : the mean share of a row's sure labels that are true, and the share of all true labels
        that are sure; None where no precision was asked for
    counts : (K,) rows in which each label is true
    label_precision, label_recall, label_f1 : (K,) of each label; NaN where there are none
    names : of the labels, where they are known
    """

    missed: RiskEvaluation
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
        cls, missed: RiskEvaluation, found: Bools, true: Bools, sure: Bools | None, names: tuple[str, ...] | None
    ) -> MultiLabelEvaluation:
        """From membership, truth and sure labels, each (n, K)."""
        hits, sizes, counts = (part.sum(0) for part in (found & true, found, true))
        surely: tuple[float | None, float | None] = (None, None)
        if sure is not None:
            wrong = (sure & ~true).sum(1) / np.maximum(sure.sum(1), 1)
            surely = float(1 - wrong.mean()), float((sure & true).sum() / max(1, true.sum()))
        precision, recall, f1 = map(float, _shares(hits.sum(), sizes.sum(), counts.sum()))
        by_label = _shares(hits, sizes, counts)
        return cls(missed, precision, recall, f1, missed.mean_size, *surely, counts, *by_label, names)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        result = asdict(self)
        result["missed"] = self.missed.to_dict()
        for name in ("counts", "label_precision", "label_recall", "label_f1"):
            result[name] = getattr(self, name).tolist()
        return result

    @property
    def kept(self) -> bool:
        """Whether the share of missed labels agrees with what was asked."""
        return self.missed.kept

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
        return ["labels of least recall", "rows", "precision", "recall", "F1"], rows

    @property
    def sections(self) -> tuple[Section, ...]:
        """What a page shows of the labels."""
        text = f"Over all labels of all rows: {'; '.join(self._figures())}."
        return (Section("Precision and recall", text, table=self._table(100)),)

    def __str__(self) -> str:
        return "\n".join([f"missed: {self.missed}", *self._figures(), "", text_table(*self._table(10))])

    __repr__ = __str__


def _shares(hits: Any, sizes: Any, counts: Any) -> tuple[F64, F64, F64]:
    """Precision, recall and F1 from counts."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.divide(hits, sizes), np.divide(hits, counts), np.divide(2 * hits, sizes + counts)
