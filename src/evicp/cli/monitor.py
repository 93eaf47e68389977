"""`evicp monitor`: labels that have arrived since the calibration; has coverage broken?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import evicp
from evicp.blocks import located, same_names
from evicp.calibration.calibration import Calibration
from evicp.calibration.laws.groups import ByClass
from evicp.cli.common import (
    STREAM,
    Coverage,
    Json,
    Labels,
    LogitsFiles,
    examples,
    note,
    print_json,
    print_text,
    progress,
    refuse_inputs,
)
from evicp.cli.inputs import (
    CalibrationFile,
    Groups,
    load_calibration,
    read_groups,
    read_rows,
    require_groups,
)
from evicp.errors import FileError, InputError
from evicp.input.messages import some_of
from evicp.io.artifact import checksum
from evicp.io.paths import locked, read_text, refuse_target, write_whole

__all__ = ["monitor"]


@examples(
    "evicp monitor cal.safetensors labelled.npz --coverage 0.9 --false-alarm-rate 0.01",
    "evicp monitor cal.safetensors today.npz --state monitor.json",
    "evicp monitor by_class.safetensors labelled.npz --group 'tabby cat'",
)
def monitor(
    calibration: CalibrationFile,
    logits: LogitsFiles,
    labels: Labels = None,
    coverage: Coverage = 0.9,
    confidence: Annotated[
        float | None, typer.Option("--confidence", help="The confidence the sets were predicted with, if any.")
    ] = None,
    false_alarm_rate: Annotated[
        float, typer.Option("--false-alarm-rate", help="The probability of ever alarming without cause.")
    ] = 0.01,
    p_values: Annotated[
        bool, typer.Option("--p-values", help="Watch p-values instead of sets: any shift to less plausible labels.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="NAME", help="The group to watch, where the calibration has groups."),
    ] = None,
    groups: Groups = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="FILE", help="Continue from this JSON file if it exists, and write it again."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell whether coverage has broken since the calibration, from labelled rows in the order of their arrival.

    The alarm is raised without cause with at most the probability stated, however often one looks; once raised, it
    stays. Exit code 1 means alarm.
    """
    if state is not None:
        if state == STREAM:
            raise FileError("the state must be a file, since it is read and written; got -.")
        refuse_target(Path(state), [Path(state).suffix])  # before the work: what it found would be lost
        refuse_inputs(Path(state), (calibration, logits, labels, groups))
    loaded = load_calibration(calibration)
    _require_group(calibration, loaded, group)
    require_groups(calibration, loaded, groups)
    watch = evicp.Monitor(loaded, coverage, confidence=confidence, group=group, false_alarm_rate=false_alarm_rate)
    watched = {"calibration": checksum(loaded), "group": group}
    rows = read_rows(logits, labels, labelled=True)
    same_names(loaded, rows, calibration)
    given = read_groups(groups, len(rows))
    with nullcontext() if state is None else _kept(state):
        watch = _continued(watch, watched, state)
        with progress("monitoring", len(rows)) as advance:
            for start, block, truth in rows.blocks():
                part = None if given is None else given[start : start + len(block)]
                with located(rows.source, start):
                    _feed(watch, loaded, block, truth, part, group, p_values)
                advance(len(block))
        if state is not None:
            write_whole(state, json.dumps({**watched, **watch.to_dict()}))
    if as_json:
        print_json(_summary(watch))
    else:
        print_text(watch)
    if watch.alarm:
        raise typer.Exit(1)


def _feed(
    watch: evicp.Monitor,
    calibration: Calibration,
    logits: NDArray[Any],
    labels: Any,
    groups: NDArray[Any] | None,
    group: str | None,
    p_values: bool,
) -> None:
    """Show the monitor those of a block's rows that are of its group."""
    array, truth = calibration.classes.labelled(logits, labels)
    wanted = np.ones(len(array), bool)
    if calibration.groups is not None:
        by = calibration.groups.by
        if isinstance(by, ByClass):
            own = np.array([name == group for name in calibration.groups.names])
            wanted = own[by.of_labels(calibration.n_classes)[truth]]
        else:
            wanted = calibration.groups_of(array, groups) == group
    rows, known = array[wanted], calibration.classes.labels(truth[wanted])
    part = None if groups is None else groups[wanted]
    if p_values:
        watch.update_p_values(calibration.p_values(rows, known, groups=part))
    else:
        sets = calibration.predict(rows, watch.coverage, confidence=watch.confidence, groups=part)
        watch.update(sets.contains(known))


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
    except (ValueError, RecursionError) as error:
        raise FileError(f"cannot read {state}: it is not the state of a monitor.") from error
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
    return {
        "alarm": watch.alarm,
        "alarm_at": watch.alarm_at,
        "labels": watch.seen,
        "covered": watch.covered,
        "observed": watch.observed,
        "coverage": watch.coverage,
        "confidence": watch.confidence,
        "false_alarm_rate": watch.false_alarm_rate,
        "e_value": watch.e_value,
        "p_value": watch.p_value,
        "n": watch.n,
    }
