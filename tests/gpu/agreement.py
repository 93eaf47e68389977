"""What must hold of the Triton kernels, on any device: each function raises if it does not.

`test_cuda.py` beside this file runs them on a real GPU at full size, `tests/kernels/test_kernels_triton.py` in Triton's
interpreter on the CPU, on a few rows. The oracle is the NumPy reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from hard_rows import hard_rows, relative_error

import evicp
from evicp.calibration.origin import digest_of, row_hashes, size_of_logits
from evicp.errors import LogitsError
from evicp.evaluation.counts import Counts
from evicp.kernels import _numpy, _triton, _triton_launch
from evicp.kernels._triton_launch import Tiling

BAD_ROWS_FOR = (evicp.ECP(), evicp.LAC(), evicp.APS(), evicp.TopK())


@contextmanager
def tiling(**changes: Any) -> Iterator[None]:
    """Another tiling than the chosen one: its bits must be the same, and other branches are taken."""
    chosen, few = _triton_launch.tiling_for, _triton_launch.FEW_ROWS
    fields = {"rows_ahead": 128, "chunk": 128} | changes
    _triton_launch.tiling_for, _triton_launch.FEW_ROWS = (lambda _k, _rule: Tiling(**fields)), 0
    try:
        yield
    finally:
        _triton_launch.tiling_for, _triton_launch.FEW_ROWS = chosen, few


def scores_agree(score: evicp.Score, z: np.ndarray, device: str) -> tuple[np.ndarray, np.ndarray]:
    """Dense and label scores are the reference's to 1e-5, and each other's exactly."""
    reference = _numpy.dense_scores(score, z)
    logits = torch.tensor(z, device=device)
    dense = _triton.dense_scores(score, logits).cpu().numpy()
    assert relative_error(dense, reference) <= 1e-5
    labels = np.random.default_rng(1).integers(0, z.shape[1], len(z))
    labels[: min(3, len(z))] = z[:3].argmax(1)
    own = _triton.label_scores(score, logits, torch.tensor(labels, device=device)).cpu().numpy()
    assert np.array_equal(own, np.take_along_axis(dense, labels[:, None], 1)[:, 0])
    return dense, reference


def sets_are_the_scores(score: evicp.Score, z: np.ndarray, dense: np.ndarray, threshold: float, device: str) -> None:
    """A label is in the set exactly if its score is within the threshold; members come in the order guaranteed."""
    found = _triton.ragged_sets(score, torch.tensor(z, device=device), threshold)
    offsets, labels, scores = (part.cpu().numpy() for part in found)
    row, column = np.nonzero(dense <= threshold)
    order = np.lexsort((column, -z[row, column].astype(np.float64), dense[row, column], row))
    assert np.array_equal(offsets, np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(z)))]))
    assert np.array_equal(labels, column[order])
    assert np.array_equal(scores, dense[row, column][order])
    assert (offsets.dtype, labels.dtype, scores.dtype) == (np.int64, np.int32, np.float64)


def everything_agrees(
    score: evicp.Score, z: np.ndarray, device: str, coverages: tuple[float, ...] = (0.5, 0.9)
) -> None:
    """Scores, sets at several thresholds (one a label's own score, exactly), tops and p-values."""
    dense, reference = scores_agree(score, z, device)
    finite = dense[np.isfinite(dense)]
    thresholds = [np.inf, -np.inf, float(finite[len(finite) // 2])]
    thresholds += [float(np.quantile(dense.min(1), coverage, method="higher")) for coverage in coverages]
    for threshold in thresholds:
        sets_are_the_scores(score, z, dense, threshold, device)
    logits = torch.tensor(z, device=device)
    assert np.array_equal(_triton.top_labels(score, logits).cpu().numpy(), _numpy.top_labels(score, z))
    calibration = np.sort(reference[:, 0])
    at_least = len(calibration) - np.searchsorted(calibration, dense, side="left")
    own = _triton.p_values(score, logits, torch.tensor(calibration, device=device)).cpu().numpy()
    assert np.array_equal(own, (1.0 + at_least) / (len(calibration) + 1.0))


def memberships(score: evicp.Score, z: np.ndarray, labels: np.ndarray, coverage: float, device: str) -> tuple[int, int]:
    """How many memberships differ from the reference's, each backend with its own threshold; and of how many."""
    logits, own_labels = torch.tensor(z, device=device), torch.tensor(labels, device=device)
    rank = int(np.ceil((len(z) + 1) * coverage)) - 1
    threshold = float(_triton.label_scores(score, logits, own_labels).sort().values[rank])
    reference = _numpy.dense_scores(score, z)
    reference_threshold = np.sort(np.take_along_axis(reference, labels[:, None], 1)[:, 0])[rank]
    offsets, members, _ = (part.cpu().numpy() for part in _triton.ragged_sets(score, logits, threshold))
    own = np.zeros(z.shape, bool)
    own[np.repeat(np.arange(len(z)), np.diff(offsets)), members] = True
    return int((own != (reference <= reference_threshold)).sum()), own.size


def labelled_rows_agree(score: evicp.Score, z: np.ndarray, device: str) -> None:
    """What a calibration is told of labelled rows is what the host would find, whatever the type of the labels."""
    labels = np.random.default_rng(3).integers(0, z.shape[1], len(z))
    logits = torch.tensor(z, device=device)
    own = z[np.arange(len(z)), labels]
    hashes = row_hashes(own, labels)
    for dtype in (torch.int64, torch.int32, torch.uint8):
        if labels.max() > torch.iinfo(dtype).max:
            continue
        found = _triton.labelled(score, logits, torch.tensor(labels, dtype=dtype, device=device))
        assert torch.equal(found.scores, _triton.label_scores(score, logits, torch.tensor(labels, device=device)))
        ordered = _triton.labelled(score, logits, torch.tensor(labels, device=device), ordered=True)
        if ordered.in_order is not None:  # which rows of too much evidence would have made useless
            assert torch.equal(ordered.in_order[0], found.scores.sort().values)
        assert np.array_equal(found.hashes.cpu().numpy().view(np.uint64), hashes)
        assert found.digest == digest_of(hashes)
        assert found.masked == int((own == -np.inf).sum())
        assert found.largest == size_of_logits(own, lambda rows: z[rows].max(1))
        two = (found.scores.cpu().numpy() == 0.0) & ((z > -np.inf).sum(1) == 2)
        assert found.seconds >= two.sum() * (score.name == "ecp")
        assert not found.outside
    for row, wrong in ((1, -1), (len(z) - 1, z.shape[1])):
        labels[row] = wrong
        assert _triton.labelled(score, logits, torch.tensor(labels, device=device)).outside


def fixed_sets_agree(
    score: evicp.Score, z: np.ndarray, device: str, threshold: float, widths: tuple[int, ...] = (1, 3)
) -> None:
    """Sets of fixed shape hold the labels of ragged ones, in their order; rows that cannot be scored have size -1."""
    z = np.concatenate([z, z[:3]])
    bad = np.arange(len(z) - 3, len(z))
    z[bad[0], 1], z[bad[1], 0], z[bad[2]] = np.nan, np.inf, -np.inf
    logits = torch.tensor(z, device=device)
    found = _triton.ragged_sets(score, torch.tensor(z[: bad[0]], device=device), threshold)
    offsets, members = (part.cpu().numpy() for part in found[:2])
    sizes = np.append(np.diff(offsets), [-1, -1, -1])
    row = np.repeat(np.arange(bad[0]), sizes[: bad[0]])
    mask = np.zeros(z.shape, bool)
    mask[row, members] = True
    own, own_sizes = (part.cpu().numpy() for part in _triton.fixed_sets(score, logits, threshold, None))
    assert np.array_equal(own_sizes, sizes)
    assert np.array_equal(own, mask)
    place = np.arange(len(members)) - offsets[row]
    for width in (*widths, z.shape[1]):
        labels = np.full((len(z), width), -1, np.int32)
        labels[row[place < width], place[place < width]] = members[place < width]
        own, own_sizes = (part.cpu().numpy() for part in _triton.fixed_sets(score, logits, threshold, width))
        assert np.array_equal(own_sizes, sizes)
        assert np.array_equal(own, labels)
        assert (own.dtype, own_sizes.dtype) == (np.int32, np.int32)


def whole_calls_agree(score: evicp.Score, z: np.ndarray, device: str, n_new: int = 10) -> None:
    """Calibrations and repeated predictions of tensors are those of the kernels; bad rows are errors in each call."""
    labels = np.random.default_rng(4).integers(0, z.shape[1], len(z))
    labels[: len(z) // 2] = z[: len(z) // 2].argmax(1)
    logits, truth = torch.tensor(z, device=device), torch.tensor(labels, device=device)
    own = _triton.label_scores(score, logits, truth).sort().values
    calibration, expected = evicp.calibrate(logits, truth, score), evicp.calibrate(z, labels, score)
    assert np.array_equal(calibration.scores, own.cpu().numpy())
    assert calibration.origin.digest == expected.origin.digest
    assert calibration.origin.largest == expected.origin.largest
    new = logits[:n_new]
    offsets, members, _ = _triton.ragged_sets(score, new, float(own[int(np.ceil((len(z) + 1) * 0.5)) - 1]))
    for _ in range(5):  # the first ones prepare what the others use
        sets = calibration.predict(new, 0.5)
        assert torch.equal(sets.offsets, offsets)
        assert torch.equal(sets.labels, members)
        new = new.clone()
    bad = new.clone()
    bad[3, 1] = torch.nan
    assert "NaN at row 3, class 1" in _message(lambda: calibration.predict(bad, 0.5))
    assert torch.equal(calibration.predict(new, 0.5).labels, members)


def evaluations_agree(z: np.ndarray, device: str) -> None:
    """Rows are counted as on the host: by set size, class and rank, of few and of many values; bad rows are errors."""
    rng, (n, n_classes) = np.random.default_rng(5), z.shape
    labels = rng.integers(0, n_classes, n)
    labels[::3] = z[::3].argmin(1)
    logits, truth = torch.tensor(z, device=device), torch.tensor(labels, device=device)
    dense = _triton.dense_scores(evicp.LAC(), logits)
    offsets, members, _ = _triton.ragged_sets(evicp.LAC(), logits, float(dense.median()))
    sizes, starts, own = (part.cpu().numpy() for part in (offsets.diff(), offsets[:-1], members))
    hits = np.array([label in own[a : a + b] for label, a, b in zip(labels, starts, sizes, strict=True)])
    expected = [Counts.of(kind, hits, sizes, n_classes + 1) for kind in (sizes, labels, _numpy.label_ranks(z, labels))]
    for given, kinds in ((None, 2), (logits, 3), (logits.double(), 3)):
        found = _triton.tallied(offsets, members, truth, given, n_classes)
        assert found is not None
        for part, counts in zip(found, expected[:kinds], strict=True):
            assert np.array_equal(part, np.stack([counts.rows, counts.hits, counts.labels]))
    logits[1, 0] = torch.nan
    assert "NaN at row 1, class 0" in _message(lambda: _triton.tallied(offsets, members, truth, logits, n_classes))
    for row, wrong in ((1, -1), (n - 1, n_classes)):
        truth[row] = wrong
        assert _triton.tallied(offsets, members, truth, logits, n_classes) is None


def odd_rows_are_reported(device: str) -> None:
    """Rows that a calibration warns of are looked at again; usual ones are not."""
    rng = np.random.default_rng(0)
    usual = rng.normal(size=(40, 5)).astype(np.float32)
    probabilities = np.abs(usual) / np.abs(usual).sum(1, keepdims=True)
    odd = {"usual": usual, "probabilities": probabilities, "equal": 0 * usual + 3, "no evidence": usual - 9}
    for name, z in odd.items():
        for score in (evicp.ECP(), evicp.LAC()):
            found = _triton.labelled(score, torch.tensor(z, device=device), torch.zeros(40, dtype=int, device=device))
            assert found.odd == (name != "usual" and (name != "no evidence" or score.name == "ecp")), (name, score)


def ranks_are_exact(z: np.ndarray, device: str) -> None:
    labels = np.random.default_rng(2).integers(0, z.shape[1], len(z))
    own = _triton.label_ranks(torch.tensor(z, device=device), torch.tensor(labels, device=device))
    assert np.array_equal(own.cpu().numpy(), _numpy.label_ranks(z, labels))


def uncertainties_agree(z: np.ndarray, device: str) -> None:
    for score in (evicp.LAC(), evicp.ECP(evidence="softplus"), evicp.ECP(evidence="exp")):
        own = _triton.uncertainties(score, torch.tensor(z, device=device)).cpu().numpy()
        np.testing.assert_allclose(own, _numpy.uncertainties(score, z), rtol=2e-6)


def uniforms_are_the_reference(z: np.ndarray, device: str) -> None:
    """v, read off TopK's score, has the reference's bits: the same rows get the same v on every backend."""
    score = evicp.TopK(randomized=True, seed=123)
    labels = z.argmax(1)
    own = _triton.label_scores(score, torch.tensor(z, device=device), torch.tensor(labels, device=device))
    expected = np.take_along_axis(score.formula(z.astype(np.float64)), labels[:, None], 1)[:, 0]
    assert np.array_equal(own.cpu().numpy(), expected)


def half_precision_is_upcast(score: evicp.Score, z: np.ndarray, dtype: torch.dtype, device: str) -> None:
    """Half-precision logits score as the same numbers in float32 do, exactly."""
    with np.errstate(over="ignore"):
        logits = torch.tensor(np.clip(z, -60000, 60000), device=device).to(dtype)
    logits[:, 0] = logits[:, 0].clamp_min(-1000.0)  # a clipped mask is no mask
    labels = torch.arange(len(z), device=device) % z.shape[1]
    assert torch.equal(_triton.label_scores(score, logits, labels), _triton.label_scores(score, logits.float(), labels))
    threshold = float(_triton.label_scores(score, logits, labels).median())
    narrow, wide = (_triton.ragged_sets(score, x, threshold) for x in (logits, logits.float()))
    assert all(torch.equal(a, b) for a, b in zip(narrow, wide, strict=True))


def wide_rows_are_left_open(device: str) -> None:
    """Rows whose evidence needs a second pass are NaN until they are settled, and only they."""
    z = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    z[2, 1] = 1e6
    logits, labels = torch.tensor(z, device=device), torch.arange(6, device=device) % 5
    open_ones, settled = (_triton.label_scores(evicp.ECP(), logits, labels, settled=flag) for flag in (False, True))
    assert open_ones.isnan().tolist() == [row == 2 for row in range(6)]
    done = ~open_ones.isnan()
    assert torch.equal(open_ones[done], settled[done])
    reference = np.take_along_axis(_numpy.dense_scores(evicp.ECP(), z), labels[:, None].cpu().numpy(), 1)[:, 0]
    assert np.allclose(settled.cpu().numpy(), reference, rtol=1e-6)


def bad_rows_raise(device: str, n_classes: int = 5, scores: tuple[evicp.Score, ...] = BAD_ROWS_FOR) -> None:
    """NaN, +inf and rows of -inf are the reference's error, word for word, wherever logits are read."""
    for value in (np.nan, np.inf, -np.inf):
        z = np.random.default_rng(0).normal(size=(7, n_classes)).astype(np.float32)
        z[4, 2 if value != -np.inf else slice(None)] = value
        z[6, 1] = np.nan  # a later one is not reported
        logits, labels = torch.tensor(z, device=device), torch.zeros(7, dtype=torch.int64, device=device)
        expected = _message(lambda z=z: _numpy.dense_scores(evicp.LAC(), z))
        assert "row 4" in expected
        for score in scores:
            assert _message(lambda s=score, x=logits, y=labels: _triton.label_scores(s, x, y)) == expected
            assert _message(lambda s=score, x=logits, y=labels: _triton.labelled(s, x, y)) == expected
            unsettled = _triton.label_scores(score, logits, labels, settled=False).isnan().tolist()
            assert unsettled == [row in (4, 6) for row in range(7)]
            assert _message(lambda s=score, x=logits: _triton.ragged_sets(s, x, 0.5)) == expected
            assert _message(lambda s=score, x=logits: _triton.dense_scores(s, x)) == expected
        assert _message(lambda x=logits: _triton.top_labels(evicp.LAC(), x)) == expected
        assert _message(lambda x=logits, y=labels: _triton.label_ranks(x, y)) == expected


def _message(work: Any) -> str:
    try:
        work()
    except LogitsError as error:
        return str(error)
    raise AssertionError("bad logits were accepted")


def views_and_empty_batches(device: str) -> None:
    """Transposed, strided and sliced logits; no rows at all; rows in several groups."""
    z = torch.tensor(hard_rows(9, 12, seed=3), device=device)
    labels = torch.arange(9, device=device) % 12
    score = evicp.ECP()
    expected = _triton.label_scores(score, z, labels)
    padded = torch.full((9, 16), torch.nan, device=device)
    padded[:, 3:15] = z
    for view in (z.t().contiguous().t(), padded[:, 3:15], torch.cat([z, z])[:9]):
        assert torch.equal(_triton.label_scores(score, view, labels), expected)
        assert torch.equal(_triton.labelled(score, view, labels).scores, expected)
    assert torch.equal(_triton.label_scores(score, z[1:], labels[1:]), expected[1:])
    assert torch.equal(_triton.label_scores(score, z.requires_grad_(), labels), expected)
    z = z.detach()
    offsets, members, scores = _triton.ragged_sets(score, z[:0], 0.0)
    assert (offsets.tolist(), len(members), len(scores)) == ([0], 0, 0)
    assert len(_triton.label_scores(score, z[:0], labels[:0])) == 0
    whole = _triton.ragged_sets(score, z, -1.0)
    rows_per_group, slots_per_group = _triton.ROWS_PER_GROUP, _triton.SLOTS_PER_GROUP
    _triton.ROWS_PER_GROUP, _triton.SLOTS_PER_GROUP = 4, 4 * _triton_launch.tiling_for(12, "ecp").slots
    try:
        assert torch.equal(_triton.label_scores(score, z, labels), expected)
        labelled_rows_agree(score, z.cpu().numpy(), device)
        evaluations_agree(z.cpu().numpy(), device)
        grouped = _triton.ragged_sets(score, z, -1.0)
        assert all(torch.equal(a, b) for a, b in zip(whole, grouped, strict=True))
    finally:
        _triton.ROWS_PER_GROUP, _triton.SLOTS_PER_GROUP = rows_per_group, slots_per_group


def double_precision_goes_to_torch(device: str) -> None:
    """float64 logits keep the reference's accuracy: they are not read by these kernels."""
    z = hard_rows(6, 7).astype(np.float64) * (1 + 1e-12)
    own = _triton.dense_scores(evicp.ECP(), torch.tensor(z, device=device)).cpu().numpy()
    assert relative_error(own, _numpy.dense_scores(evicp.ECP(), z)) <= 1e-12
