"""The Triton kernels on a real GPU, against the NumPy reference. `python tests/gpu/test_cuda.py` works, too."""

from __future__ import annotations

import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

try:
    import pytest
except ImportError:  # a GPU machine without pytest runs this file as a script
    pytest = None
try:
    import torch
    import triton  # noqa: F401

    has_gpu = torch.cuda.is_available()
except ImportError:
    has_gpu = False

sys.path.insert(0, str(Path(__file__).parent))
if has_gpu:
    import agreement
    from hard_rows import SCORES, hard_rows

    import evicp
    from evicp.kernels import _triton
else:
    SCORES = ()

if pytest is not None:
    pytestmark = [
        pytest.mark.skipif(not has_gpu, reason="needs a CUDA device with torch and triton"),
        pytest.mark.filterwarnings("ignore:.*groups have fewer than the"),  # at a coverage that few rows cannot have
    ]

# Kernels are compiled for each number of classes: every score at a few, the main ones at each kind of tile.

PARTS = 16
own_part = [slice(None)]  # which cases of a test this process runs


def in_parts(test: Callable[[], None]) -> Callable[[], None]:
    """A test whose cases may be run by several processes."""
    test.parts = PARTS
    return test


def own_cases(cases: Iterable[Any]) -> list[Any]:
    """The cases that this process runs; all of them under pytest."""
    return list(cases)[own_part[0]]


@in_parts
class OnlyDLPack:
    """An array on the GPU as other packages have them: known by the DLPack protocol, refused by NumPy."""

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.shape, self.ndim = tensor, tuple(tensor.shape), tensor.ndim

    def __len__(self) -> int:
        return len(self.tensor)

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed")


def test_arrays_of_other_packages_on_the_gpu_are_taken_where_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, 50, generator=generator)
    labels = torch.distributions.Categorical(logits=2 * logits).sample()
    logits, labels = logits.cuda(), labels.cuda()
    expected = evicp.calibrate(logits[:1000], labels[:1000])
    found = evicp.calibrate(OnlyDLPack(logits[:1000]), OnlyDLPack(labels[:1000]))
    assert found == expected
    sets, own = found.predict(OnlyDLPack(logits[1000:]), 0.9), expected.predict(logits[1000:], 0.9)
    assert type(sets) is type(own)
    assert sets.labels.is_cuda
    assert torch.equal(sets.labels, own.labels)
    assert torch.equal(sets.offsets, own.offsets)
    assert torch.from_dlpack(sets.labels).data_ptr() == sets.labels.data_ptr()  # and others take the results so
    theirs = found.p_values(OnlyDLPack(logits[1000:1010]))
    assert torch.equal(theirs, expected.p_values(logits[1000:1010]))
    result = evicp.evaluate(sets, OnlyDLPack(labels[1000:]), OnlyDLPack(logits[1000:]))
    assert result.coverage == evicp.evaluate(own, labels[1000:], logits[1000:]).coverage


def test_every_score_on_short_rows() -> None:
    for score in own_cases(SCORES):
        agreement.everything_agrees(score, hard_rows(40, 10), "cuda")


@in_parts
def test_every_score_on_rows_in_registers() -> None:
    for score in own_cases(SCORES):
        agreement.everything_agrees(score, hard_rows(40, 1000), "cuda")


@in_parts
def test_every_score_on_looped_rows() -> None:
    for score in own_cases(SCORES):
        agreement.everything_agrees(score, hard_rows(20, 2049), "cuda")


@in_parts
def test_ecp_on_every_kind_of_tile() -> None:
    for n_classes in own_cases((2, 3, 16, 37, 100, 128, 200, 257, 512, 1024, 1500, 2048, 5000)):
        agreement.everything_agrees(evicp.ECP(), hard_rows(40, n_classes, seed=n_classes), "cuda")


@in_parts
def test_raps_on_every_kind_of_tile() -> None:
    for n_classes in own_cases((2, 16, 100, 257, 1024, 1500, 5000)):
        agreement.everything_agrees(evicp.RAPS(), hard_rows(40, n_classes, seed=n_classes), "cuda")


