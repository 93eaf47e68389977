"""The built-in scores on CUDA: one kernel reads the logits, once; everything after it works on what it left.

`_read_rows` reduces a row to a few statistics and, on the way, counts the labels above the one asked for, or finds
the few labels that could be in the set. Rows that fit are held in registers (`_tile`), longer ones are looped over
(`_long`). `_score` then turns a logit, its rank and its row's statistics into the label's score, in float64. It is
the only formula: label scores, sets and dense scores all end in it, so membership and `score <= threshold` agree
bit for bit.

Probabilities and evidence are added as integers (`_parts`), in two levels of 20 bits that each fit a 32-bit sum.
Integer sums have no order, so neither the compiler nor the number of warps has a say in a result's last bits. From 256
classes on, where it pays, neighbours are added in fours as floats first; their order is written here, too.

A set is made in four steps with one wait for the device: `_read_rows` writes a row's candidates into a few slots of
its own (found by a bound that no member can fail), `_score_candidates` scores them, a running sum gives the offsets,
`_write_sets` puts the members in order. Rows with more candidates than slots are sorted instead.
"""

# Kernels are not Python that mypy could follow, and Triton's compile-time constants are upper case by custom.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: ARG001, C901, N803, N806, PLR0912, PLR0915, PLR1714, RET505, SIM109

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf, log
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from evicp.kernels import _torch

__all__ = ["dense_scores", "knows", "label_ranks", "label_scores", "p_values", "ragged_sets", "top_labels"]

#: Rows of more classes than this do not fit the registers of a small group of threads; they are looped over.
LONGEST_TILE = 2048

#: Rows of a large batch are worked on in groups, so that what is kept per row stays small beside the logits.
ROWS_PER_GROUP = 1 << 20

#: At most this many slots for candidates at a time, 16 bytes each (24 where probabilities are added up).
SLOTS_PER_GROUP = 1 << 25

_RULES = {"ecp": 0, "lac": 1, "aps": 2, "base": 2, "raps": 3, "saps": 4, "topk": 5, "margin": 6}
_EVIDENCE = {"relu": 0, "softplus": 1, "exp": 2}


@dataclass(frozen=True)
class Tiling:
    """How rows are laid out on the device: `rows` by `block` logits to a program of `warps` warps.

    `slots` candidates can be kept of a row; afterwards a program deals those of `rows_ahead` rows out to `chunk`
    threads at a time.
    """

    rows: int
    block: int
    warps: int
    slots: int
    long: bool
    rows_ahead: int = 128
    chunk: int = 128


