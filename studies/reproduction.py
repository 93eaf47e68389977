"""The paper's methods on the networks at hand, under both protocols, as one page.

`python studies/reproduction.py FILES --page docs/reproduction.md` writes the page; without `--page` it is printed. The
embedded sample stands in where there are no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from evicp.io.atomic import write_whole
from evicp.paper.published import NETWORKS, TABLES, lookup
from evicp.paper.trials import (
    BASE,
    BENCHMARK_RAPS,
    BEST_RAPS,
    DIFFERENCES,
    EVIDENTIAL,
    LEAKS,
    LEAST,
    PLAIN_APS,
    PROTOCOLS,
    Method,
    Network,
    Outcome,
    Protocol,
    Trials,
    run_trials,
)
from evicp.tables import markdown_table
from evicp.types import F64
from study import Logits, embedded, read

_SAPS = Method("SAPS")
METHODS = (BASE, PLAIN_APS, BENCHMARK_RAPS, BEST_RAPS, _SAPS, LEAST, EVIDENTIAL)
COVERAGES = (0.9, 0.95, 0.99)

#: A column's title, the figure of an evaluation that it shows, and its digits.
_COLUMNS = (
    ("coverage", "coverage", 4),
    ("size", "mean_size", 3),
    ("SSCV", "sscv", 3),
    ("SSCV rows", "sscv_count", 0),
    ("SAT", "sat", 3),
)

_RANKED = {"size": "mean_size", "SAT": "sat"}

_INTRODUCTION = """# The paper, reproduced

The paper's methods on the networks at hand. They are not the paper's networks, so no figure can be compared with a
printed one; what can be compared is the order of the methods. [Findings](findings.md) discusses what the paper leaves
open; `evicp reproduce` makes the paper's own tables from files of its networks ([how](extraction.md)).

This page is what `python studies/reproduction.py efficientnet_lite0.npz efficientnet_lite1.npz --page
docs/reproduction.md` writes. With files of your own:

```sh
python studies/reproduction.py --help
```

- Figures are medians over {trials} random splits, as in the paper's captions; 30 % of the rows are calibrated. *As
  released* tests all others. *Clean* leaves out a tenth of the rows, on which it fits the temperature and chooses
  lambda, and gives all methods the same splits.
- *SSCV* is the largest distance of a stratum's coverage from the target; *SSCV rows* is the number of tested rows in
  that stratum. Where they are few, SSCV and SAT are mostly chance.
- RAPS (0.1) has lambda 0.1 and k_reg 5, RAPS (best) the lambda of least SSCV, which is chosen at coverage 0.9 only.
  SAPS, which is not in the paper, has lambda 0.1. Base has no guarantee and is not ranked.
