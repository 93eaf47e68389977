"""Files: the calibration artifact, logits, sets. Written whole or not at all; read without trusting a byte."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp import checks
from evicp.calibration import Calibration
from evicp.errors import ArtifactError, EvicpError, FileError, InputError, ScoreError, missing_extra
from evicp.scores import SCORES, Custom, Score, as_score
from evicp.sets import PredictionSets

__all__ = ["LogitsFile", "load", "read_logits", "read_sets", "save_calibration", "write_sets"]

#: The artifact's format; a file of another one is refused.
FORMAT_VERSION = 1

#: Half a million class names fit; a hostile header does not get to allocate more.
LARGEST_HEADER = 32 * 2**20

_CUSTOM = "custom"


# ---------------------------------------------------------------------------------------------------------------
# Writing


@contextmanager
def atomic_path(path: str | PathLike[str]) -> Iterator[Path]:
    """A temporary path beside the target that takes its place when the block ends well, and vanishes when not.

    Whoever looks at the target, whenever, and whatever dies on the way, finds the old file or the new one.
    """
    target = Path(path)
    if target.is_dir():
        raise FileError(f"cannot write {target}: it is a directory. Give a file name.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_directory(target.parent)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable; not every platform can open a directory."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---------------------------------------------------------------------------------------------------------------
# The calibration artifact: a safetensors file with one tensor, "scores", and a description under a checksum


def plain_parameters(score: Score) -> dict[str, Any]:
    """A score's parameters as JSON values; a user's function is stored as "custom"."""
    return {name: _CUSTOM if callable(value) else value for name, value in score.parameters().items()}


def _description(calibration: Calibration) -> str:
    """What is known of a calibration, as canonical JSON."""
    content = {
        "version": FORMAT_VERSION,
        "score": {"name": calibration.score.name, "parameters": plain_parameters(calibration.score)},
        "n": calibration.n,
        "n_classes": calibration.n_classes,
        "class_names": calibration.class_names,
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest(description: str, scores: NDArray[np.float64]) -> str:
    digest = hashlib.sha256(description.encode())
    digest.update(b"\0scores\0")
    digest.update(np.ascontiguousarray(scores, dtype="<f8").data)
    return digest.hexdigest()


def checksum(calibration: Calibration) -> str:
    """SHA-256 over a calibration's description and scores, as its file carries it."""
    return _digest(_description(calibration), calibration.scores)