@lru_cache(maxsize=256)
def tiling_for(n_classes: int, rule: str) -> Tiling:
    """The tiling that was fastest where it was measured (benchmarks/gpu.py --sweep)."""
    if n_classes > LONGEST_TILE:
        return Tiling(rows=1, block=2048, warps=4, slots=512, long=True)
    block = max(16, 1 << (n_classes - 1).bit_length())
    slots = min(block, 256 if rule in ("aps", "base") else 64)
    return Tiling(
        rows=min(16, 512 // block) if block <= 128 else 1,
        block=block,
        warps=max(1, block // 1024),
        slots=slots,
        long=False,
    )


def knows(score: Any) -> bool:
    """Whether this backend has a score: the built-in ones (not a user's subclass), where they are monotone."""
    if type(score).__module__ != "evicp.scores" or score.name not in _RULES or not 1e-30 < score.temperature < 1e30:
        return False
    return score.name != "ecp" or score.monotone


def label_scores(score: Any, logits: Tensor, labels: Tensor, *, settled: bool = True) -> Tensor:
    """The score of each row's given label, (n,) float64.

    Unless `settled`, nothing waits for the device, and NaN stands for the rows that cannot be scored and for those
    that need more than one pass.
    """
    if not _readable(logits):
        return _torch.label_scores(score, logits, labels)
    parts = [
        _Batch(score, group, start).label_scores(_indices(labels, start, len(group)), settled=settled)
        for start, group in _groups(logits, ROWS_PER_GROUP)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def ragged_sets(score: Any, logits: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """All labels with score <= threshold: offsets (n + 1,) int64, labels int32, their scores float64.

    Within a row labels ascend by score, then descend by logit, then ascend by index.
    """
    if not _readable(logits):
        return _torch.ragged_sets(score, logits, threshold)
    slots = tiling_for(logits.shape[1], score.name).slots
    groups = _groups(logits, max(1, SLOTS_PER_GROUP // slots))
    parts = [_Batch(score, group, start).ragged_sets(float(threshold)) for start, group in groups]
    if len(parts) == 1:
        return parts[0]
    offsets, labels, scores = zip(*parts, strict=True)
    sizes = torch.cat([part[1:] - part[:-1] for part in offsets])
    return _torch.offsets_of(sizes), torch.cat(labels), torch.cat(scores)


def dense_scores(score: Any, logits: Tensor) -> Tensor:
    """Every label's score, (n, K) float64."""
    return _torch.stacked(logits, dense_blocks(score, logits))


def dense_blocks(score: Any, logits: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The same by blocks of rows, each with the number of its first."""
    if not _readable(logits):
        yield from _torch.dense_blocks(score, logits)
        return
    for start, group in _groups(logits, max(1, _torch.BLOCK_LOGITS // logits.shape[1])):
        yield start, _Batch(score, group, start).dense_scores()


def p_values(score: Any, logits: Tensor, ascending: Tensor, labels: Tensor | None = None) -> Tensor:
    """p = (1 + #{s_i >= s}) / (n + 1) from n sorted calibration scores: of every label, or of the given ones."""
    if labels is not None:
        return _torch.p_of(label_scores(score, logits, labels), ascending)
    values = ((start, _torch.p_of(scores, ascending)) for start, scores in dense_blocks(score, logits))
    return _torch.stacked(logits, values)


def top_labels(score: Any, logits: Tensor) -> Tensor:
    """Each row's most plausible label, (n,) int32: the highest logit, then the lowest index."""
    top = logits.detach().argmax(1)
    largest = logits.detach().gather(1, top[:, None])[:, 0]
    bad = torch.nonzero(~torch.isfinite(largest))
    if len(bad):
        _torch.raise_bad_row(logits, int(bad[0]))
    return top.to(torch.int32)


def label_ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """o: one plus the number of labels with a strictly larger logit than the given one, (n,) int64."""
    if not _readable(logits):
        return _torch.label_ranks(logits, labels)
    result = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for start, group in _groups(logits, ROWS_PER_GROUP):
        ranks = _Batch(_RankOnly(), group, start).ranks(_indices(labels, start, len(group)))
        result[start : start + len(group)] = 1 + ranks
    return result


def uncertainties(score: Any, logits: Tensor) -> Tensor:
    """Eq. 3: u = K / alpha_0 of each row, (n,), with the evidence of the score (relu where it has none)."""
    if not _readable(logits):
        return _torch.uncertainties(score, logits)
    evidence, n_classes = getattr(score, "evidence", "relu"), logits.shape[1]
    result = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    for start, group in _groups(logits, ROWS_PER_GROUP):
        top, rest = _Batch(_EvidenceOnly(evidence), group, start).evidence()
        largest = _torch.evidence_of(evidence, top[:, None])[:, 0]
        result[start : start + len(group)] = n_classes / (n_classes + largest + rest)
    return result


@dataclass(frozen=True)
class _EvidenceOnly:
    """What `_Batch` needs of a score, for the evidence of each row and nothing else."""

    evidence: str
    name: str = "ecp"
    temperature: float = 1.0
    adds_up: bool = False

    def epsilon(self, n_classes: int) -> float:  # noqa: ARG002 - as ECP's
        return 0.0


@dataclass(frozen=True)
class _RankOnly:
    """What `_Batch` needs of a score, for a count of the labels above and nothing else."""

    name: str = "topk"
    temperature: float = 1.0
    randomized: bool = False
    seed: int = 0
    adds_up: bool = False


def _readable(logits: Tensor) -> bool:
    """Whether the kernels read this type as it is; float64 wants more accuracy than they have."""
    return logits.dtype in (torch.float32, torch.float16, torch.bfloat16)


def precision(logits: Tensor) -> str:
    """The name of the type in which logits are reduced."""
    return "float32" if _readable(logits) else _torch.precision(logits)


def _groups(logits: Tensor, rows: int) -> Iterator[tuple[int, Tensor]]:
    """Groups of rows, at least one of them, with the classes of a row side by side in memory."""
    logits = logits.detach()
    if logits.stride(1) != 1 or logits.stride(0) < logits.shape[1]:
        logits = logits.contiguous()
    if len(logits) <= rows:
        yield 0, logits
        return
    for start in range(0, len(logits), rows):
        yield start, logits[start : start + rows]


def _indices(labels: Tensor, start: int, count: int) -> Tensor:
    """A group's labels as the kernels read them."""
    whole = labels if count == len(labels) else labels[start : start + count]
    return whole.to(torch.int64).contiguous()


# ---------------------------------------------------------------------------------------------------------------
# A group of rows on its way through the kernels

_STATISTICS = 12


def _bits(value: float) -> int:
    """A double as the integer of its bits: Triton passes plain floats in single precision."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


class _Kernel:
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


class _Plan:
    """The kernels and the parameters of a score for logits of one shape and type; made once."""

    def __init__(self, score: Any, tiling: Tiling, n_classes: int, stride: int, dtype: torch.dtype) -> None:
        self.adds_up = score.adds_up
        self.evidence = score.evidence if score.name == "ecp" else "relu"
        rule = {
            "RULE": _RULES[score.name],
            "EVIDENCE": _EVIDENCE[self.evidence],
            "RANDOM": getattr(score, "randomized", False),
        }
        vector = 4 if tiling.long else gcd(16 // dtype.itemsize, tiling.block)
        read = rule | {
            "K": n_classes,
            "STRIDE": stride,
            "ROWS": tiling.rows,
            "BLOCK": tiling.block,
            "VECTOR": vector,
            "WORDS": min(32 * tiling.warps, tiling.block // vector),
            "LONG": tiling.long,
        }
        sets = {"SLOTS": tiling.slots, "ROWS": tiling.rows_ahead, "CHUNK": tiling.chunk}
        self.read_labels = _Kernel(_read_rows, tiling.warps, **read, LABELS=True, SLOTS=0)
        self.read_candidates = _Kernel(_read_rows, tiling.warps, **read, LABELS=False, SLOTS=tiling.slots)
        self.score_labels = _Kernel(_score_labels, 4, **rule, ROWS=128)
        self.finish_rows = _Kernel(_finish_rows, 4, **rule, ROWS=128)
        self.score_candidates = _Kernel(_score_candidates, tiling.chunk // 32, **rule, **sets)
        self.write_sets = _Kernel(_write_sets, tiling.chunk // 32, **sets)
        self.fix_elements = _Kernel(_fix_elements, 4, **rule, BLOCK=256)
        self.score_elements = _Kernel(_score_elements, 4, **rule, BLOCK=256)


@lru_cache(maxsize=256)
def _plan(
    score: Any, tiling: Tiling, n_classes: int, stride: int, dtype: torch.dtype, device: torch.device
) -> tuple[_Plan, Tensor]:
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
    plan = _Plan(score, tiling, n_classes, stride, dtype)
    return plan, torch.tensor(values, dtype=torch.float64, device=device)


class _Batch:
    """One group of rows: its statistics, and what the kernels reported of it."""

    def __init__(self, score: Any, logits: Tensor, first_row: int) -> None:
        self.logits, self.first_row = logits, first_row
        self.n, self.n_classes = logits.shape
        self.stride = logits.stride(0)
        self.tiling = tiling_for(self.n_classes, score.name)
        self.plan, self.parameters = _plan(score, self.tiling, self.n_classes, self.stride, logits.dtype, logits.device)
        self.stats = torch.empty(_STATISTICS, self.n, dtype=torch.float64, device=logits.device)
        self.status = torch.zeros(4, dtype=torch.int64, device=logits.device)

    def label_scores(self, labels: Tensor, *, settled: bool) -> Tensor:
        if self.n:
            self._read_labels(labels)
        result = torch.empty(self.n, dtype=torch.float64, device=self.logits.device)
        if self.n:
            self._score_labels(labels, result)
            if settled and self._report()[1]:
                self._mend_wide_rows()
                self._score_labels(labels, result)
        return result

    def ranks(self, labels: Tensor) -> Tensor:
        if self.n:
            self._read_labels(labels)
            self._report()
        return self.stats[_RANK.value].to(torch.int64)

    def evidence(self) -> tuple[Tensor, Tensor]:
        """The largest logit of each row, and the evidence of all others."""
        self._prepare_rows()
        return self.stats[_TOP.value], self.stats[_REST.value]

    def dense_scores(self) -> Tensor:
        self._prepare_rows()
        scores, order = self._ordered_scores(torch.arange(self.n, device=self.logits.device))
        return torch.empty_like(scores).scatter_(1, order, scores)

    def ragged_sets(self, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
        if self.n == 0 or threshold == inf:
            return self._sorted_sets(threshold)
        found = self._slots()
        self._read_candidates(found, threshold)
        candidates = self._candidates(*found)  # while the device reads
        self._score_candidates(candidates, threshold)
        offsets = torch.cumsum(candidates[3], 0, dtype=torch.int64)
        _, wide, crowded, total = self._report()
        if wide or crowded:
            return self._with_sorted_rows(candidates, threshold, bool(wide))
        return self._write_sets(candidates, offsets, total, threshold)

    def _slots(self) -> tuple[Tensor, Tensor, Tensor]:
        """Slots, counts of candidates, sizes of the sets after a 0."""
        n, slots, device = self.n, self.tiling.slots, self.logits.device
        return (
            torch.empty(n, slots, dtype=torch.int64, device=device),
            torch.empty(n, dtype=torch.int32, device=device),
            torch.empty(n + 1, dtype=torch.int32, device=device),
        )

    def _candidates(self, slots: Tensor, counts: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        """The same, with scores in third place, and at the end running counts and fixed exponentials."""
        scores = torch.empty(slots.shape, dtype=torch.float64, device=slots.device)
        fixed = torch.empty(
            self.n, self.tiling.slots if self.plan.adds_up else 0, dtype=torch.int64, device=slots.device
        )
        return slots, counts, scores, sizes, torch.empty_like(counts), fixed

    # The kernels ------------------------------------------------------------------------------------------------

    def _read_labels(self, labels: Tensor) -> None:
        none = self.status
        arguments = (self.logits, labels, self.stats, none, none, none, self.status, self.parameters, self.n, 0)
        self.plan.read_labels(triton.cdiv(self.n, self.tiling.rows), *arguments)

    def _read_candidates(self, found: tuple[Tensor, Tensor, Tensor], threshold: float) -> None:
        arguments = (self.logits, self.status, self.stats, *found, self.status, self.parameters)
        self.plan.read_candidates(triton.cdiv(self.n, self.tiling.rows), *arguments, self.n, _bits(threshold))

    def _score_labels(self, labels: Tensor, result: Tensor) -> None:
        arguments = (self.logits, labels, self.stats, self.parameters, result, self.n, self.n_classes, self.stride)
        self.plan.score_labels(triton.cdiv(self.n, 128), *arguments)

    def _finish_rows(self) -> None:
        self.plan.finish_rows(triton.cdiv(self.n, 128), self.stats, self.parameters, self.n, self.n_classes)

    def _score_candidates(self, candidates: tuple[Tensor, ...], threshold: float) -> None:
        tensors = (self.logits, *candidates, self.status, self.stats, self.parameters)
        programs = triton.cdiv(self.n, self.tiling.rows_ahead)
        self.plan.score_candidates(programs, *tensors, self.n, self.n_classes, self.stride, _bits(threshold))

    def _write_sets(
        self, candidates: tuple[Tensor, ...], offsets: Tensor, total: int, threshold: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        slots, _, slot_scores, _, ends, _ = candidates
        labels = torch.empty(total, dtype=torch.int32, device=self.logits.device)
        scores = torch.empty(total, dtype=torch.float64, device=self.logits.device)
        arguments = (slots, slot_scores, ends, offsets, labels, scores, self.n, _bits(threshold))
        self.plan.write_sets(triton.cdiv(self.n, self.tiling.rows_ahead), *arguments)
        return offsets, labels, scores

    def _report(self) -> list[int]:
        """Wait for the device: was a row bad (raise), how many are wide, how many crowded, how many members."""
        report: list[int] = self.status.tolist()
        if report[0]:
            _torch.raise_bad_row(self.logits, self.n - report[0], self.first_row)
        return report

    # Rows that the fast path leaves over --------------------------------------------------------------------------

    def _prepare_rows(self) -> None:
        """Statistics of every row, for scores that are not asked for by label or by slot."""
        if self.n == 0:
            return
        self._read_labels(torch.zeros(self.n, dtype=torch.int64, device=self.logits.device))  # any label will do
        if self._report()[1]:
            self._mend_wide_rows()
        self._finish_rows()

    def _mend_wide_rows(self) -> None:
        """The evidence beside the top label's, of rows whose evidence is too large to be added in fixed point.

        The largest of the others sets the unit: they are added as integers again, of 40 bits.
        """
        rows = torch.nonzero(self.stats[_REST.value] < 0)[:, 0]
        for group in rows.split(max(1, _torch.BLOCK_LOGITS // self.n_classes)):
            z = self.logits[group].to(torch.float64)
            z.scatter_(1, z.argmax(1, keepdim=True), -inf)
            evidence = _torch.evidence_of(self.plan.evidence, z)
            largest = evidence.amax(1, keepdim=True).clamp_min(1.0)
            unit = torch.exp2(torch.ceil(torch.log2(largest)) - 40)
            whole = (evidence / unit).round().to(torch.int64).sum(1)
            self.stats[_REST.value, group] = whole.to(torch.float64) * unit[:, 0]

    def _ordered_scores(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of some rows, logits descending, and which label each is; rows must have been finished."""
        z, order = torch.sort(self.logits[rows], dim=1, descending=True, stable=True)
        position = torch.arange(self.n_classes, device=z.device).expand(z.shape)
        opens_group = torch.zeros(z.shape, dtype=torch.bool, device=z.device)
        opens_group[:, 1:] = z[:, 1:] != z[:, :-1]
        ranks = torch.where(opens_group, position, 0).cummax(1).values
        mass = ranks
        if self.plan.adds_up:
            fixed = self._elements(
                self.plan.fix_elements, rows, z, torch.empty(z.shape, dtype=torch.int64, device=z.device)
            )
            mass = (fixed.cumsum(1) - fixed).gather(1, ranks)
        scores = torch.empty(z.shape, dtype=torch.float64, device=z.device)
        return self._elements(self.plan.score_elements, rows, z, scores, ranks, mass.contiguous()), order

    def _elements(self, kernel: _Kernel, rows: Tensor, z: Tensor, result: Tensor, *more: Tensor) -> Tensor:
        if z.numel():
            tensors = (z, rows, *more, self.stats, self.parameters, result)
            kernel(triton.cdiv(z.numel(), 256), *tensors, z.numel(), self.n, self.n_classes)
        return result

    def _sorted_rows(self, rows: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
        """Sizes, labels and scores of the sets of some rows, by sorting them whole."""
        sizes, labels, scores = [], [], []
        for group in rows.split(max(1, _torch.BLOCK_LOGITS // self.n_classes)):
            ordered, order = self._ordered_scores(group)
            if not bool((ordered[:, 1:] >= ordered[:, :-1]).all()):  # two scores that differ by rounding alone
                ordered, again = torch.sort(ordered, dim=1, stable=True)
                order = order.gather(1, again)
            member = ordered <= threshold
            sizes.append(member.sum(1))
            labels.append(order[member].to(torch.int32))
            scores.append(ordered[member])
        return torch.cat(sizes), torch.cat(labels), torch.cat(scores)

    def _sorted_sets(self, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
        self._prepare_rows()
        sizes, labels, scores = self._sorted_rows(torch.arange(self.n, device=self.logits.device), threshold)
        return _torch.offsets_of(sizes), labels, scores

    def _with_sorted_rows(
        self, candidates: tuple[Tensor, ...], threshold: float, wide: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sets of a group in which some rows had no room in their slots, or evidence too wide."""
        _, counts, _, sizes, *_ = candidates
        if wide:
            self._mend_wide_rows()
            self._finish_rows()
        rows = torch.nonzero(counts > self.tiling.slots)[:, 0]
        own_sizes, own_labels, own_scores = self._sorted_rows(rows, threshold)
        sizes[1:][rows] = own_sizes.to(torch.int32)
        offsets = torch.cumsum(sizes, 0, dtype=torch.int64)
        result = self._write_sets(candidates, offsets, int(offsets[-1]), threshold)
        begins = _torch.offsets_of(own_sizes)[:-1]
        shift = torch.repeat_interleave(offsets[rows] - begins, own_sizes)
        place = torch.arange(len(own_labels), device=shift.device) + shift
        result[1][place], result[2][place] = own_labels, own_scores
        return result


# ---------------------------------------------------------------------------------------------------------------
# Kernels take many arguments; one on each line would hide what they do.
# fmt: off
# Shapes: row quantities are (ROWS,), tiles (ROWS, BLOCK).

_ECP, _LAC, _APS, _RAPS, _SAPS, _TOPK, _MARGIN = (tl.constexpr(number) for number in range(7))
_RELU, _SOFTPLUS = (tl.constexpr(number) for number in range(2))

# Rows of `stats`: what is known of each row of logits, float64.
_TOP, _LEAST, _ABOVE_LEAST, _TOTAL, _REST, _HASH = (tl.constexpr(number) for number in range(6))
_SECOND, _RANK, _MASS, _LOG_TOTAL, _LARGEST, _V = (tl.constexpr(number) for number in range(6, 12))

# Entries of `parameters` and of `status`.
_RATE, _TEMPERATURE, _LOG_EPSILON, _LAM, _K_REG, _PENALTY, _SEED = (tl.constexpr(number) for number in range(7))
_BAD, _WIDE, _CROWDED, _MEMBERS = (tl.constexpr(number) for number in range(4))

#: 1.5 * 2^23: adding it to a float below 2^22 rounds that to a whole number, which the sum's bits then hold.
_BIAS = tl.constexpr(12582912.0)
_BIAS_BITS = tl.constexpr(0x4B400000)
#: Units of the coarse level per one: probabilities are at most 1, evidence below 2^15, so 2048 of either fit.
_PER_ONE, _PER_EVIDENCE = tl.constexpr(2.0**19), tl.constexpr(2.0**4)
_FINE = tl.constexpr(2.0**20)
_UNIT, _EVIDENCE_UNIT = tl.constexpr(2.0**-39), tl.constexpr(2.0**-24)
_WIDEST = tl.constexpr(2.0**15)
#: Long rows add neighbours in fours as floats before they add integers: fewer instructions, and an error of 2^-24 of
#: the largest evidence, which 16 times the others' base counts of 1 must outweigh.
_FOURS_FROM = tl.constexpr(256)
#: Candidates are narrowed down until there are no more than this, or until it does not help.
_FEW = tl.constexpr(16)
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _larger(a, b):
    """The larger of two; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


#: Whether kernels are compiled for an NVIDIA device: neither interpreted nor on ROCm.
_NVIDIA = tl.constexpr(isinstance(_larger, triton.JITFunction) and torch.version.hip is None)


@triton.jit
def _exponential(z, top, rate):
    """softmax's numerator, in (0, 1]: the same operations wherever it is needed, so the same bits."""
    return tl.exp2((z - top) * rate)


@triton.jit
def _parts(x, PER_ONE: tl.constexpr):
    """x >= 0 in fixed point: whole coarse units, and the remainder in 2^-20 of them, as the bits of biased floats."""
    coarse = tl.fma(x, PER_ONE, _BIAS)
    left = tl.fma(x, PER_ONE, _BIAS - coarse)
    fine = tl.fma(left, _FINE, _BIAS)
    return coarse.to(tl.int32, bitcast=True), fine.to(tl.int32, bitcast=True)


@triton.jit
def _fixed(x, PER_ONE: tl.constexpr):
    """x in fine units, int64."""
    coarse, fine = _parts(x, PER_ONE)
    return ((coarse - _BIAS_BITS).to(tl.int64) << 20) + (fine - _BIAS_BITS)


@triton.jit
def _add_parts(coarse, fine, COUNT: tl.constexpr):
    """The sum of COUNT numbers in each row in fine units, int64. The biases add up too, modulo 2^32, and come off."""
    BIASES: tl.constexpr = (COUNT * 0x4B400000 + 2**31) % 2**32 - 2**31
    coarse_sum = tl.sum(coarse, 1) - BIASES
    fine_sum = tl.sum(fine, 1) - BIASES
    return (coarse_sum.to(tl.int64) << 20) + fine_sum


@triton.jit
def _halves(x):
    a, b = tl.split(x)
    return a + b


@triton.jit
def _add_tile(x, PER_ONE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, FOURS: tl.constexpr):
    """The sum of each row of a tile in fine units, int64."""
    if FOURS:
        x = _halves(_halves(tl.reshape(x, [ROWS, BLOCK // 4, 2, 2])))
        coarse, fine = _parts(x, PER_ONE)
        return _add_parts(coarse, fine, BLOCK // 4)
    else:
        coarse, fine = _parts(x, PER_ONE)
        return _add_parts(coarse, fine, BLOCK)


@triton.jit
def _evidence_32(z, EVIDENCE: tl.constexpr):
    if EVIDENCE == _RELU:
        return tl.maximum(z, 0.0)
    elif EVIDENCE == _SOFTPLUS:
        return tl.maximum(z, 0.0) + tl.log2(1.0 + tl.exp2(-tl.abs(z) * _LOG2_E)) * _LN_2
    else:
        clipped = tl.minimum(tl.maximum(z, -10.0), 10.0)
        return tl.where(z == float("-inf"), 0.0, tl.exp2(clipped * _LOG2_E))


@triton.jit
def _evidence_64(z, EVIDENCE: tl.constexpr):
    if EVIDENCE == _RELU:
        return tl.maximum(z, 0.0)
    elif EVIDENCE == _SOFTPLUS:
        return tl.maximum(z, 0.0) + _log1p(tl.exp(-tl.abs(z)))
    else:
        clipped = tl.minimum(tl.maximum(z, -10.0), 10.0)
        return tl.where(z == float("-inf"), 0.0, tl.exp(clipped))


@triton.jit
def _log1p(x):
    """ln(1 + x) for x >= 0, with what rounding took from 1 + x put back."""
    one_more = 1.0 + x
    return tl.log(one_more) + (x - (one_more - 1.0)) / one_more


@triton.jit
def _rough_log2(x):
    """log2 of x >= 0 to 2e-5, at an eighth of the cost of the exact one; -127 or less at 0."""
    if _NVIDIA:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    bits = x.to(tl.int32, bitcast=True)
    m = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    p = tl.fma(tl.fma(m, 0.043004957791727826, -0.402513393548008), m, 1.5894742949724239)
    p = tl.fma(tl.fma(p, m, -3.4898785506802206), m, 5.047855413438107)
    return tl.fma(p, m, -2.7879262073031468) + ((bits >> 23) - 127).to(tl.float32)


@triton.jit
def _mix32(x):
    """MurmurHash3's 32-bit finaliser."""
    x = x ^ (x >> 16)
    x = x * 0x85EBCA6B
    x = x ^ (x >> 13)
    x = x * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _hashes(z):
    """Each finite logit's part in its row's hash, uint32; -0.0 + 0.0 is 0.0."""
    bits = (z + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(z == float("-inf"), 0, _mix32(bits)).to(tl.uint32)


@triton.jit
def _count(condition):
    """How many hold in each row, float32: exact, and a cheaper instruction than the integer one."""
    return tl.sum(tl.where(condition, 1.0, 0.0), 1)


@triton.jit
def _tile(base, start, K: tl.constexpr, BLOCK: tl.constexpr):
    column = start + tl.arange(0, BLOCK)
    places = base[:, None] + column[None, :]
    return tl.load(places, mask=(column < K)[None, :], other=float("-inf")).to(tl.float32)


@triton.jit
def _least_of(z, K: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest finite logit of each row. Masked labels are rare: the second look is, too."""
    real = (tl.arange(0, BLOCK) < K)[None, :]
    least = tl.min(tl.where(real, z, float("inf")), 1)
    if tl.min(least, 0) == float("-inf"):
        least = tl.min(tl.where(z == float("-inf"), float("inf"), z), 1)
    return least


# What a row is reduced to ----------------------------------------------------------------------------------------
# Both forms return (top, least, labels above the least, total of exponentials, evidence beside the top's, hash,
# second logit, rank and mass above of the label whose logit is `own`); what a rule does not need is left 0.


@triton.jit
def _reduce_tile(
    z, own, rate, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, LABELS: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    FOURS: tl.constexpr = K >= _FOURS_FROM
    top = tl.reduce(z, 1, _larger)
    least, above_least, second, rank = top, top * 0, top, top * 0
    rest, total, mass = top.to(tl.float64) * 0, top.to(tl.float64) * 0, top.to(tl.float64) * 0
    hash_sum = top.to(tl.float64) * 0
    if LABELS:
        rank = _count(z > own[:, None])
    if RULE == _APS or RULE == _RAPS:
        coarse, fine = _parts(_exponential(z, top[:, None], rate), _PER_ONE)
        total = _add_parts(coarse, fine, BLOCK).to(tl.float64)
        if LABELS:
            above = z > own[:, None]
            mass = _add_parts(tl.where(above, coarse, _BIAS_BITS), tl.where(above, fine, _BIAS_BITS), BLOCK)
            mass = mass.to(tl.float64)
    elif RULE != _TOPK:
        total = _add_tile(_exponential(z, top[:, None], rate), _PER_ONE, ROWS, BLOCK, FOURS).to(tl.float64)
    if RULE == _ECP:
        evidence = _add_tile(_evidence_32(z, EVIDENCE), _PER_EVIDENCE, ROWS, BLOCK, FOURS)
        others = evidence - _fixed(_evidence_32(top, EVIDENCE), _PER_EVIDENCE)
        rest = others.to(tl.float64) * _EVIDENCE_UNIT
    if RULE != _LAC and RULE != _MARGIN:
        least = _least_of(z, K, BLOCK)
    if RULE == _ECP:
        above_least = _count(z > least[:, None])
    if RULE == _MARGIN:
        below = tl.max(tl.where(z == top[:, None], float("-inf"), z), 1)
        second = tl.where(_count(z == top[:, None]) > 1, top, below)
    if RANDOM:
        hash_sum = tl.sum(_hashes(z), 1).to(tl.float64)
    return top, least, above_least, total, rest, hash_sum, second, rank, mass


@triton.jit
def _long_tile(base, start, K: tl.constexpr, REPEATS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr):
    """The next logits of one long row, (WORDS, REPEATS, VECTOR): sums over the last two axes take one thread."""
    word = tl.arange(0, WORDS)[:, None, None] * VECTOR + tl.arange(0, VECTOR)[None, None, :]
    column = start + tl.arange(0, REPEATS)[None, :, None] * (WORDS * VECTOR) + word
    return tl.load(base[:, None, None] + column, mask=column < K, other=float("-inf")).to(tl.float32)


@triton.jit
def _by_word(x):
    return tl.sum(tl.sum(x, 2), 1)


@triton.jit
def _fixed_by_word(coarse, fine, COUNT: tl.constexpr):
    """Sums over each word's COUNT numbers of a tile in fine units, int64; see `_add_parts`."""
    BIASES: tl.constexpr = (COUNT * 0x4B400000 + 2**31) % 2**32 - 2**31
    return ((_by_word(coarse) - BIASES).to(tl.int64) << 20) + (_by_word(fine) - BIASES)


@triton.jit
def _add_long(
    x, PER_ONE: tl.constexpr, REPEATS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr, FOURS: tl.constexpr
):
    """The sum over each word's part of a tile in fine units, int64."""
    if FOURS:
        x = _halves(_halves(tl.reshape(x, [WORDS, REPEATS, VECTOR // 4, 2, 2])))
        coarse, fine = _parts(x, PER_ONE)
        return _fixed_by_word(coarse, fine, REPEATS * VECTOR // 4)
    else:
        coarse, fine = _parts(x, PER_ONE)
        return _fixed_by_word(coarse, fine, REPEATS * VECTOR)


@triton.jit
def _reduce_long(
    base, own, rate, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, LABELS: tl.constexpr,
    K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr
):
    """The same for one row longer than a tile, in one pass.

    Each word keeps its own sums, relative to its own largest logit so far: no thread waits for another before the end.
    Where exponentials must be whole numbers of the whole row's unit (`_APS`, `_RAPS`) a second pass adds them up.
    """
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    FOURS: tl.constexpr = K >= _FOURS_FROM
    top_w, second_w = tl.full([WORDS], float("-inf"), tl.float32), tl.full([WORDS], float("-inf"), tl.float32)
    least_w, ties = tl.full([WORDS], float("inf"), tl.float32), tl.zeros([WORDS], tl.float32)
    finite, higher = tl.zeros([WORDS], tl.float32), tl.zeros([WORDS], tl.float32)
    sums, evidence = tl.zeros([WORDS], tl.float64), tl.zeros([WORDS], tl.int64)
    hashes = tl.zeros([WORDS], tl.uint32)
    for start in range(0, K, BLOCK):
        z = _long_tile(base, start, K, REPEATS, WORDS, VECTOR)
        peak = tl.reduce(tl.reduce(z, 2, _larger), 1, _larger)
        if RULE == _MARGIN:
            below = tl.max(tl.max(tl.where(z == peak[:, None, None], float("-inf"), z), 2), 1)
            below = tl.where(_by_word(tl.where(z == peak[:, None, None], 1.0, 0.0)) > 1, peak, below)
            second_w = tl.maximum(tl.minimum(top_w, peak), tl.maximum(second_w, below))
        peak = _larger(top_w, peak)
        if RULE == _ECP or (RULE == _LAC or (RULE == _SAPS or RULE == _MARGIN)):
            reference = tl.where(peak == float("-inf"), 0.0, peak)
            x = _exponential(z, reference[:, None, None], rate)
            sums = sums * tl.exp2((top_w - reference) * rate).to(tl.float64)
            sums += _add_long(x, _PER_ONE, REPEATS, WORDS, VECTOR, FOURS).to(tl.float64)
        top_w = peak
        if LABELS:
            higher += _by_word(tl.where(z > own[:, None, None], 1.0, 0.0))
        if RULE == _ECP:
            evidence += _add_long(_evidence_32(z, EVIDENCE), _PER_EVIDENCE, REPEATS, WORDS, VECTOR, FOURS)
        if RULE != _LAC and RULE != _MARGIN:
            possible = tl.where(z == float("-inf"), float("inf"), z)
            low = tl.minimum(least_w, tl.min(tl.min(possible, 2), 1))
            if RULE == _ECP:
                finite += _by_word(tl.where(z > float("-inf"), 1.0, 0.0))
                at_low = _by_word(tl.where(possible == low[:, None, None], 1.0, 0.0))
                ties = tl.where(low < least_w, 0.0, ties) + at_low
            least_w = low
        if RANDOM:
            hashes += _by_word(_hashes(z)).to(tl.uint32)
    zero, top, least = tl.zeros([1], tl.float32), tl.reduce(top_w, 0, _larger), tl.min(least_w, 0)
    shares = tl.where(top_w == float("-inf"), 0.0, tl.exp2((top_w - top) * rate))
    total = tl.sum((sums * shares.to(tl.float64)).to(tl.int64), 0).to(tl.float64)
    mass = total * 0
    if RULE == _APS or RULE == _RAPS:
        total, mass, _ = _survey_long(base, own, zero + top, rate, RULE, K, BLOCK, WORDS, VECTOR)
    rest = tl.sum(evidence, 0) - _fixed(_evidence_32(zero + top, EVIDENCE), _PER_EVIDENCE)
    at_least = tl.sum(tl.where(least_w == least, ties, 0.0), 0)
    runner_up = tl.max(tl.where(top_w == top, second_w, top_w), 0)
    shared = tl.sum(tl.where(top_w == top, 1, 0), 0) > 1
    return (
        zero + top, zero + least, zero + (tl.sum(finite, 0) - at_least), zero + total,
        rest.to(tl.float64) * _EVIDENCE_UNIT, zero + tl.sum(hashes, 0).to(tl.float64),
        zero + tl.where(shared, top, runner_up), zero + tl.sum(higher, 0), zero + mass,
    )


@triton.jit
def _survey_long(
    base, cut, top, rate, RULE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr
):
    """Total of exponentials, the part of it above a cut (fine units), and how many labels are above."""
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    total, above = tl.zeros([WORDS], tl.int64), tl.zeros([WORDS], tl.int64)
    count = tl.zeros([WORDS], tl.float32)
    for start in range(0, K, BLOCK):
        z = _long_tile(base, start, K, REPEATS, WORDS, VECTOR)
        higher = z > cut[:, None, None]
        count += _by_word(tl.where(higher, 1.0, 0.0))
        if RULE == _APS or RULE == _RAPS:
            coarse, fine = _parts(_exponential(z, top[:, None, None], rate), _PER_ONE)
            total += _fixed_by_word(coarse, fine, BLOCK // WORDS)
            coarse, fine = tl.where(higher, coarse, _BIAS_BITS), tl.where(higher, fine, _BIAS_BITS)
            above += _fixed_by_word(coarse, fine, BLOCK // WORDS)
    zero = tl.zeros([1], tl.float64)
    return zero + tl.sum(total, 0), zero + tl.sum(above, 0), tl.zeros([1], tl.float32) + tl.sum(count, 0)


@triton.jit
def _survey(
    base, z, cut, top, rate, RULE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr, LONG: tl.constexpr
):
    """How many labels lie above a cut, and what is their part of the total (0 where the rule does not ask)."""
    if LONG:
        _, above, count = _survey_long(base, cut, top, rate, RULE, K, BLOCK, WORDS, VECTOR)
        return count, above
    else:
        higher = z > cut[:, None]
        above = top.to(tl.float64) * 0
        if RULE == _APS or RULE == _RAPS:
            coarse, fine = _parts(_exponential(z, top[:, None], rate), _PER_ONE)
            inside = _add_parts(tl.where(higher, coarse, _BIAS_BITS), tl.where(higher, fine, _BIAS_BITS), BLOCK)
            above = inside.to(tl.float64)
        return _count(higher), above


# Which labels could be in the set: those above a cut ---------------------------------------------------------------
# Every cut is a bound: no label at or below it can have a score within the threshold, whatever its rank. The
# labels above it need not be members; `_score_candidates` decides.


@triton.jit
def _level_cut(level, top, rate):
    """The logit whose exponential has the given base-2 logarithm, less what single precision may be off."""
    slack = 1e-5 * (tl.abs(top) + tl.abs(level) / rate) + 1e-4 / rate
    return tl.where(level == float("-inf"), float("-inf"), top + level / rate - slack)


@triton.jit
def _lac_cut(top, total, threshold, rate):
    """-ln p <= threshold."""
    level = tl.log2((total * _UNIT).to(tl.float32)) - threshold.to(tl.float32) * _LOG2_E
    return _level_cut(level, top, rate)


@triton.jit
def _margin_cut(top, total, threshold, rate):
    """p_max - p <= threshold; the top label itself is compared with the second, so it always stays."""
    share = (1.0 - threshold * (total * _UNIT)).to(tl.float32)
    cut = _level_cut(tl.log2(tl.maximum(share, 0.0)), top, rate)
    return tl.minimum(cut, top - 1e-4 * tl.abs(top) - 1e-4 / rate)


@triton.jit
def _log2_cost(z, room, top, log2_total, log2_alpha_0, log2_epsilon, rate, EVIDENCE: tl.constexpr):
    """Eq. 10, roughly and rather too low; `room` is log2(1 - r/K), 0 at best.

    The 1e-4 is for the top label, whose surprisal may be smaller than the error of log2.
    """
    log2_p = _rough_log2(_evidence_32(z, EVIDENCE) + 1.0) - log2_alpha_0
    gain = (z - top) * rate - log2_total + 2.0 * log2_p + room
    added = _rough_log2(1.0 + tl.exp2(-tl.abs(gain - log2_epsilon)))
    return _rough_log2(tl.maximum((-log2_p - 1e-4) * _LN_2, 0.0)) - (tl.maximum(gain, log2_epsilon) + added)


@triton.jit
def _ecp_cut(
    z, top, least, above_least, total, rest, threshold, log_epsilon, rate, EVIDENCE: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr, LONG: tl.constexpr
):
    """The cut below which even rank 0 would cost too much.

    Costs fall along the row, so it is searched for with a warp of probes between the smallest logit and the top, dense
    near the top, then another warp where the costs cross the limit. In short rows every label is its own probe.
    """
    if BLOCK <= 128 and not LONG:
        log2_total, log2_alpha_0, log2_epsilon, limit = _limit(
            top, least, above_least, total, rest, threshold, log_epsilon, rate, EVIDENCE, K
        )
        cost = _log2_cost(
            z, 0.0, top[:, None], log2_total[:, None], log2_alpha_0[:, None], log2_epsilon, rate, EVIDENCE
        )
        return tl.max(tl.where(cost > limit[:, None], z, float("-inf")), 1)
    else:
        # One row: its numbers are the same in all threads, and each thread has one probe.
        high, low = tl.max(top, 0), tl.max(least, 0)
        log2_total, log2_alpha_0, log2_epsilon, limit = _limit(
            high, low, tl.max(above_least, 0), tl.max(total, 0), tl.max(rest, 0), threshold, log_epsilon, rate,
            EVIDENCE, K
        )
        step = (tl.arange(0, 32) + 1).to(tl.float32) * 0.03125
        depth = (high - low) * (step * step * step)
        cost = _log2_cost(high - depth, 0.0, high, log2_total, log2_alpha_0, log2_epsilon, rate, EVIDENCE)
        first = tl.min(tl.where(cost > limit, step, 2.0), 0)
        before = first - 0.03125
        inner, outer = (high - low) * (before * before * before), (high - low) * (first * first * first)
        probe = high - (inner + (outer - inner) * step)
        cost = _log2_cost(probe, 0.0, high, log2_total, log2_alpha_0, log2_epsilon, rate, EVIDENCE)
        cut = tl.max(tl.where(cost > limit, probe, float("-inf")), 0)
        return tl.zeros([1], tl.float32) + tl.where(first > 1.0, float("-inf"), cut)


@triton.jit
def _limit(
    top, least, above_least, total, rest, threshold, log_epsilon, rate, EVIDENCE: tl.constexpr, K: tl.constexpr
):
    """What `_log2_cost` needs to know of a row, and the cost above which a label cannot be a member."""
    log2_total = _rough_log2((total * _UNIT).to(tl.float32))
    log2_alpha_0 = _rough_log2((K + rest).to(tl.float32) + _evidence_32(top, EVIDENCE))
    log2_epsilon = log_epsilon.to(tl.float32) * _LOG2_E
    room = _rough_log2((K - above_least) * (1.0 / K))
    largest = _log2_cost(least, room, top, log2_total, log2_alpha_0, log2_epsilon, rate, EVIDENCE)
    level = threshold.to(tl.float32) * _LOG2_E
    return log2_total, log2_alpha_0, log2_epsilon, largest + level + 1e-3 + 1e-5 * (tl.abs(largest) + tl.abs(level))


@triton.jit
def _mass_cut(
    base, z, top, total, threshold, rate, RULE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    WORDS: tl.constexpr, VECTOR: tl.constexpr, LONG: tl.constexpr
):
    """APS: a member has at least 1 - threshold of the probability at or below it.

    If `count` labels share what is missing, the largest of them has at least their mean: that is a cut, and what
    lies below it a better bound for the next.
    """
    needed = total * (1.0 - threshold) - total * 1e-12
    cut = top * 0 + float("-inf")
    count, below = top * 0 + K, total * 0
    for _ in tl.static_range(2):
        level = tl.log2(tl.maximum((needed - below) / count, 0.0).to(tl.float32)) - 39.0
        proposed = _level_cut(level, top, rate)
        new_count, above = _survey(base, z, proposed, top, rate, RULE, K, BLOCK, WORDS, VECTOR, LONG)
        better = (total - above < needed) & (proposed > cut)
        cut = tl.where(better, proposed, cut)
        count, below = tl.where(better, new_count, count), tl.where(better, total - above, below)
    return cut


@triton.jit
def _least_score(count, above, total, lam, k_reg, penalty, RULE: tl.constexpr, RANDOM: tl.constexpr):
    """What a label's score is at least, if `count` labels with `above` of the total lie above it."""
    v = 0.0 if RANDOM else 1.0
    ranked = count.to(tl.float64)
    if RULE == _RAPS:
        excess = tl.maximum(ranked + 1.0 - k_reg, 0.0)
        excess = tl.where(excess > 0, excess - penalty, 0.0)
        return above / total + lam * excess
    elif RULE == _APS:
        return above / total
    elif RULE == _SAPS:
        return tl.where(count > 0, (_PER_ONE * _FINE) / total + (ranked - 1.0 + v) * lam, 0.0)
    else:
        return ranked + v


@triton.jit
def _halved_cut(
    base, z, cut, top, least, total, threshold, parameters, rate, RULE: tl.constexpr, RANDOM: tl.constexpr,
    K: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr, LONG: tl.constexpr
):
    """Halve the distance to the top while that can exclude many labels.

    `count` labels lie above the cut, `sure` above the lowest probe that excluded nothing.
    """
    lam, k_reg = tl.load(parameters + _LAM), tl.load(parameters + _K_REG)
    penalty = tl.load(parameters + _PENALTY)
    limit = threshold + 1e-9 * (1.0 + tl.abs(threshold))
    high, sure = top, tl.zeros_like(top)
    count, _ = _survey(base, z, cut, top, rate, RULE, K, BLOCK, WORDS, VECTOR, LONG)
    going, steps = tl.max((count > _FEW).to(tl.int32), 0), 0
    while going > 0:
        probe = 0.5 * tl.maximum(cut, least) + 0.5 * high
        new_count, above = _survey(base, z, probe, top, rate, RULE, K, BLOCK, WORDS, VECTOR, LONG)
        excluded = _least_score(new_count, above, total, lam, k_reg, penalty, RULE, RANDOM) > limit
        cut, high = tl.where(excluded, probe, cut), tl.where(excluded, high, probe)
        count, sure = tl.where(excluded, new_count, count), tl.where(excluded, sure, new_count)
        steps += 1
        wanted = (count > _FEW) & (count - sure > 0.25 * count)
        going = tl.where(steps < 16, tl.max(wanted.to(tl.int32), 0), 0)
    return cut


# Candidates into slots -------------------------------------------------------------------------------------------


@triton.jit
def _bit_count(x):
    """The number of ones in each word, uint32."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _fill(
    slots, flags, start, filled, SLOTS: tl.constexpr, REPEATS: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr
):
    """Write the flagged labels of each row to its slots and return how many there are now.

    `flags` is (ROWS, WORDS, REPEATS, VECTOR). Each thread gathers its own flags into the bits of one word, so that no
    flag has to change threads; only the words are counted across the row.
    """
    place = tl.arange(0, REPEATS)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    weight = (tl.full([REPEATS, VECTOR], 1, tl.uint32) << place.to(tl.uint32))[None, None, :, :]
    word = tl.sum(tl.sum(tl.where(flags, weight, 0).to(tl.uint32), 3), 2).to(tl.uint32)
    ones = _bit_count(word)
    count = filled + tl.sum(ones, 1)
    slot = filled[:, None] + tl.cumsum(ones, 1) - ones
    word = tl.where((count <= SLOTS)[:, None], word, 0).to(tl.uint32)
    thread = tl.arange(0, WORDS)[None, :]
    while tl.max(tl.max(word, 1), 0) > 0:
        some = word != 0
        bit = _bit_count((word - 1) & (word ^ 0xFFFFFFFF))
        label = start + (bit // VECTOR) * (WORDS * VECTOR) + thread * VECTOR + bit % VECTOR
        tl.store(slots[:, None] + slot, label.to(tl.int64) << 32, mask=some)
        slot += 1
        word = word & (word - 1)
    return count


@triton.jit
def _fill_from_long(
    base, slots, cut, K: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
    VECTOR: tl.constexpr
):
    """The same for a long row; most of its tiles hold no candidate."""
    REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
    filled = tl.zeros([1], tl.int32)
    lowest = tl.min(cut, 0)
    for start in range(0, K, BLOCK):
        z = _long_tile(base, start, K, REPEATS, WORDS, VECTOR)
        if tl.max(tl.max(tl.max(z, 2), 1), 0) > lowest:
            flags = tl.reshape(z > lowest, [1, WORDS, REPEATS, VECTOR])
            filled = _fill(slots, flags, start, filled, SLOTS, REPEATS, WORDS, VECTOR)
    return filled


@triton.jit(do_not_specialize=["n", "threshold_bits"])
def _read_rows(
    logits, labels, stats, slots, counts, sizes, status, parameters, n, threshold_bits: tl.int64,
    RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr,
    LABELS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, WORDS: tl.constexpr,
    SLOTS: tl.constexpr, LONG: tl.constexpr
):
    """The one kernel that reads the logits: statistics of every row, and the given labels' ranks or the candidates."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    row_read = tl.minimum(row, n - 1).to(tl.int64)  # no mask on the loads: surplus rows read the last one again
    base = logits + row_read * STRIDE
    rate = tl.load(parameters + _RATE).to(tl.float32)
    own = tl.zeros([ROWS], tl.float32)
    if LABELS:
        own = tl.load(base + tl.load(labels + row_read)).to(tl.float32)
    if LONG:
        z = tl.zeros([1, BLOCK], tl.float32)
        top, least, above_least, total, rest, hash_sum, second, rank, mass = _reduce_long(
            base, own, rate, RULE, EVIDENCE, RANDOM, LABELS, K, BLOCK, WORDS, VECTOR
        )
    else:
        z = _tile(base, 0, K, BLOCK)
        top, least, above_least, total, rest, hash_sum, second, rank, mass = _reduce_tile(
            z, own, rate, RULE, EVIDENCE, RANDOM, LABELS, K, ROWS, BLOCK
        )
    good = (top > float("-inf")) & (top < float("inf"))
    tl.atomic_max(status + _BAD + row * 0, (n - row).to(tl.int64), mask=inside & (good == 0))
    place = stats + row
    tl.store(place + _TOP * n, top.to(tl.float64), mask=inside)
    if RULE != _TOPK:
        tl.store(place + _TOTAL * n, total, mask=inside)
    wide = inside & (top >= float("inf"))
    if RULE == _ECP:
        wide = inside & good & ((top >= _WIDEST) | ((K >= _FOURS_FROM) & (top > 16.0 * K)))
        tl.atomic_add(status + _WIDE + row * 0, wide.to(tl.int64), mask=wide)
        tl.store(place + _LEAST * n, least.to(tl.float64), mask=inside)
        tl.store(place + _ABOVE_LEAST * n, above_least.to(tl.float64), mask=inside)
        tl.store(place + _REST * n, tl.where(wide, -1.0, rest), mask=inside)
    if RANDOM:
        tl.store(place + _HASH * n, hash_sum, mask=inside)
    if RULE == _MARGIN:
        tl.store(place + _SECOND * n, second.to(tl.float64), mask=inside)
    if LABELS:
        tl.store(place + _RANK * n, rank.to(tl.float64), mask=inside)
        tl.store(place + _MASS * n, mass, mask=inside)
    if SLOTS > 0:
        threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
        cut = top
        if RULE == _LAC:
            cut = _lac_cut(top, total, threshold, rate)
        elif RULE == _MARGIN:
            cut = _margin_cut(top, total, threshold, rate)
        elif RULE == _ECP:
            log_epsilon = tl.load(parameters + _LOG_EPSILON)
            cut = _ecp_cut(
                z, top, least, above_least, total, rest, threshold, log_epsilon, rate, EVIDENCE, K, BLOCK, LONG
            )
        else:
            cut = top * 0 + float("-inf")
            if RULE == _APS or RULE == _RAPS:
                cut = _mass_cut(base, z, top, total, threshold, rate, RULE, K, BLOCK, WORDS, VECTOR, LONG)
            cut = _halved_cut(
                base, z, cut, top, least, total, threshold, parameters, rate, RULE, RANDOM, K, BLOCK, WORDS, VECTOR,
                LONG
            )
        cut = tl.where(good & inside & (wide == 0), cut, float("inf"))
        own_slots = slots + row_read * SLOTS
        if LONG:
            count = _fill_from_long(base, own_slots, cut, K, SLOTS, BLOCK, WORDS, VECTOR)
        else:
            REPEATS: tl.constexpr = BLOCK // (WORDS * VECTOR)
            flags = tl.permute(tl.reshape(z > cut[:, None], [ROWS, REPEATS, WORDS, VECTOR]), (0, 2, 1, 3))
            none = tl.zeros([ROWS], tl.int32)
            count = _fill(own_slots, flags, 0, none, SLOTS, REPEATS, WORDS, VECTOR)
        count = tl.where(wide, SLOTS + 1, count)
        tl.atomic_add(status + _CROWDED + row * 0, (count > SLOTS).to(tl.int64), mask=inside & (count > SLOTS))
        tl.store(counts + row, count, mask=inside)
        tl.store(sizes + row + 1, count * 0, mask=inside)
        tl.store(sizes + row, count * 0, mask=row == 0)


# From statistics to scores ---------------------------------------------------------------------------------------


@triton.jit
def _log_phi(z, top, log_total, temperature):
    """ln softmax(z / T), float64."""
    return tl.maximum((z - top) / temperature, -1e308) - log_total


@triton.jit
def _log_cost(
    z, rank, top, rest, log_total, temperature, log_epsilon, K, EVIDENCE: tl.constexpr
):
    """Eq. 10: ln C up to a constant of the row. What the others hold decides where the label holds nearly all."""
    evidence = _evidence_64(z, EVIDENCE)
    others = tl.where(z == top, rest, (rest - evidence) + _evidence_64(top, EVIDENCE)) + (K - 1.0)
    surprisal = _log1p(others / (evidence + 1.0))
    gain = _log_phi(z, top, log_total, temperature) - 2.0 * surprisal + tl.log((K - rank) / K)
    larger = tl.maximum(gain, log_epsilon)
    return tl.log(surprisal) - (larger + _log1p(tl.exp(-tl.abs(gain - log_epsilon))))


@triton.jit
def _score(
    z_32, rank, mass, row, here, stats, parameters, n, K, RULE: tl.constexpr, EVIDENCE: tl.constexpr,
    RANDOM: tl.constexpr
):
    """A label's score from its logit, the number of labels above it and (APS, RAPS) their total in fine units."""
    z, place = z_32.to(tl.float64), stats + row
    top = tl.load(place + _TOP * n, mask=here, other=0.0)
    temperature = tl.load(parameters + _TEMPERATURE)
    v = tl.load(place + _V * n, mask=here, other=0.0)
    result = rank
    if RULE == _ECP:
        rest = tl.load(place + _REST * n, mask=here, other=1.0)
        log_total = tl.load(place + _LOG_TOTAL * n, mask=here, other=0.0)
        largest = tl.load(place + _LARGEST * n, mask=here, other=0.0)
        log_epsilon = tl.load(parameters + _LOG_EPSILON)
        possible = tl.where(z == float("-inf"), top, z)
        result = _log_cost(possible, rank, top, rest, log_total, temperature, log_epsilon, K, EVIDENCE) - largest
    elif RULE == _LAC:
        result = -_log_phi(z, top, tl.load(place + _LOG_TOTAL * n, mask=here, other=0.0), temperature)
    elif RULE == _APS or RULE == _RAPS:
        total = tl.load(place + _TOTAL * n, mask=here, other=1.0)
        rate = tl.load(parameters + _RATE).to(tl.float32)
        own = _fixed(_exponential(z_32, top.to(tl.float32), rate), _PER_ONE).to(tl.float64)
        result = mass / total + v * (own / total)
        if RULE == _RAPS:
            excess = tl.maximum(rank + 1.0 - tl.load(parameters + _K_REG), 0.0)
            own_penalty = tl.load(parameters + _PENALTY) * (1.0 - v)
            result += tl.load(parameters + _LAM) * tl.where(excess > 0, excess - own_penalty, 0.0)
    elif RULE == _SAPS:
        largest = (_PER_ONE * _FINE) / tl.load(place + _TOTAL * n, mask=here, other=1.0)
        result = tl.where(rank == 0, v * largest, largest + (rank - 1.0 + v) * tl.load(parameters + _LAM))
    elif RULE == _TOPK:
        result = rank + v
    else:
        log_total = tl.load(place + _LOG_TOTAL * n, mask=here, other=0.0)
        second = tl.load(place + _SECOND * n, mask=here, other=0.0)
        best = tl.exp(-log_total)
        next_best = tl.exp(_log_phi(second, top, log_total, temperature))
        result = tl.where(z == top, next_best - best, best - tl.exp(_log_phi(z, top, log_total, temperature)))
    return tl.where(z == float("-inf"), float("inf"), result)


@triton.jit
def _finish(
    stats, parameters, n, K, row, here, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr
):
    """Put down what a row's scores share: ln of the total, the largest cost, the row's uniform number."""
    place = stats + row
    v = tl.full(row.shape, 1.0, tl.float64)
    if RANDOM:
        hash_sum = tl.load(place + _HASH * n, mask=here, other=0.0).to(tl.int64).to(tl.uint32)
        seed = tl.load(parameters + _SEED + row * 0).to(tl.int64).to(tl.uint32)
        v = (_mix32(hash_sum ^ _mix32(seed)) >> 8).to(tl.float64) / 16777216.0
    tl.store(place + _V * n, v, mask=here)
    if RULE == _ECP or (RULE == _LAC or RULE == _MARGIN):
        log_total = tl.log(tl.load(place + _TOTAL * n, mask=here, other=1.0) * _UNIT)
        tl.store(place + _LOG_TOTAL * n, log_total, mask=here)
        if RULE == _ECP:
            top = tl.load(place + _TOP * n, mask=here, other=0.0)
            least = tl.load(place + _LEAST * n, mask=here, other=0.0)
            rank = tl.load(place + _ABOVE_LEAST * n, mask=here, other=0.0)
            rest = tl.maximum(tl.load(place + _REST * n, mask=here, other=1.0), 0.0)
            temperature, log_epsilon = tl.load(parameters + _TEMPERATURE), tl.load(parameters + _LOG_EPSILON)
            largest = _log_cost(least, rank, top, rest, log_total, temperature, log_epsilon, K, EVIDENCE)
            tl.store(place + _LARGEST * n, largest, mask=here)
    tl.debug_barrier()  # other threads of this program read it next


@triton.jit(do_not_specialize=["n", "K"])
def _finish_rows(
    stats, parameters, n, K, RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    _finish(stats, parameters, n, K, row, row < n, RULE, EVIDENCE, RANDOM)


@triton.jit(do_not_specialize=["n", "K", "stride"])
def _score_labels(
    logits, labels, stats, parameters, result, n, K, stride, RULE: tl.constexpr, EVIDENCE: tl.constexpr,
    RANDOM: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n
    _finish(stats, parameters, n, K, row, here, RULE, EVIDENCE, RANDOM)
    label = tl.load(labels + row, mask=here, other=0)
    z = tl.load(logits + row.to(tl.int64) * stride + label, mask=here, other=0.0).to(tl.float32)
    rank = tl.load(stats + _RANK * n + row, mask=here, other=0.0)
    mass = tl.load(stats + _MASS * n + row, mask=here, other=0.0)
    score = _score(z, rank, mass, row, here, stats, parameters, n, K, RULE, EVIDENCE, RANDOM)
    top = tl.load(stats + _TOP * n + row, mask=here, other=0.0)
    scored = (top > float("-inf")) & (top < float("inf"))
    if RULE == _ECP:
        scored = scored & (tl.load(stats + _REST * n + row, mask=here, other=0.0) >= 0.0)
    tl.store(result + row, tl.where(scored, score, float("nan")), mask=here)


@triton.jit(do_not_specialize=["size", "n", "K"])
def _fix_elements(
    z_values, rows, stats, parameters, result, size: tl.int64, n, K, RULE: tl.constexpr, EVIDENCE: tl.constexpr,
    RANDOM: tl.constexpr, BLOCK: tl.constexpr
):
    """Every exponential of some rows in fine units, int64."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    row = tl.load(rows + place // K, mask=here, other=0)
    z = tl.load(z_values + place, mask=here, other=0.0).to(tl.float32)
    top = tl.load(stats + _TOP * n + row, mask=here, other=0.0).to(tl.float32)
    rate = tl.load(parameters + _RATE).to(tl.float32)
    tl.store(result + place, _fixed(_exponential(z, top, rate), _PER_ONE), mask=here)


@triton.jit(do_not_specialize=["size", "n", "K"])
def _score_elements(
    z_values, rows, ranks, masses, stats, parameters, result, size: tl.int64, n, K, RULE: tl.constexpr,
    EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, BLOCK: tl.constexpr
):
    """The score of every label of some rows, from their ranks and masses."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    row = tl.load(rows + place // K, mask=here, other=0)
    z = tl.load(z_values + place, mask=here, other=0.0).to(tl.float32)
    rank = tl.load(ranks + place, mask=here, other=0).to(tl.float64)
    mass = tl.load(masses + place, mask=here, other=0).to(tl.float64)
    score = _score(z, rank, mass, row, here, stats, parameters, n, K, RULE, EVIDENCE, RANDOM)
    tl.store(result + place, score, mask=here)


# From candidates to sets -----------------------------------------------------------------------------------------
# The candidates of ROWS rows are numbered through and dealt to threads, so that long and short lists even out.


@triton.jit
def _numbered(counts, ends, row, n, SLOTS: tl.constexpr):
    """Put down where each row's candidates end in the numbering of this program, and return how many there are.

    Rows without room in their slots have none.
    """
    count = tl.load(counts + row, mask=row < n, other=0)
    count = tl.where(count <= SLOTS, count, 0)
    tl.store(ends + row, tl.cumsum(count, 0), mask=row < n)
    tl.debug_barrier()  # other threads of this program read it next
    return tl.sum(count, 0)


@triton.jit
def _dealt(number, ends, first_row, n, here, SLOTS: tl.constexpr, ROWS: tl.constexpr):
    """Row, number of candidates there, where its slots begin and which slot, of each numbered candidate."""
    local, half = number * 0, ROWS // 2
    while half > 0:
        row = first_row + local + half - 1
        local += tl.where(tl.load(ends + row, mask=here & (row < n), other=2**30) <= number, half, 0)
        half = half // 2
    row = first_row + local
    begin = tl.load(ends + row - 1, mask=here & (local > 0), other=0)
    count = tl.load(ends + row, mask=here, other=0) - begin
    return row, count, row.to(tl.int64) * SLOTS, number - begin


@triton.jit
def _logit(packed):
    return packed.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _fetch(
    logits, slots, fixed, ends, stats, total, first_row, rate, n, stride, RULE: tl.constexpr, SLOTS: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr
):
    """Beside each candidate's label, the upper half of its slot, put the bits of its logit; and its exponential."""
    first = 0
    while first < total:
        number = first + tl.arange(0, CHUNK)
        here = number < total
        row, _, places, own = _dealt(number, ends, first_row, n, here, SLOTS, ROWS)
        packed = tl.load(slots + places + own, mask=here, other=0)
        z = tl.load(logits + row.to(tl.int64) * stride + (packed >> 32), mask=here, other=0.0).to(tl.float32)
        bits = z.to(tl.uint32, bitcast=True).to(tl.int64)
        tl.store(slots + places + own, packed | bits, mask=here)
        if RULE == _APS or RULE == _RAPS:
            top = tl.load(stats + _TOP * n + row, mask=here, other=0.0).to(tl.float32)
            tl.store(fixed + places + own, _fixed(_exponential(z, top, rate), _PER_ONE), mask=here)
        first += CHUNK
    tl.debug_barrier()  # other threads of this program read it next


@triton.jit(do_not_specialize=["n", "K", "stride", "threshold_bits"])
def _score_candidates(
    logits, slots, counts, scores, sizes, ends, fixed, status, stats, parameters, n, K, stride,
    threshold_bits: tl.int64,
    RULE: tl.constexpr, EVIDENCE: tl.constexpr, RANDOM: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr
):
    """Score every candidate and count each row's members. All labels above a candidate are candidates, too."""
    threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
    rate = tl.load(parameters + _RATE).to(tl.float32)
    first_row = tl.program_id(0) * ROWS
    every_row = first_row + tl.arange(0, ROWS)
    _finish(stats, parameters, n, K, every_row, every_row < n, RULE, EVIDENCE, RANDOM)
    total = _numbered(counts, ends, every_row, n, SLOTS)
    _fetch(logits, slots, fixed, ends, stats, total, first_row, rate, n, stride, RULE, SLOTS, ROWS, CHUNK)
    members, first = total * 0, 0
    while first < total:
        number = first + tl.arange(0, CHUNK)
        here = number < total
        row, count, places, own = _dealt(number, ends, first_row, n, here, SLOTS, ROWS)
        z = _logit(tl.load(slots + places + own, mask=here, other=0))
        ranks, masses = tl.zeros([CHUNK, 8], tl.float32), tl.zeros([CHUNK, 8], tl.int64)
        start, most = 0, tl.max(count, 0)
        if RULE == _LAC or RULE == _MARGIN:  # no score of theirs asks for a rank
            most = most * 0
        while start < most:
            other = start + tl.arange(0, 8)[None, :]
            there = here[:, None] & (other < count[:, None])
            higher_z = _logit(tl.load(slots + places[:, None] + other, mask=there, other=0))
            higher = there & (higher_z > z[:, None])
            if RULE != _APS:
                ranks += tl.where(higher, 1.0, 0.0)
            if RULE == _APS or RULE == _RAPS:
                masses += tl.load(fixed + places[:, None] + other, mask=higher, other=0)
            start += 8
        rank, mass = tl.sum(ranks, 1).to(tl.float64), tl.sum(masses, 1).to(tl.float64)
        score = _score(z, rank, mass, row, here, stats, parameters, n, K, RULE, EVIDENCE, RANDOM)
        tl.store(scores + places + own, score, mask=here)
        member = here & (score <= threshold)
        tl.atomic_add(sizes + row + 1, member.to(tl.int32), mask=member, sem="relaxed")
        members += tl.sum(member.to(tl.int32), 0)
        first += CHUNK
    tl.atomic_add(status + _MEMBERS, members.to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["n", "threshold_bits"])
def _write_sets(
    slots, scores, ends, offsets, out_labels, out_scores, n, threshold_bits: tl.int64, SLOTS: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr
):
    """Put each member where it belongs: after those with a lower score, then a higher logit, then a lower index."""
    threshold = threshold_bits.to(tl.int64).to(tl.float64, bitcast=True)
    first_row = tl.program_id(0) * ROWS
    last_row = tl.minimum(first_row + ROWS, n) - 1
    total, first = tl.load(ends + last_row), 0
    while first < total:
        number = first + tl.arange(0, CHUNK)
        here = number < total
        row, count, places, own = _dealt(number, ends, first_row, n, here, SLOTS, ROWS)
        packed = tl.load(slots + places + own, mask=here, other=0)
        score = tl.load(scores + places + own, mask=here, other=float("inf"))
        z, label = _logit(packed)[:, None], (packed >> 32)[:, None]
        before = tl.zeros([CHUNK, 8], tl.int32)
        start, most = 0, tl.max(count, 0)
        while start < most:
            other = start + tl.arange(0, 8)[None, :]
            there = here[:, None] & (other < count[:, None])
            other_packed = tl.load(slots + places[:, None] + other, mask=there, other=0)
            other_score = tl.load(scores + places[:, None] + other, mask=there, other=float("inf"))
            other_z = _logit(other_packed)
            earlier = (other_z > z) | ((other_z == z) & ((other_packed >> 32) < label))
            lower = (other_score < score[:, None]) | ((other_score == score[:, None]) & earlier)
            before += (there & lower).to(tl.int32)
            start += 8
        target = tl.load(offsets + row, mask=here, other=0) + tl.sum(before, 1)
        member = here & (score <= threshold)
        tl.store(out_labels + target, (packed >> 32).to(tl.int32), mask=member)
        tl.store(out_scores + target, score, mask=member)
        first += CHUNK
