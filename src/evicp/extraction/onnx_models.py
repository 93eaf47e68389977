"""Any ONNX image classifier, through onnxruntime on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError, InputError, need
from evicp.extraction.images import PAPER, Preprocess
from evicp.extraction.network import Network, Transform, choose_transform, probe_classes
from evicp.extraction.storage import file_digest
from evicp.io.paths import readable

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}


def onnx_network(path: Path, transform: Transform) -> Network:
    """An ONNX file with one image input; size and layout are read from its graph.

    Without a transform of yours, images are resized to 8/7 of the input's size, cropped, and normalised as ImageNet's
    are; an input of bytes takes them as they are.
    """
    runtime = need("onnxruntime", "onnxruntime", "onnx", "an ONNX network")
    readable(path)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has its own exception class for each failure
        raise FileError(f"cannot read {path}: onnxruntime says {str(error).splitlines()[0]}") from error
    if len(session.get_inputs()) != 1:
        raise InputError(f"{path} must have one input; it has {', '.join(i.name for i in session.get_inputs())}.")
    (entry,) = session.get_inputs()
    prepare, described = choose_transform(transform, _graph_transform(entry, path))
    logits = _runner(session, entry, _output_name(session))
    return Network(
        name=path.name,
        n_classes=probe_classes(path.name, prepare, logits),
        prepare=prepare,
        logits=logits,
        settings={
            "network": f"onnx:{path.name}",
            "parameters": [file_digest(file) for file in (path, path.with_name(path.name + ".data")) if file.exists()],
            "transform": described,
            "device": "cpu",
            "precision": entry.type,
        },
    )


def _graph_transform(entry: Any, path: Path) -> Preprocess:
    """The transform that the graph's input suggests: (N, C, H, W) or (N, H, W, C)."""
    shape = entry.shape
    if entry.type not in _TYPES or len(shape) != 4:
        raise InputError(f"{path} must take a batch of images; its input is {entry.type} of shape {shape}.")
    layout = "HWC" if shape[3] in (1, 3) and shape[1] not in (1, 3) else "CHW"
    channels, height, width = shape[1:] if layout == "CHW" else (shape[3], *shape[1:3])
    size = tuple(side if isinstance(side, int) else PAPER.size[0] for side in (height, width))
    grey = channels == 1
    raw = entry.type == "tensor(uint8)"
    return Preprocess(
        size=(size[0], size[1]),
        resize=round(max(size) * 8 / 7),
        scale=1.0 if raw else 255.0,
        mean=(0.0,) * (1 if grey else 3) if raw or grey else PAPER.mean,
        std=(1.0,) * (1 if grey else 3) if raw or grey else PAPER.std,
        layout=layout,
    )


def _output_name(session: Any) -> str:
    """The output called logits, or the first that is one row per image."""
    outputs = session.get_outputs()
    names = [output.name for output in outputs]
    flat = [output.name for output in outputs if output.type in _TYPES and len(output.shape or ()) == 2]
    return "logits" if "logits" in names else (flat or names)[0]


def _runner(session: Any, entry: Any, output: str) -> Any:
    """A function of a list of inputs; a graph of a fixed batch size is fed in pieces of it."""
    fixed = entry.shape[0] if isinstance(entry.shape[0], int) else None
    kind = _TYPES[entry.type]

    def logits(examples: list[Any]) -> NDArray[np.float32]:
        batch = np.stack([np.asarray(example) for example in examples]).astype(kind)
        step = fixed or len(batch)
        padded = np.concatenate([batch, np.repeat(batch[-1:], -len(batch) % step, axis=0)])
        pieces = [session.run([output], {entry.name: padded[i : i + step]})[0] for i in range(0, len(batch), step)]
        return np.concatenate(pieces)[: len(batch)].astype(np.float32)

    return logits
