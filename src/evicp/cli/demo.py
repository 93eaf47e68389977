"""`evicp demo`: the embedded ImageNet logits, compared, certified and shown."""

from __future__ import annotations

import sys
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import evicp
from evicp.datasets import LogitsSample, load_imagenet_sample
from evicp.selection import Comparison
from evicp.sets import PredictionSets

__all__ = ["demo"]


def demo(
    coverage: Annotated[float, typer.Option(help="The coverage to ask for.")] = 0.9,
    trials: Annotated[int, typer.Option(help="Random splits to compare the scores on.")] = 10,
    seed: Annotated[int, typer.Option(help="Which random splits.")] = 0,
) -> None:
    """Compare the scores on embedded real ImageNet logits, show a certificate and a few sets. Offline."""
    console = Console() if sys.stdout.isatty() else Console(width=110)
    sample = load_imagenet_sample()
    n, n_classes = sample.logits.shape
    console.print(
        f"\nEmbedded sample: EfficientNet-Lite1 logits of {n:,} ImageNet validation images, {n_classes:,} classes\n"
    )
    with console.status("comparing the scores"):
        comparison = evicp.compare(
            sample.logits,
            sample.labels,
            ["ecp", evicp.ECP(stabilizer=0), "lac", "aps", "raps", "base"],
            coverage,
            trials=trials,
            seed=seed,
            temperature="split",
        )
    console.print(_comparison_table(comparison))
    console.print(comparison.caption, style="dim")

    order = np.random.default_rng(seed).permutation(n)
    used, new = order[: n // 2], order[n // 2 :]
    calibration = evicp.calibrate(sample.logits[used], sample.labels[used], class_names=sample.class_names)
    sets = calibration.predict(sample.logits[new], coverage)
    evaluation = evicp.evaluate(sets, sample.labels[new], sample.logits[new])
    console.print(f"\n{calibration.certificate(coverage, evaluation)}\n", markup=False, highlight=False, soft_wrap=True)
    console.print(_sets_table(sets, sample, new))


def _comparison_table(comparison: Comparison) -> Table:
    head, rows = comparison.table()
    table = Table(title="Prediction sets on the same random splits", title_justify="left", box=None, pad_edge=False)
    for i, title in enumerate(head):
        table.add_column(title, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == "ecp" else None)
    return table


def _sets_table(sets: PredictionSets, sample: LogitsSample, rows: np.ndarray, shown: int = 6) -> Table:
    """A few sets by name, from small to large."""
    table = Table(title="A few sets, most plausible label first", title_justify="left", box=None, pad_edge=False)
    table.add_column("true label")
    table.add_column("covered")
    table.add_column("prediction set")
    by_size = np.argsort(sets.sizes, kind="stable")
    for i in by_size[np.linspace(0, len(sets) * 0.97, shown).astype(int)]:
        truth = sample.labels[rows[i]]
        names = sets.names(int(i))
        shown_names = ", ".join(names[:8]) + (f", ... ({len(names)} labels)" if len(names) > 8 else "")
        table.add_row(sample.class_names[truth], "yes" if truth in sets[int(i)] else "no", shown_names or "(empty)")
    return table
