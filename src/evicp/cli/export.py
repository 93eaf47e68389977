"""`evicp export`: a classifier's ONNX file with its prediction sets built in."""

from __future__ import annotations

from typing import Annotated

import typer

from evicp.cli import inputs, options
from evicp.cli.outputs import check_output
from evicp.cli.printing import print_result, visible

Model = Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX classifier.", show_default=False)]
Calibration = Annotated[
    str, typer.Argument(metavar="CALIBRATION", help="A file of `evicp calibrate`.", show_default=False)
]
Graph = Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write.", show_default=False)]
LogitsName = Annotated[
    str | None, typer.Option("--logits", metavar="NAME", help="The output that contains the logits.")
]
OutputIs = Annotated[
    str | None,
    typer.Option(
        "--output-is",
        metavar="WHAT",
        help="What it contains: logits or probabilities. Default: detected from the graph.",
    ),
]


@options.examples("evicp export model.onnx cal.safetensors --coverage 0.9 -o model_with_sets.onnx")
def export(
    model: Model,
    calibration: Calibration,
    output: Graph,
    coverage: options.Coverage = 0.9,
    confidence: options.SetsConfidence = None,
    logits: LogitsName = None,
    output_is: OutputIs = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Add prediction sets to an ONNX classifier: standard operators, dynamic batch size."""
    from evicp import onnx

    target = check_output(output, force=force, suffixes=[".onnx"], inputs=(model, calibration))
    loaded = inputs.load_calibration(calibration, "comes after MODEL")
    onnx.export(model, loaded, coverage, target, confidence=confidence, logits=logits, output_is=output_is)  # type: ignore[arg-type]
    content = {"output": target, "coverage": coverage, "confidence": confidence, "outputs": list(onnx.OUTPUTS)}
    made = visible(f"{target}: {model}")
    print_result(as_json, content, f"{made} with the outputs {', '.join(onnx.OUTPUTS)} at coverage {coverage:g}")
