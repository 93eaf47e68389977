"""`evicp reproduce`: the paper's tables and figures, published and measured side by side."""

from __future__ import annotations

import os
from glob import glob
from pathlib import Path
from typing import Annotated

import typer

from evicp.cli import inputs, options
from evicp.cli.printing import note, print_json, print_text
from evicp.errors import FileError, InputError, MissingExtraError
from evicp.progress import progress_bars

Logits = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[val=FILE|v2=FILE]...",
        help=(
            "Logits with labels on ImageNet-Val or ImageNet-V2; wildcards work. Name a file after its network: "
            "resnet152.npz. Without files the embedded sample is used."
        ),
        show_default=False,
    ),
]
Directory = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The directory to write into.")]
Reference = Annotated[
    str | None,
    typer.Option(metavar="NETWORK", help="The network of Tables 3 and 4 and of the figures [ResNet152, or the first]."),
]


@options.examples(
    "evicp reproduce",
    "evicp reproduce val=resnet152.npz val=resnet50.npz v2=v2/resnet152.npz -o reproduction",
    "evicp reproduce 'val=*.npz' --reference resnet50 --trials 20",
)
def reproduce(
    logits: Logits = None,
    output: Directory = Path("reproduction"),
    trials: Annotated[int, typer.Option(help="Random splits per method.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Which random splits.", min=0)] = 0,
    reference: Reference = None,
    to_the_letter: Annotated[
        bool, typer.Option(help="As released: also use the released code's rank k + 1 and its gradient descent for T.")
    ] = False,
    figures: Annotated[bool, typer.Option(help="Draw the figures (needs matplotlib).")] = True,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite existing files.")] = False,
    as_json: options.Json = False,
) -> None:
    """Reproduce the paper's Tables 1 to 8 and Figures 2 and 3 under its released protocol and a clean one."""
    from evicp.paper import reproduction
    from evicp.paper.trials import LEAKS_ONLY, TO_THE_LETTER

    if figures:
        _require_matplotlib()
    reproduction.refuse_existing(output, force=force)
    networks, released = [], TO_THE_LETTER if to_the_letter else LEAKS_ONLY
    for dataset, path in _expand(logits or []):
        rows = inputs.read_rows(path, labelled=True)
        networks.append(reproduction.as_network(Path(path).stem, dataset, rows.logits, inputs.labels_of(rows)))
    if not networks:
        note("No files were given: using the embedded sample, a network that is not in the paper.")
    output.mkdir(parents=True, exist_ok=True)  # before the work, of hours, that is to be written there
    with progress_bars() as started:
        result = reproduction.reproduce(
            networks, trials=trials, seed=seed, reference=reference, released=released, started=started
        )
    written = result.write(output, force=force, draw=figures)
    if as_json:
        print_json({**result.to_dict(), "files": written})
        return
    for line in (*result.about, "", result.verdict, *map(str, result.rankings)):
        print_text(line)
    print_text(f"\n{len(written)} files in {output}; open {output / 'index.html'}")


def _require_matplotlib() -> None:
    """Raise, before the work, where figures cannot be drawn."""
    from evicp.paper.figures import require_matplotlib

    try:
        require_matplotlib()
    except MissingExtraError as error:
        raise MissingExtraError(f"{error}, or leave the figures out with --no-figures") from error


def _expand(arguments: list[str]) -> list[tuple[str, str]]:
    """(data set, path) of every file; a path without "val=" or "v2=" belongs to the one before it."""
    from evicp.paper.published import DATASETS

    result, dataset = [], "val"
    for argument in arguments:
        name, separator, pattern = argument.partition("=")
        if separator and name in DATASETS:
            dataset = name
        elif separator and not Path(argument).exists():
            raise InputError(f"logits must be given as {' or '.join(f'{d}=FILE' for d in DATASETS)}; got {argument!r}.")
        else:
            pattern = argument
        paths = [pattern] if Path(pattern).exists() else sorted(glob(pattern))  # noqa: PTH207 - the pattern may be absolute
        if not paths:
            raise FileError(f"cannot read {pattern}: no such file.")
        result += [(dataset, path) for path in paths]
    _refuse_shared(result)
    return result


def _refuse_shared(named: list[tuple[str, str]]) -> None:
    """One file cannot be of two data sets: wildcards that match too much would compare a network with itself."""
    of_file: dict[str, str] = {}
    for dataset, path in named:
        other = of_file.setdefault(os.path.realpath(path), dataset)
        if other != dataset:
            raise InputError(f"{path} is given as {other} and as {dataset}; a file is of one data set.")
