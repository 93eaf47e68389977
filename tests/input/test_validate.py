"""What the gate lets in, and as what: arrays of every kind, numbers, names.

What it refuses is in reliability/test_bad_input.py.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evicp
from evicp import report
from evicp.errors import (
    InputError,
    InputTypeError,
    LabelsError,
    LogitsError,
    ScoreError,
)
from evicp.input import validate
from evicp.input.classes import ClassAxis, as_class_names
from evicp.input.frames import columns_of

K = 5


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Logits that float16 and bfloat16 hold exactly, so that every container of them holds the same numbers."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, K, 60)
    logits = np.round(4 * (rng.normal(size=(60, K)) + 1.5 * np.eye(K)[labels])) / 4
    logits[5, 1] = -np.inf
    return logits, labels


# ---------------------------------------------------------------------------------------------------------------
# Every container of the same numbers gives the same scores and the same sets


class Wrapped:
    """An object with `__array__` alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array if dtype is None else self.array.astype(dtype)


class Exporter:
    """An object with DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def memory_map(array: np.ndarray, folder: Path) -> np.ndarray:
    np.save(folder / "logits.npy", array)
    return np.load(folder / "logits.npy", mmap_mode="r")


def bfloat16(array: np.ndarray, _: Path) -> Any:
    return array.astype(pytest.importorskip("ml_dtypes").bfloat16)


def torch_tensor(array: np.ndarray, dtype: str, **options: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.tensor(array, dtype=getattr(torch, dtype), **options)


def frame(array: np.ndarray, package: str) -> Any:
    module = pytest.importorskip(package)
    return module.DataFrame({f"class {k}": array[:, k] for k in range(array.shape[1])})


def mixed_frame(array: np.ndarray, _: Path) -> Any:
    """Columns of different numeric types, one of them nullable."""
    result = frame(array, "pandas")
    return result.astype({"class 0": "Float64", "class 2": "float32"})


CONTAINERS = {
    "float64": lambda a, _: a,
    "float32": lambda a, _: a.astype(np.float32),
    "float16": lambda a, _: a.astype(np.float16),
    "longdouble": lambda a, _: a.astype(np.longdouble),
    "big-endian float64": lambda a, _: a.astype(">f8"),
    "big-endian float32": lambda a, _: a.astype(">f4"),
    "big-endian float16": lambda a, _: a.astype(">f2"),
    "bfloat16": bfloat16,
    "Fortran order": lambda a, _: np.asfortranarray(a),
    "strided": lambda a, _: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3],
    "reversed": lambda a, _: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "read-only": lambda a, _: np.frombuffer(a.tobytes()).reshape(a.shape),
    "unaligned": lambda a, _: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(np.float64).reshape(a.shape),
    "broadcast rows": lambda a, _: np.broadcast_to(a[None], (1, *a.shape))[0],
    "memory map": memory_map,
    "matrix": lambda a, _: _quiet_matrix(a),
    "unmasked masked array": lambda a, _: np.ma.array(a),
    "lists": lambda a, _: a.tolist(),
    "tuples": lambda a, _: tuple(map(tuple, a.tolist())),
    "list of arrays": lambda a, _: list(a),
    "__array__": lambda a, _: Wrapped(a),
    "DLPack": lambda a, _: Exporter(a),
    "torch float64": lambda a, _: torch_tensor(a, "float64"),
    "torch float32": lambda a, _: torch_tensor(a, "float32"),
    "torch float16": lambda a, _: torch_tensor(a, "float16"),
    "torch bfloat16": lambda a, _: torch_tensor(a, "bfloat16"),
    "torch with gradient": lambda a, _: torch_tensor(a, "float32", requires_grad=True),
    "torch inside a graph": lambda a, _: torch_tensor(a, "float32", requires_grad=True) * 1.0,
    "torch bfloat16 with gradient": lambda a, _: torch_tensor(a, "bfloat16", requires_grad=True),
    "torch transposed": lambda a, _: torch_tensor(a.T.copy(), "float32").T,
    "torch negated view": lambda a, _: torch_tensor(a, "float64")._neg_view().neg(),
    "pandas": lambda a, _: frame(a, "pandas"),
    "pandas of mixed types": mixed_frame,
    "polars": lambda a, _: frame(a, "polars"),
}


def _quiet_matrix(array: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.matrix(array)


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("score", ["ecp", "raps"])
def test_every_container_gives_the_same_answer(
    name: str, score: str, rows: Any, tmp_path: Path, cpu_backend: str
) -> None:
    logits, labels = rows
    expected = evicp.calibrate(logits, labels, score)
    given_logits = CONTAINERS[name](logits, tmp_path)
    calibration = evicp.calibrate(given_logits, labels, score)
    # float32 sums may round differently, half precision is upcast before any arithmetic
    np.testing.assert_allclose(calibration.scores, expected.scores, rtol=0, atol=1e-5)
    assert calibration.predict(given_logits, 0.8).to_lists() == expected.predict(logits, 0.8).to_lists()
    top = logits[np.arange(len(logits)), labels] == logits.max(1)
    assert evicp.evaluate(calibration.predict(given_logits, 0.8), labels, given_logits).accuracy == top.mean()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "torch float16", "torch bfloat16"])
def test_half_precision_equals_its_upcast_bit_for_bit(name: str, rows: Any, tmp_path: Path, cpu_backend: str) -> None:
    logits, labels = rows
    calibration = evicp.calibrate(CONTAINERS[name](logits, tmp_path), labels)
    np.testing.assert_array_equal(calibration.scores, evicp.calibrate(logits.astype(np.float32), labels).scores)


def test_bfloat16_keeps_its_own_rounding() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([[1.00390625, 3.14159, -0.1], [65504.0, 1e30, -1e-30]])
    array = validate.as_logits(values.astype(ml_dtypes.bfloat16))
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_narrow_torch_floats_are_widened() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([[1.0, 2.0, -0.5]]).to(torch.float8_e4m3fn)
    np.testing.assert_array_equal(validate.as_logits(tensor), [[1.0, 2.0, -0.5]])


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint64, ">i4"])
def test_whole_numbers_are_logits_too(dtype: Any) -> None:
    logits = np.array([[3, 1, 0], [0, 9, 2], [1, 0, 4]], dtype)
    np.testing.assert_array_equal(validate.as_logits(logits), logits.astype(np.float64))
    assert validate.as_logits(logits).dtype == np.float64
    assert evicp.LAC().scores(logits).tolist() == evicp.LAC().scores(logits.astype(float)).tolist()


LABEL_CONTAINERS = {
    "int8": lambda y: y.astype(np.int8),
    "uint64": lambda y: y.astype(np.uint64),
    "big-endian": lambda y: y.astype(">i2"),
    "list": lambda y: y.tolist(),
    "tuple": tuple,
    "torch": lambda y: torch_tensor(y, "int64"),
    "torch uint8": lambda y: torch_tensor(y, "uint8"),
    "pandas": lambda y: pytest.importorskip("pandas").Series(y),
    "pandas nullable": lambda y: pytest.importorskip("pandas").Series(y, dtype="Int64"),
    "polars": lambda y: pytest.importorskip("polars").Series(y),
    "arrow": lambda y: pytest.importorskip("pyarrow").array(y),
    "DLPack": Exporter,
}


@pytest.mark.parametrize("name", LABEL_CONTAINERS)
def test_labels_of_every_kind(name: str, rows: Any) -> None:
    logits, labels = rows
    array = validate.as_labels(LABEL_CONTAINERS[name](labels), *logits.shape)
    assert array.dtype == np.int64
    np.testing.assert_array_equal(array, labels)
    assert evicp.calibrate(logits, LABEL_CONTAINERS[name](labels), "lac") == evicp.calibrate(logits, labels, "lac")


def test_small_unsigned_labels_of_many_classes() -> None:
    """Comparing uint8 labels with K = 1000 must neither overflow nor wrap."""
    labels = np.array([0, 255], np.uint8)
    assert validate.as_labels(labels, 2, 1000).tolist() == [0, 255]


@pytest.mark.parametrize("labels", [["cat", "dog"], np.array(["cat", "dog"], object), np.array([b"cat", b"dog"])])
def test_names_for_labels_are_told_how_to_become_numbers(labels: Any) -> None:
    with pytest.raises(
        InputTypeError,
        match=r"^labels must be integers; got dtype .*\. Pass class numbers, or names together with class_names=",
    ):
        validate.as_labels(labels, 2, 2)
    with pytest.raises(
        InputTypeError, match=r"^labels must be integers; got dtype float64\. Use labels\.astype\(int\)"
    ):
        validate.as_labels([0.0, 1.0], 2, 2)


NAMES = ("cat", "dog", "emu")


@pytest.mark.parametrize(
    "kind",
    [
        list,
        tuple,
        np.array,
        lambda names: np.array(names, object),
        lambda names: np.array(names, "T") if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else names,
        lambda names: pytest.importorskip("pandas").Series(names),
        lambda names: pytest.importorskip("pandas").Series(names, dtype="category"),
        lambda names: pytest.importorskip("polars").Series(names),
    ],
)
def test_labels_by_name(kind: Any) -> None:
    found = ClassAxis.of(NAMES, 3).numbers(kind(["emu", "cat", "dog", "emu"]), 4)
    assert found.tolist() == [2, 0, 1, 2]
    assert found.dtype == np.int64
    assert ClassAxis.of({0: "cat", 1: "dog", 2: "emu"}, 3).numbers(kind(["emu"]), 1).tolist() == [2]


def test_numbers_stay_numbers_beside_class_names() -> None:
    labels = np.array([2, 0, 1])
    assert ClassAxis.of(NAMES, 3).numbers(labels, 3) is labels
    assert ClassAxis.of(("cat", "cat", "cat"), 3).numbers(labels, 3) is labels
    assert ClassAxis.of(NAMES, 3).numbers([], 0).tolist() == []
    assert ClassAxis.of(NAMES, 3).numbers(np.array([], "U3"), 0).dtype == np.int64  # a shard without rows
    with pytest.raises(InputTypeError, match=r"^labels must be integers; got dtype object\. Use labels\.astype\(int\)"):
        ClassAxis.of(NAMES, 3).numbers(labels.astype(object), 3)


@pytest.mark.parametrize(
    ("labels", "names", "error", "message"),
    [
        (["cat", "cow"], NAMES, LabelsError, r"labels must be among the class_names; got 'cow' at row 1\. Drop such"),
        (["cat", "Dog"], NAMES, LabelsError, r"got 'Dog' at row 1\. Did you mean 'dog'\?"),
        (
            ["cat"],
            ("cat", "dog", "cat"),
            LabelsError,
            r"are different; got 'cat' for classes 0 and 2\. Pass class numbers",
        ),
        (["cat", 1], NAMES, InputTypeError, "class names in every row; got 1 at row 1"),
        (["cat", None], NAMES, InputTypeError, "class names in every row; got None at row 1"),
        (np.array(["cat", np.nan], object), NAMES, InputTypeError, "got nan at row 1. Drop the rows without a label"),
        (["cat"], ("cat", "dog"), InputError, "class_names must have one name per class; got 2 names for 3"),
        (["cat", "dog"], NAMES, LabelsError, "got 2 labels for 1 rows"),
        (np.array([b"cat"]), NAMES, InputTypeError, "labels must be integers; got dtype"),
    ],
)
def test_names_that_name_no_class(labels: Any, names: Any, error: Any, message: str) -> None:
    rows = 1 if "1 rows" in message else len(labels)
    with pytest.raises(error, match=message):
        ClassAxis.of(names, 3).numbers(labels, rows)


def test_an_index_of_several_types(rows: Any) -> None:
    """It cannot be sorted, and is compared all the same."""
    pd = pytest.importorskip("pandas")
    index = ["total", *range(1, 60)]
    logits, labels = pd.DataFrame(rows[0], index=index), pd.Series(rows[1], index=index)
    calibration = evicp.calibrate(logits, labels)
    assert calibration == evicp.calibrate(*rows)
    sets = calibration.predict(logits, 0.9)
    assert evicp.evaluate(sets, labels, logits).coverage == evicp.evaluate(sets, rows[1], rows[0]).coverage
    with pytest.raises(LabelsError, match="by index, row 0 is 'total' in logits and 59 in labels"):
        evicp.evaluate(sets, labels.set_axis(index[::-1]), logits)


# ---------------------------------------------------------------------------------------------------------------
# Nothing is copied needlessly, nothing of the caller's is changed


def test_no_copy_where_none_is_needed(rows: Any, tmp_path: Path) -> None:
    logits, labels = rows
    assert np.shares_memory(validate.as_logits(logits), logits)
    assert np.shares_memory(validate.as_logits(logits.astype(np.float16)[::2]), logits) is False
    assert np.shares_memory(validate.as_labels(labels, *logits.shape), labels)
    mapped = memory_map(logits, tmp_path)
    assert np.shares_memory(validate.as_logits(mapped), mapped)
    frame64 = frame(logits, "pandas")
    assert validate.as_logits(frame64).dtype == np.float64
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(logits)
    assert np.shares_memory(validate.as_logits(tensor), logits)


@pytest.mark.parametrize(
    "score", ["ecp", "lac", "aps", "raps", "saps", "topk", "margin", lambda z: np.negative(z, out=z)]
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_input_is_never_modified(score: Any, dtype: Any, rows: Any, cpu_backend: str) -> None:
    logits, labels = rows[0].astype(dtype), rows[1].copy()
    before = logits.copy(), labels.copy()
    calibration = evicp.calibrate(logits, labels, score)
    sets = calibration.predict(logits, [0.5, 0.9], allow_empty=False)
    calibration.p_values(logits)
    evicp.evaluate(sets[0], labels, logits)
    evicp.compare(logits, labels, [score], 0.8, trials=2, temperature="split", tuning=25)
    finite = np.isfinite(logits[np.arange(60), labels])
    evicp.fit_temperature(logits[finite], labels[finite])
    evicp.opinion(logits)
    np.testing.assert_array_equal(logits, before[0])
    np.testing.assert_array_equal(labels, before[1])
    assert logits.flags.writeable
    assert labels.flags.writeable


def test_read_only_input_is_enough(rows: Any, cpu_backend: str) -> None:
    logits, labels = (array.copy() for array in rows)
    logits.flags.writeable = labels.flags.writeable = False
    calibration = evicp.calibrate(logits, labels)
    assert len(calibration.predict(logits, 0.9)) == 60


def test_a_formula_cannot_write_into_the_caller_s_logits(rows: Any, cpu_backend: str) -> None:
    @dataclass(frozen=True)
    class InPlace(evicp.Score):
        name: ClassVar[str] = "in place"

        def formula(self, z: Any) -> Any:
            z -= z.max(1, keepdims=True)
            return -z

    logits, labels = rows
    before = logits.copy()
    for one in (logits, logits.astype(np.float32)):  # refused alike, whether or not the block is a copy
        with pytest.raises(ValueError, match="read-only"):
            evicp.calibrate(one, labels, InPlace())
    np.testing.assert_array_equal(logits, before)
    assert logits.flags.writeable


# ---------------------------------------------------------------------------------------------------------------
# Blocks


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (7, 3), (400, 1000), (3, 200_000)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_blocks_tile_the_rows(shape: tuple[int, int], dtype: Any) -> None:
    logits = (np.arange(shape[0] * shape[1]).reshape(shape) % 97).astype(dtype)
    seen = 0
    for rows, block in validate.blocks(logits):
        assert rows.start == seen
        seen = rows.stop
        assert block.dtype == np.float64
        assert block.flags.c_contiguous
        assert not block.flags.writeable
        assert len(block) == 1 or block.size <= validate.BLOCK_LOGITS
        np.testing.assert_array_equal(block, logits[rows])
    assert seen == len(logits)


# ---------------------------------------------------------------------------------------------------------------
# Coverage: the number a person typed, exactly


@pytest.mark.parametrize("thousandths", range(1, 1000, 7))
def test_a_coverage_is_the_decimal_that_was_typed(thousandths: int) -> None:
    exact = Fraction(thousandths, 1000)
    typed = thousandths / 1000
    assert validate.as_coverage(typed) == exact
    assert validate.as_coverage(1 - (1000 - thousandths) / 1000) == exact  # though 1 - x is another double
    assert validate.as_coverage(np.float64(typed)) == exact
    assert validate.as_coverage(np.float32(typed)) == exact
    assert validate.as_coverage(Decimal(str(typed))) == exact
    assert validate.as_coverage(exact) == exact


def test_half_precision_coverage_is_read_as_printed() -> None:
    assert validate.as_coverage(np.float16(0.9)) == Fraction(9, 10)
    assert validate.as_coverage(np.longdouble("0.95")) == Fraction(19, 20)


@given(st.fractions(0, 1).filter(lambda f: 0 < f < 1))
def test_fractions_and_decimals_are_taken_as_they_are(fraction: Fraction) -> None:
    assert validate.as_coverage(fraction) == fraction
    decimal = Decimal(fraction.numerator) / Decimal(fraction.denominator)
    if 0 < decimal < 1:
        assert validate.as_coverage(decimal) == Fraction(decimal)


def test_several_coverages() -> None:
    assert validate.is_many([0.9])
    assert validate.is_many((0.9, 0.95))
    assert validate.is_many(np.array([0.9]))
    for one in (0.9, np.float64(0.9), "0.9", np.array(0.9), None):
        assert not validate.is_many(one)


# ---------------------------------------------------------------------------------------------------------------
# Base rates, names, a user's functions


def test_base_rates_are_plain_and_sum_to_one() -> None:
    assert validate.as_base_rates(np.array([0.5, 0.25, 0.25], np.float32)) == (0.5, 0.25, 0.25)
    nearly = validate.as_base_rates([1 / 3, 1 / 3, 1 / 3 + 1e-8])
    assert sum(nearly) == pytest.approx(1, abs=1e-15)
    assert all(type(rate) is float for rate in nearly)
    for bad in ([0.5, np.nan, 0.5], [0.5, 0.6, -0.1], [[0.5, 0.5]], [1.0], [], [1, 0]):
        with pytest.raises(ScoreError, match=r"^base_rates must be one number in \(0, 1\) per class"):
            validate.as_base_rates(bad)
    for bad in (["a", "b"], [True, False], [0.5 + 0j, 0.5]):
        with pytest.raises(InputTypeError, match=r"^base_rates must be numbers; got dtype "):
            validate.as_base_rates(bad)
    with pytest.raises(InputTypeError, match=r"^base_rates must be an array; got None\.$"):
        validate.as_base_rates(None)


def test_class_names_become_strings() -> None:
    assert as_class_names(np.array(["a", "b"]), 2) == ("a", "b")
    assert as_class_names([1, "zwei"], 2) == ("1", "zwei")
    assert as_class_names((name for name in ("x", "y")), 2) == ("x", "y")
    assert as_class_names(["<script>", "../x"], 2) == ("<script>", "../x")
    assert as_class_names(["crane", "crane"], 2) == ("crane", "crane")  # ImageNet has two of them
    assert as_class_names(None, 2) is None
    for control in ("\0", "\n", "\x1b[31m", "\x7f", "\ud800"):
        with pytest.raises(InputError, match=r"^class_names must be printable; name 1, "):
            as_class_names(["a", f"b{control}"], 2)


def test_class_names_by_number_are_taken_in_the_order_of_their_numbers() -> None:
    """As Hugging Face's id2label, whose keys are text in JSON."""
    assert as_class_names({1: "dog", 0: "cat"}, 2) == ("cat", "dog")
    assert as_class_names({str(k): f"class {k}" for k in reversed(range(12))}, 12)[9:] == (
        *("class 9", "class 10", "class 11"),
    )
    for bad in ({"cat": 0, "dog": 1}, {0: "cat"}, {1: "cat", 2: "dog"}, {0: "a", 1: "b", 2: "c"}, {0: "a", "0": "b"}):
        with pytest.raises(InputError, match=r"^class_names must map every number from 0 to 1 to a name; got "):
            as_class_names(bad, 2)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: z[:, :1], "evidence must return an array of shape (2, 3); got (2, 1)."),
        (lambda z: z, "evidence must return finite values >= 0; got -1.0."),
        (lambda z: z * np.nan, "evidence must return finite values >= 0; got nan."),
        (lambda z: z * 0 + np.inf, "evidence must return finite values >= 0; got inf."),
    ],
)
def test_what_a_users_function_returns_is_checked(function: Any, message: str) -> None:
    z = np.array([[1.0, -1.0, 2.0], [0.0, 1.0, -2.0]])
    with pytest.raises(ScoreError) as caught:
        validate.from_user(function, z, "evidence")
    assert str(caught.value) == message


