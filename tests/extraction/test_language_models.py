"""Causal language models of Hugging Face, tiny ones made here: against a plain pass over each sequence by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import evicp
from evicp.cli import main
from evicp.errors import FileError, InputError, LabelsError
from evicp.extraction import Prompting, extract, open_source
from evicp.extraction.storage import Shards

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("one_thread", "torchvision")

WORDS = [
    *("Question", "Answer", ":", ".", "?", "A", "B", "C", "D", "E", "city"),
    *("river", "Paris", "Rome", "Oslo", "Cairo", "the", "of", "which", "is", "big", "old", "in"),
]

QUESTIONS = [
    {"question": "which city is big ?", "choices": ["Paris", "Rome", "Oslo"], "answer": "B"},
    {"question": "which is the river of the old city in Paris ?", "choices": ["big river", "Rome"], "answer": "A"},
    {"question": "which ?", "choices": ["the", "of the river", "Cairo is old", "Oslo"], "answer": 3},
    {"question": "which city is old ?", "choices": ["Paris", "Cairo"], "answer": "Cairo"},
    {"question": "the river of Oslo is", "choices": ["big", "old", "in the city"], "answer": "A"},
]


def save_model(folder: Path, *, by_letter: bool = False, longest: int = 48) -> Path:
    """A language model of one layer with a tokenizer of words, or of single characters."""
    pieces = sorted(set("".join(WORDS) + " \n")) if by_letter else WORDS
    vocabulary = {piece: i for i, piece in enumerate(["[UNK]", "[EOS]", *pieces])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    split = tokenizers.pre_tokenizers
    made.pre_tokenizer = split.Split("", "isolated") if by_letter else split.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", eos_token="[EOS]")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(vocabulary), n_positions=longest, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("words"))


@pytest.fixture
def questions(tmp_path) -> Path:
    return write(tmp_path / "questions.jsonl", QUESTIONS)


def write(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Plain:
    """What the model gives for one sequence at a time, without any padding."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.module = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def __call__(self, text: str) -> np.ndarray:
        with torch.inference_mode():
            return self.module(**self.tokenizer(text, return_tensors="pt")).logits[0].numpy()

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text)["input_ids"]


def lettered(row: dict) -> str:
    lines = "".join(f"{letter}. {choice}\n" for letter, choice in zip("ABCD", row["choices"], strict=False))
    return f"Question: {row['question']}\n{lines}Answer:"


def test_letters_have_the_logits_of_their_tokens_after_the_prompt(model, questions, tmp_path):
    extract(str(model), questions, tmp_path / "a.npz", batch_size=3)
    plain = Plain(model)
    tokens = [plain.ids(letter)[0] for letter in "ABCD"]
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["labels"].tolist() == [1, 0, 3, 1, 0]
        assert arrays["class_names"].tolist() == list("ABCD")
        for row, logits in zip(QUESTIONS, arrays["logits"], strict=True):
            n = len(row["choices"])
            np.testing.assert_allclose(logits[:n], plain(lettered(row))[-1, tokens[:n]], rtol=1e-4, atol=1e-5)
            assert (logits[n:] == -np.inf).all()


def test_options_have_the_mean_log_probability_of_their_tokens(model, questions, tmp_path):
    asked = Prompting("options", "{question} Answer :")
    extract(str(model), questions, tmp_path / "a.npz", batch_size=2, prompting=asked)
    plain = Plain(model)
    with np.load(tmp_path / "a.npz") as arrays:
        for row, logits in zip(QUESTIONS, arrays["logits"], strict=True):
            for choice, found in zip(row["choices"], logits, strict=False):
                prompt = f"{row['question']} Answer :"
                own, given = plain.ids(f" {choice}"), plain(f"{prompt} {choice}")
                log_p = torch.log_softmax(torch.from_numpy(given[-len(own) - 1 : -1]), -1).numpy()
                assert found == pytest.approx(log_p[np.arange(len(own)), own].mean(), rel=1e-4)
            assert (logits[len(row["choices"]) :] == -np.inf).all()


