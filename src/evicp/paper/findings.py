"""What the paper leaves open, measured: each finding is one function that returns a table.

`python -m evicp.paper.findings` prints all of them for the embedded sample; logits files given as arguments take
its place, and names given with `--only` choose among the findings. docs/findings.md discusses the figures; `--into`
brings its tables up to date.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from evicp import kernels
from evicp.calibration.calibration import calibrate
from evicp.calibration.reliability import Reliability
from evicp.datasets import load_imagenet_sample
from evicp.errors import FileError, InputError, SuspiciousInputWarning, need
from evicp.evaluation.compare import COLUMNS, Comparison, compare
from evicp.input.classes import labelled
from evicp.io.files import read_logits
from evicp.io.paths import read_text, write_whole
from evicp.method import evidence
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Custom, Score
from evicp.method.temperature import fit_temperature
from evicp.paper.published import TABLES, figures, lookup
from evicp.tables import markdown_table, text_table
from evicp.types import F64, I64, Bools

__all__ = ["FINDINGS", "Finding", "Logits", "embedded", "into", "read"]


@dataclass(frozen=True, eq=False)
class Logits:
    """One network's outputs under a short name."""

    name: str
    logits: NDArray[Any]
    labels: I64

    @property
    def raw(self) -> bool:
        """Whether these are logits; log-probabilities have lost the rows' offset and with it the relu evidence."""
        return bool(np.mean(np.max(self.logits[:1024], axis=1) > 0) > 0.5)


@dataclass(frozen=True)
class Finding:
    """A table with a title; prints as text or Markdown."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"{self.title}\n\n{text_table(self.head, self.rows)}\n"

    def to_markdown(self) -> str:
        """The finding as Markdown."""
        return f"**{self.title}**\n\n{markdown_table(self.head, self.rows)}\n"


def into(page: str, finding: Finding) -> str:
    """A page with the finding between `<!-- finding: name -->` and `<!-- end -->`, in place of what was there."""
    start = f"<!-- finding: {finding.name} -->\n"
    before, found, rest = page.partition(start)
    _, end, after = rest.partition("<!-- end -->")
    if not found or not end:
        raise InputError(f"the page has no place for {finding.name}: {start.strip()} and <!-- end -->.")
    return f"{before}{start}\n{finding.to_markdown()}\n{end}{after}"


def read(path: str) -> Logits:
    """Logits with labels from a file, called after it."""
    file = read_logits(path)
    if file.labels is None:
        raise FileError(f"cannot study {path}: it holds no labels.")
    return Logits(Path(path).stem, *labelled(file.logits, file.labels))


def embedded() -> Logits:
    """The embedded sample."""
    sample = load_imagenet_sample()
    return Logits("embedded", sample.logits, sample.labels)


# ---------------------------------------------------------------------------------------------------------------
# Comparing on paired splits

_METRIC_HEAD = tuple(title for title, _, _ in COLUMNS)


def _compare(
    data: Logits, scores: Sequence[Score], coverage: float = 0.9, trials: int = 100, **options: Any
) -> Comparison:
    with warnings.catch_warnings():
        # Log-probabilities are studied on purpose here; the findings say what that means.
        warnings.simplefilter("ignore", SuspiciousInputWarning)
        return compare(data.logits, data.labels, scores, coverage, trials=trials, **options)


def _rows(
    data: Logits, scores: Mapping[str, Score], coverage: float = 0.9, trials: int = 100, **options: Any
) -> Iterator[tuple[str, ...]]:
    """(network, title, coverage, size, SSCV, SAT) of each score: means over paired splits."""
    comparison = _compare(data, list(scores.values()), coverage, trials, **options)
    for title, name in zip(scores, comparison.evaluations, strict=True):
        yield (data.name, title, *(f"{comparison.mean(name, m):.{digits}f}" for _, m, digits in COLUMNS))


def _paired(comparison: Comparison, first: str, second: str, metric: str) -> tuple[float, float, int]:
    """Mean difference, its standard error, and in how many trials the first is the smaller."""
    difference = comparison.values(first, metric) - comparison.values(second, metric)
    difference = difference[np.isfinite(difference)]
    return float(difference.mean()), float(difference.std(ddof=1) / len(difference) ** 0.5), int(np.sum(difference < 0))


# ---------------------------------------------------------------------------------------------------------------
# The stabilizer


def stabilizer(networks: Sequence[Logits]) -> Finding:
    """The printed equation against the released code, and everything between."""
    scores: dict[str, Score] = {
        f"ECP, stabilizer {e:g}": ECP(stabilizer=e) for e in (0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
    }
    scores["LAC"] = LAC()
    rows = [row for data in networks if data.raw for row in _rows(data, scores, trials=200)]
    return Finding(
        "stabilizer",
        "The stabilizer: coverage 0.9, means over 200 splits, 30 % calibrated",
        ("network", "score", *_METRIC_HEAD),
        tuple(rows),
    )


def restrict(data: Logits, n_classes: int, seed: int = 0) -> Logits:
    """Each row's true label beside n_classes - 1 random other ones: a smaller problem of the same network."""
    rng = np.random.default_rng(seed)
    total = data.logits.shape[1]
    if n_classes >= total:
        return data
    order = rng.random(data.logits.shape)
    order[np.arange(len(order)), data.labels] = -1.0  # the truth is always kept
    kept = np.argpartition(order, n_classes - 1, axis=1)[:, :n_classes]
    kept = rng.permuted(kept, axis=1)
    labels = np.argmax(kept == data.labels[:, None], axis=1)
    return Logits(f"{data.name}, K = {n_classes}", np.take_along_axis(data.logits, kept, 1), labels)


