"""The calibration file: a safetensors file with a checksummed description, validated on load.

Its tensors are "scores"; or, where there are groups, "scores.0", "scores.1", ...; and where there are weights,
"weights" and "class_weights".
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, BinaryIO, TypeVar

import numpy as np

from evicp.calibration.calibration import Calibration
from evicp.calibration.laws import LAWS
from evicp.calibration.laws.law import canonical, named_parameters
from evicp.calibration.origin import ORIGIN, Origin
from evicp.calibration.source import RowSource
from evicp.errors import ArtifactError, EvicpError, InputError, ScoreError
from evicp.input import convert, validate
from evicp.input.classes import ClassAxis
from evicp.io.atomic import atomic_path, refuse_existing
from evicp.io.paths import as_path, open_file
from evicp.method.score import CUSTOM
from evicp.method.scores import ECP, SCORES, Score, as_score
from evicp.outer import outer
from evicp.types import F64

__all__ = ["load", "save"]

#: Which arrays a file must hold, in order, of the names of those that it has.
NamesOf = Callable[[set[str]], list[str]]
Made = TypeVar("Made")

#: The artifact's format; a file of another one is refused.
FORMAT_VERSION = 1

#: How the names of arrays begin that calibrations do not have: those of the rules of `evicp.risk`.
RULE = "rule."

#: What a description has only where there is something to say.
_COUNTS = ("chosen_on", "folds")
_OPTIONAL = (*_COUNTS, "columns", "numbered")
_SOURCE = "source"

#: Fifty thousand class names of sixty letters fit. Parsed, a header takes up to fifteen times its size: this bound
#: keeps the guarantee that loading takes no more than the file's size plus 64 MiB.
LARGEST_HEADER = 3 * 2**20

#: No description has more lists, objects or keys than this (class names and base rates are one list each) ...
_MOST_PARTS = 100

#: ... and no header more than the groups that fit into it, 60 bytes or more each, of two lists, an object, four keys.
_MOST_GROUPS = LARGEST_HEADER // 60
_PARTS_OF_A_GROUP = {"[": 2, "{": 1, ":": 4}


def content_of(calibration: Calibration) -> dict[str, Any]:
    """What is known of a calibration, as plain values."""
    content = {
        "version": FORMAT_VERSION,
        "score": {"name": _name_of(calibration.score), "parameters": calibration.score.plain_parameters()},
        "n": calibration.n,
        "n_classes": calibration.n_classes,
        "class_names": calibration.class_names,
    }
    content |= calibration.law.description()
    for name in _OPTIONAL:
        value = getattr(calibration, name)
        if value is not None and value is not False:
            content[name] = value
    if calibration.source is not None:
        content[_SOURCE] = calibration.source.to_dict()
    return content if calibration.origin is None else content | calibration.origin.to_dict()


def _description(calibration: Calibration) -> str:
    """What is known of a calibration, as canonical JSON."""
    try:
        return canonical(content_of(calibration))
    except (TypeError, ValueError) as error:
        raise ScoreError(f"the parameters of {calibration.score} cannot be stored as JSON: {error}.") from error


def _name_of(score: Score) -> str:
    """What a file calls a score: your own class that has the name of a built-in one is not that one."""
    return score.name if SCORES.get(score.name, type(score)) is type(score) else CUSTOM


def _tensors(calibration: Calibration) -> dict[str, F64]:
    """A calibration's arrays, in the order in which its file holds them."""
    return calibration.law.tensors(calibration.scores)


def _digest(description: str, tensors: dict[str, F64]) -> str:
    digest = hashlib.sha256(description.encode())
    for name, tensor in tensors.items():
        digest.update(f"\0{name}\0".encode())
        digest.update(np.ascontiguousarray(tensor, dtype="<f8").data)
    return digest.hexdigest()


def checksum(calibration: Calibration) -> str:
    """SHA-256 of the file that `save` writes, as `sha256sum` gives it."""
    return sealed_checksum(_description(calibration), _tensors(calibration))


