"""`evicp selective`: labelled logits to a rule that answers or abstains, and its certificate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evicp.cli import inputs, options
from evicp.cli.control import RuleOutput
from evicp.cli.outputs import check_output
from evicp.cli.printing import print_result
from evicp.errors import InputError
from evicp.progress import progress
from evicp.risk.selective import selective as make

Error = Annotated[
    float, typer.Option("--error", "-e", metavar="NUMBER", help="The share of answers that may be wrong.")
]
Confidence = Annotated[float, typer.Option("--confidence", help="Reach the error for this share of calibration sets.")]
Most = Annotated[int, typer.Option("--most", min=1, help="The number of labels in an answer.")]
Doubt = Annotated[
    str,
    typer.Option(
        metavar="softmax|margin|uncertainty", help="The measure of doubt: rows with little doubt are answered."
    ),
]
ByGroup = Annotated[
    str | None,
    typer.Option(
        metavar="class|group", help="Bound the error in each class of answers, or in each group (see --groups)."
    ),
]
Groups = Annotated[str | None, typer.Option("--groups", metavar="FILE", help="The group of each row (npy).")]


@options.examples(
    "evicp selective val.npz --error 0.01 -o rule.safetensors",
    "evicp selective val.npz --error 0.05 --most 3 --doubt margin -o rule.safetensors",
)
def selective(
    logits: options.LogitsFiles,
    output: RuleOutput,
    error: Error = 0.01,
    confidence: Confidence = 0.95,
    most: Most = 1,
    doubt: Doubt = "softmax",
    by: ByGroup = None,
    groups: Groups = None,
    labels: options.Labels = None,
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    class_names: options.ClassNames = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Answer or abstain: write a rule with a bounded error of answers and print its certificate."""
    given = (logits, labels, groups, class_names)
    target = check_output(output, force=force, suffixes=(".safetensors",), inputs=given)
    rows = inputs.read_rows(logits, labels, (logits_column, labels_column), labelled=True)
    of_rows = inputs.read_groups(groups, len(rows))
    if (by == "group") != (of_rows is not None):
        raise InputError("--by group and --groups belong together: give both or neither.")
    names = inputs.read_class_names(class_names) or rows.class_names
    how: dict[str, Any] = {"error": error, "confidence": confidence, "most": most, "doubt": doubt, "class_names": names}
    with progress("calibrating"):
        rule = make(rows.logits, rows.labels, by=by if of_rows is None else of_rows, **how)
    certificate = rule.certificate()
    rule.save(target, overwrite=force)
    print_result(as_json, {"output": target, "certificate": certificate.to_dict()}, certificate, written=target)
