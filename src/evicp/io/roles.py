"""Which arrays or columns of a file hold logits and labels: those that a user names, or the ones with a usual name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from evicp.errors import FileError
from evicp.input.messages import some_of

#: What logits are called, what rows are, and labels; the first is what evicp writes, and is taken before the others.
_LOGITS = ("logits", "logit", "preds", "predictions", "outputs", "output", "arr_0")
_IDS = ("inputs", "ids", "id", "image_ids", "image_id", "keys", "key", "file_name", "filename", "path")
LABELS = ("labels", "label", "targets", "target", "label_ids", "y_true", "y", "arr_1")

#: A column of one class in a wide table: logit_7, pred7, "output 7", or the number alone.
_NUMBERED = re.compile(r"(|(?:class|logits?|preds?|predictions?|outputs?)[ ._-]?)(\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True)
class Wanted:
    """The names that a user gives; None for the usual ones. With a *, a name stands for a column per class."""

    logits: str | None = None
    labels: str | None = None


@dataclass(frozen=True)
class Roles:
    """What a file holds where.

    Parameters
    ----------
    logits : one array, or the columns of a wide table in the order of the classes
    labels : None where no name says so
    class_names : what columns say that are not numbered
    names : of everything in the file, for messages
    ids : what the rows are called; None where no name says so
    """

    logits: tuple[str, ...]
    labels: str | None
    class_names: tuple[str, ...] | None
    names: tuple[str, ...]
    ids: str | None = None

    @property
    def wide(self) -> bool:
        """Whether each class has its own column."""
        return len(self.logits) > 1

    @property
    def all(self) -> tuple[str, ...]:
        """What is read."""
        return self.logits if self.labels is None else (*self.logits, self.labels)


@dataclass
class Choice:
    """Chooses what is read of a file, once its names are known, and keeps what is what."""

    wanted: Wanted
    roles: Roles = field(init=False)

    def __call__(self, names: Sequence[str]) -> tuple[str, ...]:
        """What is read."""
        self.roles = roles_of(names, self.wanted)
        return self.roles.all


def roles_of(names: Sequence[str], wanted: Wanted, *, table: bool = False) -> Roles:
    """Who is who among the names of a file's arrays, or of a table's columns.

    >>> roles_of(["id", "label", "logits"], Wanted()).all
    ('logits', 'label')
    >>> roles_of(["logit_1", "logit_0", "y"], Wanted(), table=True).all
    ('logit_0', 'logit_1', 'y')
    >>> roles_of(["cat", "dog", "truth"], Wanted("*", "truth"), table=True).class_names
    ('cat', 'dog')
    """
    labels = _labels_among(names, wanted.labels, table)
    others = [name for name in names if name != labels]
    class_names = None
    if wanted.logits is not None and table and "*" in wanted.logits:
        logits, class_names = _matching(others, wanted.logits)
    elif wanted.logits is not None:
        logits = (_named(names, wanted.logits, "logits_column", table),)
    else:
        logits = _usual_logits(others, table)
    if labels == "arr_1" and logits != ("arr_0",) and wanted.labels is None:
        labels = None
    ids = _usual([name for name in names if name not in (*logits, labels) and names.count(name) == 1], _IDS)
    found = Roles(logits, labels, class_names, tuple(names), ids)
    twice = next((name for name, count in Counter(names).items() if count > 1 and name in found.all), None)
    if twice is not None:
        raise FileError(f"it has the {_what(table)} {twice!r} twice. Rename one of them.")
    return found


def _what(table: bool) -> str:
    return "column" if table else "array"


def _holds(names: Sequence[str]) -> str:
    return some_of(sorted(names)) or "none"


def _named(names: Sequence[str], name: str, argument: str, table: bool) -> str:
    """A name that the user gives, if the file has it."""
    if name in names:
        return name
    raise FileError(
        f"it has no {_what(table)} {name!r}; it has {_holds(names)}. Give one of them as {argument} "
        f"(--{argument.replace('_', '-')})."
    )


def _usual(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """The one that evicp writes, or the only one with a usual name."""
    found = [name for name in usual if name in names]
    return found[0] if found and (found[0] == usual[0] or len(found) == 1) else None


def _labels_among(names: Sequence[str], wanted: str | None, table: bool) -> str | None:
    return _usual(names, LABELS) if wanted is None else _named(names, wanted, "labels_column", table)


def _usual_logits(names: Sequence[str], table: bool) -> tuple[str, ...]:
    one = _usual(names, _LOGITS)
    if one is not None:
        return (one,)
    groups: dict[str, dict[int, str]] = {}
    for name in names if table else ():
        if match := _NUMBERED.fullmatch(name):
            groups.setdefault(match[1], {})[int(match[2])] = name
    complete = [group for group in groups.values() if len(group) > 1 and sorted(group) == list(range(len(group)))]
    if len(complete) == 1:
        return tuple(name for _, name in sorted(complete[0].items()))
    hint = ", or a pattern for a column per class, such as 'logit_*'" if table else ""
    raise FileError(
        f"it has no {_what(table)} 'logits'; it has {_holds(names)}. Name it with logits_column "
        f"(--logits-column NAME){hint}."
    )


def _matching(names: Sequence[str], pattern: str) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The columns that match a pattern: in the order of their numbers, or in their own, and then with class names."""
    compiled = re.compile(".*".join(f"({re.escape(part)})" for part in pattern.split("*")), re.DOTALL)
    before, _, after = pattern.partition("*")
    found = {name: name[len(before) : len(name) - len(after)] for name in names if compiled.fullmatch(name)}
    if len(found) < 2:
        raise FileError(f"it has no columns that match {pattern!r}; it has {_holds(names)}. Give another pattern.")
    parts = list(found.values())
    if sorted(parts, key=lambda part: (len(part), part)) == [str(number) for number in range(len(parts))]:
        return tuple(sorted(found, key=lambda name: int(found[name]))), None
    return tuple(found), tuple(parts)