def sealed_checksum(description: str, tensors: dict[str, F64]) -> str:
    """SHA-256 of the file that `write_sealed` writes."""
    header, arrays = _file(description, tensors)
    digest = hashlib.sha256(header)
    for array in arrays:
        digest.update(array.data)
    return digest.hexdigest()


def save(calibration: Calibration, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write a calibration, atomically. The same calibration gives the same bytes, always.

    Parameters
    ----------
    overwrite : whether a file that exists is replaced; it is refused otherwise
    """
    write_sealed(path, _description(calibration), _tensors(calibration), overwrite=overwrite)


def write_sealed(
    path: str | PathLike[str], description: str, tensors: dict[str, F64], *, overwrite: bool = False
) -> None:
    """Write a description and arrays of doubles under a checksum, atomically."""
    refuse_existing(path, overwrite=overwrite)
    header, arrays = _file(description, tensors)
    if len(header) - 8 > LARGEST_HEADER:
        raise _too_long(len(header) - 8, len(description.encode()), len(tensors))
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(header)
        for array in arrays:
            file.write(array.data)


def _file(description: str, tensors: dict[str, F64]) -> tuple[bytes, list[F64]]:
    """What a file holds: its header with the length of it, and its arrays."""
    metadata = {"evicp": description, "sha256": _digest(description, tensors)}
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    header = canonical({"__metadata__": metadata, **dict(_layout(lengths))}).encode()
    header += b" " * (-len(header) % 8)  # so that the scores are aligned
    length = len(header).to_bytes(8, "little")
    return length + header, [np.ascontiguousarray(tensor, dtype="<f8") for tensor in tensors.values()]


def _too_long(header: int, description: int, tensors: int) -> InputError:
    """Say what fills a header that is too long: groups, or names."""
    if header - description > description:
        return InputError(
            f"a calibration's groups must fit into {LARGEST_HEADER:,} bytes; the file's header would have {header:,} "
            f"for {tensors:,} groups. Calibrate with fewer groups (classes can share some: ByClass(clusters=...))."
        )
    return InputError(
        f"class names{' and groups' if tensors > 3 else ''} must fit into {LARGEST_HEADER:,} bytes; the file's header "
        f"would have {header:,}. Shorten the names, or leave them out."
    )


def _layout(lengths: dict[str, int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """How a safetensors header describes arrays of doubles that fill the rest of the file, one after the other."""
    start = 0
    for name, length in lengths.items():
        yield name, {"dtype": "F64", "shape": [length], "data_offsets": [start, start + 8 * length]}
        start += 8 * length


def load(path: str | PathLike[str], score: Score | Callable[..., Any] | None = None) -> Calibration:
    """Read a calibration. No code in the file is executed, and every field is checked.

    Parameters
    ----------
    path : a file written by `Calibration.save`, or `hf://owner/model[@revision][/file]` on the Hugging Face Hub
    score : your own function, if the calibration used one (a score, ECP's evidence or utility): the file only says
        "custom", so supply it again

    Returns
    -------
    Calibration
        The same as when it was saved.

    >>> from tempfile import TemporaryDirectory
    >>> from evicp import calibrate
    >>> calibration = calibrate([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0]], [0, 1], "lac")
    >>> with TemporaryDirectory() as folder:
    ...     calibration.save(f"{folder}/lac.safetensors")
    ...     load(f"{folder}/lac.safetensors") == calibration
    True
    """
    supplied = None if score is None else as_score(score)
    return read_sealed(path, _names_of, lambda content, tensors: rebuilt(content, tensors, supplied))


def _names_of(names: set[str]) -> list[str]:
    """The arrays of a calibration in their order, of the names of those that a file holds."""
    if any(name.startswith(RULE) for name in names):
        raise ArtifactError("it is a rule, not a calibration. Load it by its own class, or use evicp apply.")
    return next((found for law in LAWS if (found := law.names_of(names))), [])


def read_sealed(
    path: str | PathLike[str], names_of: NamesOf, rebuild: Callable[[dict[str, Any], dict[str, F64]], Made]
) -> Made:
    """What `rebuild` makes of the description and the arrays of a file whose checksum is right.

    Parameters
    ----------
    path : a file written by `write_sealed`, here or on the Hugging Face Hub
    names_of : the arrays that a file with arrays of these names must hold, in their order; [] where they are not ours
    rebuild : checks every part, and makes the result
    """
    source = outer("from_hub")(path) if isinstance(path, str) and path.startswith("hf://") else as_path(path)
    with open_file(source) as file:
        try:
            metadata, tensors = _read_artifact(file, names_of)
            if _digest(metadata["evicp"], tensors) != metadata["sha256"]:
                raise ArtifactError("it is damaged: its checksum does not match its content. Calibrate again.")
            return rebuild(strict_json(metadata["evicp"]), tensors)
        except EvicpError as error:
            raise ArtifactError(f"cannot load {source}: {error}") from error
        except (ArithmeticError, OSError, TypeError, ValueError) as error:
            raise ArtifactError(f"cannot load {source}: it is not a calibration ({error}).") from error
        except MemoryError as error:
            raise ArtifactError(f"cannot load {source}: it is larger than the available memory.") from error


def _read_artifact(file: BinaryIO, names_of: NamesOf) -> tuple[dict[str, str], dict[str, F64]]:
    """The metadata and arrays of a safetensors file with the parts of a calibration and no others."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(LARGEST_HEADER, size - 8):
        raise ArtifactError(f"it is not a calibration: its header states {length:,} bytes.")
    header = strict_json(file.read(length).decode(), _MOST_GROUPS)
    metadata = header.pop("__metadata__", None)
    lengths = _lengths(header, names_of(set(header)))
    n, rest = divmod(size - 8 - length, 8)
    if rest or not lengths or sum(lengths.values()) != n or not _laid_out(header, lengths):
        raise ArtifactError(
            "it is not a calibration: it must contain one F64 tensor, scores, that fills the file (or one per group, "
            "or scores and weights)."
        )
    if not isinstance(metadata, dict) or set(metadata) != {"evicp", "sha256"}:
        raise ArtifactError("it is a safetensors file, but not one written by evicp.")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ArtifactError("its description and checksum must be text.")
    whole = np.fromfile(file, "<f8", n).astype(np.float64, copy=False)
    return metadata, dict(zip(lengths, np.split(whole, np.cumsum(list(lengths.values()))[:-1]), strict=True))


def _laid_out(header: dict[str, Any], lengths: dict[str, int]) -> bool:
    """Whether a header says what ours would; tensor by tensor, so that no second header is made."""
    same = (canonical(header[name]) == canonical(tensor) for name, tensor in _layout(lengths))
    return len(header) == len(lengths) and all(same)


def _lengths(tensors: dict[str, Any], names: list[str]) -> dict[str, int]:
    """How many numbers each tensor of a header claims to hold, in the order of the file; {} if it is not ours."""
    shapes: list[Any] = [tensors[name].get("shape") if isinstance(tensors[name], dict) else None for name in names]
    if not all(isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int for shape in shapes):
        return {}
    return {name: shape[0] for name, shape in zip(names, shapes, strict=True) if shape[0] >= 0}


#: A string of JSON text, or what is left of the text where its end is missing: one pass, whatever the text.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


def strict_json(text: str, most_groups: int = 0) -> dict[str, Any]:
    """JSON of few parts beside those of groups, without duplicate keys, NaN or infinities."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ArtifactError("a key occurs twice in its description.")
        return result

    def refuse(literal: str) -> None:
        raise ArtifactError(f"its description contains {literal}.")

    bare = _STRING.sub("", text)
    if any(bare.count(mark) > _MOST_PARTS + most_groups * each for mark, each in _PARTS_OF_A_GROUP.items()):
        raise ArtifactError("its description has more parts than any calibration.")
    try:
        content = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError as error:
        raise ArtifactError("its description is nested more deeply than that of any calibration.") from error
    if not isinstance(content, dict):
        raise ArtifactError("its description is not an object.")
    return content


def rebuilt(content: dict[str, Any], tensors: dict[str, F64], supplied: Score | None) -> Calibration:
    """A calibration from a description whose every field is checked."""
    if content.get("version") != FORMAT_VERSION:
        raise ArtifactError(
            f"its format is version {content.get('version')!r}; this version of evicp reads version {FORMAT_VERSION}."
        )
    kind = next(law for law in LAWS if law.names_of(set(tensors)))
    special = {kind.stored_as} - {""}
    if set(content) - {*_OPTIONAL, *ORIGIN, _SOURCE} != {"version", "score", "n", "n_classes", "class_names", *special}:
        raise ArtifactError(f"its description has the fields {', '.join(sorted(content))}.")
    names = content["class_names"]
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ArtifactError("its class names are not strings.")
    classes = ClassAxis.stored(content)
    parts = [tensor for name, tensor in tensors.items() if name.startswith("scores")]
    n = sum(map(len, parts))
    if validate.as_count(content["n"], "n") != n:
        raise ArtifactError(f"it states n = {content['n']} but contains {n} scores.")
    if not all(_ascending(part) for part in parts if len(part)):
        raise ArtifactError("its scores are not ascending numbers.")
    score = _rebuild_score(content["score"], supplied)
    if isinstance(score, ECP):
        score.rates(classes.n_classes)  # refuses base rates of another K
    whole = next(iter(tensors.values())).base  # the parts lie in it one after the other: putting them together copies
    scores = parts[0] if len(parts) == 1 or whole is None else whole[:n]
    law = kind.restored(content.get(kind.stored_as), tensors, classes.n_classes, classes.names)
    chosen_on, folds = (stored_count(content[name], name) if name in content else None for name in _COUNTS)
    return Calibration(
        score,
        convert.frozen(scores),
        classes.n_classes,
        classes.names,
        law,
        chosen_on=chosen_on,
        origin=Origin.from_dict(content),
        folds=folds,
        columns=classes.columns,
        numbered=classes.numbered,
        source=RowSource.from_dict(content[_SOURCE]) if _SOURCE in content else None,
    )


def stored_count(value: Any, what: str) -> int:
    """A number of rows or folds that the file does not hold: only its size can be checked."""
    if validate.as_count(value, what) >= 2**53:
        raise ArtifactError(f"it states {what} = {value}, which is too large.")
    return int(value)


def _ascending(scores: F64, step: int = 1 << 20) -> bool:
    """Whether no score is NaN or below the one before; in steps, so that no second array of n is made."""
    parts = (scores[start : start + step + 1] for start in range(0, len(scores), step))
    return not np.isnan(scores[0]) and all(bool(np.all(part[:-1] <= part[1:])) for part in parts)


def _rebuild_score(stored: Any, supplied: Score | None) -> Score:
    """The score a file names, with the functions the user supplies again."""
    name, parameters = named_parameters(stored, "name", "score is")
    if supplied is not None:
        got = _name_of(supplied), supplied.plain_parameters()
        if got != (name, _retupled(parameters)):
            raise ScoreError(f"it was made with the score {name} {parameters}; got {got[0]} {got[1]}.")
        return supplied
    if name == CUSTOM or CUSTOM in parameters.values():
        raise ScoreError("it was made with your own function or class. Supply it again: evicp.load(path, score=...).")
    kind = SCORES.get(name)
    if kind is None or set(parameters) != {field.name for field in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        raise ScoreError(
            f"it names the score {name!r} with parameters {', '.join(sorted(parameters)) or 'none'}, which this "
            "version of evicp does not know. If it is your own score, supply it: evicp.load(path, score=...)."
        )
    return as_score(kind(**parameters))


def _retupled(parameters: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where scores have tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()}
