"""The state of a monitor in a file, from one call to the next."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evicp.calibration.calibration import Calibration
from evicp.calibration.monitor import Monitor
from evicp.errors import FileError, InputError
from evicp.io.artifact import checksum
from evicp.io.atomic import locked, write_whole
from evicp.io.paths import read_text


@contextmanager
def continued(
    path: str, monitor: Monitor, calibration: Calibration, group: str | None, on_wait: Callable[[], None]
) -> Iterator[Monitor]:
    """The monitor as it was left in a file, or this one where there is none; written when the block ends well.

    Other processes wait from before the file is read until it is written, so that no labels of theirs are lost.

    Parameters
    ----------
    path : of the state, a JSON file
    monitor : new, with the settings that the one in the file must have
    calibration, group : what is watched; a state of anything else is refused
    on_wait : called once where another process has the file for longer than a second
    """
    watched = {"calibration": checksum(calibration), "group": group}
    with locked(path, on_wait):
        if Path(path).exists():
            monitor = _read(path, monitor, watched)
        yield monitor
        write_whole(path, json.dumps({**watched, **monitor.to_dict()}))


def _read(path: str, monitor: Monitor, watched: dict[str, Any]) -> Monitor:
    """The monitor in a file, if it watches the same thing."""
    content = _content(path)
    try:
        before = Monitor.from_dict(content)
    except InputError as error:
        raise FileError(f"cannot read {path}: {error}") from error
    if content.get("calibration") != watched["calibration"]:
        raise InputError(f"{path} was made with another calibration, or does not state which. Use another state file.")
    mine, theirs = _settings(monitor, watched["group"]), _settings(before, content.get("group"))
    for name in mine:
        if mine[name] != theirs[name]:
            raise InputError(f"{path} was made with {name} {theirs[name]}; got {mine[name]}. Use another state file.")
    return before


def _content(path: str) -> dict[str, Any]:
    try:
        content = json.loads(read_text(Path(path)))
    except FileError:
        raise
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise FileError(f"cannot read {path}: it is not the state of a monitor.")
    return content


def _settings(monitor: Monitor, group: Any) -> dict[str, Any]:
    """What a monitor must share with the one it continues."""
    own = {"coverage": float(monitor.coverage), "confidence": monitor.confidence}
    return {"group": group, "n": monitor.n, **own, "false_alarm_rate": monitor.false_alarm_rate}
