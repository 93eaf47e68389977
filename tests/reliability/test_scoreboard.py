"""The scoreboard does not flatter: what failed, was skipped or is old shows as such."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest
import scoreboard
import test_seeded_bugs
import trees

TODAY = date(2026, 11, 15)


def report(*cases: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")


def case(name: str, inside: str = "", **figures: object) -> str:
    items = "".join(f'<property name="{k.replace("_", " ")}" value="{v}"/>' for k, v in figures.items())
    return f'<testcase name="{name}"><properties>{items}</properties>{inside}</testcase>'


def test_figures_of_several_tests_become_one():
    text = scoreboard.summary(
        [
            report(case("a", largest_error=0.5, smallest_p=0.25, kills=200)),
            report(case("b", largest_error=0.125, smallest_p=0.75, kills=100, engine="native")),
        ]
    )
    assert text == "largest error 0.5; smallest p 0.25; kills 300; engine native; 2 tests passed"


def test_one_failure_or_error_fails_the_row():
    for inside in ("<failure/>", "<error/>"):
        text = scoreboard.summary([report(case("good", mismatches=0), case("bad", inside))])
        assert text.startswith("FAILED: 1 of 2 tests, first bad")
        assert not scoreboard.Result(text, "2026-11-15", "c", "m").passed


def test_a_row_of_skipped_tests_is_open_and_a_skip_is_not_hidden():
    assert scoreboard.summary([report(case("a", "<skipped/>"))]).startswith("open")
    assert "1 could not run here" in scoreboard.summary([report(case("a", "<skipped/>"), case("b"))])
    assert scoreboard.summary([report()]).startswith("open")


def test_missing_and_old_figures_are_open():
    old = scoreboard.Result("mismatches 0", (TODAY - timedelta(days=31)).isoformat(), "abc", "m")
    new = scoreboard.Result("mismatches 0", (TODAY - timedelta(days=30)).isoformat(), "abc", "m")
    page = scoreboard.render({"1*": old, "3": new}, TODAY)
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert "| open: not measured since 2026-10-15 |" in lines["1*"]
    assert "| open |" in lines["2*"]
    assert "| mismatches 0 |" in lines["3"]


def test_a_page_is_read_back_as_it_was_written(tmp_path):
    results = {name: scoreboard.Result(f"figure {name}", str(TODAY), "abc+", "m, 2 cores") for name in scoreboard.ROWS}
    assert scoreboard.parse(scoreboard.render(results, TODAY)) == results
    scoreboard.write(results, tmp_path / "page.md")
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_a_bar_in_a_figure_does_not_break_the_table():
    assert "|" not in scoreboard.summary([report(case("a|b", "<failure/>"))])


def test_every_row_names_tests_that_exist_or_is_open():
    for row in scoreboard.ROWS.values():
        for selection in row.tests:
            path, _, test = selection.partition(" ")[0].partition("::")
            if not (scoreboard.REPOSITORY / path).exists():
                assert scoreboard.measure(row).figure.startswith("open")
            elif test:
                assert f"def {test}(" in (scoreboard.REPOSITORY / path).read_text(encoding="utf-8"), selection


def test_every_reliability_test_file_is_in_a_row():
    named = {
        selection.partition(" ")[0].partition("::")[0] for row in scoreboard.ROWS.values() for selection in row.tests
    }
    files = {f"tests/reliability/{path.name}" for path in Path(__file__).parent.glob("test_*.py")}
    assert files - named == {"tests/reliability/test_scoreboard.py"}


def test_every_file_with_a_long_run_is_in_a_row():
    """Otherwise nothing would ever run the cases that the usual run leaves out."""
    named = [
        selection.partition(" ")[0].partition("::")[0] for row in scoreboard.ROWS.values() for selection in row.tests
    ]
    for path in (scoreboard.REPOSITORY / "tests").rglob("test_*.py"):
        if any(word in path.read_text(encoding="utf-8") for word in ("long_run", "usually(", "mark.long")):
            name = str(path.relative_to(scoreboard.REPOSITORY))
            assert name == "tests/reliability/test_scoreboard.py" or any(name.startswith(part) for part in named), name


def test_the_page_in_the_repository_is_the_scoreboards():
    page = scoreboard.BOARD
    if not page.exists():
        pytest.skip("not in a clone of the repository")
    text = page.read_text(encoding="utf-8")
    assert text.startswith(scoreboard.HEAD)
    assert scoreboard.parse(text).keys() <= scoreboard.ROWS.keys()


@pytest.mark.parametrize("bug", test_seeded_bugs.BUGS, ids=lambda bug: bug.name)
def test_a_seeded_bug_still_has_its_place(bug):
    """Whoever changes a line that a bug stands in for is told at once, not by the next long run."""
    bug.text_in(trees.SOURCE)
    assert all((trees.REPOSITORY / name).is_file() for name in bug.tests)
