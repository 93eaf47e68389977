"""The map of the paper leaves nothing out."""

from __future__ import annotations

import re

import pytest

from places import DOCS

#: How many the paper has, counted in its LaTeX; the last two equations are those of Appendix A.
COUNTS = {"Definition": 6, "Theorem": 2, "Eq.": 19, "Table": 8, "Figure": 3, "Insight": 5, "Appendix": 3}


@pytest.mark.parametrize("kind", COUNTS)
def test_the_paper_map_has_every_item_of_the_paper(kind):
    rows = [line.split(" | ") for line in (DOCS / "paper-map.md").read_text(encoding="utf-8").splitlines()]
    text = "\n".join(f"{cells[0]} {cells[1]}" for cells in rows if len(cells) == 4)
    found = set()
    for numbers in re.findall(rf"{re.escape(kind)} ((?:\d+|[A-C]\b)(?:, \d+)*)", text):
        found |= set(numbers.split(", "))
    names = "ABC" if kind == "Appendix" else map(str, range(1, COUNTS[kind] + 1))
    assert found == set(names)
