"""`evicp explain`: why is a label in the set of one row?"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

import evicp
from evicp.cli.common import Coverage, Json, LogitsFiles, examples, print_json, print_text
from evicp.cli.inputs import CalibrationFile, read_rows
from evicp.errors import InputError
from evicp.explain import Explanation
from evicp.scores import ECP

__all__ = ["explain"]

_FIELDS = (
    "logit",
    "evidence",
    "belief",
    "probability",
    "focal_uncertainty",
    "surprisal",
    "focal_surprisal",
    "utility",
    "expected_utility",
    "rank",
    "score",
)


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
    """Evidence, belief, probability, surprisal, utility and cost of the best labels of one row, and who is in.

    The calibration must be of the evidential score.
    """
    loaded = evicp.load(calibration)
    if not isinstance(loaded.score, ECP):
        raise InputError(f"only the evidential score can be explained; {calibration} is of {loaded.score.name}.")
    rows = read_rows(logits)
    if not 0 <= row < len(rows):
        raise InputError(f"row {row} does not exist; {rows.source} has {len(rows):,} rows, from 0.")
    explanation = evicp.explain(
        np.asarray(rows.logits[row]),
        loaded.score,
        threshold=loaded.threshold(coverage),
        class_names=loaded.class_names,
    )
    if as_json:
        print_json({"row": row, "coverage": coverage, **_as_dict(explanation, top)})
        return
    print_text(f"row {row}, coverage {coverage:g}")
    print_text(
        f"uncertainty u = {explanation.uncertainty:.4f}; in the set if ln score <= {explanation.threshold:.4f}\n"
    )
    print_text(explanation.table(top))


def _as_dict(explanation: Explanation, top: int) -> dict[str, Any]:
    threshold = explanation.threshold
    labels = []
    for label in explanation.order[:top].tolist():
        entry = {name: getattr(explanation, name)[label] for name in _FIELDS}
        entry["in_set"] = threshold is not None and bool(explanation.score[label] <= threshold)
        if explanation.class_names is not None:
            entry["name"] = explanation.class_names[label]
        labels.append({"label": label, **entry})
    return {"threshold": threshold, "uncertainty": explanation.uncertainty, "labels": labels}
