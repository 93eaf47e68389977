"""From an image to a network's input: reading, and one transform that most networks share."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError, need
from evicp.io.paths import as_path, open_file

if TYPE_CHECKING:
    from PIL.Image import Image

#: Files that are taken for images in a folder.
IMAGE_SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"))

_INTERPOLATIONS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
_MODES = {1: "L", 3: "RGB"}
#: The largest side of an input.
_LARGEST = 1 << 16


@dataclass(frozen=True)
class Preprocess:
    """Resize, crop at the centre, and normalise: `(x / scale - mean) / std`.

    Parameters
    ----------
    size : (height, width) of the network's input, or one number for a square
    resize : the length of the short side before the crop; None crops the largest central square first (or its
        `fraction`) and resizes that
    fraction : the share of the short side that is kept if `resize` is None
    interpolation : "bilinear", "bicubic", "nearest", "lanczos", "box" or "hamming", with antialiasing, as Pillow does
    scale : the divisor of pixel values (0 to 255)
    mean, std : one number per channel (or one for all), after the division; tuples of one mean grey images
    layout : "CHW" or "HWC"

    >>> Preprocess(size=2, resize=2, mean=0, std=1).size
    (2, 2)
    """

    size: tuple[int, int] = (224, 224)
    resize: int | None = 256
    fraction: float = 1.0
    interpolation: str = "bilinear"
    scale: float = 255.0
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    layout: str = "CHW"

    def __post_init__(self) -> None:
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        channels = next((len(values) for values in (self.mean, self.std) if isinstance(values, Sequence)), 3)
        mean, std = _per_channel(self.mean, channels), _per_channel(self.std, channels)
        for name, value in (("size", (height, width)), ("mean", mean), ("std", std)):
            object.__setattr__(self, name, value)
        _check(self)

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return len(self.mean)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one input."""
        return (self.channels, *self.size) if self.layout == "CHW" else (*self.size, self.channels)

    def __call__(self, image: Image) -> NDArray[np.float32]:
        """An image as one input, float32."""
        image = image.convert(_MODES[self.channels])
        image = self._square_first(image) if self.resize is None else self._resize_first(image, self.resize)
        raw = np.asarray(image).reshape(*self.size, self.channels)
        # Channel by channel: arithmetic along rows of pixels is five times faster than along three channels.
        planes: NDArray[np.float32] = np.ascontiguousarray(raw.transpose(2, 0, 1)).astype(np.float32)
        planes /= np.float32(self.scale)
        planes -= np.array(self.mean, np.float32)[:, None, None]
        planes /= np.array(self.std, np.float32)[:, None, None]
        return planes if self.layout == "CHW" else np.ascontiguousarray(planes.transpose(1, 2, 0))

    def _resize_first(self, image: Image, short: int) -> Image:
        width, height = image.size
        long = int(short * max(width, height) / min(width, height))
        resized = (short, long) if width <= height else (long, short)
        image = image.resize(resized, _INTERPOLATIONS[self.interpolation])
        top, left = (round((have - want) / 2) for have, want in zip(resized[::-1], self.size, strict=True))
        return image.crop((left, top, left + self.size[1], top + self.size[0]))

    def _square_first(self, image: Image) -> Image:
        width, height = image.size
        side = max(1, int(self.fraction * min(width, height)))
        top, left = (height - side + 1) // 2, (width - side + 1) // 2
        square = image.crop((left, top, left + side, top + side))
        return square.resize(self.size[::-1], _INTERPOLATIONS[self.interpolation])

    def changed(self, changes: Mapping[str, Any]) -> Preprocess:
        """The same transform with some fields changed; a new size keeps its proportion to `resize`."""
        known = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise InputError(f"a transform has no {', '.join(unknown)}; it has {', '.join(sorted(known))}.")
        given = {name: value for name, value in changes.items() if name != "resize"}
        for name in given.keys() & {"mean", "std"}:
            given[name] = _per_channel(given[name], self.channels)
        made = replace(self, resize=None, **given)
        if "resize" in changes or self.resize is None:
            return replace(made, resize=changes.get("resize"))
        return replace(made, resize=round(self.resize * max(made.size) / max(self.size)))


def _per_channel(values: Any, channels: int) -> tuple[float, ...]:
    return tuple(map(float, values)) if isinstance(values, Sequence) else (float(values),) * channels


def _check(transform: Preprocess) -> None:
    """Refuse what could not be computed."""
    if transform.interpolation not in _INTERPOLATIONS:
        raise InputError(f"interpolation must be one of {', '.join(_INTERPOLATIONS)}; got {transform.interpolation!r}.")
    if transform.layout not in ("CHW", "HWC"):
        raise InputError(f"layout must be CHW or HWC; got {transform.layout!r}.")
    if len(transform.mean) not in _MODES or len(transform.std) != len(transform.mean):
        raise InputError(
            f"mean and std must have one number for each of 1 or 3 channels; got {transform.mean}, {transform.std}."
        )
    if not all(map(isfinite, (transform.scale, *transform.mean, *transform.std))):
        raise InputError(
            f"mean, std and scale must be finite; got {transform.mean}, {transform.std}, {transform.scale}."
        )
    if max(transform.size) > _LARGEST:
        raise InputError(f"a transform needs sides of at most {_LARGEST:,}; got {transform.size}.")
    if min(transform.size) < 1 or not 0 < transform.fraction <= 1 or 0 in (transform.scale, *transform.std):
        raise InputError(
            f"a transform needs a size of at least 1, 0 < fraction <= 1 and no zero scale; got {transform}."
        )
    if transform.resize is not None and transform.resize < max(transform.size):
        raise InputError(
            f"resize must be at least the size of the crop, {max(transform.size)}; got {transform.resize}."
        )


#: What the authors of the ECP paper fed to all nine networks, Inception included.
PAPER = Preprocess()


def read_image(source: str | PathLike[str] | bytes) -> Image:
    """Decode an image wholly; whatever Pillow raises on a damaged one comes through."""
    pillow = need("PIL.Image", "pillow", "extract", "reading images")
    content = io.BytesIO(source) if isinstance(source, bytes) else open_file(as_path(source))
    with content as file, pillow.open(file) as image:
        image.load()
        return cast("Image", image)
