"""From rows of a source to shards of logits: inputs read ahead by threads, batches through the network."""

from __future__ import annotations

import errno
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError, InputError, LogitsError, MissingExtraError
from evicp.extraction.network import Network
from evicp.extraction.sources import Source
from evicp.extraction.storage import Shard

#: Failures of one file; any other failure of the system ends the run, since it would not end with that file.
_FILE_ERRORS = frozenset((None, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EINVAL))


@dataclass(frozen=True)
class Unreadable:
    """An input that was left out, and why."""

    input: str
    reason: str


def cut(rows: range, length: int) -> list[range]:
    """Runs of at most this many rows."""
    return [rows[i : i + length] for i in range(0, len(rows), length)]


def compute(
    network: Network,
    source: Source,
    shards: Sequence[range],
    *,
    batch_size: int,
    workers: int,
    advance: Callable[[int], None],
) -> Generator[Shard]:
    """The shard of each run of rows, in order.

    Batches end where shards end, so that no row's logits depend on where an earlier run was interrupted.

    Parameters
    ----------
    workers : threads that read inputs
    advance : called with the number of inputs of each batch that is done
    """
    batches = [batch for rows in shards for batch in cut(rows, batch_size)]
    with closing(_read_ahead(partial(_read, network, source), batches, workers)) as prepared:
        for rows in shards:
            done: list[Shard] = []
            for _ in cut(rows, batch_size):
                batch, content = next(prepared)
                done.append(_run(network, source, batch, content))
                advance(len(batch))
            columns = zip(*(vars(shard).values() for shard in done), strict=True)
            yield Shard(*map(np.concatenate, columns))


def _read(network: Network, source: Source, row: int) -> Any:
    """One input, ready for the network, or why it cannot be read."""
    try:
        raw = source.read(row)
    except MissingExtraError:
        raise
    except Exception as error:  # a decoder may raise anything on a damaged file
        cause = (isinstance(error, FileError) and error.__cause__) or error  # the system's own error
        if getattr(cause, "errno", None) not in _FILE_ERRORS or not source.location.exists():
            raise FileError(
                f"cannot read {source.inputs[row]}: {cause}. Finished inputs are kept: run the same command again to "
                "continue."
            ) from error
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return Unreadable(source.inputs[row], " ".join(str(reason).split())[:200])
    return network.prepare(raw)


def _read_ahead(read: Callable[[int], Any], batches: list[range], workers: int) -> Generator[tuple[range, list[Any]]]:
    """Batches in order, each read by several threads while earlier ones are being used.

    Each of them runs torch in one thread. Threads begun later would inherit that, so it is undone at the end.
    """
    if not workers:
        yield from ((batch, [read(row) for row in batch]) for batch in batches)
        return
    waiting: deque[tuple[range, list[Future[Any]]]] = deque()
    ahead = max(2, 1 + 2 * workers // max(1, len(batches[0]) if batches else 1))
    coming = iter(batches)
    torch = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()
    alone = None if torch is None else partial(torch.set_num_threads, 1)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="evicp-read", initializer=alone)
    try:
        while True:
            while len(waiting) < ahead and (batch := next(coming, None)) is not None:
                waiting.append((batch, [pool.submit(read, row) for row in batch]))
            if not waiting:
                return
            batch, futures = waiting.popleft()
            yield batch, [future.result() for future in futures]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if torch is not None:
            torch.set_num_threads(threads)


def _run(network: Network, source: Source, rows: range, content: list[Any]) -> Shard:
    """One batch through the network; what could not be read is left out."""
    bad = {row: item.reason for row, item in zip(rows, content, strict=True) if isinstance(item, Unreadable)}
    good = {row: item for row, item in zip(rows, content, strict=True) if row not in bad}
    return Shard(
        _logits(network, source, good) if good else np.empty((0, network.n_classes), np.float32),
        np.array(list(good), np.int64),
        np.array(list(bad), np.int64),
        np.array(list(bad.values()), np.str_),
    )


def _logits(network: Network, source: Source, batch: dict[int, Any]) -> NDArray[np.float32]:
    """The logits of some rows, checked: finite, and of the right shape."""
    rows = list(batch)
    try:
        logits = network.logits(list(batch.values()))
    except Exception as error:  # a network may raise anything at all
        raise InputError(
            f"{network.name} failed on {len(batch)} inputs from {source.inputs[rows[0]]} on: {error} If memory ran "
            "out, start again with a smaller batch_size."
        ) from error
    if logits.shape != (len(rows), network.n_classes):
        expected = (len(rows), network.n_classes)
        raise LogitsError(f"{network.name} must give logits of shape {expected}; got {logits.shape}.")
    finite = (np.isfinite(logits) | (network.masks & (logits == -np.inf))).all(1)
    if not finite.all():
        raise LogitsError(
            f"{network.name} gives NaN or infinite logits for {source.inputs[rows[int(finite.argmin())]]}. "
            "If this is mixed precision overflowing, use precision float32."
        )
    return logits
