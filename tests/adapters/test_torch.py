"""The PyTorch adapter: calibration from a loader, sets as a module, evidential losses."""

from __future__ import annotations

import math
from collections import UserDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import evicp  # noqa: E402
from evicp.evaluation.metrics import judged_by  # noqa: E402
from evicp.kernels.arithmetic import Arithmetic  # noqa: E402
from evicp.torch import SetPredictor, calibrate, evaluate, evidential_loss, logits_of, pipeline_logits  # noqa: E402


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 6, (600,), generator=generator)
    features = torch.randn(600, 8, generator=generator)
    features[torch.arange(600), labels] += 2.5
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5))
    return model, features, labels


class WithLogits(nn.Module):
    """Answers as Hugging Face models do."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, x):
        return type("Output", (), {"logits": self.inner(x)})()


def test_a_loader_gives_what_all_logits_at_once_give(problem):
    model, features, labels = problem
    model.train()
    from_loader = calibrate(model, DataLoader(TensorDataset(features, labels), batch_size=64))
    assert model.training, "the model's mode is restored"
    assert all(module.training for module in model)
    with torch.no_grad():
        logits = model.eval()(features)
    assert from_loader == evicp.calibrate(logits, labels)


def test_a_function_is_calibrated_as_its_module_is(problem):
    model, features, labels = problem
    batches = [(features[:300], labels[:300]), (features[300:], labels[300:])]
    calibration = calibrate(model, batches)
    model.eval()
    assert calibrate(lambda x: {"logits": model(x)}, batches) == calibration
    results = [evaluate(given, batches, calibration, 0.9).to_dict() for given in (model, lambda x: (model(x),))]
    assert results[0] == results[1]
    with pytest.raises(evicp.errors.InputTypeError, match=r"must be a torch.nn.Module or a function; got a list\."):
        calibrate([1], batches)


def test_frozen_submodules_stay_frozen(problem):
    model, features, labels = problem
    model.train()
    model[1].eval()
    calibrate(model, [(features, labels)])
    assert model.training
    assert not model[1].training
    model.train()


class Lora(nn.Linear):
    """Merges its weights for evaluation and takes them apart for training, as loralib's layers do."""

    merged = False

    def __init__(self):
        super().__init__(6, 6)
        self.low_rank = nn.Parameter(torch.ones(6, 6))

    def train(self, mode=True):
        super().train(mode)
        if self.merged == mode:
            self.weight.data += -self.low_rank if mode else self.low_rank
            self.merged = not mode
        return self

    def forward(self, x):
        z = super().forward(x)
        return z if self.merged else z + x @ self.low_rank.T


@pytest.mark.parametrize("outer", [True, False])
def test_modes_are_changed_by_the_modules_own_methods(problem, outer):
    _, features, labels = problem
    model = nn.Sequential(Lora(), nn.Dropout(0.5), nn.BatchNorm1d(6))
    model.training = outer  # the layers' own flags are what counts
    model[2].eval()
    calibrate(model, [(features[:, :6], labels)])
    assert not model[0].merged
    assert [module.training for module in model.modules()] == [outer, True, True, False]


def test_modules_without_a_mode_are_used_as_they_are(problem):
    """Modules of torch.export refuse train() and eval(); what comes after one still goes to evaluation mode."""
    _, features, labels = problem
    exported = torch.export.export(nn.Sequential(nn.Linear(8, 6)), (features,)).module()
    expected = calibrate(nn.Identity(), [(exported(features), labels)])
    assert calibrate(exported, [(features, labels)]) == expected
    model = nn.Sequential(exported, nn.Dropout(0.5))
    assert calibrate(model, [(features, labels)]) == expected
    assert model.training
    assert model[1].training


def test_names_as_labels(problem):
    model, features, labels = problem
    names = ["ant", "bee", "cat", "dog", "eel", "fox"]
    named = [names[label] for label in labels.tolist()]
    loader = DataLoader(list(zip(features, named, strict=True)), batch_size=64)
    expected = calibrate(model, batches_of(features, labels), class_names=names)
    assert calibrate(model, loader, class_names=names) == expected
    assert calibrate(WithLogits(model), [{"x": features, "labels": named}], class_names=names) == expected
    result = evaluate(model, loader, expected, 0.9)
    assert result.to_dict() == evaluate(model, batches_of(features, labels), expected, 0.9).to_dict()
    with pytest.raises(evicp.errors.InputTypeError, match="or names together with class_names="):
        calibrate(model, loader)


