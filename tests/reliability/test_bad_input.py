"""Bad input: every door refuses it with one exception class and one sentence, and none lets a NaN through.

The tables below are the guarantee; a case that a door lets pass, or answers with another class or another sentence,
fails. (The command line's answers to the same input are tested with the command line.)
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import evicp
from evicp.errors import (
    ArtifactError,
    CoverageError,
    EvicpError,
    FileError,
    InputError,
    InputTypeError,
    LabelsError,
    LogitsError,
    RowError,
    ScoreError,
    SmallCalibrationWarning,
    SuspiciousInputWarning,
)
from evicp.evaluation import metrics
from evicp.io import files

pytestmark = pytest.mark.reliability

K = 4


def labelled_rows(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) + 3 * np.eye(K)[labels], labels


LOGITS, LABELS = labelled_rows()
CALIBRATION = evicp.calibrate(LOGITS, LABELS)
SETS = CALIBRATION.predict(LOGITS, coverage=0.9)


def refuses(call: Callable[[], Any], kind: type[EvicpError], message: str) -> None:
    """The call raises exactly this class with exactly this sentence, and nothing of it is a surprise to `except`."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError if issubclass(kind, InputError) else TypeError)


def damaged(row: int, column: int, value: float) -> np.ndarray:
    result = LOGITS.copy()
    result[row, column] = value
    return result


# ---------------------------------------------------------------------------------------------------------------
# Logits


#: Every function that takes logits of several rows.
LABELLED_DOORS: dict[str, Callable[[Any], Any]] = {
    "calibrate": lambda z: evicp.calibrate(z, LABELS),
    "update": lambda z: evicp.Calibrator("lac").update(z, LABELS),
    "fit_temperature": lambda z: evicp.fit_temperature(z, LABELS),
    "compare": lambda z: evicp.compare(z, LABELS, ["lac"], trials=1),
    "difficulty": lambda z: metrics.difficulty(z, LABELS),
    "scores": lambda z: evicp.ECP().scores(z),
}
ROW_DOORS: dict[str, Callable[[Any], Any]] = {
    "predict": lambda z: CALIBRATION.predict(z, coverage=0.9),
    "p_values": CALIBRATION.p_values,
    "evaluate": lambda z: evicp.evaluate(SETS, LABELS, z),
    "base": lambda z: evicp.Base().predict(z, coverage=0.9),
    "opinion": evicp.opinion,
}
DOORS = LABELLED_DOORS | ROW_DOORS