def test_a_users_function_may_do_what_it_likes_with_its_copy() -> None:
    z = np.array([[1.0, -np.inf, 2.0]])

    def wild(x: np.ndarray) -> list[list[float]]:
        x[:] = 7.0
        return x.tolist()

    assert validate.from_user(wild, z, "evidence").tolist() == [[7.0, 0.0, 7.0]]  # what is impossible has no evidence
    assert z.tolist() == [[1.0, -np.inf, 2.0]]


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_counts(value: Any) -> None:
    assert validate.as_count(value, "n") == 3
    assert type(validate.as_count(value, "n")) is int


def test_torch_is_never_imported_to_look_at_an_array() -> None:
    """The user's array chooses: a class called Tensor from elsewhere is read as any other array-like."""

    class Tensor(Wrapped):
        pass

    np.testing.assert_array_equal(validate.as_logits(Tensor(np.ones((2, 3)))), np.ones((2, 3)))


# ---------------------------------------------------------------------------------------------------------------
# What belongs together


ANIMALS = ["cat", "dog", "eel", "fox", "gnu"]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_in_another_order_than_the_classes_are_refused(rows: tuple, kind: str) -> None:
    frames = pytest.importorskip(kind)
    logits, labels = rows
    frame = frames.DataFrame({name: logits[:, k] for k, name in enumerate(ANIMALS)})
    other = frame[ANIMALS[::-1]]
    calibration = evicp.calibrate(frame, labels, class_names=ANIMALS)
    assert calibration == evicp.calibrate(logits, labels, class_names=ANIMALS)
    assert calibration.predict(frame, 0.9) == calibration.predict(logits, 0.9)
    calls = [
        lambda: evicp.calibrate(other, labels, class_names=ANIMALS),
        lambda: calibration.predict(other, 0.9),
        lambda: calibration.p_values(other),
        lambda: evicp.evaluate(calibration.predict(frame, 0.9), labels, other),
        lambda: report.build(other, labels, calibration),
        lambda: evicp.estimate_class_frequencies(frame, labels, other),
    ]
    if kind == "pandas":
        calls.append(lambda: calibration.predict(other.iloc[0], 0.9))
    for call in calls:
        with pytest.raises(LogitsError, match=r"in another order: column 0 is 'gnu', class 0 is 'cat'\. Pass logits\["):
            call()
    numbered = frames.DataFrame({f"logit {k}": logits[:, k] for k in range(K)})
    assert calibration.predict(numbered, 0.9) == calibration.predict(logits, 0.9)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_in_another_order_than_those_calibrated_are_refused(rows: tuple, kind: str, tmp_path: Path) -> None:
    """Where classes have no names, their columns' names are remembered for this alone."""
    frames = pytest.importorskip(kind)
    logits, labels = rows
    frame = frames.DataFrame({name: logits[:, k] for k, name in enumerate(ANIMALS)})
    other = frame[ANIMALS[::-1]]
    calibration = evicp.calibrate(frame, labels)
    assert calibration == evicp.calibrate(logits, labels)
    assert calibration.class_names is None
    calibration.save(tmp_path / "c.safetensors")
    for one in (calibration, evicp.load(tmp_path / "c.safetensors")):
        assert one.predict(frame, 0.9) == calibration.predict(logits, 0.9)
        for call in (partial(one.predict, other, 0.9), partial(one.extended, other, labels)):
            with pytest.raises(LogitsError, match=r"column 0 is 'gnu', class 0 is 'cat'\. Pass logits\[\['cat', "):
                call()
    parts = [evicp.Calibrator().update(part, labels) for part in (frame, other, logits)]
    with pytest.raises(LogitsError, match="in another order"):
        parts[0].update(other, labels)
    with pytest.raises(evicp.errors.InputError, match="same columns in the same order"):
        parts[0].merge(parts[1])
    assert parts[2].merge(parts[0]).finish().columns == tuple(ANIMALS)
    assert evicp.calibrate(frame, labels, class_names=ANIMALS).columns is None  # the names say it