def stabilizer_scale(networks: Sequence[Logits]) -> Finding:
    """One stabilizer at every K, or one that follows K."""
    scores: dict[str, Score] = {
        "ECP, stabilizer 0": ECP(stabilizer=0),
        "ECP, stabilizer 1e-8": ECP(),
        "ECP, scaled": ECP(stabilizer="scaled"),
        "LAC": LAC(),
    }
    rows = []
    for data in networks:
        for n_classes in (10, 100, 1000) if data.raw else ():
            if n_classes <= data.logits.shape[1]:
                coverage = 0.98 if n_classes == 10 else 0.95 if n_classes == 100 else 0.9
                part = replace(restrict(data, n_classes), name=f"{data.name}, K = {n_classes}, {coverage:g}")
                rows += list(_rows(part, scores, coverage))
    return Finding(
        "scaled",
        "The stabilizer at other K: the true label among random others, coverage as given, 100 splits",
        ("network", "score", *_METRIC_HEAD),
        tuple(rows),
    )


# ---------------------------------------------------------------------------------------------------------------
# What the evidence does


def uncertainty(networks: Sequence[Logits]) -> Finding:
    """Does u matter? The factor cancels; what is left of it is measured by moving all logits of a row."""
    rows = []
    for data in networks:
        if not data.raw:
            continue
        z = np.asarray(data.logits, np.float64)
        with_u, without_u = _cost_scores(z[:200], keep_u=True), _cost_scores(z[:200], keep_u=False)
        rows.append((data.name, "largest change of ln S if u is dropped", f"{np.abs(with_u - without_u).max():.1e}"))
        u = evidence.opinion(z).uncertainty
        wrong = kernels.label_ranks(z, data.labels) > 1
        doubt = -np.exp(evidence.log_utility(z)).max(1)
        sizes = calibrate(z, data.labels).predict(z, 0.9).sizes
        rows += [
            (data.name, "AUROC of u for a wrong top label", f"{_auroc(u, wrong):.3f}"),
            (data.name, "AUROC of 1 - largest softmax for the same", f"{_auroc(doubt, wrong):.3f}"),
            (data.name, "rank correlation of u with ECP's set size", f"{_rank_correlation(u, sizes):.3f}"),
            (data.name, "rank correlation of 1 - largest softmax with it", f"{_rank_correlation(doubt, sizes):.3f}"),
        ]
        for shift in (-5.0, -2.0, 0.0, 2.0, 5.0, 20.0):
            moved = Logits(data.name, z + shift, data.labels)
            comparison = _compare(moved, [ECP(), LAC()], trials=50)
            u_mean = evidence.opinion(z + shift).uncertainty.mean()
            figures_ = ", ".join(
                f"{name.upper()} {comparison.mean(name, 'mean_size'):.3f} / {comparison.mean(name, 'sat'):.3f}"
                for name in ("ecp", "lac")
            )
            rows.append((data.name, f"all logits {shift:+g} (mean u {u_mean:.3f}): size / SAT", figures_))
    return Finding("uncertainty", "How much u matters", ("network", "what", "figure"), tuple(rows))


