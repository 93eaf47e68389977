"""The interface of networks for extraction."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError, InputTypeError, LogitsError, need
from evicp.extraction.images import PAPER, Preprocess
from evicp.extraction.sources import Modality, Source
from evicp.extraction.storage import UNKNOWN

#: "weights": the network's own; "paper": the ECP authors'; a Preprocess; changes to the network's own; a function.
Transform = str | Preprocess | Mapping[str, Any] | Callable[[Any], Any]


#: What a repr may have that differs from run to run.
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Prompting:
    """How a language or vision-language model is asked.

    Parameters
    ----------
    scoring : "letters": the logits of the choices' letters; "options": the mean log-probability of each choice's tokens
    prompt : the text before the answer
        {question}, {choices} (a line for each) and other columns in braces are filled in. By default question, choices
        where letters are scored, and "Answer:". For a vision-language model texts with {class}, one per line, whose
        embeddings are averaged; by default "a photo of a {class}.".
    """

    scoring: Literal["letters", "options"] = "letters"
    prompt: str | None = None

    def __post_init__(self) -> None:
        if self.scoring not in ("letters", "options"):
            raise InputError(f"scoring must be 'letters' or 'options'; got {self.scoring!r}.")


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """A classifier with its preprocessing and the settings that identify it.

    Parameters
    ----------
    name : str
        For messages and manifests.
    n_classes : int
        K.
    prepare : function of an image or a text
        Gives one input; called from several threads.
    logits : function of a list of inputs
        Gives their logits, (batch, K) float32.
    settings : mapping of JSON values
        Everything that its logits depend on; a later run compares it.
    modality : "image", "text" or "question"
    class_names : K names, where they are known
    masks : whether rows may have classes that are impossible, with the logit -inf
    for_source : function of a source and of class names given by the user (or None), optional
        For a network whose classes or labels come from its data: gives the network and the source to be used.
    """

    name: str
    n_classes: int
    prepare: Callable[[Any], Any]
    logits: Callable[[list[Any]], NDArray[np.float32]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    modality: Modality = "image"
    class_names: tuple[str, ...] | None = None
    masks: bool = False
    for_source: Callable[[Source, Any], tuple[Network, Source]] | None = None

    def __repr__(self) -> str:
        return f"Network({self.name}, {self.n_classes:,} classes)"


def choose_transform(
    wanted: Transform, own: Preprocess | Callable[[Any], Any] | None, own_described: Any = None
) -> tuple[Callable[[Any], Any], Any]:
    """The transform to use and its description as JSON values; what a function does is unknown.

    Parameters
    ----------
    wanted : see `Transform`
    own : the network's own, where it has one
    own_described : its description as a JSON value, where it is a function
    """
    if isinstance(wanted, str):
        if wanted not in ("weights", "paper"):
            raise InputError(f"transform must be 'weights' or 'paper'; got {wanted!r}.")
        chosen: Any = PAPER if wanted == "paper" else own
        if chosen is None:
            raise InputError(
                "this network does not state its preprocessing. Give transform='paper' (resize to 256, crop "
                "224, ImageNet's mean and deviation) or a Preprocess (--size, --resize, --mean, --std)."
            )
    elif isinstance(wanted, Mapping):
        if own is not None and not isinstance(own, Preprocess):
            raise InputError("this network has its own transform, which cannot be changed in part.")
        chosen = (own or PAPER).changed(wanted)
    elif callable(wanted):
        chosen = wanted
    else:
        raise InputTypeError(f"transform must be a name, a Preprocess, a mapping or a function; got {wanted!r}.")
    if isinstance(chosen, Preprocess):
        return chosen, asdict(chosen)
    if own_described is not None and wanted == "weights":
        return chosen, own_described
    return chosen, {"name": _ADDRESS.sub("", repr(chosen)), "code": UNKNOWN}


def probe_classes(name: str, prepare: Callable[[Any], Any], logits: Callable[[list[Any]], NDArray[np.float32]]) -> int:
    """K, from a blank image: also an early end for a network that does not fit its transform."""
    image = need("PIL.Image", "pillow", "extract", "reading images").new("RGB", (256, 256))
    try:
        result = logits([prepare(image)])
    except Exception as error:  # a network may raise anything at all
        raise InputError(f"{name} cannot be run on images with this transform: {error}") from error
    if result.ndim != 2 or len(result) != 1 or result.shape[1] < 2:
        raise LogitsError(f"{name} must give logits of shape (batch, classes); got {result.shape} for one image.")
    return int(result.shape[1])
