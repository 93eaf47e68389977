"""Formulas side by side.

A logarithm keeps the processor waiting for most of its time, and eight take hardly longer than one: rows are reduced
one by one, what they give is noted, and the formulas then run over all of them in loops that the compiler turns into
vector instructions, with the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.arrays import F64
from evicp.evidence import NORMALIZED, NORMALIZED_SINGLE
from evicp.kernels._compiled.columns import Columns, _reader, _writer
from evicp.kernels._compiled.lanes import (
    LANES,
    _add,
    _exp_by,
    _exp_numbers,
    _finite,
    _intrinsic,
    _lanes,
    _native,
    _relu,
    _smaller,
    _sub,
    _unless_at_least,
)
from evicp.kernels._compiled.memory import _SIDES, _fetch, _load_whole, _store, _turn
from evicp.kernels._compiled.parameters import _ECP, _LAC, _MARGIN, _MASS, _NARROW, _RELU, _Parameters
from evicp.kernels._compiled.parts import _inlined
from evicp.kernels._compiled.reductions import (
    _above,
    _at_least,
    _least,
    _lowest_bit,
    _most,
    _nans,
    _no_counts,
    _one_more,
    _one_more_at_least,
)
from evicp.kernels._compiled.rows import (
    _LARGEST_LOGIT,
    _dirichlet,
    _fixed,
    _gain,
    _huge_evidence_but_largest,
    _is_rank,
    _Label,
    _log1p,
    _log_cost,
    _look,
    _mass_above,
    _other_evidence,
    _plain_value,
    _probability,
    _quotient_value,
    _Row,
    _second_largest,
    _sums,
    _surprisal,
    _Survey,
    _survey,
    _uniform,
    _value,
)
from evicp.kernels._compiled.toolchain import numpy_support

#: How many rows are noted before their formulas are worked out; fewer if they would leave the cache meanwhile.
_BATCH = 32
_BATCH_LOGITS = 1 << 15
#: How many labels of such a row are flagged in one number.
_FLAGS = 32
#: How many candidates of a set are scored at a time.
_SIDE = 8
#: How many candidates of several rows are scored side by side, and how many of one row at most.
_SLOTS, _MOST = 128, 64
#: Candidates are flagged by the bits of words: two hold all of them.
_WORD = 64
_LANE_BITS = (1 << LANES) - 1

_ROW_COLUMNS = ["top", "low", "low_alpha", "low_rank", "exponentials", "largest", "total", "log_total", "alpha", "rest"]
_ROW_COLUMNS += ["inverse_alpha_0", "v", "second", "worst", "low_surprisal", "low_gain", "few", "some", "many"]
_ROW_COLUMNS += ["shared", "threshold", "demand", "cut", "begin", "end", "surprisal", "cost", "top_score"]
_LABEL_COLUMNS = ["z", "label_alpha", "rank", "up_to", "own", "label_surprisal", "gain", "score"]
#: One record for a batch: its columns lie at places known to the compiler, which need not prove that they are apart.
#: Unused ones keep what lies before and behind in memory, which may be another thread's, off its cache lines.
#: Candidates of small sets and the numbers of the exponential in either precision are at hand there, too.
_SINGLE, _DOUBLE = np.array(_exp_numbers(False), np.float32), np.array(_exp_numbers(True))
_CANDIDATES = np.dtype([(name, np.float64, (_SLOTS,)) for name in [*_Row._fields, *_LABEL_COLUMNS, "label"]])


@lru_cache
def _columns(dtype: Any) -> Any:
    """The record of a batch, where turned rows are in their own precision."""
    columns: list[Any] = [(name, np.float64, (_BATCH,)) for name in ["before", *_ROW_COLUMNS, *_LABEL_COLUMNS]]
    columns += [("flags", np.int64, (_NARROW // _FLAGS * _BATCH,)), ("candidates", _CANDIDATES)]
    columns += [("turned", dtype, (_NARROW * _BATCH,)), ("marks", dtype, (LANES,))]
    columns += [("double", np.float64, _DOUBLE.shape), ("single", np.float32, _SINGLE.shape)]
    return np.dtype([*columns, ("behind", np.float64, (_BATCH,))])


@_intrinsic
def _columns_of(_typing: Any, logits: Any, room: Any) -> Any:
    """The columns of a batch of rows, which lie in the bytes of `room`."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.make_array(signature.args[1])(context, builder, values[1]).data

    return Columns(f"{logits.dtype}", _columns(numpy_support.as_dtype(logits.dtype)))(logits, room), generate


