"""`evicp check`: do new rows look like the calibration rows?"""

from __future__ import annotations

from typing import Annotated

import typer

import evicp
from evicp.blocks import belong_together
from evicp.cli import inputs, options
from evicp.cli.printing import print_result
from evicp.errors import InputError

Reference = Annotated[
    str | None,
    typer.Option(
        "--reference", "-r", metavar="FILE", help="Logits of the calibration rows, or of other rows from their source."
    ),
]
NoLabels = Annotated[bool, typer.Option("--no-labels", help="Ignore the labels in the file.")]
ErrorRate = Annotated[
    float, typer.Option("--error", help="The largest probability of reporting a shift that does not exist.")
]


@options.examples(
    "evicp check cal.safetensors new.npz",
    "evicp check cal.safetensors new.npz --reference val.npz --error 0.05",
    "evicp check cal.safetensors labelled.npz --json",
)
def check(
    calibration: options.CalibrationFile,
    logits: options.LogitsFiles,
    labels: options.Labels = None,
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    reference: Reference = None,
    no_labels: NoLabels = False,
    coverage: options.Coverage = 0.9,
    error: ErrorRate = 0.01,
    as_json: options.Json = False,
) -> None:
    """Test whether new rows resemble the calibration rows, with or without labels.

    Exit code 1 means that a shift was found: the guarantee may not hold on these rows.
    """
    if no_labels and labels is not None:
        raise InputError("--labels and --no-labels contradict each other: give one.")
    loaded = inputs.load_calibration(calibration)
    rows, old = (
        inputs.read_rows(logits, labels, (logits_column, labels_column)),
        None if reference is None else inputs.read_rows(reference, None, (logits_column, labels_column)),
    )
    for given in (rows, old):
        if given is not None:
            belong_together(loaded, given, calibration)
    truth = rows.labels if rows.has_labels and not no_labels else None
    before = None if old is None else old.logits
    found = evicp.check_exchangeable(loaded, rows.logits, truth, reference=before, coverage=coverage, error=error)
    print_result(as_json, found.to_dict(), found)
    if found.shifted:
        raise typer.Exit(1)
