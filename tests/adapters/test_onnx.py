"""The ONNX export: the same memberships through onnxruntime as from the library."""

from __future__ import annotations

import numpy as np
import pytest

import evicp
from evicp.datasets import load_imagenet_sample

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from evicp.onnx import export  # noqa: E402 - after the packages it needs are known to be here

RATES = np.arange(1, 11) / 55

SCORES = [
    evicp.ECP(),
    evicp.ECP(stabilizer=0),
    evicp.ECP(evidence="softplus", temperature=1.7),
    evicp.ECP(evidence="exp", stabilizer="scaled"),
    evicp.LAC(temperature=0.7),
    evicp.APS(randomized=False),
    evicp.RAPS(randomized=False, lam=0.01, k_reg=2),
    evicp.SAPS(randomized=False),
    evicp.TopK(),
    evicp.Margin(),
]


def linear_model(path, n_inputs, n_classes, *, dtype=np.float32, opset=18, weights=None):
    """A classifier in one MatMul, so that its logits are known exactly: the identity."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = np.eye(n_inputs, n_classes, dtype=dtype) if weights is None else weights
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["logits"])],
        "linear",
        [onnx.helper.make_tensor_value_info("x", kind, ["batch", n_inputs])],
        [onnx.helper.make_tensor_value_info("logits", kind, ["batch", n_classes])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(model, path)
    return path


def bare_model(path, n_classes, *, inner="between"):
    """A classifier whose inputs are its logits, in double precision; a MatMul would spread NaN and inf over a row."""
    kind = onnx.TensorProto.DOUBLE
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], [inner]), onnx.helper.make_node("Identity", [inner], ["logits"])],
        "bare",
        [onnx.helper.make_tensor_value_info("x", kind, ["batch", n_classes])],
        [onnx.helper.make_tensor_value_info("logits", kind, ["batch", n_classes])],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def run(path, x):
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"x": x})
    return dict(zip([o.name for o in session.get_outputs()], outputs, strict=True))


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.describe())
@pytest.mark.parametrize("opset", [16, 18, 21])
def test_small_rows_with_ties_have_the_same_sets(tmp_path, score, opset):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 400)
    logits = np.round(rng.normal(size=(400, 10)) * 2 + 3 * np.eye(10)[labels], 1).astype(np.float32)
    calibration = evicp.calibrate(logits[:200], labels[:200], score)
    model = linear_model(tmp_path / "model.onnx", 10, 10, opset=opset)
    export(model, calibration, 0.9, tmp_path / "sets.onnx")
    result = run(tmp_path / "sets.onnx", logits)
    sets = calibration.predict(logits, 0.9)
    np.testing.assert_array_equal(result["logits"], logits)
    np.testing.assert_array_equal(result["set_mask"], sets.mask())
    np.testing.assert_array_equal(result["set_size"], sets.sizes)
    evidence = score.evidence if isinstance(score, evicp.ECP) else "relu"
    np.testing.assert_allclose(result["uncertainty"], evicp.opinion(logits, evidence).uncertainty, rtol=1e-12)


def test_a_threshold_per_class(tmp_path):
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 10, 900)
    logits = (rng.normal(size=(900, 10)) * 2 + 3 * np.eye(10)[labels]).astype(np.float32)
    calibration = evicp.calibrate(logits[:600], labels[:600], by="class")
    export(linear_model(tmp_path / "m.onnx", 10, 10), calibration, 0.9, tmp_path / "s.onnx")
    mask = run(tmp_path / "s.onnx", logits)["set_mask"]
    np.testing.assert_array_equal(mask, calibration.predict(logits, 0.9).mask())
    by_row = evicp.calibrate(logits[:600], labels[:600], by=labels[:600] % 2)
    with pytest.raises(evicp.EvicpError, match="depend on the row"):
        export(linear_model(tmp_path / "m.onnx", 10, 10), by_row, 0.9, tmp_path / "t.onnx")


def test_uneven_base_rates(tmp_path):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, 500)
    logits = (rng.normal(size=(500, 10)) * 2 + 3 * np.eye(10)[labels]).astype(np.float32)
    calibration = evicp.calibrate(logits[:200], labels[:200], evicp.ECP(base_rates=RATES))
    export(linear_model(tmp_path / "m.onnx", 10, 10), calibration, 0.9, tmp_path / "s.onnx")
    mask = run(tmp_path / "s.onnx", logits)["set_mask"]
    np.testing.assert_array_equal(mask, calibration.predict(logits, 0.9).mask())


def test_uneven_base_rates_where_rounding_makes_ties(tmp_path):
    """0.1 + 1.2 and 0.5 + 0.8 round to one alpha: the order goes on with what rounding took, not with the logit."""
    rng = np.random.default_rng(0)
    rates = (0.4, 0.3, 0.2, 0.1)
    labels = rng.choice(4, 20_000, p=rates)
    logits = (rng.normal(size=(20_000, 4)) * 0.6 + np.eye(4)[labels]).round(1)
    calibration = evicp.calibrate(logits, labels, evicp.ECP(base_rates=rates))
    export(bare_model(tmp_path / "m.onnx", 4), calibration, 0.9, tmp_path / "s.onnx")
    mask = run(tmp_path / "s.onnx", logits)["set_mask"]
    np.testing.assert_array_equal(mask, calibration.predict(logits, 0.9).mask())


@pytest.mark.parametrize("score", [evicp.ECP(), evicp.LAC(), evicp.RAPS(randomized=False)], ids=lambda s: s.name)
def test_real_logits_have_the_same_sets(tmp_path, score):
    sample = load_imagenet_sample()
    logits = sample.logits.astype(np.float32)
    calibration = evicp.calibrate(logits[:1200], sample.labels[:1200], score)
    export(linear_model(tmp_path / "m.onnx", 1000, 1000), calibration, 0.9, tmp_path / "s.onnx")
    rows = logits[:2000]
    result = run(tmp_path / "s.onnx", rows)
    np.testing.assert_array_equal(result["set_mask"], calibration.predict(rows, 0.9).mask())
    assert run(tmp_path / "s.onnx", rows[:1])["set_size"].shape == (1,)  # the batch is dynamic


def test_masked_labels_stay_out(tmp_path):
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(100, 5)).astype(np.float32)
    labels = logits.argmax(1)
    calibration = evicp.calibrate(logits, labels, evicp.APS(randomized=False))
    # A model that masks its last class itself.
    graph_path = tmp_path / "m.onnx"
    mask = onnx.numpy_helper.from_array(np.array([[0, 0, 0, 0, -np.inf]], np.float32), "mask")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "mask"], ["logits"])],
        "masked",
        [onnx.helper.make_tensor_value_info("x", 1, ["batch", 5])],
        [onnx.helper.make_tensor_value_info("logits", 1, ["batch", 5])],
        [mask],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), graph_path)
    for score in ("lac", evicp.APS(randomized=False), "ecp", "margin", "topk"):
        calibration = evicp.calibrate(logits, labels, score)
        export(graph_path, calibration, 0.95, tmp_path / "s.onnx")
        result = run(tmp_path / "s.onnx", logits)
        expected = calibration.predict(result["logits"], 0.95).mask()
        np.testing.assert_array_equal(result["set_mask"], expected)
        assert not result["set_mask"][:, 4].any()


@pytest.mark.parametrize("score", [*SCORES, evicp.ECP(base_rates=RATES)], ids=lambda score: score.describe())
def test_rows_that_cannot_be_scored_get_full_sets(tmp_path, score):
    """A graph cannot raise, and an empty set would break the promise."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 10, 300)
    logits = rng.normal(size=(300, 10)) * 2 + 4 * np.eye(10)[labels]
    calibration = evicp.calibrate(logits, labels, score)
    rows = logits[:7].copy()
    rows[0, 3] = rows[1, 0] = np.nan
    rows[2, 4] = np.inf
    rows[3] = -np.inf
    rows[4, 5] = 1e305  # beyond what the library scores
    export(bare_model(tmp_path / "m.onnx", 10), calibration, 0.7, tmp_path / "s.onnx")
    result = run(tmp_path / "s.onnx", rows)
    assert result["set_mask"][:5].all()
    assert result["set_size"][:5].tolist() == [10] * 5
    assert result["uncertainty"][:5].tolist() == [1.0] * 5
    np.testing.assert_array_equal(result["set_mask"][5:], calibration.predict(rows[5:], 0.7).mask())
    assert (result["uncertainty"][5:] < 1).all()


