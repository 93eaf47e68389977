"""Every figure of an evaluation against a plain rendering of its definition, row by row, in exact fractions."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import evicp
from evicp import PredictionSets
from evicp.errors import InputError, InputTypeError
from evicp.evaluation import metrics
from evicp.evaluation.strata import SSCV_ENDS


def sets_of(
    rows: list[list[int]], n_classes: int, coverage: Fraction = Fraction(9, 10), **about: Any
) -> PredictionSets:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    labels = np.array([label for row in rows for label in row], np.int32)
    return PredictionSets(offsets, labels, n_classes=n_classes, coverage=coverage, **about)


# ---------------------------------------------------------------------------------------------------------------
# The definitions, written out


def ranges(start: int, n_classes: int, table: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of the paper's table that exist among K classes; the last one ends at K."""
    kept = [(max(low, start), min(high, n_classes)) for low, high in table if max(low, start) <= n_classes]
    kept[-1] = (kept[-1][0], n_classes)
    return kept


TABLE_3 = [(0, 1), (2, 3), (4, 6), (7, 10), (11, 100), (101, 1000)]
SSCV_RANGES = [(0, 1), (2, 3), (4, 10), (11, 100), (101, 1000)]
TABLE_4 = [(1, 1), (2, 3), (4, 6), (7, 10), (11, 100), (101, 1000)]


def by_range(values: list[int], rows: list[list[int]], truth: list[int], table: list[tuple[int, int]]) -> list[tuple]:
    """(low, high, count, coverage, mean size) of each range."""
    result = []
    for low, high in table:
        inside = [i for i, value in enumerate(values) if low <= value <= high]
        if inside:
            covered = Fraction(sum(truth[i] in rows[i] for i in inside), len(inside))
            size = Fraction(sum(len(rows[i]) for i in inside), len(inside))
            result.append((low, high, len(inside), covered, size))
        else:
            result.append((low, high, 0, None, None))
    return result


def reference_sscv(rows: list[list[int]], truth: list[int], k: int, target: Fraction, min_count: int) -> Any:
    sizes = [len(row) for row in rows]
    strata = by_range(sizes, rows, truth, ranges(0, k, SSCV_RANGES))
    used = [(abs(cov - target), count) for _, _, count, cov, _ in strata if count >= min_count]
    return (max(gap for gap, _ in used), min(count for _, count in used)) if used else (None, None)


@st.composite
def evaluated(draw: st.DrawFn) -> tuple[int, list[list[int]], list[int], list[int], Fraction]:
    """K, sets, true labels, difficulties, target. Sizes cluster at the ends of the ranges."""
    k = draw(st.sampled_from([2, 3, 5, 7, 10, 11, 50, 101, 300]))
    n = draw(st.integers(1, 12))
    rows = []
    for _ in range(n):
        size = min(draw(st.sampled_from([0, 1, 2, 3, 4, 6, 7, 10, 11, 100, 101, k])), k)
        start = draw(st.integers(0, k - 1))
        rows.append([(start + i) % k for i in range(size)])
    labels = st.lists(st.integers(0, k - 1), min_size=n, max_size=n)
    difficulty = st.lists(st.integers(1, k), min_size=n, max_size=n)
    target = draw(st.sampled_from([Fraction(9, 10), Fraction(1, 2), Fraction(99, 100), Fraction(1, 3)]))
    return k, rows, draw(labels), draw(difficulty), target


def assert_strata(actual: Any, expected: list[tuple], confidence: float) -> None:
    assert [(s.low, s.high, s.count) for s in actual] == [row[:3] for row in expected]
    for stratum, (_, _, count, covered, size) in zip(actual, expected, strict=True):
        if not count:
            assert stratum.coverage is stratum.coverage_interval is stratum.mean_size is None
            continue
        assert stratum.coverage == float(covered)
        assert stratum.mean_size == float(size)
        assert stratum.coverage_interval == pytest.approx(interval_by_scipy(int(covered * count), count, confidence))


def interval_by_scipy(hits: int, n: int, confidence: float) -> tuple[float, float]:
    interval = scipy.stats.binomtest(hits, n).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


