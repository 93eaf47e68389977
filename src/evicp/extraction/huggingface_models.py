"""Hugging Face models, from a folder or from the hub: classifiers, causal language and vision-language models."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError, InputError, need
from evicp.extraction.language_models import language_network
from evicp.extraction.network import Network, Prompting, Transform
from evicp.extraction.torch_modules import (
    Device,
    import_torch,
    module_network,
    parameters_digest,
    plain_weights,
    to_logits,
)
from evicp.extraction.vision_language_models import vision_language_network
from evicp.input.classes import as_class_names
from evicp.io.paths import open_file
from evicp.io.torch_archive import require_plain


def huggingface_network(name: str, weights: str, transform: Transform, device: Device, prompting: Prompting) -> Network:
    """A model with its image processor or tokenizer.

    Parameters
    ----------
    name : a folder written with `save_pretrained`, or a model's name on the hub
    weights : "default"; there are no others
    prompting : how a language model is asked
    """
    if weights != "default":
        raise InputError(f"a Hugging Face model has its own weights; got weights {weights!r}.")
    transformers = need("transformers", "transformers", "huggingface", "a Hugging Face network")
    import_torch()
    local = {"local_files_only": Path(name).is_dir()}
    config = _loaded(name, transformers.AutoConfig, local)
    kind = (config.architectures or [""])[0]
    if kind.endswith("ForImageClassification"):
        return _image_network(transformers, name, config, transform, device, local)
    if kind.endswith("ForSequenceClassification"):
        return _text_network(transformers, name, config, transform, device, local)
    if kind.endswith(("ForCausalLM", "LMHeadModel")):
        return _language_network(transformers, name, transform, device, prompting, local)
    if kind.endswith("Model") and hasattr(config, "text_config") and hasattr(config, "vision_config"):
        return _vision_language_network(transformers, name, transform, device, prompting, local)
    raise InputError(
        f"{name} must be an image or text classifier, a causal language model or a vision-language model; its "
        f"architecture is {kind or 'not named'}."
    )


def _loaded(name: str, auto: Any, local: dict[str, bool]) -> Any:
    """What one of transformers' Auto classes finds under a name."""
    _refuse_programs(name)
    try:
        with plain_weights():
            return auto.from_pretrained(name, **local)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot load {auto.__name__} from {name}: {str(error).splitlines()[0]}") from error


def _refuse_programs(name: str) -> None:
    """Look at a folder's own torch files before transformers hands them to torch."""
    for file in sorted(Path(name).glob("pytorch_model*.bin")):
        with open_file(file) as opened:
            try:
                require_plain(opened)
            except FileError as error:
                raise FileError(f"cannot load {file}: {error}") from error


def _class_names(config: Any) -> tuple[str, ...] | None:
    """The model's names for its classes, unless they are the placeholders LABEL_0, LABEL_1, ..."""
    names = as_class_names(config.id2label, config.num_labels) or ()
    return None if all(name == f"LABEL_{i}" for i, name in enumerate(names)) else names


def _image_network(
    transformers: Any, name: str, config: Any, transform: Transform, device: Device, local: dict[str, bool]
) -> Network:
    processor = _loaded(name, transformers.AutoImageProcessor, local)

    def own(image: Any) -> Any:
        return processor(image.convert("RGB"), return_tensors="pt")["pixel_values"][0]

    return module_network(
        f"huggingface:{Path(name).name}",
        _loaded(name, transformers.AutoModelForImageClassification, local),
        device,
        transform=transform,
        own=own,
        own_described="processor",
        n_classes=config.num_labels,
        class_names=_class_names(config),
        settings={"processor": _plain(processor.to_dict())},
    )


def _plain(value: Any) -> Any:
    """A processor's settings as JSON values."""
    return json.loads(json.dumps(value, default=str, sort_keys=True))


def _text_network(
    transformers: Any, name: str, config: Any, transform: Transform, device: Device, local: dict[str, bool]
) -> Network:
    if transform != "weights":
        raise InputError("a text classifier uses its own tokenizer; leave transform at its default.")
    tokenizer = _loaded(name, transformers.AutoTokenizer, local)
    module = _loaded(name, transformers.AutoModelForSequenceClassification, local)
    digest = parameters_digest(module)
    module = device.place(module)
    longest = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", 512))

    def logits(texts: list[Any]) -> NDArray[np.float32]:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
        batch = batch.to(device.name)
        with device.inference():
            return to_logits(module(**batch))

    return Network(
        name=f"huggingface:{Path(name).name}",
        n_classes=config.num_labels,
        prepare=str,
        logits=logits,
        settings={
            "parameters": digest,
            "tokenizer": _vocabulary_digest(tokenizer),
            "longest": longest,
            **device.settings(),
        },
        modality="text",
        class_names=_class_names(config),
    )


def _language_network(
    transformers: Any, name: str, transform: Transform, device: Device, prompting: Prompting, local: dict[str, bool]
) -> Network:
    if transform != "weights":
        raise InputError("a language model is fed by its own tokenizer; leave transform as it is.")
    tokenizer = _loaded(name, transformers.AutoTokenizer, local)
    module = _loaded(name, transformers.AutoModelForCausalLM, local)
    return language_network(name, module, tokenizer, _vocabulary_digest(tokenizer), device, prompting)


def _vision_language_network(
    transformers: Any, name: str, transform: Transform, device: Device, prompting: Prompting, local: dict[str, bool]
) -> Network:
    if transform != "weights":
        raise InputError("a vision-language model brings its own image processor; leave transform as it is.")
    processor = _loaded(name, transformers.AutoImageProcessor, local)
    tokenizer = _loaded(name, transformers.AutoTokenizer, local)
    module = _loaded(name, transformers.AutoModelForZeroShotImageClassification, local)
    described = {"processor": _plain(processor.to_dict()), "tokenizer": _vocabulary_digest(tokenizer)}
    return vision_language_network(name, module, processor, tokenizer, described, device, prompting)


def _vocabulary_digest(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer's vocabulary."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