def make_batch(dtype: Any) -> NDArray[Any]:
    """Room for what a batch of rows and their labels give."""
    batch = np.empty(1, _columns(dtype))
    batch["single"], batch["double"] = _SINGLE, _DOUBLE
    return batch.view(np.uint8)


_OF_LABEL = ["z", "label_alpha", "rank", "up_to", "own"]
_row_at = _reader(_Row, [*_Row._fields])
_label_at = _reader(_Label, _OF_LABEL)
_note_label = _writer(_OF_LABEL)
#: What LAC's score, or ECP's with relu evidence and a plain stabilizer, needs to know of its row.
_OF_ROW = ["top", "largest", "log_total", "alpha", "rest", "inverse_alpha_0", "low_surprisal", "low_gain"]
_note_as_row = _writer([name if name in _OF_ROW else "" for name in _Row._fields])


@_inlined
def _note_candidate(c: Any, m: int, s: _Row, label: int, z: float, rank: int) -> None:
    """A candidate with what its score needs to know of its row, as if each had a row of its own."""
    _note_as_row(c, m, s)
    c.label[m], c.z[m], c.label_alpha[m], c.rank[m] = label, z, _relu(z) + 1.0, rank


@_inlined
def _note_row(b: Any, j: int, row: Any, p: _Parameters, survey: _Survey, labels: Any, other: Any) -> None:
    """What passes over a usable row give; with labels, nobody asks for candidates."""
    b.top[j], b.low[j], b.rank[j], b.worst[j] = survey.top, survey.low, survey.rank, 0.0
    if labels is None:
        b.few[j], b.some[j], b.many[j] = survey.few, survey.some, survey.many
    if other is None:
        rest = survey.rest if survey.rest < inf else _huge_evidence_but_largest(row)
        _note_evidence(b, j, row, p, survey, rest, other)
    if other is not None:
        _note_other(b, j, row, p, survey, other)


@_inlined
def _note_evidence(b: Any, j: int, row: Any, p: _Parameters, survey: _Survey, rest: float, other: Any) -> None:
    """What ECP asks of a row, given the sum of its evidence but the largest."""
    top, low = survey.top, survey.low
    sums = _sums(row, top, _native(row, p.rate), low, b)
    b.shared[j] = sums.shared
    b.exponentials[j], b.low_rank[j], b.rest[j] = sums.exponentials, sums.low_rank, rest + (p.n_classes - 1.0)
    b.alpha[j] = _dirichlet(p.evidence, np.float64(top), other)
    b.low_alpha[j] = _dirichlet(p.evidence, np.float64(low), other)


@_inlined
def _note_other(b: Any, j: int, row: Any, p: _Parameters, survey: _Survey, other: Any) -> None:
    """What any score asks of a row."""
    b.v[j] = _uniform(row, p.seed) if p.randomized else 1.0
    if p.kind == _ECP:
        is_known = p.evidence == _RELU and survey.rest < inf
        rest = survey.rest if is_known else _other_evidence(row, p.evidence, survey.top)
        _note_evidence(b, j, row, p, survey, rest, other)
    elif p.kind == _MASS:
        b.exponentials[j] = 0.0
        b.total[j] = _mass_above(row, p, np.float64(survey.top), _native(row, -inf))
    elif not _is_rank(p.kind):
        sums = _sums(row, survey.top, _native(row, p.rate), None, b)
        b.exponentials[j] = sums.exponentials
        if p.kind == _MARGIN:
            b.second[j] = _second_largest(row, survey.top, sums.shared)


