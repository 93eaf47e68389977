"""`evicp explain`: why is a label in the set of one row?"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from evicp.blocks import same_names
from evicp.cli import inputs, options
from evicp.cli.printing import print_result
from evicp.errors import InputError
from evicp.evaluation.explain import explain_set
from evicp.method.scores import ECP


@options.examples(
    "evicp explain cal.safetensors new.npz --row 3",
    "evicp explain cal.safetensors new.npz --row 3 --coverage 0.95 --top 20 --json",
)
def explain(
    calibration: options.CalibrationFile,
    logits: options.LogitsFiles,
    row: Annotated[int, typer.Option("--row", "-r", help="Which row, from 0.")] = 0,
    coverage: options.Coverage = 0.9,
    top: Annotated[int, typer.Option(help="How many labels to show.", min=1)] = 10,
    as_json: options.Json = False,
) -> None:
    """Evidence, belief, Dirichlet probability, softmax and cost of the best labels of one row, and who is in.

    The calibration must be of the evidential score, and marginal or by class.
    """
    loaded = inputs.load_calibration(calibration)
    if not isinstance(loaded.score, ECP):
        raise InputError(f"only the evidential score can be explained; {calibration} is of {loaded.score.name}.")
    rows = inputs.read_rows(logits)
    if not 0 <= row < len(rows):
        raise InputError(f"row {row} does not exist; {rows.source} has {len(rows):,} rows, from 0.")
    same_names(loaded, rows, calibration)
    explanation = explain_set(loaded, np.asarray(rows.logits[row]), coverage)
    content = {"row": row, "coverage": coverage, **explanation.to_dict(top)}
    text = f"row {row}, coverage {coverage:g}\n{explanation.headline}\n\n{explanation.table(top)}\n\n{explanation.note}"
    print_result(as_json, content, text)
