"""The peers' released versions, loaded for measuring, or the reason why one cannot be.

TorchCP imports torchsort, torch_geometric and transformers at the top although its conformal classification needs
none of them; empty stand-ins are supplied so that the scores themselves run as released.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

_STANDINS = ("torchsort", "torch_geometric", "transformers")


class _StandIn(types.ModuleType):
    """A module that has any attribute: a class without behaviour."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.split(".", maxsplit=1)[0] in _STANDINS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def load(name: str) -> tuple[Any, str | None]:
    """(module, None), or (None, why not)."""
    if name.split(".", maxsplit=1)[0] == "torchcp" and not any(
        isinstance(finder, _StandInFinder) for finder in sys.meta_path
    ):
        sys.meta_path.append(_StandInFinder())
    try:
        return importlib.import_module(name), None
    except Exception as error:  # a peer that fails to import is reported, whatever it raises
        return None, f"{type(error).__name__}: {error}"


def load_or_raise(name: str) -> Any:
    """The module; ImportError with the reason where it cannot be loaded."""
    module, reason = load(name)
    if reason:
        raise ImportError(reason)
    return module


def tensor(array: Any) -> Any:
    """The array as a torch tensor without a copy; itself where torch is missing."""
    torch, _ = load("torch")
    return array if torch is None else torch.from_numpy(array)


Work = dict[str, Callable[[], Any]]


def torchcp(logits: Any, labels: Any) -> tuple[Work, Work, dict[str, str]]:
    """TorchCP's calibration scores and its prediction at coverage 0.9, on tensors of any device; or why not."""
    scores, reason = load("torchcp.classification.score")
    if scores is None:
        return {}, {}, {"TorchCP": str(reason)}
    predictor, _ = load("torchcp.classification.predictor")
    calibration: Work = {}
    prediction: Work = {}
    for name, score in {"LAC": scores.LAC(), "APS": scores.APS(), "RAPS": scores.RAPS(penalty=0.1, kreg=5)}.items():
        split = predictor.SplitPredictor(score, alpha=0.1, device=logits.device)
        split.calculate_threshold(logits[:5000], labels[:5000])
        calibration[f"TorchCP {name}"] = lambda score=score: score(logits, labels)
        prediction[f"TorchCP {name}"] = lambda split=split: split.predict_with_logits(logits)
    return calibration, prediction, {}