def save_calibration(calibration: Calibration, path: str | PathLike[str]) -> None:
    """Write a calibration, atomically."""
    from safetensors.numpy import save

    metadata = {"evicp": _description(calibration), "sha256": checksum(calibration)}
    data = save({"scores": np.ascontiguousarray(calibration.scores)}, metadata)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def load(path: str | PathLike[str], score: Score | Callable[..., Any] | None = None) -> Calibration:
    """Read a calibration. Nothing in the file is executed, and nothing in it is believed before it is checked.

    Parameters
    ----------
    path : a file written by `Calibration.save`
    score : needed where the calibration used a function of yours (a score, ECP's evidence or utility): the file only
        says "custom", so supply it again
    """
    header, scores = _read_artifact(Path(path))
    try:
        description = _strict_json(header["evicp"])
        if _digest(header["evicp"], scores) != header["sha256"]:
            raise ArtifactError(f"{path} is damaged: its checksum does not match its content. Calibrate again.")
        return _rebuild(description, scores, score)
    except ArtifactError:
        raise
    except (EvicpError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not a calibration evicp can use: {error}") from error


def _read_artifact(path: Path) -> tuple[dict[str, str], NDArray[np.float64]]:
    """The metadata and scores of a safetensors file, of the expected shape and no other."""
    from safetensors import SafetensorError, safe_open

    _check_readable(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > min(LARGEST_HEADER, path.stat().st_size - 8):
        raise ArtifactError(f"{path} is not a calibration: its header claims {length:,} bytes.")
    try:
        with safe_open(path, framework="np") as file:
            metadata, names = file.metadata() or {}, set(file.keys())
            if set(metadata) != {"evicp", "sha256"} or names != {"scores"}:
                raise ArtifactError(f"{path} is a safetensors file, but not one written by evicp.")
            part = file.get_slice("scores")
            if part.get_dtype() != "F64" or len(part.get_shape()) != 1:
                raise ArtifactError(
                    f"{path} holds scores of type {part.get_dtype()}, shape {part.get_shape()}; expected F64, (n,)."
                )
            return metadata, file.get_tensor("scores")
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is not a calibration: {error}") from error


def _strict_json(text: str) -> dict[str, Any]:
    """JSON without duplicate keys, NaN or infinities."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ArtifactError("a key occurs twice in its description.")
        return result

    def refuse(literal: str) -> None:
        raise ArtifactError(f"its description holds {literal}.")

    content = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    if not isinstance(content, dict):
        raise ArtifactError("its description is not an object.")
    return content


def _rebuild(content: dict[str, Any], scores: NDArray[np.float64], supplied: Any) -> Calibration:
    """A calibration from a description whose every field is checked."""
    if content.get("version") != FORMAT_VERSION:
        raise ArtifactError(
            f"its format is version {content.get('version')!r}; this evicp reads version {FORMAT_VERSION}."
        )
    if set(content) != {"version", "score", "n", "n_classes", "class_names"}:
        raise ArtifactError(f"its description has the fields {sorted(content)}.")
    n_classes = checks.as_count(content["n_classes"], "n_classes", at_least=2)
    if checks.as_count(content["n"], "n") != len(scores):
        raise ArtifactError(f"it says n = {content['n']} but holds {len(scores)} scores.")
    if np.isnan(scores).any() or np.any(scores[1:] < scores[:-1]):
        raise ArtifactError("its scores are not ascending numbers.")
    names = content["class_names"]
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ArtifactError("its class names are not strings.")
    return Calibration(
        _rebuild_score(content["score"], supplied), scores, n_classes, checks.as_class_names(names, n_classes)
    )


def _rebuild_score(stored: dict[str, Any], supplied: Any) -> Score:
    """The score a file names, with the functions the user supplies again."""
    if set(stored) != {"name", "parameters"} or not isinstance(stored["parameters"], dict):
        raise ArtifactError("its score is malformed.")
    name, parameters = stored["name"], stored["parameters"]
    needs_user = name == _CUSTOM or _CUSTOM in parameters.values()
    if supplied is None and needs_user:
        raise ScoreError("it was made with a function of yours; supply it again: evicp.load(path, score=...).")
    if supplied is not None:
        given = as_score(supplied)
        if (given.name, plain_parameters(given)) != (name, _retupled(parameters)):
            raise ScoreError(
                f"it was made with the score {name} {parameters}; got {given.name} {plain_parameters(given)}."
            )
        return given
    kind = SCORES.get(name)
    if kind is None or kind is Custom or set(parameters) != {field.name for field in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        raise ScoreError(
            f"it names the score {name!r} with parameters {sorted(parameters)}, which this evicp does not know."
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
    file = Path(path)
    readers = {".npz": _read_npz, ".npy": _read_npy, ".safetensors": _read_safetensors, ".parquet": _read_parquet}
    if file.suffix not in readers:
        raise FileError(f"cannot read {file}: unknown suffix {file.suffix!r}; known are {', '.join(readers)}.")
    _check_readable(file)
    try:
        result = readers[file.suffix](file)
    except EvicpError:
        raise
    except Exception as error:  # whatever a parser raises on a malformed file becomes one typed error
        raise FileError(f"cannot read {file}: it is not a {file.suffix} file of logits ({error}).") from error
    if labels is not None:
        result = dataclasses.replace(result, labels=_read_npy(_check_readable(Path(labels))).logits)
    return result


def _check_readable(path: Path) -> Path:
    if path.is_dir():
        raise FileError(f"cannot read {path}: it is a directory. Give a file name.")
    try:
        with path.open("rb"):
            return path
    except FileNotFoundError as error:
        raise FileError(f"cannot read {path}: no such file.") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error


def _named(arrays: Any, names: set[str], path: Path) -> LogitsFile:
    if "logits" not in names:
        raise FileError(f"cannot read {path}: it has no array 'logits'; it has {', '.join(sorted(names)) or 'none'}.")
    return LogitsFile(arrays["logits"], arrays["labels"] if "labels" in names else None)


def _read_npz(path: Path) -> LogitsFile:
    with np.load(path, allow_pickle=False) as arrays:
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise FileError(f"cannot read {path}: it is an npy file, not npz. Rename it.")
        return _named(arrays, set(arrays.files), path)


def _read_npy(path: Path) -> LogitsFile:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise FileError(f"cannot read {path}: it is an npz file, not npy. Rename it.")
    return LogitsFile(array, None)


def _read_safetensors(path: Path) -> LogitsFile:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        names = set(file.keys())
        return _named({name: file.get_tensor(name) for name in names & {"logits", "labels"}}, names, path)


def _read_parquet(path: Path) -> LogitsFile:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing_extra("pyarrow", "parquet", "a parquet file") from error

    table = pq.read_table(path, columns=[n for n in pq.read_schema(path).names if n in ("logits", "labels")])
    arrays = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if name == "logits":
            flat = column.flatten().to_numpy(zero_copy_only=False)
            if len(flat) % max(1, len(column)):
                raise FileError(f"cannot read {path}: its logits are lists of different lengths.")
            arrays[name] = flat.reshape(len(column), -1)
        else:
            arrays[name] = column.to_numpy(zero_copy_only=False)
    return _named(arrays, set(arrays), path)


def write_sets(sets: PredictionSets, path: str | PathLike[str]) -> None:
    """Write sets to parquet, npz or JSON lines, as the suffix says, atomically."""
    file = Path(path)
    writers = {".parquet": _write_parquet, ".npz": _write_npz, ".jsonl": _write_jsonl}
    if file.suffix not in writers:
        raise FileError(f"cannot write {file}: unknown suffix {file.suffix!r}; known are {', '.join(writers)}.")
    with atomic_path(file) as temporary:
        writers[file.suffix](sets, temporary)


def _about(sets: PredictionSets) -> dict[str, Any]:
    """What sets remember beside their labels."""
    return {
        "n_classes": sets.n_classes,
        "coverage": str(sets.coverage),
        "score": sets.score,
        "n_calibration": sets.n_calibration,
        "filled": sets.filled,
        "class_names": sets.class_names,
    }


def _write_parquet(sets: PredictionSets, path: Path) -> None:
    table = sets.to_arrow()
    import pyarrow.parquet as pq

    about = {"evicp": json.dumps(_about(sets))}
    pq.write_table(table.replace_schema_metadata(about), path)


def _write_npz(sets: PredictionSets, path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, offsets=sets.offsets, labels=sets.labels, about=np.array(json.dumps(_about(sets))))


def _write_jsonl(sets: PredictionSets, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row, labels in enumerate(sets):
            line = {"row": row, "labels": labels.tolist(), "size": len(labels)}
            if sets.class_names is not None:
                line["names"] = sets.names(row)
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read_sets(path: str | PathLike[str]) -> PredictionSets:
    """Read sets written to parquet or npz (JSON lines do not keep what the sets remember)."""
    from fractions import Fraction

    file = _check_readable(Path(path))
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                about, offsets, labels = str(arrays["about"]), arrays["offsets"], arrays["labels"]
        elif file.suffix == ".parquet":
            about, offsets, labels = _read_sets_parquet(file)
        else:
            raise FileError(f"cannot read sets from {file}: give a .parquet or .npz file.")
        content = _strict_json(about)
        names = content.pop("class_names")
        exact = checks.as_coverage(Fraction(content.pop("coverage")))
        names = checks.as_class_names(names, content["n_classes"])
        sets = PredictionSets(
            offsets.astype(np.int64), labels.astype(np.int32), coverage=exact, class_names=names, **content
        )
        if (
            offsets[0]
            or offsets[-1] != len(labels)
            or np.any(np.diff(offsets) < 0)
            or np.any((labels < 0) | (labels >= sets.n_classes))
        ):
            raise InputError("offsets and labels do not fit together")
        return sets
    except FileError:
        raise
    except Exception as error:  # as in read_logits
        raise FileError(f"cannot read {file}: it does not hold sets written by evicp ({error}).") from error


def _read_sets_parquet(path: Path) -> tuple[str, NDArray[np.int64], NDArray[np.int32]]:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing_extra("pyarrow", "parquet", "a parquet file") from error

    table = pq.read_table(path)
    column = table["labels"].combine_chunks()
    return table.schema.metadata[b"evicp"].decode(), np.asarray(column.offsets), np.asarray(column.values)