@in_parts
def test_the_longest_rows() -> None:
    for n_classes in (32_000, 128_256, 262_144):
        z = hard_rows(15, n_classes, seed=1)
        for score in own_cases((evicp.ECP(), evicp.LAC(), evicp.APS())):
            dense, _ = agreement.scores_agree(score, z, "cuda")
            threshold = float(np.sort(dense[0])[20])
            agreement.sets_are_the_scores(score, z, dense, threshold, "cuda")


@in_parts
def test_memberships_differ_in_at_most_one_of_a_million() -> None:
    rng = np.random.default_rng(5)
    for n, n_classes in ((20_000, 10), (4_000, 100), (3_000, 1000), (40, 50_000)):
        labels = rng.integers(0, n_classes, n)
        z = rng.normal(size=(n, n_classes)).astype(np.float32) * 2
        z[np.arange(n), labels] += (4 + 3 * rng.normal(size=n)).astype(np.float32)
        for score in own_cases((evicp.ECP(), evicp.LAC(), evicp.APS(), evicp.RAPS(), evicp.SAPS(), evicp.Margin())):
            differing = size = 0
            for coverage in (0.8, 0.9, 0.95):
                d, m = agreement.memberships(score, z, labels, coverage, "cuda")
                differing, size = differing + d, size + m
            assert differing <= max(1, size // 1_000_000), (score, n_classes, differing, size)


@in_parts
def test_half_precision_is_upcast() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for n_classes in own_cases((10, 1000, 2049)):
            z = hard_rows(60, n_classes, seed=4)
            for score in (evicp.ECP(), evicp.LAC(), evicp.APS()):
                agreement.half_precision_is_upcast(score, z, dtype, "cuda")


@in_parts
def test_bits_do_not_depend_on_the_tiling() -> None:
    z = torch.tensor(hard_rows(50, 1000), device="cuda")
    labels = torch.arange(50, device="cuda") % 1000
    variants = (
        {"rows": 1, "block": 1024, "warps": 1, "slots": 64, "long": False},
        {"rows": 2, "block": 1024, "warps": 4, "slots": 4, "long": False, "chunk": 64, "rows_ahead": 32},
        {"rows": 1, "block": 2048, "warps": 2, "slots": 128, "long": False},
    )
    for score in own_cases((evicp.LAC(), evicp.APS(), evicp.RAPS(), evicp.ECP())):
        results = []
        threshold = float(_triton.label_scores(score, z, labels).median())
        # ECP searches with one row to a program.
        for variant in variants if score.name != "ecp" else (variants[0], variants[2]):
            with agreement.tiling(**variant):
                sets = _triton.ragged_sets(score, z, threshold)
                results.append((_triton.label_scores(score, z, labels), *sets))
        assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True)), score


@in_parts
def test_one_row_is_as_good_as_a_batch() -> None:
    for n_classes in own_cases((10, 1000, 2049)):
        z = torch.tensor(hard_rows(30, n_classes), device="cuda")
        labels = torch.arange(30, device="cuda") % n_classes
        for score in (evicp.ECP(), evicp.LAC(), evicp.APS()):
            whole = _triton.label_scores(score, z, labels)
            single = torch.cat([_triton.label_scores(score, z[i : i + 1], labels[i : i + 1]) for i in range(30)])
            assert torch.equal(whole, single), score


def test_repeated_runs_have_the_same_bits() -> None:
    z = torch.randn(20_000, 1000, device="cuda", generator=torch.Generator("cuda").manual_seed(1)) * 2
    labels = torch.arange(20_000, device="cuda") % 1000
    for score in (evicp.ECP(), evicp.APS(), evicp.RAPS()):
        first = _triton.label_scores(score, z, labels)
        threshold = float(first.sort().values[18_000])
        sets = _triton.ragged_sets(score, z, threshold)
        for _ in range(5):
            assert torch.equal(first, _triton.label_scores(score, z, labels))
            again = _triton.ragged_sets(score, z, threshold)
            assert all(torch.equal(a, b) for a, b in zip(sets, again, strict=True))


