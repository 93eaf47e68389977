"""Files that say what the images of a flat folder show, in the forms ImageNet's validation labels go around in."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from evicp.errors import FileError, LabelsError
from evicp.io.paths import open_file, read_text

#: ImageNet's development kit calls its file so; its numbers are one-based and not in the order of the weights.
_DEVKIT_NAME = "ILSVRC2012_validation_ground_truth"


def read_ground_truth(path: Path, images: Sequence[str]) -> list[str]:
    """The label of each image, as text: a class number, a synset or a name.

    Known forms: lines of `file label` (spaces, a tab or a comma between), with or without the file's folder or suffix,
    with a header or without, such as `val.txt` and `LOC_val_solution.csv`; one label per line in the order of the
    images' names, such as `imagenet_2012_validation_synset_labels.txt`; and the development kit's one-based numbers,
    which need its `meta.mat` next to them.

    Parameters
    ----------
    path : the file
    images : relative paths of the images, in order
    """
    rows = _read_rows(path)
    if all(len(row) == 1 for row in rows):
        return _in_order([row[0] for row in rows], path, images)
    if rows[0][0].lower() in ("imageid", "path", "file", "filename", "file_name", "image", "name"):
        rows = rows[1:]
    if not all(len(row) >= 2 for row in rows):
        raise FileError(f"cannot read {path}: some lines have a label and some have none.")
    labels = {row[0]: row[1] for row in rows}
    twice = next((row[0] for row in rows if labels[row[0]] != row[1]), None)
    if twice is not None:
        raise LabelsError(f"{path} has more than one label for {twice}. Keep the right one.")
    return _by_name(labels, path, images)


def _read_rows(path: Path) -> list[list[str]]:
    """The lines of the file as fields."""
    try:
        lines = [line for line in read_text(path, "utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise FileError(f"cannot read {path}: it is not UTF-8 text ({error}).") from error
    if not lines:
        raise FileError(f"cannot read {path}: it is empty.")
    if "," not in lines[0]:
        return [line.split("\t") if "\t" in line else line.split(None, 1) for line in lines]
    rows = [[field.strip() for field in row] for row in csv.reader(lines)]
    if rows[0][-1] == "PredictionString":  # a list of boxes: a synset and four numbers for each
        rows = [[row[0], *row[1].split()[:1]] for row in rows]
    return rows


def _in_order(labels: list[str], path: Path, images: Sequence[str]) -> list[str]:
    if len(labels) != len(images):
        raise LabelsError(f"{path} has {len(labels):,} labels for {len(images):,} images. Give lines of 'file label'.")
    meta = path.with_name("meta.mat")
    if not all(label.isdigit() for label in labels) or not (path.stem == _DEVKIT_NAME or meta.exists()):
        return labels
    if not meta.exists():
        raise LabelsError(
            f"{path} numbers classes as ImageNet's development kit does, which is not the order of any weights. "
            "Put the kit's meta.mat in the same folder, or use a list of synsets."
        )
    synsets = _devkit_synsets(meta)
    unknown = next((label for label in labels if int(label) not in synsets), None)
    if unknown is not None:
        raise LabelsError(f"{path} holds the number {unknown}, which is not in {meta}.")
    return [synsets[int(label)] for label in labels]


def _devkit_synsets(meta: Path) -> dict[int, str]:
    """The synset of each of the development kit's class numbers."""
    from scipy.io import loadmat

    try:
        with open_file(meta) as file:
            table = loadmat(file, squeeze_me=True)["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in table}
    except FileError:
        raise
    except Exception as error:  # whatever the parser raises on a malformed file becomes one typed error
        raise FileError(f"cannot read {meta}: it is not the development kit's meta.mat ({error}).") from error


def _by_name(labels: Mapping[str, str], path: Path, images: Sequence[str]) -> list[str]:
    """Each image's label by its path, its name, or its name without the suffix."""
    short = {PurePosixPath(name).name: label for name, label in labels.items()}
    known = {**short, **labels} if len(short) == len(labels) else labels
    found = []
    for image in images:
        whole = PurePosixPath(image)
        label = next((known[key] for key in (image, whole.name, whole.stem) if key in known), None)
        if label is None:
            raise LabelsError(
                f"{path} has no label for {image}. Every image needs one: add it, or move the image away."
            )
        found.append(label)
    return found
