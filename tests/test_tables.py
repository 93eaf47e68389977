"""Tables of text, Markdown and HTML: aligned, and nothing in a cell can break out of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from evicp.tables import html_table, markdown_table, text_table

HOSTILE = [
    "a|b",
    "<script>alert(1)</script>",
    "line\nbreak",
    "&amp;",
    "'\"",
    "back\\slash|",
    "",
    "| --- |",
]


def test_numbers_to_the_right_sentences_to_the_left() -> None:
    table = text_table(["name", "size", "note"], [["ecp", "2.1", "the best"], ["longer", "12.25", "no"]])
    assert table.splitlines() == [
        "name     size  note",
        "------  -----  --------",
        "ecp       2.1  the best",
        "longer  12.25  no",
    ]


def test_wide_letters_count_twice() -> None:
    wide = "\N{CJK UNIFIED IDEOGRAPH-732B}" * 2
    table = text_table(["name", "size"], [[wide, "2.1"], ["e\N{COMBINING ACUTE ACCENT}tang", "12.0"]])
    assert table.splitlines()[2:] == [f"{wide}    2.1", "e\N{COMBINING ACUTE ACCENT}tang  12.0"]


def test_a_table_without_rows_is_its_head() -> None:
    assert text_table(["a", "b"], []) == "a  b\n-  -"
    assert markdown_table(["a", "b"], []) == "| a | b |\n| --- | --- |"


def test_a_row_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        text_table(["a", "b"], [["1"]])


def test_names_are_text_in_markdown() -> None:
    assert "| &lt;b>R&amp;D&lt;/b> |" in markdown_table(["name"], [["<b>R&D</b>"]])


@pytest.mark.parametrize("cell", HOSTILE)
def test_no_cell_ends_its_markdown_row(cell: str) -> None:
    lines = markdown_table(["name", "value"], [[cell, "1"]]).split("\n")
    assert len(lines) == 3
    unescaped = lines[2].replace("\\|", "")
    assert unescaped.count("|") == 3


class Reader(HTMLParser):
    """Collects tags and the text inside them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self.text.append("")

    def handle_data(self, data: str) -> None:
        self.text[-1] += data


@pytest.mark.parametrize("cell", HOSTILE)
def test_html_cells_are_text(cell: str) -> None:
    reader = Reader()
    reader.feed(html_table(["name", "value"], [[cell, "1"]]))
    reader.close()
    assert reader.tags == ["table", "tr", "th", "th", "tr", "td", "td"]
    assert reader.text[-2:] == [cell, "1"]
    captioned = Reader()
    captioned.feed(html_table(["name"], [["1"]], caption=cell))
    assert captioned.tags == ["table", *(["caption"] if cell else []), "tr", "th", "tr", "td"]
    assert cell in captioned.text


def test_html_numbers_are_to_the_right() -> None:
    """Inline: a notebook has no stylesheet of ours."""
    table = html_table(["name", "size", "note", "set"], [["ecp", "2.1", "the best", "7"]], left=(3,))
    for cell, side in (("ecp", "left"), ("2.1", "right"), ("the best", "left"), ("7", "left"), ("size", "right")):
        assert re.search(rf'<t[dh] style="text-align:{side};padding:[^"]+">{cell}</t', table)
