"""Label order: which of a network's classes is meant by a folder, a synset or a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import as_file, files

import numpy as np

from evicp.errors import LabelsError
from evicp.types import I64

_SYNSET = re.compile(r"n[0-9]{8}")

#: Names differ between sources ("crane", "crane bird"); a wrong order agrees in next to none.
_SAME_ORDER = 0.8


@cache
def imagenet_synsets() -> tuple[str, ...]:
    """The WordNet synsets of ImageNet-1k in label order: ascending.

    >>> imagenet_synsets()[:2]
    ('n01440764', 'n01443537')
    """
    return tuple((files("evicp") / "data" / "imagenet_synsets.txt").read_text(encoding="ascii").split())


@cache
def imagenet_names() -> tuple[str, ...]:
    """The English names of ImageNet-1k in label order.

    >>> imagenet_names()[:2]
    ('tench', 'goldfish')
    """
    with as_file(files("evicp") / "data" / "imagenet_sample.npz") as path, np.load(path, allow_pickle=False) as arrays:
        return tuple(arrays["class_names"].tolist())


def is_synset(name: str) -> bool:
    """Whether a name is a WordNet noun number, as ImageNet's folders are called."""
    return _SYNSET.fullmatch(name) is not None


def is_imagenet(names: Sequence[str]) -> bool:
    """Whether class names are those of ImageNet-1k, in its order."""
    if len(names) != len(imagenet_names()):
        return False
    if tuple(names) == imagenet_synsets():
        return True
    agree = sum(bool(_keys(a) & _keys(b)) for a, b in zip(names, imagenet_names(), strict=True))
    return agree >= _SAME_ORDER * len(names)


def _keys(name: str) -> set[str]:
    """The spellings under which a name is found: whole, and up to its first comma."""
    whole = re.sub(r"[\s_]+", " ", name.casefold()).strip()
    return {whole, whole.split(",")[0].strip()}


def match_classes(names: Sequence[str], n_classes: int, class_names: Sequence[str] | None) -> I64:
    """For each class of a data source, in its order, the number of the network's class.

    Parameters
    ----------
    names : the source's classes: synsets, class names, or anything where the network's own names are not known
    n_classes : K
    class_names : the network's class names, if known

    >>> match_classes(["goldfish", "tench"], 1000, imagenet_names()).tolist()
    [1, 0]
    >>> match_classes(["n01443537"], 1000, None).tolist()
    [1]
    """
    if names and all(map(is_synset, names)) and _has_imagenet_order(n_classes, class_names):
        return _look_up(names, [{synset} for synset in imagenet_synsets()])
    if class_names is not None:
        theirs = [_keys(name) for name in class_names]
        if len(names) == n_classes and all(_keys(name) & keys for name, keys in zip(names, theirs, strict=True)):
            return np.arange(n_classes)
        return _look_up(names, theirs)
    if len(names) != n_classes:
        raise LabelsError(
            f"the data have {len(names)} classes ({_few(names)}) and the network {n_classes}, whose names are not "
            "known, so they cannot be matched. Give the network's class names."
        )
    return np.arange(n_classes)


def _has_imagenet_order(n_classes: int, class_names: Sequence[str] | None) -> bool:
    """A network of 1,000 unnamed classes that meets synsets was trained on ImageNet-1k, in ascending order."""
    return n_classes == len(imagenet_synsets()) if class_names is None else is_imagenet(class_names)


def _look_up(names: Sequence[str], keys: Sequence[set[str]]) -> I64:
    """Each name's only class."""
    holders: dict[str, set[int]] = {}
    for number, spellings in enumerate(keys):
        for spelling in spellings:
            holders.setdefault(spelling, set()).add(number)
    found = []
    for name in names:
        candidates = set[int]().union(*(holders.get(spelling, set()) for spelling in _keys(name)))
        if len(candidates) != 1:
            raise LabelsError(_mismatch(name, names, candidates, len(keys)))
        found.append(candidates.pop())
    if len(set(found)) != len(found):
        twice = next(n for i, n in enumerate(names) if found[i] in found[:i])
        raise LabelsError(f"two classes of the data are one class of the network; the second is {twice!r}. Merge them.")
    return np.array(found, dtype=np.int64)


def _mismatch(name: str, names: Sequence[str], candidates: set[int], n_classes: int) -> str:
    if candidates:
        return f"{name!r} is the name of the network's classes {sorted(candidates)}. Use class numbers or synsets."
    return (
        f"{name!r} is not one of the network's {n_classes} classes; the data's classes are {_few(names)}. "
        "Name folders after the network's classes, their synsets or their numbers, or give the network's class names."
    )


def _few(names: Sequence[str], shown: int = 4) -> str:
    return ", ".join(map(repr, names[:shown])) + (", ..." if len(names) > shown else "")
