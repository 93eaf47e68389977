"""Any torch module as a network: device, precision, weights from disk, and a digest to recognise it by."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import FileError, InputError, need
from evicp.extraction.images import Preprocess
from evicp.extraction.network import Network, Transform, choose_transform, probe_classes
from evicp.io import torch_archive
from evicp.io.paths import readable, unreadable

PRECISIONS = ("auto", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Device:
    """Where torch runs and in which precision."""

    name: str
    precision: str

    def settings(self) -> dict[str, str]:
        """What logits depend on: the kind of device, not its number."""
        return {"device": self.name.split(":")[0], "precision": self.precision}

    def place(self, module: Any) -> Any:
        """A module ready to be run here; channels last is how tensor cores like their images."""
        torch = import_torch()
        module = module.eval().to(self.name)
        return module.to(memory_format=torch.channels_last) if self.name.startswith("cuda") else module

    @contextlib.contextmanager
    def inference(self) -> Any:
        """No gradients; mixed precision where it was chosen."""
        torch = import_torch()
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.precision != "float32":
                kind = torch.device(self.name).type
                stack.enter_context(torch.autocast(kind, dtype=getattr(torch, self.precision)))
            yield


def import_torch(extra: str = "extract") -> Any:
    """Torch, or how to install it; one that reads files of weights without running what is in them."""
    torch = need("torch", "torch", extra, "running a network")
    torch_archive.require_version(torch)
    return torch


def open_device(device: str = "auto", precision: str = "auto") -> Device:
    """A device that is there: "auto" takes a GPU if there is one. "auto" precision is mixed (float16) on a GPU only."""
    torch = import_torch()
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__
        raise InputError(f"device {device!r} cannot be used: {reason}. Use cpu or auto.") from error
    if precision == "auto":
        precision = "float16" if device.startswith("cuda") else "float32"
    return Device(device, precision)


def module_network(
    name: str,
    module: Any,
    device: Device,
    *,
    transform: Transform,
    own: Preprocess | Callable[[Any], Any] | None,
    own_described: Any = None,
    n_classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
    settings: Mapping[str, Any],
) -> Network:
    """A torch module on images as a network.

    Parameters
    ----------
    transform, own, own_described : see `choose_transform`
    n_classes : K; found by running a blank image where it is None
    settings : what else its logits depend on
    """
    prepare, described = choose_transform(transform, own, own_described)
    digest = parameters_digest(module)
    module = device.place(module)

    def logits(examples: list[Any]) -> NDArray[np.float32]:
        torch = import_torch()
        batch = torch.stack([torch.as_tensor(example) for example in examples]).to(device.name)
        with device.inference():
            return to_logits(module(batch))

    if n_classes is None:
        n_classes = probe_classes(name, prepare, logits)
    return Network(
        name=name,
        n_classes=n_classes,
        prepare=prepare,
        logits=logits,
        settings={**settings, "parameters": digest, "transform": described, **device.settings()},
        class_names=class_names if class_names is None or len(class_names) == n_classes else None,
    )


def to_logits(output: Any) -> NDArray[np.float32]:
    """The logits in what a module returns: a tensor, something with `logits`, or a tuple that begins with them."""
    from evicp.torch import logits_of

    array: NDArray[np.float32] = logits_of(output).float().cpu().numpy()
    return array


# ---------------------------------------------------------------------------------------------------------------
# Weights


def load_weights(module: Any, path: Path, *, installed: bool = False) -> None:
    """Load a state dict from disk without executing anything in it.

    Parameters
    ----------
    module : a network of the same architecture
    path : safetensors, or what torch.save writes
    installed : whether the file came with an installed package: it may then have torch's old format
    """
    import_torch()
    readable(path)
    try:
        if path.suffix == ".safetensors":
            state = need("safetensors.torch", "safetensors", "extract", "weights").load_file(path)
        else:
            state = torch_archive.load_tensors(path, "extract", old=installed)
    except FileError as error:
        raise unreadable(path, error) from error
    except Exception as error:  # whatever the parser raises on a malformed file becomes one typed error
        raise FileError(f"cannot read {path}: it is not a file of plain weights ({_first_line(error)}).") from error
    try:
        module.load_state_dict(_plain_state(state))
    except (RuntimeError, AttributeError, TypeError) as error:
        raise FileError(f"the weights in {path} are not of this network: {_first_line(error, 3)}") from error


def _plain_state(state: Any) -> dict[str, Any]:
    """A state dict as modules name it today: unwrapped, without DataParallel's prefix and DenseNet's old names."""
    for key in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    old = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12])\.")
    return {old.sub(r"\1\2.", name.removeprefix("module.")): value for name, value in state.items()}


def _first_line(error: Exception, lines: int = 1) -> str:
    return " ".join(str(error).split("\n")[:lines])[:300]


def parameters_digest(module: Any) -> str:
    """SHA-256 over a module's parameters and buffers."""
    torch = import_torch()
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@contextlib.contextmanager
def plain_weights() -> Iterator[None]:
    """Have torch read files of weights without running what is in them, whatever the packages between ask for."""
    switches = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")  # torch refuses both at once
    before = {switch: os.environ.pop(switch) for switch in switches if switch in os.environ}
    os.environ[switches[0]] = "1"
    try:
        yield
    finally:
        del os.environ[switches[0]]
        os.environ.update(before)


@contextlib.contextmanager
def seeded(seed: int = 0) -> Any:
    """Random weights that are the same in every run; the caller's generator is left as it was."""
    torch = import_torch()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
