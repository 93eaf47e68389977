"""`evicp calibrate`: labelled logits to a calibration file and its certificate."""

from __future__ import annotations

from textwrap import indent
from typing import Annotated, Any

import typer

import evicp
from evicp.cli import inputs, options
from evicp.cli.engines import check_engine, engine
from evicp.cli.outputs import check_output
from evicp.cli.printing import print_result
from evicp.errors import InputError
from evicp.io.rows import DEFAULT_MEMORY
from evicp.progress import progress

By = Annotated[
    str | None,
    typer.Option(
        metavar="class|uncertainty|group|overlapping",
        help="Where the coverage must hold: in every class, band of uncertainty, or group (see --groups).",
    ),
]
CalibrationOutput = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="The calibration, .safetensors.", show_default=False)
]


@options.examples(
    "evicp calibrate val.npz -o cal.safetensors",
    "evicp calibrate val.npz -o cal.safetensors --score 'raps(lam=0.5,k_reg=3)' --coverage 0.95",
    "evicp calibrate logits.npy --labels labels.npy --class-names names.txt -o cal.safetensors",
    "evicp calibrate shards/ -o cal.safetensors --by class --source 'our network of May'",
    "evicp calibrate shards/ -o cal.safetensors --engine ray",
)
def calibrate(
    logits: options.LogitsFiles,
    output: CalibrationOutput,
    labels: options.Labels = None,
    logits_column: options.LogitsColumn = None,
    labels_column: options.LabelsColumn = None,
    score: options.ScoreText = "ecp",
    by: By = None,
    groups: options.Groups = None,
    class_names: options.ClassNames = None,
    source: options.Source = None,
    coverage: options.Coverage = 0.9,
    memory: options.Memory = DEFAULT_MEMORY,
    engine_name: options.Engine = "local",
    address: options.Address = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Calibrate on labelled rows and print a certificate. The file works for any coverage.

    The certificate is for the coverage of `--coverage`.
    """
    given = (logits, labels, groups, class_names)
    target = check_output(output, force=force, suffixes=(".safetensors",), inputs=given)
    check_engine(engine_name, address)
    chosen = options.parse_score(score)
    evicp.conformal_rank(1, coverage)  # a bad coverage is said before the work, not after
    rows = inputs.read_rows(logits, labels, (logits_column, labels_column), labelled=True, memory=memory)
    of_rows = inputs.read_groups(groups, len(rows))
    if (by in ("group", "overlapping")) != (of_rows is not None):
        raise InputError("--by group (or overlapping) and --groups belong together: give both or neither.")
    how: dict[str, Any] = {"by": by, "groups": of_rows, "class_names": inputs.read_class_names(class_names)}
    with engine(engine_name, address) as work, progress("calibrating", len(rows)) as advance:
        calibration = work.calibrate(rows, chosen, source=source, progress=advance, **how)
    certificate = calibration.certificate(coverage)
    calibration.save(target, overwrite=force)
    look = calibration.first_look
    content = {"output": target, "certificate": certificate.to_dict(), "first_look": look and look.to_dict()}
    text = certificate if look is None else f"{certificate}\n{indent(str(look), '  ')}"
    print_result(as_json, content, text, written=target)
