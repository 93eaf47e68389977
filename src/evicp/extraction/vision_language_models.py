"""Zero-shot classifiers: vision-language models such as CLIP and SigLIP, with a text for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError
from evicp.extraction.classes import imagenet_names, is_synset
from evicp.extraction.network import Network, Prompting
from evicp.extraction.sources import Source
from evicp.extraction.torch_modules import Device, import_torch, parameters_digest
from evicp.input.classes import as_class_names

#: The texts for a class where the user gives none: one per line, whose embeddings are averaged.
PHOTO = "a photo of a {class}."


def vision_language_network(
    name: str, module: Any, processor: Any, tokenizer: Any, described: Any, device: Device, prompting: Prompting
) -> Network:
    """A model that compares images with texts as a network, which gets its classes with the data.

    Parameters
    ----------
    described : what tells its processor and tokenizer from others
    """
    if not all(hasattr(module, part) for part in ("logit_scale", "get_image_features", "get_text_features")):
        raise InputError(f"{name} is no vision-language model of the kind of CLIP or SigLIP: it has no logit_scale.")
    digest, module = parameters_digest(module), device.place(module)
    templates = (prompting.prompt or PHOTO).strip().splitlines()
    if not all("{class}" in template for template in templates):
        raise InputError('each line of the prompt must contain {class}, such as "a photo of a {class}."')

    def prepare(image: Any) -> Any:
        return processor(image.convert("RGB"), return_tensors="pt")["pixel_values"][0]

    def for_source(source: Source, class_names: Any) -> tuple[Network, Source]:
        names = _names(source, class_names)
        with device.inference():
            texts = _text_embeddings(module, tokenizer, names, templates, device)
        logits = partial(_logits, module, texts, device)
        return replace(network, n_classes=len(names), class_names=names, logits=logits, for_source=None), source

    network = Network(
        name=f"huggingface:{Path(name).name}",
        n_classes=0,
        prepare=prepare,
        logits=partial(_logits, module, None, device),
        settings={"parameters": digest, "prompts": templates, **described, **device.settings()},
        for_source=for_source,
    )
    return network


def _logits(module: Any, texts: Any, device: Device, images: list[Any]) -> NDArray[np.float32]:
    """The model's own logits: the cosine of each image and text, times its scale; SigLIP adds a bias."""
    if texts is None:
        raise InputError("a vision-language model has no classes before it meets a source; see Network.for_source.")
    with device.inference():
        pixels = import_torch().stack(images).to(device.name)
        similarity = _unit(module.get_image_features(pixel_values=pixels)).float() @ texts.T
        scaled = similarity * module.logit_scale.float().exp() + getattr(module, "logit_bias", 0.0)
    found: NDArray[np.float32] = scaled.float().cpu().numpy()
    return found


def _names(source: Source, class_names: Any) -> tuple[str, ...]:
    """The classes: those the user names, or the source's own; ImageNet's where these are its synsets."""
    if class_names is not None:
        given = class_names if hasattr(class_names, "__len__") else tuple(class_names)
        return as_class_names(given, len(given)) or ()
    own = source.class_names
    if own is None:
        raise InputError(
            f"a vision-language model needs names of classes; {source.location} has none. Give class_names "
            "(--class-names FILE, one per line), in the order of the labels' numbers."
        )
    return imagenet_names() if all(map(is_synset, own)) else own


def _text_embeddings(
    module: Any, tokenizer: Any, names: Sequence[str], templates: Sequence[str], device: Device, at_once: int = 256
) -> Any:
    """The embedding of each class, (K, d) of length 1: the mean of those of its texts."""
    torch = import_torch()
    # SigLIP was trained on texts of full length; others leave out what is behind the end of a text.
    padding = "max_length" if str(module.config.model_type).startswith("siglip") else True
    longest = module.config.text_config.max_position_embeddings
    total: Any = 0.0
    for template in templates:
        texts = [template.replace("{class}", name.replace("_", " ")) for name in names]
        parts = []
        for start in range(0, len(texts), at_once):
            batch = tokenizer(
                texts[start : start + at_once],
                padding=padding,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            )
            parts.append(_unit(module.get_text_features(**batch.to(device.name))).float())
        total = total + torch.cat(parts)
    return _unit(total)


def _unit(features: Any) -> Any:
    """Embeddings of length 1; what gives them returns a tensor, or an object with `pooler_output`."""
    found = getattr(features, "pooler_output", features)
    return found / found.norm(dim=-1, keepdim=True)
