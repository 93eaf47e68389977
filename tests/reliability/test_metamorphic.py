"""What must not change when the same question is asked differently; and what follows from what.

Each relation is a function that asserts; a property test runs it on drawn problems, and a negative control runs it
on a deliberately wrong score that it must catch.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import evicp
from evicp import APS, ECP, LAC, RAPS, SAPS, Calibration, Calibrator, Margin, Score, TopK, kernels
from evicp.input import validate

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.filterwarnings("ignore::evicp.errors.SmallCalibrationWarning"),
    pytest.mark.filterwarnings("ignore::evicp.errors.SuspiciousInputWarning"),
]

SCORES = [
    ECP(),
    ECP(stabilizer=0, temperature=0.7),
    ECP(evidence="softplus", stabilizer="scaled"),
    ECP(evidence="exp"),
    LAC(),
    LAC(temperature=3.0),
    APS(),
    APS(randomized=False),
    RAPS(),
    RAPS(lam=0.5, k_reg=1, randomize_penalty=True),
    SAPS(),
    TopK(),
    TopK(randomized=True, seed=5),
    Margin(),
]


@dataclass(frozen=True)
class Problem:
    """Calibration rows, their labels, new rows, a score and a coverage."""

    calibration: np.ndarray
    labels: np.ndarray
    new: np.ndarray
    score: Score
    coverage: float | Fraction

    @property
    def n_classes(self) -> int:
        return self.new.shape[1]

    def some_labels(self) -> list[int]:
        """All labels where they are few, a dozen across the range where they are many."""
        return np.unique(np.linspace(0, self.n_classes - 1, 12).astype(int)).tolist()

    def calibrated(self) -> Calibration:
        return evicp.calibrate(self.calibration, self.labels, self.score)


TIES = st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 0.5, 1.0, 1.0, 3.0])
NUMBERS = st.one_of(TIES, st.floats(-30, 30, width=16))


@st.composite
def logits(draw: st.DrawFn, rows: st.SearchStrategy[int], n_classes: int, dtype: type) -> np.ndarray:
    elements = draw(st.sampled_from([TIES, NUMBERS]))
    z = draw(hnp.arrays(np.float64, (draw(rows), n_classes), elements=elements))
    z[:, -1] = np.where((z == -np.inf).all(1), 1.0, z[:, -1])
    return z.astype(dtype)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    n_classes = draw(st.integers(2, 8))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    calibration = draw(logits(st.integers(1, 20), n_classes, dtype))
    new = draw(logits(st.integers(1, 10), n_classes, dtype))
    labels = draw(hnp.arrays(np.int64, len(calibration), elements=st.integers(0, n_classes - 1)))
    numerator = draw(st.integers(1, 99))
    coverage = draw(st.sampled_from([numerator / 100, Fraction(numerator, 100)]))
    return Problem(calibration, labels, new, draw(st.sampled_from(SCORES)), coverage)


def fixed_problem(score, dtype=np.float64) -> Problem:
    """One problem with many ties, for the controls."""
    rng = np.random.default_rng(0)
    calibration, new = rng.integers(-1, 4, (40, 5)).astype(dtype), rng.integers(-1, 4, (30, 5)).astype(dtype)
    return Problem(calibration, rng.integers(0, 5, 40), new, evicp.method.scores.as_score(score), 0.7)


# ---------------------------------------------------------------------------------------------------------------
# Relations


def slack(problem: Problem, threshold: float) -> float:
    """How far from the threshold a reordered sum can carry a score: 4 units in the last place of a row's terms."""
    precision = np.float64 if problem.new.dtype == np.float64 else np.float32
    if 1e300 < abs(threshold) < np.inf:  # the score of a label that is certain: no sum is in it
        return 0.0
    return float(4 * np.spacing(precision(max(16.0, abs(threshold)))))


