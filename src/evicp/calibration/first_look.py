"""A first look at calibration rows: accuracy and set size of a sample of them, and what is suspicious.

Mistakes that no type can catch leave traces: labels of other rows give an accuracy near chance, training rows one near
100 %, rows that count twice are exactly equal. Only a sample of the rows is inspected, which takes little time compared
with scoring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.origin import bits_of, mix64
from evicp.errors import SuspiciousInputWarning
from evicp.input.warn import warn
from evicp.method.scores import ECP, LAC, Score
from evicp.types import F64, I64, Bools

__all__ = ["FirstLook"]

#: So many rows are sampled; of later batches one in so many; and sets are made of so many rows, or of so many logits.
_LOOKED_AT, _ONE_IN, _MOST_SETS, _LOGITS = 512, 16, 128, 1 << 17
#: Fewer rows than this are no ground for suspicion, and more are needed for an accuracy that is too good.
_ENOUGH, _ENOUGH_RIGHT = 100, 300
#: From this many classes on, sets of half of them are suspicious, and labels of few of them.
_MANY_CLASSES = 20
#: The score that is taken by default, and the one that it is compared with.
_TAKEN, _OTHER = ECP(), LAC()
#: Sets this many times as large as LAC's are worth a word, if the difference is this many standard errors.
_LARGER, _SURE = 1.1, 3.0
#: 2^32 times the golden ratio: its multiples have no period.
_GOLDEN = 0x9E3779B9


@dataclass(frozen=True)
class FirstLook:
    """What some of the calibration rows are like.

    Attributes
    ----------
    rows : the number of rows in the sample
    accuracy : their top-1 accuracy
    mean_size : labels per set at a coverage of 0.9, of some of them; None where that is not one threshold's
    remarks : what is suspicious
    advice : which score has clearly smaller sets, where none was named; None if there is no such
    """

    rows: int
    accuracy: float
    mean_size: float | None
    remarks: tuple[str, ...] = ()
    advice: str | None = None

    def __str__(self) -> str:
        size = "" if self.mean_size is None else f", mean set size {self.mean_size:.2f} at coverage 0.9"
        advice = "" if self.advice is None else f"\n{self.advice}"
        return f"top-1 accuracy {self.accuracy:.3f}{size} (of {self.rows:,} calibration rows){advice}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "rows": self.rows,
            "accuracy": self.accuracy,
            "mean_size": self.mean_size,
            "remarks": list(self.remarks),
            "advice": self.advice,
        }


@dataclass(frozen=True, eq=False)
class Look:
    """What is kept of a batch to look at.

    Parameters
    ----------
    n : rows of the batch
    top, truth, right : (m,) of the sampled rows: the label of the largest logit, the true one, whether no logit is
        above that of the true one
    logits, labels : of some of them, to make sets of
    known : the labels that occur in the batch
    copies, contradictions : how many rows are equal to another one with the same label, and with another one
    """

    n: int
    top: I64
    truth: I64
    right: Bools
    logits: NDArray[Any] | None
    labels: I64
    known: I64
    copies: int
    contradictions: int


def look_at(logits: NDArray[Any], labels: I64, hashes: NDArray[np.uint64] | None, before: int) -> Look:
    """Look at a batch of which the rows are known to be good.

    Parameters
    ----------
    logits, labels : (n, K) and (n,)
    hashes : (n,) of each row's label and its logit, if they are known
    before : the number of rows sampled so far
    """
    n, k = logits.shape
    wanted = min(n, _LOOKED_AT - before) if before < _LOOKED_AT else min(n // _ONE_IN, _LOOKED_AT)
    rows = _spread(n, wanted)
    some = logits[rows] if logits.itemsize > 2 else logits[rows].astype(np.float32)  # which NumPy compares faster
    top, truth, places = some.argmax(1).astype(np.int64), labels[rows], np.arange(len(rows))
    kept = min(len(rows), _MOST_SETS, max(16, _LOGITS // k)) if before < _MOST_SETS else 0
    step = len(rows) // kept if kept else 1
    return Look(
        n,
        top,
        truth,
        some[places, truth] >= some[places, top],
        some[::step][:kept] if kept else None,
        truth[::step][:kept],
        np.flatnonzero(np.bincount(labels)) if n >= k else np.unique(labels),
        *((0, 0) if hashes is None else _copies(logits, labels, hashes)),
    )


def _spread(n: int, wanted: int) -> I64:
    """Some of n rows, spread over them without a period, in their order."""
    if wanted >= n or not wanted:
        return np.arange(min(n, wanted))
    edges = np.arange(wanted + 1) * n // wanted
    return edges[:-1] + (np.arange(wanted) * _GOLDEN >> 16) % np.diff(edges)


def _copies(logits: NDArray[Any], labels: I64, hashes: NDArray[np.uint64]) -> tuple[int, int]:
    """How many rows equal another one, with the same label and with another one; (0, 0) where the former are few."""
    few = 0.01 * len(hashes)
    order = np.argsort(hashes)
    repeats = hashes[order[1:]] == hashes[order[:-1]]
    if np.sum(repeats) < few or len(hashes) < _ENOUGH:  # copies have equal hashes
        return 0, 0
    # In half precision many rows have equal hashes, and few of them other logits in common.
    rows = order[np.append(repeats, False) | np.append(False, repeats)]
    keys = np.sort(_keys(logits, rows) + hashes[rows])
    if np.sum(keys[1:] == keys[:-1]) < few:
        return 0, 0
    keys = _keys(logits, slice(None))
    order = np.argsort(keys, kind="stable")
    first, second = order[:-1], order[1:]
    near = np.flatnonzero(keys[first] == keys[second])
    looked = near[_spread(len(near), min(len(near), _LOOKED_AT))]
    first, second = first[looked], second[looked]
    equal = (logits[first] == logits[second]).all(1)
    same = labels[first] == labels[second]
    scale = len(near) / max(1, len(looked))
    return round(scale * np.sum(equal & same)), round(scale * np.sum(equal & ~same))


def _keys(logits: NDArray[Any], rows: I64 | slice) -> NDArray[np.uint64]:
    """Numbers of some rows that equal rows have in common."""
    keys = np.zeros(1, np.uint64)
    for column in (0, logits.shape[1] // 2, -1):
        keys = mix64(keys + bits_of(logits[rows, column]))
    return keys


def first_look(looks: Sequence[Look], score: Score, scores: F64, n_classes: int, *, marginal: bool) -> FirstLook | None:
    """What the batches of a calibration are like, with warnings of what is suspicious; None without any.

    Parameters
    ----------
    looks : at the batches
    score, scores, n_classes : of the calibration, ascending
    marginal : whether one threshold is for all rows
    """
    looked = sum(len(look.top) for look in looks)
    if not looked:
        return None
    right = sum(look.n * float(np.mean(look.right)) for look in looks if len(look.top))
    accuracy = right / sum(look.n for look in looks if len(look.top))
    size, advice = _sizes(looks, score, scores) if marginal else (None, None)
    found = FirstLook(looked, accuracy, size)
    remarks = tuple(_remarks(looks, found, len(scores), n_classes))
    for remark in remarks:
        warn(remark, SuspiciousInputWarning)
    return replace(found, remarks=remarks, advice=advice)


def _sizes(looks: Sequence[Look], score: Score, scores: F64) -> tuple[float | None, str | None]:
    """The mean size of the sets of some rows at a coverage of 0.9; and a line where LAC's are clearly smaller."""
    parts = [look.logits for look in looks if look.logits is not None]
    k = -(-9 * (len(scores) + 1) // 10)  # of a coverage of 0.9
    if k > len(scores) or not parts:
        return None, None
    rows = np.concatenate(parts)[:_MOST_SETS]
    is_default = type(score) is ECP and score == _TAKEN and len(rows) >= _ENOUGH
    other = kernels.dense_scores(_OTHER, rows) if is_default else None
    own = kernels.dense_scores(score, rows)
    size = float((own <= scores[k - 1]).sum(1).mean())
    truth = np.concatenate([look.labels for look in looks])[: len(rows)]
    return size, None if other is None else _advice(_sizes_of(own, truth), _sizes_of(other, truth))


def _sizes_of(scores: F64, truth: I64) -> I64:
    """How many labels the sets of some rows hold at a coverage of 0.9 of these rows themselves."""
    own = np.sort(scores[np.arange(len(scores)), truth])
    sizes: I64 = (scores <= own[-(-9 * (len(scores) + 1) // 10) - 1]).sum(1)
    return sizes


def _advice(own: I64, other: I64) -> str | None:
    """A line where LAC's sets of some rows are clearly smaller than those of the score that is taken by default."""
    saved = own - other
    if own.mean() < _LARGER * other.mean() or saved.mean() < _SURE * saved.std() / sqrt(len(own)):
        return None
    return (
        f"LAC has smaller sets here, {other.mean():.2f} labels where ecp has {own.mean():.2f} (of {len(own)} rows): "
        'ask for it by score="lac" (--score lac)'
    )


def _remarks(looks: Sequence[Look], found: FirstLook, n: int, n_classes: int) -> Iterator[str]:
    """What is suspicious, with the likely cause."""
    if n < _ENOUGH:
        return
    top, truth, right = (np.concatenate([getattr(look, name) for look in looks]) for name in ("top", "truth", "right"))
    if _is_chance(top, truth, float(np.mean(right)), n_classes):
        yield (
            f"top-1 accuracy is {found.accuracy:.3f}, near chance, in a sample of {found.rows:,} calibration rows. "
            f"{_why_chance(top, truth, n_classes)}"
        )
    elif found.rows >= _ENOUGH_RIGHT and np.sum(~right) <= found.rows / 1000:
        yield (
            f"top-1 accuracy is {found.accuracy:.4f} in {found.rows:,} calibration rows of a sample. Likely causes are "
            "training rows, or labels taken from the model's predictions: sets of new rows would cover less than the "
            "target. Calibrate on rows that the model was not trained on."
        )
    elif n_classes >= _MANY_CLASSES and found.mean_size is not None and n_classes > found.mean_size >= n_classes / 2:
        yield (
            f"sets hold {found.mean_size:.1f} of {n_classes} labels on average at coverage 0.9: with this score the "
            "model hardly separates the classes. Check that logits and labels belong together, or use another score."
        )
    yield from _remarks_on_rows(looks, found, n, n_classes)


def _remarks_on_rows(looks: Sequence[Look], found: FirstLook, n: int, n_classes: int) -> Iterator[str]:
    copies, against = (sum(getattr(look, name) for look in looks) for name in ("copies", "contradictions"))
    # Models with few different outputs repeat them, too; but then the label of equal rows is not always the same.
    if copies >= 0.01 * n and (1 - found.accuracy) * copies >= 10 and against < 0.01 * copies:
        yield (
            f"{copies:,} of {n:,} calibration rows are duplicates, label included: were files read twice, or rows "
            "drawn with replacement? Calibration treats them as independent. Keep each row once."
        )
    known = len(np.unique(np.concatenate([look.known for look in looks])))
    expected = n_classes * (1 - (1 - 1 / n_classes) ** n)
    if n_classes >= _MANY_CLASSES and known <= 0.1 * expected:
        yield (
            f"the labels of {n:,} calibration rows are of {known:,} of {n_classes:,} classes. A likely cause are rows "
            "sorted by class of which only the first were used. If new rows have other classes, the coverage does not "
            "hold."
        )


def _is_chance(top: I64, truth: I64, accuracy: float, n_classes: int) -> bool:
    """Whether the largest logit agrees with the label no more often than if labels were shuffled."""
    shares = [np.bincount(values, minlength=n_classes) / len(values) for values in (top, truth)]
    if max(map(max, shares)) > 0.95:  # one class alone agrees by chance, whatever the model knows
        return False
    chance = float(shares[0] @ shares[1])
    return accuracy <= chance + 3 * sqrt(chance * (1 - chance) / len(top)) + 1 / len(top)


def _why_chance(top: I64, truth: I64, n_classes: int) -> str:
    """The likely cause of an accuracy near chance."""
    for step, words in ((1, "one too large: they may count from 1"), (-1, "one too small")):
        moved = float(np.mean(top == truth - step))
        if n_classes > 2 and moved > max(0.3, 3 * np.mean(top == truth)):
            return f"Labels seem to be {words}; the accuracy would be {moved:.3f}."
    pairs = np.unique(np.stack([top, truth]), axis=1, return_counts=True)
    best = np.zeros(n_classes)
    np.maximum.at(best, pairs[0][0], pairs[1])
    common = np.bincount(truth).max()
    if len(top) >= 10 * len(np.unique(top)) and best.sum() > max(0.5 * len(top), 2 * common):
        return "The class numbers of the labels seem to be in another order than the columns of the logits."
    return "The labels seem to belong to other rows: another order, or another file."
