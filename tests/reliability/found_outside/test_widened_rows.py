"""Numbers of single precision that arrive as doubles: JSON, lists and frames of mixed columns say nothing of it.

A forest calibrated in double precision covered 0.76 for 0.9 where its rows had been float32 before they were text.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evicp import APS, ECP, LAC, RAPS, Calibrator, Custom, calibrate
from evicp.errors import SuspiciousInputWarning
from evicp.kernels.arithmetic import any_widened, are_single, fraction_bits
from evicp.sets import PredictionSets

pytestmark = pytest.mark.reliability

K = 6


def votes(n: int, seed: int, trees: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of a forest on six classes, and true labels."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(K, 0.4), n)
    labels = (shares.cumsum(1) > rng.random((n, 1))).argmax(1)
    return np.log(np.maximum(rng.multinomial(trees, shares) / trees, 1e-300)), labels


def single(logits: np.ndarray) -> np.ndarray:
    return logits.astype(np.float32)


def mixed_frame(logits: np.ndarray) -> Any:
    pd = pytest.importorskip("pandas")
    return pd.DataFrame({str(k): logits[:, k].astype("f4" if k % 2 else "f8") for k in range(K)})


def all_widened(logits: np.ndarray) -> bool:
    return are_single(fraction_bits(logits))


SENT: dict[str, Callable[[np.ndarray], Any]] = {
    "doubles": lambda z: z,
    "float32": single,
    "float32 as doubles": lambda z: single(z).astype(np.float64),
    "by column": lambda z: np.asfortranarray(single(z).astype(np.float64)),
    "lists": lambda z: single(z).tolist(),
    "JSON": lambda z: json.loads(json.dumps(single(z).tolist())),
    "rows of both": lambda z: [row if i % 2 else single(row) for i, row in enumerate(z)],
    "columns of both": mixed_frame,
}


@pytest.mark.parametrize("score", [LAC(), APS(randomized=False), RAPS(randomized=False)], ids=lambda score: score.name)
@pytest.mark.parametrize("used", SENT)
@pytest.mark.parametrize("made", ["doubles", "float32", "float32 as doubles", "lists"])
def test_equal_votes_stay_equal(cpu_backend: Any, score: Any, made: str, used: str) -> None:
    (known, y), (new, _) = votes(1000, 0), votes(500, 1)
    exact = calibrate(known, y, score).predict(new, 0.9)
    calibration = calibrate(SENT[made](known), y, score)
    assert calibration.predict(SENT[used](new), 0.9) == exact
    alone = [calibration.predict(row, 0.9).to_lists()[0] for row in SENT["lists"](new[:50])]
    assert alone == exact.to_lists()[:50]


def test_p_values_of_them_cover_too() -> None:
    (known, y), (new, truth) = votes(1000, 0), votes(1000, 1)
    calibration = calibrate(known, y, "lac")
    for p_values in (calibration.p_values, lambda z: calibration.p_values(z, smoothed=True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SuspiciousInputWarning)
            of_true = p_values(SENT["lists"](new))[np.arange(1000), truth]
        assert np.mean(of_true > 0.1) > 0.88
    online = calibration.p_values_online(SENT["lists"](new), truth)
    assert np.mean(online > 0.1) > 0.88


def test_smoothing_is_exact_where_all_rows_are_so() -> None:
    """Ties are still ties: nothing is raised, and no warning says so."""
    (known, y), (new, _) = votes(400, 0), votes(300, 1)
    plain = calibrate(single(known), y, "lac").predict(single(new), 0.8, smoothed=np.full(300, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made, used in [("lists", "lists"), ("lists", "float32"), ("lists", "doubles"), ("float32", "lists")]:
            sets = calibrate(SENT[made](known), y, "lac").predict(SENT[used](new), 0.8, smoothed=np.full(300, 0.5))
            np.testing.assert_array_equal(sets.mask(), plain.mask())


def test_whole_numbers_and_masks_are_no_evidence() -> None:
    """They are the same in any precision: they neither raise thresholds nor cost smoothed sets their ties."""
    rng = np.random.default_rng(0)
    whole = rng.integers(-30, 30, (300, 4)).astype(float)
    masked = np.where(rng.random((300, 4)) < 0.3, -np.inf, 0.5 * whole)
    for logits in (whole, masked):
        assert not any_widened(logits)
        assert not all_widened(logits)
        assert not any(any_widened(row[None]) for row in logits)
    assert calibrate(whole, np.arange(300) % 4, "lac").origin.arithmetic.logits == "float64"
    for nothing in (np.empty((0, 4)), np.full((3, 4), np.nan), np.full((3, 4), 1e300)):
        assert not any_widened(nothing)


@pytest.mark.parametrize("n_classes", [2, 3, 1000])
def test_rows_are_told_one_by_one(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    doubles = rng.normal(size=(500, n_classes))
    widened = single(doubles).astype(np.float64)
    assert (any_widened(doubles), all_widened(doubles)) == (False, False)
    assert (any_widened(widened), all_widened(widened)) == (True, True)
    for place in (0, 250, 499):
        some = doubles.copy()
        some[place] = widened[place]
        assert (any_widened(some), all_widened(some)) == (True, False)
        most = widened.copy()
        most[place, -1] = doubles[place, -1]
        assert (any_widened(most), all_widened(most)) == (True, False)
    constant = np.column_stack([np.zeros(500), doubles])  # the first class is the one the others are compared with
    assert not any_widened(constant)
    assert any_widened(single(constant).astype(np.float64))


def test_batches_are_as_the_whole() -> None:
    known, y = votes(300, 0)
    for made in ("doubles", "lists"):
        rows = SENT[made](known)
        whole = calibrate(rows, y, "lac")
        parts = Calibrator("lac")
        for start in range(0, 300, 7):
            parts.update(rows[start : start + 7], y[start : start + 7])
        assert parts.finish() == whole
        assert whole.extended(rows[:5], y[:5]).origin.arithmetic == whole.origin.arithmetic


def test_rows_of_two_kinds_are_the_same_calibration_in_any_parts() -> None:
    """Which rows are scored together says nothing: workers share out the rows of folders."""
    known, y = votes(300, 0)
    rows = np.concatenate([single(known[:100]).astype(np.float64), known[100:]])
    whole = calibrate(rows, y, "lac")
    assert whole.origin.arithmetic.logits == "float64"
    for cuts in ([100], [37, 150, 151], [200, 299]):
        parts = [Calibrator("lac").update(*part) for part in zip(np.split(rows, cuts), np.split(y, cuts), strict=True)]
        in_turn = Calibrator("lac")
        for part in zip(np.split(rows, cuts), np.split(y, cuts), strict=True):
            in_turn.update(*part)
        assert parts[0].merge(*parts[1:]).finish() == whole == in_turn.finish()


def test_more_rows_of_the_other_kind() -> None:
    """A calibration of doubles with rows from JSON is mixed: its thresholds have room for both."""
    (known, y), (new, truth) = votes(400, 0), votes(400, 1)
    for first, then in ((known, SENT["lists"]), (SENT["lists"](known), lambda z: z)):
        calibration = calibrate(first[:200], y[:200], "lac").extended(then(known[200:]), y[200:])
        for used in ("doubles", "lists"):
            assert calibration.predict(SENT[used](new), 0.9).contains(truth).mean() > 0.88


def test_rows_that_do_not_tie_have_the_same_sets() -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, K, 2000)
    logits = rng.normal(size=(2000, K)) + 2 * np.eye(K)[y]
    for score in ("ecp", "lac", "aps"):
        calibration = calibrate(logits[:1000], y[:1000], score)
        exact, sent = (calibration.predict(SENT[used](logits[1000:]), 0.9) for used in ("doubles", "lists"))
        assert isinstance(sent, PredictionSets)
        assert np.mean(exact.mask() != sent.mask()) < 1e-3


def test_a_score_of_ones_own() -> None:
    (known, y), (new, _) = votes(500, 0), votes(300, 1)
    calibration = calibrate(known, y, Custom(lambda z: -z))
    assert calibration.predict(SENT["lists"](new), 0.9) == calibration.predict(new, 0.9)


@pytest.mark.parametrize(
    "score", [LAC(), APS(randomized=False), ECP(evidence="softplus")], ids=lambda score: score.name
)
def test_a_torch_module_of_doubles(score: Any) -> None:
    """It cannot look at numbers once it is compiled: its thresholds have room for single precision in any case."""
    torch = pytest.importorskip("torch")
    from evicp.torch import SetPredictor

    (known, y), (new, _) = votes(1000, 0), votes(500, 1)
    calibration = calibrate(known, y, score)
    predictor = SetPredictor(torch.nn.Identity(), calibration, 0.8).eval()
    exact = calibration.predict(new, 0.8).mask()
    for logits in (torch.tensor(new), torch.tensor(single(new)), torch.tensor(single(new)).double()):
        np.testing.assert_array_equal(predictor(logits).mask.numpy(), exact)


def test_a_graph_of_doubles(tmp_path: Any) -> None:
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    from evicp.onnx import export

    (known, y), (new, _) = votes(1000, 0), votes(500, 1)
    calibration = calibrate(known, y, "lac")
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n", K]) for name in ("x", "logits")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["logits"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    export(tmp_path / "model.onnx", calibration, 0.8, tmp_path / "sets.onnx", output_is="logits")
    session = onnxruntime.InferenceSession(str(tmp_path / "sets.onnx"), providers=["CPUExecutionProvider"])
    masks = [place for place, output in enumerate(session.get_outputs()) if output.type == "tensor(bool)"]
    for rows in (new, single(new).astype(np.float64)):
        mask = session.run(None, {"x": rows})[masks[0]]
        np.testing.assert_array_equal(mask, calibration.predict(new, 0.8).mask())


OTHER_WAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "probabilities in single precision": lambda p: np.log(np.maximum(p.astype("f4").astype("f8"), 1e-300)),
    "text of six digits": lambda p: np.array(
        [[float(f"{x:.6g}") for x in row] for row in np.log(np.maximum(p, 1e-300))]
    ),
    "text of five digits": lambda p: np.array(
        [[float(f"{x:.5g}") for x in row] for row in np.log(np.maximum(p, 1e-300))]
    ),
}


@pytest.mark.parametrize("way", OTHER_WAYS)
@pytest.mark.parametrize("smoothed", [False, True])
def test_what_cannot_be_recognised_is_warned_of(cpu_backend: Any, way: str, smoothed: bool) -> None:
    (known, y), (new, _) = votes(1000, 0), votes(300, 1)
    calibration = calibrate(known, y, "lac")
    rounded = OTHER_WAYS[way](np.exp(new))
    for coverage in (0.5, 0.7, 0.8):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            exact = calibration.predict(new, coverage, smoothed=smoothed)
        assert not [one for one in said if "rounded differently" in str(one.message)]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = calibration.predict(rounded, coverage, smoothed=smoothed)
        warned = any("rounded differently" in str(one.message) for one in said)
        assert warned or np.all(found.mask() | ~exact.mask()) or smoothed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = calibrate(OTHER_WAYS[way](np.exp(known)), y, "lac")
        same.predict(rounded, 0.8, smoothed=smoothed)


def test_scores_that_lie_close_are_no_reason_to_warn() -> None:
    """Of many different rows some are next to others; a few copies among them do not make a pile."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, K, 4000)
    logits = rng.normal(size=(4000, K)) + 2 * np.eye(K)[y]
    logits[:2000:10], y[:2000:10] = logits[0], y[0]
    sure = 40 * (np.eye(K)[y] + 0.01 * logits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".* are duplicates|top-1 accuracy is 1")
        for rows in (logits, sure, np.round(logits, 2)):
            calibration = calibrate(rows[:2000], y[:2000], "lac")
            for coverage in np.arange(0.3, 1, 0.05):
                calibration.predict(rows[2000:], float(coverage))
