"""Scores for long tails: offsets and limits by hand, bad input, files and names."""

from __future__ import annotations

import numpy as np
import pytest

import evicp
from evicp import LAC, ClassLAC, calibrate, fit_class_offsets, fit_rank_limits
from evicp.errors import EvicpError, InputError, InputTypeError, ScoreError
from oracles import reference_naive_scores


def draw(seed: int, n: int, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice(k, n, p=np.arange(k, 0, -1) / np.arange(k + 1).sum())
    return rng.normal(size=(n, k)) + 2.0 * np.eye(k)[labels] + np.log(np.arange(k, 0, -1)), labels


LOGITS, LABELS = draw(0, 400)


def place(values: list[float], coverage: float) -> float | None:
    """The ceil((n + 1) c)-th smallest; None where there are too few."""
    k = int(np.ceil((len(values) + 1) * coverage - 1e-9))
    return sorted(values)[k - 1] if k <= len(values) else None


def test_scores_are_those_written_label_by_label():
    score = ClassLAC(offsets=[0.5, -1.0, 0.0, 2.0, -0.25], limits=[1, 2, 5, 3, 4], temperature=0.8)
    for row, got in zip(LOGITS[:50], score.scores(LOGITS[:50]), strict=True):
        wanted = reference_naive_scores("classlac", row, **score.parameters())
        np.testing.assert_allclose(got, [float(x) for x in wanted], rtol=1e-12)
    masked = np.where(np.arange(5) == 2, -np.inf, LOGITS[:3])
    assert np.isposinf(score.scores(masked)[:, 2]).all()
    np.testing.assert_allclose(ClassLAC().scores(LOGITS), LAC().scores(LOGITS), rtol=1e-12)
    assert score.describe() == "classlac(offsets=..., limits=..., temperature=0.8)"


def test_frequencies_divide_probabilities():
    frequencies = np.array([5.0, 4, 3, 2, 1])
    score = ClassLAC.of_frequencies(frequencies)
    p = np.exp(-LAC().scores(LOGITS)) / frequencies
    assert (np.argsort(score.scores(LOGITS), axis=1) == np.argsort(-p, axis=1)).all()
    np.testing.assert_allclose(score.scores(LOGITS), -np.log(p * frequencies.max()), rtol=1e-9)
    twice = ClassLAC.of_frequencies(2 * frequencies)
    assert twice == score
    plain, adjusted = (calibrate(LOGITS, LABELS, one).predict(draw(1, 2000)[0], 0.9) for one in (LAC(), score))
    truth = draw(1, 2000)[1]
    assert adjusted.contains(truth)[truth == 4].mean() > plain.contains(truth)[truth == 4].mean()


@pytest.mark.parametrize("weight", [0, 0.3, 1])
def test_offsets_go_from_the_threshold_of_all_to_that_of_the_class(weight):
    few = np.delete(np.arange(400), np.flatnonzero(LABELS == 4)[5:])
    logits, labels = LOGITS[few], LABELS[few]
    scores = LAC().scores(logits)[np.arange(len(labels)), labels]
    everyone = place(scores.tolist(), 0.9)
    own = [place(scores[labels == k].tolist(), 0.9) for k in range(5)]
    assert own[4] is None
    own[4] = max(everyone, scores[labels == 4].max())
    found = fit_class_offsets(logits, labels, coverage=0.9, weight=weight)
    np.testing.assert_allclose(found.offsets, [-weight * (q - everyone) for q in own], atol=1e-12)
    assert found.limits is None


def test_limits_are_ranks_that_hold_half_of_what_may_be_missed():
    few = np.delete(np.arange(400), np.flatnonzero(LABELS == 4)[5:])
    logits, labels = LOGITS[few], LABELS[few]
    ranks = 1 + (logits > logits[np.arange(len(labels)), labels][:, None]).sum(1)
    everyone = place(ranks.tolist(), 0.95)
    expected = [place(ranks[labels == k].tolist(), 0.95) or everyone for k in range(5)]
    score = fit_rank_limits(logits, labels, coverage=0.9)
    assert score.limits == tuple(expected)
    sets = calibrate(*draw(2, 2000), score, by="class").predict(LOGITS, 0.9)
    beyond = sets.mask() & (1 + np.argsort(np.argsort(-LOGITS, axis=1), axis=1) > expected)
    assert not beyond.any()


def test_files_and_explanations_have_them(tmp_path):
    score = fit_class_offsets(LOGITS[:200], LABELS[:200])
    calibration = calibrate(LOGITS[200:], LABELS[200:], score, class_names=list("abcde"))
    calibration.save(tmp_path / "cal.safetensors")
    assert evicp.load(tmp_path / "cal.safetensors") == calibration
    assert "offset" in repr(calibration.explain(LOGITS[0], 0.9))


def test_bad_input_is_refused():
    for call, kind, message in (
        (lambda: ClassLAC(offsets=[0.0, np.nan]), ScoreError, "offsets must be finite; got nan"),
        (lambda: ClassLAC(offsets="ab"), EvicpError, "offsets"),
        (lambda: ClassLAC(limits=[0, 1]), ScoreError, "limits must be at least 1; got 0"),
        (lambda: ClassLAC(limits=[1.5, 2.0]), ScoreError, "limits must be whole numbers"),
        (lambda: ClassLAC(offsets=[]), ScoreError, "offsets must be numbers, one for each class"),
        (lambda: ClassLAC(offsets=[0.0, 1.0]).scores(LOGITS), ScoreError, "got 2 for 5 classes"),
        (lambda: ClassLAC.of_frequencies([0.5, 0.0]), ScoreError, "must be positive and finite"),
        (lambda: fit_class_offsets(LOGITS, LABELS, weight=2), InputTypeError, "from 0 to 1; got 2"),
        (lambda: fit_class_offsets(LOGITS[:0], LABELS[:0]), InputError, "at least one row"),
        (lambda: fit_rank_limits(LOGITS, LABELS, coverage=1.5), EvicpError, "coverage"),
        (lambda: fit_class_offsets(LOGITS, LABELS + 1), EvicpError, "labels must be in"),
    ):
        with pytest.raises(kind, match=message):
            call()


def test_lists_of_several_lengths_are_no_offsets():
    for how in ({"offsets": [[1], [1, 2]]}, {"limits": [[1], [1, 2]]}):
        with pytest.raises(ScoreError, match="numbers, one"):
            ClassLAC(**how)
