"""Which class is which: class names, the columns of frames and labels, by one rule wherever they are taken.

The K classes have numbers, 0 to K - 1, the places of their logits. They may have names, given or in a file, and
columns, where the logits they were calibrated on came in a frame.

- **Class names** are a sequence in the order of the logits; or a mapping, or a pandas Series indexed by whole numbers,
  from class numbers. Whole numbers that are not 0 to K - 1 in order (scikit-learn's `classes_`) are names that labels
  are looked up among.
- **Columns** of new logits must be the names, or the columns known, in the same order. Arrays and columns numbered from
  0 in their order say nothing and are fine; other columns are refused where names or columns are known. Columns that
  are the class numbers in another order are refused at calibration, too; names given there rename columns, but none to
  the name of another column.
- **Labels** are class numbers, or names. Whole numbers are refused where names are text and one of them is the number
  of another class ("1" for class 0): they could be either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError, InputTypeError, LabelsError, LogitsError
from evicp.input import convert, frames, validate
from evicp.input.frames import as_number, as_text, columns_of, index_of, numbers_of
from evicp.input.messages import did_you_mean, some_of
from evicp.types import I64

#: A name for each class in their order, or by class number.
ClassNames = Sequence[str] | Sequence[int] | NDArray[Any] | Mapping[Any, str]


@dataclass(frozen=True)
class ClassAxis:
    """What is known of the K classes whose logits lie side by side.

    Parameters
    ----------
    n_classes : K
    names : K names, optional
    columns : what the columns of the frame were called that the logits came in, where they are not the class numbers
    numbered : names were given as whole numbers: labels are looked up among them
    """

    n_classes: int
    names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    numbered: bool = False

    @classmethod
    def of(cls, class_names: Any, n_classes: int) -> ClassAxis:
        """Classes of these names, in any form that `as_class_names` takes; None for no names."""
        given = _listed(class_names, n_classes)
        names = as_class_names(given, n_classes)
        if given is None or names is None:
            return cls(n_classes)
        numbers = [as_number(name) for name in names]
        are_numbers = not any(isinstance(name, str) for name in given) and None not in numbers
        return cls(n_classes, names, numbered=are_numbers and numbers != list(range(n_classes)))

    @classmethod
    def known_to(cls, result: Any) -> ClassAxis:
        """What a calibration, or sets, know of their classes: the names, and the columns they came in."""
        return cls(result.n_classes, result.class_names, result.columns, result.numbered)

    @classmethod
    def stored(cls, content: Mapping[str, Any]) -> ClassAxis:
        """Classes as a file describes them, checked."""
        n_classes = validate.as_n_classes(content["n_classes"])
        columns, numbered = content.get("columns"), content.get("numbered", False)
        names = as_class_names(content["class_names"], n_classes)
        if columns is not None:
            if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
                raise InputError("its columns are not strings.")
            if len(columns) != n_classes:
                raise InputError(f"it has {len(columns)} columns for {n_classes} classes.")
        if numbered is not True and numbered is not False:
            raise InputError(f"it states whether its class names are numbers as {numbered!r}.")
        if numbered and (names is None or None in map(as_number, names)):
            raise InputError("it states that its class names are numbers, but they are not.")
        return cls(n_classes, names, None if columns is None else tuple(columns), numbered)

    @classmethod
    def learned_of(cls, known: ClassAxis | None, class_names: Any, logits: Any, n_classes: int) -> ClassAxis:
        """What is known of the classes with these logits to calibrate on; before the first, their names."""
        if known is None or known.n_classes != n_classes:
            known = cls.of(class_names, n_classes)
        return known if type(logits) is np.ndarray else known.learned(logits)

    # -----------------------------------------------------------------------------------------------------------
    # Columns

    @property
    def other_columns(self) -> tuple[str, ...] | None:
        """The columns, where they are known and not the names."""
        return None if self.columns == self.names else self.columns

    def check(self, logits: Any) -> None:
        """Refuse a frame, or a row of one, whose columns are not those of the classes, in their order."""
        columns = columns_of(logits)
        if columns is not None and len(columns) == self.n_classes:
            self._check(columns, logits, "logits", renamed=False)

    def learned(self, logits: Any, what: str = "logits") -> ClassAxis:
        """The classes with the columns of a frame to calibrate on, which names may have been given for."""
        columns = columns_of(logits)
        if columns is None or len(columns) != self.n_classes:
            return self
        self._check(columns, logits, what, renamed=self.columns is None)
        return replace(self, columns=columns)

    def _check(self, columns: tuple[str, ...], frame: Any, what: str, *, renamed: bool) -> None:
        known = self.misplaced(columns, renamed=renamed)
        if known is None:
            return
        by_place = f"{_to_numpy(frame, what)} if they are in the order of the classes"
        if known != self._own_numbers or sorted(_keys(columns)) == sorted(known):
            pairs = zip(_keys(columns), _keys(known), strict=True)
            k = next(k for k, (one, other) in enumerate(pairs) if one != other)
            here = f"column {k} is {columns[k]!r}, class {k} is {known[k]!r}"
            if sorted(_keys(columns)) == sorted(_keys(known)):
                selected = f"{_in_order(frame, what, known)}, or " if len(set(columns)) == len(columns) else ""
                message = f"in another order: {here}. Pass {selected}{by_place}."
            else:
                message = f"with other names: {here}. Pass the columns of the classes, or {by_place}."
        elif _is_shuffled(columns, numbers_of(columns)):
            message = (
                f"in another order than that of their numbers: {some_of(columns, repr)}. Pass them in that "
                f"order, or {by_place}."
            )
        else:
            message = (
                f"with numbers other than 0 to {self.n_classes - 1}: {some_of(columns, repr)}. Pass them as "
                f"class_names too, to calibrate, if labels are among them, or {by_place}, from 0."
            )
        raise LogitsError(f"{what} have the columns of the classes {message}")

    @property
    def _own_numbers(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.n_classes)))

    def misplaced(self, columns: tuple[str, ...], *, renamed: bool = False) -> tuple[str, ...] | None:
        """The names or numbers of classes that K columns contradict; None where they fit.

        Parameters
        ----------
        columns : their names
        renamed : names were given for these columns, so that they may be other ones
        """
        keys, known = _keys(columns), [names for names in (self.names, self.columns) if names is not None]
        numbers = numbers_of(columns)
        if any(keys == _keys(names) for names in known) or numbers == tuple(range(self.n_classes)):
            return None
        for names in known:
            if _share_elsewhere(keys, _keys(names)):
                return names
        if _share_elsewhere(keys, _keys(self._own_numbers)) or _is_shuffled(columns, numbers):
            return self._own_numbers
        return known[0] if known and not renamed else None

    def agreed(self, other: ClassAxis) -> ClassAxis:
        """What two that must be of the same classes know together."""
        if None not in (self.names, other.names) and (self.names, self.numbered) != (other.names, other.numbered):
            raise InputError("only calibrators with the same class names in the same order can be merged.")
        both = replace(self if self.names is not None else other, columns=None)
        for columns in (self.columns, other.columns):
            if columns is None:
                continue
            if both.misplaced(columns, renamed=both.columns is None):
                raise InputError("only calibrators of frames with the same columns in the same order can be merged.")
            both = replace(both, columns=columns)
        return both

    # -----------------------------------------------------------------------------------------------------------
    # Labels

    def numbers(self, labels: Any, n: int) -> I64:
        """Labels of n rows as class numbers, (n,), all in [0, K).

        Parameters
        ----------
        labels : (n,) class numbers or names; see the module
        n : rows
        """
        if self.names is not None:
            array = convert.as_array(labels, "labels")
            labels = self._looked_up(array, labels, self.names) if array.ndim == 1 and array.size else array
        return validate.as_labels(labels, n, self.n_classes)

    @property
    def takes_numbers(self) -> bool:
        """Whether labels that are whole numbers are class numbers, whatever they are."""
        return self.names is None or not (self.numbered or _number_of_another(self.names))

    def row_labels(self, labels: Any, logits: Any, array: NDArray[Any]) -> I64:
        """The labels of rows of logits as class numbers; refused where indexes say that they are of other rows.

        Parameters
        ----------
        labels, logits : as they were given
        array : the same logits as an array or a tensor, (n, K)
        """
        truth = self.numbers(labels, len(array))
        if type(logits) is not np.ndarray:  # arrays have no index
            frames.same_labels(logits, labels, array, truth)
        return truth

    def _looked_up(self, array: NDArray[Any], labels: Any, names: tuple[str, ...]) -> NDArray[Any]:
        """Labels that are names as class numbers, others as they are; refused where they could be either."""
        if array.dtype.kind in "UTO" and any(isinstance(label, str) for label in array):
            _all_strings(labels if isinstance(labels, list | tuple) else array)
            return _by_name(array.tolist(), names)
        if array.dtype.kind == "b" and {"True", "False"} <= set(names):
            return _by_name(array.astype(str).tolist(), names)
        if array.dtype.kind in "iu" and self.numbered:
            return _by_name(array.tolist(), tuple(map(as_number, names)))
        if array.dtype.kind in "iu" and (name := _number_of_another(names)) is not None:
            raise LabelsError(
                f"labels that are whole numbers are ambiguous here: {name!r} is the name of class {names.index(name)}, "
                "and the number of another class. Pass names: labels.astype(str) if labels are among the class_names, "
                "np.array(class_names)[labels] if they count classes from 0."
            )
        return array

    def labels(self, numbers: I64) -> NDArray[Any]:
        """Class numbers as labels that `numbers` reads as the same: names, where numbers alone may be others."""
        if self.takes_numbers or self.names is None:
            return numbers
        return np.array(self.names)[numbers]

    def labelled(self, logits: Any, labels: Any) -> tuple[NDArray[Any], I64]:
        """Logits of these classes as (n, K) floats, and the labels of their rows as class numbers."""
        validate.same_device(logits, labels)
        self.check(logits)
        return _paired(self, logits, labels, validate.as_logits(logits, self.n_classes))


def labelled(logits: Any, labels: Any, *, class_names: Any = None) -> tuple[NDArray[Any], I64]:
    """Logits as (n, K) floats, and the labels of their rows as class numbers."""
    validate.same_device(logits, labels)
    array = validate.as_logits(logits)
    return _paired(ClassAxis.of(class_names, array.shape[1]).learned(logits), logits, labels, array)


def _paired(classes: ClassAxis, logits: Any, labels: Any, array: NDArray[Any]) -> tuple[NDArray[Any], I64]:
    frames.same_rows(logits=logits, labels=labels)
    return array, classes.row_labels(labels, logits, array)


# ---------------------------------------------------------------------------------------------------------------
# Names


def as_class_names(names: Any, n_classes: int) -> tuple[str, ...] | None:
    """Class names as a tuple of K strings, in the order of the classes.

    Parameters
    ----------
    names : K names in that order; or a mapping from class numbers, such as Hugging Face's id2label, or a Series that is
        indexed by them
    n_classes : K
    """
    names = _listed(names, n_classes)
    if names is None:
        return None
    all_classes = all(isinstance(name, bool) for name in names) or None not in map(as_number, map(as_text, names))
    result = tuple(str(name) if all_classes else _as_name(place, name) for place, name in enumerate(names))
    if len(result) != n_classes:
        raise InputError(f"class_names must have one name per class; got {len(result)} names for {n_classes} classes.")
    validate.as_printable(result, "class_names")
    return result


def _listed(names: Any, n_classes: int) -> list[Any] | None:
    """Names one after the other, as what they were given."""
    if names is None:
        return None
    if isinstance(names, Mapping):
        return _by_number(list(names), list(names.values()), n_classes)
    unordered = isinstance(names, str | bytes | set | frozenset) or not isinstance(names, Iterable)
    if unordered or getattr(names, "ndim", 1) != 1:
        raise InputTypeError(f"class_names must be a sequence of {n_classes} strings; got a {type(names).__name__}.")
    index = index_of(names)
    listed = np.asarray(names).tolist() if index is not None or hasattr(names, "tolist") else list(names)
    if index is not None and all(as_number(as_text(label)) is not None for label in index):
        return _by_number(list(index), listed, n_classes)
    return listed


def _as_name(place: int, name: Any) -> str:
    """One class name: text as it is, a whole number in its digits; what else has a text is hardly meant by it."""
    if isinstance(name, str) or (isinstance(name, int | np.integer) and not isinstance(name, bool)):
        return str(name)
    missing = "Give every class a name, or leave out class_names."
    hint = (
        "Decode it: name.decode()."
        if isinstance(name, bytes)
        else missing
        if convert.is_missing(name)
        else "Pass its text."
    )
    raise InputTypeError(f"class_names must be strings; got {name!r} ({type(name).__name__}) for class {place}. {hint}")


def _by_number(labels: list[Any], names: list[Any], n_classes: int) -> list[Any]:
    """Names in the order of the class numbers, or their digits, that they stand beside."""
    by_digits = dict(zip(map(as_text, labels), names, strict=True))
    missing = [number for number in range(n_classes) if str(number) not in by_digits]
    if missing or len(names) != n_classes:
        first = f", and nothing for {missing[0]}" if missing else ""
        raise InputError(
            f"class_names must map every number from 0 to {n_classes - 1} to a name; got {len(names)} keys"
            f"{first}. Pass the names in the order of the classes."
        )
    return [by_digits[str(number)] for number in range(n_classes)]


def in_class_order(values: Any, what: str, class_names: Any = None) -> Any:
    """One value per class in the order of the classes: of a mapping or a Series by class number, or by name.

    Of what has neither keys nor an index the values as they are.

    Parameters
    ----------
    values : K of them
    what : to call them in messages
    class_names : of the classes, if there are any
    """
    index = index_of(values) if getattr(values, "ndim", 1) == 1 else None
    if index is None and not isinstance(values, Mapping):
        return values
    keys = [as_text(key) for key in (values if index is None else index)]
    listed = list(values.values()) if isinstance(values, Mapping) else convert.as_array(values, what).tolist()
    numbers = tuple(map(str, range(len(keys))))
    for known in (as_class_names(class_names, len(keys)), numbers):
        if known is not None and sorted(known) == sorted(keys) and len(set(keys)) == len(keys):
            by_key = dict(zip(keys, listed, strict=True))
            return [by_key[name] for name in known]
    raise InputError(
        f"{what} must have one entry per class, by class number from 0 to {len(keys) - 1} or by name; got "
        f"{some_of(keys, repr)}. Pass them as a list, in the order of the classes."
    )


@lru_cache(maxsize=256)
def _keys(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names under which 1, "1" and "1.0" are the same."""
    return tuple(name if (number := as_number(name)) is None else str(number) for name in names)