@_inlined
def _is_certain(b: Any, j: int) -> bool:
    """Whether only one label of row j is possible."""
    return b.low[j] == b.top[j] and b.shared[j] == 1.0


@_inlined
def _finish_costs(b: Any, p: _Parameters, count: int, other: Any) -> None:
    """Each row's largest cost."""
    for j in range(count):
        b.inverse_alpha_0[j] = 1.0 / (b.alpha[j] + b.rest[j])
    if p.is_plain:
        for j in range(count):
            b.low_surprisal[j] = _surprisal(_row_at(b, j), b.low_alpha[j])
        for j in range(count):
            b.low_gain[j] = _gain(p, _row_at(b, j), b.low[j], b.low_alpha[j], b.low_rank[j])
        for j in range(count):
            b.low_gain[j] = 0.0 if _is_certain(b, j) else b.low_gain[j]
    elif other is not None:
        for j in range(count):
            b.worst[j] = _log_cost(p, _row_at(b, j), b.low[j], b.low_alpha[j], b.low_rank[j])
        for j in range(count):
            b.worst[j] = inf if _is_certain(b, j) else b.worst[j]


@_inlined
def _finish_rows(b: Any, p: _Parameters, count: int, other: Any) -> None:
    """The rest of what labels' scores need to know of their rows."""
    if _is_rank(p.kind):
        return
    for j in range(count):
        b.largest[j] = 1.0 / (1.0 + b.exponentials[j])
    if not p.is_plain:
        for j in range(count):
            b.log_total[j] = _log1p(b.exponentials[j])
    if p.kind == _ECP:
        _finish_costs(b, p, count, other)
    if other is not None:  # noqa: SIM102 - what is not compiled is a condition of its own
        if p.kind == _MARGIN:
            for j in range(count):
                b.second[j] = _probability(p, _row_at(b, j), b.second[j])


@_inlined
def _fits_single(row: Any, n_classes: int) -> bool:
    """Whether all logits of a row are numbers of single precision."""
    for k in range(n_classes):  # noqa: SIM110 - Numba compiles no generators
        if np.float64(np.float32(row[k])) != np.float64(row[k]):
            return False
    return True


@_inlined
def _keep_logarithms(b: Any, logits: Any, first: int, count: int, n_classes: int) -> None:
    """Rows whose probabilities exp(z) sum to 1, up to rounding, hold logarithms of these: make their sum 1."""
    for j in range(count):
        off = abs(b.top[j] + b.log_total[j])
        if b.top[j] < 0.0 and off <= NORMALIZED_SINGLE:  # noqa: SIM102 - the second takes a look at the row
            if off <= NORMALIZED or _fits_single(logits[first + j], n_classes):
                b.log_total[j] = 0.0 - b.top[j]


@_inlined
def _label(row: Any, p: _Parameters, s: _Row, z: Any, rank: float, other: Any) -> _Label:
    """A label with this logit and rank."""
    up_to, own = 0.0, 0.0
    if other is not None:  # noqa: SIM102 - what is not compiled is a condition of its own
        if p.kind == _MASS:
            mass = _fixed(row, p, s.top, z)
            up_to = np.float64(_mass_above(row, p, s.top, z) + mass) / s.total
            own = np.float64(mass) / s.total
    alpha = _dirichlet(p.evidence, np.float64(z), other)
    return _Label(np.float64(z), alpha, rank, up_to, own)