@pytest.mark.parametrize("make", ["table", "record_batch"])
def test_the_columns_of_an_arrow_table_are_known_by_their_names(rows: tuple, make: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    logits, labels = rows
    table = getattr(arrow, make)({name: logits[:, k] for k, name in enumerate(ANIMALS)})
    calibration = evicp.calibrate(table, labels, class_names=ANIMALS)
    assert calibration == evicp.calibrate(logits, labels, class_names=ANIMALS)
    with pytest.raises(LogitsError, match=r"column 0 is 'gnu', class 0 is 'cat'\. Pass logits\.select\("):
        calibration.predict(table.select(ANIMALS[::-1]), 0.9)
    assert columns_of(table) == tuple(ANIMALS)


def test_groups_and_weights_in_another_order_are_refused(rows: tuple) -> None:
    pd = pytest.importorskip("pandas")
    logits, labels = pd.DataFrame(rows[0], index=np.arange(100, 160)), rows[1]
    groups, weights = (pd.Series(x, index=logits.index) for x in (np.arange(60) % 2, 1.0 + np.arange(60) % 3))
    by_group, weighted = evicp.calibrate(logits, labels, by=groups), evicp.calibrate(logits, labels, weights=weights)
    sets = by_group.predict(logits, 0.8, groups=groups)
    calls = {
        "groups": [
            lambda x: evicp.calibrate(logits, labels, by=x),
            lambda x: by_group.predict(logits, 0.8, groups=x),
            lambda x: by_group.p_values(logits, groups=x),
            lambda x: evicp.evaluate(sets, labels, logits, groups=x),
        ],
        "weights": [
            lambda x: evicp.calibrate(logits, labels, weights=x),
            lambda x: weighted.predict(logits, 0.8, weights=x),
        ],
    }
    for what, values in (("groups", groups), ("weights", weights)):
        for call in calls[what]:
            call(values)  # in order: warnings are errors here
            with pytest.raises(InputError, match=f"logits and {what} must have the same rows in the same order"):
                call(values[::-1])


def test_rows_under_a_mask_are_refused_in_a_list_too(rows: tuple) -> None:
    masked = np.ma.array(rows[0])
    masked[3, 1] = np.ma.masked
    for container in (masked, list(masked), tuple(masked)):
        with pytest.raises(InputTypeError, match="must not be masked"):
            validate.as_logits(container)
    assert validate.as_logits(list(masked[:3])).shape == (3, K)


def test_floats_of_eight_bits_are_widened(rows: tuple) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    narrow = rows[0].astype(ml_dtypes.float8_e5m2)
    wide = validate.as_logits(narrow)
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, narrow.astype(np.float32))
    np.testing.assert_array_equal(evicp.calibrate(narrow, rows[1]).scores, evicp.calibrate(wide, rows[1]).scores)


def test_columns_of_one_name(rows: tuple) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(rows[0], columns=[0] * K).astype("Float32")
    np.testing.assert_array_equal(validate.as_logits(frame), rows[0].astype(np.float32))


@pytest.mark.parametrize("value", [Decimal("sNaN"), 10**400, -(10**400)])
def test_what_is_no_probability(value: Any) -> None:
    with pytest.raises(InputError, match="confidence must be strictly between 0 and 1"):
        validate.as_probability(value, "confidence")


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="strings of any length came with NumPy 2")
def test_groups_may_be_numpys_strings_of_any_length() -> None:
    groups = np.array(["a", "bb", "a"], dtype=np.dtypes.StringDType())
    assert validate.as_groups(groups).tolist() == ["a", "bb", "a"]


def test_arrays_that_the_cpu_reads_are_left_to_numpy() -> None:
    """Those on an accelerator become torch tensors there: tests/gpu has a real one."""
    from evicp.input.convert import adopted

    array = np.zeros((2, 3))
    beside = Exporter(array)
    assert adopted(array) is array
    assert adopted(beside) is beside
    assert adopted([1, 2]) == [1, 2]
