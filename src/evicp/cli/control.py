"""`evicp control`: labelled logits to a rule whose sets have a bounded expected loss, and its certificate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evicp.cli import inputs, options
from evicp.cli.outputs import check_output
from evicp.cli.printing import print_result
from evicp.errors import FileError
from evicp.io.logits import open_labels
from evicp.progress import progress
from evicp.risk.control import control_risk

Risk = Annotated[
    float, typer.Option("--risk", "-r", metavar="NUMBER", help="The expected loss to allow.", show_default=False)
]
Costs = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help=("The costs of misses (npy): K numbers by true class, or a K x K matrix (true class, label in the set)."),
    ),
]
RuleOutput = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="The rule, .safetensors.", show_default=False)
]
RuleConfidence = Annotated[
    float | None, typer.Option("--confidence", help="Reach the risk for this share of calibration sets.")
]


@options.examples(
    "evicp control val.npz --risk 0.05 -o rule.safetensors",
    "evicp control val.npz --risk 0.2 --costs costs.npy --confidence 0.9 -o rule.safetensors",
)
def control(
    logits: options.LogitsFiles,
    output: RuleOutput,
    risk: Risk,
    costs: Costs = None,
    confidence: RuleConfidence = None,
    labels: options.Labels = None,
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    score: options.ScoreText = "ecp",
    class_names: options.ClassNames = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Bound the expected loss of sets: write a rule for evicp apply and print its certificate.

    Without `--costs` the loss is 1 for a set that misses the true label.
    """
    given = (logits, labels, costs, class_names)
    target = check_output(output, force=force, suffixes=(".safetensors",), inputs=given)
    chosen = options.parse_score(score)
    rows = inputs.read_rows(logits, labels, (logits_column, labels_column), labelled=True)
    names = inputs.read_class_names(class_names) or rows.class_names
    how: dict[str, Any] = {"risk": risk, "confidence": confidence, "score": chosen, "class_names": names}
    how |= _read_costs(costs)
    with progress("calibrating"):
        rule = control_risk(rows.logits, rows.labels, **how)
    certificate = rule.certificate()
    rule.save(target, overwrite=force)
    print_result(as_json, {"output": target, "certificate": certificate.to_dict()}, certificate, written=target)


def _read_costs(path: str | None) -> dict[str, Any]:
    """Costs by class or a matrix of them, by their name in the library."""
    if path is None:
        return {}
    costs = open_labels(path, "costs").whole()
    if costs.ndim not in (1, 2):
        raise FileError(f"{path} must contain K costs or a K x K matrix of them; got shape {costs.shape}.")
    return {"class_costs" if costs.ndim == 1 else "loss": costs}
