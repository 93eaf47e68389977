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
`_write_sets` puts the members in order. Where a row has more candidates than slots, they are sorted instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import triton
from torch import Tensor

from evicp.kernels import _torch
from evicp.kernels._jitted.layout import _CUT, _RANK, _REST, _TOP, STATISTICS
from evicp.kernels._triton_launch import Kernel, bits_of, plan_for, tiling_for
from evicp.kernels.registry import BUILT_IN

#: Rows of a large batch are worked on in groups, so that what is kept per row stays small beside the logits.
ROWS_PER_GROUP = 1 << 20

#: Of rows with more candidates than slots, this many logits at a time, and candidates, which take dozens of bytes each.
LOGITS_PER_SORT, CANDIDATES_PER_SORT = 1 << 26, 1 << 24

#: At most this many slots for candidates at a time, 16 bytes each (24 where probabilities are added up).
SLOTS_PER_GROUP = 1 << 25


def knows(score: Any) -> bool:
    """Whether this backend has a score: the built-in ones (not a user's subclass), where they are monotone."""
    has_kernel = type(score) in BUILT_IN and 1e-30 < score.temperature < 1e30
    return has_kernel and (score.name != "ecp" or score.monotone)


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


def top_labels(score: Any, logits: Tensor) -> Tensor:  # noqa: ARG001 - all these scores fall as the logit rises
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