class Unreadable:
    """An array-like that fails when asked for its values."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("the buffer is gone")


class UnreadableDLPack:
    """A DLPack exporter whose memory NumPy cannot reach."""

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("on another device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


_RAW = "Pass the classifier's raw outputs as floats."
_BINARY = "For a binary score s pass columns (0, s)."

WRONG_KIND = [
    ("object", lambda: LOGITS.astype(object), f"logits must be real numbers; got dtype object. {_RAW}"),
    ("none", lambda: None, "logits must be an array; got None."),
    ("text", lambda: np.full((40, K), "1.5"), f"logits must be real numbers; got dtype <U3. {_RAW}"),
    ("bytes", lambda: np.full((40, K), b"1.5"), f"logits must be real numbers; got dtype |S3. {_RAW}"),
    ("complex", lambda: LOGITS + 0j, f"logits must be real numbers; got dtype complex128. {_RAW}"),
    ("bool", lambda: LOGITS > 0, f"logits must be real numbers; got dtype bool. {_RAW}"),
    (
        "dates",
        lambda: np.zeros((40, K), "datetime64[s]"),
        f"logits must be real numbers; got dtype datetime64[s]. {_RAW}",
    ),
    (
        "structured",
        lambda: np.zeros((40, K), [("a", "<f4")]),
        f"logits must be real numbers; got dtype [('a', '<f4')]. {_RAW}",
    ),
    (
        "file name",
        lambda: "val.npz",
        "logits must be an array; got 'val.npz'. Read a file with evicp.io.files.read_logits.",
    ),
    (
        "masked",
        lambda: np.ma.masked_greater(LOGITS, 3.0),
        "logits must not be masked: the values under a mask are unknown. Pass logits.filled(...).",
    ),
    (
        "sparse matrix",
        lambda: scipy.sparse.csr_matrix(LOGITS),
        "logits must be dense; got a sparse csr_matrix. Pass logits.toarray().",
    ),
    (
        "sparse array",
        lambda: scipy.sparse.coo_array(LOGITS),
        "logits must be dense; got a sparse coo_array. Pass logits.toarray().",
    ),
    (
        "unreadable",
        Unreadable,
        "logits must be an array; got Unreadable, which NumPy cannot read (the buffer is gone).",
    ),
    (
        "unreadable DLPack",
        UnreadableDLPack,
        "logits must be an array; got UnreadableDLPack, which NumPy cannot read (on another device).",
    ),
]

WRONG_SHAPE = [
    ("no classes", lambda: np.empty((40, 0)), f"logits must have at least 2 classes; got shape (40, 0). {_BINARY}"),
    ("one class", lambda: LOGITS[:, :1], f"logits must have at least 2 classes; got shape (40, 1). {_BINARY}"),
    (
        "three dimensions",
        lambda: LOGITS[None],
        "logits must have shape (rows, classes); got 3 dimension(s), shape (1, 40, 4).",
    ),
    ("scalar", lambda: 1.5, "logits must have shape (rows, classes); got 0 dimension(s), shape ()."),
    (
        "ragged",
        lambda: [[1.0, 2.0, 0.0, 0.5], [1.0, 2.0]],
        "logits must be rectangular; got rows of different lengths. Pad or drop the short rows.",
    ),
]

_HUGE = "the Dirichlet's sum would overflow. Rescale the logits."
WRONG_VALUE = [
    (
        "NaN",
        lambda: damaged(3, 2, np.nan),
        "logits must not be NaN; got NaN at row 3, class 2. Check the model's output for overflow.",
    ),
    (
        "NaN beside a mask",
        lambda: np.where(np.arange(K) == 1, -np.inf, damaged(39, 0, np.nan)),
        "logits must not be NaN; got NaN at row 39, class 0. Check the model's output for overflow.",
    ),
    (
        "+inf",
        lambda: damaged(5, 1, np.inf),
        "logits must not be +inf; got +inf at row 5, class 1. "
        "Use -inf for impossible classes, finite values otherwise.",
    ),
    (
        "+inf in half precision",
        lambda: np.where(np.arange(40)[:, None] == 6, np.float16(np.inf), LOGITS.astype(np.float16)),
        "logits must not be +inf; got +inf at row 6, class 0. "
        "Use -inf for impossible classes, finite values otherwise.",
    ),
    (
        "only -inf",
        lambda: np.where(np.arange(40)[:, None] == 7, -np.inf, LOGITS),
        "logits must have a finite value in every row; row 7 is all -inf. Leave one class unmasked.",
    ),
    (
        "overflow",
        lambda: damaged(0, 3, 1e308),
        f"logits must be at most 1e+300; got 1e+308 at row 0, class 3: {_HUGE}",
    ),
    (
        "overflow everywhere",
        lambda: np.full((40, K), 1.7e308),
        f"logits must be at most 1e+300; got 1.7e+308 at row 0, class 0: {_HUGE}",
    ),
    (
        "beyond a double",
        lambda: np.full((40, K), np.finfo(np.longdouble).max),
        "logits must not be +inf; got +inf at row 0, class 0. "
        "Use -inf for impossible classes, finite values otherwise.",
    ),
]


def cases(table: list[tuple[str, Any, str]]) -> Any:
    return pytest.mark.parametrize(("build", "message"), [pytest.param(b, m, id=name) for name, b, m in table])


@pytest.mark.parametrize("door", DOORS)
@cases(WRONG_KIND)
def test_logits_of_a_wrong_kind(door: str, build: Callable[[], Any], message: str) -> None:
    if build() is None and door == "evaluate":
        pytest.skip("an evaluation does without logits")
    refuses(lambda: DOORS[door](build()), InputTypeError, message)


@pytest.mark.parametrize("door", DOORS)
@cases(WRONG_SHAPE)
def test_logits_of_a_wrong_shape(door: str, build: Callable[[], Any], message: str) -> None:
    refuses(lambda: DOORS[door](build()), LogitsError, message)


@pytest.mark.parametrize("door", DOORS)
@cases(WRONG_VALUE)
def test_logits_with_wrong_values(door: str, build: Callable[[], Any], message: str, cpu_backend: str) -> None:
    refuses(lambda: DOORS[door](build()), LogitsError, message)


@pytest.mark.parametrize("score", ["ecp", "lac", "aps", "raps", "saps", "topk", "margin", lambda z: -z])
def test_no_score_lets_a_nan_through(score: Any, cpu_backend: str) -> None:
    message = "logits must not be NaN; got NaN at row 3, class 2. Check the model's output for overflow."
    refuses(lambda: evicp.calibrate(damaged(3, 2, np.nan), LABELS, score), LogitsError, message)
    calibration = evicp.calibrate(LOGITS, LABELS, score)
    refuses(lambda: calibration.predict(damaged(3, 2, np.nan), 0.9), LogitsError, message)


def test_the_row_named_is_the_callers_row_in_a_later_block(cpu_backend: str) -> None:
    logits = np.zeros((300, 1000), np.float32)
    logits[:, 0] = 2.0
    logits[271, 999] = np.nan
    message = "logits must not be NaN; got NaN at row 271, class 999. Check the model's output for overflow."
    refuses(lambda: evicp.calibrate(logits, np.zeros(300, int), "lac"), LogitsError, message)


@pytest.mark.parametrize("door", LABELLED_DOORS)
def test_one_row_is_not_a_matrix(door: str) -> None:
    message = (
        "logits must have shape (rows, classes); got 1 dimension(s), shape (4,). For one row pass logits[None, :]; "
        "for decisions s between two classes np.column_stack([np.zeros_like(s), s])."
    )
    refuses(lambda: LABELLED_DOORS[door](LOGITS[0]), LogitsError, message)


@pytest.mark.parametrize("width", [3, 5])
def test_another_number_of_classes(width: int) -> None:
    rows = np.ones((40, width))
    message = f"logits must have 4 classes, as in the calibration; got {width}."
    refuses(lambda: CALIBRATION.predict(rows, 0.9), LogitsError, message)
    refuses(lambda: CALIBRATION.predict(rows[0], 0.9), LogitsError, message)
    refuses(lambda: CALIBRATION.p_values(rows), LogitsError, message)
    refuses(lambda: evicp.evaluate(SETS, LABELS, rows), LogitsError, message)
    calibrator = evicp.Calibrator("lac").update(LOGITS, LABELS)
    refuses(lambda: calibrator.update(rows, np.zeros(40, int)), LogitsError, message)
    assert calibrator.n == 40


def test_no_rows() -> None:
    rows, labels = LOGITS[:0], LABELS[:0]
    message = "calibration needs at least one row; got none. Pass labelled logits."
    refuses(lambda: evicp.calibrate(rows, labels), LogitsError, message)
    refuses(lambda: evicp.Calibrator().finish(), LogitsError, message)
    refuses(lambda: evicp.Calibrator().update(rows, labels).finish(), LogitsError, message)
    refuses(lambda: evicp.fit_temperature(rows, labels), LogitsError, "a temperature needs at least one row; got none.")
    refuses(lambda: evicp.compare(rows, labels), LogitsError, "compare needs labelled rows to split; got none.")
    empty = CALIBRATION.predict(rows, 0.9)
    assert len(empty) == 0
    for measure in (evicp.evaluate, metrics.coverage, metrics.sscv, metrics.sat, metrics.class_coverage):
        refuses(lambda m=measure: m(empty, labels), InputError, "evaluation needs at least one row; got none.")
    refuses(lambda: metrics.accuracy(rows, labels), InputError, "evaluation needs at least one row; got none.")


def test_a_refused_batch_leaves_the_calibrator_as_it_was() -> None:
    calibrator = evicp.Calibrator("aps").update(LOGITS, LABELS)
    with pytest.raises(LogitsError):
        calibrator.update(damaged(39, 3, np.nan), LABELS)
    with pytest.raises(LabelsError):
        calibrator.update(LOGITS, LABELS + 1)
    assert calibrator.finish() == evicp.calibrate(LOGITS, LABELS, "aps")


# ---------------------------------------------------------------------------------------------------------------
# Frames and tensors


def test_a_frame_with_a_column_that_is_not_numeric() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(LOGITS, columns=list("abcd"))
    frame["c"] = "cat"
    with pytest.raises(
        InputTypeError,
        match=r"^logits must have numeric columns only; column 'c' has dtype .*\. Drop it, or fill its missing values",
    ):
        evicp.calibrate(frame, LABELS)
    nullable = pd.DataFrame(LOGITS, columns=list("abcd")).astype("Float64")
    nullable.iloc[3, 1] = pd.NA
    message = "logits must not be NaN; got NaN at row 3, class 1. Check the model's output for overflow."
    refuses(lambda: evicp.calibrate(nullable, LABELS), LogitsError, message)
    labels = pd.Series(LABELS, dtype="Int64")
    labels[2] = pd.NA
    message = "labels must be integers; got dtype float64. Row 2 has nan, which is not a class number; drop such rows."
    refuses(lambda: evicp.calibrate(LOGITS, labels), InputTypeError, message)
    words = pd.DataFrame({"a": ["1.5", "2"], "b": ["0", "1"]}, dtype=object)  # numbers only to a reader's eye
    with pytest.raises(InputTypeError, match=r"^logits must have numeric columns only; column 'a' has dtype object"):
        evicp.calibrate(words, [0, 1])


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_boolean_frame_is_a_mask_and_nothing_else(package: str) -> None:
    frames = pytest.importorskip(package)
    frame = frames.DataFrame({"a": [True, False], "b": [False, True]})
    message = "logits must have numeric columns only; column 'a' has dtype bool. Drop it, or fill its missing values."
    refuses(lambda: evicp.calibrate(frame, [0, 1]), InputTypeError, message)
    numbers = frames.DataFrame({"a": [1, 0], "b": [0, 1]})
    message = "mask must be True or False; got dtype int64. Pass mask.astype(bool)."
    refuses(lambda: evicp.PredictionSets.from_mask(numbers, coverage=0.9), InputTypeError, message)
    gap = frames.DataFrame({"a": [True, None], "b": [False, True]})
    message = "mask must have boolean columns only; column 'a' has dtype object. Drop it, or fill its missing values."
    refuses(lambda: evicp.PredictionSets.from_mask(gap, coverage=0.9), InputTypeError, message)


def test_a_polars_frame_with_a_column_that_is_not_numeric() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"], "c": [0.0, 0.5]})
    message = "logits must have numeric columns only; column 'b' has dtype object. Drop it, or fill its missing values."
    refuses(lambda: evicp.calibrate(frame, [0, 1]), InputTypeError, message)
    gap = pl.DataFrame({"a": [1.0, None], "b": [0.0, 0.5]})
    message = "logits must not be NaN; got NaN at row 1, class 0. Check the model's output for overflow."
    refuses(lambda: evicp.calibrate(gap, [0, 1]), LogitsError, message)


def test_tensors_on_different_devices() -> None:
    torch = pytest.importorskip("torch")
    logits, labels = torch.from_numpy(LOGITS), torch.from_numpy(LABELS)
    message = "logits and labels must be on one device; got meta and cpu. Use labels.to(logits.device)."
    for door in (evicp.calibrate, evicp.Calibrator().update, evicp.fit_temperature, evicp.compare, metrics.difficulty):
        refuses(lambda d=door: d(logits.to("meta"), labels), InputTypeError, message)
    refuses(lambda: evicp.evaluate(SETS, labels, logits.to("meta")), InputTypeError, message)
    with pytest.raises(InputTypeError, match=r"^logits must be an array; got Tensor, which NumPy cannot read \("):
        CALIBRATION.predict(logits.to("meta"), 0.9)


def test_tensors_that_are_not_dense_or_not_real() -> None:
    torch = pytest.importorskip("torch")
    logits = torch.from_numpy(LOGITS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own words about the state of its sparse layouts
        sparse = {"torch.sparse_coo": logits.to_sparse(), "torch.sparse_csr": logits.to_sparse_csr()}
    for layout, tensor in sparse.items():
        message = f"logits must be dense; got a {layout} tensor. Pass logits.to_dense()."
        refuses(lambda t=tensor: evicp.calibrate(t, LABELS), InputTypeError, message)
    for tensor, name in ((logits > 0, "bool"), (logits + 0j, "complex128")):
        message = f"logits must be real numbers; got dtype {name}. {_RAW}"
        refuses(lambda t=tensor: evicp.calibrate(t, LABELS), InputTypeError, message)


# ---------------------------------------------------------------------------------------------------------------
# Labels


LABEL_DOORS: dict[str, Callable[[Any], Any]] = {
    "calibrate": lambda y: evicp.calibrate(LOGITS, y),
    "update": lambda y: evicp.Calibrator("lac").update(LOGITS, y),
    "p_values": lambda y: CALIBRATION.p_values(LOGITS, y),
    "fit_temperature": lambda y: evicp.fit_temperature(LOGITS, y),
    "compare": lambda y: evicp.compare(LOGITS, y, ["lac"], trials=1),
    "evaluate": lambda y: evicp.evaluate(SETS, y),
    "contains": SETS.contains,
    "coverage": lambda y: metrics.coverage(SETS, y),
    "class_coverage": lambda y: metrics.class_coverage(SETS, y),
    "accuracy": lambda y: metrics.accuracy(LOGITS, y),
}


def label_at(row: int, value: int) -> np.ndarray:
    result = LABELS.copy()
    result[row] = value
    return result


_AS_INT = "Use labels.astype(int) if they are class numbers."
_NUMBER = "Pass class numbers, or names together with class_names= in the order of the logits."
WRONG_LABELS = [
    ("floats", lambda: LABELS.astype(float), InputTypeError, f"labels must be integers; got dtype float64. {_AS_INT}"),
    (
        "fractions",
        lambda: LABELS + 0.5 * (np.arange(40) == 7),
        InputTypeError,
        f"labels must be integers; got dtype float64. Row 7 has {LABELS[7] + 0.5}, which is not a class number; "
        "drop such rows.",
    ),
    (
        "an iterator",
        lambda: iter(LABELS.tolist()),
        InputTypeError,
        "labels must be an array; got a list_iterator. Pass its values as a list.",
    ),
    (
        "a mapping",
        lambda: dict(enumerate(LABELS)),
        InputTypeError,
        "labels must be an array; got a dict. Pass its values as a list.",
    ),
    ("bools", lambda: LABELS > 1, InputTypeError, f"labels must be integers; got dtype bool. {_AS_INT}"),
    ("text", lambda: ["cat"] * 40, InputTypeError, f"labels must be integers; got dtype <U3. {_NUMBER}"),
    ("objects", lambda: LABELS.astype(object), InputTypeError, f"labels must be integers; got dtype object. {_AS_INT}"),
    (
        "masked",
        lambda: np.ma.masked_equal(LABELS, LABELS[0]),
        InputTypeError,
        "labels must not be masked: the values under a mask are unknown. Pass labels.filled(...).",
    ),
    ("negative", lambda: label_at(4, -1), LabelsError, "labels must be in [0, 4); got -1 at row 4."),
    ("too large", lambda: label_at(9, 7), LabelsError, "labels must be in [0, 4); got 7 at row 9."),
    (
        "one past the end",
        lambda: np.where(np.arange(40) == 3, 4, np.arange(40) % 4),
        LabelsError,
        "labels must be in [0, 4); got 4 at row 3.",
    ),
    (
        "one-based",
        lambda: np.arange(40) % 4 + 1,
        LabelsError,
        "labels must be in [0, 4); got 4 at row 3. Did you pass one-based labels?",
    ),
    (
        "huge unsigned",
        lambda: np.where(np.arange(40) == 2, np.uint64(2**63 + 5), np.uint64(0)),
        LabelsError,
        f"labels must be in [0, 4); got {2**63 + 5} at row 2.",
    ),
    (
        "too few",
        lambda: LABELS[:39],
        LabelsError,
        "labels must have one entry per row of logits; got 39 labels for 40 rows.",
    ),
    (
        "too many",
        lambda: np.append(LABELS, 0),
        LabelsError,
        "labels must have one entry per row of logits; got 41 labels for 40 rows.",
    ),
    (
        "none",
        list,
        LabelsError,
        "labels must have one entry per row of logits; got 0 labels for 40 rows.",
    ),
    (
        "one-hot",
        lambda: np.eye(K, dtype=int)[LABELS],
        LabelsError,
        "labels must be one-dimensional; got shape (40, 4). Pass one class number per row.",
    ),
    (
        "scalar",
        lambda: 3,
        LabelsError,
        "labels must be one-dimensional; got shape (). Pass one class number per row.",
    ),
    (
        "ragged",
        lambda: [[1], [2, 3]],
        LabelsError,
        "labels must be rectangular; got rows of different lengths. Pad or drop the short rows.",
    ),
]


@pytest.mark.parametrize("door", LABEL_DOORS)
@pytest.mark.parametrize(("build", "kind", "message"), [pytest.param(*c[1:], id=c[0]) for c in WRONG_LABELS])
def test_labels(door: str, build: Callable[[], Any], kind: type[EvicpError], message: str) -> None:
    refuses(lambda: LABEL_DOORS[door](build()), kind, message)


def test_a_true_label_that_is_impossible_has_no_temperature() -> None:
    logits = LOGITS.copy()
    logits[11, LABELS[11]] = -np.inf
    message = "the true label of row 11 has logit -inf, so no temperature makes it likely. Remove such rows."
    refuses(lambda: evicp.fit_temperature(logits, LABELS), LabelsError, message)
    with pytest.warns(SuspiciousInputWarning, match="true label is masked .* in 1 of 40 calibration rows: 11. They"):
        assert evicp.calibrate(logits, LABELS).scores[-1] == np.inf  # in a calibration it is simply never covered


# ---------------------------------------------------------------------------------------------------------------
# Coverage and other numbers


COVERAGE_DOORS: dict[str, Callable[[Any], Any]] = {
    "predict": lambda c: CALIBRATION.predict(LOGITS, c),
    "threshold": CALIBRATION.threshold,
    "reliability": CALIBRATION.reliability,
    "certificate": CALIBRATION.certificate,
    "compare": lambda c: evicp.compare(LOGITS, LABELS, ["lac"], c, trials=1),
    "base": lambda c: evicp.Base().predict(LOGITS, c),
    "conformal_rank": lambda c: evicp.conformal_rank(40, c),
    "plan": lambda c: evicp.plan(c, 0.05, 0.9),
    "several": lambda c: CALIBRATION.predict(LOGITS, [0.5, c]),
}
_BETWEEN = "coverage must be strictly between 0 and 1; got"
_NUMBER = "coverage must be a number between 0 and 1; got"
_NINE = "Floats are read to nine decimals; pass a fractions.Fraction for more."
WRONG_COVERAGE = [
    (0, CoverageError, f"{_BETWEEN} 0."),
    (1, CoverageError, f"{_BETWEEN} 1."),
    (0.0, CoverageError, f"{_BETWEEN} 0.0."),
    (1.0, CoverageError, f"{_BETWEEN} 1.0."),
    (-0.1, CoverageError, f"{_BETWEEN} -0.1."),
    (1.5, CoverageError, f"{_BETWEEN} 1.5. Did you mean 0.015?"),
    (90, CoverageError, f"{_BETWEEN} 90. Did you mean 0.9?"),
    (99.5, CoverageError, f"{_BETWEEN} 99.5. Did you mean 0.995?"),
    (np.int64(95), CoverageError, f"{_BETWEEN} 95. Did you mean 0.95?"),
    (100, CoverageError, f"{_BETWEEN} 100."),
    (1e300, CoverageError, f"{_BETWEEN} 1e+300."),
    (float("nan"), CoverageError, f"{_BETWEEN} nan."),
    (float("inf"), CoverageError, f"{_BETWEEN} inf."),
    (np.float32("nan"), CoverageError, f"{_BETWEEN} nan."),
    (Decimal("NaN"), CoverageError, f"{_BETWEEN} NaN."),
    (Decimal("Infinity"), CoverageError, f"{_BETWEEN} Infinity."),
    (Decimal(90), CoverageError, f"{_BETWEEN} 90. Did you mean 0.9?"),
    (Fraction(3, 2), CoverageError, f"{_BETWEEN} 3/2. Did you mean 0.015?"),
    (1e-12, CoverageError, f"{_BETWEEN} 1e-12. {_NINE}"),
    (1 - 1e-12, CoverageError, f"{_BETWEEN} 0.999999999999. {_NINE}"),
    ("0.9", InputTypeError, f"{_NUMBER} '0.9' (str)."),
    (True, InputTypeError, f"{_NUMBER} True (bool)."),
    (np.True_, InputTypeError, f"{_NUMBER} {np.True_!r} ({type(np.True_).__name__})."),
    (None, InputTypeError, f"{_NUMBER} None (NoneType)."),
    (0.9 + 0j, InputTypeError, f"{_NUMBER} (0.9+0j) (complex)."),
    (np.array(0.9), InputTypeError, f"{_NUMBER} array(0.9) (ndarray)."),
    ({0.9}, InputTypeError, f"{_NUMBER} {{0.9}} (set)."),
]


@pytest.mark.parametrize("door", COVERAGE_DOORS)
@pytest.mark.parametrize(("coverage", "kind", "message"), [pytest.param(*c, id=repr(c[0])) for c in WRONG_COVERAGE])
def test_coverage(door: str, coverage: Any, kind: type[EvicpError], message: str) -> None:
    refuses(lambda: COVERAGE_DOORS[door](coverage), kind, message)


def test_no_coverage_at_all() -> None:
    message = "coverage must be a number or a non-empty sequence of numbers; got an empty one."
    refuses(lambda: CALIBRATION.predict(LOGITS, []), InputError, message)


_SCORES = ", ".join(sorted(evicp.SCORES))
_TEMPERATURE = 'temperature must be a positive number, "split" or "holdout"; got'
OTHER: list[tuple[str, Callable[[], Any], type[EvicpError], str]] = [
    (
        "unknown score",
        lambda: evicp.calibrate(LOGITS, LABELS, "ecq"),
        ScoreError,
        f"unknown score 'ecq'; known are {_SCORES}. Did you mean ecp?",
    ),
    (
        "unknown score in compare",
        lambda: evicp.compare(LOGITS, LABELS, "naive"),
        ScoreError,
        f"unknown score 'naive'; known are {_SCORES}.",
    ),
    (
        "base is not conformal",
        lambda: evicp.calibrate(LOGITS, LABELS, "base"),
        ScoreError,
        '"base" is not conformal and cannot be calibrated; use Base().predict(logits, coverage), or "aps".',
    ),
    (
        "score of a wrong kind",
        lambda: evicp.calibrate(LOGITS, LABELS, 5),
        InputTypeError,
        "score must be a name, a score or a callable; got 5.",
    ),
    (
        "score of a wrong shape",
        lambda: evicp.calibrate(LOGITS, LABELS, lambda z: z[:, 0]),
        ScoreError,
        "a score must return an array of shape (40, 4); got (40,).",
    ),
    (
        "score that is NaN",
        lambda: evicp.calibrate(LOGITS, LABELS, lambda z: z * np.nan),
        ScoreError,
        "a score must not return NaN for a finite logit.",
    ),
    (
        "no scores",
        lambda: evicp.compare(LOGITS, LABELS, []),
        InputError,
        "scores must name at least one score; got none.",
    ),
    (
        "the same score twice",
        lambda: evicp.compare(LOGITS, LABELS, ["lac", "las"]),
        InputError,
        "scores must differ; got lac twice. Give functions different names.",
    ),
    (
        "no trials",
        lambda: evicp.compare(LOGITS, LABELS, trials=0),
        InputError,
        "trials must be at least 1; got 0.",
    ),
    (
        "half a trial",
        lambda: evicp.compare(LOGITS, LABELS, trials=2.5),
        InputTypeError,
        "trials must be a whole number; got 2.5 (float).",
    ),
    ("negative seed", lambda: evicp.compare(LOGITS, LABELS, seed=-1), InputError, "seed must be at least 0; got -1."),
    (
        "all rows calibrated",
        lambda: evicp.compare(LOGITS, LABELS, calibration=40),
        InputError,
        "calibration must be a share in (0, 1) or a number of rows below 40; got 40.",
    ),
    (
        "a share of one",
        lambda: evicp.compare(LOGITS, LABELS, calibration=1.0),
        InputError,
        "calibration must be a share in (0, 1) or a number of rows below 40; got 1.0.",
    ),
    (
        "a share that is no row",
        lambda: evicp.compare(LOGITS, LABELS, calibration=0.001),
        InputError,
        "calibration must be a share in (0, 1) or a number of rows below 40; got 0.001.",
    ),
    (
        "a share that is no number",
        lambda: evicp.compare(LOGITS, LABELS, calibration="half"),
        InputTypeError,
        "calibration must be a share in (0, 1) or a number of rows; got 'half'.",
    ),
    (
        "nothing left to test",
        lambda: evicp.compare(LOGITS, LABELS, ["lac"], calibration=30, tuning=10, temperature="split"),
        InputError,
        "calibration and tuning take 40 of 40 rows; none are left to test.",
    ),
    *(
        (
            f"temperature {t!r}",
            lambda t=t: evicp.compare(LOGITS, LABELS, ["lac"], temperature=t),
            kind,
            f"{_TEMPERATURE} {t!r}.",
        )
        for t, kind in (
            ("fit", InputError),
            (0.0, InputError),
            (-1, InputError),
            (float("nan"), InputError),
            (float("inf"), InputError),
            (True, InputTypeError),
            (None, InputTypeError),
        )
    ),
    (
        "min_count of zero",
        lambda: evicp.evaluate(SETS, LABELS, min_count=0),
        InputError,
        "min_count must be at least 1; got 0.",
    ),
    (
        "confidence of one",
        lambda: evicp.evaluate(SETS, LABELS, confidence=1),
        InputError,
        "confidence must be strictly between 0 and 1; got 1.",
    ),
    (
        "confidence that is NaN",
        lambda: evicp.evaluate(SETS, LABELS, confidence=Decimal("NaN")),
        InputError,
        "confidence must be strictly between 0 and 1; got NaN.",
    ),
    (
        "confidence as text",
        lambda: evicp.evaluate(SETS, LABELS, confidence="95%"),
        InputTypeError,
        "confidence must be a number between 0 and 1; got '95%'.",
    ),
    (
        "sets that are lists",
        lambda: evicp.evaluate([SETS], LABELS),
        InputTypeError,
        "sets must be PredictionSets; got a list. For several coverages evaluate them one by one.",
    ),
    (
        "sets that are a mask",
        lambda: evicp.evaluate(SETS.mask(), LABELS),
        InputTypeError,
        "sets must be PredictionSets; got a ndarray.",
    ),
    (
        "logits of other rows",
        lambda: evicp.evaluate(SETS, LABELS, LOGITS[:39]),
        LogitsError,
        "logits must have one row per set; got 39 rows for 40 sets.",
    ),
    (
        "logits and difficulty",
        lambda: evicp.evaluate(SETS, LABELS, LOGITS, difficulty=np.ones(40, int)),
        InputError,
        "give logits or difficulty, not both: the difficulty is the true label's rank in the logits.",
    ),
    *(
        (
            f"difficulty {name}",
            lambda d=d: evicp.evaluate(SETS, LABELS, difficulty=d),
            InputError,
            "difficulty must hold one whole number in [1, 4] per set: the rank of the true label.",
        )
        for name, d in (
            ("from zero", np.zeros(40, int)),
            ("beyond K", np.full(40, 5)),
            ("in floats", np.ones(40)),
            ("of other rows", np.ones(39, int)),
        )
    ),
    (
        "allow_empty as text",
        lambda: CALIBRATION.predict(LOGITS, 0.9, allow_empty="no"),
        InputTypeError,
        "allow_empty must be True or False; got 'no'.",
    ),
    (
        "too few names",
        lambda: evicp.calibrate(LOGITS, LABELS, class_names=["a", "b"]),
        InputError,
        "class_names must have one name per class; got 2 names for 4 classes.",
    ),
    (
        "one string of names",
        lambda: evicp.calibrate(LOGITS, LABELS, class_names="abcd"),
        InputTypeError,
        "class_names must be a sequence of 4 strings; got a str.",
    ),
    (
        "names without an order",
        lambda: evicp.calibrate(LOGITS, LABELS, class_names={"a", "b", "c", "d"}),
        InputTypeError,
        "class_names must be a sequence of 4 strings; got a set.",
    ),
    (
        "names that are a number",
        lambda: evicp.calibrate(LOGITS, LABELS, class_names=4),
        InputTypeError,
        "class_names must be a sequence of 4 strings; got a int.",
    ),
    (
        "a name with NUL",
        lambda: evicp.calibrate(LOGITS, LABELS, class_names=["a", "b\0", "c", "d"]),
        InputError,
        "class_names must be printable; name 1, 'b\\x00', contains a control character.",
    ),
    ("no names", lambda: SETS.names(0), InputError, "these sets have no class names; give class_names to calibrate."),
    (
        "base rates as text",
        lambda: evicp.ECP(base_rates="even"),
        InputTypeError,
        "base_rates must be an array; got 'even'.",
    ),
    (
        "base rates of zero",
        lambda: evicp.ECP(base_rates=[0.5, 0.5, 0.0]),
        ScoreError,
        "base_rates must be one number in (0, 1) per class; zero, negative or NaN entries are not allowed.",
    ),
    (
        "base rates that do not sum to one",
        lambda: evicp.opinion(LOGITS, base_rates=[0.2, 0.2, 0.2, 0.2]),
        ScoreError,
        "base_rates must sum to 1; got 0.8. Divide them by their sum.",
    ),
    (
        "base rates of another K",
        lambda: evicp.calibrate(LOGITS, LABELS, evicp.ECP(base_rates=[0.5, 0.5])),
        ScoreError,
        "base_rates must have one entry per class; got 2 for 4 classes.",
    ),
    ("a row too far", lambda: SETS[40], RowError, "row 40 does not exist; there are 40 sets."),
    ("a row too far back", lambda: SETS[-41], RowError, "row -41 does not exist; there are 40 sets."),
    (
        "a row by name",
        lambda: SETS["first"],
        InputTypeError,
        "sets are indexed by row numbers, a slice or a mask; got 'first'.",
    ),
    (
        "a row by bool",
        lambda: SETS[True],
        InputTypeError,
        "sets are indexed by row numbers, a slice or a mask; got True.",
    ),
    (
        "a row and a column",
        lambda: SETS[0, 1:3],
        InputTypeError,
        "sets are indexed by row numbers, a slice or a mask; got (0, slice(1, 3, None)).",
    ),
    (
        "a matrix of rows",
        lambda: SETS[[[0, 1]]],
        InputTypeError,
        "sets are indexed by row numbers, a slice or a mask; got [[0, 1]].",
    ),
    (
        "rows of different lengths",
        lambda: SETS[[[0], [1, 2]]],
        InputTypeError,
        "sets are indexed by row numbers, a slice or a mask; got [[0], [1, 2]].",
    ),
    (
        "rows in floats",
        lambda: SETS[[0.0, 1.0]],
        InputTypeError,
        "sets are indexed by row numbers, a slice or a mask; got [0.0, 1.0].",
    ),
    (
        "hits beyond n",
        lambda: metrics.clopper_pearson(11, 10),
        InputError,
        "hits must be at most n; got 11 of 10.",
    ),
    (
        "nothing to tune",
        lambda: evicp.Tuned("raps"),
        InputError,
        "tuning needs at least one parameter with its candidates: Tuned('raps', lam=[0.01, 0.1]).",
    ),
    (
        "tuned by a wrong metric",
        lambda: evicp.Tuned("raps", by="coverage", lam=[0.1]),
        InputError,
        'by must be "size", "sscv" or "sat"; got \'coverage\'.',
    ),
    (
        "an unknown parameter",
        lambda: evicp.Tuned("lac", lam=[0.1]),
        InputError,
        "lac has no parameter lam; it has temperature.",
    ),
    (
        "no candidates",
        lambda: evicp.Tuned("raps", lam=[]),
        InputError,
        "lam must be a list of candidates; got []. Try lam=[first, second].",
    ),
    (
        "one candidate that is no list",
        lambda: evicp.Tuned("raps", lam=0.1),
        InputError,
        "lam must be a list of candidates; got 0.1. Try lam=[first, second].",
    ),
    ("a bad candidate", lambda: evicp.Tuned("raps", lam=[-1.0]), ScoreError, "lam must be a number >= 0; got -1.0."),
]


@pytest.mark.parametrize(("call", "kind", "message"), [pytest.param(*case[1:], id=case[0]) for case in OTHER])
def test_everything_else(call: Callable[[], Any], kind: type[EvicpError], message: str) -> None:
    refuses(call, kind, message)


def test_a_mask_of_other_rows() -> None:
    with pytest.raises(RowError, match=r"^the index is wrong for 40 sets: boolean index did not match") as caught:
        SETS[np.ones(39, bool)]
    assert isinstance(caught.value, IndexError)
    with pytest.raises(RowError, match=r"^the index is wrong for 40 sets: index 40 is out of bounds"):
        SETS[[0, 40]]


def test_a_question_a_comparison_cannot_answer() -> None:
    comparison = evicp.compare(LOGITS, LABELS, ["lac", "aps"], 0.8, trials=1)
    refuses(lambda: comparison.median("ecp", "sat"), InputError, "'ecp' was not compared; there are lac, aps.")
    with pytest.raises(InputError, match=r"^unknown metric 'size'; known are coverage, mean_size, "):
        comparison.mean("lac", "size")


# ---------------------------------------------------------------------------------------------------------------
# Warnings


_PROBABILITIES = (
    "logits look like probabilities (every row sums to 1). Pass the raw outputs before softmax; "
    "if there are none, pass np.log(probabilities) and a score other than ECP."
)
_NO_EVIDENCE = (
    "most rows have no positive logit, so relu evidence is zero for every label (log-probabilities?). "
    "Pass raw logits; if there are none, use a score other than ECP, or ECP(evidence='softplus')."
)


def warns(call: Callable[[], Any], kind: type[Warning], message: str) -> Any:
    """The call warns once, with this sentence, at a line of this file: the user's line, not one of the library's."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    assert [(w.category, str(w.message)) for w in caught] == [(kind, message)]
    assert caught[0].filename == __file__
    return result


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_probabilities_as_logits_warn(dtype: Any) -> None:
    p = softmax(LOGITS).astype(dtype)
    warns(lambda: evicp.calibrate(p, LABELS), SuspiciousInputWarning, _PROBABILITIES)
    warns(lambda: evicp.Calibrator("lac").update(p, LABELS), SuspiciousInputWarning, _PROBABILITIES)
    warns(lambda: CALIBRATION.predict(p, 0.9), SuspiciousInputWarning, _PROBABILITIES)
    warns(
        lambda: evicp.compare(p, LABELS, ["ecp", "lac", "aps"], 0.8, trials=2), SuspiciousInputWarning, _PROBABILITIES
    )


