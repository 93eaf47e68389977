"""`evicp explain`: why is a label in the set of one row?"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from evicp.blocks import same_names
from evicp.cli import inputs, options
from evicp.cli.printing import print_result
from evicp.errors import InputError


@options.examples(
    "evicp explain cal.safetensors new.npz --row 3",
    "evicp explain cal.safetensors new.npz --row 3 --coverage 0.95 --top 20 --json",
)
def explain(
    calibration: options.CalibrationFile,
    logits: options.LogitsFiles,
    logits_column: options.LogitsColumn = None,
    row: Annotated[int, typer.Option("--row", "-r", help="Which row, from 0.")] = 0,
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
    if not 0 <= row < len(rows):
        raise InputError(f"row {row} does not exist; {rows.source} has {len(rows):,} rows, from 0.")
    same_names(loaded, rows, calibration)
    how: dict[str, Any] = {"confidence": confidence}
    of_rows = inputs.read_groups(groups, len(rows))
    how["groups"] = None if of_rows is None else of_rows[row : row + 1]
    explanation = loaded.explain(np.asarray(rows.logits[row]), coverage, **how)
    content = {"row": row, "coverage": coverage, **explanation.to_dict(top)}
    text = f"row {row}, coverage {coverage:g}\n{explanation.headline}\n\n{explanation.table(top)}\n\n{explanation.note}"
    print_result(as_json, content, text)
