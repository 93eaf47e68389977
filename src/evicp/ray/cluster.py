"""The cluster: connecting to it, what it has, and what its workers refuse, said here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.exceptions

from evicp.errors import EvicpError, InputError


@contextmanager
def connected(address: str | None = None, *, workers: int | None = None) -> Iterator[None]:
    """Connect to a Ray cluster inside a block: the current one, one at an address, or a new one on this machine.

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