class _Batch:
    """One group of rows: its statistics, and what the kernels reported of it."""

    def __init__(self, score: Any, logits: Tensor, first_row: int) -> None:
        self.logits, self.first_row = logits, first_row
        self.n, self.n_classes = logits.shape
        self.stride = logits.stride(0)
        self.tiling = tiling_for(self.n_classes, score.name)
        self.plan, self.parameters = plan_for(
            score, self.tiling, self.n_classes, self.stride, logits.dtype, logits.device
        )
        self.stats = torch.empty(STATISTICS, self.n, dtype=torch.float64, device=logits.device)
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
            return self._with_crowded_rows(candidates, threshold, bool(wide))
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
        self.plan.read_candidates(triton.cdiv(self.n, self.tiling.rows), *arguments, self.n, bits_of(threshold))

    def _score_labels(self, labels: Tensor, result: Tensor) -> None:
        arguments = (self.logits, labels, self.stats, self.parameters, result, self.n, self.n_classes, self.stride)
        self.plan.score_labels(triton.cdiv(self.n, 128), *arguments)

    def _finish_rows(self) -> None:
        self.plan.finish_rows(triton.cdiv(self.n, 128), self.stats, self.parameters, self.n, self.n_classes)

    def _score_candidates(self, candidates: tuple[Tensor, ...], threshold: float) -> None:
        tensors = (self.logits, *candidates, self.status, self.stats, self.parameters)
        programs = triton.cdiv(self.n, self.tiling.rows_ahead)
        self.plan.score_candidates(programs, *tensors, self.n, self.n_classes, self.stride, bits_of(threshold))

    def _write_sets(
        self, candidates: tuple[Tensor, ...], offsets: Tensor, total: int, threshold: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        slots, _, slot_scores, _, ends, _ = candidates
        labels = torch.empty(total, dtype=torch.int32, device=self.logits.device)
        scores = torch.empty(total, dtype=torch.float64, device=self.logits.device)
        arguments = (slots, slot_scores, ends, offsets, labels, scores, self.n, bits_of(threshold))
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
        for group in torch.split(rows, max(1, _torch.BLOCK_LOGITS // self.n_classes)):
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

    def _elements(self, kernel: Kernel, rows: Tensor, z: Tensor, result: Tensor, *more: Tensor) -> Tensor:
        """What a kernel gives for logits, as many of each row as there are for one entry of `rows`."""
        if z.numel():
            tensors, width = (z, rows, *more, self.stats, self.parameters, result), z.numel() // len(rows)
            kernel(triton.cdiv(z.numel(), 256), *tensors, z.numel(), width, self.n, self.n_classes)
        return result

    def _sorted_sets(self, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
        """The sets of all rows, by sorting them whole."""
        self._prepare_rows()
        sizes, labels, scores = [], [], []
        rows = torch.arange(self.n, device=self.logits.device)
        for group in torch.split(rows, max(1, _torch.BLOCK_LOGITS // self.n_classes)):
            ordered, order = self._ordered_scores(group)
            if not bool((ordered[:, 1:] >= ordered[:, :-1]).all()):  # two scores that differ by rounding alone
                ordered, again = torch.sort(ordered, dim=1, stable=True)
                order = order.gather(1, again)
            member = ordered <= threshold
            sizes.append(member.sum(1))
            labels.append(order[member].to(torch.int32))
            scores.append(ordered[member])
        return _torch.offsets_of(torch.cat(sizes)), torch.cat(labels), torch.cat(scores)

    def _crowded_rows(self, rows: Tensor, threshold: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sizes, labels and scores of the sets of some rows, by sorting their candidates, at most so many of a row."""
        together = max(1, min(LOGITS_PER_SORT // self.n_classes, CANDIDATES_PER_SORT // most))
        parts = [self._crowded_group(group, threshold) for group in torch.split(rows, together)]
        sizes, labels, scores = zip(*parts, strict=True)
        return torch.cat(sizes), torch.cat(labels), torch.cat(scores)

    def _crowded_group(self, rows: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
        z = self.logits[rows].to(torch.float32) + 0.0  # no -0.0, whose bits are others
        own, label = torch.nonzero(z > self.stats[_CUT.value, rows].to(torch.float32)[:, None], as_tuple=True)
        z = z[own, label]
        bits = z.view(torch.int32)
        ascending = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)  # as the logits do
        key, order = torch.sort((own << 33) - ascending, stable=True)
        own, label, z = own[order], label[order], z[order]
        begins = torch.searchsorted(own, torch.arange(len(rows) + 1, device=own.device))
        first = torch.searchsorted(key, key)  # of equal ones; running maxima of one long row take one block of threads
        ranks = first - begins[own]
        mass, of_each = ranks, rows[own]
        if self.plan.adds_up:
            fixed = self._elements(self.plan.fix_elements, of_each, z, torch.empty_like(ranks))
            before = fixed.cumsum(0) - fixed  # may go round, and its differences back again
            mass = before[first] - before[begins[own]]
        scores = torch.empty(z.shape, dtype=torch.float64, device=z.device)
        scores = self._elements(self.plan.score_elements, of_each, z, scores, ranks, mass)
        if bool(((scores[1:] < scores[:-1]) & (own[1:] == own[:-1])).any()):  # by rounding alone
            again = _torch.stable_order(scores, own)
            label, scores = label[again], scores[again]
        member = scores <= threshold
        sizes = _torch.offsets_of(member.to(torch.int64))[begins].diff()
        return sizes, label[member].to(torch.int32), scores[member]

    def _with_crowded_rows(
        self, candidates: tuple[Tensor, ...], threshold: float, wide: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sets of a group in which some rows had no room in their slots, or evidence too wide."""
        _, counts, _, sizes, *_ = candidates
        if wide:
            self._mend_wide_rows()
            self._finish_rows()
        rows = torch.nonzero(counts > self.tiling.slots)[:, 0]
        most = self.n_classes if wide else int(counts.max())
        own_sizes, own_labels, own_scores = self._crowded_rows(rows, threshold, most)
        sizes[1:][rows] = own_sizes.to(torch.int32)
        offsets = torch.cumsum(sizes, 0, dtype=torch.int64)
        result = self._write_sets(candidates, offsets, int(offsets[-1]), threshold)
        begins = _torch.offsets_of(own_sizes)[:-1]
        shift = torch.repeat_interleave(offsets[rows] - begins, own_sizes)
        place = torch.arange(len(own_labels), device=shift.device) + shift
        result[1][place], result[2][place] = own_labels, own_scores
        return result
