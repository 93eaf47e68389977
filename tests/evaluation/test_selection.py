"""Comparisons against the same thing done by hand, and what tuning is not allowed to see."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import SmallCalibrationWarning

SCORES: list[Any] = ["ecp", "lac", "aps", evicp.RAPS(lam=0.3, k_reg=2), "saps", "topk", "margin", "base"]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    labels = rng.integers(0, 12, 500)
    logits = 1.5 * rng.normal(size=(500, 12)) + 3 * np.eye(12)[labels]
    logits[:40] = np.round(logits[:40])  # ties
    logits[7, (labels[7] + 1) % 12] = -np.inf
    return logits, labels


def parts_of(n: int, seed: int, trial: int, n_tuning: int, n_calibration: int) -> list[np.ndarray]:
    """The splits as documented: tuning rows first, then calibration rows, the rest is tested."""
    order = np.random.default_rng([seed, trial]).permutation(n)
    return np.split(order, [n_tuning, n_tuning + n_calibration])


def by_hand(score: Any, logits: Any, labels: Any, calibrated: Any, tested: Any, coverage: float) -> evicp.Evaluation:
    """What a careful user would do with the rest of the package."""
    if isinstance(score, evicp.Base):
        sets = score.predict(logits[tested], coverage)
    else:
        sets = evicp.calibrate(logits[calibrated], labels[calibrated], score).predict(logits[tested], coverage)
    return evicp.evaluate(sets, labels[tested], logits[tested])


def same(left: evicp.Evaluation, right: evicp.Evaluation) -> bool:
    return json.dumps(left.to_dict(), sort_keys=True) == json.dumps(right.to_dict(), sort_keys=True)


# ---------------------------------------------------------------------------------------------------------------
# The same as by hand


@pytest.mark.parametrize("coverage", [0.7, 0.9, Fraction(99, 100)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_comparison_is_what_one_would_do_by_hand(rows: Any, coverage: Any, dtype: Any, cpu_backend: str) -> None:
    logits, labels = rows[0].astype(dtype), rows[1]
    comparison = evicp.compare(logits, labels, SCORES, coverage, trials=3, seed=5, calibration=0.4)
    assert list(comparison.evaluations) == [
        "ecp",
        "lac",
        "aps",
        "raps(lam=0.3, k_reg=2)",
        "saps",
        "topk",
        "margin",
        "base",
    ]
    for name, score in zip(comparison.evaluations, SCORES, strict=True):
        instance = evicp.SCORES[score]() if isinstance(score, str) else score
        for trial in range(3):
            _, calibrated, tested = parts_of(500, 5, trial, 0, 200)
            expected = by_hand(instance, logits, labels, calibrated, tested, coverage)
            assert same(comparison.evaluations[name][trial], expected), (name, trial)


def test_a_users_own_score(rows: Any) -> None:
    logits, labels = rows

    def distance_from_top(z: np.ndarray) -> np.ndarray:
        return z.max(1, keepdims=True) - z

    comparison = evicp.compare(logits, labels, distance_from_top, 0.8, trials=2)
    assert list(comparison.evaluations) == ["distance_from_top"]
    _, calibrated, tested = parts_of(500, 0, 1, 0, 150)
    assert same(
        comparison.evaluations["distance_from_top"][1],
        by_hand(distance_from_top, logits, labels, calibrated, tested, 0.8),
    )


def test_a_callable_without_a_hash(rows: Any) -> None:
    class Shifted:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, by: float) -> None:
            self.by = by

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Shifted) and self.by == other.by

        def __call__(self, z: np.ndarray) -> np.ndarray:
            return self.by - z

    comparison = evicp.compare(*rows, [Shifted(2.0)], 0.8, trials=2)
    assert comparison.median("custom", "mean_size") > 0


def test_full_sets_where_rows_are_too_few(rows: Any) -> None:
    logits, labels = rows
    with pytest.warns(SmallCalibrationWarning, match=r"^5 calibration row\(s\) cannot guarantee coverage 0\.9"):
        comparison = evicp.compare(logits, labels, ["lac", "aps"], 0.9, trials=2, calibration=5)
    assert comparison.values("lac", "mean_size").tolist() == [12.0, 12.0]
    assert comparison.values("aps", "coverage").tolist() == [1.0, 1.0]


@pytest.mark.parametrize("score", ["auto", evicp.Tuned("raps", lam=[0.01, 1.0])])
def test_too_few_rows_to_tune_are_warned_of(rows: Any, score: Any) -> None:
    with pytest.warns(SmallCalibrationWarning, match=r"^the 8 tuning rows .* coverage 0\.9 needs 9, .* tuning=9 or"):
        evicp.compare(*rows, score, 0.9, trials=2, tuning=8)
    evicp.compare(*rows, score, 0.9, trials=2, tuning=9)


@pytest.mark.filterwarnings("ignore:the true label")
def test_masked_true_labels_are_never_covered_by_a_finite_threshold(rows: Any) -> None:
    logits, labels = rows[0].copy(), rows[1]
    logits[np.arange(0, 500, 10), labels[::10]] = -np.inf
    comparison = evicp.compare(logits, labels, ["ecp", "raps"], 0.8, trials=2)
    for trial in range(2):
        _, calibrated, tested = parts_of(500, 0, trial, 0, 150)
        for name in ("ecp", "raps"):
            expected = by_hand(evicp.SCORES[name](), logits, labels, calibrated, tested, 0.8)
            assert same(comparison.evaluations[name][trial], expected)


# ---------------------------------------------------------------------------------------------------------------
# Splits


def test_trials_are_reproducible_and_differ(rows: Any) -> None:
    first = evicp.compare(*rows, ["ecp", "aps"], 0.8, trials=4, seed=3)
    again = evicp.compare(*rows, ["ecp", "aps"], 0.8, trials=4, seed=3)
    other = evicp.compare(*rows, ["ecp", "aps"], 0.8, trials=4, seed=4)
    assert first.to_dict() == again.to_dict()
    assert len(set(first.values("ecp", "coverage"))) > 1
    assert first.values("ecp", "coverage").tolist() != other.values("ecp", "coverage").tolist()


def test_the_first_trials_do_not_depend_on_how_many_follow(rows: Any) -> None:
    few = evicp.compare(*rows, ["lac"], 0.8, trials=2)
    many = evicp.compare(*rows, ["lac"], 0.8, trials=5)
    assert few.values("lac", "mean_size").tolist() == many.values("lac", "mean_size").tolist()[:2]


def test_every_method_gets_the_same_splits(rows: Any) -> None:
    """Alone or in company, in any order, a method's figures are the same; and all see the same test rows."""
    together = evicp.compare(*rows, SCORES, 0.8, trials=3)
    for name, score in zip(together.evaluations, SCORES, strict=True):
        alone = evicp.compare(*rows, [score], 0.8, trials=3)
        assert alone.values(name, "mean_size").tolist() == together.values(name, "mean_size").tolist()
    backwards = evicp.compare(*rows, SCORES[::-1], 0.8, trials=3)
    accuracies = {tuple(together.values(name, "accuracy")) for name in together.evaluations}
    assert len(accuracies) == 1
    assert accuracies == {tuple(backwards.values(name, "accuracy")) for name in backwards.evaluations}


