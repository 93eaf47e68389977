"""`evicp multilabel`: logits and several true labels per row to a rule, and its certificate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evicp.cli import inputs, options
from evicp.cli.control import RuleOutput
from evicp.cli.outputs import check_output
from evicp.cli.printing import print_result
from evicp.io.truth_files import read_truth
from evicp.progress import progress
from evicp.risk.multilabel import multilabel as make

Truth = Annotated[
    str,
    typer.Option(
        "--truth",
        "-t",
        metavar="FILE",
        help="True labels: rows x labels of 0 and 1 (npy, npz), or a list for each row (parquet, Arrow, json, jsonl).",
    ),
]
Missed = Annotated[
    float, typer.Option("--missed", metavar="NUMBER", help="The share of a row's true labels that may be missed.")
]
Confidence = Annotated[
    float | None, typer.Option("--confidence", help="Reach this share for so many of the calibration sets.")
]
Precision = Annotated[
    float | None,
    typer.Option(
        "--precision", help="Also find sure labels, of which at least this share is true; needs --confidence."
    ),
]
ByLabel = Annotated[bool, typer.Option("--by-label", help="Use a threshold for each label.")]


@options.examples(
    "evicp multilabel val.npy --truth truth.npy --missed 0.1 -o rule.safetensors",
    "evicp multilabel val.npy --truth labels.parquet --class-names names.txt -o rule.safetensors",
    "evicp multilabel val.npy --truth truth.npy --precision 0.9 --confidence 0.9 -o rule.safetensors",
)
def multilabel(
    logits: options.LogitsFiles,
    truth: Truth,
    output: RuleOutput,
    missed: Missed = 0.1,
    confidence: Confidence = None,
    precision: Precision = None,
    by_label: ByLabel = False,
    logits_column: options.LogitsColumn = None,
    class_names: options.ClassNames = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Several labels per row: write a rule that misses at most a share of them and print its certificate."""
    target = check_output(output, force=force, suffixes=(".safetensors",), inputs=(logits, truth, class_names))
    rows = inputs.read_rows(logits, None, (logits_column, None)).with_labels(None)
    names = inputs.read_class_names(class_names) or rows.class_names
    how: dict[str, Any] = {"missed": missed, "confidence": confidence, "precision": precision, "by_label": by_label}
    with progress("calibrating"):
        rule = make(rows.logits, read_truth(truth), class_names=names, **how)
    certificate = rule.certificate()
    rule.save(target, overwrite=force)
    print_result(as_json, {"output": target, "certificate": certificate.to_dict()}, certificate, written=target)
