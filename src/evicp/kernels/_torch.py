"""The built-in scores on any torch device: plain tensor operations in row blocks, results on the tensor's own device.

The formulas are the reference's, in float64 where the device has it; MPS, and the XPUs without doubles, compute in
float32 (scores then agree to about 1e-5). A label's score is always read off a block evaluated in full, at the label's
own place, so that it has the same bits whether it was asked for alone or in a set.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from evicp.input import validate
from evicp.kernels._labelled import Labelled
from evicp.kernels.registry import BUILT_IN
from evicp.method.evidence import NORMALIZED, NORMALIZED_SINGLE

#: A block of rows holds about this many logits: enough to keep an accelerator busy, few beside its memory.
BLOCK_LOGITS = 1 << 22


def knows(score: Any) -> bool:
    """Whether this backend has a score: the built-in ones, without a user's function in them."""
    if type(score) not in BUILT_IN:
        return False
    return score.name != "ecp" or (score.utility is None and isinstance(score.evidence, str))


def dense_scores(score: Any, logits: Tensor) -> Tensor:
    """Every label's score, (n, K) float64."""
    return stacked(logits, dense_blocks(score, logits))


def dense_blocks(score: Any, logits: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The same by blocks of rows, each with the number of its first."""
    for rows, z in blocks(logits):
        yield rows.start, every_label(score, z)


def stacked(logits: Tensor, parts: Iterator[tuple[int, Tensor]]) -> Tensor:
    """Blocks of rows as one matrix, (n, K)."""
    result = _empty(logits, tuple(logits.shape))
    for start, part in parts:
        result[start : start + len(part)] = part
    return result


def label_scores(score: Any, logits: Tensor, labels: Tensor, *, settled: bool = True) -> Tensor:  # noqa: ARG001
    """The score of each row's given label, (n,) float64; always settled here."""
    result = _empty(logits, (len(logits),))
    for rows, z in blocks(logits):
        result[rows] = _given_label(score, z, labels[rows, None])[:, 0]
    return result


def labelled(score: Any, logits: Tensor, labels: Tensor, *, ordered: bool = False) -> Labelled:  # noqa: ARG001
    """The scores of labelled rows, and what a calibration needs to know of them."""
    labels = labels.to(torch.int64)
    if bool(((labels < 0) | (labels >= logits.shape[1])).any()):
        return Labelled(_empty(logits, (0,)), outside=True)
    scores, own = label_scores(score, logits, labels), logits.gather(1, labels[:, None])[:, 0]
    largest = torch.where(own < 0, torch.maximum(own, -logits.amax(1)), own)
    return Labelled(
        scores,
        masked=int((own == -inf).sum()),
        seconds=int((scores == 0.0).sum()),
        largest=float(largest.max()) if len(own) else -inf,
    )


def ragged_sets(score: Any, logits: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """All labels with score <= threshold: offsets (n + 1,) int64, labels int32, their scores float64.

    Within a row labels ascend by score, then descend by logit, then ascend by index.
    """
    limit = torch.full((1, 1), threshold, dtype=working_type(logits.device), device=logits.device)
    return sets_within(logits, limit, dense_blocks(score, logits))


def sets_within(logits: Tensor, limit: Tensor, dense: Iterator[tuple[int, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """The same within limits that broadcast to (n, K), from the scores of all labels in blocks of rows."""
    sizes, labels = [logits.new_empty(0, dtype=torch.int64)], [logits.new_empty(0, dtype=torch.int32)]
    scores = [_empty(logits, (0,))]
    for start, block in dense:
        rows = slice(start, start + len(block))
        row, column = torch.nonzero(block <= (limit if len(limit) == 1 else limit[rows]), as_tuple=True)
        members = block[row, column]
        order = stable_order(-logits[rows][row, column].to(block.dtype), members, row)
        sizes.append(torch.bincount(row, minlength=len(block)))
        labels.append(column[order].to(torch.int32))
        scores.append(members[order])
    return offsets_of(torch.cat(sizes)), torch.cat(labels), torch.cat(scores)


class SetsPlan(NamedTuple):
    """The sets within one threshold: here nothing more is prepared, and the first rows are sampled each time."""

    score: Any
    threshold: float

    def sets(self, logits: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Offsets, labels, and whether the first row must be checked."""
        return *ragged_sets(self.score, logits, self.threshold)[:2], True


def sets_plan(score: Any, like: Tensor, threshold: float) -> SetsPlan:  # noqa: ARG001 - as the other backends
    """A plan for the sets within one threshold of logits like these."""
    return SetsPlan(score, threshold)


def offsets_of(sizes: Tensor) -> Tensor:
    """0 and the running sums."""
    result = torch.zeros(len(sizes) + 1, dtype=torch.int64, device=sizes.device)
    torch.cumsum(sizes, 0, out=result[1:])
    return result


def top_labels(score: Any, logits: Tensor) -> Tensor:
    """Each row's most plausible label, (n,) int32: lowest score, then highest logit, then lowest index."""
    result = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    for rows, z in blocks(logits):
        dense = every_label(score, z)
        tied = dense == dense.amin(1, keepdim=True)
        result[rows] = _first_largest(torch.where(tied, z, -torch.inf)).to(torch.int32)
    return result


def label_ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """o: one plus the number of labels with a strictly larger logit than the given one, (n,) int64."""
    result = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for rows, z in blocks(logits):
        result[rows] = 1 + (z > z.gather(1, labels[rows, None])).sum(1)
    return result


def uncertainties(score: Any, logits: Tensor) -> Tensor:
    """Eq. 3: u = K / alpha_0 of each row, (n,), with the evidence of the score (relu where it has none)."""
    result, n_classes = _empty(logits, (len(logits),)), logits.shape[1]
    for rows, z in blocks(logits):
        result[rows] = n_classes / (n_classes + _row_sums(evidence_of(getattr(score, "evidence", "relu"), z))[:, 0])
    return result


def p_values(score: Any, logits: Tensor, ascending: Tensor, labels: Tensor | None = None) -> Tensor:
    """p = (1 + #{s_i >= s}) / (n + 1) from n sorted calibration scores: of every label, or of the given ones."""
    if labels is not None:
        return p_of(label_scores(score, logits, labels), ascending)
    return stacked(logits, ((start, p_of(scores, ascending)) for start, scores in dense_blocks(score, logits)))


def p_of(scores: Tensor, ascending: Tensor) -> Tensor:
    """The p-value of each score among sorted calibration scores."""
    ascending = ascending.to(scores.device, scores.dtype)
    at_least = len(ascending) - torch.searchsorted(ascending, scores.contiguous())
    # CUDA multiplies by the reciprocal of a Python number; p must be the correctly rounded quotient.
    denominator = torch.full((), len(ascending) + 1.0, dtype=scores.dtype, device=scores.device)
    return (1.0 + at_least.to(scores.dtype)) / denominator


# ---------------------------------------------------------------------------------------------------------------
# Blocks


def working_type(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device has no doubles."""
    if device.type == "mps":
        return torch.float32
    if device.type == "xpu" and not torch.xpu.get_device_properties(device).has_fp64:
        return torch.float32
    return torch.float64


def precision(logits: Tensor) -> str:
    """The name of the type in which logits are scored."""
    return str(working_type(logits.device)).removeprefix("torch.")


def blocks(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Row blocks in the working type, each checked for values no score can be computed from."""
    logits = logits.detach()
    rows_per_block = max(1, BLOCK_LOGITS // max(1, logits.shape[1]))
    for start in range(0, len(logits), rows_per_block):
        rows = slice(start, min(start + rows_per_block, len(logits)))
        z = logits[rows].to(working_type(logits.device)).contiguous()
        largest = z.amax(1)
        good = (largest > -torch.inf) & (largest <= validate.LARGEST_LOGIT) & (largest < torch.inf)  # NaN fails all
        if not bool(good.all()):
            raise_bad_row(logits, start + int(torch.nonzero(~good)[0]))
        yield rows, z


def raise_bad_row(logits: Tensor, row: int, first_row: int = 0) -> NoReturn:
    """The reference's error for a row that no score can be computed from; the message counts from `first_row`."""
    validate.raise_bad_row(logits[row].detach().to("cpu", torch.float64).numpy(), first_row + row)


def _empty(logits: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=working_type(logits.device), device=logits.device)


# ---------------------------------------------------------------------------------------------------------------
# The scores of a block: z is (rows, K); ranks and mass are (rows, K), or (rows, 1) where one label was asked for


def every_label(score: Any, z: Tensor) -> Tensor:
    """The score of every label of a checked block, (rows, K); plain operations, so that it can be compiled."""
    if score.name == "ecp" and not score.monotone:
        return _uneven_ecp(score, z)
    order = torch.argsort(z, dim=1, descending=True)  # equal logits share all that is read off it
    ranks = _ranks(order, z)
    if not score.adds_up:
        return _formula(score, z, ranks, None)
    own = _whole_masses(score, z)
    sorted_own = own.gather(1, order)
    above = (sorted_own.cumsum(1) - sorted_own).gather(1, ranks)
    return _formula(score, z, ranks, _shares(above, own, z.dtype))


def _given_label(score: Any, z: Tensor, label: Tensor) -> Tensor:
    """The given label's score, (rows, 1), without ordering the row: its rank is a count, its mass above a sum."""
    if score.name == "ecp" and not score.monotone:
        return _uneven_ecp(score, z).gather(1, label)
    above = z > z.gather(1, label)
    ranks, masses = above.sum(1, keepdim=True), None
    if score.adds_up:
        own = _whole_masses(score, z)
        masses = _shares(torch.where(above, own, 0).sum(1, keepdim=True), own, z.dtype)
    return _formula(score, z, ranks, masses).gather(1, label)


def _formula(score: Any, z: Tensor, ranks: Tensor, masses: tuple[Tensor, Tensor] | None) -> Tensor:
    """The built-in scores by name; `masses` are P + p and p, of those that need them."""
    if score.name == "ecp":
        return _monotone_ecp(score, z, ranks)
    if score.name == "lac":
        return -_log_utility(z, score.temperature)
    return torch.where(z == -torch.inf, torch.inf, _ranked(score, z, ranks.to(z.dtype) + 1.0, masses))


def _ranked(score: Any, z: Tensor, o: Tensor, masses: tuple[Tensor, Tensor] | None) -> Tensor:
    if score.name == "margin":
        return _margin(_probabilities(score, z))
    v = _row_uniforms(z, score.seed) if score.randomized else torch.ones_like(z[:, :1])
    if score.name == "topk":
        return (o - 1.0 + v).expand(z.shape)
    if masses is None:  # SAPS
        largest = _probabilities(score, z).amax(1, keepdim=True)
        return torch.where(o == 1, v * largest, largest + (o - 2 + v) * constant(z, score.lam)).expand(z.shape)
    up_to_own, own = masses
    accumulated = up_to_own - (1.0 - v) * own
    if score.name != "raps":
        return accumulated
    excess = (o - float(score.k_reg)).clamp_min(0.0)
    if score.randomize_penalty:
        excess = torch.where(excess > 0, excess - 1.0 + v, 0.0)
    return accumulated + constant(z, score.lam) * excess


def _margin(p: Tensor) -> Tensor:
    best, second = p.topk(2, dim=1).values[:, :, None].unbind(1)
    return torch.where(p == best, second, best) - p


def _monotone_ecp(score: Any, z: Tensor, ranks: Tensor) -> Tensor:
    """Eq. 11; costs fall as logits rise, so the largest cost is the smallest finite logit's."""
    surprisal = _surprisal(evidence_of(score.evidence, z) + 1.0)
    log_phi = _log_utility(z, score.temperature)
    stabilizer = score.epsilon(z.shape[1])
    finite = torch.where(z == -torch.inf, torch.inf, z)
    least = _first_largest(-finite)[:, None]
    above_least = (z > z.gather(1, least)).sum(1, keepdim=True)
    largest = _log_cost(surprisal, log_phi, above_least, stabilizer).gather(1, least)
    return _relative(_log_cost(surprisal, log_phi, ranks, stabilizer), largest, z > -torch.inf)


def _uneven_ecp(score: Any, z: Tensor) -> Tensor:
    """ECP with its own base rates: ranks by (alpha, z), the maximum wherever it is."""
    rates = torch.as_tensor(np.asarray(score.rates(z.shape[1])), dtype=z.dtype, device=z.device)
    evidence = evidence_of(score.evidence, z)
    prior = (z.shape[1] * rates).expand(z.shape)
    alpha = evidence + prior
    virtual = alpha - evidence
    lost = (evidence - (alpha - virtual)) + (prior - virtual)  # what rounding took: the second key of the order
    order = stable_order(-z, -lost, -alpha)
    ranks = _ranks(order, alpha, lost, z)
    log_phi = _log_utility(z, score.temperature)
    cost = _log_cost(_surprisal(alpha), log_phi, ranks, score.epsilon(z.shape[1])) + rates.log()
    possible = z > -torch.inf
    largest = torch.where(possible, cost, -torch.inf).amax(1, keepdim=True)
    return _relative(cost, largest, possible)


def _relative(cost: Tensor, largest: Tensor, possible: Tensor) -> Tensor:
    """Eq. 11; the only possible label of a row is certain, and scores lowest."""
    is_certain = possible.sum(1, keepdim=True) == 1
    score = torch.where(is_certain, constant(cost, torch.finfo(cost.dtype).min), cost - largest)
    return torch.where(possible, score, torch.inf)


# ---------------------------------------------------------------------------------------------------------------
# What the formulas share, one equation each


def constant(like: Tensor, value: float) -> Any:
    """A number to compute with in the type of a tensor; torch.onnx rounds Python's numbers to float32."""
    return torch.tensor(value, dtype=like.dtype, device=like.device) if torch.compiler.is_exporting() else value


def evidence_of(name: str, z: Tensor) -> Tensor:
    """Definition 1; a masked label has none."""
    if name == "relu":
        return z.clamp_min(0.0)
    if name == "softplus":
        return _log_add_exp(z, torch.zeros_like(z))
    limited = torch.where(z > 10.0, 10.0, torch.where(z < -10.0, -10.0, z))
    return torch.where(z == -torch.inf, 0.0, limited.exp())


def _row_sums(x: Tensor) -> Tensor:
    """The sum of each row, (rows, 1), by halves: the order of torch's own sums depends on how many rows there are."""
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        folded = x[:, :half].clone()
        folded[:, : x.shape[1] - half] += x[:, half:]
        x = folded
    return x


def _log_add_exp(x: Tensor, y: Tensor) -> Tensor:
    """ln(e^x + e^y). torch's own gives other bits at the end of an array than inside it, and so to one row alone."""
    gap = torch.where(x == y, 0.0, (x - y).abs())  # also where both are -inf
    return torch.maximum(x, y) + (-gap).exp().log1p()


def _surprisal(alpha: Tensor) -> Tensor:
    """Eq. 6: -ln p; the one label that can hold more than half is computed from what the others hold."""
    top = _first_largest(alpha)[:, None]
    largest = alpha.gather(1, top)
    rest = _row_sums(alpha.scatter(1, top, 0.0))
    result = -(alpha / (largest + rest)).log()
    exact = torch.where(rest < largest, torch.log1p(rest / largest), result.gather(1, top))
    return result.scatter(1, top, exact)


def _log_utility(z: Tensor, temperature: float) -> Tensor:
    """ln phi, phi = softmax(z / T); log-probabilities are kept as they are."""
    shifted = _log_utility_ratio(z, temperature)
    others = shifted.exp().scatter(1, _first_largest(shifted)[:, None], 0.0)
    log_total = _row_sums(others).log1p()
    if temperature != 1.0:
        return shifted - log_total
    top, is_single = z.amax(1, keepdim=True), (z == z.float()).all(1, keepdim=True)
    tolerance = torch.where(is_single, constant(z, NORMALIZED_SINGLE), constant(z, NORMALIZED))
    is_normalized = (top < 0) & ((top + log_total).abs() <= tolerance)
    return torch.where(is_normalized, z, shifted - log_total)


def _log_utility_ratio(z: Tensor, temperature: float) -> Tensor:
    """ln(phi_k / max_v phi_v)."""
    shifted = (z - z.amax(1, keepdim=True)) / constant(z, temperature)
    return torch.where(z == -torch.inf, -torch.inf, shifted.clamp_min(constant(z, torch.finfo(z.dtype).min)))


def _log_cost(surprisal: Tensor, log_phi: Tensor, ranks: Tensor, stabilizer: float) -> Tensor:
    """Eq. 10, up to a constant of the row; surprisal and log_phi are (rows, K)."""
    n_classes = log_phi.shape[1]
    log_epsilon = torch.full_like(log_phi[:, :1], stabilizer).log()
    room = ((n_classes - ranks).to(log_phi.dtype) / n_classes).log()
    return surprisal.log() - _log_add_exp(log_phi - 2.0 * surprisal + room, log_epsilon)


def _probabilities(score: Any, z: Tensor) -> Tensor:
    return _log_utility(z, score.temperature).exp()


def _whole_masses(score: Any, z: Tensor) -> Tensor:
    """exp((z_k - max z) / T) as whole numbers of units, as in the reference: sums are exact, and have no order."""
    w = _log_utility_ratio(z, score.temperature).exp()
    return (w * 2.0 ** (62 - int(z.shape[1]).bit_length())).round().to(torch.int64)


def _shares(above: Tensor, own: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """P + p, exactly 1 for the least plausible label, and p, from whole masses; (rows, K)."""
    total = own.sum(1, keepdim=True).to(dtype)
    return (above + own).to(dtype) / total, own.to(dtype) / total


def _ranks(order: Tensor, *keys: Tensor) -> Tensor:
    """r: the number of labels strictly above in the keys, (rows, K) int64; equal labels share it."""
    position = torch.arange(order.shape[1], device=order.device).expand(order.shape)
    opens_group = torch.zeros(order.shape, dtype=torch.bool, device=order.device)
    for key in keys:
        descending = key.gather(1, order)
        opens_group[:, 1:] |= descending[:, 1:] != descending[:, :-1]
    starts = torch.where(opens_group, position, 0)
    if torch.compiler.is_exporting():  # ONNX has no running maximum
        group = opens_group.to(torch.int64).cumsum(1)
        shared = torch.zeros_like(order).scatter_add(1, group, starts).gather(1, group)
    else:
        shared = starts.cummax(1).values
    return torch.empty_like(order).scatter(1, order, shared)


def stable_order(*keys: Tensor) -> Tensor:
    """What `np.lexsort` gives along the last axis: ascending by the last key, then the one before it, ..."""
    order = torch.argsort(keys[0], dim=-1, stable=True)
    for key in keys[1:]:
        order = order.gather(-1, torch.argsort(key.gather(-1, order), dim=-1, stable=True))
    return order


def _first_largest(x: Tensor) -> Tensor:
    """The first index of each row's maximum; argmax alone leaves open which one of several it returns."""
    index = torch.arange(x.shape[1], device=x.device)
    return torch.where(x == x.amax(1, keepdim=True), index, x.shape[1]).amin(1)


def _mix32(x: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser on int64 values in [0, 2^32)."""
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & 0xFFFFFFFF
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _row_uniforms(z: Tensor, seed: int) -> Tensor:
    """v in [0, 1) for each row, (rows, 1), the reference's bits."""
    bits = (z.to(torch.float32) + 0.0).view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    total = torch.where(z == -torch.inf, 0, _mix32(bits)).sum(1, keepdim=True) & 0xFFFFFFFF
    salt = _mix32(torch.tensor(seed & 0xFFFFFFFF, device=z.device))
    return (_mix32(total ^ salt) >> 8).to(z.dtype) / 2.0**24
