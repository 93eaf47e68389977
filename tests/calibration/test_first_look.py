"""What is suspicious about calibration rows is said, with the likely cause; what is usual is not."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.datasets import load_imagenet_sample
from evicp.errors import SuspiciousInputWarning

K = 20


def draw(seed: int, n: int, strength: float = 3.0, k: int = K) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a classifier that is as good as `strength` says, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    return rng.normal(size=(n, k)) + strength * np.eye(k)[labels], labels


@pytest.fixture(autouse=True)
def heard() -> Any:
    """Every warning is heard, whatever the settings of the tests ignore."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def remark(logits: Any, labels: Any, score: Any = "lac") -> str:
    """The one warning of a calibration."""
    with pytest.warns(SuspiciousInputWarning) as caught:
        calibration = evicp.calibrate(logits, labels, score)
    assert calibration.first_look is not None
    assert [str(one.message) for one in caught] == list(calibration.first_look.remarks)
    assert all(one.filename == __file__ for one in caught)
    (text,) = calibration.first_look.remarks
    return text


def test_accuracy_and_size_are_those_of_the_rows() -> None:
    logits, labels = draw(0, 400)
    look = evicp.calibrate(logits, labels).first_look
    assert look is not None
    assert (look.rows, look.remarks) == (400, ())
    assert look.accuracy == np.mean(logits.argmax(1) == labels)
    sizes = evicp.calibrate(logits, labels).predict(logits).sizes
    assert look.mean_size == pytest.approx(sizes.mean(), rel=0.2)
    assert str(look) in str(evicp.calibrate(logits, labels))
    assert f"top-1 accuracy {look.accuracy:.3f}, mean set size" in evicp.calibrate(logits, labels)._repr_html_()


