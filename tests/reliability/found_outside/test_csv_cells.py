"""A name in a csv file is text, in every spreadsheet and for every reader."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import evicp
from evicp.io.set_texts import CsvSets
from evicp.paper.reproduction import as_network, reproduce
from evicp.tables import csv_table

pytestmark = pytest.mark.reliability

#: Names that a spreadsheet would compute, or that would begin a line of their own.
FORMULAS = (
    "=1+1",
    "+1+1",
    "-2+3+cmd|' /C calc'!A0",
    '@SUM(1+9)*cmd|"/C calc"!A0',
    "\t=1+1",
    "\r=1+1",
    "\tname",
    "\rname",
    " =1+1",
    "'=1+1",
    "\N{FULLWIDTH EQUALS SIGN}1+1",
)
#: Names that need quotes, and nothing more.
BROKEN = ("a\r=1+1", "a\n=1+1", 'a",=1+1')
PLAIN = ("tabby cat", "'tis", "a=b", "3-4", "x@y", "", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "a'=b")
STARTS = tuple("=+-@\t\r\N{FULLWIDTH EQUALS SIGN}")


def unmarked(cell: str) -> str:
    """The text in a cell, as the documents say."""
    from evicp.tables import csv_text

    return cell[1:] if cell.startswith("'") and csv_text(cell[1:]) != cell[1:] else cell


def cells(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("name", [*FORMULAS, *BROKEN, *PLAIN], ids=repr)
def test_names_of_classes_in_sets(tmp_path: Path, name: str) -> None:
    names = (name, "other") if name != "other" else (name, "another")
    sets = evicp.PredictionSets(
        np.arange(3), np.array([0, 1], np.int32), n_classes=2, coverage=Fraction(9, 10), class_names=names
    )
    file = CsvSets(tmp_path / "sets.csv")
    file.append(sets, 0)
    file.finish()
    file.close()
    head, first, second = cells(tmp_path / "sets.csv")
    assert head == ["row", "size", "labels", "names"]
    assert second == ["1", "1", "1", "other"]
    assert not first[3].startswith(STARTS)
    assert unmarked(first[3]) == name
    assert (name in FORMULAS) == (first[3] != name)


def test_every_name_in_a_cell_is_marked(tmp_path: Path) -> None:
    """Where a semicolon separates cells, each of them begins one."""
    sets = evicp.PredictionSets(
        np.array([0, 2]), np.array([1, 0], np.int32), n_classes=2, coverage=Fraction(9, 10), class_names=("=a", "-5")
    )
    file = CsvSets(tmp_path / "sets.csv")
    file.append(sets, 0)
    file.close()
    assert cells(tmp_path / "sets.csv")[1][3] == "'-5; '=a"


def test_text_in_tables_is_marked_and_numbers_are_not(tmp_path: Path) -> None:
    numbers = [-0.5, -3, float("-inf"), np.float64(-1.5), "-0.012", "+0.012", None]
    names = [*FORMULAS, *BROKEN, *PLAIN]
    (tmp_path / "table.csv").write_text(csv_table(["=head"], [numbers, names]), newline="")
    head, first, second = cells(tmp_path / "table.csv")
    assert head == ["'=head"]
    assert first == ["-0.5", "-3", "-inf", "-1.5", "-0.012", "+0.012", ""]
    assert [unmarked(cell) for cell in second] == names
    assert not any(cell.startswith(STARTS) for cell in second)


def test_scores_of_ones_own_in_a_comparison(tmp_path: Path) -> None:
    """Their name is that of their function."""
    from evicp.cli.compare import _write

    def score(logits: np.ndarray) -> np.ndarray:
        return -logits

    score.__name__ = "=1+1"
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 100)
    result = evicp.compare(rng.normal(size=(100, 3)), labels, [score], 0.8, trials=2)
    _write(result, tmp_path / "comparison.csv", None, [], {}, {})  # type: ignore[arg-type]
    assert {row[0] for row in cells(tmp_path / "comparison.csv")} == {"score", "'=1+1"}


def test_networks_in_the_papers_tables() -> None:
    """They are called after their files."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    logits = (rng.normal(size=(400, 3)) + 2 * np.eye(3)[labels]).astype(np.float32)
    network = as_network("=1+1", "val", logits, labels)
    result = reproduce([network], trials=1)
    tables = [text.decode() for name, text in result.files(draw=False).items() if name.endswith(".csv")]
    networks = {row[0] for text in tables for row in csv.reader(text.splitlines())}
    assert "'=1+1" in networks
    assert not any(name.startswith(STARTS) for name in networks)
