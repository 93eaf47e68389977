"""The cluster: connecting to it, what it has, and what workers refuse or warn of, said here."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.exceptions

from evicp import errors
from evicp.errors import EvicpError, EvicpWarning, InputError
from evicp.input.warn import warn


@contextmanager
def connected(address: str | None = None, *, workers: int | None = None) -> Iterator[None]:
    """Connect to a cluster for the time being: the one in use, the one at an address, or one of this machine.

    Parameters
    ----------
    address : as `ray.init` takes it: "auto", "ray://host:10001", "host:6379"; without one (and without RAY_ADDRESS) a
        cluster is started on this machine and stopped afterwards
    workers : processors of a cluster on this machine; all by default
    """
    if ray.is_initialized():
        yield
        return
    where: dict[str, Any] = {"address": address or os.environ.get("RAY_ADDRESS")}
    if where["address"] is None:
        where = {"address": "local", "num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot reach a Ray cluster at {where['address']}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def resources(name: str) -> float:
    """How much of something the cluster has: "CPU", "GPU"."""
    everything: Callable[[], dict[str, float]] = ray.cluster_resources
    return everything().get(name, 0.0)


def processors() -> int:
    """How many the cluster has."""
    return max(1, int(resources("CPU")))


@contextmanager
def own_errors() -> Iterator[None]:
    """What a worker refused is raised here as what it is, not as an error of Ray's with a worker's traceback."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause: BaseException | None = error
        while cause is not None and (not isinstance(cause, EvicpError) or isinstance(cause, ray.exceptions.RayError)):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if cause is None:
            raise
        raise cause from None


def recording(work: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, list[tuple[str, str]]]:
    """What some work in a worker gives, and what it warned of, for nobody hears it there.

    A task has one processor, however many the machine has.
    """
    os.environ.setdefault("EVICP_THREADS", "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work(*arguments, **options)
    own = [one for one in caught if issubclass(one.category, EvicpWarning)]
    return result, [(one.category.__name__, str(one.message)) for one in own]


class Driver:
    """Says what workers warned of, each thing once; warnings that differ in their numbers only are one."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, warned: Iterable[tuple[str, str]]) -> None:
        """Warn of what is new."""
        for category, message in warned:
            thing = re.sub(r"[\d.,]+", "", message)
            if thing not in self._said:
                self._said.add(thing)
                warn(message, getattr(errors, category))
