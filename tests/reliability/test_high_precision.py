"""The evidential score against 100-digit arithmetic, on rows that break careless arithmetic."""

from __future__ import annotations

from functools import cache
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from evicp import ECP, SCORES, explain
from evicp.errors import SuspiciousInputWarning
from oracles import FAMILIES, adversarial_row, reference_mpmath_ecp

pytestmark = pytest.mark.reliability

EVIDENCE = ("relu", "softplus", "exp")
UNEVEN = (False, True)
TEMPERATURES = (1.0, 0.31, 1.7)
STABILIZERS = (1e-8, 0.0, "scaled")
NAMES = sorted({kind.name for kind in SCORES.values()})
PARAMETERS = tuple(product(EVIDENCE, UNEVEN, TEMPERATURES, STABILIZERS))

#: How many of the 54 parameter choices a family sees in a short run; the strides below are prime to 54, so that the
#: families together see all of them at each of the smaller K.
SHORT = {2: 18, 3: 18, 10: 18, 100: 9, 1000: 1}
LONG = {2: 54, 3: 54, 10: 54, 100: 54, 1000: 18}


def parameters_for(n_classes: int, family: str, long_run: bool) -> list[tuple]:
    start = FAMILIES.index(family) * 7
    count = (LONG if long_run else SHORT)[n_classes]
    return [PARAMETERS[(start + 11 * i) % len(PARAMETERS)] for i in range(count)]


def case(n_classes: int, family: str, parameters: tuple, dtype: type) -> tuple[np.ndarray, ECP]:
    """A row, representable in the dtype, and a score; always the same ones."""
    evidence, uneven, temperature, stabilizer = parameters
    rng = np.random.default_rng([n_classes, FAMILIES.index(family), PARAMETERS.index(parameters)])
    row = adversarial_row(family, n_classes, rng).astype(dtype)
    rates = tuple(rng.dirichlet(np.full(n_classes, 2.0))) if uneven else None
    return row, ECP(evidence, rates, temperature, stabilizer)


@cache
def reference(n_classes: int, family: str, parameters: tuple, dtype: type) -> tuple[np.ndarray, list[int]]:
    """Scores, rounded once to a double at the very end, and ranks: whole rows of long numbers would fill the memory."""
    row, score = case(n_classes, family, parameters, dtype)
    exact = reference_mpmath_ecp(
        row,
        evidence=score.evidence,
        base_rates=score.base_rates,
        temperature=score.temperature,
        stabilizer=score.epsilon(n_classes),
    )
    scores = np.array([float(x) for x in exact["log_score"]])
    return np.maximum(scores, -np.finfo(np.float64).max), exact["rank"]  # -inf is a threshold, not a score


