"""`extract`: from a network and its inputs to a file of logits, in shards that survive interruption."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import __version__
from evicp.calibration.source import RowSource
from evicp.errors import FileError, InputError
from evicp.extraction import storage
from evicp.extraction.batches import Unreadable, compute, cut
from evicp.extraction.network import Network, Prompting, Transform
from evicp.extraction.networks import open_network
from evicp.extraction.sources import Source, network_labels, open_source
from evicp.extraction.storage import Shards
from evicp.input import validate
from evicp.input.classes import ClassAxis, as_class_names
from evicp.input.messages import some_of
from evicp.input.warn import warn_if_probabilities
from evicp.io.arrays import ARRAY_SUFFIXES, Stacked, write_arrays
from evicp.io.atomic import refuse_target
from evicp.progress import progress_bars
from evicp.types import I64

#: The settings of a network that say how its inputs are prepared.
_PREPARATION = ("transform", "processor", "tokenizer", "longest", "task", "prompt")


@dataclass(frozen=True)
class Extraction:
    """The result of an extraction.

    Parameters
    ----------
    path : Path
        The file of logits.
    network : str
        The network's name.
    n, n_classes : int
        Shape of the logits.
    accuracy : float, or None without labels
        The share of rows whose largest logit is their label's.
    unreadable : tuple of Unreadable
        Inputs that were left out.
    resumed : int
        Rows that an earlier, interrupted run had finished.
    rate : float, or None if all inputs were done before
        Inputs per second of this run.
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
        lines.append(f"{self.rate:.1f} inputs a second" if self.rate else "all inputs were done")
        if self.unreadable:
            lines.append(f"{len(self.unreadable):,} could not be read and were skipped:")
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
    choices_column: str | None = None,
    prompting: Prompting | None = None,
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
    """Write the logits and labels of images, texts or questions; an interrupted call continues where it stopped.

    Parameters
    ----------
    network, weights, transform, device, precision, prompting : see `open_network`
    source, labels, split, input_column, label_column, choices_column : see `open_source`
    output : a file ending in npz (`logits`, `labels`, `inputs`, `class_names`, `source`), safetensors or npy (one each)
    class_names, trust_labels : the network's classes, if it does not contain them; use label numbers unchecked
    batch_size, shard_size : inputs per batch, and per shard; an interruption loses at most one shard
    workers, force, progress : threads that read inputs (one per processor by default); start again; show a bar
    """
    target = _Target(Path(output), batch_size, shard_size, workers)
    columns = {"input_column": input_column, "label_column": label_column, "choices_column": choices_column}
    opened = open_source(source, labels=labels, split=split, **columns)
    where = {"device": device, "precision": precision}
    net = open_network(network, weights=weights, transform=transform, prompting=prompting, **where)
    return _job(net, opened, target, class_names, trust_labels=trust_labels).result(force=force, progress=progress)


@dataclass(frozen=True)
class _Target:
    """Where logits are written, and how many inputs at once; refused before anything is opened."""

    output: Path
    batch_size: int
    shard_size: int
    workers: int | None

    def __post_init__(self) -> None:
        refuse_target(self.output, ARRAY_SUFFIXES)
        validate.as_count(self.batch_size, "batch_size")
        validate.as_count(self.shard_size, "shard_size")
        if self.workers is not None:
            validate.as_count(self.workers, "workers", at_least=0)


def _job(network: Network, source: Source, target: _Target, class_names: Any, *, trust_labels: bool) -> _Job:
    """The work to be done, if the network, its classes and the source belong together."""
    if network.for_source is not None:
        network, source = network.for_source(source, class_names)
    if network.modality != source.modality:
        raise InputError(f"{network.name} takes {network.modality}s; {source.location} holds {source.modality}s.")
    names = as_class_names(class_names, network.n_classes) or network.class_names
    labels = network_labels(source, network.n_classes, names, trusted=trust_labels)
    if labels is not None and ClassAxis(network.n_classes, names).labels(labels) is not labels:
        raise InputError(
            f"the classes of {network.name} are numbers of other classes ({some_of(names or ())}), so labels in a file "
            "are ambiguous. Give other class_names."
        )
    return _Job(network, source, labels, names, target)