def _share_elsewhere(keys: tuple[str, ...], known: tuple[str, ...]) -> bool:
    """Whether a name of the one stands at another place in the other."""
    names = set(known)
    return any(key in names and key != name for key, name in zip(keys, known, strict=True))


def _is_shuffled(columns: tuple[str, ...], numbers: tuple[int, ...] | None) -> bool:
    """Whether columns are numbered from 0, or from 1 and sorted as text ("V1", "V10", "V2"), in another order."""
    if numbers is None or list(numbers) == sorted(numbers):
        return False
    first = min(numbers)
    is_whole = sorted(numbers) == list(range(first, first + len(numbers)))
    return is_whole and (first == 0 or (first == 1 and list(columns) == sorted(columns)))


def _in_order(frame: Any, what: str, known: tuple[str, ...]) -> str:
    """How to select a frame's columns in the order known."""
    labels = frames.column_labels(frame) or []
    of_key = dict(zip(_keys(tuple(map(as_text, labels))), labels, strict=True))
    first = [of_key[key] for key in _keys(known)][:2]
    shown = ", ".join(repr(label) if isinstance(label, str) else as_text(label) for label in first)
    order = f"[{shown}{', ...' if len(known) > 2 else ''}]"
    if hasattr(frame, "dims"):
        return f"{what}.sel({frame.dims[-1]}={order})"
    return f"{what}.select({order})" if hasattr(frame, "column_names") else f"{what}[{order}]"


