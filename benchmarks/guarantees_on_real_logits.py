"""What the guarantees beyond the marginal one buy on real logits, and what they cost in set size.

    python benchmarks/guarantees_on_real_logits.py val.npz --score ecp --coverage 0.9 --splits 100

The file holds `logits` and `labels`. Rows are split in halves many times; a class's coverage is the share of its test
rows covered, over all splits. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass, field

import numpy as np

import evicp
from evicp import ByClass, ByUncertainty, calibrate
from evicp.cli.options import parse_score
from evicp.errors import SmallCalibrationWarning
from evicp.kernels import uncertainties
from evicp.tables import markdown_table

NEIGHBOURS = 10


@dataclass
class Tally:
    """Covered rows and rows, by class and by band of uncertainty, and sizes, over all splits."""

    n_classes: int
    hits: np.ndarray = field(init=False)
    rows: np.ndarray = field(init=False)
    band_hits: np.ndarray = field(init=False)
    band_rows: np.ndarray = field(init=False)
    sizes: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hits, self.rows = np.zeros(self.n_classes), np.zeros(self.n_classes)
        self.band_hits, self.band_rows = np.zeros(5), np.zeros(5)

    def add(self, sets: evicp.PredictionSets, labels: np.ndarray, bands: np.ndarray) -> None:
        covered = sets.contains(labels)
        self.hits += np.bincount(labels, covered, self.n_classes)
        self.rows += np.bincount(labels, minlength=self.n_classes)
        self.band_hits += np.bincount(bands, covered, 5)
        self.band_rows += np.bincount(bands, minlength=5)
        self.sizes.append(float(sets.sizes.mean()))
        self.shares.append(float(covered.mean()))

    def cells(self, coverage: float) -> list[str]:
        by_class = self.hits / np.maximum(self.rows, 1)
        group = np.arange(self.n_classes) // NEIGHBOURS
        by_group = np.bincount(group, self.hits) / np.bincount(group, self.rows)
        bands = self.band_rows > 0
        by_band = self.band_hits[bands] / self.band_rows[bands]
        return [
            f"{np.mean(self.shares):.3f}",
            f"{np.mean(self.sizes):.2f}",
            f"{by_class.min():.3f}",
            f"{np.quantile(by_class, 0.05):.3f}",
            f"{np.abs(by_class - coverage).mean():.3f}",
            f"{by_group.min():.3f}",
            f"{by_band.min():.3f}" if bands.sum() > 1 else "-",
        ]


def chance(rows_per_class: np.ndarray, coverage: float, seed: int = 0) -> list[str]:
    """What the class columns show if every class is covered exactly as asked: chance alone, on as many rows."""
    rng = np.random.default_rng(seed)
    tallies = [rng.binomial(rows_per_class, coverage) for _ in range(200)]
    shares = np.array([hits / rows_per_class for hits in tallies])
    group = np.arange(len(rows_per_class)) // NEIGHBOURS
    groups = np.array([np.bincount(group, hits) / np.bincount(group, rows_per_class) for hits in tallies])
    return [
        f"{coverage:.3f}",
        "-",
        f"{shares.min(1).mean():.3f}",
        f"{np.quantile(shares, 0.05, axis=1).mean():.3f}",
        f"{np.abs(shares - coverage).mean():.3f}",
        f"{groups.min(1).mean():.3f}",
        "-",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--score", default="ecp", type=parse_score)
    parser.add_argument("--coverage", default=0.9, type=float)
    parser.add_argument("--splits", default=100, type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore", SmallCalibrationWarning)
    with np.load(options.file) as data:
        logits, labels = data["logits"].astype(np.float32), data["labels"].astype(np.int64)
    n, n_classes = logits.shape
    u = uncertainties(options.score, logits)
    bands = np.searchsorted(np.quantile(u, [0.2, 0.4, 0.6, 0.8]), u)
    ways = {
        "marginal": None,
        "by class, rare ones full": ByClass(),
        "by class, rare ones in clusters": ByClass(rare="cluster"),
        f"by given clusters ({NEIGHBOURS} neighbours)": ByClass(clusters=np.arange(n_classes) // NEIGHBOURS),
    }
    if np.ptp(u) > 0:  # log-probabilities have no evidence: every row is equally uncertain
        ways["by uncertainty"] = ByUncertainty()
    tallies = {name: Tally(n_classes) for name in ways}
    for split in range(options.splits):
        order = np.random.default_rng(split).permutation(n)
        used, new = order[: n // 2], order[n // 2 :]
        for name, by in ways.items():
            calibration = calibrate(logits[used], labels[used], options.score, by=by)
            tallies[name].add(calibration.predict(logits[new], options.coverage), labels[new], bands[new])
    rows = [[name, *tally.cells(options.coverage)] for name, tally in tallies.items()]
    rows.append(["(chance alone)", *chance(np.bincount(labels, minlength=n_classes), options.coverage)])
    head = [
        "guarantee",
        "coverage",
        "size",
        "worst class",
        "5 % of classes",
        "mean gap",
        "worst ten",
        "worst fifth by u",
    ]
    print(f"{n:,} rows, {n_classes:,} classes, {options.score.describe()}, {options.splits} splits in halves\n")
    print(markdown_table(head, rows))


if __name__ == "__main__":
    main()
