"""`evicp leaderboard`: scores ranked over networks, coverages and temperatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evicp.cli import inputs, options
from evicp.cli.outputs import RESULT_SUFFIXES, check_output, write_result
from evicp.cli.printing import note, print_json, print_table, print_text
from evicp.errors import InputError
from evicp.progress import progress

if TYPE_CHECKING:
    from evicp.evaluation.leaderboard import Leaderboard

_COVERAGES = [0.9, 0.95, 0.99]

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]FILE...",
        help=(
            "Logits with labels, one file for each network; NAME defaults to the file name. Without files the embedded "
            "sample is used."
        ),
        show_default=False,
    ),
]
ScoreList = Annotated[
    list[str] | None,
    typer.Option(
        "--score", "-s", metavar="SCORE", help="A score to rank. Repeat the option for several. [default: all families]"
    ),
]
Trials = Annotated[int, typer.Option("--trials", "-n", help="The number of random splits.", min=2)]


@options.examples(
    "evicp leaderboard resnet50=val.npz text=news.parquet -o leaderboard.html",
    "evicp leaderboard val.npz -s ecp -s lac -s 'raps(lam=0.5)' -c 0.9",
)
def leaderboard(
    files: Files = None,
    score: ScoreList = None,
    coverage: options.Coverages = _COVERAGES,
    trials: Trials = 50,
    seed: options.Seed = 0,
    calibration: options.CalibrationRows = "0.3",
    output: options.Output = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Rank scores on several networks, at several coverages, with the temperature at 1, fitted and tuned.

    `--output` writes one page as md or html, or the figures as json or csv.
    """
    from evicp.evaluation import leaderboard as board

    named = _named(files or [])
    target = check_output(output, force=force, suffixes=RESULT_SUFFIXES, inputs=[*named.values()])
    scores = [options.parse_score(text) for text in score] if score else board.SCORES
    rows = options.parse_split("1.0", calibration, seed)["calibration"]
    networks = _read(named)
    with progress("ranking the scores", len(networks) * len(coverage) * len(board.MODES)) as advance:
        result = board.leaderboard(
            networks, scores, coverage, trials=trials, seed=seed, calibration=rows, advance=advance
        )
    if target is not None:
        write_result(target, result.to_dict(), result.to_markdown(), result.lines(), result.to_html)
    if as_json:
        print_json(result.to_dict())
        return
    _print(result)
    if target is not None:
        note(f"wrote {target}")


def _named(files: list[str]) -> dict[str, str]:
    """The path of each network by its name; a file is called after itself unless a name is given."""
    named: dict[str, str] = {}
    for text in files:
        name, separator, path = text.partition("=")
        if not separator or Path(text).exists():
            name, path = Path(text).stem, text
        if name in named:
            raise InputError(f"two files are called {name}; give them names: one={named[name]} other={path}.")
        named[name] = path
    return named


def _read(named: dict[str, str]) -> dict[str, tuple[Any, Any]]:
    """Logits and labels of each network; the embedded sample where no file is given."""
    networks: dict[str, tuple[Any, Any]] = {}
    for name, path in named.items():
        rows = inputs.read_rows(path, labelled=True)
        networks[name] = (rows.logits, inputs.labels_of(rows))
    if not networks:
        from evicp.datasets import load_imagenet_sample

        note("No files were given: the embedded sample is used.")
        sample = load_imagenet_sample()
        networks["embedded"] = (sample.logits, sample.labels)
    return networks


def _print(result: Leaderboard) -> None:
    for table in result.tables():
        print_text(f"{table.title}\n")
        texts = [
            place for place, title in enumerate(table.head) if title in ("temperature", "first", "best other score")
        ]
        print_table(table.head, table.rows, left=texts)
        print_text("")
    print_text(result.about)
