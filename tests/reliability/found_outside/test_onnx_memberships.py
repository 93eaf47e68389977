"""Which labels an exported graph includes that the library does not: those within rounding of the threshold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from evicp.onnx import export  # noqa: E402 - after the packages it needs are known to be here


def identity(n_classes: int, dtype: Any) -> Any:
    """A model whose logits are its inputs."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs, outputs = ([onnx.helper.make_tensor_value_info(name, kind, ["batch", n_classes])] for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "identity", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def masks(calibration: evicp.Calibration, logits: np.ndarray, coverage: float, path: Path) -> tuple[Any, Any]:
    """The memberships of the graph and of the library."""
    export(identity(logits.shape[1], logits.dtype), calibration, coverage, path)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["set_mask"], {"x": logits})[0], calibration.predict(logits, coverage).mask()


@pytest.mark.parametrize("score", [evicp.APS(randomized=False), evicp.RAPS(randomized=False)], ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mass_of_all_labels_is_exactly_one(score: evicp.Score, dtype: Any, tmp_path: Path) -> None:
    """Up to rounding it was the threshold: 1,087 of 8,913 labels were too many."""
    for n_classes in (2, 5, 10):
        rng = np.random.default_rng(n_classes)
        labels = rng.integers(0, n_classes, 4000)
        logits = (rng.normal(size=(4000, n_classes)) * 2 + 2.5 * np.eye(n_classes)[labels]).astype(dtype)
        calibration = evicp.calibrate(logits[:2000], labels[:2000], score)
        for coverage in (0.8, 0.95, 0.99):
            graph, library = masks(calibration, logits[2000:], coverage, tmp_path / "sets.onnx")
            assert graph[library].all()
            more = graph & ~library
            assert more.sum() <= 0.005 * library.sum()
            beyond = score.scores(logits[2000:])[more] - calibration.threshold(coverage)
            assert np.all(beyond <= 1.1e-5 * max(1.0, calibration.threshold(coverage)))


def test_the_only_possible_label(tmp_path: Path) -> None:
    """It is certain, and it was left out."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 400)
    logits = (rng.normal(size=(400, 5)) * 2 + 3 * np.eye(5)[labels]).astype(np.float32)
    rows = logits[:6].copy()
    rows[:3] = -np.inf
    rows[[0, 1, 2], [4, 0, 2]] = 6, -3, 0
    rows[3, 1:4] = -np.inf
    for score in (
        evicp.ECP(),
        evicp.ECP(stabilizer=0, evidence="softplus"),
        evicp.ECP(base_rates=(0.1, 0.2, 0.3, 0.2, 0.2)),
    ):
        calibration = evicp.calibrate(logits, labels, score)
        graph, library = masks(calibration, rows, 0.9, tmp_path / "sets.onnx")
        np.testing.assert_array_equal(graph, library)
        np.testing.assert_array_equal(graph[:3], rows[:3] > -np.inf)
