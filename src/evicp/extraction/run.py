"""The loop: inputs read ahead by threads, batches through the network, shards straight to disk."""

from __future__ import annotations

import errno
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from os import PathLike, cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError, InputError, LogitsError, MissingExtraError
from evicp.extraction import storage
from evicp.extraction.network import Network, Transform
from evicp.extraction.networks import open_network
from evicp.extraction.sources import Source, network_labels, open_source
from evicp.extraction.storage import Parts, Shard
from evicp.input import validate
from evicp.input.classes import ClassAxis, as_class_names
from evicp.input.messages import some_of
from evicp.input.warn import warn_if_probabilities
from evicp.io.array_writer import ARRAY_SUFFIXES, Stacked, write_arrays
from evicp.io.atomic import refuse_target
from evicp.progress import progress_bars
from evicp.types import I64

__all__ = ["Extraction", "Unreadable", "extract"]

#: Failures of one file; any other failure of the system ends the run, since it would not end with that file.
_FILE_ERRORS = frozenset((None, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EINVAL))


@dataclass(frozen=True)
class Unreadable:
    """An input that was left out, and why."""

    input: str
    reason: str


@dataclass(frozen=True)
class Extraction:
    """What an extraction left on disk.

    Parameters
    ----------
    path : the file of logits
    network : the name of the network
    n, n_classes : its shape
    accuracy : the share of rows whose largest logit is their label's; None without labels
    unreadable : inputs that were left out
    resumed : rows that an earlier, interrupted run had done
    rate : inputs per second of this run; None if nothing was left to do
    """

    path: Path
    network: str
    n: int
    n_classes: int
    accuracy: float | None
    unreadable: tuple[Unreadable, ...]
    resumed: int
    rate: float | None

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.n:,} rows of {self.n_classes:,} logits from {self.network}"]
        lines.append("no labels" if self.accuracy is None else f"top-1 accuracy {self.accuracy:.2%}")
        if self.resumed:
            lines.append(f"{self.resumed:,} inputs were done by an earlier run")
        lines.append(f"{self.rate:.1f} inputs a second" if self.rate else "nothing was left to do")
        if self.unreadable:
            lines.append(f"{len(self.unreadable):,} could not be read and were left out:")
            lines += [f"  {item.input}: {item.reason}" for item in self.unreadable[:10]]
            lines += [f"  ... all in {storage.manifest_path(self.path).name}"] if len(self.unreadable) > 10 else []
        return "\n".join(lines)


def extract(
    network: Any,
    source: str | PathLike[str] | Source,
    output: str | PathLike[str],
    *,
    weights: str | PathLike[str] | None = "default",
    transform: Transform = "weights",
    labels: str | PathLike[str] | None = None,
    split: str | None = None,
    input_column: str | None = None,
    label_column: str | None = None,
    class_names: Iterable[str] | None = None,
    trust_labels: bool = False,
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 64,
    shard_size: int = 512,
    workers: int | None = None,
    force: bool = False,
    progress: bool = True,
) -> Extraction:
    """Run a network over images or texts and write logits and labels to a file.

    Interrupted, the same call goes on where it stopped and loses at most one shard; the file is the same, byte for
    byte, as that of an undisturbed run. Beside the file, `<output>.manifest.json` says what made it.

    Parameters
    ----------
    network, weights, transform, device, precision : see `evicp.extraction.open_network`
    source, labels, split, input_column, label_column : see `evicp.extraction.open_source`
    output : a file ending in npz (`logits`, `labels`, `inputs`, `class_names`), safetensors, or npy (an array a file)
    class_names : the network's classes in order, where it does not know them itself
    trust_labels : take the numbers of the data's labels as they are, whatever its classes are called
    batch_size : inputs run at once
    shard_size : inputs written at once: what an interruption may lose
    workers : threads that read and prepare inputs; as many as there are processors by default
    force : start afresh, and overwrite
    progress : show a bar, if standard error is a terminal

    Returns
    -------
    Extraction
        What is in the file now, and which inputs were left out.
    """
    target = Path(output)
    refuse_target(target, ARRAY_SUFFIXES)
    batch_size, shard_size = validate.as_count(batch_size, "batch_size"), validate.as_count(shard_size, "shard_size")
    workers = min(16, cpu_count() or 1) if workers is None else validate.as_count(workers, "workers", at_least=0)
    opened = open_source(source, labels=labels, split=split, input_column=input_column, label_column=label_column)
    net = open_network(network, weights=weights, transform=transform, device=device, precision=precision)
    if net.modality != opened.modality:
        raise InputError(f"{net.name} takes {net.modality}s; {opened.location} holds {opened.modality}s.")
    names = as_class_names(class_names, net.n_classes) or net.class_names
    truth = network_labels(opened, net.n_classes, names, trusted=trust_labels)
    if truth is not None and ClassAxis(net.n_classes, names).labels(truth) is not truth:
        raise InputError(
            f"the classes of {net.name} are called by numbers of other classes ({some_of(names or ())}): labels "
            "in a file could be of two kinds. Give other class_names."
        )
    job = _Job(net, opened, truth, names, target, batch_size, shard_size)
    return job.finished(force=force) or job.run(workers=workers, force=force, progress=progress)