def worst_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest abs(error) / max(1, abs(reference)); infinities must be where they belong, NaN nowhere."""
    assert not np.isnan(got).any()
    finite = ~np.isposinf(wanted)
    assert np.array_equal(~np.isposinf(got), finite)
    error = np.abs(got[finite] - wanted[finite]) / np.maximum(1.0, np.abs(wanted[finite]))
    return float(error.max())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n_classes", SHORT)
def test_float64_scores_are_within_1e_12(cpu_backend, n_classes, family, long_run, figure):
    worst = 0.0
    for parameters in parameters_for(n_classes, family, long_run):
        row, score = case(n_classes, family, parameters, np.float64)
        wanted, ranks = reference(n_classes, family, parameters, np.float64)
        error = worst_error(score.scores(row[None])[0], wanted)
        assert error <= 1e-12, f"{score} on {row[:5]}: {error}"
        assert explain(row, score).rank.tolist() == ranks
        worst = max(worst, error)
    figure("largest error in float64", worst)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "denormal"])  # those are zero in float32
@pytest.mark.parametrize("n_classes", SHORT)
def test_float32_scores_are_within_1e_5(cpu_backend, n_classes, family, long_run, figure):
    worst = 0.0
    for parameters in parameters_for(n_classes, family, long_run):
        row, score = case(n_classes, family, parameters, np.float32)
        wanted, _ = reference(n_classes, family, parameters, np.float32)
        error = worst_error(score.scores(row[None])[0], wanted)
        assert error <= 1e-5, f"{score} on {row[:5]}: {error}"
        worst = max(worst, error)
    figure("largest error in float32", worst)


def test_float32_denormals_are_read_as_they_are(cpu_backend):
    """2e-39 is no float32 normal; flushed to zero it would tie with 0 and share its rank."""
    row = np.array([[2e-39, 0.0, 1e-39, -1e-39]], np.float32)
    assert np.argsort(ECP().scores(row)[0], kind="stable").tolist() == [0, 2, 1, 3]
    assert len(set(ECP(stabilizer=0).scores(row)[0].tolist())) == 4


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_equals_the_upcast_input_bit_for_bit(cpu_backend, name, half):
    rng = np.random.default_rng(1)
    families = ["gaussian", "1e4", "constant", "ties", "masked", "minus zero", "one possible", "clustered"]
    for n_classes in (2, 3, 10, 129):
        rows = np.stack([adversarial_row(family, n_classes, rng) for family in families]).astype(half)
        score = SCORES[name]()
        assert score.scores(rows).tobytes() == score.scores(rows.astype(np.float32)).tobytes()


def test_half_precision_keeps_the_stabilizer(cpu_backend):
    """1e-8 is zero in float16: arithmetic in the input's own precision would lose it."""
    row = np.array([[12.0, 1.0, 0.5, -6.0]], np.float16)
    wanted = np.array([float(x) for x in reference_mpmath_ecp(row[0], stabilizer=1e-8)["log_score"]])
    without = np.array([float(x) for x in reference_mpmath_ecp(row[0], stabilizer=0.0)["log_score"]])
    assert worst_error(ECP(stabilizer=1e-8).scores(row)[0], wanted) <= 1e-5
    assert (
        worst_error(ECP(stabilizer=1e-8).scores(row)[0], without) > 0.1
    )  # the control: here the two can be told apart


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_score_is_ever_nan(cpu_backend, name, dtype):
    """Also at the ends of what a double holds, and at temperatures that overflow it."""
    rng = np.random.default_rng(2)
    with np.errstate(over="ignore"):
        rows = [adversarial_row(family, 7, rng).astype(dtype) for family in FAMILIES]
    largest = 1e300 if dtype is np.float64 else np.finfo(dtype).max
    smallest = np.finfo(dtype).min
    rows += [
        np.array([largest, smallest, 0, 1, -1, largest, smallest], dtype),
        np.array([smallest] * 7, dtype),
        np.array([largest] * 7, dtype),
        np.array([largest, -np.inf, -np.inf, smallest, -np.inf, 0, 0], dtype),
    ]
    for temperature in (1e-300, 1e-3, 1.0, 1e300):
        scores = SCORES[name](temperature=temperature).scores(np.stack(rows))
        assert not np.isnan(scores).any()
        assert np.array_equal(np.isposinf(scores), np.isneginf(np.stack(rows)))


@pytest.mark.parametrize("score", [ECP(e, None, 1.0, s) for e in EVIDENCE for s in STABILIZERS], ids=repr)
def test_scores_of_extreme_rows_are_numbers_a_threshold_can_use(cpu_backend, score):
    """A threshold of -inf or NaN would empty every set: scores of possible labels end at 0, the costliest one.

    Only a label that is certain, being the only possible one, scores lower: as low as a number can be.
    """
    rng = np.random.default_rng(3)
    rows = np.stack([adversarial_row(family, 50, rng) for family in FAMILIES])
    dense = score.scores(rows)
    possible = rows > -np.inf
    assert np.all(dense[possible] <= 0)
    assert np.all(dense[possible] > -np.inf)
    certain = possible.sum(1) == 1
    assert certain.any()
    assert np.array_equal(np.where(possible, dense, -np.inf).max(1), np.where(certain, -np.finfo(np.float64).max, 0.0))


def test_relu_on_rows_without_evidence_warns_once_and_still_scores(cpu_backend):
    from evicp import calibrate

    rows = -np.abs(np.random.default_rng(4).normal(size=(20, 4)))
    with pytest.warns(SuspiciousInputWarning, match="no positive logit") as caught:
        calibration = calibrate(rows, np.zeros(20, int))
    assert len(caught) == 1
    assert np.isfinite(calibration.scores).all()
