"""Logits in what a torch file or standard input holds: a tensor, a pair, or a dict of them; rows in JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import EvicpError, FileError, MissingExtraError
from evicp.input import validate
from evicp.io import torch_archive
from evicp.io.logits import names_in_npz
from evicp.io.paths import readable, unreadable
from evicp.io.roles import Wanted, roles_of
from evicp.io.rows import LogitsFile

TORCH_SUFFIXES = (".pt", ".pth")


def read_torch(path: Path, wanted: Wanted) -> LogitsFile:
    """A torch file of plain tensors: a dict with "logits" (and "labels"), a pair, or one tensor. No code is run."""
    readable(path)
    try:
        content = torch_archive.load_tensors(path, "torch")
        several = content if isinstance(content, list | tuple) else [content]
        named = content.items() if isinstance(content, dict) else zip(("logits", "labels"), several, strict=False)
        for name, tensor in named:
            torch_archive.refuse_expanded(tensor, name)
    except MissingExtraError:
        raise
    except FileError as error:
        raise unreadable(path, error) from error
    except Exception as error:  # whatever the parser raises on a malformed file becomes one typed error
        if type(error).__name__ == "UnpicklingError":  # its text says how to run what is in the file
            raise FileError(
                f"cannot read {path}: not a torch file of plain tensors: it contains a pickled module or another "
                "object. Save a dict of tensors: torch.save({'logits': ..., 'labels': ...})."
            ) from error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"cannot read {path}: it is not a torch file of plain tensors ({reason[:200]}).") from error
    return _from_content(content, str(path), wanted)


def _from_content(content: Any, source: str, wanted: Wanted) -> LogitsFile:
    """Logits and labels from what a torch or JSON file holds."""
    if isinstance(content, dict):
        try:
            roles = roles_of([name for name in content if isinstance(name, str)], wanted)
        except FileError as error:
            raise unreadable(source, error) from error
        labels = None if roles.labels is None else content[roles.labels]
        return LogitsFile(_array(content[roles.logits[0]]), _labels(labels))
    rows = getattr(content[0], "ndim", 0) == 2 if isinstance(content, list) and len(content) == 2 else False
    if rows or (isinstance(content, tuple) and len(content) == 2):
        return LogitsFile(_array(content[0]), _labels(content[1]))
    if isinstance(content, list) or hasattr(content, "shape"):
        return LogitsFile(_array(content), None)
    raise FileError(f"cannot read {source}: expected a tensor, or a dict with 'logits'; got {type(content).__name__}.")


def _array(values: Any) -> NDArray[Any]:
    return validate.as_logits(values, row_allowed=True)


def _labels(values: Any) -> NDArray[Any] | None:
    return None if values is None else np.asarray(values)


def read_stream(data: bytes, wanted: Wanted) -> tuple[LogitsFile, tuple[str, ...] | None]:
    """npy, npz or JSON from standard input; class names if npz.

    JSON is rows, one row, an object with "logits" and "labels", or lines of one row each.
    """
    if not data.strip():
        raise FileError("cannot read standard input: it is empty.")
    try:
        if data.startswith(b"PK"):
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                if len(set(arrays.files)) < len(arrays.files):
                    raise FileError("cannot read standard input: it has more than one array of the same name.")
                names = names_in_npz(arrays, "standard input")
                return _from_content({name: arrays[name] for name in arrays.files}, "standard input", wanted), names
        if data.startswith(b"\x93NUMPY"):
            return LogitsFile(np.load(io.BytesIO(data), allow_pickle=False), None), None
        return _from_content(_json_or_lines(data), "standard input", wanted), None
    except EvicpError:
        raise
    except Exception as error:  # as above
        raise FileError(
            "cannot read standard input: it is neither npy, npz nor JSON: rows of logits, or one on each line."
        ) from error


def _json_or_lines(data: bytes) -> Any:
    """One JSON document, or a list of those on each line."""
    try:
        return json.loads(data, object_pairs_hook=_each_once)
    except json.JSONDecodeError:
        rows = [json.loads(line) for line in data.splitlines() if line.strip()]
        if not all(isinstance(row, list) for row in rows):
            raise
        return rows


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, if none of its keys is there twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise FileError("cannot read standard input: a key of its JSON object occurs twice.")
    return content
