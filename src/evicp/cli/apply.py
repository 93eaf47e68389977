"""`evicp apply`: a rule and new logits to what the rule gives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from evicp import blocks
from evicp.blocks import Rows
from evicp.cli import inputs, options
from evicp.cli.outputs import check_output
from evicp.cli.predict import SET_SUFFIXES
from evicp.cli.printing import print_result
from evicp.io.rows import DEFAULT_MEMORY
from evicp.io.set_texts import TEXT_SETS
from evicp.progress import progress
from evicp.risk.control import RiskControl, RiskEvaluation
from evicp.risk.files import load_rule
from evicp.sets import SetsSummary

RuleFile = Annotated[str, typer.Argument(metavar="RULE", help="A file written by evicp control.", show_default=False)]


@options.examples(
    "evicp apply rule.safetensors new.npz -o sets.parquet",
    "evicp apply rule.safetensors test.npz --json",
)
def apply(
    rule: RuleFile,
    logits: options.LogitsFiles,
    output: options.Output = None,
    labels: options.Labels = None,
    memory: options.Memory = DEFAULT_MEMORY,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Apply a rule to new rows: sets as for evicp predict; and, where rows have labels, what was observed."""
    target = check_output(output, force=force, suffixes=SET_SUFFIXES, inputs=(rule, logits, labels))
    loaded = load_rule(rule, {"risk": RiskControl.rebuilt})
    rows = inputs.read_rows(logits, labels, memory=memory)
    summary, observed = _controlled(loaded, rows, target)
    content: dict[str, Any] = {"rule": "risk", **summary.to_dict(), "output": target}
    content["observed"] = None if observed is None else observed.to_dict()
    lines = [f"PredictionSets({summary})", *([] if observed is None else [str(observed)])]
    print_result(as_json, content, "\n".join(lines), written=target)


def _controlled(rule: RiskControl, rows: Rows, target: Path | None) -> tuple[SetsSummary, RiskEvaluation | None]:
    """The sets of a rule with a bounded loss, written if wanted; and the loss observed, where there are labels."""
    how: dict[str, Any] = {"confidence": rule.confidence}
    summary: SetsSummary | None = None
    if target is not None:
        with progress("predicting", len(rows)) as advance:
            made = blocks.predict(rule.levelled, rows, rule.level, target, progress=advance, more=TEXT_SETS, **how)
        if not rows.has_labels:
            return made, None
    losses: list[Any] = []
    with progress("evaluating", len(rows)) as advance:
        for block, sets in blocks.predict_blocks(rule.levelled, rows, rule.level, **how):
            summary = SetsSummary.of(sets, summary)
            if block.labels is not None:
                losses.append(rule.losses(sets, block.labels))
            advance(len(sets))
    if summary is None:
        summary = SetsSummary.of(rule.predict(np.empty((0, rule.calibration.n_classes))))
    return summary, rule.evaluation_of(np.concatenate(losses), summary.labels) if losses else None
