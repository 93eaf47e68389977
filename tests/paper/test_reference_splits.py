"""Real ImageNet logits by the public path: the reference figures of ten splits, and float32 sets label for label."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import evicp
from evicp import APS, ECP, LAC, RAPS, SAPS, Margin, TopK
from evicp.input import validate
from evicp.kernels import _numpy
from oracles import reference_numpy_scores, reference_rank

NETWORKS = ("lite0", "lite1")
REFERENCE_SCORES = {"ecp": ECP(), "ecp stabilizer=0": ECP(stabilizer=0), "lac T=1": LAC()}
FIELDS = {"observed_coverage": "coverage", "mean_size": "mean_size", "sscv": "sscv", "sat": "sat"}


@cache
def network(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / f"imagenet_val5k_efficientnet_{name}.npz") as arrays:
        return arrays["logits"], arrays["labels"]


def split(number: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(number).permutation(5000)
    return rows[:1500], rows[1500:]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("label", REFERENCE_SCORES)
def test_the_reference_splits_are_met_to_1e_9(
    shared_data, cpu_backend, native_available, name, label, long_run, figure
):
    """All ten splits are for the long run; the reference backend, which is slow, does fewer if it is not alone."""
    reference = json.loads((shared_data / "reference_splits.json").read_text())
    rows = [r for r in reference if (r["network"], r["score"]) == (name, label)]
    assert len(rows) == 20
    few = cpu_backend == "numpy" and native_available
    logits, labels = network(shared_data, name)
    logits = logits.astype(np.float64)
    worst = 0.0
    for number in range(10 if long_run else 1 if few else 3):
        fitted, new = split(number)
        calibration = evicp.calibrate(logits[fitted], labels[fitted], REFERENCE_SCORES[label])
        for sets in calibration.predict(logits[new], [0.9, 0.95]):
            evaluation = evicp.evaluate(sets, labels[new])
            (wanted,) = [r for r in rows if r["split"] == number and r["coverage"] == float(sets.coverage)]
            gaps = [abs(getattr(evaluation, ours) - wanted[theirs]) for theirs, ours in FIELDS.items()]
            worst = max(worst, *gaps)
    figure("worst_difference", worst)
    assert worst <= 1e-9


def rows_to_compare(folder: Path, name: str, long_run: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits and labels of a split's calibration rows, and new logits; 500 of each in the usual run."""
    logits, labels = network(folder, name)
    fitted, new = (rows if long_run else rows[:500] for rows in split(0))
    return logits[fitted], labels[fitted], logits[new]


@cache
def plain_sets(folder: Path, name: str, score: evicp.Score, coverages: tuple, long_run: bool) -> list[np.ndarray]:
    """Masks from the plain float64 rendering of the scores, its own thresholds included."""
    fitted, labels, new = rows_to_compare(folder, name, long_run)
    parameters = score.parameters()
    randomized = parameters.get("randomized", False)
    options = {k: parameters[k] for k in ("stabilizer", "lam", "k_reg") if k in parameters}
    if options.get("stabilizer") == "scaled":
        options["stabilizer"] = 0.01 / fitted.shape[1] ** 2

    def plain(logits: np.ndarray) -> np.ndarray:
        v = _numpy.row_uniforms(logits.astype(np.float64), 0) if randomized else np.ones((len(logits), 1))
        return reference_numpy_scores(score.name, logits, v, **options)

    own = np.sort(np.take_along_axis(plain(fitted), labels[:, None], 1)[:, 0])
    thresholds = [own[reference_rank(len(own), validate.as_coverage(c)) - 1] for c in coverages]
    dense = plain(new)
    return [dense <= threshold for threshold in thresholds]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "score",
    [
        ECP(),
        ECP(stabilizer=0),
        LAC(),
        APS(),
        APS(randomized=False),
        RAPS(),
        SAPS(),
        TopK(),
        TopK(randomized=True),
        Margin(),
    ],
    ids=lambda s: s.describe(),
)
def test_sets_from_float32_are_those_of_float64(shared_data, cpu_backend, name, score, long_run, figure):
    """At most one membership in a million may differ, up to coverage 0.95, from a plain float64 rendering.

    The second network's logits are stored in half precision: they tie all the time, also across the threshold.
    """
    coverages = (0.8, 0.9, 0.95)
    fitted, labels, new = rows_to_compare(shared_data, name, long_run)
    sets = evicp.calibrate(fitted.astype(np.float32), labels, score).predict(new.astype(np.float32), coverages)
    wanted = plain_sets(shared_data, name, score, coverages, long_run)
    differing = sum(int(np.sum(s.mask() != w)) for s, w in zip(sets, wanted, strict=True))
    compared = sum(w.size for w in wanted)
    figure("differing", f"{differing} of {compared}")
    assert differing <= compared / 1_000_000


@pytest.mark.parametrize("name", NETWORKS)
def test_half_precision_logits_give_the_sets_of_the_upcast(shared_data, cpu_backend, name):
    logits, labels = network(shared_data, name)
    half = logits[:1000].astype(np.float16)
    sets = [evicp.calibrate(z[:300], labels[:300]).predict(z[300:], 0.9) for z in (half, half.astype(np.float32))]
    assert sets[0] == sets[1]
