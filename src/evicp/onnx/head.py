"""The operators that turn logits into sets: scores, thresholds and ranks as in `scores.py`, in double precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from evicp.errors import ScoreError
from evicp.input.validate import LARGEST_LOGIT, SMALLEST_PROBABILITY
from evicp.method.scores import APS, ECP, LAC, RAPS, SAPS, Margin, Score, TopK
from evicp.onnx.graph import Graph, Tensor
from evicp.onnx.outputs import OFF_ONE
from evicp.types import F64


def build_head(
    onnx: Any, score: Score, thresholds: F64, *, n_classes: int, kind: int, opset: int, of_probabilities: bool = False
) -> Any:
    """A separate model: logits or probabilities in, mask, size and uncertainty out.

    Parameters
    ----------
    onnx : the package
    thresholds : one, or one per label
    kind : the element type of the logits
    opset : of the model that the head is put on
    """
    helper, proto, graph = onnx.helper, onnx.TensorProto, Graph(onnx, n_classes)
    # A model that does not give K numbers a row fails here: each row of logits belongs to a row of inputs.
    given = graph.add("Reshape", Tensor(graph, "evicp/logits"), graph.whole([0, n_classes])).double()
    usable = _sums_to_one(given) if of_probabilities else _usable(given)
    logits = given.maximum(SMALLEST_PROBABILITY).log() if of_probabilities else given
    z = usable.where(logits, 0.0)
    mask = _members(score, z, thresholds, usable.where(thresholds, np.inf))
    graph.add("Identity", mask, name="set_mask").count(keepdims=0).whole(name="set_size")
    evidence = _evidence(score.evidence if isinstance(score, ECP) else "relu", z).sum()
    of_rows = graph.add("Squeeze", usable.where(evidence, 0.0), graph.whole([1]))
    graph.add("Div", n_classes, of_rows + n_classes, name="uncertainty")
    inputs = [helper.make_tensor_value_info("evicp/logits", kind, ["batch", n_classes])]
    outputs = [
        helper.make_tensor_value_info("set_mask", proto.BOOL, ["batch", n_classes]),
        helper.make_tensor_value_info("set_size", proto.INT64, ["batch"]),
        helper.make_tensor_value_info("uncertainty", proto.DOUBLE, ["batch"]),
    ]
    made = helper.make_graph(graph.nodes, "evicp_sets", inputs, outputs, graph.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)])


def _usable(z: Tensor) -> Tensor:
    """Which rows can be scored, (batch, 1): as `validate.blocks`. NaN, which TopK may put anywhere, is not counted."""
    all_in_range = (z <= LARGEST_LOGIT).count().equals(z.graph.n_classes)
    return all_in_range & (z.max() > -np.inf)


def _sums_to_one(p: Tensor) -> Tensor:
    """Which rows are probabilities, (batch, 1); NaN is not."""
    none_negative = (p.graph.constant(0) <= p).count().equals(p.graph.n_classes)
    return none_negative & ((p.sum() - 1).abs() <= OFF_ONE)


def _members(score: Score, z: Tensor, thresholds: F64, limits: Tensor) -> Tensor:
    """Which labels are in the sets; `limits` are the thresholds, in each row that cannot be scored +inf."""
    if isinstance(score, ECP) and score.monotone and thresholds.shape == (1,) and -np.inf < thresholds[0] < -_NEAR_ZERO:
        return _top_labels(score, z, limits)
    return _scores(score, z) <= limits


# ---------------------------------------------------------------------------------------------------------------
# Scores, as in scores.py


def _scores(score: Score, z: Tensor) -> Tensor:
    """Every label's score; a masked label's is +inf."""
    if getattr(score, "randomized", False):
        raise ScoreError(
            f"{score.describe()} is randomised, which standard ONNX operators cannot reproduce. "
            f"Calibrate with {type(score).__name__}(randomized=False), or with ECP or LAC."
        )
    if type(score) not in _BUILDERS:
        raise ScoreError(f"{score.describe()} cannot be exported: only built-in scores have ONNX operators.")
    return _masked(z).where(np.inf, _BUILDERS[type(score)](score, z))


def _ecp(score: ECP, z: Tensor) -> Tensor:
    """Eq. 11 on the log scale."""
    if callable(score.evidence) or score.utility is not None:
        raise ScoreError("ECP with your own functions cannot be exported: a graph contains no Python.")
    k = z.graph.n_classes
    rates = score.rates(k)
    prior = z.graph.constant(np.ones(k) if rates is None else k * rates)
    evidence = _evidence(score.evidence, z)
    alpha = evidence + prior
    ranks = _ranks(z) if rates is None else _ranks(alpha, _lost(alpha, evidence, prior), z)
    top_two, _ = z.graph.top(alpha, 2)
    sums = _Sums.of(alpha, top_two.columns(0, 1), top_two.columns(1, 2))
    cost = _log_cost(score, sums.surprisal(alpha), _log_softmax(z, score.temperature), ranks)
    cost = cost if rates is None else cost + np.log(rates)
    relative = cost - _masked(z).where(-np.inf, cost).max()
    is_certain = _masked(z).count().equals(k - 1)
    return is_certain.where(-np.inf, relative)


def _log_cost(score: ECP, surprisal: Tensor, log_phi: Tensor, ranks: Tensor) -> Tensor:
    """Eq. 10, but for factors that all labels share."""
    k, epsilon = surprisal.graph.constant(surprisal.graph.n_classes), score.epsilon(surprisal.graph.n_classes)
    denominator = log_phi - surprisal * 2 + ((k - ranks) / k).log()
    if epsilon > _VANISHING:
        denominator = (denominator.exp() + epsilon).log()
    elif epsilon > 0:
        denominator = _log_add_exp(denominator, float(np.log(epsilon)))
    return surprisal.log() - denominator


#: Beside larger numbers it does not matter that the smallest doubles lack digits.
_VANISHING = 1e-290
#: Far more than rounding does to the logarithm of a cost.
_ROUNDING = 1e-9
#: Thresholds on ln S from minus this up keep all possible labels, but for rounding.
_NEAR_ZERO = 1e-6


def _top_labels(score: ECP, z: Tensor, thresholds: Tensor) -> Tensor:
    """Which labels have scores within a threshold below 0: the top of each row, without a full sort.

    Costs at the best rank, and at the worst that is left, tell which labels are beyond the threshold and which are in
    the set for sure. Only the few labels between are sorted. Of equal logits the first has their rank and decides.
    """
    graph, k, epsilon = z.graph, z.graph.constant(z.graph.n_classes), score.epsilon(z.graph.n_classes)
    top_two, _ = graph.top(z, 2)
    top, second = top_two.columns(0, 1), top_two.columns(1, 2)
    exps, alpha = _over(z - top, score.temperature).exp(), _alpha(score, z)
    total, sums = exps.sum(), _Sums.of(alpha, _alpha(score, top), _alpha(score, second))

    def log_cost(values: Tensor, surprisal: Tensor, ranks: Tensor) -> Tensor:
        log_phi = _over(values - top, score.temperature) - total.log()
        return _log_cost(score, surprisal, log_phi, ranks)

    lowest = graph.top(_masked(z).where(np.inf, z), 1, largest=0)[0]
    limit = log_cost(lowest, (sums.total / _alpha(score, lowest)).log(), (z > lowest).count()) + thresholds
    # A label is beyond if -ln p > e^limit (phi p^2 (1 - r/K) + epsilon), at rank 0; sure if it is not, at the worst.
    demand, p = -limit.exp(), alpha * (graph.constant(1) / sums.total)
    log_p, expected = p.log(), exps * p * p
    more, less = 1 + _ROUNDING, 1 - _ROUNDING
    least = expected * (demand / total * more) + (demand * (more * max(epsilon, _VANISHING)) - _ROUNDING)
    beyond = least > log_p
    n_beyond = beyond.count()
    most = expected * (demand / total * (less / graph.n_classes) * n_beyond)
    sure = most + (demand * (less * (epsilon - _VANISHING)) + _ROUNDING) <= log_p
    n_sure = sure.count()
    n_open = (k - n_beyond - n_sure).largest_of_batch()
    values, _ = graph.top((sure | beyond).where(-np.inf, z), n_open)
    places = graph.constant(np.arange(graph.n_classes)[None]).columns(0, n_open)
    members = log_cost(values, sums.surprisal(_alpha(score, values)), n_sure + places) <= limit
    is_certain = second.equals(-np.inf)
    return sure | (is_certain.where(top, graph.top(members.where(values, np.inf), 1, largest=0)[0]) <= z)


def _lac(score: LAC, z: Tensor) -> Tensor:
    """-ln p."""
    return -_log_softmax(z, score.temperature)


def _aps(score: APS | RAPS, z: Tensor) -> Tensor:
    """The mass of labels strictly above, plus the label's own, in whole numbers, as `accumulated_masses`."""
    graph, unit = z.graph, 2.0 ** (62 - z.graph.n_classes.bit_length())
    mass = graph.add("Round", _shifted(z, score.temperature).exp() * unit).whole()
    values, order = z.sort()
    before = graph.add("CumSum", mass.gather(order), graph.whole(1), exclusive=1)
    above = _first_of_group(before, values).unsort(order)
    return (above + mass).double() / mass.sum().double()


