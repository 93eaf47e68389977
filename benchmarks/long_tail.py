"""What the scores and guarantees for long tails buy on real logits: size against the coverage of rare classes.

    python benchmarks/long_tail.py cifar100.npz --splits 100

The file holds `logits` and `labels`. In each split, rows are left out so that classes follow a power law, a third is
tested and the rest calibrated; what is learned of classes comes from a third of these. The logarithm of each class's
frequency is added to its logits: so a network's logits would be that was trained on such rows. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator

import numpy as np

import evicp
from evicp import LAC, ByClass, ClassLAC, PredictionSets, calibrate, fit_class_offsets, fit_rank_limits
from evicp.errors import EvicpWarning
from evicp.tables import markdown_table

Arrays = tuple[np.ndarray, np.ndarray]
#: Sets of new rows from rows to learn from, rows to calibrate, and new logits.
Predict = Callable[[Arrays, Arrays, np.ndarray, float], PredictionSets]


def whole(score: evicp.Score, by: object = None) -> Predict:
    """A calibration of all rows at hand, where nothing has to be learned."""

    def predict(learn: Arrays, rows: Arrays, new: np.ndarray, coverage: float) -> PredictionSets:
        logits, labels = (np.concatenate(both) for both in zip(learn, rows, strict=True))
        return calibrate(logits, labels, score, by=by).predict(new, coverage)

    return predict


def learned(fit: Callable[[Arrays, float], evicp.Score], by: object = None) -> Predict:
    """A calibration with a score that is learned from rows of its own."""

    def predict(learn: Arrays, rows: Arrays, new: np.ndarray, coverage: float) -> PredictionSets:
        return calibrate(*rows, fit(learn, coverage), by=by).predict(new, coverage)

    return predict


def offsets(weight: float) -> Predict:
    """Between one threshold for all and one of each class."""
    return learned(lambda rows, coverage: fit_class_offsets(*rows, coverage=coverage, weight=weight))


def ways(frequencies: np.ndarray) -> dict[str, Predict]:
    """What is compared, by name."""
    return {
        "marginal": whole(LAC()),
        "divided by frequency (PAS)": whole(ClassLAC.of_frequencies(frequencies)),
        "class offsets, weight 0.25": offsets(0.25),
        "class offsets, weight 0.5": offsets(0.5),
        "class offsets, weight 0.75": offsets(0.75),
        "by class, rare ones in clusters": whole(LAC(), ByClass(rare="cluster")),
        "by class with rank limits (RC3P)": learned(lambda rows, c: fit_rank_limits(*rows, coverage=c), "class"),
        "by class, rare ones full": whole(LAC(), "class"),
    }


def splits(labels: np.ndarray, shares: np.ndarray, count: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Rows to learn from, to calibrate and to test, of classes that follow a power law."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(labels))
        kept = order[rng.random(len(labels)) < shares[labels[order]]]
        test, rest = kept[: len(kept) // 3], kept[len(kept) // 3 :]
        yield rest[: len(rest) // 3], rest[len(rest) // 3 :], test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--coverage", default=0.9, type=float)
    parser.add_argument("--exponent", default=0.3, type=float, help="of the power law of class frequencies")
    parser.add_argument("--splits", default=100, type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore", EvicpWarning)
    with np.load(options.file) as data:
        logits, labels = data["logits"].astype(np.float32), data["labels"].astype(np.int64)
    k = logits.shape[1]
    place = np.random.default_rng(0).permutation(k)  # of each class, from the most frequent one to the rarest
    shares = (place + 1.0) ** -options.exponent
    logits += np.log(shares).astype(np.float32)
    rare, tallies, rows_used = place >= k - k // 5, {}, []
    for learn, used, test in splits(labels, shares, options.splits):
        rows_used.append(len(learn) + len(used))
        for name, predict in ways(shares).items():
            parts = (logits[learn], labels[learn]), (logits[used], labels[used])
            sets = predict(*parts, logits[test], options.coverage)
            covered = sets.contains(labels[test])
            tally = tallies.setdefault(name, (np.zeros(k), np.zeros(k), []))
            tally[0][:] += np.bincount(labels[test], covered, k)
            tally[1][:] += np.bincount(labels[test], minlength=k)
            tally[2].append((covered.mean(), sets.sizes.mean()))
    cells = []
    for name, (hits, rows, found) in tallies.items():
        by_class = hits / rows
        coverage, size = np.mean(found, axis=0)
        figures = coverage, by_class.mean(), hits[rare].sum() / rows[rare].sum(), np.quantile(by_class, 0.05)
        cells.append([name, f"{size:.2f}", *(f"{figure:.3f}" for figure in figures)])
    smallest = int(np.median(np.bincount(labels, minlength=k)) * shares.min() * 2 / 3)
    print(
        f"{options.file}: {np.mean(rows_used):,.0f} rows to learn from and calibrate, {smallest} of the rarest class\n"
    )
    head = ["", "size", "coverage", "mean of classes", "rarest fifth", "5 % of classes"]
    print(markdown_table(head, cells))


if __name__ == "__main__":
    main()
