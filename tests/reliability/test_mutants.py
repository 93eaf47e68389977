"""Sensitivity of the tests: small mistakes at random places of the modules behind the guarantee are noticed."""

from __future__ import annotations

import ast
import os

import mutants
import pytest
import scipy.stats

pytestmark = [pytest.mark.reliability, pytest.mark.long]

#: Mutants of each module in the sample; EVICP_MUTANTS asks for more than fit into half an hour with all other rows.
LONG, SEED = int(os.environ.get("EVICP_MUTANTS", "8")), 1

#: Mutants that behave exactly as the original does, and why. Reviewed, not collected; they count neither way.
EQUIVALENT: dict[str, str] = {
    "surprisal: rest < largest -> rest <= largest": "at equality both branches are ln 2, to the bit",
    "_risk_exceeds: abs(tail - risk) > 1e-09 * risk -> abs(tail - risk) >= 1e-09 * risk": (
        "so near, doubles and integers decide alike"
    ),
    **{
        f"plan: {before} -> {after}": "a search downwards from further above; only time is lost"
        for before, after in (
            ("2 * log(6 / (1 - confidence))", "3 * log(6 / (1 - confidence))"),
            ("6 / (1 - confidence)", "7 / (1 - confidence)"),
        )
    },
    "plan: smallest > safe -> smallest >= safe": "from `safe` on every n keeps the promise",
    **{
        f"_last_missing: _concentration({n}, last, coverage, tolerance) < confidence -> "
        f"_concentration({n}, last, coverage, tolerance) <= confidence": "a Beta probability is not just a given double"
        for n in ("first", "last")
    },
    "_ranks: 2 ** 61 -> 2 ** 62": "a margin of two: products below 2^63 fit into 64 bits as well",
    "_ranks: int(n.max(initial=1)) * denominator >= 2 ** 61 -> int(n.max(initial=1)) * denominator > 2 ** 61": (
        "a margin of two, again"
    ),
    "_ranks: 2 ** 61 -> 2 * 61": "Python's integers are as exact as those of 64 bits, and slower",
    "_ranks: initial=1 -> initial=2": "at most widened where it need not be",
    "_last_missing: 1 << (safe - smallest).bit_length() -> 2 << (safe - smallest).bit_length()": (
        "how many n are looked at together changes no answer"
    ),
    **{
        f"_risk_exceeds: 1e-09 * risk -> {wider}": "more is decided in integers, and alike"
        for wider in ("2e-09 * risk", "1e-09 / risk")
    },
    **{
        f"Certificate.to_dict: part['threshold'] > 0 -> part['threshold'] {other}": "only infinities get there"
        for other in ("> 1", ">= 0")
    },
    "_risk_exceeds: n > 2000 -> n > 2001": "2001 rows are decided in integers, too: only more exactly",
    "_last_missing: safe - smallest -> safe + smallest": "more n to look through, all of them beyond doubt",
    "_last_missing: last > missing -> last >= missing": "a range that ends there is halved once more, for nothing",
    "_exact_pac_rows: n // 2 -> n // 3": "halving begins further below",
    "_exact_pac_rank: n + 1 -> n + 2": "at rank n + 1 nothing is risked, so that no search goes beyond",
    "_ascending: start + step + 1 -> start + step + 2": "one more pair is looked at twice",
    "_rebuild: len(parts) == 1 or whole is None -> len(parts) == 1 and whole is None": "the same numbers either way",
    "_JsonLines.finish: self._file.flush() -> pass": "closing, which comes next, flushes",
}


def test_every_kind_of_mistake_is_made() -> None:
    source = "def f(x, y):\n    if x < y and not x:\n        y[0] = max(x, -1) + 2.0\n        g(True)\n    return x\n"
    made = {mutant.after for mutant in mutants.all_mutants(source)}
    assert {"x <= y", "x < y or not x", "x", "min(x, -1)", "-2", "max(x, -1) - 2.0", "max(x, -1) + 4.0"} <= made
    assert {"g(False)", "y[1]", "pass"} <= made
    assert "if not (x < y and (not x)):" in made
    for mutant in mutants.all_mutants(source):
        assert mutants.mutated(source, mutant.number) != ast.unparse(ast.parse(source)), mutant.key


def test_annotations_documents_and_messages_are_left_alone() -> None:
    source = 'def f(x: int | None = None) -> int | None:\n    """One."""\n    raise E(f"got {x + 1}")\n'
    assert [mutant.after for mutant in mutants.all_mutants(source)] == ["pass"]


def test_a_sample_is_the_same_every_time() -> None:
    first, second = (mutants.sample("method/scores", 20, SEED) for _ in range(2))
    assert [mutant.key for mutant in first] == [mutant.key for mutant in second]


def test_nothing_is_excused_that_does_not_exist() -> None:
    known = {mutant.key for name in mutants.TESTS for mutant in mutants.all_mutants(mutants.source_of(name))}
    assert EQUIVALENT.keys() <= known


@pytest.mark.parametrize("module", mutants.TESTS)
def test_mutants_are_killed(module: str, figure) -> None:
    outcome = mutants.survivors(module, LONG, SEED)
    tried = [key for key in outcome["tried"] if key not in EQUIVALENT]
    survived = [key for key in outcome["survived"] if key not in EQUIVALENT]
    killed = len(tried) - len(survived)
    low = scipy.stats.beta(killed, len(survived) + 1).ppf(0.025)
    figure("mutants", len(tried))
    figure("killed", killed)
    figure("equivalent, left out", len(outcome["tried"]) - len(tried))
    figure("killed by module", f"{module} {killed}/{len(tried)} (95 % interval from {low:.2f})")
    assert killed >= 0.9 * len(tried), "\n".join(survived)
