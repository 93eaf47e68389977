"""Rows of classes that the classifier does not offer, and pictures of nothing it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.calibration.calibrator import calibrate
from evicp.errors import need
from evicp.extraction import open_network
from evicp.method import evidence
from evicp.method.scores import APS, ECP, LAC
from evicp.types import F64
from study import Finding, Logits, auroc, log_probabilities_accepted


def outliers(networks: Sequence[Logits]) -> Finding:
    """Rows whose class the classifier does not offer (insights 1 and 2): half the classes are taken away."""
    rows = []
    for data in networks:
        n_classes = data.logits.shape[1]
        known = np.random.default_rng(0).permutation(n_classes)[: n_classes // 2]
        inside = np.isin(data.labels, known)
        z = np.asarray(data.logits, np.float64)[:, known]
        position = np.full(n_classes, -1)
        position[known] = np.arange(len(known))
        order = np.random.default_rng(1).permutation(np.flatnonzero(inside))
        used, new = order[: len(order) // 2], order[len(order) // 2 :]
        u, doubt = evidence.opinion(z).uncertainty, -np.exp(evidence.log_utility(z)).max(1)
        shown = np.concatenate([new, np.flatnonzero(~inside)])
        strange = ~inside[shown]
        for title, value in (("u", u), ("1 - largest softmax", doubt), ("largest logit, negated", -z.max(1))):
            rows.append((data.name, f"AUROC of {title} for an unknown class", f"{auroc(value[shown], strange):.3f}"))
        for score in (ECP(), LAC(), APS()):
            with log_probabilities_accepted():
                sets = calibrate(z[used], position[data.labels[used]], score).predict(z[shown], 0.9)
            known_size, strange_size = sets.sizes[~strange], sets.sizes[strange]
            rows.append(
                (
                    data.name,
                    f"{score.name.upper()}: mean size of known, unknown (empty sets, known, unknown)",
                    f"{known_size.mean():.2f}, {strange_size.mean():.2f} "
                    f"({np.mean(known_size == 0):.3f}, {np.mean(strange_size == 0):.3f})",
                )
            )
    return Finding(
        "outliers", "Rows of classes the classifier does not offer", ("network", "what", "figure"), tuple(rows)
    )


def far(networks: Sequence[Logits]) -> Finding:
    """Pictures of nothing the network knows, beside validation images; for logits of EfficientNet-Lite0 (`lite0`)."""
    rows = []
    known = next((data for data in networks if data.name.endswith("lite0")), None)
    for title, z in _strange_logits().items() if known is not None else ():
        assert known is not None
        both = np.concatenate([np.asarray(known.logits, np.float64), z])
        strange = np.arange(len(both)) >= len(known.labels)
        doubt = -np.exp(evidence.log_utility(both)).max(1)
        signs = (evidence.opinion(both).uncertainty, doubt, -both.max(1))
        sets = [calibrate(known.logits, known.labels, score).predict(z, 0.9) for score in (ECP(), LAC(), APS())]
        sizes = [f"{s.sizes.mean():.2f} ({np.mean(s.sizes == 0):.2f})" for s in sets]
        rows.append((f"{title} ({len(z)})", *(f"{auroc(sign, strange):.3f}" for sign in signs), *sizes))
    head = ("pictures", "u", "1 - largest softmax", "largest logit, negated", "ECP", "LAC", "APS")
    title = "Far from ImageNet, EfficientNet-Lite0: AUROC against validation images; mean size (share of empty sets)"
    return Finding("far", title, head, tuple(rows))


def _strange_logits(count: int = 24, side: int = 256) -> dict[str, F64]:
    """Logits of crops of textures, of noise, and of photographs whose pixels are shuffled."""
    pictures: Any = need("skimage.data", "scikit-image", "test-extract", "pictures far from ImageNet")
    image: Any = need("PIL.Image", "pillow", "extract", "preparing pictures")
    rng = np.random.default_rng(0)

    def crop(picture: NDArray[Any]) -> NDArray[np.uint8]:
        top, left = (int(rng.integers(0, extent - side + 1)) for extent in picture.shape[:2])
        part = picture[top : top + side, left : left + side]
        return np.repeat(part[..., None], 3, axis=2) if part.ndim == 2 else part

    textures = [pictures.brick(), pictures.grass(), pictures.gravel()]
    photographs = [pictures.astronaut(), pictures.coffee(), pictures.chelsea()]
    kinds = {
        "brick, grass, gravel": [crop(textures[i % 3]) for i in range(count)],
        "photographs with pixels shuffled": [
            rng.permutation(crop(photographs[i % 3]).reshape(-1, 3)).reshape(side, side, 3) for i in range(count)
        ],
        "uniform noise": [rng.integers(0, 256, (side, side, 3)).astype(np.uint8) for _ in range(count)],
    }
    network = open_network("efficientnet-lite0", device="cpu")
    return {
        title: network.logits([network.prepare(image.fromarray(picture)) for picture in of_kind]).astype(np.float64)
        for title, of_kind in kinds.items()
    }