def _cost_scores(z: F64, *, keep_u: bool) -> F64:
    """ln S with the factor u of Eq. 10 written out, or left out."""
    e = evidence.activate("relu", z)
    alpha = evidence.dirichlet(e)
    cost = evidence.log_cost(
        evidence.surprisal(alpha),
        evidence.log_utility(z),
        evidence.evidential_ranks(e, z),
        1e-8,
        u=evidence.uncertainty(alpha) if keep_u else 1.0,
    )
    return evidence.log_score(cost, z > -np.inf)


def _auroc(value: NDArray[Any], positive: Bools) -> float:
    """The chance that a positive row has the larger value; ties count half."""
    from scipy.stats import rankdata

    ranks = rankdata(value)
    n_positive = int(positive.sum())
    above = ranks[positive].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * (len(value) - n_positive)))


def _rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def parts(networks: Sequence[Logits]) -> Finding:
    """ECP with one of its parts left out."""

    def variant(z: F64, without: str) -> F64:
        e = np.zeros_like(z) if without == "evidence" else evidence.activate("relu", z)
        surprisal = evidence.surprisal(evidence.dirichlet(e))
        log_phi = np.zeros_like(z) if without == "utility" else evidence.log_utility(z)
        ranks = np.zeros(z.shape, np.int64) if without == "rank" else evidence.evidential_ranks(e, z)
        denominator = log_phi - 2.0 * surprisal + np.log((z.shape[1] - ranks) / z.shape[1])
        numerator = np.zeros_like(z) if without == "surprisal" else np.log(surprisal)
        cost = numerator - np.logaddexp(denominator, np.log(1e-8))
        return cost if without == "normalisation" else cost - cost.max(1, keepdims=True)

    scores: dict[str, Score] = {"ECP": ECP()}
    for without in ("evidence", "surprisal", "utility", "rank", "normalisation"):
        function = partial(variant, without=without)
        function.__name__ = f"without_{without}"  # type: ignore[attr-defined]
        scores[f"without {without}"] = Custom(function)
    rows = [row for data in networks if data.raw for row in _rows(data, scores, trials=50)]
    return Finding(
        "parts",
        "ECP with one part left out: coverage 0.9, means over 50 splits",
        ("network", "score", *_METRIC_HEAD),
        tuple(rows),
    )


def evidence_functions(networks: Sequence[Logits]) -> Finding:
    """Relu, softplus, exp."""
    scores: dict[str, Score] = {f"ECP, {name}": ECP(evidence=name) for name in evidence.EVIDENCE}
    rows = [row for data in networks for row in _rows(data, scores)]
    return Finding(
        "evidence",
        "Evidence functions: coverage 0.9, means over 100 splits",
        ("network", "score", *_METRIC_HEAD),
        tuple(rows),
    )


def utilities(networks: Sequence[Logits]) -> Finding:
    """Other utilities than the softmax (the paper's insight 4)."""

    def softmax(z: F64, power: float) -> F64:
        return np.exp(power * evidence.log_utility(z))

    def dirichlet_mean(z: F64) -> F64:
        return evidence.probability(evidence.dirichlet(evidence.activate("relu", z)))

    def ones(z: F64) -> F64:
        return np.ones_like(z)

    def top_five(z: F64) -> F64:
        return np.where(evidence.ranks(z) < 5, np.exp(evidence.log_utility(z)), 1e-12)

    scores: dict[str, Score] = {
        "softmax": ECP(),
        "square root of softmax": ECP(utility=partial(softmax, power=0.5)),
        "softmax squared": ECP(utility=partial(softmax, power=2.0)),
        "Dirichlet mean p": ECP(utility=dirichlet_mean),
        "softmax of the top five, 1e-12 below": ECP(utility=top_five),
        "constant": ECP(utility=ones),
    }
    rows = []
    for data in networks:
        for title, score in scores.items() if data.raw else ():
            rows += list(_rows(data, {title: score}, trials=50))
    return Finding(
        "utility",
        "Utility functions: coverage 0.9, means over 50 splits",
        ("network", "utility", *_METRIC_HEAD),
        tuple(rows),
    )