"""


@dataclass(frozen=True)
class Section:
    """One network at one coverage.

    Attributes
    ----------
    title : the network and delta
    rows : the table's cells
    orders : for "size" and "SAT" the methods, best first, under each protocol
    leads : for "size" and "SAT" ECP less LAS on the same splits: the mean over trials and its standard error
    """

    title: str
    rows: tuple[tuple[str, ...], ...]
    orders: Mapping[str, Mapping[Protocol, tuple[str, ...]]]
    leads: Mapping[str, tuple[float, float]]

    def to_markdown(self) -> str:
        """A heading, the table, and the order of the methods."""
        head = ("method", *(f"{p}: {title}" for p in PROTOCOLS for title, _, _ in _COLUMNS))
        lines = [
            f"- By {what}, best first: " + "; ".join(f"{p} {', '.join(order)}" for p, order in orders.items()) + "."
            for what, orders in self.orders.items()
        ]
        lines += [
            f"- Clean, ECP less LAS in {what}, mean over the trials: {mean:+.4f} (standard error {error:.4f})."
            for what, (mean, error) in self.leads.items()
        ]
        return f"### {self.title}\n\n{markdown_table(head, self.rows)}\n\n" + "\n".join(lines) + "\n"


def _values(outcomes: Sequence[Outcome], attribute: str) -> F64:
    """One figure of every trial, NaN where it is undefined."""
    return np.array([getattr(outcome.evaluation, attribute) for outcome in outcomes], float)


def section(name: str, trials: Mapping[Protocol, Trials], coverage: float) -> Section:
    """The table of one network at one coverage."""
    methods = [method for method in METHODS if (method, coverage) in trials["clean"]]
    rows = []
    for method in methods:
        cells = [str(method)]
        for protocol in PROTOCOLS:
            outcomes = trials[protocol][method, coverage]
            cells += [f"{np.nanmedian(_values(outcomes, figure)):.{digits}f}" for _, figure, digits in _COLUMNS]
        rows.append(tuple(cells))
    orders = {
        what: {p: _order(trials[p], methods, coverage, figure) for p in PROTOCOLS} for what, figure in _RANKED.items()
    }
    leads = {what: _lead(trials["clean"], coverage, figure) for what, figure in _RANKED.items()}
    return Section(f"{name}, delta {1 - coverage:.2g}", tuple(rows), orders, leads)


def _order(trials: Trials, methods: Sequence[Method], coverage: float, figure: str) -> tuple[str, ...]:
    """The methods with a guarantee, best first."""
    sign = -1.0 if figure == "sat" else 1.0
    medians = {str(m): sign * np.nanmedian(_values(trials[m, coverage], figure)) for m in methods if m != BASE}
    return tuple(sorted(medians, key=lambda name: medians[name]))


def _lead(trials: Trials, coverage: float, figure: str) -> tuple[float, float]:
    """ECP less LAS: the mean difference over the trials, and its standard error."""
    difference = _values(trials[EVIDENTIAL, coverage], figure) - _values(trials[LEAST, coverage], figure)
    return float(difference.mean()), float(difference.std(ddof=1) / len(difference) ** 0.5)


def _summary(sections: Sequence[Section]) -> str:
    """What the tables say together, counted."""
    lines, total = [], len(sections)
    for what, better in (("size", "smaller"), ("SAT", "higher")):
        same = sum(len(set(s.orders[what].values())) == 1 for s in sections)
        first = {p: sum(s.orders[what][p][0] == "ECP" for s in sections) for p in PROTOCOLS}
        sign = -1.0 if what == "size" else 1.0
        ahead, behind = (sum(side * sign * s.leads[what][0] > s.leads[what][1] for s in sections) for side in (1, -1))
        lines.append(
            f"- By {what}, both protocols order the methods alike in {same} of {total} tables. ECP comes first in "
            f"{first['as released']} as released and in {first['clean']} clean. Clean, its mean {what} is {better} "
            f"than that of LAS by more than a standard error in {ahead}, and worse by as much in {behind}."
        )
    return "**In short**\n\n" + "\n".join(lines) + "\n"


def _published() -> str:
    """The range of the paper's nine networks on ImageNet-Val."""
    rows = []
    for number, metrics in ((1, ("size",)), (6, ("size",)), (5, ("size", "SSCV", "SAT")), (8, ("size", "SSCV", "SAT"))):
        table = TABLES[number]
        for name, lam in table.methods:
            cells = []
            for metric in ("size", "SSCV", "SAT"):
                found = [lookup(number, n, name, metric, lam=lam) for n in NETWORKS.values() if metric in metrics]
                values = [f.value for f in found if f is not None and f.value is not None]
                cells.append(f"{min(values):g} to {max(values):g}" if values else "")
            rows.append((str(number), f"{1 - table.coverage:.2g}", str(Method(name, lam)), *cells))
    head = ("table", "delta", "method", "size", "SSCV", "SAT")
    return (
        f"## Published\n\nThe range over the paper's nine networks on ImageNet-Val.\n\n{markdown_table(head, rows)}\n"
    )


def page(networks: Sequence[Logits], trials: int = 10, seed: int = 0) -> str:
    """The whole page as Markdown."""
    tables, sections = [], []
    for data in networks:
        network = Network(data.name, "val", data.logits, data.labels)
        results = {
            p: run_trials(network, p, trials=trials, seed=seed, reference=True, extra=(LEAST, _SAPS)) for p in PROTOCOLS
        }
        n, n_classes = data.logits.shape
        tables.append(f"## {data.name}\n\n{n:,} rows of {n_classes:,} classes.\n")
        for coverage in COVERAGES:
            sections.append(section(data.name, results, coverage))
            tables.append(sections[-1].to_markdown())
    introduction = _INTRODUCTION.format(trials=trials)
    return "\n".join([introduction, _summary(sections), *tables, _published(), _protocol()])


def _protocol() -> str:
    """What "as released" copies, and what it does not."""
    leaks, differences = ("\n".join(f"- {item}" for item in items) for items in (LEAKS, DIFFERENCES))
    link = "[what it changes](findings.md#what-else-the-released-code-does)"
    return (
        f"## What the released protocol copies\n\n{leaks}\n\n"
        f"What else the released code does is not copied here ({link}):\n\n{differences}\n"
    )


def main(
    logits: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Logits with labels; the embedded sample if none.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Random splits.", min=2)] = 10,
    seed: Annotated[int, typer.Option(help="Which random splits.", min=0)] = 0,
    target: Annotated[Path | None, typer.Option("--page", help="Write this page.")] = None,
) -> None:
    """The paper's methods on networks at hand, under both protocols, at delta 0.1, 0.05 and 0.01."""
    text = page([read(path) for path in logits or ()] or [embedded()], trials, seed)
    if target is None:
        typer.echo(text)
    else:
        write_whole(target, text)


if __name__ == "__main__":
    typer.run(main)
