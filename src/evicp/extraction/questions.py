"""Multiple-choice questions: rows of JSON lines or of a data set as a question, its choices and its answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import numpy as np

from evicp.errors import InputError, LabelsError
from evicp.types import I64

#: What columns are called in the data sets that go around (MMLU, ARC, HellaSwag, OpenBookQA, ...).
QUESTION_COLUMNS = ("question", "question_stem", "query", "prompt", "ctx")
CHOICE_COLUMNS = ("choices", "options", "endings")
ANSWER_COLUMNS = ("answer", "answerkey", "answer_key", "label", "gold", "answer_idx")

#: The prompt before the choice; {names} stand for columns of the row, {choices} for the lines of its choices.
PROMPTS: Mapping[str, str] = {
    "letters": "Question: {question}\n{choices}\nAnswer:",
    "options": "Question: {question}\nAnswer:",
}


@dataclass(frozen=True)
class Question:
    """A question with its choices.

    Parameters
    ----------
    text : the question itself
    choices : the texts to choose from
    row : all columns of the row, which a prompt may name
    """

    text: str
    choices: tuple[str, ...]
    row: Mapping[str, Any]

    def prompt(self, template: str) -> str:
        """The text before the answer."""
        lines = "\n".join(f"{letter}. {choice}" for letter, choice in zip(ascii_uppercase, self.choices, strict=False))
        known = {**self.row, "question": self.text, "choices": lines}

        def value(found: re.Match[str]) -> str:
            if found[1] not in known:
                raise InputError(f"the prompt names {{{found[1]}}}; a row has {', '.join(known)}.")
            return str(known[found[1]])

        return re.sub(r"\{(\w+)\}", value, template)


@dataclass(frozen=True, eq=False)
class Questions:
    """Rows of a table of questions.

    Parameters
    ----------
    rows : a mapping of columns each
    question, choices, answer : names of columns; without an answer there are no labels
    """

    rows: Sequence[Mapping[str, Any]]
    question: str
    choices: str
    answer: str | None

    def __getitem__(self, row: int) -> Question:
        """A question; one that has no text or fewer than two choices cannot be read."""
        found = self.rows[row]
        text, choices = found.get(self.question), _texts(found.get(self.choices))
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"no text in {self.question!r}")
        if not 2 <= len(choices) <= len(ascii_uppercase) or not all(isinstance(one, str) and one for one in choices):
            raise ValueError(f"{self.choices!r} must hold 2 to {len(ascii_uppercase)} texts")
        return Question(text, tuple(choices), found)

    def most_choices(self) -> int:
        """K: how many choices the question with the most of them has."""
        return max(2, *(len(_texts(row.get(self.choices))) for row in self.rows))

    def labels(self) -> I64 | None:
        """The place of the right choice in each row."""
        if self.answer is None:
            return None
        return np.array([_place(row, i, self.answer, self.choices) for i, row in enumerate(self.rows)], np.int64)

    def digest(self) -> str:
        """SHA-256 of the rows."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(json.dumps(dict(row), sort_keys=True, default=str).encode() + b"\n")
        return digest.hexdigest()


def letters(n_choices: int) -> tuple[str, ...]:
    """What the choices are called.

    >>> letters(3)
    ('A', 'B', 'C')
    """
    return tuple(ascii_uppercase[:n_choices])


def _texts(choices: Any) -> Sequence[Any]:
    """The texts among choices, which some data sets keep beside their letters: {"text": [...], "label": [...]}."""
    inside = choices.get("text") if isinstance(choices, Mapping) else choices
    return inside if isinstance(inside, list | tuple) else ()


def _place(row: Mapping[str, Any], number: int, answer: str, choices: str) -> int:
    """Which of a row's choices is the answer: by its letter, its number from 0 on, its text, or its own label."""
    given, texts = row.get(answer), list(_texts(row.get(choices)))
    if len(texts) < 2:
        return 0  # the row cannot be read, and is left out
    own = row[choices].get("label") if isinstance(row.get(choices), Mapping) else None
    names = [str(name) for name in own] if isinstance(own, list | tuple) else list(letters(len(texts)))
    if isinstance(given, str) and given.strip() in names:
        return names.index(given.strip())
    if isinstance(given, str) and given in texts:
        return texts.index(given)
    place = int(given) if isinstance(given, str | int) and str(given).strip().isdecimal() else -1
    if not 0 <= place < len(texts):
        raise LabelsError(
            f"row {number} must name one of its {len(texts)} choices in {answer!r}, by letter, number from 0 on or "
            f"text; got {given!r}."
        )
    return place
