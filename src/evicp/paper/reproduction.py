"""Experiments 1 to 4 and both appendices of the paper, for any set of logits files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from evicp import __version__, kernels
from evicp.datasets import load_imagenet_sample
from evicp.errors import FileError, InputError, SuspiciousInputWarning
from evicp.evaluation.strata import intervals
from evicp.input import validate
from evicp.input.classes import labelled
from evicp.input.warn import warn
from evicp.io.atomic import write_whole
from evicp.paper import figures, page
from evicp.paper.published import DATASETS, lookup
from evicp.paper.rankings import Ranking, rankings
from evicp.paper.tables import Measured, PaperTable, build_tables
from evicp.paper.trials import DIFFERENCES, LEAKS, LEAKS_ONLY, PROTOCOLS, Network, Released, run_trials

_IMAGENET_CLASSES = 1000

#: Other versions of libraries that decode and resize images move accuracy by less than this.
_ACCURACY_SLACK = 0.01

_EMBEDDED = "EfficientNet-Lite1 (embedded sample)"


def as_network(name: str, dataset: str, logits: Any, labels: Any) -> Network:
    """Checked logits and labels of one network on "val" or "v2"."""
    if dataset not in DATASETS:
        raise InputError(f"a data set must be one of {', '.join(DATASETS)}; got {dataset!r}.")
    return Network(name, dataset, *labelled(logits, labels))


def embedded_network() -> Network:
    """The embedded sample: real ImageNet-Val logits of a network that is not in the paper."""
    sample = load_imagenet_sample()
    return Network(_EMBEDDED, "val", sample.logits, sample.labels)


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The tables, measured next to published, and everything they were made from."""

    measured: tuple[Measured, ...]
    tables: tuple[PaperTable, ...]
    rankings: tuple[Ranking, ...]
    reference: Mapping[str, str]
    trials: int
    seed: int
    released: Released = LEAKS_ONLY

    @property
    def about(self) -> tuple[str, ...]:
        """What was run, in sentences."""
        lines = [f"evicp {__version__}, {self.trials} trials, seed {self.seed}."]
        if self.released.sgd:
            lines.append("As released: the temperature is fitted by the paper's gradient descent.")
        if self.released.rank_offset:
            lines.append(f"As released: the threshold's rank is {self.released.rank_offset} above the required one.")
        for m in self.measured:
            n, n_classes = m.network.logits.shape
            known = m.network.title if m.network.paper_name else f"{m.network.name}, a network that is not in the paper"
            lines.append(f"{DATASETS[m.network.dataset]}: {known}, {n:,} rows, {n_classes:,} classes.")
        for dataset, name in self.reference.items():
            lines.append(f"Tables 3 and 4 and the figures show {name} on {DATASETS[dataset]} (the paper: ResNet152).")
        if any(m.network.name == _EMBEDDED for m in self.measured):
            lines.append("No files were given: this is the embedded sample, not a network of the paper.")
        return tuple(lines)

    @property
    def verdict(self) -> str:
        """Does the ranking survive, but for swaps within the noise?"""
        kept = sum(r.survives for r in self.rankings)
        first = sum(r.clean[0] == "ECP" for r in self.rankings)
        released = sum(r.released[0] == "ECP" for r in self.rankings)
        total = len(self.rankings)
        return (
            f"Under the clean protocol the methods keep the order of the released one in {kept} of {total} rankings. "
            "A swap of two methods that differ by one standard error over the trials or less, under either protocol, "
            f"does not count. ECP comes first in {released} of {total} as released and in {first} of {total} clean."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "about": list(self.about),
            "verdict": self.verdict,
            "leaks_of_the_released_protocol": list(LEAKS),
            "differences_of_the_released_code": list(DIFFERENCES),
            "rankings": [ranking.to_dict() for ranking in self.rankings],
            "tables": [json.loads(table.to_json()) for table in self.tables],
        }

    def files(self, *, draw: bool = True) -> dict[str, bytes]:
        """Every file of the reproduction by its name."""
        drawings = figures.draw_all(self.measured, self.reference) if draw else ()
        content: dict[str, str | bytes] = {}
        for table in self.tables:
            name = f"table{table.settings.number}"
            content |= {
                f"{name}.md": table.to_markdown(),
                f"{name}.tex": table.to_latex(),
                f"{name}.csv": table.to_csv(),
                f"{name}.json": table.to_json(),
            }
        for drawing in drawings:
            content |= {f"{drawing.name}.svg": drawing.svg, f"{drawing.name}.png": drawing.png}
        content["reproduction.json"] = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        content["index.html"] = page.render(self.about, self.verdict, self.tables, self.rankings, drawings)
        return {name: text if isinstance(text, bytes) else text.encode() for name, text in content.items()}

    def write(self, directory: str | PathLike[str], *, force: bool = False, draw: bool = True) -> list[Path]:
        """Write all files into a directory, each whole or not at all; never over existing ones unless forced."""
        target = Path(directory)
        refuse_existing(target, force=force)
        content = self.files(draw=draw)
        target.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            write_whole(target / name, data)
        return [target / name for name in content]


