"""What extraction keeps on disk: shards while it runs, then one file of logits and a manifest that says what made it.

    val.npz.parts/manifest.json       the settings the shards were made with
    val.npz.parts/shard-00000.npz     rows of logits, and which inputs could not be read
    val.npz, val.npz.manifest.json    the result; the shards are removed

Every file is written whole or not at all. None holds a date or a machine's name, so the same work gives the same bytes;
only the digest of inputs that are files, in manifests, depends on when they were written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError
from evicp.io.arrays import companions, write_npz
from evicp.io.atomic import atomic_path, write_whole
from evicp.io.paths import open_file, read_text
from evicp.types import I64

#: The value of a setting that is unknown, and so is never the same as that of an earlier run.
UNKNOWN = "cannot be told"


@dataclass(frozen=True, eq=False)
class Shard:
    """The logits of a run of inputs: (m, K) float32, the (m,) row numbers, and the rows that could not be read."""

    logits: NDArray[np.float32]
    rows: I64
    unreadable: I64
    reasons: NDArray[np.str_]


# ---------------------------------------------------------------------------------------------------------------
# Shards


class Shards:
    """The folder of shards next to an unfinished output."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.folder = output.with_name(output.name + ".parts")
        self._manifest = self.folder / "manifest.json"

    def begin(self, settings: Mapping[str, Any], *, force: bool) -> None:
        """Make the folder, or go on in it if its shards were made with the same settings."""
        if force:
            self.remove()
        if (before := self.settings()) is not None:
            check_same_settings(self.output, before, settings)
        try:
            self.folder.mkdir(parents=False, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write {self.folder}: {error.strerror or error}.") from error
        _write_json(self._manifest, settings)

    def settings(self) -> dict[str, Any] | None:
        """The settings of the shards that an earlier run left; None if there are none."""
        return _read_json(self._manifest) if self._manifest.exists() and self._files() else None

    def path(self, number: int) -> Path:
        """Where a shard is kept."""
        return self.folder / f"shard-{number:05d}.npz"

    def has(self, number: int) -> bool:
        """Whether a shard is there; it is whole if it is."""
        return self.path(number).exists()

    def store(self, number: int, shard: Shard) -> None:
        """Write a shard, atomically."""
        with atomic_path(self.path(number)) as temporary:
            write_npz(temporary, vars(shard))

    def load(self, number: int) -> Shard:
        """Read a shard."""
        try:
            with open_file(self.path(number)) as file, np.load(file, allow_pickle=False) as arrays:
                return Shard(**arrays)
        except Exception as error:  # whatever the parser raises on a damaged file becomes one typed error
            raise FileError(f"cannot read {self.path(number)}: {error}. Delete it and run again.") from error

    def _files(self) -> list[Path]:
        return list(self.folder.glob("shard-*.npz"))

    def remove(self) -> None:
        """Delete the shards and their folder; nothing else in it is touched."""
        if self.folder.exists():
            for file in (*self._files(), *self.folder.glob(".*.tmp"), self._manifest):
                file.unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()


# ---------------------------------------------------------------------------------------------------------------
# Manifests


def refuse_companions(output: Path, written: Collection[str], *, force: bool) -> None:
    """Refuse to replace files beside a new one, and to leave others beside npy files that would be read with them.

    Parameters
    ----------
    written : the arrays that will be written
    force : whether those that exist may be replaced
    """
    for name, beside in companions(output).items():
        if name not in written and beside.exists():
            raise FileError(f"{beside} would be read with the new {output.name}, but is not updated. Move it away.")
        if beside.exists() and not output.exists() and not force:
            raise _would_be_lost(beside)
    if not output.exists() and not force and _is_of_others(manifest_path(output)):
        raise _would_be_lost(manifest_path(output))


def _is_of_others(manifest: Path) -> bool:
    """Whether a file stands where a manifest will be written, and is none that an earlier run has left."""
    if not manifest.exists():
        return False
    try:
        return not {"settings", "sha256"} <= _read_json(manifest).keys()
    except FileError:
        return True


def _would_be_lost(path: Path) -> FileError:
    return FileError(f"{path} exists. Use force (--force) to overwrite it, or another output.")


def manifest_path(output: Path) -> Path:
    """Where the manifest of a finished output is."""
    return output.with_name(output.name + ".manifest.json")


def read_manifest(output: Path) -> dict[str, Any] | None:
    """The manifest of a finished output; None if there is none, or if the output is not the file it describes."""
    path = manifest_path(output)
    if not (output.exists() and path.exists()):
        return None
    manifest = _read_json(path)
    return manifest if manifest.get("sha256") == file_digest(output) else None


def write_manifest(output: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of an output that is in its place."""
    _write_json(manifest_path(output), {**content, "sha256": file_digest(output)})


def check_same_settings(output: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Shards of different settings must not be mixed: say what differs."""
    different = differences(before, now)
    changes = [f"{name} was {_short(a)}, is {_short(b)}" for name, (a, b) in different.items() if UNKNOWN not in (a, b)]
    unknown = [name for name, values in different.items() if UNKNOWN in values]
    if unknown and not changes:
        raise FileError(
            f"{output} was begun by an earlier run, and {unknown[0]} cannot be compared with it. Use another output, "
            "or start again with force (--force)."
        )
    if changes:
        raise FileError(
            f"{output} was begun with other settings: {'; '.join(changes)}. Repeat the first settings, use another "
            "output, or start again with force (--force)."
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, in both versions.

    >>> differences({"network": "a", "transform": {"size": 8}}, {"network": "a", "transform": {"size": 9}})
    {'transform.size': (8, 9)}
    """
    old, new = _flat(before), _flat(json.loads(json.dumps(now)))
    pairs = {name: (old.get(name), new.get(name)) for name in {**old, **new}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] or UNKNOWN in pair}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = value if isinstance(value, dict) else {"": value}
        flat.update({f"{name}.{key}".rstrip("."): item for key, item in nested.items()})
    return flat


def _short(value: Any, longest: int = 120) -> str:
    text = value[:12] if isinstance(value, str) and len(value) == 64 else json.dumps(value)
    return text if len(text) <= longest else text[:longest] + "..."


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
        if isinstance(content, dict):
            return content
        raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {error}. Delete it, or start again with force (--force).") from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(lines: Iterable[str]) -> str:
    """SHA-256 of a list of names."""
    return hashlib.sha256("\0".join(lines).encode()).hexdigest()
