"""`evicp monitor`: labels that have arrived since the calibration; has coverage broken?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import evicp
from evicp.blocks import Rows, same_names
from evicp.calibration.calibration import Calibration
from evicp.calibration.laws.groups import ByClass
from evicp.cli import inputs, options
from evicp.cli.outputs import STREAM, refuse_inputs
from evicp.cli.printing import note, print_result
from evicp.errors import FileError, InputError
from evicp.input.messages import some_of
from evicp.io.artifact import checksum
from evicp.io.atomic import locked, refuse_target, write_whole
from evicp.io.paths import read_text
from evicp.io.rows import located
from evicp.progress import progress

__all__ = ["monitor"]

Confidence = Annotated[
    float | None, typer.Option("--confidence", help="The confidence the sets were predicted with, if any.")
]
FalseAlarmRate = Annotated[
    float, typer.Option("--false-alarm-rate", help="The probability of ever alarming without cause.")
]
PValues = Annotated[
    bool, typer.Option("--p-values", help="Watch p-values instead of sets: any shift to less plausible labels.")
]
Group = Annotated[
    str | None, typer.Option("--group", metavar="NAME", help="The group to watch, where the calibration has groups.")
]
State = Annotated[
    str | None,
    typer.Option("--state", metavar="FILE", help="Continue from this JSON file if it exists, and write it again."),
]


@options.examples(
    "evicp monitor cal.safetensors labelled.npz --coverage 0.9 --false-alarm-rate 0.01",
    "evicp monitor cal.safetensors today.npz --state monitor.json",
    "evicp monitor by_class.safetensors labelled.npz --group 'tabby cat'",
)
def monitor(
    calibration: options.CalibrationFile,
    logits: options.LogitsFiles,
    labels: options.Labels = None,
    coverage: options.Coverage = 0.9,
    confidence: Confidence = None,
    false_alarm_rate: FalseAlarmRate = 0.01,
    p_values: PValues = False,
    group: Group = None,
    groups: options.Groups = None,
    state: State = None,
    as_json: options.Json = False,
) -> None:
    """Tell whether coverage has broken since the calibration, from labelled rows in the order of their arrival.

    The alarm is raised without cause with at most the probability stated, however often one looks; once raised, it
    stays. Exit code 1 means alarm.
    """
    if state is not None:
        _check_state(state, (calibration, logits, labels, groups))
    loaded = inputs.load_calibration(calibration)
    _require_group(calibration, loaded, group)
    inputs.require_groups(calibration, loaded, groups)
    watch = evicp.Monitor(loaded, coverage, confidence=confidence, group=group, false_alarm_rate=false_alarm_rate)
    watched = {"calibration": checksum(loaded), "group": group}
    rows = inputs.read_rows(logits, labels, labelled=True)
    same_names(loaded, rows, calibration)
    given = inputs.read_groups(groups, len(rows))
    with nullcontext() if state is None else _kept(state):
        watch = _continued(watch, watched, state)
        _show_rows(watch, loaded, rows, given, group, p_values)
        if state is not None:
            write_whole(state, json.dumps({**watched, **watch.to_dict()}))
    print_result(as_json, _summary(watch), watch)
    if watch.alarm:
        raise typer.Exit(1)


def _show_rows(
    watch: evicp.Monitor, calibration: Calibration, rows: Rows, groups: Any, group: str | None, p_values: bool
) -> None:
    """Show the monitor those rows that are of its group, block by block."""
    with progress("monitoring", len(rows)) as advance:
        for start, block, labels in rows.blocks():
            with located(rows.source, start):
                array, truth = calibration.classes.labelled(block, labels)
                given = None if groups is None else groups[start : start + len(block)]
                wanted = _of_group(calibration, array, truth, given, group)
                known, own = calibration.classes.labels(truth[wanted]), None if given is None else given[wanted]
                if p_values:
                    watch.update_p_values(calibration.p_values(array[wanted], known, groups=own))
                else:
                    sets = calibration.predict(array[wanted], watch.coverage, confidence=watch.confidence, groups=own)
                    watch.update(sets.contains(known))
            advance(len(block))


def _of_group(calibration: Calibration, logits: Any, labels: Any, groups: Any, group: str | None) -> NDArray[np.bool_]:
    """Which rows are of the group that is watched; all where there are none."""
    if calibration.groups is None:
        return np.ones(len(logits), bool)
    by = calibration.groups.by
    if isinstance(by, ByClass):
        own = np.array([name == group for name in calibration.groups.names])
        return own[by.of_labels(calibration.n_classes)[labels]]
    wanted: NDArray[np.bool_] = calibration.groups_of(logits, groups) == group
    return wanted


def _check_state(state: str, inputs: Sequence[str | None]) -> None:
    """Raise, before the work, where the state cannot be written: what it found would be lost."""
    if state == STREAM:
        raise FileError("the state must be a file, since it is read and written; got -.")
    refuse_target(Path(state), [Path(state).suffix])
    refuse_inputs(Path(state), inputs)


def _require_group(path: str, calibration: Calibration, group: str | None) -> None:
    """Raise where it is not said which of a calibration's groups to watch."""
    if calibration.groups is not None and group is None:
        names = some_of(calibration.groups.names)
        raise InputError(f"{path} has a threshold per {calibration.guarantee}: name one with --group ({names}).")


def _kept(state: str) -> AbstractContextManager[None]:
    """The state to oneself from before it is read until it is written, so that no labels of other calls are lost."""
    return locked(state, lambda: note(f"waiting for another process to finish with {state}"))


def _continued(watch: evicp.Monitor, watched: Mapping[str, Any], state: str | None) -> evicp.Monitor:
    """The monitor as it was left in the state file, if it watches the same thing."""
    if state is None or not Path(state).exists():
        return watch
    try:
        content = json.loads(read_text(Path(state)))
    except FileError:
        raise
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise FileError(f"cannot read {state}: it is not the state of a monitor.")
    try:
        before = evicp.Monitor.from_dict(content)
    except InputError as error:
        raise FileError(f"cannot read {state}: {error}") from error
    if content.get("calibration") != watched["calibration"]:
        raise InputError(f"{state} was made with another calibration, or does not say which. Use another state file.")
    mine, theirs = _settings(watch, watched), _settings(before, content)
    for name in mine:
        if mine[name] != theirs[name]:
            raise InputError(f"{state} was made with {name} {theirs[name]}; got {mine[name]}. Use another state file.")
    return before


def _settings(watch: evicp.Monitor, watched: Mapping[str, Any]) -> dict[str, Any]:
    """What a monitor must share with the one it continues."""
    return {
        "group": watched.get("group"),
        "n": watch.n,
        "coverage": float(watch.coverage),
        "confidence": watch.confidence,
        "false_alarm_rate": watch.false_alarm_rate,
    }


def _summary(watch: evicp.Monitor) -> dict[str, Any]:
    names = ("covered", "observed", "coverage", "confidence", "false_alarm_rate", "e_value", "p_value", "n")
    own = {name: getattr(watch, name) for name in names}
    return {"alarm": watch.alarm, "alarm_at": watch.alarm_at, "labels": watch.seen, **own}
