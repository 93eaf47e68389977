"""Every number of the paper's Tables 1 to 8, with its settings.

The numbers live in `published.csv`, one per line, so that any program can read them: table, data set, holdout rows,
trials (empty where the paper does not say), coverage (1 - delta), network, method, RAPS's lam ("best": the one of least
SSCV) and k_reg, the stratum of set size or difficulty, the metric, and the value with the digits printed. An empty
value is a dash in the paper. Tables are numbered by their order in the paper.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

Lam = float | Literal["best"] | None


@dataclass(frozen=True)
class PublishedFigure:
    """One number of the paper and what it was measured under; `value` is None for a dash."""

    table: int
    dataset: str
    holdout: int
    trials: int | None
    coverage: float
    network: str
    method: str
    lam: Lam
    k_reg: int | None
    stratum: str
    metric: str
    value: float | None
    decimals: int


@dataclass(frozen=True)
class TableSettings:
    """What a table of the paper shows: its data set, coverage and ("method", lam) columns."""

    number: int
    title: str
    dataset: str
    coverage: float
    methods: tuple[tuple[str, Lam], ...]
    metrics: tuple[str, ...]
    by: Literal["network", "size", "difficulty"] = "network"


#: The paper's data sets, by the names used on the command line.
DATASETS = {"val": "ImageNet-Val", "v2": "ImageNet-V2"}

_FOUR: tuple[tuple[str, Lam], ...] = (("Base", None), ("APS", None), ("RAPS", 0.1), ("ECP", None))
#: What Tables 1, 2, 6 and 7 show, beside the accuracy of each network.
EFFICIENCY = ("coverage", "size")

#: The tables by their number.
TABLES: Mapping[int, TableSettings] = MappingProxyType(
    {
        table.number: table
        for table in (
            TableSettings(1, "Coverage and set size on ImageNet-Val", "val", 0.9, _FOUR, EFFICIENCY),
            TableSettings(2, "Coverage and set size on ImageNet-V2", "v2", 0.9, _FOUR, EFFICIENCY),
            TableSettings(
                3,
                "Counts and coverage by set size on ImageNet-Val",
                "val",
                0.9,
                (("ECP", None), ("APS", None), ("RAPS", 0.001), ("RAPS", 0.01), ("RAPS", 0.1), ("RAPS", 1.0)),
                ("count", "coverage"),
                "size",
            ),
            TableSettings(
                4,
                "Counts, coverage and set size by difficulty on ImageNet-Val",
                "val",
                0.9,
                (("ECP", None), ("APS", None), ("RAPS", 0.01), ("RAPS", 0.1), ("RAPS", 1.0)),
                ("count", "coverage", "size"),
                "difficulty",
            ),
            TableSettings(
                5,
                "Set size, SSCV and SAT on ImageNet-Val",
                "val",
                0.9,
                (("APS", None), ("RAPS", "best"), ("ECP", None)),
                ("size", "SSCV", "SAT"),
            ),
            TableSettings(6, "Coverage and set size on ImageNet-Val", "val", 0.95, _FOUR, EFFICIENCY),
            TableSettings(7, "Coverage and set size on ImageNet-V2", "v2", 0.95, _FOUR, EFFICIENCY),
            TableSettings(
                8,
                "LAS against ECP on ImageNet-Val",
                "val",
                0.9,
                (("LAS", None), ("ECP", None)),
                ("coverage", "size", "SSCV", "SAT"),
            ),
        )
    }
)

#: The paper's networks, by torchvision's names.
NETWORKS: Mapping[str, str] = MappingProxyType(
    {
        "resnext101_32x8d": "ResNeXT101",
        "resnet152": "ResNet152",
        "resnet101": "ResNet101",
        "resnet50": "ResNet50",
        "resnet18": "ResNet18",
        "densenet161": "DenseNet161",
        "vgg16": "VGG16",
        "shufflenet_v2_x1_0": "ShuffleNet",
        "inception_v3": "Inception",
    }
)


def paper_name(name: str) -> str | None:
    """The paper's name of a network whose file or model is called `name`; None if the paper has no such network.

    >>> paper_name("resnet152"), paper_name("val-ResNeXt101-32x8d"), paper_name("wide_resnet101_2")
    ('ResNet152', 'ResNeXT101', None)
    """
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower())
    if _NOT_THE_PAPERS.search(plain):
        return None
    for model, paper in NETWORKS.items():
        family = re.match(r"[a-z]+", model)
        short = model if paper[-1].isdigit() or family is None else family.group()
        pattern = re.sub(r"(?<=[a-z])(?=\d)", "_?", short.partition("_")[0])
        if re.search(rf"(?:^|_){pattern}(?:_|$)", plain):
            return paper
    return None


#: Relatives of the paper's networks that share a part of their names.
_NOT_THE_PAPERS = re.compile(
    r"wide_?resnet|vgg_?16_?bn|shufflenet_?v2_?x(?!1_?0)|resnext_?101_(?!32x8d)|inception_v4|inception_resnet"
)


@cache
def figures() -> tuple[PublishedFigure, ...]:
    """All 621 cells of the eight tables, in the paper's order.

    >>> len(figures())
    621
    """
    text = (files("evicp.paper") / "published.csv").read_text(encoding="utf-8")
    return tuple(_parse(row) for row in csv.DictReader(text.splitlines()))


def _parse(row: dict[str, str]) -> PublishedFigure:
    lam: Lam = None if not row["lam"] else "best" if row["lam"] == "best" else float(row["lam"])
    return PublishedFigure(
        table=int(row["table"]),
        dataset=row["dataset"],
        holdout=int(row["holdout"]),
        trials=int(row["trials"]) if row["trials"] else None,
        coverage=float(row["coverage"]),
        network=row["network"],
        method=row["method"],
        lam=lam,
        k_reg=int(row["k_reg"]) if row["k_reg"] else None,
        stratum=row["stratum"],
        metric=row["metric"],
        value=float(row["value"]) if row["value"] else None,
        decimals=len(row["value"].partition(".")[2]),
    )


@cache
def _index() -> dict[tuple[int, str, str, Lam, str, str], PublishedFigure]:
    return {(f.table, f.network, f.method, f.lam, f.stratum, f.metric): f for f in figures()}


def lookup(
    table: int, network: str, method: str, metric: str, *, lam: Lam = None, stratum: str = ""
) -> PublishedFigure | None:
    """One published number; None where the paper has none.

    >>> lookup(1, "ResNet152", "ECP", "size").value
    1.75
    """
    return _index().get((table, network, method, lam, stratum, metric))
