"""`evicp calibrate`: labelled logits to a calibration file and its certificate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import evicp
from evicp import blocks
from evicp.cli.common import (
    ClassNames,
    Coverage,
    Force,
    Json,
    Labels,
    LogitsFiles,
    ScoreText,
    check_output,
    examples,
    note,
    parse_score,
    print_json,
    print_text,
    progress,
)
from evicp.cli.engines import Address, Engine, engine
from evicp.cli.inputs import Groups, Memory, read_class_names, read_groups, read_rows
from evicp.errors import InputError

__all__ = ["calibrate"]


@examples(
    "evicp calibrate val.npz -o cal.safetensors",
    "evicp calibrate val.npz -o cal.safetensors --score 'raps(lam=0.5,k_reg=3)' --coverage 0.95",
    "evicp calibrate logits.npy --labels labels.npy --class-names names.txt -o cal.safetensors",
    "evicp calibrate shards/ -o cal.safetensors --by class",
    "evicp calibrate shards/ -o cal.safetensors --engine ray",
)
def calibrate(
    logits: LogitsFiles,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="The calibration, .safetensors.", show_default=False),
    ],
    labels: Labels = None,
    score: ScoreText = "ecp",
    by: Annotated[
        str | None,
        typer.Option(
            metavar="class|uncertainty|group",
            help="Where the coverage must hold: in every class, band of uncertainty, or group (see --groups).",
        ),
    ] = None,
    groups: Groups = None,
    class_names: ClassNames = None,
    coverage: Coverage = 0.9,
    memory: Memory = blocks.DEFAULT_MEMORY,
    engine_name: Engine = "local",
    address: Address = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score the true labels of calibration rows; any coverage can be asked of the result afterwards.

    The certificate printed is for `--coverage`; the file serves every other coverage as well.
    """
    inputs = (logits, labels, groups, class_names)
    target = check_output(output, force=force, suffixes=(".safetensors",), inputs=inputs)
    chosen = parse_score(score)
    evicp.conformal_rank(1, coverage)  # a bad coverage is said before the work, not after
    rows = read_rows(logits, labels, labelled=True, memory=memory)
    of_rows = read_groups(groups, len(rows))
    how: dict[str, Any] = {"by": _by(by, of_rows), "groups": of_rows, "class_names": read_class_names(class_names)}
    with engine(engine_name, address) as work, progress("calibrating", len(rows)) as advance:
        calibration = work.calibrate(rows, chosen, progress=advance, **how)
    certificate = calibration.certificate(coverage)
    calibration.save(target)
    if as_json:
        print_json({"output": target, "certificate": certificate.to_dict()})
        return
    print_text(certificate)
    note(f"wrote {target}")


def _by(by: str | None, groups: Any) -> str | None:
    """How to group; groups of rows and by="group" belong together."""
    if (by == "group") != (groups is not None):
        raise InputError("--by group and --groups belong together: give both or neither.")
    return by
