"""Files: the calibration artifact, logits, sets. Written whole or not at all; read without trusting a byte."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import secrets
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from evicp import checks, kernels, stored
from evicp.calibration import Calibration
from evicp.errors import (
    ArtifactError,
    EvicpError,
    FileError,
    InputError,
    InputTypeError,
    LabelsError,
    ScoreError,
    need,
)
from evicp.groups import GROUPS, Groups, Partition
from evicp.scores import CUSTOM, ECP, SCORES, Custom, Score, as_score
from evicp.sets import PredictionSets, SetsSummary, join_sets
from evicp.shift import Weights, as_weights
from evicp.stored import RawArray, Stored

__all__ = [
    "LogitsFile",
    "SetsWriter",
    "load",
    "natural_key",
    "open_sets",
    "read_logits",
    "read_sets",
    "save_calibration",
    "scan_sets",
    "write_sets",
]

#: The artifact's format; a file of another one is refused.
FORMAT_VERSION = 1

#: Fifty thousand class names of sixty letters fit. Parsed, a header takes up to fifteen times its size: this bound
#: keeps the promise that loading takes no more than the file's size plus 64 MiB.
LARGEST_HEADER = 3 * 2**20

#: No description has more lists, objects or keys than this (class names and base rates are one list each) ...
_MOST_PARTS = 100

#: ... and no header more than the groups that fit into it, 60 bytes or more each, of two lists, an object, four keys.
_MOST_GROUPS = LARGEST_HEADER // 60
_PARTS_OF_A_GROUP = {"[": 2, "{": 1, ":": 4}


# ---------------------------------------------------------------------------------------------------------------
# Writing


@contextmanager
def atomic_path(path: str | PathLike[str]) -> Iterator[Path]:
    """A temporary path beside the target that takes its place when the block ends well, and vanishes when not.

    Whoever looks at the target, whenever, and whatever dies on the way, finds the old file or the new one.
    """
    target = as_path(path)
    temporary = target.parent / f".evicp-{secrets.token_hex(8)}.tmp"
    try:
        _refuse_special(target, "write")
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_directory(target.parent)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def as_path(path: Any) -> Path:
    if not isinstance(path, str | PathLike):
        raise InputTypeError(f"a path must be a string or a pathlib.Path; got {path!r} ({type(path).__name__}).")
    if "\0" in (text := os.fsdecode(path)):
        raise FileError(f"a path must not hold a NUL character; got {text!r}.")
    return Path(text)


def natural_key(name: str) -> list[str | int]:
    """Sort numbers inside names by value: "2" before "10".

    >>> sorted(["10", "9", "2/b", "2/a"], key=natural_key)
    ['2/a', '2/b', '9', '10']
    """
    pieces = re.split("([0-9]+)", name)
    return [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)]


def _refuse_special(path: Path, act: str) -> None:
    """A directory, a pipe or a device is no file: reading one may never end, replacing one may break a machine."""
    if path.is_dir():
        raise FileError(f"cannot {act} {path}: it is a directory. Give a file name.")
    if path.exists() and not path.is_file():
        raise FileError(f"cannot {act} {path}: it is not a regular file.")


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable; not every platform can open a directory."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---------------------------------------------------------------------------------------------------------------
# The calibration artifact: a safetensors file and a description under a checksum. Its tensors are "scores"; or, where
# there are groups, "scores.0", "scores.1", ...; and where there are weights, "weights" and "class_weights"


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _description(calibration: Calibration) -> str:
    """What is known of a calibration, as canonical JSON."""
    content = {
        "version": FORMAT_VERSION,
        "score": {"name": calibration.score.name, "parameters": calibration.score.plain_parameters()},
        "n": calibration.n,
        "n_classes": calibration.n_classes,
        "class_names": calibration.class_names,
    }
    if calibration.groups is not None:
        content["groups"] = _describe_groups(calibration.groups.by)
    if calibration.weights is not None:
        content["weights"] = "rows" if calibration.weights.classes is None else "classes"
    if calibration.chosen_on is not None:
        content["chosen_on"] = calibration.chosen_on
    if calibration.arithmetic is not None:
        content["arithmetic"] = calibration.arithmetic
    try:
        return _canonical(content)
    except (TypeError, ValueError) as error:
        raise ScoreError(f"the parameters of {calibration.score} cannot be stored as JSON: {error}.") from error


def _describe_groups(by: Groups) -> dict[str, Any]:
    return {"by": by.kind, "parameters": dataclasses.asdict(by)}


def _tensors(calibration: Calibration) -> dict[str, NDArray[np.float64]]:
    """A calibration's arrays, in the order in which its file holds them."""
    groups, weights = calibration.groups, calibration.weights
    if groups is not None:
        parts = np.split(calibration.scores, np.cumsum(groups.counts)[:-1])
        return {f"scores.{number}": part for number, part in enumerate(parts)}
    tensors = {"scores": calibration.scores}
    if weights is not None:
        tensors["weights"] = weights.rows
        if weights.classes is not None:
            tensors["class_weights"] = weights.classes
    return tensors