@dataclass(frozen=True, eq=False)
class _Job:
    """One network over one source into one file."""

    network: Network
    source: Source
    labels: I64 | None
    class_names: tuple[str, ...] | None
    target: _Target

    @property
    def output(self) -> Path:
        return self.target.output

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything the bytes of the result depend on."""
        return {
            "network": self.network.name,
            **self.network.settings,
            "inputs": self.source.digest(self.labels),
            "n_inputs": len(self.source),
            "class_names": self.class_names and storage.text_digest(self.class_names),
            "batch_size": self.target.batch_size,
            "shard_size": self.target.shard_size,
        }

    def result(self, *, force: bool, progress: bool) -> Extraction:
        """That of an earlier run, or of this one. Interrupted or not, the file is the same, byte for byte."""
        return self.finished(force=force) or self.run(force=force, progress=progress)

    def finished(self, *, force: bool) -> Extraction | None:
        """The result of an earlier run that came to its end, if this would be the same."""
        shards = Shards(self.output)
        before = shards.settings()
        again = force or (before is not None and not storage.differences(before, self.settings))
        optional = {"labels": self.labels, "class_names": self.class_names}
        written = {"logits", "inputs", "source", *(name for name, content in optional.items() if content is not None)}
        storage.refuse_companions(self.output, written, force=again)
        if again or not self.output.exists():
            return None
        manifest = storage.read_manifest(self.output)
        if manifest is not None:
            storage.check_same_settings(self.output, manifest["settings"], self.settings)
            shards.remove()  # what a run killed while it tidied up has left
            return self._result(manifest, resumed=len(self.source), rate=None)
        raise FileError(
            f"{self.output} exists and is not a result of this command. Use force (--force) to overwrite it."
        )

    def run(self, *, force: bool, progress: bool) -> Extraction:
        """Compute the shards that are missing, then join them."""
        shards, n = Shards(self.output), len(self.source)
        shards.begin(self.settings, force=force)
        ranges = cut(range(n), self.target.shard_size)
        missing = {number: rows for number, rows in enumerate(ranges) if not shards.has(number)}
        computed = sum(map(len, missing.values()))
        workers = min(16, cpu_count() or 1) if self.target.workers is None else self.target.workers
        how = {"batch_size": self.target.batch_size, "workers": workers}
        begin = time.perf_counter()
        with progress_bars(wanted=progress) as start:
            advance = start("extracting", n, n - computed)
            with closing(compute(self.network, self.source, [*missing.values()], advance=advance, **how)) as made:
                for number, shard in zip(missing, made, strict=True):
                    shards.store(number, shard)
        seconds = time.perf_counter() - begin
        manifest = self._join(shards, len(ranges))
        shards.remove()
        return self._result(manifest, resumed=n - computed, rate=computed / seconds if computed else None)

    def _join(self, shards: Shards, n_shards: int) -> dict[str, Any]:
        """One file from all shards, and its manifest."""
        rows, unreadable, hits = [], [], 0
        for number in range(n_shards):
            shard = shards.load(number)
            if number == 0:
                warn_if_probabilities(shard.logits)
            rows.append(shard.rows)
            pairs = zip(shard.unreadable.tolist(), shard.reasons.tolist(), strict=True)
            unreadable += [{"input": self.source.inputs[row], "reason": reason} for row, reason in pairs]
            hits += 0 if self.labels is None else int(np.sum(shard.logits.argmax(1) == self.labels[shard.rows]))
        kept = np.concatenate(rows)
        if not len(kept):
            shards.remove()
            first = unreadable[0]
            raise FileError(f"none of {len(self.source):,} inputs could be read; {first['input']}: {first['reason']}")
        write_arrays(self.output, self._arrays(shards, n_shards, kept))
        manifest = {
            "evicp": __version__,
            "settings": self.settings,
            "n": len(kept),
            "n_classes": self.network.n_classes,
            "accuracy": None if self.labels is None else hits / len(kept),
            "unreadable": unreadable,
        }
        storage.write_manifest(self.output, manifest)
        return manifest

    def _arrays(self, shards: Shards, n_shards: int, kept: I64) -> dict[str, NDArray[Any] | Stacked]:
        shape = (len(kept), self.network.n_classes)
        pieces = lambda: (shards.load(number).logits for number in range(n_shards))  # noqa: E731
        arrays: dict[str, Any] = {"logits": Stacked(shape, np.dtype("<f4"), pieces)}
        if self.labels is not None:
            arrays["labels"] = self.labels[kept].astype("<i8")
        arrays["inputs"] = np.array([self.source.inputs[row] for row in kept])
        if self.class_names is not None:
            arrays["class_names"] = np.array(self.class_names)
        arrays["source"] = np.array([*self._made_by().to_dict().items()])
        return arrays

    def _made_by(self) -> RowSource:
        """What later tells rows of this network, fed so, from others."""
        settings = self.settings
        prepared = {name: settings[name] for name in _PREPARATION if name in settings}
        text = json.dumps(prepared, sort_keys=True)
        parameters = settings.get("parameters")
        return RowSource(
            self.network.name,
            storage.text_digest(parameters) if isinstance(parameters, list) else parameters,
            None if storage.UNKNOWN in text else text,
            self.source.location.name,
        )

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
