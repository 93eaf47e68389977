"""The built-in scores on the CPU, fused and parallel: the same functions as the reference, by the same names.

Rows are handed in blocks to the compiled kernels of `_compiled`, in as many threads as there are processors. Results do
not depend on the number of threads or the size of the blocks: a row's result is a function of that row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from threading import Event, Lock, local
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from evicp import checks
from evicp.arrays import F64, I32, I64, Bools
from evicp.errors import InputError
from evicp.kernels import _compiled

# ---------------------------------------------------------------------------------------------------------------
# Blocks of rows and the threads that share them

#: Fewer logits than this are not worth waking a second thread for.
_ALONE = 1 << 18
#: A block of rows that is read where it lies, and one that is copied first and should stay in the cache.
_BLOCK = 1 << 20
_COPIED_BLOCK = 1 << 17

_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):  # the parent's threads do not exist in a child
    os.register_at_fork(after_in_child=_pools.clear)


def threads() -> int:
    """How many threads share the work: EVICP_THREADS, or the processors this process may run on."""
    wanted = os.environ.get("EVICP_THREADS")
    if wanted is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wanted.isdecimal() or int(wanted) < 1:
        raise InputError(f"EVICP_THREADS must be a whole number of at least 1; got {wanted!r}.")
    return int(wanted)


def _pool(helpers: int) -> ThreadPoolExecutor:
    """The pool of so many helpers."""
    return _pools.get(helpers) or _pools.setdefault(helpers, ThreadPoolExecutor(helpers, "evicp"))


def _is_ready(logits: NDArray[Any]) -> bool:
    """Whether a kernel can read these rows where they lie."""
    flags = logits.flags
    return logits.dtype != np.float16 and logits.shape[1] >= _compiled.LANES and flags.c_contiguous and flags.aligned


def _own_type(logits: NDArray[Any]) -> Any:
    """The precision that kernels read these logits in."""
    return np.float32 if logits.dtype == np.float16 else logits.dtype


def _ready(block: NDArray[Any]) -> NDArray[Any]:
    """A block of rows as kernels read it: C-contiguous float32 or float64, of at least 16 columns.

    Kernels get read-only views of their input: for arrays of either kind Numba would compile them twice.
    """
    if _is_ready(block):
        return checks.frozen(block)
    n, n_classes = block.shape
    copy = np.full((n, max(n_classes, _compiled.LANES)), -np.inf, block.dtype)
    copy[:, :n_classes] = block
    if copy.dtype == np.float16:
        half, copy = copy, np.empty(copy.shape, np.float32)
        _compiled.widen_kernel(half.view(np.uint16).ravel(), copy.ravel())
    return checks.frozen(copy)


def _each_block(logits: NDArray[Any], work: Callable[[NDArray[Any], slice], int]) -> None:
    """Call `work` on every block of rows; raise for the first row it cannot use.

    `work` gets the block as kernels read it and where it lies, and gives its first unusable row, or -1.
    """
    bad = -1
    if logits.size > _ALONE:
        bad = _share_out(logits, work)
    elif logits.size:
        bad = work(_ready(logits), slice(0, len(logits)))
    if bad >= 0:
        checks.raise_bad_row(logits[bad], bad)


def _share_out(logits: NDArray[Any], work: Callable[[NDArray[Any], slice], int]) -> int:
    """Blocks of rows to as many threads as there are, this one among them; the first unusable row, or -1."""
    n, n_classes = logits.shape
    helpers = threads() - 1
    size = min(_BLOCK if _is_ready(logits) else _COPIED_BLOCK, max(_ALONE // 4, logits.size // (8 * helpers + 8)))
    step = max(1, size // n_classes)
    starts = iter(range(0, n, step))
    bad: list[int] = []
    ended = Event()

    def drain() -> None:
        for start in starts:  # shared: each thread takes the next block, in order, so none before a bad one is left out
            rows = slice(start, min(start + step, n))
            try:
                row = work(_ready(logits[rows]), rows)
            except BaseException:  # of one thread, Ctrl-C among them: the others need not go on
                ended.set()
                raise
            if row >= 0:
                bad.append(start + row)
            if bad or ended.is_set():
                break

    waiting: list[Future[None]] = []
    with suppress(RuntimeError):  # no more threads, or none any more: those that there are do the work
        waiting.extend(_pool(helpers).submit(drain) for _ in range(min(helpers, (n - 1) // step)))
    drain()
    for future in waiting:
        if not future.cancel():  # a helper that has not begun is not waited for: the pool may be busy with other calls
            future.result()
    return min(bad, default=-1)


# ---------------------------------------------------------------------------------------------------------------
# Room for the rows at hand, kept by each thread for its next block or call: kernels allocate nothing

#: Room for longer rows is not kept: it takes megabytes.
_KEPT = 4096

_own = local()


def _batch(dtype: Any) -> NDArray[Any]:
    """Room for what a batch of rows in this precision gives."""
    batches = _own.__dict__.setdefault("batches", {})
    if dtype not in batches:
        batches[dtype] = _compiled.make_batch(dtype)
    return cast("NDArray[Any]", batches[dtype])


class _Room(NamedTuple):
    """Room for rows of so many classes in one precision."""

    n_classes: int
    dtype: Any
    #: As kernels take it.
    scratch: tuple[NDArray[Any], F64, I64]
    #: A row, as part of a block of one that kernels read, and its set.
    row: NDArray[Any]
    block: NDArray[Any]
    labels: I32
    scores: F64


def _take_room(n_classes: int, dtype: Any) -> _Room:
    """Room for a batch of rows, for the candidates of a row, and for one row by itself with its set.

    It is the caller's until `_give_back`: what runs in this thread meanwhile, say a handler of a signal, finds none.
    """
    kept: _Room | None = _own.__dict__.pop("room", None)
    if kept is not None and kept.n_classes == n_classes and kept.dtype == dtype:
        return kept
    block = np.full((1, max(n_classes, _compiled.LANES)), -np.inf, dtype)
    scratch = _batch(dtype), *_compiled.make_scratch(block.size)
    own = np.empty(n_classes, np.int32), np.empty(n_classes)
    return _Room(n_classes, dtype, scratch, block[0, :n_classes], checks.frozen(block), *own)


def _give_back(room: _Room) -> None:
    if room.n_classes <= _KEPT:
        _own.room = room


# ---------------------------------------------------------------------------------------------------------------
# The functions every backend has


def knows(score: Any) -> bool:
    """Whether this backend has a score: the built-in ones (not a user's subclass), where they are monotone."""
    if (
        type(score).__module__ != "evicp.scores"
        or score.name not in _compiled.KINDS
        or not 1e-30 < score.temperature < 1e30
    ):
        return False
    return score.name != "ecp" or score.monotone


def _parameters(score: Any, n_classes: int) -> F64:
    """A score as the numbers a kernel unpacks."""
    epsilon = score.epsilon(n_classes) if score.name == "ecp" else 0.0
    return _compiled.parameters(
        score.name,
        n_classes,
        temperature=score.temperature,
        evidence=getattr(score, "evidence", "relu"),
        stabilizer=epsilon,
        lam=getattr(score, "lam", 0.0),
        k_reg=getattr(score, "k_reg", 0),
        seed=getattr(score, "seed", 0),
        randomized=getattr(score, "randomized", False),
        randomize_penalty=getattr(score, "randomize_penalty", False),
    )


@lru_cache(maxsize=64)
def _ways(score: Any, n_classes: int) -> _compiled.Ways:
    return _compiled.ways(_parameters(score, n_classes))


def dense_scores(score: Any, logits: NDArray[Any]) -> F64:
    """Every label's score, (n, K)."""
    n_classes = logits.shape[1]
    ways, scores = _ways(score, n_classes), np.empty(logits.shape)

    def work(block: NDArray[Any], rows: slice) -> int:
        room = _take_room(n_classes, block.dtype)
        bad = int(_compiled.dense_kernel(block, *ways, *room.scratch, scores[rows]))
        _give_back(room)
        return bad

    _each_block(logits, work)
    return scores


def label_scores(score: Any, logits: NDArray[Any], labels: I64) -> F64:
    """The score of each row's given label, (n,)."""
    return _label_values(_ways(score, logits.shape[1]), logits, labels)


def _label_values(ways: _compiled.Ways, logits: NDArray[Any], labels: I64) -> F64:
    labels, scores = checks.frozen(np.ascontiguousarray(labels)), np.empty(len(logits))

    def work(block: NDArray[Any], rows: slice) -> int:
        return int(_compiled.label_kernel(block, labels[rows], *ways, _batch(block.dtype), scores[rows]))

    _each_block(logits, work)
    return scores


def ragged_sets(score: Any, logits: NDArray[Any], threshold: float | F64) -> tuple[I64, I32, F64]:
    """All labels with score <= threshold, as (offsets, labels, their scores).

    The threshold is one for all, or broadcasts to (n, K): (1, K) for each label, (n, 1) for each row. Within a row
    labels ascend by score, then descend by logit, then ascend by index.
    """
    return _sets(score, logits, threshold, scored=True)


def ragged_labels(score: Any, logits: NDArray[Any], threshold: float | F64) -> tuple[I64, I32]:
    """The same labels without their scores, which need not all be worked out then."""
    return _sets(score, logits, threshold, scored=False)[:2]


def _sets(score: Any, logits: NDArray[Any], threshold: float | F64, *, scored: bool) -> tuple[I64, I32, F64]:
    n, n_classes = logits.shape
    ways, limit = _ways(score, n_classes), np.asarray(threshold, dtype=np.float64)
    by_label = limit.ndim == 2 and limit.shape[1] > 1
    by_row = limit.size > 1 and not by_label
    limits: tuple[Any, ...] = _spread_limits(score, limit[0], _own_type(logits)) if by_label else (_in_a_row(limit),)
    offsets = np.zeros(n + 1, np.int64)
    ends = offsets[1:]
    if n == 1:
        return offsets, *_one_set(logits, ways, limits, ends, scored=scored)
    joined = _Joined(ends, scored=scored)
    room_for = 4  # labels a row, at first

    def work(block: NDArray[Any], rows: slice) -> int:
        nonlocal room_for
        own = (limits[0][rows],) if by_row else limits
        bad, pieces = _block_sets(block, ways, own, ends[rows], max(n_classes, room_for * len(block)), scored=scored)
        joined.add(rows.start, pieces)
        if rows.stop < n:
            room_for = max(room_for, 1 + sum(len(labels) for _, labels, _ in pieces) * 6 // (5 * len(block)))
        return bad

    _each_block(logits, work)
    return offsets, *joined.result()


#: Sets of so many rows: their labels, and scores, if any.
_Piece = tuple[int, I32, F64]


class _Joined:
    """Labels and scores of blocks, joined in the order of their rows as they come: a result is in memory once.

    Each piece's sets end where they do in the piece; here they get to end where they do in the whole.
    """

    def __init__(self, ends: I64, *, scored: bool) -> None:
        self._ends, self._next, self._used, self._scored = ends, 0, 0, scored
        self._labels, self._scores = _NO_LABELS, _NO_SCORES
        self._waiting: dict[int, list[_Piece]] = {}
        self._lock = Lock()

    def add(self, first: int, pieces: list[_Piece]) -> None:
        """The sets of a block, the first of which is that of row `first`."""
        with self._lock:
            self._waiting[first] = pieces
            while self._next in self._waiting:
                for piece in self._waiting.pop(self._next):
                    self._append(*piece)

    def _append(self, n: int, labels: I32, scores: F64) -> None:
        row, done = self._next, self._used
        self._next, self._used = row + n, done + len(labels)
        self._ends[row : self._next] += done
        if self._used > len(self._labels):
            whole = self._next == len(self._ends)
            likely = self._used if whole else self._used * len(self._ends) // self._next * 9 // 8
            before = self._labels, self._scores
            self._labels, self._scores = np.empty(likely, np.int32), np.empty(likely if self._scored else 0)
            self._labels[:done], self._scores[:done] = before[0][:done], before[1][:done]
        self._labels[done : self._used], self._scores[done : self._used] = labels, scores

    def result(self) -> tuple[I32, F64]:
        """All that was added; what was taken too much is given back."""
        if len(self._labels) > self._used:
            self._labels.resize(self._used, refcheck=False)
            self._scores.resize(self._used if self._scored else 0, refcheck=False)
        return self._labels, self._scores


_NO_LABELS, _NO_SCORES = np.empty(0, np.int32), np.empty(0)


def _in_a_row(limit: F64) -> F64:
    """Limits as a kernel takes them: contiguous and read-only."""
    flat = limit.ravel()
    return checks.frozen(flat) if flat.flags.writeable else flat


def _spread_limits(score: Any, limits: F64, dtype: Any) -> tuple[F64, NDArray[Any], F64, float, NDArray[Any]]:
    """The limits of labels as a kernel takes them: all, e^-limit, the largest, how far to walk, what they ask for."""
    padded, tight = np.full(max(len(limits), _compiled.LANES), -np.inf, dtype), -np.inf
    with np.errstate(over="ignore"):  # infinitely much is too much as well
        demands = _compiled.demands(_parameters(score, len(limits)), limits)
        if demands is None:
            infinite = limits == np.inf
            demands, tight = np.where(infinite, 0.0, -np.inf), float(limits.max(where=~infinite, initial=-np.inf))
        padded[: len(limits)] = demands
        needs, loosest = np.exp(-limits).astype(dtype), limits.max(keepdims=True)
    each, needs, loosest, padded = map(checks.frozen, (np.ascontiguousarray(limits), needs, loosest, padded))
    return each, needs, loosest, tight, padded


def _fill(
    block: NDArray[Any],
    start: int,
    ways: _compiled.Ways,
    limits: tuple[Any, ...],
    scratch: tuple[Any, ...],
    ends: I64,
    labels: I32,
    scores: F64,
) -> tuple[int, int, int]:
    """Sets from row `start` on, while there is room: the row after the last, labels used, the unusable row or -1."""
    kernel: Any = _compiled.set_kernel
    if len(limits) > 1:
        kernel, scratch = _compiled.limit_kernel, (*scratch, _compiled.make_notes(block.dtype))
    done, used, bad = kernel(block, start, *ways, *limits, *scratch, ends, labels, scores)
    return done, used, bad


def _one_set(
    logits: NDArray[Any], ways: _compiled.Ways, limits: tuple[Any, ...], ends: I64, *, scored: bool
) -> tuple[I32, F64]:
    """The set of one row: nothing to share out, to join, or to guess, and no room to make.

    The row is copied, which takes less time than to look whether it could be read where it lies.
    """
    room = _take_room(logits.shape[1], _own_type(logits))
    room.row[:] = logits[0]
    scores = room.scores if scored else _NO_SCORES
    _, used, bad = _fill(room.block, 0, ways, limits, room.scratch, ends, room.labels, scores)
    found = room.labels[:used].copy(), scores[:used].copy()
    _give_back(room)
    if bad >= 0:
        checks.raise_bad_row(logits[0], 0)
    return found


def _block_sets(
    block: NDArray[Any], ways: _compiled.Ways, limits: tuple[Any, ...], ends: I64, room: int, *, scored: bool
) -> tuple[int, list[_Piece]]:
    """The sets of a block: its first unusable row, or -1, and the sets, in one or more pieces."""
    own = _take_room(block.shape[1], block.dtype)
    done, bad = 0, -1
    pieces = []
    while done < len(block) and bad < 0:
        labels, scores, start = np.empty(room, np.int32), np.empty(room) if scored else _NO_SCORES, done
        done, used, bad = _fill(block, start, ways, limits, own.scratch, ends, labels, scores)
        pieces.append((done - start, labels[:used], scores[:used]))
        room *= 2
    _give_back(own)
    return bad, pieces


def uncertainties(score: Any, logits: NDArray[Any]) -> F64:
    """Eq. 3: u = K / alpha_0 of each row, with the evidence of the score (relu where it has none)."""
    evidence = getattr(score, "evidence", "relu")
    values, result = _compiled.parameters("ecp", logits.shape[1], evidence=evidence), np.empty(len(logits))
    _each_block(logits, lambda block, rows: _compiled.uncertainty_kernel(block, values, result[rows]))
    return result


def top_labels(score: Any, logits: NDArray[Any]) -> I32:  # noqa: ARG001 - all these scores fall as the logit rises
    """Each row's most plausible label: highest logit, then lowest index."""
    labels = np.empty(len(logits), np.int32)
    _each_block(logits, lambda block, rows: _compiled.top_kernel(block, labels[rows]))
    return labels


def label_ranks(logits: NDArray[Any], labels: I64) -> I64:
    """o: one plus the number of labels with a strictly larger logit than the given one, (n,)."""
    ways = _compiled.ways(_compiled.parameters("rank", logits.shape[1]))
    return _label_values(ways, logits, labels).astype(np.int64)


def _likelihoods(logits: NDArray[Any], labels: I64, inverse_temperature: float) -> F64:
    labels, result = checks.frozen(np.ascontiguousarray(labels)), np.empty((len(logits), 5))
    beta = float(inverse_temperature)

    def work(block: NDArray[Any], rows: slice) -> int:
        return int(_compiled.likelihood_kernel(block, labels[rows], beta, _batch(block.dtype), result[rows]))

    _each_block(logits, work)
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