@pytest.mark.parametrize(
    ("calibration", "tuning", "sizes"),
    [
        (0.3, 0.1, (50, 150, 300)),
        (150, 50, (50, 150, 300)),
        (np.int64(150), np.float32(0.1), (50, 150, 300)),
        (1, 1, (1, 1, 498)),
        (0.0021, 0.5, (250, 1, 249)),
    ],
)
@pytest.mark.filterwarnings("ignore::evicp.errors.SmallCalibrationWarning")
def test_counts_and_shares(rows: Any, calibration: Any, tuning: Any, sizes: tuple[int, int, int]) -> None:
    tuned = evicp.Tuned("raps", lam=[0.1])
    comparison = evicp.compare(*rows, tuned, 0.6, trials=1, calibration=calibration, tuning=tuning)
    assert (comparison.n_tuning, comparison.n_calibration, comparison.n_test) == sizes
    assert comparison.evaluations[tuned.describe()][0].n == sizes[2]
    assert comparison.evaluations[tuned.describe()][0].n_calibration == sizes[1]


def test_no_rows_are_set_aside_where_nothing_is_tuned(rows: Any) -> None:
    comparison = evicp.compare(*rows, ["lac"], 0.8, trials=1, tuning=0.5)
    assert (comparison.n_tuning, comparison.n_calibration, comparison.n_test) == (0, 150, 350)


