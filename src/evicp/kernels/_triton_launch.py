"""How rows are laid out on the device, and the kernels of a score with their constants, ready to be launched."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, inf, log
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evicp.kernels._jitted.crowded import _place_sorted, _sort_candidates
from evicp.kernels._jitted.fixed import _write_crowded, _write_fixed
from evicp.kernels._jitted.layout import EVIDENCE, RULES
from evicp.kernels._jitted.scores import _finish_rows, _fix_elements, _score_elements, _score_labels
from evicp.kernels._jitted.sets import _score_candidates, _write_sets
from evicp.kernels._jitted.slots import _read_rows
from evicp.kernels._jitted.split import _join_parts, _read_parts

#: So few long rows do not keep the device busy with a few warps each: they are read in parts of some columns, where the
#: rule allows it, or by more warps.
FEW_ROWS, COLUMNS_OF_A_PART = 256, 10_240

#: Rows of more classes than this do not fit the registers of a small group of threads; they are looped over.
LONGEST_TILE = 2048


#: Rows of more candidates than the first number and at most the second are sorted by a program of so many warps.
_SORTED = ((0, 128, 1), (128, 256, 1), (256, 512, 2), (512, 1024, 4), (1024, 2048, 8))


@dataclass(frozen=True)
class Tiling:
    """How rows are laid out on the device: `rows` by `block` logits to a program of `warps` warps.

    The threads are shared out among the rows: of few classes many rows go to a warp.

    `slots` candidates can be kept of a row; afterwards a program deals those of `rows_ahead` rows out to `chunk`
    threads at a time. A row is read by `parts` programs, a power of 2.
    """

    rows: int
    block: int
    warps: int
    slots: int
    long: bool
    rows_ahead: int = 128
    chunk: int = 128
    parts: int = 1


@lru_cache(maxsize=256)
def tiling_for(n_classes: int, rule: str) -> Tiling:
    """The tiling that was fastest where it was measured (benchmarks/gpu.py --sweep)."""
    if n_classes > LONGEST_TILE:
        return Tiling(rows=1, block=2048, warps=4, slots=256, long=True, rows_ahead=32)
    block = max(16, 1 << (n_classes - 1).bit_length())
    slots = min(block, 64 if block > 128 else 32)
    light = rule in ("ecp", "lac", "margin", "topk") and (block > 512 or block == 128)
    each = 64 if light else 32  # logits to a thread
    rows, warps = max(1, min(each // 4, 32 * each // block)), max(1, block // (32 * each))
    return Tiling(rows=rows, block=block, warps=warps, slots=slots, long=False, chunk=64)


def bits_of(value: float) -> int:
    """A double as the integer of its bits: Triton passes plain floats in single precision."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


class Kernel:
    """A kernel with its constants; once compiled, launched without Triton's dispatch, which takes longer than it."""

    def __init__(self, function: Any, warps: int, **constants: Any) -> None:
        self.function, self.warps, self.constants = function, warps, constants
        self._compiled: dict[tuple[int, ...], tuple[Any, list[Any]]] = {}

    def __call__(self, programs: int, *arguments: Any) -> None:
        """Run on the device of the tensors."""
        if not arguments[0].is_cuda:  # Triton's interpreter
            self.function[(programs,)](*arguments, **self.constants)
            return
        device = arguments[0].get_device()
        if torch.cuda.current_device() != device:
            with torch.cuda.device(device):
                self(programs, *arguments)
            return
        addresses = [a if isinstance(a, int) else a.data_ptr() for a in arguments]
        # Kernels are specialised on the alignment of addresses, not on numbers.
        key = tuple([a & 15 for a, b in zip(addresses, arguments, strict=True) if a is not b])
        known = self._compiled.get(key)
        if known is not None:
            compiled, values = known
            compiled[(programs, 1, 1)](*addresses, *values)
            return
        # Products and sums are not fused, so that the same formula has the same bits in every kernel.
        options = {"num_warps": self.warps, "enable_fp_fusion": False}
        compiled = self.function[(programs,)](*arguments, **self.constants, **options)
        names = self.function.arg_names[len(arguments) :]
        self._compiled[key] = compiled, [self.constants[name] for name in names]


