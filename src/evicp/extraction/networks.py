"""Open a network by name, file or module."""

from __future__ import annotations

import re
from copy import deepcopy
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from evicp.errors import InputError
from evicp.extraction.huggingface_models import huggingface_network
from evicp.extraction.network import Network, Prompting, Transform
from evicp.extraction.onnx_models import onnx_network
from evicp.extraction.torch_models import (
    factory_network,
    given_network,
    import_torchvision,
    lite_network,
    timm_network,
    torchvision_network,
)
from evicp.extraction.torch_modules import import_torch, open_device

_LITE = re.compile("efficientnet-lite[0-4]")
_BUILDERS = {"torchvision": torchvision_network, "timm": timm_network, "huggingface": huggingface_network}


def open_network(
    network: Any,
    *,
    weights: str | PathLike[str] | None = "default",
    transform: Transform = "weights",
    device: str = "auto",
    precision: str = "auto",
    prompting: Prompting | None = None,
) -> Network:
    """A network by name, from a file or folder, or from a torch module.

    Parameters
    ----------
    network : str, path, torch module or Network
        A torchvision name such as "resnet152" (also "torchvision:resnet152"), a timm name ("timm:convnext_tiny"),
        "efficientnet-lite0" to "efficientnet-lite4", a path to an ONNX file, a folder of a Hugging Face model (or
        "huggingface:name" for one on the hub), or "package.module:function".
    weights : "default", "none" (random), a set's name (torchvision), or a file of weights
    transform : "weights", "paper", Preprocess, mapping or function
        The network's own; resize 256 and crop 224; changes to the network's own; or a function of a Pillow image.
    device : "auto", "cpu", "cuda", "cuda:1", "mps"
    precision : "auto" (mixed on a GPU, float32 elsewhere), "float32", "float16", "bfloat16"
    prompting : how a causal language model is asked
    """
    if isinstance(network, Network):
        return network
    weights = "none" if weights is None else str(weights)
    if not isinstance(network, str | PathLike):
        where = open_device(device, precision)
        # A copy, since it will be switched to evaluation and moved: the caller may be training it.
        return given_network(type(network).__name__, deepcopy(network), None, weights, transform, where)
    if str(network).endswith(".onnx"):
        return _open_onnx(Path(network), weights, transform, device, precision)
    return _open_named(str(network), weights, transform, (device, precision), prompting or Prompting())


def _open_named(
    network: str, weights: str, transform: Transform, device: tuple[str, str], prompting: Prompting
) -> Network:
    """A network by name, or from a folder."""
    prefix, _, rest = network.partition(":")
    if Path(network).is_dir():
        prefix, rest = "huggingface", network
    import_torch(_extra_of(prefix))
    where = open_device(*device)
    build: Any = _BUILDERS.get(prefix, factory_network)
    if not rest:
        rest, build = prefix, lite_network if _LITE.fullmatch(prefix) else _by_plain_name(prefix)
    if build is huggingface_network:
        return huggingface_network(rest, weights, transform, where, prompting)
    opened: Network = build(rest if build is not factory_network else network, weights, transform, where)
    return opened


def _extra_of(prefix: str) -> str:
    """The extra that brings torch and whatever else such a network needs."""
    if prefix == "huggingface":
        return prefix
    return "efficientnet-lite" if _LITE.fullmatch(prefix) else "extract"


def _open_onnx(path: Path, weights: str, transform: Transform, device: str, precision: str) -> Network:
    if weights != "default" or device not in ("auto", "cpu") or precision not in ("auto", "float32"):
        raise InputError("an ONNX file has its own weights and precision and runs on the CPU; drop those options.")
    return onnx_network(path, transform)


def _by_plain_name(name: str) -> Any:
    """torchvision where it knows the name, timm where only that does."""
    if find_spec("torchvision") is None or find_spec("timm") is None:
        return torchvision_network
    torchvision = import_torchvision()
    import timm

    unknown = name not in torchvision.models.list_models(module=torchvision.models)
    return timm_network if unknown and timm.is_model(name.split(".", maxsplit=1)[0]) else torchvision_network
