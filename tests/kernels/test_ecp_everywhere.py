"""ECP's cost is written once for each kind of machine: one table of rows and exact scores for all of them.

Triton's kernels are compared with the reference on their own rows (`tests/gpu`), as they take minutes to interpret.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import evicp
from evicp import ECP
from evicp.kernels import _numpy
from oracles import reference_mpmath_ecp

K = 8
RATES = tuple((np.arange(1, K + 1) / (K * (K + 1) / 2)).tolist())
TABLE = (
    ECP(),
    ECP(stabilizer=0.0),
    ECP(evidence="softplus", temperature=1.7),
    ECP(evidence="exp", stabilizer="scaled"),
    ECP(base_rates=RATES),
    ECP(base_rates=RATES, evidence="softplus", stabilizer=1.0),
    ECP(base_rates=RATES, evidence="exp", temperature=0.5),
)
every_score = pytest.mark.parametrize("score", TABLE, ids=lambda score: score.describe())


def rows() -> np.ndarray:
    """Gaussian rows, tied rows, rows with masks, without evidence, and with a spike; exact in float32."""
    z = (np.random.default_rng(0).normal(size=(30, K)) * 3).astype(np.float32).astype(np.float64)
    z[:5] = np.round(z[:5])
    z[5:8, ::3] = -np.inf
    z[8] = -np.abs(z[8])
    z[9, 2] = 60.0
    z[10] = 1.25
    return z


@cache
def exact(index: int) -> np.ndarray:
    """ln S of every label of every row, from the equations in long numbers."""
    score = TABLE[index]
    parameters = {
        "evidence": score.evidence,
        "base_rates": score.base_rates,
        "temperature": score.temperature,
        "stabilizer": score.epsilon(K),
    }
    return np.array([[float(x) for x in reference_mpmath_ecp(row, **parameters)["log_score"]] for row in rows()])


def assert_exact(score: ECP, scores: np.ndarray, tolerance: float = 1e-12) -> None:
    wanted = exact(TABLE.index(score))
    np.testing.assert_array_equal(np.isinf(scores), np.isinf(wanted))
    finite = np.isfinite(wanted)
    away = np.abs(scores[finite] - wanted[finite]) / np.maximum(1.0, np.abs(wanted[finite]))
    assert away.max() <= tolerance


@every_score
def test_the_reference(score: ECP) -> None:
    assert_exact(score, _numpy.dense_scores(score, rows()))


@every_score
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_native_kernels(score: ECP, dtype: type) -> None:
    native = pytest.importorskip("evicp.kernels._native")
    assert_exact(score, native.dense_scores(score, rows().astype(dtype)), 1e-12 if dtype is np.float64 else 1e-5)


@every_score
def test_the_torch_kernels(score: ECP) -> None:
    torch = pytest.importorskip("torch")
    from evicp.kernels import _torch

    assert_exact(score, _torch.dense_scores(score, torch.tensor(rows())).numpy())


@every_score
def test_the_operators_of_onnx(score: ECP, tmp_path: Path) -> None:
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    from evicp.onnx import export

    z, wanted = rows(), exact(TABLE.index(score))
    calibration = evicp.calibrate(z, wanted.argsort(1)[:, 1], score)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, ["batch", K]) for name in ("x", "logits")]
    nodes = [onnx.helper.make_node("Identity", ["x"], ["logits"])]
    graph = onnx.helper.make_graph(nodes, "own", ends[:1], ends[1:])
    opset = onnx.helper.make_opsetid("", 18)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), tmp_path / "own")
    for coverage in (0.3, 0.6, 0.9):
        export(tmp_path / "own", calibration, coverage, tmp_path / "sets")
        session = ort.InferenceSession(str(tmp_path / "sets"), providers=["CPUExecutionProvider"])
        (mask,) = session.run(["set_mask"], {"x": z})
        threshold = calibration.threshold(coverage)
        clear = ~(np.abs(wanted - threshold) <= 1e-9 * np.maximum(1.0, np.abs(wanted)))
        np.testing.assert_array_equal(mask[clear], (wanted <= threshold)[clear])
