"""`evicp predict`: a calibration and new logits to prediction sets."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

import evicp
from evicp.cli.common import (
    Coverage,
    Force,
    Json,
    LogitsFiles,
    Output,
    check_output,
    examples,
    note,
    print_json,
    print_table,
    print_text,
    progress,
)
from evicp.cli.inputs import CalibrationFile, Groups, located, read_groups, read_rows
from evicp.cli.outputs import SET_SUFFIXES, about_sets, is_stream, join_sets, print_set_lines, save_sets, set_lines
from evicp.sets import PredictionSets

__all__ = ["predict"]


@examples(
    "evicp predict cal.safetensors new.npz -o sets.parquet --coverage 0.9",
    "evicp predict cal.safetensors new.npz -o - | head -n 3",
    "echo '[[2.0, 1.0, -1.0]]' | evicp predict cal.safetensors -",
)
def predict(
    calibration: CalibrationFile,
    logits: LogitsFiles,
    output: Output = None,
    coverage: Coverage = 0.9,
    confidence: Annotated[
        float | None,
        typer.Option(help="With this confidence over calibrations, cover at least what is asked (PAC sets)."),
    ] = None,
    groups: Groups = None,
    fill: Annotated[bool, typer.Option("--no-empty", help="Give every empty set its most plausible label.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """The prediction sets of new rows: parquet, npz, jsonl, json or csv as the suffix says, JSON lines for -.

    Without `--output` the first sets are shown.
    """
    target = None if output is None else check_output(output, force=force, suffixes=SET_SUFFIXES, stream=True)
    loaded = evicp.load(calibration)
    rows = read_rows(logits)
    of_rows = read_groups(groups, len(rows))
    parts: list[PredictionSets] = []
    with progress("predicting", len(rows)) as advance:
        for start, block, _ in rows.blocks():
            with located(rows.source, start):
                sets = loaded.predict(
                    block,
                    coverage,
                    confidence=confidence,
                    groups=None if of_rows is None else of_rows[start : start + len(block)],
                    allow_empty=not fill,
                )
            if is_stream(target):
                print_set_lines(sets, start)
            else:
                parts.append(sets)
            advance(len(block))
    if is_stream(target):
        return
    sets = join_sets(parts)
    if target is not None:
        save_sets(sets, target)
    _print(sets, target, as_json)


def _print(sets: PredictionSets, target: object, as_json: bool) -> None:
    if as_json:
        body = {"output": target} if target is not None else {"sets": list(set_lines(sets))}
        print_json({**about_sets(sets), **body})
        return
    if target is None:
        _print_first(sets)
    print_text(sets)
    if target is not None:
        note(f"wrote {target}")


def _print_first(sets: PredictionSets, shown: int = 10, labels: int = 8) -> None:
    lines = []
    for row in range(min(shown, len(sets))):
        members = sets.names(row) if sets.class_names is not None else [str(label) for label in sets[row]]
        more = f", ... ({len(members)} labels)" if len(members) > labels else ""
        lines.append([", ".join(members[:labels]) + more or "(empty)", str(row), str(len(members))])
    print_table(["row", "size", "set"], [[row, size, members] for members, row, size in lines], left=(2,))
    if len(sets) > shown:
        rest = np.int64(len(sets) - shown)
        print_text(f"... and {rest:,} more rows; give --output to write them all\n")
