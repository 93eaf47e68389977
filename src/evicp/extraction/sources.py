"""Where inputs and labels come from: image folders, lists of files, tables of texts or questions, data sets on disk."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evicp.errors import FileError, InputError, LabelsError, need
from evicp.extraction.classes import match_classes
from evicp.extraction.ground_truth import read_ground_truth
from evicp.extraction.images import IMAGE_SUFFIXES, read_image
from evicp.extraction.questions import ANSWER_COLUMNS, CHOICE_COLUMNS, QUESTION_COLUMNS, Questions
from evicp.input import validate
from evicp.io.paths import natural_key, open_file
from evicp.types import I64

Modality = Literal["image", "text", "question"]

_PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "imageid")
_TEXT_COLUMNS = ("text", "sentence", "document")
_LABEL_COLUMNS = ("label", "labels", "class", "target", "synset", "predictionstring")


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """Inputs in a fixed order, with labels where there are any.

    Parameters
    ----------
    location : Path
        The folder or file.
    inputs : names of the rows
        Paths, or row numbers.
    read : function of a row number
        The image, text or `Question` of a row; raises on a damaged one.
    modality : "image", "text" or "question"
    labels : (n,) integers, optional
        Numbers of `class_names` if those are given, otherwise of the network's classes.
    class_names : names, optional
        The source's own classes.
    version : str
        Differs between data of the same names.
    n_choices : int
        How many choices the question with the most of them has.
    """

    location: Path
    inputs: tuple[str, ...]
    read: Callable[[int], Any]
    modality: Modality = "image"
    labels: I64 | None = None
    class_names: tuple[str, ...] | None = None
    version: str = ""
    n_choices: int = 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        labelled = "no labels" if self.labels is None else "labelled"
        return f"Source({self.location}, {len(self):,} {self.modality}s, {labelled})"

    def digest(self, labels: I64 | None) -> str:
        """SHA-256 of the list of inputs and the labels they are given."""
        digest = hashlib.sha256(self.version.encode())
        for name in self.inputs:
            digest.update(b"\0" + name.encode("utf-8", "surrogateescape"))
        digest.update(b"\0\0" if labels is None else np.ascontiguousarray(labels, "<i8").tobytes())
        return digest.hexdigest()


def open_source(
    source: str | os.PathLike[str] | Source,
    *,
    labels: str | os.PathLike[str] | None = None,
    split: str | None = None,
    input_column: str | None = None,
    label_column: str | None = None,
    choices_column: str | None = None,
) -> Source:
    """Detect the kind of data under a path, and list its inputs.

    Parameters
    ----------
    source : path or Source
        A folder with one folder of images per class (called by synset, name or number), a flat folder of images, a
        Hugging Face data set saved to disk, a CSV file of paths (or texts) and labels, or JSON lines (jsonl) of texts
        or of multiple-choice questions.
    labels : path, optional
        Ground truth of a flat folder: lines of `file label`, or one label per image in the order of names.
    split, input_column, label_column, choices_column : str, optional
        A split of a data set; columns, if their names are not usual ones. Rows with a column of choices are questions.
    """
    if isinstance(source, Source):
        return source
    path = Path(source)
    if not path.exists():
        raise FileError(f"cannot read {path}: no such file or folder.")
    is_dataset = (path / "dataset_dict.json").exists() or (path / "state.json").exists()
    if split is not None and not is_dataset:
        raise InputError(f"a split needs a Hugging Face data set; {path} is not one.")
    columns = _Columns(path, input_column, label_column, choices_column)
    if is_dataset or path.is_file():
        if labels is not None:
            raise InputError(f"a ground-truth file is for a folder of images; {path} has its own labels.")
        opened = _from_dataset(columns, split) if is_dataset else _from_file(columns)
    else:
        opened = _from_images(columns, labels)
    if not len(opened):
        raise FileError(f"{path} contains no inputs. Give a folder of images, a data set or a CSV file with rows.")
    return opened


def network_labels(
    source: Source, n_classes: int, class_names: Sequence[str] | None, *, trusted: bool = False
) -> I64 | None:
    """The labels of a source as the network numbers its classes, checked.

    Parameters
    ----------
    trusted : take the source's numbers as they are, whatever its classes are called
    """
    if source.labels is None:
        return None
    labels = source.labels
    if source.class_names is not None and not trusted:
        labels = match_classes(source.class_names, n_classes, class_names)[
            validate.as_labels(labels, len(source), len(source.class_names))
        ]
    return validate.as_labels(labels, len(source), n_classes)


# ---------------------------------------------------------------------------------------------------------------
# Folders


def _from_images(columns: _Columns, labels: str | os.PathLike[str] | None) -> Source:
    """A folder of images, and a file of labels where one is given."""
    if columns.input or columns.label or columns.choices:
        raise InputError(f"columns are those of a file or a data set; {columns.path} is a folder of images.")
    return _from_folder(columns.path) if labels is None else _from_flat_folder(columns.path, Path(labels))


def _from_folder(root: Path) -> Source:
    """A folder of class folders, or of images without labels."""
    names = _list_images(root)
    flat = [name for name in names if "/" not in name]
    if len(flat) == len(names):
        return _image_files(root, root, names)
    if flat:
        raise FileError(
            f"{root} contains images both directly ({flat[0]}) and in folders: so the classes are unclear. Separate "
            "them, or give a ground-truth file."
        )
    folders = sorted((f.name for f in root.iterdir() if f.is_dir() and not _hidden(f.name)), key=natural_key)
    if all(folder.isascii() and folder.isdigit() for folder in folders):
        labels, class_names = [int(name.split("/")[0]) for name in names], None
    else:
        number = {folder: i for i, folder in enumerate(folders)}
        labels, class_names = [number[name.split("/")[0]] for name in names], tuple(folders)
    return _image_files(root, root, names, np.array(labels), class_names)


def _list_images(root: Path) -> list[str]:
    """All images below a folder as relative paths, class by class and name by name, numbers by value."""
    found = []
    inside = {str(root): frozenset({_identity(str(root))})}  # each folder's own, and those of the folders it is in
    for folder, below, names in os.walk(root, followlinks=True):
        around = inside.pop(folder)
        below[:] = [name for name in below if not _hidden(name) and _identity(f"{folder}/{name}") not in around]
        inside |= {os.path.join(folder, name): around | {_identity(f"{folder}/{name}")} for name in below}  # noqa: PTH118
        relative = Path(folder).relative_to(root)
        found += [
            (relative / name).as_posix()
            for name in names
            if not _hidden(name) and Path(name).suffix.lower() in IMAGE_SUFFIXES
        ]
    return sorted(found, key=lambda name: (natural_key(name), name))


def _identity(folder: str) -> tuple[int, int]:
    """What tells a folder from others: a link to a folder that it is in would be walked for ever."""
    found = os.stat(folder)  # noqa: PTH116 - a Path for each would take longer than the walk
    return found.st_dev, found.st_ino


def _hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _image_files(
    location: Path,
    root: Path,
    names: Sequence[str],
    labels: I64 | None = None,
    class_names: tuple[str, ...] | None = None,
) -> Source:
    """Images in files below a folder; a file that is written anew makes another version."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(_written(root / name))
    version = digest.hexdigest()
    return Source(
        location, tuple(names), lambda row: read_image(root / names[row]), "image", labels, class_names, version
    )


