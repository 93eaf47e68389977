"""`evicp monitor`: labels that have arrived since the calibration; has coverage broken?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

import evicp
from evicp import blocks
from evicp.calibration.calibration import Calibration
from evicp.cli import inputs, options
from evicp.cli.outputs import STREAM, refuse_inputs
from evicp.cli.printing import note, print_result
from evicp.errors import FileError, InputError
from evicp.input.messages import some_of
from evicp.io.atomic import refuse_target
from evicp.io.monitor_states import continued
from evicp.progress import progress

Confidence = Annotated[
    float | None, typer.Option("--confidence", help="The confidence the sets were predicted with, if any.")
]
FalseAlarmRate = Annotated[
    float, typer.Option("--false-alarm-rate", help="The probability of ever raising a false alarm.")
]
PValues = Annotated[
    bool,
    typer.Option("--p-values", help="Monitor p-values instead of sets: detects any shift to less plausible labels."),
]
Group = Annotated[
    str | None, typer.Option("--group", metavar="NAME", help="The group to monitor, if the calibration has groups.")
]
State = Annotated[
    str | None,
    typer.Option("--state", metavar="FILE", help="Continue from this JSON file if it exists, and update it."),
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
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    coverage: options.Coverage = 0.9,
    confidence: Confidence = None,
    false_alarm_rate: FalseAlarmRate = 0.01,
    p_values: PValues = False,
    group: Group = None,
    groups: options.Groups = None,
    state: State = None,
    as_json: options.Json = False,
) -> None:
    """Monitor coverage on labelled rows in order of arrival; raise an alarm when it no longer holds.

    The probability of a false alarm is at most the stated one, although the test is repeated at every label. An alarm
    stays. Exit code 1 means an alarm.
    """
    if state is not None:
        _check_state(state, (calibration, logits, labels, groups))
    loaded = inputs.load_calibration(calibration)
    _require_group(calibration, loaded, group)
    inputs.require_groups(calibration, loaded, groups)
    watch = evicp.Monitor(loaded, coverage, confidence=confidence, group=group, false_alarm_rate=false_alarm_rate)
    rows = inputs.read_rows(logits, labels, (logits_column, labels_column), labelled=True)
    what: dict[str, Any] = {"group": group, "groups": inputs.read_groups(groups, len(rows)), "p_values": p_values}
    before = nullcontext(watch) if state is None else continued(state, watch, loaded, group, lambda: _wait(state))
    with before as watch, progress("monitoring", len(rows)) as advance:
        blocks.monitor(watch, loaded, rows, progress=advance, **what)
    print_result(as_json, _summary(watch), watch)
    if watch.alarm:
        raise typer.Exit(1)


def _check_state(state: str, inputs: Sequence[str | None]) -> None:
    """Raise, before the work, where the state cannot be written: what it found would be lost."""
    if state == STREAM:
        raise FileError("the state must be a file, because it is read and written; got -.")
    refuse_target(Path(state), [Path(state).suffix])
    refuse_inputs(Path(state), inputs)


def _require_group(path: str, calibration: Calibration, group: str | None) -> None:
    """Raise where it is not said which of a calibration's groups to watch."""
    if calibration.groups is not None and group is None:
        names = some_of(calibration.groups.names)
        raise InputError(f"{path} has a threshold per {calibration.guarantee}: name one with --group ({names}).")


def _wait(state: str) -> None:
    note(f"waiting for another process to finish with {state}")


def _summary(watch: evicp.Monitor) -> dict[str, Any]:
    names = ("covered", "observed", "coverage", "confidence", "false_alarm_rate", "e_value", "p_value", "n")
    own = {name: getattr(watch, name) for name in names}
    return {"alarm": watch.alarm, "alarm_at": watch.alarm_at, "labels": watch.seen, **own}
