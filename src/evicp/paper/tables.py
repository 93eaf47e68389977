"""The paper's tables with measured figures next to the published ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from evicp.evaluation.result import Evaluation, Stratum
from evicp.paper.published import DATASETS, EFFICIENCY, TABLES, TableSettings, figures, lookup
from evicp.paper.trials import PROTOCOLS, Method, Network, Outcome, Protocol, Trials
from evicp.tables import csv_table, markdown_table

#: Digits of a measured figure; the published ones keep theirs.
_DIGITS = {"accuracy": 4, "coverage": 4, "size": 3, "SSCV": 4, "SSCV rows": 1, "SAT": 4, "count": 1}

#: Rows the paper tests in every trial on ImageNet-Val: counts are compared after scaling to it.
_PUBLISHED_TEST_ROWS = 35_000


@dataclass(frozen=True)
class Summary:
    """One figure over trials, NaN where it is undefined (an empty stratum); such trials do not enter."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """What the paper's captions call the median of means."""
        return float(np.nanmedian(self.values))

    @property
    def mean(self) -> float:
        """What the paper's text says is reported."""
        return float(np.nanmean(self.values))

    @property
    def std(self) -> float:
        """The standard deviation over trials."""
        return float(np.nanstd(self.values))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        trials = [None if np.isnan(x) else x for x in self.values]
        return {"median": self.median, "mean": self.mean, "std": self.std, "trials": trials}


@dataclass(frozen=True, eq=False)
class Measured:
    """All trials of one network on one data set, under each protocol."""

    network: Network
    trials: Mapping[Protocol, Trials]

    def outcomes(self, protocol: Protocol, method: Method, coverage: float) -> tuple[Outcome, ...]:
        """One outcome per trial; none where it was not measured."""
        return self.trials[protocol].get((method, coverage), ())