def _written(path: Path) -> bytes:
    """Size and time of a file, without reading it."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # it is found unreadable when it is read
        return b"none;"
    return f"{found.st_size} {found.st_mtime_ns};".encode()


def _from_flat_folder(root: Path, labels: Path) -> Source:
    """A folder of images and a file that says what they show."""
    names = _list_images(root)
    texts = read_ground_truth(labels, names)
    numbers, class_names = _numbered(texts)
    return _image_files(root, root, names, numbers, class_names)


def _numbered(labels: Sequence[str]) -> tuple[I64, tuple[str, ...] | None]:
    """Labels written as text: class numbers as they are, anything else as numbered names; none is missing."""
    missing = next((row for row, label in enumerate(labels) if not label.strip()), None)
    if missing is not None:
        raise LabelsError(f"every row needs a label; row {missing} has none. Drop such rows.")
    try:
        return np.array([int(label) for label in labels], dtype=np.int64), None
    except ValueError:
        class_names, numbers = np.unique(np.array(labels, dtype=str), return_inverse=True)
        return numbers.astype(np.int64), tuple(class_names.tolist())


# ---------------------------------------------------------------------------------------------------------------
# Tables and data sets


@dataclass(frozen=True)
class _Columns:
    """A table and the names of its columns, where the caller gives them."""

    path: Path
    input: str | None
    label: str | None
    choices: str | None

    def find(self, header: Sequence[str], wanted: str | None, known: Sequence[str]) -> str | None:
        """The column that is wanted, which must be there, or the first one with a known name."""
        if wanted is not None:
            if wanted not in header:
                raise FileError(f"{self.path} has no column {wanted!r}; it has {', '.join(header)}.")
            return wanted
        return next((name for name in header if name.lower() in known), None)

    def questions(self, header: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Source | None:
        """The rows as questions, if they have choices."""
        choices = self.find(header, self.choices, CHOICE_COLUMNS)
        if choices is None:
            return None
        question = self.find(header, self.input, QUESTION_COLUMNS)
        if question is None:
            raise FileError(
                f"{self.path} has choices in {choices!r} and no column of questions that is known by name; it has "
                f"{', '.join(header)}. Name it with input_column (--input-column)."
            )
        table = Questions(rows, question, choices, self.find(header, self.label, ANSWER_COLUMNS))
        names, n_choices = tuple(f"row {i}" for i in range(len(rows))), table.most_choices()
        labels, version = table.labels(), table.digest()
        return Source(
            self.path, names, table.__getitem__, "question", labels, None, version=version, n_choices=n_choices
        )

    def texts(self, values: Sequence[Any], labels: Sequence[Any] | None) -> Source:
        """Texts, and their labels as text or numbers."""
        numbers, class_names = (None, None) if labels is None else _numbered([str(label).strip() for label in labels])
        version = hashlib.sha256("\0".join(map(str, values)).encode()).hexdigest()
        names = tuple(f"row {i}" for i in range(len(values)))
        return Source(self.path, names, _text_reader(values), "text", numbers, class_names, version)


def _from_file(columns: _Columns) -> Source:
    """A table in a file, by its suffix."""
    return (_from_json_lines if columns.path.suffix.lower() in (".jsonl", ".ndjson") else _from_csv)(columns)


def _from_json_lines(columns: _Columns) -> Source:
    """One JSON object a line: questions with choices and an answer, or texts with labels."""
    rows = []
    try:
        with io.TextIOWrapper(open_file(columns.path), "utf-8-sig") as file:
            for number, line in enumerate(file):
                if line.strip():
                    rows.append(json.loads(line))
                    if not isinstance(rows[-1], dict):
                        raise ValueError(f"line {number + 1} is not an object")
    except ValueError as error:
        raise FileError(f"cannot read {columns.path}: it is not JSON lines in UTF-8 ({error}).") from error
    header = list(dict.fromkeys(name for row in rows for name in row))
    questions = columns.questions(header, rows)
    if questions is not None:
        return questions
    column = columns.find(header, columns.input, _TEXT_COLUMNS)
    if column is None:
        raise FileError(
            f"{columns.path} needs a column of texts ({_TEXT_COLUMNS[0]}), or of questions and choices; it has "
            f"{', '.join(header)}. Name it with input_column (--input-column)."
        )
    labels = columns.find(header, columns.label, _LABEL_COLUMNS)
    given = None if labels is None else ["" if row.get(labels) is None else row[labels] for row in rows]
    return columns.texts([row.get(column) for row in rows], given)


def _from_csv(columns: _Columns) -> Source:
    """A CSV file with a header: a column of paths (relative to the file) or texts, and a column of labels."""
    path = columns.path
    try:
        with io.TextIOWrapper(open_file(path), "utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"cannot read {path}: it is not a CSV file in UTF-8 ({error}).") from error
    uneven = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
    if uneven is not None:
        raise FileError(f"cannot read {path}: data row {uneven} has {len(rows[uneven])} fields, not {len(header)}.")
    column = columns.find(header, columns.input, (*_PATH_COLUMNS, *_TEXT_COLUMNS))
    if column is None:
        raise FileError(
            f"{path} needs a header with a column of paths ({', '.join(_PATH_COLUMNS[:3])}) or texts "
            f"({_TEXT_COLUMNS[0]}); it has {', '.join(header)}. Name the column with input_column."
        )
    label = columns.find(header, columns.label, _LABEL_COLUMNS)
    values = [row[header.index(column)] for row in rows]
    labels = [row[header.index(label)].strip() for row in rows] if label else None
    if column.lower() in _TEXT_COLUMNS:
        return columns.texts(values, labels)
    return _image_files(path, path.parent, values, *(_numbered(labels) if labels is not None else (None, None)))


def _from_dataset(columns: _Columns, split: str | None) -> Source:
    """A data set written with `save_to_disk`, or one of its splits."""
    path = columns.path
    datasets = need("datasets", "datasets", "huggingface", "a Hugging Face data set")
    data = datasets.load_from_disk(str(path))
    if isinstance(data, datasets.DatasetDict):
        if split not in data:
            raise InputError(f"{path} has the splits {', '.join(data)}; got split {split!r}. Name one of them.")
        data = data[split]
    kinds = {name: type(feature).__name__ for name, feature in data.features.items()}
    questions = columns.questions(list(kinds), data)
    if questions is not None:
        return questions
    column = columns.find(list(kinds), columns.input, (*_PATH_COLUMNS, *_TEXT_COLUMNS))
    column = column or next((name for name, kind in kinds.items() if kind == "Image"), None)
    if column is None:
        raise FileError(f"{path} has no column of images or texts with a usual name; it has {', '.join(kinds)}.")
    label = columns.find(list(kinds), columns.label, _LABEL_COLUMNS)
    label = label or next((name for name, kind in kinds.items() if kind == "ClassLabel"), None)
    numbers, class_names = _dataset_labels(data, label)
    inputs = tuple(f"row {i}" for i in range(len(data)))
    version = str(getattr(data, "_fingerprint", ""))
    if kinds[column] == "Image":
        raw = data.cast_column(column, datasets.Image(decode=False))
        return Source(path, inputs, _stored_image_reader(raw, column), "image", numbers, class_names, version)
    return Source(path, inputs, _text_reader(data[column]), "text", numbers, class_names, version)


def _dataset_labels(data: Any, label: str | None) -> tuple[I64 | None, tuple[str, ...] | None]:
    if label is None:
        return None, None
    values, names = data[label][:], getattr(data.features[label], "names", None)
    if any(value is None for value in values):
        raise LabelsError(f"the column {label!r} has rows without a label. Remove them first.")
    if names is None and any(isinstance(value, str) for value in values):
        return _numbered(values)
    return np.asarray(values), None if names is None else tuple(names)


def _text_reader(texts: Sequence[Any]) -> Callable[[int], str]:
    def read(row: int) -> str:
        text = texts[row]
        if not isinstance(text, str):
            raise TypeError(f"not a text but {type(text).__name__}")
        return text

    return read


def _stored_image_reader(data: Any, column: str) -> Callable[[int], Any]:
    def read(row: int) -> Any:
        stored = data[row][column]
        return read_image(stored["path"] if stored["bytes"] is None else stored["bytes"])

    return read