@in_parts
def test_coverage_survives_the_way_to_the_gpu_and_back() -> None:
    """Scores of a sure network lie within a rounding error of one value, where arithmetics must not disagree."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 2000)
    logits = ((rng.normal(size=(2000, 10)) + 3 * np.eye(10)[labels]) * 10).astype(np.float32)
    there = torch.tensor(logits, device="cuda")
    truth, rows, new = labels[1000:], slice(0, 1000), slice(1000, 2000)
    for score in own_cases((evicp.LAC(), evicp.APS(randomized=False), evicp.RAPS(randomized=False), evicp.ECP())):
        for made_from in (logits[rows], logits[rows].astype(np.float64), there[rows], there[rows].double()):
            calibration = evicp.calibrate(made_from, labels[rows], score)
            usual = calibration.predict(logits[new].astype(np.float64), 0.9).contains(truth).mean()
            own = evicp.evaluate(calibration.predict(there[new], 0.9), truth).coverage
            assert min(usual, own) >= 0.86, (score, calibration.origin, usual, own)


@in_parts
def test_every_guarantee_has_the_sets_of_the_cpu() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 50, 6000)
    logits = (rng.normal(size=(6000, 50)) + 3 * np.eye(50)[labels]).astype(np.float32)
    there = torch.tensor(logits, device="cuda")
    rows, new, groups = slice(0, 3000), slice(3000, 6000), np.arange(6000) % 7
    weights = rng.exponential(size=6000)
    for score in own_cases((evicp.ECP(), evicp.LAC(), evicp.RAPS())):
        for made, used in (
            ({"by": "class"}, {}),
            ({"by": groups[rows]}, {"groups": groups[new]}),
            ({"by": "uncertainty"}, {}),
            ({"weights": weights[rows]}, {"weights": weights[new]}),
        ):
            calibration = evicp.calibrate(there[rows], labels[rows], score, **made)
            for coverage in (0.6, 0.9, 0.99):  # at the last one some groups are too small, and their sets full
                own = calibration.predict(there[new], coverage, **used).cpu()
                plain = calibration.predict(logits[new], coverage, **used)
                assert own.contains(labels[new]).mean() >= coverage - 0.03, (score, made, coverage)
                assert abs(own.sizes.sum() - plain.sizes.sum()) <= 0.001 * plain.sizes.sum(), (score, made, coverage)


@in_parts
def test_p_values_say_the_same_as_sets() -> None:
    """Of a sure network, whose scores lie closer together than backends may differ."""
    rng = np.random.default_rng(0)
    labels, rows = rng.integers(0, 5, 260), np.arange(260) % 2
    logits = (0.1 * rng.normal(size=(260, 5)) + 20 * np.eye(5)[labels]).astype(np.float32)
    z, y = torch.tensor(logits, device="cuda"), torch.tensor(labels, device="cuda")
    ways = [({"by": rows[:200]}, {"groups": rows[200:]}), ({"by": "class"}, {}), ({}, {})]
    ways.append(({"weights": 1.0 + rows[:200]}, {"weights": 1.0 + rows[200:]}))
    for score in own_cases(("lac", "ecp", "margin")):
        for how, of_new in ways:
            calibration = evicp.calibrate(z[:200], y[:200], score, **how)
            p = torch.as_tensor(calibration.p_values(z[200:], **of_new)).cpu()
            assert torch.equal(p > 0.5 + 1e-12, calibration.predict(z[200:], 0.5, **of_new).mask().cpu())


@in_parts
def test_sets_of_fixed_shape() -> None:
    for n_classes in own_cases((10, 1000, 2049)):
        z = hard_rows(40, n_classes)
        for score in (evicp.ECP(), evicp.LAC(), evicp.RAPS(), evicp.APS()):
            dense = _triton.dense_scores(score, torch.tensor(z, device="cuda")).cpu().numpy()
            for share in (0.02, 0.5):  # at the second one rows have more candidates than slots
                threshold = float(np.quantile(dense[np.isfinite(dense)], share))
                agreement.fixed_sets_agree(score, z, "cuda", threshold)


def test_predictors_in_graphs_and_compiled() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 1000, 3000)
    z = torch.tensor(rng.normal(size=(3000, 1000)), dtype=torch.float32, device="cuda")
    z[torch.arange(3000), labels] += 5
    calibration = evicp.calibrate(z[:2000], labels[:2000])
    for wanted in (None, 4):
        predictor = calibration.predictor(0.9, z[:32], labels=wanted)
        logits, graph = z[2000:2032].clone(), torch.cuda.CUDAGraph()
        predictor(logits)
        with torch.cuda.graph(graph):
            captured = predictor(logits)
        compiled = torch.compile(lambda x, p=predictor: p(x * 1.0), fullgraph=True)
        for start in (2000, 2032, 2900):
            new = z[start : start + 32].clone()
            new[3, 5] = torch.nan
            logits.copy_(new)
            graph.replay()
            own = predictor(new)
            for sets, sizes in (captured, compiled(new)):
                assert torch.equal(own.sets, sets)
                assert torch.equal(own.sizes, sizes)
            ragged = calibration.predict(torch.cat([new[:3], new[4:]]), 0.9)
            assert torch.equal(own.sizes[own.sizes >= 0].long(), ragged.sizes)
            if wanted is None:
                assert torch.equal(own.sets[own.sizes >= 0], ragged.mask())


@in_parts
def test_calibrating_and_predicting_again_and_again() -> None:
    rng = np.random.default_rng(0)
    for n_classes in own_cases((10, 1000, 2049)):
        z = (rng.normal(size=(300, n_classes)) * 3).astype(np.float32)
        for score in (evicp.ECP(), evicp.LAC(), evicp.RAPS()):
            agreement.whole_calls_agree(score, z, "cuda", n_new=40)


def test_the_rest() -> None:
    z = hard_rows(200, 1000)
    agreement.ranks_are_exact(z, "cuda")
    agreement.ranks_are_exact(hard_rows(20, 5000), "cuda")
    for n, n_classes in ((200, 30), (200, 1000), (20, 5000)):
        agreement.uncertainties_agree(hard_rows(n, n_classes), "cuda")
    agreement.uniforms_are_the_reference(z, "cuda")
    agreement.uniforms_are_the_reference(hard_rows(20, 5000), "cuda")
    for score in (evicp.ECP(), evicp.LAC(), evicp.APS()):
        for n, n_classes in ((40, 10), (300, 1000), (20, 2049)):
            agreement.labelled_rows_agree(score, hard_rows(n, n_classes), "cuda")
    for n, n_classes in ((40, 10), (3000, 1000), (20, 2049)):
        agreement.evaluations_agree(hard_rows(n, n_classes), "cuda")
    agreement.odd_rows_are_reported("cuda")
    agreement.bad_rows_raise("cuda")
    agreement.bad_rows_raise("cuda", n_classes=3000)
    agreement.wide_rows_are_left_open("cuda")
    agreement.views_and_empty_batches("cuda")
    agreement.double_precision_goes_to_torch("cuda")


def run_part(name: str, part: int) -> str:
    """One test, or one part of it, in a process that runs others, too; what went wrong, and how long it took."""
    test, start, wrong = globals()[name], time.monotonic(), ""
    own_part[0] = slice(part, None, getattr(test, "parts", 1))
    try:
        test()
    except Exception:
        wrong = f"\n{traceback.format_exc()[-3000:]}"
    return f"{'FAILED' if wrong else 'passed'} {name} {part}, {time.monotonic() - start:.0f} s{wrong}"


def main() -> int:
    """Run the tests without pytest, in parts on every core: compiling takes longer than running."""
    tests = {name: test for name, test in globals().items() if name.startswith("test_")}
    chosen = sys.argv[1:] or list(tests)
    jobs = [(name, part) for part in range(PARTS) for name in chosen if part < getattr(tests[name], "parts", 1)]
    failed = 0
    # Fresh processes: a forked one cannot use the device.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_part, *job) for job in jobs]):
            failed += done.result().startswith("FAILED")
            sys.stdout.write(f"{done.result()}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(jobs) - failed} parts passed, {failed} failed\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main() if has_gpu else "no CUDA device, torch or triton here")