@given(evaluated(), st.integers(1, 3), st.sampled_from([0.9, 0.95, 0.99]))
def test_every_figure_against_its_definition(case: Any, min_count: int, confidence: float) -> None:
    k, rows, truth, difficulty, target = case
    sets, n, sizes = sets_of(rows, k, target), len(rows), [len(row) for row in rows]
    result = evicp.evaluate(sets, truth, difficulty=difficulty, min_count=min_count, confidence=confidence)
    hits = sum(label in row for label, row in zip(truth, rows, strict=True))

    assert (result.n, result.n_classes, result.target, result.confidence) == (n, k, target, confidence)
    assert result.coverage == hits / n
    assert result.coverage_interval == pytest.approx(interval_by_scipy(hits, n, confidence))
    assert result.mean_size == pytest.approx(sum(sizes) / n, rel=1e-15)
    assert result.empty_share == sizes.count(0) / n
    assert result.singleton_share == sizes.count(1) / n
    single = [label in row for label, row in zip(truth, rows, strict=True) if len(row) == 1]
    assert result.singleton_coverage == (sum(single) / len(single) if single else None)
    middle = sorted(sizes)
    assert result.median_size == (middle[(n - 1) // 2] + middle[n // 2]) / 2
    for name, share in {"5%": (1, 20), "25%": (1, 4), "75%": (3, 4), "95%": (19, 20)}.items():
        assert result.size_quantiles[name] == middle[ceil(Fraction(*share) * n) - 1]

    assert_strata(result.size_strata, by_range(sizes, rows, truth, ranges(0, k, TABLE_3)), confidence)
    assert_strata(result.difficulty_strata, by_range(difficulty, rows, truth, ranges(1, k, TABLE_4)), confidence)
    assert result.accuracy == difficulty.count(1) / n

    violation, smallest = reference_sscv(rows, truth, k, target, min_count)
    assert result.sscv == (None if violation is None else pytest.approx(float(violation), abs=1e-15))
    assert result.sscv_smallest_count == smallest
    non_empty = [size for size in sizes if size]
    if non_empty:
        assert result.mean_size_non_empty == pytest.approx(sum(non_empty) / len(non_empty), rel=1e-15)
    else:
        assert result.mean_size_non_empty is None
    if non_empty and violation is not None:
        assert result.sat == pytest.approx(float((1 - violation) / Fraction(sum(non_empty), len(non_empty))))
    else:
        assert result.sat is None

    classes = result.class_coverage
    for label in range(k):
        of_class = [i for i in range(n) if truth[i] == label]
        assert classes.counts[label] == len(of_class)
        if of_class:
            assert classes.coverage[label] == sum(truth[i] in rows[i] for i in of_class) / len(of_class)
            assert classes.mean_size[label] == sum(sizes[i] for i in of_class) / len(of_class)
        else:
            assert np.isnan(classes.coverage[label])
            assert np.isnan(classes.mean_size[label])
    present = [label for label in range(k) if label in truth]
    gaps = [abs(classes.coverage[label] - float(target)) for label in present]
    assert classes.mean_gap == pytest.approx(sum(gaps) / len(gaps))
    assert classes.worst == min(classes.coverage[label] for label in present)
    assert classes.coverage[classes.worst_class] == classes.worst


@given(evaluated(), st.integers(1, 3))
def test_each_figure_is_also_a_function(case: Any, min_count: int) -> None:
    k, rows, truth, difficulty, target = case
    sets = sets_of(rows, k, target)
    result = evicp.evaluate(sets, truth, difficulty=difficulty, min_count=min_count)
    assert metrics.coverage(sets, truth) == result.coverage
    assert metrics.mean_size(sets) == result.mean_size
    assert metrics.mean_size(sets, non_empty=True) == result.mean_size_non_empty
    assert metrics.size_quantiles(sets) == result.size_quantiles
    assert metrics.size_quantiles(sets, [0.5]).keys() == {"50%"}
    assert metrics.size_share(sets, 0) == result.empty_share
    assert metrics.size_share(sets, 1) == result.singleton_share
    assert metrics.size_strata(sets, truth) == result.size_strata
    assert metrics.difficulty_strata(sets, truth, difficulty) == result.difficulty_strata
    assert metrics.sscv(sets, truth, min_count=min_count) == result.sscv
    assert metrics.sat(sets, truth, min_count=min_count) == result.sat
    np.testing.assert_array_equal(metrics.class_coverage(sets, truth).coverage, result.class_coverage.coverage)


# ---------------------------------------------------------------------------------------------------------------
# Strata


LABELS_OF_STRATA = {
    2: (["0-1", "2"], ["0-1", "2"], ["1", "2"]),
    3: (["0-1", "2-3"], ["0-1", "2-3"], ["1", "2-3"]),
    5: (["0-1", "2-3", "4-5"], ["0-1", "2-3", "4-5"], ["1", "2-3", "4-5"]),
    10: (["0-1", "2-3", "4-6", "7-10"], ["0-1", "2-3", "4-10"], ["1", "2-3", "4-6", "7-10"]),
    11: (["0-1", "2-3", "4-6", "7-10", "11"], ["0-1", "2-3", "4-10", "11"], ["1", "2-3", "4-6", "7-10", "11"]),
    50: (["0-1", "2-3", "4-6", "7-10", "11-50"], ["0-1", "2-3", "4-10", "11-50"], ["1", "2-3", "4-6", "7-10", "11-50"]),
    1000: (
        ["0-1", "2-3", "4-6", "7-10", "11-100", "101-1000"],
        ["0-1", "2-3", "4-10", "11-100", "101-1000"],
        ["1", "2-3", "4-6", "7-10", "11-100", "101-1000"],
    ),
    50_000: (
        ["0-1", "2-3", "4-6", "7-10", "11-100", "101-50000"],
        ["0-1", "2-3", "4-10", "11-100", "101-50000"],
        ["1", "2-3", "4-6", "7-10", "11-100", "101-50000"],
    ),
}


@pytest.mark.parametrize("k", LABELS_OF_STRATA)
def test_strata_adapt_to_the_number_of_classes(k: int) -> None:
    """Every size from 0 to K falls into exactly one stratum, at both ends of each."""
    by_size, for_sscv, by_difficulty = LABELS_OF_STRATA[k]
    edges = sorted({0, 1, 2, 3, 4, 6, 7, 10, 11, 100, 101, k} & set(range(k + 1)))
    rows = [list(range(size)) for size in edges]
    sets = sets_of(rows, k)
    truth = [0] * len(rows)
    difficulty = [max(size, 1) for size in edges]
    strata = metrics.size_strata(sets, truth)
    assert [s.label for s in strata] == by_size
    assert sum(s.count for s in strata) == len(rows)
    assert [s.count for s in strata] == [sum(s.low <= size <= s.high for size in edges) for s in strata]
    assert [s.label for s in metrics.size_strata(sets, truth, SSCV_ENDS)] == for_sscv
    strata = metrics.difficulty_strata(sets, truth, difficulty)
    assert [s.label for s in strata] == by_difficulty
    assert [s.count for s in strata] == [sum(s.low <= d <= s.high for d in difficulty) for s in strata]


def test_one_stray_row_makes_sscv_and_min_count_takes_it_out() -> None:
    rows = [[0]] * 99 + [[1, 2]]
    sets = sets_of(rows, 10)
    truth = [0] * 89 + [3] * 11  # 89 of 99 singletons covered, the one pair is not
    result = evicp.evaluate(sets, truth)
    assert result.sscv == pytest.approx(0.9)
    assert result.sscv_smallest_count == result.sscv_count == 1
    assert "0.900 at sizes 2-3, 1 row (" in str(result)
    steadier = evicp.evaluate(sets, truth, min_count=2)
    assert steadier.sscv == pytest.approx(0.9 - 89 / 99)
    assert steadier.sscv_smallest_count == 99
    nothing = evicp.evaluate(sets, truth, min_count=100)
    assert nothing.sscv is nothing.sscv_count is nothing.sscv_smallest_count is nothing.sat is None


def test_all_sets_empty() -> None:
    result = evicp.evaluate(sets_of([[], [], []], 4), [0, 1, 2])
    assert (result.coverage, result.mean_size, result.sscv, result.empty_share) == (0.0, 0.0, 0.9, 1.0)
    assert result.sat is result.mean_size_non_empty is None
    assert result.coverage_interval[0] == 0.0
    json.dumps(result.to_dict(), allow_nan=False)
    assert "SAT               -" in repr(result)


def test_sat_leaves_empty_sets_out_of_the_size_but_not_of_sscv() -> None:
    rows = [[]] * 5 + [[0, 1]] * 5
    result = evicp.evaluate(sets_of(rows, 4, Fraction(1, 2)), [0] * 10)
    assert result.sscv == 0.5
    assert result.mean_size == 1.0
    assert result.sat == (1 - 0.5) / 2.0


def test_absent_classes_are_no_news() -> None:
    result = evicp.evaluate(sets_of([[3], [3], [1]], 5), [3, 0, 1])
    classes = result.class_coverage
    np.testing.assert_array_equal(classes.coverage, [0.0, 1.0, np.nan, 1.0, np.nan])
    assert classes.counts.tolist() == [1, 1, 0, 1, 0]
    assert (classes.worst_class, classes.worst) == (0, 0.0)
    assert classes.mean_gap == pytest.approx((0.9 + 0.1 + 0.1) / 3)
    assert result.to_dict()["class_coverage"]["coverage"] == [0.0, 1.0, None, 1.0, None]
    assert result.to_dict()["class_coverage"]["mean_size"] == [1.0, 1.0, None, 1.0, None]


# ---------------------------------------------------------------------------------------------------------------
# Intervals


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 2, 10, 137, 50_000])
def test_clopper_pearson_against_scipy(n: int, confidence: float) -> None:
    for hits in sorted({0, 1, n // 2, n - 1, n}):
        assert metrics.clopper_pearson(hits, n, confidence) == pytest.approx(
            interval_by_scipy(hits, n, confidence), abs=1e-12
        )


@pytest.mark.parametrize("p", [0.02, 0.5, 0.9])
def test_clopper_pearson_covers_what_it_says(p: float) -> None:
    """Summed over the binomial law, the interval holds p at least as often as its confidence."""
    n = 60
    inside = [low <= p <= high for low, high in (metrics.clopper_pearson(h, n, 0.9) for h in range(n + 1))]
    assert scipy.stats.binom.pmf(np.arange(n + 1), n, p)[inside].sum() >= 0.9


# ---------------------------------------------------------------------------------------------------------------
# Difficulty


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_difficulty_counts_the_labels_strictly_above(dtype: Any, cpu_backend: str) -> None:
    rng = np.random.default_rng(0)
    logits = np.round(rng.normal(size=(300, 7)) * 2).astype(dtype)  # ties everywhere
    logits[:, 3] = -np.inf
    labels = rng.integers(0, 7, 300)
    expected = [1 + sum(z > row[label] for z in row) for row, label in zip(logits, labels, strict=True)]
    assert metrics.difficulty(logits, labels).tolist() == expected
    sets = evicp.Base().predict(logits, 0.9)
    with_logits = evicp.evaluate(sets, labels, logits)
    assert with_logits.difficulty_strata == evicp.evaluate(sets, labels, difficulty=expected).difficulty_strata
    assert with_logits.accuracy == metrics.accuracy(logits, labels) == expected.count(1) / 300
    without = evicp.evaluate(sets, labels)
    assert without.accuracy is without.difficulty_strata is None


def test_one_row_of_logits_for_one_set() -> None:
    sets = evicp.Base().predict([3.0, 1.0, 0.0], 0.9)
    assert evicp.evaluate(sets, [1], [3.0, 1.0, 0.0]).difficulty_strata[1].count == 1


# ---------------------------------------------------------------------------------------------------------------
# Real sets


def test_the_figures_of_a_reference_split(shared_data: Path) -> None:
    """Coverage, size, SSCV and SAT on real logits equal those of an independent program."""
    with np.load(shared_data / "imagenet_val5k_efficientnet_lite0.npz") as data:
        logits, labels = data["logits"].astype(np.float64), data["labels"]
    order = np.random.default_rng(0).permutation(5000)
    calibrated, tested = order[:1500], order[1500:]
    entries = [
        entry
        for entry in json.loads((shared_data / "reference_splits.json").read_text())
        if (entry["network"], entry["split"], entry["coverage"]) == ("lite0", 0, 0.9)
    ]
    scores = {"ecp": evicp.ECP(), "ecp stabilizer=0": evicp.ECP(stabilizer=0), "lac T=1": evicp.LAC()}
    assert {entry["score"] for entry in entries} == set(scores)
    for entry in entries:
        calibration = evicp.calibrate(logits[calibrated], labels[calibrated], scores[entry["score"]])
        result = evicp.evaluate(calibration.predict(logits[tested], entry["coverage"]), labels[tested])
        assert result.coverage == pytest.approx(entry["observed_coverage"], abs=1e-9)
        for name in ("mean_size", "sscv", "sat"):
            assert getattr(result, name) == pytest.approx(entry[name], abs=1e-9), (entry["score"], name)


# ---------------------------------------------------------------------------------------------------------------
# How an evaluation shows itself


@pytest.fixture
def evaluation() -> evicp.Evaluation:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 12, 300)
    logits = rng.normal(size=(300, 12)) + 2 * np.eye(12)[labels]
    calibration = evicp.calibrate(logits[:150], labels[:150])
    return evicp.evaluate(calibration.predict(logits[150:], 0.9), labels[150:], logits[150:])


def walk(value: Any) -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            assert type(key) is str
            yield from walk(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from walk(inner)
    else:
        yield value


def test_to_dict_is_plain_json(evaluation: evicp.Evaluation) -> None:
    content = evaluation.to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == json.loads(json.dumps(content))
    assert {type(leaf) for leaf in walk(content)} <= {int, float, str, type(None), bool}
    assert content["target"] == 0.9
    assert content["size_strata"][0]["range"] == "0-1"
    assert sum(stratum["count"] for stratum in content["difficulty_strata"]) == 150
    assert content["n_calibration"] == 150
    figures = {
        name
        for name, value in vars(evicp.Evaluation).items()
        if isinstance(value, property | cached_property) and not name.startswith("_")
    }
    other_names = {"observed_coverage", "target_coverage", "law_is_bound", "verdict"}
    kept = {*evaluation.__dataclass_fields__} - {"tally", "min_count", "class_names", "judged"}
    assert set(content) == {*(figures - other_names), *kept, "promise"}


def test_it_prints_as_tables(evaluation: evicp.Evaluation) -> None:
    text = repr(evaluation)
    assert f"{evaluation.coverage:.4f}, target 0.9\n" in text
    low, high = evaluation.coverage_interval
    assert f"95 % interval     [{low:.4f}, {high:.4f}], a confidence interval from these rows\n" in text
    assert f" ({evaluation.singleton_coverage:.2%} of these right)" in text
    assert text.count("\n\n") == 3  # three tables and the verdict
    assert max(map(len, text.splitlines())) <= 100
    assert evaluation.to_markdown().count("\n| --- |") == 3
    *tables, verdict = evaluation.to_markdown().splitlines()
    assert verdict.startswith("observed ")
    for line in tables:
        assert not line or (line.startswith("| ") and line.endswith(" |"))
    assert evaluation._repr_html_().count("<table>") == evaluation._repr_html_().count("<caption") == 3
    assert ">By the number of labels in the set</caption>" in evaluation._repr_html_()


@pytest.mark.parametrize(
    ("min_count", "text"),
    [
        (1, "0.500 at sizes 0-1, 1 row (over 0-1, 4-10; smallest 1 row)"),
        (2, "0.250 at sizes 4-10, 4 rows (over 4-10; smallest 4 rows)"),
    ],
)
def test_sscv_names_its_worst_range_and_what_it_pools(min_count: int, text: str) -> None:
    """Sizes 5 and 8 are apart in the table of sizes; SSCV takes 3 of 4 for them, and 1 of 1 below."""
    sets = sets_of([[0], range(5), range(5), range(8), range(8)], 30, Fraction(1, 2))
    evaluation = evicp.evaluate(sets, [0, 1, 2, 20, 3], min_count=min_count)
    assert ["SSCV", text] in evaluation._summary()
    nothing = dataclasses.replace(evaluation, min_count=6)
    assert ["SSCV", "-"] in nothing._summary()


def test_the_worst_class_is_named() -> None:
    sets = sets_of([[0], [0, 1], [1]], 3, Fraction(3, 4))
    assert ["worst class", "0.000 (class 2, 1 row)"] in evicp.evaluate(sets, [0, 0, 2])._summary()
    named = dataclasses.replace(sets, class_names=("cat", "dog", "axolotl"))
    evaluation = evicp.evaluate(named, [0, 0, 2])
    assert ["worst class", "0.000 (2 axolotl, 1 row)"] in evaluation._summary()
    hostile = evicp.evaluate(dataclasses.replace(sets, class_names=("a", "b", "<b>")), [0, 0, 2], groups=list("xyz"))
    assert "0.000 (2 &lt;b&gt;, 1 row)</td>" in hostile._repr_html_()
    assert ">By group, lowest coverage first</caption>" in hostile._repr_html_()
    assert ["class gap", "0.500, the mean distance of classes from 0.75"] in evaluation._summary()
    assert evaluation.class_coverage.names == metrics.class_coverage(named, [0, 0, 2]).names == named.class_names


def test_equal_rows_in_any_order_give_equal_figures() -> None:
    rng = np.random.default_rng(2)
    rows = [list(rng.permutation(20)[: rng.integers(0, 12)]) for _ in range(200)]
    truth = rng.integers(0, 20, 200)
    order = rng.permutation(200)
    sets = sets_of(rows, 20)
    assert evicp.evaluate(sets, truth).to_dict() == evicp.evaluate(sets[order], truth[order]).to_dict()


def test_nothing_to_evaluate() -> None:
    with pytest.raises(InputError, match=r"^evaluation needs at least one row; got none\.$"):
        metrics.size_quantiles(sets_of([], 3))
    assert metrics.mean_size(sets_of([], 3)) is None


@pytest.mark.parametrize(("option", "value"), [("min_count", 0), ("confidence", 1.5)])
def test_an_evaluator_refuses_its_options_before_it_sees_a_row(option, value):
    with pytest.raises(InputError, match=f"^{option} must be"):
        metrics.Evaluator(**{option: value})


def test_figures_read_later_are_of_the_rows_counted_when_it_finished() -> None:
    """Figures are computed when they are read; batches that come in between must not change them."""
    sets = sets_of([[0], [0, 1], [1]], 3, Fraction(3, 4))
    evaluator = metrics.Evaluator().update(sets, [0, 1, 2], groups=list("aab"))
    early, at_once = evaluator.finish(), evicp.evaluate(sets, [0, 1, 2], groups=list("aab")).to_dict()
    evaluator.update(sets, [2, 2, 2], groups=list("aab"))
    assert early.to_dict() == at_once
    assert evaluator.finish().coverage == 1 / 3


def test_an_evaluator_is_not_merged_with_itself():
    sets = evicp.PredictionSets(np.array([0, 1]), np.array([0], np.int32), n_classes=2, coverage=Fraction(1, 2))
    one, two = (metrics.Evaluator().update(sets, [0]) for _ in range(2))
    with pytest.raises(InputError, match="an evaluator cannot be merged twice"):
        one.merge(one)
    with pytest.raises(InputError, match="an evaluator cannot be merged twice"):
        one.merge(two, two)
    assert one.merge(two).finish().n == 2
    for mine, other in ((one, two), (two, one)):
        with pytest.raises(InputError, match="an evaluator cannot be merged twice"):
            mine.merge(other)
    with pytest.raises(InputTypeError, match="only an Evaluator can be merged; got a Evaluation"):
        one.merge(one.finish())
    assert one.finish().n == 2


def test_evaluators_that_do_not_fit_change_nothing():
    sets = PredictionSets(np.array([0, 1, 3]), np.array([0, 1, 2], np.int32), n_classes=3, coverage=Fraction(1, 2))
    mine, fits = (metrics.Evaluator().update(sets, [0, 0]) for _ in range(2))
    other = metrics.Evaluator().update(replace(sets, coverage=Fraction(1, 3)), [0, 0])
    with pytest.raises(InputError, match="batches must come from one calibration"):
        mine.merge(fits, other)
    assert mine.finish().n == 2
    assert mine.merge(fits).finish().n == 4


@pytest.mark.parametrize("ends", [(3, 1), (1, 1, 3), (-1, 3), (1.5, 3)])
def test_ranges_of_sizes_that_are_none_are_refused(ends):
    sets = evicp.PredictionSets.from_mask(np.eye(5, dtype=bool), coverage=0.9)
    with pytest.raises((InputError, InputTypeError), match="ends must"):
        metrics.size_strata(sets, np.arange(5), ends)


def test_each_function_refuses_what_it_cannot_use():
    sets, truth = evicp.PredictionSets.from_mask(np.eye(5, dtype=bool), coverage=0.9), np.arange(5)
    for confidence in (0, 95):
        with pytest.raises(InputError, match="confidence must be strictly between"):
            metrics.size_strata(sets, truth, confidence=confidence)
        with pytest.raises(InputError, match="confidence must be strictly between"):
            metrics.difficulty_strata(sets, truth, truth + 1, confidence=confidence)
    for figure in (metrics.size_strata, metrics.sscv, metrics.sat, lambda s, y: metrics.difficulty_strata(s, y, y)):
        with pytest.raises(InputTypeError, match="sets must be PredictionSets"):
            figure([[1], [2]], [1, 2])