@_inlined
def _end_of_batch(logits: Any, first: int) -> int:
    return _least(first + _most(1, _least(_BATCH, _BATCH_LOGITS // logits.shape[1])), len(logits))


@_inlined
def _turn_few(b: Any, j: int, logits: Any, first: int, count: int, n_classes: int) -> None:
    """As `_turn`, of all columns, where there are fewer than 16 rows: the last one is repeated."""
    for r in range(LANES):
        row = logits[first + _least(r, count - 1)]
        for k in range(n_classes):
            b.turned[_at(j, k, n_classes) + r] = row[k]


@_inlined
def _at(j: int, k: int, n_classes: int) -> int:
    """Where column k of the rows from number j of a batch on is in `turned`."""
    return j * n_classes + k * LANES


@_inlined
def _marks(b: Any, j: int, logits: Any, first: int, count: int, labels: Any) -> Any:
    """The logits of the labels of 16 rows; any numbers if there are no labels."""
    if labels is not None:
        for r in range(LANES):
            i = first + _least(r, count - 1)
            b.marks[r] = logits[i, labels[i]]
        _store(b.z, j, _load_whole(b.marks, 0))
    return _load_whole(b.marks, 0)


@_inlined
def _survey_turned(b: Any, j: int, logits: Any, first: int, count: int, p: _Parameters, labels: Any) -> Any:
    """As `_survey` for 16 rows, each in a lane: what is left of their evidence, tops, lows and ranks of labels."""
    turned, row, n_classes = b.turned, logits[first], p.n_classes
    rest, top, low, rank = _lanes(row, 0.0), _lanes(row, -inf), _lanes(row, inf), _no_counts(row)
    mark, zero = _marks(b, j, logits, first, count, labels), _native(row, p.zero)
    whole = n_classes // _SIDES * _SIDES if count == LANES else 0
    for k in range(0, whole, _SIDES):
        w, x, y, z = _turn(logits, first, k, turned, _at(j, k, n_classes))
        rest, top, rank = _look(w, rest, top, zero, rank, mark, labels)
        rest, top, rank = _look(x, rest, top, zero, rank, mark, labels)
        rest, top, rank = _look(y, rest, top, zero, rank, mark, labels)
        rest, top, rank = _look(z, rest, top, zero, rank, mark, labels)
        low = _smaller(_smaller(w, x), _smaller(_smaller(y, z), low))
    if count < LANES:
        _turn_few(b, j, logits, first, count, n_classes)
    elif whole < n_classes:
        last = _least(whole, logits.shape[1] - _SIDES)
        _turn(logits, first, last, turned, _at(j, last, n_classes))
    for k in range(whole, n_classes):
        z = _load_whole(turned, _at(j, k, n_classes))
        rest, top, rank = _look(z, rest, top, zero, rank, mark, labels)
        low = _smaller(z, low)
    if _above(low, _native(row, -inf)) != _LANE_BITS:  # somewhere labels are impossible
        low = _lanes(row, inf)
        for k in range(n_classes):
            low = _smaller(_finite(_load_whole(turned, _at(j, k, n_classes))), low)
    return rest, top, low, rank


@_inlined
def _sum_turned(b: Any, j: int, logits: Any, first: int, p: _Parameters, top: Any, low: Any) -> None:
    """As `_sums` for 16 rows, while the next 16 are fetched."""
    turned, row, n_classes = b.turned, logits[first], p.n_classes
    rate, e, shared, low_rank = _native(row, p.rate), _lanes(row, 0.0), _no_counts(row), _no_counts(row)
    for k in range(n_classes):
        z = _load_whole(turned, _at(j, k, n_classes))
        _fetch(logits, (first + LANES) * logits.shape[1] + k * LANES)
        shared = _one_more_at_least(shared, z, top)
        e = _add(e, _unless_at_least(z, top, _exp_by(_sub(z, top), rate, b.single, b.double)))
    if p.kind == _ECP:
        for k in range(n_classes):  # in a loop of its own: many processors have registers for no more in one
            low_rank = _one_more(low_rank, _load_whole(turned, _at(j, k, n_classes)), low)
    _store(b.exponentials, j, e)
    _store(b.shared, j, shared)
    _store(b.low_rank, j, low_rank)


@_inlined
def _note_turned(b: Any, j: int, logits: Any, first: int, count: int, p: _Parameters, labels: Any) -> int:
    """As `_note_row` for 16 rows; returns the first that cannot be used, or -1."""
    row = logits[first]
    rest, top, low, rank = _survey_turned(b, j, logits, first, count, p, labels)
    bad = _nans(_add(rest, _sub(top, top))) | _above(top, _native(row, _LARGEST_LOGIT))
    if bad != 0:
        return first + _lowest_bit(bad)
    _store(b.top, j, top)
    _store(b.low, j, low)
    _store(b.rest, j, rest)
    _store(b.rank, j, rank)
    _sum_turned(b, j, logits, first, p, top, low)
    if _at_least(rest, _native(row, inf)) != 0:
        for r in range(count):
            if b.rest[j + r] == inf:
                b.rest[j + r] = _huge_evidence_but_largest(logits[first + r])
    for m in range(j, j + LANES):
        b.exponentials[m] += b.shared[m] - 1.0
        b.rest[m] += p.n_classes - 1.0
        b.alpha[m], b.low_alpha[m] = _relu(b.top[m]) + 1.0, _relu(b.low[m]) + 1.0
        b.label_alpha[m], b.worst[m] = _relu(b.z[m]) + 1.0, 0.0
    return -1


@_inlined
def _take_batch(
    b: Any, logits: Any, first: int, p: _Parameters, wide: Any, narrow: Any, other: Any, labels: Any
) -> tuple[int, int]:
    """Note a batch of rows from `first` on, with a label each if `labels` is not None.

    Returns the row after it, and the first that could not be used, or -1.
    """
    stop = _end_of_batch(logits, first)
    if narrow is not None:
        for i in range(first, stop, LANES):
            bad = _note_turned(b, i - first, logits, i, _least(stop - i, LANES), p, labels)
            if bad >= 0:
                return stop, bad
    if wide is not None:
        for i in range(first, stop):
            row = logits[i]
            survey = _survey(row, labels, i, p.zero)
            if not survey.usable:
                return stop, i
            _note_row(b, i - first, row, p, survey, labels, other)
    _finish_rows(b, p, stop - first, other)
    if p.kind == _LAC:
        _keep_logarithms(b, logits, first, stop - first, p.n_classes)
    return stop, -1


@_inlined
def _score_plain(b: Any, p: _Parameters, count: int) -> None:
    """`_plain_value` of labels noted beside their rows: in several loops, of each of which more runs at a time."""
    for j in range(count):
        b.label_surprisal[j] = _surprisal(_row_at(b, j), b.label_alpha[j])
    for j in range(count):
        b.gain[j] = _gain(p, _row_at(b, j), b.z[j], b.label_alpha[j], b.rank[j])
    for j in range(count):
        b.score[j] = _quotient_value(_row_at(b, j), b.z[j], b.label_surprisal[j], b.gain[j])


@_inlined
def _score_labels(b: Any, p: _Parameters, count: int, other: Any) -> None:
    """The scores of the labels noted, one of each row."""
    if p.is_plain:
        _score_plain(b, p, count)
    else:
        for j in range(count):
            b.score[j] = _value(p, _row_at(b, j), _label_at(b, j), other)


@_inlined
def _score_candidates(b: Any, p: _Parameters, s: _Row, count: int, other: Any) -> None:
    """The scores of the labels noted, at most `_SIDE`, all of one row."""
    if p.is_plain:
        for j in range(_SIDE):  # also those that are not there: a whole number of vectors
            b.score[j] = _plain_value(p, s, _label_at(b, j))
    else:
        for j in range(count):
            b.score[j] = _value(p, s, _label_at(b, j), other)


@_inlined
def _score_all(b: Any, j: int, row: Any, p: _Parameters, scores: F64, other: Any) -> None:
    """The scores of all labels of row j, where they need no rank."""
    s = _row_at(b, j)
    for k in range(p.n_classes):
        scores[k] = _value(p, s, _Label(np.float64(row[k]), 1.0, 0.0, 0.0, 0.0), other)
