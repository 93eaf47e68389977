"""The built-in scores on the CPU, compiled: the same functions as the reference, by the same names.

The kernels are C++, in `native/`; `_core` is what a compiler makes of them. They take rows of floats as they lie in
memory, in any row stride, and share blocks of rows out to threads. A row's result is a function of that row.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from math import inf, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError
from evicp.input import validate
from evicp.kernels import _core
from evicp.kernels.registry import BUILT_IN
from evicp.types import F64, I32, I64, Bools

level, levels = _core.level, _core.levels

#: As in `job.h`; APS and Base are RAPS without a penalty, and a rank by itself is asked for by `label_ranks`.
_KINDS = {"ecp": 0, "lac": 1, "aps": 2, "base": 2, "raps": 2, "saps": 3, "topk": 4, "margin": 5}
_RANK = 6
_EVIDENCE = {"relu": 0, "softplus": 1, "exp": 2}
_SCORE = struct.Struct("@iiiidddddQ")

#: Fewer logits than this are worked on by one thread, and nobody need be asked how many there may be.
_ALONE = 1 << 18


def threads() -> int:
    """How many threads share the work: EVICP_THREADS, or the processors this process may run on."""
    wanted = os.environ.get("EVICP_THREADS")
    if wanted is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wanted.isdecimal() or int(wanted) < 1:
        raise InputError(f"EVICP_THREADS must be a whole number of at least 1; got {wanted!r}.")
    return int(wanted)


def _threads_for(logits: NDArray[Any]) -> int:
    return threads() if logits.size > _ALONE else 1


def _readable(logits: NDArray[Any]) -> NDArray[Any]:
    """Logits as kernels read them: rows contiguous along classes, wherever they lie and however far apart."""
    if logits.dtype.kind == "V":  # bfloat16, whose bits NumPy exports as whole numbers only
        logits = logits.view(np.uint16)
    return logits if logits.strides[1] == logits.itemsize else np.ascontiguousarray(logits)


def _refuse(logits: NDArray[Any], bad: int) -> None:
    if bad >= 0:
        validate.raise_bad_row(logits[bad], bad)


# ---------------------------------------------------------------------------------------------------------------
# The functions every backend has


def knows(score: Any) -> bool:
    """Whether this backend has a score: the built-in ones (not a user's subclass), but for a user's own evidence."""
    has_kernel = type(score) in BUILT_IN and 1e-30 < score.temperature < 1e30
    return has_kernel and isinstance(getattr(score, "evidence", "relu"), str)


def precision(logits: NDArray[Any]) -> str:
    """The precision in which logits are scored."""
    return "float64" if logits.dtype.char == "d" else "float32"


@lru_cache(maxsize=64)
def _pack(score: Any, n_classes: int) -> bytes:
    """A score's parameters as kernels take them; of no score, those of a rank."""
    if score is None:
        return _plain()
    stabilizer = score.epsilon(n_classes) if score.name == "ecp" else 0.0
    return _SCORE.pack(
        _KINDS[score.name],
        _EVIDENCE[getattr(score, "evidence", "relu")],
        getattr(score, "randomized", False),
        getattr(score, "randomize_penalty", False),
        score.temperature,
        stabilizer,
        log(stabilizer) if stabilizer else -inf,
        getattr(score, "lam", 0.0),
        getattr(score, "k_reg", 0),
        getattr(score, "seed", 0),
    )


def _plain(kind: int = _RANK, evidence: str = "relu") -> bytes:
    """A score without parameters."""
    return _SCORE.pack(kind, _EVIDENCE[evidence], False, False, 1.0, 0.0, -inf, 0.0, 0.0, 0)


#: The base rates and the utility of a score, or None.
_Parts = tuple[F64 | None, F64 | None]
_NO_PARTS: _Parts = (None, None)
_ALL = slice(None)


#: The last score, by itself and not by its value, the classes, what they pack to, and whether it has no such parts: a
#: server has one score.
_last: tuple[Any, int, bytes, bool] = (None, 0, b"", True)


def _blocks(score: Any, logits: NDArray[Any]) -> Iterator[tuple[bytes, slice, _Parts]]:
    """A score's parameters with all rows at once, or with the blocks for which a user's utility is computed."""
    global _last  # noqa: PLW0603 - replaced as a whole, so that threads see one or the other
    last, width, packed, plain = _last
    if last is not score or width != logits.shape[1]:
        packed, plain = _pack(score, logits.shape[1]), getattr(score, "monotone", True)
        _last = score, logits.shape[1], packed, plain
    if plain:
        yield packed, _ALL, _NO_PARTS
        return
    rates = score.rates(logits.shape[1])
    if score.utility is None:
        yield packed, _ALL, (rates, None)
        return
    for rows in validate.row_blocks(logits):
        block = logits[rows] if logits.itemsize >= 4 else logits[rows].astype(np.float32)
        validate.refuse_unusable(block, rows.start)
        utility = score.utility_of(block)
        yield packed, rows, (rates, np.ascontiguousarray(utility if utility.strides[0] else utility[0]))


def dense_scores(score: Any, logits: NDArray[Any]) -> F64:
    """Every label's score, (n, K)."""
    readable, scores = _readable(logits), np.empty(logits.shape)
    for packed, rows, parts in _blocks(score, logits):
        _refuse(logits, _core.dense_scores(packed, readable[rows], _threads_for(logits), *parts, scores[rows]))
    return scores


def label_scores(score: Any, logits: NDArray[Any], labels: I64) -> F64:
    """The score of each row's given label, (n,)."""
    readable, scores, labels = _readable(logits), np.empty(len(logits)), np.ascontiguousarray(labels)
    for packed, rows, parts in _blocks(score, logits):
        bad = _core.label_scores(packed, readable[rows], _threads_for(logits), *parts, labels[rows], scores[rows])
        _refuse(logits, bad)
    return scores


def ragged_sets(score: Any, logits: NDArray[Any], threshold: float | F64) -> tuple[I64, I32, F64]:
    """All labels with score <= threshold, as (offsets, labels, their scores).

    The threshold is one for all, or broadcasts to (n, K): (1, K) for each label, (n, 1) for each row. Within a row
    labels ascend by score, then descend by logit, then ascend by index.
    """
    return _sets(score, logits, threshold, scored=True)


def ragged_labels(score: Any, logits: NDArray[Any], threshold: float | F64) -> tuple[I64, I32]:
    """The same labels without their scores, which need not all be computed then."""
    return _sets(score, logits, threshold, scored=False)[:2]


_NO_SCORES = np.empty(0)


def _sets(score: Any, logits: NDArray[Any], threshold: float | F64, *, scored: bool) -> tuple[I64, I32, F64]:
    by_label = by_row = False
    limits: float | F64
    if isinstance(threshold, float):
        limits = threshold
    else:
        limits = np.asarray(threshold, dtype=np.float64)
        by_label = limits.ndim == 2 and limits.shape[1] > 1
        by_row = limits.size > 1 and not by_label
        limits = np.ascontiguousarray(limits).ravel()
    readable, many = _readable(logits), _threads_for(logits)
    pieces: list[tuple[I64, I32, F64]] = []
    for packed, rows, parts in _blocks(score, logits):
        block, own = readable[rows], limits[rows] if by_row else limits  # type: ignore[index]
        offsets = np.empty(len(block) + 1, np.int64)
        bad, labels, scores = _core.sets(packed, block, many, *parts, own, by_label, scored, offsets)
        _refuse(logits, bad)
        found = np.frombuffer(labels, np.int32), np.frombuffer(scores, np.float64) if scored else _NO_SCORES
        pieces.append((offsets, *found))
    return pieces[0] if len(pieces) == 1 else _joined(pieces)


def _joined(pieces: list[tuple[I64, I32, F64]]) -> tuple[I64, I32, F64]:
    """The sets of blocks of rows, one after the other."""
    used, ends = 0, [np.zeros(1, np.int64)]
    for offsets, labels, _ in pieces:
        ends.append(offsets[1:] + used)
        used += len(labels)
    nothing = np.empty(0, np.int32), _NO_SCORES
    found = (np.concatenate(column) for column in zip(nothing, *(piece[1:] for piece in pieces), strict=True))
    labels, scores = found
    return np.concatenate(ends), labels, scores


def uncertainties(score: Any, logits: NDArray[Any]) -> F64:
    """Eq. 3: u = K / alpha_0 of each row, with the evidence of the score (relu where it has none)."""
    packed, result = _plain(_KINDS["ecp"], getattr(score, "evidence", "relu")), np.empty(len(logits))
    _refuse(logits, _core.uncertainties(packed, _readable(logits), _threads_for(logits), *_NO_PARTS, result))
    return result


def top_labels(score: Any, logits: NDArray[Any]) -> I32:
    """Each row's most plausible label: lowest score, then highest logit, then lowest index."""
    readable, labels = _readable(logits), np.empty(len(logits), np.int32)
    for packed, rows, parts in _blocks(score, logits):
        _refuse(logits, _core.top_labels(packed, readable[rows], _threads_for(logits), *parts, labels[rows]))
    return labels


def label_ranks(logits: NDArray[Any], labels: I64) -> I64:
    """o: one plus the number of labels with a strictly larger logit than the given one, (n,)."""
    ranks, labels = np.empty(len(logits)), np.ascontiguousarray(labels)
    _refuse(logits, _core.label_scores(_plain(), _readable(logits), _threads_for(logits), *_NO_PARTS, labels, ranks))
    return ranks.astype(np.int64)


def _likelihoods(logits: NDArray[Any], labels: I64, inverse_temperature: float) -> F64:
    result, labels = np.empty((len(logits), 5)), np.ascontiguousarray(labels)
    many, beta = _threads_for(logits), float(inverse_temperature)
    _refuse(logits, _core.likelihoods(_plain(), _readable(logits), many, *_NO_PARTS, labels, beta, result))
    return result


def nll_derivatives(logits: NDArray[Any], labels: I64, inverse_temperature: float) -> tuple[float, float, float]:
    """Mean negative log-likelihood of softmax(beta z), its derivative and its curvature in beta."""
    result = _likelihoods(logits, labels, inverse_temperature)
    value, slope, curvature = (float(result[:, column].sum()) / len(logits) for column in range(3))
    return value, slope, curvature


def top_confidences(logits: NDArray[Any], labels: I64, inverse_temperature: float) -> tuple[F64, Bools]:
    """The largest probability of each row and whether its label has it, for the calibration error."""
    result = _likelihoods(logits, labels, inverse_temperature)
    return result[:, 3].copy(), result[:, 4] == 1.0