class Plan:
    """The kernels and the parameters of a score for logits of one shape and type; made once."""

    def __init__(self, score: Any, tiling: Tiling, n_classes: int, stride: int, dtype: torch.dtype) -> None:
        self.adds_up = score.adds_up
        self.evidence = score.evidence if score.name == "ecp" else "relu"
        rule = {
            "RULE": RULES[score.name],
            "EVIDENCE": EVIDENCE[self.evidence],
            "RANDOM": getattr(score, "randomized", False),
        }
        vector = 4 if tiling.long else gcd(16 // dtype.itemsize, tiling.block, stride)  # what one load can read
        read = rule | {
            "K": n_classes,
            "STRIDE": stride,
            "ROWS": tiling.rows,
            "BLOCK": tiling.block,
            "VECTOR": vector,
            "WORDS": min(max(32 * tiling.warps // tiling.rows, 4 // vector), tiling.block // vector),
            "LONG": tiling.long,
        }
        sets = {"SLOTS": tiling.slots, "ROWS": tiling.rows_ahead, "CHUNK": tiling.chunk}
        self.read_labels = Kernel(_read_rows, tiling.warps, **read, LABELS=True, SLOTS=0)
        self.read_candidates = Kernel(_read_rows, tiling.warps, **read, LABELS=False, SLOTS=tiling.slots)
        self._split(tiling, read)
        self.score_labels = Kernel(_score_labels, 4, **rule, ROWS=128, SUMMARY=False)
        self.summarize_labels = Kernel(_score_labels, 4, **rule, ROWS=128, SUMMARY=True)
        self.finish_rows = Kernel(_finish_rows, 4, **rule, ROWS=128)
        self.score_candidates = Kernel(_score_candidates, tiling.chunk // 32, **rule, **sets)
        self.write_sets = Kernel(_write_sets, tiling.chunk // 32, **sets)
        fixed = sets | {"MASK": False}, sets | {"MASK": True}
        self.write_labels, self.write_mask = (Kernel(_write_fixed, tiling.chunk // 32, **how) for how in fixed)
        crowded = rule | {"SLOTS": tiling.slots, "BLOCK": min(4096, max(128, tiling.block))}
        self.crowded_labels = Kernel(_write_crowded, 8, **crowded, MASK=False)
        self.crowded_mask = Kernel(_write_crowded, 8, **crowded, MASK=True)
        self.sorts = {
            fewest: Kernel(_sort_candidates, warps, **rule, **_one_row(read, warps), MOST=most, FEWEST=fewest)
            for fewest, most, warps in _SORTED
        }
        self.place_sorted = Kernel(_place_sorted, 1, CHUNK=128)
        self.fix_elements = Kernel(_fix_elements, 4, **rule, BLOCK=256)
        self.score_elements = Kernel(_score_elements, 4, **rule, BLOCK=256)

    def _split(self, tiling: Tiling, read: dict[str, Any]) -> None:
        """The kernels that read rows in parts."""
        columns = -(-read["K"] // (tiling.parts * tiling.block)) * tiling.block
        split = {name: value for name, value in read.items() if name not in ("RANDOM", "ROWS", "LONG")}
        split |= {"PARTS": tiling.parts, "SPAN": columns}
        self.read_parts, self.join_parts = (
            {labels: Kernel(kernel, tiling.warps, **split, LABELS=labels, **more[labels]) for labels in (False, True)}
            for kernel, more in (
                (_read_parts, ({}, {})),
                (_join_parts, ({"SLOTS": tiling.slots}, {"SLOTS": 0})),
            )
        )


def _one_row(read: dict[str, Any], warps: int) -> dict[str, Any]:
    """How one row is read by a program of so many warps."""
    block = min(read["BLOCK"], 1024 * warps) if read["LONG"] else read["BLOCK"]
    words = min(32 * warps, block // read["VECTOR"])
    return {name: read[name] for name in ("K", "STRIDE", "VECTOR", "LONG")} | {"BLOCK": block, "WORDS": words}


class Made(NamedTuple):
    """What is made once for a score and logits of one width, stride, type and device."""

    tiling: Tiling
    plan: Plan
    parameters: Tensor


def made_for(score: Any, logits: Tensor) -> Made:
    """What is made once for a score and logits like these."""
    tiling = tiling_for(logits.shape[1], score.name)
    if tiling.long and len(logits) <= FEW_ROWS:
        parts = -(-logits.shape[1] // COLUMNS_OF_A_PART) if score.name in ("ecp", "lac") else 1
        if parts > 1:
            tiling = replace(tiling, parts=1 << (parts - 1).bit_length())
        else:
            tiling = replace(tiling, block=4 * tiling.block, warps=4 * tiling.warps)
    return Made(tiling, *plan_for(score, tiling, logits.shape[1], logits.stride(0), logits.dtype, logits.device))


@lru_cache(maxsize=256)
def plan_for(
    score: Any, tiling: Tiling, n_classes: int, stride: int, dtype: torch.dtype, device: torch.device
) -> tuple[Plan, Tensor]:
    """The plan and the score's numbers as the kernels read them."""
    stabilizer = score.epsilon(n_classes) if score.name == "ecp" else 0.0
    values = [
        1.0 / (log(2.0) * score.temperature),
        score.temperature,
        log(stabilizer) if stabilizer > 0 else -inf,
        getattr(score, "lam", 0.0),
        float(getattr(score, "k_reg", 0)),
        float(getattr(score, "randomize_penalty", False)),
        float(getattr(score, "seed", 0)),
    ]
    plan = Plan(score, tiling, n_classes, stride, dtype)
    return plan, torch.tensor(values, dtype=torch.float64, device=device)
