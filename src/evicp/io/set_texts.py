"""Files of sets for people and spreadsheets: CSV, and one JSON document. What sets remember is not in all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from evicp.io.files import SetsFile, SetsFormat, set_lines, write_set_lines
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
        named = sets.class_names is not None
        if not self._has_head:
            self._has_head = True
            self._file.write(csv_line(["row", "size", "labels", *(["names"] if named else [])]))
        for line in set_lines(sets, first_row):
            names = ["; ".join(map(csv_text, line["names"]))] if named else []
            self._file.write(csv_line([line["row"], line["size"], " ".join(map(str, line["labels"])), *names]))


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
