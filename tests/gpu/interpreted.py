"""The Triton kernels in Triton's interpreter, a few rows at a time; prints what passed and which lines were run.

    python tests/gpu/interpreted.py [--usual] [words of names of cases]

`--usual` runs the cases that the usual tests have time for: every line of every kernel is run by one of them.

A process of its own, because the interpreter must be chosen before Triton is imported. The interpreter runs a kernel
as Python, line by line: that every line of every kernel was run is what "each branch is hit" means here.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import agreement
import numpy as np
import torch
from hard_rows import SCORES, hard_rows

import evicp
from evicp import kernels
from evicp.input import convert
from evicp.kernels import _jitted, _triton, _triton_batch, _triton_crowded

TILE: dict[str, Any] = {"rows": 16, "block": 8, "warps": 1, "slots": 8, "long": False, "rows_ahead": 8, "chunk": 32}
LONG: dict[str, Any] = TILE | {"rows": 1, "block": 16, "slots": 8, "long": True}
FILES = [str(file) for file in sorted(Path(_jitted.__path__[0]).glob("*.py"))]


def on_a_tile(score: evicp.Score) -> None:
    z = hard_rows(14, 5)
    with agreement.tiling(**TILE):
        dense, _ = agreement.scores_agree(score, z, "cpu")
        agreement.sets_are_the_scores(score, z, dense, float(np.sort(dense[12])[1]), "cpu")


def in_full() -> None:
    with agreement.tiling(**TILE):
        agreement.everything_agrees(evicp.ECP(), hard_rows(14, 5, seed=9), "cpu", coverages=(0.5,))


def looped(score: evicp.Score) -> None:
    z = hard_rows(4, 21, seed=2)
    z[2, :18] = -np.inf  # the first words of the row hold nothing
    with agreement.tiling(**LONG):
        dense, _ = agreement.scores_agree(score, z, "cpu")
        agreement.sets_are_the_scores(score, z, dense, float(np.sort(dense[0])[3]), "cpu")


def many_candidates(score: evicp.Score) -> None:
    """More labels than a cut is worth narrowing down for, so that the narrowing is run."""
    z = hard_rows(2, 30, seed=5)
    z[0] = np.linspace(-3, 3, 30)
    with agreement.tiling(**TILE | {"rows": 1, "block": 32, "slots": 32}):
        dense, _ = agreement.scores_agree(score, z, "cpu")
        for threshold in np.quantile(dense[0], [0.02, 0.5]):
            agreement.sets_are_the_scores(score, z, dense, float(threshold), "cpu")


def crowded(score: evicp.Score) -> None:
    """Of rows with more candidates than slots these are sorted, by a kernel or where there are too many by torch."""
    z = hard_rows(9, 7, seed=6)
    together, by_kernel = _triton_batch.CANDIDATES_PER_SORT, _triton_crowded.MOST_OF_A_ROW
    with agreement.tiling(**TILE | {"slots": 2}):
        dense, _ = agreement.scores_agree(score, z, "cpu")
        for threshold in np.quantile(dense[np.isfinite(dense)], [0.3, 0.9]):
            agreement.sets_are_the_scores(score, z, dense, float(threshold), "cpu")
            for _triton_crowded.MOST_OF_A_ROW, _triton_batch.CANDIDATES_PER_SORT in ((1, together), (1, 8)):
                agreement.sets_are_the_scores(score, z, dense, float(threshold), "cpu")
            _triton_crowded.MOST_OF_A_ROW, _triton_batch.CANDIDATES_PER_SORT = by_kernel, together


def crowded_long() -> None:
    z = hard_rows(3, 21, seed=2)
    for score in (evicp.ECP(), evicp.LAC()):
        with agreement.tiling(**LONG | {"slots": 2}):
            agreement.sets_are_the_scores(score, z, _triton.dense_scores(score, torch.tensor(z)).numpy(), 0.3, "cpu")


def split() -> None:
    """Few long rows, each read by several programs: the last of them has nothing to read."""
    z = hard_rows(4, 37, seed=2)
    z[2, :30] = -np.inf
    z[3, 5] = 7e4
    for score in (evicp.ECP(), evicp.LAC()):
        for slots in (8, 2):
            with agreement.tiling(**LONG | {"parts": 4, "slots": slots}):
                dense, _ = agreement.scores_agree(score, z, "cpu")
                agreement.sets_are_the_scores(score, z, dense, float(np.sort(dense[0])[3]), "cpu")


def searched() -> None:
    """Rows of more than 128 classes look for the cut with probes; from 256 on they add in fours."""
    for n_classes, block in ((140, 256), (260, 512)):
        z = hard_rows(2, n_classes, seed=7)
        labels = torch.tensor([1, 2])
        with agreement.tiling(**TILE | {"rows": 8, "block": block, "slots": 32}):
            logits = torch.tensor(z)
            scores = _triton.label_scores(evicp.ECP(), logits, labels).numpy()
            reference = evicp.ECP().scores(z)
            assert np.allclose(scores, reference[[0, 1], [1, 2]], rtol=1e-6, atol=1e-6)
            for threshold in (float(np.sort(reference[0])[5]) + 1e-4, 0.5):
                sizes = np.diff(_triton.ragged_sets(evicp.ECP(), logits, threshold)[0].numpy())
                assert np.array_equal(sizes, (reference <= threshold).sum(1)), (sizes, threshold)


def labelled() -> None:
    for score in (evicp.ECP(), evicp.RAPS()):
        with agreement.tiling(**TILE):
            agreement.labelled_rows_agree(score, hard_rows(14, 5), "cpu")
    with agreement.tiling(**TILE):
        agreement.odd_rows_are_reported("cpu")


def evaluated() -> None:
    with agreement.tiling(**TILE | {"block": 32}):
        agreement.evaluations_agree(hard_rows(14, 20), "cpu")


def whole_calls() -> None:
    """What users call, of tensors that are declared to lie on a device of the kernels."""
    is_on_device, on_device = convert.is_on_device, kernels.on_device
    convert.is_on_device = lambda value: isinstance(value, torch.Tensor)
    kernels.on_device = lambda _score, logits: _triton if isinstance(logits, torch.Tensor) else None
    z = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32) * 3
    try:
        for changes in ({}, {"slots": 2}):
            with agreement.tiling(**TILE | changes):
                agreement.whole_calls_agree(evicp.ECP(), z, "cpu")
    finally:
        convert.is_on_device, kernels.on_device = is_on_device, on_device


def fixed(score: evicp.Score) -> None:
    """Sets of fixed shape: from slots, of rows that have no room in them, and of rows of too much evidence."""
    z = hard_rows(9, 6, seed=6)[2:]
    scores = score.scores(z)
    threshold = float(np.quantile(scores[np.isfinite(scores)], 0.6)) + 1e-4
    for changes in ({}, {"slots": 1}):
        with agreement.tiling(**TILE | changes):
            agreement.fixed_sets_agree(score, z, "cpu", threshold, widths=())


def long_in_fours() -> None:
    z = hard_rows(1, 300, seed=8)
    with agreement.tiling(**LONG | {"block": 256}):
        scores = _triton.label_scores(evicp.ECP(), torch.tensor(z), torch.tensor([7])).numpy()
    assert np.allclose(scores, evicp.ECP().scores(z)[0, 7], rtol=1e-6)


def half_precision() -> None:
    for dtype, score in ((torch.float16, evicp.ECP()), (torch.bfloat16, evicp.APS())):
        with agreement.tiling(**TILE):
            agreement.half_precision_is_upcast(score, hard_rows(14, 5), dtype, "cpu")


def the_rest() -> None:
    with agreement.tiling(**TILE | {"block": 16}):
        agreement.ranks_are_exact(hard_rows(10, 9), "cpu")
        agreement.uncertainties_agree(hard_rows(10, 9), "cpu")
        agreement.uniforms_are_the_reference(hard_rows(14, 9), "cpu")
        agreement.bad_rows_raise("cpu", scores=(evicp.ECP(),))
        agreement.wide_rows_are_left_open("cpu")
        agreement.views_and_empty_batches("cpu")
        agreement.double_precision_goes_to_torch("cpu")
    with agreement.tiling(**LONG):
        agreement.ranks_are_exact(hard_rows(3, 21), "cpu")
        agreement.uncertainties_agree(hard_rows(3, 21), "cpu")
        agreement.uniforms_are_the_reference(hard_rows(3, 21), "cpu")


#: The cases of one score: by which of `SCORES`, and by which of them usually. Those that run lines no other case runs
#: come first: once every line has been run, no more are traced, which takes longer than running them.
OF_A_SCORE: dict[Callable[[evicp.Score], None], tuple[tuple[int, ...], tuple[int, ...]]] = {
    looped: ((0, 1, 2, 4, 6, 8, 10, 12, 14), (6, 12, 14)),
    many_candidates: ((6, 8, 10, 12), (8, 10)),
    on_a_tile: ((0, 5, 6, 14, *range(1, 5), *range(7, 14)), (0, 5, 6, 14, 1, 2, 9, 11, 13)),
    crowded: ((0, 6), (6,)),
    fixed: ((0, 4, 6, 8, 12), (0, 6)),
}
USUAL = (searched, long_in_fours, crowded_long, split, labelled, evaluated, whole_calls)
OTHERS = (in_full, half_precision)
#: What only a real device runs.
ONLY_COMPILED = "tl.inline_asm_elementwise"


def cases(*, usual: bool) -> dict[str, Callable[[], None]]:
    """The cases by name: all, or those of the usual run."""
    found: dict[str, Callable[[], None]] = {case.__name__: case for case in USUAL}
    for case, (every, some) in OF_A_SCORE.items():
        for index in some if usual else every:
            found[f"{case.__name__}: {SCORES[index]}"] = partial(case, SCORES[index])
    found |= {case.__name__: case for case in (the_rest, *(() if usual else OTHERS))}
    return {name.replace("_", " "): case for name, case in found.items()}


def kernel_lines(file: str) -> set[tuple[str, int]]:
    """The lines with code in them, of the kernels of a file; without those that no interpreter runs."""
    pending, lines = [compile(Path(file).read_text(), file, "exec")], set()
    while pending:
        code = pending.pop()
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        if code.co_name != "<module>":
            lines |= {line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno}
    text = Path(file).read_text().splitlines()
    return {(file, line) for line in lines if ONLY_COMPILED not in text[line - 1]}


def main() -> None:
    run: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            run.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    results = {}
    wanted = {line for file in FILES for line in kernel_lines(file)}
    chosen = [word for word in sys.argv[1:] if word != "--usual"]
    for name, case in cases(usual="--usual" in sys.argv).items():
        if chosen and not any(word in name for word in chosen):
            continue
        sys.settrace(trace if wanted - run else None)
        try:
            case()
            results[name] = "passed"
        except Exception:
            results[name] = traceback.format_exc()[-3000:]
        finally:
            sys.settrace(None)
    missed = [f"{file}:{n}: {Path(file).read_text().splitlines()[n - 1].strip()}" for file, n in sorted(wanted - run)]
    sys.stdout.write(json.dumps({"results": results, "missed": missed}))


if __name__ == "__main__":
    main()