class Elsewhere(nn.Module):
    """Takes its inputs on one device and answers on another."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x):
        assert x.device.type == "meta"
        return self.logits


def test_labels_go_where_the_logits_are(problem):
    _, features, labels = problem
    logits = features[:, :6]
    expected = calibrate(nn.Identity(), [(logits, labels)])
    assert calibrate(Elsewhere(logits), [(features, labels)], device="meta") == expected


Pair = namedtuple("Pair", "a b")


class Nested(nn.Module):
    """Checks that the tensors of its inputs arrived on the device."""

    def forward(self, inputs, more=None):
        first, second = inputs.a if isinstance(inputs, Pair) else inputs
        assert first.device.type == second.device.type == "meta"
        assert more is None or more["c"].device.type == "meta"
        return {"logits": 3 * torch.eye(6)}


def test_inputs_are_moved_wherever_they_are(problem):
    _, features, _ = problem
    labels = torch.arange(6)
    expected = evicp.calibrate(3 * torch.eye(6), labels)
    pair = (features, features)
    for inputs in (
        pair,
        list(pair),
        Pair(pair, "text"),
        {"inputs": pair, "more": UserDict(c=features)},
        UserDict(inputs=pair),
    ):
        assert calibrate(Nested(), [(inputs, labels)], device="meta") == expected
    assert calibrate(Nested(), [UserDict(inputs=pair, labels=labels)], device="meta") == expected


def test_logits_in_any_mapping(problem):
    features = problem[1]
    assert logits_of(UserDict(logits=features)) is features


def test_what_can_move_itself_does():
    """A packed sequence keeps its lengths on the CPU: moving its tensors one by one would break it."""
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])

    class Packed(nn.Module):
        def forward(self, x):
            assert x.data.device.type == "meta"
            assert x.batch_sizes.device.type == "cpu"
            return 3 * torch.eye(2)

    assert calibrate(Packed(), [(packed, [0, 1])], device="meta").n == 2


def test_dict_batches_and_outputs_with_logits(problem):
    model, features, labels = problem
    expected = calibrate(model, [(features, labels)], "lac")
    assert calibrate(WithLogits(model), [{"x": features, "labels": labels}], "lac") == expected
    assert calibrate(WithLogits(model), [(features, labels.tolist())], "lac") == expected


def test_what_a_loader_or_model_must_give(problem):
    model, features, _ = problem
    with pytest.raises(evicp.EvicpError, match="loader must yield"):
        calibrate(model, [features])
    with pytest.raises(evicp.EvicpError, match="must return logits"):
        logits_of({"scores": features})
    assert logits_of((features, None)) is features
    with pytest.raises(evicp.EvicpError, match="at least one row"):
        calibrate(model, [])


def batches_of(*columns, size=64):
    return DataLoader(TensorDataset(*columns), batch_size=size)


@pytest.mark.parametrize("by", ["class", "uncertainty", evicp.ByUncertainty(bands=3), evicp.ByClass(rare="cluster")])
def test_guarantees_from_a_loader(problem, by):
    model, features, labels = problem
    with torch.no_grad():
        logits = model.eval()(features)
    assert calibrate(model, batches_of(features, labels), "lac", by=by) == evicp.calibrate(logits, labels, "lac", by=by)


def test_groups_from_a_loader(problem):
    model, features, labels = problem
    with torch.no_grad():
        logits = model.eval()(features)
    groups = torch.arange(600) % 3
    expected = evicp.calibrate(logits, labels, "lac", by=groups)
    assert calibrate(model, batches_of(features, labels, groups), "lac", by="group") == expected
    rows = [{"x": features, "labels": labels, "groups": groups}]
    assert calibrate(WithLogits(model), rows, "lac", by=evicp.ByGroup()) == expected
    named = ["abc"[group] for group in groups.tolist()]
    as_text = calibrate(model, [(features, labels, named)], "lac", by="group")
    np.testing.assert_array_equal(as_text.scores, expected.scores)
    with pytest.raises(evicp.EvicpError, match=r"\(inputs, labels, groups\) or a dict with 'labels' and 'groups'"):
        calibrate(model, batches_of(features, labels), "lac", by="group")
    with pytest.raises(evicp.EvicpError, match=r"must yield \(inputs, labels\) or a dict with 'labels'\."):
        calibrate(model, batches_of(features, labels, groups), "lac")


def test_class_weights_from_a_loader(problem):
    model, features, labels = problem
    with torch.no_grad():
        logits = model.eval()(features)
    weights = [1.0, 2.0, 1.0, 0.5, 1.0, 1.0]
    expected = evicp.calibrate(logits, labels, "lac", class_weights=weights)
    assert calibrate(model, batches_of(features, labels), "lac", class_weights=weights) == expected


@pytest.mark.parametrize("by", [None, "class", "uncertainty", "group"])
@pytest.mark.parametrize("how", [{}, {"confidence": 0.9, "allow_empty": False}])
def test_evaluation_from_a_loader_is_that_of_all_rows(problem, by, how):
    model, features, labels = problem
    model.train()
    groups = torch.arange(600) % 3
    columns = (features, labels, groups) if by == "group" else (features, labels)
    old, new = (tuple(column[part] for column in columns) for part in (slice(0, 400), slice(400, None)))
    calibration = calibrate(model, batches_of(*old), "lac", by=by)
    result = evaluate(model, batches_of(*new, size=48), calibration, 0.8, min_count=3, **how)
    assert model.training
    assert torch.is_grad_enabled()
    with torch.no_grad():
        logits = model.eval()(features[400:])
    given = groups[400:] if by == "group" else None
    sets = calibration.predict(logits, 0.8, groups=given, **how)
    names = calibration.groups_of(logits, given) if by in ("group", "uncertainty") else None
    expected = evicp.evaluate(sets, labels[400:], logits, groups=names, min_count=3)
    assert result.to_dict() == judged_by(calibration, expected).to_dict()
    assert result.guarantee == calibration.guarantee


def test_evaluation_of_dict_batches(problem):
    model, features, labels = problem
    calibration = calibrate(model, [(features[:400], labels[:400])])
    rows = [{"x": features[400:500], "labels": labels[400:500]}, {"x": features[500:], "labels": labels[500:]}]
    expected = evaluate(model, batches_of(features[400:], labels[400:]), calibration, 0.9)
    assert evaluate(WithLogits(model), rows, calibration, 0.9).to_dict() == expected.to_dict()


def test_the_coverage_promised_from_a_loader():
    """Calibrated and evaluated through loaders: 4,000 rows each, five standard errors of the Beta-binomial law."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 10, (8000,), generator=generator)
    features = torch.randn(8000, 10, generator=generator)
    features[torch.arange(8000), labels] += 2.0
    calibration = calibrate(nn.Identity(), batches_of(features[:4000], labels[:4000], size=500), "lac")
    result = evaluate(nn.Identity(), batches_of(features[4000:], labels[4000:], size=300), calibration, 0.9)
    assert abs(result.coverage - 0.9) < 5 * math.sqrt(0.09 * 2 / 4000)


