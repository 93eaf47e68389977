"""The provenance of a report: model, data, files with their checksums, versions, author and note."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from os import PathLike
from typing import Any

import numpy as np
import scipy

from evicp import __version__
from evicp.io.paths import as_path, open_file


@dataclass(frozen=True)
class Provenance:
    """The provenance at the top of a report.

    Parameters
    ----------
    model : the model
    data_set : the data set
    author : who made the report
    note : a note for readers
    files : the input files; each is listed with its size and SHA-256
    date : of the report; today if None

    Examples
    --------
    >>> from evicp.report import Provenance
    >>> Provenance(model="EfficientNet-Lite1", data_set="ImageNet validation images", author="J. Doe").author
    'J. Doe'
    """

    model: str = ""
    data_set: str = ""
    author: str = ""
    note: str = ""
    files: Sequence[str | PathLike[str]] = ()
    date: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the files' digests and the versions of what computed the figures."""
        texts = {name: str(getattr(self, name)) for name in ("model", "data_set", "author", "note")}
        return {
            **texts,
            "files": [asdict(_digested(path)) for path in self.files],
            "date": self.date or datetime.now(UTC).strftime("%Y-%m-%d"),
            "versions": {
                "evicp": __version__,
                "Python": platform.python_version(),
                "NumPy": np.__version__,
                "SciPy": scipy.__version__,
            },
        }


@dataclass(frozen=True)
class _File:
    name: str
    bytes: int
    sha256: str


def _digested(path: str | PathLike[str]) -> _File:
    """A file by its name as it was given, read in pieces."""
    digest, size = hashlib.sha256(), 0
    with open_file(as_path(path)) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return _File(str(path), size, digest.hexdigest())
