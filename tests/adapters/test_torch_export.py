"""The module of sets in the formats that PyTorch writes: the same sets after loading."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
# torch's own: `jit` is deprecated and fixes the shape that is checked; its ONNX exporter uses what it deprecates.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

from torch import nn  # noqa: E402

import evicp  # noqa: E402
from evicp.torch import SetPredictor, _doubles_of  # noqa: E402
from lengths import usually  # noqa: E402

SCORES = [evicp.LAC(), evicp.ECP(), evicp.ECP(evidence="exp"), evicp.APS(randomized=False), evicp.Margin()]
EACH = pytest.mark.parametrize(
    "score", usually(SCORES, lambda score: score.name == "lac"), ids=lambda score: score.describe()
)


def predictor_of(score="ecp", coverage=0.8, seed=0):
    """A small network with sets, and rows for it: ties, impossible labels, unusable rows among them."""
    torch.manual_seed(seed)
    network = nn.Linear(6, 6, dtype=torch.float64)
    features = torch.randn(300, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        logits = network(features).round(decimals=1)  # rows have equal logits
    labels = torch.distributions.Categorical(logits=logits).sample()
    module = SetPredictor(nn.Identity(), evicp.calibrate(logits, labels, score), coverage).eval()
    rows = logits[:40].clone()
    rows[0, 1], rows[1, 1], rows[2, :], rows[3, 0], rows[4, :3] = math.nan, math.inf, -math.inf, 1e305, -math.inf
    return module, rows


def assert_same(output, expected):
    logits, mask, uncertainty = (np.asarray(part) for part in output)
    np.testing.assert_array_equal(logits, expected.logits)
    np.testing.assert_array_equal(mask, expected.mask)
    np.testing.assert_allclose(uncertainty, expected.uncertainty, rtol=1e-12)


def test_doubles_from_bits_are_exact():
    rng = np.random.default_rng(0)
    hard = [0.0, -0.0, 5e-324, -1e-320, 2.0**-1022, 1.0, -0.1, 1e300, np.inf, -np.inf, np.finfo(np.float64).max]
    anything = rng.integers(-(2**63), 2**63, 5000).view(np.float64)
    values = np.concatenate([hard, np.negative(hard), anything[~np.isnan(anything)]])
    bits = torch.from_numpy(values).view(torch.int64)
    assert torch.equal(_doubles_of(bits).view(torch.int64), bits)


@EACH
def test_a_saved_export_gives_the_same_sets(tmp_path, score):
    module, rows = predictor_of(score)
    program = torch.export.export(module, (rows,), dynamic_shapes={"args": ({0: torch.export.Dim("rows")},)})
    torch.export.save(program, tmp_path / "sets.pt2")
    loaded = torch.export.load(tmp_path / "sets.pt2").module()
    assert_same(loaded(rows), module(rows))
    assert torch.equal(loaded(rows[5:9]).sizes, module(rows[5:9]).sizes)


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.describe())
def test_a_traced_module_gives_the_same_sets(tmp_path, score):
    module, rows = predictor_of(score)
    torch.jit.trace(module, (rows,)).save(tmp_path / "sets.pt")
    loaded = torch.jit.load(tmp_path / "sets.pt")
    assert_same(loaded(rows), module(rows))
    assert_same(loaded(rows[5:9]), module(rows[5:9]))


def test_a_trace_of_a_randomised_score_is_refused():
    module, rows = predictor_of(evicp.APS())
    with pytest.raises(
        evicp.errors.ScoreError, match=r"TorchScript does not support. Use torch.export, .*APS\(randomized=F"
    ):
        torch.jit.trace(module, (rows,))


@EACH
def test_onnx_by_torch_gives_the_same_sets(tmp_path, score):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    module, rows = predictor_of(score)
    shapes = (({0: torch.export.Dim("rows")},),)
    names = ["logits", "set_mask", "uncertainty"]
    torch.onnx.export(
        module,
        (rows,),
        tmp_path / "sets.onnx",
        dynamo=True,
        verbose=False,
        optimize=False,
        dynamic_shapes=shapes,
        output_names=names,
    )
    session = runtime.InferenceSession(tmp_path / "sets.onnx")
    for some in (rows, rows[5:9]):
        assert_same(session.run(names, {session.get_inputs()[0].name: some.numpy()}), module(some))


def test_safetensors_save_and_load_a_module(tmp_path):
    from safetensors.torch import load_model, save_model

    module, rows = predictor_of()
    save_model(module, tmp_path / "sets.safetensors")
    other = predictor_of(coverage=0.5, seed=3)[0]
    assert not torch.equal(other(rows).mask, module(rows).mask)
    load_model(other, tmp_path / "sets.safetensors")
    assert_same(other(rows), module(rows))
    with pytest.raises(evicp.EvicpError, match="this state belongs to"):
        load_model(predictor_of("lac")[0], tmp_path / "sets.safetensors")


def test_a_hub_mixin_saves_and_loads_a_module(tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    class Published(nn.Module, hub.PyTorchModelHubMixin):
        def __init__(self, coverage: float) -> None:
            super().__init__()
            self.sets = predictor_of(coverage=coverage)[0]

        def forward(self, x):
            return self.sets(x)

    published, rows = Published(0.8), predictor_of()[1]
    published.save_pretrained(tmp_path)
    assert_same(Published.from_pretrained(tmp_path)(rows), published(rows))
