"""`evicp demo`: the embedded ImageNet logits, compared, certified and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import evicp
from evicp.cli import options
from evicp.cli.outputs import check_output, note_start
from evicp.cli.printing import print_json, print_table, print_text, visible
from evicp.datasets import LogitsSample, load_imagenet_sample
from evicp.errors import FileError
from evicp.evaluation.result import Evaluation
from evicp.io.atomic import write_whole
from evicp.io.paths import open_file
from evicp.method.scores import USUAL, Score
from evicp.progress import progress
from evicp.sets import PredictionSets, set_text

_PAGE = "evicp-demo/report.html"
_SCORES: tuple[str | Score, ...] = (USUAL[0], evicp.ECP(stabilizer=0), *USUAL[1:], "base")


@options.examples("evicp demo", "evicp demo --coverage 0.95 --trials 50", "evicp demo -o tour.html --force")
def demo(
    coverage: options.Coverage = 0.9,
    trials: Annotated[int, typer.Option(help="The number of random splits for the comparison.", min=1)] = 10,
    seed: options.Seed = 0,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write the interactive report.")
    ] = _PAGE,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Compare the scores on embedded ImageNet logits; show a certificate, some sets and a report. Works offline."""
    target = _target(output, force)
    sample = load_imagenet_sample()
    n, n_classes = sample.logits.shape
    with progress("comparing the scores"):
        comparison = evicp.compare(
            sample.logits, sample.labels, _SCORES, coverage, trials=trials, seed=seed, temperature="split"
        )
    sets, evaluation, certificate, rows = _one_split(sample, coverage, seed)
    if not as_json:
        print_text(f"\nEfficientNet-Lite1 logits of {n:,} ImageNet validation images, {n_classes:,} classes\n")
        print_table(*comparison.table(), title="Prediction sets on the same random splits", bold="ecp")
        print_text(comparison.caption)
        print_text(f"\n{certificate}\n")
        _print_sets(sets, sample, rows)
    page = _write_report(sample, coverage, seed, target)
    if as_json:
        content = {"comparison": comparison.to_dict(), "certificate": certificate.to_dict()}
        print_json({**content, "mean_size": evaluation.mean_size, "output": page})
    else:
        print_text(f"\nreport: {visible(page)}")


def _target(output: str, force: bool) -> Path:
    """Where to write: the demo makes its own folder, and replaces what an earlier demo left there, nothing else."""
    if output != _PAGE:
        return check_output(output, force=force, suffixes=(".html", ".htm"))
    folder = Path(_PAGE).parent
    if (folder.exists() and not folder.is_dir()) or Path(_PAGE).is_dir():
        raise FileError(f"cannot write {_PAGE}: something else has that name. Give another path with -o.")
    if Path(_PAGE).exists() and not force and not _is_report(Path(_PAGE)):
        raise FileError(f"{_PAGE} exists and is not a report of evicp. Use --force to overwrite it.")
    return Path(_PAGE)


def _is_report(path: Path) -> bool:
    """Whether a file's head says that evicp has written it."""
    try:
        with open_file(path) as file:
            return b'<meta name="generator" content="evicp">' in file.read(2048)
    except (FileError, OSError):
        return False


def _one_split(sample: LogitsSample, coverage: float, seed: int) -> tuple[PredictionSets, Evaluation, Any, Any]:
    order = np.random.default_rng(seed).permutation(len(sample.labels))
    used, new = order[: len(order) // 2], order[len(order) // 2 :]
    calibration = evicp.calibrate(sample.logits[used], sample.labels[used], class_names=sample.class_names)
    sets = calibration.predict(sample.logits[new], coverage)
    evaluation = evicp.evaluate(sets, sample.labels[new], sample.logits[new])
    return sets, evaluation, calibration.certificate(coverage, evaluation), new


def _write_report(sample: LogitsSample, coverage: float, seed: int, target: Path) -> Path:
    from evicp import report

    with progress("writing the report"):
        page = report.split(
            sample.logits,
            sample.labels,
            _SCORES,
            coverage=min(max(coverage, 0.5), 0.999),
            temperature="split",
            seed=seed,
            class_names=sample.class_names,
            title="EfficientNet-Lite1 on ImageNet validation images",
            model="EfficientNet-Lite1",
            data_set=f"{len(sample.labels):,} images of ImageNet's validation set",
            note="Made by evicp demo from the logits in the package.",
        )
        text = page.to_html()
    if str(target) == _PAGE:
        target.parent.mkdir(exist_ok=True)
    write_whole(target, text)
    note_start(page, coverage)
    return target


def _print_sets(sets: PredictionSets, sample: LogitsSample, rows: Any, shown: int = 6) -> None:
    """A few sets by name, from small to large."""
    by_size = np.argsort(sets.sizes, kind="stable")
    lines = []
    for i in by_size[np.linspace(0, len(sets) * 0.97, shown).astype(int)].tolist():
        truth = sample.labels[rows[i]]
        lines.append([sample.class_names[truth], "yes" if truth in sets[i] else "no", set_text(sets, i)])
    head = ["true label", "covered", "prediction set"]
    print_table(head, lines, title="A few sets, most plausible label first", left=(1, 2))