@dataclass(frozen=True)
class Line:
    """One figure: published (None for a network the paper does not have), and measured under each protocol."""

    network: str
    method: str
    stratum: str
    metric: str
    published: float | None
    decimals: int
    measured: Mapping[Protocol, Summary]
    scale: Mapping[Protocol, float]

    def deviation(self, protocol: Protocol) -> float | None:
        """Measured median less published; counts are first scaled to the number of rows the paper tests."""
        if self.published is None or protocol not in self.measured:
            return None
        return self.measured[protocol].median * self.scale.get(protocol, 1.0) - self.published

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        result: dict[str, Any] = {
            "network": self.network,
            "method": self.method,
            "stratum": self.stratum,
            "metric": self.metric,
            "published": self.published,
        }
        for protocol in PROTOCOLS:
            summary = self.measured.get(protocol)
            result[protocol] = summary and {**summary.to_dict(), "deviation": self.deviation(protocol)}
        return result


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper, reproduced."""

    settings: TableSettings
    lines: tuple[Line, ...]
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """The table's number, what it shows, and its coverage."""
        return f"Table {self.settings.number}. {self.settings.title}, coverage {self.settings.coverage:g}"

    def _head(self) -> list[str]:
        strata = [] if self.settings.by == "network" else [self.settings.by]
        each = [f"{p}: {what}" for p in PROTOCOLS for what in ("median", "mean", "sd", "deviation")]
        return ["network", "method", *strata, "metric", "published", *each]

    def _cells(self, line: Line) -> list[str]:
        strata = [] if self.settings.by == "network" else [line.stratum]
        published = "" if line.published is None else f"{line.published:.{line.decimals}f}"
        cells = [line.network, line.method, *strata, line.metric, published]
        digits = _DIGITS[line.metric]
        for protocol in PROTOCOLS:
            summary = line.measured.get(protocol)
            if summary is None:
                cells += [""] * 4
                continue
            deviation = line.deviation(protocol)
            cells += [f"{x:.{digits}f}" for x in (summary.median, summary.mean, summary.std)]
            cells.append("" if deviation is None else f"{deviation:+.{digits}f}")
        return cells

    def rows(self) -> list[list[str]]:
        """The cells as text."""
        return [self._cells(line) for line in self.lines]

    def to_markdown(self) -> str:
        """Markdown, with notes."""
        notes = "\n".join(f"- {note}" for note in self.notes)
        return f"# {self.title}\n\n{markdown_table(self._head(), self.rows())}\n\n{notes}\n"

    def to_csv(self) -> str:
        """The same cells as comma-separated values."""
        return csv_table(self._head(), self.rows())

    def to_json(self) -> str:
        """Every line with every trial."""
        content = {
            "table": self.settings.number,
            "title": self.title,
            "dataset": self.settings.dataset,
            "coverage": self.settings.coverage,
            "notes": list(self.notes),
            "lines": [line.to_dict() for line in self.lines],
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    def to_latex(self) -> str:
        """A longtable with booktabs rules."""
        head = [_latex(cell) for cell in self._head()]
        first = self._head().index("metric") + 1
        body = "\n".join(" & ".join(_latex(cell) for cell in row) + r" \\" for row in self.rows())
        notes = " ".join(_latex(note) for note in self.notes)
        return "\n".join(
            [
                r"% needs \usepackage{booktabs,longtable}",
                rf"\begin{{longtable}}{{{'l' * first}{'r' * (len(head) - first)}}}",
                rf"\caption{{{_latex(self.title)}. {notes}}}\\",
                r"\toprule",
                " & ".join(head) + r" \\",
                r"\midrule",
                r"\endhead",
                body,
                r"\bottomrule",
                r"\end{longtable}",
                "",
            ]
        )

    def to_html(self) -> str:
        """A table element with notes."""
        first = self._head().index("metric") + 1
        top = "".join(f"<th rowspan=2 scope=col class=text>{escape(cell)}</th>" for cell in self._head()[:first])
        top += "<th rowspan=2 scope=col>published</th>"
        groups = "".join(f"<th colspan=4 scope=colgroup class=start>{escape(p)}</th>" for p in PROTOCOLS)
        each = (
            "<th scope=col class=start>median</th><th scope=col>mean</th><th scope=col>sd</th><th scope=col>dev.</th>"
        )
        below = each * len(PROTOCOLS)
        body = "".join(_html_row(row, first) for row in self.rows())
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        head = f"<thead><tr>{top}{groups}</tr><tr>{below}</tr></thead>"
        return f"<table><caption>{escape(self.title)}</caption>{head}<tbody>{body}</tbody></table><ul>{notes}</ul>"


def _html_row(row: list[str], first: int) -> str:
    """A row of the table's body: marked where it is ECP's, faint where nothing was measured."""
    kind = "ecp" if row[1] == "ECP" else "other"
    kind = kind if any(row[first + 1 :]) else "published"
    starts = {first + 1 + 4 * number for number in range(len(PROTOCOLS))}
    names = ["text" if i < first else "start" if i in starts else "" for i in range(len(row))]
    cells = "".join(f"<td{name and f' class={name}'}>{escape(c)}</td>" for name, c in zip(names, row, strict=True))
    return f"<tr class={kind}>{cells}</tr>"


_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_LATEX |= {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": r"\textless{}", ">": r"\textgreater{}"}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


# ---------------------------------------------------------------------------------------------------------------
# Building


def build_tables(measured: Sequence[Measured], reference: Mapping[str, str]) -> tuple[PaperTable, ...]:
    """Tables 1 to 8. `reference` names the network that stands for the paper's ResNet-152 on each data set."""
    return tuple(_build(settings, measured, reference) for settings in TABLES.values())


def _build(settings: TableSettings, measured: Sequence[Measured], reference: Mapping[str, str]) -> PaperTable:
    here = {m.network.title: m for m in measured if m.network.dataset == settings.dataset}
    if settings.by != "network":
        here = {name: m for name, m in here.items() if name == reference.get(settings.dataset)}
    published = dict.fromkeys(f.network for f in figures() if f.table == settings.number)
    names = sorted({**published, **here}, key=lambda name: name not in here)  # what was measured comes first
    lines = [line for name in names for line in _lines(settings, name, here.get(name))]
    return PaperTable(settings, tuple(lines), _notes(settings, here))


def _lines(settings: TableSettings, name: str, measured: Measured | None) -> list[Line]:
    """All lines of one network."""
    if settings.by != "network":
        return [
            _line(settings, name, Method(*method), metric, measured, stratum)
            for stratum in _strata_of(settings, measured)
            for method in settings.methods
            for metric in settings.metrics
        ]
    metrics = list(settings.metrics)
    if measured is not None and "SSCV" in metrics:  # the paper does not print it
        metrics.insert(metrics.index("SSCV") + 1, "SSCV rows")
    first = [_line(settings, name, Method(""), "accuracy", measured)] if settings.metrics == EFFICIENCY else []
    return [
        *first,
        *(_line(settings, name, Method(*m), metric, measured) for m in settings.methods for metric in metrics),
    ]


def _strata_of(settings: TableSettings, measured: Measured | None) -> list[str]:
    """The ranges of a stratified table: the paper's, or those of a network with another number of classes."""
    if measured is None:
        return list(dict.fromkeys(f.stratum for f in figures() if f.table == settings.number))
    evaluation = measured.outcomes("clean", Method("ECP"), settings.coverage)[0].evaluation
    strata = evaluation.size_strata if settings.by == "size" else evaluation.difficulty_strata
    return [s.label for s in strata or ()]


def _line(
    settings: TableSettings, name: str, method: Method, metric: str, measured: Measured | None, stratum: str = ""
) -> Line:
    found = lookup(settings.number, name, method.name, metric, lam=method.lam, stratum=stratum)
    if found is None and metric == "count":
        found = lookup(settings.number, name, "APS/RAPS", metric, stratum=stratum)  # Table 4 prints one for both
    summaries, scale = {}, {}
    figure = _reader(settings, metric, stratum)
    for protocol in PROTOCOLS:
        score = method if method.name else Method("ECP")  # accuracy is that of the network
        outcomes = () if measured is None else measured.outcomes(protocol, score, settings.coverage)
        values = [figure(outcome.evaluation) for outcome in outcomes]
        if any(x is not None for x in values):
            summaries[protocol] = Summary(tuple(np.nan if x is None else float(x) for x in values))
        if metric == "count" and outcomes:
            scale[protocol] = _PUBLISHED_TEST_ROWS / outcomes[0].evaluation.n
    return Line(
        name,
        str(method),
        stratum,
        metric,
        found.value if found else None,
        found.decimals if found else _DIGITS[metric],
        summaries,
        scale,
    )


def _reader(settings: TableSettings, metric: str, stratum: str) -> Callable[[Evaluation], float | None]:
    """How to read a figure off an evaluation."""
    if settings.by == "network":
        attribute = {"size": "mean_size", "SSCV": "sscv", "SSCV rows": "sscv_count", "SAT": "sat"}.get(metric, metric)
        return lambda evaluation: getattr(evaluation, attribute)
    strata = "size_strata" if settings.by == "size" else "difficulty_strata"
    attribute = {"size": "mean_size"}.get(metric, metric)

    def read(evaluation: Evaluation) -> float | None:
        ranges: tuple[Stratum, ...] = getattr(evaluation, strata)
        return next(getattr(s, attribute) for s in ranges if s.label == stratum)

    return read


def _notes(settings: TableSettings, here: Mapping[str, Measured]) -> tuple[str, ...]:
    if not here:
        dataset = DATASETS[settings.dataset]
        return (f"No logits on {dataset} were given: published figures only.",)
    notes = []
    for name, measured in here.items():
        for protocol in PROTOCOLS:
            of_methods = [measured.outcomes(protocol, Method(*m), settings.coverage) for m in settings.methods]
            outcomes = [o for trials in of_methods for o in trials]
            one, conformal = outcomes[0], [o for o in outcomes if o.conformal]
            notes.append(
                f"{name}, {protocol}: {len(of_methods[0])} trials, {one.n_calibration:,} calibration rows, "
                f"{one.evaluation.n:,} test rows; coverage inside its 99.9 % beta-binomial interval in "
                f"{sum(o.compatible for o in conformal)} of {len(conformal)} trials of the conformal methods."
            )
            if ("RAPS", "best") in settings.methods:
                lams = [o.lam for o in measured.outcomes(protocol, Method("RAPS", "best"), settings.coverage)]
                notes.append(f"{name}, {protocol}: lambda chosen {', '.join(f'{lam:g}' for lam in lams if lam)}.")
    if "SSCV" in settings.metrics:
        notes.append("SSCV rows: the number of test rows in the range of set sizes that decides SSCV.")
    if "count" in settings.metrics:
        notes.append(f"Deviations of counts are after scaling to the paper's {_PUBLISHED_TEST_ROWS:,} test rows.")
    return tuple(notes)