# ---------------------------------------------------------------------------------------------------------------
# Base rates


def base_rates(networks: Sequence[Logits]) -> Finding:
    """Can a class's base rate raise its coverage (the paper's insight 3)?"""
    rows = []
    for whole in networks:
        n_classes = whole.logits.shape[1]
        naming, measured = np.split(np.random.default_rng(0).permutation(len(whole.labels)), [len(whole.labels) // 2])
        target = _worst_classes(replace(whole, logits=whole.logits[naming], labels=whole.labels[naming]), share=0.1)
        data = replace(whole, logits=whole.logits[measured], labels=whole.labels[measured])
        for factor in (0.1, 0.25, 1.0, 4.0, 10.0):
            rates = np.ones(n_classes)
            rates[target] = factor
            score = ECP(base_rates=tuple((rates / rates.sum()).tolist()))
            comparison = _compare(data, [score], trials=20)
            evaluations = next(iter(comparison.evaluations.values()))
            classes = [e.class_coverage for e in evaluations]
            counts = np.sum([c.counts for c in classes], axis=0)
            hits = np.sum([np.nan_to_num(c.coverage) * c.counts for c in classes], axis=0)
            rest = ~target
            rows.append(
                (
                    data.name,
                    f"{factor:g}",
                    f"{hits[target].sum() / counts[target].sum():.3f}",
                    f"{hits[rest].sum() / counts[rest].sum():.3f}",
                    f"{hits.sum() / counts.sum():.3f}",
                    f"{np.mean([e.mean_size for e in evaluations]):.3f}",
                )
            )
    head = ("network", "rate x", "coverage of these", "of the others", "of all", "size")
    title = (
        "Base rates of a tenth of the classes multiplied, those recognised least on half of the rows; ECP on the other "
        "half, coverage 0.9, 20 splits"
    )
    return Finding("base_rates", title, head, tuple(rows))


def _worst_classes(data: Logits, share: float) -> Bools:
    """The classes with the least top-1 accuracy; at least one."""
    n_classes = data.logits.shape[1]
    right = kernels.label_ranks(data.logits, data.labels) == 1
    counts = np.bincount(data.labels, minlength=n_classes)
    accuracy = np.bincount(data.labels, weights=right, minlength=n_classes) / np.maximum(counts, 1)
    accuracy[counts == 0] = np.inf
    worst = np.argsort(accuracy, kind="stable")[: max(1, round(share * n_classes))]
    return np.isin(np.arange(n_classes), worst)


# ---------------------------------------------------------------------------------------------------------------
# Rows from elsewhere


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
            rows.append((data.name, f"AUROC of {title} for an unknown class", f"{_auroc(value[shown], strange):.3f}"))
        for score in (ECP(), LAC(), APS()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SuspiciousInputWarning)
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
        rows.append((f"{title} ({len(z)})", *(f"{_auroc(sign, strange):.3f}" for sign in signs), *sizes))
    head = ("pictures", "u", "1 - largest softmax", "largest logit, negated", "ECP", "LAC", "APS")
    title = "Far from ImageNet, EfficientNet-Lite0: AUROC against validation images; mean size (share of empty sets)"
    return Finding("far", title, head, tuple(rows))


def _strange_logits(count: int = 24, side: int = 256) -> dict[str, F64]:
    """Logits of crops of textures, of noise, and of photographs whose pixels are shuffled."""
    from evicp.extraction import open_network

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


# ---------------------------------------------------------------------------------------------------------------
# Ties, temperature, coverage


def ties(networks: Sequence[Logits]) -> Finding:
    """How often labels tie, and what half precision does to sets."""
    rows = []
    for data in networks:
        z = np.asarray(data.logits, np.float64)
        half = z.astype(np.float16)
        descending = -np.sort(-z, axis=1)
        tied = np.mean(np.any(descending[:, 1:6] == descending[:, :5], axis=1))
        evidence_ties = np.mean(np.mean(z <= 0, axis=1))
        rows += [
            (data.name, "rows with a tie among their six largest logits", f"{tied:.4f}"),
            (data.name, "labels without relu evidence (tied in p)", f"{evidence_ties:.3f}"),
        ]
        for score in (ECP(), LAC()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SuspiciousInputWarning)
                exact = calibrate(z, data.labels, score).predict(z, 0.9)
                rounded = calibrate(half, data.labels, score).predict(half, 0.9)
            changed = np.mean(exact.sizes != rounded.sizes)
            rows.append((data.name, f"{score.name.upper()}: rows whose set size changes in float16", f"{changed:.4f}"))
    return Finding("ties", "Ties and half precision", ("network", "what", "figure"), tuple(rows))


def temperature(networks: Sequence[Logits]) -> Finding:
    """Every score at several temperatures, and at the fitted one."""
    rows = []
    for data in networks:
        fitted = fit_temperature(data.logits, data.labels).temperature
        for t in (0.5, 0.75, 1.0, 1.5, 2.0, fitted):
            scores: list[Score] = [ECP(temperature=t), LAC(temperature=t), APS(temperature=t), RAPS(temperature=t)]
            comparison = _compare(data, scores, trials=50)
            title = f"{t:.3f} (fitted)" if t == fitted else f"{t:g}"
            rows.append((data.name, title, *_triples(comparison)))
    return Finding(
        "temperature",
        "Size / SSCV / SAT by temperature: coverage 0.9, means over 50 splits",
        ("network", "T", "ECP", "LAC", "APS", "RAPS"),
        tuple(rows),
    )


def _triples(comparison: Comparison) -> list[str]:
    """Size / SSCV / SAT of each score."""
    return [
        f"{comparison.mean(name, 'mean_size'):.2f} / {comparison.mean(name, 'sscv'):.3f} / "
        f"{comparison.mean(name, 'sat'):.3f}"
        for name in comparison.evaluations
    ]


def levels(networks: Sequence[Logits]) -> Finding:
    """The paper's three coverage levels."""
    scores = [ECP(), LAC(), RAPS(), SAPS(), APS()]
    rows = [
        (data.name, f"{1 - coverage:.2g}", *_triples(_compare(data, scores, coverage, trials=50)))
        for data in networks
        for coverage in (0.9, 0.95, 0.99)
    ]
    head = ("network", "delta", *(score.name.upper() for score in scores))
    return Finding("levels", "Size / SSCV / SAT at three levels: means over 50 splits, T = 1", head, tuple(rows))


def against_lac(networks: Sequence[Logits]) -> Finding:
    """ECP less LAC on the same splits: where LAC wins."""
    rows = []
    for data in networks:
        for coverage in (0.9, 0.95, 0.99):
            comparison = _compare(data, [ECP(), LAC()], coverage, trials=100)
            cells = []
            for metric in ("mean_size", "sscv", "sat"):
                mean, error, smaller = _paired(comparison, "ecp", "lac", metric)
                cells.append(f"{mean:+.4f} ({error:.4f}), {100 - smaller if metric == 'sat' else smaller}")
            rows.append((data.name, f"{coverage:g}", *cells))
    head = ("network", "coverage", "size", "SSCV", "SAT")
    title = "ECP less LAC: mean difference (standard error), trials of 100 in which ECP is no worse"
    return Finding("lac", title, head, tuple(rows))


def reliability(networks: Sequence[Logits]) -> Finding:
    """Insight 5: what gamma and U_C say, beside the coverage that is observed."""
    rows = []
    for data in networks:
        for n in (100, 1000):
            comparison = _compare(data, [ECP()], trials=200, calibration=n)
            observed, m = comparison.values("ecp", "coverage"), comparison.n_test
            law = Reliability(n, 0.9)
            low, high = law.observed_interval(m, 0.95)
            inside = np.mean((observed >= low) & (observed <= high))
            rows.append(
                (
                    data.name,
                    f"{n:,}",
                    f"{law.gamma:.4f}",
                    f"{law.uncertainty:.4f}",
                    f"{law.expected_coverage:.4f}",
                    f"{observed.mean():.4f}",
                    f"{observed.std():.4f}",
                    f"{inside:.3f}",
                )
            )
    head = ("network", "n", "gamma", "U_C", "expected", "observed", "its deviation", "inside the 95 % interval")
    return Finding("reliability", "Theorem 2 beside what is observed: ECP, coverage 0.9, 200 splits", head, tuple(rows))


# ---------------------------------------------------------------------------------------------------------------
# The paper's own arithmetic


def arithmetic(_: Sequence[Logits]) -> Finding:
    """What the published tables imply about each other."""
    rows = [*_implied_totals(), *_implied_sat()]
    for f in figures():
        far = f.metric == "coverage" and f.method not in ("Base", "") and not f.stratum
        if far and f.value is not None and abs(f.value - f.coverage) > 0.01:
            rows.append((f"Table {f.table}, {f.network}, {f.method}", "coverage", f"{f.value:g}", f"{f.coverage:g}"))
    head = ("where", "what", "printed", "implied")
    return Finding("arithmetic", "The paper's tables against each other", head, tuple(rows))


def _implied_totals() -> Iterator[tuple[str, ...]]:
    """Table 4's strata, added up, against Table 1."""
    strata = list(dict.fromkeys(f.stratum for f in figures() if f.table == 4))
    for method, lam in TABLES[4].methods:
        if lam in (0.01, 1.0):
            continue
        counter = method if method == "ECP" else "APS/RAPS"
        counts = np.array([_printed(4, counter, "count", None, s) for s in strata])
        for metric in ("coverage", "size"):
            values = np.array([_printed(4, method, metric, lam, s) for s in strata])
            printed = lookup(1, "ResNet152", method, metric, lam=lam)
            if printed is not None and printed.value is not None:
                implied = (values * counts).sum() / counts.sum()
                name = f"Table 4, {method}, total {metric}, against Table 1"
                yield name, metric, f"{printed.value:g}", f"{implied:.3f}"


def _printed(table: int, method: str, metric: str, lam: Any, stratum: str) -> float:
    found = lookup(table, "ResNet152", method, metric, lam=lam, stratum=stratum)
    return found.value if found is not None and found.value is not None else float("nan")


def _implied_sat() -> Iterator[tuple[str, ...]]:
    """SAT from the printed SSCV and size, where it is off by more than 3 %; empty sets only lower the printed one."""
    for f in figures():
        if f.metric != "SAT" or f.value is None:
            continue
        sscv = lookup(f.table, f.network, f.method, "SSCV", lam=f.lam)
        size = lookup(f.table, f.network, f.method, "size", lam=f.lam)
        if sscv is None or size is None or sscv.value is None or size.value is None:
            continue
        implied = (1 - sscv.value) / size.value
        if abs(f.value / implied - 1) > 0.03:
            yield f"Table {f.table}, {f.network}, {f.method}", "SAT", f"{f.value:g}", f"{implied:.3f}"


# ---------------------------------------------------------------------------------------------------------------
# The command

#: The findings by the name used with `--only`.
FINDINGS: Mapping[str, Callable[[Sequence[Logits]], Finding]] = MappingProxyType(
    {
        "arithmetic": arithmetic,
        "stabilizer": stabilizer,
        "scaled": stabilizer_scale,
        "uncertainty": uncertainty,
        "parts": parts,
        "evidence": evidence_functions,
        "utility": utilities,
        "base_rates": base_rates,
        "outliers": outliers,
        "far": far,
        "reliability": reliability,
        "ties": ties,
        "temperature": temperature,
        "levels": levels,
        "lac": against_lac,
    }
)


def main(
    logits: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Logits with labels; the embedded sample if none.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(FINDINGS)}; repeat for several.")] = None,
    markdown: Annotated[bool, typer.Option(help="Print Markdown.")] = False,
    page: Annotated[Path | None, typer.Option("--into", help="Bring the tables of this page up to date.")] = None,
) -> None:
    """Print the figures of docs/findings.md."""
    from rich.console import Console

    for name in only or ():
        if name not in FINDINGS:
            raise InputError(f"unknown finding {name!r}; known are {', '.join(FINDINGS)}.")
    networks = [read(path) for path in logits or ()] or [embedded()]
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for name in only or FINDINGS:
        finding = FINDINGS[name](networks)
        console.print(finding.to_markdown() if markdown else str(finding))
        if page is not None:
            write_whole(page, into(read_text(page), finding))


if __name__ == "__main__":
    typer.run(main)