def _digest(description: str, tensors: dict[str, NDArray[np.float64]]) -> str:
    digest = hashlib.sha256(description.encode())
    for name, tensor in tensors.items():
        digest.update(f"\0{name}\0".encode())
        digest.update(np.ascontiguousarray(tensor, dtype="<f8").data)
    return digest.hexdigest()


def checksum(calibration: Calibration) -> str:
    """SHA-256 over a calibration's description and arrays, as its file carries it."""
    return _digest(_description(calibration), _tensors(calibration))


def save_calibration(calibration: Calibration, path: str | PathLike[str]) -> None:
    """Write a calibration, atomically. The same calibration gives the same bytes, always."""
    tensors = _tensors(calibration)
    metadata = {"evicp": _description(calibration), "sha256": checksum(calibration)}
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    header = _canonical({"__metadata__": metadata, **dict(_layout(lengths))}).encode()
    header += b" " * (-len(header) % 8)  # so that the scores are aligned
    if len(header) > LARGEST_HEADER:
        raise _too_long(len(header), len(metadata["evicp"].encode()), len(tensors))
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, dtype="<f8").data)


def _too_long(header: int, description: int, tensors: int) -> InputError:
    """Say what fills a header that is too long: groups, or names."""
    if header - description > description:
        return InputError(
            f"a calibration's groups must fit into {LARGEST_HEADER:,} bytes; the file's header would have {header:,} "
            f"for {tensors:,} groups. Calibrate with fewer groups (classes can share some: ByClass(clusters=...))."
        )
    return InputError(
        f"class names{' and groups' if tensors > 3 else ''} must fit into {LARGEST_HEADER:,} bytes; the file's header "
        f"would have {header:,}. Shorten the names, or leave them out."
    )


