"""Files of sets for people and spreadsheets: CSV, and one JSON document. What sets remember is not in all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from io import StringIO
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import IO

from evicp.io.atomic import refuse_existing
from evicp.io.files import SetsFile, SetsFormat, open_sets, set_lines, write_set_lines
from evicp.io.json_text import json_text
from evicp.sets import PredictionSets, SetsSummary
from evicp.tables import csv_line, csv_text


class CsvSets(SetsFile):
    """One line per row; labels separated by spaces, names by semicolons, none of which a spreadsheet would compute."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, path.open("w", encoding="utf-8", newline=""))
        self._has_head = False

    def append(self, sets: PredictionSets, first_row: int) -> None:
        """Write the sets of the next rows."""
        write_csv(self._file, sets, first_row, titled=not self._has_head)
        self._has_head = True


class JsonSets(SetsFile):
    """One document: what the sets are like, then each of them. Lines wait in a nameless file until that is known."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, tempfile.TemporaryFile("w+", encoding="utf-8", dir=path.parent))  # noqa: SIM115
        self._summary: SetsSummary | None = None

    def append(self, sets: PredictionSets, first_row: int) -> None:
        """Keep the sets of the next rows."""
        write_set_lines(self._file, sets, first_row)
        self._summary = SetsSummary.of(sets, self._summary)

    def finish(self) -> None:
        """Write the document."""
        if self._summary is None:
            return
        head = json_text(self._summary.to_dict()).rstrip().removesuffix("}").rstrip()
        self._file.seek(0)
        with self._path.open("w", encoding="utf-8") as file:
            file.write(f'{head},\n  "sets": [')
            for number, line in enumerate(self._file):
                file.write(("," if number else "") + "\n    " + line.rstrip("\n"))
            file.write("\n  ]\n}\n" if self._summary.rows else "]\n}\n")


#: The formats by suffix.
TEXT_SETS: Mapping[str, SetsFormat] = MappingProxyType({".json": JsonSets, ".csv": CsvSets})


def save_sets(sets: PredictionSets, path: str | PathLike[str], *, overwrite: bool) -> None:
    """Write sets to a file of any format, as its suffix says, atomically."""
    refuse_existing(path, overwrite=overwrite)
    with open_sets(path, TEXT_SETS) as file:
        file.append(sets)


def as_csv(sets: PredictionSets) -> str:
    """Sets as comma-separated text, with a line of titles."""
    text = StringIO()
    write_csv(text, sets, 0, titled=True)
    return text.getvalue()


def write_csv(file: IO[str], sets: PredictionSets, first_row: int, *, titled: bool) -> None:
    """Write one line per set; before them, where they are the first ones, the titles of the columns."""
    named, identified = sets.class_names is not None, sets.ids is not None
    if titled:
        file.write(csv_line(["row", *(["id"] if identified else []), "size", "labels", *(["names"] if named else [])]))
    for line in set_lines(sets, first_row):
        names = ["; ".join(map(csv_text, line["names"]))] if named else []
        own = [csv_text(line["id"]) if isinstance(line["id"], str) else line["id"]] if identified else []
        file.write(csv_line([line["row"], *own, line["size"], " ".join(map(str, line["labels"])), *names]))
