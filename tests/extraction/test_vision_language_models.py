"""Zero-shot classifiers of Hugging Face, tiny ones made here: against the model's own logits of images and texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evicp.errors import InputError
from evicp.extraction import Prompting, extract, open_network

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("one_thread", "torchvision")

WORDS = ["a", "photo", "of", "drawing", ".", "cat", "dog", "red", "fox"]
NAMES = ["cat", "dog", "red_fox"]


def save_model(folder: Path, kind: str) -> Path:
    """A model of one layer for images and one for texts, its tokenizer and its image processor."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[EOS]", *WORDS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    ending = tokenizers.processors.TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", 2)])
    made.post_processor = ending
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**size, "vocab_size": len(vocabulary), "max_position_embeddings": 12, "eos_token_id": 2, "pad_token_id": 0}
    vision = {**size, "image_size": 32, "patch_size": 16}
    torch.manual_seed(0)
    if kind == "clip":
        config = transformers.CLIPConfig(
            text_config={**text, "bos_token_id": 1}, vision_config=vision, projection_dim=8
        )
        transformers.CLIPModel(config).save_pretrained(folder)
        transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32).save_pretrained(folder)
    else:
        config = transformers.SiglipConfig(text_config=text, vision_config=vision)
        transformers.SiglipModel(config).save_pretrained(folder)
        transformers.SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture
def images(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(5):
        folder = tmp_path / "images" / NAMES[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((50, 40), 0).save(folder / f"{i}.png")
    return tmp_path / "images"


def own_logits(folder: Path, files: list[Path], texts: list[str]) -> np.ndarray:
    """What the model itself says of images and texts given together."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForZeroShotImageClassification.from_pretrained(folder).eval()
    padding = {"padding": "max_length", "max_length": 12} if model.config.model_type == "siglip" else {"padding": True}
    pixels = processor([Image.open(file).convert("RGB") for file in files], return_tensors="pt")
    with torch.inference_mode():
        return model(**tokenizer(texts, return_tensors="pt", **padding), **pixels).logits_per_image.numpy()


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_zero_shot_logits_are_the_models_own(images, tmp_path, kind):
    folder = save_model(tmp_path / kind, kind)
    result = extract(str(folder), images, tmp_path / "a.npz", batch_size=2)
    texts = [f"a photo of a {name.replace('_', ' ')}." for name in NAMES]
    with np.load(tmp_path / "a.npz") as arrays:
        files = [images / name for name in arrays["inputs"].tolist()]
        assert arrays["class_names"].tolist() == NAMES
        assert arrays["labels"].tolist() == [NAMES.index(file.parent.name) for file in files]
        np.testing.assert_allclose(arrays["logits"], own_logits(folder, files, texts), rtol=1e-4, atol=1e-4)
    assert result.n_classes == 3


def test_texts_and_classes_of_ones_own(images, tmp_path):
    folder = save_model(tmp_path / "clip", "clip")
    names = ["dog", "red_fox", "cat", "photo"]
    prompting = Prompting(prompt="a drawing of a {class}.")
    extract(str(folder), images, tmp_path / "a.npz", class_names=names, prompting=prompting)
    with np.load(tmp_path / "a.npz") as arrays:
        files = [images / name for name in arrays["inputs"].tolist()]
        texts = [f"a drawing of a {name.replace('_', ' ')}." for name in names]
        np.testing.assert_allclose(arrays["logits"], own_logits(folder, files, texts), rtol=1e-4, atol=1e-4)
        assert arrays["labels"].tolist() == [names.index(file.parent.name) for file in files]
    both = Prompting(prompt="a photo of a {class}.\na drawing of a {class}.")
    extract(str(folder), images, tmp_path / "b.npz", class_names=names, prompting=both)
    assert np.abs(np.load(tmp_path / "b.npz")["logits"] - np.load(tmp_path / "a.npz")["logits"]).max() > 1e-4
    with pytest.raises(InputError, match=r"each line of the prompt must contain \{class\}"):
        open_network(str(folder), prompting=Prompting(prompt="a photo"))
    flat = tmp_path / "flat"
    flat.mkdir()
    files[0].rename(flat / "a.png")
    with pytest.raises(InputError, match=r"needs names of classes; .*flat has none"):
        extract(str(folder), flat, tmp_path / "c.npz")
