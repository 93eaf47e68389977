"""The built-in scores on CUDA: one kernel reads the logits, once; everything after it works on what it left.

`_read_rows` reduces a row to a few statistics and, on the way, counts the labels above the given one, or finds
the few labels that could be in the set. Rows that fit are held in registers (`_tile`), longer ones are looped over
(`_long`). `_score` then turns a logit, its rank and its row's statistics into the label's score, in float64. It is
the only formula: label scores, sets and dense scores all end in it, so membership and `score <= threshold` agree
exactly.

Probabilities and evidence are added as integers (`_parts`), in two levels of 20 bits that each fit a 32-bit sum.
Integer sums have no order, so neither the compiler nor the number of warps has a say in a result's last bits. From 65
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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evicp.kernels import _torch, _torch_counts, _torch_fixed, _triton_counts
from evicp.kernels import _triton_launch as launch
from evicp.kernels._labelled import Labelled, joined
from evicp.kernels._triton_batch import Batch
from evicp.kernels._triton_counts import RankOnly
from evicp.kernels._triton_sets import SetsPlan
from evicp.kernels.registry import BUILT_IN

#: Rows of a large batch are worked on in groups, so that what is kept per row stays small next to the logits.
ROWS_PER_GROUP = 1 << 20

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
        Batch(score, group, start).label_scores(_indices(labels, start, len(group)), settled=settled)
        for start, group in _groups(logits, ROWS_PER_GROUP)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def labelled(score: Any, logits: Tensor, labels: Tensor, *, ordered: bool = False) -> Labelled:
    """The scores of labelled rows and what a calibration needs to know of them, with one wait for the device."""
    if not _readable(logits) or not len(logits):
        return _torch.labelled(score, logits, labels)
    ordered = ordered and len(logits) <= ROWS_PER_GROUP
    parts = [
        Batch(score, group, start).labelled(_indices(labels, start, len(group)), ordered=ordered)
        for start, group in _groups(logits, ROWS_PER_GROUP)
    ]
    return parts[0] if len(parts) == 1 else joined(parts)


def ragged_sets(score: Any, logits: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """All labels with score <= threshold: offsets (n + 1,) int64, labels int32, their scores float64.

    Within a row labels ascend by score, then descend by logit, then ascend by index.
    """
    if not _readable(logits):
        return _torch.ragged_sets(score, logits, threshold)
    slots = launch.tiling_for(logits.shape[1], score.name).slots
    groups = _groups(logits, max(1, SLOTS_PER_GROUP // slots))
    parts = [Batch(score, group, start).ragged_sets(float(threshold)) for start, group in groups]
    if len(parts) == 1:
        return parts[0]
    offsets, labels, scores = zip(*parts, strict=True)
    sizes = torch.cat([part[1:] - part[:-1] for part in offsets])
    return _torch.offsets_of(sizes), torch.cat(labels), torch.cat(scores)


def sets_plan(score: Any, like: Tensor, threshold: float) -> SetsPlan | None:
    """A plan for the sets within one threshold of logits like these; None where each call has to find its way."""
    whole = len(like) * launch.tiling_for(like.shape[1], score.name).slots <= SLOTS_PER_GROUP
    as_it_is = like.stride(1) == 1 and like.stride(0) >= like.shape[1]
    return SetsPlan(score, like, threshold) if _readable(like) and len(like) and whole and as_it_is else None


def fixed_sets(score: Any, logits: Tensor, threshold: float, width: int | None) -> tuple[Tensor, Tensor]:
    """Sets of fixed shape, without waiting for the device, see `_torch_fixed.fixed_sets`."""
    if not _readable(logits) or not len(logits) or threshold == inf:
        return _torch_fixed.fixed_sets(score, logits, threshold, width)
    ((_, whole),) = _groups(logits, len(logits))
    return Batch(score, whole, 0).fixed_sets(float(threshold), width)


def dense_scores(score: Any, logits: Tensor) -> Tensor:
    """Every label's score, (n, K) float64."""
    return _torch.stacked(logits, dense_blocks(score, logits))


def dense_blocks(score: Any, logits: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The same by blocks of rows, each with the number of its first."""
    if not _readable(logits):
        yield from _torch.dense_blocks(score, logits)
        return
    for start, group in _groups(logits, max(1, _torch.BLOCK_LOGITS // logits.shape[1])):
        yield start, Batch(score, group, start).dense_scores()


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
        ranks = Batch(RankOnly(), group, start).ranks(_indices(labels, start, len(group)))
        result[start : start + len(group)] = 1 + ranks
    return result


def tallied(
    offsets: Tensor, members: Tensor, truth: Tensor, logits: Tensor | None, n_classes: int
) -> NDArray[np.int64] | None:
    """Evaluated rows, counted, see `_torch_counts.tallied`."""
    truth = truth.to(torch.int64).contiguous()
    if not len(truth) or (logits is not None and not _readable(logits)):
        return _torch_counts.tallied(offsets, members, truth, logits, n_classes)
    if logits is None:
        return _triton_counts.tallied(offsets, members, truth, None, n_classes)
    total = np.zeros((3, 3, n_classes + 1), np.int64)
    for start, group in _groups(logits, ROWS_PER_GROUP):
        rows = slice(start, start + len(group))
        own = offsets[start : rows.stop + 1]
        part = _triton_counts.tallied(own, members, truth[rows], group, n_classes, start)
        if part is None:
            return None
        total += part
    return total


def uncertainties(score: Any, logits: Tensor) -> Tensor:
    """Eq. 3: u = K / alpha_0 of each row, (n,), with the evidence of the score (relu where it has none)."""
    if not _readable(logits):
        return _torch.uncertainties(score, logits)
    evidence, n_classes = getattr(score, "evidence", "relu"), logits.shape[1]
    result = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    for start, group in _groups(logits, ROWS_PER_GROUP):
        top, rest = Batch(_EvidenceOnly(evidence), group, start).evidence()
        largest = _torch.evidence_of(evidence, top[:, None])[:, 0]
        result[start : start + len(group)] = n_classes / (n_classes + largest + rest)
    return result


@dataclass(frozen=True)
class _EvidenceOnly:
    """What `Batch` needs of a score, for the evidence of each row and nothing else."""

    evidence: str
    name: str = "ecp"
    temperature: float = 1.0
    adds_up: bool = False

    def epsilon(self, n_classes: int) -> float:  # noqa: ARG002 - as ECP's
        return 0.0


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
