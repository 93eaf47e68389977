"""`evicp extract`: a network over a folder of images or a table of texts, to a file of logits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from evicp.cli.common import ClassNames, Force, Json, examples, print_json, print_text, refuse_inputs
from evicp.cli.inputs import read_class_names
from evicp.errors import InputError
from evicp.io.stored import companions

__all__ = ["extract"]

_NETWORK = "Network"
_DATA = "Data"
_IMAGES = "Preparing images (changes to the network's own transform)"
_RUNNING = "Running"


@examples(
    "evicp extract resnet152 imagenet/val -o val.npz --transform paper",
    "evicp extract efficientnet-lite0 photos/ -o photos.npz",
    "evicp extract timm:convnext_tiny list.csv -o logits.npz",
    "evicp extract model.onnx imagenetv2/ -o v2.npz --mean 0.5 --std 0.5",
    "evicp extract mypackage.models:build images/ -o logits.safetensors --transform paper",
    "evicp extract my-bert/ reviews.csv -o reviews.npz",
)
def extract(
    network: Annotated[
        str,
        typer.Argument(
            help="A torchvision or timm network by name, efficientnet-lite0 to -lite4, an ONNX file, a folder of a "
            "Hugging Face model, or package.module:function.",
            show_default=False,
        ),
    ],
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of images (one folder per class, or flat), a CSV file of paths or texts and labels, or a "
            "Hugging Face data set on disk.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="npz, npy or safetensors file.", show_default=False),
    ],
    weights: Annotated[
        str,
        typer.Option(
            help="default (torchvision: IMAGENET1K_V1), none (random), a set's name, or a file.",
            rich_help_panel=_NETWORK,
        ),
    ] = "default",
    transform: Annotated[
        str,
        typer.Option(
            help="weights: the network's own; paper: resize 256, crop 224 for every network.", rich_help_panel=_NETWORK
        ),
    ] = "weights",
    class_names: ClassNames = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            "-l",
            metavar="FILE",
            help="Ground truth of a flat folder: lines of 'file label', or a label per image in the order of names.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    trust_labels: Annotated[
        bool, typer.Option("--trust-labels", help="Take label numbers as they are.", rich_help_panel=_DATA)
    ] = False,
    split: Annotated[str | None, typer.Option(help="Split of a data set.", rich_help_panel=_DATA)] = None,
    input_column: Annotated[
        str | None, typer.Option(help="Column of paths, images or texts.", rich_help_panel=_DATA)
    ] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of labels.", rich_help_panel=_DATA)] = None,
    size: Annotated[int | None, typer.Option(help="Side of the input.", rich_help_panel=_IMAGES)] = None,
    resize: Annotated[
        int | None, typer.Option(help="Short side before the central crop.", rich_help_panel=_IMAGES)
    ] = None,
    mean: Annotated[
        str | None, typer.Option(help="One number, or one per channel: 0.5,0.5,0.5.", rich_help_panel=_IMAGES)
    ] = None,
    std: Annotated[str | None, typer.Option(help="Likewise.", rich_help_panel=_IMAGES)] = None,
    scale: Annotated[
        float | None, typer.Option(help="What pixels of 0 to 255 are divided by first.", rich_help_panel=_IMAGES)
    ] = None,
    interpolation: Annotated[
        str | None, typer.Option(help="bilinear, bicubic, nearest, lanczos, box, hamming.", rich_help_panel=_IMAGES)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...", rich_help_panel=_RUNNING)] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="auto (mixed on a GPU), float32, float16 or bfloat16.",
            rich_help_panel=_RUNNING,
        ),
    ] = "auto",
    batch_size: Annotated[int, typer.Option(help="Inputs run at once.", rich_help_panel=_RUNNING)] = 64,
    workers: Annotated[
        int | None,
        typer.Option(help="Threads that read inputs; one per processor by default.", rich_help_panel=_RUNNING),
    ] = None,
    shard_size: Annotated[
        int, typer.Option(help="Inputs written at once: what an interruption may lose.", rich_help_panel=_RUNNING)
    ] = 512,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the logits and labels of a network's classes for every image or text.

    Interrupted, the same command goes on where it stopped. Images that cannot be read are left out and listed.
    """
    from evicp.extraction import extract as run

    for path in (Path(output), *companions(Path(output)).values()):
        refuse_inputs(path, (network, source, weights, labels, class_names))
    result = run(
        network,
        source,
        output,
        weights=weights,
        transform=_transform(transform, size, resize, mean, std, scale, interpolation),
        labels=labels,
        split=split,
        input_column=input_column,
        label_column=label_column,
        class_names=read_class_names(class_names),
        trust_labels=trust_labels,
        device=device,
        precision=precision,
        batch_size=batch_size,
        shard_size=shard_size,
        workers=workers,
        force=force,
    )
    if as_json:
        facts = dataclasses.asdict(result)
        print_json({"output": facts.pop("path"), **facts})
    else:
        print_text(result)


def _transform(
    name: str,
    size: int | None,
    resize: int | None,
    mean: str | None,
    std: str | None,
    scale: float | None,
    interpolation: str | None,
) -> str | dict[str, Any]:
    """The transform by name, or the changes to it."""
    given = {
        "size": size and (size, size),
        "resize": resize,
        "mean": _numbers(mean, "--mean"),
        "std": _numbers(std, "--std"),
        "scale": scale,
        "interpolation": interpolation,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if changes and name == "paper":
        raise InputError(f"--transform paper is fixed; drop --{', --'.join(changes)}, or drop --transform.")
    return changes or name


def _numbers(text: str | None, option: str) -> float | tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",")) if "," in text else float(text)
    except ValueError as error:
        raise InputError(f"{option} must be one number, or three with commas between; got {text!r}.") from error