HARD = [
    evicp.ECP(),
    evicp.ECP(stabilizer=0),
    evicp.ECP(stabilizer=1e-300, temperature=0.4),
    evicp.ECP(evidence="softplus", stabilizer=0.05),
    evicp.ECP(evidence="exp", temperature=3.0),
]


def head_session(score, threshold, n_classes):
    """The head alone, of logits in double precision."""
    from evicp.onnx.head import build_head

    kind = onnx.TensorProto.DOUBLE
    head = build_head(onnx, score, np.array([threshold]), n_classes=n_classes, kind=kind, opset=18)
    head.ir_version = 9
    session = ort.InferenceSession(head.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda logits: session.run(["set_mask"], {"evicp/logits": logits})[0]


@pytest.mark.parametrize("score", HARD, ids=lambda score: score.describe())
@pytest.mark.parametrize("n_classes", [2, 30])
def test_top_labels_found_without_a_full_sort_are_those_within_the_threshold(score, n_classes):
    """Of rows with ties, masks, labels that are nearly sure and logits of any size, at thresholds of any height."""
    rng = np.random.default_rng(n_classes)
    n = 240
    scale = rng.choice([0.01, 1.0, 6.0, 300.0], (n, 1))
    labels = rng.integers(0, n_classes, n)
    logits = (scale * (rng.normal(size=(n, n_classes)) + 2 * np.eye(n_classes)[labels])).round(1)
    masked = (rng.random(logits.shape) < 0.3) & (rng.random((n, 1)) < 0.3)
    logits[masked & (np.arange(n_classes) != labels[:, None])] = -np.inf
    logits[:4] = 0.0
    logits[4:8, 0] = 1e17 if score.stabilizer else 1e3
    scores = score.scores(logits)
    finite = np.unique(scores[np.isfinite(scores)])
    for place in np.linspace(0, len(finite) - 1, 6).astype(int):
        threshold = finite[place] + 1e-10 * max(1.0, abs(finite[place]))
        members = head_session(score, threshold, n_classes)
        expected = scores <= threshold
        np.testing.assert_array_equal(members(logits), expected)
        np.testing.assert_array_equal([members(logits[i : i + 1])[0] for i in (0, 5, 9)], expected[[0, 5, 9]])
    assert members(logits[:0]).shape == (0, n_classes)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions(tmp_path, dtype):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(300, 6)).astype(dtype)
    labels = logits.argmax(1)
    calibration = evicp.calibrate(logits[:150], labels[:150])
    export(linear_model(tmp_path / "m.onnx", 6, 6, dtype=dtype), calibration, 0.8, tmp_path / "s.onnx")
    result = run(tmp_path / "s.onnx", logits)
    np.testing.assert_array_equal(result["set_mask"], calibration.predict(logits, 0.8).mask())


