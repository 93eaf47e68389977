"""Sets in an ONNX graph whose output is not what the calibration was made of: probabilities, maps, other shapes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.errors import FileError, InputError, SuspiciousInputWarning

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from evicp.onnx import export  # noqa: E402 - after the packages it needs are known to be here

K = 5
FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
node, constant = onnx.helper.make_node, onnx.numpy_helper.from_array


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def graph(
    *nodes: Any, constants: Any = (), n_classes: Any = K, kind: int = FLOAT, shape: Any = None, **more: Any
) -> Any:
    """A model from logits `x` to an output `y`."""
    inputs, outputs = [info("x", ["batch", n_classes])], [info("y", shape or ["batch", n_classes], kind)]
    body = onnx.helper.make_graph(list(nodes), "model", inputs, outputs, list(constants))
    opsets = [
        onnx.helper.make_opsetid(domain, version) for domain, version in (("", 18), ("ai.onnx.ml", 3), ("own", 1))
    ]
    return onnx.helper.make_model(body, opset_imports=opsets, ir_version=9, **more)


def run(path: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    results = session.run(None, {session.get_inputs()[0].name: x})
    return dict(zip([output.name for output in session.get_outputs()], results, strict=True))


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Logits as float32 and labels, 300 to calibrate and 300 new."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, 600)
    return (rng.normal(size=(600, K)) * 2 + 4 * np.eye(K)[labels]).astype(np.float32), labels


LINEAR = {"coefficients": np.eye(K).ravel().tolist(), "intercepts": [0.0] * K, "classlabels_ints": list(range(K))}
AXES = constant(np.array([1]), "axes")
SOFTMAX = node("Softmax", ["x"], ["p"])
BRANCHES = [
    onnx.helper.make_graph([node("Softmax", ["x"], [name])], name, [], [info(name, ["batch", K])])
    for name in ("a", "b")
]
PROBABILITIES = {
    "softmax": graph(node("Softmax", ["x"], ["y"])),
    "copied": graph(
        SOFTMAX,
        node("Cast", ["p"], ["d"], to=DOUBLE),
        node("Identity", ["d"], ["e"]),
        node("Reshape", ["e", "shape"], ["y"]),
        constants=[constant(np.array([-1, K]), "shape")],
        kind=DOUBLE,
    ),
    "clipped": graph(SOFTMAX, node("Clip", ["p", "low"], ["y"]), constants=[constant(np.float32(1e-7), "low")]),
    "by hand": graph(
        node("Exp", ["x"], ["e"]),
        node("ReduceSum", ["e", "axes"], ["s"]),
        node("Div", ["e", "s"], ["y"]),
        constants=[AXES],
    ),
    "exponential of log-softmax": graph(node("LogSoftmax", ["x"], ["l"]), node("Exp", ["l"], ["y"])),
    "mean of two": graph(
        SOFTMAX, node("Neg", ["x"], ["m"]), node("Softmax", ["m"], ["q"]), node("Mean", ["p", "q"], ["y"])
    ),
    "mixture": graph(
        SOFTMAX,
        node("MatMul", ["p", "w"], ["y"]),
        constants=[constant(((np.eye(K) + 1 / K) / 2).astype(np.float32), "w")],
    ),
    "branches": graph(
        node("If", ["yes"], ["y"], then_branch=BRANCHES[0], else_branch=BRANCHES[1]),
        constants=[constant(np.array(True), "yes")],
    ),
    "function": graph(
        node("soft", ["x"], ["y"], domain="own"),
        functions=[
            onnx.helper.make_function(
                "own", "soft", ["u"], ["v"], [node("Softmax", ["u"], ["v"])], [onnx.helper.make_opsetid("", 18)]
            )
        ],
    ),
    "linear classifier": graph(
        node("LinearClassifier", ["x"], ["l", "y"], domain="ai.onnx.ml", post_transform="SOFTMAX", **LINEAR)
    ),
    "one against the rest": graph(
        node("LinearClassifier", ["x"], ["l", "p"], domain="ai.onnx.ml", post_transform="LOGISTIC", **LINEAR),
        node("Normalizer", ["p"], ["y"], domain="ai.onnx.ml", norm="L1"),
    ),
}


@pytest.mark.parametrize("model", PROBABILITIES.values(), ids=PROBABILITIES)
def test_probabilities_are_refused_or_become_logits(model: Any, rows: Any, tmp_path: Path) -> None:
    """Taken for logits, they gave sets that cover 0.000."""
    logits, labels = rows
    target = tmp_path / "sets.onnx"
    for score in ("ecp", "lac"):
        calibration = evicp.calibrate(logits[:300], labels[:300], score)
        for output_is in (None, "logits"):
            with pytest.raises(InputError, match=r"'y' contains probabilities \(by .*--output-is probabilities"):
                export(model, calibration, 0.9, target, output_is=output_is)
    assert not target.exists()
    onnx.save(model, tmp_path / "model.onnx")
    p = np.asarray(run(tmp_path / "model.onnx", logits)["y"], np.float64)
    calibration = evicp.calibrate(np.log(p[:300]), labels[:300], "lac")
    export(model, calibration, 0.9, target, output_is="probabilities")
    result = run(target, logits[300:])
    np.testing.assert_array_equal(result["set_mask"], calibration.predict(np.log(p[300:]), 0.9).mask())
    np.testing.assert_array_equal(result["y"], run(tmp_path / "model.onnx", logits[300:])["y"])


def test_a_softmax_behind_logits_that_calibrated(rows: Any, tmp_path: Path) -> None:
    """For every score but ECP, which needs what probabilities have lost."""
    logits, labels = rows
    scores = (evicp.LAC(temperature=1.3), *(cls(randomized=False) for cls in (evicp.APS, evicp.RAPS, evicp.SAPS)))
    for score in (*scores, evicp.TopK(), evicp.Margin()):
        calibration = evicp.calibrate(logits[:300], labels[:300], score)
        export(PROBABILITIES["softmax"], calibration, 0.8, tmp_path / "sets.onnx", output_is="probabilities")
        mask = run(tmp_path / "sets.onnx", logits[300:])["set_mask"]
        np.testing.assert_array_equal(mask, calibration.predict(logits[300:], 0.8).mask())
    for evidence in ("softplus", "exp"):
        calibration = evicp.calibrate(5 * logits, labels, evicp.ECP(evidence=evidence))
        with pytest.raises(InputError, match="scores that are impossible for log-probabilities"):
            export(PROBABILITIES["softmax"], calibration, 0.8, tmp_path / "e.onnx", output_is="probabilities")
    p = run_softmax(logits)
    calibration = evicp.calibrate(np.log(p[:300]), labels[:300], evicp.ECP(evidence="softplus"))
    export(PROBABILITIES["softmax"], calibration, 0.8, tmp_path / "sets.onnx", output_is="probabilities")
    mask = run(tmp_path / "sets.onnx", logits[300:])["set_mask"]
    np.testing.assert_array_equal(mask, calibration.predict(np.log(p[300:]), 0.8).mask())


def run_softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits.astype(np.float64))
    return np.asarray(e / e.sum(1, keepdims=True), np.float64)


def test_rows_that_are_no_probabilities_get_full_sets(rows: Any, tmp_path: Path) -> None:
    logits, labels = rows
    calibration = evicp.calibrate(logits, labels, "lac")
    model = graph(node("Magic", ["x"], ["y"], domain="own"))  # whose rows nobody has seen
    export(model, calibration, 0.8, tmp_path / "sets.onnx", output_is="probabilities")
    made = onnx.load(tmp_path / "sets.onnx")
    made.graph.node[0].op_type, made.graph.node[0].domain = "Identity", ""
    onnx.save(made, tmp_path / "sets.onnx")
    bad = [[0.5, 0.5, 0.5, 0, 0], [-0.5, 1.5, 0, 0, 0], [0] * K, [np.nan, 1, 0, 0, 0], [np.inf, 0, 0, 0, 0]]
    good = [[0, 0.0, 1, 0, 0], [0.003, 0, 0, 1, 0]]  # sums of half precision are off, too
    result = run(tmp_path / "sets.onnx", np.array([*bad, *good], np.float32))
    assert result["set_size"].tolist() == [K] * 5 + [1, 1]
    assert result["set_mask"][5, 2]
    assert result["set_mask"][6, 3]
    assert result["uncertainty"].tolist() == [1.0] * 7


CONTRADICTIONS = {
    "logits": (graph(node("Identity", ["x"], ["y"])), "contains logits"),
    "log-softmax": (graph(node("LogSoftmax", ["x"], ["y"])), "contains log-probabilities"),
    "sigmoids": (graph(node("Sigmoid", ["x"], ["y"])), "rows do not sum to 1"),
    "per cent": (
        graph(SOFTMAX, node("Mul", ["p", "c"], ["y"]), constants=[constant(np.float32(100), "c")]),
        "shares of a sum",
    ),
}


@pytest.mark.parametrize(("model", "seen"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_what_is_no_probability_is_not_taken_for_one(model: Any, seen: str, rows: Any, tmp_path: Path) -> None:
    logits, labels = rows
    calibration = evicp.calibrate(logits, labels, "lac")
    with pytest.raises(InputError, match=f"{seen}.* not probabilities"):
        export(model, calibration, 0.9, tmp_path / "sets.onnx", output_is="probabilities")
    if "logits" not in seen and "log-" not in seen:
        with pytest.raises(InputError, match=f"{seen}.* the same numbers"):
            export(model, calibration, 0.9, tmp_path / "sets.onnx")
    own = run_model(model, logits, tmp_path)
    calibration = evicp.calibrate(own[:300], labels[:300], "lac")
    export(model, calibration, 0.9, tmp_path / "sets.onnx", output_is="logits")
    mask = run(tmp_path / "sets.onnx", logits[300:])["set_mask"]
    np.testing.assert_array_equal(mask, calibration.predict(own[300:], 0.9).mask())


def run_model(model: Any, x: np.ndarray, folder: Path) -> np.ndarray:
    onnx.save(model, folder / "model.onnx")
    return run(folder / "model.onnx", x)["y"]


@pytest.mark.filterwarnings("ignore:most rows have no positive logit")
def test_log_probabilities(rows: Any, tmp_path: Path) -> None:
    """All a LAC needs; but the evidence of logits is lost, and an ECP that they calibrated covers too little."""
    logits, labels = rows
    by_hand = graph(node("ReduceLogSumExp", ["x", "axes"], ["s"]), node("Sub", ["x", "s"], ["y"]), constants=[AXES])
    logarithm = graph(SOFTMAX, node("Log", ["p"], ["y"]))
    lac, ecp = (evicp.calibrate(logits[:300], labels[:300], score) for score in ("lac", "ecp"))
    for model in (CONTRADICTIONS["log-softmax"][0], by_hand, logarithm):
        export(model, lac, 0.9, tmp_path / "sets.onnx")
        mask = run(tmp_path / "sets.onnx", logits[300:])["set_mask"]
        np.testing.assert_array_equal(mask, lac.predict(logits[300:], 0.9).mask())
        with pytest.raises(InputError, match="whose evidence is not that of logits"):
            export(model, ecp, 0.9, tmp_path / "none.onnx")
        own = run_model(model, logits, tmp_path)
        of_these = evicp.calibrate(own[:300], labels[:300], "ecp")
        with pytest.warns(SuspiciousInputWarning, match="evidence of log-probabilities is zero"):
            export(model, of_these, 0.9, tmp_path / "sets.onnx", output_is="logits")
        mask = run(tmp_path / "sets.onnx", logits[300:])["set_mask"]
        np.testing.assert_array_equal(mask, of_these.predict(own[300:], 0.9).mask())
    sure = evicp.calibrate(5 * logits, labels)
    with (
        pytest.warns(SuspiciousInputWarning, match="evidence of log-probabilities is zero"),
        pytest.raises(InputError, match="scores that are impossible for log-probabilities"),
    ):
        export(by_hand, sure, 0.9, tmp_path / "none.onnx", output_is="logits")
    assert not (tmp_path / "none.onnx").exists()


def test_what_nothing_tells_is_warned_of(rows: Any, tmp_path: Path) -> None:
    """An operator of your own that cannot be run here; and one that cannot be run on random numbers."""
    logits, labels = rows
    calibration = evicp.calibrate(logits[:300], labels[:300])
    unknown = graph(node("Magic", ["x"], ["y"], domain="own"))
    with pytest.warns(SuspiciousInputWarning, match="cannot find out whether output 'y' contains logits"):
        export(unknown, calibration, 0.9, tmp_path / "sets.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(unknown, calibration, 0.9, tmp_path / "sets.onnx", output_is="logits")
    with pytest.raises(InputError, match="cannot be run on the examples"):
        export(unknown, calibration, 0.9, tmp_path / "sets.onnx", examples=logits[:5])
    picky = graph(
        node("Log", ["x"], ["l"]),  # NaN of negative numbers
        node("MatMul", ["l", "w"], ["m"]),
        node("Exp", ["m"], ["e"]),
        node("ReduceSum", ["e", "axes"], ["s"]),
        node("Mul", ["s", "one"], ["t"]),
        node("Div", ["e", "t"], ["y"]),
        constants=[constant(np.eye(K, dtype=np.float32), "w"), constant(np.float32(1), "one"), AXES],
    )
    with pytest.warns(SuspiciousInputWarning, match="cannot find out"):
        export(picky, calibration, 0.9, tmp_path / "sets.onnx")
    for examples in (np.exp(logits[:5]), {"x": np.exp(logits[:5])}):
        with pytest.raises(InputError, match=r"contains probabilities \(by its values in 5 rows\)"):
            export(picky, calibration, 0.9, tmp_path / "sets.onnx", examples=examples)


def test_outputs_that_are_no_row_of_logits(rows: Any, tmp_path: Path) -> None:
    logits, labels = rows
    calibration = evicp.calibrate(logits, labels, "lac")
    target = tmp_path / "sets.onnx"
    maps = graph(SOFTMAX, node("ZipMap", ["p"], ["y"], domain="ai.onnx.ml", classlabels_int64s=list(range(K))))
    kind = onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(FLOAT, []))
    maps.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(kind))
    with pytest.raises(InputError, match=r"'y' is a sequence\. .*\"zipmap\": False"):
        export(maps, calibration, 0.9, target)
    scale = [constant(np.float32(0.1), "scale"), constant(np.int8(0), "zero")]
    quantized = graph(
        node("QuantizeLinear", ["x", "scale", "zero"], ["y"]), constants=scale, kind=onnx.TensorProto.INT8
    )
    with pytest.raises(
        InputError, match=r"'y' is INT8\. For a quantized model use the output after its DequantizeLinear"
    ):
        export(quantized, calibration, 0.9, target)
    binary = evicp.calibrate(logits[:, :2], logits[:, :2].argmax(1), "lac")
    one = graph(node("Sigmoid", ["x"], ["y"]), n_classes=1)
    with pytest.raises(InputError, match=r"\['batch', 1\]\. Let the model return two columns: 0 and s"):
        export(one, binary, 0.9, target)
    shapeless = graph(node("Identity", ["x"], ["y"]))
    shapeless.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InputError, match="'y' declares no shape"):
        export(shapeless, calibration, 0.9, target)
    newer = graph(node("Identity", ["x"], ["y"]))
    newer.opset_import[0].version = 99
    with pytest.raises(FileError, match=r"opset 99; .* the installed onnx knows up to"):
        export(newer, calibration, 0.9, target)
    assert not target.exists()


def test_a_width_that_the_graph_leaves_open_is_checked_when_it_runs(rows: Any, tmp_path: Path) -> None:
    """Rows of other lengths gave full sets of as many labels as there were columns."""
    logits, labels = rows
    calibration = evicp.calibrate(logits, labels, "lac")
    export(graph(node("Identity", ["x"], ["y"]), n_classes="width"), calibration, 0.9, tmp_path / "sets.onnx")
    mask = run(tmp_path / "sets.onnx", logits[:9])["set_mask"]
    np.testing.assert_array_equal(mask, calibration.predict(logits[:9], 0.9).mask())
    assert run(tmp_path / "sets.onnx", logits[:0])["set_mask"].shape == (0, K)
    for width in (1, 4, 6, 10):
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail):
            run(tmp_path / "sets.onnx", np.zeros((K, width), np.float32))


def test_the_command_says_what_the_output_holds(rows: Any, tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    from evicp.cli import app

    logits, labels = rows
    onnx.save(PROBABILITIES["softmax"], tmp_path / "model.onnx")
    evicp.calibrate(logits[:300], labels[:300], "lac").save(tmp_path / "cal.safetensors")
    words = ["export", *(str(tmp_path / name) for name in ("model.onnx", "cal.safetensors"))]
    words += ["-o", str(tmp_path / "sets.onnx"), "--output-is"]
    refused = testing.CliRunner().invoke(app, [*words, "logits"])
    assert "contains probabilities (by the operator Softmax)" in str(refused.exception)
    assert "must be" in str(testing.CliRunner().invoke(app, [*words, "likelihoods"]).exception)
    assert not (tmp_path / "sets.onnx").exists()
    assert testing.CliRunner().invoke(app, [*words, "probabilities"]).exit_code == 0
    mask = run(tmp_path / "sets.onnx", logits[300:])["set_mask"]
    np.testing.assert_array_equal(mask, evicp.load(tmp_path / "cal.safetensors").predict(logits[300:], 0.9).mask())


def test_what_the_model_says_of_itself_is_kept(rows: Any, tmp_path: Path) -> None:
    logits, labels = rows
    model = graph(node("Identity", ["x"], ["y"]), producer_name="trainer", doc_string="a model", model_version=7)
    onnx.helper.set_model_props(model, {"author": "me"})
    export(model, evicp.calibrate(logits, labels), 0.9, tmp_path / "sets.onnx")
    made = onnx.load(tmp_path / "sets.onnx")
    assert (made.producer_name, made.doc_string, made.model_version) == ("trainer", "a model", 7)
    assert [(entry.key, entry.value) for entry in made.metadata_props] == [("author", "me")]


def test_a_network_of_torch_that_ends_in_a_softmax(rows: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    logits, labels = rows
    network = torch.nn.Sequential(torch.nn.Linear(K, K), torch.nn.Softmax(-1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's: that this exporter is the older one
        torch.onnx.export(
            network.eval(),
            (torch.zeros(1, K),),
            str(tmp_path / "model.onnx"),
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
            opset_version=18,
            dynamo=False,
        )
    with torch.no_grad():
        own = network[0](torch.from_numpy(logits)).numpy()
    calibration = evicp.calibrate(own[:300], labels[:300], "lac")
    with pytest.raises(InputError, match=r"contains probabilities \(by the operator Softmax\)"):
        export(tmp_path / "model.onnx", calibration, 0.9, tmp_path / "sets.onnx")
    export(tmp_path / "model.onnx", calibration, 0.9, tmp_path / "sets.onnx", output_is="probabilities")
    mask = run(tmp_path / "sets.onnx", logits[300:])["set_mask"]
    np.testing.assert_array_equal(mask, calibration.predict(own[300:], 0.9).mask())
