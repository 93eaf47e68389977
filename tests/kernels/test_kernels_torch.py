"""The torch kernels on the CPU, against the NumPy reference."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from places import GPU

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

sys.path.insert(0, str(GPU))

from hard_rows import SCORES, hard_rows, relative_error  # noqa: E402

import evicp  # noqa: E402
from evicp.errors import LogitsError  # noqa: E402
from evicp.kernels import _numpy, _torch  # noqa: E402

UNEVEN = (
    evicp.ECP(base_rates=(0.1, 0.2, 0.3, 0.4)),
    evicp.ECP(base_rates=(0.7, 0.1, 0.1, 0.1), evidence="softplus", stabilizer=0.0),
)


def error_of_rows(own: np.ndarray, reference: np.ndarray) -> float:
    """Scores are differences of log-costs: both backends round at the size of the row's largest."""
    finite = np.isfinite(reference)
    assert np.array_equal(own[~finite], reference[~finite])
    size = np.maximum(1, np.abs(np.where(finite, reference, 0)).max(1, keepdims=True))
    return float((np.abs(np.where(finite, own, 0) - np.where(finite, reference, 0)) / size).max())


@pytest.mark.parametrize("score", SCORES, ids=str)
@pytest.mark.parametrize("n_classes", [2, 3, 10, 100])
def test_agrees_with_the_reference(score: evicp.Score, n_classes: int) -> None:
    z = hard_rows(30, n_classes, seed=n_classes).astype(np.float64)
    assert _torch.knows(score)
    own = _torch.dense_scores(score, torch.tensor(z)).numpy()
    assert error_of_rows(own, _numpy.dense_scores(score, z)) <= 1e-12


@pytest.mark.parametrize("score", UNEVEN, ids=str)
def test_uneven_base_rates_order_by_probability_first(score: evicp.ECP) -> None:
    z = hard_rows(30, 4).astype(np.float64)
    own = _torch.dense_scores(score, torch.tensor(z)).numpy()
    assert error_of_rows(own, _numpy.dense_scores(score, z)) <= 1e-12


@pytest.mark.parametrize("score", [*SCORES, *UNEVEN], ids=str)
def test_membership_is_score_within_threshold_to_the_bit(score: evicp.Score, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch, "BLOCK_LOGITS", 24)  # several blocks, the last one short
    z = hard_rows(25, 4, seed=3)
    logits, labels = torch.tensor(z), torch.arange(25) % 4
    dense = _torch.dense_scores(score, logits).numpy()
    scores = _torch.label_scores(score, logits, labels).numpy()
    assert np.array_equal(scores, dense[np.arange(25), labels])
    for threshold in (np.inf, -np.inf, *np.unique(scores[np.isfinite(scores)])[::4]):
        offsets, members, kept = (x.numpy() for x in _torch.ragged_sets(score, logits, float(threshold)))
        row, column = np.nonzero(dense <= threshold)
        order = np.lexsort((column, -z[row, column].astype(np.float64), dense[row, column], row))
        assert np.array_equal(offsets, np.concatenate([[0], np.cumsum(np.bincount(row, minlength=25))]))
        assert np.array_equal(members, column[order])
        assert np.array_equal(kept, dense[row, column][order])
    assert (offsets.dtype, members.dtype, kept.dtype) == (np.int64, np.int32, np.float64)


@pytest.mark.parametrize("score", [*SCORES, evicp.ECP(evidence="softplus", stabilizer=0)], ids=str)
def test_one_row_is_as_good_as_a_batch_to_the_bit(score: evicp.Score) -> None:
    """torch's own row sums are added in another order for one row than for many."""
    logits = torch.randn(60, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    whole = _torch.dense_scores(score, logits)
    for rows in (1, 2, 7):
        parts = torch.cat([_torch.dense_scores(score, part) for part in logits.split(rows)])
        assert torch.equal(parts, whole)


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_top_labels(score: evicp.Score) -> None:
    z = hard_rows(30, 6)
    assert np.array_equal(_torch.top_labels(score, torch.tensor(z)).numpy(), _numpy.top_labels(score, z))


def test_ranks_uniforms_and_p_values() -> None:
    z = hard_rows(40, 20)
    labels = np.random.default_rng(0).integers(0, 20, 40)
    logits, own_labels = torch.tensor(z), torch.tensor(labels)
    assert np.array_equal(_torch.label_ranks(logits, own_labels).numpy(), _numpy.label_ranks(z, labels))
    score = evicp.TopK(randomized=True, seed=77)
    expected = _numpy.label_scores(score, z, labels)
    assert np.array_equal(_torch.label_scores(score, logits, own_labels).numpy(), expected)
    calibration = np.sort(expected)
    at_least = 40 - np.searchsorted(calibration, expected, side="left")
    own = _torch.p_values(score, logits, torch.tensor(calibration), own_labels).numpy()
    assert np.array_equal(own, (1.0 + at_least) / 41.0)
    every = _torch.p_values(score, logits, torch.tensor(calibration)).numpy()
    assert np.array_equal(np.take_along_axis(every, labels[:, None], 1)[:, 0], own)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_half_precision_is_upcast(dtype: str) -> None:
    logits = torch.tensor(np.clip(hard_rows(20, 8), -1000, 1000)).to(getattr(torch, dtype))
    for score in (evicp.ECP(), evicp.APS()):
        assert torch.equal(_torch.dense_scores(score, logits), _torch.dense_scores(score, logits.double()))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e301])
def test_bad_rows_are_the_references_error(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch, "BLOCK_LOGITS", 10)
    z = np.random.default_rng(0).normal(size=(9, 5))
    z[7, 2 if value != -np.inf else slice(None)] = value
    with pytest.raises(LogitsError) as expected:
        _numpy.dense_scores(evicp.LAC(), z)
    with pytest.raises(LogitsError) as own:
        _torch.dense_scores(evicp.LAC(), torch.tensor(z))
    assert str(own.value) == str(expected.value)


def test_no_rows() -> None:
    offsets, members, scores = _torch.ragged_sets(evicp.ECP(), torch.zeros(0, 3), 0.0)
    assert (offsets.tolist(), len(members), len(scores)) == ([0], 0, 0)
    assert len(_torch.label_scores(evicp.ECP(), torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))) == 0


def test_gradients_and_strides_do_not_matter() -> None:
    z = torch.tensor(hard_rows(9, 7), requires_grad=True)
    expected = _torch.dense_scores(evicp.ECP(), z.detach().clone())
    assert torch.equal(_torch.dense_scores(evicp.ECP(), z), expected)
    assert torch.equal(_torch.dense_scores(evicp.ECP(), z.detach().t().contiguous().t()), expected)


def test_what_it_does_not_know() -> None:
    class Mine(evicp.LAC):
        pass

    assert not _torch.knows(Mine())
    assert not _torch.knows(evicp.ECP(utility=np.exp))
    assert not _torch.knows(evicp.ECP(evidence=np.abs))
    assert not _torch.knows(evicp.method.scores.Custom(lambda z: -z))
    assert _torch.knows(evicp.ECP(base_rates=(0.3, 0.7)))


def test_float32_devices_keep_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """What MPS computes in: no doubles anywhere, and still within 1e-4 on ordinary logits."""
    monkeypatch.setattr(_torch, "working_type", lambda device: torch.float32)
    z = (np.random.default_rng(0).normal(size=(50, 20)) * 3).astype(np.float32)
    for score in SCORES:
        own = _torch.dense_scores(score, torch.tensor(z))
        assert own.dtype == torch.float32
        assert relative_error(own.numpy().astype(np.float64), _numpy.dense_scores(score, z)) <= 1e-4