def _raps(score: RAPS, z: Tensor) -> Tensor:
    """APS, and a charge for every rank past `k_reg`."""
    return _aps(score, z) + (_ranks(z) - (score.k_reg - 1)).maximum(0) * score.lam


def _saps(score: SAPS, z: Tensor) -> Tensor:
    """The largest probability, and a charge for every rank after the first."""
    return _log_softmax(z, score.temperature).exp().max() + _ranks(z) * score.lam


def _topk(_: TopK, z: Tensor) -> Tensor:
    """The rank."""
    return _ranks(z) + 1


def _margin(score: Margin, z: Tensor) -> Tensor:
    """The largest other probability less the label's own."""
    p = _log_softmax(z, score.temperature).exp()
    values, _ = p.sort()
    best, second = values.columns(0, 1), values.columns(1, 2)
    return p.equals(best).where(second, best) - p


_BUILDERS: Mapping[type, Callable[[Any, Tensor], Tensor]] = MappingProxyType(
    {APS: _aps, ECP: _ecp, LAC: _lac, Margin: _margin, RAPS: _raps, SAPS: _saps, TopK: _topk}
)


# ---------------------------------------------------------------------------------------------------------------
# What scores are made of


def _masked(z: Tensor) -> Tensor:
    """Which labels are impossible."""
    return z.equals(-np.inf)


