"""A guarantee that is defined elsewhere plugs in: nothing but its own classes knows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import evicp
from evicp.calibration.laws.law import Kind, Law, Thresholds
from evicp.calibration.promises import Promise, verdict
from evicp.calibration.ranks import rank_of
from evicp.calibration.reliability import Reliability
from evicp.calibration.ties import found_ties
from evicp.errors import ArtifactError, InputError

K = 4


@dataclass(frozen=True)
class ByParity(Kind):
    """A threshold of their own for rows whose number in some list is odd; all in one array, sorted as they come."""

    guarantee = "parity"
    needs = frozenset({"groups"})
    where = " among odd rows and among even ones"
    caveat = "Holds for rows like these."

    def keys(self, score, logits, labels, groups, weights):
        return np.asarray(groups) % 2

    def law_of(self, scores, keys, n_classes, class_names):
        parity = np.concatenate(keys)
        order = np.argsort(scores)
        return scores[order], Parity(tuple(parity[order].tolist()))


@dataclass(frozen=True)
class Parity(Law):
    parity: tuple[int, ...]

    guarantee = "parity"
    kind = ByParity()

    def of_rows(self, score, logits, groups, weights):
        return (np.asarray(groups) % 2)[:, None]

    def _part(self, scores, parity):
        return scores[np.array(self.parity) == parity]

    def at(self, scores, coverage, confidence):
        parts = [self._part(scores, parity) for parity in (0, 1)]
        ranks = [rank_of(len(part), coverage, confidence) for part in parts]
        values = [part[k - 1] if k <= len(part) else np.inf for part, k in zip(parts, ranks, strict=True)]
        return Thresholds(np.array(values), found_ties(scores, np.array([len(scores)]), np.array([len(scores)])))

    def limit(self, scores, coverage, values, of_rows):
        return values[of_rows]

    def sizes(self, scores, of_rows):
        return np.bincount(self.parity, minlength=2)[of_rows]

    def below(self, scores, new, of_rows, side):
        both = [np.searchsorted(self._part(scores, parity), new, side) for parity in (0, 1)]
        return np.where(np.broadcast_to(of_rows, new.shape) == 1, both[1], both[0])

    def promise(self, scores, target):
        law = Reliability(len(scores) // 2, target.coverage, target.pac)
        observed = verdict(law, target.evaluation, target.confidence, covers_more=False)
        return Promise(law, float(target.values.max()), False, observed)

    def extended(self, scores, new, keys, n_classes):
        everyone, parity = np.concatenate([scores, new]), np.concatenate([self.parity, keys])
        order = np.argsort(everyone)
        return everyone[order], Parity(tuple(parity[order].tolist()))

    def raised(self, scores, higher):
        return self.extended(higher(scores), scores[:0], np.empty(0, np.int64), 0)


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    labels, numbers = rng.integers(0, K, 600), rng.integers(0, 9, 600)
    logits = rng.normal(size=(600, K)) * (1 + numbers % 2)[:, None] + 2 * np.eye(K)[labels]
    return logits, labels, numbers


@pytest.fixture
def calibration(problem):
    logits, labels, numbers = problem
    calibrator = evicp.Calibrator("lac", by=ByParity())
    for rows in (slice(0, 100), slice(100, 400)):
        calibrator.update(logits[rows], labels[rows], groups=numbers[rows])
    return calibrator.finish()


def test_its_sets_and_p_values_are_those_of_two_calibrations(problem, calibration):
    logits, labels, numbers = problem
    new, numbers_of_new = logits[400:], numbers[400:]
    sets = calibration.predict(new, 0.8, groups=numbers_of_new)
    p, p_of_labels = (calibration.p_values(new, given, groups=numbers_of_new) for given in (None, labels[400:]))
    for parity in (0, 1):
        rows, own = numbers[:400] % 2 == parity, numbers_of_new % 2 == parity
        single = evicp.calibrate(logits[:400][rows], labels[:400][rows], "lac")
        assert sets[own].to_lists() == single.predict(new[own], 0.8).to_lists()
        np.testing.assert_array_equal(p[own], single.p_values(new[own]))
        np.testing.assert_array_equal(p_of_labels[own], single.p_values(new[own], labels[400:][own]))
        assert calibration.thresholds(0.8)[parity] == single.threshold(0.8)
    assert [sets.guarantee, calibration.guarantee] == ["parity", "parity"]


def test_it_is_merged_extended_raised_and_certified(problem, calibration):
    logits, labels, numbers = problem
    parts = [evicp.Calibrator("lac", by=ByParity()) for _ in range(2)]
    for part, rows in zip(parts, (slice(0, 300), slice(300, 400)), strict=True):
        part.update(logits[rows], labels[rows], groups=numbers[rows])
    assert parts[0].merge(parts[1]).finish() == calibration
    whole = calibration.extended(logits[400:500], labels[400:500], groups=numbers[400:500])
    assert whole.n == 500
    narrow = calibration.predict(logits[400:], 0.8, groups=numbers[400:])
    wide = calibration.predict(logits[400:].astype(np.float32), 0.8, groups=numbers[400:])
    assert np.all(wide.sizes >= narrow.sizes)
    certificate = calibration.certificate(0.8, evicp.evaluate(narrow, labels[400:]))
    assert certificate.observed["compatible"]
    assert certificate.threshold == calibration.thresholds(0.8).max()
    assert "0.8 among odd rows and among even ones" in str(certificate)
    assert "Holds for rows like these." in str(certificate)


def test_what_it_does_not_answer_is_refused_in_its_name(problem, calibration, tmp_path):
    logits, labels, _ = problem
    for ask in (
        lambda: calibration.threshold(0.8),
        lambda: calibration.reliability(0.8),
        lambda: calibration.p_values_online(logits, labels),
        lambda: calibration.predict(logits, 0.8, confidence=0.9),
        lambda: calibration.predict(logits, 0.8, smoothed=True),
        lambda: evicp.Monitor(calibration, 0.8),
    ):
        with pytest.raises(InputError, match="this calibration is parity: it has no"):
            ask()
    with pytest.raises(InputError, match="only marginal calibrations and those by class can be built in"):
        calibration.label_thresholds(0.8)
    calibration.save(tmp_path / "parity.safetensors")
    with pytest.raises(ArtifactError, match="its description has the fields"):  # and is not read as another one
        evicp.load(tmp_path / "parity.safetensors")