def test_what_an_evaluation_needs(problem):
    model, features, labels = problem
    loader = batches_of(features, labels)
    calibration = calibrate(model, loader)
    for arguments, message in [
        ((loader, model, calibration, 0.9), r"model must be .* got a DataLoader\. The model comes first"),
        ((model, calibration, loader, 0.9), r"loader must yield .* got a Calibration"),
        ((model, loader, 0.9, calibration), r"calibration must be .* got a float\. evicp\.load"),
        ((model, loader, calibration, 90), r"coverage must be"),
    ]:
        with pytest.raises(evicp.EvicpError, match=message):
            evaluate(*arguments)
    with pytest.raises(evicp.EvicpError, match="at least one row"):
        evaluate(model, [], calibration, 0.9)


def test_swapped_arguments(problem):
    model, features, labels = problem
    loader = batches_of(features, labels)
    calibration = calibrate(model, loader)
    with pytest.raises(evicp.errors.InputTypeError, match=r"model must be .* got a DataLoader\. The model comes first"):
        calibrate(loader, model)
    with pytest.raises(evicp.errors.InputTypeError, match=r"loader must yield .* got a Sequential"):
        calibrate(model, model)
    with pytest.raises(evicp.errors.InputTypeError, match=r"model must be .* got a Calibration"):
        SetPredictor(calibration, model, 0.9)
    with pytest.raises(evicp.errors.InputTypeError, match=r"calibration must be .* got a Sequential"):
        SetPredictor(model, model, 0.9)


