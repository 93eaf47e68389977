"""Checks of new rows: p-values counted by hand, what is found, what is refused, and what certificates quote."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
import scipy.stats

import evicp
from evicp import check_exchangeable
from evicp.errors import InputError, InputTypeError, LabelsError, LogitsError
from evicp.evaluation import two_samples
from evicp.input import convert


def draw(seed: int, n: int, sure: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    return rng.normal(size=(n, 4)) + sure * np.eye(4)[labels], labels


LOGITS, LABELS = draw(0, 400)
CALIBRATION = evicp.calibrate(LOGITS, LABELS)


def all_p_values(n: int, m: int, *, one_sided: bool, later: int = 0) -> list[float]:
    """The p-value of every order of n and m numbers; `later` counts that many steps too many."""
    found = []
    for chosen in combinations(range(n + m), n):
        a = np.array(chosen, float)
        b = np.setdiff1d(np.arange(n + m), chosen).astype(float)
        steps = two_samples.steps_between(a, b, 0.0, larger=one_sided)
        found.append(two_samples.p_value_of(steps + later, n, m, one_sided=one_sided))
    return found


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (4, 3), (5, 2)])
def test_p_values_are_exact_over_all_orders(n, m, one_sided):
    found = np.array(all_p_values(n, m, one_sided=one_sided))
    for level in np.unique(found):
        assert np.mean(found <= level + 1e-12) == pytest.approx(level)
    off = np.array(all_p_values(n, m, one_sided=one_sided, later=1))
    assert np.mean(off <= off.min() + 1e-12) > off.min() + 1e-9  # the control: one step too many


@pytest.mark.parametrize(("n", "m"), [(40, 25), (200, 301)])
@pytest.mark.parametrize("moved", [0.0, 0.4])
def test_p_values_are_those_of_scipy(n, m, moved):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=n), rng.normal(size=m) + moved
    for one_sided, alternative in ((False, "two-sided"), (True, "greater")):
        steps = two_samples.steps_between(a, b, 0.0, larger=one_sided)
        expected = scipy.stats.ks_2samp(a, b, alternative=alternative, method="exact")
        assert steps / (n * m) == pytest.approx(expected.statistic)
        assert two_samples.p_value_of(steps, n, m, one_sided=one_sided) == pytest.approx(expected.pvalue, rel=1e-9)


def test_many_numbers_have_the_limit_of_the_exact_p_value(monkeypatch):
    steps = round(0.08 * 1500 * 1100)
    exact = [two_samples.p_value_of(steps, 1500, 1100, one_sided=side) for side in (False, True)]
    monkeypatch.setattr(two_samples, "EXACT_UP_TO", 10)
    limit = [two_samples.p_value_of(steps, 1500, 1100, one_sided=side) for side in (False, True)]
    assert all(one <= other <= 1.1 * one for one, other in zip(exact, limit, strict=True))


def test_equal_numbers_and_rounding_are_no_distance():
    a = np.repeat([0.1, 0.7], 50)
    assert two_samples.steps_between(a, a, 0.0) == 0
    assert two_samples.steps_between(a, a.astype(np.float32).astype(float), 0.0) > 0
    assert two_samples.steps_between(a, a.astype(np.float32).astype(float), 1e-6) == 0
    assert two_samples.steps_between(np.array([-np.inf, np.inf]), np.array([-np.inf, np.inf]), 1e-6) == 0


def test_the_statistic_that_moved_is_named_with_how_far():
    flat, _ = draw(1, 400, sure=1.5)
    found = check_exchangeable(CALIBRATION, flat, reference=LOGITS)
    assert found.shifted
    assert set(found.moved) <= {"largest logit", "uncertainty u", "entropy"}
    assert found.p_value == min(one.p_value for one in found.statistics) <= found.error
    entropy = next(one for one in found.statistics if one.name == "entropy")
    assert entropy.now > entropy.before
    assert entropy.larger > 0.5
    old, new = (scipy.stats.entropy(scipy.special.softmax(z, axis=1), axis=1) for z in (LOGITS, flat))
    assert entropy.distance == pytest.approx(scipy.stats.ks_2samp(old, new).statistic)
    assert entropy.larger == pytest.approx(scipy.stats.mannwhitneyu(new, old).statistic / (400 * 400))
    assert entropy.p_value == pytest.approx(min(1, 3 * scipy.stats.ks_2samp(old, new, method="exact").pvalue), rel=1e-6)
    assert "A shift: " in repr(found)
    assert "entropy" in found._repr_html_()
    assert json.loads(json.dumps(found.to_dict()))["moved"] == list(found.moved)


def test_rows_that_are_surer_are_seen_with_a_reference_only():
    sure, _ = draw(2, 400, sure=6.0)
    assert not check_exchangeable(CALIBRATION, sure).shifted
    assert check_exchangeable(CALIBRATION, sure, reference=LOGITS).shifted


def test_labels_show_what_logits_do_not():
    logits, labels = draw(3, 600)
    wrong = np.where(np.random.default_rng(0).random(600) < 0.3, (labels + 1) % 4, labels)
    assert not check_exchangeable(CALIBRATION, logits, reference=LOGITS).shifted
    assert not check_exchangeable(CALIBRATION, logits, labels).shifted
    found = check_exchangeable(CALIBRATION, logits, wrong, reference=LOGITS)
    assert found.moved == ("score of the true label",)
    assert 1 <= found.alarm_at <= 600
    assert f"from number {found.alarm_at} on" in repr(found)
    watch = evicp.Monitor(CALIBRATION, 0.9).update_p_values(CALIBRATION.p_values(logits, wrong))
    assert found.statistics[-1].p_value == pytest.approx(min(1.0, 4 * watch.p_value))
    scores = CALIBRATION.score.scores(logits)[np.arange(600), wrong]
    assert found.statistics[-1].distance == pytest.approx(scipy.stats.ks_2samp(CALIBRATION.scores, scores).statistic)


def test_the_best_labels_scores_are_compared_where_there_is_nothing_else():
    noise = np.random.default_rng(4).normal(size=(300, 4))
    found = check_exchangeable(CALIBRATION, noise)
    assert found.moved == ("score of the best label",)
    best = CALIBRATION.score.scores(noise).min(1)
    expected = scipy.stats.ks_2samp(CALIBRATION.scores, best, alternative="greater", method="exact")
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6)


def test_rounding_to_another_precision_is_no_shift():
    """Votes of a forest pile up; in another precision the piles lie beside each other."""
    rng = np.random.default_rng(5)
    votes = np.log(rng.multinomial(7, [0.4, 0.3, 0.3], size=2000) + 0.1)
    labels = rng.integers(0, 3, 1000)
    calibration = evicp.calibrate(votes[:1000].astype(np.float32), labels, "lac")
    found = check_exchangeable(calibration, votes[1000:], reference=votes[:1000].astype(np.float32))
    assert found.p_value > 0.05
    assert max(one.distance for one in found.statistics) < 0.1


def test_calibrations_by_group_are_tested_as_a_whole():
    by_class = evicp.calibrate(LOGITS, LABELS, by="class")
    logits, labels = draw(6, 200)
    assert not check_exchangeable(by_class, logits).shifted
    with pytest.raises(InputError, match=r"by class: with labels, monitor each group, Monitor"):
        check_exchangeable(by_class, logits, labels)


def test_certificates_quote_the_check():
    logits, _ = draw(7, 200)
    check = check_exchangeable(CALIBRATION, logits)
    certificate = CALIBRATION.certificate(0.9, check=check)
    assert certificate.check == check.to_dict()
    assert check.summary in " ".join(str(certificate).split())
    assert json.loads(certificate.to_json())["check"]["n_new"] == 200
    assert CALIBRATION.certificate(0.9).check is None
    with pytest.raises(InputError, match="must be of this calibration"):
        evicp.calibrate(LOGITS[1:], LABELS[1:]).certificate(0.9, check=check)
    with pytest.raises(InputTypeError, match=r"must be what evicp\.check_exchangeable returns; got a bool"):
        CALIBRATION.certificate(0.9, check=True)


def test_bad_input_is_refused():
    logits, labels = draw(8, 50)
    weighted = evicp.calibrate(LOGITS, LABELS, weights=np.ones(400))
    with pytest.raises(InputTypeError, match="must be a Calibration; got a ndarray"):
        check_exchangeable(LOGITS, logits)
    with pytest.raises(InputError, match="weighted calibration expects new rows to be shifted"):
        check_exchangeable(weighted, logits)
    with pytest.raises(LogitsError, match="must have 4 classes"):
        check_exchangeable(CALIBRATION, logits[:, :3])
    with pytest.raises(LogitsError, match="reference must have at least one row"):
        check_exchangeable(CALIBRATION, logits, reference=logits[:0])
    with pytest.raises(LogitsError, match="NaN"):
        check_exchangeable(CALIBRATION, np.where(np.eye(50, 4) > 0, np.nan, logits))
    with pytest.raises(LabelsError):
        check_exchangeable(CALIBRATION, logits, labels[:10])
    with pytest.raises(InputError, match="error must be strictly between 0 and 1; got 5"):
        check_exchangeable(CALIBRATION, logits, error=5)


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_coarser_rows_lose_nothing_but_their_own_rounding(precision):
    new, _ = draw(9, 300)
    found = check_exchangeable(CALIBRATION, new, reference=LOGITS.astype(precision))
    old, same = (z.astype(precision).max(1).astype(float) for z in (LOGITS, new))
    assert found.statistics[0].distance == pytest.approx(scipy.stats.ks_2samp(old, same).statistic, abs=0.004)


def test_tensors_on_an_accelerator_are_checked_here(monkeypatch):
    """With labels, too: their p-values would stay on the device. (A stand-in for the device: any tensor is there.)"""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    logits = rng.normal(size=(400, 3)).astype(np.float32) + 2 * np.eye(3, dtype=np.float32)[labels]
    calibration = evicp.calibrate(logits[:200], labels[:200])
    expected = evicp.check_exchangeable(calibration, logits[200:], labels[200:], reference=logits[:200])
    monkeypatch.setattr(convert, "is_on_device", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(convert, "on_cpu", lambda value: value.numpy() if isinstance(value, torch.Tensor) else value)
    rows, truth = torch.from_numpy(logits), torch.from_numpy(labels)
    assert evicp.check_exchangeable(calibration, rows[200:], truth[200:], reference=rows[:200]) == expected