def test_the_next_token_of_texts_is_their_last_one(model, tmp_path):
    texts = ["the city of Paris is big", "Oslo", "in " * 60 + "Rome is old", "which river ?"]
    result = extract(str(model), write(tmp_path / "t.jsonl", [{"text": text} for text in texts]), tmp_path / "a.npz")
    assert [(one.input, one.reason) for one in result.unreadable] == [("row 1", "fewer than two tokens")]
    plain, kept = Plain(model), [texts[0], texts[2], texts[3]]
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["logits"].shape == (3, len(WORDS) + 2)
        assert arrays["labels"].tolist() == [plain.ids(text)[-1] for text in kept]
        for text, logits in zip(kept, arrays["logits"], strict=True):
            context = " ".join(text.split(" ")[-49:-1])  # as many tokens as the model takes
            expected = plain(context.replace("?", "")) if "?" in context else plain(context)
            np.testing.assert_allclose(logits, expected[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scoring", ["letters", "options"])
def test_interrupted_it_goes_on_and_the_file_is_the_same(model, questions, tmp_path, monkeypatch, scoring):
    how = {"batch_size": 1, "shard_size": 2, "prompting": Prompting(scoring), "progress": False}
    extract(str(model), questions, tmp_path / "whole.npz", **how)
    store = Shards.store

    def interrupted(self, number, shard):
        if number == 1:
            raise KeyboardInterrupt
        store(self, number, shard)

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            extract(str(model), questions, tmp_path / "parts.npz", **how)
    result = extract(str(model), questions, tmp_path / "parts.npz", **how)
    assert result.resumed == 2
    assert (tmp_path / "parts.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    with pytest.raises(FileError, match=r"prompt was .*, is"):
        extract(str(model), questions, tmp_path / "parts.npz", **{**how, "prompting": Prompting(scoring, "{question}")})


def test_a_data_set_on_disk_whose_choices_have_labels_of_their_own(model, tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {
        "question_stem": ["which city ?", "which river ?"],
        "choices": [{"text": ["Rome", "Oslo"], "label": ["1", "2"]}, {"text": ["A", "B", "C"], "label": list("ABC")}],
        "answerKey": ["2", "C"],
    }
    datasets.DatasetDict({"test": datasets.Dataset.from_dict(rows)}).save_to_disk(tmp_path / "arc")
    extract(str(model), tmp_path / "arc", tmp_path / "a.npz", split="test")
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["labels"].tolist() == [1, 2]
        assert np.isfinite(arrays["logits"]).sum(1).tolist() == [2, 3]


def test_letters_behind_a_space_that_is_a_token_and_columns_in_the_prompt(questions, tmp_path):
    folder = save_model(tmp_path / "letters", by_letter=True, longest=200)
    asked = Prompting(prompt="{context} {question}\n{choices}\nAnswer:")
    rows = [{**QUESTIONS[0], "context": "old"}, {**QUESTIONS[1], "context": "is"}]
    extract(str(folder), write(tmp_path / "c.jsonl", rows), tmp_path / "a.npz", prompting=asked)
    plain = Plain(folder)
    for row, logits in zip(rows, np.load(tmp_path / "a.npz")["logits"], strict=True):
        text = (
            f"{row['context']} {lettered(row).removeprefix('Question: ')} "  # the space is a token before each letter
        )
        tokens = [plain.ids(letter)[0] for letter in "ABC"][: len(row["choices"])]
        np.testing.assert_allclose(logits[: len(tokens)], plain(text)[-1, tokens], rtol=1e-4, atol=1e-5)
    with pytest.raises(FileError, match=r"names \{context\}; a row has question, choices, answer"):
        extract(str(folder), questions, tmp_path / "b.npz", prompting=asked)


def test_what_cannot_be_asked_says_so(model, questions, tmp_path):
    long = {"question": "in " * 60, "choices": ["Rome", "Oslo"], "answer": 0}
    alone = {"question": "which ?", "choices": ["Rome"], "answer": 0}
    result = extract(str(model), write(tmp_path / "q.jsonl", [*QUESTIONS, long, alone]), tmp_path / "a.npz")
    reasons = {one.input: one.reason for one in result.unreadable}
    assert reasons == {
        "row 5": "70 tokens, more than the 48 that the model takes",
        "row 6": "'choices' must hold 2 to 26 texts",
    }
    for answer in ("Z", 3, -1, None, 1.5, True):
        wrong = write(tmp_path / "w.jsonl", [{**QUESTIONS[0], "answer": answer}])
        with pytest.raises(LabelsError, match="row 0 must name one of its 3 choices in 'answer'"):
            open_source(wrong)
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n[1]\n')
    with pytest.raises(FileError, match="line 2 is not an object"):
        open_source(tmp_path / "bad.jsonl")
    with pytest.raises(FileError, match="no column of questions that is known by name"):
        open_source(write(tmp_path / "n.jsonl", [{"ask": "which ?", "choices": ["a", "b"]}]))
    with pytest.raises(InputError, match="scoring must be 'letters' or 'options'; got 'sum'"):
        Prompting("sum")
    many = {"question": "which ?", "choices": list("ABCDEFGH"), "answer": 0}
    with pytest.raises(InputError, match="does not give each of the letters A, B, C, D, E, F, G, H a token of its own"):
        extract(str(model), write(tmp_path / "m.jsonl", [many]), tmp_path / "b.npz")


@pytest.mark.filterwarnings("ignore::evicp.EvicpWarning")  # answers at random
def test_from_the_command_line_to_sets(model, tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    rows = [{**QUESTIONS[i % 5], "answer": int(rng.integers(len(QUESTIONS[i % 5]["choices"])))} for i in range(80)]
    path = str(write(tmp_path / "q.jsonl", rows))
    output = str(tmp_path / "q.npz")
    arguments = [str(model), path, "-o", output, "--scoring", "options", "--label-column", "answer"]
    monkeypatch.setattr(sys, "argv", ["evicp", "extract", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "80 rows of 4 logits" in capsys.readouterr().out
    with np.load(output) as arrays:
        logits, labels = arrays["logits"], arrays["labels"]
    found = evicp.calibrate(logits, labels, "lac").predict(logits, 0.9)
    assert not (found.mask() & (logits == -np.inf)).any()  # no choice that a question does not have
    assert found.contains(labels).mean() >= 0.9