def test_the_mode_is_restored_when_a_batch_fails(problem):
    model, features, labels = problem
    model.train()
    with pytest.raises(evicp.EvicpError, match="labels must be in"):
        calibrate(model, [(features, labels), (features, labels + 6)])
    assert model.training
    assert torch.is_grad_enabled()


SCORES = [evicp.ECP(), evicp.ECP(evidence="exp"), evicp.LAC(), evicp.APS(), evicp.RAPS(), evicp.SAPS(), evicp.TopK()]


@pytest.mark.parametrize("score", [*SCORES, evicp.Margin()], ids=lambda score: score.describe())
@pytest.mark.parametrize("by", [None, "class"])
def test_the_module_gives_the_library_s_sets(problem, score, by):
    """But for labels so close behind the threshold that the room it leaves for rounding lets them in."""
    model, features, labels = problem
    model.eval()
    with torch.no_grad():
        logits = model(features)
    calibration = evicp.calibrate(logits[:400], labels[:400], score, by=by)
    expected = calibration.predict(logits, 0.8).mask()
    output = SetPredictor(model, calibration, 0.8).eval()(features)
    origin, how = calibration.origin, (score, 6, Arithmetic.of("graph", "float64", "float32"))
    loosest = origin.raised(origin.raised(calibration.label_thresholds(0.8), *how), *how)
    close = ~expected & (score.scores(logits) <= loosest)
    assert close.sum() <= 2
    np.testing.assert_array_equal(output.mask.numpy() & ~close, expected)
    np.testing.assert_array_equal(output.sizes.numpy(), output.mask.numpy().sum(1))
    evidence = score.evidence if isinstance(score, evicp.ECP) else "relu"
    np.testing.assert_allclose(output.uncertainty, evicp.opinion(logits, evidence).uncertainty, rtol=1e-6)


def test_state_dict_round_trip_and_refusal(problem, tmp_path):
    model, features, labels = problem
    model.eval()
    with torch.no_grad():
        logits = model(features)
    calibration = evicp.calibrate(logits[:300], labels[:300])
    other = evicp.calibrate(logits[300:], labels[300:])
    module = SetPredictor(model, calibration, 0.9)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    restored = SetPredictor(nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5)), other, 0.5).eval()
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(restored(features).mask, module.eval()(features).mask)
    wrong = SetPredictor(model, evicp.calibrate(logits, labels, "lac"), 0.9)
    with pytest.raises(evicp.EvicpError, match="this state belongs to"):
        wrong.load_state_dict(module.state_dict())


def test_casting_the_module_does_not_round_the_threshold(problem):
    model, features, labels = problem
    model.eval()
    with torch.no_grad():
        calibration = evicp.calibrate(model(features), labels)
    module = SetPredictor(nn.Identity(), calibration, 0.9).half()
    thresholds = module.threshold_bits.view(torch.float64)
    assert thresholds.shape == (4, 1)  # for each type of logits
    assert thresholds[0].item() == pytest.approx(calibration.threshold(0.9), abs=1e-5)
    assert thresholds.min() >= calibration.threshold(0.9)
    assert module.threshold_bits.dtype == torch.int64