@dataclass(frozen=True, eq=False)
class _Job:
    """One network over one source into one file."""

    network: Network
    source: Source
    labels: I64 | None
    class_names: tuple[str, ...] | None
    output: Path
    batch_size: int
    shard_size: int

    def settings(self) -> dict[str, Any]:
        """Everything the bytes of the result depend on."""
        return {
            "network": self.network.name,
            **self.network.settings,
            "inputs": self.source.digest(self.labels),
            "n_inputs": len(self.source),
            "class_names": self.class_names and storage.text_digest(self.class_names),
            "batch_size": self.batch_size,
            "shard_size": self.shard_size,
        }

    def finished(self, *, force: bool) -> Extraction | None:
        """The result of an earlier run that came to its end, if this would be the same."""
        parts, settings = Parts(self.output), self.settings()
        again = force or parts.made_with(settings)
        storage.refuse_companions(self.output, self._names(), force=again)
        if again or not self.output.exists():
            return None
        manifest = storage.read_manifest(self.output)
        if manifest is not None:
            storage.check_same_settings(self.output, manifest["settings"], settings)
            parts.remove()  # what a run killed while it tidied up has left
            return self._result(manifest, resumed=len(self.source), rate=None)
        raise FileError(f"{self.output} exists and is no result of this command. Use force (--force) to overwrite it.")

    def run(self, *, workers: int, force: bool, progress: bool) -> Extraction:
        """Compute the shards that are missing, then join them."""
        parts = Parts(self.output)
        parts.begin(self.settings(), force=force)
        shards = _cut(range(len(self.source)), self.shard_size)
        missing = [number for number in range(len(shards)) if not parts.has(number)]
        resumed = len(self.source) - sum(len(shards[number]) for number in missing)
        begin = time.perf_counter()
        with progress_bars(wanted=progress) as start:
            advance = start("extracting", len(self.source), resumed)
            self._compute(parts, {number: shards[number] for number in missing}, workers, advance)
        seconds = time.perf_counter() - begin
        manifest = self._join(parts, len(shards))
        parts.remove()
        computed = len(self.source) - resumed
        return self._result(manifest, resumed=resumed, rate=computed / seconds if computed else None)

    def _compute(self, parts: Parts, shards: dict[int, range], workers: int, advance: Callable[[int], None]) -> None:
        """Batches end where shards end, so that no row's logits depend on where an earlier run was interrupted."""
        batches = [batch for rows in shards.values() for batch in _cut(rows, self.batch_size)]
        with closing(_read_ahead(self._read, batches, workers)) as prepared:
            for number, rows in shards.items():
                done: list[Shard] = []
                for _ in _cut(rows, self.batch_size):
                    batch, content = next(prepared)
                    done.append(self._run_batch(batch, content))
                    advance(len(batch))
                columns = zip(*(vars(shard).values() for shard in done), strict=True)
                parts.store(number, Shard(*map(np.concatenate, columns)))

    def _read(self, row: int) -> Any:
        """One input, ready for the network, or why it cannot be read."""
        try:
            raw = self.source.read(row)
        except MissingExtraError:
            raise
        except Exception as error:  # a decoder may raise anything on a damaged file
            cause = (isinstance(error, FileError) and error.__cause__) or error  # the system's own error
            if getattr(cause, "errno", None) not in _FILE_ERRORS or not self.source.location.exists():
                raise FileError(
                    f"cannot read {self.source.inputs[row]}: {cause}. Nothing is lost: run the same again to go on."
                ) from error
            return Unreadable(self.source.inputs[row], _reason(cause))
        return self.network.prepare(raw)

    def _run_batch(self, rows: range, content: list[Any]) -> Shard:
        good = [i for i, item in enumerate(content) if not isinstance(item, Unreadable)]
        bad = [i for i, item in enumerate(content) if isinstance(item, Unreadable)]
        logits = np.empty((0, self.network.n_classes), np.float32)
        if good:
            logits = self._logits([content[i] for i in good], [rows[i] for i in good])
        return Shard(
            logits,
            np.array([rows[i] for i in good], np.int64),
            np.array([rows[i] for i in bad], np.int64),
            np.array([content[i].reason for i in bad], np.str_),
        )

    def _logits(self, batch: list[Any], rows: list[int]) -> NDArray[np.float32]:
        try:
            logits = self.network.logits(batch)
        except Exception as error:  # a network may raise anything at all
            raise InputError(
                f"{self.network.name} failed on {len(batch)} inputs from {self.source.inputs[rows[0]]} on: {error} "
                "If memory ran out, start afresh with a smaller batch_size."
            ) from error
        self._check(logits, rows)
        return logits

    def _check(self, logits: NDArray[np.float32], rows: list[int]) -> None:
        expected = (len(rows), self.network.n_classes)
        if logits.shape != expected:
            raise LogitsError(f"{self.network.name} must give logits of shape {expected}; got {logits.shape}.")
        finite = np.isfinite(logits).all(1)
        if not finite.all():
            row = rows[int(np.flatnonzero(~finite)[0])]
            raise LogitsError(
                f"{self.network.name} gives NaN or infinite logits for {self.source.inputs[row]}. "
                "If this is mixed precision overflowing, use precision float32."
            )

    def _join(self, parts: Parts, n_shards: int) -> dict[str, Any]:
        """One file from all shards, and its manifest."""
        from evicp import __version__

        rows, unreadable, hits = [], [], 0
        for number in range(n_shards):
            shard = parts.load(number)
            if number == 0:
                warn_if_probabilities(shard.logits)
            rows.append(shard.rows)
            pairs = zip(shard.unreadable.tolist(), shard.reasons.tolist(), strict=True)
            unreadable += [{"input": self.source.inputs[row], "reason": reason} for row, reason in pairs]
            hits += 0 if self.labels is None else int(np.sum(shard.logits.argmax(1) == self.labels[shard.rows]))
        kept = np.concatenate(rows)
        if not len(kept):
            parts.remove()
            first = unreadable[0]
            raise FileError(f"none of {len(self.source):,} inputs could be read; {first['input']}: {first['reason']}")
        write_arrays(self.output, self._arrays(parts, n_shards, kept))
        manifest = {
            "evicp": __version__,
            "settings": self.settings(),
            "n": len(kept),
            "n_classes": self.network.n_classes,
            "accuracy": None if self.labels is None else hits / len(kept),
            "unreadable": unreadable,
        }
        storage.write_manifest(self.output, manifest)
        return manifest

    def _names(self) -> tuple[str, ...]:
        """The arrays that are written."""
        optional = {"labels": self.labels, "class_names": self.class_names}
        return ("logits", "inputs", *(name for name, content in optional.items() if content is not None))

    def _arrays(self, parts: Parts, n_shards: int, kept: I64) -> dict[str, NDArray[Any] | Stacked]:
        shape = (len(kept), self.network.n_classes)
        pieces = lambda: (parts.load(number).logits for number in range(n_shards))  # noqa: E731
        arrays: dict[str, Any] = {"logits": Stacked(shape, np.dtype("<f4"), pieces)}
        if self.labels is not None:
            arrays["labels"] = self.labels[kept].astype("<i8")
        arrays["inputs"] = np.array([self.source.inputs[row] for row in kept])
        if self.class_names is not None:
            arrays["class_names"] = np.array(self.class_names)
        return arrays

    def _result(self, manifest: dict[str, Any], *, resumed: int, rate: float | None) -> Extraction:
        return Extraction(
            path=self.output,
            network=self.network.name,
            n=manifest["n"],
            n_classes=manifest["n_classes"],
            accuracy=manifest["accuracy"],
            unreadable=tuple(Unreadable(**item) for item in manifest["unreadable"]),
            resumed=resumed,
            rate=rate,
        )


def _cut(rows: range, length: int) -> list[range]:
    """Runs of at most this many rows."""
    return [rows[i : i + length] for i in range(0, len(rows), length)]


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]


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