def check_class_order(problem: Problem, order: np.ndarray) -> None:
    """Renumbering the classes renumbers the sets, and nothing else."""
    inverse = np.argsort(order)
    plain = problem.calibrated()
    other = evicp.calibrate(problem.calibration[:, order], inverse[problem.labels], problem.score)
    close = slack(problem, 0.0)
    assert np.array_equal(np.isinf(plain.scores), np.isinf(other.scores))
    finite = np.isfinite(plain.scores)
    tolerance = np.maximum(close, close * np.abs(plain.scores[finite]) / 16)
    assert np.all(np.abs(plain.scores[finite] - other.scores[finite]) <= tolerance)

    threshold = plain.threshold(problem.coverage)
    dense = problem.score.scores(problem.new)
    decided = np.isinf(threshold) | (
        np.abs(np.where(np.isinf(dense), 1e9, dense) - threshold) > slack(problem, threshold)
    )
    before = plain.predict(problem.new, problem.coverage).mask()
    after = other.predict(problem.new[:, order], problem.coverage).mask()[:, inverse]
    assert np.array_equal(before[decided], after[decided])
    for label in problem.some_labels():
        every = np.full(len(problem.new), label)
        ranks = kernels.label_ranks(problem.new, every)
        assert np.array_equal(ranks, kernels.label_ranks(problem.new[:, order], inverse[every]))


def check_row_order(problem: Problem, rng: np.random.Generator) -> None:
    """The order of rows means nothing, exactly."""
    rows, new_rows = rng.permutation(len(problem.labels)), rng.permutation(len(problem.new))
    plain = problem.calibrated()
    other = evicp.calibrate(problem.calibration[rows], problem.labels[rows], problem.score)
    assert plain == other
    sets = plain.predict(problem.new, problem.coverage)
    assert other.predict(problem.new[new_rows], problem.coverage) == sets[new_rows]


@contextmanager
def rows_per_block(rows: int, n_classes: int) -> Iterator[None]:
    before, validate.BLOCK_LOGITS = validate.BLOCK_LOGITS, rows * n_classes
    try:
        yield
    finally:
        validate.BLOCK_LOGITS = before


def check_chunks(problem: Problem, rows: int) -> None:
    """Rows in chunks, by the caller or inside, give the same bits as rows at once."""
    plain = problem.calibrated()
    sets = plain.predict(problem.new, problem.coverage)
    chunked = Calibrator(problem.score)
    for start in range(0, len(problem.labels), rows):
        chunked.update(problem.calibration[start : start + rows], problem.labels[start : start + rows])
    assert chunked.finish() == plain
    for start in range(0, len(problem.new), rows):
        assert plain.predict(problem.new[start : start + rows], problem.coverage) == sets[start : start + rows]
    with rows_per_block(rows, problem.n_classes):
        assert problem.calibrated() == plain
        assert plain.predict(problem.new, problem.coverage) == sets


def layouts(array: np.ndarray, folder: Path) -> dict[str, np.ndarray]:
    """The same values, differently in memory."""
    wide = np.zeros((2 * array.shape[0], 3 * array.shape[1]), array.dtype)
    wide[::2, ::3] = array
    file = folder / f"{secrets.token_hex(4)}.npy"
    np.save(file, array)
    read_only = array.copy()
    read_only.flags.writeable = False
    return {
        "C": np.ascontiguousarray(array),
        "Fortran": np.asfortranarray(array),
        "strided": wide[::2, ::3],
        "reversed": np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1],
        "read-only": read_only,
        "memory map": np.load(file, mmap_mode="r"),
        "other byte order": array.astype(array.dtype.newbyteorder(">")),
    }


def check_layouts(problem: Problem, folder: Path) -> None:
    """Memory layout means nothing, exactly, and no input is ever written to."""
    plain = problem.calibrated()
    sets = plain.predict(problem.new, problem.coverage)
    dense = problem.score.scores(problem.new)
    calibrations, news = layouts(problem.calibration, folder), layouts(problem.new, folder)
    for name, new in news.items():
        before = new.tobytes(), problem.labels.tobytes()
        assert evicp.calibrate(calibrations[name], problem.labels, problem.score) == plain, name
        assert plain.predict(new, problem.coverage) == sets, name
        assert problem.score.scores(new).tobytes() == dense.tobytes(), name
        plain.p_values(new)
        evicp.evaluate(sets, np.zeros(len(new), int), new)
        assert (new.tobytes(), problem.labels.tobytes()) == before, name


