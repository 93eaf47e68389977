"""Where commands do their work: in this process, or distributed by Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from evicp import blocks
from evicp.errors import InputError


class Work(NamedTuple):
    """What an engine does with rows on disk."""

    calibrate: Callable[..., Any]
    predict: Callable[..., Any]


def check_engine(name: str, address: str | None) -> None:
    """Raise where there is no such engine, or where it has no address."""
    if name not in ("local", "ray"):
        raise InputError(f"--engine must be local or ray; got {name!r}.")
    if name == "local" and address is not None:
        raise InputError("--address is for --engine ray.")


@contextmanager
def engine(name: str, address: str | None) -> Iterator[Work]:
    """The functions of an engine, for as long as it runs."""
    if name == "local":
        yield Work(blocks.calibrate, blocks.predict)
        return
    from evicp import ray

    with ray.connected(address):
        yield Work(ray.calibrate_files, ray.predict_files)
