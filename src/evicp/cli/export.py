"""`evicp export`: a classifier's ONNX file with its prediction sets built in."""

from __future__ import annotations

from typing import Annotated

import typer

from evicp.cli.common import (
    Coverage,
    Force,
    Json,
    SetsConfidence,
    check_output,
    examples,
    print_json,
    print_text,
    visible,
)
from evicp.cli.inputs import load_calibration

__all__ = ["export"]


@examples("evicp export model.onnx cal.safetensors --coverage 0.9 -o model_with_sets.onnx")
def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX classifier.", show_default=False)],
    calibration: Annotated[
        str, typer.Argument(metavar="CALIBRATION", help="A file of `evicp calibrate`.", show_default=False)
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write.", show_default=False)],
    coverage: Coverage = 0.9,
    confidence: SetsConfidence = None,
    logits: Annotated[
        str | None, typer.Option("--logits", metavar="NAME", help="The output that holds the logits.")
    ] = None,
    output_is: Annotated[
        str | None,
        typer.Option(
            "--output-is", metavar="WHAT", help="What it holds: logits or probabilities. Default: as the graph says."
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Append the calibrated set predictor to an ONNX graph: standard operators, dynamic batch, any server."""
    from evicp import onnx

    target = check_output(output, force=force, suffixes=[".onnx"], inputs=(model, calibration))
    loaded = load_calibration(calibration, "comes after MODEL")
    onnx.export(model, loaded, coverage, target, confidence=confidence, logits=logits, output_is=output_is)  # type: ignore[arg-type]
    if as_json:
        about = {"output": target, "coverage": coverage, "confidence": confidence}
        print_json({**about, "outputs": list(onnx.OUTPUTS)})
    else:
        made = visible(f"{target}: {model}")
        print_text(f"{made} with the outputs {', '.join(onnx.OUTPUTS)} at coverage {coverage:g}")