def _layout(lengths: dict[str, int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """How a safetensors header describes arrays of doubles that fill the rest of the file, one after the other."""
    start = 0
    for name, length in lengths.items():
        yield name, {"dtype": "F64", "shape": [length], "data_offsets": [start, start + 8 * length]}
        start += 8 * length


def load(path: str | PathLike[str], score: Score | Callable[..., Any] | None = None) -> Calibration:
    """Read a calibration. Nothing in the file is executed, and nothing in it is believed before it is checked.

    Parameters
    ----------
    path : a file written by `Calibration.save`
    score : needed where the calibration used a function of yours (a score, ECP's evidence or utility): the file only
        says "custom", so supply it again
    """
    file = _check_readable(as_path(path))
    supplied = None if score is None else as_score(score)
    try:
        metadata, tensors = _read_artifact(file)
        if _digest(metadata["evicp"], tensors) != metadata["sha256"]:
            raise ArtifactError("it is damaged: its checksum does not match its content. Calibrate again.")
        return _rebuild(_strict_json(metadata["evicp"]), tensors, supplied)
    except EvicpError as error:
        raise ArtifactError(f"cannot load {file}: {error}") from error
    except (OSError, TypeError, ValueError) as error:
        raise ArtifactError(f"cannot load {file}: it is not a calibration ({error}).") from error
    except MemoryError as error:
        raise ArtifactError(f"cannot load {file}: it is larger than the memory at hand.") from error


def _read_artifact(path: Path) -> tuple[dict[str, str], dict[str, NDArray[np.float64]]]:
    """The metadata and arrays of a safetensors file with the parts of a calibration and no others."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > min(LARGEST_HEADER, size - 8):
            raise ArtifactError(f"it is not a calibration: its header claims {length:,} bytes.")
        header = _strict_json(file.read(length).decode(), _MOST_GROUPS)
        metadata = header.pop("__metadata__", None)
        lengths = _lengths(header)
        n, rest = divmod(size - 8 - length, 8)
        if rest or not lengths or sum(lengths.values()) != n or not _laid_out(header, lengths):
            raise ArtifactError(
                "it is not a calibration: it must hold one F64 tensor, scores, that fills the file (or one per group, "
                "or scores and weights)."
            )
        if not isinstance(metadata, dict) or set(metadata) != {"evicp", "sha256"}:
            raise ArtifactError("it is a safetensors file, but not one written by evicp.")
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ArtifactError("its description and checksum must be text.")
        whole = np.fromfile(file, "<f8", n).astype(np.float64, copy=False)
        return metadata, dict(zip(lengths, np.split(whole, np.cumsum(list(lengths.values()))[:-1]), strict=True))


def _laid_out(header: dict[str, Any], lengths: dict[str, int]) -> bool:
    """Whether a header says what ours would; tensor by tensor, so that no second header is made."""
    same = (_canonical(header[name]) == _canonical(tensor) for name, tensor in _layout(lengths))
    return len(header) == len(lengths) and all(same)


def _lengths(tensors: dict[str, Any]) -> dict[str, int]:
    """How many numbers each tensor of a header claims to hold, in the order of the file; {} if it is not ours."""
    if "scores" in tensors:
        names = ["scores", "weights", "class_weights"][: len(tensors)]
    else:  # no more names than the header has
        names = [name for number in range(len(tensors)) if (name := f"scores.{number}") in tensors]
    if set(names) != set(tensors):
        return {}
    shapes: list[Any] = [tensors[name].get("shape") if isinstance(tensors[name], dict) else None for name in names]
    if not all(isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int for shape in shapes):
        return {}
    return {name: shape[0] for name, shape in zip(names, shapes, strict=True) if shape[0] >= 0}


#: A string of JSON text, or what is left of the text where its end is missing: one pass, whatever the text.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


def _strict_json(text: str, most_groups: int = 0) -> dict[str, Any]:
    """JSON of few parts beside those of groups, without duplicate keys, NaN or infinities."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ArtifactError("a key occurs twice in its description.")
        return result

    def refuse(literal: str) -> None:
        raise ArtifactError(f"its description holds {literal}.")

    bare = _STRING.sub("", text)
    if any(bare.count(mark) > _MOST_PARTS + most_groups * each for mark, each in _PARTS_OF_A_GROUP.items()):
        raise ArtifactError("its description has more parts than any calibration.")
    try:
        content = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError as error:
        raise ArtifactError("its description has more parts than any calibration, one within the other.") from error
    if not isinstance(content, dict):
        raise ArtifactError("its description is not an object.")
    return content


def _rebuild(content: dict[str, Any], tensors: dict[str, NDArray[np.float64]], supplied: Score | None) -> Calibration:
    """A calibration from a description whose every field is checked."""
    if content.get("version") != FORMAT_VERSION:
        raise ArtifactError(
            f"its format is version {content.get('version')!r}; this evicp reads version {FORMAT_VERSION}."
        )
    special = {"weights"} & set(tensors) if "scores" in tensors else {"groups"}
    if set(content) - {"arithmetic", "chosen_on"} != {"version", "score", "n", "n_classes", "class_names", *special}:
        raise ArtifactError(f"its description has the fields {', '.join(sorted(content))}.")
    n_classes = checks.as_count(content["n_classes"], "n_classes", at_least=2)
    parts = [tensor for name, tensor in tensors.items() if name.startswith("scores")]
    n = sum(map(len, parts))
    if checks.as_count(content["n"], "n") != n:
        raise ArtifactError(f"it says n = {content['n']} but holds {n} scores.")
    if not all(_ascending(part) for part in parts if len(part)):
        raise ArtifactError("its scores are not ascending numbers.")
    names = content["class_names"]
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ArtifactError("its class names are not strings.")
    score = _rebuild_score(content["score"], supplied)
    if isinstance(score, ECP):
        score.rates(n_classes)  # refuses base rates of another K
    class_names = checks.as_class_names(names, n_classes)
    whole = next(iter(tensors.values())).base  # the parts lie in it one after the other: putting them together copies
    scores = parts[0] if len(parts) == 1 or whole is None else whole[:n]
    groups = _rebuild_groups(content["groups"], parts, n_classes, class_names) if "groups" in special else None
    weights = _rebuild_weights(content["weights"], tensors, n_classes) if "weights" in special else None
    chosen_on = checks.as_count(content["chosen_on"], "chosen_on") if "chosen_on" in content else None
    arithmetic = content.get("arithmetic")
    if "arithmetic" in content and arithmetic not in kernels.ARITHMETICS:
        raise ArtifactError(f"it says its scores were made by {arithmetic!r}, which this evicp does not know.")
    return Calibration(score, scores, n_classes, class_names, groups, weights, chosen_on, arithmetic)


def _rebuild_groups(
    stored: Any, parts: list[NDArray[np.float64]], n_classes: int, class_names: tuple[str, ...] | None
) -> Partition:
    """The groups a file names, if they are those of its tensors."""
    if not isinstance(stored, dict) or set(stored) != {"by", "parameters"} or not isinstance(stored["by"], str):
        raise ArtifactError("its groups are malformed.")
    kind, parameters = GROUPS.get(stored["by"]), stored["parameters"]
    fields = set() if kind is None else {field.name for field in dataclasses.fields(kind)}
    if kind is None or not isinstance(parameters, dict) or set(parameters) != fields:
        raise ArtifactError(f"it names groups by {stored['by']!r}, which this evicp does not know.")
    by = kind(**parameters)
    names = by.names(n_classes, class_names) if by.fitted else []
    if len(names) != len(parts) or _canonical(_describe_groups(by)) != _canonical(stored):
        raise ArtifactError(f"it says it has {len(names)} groups but holds the scores of {len(parts)}.")
    return Partition(by, tuple(names), np.array([len(part) for part in parts]))


def _rebuild_weights(stored: Any, tensors: dict[str, NDArray[np.float64]], n_classes: int) -> Weights:
    """The weights of a file's scores."""
    if stored != ("classes" if "class_weights" in tensors else "rows"):
        raise ArtifactError(f"it says it has weights of {stored!r}, which are not those it holds.")
    classes = tensors.get("class_weights")
    return Weights(
        as_weights(tensors["weights"], len(tensors["scores"])),
        None if classes is None else as_weights(classes, n_classes, "class_weights"),
    )


def _ascending(scores: NDArray[np.float64], step: int = 1 << 20) -> bool:
    """Whether no score is NaN or below the one before; in steps, so that no second array of n is made."""
    parts = (scores[start : start + step + 1] for start in range(0, len(scores), step))
    return not np.isnan(scores[0]) and all(bool(np.all(part[:-1] <= part[1:])) for part in parts)


def _rebuild_score(stored: Any, supplied: Score | None) -> Score:
    """The score a file names, with the functions the user supplies again."""
    if not isinstance(stored, dict) or set(stored) != {"name", "parameters"}:
        raise ArtifactError("its score is malformed.")
    name, parameters = stored["name"], stored["parameters"]
    if not isinstance(name, str) or not isinstance(parameters, dict):
        raise ArtifactError("its score is malformed.")
    if supplied is not None:
        if (supplied.name, supplied.plain_parameters()) != (name, _retupled(parameters)):
            raise ScoreError(
                f"it was made with the score {name} {parameters}; got {supplied.name} {supplied.plain_parameters()}."
            )
        return supplied
    if name == CUSTOM or CUSTOM in parameters.values():
        raise ScoreError("it was made with a function of yours. Supply it again: evicp.load(path, score=...).")
    kind = SCORES.get(name)
    if kind is None or kind is Custom or set(parameters) != {field.name for field in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        raise ScoreError(
            f"it names the score {name!r} with parameters {', '.join(sorted(parameters)) or 'none'}, which this evicp "
            "does not know. If it is a score of yours, supply it: evicp.load(path, score=...)."
        )
    return as_score(kind(**parameters))


def _retupled(parameters: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where scores have tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()}


# ---------------------------------------------------------------------------------------------------------------
# Logits and sets


@dataclass(frozen=True, eq=False)
class LogitsFile:
    """Logits read from a file, with labels where the file has them. npy files stay on disk (memory-mapped)."""

    logits: NDArray[Any]
    labels: NDArray[Any] | None


def read_logits(path: str | PathLike[str], labels: str | PathLike[str] | None = None) -> LogitsFile:
    """Read logits (and labels) from npz, npy (labels in a second file), safetensors or parquet.

    npz and safetensors hold arrays `logits` and `labels`; parquet holds a fixed-size list column `logits` and an
    integer column `labels`.
    """
    result = parsed(path, {**_ARRAYS, ".parquet": read_parquet}, "logits")
    if isinstance(result, StoredLogits):
        result = result.whole()
    return result if labels is None else dataclasses.replace(result, labels=open_labels(labels).whole())


def open_labels(path: str | PathLike[str]) -> Stored:
    """The labels in an npy file, to be read in pieces."""
    return parsed(path, {".npy": stored.open_npy}, "labels")


class StoredLogits(NamedTuple):
    """Logits where they lie, with labels where the file has them."""

    logits: Stored
    labels: Stored | None

    def whole(self) -> LogitsFile:
        """All of them, as arrays."""
        return LogitsFile(self.logits.whole(), None if self.labels is None else self.labels.whole())


def _named(arrays: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, Any]:
    """Logits and labels, if any, among what a file holds under these names."""
    if "logits" not in names:
        raise FileError(f"it has no array 'logits'; it has {', '.join(sorted(names)) or 'none'}.")
    return arrays["logits"], arrays.get("labels")


_WANTED = ("logits", "labels")
#: Files of arrays, by suffix.
_ARRAYS: Mapping[str, Callable[[Path], StoredLogits]] = MappingProxyType(
    {
        ".npz": lambda path: StoredLogits(*_named(*stored.open_npz(path, _WANTED))),
        ".npy": lambda path: StoredLogits(stored.open_npy(path), None),
        ".safetensors": lambda path: StoredLogits(*_named(*stored.open_safetensors(path, _WANTED))),
    }
)


def open_logits(path: str | PathLike[str], more: Mapping[str, Callable[[Path], Any]]) -> Any:
    """The logits of a file of arrays, where they lie; or what the reader for its suffix among `more` gives."""
    return parsed(path, {**_ARRAYS, **more}, "logits")


def parsed(path: str | PathLike[str], readers: Mapping[str, Callable[[Path], Any]], what: str) -> Any:
    """What the reader for this suffix makes of a file; whatever a parser raises becomes one typed error."""
    file = as_path(path)
    if file.suffix not in readers:
        raise FileError(
            f"cannot read {what} from {file}: unknown suffix {file.suffix!r}; known are {', '.join(readers)}."
        )
    _check_readable(file)
    try:
        return readers[file.suffix](file)
    except EvicpError as error:
        raise (error if isinstance(error, ImportError) else FileError(f"cannot read {file}: {error}")) from error
    except Exception as error:
        raise FileError(f"cannot read {file}: it is not a {file.suffix} file of {what} ({error}).") from error


def typed(source: str, pieces: Iterator[Any]) -> Iterator[Any]:
    """Whatever a parser raises on the way through a file becomes one typed error; what users raise stays theirs."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration:
            return
        except EvicpError as error:
            plain = isinstance(error, LabelsError) or str(error).startswith("cannot read")
            raise (error if plain else FileError(f"cannot read {source}: {error}")) from error
        except Exception as error:
            raise FileError(f"cannot read {source}: it is damaged ({error}).") from error
        yield piece


def _check_readable(path: Path) -> Path:
    try:
        _refuse_special(path, "read")
        with path.open("rb"):
            return path
    except FileNotFoundError as error:
        raise FileError(f"cannot read {path}: no such file.") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error


def parquet_file(path: Path, *, streamed: bool = False) -> Any:
    """A parquet file; streamed, pages are read as they are needed, not whole columns of a row group."""
    pq = need("pyarrow.parquet", "pyarrow", "parquet", "a parquet file")
    return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) if streamed else pq.ParquetFile(path)


def read_parquet(path: Path) -> LogitsFile:
    """The logits and labels of a parquet file."""
    with parquet_file(path) as file:
        names = file.schema_arrow.names
        table = file.read([name for name in _WANTED if name in names])
    arrays = {name: table[name].combine_chunks() for name in table.column_names}
    if "logits" in arrays:
        arrays["logits"] = matrix(arrays["logits"])
    if "labels" in arrays:
        arrays["labels"] = arrays["labels"].to_numpy(zero_copy_only=False)
    return LogitsFile(*_named(arrays, names))


def matrix(column: Any) -> NDArray[Any]:
    """A list column whose lists all have one length, as an (n, K) array."""
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if column.null_count or len(lengths) > 1:
        raise FileError("its logits are lists of different lengths, or missing.")
    width = lengths[0] if lengths else getattr(column.type, "list_size", 0)
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), width)


def write_sets(sets: PredictionSets, path: str | PathLike[str]) -> None:
    """Write sets to parquet, npz or JSON lines, as the suffix says, atomically."""
    with open_sets(path) as file:
        file.append(sets)


class SetsFile(Protocol):
    """A file of sets that grows block by block."""

    def __init__(self, path: Path) -> None: ...

    def append(self, sets: PredictionSets, first_row: int) -> None:
        """Write the sets of the next rows."""
        ...

    def finish(self) -> None:
        """Write what comes last."""
        ...

    def close(self) -> None:
        """Let go of everything; called in any case, once."""
        ...


class SetsWriter:
    """Sets on their way to a file: rows so far, and what the sets are like."""

    def __init__(self, file: SetsFile) -> None:
        self._file = file
        self.summary: SetsSummary | None = None

    def append(self, sets: PredictionSets) -> None:
        """Write the sets of the next rows."""
        self._file.append(sets, 0 if self.summary is None else self.summary.rows)
        summary = SetsSummary.of(sets)
        self.summary = summary if self.summary is None else self.summary + summary


@contextmanager
def open_sets(path: str | PathLike[str], more: Mapping[str, type[SetsFile]] | None = None) -> Iterator[SetsWriter]:
    """A file of sets to be written block by block, that appears when the block of code ends well, and not before.

    Parameters
    ----------
    path : ends in .parquet, .npz or .jsonl
    more : further formats by suffix
    """
    target = as_path(path)
    kinds: dict[str, type[SetsFile]] = {
        ".parquet": _ParquetSets,
        ".npz": _NpzSets,
        ".jsonl": _JsonLines,
        **(more or {}),
    }
    if target.suffix not in kinds:
        raise FileError(f"cannot write {target}: unknown suffix {target.suffix!r}; known are {', '.join(kinds)}.")
    with atomic_path(target) as temporary:
        file = kinds[target.suffix](temporary)
        try:
            writer = SetsWriter(file)
            yield writer
            if writer.summary is None:
                raise InputError("no sets were given to write.")
            file.finish()
        finally:
            file.close()


def _about(sets: PredictionSets) -> dict[str, Any]:
    """What sets remember beside their labels."""
    return {
        "n_classes": sets.n_classes,
        "coverage": str(sets.coverage),
        "score": sets.score,
        "n_calibration": sets.n_calibration,
        "filled": sets.filled,
        "class_names": sets.class_names,
        "confidence": sets.confidence,
        "guarantee": sets.guarantee,
    }


class _ParquetSets:
    """Parquet: one row group per block."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")  # not by name: Arrow's own errors are of another kind
        self._writer: Any = None

    def append(self, sets: PredictionSets, first_row: int) -> None:
        table = sets.to_arrow(first_row)
        import pyarrow.parquet as pq

        if self._writer is None:
            about = {"evicp": json.dumps(_about(sets))}
            self._writer = pq.ParquetWriter(self._file, table.schema.with_metadata(about))
        self._writer.write_table(table.cast(self._writer.schema))

    def finish(self) -> None:
        self._writer.close()

    def close(self) -> None:
        with suppress(OSError):  # said already, where it matters
            if self._writer is not None and self._writer.is_open:
                self._writer.close()
        with suppress(OSError):
            self._file.close()


class _NpzSets:
    """npz: its arrays wait in nameless files beside it until their lengths are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115 - closed by close()
        self._labels = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115
        self._about: dict[str, Any] = {}

    def append(self, sets: PredictionSets, first_row: int) -> None:  # noqa: ARG002
        self._about = _about(sets)
        self._sizes.write(sets.sizes.data)
        self._labels.write(np.ascontiguousarray(sets.labels).data)

    def finish(self) -> None:
        # As np.savez does, which leaves its archive open when the disk is full.
        with zipfile.ZipFile(self._path, "w") as archive:
            _zip_array(archive, "offsets", self._sizes.tell() // 8 + 1, self._offsets())
            _zip_array(archive, "labels", self._labels.tell() // 4, _spooled(self._labels, np.int32))
            with archive.open("about.npy", "w") as entry:
                np.lib.format.write_array(entry, np.array(json.dumps(self._about)), allow_pickle=False)

    def _offsets(self) -> Iterator[NDArray[np.int64]]:
        """Sizes added up, block by block."""
        end = np.zeros(1, np.int64)
        yield end
        for sizes in _spooled(self._sizes, np.int64):
            ends = end[-1:] + np.cumsum(sizes)
            yield ends
            end = ends

    def close(self) -> None:
        for file in (self._sizes, self._labels):
            with suppress(OSError):
                file.close()


def _spooled(file: Any, dtype: Any, values: int = 1 << 18) -> Iterator[NDArray[Any]]:
    """What was written to a temporary file, in pieces."""
    file.seek(0)
    while data := file.read(values * np.dtype(dtype).itemsize):
        yield np.frombuffer(data, dtype)


def _zip_array(archive: zipfile.ZipFile, name: str, length: int, pieces: Iterator[NDArray[Any]]) -> None:
    """An array of known length as a member of an npz file."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
        descr = np.lib.format.dtype_to_descr(np.dtype(np.int64 if name == "offsets" else np.int32))
        header = {"descr": descr, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(entry, header)
        for piece in pieces:
            entry.write(piece.data)


class _JsonLines:
    """JSON lines: one object per row."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def append(self, sets: PredictionSets, first_row: int) -> None:
        for line in set_lines(sets, first_row):
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def finish(self) -> None:
        self._file.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


def set_lines(sets: PredictionSets, first_row: int = 0) -> Iterator[dict[str, Any]]:
    """Each set as a JSON object."""
    for row, labels in enumerate(sets):
        line: dict[str, Any] = {"row": first_row + row, "labels": labels.tolist(), "size": len(labels)}
        if sets.class_names is not None:
            line["names"] = sets.names(row)
        yield line


def read_sets(path: str | PathLike[str]) -> PredictionSets:
    """Read sets written to parquet or npz (JSON lines do not keep what the sets remember)."""
    return join_sets(list(scan_sets(path)))


def scan_sets(path: str | PathLike[str], step: int = 1 << 16) -> Iterator[PredictionSets]:
    """Sets written to parquet or npz, about `step` rows at a time."""
    readers = {".parquet": partial(_scan_parquet, step=step), ".npz": partial(_scan_npz, step=step)}
    about, pieces = parsed(path, readers, "sets")
    content: dict[str, Any] = {}
    for offsets, labels in typed(str(path), pieces):
        try:
            content = content or _strict_json(about)
            yield _rebuild_sets(content, offsets, labels)
        except (EvicpError, KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise FileError(f"cannot read {path}: it does not hold sets written by evicp ({error}).") from error


def _scan_parquet(path: Path, step: int) -> tuple[str, Iterator[Any]]:
    with parquet_file(path) as file:
        about = file.schema_arrow.metadata[b"evicp"].decode()

    def pieces() -> Iterator[Any]:
        with parquet_file(path, streamed=True) as file:
            if not file.metadata.num_rows:
                yield np.zeros(1, np.int64), np.empty(0, np.int32)
            for batch in file.iter_batches(step, columns=["labels"], use_threads=False):
                yield _lists(batch.column("labels"))

    return about, pieces()


def _scan_npz(path: Path, step: int) -> tuple[str, Iterator[Any]]:
    arrays, _ = stored.open_npz(path, ("about", "offsets", "labels"))
    about, offsets, labels = (arrays[name] for name in ("about", "offsets", "labels"))
    if not isinstance(offsets, RawArray) or not isinstance(labels, RawArray) or not _fit(offsets, labels):
        return str(about.whole()), iter([(offsets.whole(), labels.whole())])

    def pieces() -> Iterator[Any]:
        n = offsets.shape[0] - 1
        for start in range(0, max(1, n), step):
            ends = offsets.read(start, min(start + step, n) + 1).astype(np.int64)
            yield ends - ends[0], labels.read(int(ends[0]), int(ends[-1]))

    return str(about.whole()), pieces()


def _fit(offsets: RawArray, labels: RawArray) -> bool:
    """Whether offsets begin and end where the labels do, so that pieces of either can be read."""
    if offsets.dtype.kind not in "iu" or len(offsets.shape) != 1 or not offsets.shape[0] or len(labels.shape) != 1:
        return False
    first, last = (int(offsets.read(row, row + 1)[0]) for row in (0, offsets.shape[0] - 1))
    return first == 0 and last == labels.shape[0]


def _lists(column: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Offsets from 0 and labels of a column of lists."""
    if column.null_count:
        raise FileError("its labels are missing in some rows.")
    offsets = np.asarray(column.offsets).astype(np.int64)
    return offsets - offsets[0], np.asarray(column.flatten())


def _rebuild_sets(about: dict[str, Any], offsets: NDArray[Any], labels: NDArray[Any]) -> PredictionSets:
    """Sets from a file's parts, each of which is checked."""
    n_classes = checks.as_count(about["n_classes"], "n_classes", at_least=2)
    names, n_calibration, confidence = about["class_names"], about["n_calibration"], about["confidence"]
    if offsets.ndim != 1 or labels.ndim != 1 or offsets.dtype.kind not in "iu" or labels.dtype.kind not in "iu":
        raise InputError("offsets and labels are not whole numbers")
    if not len(offsets) or offsets[0] or offsets[-1] != len(labels) or np.any(offsets[1:] < offsets[:-1]):
        raise InputError("offsets and labels do not fit together")
    if np.any((labels < 0) | (labels >= n_classes)):
        raise InputError(f"labels are not in [0, {n_classes})")
    kinds = {"score": str, "filled": bool, "coverage": str, "guarantee": str}
    if not all(isinstance(about[name], kind) for name, kind in kinds.items()):
        raise InputError("its description is malformed")
    numerator, denominator = about["coverage"].split("/")
    return PredictionSets(
        offsets.astype(np.int64),
        labels.astype(np.int32),
        n_classes=n_classes,
        coverage=checks.as_coverage(Fraction(int(numerator), int(denominator))),
        score=about["score"],
        n_calibration=None if n_calibration is None else checks.as_count(n_calibration, "n_calibration"),
        filled=about["filled"],
        class_names=checks.as_class_names(names, n_classes),
        confidence=None if confidence is None else checks.as_probability(confidence, "confidence"),
        guarantee=about["guarantee"],
    )
