"""`evicp extract`: a network over a folder of images or a table of texts, to a file of logits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from evicp.cli import inputs, options
from evicp.cli.outputs import refuse_inputs
from evicp.cli.printing import print_result
from evicp.errors import InputError
from evicp.io.arrays import companions

_NETWORK, _DATA, _RUNNING = "Network", "Data", "Running"
_QUESTIONS = "Asking a language or vision-language model"
_IMAGES = "Preparing images (changes to the network's own transform)"

Network = Annotated[
    str,
    typer.Argument(
        help="A torchvision or timm network by name, efficientnet-lite0 to -lite4, an ONNX file, a folder of a "
        "Hugging Face model, or package.module:function.",
        show_default=False,
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        help="A folder of images (one folder per class, or flat), a CSV file of paths or texts and labels, JSON "
        "lines of texts or questions, or a Hugging Face data set on disk.",
        show_default=False,
    ),
]
LogitsOutput = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="npz, npy or safetensors file.", show_default=False)
]

Weights = Annotated[
    str,
    typer.Option(
        help="default (torchvision: IMAGENET1K_V1), none (random), a set's name, or a file.", rich_help_panel=_NETWORK
    ),
]
Transform = Annotated[
    str,
    typer.Option(
        help="weights: the network's own; paper: resize 256, crop 224 for every network.", rich_help_panel=_NETWORK
    ),
]

GroundTruth = Annotated[
    str | None,
    typer.Option(
        "--labels",
        "-l",
        metavar="FILE",
        help="Ground truth of a flat folder: lines of 'file label', or a label per image in the order of names.",
        rich_help_panel=_DATA,
    ),
]
TrustLabels = Annotated[
    bool, typer.Option("--trust-labels", help="Use label numbers without checking them.", rich_help_panel=_DATA)
]
Split = Annotated[str | None, typer.Option(help="Split of a data set.", rich_help_panel=_DATA)]
InputColumn = Annotated[str | None, typer.Option(help="Column of paths, images or texts.", rich_help_panel=_DATA)]
LabelColumn = Annotated[str | None, typer.Option(help="Column of labels.", rich_help_panel=_DATA)]
ChoicesColumn = Annotated[str | None, typer.Option(help="Column of a question's choices.", rich_help_panel=_DATA)]

Scoring = Annotated[
    str,
    typer.Option(
        help="letters: logits of the choices' letters; options: mean log-probability of a choice's tokens.",
        rich_help_panel=_QUESTIONS,
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option(
        help="Text before the answer, with {question}, {choices} and other columns in braces; of a vision-language "
        "model a text with {class}.",
        rich_help_panel=_QUESTIONS,
    ),
]

Size = Annotated[int | None, typer.Option(help="Side of the input.", rich_help_panel=_IMAGES)]
Resize = Annotated[int | None, typer.Option(help="Short side before the central crop.", rich_help_panel=_IMAGES)]
Mean = Annotated[str | None, typer.Option(help="One number, or one per channel: 0.5,0.5,0.5.", rich_help_panel=_IMAGES)]
Std = Annotated[str | None, typer.Option(help="Likewise.", rich_help_panel=_IMAGES)]
Scale = Annotated[float | None, typer.Option(help="Divisor of pixel values (0 to 255).", rich_help_panel=_IMAGES)]
Interpolation = Annotated[
    str | None, typer.Option(help="bilinear, bicubic, nearest, lanczos, box, hamming.", rich_help_panel=_IMAGES)
]

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...", rich_help_panel=_RUNNING)]
Precision = Annotated[
    str, typer.Option(help="auto (mixed on a GPU), float32, float16 or bfloat16.", rich_help_panel=_RUNNING)
]
BatchSize = Annotated[int, typer.Option(help="Inputs per batch.", rich_help_panel=_RUNNING)]
Workers = Annotated[
    int | None,
    typer.Option(help="Threads that read inputs; one per processor by default.", rich_help_panel=_RUNNING),
]
ShardSize = Annotated[
    int,
    typer.Option(
        help="Inputs per file of the unfinished result: at most these are lost in an interruption.",
        rich_help_panel=_RUNNING,
    ),
]


@options.examples(
    "evicp extract resnet152 imagenet/val -o val.npz --transform paper",
    "evicp extract efficientnet-lite0 photos/ -o photos.npz",
    "evicp extract timm:convnext_tiny list.csv -o logits.npz",
    "evicp extract model.onnx imagenetv2/ -o v2.npz --mean 0.5 --std 0.5",
    "evicp extract mypackage.models:build images/ -o logits.safetensors --transform paper",
    "evicp extract my-bert/ reviews.csv -o reviews.npz",
    "evicp extract my-llm/ questions.jsonl -o answers.npz --scoring options",
)
def extract(
    network: Network,
    source: Source,
    output: LogitsOutput,
    weights: Weights = "default",
    transform: Transform = "weights",
    class_names: options.ClassNames = None,
    labels: GroundTruth = None,
    trust_labels: TrustLabels = False,
    split: Split = None,
    input_column: InputColumn = None,
    label_column: LabelColumn = None,
    choices_column: ChoicesColumn = None,
    scoring: Scoring = "letters",
    prompt: Prompt = None,
    size: Size = None,
    resize: Resize = None,
    mean: Mean = None,
    std: Std = None,
    scale: Scale = None,
    interpolation: Interpolation = None,
    device: Device = "auto",
    precision: Precision = "auto",
    batch_size: BatchSize = 64,
    workers: Workers = None,
    shard_size: ShardSize = 512,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Compute logits of a network for images, texts or questions and write them with their labels.

    After an interruption, the same command continues. Unreadable images are skipped and listed.
    """
    images = {"size": size, "resize": resize, "mean": mean, "std": std, "scale": scale, "interpolation": interpolation}
    how: dict[str, Any] = {"weights": weights, "transform": _transform(transform, images), "labels": labels}
    how |= {"trust_labels": trust_labels, "split": split, "input_column": input_column, "label_column": label_column}
    how |= {"choices_column": choices_column, "prompting": (scoring, prompt)}
    how |= {"device": device, "precision": precision, "batch_size": batch_size, "shard_size": shard_size}
    how |= {"class_names": class_names, "workers": workers, "force": force}
    _run(network, source, output, how, as_json)


def _run(network: str, source: str, output: str, how: dict[str, Any], as_json: bool) -> None:
    from evicp.extraction import Prompting
    from evicp.extraction import extract as run

    how["prompting"] = Prompting(*how["prompting"])
    for path in (Path(output), *companions(Path(output)).values()):
        refuse_inputs(path, (network, source, how["weights"], how["labels"], how["class_names"]))
    result = run(network, source, output, **{**how, "class_names": inputs.read_class_names(how["class_names"])})
    facts = dataclasses.asdict(result)
    print_result(as_json, {"output": facts.pop("path"), **facts}, result)


def _transform(name: str, images: dict[str, Any]) -> str | dict[str, Any]:
    """The transform by name, or the changes to it."""
    changes = {key: value for key, value in images.items() if value is not None}
    if changes and name == "paper":
        raise InputError(f"--transform paper is fixed; drop --{', --'.join(changes)}, or drop --transform.")
    for key in ("mean", "std"):
        if key in changes:
            changes[key] = _numbers(changes[key], f"--{key}")
    if "size" in changes:
        changes["size"] = (changes["size"], changes["size"])
    return changes or name


def _numbers(text: str, option: str) -> float | tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if "," in text else float(text)
    except ValueError as error:
        raise InputError(f"{option} must be one number, or three with commas between; got {text!r}.") from error