def check_membership(problem: Problem) -> None:
    """`label in set`, `score <= threshold` and the score of one label asked for alone agree, exactly."""
    calibration = problem.calibrated()
    threshold = calibration.threshold(problem.coverage)
    dense = problem.score.scores(problem.new)
    sets = calibration.predict(problem.new, problem.coverage)
    assert np.array_equal(sets.mask(), dense <= threshold)
    for label in problem.some_labels():
        every = np.full(len(problem.new), label)
        alone = kernels.label_scores(problem.score, problem.new, every)
        assert alone.tobytes() == np.ascontiguousarray(dense[:, label]).tobytes()
        assert np.array_equal(sets.contains(every), alone <= threshold)
    for row, labels in enumerate(sets):
        key = [(dense[row, k], -float(problem.new[row, k]), k) for k in labels.tolist()]
        assert key == sorted(key)


def check_own_threshold(problem: Problem) -> None:
    """A calibration row's own score as threshold covers that row: two roads to one score may not differ by a bit."""
    scores = kernels.label_scores(problem.score, problem.calibration, problem.labels)
    for i, s in enumerate(scores):
        single = Calibration(problem.score, np.array([s]), problem.n_classes)
        assert single.predict(problem.calibration[i], Fraction(1, 2)).contains(problem.labels[i : i + 1])[0]


def check_nesting(problem: Problem, other: Fraction) -> None:
    """A higher coverage gives a superset that begins with the smaller set."""
    calibration = problem.calibrated()
    low, high = sorted([validate.as_coverage(problem.coverage), other])
    small, large = calibration.predict(problem.new, [low, high])
    for a, b in zip(small, large, strict=True):
        assert b[: len(a)].tolist() == a.tolist()


def check_p_values(problem: Problem) -> None:
    """p <= 1 - coverage, exactly, if and only if the label is left out."""
    calibration = problem.calibrated()
    p = calibration.p_values(problem.new)
    whole = np.rint(p * (calibration.n + 1)).astype(int)
    assert np.array_equal(whole / (calibration.n + 1), p)
    delta = 1 - validate.as_coverage(problem.coverage)
    mask = calibration.predict(problem.new, problem.coverage).mask()
    for row in range(len(p)):
        for label in range(problem.n_classes):
            excluded = Fraction(int(whole[row, label]), calibration.n + 1) <= delta
            assert excluded != mask[row, label]
        column = row % problem.n_classes
        assert calibration.p_values(problem.new[row], [column])[0] == p[row, column]


# ---------------------------------------------------------------------------------------------------------------
# The relations hold


def test_the_long_run_is_long(long_run, figure):
    figure("examples of each relation on two backends", 2 * settings().max_examples)
    assert settings().max_examples == (5_000 if long_run else 80)


@given(problem=problems(), data=st.data())
def test_class_order_means_nothing(cpu_backend, problem, data):
    check_class_order(problem, np.array(data.draw(st.permutations(range(problem.n_classes)))))


@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_row_order_means_nothing(cpu_backend, problem, seed):
    check_row_order(problem, np.random.default_rng(seed))


@given(problem=problems(), rows=st.sampled_from([1, 7, 1024]))
def test_chunks_mean_nothing(cpu_backend, problem, rows):
    check_chunks(problem, rows)


@given(problem=problems())
def test_memory_layout_means_nothing(cpu_backend, problem):
    with tempfile.TemporaryDirectory() as folder:
        check_layouts(problem, Path(folder))


@given(problem=problems())
def test_membership_is_score_at_most_threshold(cpu_backend, problem):
    check_membership(problem)


@given(problem=problems())
def test_a_rows_own_score_covers_it(cpu_backend, problem):
    check_own_threshold(problem)


@given(problem=problems(), other=st.fractions(Fraction(1, 100), Fraction(99, 100)))
def test_higher_coverage_nests(cpu_backend, problem, other):
    check_nesting(problem, other)


@given(problem=problems())
def test_p_values_decide_membership_exactly(cpu_backend, problem):
    check_p_values(problem)


