"""The leaderboard: who is first, by how much, and how sure that is."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from evicp.datasets import load_imagenet_sample
from evicp.errors import InputError
from evicp.evaluation.compare import compare
from evicp.evaluation.leaderboard import COVERAGES, MODES, SCORES, Cell, leaderboard
from evicp.method.scores import ECP, LAC, TopK
from evicp.tables import csv_table
from pages_apart import is_rounding_apart
from places import DOCS


def networks():
    """Twenty classes of the sample under two names, the second in half precision."""
    sample = load_imagenet_sample()
    kept = sample.labels < 200
    logits, labels = sample.logits[kept][:, :200], sample.labels[kept]
    return {"a": (logits, labels), "b, half": (logits[::2].astype(np.float16), labels[::2])}


def test_figures_are_those_of_a_comparison():
    named, scores = networks(), (ECP(), LAC(), TopK())
    steps = []
    board = leaderboard(named, scores, [0.8, 0.9], trials=4, seed=3, advance=lambda: steps.append(1))
    assert len(board.cells) == len(steps) == 2 * 2 * len(MODES)
    assert {(cell.network, cell.coverage, cell.mode) for cell in board.cells} >= {("b, half", 0.8, "T by SAT")}
    cell = next(c for c in board.cells if (c.network, c.coverage, c.mode) == ("a", 0.9, "T fitted"))
    expected = compare(*named["a"], scores, 0.9, trials=4, seed=3, temperature="split")
    for place, name in enumerate(("ecp", "lac", "topk")):
        for metric in ("mean_size", "sscv", "sat", "sscv_count"):
            np.testing.assert_array_equal(cell.values[metric][place], expected.values(name, metric))
            assert cell.means(metric)[place] == pytest.approx(expected.mean(name, metric))
    first, other, lead, error = cell.lead(scores)
    difference = expected.values(["ecp", "lac", "topk"][first], "sat") - expected.values(
        ["ecp", "lac", "topk"][other], "sat"
    )
    assert first == np.argmax(cell.means("sat"))
    assert (lead, error) == (pytest.approx(difference.mean()), pytest.approx(difference.std(ddof=1) / 2))


def cell_of(sat):
    values = np.array(sat, float)
    return Cell("made", 0.9, "T = 1", {"mean_size": 1 / values, "sscv": values, "sat": values, "sscv_count": values})


def test_ranks_are_shared_and_intervals_say_how_sure_they_are():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, 40)
    cell = cell_of([0.5 + noise, 0.5 + noise[::-1], 0.1 + noise / 100, np.full(40, np.nan)])
    assert cell.ranks("sat").tolist() == [1, 1, 3, 4]  # equal means; what is undefined comes last
    assert cell.ranks("sscv").tolist()[2] == 1  # less is better
    low, high = cell.intervals("sat").T
    assert low.tolist() == [1, 1, 3, 4]
    assert high.tolist() == [2, 2, 3, 4]
    same = cell.lead((ECP(), LAC(), TopK(), TopK()))
    assert same[:2] == (0, 1)
    assert same[2] == pytest.approx(0, abs=1e-12)
    # The stabilizer makes no other family: the best score beside ECP is the third.
    assert cell.lead((ECP(), ECP(stabilizer=1e-8), LAC(), TopK()))[1] == 2
    alone = cell.lead((ECP(), ECP(), ECP(), ECP()))
    assert alone[1] is None
    assert np.isnan(alone[2])


def test_one_page_in_every_format():
    board = leaderboard(networks(), (ECP(), LAC()), [0.9], trials=2)
    tables = board.tables()
    assert len(tables) == 2 + len(MODES)
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.head)}
        assert table.title in repr(board)
        assert f"## {table.title}" in board.to_markdown()
    assert "a: 300 rows" not in board.about
    assert "- b, half: " in board.to_markdown()
    html = board.to_html()
    assert html.startswith("<!doctype html>")
    assert html.count("<table>") == len(tables)
    lines = list(csv.DictReader(io.StringIO(csv_table(board.lines()[0], board.lines()[1:]))))
    assert len(lines) == 2 * len(board.cells)
    content = board.to_dict()["cells"][0]
    assert float(lines[0]["sat"]) == content["scores"]["ecp"]["sat"]["mean"]
    assert int(lines[0]["rank_high"]) == content["scores"]["ecp"]["sat"]["interval"][1]


def test_one_trial_has_no_intervals():
    with pytest.raises(InputError, match="trials must be 2 or more, for intervals of ranks; got 1"):
        leaderboard(networks(), trials=1)


@pytest.mark.long
def test_the_committed_page_is_what_the_command_writes(shared_data):
    files = {
        "lite0": "imagenet_val5k_efficientnet_lite0",
        "lite1": "imagenet_val5k_efficientnet_lite1",
        "cifar100": "cifar100_wrn16_4_logprob",
        "cifar10": "cifar10_wrn16_4_logprob",
        "news20": "news20_logprob",
    }
    named = {}
    for name, file in files.items():
        with np.load(shared_data / f"{file}.npz") as data:
            named[name] = (data["logits"], data["labels"])
    assert (len(SCORES), COVERAGES) == (8, (0.9, 0.95, 0.99))
    written = leaderboard(named).to_markdown().splitlines()
    kept = (DOCS / "leaderboard.md").read_text(encoding="utf-8").splitlines()
    for line, other in zip(written, kept, strict=True):
        assert is_rounding_apart(line, other, 2e-3), line