# ---------------------------------------------------------------------------------------------------------------
# Temperature


def test_a_fixed_temperature(rows: Any) -> None:
    comparison = evicp.compare(*rows, ["lac", evicp.APS(temperature=3.0), "ecp"], 0.8, trials=2, temperature=2.0)
    at = {"lac": evicp.LAC(2.0), "aps(temperature=3)": evicp.APS(temperature=3.0), "ecp": evicp.ECP(temperature=2.0)}
    assert comparison.temperatures == (2.0, 2.0)
    for name, score in at.items():
        assert comparison.chosen[name] == [score, score]  # a score given a T of its own keeps it
        _, calibrated, tested = parts_of(500, 0, 1, 0, 150)
        assert same(comparison.evaluations[name][1], by_hand(score, *rows, calibrated, tested, 0.8))
    assert comparison.note == "Temperature 2."


@pytest.mark.parametrize("where", ["split", "holdout"])
def test_a_fitted_temperature_comes_from_its_own_rows(rows: Any, where: str) -> None:
    logits, labels = rows
    comparison = evicp.compare(logits, labels, ["lac", "base"], 0.8, trials=3, seed=2, temperature=where, tuning=0.2)
    n_tuning = 100 if where == "split" else 0
    assert comparison.n_tuning == n_tuning
    for trial in range(3):
        parts = parts_of(500, 2, trial, n_tuning, 150)
        fitted_on = parts[0 if where == "split" else 1]
        fitted = evicp.fit_temperature(logits[fitted_on], labels[fitted_on])
        assert comparison.temperatures[trial] == fitted.temperature
        for name, kind in (("lac", evicp.LAC), ("base", evicp.Base)):
            score = kind(temperature=fitted.temperature)
            assert comparison.chosen[name][trial] == score
            assert same(comparison.evaluations[name][trial], by_hand(score, logits, labels, *parts[1:], 0.8))
    assert ("outside the exact guarantee" in comparison.note) == (where == "holdout")
    assert ("separate rows" in comparison.note) == (where == "split")


def test_split_temperature_does_not_see_calibration_or_test_labels(rows: Any) -> None:
    logits, labels = rows
    honest = evicp.compare(logits, labels, ["lac"], 0.8, trials=1, temperature="split")
    tuning, *rest = parts_of(500, 0, 0, 50, 150)
    spoilt = labels.copy()
    spoilt[np.concatenate(rest)] = 0
    assert (
        evicp.compare(logits, spoilt, ["lac"], 0.8, trials=1, temperature="split").temperatures == honest.temperatures
    )
    spoilt = labels.copy()
    spoilt[tuning[:10]] = (labels[tuning[:10]] + 2) % 12
    assert (
        evicp.compare(logits, spoilt, ["lac"], 0.8, trials=1, temperature="split").temperatures != honest.temperatures
    )


# ---------------------------------------------------------------------------------------------------------------
# Tuning


GRID = [1e-4, 0.01, 0.1, 1.0]