def test_log_probabilities_under_relu_warn() -> None:
    logp = np.log(softmax(LOGITS))
    warns(lambda: evicp.calibrate(logp, LABELS), SuspiciousInputWarning, _NO_EVIDENCE)
    warns(lambda: evicp.compare(logp, LABELS, ["ecp", "lac"], 0.8, trials=2), SuspiciousInputWarning, _NO_EVIDENCE)
    tuned = evicp.Tuned("ecp", stabilizer=[0.0, 1e-8])
    warns(lambda: evicp.compare(logp, LABELS, tuned, 0.5, trials=1, tuning=20), SuspiciousInputWarning, _NO_EVIDENCE)
    for quiet in ("lac", "aps", evicp.ECP(evidence="softplus"), evicp.ECP(evidence="exp")):
        evicp.calibrate(logp, LABELS, quiet)  # a warning would be an error here


def test_raw_logits_do_not_warn() -> None:
    rows = softmax(LOGITS)
    rows[0] += 0.01
    evicp.calibrate(rows, LABELS)
    evicp.calibrate(rows - 0.5, LABELS, "lac")


@pytest.mark.parametrize(
    ("n", "coverage", "needed"), [(8, 0.9, 9), (18, 0.95, 19), (1, 0.5 + 1e-9, 2), (40, 0.999, 999)]
)
def test_too_few_rows_give_full_sets_and_one_warning(n: int, coverage: float, needed: int) -> None:
    logits, labels = labelled_rows(max(n, needed))
    small = evicp.calibrate(logits[:n], labels[:n])
    message = (
        f"{n} calibration row(s) cannot guarantee coverage {coverage:g}: every set is full. "
        f"Calibrate on at least {needed} rows."
    )
    sets = warns(lambda: small.predict(LOGITS, coverage), SmallCalibrationWarning, message)
    assert (sets.sizes == K).all()
    assert warns(lambda: small.threshold(coverage), SmallCalibrationWarning, message) == np.inf
    enough = evicp.calibrate(logits[:needed], labels[:needed])
    assert enough.threshold(coverage) < np.inf  # and the number named is the smallest that will do
    one_less = evicp.calibrate(logits[: needed - 1], labels[: needed - 1]) if needed > 1 else small
    with pytest.warns(SmallCalibrationWarning):
        one_less.threshold(coverage)


