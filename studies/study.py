"""What the studies share: one network's logits, tables of findings, scores compared on the same splits."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from evicp.datasets import load_imagenet_sample
from evicp.errors import FileError, InputError, SuspiciousInputWarning
from evicp.evaluation.compare import COLUMNS, Comparison, compare
from evicp.evaluation.tuning import Tuned
from evicp.input.classes import labelled
from evicp.input.warn import are_probabilities
from evicp.io.files import read_logits
from evicp.method.scores import ECP, Score
from evicp.tables import markdown_table, text_table
from evicp.types import F64, I64, Bools


@dataclass(frozen=True, eq=False)
class Logits:
    """One network's outputs under a short name."""

    name: str
    logits: NDArray[Any]
    labels: I64

    @property
    def raw(self) -> bool:
        """Whether these are logits; log-probabilities have lost the rows' offset and with it the relu evidence."""
        return not are_probabilities(np.exp(np.asarray(self.logits[:1024], np.float64)))


@dataclass(frozen=True)
class Finding:
    """A table with a title; prints as text or Markdown."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"{self.title}\n\n{text_table(self.head, self.rows)}\n"

    def to_markdown(self) -> str:
        """The finding as Markdown."""
        return f"**{self.title}**\n\n{markdown_table(self.head, self.rows)}\n"


def into(page: str, finding: Finding) -> str:
    """A page with the finding between `<!-- finding: name -->` and `<!-- end -->`, in place of what was there."""
    start = f"<!-- finding: {finding.name} -->\n"
    before, found, rest = page.partition(start)
    _, end, after = rest.partition("<!-- end -->")
    if not found or not end:
        raise InputError(f"the page has no place for {finding.name}: {start.strip()} and <!-- end -->.")
    return f"{before}{start}\n{finding.to_markdown()}\n{end}{after}"


def read(path: str) -> Logits:
    """Logits with labels from a file, called after it."""
    file = read_logits(path)
    if file.labels is None:
        raise FileError(f"cannot study {path}: it holds no labels.")
    return Logits(Path(path).stem, *labelled(file.logits, file.labels))


def embedded() -> Logits:
    """The embedded sample."""
    sample = load_imagenet_sample()
    return Logits("embedded", sample.logits, sample.labels)


# ---------------------------------------------------------------------------------------------------------------
# Comparing on paired splits


def published(**parameters: Any) -> ECP:
    """The evidential score as its authors' code has it: a stabilizer of 1e-8 at any number of classes."""
    return ECP(stabilizer=1e-8, **parameters)


METRIC_HEAD = tuple(title for title, _, _ in COLUMNS)


@contextmanager
def log_probabilities_accepted() -> Iterator[None]:
    """Some networks give log-probabilities, which are studied on purpose: the findings say what that means."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspiciousInputWarning)
        yield


def compared(
    data: Logits, scores: Sequence[Score | Tuned], coverage: float = 0.9, trials: int = 100, **options: Any
) -> Comparison:
    """Scores on the same random splits."""
    with log_probabilities_accepted():
        comparison = compare(data.logits, data.labels, scores, coverage, trials=trials, **options)
    short = {name: re.sub(r"(, )?stabilizer=1e-08", "", name).replace("()", "") for name in comparison.evaluations}
    if len(set(short.values())) < len(short):  # published and default score are compared
        return comparison
    return replace(comparison, evaluations={short[name]: found for name, found in comparison.evaluations.items()})


def metric_rows(
    data: Logits, scores: Mapping[str, Score], coverage: float = 0.9, trials: int = 100, **options: Any
) -> Iterator[tuple[str, ...]]:
    """(network, title, coverage, size, SSCV, SAT) of each score: means over paired splits."""
    comparison = compared(data, list(scores.values()), coverage, trials, **options)
    for title, name in zip(scores, comparison.evaluations, strict=True):
        yield (data.name, title, *(f"{comparison.mean(name, m):.{digits}f}" for _, m, digits in COLUMNS))


def paired(comparison: Comparison, first: str, second: str, metric: str) -> tuple[float, float, int]:
    """Mean difference, its standard error, and in how many trials the first is no worse: as good counts, too."""
    difference = comparison.values(first, metric) - comparison.values(second, metric)
    difference = difference[np.isfinite(difference)]
    no_worse = difference >= 0 if metric == "sat" else difference <= 0
    return float(difference.mean()), float(difference.std(ddof=1) / len(difference) ** 0.5), int(no_worse.sum())


def triples(comparison: Comparison) -> list[str]:
    """Size / SSCV / SAT of each score."""
    return [
        f"{comparison.mean(name, 'mean_size'):.2f} / {comparison.mean(name, 'sscv'):.3f} / "
        f"{comparison.mean(name, 'sat'):.3f}"
        for name in comparison.evaluations
    ]


# ---------------------------------------------------------------------------------------------------------------
# Statistics


def auroc(value: NDArray[Any], positive: Bools) -> float:
    """The chance that a positive row has the larger value; ties count half."""
    ranks = rankdata(value)
    n_positive = int(positive.sum())
    above = ranks[positive].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * (len(value) - n_positive)))


def auroc_interval(unknown: F64, known: F64, resamples: int = 500) -> str:
    """The AUROC of a value for unknown rows, with its bootstrap interval over the rows of both kinds."""
    rng, values = np.random.default_rng(0), []
    for draw in range(resamples + 1):
        pair = [rng.choice(rows, len(rows)) if draw else rows for rows in (unknown, known)]
        values.append(auroc(np.concatenate(pair), np.arange(len(unknown) + len(known)) < len(unknown)))
    low, high = np.quantile(values[1:], (0.025, 0.975))
    return f"{values[0]:.3f} [{low:.3f}, {high:.3f}]"


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's correlation."""
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])