def _alpha(score: ECP, z: Tensor) -> Tensor:
    """Eq. 1 with uniform base rates."""
    return _evidence(score.evidence, z) + 1


def _evidence(kind: Any, z: Tensor) -> Tensor:
    """Definition 1; masked labels have none."""
    if kind == "exp":
        return _masked(z).where(0.0, z.graph.add("Clip", z, -10.0, 10.0).exp())
    return _log_add_exp(z, 0.0) if kind == "softplus" else z.graph.add("Relu", z)


class _Sums(NamedTuple):
    """What a surprisal takes from its row, (batch, 1): the sum of alpha, its largest, and the sum of the rest."""

    total: Tensor
    largest: Tensor
    rest: Tensor

    @classmethod
    def of(cls, alpha: Tensor, largest: Tensor, second: Tensor) -> _Sums:
        """Without a difference of large numbers: in the sum of the rest, the second largest stands for the largest."""
        return cls(alpha.sum(), largest, alpha.minimum(second).sum() - second)

    def surprisal(self, alpha: Tensor) -> Tensor:
        """-ln p; the largest label's from the sum of the rest, where p is near 1."""
        is_sure = alpha.equals(self.largest) & (self.largest > self.rest)
        return is_sure.where(_log1p(self.rest / self.largest), (self.total / alpha).log())


def _log_softmax(z: Tensor, temperature: float) -> Tensor:
    """ln softmax(z / T)."""
    shifted = _shifted(z, temperature)
    return shifted - shifted.exp().sum().log()


def _shifted(z: Tensor, temperature: float) -> Tensor:
    """(z - max z) / T."""
    return _over(z - z.max(), temperature)


def _over(z: Tensor, temperature: float) -> Tensor:
    """z / T."""
    return z if temperature == 1 else z / temperature


def _log1p(x: Tensor) -> Tensor:
    """ln(1 + x) without the loss of small x: x ln(y) / (y - 1), y = 1 + x, and x itself where y is 1."""
    y = x + 1
    gap = y - 1
    lost = gap.equals(0)
    return lost.where(x, x * y.log() / lost.where(1.0, gap))


def _log_add_exp(a: Tensor, b: float) -> Tensor:
    """ln(e^a + e^b), also for a = -inf."""
    return a.maximum(b) + _log1p((-(a - b).abs()).exp())


def _ranks(z: Tensor, *others: Tensor) -> Tensor:
    """r: how many labels lie strictly above, in z, then in the keys after it; equal labels share a rank."""
    values, order = z.sort()
    positions = z.graph.whole(np.arange(z.graph.n_classes)[None]) + (order - order)
    ranks = _first_of_group(positions, values).unsort(order).double()
    if not others:
        return ranks
    places = ranks * z.graph.n_classes + _ranks(others[0])
    return _ranks(-places, *others[1:])


def _lost(alpha: Tensor, evidence: Tensor, prior: Tensor) -> Tensor:
    """What rounding took from alpha = evidence + prior: the second key of the order, as in `evidence.py`."""
    virtual = alpha - evidence
    return (evidence - (alpha - virtual)) + (prior - virtual)


def _first_of_group(running: Tensor, values: Tensor) -> Tensor:
    """For each sorted position, `running`, whole numbers, at the first position of equal values.

    Group numbers are running counts of changes; adding `running` at each group's first position into the slot of
    its group number, then reading the slots back, needs no running maximum (ONNX has none).
    """
    graph, k = values.graph, values.graph.n_classes
    same = values.columns(1, k).equals(values.columns(0, k - 1)).whole()
    one, nothing = graph.whole(1), running - running
    opens = graph.add("Concat", nothing.columns(0, 1) + one, one - same, axis=1)
    index = graph.add("CumSum", opens, one) - one
    slots = graph.add("ScatterElements", nothing, index, running * opens, axis=1, reduction="add")
    return slots.gather(index)