def test_tuned_never_sees_calibration_or_test_rows(rows: Any) -> None:
    """With every other row spoilt the choice stays; with the tuning rows spoilt it moves."""
    logits, labels = rows
    tuned = evicp.Tuned("raps", by="size", lam=GRID, k_reg=[0, 1, 4])
    options: dict[str, Any] = {"coverage": 0.85, "trials": 1, "seed": 9, "tuning": 0.4}
    name, honest = tuned.describe(), evicp.compare(logits, labels, tuned, **options)
    tuning, calibrated, tested = parts_of(500, 9, 0, 200, 150)
    for hidden in (tested, calibrated, np.concatenate([calibrated, tested])):
        spoilt_labels, spoilt_logits = labels.copy(), logits.copy()
        spoilt_labels[hidden] = np.random.default_rng(0).integers(0, 12, len(hidden))
        spoilt_logits[hidden] = np.random.default_rng(1).normal(size=(len(hidden), 12)) * 5
        spoilt = evicp.compare(spoilt_logits, spoilt_labels, tuned, **options)
        assert spoilt.chosen == honest.chosen
        assert not same(spoilt.evaluations[name][0], honest.evaluations[name][0])  # though the figures did move
    seen = labels.copy()
    seen[tuning] = np.random.default_rng(0).integers(0, 12, len(tuning))
    assert evicp.compare(logits, seen, tuned, **options).chosen != honest.chosen


def steady_merit(lam: float, logits: Any, labels: Any, level: Fraction, by: str) -> float:
    """What tuning maximises: as in the paper, but a size range of five rows counts half in SSCV."""
    sets = evicp.calibrate(logits, labels, evicp.RAPS(lam=lam)).predict(logits, level)
    strata = [
        s for s in evicp.evaluation.metrics.size_strata(sets, labels, evicp.evaluation.strata.SSCV_ENDS) if s.count
    ]
    sscv = max(abs(s.coverage - float(level)) * s.count / (s.count + 5) for s in strata)
    non_empty = evicp.evaluation.metrics.mean_size(sets, non_empty=True)
    return {"size": -sets.sizes.mean(), "sscv": -sscv, "sat": (1 - sscv) / non_empty}[by]


@pytest.mark.parametrize("by", ["size", "sscv", "sat"])
def test_the_choice_is_the_best_average_over_coverages_around_the_one_asked_for(rows: Any, by: Any) -> None:
    logits, labels = rows
    tuned = evicp.Tuned("raps", by=by, lam=GRID)
    comparison = evicp.compare(logits, labels, tuned, 0.8, trials=2, seed=1, tuning=0.4)
    levels = [Fraction(n, 100) for n in (76, 78, 80, 82, 84)]
    for trial in range(2):
        tuning, calibrated, tested = parts_of(500, 1, trial, 200, 150)
        own = logits[tuning], labels[tuning]
        merits = [np.mean([steady_merit(lam, *own, level, by) for level in levels]) for lam in GRID]
        best = evicp.RAPS(lam=GRID[int(np.argmax(merits))])
        assert comparison.chosen[f"raps (tuned lam by {by})"][trial] == best
        assert same(
            comparison.evaluations[f"raps (tuned lam by {by})"][trial],
            by_hand(best, logits, labels, calibrated, tested, 0.8),
        )


def test_tuning_and_a_split_temperature_share_their_rows(rows: Any) -> None:
    comparison = evicp.compare(
        *rows, [evicp.Tuned("raps", lam=GRID), "lac"], 0.8, trials=2, temperature="split", tuning=0.3
    )
    for trial in range(2):
        assert comparison.chosen["raps (tuned lam by sat)"][trial].temperature == comparison.temperatures[trial]
        assert comparison.chosen["lac"][trial] == evicp.LAC(comparison.temperatures[trial])