# ---------------------------------------------------------------------------------------------------------------
# Paths and files


READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "load": (evicp.load, ".safetensors"),
    "logits npz": (files.read_logits, ".npz"),
    "logits npy": (files.read_logits, ".npy"),
    "logits safetensors": (files.read_logits, ".safetensors"),
    "logits parquet": (files.read_logits, ".parquet"),
    "sets npz": (files.read_sets, ".npz"),
    "sets parquet": (files.read_sets, ".parquet"),
}
WRITERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "save": (CALIBRATION.save, ".safetensors"),
    "sets npz": (lambda p: files.write_sets(SETS, p), ".npz"),
    "sets parquet": (lambda p: files.write_sets(SETS, p), ".parquet"),
    "sets jsonl": (lambda p: files.write_sets(SETS, p), ".jsonl"),
}


@pytest.mark.parametrize(("read", "suffix"), READERS.values(), ids=READERS)
def test_files_that_cannot_be_read(read: Callable[[Any], Any], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"folder{suffix}"
    path.mkdir()
    refuses(lambda: read(path), FileError, f"cannot read {path}: it is a directory. Give a file name.")
    path = tmp_path / f"missing{suffix}"
    refuses(lambda: read(path), FileError, f"cannot read {path}: no such file.")
    path = tmp_path / f"file{suffix}"
    path.touch()
    inside = path / f"inside{suffix}"
    refuses(lambda: read(inside), FileError, f"cannot read {inside}: Not a directory.")
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    refuses(lambda: read(pipe), FileError, f"cannot read {pipe}: it is not a regular file.")
    refuses(
        lambda: read("a\0b" + suffix),
        FileError,
        f"a path must not contain a NUL character; got {'a' + chr(0) + 'b' + suffix!r}.",
    )
    refuses(lambda: read(5), InputTypeError, "a path must be a string or a pathlib.Path; got 5 (int).")
    long = tmp_path / ("x" * 300 + suffix)
    refuses(lambda: read(long), FileError, f"cannot read {long}: File name too long.")


@pytest.mark.parametrize(("write", "suffix"), WRITERS.values(), ids=WRITERS)
def test_files_that_cannot_be_written(write: Callable[[Any], Any], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"folder{suffix}"
    path.mkdir()
    refuses(lambda: write(path), FileError, f"cannot write {path}: it is a directory. Give a file name.")
    path = tmp_path / "missing" / f"file{suffix}"
    refuses(lambda: write(path), FileError, f"cannot write {path}: No such file or directory.")
    (tmp_path / "plain").touch()
    path = tmp_path / "plain" / f"file{suffix}"
    refuses(lambda: write(path), FileError, f"cannot write {path}: Not a directory.")
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    refuses(lambda: write(pipe), FileError, f"cannot write {pipe}: it is not a regular file.")
    assert stat.S_ISFIFO(pipe.stat().st_mode)  # neither filled nor replaced
    long = tmp_path / ("x" * 300 + suffix)
    refuses(lambda: write(long), FileError, f"cannot write {long}: File name too long.")
    refuses(lambda: write(None), InputTypeError, "a path must be a string or a pathlib.Path; got None (NoneType).")
    longest = tmp_path / ("x" * (255 - len(suffix)) + suffix)
    write(longest)  # the temporary name must not be longer than the name asked for
    assert longest.is_file()
    assert not list(tmp_path.glob(".evicp-*"))


def test_suffixes_nobody_knows(tmp_path: Path) -> None:
    path = tmp_path / "sets.csv"
    message = f"cannot write {path}: unknown suffix '.csv'; known are .parquet, .npz, .jsonl."
    refuses(lambda: files.write_sets(SETS, path), FileError, message)
    text = tmp_path / "logits.txt"
    known = ".npz, .npy, .safetensors, .parquet, .arrow, .feather, .ipc, .csv, .tsv"
    message = f"cannot read logits from {text}: unknown suffix '.txt'; known are {known}."
    refuses(lambda: files.read_logits(text), FileError, message)
    message = f"cannot read sets from {path}: unknown suffix '.csv'; known are .parquet, .npz."
    refuses(lambda: files.read_sets(path), FileError, message)
    np.save(tmp_path / "logits.npy", LOGITS)
    message = f"cannot read labels from {path}: unknown suffix '.csv'; known are .npy."
    refuses(lambda: files.read_logits(tmp_path / "logits.npy", labels=path), FileError, message)


def test_files_that_are_not_permitted() -> None:
    """As another user where the tests run as root, who may read and write everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "locked").mkdir(mode=0o555)
        for file in ("open", "secret"):
            CALIBRATION.save(folder / f"{file}.safetensors")
        (folder / "secret.safetensors").chmod(0)
        code = """
            import os, sys, evicp, safetensors.numpy
            from evicp.io import files
            calibration = evicp.load("open.safetensors")
            if os.geteuid() == 0:
                os.seteuid(65534)
            for act in (
                lambda: evicp.load("secret.safetensors"),
                lambda: files.read_logits("secret.safetensors"),
                lambda: calibration.save("locked/new.safetensors"),
                lambda: calibration.save("locked/deep/new.safetensors"),
            ):
                try:
                    act()
                except evicp.EvicpError as error:
                    print(type(error).__name__, error)
        """
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.stdout.splitlines() == [
        "FileError cannot read secret.safetensors: Permission denied.",
        "FileError cannot read secret.safetensors: Permission denied.",
        "FileError cannot write locked/new.safetensors: Permission denied.",
        "FileError cannot write locked/deep/new.safetensors: No such file or directory.",
    ], result.stderr


_FAKE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda p: p.write_bytes(b""),
    "text": lambda p: p.write_text("logits,labels\n1.0,0\n"),
    "zeros": lambda p: p.write_bytes(bytes(4096)),
    "noise": lambda p: p.write_bytes(np.random.default_rng(0).bytes(4096)),
}


@pytest.mark.parametrize("content", _FAKE)
@pytest.mark.parametrize(("read", "suffix"), READERS.values(), ids=READERS)
def test_a_file_that_is_not_what_its_suffix_says(
    read: Callable[[Any], Any], suffix: str, content: str, tmp_path: Path
) -> None:
    path = tmp_path / f"fake{suffix}"
    _FAKE[content](path)
    kind = ArtifactError if read is evicp.load else FileError
    with pytest.raises(kind, match=rf"^cannot (read|load) {re.escape(str(path))}: it is not a ") as caught:
        read(path)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value).strip()


def test_each_suffix_on_each_other_kind_of_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from safetensors.numpy import save_file

    np.save(tmp_path / "a.npy", LOGITS)
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    save_file({"logits": LOGITS, "labels": LABELS}, tmp_path / "a.safetensors")
    files.write_sets(SETS, tmp_path / "a.parquet")
    kinds = [".npy", ".npz", ".safetensors", ".parquet"]
    for true in kinds:
        for false in kinds:
            if true != false:
                path = tmp_path / f"as{true}{false}"
                path.write_bytes((tmp_path / f"a{true}").read_bytes())
                with pytest.raises(FileError, match=rf"^cannot read {re.escape(str(path))}: it ") as caught:
                    files.read_logits(path)
                assert type(caught.value) is FileError
    with pytest.raises(FileError, match=r"it is an npy file, not npz\. Rename it\.$"):
        files.read_logits(tmp_path / "as.npy.npz")
    with pytest.raises(FileError, match=r"it is an npz file, not npy\. Rename it\.$"):
        files.read_logits(tmp_path / "as.npz.npy")
    with pytest.raises(FileError, match=r"it has no column 'logits'; it has row, size\. Name it with"):
        files.read_logits(tmp_path / "a.parquet")
