"""`evicp apply`: a rule and new logits to what the rule gives."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from evicp.blocks import Rows, belong_together
from evicp.cli import inputs, options
from evicp.cli.outputs import about_files, check_output
from evicp.cli.predict import SET_SUFFIXES
from evicp.cli.printing import print_result
from evicp.cli.rules import read_rule
from evicp.errors import InputError
from evicp.io.files import open_sets
from evicp.io.rows import DEFAULT_MEMORY
from evicp.io.set_texts import TEXT_SETS
from evicp.io.truth_files import read_truth
from evicp.progress import progress
from evicp.risk.multilabel import MultiLabel
from evicp.risk.selective import Selective
from evicp.risk.truth import as_truth
from evicp.sets import SetsSummary

RuleFile = Annotated[
    str,
    typer.Argument(
        metavar="RULE", help="A file written by evicp control, selective or multilabel.", show_default=False
    ),
]
RuleGroups = Annotated[
    str | None, typer.Option("--groups", metavar="FILE", help="The group of each row (npy), for a rule by group.")
]
RuleTruth = Annotated[
    str | None,
    typer.Option("--truth", "-t", metavar="FILE", help="True labels for a multi-label rule, as for evicp multilabel."),
]
RulePageFile = Annotated[
    str | None,
    typer.Option("--report", metavar="FILE", help="Write an HTML page of the rule and its evaluation; needs labels."),
]


@options.examples(
    "evicp apply rule.safetensors new.npz -o sets.parquet",
    "evicp apply rule.safetensors test.npz --report page.html --title 'Ward 7, March'",
    "evicp apply rule.safetensors test.npz --json",
)
def apply(
    rule: RuleFile,
    logits: options.LogitsFiles,
    output: options.Output = None,
    labels: options.Labels = None,
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    groups: RuleGroups = None,
    truth: RuleTruth = None,
    page: RulePageFile = None,
    title: options.Title = "",
    model: options.Model = "",
    data_set: options.DataSet = "",
    author: options.Author = "",
    note: options.Note = "",
    memory: options.Memory = DEFAULT_MEMORY,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Apply a rule to new rows; with labels, evaluate it."""
    given = (rule, logits, labels, groups, truth)
    target = check_output(output, force=force, suffixes=SET_SUFFIXES, inputs=given)
    written = check_output(page, force=force, suffixes=(".html",), inputs=given)
    loaded: Any = read_rule(rule)
    _refuse_others(loaded, rule, labels, groups, truth)
    rows = inputs.read_rows(logits, labels, (logits_column, labels_column), memory=memory)
    rows = rows.with_labels(None) if isinstance(loaded, MultiLabel) else rows
    true = None if truth is None else as_truth(read_truth(truth), len(rows), loaded.known.classes)
    of_rows = inputs.read_groups(groups, len(rows))
    if written is not None and true is None and not rows.has_labels:
        raise InputError(f"--report needs the {'truth' if isinstance(loaded, MultiLabel) else 'labels'} of the rows.")
    summary, observed = _applied(loaded, rows, target, of_rows, true)
    if written is not None:
        about = {"author": author, "note": note, "title": title}
        about |= about_files(given, rows.made_by, model, data_set)
        loaded.report(rows.logits, rows.labels if true is None else true, groups=of_rows, **about).write(written)
    content: dict[str, Any] = {**summary.to_dict(), "output": target, "report": page}
    content["observed"] = None if observed is None else observed.to_dict()
    lines = [f"PredictionSets({summary})", *([] if observed is None else [str(observed)])]
    print_result(as_json, content, "\n".join(lines), written=target)


def _refuse_others(loaded: Any, rule: str, labels: str | None, groups: str | None, truth: str | None) -> None:
    """Refuse what a rule does not take."""
    if groups is not None and not (isinstance(loaded, Selective) and loaded.by == "group"):
        raise InputError(f"{rule} is not by group: leave out --groups.")
    several = isinstance(loaded, MultiLabel)
    if (truth is not None and not several) or (labels is not None and several):
        raise InputError(
            f"{rule} takes --{'truth' if several else 'labels'}, not --{'labels' if several else 'truth'}."
        )


def _applied(
    rule: Any, rows: Rows, target: Path | None, groups: NDArray[Any] | None, true: NDArray[Any] | None
) -> tuple[SetsSummary, Any]:
    """What a rule gives for rows, written if wanted; and what was observed, where there are labels."""
    nothing = rule.predict(np.empty((0, rule.n_classes)), **({} if groups is None else {"groups": groups[:0]}))
    belong_together(nothing, rows, "the rule")
    summary, seen = SetsSummary.of(nothing), []
    file = nullcontext() if target is None else open_sets(target, TEXT_SETS)
    with file as written, progress("predicting", len(rows)) as advance:
        for block in rows:
            span = slice(block.start, block.start + len(block.logits))
            own = {} if groups is None else {"groups": groups[span]}
            sets = rule.predict(block.logits, **own)
            summary = SetsSummary.of(sets, summary)
            if written is not None:
                written.append(sets)
            known = block.labels if true is None else true[span]
            if known is not None:
                seen.append(rule.observed(sets, known, **own))
            advance(len(sets))
    return summary, rule.evaluation_of(np.concatenate(seen), summary.labels) if seen else None
