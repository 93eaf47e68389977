"""Scores tie in forests; rows that reach a graph or a torch module in another precision must not fall out of sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import evicp

pytest.importorskip("sklearn")

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

SPLITS = 12


class Problem(NamedTuple):
    """A forest of ten trees, rows it has not seen, their labels and ln of its probabilities in double precision."""

    forest: Any
    rows: np.ndarray
    labels: np.ndarray
    logits: np.ndarray


@pytest.fixture(scope="module")
def problem() -> Problem:
    x, labels = load_digits(return_X_y=True)
    x = (x / 16 + np.random.default_rng(0).normal(0, 0.35, x.shape)).astype(np.float32)
    forest = RandomForestClassifier(10, random_state=0).fit(x[:600], labels[:600])
    return Problem(forest, x[600:], labels[600:], np.log(np.maximum(forest.predict_proba(x[600:]), 1e-300)))


def splits(n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    orders = [np.random.default_rng(seed).permutation(n) for seed in range(SPLITS)]
    return [(order[:500], order[500:]) for order in orders]


def covers(masks: list[np.ndarray], labels: list[np.ndarray]) -> bool:
    """Whether the mean coverage is at least 0.9, up to three standard errors of it."""
    shares = [mask[np.arange(len(truth)), truth].mean() for mask, truth in zip(masks, labels, strict=True)]
    return bool(np.mean(shares) + 3 * np.std(shares) / SPLITS**0.5 >= 0.9)


def as_graph(forest: Any) -> Any:
    """The forest as skl2onnx writes it: class probabilities summed over trees, in single precision."""
    helper, onnx = pytest.importorskip("onnx.helper"), pytest.importorskip("onnx")
    nodes: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes")}
    links: dict[str, list[int]] = {"truenodeids": [], "falsenodeids": []}
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for number, estimator in enumerate(forest.estimators_):
        tree = estimator.tree_
        for i, left in enumerate(tree.children_left):
            limit = np.float32(tree.threshold[i])
            limit = np.nextafter(limit, np.float32(-np.inf)) if limit > tree.threshold[i] else limit
            values = (number, i, max(tree.feature[i], 0), float(limit), "LEAF" if left < 0 else "BRANCH_LEQ")
            for name, value in zip(nodes, values, strict=True):
                nodes[name].append(value)
            for name, child in zip(links, (left, tree.children_right[i]), strict=True):
                links[name].append(max(child, 0))
            if left < 0:
                shares = tree.value[i, 0] / tree.value[i, 0].sum() / len(forest.estimators_)
                for label, share in enumerate(shares):
                    for name, value in zip(leaves, (number, i, label, float(share)), strict=True):
                        leaves[name].append(value)
    operator = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "probabilities"],
        domain="ai.onnx.ml",
        classlabels_int64s=list(range(10)),
        post_transform="NONE",
        **{f"nodes_{name}": value for name, value in (nodes | links).items()},
        **{f"class_{name}": value for name, value in leaves.items()},
    )
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 64])]
    outputs = [
        helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["batch"]),
        helper.make_tensor_value_info("probabilities", onnx.TensorProto.FLOAT, ["batch", 10]),
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(
        helper.make_graph([operator], "forest", inputs, outputs), opset_imports=opsets, ir_version=9
    )


def as_cast(kind: int) -> Any:
    """A graph that rounds the logits it is given, and gives them back in single precision."""
    onnx = pytest.importorskip("onnx")
    helper, proto = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["c"], to=kind), helper.make_node("Cast", ["c"], ["y"], to=proto.FLOAT)],
        "cast",
        [helper.make_tensor_value_info("x", proto.DOUBLE, ["batch", 10])],
        [helper.make_tensor_value_info("y", proto.FLOAT, ["batch", 10])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(path: Path, x: np.ndarray) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    mask: np.ndarray = session.run(["set_mask"], {"x": x})[0]
    return mask


@pytest.mark.parametrize(
    "score", [evicp.LAC(), evicp.APS(randomized=False), evicp.TopK()], ids=lambda score: score.name
)
def test_a_forest_in_a_graph(problem: Problem, score: evicp.Score, tmp_path: Path) -> None:
    """Taken for logits, its probabilities gave sets that cover 0.48; ties are those of double precision, rounded."""
    pytest.importorskip("onnxruntime")
    from evicp.onnx import export

    model, masks, labels = as_graph(problem.forest), [], []
    for old, new in splits(len(problem.labels)):
        calibration = evicp.calibrate(problem.logits[old], problem.labels[old], score)
        export(model, calibration, 0.9, tmp_path / "sets.onnx", logits="probabilities", output_is="probabilities")
        mask = run(tmp_path / "sets.onnx", problem.rows[new])
        assert mask[calibration.predict(problem.logits[new], 0.9).mask()].mean() > 0.999
        masks.append(mask)
        labels.append(problem.labels[new])
    assert covers(masks, labels)


def test_logits_rounded_in_a_graph(problem: Problem, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from evicp.onnx import export

    proto = onnx.TensorProto
    for kind in (proto.DOUBLE, proto.FLOAT, proto.FLOAT16, proto.BFLOAT16):
        masks, labels = [], []
        for old, new in splits(len(problem.labels)):
            calibration = evicp.calibrate(problem.logits[old], problem.labels[old], "lac")
            export(as_cast(kind), calibration, 0.9, tmp_path / "sets.onnx")
            masks.append(run(tmp_path / "sets.onnx", problem.logits[new]))
            labels.append(problem.labels[new])
        assert covers(masks, labels), kind


def test_logits_rounded_before_a_torch_module(problem: Problem) -> None:
    torch = pytest.importorskip("torch")
    from evicp.torch import SetPredictor

    for kind in ("float64", "float32", "float16", "bfloat16"):
        masks, labels = [], []
        for old, new in splits(len(problem.labels)):
            calibration = evicp.calibrate(problem.logits[old], problem.labels[old], "lac")
            module = SetPredictor(torch.nn.Identity(), calibration, 0.9)
            masks.append(module(torch.from_numpy(problem.logits[new]).to(getattr(torch, kind))).mask.numpy())
            labels.append(problem.labels[new])
        assert covers(masks, labels), kind


def test_the_precision_of_an_output_is_the_coarsest_on_its_way() -> None:
    onnx = pytest.importorskip("onnx")
    from evicp.onnx.outputs import precision

    proto = onnx.TensorProto
    kinds = {"float64": proto.DOUBLE, "float32": proto.FLOAT, "float16": proto.FLOAT16, "bfloat16": proto.BFLOAT16}
    for name, kind in kinds.items():
        assert precision(onnx, as_cast(kind), "y") == ("float32" if name == "float64" else name)
    tree = RandomForestClassifier(1).fit([[0.0] * 64, [1.0] * 64], [0, 1])
    assert precision(onnx, as_graph(tree), "probabilities") == "float32"


def test_a_torch_module_of_softmax_says_so(problem: Problem) -> None:
    """As predict() does; once, since it is asked for every batch."""
    torch = pytest.importorskip("torch")
    from evicp.torch import SetPredictor

    logits = torch.from_numpy(problem.logits)
    calibration = evicp.calibrate(problem.logits, problem.labels, "lac")
    module = SetPredictor(torch.nn.Softmax(-1), calibration, 0.9)
    module(logits[:0])
    with pytest.warns(evicp.errors.SuspiciousInputWarning, match="look like probabilities"):
        module(logits)
    assert module(logits[:5]).mask.shape == (5, 10)  # warnings are errors here
    with pytest.raises(evicp.errors.InputTypeError, match=r"logits must be torch\.float64, .*got torch\.float8"):
        SetPredictor(torch.nn.Identity(), calibration, 0.9)(logits.to(torch.float8_e4m3fn))
