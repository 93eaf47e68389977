"""A group of rows on its way through the Triton kernels: what `_triton` launches, and what it does with the rest."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import inf
from typing import Any

import torch
import triton
from torch import Tensor

from evicp.kernels import _torch
from evicp.kernels import _triton_launch as launch
from evicp.kernels._jitted.layout import (
    _BAD,
    _CROWDED,
    _CUT,
    _DIGEST,
    _LARGEST_OWN,
    _LOWEST_TOP,
    _MASKED,
    _MEMBERS,
    _ODD,
    _OUTSIDE,
    _RANK,
    _REST,
    _SECONDS,
    _TOP,
    _WIDE,
    ORDER_FROM_ZERO,
    REPORTED,
    STATISTICS,
)
from evicp.kernels._labelled import Labelled
from evicp.kernels._triton_crowded import sorted_sets

#: Of rows with more candidates than slots, this many logits at a time, and candidates, which take dozens of bytes each.
LOGITS_PER_SORT, CANDIDATES_PER_SORT = 1 << 26, 1 << 24


class Batch:
    """One group of rows: its statistics, and what the kernels reported of it."""

    def __init__(
        self,
        score: Any,
        logits: Tensor,
        first_row: int,
        made: launch.Made | None = None,
        status: Tensor | None = None,
    ) -> None:
        self.logits, self.first_row = logits, first_row
        self.n, self.n_classes = logits.shape
        self.stride = logits.stride(0)
        self.tiling, self.plan, self.parameters = made or launch.made_for(score, logits)
        self.stats = torch.empty(STATISTICS, self.n, dtype=torch.float64, device=logits.device)
        self.status = torch.zeros(REPORTED, dtype=torch.int64, device=logits.device) if status is None else status
        self.odd = True  # whether the first row must be checked
        self.crowded = True  # whether some rows need more than their slots

    def label_scores(self, labels: Tensor, *, settled: bool) -> Tensor:
        if self.n:
            self.read_labels(labels)
        result = torch.empty(self.n, dtype=torch.float64, device=self.logits.device)
        if self.n:
            self._score_labels(labels, result)
            if settled and self._report()[_WIDE.value]:
                self._mend_wide_rows()
                self._score_labels(labels, result)
        return result

    def labelled(self, labels: Tensor, *, ordered: bool) -> Labelled:
        """Scores, hashes and the summary of rows with these labels, one row or more, which are checked on the way."""
        scores = torch.empty(self.n, dtype=torch.float64, device=self.logits.device)
        hashes = torch.empty(self.n, dtype=torch.int64, device=self.logits.device)
        self.read_labels(labels)
        self._score_labels(labels, scores, hashes)
        reported = _copied(self.status)
        in_order = torch.sort(scores) if ordered else None  # while the device reads: launching it takes as long
        report = reported()
        if report[_OUTSIDE.value]:
            return Labelled(scores, outside=True)
        self.refuse(report)
        if report[_WIDE.value]:
            self._mend_wide_rows()
            self.status[_MASKED.value :] = 0
            self._score_labels(labels, scores, hashes)
            report, in_order = self.status.tolist(), None
        return Labelled(
            scores,
            in_order,
            hashes,
            masked=report[_MASKED.value],
            seconds=report[_SECONDS.value],
            largest=max(_float_at(report[_LARGEST_OWN.value]), _float_at(report[_LOWEST_TOP.value])),
            digest=report[_DIGEST.value] % 2**64,
            odd=bool(report[_ODD.value]),
        )

    def ranks(self, labels: Tensor) -> Tensor:
        if self.n:
            self.read_labels(labels)
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

    def ragged_sets(self, threshold: float, room: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Offsets, labels, scores; if the sets hold no more than `room` labels, nothing is done after the wait."""
        if self.n == 0 or threshold == inf:
            return self._sorted_sets(threshold)
        found = self.slots()
        self.read_candidates(found, threshold)
        candidates = self.candidates(found)  # while the device reads
        self.score_candidates(candidates, threshold)
        reported = _copied(self.status)
        offsets = torch.cumsum(candidates[3], 0, dtype=torch.int64)
        result = self.write_sets(candidates, offsets, room, threshold) if room else None
        report = reported()
        self.refuse(report)
        wide, crowded, total = report[_WIDE.value], report[_CROWDED.value], report[_MEMBERS.value]
        self.odd, self.crowded = bool(report[_ODD.value]), bool(wide or crowded)
        if self.crowded:
            return self._with_crowded_rows(candidates, threshold, bool(wide))
        if result is None or total > room:
            return self.write_sets(candidates, offsets, total, threshold)
        return offsets, result[1][:total], result[2][:total]

    def slots(self) -> tuple[Tensor, Tensor, Tensor]:
        """Slots, counts of candidates, sizes of the sets after a 0."""
        n, slots, device = self.n, self.tiling.slots, self.logits.device
        return (
            torch.empty(n, slots, dtype=torch.int64, device=device),
            torch.empty(n, dtype=torch.int32, device=device),
            torch.empty(n + 1, dtype=torch.int32, device=device),
        )

    def candidates(self, found: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        """The same, with scores in third place, and at the end running counts and fixed exponentials."""
        slots, counts, sizes = found
        scores = torch.empty(slots.shape, dtype=torch.float64, device=slots.device)
        fixed = torch.empty(
            self.n, self.tiling.slots if self.plan.adds_up else 0, dtype=torch.int64, device=slots.device
        )
        return slots, counts, scores, sizes, torch.empty_like(counts), fixed

    # The kernels ------------------------------------------------------------------------------------------------

    def read_labels(self, labels: Tensor) -> None:
        none, programs = self.status, triton.cdiv(self.n, self.tiling.rows)
        if self.tiling.parts > 1:
            self._read_parts(labels, none, none, none, 0)
            return
        arguments = (self.logits, labels, self.stats, none, none, none, self.status, self.parameters, self.n, 0)
        self.plan.read_labels(programs, *arguments)

    def read_candidates(self, found: tuple[Tensor, Tensor, Tensor], threshold: float) -> None:
        bits, programs = launch.bits_of(threshold), triton.cdiv(self.n, self.tiling.rows)
        if self.tiling.parts > 1:
            self._read_parts(None, *found, bits)
            return
        arguments = (self.logits, self.status, self.stats, *found, self.status, self.parameters)
        self.plan.read_candidates(programs, *arguments, self.n, bits)

    def _read_parts(self, labels: Tensor | None, slots: Tensor, counts: Tensor, sizes: Tensor, bits: int) -> None:
        """The same of a few long rows, each by several programs."""
        parts, device, with_labels = self.n * self.tiling.parts, self.logits.device, labels is not None
        partials = torch.empty(5, parts, dtype=torch.float32, device=device)
        sums = torch.empty(2, parts, dtype=torch.int64, device=device)
        read = (self.logits, counts if labels is None else labels, partials, sums, counts, sizes)
        self.plan.read_parts[with_labels](parts, *read, self.status, self.parameters, self.n)
        joined = (self.logits, partials, sums, self.stats, slots, counts, self.status, self.parameters)
        self.plan.join_parts[with_labels](parts, *joined, self.n, bits)

    def _score_labels(self, labels: Tensor, result: Tensor, hashes: Tensor | None = None) -> None:
        """The labels' scores; and, with room for hashes, what a calibration asks of the rows."""
        kernel = self.plan.score_labels if hashes is None else self.plan.summarize_labels
        tensors = (self.logits, labels, self.stats, self.parameters, result, labels if hashes is None else hashes)
        numbers = (self.first_row, self.n, self.n_classes, self.stride)
        kernel(triton.cdiv(self.n, 128), *tensors, self.status, *numbers)

    def _finish_rows(self) -> None:
        self.plan.finish_rows(triton.cdiv(self.n, 128), self.stats, self.parameters, self.n, self.n_classes)

    def score_candidates(self, candidates: tuple[Tensor, ...], threshold: float) -> None:
        tensors = (self.logits, *candidates, self.status, self.stats, self.parameters)
        programs = triton.cdiv(self.n, self.tiling.rows_ahead)
        self.plan.score_candidates(programs, *tensors, self.n, self.n_classes, self.stride, launch.bits_of(threshold))

    def write_sets(
        self, candidates: tuple[Tensor, ...], offsets: Tensor, total: int, threshold: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        labels = torch.empty(total, dtype=torch.int32, device=self.logits.device)
        scores = torch.empty(total, dtype=torch.float64, device=self.logits.device)
        return self.write_into(candidates, offsets, labels, scores, threshold)

    def write_into(
        self, candidates: tuple[Tensor, ...], offsets: Tensor, labels: Tensor, scores: Tensor, threshold: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        slots, counts, slot_scores, _, ends, _ = candidates
        tensors = (slots, counts, slot_scores, ends, offsets, labels, scores)
        arguments = (*tensors, self.n, len(labels), launch.bits_of(threshold))
        self.plan.write_sets(triton.cdiv(self.n, self.tiling.rows_ahead), *arguments)
        return offsets, labels, scores

    def fixed_sets(self, threshold: float, width: int | None) -> tuple[Tensor, Tensor]:
        """Nothing is waited for: membership (n, K), or the first labels of each set (n, width), -1 after its last.

        With it the sizes, (n,), -1 of rows that cannot be scored.
        """
        device, plan, tiling = self.logits.device, self.plan, self.tiling
        found = self.slots()
        self.read_candidates(found, threshold)
        slots, counts, scores, sizes, ends, _ = candidates = self.candidates(found)
        self.score_candidates(candidates, threshold)
        own_sizes = torch.empty(self.n, dtype=torch.int32, device=device)
        if width is None:
            result = torch.zeros(self.n, self.n_classes, dtype=torch.bool, device=device)
            out, write, write_crowded = result.view(torch.int8), plan.write_mask, plan.crowded_mask
        else:
            out = result = torch.full((self.n, width), -1, dtype=torch.int32, device=device)
            write, write_crowded = plan.write_labels, plan.crowded_labels
        limits = (width or 0, launch.bits_of(threshold))
        tensors = (slots, counts, scores, ends, sizes, self.stats, out, own_sizes)
        write(triton.cdiv(self.n, tiling.rows_ahead), *tensors, self.n, self.n_classes, *limits)
        others = (self.logits, counts, self.stats, self.parameters, out, own_sizes)
        write_crowded(self.n, *others, self.n, self.n_classes, self.stride, *limits)
        return result, own_sizes

    def _report(self) -> list[int]:
        """Wait for the device, and raise if a row is bad; the entries of `status`."""
        report: list[int] = self.status.tolist()
        self.refuse(report)
        return report

    def refuse(self, report: list[int]) -> None:
        if report[_BAD.value]:
            _torch.raise_bad_row(self.logits, self.n - report[_BAD.value], self.first_row)

    # Rows that the fast path leaves over --------------------------------------------------------------------------

    def _prepare_rows(self) -> None:
        """Statistics of every row, for scores that are not asked for by label or by slot."""
        if self.n == 0:
            return
        self.read_labels(torch.zeros(self.n, dtype=torch.int64, device=self.logits.device))  # any label will do
        if self._report()[_WIDE.value]:
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

    def _elements(self, kernel: launch.Kernel, rows: Tensor, z: Tensor, result: Tensor, *more: Tensor) -> Tensor:
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
        found = None if wide else sorted_sets(self, candidates, rows, threshold)
        if found is not None:
            return found
        most = self.n_classes if wide else int(counts.max())
        own_sizes, own_labels, own_scores = self._crowded_rows(rows, threshold, most)
        sizes[1:][rows] = own_sizes.to(torch.int32)
        offsets = torch.cumsum(sizes, 0, dtype=torch.int64)
        result = self.write_sets(candidates, offsets, int(offsets[-1]), threshold)
        begins = _torch.offsets_of(own_sizes)[:-1]
        shift = torch.repeat_interleave(offsets[rows] - begins, own_sizes)
        place = torch.arange(len(own_labels), device=shift.device) + shift
        result[1][place], result[2][place] = own_labels, own_scores
        return result


def _copied(numbers: Tensor) -> Callable[[], list[int]]:
    """Queue a copy of a few numbers to the host; what is returned waits for that, and not for work queued later."""
    if not numbers.is_cuda:
        return numbers.tolist
    here, done = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    here.copy_(numbers, non_blocking=True)
    done.record(torch.cuda.current_stream(numbers.device))

    def wait() -> list[int]:
        done.synchronize()
        found: list[int] = here.tolist()
        return found

    return wait


def _float_at(place: int) -> float:
    """The float at a place in the order of floats, see `summary._in_order`."""
    bits = place - ORDER_FROM_ZERO
    number: float = struct.unpack("<f", struct.pack("<i", bits ^ 0x7FFFFFFF if bits < 0 else bits))[0]
    return number