@pytest.fixture
def served(problem):
    """A module that gives sets, and rows for it."""
    model, features, labels = problem
    model.eval()
    with torch.no_grad():
        calibration = evicp.calibrate(model(features), labels)
    return SetPredictor(model, calibration, 0.9).eval(), features


def test_compiled_graph_gives_the_same_sets(served):
    module, features = served
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(features).mask, module(features).mask)


@pytest.mark.parametrize("by", [None, "class"])
def test_logits_of_another_shape_are_refused(problem, by):
    _, features, labels = problem
    calibration = evicp.calibrate(features[:, :6], labels, by=by)
    module = SetPredictor(nn.Identity(), calibration, 0.9)
    for predictor in (module, torch.compile(module, backend="eager")):
        with pytest.raises(evicp.errors.LogitsError, match=r"must have 6 classes, as in the calibration; got 8\."):
            predictor(features)
        with pytest.raises(evicp.errors.LogitsError, match=r"shape \(rows, classes\); got 3 dimension"):
            predictor(features[:, :6].reshape(100, 6, 6))


def test_an_exported_graph_gives_the_same_sets(served):
    module, features = served
    exported = torch.export.export(module, (features,), dynamic_shapes={"args": ({0: torch.export.Dim("rows")},)})
    torch.testing.assert_close(exported.module()(features[:7]).mask, module(features[:7]).mask)


def test_unusable_rows_get_the_full_set(problem):
    model, features, labels = problem
    model.eval()
    with torch.no_grad():
        calibration = evicp.calibrate(model(features), labels)
    z = torch.zeros(5, 6, dtype=torch.float64)
    z[0, 1], z[1, 1], z[2, :] = math.nan, math.inf, -math.inf
    z[3, 0] = 1e305  # beyond what the library scores
    z[4, 0] = 5.0
    output = SetPredictor(nn.Identity(), calibration, 0.5)(z)
    assert output.mask[:4].all()
    assert not output.mask[4].all()
    np.testing.assert_array_equal(output.uncertainty[:4], 1.0)


def test_calibrations_a_module_cannot_serve(problem):
    model, features, labels = problem
    model.eval()
    with torch.no_grad():
        logits = model(features)
    with pytest.raises(evicp.EvicpError, match="depend on the row"):
        SetPredictor(model, evicp.calibrate(logits, labels, by=labels % 2), 0.9)
    with pytest.raises(evicp.EvicpError, match="no torch form"):
        SetPredictor(model, evicp.calibrate(logits, labels, lambda z: -z), 0.9)


# ---------------------------------------------------------------------------------------------------------------
# Losses


def _reference(alpha, label, kind):
    """The losses of Sensoy et al. (2018) from their definitions, by scipy."""
    from scipy.special import digamma, gammaln

    strength, truth = alpha.sum(), np.eye(len(alpha))[label]
    p = alpha / strength
    loss = {
        "likelihood": np.log(strength) - np.log(alpha[label]),
        "cross_entropy": digamma(strength) - digamma(alpha[label]),
        "squared_error": ((truth - p) ** 2 + p * (1 - p) / (strength + 1)).sum(),
    }[kind]
    wrong = np.where(truth == 1, 1.0, alpha)
    total = wrong.sum()
    divergence = gammaln(total) - gammaln(wrong).sum() - gammaln(len(alpha))
    return loss, divergence + ((wrong - 1) * (digamma(wrong) - digamma(total))).sum()


@pytest.mark.parametrize("kind", ["likelihood", "cross_entropy", "squared_error"])
@pytest.mark.parametrize("evidence", ["relu", "softplus", "exp"])
def test_losses_against_their_definitions(kind, evidence):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(20, 5)) * 3, rng.integers(0, 5, 20)
    alpha = evicp.opinion(logits, evidence).alpha
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    for annealing in (0.0, 0.3, 1.0):
        expected = [
            sum(w * t for w, t in zip((1, annealing), _reference(a, k, kind), strict=True))
            for a, k in zip(alpha, labels, strict=True)
        ]
        options = {"evidence": evidence, "annealing": annealing}
        np.testing.assert_allclose(evidential_loss(z, y, kind, reduction="none", **options), expected, rtol=1e-9)
        np.testing.assert_allclose(evidential_loss(z, y, kind, **options), np.mean(expected), rtol=1e-9)
        np.testing.assert_allclose(evidential_loss(z, y, kind, reduction="sum", **options), np.sum(expected), rtol=1e-9)