def test_only_standard_operators_of_the_documented_list(tmp_path):
    import evicp.onnx as module
    from evicp.onnx.head import build_head

    listed = set(module.__doc__.split("dynamic batch")[1].split(":")[1].split(".")[0].split())
    used = set()
    for score in SCORES:
        head = build_head(onnx, score, np.array([-1.0]), n_classes=10, kind=1, opset=18)
        assert {node.domain for node in head.graph.node} == {""}
        used |= {node.op_type for node in head.graph.node}
    assert used <= listed
    assert listed - used == set()


def two_outputs(model):
    model.graph.node.append(onnx.helper.make_node("Identity", ["logits"], ["again"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("again", 1, ["batch", 4]))
    return model


def test_what_cannot_be_exported_says_so(tmp_path):
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(50, 4)).astype(np.float32)
    labels = logits.argmax(1)
    model = linear_model(tmp_path / "m.onnx", 4, 4)
    target = tmp_path / "s.onnx"

    def calibrated(score):
        return evicp.calibrate(logits, labels, score)

    with pytest.raises(evicp.EvicpError, match=r"RAPS\(randomized=False\)"):
        export(model, calibrated("raps"), 0.8, target)
    with pytest.raises(evicp.EvicpError, match="only built-in scores"):
        export(model, calibrated(lambda z: -z), 0.8, target)
    with pytest.raises(evicp.EvicpError, match="contains no Python"):
        export(model, calibrated(evicp.ECP(utility=np.exp)), 0.8, target)
    with pytest.raises(evicp.EvicpError, match="opset 13"):
        export(linear_model(tmp_path / "old.onnx", 4, 4, opset=13), calibrated("lac"), 0.8, target)
    with pytest.raises(evicp.EvicpError, match=r"\(batch, 4\)"):
        export(linear_model(tmp_path / "five.onnx", 5, 5), calibrated("lac"), 0.8, target)
    onnx.save(two_outputs(onnx.load(model)), tmp_path / "two.onnx")
    with pytest.raises(evicp.EvicpError, match=r"has outputs logits, again; .* with logits \(--logits NAME\)"):
        export(tmp_path / "two.onnx", calibrated("lac"), 0.8, target)
    with pytest.raises(evicp.EvicpError, match="no output 'scores'"):
        export(model, calibrated("lac"), 0.8, target, logits="scores")
    (tmp_path / "junk.onnx").write_bytes(b"not a model")
    with pytest.raises(evicp.EvicpError, match="not an ONNX model"):
        export(tmp_path / "junk.onnx", calibrated("lac"), 0.8, target)
    with pytest.raises(evicp.EvicpError, match="cannot read"):
        export(tmp_path / "absent.onnx", calibrated("lac"), 0.8, target)
    with pytest.raises(evicp.errors.InputTypeError, match=r"an onnx\.ModelProto; got a GraphProto\."):
        export(onnx.load(model).graph, calibrated("lac"), 0.8, target)
    for name in ("uncertainty", "set_mask", "evicp/0_0"):
        with pytest.raises(evicp.EvicpError, match=f"already has a tensor named '{name}'"):
            export(bare_model(tmp_path / "taken.onnx", 4, inner=name), calibrated("lac"), 0.8, target)
    assert not target.exists()


@pytest.mark.parametrize(("weights", "ir_version"), [(np.eye(3, 2, dtype=np.float32), 9), (None, 10**6)])
def test_a_model_that_is_not_valid_is_a_typed_error(tmp_path, weights, ir_version):
    """One whose shapes do not fit, and one of a format that nobody knows."""
    model = onnx.load(linear_model(tmp_path / "model.onnx", 3, 3, weights=weights))
    model.ir_version = ir_version
    calibration = evicp.calibrate(3 * np.eye(3).repeat(10, 0), np.arange(3).repeat(10))
    with pytest.raises(evicp.errors.FileError, match="the model does not pass ONNX's own checks: "):
        export(model, calibration, 0.5, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_calibration_from_a_file(tmp_path):
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(80, 4)).astype(np.float32)
    calibration = evicp.calibrate(logits, logits.argmax(1))
    calibration.save(tmp_path / "c.safetensors")
    export(linear_model(tmp_path / "m.onnx", 4, 4), tmp_path / "c.safetensors", 0.8, tmp_path / "s.onnx")
    np.testing.assert_array_equal(run(tmp_path / "s.onnx", logits)["set_mask"], calibration.predict(logits, 0.8).mask())


def test_a_model_in_memory(tmp_path):
    logits = np.random.default_rng(9).normal(size=(80, 4)).astype(np.float32)
    calibration = evicp.calibrate(logits, logits.argmax(1))
    model = onnx.load(linear_model(tmp_path / "m.onnx", 4, 4))
    before = model.SerializeToString(deterministic=True)
    export(model, calibration, 0.8, tmp_path / "s.onnx")
    assert model.SerializeToString(deterministic=True) == before
    np.testing.assert_array_equal(run(tmp_path / "s.onnx", logits)["set_mask"], calibration.predict(logits, 0.8).mask())
    with pytest.raises(evicp.EvicpError, match="already has a tensor named 'set_mask'"):
        export(tmp_path / "s.onnx", calibration, 0.8, tmp_path / "t.onnx", logits="logits")


def test_sets_with_a_confidence(tmp_path):
    rng = np.random.default_rng(8)
    labels = rng.integers(0, 10, 400)
    logits = (rng.normal(size=(400, 10)) * 2 + 3 * np.eye(10)[labels]).astype(np.float32)
    calibration = evicp.calibrate(logits[:200], labels[:200], "lac")
    export(linear_model(tmp_path / "m.onnx", 10, 10), calibration, 0.8, tmp_path / "s.onnx", confidence=0.95)
    sure, plain = (calibration.predict(logits, 0.8, confidence=c) for c in (0.95, None))
    np.testing.assert_array_equal(run(tmp_path / "s.onnx", logits)["set_mask"], sure.mask())
    assert sure.sizes.sum() > plain.sizes.sum()


def test_decisions_of_a_linear_classifier_are_logits(tmp_path):
    """Those of ai.onnx.ml that make no probabilities of them."""
    rng = np.random.default_rng(9)
    labels = rng.integers(0, 4, 200)
    logits = (rng.normal(size=(200, 4)) + 3 * np.eye(4)[labels]).astype(np.float32)
    model = onnx.load(linear_model(tmp_path / "m.onnx", 4, 4))
    weights = {"coefficients": np.eye(4).ravel().tolist(), "intercepts": [0.0] * 4, "classlabels_ints": [0, 1, 2, 3]}
    node = onnx.helper.make_node("LinearClassifier", ["x"], ["label", "logits"], domain="ai.onnx.ml", **weights)
    model.graph.node[0].CopyFrom(node)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    calibration = evicp.calibrate(logits, labels)
    export(model, calibration, 0.9, tmp_path / "s.onnx")
    np.testing.assert_array_equal(run(tmp_path / "s.onnx", logits)["set_mask"], calibration.predict(logits, 0.9).mask())


def test_onnx_s_own_evaluator_gives_the_same_sets(tmp_path):
    """Servers differ: nothing rests on what one of them makes of an operator."""
    reference = pytest.importorskip("onnx.reference")
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(300, 7)).round(1)
    logits[::5, 3] = -np.inf
    logits[1], logits[2, 0] = 0, np.nan
    labels = np.where(np.isnan(logits), -1, logits).argmax(1)
    for score in (evicp.ECP(), evicp.LAC(), evicp.APS(randomized=False), evicp.RAPS(randomized=False), evicp.Margin()):
        calibration = evicp.calibrate(logits[3:], labels[3:], score)
        export(bare_model(tmp_path / "m.onnx", 7), calibration, 0.8, tmp_path / "s.onnx")
        with np.errstate(all="ignore"):
            mask = reference.ReferenceEvaluator(str(tmp_path / "s.onnx")).run(["set_mask"], {"x": logits})[0]
        np.testing.assert_array_equal(mask, run(tmp_path / "s.onnx", logits)["set_mask"])
        np.testing.assert_array_equal(mask[3:], calibration.predict(logits[3:], 0.8).mask())
        assert mask[2].all()
