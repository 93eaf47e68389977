"""`evicp explain`: why is a label in the set of one row?"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from evicp.blocks import Rows, belong_together
from evicp.cli import inputs, options
from evicp.cli.printing import print_result
from evicp.errors import InputError


@options.examples(
    "evicp explain cal.safetensors new.npz --row 3",
    "evicp explain cal.safetensors new.npz --row photo_17.jpg",
    "evicp explain cal.safetensors new.npz --row 3 --coverage 0.95 --top 20 --json",
)
def explain(
    calibration: options.CalibrationFile,
    logits: options.LogitsFiles,
    logits_column: options.LogitsColumn = None,
    row: Annotated[str, typer.Option("--row", "-r", help="Which row: its number, from 0, or its id.")] = "0",
    coverage: options.Coverage = 0.9,
    confidence: options.SetsConfidence = None,
    groups: options.Groups = None,
    top: Annotated[int, typer.Option(help="The number of labels to show.", min=1)] = 10,
    as_json: options.Json = False,
) -> None:
    """Explain one row: the parts of each label's score, and which labels are in the set.

    For ECP: evidence, belief, Dirichlet probability and score. For other scores: the probability, rank and penalty that
    they use.
    """
    loaded = inputs.load_calibration(calibration)
    inputs.require_groups(calibration, loaded, groups)
    rows = inputs.read_rows(logits, None, (logits_column, None))
    number, ids = _row_of(rows, row), rows.ids
    belong_together(loaded, rows, calibration)
    how: dict[str, Any] = {"confidence": confidence}
    of_rows = inputs.read_groups(groups, len(rows))
    how["groups"] = None if of_rows is None else of_rows[number : number + 1]
    explanation = loaded.explain(np.asarray(rows.logits[number]), coverage, **how)
    content = {"row": number, "coverage": coverage, **explanation.to_dict(top)}
    head = f"row {number}{'' if ids is None else f' ({ids[number]})'}, coverage {coverage:g}"
    text = f"{head}\n{explanation.headline}\n\n{explanation.table(top)}\n\n{explanation.note}"
    print_result(as_json, content, text)


def _row_of(rows: Rows, wanted: str) -> int:
    """The number of a row that is named by it or by its id."""
    found = [] if rows.ids is None else np.flatnonzero(rows.ids.astype(str) == wanted).tolist()
    if len(found) == 1:
        return int(found[0])
    if len(found) > 1:
        raise InputError(f"{rows.source} has {len(found):,} rows called {wanted}. Give the number of one: {found[0]}.")
    if not wanted.isdecimal() or int(wanted) >= len(rows):
        raise InputError(f"row {wanted} does not exist; {rows.source} has {len(rows):,} rows, from 0.")
    return int(wanted)
