"""Where rows of logits come from: which network made them, of which data, as extraction writes it or a user says it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

from evicp.errors import InputError, InputTypeError, SuspiciousInputWarning
from evicp.input import validate
from evicp.input.messages import some_of
from evicp.input.warn import warn

__all__ = ["RowSource"]

#: The longest text that a source holds: a tokenizer or a processor has settings of some thousand letters.
_LONGEST = 1 << 16


@dataclass(frozen=True)
class RowSource:
    """Where rows of logits come from.

    Parameters
    ----------
    name : the network, or any words that tell rows of one source from others
    parameters : SHA-256 of the network's weights, where it is known
    preparation : how inputs become the network's input, as JSON, where it is known
    data_set : the inputs, where they are known
    file : of the logits, where there is one

    >>> str(RowSource("resnet152", parameters="1f3a" * 16, data_set="val"))
    'resnet152 (weights 1f3a1f3a), of val'
    """

    name: str
    parameters: str | None = None
    preparation: str | None = None
    data_set: str | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        for part, value in asdict(self).items():
            if not (isinstance(value, str) or (value is None and part != "name")):
                raise InputTypeError(f"a source's {part} must be text; got {value!r}.")
            if value is not None and len(value) > _LONGEST:
                raise InputError(f"a source's {part} must have at most {_LONGEST:,} letters; got {len(value):,}.")
        validate.as_printable(list(self.to_dict().values()), "a source")
        if not self.name.strip():
            raise InputError("a source must have a name; got none. Say which network made the logits.")

    @property
    def network(self) -> str:
        """The network, with the beginning of its weights' digest."""
        return self.name if self.parameters is None else f"{self.name} (weights {self.parameters[:8]})"

    def __str__(self) -> str:
        data = "" if self.data_set is None else f", of {self.data_set}"
        return self.network + data + ("" if self.file is None else f", in {self.file}")

    def to_dict(self) -> dict[str, str]:
        """What is known, as plain values."""
        return {part: value for part, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, content: Any) -> RowSource:
        """The source among the values of a file, checked."""
        parts = cls.__dataclass_fields__
        if not isinstance(content, Mapping) or "name" not in content or set(content) - set(parts):
            raise InputError(
                f"a source must have a name, and may have {', '.join([*parts][1:])}; got {content!r:.200}."
            )
        return cls(**content)

    @classmethod
    def of(cls, given: Any) -> RowSource | None:
        """A source as a user gives it: as such, or in words."""
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, str):
            raise InputTypeError(f"source must be text, as 'resnet152, weights of May'; got {given!r:.200}.")
        return cls(given)

    def difference(self, new: RowSource) -> str | None:
        """How new rows were made in another way than these, in words; None where nothing that is known differs."""
        known = None not in (self.parameters, new.parameters)
        if self.parameters != new.parameters if known else self.name != new.name:
            theirs, own = (new.network, self.network) if known else (new.name, self.name)
            return f"from {theirs}, the calibration rows from {own}"
        if self.preparation is None or new.preparation is None or self.preparation == new.preparation:
            return None
        return (
            f"of inputs prepared in another way than the calibration's ({_changes(self.preparation, new.preparation)})"
        )


def _changes(before: str, now: str) -> str:
    """Which settings of two preparations differ."""
    old, new = map(_settings, (before, now))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return some_of([f"{name} {new.get(name)}, was {old.get(name)}"[:80] for name in names])


def _settings(text: str) -> dict[str, Any]:
    """The values in a preparation by name; the text itself where it is no JSON."""
    try:
        return dict(_flat(json.loads(text)))
    except (ValueError, RecursionError):
        return {"settings": text}


def _flat(content: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """The values of nested settings, by names like transform.size."""
    if not isinstance(content, dict):
        return [(name, content)]
    return [pair for key, value in content.items() for pair in _flat(value, f"{name}.{key}".lstrip("."))]


def joined(sources: Iterable[RowSource | None]) -> RowSource | None:
    """The source of rows of several: what all have in common; None where one is not known.

    Sources that differ are refused: no guarantee holds over rows of several networks.
    """
    every = list(sources)
    known = [one for one in every if one is not None]
    if not known or len(known) < len(every):
        return None
    return reduce(_common, known)


def _common(one: RowSource, other: RowSource) -> RowSource:
    difference = one.difference(other)
    if difference is not None:
        raise InputError(f"rows of one calibration must have one source; some are {difference}. Keep them apart.")
    parts = one.to_dict().items() & other.to_dict().items()
    return RowSource.from_dict({"name": one.name, **dict(parts)})


def require_source(known: RowSource | None, given: Any) -> None:
    """Refuse new rows that come from another source, by the words of a user, than the calibration's."""
    new = RowSource.of(given)
    if new is None:
        return
    if known is None:
        raise InputError("this calibration does not say where its rows come from. Give source= to calibrate, too.")
    difference = known.difference(new)
    if difference is not None:
        raise InputError(f"new rows are {difference}: coverage holds for rows of one source. Calibrate on such rows.")


def warn_of_source(known: RowSource | None, new: RowSource | None, where: str) -> None:
    """Warn of rows that were made in another way than those of a calibration, where both say how.

    Parameters
    ----------
    where : what the rows are called
    """
    difference = None if known is None or new is None else known.difference(new)
    if difference is not None:
        warn(
            f"the rows of {where} are {difference}: coverage need not hold. Calibrate on rows that were made so.",
            SuspiciousInputWarning,
        )
