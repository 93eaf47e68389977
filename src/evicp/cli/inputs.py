"""What commands read: logits in any of the known files, folders of shards, standard input; class names."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from evicp.errors import EvicpError, FileError, InputTypeError, LabelsError, LogitsError, missing_extra
from evicp.files import LogitsFile, read_logits

__all__ = ["CalibrationFile", "Groups", "Rows", "located", "read_class_names", "read_groups", "read_rows"]

_TORCH = (".pt", ".pth")
_KNOWN = (".npz", ".npy", ".safetensors", ".parquet", *_TORCH)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of logits in one or more parts (shards), with labels where all parts have them."""

    parts: tuple[LogitsFile, ...]
    source: str
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return sum(len(part.logits) for part in self.parts)

    @property
    def logits(self) -> NDArray[Any]:
        """All logits in one array; a single part is not copied."""
        return self.parts[0].logits if len(self.parts) == 1 else np.concatenate([p.logits for p in self.parts])

    @property
    def has_labels(self) -> bool:
        """Whether every part has labels."""
        return all(part.labels is not None for part in self.parts)

    @property
    def labels(self) -> NDArray[Any]:
        """All labels in one array."""
        return np.concatenate([np.asarray(part.labels) for part in self.parts])

    def blocks(self, values: int = 1 << 25) -> Iterator[tuple[int, NDArray[Any], NDArray[Any] | None]]:
        """The number of the first row, logits and labels, in pieces of about this many values, in order."""
        first = 0
        for part in self.parts:
            wide = part.logits.ndim == 2 and part.logits.shape[1] > 0
            rows = max(1, values // part.logits.shape[1]) if wide else max(1, len(part.logits))
            for start in range(0, max(1, len(part.logits)), rows):
                # The last piece takes whatever labels are left, so that too many of them do not go unseen.
                end = start + rows if start + rows < len(part.logits) else None
                yield first + start, part.logits[start:end], None if part.labels is None else part.labels[start:end]
            first += len(part.logits)


CalibrationFile = Annotated[
    str,
    typer.Argument(metavar="CALIBRATION", help="A file written by evicp calibrate.", show_default=False),
]


Groups = Annotated[
    str | None,
    typer.Option("--groups", metavar="FILE", help="The group of each row (npy), for a calibration by group."),
]


@contextmanager
def located(source: str, first_row: int) -> Iterator[None]:
    """Say where a block lies when one of its rows is refused: messages count rows from the block's first."""
    try:
        yield
    except (LogitsError, LabelsError) as error:
        if first_row == 0:
            raise
        raise type(error)(f"in the rows of {source} from {first_row:,} on: {error}") from error


def read_rows(path: str, labels: str | None = None, *, labelled: bool = False) -> Rows:
    """Read logits from a file, a folder of shards, or standard input ("-").

    Parameters
    ----------
    labels : an npy file of labels, where the logits' own file has none
    labelled : whether labels are needed; their absence is then an error
    """
    if path == "-":
        rows = Rows((_from_stream(sys.stdin.buffer.read()),), "standard input")
    elif Path(path).is_dir():
        rows = Rows(tuple(_read_shards(Path(path))), path)
    else:
        rows = Rows((_read_one(Path(path)),), path, _names_in_npz(Path(path)))
    if labels is not None:
        rows = _with_labels(rows, read_logits(labels).logits)
    if labelled and not rows.has_labels:
        raise FileError(f"{rows.source} has no labels. Give them with --labels labels.npy.")
    return rows


def _with_labels(rows: Rows, labels: NDArray[Any]) -> Rows:
    """The rows with labels from a file of their own, cut as the parts are."""
    if len(rows.parts) == 1:
        return dataclasses.replace(rows, parts=(dataclasses.replace(rows.parts[0], labels=labels),))
    if len(labels) != len(rows):
        raise FileError(f"{rows.source} has {len(rows):,} rows but {len(labels):,} labels were given.")
    ends = np.cumsum([len(part.logits) for part in rows.parts])
    pieces = np.split(labels, ends[:-1])
    parts = (dataclasses.replace(p, labels=piece) for p, piece in zip(rows.parts, pieces, strict=True))
    return dataclasses.replace(rows, parts=tuple(parts))


def _read_one(path: Path) -> LogitsFile:
    """One file of logits. An npy file finds its labels beside it: logits-07.npy and labels-07.npy."""
    if path.suffix in _TORCH:
        return _read_torch(path)
    beside = path.with_name(path.name.replace("logits", "labels"))
    if path.suffix == ".npy" and beside != path and beside.is_file():
        return read_logits(path, beside)
    return read_logits(path)


def _read_shards(folder: Path) -> Iterator[LogitsFile]:
    """The files of a folder in the order of the numbers in their names; all must have the same classes."""
    files = sorted((f for f in folder.iterdir() if f.suffix in _KNOWN and not f.name.startswith(".")), key=_natural)
    files = [f for f in files if not (f.suffix == ".npy" and "labels" in f.name)]
    if not files:
        raise FileError(f"{folder} holds no file of logits; known are {', '.join(_KNOWN)}.")
    first: tuple[Path, tuple[int, ...]] | None = None
    for file in files:
        part = _read_one(file)
        if first is not None and part.logits.shape[1:] != first[1]:
            raise LogitsError(
                f"the files of a folder must have the same classes; {first[0].name} has {first[1]}, "
                f"{file.name} has {part.logits.shape[1:]}."
            )
        first = first or (file, part.logits.shape[1:])
        yield part


def _natural(path: Path) -> list[Any]:
    """Shard 10 comes after shard 9."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"([0-9]+)", path.name)]


def _read_torch(path: Path) -> LogitsFile:
    """A torch file of plain tensors: a dict with "logits" (and "labels"), a pair, or one tensor. No code is run."""
    try:
        import torch
    except ImportError as error:
        raise missing_extra("torch", "torch", "a torch file") from error
    if not path.is_file():
        raise FileError(f"cannot read {path}: no such file.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the parser raises on a malformed file becomes one typed error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"cannot read {path}: it is not a torch file of plain tensors ({reason[:200]}).") from error
    return _from_content(content, str(path))


def _from_content(content: Any, source: str) -> LogitsFile:
    """Logits and labels from what a torch or JSON file holds."""
    if isinstance(content, dict):
        if "logits" not in content:
            names = ", ".join(sorted(map(str, content))[:8]) or "none"
            raise FileError(f"cannot read {source}: it has no entry 'logits'; it has {names}.")
        return LogitsFile(_array(content["logits"]), _labels(content.get("labels")))
    if isinstance(content, tuple) and len(content) == 2:
        return LogitsFile(_array(content[0]), _labels(content[1]))
    if isinstance(content, list) or hasattr(content, "shape"):
        return LogitsFile(_array(content), None)
    raise FileError(f"cannot read {source}: expected a tensor, or a dict with 'logits'; got {type(content).__name__}.")


def _array(values: Any) -> NDArray[Any]:
    from evicp.checks import as_logits

    return as_logits(values, row_allowed=True)


def _labels(values: Any) -> NDArray[Any] | None:
    return None if values is None else np.asarray(values)


def _from_stream(data: bytes) -> LogitsFile:
    """npy, npz or JSON (rows, or an object with "logits" and "labels") from standard input."""
    try:
        if data.startswith(b"PK"):
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return _from_content({name: arrays[name] for name in arrays.files}, "standard input")
        if data.startswith(b"\x93NUMPY"):
            return LogitsFile(np.load(io.BytesIO(data), allow_pickle=False), None)
        return _from_content(json.loads(data), "standard input")
    except EvicpError:
        raise
    except Exception as error:  # as above
        raise FileError("cannot read standard input: it is neither npy, npz nor JSON rows of logits.") from error


def _names_in_npz(path: Path) -> tuple[str, ...] | None:
    """Class names that travel with the logits."""
    if path.suffix != ".npz":
        return None
    with np.load(path, allow_pickle=False) as arrays:
        if "class_names" not in arrays.files:
            return None
        names = arrays["class_names"]
    if names.ndim != 1 or names.dtype.kind != "U":
        raise InputTypeError(f"class_names in {path} must be a one-dimensional array of strings; got {names.dtype}.")
    return tuple(names.tolist())


def read_groups(path: str | None, n: int) -> NDArray[Any] | None:
    """The group of each row: whole numbers or strings."""
    if path is None:
        return None
    groups = read_logits(path).logits
    if groups.shape != (n,) or groups.dtype.kind not in "iuU":
        raise FileError(f"{path} must hold a whole number or string for each of {n:,} rows; got shape {groups.shape}.")
    return groups


def read_class_names(path: str | None) -> tuple[str, ...] | None:
    """Class names from a JSON list or a text file with one name per line."""
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            return tuple(str(name) for name in json.loads(text))
        return tuple(text.splitlines())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is neither a JSON list nor UTF-8 text"
        raise FileError(f"cannot read class names from {path}: {reason}.") from error