@given(problem=problems())
def test_filling_empty_sets_adds_one_top_label_and_nothing_else(cpu_backend, problem):
    calibration = problem.calibrated()
    plain = calibration.predict(problem.new, problem.coverage)
    filled = calibration.predict(problem.new, problem.coverage, allow_empty=False)
    dense = problem.score.scores(problem.new)
    for row, (a, b) in enumerate(zip(plain, filled, strict=True)):
        if len(a):
            assert a.tolist() == b.tolist()
        else:
            best = min((dense[row, k], -float(problem.new[row, k]), k) for k in range(problem.n_classes))
            assert b.tolist() == [best[2]]


# ---------------------------------------------------------------------------------------------------------------
# Realistic sizes, where blocks and vectorised loops have remainders


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.describe())
@pytest.mark.parametrize("n_classes", [33, 1000])
def test_relations_hold_at_realistic_sizes(cpu_backend, score, n_classes, tmp_path):
    rng = np.random.default_rng(n_classes)
    n = 60 if n_classes == 33 else 20
    labels = rng.integers(0, n_classes, n)
    z = (rng.normal(size=(n, n_classes)) * 2 + 6 * np.eye(n_classes)[labels]).astype(np.float32)
    new = (rng.normal(size=(n, n_classes)) * 2).astype(np.float32)
    problem = Problem(z, labels, new, score, 0.8)
    check_class_order(problem, rng.permutation(n_classes))
    check_row_order(problem, rng)
    for rows in (1, 7, n):
        check_chunks(problem, rows)
    check_layouts(problem, tmp_path)
    check_own_threshold(problem)
    check_nesting(problem, Fraction(93, 100))
    check_membership(problem)
    if n_classes == 33:
        check_p_values(problem)


# ---------------------------------------------------------------------------------------------------------------
# Negative controls


def ranked_by_position(z):
    """Wrong: equal labels get different ranks, the lower class number first."""
    return np.argsort(np.argsort(-z, axis=1, kind="stable"), axis=1).astype(float)


def randomised_by_call(z):
    """Wrong: the random numbers restart with every call and follow the row's place in it."""
    return -z + np.random.default_rng(0).random((len(z), 1))


def normalised_by_batch(z):
    """Wrong: a row's score depends on the rows beside it."""
    return -z / np.abs(z).max()


def test_control_ranks_by_position_are_caught():
    with pytest.raises(AssertionError):
        check_class_order(fixed_problem(ranked_by_position), np.arange(5)[::-1])
    check_class_order(fixed_problem(TopK()), np.arange(5)[::-1])


@pytest.mark.parametrize("wrong", [randomised_by_call, normalised_by_batch])
def test_control_scores_that_look_beyond_their_row_are_caught(wrong):
    with pytest.raises(AssertionError):
        check_chunks(fixed_problem(wrong), 1)


def test_control_randomisation_by_call_is_caught_by_row_order():
    with pytest.raises(AssertionError):
        check_row_order(fixed_problem(randomised_by_call), np.random.default_rng(1))


def test_control_a_threshold_one_bit_too_low_is_caught(monkeypatch):
    from evicp.calibration.laws.marginal import Marginal

    exact = Marginal.limit
    monkeypatch.setattr(Marginal, "limit", lambda *given: float(np.nextafter(exact(*given), -np.inf)))
    with pytest.raises(AssertionError):
        check_own_threshold(fixed_problem(ECP(stabilizer=1e-8)))
    with pytest.raises(AssertionError):
        check_p_values(fixed_problem(ECP(stabilizer=1e-8)))


def test_control_p_values_compared_in_doubles_are_caught():
    """(n + 1) delta whole: p equals delta as a fraction, and in doubles too often does not."""
    wrong = 0
    for n in range(1, 200):
        for i in range(1, 100):
            delta = Fraction(i, 100)
            if ((n + 1) * delta).denominator == 1:
                wrong += int((n + 1) * delta) / (n + 1) > 1 - (100 - i) / 100
    assert wrong > 0


def test_control_a_score_that_writes_to_its_input_is_refused(tmp_path):
    @dataclass(frozen=True)
    class Writing(Score):
        name = "writing"

        def formula(self, z):
            z += 1
            return -z

    with pytest.raises(ValueError, match="read-only"):
        check_layouts(fixed_problem(Writing()), tmp_path)
