"""The fitted temperature against scipy's optimisers on a dense rendering of the likelihood."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import scipy.optimize
from scipy.special import log_softmax

from evicp import fit_temperature, kernels
from evicp.errors import InputTypeError, LabelsError, LogitsError, SuspiciousInputWarning
from evicp.method.temperature import TemperatureFit


def sample(n: int, n_classes: int, sharpness: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are `sharpness` times too sharp for labels drawn from their softmax."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(n, n_classes))
    labels = (z + rng.gumbel(size=z.shape)).argmax(1)
    return z * sharpness, labels


def nll(z: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """The mean negative log-likelihood, as one writes it down."""
    return float(-log_softmax(z.astype(np.float64) / temperature, axis=1)[np.arange(len(z)), labels].mean())


def slope(z: np.ndarray, labels: np.ndarray, log_temperature: float) -> float:
    """The derivative of the likelihood in beta = 1/T: mean logit minus the label's."""
    p = np.exp(log_softmax(z / np.exp(log_temperature), axis=1))
    expected = np.where(p > 0, p * np.where(np.isfinite(z), z, 0), 0).sum(1)
    return float((expected - z[np.arange(len(z)), labels]).mean())


def best_log_temperature(z: np.ndarray, labels: np.ndarray) -> float:
    """ln T where the derivative changes sign, to 1e-13."""
    z = z.astype(np.float64)
    return float(scipy.optimize.brentq(lambda t: slope(z, labels, t), -5, 5, xtol=1e-13))


