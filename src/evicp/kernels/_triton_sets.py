"""Prediction sets of logits that come again and again in one shape: a plan, made once."""

from __future__ import annotations

from threading import Lock
from typing import Any

import torch
from torch import Tensor

from evicp.kernels import _triton_launch as launch
from evicp.kernels._jitted.layout import _BAD, _CROWDED, _MEMBERS, _ODD, _WIDE
from evicp.kernels._triton_batch import Batch

#: Logits of at most so many bytes are copied to where a recorded graph reads them: launching its kernels one by one
#: would take longer than they do. Recording takes as long as some hundred launches, and waits for a third call.
RECORDED_BYTES, RECORDED_AT = 1 << 25, 3


class SetsPlan:
    """The sets within one threshold of logits of one shape, type and device; all that their values do not decide.

    Made once are the tiling, the compiled kernels and the score's numbers. A call then queues the kernel that reads the
    logits, those that score the candidates and count the members, and waits, once, for their number: the sets' memory
    is about as large as they are. A large batch is launched kernel by kernel, with its own memory, and its sets are
    written while the host waits if they are no larger than those of the last call, or little more. A small one, which
    takes longer to launch than to compute, is recorded as a CUDA graph at its third call: from then on a call copies
    the logits to the graph's own, replays it, waits, and copies the sets out. The graph belongs to the stream it was
    recorded for, and to one thread at a time; others, and rows that need more than the graph does (too many candidates,
    evidence beyond the sums), are launched kernel by kernel.
    """

    def __init__(self, score: Any, like: Tensor, threshold: float) -> None:
        self.score, self.threshold, self.made = score, threshold, launch.made_for(score, like)
        self.small = like.is_cuda and like.numel() * like.element_size() <= RECORDED_BYTES
        self.calls, self.lock = 0, Lock()
        self.room = 0  # for so many labels: a little more than there were last time
        self.recorded: Recorded | None = None

    def sets(self, logits: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Offsets, labels, and whether the first row must be checked."""
        if self.small and self.lock.acquire(blocking=False):
            try:
                found = self._replayed(logits)
            finally:
                self.lock.release()
            if found is not None:
                return found
        batch = Batch(self.score, logits, 0, self.made)
        offsets, labels, _ = batch.ragged_sets(self.threshold, self.room)
        self.room = 0 if batch.crowded else len(labels) + len(labels) // 16 + 64
        return offsets, labels, batch.odd

    def _replayed(self, logits: Tensor) -> tuple[Tensor, Tensor, bool] | None:
        """The same by the graph; None where there is none, or it cannot say."""
        self.calls += 1
        if self.calls < RECORDED_AT:
            return None
        if self.recorded is None:
            self.recorded = Recorded(self.score, logits, self.threshold, self.made)
        return self.recorded.sets(logits)


class Recorded:
    """The kernels of a plan as a CUDA graph, with its own memory."""

    def __init__(self, score: Any, like: Tensor, threshold: float, made: launch.Made) -> None:
        self.logits = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
        self.logits.copy_(like)
        self.batch, self.threshold = Batch(score, self.logits, 0, made), threshold
        self.found = self.batch.slots()
        self.room = self.batch.candidates(self.found)
        most = self.room[0].numel()
        self.labels_from = len(like) + 1
        # Offsets and then labels, two to a number, in one piece of memory: they are copied out by one launch.
        self.out = torch.empty(self.labels_from + (most + 1) // 2, dtype=torch.int64, device=like.device)
        self.offsets, self.labels = self.out[: self.labels_from], self.out[self.labels_from :].view(torch.int32)
        self.scores = torch.empty(most, dtype=torch.float64, device=like.device)
        self.report = torch.empty_like(self.batch.status, device="cpu", pin_memory=True)
        self.stream = torch.cuda.current_stream(like.device)
        aside = torch.cuda.Stream(like.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(self.stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(aside):
            self._work()  # kernels are compiled before they are recorded
            aside.synchronize()
            self.graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._work()
            finally:
                self.graph.capture_end()
        self.stream.wait_stream(aside)

    def _work(self) -> None:
        batch, threshold = self.batch, self.threshold
        batch.status.zero_()
        batch.read_candidates(self.found, threshold)
        batch.score_candidates(self.room, threshold)
        torch.cumsum(self.room[3], 0, dtype=torch.int64, out=self.offsets)
        batch.write_into(self.room, self.offsets, self.labels, self.scores, threshold)
        self.report.copy_(batch.status, non_blocking=True)

    def sets(self, logits: Tensor) -> tuple[Tensor, Tensor, bool] | None:
        """Offsets, labels, and whether the first row must be checked; None where the graph cannot say."""
        here = torch.cuda.current_device() == logits.get_device()
        if not here or torch.cuda.current_stream() != self.stream:
            return None
        self.logits.copy_(logits)
        self.graph.replay()
        self.stream.synchronize()
        report = self.report.tolist()
        if report[_BAD.value] or report[_WIDE.value] or report[_CROWDED.value]:
            return None
        total, first = report[_MEMBERS.value], self.labels_from
        out = self.out[: first + (total + 1) // 2].clone()
        return out[:first], out[first:].view(torch.int32)[:total], bool(report[_ODD.value])
