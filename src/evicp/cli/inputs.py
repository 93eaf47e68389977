"""What commands read: logits in any of the known files, folders of shards, standard input; class names."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from evicp import blocks
from evicp.blocks import Rows
from evicp.calibration.calibration import Calibration
from evicp.calibration.source import require_source
from evicp.cli.outputs import INPUT_SUFFIXES, STREAM
from evicp.errors import ArtifactError, EvicpError, FileError, InputError
from evicp.input.classes import as_class_names, labelled
from evicp.io import artifact
from evicp.io.arrays import safetensors_metadata
from evicp.io.content import TORCH_SUFFIXES, read_stream, read_torch
from evicp.io.logits import open_labels
from evicp.io.paths import as_path, format_of, read_text
from evicp.io.roles import Wanted
from evicp.io.rows import DEFAULT_MEMORY, hold, no_labels
from evicp.types import I64

#: What is no calibration, by its suffix: files of logits and of sets.
_OTHER_FILES = tuple({*INPUT_SUFFIXES, ".jsonl", ".json", ".onnx"} - {".safetensors"})


def load_calibration(path: str, order: str = "comes before LOGITS") -> Calibration:
    """A calibration; where another file was given in its place, the error says which one comes first."""
    try:
        return artifact.load(path)
    except ArtifactError as error:
        if format_of(Path(path)) not in _OTHER_FILES:
            raise
        raise ArtifactError(
            f"{path} is not a calibration. CALIBRATION, a file written by evicp calibrate, {order}."
        ) from error


def read_rows(
    path: str,
    labels: str | None = None,
    columns: tuple[str | None, str | None] = (None, None),
    *,
    labelled: bool = False,
    memory: str = DEFAULT_MEMORY,
) -> Rows:
    """Rows of logits in a file, a folder of shards, or from standard input ("-"), to be read in blocks.

    Parameters
    ----------
    labels : an npy file of labels, where the logits' own file has none
    columns : the names of logits and labels in the file, where they are not the usual ones
    labelled : whether labels are needed; their absence is then an error
    memory : what blocks of rows may take
    """
    if path == STREAM:
        if sys.stdin is None:
            raise FileError("cannot read standard input: it is closed.")
        content, names = read_stream(sys.stdin.buffer.read(), Wanted(*columns))
        rows = replace(hold(content, "standard input", memory), class_names=names)
        rows = rows if labels is None else rows.with_labels(open_labels(labels))
    else:
        rows = _open_rows(path, labels, columns, memory)
    if labelled and not rows.has_labels:
        raise no_labels(rows)
    return rows


def labels_of(rows: Rows) -> I64:
    """The labels of rows as numbers; names are read where the rows have class names."""
    return labelled(rows.logits, rows.labels, class_names=rows.class_names)[1]


def _open_rows(path: str, labels: str | None, columns: tuple[str | None, str | None], memory: str) -> Rows:
    """Rows on disk, torch's own files among them."""
    try:
        named = dict(zip(("logits_column", "labels_column"), columns, strict=True))
        torch = dict.fromkeys(TORCH_SUFFIXES, read_torch)
        return blocks.open_rows(path, labels, memory=memory, more=torch, **named)
    except FileError as error:
        if not _is_calibration(path):
            raise
        raise FileError(f"{path} is a calibration, not logits. Pass the calibration first.") from error


def _is_calibration(path: str) -> bool:
    """Whether a file that holds no logits says that evicp calibrate has written it."""
    try:
        return "evicp" in safetensors_metadata(as_path(path))
    except Exception:  # as below; then it is no calibration
        return False


def read_groups(path: str | None, n: int) -> NDArray[Any] | None:
    """The group of each row: whole numbers or strings; or a matrix of the groups that each row is in."""
    if path is None:
        return None
    groups = open_labels(path, "groups").whole()
    if groups.dtype.kind not in ("biuU" if groups.ndim < 2 else "biuf"):
        raise FileError(f"{path} must contain groups as whole numbers or strings; got dtype {groups.dtype}.")
    if groups.shape[:1] != (n,) or groups.ndim > 2:
        raise FileError(f"{path} must contain a group for each of {n:,} rows; got shape {groups.shape}.")
    return groups


def load_predictor(path: str, groups: str | None, source: str | None) -> Calibration:
    """A calibration to predict with, refused where groups are missing, or rows come from another source than its own.

    Parameters
    ----------
    groups, source : as they were given
    """
    calibration = load_calibration(path)
    if source is not None:
        require_source(calibration.source, source)
    require_groups(path, calibration, groups)
    return calibration


def require_groups(path: str, calibration: Calibration, groups: str | None) -> None:
    """Raise where a calibration by group gets no groups."""
    if "groups" in calibration.law.needs and groups is None:
        raise InputError(f"{path} is by {calibration.guarantee}: give the group of each row with --groups FILE.")


def read_class_names(path: str | None) -> tuple[str, ...] | None:
    """Class names from a text file with one per line, a JSON list, or a JSON object {"0": "tench", ...}."""
    if path is None:
        return None
    file = as_path(path)
    try:
        text = read_text(file, "utf-8-sig").rstrip()
        return _names_in_json(json.loads(text)) if _is_json(text) else tuple(text.split("\n"))
    except EvicpError as error:
        reason = str(error).removeprefix(f"cannot read {file}: ")
        raise FileError(f"cannot read class names from {file}: {reason}") from error
    except (TypeError, ValueError) as error:
        raise FileError(
            f"cannot read class names from {file}: it is neither JSON (a list, or label to name) nor UTF-8 text."
        ) from error


def _is_json(text: str) -> bool:
    """Whether a text is meant as a JSON list or object; a name may begin with a bracket, too, as [PAD] does."""
    return re.match(r'\s*(\{|\[\s*(["\]\[{\d-]|null|true|false|$))', text) is not None


def _names_in_json(content: Any) -> tuple[str, ...]:
    """The names in a list, or in label order in an object; also as "id2label" of a Hugging Face configuration."""
    if isinstance(content, dict):
        content = content.get("id2label", content)
    return as_class_names(content, len(content)) or ()
