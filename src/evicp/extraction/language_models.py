"""Causal language models: logits of answers to multiple-choice questions, and of the next token of texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evicp.errors import InputError
from evicp.extraction.network import Network, Prompting
from evicp.extraction.questions import PROMPTS, Question, letters
from evicp.extraction.sources import Source
from evicp.extraction.torch_modules import Device, import_torch, parameters_digest
from evicp.types import I64

#: The tokens of a context and of each continuation that is scored; of answers given by a letter and of next tokens the
#: continuation is empty.
Sequences = list[tuple[list[int], list[int]]]


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model with its tokenizer.

    Parameters
    ----------
    module, tokenizer : of transformers
    device : where it runs
    longest : how many tokens it takes
    prompting : how questions are asked
    """

    module: Any
    tokenizer: Any
    device: Device
    longest: int
    prompting: Prompting

    # -----------------------------------------------------------------------------------------------------------
    # Tokens

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, with whatever the tokenizer puts before it and nothing behind."""
        found = list(self.tokenizer(text)["input_ids"])
        return found[:-1] if found and found[-1] == self.tokenizer.eos_token_id and len(found) > 1 else found

    def continued(self, context: str, continuation: str) -> list[int]:
        """The tokens that a continuation adds to those of a context."""
        return self.tokens(context + continuation)[len(self.tokens(context)) :]

    def letter_tokens(self, n_choices: int) -> tuple[list[int], I64]:
        """What stands before every letter, and the token of each letter."""
        each = [self.continued("Answer:", f" {letter}") for letter in letters(n_choices)]
        *before, _ = each[0] or [0]
        last = [one[-1] for one in each if one]
        if any(one[:-1] != before for one in each) or len(set(last)) < n_choices:
            raise InputError(
                f"this tokenizer does not give each of the letters {', '.join(letters(n_choices))} a token of its own. "
                "Use Prompting('options') (--scoring options)."
            )
        return before, np.array(last, np.int64)

    def fitting(self, context: list[int], continuation: Sequence[int] = ()) -> list[int]:
        """A context that leaves room for a continuation; one that does not cannot be read."""
        if len(context) + len(continuation) > self.longest:
            raise ValueError(
                f"{len(context) + len(continuation):,} tokens, more than the {self.longest:,} that the model takes"
            )
        return context

    # -----------------------------------------------------------------------------------------------------------
    # Logits

    def last_logits(self, contexts: list[list[int]], count: int = 1) -> Any:
        """The logits at the last positions of each context, (n, count, vocabulary): contexts are filled from the left.

        Only these positions are multiplied by the vocabulary, where the model can leave out the others.
        """
        torch = import_torch()
        width = max(count, *map(len, contexts))
        ids = torch.zeros((len(contexts), width), dtype=torch.long)
        known = torch.zeros_like(ids)
        for row, context in enumerate(contexts):
            ids[row, width - len(context) :] = torch.tensor(context, dtype=torch.long)
            known[row, width - len(context) :] = 1
        inputs = {"input_ids": ids, "attention_mask": known}
        takes = inspect.signature(self.module.forward).parameters
        if "position_ids" in takes:
            inputs["position_ids"] = (known.cumsum(-1) - 1).clamp_min(0)
        inputs = {name: value.to(self.device.name) for name, value in inputs.items()}
        with self.device.inference():
            only = {"logits_to_keep": count} if "logits_to_keep" in takes else {}
            return self.module(**inputs, **only, use_cache=False).logits[:, -count:].float()

    def of_next(self, contexts: list[list[int]]) -> NDArray[np.float32]:
        """The logits of the token after each context."""
        found: NDArray[np.float32] = self.last_logits(contexts)[:, 0].cpu().numpy()
        return found

    def of_options(self, questions: list[Sequences], n_choices: int) -> NDArray[np.float32]:
        """The mean log-probability of each option's tokens, (questions, choices); -inf beyond a question's own."""
        torch = import_torch()
        means = np.full((len(questions), n_choices), -np.inf, np.float32)
        pairs = [(i, k, *pair) for i, options in enumerate(questions) for k, pair in enumerate(options)]
        for start in range(0, len(pairs), len(questions)):  # as many at once as there are inputs in a batch
            some = pairs[start : start + len(questions)]
            count = max(len(option) for *_, option in some)
            logits = self.last_logits([context + option[:-1] for *_, context, option in some], count)
            for row, (i, k, _, option) in enumerate(some):
                own = torch.log_softmax(logits[row, count - len(option) :], -1)
                taken = own[torch.arange(len(option)), torch.tensor(option, device=own.device)]
                means[i, k] = float(taken.mean())
        return means


def language_network(
    name: str, module: Any, tokenizer: Any, described: str, device: Device, prompting: Prompting
) -> Network:
    """A causal language model as a network: of the next token, until it meets questions.

    Parameters
    ----------
    described : what tells its tokenizer from others
    """
    digest, config = parameters_digest(module), module.config
    longest = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or 10**9)
    model = LanguageModel(device.place(module), tokenizer, device, longest, prompting)
    settings = {"parameters": digest, "tokenizer": described, "longest": longest, **device.settings()}
    network = Network(
        name=f"huggingface:{Path(name).name}",
        n_classes=int(config.get_text_config().vocab_size),
        prepare=lambda text: model.tokens(text)[-1 - longest : -1],
        logits=model.of_next,
        settings={**settings, "task": "next token"},
        modality="text",
    )
    return replace(network, for_source=lambda source, _: _for_source(network, model, settings, source))


def _for_source(network: Network, model: LanguageModel, settings: Any, source: Source) -> tuple[Network, Source]:
    """A network and a source that belong together."""
    if source.modality == "text":
        return network, _next_tokens(model, source)
    if source.modality != "question":
        return network, source  # refused where it is found to be of another kind
    scoring = model.prompting.scoring
    template = model.prompting.prompt or PROMPTS[scoring]
    prepare, logits = (_letters if scoring == "letters" else _options)(model, template, source.n_choices)
    asked = replace(
        network,
        n_classes=source.n_choices,
        prepare=lambda question: question,
        logits=logits,
        settings={**settings, "task": scoring, "prompt": template},
        modality="question",
        class_names=letters(source.n_choices),
        masks=True,
    )
    return asked, replace(source, read=lambda row: prepare(source.read(row)))


def _next_tokens(model: LanguageModel, source: Source) -> Source:
    """Texts, each with its last token as the label; a text of fewer than two tokens cannot be read."""

    def read(row: int) -> str:
        text: str = source.read(row)
        if len(model.tokens(text)) < 2:
            raise ValueError("fewer than two tokens")
        return text

    def label(row: int) -> int:
        try:
            return model.tokens(read(row))[-1]
        except (TypeError, ValueError):
            return 0  # of a row that is left out

    return replace(source, read=read, labels=np.array([label(row) for row in range(len(source))]), class_names=None)


_Scoring = tuple[Callable[[Question], Any], Callable[[list[Any]], NDArray[np.float32]]]


def _letters(model: LanguageModel, template: str, n_choices: int) -> _Scoring:
    """The logits of the letters of the choices after a prompt; -inf for letters beyond a question's own."""
    before, tokens = model.letter_tokens(n_choices)

    def prepare(question: Question) -> tuple[list[int], int]:
        return model.fitting(model.tokens(question.prompt(template)) + before), len(question.choices)

    def logits(asked: list[tuple[list[int], int]]) -> NDArray[np.float32]:
        found = model.of_next([context for context, _ in asked])[:, tokens]
        beyond = np.arange(n_choices) >= np.array([count for _, count in asked])[:, None]
        return np.where(beyond, np.float32(-np.inf), found)

    return prepare, logits


def _options(model: LanguageModel, template: str, n_choices: int) -> _Scoring:
    """The mean log-probability of the tokens of each choice after a prompt."""

    def prepare(question: Question) -> Sequences:
        prompt = question.prompt(template)
        context, pairs = model.tokens(prompt), []
        for choice in question.choices:
            option = model.continued(prompt, f" {choice}")
            if not option or not context:
                raise ValueError("a prompt or a choice without tokens")
            pairs.append((model.fitting(context, option), option))
        return pairs

    return prepare, lambda asked: model.of_options(asked, n_choices)