def _to_numpy(frame: Any, what: str) -> str:
    """How a frame becomes an array, which has no names."""
    plain = hasattr(frame, "to_numpy") and not hasattr(frame, "column_names")
    return f"{what}.to_numpy()" if plain else f"np.asarray({what})"


# ---------------------------------------------------------------------------------------------------------------
# Labels by name


@lru_cache(maxsize=256)
def _number_of_another(names: tuple[str, ...]) -> str | None:
    """The first name that is the number of another class; None where there is none."""
    for place, name in enumerate(names):
        number = as_number(name)
        if number is not None and number != place and 0 <= number < len(names):
            return name
    return None


def _all_strings(labels: Any) -> None:
    """Of numbers among names NumPy makes names, or objects."""
    for row, label in enumerate(labels):
        if not isinstance(label, str):
            raise InputTypeError(
                f"labels must be class numbers, or class names in every row; got {label!r} at row {row}. "
                "Drop the rows without a label."
            )


def _by_name(labels: list[Any], class_names: tuple[Any, ...]) -> I64:
    """The class number of each name."""
    numbers = {name: number for number, name in enumerate(class_names)}
    if len(numbers) < len(class_names):
        number, name = next((i, name) for i, name in enumerate(class_names) if numbers[name] != i)
        raise LabelsError(
            f"labels can be names only if class_names are different; got {name!r} for classes {number} and "
            f"{numbers[name]}. Pass class numbers."
        )
    found = np.array([numbers.get(name, -1) for name in labels], np.int64)
    if np.any(found < 0):
        row = int(found.argmin())
        raise LabelsError(
            f"labels must be among the class_names; got {labels[row]!r} at row {row}. {_hint(labels[row], class_names)}"
        )
    return found


def _hint(label: Any, class_names: tuple[Any, ...]) -> str:
    """What may be meant by a label that is no class."""
    if not isinstance(label, str):
        return (
            f"They are numbers ({some_of(class_names)}), so labels are looked up among them; pass "
            "np.array(class_names)[labels] if labels are class numbers from 0."
        )
    close = did_you_mean(label, class_names, show=repr)
    return close or "Drop such rows, or calibrate with this class."
