"""What each guarantee asks, what is observed, how many rows are answered and how large sets are, on real logits.

    python benchmarks/promises_on_real_logits.py *.npz --splits 20

Each file holds `logits` and `labels`. Rows are split in halves many times: one calibrates, the other tests. Promises of
`evicp.risk` are measured in more detail by `risk_on_real_logits.py`, scores for long tails by `long_tail.py`. Prints a
Markdown table.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from risk_on_real_logits import several

import evicp
from evicp.io.logits import read_logits
from evicp.tables import markdown_table

FOLDS = 5

#: One split: logits and labels that calibrate, and that test.
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
#: What is observed (in each group, where there are some), the share of rows that are answered, labels per set.
Seen = tuple[float | np.ndarray, float, float]


def costs(z: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> Seen:
    """Every tenth class costs ten times as much as the others."""
    by_class = np.where(np.arange(z.shape[1]) % 10 == 0, 1.0, 0.1)
    found = evicp.control_risk(z, y, risk=0.01, class_costs=by_class, score="lac").evaluate(new, truth)
    return found.mean_loss, 1.0, found.mean_size


def answers(z: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> Seen:
    """Nothing, if no rule is certified."""
    try:
        found = evicp.selective(z, y, error=0.05, doubt="margin").evaluate(new, truth)
    except evicp.EvicpError:
        return np.nan, 0.0, np.nan
    return found.observed or 0.0, found.share, found.share


def labels_missed(z: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> Seen:
    """Classes and groups of neighbouring ones."""
    found = evicp.multilabel(*several(z, y), missed=0.1).evaluate(*several(new, truth))
    return found.missed.mean_loss, 1.0, found.mean_size


def kinds(logits: np.ndarray) -> np.ndarray:
    """Four groups that overlap, by the logits alone."""
    top = np.sort(logits.astype(float), axis=1)[:, ::-1]
    spread = np.exp(top - top[:, :1]).sum(1)  # 1 where one label has all the probability
    low = logits.argmax(1) < logits.shape[1] // 2
    return np.column_stack([low, spread > np.median(spread), top[:, 0] - top[:, 1] < 1, ~low & (spread < 1.5)])


def in_groups(*, overlapping: bool) -> Callable[..., Seen]:
    """Coverage in each group."""

    def seen(z: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> Seen:
        groups = kinds(new)
        if overlapping:
            sets = evicp.calibrate(z, y, "lac", by=kinds(z)).predict(new, 0.9, groups=groups)
        else:
            sets = evicp.calibrate(z, y, "lac").predict(new, 0.9)
        of_groups = evicp.evaluate(sets, truth, groups=groups).group_coverage
        assert of_groups is not None
        order = np.argsort(of_groups.names)
        return of_groups.coverage[order], 1.0, float(sets.sizes.mean())

    return seen


def alarms(z: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> Seen:
    """Whether a shift is found; there is none."""
    calibration = evicp.calibrate(z, y, "lac")
    return float(evicp.check_exchangeable(calibration, new, reference=z, error=0.05).shifted), 1.0, np.nan


def folds(*, proven: bool) -> Callable[..., Seen]:
    """A temperature for each fold, fitted to the rows of the others."""

    def seen(z: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> Seen:
        fold, parts, given = np.arange(len(y)) % FOLDS, [], []
        for number in range(FOLDS):
            t = evicp.fit_temperature(z[fold != number], y[fold != number]).temperature
            parts.append(evicp.calibrate(z[fold == number] / t, y[fold == number], "lac"))
            given.append(new / t)
        sets = evicp.CrossCalibration(parts).predict(given, 0.9, proven=proven)
        return float(sets.contains(truth).mean()), 1.0, float(sets.sizes.mean())

    return seen


def offsets(z: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> Seen:
    """Offsets of classes, learned from half of the rows."""
    n = len(y) // 2
    score = evicp.fit_class_offsets(z[:n], y[:n], coverage=0.9, weight=0.5)
    sets = evicp.calibrate(z[n:], y[n:], score).predict(new, 0.9)
    return float(sets.contains(truth).mean()), 1.0, float(sets.sizes.mean())


def unseen(*, known: bool) -> Callable[..., Seen]:
    """The last tenth of the classes has no column; the column for them is learned from a third of the rows."""

    def seen(z: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> Seen:
        k, n = z.shape[1] - z.shape[1] // 10, len(y) // 3
        cut = lambda labels: np.where(labels < k, labels, -1)  # noqa: E731
        column = evicp.fit_unseen(z[:n, :k], cut(y[:n]), unseen=-1)
        calibration = evicp.calibrate(column.logits(z[n:, :k]), column.labels(cut(y[n:])), "lac", by=column.by)
        sets, right = calibration.predict(column.logits(new[:, :k]), 0.9), column.labels(cut(truth))
        rows = (right < k) == known
        return float(sets.contains(right)[rows].mean()), 1.0, float(sets.sizes[rows].mean())

    return seen


#: Each guarantee, the target, and whether more than that breaks it.
PROMISES: list[tuple[str, float, bool, Callable[..., Seen]]] = [
    ("loss, costs 1 and 0.1 by class", 0.01, True, costs),
    ("error of answers, confidence 0.95", 0.05, True, answers),
    ("share of true labels missed", 0.1, True, labels_missed),
    (
        "coverage in the worst of four groups: marginal, without a guarantee for groups",
        0.9,
        False,
        in_groups(overlapping=False),
    ),
    ("the same: overlapping groups", 0.9, False, in_groups(overlapping=True)),
    ("a shift is found where there is none", 0.05, True, alarms),
    ("coverage, five folds, CV+ (not all of it proven)", 0.9, False, folds(proven=False)),
    ("coverage, five folds, proven", 0.9, False, folds(proven=True)),
    ("coverage, class offsets", 0.9, False, offsets),
    ("coverage of known rows, a tenth of the classes unseen", 0.9, False, unseen(known=True)),
    ('"something else" in unseen rows', 0.9, False, unseen(known=False)),
]


def lines(path: str, splits: int) -> Iterator[list[str]]:
    """A line for each promise."""
    rows = read_logits(path)
    logits, labels, half = rows.logits, rows.labels, len(rows.labels) // 2
    for name, asked, is_most, seen in PROMISES:
        found = []
        for split in range(splits):
            order = np.random.default_rng(split).permutation(len(labels))
            used, new = order[:half], order[half:]
            found.append(seen(logits[used], labels[used], logits[new], labels[new]))
        some = [one for one in found if not np.isnan(one[0]).any()]
        observed = np.array([np.atleast_1d(one[0]) for one in some]).reshape(len(some), -1)
        worst = observed[:, observed.mean(0).argmin()] if some else np.array([np.nan])
        beyond = np.mean(worst > asked) if is_most else np.mean(worst < asked)
        sizes = np.mean([one[2] for one in some]) if some else np.nan
        digits = zip((worst.mean(), beyond, np.mean([one[1] for one in found]), sizes), (4, 2, 3, 2), strict=True)
        yield [Path(path).stem, name, f"{asked:g}", *("-" if np.isnan(x) else f"{x:.{n}f}" for x, n in digits)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--splits", type=int, default=20)
    options = parser.parse_args()
    warnings.simplefilter("ignore", evicp.EvicpWarning)
    head = ["logits", "promise", "asked", "observed", "test halves beyond it", "answered", "size"]
    print(markdown_table(head, [line for path in options.files for line in lines(path, options.splits)]))


if __name__ == "__main__":
    main()