#: What a reproduction's files are called.
_OWN_NAME = re.compile(r"index\.html|reproduction\.json|table\d+\.(md|tex|csv|json)|(figure|histogram)\w+\.(svg|png)")


def refuse_existing(directory: Path, *, force: bool) -> None:
    """Raise where a directory cannot be written into without losing something."""
    if directory.exists() and not directory.is_dir():
        raise FileError(f"cannot write into {directory}: it is a file. Give a directory.")
    existing = sorted(path for path in directory.glob("*") if _OWN_NAME.fullmatch(path.name))
    if existing and not force:
        raise FileError(f"{existing[0]} exists already. Choose another directory, or use --force.")


def reproduce(
    networks: Sequence[Network] = (),
    *,
    trials: int = 10,
    seed: int = 0,
    reference: str | None = None,
    released: Released = LEAKS_ONLY,
    started: Callable[[str, int], Callable[[], None]] = lambda _title, _steps: lambda: None,
) -> Reproduction:
    """Run the paper's experiments on each network, under both protocols.

    Parameters
    ----------
    networks : logits with labels (`as_network`); the embedded sample if none are given
    trials, seed : how many random splits, and which
    reference : the network of Tables 3 and 4 and of the figures; the paper's ResNet152 where given, else the first
    released : what the protocol "as released" takes over from the paper's code beyond its leaks
    started : called with a title and a number of steps, returns what is called after every step
    """
    trials, seed = validate.as_count(trials, "trials"), validate.as_count(seed, "seed", at_least=0)
    networks = tuple(networks) or (embedded_network(),)
    _refuse_twins(networks)
    _warn_of_other_networks(networks)
    chosen = _references(networks, reference)
    run, measured = partial(run_trials, trials=trials, seed=seed, released=released), []
    for network in networks:
        results = {}
        for protocol in PROTOCOLS:
            advance = started(f"{network.title} ({DATASETS[network.dataset]}), {protocol}", trials)
            is_reference = chosen[network.dataset] == network.title
            results[protocol] = run(network, protocol, reference=is_reference, advance=advance)
        measured.append(Measured(network, results))
    tables = build_tables(measured, chosen)
    return Reproduction(tuple(measured), tables, rankings(tables), chosen, trials, seed, released)


def _warn_of_other_networks(networks: Sequence[Network]) -> None:
    """Warn where a file cannot be of the network that its name says: by its classes, or by its accuracy."""
    for network in networks:
        n, n_classes = network.logits.shape
        table = 1 if network.dataset == "val" else 2
        known = lookup(table, network.title, "", "accuracy")
        if known is None or known.value is None:
            continue
        hits = int(np.sum(kernels.label_ranks(network.logits, network.labels) == 1))
        low, high = intervals(hits, n, 0.9999)
        found = ""
        if n_classes != _IMAGENET_CLASSES:
            found = f"{n_classes:,} classes, not {_IMAGENET_CLASSES:,}"
        elif not low - _ACCURACY_SLACK <= known.value <= high + _ACCURACY_SLACK:
            found = f"top-1 accuracy {hits / n:.4f} on {n:,} rows; the paper has {known.value:.4f}"
        if found:
            dataset = DATASETS[network.dataset]
            warn(
                f"{network.name} is matched to the paper's {network.title} on {dataset}, but has {found}. Is it "
                "another network, other weights, or another data set? Then rename the file.",
                SuspiciousInputWarning,
            )


def _refuse_twins(networks: Sequence[Network]) -> None:
    for dataset, name in DATASETS.items():
        titles = [n.title for n in networks if n.dataset == dataset]
        for title in titles:
            if titles.count(title) > 1:
                raise InputError(f"{title} is given twice for {name}. Give each network one file.")
    small = [n for n in networks if len(n.labels) < 100]
    if small:
        raise InputError(f"{small[0].title} has {len(small[0].labels)} rows; trials need at least 100.")


def _references(networks: Sequence[Network], wanted: str | None) -> dict[str, str]:
    """The reference network of each data set."""
    result = {}
    for dataset in DATASETS:
        titles = [n.title for n in networks if n.dataset == dataset]
        names = [n.name for n in networks if n.dataset == dataset]
        if wanted is not None and titles:
            if wanted not in titles and wanted not in names:
                raise InputError(f"the reference {wanted!r} is not among {', '.join(titles)}.")
            result[dataset] = wanted if wanted in titles else titles[names.index(wanted)]
        elif titles:
            result[dataset] = "ResNet152" if "ResNet152" in titles else titles[0]
    return result
