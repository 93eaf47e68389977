"""`evicp predict`: a calibration and new logits to prediction sets."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evicp import blocks
from evicp.blocks import same_names
from evicp.cli.common import (
    Coverage,
    Force,
    Json,
    LogitsFiles,
    NoEmpty,
    Output,
    SetsConfidence,
    check_output,
    examples,
    note,
    print_json,
    print_table,
    print_text,
    progress,
)
from evicp.cli.engines import Address, Engine, check_engine, engine
from evicp.cli.inputs import (
    CalibrationFile,
    Groups,
    Memory,
    load_calibration,
    read_groups,
    read_rows,
    require_groups,
)
from evicp.cli.outputs import SET_SUFFIXES, TEXT_SETS, about_sets, is_stream, print_set_lines
from evicp.errors import InputError
from evicp.io.files import set_lines
from evicp.sets import PredictionSets, SetsSummary, join_sets

__all__ = ["predict"]

#: So many sets are shown where none are written.
_SHOWN = 10


@examples(
    "evicp predict cal.safetensors new.npz -o sets.parquet --coverage 0.9",
    "evicp predict cal.safetensors shards/ -o sets.parquet --engine ray --address auto",
    "evicp predict cal.safetensors new.npz -o - | head -n 3",
    "echo '[[2.0, 1.0, -1.0]]' | evicp predict cal.safetensors -",
)
def predict(
    calibration: CalibrationFile,
    logits: LogitsFiles,
    output: Output = None,
    coverage: Coverage = 0.9,
    confidence: SetsConfidence = None,
    groups: Groups = None,
    fill: NoEmpty = False,
    smoothed: Annotated[
        bool, typer.Option("--smoothed", help="Let ties with calibration scores count by a random share.")
    ] = False,
    memory: Memory = blocks.DEFAULT_MEMORY,
    engine_name: Engine = "local",
    address: Address = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """The prediction sets of new rows: parquet, npz, jsonl, json or csv as the suffix says, JSON lines for -.

    Without `--output` the first sets are shown.
    """
    inputs = (calibration, logits, groups)
    target = (
        None if output is None else check_output(output, force=force, suffixes=SET_SUFFIXES, stream=True, inputs=inputs)
    )
    if as_json and is_stream(target):
        raise InputError("--json prints one document and -o - one line per set: leave out one of them.")
    check_engine(engine_name, address)
    loaded = load_calibration(calibration)
    require_groups(calibration, loaded, groups)
    rows = read_rows(logits, memory=memory).with_labels(None)
    same_names(loaded, rows, calibration)
    how: dict[str, Any] = {
        "confidence": confidence,
        "groups": read_groups(groups, len(rows)),
        "allow_empty": not fill,
        "smoothed": smoothed,
    }
    if target is not None and not is_stream(target):
        with engine(engine_name, address) as work, progress("predicting", len(rows)) as advance:
            summary = work.predict(loaded, rows, coverage, target, progress=advance, more=TEXT_SETS, **how)
        _print(summary, None, target, as_json)
        return
    if engine_name != "local":
        raise InputError("--engine ray needs --output: sets come back to a file.")
    shown = _Shown(everything=as_json)
    with progress("predicting", len(rows)) as advance:
        for block, sets in blocks.predict_blocks(loaded, rows, coverage, **how):
            if target is not None:
                print_set_lines(sets, block.start)
            else:
                shown.add(sets)
            advance(len(sets))
    if shown.summary is not None:
        _print(shown.summary, join_sets(shown.first), None, as_json)


class _Shown:
    """What is printed where nothing is written: a summary and the first sets, or all of them."""

    def __init__(self, *, everything: bool) -> None:
        self.first: list[PredictionSets] = []
        self.summary: SetsSummary | None = None
        self._most = None if everything else _SHOWN

    def add(self, sets: PredictionSets) -> None:
        """Look at the sets of the next rows."""
        rows = 0 if self.summary is None else self.summary.rows
        self.first.append(sets if self._most is None else sets[: max(0, self._most - rows)])
        self.summary = SetsSummary.of(sets, self.summary)


def _print(summary: SetsSummary, sets: PredictionSets | None, target: object, as_json: bool) -> None:
    if as_json:
        print_json({**about_sets(summary), **({"output": target} if sets is None else {"sets": list(set_lines(sets))})})
        return
    if sets is not None:
        _print_first(sets, summary.rows)
    print_text(f"PredictionSets({summary})")
    if target is not None:
        note(f"wrote {target}")


def _print_first(sets: PredictionSets, rows: int) -> None:
    lines = [[str(row), str(len(sets[row])), sets.listed(row)] for row in range(len(sets))]
    print_table(["row", "size", "set"], lines, left=(2,))
    if rows > len(sets):
        print_text(f"... and {rows - len(sets):,} more rows; give --output to write them all\n")
