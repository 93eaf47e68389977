"""`evicp explain`: why is a label in the set of one row?"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from evicp.blocks import same_names
from evicp.cli.common import Coverage, Json, LogitsFiles, examples, print_json, print_text
from evicp.cli.inputs import CalibrationFile, load_calibration, read_rows
from evicp.errors import InputError
from evicp.evaluation.explain import explain_set
from evicp.method.scores import ECP

__all__ = ["explain"]


@examples(
    "evicp explain cal.safetensors new.npz --row 3",
    "evicp explain cal.safetensors new.npz --row 3 --coverage 0.95 --top 20 --json",
)
def explain(
    calibration: CalibrationFile,
    logits: LogitsFiles,
    row: Annotated[int, typer.Option("--row", "-r", help="Which row, from 0.")] = 0,
    coverage: Coverage = 0.9,
    top: Annotated[int, typer.Option(help="How many labels to show.", min=1)] = 10,
    as_json: Json = False,
) -> None:
    """Evidence, belief, Dirichlet probability, softmax and cost of the best labels of one row, and who is in.

    The calibration must be of the evidential score, and marginal or by class.
    """
    loaded = load_calibration(calibration)
    if not isinstance(loaded.score, ECP):
        raise InputError(f"only the evidential score can be explained; {calibration} is of {loaded.score.name}.")
    rows = read_rows(logits)
    if not 0 <= row < len(rows):
        raise InputError(f"row {row} does not exist; {rows.source} has {len(rows):,} rows, from 0.")
    same_names(loaded, rows, calibration)
    explanation = explain_set(loaded, np.asarray(rows.logits[row]), coverage)
    if as_json:
        print_json({"row": row, "coverage": coverage, **explanation.to_dict(top)})
        return
    print_text(f"row {row}, coverage {coverage:g}")
    print_text(f"{explanation.headline}\n")
    print_text(f"{explanation.table(top)}\n\n{explanation.note}")
