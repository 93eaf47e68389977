"""Rows of classes that the classifier does not offer, and pictures of nothing it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.calibrator import calibrate
from evicp.errors import need
from evicp.extraction import open_network
from evicp.method import evidence
from evicp.method.scores import APS, LAC, Score
from evicp.types import F64, I64, Bools
from study import Finding, Logits, auroc, auroc_interval, log_probabilities_accepted, published

#: What may show that an input is unknown: larger where it is.
SIGNS: Mapping[str, Callable[[F64], F64]] = MappingProxyType(
    {
        "u": lambda z: evidence.opinion(z).uncertainty,
        "1 - largest softmax": lambda z: -np.exp(evidence.log_utility(z)).max(1),
        "largest logit, negated": lambda z: -z.max(1),
    }
)


@dataclass(frozen=True)
class HalfUnknown:
    """Half of a network's classes: rows to calibrate on, and rows that are shown, of these and of the other classes."""

    z: F64
    labels: I64
    used: I64
    shown: I64
    strange: Bools

    def sizes(self, score: Score) -> tuple[I64, I64]:
        """Sizes of the sets of shown rows, of known and of unknown classes."""
        with log_probabilities_accepted():
            sets = calibrate(self.z[self.used], self.labels[self.used], score).predict(self.z[self.shown], 0.9)
        return sets.sizes[~self.strange], sets.sizes[self.strange]


def half_unknown(data: Logits) -> HalfUnknown:
    """Take half of the classes from a network."""
    n_classes = data.logits.shape[1]
    known = np.random.default_rng(0).permutation(n_classes)[: n_classes // 2]
    inside = np.isin(data.labels, known)
    position = np.full(n_classes, -1)
    position[known] = np.arange(len(known))
    order = np.random.default_rng(1).permutation(np.flatnonzero(inside))
    used, new = order[: len(order) // 2], order[len(order) // 2 :]
    shown = np.concatenate([new, np.flatnonzero(~inside)])
    z = np.asarray(data.logits, np.float64)[:, known]
    return HalfUnknown(z, position[data.labels], used, shown, ~inside[shown])


def outliers(networks: Sequence[Logits]) -> Finding:
    """Rows whose class the classifier does not offer (insights 1 and 2): half the classes are taken away."""
    rows = []
    for data in networks:
        half = half_unknown(data)
        for title, sign in SIGNS.items():
            value = auroc(sign(half.z)[half.shown], half.strange)
            rows.append((data.name, f"AUROC of {title} for an unknown class", f"{value:.3f}"))
        for score in (published(), LAC(), APS()):
            known, strange = half.sizes(score)
            title = f"{score.name.upper()}: mean size of known, unknown (empty sets, known, unknown)"
            sizes = f"{known.mean():.2f}, {strange.mean():.2f}"
            rows.append((data.name, title, f"{sizes} ({np.mean(known == 0):.3f}, {np.mean(strange == 0):.3f})"))
    title = "Rows of classes the classifier does not offer"
    return Finding("outliers", title, ("network", "what", "figure"), tuple(rows))


def far(networks: Sequence[Logits]) -> Finding:
    """Pictures of nothing that a network knows; sets for those networks of which a file has logits.

    The name of such a file ends in that of the network: lite0, lite1 or lite2.
    """
    rows = []
    for name in ("lite0", "lite1", "lite2"):
        own = next((data for data in networks if data.name.endswith(name)), None)
        known, *unknown = (_logits_of_pictures(f"efficientnet-{name}", title) for title in PICTURES)
        rows.append((name, f"photographs ({len(known)})", "-", "-", "-", *_sizes(own, known)))
        for title, z in zip(tuple(PICTURES)[1:], unknown, strict=True):
            signs = (auroc_interval(sign(z), sign(known)) for sign in SIGNS.values())
            rows.append((name, f"{title} ({len(z)})", *signs, *_sizes(own, z)))
    head = ("network", "pictures", *SIGNS, "ECP", "LAC", "APS")
    title = "Far from ImageNet: AUROC against crops of photographs [95 % interval]; mean size (share of empty sets)"
    return Finding("far", title, head, tuple(rows))


def _sizes(data: Logits | None, z: F64) -> tuple[str, ...]:
    """Mean size and share of empty sets, of each score calibrated on a network's rows."""
    if data is None:
        return ("-",) * 3
    sets = (calibrate(data.logits, data.labels, score).predict(z, 0.9) for score in (published(), LAC(), APS()))
    return tuple(f"{s.sizes.mean():.2f} ({np.mean(s.sizes == 0):.2f})" for s in sets)


def _photographs(rng: np.random.Generator) -> NDArray[np.uint8]:
    names = ("astronaut", "chelsea", "coffee", "rocket")
    pictures: Any = need("skimage.data", "scikit-image", "test-extract", "pictures far from ImageNet")
    return _crop(getattr(pictures, names[rng.integers(len(names))])(), rng)


def _textures(rng: np.random.Generator) -> NDArray[np.uint8]:
    names = ("brick", "grass", "gravel")
    pictures: Any = need("skimage.data", "scikit-image", "test-extract", "pictures far from ImageNet")
    return _crop(getattr(pictures, names[rng.integers(len(names))])(), rng)


def _shuffled(rng: np.random.Generator) -> NDArray[np.uint8]:
    picture = _photographs(rng)
    return rng.permutation(picture.reshape(-1, 3)).reshape(picture.shape)


def _noise(rng: np.random.Generator) -> NDArray[np.uint8]:
    return rng.integers(0, 256, (_SIDE, _SIDE, 3)).astype(np.uint8)


_SIDE = 256
#: What networks are shown: first what they know, more or less.
PICTURES: Mapping[str, Callable[[np.random.Generator], NDArray[np.uint8]]] = MappingProxyType(
    {
        "photographs": _photographs,
        "brick, grass, gravel": _textures,
        "photographs with pixels shuffled": _shuffled,
        "uniform noise": _noise,
    }
)


def _crop(picture: NDArray[Any], rng: np.random.Generator) -> NDArray[np.uint8]:
    top, left = (int(rng.integers(0, extent - _SIDE + 1)) for extent in picture.shape[:2])
    part = picture[top : top + _SIDE, left : left + _SIDE]
    return np.repeat(part[..., None], 3, axis=2) if part.ndim == 2 else part


def _logits_of_pictures(network: str, kind: str, count: int = 100) -> F64:
    """A network's logits of pictures of a kind, the same for each network, (count, K)."""
    image: Any = need("PIL.Image", "pillow", "extract", "preparing pictures")
    opened, rng = open_network(network, device="cpu"), np.random.default_rng(0)
    pictures = (opened.prepare(image.fromarray(PICTURES[kind](rng))) for _ in range(count))
    return np.concatenate([opened.logits([picture]) for picture in pictures]).astype(np.float64)