def test_the_divergence_is_that_of_the_dirichlets():
    """The KL term against a Monte Carlo estimate from torch's own Dirichlet."""
    z, y = torch.tensor([[0.0, 3.0, 1.0]], dtype=torch.float64), torch.tensor([0])
    term = evidential_loss(z, y, annealing=1.0) - evidential_loss(z, y, annealing=0.0)
    wrong = torch.distributions.Dirichlet(torch.tensor([1.0, 4.0, 2.0], dtype=torch.float64))
    flat = torch.distributions.Dirichlet(torch.ones(3, dtype=torch.float64))
    assert term.item() == pytest.approx(torch.distributions.kl_divergence(wrong, flat).item(), rel=1e-9)


@pytest.mark.parametrize("kind", ["likelihood", "cross_entropy", "squared_error"])
def test_training_raises_evidence_for_the_right_class(problem, kind):
    _, features, labels = problem
    torch.manual_seed(0)
    network = nn.Linear(8, 6)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.1)
    for epoch in range(60):
        optimiser.zero_grad()
        loss = evidential_loss(network(features), labels, kind, evidence="softplus", annealing=min(1.0, epoch / 10))
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        opinion = evicp.opinion(network(features), "softplus")
    assert (opinion.probability.argmax(1) == labels.numpy()).mean() > 0.8
    assert opinion.uncertainty.mean() < 0.9


def test_bad_loss_arguments():
    z, y = torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(evicp.EvicpError, match="evidence must be"):
        evidential_loss(z, y, evidence="tanh")
    with pytest.raises(evicp.EvicpError, match="kind must be"):
        evidential_loss(z, y, "hinge")
    with pytest.raises(evicp.EvicpError, match="reduction must be"):
        evidential_loss(z, y, reduction="average")


def test_hugging_face_pipeline(torchvision):
    transformers = pytest.importorskip("transformers")
    rng = np.random.default_rng(0)
    words = ["good", "bad", "fine", "poor", "[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = transformers.BertTokenizerFast(vocab=vocabulary)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
        id2label={0: "negative", 1: "neutral", 2: "positive"},
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device=-1)
    texts = [" ".join(rng.choice(words[:4], 5)) for _ in range(40)]
    logits, names = pipeline_logits(pipe, texts)
    with torch.no_grad():
        expected = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    calibration = evicp.calibrate(logits, rng.integers(0, 3, 40), "lac", class_names=names)
    assert set(calibration.predict(logits, 0.9).names(0)) <= {"negative", "neutral", "positive"}
    assert pipeline_logits(pipe, texts[0])[0].shape == (1, 3)
    from transformers.pipelines.pt_utils import KeyDataset

    table = pytest.importorskip("datasets").Dataset.from_dict({"text": texts[:5]})
    for given in (iter(texts[:5]), (text for text in texts[:5]), KeyDataset(table, "text")):
        np.testing.assert_allclose(pipeline_logits(pipe, given)[0], expected[:5], atol=1e-5)


class Pipeline:
    """Answers as a classification pipeline does: a score for each name."""

    def __init__(self, names, rows):
        self.model = SimpleNamespace(config=SimpleNamespace(id2label=dict(enumerate(names))))
        self.rows = rows

    def __call__(self, inputs, **options):
        return [[{"label": label, "score": score} for label, score in row.items()] for row in self.rows[: len(inputs)]]


def test_a_pipeline_with_repeated_names_is_refused():
    with pytest.raises(evicp.EvicpError, match="'other' for more than one"):
        pipeline_logits(Pipeline(["other", "cat", "other"], []), ["text"])


def test_a_name_the_pipeline_leaves_out_has_no_logit():
    logits, _ = pipeline_logits(Pipeline(["cat", "dog"], [{"dog": 2.0}]), ["text"])
    np.testing.assert_array_equal(logits, [[np.nan, 2.0]])
