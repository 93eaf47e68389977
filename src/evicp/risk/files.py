"""Files of rules: a calibration and what a rule adds to it, in the format of calibrations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.calibration import Calibration
from evicp.calibration.laws.law import canonical
from evicp.errors import ArtifactError, InputError
from evicp.io.artifact import RULE, content_of, read_sealed, rebuilt, sealed_checksum, write_sealed
from evicp.method.scores import as_score
from evicp.risk.known import KnownLogits
from evicp.types import F64

#: The format of rules; a file of another one is refused.
FORMAT_VERSION = 1
Rebuild = Callable[[dict[str, Any], Any, dict[str, F64]], Any]


class Stored(NamedTuple):
    """What the file of a rule holds.

    Parameters
    ----------
    rule, content : the name of the rule, and its plain values
    base : the calibration that it rests on, or what is known of its logits
    arrays : of the rule, by name
    """

    rule: str
    content: dict[str, Any]
    base: Calibration | KnownLogits
    arrays: Mapping[str, NDArray[Any]]

    def sealed(self) -> tuple[str, dict[str, F64]]:
        """The same as a description and arrays of doubles."""
        whole = {"rule": self.rule, "rule_version": FORMAT_VERSION, **self.content}
        tensors = {f"{RULE}{name}": np.asarray(self.arrays[name], np.float64) for name in sorted(self.arrays)}
        if not isinstance(self.base, Calibration):
            return canonical({**whole, "logits": self.base.description()}), tensors
        tensors = self.base.law.tensors(self.base.scores) | tensors
        return canonical({**whole, "calibration": content_of(self.base)}), tensors


def save_rule(path: str | PathLike[str], stored: Stored, *, overwrite: bool = False) -> None:
    """Write a rule, atomically; a file that exists is refused, if it is not to be overwritten."""
    write_sealed(path, *stored.sealed(), overwrite=overwrite)


def checksum(stored: Stored) -> str:
    """SHA-256 of that file."""
    return sealed_checksum(*stored.sealed())


def load_rule(path: str | PathLike[str], rules: Mapping[str, Rebuild], score: Any = None) -> Any:
    """Read a rule; every part of it is checked.

    Parameters
    ----------
    path : of the file
    rules : what makes a rule of its parts, by its name
    score : yours, where the rule uses one
    """
    supplied = None if score is None else as_score(score)

    def rebuild(content: dict[str, Any], tensors: dict[str, F64]) -> Any:
        name = content.pop("rule", None)
        if name not in rules:
            raise ArtifactError(f"it contains the rule {name!r}; expected {' or '.join(rules)}.")
        version = content.pop("rule_version", None)
        if version != FORMAT_VERSION:
            raise ArtifactError(
                f"its rule is of version {version!r}; this version of evicp reads version {FORMAT_VERSION}."
            )
        own = {name.removeprefix(RULE): tensors.pop(name) for name in list(tensors) if name.startswith(RULE)}
        try:
            described = content.pop("calibration" if tensors else "logits")
            if not isinstance(described, dict):
                raise ArtifactError("what it says of its calibration or logits is no object.")
            base: Any = rebuilt(described, tensors, supplied) if tensors else KnownLogits.stored(described)
            return rules[name](content, base, own)
        except KeyError as error:
            raise ArtifactError(f"its description lacks {error}.") from error

    return read_sealed(path, _names_of, rebuild)


def _names_of(names: set[str]) -> list[str]:
    """The scores of the calibration, then the arrays of the rule, by name."""
    own = sorted(name for name in names if name.startswith(RULE))
    scores = ["scores"] if "scores" in names else []
    return [*scores, *own] if own and names == {*scores, *own} else []


def stored_fraction(text: Any) -> Fraction:
    """A fraction as text, "1/20"."""
    if not isinstance(text, str) or not re.fullmatch(r"\d{1,40}(/[1-9]\d{0,39})?", text):
        raise InputError(f"it has {text!r} instead of a fraction.")
    return Fraction(text)


def stored_texts(values: Any) -> tuple[str, ...]:
    """Names of groups."""
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise InputError("the names of its groups are malformed.")
    return tuple(values)
