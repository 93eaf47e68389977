"""Which rows train a classifier and which are held out to calibrate it, without regard to their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, StratifiedShuffleSplit
from sklearn.utils import check_random_state

from evicp.errors import InputError, SuspiciousInputWarning
from evicp.input.warn import warn
from evicp.types import I64

#: (training rows, rows held out)
Split = tuple[I64, I64]


@dataclass(frozen=True)
class AtRandom:
    """A splitter: a share of the rows is held out once, or every row once in so many folds.

    One permutation of the rows decides, whatever their labels: calibration rows and new ones are exchangeable only
    where each row was as likely to calibrate as any other. Stratified parts leave out classes of few rows, because half
    a row is rounded off; drawing again until every class has a row to train on keeps rows of small classes, which score
    worst, from calibrating. A class without a training row is impossible; its rows are not covered.

    Parameters
    ----------
    parts : a share in (0, 1), or a number of folds
    random_state : as for any estimator of scikit-learn
    """

    parts: float
    random_state: Any

    def split(self, _X: Any, y: NDArray[Any]) -> list[Split]:
        """Which rows train and which are held out, in each split."""
        order = check_random_state(self.random_state).permutation(len(y))
        if self.parts < 1:
            held_out = [order[: round(self.parts * len(y))]]
        else:
            held_out = [order[fold :: int(self.parts)] for fold in range(int(self.parts))]
        found = [(np.setdiff1d(order, rows), np.sort(rows)) for rows in held_out]
        if not all(len(train) and len(rows) for train, rows in found):
            raise ValueError(f"n_samples={len(order)} leaves a part of them empty.")
        return found


def splits(cv: Any, random_state: Any, X: Any, y: NDArray[Any], *, exact: bool) -> list[Split]:
    """Which rows train and which are held out, in each split; one at least.

    Parameters
    ----------
    cv : a share in (0, 1), a number of folds, or a splitter
    random_state : of a share or folds
    X, y : the rows
    exact : whether several splits keep a guarantee, too, and so must be drawn without regard to labels
    """
    splitter = _splitter(cv, random_state)
    try:
        given = [(np.asarray(train), np.asarray(held_out)) for train, held_out in splitter.split(X, y)]
    except ValueError as error:
        raise InputError(f"cv={cv!r} cannot split {len(y)} rows of {len(np.unique(y))} classes: {error}") from error
    found = [(_row_numbers(train, len(y), cv), _row_numbers(held_out, len(y), cv)) for train, held_out in given]
    if not any(len(held_out) for _, held_out in found):
        raise InputError(f"cv must leave rows out for calibration; {cv!r} leaves out none.")
    times = np.bincount(np.concatenate([held_out for _, held_out in found]))
    if times.max() > 1 or any(np.intersect1d(*split).size for split in found):
        raise InputError(
            f"cv must leave out every row at most once, and not train on it; {cv!r} does not. Use folds, or a splitter "
            "that splits once."
        )
    if exact or len(found) == 1:
        _warn_of_strata(cv)
    return found


def _splitter(cv: Any, random_state: Any) -> Any:
    if isinstance(cv, float) and 0 < cv < 1:
        return AtRandom(cv, random_state)
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool) and cv >= 2:
        return AtRandom(int(cv), random_state)
    if hasattr(cv, "split") and not isinstance(cv, str | type):
        return cv
    raise InputError(
        f'cv must be "prefit", a share in (0, 1), a number of folds >= 2, "oob" or a splitter; got {cv!r}.'
    )


def _row_numbers(rows: NDArray[Any], n: int, cv: Any) -> I64:
    """Rows as a splitter gives them, as numbers: these, or a mask of all rows."""
    if rows.dtype.kind == "b" and rows.shape == (n,):
        return np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= n)):
        got = f"dtype {rows.dtype}, shape {rows.shape}"
        if rows.ndim == 1 and rows.dtype.kind in "iu":
            got = f"{rows.min()} to {rows.max()}"
        raise InputError(f"cv must give numbers of rows in [0, {n}), or a mask of {n}; {cv!r} gives {got}.")
    return rows.astype(np.int64)


def _warn_of_strata(cv: Any) -> None:
    """Rows that were chosen by their labels are not exchangeable with new ones."""
    if isinstance(cv, StratifiedShuffleSplit | StratifiedKFold | StratifiedGroupKFold):
        warn(
            f"{type(cv).__name__} selects rows by their labels: they are not a random sample, and if classes have few "
            "rows, sets cover less than the target. Pass a share or a number of folds, which are drawn at random.",
            SuspiciousInputWarning,
        )