def expected_calibration_error(z: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """ECE over 15 equal bins of the top probability, row by row."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, label in zip(z.astype(np.float64), labels, strict=True):
        p = np.exp(log_softmax(row / temperature))
        correct = int((row > row[label]).sum()) == 0
        top = float(p.max())
        which = next(b for b in range(15) if top <= (b + 1) / 15 or b == 14)
        bins.setdefault(which, []).append((top, correct))
    gaps = [abs(sum(c for _, c in b) - sum(p for p, _ in b)) for b in bins.values()]
    return sum(gaps) / len(z)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize(
    ("n", "n_classes", "sharpness"), [(500, 2, 1.0), (300, 10, 3.0), (300, 10, 0.2), (100, 50, 8.0), (7, 4, 1.0)]
)
def test_the_temperature_is_the_one_scipy_finds(cpu_backend, n, n_classes, sharpness, dtype):
    z, labels = sample(n, n_classes, sharpness)
    z = z.astype(dtype)
    fit = fit_temperature(z, labels)
    assert np.log(fit.temperature) == pytest.approx(best_log_temperature(z, labels), abs=1e-6)
    bounded = scipy.optimize.minimize_scalar(
        lambda t: nll(z, labels, np.exp(t)), bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}
    )
    assert fit.nll_after <= bounded.fun + 1e-7
    assert not fit.at_edge
    assert fit.n == n


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_figures_before_and_after(cpu_backend, sharpness):
    z, labels = sample(400, 8, sharpness)
    fit = fit_temperature(z, labels)
    assert fit.nll_before == pytest.approx(nll(z, labels, 1.0), abs=1e-12)
    assert fit.nll_after == pytest.approx(nll(z, labels, fit.temperature), abs=1e-12)
    assert fit.nll_after <= fit.nll_before
    assert fit.ece_before == pytest.approx(expected_calibration_error(z, labels, 1.0), abs=1e-12)
    assert fit.ece_after == pytest.approx(expected_calibration_error(z, labels, fit.temperature), abs=1e-12)
    assert f"T = {fit.temperature:.4f} from 400 rows" in str(fit)
    assert repr(fit) == str(fit)


def test_a_known_temperature_is_recovered(cpu_backend):
    z, labels = sample(20_000, 5, 3.0)
    assert fit_temperature(z, labels).temperature == pytest.approx(3.0, rel=0.05)


def test_the_fit_is_equivariant(cpu_backend):
    """Logits twice as sharp need twice the temperature; a shift of rows needs nothing."""
    z, labels = sample(300, 6, 1.5)
    t = fit_temperature(z, labels).temperature
    assert fit_temperature(2 * z, labels).temperature == pytest.approx(2 * t, rel=2e-6)
    shifted = z + np.random.default_rng(1).normal(size=(300, 1))
    assert fit_temperature(shifted, labels).temperature == pytest.approx(t, rel=2e-6)
    assert fit_temperature(z[:, ::-1], 5 - labels).temperature == pytest.approx(t, rel=2e-6)


def test_perfect_logits_end_at_the_cold_edge(cpu_backend):
    """Every label on top by far: the likelihood has no maximum, and the search says so."""
    labels = np.arange(40) % 4
    z = 10.0 * np.eye(4)[labels]
    with pytest.warns(SuspiciousInputWarning, match="edge of the search") as caught:
        fit = fit_temperature(z, labels)
    assert len(caught) == 1
    assert fit.at_edge
    assert np.log(fit.temperature) == pytest.approx(-5)


def test_useless_logits_end_at_the_hot_edge(cpu_backend):
    """Labels against the logits: the best softmax is the flattest."""
    labels = np.arange(40) % 4
    with pytest.warns(SuspiciousInputWarning, match="that the labels are right"):
        fit = fit_temperature(-np.eye(4)[labels], labels)
    assert fit.at_edge
    assert np.log(fit.temperature) == pytest.approx(5)


def test_temperatures_close_to_an_edge_are_no_edge(cpu_backend):
    z, labels = sample(400, 5, 1.0)
    at = best_log_temperature(z, labels)
    for target in (-4.99, 4.99):
        scaled = z * np.exp(target - at)
        fit = fit_temperature(scaled, labels)
        assert not fit.at_edge
        assert np.log(fit.temperature) == pytest.approx(target, abs=1e-6)


def test_masked_labels_take_no_part(cpu_backend):
    """-inf columns change neither the temperature nor the likelihood."""
    z, labels = sample(200, 5, 2.0)
    wide = np.full((200, 9), -np.inf)
    wide[:, [0, 2, 3, 6, 8]] = z
    columns = np.array([0, 2, 3, 6, 8])
    plain, masked = fit_temperature(z, labels), fit_temperature(wide, columns[labels])
    assert np.log(masked.temperature) == pytest.approx(np.log(plain.temperature), abs=1e-6)
    assert masked.nll_after == pytest.approx(plain.nll_after, abs=1e-12)
    assert masked.ece_after == pytest.approx(plain.ece_after, abs=1e-9)


def test_masks_that_differ_by_row(cpu_backend):
    z, labels = sample(300, 6, 2.0)
    masked = np.random.default_rng(3).random(z.shape) < 0.3
    masked[np.arange(300), labels] = False
    z = np.where(masked, -np.inf, z)
    assert np.log(fit_temperature(z, labels).temperature) == pytest.approx(best_log_temperature(z, labels), abs=1e-6)


def test_a_masked_true_label_is_refused(cpu_backend):
    z, labels = sample(20, 4, 1.0)
    z[7, labels[7]] = -np.inf
    with pytest.raises(LabelsError, match="true label of row 7 has logit -inf"):
        fit_temperature(z, labels)


def test_logits_whose_likelihoods_overflow_are_refused(cpu_backend):
    with pytest.raises(LogitsError, match=r"^logits must be small enough .* got -1e\+308 for the true label of row 3"):
        fit_temperature([[0.0, -1e307]] * 3 + [[0.0, -1e308]] * 20, [1] * 23)


def test_large_logits_do_not_overflow(cpu_backend):
    z, labels = sample(100, 4, 1.0)
    with pytest.warns(SuspiciousInputWarning):
        fit = fit_temperature(1e30 * z, labels)
    assert fit.at_edge
    assert np.isfinite([fit.nll_before, fit.nll_after, fit.ece_before, fit.ece_after]).all()


@pytest.mark.parametrize(
    ("logits", "labels", "error"),
    [
        (np.empty((0, 3)), [], LogitsError),
        ([[1.0, np.nan]], [0], LogitsError),
        ([[1.0, 2.0]], [2], LabelsError),
        ([[1.0, 2.0]], [0.0], InputTypeError),
        ([1.0, 2.0], [0], LogitsError),
    ],
)
def test_bad_input_is_refused(logits, labels, error):
    with pytest.raises(error):
        fit_temperature(logits, labels)


def test_the_derivatives_are_derivatives(cpu_backend):
    z, labels = sample(60, 7, 1.0)
    z[3, labels[3] - 1] = -np.inf
    for beta in (0.05, 0.7, 1.0, 4.0):
        h = 1e-5 * beta
        value, first, second = kernels.nll_derivatives(z, labels, beta)
        above, below = kernels.nll_derivatives(z, labels, beta + h), kernels.nll_derivatives(z, labels, beta - h)
        assert value == pytest.approx(nll(z, labels, 1 / beta), rel=1e-12)
        assert first == pytest.approx((above[0] - below[0]) / (2 * h), rel=1e-6, abs=1e-9)
        assert second == pytest.approx((above[1] - below[1]) / (2 * h), rel=1e-6, abs=1e-9)


def test_a_notebook_shows_before_and_after():
    fit = TemperatureFit(0.66217, 1.17701, 0.85501, 0.24661, 0.04251, 1500, at_edge=False)
    page = fit._repr_html_()
    assert re.findall(r">([^<]*)</td>", page) == [
        *("temperature", "1.0000", "0.6622"),
        *("NLL", "1.1770", "0.8550"),
        *("ECE", "0.2466", "0.0425"),
    ]
    assert "Temperature from 1,500 rows</caption>" in page
    assert "at the edge of the search" in dataclasses.replace(fit, at_edge=True)._repr_html_()