def test_a_temperature_in_the_grid_is_not_overruled(rows: Any) -> None:
    tuned = evicp.Tuned("lac", by="size", temperature=[1.0])
    comparison = evicp.compare(*rows, tuned, 0.8, trials=1, temperature=3.0, tuning=0.3)
    assert comparison.chosen["lac (tuned temperature by size)"] == [evicp.LAC(1.0)]


def test_candidates_are_every_combination() -> None:
    tuned = evicp.Tuned(evicp.RAPS(seed=4), lam=[0.1, 0.2], k_reg=np.array([1, 2]))
    assert tuned.candidates() == [evicp.RAPS(lam=lam, k_reg=k, seed=4) for lam in (0.1, 0.2) for k in (1, 2)]


# ---------------------------------------------------------------------------------------------------------------
# Figures and tables


def test_summaries(rows: Any) -> None:
    comparison = evicp.compare(*rows, ["ecp", "lac"], 0.8, trials=5)
    sizes = comparison.values("ecp", "mean_size")
    assert sizes.tolist() == [e.mean_size for e in comparison.evaluations["ecp"]]
    assert comparison.median("ecp", "mean_size") == np.median(sizes)
    assert comparison.mean("ecp", "mean_size") == np.mean(sizes)
    assert comparison.std("ecp", "mean_size") == np.std(sizes)
    content = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert content["scores"]["ecp"]["mean_size"]["median"] == np.median(sizes)
    assert content["chosen"]["lac"] == ["lac"] * 5
    text = repr(comparison)
    assert text.splitlines()[0].split() == ["score", "coverage", "size", "SSCV", "SSCV", "rows", "SAT"]
    assert f"{np.median(sizes):.3f} ({np.std(sizes):.3f})" in text
    assert text.endswith("over 5 splits: 150 calibration rows, 350 test rows. Temperature 1.")
    assert comparison.to_markdown().splitlines()[2].startswith("| ecp | ")
    assert ">ecp</td>" in comparison._repr_html_()
    assert f'text-align:right;padding:0 .5em">{np.median(sizes):.3f} (' in comparison._repr_html_()


def test_a_metric_that_is_undefined_everywhere(rows: Any) -> None:
    """At a tiny coverage every set of Base is empty: SAT does not exist, and no NaN leaks."""
    comparison = evicp.compare(*rows, evicp.Base(randomized=False), 0.01, trials=2)
    name = "base(randomized=False)"
    assert comparison.values(name, "empty_share").tolist() == [1.0, 1.0]
    assert np.isnan(comparison.median(name, "sat"))
    assert json.loads(json.dumps(comparison.to_dict(), allow_nan=False))["scores"][name]["sat"]["median"] is None
    assert repr(comparison).splitlines()[2].split()[-1] == "-"


def test_base_is_compared_though_not_calibrated(rows: Any) -> None:
    comparison = evicp.compare(*rows, ["base", "aps"], 0.8, trials=1)
    assert comparison.evaluations["base"][0].n_calibration is None
    assert comparison.evaluations["aps"][0].n_calibration == 150


def test_strata_of_few_rows_can_be_left_out(rows: Any) -> None:
    comparison = evicp.compare(*rows, ["aps"], 0.8, trials=1, min_count=50)
    assert comparison.evaluations["aps"][0].sscv_smallest_count >= 50


def test_real_logits_rank_the_methods_as_published(shared_data: Path) -> None:
    """On ImageNet logits ECP's sets are far smaller than APS's, and a little larger than LAC's."""
    with np.load(shared_data / "imagenet_val5k_efficientnet_lite1.npz") as data:
        logits, labels = data["logits"], data["labels"]
    comparison = evicp.compare(logits, labels, ["ecp", "lac", "aps"], 0.9, trials=3)
    size = {name: comparison.median(name, "mean_size") for name in comparison.evaluations}
    assert size["lac"] < size["ecp"] < 1.1 * size["lac"] < size["aps"] / 3
    assert comparison.median("ecp", "sscv") < comparison.median("lac", "sscv")
