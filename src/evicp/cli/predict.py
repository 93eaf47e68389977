"""`evicp predict`: a calibration and new logits to prediction sets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import typer

from evicp import blocks
from evicp.blocks import Block
from evicp.cli import inputs, options
from evicp.cli.engines import check_engine, engine
from evicp.cli.outputs import STREAM, check_output
from evicp.cli.printing import print_json, print_result, print_table, print_text
from evicp.cli.streams import output_is_closed
from evicp.errors import FileError, InputError
from evicp.io.files import SETS, set_lines, write_set_lines
from evicp.io.rows import DEFAULT_MEMORY
from evicp.io.set_texts import TEXT_SETS
from evicp.progress import progress
from evicp.sets import PredictionSets, SetsSummary, join_sets, row_text, set_text

#: So many sets are shown where none are written.
_SHOWN = 10
SET_SUFFIXES = (*SETS, *TEXT_SETS)

Smoothed = Annotated[
    bool, typer.Option("--smoothed", help="Break ties with calibration scores at random, for exact average coverage.")
]


@options.examples(
    "evicp predict cal.safetensors new.npz -o sets.parquet --coverage 0.9",
    "evicp predict cal.safetensors shards/ -o sets.parquet --engine ray --address auto",
    "evicp predict cal.safetensors new.npz -o - | head -n 3",
    "echo '[[2.0, 1.0, -1.0]]' | evicp predict cal.safetensors -",
)
def predict(
    calibration: options.CalibrationFile,
    logits: options.LogitsFiles,
    logits_column: options.LogitsColumn = None,
    output: options.Output = None,
    coverage: options.Coverage = 0.9,
    confidence: options.SetsConfidence = None,
    groups: options.Groups = None,
    fill: options.NoEmpty = False,
    smoothed: Smoothed = False,
    source: options.Source = None,
    memory: options.Memory = DEFAULT_MEMORY,
    engine_name: options.Engine = "local",
    address: options.Address = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Predict the sets of new rows: parquet, npz, jsonl, json or csv by suffix, JSON lines for -.

    Without `--output` the first sets are printed.
    """
    streamed = output == STREAM
    if streamed:
        _require_lines(as_json)
    given = (calibration, logits, groups)
    target = None if streamed else check_output(output, force=force, suffixes=SET_SUFFIXES, inputs=given)
    check_engine(engine_name, address)
    if target is None and engine_name != "local":
        raise InputError("--engine ray needs --output: workers write sets to a file.")
    loaded = inputs.load_predictor(calibration, groups, source)
    rows = inputs.read_rows(logits, None, (logits_column, None), memory=memory)
    how: dict[str, Any] = {"confidence": confidence, "allow_empty": not fill, "smoothed": smoothed}
    how["groups"] = inputs.read_groups(groups, len(rows))
    if target is None:
        show = _print_lines if streamed else partial(_print_sets, as_json=as_json)
        show(blocks.predict_blocks(loaded, rows.with_labels(None), coverage, **how), len(rows))
        return
    with engine(engine_name, address) as work, progress("predicting", len(rows)) as advance:
        summary = work.predict(loaded, rows, coverage, target, progress=advance, more=TEXT_SETS, **how)
    print_result(as_json, {**summary.to_dict(), "output": target}, f"PredictionSets({summary})", written=target)


def _require_lines(as_json: bool) -> None:
    """Raise where lines of JSON cannot be written to standard output."""
    if output_is_closed():
        raise FileError("cannot write to standard output: it is closed. Give a file.")
    if as_json:
        raise InputError("--json prints one document and -o - one line per set: use one of them.")


def _print_lines(pairs: Iterator[tuple[Block, PredictionSets]], n: int) -> None:
    """JSON lines to standard output, block by block."""
    with progress("predicting", n) as advance:
        for block, sets in pairs:
            write_set_lines(sys.stdout, sets, block.start)
            advance(len(sets))


def _print_sets(pairs: Iterator[tuple[Block, PredictionSets]], n: int, as_json: bool) -> None:
    """All sets as one JSON document, or the first ones as a table, with a summary."""
    kept: list[PredictionSets] = []
    summary: SetsSummary | None = None
    with progress("predicting", n) as advance:
        for block, sets in pairs:
            kept.append(sets if as_json else sets[: max(0, _SHOWN - block.start)])
            summary = SetsSummary.of(sets, summary)
            advance(len(sets))
    if summary is None:
        return
    sets = join_sets(kept)
    if as_json:
        print_json({**summary.to_dict(), "sets": list(set_lines(sets))})
        return
    lines = [[row_text(sets, row), str(len(sets[row])), set_text(sets, row)] for row in range(len(sets))]
    print_table(["row", "size", "set"], lines, left=(2,))
    if summary.rows > len(sets):
        print_text(f"... and {summary.rows - len(sets):,} more rows; use --output to write them all\n")
    print_text(f"PredictionSets({summary})")