def test_the_default_says_where_lac_has_clearly_smaller_sets() -> None:
    logits, labels = draw(0, 2_000, 1.0, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two classes, which a warning says, too
        look = evicp.calibrate(logits, labels).first_look
    assert look is not None
    advice = look.advice
    assert advice is not None
    assert str(look).endswith(f"\n{advice}")
    own, other = (float(size) for size in re.findall(r"\d\.\d\d", advice))
    assert own == pytest.approx(evicp.calibrate(logits, labels, "lac").predict(logits).sizes.mean(), rel=0.2)
    assert other == 2.0
    assert 'score="lac" (--score lac)' in advice


def test_a_score_that_was_named_or_is_about_as_good_gets_no_advice() -> None:
    logits, labels = draw(0, 2_000, 1.0, 2)
    for score in ("lac", "aps", evicp.ECP(temperature=2.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            look = evicp.calibrate(logits, labels, score).first_look
        assert look is not None
        assert look.advice is None
    sample = load_imagenet_sample()
    for logits, labels in (draw(0, 600), draw(0, 600, 3.0, 5), (sample.logits, sample.labels)):
        look = evicp.calibrate(logits, labels).first_look
        assert look is not None
        assert look.advice is None


def test_of_many_rows_some_are_looked_at() -> None:
    logits, labels = draw(1, 30_000)
    look = evicp.calibrate(logits, labels).first_look
    assert look is not None
    assert look.rows == 512
    assert look.accuracy == pytest.approx(np.mean(logits.argmax(1) == labels), abs=0.08)


def test_batches_are_looked_at_together() -> None:
    logits, labels = draw(2, 3_000)
    calibrator = evicp.Calibrator()
    for start in range(0, 3_000, 100):
        calibrator.update(logits[start : start + 100], labels[start : start + 100])
    look = calibrator.finish().first_look
    assert look is not None
    assert 512 < look.rows < 1_000
    assert look.accuracy == pytest.approx(np.mean(logits.argmax(1) == labels), abs=0.08)


def test_rows_in_the_order_of_their_classes_are_looked_at_without_a_period() -> None:
    logits, labels = draw(3, 4_000)
    order = np.argsort(np.arange(4_000) % 8, kind="stable")  # classes in turn would be met by a fixed step
    look = evicp.calibrate(logits[order], labels[order]).first_look
    assert look is not None
    assert look.accuracy == pytest.approx(np.mean(logits.argmax(1) == labels), abs=0.08)


def test_shuffled_labels_are_near_chance() -> None:
    for k in (2, 20, 1000):
        logits, labels = draw(4, 1_000, 4.0, k)
        text = remark(logits, np.random.default_rng(0).permutation(labels))
        assert "near chance" in text
        assert "The labels seem to belong to other rows: another order, or another file." in text


def test_labels_off_by_one_are_recognised() -> None:
    logits, labels = draw(5, 600)
    assert "they may count from 1; the accuracy would be 0." in remark(logits, (labels + 1) % K)
    assert "Labels seem to be one too small; the accuracy" in remark(logits, (labels - 1) % K)


def test_classes_in_another_order_are_recognised() -> None:
    logits, labels = draw(6, 600, 4.0)
    other = np.roll(np.random.default_rng(1).permutation(K), 5)
    assert "in another order than the columns" in remark(logits, other[labels])


def test_labels_of_the_network_itself_are_too_good() -> None:
    logits, _ = draw(7, 600, 2.0)
    assert "top-1 accuracy is 1.0000 in 512 calibration rows of a sample. Likely causes are training rows" in remark(
        logits, logits.argmax(1)
    )


def test_rows_that_count_twice_are_named() -> None:
    logits, labels = draw(8, 500)
    assert remark(np.tile(logits, (2, 1)), np.tile(labels, 2)).startswith("500 of 1,000 calibration rows are dupl")
    rows = np.random.default_rng(0).integers(0, 500, 500)  # drawn with replacement
    assert "with replacement" in remark(logits[rows], labels[rows])
    single = np.float32(logits)
    assert "files read twice" in remark(np.tile(single, (2, 1)), np.tile(labels, 2), "ecp")


def test_rows_in_half_precision_share_logits_and_are_no_copies() -> None:
    logits, labels = draw(5, 4000)
    half = (4 + logits / 4).astype(np.float16)  # some true labels of a class have one logit
    own = list(zip(labels, half[np.arange(4000), labels], strict=True))
    assert len(own) - len(set(own)) > 400
    look = evicp.calibrate(half, labels).first_look
    assert look is not None
    assert look.remarks == ()
    twice = np.r_[0:4000, 0:100]
    assert "100 of 4,100 calibration rows are duplicates" in remark(half[twice], labels[twice])


def test_a_model_with_few_outputs_repeats_rows_for_good_reason() -> None:
    """Leaves of a tree: rows are equal, and their labels are not always."""
    rng = np.random.default_rng(0)
    leaves = rng.dirichlet(np.full(5, 0.4), size=60)
    leaf = rng.integers(0, 60, 2_000)
    labels = (rng.random(2_000)[:, None] > leaves[leaf].cumsum(1)).sum(1).clip(0, 4)
    look = evicp.calibrate(np.log(leaves)[leaf], labels, "lac").first_look
    assert look is not None
    assert look.remarks == ()


def test_labels_of_few_classes_are_named() -> None:
    logits, labels = draw(9, 30_000, 4.0, 50)
    few = labels < 4
    text = remark(logits[few], labels[few])
    assert (
        f"the labels of {few.sum():,} calibration rows are of 4 of 50 classes. A likely cause are rows sorted by class"
        in text
    )


def test_sets_of_half_the_classes_are_named() -> None:
    logits, labels = draw(10, 1_000, 0.5)
    text = remark(logits, labels)
    assert text.startswith("sets hold 1")
    assert "of 20 labels on average at coverage 0.9" in text


def test_few_rows_are_no_ground_for_suspicion() -> None:
    logits, labels = draw(11, 90)
    assert evicp.calibrate(logits, np.roll(labels, 7)).first_look.remarks == ()  # type: ignore[union-attr]


def test_a_rare_event_is_not_chance() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(2_000) < 0.02).astype(int)
    logits = np.stack([np.zeros(2_000), -4 + labels + rng.normal(size=2_000) * 0.3], axis=1)
    assert evicp.calibrate(logits, labels, "lac").first_look.remarks == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("score", ["ecp", "lac", "aps", "raps", "saps", "topk", "margin"])
def test_real_logits_are_not_suspicious(score: str) -> None:
    sample = load_imagenet_sample()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* tie at the threshold")
        for rows in (slice(None), slice(0, 300), slice(None, None, 2)):
            look = evicp.calibrate(sample.logits[rows], sample.labels[rows], score).first_look
            assert look is not None
            assert look.remarks == ()
            assert 0.7 < look.accuracy < 0.85
